"""What a model reads of its inputs and embeddings: places without influence, and how far back in a sequence.

They become the fields `silent`, `cut` and `recurrence` of the rows.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...calls.call import Call
from ...core.untouched import on_copies, seed_random
from ...listening.calls import EMBEDDINGS, FunctionCall, Site, as_floats
from ...listening.listener import ForwardListener
from .collector import Collector
from .detached import GraphEnds
from .layers import INPUT, OTHER_LAYERS, Layers, fetch_all, is_input
from .samples import have_moved

MOST_SILENT = 0.5
"""A share of the places of an input that may go unread: strides and borders leave some."""
MOVE_FACTOR = 3.0
"""How far values are moved towards those of another sample, 1 being there: past them, so that a maximum notices."""
FEWEST_STEPS, MOST_STEPS = 6, 2048
"""Positions of a sequence over which gradients are compared: fewer show no trend."""
STEADY_SHARE, STEADY_FACTOR = 0.8, 3.0
"""A recurrence changes the gradient at nearly every step by about the same factor."""
LEAST_STEP = 1e-30
"""A share of the largest gradient of a step; less is lost in rounding."""


class SilentPlaces(Collector):
    """Notes at which places of inputs and embeddings no gradient comes back, though samples differ there."""

    def __init__(self, layers: Layers, ends: GraphEnds, model: nn.Module) -> None:
        super().__init__(layers)
        self._ends, self._model = ends, model
        self._differing: dict[int, list[Tensor]] = {}  # places that differ between samples, by row
        self._places: dict[int, list[Tensor]] = {}
        self._shares, self._cut = dict[int, Tensor](), dict[int, tuple[str, float]]()

    def heard(self, number: int, made: Tensor) -> None:
        """Follow the gradient of an input or an embedding."""
        if is_input(self.layers, number, made):
            self._differing[number] = _places_of_values(made.detach() - made.detach()[:1])
            self.layers.follow(made, functools.partial(self._returned, number))

    def _returned(self, number: int, gradient: Tensor) -> None:
        differing = self._differing[number]
        pairs = zip(differing, _places_of_values(gradient.detach()), strict=True)
        places = self._places[number] = [differs & ~read for differs, read in pairs]
        shares = [p.sum() / differs.sum().clamp(min=1) for p, differs in zip(places, differing, strict=True)]
        self._shares[number] = torch.stack(shares).amax() if shares else gradient.new_zeros(())

    def forget_gradients(self) -> None:
        """Drop what a backward that did not end has left."""
        self._shares = {}

    def confirm(self, call: Call, returned: Sequence[Tensor]) -> int:
        """Run once more with other values where no gradient came back; return how many forwards that took.

        Places that no gradient comes back to may have an influence all the same. In a model that detaches something
        the gradient is cut; otherwise a maximum passes these places over, or the loss does not read what they move.
        """
        forwards = 0
        for number, (share,) in self._fetched().items():
            if share > MOST_SILENT:
                site = self.layers.heard[number].site  # the inputs were heard first
                at = call.variables[number][1] if site[1] == INPUT else site
                changer = PlaceChanger(self._model, at, self._places[number])
                try:
                    forwards += 1
                    changed = as_floats(changer.run(call))
                except Exception:  # a model may refuse such values
                    continue
                if any(map(have_moved, returned, changed)):
                    self._shares[number] = torch.zeros_like(self._shares[number])
                    if self._ends.first_detach is not None:
                        self._cut[number] = self._ends.first_detach, share
        return forwards

    def _fetched(self) -> dict[int, list[float]]:
        shares = fetch_all([share.double().reshape(1) for share in self._shares.values()])
        return dict(zip(self._shares, shares, strict=True))

    def of_rows(self) -> dict[int, dict[str, Any]]:
        """Return the shares of silent places, and where their gradient is cut, as fields of rows."""
        return {number: {"silent": share, "cut": self._cut.get(number)} for number, (share,) in self._fetched().items()}


def _places_of_values(values: Tensor) -> list[Tensor]:
    """Return where values are not zero for any sample: by column, by position and feature, or by pixel and channel."""
    there = (values != 0).any(0)
    if there.ndim == 2:
        return [there.any(1), there.any(0)]
    if there.ndim > 2:
        return [there.any(0), there.flatten(1).any(1).reshape(-1, *(1,) * (there.ndim - 1))]
    return [there] if there.ndim else []


class PlaceChanger(ForwardListener):
    """Runs a model with other values at some places of an input, or of the embedding at a site."""

    def __init__(self, model: nn.Module, at: Tensor | Site, places: Sequence[Tensor]) -> None:
        super().__init__(model, dropout=False)
        self._at, self._places = at, places

    def run(self, call: Call) -> Any:
        """Return what the model returns with values moved past those of the next sample."""
        here = call.changed(lambda leaf: self._change(leaf) if leaf is self._at else leaf.clone())
        seed_random(self.model)
        with torch.no_grad(), on_copies(self.model), self.listening():
            return self.model(*here.args, **here.kwargs)

    def after_call(self, call: FunctionCall, result: Any) -> Any:
        """Change what the embedding returns."""
        if call.name in EMBEDDINGS and not isinstance(self._at, Tensor) and self.site("embedding") == self._at:
            return self._change(result)
        return result

    def _change(self, values: Tensor) -> Tensor:
        """Move the values at these places."""
        wide = [self._places[0][:, None], self._places[1]] if values.ndim == 3 else self._places
        there = functools.reduce(torch.logical_or, (places.expand(values.shape[1:]) for places in wide))
        return torch.where(there, values + MOVE_FACTOR * (values.roll(1, 0) - values), values)


class Recurrence(Collector):
    """Notes how gradients change from step to step of a sequence, and what is read anew at each step."""

    def __init__(self, layers: Layers, model: nn.Module) -> None:
        super().__init__(layers)
        self._model = model
        self._names: dict[int, tuple[bool, str]] = {}  # of parameters and buffers: do they map states, name
        self._reads = Counter[int]()
        self._by_step = dict[int, Tensor]()

    def begin(self, call: Call) -> None:
        """Note what may be read at each step."""
        held = [*self._model.named_parameters(), *self._model.named_buffers()]
        self._names = {
            id(value): (len(set(value.shape)) == 1 and not name.endswith("bias"), name) for name, value in held
        }

    def before_call(self, call: FunctionCall, leaves: Sequence[Any], path: str) -> None:
        """Count what is read."""
        for leaf in leaves:
            if id(leaf) in self._names:
                self._reads[id(leaf)] += 1

    def heard(self, number: int, made: Tensor) -> None:
        """Follow the gradient of a sequence."""
        if is_input(self.layers, number, made):
            self.layers.follow(made, functools.partial(self._returned, number))

    def _returned(self, number: int, gradient: Tensor) -> None:
        if gradient.ndim == 3 and FEWEST_STEPS < gradient.shape[1] <= MOST_STEPS:
            self._by_step[number] = gradient.detach().double().square().sum((0, 2)).sqrt()

    def of_rows(self) -> dict[int, dict[str, Any]]:
        """Return the recurrences, as a field of rows."""
        steps = zip(self._by_step, fetch_all(list(self._by_step.values())), strict=True)
        return {number: {"recurrence": self._recurrence(sizes)} for number, sizes in steps}

    def _recurrence(self, sizes: Sequence[float]) -> tuple[str, float] | None:
        """Return what is read at each step of a sequence, and the factor by which each step changes the gradient."""
        least = LEAST_STEP * max(sizes)
        ratios = sorted(math.log(early / late) for early, late in itertools.pairwise(sizes) if min(early, late) > least)
        if len(ratios) < FEWEST_STEPS:
            return None
        middle = ratios[len(ratios) // 2]
        steady = sum(abs(ratio - middle) < math.log(STEADY_FACTOR) for ratio in ratios)
        repeated = [self._names[key] for key, reads in self._reads.items() if reads >= len(sizes) - 1]
        kinds = set(OTHER_LAYERS.values()) - {"attention"}
        paths = [layer.path for layer in self.layers.heard if layer.kind in kinds]
        name = next(iter(paths), None) or max(repeated, default=(False, ""))[1]
        return (name, math.exp(middle)) if name and steady >= STEADY_SHARE * len(ratios) else None
