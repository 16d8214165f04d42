"""Findings about the sets a normalizer takes its statistics from: too small, too noisy, out of date."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from ...core.finding import Finding, Severity
from ...report.words import pluralise
from ..examined import Examined, NormalizerOverData
from ..loss_facts import is_fresh
from .finding_words import figure, figures, percent

NOISY_VARIANCE = 0.3
"""Relative standard deviation of a variance: 32 values give 0.25 and train well, 16 give 0.37 and do not."""
MEASURED_SPREAD = 0.5
"""From batch to batch, measured: correlated positions and heavy tails count here, and half is beyond both."""
FEW_SAMPLES = 2
"""Positions of one image are alike: with one or two images a channel's variance is that of the image."""
STALE_VARIANCE = 1.0
"""The median over channels of abs(log2(variance of the data/stored variance)): one of them is twice the other."""
STALE_MEAN = 0.5
"""The median over channels of the distance between the means, in stored standard deviations."""
LITTLE_LOSS = 0.25
"""A share of the loss of a blind guess: a model that is this good in eval mode is not harmed by its statistics."""
ERRORS = 4.0
"""Standard errors that a difference must exceed: beyond 4 chance is no explanation."""


def is_tiny(seen: NormalizerOverData) -> bool:
    """Whether a normalizer takes its statistics from one or two values, which leaves nothing or signs."""
    return not seen.uses_running and seen.entries <= 2 and not (seen.kind == "rms" and seen.entries == 2)


def is_noisy(seen: NormalizerOverData) -> bool:
    """Whether a BatchNorm takes its statistics from too few values, or too few samples, for a variance."""
    if seen.kind != "batch" or seen.uses_running or seen.entries < 3:
        return False
    spread = seen.batch_spread or 0.0
    return _noise(seen) > NOISY_VARIANCE or spread > MEASURED_SPREAD or seen.samples <= FEW_SAMPLES


def _noise(seen: NormalizerOverData) -> float:
    """Return the relative standard deviation of a variance of as many normal values."""
    return math.sqrt(2.0 / (seen.entries - 1))


def tiny_sets(examined: Examined) -> Iterator[Finding]:
    """Normalizers over one or two values."""
    for place, seen in examined.normalizers():
        if not is_tiny(seen):
            continue
        where, one = place.path, seen.entries == 1
        constant = one and seen.kind != "rms"
        effect = "its own mean leaves zero" if constant else "only the sign of their difference is left (-1 or +1)"
        if seen.kind == "rms":
            effect = "only the sign is left (-1 or +1)"
        yield Finding(
            code="tiny-sets",
            severity=Severity.ERROR if constant else Severity.WARNING,
            where=where,
            seen=f"`{where}` normalizes over sets of {pluralise(seen.entries, 'value')}.",
            why=f"A set of {seen.entries} cannot be standardised: {effect}"
            + (", so the output is constant." if constant else ", and no gradient passes."),
            advice=_larger_sets(seen),
            numbers=figures(entries=seen.entries, samples=seen.samples),
        )


def _larger_sets(seen: NormalizerOverData) -> str:
    return {
        "batch": "Use larger batches, or a normalizer that does not need them: GroupNorm or LayerNorm.",
        "group": "Give GroupNorm fewer groups (num_groups=1 normalizes the whole layer), or use LayerNorm.",
        "instance": "Normalize before the positions are pooled away, or use LayerNorm or GroupNorm(1, channels).",
    }.get(seen.kind, "Remove it, or use BatchNorm: LayerNorm needs more than two features to normalize over.")


def small_batch(examined: Examined) -> Iterator[Finding]:
    """BatchNorm in train mode with too few values, or too few samples, for a variance."""
    for place, seen in examined.normalizers():
        if not is_noisy(seen):
            continue
        noise, spread, where = _noise(seen), seen.batch_spread, place.path
        shown = f"{pluralise(seen.entries, 'value')} per channel from {pluralise(seen.samples, 'sample')}"
        if noise > NOISY_VARIANCE:
            words = f"estimates each variance from {shown}: the estimate is typically off by {percent(noise)}"
        elif spread is not None and spread > MEASURED_SPREAD:
            words = f"sees variances that move by {percent(spread)} from batch to batch ({shown})"
        else:
            words = f"has {shown}: the positions of one sample are alike, so the variance is that of the sample"
        yield Finding(
            code="small-batch",
            severity=Severity.WARNING,
            where=where,
            seen=f"BatchNorm `{where}` {words}.",
            why="In train mode every sample is divided by a deviation estimated from its batch; with few values that "
            "is noise, and the running statistics used later describe another function.",
            advice="Use batches of 32 or more (torch.nn.SyncBatchNorm joins devices), drop a small last batch "
            "(drop_last=True), or use GroupNorm or LayerNorm, which do not look at the batch.",
            numbers=figures(entries=seen.entries, samples=seen.samples, relative_error=noise, batch_spread=spread),
        )


