"""The record of a measured step, from the numbers that have arrived on the host."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from ...core.errors import InputError
from ...listening.calls import NormalizerSeen, Site
from ..facts.loss_call import FIGURES
from .norm_tracking import READABLE_DECADES, NormFigure, NormReading, NormTracker, WeightNorms
from .probes import normalizer_probe, updates
from .probes.batches import are_same
from .probes.normalizer_probe import BatchNorms, Moved
from .probes.updates import WeightSample
from .record import Numbers, Record
from .schedule import Tier, Turns
from .watched_layers import UNCHAINED, Subject

WAITING_FIGURES = 64
"""Figures that wait on a device together, before they are sent to the host."""
OF_LOSSES = ("loss_mean", "loss_least", "loss_largest", "loss_largest_at", "loss_count", "loss_broken",
             "loss_broken_at", "loss_broken_infinite", "loss_jump", "loss_jump_from", "loss_jump_at")  # fmt: skip
"""What a record says of the losses of all steps since the one before: mean, least, largest and its step, how many, how
many were not finite, which are in no other figure, the step of the first of these and whether it was infinite (1) or
NaN (0); and of the first loss that is far above the one before it itself, that one and its step, if there is any."""
JUMP_RATIO = 100.0
"""A loss over that of the step before, from which on it has jumped."""


def check_figure(name: str, value: Tensor | float) -> None:
    """Raise InputError where a figure is not one real number."""
    if name in OF_LOSSES:
        raise InputError(f"{name} is a figure that is made of the losses: give yours another name")
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise InputError(f"{name} is a {value.dtype} tensor of shape {tuple(value.shape)}: pass one real number")
    elif not isinstance(value, Real) and not (
        isinstance(value, np.ndarray) and value.size == 1 and np.isrealobj(value)
    ):
        raise InputError(f"{name} is a {type(value).__name__}: pass a tensor with one entry, or a number")


class Observed:
    """The figures of one name since the last record; numbers on a device are kept as they are, and sent together.

    Args:
        copies: whether each number on a device is copied at once: somebody writes over it later.

    Attributes:
        count: how many there are.
    """

    def __init__(self, *, copies: bool = False) -> None:
        self._sent: list[tuple[list[int], Transfer]] = []  # steps, and what brings their numbers
        self._numbers: list[tuple[int, float]] = []  # those that were read at once, by step
        self._waiting: list[tuple[int, Tensor, int]] = []  # steps, numbers on a device, and the version of each
        self.copies, self.count = copies, 0

    def add(self, step: int, value: Tensor | float) -> float | None:
        """Add a figure of a step; return it, unless it lies on a device, where it is not read."""
        self.count += 1
        if not isinstance(value, Tensor) or value.device.type == "cpu":
            number = float(value.item() if isinstance(value, Tensor) else value)
            self._numbers.append((step, number))
            return number
        if self._waiting and (len(self._waiting) == WAITING_FIGURES or self._waiting[0][1].device != value.device):
            self.send()
        kept = value.detach()
        if self._waiting and kept.data_ptr() == self._waiting[-1][1].data_ptr():  # as in a graph of CUDA
            self._waiting.pop()
            self.copies = True
        kept = kept.clone() if self.copies else kept
        self._waiting.append((step, kept, kept._version))
        return None

    def send(self) -> None:
        """Send what lies on a device to the host, less what was written over since: the next are copied at once."""
        kept = [(step, tensor) for step, tensor, version in self._waiting if tensor._version == version]
        self.copies = self.copies or len(kept) < len(self._waiting)
        if kept:
            by_place = Transfer({place: tensor for place, (_, tensor) in enumerate(kept)})
            self._sent.append(([step for step, _ in kept], by_place))
        self._waiting = []

    def arrived(self) -> bool:
        """Return whether opening what was sent would not wait."""
        return all(transfer.arrived() for _, transfer in self._sent)

    def open(self) -> dict[int, float]:
        """Return the mean of every step that was sent, of its figures that are finite; NaN if none is."""
        by_step: dict[int, list[float]] = {}
        for step, value in self._numbers:
            by_step.setdefault(step, []).append(value)
        for steps, transfer in self._sent:
            arrived = transfer.open()
            for index, step in enumerate(steps):
                by_step.setdefault(step, []).append(float(arrived[index].item()))
        return {step: _finite_mean(numbers) for step, numbers in by_step.items()}


def summarise(figures: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """Return what a record says of the figures since the one before, by name: of losses `OF_LOSSES`, of others means.

    Args:
        figures: by name and step.

    Example:
        >>> summary = summarise({"loss": {0: 3.0, 1: 1.0, 2: float("nan")}, "accuracy": {0: 0.5, 1: 0.7}})
        >>> summary["loss_mean"], summary["loss_largest_at"], summary["loss_count"], summary["loss_broken"]
        (2.0, 0.0, 3.0, 1.0)
        >>> summary["accuracy"]
        0.6
    """
    summary = {name: _finite_mean(list(steps.values())) for name, steps in figures.items() if steps and name != "loss"}
    losses = figures.get("loss", {})
    finite = {step: value for step, value in losses.items() if math.isfinite(value)}
    if finite:
        at = max(finite, key=lambda step: finite[step])
        of_finite = (_finite_mean(list(finite.values())), min(finite.values()), finite[at], float(at))
        summary |= dict(zip(OF_LOSSES, of_finite, strict=False))
    steps = sorted(finite)
    jumps = [(one, two) for one, two in pairwise(steps) if finite[two] > JUMP_RATIO * finite[one] > 0.0]
    if jumps:
        one, two = jumps[0]
        summary |= {"loss_jump": finite[two], "loss_jump_from": finite[one], "loss_jump_at": float(two)}
    if losses:
        summary |= {"loss_count": float(len(losses)), "loss_broken": float(len(losses) - len(finite))}
    if len(finite) < len(losses):
        broken_at = min(step for step in losses if step not in finite)
        summary |= {"loss_broken_at": float(broken_at), "loss_broken_infinite": float(math.isinf(losses[broken_at]))}
    return summary


def _finite_mean(numbers: Sequence[float]) -> float:
    """Return the mean of those that are finite; without any, the first."""
    finite = [value for value in numbers if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else numbers[0]


class StepLosses:
    """Collects the losses of the batches of one step; nothing is read from the device."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._used: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._losses)

    @property
    def unused(self) -> bool:
        """Whether there are losses, and no gradient came from any of them."""
        return bool(self._losses) and not self._used

    def add(self, loss: Tensor | float) -> None:
        """Add the loss of a batch, and listen whether a gradient comes from it."""
        number = loss.detach() if isinstance(loss, Tensor) else torch.tensor(float(loss), dtype=torch.float64)
        self._losses.append(number.reshape(1).clone())
        index, used = len(self._losses) - 1, self._used
        if isinstance(loss, Tensor) and loss.requires_grad and not loss.is_leaf:
            loss.register_hook(lambda grad: used.add(index))
        else:
            used.add(index)

    def mean(self) -> Tensor:
        """Return the mean of those that a gradient came from, or of all where none came from any."""
        chosen = [loss for index, loss in enumerate(self._losses) if index in self._used] or self._losses
        if len(chosen) == 1:
            return chosen[0]
        alike = [loss.to(chosen[0].device, torch.float64) for loss in chosen]
        return torch.cat(alike).mean(0, keepdim=True)


