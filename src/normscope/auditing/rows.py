"""One row per weight layer and normalizer: from the captured graph, or from the data where there is none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..bounds.bounds_by_method import is_normalizer, is_weight, printed_constant
from ..bounds.graph.ir import Graph, Node, Unit, leaves, overlap
from ..bounds.graph_weights import weight_of
from ..bounds.linalg.folding import compose
from ..bounds.linalg.layer_norms import linear_map
from ..bounds.linalg.linear_map import Diagonal, LinearMap, Matrix
from ..bounds.linalg.operator_norms import estimate
from ..bounds.operators.effects import Effect, Gain, Linear, Unbounded
from ..bounds.operators.invariance import FeedingLayer
from ..bounds.operators.linear import MATRICES
from ..bounds.operators.registry import lookup
from ..bounds.traced_network import BoundSettings, TracedNetwork
from ..core.bracket import Bracket
from ..core.budget import Budget, Progress
from ..core.errors import InputError
from ..core.log10 import log10
from ..core.rounding import Upper
from ..doctor.facts.data import DataSeen
from ..doctor.facts.examined import layer_seen
from ..doctor.facts.layers_over_data import NormalizerOverData, SetTally
from ..listening.calls import RECURRENT, NormalizerSeen, Site, rows_seen, set_count, set_positions
from ..report.words import factor
from .audit_result import Row
from .audited import AuditedRow, dead_filters
from .branches import BranchPosition, standings


def family(node: Node) -> str:
    """Return the family of a node, as a `Site` names it."""
    known = lookup(node)
    if node.is_batch_norm:
        return "batch_norm"
    if known is not None and known.family in ("recurrent", "convolution"):
        return known.family
    return "linear" if node.op in MATRICES else node.operator


def first_names(model: nn.Module) -> dict[str, str]:
    """Return, for every name of a module, the first one it has."""
    first = {id(module): name for name, module in model.named_modules()}
    return {name: first[id(module)] for name, module in model.named_modules(remove_duplicate=False)}


def once(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes with one for each run of a recurrent layer, which hands out several values."""
    found: dict[Any, Node] = {}
    for node in nodes:
        key = (node.path, node.operator, node.refs, node.call) if node.operator in RECURRENT else node.name
        found.setdefault(key, node)
    return list(found.values())


def sites(model: nn.Module, nodes: Iterable[Node], seen: Iterable[Site]) -> dict[str, Site]:
    """Return where nodes ran, by their names: the module's path, the family, and a count of its runs.

    A module with several names goes by the first. Nodes of a module that ran more or less often than the graph knows
    (on constants, or beside the path to the output) are left out: which run is which cannot be told.
    """
    known = first_names(model)
    ran = Counter(site[:2] for site in seen)
    placed: dict[tuple[str, str], list[str]] = {}
    for node in once(nodes):
        placed.setdefault((known.get(node.path, node.path), family(node)), []).append(node.name)
    return {
        name: (*key, run) for key, group in placed.items() if len(group) == ran[key] for run, name in enumerate(group)
    }


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
def weight_norms(captured: TracedNetwork, bounding: BoundSettings) -> dict[str, Bracket]:
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
    captured: TracedNetwork,
    bounding: BoundSettings,
    data: DataSeen,
    fed: Sequence[FeedingLayer],
    observed: Bracket | None,
    *,
    norms: Mapping[str, Bracket],
    values: Mapping[str, Upper],
    sensitivity: Mapping[str, Bracket],
) -> tuple[AuditedRow, ...]:
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
    places: list[AuditedRow] = []
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
            places.append(AuditedRow(row=Row(role="weight", **common), node=node, effect=effect, weight=weight))
            if is_recurrent(node) and node.path not in measured:
                places += matrix_rows(captured.model.get_submodule(node.path), node.path, norm)
                measured.add(node.path)
    named = projection_names(captured.model, captured.graph, nodes)
    folded = {feed.normalizer.name: named[feed.weight.name] for feed in fed if feed.weight.name in named}
    return tuple(
        _called(place, named, folded) for place in _placed(nodes, _with_beside(captured, norm, data, places, where))
    )


