"""`audit`: a model, a batch and a loader to one `Audit`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..bounds.autograd_check import Mismatch, mismatches
from ..bounds.captured import OBSERVED_RTOL, OBSERVED_SAMPLES, Captured
from ..bounds.curve.shares import ShareCurve
from ..bounds.domain.domain import Domain
from ..bounds.point import first_samples, jacobian_norms
from ..bounds.radius.radii import Radii
from ..bounds.radius.radius import audited_radii
from ..core.bracket import Bracket
from ..core.budget import Budget
from ..core.cost import Meter
from ..core.errors import CaptureError, InputError, JacobianError, NotFiniteError
from ..core.options import check_numbers
from ..core.provenance import provenance
from ..core.untouched import mode_of, outside_inference_mode, unwrapped
from ..graph.call import broken_tensors
from ..graph.capturing import NO_TIME, capture_within, expected_seconds, warmed
from ..graph.invariance import FeedingLayer, feeds
from ..graph.ir import Unit
from ..linalg.operator_norms import BOUNDING, bracket
from .audit_result import Audit
from .data_pass import first_names, watch_data
from .examined import DataSeen, Examined
from .findings import look
from .rows import from_data, from_graph, weight_norms
from .scope_shares import WHAT, audited_curve, worth_it
from .sensitivities import sensitivities
from .signal import Signal
from .signal_pass import watch_signal

PARTS = (
    *("capture", "data", "signal", "Jacobians", "norms", "bounds", "shares", "radii", "sensitivity", "rows"),
    "findings",
)
"""What an audit does, in this order."""
THOROUGH = ("shares", "radii", "sensitivity")
"""Those of them that only a thorough audit does as a rule: a fast one takes shares of the data over a domain that it is
given, and of a small network whose bound over all inputs says nothing."""
TRACED = "bounds over all inputs, folded and cumulative gains, sensitivity to the weights"
"""What needs a traced model."""
DEPTHS = ("fast", "thorough")
"""How much an audit measures."""
LEFT_OUT = (
    "This was a fast audit. Certified radii, sensitivity to the weights, the optimised certificate and the search from "
    'below need effort="thorough"; so does the whole curve of growth by share of the data (DATA and DOMAIN), which '
    "also needs loader=."
)
CAPTURE_SHARE, DATA_SHARE, JACOBIAN_SHARE = 0.75, 0.3, 0.3
BOUNDS_SHARE, CURVE_SHARE, RADII_SHARE, SENSITIVITY_SHARE, SEARCHES_SHARE = 0.6, 0.4, 0.5, 0.8, 0.8
"""Of the time that is left, where it is limited: what the trace, the data, the Jacobians, the bounds, the shares of
data, the radii and the sensitivities may take, and of theirs what their searches may."""
SIGNAL_PASSES, BRIEF = 3, 0.1
"""Passes over the batch that values and gradients by depth take, and seconds below which they are taken anyway."""
NOT_REACHED = "max_seconds left no time for it: raise max_seconds"


@outside_inference_mode
def audit(
    model: nn.Module,
    batch: Any,
    *,
    loader: Iterable[Any] | None = None,
    domain: Domain | None = None,
    mode: str | None = None,
    output: str | int | None = None,
    known: Mapping[str, float] | None = None,
    effort: str = "fast",
    rtol: float = 1e-2,
    max_seconds: float | None = None,
    seed: int = 0,
    name: str | None = None,
) -> Audit:
    """Audit a model: what each layer and normalizer does, the network's Lipschitz bracket, and what is wrong.

    The bounds speak of inputs of the batch's shape. The variances and dead units are those of the loader, or of the
    batch without one. What cannot be measured is left out and listed in `skipped` with the reason; an operator without
    a rule makes the bound infinite and is named. The model is left exactly as found.

    Args:
        model: any `torch.nn.Module`.
        batch: what the model takes: a tensor, a tuple of arguments or a dict of them.
        loader: batches to take the statistics from, one at a time (a `DataLoader`, a list, a generator).
        domain: what `normscope.domain` recorded with this model: the audit then has the bound over it, and the share of
            the loader's samples inside. They must not be those that defined it.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        output: which output to measure, for models with several.
        known: constants for modules nobody can see into, by module path.
        effort: `"fast"`: norms, variances, constants at the data, gains, dead units, the ladder of bounds, Jacobians at
            a few samples, findings. `"thorough"`: also the optimised certificate, the search from below, certified
            radii, sensitivity to the weights, and with a loader the growth by share of the data (`curve`), which take
            many times as long. A fast audit with a loader has one point of the curve where the network is small and the
            bound over all inputs says nothing.
        rtol: how tight the norms of single layers are asked to be.
        max_seconds: of the whole call. What does not fit is cut short or left out, and `notes` and `skipped` say what.
        seed: of random starts (Jacobians, searches).
        name: how the report calls the model; its class if not given.

    Returns:
        The audit: `.layers`, `.findings`, `.lipschitz`, `.observed`, `.curve`, `.ladder`, `.cost`; prints as tables,
        and has `.to_html(path)`, `.to_json(path)`, `.to_pandas()`.

    Raises:
        InputError: the model does not accept the batch, or the loader yields nothing, or the domain is of another
            network.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        >>> audit = ns.audit(model, torch.randn(64, 4))
        >>> [finding.code for finding in audit.findings if finding.severity == "warning"]
        []

    Reference: Than et al., Lemmas 1 to 3, Theorems 9 and 12, Corollaries 10, 11.
    """
    check_numbers(max_seconds=max_seconds, seed=seed)
    budget = Budget(max_seconds=warmed(max_seconds), what="the audit")
    if effort not in DEPTHS:
        raise InputError(
            f'effort is "fast" or "thorough", not {effort!r}; lipschitz and ladder know "tight" and "exact"'
        )
    thorough = effort == "thorough"
    if not rtol > 0:
        raise InputError(f"rtol is {rtol}: it must be positive")
    if loader is not None and not hasattr(loader, "__iter__"):
        raise InputError(f"loader is a {type(loader).__name__}: pass something that yields batches")
    meter = Meter(budget)
    asked, mode = mode, mode_of(model, mode)
    model = unwrapped(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batch = tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, batch)
    skipped: list[tuple[str, str]] = []
    broken = broken_tensors(model)
    work: Captured | None = None
    in_time = not budget.limited or _time_to_capture(model, batch, asked, budget)
    if broken:
        skipped += [("bounds and Jacobians", f"{name} {what}") for name, what in list(broken.items())[:1]]
    elif not in_time:
        skipped.append((f"{TRACED}, Jacobians", NO_TIME))
    else:
        with meter.part("capture"):
            options = {
                "mode": asked,
                "output": output,
                "known": known,
                "rtol": rtol,
                "budget": budget.share(CAPTURE_SHARE),
            }
            work = _traced(model, batch, options, skipped)
        in_time = (TRACED, NO_TIME) not in skipped
    began = budget.elapsed
    with meter.part("data"):
        batches = [batch] if loader is None else loader
        data = watch_data(model, batches, mode=asked, written=_written(work), budget=budget.share(DATA_SHARE))
    if data.error is not None:
        if not broken:
            raise InputError(f"{data.error}. Pass batches the model accepts: model(batch) must work.")
        skipped.append(("statistics over the data", data.error))
    if data.not_finite is not None and work is not None:
        skipped.append(("Jacobians at the batch", f"the data make {data.not_finite[0] or 'the model'} return NaN"))
    sound = not broken and data.not_finite is None
    signal: Signal | None = None
    passes = SIGNAL_PASSES * (budget.elapsed - began) / max(data.batches, 1)
    if not broken and passes > BRIEF and not budget.time_for(passes, 1.0):
        skipped.append(("values and gradients by depth", NOT_REACHED))
    elif not broken:
        with meter.part("signal"):
            signal = _signal(model, batch, asked, output, data, skipped)
    observed: Bracket | None = None
    if sound and in_time:
        options = {"mode": asked, "output": output, "seed": seed, "budget": budget.share(JACOBIAN_SHARE)}
        with meter.part("Jacobians"):
            observed = _observed(work, model, batch, options, skipped)
    rungs = {} if observed is None else {"observed": observed}
    fed: tuple[FeedingLayer, ...] = ()
    radii: Radii | None = None
    curve: ShareCurve | None = None
    if domain is not None and work is not None:
        domain.check(work.double)
    if work is None:
        with meter.part("norms"):
            places = from_data(model, data, lambda m: bracket(m, rtol=rtol, budget=budget.search(BOUNDING)))
    else:
        work.provable = False
        work.limit(budget.share(BOUNDS_SHARE if thorough else 0.9))
        with meter.part("norms"):
            norms = weight_norms(work)
        with meter.part("bounds"):
            rungs = work.climb(observed, seed, "tight" if thorough else "fast", search=thorough)
        if sound and (domain is not None or (loader is not None and (thorough or worth_it(work, rungs)))):
            limited = budget.share(CURVE_SHARE)
            with meter.part("shares"):
                curve = _curve(
                    work,
                    loader,
                    rungs["best"],
                    {"domain": domain, "brief": not thorough, "budget": limited, "seed": seed},
                    skipped,
                )
        sensitivity: dict[str, Bracket] = {}
        if thorough and sound:
            with meter.part("radii"):
                radii = _radii(work, budget.share(RADII_SHARE), seed, skipped)
            with meter.part("sensitivity"):
                sensitivity = _sensitivity(work, budget.share(SENSITIVITY_SHARE), seed, skipped)
        work.limit(budget)
        fed = feeds(work.graph)  # not of the doubled graph, whose shared tensors are copies
        with meter.part("rows"):
            places = from_graph(work, data, fed, norms, observed, sensitivity)
    with meter.part("findings"):
        examined = Examined(
            model=model,
            mode=mode,
            places=places,
            data=data,
            feeds=fed,
            graph=None if work is None else work.double,
            effects={} if work is None else work.segments.effects,
            mismatches=_mismatches(work, model, batch, asked, output, budget) if sound and in_time else (),
            signal=signal,
            bounds=rungs,
        )
        findings = look(examined)
    notes = [*(() if work is None else work.graph.notes), *_data_notes(loader, data)]
    notes += [] if thorough or work is None else [LEFT_OUT]
    return Audit(
        name=name or type(model).__name__,
        mode=mode,
        parameters=sum(p.numel() for p in model.parameters()),
        samples=data.samples,
        batches=data.batches,
        input_shape=None if work is None else work.graph.input_shape,
        output_shape=None if work is None else work.graph.output_shape,
        lipschitz=rungs.get("best"),
        observed=observed,
        ladder=rungs,
        radii=radii,
        curve=curve,
        layers=tuple(place.row for place in places),
        signal=signal,
        findings=findings,
        skipped=tuple(skipped) + _unmatched(examined),
        notes=tuple(dict.fromkeys((*notes, *budget.cuts))),
        provenance=provenance(device),
        cost=meter.cost(),
        seconds=budget.elapsed,
    )


def _time_to_capture(model: nn.Module, batch: Any, mode: str | None, budget: Budget) -> bool:
    """Say whether tracing a model leaves a share of the time that there is."""
    return budget.share(CAPTURE_SHARE).time_for(expected_seconds(model, batch, mode), 1.0)


def _traced(model: nn.Module, batch: Any, options: dict[str, Any], skipped: list[tuple[str, str]]) -> Captured | None:
    """Capture the model and fold its segments, or say why not."""
    try:
        graph = capture_within(options["budget"], model, batch, mode=options["mode"], output=options["output"])
        return Captured(model, batch, on_missing="inf", captured=graph, **options)
    except CaptureError as error:
        skipped.append((TRACED, str(error)))
    except NotFiniteError as error:
        skipped.append(("bounds and Jacobians", str(error)))
    return None


def _signal(
    model: nn.Module,
    batch: Any,
    mode: str | None,
    output: str | int | None,
    data: DataSeen,
    skipped: list[tuple[str, str]],
) -> Signal | None:
    """Return values and gradients by depth, or say why not."""
    try:
        signal = watch_signal(model, batch, mode=mode, output=output, units=data.units)
    except InputError as error:
        skipped.append(("values and gradients by depth", str(error)))
        return None
    if signal.reason is not None:
        skipped.append(("gradients by depth", signal.reason))
    return signal


def _observed(
    work: Captured | None, model: nn.Module, batch: Any, options: dict[str, Any], skipped: list[tuple[str, str]]
) -> Bracket | None:
    """Return the Jacobian norms at the first samples of the batch, or say why not."""
    budget = options["budget"]

    def norms() -> Bracket:
        if work is not None:
            return work.observed(options["seed"], budget)
        eval_mode = mode_of(model, options["mode"]) == "eval"
        few = first_samples(batch, OBSERVED_SAMPLES) if eval_mode else batch
        return jacobian_norms(model, few, rtol=OBSERVED_RTOL, **options)

    try:
        found = budget.attempt(norms, lambda: None)
        if found is None:
            skipped.append(("Jacobian norms at the batch", NOT_REACHED))
        return found
    except (JacobianError, CaptureError, InputError) as error:
        skipped.append(("Jacobian norms at the batch", str(error)))
    return None


def _curve(
    work: Captured,
    loader: Iterable[Any] | None,
    everywhere: Bracket,
    options: dict[str, Any],
    skipped: list[tuple[str, str]],
) -> ShareCurve | None:
    """Return the growth by share of the data, or say that there was no time for it."""
    found = options["budget"].attempt(
        lambda: (audited_curve(work, loader, everywhere, skipped, **options),), lambda: ()
    )
    skipped += [] if found else [(WHAT, NOT_REACHED)]
    return found[0] if found else None


def _radii(work: Captured, budget: Budget, seed: int, skipped: list[tuple[str, str]]) -> Radii | None:
    """Return the certified radii, or say that there was no time for them."""
    searching = budget.share(SEARCHES_SHARE)
    work.limit(searching)
    found = budget.attempt(lambda: (audited_radii(work, budget=searching, seed=seed),), lambda: ())
    skipped += [] if found else [("certified radii", NOT_REACHED)]
    return found[0] if found else None


def _sensitivity(work: Captured, budget: Budget, seed: int, skipped: list[tuple[str, str]]) -> dict[str, Bracket]:
    """Return the sensitivities to the weights, or say that there was no time for them."""
    searching = budget.share(SEARCHES_SHARE)
    work.limit(searching)
    found = budget.attempt(lambda: sensitivities(work, searching, seed, skipped), lambda: None)
    skipped += [] if found is not None else [("sensitivity to the weights", NOT_REACHED)]
    return found or {}


def _mismatches(
    work: Captured | None, model: nn.Module, batch: Any, mode: str | None, output: str | int | None, budget: Budget
) -> tuple[Mismatch, ...]:
    """Return the modules whose backward is not the derivative of their forward; none where nothing can be said."""
    try:
        graph = None if work is None else work.graph
        return budget.attempt(lambda: mismatches(model, batch, graph, mode=mode, output=output), lambda: ())
    except (RuntimeError, NotImplementedError, InputError):  # a model whose backward cannot be run at all
        return ()


def _written(work: Captured | None) -> dict[str, float]:
    """Return the modules that are an RMSNorm of their own input, written out in operators, with their eps."""
    if work is None:
        return {}
    found = {}
    for node in work.graph:
        if isinstance(node.op, Unit) and node.op.name == "rms" and node.path:
            inside = [other for other in work.graph if f"{other.path}.".startswith(f"{node.path}.")]
            names = {other.name for other in inside}
            read = {ref for other in inside for ref in other.refs if ref not in names}
            if node.op.data["dims"] == (len(node.shape) - 1,) and read == set(node.refs):
                found[node.path] = float(node.op.data["eps"])
    return found


def _unmatched(examined: Examined) -> tuple[tuple[str, str], ...]:
    """Say which layers ran but have no row."""
    if examined.graph is None:
        return ()
    rows = {place.row.path for place in examined.places}
    rows |= {place.node.path for place in examined.places if place.node is not None}
    rows |= {first for name, first in first_names(examined.model).items() if name in rows}
    reason = "not on the path from the input to the output"
    if any(not place.row.path for place in examined.places):
        reason += ", or torch.export lost its name (rows without a path)"
    ran = dict.fromkeys(site[0] for site in (*examined.data.weights, *examined.data.normalizers))
    return tuple((path or "(top level)", reason) for path in ran if path not in rows)


def _data_notes(loader: Any, data: DataSeen) -> list[str]:
    if loader is None:
        return [f"statistics come from the batch alone ({data.samples} samples): pass loader= for more"]
    return []
