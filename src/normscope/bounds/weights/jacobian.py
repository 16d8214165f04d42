"""The lower side of a weight's sensitivity: two values of the weight that the output tells apart.

Jacobians with respect to all weights come from the same few backward passes through the float64 graph. What they
promise is confirmed by a secant: with v the direction that the output feels most, the pair W - t v, W + t v proves
norm(h(W + t v) - h(W - t v))/(2 t) from below, less the rounding errors of both ends. A Jacobian at a kink proves
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from ...core.budget import Budget
from ...core.log10 import log10
from ...core.log10 import norm as l2
from ...core.threads import math_attention
from ...products.lanczos import lanczos
from ..evaluation import Certain, Change, Confirmer, Values, apart
from ..graph.ir import Graph
from ..graph_weights import Applied, behind, opened
from ..lower import gradients
from ..operators.local.local import flat
from .sample_loss import SampleLoss

FEW_OUTPUTS = 32
"""Up to this many outputs every row of the Jacobian is taken, and its norm is exact."""
PROBES = 8
"""Directions of the output that are tried where there are more."""
WEIGHT_HALF_DISTANCES = (1e-5, 1e-3, 1e-7, 1e-1)
"""Half distances between the two weights, relative to the weight's norm, in the order they are tried."""
LOWER_SIDES = "the search for lower sides"
"""How messages name this search."""
BLOCK = 25_000_000
"""Entries of Jacobian rows that are held at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JacobianFound:
    """What was found from below.

    Attributes:
        log10_lower: log10 of the confirmed secant slope; `-inf` if there is none.
        change: half the difference of the two weights that attain it; the other half leads the other way.
        settled: whether it comes within the tolerance of the Jacobian's norm at the weight as it is.
    """

    log10_lower: float = -math.inf
    change: Tensor | None = None
    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JacobianSearch:
    """How much to look for.

    Attributes:
        rtol: how close to the Jacobian's norm a secant shall come.
        steps: of Lanczos, weight by weight, where there are too many outputs for all rows.
        budget: of all weights and samples; a step is one backward pass, one pair of weights or one step of Lanczos.
        seed: of the directions tried.
    """

    rtol: float = 1e-3
    steps: int = 16
    budget: Budget = field(default_factory=lambda: Budget(what=LOWER_SIDES))
    seed: int = 0


def weight_slopes(
    graph: Graph,
    weights: Sequence[Applied],
    values: Mapping[str, Tensor],
    search: JacobianSearch,
    loss: SampleLoss | None = None,
    *,
    base: Values | None = None,
) -> dict[str, tuple[JacobianFound, JacobianFound]]:
    """Return, for every weight by name, what was found for the output and for a loss of it, at given data.

    Without a loss the second figure is empty.
    """
    slopes = {weight.name: (JacobianFound(), JacobianFound()) for weight in weights}
    base = Values.of(graph) if base is None else base
    if not weights or search.budget.over or not base.can_prove:
        return slopes
    images: list[tuple[Applied, Tensor]] = []
    differentiated = None if loss is None else loss.value
    with math_attention():
        for weight, top, steepest in _Directions(graph, tuple(weights), values, search).along(differentiated):
            secants = _Secants(graph, weight, values, search, base)
            output, scalar = JacobianFound(), JacobianFound()
            if top is not None and not search.budget.over:
                output = secants.along(top[0])
                images.append((weight, top[1]))
            if loss is not None and steepest is not None and not search.budget.over:
                scalar = secants.along(steepest, partial(_through_loss, loss))
            slopes[weight.name] = (output, scalar)
        if values[graph.output].numel() > FEW_OUTPUTS and search.steps:
            for weight, image in images:
                if not search.budget.spend(search.steps):
                    break
                tail = behind(opened(graph, (weight,)), {weight.name}, values)
                guess = _refined(tail, weight.value, image, search)
                secants = _Secants(graph, weight, values, search, base)
                again = JacobianFound() if guess is None else secants.along(guess)
                output, scalar = slopes[weight.name]
                slopes[weight.name] = (max(output, again, key=lambda f: f.log10_lower), scalar)
    return slopes


Guess = tuple[Tensor, float]
"""A unit direction of the weight, and the gain it is expected to have."""


class _Directions:
    """Backward passes shared by all weights."""

    def __init__(
        self, graph: Graph, weights: tuple[Applied, ...], values: Mapping[str, Tensor], search: JacobianSearch
    ) -> None:
        self.graph, self.weights, self.values, self.search = graph, weights, values, search
        self.opened = opened(graph, weights)

    def along(
        self, loss: Callable[[Tensor], Tensor] | None
    ) -> Iterator[tuple[Applied, tuple[Guess, Tensor] | None, Guess | None]]:
        """Yield the weights, the last first, with the direction the output feels most, its image, and the loss's."""
        leaves = [weight.value.detach().clone().requires_grad_(True) for weight in self.weights]
        inputs = [self.values[item.name].detach() for item in self.graph.inputs]
        with torch.enable_grad():
            output = self.opened.run(*inputs, *leaves).reshape(-1)
            scalar = None if loss is None else loss(output)
        probes = self._probes(output)
        for start, end in self._blocks(probes.shape[0]):
            if not self.search.budget.spend(len(probes)):
                return
            rows = [gradients(output, leaves[start:end], probe) for probe in probes]
            grads = gradients(scalar, leaves[start:end]) if scalar is not None else (None,) * (end - start)
            for index in reversed(range(start, end)):
                own = [row[index - start] for row in rows]
                yield self.weights[index], _top(own, probes), _guess(grads[index - start])

    def _probes(self, output: Tensor) -> Tensor:
        """Directions of the output, orthonormal: all of them if there are few."""
        size = output.numel()
        if size <= FEW_OUTPUTS:
            return torch.eye(size, dtype=torch.float64, device=output.device)
        generator = torch.Generator().manual_seed(self.search.seed)
        drawn = torch.randn(size, PROBES, dtype=torch.float64, generator=generator)
        return torch.linalg.qr(drawn).Q.T.to(output.device)

    def _blocks(self, probes: int) -> Iterator[tuple[int, int]]:
        """Runs of weights whose rows can be held together, the last first."""
        end = len(self.weights)
        while end > 0:
            start, entries = end - 1, self.weights[end - 1].value.numel() * probes
            while start > 0 and entries + self.weights[start - 1].value.numel() * probes <= BLOCK:
                start -= 1
                entries += self.weights[start].value.numel() * probes
            yield start, end
            end = start


