"""The numerical check of every symmetry, in float64: the output, the gradient, the Hessian, the Fisher information.

At weights so large in front of normalizers that eps plays no part, a symmetry must hold up to rounding. At the weights
as found, the defect that eps leaves must be the one that the formula gives.
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
"""The factor on all scale-invariant weights at the point where eps plays no part."""
HOLDS = 1e-6
"""How large the effect of a symmetry may be, relative to a random change: float64 rounds so much in deep networks."""
CURVED = 1e-4
"""The same limit for H X w + X^T grad: a second derivative loses twice as many digits."""
SEEN = 1e-9
"""If a random change moves the output by less than this share of its size, the check shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetryEvidence:
    """What was measured of one symmetry; every figure is relative, and `None` was not measured.

    Attributes:
        output_change: how far a random group element moves the output at the weights as found, relative to its largest
            entry.
        output_change_no_eps: the same where eps plays no part.
        output_change_chance: the same for a random change of the weights, of about the same size.
        radial: the largest derivative of a random linear loss along the symmetry, relative to norm(w) norm(grad), at
            the weights as found.
        radial_no_eps: the same where eps plays no part.
        radial_error: how far `radial` is from what the formula with eps gives, in the same unit; None for exact
            symmetries.
        hessian: the norm of H X w + X^T grad, relative to that of a random direction.
        fisher: the Fisher information along the symmetry, relative to a random direction, at the weights as found.
        fisher_no_eps: the same where eps plays no part.
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
        """Return why the symmetry is not confirmed; None if it is."""
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
    """Measure the evidence for every candidate."""
    if not candidates:
        return []
    as_found = _Point(function, function.start, generator)
    expected = defects(graph.double(), candidates, as_found.loss, as_found.output)
    raised = dict(function.start)
    for candidate in candidates:
        if candidate.feeds:
            factors = torch.full((candidate.action.units,), 2.0 * math.log(RAISED), dtype=torch.float64)
            raised = candidate.action.apply(raised, factors.to(as_found.loss.device))
    without_eps = _Point(function, raised, generator)
    evidence = []
    with Progress("checking symmetries", total=len(candidates)) as progress:
        for index, candidate in enumerate(candidates):
            progress.step(candidate.path)
            evidence.append(_evidence(candidate, expected.get(index), as_found, without_eps, generator))
    return evidence


def _evidence(
    candidate: Candidate,
    expected: Tensor | None,
    as_found: _Point,
    without_eps: _Point,
    generator: torch.Generator,
) -> SymmetryEvidence:
    """Measure the evidence for one candidate at the weights as found, and at the point where eps plays no part."""
    action, state, gradient = candidate.action, without_eps.state, without_eps.gradient
    element = action.draw(as_found.state, generator)
    random = _random_direction(candidate, state, generator)
    radial = action.inner(as_found.state, as_found.gradient)
    size, size_without_eps = (_size(candidate, point.state, point.gradient) for point in (as_found, without_eps))
    hessian_along, jacobian_along = without_eps.products(action.direction(state, element))
    hessian_random, jacobian_random = without_eps.products(random)
    adjoint = action.adjoint(gradient, element)
    residual = {name: value + adjoint.get(name, 0.0) for name, value in hessian_along.items()}
    as_found_along = as_found.moved(action.direction(as_found.state, element))
    as_found_random = as_found.moved(random, relative_to=without_eps)
    return SymmetryEvidence(
        output_change=as_found.change(action.apply(as_found.state, element)),
        output_change_no_eps=without_eps.change(action.apply(state, element)),
        output_change_chance=without_eps.change({name: v + random.get(name, 0.0) for name, v in state.items()}),
        radial=_ratio(radial.abs().amax(), size),
        radial_no_eps=_ratio(action.inner(state, gradient).abs().amax(), size_without_eps),
        radial_error=None if expected is None else _ratio((radial.cpu() - expected).abs().amax(), size),
        hessian=_ratio(_weighted(state, residual), _weighted(state, hessian_random) + _weighted(state, adjoint)),
        fisher=_ratio(as_found.information(as_found_along), as_found.information(as_found_random)),
        fisher_no_eps=_ratio(without_eps.information(jacobian_along), without_eps.information(jacobian_random)),
    )


class _Point:
    """A state of the parameters, with the output there, a random linear loss of it, and the gradient of that loss."""

    def __init__(self, function: Function, state: State, generator: torch.Generator) -> None:
        self.function, self.state = function, state
        leaves = {name: value.detach().clone().requires_grad_() for name, value in state.items()}
        output = function(leaves)
        random = torch.randn(output.shape, dtype=torch.float64, generator=generator).to(output.device)
        self.loss = random.requires_grad_()
        self._leaves = leaves
        gradients = torch.autograd.grad(
            (output * self.loss).sum(), list(leaves.values()), create_graph=True, allow_unused=True
        )
        self._gradients = dict(zip(leaves, gradients, strict=True))
        self.output = output.detach()
        self.gradient: dict[str, Tensor] = {
            name: torch.zeros_like(state[name])
            if value is None
            else torch.zeros_like(state[name]).copy_(value.detach())
            for name, value in self._gradients.items()
        }

    def products(self, direction: State) -> tuple[dict[str, Tensor], Tensor]:
        """Return the Hessian of the loss and the Jacobian of the output times a direction."""
        gradients = self._gradients
        along = [(gradients[name] * value).sum() for name, value in direction.items() if gradients[name] is not None]
        zero = {name: torch.zeros_like(value) for name, value in self.state.items()}, torch.zeros_like(self.output)
        if not along:
            return zero
        total = torch.stack(along).sum()
        if not total.requires_grad:
            return zero
        variables = [self.loss, *self._leaves.values()]
        try:
            found = torch.autograd.grad(total, variables, retain_graph=True, allow_unused=True, materialize_grads=True)
        except RuntimeError as error:
            raise InputError(
                f"the model cannot be differentiated twice ({said(error)}), which the check of symmetries does: write "
                "that operator out in others, or measure the part of the model without it"
            ) from error
        return dict(zip(self._leaves, found[1:], strict=True)), found[0]

    def moved(self, direction: State, relative_to: _Point | None = None) -> Tensor:
        """Return the Jacobian of the output times a direction, which may be given at another point."""
        if relative_to is not None:
            direction = {name: _rescaled(v, relative_to.state[name], self.state[name]) for name, v in direction.items()}
        return self.products(direction)[1]

    def change(self, state: State) -> float:
        """Return by how much the output differs at another state, relative to its largest entry."""
        with torch.no_grad():
            other = self.function(state)
        return _ratio((other - self.output).abs().amax(), self.output.abs().amax())

    def information(self, moved: Tensor) -> Tensor:
        """Return the Fisher information of a categorical output along a change of the logits: the mean over rows."""
        chances = self.output.softmax(-1)
        centre = (chances * moved).sum(-1, keepdim=True)
        return (chances * (moved - centre).square()).sum(-1).mean()


def _random_direction(candidate: Candidate, state: State, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a random direction in the weights of a candidate, half as large as they are."""
    direction = blank(state, dict.fromkeys(piece.name for piece in candidate.weights))
    for piece in candidate.weights:
        part = piece.of(state)
        random = torch.randn(part.shape, dtype=torch.float64, generator=generator).to(part.device)
        piece.of(direction).copy_(0.5 * random * part)
    return direction


def _rescaled(direction: Tensor, there: Tensor, here: Tensor) -> Tensor:
    """Return a direction at `here` that has the same size, relative to the tensor, as the given one has at `there`."""
    factor = torch.where(there != 0, here / there, 0.0)
    return direction * factor


def _size(candidate: Candidate, state: State, gradient: State) -> Tensor:
    """Return the sum of norm(w) norm(grad) over the parameters of a candidate."""
    names = dict.fromkeys((*candidate.action.names, *(piece.name for piece in candidate.weights)))
    return torch.stack([state[name].norm() * gradient[name].norm() for name in names]).sum()


def _weighted(state: State, values: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of norms, each times the norm of its parameter: a size that does not depend on their scales."""
    sizes = [state[name].norm() * value.norm() for name, value in values.items()]
    return torch.stack(sizes).sum() if sizes else torch.zeros((), dtype=torch.float64)


def _ratio(value: Tensor, base: Tensor) -> float:
    """Return a quotient; 0 for zero over zero."""
    top, bottom = float(value), float(base)
    return 0.0 if top == 0.0 else top / bottom if bottom else math.inf
