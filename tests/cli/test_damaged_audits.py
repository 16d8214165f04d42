"""Saved audits that are damaged: one sentence that says where, before anything is printed."""

import json

import pytest

from normscope.core.bracket import Bracket, Evidence
from normscope.core.errors import InputError
from normscope.core.finding import Finding, Severity
from normscope.diagnosis.audit_result import Audit, Row, Variance

BRACKET = Bracket(log10_lower=0.0, log10_upper=1.0, evidence=Evidence.PROVEN, method="m", mode="eval")
WHOLE = Audit(
    name="net",
    mode="eval",
    parameters=3,
    samples=4,
    batches=1,
    input_shape=(4, 2),
    output_shape=(4, 2),
    lipschitz=BRACKET,
    observed=BRACKET,
    ladder={"product": BRACKET},
    layers=(
        Row(
            path="0",
            kind="BatchNorm1d",
            operator="batch_norm",
            role="normalizer",
            parameters=3,
            norm=BRACKET,
            log10_cumulative=float("-inf"),
            variance=Variance(
                log10_min=-1.0,
                log10_median=0.0,
                log10_max=1.0,
                share_below_one=0.5,
                share_eps=0,
                sets=2,
                entries=4,
                eps=1e-5,
            ),
        ),
    ),
    findings=(
        Finding(code="dead-layer", severity=Severity.INFO, where="0", seen="s", why="w", advice="a", numbers={"n": 1}),
    ),
    skipped=(("this", "that"),),
    notes=("note",),
    provenance={"torch": "2"},
    seconds=1.0,
)

DAMAGE = {
    "name": [None, 5],
    "mode": ["both"],
    "parameters": [True, 10**400],
    "input_shape": [["a"], "12"],
    "lipschitz.log10_lower": [99, None, "0"],
    "observed.log10_upper": ["-inf", "inf", float("nan")],
    "ladder": [None, {"x": {}}],
    "layers.0.role": ["evil"],
    "layers.0.variance": [{"a": 1}],
    "findings.0.severity": ["zap"],
    "skipped": [["ab"], "ab"],
    "provenance": [{"torch": 2}],
}


def damaged(path: str, value: object) -> dict:
    data = json.loads(json.dumps(WHOLE.to_json()))
    *outer, last = path.split(".")
    inner = data
    for part in outer:
        inner = inner[int(part)] if isinstance(inner, list) else inner[part]
    inner[last] = value
    return data


@pytest.mark.parametrize("path", DAMAGE)
def test_every_damaged_value_is_refused_with_its_place(path):
    for value in DAMAGE[path]:
        with pytest.raises(InputError, match=r"^the data is a damaged audit \(") as caught:
            Audit.from_json(damaged(path, value))
        assert "\n" not in str(caught.value)
        assert "please report" not in str(caught.value)
        assert len(str(caught.value)) < 200


def test_what_is_whole_is_read_again():
    assert Audit.from_json(WHOLE.to_json()).to_json() == WHOLE.to_json()
    assert Audit.from_json(json.loads(json.dumps(WHOLE.to_json())) | {"later": 1}) == Audit.from_json(WHOLE.to_json())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        (json.dumps(damaged("schema_version", True)), "has schema_version True"),
        (json.dumps(damaged("name", None)), "(name is null)"),
        (json.dumps(damaged("lipschitz.log10_lower", 99)), "(lipschitz: a lower side lies above its upper side)"),
    ],
)
def test_nothing_is_printed_before_the_refusal(content, said, work, run):
    WHOLE.to_json(work / "whole.json")
    (work / "bad.json").write_text(content)
    done = run("compare", "whole.json", "bad.json", "--html", "out.html")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
    assert not (work / "out.html").exists()
