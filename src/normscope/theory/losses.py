"""Lipschitz constants of losses with respect to the logits (l2), each beside the constant that the papers print.

A loss here is the loss of one row of K outputs (logits or predictions) against one target; over R rows (tokens,
samples of a batch) it is their plain mean, whose constant is c/sqrt(R) in the l2 norm of all rows together. Every
constant is the supremum of the gradient's norm over all outputs and targets: no smaller one holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.bracket import Evidence
from ..core.errors import InputError
from ..core.rounding import ZERO, Upper

ALLOWANCE = 1e-14
"""An allowance for the rounding of the few float64 operations behind a constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss of one row of outputs, with its Lipschitz constant.

    Attributes:
        name: the name in messages and tables.
        targets: `"classes"` for the index of one class per row, `"values"` for as many numbers as outputs.
        constant: the exact constant in the l2 norm of a row, given the number of its outputs.
        rows: the loss of every row: outputs `[R, n]` and targets (`[R]` or `[R, n]`) to `[R]`.
        reference: where the constant comes from.
        as_printed: the constant a paper prints for it, if one does.
        reason: why the constant is infinite, if it is.
        most: the largest value of the loss, or infinity.
    """

    name: str
    targets: Literal["classes", "values"]
    constant: Callable[[int], float]
    rows: Callable[[Tensor, Tensor], Tensor]
    reference: str
    as_printed: float | None = None
    reason: str | None = None
    most: float = math.inf

    def upper(self, outputs: int, rows: int = 1) -> Upper:
        """Return the constant of the mean over `rows` rows of `outputs` each, rounded outward.

        Example:
            >>> round(10 ** cross_entropy().upper(10).log10, 6)
            1.414214
        """
        value = self.constant(outputs) / math.sqrt(rows)
        if not value >= 0.0:
            raise InputError(f"the loss {self.name} has the constant {value:g}: a Lipschitz constant is at least 0")
        if value == math.inf:
            return Upper.infinite(self.reason or f"the loss {self.name} has no finite constant")
        if value == 0.0:
            return ZERO
        return Upper.of(value, Evidence.PROVEN, f"constant of {self.name}", allowance=ALLOWANCE)

    def printed_is_bound(self, outputs: int) -> bool:
        """Whether the printed constant is at least the exact one (True where none is printed)."""
        return self.as_printed is None or self.as_printed >= self.constant(outputs) * (1 - 1e-12)


def cross_entropy(*, label_smoothing: float = 0.0, weight: Tensor | None = None) -> Loss:
    """Return the cross entropy: sqrt(2) for K >= 2 classes, 0 for one.

    The gradient is A p - a with p the softmax, a_c = w_c q_c, q the (smoothed) target and A the sum of a. It is convex
    in p, so its norm is largest in a corner of the simplex: A^2 - 2 A min_j a_j + norm(a)^2, over the targets. Without
    smoothing and weights that is 1 + 1. It is approached as the logits grow and attained nowhere. Rows are averaged
    plainly, not divided by their weights as torch does.
    """
    if not 0.0 <= label_smoothing <= 1.0:
        raise InputError(f"label_smoothing is {label_smoothing}: it must lie between 0 and 1")
    factors = None if weight is None else weight.detach().double().reshape(-1)
    if factors is not None and (bool((factors < 0).any()) or not bool(torch.isfinite(factors).all())):
        raise InputError("the weights of the classes must be finite and not negative")

    def constant(classes: int) -> float:
        if factors is not None and len(factors) != classes:
            raise InputError(f"{len(factors)} class weights for {classes} classes")
        scale = torch.ones(classes, dtype=torch.float64) if factors is None else factors.cpu()
        if classes == 1:
            return 0.0
        spread = scale * label_smoothing / classes  # this is a without the label's own share
        own = (1.0 - label_smoothing) * scale
        least = spread.topk(2, largest=False)
        others = torch.where(torch.arange(classes) == least.indices[0], least.values[1], least.values[0])
        total, smallest = spread.sum() + own, torch.minimum(others, spread + own)
        squares = spread.square().sum() - spread.square() + (spread + own).square()
        return math.sqrt(float((total * (total - 2.0 * smallest) + squares).max()))

    def rows(logits: Tensor, targets: Tensor) -> Tensor:
        class_weights = None if factors is None else factors.to(logits)
        return F.cross_entropy(logits, targets, weight=class_weights, label_smoothing=label_smoothing, reduction="none")

    name = "cross entropy" if not label_smoothing else f"cross entropy (smoothing {label_smoothing:g})"
    return Loss(name=name, targets="classes", constant=constant, rows=rows, reference="gradient p - e_y")


def clipped_cross_entropy(clip: float = 10.0) -> Loss:
    """Return min(cross entropy, clip): sqrt(2) (1 - exp(-clip)) for K >= 2.

    Where it is not clipped p_y > exp(-clip), and norm(p - e_y)^2 = (1 - p_y)^2 + sum of p_j^2 <= 2 (1 - p_y)^2, with
    equality when one other class has all the rest.
    """
    _positive("clip", clip)
    return Loss(
        name=f"cross entropy clipped at {clip:g}",
        targets="classes",
        constant=lambda classes: 0.0 if classes == 1 else -math.sqrt(2.0) * math.expm1(-clip),
        rows=lambda logits, targets: F.cross_entropy(logits, targets, reduction="none").clamp(max=clip),
        reference="gradient p - e_y where p_y > exp(-clip)",
        most=clip,
    )


def probability() -> Loss:
    """Return 1 - p_y, the probability of an error: sqrt(2)/4 for K >= 2.

    The gradient is p_y (p - e_y), of squared norm p_y^2 ((1 - p_y)^2 + sum of p_j^2) <= 2 (p_y (1 - p_y))^2 <= 2/16,
    with equality at p_y = p_j = 1/2.
    """
    return Loss(
        name="probability loss",
        targets="classes",
        constant=lambda classes: 0.0 if classes == 1 else math.sqrt(2.0) / 4.0,
        rows=lambda logits, targets: 1.0 - logits.softmax(-1).gather(-1, targets[:, None])[:, 0],
        reference="gradient p_y (p - e_y)",
        most=1.0,
    )


def hinge(margin: float = 1.0) -> Loss:
    """Return max(0, margin - (h_y - max of the others)): sqrt(2) for K >= 2, the gradient being e_j - e_y."""
    _positive("margin", margin)
    return Loss(
        name=f"hinge loss (margin {margin:g})",
        targets="classes",
        constant=lambda classes: 0.0 if classes == 1 else math.sqrt(2.0),
        rows=lambda logits, targets: (margin - margins(logits, targets)).clamp(min=0.0),
        reference="gradient e_j - e_y",
    )


def ramp(margin: float = 1.0) -> Loss:
    """Return the hinge loss over its margin, clipped at 1: sqrt(2)/margin for K >= 2."""
    _positive("margin", margin)
    return Loss(
        name=f"ramp loss (margin {margin:g})",
        targets="classes",
        constant=lambda classes: 0.0 if classes == 1 else math.sqrt(2.0) / margin,
        rows=lambda logits, targets: (1.0 - margins(logits, targets) / margin).clamp(0.0, 1.0),
        reference="gradient (e_j - e_y)/margin",
        most=1.0,
    )


def margins(logits: Tensor, targets: Tensor) -> Tensor:
    """Return h_y less the largest other logit of every row (`inf` for a single class)."""
    own = logits.gather(-1, targets[:, None])[:, 0]
    others = logits.scatter(-1, targets[:, None], -math.inf)
    return own - others.amax(-1)


def binary_cross_entropy() -> Loss:
    """Return the sum over outputs of binary cross entropies of logits, for targets in [0, 1].

    The root of the number of outputs, every slope sigmoid(h) - y being in (-1, 1); approached as the logits grow.
    """

    def rows(logits: Tensor, targets: Tensor) -> Tensor:
        if bool(((targets < 0) | (targets > 1)).any()):
            raise InputError("the targets of a binary cross entropy must lie between 0 and 1")
        return F.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="none").sum(-1)

    return Loss(
        name="binary cross entropy",
        targets="values",
        constant=math.sqrt,
        rows=rows,
        reference="gradient sigmoid(h) - y",
    )


def l1() -> Loss:
    """Return norm(h - y)_1: the root of the number of outputs, the gradient being signs. Corollary 14 takes 1."""
    return Loss(
        name="l1",
        targets="values",
        constant=math.sqrt,
        rows=lambda logits, targets: (logits - targets.to(logits)).abs().sum(-1),
        reference="gradient sign(h - y)",
        as_printed=1.0,
    )


def mse() -> Loss:
    """Return norm(h - y)^2: no finite constant, its gradient 2 (h - y) grows with the error."""
    return Loss(
        name="squared error",
        targets="values",
        constant=lambda outputs: math.inf,
        rows=lambda logits, targets: (logits - targets.to(logits)).square().sum(-1),
        reference="gradient 2 (h - y)",
        reason="the squared error is Lipschitz on bounded sets only: take clipped_mse, 2 sqrt(clip)",
    )


def clipped_mse(clip: float = 1.0) -> Loss:
    """Return min(norm(h - y)^2, clip): 2 sqrt(clip), the squared error on the set where it is at most `clip`."""
    _positive("clip", clip)
    return Loss(
        name=f"squared error clipped at {clip:g}",
        targets="values",
        constant=lambda outputs: 2.0 * math.sqrt(clip),
        rows=lambda logits, targets: (logits - targets.to(logits)).square().sum(-1).clamp(max=clip),
        reference="gradient 2 (h - y) where norm(h - y)^2 < clip",
        most=clip,
    )


LOSSES: Mapping[str, Callable[[], Loss]] = {
    "cross_entropy": cross_entropy,
    "clipped_cross_entropy": clipped_cross_entropy,
    "probability": probability,
    "hinge": hinge,
    "ramp": ramp,
    "binary_cross_entropy": binary_cross_entropy,
    "l1": l1,
    "mse": mse,
    "clipped_mse": clipped_mse,
}
"""The losses by the names that `weight_sensitivity` takes, each with its default parameters."""


TRAINING_LOSSES: Mapping[str, Callable[..., Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "nll": F.nll_loss,
    "bce": F.binary_cross_entropy,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "kl_div": F.kl_div,
}
"""The losses of torch that models are trained with, by name; each is the mean over all entries."""


def named(loss: str | Loss) -> Loss:
    """Return a loss by its name, or the loss itself."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str) or loss not in LOSSES:
        raise InputError(
            f"loss is {loss!r}: known are {', '.join(LOSSES)}; or pass a function of outputs and targets, or a Loss "
            "made by a function of normscope.theory.losses"
        )
    return LOSSES[loss]()


def _positive(name: str, value: float) -> None:
    if not (value > 0.0 and math.isfinite(value)):
        raise InputError(f"{name} is {value}: it must be positive and finite")
