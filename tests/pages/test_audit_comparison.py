"""Audits side by side."""

import dataclasses
import math

import pytest

from normscope.core.errors import InputError
from normscope.pages.audit_comparison import compare_document, compared_steps, compared_verdict, difference, matched
from normscope.report.document import Chart, Notice, Steps, Table, Text
from normscope.report.html import to_html
from normscope.report.terminal import render

from ..diagnosis.audits import LAYERS, audit, bracket, deep, finding, ladder, normalizer, weight


def of(document, kind):
    return [block for block in document.blocks if isinstance(block, kind)]


def table(document, title):
    (found,) = (block for block in of(document, Table) if block.title.startswith(title))
    return found


def growth(document):
    return next(chart for chart in of(document, Chart) if chart.title.startswith("How much any change"))


def columns(found):
    return [column.title for column in found.columns]


FIRST = audit(findings=(finding(where="a"), finding(where="both")))
SECOND = audit(
    name="Other",
    parameters=9000,
    layers=(*LAYERS[:1], normalizer("net.2", log10_cumulative=0.5), *LAYERS[2:]),
    findings=(finding(where="both"), finding(where="b")),
    ladder={**ladder(), "folded": bracket(0.9, 3.25), "liplt": bracket(0.9, 2.0)},
)
PAIR = {"first": FIRST, "second": SECOND}


def test_one_audit_is_no_comparison():
    with pytest.raises(InputError, match="1 audit given"):
        compare_document({"a": audit()})


def test_headline_figures_stand_side_by_side():
    found = table(compare_document(PAIR), "Side by side")
    assert columns(found) == ["audit", "growth at the data", "for any input", "findings"]
    assert found.rows == (("first", 0.8, 2.25, "2 warnings"), ("second", 0.8, 2.25, "2 warnings"))


def test_a_bound_of_no_use_is_no_figure():
    wild = audit(ladder=ladder(best=(0.9, 60.0)))
    found = table(compare_document({"a": audit(), "b": wild}), "Side by side")
    assert [row[2] for row in found.rows] == [2.25, "none"]


def test_the_comparison_is_one_page_with_a_verdict():
    calm = audit(findings=(), ladder=ladder(observed=(2.0, 2.0)))
    document = compare_document({"a": audit(), "b": calm})
    heads = [block.heading for block in of(document, Text) if block.heading]
    assert heads == ["Verdict", "How much a change can grow", "Layers", "About these audits", "Words"]
    assert document.blocks[0].body == (
        "A small change of the data grows most in b (100 times) and least in a (6.31 times); problems were found in a."
    )
    assert compared_verdict({"a": calm, "b": calm}) == (
        "A small change of the data grows alike in all of them (100 times); no problems found in any of them."
    )
    (steps,) = of(document, Steps)
    assert steps.items == ("a: The variance into `net.1` collapsed. Lower the weight decay.",)


@pytest.mark.parametrize("brief", [False, True])
def test_an_audit_that_was_cut_short_is_named(brief):
    cut = audit(notes=("the search from below was cut short after 0 of 600 steps by max_seconds",), findings=())
    document = compare_document({"whole": audit(findings=()), "hurried": cut}, brief=brief)
    (notice,) = of(document, Notice)
    assert notice.heading == "Cut short by max_seconds: hurried"
    assert "may come from this alone" in notice.lines[0][1]
    assert notice.more == (("hurried", "the search from below was cut short after 0 of 600 steps by max_seconds."),)
    assert not of(compare_document({"a": audit(findings=()), "b": audit(findings=())}, brief=brief), Notice)


def test_accuracies_can_stand_among_them():
    found = table(compare_document(PAIR, accuracy={"first": 0.97}), "Side by side")
    assert columns(found)[1] == "accuracy"
    assert [row[1] for row in found.rows] == [0.97, None]


