"""The report of an audit: which blocks, in which order, and what they say."""

import math

import pytest

from normscope.core.bracket import Evidence, Scope
from normscope.core.cost import Cost
from normscope.core.finding import Severity
from normscope.pages.audit import audit_document
from normscope.pages.audit_words import headline, tally, to_do, why_useless
from normscope.pages.cards import advice, merged, next_steps, notices
from normscope.report.document import Chart, Figures, Glossary, Notice, Steps, Table, Text
from normscope.report.html import to_fragment, to_html
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
        "How much the input of each normalizer varies",
    ]


def first_screen(document):
    """The blocks above everything that is folded."""
    ends = next(i for i, block in enumerate(document.blocks) if isinstance(block, Text) and block.folded)
    return document.blocks[:ends]


def test_the_first_screen_answers_and_everything_else_is_folded():
    document = audit_document(deep())
    kinds = [type(block).__name__ for block in first_screen(document)]
    assert kinds[:4] == ["Text", "Text", "Figures", "Chart"]
    assert kinds[4:] == ["Notice"] * 4 + ["Steps"]  # three kinds of findings, and what was not measured
    verdict = document.blocks[0]
    assert (verdict.heading, verdict.body, verdict.lead) == ("Verdict", deep().verdict, True)
    assert verdict.body.startswith("Layer `layer2.3.conv2` is dead; the variances into 9 of 53 normalizers collapsed;")
    assert all(block.folded for block in of(document, Text) if block.heading and block.heading != "Verdict")


@pytest.mark.parametrize("many", [deep(), deep(500), audit()])
def test_no_page_has_more_than_eight_entries(many):
    assert len(headings(audit_document(many))) <= 8
    assert to_html(audit_document(many)).count('<li><a href="#part-') <= 8


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
    assert "log10" in dict(of(document, Glossary)[0].items)
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


LONG = "the gate of block 7 multiplies two values that are not bounded, at models/very/deep/down/gates.py:120"


def test_a_headline_figure_has_a_short_reason_and_the_details_the_long_one():
    unbounded = {name: bracket(0.0, math.inf, reason=LONG) for name in ("product", "best")}
    gates = [finding("not-lipschitz", f"blocks.{n}.gate", Severity.INFO, LONG) for n in range(3)]
    for found, note in (
        (gates[:1], "`blocks.0.gate` can amplify some inputs without limit"),
        (gates, "3 parts can amplify some inputs without limit"),
        ([finding("no-rule", "fft", Severity.INFO)], "`fft` runs an operator without a rule"),
        ([finding("no-rule", f"{'deep.' * 20}fft", Severity.INFO)], "infinite; the details say why"),
        ([], "infinite; the details say why"),
    ):
        subject = audit(ladder=unbounded | {"observed": ladder()["observed"]}, findings=tuple(found))
        document = audit_document(subject)
        assert of(document, Figures)[0].items[1].note == note
        assert sum(LONG in sentence for sentence in sentences(document)) == 1
        assert "gates.py" not in " ".join(item.note for item in of(document, Figures)[0].items)


def test_a_long_reason_for_a_loose_bound_stands_in_the_details_alone():
    causes = "the worst cases of 53 weight layers multiplied, though no input meets them together"
    subject = audit(
        ladder=ladder(best=(0.9, 194.0)),
        findings=(finding("loose-bound", "", Severity.INFO, why=f"What makes it so: {causes}."),),
    )
    document = audit_document(subject)
    assert of(document, Figures)[0].items[1].note == "far above anything seen at the data"
    assert sum(causes in sentence for sentence in sentences(document)) == 1


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


def test_the_sentence_names_the_last_place_that_is_drawn_and_none_inside_a_branch():
    inside = {"bypassed": True, "log10_observed": 0.2}
    rows = (
        weight("stem", log10_cumulative=1.0, log10_observed=0.1, follows=(), bypassed=False),
        weight("a", log10_cumulative=3.0, follows=(0,), log10_trunk_cumulative=2.0, log10_trunk_observed=0.1, **inside),
        weight("b", log10_cumulative=4.0, follows=(1,), **inside),
        weight("head", log10_cumulative=90.0, log10_observed=0.8, follows=(0, 2), bypassed=False),
    )
    chart = of(audit_document(audit(ladder=ladder(best=(0.9, 90.0)), layers=rows, findings=(LOOSE,))), Chart)[0]
    assert chart.series[-1].values == (1.0, 2.0, None, None)
    assert "ends at `a`: behind it there is no useful bound" in chart.caption


