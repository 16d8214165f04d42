"""The sets behind the statistics of a normalizer: too few values, old statistics, a wrong mode."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ...core.finding import Finding, Severity, figure, figures, percent
from ...report.words import listed, pluralise
from ..facts.examined import Examined
from ..facts.freshness import is_fresh
from ..facts.layers_over_data import NormalizerOverData
from ..monitor.history import History
from ..monitor.layer_record import LayerRecord
from .run_readings import find_lasting
from .symptom import FindingWords, Symptom, finding, others_likewise

FINDING_WORDS = {
    "tiny-sets": FindingWords(
        "{where} normalizes sets of one or two values", "{norms} work on sets of one or two values"
    ),
    "stale-statistics": FindingWords(
        "the stored statistics do not fit the data, from {where} on",
        "the stored statistics of {norms} do not fit the data",
        note=("the statistics of {where} were never taken", "the statistics of {norms} were never taken"),
    ),
    "wrong-mode": FindingWords(
        "{where} is in train mode, the model is not", "{norms} are in train mode, the model is not"
    ),
    "small-batch": FindingWords("the batch is too small for {where}", "the batch is too small for {norms}"),
}


def is_tiny(seen: NormalizerOverData) -> bool:
    """Whether a normalizer takes its statistics from one or two values, which leaves nothing or signs."""
    return not seen.uses_running and seen.entries <= 2 and not (seen.kind == "rms" and seen.entries == 2)


def check_tiny_sets(examined: Examined) -> Iterator[Finding]:
    """`tiny-sets` (error, warning): a normalizer works on sets of one element (its output is constant) or two (its
    output is ±1); labels depend on the size or the mean of a sample's values, and a normalizer takes that away
    before any layer reads it (warning)
    """
    for place, seen in examined.normalizers():
        if not is_tiny(seen):
            continue
        where, one = place.path, seen.entries == 1
        constant = one and seen.kind != "rms"
        effect = "its own mean leaves zero" if constant else "only the sign of their difference is left (-1 or +1)"
        if seen.kind == "rms":
            effect = "only the sign is left (-1 or +1)"
        yield finding(
            "tiny-sets",
            where,
            f"`{where}` normalizes over sets of {pluralise(seen.entries, 'value')}.",
            f"A set of {seen.entries} cannot be standardised: {effect}"
            + (", so the output is constant." if constant else ", and no gradient passes."),
            _larger_sets(seen),
            figures(entries=seen.entries, samples=seen.samples),
            severity=Severity.ERROR if constant else Severity.WARNING,
        )


def _larger_sets(seen: NormalizerOverData) -> str:
    return {
        "batch": "Use larger batches, or a normalizer that does not need them: GroupNorm or LayerNorm.",
        "group": "Give GroupNorm fewer groups (num_groups=1 normalizes the whole layer), or use LayerNorm.",
        "instance": "Normalize before the positions are pooled away, or use LayerNorm or GroupNorm(1, channels).",
    }.get(seen.kind, "Remove it, or use BatchNorm: LayerNorm needs more than two features to normalize over.")


NOISY_VARIANCE = 0.3
"""Relative standard deviation of a variance: 32 values give 0.25 and train well, 16 give 0.37 and do not."""
MEASURED_SPREAD = 0.5
"""From batch to batch, measured: correlated positions and heavy tails count here, and half is beyond both."""
FEW_SAMPLES = 2
"""Positions of one image are alike: with one or two images a channel's variance is that of the image."""


def is_noisy(seen: NormalizerOverData) -> bool:
    """Whether a BatchNorm takes its statistics from too few values, or too few samples, for a variance."""
    if seen.kind != "batch" or seen.uses_running or seen.entries < 3:
        return False
    spread = seen.batch_spread or 0.0
    return variance_noise(seen) > NOISY_VARIANCE or spread > MEASURED_SPREAD or seen.samples <= FEW_SAMPLES


def variance_noise(seen: NormalizerOverData) -> float:
    """Return the relative standard deviation of a variance of as many normal values."""
    return math.sqrt(2.0 / (seen.entries - 1))


SMALL_BATCH = Symptom(
    code="small-batch",
    seen="In {where} {noise}.{also}",
    why="In train mode every sample is divided by a deviation estimated from its batch; with few values that is noise, "
    "and the running statistics used later describe another function.",
    advice="Use batches of 32 or more (torch.nn.SyncBatchNorm joins devices), drop a small last batch "
    "(drop_last=True), or use GroupNorm or LayerNorm, which do not look at the batch.",
)


