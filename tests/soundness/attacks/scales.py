"""Spot checks at extreme sizes: networks that are homogeneous in their weights, scaled by powers of ten.

Scaling a weight of a bias-free piecewise linear network scales its constant. What is known of the network as drawn,
by pairs of inputs in float64, must hold of the scaled one, as long as its weights are normal floats.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import nn

import normscope as ns
from normscope.core.errors import NormscopeError, SoundnessError

from ..attacker import as_function, double_twin, strongest
from .outcome import Outcome, drawing

ROUNDING = 1e-9
FAMILIES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(3, 4, False), (3,)),
    "relu": (lambda: nn.Sequential(nn.Linear(3, 5, False), nn.ReLU(), nn.Linear(5, 2, False)), (3,)),
    "leaky": (lambda: nn.Sequential(nn.Linear(3, 5, False), nn.LeakyReLU(-0.5), nn.Linear(5, 2, False)), (3,)),
    "convolution": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, bias=False), nn.ReLU(), nn.Conv1d(3, 2, 2, bias=False)),
                    (2, 6)),
    "pool": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, bias=False), nn.MaxPool1d(2, 1), nn.Conv1d(3, 2, 2, bias=False)),
             (2, 6)),
}  # fmt: skip


def attack(seed: int) -> Outcome:
    """Scale the weights of a network and compare its constants with those known without the scaling."""
    with drawing(f"scales {seed}") as draw:
        build, shape = FAMILIES[family := [*FAMILIES][seed % len(FAMILIES)]]
        dtype = draw.choice([torch.float32, torch.float64])
        most = 30 if dtype is torch.float32 else 200
        model, batch = build().to(dtype).eval(), torch.randn(2, *shape).to(dtype)
        exponents = _exponents(draw.choice(["up", "down", "against each other"]), most, len([*model.parameters()]))
        radius = 10.0 ** draw.choice([-3, 0])
    reached, _ = strongest(as_function(double_twin(model), (1, *shape)), batch[0].double().reshape(-1), seed=seed)
    outcome = Outcome("scales", (family, str(dtype).removeprefix("torch."), f"weights by {exponents}"))
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, exponent in zip(scaled.parameters(), exponents, strict=True):
            parameter.mul_(10.0**exponent)
    known = math.log10(reached) + sum(exponents)
    room = math.log10(1 + ROUNDING) if dtype is torch.float64 else len(exponents) * math.log10(1 + 2.0**-21)
    _check(outcome, f"seed {seed} over all inputs", known, room, lambda: ns.lipschitz(scaled, batch))
    _check(outcome, f"seed {seed}, tight", known, room, lambda: ns.lipschitz(scaled, batch, effort="tight"))
    at = torch.autograd.functional.jacobian(lambda x: model.double()(x), batch[:1].double())
    slope = float(torch.linalg.matrix_norm(at.reshape(-1, batch[0].numel()), 2))
    if slope > 0:
        local = math.log10(slope) + sum(exponents)
        ball = {"scope": "ball", "radius": radius}
        _check(outcome, f"seed {seed} at a point", local, room, lambda: ns.lipschitz(scaled, batch[:1], scope="point"))
        _check(outcome, f"seed {seed} over a ball", local, room, lambda: ns.lipschitz(scaled, batch[:1], **ball))
    return outcome


def _exponents(way: str, most: int, count: int) -> list[int]:
    """By how many powers of ten each weight is scaled; the product stays a float."""
    if way == "against each other" and count > 1:
        return [most, -most, *[0] * (count - 2)]
    return [most // count * (1 if way == "up" else -1)] * count


def _check(outcome: Outcome, words: str, known: float, room: float, figure: Callable[[], ns.Bracket]) -> None:
    try:
        bracket = figure()
    except SoundnessError as error:
        outcome.check(False, f"{words}: {error}")
        return
    except NormscopeError as error:
        outcome.remarks.append(f"refused: {type(error).__name__}")
        return
    if bracket.log10_upper == math.inf:
        outcome.remarks.append("infinite")
        return
    outcome.check(known <= bracket.log10_upper + room, f"{words}: 10^{known!r} above 10^{bracket.log10_upper!r}")
    outcome.check(bracket.log10_lower <= bracket.log10_upper, f"{words}: sides crossed")
    outcome.gaps.append(bracket.log10_upper - known)
