"""Alarms about normalizers: variances that fall, normalizers that expand, statistics of few values or of old ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from ....core.finding import Finding, figure, percent, power
from ....report.words import pluralise
from ...findings.normalizers import FEW_SAMPLES, HUGE_GAIN, NOISY_VARIANCE
from ..history import Alarm, History, others_likewise
from ..record import LayerRecord

# ---- variances that fall

COLLAPSE_HARM = "Below eps {where} no longer normalizes, and what comes after sees next to nothing of its input."
COLLAPSE_UNEXPLAINED = Alarm(
    code="variance-collapse",
    seen="The variance into {where} fell from {log10_variance_first:power} to {log10_variance:power}; "
    "{dominated:percent} of what it normalizes is below 10 eps ({known_eps}).{norms}",
    why=f"What enters {{where}} becomes constant while the weights before it keep their size. {COLLAPSE_HARM}",
    advice="Look at what comes before: scales of another normalizer that shrink, units that are never on, inputs that "
    "are all alike.",
)
COLLAPSE_BY_COUPLED_DECAY = replace(
    COLLAPSE_UNEXPLAINED,
    why="The weights of {weight} are scale invariant: {where} undoes their scale, so the loss does not hold it up. The "
    "optimizer adds weight_decay={weight_decay:g} to their gradient and divides both by the gradient's size (coupled "
    "L2): where the gradient vanishes, the decay alone moves them, by the whole learning rate a step. "
    f"{COLLAPSE_HARM}",
    advice="Use torch.optim.AdamW, whose decay is not rescaled, or put the weights before normalizers into a parameter "
    "group with weight_decay=0; go on from a checkpoint from before the fall.",
)
COLLAPSE_BY_SHRINKING = replace(
    COLLAPSE_UNEXPLAINED,
    why=f"The weights of {{weight}} shrink. {{cause}} {COLLAPSE_HARM}",
    advice="Lower the weight decay of this weight, or put the weights before normalizers into a parameter group with "
    "weight_decay=0.",
)
FALL_DECADES = 3.0
"""Decades: a thousandfold. Weights that settle from a large start under plain weight decay lose up to two."""
FALL_COUPLED_DECADES = 1.2
"""Decades, where coupled L2 has pulled a scale-invariant weight down to half its norm or less (`SHRUNK_DECADES`).

Adam divides the decay d w by the gradient's noise, which for such a weight is c/|w|: it shrinks by lr d |w|^2/c a step
and grows by about lr^2 n/|w| from steps across it. They balance where |w|^3 goes with c. The variance goes with |w|^2:
a fall by 1.2 decades is one of the noise by 1.8, sixtyfold, as of data that are fitted. Where the decay exceeds the
noise it moves every entry by the whole learning rate, and nothing stops it before eps does. The scaling is
theory's; the number was chosen between runs of a LayerNorm MLP that collapse and runs that do not.
"""
SHRUNK_DECADES = 0.3
"""Decades of a weight's norm, half of it: the variance behind it goes with the square."""
NEAR_EPS_SHARE = 0.5
"""Share of the sets with a variance below 10 eps."""
WAS_NEAR_EPS_SHARE = 0.25
"""At the start: a model that begins there is the business of an audit (`eps-dominated`)."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A weight that became much smaller: log10 of its norm at the start and now."""

    layer: LayerRecord
    then: float
    now: float


def variance_collapse(history: History) -> Iterator[Finding]:
    """Normalizers whose input variance falls by orders of magnitude, or to eps."""
    near = {i: (then, now) for i, _, then, now in history.then_and_now("normalizer", "dominated")}
    means, most = (history.courses("normalizer", q) for q in ("log10_variance", "log10_variance_max"))
    for index, layer in enumerate(history.of("normalizer")):
        then = _level(means.starts().get(index), most.starts().get(index))
        now = _level(means.nows().get(index), most.nows().get(index))
        before, share = near.get(index, (0.0, 0.0))
        if then is None or now is None or not math.isfinite(then):
            continue
        if then - now < FALL_COUPLED_DECADES and share < NEAR_EPS_SHARE:
            continue
        pulled, shrunk = _weights_before(history, layer)
        fell = then - now >= (FALL_DECADES if pulled is None or shrunk is None else FALL_COUPLED_DECADES)
        if fell or (share >= NEAR_EPS_SHARE and before <= WAS_NEAR_EPS_SHARE):
            yield _describe_collapse(history, layer, (then, now), share, pulled, shrunk)


