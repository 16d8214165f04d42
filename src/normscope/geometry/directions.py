"""Directions along which the loss cannot change: scalings and shifts of weights that a normalizer undoes.

They are read off the captured graph (`rules/invariance.py`) and checked before anything is projected out
(`verified_directions.py`). A shift (of a bias before a BatchNorm, or of every row by one vector before a LayerNorm)
leaves the function as it is from any weights: the gradient and the Hessian vanish along it. A scaling leaves the
function as it is along the ray through a weight: the gradient is orthogonal to the weight, and the Hessian maps the
weight to minus the gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..core.errors import NormscopeError, describe_error
from ..graph.capturing import capture
from ..graph.ir import Node, Unit
from ..graph.memory import overlap
from ..rules.invariance import FeedingLayer, WeightLayer, feeds, parameter_names, weight_layer
from .objective import Objective

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """The groups of one weight that can be scaled without effect, because a normalizer stands behind its layer.

    Attributes:
        name: the name of the parameter.
        unit: what is scaled together: `"channel"`, `"group"` or `"layer"`.
        groups: how many groups of entries can be scaled on their own.
        kept: how many of these groups are projected out.
        defect: the largest <w, grad> / (norm(w) norm(grad)) among the groups.
        verified: whether the outputs and the gradient agree for all groups.
        moves: how far scaling the groups moves the outputs, relative to a random change of the weights; the figure of
            all layers together where that is below 0.01.
    """

    name: str
    unit: str
    groups: int
    kept: int
    defect: float
    verified: bool
    moves: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """The directions of a model that have no effect, as a projection of flat vectors of its parameters.

    Attributes:
        group: `[n]`, the number of the scale-invariant group that each entry belongs to, -1 for none.
        count: how many such groups there are.
        centred: index matrices `[rows, columns]`: adding one number to all entries of a column has no effect.
        dead: entries that have no effect at all.
        radial: `[n]`, the unit vector of each group's scaling.
        norms: `[count]`, the length of each group's weight.
        layers: the layers that the groups belong to.
        shift_moves: how far the shifts move the outputs, relative to a random change of the weights.
        shown: how many dimensions the graph shows, before any check; None where the graph was not read.
        notes: what the reader must know.
    """

    group: Tensor
    count: int
    centred: tuple[Tensor, ...]
    dead: Tensor
    radial: Tensor
    norms: Tensor
    layers: tuple[Invariant, ...] = ()
    shift_moves: float = 0.0
    shown: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def dimensions(self) -> int:
        """How many dimensions the projection takes away."""
        return self.count + len(self.dead) + sum(index.shape[1] for index in self.centred)

    def along(self, vector: Tensor) -> Tensor:
        """Return the component of each group's part along its scaling, `[count]`."""
        sums = torch.zeros(self.count + 1, dtype=vector.dtype, device=vector.device)
        return sums.index_add(0, self.group + 1, vector * self.radial)[1:]

    def project(self, vector: Tensor) -> Tensor:
        """Return a vector without its component along the directions."""
        if not self.dimensions:
            return vector
        vector = self._shifted(vector)
        amounts = torch.cat([vector.new_zeros(1), self.along(vector)])
        return vector - self.radial * amounts[self.group + 1]

    def lengths(self, vector: Tensor) -> Tensor:
        """Return the norm of each group's part of a vector, `[count]`, in float64."""
        sums = torch.zeros(self.count + 1, dtype=torch.float64, device=vector.device)
        return sums.index_add(0, self.group + 1, vector.double().square())[1:].sqrt()

    def scaled(self, vector: Tensor) -> Tensor:
        """Return a vector with each group's part times the norm of its weight: the metric of the quotient."""
        factors = torch.cat([vector.new_ones(1), self.norms.to(vector)])
        return vector * factors[self.group + 1]

    def _shifted(self, vector: Tensor) -> Tensor:
        vector = vector.clone()
        vector[self.dead] = 0.0
        for index in self.centred:
            rows = vector[index]
            vector[index] = rows - rows.mean(dim=0, keepdim=True)
        return vector

    def settled(self, weights: Tensor) -> Directions:
        """Return the same groups with the unit vectors and the norms that belong to these weights."""
        shifted = self._shifted(weights) if self.count or self.centred or len(self.dead) else weights
        member = self.group >= 0
        lengths = torch.cat([torch.ones(1, dtype=torch.float64, device=weights.device), self.lengths(shifted)])
        lengths = lengths.clamp(min=1e-300)
        radial = torch.where(member, shifted.double() / lengths[self.group + 1], 0.0).to(weights.dtype)
        return replace(self, radial=radial, norms=self.lengths(weights))


