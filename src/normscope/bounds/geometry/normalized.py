"""Symmetries in front of normalizers: scales of channels, groups and layers, shifts of rows, redundant biases.

Reparametrised weights have one of their own: `weight_norm` (v -> a v with g fixed) and `spectral_norm` (W -> a W).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from ..graph.ir import Node, overlap
from ..operators.invariance import FeedingLayer, feeds, weight_layer
from .candidate import (
    Candidate,
    Layers,
    ParameterPart,
    ParametrisedLayer,
    Scaling,
    ShiftAction,
    SymmetryKind,
    UnitEntries,
    conv_groups,
    piece_of,
)

SCALES: dict[str, SymmetryKind] = {"channel": "channel scale", "group": "group scale", "layer": "layer scale"}
EVAL = (
    "in eval mode its BatchNorm divides by a stored number, not by what the batch shows: the scale matters until the "
    'statistics are taken anew; mode="train" has the symmetry'
)
READ = "its output is read by more than the normalizer, so that the scale can be seen"
SHARED = "its tensors also serve another layer that does not undo the change"
UNKNOWN = "its tensors are no parameters of the model but computed from them in a way that is not known"
"""This and the three above are reasons why a layer in front of a normalizer has no symmetry."""


def normalized(layers: Layers) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Return the symmetries in front of the normalizers of a graph, and the layers without one, with the reason."""
    candidates: list[Candidate] = []
    withheld: dict[str, str] = {}
    by_weight: list[list[FeedingLayer]] = []
    for feed in feeds(layers.graph):
        if not feed.scale_invariant:
            shared = SHARED if feed.bias_redundant == "no" else EVAL
            withheld[feed.weight.path] = shared if feed.exclusive else READ
            continue
        same = next((uses for uses in by_weight if _same_weight(uses[0], feed)), None)
        by_weight.append([feed]) if same is None else same.append(feed)
    for uses in by_weight:
        scale = _scale(layers, uses)
        if scale is None:
            withheld[uses[0].weight.path] = UNKNOWN
            continue
        candidates.append(scale)
        layer = layers.by_name.get(uses[0].weight.name)
        if layer is not None:
            candidates += _shifts(layers.model, layer, uses)
    return candidates, list(withheld.items())


def _same_weight(first: FeedingLayer, second: FeedingLayer) -> bool:
    """Whether two layers apply the same weight: the same memory, or equal values that the same module computed."""
    one, other = (weight_of(feed) for feed in (first, second))
    recomputed = first.weight.path == second.weight.path and one.shape == other.shape and torch.equal(one, other)
    return recomputed or overlap(one, other)


def weight_of(feed: FeedingLayer) -> Tensor:
    """Return the weight as the layer applies it."""
    layer = weight_layer(feed.weight)
    assert layer is not None
    return layer.weight


def joined(uses: list[FeedingLayer]) -> Tensor:
    """Return the number of every channel's part: the finest parts such that every normalizer's set lies in one part.

    A part is a set of channels that must be scaled together, as some normalizer normalizes them together.
    """
    part = torch.tensor(uses[0].sets)
    for feed in uses[1:]:
        other = torch.tensor(feed.sets)
        while True:
            least = torch.full_like(part, len(part)).scatter_reduce(0, other, part, "amin")[other]
            merged = torch.full_like(part, len(part)).scatter_reduce(0, part, least, "amin")[part]
            if torch.equal(merged, part):
                break
            part = merged
    return part.unique(return_inverse=True)[1]


def _scale(layers: Layers, uses: list[FeedingLayer]) -> Candidate | None:
    """Return the scaling of a layer's weight that all its normalizers undo; None where the parameters are unknown."""
    parts = joined(uses)
    count = int(parts.amax()) + 1
    layer = layers.by_name.get(uses[0].weight.name)
    if layer is not None:
        terms = [UnitEntries(piece=layer.weight, units=parts[layer.made])]
        if layer.bias is not None:
            terms.append(UnitEntries(piece=layer.bias, units=parts))
        weights: tuple[ParameterPart, ...] = (layer.weight,)
    else:
        gained = gains(layers.model, uses[0].weight, parts)
        if gained is None:
            return None
        terms, weights = gained
    unit = "group" if uses[0].unit == "layer" and count > 1 else uses[0].unit
    formula = "c w, c b" if len(terms) > 1 else "c w"
    return Candidate(
        kind=SCALES[unit],
        path=uses[0].weight.path,
        normalizer=uses[0].normalizer.path,
        form=f"{'w, b' if len(terms) > 1 else 'w'} -> {formula} for each {unit}" if count > 1 else f"w -> {formula}",
        action=Scaling(terms=tuple(terms), units=count),
        feeds=tuple(uses),
        weights=weights,
    )


