"""One measured step: what was seen of its forward, its gradients and its update, on the way to a `Record`."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..diagnosis.examined import Site
from .budget import Budget
from .distributed import l2_norms, whole
from .norms import Norms, Turns
from .observed import Taken, summary
from .parcel import Parcel
from .probes import normalizers, updates
from .probes.normalizers import Sets
from .probes.running import BatchNorms
from .probes.weights import Geometry
from .record import Numbers, Record, summed
from .schedule import Tier
from .seen import Seen
from .standing import Clearing
from .subject import Subject, effective_power


@dataclass(slots=True)
class Known:
    """What earlier steps found of the layers.

    Attributes:
        norms: their warm vectors.
        last: log10 of their last norms, alone and folded, of their size, and of the variance behind them at that time.
        turns: whose update is measured next.
        careful: sizes that have left the range of float32 when they were squared, or are zero: measured in float64.
    """

    norms: Norms = field(default_factory=Norms)
    last: dict[Site, tuple[float, float, float | None, float | None]] = field(default_factory=dict)
    turns: Turns = field(default_factory=lambda: Turns("update"))
    careful: set[tuple[str, str]] = field(default_factory=set)


Key = Hashable
Found = Mapping[Key, np.ndarray]
OPTIONAL = (*normalizers.OPTIONAL, *updates.OPTIONAL)


class Measurement:
    """Collects small tensors of one step; nothing is read from the device before `record`.

    Args:
        step: steps the optimizer has taken before.
        tier: how much is measured.
        subject: what is watched.
        optimizer: of the run.
    """

    def __init__(self, step: int, tier: Tier, subject: Subject, optimizer: Optimizer) -> None:
        self.step, self.tier, self.subject, self.optimizer = step, tier, subject, optimizer
        self.seen: Seen | None = None
        self.clearing: Clearing | None = None
        self.losses: list[Tensor] = []
        self._used: set[int] = set()
        self.lost: list[str] = []
        self._ran: set[Site] = set()
        self._lr: list[float | Tensor] = []
        self._contents: dict[Key, Tensor] = {}
        self._names: dict[str, list[str]] = {}
        self._sets: dict[Site, Sets] = {}
        self._widths: dict[Site, int] = {}
        self._batch_norms: tuple[Sequence[Site], BatchNorms, list[float]] | None = None
        self._parameters: Mapping[str, nn.Parameter] = {}
        self._rows: dict[Site, Tensor] = {}
        self._rates: dict[Site, float | Tensor] = {}
        self._powers: dict[Site, int | None] = {}
        self._copies: dict[str, Tensor] = {}
        self._known, self._budget = Known(), Budget(None)
        self._parcel: Parcel | None = None
        self._observed: Mapping[str, Taken] = {}
        self._seconds = 0.0

    @property
    def abandoned(self) -> bool:
        """Whether the batch of the forward that was seen was left out: it has a loss but left no gradient."""
        groups = self.optimizer.param_groups
        return bool(self.losses) and not self._used and all(p.grad is None for g in groups for p in g["params"])

    def observe(self, loss: Tensor | float) -> None:
        """Add the loss of a batch; not once the optimizer has its gradients and there is one."""
        if "size" in self._contents and self.losses:
            return
        number = loss.detach() if isinstance(loss, Tensor) else torch.tensor(float(loss), dtype=torch.float64)
        self.losses.append(number.reshape(1).clone())
        index, used = len(self.losses) - 1, self._used
        if isinstance(loss, Tensor) and loss.requires_grad and not loss.is_leaf:
            loss.register_hook(lambda grad: used.add(index))
        else:
            used.add(index)

    @torch.no_grad()
    def before(self, parameters: Mapping[str, nn.Parameter], known: Known, budget: Budget) -> None:
        """Measure gradients and weights in front of the optimizer's step.

        Args:
            parameters: of the model.
            known: what earlier steps found of its layers.
            budget: of what can wait its turn.
        """
        self._known, self._budget, self._parameters = known, budget, parameters
        if self.clearing is not None:
            self.clearing.close()
        weights = self.subject.of("weight")
        self.lost = [layer.name for layer in weights if any(name not in parameters for name in layer.parameters)]
        held = {("size", name): p for name, p in parameters.items() if not is_lazy(p)}
        graded = {("gradient", name): _dense(p.grad) for (_, name), p in held.items() if p.grad is not None}
        found = l2_norms({**held, **graded}, careful=known.careful)  # all in a few kernels
        for what, part in (("size", held), ("gradient", graded)):
            if part:
                self._names[what] = [name for _, name in part]
                self._contents[what] = torch.stack([found[key] for key in part])
        scale = getattr(self.optimizer, "grad_scale", None)  # a GradScaler that leaves unscaling to the optimizer
        if scale is not None and graded:
            self._contents["gradient"] = self._contents["gradient"] / scale.to(self._contents["gradient"])
        self._lr = [_rate(group) for group in self.optimizer.param_groups]
        rows = [site for site, (names, *_) in self.subject.rows.items() if all(name in parameters for name in names)]
        for site in known.turns.affordable(rows, budget):
            with budget.spending(("update", site)):
                self._rows[site] = self._grouped(site).clone()
        if self.tier is not Tier.ECONOMY:
            self._copies = {name: p.detach().clone() for (_, name), p in held.items() if p.requires_grad}
        if self.seen is not None:
            self._weights(self.seen)

    def _grouped(self, site: Site) -> Tensor:
        names, groups, axis = self.subject.rows[site]
        return updates.grouped([whole(self._parameters[name]) for name in names], groups, axis)

    def _weights(self, seen: Seen) -> None:
        """Measure operator norms."""

        def layer(site: Site) -> tuple[Geometry, Tensor, Sets | None]:
            weight, behind = seen.weights[site], self.subject.feeds.get(site)
            tensor = weight.made if weight.made is not None else whole(self._parameters[weight.parameters[0]])
            return weight.geometry, tensor, None if behind is None else seen.sets(behind)

        found = self._known.norms.measure(seen.weights, layer, tier=self.tier, budget=self._budget)
        self._contents |= {("norm", site): value for site, value in found.items()}
        self._ran = set(seen.weights)
        seen.weights = {}  # some were made for this forward alone

    @torch.no_grad()
    def after(self) -> None:
        """Measure what the optimizer's step did."""
        parameters = self._parameters
        groups = {id(p): group for group in self.optimizer.param_groups for p in group["params"]}
        for site, before in self._rows.items():
            with self._budget.spending(("update", site), more=True):
                moved = self._grouped(site) - before
                self._contents[("update", site)] = updates.parts(before, moved)
            group = groups.get(id(parameters[self.subject.rows[site][0][0]]))
            self._rates[site] = math.nan if group is None else _rate(group)
            self._powers[site] = None if group is None else effective_power(self.optimizer, group)
        if self._copies:
            far = l2_norms({name: parameters[name].detach() - copy for name, copy in self._copies.items()})
            self._names["moved"], self._contents["moved"] = list(far), torch.stack(list(far.values()))
        self._rows, self._copies, self._parameters = {}, {}, {}

    def send(self, seconds: float, observed: Mapping[str, Taken]) -> None:
        """Send everything to the host, with what the loop observed since the last record."""
        self._seconds, self._observed = seconds, observed
        contents = self._contents
        left = None if self.clearing is None else self.clearing.close()
        contents |= {} if left is None else {"left": left}
        if self.losses:
            chosen = [loss for index, loss in enumerate(self.losses) if index in self._used] or self.losses
            alike = [loss.to(chosen[0].device, torch.float64) for loss in chosen]
            contents["loss"] = torch.cat(alike).mean(0, keepdim=True)
        contents |= {("lr", i): rate for i, rate in enumerate(self._lr) if isinstance(rate, Tensor)}
        contents |= {("rate", site): rate for site, rate in self._rates.items() if isinstance(rate, Tensor)}
        if self.seen is not None:
            if self.seen.batch_norms is not None:
                sites, moved = self.seen.batch_norms
                contents |= {name: getattr(moved, name) for name in ("before", "after", "gamma", "calls")}
                self._batch_norms = (sites, moved.norms, moved.momenta)
            for site, normalizer in self.seen.normalizers.items():
                sets = normalizer.sets
                if sets.variance.numel() > normalizers.MOST:
                    contents[("normalizer", site)] = normalizers.measure(_detached(sets))
                    continue
                self._sets[site], self._widths[site] = sets, sets.variance.shape[-1]
                for name in ("variance", "gamma", "running"):
                    if getattr(sets, name) is not None:
                        contents[(name, site)] = getattr(sets, name)
            contents |= {("activation", path): value for path, value in self.seen.activations.items()}
            for path, (out, inner) in self.seen.gradients.items():
                if out is not None and inner is not None:
                    contents[("backward", path)] = inner / out
            along = [size for pair in self.seen.gradients.values() for size in pair[::-1] if size is not None]
            if len(along) > 1:  # from the first place on the way to the last, whatever runs between
                contents["backward"] = along[0] / along[-1]
            contents |= {("dead", site): value for site, value in self.seen.dead.items()}
            contents |= {} if self.seen.domain is None else {"domain": self.seen.domain}
            contents |= {} if self.seen.spread is None else {"spread": self.seen.spread}
        self.seen = None
        self._parcel = Parcel(contents)
        self._sets = {site: replace(s, variance=None, gamma=None, running=None) for site, s in self._sets.items()}
        self._contents = {}

    def arrived(self) -> bool:
        """Say whether `record` would not wait."""
        sent = self._parcel is not None and self._parcel.arrived()
        return sent and all(taken.arrived() for taken in self._observed.values())

    def record(self) -> Record:
        """Return what was measured, as numbers."""
        assert self._parcel is not None, "it was never sent"
        found = self._parcel.open()
        self._parcel = None
        sizes = {what: dict(zip(self._names[what], found[what].tolist(), strict=True)) for what in self._names}
        self._known.careful = {(what, n) for what in sizes for n, size in sizes[what].items() if _extreme(size)}
        places = self.subject.places
        weights = self.subject.of("weight")
        own = [() if layer.name in self.lost else layer.parameters for layer in weights]
        large = [_joined(sizes.get("size", {}), names) for names in own]
        normal = self._normalizers(found)
        levels = {
            site: float(row[0]) for site, row in zip(places["normalizer"], normal, strict=True) if row is not None
        }
        bare = [_joined(sizes.get("size", {}), names[:1]) for names in own]  # a bias is no part of the map
        pairs = [self._norm(site, found, size, levels) for site, size in zip(places["weight"], bare, strict=True)]
        values: dict[str, dict[str, Numbers]] = {
            "weight": {
                "log10_norm": tuple(None if pair is None else pair[0] for pair in pairs),
                "log10_folded": tuple(None if pair is None else _known(pair[1]) for pair in pairs),
                "log10_size": tuple(large),
                "log10_gradient": tuple(_joined(sizes.get("gradient", {}), names) for names in own),
                **_columns(self._updates(found), updates.QUANTITIES),
            },
            "normalizer": _columns(normal, normalizers.QUANTITIES),
        }
        if self.tier is not Tier.ECONOMY:
            values["weight"]["log10_moved"] = tuple(_joined(sizes.get("moved", {}), names) for names in own)
            values["units"] = {"dead": tuple(_one(found, ("dead", site)) for site in places["units"])}
            values["block"] = {
                "log10_activation": tuple(_log(_one(found, ("activation", path))) for path in places["block"]),
                "log10_backward": tuple(_log(_one(found, ("backward", path))) for path in places["block"]),
            }
        if "domain" in found:
            values["operator"] = {"excess": tuple(found["domain"][1:].tolist())}
        return Record(
            step=self.step,
            seconds=self._seconds,
            tier=self.tier.value,
            loss=_one(found, "loss"),
            lr=tuple(
                float(found[("lr", i)][0]) if isinstance(rate, Tensor) else float(rate)
                for i, rate in enumerate(self._lr)
            ),
            values={
                kind: {quantity: n for quantity, n in columns.items() if any(v is not None for v in n)}
                for kind, columns in values.items()
            },
            total=self._total(values, sizes) | _found_totals(found),
            metrics=summary({name: taken.open() for name, taken in self._observed.items()}),
        )

    def _normalizers(self, found: Found) -> list[np.ndarray | None]:
        """Return the figures of every normalizer."""
        sent = [
            replace(
                sets,
                variance=found[("variance", site)].reshape(-1, self._widths[site]),
                gamma=found.get(("gamma", site)),
                running=found.get(("running", site)),
            )
            for site, sets in self._sets.items()
        ]
        rows = dict(zip(self._sets, normalizers.measure_all(sent), strict=True))
        if self._batch_norms is not None:
            sites, batch_norms, momenta = self._batch_norms
            measured = zip(sites, batch_norms.rows(found, momenta), found["calls"], strict=True)
            rows |= {site: row for site, row, calls in measured if calls == 1}
        return [rows[s] if s in rows else found.get(("normalizer", s)) for s in self.subject.places["normalizer"]]

    def _norm(
        self, site: Site, found: Found, size: float | None, levels: Mapping[Site, float]
    ) -> tuple[float, float] | None:
        """Return log10 of the norms of a layer; one that was not in turn has grown as its size has.

        Folded with a normalizer it has also shrunk as the typical deviation there has grown.

        Args:
            site: of the layer.
            found: what has arrived.
            size: log10 of the l2 norm of its weight, without the bias.
            levels: the mean of log10 of the variances of every normalizer that was seen.
        """
        level = levels.get(self.subject.feeds.get(site, site))
        if ("norm", site) in found:
            bare, folded = (*found[("norm", site)].tolist(), math.nan)[:2]
            folded = math.nan if level is None else folded
            self._known.last[site] = (bare, folded, size, level)
            return bare, folded
        if site not in self._known.last or site not in self._ran:
            return None
        bare, folded, size_then, level_then = self._known.last[site]
        grown = (
            0.0 if site in self.subject.made else _growth(size_then, size)
        )  # the size of what it is made of says little
        return bare + grown, folded + grown - _growth(level_then, level) / 2.0

    def _updates(self, found: Found) -> list[np.ndarray | None]:
        """Return the figures of the scale-invariant weights whose turn it was."""
        rates = [float(found[("rate", s)][0]) if isinstance(r, Tensor) else float(r) for s, r in self._rates.items()]
        numbers = [found[("update", site)] for site in self._rates]
        rows = updates.measure_all(numbers, lr=rates, powers=list(self._powers.values()))
        turned = dict(zip(self._rates, rows, strict=True))
        return [turned.get(site) for site in self.subject.places["weight"]]

    def _total(self, values: Mapping[str, Any], sizes: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
        """Return the sums over the network."""
        weight, normalizer = values["weight"], values["normalizer"]
        fed = {layer.normalizer for layer in self.subject.of("weight")}
        folded = [f if f is not None else n for f, n in zip(weight["log10_folded"], weight["log10_norm"], strict=True)]
        free = [
            gain
            for layer, gain in zip(self.subject.of("normalizer"), normalizer["log10_gain"], strict=True)
            if layer.name not in fed
        ]
        return {
            "log10_printed": summed(weight["log10_norm"]),
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


def _dense(gradient: Tensor) -> Tensor:
    """Return a gradient with the same norm: of a sparse one its entries."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _rate(group: Mapping[str, Any]) -> float | Tensor:
    """Return the learning rate of a parameter group, NaN if it has none; schedulers write to tensors in place."""
    lr = group.get("lr")
    return lr.detach().clone() if isinstance(lr, Tensor) else math.nan if lr is None else float(lr)


def _detached(sets: Sets) -> Sets:
    """Return sets whose scales carry no gradients, in the precision of the variances."""
    gamma, running = (None if t is None else t.detach().to(sets.variance) for t in (sets.gamma, sets.running))
    return replace(sets, gamma=gamma, running=running)


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


def _growth(then: float | None, now: float | None) -> float:
    """Return by how much a logarithm has grown; 0 where either is not known."""
    return 0.0 if then is None or now is None or not math.isfinite(now - then) else now - then


def _joined(sizes: Mapping[str, float], names: Sequence[str] | None) -> float | None:
    """Return log10 of the norm of several parameters together; of all without names."""
    known = list(sizes.values()) if names is None else [sizes[name] for name in names if name in sizes]
    return _log(math.hypot(*known)) if known else None


def _one(found: Found, key: Key) -> float | None:
    return float(found[key][0]) if key in found else None


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _log(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return value
    return math.log10(value) if value > 0 else -math.inf
