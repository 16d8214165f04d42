"""`Recipe`: how one network of a population is built and trained; `RecipeGrid`: the recipes of all networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, get_args

from normscope.networks import GROUPS, Normalizer
from normscope.toolkit import InputError

NORMALIZERS: tuple[str, ...] = get_args(Normalizer)
AXES = {
    "depth": "depth",
    "width": "width",
    "normalizer": "normalizer",
    "batch_size": "batch size",
    "lr": "learning rate",
    "weight_decay": "weight decay",
}
"""The hyperparameters that vary, with their names on pages; the seed is not one of them."""
LEAST_WIDTH = 3 * GROUPS
"""The smallest width with GroupNorm: it turns groups of two entries into their signs, so that each has three."""
DEEPEST = 1000
"""Weight layers of a network, at most: a step of training costs time for every layer, here about a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One network: how many weight layers, how wide, which normalizer, and how it is trained."""

    depth: int
    width: int
    normalizer: Normalizer
    batch_size: int
    lr: float
    weight_decay: float
    seed: int

    @property
    def key(self) -> str:
        """The name of the network, in files too."""
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())

    @property
    def configuration(self) -> tuple[Any, ...]:
        """Its value on every axis, in the order of `AXES`; networks with different seeds share it."""
        return tuple(getattr(self, axis) for axis in AXES)


Cohort = tuple[Recipe, ...]
"""Recipes of networks of one shape and batch size, which are trained together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeGrid:
    """The values of every axis; the population has every combination of them, with every seed.

    Attributes:
        depths: numbers of weight layers, from 2 to 1000.
        widths: the widths of the hidden layers.
        normalizers: some of `"none"`, `"batch"`, `"layer"`, `"group"`, `"rms"`.
        batch_sizes: the numbers of samples in a step.
        learning_rates: the learning rates of SGD.
        weight_decays: the weight decays of SGD.
        seeds: how many networks of each configuration to train.

    Raises:
        InputError: a value is outside its range.
    """

    depths: Sequence[int] = (3, 5)
    widths: Sequence[int] = (32, 96)
    normalizers: Sequence[str] = NORMALIZERS
    batch_sizes: Sequence[int] = (16, 64)
    learning_rates: Sequence[float] = (0.02, 0.05)
    weight_decays: Sequence[float] = (0.0, 0.001)
    seeds: int = 2

    def __post_init__(self) -> None:
        _check(
            "depths",
            self.depths,
            lambda value: _whole(value) and 2 <= value <= DEEPEST,
            f"whole numbers from 2 to {DEEPEST}",
        )
        _check("widths", self.widths, lambda value: _whole(value) and value >= 1, "whole numbers from 1 on")
        _check("normalizers", self.normalizers, lambda value: value in NORMALIZERS, f"some of {', '.join(NORMALIZERS)}")
        _check("batch_sizes", self.batch_sizes, lambda value: _whole(value) and value >= 2, "whole numbers from 2 on")
        _check("learning_rates", self.learning_rates, lambda value: _number(value) and value > 0, "numbers above 0")
        _check("weight_decays", self.weight_decays, lambda value: _number(value) and value >= 0, "numbers from 0 on")
        if not _whole(self.seeds) or self.seeds < 1:
            raise InputError(f"seeds is how many, a whole number from 1 on, not {self.seeds!r}")
        narrow = [width for width in self.widths if width % GROUPS or width < LEAST_WIDTH]
        if "group" in self.normalizers and narrow:
            raise InputError(
                f"a width of {narrow[0]} does not fall into {GROUPS} groups of 3 or more, which GroupNorm needs: take "
                f"multiples of {GROUPS} from {LEAST_WIDTH} on, or leave `group` out"
            )

    def recipes(self) -> list[Recipe]:
        """Return every recipe, the largest networks first, so that all processes end at about the same time."""
        return [
            Recipe(
                depth=depth, width=width, normalizer=kind, batch_size=size, lr=float(lr), weight_decay=float(decay),
                seed=seed,
            )
            for depth, width, size, kind, lr, decay, seed in product(
                sorted(set(self.depths), reverse=True),
                sorted(set(self.widths), reverse=True),
                sorted(set(self.batch_sizes)),
                dict.fromkeys(self.normalizers),
                sorted(set(self.learning_rates)),
                sorted(set(self.weight_decays)),
                range(self.seeds),
            )
        ]  # fmt: skip


def cohorts(recipes: Sequence[Recipe]) -> list[Cohort]:
    """Return the recipes in groups that differ in learning rate, weight decay and seed alone."""
    groups: dict[tuple[Any, ...], list[Recipe]] = {}
    for recipe in recipes:
        shape = (recipe.depth, recipe.width, recipe.normalizer, recipe.batch_size)
        groups.setdefault(shape, []).append(recipe)
    return [tuple(group) for group in groups.values()]


def _check(name: str, values: Any, fits: Callable[[Any], bool], what: str) -> None:
    listed = isinstance(values, Sequence) and not isinstance(values, str)
    if not listed or not values or not all(map(fits, values)):
        raise InputError(f"{name} are {what}, not {values!r}")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
