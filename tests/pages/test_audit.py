"""The report of an audit: which blocks, in which order, and what they say."""

import math
import re

import pytest

from normscope.auditing.headline import headline, why_useless
from normscope.auditing.normalizer_effects import NormalizerEffect, NormalizerEffects
from normscope.auditing.page import audit_document
from normscope.core.finding import Severity
from normscope.doctor.pages.check import merge_sentences, notices
from normscope.report.document import Chart, Figures, Glossary, Notice, Table, Text
from normscope.report.html import prose, to_fragment, to_html
from normscope.report.terminal import render

from ..diagnosis.audits import audit, bracket, deep, finding, ladder, normalizer, weight

WEIGHTS_ONLY = audit(
    mode=None,
    samples=0,
    batches=0,
    input_shape=None,
    output_shape=None,
    ladder={},
    layers=(
        weight("embed", dead_channels=None, channels=None),
        weight("head", norm=None, dead_channels=None, channels=None, notes=("too large",)),
    ),
    findings=(),
)
NO_DATA = audit(samples=0, batches=0, layers=(weight("net.0"), normalizer("net.1", variance=None)), findings=())
NO_GRAPH = audit(
    ladder={},
    lipschitz=None,
    observed=None,
    skipped=(("Lipschitz constant", "the model cannot be traced: it branches on its data (line 7)"),),
    layers=(weight("net.0", norm=None), normalizer("net.1", log10_exact=None)),
)
NO_ROWS = audit(layers=(), findings=(), parameters=0)
ALL = (audit(), deep(), WEIGHTS_ONLY, NO_DATA, NO_GRAPH, NO_ROWS)


def of(document, kind):
    return [block for block in document.blocks if isinstance(block, kind)]


def headings(document):
    return [block.heading for block in of(document, Text) if block.heading]


def sentences(document):
    return [block.body for block in of(document, Text) if block.body]


def column(table, title):
    index = [column.title for column in table.columns].index(title)
    return [row[index] for row in table.rows]


def test_the_report_has_its_parts_in_order():
    document = audit_document(deep())
    assert document.title == "Audit of ResNet-50"
    assert headings(document) == [
        "Verdict",
        "How much a change can grow",
        "Layers",
        "Normalizers",
        "About this audit",
        "Words",
    ]
    assert [chart.title for chart in of(document, Chart)] == [
        "How much a change of the input has grown, layer by layer",
        "How much each layer alone can stretch what it is given",
        "How far the output moves with each weight",
    ]


def first_screen(document):
    """The blocks above everything that is folded."""
    ends = next(i for i, block in enumerate(document.blocks) if isinstance(block, Text) and block.folded)
    return document.blocks[:ends]


def test_the_first_screen_answers_and_everything_else_is_folded():
    document = audit_document(deep())
    kinds = [type(block).__name__ for block in first_screen(document)]
    # what is wrong, the chart, and then notes and what was not measured
    assert kinds == ["Text", "Text", "Figures", *["Notice"] * 2, "Chart", *["Notice"] * 2]
    verdict = document.blocks[0]
    assert (verdict.heading, verdict.body, verdict.lead) == ("Verdict", deep().verdict, True)
    assert verdict.body.startswith("Layer `layer2.3.conv2` is dead; the variances into 9 of 53 normalizers collapsed;")
    assert all(block.folded for block in of(document, Text) if block.heading and block.heading != "Verdict")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize("subject", ALL, ids=["small", "deep", "weights", "no data", "no graph", "no rows"])
def test_every_audit_has_a_report_in_every_form(subject, brief):
    document = audit_document(subject, brief=brief)
    assert subject.name in render(document, width=100)
    assert to_html(document).startswith("<!DOCTYPE html>")
    assert to_fragment(document)
    for table in of(document, Table):
        assert table.rows


def test_the_headline_is_the_bracket_over_all_inputs():
    subject, overall, observed = headline(audit())
    assert subject == (
        "Net holds 8,448 parameters. It was audited in eval mode for inputs of shape 32x64. "
        "640 samples in 20 batches went through it."
    )
    assert overall == (
        "For any two inputs (GLOBAL) the distance between them grows at most 178 times (proven, rounding included; by "
        "folded); two inputs were found for which it grows 7.94 times."
    )
    assert observed == "At the batch (POINT) a small change of the input grows at most 6.31 times."