def check_small_batch(examined: Examined) -> Iterator[Finding]:
    """`small-batch` (warning, info): BatchNorm in train mode with too few values for a variance, or one that moves too
    much from batch to batch (info: behind a squeeze to one value per channel and sample, where the BatchNorms that see
    whole samples have values enough)
    """
    within = [seen for _, seen in examined.normalizers() if seen.kind == "batch" and seen.entries > seen.samples]
    enough = bool(within) and not any(map(is_noisy, within))
    for place, seen in examined.normalizers():
        if not is_noisy(seen):
            continue
        noise, spread, where = variance_noise(seen), seen.batch_spread, place.path
        shown = f"{pluralise(seen.entries, 'value')} per channel from {pluralise(seen.samples, 'sample')}"
        if noise > NOISY_VARIANCE:
            words = f"estimates each variance from {shown}: the estimate is typically off by {percent(noise)}"
        elif spread is not None and spread > MEASURED_SPREAD:
            words = f"sees variances that move by {percent(spread)} from batch to batch ({shown})"
        else:
            words = f"has {shown}: the positions of one sample are alike, so the variance is that of the sample"
        yield SMALL_BATCH.at(
            where,
            seen=f"BatchNorm `{where}` {words}.",
            severity=Severity.INFO if enough and seen.entries == seen.samples else Severity.WARNING,
            entries=seen.entries,
            samples=seen.samples,
            relative_error=noise,
            batch_spread=spread,
        )


NOISY_SPREAD_DECADES = 0.22
"""The standard deviation over the channels of log10(batch variance/running variance): half a variance, as in audits.

Healthy runs of the tests have 0.02 to 0.12.
"""
CENTRED = ("layer_norm", "group_norm", "instance_norm")
"""Normalizers of single samples that subtract a mean."""
MANY_SAMPLES = 32
"""With this many values chance explains a spread of 0.11 decades; beyond that variances move from batch to batch."""
SETTLED_STEPS = 100
"""Steps after which running statistics with the usual momentum (0.1) have forgotten where they began."""
ONE_VALUE = replace(
    SMALL_BATCH,
    seen="{where} normalizes single values: each set has one.{also}",
    why="The mean of one value is that value, so its output is its bias, whatever the input: no gradient passes.",
    advice="Remove this normalizer, or use LayerNorm over the dimension of the features (normalized_shape, dim), "
    "GroupNorm with fewer groups, or BatchNorm.",
)


def watch_small_batch(history: History) -> Iterator[Finding]:
    """`small-batch` (warning): BatchNorm with values so few that a variance is off by sqrt(2/(m-1)) > 0.3, from one or
    two samples, or with variances that lie a factor of 1.7 around the running ones; at the first record. Also other
    normalizers of single values
    """
    single = [n for n in history.of("normalizer") if n.family in CENTRED and n.entries == 1]
    if single and len(history.records) > 1:
        also = others_likewise(len(single), "other normalizer")
        yield ONE_VALUE.at(single[0].name, {"also": also}, entries=1, count=len(single))
        return
    spreads = {layer.name: median(v) for _, layer, v in history.lasting("normalizer", "running_spread")}
    noisy: list[tuple[LayerRecord, str, float | None]] = []
    for layer in history.of("normalizer"):
        spread = spreads.get(layer.name) if history.step >= SETTLED_STEPS else None
        noise = _describe_noise(layer, spread) if layer.family == "batch_norm" else None
        if noise is not None:
            noisy.append((layer, noise, spread))
    if noisy:
        layer, noise, spread = noisy[0]
        error = math.sqrt(2.0 / (layer.entries - 1)) if layer.entries and layer.entries > 1 else None
        yield SMALL_BATCH.at(
            layer.name,
            {"noise": noise, "also": others_likewise(len(noisy), "other normalizer")},
            entries=layer.entries,
            samples=layer.samples,
            running_spread=spread,
            count=len(noisy),
            relative_error=error,
        )


def _describe_noise(layer: LayerRecord, spread: float | None) -> str | None:
    """Say what is wrong with the sets of a BatchNorm; None if they are large enough."""
    if layer.entries is None:
        return None
    samples = layer.entries if layer.samples is None else layer.samples
    shown = f"{pluralise(layer.entries, 'value')} per channel from {pluralise(samples, 'sample')}"
    if layer.entries <= 2:
        return f"{shown} leave nothing but a sign to normalize"
    noise = math.sqrt(2.0 / (layer.entries - 1))
    if noise > NOISY_VARIANCE:
        return f"{shown} give a variance that is off by {percent(noise)} at best"
    if samples <= FEW_SAMPLES:
        return f"{shown}: the positions of one sample are alike, so the variance is that of the sample"
    if samples < MANY_SAMPLES and spread is not None and spread > NOISY_SPREAD_DECADES:
        return f"variances lie a factor of {figure(10.0**spread)} around the running ones ({shown})"
    return None


