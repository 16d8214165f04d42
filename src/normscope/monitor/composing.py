"""The record of a measured step, from the numbers that have arrived on the host."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from ..listening.calls import Site
from ..listening.normalizer_seen import NormalizerSeen
from .norm_figures import READABLE, NormFigure, WeightNorms
from .norm_tracking import NormTracker, Turns
from .observed import Taken, summary
from .probes import normalizer_probe, updates
from .probes.running import BatchNorms
from .record import Numbers, Record, summed
from .schedule import Tier
from .watched_layers import UNCHAINED, Subject

Key = Hashable
Found = Mapping[Key, np.ndarray]
OPTIONAL = (*normalizer_probe.OPTIONAL, *updates.OPTIONAL)


@dataclass(slots=True)
class Known:
    """What earlier steps found of the layers.

    Attributes:
        norms: the vectors that the next measurement of each norm starts from.
        last: their norms when they were last measured.
        turns: whose update is measured next.
        count: how many steps measured norms.
        careful: sizes that have left the range of float32 when they were squared, or are zero: measured in float64.
    """

    norms: NormTracker = field(default_factory=NormTracker)
    last: dict[Site, WeightNorms] = field(default_factory=dict)
    turns: Turns = field(default_factory=lambda: Turns("update"))
    count: int = 0
    careful: set[tuple[str, str]] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What the host keeps of a measured step while its figures are on their way.

    Attributes:
        step: steps the optimizer has taken before.
        tier: how much is measured.
        subject: what is watched.
        known: what earlier steps found of the layers.
        lost: layers whose parameters have been replaced since the first forward.
        ran: weight layers that the forward was seen to run.
        lr: the learning rate of every parameter group.
        rates: that of every scale-invariant weight whose update is measured.
        powers: the power of the norm in the effective learning rate of each of them.
        names: the names of the parameters, in the order of their sizes, gradients and moves.
        normalizers: what every normalizer showed, without the tensors, which are on their way.
        widths: how many variances of each of them have scales of their own.
        batch_norms: sites whose running variances were read instead, and their momenta.
        seconds: since the run began.
        observed: what the loop observed since the last record.
    """

    step: int
    tier: Tier
    subject: Subject
    known: Known
    lost: list[str]
    ran: set[Site]
    lr: list[float | Tensor]
    rates: dict[Site, float | Tensor]
    powers: dict[Site, int | None]
    names: dict[str, list[str]]
    normalizers: dict[Site, NormalizerSeen]
    widths: dict[Site, int]
    batch_norms: tuple[Sequence[Site], BatchNorms, list[float]] | None
    seconds: float
    observed: Mapping[str, Taken]


def compose(sent: Sent, found: Found) -> Record:
    """Return what was measured in a step, as numbers.

    Args:
        sent: what the host kept of it.
        found: what has arrived from the device.
    """
    sizes = {what: dict(zip(sent.names[what], found[what].tolist(), strict=True)) for what in sent.names}
    sent.known.careful = {(what, n) for what in sizes for n, size in sizes[what].items() if _extreme(size)}
    normal = _normalizers(sent, found)
    norms = _weight_norms(sent, found, sizes, normal)
    values = {
        "weight": _weight_columns(sent, found, sizes, norms),
        "normalizer": _columns(normal, normalizer_probe.QUANTITIES),
        **({} if sent.tier is Tier.ECONOMY else _block_columns(sent, found)),
        **({"operator": {"excess": tuple(found["domain"][1:].tolist())}} if "domain" in found else {}),
    }
    return Record(
        step=sent.step,
        seconds=sent.seconds,
        tier=sent.tier.value,
        loss=_one(found, "loss"),
        lr=_rates(sent, found),
        values={
            kind: {quantity: n for quantity, n in columns.items() if any(v is not None for v in n)}
            for kind, columns in values.items()
        },
        histograms=_histograms(sent, found),
        total=_total(sent, norms, values["normalizer"], sizes) | _found_totals(found),
        metrics=summary({name: taken.open() for name, taken in sent.observed.items()}),
    )


def _own(sent: Sent) -> list[tuple[str, ...]]:
    """Return the names of the parameters of every weight layer; none where they are not those of the first forward."""
    return [() if layer.name in sent.lost else layer.parameters for layer in sent.subject.of("weight")]


