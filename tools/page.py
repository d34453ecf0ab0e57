"""How nbdev makes the site's pages: `renderer` and `doc_procs` of [tool.nbdev] in pyproject.toml name what is here.

A page lists each function once, by its own code, and folds what the sentence above stands for: tests and drawing code.
Notebooks need no flags for that, and every test still runs. nbdev imports this module from the environment: setup.py
puts it into editable installs and into nothing else."""
import ast
import re
from symtable import symtable

from nbdev.config import get_config
from nbdev.doclinks import NbdevLookup
from nbdev.processors import Processor
from nbdev.showdoc import BasicMarkdownRenderer


class Listing(BasicMarkdownRenderer):
    "In place of a signature: the anchor that links lead to, and a link to the module's source."
    def _repr_markdown_(self):
        source = NbdevLookup().code(self.fn)
        link = f'[source]({source}){{target="_blank"}}' if source else ''
        return f'::: {{.listing}}\n[]{{#{self.nm.lower()}}}{link}\n:::'


# What a cell does

def statements(cell):
    "The statements of a code cell; none where it is not Python."
    try:
        return ast.parse(cell.source).body if cell.cell_type == 'code' else []
    except SyntaxError:
        return []


def called(node):
    "The name of what a call calls."
    f = getattr(node, 'func', None)
    return getattr(f, 'id', getattr(f, 'attr', ''))


def asserts(tree, helpers=()):
    "Is there an assertion below `tree`: a statement, fastcore's `test_…`, torch's `assert_close`, a helper's call?"
    return any(isinstance(n, ast.Assert) or called(n) in helpers or re.match('test_|assert_', called(n))
               for n in ast.walk(tree))


def helpers_of(cells):
    "Names of a notebook's own functions that assert, by way of one another too."
    functions = [t for c in cells for t in statements(c) if isinstance(t, ast.FunctionDef)]
    found, before = set(), None
    while found != before:
        before, found = found, {f.name for f in functions if asserts(f, found)}
    return found


def draws(cell):
    "Does a cell show a picture?"
    return any(kind.startswith('image/') for o in cell.get('outputs', []) for kind in o.get('data', {}))


def is_shown(cell):
    "Does a page show a cell's code?"
    return cell.cell_type == 'code' and not re.search(r'^#\| *(echo|include): *false', cell.source, flags=re.MULTILINE)


# Which names cells take from one another

def used(table):
    "The global names that a symbol table and those inside it refer to."
    module = table.get_type() == 'module'
    names = {s.get_name() for s in table.get_symbols() if s.is_referenced() and (module or s.is_global())}
    return names.union(*map(used, table.get_children()))


def bound(tree):
    "The names that a statement gives to its notebook."
    return {s.get_name() for s in symtable(ast.unparse(tree), '', 'exec').get_symbols() if s.is_assigned()}


def needs(cell):
    "The names that a cell takes from elsewhere."
    own, needed = set(), set()
    for tree in statements(cell):
        first = set() if isinstance(tree, (ast.Assign, ast.AugAssign)) else bound(tree)     # a loop's variable
        needed |= used(symtable(ast.unparse(tree), '', 'exec')) - own - first
        own |= bound(tree)
    return needed


def gives(cell):
    "The names that a cell leaves behind."
    return set().union(*map(bound, statements(cell)))


def is_needed(cell, later, shown):
    "Does one of the cells `shown` use a name that it has from `cell`?"
    names = gives(cell)
    for c in later:
        if c in shown and names & needs(c):
            return True
        names -= gives(c)
    return False


# The folds

def defined(cells):
    "The functions and classes that cells define; methods that are patched in have a dot in front."
    for tree in (t for c in cells for t in statements(c)):
        if isinstance(tree, (ast.FunctionDef, ast.ClassDef)):
            yield '.'*any('patch' in ast.unparse(d) for d in tree.decorator_list) + tree.name


def imported(cells):
    "The names that cells import from the package."
    for tree in (t for c in cells for t in statements(c)):
        if isinstance(tree, ast.ImportFrom) and (tree.module or '').startswith(f'{get_config().lib_path.name}.'):
            yield from (a.asname or a.name for a in tree.names)


