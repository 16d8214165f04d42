"""Saturation: values in flat parts of an activation, gates wide open or shut, attention on one entry."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..listening.calls import FunctionCall
from .autograd_flow import operator_name

FLAT = 0.01
"""Nearer to an end of its range than this share of the range, a sigmoid or tanh has less than a twentieth of its
steepest slope."""
SATURATING = ("sigmoid", "tanh", "softmax", "hardsigmoid", "hardtanh")
ATTENTION_ROWS = 64
"""Queries of a fused attention whose rows are looked at."""
HIDDEN_BELOW = 1e4
"""A score this far below the largest of its row is that of a hidden position."""


def saturated_share(call: FunctionCall, family: str, made: Tensor, dim: Any) -> Tensor | None:
    """Return the saturated share of what a layer's function returned; None for layers that do not saturate."""
    if call.name == "scaled_dot_product_attention":
        return _one_hot_attention(call)
    if call.name == "multi_head_attention_forward":
        return _one_hot_multihead(call)
    if call.name in ("lstm", "gru", "rnn_tanh"):
        return _saturated_gates(call, made)
    return _saturated(family, made, dim, call) if family in SATURATING else None


@torch.no_grad()
def _saturated(family: str, made: Tensor, dim: Any, call: FunctionCall) -> Tensor | None:
    """Return the share of values in the flat parts of a sigmoid or tanh, or of one-hot rows of a softmax."""
    if family == "hardtanh":
        limits = {**dict(zip(("input", "min_val", "max_val"), call.args)), **call.kwargs}
        return ((made <= limits.get("min_val", -1.0)) | (made >= limits.get("max_val", 1.0))).double().mean()
    if family == "softmax":
        dim = dim if isinstance(dim, int) else -1
        return None if made.shape[dim] == 1 else (made.amax(dim) > 1.0 - FLAT).double().mean()
    low, high = (-1.0, 1.0) if family == "tanh" else (0.0, 1.0)
    edge = FLAT * (high - low)
    return ((made < low + edge) | (made > high - edge)).double().mean()


@torch.no_grad()
def leaked_share(call: FunctionCall, made: Tensor, dim: Any) -> Tensor | None:
    """Return the share that a softmax gives to entries which a mask was to hide, in rows with others."""
    filled = getattr(call.input, "grad_fn", None)
    if filled is None or operator_name(filled) != "MaskedFill" or not isinstance(dim, int):
        return None
    hidden = filled._saved_mask.expand(made.shape)
    rows = hidden.any(dim) & ~hidden.all(dim)
    return ((made * hidden).sum(dim) * rows).double().sum() / rows.sum().clamp(min=1)


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
    several = (scores > scores.amax(-1, keepdim=True).clamp(min=-1e30) - HIDDEN_BELOW).sum(-1) > 1
    certain = scores.softmax(-1).amax(-1) > 1.0 - FLAT
    return (certain & several).double().sum() / several.sum().clamp(min=1)


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
