"""Measure what each normalizer does to a small change (`normalizer_effects.py`): two passes of a few samples.

The change is a random one of the input, followed through the float64 graph. With a normalizer frozen, only what comes
behind it is run again, at most once for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..bounds.graph.ir import Graph, Node
from ..bounds.graph_weights import multiplications, passes
from ..bounds.operators.invariance import FeedingLayer
from ..bounds.operators.registry import sets_of
from ..bounds.traced_network import TracedNetwork
from ..core.budget import affordable, check_time, count
from ..core.log10 import log10
from ..doctor.facts.layers_over_data import NormalizerOverData
from ..doctor.symptoms.batch_statistics import is_noisy, is_tiny
from ..doctor.symptoms.normalizer_gain import MUCH_DOMINATED_SHARE
from .audit_steps import NOT_REACHED, AuditRequest, Skipped
from .audited import AuditedRow
from .normalizer_effects import CLEAR_CHANGE, NormalizerEffect, NormalizerEffects
from .rows import STEP

WHAT = "what each normalizer does to a small change"
FREEZING = "growth with each normalizer frozen at its statistics"
MAX_SAMPLES, LEAST_SAMPLES = 8, 2
"""Samples at which the change is followed: typical sizes need no more, and distances no fewer."""
MAX_FROZEN = 30
"""Normalizers that are frozen in turn: that takes up to one pass for each."""
MAX_MULTIPLICATIONS = 1e10
"""Of the passes, and of those with normalizers frozen: five seconds of a CPU."""
IDLE_REACTION = 0.05
"""A normalizer is idle where its statistics move a change by less than this share of it."""
TIME_SHARE = 0.5
"""Of the time that is left, where it is limited."""


def measure_normalizers(
    request: AuditRequest,
    captured: TracedNetwork,
    places: Sequence[AuditedRow],
    feeds: Sequence[FeedingLayer],
    skipped: Skipped,
) -> NormalizerEffects | None:
    """Return what the normalizers do to a small change, or say why that is not known."""
    normalizers = [place for place in places if place.row.role == "normalizer" and place.node is not None]
    if not normalizers:
        return None
    feeding = {feed.normalizer.name: feed.weight for feed in feeds}
    budget = request.budget.share(TIME_SHARE)
    with request.meter.part("normalizers"), torch.no_grad():
        effects = budget.attempt(lambda: _measure(captured, normalizers, feeding, request.seed, skipped), lambda: None)
    if effects is None:
        skipped.append((WHAT, NOT_REACHED))
    return effects


def _measure(
    captured: TracedNetwork,
    places: Sequence[AuditedRow],
    feeding: Mapping[str, Node],
    seed: int,
    skipped: Skipped,
) -> NormalizerEffects:
    """Follow one random change of each of a few samples, and again with each normalizer frozen."""
    graph = captured.double
    most = passes(graph, MAX_SAMPLES, work=MAX_MULTIPLICATIONS / 2, least=LEAST_SAMPLES)
    points = captured.points[captured.own_samples[:most]]
    nodes = [place.node for place in places if place.node is not None]
    reads = {node.name: feeding[node.name].refs[0] if node.name in feeding else node.refs[0] for node in nodes}
    sizes = {name: _Ratio() for name in {*reads, *reads.values()}}
    reactions = {node.name: _Ratio() for node in nodes}
    frozen = {name: _Ratio() for name in _nodes_to_freeze(graph, nodes, len(points), skipped)}
    whole, given, made = _Ratio(), _Distance(), _Distance()
    rows, generator = _samples_of_a_pass(graph), torch.Generator().manual_seed(seed)
    for point in points.double():
        change = torch.randn(point.shape, dtype=torch.float64, generator=generator).to(point)
        change *= STEP * max(float(point.norm()), 1e-3) / float(change.norm())
        before, after = (graph.values(*graph.split(x)) for x in (point, point + change))
        moved = {name: after[name] - before[name] for name in {graph.output, *sizes, *(node.refs[0] for node in nodes)}}
        whole.add(moved[graph.output], change)
        made.add(before[graph.output])
        inputs = [x.reshape(rows, -1) for x in graph.split(point) if x.shape[:1] == (rows,)]
        given.add(torch.cat(inputs or [point[None]], dim=1))
        for name, size in sizes.items():
            size.add(moved[name], before[name])
        for node in nodes:
            fixed = _frozen_change(node, before[node.refs[0]], moved[node.refs[0]])
            if fixed is not None:
                reactions[node.name].add(moved[node.name] - fixed, fixed)
            if fixed is not None and node.name in frozen:
                output = _run_behind(graph, node, before[node.name] + fixed, after)
                frozen[node.name].add(output - before[graph.output], change)
    apart = _difference(given.log10, made.log10)
    effects = []
    for place, node in zip(places, nodes, strict=True):
        growth = _difference(sizes[node.name].log10, sizes[reads[node.name]].log10)
        reaction = None if (share := reactions[node.name].log10) is None else 10.0**share
        effects.append(
            NormalizerEffect(
                path=place.path,
                feeding=(place.row.folded_with or feeding[node.name].path) if node.name in feeding else None,
                kind=_kind(place.normalizer, growth, reaction),
                log10_growth=growth,
                reaction=reaction,
                log10_frozen=_sum(frozen[node.name].log10, apart) if node.name in frozen else None,
            )
        )
    return NormalizerEffects(
        log10_growth=_sum(whole.log10, apart), samples=len(points) * rows, normalizers=tuple(effects)
    )


class _Ratio:
    """Adds up the squares of two tensors at several points, for the ratio of their sizes."""

    def __init__(self) -> None:
        self._upper = self._lower = 0.0

    def add(self, upper: Tensor, lower: Tensor) -> None:
        """Count one point."""
        self._upper += float(upper.square().sum())
        self._lower += float(lower.square().sum())

    @property
    def log10(self) -> float | None:
        """log10 of the ratio; None where the lower side is zero or a side is not finite."""
        ratio = self._upper / self._lower if self._lower > 0 else math.nan
        return log10(ratio) / 2 if math.isfinite(ratio) else None


class _Distance:
    """Adds up how far samples lie from their mean, each entry of a value on its own."""

    def __init__(self) -> None:
        self._count, self._squares = 0, 0.0
        self._mean: Tensor | float = 0.0

    def add(self, value: Tensor) -> None:
        """Count one point: a sample, or a whole batch, whose samples are its rows."""
        self._rows = float((value - value.mean(0)).square().sum()) if value.ndim else 0.0
        self._count += 1
        step = value - self._mean
        self._mean = self._mean + step / self._count
        self._squares += float((step * (value - self._mean)).sum())

    @property
    def log10(self) -> float | None:
        """log10 of the distance; None where the samples do not differ."""
        square = self._rows if self._count == 1 else self._squares
        return log10(square) / 2 if 0 < square < math.inf else None


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _difference(first: float | None, second: float | None) -> float | None:
    """Return a difference of exponents; None where one is unknown, or nothing is compared with nothing."""
    return None if first is None or second is None or math.isinf(second) else first - second


def _frozen_change(node: Node, value: Tensor, change: Tensor) -> Tensor | None:
    """Return what a normalizer frozen at its statistics makes of a change; None where they are stored or unknown."""
    sets = sets_of(node)
    if sets is None or sets.running:
        return None
    values = value.reshape(sets.view)
    centred = values - values.mean(sets.axes, keepdim=True) if sets.centred else values
    deviation = (centred.square().mean(sets.axes, keepdim=True) + sets.eps).sqrt()
    fixed = (change.reshape(sets.view) / deviation).reshape(node.shape)
    return fixed if sets.scale is None else fixed * sets.scale


def _run_behind(graph: Graph, start: Node, value: Tensor, values: Mapping[str, Tensor]) -> Tensor:
    """Return the output where one node has another value: what does not read it keeps its own."""
    count("passes", _samples_of_a_pass(graph))
    moved = {start.name: value}
    for node in graph:
        if node.name != start.name and any(name in moved for name in node.refs):
            check_time()
            moved[node.name] = node.evaluate([moved.get(name, values[name]) for name in node.refs])
    return moved.get(graph.output, values[graph.output])


def _samples_of_a_pass(graph: Graph) -> int:
    """Return how many samples one pass through a graph takes: one, or the whole batch."""
    return 1 if graph.per_sample else next(iter(graph.inputs[0].shape), 1)


def _nodes_to_freeze(graph: Graph, nodes: Sequence[Node], samples: int, skipped: Skipped) -> list[str]:
    """Return the normalizers that are frozen in turn: all that take statistics, or none and why."""
    names = [node.name for node in nodes if (sets := sets_of(node)) is not None and not sets.running]
    if len(names) > MAX_FROZEN:
        skipped.append((FREEZING, f"it has {len(names)} of them, and up to {MAX_FROZEN} are frozen in turn"))
        return []
    cost, device = multiplications(graph) * samples, graph.inputs[0].value.device
    if affordable(len(names), cost, work=MAX_MULTIPLICATIONS, least=0, device=device) < len(names):
        skipped.append((FREEZING, "the network is too large for a pass for each of them: pass a smaller batch"))
        return []
    return names


def _kind(seen: NormalizerOverData | None, growth: float | None, reaction: float | None) -> str:
    """Return what a normalizer does; eps and few values decide as they do in findings."""
    if seen is not None and (seen.share_eps >= MUCH_DOMINATED_SHARE or seen.log10_median < log10(seen.eps)):
        return "eps"
    if seen is not None and (is_tiny(seen) or is_noisy(seen)):
        return "few-values"
    if reaction is not None and reaction < IDLE_REACTION:
        return "idle"
    if growth is None or abs(growth) < CLEAR_CHANGE:
        return "keeps"
    return "shrinks" if growth < 0 else "grows"
