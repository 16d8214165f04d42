"""`curve`: one pass over data, from which DATA and several DOMAINs are taken, each with the share it speaks of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...calls.data_reader import Batches
from ...calls.stand_ins import accepts_graph
from ...core.bracket import Bracket
from ...core.budget import Progress, count
from ...core.codec import JsonForm, Part, Saved
from ...core.errors import InputError, JacobianError, check_numbers
from ...core.shown import Shown, data_frame
from ...core.untouched import Mode, outside_inference_mode
from ..captured import Bounding, Captured, check_option
from ..data.quantile import SHARES, DataBracket, check_shares, draws_needed
from ..data.streaming import INDEPENDENT, SampleNorms
from ..domain.domain import RECORDS, Coverage, Domain, Record, conditions_of, covered
from ..domain.domain_bounds import domain_sides
from ..domain.recording import Extremes, FigureRecorder
from ..point import first_samples
from ..rungs import upper_sides
from ..segments import GraphSteps

if TYPE_CHECKING:
    import pandas


QUANTILES = (0.005,)
"""Shares of the samples that each limit of a narrow domain leaves out."""
MARGINS = (0.0, 0.03, 0.1, 0.3, 1.0)
"""The margins by which wide domains are wider than what was seen, as in `normscope.domain`."""
SAMPLES = 1500
"""At most this many samples are read. Every fifth is fresh, which is enough to speak of 99 % with confidence 95 %."""
HELD_OUT = 5
"""Every so manieth sample does not define the domains: their coverage is measured on it."""
PASS_SHARE = 0.6
"""The share of a limited time that the pass over the data may take."""


@accepts_graph
@outside_inference_mode
def curve(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    quantiles: Sequence[float] = QUANTILES,
    margins: Sequence[float] = MARGINS,
    samples: int = SAMPLES,
    share: float = 0.99,
    confidence: float = 0.95,
    record: Record = "ranges",
    effort: Literal["fast", "tight"] = "fast",
    mode: Mode | None = None,
    output: str | int | None = None,
    known: Mapping[str, float] | None = None,
    rtol: float = 1e-3,
    max_seconds: float | None = None,
    seed: int = 0,
) -> ShareCurve:
    """Measure how much a small change of the input grows, against the share of the data that the figure speaks of.

    The data are read once. Four of five samples define domains (`normscope.domain`) of several widths, each inside the
    next: by `quantiles` narrower than what was seen, by `margins` wider. Each gets its bound and its coverage, the
    share of the other samples that lies inside. At the first samples the Jacobian norms are taken, whose quantiles are
    DATA. Samples count as independent draws of one distribution, on which the model was not trained: pass data that
    were held out, in random order.

    Args:
        model: any `torch.nn.Module` (or its captured graph) that can be traced.
        data: a batch (a tensor, a NumPy array, a tuple of arguments, a dict of them), an iterable of batches such as a
            `DataLoader`, or a data set; all batches are read. None for the batch of a captured graph.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        quantiles: shares of the samples that each single limit of a domain leaves outside.
        margins: as in `normscope.domain`.
        samples: how many to read, if there are so many; in train mode a batch is one sample.
        share: for DATA: the Jacobian norms are taken at as many samples as it takes to speak of this share.
        confidence: of every limit.
        record: `"ranges"` or `"gains"`, as in `normscope.domain`.
        effort: `"fast"` or `"tight"`, as in `normscope.lipschitz`.
        mode: `"train"`, `"eval"`, or None for the mode the model is in. Train mode has no DATA.
        output: which output to measure, for models with several.
        known: constants for modules nobody can see into, by module path.
        rtol: how tight the norms of single layers are asked to be.
        max_seconds: cuts short what takes longer, closed forms last (see `lipschitz`); `notes` say what was cut.
        seed: of the starts of Lanczos.

    Returns:
        The curve: `.limits(share)`, `.data`, `.domains`, `.everywhere`; prints as tables, and has `.to_html(path)`,
        `.to_json(path)`, `.to_pandas()`.

    Raises:
        InputError: there are no data, or an option is not what it can be.
        CaptureError: the model cannot be traced.
        MissingRuleError: operators without a rule.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).eval()
        >>> found = ns.curve(model, torch.randn(100, 4).split(20), margins=(0.0, 1.0), share=0.9)
        >>> found.domains[-1].bracket.log10_upper <= found.everywhere.log10_upper
        True
    """
    check_shares(share, confidence)
    check_option("error", effort)
    check_numbers(rtol=rtol, max_seconds=max_seconds, seed=seed)
    if record not in RECORDS:
        raise InputError(f"record is one of {', '.join(RECORDS)}, not {record!r}")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 2:
        raise InputError(f"samples is a whole number from 2 on, not {samples!r}")
    widths = checked_widths(quantiles, margins)
    batches = Batches(model, data, labels=labels)
    bounding = Bounding.within(max_seconds, rtol=rtol)
    captured = Captured.of(model, batches.first, bounding, mode=mode, output=output, known=known)
    return measured_curve(
        captured,
        batches,
        widths=widths,
        samples=samples,
        share=share,
        confidence=confidence,
        record=record,
        everywhere=upper_sides(captured, bounding, effort)["best"],
        effort=effort,
        bounding=bounding,
        seed=seed,
    )


def checked_widths(quantiles: Sequence[float], margins: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return pairs (quantile, margin) from the narrowest domain to the widest; refuse what cannot be one."""
    for name, values, top in (("quantiles", quantiles, 1.0), ("margins", margins, math.inf)):
        numbers = isinstance(values, Sequence) and all(isinstance(v, int | float) and 0.0 <= v < top for v in values)
        if isinstance(values, str) or not numbers:
            raise InputError(f"{name} are numbers from 0 up to (not including) {top:g}, not {values!r}")
    narrow = [(float(q), 0.0) for q in sorted(set(quantiles), reverse=True) if q > 0]
    wide = [(0.0, float(m)) for m in sorted({*margins, *([0.0] if 0 in quantiles else [])})]
    if not narrow + wide:
        raise InputError("quantiles and margins are both empty: name the widths of one domain at least")
    return (*narrow, *wide)