class Transfer:
    """Named tensors that are sent to the host as one tensor, and taken apart when they have arrived.

    Args:
        contents: tensors by name, on one device or several.
    """

    def __init__(self, contents: Mapping[Hashable, Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        self._flat: Tensor | None = None
        kinds: dict[tuple[torch.device, torch.dtype], dict[Hashable, Tensor]] = {}
        for name, tensor in contents.items():
            flat = tensor if tensor.ndim == 1 else tensor.reshape(-1)
            kinds.setdefault((tensor.device, tensor.dtype), {})[name] = flat
        self._shapes = {name: contents[name].shape for alike in kinds.values() for name in alike}
        if not contents:
            return
        with torch.no_grad():
            device = next((device for device, _ in kinds if device.type != "cpu"), torch.device("cpu"))
            dtype = torch.float32 if device.type == "mps" else torch.float64
            parts = [torch.cat(list(alike.values())).to(device, dtype, non_blocking=True) for alike in kinds.values()]
            flat = parts[0] if len(parts) == 1 else torch.cat(parts)
            if device.type != "cuda":
                self._flat = flat.cpu()
                return
            self._flat = torch.empty(flat.shape, dtype=dtype, pin_memory=True)
            self._flat.copy_(flat, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))

    def arrived(self) -> bool:
        """Return whether opening it would not wait."""
        return self._event is None or self._event.query()

    def open(self) -> dict[Hashable, np.ndarray]:
        """Return the numbers by name, in the shapes they had; waits for the device if they are not here yet."""
        if self._event is not None:
            self._event.synchronize()
        if self._flat is None:
            return {}
        numbers, by_name, first = self._flat.numpy(), {}, 0
        for name, shape in self._shapes.items():
            by_name[name] = numbers[first : first + shape.numel()].reshape(shape)
            first += shape.numel()
        return by_name


Key = Hashable
Arrived = Mapping[Key, np.ndarray]
MeasuredNorm = tuple[int, list[float], list[float]]
"""The step that norms are of, log10 of them alone and folded, and their errors."""
OPTIONAL = (*normalizer_probe.OPTIONAL, *updates.OPTIONAL)
MIN_SQUARED_SIZE = 1e-15
"""A norm below this has squares that leave the range of float32."""


@dataclass(slots=True)
class LayerMemory:
    """What earlier steps found of the layers.

    Attributes:
        norms: the vectors that the next measurement of each norm starts from.
        last: their norms when they were last measured.
        begun: log10 of the size of a weight, and the level of the normalizer behind it, when a search for its norm
            began that goes on.
        turns: whose update is measured next.
        careful: sizes that have left the range of float32 when they were squared, or are zero: measured in float64.
        sample: some entries of the weights, as they were at the last record.
        readings: how many losses were read.
        observed: whether the loop observes losses.
    """

    norms: NormTracker = field(default_factory=NormTracker)
    last: dict[Site, WeightNorms] = field(default_factory=dict)
    begun: dict[Site, tuple[float | None, float | None]] = field(default_factory=dict)
    turns: Turns[Site] = field(default_factory=Turns)
    sample: WeightSample = field(default_factory=WeightSample)
    readings: int = 0
    observed: bool = False
    careful: set[tuple[str, str]] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class StepInTransit:
    """What the host keeps of a measured step while its figures are on their way.

    Attributes:
        step: steps the optimizer has taken before.
        tier: how much is measured.
        subject: what is watched.
        memory: what earlier steps found of the layers.
        lost: layers whose parameters have been replaced since the first forward.
        ran: weight layers that the forward was seen to run.
        readings: how the norms that were measured are read.
        begun: layers that a search began for that goes on.
        lr: the learning rate of every parameter group.
        rates: that of every scale-invariant weight whose update is measured.
        powers: the power of the norm in the effective learning rate of each of them.
        stacks: which of them were measured as one stack.
        names: the names of the parameters, in the order of their sizes, gradients and moves.
        normalizers: what every normalizer showed; the numbers in its tensors are on their way.
        batch_norms: sites whose running variances were read instead, and their momenta.
        left_out: steps that were due in front of it and were not measured, for lack of time.
        seconds: since the run began.
        observed: what the loop observed since the last record.
        transfer: brings the figures.
    """

    step: int
    tier: Tier
    subject: Subject
    memory: LayerMemory = field(default_factory=LayerMemory)
    lost: list[str] = field(default_factory=list)
    ran: set[Site] = field(default_factory=set)
    readings: list[NormReading] = field(default_factory=list)
    begun: set[Site] = field(default_factory=set)
    lr: list[float | Tensor] = field(default_factory=list)
    rates: dict[Site, float | Tensor] = field(default_factory=dict)
    powers: dict[Site, int | None] = field(default_factory=dict)
    stacks: list[list[Site]] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)
    normalizers: dict[Site, NormalizerSeen] = field(default_factory=dict)
    batch_norms: tuple[Sequence[Site], BatchNorms, list[float]] | None = None
    left_out: int = 0
    seconds: float = 0.0
    observed: Mapping[str, Observed] = field(default_factory=dict)
    transfer: Transfer = field(default_factory=lambda: Transfer({}))

    def arrived(self) -> bool:
        """Return whether `compose` would not wait."""
        return self.transfer.arrived() and all(figures.arrived() for figures in self.observed.values())


