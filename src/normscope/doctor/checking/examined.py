"""`Examined`: everything known about a model when the findings are looked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from ...core.bracket import Bracket
from ...core.log10 import log10
from ...listening.calls import NORMALIZERS, Site
from ...listening.not_finite import Origin
from .divergence import Divergence
from .signal import INPUT, Signal, WidestColumn

RELATIVE_CHANNEL = 1e-4
"""A channel against the largest of its layer; trained layers stay above a hundredth."""
CONSTANT = 1e-6
"""A share of eps: below it the deviation is under a thousandth of what the normalizer divides by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variance:
    """The variance a normalizer saw at its input, over the data.

    A set is what is normalized together: a channel of BatchNorm (in eval mode over all the data, in train mode the mean
    of its variances within batches), a row of LayerNorm or RMSNorm, a group of GroupNorm, a channel of one sample for
    InstanceNorm (of all the data where it uses running statistics). For RMSNorm it is the mean square.

    Attributes:
        log10_min, log10_median, log10_max: over the sets; `-inf` is a variance of zero.
        share_below_one: of the sets, those with a variance below 1, where a normalizer that divides by it expands
            (BatchNorm in eval mode divides by its stored variances instead).
        share_eps: those with a variance below 10 eps, where eps decides the result.
        sets: how many sets were seen.
        entries: values in one set; for BatchNorm in one batch.
        eps: the stabiliser.
    """

    log10_min: float
    log10_median: float
    log10_max: float
    share_below_one: float
    share_eps: float
    sets: int
    entries: int
    eps: float


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
    def dead_scales(self) -> Tensor | None:
        """Which scales are negligible beside its largest; None if it has none."""
        if self.weight is None or not self.weight.numel():
            return None
        size = self.weight.abs().flatten()
        return size <= RELATIVE_CHANNEL * size.max()

    @property
    def constant_inputs(self) -> Tensor | None:
        """Which channels of BatchNorm saw a constant; None for the other normalizers."""
        return None if self.channel_variance is None else self.channel_variance <= CONSTANT * self.eps

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
    """One weight layer or normalizer that ran over the data, and what an audit knows of it besides.

    Attributes:
        module: the module's path, empty for the model as a whole.
        kind: its class.
        operator: what it runs (`conv2d`, `layer_norm`, ...).
        role: `"weight"` or `"normalizer"`.
        normalizer, weight: what the data showed.
        norm: the operator norm of a weight layer; like all that follows, None where no audit measured it.
        log10_folded: the gain of a normalizer together with the linear map before it.
        folded_with: the path of that linear map.
        fed_by: the position of the weight layer that feeds a normalizer.
        feeds_normalizer: whether the graph has a normalizer right behind it.
        dead_filters: which filters of a weight layer are negligible.
    """

    module: str
    kind: str
    operator: str
    role: str
    normalizer: NormalizerOverData | None = None
    weight: WeightOverData | None = None
    norm: Bracket | None = None
    log10_folded: float | None = None
    folded_with: str | None = None
    fed_by: int | None = None
    feeds_normalizer: bool = False
    dead_filters: Tensor | None = None

    @property
    def path(self) -> str:
        """Where it is, in words: the module's path, or the model as a whole."""
        return self.module or "the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A model, its layers and its data.

    Attributes:
        model: the user's model, to look at and not to touch.
        mode: the mode that was examined.
        places: one per layer, in the order they run.
        data: the pass over the data.
        signal: values and gradients by depth; `None` if they were not taken.
        divergence: how a divergence in the loss counts, of a model with broken weights; otherwise the signal has it.
    """

    model: nn.Module
    mode: str
    places: tuple[ExaminedRow, ...]
    data: DataSeen
    signal: Signal | None = None
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
        own = [number for number, row in enumerate(rows) if (row.path, row.kind) == (place.path, place.operator)]
        before = frozenset[int]().union(*map(self.signal.sources, own))
        return bool(before) and all(rows[number].kind == INPUT for number in before)

    def normalizers(self) -> Iterator[tuple[ExaminedRow, NormalizerOverData]]:
        """Yield the normalizers that saw data."""
        for place in self.places:
            if place.normalizer is not None:
                yield place, place.normalizer


def layer_seen(model: nn.Module, data: DataSeen, site: Site) -> ExaminedRow:
    """Return what the data alone tell of the layer that ran at a site."""
    path, operator, _ = site
    return ExaminedRow(
        module=path,
        kind=type(model.get_submodule(path)).__name__,
        operator=operator,
        role="normalizer" if operator in (*NORMALIZERS, "rms") else "weight",
        normalizer=data.normalizers.get(site),
        weight=data.weights.get(site),
    )
