"""The codec: what is written and read by the types of fields, what a form declares, and what is refused."""

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch

import normscope as ns
from normscope.core.codec import JsonForm, Part, Saved, decode, encode
from normscope.core.errors import InputError, SoundnessError


class Colour(enum.StrEnum):
    """Written by value."""

    RED = "red"


class Rank(enum.IntEnum):
    """Written by name."""

    LOW = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends(Part):
    """A part whose two figures must be in order."""

    JSON: ClassVar[JsonForm] = JsonForm(unsound="its low end lies above its high one", sparse=("note",))

    low: float
    high: float
    note: str = ""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise SoundnessError("this is a bug: please report it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Saved):
    """A result that differs from its file in every way that a form can say."""

    JSON: ClassVar[JsonForm] = JsonForm(
        kind="whole",
        noun="whole",
        write="write one with whole.to_json(path)",
        version=2,
        keys=("name", "count", ...),
        left_out=("model", "seconds"),
        choices={"name": ("a", "b")},
    )

    ends: tuple[Ends, ...]
    name: str
    figures: Mapping[str, float | None]
    colour: Colour = Colour.RED
    rank: Rank = Rank.LOW
    kind: Literal["x", "y"] = "x"
    model: Any = field(default=None, compare=False)
    seconds: float | None = field(default=None, compare=False)

    @property
    def count(self) -> int:
        """How many ends there are."""
        return len(self.ends)


WHOLE = Whole(
    ends=(Ends(low=-math.inf, high=1.0), Ends(low=0, high=2.5, note="n")),
    name="a",
    figures={"x": math.inf, "y": None},
    model=object(),
    seconds=3.0,
)
TEXT = (
    '{"schema_version": 2, "type": "whole", "name": "a", "count": 2, '
    '"ends": [{"low": "-inf", "high": 1.0}, {"low": 0, "high": 2.5, "note": "n"}], '
    '"figures": {"x": "inf", "y": null}, "colour": "red", "rank": "LOW", "kind": "x"}'
)


def test_keys_stand_in_the_declared_order_and_what_is_left_out_is_not_written(tmp_path: Path) -> None:
    assert json.dumps(WHOLE.to_json(tmp_path / "w.json")) == TEXT
    assert (tmp_path / "w.json").read_text() == json.dumps(json.loads(TEXT), indent=1) + "\n"


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    WHOLE.to_json(tmp_path / "w.json")
    for source in (tmp_path / "w.json", str(tmp_path / "w.json"), json.loads(TEXT)):
        again = Whole.from_json(source)
        assert again == WHOLE
        assert (again.model, again.seconds, again.rank, again.colour) == (None, None, Rank.LOW, Colour.RED)
        assert type(again.ends[1].low) is int  # numbers stay as they are written
        assert json.dumps(again.to_json()) == TEXT


def test_fields_with_a_default_may_be_missing_and_others_are_passed_over() -> None:
    data = json.loads(TEXT)
    del data["rank"]
    assert Whole.from_json({**data, "seconds": 1.5, "later": 1, "count": "unread"}) == WHOLE
    assert Whole.from_json({**data, "seconds": "x"}).seconds is None


@pytest.mark.parametrize("data", [[], 3, None, "x", {}, {"type": "other", "schema_version": 2}, {"type": ["whole"]}])
def test_what_is_of_another_kind_says_how_to_write_one(data: Any, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"w\.json holds no whole: write one with whole\.to_json\(path\)$"):
        Whole.from_json(tmp_path / "w.json")


@pytest.mark.parametrize(
    ("version", "todo"),
    [(3, "update Normscope"), (1, "write one with"), (None, "write one with"), (True, "write one"), ("2", "write one")],
)
def test_another_version_says_what_to_do(version: Any, todo: str) -> None:
    with pytest.raises(InputError, match=rf"^the data has schema_version {version}, this version reads 2: {todo}"):
        Whole.from_json({**json.loads(TEXT), "schema_version": version})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": None}, "name is null"),
        ({"name": "c"}, "name is 'c'"),
        ({"kind": "z"}, "kind is 'z'"),
        ({"kind": ["x"]}, r"kind is \['x'\]"),
        ({"colour": "RED"}, "colour is 'RED'"),
        ({"rank": 0}, "rank is 0"),
        ({"ends": {}}, r"ends is \{\}"),
        ({"ends": [{"low": 0.0}]}, r"ends\[0\]\.high is missing"),
        ({"ends": [{"low": 0.0, "high": True}]}, r"ends\[0\]\.high is True"),
        ({"ends": [{"low": 0.0, "high": None}]}, r"ends\[0\]\.high is null"),
        ({"ends": [{"low": 10**400, "high": "inf"}]}, r"ends\[0\]\.low is 1000"),
        ({"ends": [{"low": 2.0, "high": 1.0}]}, r"ends\[0\]: its low end lies above its high one"),
        ({"figures": {"x": "nan"}}, r"figures\.x is 'nan'"),
        ({"figures": {"x": math.nan}}, r"figures\.x is nan"),
        ({"figures": [1.0]}, r"figures is \[1.0\]"),
    ],
)
def test_a_damaged_file_says_which_field_and_what_to_do(change: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=rf"^the data is a damaged whole \({why}.*\): write one with whole\.to_json"):
        Whole.from_json({**json.loads(TEXT), **change})


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 1.0), (int, True), (int, 2**63), (float, True), (float, "1"), (float, None), (str, 1), (bool, 1),
        (tuple[int, str], [1]), (tuple[int, ...], "12"), (tuple[int, ...], {}), (Mapping[str, int], [1]),
        (Mapping[str, int], {"a": 1.5}), (Mapping[int, int], {"a": 1}), (Ends, [0.0, 1.0]), (Ends | None, 3),
    ],
)  # fmt: skip
def test_values_of_other_types_are_refused(hint: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r" is "):
        decode(hint, value)


