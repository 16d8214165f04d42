"""Activations: entrywise functions with a slope interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.rounding import Upper
from ..graph.ir import Node, Ref
from ..theory import activations
from ..theory.activations import ACTIVATIONS, Activation, softmax_norm
from .effects import Effect, Elementwise, Gain, Range, Unbounded
from .registry import rule

aten = torch.ops.aten


def entrywise(op: Any, choose: Callable[[dict[str, Any]], Activation], *functions: Callable[[Tensor], Tensor]) -> None:
    """Register an activation; `choose` reads its parameters off the operator's arguments."""
    name = str(op).split(".")[1]

    @rule(op, examples=[(f, (2, 5)) for f in functions], summary=f"Entrywise {name}: a slope interval")
    def activation(node: Node, operands: Sequence[Range]) -> Effect:
        arguments = node.bound()
        if any(isinstance(value, Ref) for name, value in arguments.items() if name not in ("self", "input", "x")):
            return Unbounded(reason=f"a parameter of {node.op} depends on the input in {node.where}")
        found = effect(choose(arguments), node)
        copies = math.prod(node.shape) / max(math.prod(node.operands[0].shape), 1)
        if copies != 1 and isinstance(found, Elementwise):  # a tensor of limits may be larger than the operand
            return Gain(gains=(found.gain.times(Upper.of(math.sqrt(copies), found.evidence, allowance=1e-15)),))
        return found


def effect(activation: Activation, node: Node) -> Effect:
    """Turn an activation into an effect."""
    if not all(map(math.isfinite, activation.slope)):
        return Unbounded(reason=f"{activation.reason or activation.name + ' is not Lipschitz'}, in {node.where}")
    return Elementwise(slope=activation.slope, range=activation.bounded, evidence=activation.evidence)


def _fixed(name: str) -> Callable[[dict[str, Any]], Activation]:
    return lambda arguments: ACTIVATIONS[name]


_FIXED: list[tuple[Any, str, Callable[[Tensor], Tensor]]] = [
    (aten.relu.default, "relu", F.relu),
    (aten.relu6.default, "relu6", F.relu6),
    (aten.selu.default, "selu", F.selu),
    (aten.silu.default, "silu", F.silu),
    (aten.mish.default, "mish", F.mish),
    (aten.hardswish.default, "hardswish", F.hardswish),
    (aten.hardsigmoid.default, "hardsigmoid", F.hardsigmoid),
    (aten.sigmoid.default, "sigmoid", torch.sigmoid),
    (aten.log_sigmoid.default, "logsigmoid", F.logsigmoid),
    (aten.tanh.default, "tanh", torch.tanh),
    (aten.sin.default, "sin", torch.sin),
    (aten.cos.default, "cos", torch.cos),
    (aten.erf.default, "erf", torch.erf),
    (aten.atan.default, "atan", torch.atan),
    (aten.abs.default, "abs", torch.abs),
]
for _op, _name, _function in _FIXED:
    entrywise(_op, _fixed(_name), _function)

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
entrywise(aten.prelu.default, lambda a: activations.prelu(a["weight"]), nn.PReLU(5), nn.PReLU(1, init=-2.0))
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
entrywise(
    aten.softplus.default,
    lambda a: activations.softplus(float(a["beta"]), float(a["threshold"])),
    lambda x: F.softplus(x, 2.0),
)
entrywise(
    aten.threshold.default,
    lambda a: activations.threshold(float(a["threshold"]), float(a["value"])),
    lambda x: F.threshold(x, 0.5, 0.5),
    lambda x: F.threshold(x, 0.5, 0.0),
)
entrywise(
    aten.hardtanh.default, lambda a: activations.hardtanh(float(a["min_val"]), float(a["max_val"])), F.hardtanh, F.relu6
)


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


entrywise(aten.clamp.default, _clamp, lambda x: x.clamp(-0.5, 0.25), lambda x: x.clamp(min=0))
entrywise(aten.clamp_min.default, _clamp, lambda x: torch.clamp_min(x, 0.5))
entrywise(aten.clamp_max.default, _clamp, lambda x: torch.clamp_max(x, 0.5))
entrywise(aten.clamp.Tensor, _clamp, lambda x: torch.clamp(x, torch.zeros(5), torch.linspace(-1, 1, 5)) * x.tanh())


@rule(
    "activation",
    examples=[
        (lambda x: x * torch.sigmoid(1.702 * x), (2, 5)),
        (lambda x: x * F.softplus(x).tanh(), (2, 5)),
        (lambda x: torch.where(x > 0, x, 0.1 * x), (2, 5)),
        (F.softshrink, (2, 5)),
    ],
)
def recognised(node: Node, operands: Sequence[Range]) -> Effect:
    """An activation written out in several operators, known by its formula."""
    return effect(node.op.data["activation"], node)


@rule(
    aten.softmax.int,
    examples=[(lambda x: x.softmax(-1), (2, 4)), (lambda x: F.softmin(x, 0), (2, 4))],
)  # fmt: skip
def softmax(node: Node, operands: Sequence[Range]) -> Effect:
    """Softmax over one dimension: norm of the Jacobian at most 1/2."""
    dim = int(node.args[1])
    n = node.shape[dim]
    row = 1.0 if dim % len(node.shape) == len(node.shape) - 1 else math.inf
    return Gain(gains=(softmax_norm(n),), range=Range.of(1.0, node.shape[-1], row))


@rule(aten.log_softmax.int, examples=[(lambda x: x.log_softmax(-1), (2, 4))])
def log_softmax(node: Node, operands: Sequence[Range]) -> Effect:
    """Log-softmax over one dimension: sqrt(n), approached where one class has all the mass."""
    return Gain(gains=(activations.log_softmax_norm(node.shape[int(node.args[1])]),))


@rule(
    aten.glu.default,
    examples=[(lambda x: F.glu(x.tanh() * 3), (2, 4)), (lambda x: F.glu(F.layer_norm(x, (4,))), (2, 4))],
)
def glu(node: Node, operands: Sequence[Range]) -> Effect:
    """A gated linear unit: finite only on bounded operands."""
    entry = operands[0].entry
    gain: Upper = activations.glu_norm(entry)
    if gain.reason:
        return Unbounded(reason=f"{gain.reason}, in {node.where}")
    return Gain(gains=(gain,), range=Range.of(entry, node.shape[-1]))
