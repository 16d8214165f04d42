"""`weight_sensitivity` against changes of weights in the model itself: parametrized, tied, shared and summed ones.

What is moved is what the user holds: the originals of a parametrization (the change of the weight it makes is measured
there), or the parameter that a row names, in all the places where the model uses it.
"""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import normscope as ns
from normscope.bounds.weights.sensitivity import WeightRow

from ..networks import Function
from ..weights import Weight
from .outcome import Outcome, drawing

HELD = "held fixed"
"""In the notes of a row that does not move its weight everywhere."""


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(6, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.inner(self.embedding(ids)).tanh())


def old(wrap: Callable[..., nn.Module], layer: nn.Module, **options: int) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return wrap(layer, **options)


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight_norm": parametrizations.weight_norm,
    "weight_norm of the whole": lambda layer: parametrizations.weight_norm(layer, dim=None),
    "old weight_norm": lambda layer: old(nn.utils.weight_norm, layer),
    "spectral_norm": parametrizations.spectral_norm,
    "old spectral_norm": lambda layer: old(nn.utils.spectral_norm, layer),
    "orthogonal": parametrizations.orthogonal,
    "plain": lambda layer: layer,
}


def _wrapped(draw: random.Random, layer: nn.Module, parts: list[str]) -> nn.Module:
    name = draw.choice([name for name in WRAPPERS if name != "orthogonal" or isinstance(layer, nn.Linear)])
    parts.append(f"{name} {type(layer).__name__}")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_().mul_(0.7)
    return WRAPPERS[name](layer)


def _stack(draw: random.Random, parts: list[str]) -> tuple[nn.Module, Tensor]:
    bias = draw.random() < 0.7
    between = draw.choice([nn.ReLU(), nn.Tanh(), nn.GELU(), nn.LayerNorm(4, eps=0.1)])
    parts += [type(between).__name__, "bias" if bias else "no bias"]
    first = _wrapped(draw, nn.Linear(3, 4, bias=bias), parts)
    return nn.Sequential(first, between, _wrapped(draw, nn.Linear(4, 2, bias=bias), parts)), torch.randn(4, 3)


def _images(draw: random.Random, parts: list[str]) -> tuple[nn.Module, Tensor]:
    groups = draw.choice([1, 2])
    options = {"stride": draw.choice([1, 2]), "padding": draw.choice([0, 1]), "groups": groups}
    conv = _wrapped(draw, nn.Conv2d(2, 4, 3, **options), parts)
    last = nn.Sequential(conv, nn.ReLU(), _wrapped(draw, nn.Conv2d(4, 2, 2), parts), nn.Flatten())
    return last, torch.randn(4, 2, 5, 5)


def _signals(draw: random.Random, parts: list[str]) -> tuple[nn.Module, Tensor]:
    kind = draw.choice([nn.Conv1d, nn.ConvTranspose1d])
    return nn.Sequential(_wrapped(draw, kind(2, 3, 3, padding=1), parts), nn.Softplus()), torch.randn(4, 2, 5)


def _twice(draw: random.Random, parts: list[str]) -> tuple[nn.Module, Tensor]:
    layer = _wrapped(draw, nn.Linear(3, 3), parts)
    forms: dict[str, Callable[..., Tensor]] = {
        "used twice side by side": lambda self, x: torch.cat([self.layer(x).tanh(), self.layer(0.3 - x).relu()], -1),
        "used twice and added": lambda self, x: self.layer(x) + self.layer(x.flip(-1)).tanh(),
        "used on its own output": lambda self, x: self.layer(self.layer(x).tanh()),
    }
    name = draw.choice([*forms])
    parts.append(name)
    return Function(forms[name], layer=layer), torch.randn(4, 3)


