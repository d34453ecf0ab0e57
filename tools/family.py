"""Draw nbs/images/family.svg: the survey's sections, their chapters, and which of them are here.

    python tools/family.py            # draw
    python tools/family.py --check    # change nothing; exit 1 if the picture is not current

A chapter is here when its notebook is. All text stands in filled boxes, so that the picture reads on
light and dark grounds."""
import argparse
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SVG = ROOT/'nbs'/'images'/'family.svg'

# section of the survey, colour, chapters: notebook, title, what is new
FAMILY = [
    ('The common ground', '#34568b', [
        ('01_attention', 'Attention', 'a softmax over the span'),
        ('02_positions', 'Positions', 'how order is known'),
        ('03_transformer', 'Transformer', 'encoder and decoder'),
        ('05_training', 'Training', 'data, loops, generation')]),
    ('Deep and adaptive', '#7a4b8c', [
        ('10_character_transformer', 'Character Transformer', '64 layers, more losses'),
        ('11_adaptive_computation', 'ACT', 'as long as needed')]),
    ('Longer attention', '#1f6f6b', [
        ('20_transformer_xl', 'Transformer-XL', 'memory, distances'),
        ('21_adaptive_span', 'Adaptive Span', 'each head learns how far'),
        ('22_image_transformer', 'Image Transformer', 'local blocks, 1D and 2D')]),
    ('Less time and space', '#8a4a1c', [
        ('30_sparse_transformer', 'Sparse Transformer', 'strided, fixed patterns'),
        ('31_reformer', 'Reformer', 'hashing, reversible')]),
    ('Recurrent in depth', '#9a3450', [
        ('40_universal_transformer', 'Universal Transformer', 'one layer, many steps')]),
    ('Stable for RL', '#4d6b22', [
        ('50_gated_transformer_xl', 'GTrXL', 'gates, not residuals'),
        ('51_reinforcement_learning', 'Training agents', 'V-MPO and PPO')]),
]
HEAD, BOX, H, GAP, LEFT, TOP, ACROSS = 140, 156, 46, 8, 4, 62, 3     # widths, height, distances, boxes in a row
PLANNED, LINE = '#59616b', '#808890'


def box(x, y, w, fill, title, sub='', dash=False):
    "A filled box with a title, and below it a smaller line."
    border = f' stroke="{LINE}" stroke-width="1.5" stroke-dasharray="5 4"' if dash else ''
    out = f'<rect x="{x}" y="{y}" width="{w}" height="{H}" rx="7" fill="{fill}"{border}/>\n'
    mid, first = x + w/2, y + (20 if sub else 28)
    out += f'<text x="{mid:g}" y="{first}" font-size="12" font-weight="600">{escape(title)}</text>\n'
    if sub:
        out += f'<text x="{mid:g}" y="{y + 36}" font-size="12">{escape(sub)}</text>\n'
    return out


def line(*points):
    at = ' '.join(f'{x:g},{y:g}' for x, y in points)
    return f'<polyline points="{at}" fill="none" stroke="{LINE}" stroke-width="2"/>\n'


def draw(here):
    "The picture, where `here` holds the names of the notebooks that exist."
    spine, x0, y = LEFT + 10, LEFT + 24, TOP
    first = x0 + HEAD + 2*GAP
    lines, boxes = '', box(LEFT, 8, HEAD + 32, '#2b2f36', 'The Transformer Family')
    for section, colour, chapters in FAMILY:
        lines += line((spine, 8 + H), (spine, y + H/2), (first + GAP, y + H/2))
        boxes += box(x0, y, HEAD, colour, section)
        for j, (nb, title, sub) in enumerate(chapters):
            down, across = divmod(j, ACROSS)
            x, top = first + across*(BOX + GAP), y + down*(H + GAP)
            lines += line((x - 2*GAP, top + H/2), (x + GAP, top + H/2)) if across else ''
            lines += line((first - GAP, y + H/2), (first - GAP, top + H/2), (x + GAP, top + H/2)) if down else ''
            boxes += box(x, top, BOX, colour if nb in here else PLANNED, title, sub, dash=nb not in here)
        y += -(-len(chapters)//ACROSS)*(H + GAP) + GAP
    w = first + ACROSS*(BOX + GAP) - GAP + 2
    boxes += box(w - BOX - 2, 8, BOX, PLANNED, 'dashed and grey', 'planned', dash=True)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {y}" width="{w}" height="{y}" '
            'role="img" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" '
            'text-anchor="middle" fill="#ffffff">\n<title>The Transformer Family</title>\n'
            f'{lines}{boxes}</svg>\n')


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--check', action='store_true', help='change nothing; exit 1 on a difference')
    args = p.parse_args()
    svg = draw({f.stem for f in (ROOT/'nbs').glob('*.ipynb')})
    if args.check:
        same = SVG.exists() and SVG.read_text(encoding='utf-8') == svg
        sys.exit(0 if same else 'run python tools/family.py: nbs/images/family.svg is not current')
    SVG.parent.mkdir(exist_ok=True)
    SVG.write_text(svg, encoding='utf-8')


if __name__ == '__main__':
    main()
