"""`Prediction`: how well every measure orders the gaps of a population."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from normscope.report import Shown
from normscope.toolkit import JsonForm, Saved

from .kendall import Power, Sample, power
from .member import Member
from .recipes import AXES


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Saved, Shown):
    """The result of `predictive_power`. Prints as a table; `to_html` writes a page.

    Attributes:
        name: the name of the data.
        members: every network, also those that were left out.
        settings: the settings of the population.
        seed: the seed of the bootstrap.
        powers: how well each measure orders the gaps, the largest mean over axes first.
        notes: what the reader must know.
    """

    page = "normscope_lab.pages.prediction:prediction_document"
    JSON: ClassVar[JsonForm] = JsonForm(
        kind="prediction",
        noun="prediction",
        write="write one with normscope lab predict --json FILE",
        keys=("name", "settings", "seed", "powers", ...),
        unread=("powers",),
    )

    name: str
    members: tuple[Member, ...]
    settings: Mapping[str, Any]
    seed: int
    powers: Mapping[str, Power]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, name: str, members: Sequence[Member], settings: Mapping[str, Any], *, notes: Sequence[str] = (), seed: int
    ) -> Prediction:
        """Return the prediction of a population, after computing its statistics."""
        reached = [member for member in members if member.status == "reached" and member.gap is not None]
        names = dict.fromkeys(measure for member in reached for measure in member.measures)
        powers = {}
        for measure in names:
            generator = np.random.default_rng(seed)  # the same resamples for every measure
            (values,), sample = compared(reached, measure)
            powers[measure] = power(values, sample, list(AXES), generator=generator)

        def rank(measure: str) -> float:
            mean = powers[measure].mean.value
            return 2.0 if mean is None else -mean

        return cls(
            name=name,
            members=tuple(members),
            settings=dict(settings),
            seed=seed,
            powers={measure: powers[measure] for measure in sorted(powers, key=rank)},
            notes=tuple(notes),
        )

    @property
    def reached(self) -> tuple[Member, ...]:
        """The networks that reached the training loss, which are the ones that are compared."""
        return tuple(member for member in self.members if member.status == "reached")

    @classmethod
    def of_fields(cls, **fields: Any) -> Prediction:
        """Return a prediction from the fields that were read; its statistics are computed again from the members."""
        return cls.of(**fields)


def compared(members: Sequence[Member], *measures: str) -> tuple[list[list[float]], Sample]:
    """Return the values of measures at the networks that reached the loss and have all of them, and these networks."""
    rows = [
        (member, member.gap, values)
        for member in members
        if member.status == "reached" and member.gap is not None
        if None not in (values := [member.measures.get(measure) for measure in measures])
    ]
    sample = Sample(
        gaps=[gap for _, gap, _ in rows],
        configurations=[member.recipe.configuration for member, _, _ in rows],
        seeds=[member.recipe.seed for member, _, _ in rows],
    )
    return [[values[index] for _, _, values in rows] for index in range(len(measures))], sample  # type: ignore[misc]
