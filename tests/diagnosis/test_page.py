"""The report of an audit: which blocks, in which order, and what they say."""

import math

import pytest

from normscope.core.bracket import Evidence, Scope
from normscope.core.finding import Severity
from normscope.diagnosis.page import audit_document
from normscope.diagnosis.page_words import headline, notices, tally
from normscope.report.document import Chart, Figures, Notice, Table, Text
from normscope.report.html import to_fragment, to_html
from normscope.report.terminal import render

from .audits import audit, bracket, deep, finding, ladder, normalizer, weight

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
        "Summary",
        "Findings",
        "Bounds",
        "Gain by layer",
        "Sensitivity to the weights",
        "Variance at the normalizers",
        "Layers",
        "Normalizers",
        "Not measured",
        "Notes",
        "Provenance",
    ]
    assert [chart.title for chart in of(document, Chart)] == [
        "From the printed product to what was observed",
        "Gain of each layer",
        "Gain from the input to each layer",
        "How far the output moves with each weight",
        "Variance at the input of each normalizer",
    ]


@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize("subject", ALL, ids=["small", "deep", "weights", "no data", "no graph", "no rows"])
def test_every_audit_has_a_report_in_every_form(subject, brief):
    document = audit_document(subject, brief=brief)
    assert subject.name in render(document, width=100)
    assert to_html(document).startswith("<!DOCTYPE html>")
    assert to_fragment(document)
    for table in of(document, Table):
        assert table.rows


@pytest.mark.parametrize("subject", ALL, ids=["small", "deep", "weights", "no data", "no graph", "no rows"])
def test_no_chart_is_drawn_of_nothing(subject):
    for chart in of(audit_document(subject), Chart):
        assert all(any(value is not None for value in series.values) for series in chart.series[:1])


def test_exponents_say_that_they_are():
    document = audit_document(deep())
    assert all(chart.axis.startswith("log10") for chart in of(document, Chart))
    for table in of(document, Table):
        if any(column.kind == "log10" for column in table.columns):
            assert "log10" in table.title or "log10" in table.caption
            assert all(
                column.help.startswith("log10") for column in table.columns if column.kind == "log10" and column.help
            )


def test_the_headline_is_the_bracket_over_all_inputs():
    subject, overall, observed = headline(audit())
    assert subject == (
        "Net holds 8,448 parameters. It was audited in eval mode for inputs of shape 32x64. "
        "640 samples in 20 batches went through it."
    )
    assert overall == (
        "Over all inputs (GLOBAL) it amplifies a change of its input at most 178 times (PROVEN: rounding included; by "
        "folded); two inputs were found for which it does so 7.94 times."
    )
    assert observed == (
        "At the batch (POINT) it amplifies a small change up to 6.31 times (NUMERICAL: true up to rounding)."
    )


def test_without_a_finite_bound_the_data_come_first_and_the_reason_is_named():
    _, observed, why = headline(audit(ladder=ladder(best=(0.9, math.inf))))
    assert observed.startswith("At the batch")
    assert why == "There is no finite bound over all inputs (GLOBAL): 'gate' multiplies two unbounded values."


def test_an_open_bracket_says_what_to_raise():
    open_ = bracket(0.5, 2.0, converged=False, advice="raise max_seconds")
    assert headline(audit(lipschitz=open_))[1].endswith("The search was cut short: raise max_seconds.")


def test_a_loose_point_figure_names_both_sides():
    loose = bracket(0.0, 1.0, evidence=Evidence.NUMERICAL, scope=Scope.POINT)
    assert "up to between 1 and 10 times" in headline(audit(observed=loose))[2]


def test_weights_alone_promise_nothing_about_the_network():
    document = audit_document(WEIGHTS_ONLY)
    assert "Only its weights were read" in sentences(document)[0]
    assert len(headline(WEIGHTS_ONLY)) == 1
    assert "from the weights alone" in " ".join(sentences(document))
    assert headings(document) == ["Summary", "Findings", "Gain by layer", "Layers", "Provenance"]
    (layers,) = (table for table in of(document, Table) if table.columns[0].title == "layer")
    absent = {"exact", "at data", "folded", "from input", "observed", "var, median", "dead", "channels"}
    assert not absent & {column.title for column in layers.columns}


def test_no_data_and_no_graph_are_said():
    assert "No data went through it." in headline(NO_DATA)[0]
    assert "without data" in " ".join(sentences(audit_document(NO_DATA)))
    document = audit_document(NO_GRAPH)
    assert "'Not measured' below says why." in sentences(document)[1]
    assert "Bounds" not in headings(document)
    assert "the model cannot be traced" in render(document)


def test_no_findings_say_what_was_checked():
    document = audit_document(audit(findings=()))
    assert "Nothing was found. Checked: 2 weight layers and 1 normalizer, in eval mode, over 640 samples." in sentences(
        document
    )
    assert not of(document, Notice)


def test_a_finding_becomes_a_notice():
    (notice,) = notices([finding()])
    assert (notice.level, notice.heading, notice.where) == ("warning", "variance-collapse", "net.1")
    assert [label for label, _ in notice.lines] == ["seen", "why it matters", "advice"]


