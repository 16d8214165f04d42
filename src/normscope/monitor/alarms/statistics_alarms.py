"""Alarms about the statistics of BatchNorm: from too few values, or not those it will be used with."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...core.finding import Finding, Severity
from ...diagnosis.findings.finding_words import figure, figures, percent
from ...diagnosis.findings.statistics_sets import FEW_SAMPLES, NOISY_VARIANCE
from ...report.words import counted
from ..history import History
from ..record import LayerRecord
from .medians import lasting, step, typical

SPREAD = 0.22
"""The standard deviation over the channels of log10(batch variance/running variance): half a variance, as in audits.

Healthy runs of the tests have 0.02 to 0.12.
"""
MANY_SAMPLES = 32
"""With this many values chance explains a spread of 0.11 decades; beyond that variances move from batch to batch."""
STALE = 0.3
"""Decades: the batch's variance is twice or half the stored one, in a typical channel. Healthy runs have 0.05."""
SETTLED = 100
"""Steps after which running statistics with the usual momentum (0.1) have forgotten where they began."""


def small_batch(history: History) -> Iterator[Finding]:
    """BatchNorm with too few values for a variance, or variances that move too much from batch to batch."""
    if any(finding.code == "small-batch" for finding in history.findings):
        return
    spreads = {layer.name: typical(v) for _, layer, v in lasting(history, "normalizer", "running_spread")}
    settled = history.records[-1].step >= SETTLED
    found: list[tuple[LayerRecord, str, float | None]] = []
    for layer in history.of("normalizer"):
        spread = spreads.get(layer.name) if settled else None
        words = _noisy(layer, spread) if layer.family == "batch_norm" else None
        if words is not None:
            found.append((layer, words, spread))
    if found:
        layer, words, spread = found[0]
        also = f" {counted(len(found) - 1, 'other normalizer')} likewise." if len(found) > 1 else ""
        yield Finding(
            code="small-batch",
            severity=Severity.WARNING,
            where=layer.name,
            seen=f"In {layer.name} {words}.{also}",
            why="In train mode every sample is divided by a deviation estimated from its batch; with few values that "
            "is noise, and the running statistics used later describe another function.",
            advice="Use batches of 32 or more (torch.nn.SyncBatchNorm joins devices), drop a small last batch "
            "(drop_last=True), or use GroupNorm or LayerNorm, which do not look at the batch.",
            numbers=figures(
                entries=layer.entries,
                samples=layer.samples,
                running_spread=spread,
                count=len(found),
                relative_error=math.sqrt(2.0 / (layer.entries - 1)) if layer.entries and layer.entries > 1 else None,
            ),
            step=step(history),
        )


def _noisy(layer: LayerRecord, spread: float | None) -> str | None:
    """Say what is wrong with the sets of a BatchNorm; None if they are large enough."""
    if layer.entries is None:
        return None
    samples = layer.entries if layer.samples is None else layer.samples
    shown = f"{counted(layer.entries, 'value')} per channel from {counted(samples, 'sample')}"
    if layer.entries <= 2:
        return f"{shown} leave nothing but a sign to normalize"
    noise = math.sqrt(2.0 / (layer.entries - 1))
    if noise > NOISY_VARIANCE:
        return f"{shown} give a variance that is off by {percent(noise)} at best"
    if samples <= FEW_SAMPLES:
        return f"{shown}: the positions of one sample are alike, so the variance is that of the sample"
    if samples < MANY_SAMPLES and spread is not None and spread > SPREAD:
        return f"variances lie a factor of {figure(10.0**spread)} around the running ones ({shown})"
    return None


def stale_statistics(history: History) -> Iterator[Finding]:
    """Running statistics that stay far from those of the batches, beyond the first steps."""
    told = {finding.where for finding in history.findings if finding.code == "variance-collapse"}
    found = lasting(history, "normalizer", "log10_running")
    stale = [
        (layer, values)
        for index, layer, values in found
        if _stale(values)
        and layer.name not in told
        and history.course("normalizer", "log10_running", index).latest()[0][0] >= SETTLED
    ]
    if not stale or any(finding.code == "stale-statistics" for finding in history.findings):
        return
    layer, values = max(stale, key=lambda pair: abs(typical(pair[1]) or 0.0))
    off = typical(values) or 0.0
    also = f" {counted(len(stale) - 1, 'other normalizer')} disagree{'s' if len(stale) == 2 else ''} as well."
    yield Finding(
        code="stale-statistics",
        severity=Severity.WARNING,
        where=layer.name,
        seen=f"For {counted(len(values), 'record')} the variances of the batches into {layer.name} were "
        f"{figure(10.0**off)} times the running ones.{also if len(stale) > 1 else ''}",
        why="In eval mode the running statistics are used: the network that is tested and saved is not the one that "
        "is trained.",
        advice="Raise the momentum of BatchNorm (0.1 is usual: it forgets in some ten steps), or take the statistics "
        "again before testing: torch.optim.swa_utils.update_bn(loader, model). If variances move this fast, the "
        "learning rate is too high.",
        numbers=figures(log10_running=off, count=len(stale)),
        step=step(history),
    )


def _stale(values: list[float]) -> bool:
    """Whether all of them lie far on one side: a spread around the right value is noise, not age."""
    return min(values) > STALE or max(values) < -STALE
