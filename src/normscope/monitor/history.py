"""What is known of a run so far: its records, the curves that alarms compare, and the alarms that were raised.

All of it is bounded, however long the run is.
"""

from __future__ import annotations

import math
import os
import string
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..core.finding import Finding, Severity, figure, figures, percent, power
from ..diagnosis.verdict import place
from ..report.words import pluralise
from .courses import FIRST, LASTING_STEPS, NO_COURSES, PLAIN_STEPS, Course, Courses, Spikes
from .locating import Broken
from .log import LogReading
from .probes.loss_probe import LossReading
from .record import KINDS, Kind, LayerRecord, Record

MAX_RECORDS, RECENT_RECORDS = 1000, 300
"""Records that are kept at most, and the latest of them, which are never left out; the log has all."""
GUESSING_SHARE = 0.95
"""The loss over that of a constant output: above it, for several batches, nothing has been learned of the inputs."""
UNCLEAR_SHARE = 0.8
"""The loss over that of a constant output, below which it is clearly better in every batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One way in which a run goes wrong, in words.

    What stands in braces is filled in where the alarm is raised: `{where}`, its numbers, and other words. Behind a
    colon stands how a number is written: `power` (of its log10), `percent`, `figure`, or `counted` with a noun.

    Attributes:
        code: its code; several alarms may share one.
        seen: what was measured, in a sentence.
        why: why it matters.
        advice: what to do.
        severity: how much it matters.

    Example:
        >>> growth = Alarm(code="norm-growth", seen="{where} grew to {log10_norm:power}.", why="...", advice="...")
        >>> growth.at(20, "fc", log10_norm=9.0).seen
        '`fc` grew to 1e+09.'
    """

    code: str
    seen: str
    why: str
    advice: str
    severity: Severity = Severity.WARNING

    def at(self, step: int, where: str = "", words: Mapping[str, Any] | None = None, **numbers: Any) -> Finding:
        """Return the alarm as a finding.

        Args:
            step: the step at which it is raised.
            where: the layer, if it is one.
            words: what the braces stand for besides its numbers.
            **numbers: the figures by name; NaN was not measured.
        """
        fillings = {"where": place(where), **numbers, **(words or {})}
        seen, why, advice = (WORDS.vformat(text, (), fillings) for text in (self.seen, self.why, self.advice))
        return Finding(
            code=self.code,
            severity=self.severity,
            where=where,
            seen=seen,
            why=why,
            advice=advice,
            numbers=figures(**numbers),
            step=step,
        )


