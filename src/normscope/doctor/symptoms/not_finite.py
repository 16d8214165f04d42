"""NaN and infinite values: in weights, in what a forward returns, in the loss, in gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import torch

from ...calls.call import broken_tensors
from ...core.finding import Finding, Severity, figure, figures
from ...core.untouched import plain_parts
from ...listening.calls import WEIGHTS as WEIGHT_FUNCTIONS
from ...listening.not_finite import GUARDABLE
from ...report.words import pluralise
from ..facts.examined import Examined
from ..monitor.history import History
from ..monitor.layer_record import LayerKind
from ..monitor.locating import Broken
from ..monitor.quantities.losses import JUMP_RATIO
from ..monitor.record import Record
from ..monitor.series import SPIKE_WINDOW_RECORDS
from .check_readings import LOSS, find_overflow, loss_facts_of
from .loss_function import WRONG_SIGNS
from .run_readings import describe_large_inputs, find_rate_rise
from .symptom import FindingWords, Symptom, finding

FINDING_WORDS = {
    "non-finite-weights": FindingWords(
        "{where} is broken by NaN or infinite values", "{count} tensors hold NaN or infinite values"
    ),
    "non-finite-activations": FindingWords(
        "{where} returns NaN or infinite values", "{count} modules return NaN or infinite values"
    ),
    "gradient-not-finite": FindingWords("the gradient of {where} is NaN or infinite"),
    "loss-not-finite": FindingWords("the loss is no number any more"),
}
RESTORE = (
    "Load the last checkpoint with finite weights and look for the step that broke them: clip gradients "
    "(torch.nn.utils.clip_grad_norm_), lower the learning rate, skip steps whose loss is not finite."
)


def check_non_finite_weights(examined: Examined) -> Iterator[Finding]:
    """`non-finite-weights` (error): a parameter or buffer holds NaN or infinite values, or a negative variance"""
    broken = broken_tensors(examined.model)
    if not broken:
        return
    first, what = next(iter(broken.items()))
    tensor = examined.model.state_dict(keep_vars=True).get(first)
    size, parts = (0, []) if tensor is None else (tensor.numel(), plain_parts(tensor.detach()))
    parts = [part.float() if part.itemsize == 1 else part for part in parts]
    bad = sum(int((~torch.isfinite(part)).sum()) for part in parts)
    nans = sum(int(torch.isnan(part).sum()) for part in parts)
    shown = f" Of its {size:,} values {nans:,} are NaN and {bad - nans:,} infinite." if bad else ""
    others = f" {pluralise(len(broken) - 1, 'other tensor')} of the model are broken too." if len(broken) > 1 else ""
    yield finding(
        "non-finite-weights",
        first,
        f"`{first}` {what}.{shown}{others}",
        "One such value makes everything computed from it NaN, so the model's output carries nothing.",
        RESTORE,
        figures(values=bad, nan=nans, size=size, count=len(broken)),
        severity=Severity.ERROR,
    )


GUARD_FUNCTION = (
    "Guard `{function}` there: add a small eps of 1e-8 inside of a root, logarithm or quotient, or clamp what enters "
    "it (softplus keeps it above zero)."
)
TOO_LARGE = (
    "Standardise the inputs, begin again from weights of a usual size (a fresh start or an earlier checkpoint), and "
    "lower the learning rate; in float16 run this part in float32 or bfloat16."
)
LOOK_INSIDE = (
    "Look inside this module: clamp, or add a small eps of 1e-8, before a logarithm, a root or a division; check the "
    "mask for rows that hide every position; run it in float32 if its values leave the range of float16 (65,504)."
)


def check_non_finite_activations(examined: Examined) -> Iterator[Finding]:
    """`non-finite-activations` (error): the function, and its module, that makes the first NaN or infinite values"""
    origin = examined.data.not_finite
    if origin is None:
        return
    where = origin.where.partition(".parametrizations")[0]  # what computes a weight belongs to the layer
    prefix, broken = f"{where}." if where else "", broken_tensors(examined.model)
    if any(name.startswith(prefix) and "." not in name.removeprefix(prefix) for name in broken):
        return  # the weights of this very module
    if broken and not origin.function:
        return  # no function made them: they stood in the weights
    spoiled = next((row.path for row in examined.signal.inputs if not row.finite), None) if examined.signal else None
    if spoiled is not None:
        yield finding(
            "non-finite-activations",
            spoiled,
            f"The {spoiled} itself holds NaN or infinite values; {f'`{where}`' if where else 'the model'} is the "
            "first module that returns some.",
            "What is computed from such a sample is lost: the loss, its gradient and, after a step, all weights.",
            "Look at the data: find these samples with torch.isfinite, and drop or fill them; look for missing "
            "values in a table, a division by a deviation of zero, or a logarithm of zero.",
            severity=Severity.ERROR,
        )
        return
    grown = origin.function in WEIGHT_FUNCTIONS
    yield finding(
        "non-finite-activations",
        where,
        origin.describe(),
        "A sum of products left the range of the number format: weights, or the values that they multiply, are far "
        "too large, and everything computed from it is lost."
        if grown
        else "A value overflowed or was divided by zero here, and everything computed from it is lost.",
        TOO_LARGE if grown else GUARD_FUNCTION.format(function=origin.function) if origin.is_guardable else LOOK_INSIDE,
        severity=Severity.ERROR,
    )


LARGEST_EXPONENT = 88.0
"""Beyond it the exponential overflows in float32."""
LOSS_TOO_LARGE = (
    "The loss overflows because the outputs are so large, and not by a logarithm or a division of its own: standardise "
    "the inputs, begin again from weights of a usual size (a fresh start or an earlier checkpoint), and lower the "
    "learning rate that made them so."
)
EXPONENTIAL_OVERFLOWS = (
    "The exponential of such outputs overflows: standardise the inputs, and use logsumexp or log_softmax. "
)
NO_LOWER_LIMIT = (
    "A loss that has fallen to minus infinity has no lower limit: look for a part of it that has the wrong sign, such "
    "as a divergence, an entropy or a likelihood. "
)
LOOK_AT_LOSS = (
    "If the outputs are finite, look at the loss: the logarithm of a zero, targets outside the classes, a rate or a "
    "variance below zero (use softplus or exp), a division by an empty mask; clamp, or add a small eps, before a "
    "logarithm, a root or a division. Losses that take logits (cross_entropy, bce_with_logits) avoid the logarithm."
)
LOSS_NOT_FINITE = Symptom(
    code="loss-not-finite",
    severity=Severity.ERROR,
    seen="{what}; it began {since}. {cause}",
    why="A step with a gradient that is no number makes every weight NaN; nothing is learned from here on.",
    advice="{remedy}",
)


def check_loss_not_finite(examined: Examined) -> Iterator[Finding]:
    """`loss-not-finite` (error): the loss is NaN or infinite, and the outputs are numbers"""
    facts = loss_facts_of(examined)
    values = [] if examined.signal is None else [examined.signal.objective.loss_value, facts.value if facts else None]
    value = next((value for value in values if value is not None and not math.isfinite(value)), None)
    layers = () if examined.signal is None else examined.signal.layers
    if value is None or (examined.data.not_finite is not None and layers and not layers[-1].finite):
        return  # the outputs are no numbers either, which another finding tells
    name = f" ({facts.name})" if facts is not None else ""
    limits = f"; the outputs run from {figure(facts.output_least)} to {figure(facts.output_greatest)}" if facts else ""
    largest = (layers[-1].largest or 0.0) if layers else 0.0
    if largest > LARGEST_EXPONENT and not limits:
        limits = f"; the last layer hands on values up to {figure(largest)}"
    yield finding(
        "loss-not-finite",
        LOSS,
        f"The loss{name} is {value}{limits}.",
        LOSS_NOT_FINITE.why,
        LOSS_TOO_LARGE
        if value != -math.inf and find_overflow(examined) is not None
        else (NO_LOWER_LIMIT if value == -math.inf else EXPONENTIAL_OVERFLOWS if largest > LARGEST_EXPONENT else "")
        + LOOK_AT_LOSS,
        severity=Severity.ERROR,
    )


CLEAN_DATA = (
    "Look at the data of this step: replace or drop samples with NaN or infinite values (torch.isfinite(x).all()), and "
    "look for a division by a deviation of zero, a logarithm of zero, or missing values in a table. Load the last "
    "checkpoint with finite weights."
)
LOOK_AT_LOSS_OF_STEP = (
    "Look at the targets of this step for NaN or infinite values (torch.isfinite), and in the loss function for the "
    "logarithm or root of zero and a quotient by zero: add a small eps inside, or clamp. Load the last checkpoint with "
    "finite weights."
)
GUARD_FUNCTION_AT_STEP = (
    "Look at the batch of this step, and guard `{function}` there: add a small eps inside of a root, logarithm or "
    "quotient, or clamp what enters it. Load the last checkpoint with finite weights."
)
LOOK_AT_MASK = (
    "Look at the mask of this batch: a row that is masked altogether has no softmax. Let the mask leave one entry of "
    "each row, or drop samples that are empty. Load the last checkpoint with finite weights."
)
LOOK_AT_GRADIENTS = (
    " If the loss had not grown before, its gradient broke first: look for the root, norm or logarithm of an exact "
    "zero and for a quotient by zero, and add a small eps inside of it."
)
FIRST_UNKNOWN = (
    "Which layer was the first is not known. To have the forward looked at that breaks, give run.observe the loss of "
    "every step, as a number (loss.item()) where it lies on a GPU."
)
LOWER_RATE = (
    "Begin again with a learning rate of a tenth{rate} or less, warm it up, or clip gradients "
    "(torch.nn.utils.clip_grad_norm_)."
)
LOOK_AT_BATCH = (
    "Look at the batch of this step: clean the data of outliers, of targets such as 999999 that stand for unknown "
    "values and of inputs on another scale; scale the targets. Clip gradients (torch.nn.utils.clip_grad_norm_) or use "
    "a robust loss (torch.nn.HuberLoss). Load the last checkpoint with finite weights."
)
CHANGE_SIGN = (
    "Look for a part of the loss that has the wrong sign, such as a divergence, an entropy or a likelihood, or for the "
    "density of a distribution whose spread may go to zero: give the spread a lower limit. Load the last checkpoint "
    "with finite weights."
)
HALF_PRECISION = (
    " Weights are in float16, which ends at 65,504: keep them in float32 and use torch.autocast, with a "
    "torch.amp.GradScaler that lowers the loss scale."
)
SCALE_INPUTS = "Scale the inputs: subtract the mean of each column and divide by its deviation. "
SMALLER_WEIGHTS = "Initialise with smaller weights (torch.nn.init.kaiming_normal_), and look at factors in the forward."
RATE_HAS_RISEN = " The learning rate rose from {before} to {rate} by step {since:,}."
KEEP_RATE = (
    "Keep the learning rate at {before} or below: look at the schedule, and at code that sets the rate, at step "
    "{since:,}. Load the last checkpoint from before."
)
RISEN_LOSS = 1e4
"""By what factor a finite loss has risen before it broke where its steps were too large, and not its data."""
EVIDENCE: tuple[tuple[LayerKind, str, str], ...] = (
    ("normalizer", "log10_variance_max", "the input of `{name}` is the first of a normalizer that is not."),
    ("block", "log10_activation", "`{name}` is the first block whose input or output is not."),
    ("weight", "log10_gradient", "`{name}` is the last layer whose gradient is not."),
)
"""What may be broken though the weights are not; it says where to look, not where it began."""


def watch_loss_not_finite(history: History) -> Iterator[Finding]:
    """`loss-not-finite` (error): the loss is NaN or infinite (without a loss: weights are); at the next record, and
    while it is so no other alarm is raised. The layer is named whose output is the first that is not finite when the
    forward is run again on the same batch (for losses that are observed on a CPU or as numbers), or whose weights
    alone are broken; where that is not known, none is. A loss that jumped a thousandfold within one step is told as
    a batch with outliers, one whose sign is wrong with that, and one that fell below -10,000 times its start (or 1)
    as one without a lower limit; outputs that are finite and whose squares are not are laid to steps that were too
    large and to inputs that are not scaled, which are named too where no layer is; a rate that had just jumped is named
    """
    record = history.records[-1]
    if not is_broken(record):
        return
    weights = _broken_weights(record)
    before = history.records[-2] if len(history.records) > 1 else None
    at = record.metrics.get("loss_broken_at")
    since = "in the first record" if before is None else f"after step {before.step:,}, the last record before it"
    since = since if at is None else f"at step {at:,.0f}"
    first = _name_broken(math.inf if record.metrics.get("loss_broken_infinite") else math.nan)
    broken = _find_cause(history, record, weights, before)
    where, cause, remedy = broken.where, broken.words, _choose_remedy(broken)
    risen, outlier = _find_rise(history), describe_outlier(history, record)
    large = describe_large_inputs(history)
    wrong, fall = _find_wrong_sign(history), _describe_fall(history, record)
    if (wrong or fall) and broken.part != "batch":
        parts = (cause if where else "", fall, wrong.seen if wrong else "")
        cause, remedy = " ".join(filter(None, parts)), wrong.advice if wrong else CHANGE_SIGN
    elif outlier and broken.part != "batch":
        cause, remedy = outlier, LOOK_AT_BATCH
    elif (risen is not None and broken.part != "batch") or broken.part == "outputs":
        if risen is not None:
            rise = f"Before that the loss rose from {figure(risen[0])} to {figure(risen[1])}: steps are too large."
            cause = f"{cause} {rise}" if where else rise
        cause += large
        remedy = LOWER_RATE.format(rate=f" ({figure(record.lr[0])} now)" if record.lr else "")
        remedy = f"{SCALE_INPUTS * bool(large)}{SMALLER_WEIGHTS if broken.step == 0 else remedy}"
    elif large and broken.part == "network" and not broken.where:
        cause, remedy = cause + large, SCALE_INPUTS + remedy
    rate_rise = find_rate_rise(history) if broken.part in ("network", "outputs") else None
    if rate_rise is not None and rate_rise.explains(record.step if at is None else at):
        rates = {"before": figure(rate_rise.before), "rate": figure(rate_rise.rate), "since": rate_rise.since}
        cause, remedy = cause + RATE_HAS_RISEN.format(**rates), KEEP_RATE.format(**rates)
    remedy += HALF_PRECISION if history.parameter_state.half_precision else ""
    what = "Weights are not finite"
    if record.loss is not None and not math.isfinite(record.loss):
        what = f"The loss is {_name_broken(record.loss)}"
    if at is not None and not what.endswith(first):
        since += f", where the loss was {first}"
    yield LOSS_NOT_FINITE.at(
        where,
        {"what": what, "since": since, "cause": cause, "remedy": remedy},
        broken_weights=len(weights),
        weights=len(history.of("weight")),
        last_finite_step=None if before is None else before.step,
        last_loss=None if before is None else before.loss,
        at=at,
    )


def _name_broken(loss: float) -> str:
    return "NaN" if math.isnan(loss) else "infinite"


OUTLIER_RATIO = 1000.0
"""A loss over that of the step before, which was usual: steps that are too large take several for that."""
USUAL_RATIO = 3.0
"""A loss over the median of the records before, up to which it is usual."""


def describe_outlier(history: History, record: Record) -> str:
    """Say that one batch was unlike the others: the loss jumped within one step, at the usual learning rate."""
    jump, before, at = (record.metrics.get(f"loss_jump{name}") for name in ("", "_from", "_at"))
    earlier = [r for r in history.records if r.step < record.step][-SPIKE_WINDOW_RECORDS:]
    usual = [value for r in earlier if (value := r.metrics.get("loss_mean")) is not None and math.isfinite(value)]
    rates = [max(r.lr) for r in (*earlier[-1:], record) if r.lr]
    if jump is None or before is None or at is None or not usual or jump < OUTLIER_RATIO * before:
        return ""
    if (
        jump < max(history.first_loss or 0.0, JUMP_RATIO * median(usual))
        or before > USUAL_RATIO * median(usual)
        or (len(rates) > 1 and rates[-1] > 2.0 * rates[0])
    ):
        return ""
    return (
        f"At step {at:,.0f} the loss jumped from {figure(before)} to {figure(jump)} within one step: its batch has "
        "outliers, targets or inputs far from all others, and the step that it made was far too large."
    )


def _find_rise(history: History) -> tuple[float, float] | None:
    """Return the first loss and the largest finite one, if that is larger by decades."""
    largest = [value for r in history.records if (value := r.metrics.get("loss_largest", r.loss)) is not None]
    losses = (history.first_loss, history.records[0].loss)
    starts = [value for value in losses if value is not None and value > 0.0]
    first, peak = min(starts, default=math.nan), max((value for value in largest if math.isfinite(value)), default=0.0)
    return (first, peak) if peak > RISEN_LOSS * first else None


def _find_wrong_sign(history: History) -> Symptom | None:
    """Return the alarm about the sign of the loss, or of a part of it; None where none is known to be wrong."""
    words = () if history.parameter_state.others else history.parameter_state.oddities  # of two players one maximises
    return next((WRONG_SIGNS[word] for word in words if word in WRONG_SIGNS), None)


def _describe_fall(history: History, record: Record) -> str:
    """Say that the loss fell by decades below zero before it broke; empty where it did not."""
    lowest = [value for r in history.records if (value := r.metrics.get("loss_least", r.loss)) is not None]
    least = min((value for value in (*lowest, record.loss) if value is not None), default=math.nan)
    first = history.first_loss
    if first is None or not least < -RISEN_LOSS * max(abs(first), 1.0):  # a first loss may be zero by chance
        return ""
    fall = "infinity" if least == -math.inf else figure(least)
    return f"Before that the loss fell from {figure(first)} to {fall}: it has no lower limit."


def _choose_remedy(broken: Broken) -> str:
    """Return what to do about what is broken: the data, the loss, or steps that were too large."""
    if broken.part == "batch":
        return CLEAN_DATA
    if broken.part == "loss":
        return LOOK_AT_LOSS_OF_STEP
    if GUARDABLE.search(broken.function):
        return GUARD_FUNCTION_AT_STEP.format(function=broken.function)
    if "softmax" in broken.function or "attention" in broken.function:
        return LOOK_AT_MASK
    return RESTORE + LOOK_AT_GRADIENTS


def is_broken(record: Record) -> bool:
    """Whether the loss of a record is not finite, or a weight."""
    return (record.loss is not None and not math.isfinite(record.loss)) or bool(_broken_weights(record))


def _broken_weights(record: Record) -> list[int]:
    """Return the weights that are not finite."""
    return _broken(record, "weight", "log10_size") or _broken(record, "weight", "log10_norm")


def _find_cause(history: History, record: Record, weights: list[int], before: Record | None) -> Broken:
    """Return what is known of where numbers broke first."""
    broken, layers = history.broken, history.of("weight")
    if broken is not None and broken.step <= record.step and (before is None or broken.step > before.step):
        return broken
    unknown = Broken(step=record.step, where="", words="")
    if len(weights) == 1 and len(layers) > 1:
        name = layers[weights[0]].name
        words = f"The weights of `{name}` are not finite; those of all other layers are."
        return replace(unknown, where=name, words=words)
    if weights:
        words = f"{len(weights):,} of {pluralise(len(layers), 'weight layer')} are broken already. {FIRST_UNKNOWN}"
        return replace(unknown, words=words)
    for kind, quantity, words in EVIDENCE:
        places = _broken(record, kind, quantity)
        if places:
            name = history.of(kind)[places[-1] if quantity == "log10_gradient" else places[0]].name
            return replace(unknown, words=f"All weights are finite; {words.format(name=name)} {FIRST_UNKNOWN}")
    words = "All weights and all that was measured of the forward are finite: the loss itself, or the data, is not."
    return replace(unknown, words=words, part="loss")


def _broken(record: Record, kind: LayerKind, quantity: str) -> list[int]:
    """Return the layers, in order, with a figure that is NaN or plus infinity; zero is minus infinity and is fine."""
    return [i for i, value in enumerate(record.of(kind, quantity)) if value is not None and not value < math.inf]


def check_gradient_not_finite(examined: Examined) -> Iterator[Finding]:
    """`gradient-not-finite` (error): values are finite and gradients are NaN or infinite (the root of a zero)"""
    signal = examined.signal
    if signal is None or examined.data.not_finite is not None:
        return
    broken = [row for row in signal.parameters if row.gradient == math.inf]
    values = (signal.objective.loss_value, None if signal.loss is None else signal.loss.value)
    if not broken or any(value is not None and not math.isfinite(value) for value in values):
        return
    order = {row.path: number for number, row in enumerate(signal.rows)}
    last = max(broken, key=lambda row: order.get(row.module, -1))
    yield finding(
        "gradient-not-finite",
        last.module or last.name,
        f"All values are finite, and the gradient of {pluralise(len(broken), 'parameter')} is NaN or infinite: "
        f"`{last.name}` is the one nearest to the output.",
        "One step with such a gradient makes the weights NaN.",
        "Look behind this layer for a root or a norm of zero, 0/0 hidden by torch.where, or a power below 1: "
        "add a small eps inside the root (torch.sqrt(x + 1e-12)), or clamp before it.",
        figures(parameters=len(broken)),
        severity=Severity.ERROR,
    )