def test_nan_is_null_and_read_again_only_where_a_form_says_so() -> None:
    assert encode((math.nan, -math.inf)) == [None, "-inf"]
    assert math.isnan(decode(tuple[float, ...], [None], nan=True)[0])
    assert decode(float | None, None, nan=True) is None
    with pytest.raises(ValueError, match=r"\[0\] is null"):
        decode(tuple[float, ...], [None])


@pytest.mark.parametrize("claim", ["converged", "holds"])
def test_a_file_that_does_not_say_that_something_holds_is_not_taken_to_say_it(claim: str) -> None:
    stored = ns.lipschitz(torch.nn.Linear(3, 2), torch.randn(4, 3)).to_json()
    assert stored.pop(claim) is True
    with pytest.raises(ValueError, match=f"{claim} is missing"):
        ns.Bracket.from_json(stored)


@pytest.mark.parametrize("claim", ["findings", "skipped"])
def test_an_audit_that_does_not_say_what_was_found_or_left_out_is_refused(claim: str) -> None:
    stored = ns.audit(torch.nn.Linear(3, 2), torch.randn(4, 3)).to_json()
    del stored[claim]
    with pytest.raises(InputError, match=f"{claim} is missing"):
        ns.Audit.from_json(stored)


def test_a_bracket_at_one_point_that_lacks_its_scope_is_not_read_as_one_for_all_inputs() -> None:
    stored = ns.lipschitz(torch.nn.Linear(3, 2), torch.randn(4, 3), scope="point").to_json()
    assert stored.pop("scope") == "point"
    with pytest.raises(ValueError, match="scope is missing"):
        ns.Bracket.from_json(stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(Part):
    """A part whose keys stand among those of the result that holds it."""

    JSON: ClassVar[JsonForm] = JsonForm(sparse=(...,), always=("low",))

    unit: str
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Part):
    """A result that is composed of parts, in a file without them."""

    JSON: ClassVar[JsonForm] = JsonForm(inlined=("sizes",))

    name: str
    sizes: Sizes


@pytest.mark.parametrize(
    ("sizes", "written"), [({}, {"low": 0.0}), ({"low": 1.0, "high": 2.0}, {"low": 1.0, "high": 2.0})]
)
def test_parts_may_stand_among_the_keys_of_their_result(sizes, written) -> None:
    result = Measured(name="a", sizes=Sizes(unit="m", **sizes))
    assert result.to_json() == {"name": "a", "unit": "m", **written}
    assert Measured.from_json(result.to_json()) == result


@dataclass(frozen=True)
class Wrong(Part):
    """A result whose form names a field that it has not."""

    JSON: ClassVar[JsonForm] = JsonForm(inlined=("parts",))


def test_an_inlined_part_is_refused_by_the_names_of_its_own_keys() -> None:
    with pytest.raises(ValueError, match="unit is missing"):
        Measured.from_json({"name": "a", "low": 0.0})
    with pytest.raises(TypeError, match="Wrong has no parts"):
        Wrong().to_json()