class _Words(string.Formatter):
    """Fills in the words of alarms."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("counted "):
            return pluralise(value, format_spec.removeprefix("counted "))
        write = {"power": power, "percent": percent, "figure": figure}.get(format_spec)
        return format(value, format_spec) if write is None else write(value)


WORDS = _Words()


def others_likewise(count: int, noun: str) -> str:
    """Say that all but one of some layers are like the one that is named; nothing where there is no other."""
    return f" {pluralise(count - 1, noun)} likewise." if count > 1 else ""


def losses_beside_constant(records: Iterable[Record]) -> list[tuple[Record, float, float]]:
    """Return the records with the loss of their outputs and that of the best constant output, where both are known."""
    return [
        (record, loss, constant)
        for record in records
        if (loss := record.total.get("outputs_own")) is not None and (constant := record.total.get("outputs_constant"))
    ]


class History:
    """What is known of a run, record by record: a bounded number of figures, however long it is.

    Attributes:
        layers: what is watched.
        records: in the order of their steps; of a long run the first, the latest, and a selection of those between.
        findings: raised so far.
        peak_lr: the largest learning rate so far.
        spikes: the spikes of the loss.
        standing: what is known of the parameters without measuring.
        validations: what `log_metrics` was given, by name pairs (step, value); of many the latest.
        least_loss: the least mean loss of a record so far and its step.
        broken: where the numbers of a forward broke, if that was seen.
        looked_up: what several alarms read off the last record, by name.
    """

    def __init__(self) -> None:
        self.layers: tuple[LayerRecord, ...] = ()
        self.records: list[Record] = []
        self.findings: list[Finding] = []
        self.broken: Broken | None = None
        self.standing = ParameterFollower()
        self.looked_up: dict[str, Any] = {}
        self.validations: dict[str, deque[tuple[int, float]]] = {}
        self.least_loss: tuple[float, int] | None = None
        self._ended = 0
        self._kinds: dict[Kind, tuple[LayerRecord, ...]] = {}
        self.peak_lr, self.spikes = 0.0, Spikes()
        self._courses: defaultdict[tuple[str, str], Courses] = defaultdict(Courses)
        self._raised: dict[tuple[str, str], Severity] = {}

    @property
    def step(self) -> int:
        """The step of the last record."""
        return self.records[-1].step

    @property
    def next_step(self) -> int:
        """The step a resumed run goes on from."""
        return max(self._ended, self.step + 1 if self.records else 0)

    @property
    def first_loss(self) -> float | None:
        """The median loss of the first records, as far as these lie within a few steps; None where none is known."""
        first = [r.loss for r in self.records[:FIRST] if r.step - self.records[0].step <= 2 * PLAIN_STEPS]
        losses = [loss for loss in first if loss is not None and math.isfinite(loss)]
        return median(losses) if losses else None

    def over_constant(self) -> list[float]:
        """Return the loss of outputs over that of the best constant in the last records, where both are known."""
        return [loss / constant for _, loss, constant in losses_beside_constant(self.repeated())]

    @property
    def beats_constant(self) -> bool:
        """Whether of late the outputs are clearly better than a constant."""
        ratios = self.over_constant()
        return bool(ratios) and max(ratios) < UNCLEAR_SHARE

    @property
    def is_unlearned(self) -> bool:
        """Whether of late the outputs are no better than a constant or, where that is not known, the loss than it was.

        In single batches either is off by some per cent.
        """
        ratios = self.over_constant()
        if not ratios and self.first_loss is not None:
            means = [r.metrics.get("loss_mean", r.loss) for r in self.repeated()]
            ratios = [value / self.first_loss for value in means if value is not None and self.first_loss > 0.0]
        return bool(ratios) and median(ratios) >= GUESSING_SHARE

    def of(self, kind: Kind) -> tuple[LayerRecord, ...]:
        """Return the layers of a kind, in the order of a record's numbers."""
        return self._kinds.get(kind, ())

    def repeated(self, count: int = 3) -> list[Record]:
        """Return the last records that show what chance does not: so many, or two that are far apart; or none."""
        if len(self.records) > 1 and self.step - self.records[-2].step >= LASTING_STEPS:
            return self.records[-2:]
        return self.records[-count:] if len(self.records) >= count else []

    def having(self, kind: Kind, quantity: str) -> Sequence[Record]:
        """Return the records that are kept and in which a quantity was measured, in the order of their steps."""
        return [record for record in self.records if record.of(kind, quantity)]

    def course(self, kind: Kind, quantity: str, index: int) -> Course:
        """Return the figures of a quantity of one layer, in the order of a record's numbers, that alarms compare."""
        return self.courses(kind, quantity).of(index)

    def courses(self, kind: Kind, quantity: str) -> Courses:
        """Return the courses of a quantity of all layers of a kind."""
        return self._courses.get((kind, quantity), NO_COURSES)

    def total(self, quantity: str) -> Course:
        """Return a figure of the whole network: `loss`, `lr` (the largest), or one of `Record.total` or `metrics`."""
        return self._courses.get(("total", quantity), NO_COURSES).of(0)

    def then_and_now(self, kind: Kind, quantity: str) -> Iterator[tuple[int, LayerRecord, float, float]]:
        """Yield for every layer of a kind its place, itself, and a quantity's median at the start and now."""
        courses, layers = self.courses(kind, quantity), self.of(kind)
        starts, nows = courses.starts(), courses.nows()
        for index in sorted(starts.keys() & nows.keys()):
            yield index, layers[index], starts[index], nows[index]

    def lasting(self, kind: Kind, quantity: str) -> Iterator[tuple[int, LayerRecord, list[float]]]:
        """Yield for every layer of a kind its place, itself, and a quantity's latest figures, all of them numbers."""
        layers = self.of(kind)
        for index, values in sorted(self.courses(kind, quantity).lasting().items()):
            yield index, layers[index], values

    def last(self, kind: Kind, quantity: str) -> Iterator[tuple[LayerRecord, tuple[float, ...]]]:
        """Yield for every layer of a kind itself and a quantity's last figures, two that span enough steps."""
        layers = self.of(kind)
        for index, values in sorted(self.courses(kind, quantity).last().items()):
            yield layers[index], values

    def begin(self, layers: Sequence[LayerRecord]) -> bool:
        """Take note of what is watched; return whether records so far are of the same layers.

        Records of other layers, of a model that was changed before the run went on, keep their loss and sums alone:
        their numbers belong to no layer any more.
        """
        same = [(layer.kind, layer.name) for layer in layers] == [(layer.kind, layer.name) for layer in self.layers]
        if not same:
            self.records = [replace(record, values={}, histograms={}) for record in self.records]
            for key in [key for key in self._courses if key[0] != "total"]:
                del self._courses[key]
        self.layers = tuple(layers)
        self._kinds = {kind: tuple(layer for layer in layers if layer.kind == kind) for kind in KINDS}
        return same or not self.records

    def resume(self, folder: str | os.PathLike[str]) -> None:
        """Read what an earlier part of the run wrote.

        Records of steps that were done again replace the older ones; alarms stay, so that none is raised twice.

        Args:
            folder: the folder of the run, or the log in it.

        Raises:
            InputError: the log is damaged or of another version.
        """
        reading = LogReading.of(folder)
        self.begin(reading.layers)
        for record in reading.records():
            self.keep(record)
        for finding in reading.findings:
            self.raised(finding)
        self._ended = 0 if reading.ended is None else reading.ended.step

    def has_raised(self, code: str) -> bool:
        """Return whether an alarm of this code was raised, at any layer: naming another layer would be no news."""
        return any(finding.code == code for finding in self.findings)

    def raised(self, finding: Finding) -> bool:
        """Add a finding; return whether it is news."""
        key = (finding.code, finding.where)
        if key in self._raised and finding.severity <= self._raised[key]:
            return False
        self._raised[key] = finding.severity
        self.findings.append(finding)
        return True

    def keep(self, record: Record) -> None:
        """Add a record without looking for alarms."""
        self._forget(record.step)
        self.looked_up = {}
        self.records.append(record)
        if len(self.records) > MAX_RECORDS:
            self.records = _thin_out(self.records)
        for kind, table in record.values.items():
            for quantity, column in table.items():
                self._courses[kind, quantity].add(record.step, column)
        rate = max(record.lr, default=math.nan)
        if 0.0 < rate < math.inf:
            self.peak_lr = max(self.peak_lr, rate)
            scale = math.log10(rate)  # what the weights did to it, without the schedule
            rates = record.of("weight", "log10_effective_lr")
            unscheduled = [None if value is None else value - scale for value in rates]
            self._courses["weight", "log10_unscheduled_lr"].add(record.step, unscheduled)
        self.spikes.add(record)
        mean = record.metrics.get("loss_mean", record.loss)
        if mean is not None and record.step and (self.least_loss is None or mean < self.least_loss[0]):
            self.least_loss = (mean, record.step)
        for quantity, value in {**record.metrics, **record.total, "loss": record.loss, "lr": rate}.items():
            self._courses["total", quantity].add(record.step, (value,))

    def note(self, step: int, figures: Mapping[str, float]) -> None:
        """Add figures that the loop gave: those of a validation."""
        for name, value in figures.items():
            self.validations.setdefault(name, deque(maxlen=RECENT_RECORDS)).append((step, value))

    def _forget(self, step: int) -> None:
        """Drop the records from a step on: it is done again."""
        self._ended = 0
        if self.records and self.step >= step:
            while self.records and self.step >= step:
                self.records.pop()
            for courses in self._courses.values():
                courses.forget(step)


