"""The site's pages, checked without Quarto: nbdev processes the notebooks, pandoc reads what it made."""
import ast
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pypandoc
import pytest
import yaml
from nbdev.config import get_config, nbpath2html

from tests.util import ROOT, notebooks, python

CODE = re.compile(r'(^(?:`{3,}|~{3,}).*?^(?:`{3,}|~{3,})[ \t]*$|`+[^`\n]+`+)', re.MULTILINE | re.DOTALL)
REF = re.compile(r'\[-?@((?:eq|fig|tbl|sec|lst)-[\w-]*\w)\]|(?<![\w.])-?@((?:eq|fig|tbl|sec|lst)-[\w-]*\w)')
LABELLED = re.compile(r'\$\$((?:(?!\$\$).)+)\$\$[ \t]*\{#(eq-[\w-]+)\}', re.DOTALL)
MACHINE = re.compile(r'(?<![\w.])/(?:home|root|Users|work|mnt|opt|private|var/folders|tmp)/[\w.-]+'
                     r'|/usr/(?:lib|local)/|[A-Z]:\\\\?Users\\|site-packages|dist-packages')
WIDTH = 90
INCHES, POINTS = 7.2, 9         # a figure's width with its margin, and the size of its type
EMS = 32                        # of an equation with its number, as `ems` counts
NOTEBOOK = {str(nbpath2html(Path(p.name))): p.name for p in notebooks()}     # by the name of its page


def joined(s):
    return s if isinstance(s, str) else ''.join(s)


def read(path):
    return json.loads(path.read_text(encoding='utf-8'))['cells']


def options(cell):
    "The `#|` options that a processed cell keeps for Quarto."
    lines = re.findall(r'^#\| ?(.*:.*)$', joined(cell['source']), re.MULTILINE)
    return yaml.safe_load('\n'.join(lines)) or {}


def pictures(cell):
    "The image outputs of a cell."
    return [o for o in cell.get('outputs', []) if any(m.startswith('image/') for m in o.get('data', {}))]


def outside_code(text, f):
    "Apply `f` to the parts of markdown that are not code."
    parts = CODE.split(text)
    parts[::2] = map(f, parts[::2])
    return ''.join(parts)


def for_pandoc(text):
    "What Quarto adds to pandoc's markdown, in pandoc's own: labels of equations, references to labels."
    text = outside_code(text, lambda s: LABELLED.sub(r'[$$\1$$]{#\2}', s))
    return outside_code(text, lambda s: REF.sub(lambda m: '[{0}](#{0})'.format(m[1] or m[2]), s))


def picture(opts, n=0):
    "A cell's figure as markdown."
    label, alt = opts.get('label'), opts.get('fig-alt')
    attrs = (f' #{label}' if label and not n else '') + (f' fig-alt="{quote(alt)}"' if alt else '')
    return f'![{opts.get("fig-cap") or ""}](output.png){{{attrs} .output}}'


def quote(s):
    return str(s).replace('"', "'")


def cell_markdown(cell):
    "A processed cell as the page shows it."
    src = joined(cell['source'])
    if cell['cell_type'] == 'markdown':
        return src
    if cell['cell_type'] == 'raw':
        return ''
    opts = options(cell)
    parts = []
    if opts.get('echo') is not False and opts.get('include') is not False:
        parts = ['````python\n' + re.sub(r'^#\|.*\n?', '', src, flags=re.MULTILINE) + '\n````']
    for o in cell.get('outputs', []):
        data = o.get('data', {})
        if any(m.startswith('image/') for m in data):
            parts.append(picture(opts))
        elif 'text/markdown' in data:
            parts.append(joined(data['text/markdown']))
    return '\n\n'.join(parts)


