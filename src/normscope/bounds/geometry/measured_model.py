"""`MeasuredModel`: what several measures of one model share, each computed once and only where a measure asks for it.

Norms of weight layers are read off the graph in eval mode. The operator norm of a convolution is that of the linear map
of whole images, with its stride and padding at the size of the input (a certified upper bound within 0.1 %); its
Frobenius norm is that of the kernel. Biases, embeddings, and the gains and shifts of normalizers are left out, and a
weight that is used several times counts once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import wraps
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ...calls.batches import Batch
from ...calls.call import select
from ...core.budget import Budget, Progress
from ...core.errors import InputError, NormscopeError, NotFiniteError, describe_error
from ...core.log10 import log10
from ...products.objective import Objective
from ...theory.losses import margins
from ..graph.capturing import trace_model
from ..graph.ir import Graph, Node, leaves, map_leaves
from ..operators.effects import UNKNOWN, Linear
from ..operators.registry import effect_of, is_homogeneous, is_normalizer, is_weight
from ..traced_model import trace
from ..traced_network import BoundSettings
from .directions import no_directions
from .flatness import Perturbation, Sharpness, grouped, mean_scores

TRACED_SAMPLES = 2
"""How many samples the graph is traced with."""
MARGIN_SHARE = 0.1
"""The margin is the one that this share of the samples does not exceed (Jiang et al. 2020)."""
ERROR_INCREASE = 0.1
"""Noise and boxes are as large as they can be without raising the training error by more than this (Jiang et al.)."""
MAGNITUDE_EPS = 1e-3
"""The deviation of the noise on a weight that is zero, in magnitude-aware measures (Jiang et al. 2020)."""
NOISE_DRAWS = 10
"""How many random vectors the error under noise is a mean over."""
SCALE_RTOL = 1.02
"""The largest noise, or box, is known up to this factor."""
MAX_DOUBLINGS = 20
"""How often the size of noise is doubled or halved before the search gives up."""
BOX_STEPS = 10
"""How many steps of ascent are taken in each box."""
NOISE_PARTS = 8
"""A single batch is cut into this many parts, between which gradients differ."""
MAX_PAIRS = 256
"""Up to this many pairs of columns the relative flatness is exact, else a mean over this many random vectors."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFigures:
    """The norms of one weight layer, as log10, and those of its distance from the start, which need one."""

    path: str
    log10_spectral: float
    log10_frobenius: float
    log10_distance: float = math.nan
    log10_spectral_distance: float = math.nan
    log10_row_distances: float = math.nan  # of the sum of the l2 norms of the rows


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFigures:
    """What one pass over the data gives; None where the outputs are no rows of classes."""

    loss: float
    margin: float | None
    entropy: float | None
    gradient_noise: float | None  # the trace of the covariance of a sample's gradient
    fisher_rao: float


