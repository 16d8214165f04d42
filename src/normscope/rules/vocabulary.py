"""The vocabulary of proofs: what a nonlinear operator is, as data that `bounds/proofs/network_script.py` writes down.

A rule gives the word of its operator. What has none is opaque in a proof: the checker does not follow it, and says so.
A linear operator needs no word, since its map is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class EntrywiseWord:
    """A function of single entries, by the name that the checker knows, with its parameters (one, or one per entry)."""

    function: str
    parameters: Mapping[str, float | Tensor]


@dataclass(frozen=True, slots=True)
class NormalizedSets:
    """What a normalizer divides by the root mean square: the axes of a view that make up one set.

    Attributes:
        view, axes: the value in the shape `view`, one set along `axes`.
        eps: under the root.
        scale, shift: in a shape that broadcasts to the value's.
        centred: whether the mean of the set is subtracted first.
        groups: the number of groups of channels, on axis 1, with statistics of their own; None where the sets are made
            of whole dimensions.
        running: whether the statistics are stored ones, so that the operator is linear.
    """

    view: tuple[int, ...]
    axes: tuple[int, ...]
    eps: float
    scale: Tensor | None
    shift: Tensor | None
    centred: bool = True
    groups: int | None = None
    running: bool = False


@dataclass(frozen=True, slots=True)
class SoftmaxWord:
    """A softmax along one axis, or its logarithm: `kind` is `"softmax"` or `"log_softmax"`."""

    kind: str
    axis: int


@dataclass(frozen=True, slots=True)
class GatedWord:
    """The first half along an axis times the sigmoid of the second."""

    axis: int


@dataclass(frozen=True, slots=True)
class WindowsWord:
    """The largest (or the lowest) entry of every window.

    Attributes:
        index: the entries each output looks at, `[outputs, taps]` (-1 for none), within every slice of the leading
            dimensions.
        leading: the number of these dimensions.
        lowest: whether the lowest entry is taken.
    """

    index: Tensor
    leading: int
    lowest: bool = False


@dataclass(frozen=True, slots=True)
class LargerWord:
    """The larger (or the lower) of two values, entry by entry."""

    lowest: bool


@dataclass(frozen=True, slots=True)
class ProductWord:
    """The product of two values, entry by entry."""


@dataclass(frozen=True, slots=True)
class MatmulWord:
    """The product of two stacks of matrices."""


@dataclass(frozen=True, slots=True)
class AttentionWord:
    """softmax(scale Q K^T + bias) V; the three are values of the graph (`Ref`) or constants."""

    query: Any
    key: Any
    value: Any
    scale: float
    bias: Tensor | None


Word = (
    EntrywiseWord
    | NormalizedSets
    | SoftmaxWord
    | GatedWord
    | WindowsWord
    | LargerWord
    | ProductWord
    | MatmulWord
    | AttentionWord
)
