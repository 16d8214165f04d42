"""Every symmetry put to the numbers, in float64: the output, the gradient, the Hessian, the Fisher information.

At a point where all scales in front of normalizers are so large that eps plays no part, a symmetry must hold to
rounding. At the weights as found the defect that eps leaves must be the one of the formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError, said
from ..core.progress import Progress
from ..graph.ir import Graph
from .actions import State, blank
from .candidate import Candidate
from .defect import defects
from .wide import Function

RAISED = 1e6
"""Factor on all scale-invariant weights at the point where eps plays no part."""
HOLDS = 1e-6
"""Share of the effect of a change by chance that a symmetry may have: rounding of float64 through deep networks."""
CURVED = 1e-4
"""The same for H X w + X^T grad: a second derivative loses twice as many digits."""
SEEN = 1e-9
"""Relative change of the output below which a change by chance counts as not seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetryEvidence:
    """What the numbers say of one symmetry; every figure is relative, `None` was not measured.

    Attributes:
        output_change: of the output under a random group element, at the weights as found, over its largest entry.
        output_change_no_eps: the same where eps plays no part.
        output_change_chance: the same for a change of the weights by chance, of about the same size.
        radial: largest derivative of a random linear loss along the symmetry, over norm(w) norm(grad); eps as found.
        radial_no_eps: where eps plays no part.
        radial_error: how far `radial` is from the formula of eps, in the same unit; None for exact symmetries.
        hessian: norm of H X w + X^T grad, over that for a direction by chance.
        fisher: Fisher information along the symmetry, over that along a direction by chance, eps as found.
        fisher_no_eps: where eps plays no part.
    """

    output_change: float
    output_change_no_eps: float
    output_change_chance: float
    radial: float
    radial_no_eps: float
    radial_error: float | None
    hessian: float | None
    fisher: float | None
    fisher_no_eps: float | None

    def fault(self) -> str | None:
        """Return why the symmetry does not stand; None if it does."""
        if not math.isfinite(self.output_change_no_eps) or self.output_change_no_eps > HOLDS * max(
            self.output_change_chance, SEEN
        ):
            return f"the output changes by {self.output_change_no_eps:.2g} of its size"
        if self.output_change_chance < SEEN:
            return "unseen: the output does not depend on these weights at this batch, so the check shows nothing"
        if not self.radial_no_eps <= HOLDS:
            return f"the gradient has a part of {self.radial_no_eps:.2g} along it"
        if self.radial_error is not None and not self.radial_error <= HOLDS:
            return f"the derivative along it differs from the formula of eps by {self.radial_error:.2g}"
        if self.hessian is not None and not self.hessian <= CURVED:
            return f"H X w + X^T grad is not zero but {self.hessian:.2g}"
        return None


def verify(
    function: Function, graph: Graph, candidates: list[Candidate], generator: torch.Generator
) -> list[SymmetryEvidence]:
    """Measure what the numbers say of every candidate.

    Args:
        function: the model's output by its parameters.
        graph: of the same batch.
        candidates: what the graph suggests.
        generator: of random group elements, losses and directions.
    """
    if not candidates:
        return []
    found = _Point(function, function.start, generator)
    weights = found.loss
    expected = defects(graph.double(), candidates, weights, found.output)
    raised = dict(function.start)
    for one in candidates:
        if one.feeds:
            lift = torch.full((one.action.units,), 2.0 * math.log(RAISED), dtype=torch.float64)
            raised = one.action.apply(raised, lift.to(weights.device))
    free = _Point(function, raised, generator)
    made = []
    with Progress("checking symmetries", total=len(candidates)) as progress:
        for place, one in enumerate(candidates):
            progress.step(one.path)
            made.append(_evidence(one, expected.get(place), found, free, generator))
    return made


def _evidence(
    one: Candidate, expected: Tensor | None, found: _Point, free: _Point, generator: torch.Generator
) -> SymmetryEvidence:
    action = one.action
    element = action.draw(found.state, generator)
    chance = _by_chance(one, free.state, generator)
    radial = action.inner(found.state, found.gradient)
    scale, scale_free = (_size(one, point.state, point.gradient) for point in (found, free))
    tangent = action.direction(free.state, element)
    curved, moved = free.products(tangent)
    other, drifted = free.products(chance)
    residual = {name: value + action.adjoint(free.gradient, element).get(name, 0.0) for name, value in curved.items()}
    base = _weighted(free.state, other) + _weighted(free.state, action.adjoint(free.gradient, element))
    as_found, by_chance = found.moved(action.direction(found.state, element)), found.moved(chance, relative_to=free)
    return SymmetryEvidence(
        output_change=found.change(action.apply(found.state, element)),
        output_change_no_eps=free.change(action.apply(free.state, element)),
        output_change_chance=free.change({name: value + chance.get(name, 0.0) for name, value in free.state.items()}),
        radial=_ratio(radial.abs().amax(), scale),
        radial_no_eps=_ratio(action.inner(free.state, free.gradient).abs().amax(), scale_free),
        radial_error=None if expected is None else _ratio((radial.cpu() - expected).abs().amax(), scale),
        hessian=_ratio(_weighted(free.state, residual), base),
        fisher=_ratio(found.information(as_found), found.information(by_chance)),
        fisher_no_eps=_ratio(free.information(moved), free.information(drifted)),
    )


