"""Files of version 1: they load, and are written again byte for byte."""

from pathlib import Path
from typing import Any

import pytest

import normscope_lab as lab

DATA = Path(__file__).parent / "data"
SAVED: dict[str, Any] = {"flow": lab.Flow, "prediction": lab.Prediction, "training_cost": lab.TrainingCost}
"""What writes and reads a file of its own, by the name of its file."""


@pytest.mark.parametrize("name", SAVED)
def test_a_file_of_version_1_loads_and_is_written_again_byte_for_byte(name: str, tmp_path: Path) -> None:
    old = DATA / f"{name}.json"
    found = SAVED[name].from_json(old)
    assert type(found) is SAVED[name]
    found.to_json(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == old.read_bytes()
    assert repr(SAVED[name].from_json(found.to_json())) == repr(found)  # NaN is NaN
