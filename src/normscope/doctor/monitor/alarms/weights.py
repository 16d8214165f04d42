"""Alarms about weights and their gradients: what grows or fades over the run or with depth, what no longer turns."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from ....core.finding import Finding, Severity, power
from ...findings.steps import compute_decay_at_usual_rate
from ..courses import FIRST, LASTING_STEPS
from ..history import Alarm, History, others_likewise
from ..record import LayerRecord, Record
from .learning import FITTED_SHARE

# ---- gradients

CLIP = "clip gradients (torch.nn.utils.clip_grad_norm_), lower the learning rate"
REACH = (
    "Add skip connections or normalizers, use ReLU or GELU instead of saturating activations, or initialise with gain "
    "1 (torch.nn.init.kaiming_normal_)."
)
GRADIENT_NOT_FINITE = Alarm(
    code="gradient-explosion",
    severity=Severity.ERROR,
    seen="For {records:counted record} the gradient was NaN or infinite{last}",
    why="Such a step makes the weights NaN, or is skipped by a GradScaler: either way nothing is learned.",
    advice="Lower the loss scale, run the backward of this layer in float32 or bfloat16, and look for the root, "
    "logarithm or quotient of a zero behind it.",
)
GRADIENT_EXPLODED = Alarm(
    code="gradient-explosion",
    seen="For {records} records the gradient was at least {least:power}; that of the untrained model was "
    "{log10_gradient_first:power}.{worst}",
    why="Steps grow with the gradient, overshoot and make it grow further; overflow is the usual end.",
    advice=f"{CLIP.capitalize()}, and warm it up.",
)
LAYER_GRADIENT_LARGE = Alarm(
    code="gradient-explosion",
    seen="The gradient of {where}, times the norm of its weights, is {log10_sensitivity:power}; that of the last "
    "layers is {log10_others:power}.{also}",
    why="One learning rate cannot suit both: this layer is thrown about while the others stand still.",
    advice=f"{CLIP.capitalize()} of this layer, or look at what follows it: a normalizer whose input hardly varies "
    "expands gradients on their way back.",
)
GRADIENT_GONE = Alarm(
    code="gradient-vanishing",
    seen="The gradient of the whole network fell from {log10_gradient_first:power} to {log10_gradient:power} while the "
    "loss is still {last_loss:figure}; it began at {first_loss:figure}.",
    why="Nothing tells the weights how to become better: outputs are saturated, or units are switched off.",
    advice="Go back to a checkpoint from before, lower the learning rate, and look for saturated activations (sigmoid, "
    "tanh, softmax) and ReLUs that are never on.",
)
STARVED = replace(
    GRADIENT_GONE,
    seen="The gradient of the whole network fell from {log10_gradient_first:power} to {log10_gradient:power}, while "
    "its loss went from {first_loss:figure} to {last_loss:figure}: it is worse than at the start.",
    why="Another network is trained as well and wins, as a discriminator does that tells everything apart: where it is "
    "saturated, no gradient comes back.",
    advice="Weaken the other player: lower its learning rate or its number of steps, regularise it (spectral norm, "
    "gradient penalty, label smoothing), and let a generator minimise the non-saturating loss -log D.",
)
LAYER_GRADIENT_SMALL = replace(
    LAYER_GRADIENT_LARGE,
    code="gradient-vanishing",
    why="This layer hardly learns while the others do: what reaches it is lost on the way back.",
    advice=REACH,
)
LAYER_GRADIENT_LOST = replace(
    LAYER_GRADIENT_SMALL,
    why="At the first step it was not so: steps that are too large moved the weights to where nothing gets through.",
    advice="Lower the learning rate to a tenth or less, or let it grow from zero over the first steps (warm-up).",
)
EVEN_DECADES, LARGE_STEP_LOG10 = 2.0, -2.0
"""Decades between a layer and the last third that are even, and a first step that is large, over the weights."""
STEEP_FROM_START = Alarm(
    code="gradient-explosion",
    seen="For {records} records the gradient was at least {least:power}: times the norm of the weights it is "
    "{log10_steepness:power} times the loss of a constant output, where 1 to 100 is usual.{worst}",
    why="The gradient explodes on its way back, from the start: a small step changes the loss by orders of magnitude.",
    advice="Clip gradients (torch.nn.utils.clip_grad_norm_), initialise with smaller weights (orthogonal for recurrent "
    "ones), add normalizers, or use an LSTM or GRU; lower the learning rate.",
)
STEEP_DECADES = 3.5
"""log10 of gradient times weights over the loss; healthy runs have 0 to 2."""
EXPLODED_DECADES = 4.0
"""Decades of the whole gradient above that of the untrained model.