def _normalizer_row(
    captured: TracedNetwork,
    bounding: BoundSettings,
    node: Node,
    common: Mapping[str, Any],
    seen: NormalizerOverData | None,
    stand_in: NormalizerOverData | None,
    feed: FeedingLayer | None,
) -> AuditedRow:
    """Return the row of a normalizer: at the data if it was seen there, at the batch if not."""
    notes = [BATCH_ONLY] if seen is None else []
    notes += [WRITTEN] if family(node) == "rms" else []
    seen = seen or stand_in
    row = Row(
        role="normalizer", **common, **{"notes": tuple(notes), **_normalizer(captured, bounding, node, seen, feed)}
    )
    return AuditedRow(row=row, node=node, effect=captured.segments.effects[node.name], normalizer=seen)


def _called(place: AuditedRow, names: Mapping[str, str], folded: Mapping[str, str]) -> AuditedRow:
    """Return a place whose row names its own weight, and the one before it, where their modules run several."""
    row, node = place.row, "" if place.node is None else place.node.name
    before = None if row.folded_with is None else folded.get(node, row.folded_with)
    return replace(place, row=replace(row, path=names.get(node, row.path), folded_with=before))


def _placed(nodes: Sequence[Node], places: Sequence[AuditedRow]) -> tuple[AuditedRow, ...]:
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
    captured: TracedNetwork, norm: Norm, data: DataSeen, places: Sequence[AuditedRow], where: Mapping[str, Site]
) -> tuple[AuditedRow, ...]:
    """Add rows for layers that ran but do not depend on the measured input (time embeddings), in the order they ran."""
    if any(not place.row.path for place in places):  # torch.export lost a name: which layer is which cannot be told
        return tuple(places)
    known, order = first_names(captured.model), {site: number for number, site in enumerate(data.order)}
    rows = {known.get(place.row.path, place.row.path) for place in places}
    keyed: list[tuple[int, AuditedRow]] = []
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
def from_data(model: nn.Module, data: DataSeen, norm: Norm) -> tuple[AuditedRow, ...]:
    """Return the rows of a model that was not traced: what ran, with the norms of the layers torch provides."""
    return tuple(place for site in data.order for place in _seen_alone(model, data, site, norm, NOT_TRACED))


def _seen_alone(model: nn.Module, data: DataSeen, site: Site, norm: Norm, note: str) -> list[AuditedRow]:
    """Return the row of a layer that only the data tell about, with a note that says why; those of its matrices."""
    layer, (path, operator, run) = layer_seen(model, data, site), site
    module, weight, normalizer = model.get_submodule(path), layer.weight, layer.normalizer
    found: dict[str, Any] = {"notes": (note,)}
    if weight is not None:
        found |= {"input_shape": weight.input_shape, "output_shape": weight.output_shape}
        if operator != "recurrent":
            found |= _norm_of(module, weight.input_shape, norm, note)
    elif normalizer is not None:
        found |= {"log10_at_data": at_data(normalizer), "variance": normalizer.variance, **_channels(normalizer)}
    else:
        found["notes"] = (note, "its input holds NaN, infinite or complex values")
    row = Row(
        path=path,
        kind=layer.kind,
        operator=operator,
        role=layer.role,
        parameters=sum(p.numel() for p in module.parameters(recurse=False)),
        **found,
    )
    matrices = matrix_rows(module, path, norm) if operator == "recurrent" and run == 0 else []
    return [AuditedRow(row=row, weight=weight, normalizer=normalizer), *matrices]


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
    captured: TracedNetwork,
    bounding: BoundSettings,
    node: Node,
    seen: NormalizerOverData | None,
    feed: FeedingLayer | None,
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
    return _counted([mask for mask in (seen.dead_scales, seen.constant_inputs) if mask is not None])