def _thin_out(records: Sequence[Record]) -> list[Record]:
    """Return the first records, the latest, and of those between about half of what there is room for, evenly."""
    kept, recent = list(records[:FIRST]), records[-RECENT_RECORDS:]
    apart = (recent[0].step - kept[-1].step) / ((MAX_RECORDS - RECENT_RECORDS) // 2)
    for record in records[FIRST:-RECENT_RECORDS]:
        if record.step - kept[-1].step >= apart:
            kept.append(record)
    return [*kept, *recent]


# ---- parameters: who gets a gradient, who is trained, who clears gradients


class Since:
    """How long something has been so: since which step, in how many measured steps, at which version of a parameter."""

    __slots__ = ("records", "step", "version")

    def __init__(self, step: int, version: int = 0) -> None:
        self.step, self.version, self.records = step, version, 0


MIN_BACKBONE_LAYERS = 2
"""Frozen layers with the values of new ones, in front of all that are trained, that were to be a backbone."""
SLOW_GROUP_SHARE = 1e-5
"""A learning rate over that of the fastest group: a backbone that is fine-tuned has a hundredth, at most a
thousandth."""
FAINT_ENTRIES = 0.03
"""The largest entry of a table that was to be trained: vectors that were trained have entries of 0.1 and more."""
FAST_GROUP_RATIO = 30.0
"""A learning rate over that of all other groups: heads that are new learn ten times as fast as the body."""
DEFAULT_INITIALISED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers that torch initialises with numbers that are uniform within 1/sqrt(fan in)."""
LOOKED_AT = (*DEFAULT_INITIALISED, nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm, nn.LSTM, nn.GRU)
"""Modules whose mode or weights say something."""


class ParameterFollower:
    """Follows the parameters of a model from step to step without measuring them; nothing of it lies on a device.

    Attributes:
        ungraded: parameters that the optimizer has and that got no gradient.
        unmoved: parameters that get gradients, that the optimizer does not have, and that nobody changes.
        evaluated: BatchNorms in eval mode whose statistics are those of the start though their scales are trained.
        frozen: layers whose parameters require no gradient though they were never trained.
        dropout: the strongest dropout that is on, and where.
        oddities: what is odd in how the loss is put together, as `LossReading` has it.
        shapes: what was broadcast.
        others: steps of other optimizers.
        half_precision: whether weights that are trained are in float16.
        casts_to_half: whether values on the way to the loss are cast to float16.
        without_targets: whether no loss so far compares outputs with targets; None where none was looked into.
        part: the path of the part of the model that the loop calls instead of the model; empty where it calls that.
        overwritten: parameters that something else than the optimizer writes into between its steps.
        slow: parameters whose group has a learning rate that is a trace of the largest one.
        fastest: the module of the group whose learning rate is far above those of all others; empty where none is.
        shut: recurrent layers one of whose gates their biases keep shut.
        alike: layers all of whose units began alike; None before anybody has looked.
        faint: a frozen table of embeddings whose entries are all close to zero; empty where there is none.
        validated_in_train_mode: how many validations followed forwards in train mode alone, with dropout on.
    """

    def __init__(self) -> None:
        self.evaluated: dict[str, Since] = {}
        self.frozen: dict[str, Since] = {}
        self.dropout: tuple[float, str] = (0.0, "")
        self.oddities: dict[str, Since] = {}
        self.shapes, self.others, self.half_precision = "", 0, False
        self.casts_to_half = False
        self.without_targets: bool | None = None
        self.part = ""
        self.overwritten: dict[str, Since] = {}
        self.slow: dict[str, Since] = {}
        self.resting: dict[str, Since] = {}
        self.fastest = ""
        self.alike: tuple[str, ...] | None = None
        self.validated_in_train_mode, self.faint = 0, ""
        self.shut: dict[str, str] = {}
        self._written: dict[str, tuple[int, int, int]] = {}  # step, version behind it, and by how much it was raised
        self._stepped: list[nn.Parameter] = []  # of a measured step that is not over
        self._initial: dict[str, bool] = {}
        self.ungraded: dict[str, Since] = {}
        self.unmoved: dict[str, Since] = {}
        self._waiting: dict[str, nn.Parameter] = {}
        self._smallest: nn.Parameter | None = None

    def look(
        self,
        parameters: Mapping[str, nn.Parameter],
        optimizer: Optimizer,
        step: int,
        whole: nn.Module | None = None,
    ) -> None:
        """Look at all parameters, in front of a measured step; `whole` is the model of which a part is called."""
        parameters = {f"{self.part}.{name}": p for name, p in parameters.items()} if self.part else parameters
        trainable = {name: p for name, p in parameters.items() if p.requires_grad and not is_lazy(p)}
        rates = {id(p): group.get("lr") for group in optimizer.param_groups for p in group["params"]}
        trained = {name: p for name, p in trainable.items() if id(p) in rates}
        self._waiting = {name: p for name, p in trained.items() if p.grad is None}
        self.half_precision = any(p.dtype is torch.float16 for p in trained.values())
        self.ungraded = {name: self.ungraded.get(name) or Since(step) for name in self._waiting}
        earlier = self.unmoved
        all_trainable = trainable if whole is None else {n: p for n, p in whole.named_parameters() if p.requires_grad}
        others = {
            n: p for n, p in all_trainable.items() if id(p) not in rates and p.grad is not None and not is_lazy(p)
        }
        self.unmoved = {name: Since(step, p._version) for name, p in others.items()}
        for name, since in self.unmoved.items():
            if name in earlier and earlier[name].version == since.version:
                self.unmoved[name] = earlier[name]
        numbers = [rate for group in optimizer.param_groups if isinstance(rate := group.get("lr"), float)]
        limit = SLOW_GROUP_SHARE * max(numbers, default=0.0)
        some = any(0.0 < rate < limit for rate in numbers)
        second, first = sorted([0.0, 0.0, *numbers])[-2:]
        fast = (
            [n for n, p in trained.items() if rates[id(p)] == first] if 0.0 < FAST_GROUP_RATIO * second <= first else []
        )
        self.fastest = fast[0].rpartition(".")[0] if fast else ""
        slow = (
            [n for n, p in trained.items() if isinstance(rate := rates[id(p)], float) and 0.0 < rate < limit]
            if some
            else []
        )
        self.slow = {name: self.slow.get(name) or Since(step) for name in slow}
        resting = [name for name, p in trained.items() if rates[id(p)] == 0.0] if max(numbers, default=0.0) else []
        self.resting = {name: self.resting.get(name) or Since(step) for name in resting}
        overwritten = [name for name, p in trained.items() if self._is_overwritten(name, p._version, step)]
        self.overwritten = {name: self.overwritten.get(name) or Since(step) for name in overwritten}
        self._written = {name: (step, p._version, 0) for name, p in trained.items()}
        self._stepped = list(trained.values())
        for since in (
            s for d in (self.ungraded, self.unmoved, self.slow, self.resting, self.overwritten) for s in d.values()
        ):
            since.records += 1
        graded = [p for p in trained.values() if p.grad is not None and not p.grad.is_sparse]
        self._smallest = min(graded, key=lambda p: p.numel(), default=None)

    def look_behind(self) -> None:
        """Take note of what a measured step wrote, behind it."""
        for (name, (step, version, _)), parameter in zip(list(self._written.items()), self._stepped, strict=False):
            self._written[name] = (step, parameter._version, parameter._version - version)
        self._stepped = []

    def _is_overwritten(self, name: str, version_now: int, step: int) -> bool:
        """Return whether more was written into a parameter since the last measured step than the optimizer does."""
        then, version, raised = self._written.get(name, (step, 0, 0))
        return raised > 0 and version_now > version + raised * (step - then - 1)

    def look_at_first_weights(self, modules: Mapping[str, nn.Module]) -> None:
        """Take note of layers whose units begin alike, and of a frozen table that is faint; waits for the device."""
        paths = {".".join(filter(None, (self.part, inner))): module for inner, module in modules.items()}
        self.alike = tuple(path for path, m in paths.items() if type(m) in DEFAULT_INITIALISED and _are_alike(m))
        self.faint = next((path for path, m in paths.items() if isinstance(m, nn.Embedding) and _is_faint(m)), "")

    def read(self, reading: LossReading | None, step: int) -> None:
        """Take note of what is odd in a loss."""
        if reading is not None:
            self.shapes = reading.shapes or self.shapes
            self.casts_to_half = self.casts_to_half or reading.half_precision
            self.without_targets = self.without_targets is not False and not reading.compares
            self.oddities = {word: self.oddities.get(word) or Since(step) for word in reading.oddities}
            for since in self.oddities.values():
                since.records += since.version != step + 1  # once for a step
                since.version = step + 1

    def look_at_modules(self, modules: Mapping[str, nn.Module], optimizer: Optimizer, step: int) -> None:
        """Look at the modes of all modules and at what is frozen, in a measured forward in train mode."""
        trained = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        evaluated, self.dropout, matrices = [], (0.0, ""), []  # matrices: layers with their weight and bias
        for inner, module in modules.items():
            if not isinstance(module, LOOKED_AT):
                continue
            path = ".".join(filter(None, (self.part, inner)))
            parameters = [p for p in module._parameters.values() if p is not None and not is_lazy(p)]
            if isinstance(module, nn.modules.dropout._DropoutNd) and module.training:
                self.dropout = max(self.dropout, (module.p, path))
            elif isinstance(module, nn.modules.batchnorm._BatchNorm) and not module.training:
                counted = module.num_batches_tracked
                if counted is not None and any(id(p) in trained for p in parameters) and self._is_new(path, counted):
                    evaluated.append(path)
            elif type(module) in DEFAULT_INITIALISED and parameters:
                matrices.append((path, parameters))
            elif isinstance(module, nn.LSTM | nn.GRU) and path not in self._initial:
                self._initial[path] = True
                gate = _find_shut_gate(module)
                self.shut |= {path: gate} if gate else {}
        first = next((i for i, (_, (weight, *_)) in enumerate(matrices) if weight.requires_grad), len(matrices))
        frozen = [(path, parameters) for path, parameters in matrices[first:] if not parameters[0].requires_grad]
        many = 2 * len(frozen) >= len(matrices)  # a backbone, with an adapter in front of it
        others = [weight for _, (weight, *_) in matrices if weight.requires_grad]
        untrained = {} if many else {path: ps[0] for path, ps in frozen if self._is_initial(path, ps, others)}
        # a single random layer in front is a projection on purpose
        reached = others or any(id(p) in trained for module in modules.values() for p in module._parameters.values())
        before = matrices[:first] if reached else []
        if len(before) >= MIN_BACKBONE_LAYERS and all(
            self._is_initial(path, parameters, others, or_normal=True) for path, parameters in before
        ):
            untrained |= {path: weight for path, (weight, *_) in before}
        self.evaluated = {path: self.evaluated.get(path) or Since(step) for path in evaluated}
        earlier = self.frozen
        versions = {
            path: 0 if is_lazy(weight) or weight.is_inference() else weight._version
            for path, weight in untrained.items()
        }
        self.frozen = {path: Since(step, version) for path, version in versions.items()}
        for path, since in self.frozen.items():
            if path in earlier and earlier[path].version == since.version:  # else somebody writes into it
                self.frozen[path] = earlier[path]
        for since in (*self.evaluated.values(), *self.frozen.values()):
            since.records += 1

    def _is_new(self, path: str, counted: Tensor) -> bool:
        """Return whether a BatchNorm had counted no batch when it was first looked at."""
        if path not in self._initial:
            self._initial[path] = int(counted) == 0
        return self._initial[path]

    def _is_initial(
        self, path: str, parameters: Sequence[Tensor], trained: Sequence[Tensor], *, or_normal: bool = False
    ) -> bool:
        """Return whether the weight of a layer, the first of its parameters, has the values of a new one.

        Torch draws new weights uniformly within 1/sqrt(fan in). Normal ones (`torch.nn.init`) are recognised by their
        deviation and a bias that is zero or within 1/sqrt(fan in); in one layer alone that may be chance, so that they
        count with `or_normal` only. A copy of a trained weight does not count as new: it belongs to a target network,
        which follows another one.
        """
        if path not in self._initial:
            weight, count = parameters[0].detach(), parameters[0].numel()
            bound = math.sqrt(len(weight) / count)
            deviation, largest = float(weight.std()), float(weight.abs().amax())
            uniform = abs(deviation * math.sqrt(3.0) / bound - 1.0) < 3.0 / math.sqrt(count)
            uniform = uniform and 0.9 * bound < largest <= bound * 1.001
            outputs = bound * math.sqrt(len(weight) / weight[0].numel())  # 1/sqrt(fan in) times sqrt(out/in)
            usual = (bound, math.sqrt(2.0) * bound, bound * math.sqrt(2.0) / math.hypot(1.0, outputs / bound), 0.02)
            normal = min(abs(deviation / other - 1.0) for other in usual) < 2.0 / math.sqrt(2.0 * count)
            normal = normal and or_normal and len(parameters) > 1 and _is_new_bias(parameters[1].detach(), bound)
            copied = any(w.shape == weight.shape and torch.equal(w.to(weight), weight) for w in trained)
            self._initial[path] = (uniform or normal) and not copied
        return self._initial[path]

    @property
    def waits(self) -> bool:
        """Whether some parameters had no gradient when they were last looked at."""
        return bool(self._waiting)

    def pass_by(self) -> None:
        """In front of other steps look only whether parameters without a gradient got one: branches may be rare."""
        for name, parameter in list(self._waiting.items()):
            if parameter.grad is not None:
                del self.ungraded[name], self._waiting[name]

    def let_go(self) -> None:
        """Keep no parameter alive any longer."""
        self._smallest, self._waiting, self._stepped = None, {}, []

    def clearing(self) -> Clearing | None:
        """Listen whether gradients are cleared before those of the next backward are added; None before the first."""
        return None if self._smallest is None else Clearing(self._smallest)


def _are_alike(layer: nn.Module) -> bool:
    """Return whether all units of a layer that is trained read the same inputs, with the same weights, not all zero."""
    weight, bias = (layer._parameters.get(name) for name in ("weight", "bias"))
    if weight is None or is_lazy(weight) or not weight.requires_grad or getattr(layer, "groups", 1) > 1:
        return False
    rows, values = weight.detach(), None if bias is None else bias.detach()
    if len(rows) < 2 or not bool((rows == rows[:1]).all() & rows[:1].any()):
        return False
    return values is None or bool((values == values[:1]).all())


def _is_faint(table: nn.Embedding) -> bool:
    """Return whether a table of embeddings is frozen and has entries close to zero alone."""
    weight = table.weight.detach()
    return not table.weight.requires_grad and weight.numel() > 0 and bool(weight.abs().amax() < FAINT_ENTRIES)


SHUT_GATE_BIAS = -4.0
"""The mean bias of a gate, of its two biases together, at which it lets 2 % through."""
GATES = {"input gates": 0, "forget gates": 1, "output gates": 3}
"""The gates of an LSTM and their places among its four blocks of rows."""


def _find_shut_gate(module: nn.LSTM | nn.GRU) -> str:
    """Return which gates of a recurrent layer are kept shut by their biases; empty where none are.

    An LSTM passes a product of its gates. Of a GRU it is the update gate, which keeps the old state where it is open.
    """
    for layer in range(module.num_layers if module.bias else 0):
        biases = [getattr(module, f"bias_{name}_l{layer}").detach() for name in ("ih", "hh")]
        blocks = (biases[0] + biases[1]).float().chunk(4 if isinstance(module, nn.LSTM) else 3)
        if isinstance(module, nn.GRU):
            if float(blocks[1].mean()) >= -SHUT_GATE_BIAS:
                return "update gates"
        else:
            for gate, place in GATES.items():
                if float(blocks[place].mean()) <= SHUT_GATE_BIAS:
                    return gate
    return ""


def _is_new_bias(bias: Tensor, bound: float) -> bool:
    """Return whether a bias is zero or uniform within a bound, as that of a new layer is."""
    largest, deviation = float(bias.abs().amax()), float(bias.std(correction=0))
    uniform = abs(deviation * math.sqrt(3.0) / bound - 1.0) < 2.0 / math.sqrt(len(bias))
    return largest == 0.0 or (uniform and 0.7 * bound < largest <= bound * 1.001)


class Clearing:
    """Measures how much of the last step's gradient was left when that of the present step was added to it.

    Args:
        parameter: whose gradient is looked at.

    Attributes:
        left: the largest entry, the least of all times it was added to; None where no backward was seen.
    """

    def __init__(self, parameter: nn.Parameter) -> None:
        self.left: Tensor | None = None
        self._parameter = parameter
        self._hook: Any = parameter.register_hook(self._added)

    def _added(self, grad: Tensor) -> None:
        with torch.no_grad():
            before = self._parameter.grad
            largest = grad.new_zeros(()) if before is None else before.detach().abs().amax()
            self.left = largest if self.left is None else torch.minimum(self.left, largest.to(self.left))

    def close(self) -> Tensor | None:
        """Stop listening, and return what was left."""
        self._hook.remove()
        return self.left
