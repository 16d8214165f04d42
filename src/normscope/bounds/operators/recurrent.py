"""Recurrent layers: a bound on how changes travel through the captured steps.

Let p(t) be the norm of a change of the input at step t, and s(t) those of the changes of the state: (h) or, for an
LSTM, (h, c). Gates lie between 0 and 1, their slopes are at most 1/4 (sigmoid) and 1 (tanh), so that
s(t) <= N s(t-1) + b p(t) with N and b made of the norms of the gates' matrices and of how large the state can be: at
most 1 (or its first value) for h, at most its first value plus the number of steps for the c of an LSTM. What the
recursion makes of each p is a matrix without negative entries; the Schur test bounds its norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...core.log10 import ceiling10
from ...core.rounding import numerical
from ..graph import samples
from ..graph.ir import Node, Ref, leaves
from ..graph.traits import describe
from ..linalg.linear_map import Matrix
from ..linalg.operator_norms import upper
from .effects import Effect, Gain, Range, Unbounded
from .registry import rule

aten = torch.ops.aten
ROUNDING = 2.0**-46
"""A generous allowance for the relative rounding of one step of the recursion; what rests on it is NUMERICAL."""

Step = Callable[[int], tuple[np.ndarray, np.ndarray]]


class _Taken(nn.Module):
    """One of the values that a recurrent layer returns, for examples; cells run over the first dimension."""

    def __init__(self, layer: nn.Module, index: int = 0) -> None:
        super().__init__()
        self.layer, self.index = layer, index

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer, or the cell step by step."""
        if not isinstance(self.layer, nn.RNNCellBase):
            output, states = self.layer(x)
            return (output, *(states if isinstance(states, tuple) else (states,)))[self.index]
        state: Any = None
        for row in x:
            state = self.layer(row, state)
        last: Tensor = state[self.index] if isinstance(state, tuple) else state
        return last


