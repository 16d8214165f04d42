"""Documents of any length are shown in part, with a sentence on what is left out."""

from __future__ import annotations

import pytest

from normscope.report.document import (
    Chart,
    Column,
    Curve,
    Curves,
    Document,
    Glossary,
    Mark,
    Notice,
    Series,
    Steps,
    Table,
    Text,
)
from normscope.report.html import to_fragment, to_html
from normscope.report.limits import MAX_BLOCKS, MAX_CELL_LETTERS, MAX_CURVES, MAX_LETTERS, MAX_ROWS, within_limits
from normscope.report.terminal import render

MANY = 1_200
NAMES = tuple(f"layer{i}" for i in range(MANY))
COURSE = ((0.0, 1.0), (1.0, 2.0))
LINE = Series(name="s", style="line", values=(1.0,) * MANY, paths=(tuple(range(MANY)), (5, MANY - 1)))
SPANS = Series(name="t", style="spans", values=(0.0,) * MANY, until=(1.0,) * MANY)

LONG = {
    "table": (Table(columns=(Column(title="a"),), rows=tuple((name,) for name in NAMES)), MAX_ROWS, "rows"),
    "chart": (Chart(labels=NAMES, series=(LINE, SPANS)), MAX_ROWS, "places"),
    "curves": (Curves(curves=tuple(Curve(name=name, points=COURSE) for name in NAMES)), MAX_CURVES, "curves"),
    "marks": (
        Curves(curves=(Curve(name="a", points=COURSE),), marks=tuple(Mark(x=0.5, name=name) for name in NAMES)),
        MAX_ROWS,
        "marks",
    ),
    "notice": (Notice(level="error", heading="h", lines=tuple(("l", name) for name in NAMES)), MAX_ROWS, "lines"),
    "folded": (
        Notice(level="error", heading="h", lines=(("a", "b"),), more=tuple(("l", name) for name in NAMES[1:])),
        MAX_ROWS,
        "lines",
    ),
    "steps": (Steps(items=NAMES), MAX_ROWS, "steps"),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", LONG)
def test_a_long_block_is_cut_and_says_so(name):
    block, shown, noun = LONG[name]
    page = to_html(Document(blocks=(block,)))
    assert f"Only the first {shown:,} of {MANY:,} {noun} are shown here" in page
    assert f"layer{MANY - 1}" not in page
    assert f"layer{MANY - 1}" not in to_fragment(Document(blocks=(block,)))


@pytest.mark.parametrize("name", ["table", "notice", "steps"])
def test_a_terminal_shows_a_part_too(name):
    block, shown, noun = LONG[name]
    text = render(Document(blocks=(block,)), width=100)
    assert f"Only the first {shown:,} of {MANY:,} {noun}" in " ".join(text.split())


def test_many_blocks_and_words():
    blocks = tuple(Text(body=name) for name in NAMES)
    page = to_html(Document(blocks=blocks))
    assert f"Only the first {MAX_BLOCKS:,} of {MANY:,} parts" in page
    assert page.count("<p>layer") == MAX_BLOCKS
    words = to_html(Document(blocks=(Glossary(items=tuple((name, "is a layer") for name in NAMES)),)))
    assert words.count("is a layer") == MAX_ROWS


ENDLESS = "x" * 30_000


@pytest.mark.parametrize(
    "document",
    [
        Document(title=ENDLESS, blocks=()),
        Document(blocks=(Text(heading=ENDLESS, body=ENDLESS),)),
        Document(blocks=(Table(columns=(Column(title=ENDLESS, kind="name"),), rows=((ENDLESS,),), caption=ENDLESS),)),
        Document(blocks=(Chart(labels=(ENDLESS, "b"), series=(Series(name=ENDLESS, style="marks", values=(1, 2)),)),)),
        Document(blocks=(Curves(curves=(Curve(name=ENDLESS, points=COURSE),)),)),
        Document(blocks=(Notice(level="info", heading=ENDLESS, where=ENDLESS, more=((ENDLESS, ENDLESS),)),)),
    ],
    ids=["title", "text", "table", "chart", "curves", "notice"],
)
def test_an_endless_text_is_cut(document):
    page = to_html(document)
    assert len(page) < 100_000
    assert any(f"({30_000 - most:,} letters left out)" in page for most in (MAX_LETTERS, MAX_CELL_LETTERS))
    assert ENDLESS[: MAX_LETTERS + 1] not in page
    assert len(render(document)) < 100_000


def test_documents_within_the_limits_are_left_alone():
    rows = tuple((name,) for name in NAMES[:MAX_ROWS])
    document = Document(
        title="t",
        blocks=(
            Table(columns=(Column(title="a"),), rows=rows, caption="c"),
            Chart(labels=NAMES[:3], series=(Series(name="s", style="line", values=(1.0, None, 2.0), paths=((0, 2),)),)),
        ),
    )
    assert within_limits(document) == document
