# SPDX-License-Identifier: Apache-2.0
"""The chart: how many times the least possible time each method took, as SVG that is legible on light and on dark ground."""
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP = 820, 130, 110, 66
BAR, GAP, TITLE = 16, 4, 24
LONGEST = 4  # longer bars are cut there, and say how long they are

STYLE = """
  text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2328 }
  .head { font-size: 15px; font-weight: 600 } .title { font-weight: 600 } .small { font-size: 12px; fill: #59636e }
  .refit { fill: #1a7f6b } .peer { fill: #8c959f } .line { stroke: #1f2328; stroke-dasharray: 3 3 } .grid { stroke: #d1d9e0 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } .refit { fill: #3fb8a0 } .peer { fill: #6e7681 }
    .line { stroke: #e6edf3 } .grid { stroke: #3d444d }
  }"""


def _scale(results):
    top = min(LONGEST, max([1.5, *(r["ratio"] for r in results)]))
    ticks = [n * 0.5 for n in range(int(top / 0.5) + 1)]
    return ticks, lambda ratio: LEFT + min(ratio, top) / top * (WIDTH - LEFT - RIGHT)


def _bar(result, y, x):
    name, value = escape(result["method"]), f"{'&#8594; ' if result['ratio'] > LONGEST else ''}{result['ratio']:.2f}"
    kind = "refit" if result["method"].startswith("refit") else "peer"
    void = " (void)" if result["void"] == len(result["runs"]) else ""
    return [f'<text class="small" x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{name}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{x(result["ratio"]) - LEFT:.1f}" height="{BAR}" rx="2"/>',
            f'<text x="{x(result["ratio"]) + 6:.1f}" y="{y + 13}">{value}{void}</text>']


def bars(results):
    ticks, x = _scale(results)
    body, y = [], TOP
    for name in dict.fromkeys(r["scenario"] for r in results):
        mine = [r for r in results if r["scenario"] == name]
        body.append(f'<text class="title" x="8" y="{y + 15}">{escape(mine[0]["title"])}</text>')
        y += TITLE
        for result in mine:
            body += _bar(result, y, x)
            y += BAR + GAP
        y += 8
    grid = [f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{TOP - 6}" y2="{y}"/>'
            f'<text class="small" x="{x(t):.1f}" y="{y + 16}" text-anchor="middle">{t:g}</text>' for t in ticks]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 28}" width="{WIDTH}" height="{y + 28}" role="img" '
        'aria-label="Time of a transfer in multiples of the least time that the links allow">',
        f"<style>{STYLE}\n</style>",
        '<text class="head" x="8" y="22">Time of a transfer, in multiples of the least time that the links allow</text>',
        '<text class="small" x="8" y="42">network namespaces as nodes, every link limited both ways; medians; shorter is better</text>',
        *grid, *body,
        f'<line class="line" x1="{x(1):.1f}" x2="{x(1):.1f}" y1="{TOP - 6}" y2="{y}"/>', "</svg>", ""])
