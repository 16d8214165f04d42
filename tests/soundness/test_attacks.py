"""Attacks on figures that had none of their own: single weights, radii, attention."""

from __future__ import annotations

import os
import time

import pytest

from .attacks import attention, radii, weight_rows
from .records import Trial, attempt, run_trials, write_record

KINDS = {"weights": weight_rows, "radii": radii, "attention": attention}
COUNTS = {"weights": 140, "radii": 60, "attention": 60}
QUICK = [*(("weights", seed) for seed in range(7)), ("radii", 0), ("radii", 3), ("attention", 3)]


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
    share = float(os.environ.get("NORMSCOPE_ATTACKS", "1"))
    cases = [(kind, seed) for kind, count in COUNTS.items() for seed in range(round(share * count))]
    began = time.monotonic()
    trials = list(run_trials(tried, *zip(*cases)))
    record = write_record("attacks", "Attacks on single figures", trials, base=0, began=began)
    assert not record["violations"]


def tried(kind: str, seed: int) -> Trial:
    """Attack one case."""
    parts = [kind]

    def trial() -> list[float]:
        outcome = KINDS[kind].attack(seed)
        parts.extend([*outcome.parts, *outcome.remarks])
        assert not outcome.violations, "; ".join(outcome.violations)
        return outcome.gaps

    _, _, gaps = attempt(seed, parts, trial)
    return seed, sorted(set(parts)), gaps
