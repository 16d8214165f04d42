"""Alarms about the variance that enters a normalizer: falling away, growing away, expanded by it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...core.finding import Finding, Severity
from ...diagnosis.findings.expanding import HUGE_GAIN
from ...diagnosis.findings.finding_words import figure, figures, percent, power
from ...report.words import counted
from ..history import History
from ..record import LayerRecord
from .medians import current, lasting, step, then_and_now, told, typical

FALL = 3.0
"""Decades: a thousandfold. Weights that settle from a large start under plain weight decay lose up to two."""
FALL_COUPLED = 1.2
"""Decades, where coupled L2 has pulled a scale-invariant weight down to half its norm or less (`SHRUNK`).

Adam divides the decay d w by the gradient's noise, which for such a weight is c/|w|: it shrinks by lr d |w|^2/c a step
and grows by about lr^2 n/|w| from steps across it. They balance where |w|^3 goes with c. The variance goes with |w|^2:
a fall by 1.2 decades is one of the noise by 1.8, sixtyfold, as of data that are fitted. Where the decay exceeds the
noise it moves every entry by the whole learning rate, and nothing stops it before eps does. The scaling is
theory's; the number was chosen between runs of a LayerNorm MLP that collapse and runs that do not.
"""
SHRUNK = 0.3
"""Decades of a weight's norm, half of it: the variance behind it goes with the square."""
NEAR_EPS = 0.5
"""Share of the sets with a variance below 10 eps."""
WAS_NEAR_EPS = 0.25
"""At the start: a model that begins there is the business of an audit (`eps-dominated`)."""
GROWTH = 4.0
"""Decades over the run: variances grow by one or two in healthy runs without weight decay."""
OVERFLOW = 8.0
"""log10 of a variance: deviations of 10,000, whose outliers leave the range of float16 (65,504)."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A weight that became much smaller: log10 of its norm at the start and now."""

    layer: LayerRecord
    then: float
    now: float


def variance_collapse(history: History) -> Iterator[Finding]:
    """Normalizers whose input variance falls by orders of magnitude, or to eps."""
    near = {i: (then, now) for i, _, then, now in then_and_now(history, "normalizer", "dominated")}
    for index, layer, then, now in _levels(history):
        pulled, shrunk = _weights_before(history, layer)
        before, share = near.get(index, (0.0, 0.0))
        fell = then - now >= (FALL if pulled is None or shrunk is None else FALL_COUPLED)
        ended = share >= NEAR_EPS and before <= WAS_NEAR_EPS
        if fell or ended:
            yield _collapse(history, layer, (then, now), share, pulled, shrunk)


def _weights_before(history: History, layer: LayerRecord) -> tuple[LayerRecord | None, Shrunk | None]:
    """Return the weight before a normalizer that coupled L2 pulls down, and the one that shrank, if there are any."""
    weights = [(i, w) for i, w in enumerate(history.of("weight")) if w.normalizer == layer.name]
    pulled = next((pair for pair in weights if pair[1].coupled and pair[1].invariant), None)
    first = pulled or next(iter(weights), None)
    return None if pulled is None else pulled[1], None if first is None else _shrunk(history, *first)


def _collapse(
    history: History,
    layer: LayerRecord,
    levels: tuple[float, float],
    share: float,
    pulled: LayerRecord | None,
    shrunk: Shrunk | None,
) -> Finding:
    """The finding about one normalizer whose variance went from one level to another."""
    then, now = levels
    why, advice = _why(layer, pulled, shrunk)
    norms = ""
    if shrunk is not None:
        norms = f" The norm of {shrunk.layer.name} went from {power(shrunk.then)} to {power(shrunk.now)}."
    return Finding(
        code="variance-collapse",
        severity=Severity.WARNING,
        where=layer.name,
        seen=f"The variance into {layer.name} fell from {power(then)} to {power(now)}; {percent(share)} of what it "
        f"normalizes is below 10 eps ({_eps(layer)}).{norms}",
        why=why,
        advice=advice,
        numbers=figures(
            log10_variance=now,
            log10_variance_first=then,
            dominated=share,
            eps=layer.eps,
            weight_decay=None if pulled is None else pulled.weight_decay,
            coupled=int(pulled is not None),
            log10_norm=None if shrunk is None else shrunk.now,
            log10_norm_first=None if shrunk is None else shrunk.then,
        ),
        step=step(history),
    )


def _levels(history: History) -> Iterator[tuple[int, LayerRecord, float, float]]:
    """Yield the level of every normalizer's variances at the start and now."""
    for index, layer in enumerate(history.of("normalizer")):
        mean, most = (history.course("normalizer", q, index) for q in ("log10_variance", "log10_variance_max"))
        then, present = _level(mean.start, most.start), _level(mean.now, most.now)
        if then is not None and present is not None and math.isfinite(then):
            yield index, layer, then, present


def _level(mean: float | None, most: float | None) -> float | None:
    """Return the mean of the log variances; where one constant channel makes it minus infinity, the largest."""
    return most if mean == -math.inf else mean


def _shrunk(history: History, index: int, layer: LayerRecord) -> Shrunk | None:
    """Return a weight with its norms at the start and now, if it became much smaller."""
    course = history.course("weight", "log10_size", index)
    then, now = course.start, course.now
    return None if then is None or now is None or then - now < SHRUNK else Shrunk(layer, then, now)