def test_the_most_serious_finding_stands_first():
    found = notices([finding("a", severity=Severity.INFO), finding("b", severity=Severity.ERROR), finding("c")])
    assert [notice.level for notice in found] == ["error", "warning", "info"]


def test_many_findings_of_one_code_become_one_notice_that_names_every_place():
    places = [f"net.{index}" for index in range(9)]
    (notice,) = notices([finding(where=place) for place in places])
    assert notice.where == "9 places"
    assert [label for label, _ in notice.lines] == ["seen", "", "", "also in", "why it matters", "advice"]
    text = " ".join(sentence for _, sentence in notice.lines)
    assert all(place in text for place in places)
    assert len(notices([finding(where="a"), finding(where="b", code="other")])) == 2


def test_the_tally_counts_by_severity():
    found = [finding(), finding(), finding(severity=Severity.ERROR), finding(severity=Severity.INFO)]
    assert tally(found) == "1 error, 2 warnings, 1 info"
    assert tally([]) == "none"


def test_a_formula_that_is_no_bound_is_drawn_apart():
    spans, marks = of(audit_document(audit()), Chart)[0].series
    assert (spans.values[0], spans.until[0]) == (None, None)
    assert marks.values == (7.5, None, None, None, None)
    assert spans.until[1:] == (4.0, 2.25, 2.25, 0.8)


def test_the_charts_show_the_rows():
    _, gain, depth, variance = of(audit_document(audit()), Chart)
    assert gain.labels == ("net.0", "net.1", "net.3")
    assert [series.values for series in gain.series] == [
        (0.2, None, 0.5),
        (None, 2.5, None),
        (None, 0.6, None),
        (None, 0.4, None),
    ]
    assert gain.series[0].until == (0.25, None, 0.5)
    assert [series.values for series in depth.series] == [(0.25, 1.1, 2.25), (0.1, 0.5, 0.8)]
    assert variance.labels == ("net.1",)
    assert [series.values for series in variance.series] == [(-1.0,), (-0.2,), (-5.0,)]
    assert variance.rules == (("variance 1", 0.0),)


def test_the_tables_show_the_rows():
    tables = of(audit_document(audit()), Table)
    layers, normalizers = (table for table in tables if table.columns[0].title == "layer")
    assert column(layers, "norm, upper") == [0.25, None, 0.5]
    assert column(layers, "from input") == [0.25, 1.1, 2.25]
    assert column(layers, "dead") == [0, None, 3]
    assert column(normalizers, "below 1") == [0.75]
    assert column(normalizers, "folded with") == ["net.0"]
    assert [column.title for column in normalizers.columns][2:7] == [
        *("var, min", "var, median", "var, max", "below 1", "near eps")
    ]
    assert all(column.help for column in (*layers.columns[1:], *normalizers.columns[1:]))


def test_sensitivities_are_drawn_with_the_sides_they_have():
    layers = (
        weight("a", sensitivity=bracket(0.5, 2.0, scope=Scope.POINT)),
        weight("b", sensitivity=bracket(-math.inf, 3.0, scope=Scope.POINT)),
        weight("c"),
    )
    document = audit_document(audit(layers=layers))
    chart = next(chart for chart in of(document, Chart) if chart.title.startswith("How far the output moves"))
    assert chart.labels == ("a", "b")
    spans, marks = chart.series
    assert (spans.values, spans.until, marks.values) == ((0.5, None), (2.0, None), (None, 3.0))
    table = next(table for table in of(document, Table) if table.columns[0].title == "layer")
    assert column(table, "sensitivity, lower") == [0.5, None, None]
    assert column(table, "sensitivity, upper") == [2.0, 3.0, None]
    brief = next(t for t in of(audit_document(audit(layers=layers), brief=True), Table) if "layers" in t.title)
    assert column(brief, "sensitivity") == [0.5, None, None]


def test_the_first_figures_are_those_that_matter():
    (figures,) = of(audit_document(audit()), Figures)
    assert [item.value for item in figures.items] == [2.25, 0.9, 0.8, 1, 8448]


@pytest.mark.parametrize("width", [100, 120])
def test_the_brief_form_fits_a_terminal(width):
    shown = render(audit_document(deep(), brief=True), width=width).splitlines()
    assert all(len(line) <= width for line in shown)
    rows = [line for line in shown if line.startswith("  layer1.0.") and line.split()[1] in ("Conv2d", "BatchNorm2d")]
    assert len(rows) == 6  # one table, and no row is broken
    assert not of(audit_document(deep(), brief=True), Chart)


def test_the_report_of_a_large_network_is_small():
    assert len(to_html(audit_document(deep(107))).encode()) < 400_000
    assert len(to_html(audit_document(deep(500))).encode()) < 2_000_000


def test_hostile_names_stay_text():
    name = "</script><script>alert(1)</script>"
    subject = audit(
        name=name,
        layers=(weight(name, kind=name, notes=(name,)), normalizer(f"{name}1", folded_with=name)),
        findings=(finding(code=name, where=name, seen=name),),
        skipped=((name, name),),
        notes=(name,),
        provenance={name: name},
        ladder={name: bracket(0.0, math.inf, method=name, reason=name)},
    )
    for page in (to_html(audit_document(subject)), to_fragment(audit_document(subject))):
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert" in page