def check_wrong_mode(examined: Examined) -> Iterator[Finding]:
    """`wrong-mode` (warning, info): a BatchNorm that normalizes with the statistics of the batch in a model that is in
    eval mode (info: an optimizer is given, and the model, which has dropout or BatchNorm, is in eval mode)
    """
    noisy = [
        place.path
        for place, seen in examined.normalizers()
        if examined.mode == "eval" and not seen.uses_running and seen.running_mean is not None
    ]
    if noisy:
        yield finding(
            "wrong-mode",
            noisy[0],
            f"The model is in eval mode, and {listed([f'`{path}`' for path in noisy], most=3)} "
            f"{'normalizes' if len(noisy) == 1 else 'normalize'} with the statistics of the batch.",
            "What the model says of one sample then depends on the others of the batch, and its running statistics "
            "move.",
            "Call model.eval() after whatever switched this part back to train mode; in F.batch_norm pass "
            "training=self.training.",
            figures(count=len(noisy)),
        )
    steps = None if examined.signal is None else examined.signal.steps
    if steps is None or steps.optimizer is None or examined.model.training or examined.mode != "eval":
        return
    stopped = [path for path, module in examined.model.named_modules() if _trains_otherwise(module)]
    if stopped:
        yield finding(
            "wrong-mode",
            stopped[0],
            "The model is in eval mode beside an optimizer that is to train it, and "
            f"{listed([f'`{path}`' for path in stopped], most=3)} {'works' if len(stopped) == 1 else 'work'} otherwise "
            "in train mode.",
            "Dropout is off in eval mode, and running statistics do not move.",
            "Call model.train() before the steps, and check the model in that mode. If it is in eval mode to be "
            "looked at, or its statistics are kept on purpose, there is nothing to do.",
            figures(count=len(stopped)),
            severity=Severity.INFO,
        )


def _trains_otherwise(module: nn.Module) -> bool:
    """Whether a module computes something else in train mode: dropout, or a BatchNorm whose scales learn."""
    if isinstance(module, _BatchNorm):
        return module.track_running_stats and all(p.requires_grad for p in module.parameters(recurse=False))
    return isinstance(module, _DropoutNd) and module.p > 0.0


PART_IN_EVAL_MODE = Symptom(
    code="eval-mode",
    seen="The model is in train mode, but BatchNorm {where} is in eval mode.{also}",
    why="In eval mode a BatchNorm uses its running statistics, which are still those of a new layer: it does not "
    "normalize at all, though its scales are trained.",
    advice="Call model.train() before the loop and after every evaluation, or that of {where}; look for code that "
    "calls eval() on the normalizers, which is meant for pretrained ones.",
)


def watch_part_in_eval_mode(history: History) -> Iterator[Finding]:
    """`eval-mode` (warning): the optimizer takes three steps and every forward in between is in eval mode, though
    something that is trained reads its mode; or BatchNorms alone are, with the statistics of a new layer and scales
    that are trained; or two validations followed forwards without gradients in train mode, with dropout on
    """
    names = find_lasting(history, history.parameter_state.evaluated)
    if names:
        others = ", ".join(f"`{name}`" for name in names[1:4])
        also = f" So are {others}{' and more' if len(names) > 4 else ''}." if others else ""
        yield PART_IN_EVAL_MODE.at(names[0], {"also": also}, count=len(names))


STALE_VARIANCE = 1.0
"""The median over channels of abs(log2(variance of the data/stored variance)): one of them is twice the other."""
STALE_MEAN = 0.5
"""The median over channels of the distance between the means, in stored standard deviations."""
LITTLE_LOSS = 0.25
"""A share of the loss of a blind guess: a model that is this good in eval mode is not harmed by its statistics."""
MIN_STANDARD_ERRORS = 4.0
"""Standard errors that a difference must exceed: beyond 4 chance is no explanation."""


def check_stale_statistics(examined: Examined) -> Iterator[Finding]:
    """`stale-statistics` (warning, info): running statistics disagree with the data, beyond what chance explains, or
    were never updated in a trained model, or in one that is given a loss (info: otherwise, and where the loss is
    below a quarter of that of a blind guess); a momentum of 0, with which they never move
    """
    for path, module in examined.model.named_modules():
        moves = isinstance(module, _BatchNorm) and module.track_running_stats and module.momentum == 0.0
        if moves and examined.mode == "train" and all(p.requires_grad for p in module.parameters(recurse=False)):
            yield finding(
                "stale-statistics",
                path,
                f"The running statistics of `{path}` have a momentum of 0: they never move.",
                "In eval mode the network then computes another function than it was trained as.",
                "Set the momentum to 0.1, torch's default: it is the share of each batch that enters.",
            )
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
        yield STALE_STATISTICS.at(
            where,
            seen=f"Over {pluralise(examined.data.samples, 'sample')} a typical channel of `{where}` differs from "
            f"what it stores by a factor of {figure(2.0**variance)} in its variance and by {figure(mean)} stored "
            f"deviations in its mean.{also}",
            log2_variance=variance,
            mean_shift=mean,
            count=len(stale),
            severity=Severity.INFO if harmless else Severity.WARNING,
        )


