"""Files of version 1, written before there was one codec: they load, and are written again byte for byte."""

import json
from pathlib import Path
from typing import Any

import pytest

import normscope as ns
import normscope_lab as lab
from normscope.bounds.data.quantile import DataBracket
from normscope.bounds.geometry.curvature import Curvature
from normscope.core.errors import InputError
from normscope.doctor.monitor.log import LogReading

DATA = Path(__file__).parent / "data"
SAVED: dict[str, Any] = {
    "audit": ns.Audit,
    "check": ns.Check,
    "data_bracket": DataBracket,
    "radii": ns.Radii,
    "weight_sensitivity": ns.WeightSensitivity,
    "symmetries": ns.Symmetries,
    "spectrum": ns.Spectrum,
    "smoothness": ns.Smoothness,
    "flatness": ns.Flatness,
    "margins": ns.Margins,
    "curvature": Curvature,
    "generalization": lab.Generalization,
    "choice": ns.Choice,
    "flow": lab.Flow,
    "prediction": lab.Prediction,
    "training_cost": lab.TrainingCost,
}
"""What writes and reads a file of its own, by the name of its file."""


@pytest.mark.parametrize("name", SAVED)
def test_a_file_of_version_1_loads_and_is_written_again_byte_for_byte(name: str, tmp_path: Path) -> None:
    old = DATA / f"{name}.json"
    found = SAVED[name].from_json(old)
    assert type(found) is SAVED[name]
    found.to_json(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == old.read_bytes()
    assert repr(SAVED[name].from_json(found.to_json())) == repr(found)  # NaN is NaN


def test_a_log_of_version_1_loads_and_its_lines_are_written_again() -> None:
    reading = LogReading()
    lines = (DATA / "run.jsonl").read_text().splitlines()
    for line in lines:
        reading.take_from("a log", json.loads(line))
    begun, *steps_and_findings = lines
    again = {"type": "run", "schema_version": 1, "step": 0, "layers": [layer.to_json() for layer in reading.layers]}
    assert json.dumps(again) == begun
    steps = [f'{{"type":"step",{record.text()[1:]}' for record in reading.records()]
    findings = [json.dumps({"type": "finding", **finding.to_json()}) for finding in reading.findings]
    assert [*steps, *findings] == steps_and_findings


@pytest.mark.parametrize(("key", "value"), [("schema_version", 2), ("schema_version", True), ("type", "check")])
def test_a_result_inside_another_is_of_its_own_kind_and_version(key: str, value: object) -> None:
    data = json.loads((DATA / "audit.json").read_text())
    data["radii"][key] = value
    with pytest.raises(InputError, match=rf"the data is a damaged audit \(radii\.{key} is {value!r}\): write one"):
        ns.Audit.from_json(data)
    with pytest.raises(InputError, match=r"has schema_version 2, this|has schema_version True, this|holds no radii"):
        ns.Radii.from_json(data["radii"])