def measured_curve(
    captured: Captured,
    batches: Iterable[Any],
    *,
    widths: Sequence[tuple[float, float]],
    samples: int,
    share: float,
    confidence: float,
    everywhere: Bracket,
    bounding: Bounding,
    norms: int | None = None,
    record: str = "ranges",
    effort: str = "fast",
    seed: int = 0,
) -> ShareCurve:
    """Return the curve of a captured model, of which the bound over all inputs is known: one pass over the batches.

    Jacobian norms are taken at `norms` samples, by default at as many as it takes to speak of the share.
    """
    reading = bounding.budget.share(PASS_SHARE).search("the pass over the data")
    over_data = _Pass(captured, bounding, widths, samples, norms or draws_needed(share, confidence), record, seed)
    with Progress("recording domains") as progress:
        for batch in batches:
            over_data.add(batch)
            progress.step(f"sample {over_data.read} of {samples}")
            if over_data.enough or reading.over:
                break
    domains = over_data.domains(confidence, everywhere, effort)
    return ShareCurve(
        mode=captured.graph.mode,
        samples=over_data.extremes.samples,
        confidence=confidence,
        data=over_data.data(share, confidence),
        domains=domains,
        everywhere=everywhere,
        skipped=tuple(over_data.skipped.items()),
        notes=tuple(dict.fromkeys((INDEPENDENT, *captured.graph.notes, *bounding.budget.cuts))),
    )


