"""Blocks of a document as files of their own: tables as CSV, charts and curves as SVG with legend and colours."""

from __future__ import annotations

import csv
import io
import re
from importlib.resources import files

from ..core.errors import escaped
from .curves import curve_swatch, curves_svg
from .document import Cell, Chart, Curves, Document, Table
from .svg import chart_svg, swatch, tag

WIDTH, TOP, LINE, ACROSS = 960.0, 40.0, 20.0, 3
"""The width of the picture, the space above the plot and between lines of the legend (pixels); names in each line."""
DRAWN = re.compile(r"\.normscope (svg (\.|text)|svg\.curves|\.[sd]\d |\.happened)")
"""Matches the lines of the style sheet that colour a picture."""


def table_csv(table: Table) -> str:
    """Return a table as CSV: its headings, then its rows as they are; a value that was not measured is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.title for column in table.columns])
    writer.writerows(["" if cell is None else cell for cell in row] for row in table.rows)
    return text.getvalue()


def first_table(document: Document) -> tuple[list[str], tuple[tuple[Cell, ...], ...]]:
    """Return the headings and rows of the first table of a document; a heading that is there twice gets a number."""
    table = next((block for block in document.blocks if isinstance(block, Table)), Table(columns=(), rows=()))
    titles: list[str] = []
    for column in table.columns:
        times = sum(title.partition(" #")[0] == column.title for title in titles)
        titles.append(f"{column.title} #{times + 1}" if times else column.title)
    return titles, table.rows


def picture(block: Chart | Curves) -> str:
    """Return one SVG file with its title, its legend and its style sheet; empty if there is nothing to draw."""
    if isinstance(block, Chart):
        shown = [(k, one) for k, one in enumerate(block.series) if any(v is not None for v in one.values)]
        drawn, legend = chart_svg(block), [(swatch(one, k), one.name) for k, one in shown]
    else:
        drawn, legend = curves_svg(block), [(curve_swatch(one, k), one.name) for k, one in enumerate(block.curves)]
    if not drawn:
        return ""
    height = float(drawn.partition(' height="')[2].partition('"')[0])
    names = []
    for index, (small, name) in enumerate(legend):
        x, y = 20 + (index % ACROSS) * WIDTH / ACROSS, TOP + height + 14 + index // ACROSS * LINE
        names += [_at(small, x, y - 11), tag("text", escaped(name), x=x + 28, y=y)]
    whole = TOP + height + 14 + (-(-len(legend) // ACROSS)) * LINE
    return tag(
        "svg",
        f"<style><![CDATA[{_styles()}]]></style>",
        tag("rect", width=WIDTH, height=whole, fill="#ffffff"),
        tag("text", escaped(block.title), x=20, y=24, font_size="15"),
        _at(drawn, 0, TOP),
        *names,
        xmlns="http://www.w3.org/2000/svg",
        class_="normscope",
        font_family="sans-serif",
        font_size="12",
        width=WIDTH,
        height=whole,
        viewBox=f"0 0 {WIDTH:g} {whole:g}",
    )


def _styles() -> str:
    """Return the rules of the page's style sheet that colour pictures, without those that size them."""
    sheets = files("normscope.report") / "templates"
    lines = (sheets / "style.css").read_text(encoding="utf-8").splitlines()
    drawn = (line for line in lines if DRAWN.match(line))
    return "\n".join((f".normscope {{ {(sheets / 'light.css').read_text(encoding='utf-8')} }}", *drawn))


def _at(svg: str, x: float, y: float) -> str:
    """Return a picture that is placed at (x, y) inside another one."""
    return svg.replace("<svg ", f'<svg x="{x:g}" y="{y:g}" ', 1)
