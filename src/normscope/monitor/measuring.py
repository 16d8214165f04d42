"""One measured step: what was seen of its forward, its gradients and its update, on the way to a `Record`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..diagnosis.examined import Site
from .composing import Key, Known, Sent, compose
from .distributed import l2_norms, whole
from .forward_record import ForwardRecord
from .observed import Taken
from .parameter_follower import Clearing
from .probes import normalizer_probe, updates
from .probes.histograms import histogram
from .probes.normalizer_probe import Sets
from .probes.weight_probe import Geometry
from .record import Record
from .schedule import Tier
from .time_share import TimeShare
from .transfer import Parcel
from .watched_layers import Subject, effective_power

BEGINNING = (6, 60)
"""Measured steps, and steps, at the start: all norms are measured in them, for weights move most at first."""


class Measurement:
    """Collects small tensors of one step; nothing is read from the device before `record`.

    Args:
        step: steps the optimizer has taken before.
        tier: how much is measured.
        subject: what is watched.
        optimizer: of the run.

    Attributes:
        sent: what the host keeps of the step.
    """

    def __init__(self, step: int, tier: Tier, subject: Subject, optimizer: Optimizer) -> None:
        self.step, self.tier, self.subject, self.optimizer = step, tier, subject, optimizer
        self.sent = Sent(step=step, tier=tier, subject=subject)
        self.seen: ForwardRecord | None = None
        self.clearing: Clearing | None = None
        self.losses: list[Tensor] = []
        self._used: set[int] = set()
        self._contents: dict[Key, Tensor] = {}
        self._parameters: Mapping[str, nn.Parameter] = {}
        self._rows: dict[Site, Tensor] = {}
        self._copies: dict[str, Tensor] = {}
        self._budget = TimeShare(None)
        self._parcel: Parcel | None = None

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
    def before(self, parameters: Mapping[str, nn.Parameter], known: Known, budget: TimeShare) -> None:
        """Measure gradients and weights in front of the optimizer's step.

        Args:
            parameters: of the model.
            known: what earlier steps found of its layers.
            budget: of what can wait its turn.
        """
        self.sent.known, self._budget, self._parameters = known, budget, parameters
        if self.clearing is not None:
            self.clearing.close()
        weights = self.subject.of("weight")
        self.sent.lost = [layer.name for layer in weights if any(name not in parameters for name in layer.parameters)]
        held = {("size", name): p for name, p in parameters.items() if not is_lazy(p)}
        graded = {("gradient", name): _dense(p.grad) for (_, name), p in held.items() if p.grad is not None}
        found = l2_norms({**held, **graded}, careful=known.careful)  # all in a few kernels
        for what, part in (("size", held), ("gradient", graded)):
            if part:
                self.sent.names[what] = [name for _, name in part]
                self._contents[what] = torch.stack([found[key] for key in part])
        scale = getattr(self.optimizer, "grad_scale", None)  # a GradScaler that leaves unscaling to the optimizer
        if scale is not None and graded:
            self._contents["gradient"] = self._contents["gradient"] / scale.to(self._contents["gradient"])
        self.sent.lr = [_rate(group) for group in self.optimizer.param_groups]
        rows = [site for site, (names, *_) in self.subject.rows.items() if all(name in parameters for name in names)]
        for site in known.turns.affordable(rows, budget):
            with budget.spending(("update", site)):
                self._rows[site] = self._grouped(site).clone()
        if self.tier is not Tier.ECONOMY:
            self._copies = {name: p.detach().clone() for (_, name), p in held.items() if p.requires_grad}
        if self.tier is Tier.FULL:
            for index, layer in enumerate(weights):
                weight = (
                    None if layer.name in self.sent.lost or not layer.parameters else parameters[layer.parameters[0]]
                )
                if weight is not None and not is_lazy(weight):
                    self._contents[("weight spread", index)] = histogram(whole(weight))
                    if weight.grad is not None:
                        self._contents[("gradient spread", index)] = histogram(whole(_dense(weight.grad)))
        if self.seen is not None:
            self._weights(self.seen)

    def _grouped(self, site: Site) -> Tensor:
        names, groups, axis = self.subject.rows[site]
        return updates.grouped([whole(self._parameters[name]) for name in names], groups, axis)

    def _weights(self, seen: ForwardRecord) -> None:
        """Measure operator norms."""

        def layer(site: Site) -> tuple[Geometry, Tensor, Sets | None]:
            weight, behind = seen.weights[site], self.subject.feeds.get(site)
            tensor = weight.made if weight.made is not None else whole(self._parameters[weight.parameters[0]])
            return weight.geometry, tensor, None if behind is None else seen.sets(behind)

        places = [site for site in self.subject.places["weight"] if site in seen.weights]  # others came later
        known = self.sent.known
        last, early = known.last, known.count < BEGINNING[0] and self.step < BEGINNING[1]
        due = None if early else {site for site in places if site in last and last[site].is_due(self.step)}
        found = known.norms.measure(places, layer, tier=self.tier, budget=self._budget, due=due)
        known.count += 1
        self._contents |= {("norm", site): value for site, value in found.items()}
        self.sent.ran = set(seen.weights)
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
            self.sent.rates[site] = math.nan if group is None else _rate(group)
            self.sent.powers[site] = None if group is None else effective_power(self.optimizer, group)
        if self._copies:
            far = l2_norms({name: parameters[name].detach() - copy for name, copy in self._copies.items()})
            self.sent.names["moved"], self._contents["moved"] = list(far), torch.stack(list(far.values()))
        self._rows, self._copies, self._parameters = {}, {}, {}

    def send(self, seconds: float, observed: Mapping[str, Taken]) -> None:
        """Send everything to the host, with what the loop observed since the last record."""
        self.sent.seconds, self.sent.observed = seconds, observed
        contents = self._contents
        left = None if self.clearing is None else self.clearing.close()
        contents |= {} if left is None else {"left": left}
        if self.losses:
            chosen = [loss for index, loss in enumerate(self.losses) if index in self._used] or self.losses
            alike = [loss.to(chosen[0].device, torch.float64) for loss in chosen]
            contents["loss"] = torch.cat(alike).mean(0, keepdim=True)
        contents |= {("lr", i): rate for i, rate in enumerate(self.sent.lr) if isinstance(rate, Tensor)}
        contents |= {("rate", site): rate for site, rate in self.sent.rates.items() if isinstance(rate, Tensor)}
        if self.seen is not None:
            if self.seen.batch_norms is not None:
                sites, moved = self.seen.batch_norms
                contents |= {name: getattr(moved, name) for name in ("before", "after", "gamma", "calls")}
                self.sent.batch_norms = (sites, moved.norms, moved.momenta)
            for site, normalizer in self.seen.normalizers.items():
                sets = normalizer.sets
                if sets.variance.numel() > normalizer_probe.MOST:
                    contents[("normalizer", site)] = normalizer_probe.measure(_detached(sets))
                    continue
                self.sent.sets[site], self.sent.widths[site] = sets, sets.variance.shape[-1]
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
        self.sent.sets = {
            site: replace(s, variance=None, gamma=None, running=None) for site, s in self.sent.sets.items()
        }
        self._contents = {}

    def arrived(self) -> bool:
        """Say whether `record` would not wait."""
        here = self._parcel is not None and self._parcel.arrived()
        return here and all(taken.arrived() for taken in self.sent.observed.values())

    def record(self) -> Record:
        """Return what was measured, as numbers."""
        assert self._parcel is not None, "it was never sent"
        found = self._parcel.open()
        self._parcel = None
        return compose(self.sent, found)


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
