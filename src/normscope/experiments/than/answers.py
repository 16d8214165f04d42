"""What training runs answer to a claim, in each reading of it, and their figures in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..base import Figures, Judgement, Verdict
from ..judging import by_convention
from .training import NETWORKS

SHORT = {"coupled": "L2", "decoupled": "AdamW", "none": "no decay"}
"""The kinds of weight decay."""


class Answers(dict[str, bool]):
    """By network, decay and reading, whether a claim on the end of training is true; short runs have no say."""

    def __init__(self, figures: Figures) -> None:
        super().__init__()
        self._figures = figures

    def add(self, network: str, decay: str, reading: str, answer: bool) -> None:
        """Add what one run answers in one reading."""
        if came_far(self._figures, network, decay):
            self[", ".join(filter(None, (NETWORKS[network], reading, SHORT[decay])))] = answer


class Told:
    """Figures in words, those of one thing together, each behind the kind of decay that it belongs to."""

    def __init__(self) -> None:
        self._said: dict[str, list[str]] = {}

    def add(self, what: str, decay: str, figure: str) -> None:
        """Add a figure."""
        self._said.setdefault(what, []).append(f"{SHORT[decay]} {figure}")

    def __str__(self) -> str:
        return "; ".join(f"{what} ({', '.join(figures)})" for what, figures in self._said.items())


def weighed(answers: Mapping[str, bool], evidence: str) -> Judgement:
    """Return the verdict on a claim that some readings bear out: all, some or none of them.

    Args:
        answers: by reading, whether the claim is true in it.
        evidence: the figures, in a sentence.
    """
    if not answers:
        return Judgement(Verdict.NOT_TESTABLE, f"{evidence} No run came half of its way: this decides nothing.")
    true = [name for name, answer in answers.items() if answer]
    false = [name for name, answer in answers.items() if not answer]
    few, which = (true, "It is so for") if len(true) <= len(false) else (false, "It is not so for")
    named = f" {which}: {'; '.join(few)}." if true and false else ""
    return by_convention(list(answers.values()), evidence + named)


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
    """Return whether a run came half of its way or more: a shorter one tells nothing of the end of training."""
    run = f"{network}.{decay}"
    return 2 * figures[f"{run}.epochs"] >= figures[f"{run}.epochs_planned"]
