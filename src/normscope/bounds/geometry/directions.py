"""Directions along which the loss cannot change: scalings and shifts of weights that a normalizer undoes.

They are read off the captured graph (`normalized.py`). A shift (of a bias before a BatchNorm, or of every row by one
vector before a LayerNorm) leaves the function as it is from any weights: the gradient and the Hessian vanish along it.
A scaling leaves the function as it is along the ray through a weight: the gradient is orthogonal to the weight, and the
Hessian maps the weight to minus the gradient.

Before anything is projected out, the gradient is checked, group by group, and then the outputs: the gradient alone
cannot tell a false direction from a true one, since among thousands of weights most directions are nearly orthogonal to
it. Moving the weights and running the model tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ...core.errors import NormscopeError, describe_error
from ...products.objective import Objective
from ..graph.capturing import trace_model
from .candidate import Candidate, Layers, Scaling, ShiftAction, laid_out
from .normalized import UNKNOWN, normalized

SLACK = 1e-2
"""The largest <w, grad>, relative to the product of the norms, that passes: eps in a normalizer leaves a little."""
STILL = 0.1
"""How far scalings or shifts may move the outputs, relative to a random change: eps leaves a little."""
TOGETHER = 1e-2
"""Layers are tried one by one only if all scalings together move the outputs by more than this."""
RAISED = 4.0
"""The factor on the weights before their scale is changed."""
ROUNDING = 16.0
"""A move of at most this many units of rounding of the outputs counts as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """The groups of one weight that can be scaled without effect, because a normalizer stands behind its layer."""

    name: str  # the name of the parameter
    unit: str  # what is scaled together: `"channel"`, `"group"` or `"layer"`
    groups: int  # how many groups of entries can be scaled on their own
    kept: int  # how many of these groups are projected out
    defect: float  # the largest <w, grad> / (norm(w) norm(grad)) among the groups
    verified: bool  # whether the outputs and the gradient agree for all groups
    # how far scaling the groups moves the outputs, relative to a random change of the weights; the figure of all layers
    # together where that is below 0.01
    moves: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """The directions of a model that have no effect, as a projection of flat vectors of its parameters.

    Attributes:
        group: `[n]`, the number of the scale-invariant group that each entry belongs to, -1 for none.
        count: how many such groups there are.
        shift: `[n]`, the number of the set that each entry belongs to, -1 for none: adding one number to all entries of
            a set has no effect.
        shifts: how many such sets there are.
        radial: `[n]`, the unit vector of each group's scaling.
        norms: `[count]`, the length of each group's weight.
        layers: the layers that the groups belong to.
        shift_moves: how far the shifts move the outputs, relative to a random change of the weights.
        shown: how many dimensions the graph shows, before any check; None where the graph was not read.
        notes: what the reader must know.
    """

    group: Tensor
    count: int = 0
    shift: Tensor
    shifts: int = 0
    radial: Tensor
    norms: Tensor
    layers: tuple[Invariant, ...] = ()
    shift_moves: float = 0.0
    shown: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def dimensions(self) -> int:
        """How many dimensions the projection takes away."""
        return self.count + self.shifts

    def along(self, vector: Tensor) -> Tensor:
        """Return the component of each group's part along its scaling, `[count]`."""
        return _sums(vector * self.radial, self.group, self.count)

    def project(self, vector: Tensor) -> Tensor:
        """Return a vector, or each of several rows, without its component along the directions."""
        if not self.dimensions:
            return vector
        vector = self.without_shifts(vector)
        return vector - self.radial * by_entry(self.along(vector), self.group)

    def lengths(self, vector: Tensor) -> Tensor:
        """Return the norm of each group's part of a vector, `[count]`, in float64."""
        return _sums(vector.double().square(), self.group, self.count).sqrt()

    def scaled(self, vector: Tensor) -> Tensor:
        """Return a vector with each group's part times the norm of its weight: the metric of the quotient."""
        return vector * by_entry(self.norms.to(vector), self.group, otherwise=1.0)

    def without_shifts(self, vector: Tensor) -> Tensor:
        """Return a vector without the mean of each set that can be shifted."""
        if not self.shifts:
            return vector
        sizes = _sums(torch.ones_like(vector), self.shift, self.shifts)
        return vector - by_entry(_sums(vector, self.shift, self.shifts) / sizes, self.shift)


def _sums(vector: Tensor, number: Tensor, count: int) -> Tensor:
    """Return the sum over the entries of each number, `[..., count]`; entries of number -1 are left out."""
    places = (number + 1).expand(vector.shape)
    return vector.new_zeros(*vector.shape[:-1], count + 1).scatter_add(-1, places, vector)[..., 1:]


def by_entry(values: Tensor, number: Tensor, otherwise: float = 0.0) -> Tensor:
    """Return for every entry the value of its number."""
    return torch.cat([values.new_full((*values.shape[:-1], 1), otherwise), values], -1)[..., number + 1]


