"""Losses of torch: of scores for classes with constant targets, and of differences of two values that may both vary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.bracket import Evidence
from ...core.log10 import product_above as above
from ...core.rounding import ZERO, Upper, gamma, numerical
from ...theory.activations import turning
from ..graph.ir import Node, Ref
from ..linalg.linear_map import Averaging
from .effects import Effect, Elementwise, Gain, Range, Unbounded, spread
from .local.local import Builder
from .local.scalar import Scalar
from .registry import rule

aten = torch.ops.aten
MEAN = 1
"""How the operators of torch's losses number their reduction: 0 is none, 1 the mean, 2 the sum."""
_CLASSES = torch.tensor([0, 2, 1, 2])
_VALUES = torch.tensor([[0.5, -1.0, 2.0], [0.0, 1.0, 0.25]])


def _gain(slopes: Tensor, reduction: int, divisor: float) -> Effect:
    """Return the gain of a loss, given for each of its rows how large the gradient with respect to it can get."""
    slopes = slopes.double()
    value = float(slopes.max() if reduction == 0 else slopes.norm()) / (divisor if reduction == MEAN else 1.0)
    if not math.isfinite(value):
        return Unbounded(reason="a weight or a target in the loss is not finite, or no target in it counts")
    allowance = gamma(2.0 * slopes.numel() + 64.0)
    return Gain(
        gains=(Upper.of(value, Evidence.NUMERICAL, "gradient of the loss", allowance=allowance),) if value else (ZERO,)
    )


def _refuse_varying_targets(node: Node) -> Effect | None:
    """Return why nothing is known of a loss whose targets or weights depend on the input; None if they do not."""
    if len(node.refs) == 1 and isinstance(node.args[0], Ref):
        return None
    return Unbounded(reason=f"the targets or the weights of a loss depend on the input in {node.where}")


def _class_weights(weight: Tensor | None, classes: int, device: torch.device) -> Tensor:
    """Return the weight of each class in float64: 1 where the loss was given none."""
    return torch.ones(classes, dtype=torch.float64, device=device) if weight is None else weight.double()


@rule(
    aten.cross_entropy_loss.default,
    examples=[
        (lambda x: F.cross_entropy(x, _CLASSES).reshape(1), (4, 3)),
        (
            lambda x: F.cross_entropy(x, _CLASSES, ignore_index=1, label_smoothing=0.2, reduction="sum").reshape(1),
            (4, 3),
        ),
        (lambda x: F.cross_entropy(x, _CLASSES, weight=torch.tensor([1.0, 0.5, 3.0]), reduction="none"), (4, 3)),
        (lambda x: F.cross_entropy(x, _VALUES.softmax(-1), label_smoothing=0.1).reshape(1), (2, 3)),
        (lambda x: F.cross_entropy(x, _CLASSES.reshape(1, 2, 2)).reshape(1), (1, 3, 2, 2)),
        (lambda x: F.cross_entropy(x, torch.tensor(1)).reshape(1), (3,)),
    ],
)
def cross_entropy_loss(node: Node, operands: Sequence[Range]) -> Effect:
    """Cross entropy: sqrt(2) for a row with one right class.

    With a_c = w_c q_c for weights w and (smoothed) targets q, and A the sum of a, the gradient of a row is A p - a. It
    is convex in the probabilities p, so its norm is largest in a corner j of the simplex, where its square is
    (A - a_j)^2 + the sum of a_c^2 over c other than j: at the least or the largest a_j.
    """
    refused = _refuse_varying_targets(node)
    if refused is not None:
        return refused
    arguments = node.bound()
    shape, targets = arguments["self"].shape, arguments["target"]
    axis = min(len(shape), 2) - 1
    classes, smoothing = shape[axis], float(arguments["label_smoothing"])
    weights = _class_weights(arguments["weight"], classes, targets.device)
    if targets.is_floating_point():
        goals = targets.double().movedim(axis, -1).reshape(-1, classes)
        divisor, counted = float(len(goals)), torch.ones(len(goals), 1, dtype=torch.float64, device=goals.device)
    else:
        labels = targets.reshape(-1)
        counted = (labels != arguments["ignore_index"]).double()[:, None]
        labels = torch.where(counted[:, 0] > 0, labels, 0)
        goals = F.one_hot(labels, classes).double()
        divisor = float((weights[labels] * counted[:, 0]).sum())
    shares = weights * ((1.0 - smoothing) * goals + smoothing / classes) * counted
    squares = []
    for corner in (shares.argmin(-1, keepdim=True), shares.argmax(-1, keepdim=True)):
        others = shares.scatter(-1, corner, 0.0)
        squares.append(others.sum(-1).square() + others.square().sum(-1))
    return _gain(torch.maximum(*squares).sqrt(), int(arguments["reduction"]), divisor)


@rule(
    aten.nll_loss_nd.default,
    examples=[
        (lambda x: F.nll_loss(x.log_softmax(-1), _CLASSES).reshape(1), (4, 3)),
        (lambda x: F.nll_loss(x, _CLASSES, weight=torch.tensor([1.0, 0.5, 3.0]), reduction="none"), (4, 3)),
    ],
)
def nll_loss(node: Node, operands: Sequence[Range]) -> Effect:
    """Negative log likelihood: linear, one entry of each row times the weight of its class."""
    refused = _refuse_varying_targets(node)
    if refused is not None:
        return refused
    arguments = node.bound()
    shape, labels = arguments["self"].shape, arguments["target"].reshape(-1)
    weights = _class_weights(arguments["weight"], shape[min(len(shape), 2) - 1], labels.device)
    counted = labels != arguments["ignore_index"]
    slopes = torch.where(counted, weights[torch.where(counted, labels, 0)], 0.0)
    return _gain(slopes.abs(), int(arguments["reduction"]), float(slopes.sum()))


