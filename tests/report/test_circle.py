"""Paths around a circle: where they are drawn, at any size, and as text."""

import math
from xml.etree import ElementTree

import pytest

from normscope.report.curves import NARROW, WIDTH, circle_svg
from normscope.report.document import Circle, Curve, Document
from normscope.report.html import to_fragment
from normscope.report.terminal import render


def around(high: float, grown: float = 0.0, count: int = 30) -> Circle:
    """Return a path that stays on the circle and one that leaves it, up to an angle."""
    turns = [high * step / count for step in range(count + 1)]
    return Circle(
        title="Turned",
        paths=(
            Curve(name="flow", points=tuple((angle, 1.0) for angle in turns)),
            Curve(name="descent", points=tuple((angle, 1.0 + grown * angle / high) for angle in turns)),
        ),
        caption="How to read it.",
    )


def ends(svg: str) -> list[tuple[float, float]]:
    return [(float(dot.get("cx")), float(dot.get("cy"))) for dot in ElementTree.fromstring(svg).iter("circle")]


@pytest.mark.parametrize("high", [1e-6, 0.02, 0.3, 1.5, math.pi, 6.2, 20.0])
@pytest.mark.parametrize("narrow", [False, True])
def test_everything_is_inside_the_picture(high: float, narrow: bool) -> None:
    svg = circle_svg(around(high, grown=0.5), narrow=narrow)
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width")), float(root.get("height"))
    assert width == (NARROW if narrow else WIDTH)
    assert 100 < height < 560
    assert len(ends(svg)) == 2
    for x, y in ends(svg):
        assert 0 <= x <= width
        assert 0 <= y <= height


def test_a_page_and_a_terminal_name_the_paths() -> None:
    circle = around(0.3, grown=0.1)
    page = to_fragment(Document(blocks=(circle,)))
    assert page.count("<svg") == 4  # wide and narrow, and a swatch for each path
    text = render(Document(blocks=(circle,)))
    assert "descent" in text
    assert "1.1" in text


def test_nothing_draws_nothing_and_what_is_not_finite_is_refused() -> None:
    assert circle_svg(Circle(paths=())) == ""
    assert "Nothing was measured" in to_fragment(Document(blocks=(Circle(paths=()),)))
    with pytest.raises(ValueError, match="no finite number"):
        Circle(paths=(Curve(name="a", points=((0.0, math.nan),)),))


def test_names_stay_text() -> None:
    hostile = "<script>alert(1)</script>"
    circle = Circle(title=hostile, along=hostile, paths=(Curve(name=hostile, points=((0.0, 1.0), (1.0, 1.0))),))
    assert "<script" not in to_fragment(Document(blocks=(circle,)))