def _level(mean: float | None, most: float | None) -> float | None:
    """Return the mean of the log variances; where one constant channel makes it minus infinity, the largest."""
    return most if mean == -math.inf else mean


def _weights_before(history: History, layer: LayerRecord) -> tuple[LayerRecord | None, Shrunk | None]:
    """Return the weight before a normalizer that coupled L2 pulls down, and the one that shrank, if there are any."""
    weights = [(i, w) for i, w in enumerate(history.of("weight")) if w.normalizer == layer.name]
    pulled = next((pair for pair in weights if pair[1].coupled and pair[1].invariant), None)
    for index, weight in [pulled] if pulled else weights[:1]:
        course = history.course("weight", "log10_size", index)
        then, now = course.start, course.now
        if then is not None and now is not None and not then - now < SHRUNK_DECADES:
            return pulled and pulled[1], Shrunk(weight, then, now)
    return pulled and pulled[1], None


def _describe_collapse(
    history: History,
    layer: LayerRecord,
    levels: tuple[float, float],
    share: float,
    pulled: LayerRecord | None,
    shrunk: Shrunk | None,
) -> Finding:
    """The finding about one normalizer whose variance went from one level to another."""
    alarm, words, (then, now) = COLLAPSE_UNEXPLAINED, {"norms": ""}, levels
    words["known_eps"] = "eps not known" if layer.eps is None else f"eps = {figure(layer.eps)}"
    if shrunk is not None:
        alarm, words["weight"] = COLLAPSE_BY_COUPLED_DECAY if pulled else COLLAPSE_BY_SHRINKING, shrunk.layer.name
        words["norms"] = f" The norm of {shrunk.layer.name} went from {power(shrunk.then)} to {power(shrunk.now)}."
        words["cause"] = (
            "Weight decay pulls them down faster than their gradients hold against it."
            if shrunk.layer.weight_decay
            else "The loss, or a penalty in it, pulls them down."
        )
    return alarm.at(
        history.step,
        layer.name,
        words,
        log10_variance=now,
        log10_variance_first=then,
        dominated=share,
        eps=layer.eps,
        weight_decay=None if pulled is None else pulled.weight_decay,
        coupled=int(pulled is not None),
        log10_norm=None if shrunk is None else shrunk.now,
        log10_norm_first=None if shrunk is None else shrunk.then,
    )


# ---- normalizers that expand


EXPANDING_NORMALIZER = Alarm(
    code="expanding-normalizer",
    seen="{where}{folded} expands by {log10_gain:power}; the typical variance of its input is "
    "{log10_variance:power}.{also}",
    why="A normalizer divides by the deviation of its input: what enters it as noise leaves it as signal, and "
    "gradients grow by the same factor on their way back.",
    advice="Raise the scale of what comes before, or raise eps so that the gain is capped at 1/sqrt(eps).",
)


@dataclass(frozen=True, slots=True)
class TypicalGain:
    """What a normalizer does to a typical set: log10 of its gain, of the variance, whether weights before it count."""

    layer: LayerRecord
    log10: float
    variance: float
    folded: bool


def expanding_normalizer(history: History) -> Iterator[Finding]:
    """The normalizer that expands most, with the weights before it, if that is a thousandfold; once in a run."""
    if history.has_raised("expanding-normalizer"):
        return
    gains = [gain for gain in _typical_gains(history) if gain.log10 >= HUGE_GAIN]
    if gains:
        most = max(gains, key=lambda gain: gain.log10)
        yield EXPANDING_NORMALIZER.at(
            history.step,
            most.layer.name,
            {
                "folded": " with the weights before it" if most.folded else "",
                "also": others_likewise(len(gains), "other normalizer"),
            },
            log10_gain=most.log10,
            log10_variance=most.variance,
            count=len(gains),
        )