def _filters(node: Node, normalized: bool) -> dict[str, Any]:
    """How many filters a weight layer has, and how many are negligible."""
    dead = dead_filters(node, normalized=normalized)
    return _counted([] if dead is None else [dead])


def _counted(masks: Sequence[Tensor]) -> dict[str, Any]:
    """Count channels and those in any of the masks."""
    if not masks or any(mask.shape != masks[0].shape for mask in masks):
        return {}
    return {"channels": masks[0].numel(), "dead_channels": int(torch.stack(list(masks)).any(0).sum())}


def _gains_along(captured: TracedNetwork, observed: Bracket | None) -> dict[str, float]:
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


def _at_the_batch(captured: TracedNetwork, budget: Budget, nodes: Sequence[Node]) -> dict[str, NormalizerOverData]:
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


def projection_names(model: nn.Module, graph: Graph, nodes: Sequence[Node]) -> dict[str, str]:
    """Return names that tell apart the weight layers of one module, as far as their weights do.

    `nn.MultiheadAttention` runs two linear layers under its own path; they are called after their parameters,
    `attn.in_proj` and `attn.out_proj`. Layers that use different rows of one parameter name the rows, and a module that
    runs the same weight again keeps its path.

    Args:
        model: what was captured.
        graph: as captured, in the memory of the model.
        nodes: those that have rows.

    Returns:
        By node name, for those whose path is not enough.
    """
    rows, modules = {node.name for node in nodes}, dict(model.named_modules(remove_duplicate=False))
    weights = [(node, weight) for node in graph if node.name in rows and (weight := weight_of(node)) is not None]
    by_path: dict[str, dict[str, str]] = {}
    for node, weight in weights:
        by_path.setdefault(node.path, {})[node.name] = _name(modules.get(node.path), node.path, weight)
    told = [names for names in by_path.values() if len(set(names.values())) > 1 and all(names.values())]
    return {node: name for names in told for node, name in names.items()}


def _name(module: nn.Module | None, path: str, weight: Tensor) -> str:
    """Return a module's path with the parameter of it that a weight is, or is part of; empty where it is none."""
    for name, parameter in () if module is None else module.named_parameters():
        if overlap(parameter.detach(), weight):
            short = name.removesuffix(".weight").removesuffix("_weight")
            return ".".join(filter(None, (path, short))) + _part(parameter.detach(), weight)
    return ""


def _part(parameter: Tensor, weight: Tensor) -> str:
    """Return which rows of a parameter a weight is, as Python writes them; empty for all, and for what is no rows."""
    whole_rows = weight.ndim == parameter.ndim and weight.shape[1:] == parameter.shape[1:]
    if not whole_rows or weight.stride() != parameter.stride() or len(weight) == len(parameter):
        return ""
    first = (weight.storage_offset() - parameter.storage_offset()) // parameter.stride(0)
    return f"[{first}:{first + len(weight)}]"


Norm = Callable[[LinearMap], Bracket]
"""Brackets the norm of one linear map."""


def is_recurrent(node: Node) -> bool:
    """Whether a node is a recurrent layer or cell."""
    return family(node) == "recurrent"


def over_steps(captured: TracedNetwork, node: Node) -> dict[str, Any]:
    """Return how many parameters a recurrent layer has, and what it does to a change over the captured steps."""
    parameters = captured.model.get_submodule(node.path).parameters(recurse=False)
    notes = (_amplified(captured.segments.effects[node.name]),)
    return {"parameters": sum(p.numel() for p in parameters), "notes": notes}


def _amplified(effect: Effect) -> str:
    """Say what a recurrent layer does to a change, over all inputs of the captured length."""
    if isinstance(effect, Gain):
        return (
            f"over the captured steps it amplifies a change of its input at most {factor(effect.gains[0].log10)} times"
        )
    return f"no bound: {effect.reason}" if isinstance(effect, Unbounded) else ""


