"""Linear maps that can be applied, transposed, folded into one another and written out.

Every map acts on a leading batch dimension: `apply` takes `[b, *in_shape]` to `[b, *out_shape]`. Numbers are kept in
the dtype they came in (float16 and bfloat16 weights become float32); norms are taken in float64 (`operator_norms.py`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

Shape = tuple[int, ...]


class LinearMap(ABC):
    """A linear map from tensors of `in_shape` to tensors of `out_shape`."""

    in_shape: Shape
    out_shape: Shape
    device: torch.device = torch.device("cpu")
    slack: float = 0.0
    """A bound on the norm of the difference between this map and the exact one that it was folded from."""
    origin: LinearMap | None = None
    """The maps that this one was folded from, if any; they tell how much has cancelled."""

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """Map a batch `[b, *in_shape]` to `[b, *out_shape]`, in the dtype of `x`."""

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `[b, *out_shape]` to `[b, *in_shape]`, in the dtype of `y`."""

    @cached_property
    def worked_out(self) -> dict[Callable[[LinearMap], Any], Any]:
        """What functions have found out about the map (`cached_per_map`)."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave what was worked out behind when the map is pickled: it is found out again where it is asked for."""
        return {name: value for name, value in self.__dict__.items() if name != "worked_out"}

    @property
    def in_size(self) -> int:
        """Number of input entries."""
        return math.prod(self.in_shape)

    @property
    def out_size(self) -> int:
        """Number of output entries."""
        return math.prod(self.out_shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.in_shape)} -> {list(self.out_shape)})"


class Identity(LinearMap):
    """The identity, possibly between two shapes with the same entries in the same order."""

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int] | None = None) -> None:
        self.in_shape = tuple(in_shape)
        self.out_shape = self.in_shape if out_shape is None else tuple(out_shape)
        if self.in_size != self.out_size:
            raise ValueError(f"identity between shapes of different size: {in_shape} and {out_shape}")

    def apply(self, x: Tensor) -> Tensor:
        """Return `x` in the output shape."""
        return x.reshape(x.shape[0], *self.out_shape)

    def adjoint(self, y: Tensor) -> Tensor:
        """Return `y` in the input shape."""
        return y.reshape(y.shape[0], *self.in_shape)


class Diagonal(LinearMap):
    """Entrywise multiplication by `scale`, a tensor that broadcasts to the shape."""

    def __init__(self, scale: Tensor, shape: Sequence[int]) -> None:
        self.in_shape = self.out_shape = tuple(shape)
        self.scale = scale.detach()
        self.device = scale.device
        torch.broadcast_shapes(self.scale.shape, self.in_shape)

    def apply(self, x: Tensor) -> Tensor:
        """Multiply entrywise."""
        return x * self.scale.to(x.dtype)

    def adjoint(self, y: Tensor) -> Tensor:
        """Multiply entrywise: a diagonal is its own transpose."""
        return self.apply(y)

    def channels(self, dim: int) -> Tensor | None:
        """Return the scale as one value per index of `dim`, or None if it varies along another dimension."""
        shape = (1,) * (len(self.in_shape) - self.scale.ndim) + tuple(self.scale.shape)
        dim %= len(self.in_shape)
        if any(size != 1 for axis, size in enumerate(shape) if axis != dim):
            return None
        return self.scale.reshape(-1).expand(self.in_shape[dim])


class Matrix(LinearMap):
    """`x -> x @ weight.T` on the last dimension, repeated over the leading ones."""

    def __init__(self, weight: Tensor, leading: Sequence[int] = ()) -> None:
        self.weight = at_least_float32(weight)
        self.device = weight.device
        self.in_shape = (*leading, weight.shape[1])
        self.out_shape = (*leading, weight.shape[0])

    def apply(self, x: Tensor) -> Tensor:
        """Multiply the last dimension by the matrix."""
        return x @ self.weight.to(x.dtype).T

    def adjoint(self, y: Tensor) -> Tensor:
        """Multiply the last dimension by the transpose."""
        return y @ self.weight.to(y.dtype)


class Reindex(LinearMap):
    """Each output entry copies the input entry `index` names, or is zero where `index` is -1.

    Covers permute, slice, expand, pad, flip, cat (its part for one input), pixel shuffles and gathers.
    """

    def __init__(self, index: Tensor, in_shape: Sequence[int]) -> None:
        self.in_shape = tuple(in_shape)
        self.out_shape = tuple(index.shape)
        self.index = index.reshape(-1).to(torch.int64)
        self.device = index.device
        self._zeros = bool((self.index < 0).any())

    @classmethod
    def of(cls, function: Callable[[Tensor], Tensor], in_shape: Sequence[int], device: Any = "cpu") -> LinearMap:
        """Read the indices off a function that only moves, copies and zero-fills entries."""
        shape = tuple(in_shape)
        size = math.prod(shape)
        ids = torch.arange(1, size + 1, dtype=torch.float64, device=device).reshape(shape)
        moved = function(ids)
        rounded = moved.round().to(torch.int64) - 1
        if moved.dtype != torch.float64 or not torch.equal((rounded + 1).to(torch.float64), moved):
            raise ValueError("the function does more than move entries")
        if moved.numel() == size and torch.equal(rounded.reshape(-1), torch.arange(size, device=device)):
            return Identity(shape, moved.shape)
        return cls(rounded, shape)

    def counts(self) -> Tensor:
        """Return how often each input entry is copied."""
        used = self.index[self.index >= 0]
        return torch.bincount(used, minlength=self.in_size)

    def apply(self, x: Tensor) -> Tensor:
        """Gather the named entries."""
        flat = x.reshape(x.shape[0], -1)
        index = self.index.clamp(min=0) if self._zeros else self.index
        out = flat.gather(1, index.expand(len(flat), -1))  # this is several times as fast as flat[:, index]
        if self._zeros:
            out = torch.where(self.index >= 0, out, torch.zeros((), dtype=x.dtype, device=x.device))
        return out.reshape(x.shape[0], *self.out_shape)

    def adjoint(self, y: Tensor) -> Tensor:
        """Add every output entry to the input entry that it was copied from."""
        flat = y.reshape(y.shape[0], -1)
        kept = self.index >= 0
        out = torch.zeros(y.shape[0], self.in_size, dtype=y.dtype, device=y.device)
        out.index_add_(1, self.index[kept], flat[:, kept])
        return out.reshape(y.shape[0], *self.in_shape)


