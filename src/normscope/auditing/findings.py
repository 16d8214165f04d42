"""What audits alone find: how the network is built, wrong gradients, bounds that say nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from ..bounds.bounds_by_method import is_weight
from ..bounds.graph.ir import Unit
from ..bounds.operators.effects import Unbounded
from ..bounds.operators.registry import lookup
from ..bounds.operators.units import COMPLEX
from ..core.finding import Finding, Severity, figure, figures, power
from ..doctor.symptoms.optimizer_steps import check_loss_rises
from ..doctor.symptoms.registry import diagnose_model
from ..doctor.symptoms.untrained import check_wrong_parameters
from ..listening.calls import RECURRENT
from ..report.words import listed, pluralise
from .audited import Audited


def redundant_bias(audited: Audited) -> Iterator[Finding]:
    """A bias that the normalizer after it subtracts again.

    `redundant-bias` (info): a bias in front of a normalizer that subtracts it again
    """
    for feed in audited.feeds:
        bias = None if isinstance(feed.weight.op, Unit) else feed.weight.bound().get("bias")
        if feed.bias_redundant == "whole" and isinstance(bias, Tensor):
            yield Finding(
                code="redundant-bias",
                severity=Severity.INFO,
                where=feed.weight.path,
                seen=f"The bias of `{feed.weight.path}` ({bias.numel():,} values) stands in front of "
                f"`{feed.normalizer.path}`, where the mean of every channel is subtracted.",
                why="The mean takes the bias away again: it has no effect and its gradient is zero, but it is stored, "
                "updated and decayed.",
                advice=f"Build `{feed.weight.path}` with bias=False: the bias in `{feed.normalizer.path}` does its "
                "work.",
                numbers=figures(parameters=bias.numel()),
            )


def not_lipschitz(audited: Audited) -> Iterator[Finding]:
    """Parts without a finite constant over all inputs.

    `not-lipschitz` (info): a part that has no finite constant over all inputs, with the reason; [bounds around
    single inputs](scopes.md) may be finite
    `no-rule` (info): an operator nobody has written a rule for; the bound over all inputs is infinite until someone
    does
    """
    for node in audited.graph or ():
        effect = audited.effects.get(node.name)
        if isinstance(effect, Unbounded):
            unknown = lookup(node) is None or node.operator == COMPLEX
            yield Finding(
                code="no-rule" if unknown else "not-lipschitz",
                severity=Severity.INFO,
                where=node.path,
                seen=f"No finite Lipschitz constant over all inputs is known: {effect.reason}.",
                why="The bound of the whole network over all inputs is infinite because of this part.",
                advice='Give its constant with known={"module.path": constant}, or teach Normscope the operator with '
                "@normscope.rule; its figures at the data (audit.observed) need neither."
                if unknown
                else "Judge this network by its figures at the data (`audit.observed`), bound it around single inputs "
                'with `ns.lipschitz(model, batch, scope="ball", radius=...)`, or put a normalizer or a clamp in front '
                "so that the values it sees are bounded.",
                numbers={},
            )


CODE = "loose-bound"
USELESS = 6.0
"""log10 of the bound over the largest Jacobian at the data: a millionfold is a bound on nothing that occurs."""
WIDE = 0.5
"""log10 of a normalizer's constant over all inputs over that at the data: three times is an input nobody has."""

BECAUSE = "What makes it so: "
"""How the reason begins; headline figures say the rest of it alone."""

NORMALIZERS = {
    "layer_norm": "LayerNorm at zero variance",
    "group_norm": "GroupNorm at zero variance",
    "instance_norm": "InstanceNorm at zero variance",
    "batch_norm": "BatchNorm at zero variance",
    "rms": "RMSNorm at zero",
    "rms_norm": "RMSNorm at zero",
}


