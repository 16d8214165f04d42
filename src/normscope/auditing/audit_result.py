"""`Audit`: what an audit found, as one frozen object that saves, loads and shows itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar

from ..bounds.data.quantile import DataBracket
from ..bounds.radius.radii import Radii
from ..core.bracket import Bracket
from ..core.budget import Cost
from ..core.codec import JsonForm, Part, Saved
from ..core.errors import InputError, visible
from ..core.finding import Finding
from ..core.shown import Shown
from ..doctor.checking.verdict import Judged, verdict
from ..doctor.facts.layers_over_data import Variance
from ..doctor.facts.pass_facts import PassFacts
from .normalizer_effects import NormalizerEffects

if TYPE_CHECKING:
    import pandas


BRACKETS = ("norm", "sensitivity")
"""The fields of a row that hold brackets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Part):
    """One weight layer or normalizer of the audited model. `None` always means not measured.

    Attributes:
        path: the module, e.g. `layer1.0.conv1`; a module that runs several times has one row per call. One that applies
            several weights itself has them in the names: `attn.in_proj`, `attn.out_proj`. A recurrent layer has one
            more row for each of its matrices, `rnn.weight_ih_l0`.
        kind: its class.
        operator: what it runs (`conv2d`, `layer_norm`, ...).
        role: `"weight"` or `"normalizer"`.
        parameters: how many it holds.
        input_shape, output_shape: in the captured graph.
        norm: the operator norm of a weight layer at its real input size.
        log10_printed: the constant of a normalizer as printed (Lemma 1, 2 or 3).
        log10_exact: its exact constant over all inputs.
        log10_at_data: its largest constant at the data seen; with running statistics it is the same everywhere.
        variance: its input variance over the data.
        log10_folded: the gain of the normalizer together with the linear map before it, with the variance of the data,
            also for BatchNorm in eval mode (an estimate, about 1 % from below); rescaling those weights does
            not move it.
        folded_with: the path of that linear map; `None` if a normalizer stands alone.
        log10_cumulative: the bound on the map from the input to here.
        log10_observed: the gain from the input to here at the data, along the direction the network stretches most.
        sensitivity: norm(h, W) of a weight layer at the first samples of the batch: how far the output moves per unit
            (Frobenius) of change of its weight, the upper side for all values of the weight. A weight that several
            layers share has the same figure in each of their rows.
        channels, dead_channels: output channels, and those that carry nothing (scale or filter negligible beside the
            largest of the layer, constant input).
        follows: the positions in `layers` of the rows directly before this one: two rows that follow the same one stand
            in parallel branches. Empty behind the input, `None` where the model was not traced.
        bypassed: whether a way from the input to the output leads around it: it stands in a branch.
        log10_trunk_cumulative, log10_trunk_observed: of a row that begins a branch: the bound on the map from the input
            to where the branch leaves the main line, and the gain there at the data.
        notes: what was not measured here, and why.
    """

    JSON: ClassVar[JsonForm] = JsonForm(
        choices={"role": ("weight", "normalizer")},
    )

    path: str
    kind: str
    operator: str
    role: str
    parameters: int
    input_shape: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None
    norm: Bracket | None = None
    log10_printed: float | None = None
    log10_exact: float | None = None
    log10_at_data: float | None = None
    variance: Variance | None = None
    log10_folded: float | None = None
    folded_with: str | None = None
    log10_cumulative: float | None = None
    log10_observed: float | None = None
    sensitivity: Bracket | None = None
    channels: int | None = None
    dead_channels: int | None = None
    follows: tuple[int, ...] | None = None
    bypassed: bool | None = None
    log10_trunk_cumulative: float | None = None
    log10_trunk_observed: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit(Judged, Saved, Shown):
    """What `normscope.audit` found. Prints as tables; in a notebook it shows itself as HTML.

    Attributes:
        name: the name of the model: its class, or what the command line was given.
        mode: `"train"` or `"eval"`: which of the model's two functions was audited; `None` for weights alone.
        parameters: how many the model holds.
        samples, batches: how much data was seen.
        input_shape, output_shape: of the captured function.
        lipschitz: the GLOBAL bracket; `None` if it could not be taken (`skipped` says why).
        observed: the POINT bracket, Jacobian norms at the batch.
        ladder: every method's bracket by name.
        quantile: DATA, how much a small change grows by the share of the data, where it had a loader and was
            thorough (or the network is small and has no useful bound over all inputs); otherwise `None`.
        radii: of classifiers in eval mode: certified and attacked radii of the first samples, at the predicted class.
        layers: one row per weight layer and per normalizer, in the order they run.
        normalizers: what each of them does to a small change, in figures that no rescaling of weights moves; `None` if
            there are none, or the model could not be traced.
        signal: values and gradients of the input and of every layer's output, at the batch; `None` if the model could
            not be run.
        findings: the most serious first.
        skipped: what was not measured, and why.
        notes: what the reader must know.
        provenance: versions and device.
        cost: what the audit took, by part: passes through the model, norms, products, seconds.
        seconds: how long the audit took; None where it was read from a file. Not stored in JSON, of which the same
            audit gives the same bytes every time.
    """

    page = "normscope.auditing.page:audit_document"
    JSON: ClassVar[JsonForm] = JsonForm(
        kind="audit",
        nan=True,
        noun="audit",
        write="write one with audit.to_json(path) or normscope audit --json",
        left_out=("seconds",),
        sparse=("normalizers",),
        choices={"mode": ("train", "eval", None)},
    )

    name: str
    mode: str | None
    parameters: int
    samples: int
    batches: int
    input_shape: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None
    lipschitz: Bracket | None = None
    observed: Bracket | None = None
    ladder: Mapping[str, Bracket] = field(default_factory=dict)
    radii: Radii | None = None
    quantile: DataBracket | None = None
    layers: tuple[Row, ...] = ()
    normalizers: NormalizerEffects | None = None
    signal: PassFacts | None = None
    findings: tuple[Finding, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    cost: Cost | None = None
    seconds: float | None = field(default=None, compare=False)

    @property
    def headline(self) -> Bracket | None:
        """The GLOBAL bracket where it is finite, otherwise the POINT bracket if there is one."""
        if self.lipschitz is not None and self.lipschitz.log10_upper < float("inf"):
            return self.lipschitz
        return self.observed or self.lipschitz

    @property
    def verdict(self) -> str:
        """What is to be said of the model first, in one sentence: what is wrong with it, or that nothing is."""
        return verdict(self.findings, self.layers)

    def to_pandas(self) -> pandas.DataFrame:
        """Return one line per row of `layers`, brackets and variances in columns of their own.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_pandas needs pandas: pip install pandas") from error
        lines = []
        for row in self.layers:
            apart = (*BRACKETS, "variance")
            line = {item.name: getattr(row, item.name) for item in fields(row) if item.name not in apart}
            for name in BRACKETS:
                bracket, variance = getattr(row, name), row.variance
                line[f"log10_{name}_lower"] = None if bracket is None else bracket.log10_lower
                line[f"log10_{name}_upper"] = None if bracket is None else bracket.log10_upper
                line[f"{name}_evidence"] = None if bracket is None else bracket.evidence.name
            for item in fields(Variance):
                line[f"variance_{item.name}"] = None if variance is None else getattr(variance, item.name)
            lines.append(line)
        return pandas.DataFrame(lines)

    def __repr__(self) -> str:
        found = ", ".join(f"{finding.code} in `{finding.where}`" for finding in self.findings[:3])
        more = f" and {len(self.findings) - 3} more" if len(self.findings) > 3 else ""
        return visible(f"<Audit of {self.name}: {len(self.layers)} layers, findings: {found or 'none'}{more}>")
