"""`Multipliers`: what a run of the ellipsoid engine leaves for a proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """A run of the ellipsoid engine: its multipliers, where it starts and what it bounds.

    Attributes:
        sigma: by name of a nonlinear node, one number per entry (of one slice, where slices are treated alike), or one
            for all; in units of the input's change.
        log10: of the bound that it proves.
        start: the values the state starts from, with log10 of C_j such that the changes ds_j of these values obey
            sum norm(ds_j)^2/C_j^2 <= norm(dx)^2; empty for the inputs.
        cores: whether `start` names the cores of nonlinear nodes, before their scale, rather than their values.
        at: the value that is bounded (the operands of a node known by its gains); None for the output.
        into: the activation whose operand is bounded instead.
    """

    sigma: Mapping[str, Tensor]
    log10: float
    start: Mapping[str, float] = field(default_factory=dict)
    cores: bool = False
    at: str | None = None
    into: str | None = None
