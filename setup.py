"""What pyproject.toml calls dynamic: settings.ini has the requirements, extras and scripts, README.md the rest."""
import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup
from setuptools.command.editable_wheel import editable_wheel

root = Path(__file__).parent
cfg = ConfigParser(delimiters=['='])
cfg.read(root/'settings.ini', encoding='utf-8')
cfg = cfg['DEFAULT']
name = cfg['lib_name']


def readme():
    "README.md for package indexes, where relative links lead nowhere: they become the repository's."
    text = (root/'README.md').read_text(encoding='utf-8')
    project = (root/'pyproject.toml').read_text(encoding='utf-8')
    repo = re.search(r'^Repository = "(.+?)/?"', project, flags=re.M)[1]
    text = re.sub(r'(!\[[^\]]*\]\()(?![a-z]+:|#)', rf'\1{repo}/raw/main/', text)
    return re.sub(r'(?<!!)(\[[^\]]*\]\()(?![a-z]+:|#)', rf'\1{repo}/blob/main/', text)


class Editable(editable_wheel):
    "A working copy also has `tools`, where nbdev finds what makes the site's pages; wheels have the library alone."
    def run(self):
        self.distribution.packages.append('tools')
        super().run()


setup(
    cmdclass={'editable_wheel': Editable},
    long_description=readme(),
    long_description_content_type='text/markdown',
    install_requires=cfg['requirements'].split(),
    extras_require={'dev': cfg['dev_requirements'].split() + cfg['rl_requirements'].split(),
                    'rl': cfg['rl_requirements'].split(),
                    'distributed': cfg['distributed_requirements'].split()},
    entry_points={'console_scripts': cfg['console_scripts'].split(),
                  'nbdev': [f'{name}={name}._modidx:d']})