def _weight_norms(
    sent: Sent, found: Found, sizes: Mapping[str, Mapping[str, float]], normal: Sequence[np.ndarray | None]
) -> list[WeightNorms | None]:
    """Return the operator norms of every weight layer."""
    places = sent.subject.places
    levels = {site: float(row[0]) for site, row in zip(places["normalizer"], normal, strict=True) if row is not None}
    return [
        _norm(sent, site, found, _joined(sizes.get("size", {}), names[:1]), levels)
        for site, names in zip(places["weight"], _weighed(sent, _own(sent)), strict=True)
    ]


def _weight_columns(
    sent: Sent, found: Found, sizes: Mapping[str, Mapping[str, float]], norms: Sequence[WeightNorms | None]
) -> dict[str, Numbers]:
    """Return one column per quantity of the weight layers."""

    def together(what: str) -> Numbers:
        return tuple(_joined(sizes.get(what, {}), names) for names in _own(sent))

    return {
        **_norm_columns(sent.step, norms),
        "log10_size": together("size"),
        "log10_gradient": together("gradient"),
        **_columns(_updates(sent, found), updates.QUANTITIES),
        **({} if sent.tier is Tier.ECONOMY else {"log10_moved": together("moved")}),
    }


def _norm_columns(step: int, norms: Sequence[WeightNorms | None]) -> dict[str, Numbers]:
    """Return the columns of operator norms: alone and with the normalizer behind, their errors, and their age."""
    folded = [None if norm is None else norm.folded for norm in norms]
    return {
        "log10_norm": tuple(None if norm is None else norm.bare.shown for norm in norms),
        "log10_folded": tuple(None if figure is None else figure.shown for figure in folded),
        "norm_error": tuple(None if norm is None else norm.bare.error for norm in norms),
        "folded_error": tuple(None if figure is None else figure.error for figure in folded),
        "norm_age": tuple(None if norm is None else float(step - norm.step) for norm in norms),
    }


def _block_columns(sent: Sent, found: Found) -> dict[str, dict[str, Numbers]]:
    """Return the columns of units and blocks."""
    places = sent.subject.places
    return {
        "units": {"dead": tuple(_one(found, ("dead", site)) for site in places["units"])},
        "block": {
            "log10_activation": tuple(_log(_one(found, ("activation", path))) for path in places["block"]),
            "log10_backward": tuple(_log(_one(found, ("backward", path))) for path in places["block"]),
        },
    }


def _rates(sent: Sent, found: Found) -> tuple[float, ...]:
    """Return the learning rate of every parameter group."""
    return tuple(
        float(found[("lr", i)][0]) if isinstance(rate, Tensor) else float(rate) for i, rate in enumerate(sent.lr)
    )


def _histograms(sent: Sent, found: Found) -> dict[str, tuple[tuple[float, ...] | None, ...]]:
    """Return the histograms of weights and gradients, where there are any."""
    layers = range(len(sent.subject.of("weight")))
    spreads = {what: tuple(_spread(found, (f"{what} spread", i)) for i in layers) for what in ("weight", "gradient")}
    return {what: rows for what, rows in spreads.items() if any(rows)}


def _normalizers(sent: Sent, found: Found) -> list[np.ndarray | None]:
    """Return the figures of every normalizer."""
    arrived = [
        replace(
            seen,
            variance=found[("variance", site)].reshape(-1, sent.widths[site]),
            gamma=found.get(("gamma", site)),
            running_variance=found.get(("running_variance", site)),
        )
        for site, seen in sent.normalizers.items()
    ]
    rows = dict(zip(sent.normalizers, normalizer_probe.measure_all(arrived), strict=True))
    if sent.batch_norms is not None:
        sites, batch_norms, momenta = sent.batch_norms
        measured = zip(sites, batch_norms.rows(found, momenta), found["calls"], strict=True)
        rows |= {site: row for site, row, calls in measured if calls == 1}
    return [rows[s] if s in rows else found.get(("normalizer", s)) for s in sent.subject.places["normalizer"]]


