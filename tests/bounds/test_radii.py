"""`Radii`: accuracies by radius, JSON and back, and how it shows itself."""

import json
import math

import pytest

from normscope.bounds.pages.radii import compared_radii
from normscope.bounds.radius.radii import Radii
from normscope.core.bracket import Evidence
from normscope.core.errors import InputError, SoundnessError


def result(**changes) -> Radii:
    columns = {
        "label": (0, 1, 2), "predicted": (0, 1, 1), "margin": (1.0, 2.0, -1.0), "radius": (0.1, 0.25, 0.0),
        "attacked": (0.2, math.inf, 0.0), "method": ("ball", "global", "none"), "evidence": (Evidence.NUMERICAL,) * 3,
    }  # fmt: skip
    return Radii(**({"name": "net", "classes": 3, "input_shape": (2,), "notes": ("a note",)} | columns | changes))


def test_accuracies_by_radius():
    radii = result()
    assert radii.clean_accuracy == radii.certified_accuracy(0) == pytest.approx(2 / 3)
    assert [radii.certified_accuracy(r) for r in (0.1, 0.2, 0.25, 0.3)] == pytest.approx([2 / 3, 1 / 3, 1 / 3, 0])
    assert [radii.attacked_accuracy(r) for r in (0.1, 0.2, 9.0)] == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    with pytest.raises(InputError, match="number >= 0"):
        radii.certified_accuracy(-1.0)
    assert repr(radii) == "<Radii of net: 3 samples, median certified radius 0.1>"


def test_networks_are_compared_at_radii_that_are_certified_and_at_radii_that_attacks_find():
    small = result(radius=(0.011, 0.025, 0.0), attacked=(0.9, 0.7, 0.0))
    table = compared_radii({"a": small, "b": result(radius=(0.012, 0.0, 0.0), attacked=(0.8, math.inf, 0.0))})
    assert [column.title for column in table.columns][2:] == [
        "certified 0.01", "certified 0.5", "attacked 0.01", "attacked 0.5",
    ]  # fmt: skip
    assert table.rows[0][2:] == pytest.approx((2 / 3, 0, 2 / 3, 2 / 3))
    for scale in (1.0, 1.3, 1.7, 2.1, 2.4, 3.3, 4.2, 4.9, 6.0, 8.4, 9.9):  # round numbers above 0, whatever the scale
        one = result(radius=(0.01 * scale, 0.01 * scale, 0.0), attacked=(0.2 * scale, 0.2 * scale, 0.0))
        at = [float(column.title.split()[1]) for column in compared_radii({"a": one}).columns[2:4]]
        assert 0.005 * scale <= at[0] <= 0.01 * scale
        assert 0.1 * scale <= at[1] <= 0.2 * scale
    nothing = result(radius=(0.0,) * 3, attacked=(math.inf, math.inf, 0.0))
    assert [column.title for column in compared_radii({"a": nothing}).columns][2:] == ["certified 1", "attacked 1"]


def test_a_radius_beyond_the_attacked_one_cannot_be_made():
    with pytest.raises(SoundnessError, match="sample 0"):
        result(radius=(0.2, 0.25, 0.0))
    with pytest.raises(ValueError, match="one entry"):
        result(label=(0, 1))


def test_radii_come_back_from_json(tmp_path):
    radii = result()
    radii.to_json(tmp_path / "r.json")
    again = Radii.from_json(tmp_path / "r.json")
    assert again == radii
    assert again.to_json() == json.loads((tmp_path / "r.json").read_text())


def test_files_from_before_labels_were_told_apart_are_read():
    data = result().to_json()
    del data["labelled"]
    assert Radii.from_json(data).labelled
