"""An attacker that knows nothing of Normscope: the model itself, deep-copied to float64, against its claimed bounds.

Dense Jacobians at many points give directions; what counts are pairs of inputs in float64, a Jacobian proves nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Flat = Callable[[Tensor], Tensor]
STEPS = (1e-1, 1e-2, 1e-3, 1e-4)


def double_twin(model: nn.Module) -> nn.Module:
    """Return a float64 copy that computes the same function: dropout off, parametrized weights as they are."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
        if parametrize.is_parametrized(module):  # remove_parametrizations would also strip the original's class
            weights = {name: getattr(module, name).detach().clone() for name in module.parametrizations}
            module.__class__ = type(module).__mro__[1]
            del module._modules["parametrizations"]
            for name, weight in weights.items():
                module.register_parameter(name, nn.Parameter(weight))
    return twin.double()


def as_function(twin: nn.Module, shape: tuple[int, ...]) -> Flat:
    """The model as a map of flat vectors; train-mode statistics of the copy may drift, they are never read."""
    return lambda flat: twin(flat.reshape(shape)).reshape(-1)


def strongest(
    function: Flat, start: Tensor, *, seed: int, tries: int = 10, climbs: int = 2
) -> tuple[float, Tensor | None]:
    """Return the largest secant slope found, less what rounding can fake, and the middle of its pair."""
    generator = torch.Generator().manual_seed(seed)
    found: list[tuple[float, Tensor, Tensor]] = []
    for point in _points(start, generator, tries):
        direction = _top_direction(function, point)
        if direction is not None:
            found.append((_best_secant(function, point, direction), point, direction))
    found.sort(key=lambda item: -item[0])
    best, where = (found[0][0], found[0][1]) if found else (0.0, None)
    for value, point, direction in found[:climbs]:
        value, point = _climb(function, point, direction, value)
        if value > best:
            best, where = value, point
    return best, where


def secant(function: Flat, u: Tensor, v: Tensor) -> float:
    """norm(f(u) - f(v))/norm(u - v) in float64, less what rounding can fake."""
    with torch.no_grad():
        first, second = function(u), function(v)
        shaken = [function(w * (1.0 + s * 2.0**-50)) for w in (u, v) for s in (1.0, -1.0)]
        noise = 8.0 * max(float((a - b).norm()) for a, b in zip(shaken, (first, first, second, second)))
        noise += 2.0**-46 * float(first.norm() + second.norm())
        # rounding inside shows where the function hardly moves (GELU far to the left) as a bend that no function has
        for w, value in ((u, first), (v, second)):
            bends = [function(w * (1.0 + s)) + function(w * (1.0 - s)) - 2.0 * value for s in (2.0**-32, 2.0**-29)]
            noise += 8.0 * max(float(bend.norm()) for bend in bends)
        change, distance = float((first - second).norm()), float((u - v).norm())
    if not (math.isfinite(change) and math.isfinite(noise) and distance > 0):
        return 0.0
    return max(0.0, change * (1 - 1e-9) - noise) / distance


def _points(start: Tensor, generator: torch.Generator, tries: int) -> Iterator[Tensor]:
    """The data, points of many sizes, and points where normalizers see next to no variance."""
    size = max(float(start.abs().mean()), 1e-3)

    def noise() -> Tensor:
        return torch.randn(start.shape, dtype=torch.float64, generator=generator)

    yield start + 1e-3 * size * noise()
    for scale in (1e-3, 1e-2, 0.1, 1.0, 10.0)[: max(1, tries // 2)]:
        yield scale * noise()
    level = float(torch.randn((), generator=generator))
    for spread in (1e-3, 1e-2, 0.1, 0.3)[: max(1, tries - 1 - tries // 2)]:
        yield level + spread * noise()


def jacobian(function: Flat, point: Tensor) -> Tensor | None:
    """The dense Jacobian by autograd, or None where it is not finite."""
    x = point.detach().clone().requires_grad_(True)
    value = function(x)
    if not value.requires_grad:
        return None
    rows = torch.eye(value.numel(), dtype=torch.float64)
    (dense,) = torch.autograd.grad(value, x, rows, is_grads_batched=True)
    return dense if bool(torch.isfinite(dense).all()) else None


def _top_direction(function: Flat, point: Tensor) -> Tensor | None:
    dense = jacobian(function, point)
    if dense is None or float(dense.abs().max()) == 0.0:
        return None
    return torch.linalg.svd(dense, full_matrices=False)[2][0]


def _best_secant(function: Flat, point: Tensor, direction: Tensor) -> float:
    size = max(float(point.norm()), 1e-3)
    pairs = [(point + step * size * direction, point - step * size * direction) for step in STEPS]
    with torch.no_grad():
        raw = [float((function(u) - function(v)).norm() / (u - v).norm()) for u, v in pairs]
    order = sorted(range(len(pairs)), key=lambda i: -raw[i] if math.isfinite(raw[i]) else math.inf)
    return max(secant(function, *pairs[i]) for i in order[:2])


def _climb(function: Flat, point: Tensor, direction: Tensor, value: float) -> tuple[float, Tensor]:
    """Move the point uphill on the norm of its Jacobian in the top direction, which is renewed by power steps."""
    rate = 0.05 * max(float(point.norm()), 1e-3) / math.sqrt(point.numel())
    best, where = value, point
    for _ in range(12):
        x = point.detach().clone().requires_grad_(True)
        step = 1e-4 * max(float(point.norm()), 1e-3)
        change = (function(x + step * direction) - function(x - step * direction)) / (2 * step)
        (uphill,) = torch.autograd.grad(change.pow(2).sum().clamp(min=1e-200).log(), x)
        y = point.detach().clone().requires_grad_(True)
        (pulled,) = torch.autograd.grad(function(y), y, change.detach())
        if not bool(torch.isfinite(uphill).all() and torch.isfinite(pulled).all()) or float(pulled.norm()) == 0.0:
            break
        direction = pulled / pulled.norm()
        point = point + rate * uphill.sign()
        value = _best_secant(function, point, direction)
        if value > best:
            best, where = value, point
        else:
            rate *= 0.6
    return best, where
