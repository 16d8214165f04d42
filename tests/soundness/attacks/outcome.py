"""What one attacked case gave."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

EPS = 2.0**-52


@dataclass
class Outcome:
    """One case: what it is made of, how many comparisons were made, and which of them failed.

    Attributes:
        kind: which of the attacks.
        parts: what the case is made of, for the table of what was drawn.
        checks: comparisons of a figure with an attack.
        violations: in words, one for every comparison that failed.
        remarks: what is no violation but counts: `infinite`, `refused`, `not closed`.
        gaps: log10 of figure over attack, where both are finite and positive.
    """

    kind: str
    parts: tuple[str, ...]
    checks: int = 0
    violations: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def check(self, fine: bool, words: str) -> None:
        """Count one comparison."""
        self.checks += 1
        if not fine:
            self.violations.append(words)


@contextmanager
def drawing(seed: int | str) -> Iterator[random.Random]:
    """Give choices, and torch's global generator, from a seed; the latter is put back after."""
    draw = random.Random(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.randrange(2**31))
        yield draw