class _Decoded(nn.Module):
    """A layer whose first state depends on the input, for examples."""

    def __init__(self, layer: nn.GRU) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Start from a bounded function of the first row."""
        return self.layer(x, x[:1].tanh())[0]


@dataclass(frozen=True, slots=True)
class Travel:
    """How far changes get: of the input, and of each part of the first state.

    Attributes:
        sequence: from the input and from each part of the first state to the h of all steps.
        last: from the same to each part of the last state.
    """

    sequence: np.ndarray
    last: np.ndarray


@rule(
    aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input, aten.lstm_cell.default,
    aten.gru_cell.default, aten.rnn_tanh_cell.default, aten.rnn_relu_cell.default,
    examples=[
        (_Taken(nn.LSTM(2, 3)), (3, 1, 2)), (_Taken(nn.LSTM(2, 2, num_layers=2, bidirectional=True), 1), (3, 1, 2)),
        (_Taken(nn.LSTM(2, 2), 2), (4, 1, 2)), (_Taken(nn.GRU(2, 3, batch_first=True)), (1, 4, 2)),
        (_Taken(nn.GRU(2, 2, num_layers=2, bias=False), 1), (3, 1, 2)), (_Decoded(nn.GRU(2, 2)), (3, 1, 2)),
        (_Taken(nn.RNN(2, 3)), (3, 1, 2)), (_Taken(nn.RNN(2, 2, nonlinearity="relu", bidirectional=True)), (3, 1, 2)),
        (_Taken(nn.LSTMCell(2, 2)), (3, 1, 2)), (_Taken(nn.LSTMCell(2, 2), 1), (3, 1, 2)),
        (_Taken(nn.GRUCell(2, 2)), (3, 1, 2)), (_Taken(nn.RNNCell(2, 2)), (3, 1, 2)),
        (_Taken(nn.RNNCell(2, 2, nonlinearity="relu")), (3, 1, 2)), (_Taken(nn.LSTM(2, 3, proj_size=2)), (3, 1, 2)),
    ],
)  # fmt: skip
def recurrent(node: Node, operands: Sequence[Range]) -> Effect:
    """LSTM, GRU and RNN: how changes travel through the captured steps, by the norms of the gates' matrices."""
    arguments, kind, cell = node.bound(), node.operator.removesuffix("_cell"), node.operator.endswith("_cell")
    layers = [[[arguments[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh")]]] if cell else _layers(arguments)
    states = list(arguments["hx"]) if isinstance(arguments["hx"], list | tuple) else [arguments["hx"]]
    if layers is None or any(isinstance(leaf, Ref) for leaf in leaves(layers)):
        what = "has a projection" if layers is None else "has weights that depend on the input"
        return Unbounded(reason=f"{node.op} in {node.where} {what}")
    ranges = iter(operands[1:] if isinstance(arguments["input"], Ref) else operands)
    sizes = [
        next(ranges).entry if isinstance(state, Ref) else float(state.detach().abs().amax()) if state.numel() else 0.0
        for state in states
    ]
    if not math.isfinite(sizes[-1]) and kind in ("lstm", "gru"):
        return Unbounded(reason=f"the first state of {node.op} in {node.where}, which its gates multiply, is unbounded")
    steps = 1 if cell else arguments["input"].shape[1 if arguments["batch_first"] else 0]
    with np.errstate(all="ignore"):
        travels = [[travel(STEP_OF_CELL[kind](weights, sizes[-1]), steps) for weights in layer] for layer in layers]
        gains = _through([_beside(layer) for layer in travels], _part(node, cell))
    if not np.isfinite(gains).all():
        return Unbounded(reason=f"over {steps} steps the bound of {node.op} in {node.where} is beyond every float")
    varying = [isinstance(argument, Ref) for argument in (arguments["input"], *states)]
    limit = _limit(kind, sizes[-1], steps, carried=kind == "lstm" and _part(node, cell) == 2)
    return Gain(
        gains=tuple(numerical(float(gain)) for gain, varies in zip(gains, varying, strict=True) if varies),
        range=Range.of(limit, node.shape[-1]),
    )


def _layers(arguments: dict[str, Any]) -> list[list[list[Any]]] | None:
    """Return the weights by layer and direction: input, state, and both biases or None; None with projections."""
    directions, each = 2 if arguments["bidirectional"] else 1, 4 if arguments["has_biases"] else 2
    if len(arguments["params"]) != arguments["num_layers"] * directions * each:
        return None
    cut = [list(arguments["params"][i : i + each]) for i in range(0, len(arguments["params"]), each)]
    cut = [weights if len(weights) == 4 else [*weights, None, None] for weights in cut]
    return [cut[i : i + directions] for i in range(0, len(cut), directions)]


def _part(node: Node, cell: bool) -> int:
    """Return which value is meant: 0 for all h, 1 for the last h, 2 for the last c."""
    return (node.index or 0) + (1 if cell else 0)


def _limit(kind: str, first: float, steps: int, *, carried: bool) -> float:
    """Return how large the entries of a value can get, where the first state is at most `first`."""
    if carried:
        return first + steps
    return {"lstm": 1.0, "gru": max(1.0, first), "rnn_tanh": 1.0, "rnn_relu": math.inf}[kind]


def _norms(weight: Tensor, gates: int) -> list[float]:
    return [ceiling10(upper(Matrix(part)).log10) for part in weight.chunk(gates)]


def _plain(weights: Sequence[Any], first: float) -> Step:
    """Return the steps of h' = tanh or ReLU of W x + U h + b."""
    (of_input,), (of_state,) = (_norms(weight, 1) for weight in weights[:2])
    return lambda t: (np.array([[of_state]]), np.array([of_input]))


def _gru(weights: Sequence[Any], first: float) -> Step:
    """Return those of h' = (1 - z) n + z h, n = tanh(W x + r (U h + b)): r multiplies U h + b, z multiplies h - n."""
    size = max(1.0, first)
    inner = weights[1].chunk(3)[2].detach().double().abs().sum(1) * size
    inner = inner if weights[3] is None else inner + weights[3].chunk(3)[2].detach().double().abs()
    reset, update = float(inner.max()) / 4, (size + 1) / 4
    of_input, of_state = (new + reset * r + update * z for r, z, new in (_norms(weight, 3) for weight in weights[:2]))
    return lambda t: (np.array([[1 + of_state]]), np.array([of_input]))


def _lstm(weights: Sequence[Any], first: float) -> Step:
    """Return those of c' = f c + i g and h' = o tanh(c'): f multiplies c, which grows by at most 1 a step."""
    (xi, xf, xg, xo), (hi, hf, hg, ho) = (_norms(weight, 4) for weight in weights[:2])

    def step(t: int) -> tuple[np.ndarray, np.ndarray]:
        size = first + t
        x, h = xi / 4 + xf * size / 4 + xg, hi / 4 + hf * size / 4 + hg
        return np.array([[ho / 4 + h, 1.0], [h, 1.0]]), np.array([xo / 4 + x, x])

    return step


STEP_OF_CELL = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _plain, "rnn_relu": _plain}


def travel(step: Step, steps: int) -> Travel:
    """Run the recursion: how far a unit change of the input, or of a part of the first state, can get."""
    width = len(step(0)[1])
    reached = np.eye(width)  # by part of the state, and by where the change began: first states, then inputs
    columns, rows, squares = np.zeros(width + steps), 0.0, np.zeros(width)
    for t in range(steps):
        of_state, of_input = step(t)
        reached = np.concatenate([of_state @ reached, of_input[:, None]], axis=1)
        columns[: reached.shape[1]] += reached[0]
        rows = max(rows, float(reached[0, width:].sum()))
        squares += reached[0, :width] ** 2
    top = float(columns[width:].max()) if steps else 0.0
    slack = 1 + ROUNDING * (steps + 8)
    sequence = np.array([math.sqrt(rows) * math.sqrt(top), *np.sqrt(squares)])
    last = np.stack([np.linalg.norm(reached[:, width:], axis=1), *reached[:, :width].T])
    return Travel(sequence * slack, last * slack)


def _beside(directions: Sequence[Travel]) -> Travel:
    """Join the directions of a layer, whose values lie beside each other."""
    return Travel(
        np.sqrt(sum((part.sequence**2 for part in directions), np.zeros(1))),
        np.sqrt(sum((part.last**2 for part in directions), np.zeros(1))),
    )


def _through(layers: Sequence[Travel], part: int) -> np.ndarray:
    """Return the gains from the input and from each part of the first states to one of the values."""
    into = np.zeros_like(layers[0].sequence)
    into[0] = 1.0
    squares = np.zeros_like(into)
    for layer in layers:
        own = layer.sequence.copy()
        own[0] = 0.0
        if part:
            begun = layer.last[:, part - 1].copy()
            begun[0] = 0.0
            squares += (layer.last[0, part - 1] * into + begun) ** 2
        into = layer.sequence[0] * into + own
    return np.sqrt(squares) if part else into


describe("lstm.input gru.input rnn_tanh.input rnn_relu.input", samples=samples.recurrent)