def stale_statistics(examined: Examined) -> Iterator[Finding]:
    """Running statistics that were never taken, or that disagree with the data."""
    stale: list[tuple[str, float, float]] = []
    for place, seen in examined.normalizers():
        if not seen.uses_running or seen.running_variance is None or seen.running_mean is None:
            continue
        if seen.untaken:
            trained = not is_fresh(examined.model)
            yield _never_updated(
                place.path, trained=trained, training=examined.signal is not None and examined.signal.loss is not None
            )
            continue
        drift = _drift(seen, examined.data.samples)
        if drift is not None:
            stale.append((place.path, *drift))
    if stale:
        where, variance, mean = stale[0]
        later = len(stale) - 1
        loss = None if examined.signal is None else examined.signal.loss
        harmless = loss is not None and loss.share_of_blind is not None and loss.share_of_blind < LITTLE_LOSS
        also = f" {pluralise(later, 'later normalizer')} disagree{'s' if later == 1 else ''} as well." if later else ""
        yield Finding(
            code="stale-statistics",
            severity=Severity.INFO if harmless else Severity.WARNING,
            where=where,
            seen=f"Over {pluralise(examined.data.samples, 'sample')} a typical channel of `{where}` differs from "
            "what it "
            f"stores by a factor of {figure(2.0**variance)} in its variance and by {figure(mean)} stored deviations in "
            f"its mean.{also}",
            why="In eval mode the stored statistics are used whatever the data, so the network computes another "
            "function than it was trained as; what comes after sees shifted values and is thrown off too.",
            advice="Take them again over training data: torch.optim.swa_utils.update_bn(loader, model). If they drift "
            "again, training ended too early for their momentum, or these data are not what the model was trained on.",
            numbers=figures(log2_variance=variance, mean_shift=mean, count=len(stale)),
        )


def _never_updated(where: str, *, trained: bool, training: bool) -> Finding:
    seen = f"The running statistics of `{where}` were never updated: mean 0 and variance 1 everywhere"
    return Finding(
        code="stale-statistics",
        severity=Severity.WARNING if trained or training else Severity.INFO,
        where=where,
        seen=f"{seen}, though the model was trained." if trained else f"{seen}, and it is in eval mode.",
        why="In eval mode such a normalizer does not normalize: the network computes another function than in "
        "training.",
        advice="Take the statistics over training data: torch.optim.swa_utils.update_bn(loader, model). They are "
        "lost where a checkpoint was loaded without its buffers, or the model was trained in eval mode."
        if trained
        else 'A fresh model is to be trained, and looked at, in train mode: model.train(), or mode="train" here.',
        numbers={},
    )


def _drift(seen: NormalizerOverData, samples: int) -> tuple[float, float] | None:
    """Return the median abs(log2) ratio of variances and the median shift of means, if either is beyond chance."""
    if seen.channel_variance is None or seen.channel_mean is None or samples < 2:
        return None
    assert seen.running_variance is not None
    assert seen.running_mean is not None
    stored = seen.running_variance.double().cpu() + seen.eps
    ratio = torch.log2((seen.channel_variance + seen.eps) / stored)
    shift = (seen.channel_mean - seen.running_mean.double().cpu()).abs() / stored.sqrt()
    variance, mean = float(ratio.abs().median()), float(shift.median())
    chance = ERRORS * math.sqrt(2.0 / (samples - 1)) / math.log(2.0), ERRORS / math.sqrt(samples)
    if not (math.isfinite(variance) and math.isfinite(mean)):
        return None
    beyond = variance > max(STALE_VARIANCE, chance[0]) or mean > max(STALE_MEAN, chance[1])
    return (variance, mean) if beyond else None
