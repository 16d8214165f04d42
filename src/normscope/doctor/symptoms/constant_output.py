"""Outputs that are the same for every sample."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ...core.finding import Finding, Severity, figure, figures
from ...report.words import pluralise
from ..facts.examined import Examined
from ..facts.freshness import is_fresh
from ..facts.layers import LayerRow
from ..facts.pass_facts import PassFacts
from ..monitor.history import History
from .graph_order import WEIGHT_KINDS
from .run_readings import mean_loss
from .symptom import FindingWords, Symptom, finding

FINDING_WORDS = {
    "output-constant": FindingWords("the output does not depend on the input, from {where} on"),
}


def check_constant_output(examined: Examined) -> Iterator[Finding]:
    """`output-constant` (warning, info): the output is the same for every sample, with the first layer from which on
    nothing varies (info: a last layer that starts at zero)
    """
    signal = examined.signal
    if signal is None or examined.data.not_finite is not None or not signal.layers or signal.samples < 2:
        return
    last = signal.layers[-1]
    if not any(row.varies for row in signal.inputs) or last.varies is not False:
        return
    culprit = _first_constant(signal)
    if culprit is None:
        return
    centred = _mean_of_centred(signal, culprit)
    if centred is not None:
        yield finding(
            "output-constant",
            centred.path,
            f"What `{culprit.path}` reads of `{centred.path}` ({centred.kind}) is the same for all "
            f"{pluralise(signal.samples, 'sample')}.",
            "The normalizer makes the mean of every sample zero, and a mean over the same entries, which comes "
            "after it, takes just that.",
            f"Put an activation between `{centred.path}` and the mean, or use BatchNorm in its place.",
            figures(samples=signal.samples),
        )
        return
    zeros = {row.module for row in signal.parameters if len(row.shape) > 1 and row.is_zero}
    place = next(number for number, row in enumerate(signal.rows) if row is culprit)
    varying = (
        [signal.rows[feed] for feed in signal.flow.feeds[place] if signal.rows[feed].varies]
        if signal.flow.feeds
        else []
    )
    if varying and culprit.kind in WEIGHT_KINDS and culprit.path not in zeros:
        before = varying[-1]
        yield LOST_BETWEEN.at(
            culprit.path,
            {"before": before.path},
            seen=f"What `{culprit.path}` reads is the same for all {pluralise(signal.samples, 'sample')}, though "
            f"`{before.path}` ({before.kind}), which lies before it, differs from sample to sample.",
            samples=signal.samples,
        )
        return
    zero_head = culprit is last and last.path in zeros and is_fresh(examined.model)
    yield (BEGINS_AT_ZERO if zero_head else OUTPUT_CONSTANT).at(
        culprit.path,
        {"place": f"what `{culprit.path}` is given and at its weights"},
        seen=f"The output is the same for all {pluralise(signal.samples, 'sample')}: from `{culprit.path}` "
        f"({culprit.kind}) on nothing varies from sample to sample (a value there is {figure(culprit.mean or 0.0)}).",
        samples=signal.samples,
    )


def _mean_of_centred(signal: PassFacts, culprit: LayerRow) -> LayerRow | None:
    """Return the normalizer of single samples whose values, computed with on the way, no longer vary in a layer."""
    number = next(number for number, row in enumerate(signal.rows) if row is culprit)
    feeds = signal.flow.feeds[number] if number < len(signal.flow.feeds) else ()
    computed = len(feeds) == 1 and feeds[0] not in signal.flow.linear_feeds[number]
    while len(feeds) == 1 and signal.rows[feeds[0]].kind[:1].isupper():  # a module without weights, such as a pooling
        feeds, computed = signal.flow.feeds[feeds[0]], True
    before = signal.rows[feeds[0]] if len(feeds) == 1 else None
    centres = before is not None and before.kind in ("instance_norm", "group_norm", "layer_norm")
    return before if centres and computed and culprit.kind in WEIGHT_KINDS else None


def _first_constant(signal: PassFacts) -> LayerRow | None:
    """Return the first row that does not vary though what it reads does."""
    varies = [row.varies for row in signal.rows]
    for number, row in enumerate(signal.rows):
        feeds = signal.flow.feeds[number] if number < len(signal.flow.feeds) else ()
        if varies[number] is False and (not feeds or any(varies[feed] is not False for feed in feeds)) and number:
            return row
    return None


OUTPUT_CONSTANT = Symptom(
    code="output-constant",
    seen="The outputs are the same for every sample of a batch: they differ by {differ:figure} of their size.",
    why="What the model puts out does not depend on its inputs: they are lost on the way, in units that are switched "
    "off or saturated, or in weights that have gone to zero.",
    advice="Look at {place}: biases far below zero before a ReLU (reset these biases to zero), weights that are zero "
    "or have decayed to nothing (torch.nn.init.kaiming_normal_, a lower weight decay), units that are switched off or "
    "saturated, a multiplication by zero, data that are overwritten. In a run begin again with a learning rate of a "
    "tenth.",
)
BEGINS_AT_ZERO = replace(
    OUTPUT_CONSTANT,
    severity=Severity.INFO,
    advice="A last layer that starts at zero opens with the first step: nothing to do for a fresh model.",
)
LOST_BETWEEN = replace(
    OUTPUT_CONSTANT,
    advice="Look at what stands between `{before}` and {where}: a place of a sequence that sees nothing of the others "
    "(check the mask: behind a causal one the first place sees itself alone), a mean or a softmax over the wrong dim "
    "(dim 0 is the batch), a difference of one value with itself (an input that `forward` does not use), a product "
    "with zero, units that are all off or saturated (rescale what they read, or initialise the layer before them "
    "anew).",
)
OUTPUT_COLLAPSED = replace(
    OUTPUT_CONSTANT,
    seen="The outputs have become the same for every sample of a batch: their directions differ by {differ:figure} "
    "radians, and by {differ_first:figure} at the start.",
    why="The outputs have collapsed: they hardly depend on the inputs any more, which satisfies the loss and tells "
    "nothing.",
    advice="Look at the loss: if it only pulls outputs together, it needs negatives (a contrastive loss), a "
    "stop-gradient (detach) with a predictor, or a term for the variance of outputs. Else lower the learning rate.",
)
COLLAPSED_SHARE, COLLAPSED_RATIO, COLLAPSED_STEPS = 0.1, 0.3, 50
"""The deviation of the directions of outputs; the same over that at the start; the steps before it is judged."""
COLLAPSED_AND_FITTED_SHARE, COLLAPSED_LOSS_SHARE = 0.2, 0.01
"""The deviation that is small enough where the loss has all but vanished, and the share of the first loss at which it
has."""
TARGETS_COLLAPSED = replace(
    OUTPUT_COLLAPSED,
    seen="The targets have become the same for every sample, and the outputs with them: their variance is "
    "{share:percent} of what it was at the start.",
    why="The targets are outputs of the network themselves (a second view, a teacher that follows it): both have "
    "collapsed, which satisfies the loss and tells nothing.",
)
SHRUNK_TARGETS_SHARE = 0.03
"""The variance of targets over that of the first: targets that are data keep theirs."""
TRY_GRADIENT = (
    "First see whether the reconstruction teaches the code: torch.autograd.grad(reconstruction, mean, "
    "retain_graph=True, allow_unused=True) is None behind a detach(), sample() or torch.no_grad(), which is then to be "
    "removed. If it is not: "
)
POSTERIOR_COLLAPSED = replace(
    OUTPUT_COLLAPSED,
    seen="The code is the same for every sample: its entries differ by {differ:figure} at most, and the reconstruction "
    "is no better than one constant output.",
    why="The posterior has collapsed onto the prior: the code carries nothing, and the decoder does without it.",
    advice="{first}Lower the weight of the KL term or anneal it from zero (free bits), and look how both terms are "
    "averaged: sum the reconstruction over the entries of a sample as the KL term is.",
)
CODE_UNUSED = replace(
    POSTERIOR_COLLAPSED,
    seen="The code is the same for every sample after {steps:,} steps: its entries differ by {differ:figure} at most, "
    "while the loss falls.",
    why="The posterior has collapsed onto the prior: the decoder uses what else it is given, and not the code.",
    advice="{first}Weaken the decoder or what it sees besides the code (word dropout, fewer past entries), anneal the "
    "weight of the KL term from zero, or give it free bits.",
)
UNUSED_CODE_STEPS = 150
"""The steps before a code is said to be of no use though the loss falls."""
COLLAPSED_CODE_SPREAD, COLLAPSED_CODE_STEPS = 0.1, 60
"""The deviation of a code between samples, where that of the prior is 1, and the steps before it is judged."""
BEFORE_ALIKE = "the first layer behind which all samples are alike"
CONSTANT_OUTPUT_SHARE, LOST_DIFFERENCE_RATIO = 1e-4, 0.1
"""The deviation of outputs over samples, over their size, and over that of the first records.

