"""Audits side by side."""

import dataclasses
import math

import pytest

from normscope.choosing.comparison_page import compare_document, compared_verdict, difference, match_rows
from normscope.report.document import Chart, Notice, Steps, Table, Text
from normscope.report.html import to_html
from normscope.report.terminal import render

from ..diagnosis.audits import LAYERS, audit, bracket, deep, finding, ladder, normalizer, weight


def of(document, kind):
    return [block for block in document.blocks if isinstance(block, kind)]


def table(document, title):
    (found,) = (block for block in of(document, Table) if block.title.startswith(title))
    return found


def columns(found):
    return [column.title for column in found.columns]


FIRST = audit(findings=(finding(where="a"), finding(where="both")))
SECOND = audit(
    name="Other",
    parameters=9000,
    layers=(*LAYERS[:1], normalizer("net.2", log10_cumulative=0.5), *LAYERS[2:]),
    findings=(finding(where="both"), finding(where="b")),
    ladder={**ladder(), "folded": bracket(0.9, 3.25), "closed-form": bracket(0.9, 2.0)},
)
PAIR = {"first": FIRST, "second": SECOND}


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
    assert not of(document, Steps)


@pytest.mark.parametrize("brief", [False, True])
def test_an_audit_that_was_cut_short_is_named(brief):
    cut = audit(notes=("the search from below was cut short after 0 of 600 steps by max_seconds",), findings=())
    document = compare_document({"whole": audit(findings=()), "hurried": cut}, brief=brief)
    (notice,) = of(document, Notice)
    assert notice.heading == "Cut short by max_seconds: hurried"
    assert "may come from this alone" in notice.lines[0][1]
    assert notice.more == (("hurried", "the search from below was cut short after 0 of 600 steps by max_seconds."),)
    assert not of(compare_document({"a": audit(findings=()), "b": audit(findings=())}, brief=brief), Notice)


def test_every_rung_has_its_difference():
    found = table(compare_document(PAIR), "Upper sides")
    assert columns(found) == ["bound", "first", "second", "Δ second", "methods"]
    assert {row[-1]: row[1:-1] for row in found.rows} == {
        "printed": (7.5, 7.5, 0.0),
        "product": (4.0, 4.0, 0.0),
        "folded": (2.25, 3.25, 1.0),
        "best": (2.25, 2.25, 0.0),
        "observed": (0.8, 0.8, 0.0),
        "closed-form": (None, 2.0, None),
    }


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
    rows = match_rows(PAIR)
    assert [path for path, *_ in rows] == ["net.0", "net.2", "net.1", "net.3"]
    both = ["first", "second"]
    assert [sorted(found) for found in rows.values()] == [both, ["second"], ["first"], both]


def test_networks_that_share_most_layers_are_drawn_by_path_also_where_one_has_fewer():
    chart, *_ = of(compare_document({"whole": audit(), "part": audit(layers=LAYERS[:2])}), Chart)
    assert chart.labels == ("net.0", "net.1", "net.3")


def test_findings_of_one_kind_are_one_card_that_says_where_they_are():
    (notice,) = of(compare_document(PAIR), Notice)
    assert notice.heading == "The variances into 3 normalizers collapsed"
    assert notice.where == "in every audit"
    assert notice.more[:2] == (("first", "`a` and `both`"), ("second", "`both` and `b`"))
    assert notice.more[2:] == ()
    assert notice.lines[1:] == (
        ("advice", "Lower the weight decay."),
        ("why it matters", "Below eps the normalizer no longer normalizes."),
    )


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