def no_directions(objective: Objective, *notes: str) -> Directions:
    """Return an empty set of directions, with notes that say why."""
    none = torch.full((objective.size,), -1, device=objective.device)
    return Directions(
        group=none,
        shift=none,
        radial=torch.zeros(objective.size, dtype=objective.dtype, device=objective.device),
        norms=torch.zeros(0, dtype=torch.float64, device=objective.device),
        notes=notes,
    )


def find_directions(objective: Objective) -> Directions:
    """Return the directions without effect that the graph of the model shows, before they are verified.

    A model that cannot be traced has no known directions, and a note says so.
    """
    call = objective.batches[0].call
    single = len(call.args) == 1 and not call.kwargs and isinstance(call.args[0], Tensor)
    inputs: Any = call.args[0] if single else call.args or call.kwargs  # as a captured graph has them
    try:
        candidates, withheld = normalized(
            Layers(objective.model, trace_model(objective.model, inputs, mode=objective.mode))
        )
    except NormscopeError as error:
        return no_directions(
            objective, f"no symmetry direction is taken out, as the model is not traced: {describe_error(error)}"
        )
    movable = [one for one in candidates if set(one.action.names) <= set(objective.parameters)]
    scales = [one for one in movable if isinstance(one.action, Scaling)]
    computed = [path for path, why in withheld if why == UNKNOWN]
    computed += [one.path for one in candidates if isinstance(one.action, Scaling) and one not in scales]
    group, count = _numbered(objective, scales)
    shift, shifts = _numbered(objective, [one for one in movable if isinstance(one.action, ShiftAction)])
    # An entry that can be shifted on its own, as a bias before a BatchNorm, has no part in a scaling.
    alone = (shift >= 0) & (by_entry(_sums(torch.ones_like(shift), shift, shifts), shift) == 1)
    shown = replace(
        no_directions(
            objective,
            *(f"the weight of `{path}` is made from others: its scaling is not taken out" for path in computed),
        ),
        group=torch.where(alone, -1, group),
        count=count,
        shift=shift,
        shifts=shifts,
        layers=tuple(
            Invariant(
                name=one.action.names[0],
                unit=one.kind.split()[0],
                groups=one.action.units,
                kept=one.action.units,
                defect=0.0,
                verified=False,
            )
            for one in scales
        ),
    )
    weights = objective.vector()
    tangent = shown.without_shifts(weights).double()
    lengths = shown.lengths(tangent).clamp(min=1e-300)
    radial = torch.where(shown.group >= 0, tangent / by_entry(lengths, shown.group, otherwise=1.0), 0.0)
    return replace(shown, radial=radial.to(weights.dtype), norms=shown.lengths(weights), shown=shown.dimensions)


def _numbered(objective: Objective, candidates: list[Candidate]) -> tuple[Tensor, int]:
    """Return for every entry of the flat vector the number of the unit that it belongs to, and how many there are."""
    places, start = {}, 0
    for name, parameter in objective.parameters.items():
        numbers = torch.arange(start, start + parameter.numel(), device=parameter.device)
        places[name], start = laid_out(numbers.reshape(parameter.shape), parameter), start + parameter.numel()
    number, count = torch.full((objective.size,), -1, device=objective.device), 0
    for candidate in candidates:
        for term in candidate.action.terms:  # type: ignore[union-attr]
            entries = term.piece.of(places).long()
            number[entries] = count + term.units.to(number.device).expand(entries.shape)
        count += candidate.action.units
    return number, count


def verify_directions(objective: Objective, shown: Directions, gradient: Tensor) -> Directions:
    """Return the directions that move neither the loss nor the outputs; notes name those that were left out.

    The gradient is checked first, group by group; then the model is run with the remaining groups scaled.

    Args:
        objective: the model and its batches, being measured.
        shown: the directions that the graph shows.
        gradient: the gradient of the loss at the present parameters.
    """
    if not shown.dimensions:
        return shown
    moved = with_moves(objective, _orthogonal(shown, gradient))
    size = float(gradient.double().norm())
    defect = float((gradient - moved.without_shifts(gradient)).double().norm()) / size if size else 0.0
    still = _still_scalings(moved)
    if defect <= SLACK and still.shift_moves <= STILL:
        return still
    note = (
        f"the gradient has a share of {defect:.2g} along {still.shifts} shifts that should have no effect, and the "
        f"outputs move by {still.shift_moves:.2g} of what a random change does: none of these is taken out"
    )
    return replace(still, shift=torch.full_like(still.shift, -1), shifts=0, notes=(*still.notes, note))