class _Pass:
    """What is kept of the samples: the extremes of most, some fresh ones, and the Jacobian norms at the first."""

    def __init__(
        self,
        captured: Captured,
        bounding: Bounding,
        widths: Sequence[tuple[float, float]],
        samples: int,
        norms: int,
        record: str,
        seed: int,
    ) -> None:
        self.captured, self.bounding = captured, bounding
        self.widths, self.samples, self.needed, self.record = widths, samples, norms, record
        with torch.no_grad():
            steps = GraphSteps(captured.double, captured.segments.effects)
            conditions = conditions_of(steps, record)
        self.recorder = FigureRecorder(
            captured.model, captured.graph, steps, captured.mode, captured.output, conditions
        )
        self.extremes = Extremes(max(quantile for quantile, _ in widths) * samples)
        self.fresh: list[tuple[Tensor, Tensor]] = []
        self.read = 0
        self.defining: list[bool] = []
        self.skipped: dict[str, str] = {}
        self.norms: SampleNorms | None = None
        try:
            self.norms = SampleNorms(
                captured.model,
                mode=captured.mode,
                output=captured.output,
                rtol=bounding.rtol,
                seed=seed,
                graph=captured.traced,
            )
        except InputError as error:
            self.skipped["DATA"] = str(error)

    @property
    def enough(self) -> bool:
        """Whether as many samples as asked for were read."""
        return self.read >= self.samples and (self.norms is None or len(self.norms) >= self.needed)

    def add(self, batch: Any) -> None:
        """Record the samples of a batch."""
        device = self.captured.graph.inputs[0].value.device
        batch = tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, batch)
        taken = self.recorder.points(batch)
        if taken is None:  # of another size, where the function is that of a whole batch
            return
        points, expected = taken
        place = torch.arange(self.read, self.read + len(points), device=points.device)
        held = (place % HELD_OUT == HELD_OUT - 1) & (place < self.samples)
        used = ~held & (place < self.samples)
        if bool(used.any()):
            figures = self.recorder.checked_figures(points[used], expected[used])
            count("passes", int(used.sum()))
            self.extremes.add(figures, int(used.sum()))
        if bool(held.any()):
            own = self.captured.graph.inputs[0].value.dtype  # they come in it, and take less memory
            self.fresh.append((points[held].to(own), expected[held]))
        self.read += len(points)
        self.defining += used.tolist()
        if self.norms is not None and len(self.norms) < self.needed:
            try:
                self.norms.add(first_samples(batch, self.needed) if self.captured.graph.per_sample else batch)
            except (InputError, JacobianError) as error:
                self.norms, self.skipped["DATA"] = None, str(error)

    def data(self, share: float, confidence: float) -> DataBracket | None:
        """Return the quantiles of the Jacobian norms; None where there are none."""
        return None if self.norms is None else self.norms.quantile(share, confidence)

    def domains(self, confidence: float, everywhere: Bracket, effort: str) -> tuple[DomainPoint, ...]:
        """Return the domains with their bounds and coverages; a bound is also one for every narrower domain."""
        if not self.extremes.samples:
            raise InputError("every sample was kept aside to measure the coverage: pass more than one")
        bounded: list[tuple[Domain, Bracket]] = []
        for quantile, margin in reversed(self.widths):
            if bounded and self.bounding.closed_forms.late:
                break
            limits = self.extremes.settled(self.recorder.conditions, margin, quantile)
            domain = Domain(
                self.recorder,
                limits,
                samples=self.extremes.samples,
                margin=margin,
                quantile=quantile,
                record=self.record,
            )
            bracket = domain_sides(self.captured, domain, self.bounding, effort, everywhere=everywhere)["best"]
            if bounded and bounded[-1][1].log10_upper < bracket.log10_upper:
                bracket = bounded[-1][1]
            bounded.append((domain, bracket))
        covers = self._coverages([domain for domain, _ in bounded], confidence)
        # the largest Jacobian norm at a sample that defines the domains, and so lies in those that drop none: a bound
        # below it would be a bug, and a bracket says so
        lowers = [] if self.norms is None else [low for low, own in zip(self.norms.lowers, self.defining) if own]
        steepest = max(lowers, default=-math.inf)
        points = [
            DomainPoint(
                quantile=domain.quantile,
                margin=domain.margin,
                bracket=replace(bracket, log10_lower=-math.inf if domain.quantile > 0 else steepest),
                coverage=coverage,
            )
            for (domain, bracket), coverage in zip(bounded, covers, strict=True)
        ]
        return tuple(reversed(points))

    def _coverages(self, domains: Sequence[Domain], confidence: float) -> list[Coverage | None]:
        """Return the share of the fresh samples in each domain."""
        inside, total = [0] * len(domains), 0
        for points, expected in self.fresh:
            figures = self.recorder.checked_figures(points.double(), expected)
            count("passes", len(points))
            total += len(points)
            for i, domain in enumerate(domains):
                inside[i] += int((domain.excess(figures, len(points)) <= 0).sum())
        return [covered(number, total, confidence) if total else None for number in inside]


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainPoint(Part):
    """One of several domains that lie inside each other, all from one recording.

    Attributes:
        quantile: the share of the recorded samples that each limit leaves outside.
        margin: by how much every range is wider than what was seen.
        bracket: the bound over all inputs inside; the lower side is the largest Jacobian norm at a recorded sample that
            lies inside for certain, where there is one.
        coverage: of samples that did not define the domain; None where there were none.
    """

    quantile: float
    margin: float
    bracket: Bracket
    coverage: Coverage | None

    @property
    def width(self) -> str:
        """How wide the ranges are, in words."""
        if self.quantile > 0:
            return f"each range without its outer {100 * self.quantile:g} %"
        return f"ranges {100 * self.margin:g} % wider than seen" if self.margin > 0 else "ranges as seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCurve(Saved, Shown):
    """How much a small change of the input grows, against the share of the data that the figure speaks of.

    DATA and DOMAIN answer the same question with different strength. DATA: at a share of the distribution the Jacobian
    norm is at most this. DOMAIN: that share lies in a set, over ALL of which the Jacobian norm is at most this. Both
    hold with `confidence` for each share alone. Both speak of fresh draws from the distribution of the data; what
    DOMAIN says of the inputs inside holds for shifted and adversarial inputs as well, as long as they lie inside.

    Attributes:
        mode: `"train"` or `"eval"`.
        samples: how many samples (in train mode: batches) defined the domains.
        confidence: of every limit.
        data: the quantiles of the Jacobian norm; None where there are none (`skipped` says why).
        domains: from the narrowest to the widest, each inside the next.
        everywhere: the bound over all inputs.
        skipped: what was not measured, and why.
        notes: what the reader must know.
    """

    page = "normscope.auditing.share_curve:curve_document"
    JSON: ClassVar[JsonForm] = JsonForm(
        kind="share_curve", noun="curve over shares", write="write one with curve.to_json(path)"
    )

    mode: str
    samples: int
    confidence: float
    data: DataBracket | None
    domains: tuple[DomainPoint, ...]
    everywhere: Bracket
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=(), repr=False)

    def limits(self, share: float) -> tuple[float, float]:
        """Return log10 of the growth that a share of the data does not exceed: by DATA, and by DOMAIN.

        The figure of DOMAIN is that of the narrowest domain whose coverage has a lower limit of at least the share. The
        domains lie inside each other, so this choice costs no confidence.

        Args:
            share: of the distribution, between 0 and 1.

        Returns:
            Two exponents of ten; `inf` where there are too few samples to speak of that share.
        """
        check_shares(share, self.confidence)
        data = math.inf if self.data is None else self.data.limits(share, self.confidence)[1]
        inside = (p.bracket.log10_upper for p in self.domains if p.coverage is not None and p.coverage.lower >= share)
        return data, next(inside, math.inf)

    def reach(self, share: float) -> float | None:
        """Return the largest share, up to some, that the samples of DATA are enough to speak of; None for none."""
        shares = [s for s in sorted({*SHARES, share}) if s <= share and self.limits(s)[0] < math.inf]
        return shares[-1] if shares else None

    def domain(self, share: float) -> DomainPoint | None:
        """Return the narrowest domain in which at least a share of the fresh samples lies, otherwise the widest."""
        if not self.domains:
            return None
        covered = (p for p in self.domains if p.coverage is not None and p.coverage.share >= share)
        return next(covered, self.domains[-1])

    def to_pandas(self) -> pandas.DataFrame:
        """Return one line per point: `scope`, `share`, `share_seen`, `log10_upper`, and the width of a domain.

        `share` is the share of the distribution that the line speaks of with `confidence`. Of the points of DATA those
        are left out that the samples are too few for.

        Raises:
            InputError: pandas is not installed.
        """
        lines: list[dict[str, Any]] = []
        for share in SHARES:
            if self.data is not None and (high := self.limits(share)[0]) < math.inf:
                lines.append({"scope": "data", "share": share, "log10_upper": high, "evidence": "SAMPLED"})
        for point in self.domains:
            bracket, cover = point.bracket, point.coverage
            line = {"scope": "domain", "share": None if cover is None else cover.lower}
            line |= {"share_seen": None if cover is None else cover.share, "log10_upper": bracket.log10_upper}
            line |= {"quantile": point.quantile, "margin": point.margin, "evidence": bracket.evidence.name}
            lines.append(line)
        whole = {"scope": "global", "share": 1.0, "log10_upper": self.everywhere.log10_upper}
        lines.append(whole | {"evidence": self.everywhere.evidence.name})
        columns = ["scope", "share", "share_seen", "log10_upper", "quantile", "margin", "evidence"]
        return data_frame(lines, columns)