def compose(step: StepInTransit) -> Record:
    """Return what was measured in a step, as numbers; waits for those that have not arrived."""
    arrived = step.transfer.open()
    sizes = {what: dict(zip(names, arrived[what].tolist(), strict=True)) for what, names in step.names.items()}
    extreme = {what: (arrived[what] == math.inf) | (arrived[what] < MIN_SQUARED_SIZE) for what in step.names}
    step.memory.careful = {
        (what, step.names[what][index]) for what, flags in extreme.items() for index in np.flatnonzero(flags)
    }
    normalizers = _measure_normalizers(step, arrived)
    norms = _weight_norms(step, arrived, sizes, normalizers)
    values = {
        "weight": _weight_columns(step, arrived, sizes, norms),
        "normalizer": _columns(normalizers, normalizer_probe.QUANTITIES),
        **({} if step.tier is Tier.ECONOMY else _block_columns(step, arrived)),
        **({"operator": {"excess": tuple(arrived["domain"][1:].tolist())}} if "domain" in arrived else {}),
    }
    left_out: dict[str, float | None] = {"left_out": float(step.left_out)} if step.left_out else {}
    return Record(
        step=step.step,
        seconds=step.seconds,
        tier=step.tier.value,
        loss=_number(arrived, "loss"),
        lr=tuple(_rate(arrived, ("lr", index), rate) for index, rate in enumerate(step.lr)),
        values={
            kind: {quantity: n for quantity, n in columns.items() if any(v is not None for v in n)}
            for kind, columns in values.items()
        },
        histograms=_histograms(step, arrived),
        total=_totals(step, norms, values["normalizer"], sizes) | _measured_totals(arrived) | left_out,
        metrics=summarise({name: figures.open() for name, figures in step.observed.items()}),
    )


