"""Documents as lines of text."""

import math

import pytest

from normscope.report.document import Chart, Column, Document, Figure, Figures, Glossary, Notice, Series, Steps, Table
from normscope.report.terminal import parts, render
from normscope.report.words import factor, listed, pluralise, shape

from .documents import HOSTILE, document


def lines(*blocks, width=100):
    return render(Document(blocks=blocks), width=width).splitlines()


def test_a_notice_names_its_severity_and_place():
    shown = lines(Notice(level="warning", heading="dead-layer", where="net.0", lines=(("seen", "all zero"),)))
    assert shown[:2] == ["warning dead-layer: net.0", "  seen: all zero"]


def test_a_terminal_shows_what_is_folded_of_warnings_but_not_of_infos():
    folded = {"heading": "A layer is dead", "code": "dead-layer", "more": (("advice", "Revive it."),)}
    assert lines(Notice(level="warning", **folded))[:2] == [
        "warning A layer is dead (dead-layer)",
        "  advice: Revive it.",
    ]
    assert lines(Notice(level="info", **folded)) == ["note A layer is dead (dead-layer)", ""]


def test_steps_are_numbered_and_a_glossary_is_told():
    assert lines(Steps(title="Next", items=("One.", "Two."))) == ["Next", "1. One.", "2. Two.", ""]
    assert lines(Steps(title="Next", items=("One.",))) == ["Next", "One.", ""]
    assert lines(Glossary(items=(("term", "What it is."),))) == ["term: What it is.", ""]


def test_figures_stand_in_a_column():
    upper = Figure(label="upper", value=2.254, kind="log10", note="log10")
    assert lines(Figures(items=(upper, Figure(label="n", value=None))))[:2] == ["upper  2.25  (log10)", "n      -"]


def test_a_chart_is_left_to_the_page():
    figure = Chart(title="C", labels=("a",), series=(Series(name="s", style="line", values=(1.0,)),))
    assert lines(figure)[0] == "C: a chart, in the HTML report"


def wide(count, name="layer1.0.conv1"):
    columns = (Column(title="layer", kind="name"), *(Column(title=f"figure {n}", kind="log10") for n in range(count)))
    return Table(columns=columns, rows=((name, *(n + 0.25 for n in range(count))),))


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_wide_table_is_printed_in_parts_and_whole(width):
    table = wide(20)
    shown = lines(table, width=width)
    assert all(len(line) <= width for line in shown)
    words = " ".join(shown).split()
    assert all(f"{n}.25" in words for n in range(20))
    pieces = list(parts(table, width=width))
    assert len(pieces) > 1
    assert all(piece.columns[0].title == "layer" for piece in pieces)
    assert sum(len(piece.columns) - 1 for piece in pieces) == 20


def test_a_very_long_name_breaks_at_its_dots():
    name = "model.encoder.layers.11.attention.self.query_projection.weight_normed"
    shown = [line.split()[0] for line in lines(wide(4, name), width=80) if ".." not in line and "." in line]
    assert "".join(shown) == name
    assert all(len(piece) <= 32 for piece in shown)


@pytest.mark.parametrize("name", [*HOSTILE, "[bold]x[/bold]", "[link=http://x]y"])
def test_no_name_reaches_the_terminal_as_a_command(name):
    shown = render(document(name))
    assert not set(shown) & set("\x1b\x00\u202e\u2066\u2028")
    if name.isprintable():
        assert name in shown


def test_words():
    exponents = (0.0, 2.25, -1.0, -7.0, math.inf)
    assert [factor(exponent) for exponent in exponents] == ["1", "178", "0.1", "10^-7.00", "infinity"]
    assert [pluralise(count, "batch", "batches") for count in (1, 1200)] == ["1 batch", "1,200 batches"]
    assert [shape(sizes) for sizes in ((3, 32, 32), (), None)] == ["3x32x32", "scalar", None]
    assert [listed(list("abcd")[:count]) for count in (0, 1, 3)] == ["", "a", "a, b and c"]
