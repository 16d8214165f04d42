"""What is a consequence of what: the flow between the places of a model, and findings that explain others."""

from __future__ import annotations

import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Sequence

from ...core.finding import Finding, Severity
from ...listening.calls import NORMALIZERS, WEIGHTS
from ..checking.examined import Examined
from ..checking.loss_facts import is_fresh

SAME = {
    "eps-dominated": ("tiny-sets", "eps-scale", "dead-layer", "dead-channels"),
    "dead-channels": ("tiny-sets", "dead-layer", "eps-scale"),
    "small-batch": ("tiny-sets", "wrong-mode"),
    "expanding-normalizer": ("tiny-sets", "eps-scale", "dead-layer", "dead-channels", "eps-dominated"),
    "not-lipschitz": ("eps-scale",),
    "stale-statistics": ("dead-layer",),
    "no-gradient": ("tiny-sets", "eps-scale", "dead-layer", "dead-relu", "saturated-units", "zero-weights"),
    "layer-scale": ("recurrent-scale",),
    "input-scale": ("input-columns",),
    "output-constant": ("dead-layer", "dead-relu", "saturated-units", "zero-weights"),
    "dead-layer": ("tiny-sets", "eps-scale", "zero-weights"),
    "dead-relu": ("zero-weights", "layer-scale"),
}
"""A finding is dropped if one of these stands at the same place."""

NEXT = {
    "dead-channels": ("dead-channels", "dead-layer"),
    "eps-dominated": ("dead-channels", "dead-layer"),
    "expanding-normalizer": ("dead-channels", "dead-layer"),
    "dead-relu": ("dead-channels", "zero-weights", "layer-scale"),
    "output-constant": ("dead-relu",),
}
"""A finding is dropped if one of these stands directly before it."""

_TOTAL = ("dead-layer", "tiny-sets", "dead-relu", "zero-weights")
BEYOND = {
    "dead-layer": _TOTAL,
    "dead-channels": _TOTAL,
    "dead-relu": _TOTAL,
    "eps-dominated": _TOTAL,
    "expanding-normalizer": _TOTAL,
    "stale-statistics": _TOTAL,
}
"""A finding is dropped if everything that reaches it came through one of these: a ReLU counts with all units off."""

ANYWHERE = {
    "gradient-mismatch": ("gradient-cut",),
    "no-gradient": ("dead-relu", "dead-layer", "zero-weights", "half-precision"),
    "no-loss-gradient": ("zero-weights", "equal-units", "targets-scale"),
    "stale-statistics": ("input-scale",),
    "dead-relu": ("input-scale",),
    "gradient-vanishing": ("activation-before-loss",),
    "output-constant": ("activation-before-loss", "gradient-vanishing", "dead-layer", "mask-leaks"),
    "branch-dominates": ("layer-scale",),
    "first-loss": ("targets-scale", "activation-before-loss", "loss-does-not-fit", "input-scale", "layer-scale"),
}
"""A warning is dropped if one of these, a warning too, stands anywhere."""
LAYERS = frozenset((*WEIGHTS.values(), *NORMALIZERS, "lstm", "gru", "rnn"))
"""Kinds of rows of the signal that are layers."""
SYMPTOMS = ("no-better-than-constant", "gradient-jump")
"""These are dropped if there is any other warning."""


class GraphOrder:
    """Which layer lies before which, read from autograd's graph; knows nothing where the model has no backward."""

    def __init__(self, examined: Examined) -> None:
        rows = () if examined.signal is None else examined.signal.rows
        feeds = () if examined.signal is None else examined.signal.feeds
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


def unexplained(found: Sequence[Finding], examined: Examined) -> list[Finding]:
    """Return the findings that are no mere consequence of another."""
    flow, fresh = GraphOrder(examined), is_fresh(examined.model)
    # where units died in training, so did the scale of the weights: neither is how the network began
    causes = [cause for cause in found if fresh or cause.code != "layer-scale"]
    return [
        finding
        for finding in found
        if not any(_explains(cause, finding, flow) for cause in (found if finding.code in SYMPTOMS else causes))
    ]


def _explains(cause: Finding, finding: Finding, flow: GraphOrder) -> bool:
    if cause is finding or not _as_large(cause, finding):
        return False
    if finding.code in SYMPTOMS and cause.severity > Severity.INFO and cause.code not in SYMPTOMS:
        return True
    if cause.where == finding.where and cause.code in SAME.get(finding.code, ()):
        return True
    whole = finding.numbers.get("share") == 1.0  # a layer that is off as a whole does not learn whatever the cause is
    if (
        cause.code in ANYWHERE.get(finding.code, ())
        and Severity.INFO < finding.severity <= cause.severity
        and not whole
    ):
        return True
    total = cause.code != "dead-relu" or cause.numbers.get("share") == 1.0
    if total and cause.code in BEYOND.get(finding.code, ()) and flow.behind(finding.where, cause.where):
        return True
    return cause.code in NEXT.get(finding.code, ()) and cause.where in flow.before(finding.where)


def _as_large(cause: Finding, finding: Finding) -> bool:
    """Whether a cause that touches a share of the channels touches enough of them."""
    mine, theirs = finding.numbers.get("share"), cause.numbers.get("share")
    return mine is None or theirs is None or theirs >= 0.5 * mine
