"""Curves: thinned, as a line of text, as a table, as a picture."""

import math
import random
import xml.etree.ElementTree as tree

import pytest

from normscope.report.curves import curves_svg, places, thinned
from normscope.report.document import Curve, Curves, Document, Mark
from normscope.report.html import to_html
from normscope.report.terminal import render
from normscope.report.words import sparkline


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


@pytest.mark.parametrize("seed", range(6))
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


def test_a_terminal_shows_ends_range_and_course():
    text = render(Document(blocks=(many(2),)))
    assert "Norms (log10 of the norm, step 0 to 19)" in text
    (line,) = (line for line in text.splitlines() if "layer1" in line)
    assert line.split() == ["layer1", "1", "2.9", "1", "2.9", "▁▁▂▂▂▃▃▄▄▄▅▅▅▆▆▇▇▇██"]


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