Healthy runs of the tests stay within 1.7; unnormalized networks that leave a plateau come closest to it.
"""
EXPLODED_RECORDS = 3
"""Records in a row: an explosion lasts until it ends the run, a spike of one batch does not."""
UNEVEN_DECADES, UNEVEN_PLAIN_DECADES, STARVING_DECADES = 4.0, 5.0, 3.0
"""Decades of gradient times weight between one layer and the last third; healthy runs of the tests stay within 1.8.

The first is for a lasting state, the second for two records, the third for first layers that starve while nothing is
learned.
"""
STARVED_DECADES = 2.0
"""The same where another network is trained beside this one, whose loss is above where it began."""
GONE_DECADES = 5.0
"""Decades of the whole gradient below that of the untrained model, while the loss has hardly moved."""
UNFITTED_SHARE = 0.5
"""A share of the first loss: while the loss is above it, the gradient has no reason to be gone."""
MIN_DEPTH = 4
"""A network needs this many layers before its gradients by depth say anything."""


def gradient_explosion(history: History) -> Iterator[Finding]:
    """Gradients that are NaN or infinite, far above those of the untrained model, or larger by decades in one layer."""
    yield from _gradient_not_finite(history)
    if history.has_raised("gradient-explosion"):
        return
    latest = [record.total.get("log10_gradient") for record in history.records[-EXPLODED_RECORDS:]]
    recent, start = [v for v in latest if v is not None and not math.isnan(v)], _first_gradient(history)
    uneven = _find_uneven_layer(history, LAYER_GRADIENT_LARGE)
    if start is not None and len(recent) == EXPLODED_RECORDS and min(recent) - start >= EXPLODED_DECADES:
        where = _steepest_layer(history)
        worst = f" It is largest, for its weights, in {where}." if where else ""
        words = {"records": EXPLODED_RECORDS, "least": min(recent), "worst": worst}
        yield GRADIENT_EXPLODED.at(history.step, where, words, log10_gradient=recent[-1], log10_gradient_first=start)
    elif (steepness := _steepness(history)) is not None and steepness >= STEEP_DECADES:
        where = _steepest_layer(history)
        worst = f" It is largest, for its weights, in `{where}`." if where else ""
        words = {"records": len(recent), "least": min(recent), "worst": worst}
        yield STEEP_FROM_START.at(history.step, where, words, log10_gradient=recent[-1], log10_steepness=steepness)
    elif uneven is not None:
        yield uneven


def _steepness(history: History) -> float | None:
    """Return the least log10 of gradient times weights over the loss, in the last records; None where not known."""
    values = []
    for record in history.repeated(EXPLODED_RECORDS):
        gradient, weight, loss = record.total.get("log10_gradient"), record.total.get("log10_weight"), record.loss
        if gradient is None or weight is None or loss is None or not 0.0 < loss < math.inf:
            return None
        own, constant = record.total.get("outputs_own"), record.total.get("outputs_constant")
        usual = loss if not own or not constant else min(loss, constant * loss / own)  # that of a constant output
        values.append(gradient + weight - math.log10(usual))
    finite = bool(values) and all(map(math.isfinite, values))
    last, start = history.records[-1], history.first_loss
    own, constant = last.total.get("outputs_own"), last.total.get("outputs_constant")
    now, then = (last.loss, start) if own is None or constant is None else (own, constant)
    fitted = now is not None and then is not None and now < UNFITTED_SHARE * then
    return min(values) if finite and not fitted else None


def gradient_vanishing(history: History) -> Iterator[Finding]:
    """Gradients that are gone though the loss is not, or that fade on their way back."""
    if history.has_raised("gradient-vanishing"):
        return
    losses, opening, loss = history.total("loss").lasting(), history.total("loss").first, history.total("loss").now
    start, top = _first_gradient(history), max(history.total("log10_gradient").lasting(), default=math.inf)
    uneven = _find_uneven_layer(history, LAYER_GRADIENT_SMALL)
    stuck = loss is not None and opening and 0.0 < UNFITTED_SHARE * max(opening) <= loss
    latest, starved = history.total("loss").last(3), history.total("log10_gradient").last(3)
    worse = bool(latest) and bool(opening) and min(latest) > opening[0]
    if start is not None and worse and starved and history.standing.others and max(starved) <= start - STARVED_DECADES:
        words = {"last_loss": latest[-1], "first_loss": opening[0]}
        yield STARVED.at(history.step, words=words, log10_gradient=max(starved), log10_gradient_first=start)
    elif start is not None and stuck and top <= start - GONE_DECADES and not _has_settled(history):
        words = {"last_loss": losses[-1], "first_loss": opening[0]}
        yield GRADIENT_GONE.at(history.step, words=words, log10_gradient=top, log10_gradient_first=start, loss=loss)
    elif uneven is not None:
        yield uneven


def _has_settled(history: History) -> bool:
    """Return whether all records saw the same batch and the loss fell: gradient descent on all data ends like that."""
    means = {r.total.get("input_mean") for r in history.records}
    last = history.records[-1].loss
    return len(means) == 1 and None not in means and last is not None and last < (history.records[0].loss or 0.0)


def _gradient_not_finite(history: History) -> Iterator[Finding]:
    """Gradients that stay NaN or infinite; one step that overflows under a loss scale is no fault."""
    values = [value for _, value in history.total("log10_gradient").latest()]
    if history.has_raised("loss-not-finite"):
        return  # that is why
    if values and not any(v < math.inf for v in values):
        layers = [
            layer.name
            for i, layer in enumerate(history.of("weight"))
            if (v := history.records[-1].number("weight", "log10_gradient", i)) is not None and not v < math.inf
        ]
        words = {"records": len(values), "last": f"; {layers[-1]} is the last layer where it is." if layers else "."}
        yield GRADIENT_NOT_FINITE.at(history.step, layers[-1] if layers else "", words, count=len(layers))


def _first_gradient(history: History) -> float | None:
    """Return log10 of the first whole gradient that is finite."""
    return next((value for value in history.total("log10_gradient").first if math.isfinite(value)), None)


def _steepest_layer(history: History) -> str:
    """Return the weight layer with the largest gradient relative to its weights; empty if none has one."""
    slopes = []
    for index, layer in enumerate(history.of("weight")):
        gradient, size = (history.records[-1].number("weight", q, index) for q in ("log10_gradient", "log10_size"))
        if gradient is not None and size is not None and math.isfinite(gradient) and math.isfinite(size):
            slopes.append((gradient - size, index, layer.name))
    return max(slopes)[2] if slopes else ""


def _measure_sensitivities(history: History) -> tuple[dict[int, float], float]:
    """Return by layer log10 of its gradient times the norm of its weights, and what counts as far from the others."""
    key, levels, limit = "sensitivities", {}, UNEVEN_DECADES
    if key in history.looked_up:
        measured: tuple[dict[int, float], float] = history.looked_up[key]
        return measured
    for index in range(len(history.of("weight"))):
        course = history.course("weight", "log10_gradient", index)
        pairs, limit = course.latest(), UNEVEN_DECADES
        if not pairs and course.last():
            pairs, limit = course.recent[-2:], UNEVEN_PLAIN_DECADES
        sizes = dict(history.course("weight", "log10_size", index).recent)
        products = [gradient + sizes.get(step, math.nan) for step, gradient in pairs]
        if products and all(map(math.isfinite, products)):
            levels[index] = median(products)
    history.looked_up[key] = levels, limit
    return levels, limit


def _find_uneven_layer(history: History, alarm: Alarm) -> Finding | None:
    """Return the layer whose gradient lasts far above, or below, those of the layers next to the output."""
    up = alarm is LAYER_GRADIENT_LARGE
    layers = history.of("weight")
    # gradients times the norm of their weights, how much the loss changes when these change by their own size: a weight
    # before a normalizer has the same figure at every scale
    levels, limit = _measure_sensitivities(history)
    if len(levels) < MIN_DEPTH:
        return None
    others = median(list(levels.values())[-max(2, len(levels) // 3) :])
    firsts = list(levels.values())[: max(2, len(levels) // 3)]
    if not up and max(firsts) <= others - STARVING_DECADES and history.is_unlearned:
        limit = STARVING_DECADES  # all of the first layers, not one that begins at zero
    beyond = [i for i, level in levels.items() if (level - others if up else others - level) >= limit]
    if not beyond:
        return None
    index = (max if up else min)(beyond, key=lambda i: levels[i])
    if not up and _was_even(history, index, list(levels)):
        alarm = LAYER_GRADIENT_LOST
    return alarm.at(
        history.step,
        layers[index].name,
        {"also": others_likewise(len(beyond), "other layer")},
        log10_sensitivity=levels[index],
        log10_others=others,
        count=len(beyond),
    )


def _was_even(history: History, index: int, layers: Sequence[int]) -> bool:
    """Return whether the gradient of a layer was near those of the last third before a first step that was large."""
    first = history.records[0]
    numbers = [(i, *(first.number("weight", q, i) for q in ("log10_gradient", "log10_size"))) for i in layers]
    begun = {i: gradient + size for i, gradient, size in numbers if gradient is not None and size is not None}
    last = [begun[i] for i in layers[-max(2, len(layers) // 3) :] if i in begun]
    large = (first.total.get("log10_step") or -math.inf) >= LARGE_STEP_LOG10
    return large and index in begun and bool(last) and begun[index] > median(last) - EVEN_DECADES


# ---- norms that grow without limit

INVARIANT_NORM_GROWTH = Alarm(
    code="norm-growth",
    seen="The operator norm of {where} grew {log10_growth:power} times to {log10_norm:power}{lately}",
    why="{normalizer} undoes the scale of these weights, so the output does not change, but each step turns them less: "
    "training comes to a halt.",
    advice="Use weight decay on this weight (with AdamW or SGD), or lower the learning rate.",
)
NORM_GROWTH = replace(
    INVARIANT_NORM_GROWTH,
    why="Norms multiply over layers: activations, gradients and the Lipschitz constant grow exponentially with it "
    "until they overflow.",
    advice="Lower the learning rate, use weight decay, clip gradients (torch.nn.utils.clip_grad_norm_), or put a "
    "normalizer behind this layer.",
)
LATELY = ", and as fast lately as before."
GROWN_DECADES = 1.5
"""Decades of a weight's operator norm since the start.

