"""`Experiment`: jobs, what each of them measures, the figures that they come to, and the claims judged by these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from ..report.document import Block

Settings = Mapping[str, Any]
"""Of an experiment: plain values under plain names, written into every result."""
Measured = Mapping[str, Any]
"""What one job measured: plain data that JSON can hold."""
Figures = Mapping[str, float]
"""What an experiment comes to: a number for each name. Verdicts are computed from these alone."""


class Verdict(StrEnum):
    """What becomes of a claim, by the rule that stands on top of `judging.py`."""

    HOLDS = "holds"
    CORRECTED = "holds with correction"
    FAILS = "fails"
    CONVENTION = "depends on convention"
    NOT_TESTABLE = "not testable"


class Judgement(NamedTuple):
    """A verdict and the computed evidence for it, in one sentence with its figures."""

    verdict: Verdict
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim of a paper, and how the figures of an experiment judge it.

    Attributes:
        id: its name in the ledger, such as `than.lemma1`.
        source: the paper.
        where: in the paper, such as `Lemma 1`.
        text: the claim in our words.
        judge: the verdict that figures come to. It depends on nothing else, so that other figures give another one.
    """

    id: str
    source: str
    where: str
    text: str
    judge: Callable[[Figures], Judgement]


class Job(NamedTuple):
    """One part of an experiment that is measured on its own: which setting, which seed."""

    kind: str
    seed: int = 0

    @property
    def key(self) -> str:
        """What the job is known by, in files too."""
        return f"{self.kind} seed={self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """An experiment of a paper, small enough to run on any machine with `quick`, as the paper has it with `full`.

    Attributes:
        name: such as `than.figure1`.
        title: a heading.
        about: what is done and how it differs from the paper, in whole sentences.
        quick: settings that take seconds.
        full: settings of the paper; the same as `quick` where that is all there is to it.
        jobs: what is measured on its own, given the settings.
        measure: one job. Functions of modules only, since jobs may be done in other processes. The folder is one of the
            job's own, for logs and for what a long job needs to go on after an interruption, or None.
        figures: what the measured jobs come to, in the order of `jobs`.
        claims: judged by the figures.
        draw: tables and charts of the measured jobs.
        stored: whether the ledger of claims reads its committed full result, because it takes too long to compute.
        shares: the name of the experiment whose measured jobs this one judges and draws, so that they are run once;
            settings, `jobs` and `measure` are then those of that one. Empty for jobs of its own.
    """

    name: str
    title: str
    about: str
    quick: Settings
    full: Settings
    jobs: Callable[[Settings], Sequence[Job]]
    measure: Callable[[Settings, Job, Path | None], Measured]
    figures: Callable[[Settings, Mapping[Job, Measured]], Figures]
    claims: tuple[Claim, ...]
    draw: Callable[[Settings, Mapping[Job, Measured]], Sequence[Block]]
    stored: bool = False
    shares: str = ""
