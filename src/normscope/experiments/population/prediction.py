"""`Prediction`: how well every measure orders the gaps of a population."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...core.errors import InputError, said
from ...core.files import read_json, write_text
from ...core.json_values import plain
from ...report.shown import Shown
from .kendall import Power, Sample, power
from .member import Member
from .recipes import AXES

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Shown):
    """What `predictive_power` found. Prints as a table; `to_html` writes a page.

    Attributes:
        name: of the data.
        members: every network, also those that were left out.
        settings: of the population.
        seed: of the bootstrap.
        powers: how well each measure orders the gaps, the largest mean over axes first.
        notes: what the reader must know.
    """

    page = "prediction:prediction_document"

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
        """Return what a population comes to: the statistics are computed here."""
        reached = [member for member in members if member.status == "reached" and member.gap is not None]
        names = dict.fromkeys(measure for member in reached for measure in member.measures)
        found = {}
        for measure in names:
            known = [member for member in reached if member.measures.get(measure) is not None]
            sample = Sample(
                gaps=[member.gap for member in known],  # type: ignore[misc]
                configurations=[member.recipe.configuration for member in known],
                seeds=[member.recipe.seed for member in known],
            )
            values = [member.measures[measure] for member in known]
            generator = np.random.default_rng(seed)  # the same resamples for every measure
            found[measure] = power(values, sample, list(AXES), generator=generator)  # type: ignore[arg-type]

        def place(measure: str) -> float:
            mean = found[measure].mean.value
            return 2.0 if mean is None else -mean

        return cls(
            name=name,
            members=tuple(members),
            settings=dict(settings),
            seed=seed,
            powers={measure: found[measure] for measure in sorted(found, key=place)},
            notes=tuple(notes),
        )

    @property
    def reached(self) -> tuple[Member, ...]:
        """The networks that reached the training loss: those that are compared."""
        return tuple(member for member in self.members if member.status == "reached")

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return plain data, and write it to a file if a path is given.

        Args:
            path: a file to write (whole or not at all).

        Raises:
            InputError: the file cannot be written.
        """
        data = plain(
            {
                "schema_version": SCHEMA_VERSION,
                "type": "prediction",
                "name": self.name,
                "settings": dict(self.settings),
                "seed": self.seed,
                "powers": {measure: asdict(found) for measure, found in self.powers.items()},
                "members": [member.to_json() for member in self.members],
                "notes": self.notes,
            }
        )
        if path is not None:
            write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
        return data

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Prediction:
        """Return the prediction that `to_json` wrote; its statistics are computed again, from the members.

        Args:
            source: a path, or the plain data itself.

        Raises:
            InputError: there is no prediction of this version.
        """
        data = source if isinstance(source, Mapping) else read_json(source)
        if not isinstance(data, Mapping) or data.get("type") != "prediction":
            raise InputError("that holds no prediction: write one with normscope predict --json FILE")
        if data.get("schema_version") != SCHEMA_VERSION:
            raise InputError(
                f"that prediction has schema_version {data.get('schema_version')!r} and this program reads "
                f"{SCHEMA_VERSION}: update Normscope if that is newer, or write it with normscope predict --json FILE"
            )
        try:
            members = [Member.from_json(member) for member in data["members"]]
            return cls.of(data["name"], members, data["settings"], notes=data["notes"], seed=data["seed"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"that is a damaged prediction ({said(error)})") from error
