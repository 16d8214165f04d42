"""What is measured in front of an optimizer's step, and what is measured behind it: both as small tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..listening.calls import Site
from ..listening.layer_geometry import LayerGeometry
from ..listening.normalizer_seen import NormalizerSeen
from .composing import Key, Known
from .distributed import l2_norms, whole
from .forward_record import ForwardRecord
from .probes import updates
from .probes.histograms import histogram
from .schedule import Tier
from .time_share import TimeShare
from .watched_layers import Subject, effective_power

BEGINNING = (6, 60)
"""How many measured steps, and how many steps, are the start: all norms are measured there, for weights move most."""


@dataclass(slots=True, kw_only=True)
class BeforeStep:
    """Gradients and weights in front of the optimizer's step.

    Attributes:
        step, tier, subject: as for `Measurement`.
        parameters: the parameters of the model.
        known: what earlier steps found of its layers.
        budget: the time for what can wait its turn.
        lost: layers whose parameters have been replaced since the first forward.
        lr: the learning rate of every parameter group.
        ran: weight layers that the forward was seen to run.
        names: the names of the parameters, in the order of their sizes and gradients.
        contents: what was measured, on the device.
        rows: scale-invariant weights whose update is measured, as they are before it.
        copies: parameters whose move is measured, as they are before it.
    """

    step: int
    tier: Tier
    subject: Subject
    parameters: Mapping[str, nn.Parameter]
    known: Known
    budget: TimeShare
    lost: list[str] = field(default_factory=list)
    lr: list[float | Tensor] = field(default_factory=list)
    ran: set[Site] = field(default_factory=set)
    names: dict[str, list[str]] = field(default_factory=dict)
    contents: dict[Key, Tensor] = field(default_factory=dict)
    rows: dict[Site, Tensor] = field(default_factory=dict)
    copies: dict[str, Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def measure(self, optimizer: Optimizer, seen: ForwardRecord | None) -> None:
        """Measure everything that the tier asks for; should something fail, what came before it is kept."""
        weights, parameters = self.subject.of("weight"), self.parameters
        self.lost = [layer.name for layer in weights if any(name not in parameters for name in layer.parameters)]
        held = {name: p for name, p in parameters.items() if not is_lazy(p)}
        self._measure_sizes(held, optimizer)
        self.lr = [_rate(group) for group in optimizer.param_groups]
        self._keep_rows()
        if self.tier is not Tier.ECONOMY:
            self.copies = {name: p.detach().clone() for name, p in held.items() if p.requires_grad}
        if self.tier is Tier.FULL:
            self._measure_spreads()
        if seen is not None:
            self._measure_norms(seen)

    def _measure_sizes(self, held: Mapping[str, nn.Parameter], optimizer: Optimizer) -> None:
        """Measure the norms of all parameters and gradients, in a few kernels."""
        sizes = {("size", name): p for name, p in held.items()}
        graded = {("gradient", name): _dense(p.grad) for name, p in held.items() if p.grad is not None}
        found = l2_norms({**sizes, **graded}, careful=self.known.careful)
        for what, part in (("size", sizes), ("gradient", graded)):
            if part:
                self.names[what] = [name for _, name in part]
                self.contents[what] = torch.stack([found[key] for key in part])
        scale = getattr(optimizer, "grad_scale", None)  # a GradScaler that leaves unscaling to the optimizer
        if scale is not None and graded:
            self.contents["gradient"] = self.contents["gradient"] / scale.to(self.contents["gradient"])

    def _keep_rows(self) -> None:
        """Keep the scale-invariant weights whose turn it is, as far as the budget reaches."""
        rows = self.subject.rows
        places = [site for site, (names, *_) in rows.items() if all(name in self.parameters for name in names)]
        for site in self.known.turns.affordable(places, self.budget):
            with self.budget.spending(("update", site)):
                self.rows[site] = self.grouped(site).clone()

    def grouped(self, site: Site) -> Tensor:
        """Return a scale-invariant weight as it is now, one row per group that has a scale of its own."""
        names, groups, axis = self.subject.rows[site]
        return updates.grouped([whole(self.parameters[name]) for name in names], groups, axis)

    def _measure_spreads(self) -> None:
        """Measure the histograms of weights and gradients."""
        for index, layer in enumerate(self.subject.of("weight")):
            if layer.name in self.lost or not layer.parameters:
                continue
            weight = self.parameters[layer.parameters[0]]
            if is_lazy(weight):
                continue
            self.contents[("weight spread", index)] = histogram(whole(weight))
            if weight.grad is not None:
                self.contents[("gradient spread", index)] = histogram(whole(_dense(weight.grad)))

    def _measure_norms(self, seen: ForwardRecord) -> None:
        """Measure operator norms."""

        def layer(site: Site) -> tuple[LayerGeometry, Tensor, NormalizerSeen | None]:
            weight, behind = seen.weights[site], self.subject.feeds.get(site)
            tensor = weight.made if weight.made is not None else whole(self.parameters[weight.parameters[0]])
            return weight.geometry, tensor, None if behind is None else seen.normalizer(behind)

        places = [site for site in self.subject.places["weight"] if site in seen.weights]  # other layers came later
        last, early = self.known.last, self.known.count < BEGINNING[0] and self.step < BEGINNING[1]
        due = None if early else {site for site in places if site in last and last[site].is_due(self.step)}
        found = self.known.norms.measure(places, layer, tier=self.tier, budget=self.budget, due=due)
        self.known.count += 1
        self.contents |= {("norm", site): value for site, value in found.items()}
        self.ran = set(seen.weights)
        seen.weights = {}  # some weights were made for this forward alone


@dataclass(slots=True)
class AfterStep:
    """What the optimizer's step did.

    Attributes:
        rates: the learning rate of every scale-invariant weight whose update is measured.
        powers: the power of the norm in the effective learning rate of each of them.
        names: the names of the parameters, in the order of their moves.
        contents: what was measured, on the device.
    """

    rates: dict[Site, float | Tensor] = field(default_factory=dict)
    powers: dict[Site, int | None] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    contents: dict[Key, Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def measure(self, before: BeforeStep, optimizer: Optimizer) -> None:
        """Compare what was kept in front of the step with what is there now."""
        parameters = before.parameters
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        for site, kept in before.rows.items():
            with before.budget.spending(("update", site), more=True):
                moved = before.grouped(site) - kept
                self.contents[("update", site)] = updates.parts(kept, moved)
            group = groups.get(id(parameters[before.subject.rows[site][0][0]]))
            self.rates[site] = math.nan if group is None else _rate(group)
            self.powers[site] = None if group is None else effective_power(optimizer, group)
        if before.copies:
            far = l2_norms({name: parameters[name].detach() - copy for name, copy in before.copies.items()})
            self.names["moved"], self.contents["moved"] = list(far), torch.stack(list(far.values()))


def _dense(gradient: Tensor) -> Tensor:
    """Return a tensor with the norm of a gradient: the entries of a sparse one."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _rate(group: Mapping[str, Any]) -> float | Tensor:
    """Return the learning rate of a parameter group, NaN if it has none; schedulers write to tensors in place."""
    lr = group.get("lr")
    return lr.detach().clone() if isinstance(lr, Tensor) else math.nan if lr is None else float(lr)
