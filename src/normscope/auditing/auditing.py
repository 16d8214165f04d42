"""`audit`: a model, a batch and a loader to one `Audit`, and its steps that bound the model.

The steps that look at the model and its data are in `audit_steps.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from ..bounds.bounds_by_method import BoundsByMethod, bound_by_all_methods
from ..bounds.data.quantile import DataBracket
from ..bounds.graph.capturing import warm_up_export
from ..bounds.graph_weights import multiplications, passes
from ..bounds.linalg.operator_norms import BOUNDING
from ..bounds.operators.invariance import FeedingLayer, feeds
from ..bounds.radius.radii import Radii
from ..bounds.radius.radius import audited_radii
from ..bounds.traced_network import BoundSettings, TracedNetwork
from ..bounds.weights.figures import WeightPlan
from ..bounds.weights.jacobian import LOWER_SIDES, JacobianSearch
from ..bounds.weights.weight_constants import measure as measure_sensitivity
from ..calls.batches import LossFunction
from ..calls.call import ALL_OUTPUTS
from ..calls.stand_ins import accepts_graph
from ..core.bracket import Bracket
from ..core.budget import GPU, Budget, Meter
from ..core.effort import Effort
from ..core.errors import CaptureError, InputError, JacobianError, check_numbers, describe_error
from ..core.finding import Finding
from ..core.provenance import provenance
from ..core.threads import warnings_at_callers
from ..core.untouched import Mode, mode_of, outside_inference_mode
from ..doctor.checking.checking import read_source, what_was_taken
from ..doctor.facts.data import DataSeen
from ..doctor.facts.forward_backward import weigh_divergence
from ..doctor.facts.loss import resolve_loss, takes_labels
from ..doctor.facts.pass_facts import PassFacts
from ..doctor.facts.steps import Optimizers, check_optimizers
from .audit_result import Audit
from .audit_steps import (
    NOT_REACHED,
    TRACED,
    AuditRequest,
    AuditTrace,
    Skipped,
    jacobians,
    pass_over_data,
    signal_by_depth,
    trace,
    wrong_backwards,
)
from .audited import Audited, AuditedRow, examined_rows
from .data_share import WHAT, audited_quantile, worth_it
from .findings import look_at_audit
from .normalizer_effects import NormalizerEffects
from .normalizer_pass import measure_normalizers
from .rows import first_names, from_data, from_graph, weight_norms

PARTS = (
    *("capture", "data", "signal", "Jacobians", "norms", "bounds", "shares", "radii", "sensitivity", "rows"),
    *("normalizers", "findings"),
)
"""What an audit does, in this order."""
THOROUGH = ("shares", "radii", "sensitivity")
"""Those of them that only a thorough audit does as a rule: a fast one takes shares of the data of a small network whose
bound over all inputs says nothing."""
LEFT_OUT = (
    "This was a fast audit. Certified radii, sensitivity to the weights, the optimised certificate and the search from "
    'below need effort="thorough"; so does the growth by share of the data (DATA) of most networks.'
)


@accepts_graph
@outside_inference_mode
@warnings_at_callers()
def audit(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    loader: Any = None,
    loss: LossFunction | str | None = None,
    optimizer: Optimizers | None = None,
    mode: Mode | None = None,
    output: str | int | None = None,
    known: Mapping[str, float] | None = None,
    effort: Literal["fast", "thorough"] = "fast",
    rtol: float = 1e-2,
    max_seconds: float | None = None,
    seed: int = 0,
    name: str | None = None,
) -> Audit:
    """Audit a model: what each layer and normalizer does, the network's Lipschitz bracket, and what is wrong.

    An audit is a `check` with bounds: it has every finding that `check` has, also where nothing can be bounded.
    The bounds speak of inputs of the first batch's shape. The variances and dead units are those of all the data. What
    cannot be measured is left out and listed in `skipped` with the reason; an operator without a rule makes the bound
    infinite and is named. The model is left exactly as found.

    Args:
        model: any `torch.nn.Module` (or its captured graph).
        data: a batch (a tensor, a NumPy array, a tuple of arguments, a dict of them), an iterable of batches such as a
            `DataLoader`, or a data set. The first batch is differentiated and bounded; all of them give the statistics,
            one at a time. None for the batch of a captured graph.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        loader: other data to take the statistics from.
        loss: as for `check`: gradients by depth are then those of the loss, and it is looked at whether outputs and
            targets fit it.
        optimizer: as for `check`: with a loss it is looked at what its next step would do.
        mode: which of the model's two functions to take, `"train"` or `"eval"`; None for the mode the model is in.
        output: which output to measure, by name or number, for models with several; all of them together if not given.
        known: constants for modules nobody can see into, by module path.
        effort: how much to measure: `"thorough"` adds to `"fast"` the optimised certificate, the search from below,
            certified radii, sensitivity to the weights, and with a loader the growth by share of the data, which take
            many times as long. A fast audit has norms, variances, constants at the data, gains, dead units, the ladder
            of bounds, Jacobians at a few samples and findings; with a loader also the growth by share of the data
            (`quantile`), from few samples, where the network is small and the bound over all inputs says nothing.
        rtol: how tight the norms of single layers are asked to be; ten times looser than elsewhere, as every layer is
            bounded.
        max_seconds: the time limit of the whole call: what does not fit is cut short or left out, and the report says
            what (`notes` and `skipped`). Closed forms may take a quarter more (see `lipschitz`), and a trace that
            takes less than ten seconds does not count.
        seed: the seed of random starts (Jacobians, searches).
        name: how the report calls the model; its class if not given.

    Returns:
        The audit: `.layers`, `.findings`, `.lipschitz`, `.observed`, `.quantile`, `.ladder`, `.cost`; prints as tables,
        and has `.to_html(path)`, `.to_json(path)`, `.to_pandas()`.

    Raises:
        InputError: the model does not accept the batch, or the data yield nothing, or the loss cannot be taken.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        >>> audit = ns.audit(model, torch.randn(64, 4))
        >>> [finding.code for finding in audit.findings if finding.severity == "warning"]
        []

    Reference: Than et al., Lemmas 1 to 3, Theorems 9 and 12, Corollaries 10, 11.
    """
    check_numbers(max_seconds=max_seconds, seed=seed)
    budget = Budget(max_seconds=warm_up_export(max_seconds), what="the audit")
    _check_options(effort, rtol, loss, optimizer)
    mode_of(model, mode)
    batches, source = read_source(model, data, labels, loader, with_loss=takes_labels(loss))
    request = AuditRequest.of(
        model,
        batches.first,
        mode=mode,
        loader=source,
        loss=resolve_loss(loss),
        optimizer=optimizer,
        output=output,
        known=known,
        thorough=effort == "thorough",
        rtol=rtol,
        seed=seed,
        budget=budget,
        meter=Meter(budget),
    )
    skipped: Skipped = []
    traced = trace(request, skipped)
    request = replace(request, output=traced.output)
    seen, per_batch = pass_over_data(request, traced.captured, skipped)
    sound = not request.broken and seen.not_finite is None
    signal = signal_by_depth(request, seen, per_batch, skipped)
    observed = jacobians(request, traced.captured, skipped) if sound and traced.in_time else None
    bounds: AuditBounds | None = None
    if traced.captured is not None:
        try:
            bounds = bounds_of_graph(request, traced.captured, seen, observed, sound=sound, skipped=skipped)
        except CaptureError as error:  # at a point that a bound rests on the model is not its graph
            skipped.append((TRACED, str(error)))
            traced = replace(traced, captured=None)
    bounds = bounds or bounds_without_graph(request, seen, observed)
    normalizers = None
    if traced.captured is not None and sound:
        normalizers = measure_normalizers(request, traced.captured, bounds.rows, bounds.feeds, skipped)
    with request.meter.part("findings"):
        audited = _audited(request, traced, seen, signal, bounds, sound=sound)
        findings = look_at_audit(audited)
    return _result(
        request,
        traced.captured,
        audited,
        bounds,
        observed=observed,
        normalizers=normalizers,
        findings=findings,
        skipped=skipped,
        name=name,
    )


def _check_options(effort: str, rtol: float, loss: Any, optimizer: Any) -> None:
    """Refuse options that no audit can have."""
    Effort.of(effort, Effort.FAST, Effort.THOROUGH, hint='; lipschitz and ladder know "tight"')
    if not rtol > 0:
        raise InputError(f"rtol is {rtol}: it must be positive")
    check_optimizers(optimizer)


def _audited(
    request: AuditRequest,
    traced: AuditTrace,
    data: DataSeen,
    signal: PassFacts | None,
    bounds: AuditBounds,
    *,
    sound: bool,
) -> Audited:
    """Return all that findings look at."""
    captured, divergence = traced.captured, None
    if request.broken and request.loss is not None:
        divergence = weigh_divergence(
            request.model, request.batch, mode=request.asked, output=request.output, loss=request.loss
        )
    return Audited(
        model=request.model,
        mode=request.mode,
        places=examined_rows(bounds.rows, bounds.feeds),
        data=data,
        rows=bounds.rows,
        feeds=bounds.feeds,
        graph=None if captured is None else captured.double,
        effects={} if captured is None else captured.segments.effects,
        mismatches=wrong_backwards(request, captured) if sound and traced.in_time else (),
        signal=signal,
        bounds=bounds.rungs,
        divergence=divergence,
    )


def _result(
    request: AuditRequest,
    captured: TracedNetwork | None,
    audited: Audited,
    bounds: AuditBounds,
    *,
    observed: Bracket | None,
    normalizers: NormalizerEffects | None,
    findings: tuple[Finding, ...],
    skipped: Skipped,
    name: str | None,
) -> Audit:
    """Return everything that was found as one `Audit`."""
    data = audited.data
    return Audit(
        name=name or type(request.model).__name__,
        mode=request.mode,
        parameters=sum(p.numel() for p in request.model.parameters()),
        samples=data.samples,
        batches=data.batches,
        input_shape=None if captured is None else captured.graph.input_shape,
        output_shape=None if captured is None else captured.graph.output_shape,
        lipschitz=bounds.rungs.get("best"),
        observed=observed,
        ladder=bounds.rungs,
        radii=bounds.radii,
        quantile=bounds.quantile,
        layers=tuple(one.row for one in bounds.rows),
        normalizers=normalizers,
        signal=audited.signal,
        findings=findings,
        skipped=tuple(skipped) + _unmatched(audited),
        notes=_notes(request, captured, data, audited.signal),
        provenance=provenance(request.device),
        cost=request.meter.cost(),
        seconds=request.budget.elapsed,
    )


def _notes(
    request: AuditRequest, captured: TracedNetwork | None, data: DataSeen, signal: PassFacts | None
) -> tuple[str, ...]:
    """Return what the reader is told beside the figures, each sentence once."""
    notes = [] if captured is None else [*captured.graph.notes]
    notes += what_was_taken(signal, request.output)
    if request.loader is None:
        notes.append(f"statistics come from the batch alone ({data.samples} samples): pass loader= for more")
    if captured is not None and not request.thorough:
        notes.append(LEFT_OUT)
    return tuple(dict.fromkeys((*notes, *request.budget.cuts)))


def _unmatched(audited: Audited) -> tuple[tuple[str, str], ...]:
    """Say which layers ran but have no row."""
    if audited.graph is None:
        return ()
    rows = {one.row.path for one in audited.rows}
    rows |= {one.node.path for one in audited.rows if one.node is not None}
    rows |= {first for name, first in first_names(audited.model).items() if name in rows}
    reason = "not on the path from the input to the output"
    if any(not one.row.path for one in audited.rows):
        reason += ", or torch.export lost its name (rows without a path)"
    ran = dict.fromkeys(site[0] for site in (*audited.data.weights, *audited.data.normalizers))
    return tuple((path or "(top level)", reason) for path in ran if path not in rows)


BOUNDS_SHARE, QUANTILE_SHARE, RADII_SHARE, SENSITIVITY_SHARE, SEARCHES_SHARE = 0.6, 0.4, 0.5, 0.8, 0.8
"""Shares of the time that is left, where it is limited: of the bounds, the shares of the data, the radii and the
sensitivities, and what the searches of each may take of that."""
FAST_BOUNDS_SHARE = 0.9
"""What the bounds of a fast audit may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditBounds:
    """The rows of the layers, and what was bounded of the network where it could be traced.

    Attributes:
        rows: one per layer.
        rungs: brackets by method.
        feeds: which weight layers feed which normalizer.
        quantile: growth by share of the data.
        radii: certified radii.
    """

    rows: tuple[AuditedRow, ...]
    rungs: dict[str, Bracket]
    feeds: tuple[FeedingLayer, ...] = ()
    quantile: DataBracket | None = None
    radii: Radii | None = None


