"""What explains what: findings of a model, and of a run, that are mere consequences of others.

The first tables are of a check, which has all findings at once, by the finding that is dropped. In a run alarms come
one by one: the other tables say what an alarm that was raised silences. A rule of a run that is silent after its own
code, or another one, says so in `registry.py` (`unless`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.finding import Finding, Severity
from ..facts.examined import Examined
from ..facts.freshness import is_fresh
from .graph_order import GraphOrder

EXPLAINED_AT_SAME_LAYER = {
    "eps-dominated": ("tiny-sets", "eps-scale", "dead-layer", "dead-channels"),
    "dead-channels": ("tiny-sets", "dead-layer", "eps-scale"),
    "small-batch": ("tiny-sets", "wrong-mode"),
    "expanding-normalizer": ("tiny-sets", "eps-scale", "dead-layer", "dead-channels", "eps-dominated"),
    "not-lipschitz": ("eps-scale",),
    "stale-statistics": ("dead-layer",),
    "no-gradient": ("tiny-sets", "eps-scale", "dead-layer", "dead-relu", "saturated-units", "zero-weights"),
    "layer-scale": ("recurrent-scale",),
    "input-scale": ("input-columns",),
    "output-constant": ("dead-layer", "dead-relu", "saturated-units", "zero-weights"),
    "dead-layer": ("tiny-sets", "eps-scale", "zero-weights"),
    "dead-relu": ("zero-weights", "layer-scale"),
}
"""A finding is dropped if one of these stands at the same place."""
EXPLAINED_AT_NEXT_LAYER = {
    "dead-channels": ("dead-channels", "dead-layer"),
    "eps-dominated": ("dead-channels", "dead-layer"),
    "expanding-normalizer": ("dead-channels", "dead-layer"),
    "dead-relu": ("dead-channels", "zero-weights", "layer-scale"),
    "output-constant": ("dead-relu",),
    "blind-attention": ("zero-weights",),
}
"""A finding is dropped if one of these stands directly before it."""
_TOTAL = ("dead-layer", "tiny-sets", "dead-relu", "zero-weights")
EXPLAINED_BEYOND_LAYER = {
    "dead-layer": _TOTAL,
    "dead-channels": _TOTAL,
    "dead-relu": _TOTAL,
    "eps-dominated": _TOTAL,
    "expanding-normalizer": _TOTAL,
    "stale-statistics": _TOTAL,
}
"""A finding is dropped if everything that reaches it came through one of these: a ReLU counts with all units off."""
EXPLAINED_ANYWHERE = {
    "gradient-mismatch": ("gradient-cut",),
    "no-gradient": ("dead-relu", "dead-layer", "zero-weights", "half-precision"),
    "no-loss-gradient": ("zero-weights", "equal-units", "targets-scale"),
    "stale-statistics": ("input-scale",),
    "dead-relu": ("input-scale",),
    "gradient-vanishing": ("activation-before-loss",),
    "output-constant": ("activation-before-loss", "gradient-vanishing", "dead-layer", "mask-leaks"),
    "branch-dominates": ("layer-scale",),
    "mask-leaks": ("samples-mixed",),  # changed sequences are looked at side by side in one batch
    "order-unknown": ("blind-attention", "mask-leaks", "eps-scale", "eps-dominated"),
    "blind-attention": ("zero-rows", "copied-rows"),
    "gradient-not-finite": ("zero-weights",),
    "gradient-explosion": ("zero-weights",),
    "first-loss": ("targets-scale", "activation-before-loss", "loss-does-not-fit", "input-scale", "layer-scale"),
}
"""A warning is dropped if one of these, a warning too, stands anywhere."""
EXPLAINED_BY_ANY_WARNING = ("no-better-than-constant", "gradient-jump")
"""These are dropped if there is any other warning."""
EFFECTS_OF_HUGE_STEPS = frozenset({
    "dead-layer", "dead-relu", "dead-channels", "saturated-units", "attention-saturated", "output-constant",
    "gradient-explosion", "gradient-vanishing", "norm-growth", "variance-collapse",
    "stale-statistics", "effective-lr", "expanding-normalizer", "loss-rising", "loss-spike",
    "no-better-than-constant",
})  # fmt: skip
"""What steps that are far too large do to a network, or a loss that is minimised without a bound."""
EXPLAINED_BY_RAISED: dict[str, frozenset[str]] = {
    "no-zero-grad": EFFECTS_OF_HUGE_STEPS | {"lr-too-high"},
    "negated-loss": EFFECTS_OF_HUGE_STEPS | {"lr-too-high"},
    "lr-too-high": EFFECTS_OF_HUGE_STEPS,
    "gradient-cut": frozenset({"output-constant"}),
}
"""Alarms that follow from one that was raised: they are part of its story, and are not told again."""
LOSS_EXPLAINED = (
    "weights-still", "weights-put-back", "rate-zero", "rate-decayed", "no-gradient-at-step", "loss-rising",
    "lr-too-high", "decay-too-strong", "strong-dropout", "one-class", "shapes-broadcast", "negated-loss",
    "no-better-than-constant",
)  # fmt: skip
"""Alarms that say why a loss stays where it is: no other reason is looked for after them."""
INPUTS_LOST = ("gradient-vanishing", "constant-input", "decay-too-strong")
"""Alarms that say where the inputs are lost: that outputs do not depend on them is not told again."""
LOST_BY_HALF_PRECISION = ("dead-layer", "dead-relu", "output-constant", "gradient-vanishing", "no-gradient-at-step")
"""Alarms that values and gradients beyond the range of half precision explain."""
VALIDATION_CODES = ("overfitting", "validation-worse", "validation-apart")
"""Alarms of a validation: one of them is told in a run."""


def unexplained(found: Sequence[Finding], examined: Examined) -> list[Finding]:
    """Return the findings that are no mere consequence of another."""
    flow, fresh = GraphOrder(examined), is_fresh(examined.model)
    # where units died in training, so did the scale of the weights: neither is how the network began
    causes = [cause for cause in found if fresh or cause.code != "layer-scale"]
    return [
        finding
        for finding in found
        if not any(
            _explains(cause, finding, flow) for cause in (found if finding.code in EXPLAINED_BY_ANY_WARNING else causes)
        )
    ]


def _explains(cause: Finding, finding: Finding, flow: GraphOrder) -> bool:
    if cause is finding or not _as_large(cause, finding):
        return False
    if (
        finding.code in EXPLAINED_BY_ANY_WARNING
        and cause.severity > Severity.INFO
        and cause.code not in EXPLAINED_BY_ANY_WARNING
    ):
        return True
    if cause.where == finding.where and cause.code in EXPLAINED_AT_SAME_LAYER.get(finding.code, ()):
        return True
    whole = finding.numbers.get("share") == 1.0  # a layer that is off as a whole does not learn whatever the cause is
    if (
        cause.code in EXPLAINED_ANYWHERE.get(finding.code, ())
        and Severity.INFO < finding.severity <= cause.severity
        and not whole
    ):
        return True
    total = cause.code != "dead-relu" or cause.numbers.get("share") == 1.0
    if total and cause.code in EXPLAINED_BEYOND_LAYER.get(finding.code, ()) and flow.behind(finding.where, cause.where):
        return True
    return cause.code in EXPLAINED_AT_NEXT_LAYER.get(finding.code, ()) and cause.where in flow.before(finding.where)


def _as_large(cause: Finding, finding: Finding) -> bool:
    """Whether a cause that touches a share of the channels touches enough of them."""
    mine, theirs = finding.numbers.get("share"), cause.numbers.get("share")
    return mine is None or theirs is None or theirs >= 0.5 * mine
