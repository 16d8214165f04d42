"""Which functions are activations, which of their values are saturated, and what softmaxes do over which axis.

Saturated are values in the flat parts of a sigmoid or tanh, gates wide open or shut, attention on one entry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...listening.calls import EMBEDDINGS, NORMALIZERS, RELUS, FunctionCall, is_dense
from .autograd_graph import operator_name
from .collector import Collector
from .layers import OTHER_LAYERS, Layers, fetch_all

FLAT = 0.01
"""Nearer to an end of its range than this share of the range, a sigmoid or tanh has less than a twentieth of its
steepest slope."""
SATURATING = ("sigmoid", "tanh", "softmax", "hardsigmoid", "hardtanh")
ACTIVATIONS = (*SATURATING, "gelu", "silu", "mish", "elu", "selu", "celu", "leaky_relu", "prelu", "rrelu", "softplus",
               "hardswish", "glu", "log_softmax", "log_sigmoid", "softsign")  # fmt: skip
PRODUCTS = ("matmul", "bmm", "__matmul__", "mm")
SCALING = ("mul", "rmul", "imul", "multiply", "div", "truediv", "rtruediv", "itruediv", "divide", "true_divide",
           "baddbmm")  # fmt: skip
"""Functions that may multiply by a number, without the underscores around their names."""
ATTENTION_ROWS = 64
"""Queries of a fused attention whose rows are looked at."""
HIDDEN_BELOW = 1e4
"""A score this far below the largest of its row is that of a hidden position."""

SAME_WEIGHT = 1e-6
"""Weights of positions that differ by a smaller share are equal but for rounding."""


def layer_kind(call: FunctionCall, result: Any) -> str | None:
    """Return the kind of the row that a call's output is; None for calls that are no layer."""
    made = result[0] if isinstance(result, tuple) and result else result
    if not isinstance(made, Tensor) or not made.is_floating_point() or not is_dense(made):
        return None
    name, weight = call.name, call.weight_family
    plain = name.rstrip("_") if not name.startswith("_") else name
    if weight is not None or name in NORMALIZERS:
        return weight or call.normalizer
    if name in RELUS:
        return "relu" if made.ndim > 1 else None
    if name in EMBEDDINGS:
        return "embedding"
    return plain if plain in ACTIVATIONS else OTHER_LAYERS.get(name)


class Softmaxes(Collector):
    """Notes over which axis the shares of each softmax are added up, and what they give to hidden entries.

    Also notes heads of attention in which it makes no difference who looks at whom.

    Attributes:
        wrong_axis: a softmax whose shares are added up over another axis than its own: where, its axis, and the other.
    """

    def __init__(self, layers: Layers) -> None:
        super().__init__(layers)
        self.wrong_axis: tuple[str, int, int] | None = None
        self._axes: dict[int, tuple[Tensor, int, int]] = {}  # what a softmax returned, over which axis, and its row
        self._widths = dict[int, int]()
        self._leaks, self._blind = dict[int, Tensor](), dict[int, Tensor]()
        self._called = dict[str, set[str]]()  # by module: functions, and whether anything is multiplied by a number

    @property
    def unscaled(self) -> tuple[str, ...]:
        """Modules that take a softmax and a product of tensors, and in which nothing is multiplied by a number."""
        scaled = [f"{path}." for path, names in self._called.items() if "a number" in names]
        attends = [path for path, names in self._called.items() if "softmax" in names and {*PRODUCTS, "einsum"} & names]
        return tuple(path for path in attends if not any(place.startswith(f"{path}.") for place in scaled))

    def before_call(self, call: FunctionCall, leaves: Sequence[Any], path: str) -> None:
        """Look at a product with the shares of a softmax, and at factors that are numbers."""
        multiplies = call.name.strip("_") in SCALING and any(
            leaf.numel() == 1 if isinstance(leaf, Tensor) else isinstance(leaf, int | float) and leaf not in (0, 1)
            for leaf in leaves
        )
        self._called.setdefault(path, set()).add("a number" if multiplies else call.name)
        if call.name in PRODUCTS and len(call.args) == 2:
            for operand, from_end in zip(call.args, (1, 2), strict=True):
                softmax, axis, number = self._axes.get(id(operand), (None, 0, 0))
                if softmax is not None and from_end == 1 and min(softmax.ndim, call.args[1].ndim) > 2:
                    self._blind[number] = _blind_heads(softmax.detach(), call.args[1].detach())
                if softmax is not None and softmax.ndim >= from_end and axis != softmax.ndim - from_end:
                    found = path or self.layers.maker(softmax), axis, softmax.ndim - from_end
                    self.wrong_axis = self.wrong_axis or found

    def after_layer(self, number: int, call: FunctionCall, result: Any, made: Tensor) -> None:
        """Note the axis of a softmax, and what it gives to hidden entries; and heads of a fused attention."""
        if call.name == "scaled_dot_product_attention":
            self._blind[number] = _blind_fused_heads(call)
        if self.layers.heard[number].kind == "softmax":
            dim = axis_of(call)
            leak = _leaked_share(call, made.detach(), dim)
            if leak is not None:
                self._leaks[number] = leak
            if isinstance(dim, int) and made.ndim > 1:
                self._axes[id(made)] = made, dim % made.ndim, number
                self._widths[number] = made.shape[dim]

    def of_rows(self) -> dict[int, dict[str, Any]]:
        """Return how many entries share a sum of 1, what goes to hidden ones, and the share of blind heads, by row."""
        rows: dict[int, dict[str, Any]] = {number: {"width": width} for number, width in self._widths.items()}
        for name, noted in (("leak", self._leaks), ("blind_heads", self._blind)):
            shares = fetch_all([share.double().reshape(1) for share in noted.values()])
            for number, (share,) in zip(noted, shares, strict=True):
                rows.setdefault(number, {})[name] = share
        return rows