def _why(layer: LayerRecord, pulled: LayerRecord | None, shrunk: Shrunk | None) -> tuple[str, str]:
    """Return why a variance fell and what to do, as far as the run shows it."""
    harm = f"Below eps {layer.name} no longer normalizes, and what comes after sees next to nothing of its input."
    if pulled is not None and shrunk is not None:
        assert pulled.weight_decay is not None
        return (
            f"The weights of {pulled.name} are scale invariant: {layer.name} undoes their scale, so the loss does not "
            f"hold it up. The optimizer adds weight_decay={pulled.weight_decay:g} to their gradient and divides both "
            "by the gradient's size (coupled L2): where the gradient vanishes, the decay alone moves them, by the "
            f"whole learning rate a step. {harm}",
            "Use torch.optim.AdamW, whose decay is not rescaled, or put the weights before normalizers into a "
            "parameter group with weight_decay=0; go on from a checkpoint from before the fall.",
        )
    if shrunk is not None:
        cause = (
            "Weight decay pulls them down faster than their gradients hold against it."
            if shrunk.layer.weight_decay
            else "The loss, or a penalty in it, pulls them down."
        )
        return (
            f"The weights of {shrunk.layer.name} shrink. {cause} {harm}",
            "Lower the weight decay of this weight, or put the weights before normalizers into a parameter group with "
            "weight_decay=0.",
        )
    return (
        f"What enters {layer.name} becomes constant while the weights before it keep their size. {harm}",
        "Look at what comes before: scales of another normalizer that shrink, units that are never on, inputs that are "
        "all alike.",
    )


def _eps(layer: LayerRecord) -> str:
    return "eps not known" if layer.eps is None else f"eps = {figure(layer.eps)}"


def variance_growth(history: History) -> Iterator[Finding]:
    """Normalizers whose input variance grows until activations leave the range of half precision."""
    for _, layer, then, now in then_and_now(history, "normalizer", "log10_variance_max"):
        if now >= OVERFLOW and now - then >= GROWTH:
            yield Finding(
                code="variance-growth",
                severity=Severity.WARNING,
                where=layer.name,
                seen=f"The largest variance into {layer.name} grew from {power(then)} to {power(now)}.",
                why="Growing variances are common and lower what a normalizer passes on; at this size activations "
                "overflow in float16, lose their small parts in bfloat16, and hardly move with a step any more.",
                advice="Lower the learning rate, use weight decay on the weights before (AdamW or SGD), or normalize "
                "the stream that grows.",
                numbers=figures(log10_variance_max=now, log10_variance_max_first=then),
                step=step(history),
            )


def expanding_normalizer(history: History) -> Iterator[Finding]:
    """The normalizer that expands most, with the weights before it, if that is a thousandfold; once in a run."""
    if told(history, "expanding-normalizer"):
        return
    found = [gain for gain in _typical_gains(history) if gain.log10 >= HUGE_GAIN]
    if found:
        most = max(found, key=lambda gain: gain.log10)
        also = f" {counted(len(found) - 1, 'other normalizer')} likewise." if len(found) > 1 else ""
        yield Finding(
            code="expanding-normalizer",
            severity=Severity.WARNING,
            where=most.layer.name,
            seen=f"{most.layer.name}{' with the weights before it' if most.folded else ''} expands by "
            f"{power(most.log10)}; the typical variance of its input is {power(most.variance)}.{also}",
            why="A normalizer divides by the deviation of its input: what enters it as noise leaves it as signal, "
            "and gradients grow by the same factor on their way back.",
            advice="Raise the scale of what comes before, or raise eps so that the gain is capped at 1/sqrt(eps).",
            numbers=figures(log10_gain=most.log10, log10_variance=most.variance, count=len(found)),
            step=step(history),
        )


@dataclass(frozen=True, slots=True)
class TypicalGain:
    """What a normalizer does to a typical set.

    Attributes:
        layer: the normalizer.
        log10: of the gain.
        variance: log10 of the typical variance of its input.
        folded: whether the weights before it are counted in.
    """

    layer: LayerRecord
    log10: float
    variance: float
    folded: bool


def _typical_gains(history: History) -> Iterator[TypicalGain]:
    """Yield the gains of all normalizers that were measured, with the weights before them where those are known."""
    fed = {w.normalizer: i for i, w in enumerate(history.of("weight")) if w.normalizer}
    for index, layer, gains in lasting(history, "normalizer", "log10_gain"):
        together = current(history, "weight", "log10_folded", fed[layer.name]) if layer.name in fed else None
        gain = typical(gains) if together is None else together
        quiet, usual = (current(history, "normalizer", q, index) for q in ("log10_variance_min", "log10_variance"))
        if gain is None or layer.eps is None or not layer.eps > 0.0 or usual is None or quiet is None:
            continue
        if layer.family != "batch_norm":  # the gain is that of the quietest set; say what a typical one gets
            gain -= (_log_sum(usual, layer.eps) - _log_sum(quiet, layer.eps)) / 2.0
        yield TypicalGain(layer, gain, usual, together is not None)


def _log_sum(exponent: float, eps: float) -> float:
    """Return log10(10**exponent + eps)."""
    return math.log10(10.0 ** min(exponent, 300.0) + eps)