def test_without_a_finite_bound_the_data_come_first_and_the_reason_is_named():
    subject = audit(ladder=ladder(best=(0.9, math.inf)))
    _, observed, why = headline(subject)
    assert observed.startswith("At the batch")
    assert why == (
        "There is no useful bound over all inputs (GLOBAL). It is infinite: 'gate' multiplies two unbounded values."
    )
    shown = {item.term: item for item in of(audit_document(subject), Figures)[0].items}
    assert shown["Lipschitz constant"].value == "no useful bound"
    assert shown["Lipschitz constant"].note == "infinite; the details say why"


LOOSE = finding(
    "loose-bound",
    "",
    Severity.INFO,
    "No useful bound.",
    why="What makes it so: attention and LayerNorm at zero variance.",
)


@pytest.mark.parametrize(("upper", "useless"), [(6.79, False), (6.81, True), (194.0, True)])
def test_a_bound_a_millionfold_above_the_data_is_no_useful_bound(upper, useless):
    subject = audit(ladder=ladder(best=(0.9, upper)), findings=(LOOSE,))
    assert (why_useless(subject) is not None) is useless
    first, second = of(audit_document(subject), Figures)[0].items[:2]
    assert (first.value, first.term) == ("6.31 times", "Jacobian norm")
    assert (second.value == "no useful bound") is useless
    charts = of(audit_document(subject), Chart)
    assert ("ladder of bounds" in {chart.term for chart in charts}) is not useless
    if useless:
        assert second.note == "attention and LayerNorm at zero variance"
        assert "attention and LayerNorm at zero variance" in headline(subject)[2]


def rows_up_to(*pairs):
    return tuple(weight(f"{n}", log10_cumulative=top, log10_observed=seen) for n, (top, seen) in enumerate(pairs))


@pytest.mark.parametrize(
    ("pairs", "drawn", "told"),
    [
        (((1.0, 0.1), (6.0, 0.2), (6.3, 0.2), (194.0, 0.8)), (1.0, 6.0, None, None), "ends at `1`: behind it there is"),
        (((1.0, 0.1), (math.inf, 0.2), (math.inf, 0.8)), (1.0, None, None), "ends at `0`: behind it there is"),
        (((7.0, 0.1), (math.inf, 0.8)), None, "is not drawn: there is no useful bound"),
        (((math.inf, 0.1), (math.inf, 0.8)), None, "is not drawn: there is no useful bound"),
        (((1.0, None), (2.0, None)), (1.0, 2.0), "ends at `1`"),
    ],
)
def test_the_curve_of_a_bound_ends_where_it_is_of_no_use_and_a_sentence_says_so(pairs, drawn, told):
    subject = audit(ladder=ladder(best=(0.9, pairs[-1][0] + 200.0)), layers=rows_up_to(*pairs), findings=(LOOSE,))
    chart = of(audit_document(subject), Chart)[0]
    found = {series.name: series.values for series in chart.series}
    assert found.get("at most, for any input") == drawn
    assert told in chart.caption
    assert all(value is None or value < 10 for values in found.values() for value in values)
    if pairs[0][1] is not None:
        assert found["seen at the data"] == tuple(seen for _, seen in pairs)


def test_weights_alone_promise_nothing_about_the_network():
    document = audit_document(WEIGHTS_ONLY)
    assert sentences(document)[0] == "No problems found in 2 weight layers."
    assert "Only its weights were read" in sentences(document)[1]
    assert len(headline(WEIGHTS_ONLY)) == 1
    assert headings(document) == ["Verdict", "Layers", "About this audit", "Words"]
    assert [chart.term for chart in of(document, Chart)] == ["operator norm"]
    (layers,) = (table for table in of(document, Table) if table.columns[0].title == "layer")
    absent = {"exact", "at data", "folded", "from input", "observed", "var, median", "dead", "channels"}
    assert not absent & {column.title for column in layers.columns}


