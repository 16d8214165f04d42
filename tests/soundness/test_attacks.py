"""Attacks on figures that had none of their own: single weights, radii, attention, extreme sizes."""

from __future__ import annotations

import dataclasses
import os
import time

import pytest
import torch

from normscope.bounds.radius.certifier import Certifier
from normscope.bounds.weights import figures
from normscope.core.bracket import Bracket
from normscope.core.errors import SoundnessError
from normscope.core.rounding import ONE
from normscope.linalg.patches import Read
from normscope.rules import registry

from .attacks import attention, radii, record, scales, weight_rows
from .attacks.outcome import Outcome
from .planting import around
from .provenance import provenance, run_trials

KINDS = {"weights": weight_rows, "radii": radii, "attention": attention, "scales": scales}
COUNTS = {"weights": 140, "radii": 60, "attention": 60, "scales": 30}
QUICK = [*(("weights", seed) for seed in range(7)), ("radii", 0), ("radii", 3),
         ("attention", 3), ("scales", 1)]  # fmt: skip


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """One short climb in each ball; the slow test takes the time that an attack needs."""
    monkeypatch.setattr(attention, "STARTS", 1)
    monkeypatch.setattr(attention, "CLIMB", 5)


@pytest.mark.one_in(1000)
@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize(("kind", "seed"), QUICK)
def test_no_attack_gets_above(kind: str, seed: int) -> None:
    outcome = KINDS[kind].attack(seed)
    assert outcome.checks + len(outcome.remarks) > 0
    assert outcome.violations == []


@pytest.mark.slow
def test_every_kind() -> None:
    """Writes `docs/results/attacks.json` and `.md`, whatever comes, and fails on any violation."""
    counts = os.environ.get("NORMSCOPE_ATTACKS", ",".join(f"{kind}:{count}" for kind, count in COUNTS.items()))
    asked = {kind: int(count) for kind, count in (item.split(":") for item in counts.split(","))}
    cases = [(kind, seed) for kind, count in asked.items() for seed in range(count)]
    began, made = time.monotonic(), provenance()
    outcomes = list(run_trials(attacked, *zip(*cases)))
    record.write(record.collected(outcomes, seconds=time.monotonic() - began, counts=counts, made=made))
    assert [words for outcome in outcomes for words in outcome.violations] == []


def attacked(kind: str, seed: int) -> Outcome:
    """Attack one case; a package that contradicts itself counts as a violation."""
    try:
        return KINDS[kind].attack(seed)
    except SoundnessError as error:
        return Outcome(kind, (), checks=1, violations=[f"seed {seed}: {error}"])


def attention_too_tame(patch: pytest.MonkeyPatch) -> None:
    """Values count once in place of sqrt(tokens) times."""
    op = torch.ops.aten.scaled_dot_product_attention.default
    found = registry._OPERATORS[op]

    def function(node, operands):
        effect = found.effect(node, operands)
        return dataclasses.replace(effect, gains=(*effect.gains[:-1], ONE))

    patch.setitem(registry._OPERATORS, op, dataclasses.replace(found, effect=function))


@around(figures, "reading")
def made_weights_too_small(reading, node, effect, values):
    """What the layers read counts a tenth too little; those of the case below are under weight_norm."""
    read = reading(node, effect, values)
    return Read.of(0.9 * next(read.pieces)[0])


@around(Certifier, "_radii")
def radius_too_large(found, self, *args, **kwargs):
    radius, floor, settled = found(self, *args, **kwargs)
    return 1.01 * radius, floor, settled


BUGS = {
    "the gain of attention": ("attention", 39, attention_too_tame),
    "the row of a weight under weight_norm": ("weights", 7, made_weights_too_small),
    "a radius 1 % too large": ("radii", 0, radius_too_large),
}


@pytest.mark.slow
@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the attack alone: brackets whose own sides contradict each other say nothing here."""
    kind, seed, plant = BUGS[bug]
    assert KINDS[kind].attack(seed).violations == []
    monkeypatch.setattr(Bracket, "__post_init__", lambda self: None)
    plant(monkeypatch)
    assert KINDS[kind].attack(seed).violations != []