def bounds_without_graph(request: AuditRequest, data: DataSeen, observed: Bracket | None) -> AuditBounds:
    """Return the norms of the layers that ran, of a model that was not traced."""
    with request.meter.part("norms"):
        rows = from_data(request.model, data, request.bounding().bracket)
    return AuditBounds(rows=rows, rungs={} if observed is None else {"observed": observed})


def bounds_of_graph(
    request: AuditRequest,
    captured: TracedNetwork,
    data: DataSeen,
    observed: Bracket | None,
    *,
    sound: bool,
    skipped: Skipped,
) -> AuditBounds:
    """Return every bound of a traced model that the effort asks for; `sound` says whether its values are finite."""
    budget, meter = request.budget, request.meter
    bounding = request.bounding(budget.share(BOUNDS_SHARE if request.thorough else FAST_BOUNDS_SHARE))
    with meter.part("norms"):
        norms = weight_norms(captured, bounding)
    with meter.part("bounds"):
        effort = Effort.TIGHT if request.thorough else Effort.FAST
        rungs = bound_by_all_methods(
            captured, bounding, observed, request.seed, effort, search=request.thorough, proofs=False
        )
    wanted = sound and (request.thorough or worth_it(captured, rungs))
    quantile = _quantile(request, captured, skipped) if wanted else None
    radii: Radii | None = None
    sensitivity: dict[str, Bracket] = {}
    if request.thorough and sound:
        with meter.part("radii"):
            radii = _radii(request, captured, rungs, skipped)
        with meter.part("sensitivity"):
            sensitivity = _sensitivity(request, captured, skipped)
    fed = feeds(captured.graph)  # not of the doubled graph, whose shared tensors are copies
    with meter.part("rows"):
        rows = from_graph(
            captured,
            request.bounding(),
            data,
            fed,
            observed,
            norms=norms,
            values=rungs.nodes,
            sensitivity=sensitivity,
        )
    return AuditBounds(rows=rows, rungs=dict(rungs), feeds=fed, quantile=quantile, radii=radii)