def _followed_parameters(step: StepInTransit) -> list[tuple[str, ...]]:
    """Return the names of the parameters of every weight layer; none where they are not those of the first forward."""
    return [() if layer.name in step.lost else layer.parameters for layer in step.subject.of("weight")]


def _weight_norms(
    step: StepInTransit,
    arrived: Arrived,
    sizes: Mapping[str, Mapping[str, float]],
    normalizers: Sequence[np.ndarray | None],
) -> list[WeightNorms | None]:
    """Return the operator norms of every weight layer."""
    places = step.subject.places
    rows = zip(places["normalizer"], normalizers, strict=True)
    levels = {site: float(row[0]) for site, row in rows if row is not None}  # means of log10 of their variances
    measured: dict[Site, MeasuredNorm] = {}
    for index, reading in enumerate(step.readings):
        read = reading.read(arrived[("norm", index)])
        measured |= {site: (reading.step, *norms) for site, norms in read.items()}
        if not all(error <= READABLE_DECADES for _, errors in read.values() for error in errors):
            step.memory.norms.doubt(reading)
    norms = []
    for site, names in zip(places["weight"], _followed_parameters(step), strict=True):
        # without the bias, which is no part of the map; and the size of a weight made of others says little
        weight = () if site in step.subject.made else names[:1]
        norms.append(_norm(step, site, measured.get(site), _log10_joined(sizes.get("size", {}), weight), levels))
    return norms


def _norm(
    step: StepInTransit, site: Site, measured: MeasuredNorm | None, size: float | None, levels: Mapping[Site, float]
) -> WeightNorms | None:
    """Return the norms of a layer with a weight of a given size: those of the last time, carried on to this step."""
    level = levels.get(step.subject.feeds.get(site, site))
    memory = step.memory
    if site in step.begun:
        memory.begun[site] = (size, level)
    last = memory.last.get(site)
    then = (size, level) if measured is None or measured[0] == step.step else memory.begun.pop(site, None)
    if measured is not None and then is not None:  # else the record of the step that it is of was lost
        (at, norms, errors), (size_then, level_then) = measured, then
        bare, *folded = (NormFigure(log10=n, error=e) for n, e in zip(norms, errors, strict=True))
        fold = folded[0] if folded and level_then is not None else None
        now = WeightNorms(bare=bare, folded=fold, step=at, size=size_then, level=level_then)
        last = now if last is None else now.corrected(last.carried(at, size_then, level_then))
        memory.last[site] = last
        if at == step.step:
            return last
    return None if last is None or site not in step.ran else last.carried(step.step, size, level)


