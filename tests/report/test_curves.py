"""Curves: thinned, as a line of text, as a table, as a picture."""

import itertools
import math
import random
import xml.etree.ElementTree as tree

import pytest

from normscope.report.curves import as_table, places, points_each, sparkline, thinned
from normscope.report.document import Curve, Curves, Document, Mark
from normscope.report.html import to_fragment, to_html
from normscope.report.svg_curves import curves_svg
from normscope.report.terminal import render


def many(count, points=20):
    curves = tuple(
        Curve(name=f"layer{i}", points=tuple((x, i + x / 10) for x in range(points)), depth=i / max(count - 1, 1))
        for i in range(count)
    )
    return Curves(title="Norms", curves=curves, axis="log10 of the norm")


def drawn(curves):
    return tree.fromstring(curves_svg(curves))


def with_class(root, kind):
    return [element for element in root.iter() if kind in element.get("class", "").split()]


def path_points(path):
    """Every point of a path of one piece that is written as its start and the way from each to the next."""
    start, way = path.removeprefix("M").split("l")
    x, y = map(float, start.split())
    steps, number = [], ""
    for character in way.strip() + " ":
        if character in " -" or (character == "." and "." in number):
            steps += [float(number)] if number else []
            number = ""
        number += character.strip()
    points = [(x, y)]
    for dx, dy in zip(steps[::2], steps[1::2]):
        x, y = x + dx, y + dy
        points.append((x, y))
    return points


@pytest.mark.parametrize("seed", range(20))
def test_thinning_keeps_the_ends_the_peaks_and_the_order(seed):
    draw = random.Random(seed)
    points = [(x, draw.choice([draw.gauss(0, 1), 100 * draw.random()])) for x in range(draw.randint(300, 3000))]
    if seed % 3 == 0:
        points[draw.randrange(len(points))] = (points[0][0], math.inf)
        points.sort()
    found = thinned(points, 200)
    assert len(found) <= 200
    assert (found[0], found[-1]) == (points[0], points[-1])
    assert set(found) <= set(points)
    assert list(found) == sorted(found, key=lambda point: point[0])
    for extreme in (min, max):
        assert extreme(value for _, value in found) == extreme(value for _, value in points)


def test_thinning_keeps_a_gap():
    points = [(x, math.nan if 400 <= x < 420 else 1.0) for x in range(1000)]
    found = thinned(points, 60)
    assert len(found) <= 60
    assert any(math.isnan(value) and 400 <= x < 420 for x, value in found)
    assert thinned([(x, math.nan) for x in range(1000)], 60)


def test_few_points_stay_as_they_are_and_many_curves_have_fewer_each():
    points = [(x, 0.0) for x in range(200)]
    assert thinned(points) == tuple(points)
    assert points_each(1) == 200
    assert points_each(50) == 100
    assert points_each(10_000) == 60


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([1.0], "▄"),
        ([2.0, 2.0], "▄▄"),
        ([0.0, math.inf, -math.inf, math.nan, 7.0], "▁█▁ █"),
        ([math.nan], " "),
    ],
)
def test_a_sparkline_is_as_high_as_its_values(values, line):
    assert sparkline(values) == line


def test_a_long_sparkline_ends_with_the_last_value():
    line = sparkline([0.0] * 999 + [1.0], 10)
    assert line == "▁" * 9 + "█"


def test_a_picture_has_a_curve_for_every_layer_from_the_first_colour_to_the_last():
    root = drawn(many(30))
    lines = with_class(root, "line")
    assert len(lines) == len(with_class(root, "curve")) == 30
    assert (lines[0].get("class"), lines[-1].get("class")) == ("line d0", "line d9")
    assert "thin" in root.get("class").split()


def test_a_curve_goes_through_its_points():
    values = (0.0, 1.0, -3.0, 2.5, 2.4, 10.0)
    curve = Curve(name="a", points=tuple((10.0 * x, value) for x, value in enumerate(values)))
    (line,) = with_class(drawn(Curves(curves=(curve,))), "line")
    found = path_points(line.get("d"))
    assert len(found) == len(values)
    left, right = found[0][0], found[-1][0]
    low, high = found[2][1], found[5][1]
    for index, (x, y) in enumerate(found):
        assert x == pytest.approx(left + (right - left) * index / 5, abs=0.11)
        assert y == pytest.approx(low + (high - low) * (values[index] + 3.0) / 13.0, abs=0.11)


def test_a_gap_parts_a_curve_and_an_infinite_value_is_an_arrow():
    curve = Curve(name="a", points=((0, 1.0), (1, 2.0), (2, math.nan), (3, 2.0), (4, math.inf), (5, 1.0)))
    root = drawn(Curves(curves=(curve,)))
    (line,) = with_class(root, "line")
    assert line.get("d").count("M") == 3
    assert len(with_class(root, "infinite")) == 1
    titles = [element.text for element in root.iter("title")]
    assert titles[2] == "step 2\na: nan"
    assert titles[4] == "step 4\na: inf"


