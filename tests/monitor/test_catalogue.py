"""Runs of `normscope_faults.runs`: a fault is told by its alarm, in time, and a healthy run has none.

For each alarm there are one or two fast runs here; the others are slow. The part that is held out for scoring is no
test.
"""

import pytest

import benchmarks.watch_faults as scores
from normscope_faults.runs import PARTS
from normscope_faults.runs.score import judge

FAULTS, HEALTHY = (
    {run.name: run for part in ("open", "first", "second", "third") for run in PARTS[part][kind]} for kind in (0, 1)
)
TOLD_BY = {
    "activation-before-loss": ("softmax-in-front-of-cross-entropy",),
    "constant-input": ("pixels-divided-in-whole-numbers",),
    "data-changed": ("inputs-no-longer-scaled",),
    "dead-layer": ("dead-units", "every-weight-at-zero"),
    "decay-too-strong": ("decay-of-100",),
    "eval-mode": ("eval-mode-all-along", "batch-norms-alone-in-eval-mode"),
    "frozen-layer": (
        "layer-frozen-by-mistake", "pattern-of-names-leaves-only-a-norm", "new-head-frozen-in-place-of-the-body",
    ),
    "gradient-cut": ("code-detached-from-its-decoder",),
    "gradient-explosion": ("recurrent-net-explodes-from-the-start",),
    "gradient-vanishing": ("deep-sigmoid-net",),
    "input-columns": ("a-column-of-times-in-seconds",),
    "loss-not-finite": ("infinite-weights", "nan-in-one-batch", "a-column-times-a-hundred-thousand"),
    "loss-rising": ("labels-rolled-by-one-row",),
    "loss-spike": ("rectifiers-die-in-one-step",),
    "lr-too-high": (
        "sgd-with-a-rate-of-four", "adamw-at-0-3", "adamw-at-a-rate-of-one", "rate-times-a-thousand-from-step-250-on",
        "rate-of-the-second-stage-in-the-wrong-unit",
    ),
    "negated-loss": ("loss-with-a-minus", "log-likelihood-minimised", "divergence-of-a-code-subtracted"),
    "no-better-than-constant": ("random-labels",),
    "no-gradient": ("encoder-detached",),
    "no-gradient-at-step": ("gradients-removed-before-step", "gradients-zeroed-before-step"),
    "no-step": ("forgotten-step", "scaler-skips-every-step", "more-batches-to-accumulate-than-there-are"),
    "no-zero-grad": ("gradients-never-cleared",),
    "not-trained": ("layer-outside-of-optimizer",),
    "one-class": ("one-class-only",),
    "output-constant": ("views-pulled-together",),
    "rate-decayed": ("schedule-per-batch",),
    "rate-zero": ("rate-zero-by-schedule",),
    "refused": ("optimizer-of-the-model-before-the-copy",),
    "reward-falls": ("reward-minimised-by-the-policy",),
    "same-batch": ("same-batch-each-step", "loader-begun-anew-behind-a-trial-batch"),
    "saturated-units": ("inputs-in-bytes", "tanh-behind-weights-times-thirty"),
    "shapes-broadcast": ("targets-broadcast",),
    "small-batch": ("batches-of-two-of-digits",),
    "sorted-batches": ("sorted-batches",),
    "strong-dropout": ("dropout-of-99-percent",),
    "units-alike": ("every-weight-at-one-twentieth",),
    "weights-put-back": ("weights-copied-back",),
    "weights-still": (
        "loss-times-1e-6", "clipped-at-1e-4", "norm-clipped-to-nothing-from-step-30-on",
        "prices-far-from-where-the-network-starts",
    ),
}  # fmt: skip
"""By the code of an alarm the runs that are fast."""
FAST = {name: code for code, names in TOLD_BY.items() for name in names}
FAST_HEALTHY = (
    "parts-are-called-and-never-the-whole", "all-data-at-once-down-to-the-noise", "an-epoch-of-five-batches-in-order",
    "ten-batches-in-order-behind-a-trial-batch", "rate-a-little-higher-from-step-250-on",
    "fixed-classifier-behind-a-body-that-learns",
    "average-beside-the-model", "labels-that-are-mostly-noise", "one-in-twenty", "two-gradients-for-each-step",
    "warm-restarts", "lbfgs-with-a-closure", "targets-that-grow", "head-on-codes-that-fit-already", "long-warm-up",
    "gelu-behind-weights-times-thirty", "divergence-of-distributions",
)  # fmt: skip
IN_TIME_STEPS, LATE_STEPS = 120, 400
"""Steps from the onset of a fault to its alarm, at most: of the fast runs, and of those that only many steps show."""
MISSED = {
    "generator-seeded-inside-the-loop", "generator-runs-ahead",
    "averaged-weights-left-in-after-validation", "angle-of-a-pair-of-equals",
}  # fmt: skip
WITHOUT_REMEDY = {
    "energy-in-half-precision", "pixels-divided-by-255-twice", "batch-first-forgotten", "years-that-are-not-centred",
    "strangers-pushed-apart-without-a-margin", "transform-forgotten-for-validation",
}  # fmt: skip
EARLY = {"angle-of-a-pair-of-equals", "body-thawed-at-the-rate-of-the-head"}
"""Runs with an alarm before the onset that they name."""


def marked(names, fast):
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in names]


def test_fast_runs_are_in_the_catalogue():
    assert FAST.keys() | MISSED | WITHOUT_REMEDY | EARLY <= FAULTS.keys()
    assert set(FAST_HEALTHY) <= HEALTHY.keys()


@pytest.mark.parametrize("name", marked(FAULTS, FAST))
def test_a_fault_is_told_in_time_with_its_layer_and_what_to_do(name):
    fault = FAULTS[name]
    alarms, ended = scores.watch_run(fault, 10)
    assert not ended
    verdict = judge(fault, alarms)
    assert verdict.outcome == ("missed" if name in MISSED else "right"), alarms
    assert verdict.early == (name in EARLY), alarms
    assert verdict.remedy or name in MISSED | WITHOUT_REMEDY, alarms
    assert verdict.delay <= (IN_TIME_STEPS if name in FAST else LATE_STEPS)
    if name in FAST:
        assert FAST[name] in {alarm.code for alarm in alarms if fault.causes & alarm.tells()}


@pytest.mark.parametrize("name", marked(HEALTHY, FAST_HEALTHY))
def test_a_healthy_run_has_no_alarm(name):
    assert scores.watch_run(HEALTHY[name], 10) == ([], "")