class Centering(LinearMap):
    """Subtract the mean over each normalized set: the last `dims` dimensions of the shape."""

    def __init__(self, shape: Sequence[int], dims: int = 1) -> None:
        self.in_shape = self.out_shape = tuple(shape)
        self.dims = dims

    def apply(self, x: Tensor) -> Tensor:
        """Subtract the mean."""
        return x - x.mean(dim=tuple(range(-self.dims, 0)), keepdim=True)

    def adjoint(self, y: Tensor) -> Tensor:
        """Subtract the mean: a projection is its own transpose."""
        return self.apply(y)


class Coded(LinearMap):
    """A linear function given as code.

    `function` acts on a batch `[b, *in_shape]`; the adjoint comes from autograd.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        in_shape: Sequence[int],
        out_shape: Sequence[int],
        device: Any = "cpu",
    ) -> None:
        self.function = function
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        self.device = torch.device(device)

    def apply(self, x: Tensor) -> Tensor:
        """Run the function."""
        return self.function(x).reshape(x.shape[0], *self.out_shape)

    def adjoint(self, y: Tensor) -> Tensor:
        """Run the transpose through autograd."""
        zero = torch.zeros(y.shape[0], *self.in_shape, dtype=y.dtype, device=y.device, requires_grad=True)
        with torch.enable_grad():
            (grad,) = torch.autograd.grad(self.apply(zero), zero, y)
        return grad


class Averaging(Coded):
    """A linear function given as code whose matrix has no negative entry (pooling, means, interpolation).

    The Schur test bounds its norm: the root of the largest row sum times the largest column sum.
    """


class Bounded(Coded):
    """A linear function given as code whose norm is known from its structure, up to rounding."""

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        in_shape: Sequence[int],
        out_shape: Sequence[int],
        norm: float,
        why: str,
        device: Any = "cpu",
    ) -> None:
        super().__init__(function, in_shape, out_shape, device)
        self.norm, self.why = norm, why


class Composite(LinearMap):
    """Maps applied one after the other, the first in `parts` first."""

    def __init__(self, parts: Sequence[LinearMap]) -> None:
        self.parts = tuple(parts)
        self.in_shape, self.out_shape = self.parts[0].in_shape, self.parts[-1].out_shape
        self.device = _device(parts)

    def apply(self, x: Tensor) -> Tensor:
        """Apply the parts in order."""
        for part in self.parts:
            x = part.apply(x)
        return x

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transposes in reverse order."""
        for part in reversed(self.parts):
            y = part.adjoint(y)
        return y


class Repeated(LinearMap):
    """One map applied to every slice of some leading dimensions: block diagonal, with the norm of one block."""

    def __init__(self, inner: LinearMap, leading: Sequence[int]) -> None:
        self.inner, self.leading = inner, tuple(leading)
        self.in_shape, self.out_shape = (*self.leading, *inner.in_shape), (*self.leading, *inner.out_shape)
        self.device = inner.device

    def apply(self, x: Tensor) -> Tensor:
        """Apply the map to every slice."""
        return self.inner.apply(x.reshape(-1, *self.inner.in_shape)).reshape(-1, *self.out_shape)

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose to every slice."""
        return self.inner.adjoint(y.reshape(-1, *self.inner.out_shape)).reshape(-1, *self.in_shape)


class Sum(LinearMap):
    """Maps with the same input whose outputs are added."""

    def __init__(self, terms: Sequence[LinearMap]) -> None:
        self.terms = tuple(terms)
        self.in_shape, self.out_shape = self.terms[0].in_shape, self.terms[0].out_shape
        self.device = _device(terms)

    def apply(self, x: Tensor) -> Tensor:
        """Add the terms' outputs."""
        return sum((term.apply(x) for term in self.terms[1:]), self.terms[0].apply(x))

    def adjoint(self, y: Tensor) -> Tensor:
        """Add the terms' transposes."""
        return sum((term.adjoint(y) for term in self.terms[1:]), self.terms[0].adjoint(y))


def at_least_float32(weight: Tensor) -> Tensor:
    """Return a weight in a dtype that products can be taken in."""
    weight = weight.detach()
    return weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight


def _device(parts: Sequence[LinearMap]) -> torch.device:
    return next((p.device for p in parts if not isinstance(p, Identity | Centering)), torch.device("cpu"))


Found = TypeVar("Found")


def cached_per_map(function: Callable[[LinearMap], Found]) -> Callable[[LinearMap], Found]:
    """Let every map keep what a function finds out about it, so that this is worked out once."""

    @wraps(function)
    def work_out_once(linear: LinearMap) -> Found:
        if function not in linear.worked_out:
            linear.worked_out[function] = function(linear)
        answer: Found = linear.worked_out[function]
        return answer

    return work_out_once
