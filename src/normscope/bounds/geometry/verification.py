"""The numerical check of every symmetry, in float64: the output, the gradient, the Hessian, the Fisher information.

At weights so large in front of normalizers that eps plays no part, a symmetry must hold up to rounding. At the weights
as found, the defect that eps leaves must be the one that the formula gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ...calls.call import Call, select
from ...core.budget import Progress, count
from ...core.errors import InputError, describe_error
from ...core.threads import math_attention
from ...core.untouched import with_tensors
from ..graph.ir import Graph, Unit
from ..graph.units import is_copy
from ..operators.invariance import channel_numbers, moves_all, weight_layer
from ..operators.registry import sets_of
from .candidate import Candidate, State, blank, laid_out
from .normalized import joined

RAISED = 1e6
"""The factor on all scale-invariant weights at the point where eps plays no part."""
HOLDS = 1e-6
"""How large the effect of a symmetry may be, relative to a random change: float64 rounds so much in deep networks."""
CURVED = 1e-4
"""The same limit for H X w + X^T grad: a second derivative loses twice as many digits."""
SEEN = 1e-9
"""If a random change moves the output by less than this share of its size, the check shows nothing."""
NARROW = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)


class Wide(TorchFunctionMode):
    """Runs everything in float64: tensors that would be cast to a narrower float, or made in one, are widened.

    Two functions are corrected: `_weight_norm`, whose second derivative torch 2.13 gets wrong, is written out; an
    RMSNorm without an eps of its own takes the default of the model's dtype, as it would without widening.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function with float64 in place of any narrower float."""
        kwargs = kwargs or {}
        if func is torch._weight_norm:
            func = _weight_norm
        elif func is F.rms_norm and len(args) < 4 and kwargs.get("eps") is None:
            kwargs = {**kwargs, "eps": torch.finfo(self.dtype).eps}
        elif func is F.rms_norm and len(args) == 4 and args[3] is None:
            args = (*args[:3], torch.finfo(self.dtype).eps)
        if not func.__name__.endswith("_"):  # An in-place function must write into the given tensor, not a wide copy.
            args, kwargs = tree_map(_widened, (args, kwargs))
        else:
            args, kwargs = tree_map(lambda leaf: leaf if isinstance(leaf, Tensor) else _widened(leaf), (args, kwargs))
        return tree_map(_widened, (torch.Tensor.double if func in NARROW else func)(*args, **kwargs))


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    return v * (g / torch.norm_except_dim(v, 2, dim))


