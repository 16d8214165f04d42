"""Activations: functions of single entries. What is known of each function stands in `theory/activations.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.rounding import Upper
from ...theory import activations
from ...theory.activations import (
    ACTIVATIONS,
    NO_LIMIT,
    SOFTPLUS_THRESHOLD,
    STRAIGHT,
    STRETCH,
    Activation,
    TurningPoint,
    turning,
)
from ..graph import samples
from ..graph.ir import Node, Ref
from ..graph.traits import describe
from .effects import UNKNOWN, Effect, Elementwise, Gain, Range, Unbounded
from .local.local import Builder
from .local.scalar import Scalar, scalar_step
from .registry import EntrywiseWord, LocalRule, WordRule, activation_of, effect_of, rule

aten = torch.ops.aten
WRITTEN = 1e-9
"""How far the derivative of a written-out activation may be off. Its constants are rounded, so that its turning points
lie up to 1e-6 from the known ones, where the derivative is flat to second order."""


def entrywise(
    op: Any,
    choose: Callable[[dict[str, Any]], Activation],
    *functions: Callable[[Tensor], Tensor],
    local: LocalRule | None = None,
    word: WordRule | None = None,
) -> None:
    """Register an activation, whole: `choose` reads its parameters off the operator's arguments.

    Its turning points and its word are those of the `Activation`; `local` and `word` stand in for them where they
    depend on more than that.
    """
    name = str(op).split(".")[1]

    def chosen(node: Node) -> Activation | None:
        arguments = node.bound()
        varies = any(isinstance(value, Ref) for key, value in arguments.items() if key not in ("self", "input", "x"))
        return None if varies else choose(arguments)

    @rule(
        op,
        examples=[(f, (2, 5)) for f in functions],
        summary=f"Entrywise {name}: a slope interval",
        activation=chosen,
        local=local or between_turns,
        word=word or called,
    )
    def activation(node: Node, operands: Sequence[Range]) -> Effect:
        wanted = chosen(node)
        if wanted is None:
            return Unbounded(reason=f"a parameter of {node.op} depends on the input in {node.where}")
        outcome = effect(wanted, node)
        copies = math.prod(node.shape) / max(math.prod(node.operands[0].shape), 1)
        if copies != 1 and isinstance(outcome, Elementwise):  # a tensor of limits may be larger than the operand
            return Gain(gains=(outcome.gain.times(Upper.of(math.sqrt(copies), outcome.evidence, allowance=1e-15)),))
        return outcome


def effect(activation: Activation, node: Node) -> Effect:
    """Turn an activation into an effect."""
    if not all(map(math.isfinite, activation.slope)):
        return Unbounded(reason=f"{activation.reason or activation.name + ' is not Lipschitz'}, in {node.where}")
    return Elementwise(slope=activation.slope, range=activation.bounded, evidence=activation.evidence)


def values_within(node: Node) -> tuple[float, float]:
    """Return the range of a function's values, where its rule knows one."""
    outcome = effect_of(node, [UNKNOWN])
    return outcome.range if isinstance(outcome, Elementwise) else (-math.inf, math.inf)


def between_turns(node: Node, build: Builder) -> str | None:
    """Return a function whose derivative is monotone between the turning points of its activation."""
    function = activation_of(node)
    if function is None or function.turns is None or len(node.operands) != 1:
        return None
    bounded = values_within(node)
    return scalar_step(
        node, build, Scalar(lambda x: node.evaluate([x]), function.turns, bounded=bounded, margin=function.margin)
    )


def called(node: Node) -> EntrywiseWord | None:
    """Return the word of the activation that a node is."""
    function = activation_of(node)
    if function is None or function.word is None or not all(map(math.isfinite, function.slope)):
        return None
    return EntrywiseWord(*function.word)


_FIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "relu6": F.relu6, "selu": F.selu, "silu": F.silu, "mish": F.mish, "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid, "sigmoid": torch.sigmoid, "log_sigmoid": F.logsigmoid, "tanh": torch.tanh,
    "sin": torch.sin, "cos": torch.cos, "erf": torch.erf, "atan": torch.atan, "abs": torch.abs,
}  # fmt: skip


def _fixed(activation: Activation) -> Callable[[dict[str, Any]], Activation]:
    return lambda arguments: activation


for _name, _function in _FIXED.items():
    entrywise(getattr(aten, _name).default, _fixed(ACTIVATIONS[_name.replace("_", "")]), _function)

entrywise(
    aten.gelu.default,
    lambda a: activations.gelu(a["approximate"]),
    F.gelu,
    lambda x: F.gelu(x, approximate="tanh"),
)
entrywise(
    aten.leaky_relu.default,
    lambda a: activations.leaky_relu(float(a["negative_slope"])),
    F.leaky_relu,
    lambda x: F.leaky_relu(x, 2.5),
    lambda x: F.leaky_relu(x, -0.5),
)
entrywise(
    aten.rrelu.default, lambda a: activations.rrelu(float(a["lower"]), float(a["upper"])), nn.RReLU(0.1, 0.5).eval()
)
entrywise(
    aten.elu.default,
    lambda a: activations.elu(float(a["alpha"]), float(a["scale"]), float(a["input_scale"])),
    F.elu,
    lambda x: F.elu(x, 2.0),
    lambda x: F.elu(x, -0.5),
)
entrywise(aten.celu.default, lambda a: activations.celu(float(a["alpha"])), F.celu, lambda x: F.celu(x, 0.3))


