"""Symmetries in front of normalizers: scales of channels, groups and layers, shifts of rows, redundant biases."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..graph.memory import overlap
from ..rules.invariance import FeedingLayer, feeds, weight_layer
from .actions import ParameterPart, Scaling, ShiftAction, UnitEntries
from .candidate import Candidate, Kind, Layers, ParametrisedLayer, conv_groups
from .reparametrised import gains

SCALES: dict[str, Kind] = {"channel": "channel scale", "group": "group scale", "layer": "layer scale"}
EVAL = (
    "in eval mode its BatchNorm divides by a stored number, not by what the batch shows: the scale matters until the "
    'statistics are taken anew; mode="train" has the symmetry'
)
READ = "its output is read by more than the normalizer, so that the scale can be seen"
SHARED = "its tensors also serve another layer that does not undo the change"
UNKNOWN = "its tensors are no parameters of the model but computed from them in a way that is not known"


def normalized(layers: Layers) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Return the symmetries in front of the normalizers of a graph, and what was withheld with the reason."""
    found: list[Candidate] = []
    withheld: dict[str, str] = {}
    together: list[list[FeedingLayer]] = []
    for feed in feeds(layers.graph):
        if not feed.scale_invariant:
            withheld[feed.weight.path] = _why(feed)
            continue
        same = next((many for many in together if _same_weight(many[0], feed)), None)
        together.append([feed]) if same is None else same.append(feed)
    for many in together:
        made = _scale(layers, many)
        if made is None:
            withheld[many[0].weight.path] = UNKNOWN
            continue
        found.append(made)
        layer = layers.by_name.get(many[0].weight.name)
        if layer is not None:
            found += _shifts(layers.model, layer, many)
    return found, list(withheld.items())


def _why(feed: FeedingLayer) -> str:
    if not feed.exclusive:
        return READ
    return SHARED if feed.bias_redundant == "no" else EVAL


def _same_weight(first: FeedingLayer, second: FeedingLayer) -> bool:
    """Whether two layers apply the same weight: the same memory, or made anew by the same module from the same."""
    one, other = (weight_of(feed) for feed in (first, second))
    made = first.weight.path == second.weight.path and one.shape == other.shape and torch.equal(one, other)
    return made or overlap(one, other)


def weight_of(feed: FeedingLayer) -> Tensor:
    """Return the weight as the layer applies it."""
    layer = weight_layer(feed.weight)
    assert layer is not None
    return layer.weight


def joined(many: list[FeedingLayer]) -> Tensor:
    """Return for every channel its part, such that no normalizer's set leaves a part."""
    part = torch.tensor(many[0].sets)
    for feed in many[1:]:
        other = torch.tensor(feed.sets)
        while True:
            least = torch.full_like(part, len(part)).scatter_reduce(0, other, part, "amin")[other]
            again = torch.full_like(part, len(part)).scatter_reduce(0, part, least, "amin")[part]
            if torch.equal(again, part):
                break
            part = again
    return part.unique(return_inverse=True)[1]


def _scale(layers: Layers, many: list[FeedingLayer]) -> Candidate | None:
    """Return the scaling of the least parts of a layer that its normalizers undo."""
    parts = joined(many)
    count = int(parts.amax()) + 1
    layer = layers.by_name.get(many[0].weight.name)
    if layer is not None:
        terms = [UnitEntries(piece=layer.weight, units=parts[layer.made])]
        if layer.bias is not None:
            terms.append(UnitEntries(piece=layer.bias, units=parts))
        weights: tuple[ParameterPart, ...] = (layer.weight,)
    else:
        made = gains(layers.model, many[0].weight, parts)
        if made is None:
            return None
        terms, weights = made
    unit = "group" if many[0].unit == "layer" and count > 1 else many[0].unit
    formula = "c w, c b" if len(terms) > 1 else "c w"
    return Candidate(
        kind=SCALES[unit],
        path=many[0].weight.path,
        normalizer=many[0].normalizer.path,
        form=f"{'w, b' if len(terms) > 1 else 'w'} -> {formula} for each {unit}" if count > 1 else f"w -> {formula}",
        action=Scaling(terms=tuple(terms), units=count),
        feeds=tuple(many),
        weights=weights,
    )


def _shifts(model: nn.Module, layer: ParametrisedLayer, many: list[FeedingLayer]) -> list[Candidate]:
    """Return the shifts that the centring of the normalizers undoes."""
    found = []
    parts, feed = joined(many), many[0]
    count = int(parts.amax()) + 1
    where = {"path": feed.weight.path, "normalizer": feed.normalizer.path, "weights": (layer.weight,)}
    size = float(layer.weight.of(dict(model.named_parameters())).detach().double().square().mean().sqrt()) or 1.0
    if layer.bias is not None and all(one.bias_redundant != "no" for one in many):
        whole = all(one.bias_redundant == "whole" for one in many)
        units = torch.arange(layer.channels) if whole else parts
        found.append(
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
    common = all(one.pointwise and one.bias_redundant == "common" for one in many)
    if common and layer.rows is not None and conv_groups(layer.node) == 1:
        sizes = list(layer.weight.size)
        sizes[layer.rows] = 1
        rest = torch.arange(torch.Size(sizes).numel()).reshape(sizes)
        found.append(
            Candidate(
                kind="row shift",
                form="W -> W + 1 u^T" if count == 1 else "W -> W + 1 u^T for each group",
                action=ShiftAction(
                    terms=(UnitEntries(piece=layer.weight, units=parts[layer.made] * rest.numel() + rest),),
                    units=count * rest.numel(),
                    size=size,
                ),
                **where,  # type: ignore[arg-type]
            )
        )
    return found