Unnormalized networks that leave a plateau grow by one within a hundred steps and then level off; others by 0.6.
"""
LARGE_LOG10 = 1.5
"""log10 of an operator norm: below thirty a layer that began at zero, or small, is still finding its size."""
GROWN_ANYHOW_DECADES, HUGE_LOG10 = 2.0, 3.0
"""The same for growth of any shape: a layer that expands a thousandfold has grown too much, whatever it does next."""
STEADY_RATIO = 0.8
"""Growth in the last third of the run over that of the middle third.

Exponential growth has 1; norms that grow with the step have log(3/2)/log(2) = 0.58, and random walks the same.
"""
THIRD_RECORDS = 4
"""Records in each third, so that its growth is more than noise."""


def norm_growth(history: History) -> Iterator[Finding]:
    """Norms of weights that grow exponentially and do not level off."""
    records = history.records
    if len(records) < 3 * THIRD_RECORDS or records[-1].step - records[0].step < 3 * LASTING_STEPS:
        return
    marks = _mark_thirds(records)
    marked = [[record.of("weight", "log10_norm") for record in part] for part in marks]
    for index, layer in enumerate(history.of("weight")):
        numbers = [
            [v for column in part if index < len(column) and (v := column[index]) is not None] for part in marked
        ]
        growth = _measure_growth(numbers) if max(numbers[-1], default=-math.inf) >= LARGE_LOG10 else None
        if growth is None:
            continue
        rise, now, steady = growth
        limits = (GROWN_DECADES, LARGE_LOG10) if steady else (GROWN_ANYHOW_DECADES, HUGE_LOG10)
        if rise < limits[0] or now < limits[1]:
            continue
        yield (NORM_GROWTH if layer.invariant is None else INVARIANT_NORM_GROWTH).at(
            history.step,
            layer.name,
            {"lately": LATELY if steady else ".", "normalizer": layer.normalizer},
            log10_growth=rise,
            log10_norm=now,
            weight_decay=layer.weight_decay,
        )


def _mark_thirds(records: Sequence[Record]) -> tuple[Sequence[Record], ...]:
    """Return a few records at the start, after one and two thirds of the steps, and at the end."""
    half = FIRST // 2
    start, end = records[half].step, records[-1 - half].step  # each part is as far from the next
    low, high = (bisect_left(records, start + (end - start) * third / 3, key=lambda r: r.step) for third in (1, 2))
    return tuple(records[at - half : at + half + 1] for at in (half, low, high, len(records) - 1 - half))


def _measure_growth(figures: Sequence[Sequence[float]]) -> tuple[float, float, bool] | None:
    """Return the growth since the start, the value now, and whether the last third grew as much as the middle one."""
    numbers = [[value for value in part if math.isfinite(value)] for part in figures]
    if not all(numbers):
        return None
    start, low, high, end = map(median, numbers)
    middle, last = high - low, end - high
    return end - start, end, middle > 0.0 and last >= STEADY_RATIO * middle


# ---- weight decay

DECAY_STRONG = Alarm(
    code="decay-too-strong",
    seen="Weight decay takes {share:percent} of the weights at each step (weight_decay = {decay:figure} at a learning "
    "rate of {lr:figure}); usual are 0.1 % and less.",
    why="The decay pulls weights to zero faster than gradients can hold them up: what is learned is forgotten within "
    "{memory:.0f} steps.",
    advice="Lower the weight decay: 0.01 to 0.1 for AdamW, 1e-4 for SGD.",
)
STRONG_DECAY_SHARE = 0.01
"""The share of the weights that decay takes at a step: at 1 % they are halved in seventy steps."""


def decay_too_strong(history: History) -> Iterator[Finding]:
    """Weight decay that takes a large part of the weights at each step."""
    decays = [layer.weight_decay for layer in history.of("weight") if layer.weight_decay]
    coupled = any(layer.coupled for layer in history.of("weight"))
    if not decays or len(history.records) < 2 or history.has_raised("decay-too-strong"):
        return
    decay, rates = max(decays), [max(r.lr, default=0.0) for r in history.records[-2:]]
    share = min(1.0, min(rates) * decay)
    if (
        not coupled
        and share
        and compute_decay_at_usual_rate(share, min(rates), history.standing.optimizer) >= STRONG_DECAY_SHARE
    ):
        yield DECAY_STRONG.at(
            history.step, words={"memory": max(1.0, 1.0 / share)}, share=share, decay=decay, lr=rates[-1]
        )


PENALTY_OUTWEIGHS = replace(
    DECAY_STRONG,
    seen="The weights of {where} have shrunk to {share:percent} of their size, and the loss ({loss:figure}) is mostly "
    "a penalty: the part that compares outputs with targets is {own:figure}, no better than a constant output.",
    why="The penalty (regularisation, L1 or L2) is too strong: it pulls these weights to zero faster than the loss can "
    "hold them up.",
    advice="Lower the penalty: take the mean of the weights in it instead of their sum, or a hundredth of its factor.",
)
PENALTY_RATIO, SHRUNK_BY_PENALTY_LOG10 = 3.0, -0.7
"""The whole loss over its part that compares with targets, and log10 of a weight over its first size."""


def penalty_outweighs(history: History) -> Iterator[Finding]:
    """A penalty in the loss that shrinks a layer while nothing is learned."""
    loss, own = history.records[-1].loss, history.records[-1].total.get("outputs_own")
    if loss is None or own is None or not loss >= PENALTY_RATIO * own > 0.0 or history.has_raised("decay-too-strong"):
        return
    shrunk = [
        (min(latest) - course.first[0], layer)
        for index, layer in enumerate(history.of("weight"))
        if (course := history.course("weight", "log10_size", index)).first and (latest := course.last())
    ]
    if shrunk and history.is_unlearned:
        fall, layer = min(shrunk, key=lambda pair: pair[0])
        if fall <= SHRUNK_BY_PENALTY_LOG10:
            yield PENALTY_OUTWEIGHS.at(history.step, layer.name, share=10.0**fall, loss=loss, own=own)


# ---- how far a step turns scale-invariant weights

EFFECTIVE_LR_HIGH = Alarm(
    code="effective-lr",
    seen="A step turns {where} by more than {rotation:figure} radians, for several records.{rate}{also}",
    why="{normalizer} undoes the scale of these weights: they learn by turning alone, at the learning rate divided by "
    "their norm (its square for SGD). At this angle a few steps undo what was learned before.",
    advice="Lower the learning rate, warm it up, or let the norm grow: less weight decay on this weight.",
)
EFFECTIVE_LR_LOW = Alarm(
    code="effective-lr",
    seen="A step turns {where} by less than {rotation:figure} radians, for several records.{rate}{also}",
    why="{normalizer} undoes the scale of these weights: they learn by turning alone, at the learning rate divided by "
    "their norm (its square for SGD). At this angle they are as good as frozen, while the loss is not fitted.",
    advice="Raise the learning rate, or bring the norm down: weight decay on this weight (AdamW or SGD).",
)
STILL_RADIANS, SPINNING_RADIANS = 1e-6, 0.5
"""Radians a step. At 1e-6 a million steps turn a weight by one radian; at 0.5 three steps forget where it stood.

