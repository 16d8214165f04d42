"""Whether a claim is true of each training run, in each reading of the claim, and the figures in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..base import Figures, Judgement, Verdict
from ..judging import by_count, of_readings
from .watched_training import NETWORKS

SHORT = {"coupled": "L2", "decoupled": "AdamW", "none": "no decay"}
"""Short names of the kinds of weight decay."""


class Answers(dict[str, dict[str, bool]]):
    """Whether a claim is true of each network, by reading; a reading is a kind of decay and often a norm."""

    def add(self, network: str, reading: str, answer: bool) -> None:
        """Add whether the claim is true of a network in one reading."""
        self.setdefault(reading, {})[NETWORKS[network]] = answer

    def add_end(self, figures: Figures, network: str, decay: str, reading: str, answer: bool) -> None:
        """Add an answer about the end of training; a run that came less than half of its way does not count."""
        if came_far(figures, network, decay):
            self.add(network, ", ".join(filter(None, (reading, SHORT[decay]))), answer)


class FigureList:
    """A list of figures in words, grouped by what they are figures of; each names its kind of decay."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}

    def add(self, what: str, decay: str, figure: str) -> None:
        """Add a figure."""
        self._texts.setdefault(what, []).append(f"{SHORT[decay]} {figure}")

    def __str__(self) -> str:
        return "; ".join(f"{what} ({', '.join(figures)})" for what, figures in self._texts.items())


def weighed(answers: Mapping[str, Mapping[str, bool]], evidence: str) -> Judgement:
    """Return the verdict on a claim: first over the networks in each reading, then over the readings.

    Args:
        answers: whether the claim is true, by reading and network.
        evidence: the figures, in a sentence.
    """
    if not answers:
        return Judgement(Verdict.NOT_TESTABLE, f"{evidence} No run came half of its way: this decides nothing.")
    named = {
        ", ".join(filter(None, (network, reading))): answer
        for reading, networks in answers.items()
        for network, answer in networks.items()
    }
    true = [name for name, answer in named.items() if answer]
    false = [name for name, answer in named.items() if not answer]
    few, which = (true, "It is so for") if len(true) <= len(false) else (false, "It is not so for")
    exceptions = f" {which}: {'; '.join(few)}." if true and false else ""
    each = [by_count(sum(networks.values()), len(networks), "").verdict for networks in answers.values()]
    return Judgement(of_readings(each), evidence + exceptions)


def epochs(figures: Figures, networks: Iterable[str], decays: Iterable[str]) -> str:
    """Return after how many epochs the figures of networks were taken, in words."""
    spans = []
    for network in networks:
        counts = sorted(set(present(figures, network, "epochs", decays).values()))
        if counts:
            spans.append(f"{counts[0]:g}" if len(counts) == 1 else f"{counts[0]:g} to {counts[-1]:g}")
    return f"after {' and '.join(dict.fromkeys(spans)) or 'no'} epochs"


def present(figures: Figures, network: str, name: str, decays: Iterable[str]) -> dict[str, float]:
    """Return a figure of a network by kind of decay, for the runs that have it."""
    held = {decay: f"{network}.{decay}.{name}" for decay in decays}
    return {decay: figures[key] for decay, key in held.items() if key in figures}


def came_far(figures: Figures, network: str, decay: str) -> bool:
    """Whether a run came half of its way or more; a shorter one says nothing about the end of training."""
    run = f"{network}.{decay}"
    return 2 * figures[f"{run}.epochs"] >= figures[f"{run}.epochs_planned"]