Untrained deep networks have 1e-3 and less and grow out of it. Above the 1e-6 of a check, which knows no start and asks
for rounding alone.
"""
ROUNDING_SHARE = 1e-6
"""Outputs that differ by less than this differ by rounding alone."""


def watch_output_constant(history: History) -> Iterator[Finding]:
    """`output-constant` (warning): the outputs differ by less than 10^-4 of their size over the samples, and a tenth of
    the start, while targets differ; or, under a loss without targets, point one way for all samples and did not at
    the start; or targets that are outputs of the network themselves have lost 97 % of their variance along with the
    loss; or mean and variance of a code differ by 0.1 at most between samples, and the reconstruction is no better
    than a constant or 150 steps have passed (posterior collapse; where it is not seen whether the reconstruction
    teaches the code, the advice says first how to see that)
    """
    zero = any(finding.code == "dead-layer" and "zero" in finding.numbers for finding in history.findings)
    if history.parameter_state.others or zero:
        return
    spreads = history.total("output_spread")
    collapsed, apart = spreads.last(3), max(spreads.first, default=0.0)
    now, start = mean_loss(history.records[-1]), history.first_loss
    gone = now is not None and start is not None and now <= COLLAPSED_LOSS_SHARE * start
    limit = COLLAPSED_AND_FITTED_SHARE if gone else COLLAPSED_SHARE
    small = bool(collapsed) and max(collapsed) <= min(limit, COLLAPSED_RATIO * apart)
    if small and history.parameter_state.without_targets and history.step >= COLLAPSED_STEPS:
        yield OUTPUT_COLLAPSED.at(differ=max(collapsed), differ_first=apart)
    squares = history.records[-1].total_of("outputs_kinds") is None
    targets = history.total("outputs_constant")
    variances, usual = targets.last(3), targets.first[0] if targets.first else 0.0
    owns = history.total("outputs_own")
    fitted = max(owns.last(3), default=math.inf) <= SHRUNK_TARGETS_SHARE * max(owns.first, default=0.0)
    if fitted and squares and variances and max(variances) <= SHRUNK_TARGETS_SHARE * usual:
        yield TARGETS_COLLAPSED.at(share=max(variances) / usual)
    codes = history.total("code_spread").last(3)
    if codes and max(codes) <= COLLAPSED_CODE_SPREAD and history.step >= COLLAPSED_CODE_STEPS:
        words = {"steps": history.step, "first": TRY_GRADIENT if history.parameter_state.untaught is None else ""}
        if history.is_unlearned:
            yield POSTERIOR_COLLAPSED.at(words=words, differ=max(codes))
        elif history.step >= UNUSED_CODE_STEPS:
            yield CODE_UNUSED.at(words=words, differ=max(codes))
    course = history.total("outputs_differ")
    differ, constant = course.last(3), history.total("outputs_constant").last(3)
    limit = max(ROUNDING_SHARE, min(CONSTANT_OUTPUT_SHARE, LOST_DIFFERENCE_RATIO * max(course.first, default=0.0)))
    if differ and constant and max(differ) <= limit and min(constant) > 1e-6:
        yield OUTPUT_CONSTANT.at(words={"place": BEFORE_ALIKE}, differ=max(differ))