class _Point:
    """A state of the parameters, with the output, a random linear loss, its gradient, and what differentiates them."""

    def __init__(self, function: Function, state: State, generator: torch.Generator) -> None:
        self.function, self.state = function, state
        leaves = {name: value.detach().clone().requires_grad_() for name, value in state.items()}
        output = function(leaves)
        drawn = torch.randn(output.shape, dtype=torch.float64, generator=generator).to(output.device)
        self.loss = drawn.requires_grad_()
        self._leaves = leaves
        made = torch.autograd.grad(
            (output * self.loss).sum(), list(leaves.values()), create_graph=True, allow_unused=True
        )
        self._made = dict(zip(leaves, made, strict=True))
        self.output = output.detach()
        self.gradient: dict[str, Tensor] = {
            name: torch.zeros_like(state[name])
            if value is None
            else torch.zeros_like(state[name]).copy_(value.detach())
            for name, value in self._made.items()
        }

    def products(self, direction: State) -> tuple[dict[str, Tensor], Tensor]:
        """Return the Hessian of the loss and the Jacobian of the output times a direction."""
        along = [(self._made[name] * value).sum() for name, value in direction.items() if self._made[name] is not None]
        zero = {name: torch.zeros_like(value) for name, value in self.state.items()}, torch.zeros_like(self.output)
        if not along:
            return zero
        total = torch.stack(along).sum()
        names = list(self._leaves)
        if not total.requires_grad:
            return zero
        wanted = [self.loss, *self._leaves.values()]
        try:
            made = torch.autograd.grad(total, wanted, retain_graph=True, allow_unused=True, materialize_grads=True)
        except RuntimeError as error:
            raise InputError(
                f"the model cannot be differentiated twice ({said(error)}), which the check of symmetries does: write "
                "that operator out in others, or measure the part of the model without it"
            ) from error
        return dict(zip(names, made[1:], strict=True)), made[0]

    def moved(self, direction: State, relative_to: _Point | None = None) -> Tensor:
        """Return the Jacobian of the output times a direction, which may be given at another point."""
        if relative_to is not None:
            direction = {name: _rescaled(v, relative_to.state[name], self.state[name]) for name, v in direction.items()}
        return self.products(direction)[1]

    def change(self, state: State) -> float:
        """Return by how much the output changes, over its largest entry."""
        with torch.no_grad():
            other = self.function(state)
        return _ratio((other - self.output).abs().amax(), self.output.abs().amax())

    def information(self, moved: Tensor) -> Tensor:
        """Return the Fisher information of a categorical output along a change of the logits: the mean over rows."""
        chances = self.output.softmax(-1)
        centre = (chances * moved).sum(-1, keepdim=True)
        return (chances * (moved - centre).square()).sum(-1).mean()


def _by_chance(one: Candidate, state: State, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a direction by chance in the weights of a candidate, half as large as they are."""
    made = blank(state, dict.fromkeys(piece.name for piece in one.weights))
    for piece in one.weights:
        part = piece.of(state)
        drawn = torch.randn(part.shape, dtype=torch.float64, generator=generator).to(part.device)
        piece.of(made).copy_(0.5 * drawn * part)
    return made


def _rescaled(direction: Tensor, there: Tensor, here: Tensor) -> Tensor:
    """Return a direction that is as large beside one tensor as it was beside another."""
    factor = torch.where(there != 0, here / there, 0.0)
    return direction * factor


def _size(one: Candidate, state: State, gradient: State) -> Tensor:
    """Return norm(w) norm(grad) of the parameters that a candidate speaks of."""
    names = dict.fromkeys((*one.action.names, *(piece.name for piece in one.weights)))
    return torch.stack([state[name].norm() * gradient[name].norm() for name in names]).sum()


def _weighted(state: State, values: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of norms, each times that of its parameter: a size that does not depend on their scales."""
    sizes = [state[name].norm() * value.norm() for name, value in values.items()]
    return torch.stack(sizes).sum() if sizes else torch.zeros((), dtype=torch.float64)


def _ratio(value: Tensor, base: Tensor) -> float:
    """Return a quotient; 0 for zero over zero."""
    top, bottom = float(value), float(base)
    return 0.0 if top == 0.0 else top / bottom if bottom else math.inf