The equilibrium of SGD with weight decay turns by sqrt(2 lr wd), 0.001 to 0.03 as a rule.
"""
STILL_MOVED_RADIANS, SPINNING_MOVED_RADIANS = 1e-5, 0.2
"""The same limits where the effective learning rate has moved far as well."""
MOVED_DECADES = 2.0
"""Decades of the effective learning rate since the start, beyond what the schedule did."""
SCHEDULED_SHARE = 0.01
"""A share of the largest learning rate so far: below it the schedule wants small steps."""


def effective_lr(history: History) -> Iterator[Finding]:
    """Scale-invariant weights that a step hardly turns, or turns right round."""
    explained = {finding.where for finding in history.findings if finding.code in ("variance-collapse", "norm-growth")}
    slow, fast = [], []
    for index, layer, angles in history.lasting("weight", "rotation"):
        if layer.invariant is None or layer.normalizer in explained or layer.name in explained:
            continue
        if max(angles) >= STILL_MOVED_RADIANS and min(angles) <= SPINNING_MOVED_RADIANS:
            continue  # wherever its effective learning rate has gone
        moved = _unscheduled_change(history, index)
        if max(angles) < (STILL_RADIANS if moved > -MOVED_DECADES else STILL_MOVED_RADIANS):
            slow.append((layer, max(angles), moved))
        elif min(angles) > (SPINNING_RADIANS if moved < MOVED_DECADES else SPINNING_MOVED_RADIANS):
            fast.append((layer, min(angles), moved))
    if slow and _should_move(history) and not history.has_raised("weights-still"):
        yield from _describe_turning(history, slow, fast=False)
    if fast:
        yield from _describe_turning(history, fast, fast=True)


def _describe_turning(
    history: History, layers: Sequence[tuple[LayerRecord, float, float]], *, fast: bool
) -> Iterator[Finding]:
    """Say it of the layer that is furthest off, with the number of the others; once in a run for each direction."""
    if any(f.code == "effective-lr" and f.numbers.get("exploding") == int(fast) for f in history.findings):
        return
    layer, angle, moved = max(layers, key=lambda item: item[1] if fast else -item[1])
    far = abs(moved) >= MOVED_DECADES
    yield (EFFECTIVE_LR_HIGH if fast else EFFECTIVE_LR_LOW).at(
        history.step,
        layer.name,
        {
            "rate": f" Its effective learning rate is {power(moved)} times that at the start." if far else "",
            "also": others_likewise(len(layers), "other layer"),
            "normalizer": layer.normalizer,
        },
        rotation=angle,
        log10_moved=moved,
        exploding=int(fast),
        count=len(layers),
    )


def _unscheduled_change(history: History, index: int) -> float:
    """Return how far, in decades, an effective learning rate has moved beyond the schedule; 0 where not known."""
    course = history.course("weight", "log10_unscheduled_lr", index)
    then, now = course.start, course.now
    return 0.0 if then is None or now is None or not math.isfinite(now - then) else now - then


def _should_move(history: History) -> bool:
    """Whether large steps are wanted: the schedule has not ended, the loss is not fitted."""
    rates = history.total("lr").lasting()
    if not rates or min(rates) <= SCHEDULED_SHARE * history.peak_lr:
        return False
    loss = history.total("loss")
    return loss.now is None or not loss.first or loss.now > FITTED_SHARE * max(loss.first)