def _never_updated(where: str, *, trained: bool, training: bool) -> Finding:
    seen = f"The running statistics of `{where}` were never updated: mean 0 and variance 1 everywhere"
    return finding(
        "stale-statistics",
        where,
        f"{seen}, though the model was trained." if trained else f"{seen}, and it is in eval mode.",
        "In eval mode such a normalizer does not normalize: the network computes another function than in training.",
        "Take the statistics over training data: torch.optim.swa_utils.update_bn(loader, model). They are "
        "lost where a checkpoint was loaded without its buffers, or the model was trained in eval mode."
        if trained
        else 'A fresh model is to be trained, and looked at, in train mode: model.train(), or mode="train" here.',
        severity=Severity.WARNING if trained or training else Severity.INFO,
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
    chance = (
        MIN_STANDARD_ERRORS * math.sqrt(2.0 / (samples - 1)) / math.log(2.0),
        MIN_STANDARD_ERRORS / math.sqrt(samples),
    )
    if not (math.isfinite(variance) and math.isfinite(mean)):
        return None
    beyond = variance > max(STALE_VARIANCE, chance[0]) or mean > max(STALE_MEAN, chance[1])
    return (variance, mean) if beyond else None


STALE_STATISTICS = Symptom(
    code="stale-statistics",
    seen="For {records:counted record} the variances of the batches into {where} were {log10_running:power} times the "
    "running ones.{also}",
    why="In eval mode the stored statistics are used whatever the data, so the network computes another function than "
    "it was trained as; what comes after sees shifted values and is thrown off too.",
    advice="Take them again over training data: torch.optim.swa_utils.update_bn(loader, model). If they drift again, "
    "raise the momentum of BatchNorm (0.1 is usual: it forgets in some ten steps) or lower the learning rate; or these "
    "data are not what the model was trained on.",
)
STATISTICS_BROKEN = replace(
    STALE_STATISTICS,
    seen="The running statistics of {where} are not finite, while the loss is.{also}",
    why="One batch with NaN or infinite entries stays in a running mean for ever, also where its step was skipped: in "
    "eval mode the network puts out NaN.",
    advice="Look for the batch with NaN or infinite entries and clean the data; test inputs in front of the forward, "
    "not the loss behind it; then take the statistics again (module.reset_running_stats, "
    "torch.optim.swa_utils.update_bn).",
)
STALE_DECADES = 0.3
"""Decades: the batch's variance is twice or half the stored one, in a typical channel, as in a check. Healthy runs have
0.05."""


def watch_stale_statistics(history: History) -> Iterator[Finding]:
    """`stale-statistics` (warning): the variances of the batches stay at twice or half the running ones, beyond the
    first 100 steps; or running statistics are not finite while the loss is
    """
    broken = [
        layer
        for layer, values in history.last("normalizer", "log10_variance")
        if layer.family == "batch_norm" and all(map(math.isnan, values))
    ]
    losses = [record.loss for record in history.records[-2:]]
    if broken and all(loss is not None and math.isfinite(loss) for loss in losses):
        also = others_likewise(len(broken), "other normalizer")
        yield STATISTICS_BROKEN.at(broken[0].name, {"also": also}, count=len(broken))
        return
    collapsed = {finding.where for finding in history.findings if finding.code == "variance-collapse"}
    stale: list[tuple[LayerRecord, float, int]] = []
    for index, layer, values in history.lasting("normalizer", "log10_running"):
        one_sided = min(values) > STALE_DECADES or max(values) < -STALE_DECADES  # a spread around it is noise, not age
        since = history.value_series("normalizer", "log10_running", index).latest()[0][0]
        if one_sided and layer.name not in collapsed and since >= SETTLED_STEPS:
            stale.append((layer, median(values), len(values)))
    if not stale:
        return
    layer, off, records = max(stale, key=lambda item: abs(item[1]))
    others = f" {pluralise(len(stale) - 1, 'other normalizer')} disagree{'s' if len(stale) == 2 else ''} as well."
    yield STALE_STATISTICS.at(
        layer.name,
        {"records": records, "also": others if len(stale) > 1 else ""},
        log10_running=off,
        count=len(stale),
    )