def test_every_rung_has_its_difference():
    found = table(compare_document(PAIR), "Upper sides")
    assert columns(found) == ["bound", "first", "second", "Δ second", "methods"]
    assert {row[-1]: row[1:-1] for row in found.rows} == {
        "printed": (7.5, 7.5, 0.0),
        "product": (4.0, 4.0, 0.0),
        "folded": (2.25, 3.25, 1.0),
        "best": (2.25, 2.25, 0.0),
        "observed": (0.8, 0.8, 0.0),
        "liplt": (None, 2.0, None),
    }


def test_methods_that_agree_in_every_audit_are_one():
    found = table(compare_document({"a": audit(), "b": audit()}), "Upper sides")
    assert [(row[0], row[-1]) for row in found.rows] == [
        ("product as papers print it", "printed"),
        ("layer after layer", "product"),
        ("best bound", "folded, best"),
        ("seen at the data", "observed"),
    ]


@pytest.mark.parametrize(
    ("value", "base", "expected"),
    [
        (2.0, 0.5, 1.5),
        (None, 0.5, None),
        (0.5, None, None),
        (math.inf, 1.0, math.inf),
        (1.0, math.inf, -math.inf),
        (math.inf, math.inf, None),
        (-math.inf, -math.inf, None),
    ],
)
def test_differences_of_infinities_are_never_nan(value, base, expected):
    assert difference(value, base) == expected


def test_rows_are_matched_by_path_and_stay_in_order():
    rows = matched(PAIR)
    assert [path for path, *_ in rows] == ["net.0", "net.2", "net.1", "net.3"]
    assert [sorted(found) for found in rows.values()] == [
        ["first", "second"],
        ["second"],
        ["first"],
        ["first", "second"],
    ]


def test_a_path_that_runs_twice_has_two_rows():
    twice = audit(layers=(weight("shared"), weight("shared", norm=(1.0, 1.0))))
    rows = matched({"a": twice, "b": twice})
    assert len(rows) == 2
    assert all(len(found) == 2 for found in rows.values())


def test_a_path_with_another_role_is_another_layer():
    rows = matched({"a": audit(layers=(weight("1"),)), "b": audit(layers=(normalizer("1"),))})
    assert len(rows) == 2


def test_layers_in_one_audit_only_are_shown_as_such():
    found = table(compare_document(PAIR), "Gain of each layer")
    assert columns(found) == ["layer", "kind", "first", "second", "Δ second", "only in"]
    assert found.rows[1] == ("net.2", "BatchNorm1d", None, 2.5, None, "second")
    assert found.rows[0][-1] is None
    alike = table(compare_document({"a": audit(), "b": audit()}), "Gain of each layer")
    assert "only in" not in columns(alike)


def test_findings_of_one_kind_are_one_card_that_says_where_they_are():
    (notice,) = of(compare_document(PAIR), Notice)
    assert notice.heading == "The variances into 3 normalizers collapsed"
    assert notice.where == "in every audit"
    assert notice.more[:2] == (("first", "`a` and `both`"), ("second", "`both` and `b`"))
    assert notice.more[2:] == (
        ("why it matters", "Below eps the normalizer no longer normalizes."),
        ("advice", "Lower the weight decay."),
    )


def test_findings_of_some_audits_name_them():
    calm = audit(findings=())
    (notice,) = of(compare_document({"a": calm, "b": audit(), "c": audit(), "d": calm}), Notice)
    assert (notice.heading, notice.where) == ("The variance into `net.1` collapsed", "only in b and c")


def test_no_findings_at_all_are_said():
    calm = audit(findings=())
    assert "Nothing was found in any of them." in render(compare_document({"a": calm, "b": calm}))


def test_networks_with_the_same_layers_are_overlaid_by_path():
    chart = growth(compare_document({"a": audit(), "b": audit()}))
    assert chart.labels == ("net.0", "net.1", "net.3")
    assert [series.name for series in chart.series] == ["a", "b"]


def test_networks_with_other_normalizers_are_overlaid_by_weight_layer():
    plain = audit(layers=(weight("0", log10_cumulative=0.3), weight("2", log10_cumulative=0.9)))
    chart = growth(compare_document({"plain": plain, "normed": audit()}))
    assert chart.labels == ("weight layer 1", "weight layer 2")
    assert [series.values for series in chart.series] == [(0.3, 0.9), (0.25, 2.25)]