def test_many_findings_of_one_code_become_one_notice_that_names_every_place():
    places = [f"net.{index}" for index in range(9)]
    (notice,) = notices([finding(where=place) for place in places])
    assert notice.heading == "The variances into 9 normalizers collapsed"
    assert [label for label, _ in notice.lines] == ["seen", "advice", "why it matters"]
    assert [label for label, _ in notice.more] == ["layers"]
    text = " ".join(sentence for _, sentence in notice.more)
    assert all(place in text for place in places)
    assert len(notices([finding(where="a"), finding(where="b", code="other")])) == 2


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Same.", "Same."], "Same."),
        (["Of `a`.", "Of `a`."], "Of `a`."),
        (["Of `a`.", "Of `b`."], "Of `a` and `b`."),
        (["From `a` to `b`.", "From `a` to `c`."], "From `a` to `b` and `c`."),
        ([f"Of `{n}`." for n in range(5)], "Of `0`, `1`, `2` and 2 more."),
        (["", ""], ""),
        (["One.", "Two."], "One. Two."),
    ],
)
def test_sentences_that_differ_in_names_alone_are_one(texts, expected):
    assert merge_sentences(texts) == expected


def test_findings_that_differ_in_numbers_are_one_sentence_with_ranges():
    def dead(where, count, severity):
        seen = f"{count} of 1,024 channels ({100 * count // 1024} %) of `{where}` are below 1e-05 in float16."
        return finding("dead-relu", where, severity, seen=seen)

    few, many = ([dead(f"net.{n}", 128 * n + 64, Severity.WARNING) for n in range(count)] for count in (3, 5))
    assert [text for label, text in notices(few)[0].lines if label in ("seen", "")] == [f.seen for f in few]
    (card,) = notices(many)
    told = (
        "64\N{EN DASH}576 of 1,024 channels (6\N{EN DASH}56 %) of `net.0`, `net.1`, `net.2` and 2 more are below 1e-05"
    )
    assert card.lines[0] == ("seen", f"{told} in float16.")
    (note,) = notices([dead("a", 10, Severity.INFO), dead("b", 20, Severity.INFO)])
    assert note.lines == (
        ("seen", "10\N{EN DASH}20 of 1,024 channels (0\N{EN DASH}1 %) of `a` and `b` are below 1e-05 in float16."),
    )
    assert [label for label, _ in note.more] == ["advice", "why it matters"]


def test_no_sentence_of_a_finding_stands_twice_on_the_page():
    page = of(audit_document(audit()), Notice)
    assert page
    whole = audit().to_html()
    for notice in page:
        for _, text in (*notice.lines, *notice.more):
            assert whole.count(prose(text)) == 1


def test_what_was_not_measured_is_one_line_of_the_first_screen():
    document = audit_document(NO_GRAPH)
    (notice,) = (notice for notice in of(document, Notice) if notice.heading.startswith("Not measured"))
    assert (notice.heading, notice.level) == ("Not measured: Lipschitz constant", "info")
    assert notice.more == NO_GRAPH.skipped
    assert notice.lines == ()
    figure = of(document, Figures)[0].items[0]
    assert (figure.term, figure.value) == ("Lipschitz constant", "not measured")
    assert figure.note == "'Not measured' says why"
    assert not [n for n in of(audit_document(audit()), Notice) if n.heading.startswith("Not measured")]


def test_the_charts_show_the_rows():
    growth, _, gain = of(audit_document(audit()), Chart)
    assert [series.values for series in growth.series] == [(0.1, 0.5, 0.8), (0.25, 1.1, 2.25)]
    assert gain.labels == ("net.0", "net.1", "net.3")
    assert [series.values for series in gain.series] == [
        (0.2, None, 0.5),
        (None, 2.5, None),
    ]
    assert gain.series[0].until == (0.25, None, 0.5)


EFFECTS = NormalizerEffects(
    log10_growth=0.3,
    samples=8,
    normalizers=(
        NormalizerEffect(
            path="net.1", feeding="net.0", kind="shrinks", log10_growth=-0.4, reaction=0.2, log10_frozen=0.5
        ),
        NormalizerEffect(path="net.4", feeding="net.3", kind="grows", log10_growth=0.2, reaction=0.1, log10_frozen=0.3),
        NormalizerEffect(path="net.7", feeding=None, kind="few-values"),
    ),
)