def axis_of(call: FunctionCall) -> Any:
    """Return the `dim` of a call."""
    return call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else -1)


@torch.no_grad()
def _blind_fused_heads(call: FunctionCall) -> Tensor:
    """Return the share of heads whose queries are all zero, or whose keys or values are alike at all positions."""
    given = call.named()
    query, key, value = (given[name].detach() for name in ("query", "key", "value"))
    if key.shape[-2] < 2 or query.ndim < 3:
        return query.new_zeros(())
    no_query, *alike = (query == 0).all(-1).all(-1), *((own == own[..., :1, :]).all(-1).all(-1) for own in (key, value))
    heads = [_by_head(own) for own in (no_query, alike[0] | alike[1])]
    return torch.maximum(*(own.double().mean() for own in heads))


def _by_head(each: Tensor) -> Tensor:
    """Return what holds for each head in all samples; without an axis of heads there is one."""
    return (each[:, None] if each.ndim == 1 else each.flatten(0, -2)).all(0)


@torch.no_grad()
def _blind_heads(softmax: Tensor, values: Tensor) -> Tensor:
    """Return the share of heads with the same weight for all positions they see, or the same value at all of them."""
    seen = (softmax > 0).sum(-1)
    even = ((softmax.amax(-1) * seen - 1.0).abs() < SAME_WEIGHT) | (seen < 2)
    alike = (values == values[..., :1, :]).all(-1).all(-1)
    exact = softmax.dtype in (torch.float32, torch.float64)
    heads = [_by_head(even.all(-1)) & (seen > 1).any()] if exact else []
    return torch.stack([own.double().mean() for own in (*heads, _by_head(alike))]).amax()


@torch.no_grad()
def _leaked_share(call: FunctionCall, made: Tensor, dim: Any) -> Tensor | None:
    """Return the share that a softmax gives to entries which a mask was to hide, in rows with others."""
    filled = getattr(call.input, "grad_fn", None)
    if filled is None or operator_name(filled) != "MaskedFill" or not isinstance(dim, int):
        return None
    hidden = filled._saved_mask.expand(made.shape)
    rows = hidden.any(dim) & ~hidden.all(dim)
    return ((made * hidden).sum(dim) * rows).double().sum() / rows.sum().clamp(min=1)


def saturated_share(call: FunctionCall, family: str, made: Tensor) -> Tensor | None:
    """Return the saturated share of what a layer's function returned; None for layers that do not saturate."""
    if call.name == "scaled_dot_product_attention":
        return _one_hot_attention(call)
    if call.name == "multi_head_attention_forward":
        return _one_hot_multihead(call)
    if call.name in ("lstm", "gru", "rnn_tanh"):
        return _saturated_gates(call, made)
    return _saturated(family, made, axis_of(call), call) if family in SATURATING else None