def _summed(draw: random.Random, parts: list[str]) -> tuple[nn.Module, Tensor]:
    forms: dict[str, Callable[..., Tensor]] = {
        "W + BA merged": lambda self, x: F.linear(x, self.w + self.b @ self.a).tanh(),
        "W + BA apart": lambda self, x: (F.linear(x, self.w) + F.linear(F.linear(x, self.a), self.b)).tanh(),
        "W and a multiple of W": lambda self, x: F.linear(x, self.w) + F.linear(x, 2.0 * self.w),
        "W and its transpose": lambda self, x: F.linear(x, self.w) + x @ self.w,
        "W and a bias made of W": lambda self, x: F.linear(x, self.w, self.w.sum(1)),
        "W over its own norm": lambda self, x: F.linear(x, self.w) / self.w.norm(),
        "W and a copy of W": lambda self, x: F.linear(x, self.w) - F.linear(x, self.w.clone()).relu(),
    }
    name = draw.choice([*forms])
    parts.append(name)
    parts = {part: nn.Parameter(torch.randn(shape)) for part, shape in (("w", (3, 3)), ("a", (1, 3)), ("b", (3, 1)))}
    return Function(forms[name], **parts), torch.randn(4, 3)


def _tied(draw: random.Random, parts: list[str]) -> tuple[nn.Module, Tensor]:
    parts.append("tied embedding")
    return Tied(), torch.randint(0, 6, (4, 3))


FORMS = (_stack, _stack, _images, _signals, _twice, _summed, _tied)


def attack(seed: int) -> Outcome:
    """Draw a model and move each of its weights."""
    parts: list[str] = []
    with drawing(f"weights {seed}") as draw:
        model, batch = FORMS[seed % len(FORMS)](draw, parts)
        dtype = draw.choice([torch.float32, torch.float64])
        count = draw.choice([1, 4])
        model, batch = model.to(dtype).eval(), batch[:count]
        batch = batch.to(dtype) if batch.is_floating_point() else batch
    outcome = Outcome("weights", (*parts, str(dtype).removeprefix("torch."), f"batch of {count}"))
    result = ns.weight_sensitivity(model, batch)
    merged = "W + BA merged" in parts
    for row in result:
        if isinstance(model, Function) and any(HELD in note for note in row.notes):
            outcome.remarks.append("part of a weight held fixed")  # the row says so: it is not what is moved here
            continue
        for sample, bracket in enumerate(row.bracket_h.per_sample or ()):
            if bracket.log10_upper == math.inf:
                outcome.remarks.append("infinite")
                continue
            for name, reached in _reached(model, row, batch[sample : sample + 1], seed, merged):
                room = 1 + (2.0**-20 if dtype is torch.float32 and _parametrized(parts) else 0.0)
                words = f"seed {seed}, {row.path or row.parameter} by {name}: {reached!r} above {bracket.upper!r}"
                outcome.check(reached <= bracket.upper * room, words)
                if reached > 0:
                    outcome.gaps.append(bracket.log10_upper - math.log10(reached))
    return outcome


def _parametrized(parts: list[str]) -> bool:
    """Whether a weight is made in the model's own float, which the same model in float64 makes a little otherwise."""
    return any("norm " in part or "orthogonal" in part for part in parts)


def _reached(model: nn.Module, row: WeightRow, x: Tensor, seed: int, merged: bool) -> list[tuple[str, float]]:
    """The steepest secant by every parameter behind a row: its own, or the originals of its weight."""
    with torch.no_grad():
        model(x)  # weight_norm's hook makes the weight anew: as it comes it cannot be copied
    twin = copy.deepcopy(model).double()
    x = x.double() if x.is_floating_point() else x
    if any(HELD in note for note in row.notes):
        _untie(twin)
    found = []
    for name, measured in _movable(twin, row, merged):
        with torch.no_grad():
            twin(x)  # as above
        found.append((name, Weight(twin, name, x, measured).attack(seed)))
    return found


def _movable(model: nn.Module, row: WeightRow, merged: bool) -> list[tuple[str, Callable[[nn.Module], Tensor] | None]]:
    """Names of parameters, each with the weight whose change counts; None: the parameter itself."""
    if row.parameter is not None:
        return [(row.parameter, None)]
    prefix = f"{row.path}." if row.path else ""
    module = model.get_submodule(row.path)
    names = [name for name, value in module.named_parameters() if value.ndim > 1 or "weight" in name]
    if module is model and isinstance(module, Function):  # only a sum of its own is made of parameters that we know
        return [("w", lambda owner: owner.w + owner.b @ owner.a)] if merged else []
    return [(prefix + name, lambda owner: owner.get_submodule(row.path).weight) for name in names]


def _untie(model: nn.Module) -> None:
    """Give the head its own copy where the embedding is held fixed."""
    assert isinstance(model, Tied)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
