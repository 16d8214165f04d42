"""The divergence of a drawn code from a standard normal one, as the loss of a variational autoencoder holds it.

The loss is the user's function: what is in it shows in its gradient with respect to what the model returns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...calls.batches import LossFunction
from ...calls.call import map_leaves
from ...core.codec import JsonForm, Part
from ...core.errors import InputError
from ...listening.calls import float_tensors
from .objective import take_loss

MAX_MISFIT = 1e-3
"""The part of the gradient that may be left unexplained, as a share of it."""
ROUNDING = 1e-5
"""A share by which two gradients may differ in float32 though they are the same."""
ALONE_SHARE = 0.5
"""The share of untaught units at which a layer counts as untaught: one layer may make the mean with half of its units
and the spread with the others, and a loss may teach one half alone."""
FORMS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda mean, log_variance: 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance),
    lambda mean, log_deviation: 0.5 * (mean.square() + (2.0 * log_deviation).exp() - 1.0) - log_deviation,
    lambda mean, deviation: 0.5 * (mean.square() + deviation.square() - 1.0) - deviation.log(),
    lambda mean, variance: 0.5 * (mean.square() + variance - 1.0 - variance.log()),
)
"""The divergence of a normal distribution from the standard one, by what a model may return beside the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence(Part):
    """The divergence that a loss holds.

    Attributes:
        weight: its factor beside the mean of the samples; below zero the loss falls where the divergence grows.
        untaught: modules that get no gradient from any other part of the loss, though they make the code.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=("untaught",))

    weight: float
    untaught: tuple[str, ...] = ()


@dataclass(frozen=True)
class DivergenceTerm:
    """Where a loss holds the divergence: the places of mean and spread among the floats that the model returns."""

    mean: int
    spread: int
    form: Callable[[Tensor, Tensor], Tensor]
    factor: float

    def of(self, made: Any) -> Tensor:
        """Return the divergence with its factor, of what the model returns."""
        values = _floats_of(made)
        return self.factor * self.form(values[self.mean], values[self.spread]).sum()


def _floats_of(made: Any) -> list[Tensor]:
    """Return the float tensors in the nest that a model returned."""
    values: list[Tensor] = []
    map_leaves(lambda leaf: values.extend(float_tensors(leaf)) if isinstance(leaf, Tensor) else None, made)
    return values


def find_divergence(
    loss: LossFunction, made: Any, output: str | int | None, labels: Sequence[Any]
) -> DivergenceTerm | None:
    """Return where a loss holds the divergence; None if its gradient shows none.

    The gradient is taken at random values between 0.25 and 0.75 that stand in for what the model returns, so that it
    shows the loss alone: not what the model has learned, nor values that are not finite.
    """
    shapes = [value.shape for value in _floats_of(made)]
    if len(set(shapes)) == len(shapes):
        return None
    generator, leaves = torch.Generator().manual_seed(0), list[Tensor]()

    def stand_in(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not float_tensors(leaf):
            return leaf
        drawn = 0.25 + 0.5 * torch.rand(leaf.shape, generator=generator)
        leaves.append(drawn.to(leaf.device, leaf.dtype).requires_grad_(True))
        return leaves[-1]

    try:
        value = take_loss(loss, map_leaves(stand_in, made), output, labels)
        gradients = torch.autograd.grad(value, leaves, allow_unused=True)
    except (InputError, RuntimeError):  # a loss may refuse such values, or read none of them
        return None
    read = [k for k, gradient in enumerate(gradients) if gradient is not None and bool(gradient.any())]
    for mean, spread in itertools.permutations(read, 2):
        if shapes[mean] == shapes[spread]:
            pair, gradient = (leaves[mean], leaves[spread]), torch.stack([gradients[mean], gradients[spread]]).double()
            for form in FORMS:
                slopes = torch.stack(torch.autograd.grad(form(*pair).sum(), pair)).double()
                factor = (gradient * slopes).sum() / slopes.square().sum()
                if bool((gradient - factor * slopes).norm() < MAX_MISFIT * gradient.norm()):
                    return DivergenceTerm(mean=mean, spread=spread, form=form, factor=float(factor))
    return None


def find_untaught(gradients: Mapping[str, Tensor], of_divergence: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the modules of which half of the units, or more, have the gradient of the divergence and nothing else."""
    untaught: dict[str, None] = {}
    for name, gradient in of_divergence.items():
        if name in gradients and gradient.ndim and bool(gradient.any()):
            whole, part = (values.double().reshape(len(values), -1) for values in (gradients[name], gradient))
            is_alone = ((whole - part).norm(dim=1) <= ROUNDING * part.norm(dim=1)) & part.any(dim=1)
            if float(is_alone.double().mean()) >= ALONE_SHARE:
                untaught.setdefault(name.rpartition(".")[0] or name)
    return tuple(untaught)
