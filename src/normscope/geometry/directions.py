"""Directions along which the loss cannot change: scalings and shifts that a normalizer takes back.

They are read off the captured graph (`graph/invariance.py`) and checked before anything is projected out
(`verified_directions.py`). Shifts (a bias before a BatchNorm, one vector added to every row before a
LayerNorm) leave the function as it is wherever they start: gradient and Hessian vanish along them. Scalings leave it
along rays: the gradient is orthogonal to the weight, and the Hessian takes the weight to minus the gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.errors import NormscopeError, said
from ..graph.capturing import capture
from ..graph.ir import Unit
from ..graph.memory import overlap
from ..rules.invariance import FeedingLayer, feeds, parameter_names, weight_layer
from .objective import Objective

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """The groups of one weight that can be scaled without effect: a layer of the model and what feeds it.

    Attributes:
        name: of the parameter.
        unit: `"channel"`, `"group"` or `"layer"`.
        groups: how many can be scaled on their own.
        kept: how many of them are taken out.
        defect: the largest of their <w, grad> / (norm(w) norm(grad)).
        verified: whether the outputs and the gradient agree for all of them.
        moves: how far scaling the groups moves the outputs, over how far a change by chance does; that of all layers
            together where it is below 0.01.
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
    """The directions of a model that have no effect, as a projection of flat vectors.

    Attributes:
        group: `[n]`, the number of the scale-invariant group that each entry belongs to, -1 for none.
        count: how many such groups there are.
        centred: sets of entries from whose columns the mean is taken off: index matrices `[rows, columns]`.
        dead: entries that have no effect at all.
        radial: `[n]`, the unit vector of each group's scaling.
        norms: `[count]`, the length of each group's weight.
        layers: what the groups come from.
        shift_moves: how far the shifts move the outputs, over how far a change by chance does.
        shown: how many dimensions the graph shows, before any check; None where nobody looked.
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
        """Return a vector without its part along the directions."""
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
        """Return a vector with every group's part times the norm of its weight: the metric of the quotient."""
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
        """Return the same groups with the unit vectors and the norms of the weights as they stand."""
        shifted = self._shifted(weights) if self.count or self.centred or len(self.dead) else weights
        member = self.group >= 0
        lengths = torch.cat([torch.ones(1, dtype=torch.float64, device=weights.device), self.lengths(shifted)])
        lengths = lengths.clamp(min=1e-300)
        radial = torch.where(member, shifted.double() / lengths[self.group + 1], 0.0).to(weights.dtype)
        return replace(self, radial=radial, norms=self.lengths(weights))


def no_directions(objective: Objective, *notes: str) -> Directions:
    """Return that there are none."""
    nothing = torch.zeros(0, dtype=torch.long, device=objective.device)
    return Directions(
        group=torch.full((objective.size,), -1, device=objective.device),
        count=0,
        centred=(),
        dead=nothing,
        radial=torch.zeros(objective.size, dtype=objective.dtype, device=objective.device),
        norms=torch.zeros(0, dtype=torch.float64, device=objective.device),
        notes=notes,
    )


def directions(objective: Objective) -> Directions:
    """Return the directions without effect that the graph of the model shows, before they are verified.

    A model that cannot be traced has none that are known, and a note says so.
    """
    batch = objective.batches[0].call
    given: Any = batch.kwargs if not batch.args else batch.args
    try:
        graph = capture(objective.model, given, mode=objective.mode)
        pairs = feeds(graph)
    except NormscopeError as error:
        return no_directions(
            objective, f"no symmetry direction is taken out, as the model is not traced: {said(error)}"
        )
    known = no_directions(objective)
    group, count = known.group.cpu(), 0
    centred: list[Tensor] = []
    dead: list[Tensor] = []
    layers: list[Invariant] = []
    notes: list[str] = []
    seen: set[int] = set()
    for feed in (pair for pair in pairs if pair.scale_invariant):
        found = _entries(objective, feed)
        if found is None:
            notes.append(f"the weight of `{feed.weight.path}` is made from others: its scaling is not taken out")
            continue
        name, weight, bias = found
        if int(weight[0, 0]) in seen:
            continue
        seen.add(int(weight[0, 0]))
        sets = _sets(feed, len(weight))
        if feed.bias_redundant == "whole" and bias is not None:
            dead.append(bias)
            bias = None
        elif feed.bias_redundant == "common":
            columns = [
                *([weight] if _entries_in_set(feed) == len(sets[0]) else []),
                *([] if bias is None else [bias[:, None]]),
            ]
            centred += [torch.cat(columns, dim=1)[chosen] for chosen in sets if columns]
        for chosen in sets:
            group[weight[chosen].reshape(-1)] = count
            if bias is not None:
                group[bias[chosen]] = count
            count += 1
        layers.append(
            Invariant(name=name, unit=feed.unit, groups=len(sets), kept=len(sets), defect=0.0, verified=False)
        )
    device = objective.device
    made = replace(
        known,
        group=group.to(device),
        count=count,
        centred=tuple(index.to(device) for index in centred),
        dead=(torch.cat(dead) if dead else known.dead).to(device),
        layers=tuple(layers),
        notes=tuple(notes),
    ).settled(objective.vector())
    return replace(made, shown=made.dimensions)


def _entries(objective: Objective, feed: FeedingLayer) -> tuple[str, Tensor, Tensor | None] | None:
    """Return a parameter's name and where the entries of each output channel of a layer lie in the flat vector.

    `[channels, entries]` for the weight, `[channels]` for the bias; None where they are no entries of parameters.
    """
    layer = weight_layer(feed.weight)
    names = parameter_names(objective.model, feed.weight)
    if layer is None or names.get("weight") not in objective.parameters:
        return None
    weight = _positions(objective, names["weight"], layer.weight)
    if weight is None:
        return None
    channels = feed.weight.shape[layer.axis]
    if feed.weight.is_transposed_convolution:
        if weight.shape[1] != channels:  # in groups
            return None
        weight = weight.transpose(0, 1)
    elif layer.columns:
        weight = weight.transpose(0, 1)
    if weight.shape[0] != channels:
        return None
    bias = None
    if layer.bias is not None:
        if names.get("bias") not in objective.parameters:
            return None
        bias = _positions(objective, names["bias"], layer.bias)
        if bias is None or bias.numel() != channels:
            return None
        bias = bias.reshape(-1)
    return names["weight"], weight.reshape(channels, -1), bias


def _positions(objective: Objective, name: str, tensor: Tensor) -> Tensor | None:
    """Return where the entries of a tensor, a view of a parameter, lie in the flat vector."""
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
    places = torch.arange(start, start + parameter.numel())
    return places.as_strided(tensor.shape, tensor.stride(), offset)


def _sets(feed: FeedingLayer, channels: int) -> list[Tensor]:
    """Return which output channels can be scaled together, one index per set."""
    if feed.unit == "channel":
        return list(torch.arange(channels)[:, None])
    if feed.unit == "group":
        groups = int(feed.normalizer.bound()["num_groups"])
        return list(torch.arange(channels).reshape(groups, -1))
    return [torch.arange(channels)]


def _entries_in_set(feed: FeedingLayer) -> int:
    """Return how many entries are normalized together."""
    node = feed.normalizer
    if feed.unit == "group":
        return math.prod(node.shape[1:]) // int(node.bound()["num_groups"])
    if isinstance(node.op, Unit):
        return math.prod(node.shape[dim] for dim in node.op.data["dims"])
    return math.prod(node.bound()["normalized_shape"])
