"""Stages of a convolutional graph: fields on tori, the steps between them, and their matrices at a frequency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ellipsoids.ellipsoid_plan import EllipsoidPlan
from .stencil import Grid, Stencil


@dataclass(frozen=True, slots=True)
class GridField:
    """A value with channels on a grid: entry o lies at `o level` of the stage's finest torus.

    Attributes:
        channels: how many.
        grid: entries per axis.
        level: of the finest torus' entries per entry of its own, per axis.
        clean: whether it is zero outside its grid, all over the torus.
    """

    channels: int
    grid: Grid
    level: Grid
    clean: bool


@dataclass(frozen=True, slots=True)
class Move:
    """The state goes over from the fields `bases` to the fields `names`, on their torus."""

    bases: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bend:
    """An activation `name` of `operand`, with slopes (mask included); `kept` of the `bases` are needed later."""

    name: str
    operand: str
    bases: tuple[str, ...]
    kept: tuple[str, ...]
    slope: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Close:
    """The stage ends with the constant of the field `operand`, times 10^log10_gain."""

    operand: str
    bases: tuple[str, ...]
    log10_gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Tail:
    """The stage ends in a dense plan, over the grids of the fields `bases`, or over sums of fields.

    Attributes:
        plan: the dense plan; its first matrix is over what it starts from.
        bases: the fields of the state.
        summed: the fields whose sums over the grid the plan starts from, if it does.
        factor: what the sums are multiplied by.
    """

    plan: EllipsoidPlan
    bases: tuple[str, ...]
    summed: tuple[str, ...] = ()
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class TorusStage:
    """Steps from one start to one end.

    Attributes:
        start: the fields it starts from, each with log10 of its constant.
        operations: moves and activations.
        end: how it ends.
        sizes: entries per axis of its finest torus.
        fields: every field that is read, by name.
        readings: for every linear field the fields it is a sum of stencils of.
    """

    start: Mapping[str, float]
    operations: tuple[Move | Bend, ...]
    end: Close | Tail
    sizes: Grid
    fields: Mapping[str, GridField]
    readings: Mapping[str, tuple[tuple[Stencil, str], ...]]

    @property
    def unit(self) -> Grid:
        """What the sizes of a torus must be multiples of, per axis."""
        names = [name for operation in self.operations for name in _named(operation)] + list(self.end.bases)
        names += [self.end.operand] if isinstance(self.end, Close) else list(self.end.summed)
        levels = [self.fields[name].level for name in names]
        return tuple(math.lcm(*(level[axis] for level in levels)) for axis in range(len(self.sizes)))

    def rows(self, names: Sequence[str], bases: Sequence[str], turns: Tensor) -> Tensor:
        """Return fields as linear maps of the bases, `[p, channels of names, channels of bases]`.

        Args:
            names: the fields.
            bases: the fields they are linear maps of.
            turns: frequencies `[p, axes]`, in turns per entry of the stage's finest torus.
        """
        found: dict[str, dict[str, Tensor]] = {}
        blocks = [torch.cat([self._block(name, base, bases, turns, found) for base in bases], dim=2) for name in names]
        return torch.cat(blocks, dim=1)

    def _block(
        self, name: str, base: str, bases: Sequence[str], turns: Tensor, found: dict[str, dict[str, Tensor]]
    ) -> Tensor:
        paths = self._paths(name, bases, turns, found)
        shape = (turns.shape[0], self.fields[name].channels, self.fields[base].channels)
        if base not in paths:
            return torch.zeros(shape, dtype=torch.complex128, device=turns.device)
        return paths[base].expand(shape)

    def _paths(
        self, name: str, bases: Sequence[str], turns: Tensor, found: dict[str, dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        if name in bases:
            one = torch.eye(self.fields[name].channels, dtype=torch.complex128, device=turns.device)
            return {name: one[None]}
        if name not in found:
            paths: dict[str, Tensor] = {}
            for stencil, ref in self.readings[name]:
                level = torch.tensor(self.fields[ref].level, dtype=torch.float64, device=turns.device)
                matrix = stencil.at(turns * level)
                for base, earlier in self._paths(ref, bases, turns, found).items():
                    path = matrix @ earlier
                    paths[base] = paths[base] + path if base in paths else path
            found[name] = paths
        return found[name]


def _named(operation: Move | Bend) -> tuple[str, ...]:
    """Fields of both sides of an operation."""
    return operation.bases + (operation.names if isinstance(operation, Move) else (operation.operand,))
