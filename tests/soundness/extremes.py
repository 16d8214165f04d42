"""Networks at extreme scales with a constant known by hand, and networks that cancel: where floats lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import NormscopeError, SoundnessError

from .networks import Function

SCALES = (1e-200, 1e-150, 1e-80, 1.0, 1e80, 1e150, 1e200)
POWERS = (-660, -330, -3, 0, 2, 7, 10, 27, 330, 660)
"""Exponents of 2 of the factors of cancelling layers: 10^-199 to 10^199."""
SECONDS = 0.3
"""Budget of one figure."""
Formula = Callable[[Tensor], Tensor]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Return fixed random entries in float64."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


WEIGHT, SECOND, KERNEL = drawn(4, 4), drawn(3, 4, seed=1), drawn(2, 1, 3, seed=2)


def _linear_scaled(s: float) -> Formula:
    return lambda x: F.linear(F.linear(x, WEIGHT * s), SECOND / s)


def _gated(s: float) -> Formula:
    return lambda x: (((1000 + 1e-3 * torch.tanh(x / s)) * 1e-200) * torch.tanh(x.flip(-1) / s)) * 1e200 * s


def _attended(s: float) -> Formula:
    def function(x: Tensor) -> Tensor:
        rows = (x / s).reshape(-1, 2, 2)
        bounded = F.layer_norm(rows, (2,), eps=0.5)
        return (F.scaled_dot_product_attention(bounded, bounded, bounded) * s).reshape(-1, 4)

    return function


OPERATORS: dict[str, tuple[int, Callable[[float], Formula]]] = {
    "linear": (1, lambda s: lambda x: F.linear(x, WEIGHT)),
    "linear, factors s and 1/s": (1, _linear_scaled),
    "two linear layers and relu": (1, lambda s: lambda x: F.linear(F.linear(x, WEIGHT).relu(), SECOND)),
    "conv1d": (1, lambda s: lambda x: F.conv1d(x[:, None], KERNEL, padding=1).relu().flatten(1)),
    "conv1d with weights s": (2, lambda s: lambda x: F.conv1d(x[:, None], KERNEL * s, padding=1).flatten(1)),
    "max pooling": (1, lambda s: lambda x: F.max_pool1d(x[:, None], 2).flatten(1)),
    "average pooling": (1, lambda s: lambda x: F.avg_pool1d(x[:, None], 2).flatten(1)),
    "layer norm": (0, lambda s: lambda x: F.layer_norm(x, (4,), eps=0.0)),
    "group norm": (0, lambda s: lambda x: F.group_norm(x, 1, eps=0.0)),
    "rms norm": (0, lambda s: lambda x: F.rms_norm(x, (4,), eps=0.0)),
    "l2 norm": (1, lambda s: lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True)),
    "tanh": (1, lambda s: lambda x: torch.tanh(x / s) * s),
    "gelu": (1, lambda s: lambda x: F.gelu(x / s) * s),
    "softmax": (1, lambda s: lambda x: (x / s).softmax(1) * s),
    "log softmax": (1, lambda s: lambda x: (x / s).log_softmax(1) * s),
    "log-sum-exp": (1, lambda s: lambda x: (x / s).logsumexp(1, keepdim=True) * s),
    "product": (2, lambda s: lambda x: (torch.tanh(x / s) * s) * (torch.sigmoid(x / s) * s)),
    "product with a vanishing factor": (1, _gated),
    "square": (2, lambda s: lambda x: (torch.tanh(x / s) * s) ** 2),
    "matrix product": (2, lambda s: lambda x: _outer(torch.tanh(x / s) * s)),
    "attention": (1, _attended),
    "skip": (1, lambda s: lambda x: x + F.linear(F.linear(x, WEIGHT * s).relu(), WEIGHT.T / s)),
}
"""By name: the degree d (f_s(s x) = s^d f_1(x)), and the function at a scale."""


def _outer(x: Tensor) -> Tensor:
    rows = x.reshape(-1, 2, 2)
    return (rows @ rows.mT).reshape(-1, 4)


@dataclass(frozen=True)
class Case:
    """One figure that must not be wrong: None, or what is wrong with it."""

    name: str
    wrong: str | None


def scaled_case(name: str, s: float, scope: str) -> Case:
    """Attack one operator at one scale: its upper side must reach the slope of a pair known at scale 1."""
    degree, build = OPERATORS[name]
    where = f"{name} at {s:g}, {scope}"
    u = drawn(1, 4, seed=3)
    v = u + 1e-2 * drawn(1, 4, seed=4)
    one = build(1.0)
    slope = float((one(u) - one(v)).norm() / (u - v).norm())
    truth = math.log10(slope * (1 - 1e-7)) + (degree - 1) * math.log10(s)
    radius = 1.01 * float((u - v).norm()) * s
    options = {"scope": "ball", "radius": radius} if scope == "ball" else {}
    if not math.isfinite(radius) or (scope == "ball" and radius == 0):
        return Case(where, None)
    try:
        found = ns.lipschitz(Function(build(s)).eval(), u * s, max_seconds=SECONDS, **options)
    except SoundnessError as error:
        return Case(where, f"SoundnessError: {error}")
    except NormscopeError:
        return Case(where, None)  # refused with a reason: no figure
    if found.log10_upper < truth:
        return Case(where, f"upper side 10^{found.log10_upper:.6g}, truth at least 10^{truth:.6g}")
    return Case(where, None)


class Cancelling(nn.Module):
    """The zero function: three equal values, weighed with f, 2 f and -3 f (f a power of two: no weight is rounded)."""

    def __init__(self, before: Formula, factor: float, weights: tuple[float, ...] = (1.0, 2.0, -3.0)) -> None:
        super().__init__()
        self.before = before
        self.register_buffer("last", factor * torch.tensor([weights], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Cancel."""
        return F.linear(self.before(x), self.last)


