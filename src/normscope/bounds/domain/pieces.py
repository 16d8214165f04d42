"""Pieces of a derivative, and what every treatment of an operator answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ...graph.ir import Node
from ...rules.effects import Effect
from ...rules.local.local import UnrolledStep
from .conditions import DomainCondition

Limits = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class DerivativeValue:
    """A value of the unrolled derivative: its name, what it reads, its shape and its effect."""

    name: str
    refs: tuple[str, ...]
    shape: tuple[int, ...]
    effect: Effect


class Treatment(ABC):
    """One operator: its conditions, and its pieces once their limits are known."""

    def __init__(self, node: Node, effect: Effect, steps: Sequence[UnrolledStep]) -> None:
        self.node, self.effect, self.steps = node, effect, steps
        self.conditions: tuple[DomainCondition, ...] = ()
        self.refs = node.refs

    @abstractmethod
    def pieces(self, limits: Limits) -> list[DerivativeValue]:
        """Return the pieces; the last one bears the node's name."""

    def whole(self, effect: Effect) -> list[DerivativeValue]:
        """Return the node as one piece."""
        return [DerivativeValue(self.node.name, self.refs, self.node.shape, effect)]


def inverse_deviations(limits: Tensor, eps: float) -> Tensor:
    """Return 1/sqrt(v + eps) for the least variances v = -limits, rounded up."""
    return ((-limits).clamp(min=0.0) + eps).rsqrt() * (1 + 1e-12)