def _widened(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return torch.float64 if leaf.is_floating_point else leaf
    if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64:
        return leaf.double()
    return leaf


class Function:
    """The output of a model at one batch, as a function of a state of its parameters, in float64.

    `start` is the state as found; buffers stay as they are.
    """

    def __init__(self, model: nn.Module, call: Call) -> None:
        self.model, self.call = model, call
        self._dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        self.start: State = {name: laid_out(p.detach(), p) for name, p in model.named_parameters()}
        self._random = torch.get_rng_state()
        self._buffers = {name: _widened(buffer) for name, buffer in model.named_buffers()}

    def __call__(self, state: State) -> Tensor:
        """Return the output, which can be differentiated twice."""
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        args, kwargs = tree_map(
            lambda leaf: _widened(leaf.clone()) if isinstance(leaf, Tensor) else leaf,
            (self.call.args, self.call.kwargs),
        )
        count("passes", self.call.count)
        torch.set_rng_state(self._random)  # The model draws the same random numbers in every run.
        try:
            with math_attention(), Wide(self._dtype), with_tensors(self.model, {**state, **buffers}):
                result = self.model(*args, **kwargs)
        except Exception as error:
            raise InputError(
                f"the model raises {describe_error(error)}, when its parameters are in float64, in which "
                f"symmetries are checked: "
                "make tensors with the dtype of the input"
            ) from error
        return select(result, self.call.output)


def defects(graph: Graph, candidates: list[Candidate], weights: Tensor, output: Tensor) -> dict[int, Tensor]:
    """Return what the formula gives for <w_k, grad_k> of each unit, by the index of each scaling before a normalizer.

    Nothing is returned if the graph gives another output than the model, which may drop values by itself.
    """
    inputs = [item.value.detach().clone().requires_grad_() for item in graph.inputs]
    values = graph.values(*inputs)
    if not torch.allclose(values[graph.output], output, rtol=1e-6, atol=1e-6 * float(output.abs().amax())):
        return {}
    scalings = {index: candidate for index, candidate in enumerate(candidates) if candidate.feeds}
    nodes = [feed.normalizer for candidate in scalings.values() for feed in candidate.feeds]
    outputs = [values[node.name] for node in nodes]
    if not outputs:
        return {}
    gradients = torch.autograd.grad((values[graph.output] * weights).sum(), outputs, allow_unused=True)
    slopes = {
        node.name: torch.zeros_like(value) if g is None else g for node, value, g in zip(nodes, outputs, gradients)
    }
    with torch.no_grad():
        return {index: _defect(graph, candidate, values, slopes) for index, candidate in scalings.items()}


def _defect(graph: Graph, candidate: Candidate, values: dict[str, Tensor], slopes: dict[str, Tensor]) -> Tensor:
    """Return eps/(var + eps) sum (dL/dzhat) zhat for each unit of a candidate, zhat the normalized value.

    `slopes` are the derivatives of the loss with respect to the normalizers' outputs, by node.
    """
    parts = joined(list(candidate.feeds))
    total = torch.zeros(int(parts.amax()) + 1, dtype=torch.float64)
    for feed in candidate.feeds:
        node, layer = graph.node(feed.normalizer.name), weight_layer(feed.weight)
        sets = sets_of(node)
        assert sets is not None
        assert layer is not None
        value, slope = values[node.refs[0]], slopes[node.name]
        arguments = {} if isinstance(node.op, Unit) else node.bound()
        gamma = arguments.get("weight")
        if isinstance(gamma, Tensor):
            slope = slope * (
                gamma if "normalized_shape" in arguments else gamma.reshape(1, -1, *(1,) * (value.ndim - 2))
            )
        centre = value.reshape(sets.view)
        centre = centre - centre.mean(sets.axes, keepdim=True) if sets.centred else centre
        square = centre.square().mean(sets.axes, keepdim=True) + sets.eps
        terms = (sets.eps * centre * square**-1.5).reshape(value.shape) * slope
        # The output channel of the layer that each entry of the normalizer's input comes from.
        moves = tuple(between for between in feed.between if is_copy(between) or moves_all(between))
        units = parts[channel_numbers(feed.weight, layer.axis, moves)].expand(terms.shape)
        total = total.index_add(0, units.reshape(-1), terms.cpu().reshape(-1))
    return total


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
    random = blank(state, dict.fromkeys(piece.name for piece in candidate.weights))
    for piece in candidate.weights:  # half as large as the weights
        part = piece.of(state)
        noise = torch.randn(part.shape, dtype=torch.float64, generator=generator).to(part.device)
        piece.of(random).copy_(0.5 * noise * part)
    radial = action.inner(as_found.state, as_found.gradient)
    names = dict.fromkeys((*action.names, *(piece.name for piece in candidate.weights)))
    size, size_without_eps = (
        _weighted(point.state, {name: point.gradient[name] for name in names}) for point in (as_found, without_eps)
    )
    hessian_along, jacobian_along = without_eps.products(action.direction(state, element))
    hessian_random, jacobian_random = without_eps.products(random)
    adjoint = action.adjoint(gradient, element)
    residual = {name: value + adjoint.get(name, 0.0) for name, value in hessian_along.items()}
    _, as_found_along = as_found.products(action.direction(as_found.state, element))
    ratios = {name: torch.where(state[name] != 0, as_found.state[name] / state[name], 0.0) for name in random}
    _, as_found_random = as_found.products({name: value * ratios[name] for name, value in random.items()})
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
            products = torch.autograd.grad(
                total, variables, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        except RuntimeError as error:
            raise InputError(
                f"the model cannot be differentiated twice ({describe_error(error)}), which the check of "
                f"symmetries does: write "
                "that operator out in others, or measure the part of the model without it"
            ) from error
        return dict(zip(self._leaves, products[1:], strict=True)), products[0]

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


def _weighted(state: State, values: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of norms, each times the norm of its parameter: a size that does not depend on their scales."""
    sizes = [state[name].norm() * value.norm() for name, value in values.items()]
    return torch.stack(sizes).sum() if sizes else torch.zeros((), dtype=torch.float64)


def _ratio(value: Tensor, base: Tensor) -> float:
    """Return a quotient; 0 for zero over zero."""
    top, bottom = float(value), float(base)
    return 0.0 if top == 0.0 else top / bottom if bottom else math.inf