def test_a_useful_bound_is_drawn_whole_without_a_word():
    chart = of(audit_document(audit()), Chart)[0]
    assert chart.series[1].values == (0.25, 1.1, 2.25)
    assert "no useful bound" not in chart.caption


def test_a_network_that_does_nothing_has_no_bound_to_compare_with():
    assert why_useless(audit(ladder=ladder(best=(-math.inf, 9.0), observed=(-math.inf, -math.inf)))) is None


def test_an_open_bracket_says_what_to_raise():
    open_ = bracket(0.5, 2.0, converged=False, advice="raise max_seconds")
    assert headline(audit(lipschitz=open_))[1].endswith("The search was cut short: raise max_seconds.")


def test_a_point_figure_that_did_not_close_is_told_by_its_upper_side():
    loose = bracket(0.0, 1.0, evidence=Evidence.NUMERICAL, scope=Scope.POINT)
    assert "grows at most 10 times" in headline(audit(observed=loose))[2]


def test_weights_alone_promise_nothing_about_the_network():
    document = audit_document(WEIGHTS_ONLY)
    assert sentences(document)[0] == "No problems found in 2 weight layers."
    assert "Only its weights were read" in sentences(document)[1]
    assert len(headline(WEIGHTS_ONLY)) == 1
    assert "from the weights alone" in " ".join(sentences(document))
    assert headings(document) == ["Verdict", "Layers", "About this audit", "Words"]
    assert [chart.term for chart in of(document, Chart)] == ["operator norm"]
    (layers,) = (table for table in of(document, Table) if table.columns[0].title == "layer")
    absent = {"exact", "at data", "folded", "from input", "observed", "var, median", "dead", "channels"}
    assert not absent & {column.title for column in layers.columns}


def test_no_data_and_no_graph_are_said():
    assert "No data went through it." in headline(NO_DATA)[0]
    assert "without data" in " ".join(sentences(audit_document(NO_DATA)))
    document = audit_document(NO_GRAPH)
    assert "'Not measured' says why." in render(document, width=200)
    assert not [chart for chart in of(document, Chart) if chart.term == "ladder of bounds"]
    assert "the model cannot be traced" in render(audit_document(NO_GRAPH, brief=True))
    assert "the model cannot be traced" in to_html(document)


def test_no_findings_say_what_was_checked():
    document = audit_document(audit(findings=()))
    assert "Nothing was found. Checked: 2 weight layers and 1 normalizer, in eval mode, over 640 samples." in sentences(
        document
    )
    assert not of(document, Notice)


def test_a_finding_becomes_a_notice():
    (notice,) = notices([finding()])
    assert (notice.level, notice.heading, notice.code) == (
        "warning",
        "The variance into `net.1` collapsed",
        "variance-collapse",
    )
    assert [label for label, _ in notice.lines] == ["seen"]
    assert [label for label, _ in notice.more] == ["why it matters", "advice"]


def test_an_info_is_one_line_until_it_is_opened():
    (notice,) = notices([finding("stale-statistics", f"bn{n}", Severity.INFO, f"Never of `bn{n}`.") for n in range(53)])
    assert notice.heading == "The statistics of 53 normalizers were never taken"
    assert notice.where == ""  # how many they are is enough for one line; the folded part names them
    assert dict(notice.more)["layers"].startswith("`bn0`, `bn1`, `bn2`")
    assert notice.lines == ()
    assert dict(notice.more)["seen"] == "Never of `bn0`, `bn1`, `bn2` and 50 more."
    assert notices([finding("redundant-bias", f"{n}", Severity.INFO) for n in range(2)])[0].where == "`0` and `1`"
    shown = render(audit_document(audit(findings=(finding("redundant-bias", "a", Severity.INFO),)), brief=True))
    assert shown.count("note ") == 1
    assert "Lower the weight decay" not in shown


def test_the_most_serious_finding_stands_first():
    found = notices([finding("a", severity=Severity.INFO), finding("b", severity=Severity.ERROR), finding("c")])
    assert [notice.level for notice in found] == ["error", "warning", "info"]


def test_many_findings_of_one_code_become_one_notice_that_names_every_place():
    places = [f"net.{index}" for index in range(9)]
    (notice,) = notices([finding(where=place) for place in places])
    assert notice.heading == "The variances into 9 normalizers collapsed"
    assert [label for label, _ in notice.more] == ["layers", "why it matters", "advice"]
    text = " ".join(sentence for _, sentence in notice.more)
    assert all(place in text for place in places)
    assert len(notices([finding(where="a"), finding(where="b", code="other")])) == 2


