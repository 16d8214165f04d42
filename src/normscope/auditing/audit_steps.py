"""The steps of `audit` that look at the model and its data: the trace, the pass over the data, signal, Jacobians.

Each returns what it found; what it could not measure it adds to `skipped`, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..bounds.derivative import Mismatch, mismatches
from ..bounds.graph.capturing import NO_TIME, expected_seconds, trace_model
from ..bounds.graph.ir import Graph, Unit
from ..bounds.lower import OBSERVED_RTOL, OBSERVED_SAMPLES, observed
from ..bounds.point import first_samples, jacobian_norms
from ..bounds.traced_network import BoundSettings, TracedNetwork
from ..calls.batches import LossFunction
from ..calls.call import all_if_several, broken_tensors
from ..calls.data_reader import Batches
from ..core.bracket import Bracket
from ..core.budget import Budget, Meter
from ..core.effort import Effort
from ..core.errors import CaptureError, InputError, JacobianError, NotFiniteError
from ..core.untouched import mode_of, unwrapped
from ..doctor.checking.checking import is_other
from ..doctor.facts.data import WRONG_BATCH, DataSeen, run_over_data
from ..doctor.facts.forward_backward import run_forward_backward
from ..doctor.facts.pass_facts import PassFacts
from ..doctor.facts.samples import compare_samples
from ..doctor.facts.steps import Optimizers

TRACED = "bounds over all inputs, folded and cumulative gains, sensitivity to the weights"
"""What needs a traced model."""
CAPTURE_SHARE, DATA_SHARE, JACOBIAN_SHARE = 0.75, 0.3, 0.3
"""Shares of the time that is left, where it is limited, that the trace, the data and the Jacobians may take."""
BRIEF_TRACE = 10.0
"""Expected seconds below which a model is traced whatever the clock says, since no bound can be had without a trace."""
SIGNAL_PASSES, LOSS_PASSES, BRIEF = 3, 9, 0.1
"""Passes over the batch that values and gradients by depth take, a backward counted twice; those with a loss, which
tries steps; and seconds below which they are taken anyway."""
NOT_REACHED = "max_seconds left no time for it: raise max_seconds"

Skipped = list[tuple[str, str]]
"""What was not measured and why, in the order of the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """What an audit was asked for, checked, and the clock and the meter that it runs under.

    Attributes:
        model, batch: unwrapped, and moved to the device of its parameters.
        device: the device of its first parameter.
        loader, loss, optimizer, output, known, rtol, seed: as for `audit`.
        asked: the mode that was asked for; None for that of the model.
        mode: the mode it is measured in.
        thorough: whether the effort is `"thorough"`.
        broken: what is wrong with parameters and buffers that are NaN or infinite, by name.
        budget, meter: of the whole audit.
    """

    model: nn.Module
    batch: Any
    device: torch.device
    loader: Batches | None
    loss: LossFunction | None
    optimizer: Optimizers | None
    asked: str | None
    mode: str
    output: str | int | None
    known: Mapping[str, float] | None
    thorough: bool
    rtol: float
    seed: int
    broken: Mapping[str, str]
    budget: Budget
    meter: Meter

    @staticmethod
    def of(model: nn.Module, batch: Any, *, mode: str | None, **options: Any) -> AuditRequest:
        """Return the request for a model as it stands, its batch on its device."""
        resolved, model = mode_of(model, mode), unwrapped(model)
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        broken = broken_tensors(model)
        return AuditRequest(
            model=model, batch=batch, device=device, asked=mode, mode=resolved, broken=broken, **options
        )

    def bounding(self, budget: Budget | None = None) -> BoundSettings:
        """Return how norms are bounded within a part of the budget, or within all of it."""
        effort = Effort.TIGHT if self.thorough else Effort.FAST
        return BoundSettings(budget=budget or self.budget, rtol=self.rtol, effort=effort)


@dataclass(frozen=True, slots=True)
class AuditTrace:
    """The captured model, None where there is none, whether there was time to trace it, and which output is measured.

    That is all of them together where a model returns several and none was chosen.
    """

    captured: TracedNetwork | None
    in_time: bool
    output: str | int | None


def trace(request: AuditRequest, skipped: Skipped) -> AuditTrace:
    """Capture the model, unless its weights are broken or the clock leaves no time for it."""
    seconds = expected_seconds(request.model, request.batch, request.asked) if request.budget.limited else 0.0
    tracing = Budget() if seconds <= BRIEF_TRACE else request.budget.share(CAPTURE_SHARE)
    in_time = tracing.time_for(seconds)
    if request.broken:
        skipped += [("bounds and Jacobians", f"{name} {what}") for name, what in list(request.broken.items())[:1]]
        return AuditTrace(None, in_time, request.output)
    if not in_time:
        skipped.append((f"{TRACED}, Jacobians", NO_TIME))
        return AuditTrace(None, False, request.output)
    with request.meter.part("capture"):
        graph, request = _graph(request, tracing, skipped)
        captured = None if graph is None else _captured(request, graph, skipped)
    return AuditTrace(captured, (TRACED, NO_TIME) not in skipped, request.output)