def _prelu_slopes(node: Node) -> Tensor:
    """Return the slope of a PReLU below zero, one or one per channel, in a shape that broadcasts to the value's."""
    slopes: Tensor = node.bound()["weight"].double()
    return slopes.reshape(-1) if slopes.numel() == 1 else slopes.reshape(-1, *(1,) * (len(node.shape) - 2))


def _prelu_steps(node: Node, build: Builder) -> str | None:
    """PReLU: one slope, or one per channel."""
    if len(node.operands) != 1:
        return None
    slopes = _prelu_slopes(node)
    bounded = values_within(node)
    function = Scalar(
        lambda x: torch.where(x > 0, x, slopes * x), (TurningPoint(0.0),), bounded=bounded, margin=STRAIGHT
    )
    return scalar_step(node, build, function)


entrywise(
    aten.prelu.default,
    lambda a: activations.prelu(a["weight"]),
    nn.PReLU(5),
    nn.PReLU(1, init=-2.0),
    local=_prelu_steps,
    word=lambda node: (
        None if activation_of(node) is None else EntrywiseWord("leaky_relu", {"slope": _prelu_slopes(node)})
    ),
)


def _softplus_steps(node: Node, build: Builder) -> str | None:
    """Softplus: its derivative is a sigmoid; at its threshold it jumps by log(1 + exp(-threshold))/beta."""
    arguments = node.bound()
    beta, threshold = float(arguments["beta"]), float(arguments["threshold"])
    jump = math.log1p(math.exp(-threshold)) / abs(beta)
    tolerated = threshold >= SOFTPLUS_THRESHOLD
    function = Scalar(
        lambda x: node.evaluate([x]),
        jumps=() if tolerated else turning(threshold / beta),
        bounded=values_within(node),
        wobble=1.01 * jump if tolerated else 0.0,
        reason=f"a jump at its threshold {threshold:g} in {node.where}",
    )
    return scalar_step(node, build, function)


entrywise(
    aten.softplus.default,
    lambda a: activations.softplus(float(a["beta"]), float(a["threshold"])),
    lambda x: F.softplus(x, 2.0),
    lambda x: F.softplus(x, 2.0, 40.0),
    local=_softplus_steps,
)


def _threshold_steps(node: Node, build: Builder) -> str | None:
    """A threshold: a kink where the two pieces meet, otherwise a jump."""
    arguments = node.bound()
    at, value = float(arguments["threshold"]), float(arguments["value"])
    jumps = () if at == value else turning(at)
    reason = f"a jump at {at:g} in {node.where}"
    return scalar_step(
        node, build, Scalar(lambda x: node.evaluate([x]), turning(at), jumps, margin=STRAIGHT, reason=reason)
    )


entrywise(
    aten.threshold.default,
    lambda a: activations.threshold(float(a["threshold"]), float(a["value"])),
    lambda x: F.threshold(x, 0.5, 0.5),
    lambda x: F.threshold(x, 0.5, 0.0),
    local=_threshold_steps,
)


def _limits(node: Node) -> tuple[Any, Any]:
    """Return the limits of a clamp: numbers, tensors, or None."""
    arguments = node.bound()
    names = ("min_val", "max_val") if node.op is aten.hardtanh.default else ("min", "max")
    low, high = (arguments.get(name) for name in names)
    return low, high


def _clamp(arguments: dict[str, Any]) -> Activation:
    """Tensors of limits give their loosest; torch returns the upper limit where the two are crossed."""
    low, high = arguments.get("min"), arguments.get("max")
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        lows = None if low is None else torch.as_tensor(low, dtype=torch.float64)
        highs = None if high is None else torch.as_tensor(high, dtype=torch.float64)
        lows = torch.minimum(lows, highs.to(lows.device)) if lows is not None and highs is not None else lows
        return activations.clamp(
            None if lows is None else float(lows.amin()), None if highs is None else float(highs.amax())
        )
    return activations.clamp(None if low is None else float(low), None if high is None else float(high))


def _clamp_steps(node: Node, build: Builder) -> str | None:
    """A clamp: kinks at its limits, numbers or tensors."""
    limits = [limit for limit in _limits(node) if limit is not None]
    if len(node.operands) != 1 or any(isinstance(limit, Ref) for limit in limits):
        return None
    turns = tuple(TurningPoint(limit.double() if isinstance(limit, Tensor) else float(limit)) for limit in limits)
    bounded = values_within(node)
    return scalar_step(node, build, Scalar(lambda x: node.evaluate([x]), turns, bounded=bounded, margin=STRAIGHT))