def _top(rows: Sequence[Tensor | None], probes: Tensor) -> tuple[Guess, Tensor] | None:
    """Return the direction with the largest gain in the span of some rows of the Jacobian, and its image."""
    if any(row is None or not bool(torch.isfinite(row).all()) for row in rows):
        return None
    stack = torch.stack([row.reshape(-1) for row in rows if row is not None])
    _, vectors = torch.linalg.eigh(stack @ stack.T)
    guess = _guess((vectors[:, -1] @ stack).reshape(rows[0].shape if rows[0] is not None else ()))
    return None if guess is None else (guess, vectors[:, -1] @ probes)


def _guess(gradient: Tensor | None) -> Guess | None:
    length = math.nan if gradient is None else float(gradient.norm())
    return None if gradient is None or not math.isfinite(length) or length == 0.0 else (gradient / length, length)


def _refined(tail: Graph, weight: Tensor, start: Tensor, search: JacobianSearch) -> Guess | None:
    """Lanczos on J J^T among the outputs: J^T by a backward pass, J by a central difference."""
    leaf = weight.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        value = tail.run(leaf).reshape(-1)
    step = WEIGHT_HALF_DISTANCES[0] * _size(weight)

    def pull(u: Tensor) -> Tensor:
        [row] = gradients(value, [leaf], u)
        return torch.zeros_like(weight) if row is None else row

    def normal(rows: Tensor) -> Tensor:
        moved = pull(rows[0])
        length = float(moved.norm())
        if length == 0.0 or not math.isfinite(length):
            return torch.zeros_like(rows)
        ahead, back = (tail.run(weight + sign * step / length * moved).reshape(-1) for sign in (1, -1))
        return ((ahead - back) * (length / (2 * step)))[None]

    with torch.no_grad():
        vectors = lanczos(normal, start[None].clone(), steps=search.steps, rtol=search.rtol).vectors
        return _guess(pull(vectors[0]))


class _Secants:
    """Pairs W - t v, W + t v of one weight at the data, from the input to the output with all rounding."""

    def __init__(
        self,
        graph: Graph,
        weight: Applied,
        values: Mapping[str, Tensor],
        search: JacobianSearch,
        base: Values,
    ) -> None:
        self.weight, self.search = weight.value, search
        self.given = torch.cat([values[item.name].detach().double().reshape(-1) for item in graph.inputs])
        self.confirmer = Confirmer(base.opened(opened(graph, (weight,))))

    def along(self, guess: Guess, through: Change = apart) -> JacobianFound:
        """Prove a direction's gain by secants, as close to what is expected of it as they come."""
        direction, expected = guess
        best = JacobianFound()
        for relative in WEIGHT_HALF_DISTANCES:
            self.search.budget.spend()
            step = relative * _size(self.weight)
            ends = [torch.cat([self.given, (self.weight + s * step * direction).reshape(-1)]) for s in (1, -1)]
            value = self.confirmer.secant(*ends, above=best.log10_lower, change=through).log10
            if value > best.log10_lower:
                settled = value >= log10(expected) + math.log10(1.0 - min(self.search.rtol, 0.5))
                best = JacobianFound(log10_lower=value, change=step * direction, settled=settled)
            if best.settled or self.search.budget.over:
                break
        return best


def _size(weight: Tensor) -> float:
    return float(l2(weight)) or 1.0


def _through_loss(loss: SampleLoss, certain: Certain) -> tuple[float, float]:
    """Return how far the losses of two outputs are apart as computed, and how far they are at least."""
    outputs = zip(flat(certain.value), certain.distance.tolist(), strict=True)
    (first, noise), (second, more) = (loss.noise(output, error) for output, error in outputs)
    computed = abs(first - second)
    least = computed * (1 - 1e-12) - noise - more
    return computed, least if least > 0 else 0.0
