"""Brackets: two sides in order, evidence that is ordered, a reason for infinity, and JSON that comes back."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from normscope.core.bracket import Bracket, Evidence, Scope
from normscope.core.errors import InputError, SoundnessError


def made(**given: Any) -> Bracket:
    """Return a bracket from 1 to 10, or with other fields."""
    fields = {"log10_lower": 0.0, "log10_upper": 1.0, "evidence": Evidence.PROVEN, "method": "a method"}
    return Bracket(**fields | given)


def test_a_lower_side_above_the_upper_one_is_a_bug() -> None:
    with pytest.raises(SoundnessError, match="a method"):
        made(log10_lower=math.nextafter(1.0, 2.0))
    assert made(log10_lower=1.0).gap == 0.0
    printed = made(log10_lower=2.0, holds=False, reason="two layers run side by side")
    assert "not a bound: two layers run side by side" in str(printed)


@pytest.mark.parametrize("side", ["log10_lower", "log10_upper"])
def test_no_side_is_nan(side: str) -> None:
    with pytest.raises(ValueError, match="NaN"):
        made(**{side: math.nan})


def test_an_infinite_upper_side_has_a_reason() -> None:
    with pytest.raises(ValueError, match="needs a reason"):
        made(log10_upper=math.inf)
    assert "infinite: a step" in str(made(log10_upper=math.inf, reason="a step"))


def test_json_gives_the_bracket_back() -> None:
    part = made(log10_lower=-math.inf, scope=Scope.POINT, evidence=Evidence.SAMPLED)
    bracket = made(
        log10_upper=math.inf,
        reason="a step",
        scope=Scope.BALL,
        mode="eval",
        converged=False,
        advice="raise steps",
        input_shape=(3, 4),
        per_sample=(part, part),
        per_output=(part,),
        notes=("dropout counted as off",),
        products=7,
        witness=object(),
    )
    assert Bracket.from_json(json.loads(json.dumps(bracket.to_json()))) == bracket


def test_a_bracket_without_a_proof_is_not_saved(tmp_path) -> None:
    with pytest.raises(InputError, match="carries no proof"):
        made().save(tmp_path / "proof.npz")
    with pytest.raises(InputError, match="path of a file"):
        made().save(3)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