def _clamp_word(node: Node) -> EntrywiseWord | None:
    """Limits for every entry, where they are tensors; a checker knows no crossed ones."""
    if activation_of(node) is None:
        return None
    low, high = _limits(node)
    low = -NO_LIMIT if low is None else low.double() if isinstance(low, Tensor) else max(-NO_LIMIT, float(low))
    high = NO_LIMIT if high is None else high.double() if isinstance(high, Tensor) else min(NO_LIMIT, float(high))
    crossed = bool((torch.as_tensor(low) > torch.as_tensor(high)).any())
    return None if crossed else EntrywiseWord("clamp", {"low": low, "high": high})


entrywise(
    aten.hardtanh.default,
    lambda a: activations.hardtanh(float(a["min_val"]), float(a["max_val"])),
    F.hardtanh,
    F.relu6,
    local=_clamp_steps,
    word=_clamp_word,
)
for _op, _functions in (
    (aten.clamp.default, (lambda x: x.clamp(-0.5, 0.25), lambda x: x.clamp(min=0))),
    (aten.clip.default, (lambda x: torch.clip(x, -0.5, 0.25), lambda x: torch.clip(x, max=0.1))),
    (aten.clip.Tensor, (lambda x: torch.clip(x, -torch.ones(5), torch.linspace(0, 1, 5)),)),
    (aten.clamp_min.default, (lambda x: torch.clamp_min(x, 0.5),)),
    (aten.clamp_max.default, (lambda x: torch.clamp_max(x, 0.5),)),
    (
        aten.clamp.Tensor,
        (
            lambda x: torch.clamp(x, torch.zeros(5), torch.linspace(-1, 1, 5)) * x.tanh(),
            lambda x: torch.clamp(x, -torch.ones(5), torch.linspace(0, 1, 5)),
        ),
    ),
):
    entrywise(_op, _clamp, *_functions, local=_clamp_steps, word=_clamp_word)


def _written(node: Node) -> Activation:
    activation: Activation = node.op.data["activation"]
    return activation


def _written_steps(node: Node, build: Builder) -> str | None:
    """An activation written out in several operators: the turning points of the one it is, or its own knots."""
    activation = _written(node)
    run: Callable[[Tensor], Tensor] = lambda x: node.evaluate([x])  # noqa: E731
    knots = turning(*activation.knots)
    if activation.reason is not None:
        reason = f"{activation.name.partition('(')[0]} jumps within the ball, in {node.where}"
        return scalar_step(node, build, Scalar(run, jumps=knots, margin=STRAIGHT, reason=reason)) if knots else None
    if knots:
        return scalar_step(node, build, Scalar(run, knots, bounded=activation.bounded, margin=STRAIGHT))
    if activation.turns is None or any(turn.period for turn in activation.turns):
        return None
    turns = tuple(TurningPoint(turn.at / activation.inner) for turn in activation.turns)
    margin = max(activation.margin, WRITTEN) * max(1.0, abs(activation.factor))
    return scalar_step(node, build, Scalar(run, turns, bounded=activation.bounded, margin=margin))


def _written_word(node: Node) -> EntrywiseWord | None:
    """The word of the activation that is written out, if the two agree to rounding: a proof is of this network."""
    activation = _written(node)
    said = None if (activation.inner, activation.factor) != (1.0, 1.0) else activation.word
    if activation.name == "silu" and activation.factor == 1.0 and activation.inner > 0:
        said = ("silu", {"beta": activation.inner}) if STRETCH[0] <= activation.inner <= STRETCH[1] else None
    if (
        said is None
        or not all(map(math.isfinite, activation.slope))
        or not _identical(node.op.function, activation.function)
    ):
        return None
    return EntrywiseWord(*said)


def _identical(function: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor]) -> bool:
    """Whether two functions agree to rounding: a script must be the network, not one that comes close."""
    grid = torch.cat([torch.linspace(-12, 12, 4801, dtype=torch.float64), torch.logspace(1.1, 3, 50).double()])
    grid = torch.cat([grid, -grid])
    first, second = function(grid), other(grid)
    return bool(((first - second).abs() <= 1e-12 * (grid.abs() + second.abs() + 1e-3)).all())


@rule(
    "activation",
    examples=[
        (lambda x: x * torch.sigmoid(1.702 * x), (2, 5)),
        (lambda x: x * F.softplus(x).tanh(), (2, 5)),
        (lambda x: torch.where(x > 0, x, 0.1 * x), (2, 5)),
        (F.softshrink, (2, 5)),
    ],
    activation=_written,
    local=_written_steps,
    word=_written_word,
)
def recognised(node: Node, operands: Sequence[Range]) -> Effect:
    """An activation written out in several operators, known by its formula."""
    return effect(_written(node), node)


describe(
    "hardswish log_sigmoid dropout.default feature_dropout.default alpha_dropout.default feature_alpha_dropout.default",
    samples=samples.entrywise,
)
describe("prelu.default", samples=samples.by_channel)
describe("relu.default leaky_relu.default abs.default", homogeneous=True, kinks=1)
describe("relu6.default hardtanh.default", kinks=2)