def matrix_rows(module: nn.Module, path: str, norm: Norm) -> list[AuditedRow]:
    """Return one row for each matrix of a recurrent module: its norm, whatever the number of steps."""
    places = []
    for name, weight in module.named_parameters(recurse=False):
        if weight.ndim == 2:
            row = Row(
                path=f"{path}.{name}" if path else name,
                kind=type(module).__name__,
                operator="matrix",
                role="weight",
                parameters=weight.numel(),
                input_shape=(weight.shape[1],),
                output_shape=(weight.shape[0],),
                norm=norm(Matrix(weight)),
            )
            places.append(AuditedRow(row=row))
    return places


def at_data(seen: NormalizerOverData) -> float | None:
    """Return log10 of the largest constant a normalizer had at the data: max over its sets of abs(gamma)/s.

    BatchNorm in eval mode divides by its running variance, whatever the data; None if one of these is negative.
    """
    if seen.stored_variance is not None:
        return _largest(seen, seen.stored_variance)
    return alone_gain(seen)


def alone_gain(seen: NormalizerOverData) -> float | None:
    """Return log10 of the largest constant a normalizer has with the variances of the data."""
    return None if seen.least_variance is None else _largest(seen, seen.least_variance)


def _largest(seen: NormalizerOverData, variance: Tensor) -> float | None:
    """Return log10 of max abs(gamma)/sqrt(variance + eps), each variance with the scales of its own set."""
    scales = torch.ones(len(variance), 1) if seen.weight is None else seen.weight.abs().reshape(len(variance), -1)
    largest, square = scales.double().amax(1), variance.double() + seen.eps
    if not bool(torch.isfinite(largest).all()) or bool((square < 0).any()) or bool(square.isnan().any()):
        return None
    quotient = torch.where(largest == 0, 0.0, largest / square.sqrt())
    return log10(float(quotient.max()))


def folded_gain(
    seen: NormalizerOverData,
    node: Node,
    effect: Effect,
    feed: FeedingLayer,
    effects: Mapping[str, Effect],
) -> float | None:
    """Return log10 of norm(diag(gamma/s) P W): the weight layer, its normalizer's centring P and scale.

    For BatchNorm in eval mode s is each channel's deviation over the data (where stored statistics disagree with it, a
    finding says so); otherwise the smallest deviation seen of each channel, group or set. The norm is an
    estimate from below: the figure speaks of the data alone, so it needs no certificate. A convolution with its
    BatchNorm is folded into one convolution, and one sample of it is measured.

    Args:
        seen: what the normalizer saw.
        node: the normalizer.
        effect: its effect.
        feed: the weight layer before it.
        effects: every node's effect by name.
    """
    first = effects[feed.weight.name]
    if not isinstance(first, Linear) or len(first.maps) != 1:
        return None
    folded = first.maps[0]
    for between in feed.between:
        step = effects[between.name]
        if not isinstance(step, Linear) or len(step.maps) != 1:
            return None
        folded = compose(step.maps[0], folded)
    if seen.least_variance is None or bool((seen.least_variance + seen.eps <= 0).any()):
        return None
    if seen.channel_variance is not None:
        scale = 1.0 / (seen.least_variance + seen.eps).sqrt()
        scale = scale if seen.weight is None else scale * seen.weight
        spread = scale.reshape(-1, *(1,) * (len(node.shape) - 2)).to(node.device)
        return estimate(compose(Diagonal(spread, node.shape), folded))
    if not isinstance(effect, Gain):
        return None
    least = seen.least_variance
    deviation = (least + seen.eps).sqrt().repeat_interleave(node.shape[1] // len(least)) if len(least) > 1 else None
    for around in (effect.before, effect.after):
        folded = folded if around is None else compose(around, folded)
    if deviation is None:
        return estimate(folded) - log10(float(least[0]) + seen.eps) / 2
    spread = (1.0 / deviation).reshape(-1, *(1,) * (len(node.shape) - 2)).to(node.device)
    return estimate(compose(Diagonal(spread, node.shape), folded))