def no_directions(objective: Objective, *notes: str) -> Directions:
    """Return an empty set of directions, with notes that say why."""
    return Directions(
        group=torch.full((objective.size,), -1, device=objective.device),
        count=0,
        centred=(),
        dead=torch.zeros(0, dtype=torch.long, device=objective.device),
        radial=torch.zeros(objective.size, dtype=objective.dtype, device=objective.device),
        norms=torch.zeros(0, dtype=torch.float64, device=objective.device),
        notes=notes,
    )


def directions(objective: Objective) -> Directions:
    """Return the directions without effect that the graph of the model shows, before they are verified.

    A model that cannot be traced has no known directions, and a note says so.
    """
    batch = objective.batches[0].call
    arguments: Any = batch.kwargs if not batch.args else batch.args
    try:
        graph = capture(objective.model, arguments, mode=objective.mode)
        feeding_layers = feeds(graph)
    except NormscopeError as error:
        return no_directions(
            objective, f"no symmetry direction is taken out, as the model is not traced: {describe_error(error)}"
        )
    collected = _CollectedDirections(group=torch.full((objective.size,), -1))
    for feed in (layer for layer in feeding_layers if layer.scale_invariant):
        entries = _entries(objective, feed)
        if entries is None:
            collected.notes.append(
                f"the weight of `{feed.weight.path}` is made from others: its scaling is not taken out"
            )
        elif not collected.has(entries):
            collected.add(feed, entries)
    shown = collected.directions(objective).settled(objective.vector())
    return replace(shown, shown=shown.dimensions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerEntries:
    """Where the entries of a layer's parameters lie in the flat vector, by output channel.

    Attributes:
        name: the name of the weight.
        weight: `[channels, entries]`.
        bias: `[channels]`; None without a bias.
    """

    name: str
    weight: Tensor
    bias: Tensor | None


@dataclass(slots=True, kw_only=True)
class _CollectedDirections:
    """The fields of `Directions`, collected layer by layer on the CPU."""

    group: Tensor
    count: int = 0
    centred: list[Tensor] = field(default_factory=list)
    dead: list[Tensor] = field(default_factory=list)
    layers: list[Invariant] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first_entries: set[int] = field(default_factory=set)

    def has(self, entries: _LayerEntries) -> bool:
        """Whether this weight was added before, for another layer that shares it."""
        return int(entries.weight[0, 0]) in self.first_entries

    def add(self, feed: FeedingLayer, entries: _LayerEntries) -> None:
        """Add the shifts and the scalings of one layer."""
        self.first_entries.add(int(entries.weight[0, 0]))
        sets = _sets(feed, len(entries.weight))
        scaled_bias = self._add_shifts(feed, entries, sets)
        self._add_scalings(entries.weight, scaled_bias, sets)
        self.layers.append(
            Invariant(name=entries.name, unit=feed.unit, groups=len(sets), kept=len(sets), defect=0.0, verified=False)
        )

    def _add_shifts(self, feed: FeedingLayer, entries: _LayerEntries, sets: list[Tensor]) -> Tensor | None:
        """Add what centring undoes; return the bias if it is scaled together with the weight."""
        weight, bias = entries.weight, entries.bias
        if feed.bias_redundant == "whole" and bias is not None:
            self.dead.append(bias)
            return None
        if feed.bias_redundant == "common":
            columns = [
                *([weight] if _entries_in_set(feed) == len(sets[0]) else []),
                *([] if bias is None else [bias[:, None]]),
            ]
            self.centred += [torch.cat(columns, dim=1)[channels] for channels in sets if columns]
        return bias

    def _add_scalings(self, weight: Tensor, bias: Tensor | None, sets: list[Tensor]) -> None:
        """Number the groups of entries that can be scaled on their own."""
        for channels in sets:
            self.group[weight[channels].reshape(-1)] = self.count
            if bias is not None:
                self.group[bias[channels]] = self.count
            self.count += 1

    def directions(self, objective: Objective) -> Directions:
        """Return the collected directions on the device of the parameters."""
        device, empty = objective.device, no_directions(objective)
        return replace(
            empty,
            group=self.group.to(device),
            count=self.count,
            centred=tuple(index.to(device) for index in self.centred),
            dead=(torch.cat(self.dead) if self.dead else empty.dead).to(device),
            layers=tuple(self.layers),
            notes=tuple(self.notes),
        )


def _entries(objective: Objective, feed: FeedingLayer) -> _LayerEntries | None:
    """Return where a layer's weight and bias lie in the flat vector; None where they are no entries of parameters."""
    layer = weight_layer(feed.weight)
    names = parameter_names(objective.model, feed.weight)
    if layer is None or names.get("weight") not in objective.parameters:
        return None
    channels = feed.weight.shape[layer.axis]
    weight = _by_output_channel(feed.weight, layer, _positions(objective, names["weight"], layer.weight))
    if weight is None:
        return None
    bias = None
    if layer.bias is not None:
        if names.get("bias") not in objective.parameters:
            return None
        bias = _positions(objective, names["bias"], layer.bias)
        if bias is None or bias.numel() != channels:
            return None
        bias = bias.reshape(-1)
    return _LayerEntries(name=names["weight"], weight=weight.reshape(channels, -1), bias=bias)


def _by_output_channel(node: Node, layer: WeightLayer, positions: Tensor | None) -> Tensor | None:
    """Return the positions of a weight with its output channels as rows; None where no axis counts these."""
    channels = node.shape[layer.axis]
    if positions is None:
        return None
    if node.is_transposed_convolution:
        if positions.shape[1] != channels:  # A transposed convolution with groups has no such axis.
            return None
        positions = positions.transpose(0, 1)
    elif layer.columns:
        positions = positions.transpose(0, 1)
    return positions if positions.shape[0] == channels else None


def _positions(objective: Objective, name: str, tensor: Tensor) -> Tensor | None:
    """Return where the entries of a view of a parameter lie in the flat vector; None if it is no such view."""
    parameter = objective.parameters[name].detach()
    if not overlap(tensor, parameter) or not parameter.is_contiguous():
        return None
    start = 0
    for other, value in objective.parameters.items():
        if other == name:
            break
        start += value.numel()
    offset = tensor.storage_offset() - parameter.storage_offset()
    last = offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    if offset < 0 or last >= parameter.numel():
        return None
    positions = torch.arange(start, start + parameter.numel())
    return positions.as_strided(tensor.shape, tensor.stride(), offset)


def _sets(feed: FeedingLayer, channels: int) -> list[Tensor]:
    """Return the sets of output channels that are scaled together, each as an index."""
    if feed.unit == "channel":
        return list(torch.arange(channels)[:, None])
    if feed.unit == "group":
        groups = int(feed.normalizer.bound()["num_groups"])
        return list(torch.arange(channels).reshape(groups, -1))
    return [torch.arange(channels)]


def _entries_in_set(feed: FeedingLayer) -> int:
    """Return how many entries the normalizer normalizes together."""
    node = feed.normalizer
    if feed.unit == "group":
        return math.prod(node.shape[1:]) // int(node.bound()["num_groups"])
    if isinstance(node.op, Unit):
        return math.prod(node.shape[dim] for dim in node.op.data["dims"])
    return math.prod(node.bound()["normalized_shape"])
