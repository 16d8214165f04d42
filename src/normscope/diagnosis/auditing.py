"""`audit`: a model, a batch and a loader to one `Audit`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..bounds.backward import Mismatch, mismatches
from ..bounds.point import first_samples, jacobian_norms
from ..bounds.radius.radii import Radii
from ..bounds.radius.radius import audited_radii
from ..bounds.work import Work, check_option
from ..core.bracket import Bracket
from ..core.budget import Budget
from ..core.errors import CaptureError, InputError, JacobianError, NotFiniteError
from ..core.provenance import provenance
from ..core.untouched import mode_of, outside_inference_mode
from ..graph.call import broken_tensors
from ..graph.invariance import Feed, feeds
from ..graph.ir import Unit
from .examined import DataSeen, Examined
from .findings import look
from .result import Audit
from .rows import from_data, from_graph, weight_norms
from .sensitivities import sensitivities
from .streaming import first_names, watch_data

BOUNDS_SHARE = 0.6
"""Of the time, where it is limited, that the bounds of the network may take; radii and sensitivities have the rest."""
OBSERVED_SAMPLES = 8
"""Jacobians are taken at this many samples of the batch; each costs dozens of passes through the model."""


@outside_inference_mode
def audit(
    model: nn.Module,
    batch: Any,
    *,
    loader: Iterable[Any] | None = None,
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
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        output: which output to measure, for models with several.
        known: constants for modules nobody can see into, by module path.
        effort: `"fast"`, `"tight"` or `"exact"`: how hard the network's bound is worked on, as in `lipschitz`.
        rtol: how tight the norms of single layers are asked to be.
        max_seconds: cuts short bounds, radii and sensitivities that take longer, not the pass over the data nor the
            Jacobians at the batch; `notes` says what was cut.
        seed: of the search from below.
        name: how the report calls the model; its class if not given.

    Returns:
        The audit: `.layers`, `.findings`, `.lipschitz`, `.observed`, `.ladder`; prints as tables, and has
        `.to_html(path)`, `.to_json(path)`, `.to_pandas()`.

    Raises:
        InputError: the model does not accept the batch, or the loader yields nothing.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        >>> audit = ns.audit(model, torch.randn(64, 4))
        >>> [finding.code for finding in audit.findings if finding.severity == "warning"]
        []

    Reference: Than et al., Lemmas 1 to 3, Theorems 9 and 12, Corollaries 10, 11.
    """
    budget = Budget(max_seconds=max_seconds, what="the audit")
    check_option("inf", effort)
    if not rtol > 0:
        raise InputError(f"rtol is {rtol}: it must be positive")
    if loader is not None and not hasattr(loader, "__iter__"):
        raise InputError(f"loader is a {type(loader).__name__}: pass something that yields batches")
    asked, mode = mode, mode_of(model, mode)
    model = _unwrapped(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batch = tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, batch)
    skipped: list[tuple[str, str]] = []
    broken = broken_tensors(model)
    work: Work | None = None
    if broken:
        skipped += [("bounds and Jacobians", f"{name} {what}") for name, what in list(broken.items())[:1]]
    else:
        options = {"mode": asked, "output": output, "known": known, "rtol": rtol, "budget": budget.share(BOUNDS_SHARE)}
        work = _traced(model, batch, options, skipped)
    data = watch_data(model, [batch] if loader is None else loader, mode=asked, written=_written(work))
    if data.error is not None:
        if not broken:
            raise InputError(f"{data.error}. Pass batches the model accepts: model(batch) must work.")
        skipped.append(("statistics over the data", data.error))
    if data.not_finite is not None and work is not None:
        skipped.append(("Jacobians at the batch", f"the data make {data.not_finite[0] or 'the model'} return NaN"))
    observed: Bracket | None = None
    if not broken and data.not_finite is None:
        observed = _observed(work, model, batch, {"mode": asked, "output": output, "rtol": rtol, "seed": seed}, skipped)
    rungs = {} if observed is None else {"observed": observed}
    fed: tuple[Feed, ...] = ()
    radii: Radii | None = None
    if work is None:
        places = from_data(model, data, rtol)
    else:
        norms = weight_norms(work)
        rungs = {name: replace(rung, proof=None) for name, rung in work.climb(observed, seed, effort).items()}
        radii = None if data.not_finite is not None else audited_radii(work, budget=budget.share(0.5), seed=seed)
        fed = feeds(work.graph)  # not of the doubled graph, whose shared tensors are copies
        sensitivity = {} if data.not_finite is not None else sensitivities(work, budget, seed, skipped)
        places = from_graph(work, data, fed, norms, observed, sensitivity)
    examined = Examined(
        model=model,
        mode=mode,
        places=places,
        data=data,
        feeds=fed,
        graph=None if work is None else work.double,
        effects={} if work is None else work.segments.effects,
        mismatches=() if broken or data.not_finite is not None else _mismatches(work, model, batch, asked, output),
        bounds=rungs,
    )
    notes = () if work is None else work.graph.notes
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
        layers=tuple(place.row for place in places),
        findings=look(examined),
        skipped=tuple(skipped) + _unmatched(examined),
        notes=tuple(dict.fromkeys((*notes, *_data_notes(loader, data), *budget.cuts))),
        provenance=provenance(device),
        seconds=budget.elapsed,
    )


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile, DataParallel or DistributedDataParallel."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _traced(model: nn.Module, batch: Any, options: dict[str, Any], skipped: list[tuple[str, str]]) -> Work | None:
    """Capture the model and fold its segments, or say why not."""
    try:
        return Work(model, batch, on_missing="inf", **options)
    except CaptureError as error:
        skipped.append(("bounds over all inputs, folded and cumulative gains, sensitivity to the weights", str(error)))
    except NotFiniteError as error:
        skipped.append(("bounds and Jacobians", str(error)))
    return None


def _observed(
    work: Work | None, model: nn.Module, batch: Any, options: dict[str, Any], skipped: list[tuple[str, str]]
) -> Bracket | None:
    """Return the Jacobian norms at the first samples of the batch, or say why not."""
    try:
        if work is not None:
            return work.observed(options["seed"], OBSERVED_SAMPLES)
        eval_mode = mode_of(model, options["mode"]) == "eval"
        few = first_samples(batch, OBSERVED_SAMPLES) if eval_mode else batch
        return jacobian_norms(model, few, **options)
    except (JacobianError, CaptureError, InputError) as error:
        skipped.append(("Jacobian norms at the batch", str(error)))
    return None


def _mismatches(
    work: Work | None, model: nn.Module, batch: Any, mode: str | None, output: str | int | None
) -> tuple[Mismatch, ...]:
    """Return the modules whose backward is not the derivative of their forward; none where nothing can be said."""
    try:
        return mismatches(model, batch, None if work is None else work.graph, mode=mode, output=output)
    except (RuntimeError, NotImplementedError, InputError):  # a model whose backward cannot be run at all
        return ()


def _written(work: Work | None) -> dict[str, float]:
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
