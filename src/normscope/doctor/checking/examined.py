"""`Examined`: everything known about a model when the findings are looked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from ...auditing.audit_result import Row, Variance
from ...bounds.derivative import Mismatch
from ...bounds.graph.ir import Graph, Node
from ...bounds.operators.effects import Effect
from ...bounds.operators.invariance import FeedingLayer
from ...core.bracket import Bracket
from ...core.log10 import log10
from ...listening.calls import Site
from ...listening.not_finite import Origin
from .divergence import Divergence
from .signal import INPUT, Signal, WidestColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizerOverData:
    """A normalizer over the data.

    Attributes:
        site: where it runs.
        kind: `batch`, `layer`, `group`, `instance` or `rms`.
        eps: the stabiliser.
        entries: values normalized together; for BatchNorm the values per channel in the smallest batch seen.
        samples: independent samples behind one variance of BatchNorm: the smallest batch size seen.
        variance: the summary over its sets.
        weight: gamma, if it has one.
        channel_mean, channel_variance: BatchNorm only: of every channel (float64, on the CPU): over all the data where
            it uses running statistics, otherwise the mean of the variances within batches.
        least_variance: the smallest variance seen in any batch, by channel (BatchNorm, InstanceNorm), by group
            (GroupNorm), or one for all (LayerNorm, RMSNorm).
        running_mean, running_variance: BatchNorm only: the statistics it keeps, if it does.
        uses_running: whether it normalized with them (eval mode).
        batch_spread: BatchNorm only: the median over channels of the relative standard deviation of the variance from
            batch to batch; `None` with fewer than four batches.
    """

    site: Site
    kind: str
    eps: float
    entries: int
    samples: int
    variance: Variance
    weight: Tensor | None = None
    channel_mean: Tensor | None = None
    channel_variance: Tensor | None = None
    least_variance: Tensor | None = None
    running_mean: Tensor | None = None
    running_variance: Tensor | None = None
    uses_running: bool = False
    batch_spread: float | None = None

    @property
    def stored_variance(self) -> Tensor | None:
        """The running variances it divided by; None where it divided by those of the data."""
        return self.running_variance if self.uses_running else None

    @property
    def log10_median(self) -> float:
        """log10 of the median variance it divided by."""
        stored = self.stored_variance
        if stored is None:
            return self.variance.log10_median
        return log10(float(stored.nan_to_num(nan=0.0).clamp(min=0.0).median()))  # what is no number is a finding

    @property
    def share_eps(self) -> float:
        """The share of the variances it divided by that are below 10 eps."""
        stored = self.stored_variance
        return self.variance.share_eps if stored is None else float((stored < 10.0 * self.eps).double().mean())

    @property
    def untaken(self) -> bool:
        """Whether it uses running statistics that still have the values they are born with."""
        if not self.uses_running or self.running_mean is None or self.running_variance is None:
            return False
        return bool((self.running_mean == 0).all()) and bool((self.running_variance == 1).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOverData:
    """A weight layer over the data.

    Attributes:
        site: where it runs.
        input_shape, output_shape: the shapes of its input and output in the first batch.
        rms_input, rms_output: root mean square of its input and output over the data.
    """

    site: Site
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    rms_input: float
    rms_output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsOverData:
    """A ReLU over the data: `dead[k]` says that channel k was never positive."""

    site: Site
    dead: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSeen:
    """What one pass over the data showed.

    Attributes:
        samples, batches: how much data.
        order: the sites of weight layers and normalizers, in the order they ran.
        normalizers, weights, units: by site; a normalizer whose input was not finite is left out.
        not_finite: where the first values that are not finite were made, if the output of the model holds some.
        error: why the model could not be run, if it could not.
        raised: what it raised then, with the place in the user's code.
        other: whether these are other data than the batch that is differentiated.
        columns: the widest column of each input of the first batch that is a table, by the name of the input.
    """

    samples: int
    batches: int
    order: tuple[Site, ...] = ()
    normalizers: Mapping[Site, NormalizerOverData] = field(default_factory=dict)
    weights: Mapping[Site, WeightOverData] = field(default_factory=dict)
    units: Mapping[Site, UnitsOverData] = field(default_factory=dict)
    not_finite: Origin | None = None
    error: str | None = None
    raised: Exception | None = None
    other: bool = False
    columns: Mapping[str, WidestColumn] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedRow:
    """One row of the audit with what stands behind it; `node` and `effect` are None where the model was not traced."""

    row: Row
    node: Node | None = None
    effect: Effect | None = None
    normalizer: NormalizerOverData | None = None
    weight: WeightOverData | None = None

    @property
    def path(self) -> str:
        """Where it is, in words: the module's path, or the model as a whole."""
        return self.row.path or "the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A model, its graph, its rows and its data.

    Attributes:
        model: the user's model, to look at and not to touch.
        mode: the mode that was audited.
        places: one per row, in the order they run.
        data: the pass over the data.
        feeds: which weights feed which normalizers.
        graph: what was captured; `None` if the model cannot be traced.
        effects: every node's effect by name.
        mismatches: modules whose backward is not the derivative of their forward.
        signal: values and gradients by depth; `None` if they were not taken.
        bounds: the brackets of the whole network by method.
        divergence: how a divergence in the loss counts, of a model with broken weights; otherwise the signal has it.
    """

    model: nn.Module
    mode: str
    places: tuple[ExaminedRow, ...]
    data: DataSeen
    feeds: tuple[FeedingLayer, ...] = ()
    graph: Graph | None = None
    effects: Mapping[str, Effect] = field(default_factory=dict)
    mismatches: tuple[Mismatch, ...] = ()
    signal: Signal | None = None
    bounds: Mapping[str, Bracket] = field(default_factory=dict)
    divergence: Divergence | None = None

    def name_place(self, path: str, before: Collection[str]) -> str:
        """Return the module to name for a function: where a module of several parts called it, the layer before it."""
        module = dict(self.model.named_modules()).get(path)
        called = module is None or any(True for _ in module.children())
        return next(iter(before)) if called and len(before) == 1 else path

    def reads_input(self, place: ExaminedRow) -> bool:
        """Whether a layer reads the inputs of the model and nothing else."""
        if self.signal is None:
            return False
        rows = self.signal.rows
        own = [number for number, row in enumerate(rows) if (row.path, row.kind) == (place.path, place.row.operator)]
        before = frozenset[int]().union(*map(self.signal.sources, own))
        return bool(before) and all(rows[number].kind == INPUT for number in before)

    def normalizers(self) -> Iterator[tuple[ExaminedRow, NormalizerOverData]]:
        """Yield the normalizers that saw data."""
        for place in self.places:
            if place.normalizer is not None:
                yield place, place.normalizer