def _graph(request: AuditRequest, tracing: Budget, skipped: Skipped) -> tuple[Graph | None, AuditRequest]:
    """Trace the model, all its outputs together where it returns several and none was chosen; or say why not.

    What no bound can be taken of has findings all the same, so that is no error here.
    """
    model, batch = request.model, request.batch
    try:
        return trace_model(model, batch, mode=request.asked, output=request.output, budget=tracing), request
    except NotFiniteError as error:
        skipped.append(("bounds and Jacobians", str(error)))
    except (CaptureError, InputError) as error:
        together = all_if_several(model, batch, request.asked) if request.output is None else None
        if together is not None:
            return _graph(replace(request, output=together), tracing, skipped)
        skipped.append((TRACED, str(error)))
    return None, request


def _captured(request: AuditRequest, graph: Graph, skipped: Skipped) -> TracedNetwork | None:
    """Fold the segments of a traced model, or say why not."""
    try:
        return TracedNetwork.of(
            request.model,
            request.batch,
            request.bounding(),
            mode=request.asked,
            output=request.output,
            on_missing="inf",
            known=request.known,
            graph=graph,
            folding=request.budget.share(CAPTURE_SHARE),
        )
    except CaptureError as error:
        skipped.append((TRACED, str(error)))
    except NotFiniteError as error:
        skipped.append(("bounds and Jacobians", str(error)))
    return None


def pass_over_data(request: AuditRequest, captured: TracedNetwork | None, skipped: Skipped) -> tuple[DataSeen, float]:
    """Return what the layers are given by the data, and the seconds that one batch takes.

    Raises:
        InputError: the model does not accept a batch, though its weights are finite.
    """
    began = request.budget.elapsed
    with request.meter.part("data"):
        batches = [request.batch] if request.loader is None else request.loader
        limited = request.budget.share(DATA_SHARE)
        data = run_over_data(
            request.model, batches, mode=request.asked, written=_written_norms(captured), budget=limited
        )
    data = replace(data, other=is_other(request.loader))
    if data.error is not None:
        if not request.broken:
            raise InputError(f"{data.error}. {WRONG_BATCH}") from data.raised
        skipped.append(("statistics over the data", data.error))
    if data.not_finite is not None and captured is not None:
        skipped.append(("Jacobians at the batch", f"the data make {data.not_finite.where or 'the model'} return NaN"))
    return data, (request.budget.elapsed - began) / max(data.batches, 1)


def _written_norms(captured: TracedNetwork | None) -> dict[str, float]:
    """Return the modules that are an RMSNorm of their own input, written out in operators, with their eps."""
    if captured is None:
        return {}
    found = {}
    for node in captured.graph:
        if isinstance(node.op, Unit) and node.op.name == "rms" and node.path:
            inside = [other for other in captured.graph if f"{other.path}.".startswith(f"{node.path}.")]
            names = {other.name for other in inside}
            read = {ref for other in inside for ref in other.refs if ref not in names}
            if node.op.data["dims"] == (len(node.shape) - 1,) and read == set(node.refs):
                found[node.path] = float(node.op.data["eps"])
    return found


def signal_by_depth(request: AuditRequest, data: DataSeen, per_batch: float, skipped: Skipped) -> PassFacts | None:
    """Return values and gradients by depth, or say why not; `per_batch` has the seconds of one pass."""
    if request.broken:
        return None
    passes = (SIGNAL_PASSES if request.loss is None else LOSS_PASSES) * per_batch
    if passes > BRIEF and not request.budget.time_for(passes):
        skipped.append(("values and gradients by depth", NOT_REACHED))
        return None
    with request.meter.part("signal"):
        signal = run_forward_backward(
            request.model,
            request.batch,
            mode=request.asked,
            output=request.output,
            loss=request.loss,
            optimizer=request.optimizer,
            units=data.units,
        )
        if request.budget.time_for(passes):
            signal = replace(signal, dependence=compare_samples(request.model, request.batch, signal.loss))
    skipped += signal.skipped
    return signal


def jacobians(request: AuditRequest, captured: TracedNetwork | None, skipped: Skipped) -> Bracket | None:
    """Return the Jacobian norms at the first samples of the batch, or say why not."""
    budget = request.budget.share(JACOBIAN_SHARE)
    with request.meter.part("Jacobians"):
        try:
            found = budget.attempt(lambda: _jacobian_norms(request, captured, budget), lambda: None)
        except (JacobianError, CaptureError, InputError) as error:
            skipped.append(("Jacobian norms at the batch", str(error)))
            return None
    if found is None:
        skipped.append(("Jacobian norms at the batch", NOT_REACHED))
    return found


def _jacobian_norms(request: AuditRequest, captured: TracedNetwork | None, budget: Budget) -> Bracket:
    """Return the Jacobian norms from the captured graph, or by autograd where there is none."""
    if captured is not None:
        return observed(captured, request.seed, budget)
    few = first_samples(request.batch, OBSERVED_SAMPLES) if request.mode == "eval" else request.batch
    return jacobian_norms(
        request.model,
        few,
        rtol=OBSERVED_RTOL,
        mode=request.asked,
        output=request.output,
        seed=request.seed,
        budget=budget,
    )


def wrong_backwards(request: AuditRequest, captured: TracedNetwork | None) -> tuple[Mismatch, ...]:
    """Return the modules whose backward is not the derivative of their forward; none where nothing can be said."""
    graph = None if captured is None else captured.traced
    try:
        return request.budget.attempt(
            lambda: mismatches(request.model, request.batch, graph, mode=request.asked, output=request.output),
            lambda: (),
        )
    except (RuntimeError, NotImplementedError, InputError, CaptureError):  # a model whose backward cannot be run at all
        return ()
