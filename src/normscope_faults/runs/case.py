"""The records of the catalogue of runs.

An alarm is right if it tells one of the fault's causes and names one of its layers (where it has any); its advice is
right if it holds one of the fault's remedies. A healthy run is judged right if there is no warning and no error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .loops import Loop, Watch

Build = Callable[..., float]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run as a user writes it.

    Attributes:
        name: The name of the run.
        family: The kind of network.
        source: What is done, and where people make this mistake if it is one.
        build: Runs the whole loop, the same one each time; returns how good the model is in the end (larger is better,
            minus infinity if it is not finite). It takes a `Loop`, behind whether to plant the fault if there is one.
        steps: How many steps the loop takes.
        seed: Where torch's random numbers begin; None if the loop seeds itself.
    """

    name: str
    family: str
    source: str
    build: Build
    steps: int
    seed: int | None = 0

    def train(self, watch: Watch, steps: int | None = None) -> float:
        """Run the loop under a watch, with another number of steps if asked."""
        return self._run(Loop(watch, self.steps if steps is None else steps))

    def _run(self, *arguments: object) -> float:
        if self.seed is not None:
            torch.manual_seed(self.seed)
        return self.build(*arguments)


@dataclass(frozen=True, kw_only=True)
class RunFault(Run):
    """A run with a planted fault, and what counts as the right alarm.

    Attributes:
        causes: Keys of `CAUSES`; any one of them counts.
        layers: Names of modules or parameters, one of which must be named; empty if no one layer is at fault.
        remedies: Keys of `REMEDIES`; any one of them counts.
        onset: The step of the optimizer at which the fault begins to act; alarms before it are false ones.
        other_harm: What the fault costs where that is not the final quality of the model.
    """

    causes: frozenset[str]
    layers: tuple[str, ...]
    remedies: frozenset[str]
    onset: int = 0
    other_harm: str = ""

    def train(self, watch: Watch, steps: int | None = None) -> float:
        """Run the faulty loop under a watch."""
        return self._run(True, Loop(watch, self.steps if steps is None else steps))

    def mend(self, watch: Watch, steps: int | None = None) -> float:
        """Run the same loop without the fault."""
        return self._run(False, Loop(watch, self.steps if steps is None else steps))


@dataclass(frozen=True, kw_only=True)
class HealthyRun(Run):
    """A run with nothing wrong, though it may look so."""


def fault(
    name: str,
    family: str,
    causes: str,
    remedies: str,
    source: str,
    build: Build,
    *,
    steps: int,
    seed: int | None = 0,
    layers: str = "",
    onset: int = 0,
    other_harm: str = "",
) -> RunFault:
    """Return a run with a fault; causes, layers and remedies are split at spaces."""
    return RunFault(
        name=name,
        family=family,
        source=source,
        build=build,
        steps=steps,
        seed=seed,
        causes=frozenset(causes.split()),
        layers=tuple(layers.split()),
        remedies=frozenset(remedies.split()),
        onset=onset,
        other_harm=other_harm,
    )


def sound(name: str, family: str, source: str, build: Build, *, steps: int, seed: int | None = 0) -> HealthyRun:
    """Return a run with nothing wrong."""
    return HealthyRun(name=name, family=family, source=source, build=build, steps=steps, seed=seed)


class Part:
    """The runs whose score is published together."""

    def __init__(self) -> None:
        self.faults: list[RunFault] = []
        self.healthy: list[HealthyRun] = []

    def add(self, *runs: Run) -> None:
        """Add runs."""
        self.faults += [run for run in runs if isinstance(run, RunFault)]
        self.healthy += [run for run in runs if isinstance(run, HealthyRun)]

    def fault(self, *words: str, **options: Any) -> Callable[[Build], Build]:
        """Add the decorated loop `(broken, loop)` with its family, causes and remedies."""
        return self._added(fault, words, options)

    def sound(self, *words: str, **options: Any) -> Callable[[Build], Build]:
        """Add the decorated loop `(loop)` of a healthy run with its family."""
        return self._added(sound, words, options)

    def _added(self, kind: Callable[..., Run], words: tuple[str, ...], options: dict[str, Any]) -> Callable[..., Build]:
        def add(build: Build) -> Build:
            source = " ".join((build.__doc__ or "").split())
            self.add(kind(build.__name__.replace("_", "-"), *words, source, build, **options))
            return build

        return add


OPEN, FIRST, SECOND, THIRD, HELD_OUT = (Part() for _ in range(5))