def _quantile(request: AuditRequest, captured: TracedNetwork, skipped: Skipped) -> DataBracket | None:
    """Return the growth by share of the data; say that there was no time for it."""
    loader = request.loader
    if loader is None:
        return None
    limited = request.budget.share(QUANTILE_SHARE)

    def bound_quantile() -> tuple[DataBracket | None, ...]:
        brief, bounding = not request.thorough, request.bounding(limited)
        return (audited_quantile(captured, loader, skipped, brief=brief, bounding=bounding, seed=request.seed),)

    with request.meter.part("shares"):
        found = limited.attempt(bound_quantile, lambda: ())
    skipped += [] if found else [(WHAT, NOT_REACHED)]
    return found[0] if found else None


def _radii(request: AuditRequest, captured: TracedNetwork, rungs: BoundsByMethod, skipped: Skipped) -> Radii | None:
    """Return the certified radii, or say why there are none."""
    if request.output == ALL_OUTPUTS:
        skipped.append(
            ("certified radii", "several outputs together are no scores of classes: choose one with output=")
        )
        return None
    budget = request.budget.share(RADII_SHARE)
    bounding = request.bounding(budget.share(SEARCHES_SHARE))
    found = budget.attempt(
        lambda: (audited_radii(captured, bounding, values=rungs.nodes, seed=request.seed),), lambda: ()
    )
    skipped += [] if found else [("certified radii", NOT_REACHED)]
    return found[0] if found else None