def test_merged_findings_keep_the_advice_of_all():
    biases = [
        finding("redundant-bias", str(3 * n), Severity.INFO, advice=f"Drop it: `{3 * n + 1}` adds one of its own.")
        for n in range(3)
    ]
    assert advice(biases) == "Drop it: `1`, `4` and `7` adds one of its own."
    different = [
        finding(where="a", advice="Use AdamW."),
        finding(where="b", advice="Set eps."),
        finding(where="c", advice="Use AdamW."),
    ]
    assert advice(different) == "`a` and `c`: Use AdamW. `b`: Set eps."
    assert advice([finding(where=name) for name in "abc"]) == "Lower the weight decay."


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
    assert merged(texts) == expected


def test_what_to_do_next_names_each_kind_once_and_the_worst_first():
    found = [
        *(finding(where=f"{n}") for n in range(9)),
        finding("dead-layer", "x", Severity.ERROR, advice="Revive it."),
    ]
    assert next_steps(found) == [
        "Layer `x` is dead. Revive it.",
        "The variances into 9 normalizers collapsed. Lower the weight decay.",
    ]
    assert next_steps([finding(severity=Severity.INFO)]) == []
    many = [finding(f"code-{n}", str(n)) for n in range(7)]
    assert next_steps(many)[-1] == "3 more kinds of findings, above."


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


def test_jacobians_at_one_sample_of_many_are_not_called_those_of_the_batch():
    one = bracket(0.5, 0.5, scope=Scope.POINT)
    single, triple = (bracket(0.5, 0.5, scope=Scope.POINT, per_sample=(one,) * count) for count in (1, 3))
    for seen, shape, note in (
        (single, (1, 64), "at the 1 sample tried"),
        (single, (32, 64), "at the batch"),
        (single, None, "at the batch"),
        (triple, (1, 64), "at the 3 samples tried"),
        (one, (1, 64), "at the batch"),
    ):
        assert of(audit_document(audit(observed=seen, input_shape=shape)), Figures)[0].items[0].note == note
    told = headline(audit(observed=single, input_shape=(1, 64)))[2]
    assert told.startswith("At the 1 sample tried (POINT) a small change")


def test_one_step_is_no_list():
    page = to_html(audit_document(audit()))
    assert "<ol>" not in page
    assert "What to do next" in page
    two = to_html(audit_document(audit(findings=(finding(), finding("dead-layer", "x")))))
    assert two.count("<ol>") == 1
    assert two.count("<li>") >= 2


def test_what_is_broken_comes_before_what_would_show_more():
    few = "statistics come from the batch alone (4 samples): pass loader= for more"
    broken = audit(findings=(finding("non-finite-weights", "0.weight", Severity.ERROR, advice="Mend."),), notes=(few,))
    assert len(to_do(broken)) == 1


def test_a_healthy_audit_says_what_would_show_more():
    assert to_do(audit(findings=())) == [
        "There are no errors or warnings. `ns.watch` tells when training changes that."
    ]
    few = "statistics come from the batch alone (4 samples): pass loader= for more"
    assert "4 samples alone" in to_do(audit(findings=(), samples=4, notes=(few,)))[0]
    cut = audit(findings=(), notes=("the search from below was cut short after 0 of 600 steps by max_seconds",))
    assert to_do(cut) == ["Raise `max_seconds`: the audit was cut short, so its bounds hold but could be tighter."]
    (notice,) = of(audit_document(cut), Notice)
    assert notice.heading == "This audit was cut short by max_seconds"
    (steps,) = of(audit_document(cut), Steps)
    assert steps.title == "What to do next"


def test_the_tally_counts_by_severity():
    found = [finding(), finding(), finding(severity=Severity.ERROR), finding(severity=Severity.INFO)]
    assert tally(found) == "1 error, 2 warnings, 1 note"
    assert tally([]) == "none"
    notes = [finding(code, severity=Severity.INFO) for code in "aaaabb"]
    assert tally(notes) == "6 notes of 2 kinds"
    assert tally(notes[:3]) == "3 notes of 1 kind"
    assert tally(notes[3:5]) == "2 notes"
    assert tally([finding(), *notes]) == "1 warning, 6 notes of 2 kinds"