def _typical_gains(history: History) -> Iterator[TypicalGain]:
    """Yield the gains of all normalizers that were measured, with the weights before them where those are known."""
    fed = {w.normalizer: i for i, w in enumerate(history.of("weight")) if w.normalizer}
    folded = history.courses("weight", "log10_folded").nows()
    least, means = (history.courses("normalizer", q).nows() for q in ("log10_variance_min", "log10_variance"))
    for index, layer, gains in history.lasting("normalizer", "log10_gain"):
        together = folded.get(fed[layer.name]) if layer.name in fed else None
        gain, quietest, usual = median(gains) if together is None else together, least.get(index), means.get(index)
        if layer.eps is None or not layer.eps > 0.0 or usual is None or quietest is None:
            continue
        if layer.family != "batch_norm":  # the gain is that of the quietest set; say what a typical one gets
            gain -= (_log10_sum(usual, layer.eps) - _log10_sum(quietest, layer.eps)) / 2.0
        yield TypicalGain(layer, gain, usual, together is not None)


def _log10_sum(exponent: float, eps: float) -> float:
    """Return log10(10**exponent + eps)."""
    return math.log10(10.0 ** min(exponent, 300.0) + eps)


# ---- the statistics of BatchNorm: from too few values, or not those it will be used with

SMALL_BATCH = Alarm(
    code="small-batch",
    seen="In {where} {noise}.{also}",
    why="In train mode every sample is divided by a deviation estimated from its batch; with few values that is noise, "
    "and the running statistics used later describe another function.",
    advice="Use batches of 32 or more (torch.nn.SyncBatchNorm joins devices), drop a small last batch "
    "(drop_last=True), or use GroupNorm or LayerNorm, which do not look at the batch.",
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


def small_batch(history: History) -> Iterator[Finding]:
    """BatchNorm with too few values for a variance, or variances that move too much from batch to batch."""
    if history.has_raised("small-batch"):
        return
    single = [n for n in history.of("normalizer") if n.family in CENTRED and n.entries == 1]
    if single and len(history.records) > 1:
        also = others_likewise(len(single), "other normalizer")
        yield ONE_VALUE.at(history.step, single[0].name, {"also": also}, entries=1, count=len(single))
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
            history.step,
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


STALE_STATISTICS = Alarm(
    code="stale-statistics",
    seen="For {records:counted record} the variances of the batches into {where} were {log10_running:power} times the "
    "running ones.{also}",
    why="In eval mode the running statistics are used: the network that is tested and saved is not the one that is "
    "trained.",
    advice="Raise the momentum of BatchNorm (0.1 is usual: it forgets in some ten steps), or take the statistics again "
    "before testing: torch.optim.swa_utils.update_bn(loader, model). If variances move this fast, the learning rate is "
    "too high.",
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
"""Decades: the batch's variance is twice or half the stored one, in a typical channel. Healthy runs have 0.05."""


def stale_statistics(history: History) -> Iterator[Finding]:
    """Running statistics that stay far from those of the batches, beyond the first steps."""
    if history.has_raised("stale-statistics"):
        return
    broken = [
        layer
        for layer, values in history.last("normalizer", "log10_variance")
        if layer.family == "batch_norm" and all(map(math.isnan, values))
    ]
    losses = [record.loss for record in history.records[-2:]]
    if broken and all(loss is not None and math.isfinite(loss) for loss in losses):
        also = others_likewise(len(broken), "other normalizer")
        yield STATISTICS_BROKEN.at(history.step, broken[0].name, {"also": also}, count=len(broken))
        return
    collapsed = {finding.where for finding in history.findings if finding.code == "variance-collapse"}
    stale: list[tuple[LayerRecord, float, int]] = []
    for index, layer, values in history.lasting("normalizer", "log10_running"):
        one_sided = min(values) > STALE_DECADES or max(values) < -STALE_DECADES  # a spread around it is noise, not age
        since = history.course("normalizer", "log10_running", index).latest()[0][0]
        if one_sided and layer.name not in collapsed and since >= SETTLED_STEPS:
            stale.append((layer, median(values), len(values)))
    if not stale:
        return
    layer, off, records = max(stale, key=lambda item: abs(item[1]))
    others = f" {pluralise(len(stale) - 1, 'other normalizer')} disagree{'s' if len(stale) == 2 else ''} as well."
    yield STALE_STATISTICS.at(
        history.step,
        layer.name,
        {"records": records, "also": others if len(stale) > 1 else ""},
        log10_running=off,
        count=len(stale),
    )
