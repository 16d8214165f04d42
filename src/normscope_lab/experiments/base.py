"""`Experiment`: its jobs, what each of them measures, the figures computed from these, and the claims they judge."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from normscope.report import Block

Settings = Mapping[str, Any]
"""The settings of an experiment: plain values by name, which are written into every result."""
Measured = Mapping[str, Any]
"""The measurements of one job: plain data that JSON can hold."""
Figures = Mapping[str, float]
"""The figures of an experiment: numbers by name. Verdicts are computed from these alone."""


class Verdict(StrEnum):
    """The verdict on a claim, by the rule at the top of `judging.py`."""

    HOLDS = "holds"
    CORRECTED = "holds with correction"
    FAILS = "fails"
    CONVENTION = "depends on convention"
    NOT_TESTABLE = "not testable"
    MEASURED = "measurement"


SOURCES = {
    "than.slides": "Slides",
    "slides": "Slides",
    "than": "Than",
    "digest": "digest",
    "akbar": "Akbar",
    "beyond": "Normscope",
    "yang": "Yang et al. 2019",
    "wan": "Wan et al. 2021",
    "li-arora": "Li and Arora 2020",
}
"""The papers, by what the ids of their claims begin with."""


class Judgement(NamedTuple):
    """A verdict and the computed evidence for it: a sentence with its figures, or above a table of them.

    Rows of the table, of which the first is the heading, hold words.
    """

    verdict: Verdict
    evidence: str
    table: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim of a paper, and how the figures of an experiment judge it.

    Attributes:
        id: its name in the ledger, such as `than.lemma1`.
        where: the place in the paper, such as `Lemma 1`.
        text: our reading of the claim, in our words.
        judge: a function from the figures to the verdict, which depends on nothing else.
        quotation: the source's own words, with formulas in LaTeX between dollars and ` ... ` where words are left out;
            empty where no source says it, and for papers whose text is not at hand.
        corrected: the corrected statement, for a claim that is not true as it stands.
        identity: whether it is an equation, or has one counterexample, so that the task does not matter.
    """

    id: str
    where: str
    text: str
    judge: Callable[[Figures], Judgement]
    quotation: str = ""
    corrected: str = ""
    identity: bool = False

    @property
    def source(self) -> str:
        """The paper, which the id begins with; one that the table lacks is called by that word."""
        first_word = self.id.partition(".")[0].capitalize()
        return next((source for start, source in SOURCES.items() if self.id.startswith(f"{start}.")), first_word)


class Job(NamedTuple):
    """One part of an experiment that is measured on its own: its setting and its seed."""

    kind: str
    seed: int = 0

    @property
    def key(self) -> str:
        """The name of the job, in files too."""
        return f"{self.kind} seed={self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """An experiment of a paper, with small settings for any machine (`quick`) and with those of the paper (`full`).

    Attributes:
        name: the name, such as `than.figure1`.
        title: a heading.
        about: what is done and how it differs from the paper, in whole sentences.
        quick: settings that take seconds.
        full: the settings of the paper; the same as `quick` where those are small enough.
        jobs: returns the jobs for given settings.
        measure: measures one job. It must be a function of a module, since jobs may run in other processes. The folder
            belongs to the job alone, for logs and for what a long job needs to resume after an interruption; it may be
            None.
        figures: computes the figures from the measured jobs, in the order of `jobs`.
        claims: the claims that the figures judge.
        draw: returns tables and charts of the measured jobs.
        stored: whether the ledger of claims reads the stored full result, because the experiment takes too long.
        task: the one task that its networks learn, on which alone its verdicts stand, but for identities; else empty.
        shares: the name of the experiment whose measured jobs this one judges and draws, so that they run once;
            settings, `jobs` and `measure` are then those of the other experiment. Empty for jobs of its own.
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
    task: str = ""
    shares: str = ""


def experiment_of(
    module: str, *, name: str, title: str, about: str, claims: tuple[Claim, ...], **options: Any
) -> Experiment:
    """Return the experiment that a file defines.

    Its settings are the file's `QUICK` and `FULL`, and what it does are the file's functions `jobs`, `measure`,
    `figures` and `draw`.

    Args:
        module: the name of the file's module.
        name: the name.
        title: a heading.
        about: what is done.
        claims: the claims that its figures judge.
        options: its other attributes.
    """
    here = vars(sys.modules[module])
    functions = {key: here[key] for key in ("jobs", "measure", "figures", "draw")}
    settings = {"quick": here["QUICK"], "full": here["FULL"]}
    return Experiment(name=name, title=title, about=about, claims=claims, **settings, **functions, **options)