def test_the_page_says_what_the_audit_cost():
    cost = Cost(
        passes={"capture": 20, "data": 8},
        backwards={"signal": 8},
        norms={"norms": 53},
        products={"Jacobians": 31},
        seconds={"capture": 1.5, "data": 0.25},
    )
    (table,) = (t for t in of(audit_document(audit(cost=cost)), Table) if t.title == "What this audit cost")
    assert [column.title for column in table.columns] == ["part", "forward", "backward", "norms", "products", "time"]
    assert table.rows == (
        ("capture", 20, None, None, None, 1.5),
        ("data", 8, None, None, None, 0.25),
        ("signal", None, 8, None, None, None),
        ("norms", None, None, 53, None, None),
        ("Jacobians", None, None, None, 31, None),
        ("together", 28, 8, 53, 31, 1.75),
    )
    read = Cost.from_json(cost.to_json())
    (table,) = (t for t in of(audit_document(audit(cost=read)), Table) if t.title == "What this audit cost")
    assert [column.title for column in table.columns] == ["part", "forward", "backward", "norms", "products"]
    for nothing in (None, Cost()):
        assert "What this audit cost" not in {t.title for t in of(audit_document(audit(cost=nothing)), Table)}


def test_the_caption_and_the_glossary_of_the_folded_gain_agree():
    document = audit_document(audit())
    told = dict(of(document, Glossary)[0].items)["folded gain"]
    helps = {column.help for table in of(document, Table) for column in table.columns if column.title == "folded"}
    (help_,) = helps
    for text in (told, help_):
        assert "normalizer and the linear map before it as one map, with the variance seen in the data" in text
        assert "an estimate from below" in text


def test_eval_mode_batch_norm_is_not_said_to_expand_by_the_variance_of_the_data():
    document = audit_document(audit())
    chart = next(chart for chart in of(document, Chart) if chart.term == "normalized variance")
    told = dict(of(document, Glossary)[0].items)["normalized variance"]
    assert "BatchNorm in eval mode divides by its stored variances" in chart.caption
    assert "BatchNorm in eval mode divides by the variances it has stored" in told


def test_a_formula_that_is_no_bound_is_drawn_apart_and_bounds_that_agree_are_one():
    chart = of(audit_document(audit()), Chart)[1]
    assert chart.labels == ("product as papers print it", "layer after layer", "best bound", "seen at the data")
    spans, marks = chart.series
    assert (spans.values[0], spans.until[0]) == (None, None)
    assert marks.values == (7.5, None, None, None)
    assert spans.until[1:] == (4.0, 2.25, 0.8)
    table = next(table for table in of(audit_document(audit()), Table) if table.title.startswith("Bounds by method"))
    assert column(table, "methods") == ["printed", "product", "folded, best", "observed"]


def test_the_charts_show_the_rows():
    growth, _, gain, variance = of(audit_document(audit()), Chart)
    assert [series.values for series in growth.series] == [(0.1, 0.5, 0.8), (0.25, 1.1, 2.25)]
    assert gain.labels == ("net.0", "net.1", "net.3")
    assert [series.values for series in gain.series] == [
        (0.2, None, 0.5),
        (None, 2.5, None),
        (None, 0.6, None),
        (None, 0.4, None),
    ]
    assert gain.series[0].until == (0.25, None, 0.5)
    assert variance.labels == ("net.1",)
    assert [series.values for series in variance.series] == [(-1.0,), (-0.2,), (-5.0,)]
    assert variance.rules == (("variance 1", 0.0),)


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
    assert [item.value for item in figures.items] == ["6.31 times", "178 times", "1 warning", 8448]
    assert [item.term for item in figures.items] == ["Jacobian norm", "Lipschitz constant", "", ""]


@pytest.mark.parametrize(
    ("exponent", "value"),
    [(0.8, "6.31 times"), (2.9, "794 times"), (3.86, "7,240 times"), (5.999, "998,000 times"), (6.5, "10^6.50 times")],
)
def test_a_headline_is_written_in_plain_digits_where_these_are_few(exponent, value):
    seen = bracket(exponent, exponent, scope=Scope.POINT)
    assert of(audit_document(audit(observed=seen)), Figures)[0].items[0].value == value


def test_every_term_of_the_page_leads_to_the_glossary():
    for subject in ALL:
        document = audit_document(subject)
        blocks = [block for block in document.blocks if isinstance(block, Text | Chart)]
        terms = {block.term for block in blocks} | {i.term for f in of(document, Figures) for i in f.items}
        explained = {term for glossary in of(document, Glossary) for term, _ in glossary.items}
        assert terms - {""} <= explained
        page = to_html(document)
        assert page.count('class="term"') == page.count('class="term"><a href="#word-')


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