def _norm(sent: Sent, site: Site, found: Found, size: float | None, levels: Mapping[Site, float]) -> WeightNorms | None:
    """Return the norms of a layer; of one that was not in turn those of the last time, carried on.

    Args:
        sent: what the host kept of the step.
        site: the site of the layer.
        found: what has arrived.
        size: log10 of the l2 norm of its weight without the bias, which is no part of the map; None for a weight
            that is made of others, whose size says little.
        levels: the mean of log10 of the variances of every normalizer that was seen.
    """
    level = levels.get(sent.subject.feeds.get(site, site))
    last = sent.known.last.get(site)
    before = None if last is None else last.carried(sent.step, size, level)
    if ("norm", site) not in found:
        return before if site in sent.ran else None
    norms, errors = np.split(found[("norm", site)], 2)
    bare, *folded = (NormFigure(log10=n, error=e) for n, e in zip(norms.tolist(), errors.tolist(), strict=True))
    fold = folded[0] if folded and level is not None else None
    now = WeightNorms(bare=bare, folded=fold, step=sent.step, size=size, level=level)
    now = now if before is None else now.corrected(before)
    if errors.max() > READABLE:
        sent.known.norms.doubt(site)
    sent.known.last[site] = now
    return now


def _updates(sent: Sent, found: Found) -> list[np.ndarray | None]:
    """Return the figures of the scale-invariant weights whose turn it was."""
    rates = [float(found[("rate", s)][0]) if isinstance(r, Tensor) else float(r) for s, r in sent.rates.items()]
    numbers = [found[("update", site)] for site in sent.rates]
    rows = updates.measure_all(numbers, lr=rates, powers=list(sent.powers.values()))
    turned = dict(zip(sent.rates, rows, strict=True))
    return [turned.get(site) for site in sent.subject.places["weight"]]


def _weighed(sent: Sent, own: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the parameters whose size says how norms have grown: none where a weight is made of others."""
    made = sent.subject.made
    return [() if site in made else names for site, names in zip(sent.subject.places["weight"], own, strict=True)]


def _total(
    sent: Sent,
    norms: Sequence[WeightNorms | None],
    normalizer: Mapping[str, Numbers],
    sizes: Mapping[str, Mapping[str, float]],
) -> dict[str, float | None]:
    """Return the sums over the network, with norms that are carried on, however old they are."""
    fed = {layer.normalizer for layer in sent.subject.of("weight")}
    layers = zip(sent.subject.of("weight"), norms, strict=True)
    chain = [norm for layer, norm in layers if layer.family not in UNCHAINED and norm is not None]
    folded = [(norm.folded or norm.bare).log10 for norm in chain]
    free = [
        gain
        for layer, gain in zip(sent.subject.of("normalizer"), normalizer["log10_gain"], strict=True)
        if layer.name not in fed
    ]
    return {
        "log10_printed": summed([norm.bare.log10 for norm in chain]),
        "log10_constants": summed(normalizer["log10_constant"]),
        "log10_folded": summed([*folded, *free]),
        "log10_gradient": _joined(sizes.get("gradient", {}), None),
        "log10_weight": _joined(sizes.get("size", {}), None),
    }


def _found_totals(found: Found) -> dict[str, float | None]:
    """Return the figures of the whole network that were measured as such."""
    totals: dict[str, float | None] = {}
    if "backward" in found:
        totals["log10_backward"] = _log(_one(found, "backward"))
    if "spread" in found:
        totals["input_spread"] = _one(found, "spread")
    if "left" in found:
        totals["left_over"] = _one(found, "left")
    if "domain" in found:
        totals["share_outside"] = _one(found, "domain")
    return totals


def _extreme(size: float) -> bool:
    return size == math.inf or size < 1e-15


def _columns(rows: Sequence[np.ndarray | None], names: Sequence[str]) -> dict[str, Numbers]:
    """Return one column per quantity; what does not apply is None."""
    known = [index for index, row in enumerate(rows) if row is not None]
    table = np.full((len(rows), len(names)), math.nan)
    if known:
        table[known] = [rows[index] for index in known]
    columns = dict(zip(names, table.T.tolist(), strict=True))
    for name, column in columns.items():
        if name in OPTIONAL:
            columns[name] = [None if math.isnan(value) else value for value in column]
        elif len(known) < len(rows):
            columns[name] = [None if row is None else value for row, value in zip(rows, column)]
    return {name: tuple(column) for name, column in columns.items()}


def _joined(sizes: Mapping[str, float], names: Sequence[str] | None) -> float | None:
    """Return log10 of the norm of several parameters together; of all without names."""
    known = list(sizes.values()) if names is None else [sizes[name] for name in names if name in sizes]
    return _log(math.hypot(*known)) if known else None


def _one(found: Found, key: Key) -> float | None:
    return float(found[key][0]) if key in found else None


def _spread(found: Found, key: Key) -> tuple[float, ...] | None:
    return tuple(found[key].tolist()) if key in found else None


def _log(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return value
    return math.log10(value) if value > 0 else -math.inf