def _weight_columns(
    step: StepInTransit,
    arrived: Arrived,
    sizes: Mapping[str, Mapping[str, float]],
    norms: Sequence[WeightNorms | None],
) -> dict[str, Numbers]:
    """Return one column per quantity of the weight layers; those of norms say how old each is and how far off."""

    def together(what: str) -> Numbers:
        return tuple(_log10_joined(sizes.get(what, {}), names) for names in _followed_parameters(step))

    folded = [None if norm is None else norm.folded for norm in norms]
    return {
        "log10_norm": tuple(None if norm is None else norm.bare.shown for norm in norms),
        "log10_folded": tuple(None if figure is None else figure.shown for figure in folded),
        "norm_error": tuple(None if norm is None else norm.bare.error for norm in norms),
        "folded_error": tuple(None if figure is None else figure.error for figure in folded),
        "norm_age": tuple(None if norm is None else float(step.step - norm.step) for norm in norms),
        "log10_size": together("size"),
        "log10_gradient": together("gradient"),
        **_columns(_measure_updates(step, arrived), updates.QUANTITIES),
        **({} if step.tier is Tier.ECONOMY else {"log10_moved": together("moved")}),
        **{
            what: tuple(_number(arrived, (what, layer.name)) for layer in step.subject.of("weight"))
            for what in ("off", "saturated_tanh", "saturated_sigmoid", "one_place")
        },
    }


def _block_columns(step: StepInTransit, arrived: Arrived) -> dict[str, dict[str, Numbers]]:
    """Return the columns of units and blocks."""
    places = step.subject.places
    return {
        "units": {"dead": tuple(_number(arrived, ("dead", site)) for site in places["units"])},
        "block": {
            "log10_activation": tuple(_log10(_number(arrived, ("activation", path))) for path in places["block"]),
            "log10_backward": tuple(_log10(_number(arrived, ("backward", path))) for path in places["block"]),
        },
    }


def _histograms(step: StepInTransit, arrived: Arrived) -> dict[str, tuple[tuple[float, ...] | None, ...]]:
    """Return the histograms of weights and gradients, where there are any."""
    histograms: dict[str, tuple[tuple[float, ...] | None, ...]] = {}
    for what in ("weight", "gradient"):
        rows = [arrived.get((f"{what} spread", index)) for index in range(len(step.subject.of("weight")))]
        if any(row is not None for row in rows):
            histograms[what] = tuple(None if row is None else tuple(row.tolist()) for row in rows)
    return histograms


def _measure_normalizers(step: StepInTransit, arrived: Arrived) -> list[np.ndarray | None]:
    """Return the figures of every normalizer."""
    with_tensors = [
        replace(
            normalizer,
            variance=arrived[("variance", site)],
            gamma=arrived.get(("gamma", site)),
            running_variance=arrived.get(("running_variance", site)),
        )
        for site, normalizer in step.normalizers.items()
    ]
    rows = dict(zip(step.normalizers, normalizer_probe.measure_all(with_tensors), strict=True))
    if step.batch_norms is not None:
        sites, batch_norms, momenta = step.batch_norms
        numbers = {name: arrived[name] for name in ("before", "after", "gamma", "calls")}
        moved = Moved(norms=batch_norms, momenta=momenta, **numbers)
        measured = zip(sites, normalizer_probe.measure_all(moved.seen()), moved.calls, strict=True)
        rows |= {site: row for site, row, calls in measured if calls == 1}
    return [rows[s] if s in rows else arrived.get(("normalizer", s)) for s in step.subject.places["normalizer"]]


def _measure_updates(step: StepInTransit, arrived: Arrived) -> list[np.ndarray | None]:
    """Return the figures of the scale-invariant weights whose turn it was."""
    rates = [_rate(arrived, ("rate", site), rate) for site, rate in step.rates.items()]
    numbers: dict[Site, np.ndarray] = {}
    for index, sites in enumerate(step.stacks):
        table = np.concatenate([arrived[("turned", index)], arrived[("along", index)][None]])
        numbers |= dict(zip(sites, table.swapaxes(0, 1), strict=True))
    rows = updates.measure_all([numbers[site] for site in step.rates], lr=rates, powers=list(step.powers.values()))
    turned = dict(zip(step.rates, rows, strict=True))
    return [turned.get(site) for site in step.subject.places["weight"]]