def names(cell):
    "The names that stand in a cell, in their order, attributes with a dot in front."
    found = [n for t in statements(cell) for n in ast.walk(t) if isinstance(n, (ast.Name, ast.Attribute))]
    found.sort(key=lambda n: (n.end_lineno, n.end_col_offset))
    return list(dict.fromkeys(n.id if isinstance(n, ast.Name) else f'.{n.attr}' for n in found))


def tested(cell, own, others):
    "What an assertion cell looks at: first four names of `own`, or else of `others`; gradients; errors."
    there = names(cell)
    shown = [n for n in there if n in own] or [n for n in there if n in others]
    shown = [f'`{n.lstrip(".")}`' for n in shown[:4]]
    shown += ['gradients'] * bool({'.grad', '.backward', 'gradients', '.gradcheck'}.intersection(there))
    return shown + ['errors'] * ('test_fail' in there)


def plain(text):
    "A heading or comment without what markdown or yaml could read as theirs."
    return re.sub(r'[\\"*_$<>\[\]]|\{.*\}', '', text).strip(' .:')


def fold(cell, title):
    "Quarto's options in front of a cell."
    cell.source = f'#| code-fold: true\n#| code-summary: "{title}"\n{cell.source}'


def anchors_first(cells):
    "The cells, with each anchor once, before the code that it names: nbdev puts those of second functions behind."
    out, anchors, seen = [], [], set()
    for c in reversed(cells):
        if hasattr(c, 'has_sd'):
            anchors.append(c)
        else:
            out += [c, *anchors] if 'exports' in getattr(c, 'directives_', ()) else [*anchors, c]
            anchors = []
    for c in reversed(out + anchors):
        if not hasattr(c, 'has_sd') or c.source.lower() not in seen:
            yield c
        seen.add(c.source.lower())


def own_anchor(text, taken):
    "Headings get another anchor where a function has theirs."
    def label(m):
        slug = re.sub(r'[^\w.-]', '', plain(m[1]).lower().replace(' ', '-'))
        return f'{m[0]} {{#section-{slug}}}' if slug in taken else m[0]
    return re.sub(r'^#+ +(.+?)$', label, text, flags=re.MULTILINE)


class Folds(Processor):
    "Folds cells that assert and show nothing under `Tests: …`, and cells that draw under `Code`."
    def __init__(self, nb):
        super().__init__(nb)
        self.helpers,self.others = helpers_of(nb.cells), set(imported(nb.cells))     # hidden cells are still there

    def begin(self):
        self.nb.cells = list(anchors_first(self.nb.cells))
        cells = [c for c in self.nb.cells if is_shown(c)]
        exported = [c for c in cells if 'exports' in c.directives_]
        cells = [c for c in cells if c not in exported]
        self.own,self.drawn,self.asserting = set(defined(exported)), [*filter(draws, cells)], self.tests(cells)
        self.anchors = {m.lower() for c in self.nb.cells for m in re.findall(r'^show_doc\((.+)\)$', c.source, re.M)}
        self.heading = ''

    def cell(self, cell):
        if cell.cell_type == 'markdown':
            for line in re.findall(r'^#+ (.+)', cell.source, flags=re.MULTILINE):
                self.heading = plain(line)
            cell.source = own_anchor(cell.source, self.anchors)
        elif cell in self.drawn:
            fold(cell, 'Code')
        elif cell in self.asserting:
            fold(cell, f'Tests: {self.shows(cell)}')

    def shows(self, cell):
        "What a cell of assertions shows: the comment that opens it, what it tests, or the heading above."
        comment = re.match(r'(?:#\|.*\n|\s)*#(?!\|)(.+)', cell.source)
        return comment and plain(comment[1]) or ', '.join(tested(cell, self.own, self.others)) or self.heading

    def tests(self, cells):
        "The cells of assertions; not those that give a name to a cell whose code is read."
        tests = [c for c in cells if not c.get('outputs') and any(asserts(t, self.helpers) for t in statements(c))]
        count = None
        while count != len(tests):
            count = len(tests)
            shown = [c for c in cells if c not in tests and not draws(c)]
            tests = [c for i, c in enumerate(cells) if c in tests and not is_needed(c, cells[i + 1:], shown)]
        return tests
