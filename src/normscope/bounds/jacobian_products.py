"""Products with the Jacobians of all samples of a batch at once: one pass of the whole batch each, and counted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.cost import count
from ..core.errors import JacobianError
from ..core.sizes import norm
from .derivative import BatchFunction

LIFT = 300
"""Powers of two by which a product is lifted, at most, to see what vanishes in it."""


class Tangents:
    """Products of a Jacobian with rows of inputs, by two backward passes.

    The gradient along a dual is linear in the dual, and its own gradient is the product: operators need no rule for
    forward derivatives, but they must be differentiable twice.

    Args:
        value: of the function.
        point: where it was taken, with gradients required.

    Attributes:
        reaches: whether the value depends on the point through differentiable operators.

    Raises:
        RuntimeError, NotImplementedError: an operator that autograd differentiates only once.
    """

    def __init__(self, value: Tensor, point: Tensor) -> None:
        self._dual = torch.zeros_like(value, requires_grad=True)
        (pulled,) = torch.autograd.grad(value, point, self._dual, create_graph=True, allow_unused=True)
        self._pulled: Tensor | None = pulled
        self.reaches = pulled is not None and pulled.requires_grad

    def __call__(self, rows: Tensor, *, again: bool = False) -> Tensor:
        """Return the Jacobian times one row of inputs; `again` makes it differentiable in its turn."""
        assert self._pulled is not None, "the value does not depend on the point"
        (found,) = torch.autograd.grad(self._pulled, self._dual, rows, retain_graph=True, create_graph=again)
        return found


class Products:
    """Products with the Jacobians at the rows of a batch, and with their transposes.

    Independent samples make the Jacobian of the batch block diagonal: one product of the whole batch is one product of
    every sample with a vector of its own. Nothing is read back from the device.

    Attributes:
        taken: how many products were taken: backward passes of the whole batch.
        dtype: in which they are taken.

    Raises:
        JacobianError: the output is not differentiable in the input.
    """

    def __init__(self, local: BatchFunction) -> None:
        self.taken = 0
        self.point = local.point.detach().requires_grad_(True)
        self.value = local.function(self.point)
        self.dtype = self.point.dtype
        self._tangents: Tangents | None = None
        if not self.value.requires_grad:
            raise JacobianError("the output is not differentiable in the input")

    def _took(self) -> None:
        """Count one product."""
        self.taken += 1
        count("backwards", len(self.point))

    def pull(self, rows: Tensor) -> Tensor:
        """Return one row of outputs times the Jacobian of each sample, in float64."""
        self._took()
        (found,) = torch.autograd.grad(
            self.value, self.point, rows.to(self.value), retain_graph=True, allow_unused=True
        )
        if found is None:
            raise JacobianError("no gradient reaches the input: the path leads through operators without a derivative")
        return found.detach().double()

    def push(self, rows: Tensor) -> Tensor:
        """Return the Jacobian of each sample times one row of inputs, in float64."""
        if self._tangents is None:
            self._took()
            self._tangents = Tangents(self.value, self.point)
        if not self._tangents.reaches:
            raise JacobianError("the output does not depend on the input through differentiable operators")
        self._took()
        return self._tangents(rows.to(self.point)).detach().double()

    def normal(self, rows: Tensor, scale: Tensor, lift: Tensor | float = 1.0) -> Tensor:
        """Return J^T J v / scale^2 for one row v of each sample, where no square leaves the range of floats."""
        image = self.push(rows * lift) / lift
        size = norm(image, 1, keepdim=True)
        size = torch.where(size > 0, size, 1.0)
        return self.pull(image / size * lift) / lift / scale * (size / scale)

    def rows(self) -> Tensor:
        """Return the whole Jacobian of each sample by its rows, in float64: one product for each output."""
        return torch.stack([self.pull(unit) for unit in _units(self.value)], dim=1)

    def columns(self) -> Tensor:
        """Return the whole Jacobian of each sample by its columns, in float64: one product for each input."""
        return torch.stack([self.push(unit) for unit in _units(self.point)], dim=2)

    def lift(self, sizes: Tensor) -> Tensor:
        """Return factors `[samples, 1]` by which products of some sizes can be lifted and stay floats.

        Products are linear. What a lifted product shows beyond the plain one had vanished on the way; and as the factor
        is no power of two, roundings fall otherwise, so that terms that cancel show how much of them is rounding.
        """
        half = int(math.log2(torch.finfo(self.dtype).max)) // 2
        room = (half - torch.frexp(sizes.reshape(-1, 1)).exponent).clamp(0, min(LIFT, half))
        return torch.ldexp(torch.full_like(room, 4 / 3, dtype=torch.float64), room)


def _units(like: Tensor) -> list[Tensor]:
    """Return the unit rows of each sample, one after another."""
    kinds = torch.eye(like.shape[1], dtype=like.dtype, device=like.device)
    return [unit.expand(like.shape) for unit in kinds]