def _sensitivity(request: AuditRequest, captured: TracedNetwork, skipped: Skipped) -> dict[str, Bracket]:
    """Return the sensitivities to the weights, or say that there was no time for them."""
    budget = request.budget.share(SENSITIVITY_SHARE)
    bounding = request.bounding(budget.share(SEARCHES_SHARE))
    found = budget.attempt(lambda: sensitivities(captured, bounding, request.seed, skipped), lambda: None)
    skipped += [] if found is not None else [("sensitivity to the weights", NOT_REACHED)]
    return found or {}


SAMPLES = 2
"""This many samples of the batch are measured."""
SEARCH_STEPS, SEARCH_WORK = 2000, 1e10
"""Steps of the search for lower sides, and multiplications of one pass over all of them."""
NORM_WORK = 2e10
"""Multiplications for the norms of maps that the bounds of the audit do not know yet; then cheaper ones are taken."""
MAX_SEARCH_MULTIPLICATIONS = 3e8
"""Models that take more in one pass have no lower sides: these need a dozen passes in float64, and one per weight."""
MANY_OUTPUTS_LANCZOS_STEPS = 4
"""How many steps Lanczos takes where a model has many outputs."""
SIDE = 128
"""Segments of several sources up to this size are written out side by side."""
SENSITIVITY = "sensitivity to the weights"