def test_what_normalizers_do_stands_on_the_first_screen_and_in_the_terminal():
    subject = audit(normalizers=EFFECTS)
    document = audit_document(subject)
    shown = first_screen(document)
    assert EFFECTS.sentence in [block.body for block in shown if isinstance(block, Text)]
    (chart,) = (block for block in shown if isinstance(block, Chart))
    assert chart.labels == ("net.1", "net.4", "net.7")
    bars = {series.name: series.until for series in chart.series}
    assert bars["shrinks it"] == (-0.4, None, None)
    assert bars["lets it grow"] == (None, 0.2, None)
    assert " ".join(EFFECTS.sentence.split()) in " ".join(
        render(audit_document(subject, brief=True), width=100).split()
    )
    table = next(table for table in of(document, Table) if table.columns[0].title == "normalizer")
    assert column(table, "network, frozen") == [0.5, 0.3, None]
    growth = next(chart for chart in of(document, Chart) if chart.term == "Jacobian norm")
    assert document.blocks.index(growth) > len(shown), "one chart is enough for the first screen"


def test_a_kind_has_the_same_colour_on_every_page_and_only_those_that_occur_are_named():
    page = to_html(audit_document(audit(normalizers=EFFECTS)))
    legend = page[page.index("What each normalizer does") :]
    legend = legend[: legend.index("</ul>")]
    assert re.findall(r'class="swatch (s\d)"', legend) == ["s0", "s1"]
    assert "eps decides" not in legend


def test_branches_are_drawn_beside_the_main_line():
    layers = (
        weight("stem", log10_observed=0.1, follows=(), bypassed=False),
        weight("a", log10_observed=0.9, follows=(0,), bypassed=True, log10_trunk_observed=0.15),
        weight("b", log10_observed=-0.5, follows=(1,), bypassed=True),
        weight("down", log10_observed=0.7, follows=(0,), bypassed=True, log10_trunk_observed=0.15),
        weight("head", log10_observed=0.4, follows=(2, 3), bypassed=False),
    )
    main, inside = of(audit_document(audit(layers=layers)), Chart)[0].series
    assert main.values == (0.1, 0.15, None, 0.15, 0.4)
    assert main.paths == ((0, 1, 3, 4),)
    assert inside.values == (None, 0.9, -0.5, 0.7, None)
    assert inside.paths == ((1, 2), (3,))
    assert inside.faint


def test_the_tables_show_the_rows():
    tables = of(audit_document(audit()), Table)
    layers, normalizers = (table for table in tables if table.columns[0].title == "layer")
    assert column(layers, "norm, upper") == [0.25, None, 0.5]
    assert column(layers, "from input") == [0.25, 1.1, 2.25]
    assert column(layers, "dead") == [0, None, 3]
    assert column(normalizers, "folded with") == ["net.0"]
    assert [column.title for column in normalizers.columns][2:6] == ["var, min", "var, median", "var, max", "near eps"]
    assert all(column.help for column in (*layers.columns[1:], *normalizers.columns[1:]))


def test_every_term_of_the_page_leads_to_the_glossary():
    for subject in ALL:
        document = audit_document(subject)
        blocks = [block for block in document.blocks if isinstance(block, Text | Chart)]
        terms = {block.term for block in blocks} | {i.term for f in of(document, Figures) for i in f.items}
        explained = {term for glossary in of(document, Glossary) for term, _ in glossary.items}
        assert terms - {""} <= explained
        page = to_html(document)
        assert page.count('class="term"') == page.count('class="term"><a href="#word-')


def test_a_note_about_the_data_is_told_once_and_not_beside_every_bound():
    note = "the second entry is taken as labels"
    rungs = {name: bracket(0.9, upper, notes=(note,)) for name, upper in (("product", 4.0), ("best", 2.0))}
    for brief in (False, True):
        text = render(audit_document(audit(ladder=rungs, notes=(note,)), brief=brief), width=4000)
        assert text.count(note) == 1