def _still_scalings(shown: Directions) -> Directions:
    """Return the directions without the layers whose scaling moves the outputs."""
    notes = list(shown.notes)
    moving = [not layer.moves <= STILL for layer in shown.layers]
    for layer in (one for one, moves in zip(shown.layers, moving) if moves):
        notes.append(
            f"scaling {layer.kept} of {layer.groups} groups of `{layer.name}` moves the outputs, by {layer.moves:.2g} "
            "of what a random change does (large eps, or no invariance): they are not taken out"
        )
    left_out = [moves for layer, moves in zip(shown.layers, moving) for _ in range(layer.kept)]
    layers = [replace(layer, kept=0, verified=False) if moves else layer for layer, moves in zip(shown.layers, moving)]
    kept = ~torch.tensor(left_out, dtype=torch.bool, device=shown.group.device)
    return replace(_only(shown, kept), layers=tuple(layers), notes=tuple(notes))


def _orthogonal(shown: Directions, gradient: Tensor) -> Directions:
    """Return the directions without the groups whose weight is not orthogonal to the gradient."""
    inner = shown.along(gradient).double().abs()
    limit = torch.finfo(gradient.dtype).eps ** 0.5 * float(gradient.double().norm())
    share = inner / shown.lengths(gradient).clamp(min=max(limit, 1e-300))
    layers, notes, start = [], list(shown.notes), 0
    for layer in shown.layers:
        own = share[start : start + layer.groups]
        defect = float(own.max()) if len(own) else 0.0
        failed = int((~(own <= SLACK)).sum())
        layers.append(replace(layer, kept=layer.groups - failed, defect=defect, verified=not failed))
        if failed:
            notes.append(
                f"the gradient is not orthogonal to {failed} of {layer.groups} groups of `{layer.name}` "
                f"(a cosine of {defect:.2g}; eps counts there): they are not taken out"
            )
        start += layer.groups
    return replace(_only(shown, share <= SLACK), layers=tuple(layers), notes=tuple(notes))


def _only(shown: Directions, kept: Tensor) -> Directions:
    """Return the directions with the scalings of the kept groups alone."""
    group = by_entry(torch.where(kept, torch.cumsum(kept, 0) - 1, -1), shown.group, otherwise=-1)
    return replace(
        shown,
        group=group,
        count=int(kept.sum()),
        radial=torch.where(group >= 0, shown.radial, 0.0),
        norms=shown.norms[kept],
    )


def with_moves(objective: Objective, shown: Directions) -> Directions:
    """Return the directions with how far each layer's scalings, and all shifts, move the outputs of the first batch.

    It takes seven forward passes, and four more per layer if the scalings of all layers together move the outputs.
    """
    mover, layers, start = _Mover(objective), [], 0
    together, random = mover.scalings(shown, shown.group >= 0)
    shifts = _ratio(mover.change(mover.start, mover.shifted(shown)), random, mover.rounding)
    for layer in shown.layers:
        moves = together
        if not together <= TOGETHER:
            moves, _ = mover.scalings(shown, (shown.group >= start) & (shown.group < start + layer.kept))
        layers.append(replace(layer, moves=moves))
        start += layer.kept
    return replace(shown, layers=tuple(layers), shift_moves=shifts)


class _Mover:
    """Moves the weights and compares the outputs."""

    def __init__(self, objective: Objective) -> None:
        self.objective, self.start = objective, objective.vector()
        self.generator = torch.Generator().manual_seed(0)
        self.rounding = ROUNDING * max((torch.finfo(out.dtype).eps for out in self._outputs(self.start)), default=0.0)

    def scalings(self, shown: Directions, chosen: Tensor) -> tuple[float, float]:
        """Return how far scaling the chosen groups moves the outputs, relative to a random change, and the latter.

        Both start from larger weights, where eps matters less; whether eps matters is checked with the gradient.
        """
        raised = torch.where(chosen, RAISED * self.start, self.start)
        by_group, by_entry = (
            1.0 + torch.rand(count, generator=self.generator).to(self.start) for count in (shown.count + 1, len(raised))
        )
        random = self.change(raised, torch.where(chosen, raised * by_entry, raised))
        scaled = self.change(raised, torch.where(chosen, raised * by_group[shown.group + 1], raised))
        return _ratio(scaled, random, self.rounding), random

    def shifted(self, shown: Directions) -> Tensor:
        """Return the weights moved along all shifts, by about their size."""
        amounts = torch.randn(shown.shifts, generator=self.generator).to(self.start)
        return self.start + self.start.square().mean().sqrt() * by_entry(amounts, shown.shift)

    def change(self, before: Tensor, after: Tensor) -> float:
        """Return by how much the outputs differ between two states of the weights, relative to their largest entry."""
        pairs = zip(self._outputs(after), self._outputs(before), strict=True)
        shares = [_ratio(float((a - b).abs().amax()), float(b.abs().amax()), 0.0) for a, b in pairs if b.numel()]
        self.objective.place(self.start)
        return max(shares, default=0.0)

    def _outputs(self, weights: Tensor) -> list[Tensor]:
        self.objective.place(weights)
        output, _ = next(self.objective.outputs())
        return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _ratio(change: float, base: float, rounding: float) -> float:
    """Return a change relative to another; 0 if it is rounding."""
    if change <= rounding:
        return 0.0
    return change / base if base else float("inf")
