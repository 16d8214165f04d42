"""`NormalizerEffects`: what the normalizers of a network do to a small change, in figures that no rescaling moves.

The scale of the weights before a normalizer does not show in the function, so neither 1/s nor the norm of the weights
means anything alone. So a normalizer counts as one with the layer that feeds it, and a change as a share of the values
that it changes: |change|/|value| behind the two, over the same in front of them. Weights, scales and shifts whose
size the function hides move the change and the value alike. A linear map alone leaves a random change about as it
is; a BatchNorm behind a ReLU makes it larger, since the mean that it takes away is part of the value and not of the
change. Of the whole network, changes of the input and the output count as shares of how far the samples lie apart.

What the network would do *without* a normalizer is no such figure: it depends on the very scale that the normalizer
hides. What it does with one of them *frozen*, as the fixed map gamma (u - mean)/s + beta with the statistics that it
takes now, is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..core.codec import JsonForm, Part
from ..report.words import factor, listed

WORDS = {
    "shrinks": ("shrinks it", "shrink it"),
    "grows": ("lets it grow", "let it grow"),
    "keeps": ("leaves its size as it is", "leave its size as it is"),
    "idle": (
        "is idle: a fixed scale and shift would do the same",
        "are idle: a fixed scale and shift would do the same",
    ),
    "eps": ("is ruled by eps", "are ruled by eps"),
    "few-values": ("takes statistics from too few values", "take statistics from too few values"),
}
"""What one normalizer of a kind does to a change, and several, in the order in which sentences and charts name them."""
SIZED = ("shrinks", "grows", "idle")
"""The kinds whose growth a sentence tells."""
CLEAR_CHANGE = math.log10(1.05)
"""log10 of a growth that counts as one: 5 percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizerEffect(Part):
    """What one normalizer does to a random small change that comes from the input. `None` means not measured.

    Attributes:
        path: the module; one that runs several times has one record per run.
        feeding: the path of the weight layer that feeds it and counts as one with it; `None` if it stands alone.
        kind: the first of these that holds. `"eps"`: eps decides what it divides by. `"few-values"`: its statistics
            come from too few values. `"idle"`: frozen at its statistics it would do the same to the change, within 5
            percent. `"shrinks"`, `"grows"`, `"keeps"`: what it does together with the layer before it.
        log10_growth: the change behind it as a share of the value there, over the same in front of the layer that feeds
            it (in front of itself where it stands alone).
        reaction: how far the change behind it differs from that behind its frozen form, over the size of the latter;
            `None` where it uses stored statistics, and so is its own frozen form.
        log10_frozen: the growth through the whole network with this normalizer frozen.
    """

    JSON: ClassVar[JsonForm] = JsonForm(choices={"kind": tuple(WORDS)})

    path: str
    feeding: str | None
    kind: str
    log10_growth: float | None = None
    reaction: float | None = None
    log10_frozen: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizerEffects(Part):
    """What the normalizers of a network do to a small change.

    Attributes:
        log10_growth: of a random small change from the input to the output, each over the distance of the samples.
        samples: at how many samples it was measured.
        normalizers: one per normalizer, in the order they run.
    """

    log10_growth: float | None
    samples: int
    normalizers: tuple[NormalizerEffect, ...]

    @property
    def sentence(self) -> str:
        """What they do, in one sentence, and in a second one what that means for the whole network."""
        return " ".join(filter(None, (self._by_kind(), self._whole())))

    def _by_kind(self) -> str:
        count, alone = len(self.normalizers), all(effect.feeding is None for effect in self.normalizers)
        which = "the normalizer does" if count == 1 else f"the {count:,} normalizers do"
        before = "" if alone else f" together with the {'layer before it' if count == 1 else 'layers before them'}"
        groups = {kind: [one for one in self.normalizers if one.kind == kind] for kind in WORDS}
        clauses = [_clause(kind, group, whole=len(group) == count) for kind, group in groups.items() if group]
        return f"What {which} to a small change{before}, as a share of the values: {'; '.join(clauses)}."

    def _whole(self) -> str:
        if self.log10_growth is None:
            return ""
        single = len(self.normalizers) == 1
        text = (
            "Measured by how far the samples lie apart, it is "
            f"{factor(self.log10_growth)} times as large at the output as at the input"
        )
        frozen = {one.path: one.log10_frozen for one in self.normalizers if one.log10_frozen is not None}
        if not frozen:
            stored = all(one.reaction is None for one in self.normalizers)
            which = "it is" if single else "each of them is"
            return f"{text}; with stored statistics {which} frozen already." if stored else f"{text}."
        most = max(frozen, key=lambda path: abs(frozen[path] - (self.log10_growth or 0.0)))
        if abs(frozen[most] - self.log10_growth) < CLEAR_CHANGE:
            which = "it" if single else "any one of them"
            return f"{text}, and freezing {which} at its statistics changes that by less than 5 %."
        return f"{text}; with `{most}` frozen at its statistics that would be {factor(frozen[most])} times."


def _clause(kind: str, group: Sequence[NormalizerEffect], *, whole: bool) -> str:
    """Say in a few words what normalizers of one kind do, and name the one that does most of it."""
    one = len(group) == 1
    first = max(group, key=lambda effect: abs(effect.log10_growth or 0.0))
    size = first.log10_growth if kind in SIZED and abs(first.log10_growth or 0.0) >= CLEAR_CHANGE else None
    who = (f"`{first.path}`" if one else "all") if whole else f"{len(group):,}"
    name = (
        f"`{first.path}`{'' if one else ' most'}"
        if size is not None
        else listed([f"`{e.path}`" for e in group], most=2)
    )
    details = ", ".join(filter(None, ("" if one and whole else name, "" if size is None else f"{factor(size)} times")))
    words = WORDS[kind][0 if one else 1]
    return f"{who} {words} ({details})" if details else f"{who} {words}"