@torch.no_grad()
def _saturated(family: str, made: Tensor, dim: Any, call: FunctionCall) -> Tensor | None:
    """Return the share of values in the flat parts of a sigmoid or tanh, or of one-hot rows of a softmax."""
    if family == "hardtanh":
        limits = {**dict(zip(("input", "min_val", "max_val"), call.args)), **call.kwargs}
        return ((made <= limits.get("min_val", -1.0)) | (made >= limits.get("max_val", 1.0))).double().mean()
    if family == "softmax":
        dim = dim if isinstance(dim, int) else -1
        if made.shape[dim] == 1:
            return None
        several = _may_choose(call.input, dim)
        return ((made.amax(dim) > 1.0 - FLAT) & several).double().sum() / several.sum().clamp(min=1)
    return flat_share(made, -1.0 if family == "tanh" else 0.0)


def flat_share(made: Tensor, low: float) -> Tensor:
    """Return the share of values between a lower limit and 1 that lie in the flat parts of a sigmoid or tanh."""
    edge = FLAT * (1.0 - low)
    return ((made < low + edge) | (made > 1.0 - edge)).double().mean()


def _one_hot_attention(call: FunctionCall) -> Tensor | None:
    """Return the share of rows of fused attention that look at one of several positions alone."""
    given = call.named()
    query, key, mask = given["query"], given["key"], given.get("attn_mask")
    if query.shape[-3] != key.shape[-3]:  # grouped queries share keys
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    if given.get("is_causal"):
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    return _one_hot(query, key, mask, given.get("scale"))


def _one_hot_multihead(call: FunctionCall) -> Tensor | None:
    """Return the same for torch's own attention with its projections."""
    given = call.named()
    weight, bias, heads = given["in_proj_weight"], given["in_proj_bias"], given["num_heads"]
    weights = [given["q_proj_weight"], given["k_proj_weight"]] if weight is None else weight.chunk(3)[:2]
    biases = [None, None] if bias is None else bias.chunk(3)[:2]
    query, key = (
        torch.nn.functional.linear(given[name], own, shift).unflatten(-1, (heads, -1)).movedim(0, -2)
        for name, own, shift in zip(("query", "key"), weights, biases, strict=True)
    )
    mask = given["attn_mask"]
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        mask = ~mask  # there, True means that a position is hidden
    return _one_hot(query, key, mask if mask is None or mask.ndim == 2 else None, None)


@torch.no_grad()
def _one_hot(query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None) -> Tensor | None:
    """Return the share of rows with more than 99 % on one position, of those that may look at several."""
    rows, columns = query.shape[-2], key.shape[-2]
    if columns < 2:
        return None
    picked = slice(None, None, max(1, rows // ATTENTION_ROWS))
    scores = (scale or query.shape[-1] ** -0.5) * query.detach()[..., picked, :].double() @ key.detach().double().mT
    if mask is not None:
        mask = mask.detach().expand(*mask.shape[:-2], rows, columns)[..., picked, :]
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    several = _may_choose(scores, -1)
    certain = scores.softmax(-1).amax(-1) > 1.0 - FLAT
    return (certain & several).double().sum() / several.sum().clamp(min=1)


def _may_choose(scores: Tensor, dim: int) -> Tensor:
    """Return which rows of scores have several entries that no mask hides."""
    least = torch.finfo(scores.dtype).min / 2
    return (scores > scores.amax(dim, keepdim=True).clamp(min=least) - HIDDEN_BELOW).sum(dim) > 1


@torch.no_grad()
def _saturated_gates(call: FunctionCall, made: Tensor) -> Tensor | None:
    """Return the share of a recurrent layer's gates that are wide open or shut, for the kind of gate with most of them.

    Of several layers the first is looked at.
    The state that a step reads is the output of the step before; where there are several layers, it is left out.
    """
    if call.name == "rnn_tanh":
        return (made.abs() > 1.0 - 2 * FLAT).double().mean()
    given, _, weights, biased, layers, _, _, both, batch_first = call.args[:9]
    if not isinstance(given, Tensor) or not isinstance(biased, bool):
        return None  # packed sequences
    shift = weights[2] + weights[3] if biased else None
    gates = torch.nn.functional.linear(given.detach(), weights[0], shift)
    if layers == 1 and not both and weights[1].shape[1] == made.shape[-1]:
        time = 1 if batch_first else 0
        before = made.roll(1, time)
        before.select(time, 0).zero_()
        gates = gates + before @ weights[1].mT
    edge = math.log((1.0 - FLAT) / FLAT)
    kept = [part for k, part in enumerate(gates.chunk(4 if call.name == "lstm" else 3, -1)) if k != 2]
    return torch.stack([(part.abs() > edge).double().mean() for part in kept]).amax()
