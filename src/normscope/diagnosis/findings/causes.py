"""What is a consequence of what: the flow between the places of a model, and findings that explain others."""

from __future__ import annotations

import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Sequence

from ...core.finding import Finding, Severity
from ...listening.calls import RELUS
from ..examined import Examined, ExaminedRow
from ..node_sites import family

SAME = {
    "eps-dominated": ("tiny-sets", "eps-scale", "dead-layer", "dead-channels"),
    "dead-channels": ("tiny-sets", "dead-layer"),
    "small-batch": ("tiny-sets",),
    "expanding-normalizer": ("tiny-sets", "eps-scale", "dead-layer", "dead-channels", "eps-dominated"),
    "not-lipschitz": ("eps-scale",),
    "stale-statistics": ("dead-layer",),
    "no-gradient": ("tiny-sets", "eps-scale", "dead-layer", "dead-relu", "saturated-units", "zero-weights"),
    "layer-scale": ("recurrent-scale",),
    "input-scale": ("input-columns",),
    "output-constant": ("dead-layer", "dead-relu", "saturated-units", "zero-weights"),
    "dead-layer": ("tiny-sets", "eps-scale", "zero-weights"),
}
"""A finding is dropped if one of these stands at the same place."""

NEXT = {
    "dead-channels": ("dead-channels", "dead-layer"),
    "eps-dominated": ("dead-channels", "dead-layer"),
    "expanding-normalizer": ("dead-channels", "dead-layer"),
    "dead-relu": ("dead-channels", "zero-weights", "layer-scale"),
}
"""A finding is dropped if one of these stands directly before it."""

_TOTAL = ("dead-layer", "tiny-sets", "dead-relu")
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
    "stale-statistics": ("input-scale",),
    "output-constant": ("activation-before-loss", "gradient-vanishing", "dead-layer"),
    "gradient-jump": ("dead-layer", "layer-scale", "saturated-units", "zero-weights", "recurrent-scale"),
    "branch-dominates": ("layer-scale",),
    "first-loss": ("targets-scale", "activation-before-loss", "input-scale", "layer-scale"),
}
"""A warning is dropped if one of these, a warning too, stands anywhere."""
SYMPTOMS = ("no-better-than-constant",)
"""These are dropped if there is any other warning."""


class GraphOrder:
    """Which place lies before which, read from the graph; knows nothing where the model was not traced."""

    def __init__(self, examined: Examined) -> None:
        graph, self._signal = examined.graph, examined.signal
        self._output = "" if graph is None else graph.output
        self._refs: dict[str, tuple[str, ...]] = {} if graph is None else {node.name: node.refs for node in graph}
        self._placed = {p.node.name: p.path for p in examined.places if p.node is not None}
        placed, others = defaultdict(list), defaultdict(list)
        for name, path in self._placed.items():
            placed[path].append(name)
        for node in graph or ():
            others[node.path].append(node.name)
        self._at: dict[str, list[str]] = {**others, **placed}
        relus = [node for node in graph or () if family(node) in RELUS]
        alone = Counter(node.path for node in relus)
        self._relus = {node.path: node.name for node in relus if alone[node.path] == 1}
        self._gates = self._common()
        self._before: dict[str, frozenset[str]] = {}

    def _common(self) -> dict[str, int]:
        """Return, by node and as bits, the places and ReLUs that lie on every path from the inputs to it."""
        bits = {name: 1 << position for position, name in enumerate((*self._placed, *self._relus.values()))}
        gates: dict[str, int] = {}
        for name, refs in self._refs.items():  # in order, so that what a node reads is known
            common = functools.reduce(operator.and_, (gates.get(ref, 0) for ref in refs)) if refs else 0
            gates[name] = common | bits.get(name, 0)
        self._bits = bits
        return gates

    def before(self, path: str) -> frozenset[str]:
        """Return the paths of the places directly before a module; untraced, as autograd's graph has them."""
        if not self._refs and self._signal is not None:
            return frozenset().union(
                *(self._signal.paths_before(path, row.kind) for row in self._signal if row.path == path)
            )
        if path not in self._before:
            own = self._at.get(path, [])
            found: set[str] = set()
            visited, stack = set(own), [ref for name in own for ref in self._refs.get(name, ())]
            while stack:
                name = stack.pop()
                if name in visited:
                    continue
                visited.add(name)
                if name in self._placed:
                    found.add(self._placed[name])
                else:
                    stack.extend(self._refs.get(name, ()))
            self._before[path] = frozenset(found - {path})
        return self._before[path]

    def behind(self, path: str, other: str) -> bool:
        """Whether everything that reaches a module came through another one: its layers, or its only ReLU."""
        own = [name for name in self._at.get(other, ()) if name in self._placed] or [self._relus.get(other, "")]
        gates = functools.reduce(operator.or_, (self._bits.get(name, 0) for name in own), 0)
        return path != other and any(self._gates.get(name, 0) & gates for name in self._at.get(path, ()))

    def cuts(self, place: ExaminedRow) -> bool:
        """Whether everything on its way to the output passes this place, with further places behind it."""
        bit = 0 if place.node is None else self._bits[place.node.name]
        after = (self._gates.get(name, 0) for name in self._placed if place.node is None or name != place.node.name)
        return bool(self._gates.get(self._output, 0) & bit) and any(gates & bit for gates in after)


def unexplained(found: Sequence[Finding], examined: Examined) -> list[Finding]:
    """Return the findings that are no mere consequence of another."""
    flow = GraphOrder(examined)
    return [finding for finding in found if not any(_explains(cause, finding, flow) for cause in found)]


def _explains(cause: Finding, finding: Finding, flow: GraphOrder) -> bool:
    if cause is finding or not _as_large(cause, finding):
        return False
    if finding.code in SYMPTOMS and cause.severity > Severity.INFO and cause.code not in SYMPTOMS:
        return True
    if cause.where == finding.where and cause.code in SAME.get(finding.code, ()):
        return True
    if cause.code in ANYWHERE.get(finding.code, ()) and Severity.INFO < finding.severity <= cause.severity:
        return True
    total = cause.code != "dead-relu" or cause.numbers.get("share") == 1.0
    if total and cause.code in BEYOND.get(finding.code, ()) and flow.behind(finding.where, cause.where):
        return True
    return cause.code in NEXT.get(finding.code, ()) and cause.where in flow.before(finding.where)


def _as_large(cause: Finding, finding: Finding) -> bool:
    """Whether a cause that touches a share of the channels touches enough of them."""
    mine, theirs = finding.numbers.get("share"), cause.numbers.get("share")
    return mine is None or theirs is None or theirs >= 0.5 * mine