def test_ticks_of_whole_steps_are_whole_and_have_their_thousands_apart():
    short = Curves(curves=(Curve(name="a", points=((0, 1.0), (2, 2.0))),))
    ticks = [e.text for e in with_class(drawn(short), "tick") if e.get("text-anchor") == "middle"]
    assert ticks == ["0", "1", "2"]
    long = Curves(curves=(Curve(name="a", points=((0, 1.0), (1_200_000, 2.0))),))
    ticks = [e.text for e in with_class(drawn(long), "tick") if e.get("text-anchor") == "middle"]
    assert ticks[:2] == ["0", "200,000"]


def test_a_single_step_is_drawn():
    root = drawn(Curves(curves=(Curve(name="a", points=((7, 1.0),)),)))
    assert len(with_class(root, "place")) == 1
    assert len(with_class(root, "mark")) == 1


def test_nothing_measured_draws_nothing():
    for curves in ((), (Curve(name="a", points=()),), (Curve(name="a", points=((0, math.nan),)),)):
        picture = Curves(title="Norms", curves=curves)
        assert curves_svg(picture) == ""
        assert "Nothing was measured" in to_html(Document(blocks=(picture,)))
    assert "Norms: nothing was measured" in render(Document(blocks=(Curves(title="Norms", curves=()),)))


def test_marks_stand_at_their_step_the_most_serious_of_a_heap_on_top():
    marks = (Mark(x=10, name="late"), Mark(x=10, name="worse", level="error"), Mark(x=15, name="b", level="warning"))
    curves = Curves(curves=(Curve(name="a", points=((0, 1.0), (20, 2.0))),), marks=marks)
    kinds = [element.get("class") for element in with_class(drawn(curves), "happened")]
    assert kinds == ["happened error", "happened warning"]
    texts = [place.text for place in places(curves)]
    assert texts[1] == "step 10\nlate\nworse"


def test_the_text_of_a_place_names_the_largest_and_the_smallest_of_many():
    text = next(iter(places(many(20)))).text.split("\n")
    assert text[0] == "step 0"
    assert text[1] == "layer19: 19"
    assert text[5] == "… 12 between"
    assert text[-1] == "layer0: 0"


def test_places_cover_the_axis_and_are_never_too_many():
    curves = Curves(curves=(Curve(name="a", points=tuple((x, float(x)) for x in range(200))),))
    found = list(places(curves))
    assert len(found) == 60
    assert (found[0].start, found[-1].stop) == (0, 199)
    assert all(one.stop == other.start for one, other in itertools.pairwise(found))


def test_a_span_makes_pictures_comparable():
    low = Curves(curves=(Curve(name="a", points=((0, 0.0), (1, 1.0))),), span=(-5.0, 5.0))
    high = Curves(curves=(Curve(name="a", points=((0, 2.0), (1, 5.0))),), span=(-5.0, 5.0))
    ticks = [[e.text for e in with_class(drawn(c), "tick") if e.get("text-anchor") == "end"] for c in (low, high)]
    assert ticks[0] == ticks[1]


def test_many_curves_have_one_ramp_for_a_legend_and_their_names_fold_away():
    few, lots = to_html(Document(blocks=(many(12),))), to_html(Document(blocks=(many(13),)))
    assert "<details>" not in few
    assert few.count('<li class="names">') == 12
    assert "<details><summary>13 curves by name</summary>" in lots
    assert lots.count('<li class="names">') == 13


def test_a_fragment_shows_curves_too():
    assert to_fragment(Document(blocks=(many(2),))).count('class="curve"') == 2 * 2  # for wide and for narrow screens


def test_a_terminal_shows_ends_range_and_course():
    text = render(Document(blocks=(many(2),)))
    assert "Norms (log10 of the norm, step 0 to 19)" in text
    (line,) = (line for line in text.splitlines() if "layer1" in line)
    assert line.split() == ["layer1", "1", "2.9", "1", "2.9", "▁▁▂▂▂▃▃▄▄▄▅▅▅▆▆▇▇▇██"]


def test_a_terminal_shows_the_curves_that_moved_most():
    still = [Curve(name=f"still{i}", points=((0, 1.0), (9, 1.0))) for i in range(30)]
    broken = Curve(name="broken", points=((0, 1.0), (9, math.nan)))
    moving = Curve(name="moving", points=((0, 1.0), (9, 5.0)))
    table = as_table(Curves(title="t", curves=(*still, moving, broken)))
    assert len(table.rows) == 24
    assert [row[0] for row in table.rows[-2:]] == ["moving", "broken"]
    assert table.rows[-1][1:5] == (1.0, table.rows[-1][2], 1.0, 1.0)
    assert table.caption == "Those that moved most; 8 more are in the HTML report."


@pytest.mark.parametrize(
    ("curve", "complaint"),
    [
        (Curve(name="a", points=((1, 0.0), (0, 0.0))), "do not ascend"),
        (Curve(name="a", points=(), depth=1.5), "a depth of 1.5"),
    ],
)
def test_a_curve_that_cannot_be_drawn_is_refused(curve, complaint):
    with pytest.raises(ValueError, match=complaint):
        Curves(curves=(curve,))
