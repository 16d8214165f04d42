"""Show documents as HTML: one self-contained page, or a fragment for notebooks. jinja2 loads when first used."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.errors import escaped, visible, with_code
from .curves import curve_swatch, curves_svg, depth_ramp, mark_swatch
from .document import Block, Cell, CellFormat, Chart, Curves, Document, Glossary, Table, Text
from .limits import within_limits
from .svg import chart_svg, swatch
from .words import LEVELS, format_cell

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

FILTER_FROM = 9
"""Tables of at least this many rows have a filter box."""

RAMP_FROM = 13
"""From this many curves by depth on, the legend is one ramp of colours, and the names are folded away."""

GENERATOR = "Normscope"

OWN = ".normscope:not(#_)"
"""The fragment's CSS selector, as specific as an id, so that it takes precedence over style sheets of notebooks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The blocks under one heading of the page."""

    anchor: str
    heading: str
    blocks: tuple[Block, ...]
    term: str = ""
    folded: bool = False
    parts: tuple[Section, ...] = ()


def to_html(document: Document) -> str:
    """Return a document as one HTML page that needs nothing else: no network, no font, no other file.

    Its content security policy forbids every request and every script but its own, so that a name from a model or a
    file can never run as code.
    """
    document = within_limits(document)
    environment = _environment()
    script = _source(environment, "page.js")
    return environment.get_template("page.html").render(
        title=document.title or "Report",
        generator=GENERATOR,
        sections=sections(document),
        words=words(document),
        policy=_policy(script),
        script=_markup(script),
        **_styles(environment),
    )


def to_fragment(document: Document) -> str:
    """Return a document as a piece of HTML for another page, such as a notebook's output.

    It has no script and no ids, and its styles change nothing outside it, so that several can share a page.
    """
    document = within_limits(document)
    environment = _environment()
    return environment.get_template("fragment.html").render(
        title=document.title, sections=sections(document), words={}, **_styles(environment, OWN)
    )


def live_page(title: str) -> tuple[str, str]:
    """Return the page of a run that goes on, and the content security policy that it is to be served with.

    The page is empty at first: its script asks the server for the charts. The policy allows that script, requests to
    the server that the page came from, and nothing else.
    """
    environment = _environment()
    script = _source(environment, "live.js")
    page = environment.get_template("live.html").render(
        title=title,
        generator=GENERATOR,
        words={},
        sheet=_markup(_source(environment, "live.css")),
        script=_markup(script),
        **_styles(environment),
    )
    return page, f"{_policy(script)}; connect-src 'self'; frame-ancestors 'none'"


def sections(document: Document) -> tuple[Section, ...]:
    """Return the blocks of a document by heading; where no text has one, each table and chart begins a section.

    An inner part belongs to the section before it.
    """
    headed = any(isinstance(block, Text) and block.heading for block in document.blocks)
    parts: list[tuple[str, list[Block]]] = []
    for block in document.blocks:
        if isinstance(block, Text):
            heading = block.heading
        else:
            heading = block.title if not headed and isinstance(block, Table | Chart | Curves) else ""
        if heading or not parts:
            parts.append((heading, []))
        parts[-1][1].append(block)
    whole: list[Section] = []
    for index, (heading, blocks) in enumerate(parts, 1):
        first = blocks[0]
        opened = first if isinstance(first, Text) and first.heading else Text()
        part = Section(
            anchor=f"part-{index}", heading=heading, blocks=tuple(blocks), term=opened.term, folded=opened.folded
        )
        if whole and isinstance(first, Text) and first.inner:
            whole[-1] = replace(whole[-1], parts=(*whole[-1].parts, part))
        else:
            whole.append(part)
    return tuple(whole)


def words(document: Document) -> dict[str, str]:
    """Return the anchor of each term's entry in the glossary."""
    terms = (term for block in document.blocks if isinstance(block, Glossary) for term, _ in block.items)
    return {term: f"word-{index}" for index, term in enumerate(dict.fromkeys(terms), 1)}


def prose(text: str) -> Markup:
    """Return a sentence as markup, with the words between backticks as code and everything else as text."""
    return _markup(with_code(text))


def sort_value(value: Cell) -> str:
    """Return the key by which a cell is sorted: a number as JavaScript reads it, a text, or "" if not measured."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value if isinstance(value, str) else repr(value)


def is_number(kind: CellFormat) -> bool:
    """Return whether a column of this kind holds numbers."""
    return kind not in ("text", "sentence", "name")


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("normscope.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,  # markup stays as it is
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        cell=format_cell,
        sort_value=sort_value,
        type_name=lambda block: type(block).__name__.lower(),
        prose=prose,
        breakable=lambda name: _markup(escaped(name).replace(".", ".<wbr>")),
        level=LEVELS.__getitem__,
        chart_svg=lambda chart, narrow=False: _markup(chart_svg(chart, narrow=narrow)),
        swatch=lambda series, number: _markup(swatch(series, number)),
        curves_svg=lambda curves, narrow=False: _markup(curves_svg(curves, narrow=narrow)),
        curve_swatch=lambda curve, number: _markup(curve_swatch(curve, number)),
        mark_swatch=lambda level: _markup(mark_swatch(level)),
    )
    environment.tests["number_kind"] = is_number
    environment.globals |= {"filter_from": FILTER_FROM, "ramp_from": RAMP_FROM, "ramp": _markup(depth_ramp())}
    return environment


def _markup(text: str) -> Markup:
    from markupsafe import Markup

    return Markup(text)


def _source(environment: jinja2.Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _styles(environment: jinja2.Environment, own: str = ".normscope") -> dict[str, Markup]:
    sheets = {name: _source(environment, f"{name}.css") for name in ("light", "dark", "style")}
    return {"own": _markup(own)} | {name: _markup(text.replace(".normscope", own)) for name, text in sheets.items()}


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