@rule(
    aten.binary_cross_entropy_with_logits.default,
    examples=[
        (lambda x: F.binary_cross_entropy_with_logits(x, _VALUES.sigmoid()).reshape(1), (2, 3)),
        (
            lambda x: F.binary_cross_entropy_with_logits(
                x, _VALUES.sigmoid(), _VALUES.abs(), reduction="sum", pos_weight=torch.tensor([1.0, 4.0, 0.5])
            ).reshape(1),
            (2, 3),
        ),
    ],
)
def binary_cross_entropy_with_logits(node: Node, operands: Sequence[Range]) -> Effect:
    """Binary cross entropy of logits: slopes between -p y and 1 - y, p being the weight of positives."""
    refused = _refuse_varying_targets(node)
    if refused is not None:
        return refused
    arguments = node.bound()
    goals = arguments["target"].double()
    positives = goals if arguments["pos_weight"] is None else goals * arguments["pos_weight"].double()
    slopes = torch.maximum((1.0 - goals).abs(), positives.abs())
    slopes = slopes if arguments["weight"] is None else slopes * arguments["weight"].double().abs()
    shape = arguments["self"].shape
    return _gain(slopes.expand(shape), int(arguments["reduction"]), float(math.prod(shape)))


def _edge(node: Node) -> float:
    """Return the difference beyond which a Huber loss is a straight line; 0 for the absolute difference."""
    arguments = node.bound()
    return float(arguments.get("beta", arguments.get("delta", 0.0)))


def _difference_shape(node: Node) -> tuple[int, ...]:
    """Return the shape of the difference of the two operands, which may be spread to it."""
    return tuple(torch.broadcast_shapes(*(value.shape for value in node.args[:2])))


def _difference_loss_steps(node: Node, build: Builder) -> str | None:
    """The difference, the loss of every entry of it, and their mean or sum."""
    shape, reduction = _difference_shape(node), node.bound()["reduction"]
    run: Callable[[Tensor], Tensor] = lambda x: node.op(x, torch.zeros_like(x), *_entrywise_options(node))  # noqa: E731
    names = [build.operand(value) for value in node.args[:2]]
    terms = [
        (name, spread(Ref(name, build.shapes[name]), shape, sign, node.device))
        for name, sign in zip(names, (1, -1), strict=True)
    ]
    edge = _edge(node)
    loss = Scalar(run, turning(0.0, -edge, edge), bounded=(0.0, math.inf))
    name = build.apply(loss, build.affine(terms), shape=shape)
    if reduction == 0:
        return name
    factor = 1.0 / math.prod(shape) if reduction == MEAN else 1.0
    return build.affine([(name, Averaging(lambda x: factor * x.flatten(1).sum(1), shape, (), node.device))])


def _entrywise_options(node: Node) -> tuple[float, ...]:
    """Return the arguments after the two operands for a loss of every entry, without a reduction."""
    arguments = node.bound()
    return (0, *(float(arguments[name]) for name in ("beta", "delta") if name in arguments))


@rule(
    aten.l1_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default, aten.mse_loss.default,
    examples=[
        (lambda x: F.l1_loss(x, torch.ones(2, 3)), (2, 3)),
        (lambda x: F.l1_loss(x, 2 * x.tanh(), reduction="none"), (2, 3)),
        (lambda x: aten.l1_loss(torch.ones(4, 3), x, 2), (3,)),
        (lambda x: F.smooth_l1_loss(3 * x, torch.ones(2, 3), beta=0.5), (2, 3)),
        (lambda x: F.smooth_l1_loss(x, x.sin(), reduction="sum"), (2, 3)),
        (lambda x: F.smooth_l1_loss(x, torch.ones(2, 3), beta=0.0, reduction="none"), (2, 3)),
        (lambda x: F.huber_loss(3 * x, torch.ones(2, 3), delta=0.5), (2, 3)),
        (lambda x: F.huber_loss(x, torch.ones(2, 3), delta=2.0, reduction="none"), (2, 3)),
        (lambda x: F.huber_loss(x, x.relu(), reduction="sum"), (2, 3)),
        (lambda x: F.mse_loss(x, torch.ones(2, 3)), (2, 3)),
        (lambda x: F.mse_loss(x.tanh(), x.sigmoid(), reduction="none"), (2, 3)),
        (lambda x: F.mse_loss(x.tanh(), torch.linspace(-1, 2, 6).reshape(2, 3), reduction="sum"), (2, 3)),
    ],
    local=_difference_loss_steps,
)  # fmt: skip
def losses_of_differences(node: Node, operands: Sequence[Range]) -> Effect:
    """The steepest slope of one entry, times sqrt(n) for a sum of n of them and 1/sqrt(n) for a mean."""
    shape = _difference_shape(node)
    if node.operator == "mse_loss":
        constants = [float(value.double().abs().max()) for value in node.args[:2] if not isinstance(value, Ref)]
        slope = 2.0 * sum((*constants, *(r.entry for r in operands))) * (1 + 1e-12)
    else:
        slope = _edge(node) if node.operator == "huber_loss" else 1.0
    if not math.isfinite(slope):
        return Unbounded(reason=f"a squared error of a value that is not bounded, in {node.where}")
    reduction, size = node.bound()["reduction"], math.prod(shape)
    if reduction == 0 and [ref.shape for ref in node.operands] == [shape]:
        return Elementwise(slope=(-slope, slope))
    joined = 1.0 if reduction == 0 else size ** (-0.5 if reduction == MEAN else 0.5)
    copies = [math.sqrt(size / max(math.prod(ref.shape), 1)) for ref in node.operands]
    return Gain(gains=tuple(numerical(above(slope, joined, many)) for many in copies))
