"""`FlowFacts`: which rows read which, and whether anything but linear maps lies between inputs and outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor

from ...core.codec import JsonForm, Part
from ...listening.calls import WEIGHTS, FunctionCall
from .autograd_graph import Effect, Reached, effect_of, find_feeds, find_gates, find_kinds, find_skip, nodes_before
from .collector import Collector
from .detached import GraphEnds
from .layers import GATE, Layers

CASTS = ("to", "type", "half", "bfloat16", "float")
"""Functions that change the type of values."""
LOOKING = ("__get__", "size", "dim", "__len__")
"""Functions that ask for a property of values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFacts(Part):
    """What autograd's graph of one forward shows of the way from the inputs to the outputs.

    Attributes:
        feeds: for each row, the numbers of the rows that it reads with no other row between.
        linear_feeds: of these, the ones whose values are only rearranged on the way.
        added_feeds: of these, the ones whose values are only scaled by constants, or added to others, on the way.
        shared: the rows that several functions read, or one function and the caller of the model.
        bends: whether the forward has anything but weights, normalizers, poolings and rearrangements, or may have it
            where its graph is cut.
        derives: whether the outputs hold derivatives of the model itself.
        skips: modules whose output is their input times a number other than 1, plus something computed from it: the
            path, the row of the output, and the number.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=(...,), left_out=("added_feeds",))

    feeds: tuple[tuple[int, ...], ...] = ()
    linear_feeds: tuple[tuple[int, ...], ...] = ()
    added_feeds: tuple[tuple[int, ...], ...] = field(default=(), compare=False)
    shared: tuple[int, ...] = ()
    bends: bool = True
    derives: bool = False
    skips: tuple[tuple[str, int, float], ...] = ()


class FlowCollector(Collector):
    """Notes which functions read the values of rows, and reads the graph."""

    def __init__(self, layers: Layers, ends: GraphEnds, not_reading: Sequence[str]) -> None:
        super().__init__(layers)
        self._ends, self._not_reading = ends, (*LOOKING, *not_reading)
        self._reads = Counter[int]()  # functions that read what a row handed on, by its id
        self._bends, self._derives = True, False
        self._added: tuple[tuple[int, ...], ...] = ()
        self._entered = list[Any]()  # of each module that runs: where its first tensor comes from, and its shape
        self._skips = dict[str, tuple[int, float]]()  # with the id of the output

    def module_entered(self, path: str, args: Sequence[Any]) -> None:
        """Note where the first tensor with a graph comes from that a module is given."""
        first = next((leaf for leaf in args if isinstance(leaf, Tensor) and leaf.grad_fn is not None), None)
        self._entered.append(None if first is None else ((first.grad_fn, first.output_nr), first.shape))

    def module_returned(self, path: str, made: Sequence[Tensor]) -> None:
        """Compare what a module returns with what it was given."""
        given = self._entered.pop()
        if given is not None and made and made[0].grad_fn is not None and made[0].shape == given[1]:
            factor = find_skip((made[0].grad_fn, made[0].output_nr), given[0])
            if factor is not None and factor != 1.0:
                self._skips[path] = id(made[0]), factor

    def before_call(self, call: FunctionCall, leaves: Sequence[Any], path: str) -> None:
        """Note which rows a function reads."""
        for leaf in leaves:
            if self.layers.is_row(leaf) and call.name not in self._not_reading:
                self._reads[id(leaf)] += 1

    def after_call(self, call: FunctionCall, leaves: Sequence[Any], result: Any, path: str) -> None:
        """Take back what was noted of a cast of values that were of that type, or on that device."""
        if call.name in CASTS and isinstance(result, Tensor) and result is call.args[0] and self.layers.is_row(result):
            self._reads[id(result)] -= 1

    def forward_ended(self, returned: Sequence[Tensor]) -> None:
        """Note that the caller of the model reads what it returns."""
        for leaf in returned:
            self._reads[id(leaf)] += 1

    def follow_outputs(self, outputs: Sequence[Tensor]) -> None:
        """Note what lies before the outputs: an activation, a derivative."""
        if any(output.requires_grad for output in outputs):
            rows = zip(self.layers.functions, self.layers.heard, strict=True)
            weights = [function for function, layer in rows if layer.kind in WEIGHTS.values()]
            _, self._derives = find_kinds(outputs, weights)
            self._bends, _ = find_kinds([*outputs, *self._ends.tensors], weights)

    def read_graph(self, reached: Reached) -> None:
        """Note which rows read which, and which sigmoids and tanhs are parts of an activation that is written out."""
        layers, functions = self.layers.heard, self.layers.functions
        self.layers.feeds = find_feeds(functions)
        does_more = [  # for each row: whether it is a module that does more than add what it reads
            function is not None and layer.kind[:1].isupper() and effect_of(function) is Effect.ANY
            for function, layer in zip(functions, layers, strict=True)
        ]
        added = self._feeds_up_to(Effect.ADDED)
        self._added = tuple(() if more else feeds for more, feeds in zip(does_more, added, strict=True))
        squashing: Mapping[Any, int] = {
            function: k
            for k, (function, layer) in enumerate(zip(functions, layers, strict=True))
            if layer.kind in ("sigmoid", "tanh")
        }
        for k in find_gates(nodes_before(reached.outputs), squashing):
            path, _, run = layers[k].site
            layers[k] = replace(layers[k], site=(path, GATE, run))

    def _feeds_up_to(self, effect: Effect) -> tuple[tuple[int, ...], ...]:
        """Return for each row the numbers of those whose outputs it reads after this effect at most."""
        return tuple(tuple(feed.layer for feed in row if feed.effect <= effect) for row in self.layers.feeds)

    def facts(self) -> FlowFacts:
        """Return what was noted."""
        rows = {layer.key: number for number, layer in enumerate(self.layers.heard)}
        return FlowFacts(
            feeds=self._feeds_up_to(Effect.ANY),
            linear_feeds=self._feeds_up_to(Effect.REARRANGED),
            added_feeds=self._added,
            shared=tuple(number for number, layer in enumerate(self.layers.heard) if self._reads[layer.key] > 1),
            bends=self._bends,
            derives=self._derives,
            skips=tuple((path, rows[key], factor) for path, (key, factor) in self._skips.items() if key in rows),
        )
