"""One measured step on the device: what is taken of its forward, its gradients and its update, and sent to the host."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ...core.whole_weights import gather_whole, is_sharded
from ...listening.calls import NormalizerSeen, Site
from ..facts.loss_graph import LossReading, trace_loss, without_factor
from .composing import Key, LayerMemory, Observed, StepInTransit, StepLosses, Transfer
from .distributed import l2_norms
from .forward_listening import ForwardRecord
from .parameter_follower import Clearing
from .probes import normalizer_probe, updates
from .probes.batches import measure_codes, measure_outputs
from .schedule import Tier, TimeBudget
from .watched_layers import Subject, effective_power

EARLY_RECORDS, ACTIVATION_TURNS = 6, 5
"""Behind the first records, the activations on the way to a loss are looked at in one of so many records."""
NORMALIZER_TENSORS = ("variance", "gamma", "running_variance")
"""What a normalizer showed that is sent to the host."""


class Measurement:
    """Collects small tensors of one step; nothing is read from the device before the record is made.

    It has four phases: the forward (`forward`, `clearing`, losses), `before` and `after` the optimizer's step, and
    `send`. Should something fail in one of them, what was measured before it is kept.

    Args:
        step: steps the optimizer has taken before.
        tier: how much is measured.
        subject: what is watched.
        optimizer: the optimizer of the run.

    Attributes:
        forward: what the forward showed.
        clearing: whether gradients are cleared in front of the backward, where that is listened to.
        reading: what the first loss of the step was made of, where that is seen.
        next_batch: the marks of the batch of the very next step, where its forward has begun.
        halves: while the second of several backwards runs, the parameters and the gradients of the first.
    """

    def __init__(self, step: int, tier: Tier, subject: Subject, optimizer: Optimizer) -> None:
        self.step, self.tier, self.subject, self.optimizer = step, tier, subject, optimizer
        self.forward: ForwardRecord | None = None
        self.clearing: Clearing | None = None
        self.reading: LossReading | None = None
        self.next_batch: Tensor | None = None
        self._losses = StepLosses()  # what the loop observed
        self._heard = StepLosses()  # what its backwards began with
        self._kept = StepInTransit(step=step, tier=tier, subject=subject)
        self._parameters: Mapping[str, nn.Parameter] | None = None  # None before the optimizer's step
        self._contents: dict[Key, Tensor] = {}
        self._sites: list[Site] = []  # scale-invariant weights whose turn it is
        self._rows: updates.StepRows | None = None  # as they were before the step
        self._copies: dict[str, Tensor] = {}  # parameters before it
        self._layer_names: dict[int, str] = {}  # weight layers by the ids of their parameters
        self._outputs: Tensor | None = None  # how far those of the first forward differ
        self._codes: Tensor | None = None  # how far those do that come in a pair
        self._outputs_taken = False
        self._begun: list[int] = []  # how many forwards there were in front of each backward
        self.halves: list[tuple[nn.Parameter, Tensor]] | None = None
        self._products: Tensor | None = None  # of the gradients of both halves: with each other, each with itself

    @property
    def abandoned(self) -> bool:
        """Whether the batch of the forward that was seen was left out: it has a loss but left no gradient."""
        groups = self.optimizer.param_groups
        return self._losses.unused and all(p.grad is None for g in groups for p in g["params"])

    @property
    def lost(self) -> list[str]:
        """The layers whose parameters have been replaced since the first forward."""
        return self._kept.lost

    def observe(self, loss: Tensor | float, memory: LayerMemory) -> None:
        """Add the loss of a batch; not once the optimizer has its gradients and there is one."""
        if not (self._losses and "size" in self._contents):
            self._losses.add(loss)
            memory.observed = True
            self._read(loss, memory)

    def hear(self, loss: Tensor, memory: LayerMemory, *, alone: bool) -> Tensor:
        """Add a loss whose backward begins, which counts where the loop observes none; return it without its scale.

        Args:
            loss: the loss.
            memory: what earlier steps found.
            alone: whether no other optimizer steps; else the last loss in front of the step is the one that counts.
        """
        if not alone:
            self._heard, self.reading = StepLosses(), None
        self._read(loss, memory)
        value = without_factor(loss)
        if value is not loss and self.reading is not None and self.reading.figures is not None:
            own = self.reading.figures[0].to(value)  # the scale of a GradScaler may make it infinite
            value = torch.where(value.isfinite(), value, own)
        self._heard.add(value.detach())
        return value

    def _read(self, loss: Tensor | float, memory: LayerMemory) -> None:
        """Look at what a loss is made of, once in a step."""
        if self.reading is None:
            due = memory.readings < EARLY_RECORDS or memory.readings % ACTIVATION_TURNS == 0
            with contextlib.suppress(Exception):  # its backward is over, or others pack what it keeps
                self.reading = trace_loss(loss, activations=due)
                memory.readings += self.reading is not None

    def take_outputs(self, made: Any) -> None:
        """Measure how far the first outputs in train mode differ from sample to sample."""
        if not self._outputs_taken and torch.is_grad_enabled():
            self._outputs_taken, self._outputs, self._codes = True, measure_outputs(made), measure_codes(made)

    # ---- backwards whose gradients accumulate: two parts of one batch

    @torch.no_grad()
    def begin_backward(self, forwards: int) -> None:
        """Keep the gradients of the first part of a batch, in front of the backward of the second."""
        self._begun.append(forwards)
        if len(self._begun) == 2 and self._begun[1] > self._begun[0]:
            trained = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
            if trained and not is_sharded(trained) and not any(p.grad.is_sparse or p.is_complex() for p in trained):
                self.halves = [(p, p.grad.clone()) for p in trained]

    @torch.no_grad()
    def end_backward(self) -> None:
        """Compare the gradients of both parts, behind the backward of the second."""
        pairs, self.halves = self.halves or [], None
        rows = []
        for parameter, first in pairs:
            if parameter.grad is not None:
                one, other = first.flatten().float(), (parameter.grad - first).flatten().float()
                rows.append(torch.stack([one @ other, one @ one, other @ other]).to(pairs[0][1].device))
        self._products = torch.stack(rows).sum(0) if rows else None

    # ---- in front of the optimizer's step

    @torch.no_grad()
    def before(self, parameters: Mapping[str, nn.Parameter], memory: LayerMemory, budget: TimeBudget) -> None:
        """Measure gradients and weights in front of the optimizer's step.

        Args:
            parameters: the parameters of the model.
            memory: what earlier steps found of its layers.
            budget: the time for what can wait its turn.
        """
        if self.clearing is not None:
            self.clearing.close()
        self._kept = StepInTransit(step=self.step, tier=self.tier, subject=self.subject, memory=memory)
        self._kept.left_out = budget.left_out
        self._parameters, self._budget = parameters, budget
        self._contents, self._sites, self._rows, self._copies = {}, [], None, {}  # a step that raised is taken again
        weights = self.subject.of("weight")
        self._kept.lost = [layer.name for layer in weights if any(name not in parameters for name in layer.parameters)]
        sized = {name: p for name, p in parameters.items() if not is_lazy(p)}
        self._measure_sizes(sized)
        named = ((layer.name, parameters.get(name)) for layer in weights for name in layer.parameters)
        self._layer_names = {id(p): name for name, p in named if p is not None}
        self._kept.lr = [_rate_of(group) for group in self.optimizer.param_groups]
        self._kept.memory.sample.before(self._trained(sized))
        self._keep_rows(parameters)
        if self.tier is not Tier.ECONOMY:
            self._copies = {name: p.detach().clone() for name, p in sized.items() if p.requires_grad}
        if self.tier is Tier.FULL:
            self._measure_histograms(parameters)
        if self.forward is not None:
            self._measure_norms(self.forward, parameters)

    def _trained(self, parameters: Mapping[str, nn.Parameter]) -> list[nn.Parameter]:
        """Return the parameters that the optimizer is to train, in one piece each."""
        trained = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        chosen = [p for p in parameters.values() if id(p) in trained and p.requires_grad and not p.is_complex()]
        return [] if is_sharded(chosen) else chosen

    def _measure_sizes(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Measure the norms of all parameters and gradients, in a few kernels."""
        sizes = {("size", name): p for name, p in parameters.items()}
        graded = {("gradient", name): _dense(p.grad) for name, p in parameters.items() if p.grad is not None}
        norms = l2_norms({**sizes, **graded}, careful=self._kept.memory.careful)
        together = torch.stack(list(norms.values())) if norms else torch.zeros(0)
        numbers = dict(zip(("size", "gradient"), together.split([len(sizes), len(graded)]), strict=True))
        for what, part in (("size", list(sizes)), ("gradient", list(graded))):
            if part:
                self._kept.names[what], self._contents[what] = [name for _, name in part], numbers[what]
        scale = getattr(self.optimizer, "grad_scale", None)  # a GradScaler that leaves unscaling to the optimizer
        if scale is not None and graded:
            self._contents["gradient"] = self._contents["gradient"] / scale.to(self._contents["gradient"])

    def _keep_rows(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Keep the scale-invariant weights whose turn it is, as far as the budget reaches."""
        rows = self.subject.rows
        places = [site for site, (names, *_) in rows.items() if all(name in parameters for name in names)]
        turns, count = self._kept.memory.turns, len(places)
        while count and not self._budget.affords("update", count):
            count //= 2
        if not count:
            return
        with self._budget.watching("update"):
            self._sites = turns.order(places)[:count] if count < len(places) else places
            for site in self._sites:
                turns.serve(site)
            self._rows = updates.StepRows(self._rows_now(parameters))

    def _rows_now(self, parameters: Mapping[str, nn.Parameter]) -> dict[Site, Tensor]:
        """Return the scale-invariant weights as they are now, one row per group that has a scale of its own."""
        rows = {}
        for site in self._sites:
            names, groups, axis = self.subject.rows[site]
            rows[site] = updates.group_rows([gather_whole(parameters[name]) for name in names], groups, axis)
        return rows

    def _measure_histograms(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Measure the histograms of weights and gradients."""
        for index, layer in enumerate(self.subject.of("weight")):
            if layer.name in self.lost or not layer.parameters:
                continue
            weight = parameters[layer.parameters[0]]
            if is_lazy(weight):
                continue
            self._contents[("weight spread", index)] = updates.histogram(gather_whole(weight))
            if weight.grad is not None:
                self._contents[("gradient spread", index)] = updates.histogram(gather_whole(_dense(weight.grad)))

    def _measure_norms(self, forward: ForwardRecord, parameters: Mapping[str, nn.Parameter]) -> None:
        """Measure operator norms."""

        def normalizer(site: Site) -> NormalizerSeen | None:
            behind = self.subject.feeds.get(site)
            return None if behind is None else forward.normalizer(behind)

        memory, layers = self._kept.memory, {}
        for site in self.subject.places["weight"]:
            weight = forward.weights.get(site)  # None for layers that did not run this time
            if weight is not None and (weight.made is not None or weight.parameters[0] in parameters):
                tensor = weight.made if weight.made is not None else parameters[weight.parameters[0]]
                layers[site] = weight.geometry, tensor
        due = {site for site in layers if site in memory.last and memory.last[site].is_due(self.step)}
        norms = memory.norms.measure(layers, normalizer, step=self.step, tier=self.tier, budget=self._budget, due=due)
        self._kept.readings = [reading for reading, _ in norms]
        self._contents |= {("norm", index): numbers for index, (_, numbers) in enumerate(norms)}
        self._kept.begun = {site for site, step in memory.norms.begun.items() if step == self.step}
        self._kept.ran = set(forward.weights)
        forward.weights = {}  # some weights were made for this forward alone

    # ---- behind it

    @torch.no_grad()
    def after(self) -> None:
        """Measure what the optimizer's step did, and keep no parameter any longer."""
        parameters = self._parameters
        if parameters is None:
            return
        sampled = self._kept.memory.sample.after(self._trained({n: p for n, p in parameters.items() if not is_lazy(p)}))
        lost = None if sampled is None else self._kept.memory.sample.share_lost()
        self._contents |= {} if sampled is None else {"step": sampled}
        self._contents |= {} if lost is None else {"lost": lost}
        groups = {id(p): group for group in self.optimizer.param_groups for p in group["params"]}
        if self._rows is not None:
            with self._budget.watching("update"):
                for index, (norms, products) in enumerate(self._rows.split(self._rows_now(parameters))):
                    self._contents |= {("turned", index): norms, ("along", index): products}
                self._kept.stacks = self._rows.stacks
            self._budget.end_task("update", len(self._sites))
        for site in self._sites:
            group = groups.get(id(parameters[self.subject.rows[site][0][0]]))
            self._kept.rates[site] = math.nan if group is None else _rate_of(group)
            self._kept.powers[site] = None if group is None else effective_power(self.optimizer, group)
        if self._copies:
            moves = l2_norms({name: parameters[name].detach() - copy for name, copy in self._copies.items()})
            self._kept.names["moved"], self._contents["moved"] = list(moves), torch.stack(list(moves.values()))
        self._parameters, self._sites, self._rows, self._copies = {}, [], None, {}

    def send(self, seconds: float, observed: Mapping[str, Observed]) -> StepInTransit:
        """Send everything to the host, with what the loop observed since the last record."""
        kept, contents, forward = self._kept, self._contents, self.forward or ForwardRecord()
        left = None if self.clearing is None else self.clearing.close()
        contents |= {} if left is None else {"left": left}
        if self.reading is not None and self.reading.figures is not None:
            contents["reading"] = self.reading.figures
        for what, figure, near in [] if self.reading is None else self.reading.activations:
            name = next((self._layer_names[one] for one in near if one in self._layer_names), None)
            contents |= {} if name is None else {(what, name): figure}
        contents |= {} if self.next_batch is None else {"next batch": self.next_batch}
        contents |= {} if self._outputs is None else {"outputs": self._outputs}
        contents |= {} if self._codes is None else {"codes": self._codes}
        contents |= {} if self._products is None else {"halves": self._products}
        losses = self._losses if self._losses or kept.memory.observed else self._heard
        contents |= {"loss": losses.mean()} if losses else {}
        contents |= {("lr", i): rate for i, rate in enumerate(kept.lr) if isinstance(rate, Tensor)}
        contents |= {("rate", site): rate for site, rate in kept.rates.items() if isinstance(rate, Tensor)}
        contents |= _normalizer_contents(forward) | _block_contents(forward)
        normalizers = forward.normalizers.items()
        kept.normalizers = {site: one for site, one in normalizers if not _is_large(one)}
        if forward.batch_norms is not None:
            sites, moved = forward.batch_norms
            kept.batch_norms = (sites, moved.norms, moved.momenta)
        kept.seconds, kept.observed = seconds, observed
        for figures in observed.values():
            figures.send()
        kept.transfer = Transfer(contents)
        return kept


def _is_large(normalizer: NormalizerSeen) -> bool:
    """Return whether the figures of a normalizer are taken on the device: its variances are too many to send."""
    return normalizer.variance.numel() > normalizer_probe.MAX_SENT_VARIANCES


def _normalizer_contents(forward: ForwardRecord) -> dict[Key, Tensor]:
    """Return what is sent of the normalizers of a forward."""
    contents: dict[Key, Tensor] = {}
    if forward.batch_norms is not None:
        _, moved = forward.batch_norms
        contents |= {name: getattr(moved, name) for name in ("before", "after", "gamma", "calls")}
    large: dict[Key, list[Site]] = {}
    for site, normalizer in forward.normalizers.items():
        if _is_large(normalizer):
            large.setdefault(normalizer_probe.likeness(normalizer), []).append(site)
            continue
        values: dict[str, Any] = {name: getattr(normalizer, name) for name in NORMALIZER_TENSORS}
        contents |= {(name, site): value for name, value in values.items() if value is not None}
    for sites in large.values():
        rows = normalizer_probe.measure([forward.normalizers[site] for site in sites])
        contents |= {("normalizer", site): row for site, row in zip(sites, rows.unbind(), strict=True)}
    return contents


def _block_contents(forward: ForwardRecord) -> dict[Key, Tensor]:
    """Return what is sent of the blocks, the units and the batch of a forward."""
    contents: dict[Key, Tensor] = {("activation", path): value for path, value in forward.activations.items()}
    for path, (out, inner) in forward.gradients.items():
        if out is not None and inner is not None:
            contents[("backward", path)] = inner / out
    contents |= {("dead", site): value for site, value in forward.dead.items()}
    contents |= {} if forward.domain is None else {"domain": forward.domain}
    contents |= {} if forward.spread is None else {"spread": forward.spread}
    return contents


def _dense(gradient: Tensor) -> Tensor:
    """Return a tensor with the norm of a gradient: the entries of a sparse one."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _rate_of(group: Mapping[str, Any]) -> float | Tensor:
    """Return the learning rate of a parameter group, NaN if it has none; schedulers write to tensors in place."""
    lr = group.get("lr")
    return lr.detach().clone() if isinstance(lr, Tensor) else math.nan if lr is None else float(lr)
