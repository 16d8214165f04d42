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
    "name": [None, 5, [1]],
    "mode": [7, "both"],
    "parameters": [None, 1.5, True, 10**400, "3"],
    "samples": ["x"],
    "input_shape": [5, ["a"], [1.5], "12"],
    "lipschitz": [[], "x", 3],
    "lipschitz.log10_lower": [99, None, "0", True, 10**400],
    "lipschitz.evidence": ["NOBODY", 2, None, []],
    "lipschitz.converged": [1, None],
    "observed.log10_upper": ["-inf", "inf", "nan", float("nan")],
    "observed.per_sample": [{}, [1], "x"],
    "ladder": [[], None, {"x": {}}, {"x": None}],
    "layers": [None, {}, [1], "x"],
    "layers.0.path": [None, 5],
    "layers.0.kind": [None, ["a"]],
    "layers.0.role": ["evil", None],
    "layers.0.log10_cumulative": ["12", "nan", 10**400, True, float("nan"), [1]],
    "layers.0.variance": [{"a": 1}, []],
    "layers.0.variance.log10_min": [None, "x"],
    "layers.0.norm.method": [None],
    "findings": [5, [{"code": 1}], {}],
    "findings.0.severity": ["zap", None, []],
    "findings.0.where": [["x"], None],
    "findings.0.advice": [3],
    "findings.0.numbers": [[], {"n": "x"}],
    "skipped": [["ab"], [["a"]], [[1, 2]], "ab"],
    "notes": ["abc", [5]],
    "provenance": [5, {"torch": 2}],
}


def damaged(path: str, value: object) -> dict:
    data = json.loads(json.dumps(WHOLE.to_json()))
    *outer, last = path.split(".")
    inner = data
    for part in outer:
        inner = inner[int(part)] if isinstance(inner, list) else inner[part]
    inner[last] = value
    return data


def test_how_long_it_took_is_read_of_older_files_and_not_written():
    data = WHOLE.to_json()
    assert "seconds" not in data
    assert Audit.from_json(data) == WHOLE
    assert Audit.from_json(data).seconds is None
    assert Audit.from_json(data | {"seconds": 1.5}).seconds == 1.5
    for wrong in ("x", [1]):
        with pytest.raises(InputError, match="seconds"):
            Audit.from_json(data | {"seconds": wrong})


@pytest.mark.parametrize("path", DAMAGE)
def test_every_damaged_value_is_refused_with_its_place(path):
    for value in DAMAGE[path]:
        with pytest.raises(InputError, match=r"^the data is a damaged audit \(") as caught:
            Audit.from_json(damaged(path, value))
        assert "\n" not in str(caught.value)
        assert "please report" not in str(caught.value)
        assert len(str(caught.value)) < 200
    data = damaged(path, None)
    del (data if "." not in path else at(data, path))[path.rsplit(".", 1)[-1]]
    with pytest.raises(InputError, match="damaged"):
        Audit.from_json(data)


def at(data: dict, path: str) -> dict:
    for part in path.split(".")[:-1]:
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data


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
@pytest.mark.parametrize("verb", ["show", "compare"])
def test_nothing_is_printed_before_the_refusal(content, said, verb, work, run):
    WHOLE.to_json(work / "whole.json")
    (work / "bad.json").write_text(content)
    done = run(*(["show"] if verb == "show" else ["compare", "whole.json"]), "bad.json", "--html", "out.html")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
    assert not (work / "out.html").exists()


def test_a_byte_order_mark_does_no_harm(work):
    (work / "a.json").write_text("\ufeff" + json.dumps(WHOLE.to_json()))
    assert Audit.from_json(work / "a.json").name == "net"
