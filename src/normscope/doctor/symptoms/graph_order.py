"""Which layer of a model lies before which, read from autograd's graph."""

from __future__ import annotations

import functools
import operator
from collections import Counter, defaultdict

from ...listening.calls import NORMALIZERS, WEIGHTS
from ..facts.data import DataSeen
from ..facts.examined import Examined
from ..facts.layers_over_data import WeightOverData
from ..facts.pass_facts import PassFacts

LAYERS = frozenset((*WEIGHTS.values(), *NORMALIZERS, "lstm", "gru", "rnn"))
"""Kinds of rows of the signal that are layers."""


class GraphOrder:
    """Which layer lies before which, read from autograd's graph; knows nothing where the model has no backward."""

    def __init__(self, examined: Examined) -> None:
        rows = () if examined.signal is None else examined.signal.rows
        feeds = () if examined.signal is None else examined.signal.flow.feeds
        self._feeds = feeds if len(feeds) == len(rows) else ((),) * len(rows)
        self._paths = [row.path for row in rows]
        self._kinds = [row.kind for row in rows]
        self._layers = {number for number, row in enumerate(rows) if row.kind in LAYERS}
        layers, others = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
        for number, path in enumerate(self._paths):
            (layers if number in self._layers else others)[path].append(number)
        self._at = {**others, **layers}
        relus = [number for number, row in enumerate(rows) if row.kind == "relu"]
        alone = Counter(self._paths[number] for number in relus)
        relus = [number for number in relus if alone[self._paths[number]] == 1]
        self._switches = {**{self._paths[number]: [number] for number in relus}, **layers}
        self._gates = self._common()
        self._before: dict[str, frozenset[str]] = {}

    def _common(self) -> list[int]:
        """Return, by row and as bits, the layers and ReLUs that lie on every path from the inputs to it."""
        switches = {number for numbers in self._switches.values() for number in numbers}
        gates: list[int] = []
        for number, feeds in enumerate(self._feeds):  # in order, so that what a row reads is known
            common = functools.reduce(operator.and_, (gates[feed] for feed in feeds)) if feeds else 0
            gates.append(common | (1 << number if number in switches else 0))
        return gates

    def _bits(self, path: str) -> int:
        """Return the bits of the layers of a module, or of its only ReLU."""
        return sum(1 << number for number in self._switches.get(path, ()))

    def before(self, path: str) -> frozenset[str]:
        """Return the paths of the layers directly before a module."""
        if path not in self._before:
            own = self._at.get(path, [])
            nearest: set[str] = set()
            visited, stack = set(own), [feed for number in own for feed in self._feeds[number]]
            while stack:
                number = stack.pop()
                if number in visited:
                    continue
                visited.add(number)
                if number in self._layers:
                    nearest.add(self._paths[number])
                else:
                    stack.extend(self._feeds[number])
            self._before[path] = frozenset(nearest - {path})
        return self._before[path]

    def behind(self, path: str, other: str) -> bool:
        """Whether everything that reaches a module came through another one: its layers, or its only ReLU."""
        bits = self._bits(other)
        return path != other and any(self._gates[number] & bits for number in self._at.get(path, ()))

    def is_normalized(self, path: str) -> bool:
        """Whether what a module hands on is read by a normalizer, which undoes its scale."""
        own = set(self._at.get(path, ()))
        readers = [number for number, feeds in enumerate(self._feeds) if own.intersection(feeds)]
        return any(self._kinds[number] in NORMALIZERS for number in readers)

    def cuts(self, path: str, *, inner: bool = False) -> bool:
        """Whether everything on its way to the output passes this module; an inner one has further layers behind it."""
        bits = self._bits(path)
        after = (self._gates[number] for number in self._layers if self._paths[number] != path)
        return bool(self._gates and self._gates[-1] & bits) and (not inner or any(gates & bits for gates in after))


WEIGHT_KINDS = ("linear", "convolution")
KINDS_WITH_WEIGHTS = (*WEIGHT_KINDS, "embedding", "lstm", "gru", "rnn")
"""Kinds of rows that have weights."""


def rows_of_weights(signal: PassFacts, data: DataSeen) -> dict[int, WeightOverData]:
    """Return the weight layers over the data by the number of their row in the signal."""
    runs = Counter[tuple[str, str]]()
    sizes: dict[int, WeightOverData] = {}
    for number, row in enumerate(signal.rows):
        weight = data.weights.get((row.path, row.kind, runs[row.path, row.kind]))
        runs[row.path, row.kind] += 1
        if weight is not None:
            sizes[number] = weight
    return sizes


def without_numbers(path: str) -> str:
    """Return a path in which the members of a list have the same name."""
    return ".".join("#" if part.isdigit() else part for part in path.split("."))
