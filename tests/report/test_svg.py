"""Charts as SVG: what is drawn, and where."""

import math
import xml.etree.ElementTree as tree

import pytest

from normscope.report.document import Chart, Series
from normscope.report.svg import chart_svg, hover_text, scale, ticks

from .documents import HOSTILE, document


def chart(values, style="line", until=None, **more):
    labels = tuple(f"layer{index}" for index in range(len(values)))
    return Chart(labels=labels, series=(Series(name="s", style=style, values=tuple(values), until=until),), **more)


def drawn(of, kind):
    return [node for node in tree.fromstring(chart_svg(of)).iter() if kind in node.get("class", "").split()]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.3, 4.2, (0.0, 1.0, 2.0, 3.0, 4.0)),
        (0.0, 0.05, (0.0, 0.01, 0.02, 0.03, 0.04, 0.05)),
        (-41.0, 3.0, (-40.0, -30.0, -20.0, -10.0, 0.0)),
    ],
)
def test_ticks_are_round_and_inside(low, high, expected):
    assert ticks(low, high, about=5) == pytest.approx(expected)


def test_the_scale_holds_values_and_rules_and_makes_room_for_infinities():
    found = scale(chart([1.0, None, math.inf, 3.0], rules=(("one", 0.0),)))
    assert found.low < 0.0
    assert found.high > 3.0
    assert (found.below, found.above) == (False, True)
    assert scale(chart([2.0])).low < 2.0 < scale(chart([2.0])).high
    assert scale(chart([None, None])) is None
    assert scale(chart([math.nan])) is None
    assert scale(chart([math.inf])).above


def test_what_labels_have_in_common_is_said_once():
    labels = tuple(f"encoder.stages.{n}.conv" for n in range(6))
    shown = Chart(labels=labels, series=(Series(name="s", style="line", values=(1.0,) * 6),))
    for narrow in (False, True):
        texts = [node.text for node in tree.fromstring(chart_svg(shown, narrow=narrow)).iter() if node.text]
        assert sum("encoder.stages." in text for text in texts if "\n" not in text) == 1
        assert "left out of the names: encoder.stages." in texts
        assert {"0.conv", "5.conv"} <= set(texts)
    assert hover_text(shown, 2).startswith("encoder.stages.2.conv\n")
    assert "left out" not in chart_svg(chart([1.0, 2.0, 3.0]))


def test_a_gap_breaks_the_line():
    (path,) = drawn(chart([1.0, 2.0, None, 3.0, math.inf, 4.0, 5.0]), "line")
    assert path.get("d").count("M") == 3
    assert path.get("d").count("L") == 2


def test_infinite_values_stand_at_the_edge_with_a_mark_of_their_own():
    figure = chart([1.0, math.inf, -math.inf], "marks")
    assert len(drawn(figure, "infinite")) == 2
    assert len(drawn(figure, "mark")) == 1
    assert len(drawn(figure, "lane")) == 2


def test_a_closed_bracket_is_seen_and_a_span_reaches_from_end_to_end():
    spans = drawn(chart([1.0, 0.0], "spans", until=(1.0, 2.0)), "span")
    heights = [float(span.get("height")) for span in spans]
    assert heights[0] >= 3.0
    assert heights[1] > 150.0


def test_everything_lies_inside_the_picture():
    for block in document("a-rather-long-name-of-a-module.").blocks:
        if not isinstance(block, Chart):
            continue
        picture = tree.fromstring(chart_svg(block))
        width, height = (float(side) for side in picture.get("viewBox").split()[2:])
        for node in picture.iter():
            assert all(0 <= float(node.get(name, "0")) <= width for name in ("x", "x1", "x2", "cx"))
            assert all(0 <= float(node.get(name, "0")) <= height for name in ("y", "cy"))


def test_every_place_says_its_figures():
    figure = Chart(
        labels=("a", "b"),
        series=(
            Series(name="norm", style="spans", values=(0.5, None), until=(math.inf, None)),
            Series(name="exact", style="marks", values=(0.25, None)),
        ),
    )
    assert hover_text(figure, 0) == "a\nnorm: 0.5 to inf\nexact: 0.25"
    assert hover_text(figure, 1) == "b\nnot measured"
    titles = [node.text for node in tree.fromstring(chart_svg(figure)).iter("title")]
    assert titles == [hover_text(figure, 0), hover_text(figure, 1)]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text(name):
    figure = Chart(
        title=name,
        axis=name,
        labels=(name, "b"),
        series=(Series(name=name, style="line", values=(1.0, 2.0)),),
        rules=((name, 1.5),),
    )
    picture = tree.fromstring(chart_svg(figure))
    assert {node.tag for node in picture.iter()} <= {"svg", "g", "title", "line", "path", "rect", "circle", "text"}
    assert not [key for node in picture.iter() for key in node.attrib if key.startswith("on") or "href" in key]


def test_nothing_measured_draws_nothing():
    assert chart_svg(chart([None, None])) == ""
    assert chart_svg(Chart(labels=(), series=())) == ""


def test_bars_of_several_kinds_have_the_whole_place_each_and_say_their_end_alone():
    def bars(*untils):
        starts = [tuple(None if end is None else 0.0 for end in until) for until in untils]
        kinds = (
            Series(name=f"kind {k}", style="spans", values=start, until=until)
            for k, (start, until) in enumerate(zip(starts, untils))
        )
        return Chart(labels=("a", "b"), series=tuple(kinds), sideways=True)

    one, several = bars((-0.5, 0.3)), bars((-0.5, None), (None, 0.3), (None, None))
    boxes = [[{side: span.get(side) for side in ("x", "y", "width", "height")} for span in drawn(chart, "span")]
             for chart in (one, several)]  # fmt: skip
    assert boxes[0] == boxes[1]
    assert [node.text for node in drawn(several, "figure")] == ["-0.50", "0.30"]
    assert hover_text(several, 0) == "a\nkind 0: -0.5"
