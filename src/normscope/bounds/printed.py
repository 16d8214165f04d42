"""The products printed in Than et al.: Lemma 5 and Theorem 9 with Corollaries 10 and 11, as formulas on any model.

They multiply norm(W_k) over the weight layers and norm(NO_k) over the normalizers. On a network with skips, with
slopes above 1 or with other expanding parts they are no bound; the result then says so. The parts are gauge dependent
(scaling W_k by c before a normalizer multiplies one factor by c and divides another); only their product is not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.bracket import Bracket, Evidence
from ..core.log10 import log10
from ..graph.ir import Node, Unit
from ..rules.effects import Effect, Linear, Norm, Unbounded
from ..rules.registry import lookup, sets_of
from ..theory.lemmas import lemma1, lemma2, lemma3
from .segments import Segments

WEIGHTS = ("linear", "convolution")


def is_weight(node: Node) -> bool:
    """Whether a node is a layer with a weight: a matrix or a convolution."""
    found = lookup(node)
    return found is not None and found.family in WEIGHTS


def is_normalizer(node: Node) -> bool:
    """Whether a node is a normalization layer."""
    found = lookup(node)
    return found is not None and found.family == "normalization" and node.index in (None, 0)


def printed_constant(node: Node, effect: Effect) -> float:
    """log10 of the printed constant over all inputs, times the scale gamma: Lemma 1, 2 or 3."""
    arguments = node.op.data if isinstance(node.op, Unit) else node.bound()
    weight, eps = arguments.get("weight"), float(arguments["eps"])
    if isinstance(effect, Linear):
        return log10(lemma1(arguments["running_var"], eps, weight))
    top = float(weight.abs().amax()) if isinstance(weight, Tensor) else 1.0
    found = sets_of(node)
    groups = 1 if found is None or found.groups is None else found.groups
    return log10(top) + log10(lemma2(eps) if groups == 1 else lemma3(eps, torch.zeros(groups)))


def printed(segments: Segments, norm: Norm, *, exact: bool) -> Bracket:
    """Return the printed product, under the printed or the exact constants of the normalizers.

    `holds` is False, with the reason, where the formula is no upper bound for this network.
    """
    exponent = 0.0
    evidence = Evidence.PROVEN
    for node in segments.graph:
        effect = segments.effects[node.name]
        if is_weight(node) and isinstance(effect, Linear):
            bound = norm(effect.maps[0])
            exponent, evidence = exponent + bound.log10, min(evidence, bound.evidence)
        elif is_normalizer(node):
            exponent += effect.constant(norm).log10 if exact else printed_constant(node, effect)
    reason = _why_no_bound(segments, norm)
    method = "printed product, exact constants" if exact else "printed product"
    if exponent == math.inf:
        reason = reason or "a normalizer with eps = 0"
    return Bracket(
        log10_lower=-math.inf,
        log10_upper=exponent,
        evidence=min(evidence, Evidence.NUMERICAL),
        method=method,
        mode=segments.graph.mode,
        holds=reason is None,
        reason=reason,
        input_shape=segments.graph.input_shape,
    )


def _why_no_bound(segments: Segments, norm: Norm) -> str | None:
    """Return why the printed product does not bound this network, or None if it does."""
    readers: dict[str, int] = {}
    for node in segments.graph:
        for name in node.refs:
            readers[name] = readers.get(name, 0) + 1
    for node in segments.graph:
        effect = segments.effects[node.name]
        if len(node.refs) > 1 or readers.get(node.name, 0) > 1:
            return f"the network is not a chain ({node.op} in {node.where}): skips or branches"
        if isinstance(effect, Unbounded):
            return effect.reason
        if is_weight(node) or is_normalizer(node) or not node.refs:
            continue
        gain = effect.constant(norm)
        if gain.reason:
            return gain.reason
        if gain.log10 > 1e-9:
            return f"{node.op} in {node.where} has a constant above 1"
    if len(segments.graph.inputs) > 1 or any(readers.get(item.name, 0) > 1 for item in segments.graph.inputs):
        return "the network is not a chain: several inputs or branches from the input"
    return None