def _shifts(model: nn.Module, layer: ParametrisedLayer, uses: list[FeedingLayer]) -> list[Candidate]:
    """Return the shifts of a layer's bias and rows that the centring of its normalizers undoes."""
    candidates = []
    parts, feed = joined(uses), uses[0]
    count = int(parts.amax()) + 1
    where = {"path": feed.weight.path, "normalizer": feed.normalizer.path, "weights": (layer.weight,)}
    size = float(layer.weight.of(dict(model.named_parameters())).detach().double().square().mean().sqrt()) or 1.0
    if layer.bias is not None and all(use.bias_redundant != "no" for use in uses):
        whole = all(use.bias_redundant == "whole" for use in uses)
        units = torch.arange(layer.channels) if whole else parts
        candidates.append(
            Candidate(
                kind="redundant bias",
                form="b -> b + any vector" if whole else "b -> b + u for all channels that are normalized together",
                action=ShiftAction(
                    terms=(UnitEntries(piece=layer.bias, units=units),),
                    units=layer.channels if whole else count,
                    size=size,
                ),
                **where,  # type: ignore[arg-type]
            )
        )
    common = all(use.pointwise and use.bias_redundant == "common" for use in uses)
    if common and layer.rows is not None and conv_groups(layer.node) == 1:
        sizes = list(layer.weight.size)
        sizes[layer.rows] = 1
        columns = torch.arange(torch.Size(sizes).numel()).reshape(sizes)
        candidates.append(
            Candidate(
                kind="row shift",
                form="W -> W + 1 u^T" if count == 1 else "W -> W + 1 u^T for each group",
                action=ShiftAction(
                    terms=(UnitEntries(piece=layer.weight, units=parts[layer.made] * columns.numel() + columns),),
                    units=count * columns.numel(),
                    size=size,
                ),
                **where,  # type: ignore[arg-type]
            )
        )
    return candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class _Normed:
    """A weight g v/norm(v), or W/sigma(W): `direction` is v or W, and `g` is None for the latter."""

    path: str
    argument: str
    direction: Tensor
    g: Tensor | None


def reparametrised(model: nn.Module) -> list[Candidate]:
    """Return the symmetries of the reparametrised weights of a model."""
    candidates = []
    for normed in _weights(model):
        piece = piece_of(model, normed.direction)
        if piece is None:
            continue
        shape = (1,) * normed.direction.ndim if normed.g is None else tuple(normed.g.shape)
        shape = shape if len(shape) == normed.direction.ndim else (1,) * normed.direction.ndim
        units = torch.arange(torch.Size(shape).numel()).reshape(shape)
        candidates.append(
            Candidate(
                kind="spectral norm" if normed.g is None else "weight norm",
                path=normed.path,
                form="W -> a W" if normed.g is None else "v -> a v, g fixed",
                action=Scaling(terms=(UnitEntries(piece=piece, units=units),), units=units.numel()),
                weights=(piece,),
            )
        )
    return candidates


def gains(model: nn.Module, node: Node, parts: Tensor) -> tuple[list[UnitEntries], tuple[ParameterPart, ...]] | None:
    """Return the parameters that scale the output channels of a layer with `weight_norm`: g and the bias.

    The second value is the part of the model that is changed at random for comparison. Return None for other layers.
    """
    normed = next((one for one in _weights(model) if one.path == node.path and one.argument == "weight"), None)
    if normed is None or normed.g is None or normed.g.shape[:1] != parts.shape or normed.g.numel() != len(parts):
        return None
    piece, direction = piece_of(model, normed.g), piece_of(model, normed.direction)
    if piece is None or direction is None:
        return None
    terms = [UnitEntries(piece=piece, units=parts.reshape(normed.g.shape))]
    bias = getattr(model.get_submodule(node.path), "bias", None)
    if bias is not None:
        bias_piece = piece_of(model, bias)
        if bias_piece is None:
            return None
        terms.append(UnitEntries(piece=bias_piece, units=parts))
    return terms, (direction,)


def _weights(model: nn.Module) -> Iterator[_Normed]:
    """Yield the reparametrised weights of a model, in the newer and the older form of torch."""
    for path, module in model.named_modules():
        if parametrize.is_parametrized(module):
            for argument, chain in module.parametrizations.items():
                if len(chain) != 1:
                    continue
                if isinstance(chain[0], parametrizations._WeightNorm):
                    yield _Normed(path=path, argument=argument, direction=chain.original1, g=chain.original0)
                elif isinstance(chain[0], parametrizations._SpectralNorm):
                    yield _Normed(path=path, argument=argument, direction=chain.original, g=None)
        for hook in module._forward_pre_hooks.values():  # The older form of both.
            argument, kind = getattr(hook, "name", None), type(hook).__name__
            if kind == "WeightNorm":
                g, v = getattr(module, f"{argument}_g"), getattr(module, f"{argument}_v")
                yield _Normed(path=path, argument=str(argument), direction=v, g=g)
            elif kind == "SpectralNorm":
                yield _Normed(path=path, argument=str(argument), direction=getattr(module, f"{argument}_orig"), g=None)