def _totals(
    step: StepInTransit,
    norms: Sequence[WeightNorms | None],
    normalizer: Mapping[str, Numbers],
    sizes: Mapping[str, Mapping[str, float]],
) -> dict[str, float | None]:
    """Return the sums over the network, with norms that are carried on, however old they are."""
    fed = {layer.normalizer for layer in step.subject.of("weight")}
    layers = zip(step.subject.of("weight"), norms, strict=True)
    chain = [norm for layer, norm in layers if layer.family not in UNCHAINED and norm is not None]
    folded = [(norm.folded or norm.bare).log10 for norm in chain]
    free = [
        gain
        for layer, gain in zip(step.subject.of("normalizer"), normalizer["log10_gain"], strict=True)
        if layer.name not in fed
    ]
    return {
        "log10_printed": _sum_measured([norm.bare.log10 for norm in chain]),
        "log10_constants": _sum_measured(normalizer["log10_constant"]),
        "log10_folded": _sum_measured([*folded, *free]),
        "log10_gradient": _log10_joined(sizes.get("gradient", {}), None),
        "log10_weight": _log10_joined(sizes.get("size", {}), None),
    }


def _measured_totals(arrived: Arrived) -> dict[str, float | None]:
    """Return the figures of the whole network that were measured as such."""
    totals: dict[str, float | None] = {}
    for key, quantity in (("left", "left_over"), ("domain", "share_outside"), ("lost", "share_lost")):
        if key in arrived:
            totals[quantity] = _number(arrived, key)
    if "spread" in arrived:
        spread, deviation, mean, samples, *column = arrived["spread"].tolist()
        totals |= {} if not column or math.isnan(column[0]) else {"input_column": column[0]}
        totals |= {"input_spread": spread, "input_mean": mean, "input_samples": samples}
        totals["input_size"] = size = math.hypot(mean, deviation)
        if "next batch" in arrived:
            next_deviation, next_mean = arrived["next batch"].tolist()
            following = (next_mean, math.hypot(next_mean, next_deviation))
            totals["input_repeats"] = float(are_same((mean, size), following))
    if "outputs" in arrived:
        length = float(arrived["outputs"])
        totals["output_spread"] = math.sqrt(max(0.0, 1.0 - length**2))  # NaN stays so
    if "codes" in arrived:
        totals["code_spread"] = float(arrived["codes"])
    if "halves" in arrived and not totals.get("left_over"):
        product, *squares = arrived["halves"].tolist()
        lengths = math.sqrt(squares[0] * squares[1])
        totals["halves_agree"] = product / lengths if lengths > 0.0 else None
    if "step" in arrived:
        size, *moves = np.linalg.norm(arrived["step"].astype(float), axis=1).tolist()
        for name, move in zip(("log10_step", "log10_drift"), moves, strict=False):  # the first has no record before it
            totals[name] = _log10(move / size if size else math.nan)
    if "reading" in arrived:
        totals |= {
            f"outputs_{name}": value
            for name, value in zip(FIGURES, arrived["reading"].tolist(), strict=True)
            if not math.isnan(value)
        }
    return totals


def _columns(rows: Sequence[np.ndarray | None], names: Sequence[str]) -> dict[str, Numbers]:
    """Return one column per quantity; what does not apply is None."""
    measured = [index for index, row in enumerate(rows) if row is not None]
    table = np.full((len(rows), len(names)), math.nan)
    if measured:
        table[measured] = [rows[index] for index in measured]
    columns = dict(zip(names, table.T.tolist(), strict=True))
    for name, column in columns.items():
        if name in OPTIONAL:
            columns[name] = [None if math.isnan(value) else value for value in column]
        elif len(measured) < len(rows):
            columns[name] = [None if row is None else value for row, value in zip(rows, column)]
    return {name: tuple(column) for name, column in columns.items()}


def _log10_joined(sizes: Mapping[str, float], names: Sequence[str] | None) -> float | None:
    """Return log10 of the norm of several parameters together; of all without names."""
    parts = list(sizes.values()) if names is None else [sizes[name] for name in names if name in sizes]
    return _log10(math.hypot(*parts)) if parts else None


def _sum_measured(numbers: Sequence[float | None]) -> float | None:
    """Return the sum of what was measured; None if nothing was."""
    measured = [value for value in numbers if value is not None]
    return sum(measured) if measured else None


def _number(arrived: Arrived, key: Key) -> float | None:
    """Return the first entry of what arrived under a key."""
    return float(arrived[key].flat[0]) if key in arrived else None


def _rate(arrived: Arrived, key: Key, rate: float | Tensor) -> float:
    """Return a learning rate; one that is a tensor was sent under a key."""
    return float(arrived[key].flat[0]) if isinstance(rate, Tensor) else float(rate)


def _log10(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return value
    return math.log10(value) if value > 0 else -math.inf