def sensitivities(
    captured: TracedNetwork, bounding: BoundSettings, seed: int, skipped: list[tuple[str, str]]
) -> dict[str, Bracket]:
    """Return norm(h, W) of every weight layer by node name, at the first samples; what is left out goes to `skipped`.

    To be called when the audit has bounded the network, whose norms are used again.
    """
    large = multiplications(captured.double) > MAX_SEARCH_MULTIPLICATIONS
    if large:
        skipped.append(
            (f"lower sides of the {SENSITIVITY}", "the model is large: normscope.weight_sensitivity takes the time")
        )
    steps = 0 if large else passes(captured.double, SEARCH_STEPS, work=SEARCH_WORK)
    search = JacobianSearch(
        rtol=bounding.rtol,
        steps=MANY_OUTPUTS_LANCZOS_STEPS,
        seed=seed,
        budget=bounding.budget.search(LOWER_SIDES, steps),
    )
    norms = NORM_WORK * (GPU if captured.double.inputs[0].value.device.type == "cuda" else 1.0)
    plan = WeightPlan(
        search=search,
        samples=1 if large else SAMPLES,
        chain_cost=-1.0,
        side=SIDE,
        norms=bounding.norms.search(BOUNDING, norms),
        witnesses=False,
    )
    try:
        result, rows = measure_sensitivity(captured, bounding, plan)
    except (InputError, JacobianError, RuntimeError, NotImplementedError) as error:
        skipped.append((SENSITIVITY, describe_error(error)))
        return {}
    skipped.extend((f"{SENSITIVITY} of {path}", why) for path, why in result.skipped)
    return {name: replace(row.bracket_h, per_sample=None, notes=row.notes) for name, row in rows.items()}
