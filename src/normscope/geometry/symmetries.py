"""`symmetries`: which changes of its parameters leave a model's function as it is, each verified numerically."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..core.errors import InputError
from ..core.untouched import dropping_nothing, mode_of, outside_inference_mode, untouched, unwrapped
from ..graph.call import prepare
from ..graph.capturing import capture_batch
from .candidate import KINDS, SPHERICAL, Candidate, Layers
from .normalized import normalized, reparametrised
from .pairs import attention, pairs
from .symmetry import Symmetries, Symmetry, canonical_copy
from .verification import Function, SymmetryEvidence, verify


@outside_inference_mode
def symmetries(
    model: nn.Module, batch: Any, *, mode: str | None = None, output: str | int | None = None, seed: int = 0
) -> Symmetries:
    """Find the symmetries of a model in its parameters, and verify each numerically.

    The structure of the graph suggests them: scales of channels (BatchNorm, InstanceNorm), groups (GroupNorm) and
    layers (LayerNorm, RMSNorm), shifts W + 1 u^T of all rows in front of a LayerNorm, redundant biases, `weight_norm`
    and `spectral_norm`, pairs of layers that trade a factor per channel through a ReLU or directly, pairs of queries
    and keys, and pairs of values and outputs. Each is then checked in float64 at random group elements: the output
    stays; the gradient has no component along it; H X w = -X^T grad; the Fisher information along it is zero. A
    symmetry that holds up to eps is checked at weights so large that eps plays no part; its defect at the weights as
    found is compared with the formula <w, grad> = eps/(var + eps) sum (dL/dzhat) zhat. A symmetry that fails is shown
    as failed, and no figure counts on it.

    The check takes about six forward and two double backward passes of the batch per symmetry, in float64: a few
    samples are enough.

    Args:
        model: any `torch.nn.Module` that can be traced; left exactly as found.
        batch: a tensor, a tuple of arguments or a dict of them.
        mode: `"train"`, `"eval"`, or None for the mode the model is in; a BatchNorm is scale invariant in train mode.
        output: which output to take, for models with several.
        seed: the seed of the random group elements and directions.

    Returns:
        One row per symmetry; prints as a table, and has `.canonicalize()`, `.param_groups()`, `.to_json()`.

    Raises:
        InputError: the model has no parameters, does not accept the batch, or does not run in float64.
        CaptureError: the model cannot be traced.

    Example:
        >>> import torch, normscope as ns
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        >>> found = ns.symmetries(model, torch.randn(16, 4), mode="train")
        >>> [(row.kind, row.dof, row.status) for row in found]  # doctest: +NORMALIZE_WHITESPACE
        [('channel scale', 8, 'verified'), ('redundant bias', 8, 'verified'), ('relu pair', 8, 'verified')]

    Reference: Akbar, section 4 and table 1, with the corrections of this project's documentation.
    """
    measured_mode = mode_of(model, mode)
    model = unwrapped(model)
    if not any(parameter.is_floating_point() for parameter in model.parameters()):
        raise InputError("the model has no parameters: there is nothing that a symmetry could move")
    graph = capture_batch(model, batch, mode=mode, output=output)
    layers = Layers(model, graph)
    before_normalizers, withheld = normalized(layers)
    candidates = [*before_normalizers, *reparametrised(model), *pairs(layers), *attention(layers)]
    candidates.sort(key=lambda candidate: KINDS.index(candidate.kind))
    generator = torch.Generator().manual_seed(seed)
    with untouched(model, mode), dropping_nothing(model):
        function = Function(model, prepare(model, batch, output))
        rows = tuple(map(_row, candidates, verify(function, graph, candidates, generator)))
        scales = tuple(c for row, c in zip(rows, candidates) if row.status == "verified" and c.kind in SPHERICAL)
        change = _canonical_change(function, scales)
    with untouched(model, "eval"), dropping_nothing(model):
        eval_change = _canonical_change(function, scales) if measured_mode == "train" else change
    return Symmetries(
        rows=rows,
        mode=measured_mode,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        withheld=tuple(withheld),
        canonical_change=change,
        canonical_change_eval=eval_change,
        notes=graph.notes,
        _model=model,
        _candidates=tuple(candidates),
    )


def _row(candidate: Candidate, evidence: SymmetryEvidence) -> Symmetry:
    fault = evidence.fault() or ""
    return Symmetry(
        kind=candidate.kind,
        path=candidate.path,
        normalizer=candidate.normalizer,
        parameters=candidate.action.names,
        form=candidate.form,
        units=candidate.action.units,
        dof=candidate.action.dof,
        exact=candidate.exact,
        status="unseen" if fault.startswith("unseen") else "failed" if fault else "verified",
        fault=fault.removeprefix("unseen: "),
        evidence=evidence,
    )


def _canonical_change(function: Function, scales: tuple[Candidate, ...]) -> float | None:
    """Return by how much the output of the canonical copy differs at the batch, relative to its largest entry.

    Return None where there is nothing to make canonical, or the model cannot be copied.
    """
    if not scales:
        return None
    try:
        copied = canonical_copy(function.model, scales)
    except InputError:
        return None
    with torch.no_grad():
        before = function(function.start)
        after = Function(copied, function.call)
        return float((after(after.start) - before).abs().amax() / before.abs().amax().clamp(min=1e-300))