class Tags(HTMLParser):
    "Identifiers, links, pictures of a page, and whether a picture stands in a figure with a caption."
    def __init__(self, html):
        super().__init__()
        self.ids, self.hrefs, self.images, self.figures = [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if 'id' in a:
            self.ids.append(a['id'])
        if tag == 'a' and 'href' in a:
            self.hrefs.append(a['href'])
        if tag == 'figure':
            self.figures.append('')
        if tag == 'img':
            self.images.append(a)

    handle_startendtag = handle_starttag


class Page:
    "One processed notebook."
    def __init__(self, name, cells):
        self.name, self.cells = name, cells
        self.markdown = for_pandoc('\n\n'.join(cell_markdown(c) for c in self.cells))

    @cached_property
    def pandoc(self):
        "Exit status, warnings and HTML; the equations become MathML or pandoc says why not."
        args = [pypandoc.get_pandoc_path(), '-f', 'markdown', '-t', 'html', '--mathml', '--fail-if-warnings']
        res = subprocess.run(args, input=self.markdown.encode(), capture_output=True, check=False, timeout=120)
        return res.returncode, res.stderr.decode(), res.stdout.decode()

    @cached_property
    def tags(self):
        return Tags(self.pandoc[2])


class Pages(dict):
    """The processed pages by the name of their notebook, each made when first asked for.

    Of several workers the first makes a page, in the folder that all share, and the others wait."""
    def __init__(self, tree, shared):
        super().__init__()
        self.tree, self.shared = tree, shared

    def __missing__(self, name):
        done = self.shared/f'{name}.json'
        try:
            (self.shared/f'{name}.taken').mkdir()
        except FileExistsError:
            wait_for(done)
        else:
            part = done.with_suffix('.part')
            part.write_text(json.dumps(self.make(name)), encoding='utf-8')
            part.rename(done)
        made = json.loads(done.read_text(encoding='utf-8'))
        if 'failed' in made:
            pytest.fail(f'nbdev cannot make a page of {name}:\n{made["failed"]}', pytrace=False)
        self[name] = Page(name, made['cells'])
        return self[name]

    def make(self, name):
        "The cells of the page, or how nbdev failed."
        code = f'from nbdev.serve import proc_nbs; proc_nbs(file_glob={name!r}, n_workers=0)'
        try:
            python(code, self.tree, PYTHONWARNINGS='ignore')
            return {'cells': read(self.tree/'_proc'/name)}
        except (AssertionError, subprocess.TimeoutExpired) as e:
            return {'failed': '\n'.join(str(e).splitlines()[-25:])}


def wait_for(path, seconds=600):
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            pytest.fail(f'another worker did not make {path.name} in {seconds} s')
        time.sleep(.2)


@pytest.fixture(scope='session')
def pages(shared_tree, tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base)/'pages'
    shared.mkdir(exist_ok=True)
    return Pages(shared_tree, shared)


names = pytest.mark.parametrize('name', [pytest.param(p.name, id=p.stem) for p in notebooks()])


@names
def test_page_converts(pages, name):
    faults = conversion_faults(pages[name])
    assert not faults, '\n'.join(faults)


def conversion_faults(page):
    "What pandoc complains of, the labels it lost, and what it left as text."
    status, warnings, html = page.pandoc
    if status:
        return [warnings]
    labels = {m[2] for c in page.cells if c['cell_type'] == 'markdown'
              for m in LABELLED.finditer(CODE.sub('', joined(c['source'])))}
    html = re.sub(r'<(code|annotation).*?</\1>', '', html, flags=re.DOTALL)
    stray = re.findall(r'\{#(?:eq|fig|tbl|sec)-[^}]*\}|\$\$', html)
    return [f'lost: {x}' for x in sorted(labels - set(page.tags.ids))] + [f'left as text: {x}' for x in stray]


@names
def test_options_are_yaml(pages, name):
    "A caption with a colon or a leading sign must be quoted, or Quarto cannot read it."
    for c in pages[name].cells:
        if c['cell_type'] == 'code':
            opts = options(c)
            for k in ('label', 'fig-cap', 'fig-alt'):
                assert isinstance(opts.get(k, ''), str), f'{k} must be text: {opts[k]!r}'


@names
def test_labels_are_unique(pages, name):
    ids = [i for i in pages[name].tags.ids if re.match(r'(eq|fig|tbl|sec|lst)-', i)]
    assert not {i for i in ids if ids.count(i) > 1}


@names
def test_links_resolve(pages, name):
    broken = [h for h in pages[name].tags.hrefs if not resolves(h, pages[name], pages)]
    assert not broken, f'{name} refers to what is not there: {broken}'


def resolves(href, page, pages):
    "Does a link of `page` lead somewhere? Other people's sites are believed."
    site, href = get_config(ROOT).doc_url, unquote(href)
    if href.startswith(site):
        href = href[len(site):] or 'index.html'
    if re.match(r'[a-z][a-z0-9+.-]*:|//', href):
        return True
    path, _, anchor = href.partition('#')
    path = NOTEBOOK.get(path, path)
    if path in NOTEBOOK.values() or not path:
        return not anchor or anchor in (pages[path] if path else page).tags.ids
    return not path.startswith('..') and (ROOT/'nbs'/path).is_file()


@names
def test_figures_say_what_they_show(pages, name):
    faults = figure_faults(pages[name])
    assert not faults, '\n'.join(faults)


def figure_faults(page):
    "Pictures of cells without label, caption or alt text, and those of markdown without caption or alt text."
    faults = [f'no alt text: {img.get("src")}' for img in page.tags.images
              if not (img.get('data-fig-alt') or img.get('alt'))]
    for c in page.cells:
        src = joined(c['source'])
        if c['cell_type'] == 'code' and pictures(c):
            opts = options(c)
            lacks = [k for k in ('label', 'fig-cap', 'fig-alt') if not str(opts.get(k) or '').strip()]
            if lacks or not opts['label'].startswith('fig-'):
                faults.append(f'cell {c.get("id")} shows a picture without {lacks or "a label fig-…"}:\n{src}')
        if c['cell_type'] == 'markdown':
            for m in re.finditer(r'!\[([^\]]*)\]\([^)]+\)(\{[^}]*\})?', CODE.sub('', src)):
                if not (m[1].strip() and 'fig-alt=' in (m[2] or '')):
                    faults.append(f'picture without caption or fig-alt: {m[0]}')
    return faults


def test_every_chapter_is_in_the_sidebar():
    def entries(contents):
        for e in contents:
            if isinstance(e, str):
                yield e, ''
            elif 'href' in e:
                yield e['href'], e['text']
            else:
                yield from entries(e['contents'])
    sidebar = yaml.safe_load((ROOT/'_quarto.yml').read_text(encoding='utf-8'))['website']['sidebar']
    listed = list(entries(sidebar['contents']))
    assert sorted(name for name, _ in listed) == sorted(p.name for p in notebooks())
    unnumbered = [name for name, text in listed if name != 'index.ipynb' and text.split()[0] != name.split('_')[0]]
    assert not unnumbered, 'the sidebar names chapters by number and title'


def test_every_chapter_is_in_the_index():
    text = '\n'.join(joined(c['source']) for c in read(ROOT/'nbs'/'index.ipynb'))
    missing = [p.name for p in notebooks() if p.name != 'index.ipynb' and f']({p.name})' not in text]
    assert not missing, f'nbs/index.ipynb has no link to {missing}'


# One listing for each function, tests and drawing code folded: tools/page.py

def shown_code(page):
    "The cells of a page whose code is shown, with their options."
    opts = ((c, options(c)) for c in page.cells if c['cell_type'] == 'code')
    return [(c, o) for c, o in opts if o.get('echo') is not False and o.get('include') is not False]


def definitions(cell):
    "The functions and classes that a cell defines, patched methods with their class."
    for tree in ast.parse(joined(cell['source'])).body:
        if isinstance(tree, (ast.FunctionDef, ast.ClassDef)) and '.setter' not in ast.unparse(tree):
            patched = isinstance(tree, ast.FunctionDef) and 'patch' in ''.join(map(ast.unparse, tree.decorator_list))
            yield (f'{ast.unparse(tree.args.args[0].annotation)}.' if patched else '') + tree.name


def listing_faults(page):
    "Functions that are listed twice or have no anchor, and cards with signatures."
    listed = [name for c, o in shown_code(page) if 'exports' in o for name in definitions(c)]
    faults = [f'listed twice: {n}' for n in {n for n in listed if listed.count(n) > 1}]
    faults += [f'no anchor: {n}' for n in listed if not n.startswith('_') and n.lower() not in page.tags.ids
               and '._' not in n and ' | ' not in n]
    for c in page.cells:
        if c['cell_type'] == 'code' and re.search(r'^show_doc\(', joined(c['source']), re.MULTILINE):
            faults += [f'a card: {joined(c["source"])}' for o in c['outputs']
                       if '```' in joined(o.get('data', {}).get('text/markdown', ''))]
    return faults


@names
def test_functions_are_listed_once(pages, name):
    faults = listing_faults(pages[name])
    assert not faults, '\n'.join(faults)


@names
def test_anchors_are_unique(pages, name):
    ids = pages[name].tags.ids
    assert not {i for i in ids if ids.count(i) > 1}


def only_asserts(cell):
    "Does a cell state and test, without an output and without a name that another cell could use?"
    body = ast.parse(joined(cell['source'])).body
    return (not cell.get('outputs') and any(isinstance(t, ast.Assert) or re.match(r'test_\w+\(', ast.unparse(t))
                                            for t in body)
            and not any(isinstance(t, (ast.FunctionDef, ast.ClassDef)) or isinstance(n, ast.Name)
                        and isinstance(n.ctx, ast.Store) for t in body for n in ast.walk(t)))


@names
def test_tests_and_drawing_are_folded(pages, name):
    for c, o in shown_code(pages[name]):
        folded, summary = o.get('code-fold') is True, o.get('code-summary')
        if 'exports' in o:
            assert not folded or str(summary).startswith('Code: '), \
                f'cell {c.get("id")}: exported code is there to be read, or folded under a name of its own'
        elif pictures(c):
            assert folded and summary == 'Code', f'cell {c.get("id")} shows a picture and the code that draws it'
        elif only_asserts(c):
            assert folded and re.match(r'Tests: .', summary), f'cell {c.get("id")} only asserts'


@names
def test_title_stands_alone(name):
    "nbdev takes the title and the summary out of their cell and drops the rest."
    first = next(joined(c['source']) for c in read(ROOT/'nbs'/name) if c['cell_type'] == 'markdown')
    assert re.fullmatch(r'# [^\n]+(\n+> [^\n]+)?(\n+(- [\w-]+: [^\n]+\n?)+)?\s*', first), first


def test_home_shows_its_picture(pages):
    assert [img for img in pages['index.ipynb'].tags.images if img['src'] == 'images/family.svg']


# What fits a page and reads as prose

LINK = re.compile(r'\[[^\]]*\]\([^)]*\)')
MENTION = re.compile(r'\bchapters?\s+(\d\d(?:(?:,| and| or| to|, and)\s+\d\d)*)', re.IGNORECASE)


def unlinked(text):
    "Chapters that exist and are named by their number outside a link."
    here = {p.name[:2] for p in notebooks()}
    prose = ''.join(CODE.split(LINK.sub('', text))[::2])
    return [n for m in MENTION.finditer(prose) for n in re.findall(r'\d\d', m[1]) if n in here]


def prose_faults(cells):
    "Mentions that are no links, and lines that markdown reads as a list."
    faults = []
    for c in cells:
        if c['cell_type'] == 'markdown':
            src = joined(c['source'])
            faults += [f'cell {c.get("id")}: make "chapter {n}" a link' for n in unlinked(src)]
            faults += [f'cell {c.get("id")}: a list begins at: {line[:40]}'
                       for line in re.findall(r'^\([a-z]\) .*', src, re.MULTILINE)]
    return faults


@names
def test_prose_links_and_is_no_list(name):
    faults = prose_faults(read(ROOT/'nbs'/name))
    assert not faults, '\n'.join(faults)


def texts(cell):
    "The text outputs of a cell that a page shows as they are."
    if cell['cell_type'] == 'code' and not pictures(cell) and not re.search(
            r'^#\|\s*(hide|output:\s*false|include:\s*false)', joined(cell['source']), re.MULTILINE):
        for o in cell['outputs']:
            if 'text/markdown' not in o.get('data', {}):
                yield joined(o.get('text', '')) or joined(o.get('data', {}).get('text/plain', ''))


def is_raw(text):
    "Are these results printed as Python's tuples, lists of lists or dictionaries, where a table should be?"
    values = re.sub(r'tensor\(', '', text)
    if text.startswith('{') and len(re.findall(r'\d\.\d', text)) > 1:
        return True
    return not text.startswith('tensor(') and len(re.findall(r'\d\.\d', text)) > 2 and any(
        re.search(r'[\[({][^\])}\w]*[\[({]|^\{|\].*\[', line) for line in values.splitlines())


def output_faults(cells):
    "Lines too long for the page, and results as tuples."
    faults = []
    for c in cells:
        for text in texts(c):
            width = max(map(len, text.splitlines()), default=0)
            faults += [f'cell {c.get("id")}: {width} columns, the page has {WIDTH}'] * (width > WIDTH)
            faults += [f'cell {c.get("id")}: a table instead of {text[:50]!r}'] * is_raw(text)
    return faults


WRAPPED = {'70_cli.ipynb': 'what commands print wraps as in a terminal',
           '10_character_transformer.ipynb': 'a sample of text, which wraps'}


@names
def test_outputs_fit_and_are_tables(name):
    faults = output_faults(read(ROOT/'nbs'/name))
    if name in WRAPPED:
        faults = [f for f in faults if 'columns' not in f]
    assert not faults, '\n'.join(faults)


def figure_size(svg):
    "Width in inches, and the smallest type in points outside of formulas."
    width = float(re.search(r'<svg[^>]*\swidth="([\d.]+)pt"', svg)[1]) / 72
    sizes = [float(x) for x in re.findall(r'<text[^>]*style="[^"]*?(?<![\w.])([\d.]+)px', svg)]
    sizes += [100*float(x) for x in re.findall(r'<g[^>]*scale\((0?\.\d+) -', svg)]
    return width, min(sizes, default=POINTS)


def size_faults(cells):
    "Figures that are wider than the page or have small type."
    faults = []
    for c in cells:
        for o in pictures(c) if c['cell_type'] == 'code' else ():
            if 'image/svg+xml' in o['data']:
                width, type_ = figure_size(joined(o['data']['image/svg+xml']))
                if width > INCHES or type_ < POINTS - .01:
                    label = options(c).get('label', c.get('id'))
                    faults.append(f'{label}: {width:.1f} inches wide, type of {type_:.1f} points')
    return faults


@names
def test_figures_fit_and_can_be_read(name):
    faults = size_faults(read(ROOT/'nbs'/name))
    assert not faults, '\n'.join(faults)


def ems(e):
    "The width of MathML, roughly: browsers agreed on which equations of the chapters are wider than the page."
    tag, text = e.tag.rpartition('}')[2], (e.text or '').strip()
    kids = [ems(k) for k in e if 'annotation' not in k.tag]
    if tag in ('mi', 'mn', 'mtext', 'mo'):
        return .8 if text in list('=+−∘·∈≤<>≥→∼×') else (.4 if tag == 'mo' else .55)*len(text)
    if tag == 'mspace':
        return float(re.match(r'[-.\d]+', e.get('width', '0'))[0])
    if tag in ('msub', 'msup', 'msubsup'):
        return kids[0] + .7*max(kids[1:])
    if tag in ('munder', 'mover', 'munderover'):
        return max(kids[0], .7*max(kids[1:]))
    return max(kids, default=0) if tag in ('mfrac', 'mtable') else sum(kids)


def equation_faults(page):
    "Displayed equations that are wider than the page."
    for m in re.finditer(r'<math display="block".*?</math>', page.pandoc[2], re.DOTALL):
        width = ems(ET.fromstring(m[0]))
        if width > EMS:
            label = re.findall(r'id="(eq-[\w-]+)"', page.pandoc[2][:m.start()])[-1:]
            yield f'{label or m[0][-200:]}: {width:.0f} em, break it into lines'


@names
def test_equations_fit(pages, name):
    faults = [*equation_faults(pages[name])]
    assert not faults, '\n'.join(faults)


# What is stored in the notebooks

@names
def test_lines_fit_the_page(name):
    long = [line for c in read(ROOT/'nbs'/name) if c['cell_type'] == 'code'
            for line in joined(c['source']).splitlines()
            if len(line) > WIDTH and not line.startswith('#|')]
    if long:
        pytest.fail(f'{name}: {len(long)} lines over {WIDTH} characters\n' + '\n'.join(long), pytrace=False)


@names
def test_no_errors_are_stored(name):
    for c in read(ROOT/'nbs'/name):
        for o in c.get('outputs', []):
            assert o['output_type'] != 'error', f'cell {c.get("id")} stores an error: {o.get("ename")}'


@names
def test_no_paths_of_machines_are_stored(name):
    for c in read(ROOT/'nbs'/name):
        for o in c.get('outputs', []):
            shown = joined(o.get('text', '')) + ''.join(joined(v) for k, v in o.get('data', {}).items()
                                                        if k.startswith('text/') or k == 'image/svg+xml')
            found = MACHINE.search(shown) or (str(ROOT) in shown and [str(ROOT)])
            assert not found, f'cell {c.get("id")} shows a path of the machine it ran on: {found[0]}'


@names
def test_outputs_are_stored(name):
    "The site shows what is stored: a figure that was never run would be missing."
    for c in read(ROOT/'nbs'/name):
        src = joined(c['source'])
        if c['cell_type'] == 'code' and re.search(r'^#\|\s*label:\s*fig-', src, re.MULTILINE) \
                and not re.search(r'^#\|\s*cuda\b', src, re.MULTILINE):
            assert pictures(c), f'cell {c.get("id")} has no stored figure: nbdev-test nbs/{name} --save\n{src}'


# The checks themselves

def md(src):
    return {'cell_type': 'markdown', 'source': src}


PNG = [{'output_type': 'display_data', 'data': {'image/png': ''}, 'metadata': {}}]
GOOD = ('# A section\n\n$$\nx^2\n$$ {#eq-x}\n\nBy @eq-x and [@eq-x; below](#a-section), not `@eq-none`.\n\n'
        '![A caption](a.png){#fig-a fig-alt="What it shows"} See @fig-a.')


def test_checks_accept_a_good_page():
    page = Page('a.ipynb', [md(GOOD)])
    assert not conversion_faults(page) and not figure_faults(page)
    assert {'eq-x', 'fig-a', 'a-section'} <= set(page.tags.ids)
    assert page.tags.hrefs.count('#eq-x') == 1 and '#fig-a' in page.tags.hrefs
    assert all(resolves(h, page, {}) for h in page.tags.hrefs)


@pytest.mark.parametrize('src', ['$\\nosuchcommand{x}$', '$$\n\\frac{a\n$$ {#eq-b}'])
def test_checks_refuse_what_does_not_convert(src):
    assert conversion_faults(Page('a.ipynb', [md(src)]))


@pytest.mark.parametrize('src', ['As @eq-none says', '[x](#nowhere)', '[x](02_nothing.ipynb)', '[x](images/no.png)',
                                 '[x](../README.md)'])
def test_checks_find_broken_links(src):
    page = Page('a.ipynb', [md(src)])
    assert [h for h in page.tags.hrefs if not resolves(h, page, {})]


@pytest.mark.parametrize('src', ['plot()', '#| label: fig-a\nplot()', '#| label: fig-a\n#| fig-cap: A\nplot()'])
def test_checks_find_figures_without_words(src):
    assert figure_faults(Page('a.ipynb', [{'cell_type': 'code', 'source': src, 'outputs': PNG}]))


# Pages as tools/page.py makes them

PAGE = '''
import json, sys
from fastcore.nbio import dict2nb
from nbdev.processors import FilterDefaults
cells = [dict(cell_type=t, id=str(i), metadata={}, source=s, **({} if t == 'markdown' else dict(outputs=o)))
         for i, (t, s, o) in enumerate(json.loads(sys.argv[1]))]
nb = dict2nb(dict(cells=cells, metadata={}, nbformat=4, nbformat_minor=5))
nb.path_ = 'nbs/a.ipynb'
FilterDefaults()(nb)
print(json.dumps([[c.source, c.get('outputs', [])] for c in nb.cells]))
'''


def made(*cells):
    "The page of a notebook with these cells, text or (code, outputs): its sources."
    cells = [('markdown', c[2:], []) if isinstance(c, str) and c.startswith('m:') else
             ('code', c, []) if isinstance(c, str) else ('code', *c) for c in cells]
    res = subprocess.run([sys.executable, '-W', 'ignore', '-c', PAGE, json.dumps(cells)], cwd=ROOT, text=True,
                         capture_output=True, timeout=120, env={**os.environ, 'PYTHONPATH': str(ROOT)})
    assert res.returncode == 0, res.stderr
    return json.loads(res.stdout.splitlines()[-1])


@pytest.fixture(scope='module')
def example():
    text = [{'output_type': 'stream', 'name': 'stdout', 'text': ['3\n']}]
    return dict(made(
        'm:# Title', '#| default_exp a', '#| export\nfrom transformer_family.core import count_params',
        '#| hide\ndef same(a, b): assert a == b\ndef equal(a): same(a, a)',
        'm:## Double\n\nTwice:', '#| exports\ndef half(x): return x/2\n\ndef double(x): return 2*x',
        'assert double(1) == 2', 'equal(half(2))', '# It is even\nx = double(3)\nassert x % 2 == 0',
        'y = 4\nassert y == 4', ('print(y - 1)', text), 'for y in range(3): assert y < 3', ('print(9)\nassert 1', text),
        'z = 5\nassert z', 'z = 6', ('print(z)', text), 'assert str', ('plot(7)', PNG), 'count_params(2)\nassert int'))


@pytest.mark.parametrize('source,summary', [
    ('assert double(1) == 2', 'Tests: `double`'), ('equal(half(2))', 'Tests: `half`'),
    ('# It is even\nx = double(3)\nassert x % 2 == 0', 'Tests: It is even'), ('z = 5\nassert z', 'Tests: Double'),
    ('for y in range(3): assert y < 3', 'Tests: Double'), ('assert str', 'Tests: Double'),
    ('count_params(2)\nassert int', 'Tests: `count_params`'), ('plot(7)', 'Code')])
def test_page_folds(example, source, summary):
    assert f'#| code-fold: true\n#| code-summary: "{summary}"\n{source}' in example


@pytest.mark.parametrize('source', ['y = 4\nassert y == 4', 'print(y - 1)', 'print(9)\nassert 1', 'z = 6'])
def test_page_leaves_open_what_is_read(example, source):
    assert source in example


def test_page_lists_functions_once(example):
    sources = [re.sub(r'^#\|.*\n', '', s, flags=re.MULTILINE) for s in example]
    code = next(s for s in sources if s.startswith('def half'))
    at = [sources.index(s) for s in ('show_doc(double)', 'show_doc(half)', code)]
    assert at == [at[0], at[0] + 1, at[0] + 2]                       # both anchors, then the code of both
    shown, = (joined(o[0]['data']['text/markdown']) for s, o in example.items() if 'show_doc(half)' in s)
    assert '[]{#half}' in shown and '```' not in shown
    assert '## Double {#section-double}\n\nTwice:' in example      # the function has the anchor of that name


# The checks of prose, outputs and sizes

@pytest.mark.parametrize('text,found', [
    ('As in chapter 20.', ['20']), ('Chapters 02, 03 and 20 do', ['02', '03', '20']), ('chapter\n20', ['20']),
    ('[chapter 20](20_transformer_xl.ipynb), `chapter 20`, chapter 99', []), ('page 20, 20 chapters', [])])
def test_mentions_that_are_no_links(text, found):
    assert unlinked(text) == found


@pytest.mark.parametrize('text,raw', [
    ('[(200, 2.471), (400, 2.143), (600, 2.003)]', True), ("{'xl': [1.73, 1.75, 1.71]}", True),
    ('0.6 [4.82, 4.71, 4.67] [9, 11]', True), ('tensor([[1.5, 2.5], [3.5, 4.5]])', False),
    ('[1.5, 2.5, 3.5]', False), ('dense   3.03 bits, strided 2.98 bits, 2.91', False), ("{'xl': 890112}", False),
    ("{'all losses': 2.57, 'without': 2.43}", True)])
def test_results_as_tuples(text, raw):
    assert is_raw(text) == raw


def test_size_of_a_figure():
    svg = ('<svg height="10pt" width="360pt"><text style="font: 9px \'DejaVu\'; fill: #1">a<tspan style="font: 6.3px">'
           '2</tspan></text><g transform="translate(1 2) scale(0.08 -0.08)"/></svg>')
    assert figure_size(svg) == (5, 8)
    assert figure_size(svg.replace('0.08', '0.1')) == (5, 9)


def test_width_of_equations():
    wide = [*equation_faults(Page('a.ipynb', [md('$$\n' + 'a + ' * 25 + 'b\n$$ {#eq-wide}')]))]
    assert len(wide) == 1 and 'eq-wide' in wide[0]
    lines = '\\begin{aligned}' + r'a &= b + c \\ '*25 + '\\end{aligned}'
    assert not [*equation_faults(Page('a.ipynb', [md(f'$$\n{lines}\n$$')]))]