ROWS = (0.3 * drawn(1, 4, seed=5)).expand(3, 4).contiguous()
SAME = 5.0 + drawn(1, seed=6).expand(3).contiguous()
MEAN, VARIANCE = drawn(4, seed=7) + 3.0, drawn(4, seed=8).square() + 0.1

CANCELLING: dict[str, Formula] = {
    "linear, relu": lambda x: F.linear(x, ROWS, SAME).relu(),
    "linear, gelu": lambda x: F.gelu(F.linear(x, ROWS, SAME)),
    "skip": lambda x: (F.linear(x, ROWS, SAME) + F.linear(x, ROWS).relu()).relu(),
    "batch norm": lambda x: F.linear(F.batch_norm(x, MEAN, VARIANCE, MEAN, -MEAN), ROWS, SAME).relu(),
    "layer norm": lambda x: F.linear(F.layer_norm(x, (4,)), ROWS, SAME).tanh(),
    "convolution": lambda x: F.conv1d(x[:, None], ROWS[:, None], SAME).relu().flatten(1),
    "softmax": lambda x: F.linear(x.softmax(1), ROWS, SAME).relu(),
    "attention": lambda x: F.linear(
        F.scaled_dot_product_attention(*[x.reshape(-1, 2, 2)] * 3).reshape(-1, 4), ROWS, SAME
    ).tanh(),
    "product": lambda x: F.linear(x.tanh() * x.sigmoid(), ROWS, SAME).exp(),
    "large bias": lambda x: (F.linear(x, ROWS, SAME) + 1e9).relu(),
    "two layers deep": lambda x: F.linear(F.linear(x, ROWS, SAME).relu(), ROWS[:, :3], SAME).relu(),
}
"""By name: three values that are equal, whatever the input."""


def cancelling_case(name: str, power: int, scope: str) -> Case:
    """Measure a network that is the zero function (rounding aside): no lower side may be above zero."""
    where = f"{name} cancelled with 2^{power}, {scope}"
    model = Cancelling(CANCELLING[name], 2.0**power).eval()
    options = {"scope": "ball", "radius": 0.1} if scope == "ball" else {"effort": scope}
    try:
        found = ns.lipschitz(model, drawn(2, 4, seed=9), max_seconds=SECONDS, **options)
    except SoundnessError as error:
        return Case(where, f"SoundnessError: {error}")
    if found.log10_lower > -math.inf:
        return Case(where, f"lower side 10^{found.log10_lower:.6g} of the zero function")
    return Case(where, None)