def once(function: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """Return a method of no arguments that is run once; the error of a run that failed is raised again."""

    @wraps(function)
    def remembered(self: MeasuredModel) -> Value:
        key = function.__name__
        if key not in self.outcomes:
            try:
                self.outcomes[key] = function(self)
            except NormscopeError as error:
                self.outcomes[key] = error
        outcome = self.outcomes[key]
        if isinstance(outcome, NormscopeError):
            raise outcome
        return outcome

    return remembered


class MeasuredModel:
    """A model, its data, its start and its losses, with the figures that measures share.

    Args:
        objective: the model and its batches.
        start: the model as it was before training, or its weights by name; None where it is not known.
        losses: the training loss by step, as pairs.
        rho: how far the ascent of sharpness goes.
        budget: the time that searches have.
        seed: the seed of the noise.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        start: nn.Module | Mapping[str, Tensor] | None,
        losses: Sequence[tuple[int, float]] | None,
        rho: float,
        budget: Budget,
        seed: int,
    ) -> None:
        self.objective, self.losses, self.rho, self.budget, self.seed = objective, losses, rho, budget, seed
        self.model = objective.model
        self.start = _start_model(self.model, start) if isinstance(start, Mapping) else start
        self.outcomes: dict[str, Any] = {}
        call = objective.batches[0].call.first(TRACED_SAMPLES)
        self.inputs: Any = call.args[0] if len(call.args) == 1 and not call.kwargs else call.args or call.kwargs

    def started(self) -> nn.Module:
        """Return the model at the start; refuse where it is not known."""
        if self.start is None:
            raise InputError("it needs the weights before training: pass start=")
        return self.start

    @once
    def vector(self) -> Tensor:
        """Return all parameters that need gradients, as one vector in float64."""
        return self.objective.vector().double()

    @once
    def distance(self) -> Tensor:
        """Return how far these parameters are from the start."""
        start = dict(self.started().named_parameters())
        names = self.objective.parameters
        missing = [name for name in names if name not in start or start[name].shape != names[name].shape]
        if missing:
            raise InputError(f"the start has no parameter `{missing[0]}` of the same shape")
        return self.vector() - torch.cat([start[name].detach().to(self.vector()).reshape(-1) for name in names])

    @once
    def graph(self) -> Graph:
        """Return the model as a graph in eval mode."""
        return trace_model(self.model, self.inputs, mode="eval")

    @once
    def layers(self) -> tuple[LayerFigures, ...]:
        """Return the norms of the weight layers."""
        weights = _weight_nodes(self.graph())
        if not weights:
            raise InputError("the model has no weight layer")
        return tuple(_layer_figures(node, weight, None) for node, weight in weights)

    @once
    def moved_layers(self) -> tuple[LayerFigures, ...]:
        """Return the norms of the weight layers with their distances from the start."""
        before = _weight_nodes(trace_model(self.started(), self.inputs, mode="eval"))
        now = _weight_nodes(self.graph())
        shapes = [[(node.path, weight.shape) for node, weight in nodes] for nodes in (before, now)]
        if shapes[0] != shapes[1]:
            raise InputError("the start has other weight layers than the model")
        return tuple(_layer_figures(node, weight, old) for (node, weight), (_, old) in zip(now, before))

    @once
    def left_out(self) -> list[str]:
        """Return the parameters of two axes or more, as those of an LSTM, that no weight layer is made of."""
        graph = self.graph()
        weights = {node.name for node in graph if is_weight(node)}
        origins = frozenset().union(*(read.origins for read in graph.reads if read.node in weights))
        counted = {graph.constants[origin].name for origin in origins}
        return [name for name, parameter in self.model.named_parameters() if parameter.ndim > 1 and name not in counted]

    @once
    def log10_path_norm(self) -> float:
        """Return half of log10 of the sum of the outputs of the network with squared weights, on ones.

        BatchNorms are first folded into the layers before them. Average pooling is left as it is, and a maximum counts
        one path.
        """
        if not isinstance(self.inputs, Tensor):
            raise InputError("it is defined for a model of one input")
        traced = trace(self.model, self.inputs, None)
        graph = traced.folded.double()
        for node in graph:
            if is_normalizer(node):
                raise InputError(f"`{node.path}` normalizes, and paths are defined without{traced.why_not_folded}")
            if not is_homogeneous(node) or node.operator in ("sub", "abs"):
                raise InputError(f"paths are defined for ReLU networks, and `{node.path}` runs `{node.operator}`")
        with torch.no_grad():
            squared = dataclasses.replace(graph, nodes=tuple(map(_square_weights, graph)))
            ones = [torch.ones_like(item.value) for item in graph.inputs]
            output = squared.run(*ones)
        return 0.5 * log10(float(output.sum()) / (1 if graph.per_sample else len(output)))

    @once
    def data(self) -> DataFigures:
        """Return what one pass over the data gives, forward and back."""
        objective, vector = self.objective, self.objective.vector()
        loss, slopes, spread = 0.0, 0.0, _Spread(objective)
        by_sample: list[Tensor] = []
        entropies: list[Tensor] = []
        with objective.measuring():
            for batch in objective.batches:
                output, value, gradient, along = objective.differentiate(batch, vector)
                loss += objective.share(batch) * float(value.double())
                spread.add(batch, gradient)
                slopes += float(along.square().sum())
                logits = select(output, None).detach().double()
                targets = batch.targets
                classes = isinstance(targets, Tensor) and not targets.is_floating_point()
                if logits.ndim == 2 and logits.shape[1] > 1 and classes and targets.shape == logits.shape[:1]:
                    by_sample.append(margins(logits, targets))
                    logarithms = logits.log_softmax(1)
                    entropies.append(-(logarithms.exp() * logarithms).sum(1))
        ordered = torch.cat(by_sample).sort().values if by_sample else None
        rank = max(math.ceil(MARGIN_SHARE * objective.samples) - 1, 0)
        return DataFigures(
            loss=loss,
            margin=None if ordered is None else float(ordered[rank]),
            entropy=float(torch.cat(entropies).mean()) if entropies else None,
            gradient_noise=spread.trace(),
            fisher_rao=math.sqrt(slopes / objective.samples),
        )

    @once
    def gradient_noise(self) -> float:
        """Return the trace of the covariance of the gradient of one sample; a single batch is cut into parts for it."""
        noise, batch = self.data().gradient_noise, self.objective.batches[0]
        if noise is not None:
            return noise
        rows = all(tensor.shape[:1] == (batch.samples,) for tensor in _tensors(batch))
        if batch.samples < 2 or self.objective.mode != "eval" or not rows:
            raise InputError("it is a spread between batches: give two or more")
        spread, size = _Spread(self.objective), -(-batch.samples // NOISE_PARTS)
        with self.objective.measuring():
            for first in range(0, batch.samples, size):
                part = slice(first, min(first + size, batch.samples))
                targets = batch.targets[part] if isinstance(batch.targets, Tensor) else batch.targets
                call = batch.call.changed(itemgetter(part))
                piece = Batch(call=call, targets=targets, samples=part.stop - part.start)
                spread.add(piece, self.objective.differentiate(piece, self.objective.vector())[2])
        return spread.trace() or 0.0

    def log10_margin(self) -> float:
        """Return log10 of the margin; `-inf` where it is not above 0."""
        margin = self.data().margin
        if margin is None:
            raise InputError("margins are those of a classifier: a row of 2 or more outputs and a class per sample")
        return log10(max(margin, 0.0))

    @once
    def noise(self) -> float:
        """Return the largest deviation of noise on all weights that keeps the error."""
        ones = torch.ones_like(self.objective.vector())
        return self._largest(lambda size: self._noise_error(size * ones), float(self.vector().square().mean().sqrt()))

    @once
    def magnitude_noise(self) -> float:
        """Return the same relative to the size of every weight."""
        sizes = self.objective.vector().abs()
        return self._largest(lambda size: self._noise_error(torch.hypot(size * sizes, MAGNITUDE_EPS + 0 * sizes)), 0.1)

    @once
    def box(self) -> float:
        """Return the largest move of single weights, in ascents of the loss, that keeps the error."""
        ones = torch.ones_like(self.objective.vector())
        return self._largest(lambda size: self._box_error(size * ones), float(self.vector().square().mean().sqrt()))

    @once
    def magnitude_box(self) -> float:
        """Return the same relative to the size of every weight."""
        sizes = self.objective.vector().abs()
        return self._largest(lambda size: self._box_error(size * sizes + MAGNITUDE_EPS), 0.1)

    def _largest(self, error_of: Callable[[float], float], guess: float) -> float:
        """Return the largest size at which the error rises by `ERROR_INCREASE` at most, by bisection."""
        search = self.budget.search("the search for the largest noise")
        with self.objective.measuring():
            error = self._error()
            guess = guess or 1.0
            size, below, above = guess, 0.0, math.inf
            for _ in range(2 * MAX_DOUBLINGS):
                if search.late:
                    raise InputError("the time was up: raise max_seconds")
                if error_of(size) - error <= ERROR_INCREASE:
                    below = size
                else:
                    above = size
                if below > 0.0 and above <= SCALE_RTOL * below:
                    return math.sqrt(below * above)
                if not guess * 2.0**-MAX_DOUBLINGS < size < guess * 2.0**MAX_DOUBLINGS:
                    break
                size = 2 * size if above == math.inf else size / 2 if not below else math.sqrt(below * above)
        raise InputError(
            f"no size was found at which the error begins to rise by {100 * ERROR_INCREASE:g} %"
            if above == math.inf
            else f"the error rises by more than {100 * ERROR_INCREASE:g} % at any size that was tried"
        )

    def _error(self) -> float:
        """Return the share of samples that are classified otherwise than their label."""
        _, accuracy = mean_scores(self.objective)
        if accuracy is None:
            raise InputError("the error is that of a classifier: a row of 2 or more outputs and a class per sample")
        return 1.0 - accuracy

    def _noise_error(self, deviations: Tensor) -> float:
        """Return the mean error under noise with these deviations; the random vectors are the same in every call."""
        generator, here, total = torch.Generator().manual_seed(self.seed), self.objective.vector(), 0.0
        try:
            for _ in range(NOISE_DRAWS):
                drawn = torch.randn(len(here), generator=generator).to(here)
                self.objective.place(here + deviations * drawn)
                total += self._error()
        finally:
            self.objective.place(here)
        return total / NOISE_DRAWS

    def _box_error(self, sides: Tensor) -> float:
        """Return the largest error on the way of an ascent of the loss in the box around the weights."""
        here, move, worst = self.objective.vector(), torch.zeros_like(sides), 0.0
        try:
            for step in range(BOX_STEPS):
                try:
                    _, gradient = self.objective.gradient()
                except NotFiniteError:
                    return 1.0
                move = (move + (0.5 if step else 1.0) * sides * gradient.sign()).clamp(-sides, sides)
                self.objective.place(here + move)
                worst = max(worst, self._error())
        finally:
            self.objective.place(here)
        return worst

    @once
    def sharpnesses(self) -> dict[str, Sharpness]:
        """Return the definitions of sharpness that ascent searches for, by name."""
        objective = self.objective
        with objective.measuring(), Progress("sharpness") as progress:
            group = grouped(objective, no_directions(objective).group)
            moved = Perturbation(objective, group, self.seed, progress)
            loss = objective.loss()
            return {one.name: one for one in moved.sharpnesses(loss, self.rho, 20, 5, self.budget)}

    def sharpness(self, name: str) -> float:
        """Return one of these definitions."""
        if name not in self.sharpnesses():
            raise InputError("the time was up: raise max_seconds")
        return self.sharpnesses()[name].value

    @once
    def relative_flatness(self) -> float:
        """Return sum over rows s, t of <w_s, w_t> tr(H_st) for the last matrix W, H_st the blocks of its Hessian.

        It is the sum over all columns i and entries j of D^T H D with D = W e_i e_j^T; for random signs r and z the
        mean of D^T H D with D = W r z^T is the same.
        """
        name = next((n for n, p in reversed(self.objective.parameters.items()) if p.ndim == 2), None)
        if name is None:
            raise InputError("the model has no matrix")
        weight = self.objective.parameters[name].detach().to(self.objective.dtype)
        columns, generator = weight.shape[1], torch.Generator().manual_seed(self.seed)
        unit = torch.eye(columns).to(weight)
        exact = columns**2 <= MAX_PAIRS
        if exact:
            signs = [(r, z) for r in unit for z in unit]
        else:
            drawn = 2.0 * torch.randint(2, (MAX_PAIRS, 2, columns), generator=generator).to(weight) - 1.0
            signs = [(r, z) for r, z in drawn]
        with self.objective.measuring():
            self.objective.trace()
            product = self.objective.block(name)
            forms = []
            for r, z in signs:
                direction = torch.outer(weight @ r, z).reshape(-1)
                forms.append(float(direction.double() @ product(direction).double()))
        return math.fsum(forms) / (1 if exact else len(forms))

    def steps_to(self, loss: float) -> int:
        """Return the first step at which the training loss was at most a value."""
        if self.losses is None:
            raise InputError("it needs the losses of the training run: pass losses=")
        for step, value in self.losses:
            if value <= loss:
                return step
        raise InputError(f"the training loss did not reach {loss:g}")


class _Spread:
    """How far the gradients of batches lie apart: the covariance of one sample's gradient, estimated from batches.

    With g_k the gradients of K batches of b_k samples and g their mean, sum b_k norm(g_k - g)^2 / (K - 1) has the trace
    of that covariance as its expectation.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective, self.batches, self.squares = objective, 0, 0.0
        self.mean = torch.zeros(objective.size, dtype=torch.float64, device=objective.device)

    def add(self, batch: Batch, gradient: Tensor) -> None:
        """Count the gradient of one batch."""
        self.batches += 1
        self.squares += self.objective.share(batch) * float(gradient.double().square().sum())
        self.mean += self.objective.share(batch) * gradient.double()

    def trace(self) -> float | None:
        """Return the trace of the covariance; None from a single batch."""
        spread = max(self.squares - float(self.mean.square().sum()), 0.0)
        return self.objective.samples * spread / (self.batches - 1) if self.batches > 1 else None


def _start_model(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a model with other weights."""
    start = deepcopy(model)
    try:
        start.load_state_dict(dict(weights))
    except (RuntimeError, TypeError) as error:
        raise InputError(f"start does not fit the model: {describe_error(error)}") from error
    return start


def _tensors(batch: Batch) -> list[Tensor]:
    """Return the tensors of a batch that have entries by sample."""
    tensors = [leaf for leaf in batch.call.leaves if isinstance(leaf, Tensor) and leaf.ndim]
    return [*tensors, *([batch.targets] if isinstance(batch.targets, Tensor) else [])]


def _weight_nodes(graph: Graph) -> list[tuple[Node, Tensor]]:
    """Return the weight layers of a graph in float64, each with its weight; one that is used again is left out."""
    weights: dict[tuple[int, torch.Size], tuple[Node, Tensor]] = {}
    for node, wide in zip(graph, graph.double()):
        if is_weight(node):
            for leaf, widened in zip(leaves((node.args, node.kwargs)), leaves((wide.args, wide.kwargs))):
                if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim > 1:
                    weights.setdefault((leaf.data_ptr(), leaf.shape), (wide, widened))
    return list(weights.values())


@torch.no_grad()
def _layer_figures(node: Node, weight: Tensor, start: Tensor | None) -> LayerFigures:
    """Return the norms of a layer, and of its distance from a start where there is one."""
    figures = LayerFigures(
        path=node.path,
        log10_spectral=_operator_norm(node),
        log10_frobenius=log10(float(weight.norm())),
    )
    if start is None:
        return figures
    moved = weight - start.to(weight)
    args, kwargs = map_leaves((node.args, node.kwargs), lambda leaf: moved if leaf is weight else leaf)
    return dataclasses.replace(
        figures,
        log10_distance=log10(float(moved.norm())),
        log10_spectral_distance=_operator_norm(dataclasses.replace(node, args=args, kwargs=kwargs)),
        log10_row_distances=log10(float(moved.flatten(1).norm(dim=1).sum())),
    )


def _operator_norm(node: Node) -> float:
    """Return log10 of a certified upper bound on the operator norm of a weight layer."""
    effect = effect_of(node, [UNKNOWN] * len(node.refs))
    if not isinstance(effect, Linear):
        raise InputError(f"the operator norm of `{node.path}` is not known")
    return BoundSettings().norm(effect.maps[0]).log10


def _square_weights(node: Node) -> Node:
    """Return a weight layer with squared weights and biases; any other node as it is."""
    if not is_weight(node):
        return node
    args, kwargs = map_leaves(
        (node.args, node.kwargs),
        lambda leaf: leaf.square() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf,
    )
    return dataclasses.replace(node, args=args, kwargs=kwargs)