def loose_bound(audited: Audited) -> Iterator[Finding]:
    """A finite bound over all inputs that exceeds what was seen at the data a millionfold, and what makes it so.

    `loose-bound` (info): the bound over all inputs is finite but more than a millionfold above the largest Jacobian
    norm at the data, with the operators that make it so; reports show no figure for it then
    """
    best, observed = audited.bounds.get("best"), audited.bounds.get("observed")
    if best is None or observed is None or not loose(best.log10_upper, observed.log10_upper):
        return
    excess = best.log10_upper - observed.log10_upper
    causes = list(_causes(audited))
    yield Finding(
        code=CODE,
        severity=Severity.INFO,
        where="",
        seen=f"No useful bound over all inputs: it is {power(best.log10_upper)}, which is {power(excess)} times the "
        "largest growth at the data.",
        why=f"{BECAUSE}{listed(causes, most=len(causes))}.",
        advice="Judge the network by the figures at the data (`audit.observed`). Bounds around single inputs come from "
        '`ns.lipschitz(model, batch, scope="ball", radius=...)`.',
        numbers=figures(log10_excess=excess),
    )


def loose(log10_upper: float, log10_observed: float) -> bool:
    """Whether a finite bound is so far above what was observed that it is of no use."""
    return -math.inf < log10_observed < log10_upper - USELESS and log10_upper < math.inf


def useful(log10_upper: float | None, log10_observed: float | None) -> float | None:
    """Return a bound where it is of use: finite, and not a millionfold above what was observed."""
    if log10_upper is None or log10_upper == math.inf:
        return None
    return None if log10_observed is not None and loose(log10_upper, log10_observed) else log10_upper


def _causes(audited: Audited) -> Iterator[str]:
    """Yield the operators whose constants over all inputs no data come near to; else depth itself."""
    nodes = list(audited.graph or ())
    special = ["attention"] if any("attention" in node.operator for node in nodes) else []
    special += ["the steps of a recurrent layer"] if any(node.operator in RECURRENT for node in nodes) else []
    wide = dict.fromkeys(
        NORMALIZERS.get(place.row.operator, place.row.kind)
        for place in audited.rows
        if place.row.log10_exact is not None
        and place.row.log10_at_data is not None
        and place.row.log10_exact - place.row.log10_at_data >= WIDE
    )
    yield from (*special, *wide)
    if not special and not wide:
        layers = sum(map(is_weight, nodes))
        yield f"the worst cases of {pluralise(layers, 'weight layer')} multiplied, though no input meets them together"


def gradient_mismatch(audited: Audited) -> Iterator[Finding]:
    """Modules whose backward is not the derivative of their forward.

    `gradient-mismatch` (warning): the backward of a module is not the derivative of its forward (a custom
    `autograd.Function`, a hook, `detach`, `no_grad`); straight-through estimators and gradient reversal are so on
    purpose
    """
    for mismatch in audited.mismatches:
        name = f"`{mismatch.path}`" if mismatch.path else "the model"
        if math.isinf(mismatch.share):
            what = "autograd gives a gradient along a direction in which the output does not change"
        elif mismatch.share == 0.0:
            what = "no gradient comes back along a direction in which the output changes"
        else:
            what = f"along one direction autograd gives {figure(mismatch.share)} times the change of the output"
        yield Finding(
            code="gradient-mismatch",
            severity=Severity.WARNING,
            where=mismatch.path,
            seen=f"The backward of {name} is not the derivative of its forward: {what}.",
            why="Training follows this gradient and not that of the loss, and whatever differentiates the model "
            "(attacks, saliency maps, gradient penalties) sees another function. The Jacobians of this audit are those "
            "of the forward.",
            advice="Straight-through estimators, gradient reversal and stopped gradients do this on purpose: then "
            "there is nothing to do. Otherwise check the custom autograd.Function with torch.autograd.gradcheck, and "
            "look for tensor hooks, detach() and no_grad() on the path.",
            numbers=figures(factor=None if math.isinf(mismatch.share) else mismatch.share),
        )


STAND_BEFORE = {
    check_wrong_parameters: (gradient_mismatch,),
    check_loss_rises: (redundant_bias, not_lipschitz, loose_bound),
}
"""The findings of audits alone, by the finding of a check before which they stand."""


def look_at_audit(audited: Audited) -> tuple[Finding, ...]:
    """Return what is wrong with a model or worth knowing about it: all that a check finds, and more."""
    return diagnose_model(audited, STAND_BEFORE)