def test_networks_with_little_in_common_are_overlaid_by_position():
    other = audit(layers=(weight("x", log10_cumulative=0.3),))
    chart = growth(compare_document({"other": other, "net": audit()}))
    assert chart.labels == ("layer 1", "layer 2", "layer 3")
    assert chart.series[0].values == (0.3, None, None)


def test_a_layer_more_does_not_spoil_the_paths():
    longer = audit(layers=(*LAYERS, weight("net.5", log10_cumulative=3.0)))
    chart = growth(compare_document({"a": audit(), "b": longer}))
    assert chart.labels == ("net.0", "net.1", "net.3", "net.5")


def test_audits_in_different_modes_are_warned_about():
    trained = dataclasses.replace(audit(), mode="train")
    assert "different modes" in render(compare_document({"a": audit(), "b": trained}))


@pytest.mark.parametrize("brief", [False, True])
def test_four_audits_render_in_every_form(brief):
    weights = audit(mode=None, ladder={}, layers=(weight("w"),), findings=(), samples=0)
    document = compare_document({"a": audit(), "b": deep(30), "c": weights, "d": audit(layers=())}, brief=brief)
    assert to_html(document)
    assert all(len(line) <= 100 for line in render(document, width=100).splitlines())
    assert bool(of(document, Chart)) is not brief


def test_a_comparison_says_what_to_do_where_there_is_something_to_do():
    few = "statistics come from the batch alone (4 samples): pass loader= for more"
    loader = "Pass a loader (`loader=`, or `--data`): the statistics come from 4 samples alone."
    fine, small = audit(findings=()), audit(findings=(), samples=4, notes=(few,))
    assert compared_steps({"a": fine, "b": fine}) == ["None of them has an error or a warning."]
    assert compared_steps({"a": fine, "b": small}) == [f"b: {loader}"]
    assert compared_steps({"a": small, "b": small}) == [f"All: {loader}"]
    cut = audit(findings=(), notes=("the search from below was cut short after 0 of 600 steps by max_seconds",))
    (step,) = compared_steps({"a": cut, "b": fine})
    assert step.startswith("a: Raise `max_seconds`")
    sick = audit(findings=(finding(),))
    assert compared_steps({"a": sick, "b": fine})[0].startswith("a: The variance into `net.1` collapsed.")
    for audits in ({"a": fine, "b": small}, {"a": sick, "b": cut}):
        blocks = compare_document(audits).blocks
        assert "Nothing needs to be done" not in str(blocks)


def test_a_comparison_names_what_was_not_measured_in_which():
    part = audit(findings=(), skipped=(("Jacobians", "it branches"),))
    found = [b for b in compare_document({"a": audit(findings=()), "b": part}).blocks if isinstance(b, Notice)]
    assert [notice.heading for notice in found] == ["Not measured in b: Jacobians"]


def test_bounds_of_no_use_are_not_drawn_in_a_comparison():
    huge = audit(
        ladder=ladder(best=(0.9, 194.0)),
        layers=(
            weight("a", log10_cumulative=1.0, log10_observed=0.5),
            weight("b", log10_cumulative=194.0, log10_observed=0.8),
        ),
    )
    endless = audit(ladder={n: b for n, b in ladder(best=(0.9, math.inf)).items() if n in ("best", "observed")})
    charts = [b for b in compare_document({"huge": huge, "endless": endless}).blocks if isinstance(b, Chart)]
    values = [value for chart in charts for series in chart.series for value in series.values if value is not None]
    assert max(values) < 10
    (rungs,) = (chart for chart in charts if chart.sideways)
    assert "not drawn" in rungs.caption
    fair = compare_document({"a": audit(), "b": audit()}).blocks
    (rungs,) = (chart for chart in fair if isinstance(chart, Chart) and chart.sideways)
    assert rungs.caption == ""
