"""One row per weight layer and normalizer: from the captured graph, or from the data where there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..bounds.captured import Bounding, Captured
from ..bounds.rungs import is_normalizer, is_weight, printed_constant
from ..core.bracket import Bracket
from ..core.budget import Budget, Progress
from ..core.errors import InputError
from ..core.log10 import log10
from ..core.rounding import Upper
from ..graph.ir import Node, Unit, leaves
from ..linalg.layer_norms import linear_map
from ..listening.calls import NORMALIZERS, NormalizerSeen, Site, rows_seen, set_count, set_positions
from ..rules.effects import Linear
from ..rules.invariance import FeedingLayer
from .audit_result import Row
from .branches import BranchPosition, standings
from .empty_channels import constant_inputs, dead_filters, dead_scales
from .examined import DataSeen, ExaminedRow, NormalizerOverData
from .node_sites import family, first_names, once, sites
from .projections import projection_names
from .recurrent_rows import Norm, is_recurrent, matrix_rows, over_steps
from .row_gains import alone_gain, at_data, folded_gain
from .tallies import SetTally

STEP = 1e-7
"""Length of the step that measures gains along the most stretched direction, relative to the input."""

FOLDING = "the search for folded gains"
"""How messages name this search."""

NOWHERE = ("", "", -1)
BATCH_ONLY = "its runs could not be told apart: variances are those of the batch, from the graph"
WRITTEN = "written out in operators: its figures are without the scale, which the next operator applies"
BESIDE = "not on the path from the measured input to the output: no gains from the input to here"
NOT_TRACED = "not traced: folded and cumulative gains are unknown"

BATCH_SAMPLES = 16
"""Samples of the batch that stand in for the data where a normalizer could not be watched while it ran."""


@torch.no_grad()
def weight_norms(captured: Captured, bounding: Bounding) -> dict[str, Bracket]:
    """Return the operator norm of every weight layer by node name; the ladder reuses the upper sides."""
    effects = {node.name: captured.segments.effects[node.name] for node in captured.double if is_weight(node)}
    maps = {name: effect.maps[0] for name, effect in effects.items() if isinstance(effect, Linear)}
    found = {}
    with Progress("bounding weights", total=len(maps)) as progress:
        for name, linear in maps.items():
            progress.step(captured.double.node(name).path)
            found[name] = bounding.bracket(linear)
    return found


@torch.no_grad()
def from_graph(
    captured: Captured,
    bounding: Bounding,
    data: DataSeen,
    fed: Sequence[FeedingLayer],
    observed: Bracket | None,
    *,
    norms: Mapping[str, Bracket],
    values: Mapping[str, Upper],
    sensitivity: Mapping[str, Bracket],
) -> tuple[ExaminedRow, ...]:
    """Return the rows of a captured model, in the order they run.

    The norms of weight layers, the bounds of all values and the sensitivities to weights are by node name.
    """
    nodes = [node for node in once(captured.double) if is_weight(node) or is_normalizer(node) or is_recurrent(node)]
    where = sites(captured.model, captured.double, data.order)
    gains = bounding.budget.attempt(lambda: _gains_along(captured, observed), dict[str, float])
    feeding = {feed.normalizer.name: feed for feed in fed}
    feeders = {feed.weight.name for feed in fed}
    unwatched = [n for n in nodes if is_normalizer(n) and where.get(n.name, NOWHERE) not in data.normalizers]
    stand_ins = _at_the_batch(captured, bounding.budget, unwatched)
    stands = standings(captured.double, nodes)
    cumulative = {name: size.log10 for name, size in values.items()}
    norm = bounding.bracket
    measured: set[str] = set()  # recurrent modules whose matrices have rows
    places: list[ExaminedRow] = []
    with Progress("measuring layers", total=len(nodes)) as progress:
        for node, stand in zip(nodes, stands, strict=True):
            progress.step(node.path)
            common = _described(captured.model, node) | {
                "log10_cumulative": cumulative[node.name],
                "log10_observed": gains.get(node.name),
                **_stands(node, stand, cumulative, gains),
            }
            site = where.get(node.name, NOWHERE)
            if is_normalizer(node):
                seen = data.normalizers.get(site)
                stand_in = stand_ins.get(node.name)
                fed_by = feeding.get(node.name)
                places.append(_normalizer_row(captured, bounding, node, common, seen, stand_in, fed_by))
                continue
            if is_recurrent(node):
                common |= over_steps(captured, node)
            else:
                common |= {"norm": norms.get(node.name), "sensitivity": sensitivity.get(node.name)}
                common |= _filters(node, node.name in feeders)
            effect, weight = captured.segments.effects[node.name], data.weights.get(site)
            places.append(ExaminedRow(row=Row(role="weight", **common), node=node, effect=effect, weight=weight))
            if is_recurrent(node) and node.path not in measured:
                places += matrix_rows(captured.model.get_submodule(node.path), node.path, norm)
                measured.add(node.path)
    named = projection_names(captured.model, captured.graph, nodes)
    folded = {feed.normalizer.name: named[feed.weight.name] for feed in fed if feed.weight.name in named}
    return tuple(
        _called(place, named, folded) for place in _placed(nodes, _with_beside(captured, norm, data, places, where))
    )


def _normalizer_row(
    captured: Captured,
    bounding: Bounding,
    node: Node,
    common: Mapping[str, Any],
    seen: NormalizerOverData | None,
    stand_in: NormalizerOverData | None,
    feed: FeedingLayer | None,
) -> ExaminedRow:
    """Return the row of a normalizer: at the data if it was seen there, at the batch if not."""
    notes = [BATCH_ONLY] if seen is None else []
    notes += [WRITTEN] if family(node) == "rms" else []
    seen = seen or stand_in
    row = Row(
        role="normalizer", **common, **{"notes": tuple(notes), **_normalizer(captured, bounding, node, seen, feed)}
    )
    return ExaminedRow(row=row, node=node, effect=captured.segments.effects[node.name], normalizer=seen)


def _called(place: ExaminedRow, names: Mapping[str, str], folded: Mapping[str, str]) -> ExaminedRow:
    """Return a place whose row names its own weight, and the one before it, where their modules run several."""
    row, node = place.row, "" if place.node is None else place.node.name
    before = None if row.folded_with is None else folded.get(node, row.folded_with)
    return replace(place, row=replace(row, path=names.get(node, row.path), folded_with=before))


def _placed(nodes: Sequence[Node], places: Sequence[ExaminedRow]) -> tuple[ExaminedRow, ...]:
    """Say which rows a row follows by their places among all rows, not among the nodes that were measured."""
    order = {place.node.name: number for number, place in enumerate(places) if place.node is not None}
    found = []
    for place in places:
        follows = place.row.follows
        if place.node is not None and follows is not None:
            follows = tuple(sorted(order[nodes[number].name] for number in follows))
            place = replace(place, row=replace(place.row, follows=follows))
        found.append(place)
    return tuple(found)


def _with_beside(
    captured: Captured, norm: Norm, data: DataSeen, places: Sequence[ExaminedRow], where: Mapping[str, Site]
) -> tuple[ExaminedRow, ...]:
    """Add rows for layers that ran but do not depend on the measured input (time embeddings), in the order they ran."""
    if any(not place.row.path for place in places):  # torch.export lost a name: which layer is which cannot be told
        return tuple(places)
    known, order = first_names(captured.model), {site: number for number, site in enumerate(data.order)}
    rows = {known.get(place.row.path, place.row.path) for place in places}
    keyed: list[tuple[int, ExaminedRow]] = []
    for place in places:  # what cannot be told apart stays behind the row before it
        last = keyed[-1][0] if keyed else -1
        keyed.append((last if place.node is None else order.get(where.get(place.node.name, NOWHERE), last), place))
    for site in data.order:
        if site[0] not in rows:
            keyed += [(order[site], place) for place in _seen_alone(captured.model, data, site, norm, BESIDE)]
    return tuple(place for _, place in sorted(keyed, key=lambda pair: pair[0]))


def _stands(
    node: Node, stand: BranchPosition, certified: Mapping[str, float], gains: Mapping[str, float]
) -> dict[str, Any]:
    """What a row follows, and what reaches it where its branch leaves the main line."""
    known: dict[str, Any] = {"follows": stand.follows, "bypassed": stand.bypassed}
    if stand.begins and node.refs:
        read = node.refs[0]
        known["log10_trunk_cumulative"] = certified.get(read)
        known["log10_trunk_observed"] = gains.get(read)
    return known


@torch.no_grad()
def from_data(model: nn.Module, data: DataSeen, norm: Norm | None = None) -> tuple[ExaminedRow, ...]:
    """Return the rows of a model that was not traced: what ran, with the norms of the layers torch provides, if any."""
    return tuple(place for site in data.order for place in _seen_alone(model, data, site, norm, NOT_TRACED))


def _seen_alone(model: nn.Module, data: DataSeen, site: Site, norm: Norm | None, note: str) -> list[ExaminedRow]:
    """Return the row of a layer that only the data tell about, with a note that says why; those of its matrices."""
    path, operator, run = site
    module = model.get_submodule(path)
    weight, normalizer = data.weights.get(site), data.normalizers.get(site)
    found: dict[str, Any] = {"notes": (note,)}
    if weight is not None:
        found |= {"input_shape": weight.input_shape, "output_shape": weight.output_shape}
        if norm is not None and operator != "recurrent":
            found |= _norm_of(module, weight.input_shape, norm, note)
    elif normalizer is not None:
        found |= {"log10_at_data": at_data(normalizer), "variance": normalizer.variance, **_channels(normalizer)}
    else:
        found["notes"] = (note, "its input holds NaN, infinite or complex values")
    row = Row(
        path=path,
        kind=type(module).__name__,
        operator=operator,
        role="normalizer" if operator in (*NORMALIZERS, "rms") else "weight",
        parameters=sum(p.numel() for p in module.parameters(recurse=False)),
        **found,
    )
    opened = norm is not None and operator == "recurrent" and run == 0
    matrices = matrix_rows(module, path, norm) if opened and norm is not None else []
    return [ExaminedRow(row=row, weight=weight, normalizer=normalizer), *matrices]


def _norm_of(module: nn.Module, input_shape: tuple[int, ...], norm: Norm, note: str) -> dict[str, Any]:
    """Return the operator norm of a layer, or a note that says why there is none."""
    try:
        return {"norm": norm(linear_map(module, input_shape))}
    except InputError as error:
        return {"notes": (note, str(error))}


def _described(model: nn.Module, node: Node) -> dict[str, Any]:
    """Path, class, operator, size and shapes of a node."""
    given = node.op.data if isinstance(node.op, Unit) else node.bound()
    held = [given.get("weight"), given.get("bias")] if is_normalizer(node) else [node.args, node.kwargs]
    count = sum(leaf.numel() for leaf in leaves(held) if isinstance(leaf, Tensor) and leaf.is_floating_point())
    if family(node) == "rms":  # its scale is applied by an operator of its own
        count = sum(p.numel() for p in model.get_submodule(node.path).parameters(recurse=False))
    return {
        "path": node.path,
        "kind": node.kind,
        "operator": family(node) if is_normalizer(node) else node.operator,
        "parameters": count,
        "input_shape": node.operands[0].shape,
        "output_shape": node.shape,
    }


def _normalizer(
    captured: Captured, bounding: Bounding, node: Node, seen: NormalizerOverData | None, feed: FeedingLayer | None
) -> dict[str, Any]:
    """The constants of a normalizer, over all inputs and at the data, alone and folded."""
    effect = captured.segments.effects[node.name]
    found: dict[str, Any] = {
        "log10_printed": printed_constant(node, effect),
        "log10_exact": effect.constant(bounding.norm).log10,
    }
    if seen is None:
        stored = {"log10_at_data": found["log10_exact"]} if isinstance(effect, Linear) else {}
        return found | stored | {"notes": ("its input was not seen: no variance, no figures at the data",)}
    most = found["log10_exact"]  # no point has more than the whole space
    found |= {"log10_at_data": _at_most(at_data(seen), most), "variance": seen.variance, **_channels(seen)}
    if feed is None:
        folded = None
    else:
        folding = bounding.budget.search(FOLDING)
        gain = partial(folded_gain, seen, node, effect, feed, captured.segments.effects)
        folded = None if folding.late else folding.attempt(gain, lambda: None)
        if folding.cut:
            return found | {"notes": ("max_seconds left no time for its gain together with the layer before it",)}
    if feed is not None and folded is not None:
        return found | {"log10_folded": folded, "folded_with": feed.weight.path}
    return found | {"log10_folded": alone_gain(seen) if seen.uses_running else _at_most(alone_gain(seen), most)}


def _at_most(value: float | None, most: float) -> float | None:
    return None if value is None else min(value, most)


def _channels(seen: NormalizerOverData) -> dict[str, Any]:
    """How many channels a normalizer has, and how many carry nothing: negligible scale, or constant input."""
    return _counted([mask for mask in (dead_scales(seen), constant_inputs(seen)) if mask is not None])


def _filters(node: Node, normalized: bool) -> dict[str, Any]:
    """How many filters a weight layer has, and how many are negligible."""
    dead = dead_filters(node, normalized=normalized)
    return _counted([] if dead is None else [dead])


def _counted(masks: Sequence[Tensor]) -> dict[str, Any]:
    """Count channels and those in any of the masks."""
    if not masks or any(mask.shape != masks[0].shape for mask in masks):
        return {}
    return {"channels": masks[0].numel(), "dead_channels": int(torch.stack(list(masks)).any(0).sum())}


def _gains_along(captured: Captured, observed: Bracket | None) -> dict[str, float]:
    """Return log10 of the gain from the input to every node, along the direction the network stretches most.

    A secant of length 2 STEP norm(x) through the float64 graph, around the sample with the largest Jacobian among those
    with the same masks as the first.
    """
    if observed is None or not observed.per_sample:
        return {}
    points = captured.points
    measured = [(i, one) for i, one in enumerate(observed.per_sample) if i in captured.own_samples]
    best, top = max(measured, key=lambda pair: pair[1].log10_lower)
    direction = top.witness
    if direction is None or direction.numel() != points.shape[1] or not bool(direction.any()):
        return {}
    point, direction = points[best].double(), direction.reshape(-1).double().to(points.device)
    length = STEP * max(float(point.norm()), 1e-3)
    step = direction * (length / float(direction.norm()))
    ahead, behind = (captured.double.values(*captured.double.split(point + sign * step)) for sign in (1, -1))
    floats = [name for name, value in ahead.items() if value.is_floating_point()]
    moved = {name: torch.where(ahead[name] == behind[name], 0.0, ahead[name] - behind[name]) for name in floats}
    gains = {name: float(torch.linalg.vector_norm(change)) / (2 * length) for name, change in moved.items()}
    return {name: log10(gain) for name, gain in gains.items() if math.isfinite(gain)}


def _at_the_batch(captured: Captured, budget: Budget, nodes: Sequence[Node]) -> dict[str, NormalizerOverData]:
    """Return what normalizers see at the batch, by node name, from the graph itself."""
    unseen = [node for node in nodes if family(node) != "batch_norm"]
    if not unseen:
        return {}
    tallies: dict[str, SetTally] = {}
    for point in captured.points[captured.own_samples[:BATCH_SAMPLES]]:
        values = budget.attempt(partial(captured.double.values, *captured.double.split(point.double())), lambda: None)
        if values is None:
            break
        for node in unseen:
            if values[node.refs[0]].numel():
                seen = _seen_at(node, values[node.refs[0]])
                tallies.setdefault(node.name, SetTally((node.path, family(node), 0), seen)).add(seen)
    return {name: summary for name, tally in tallies.items() if (summary := tally.seen()) is not None}


def _seen_at(node: Node, x: Tensor) -> NormalizerSeen:
    """Return what a normalizer does with its input at one sample of the batch."""
    kind = family(node)
    if isinstance(node.op, Unit):  # an RMSNorm that is written out, along any dimensions
        dims = node.op.data["dims"]
        rows = x.movedim(dims, tuple(range(-len(dims), 0))).flatten(-len(dims)).flatten(0, -2)
        seen = rows_seen(kind, rows, sets=len(rows), eps=float(node.op.data["eps"]), exact=True)
    else:
        given = node.bound()
        sets, groups, weight = set_count(kind, given, x), set_positions(kind, given, x), given.get("weight")
        gamma = weight if isinstance(weight, Tensor) else None
        seen = rows_seen(kind, x, sets=sets, groups=groups, eps=float(given["eps"]), gamma=gamma, exact=True)
    return replace(seen, samples=1)
