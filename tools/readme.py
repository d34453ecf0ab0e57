"""Make README.md from nbs/index.ipynb, without Quarto.

    python tools/readme.py            # write README.md
    python tools/readme.py --check    # change nothing; exit 1 if README.md is not what would be written

Links to notebooks become links to the documentation site. Pictures stay files under nbs/, so that they
show in a clone and on GitHub; setup.py makes them absolute for package indexes."""
import argparse
import base64
import json
import re
import sys
from pathlib import Path

from nbdev.config import get_config, nbpath2html

ROOT = Path(__file__).resolve().parent.parent
HIDDEN = {'hide', 'default_exp', 'export', 'exporti'}
WARNING = '<!-- Made from nbs/index.ipynb by tools/readme.py: edit that notebook, not this file. -->\n\n'
IMAGES = {'image/svg+xml': 'svg', 'image/png': 'png', 'image/jpeg': 'jpg'}


def joined(s):
    return s if isinstance(s, str) else ''.join(s)


def split_directives(source):
    "The `#|` lines of a code cell as a dict, and the rest of its source."
    lines = source.splitlines()
    d = (re.match(r'#\|\s*([\w-]+)[: ]*(.*)', line) for line in lines)
    code = '\n'.join(line for line in lines if not line.startswith('#|')).strip('\n')
    return {m[1]: m[2].strip().strip('"') for m in d if m}, code


def output_markdown(out, name, alt, images):
    "One output of a cell; a picture goes to `images` under `name`."
    if out['output_type'] == 'stream':
        return fenced(joined(out['text']), 'text') if out['name'] == 'stdout' else ''
    data = out.get('data', {})
    for mime, ext in IMAGES.items():
        if mime in data:
            raw = joined(data[mime])
            images[f'{name}.{ext}'] = raw.encode() if ext == 'svg' else base64.b64decode(raw)
            return f'![{alt}]({name}.{ext})'
    if 'text/markdown' in data:
        return joined(data['text/markdown'])
    plain = joined(data.get('text/plain', ''))
    return '' if plain.startswith('<IPython.') else fenced(plain, 'text')     # what only a browser shows


def fenced(text, lang):
    text = text.strip('\n')
    return f'```{lang}\n{text}\n```' if text.strip() else ''


def cell_markdown(cell, i, images):
    "One cell as the reader of the README sees it: no hidden cells, no directives."
    if cell['cell_type'] == 'markdown':
        return joined(cell['source']).strip()
    if cell['cell_type'] != 'code':
        return ''
    d, code = split_directives(joined(cell['source']))
    if HIDDEN & d.keys() or d.get('include') == 'false':
        return ''
    parts = [] if d.get('echo') == 'false' else [fenced(code, 'python')]
    if d.get('output') != 'false':
        alt = d.get('fig-alt') or d.get('fig-cap', '')
        name = f'images/index-{d.get("label", cell.get("id", i))}'
        parts += [output_markdown(o, name, alt, images) for o in cell.get('outputs', [])]
    return '\n\n'.join(filter(None, parts))


def rewrite(url, cfg, images):
    "A link of the index, as the README must say it."
    if re.match(r'[a-z][a-z0-9+.-]*:|#', url, re.I):
        return url
    path, hash_, anchor = url.partition('#')
    file = (cfg.nbs_path/path).resolve()
    if path not in images and not file.exists():
        raise FileNotFoundError(f'nbs/index.ipynb refers to {url}, which does not exist: mend the link')
    if path.endswith('.ipynb'):
        page = '' if path == 'index.ipynb' else str(nbpath2html(Path(path)))
        return cfg.doc_url + page + hash_ + anchor
    return file.relative_to(cfg.config_path.resolve()).as_posix() + hash_ + anchor


def figure(m):
    "Quarto's attributes of a picture or link: only the alt text says anything outside Quarto."
    alt = re.search(r'fig-alt="([^"]*)"', m[3])
    return f'![{alt[1]}]({m[2]})' if alt else f'![{m[1]}]({m[2]})'


def named_file(part, root):
    "`CONTRIBUTING.md` in code type becomes a link to that file."
    name = part.strip('`')
    return f'[{part}]({name})' if re.fullmatch(r'[A-Z]+(\.md)?', name) and (root/name).is_file() else part


def rewrite_links(text, cfg, images):
    """Rewrite the targets of links and pictures, markdown's and HTML's, but nothing inside code.

    Files beside the README, which the site does not have, become links here only."""
    parts = re.split(r'(^```.*?^```|`[^`\n]+`)', text, flags=re.S | re.M)
    for i in range(0, len(parts), 2):
        s = re.sub(r'!\[([^\]]*)\]\(([^)\s]+)\)\{([^}\n]*)\}', figure, parts[i])
        s = re.sub(r'(\]\()([^)\s]+)', lambda m: m[1] + rewrite(m[2], cfg, images), s)
        s = re.sub(r'\b((?:src|srcset|href)=")([^"]+)', lambda m: m[1] + rewrite(m[2], cfg, images), s)
        parts[i] = s
        if i + 1 < len(parts):
            parts[i+1] = named_file(parts[i+1], cfg.config_path)
    return ''.join(parts)


def readme(root=ROOT):
    "README.md's text, and the pictures that the index's cells show: {path below nbs/: bytes}."
    cfg, images = get_config(root), {}
    cells = json.loads((root/'nbs'/'index.ipynb').read_text(encoding='utf-8'))['cells']
    text = '\n\n'.join(filter(None, (cell_markdown(c, i, images) for i, c in enumerate(cells))))
    text = rewrite_links(text, cfg, images)
    return WARNING + re.sub(r'\n{3,}', '\n\n', text).strip() + '\n', images


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--check', action='store_true', help='change nothing; exit 1 on a difference')
    args = p.parse_args()
    text, images = readme()
    files = {ROOT/'README.md': text.encode(), **{ROOT/'nbs'/k: v for k, v in images.items()}}
    stale = [f for f, data in files.items() if not f.exists() or f.read_bytes() != data]
    if args.check:
        sys.exit(f'run python tools/readme.py: not current: {[f.name for f in stale]}' if stale else 0)
    for f in stale:
        f.parent.mkdir(exist_ok=True)
        f.write_bytes(files[f])


if __name__ == '__main__':
    main()
