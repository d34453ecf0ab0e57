"""What pyproject.toml calls dynamic (requirements, extras, scripts), read from settings.ini."""
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

root = Path(__file__).parent
cfg = ConfigParser(delimiters=['='])
cfg.read(root/'settings.ini', encoding='utf-8')
cfg = cfg['DEFAULT']
name = cfg['lib_name']

setup(
    install_requires=cfg['requirements'].split(),
    extras_require={'dev': cfg['dev_requirements'].split()},
    entry_points={'console_scripts': cfg['console_scripts'].split(),
                  'nbdev': [f'{name}={name}._modidx:d']})
