"""Findings about the loss, which outputs and targets may not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...core.finding import Finding, Severity, figure, figures, percent
from ..checking.autograd_flow import RANGES
from ..checking.examined import Examined
from ..checking.loss_facts import BINARY, CLASSES, CONTRACTS, NO_BETTER, LossFacts, is_fresh, looks_fresh
from ..checking.signal import INPUT, NO_GRADIENT, RANDOM, find_discriminator_layers
from .depth import WEIGHTS
from .scale import describe_overflow, find_overflow

LOSS = "the loss"
"""The place of what no module is to blame for."""
APPLIED_BY_LOSS = {"cross_entropy": "softmax", "bce_with_logits": "sigmoid"}
"""The activation that a loss applies itself."""
BETTER_ACCURACY_RATIO = 2.0
"""A model's accuracy over the share of the largest class, from which it has learned something whatever its loss: where
a batch has hardly more samples than classes, the best constant output fits their frequencies by chance."""
FAR_WORSE_LOSS_RATIO = 3.0
"""The loss over that of the best constant output, from which a model is not merely still in training."""
NEARLY_CONSTANT_SHARE = 0.05
"""The deviation of outputs over the samples, as a share of their size."""
STEEP_LAYER_RATIO = 5.0
"""The size of what a layer hands on over that of what it reads, beyond which it stands out: fresh layers have 1."""
FIRST_LOSS_RATIO = 10.0
"""The first loss over that of a blind guess, from which it is too large: a fresh model starts near 1."""
TARGET_SCALE_RATIO = 30.0
"""The size of targets over that of outputs, beyond which scales do not fit: training soon makes up for less."""
SMALL_TARGET_SIZE = 1e-3
"""The root mean square of targets, below which they are too small: a fresh network's outputs are a hundred times as
large."""
LARGEST_SMALL_TARGET_SIZE = 0.03
"""The root mean square of targets from which they are never too small, however large outputs are: they are learned
soon."""
MAX_SMOOTHING_SHARE = 0.5
"""The part of a label that smoothing may spread over the classes: beyond it less of the label is left than spread."""
NOT_FITTED = 1e-3
"""A loss above this is no perfect fit."""
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
LARGE_SUM_SAMPLES = 256
"""Samples from which a sum instead of a mean makes steps far too long."""
SMALL_SCORE_FACTOR = 0.2
"""A factor on the scores below which they hardly tell the classes apart."""
SMALL_SCORE_LIMIT = 3.0
"""Of two classes whose scores lie between this and minus this, each keeps a probability of a twentieth or more."""
MAX_PADDING_SHARE = 0.5
"""The share of padding among the targets that count, beyond which it outweighs them."""
PUSHED_AWAY_SHARE = 0.95
"""The share of outputs that a step moves away from their targets, beyond which the sign of the loss is wrong."""
NEGATIVE_PART_SHARE = 1e-4
"""A negative part of the loss over the loss, beyond which it is not rounding."""
MIN_LABELS = 48
"""Samples from which a share of 95 % of one class is not chance."""
ONE_CLASS_SHARE = 0.95
"""The share of samples of one class at which always guessing it is hard to beat."""


def loss_not_finite(examined: Examined) -> Iterator[Finding]:
    """A loss that is NaN or infinite."""
    facts = _facts(examined)
    values = [] if examined.signal is None else [examined.signal.loss_value, facts.value if facts else None]
    value = next((value for value in values if value is not None and not math.isfinite(value)), None)
    layers = () if examined.signal is None else examined.signal.layers
    if value is None or (examined.data.not_finite is not None and layers and not layers[-1].finite):
        return  # the outputs are no numbers either, which another finding tells
    name = f" ({facts.name})" if facts is not None else ""
    limits = f"; the outputs run from {figure(facts.output_least)} to {figure(facts.output_greatest)}" if facts else ""
    largest = (layers[-1].largest or 0.0) if layers else 0.0
    if largest > LARGEST_EXPONENT and not limits:
        limits = f"; the last layer hands on values up to {figure(largest)}"
    yield Finding(
        code="loss-not-finite",
        severity=Severity.ERROR,
        where=LOSS,
        seen=f"The loss{name} is {value}{limits}.",
        why="Its gradient is no number either: one step makes every weight NaN.",
        advice=LOSS_TOO_LARGE
        if value != -math.inf and find_overflow(examined) is not None
        else (NO_LOWER_LIMIT if value == -math.inf else EXPONENTIAL_OVERFLOWS if largest > LARGEST_EXPONENT else "")
        + LOOK_AT_LOSS,
        numbers={},
    )


def activation_before_loss(examined: Examined) -> Iterator[Finding]:
    """A last activation that the loss applies itself, or that keeps the outputs from where the loss needs them."""
    findings = [finding for facts in _every_loss(examined) for finding in _activation_before(examined, facts)]
    yield from findings or _wrong_kind(examined)


def _wrong_kind(examined: Examined) -> Iterator[Finding]:
    """Outputs of another kind than the loss takes, by what torch says of it or by its values at perfect outputs."""
    signal = examined.signal
    broken = None if signal is None else signal.broken_contract
    if signal is None:
        return
    if broken is not None and not broken.last:
        yield Finding(
            code="targets-out-of-range",
            severity=Severity.WARNING,
            where=LOSS,
            seen=f"The targets run from {figure(broken.least)} to {figure(broken.greatest)}, and {broken.name} takes "
            f"{' and '.join(f'{value:g}' for value in CONTRACTS[broken.name][1])} alone.",
            why="For any other target it computes something else, such as nothing at all for a target of 0.",
            advice="Change the targets to those values, such as 2 * y - 1 for labels of 0 and 1, or use another loss.",
            numbers=figures(least=broken.least, greatest=broken.greatest),
        )
        return
    last = broken.last if broken is not None else "" if signal.loss is None else signal.loss.last
    made_by = broken.made_by if broken is not None else next((row.path for row in reversed(signal.layers)), "")
    activation = f"the {last.lower()}" if last in RANGES else "what bounds the outputs"
    if broken is not None or signal.wanted == "scores":
        name = "the loss" if broken is None else broken.name
        yield Finding(
            code="activation-before-loss",
            severity=Severity.WARNING,
            where=made_by or LOSS,
            seen=(
                f"The outputs come out of {activation} and run from {figure(broken.least)} to "
                f"{figure(broken.greatest)}, and {name} takes scores without limits."
                if broken is not None
                else "The outputs lie between 0 and 1, and even right and certain ones leave most of the loss: "
                "it is small for scores far from zero."
            ),
            why="What the loss asks for lies outside of what the activation can reach, or at its flat ends: the loss "
            "cannot fall far, and gradients are small.",
            advice=f"Remove {activation}, the last activation: this loss takes the scores of the last layer.",
            numbers={},
        )
    elif signal.wanted == "probabilities":
        yield Finding(
            code="loss-does-not-fit",
            severity=Severity.WARNING,
            where=LOSS,
            seen="The loss is next to nothing where the outputs are the labels, zeros and ones, and smaller still "
            "beyond them; the outputs have no limits.",
            why="Such a loss, as those of overlap (Dice, IoU), measures what it is meant to between 0 and 1 alone: "
            "with other outputs it has no lower limit, and falls for answers that are wrong.",
            advice="Apply a sigmoid to the outputs before the loss (a softmax over the classes, if they exclude each "
            "other).",
            numbers={},
        )


def _activation_before(examined: Examined, facts: LossFacts) -> Iterator[Finding]:
    """What stands before one of the losses."""
    applied = APPLIED_BY_LOSS.get(facts.name)
    if facts.name in CLASSES and len(facts.output_shape) > 1 and facts.output_shape[1] == 1:
        yield _mismatch(
            facts,
            "The output has one class: its softmax is 1 whatever the input, and the loss is 0.",
            "No gradient comes back, and nothing is learned.",
            "Give the last layer one output per class, or use one output with loss bce_with_logits.",
            code="loss-does-not-fit",
        )
    elif facts.last == "Softmax" and facts.output_shape[-1] == 1:
        yield _mismatch(
            facts,
            "The model ends in a softmax over one output, which is 1 whatever the input.",
            "The output does not depend on the input, and no gradient comes back.",
            "Remove the softmax: for one output use the loss bce_with_logits on the raw score, or a sigmoid with bce.",
        )
    elif facts.name == "cross_entropy" and (facts.probabilities or facts.last in RANGES):
        what = "a softmax" if facts.probabilities else f"a {facts.last.lower()}"
        twice = facts.probabilities
        yield _mismatch(
            facts,
            f"The outputs come out of {what} and run from {figure(facts.output_least)} to "
            f"{figure(facts.output_greatest)}, "
            f"and cross_entropy applies a softmax{' once more' if twice else ' to them'}.",
            "Cross entropy expects scores without limits: between these limits no class can become certain, the "
            "gradients are small, and the loss cannot fall far.",
            f"Remove {what} at the end of the model: cross_entropy takes the scores (logits) of the last layer.",
        )
    elif facts.name == "cross_entropy" and facts.log_probabilities:
        yield _mismatch(
            facts,
            "The outputs are logarithms of probabilities, and cross_entropy applies a log_softmax once more.",
            "A second log_softmax changes nothing: this does no harm.",
            "Use the loss nll, or remove the log_softmax at the end of the model.",
            severity=Severity.INFO,
        )
    elif facts.name == "bce_with_logits" and facts.last in RANGES:
        yield _mismatch(
            facts,
            f"The outputs come out of a {facts.last.lower()}, and bce_with_logits applies a sigmoid to them"
            f"{' once more' if applied == facts.last.lower() else ''}.",
            "The probability of a class cannot leave a small range, gradients are small, and the loss cannot fall far.",
            f"Remove the {facts.last.lower()} at the end of the model, or use the loss bce on probabilities.",
        )
    elif facts.name == "nll" and not facts.log_probabilities and facts.log_axis is not None:
        yield _mismatch(
            facts,
            f"The exponentials of the outputs add up to 1 over axis {facts.log_axis}, and nll_loss looks for the "
            "classes in axis 1.",
            "What all places of that axis share is taken away, and the classes of one place are not compared.",
            "Apply log_softmax with dim=1 at the end of the model.",
            code="loss-does-not-fit",
        )
    elif facts.name == "nll" and not facts.log_probabilities:
        yield _mismatch(
            facts,
            "nll_loss expects logarithms of probabilities, and the exponentials of the outputs do not add up to 1.",
            "The loss can fall without limit by making all outputs large: it measures nothing.",
            "End the model in log_softmax, or use cross_entropy, which applies it.",
            code="loss-does-not-fit",
        )
    elif facts.name == "kl_div" and not facts.log_probabilities:
        yield _mismatch(
            facts,
            "kl_div expects logarithms of probabilities as its input, and the exponentials of the outputs do not add "
            "up to 1.",
            "It then measures no divergence: it can be negative, and its smallest value is not where the two agree.",
            "Apply log_softmax to the outputs before the loss instead of softmax, or use cross_entropy.",
            code="loss-does-not-fit",
        )
    several = facts.labels_per_sample is not None and abs(facts.labels_per_sample - 1.0) > 0.05
    if several and facts.name == "cross_entropy":
        yield _mismatch(
            facts,
            f"The targets add up to {figure(facts.labels_per_sample or 0.0)} over axis 1, which cross_entropy takes "
            "for the classes.",
            "It compares one distribution over the classes with another: targets that do not add up to 1 are none.",
            "If a sample may have several labels, use the loss bce_with_logits. If the classes are in another axis, "
            "move that axis to place 1 (transpose), or pass the numbers of the classes.",
            code="loss-does-not-fit",
            where=LOSS,
        )
    elif several and facts.name == "bce" and facts.probabilities and facts.output_shape[1] > 2:
        yield _mismatch(
            facts,
            "The outputs come out of a softmax, and the targets have several labels per sample.",
            "A softmax shares one certainty among all labels: two of them cannot both be certain.",
            "Remove the softmax and use the loss bce_with_logits, or replace it by a sigmoid.",
        )
    if facts.sum_of >= LARGE_SUM_SAMPLES and examined.signal is not None and facts.value == examined.signal.loss_value:
        yield _mismatch(
            facts,
            f"The loss is the sum over {facts.sum_of:,} samples.",
            "Gradients and steps are as many times as long as those of a mean, and grow with the batch.",
            'Use the loss with reduction="mean", or divide it by the number of samples.',
            code="loss-does-not-fit",
            where=LOSS,
        )
    factor = _last_factor(examined, facts)
    if facts.name in (*CLASSES, *BINARY[1:]) and factor is not None and factor < SMALL_SCORE_FACTOR:
        yield _mismatch(
            facts,
            f"The scores of the last layer are multiplied by {figure(factor)} before the loss.",
            "No class can become certain before the weights have grown as many times, and gradients are as much "
            "smaller.",
            "Scale the outputs up: a temperature of training divides by 1 or less (0.1), and one for sampling has no "
            "place in training.",
        )
    elif facts.name in ("cross_entropy", BINARY[1]) and facts.last not in RANGES and _is_held_narrow(facts):
        low, high = facts.limits or (0.0, 0.0)
        yield _mismatch(
            facts,
            f"A clamp holds the outputs between {low:g} and {high:g}.",
            "Between these limits no class can become certain, and what lies beyond them gets no gradient.",
            "Remove the clamp at the end of the model: the loss takes scores without limits (logits).",
        )
    elif facts.name in (*CLASSES, *BINARY[1:]) and facts.cosines is not None and _is_narrow(facts, facts.cosines):
        yield _mismatch(
            facts,
            f"The outputs are cosines times {facts.cosines:g}.",
            "Between these limits no class can become certain, whatever the weights are.",
            "Scale the outputs: multiply the cosines by 10 to 30 (divide by a temperature of 0.03 to 0.1).",
        )
    if facts.negated and facts.target_least < facts.target_greatest:  # a generator's targets are all the same
        yield _mismatch(
            facts,
            f"What is minimised falls where {facts.name} rises.",
            "The steps make the error larger: outputs move away from their targets without limit.",
            "Change the sign of the loss: minimise it as it is. If it is meant to grow (an adversary, a penalty), "
            "there is nothing to do.",
            code="loss-does-not-fit",
            where=LOSS,
        )
    yield from _miscounts(facts)


def _miscounts(facts: LossFacts) -> Iterator[Finding]:
    """What the loss counts otherwise than it should: classes, their weights, their labels."""
    if facts.classes_last:
        yield _mismatch(
            facts,
            f"The last layer has its units on the last axis of {_shape(facts.output_shape)}, and {facts.name} takes "
            "axis 1, which is as long, for the classes.",
            "The scores of one class at all places are compared, in place of those of all classes at one place.",
            "Move the classes to axis 1 before the loss: output.transpose(1, 2), or flatten both: "
            "loss(output.flatten(0, 1), target.flatten()).",
            code="loss-does-not-fit",
        )
    if facts.opposed:
        yield _mismatch(
            facts,
            "The weights in the loss make the rare class count less than the frequent one.",
            "Always guessing the frequent class is then better still than without weights.",
            "Turn the class weights around: a class is weighed by one over its share, and pos_weight is the number of "
            "negatives over that of positives.",
            code="one-class",
            where=LOSS,
        )
    if facts.without_weight > 0.0:
        yield _mismatch(
            facts,
            f"{percent(facts.without_weight)} of the targets are of classes whose weight in the loss is zero.",
            "Nothing is learned from these samples, and nothing keeps the model from giving them any other class.",
            "Use the loss with class weights above zero, such as one over the share of the class; for targets that "
            "shall not count use ignore_index.",
            code="loss-does-not-fit",
            where=LOSS,
        )
    if facts.smoothing > MAX_SMOOTHING_SHARE:
        yield _mismatch(
            facts,
            f"The loss spreads {percent(facts.smoothing)} of each label over all classes (label_smoothing).",
            "What is left of the label is less than what is spread: the best output hardly names a class.",
            "Use the loss with a label_smoothing of 0.1 or none.",
            code="loss-does-not-fit",
            where=LOSS,
        )


def _is_narrow(facts: LossFacts, factor: float) -> bool:
    """Whether cosines times a factor stay within small limits; a temperature inside of them shows in larger values."""
    return abs(factor) < SMALL_SCORE_LIMIT and facts.output_greatest < 1.001 * max(abs(factor), 1.0)


def _is_held_narrow(facts: LossFacts) -> bool:
    """Whether outputs are held between limits that are both small."""
    return facts.limits is not None and max(map(abs, facts.limits)) < SMALL_SCORE_LIMIT


def _last_factor(examined: Examined, facts: LossFacts) -> float | None:
    """Return by how much the outputs of the last layer are multiplied before the loss; None if they are not."""
    layers = () if examined.signal is None else examined.signal.layers
    last = next((row for row in reversed(layers) if row.kind == "linear"), None)
    if last is None or not last.root_mean_square or math.prod(last.shape) != math.prod(facts.output_shape):
        return None
    return facts.output_size / last.root_mean_square if facts.last in ("Div", "Mul") else None


def equal_outputs(examined: Examined) -> Iterator[Finding]:
    """Outputs that are the same for every class."""
    facts = _facts(examined)
    if facts is None or not facts.alike or facts.output_least == facts.output_greatest:
        return
    yield Finding(
        code="equal-units",
        severity=Severity.WARNING,
        where=_last_linear(examined) or LOSS,
        seen=f"In every sample the outputs for all {facts.output_shape[1]} classes are the same.",
        why="Outputs that are copies of each other get the same gradient: no class is ever preferred.",
        advice="Give every output weights of its own, drawn at random: nn.ModuleList([head] * n) holds one layer n "
        "times; initialise n of them, or use one layer with n outputs.",
        numbers=figures(classes=facts.output_shape[1]),
    )


RIGHT_SIGN = (
    "Change the sign of that part, so that the loss is the error plus the divergence, -0.5 * (1 + logvar - mean**2 - "
    "logvar.exp())."
)


def wrong_sign(examined: Examined) -> Iterator[Finding]:
    """A loss, or a term of it, whose sign is wrong: outputs move away from targets, or a divergence is rewarded."""
    signal, facts = examined.signal, _facts(examined)
    divergence = examined.divergence if signal is None else signal.divergence
    if divergence is not None and divergence.weight < 0.0:
        overflow = describe_overflow(examined)
        broken = overflow or (signal is not None and not math.isfinite(signal.loss_value or 0.0))
        yield Finding(
            code="loss-does-not-fit",
            severity=Severity.INFO if examined.mode != "train" else Severity.ERROR if broken else Severity.WARNING,
            where=LOSS,
            seen=f"The loss counts the divergence of the drawn code from a standard normal one "
            f"{figure(divergence.weight)} times, by the mean and the spread that the model returns: the larger the "
            f"divergence, the smaller the loss.{overflow}",
            why="A divergence has no upper limit: the steps make it, and the code with it, larger without end, until "
            "values overflow.",
            advice=RIGHT_SIGN,
            numbers=figures(weight=divergence.weight),
        )
    if signal is None or signal.loss_value is None:
        return
    ascends = signal.steps is not None and (signal.steps.promised_fall or 0.0) < 0.0  # what is given is a reward
    if facts is None and signal.pushed_away > PUSHED_AWAY_SHARE and is_fresh(examined.model) and not ascends:
        yield Finding(
            code="loss-does-not-fit",
            severity=Severity.WARNING,
            where=LOSS,
            seen=f"A step against the gradient of the loss moves {percent(signal.pushed_away)} of the outputs away "
            "from their targets.",
            why="The steps make the error larger, without limit.",
            advice="Change the sign of the loss: minimise the error, not minus the error. If it is meant to grow, "
            "there is nothing to do.",
            numbers=figures(share=signal.pushed_away),
        )
    if (
        divergence is None
        and facts is not None
        and signal.draws
        and facts.rest < -NEGATIVE_PART_SHARE * abs(signal.loss_value)
        and not facts.negated
    ):
        yield Finding(
            code="loss-does-not-fit",
            severity=Severity.WARNING if examined.mode == "train" else Severity.INFO,
            where=LOSS,
            seen=f"Besides {facts.name} the loss has a part of {figure(facts.rest)}, and the model draws random "
            "numbers, as a variational autoencoder does.",
            why="A divergence is never below zero: with the wrong sign it is made larger without limit.",
            advice=f"{RIGHT_SIGN} If it is an entropy that is to grow, there is nothing to do.",
            numbers=figures(rest=facts.rest),
        )


def means_compared(examined: Examined) -> Iterator[Finding]:
    """A loss that reads the mean of the outputs over the samples alone."""
    if examined.signal is None or not examined.signal.means_alone:
        return
    yield Finding(
        code="loss-does-not-fit",
        severity=Severity.WARNING,
        where=LOSS,
        seen="The loss stays the same with quite other outputs, as long as their mean over the samples is the same.",
        why="Errors of single samples cancel before they are counted: a constant output is perfect for it.",
        advice="Use a loss that compares each output with its own target and takes the mean last, such as mse_loss: "
        "(output - target).square().mean().",
        numbers={},
    )


def idle_label(examined: Examined) -> Iterator[Finding]:
    """A loss that gives no gradient to any sample of one label, in a model that has learned nothing yet."""
    signal = examined.signal
    if signal is None or signal.idle_label is None or signal.loss is not None or not is_fresh(examined.model):
        return  # torch's own losses have a gradient for every label; outputs that are certain may round it to zero
    yield Finding(
        code="no-loss-gradient",
        severity=Severity.WARNING,
        where=LOSS,
        seen=f"No sample with the label {signal.idle_label:g} gets a gradient from the loss, all others do.",
        why="Nothing is learned from samples without a gradient.",
        advice="Change the targets to what the loss takes: a hinge loss takes -1 and 1, and a label of 0 makes it "
        "constant; or use a loss for labels of 0 and 1 (bce_with_logits).",
        numbers=figures(label=signal.idle_label),
    )


def no_loss_gradient(examined: Examined) -> Iterator[Finding]:
    """A loss from which no gradient comes back to any parameter, or exactly zero to all of them."""
    signal = examined.signal
    if signal is None or signal.gradient_of == RANDOM:
        return
    trained = [row for row in signal.parameters if row.trainable]
    if not trained or any(row.gradient for row in trained) or signal.reason not in (None, NO_GRADIENT):
        return
    cut = all(row.gradient is None for row in trained)
    ended = signal.detached_at if cut else None
    inner = 0.0 if signal.loss is None else signal.loss.value
    masked = not cut and signal.loss_value == 0.0 and inner > NOT_FITTED
    half = any(row.dtype == "float16" for row in signal.rows)  # where a small loss becomes zero
    idle = signal.loss is None and signal.loss_value == 0.0 and not half
    idle = idle and is_fresh(examined.model) and not _head_is_biased(examined)
    if not cut and not masked and not idle and (signal.loss_value is None or not signal.loss_value > NOT_FITTED):
        return  # a loss at its minimum has no gradient either
    yield Finding(
        code="no-loss-gradient",
        severity=Severity.INFO if cut and examined.mode == "eval" else Severity.ERROR,
        where=ended or LOSS,
        seen=f"No gradient of the loss reaches any parameter: autograd's graph ends behind `{ended}`."
        if ended
        else "No gradient of the loss reaches any parameter: it is not differentiable, or autograd's graph is cut."
        if cut
        else "The gradient of the loss is exactly zero for every parameter."
        + (f" The loss is 0, and {signal.loss.name} gave {figure(inner)}." if masked and signal.loss else "")
        + (" The loss is 0, though the model looks fresh." if idle else ""),
        why="No step changes anything, however long the training is.",
        advice=f"Remove what cuts it behind `{ended}`: detach(), .data, .item(), numpy(), torch.no_grad(), a tensor "
        "built anew from values; for argmax or rounding use a softmax or a straight-through estimator."
        if ended
        else "Train on a loss that is differentiable in the outputs: use cross_entropy or mse in place of a rate of "
        "errors, and avoid argmax, rounding, comparisons, .item() and detach() on its way."
        if cut
        else "Look at the factor that makes the loss zero: a mask that is empty or the wrong way around (invert the "
        "mask), or weights of zero."
        if masked
        else "Look at the loss: a margin with the wrong sign or far too small, a clamp or a ReLU that holds it at "
        "zero, outputs and targets that are the same tensor. Use a loss that is differentiable in the outputs and "
        "above zero for a model that knows nothing."
        if idle
        else "Look at what stands between the last layer and the loss: a clamp that holds every output, a softmax over "
        "one output, a ReLU that is never positive, a rounding or a sign. Remove it, let the last layer be linear, and "
        "use a loss that is differentiable in the outputs.",
        numbers=figures(parameters=len(trained)),
    )


def _head_is_biased(examined: Examined) -> bool:
    """Whether the biases of the last linear layer are larger than torch draws them, as those of a solution may be."""
    head = dict(examined.model.named_modules()).get(_last_linear(examined))
    weight, bias = (None, None) if head is None else (head._parameters.get("weight"), head._parameters.get("bias"))
    if weight is None or bias is None:
        return False
    return float(bias.detach().abs().max()) > (1.0 + 1e-6) / math.sqrt(math.prod(weight.shape[1:]))


def labels_outside(examined: Examined) -> Iterator[Finding]:
    """Labels that are none of the classes of the outputs."""
    labels = None if examined.signal is None else examined.signal.labels_outside
    if labels is None:
        return
    from_one = labels.least == 1 and labels.greatest == labels.classes
    yield Finding(
        code="targets-out-of-range",
        severity=Severity.ERROR,
        where=_last_linear(examined) or LOSS,
        seen=f"{labels.said[0].upper()}{labels.said[1:]}.",
        why="The loss cannot be taken: it raises an error, or stops the device.",
        advice="Subtract 1 from the labels: classes count from 0."
        if from_one
        else "Check the labels: number the classes from 0 without gaps, and give labels that shall not count the value "
        f"of ignore_index; or give the last layer one output per class, {labels.greatest + 1} in all.",
        numbers=figures(least=labels.least, greatest=labels.greatest, classes=labels.classes),
    )


def targets_do_not_fit(examined: Examined) -> Iterator[Finding]:
    """Targets that the outputs cannot reach: another shape, outside the last activation's range, another scale."""
    for facts in _every_loss(examined):
        if facts.name not in CLASSES:
            yield from _targets_beyond(facts)


def _targets_beyond(facts: LossFacts) -> Iterator[Finding]:
    """Targets of one loss that its outputs cannot reach."""
    low, high = RANGES.get(facts.last, (-math.inf, math.inf))
    if facts.limits is not None:
        low, high = facts.limits
    if facts.last == "NativeBatchNorm" and abs(facts.output_mean - facts.target_mean) > facts.output_size:
        yield _mismatch(
            facts,
            f"The model ends in a BatchNorm, whose outputs have mean {figure(facts.output_mean)}; the targets have "
            f"{figure(facts.target_mean)} and size {figure(facts.target_size)}.",
            "A normalizer takes the mean and the scale of the predictions away, and depends on the batch.",
            "Remove the normalizer after the last layer, or standardise the targets.",
        )
    span = facts.target_greatest - facts.target_least
    limited = f"the {facts.last.lower()}" if facts.last in RANGES else "the last activation"
    if facts.output_shape != facts.target_shape:
        yield _mismatch(
            facts,
            f"The output has shape {_shape(facts.output_shape)} and the target {_shape(facts.target_shape)}: "
            f"{facts.name} broadcasts them and compares every output with every target.",
            "The best the model can do then is to predict the mean of all targets.",
            "Give both the same shape: target.unsqueeze(1), or output.squeeze(1).",
            code="shapes-broadcast",
        )
    elif facts.target_least < low - 0.01 * span or facts.target_greatest > high + 0.01 * span:
        yield _mismatch(
            facts,
            f"The targets run from {figure(facts.target_least)} to {figure(facts.target_greatest)}, and "
            f"{limited} holds the outputs between {low:g} and {high:g}.",
            "Outputs cannot reach targets outside the range of the last activation.",
            f"Remove {limited} at the end, multiply the outputs by the range of the targets, or scale the targets "
            "into theirs.",
            code="targets-out-of-range",
        )
    elif facts.name in BINARY:
        if facts.target_least < 0.0 or facts.target_greatest > 1.0:
            yield _mismatch(
                facts,
                f"The targets run from {figure(facts.target_least)} to {figure(facts.target_greatest)}, and "
                f"{facts.name} takes probabilities.",
                "Outside 0 to 1 the loss has no lower limit.",
                "Use targets 0 and 1, or another loss.",
                code="targets-out-of-range",
            )
    elif (
        facts.whole_targets > 2
        and (facts.output_shape[-1:] == (1,) or facts.integer_labels)
        and facts.target_greatest < facts.whole_targets
    ):
        yield _mismatch(
            facts,
            f"The targets are the whole numbers from 0 to {facts.target_greatest:.0f}, as numbers of classes are, "
            f"and the loss is {facts.name}.",
            "A number of a class is a name: a loss of distances takes class 3 for the mean of 2 and 4.",
            "For classes use one output per class and cross_entropy; if the targets are counts, there is nothing to "
            "do.",
            code="loss-does-not-fit",
        )
    elif (
        0.0
        < facts.target_size
        < max(SMALL_TARGET_SIZE, min(facts.output_size / TARGET_SCALE_RATIO**1.5, LARGEST_SMALL_TARGET_SIZE))
    ):
        yield _mismatch(
            facts,
            f"The targets have size {figure(facts.target_size)}.",
            "Errors of this size have a loss near zero whatever the model says: gradients are tiny, and a constant "
            "looks perfect.",
            "Standardise the targets (subtract their mean, divide by their deviation), and undo it at the end.",
            code="targets-scale",
        )
    elif facts.target_size > TARGET_SCALE_RATIO * max(facts.output_size, 1.0):
        yield _mismatch(
            facts,
            f"The targets have size {figure(facts.target_size)} and the outputs {figure(facts.output_size)}.",
            "The gradient is as large as the error: the first steps are far too long for the layers, and the "
            "output's bias takes most of the training.",
            "Standardise the targets (subtract their mean, divide by their deviation), and undo it at the end.",
            code="targets-scale",
        )


def no_better_than_constant(examined: Examined) -> Iterator[Finding]:
    """A trained model that does no better than the best constant output, or a fresh one that starts far above it."""
    facts = _facts(examined)
    if facts is None or facts.blind is None or not math.isfinite(facts.value) or facts.blind <= 1e-9:
        return
    head = dict(examined.model.named_modules()).get(_last_linear(examined))
    fresh = is_fresh(examined.model) or (head is not None and looks_fresh(head))
    share = facts.share_of_blind or 0.0
    losses = f"The loss is {figure(facts.value)}; the best constant output has {figure(facts.blind)}"
    if facts.accuracy is not None:
        losses += f" (accuracy {percent(facts.accuracy)}, the largest class has {percent(facts.largest_class or 0.0)})"
    knows = facts.accuracy is not None and facts.accuracy >= BETTER_ACCURACY_RATIO * (facts.largest_class or 1.0)
    far_above = _fresh_share(facts) >= (FIRST_LOSS_RATIO if facts.name in (*CLASSES, *BINARY) else FIRST_LOSS_RATIO**2)
    steepest = _steepest(examined) if far_above else LOSS
    if not fresh and share >= (FAR_WORSE_LOSS_RATIO if knows else NO_BETTER) and steepest == LOSS:
        layer, left = _forgetting_layer(examined)
        yield Finding(
            code="no-better-than-constant",
            severity=Severity.INFO if examined.mode == "train" and share < FAR_WORSE_LOSS_RATIO else Severity.WARNING,
            where=layer or LOSS,
            seen=f"{losses}."
            + (
                f" The outputs hardly differ from sample to sample, and in `{layer}` most of that is lost."
                * bool(layer)
            ),
            why="The model has learned nothing about its input, or forgets it: a constant would do as well.",
            advice=f"Look at the weights of `{layer}`, which hand on {percent(left)} of what varies: lower the weight "
            "decay or the learning rate that made them so, and initialise them again or load an earlier checkpoint."
            if layer
            else "Check the labels first: do they belong to these rows, in this order, from class 0? Then try to fit "
            "ten samples: if even their loss does not fall, the fault is in the model or the loss; if it does, lower "
            "the learning rate.",
            numbers=figures(loss=facts.value, blind=facts.blind),
        )
    elif far_above and (fresh or steepest != LOSS):
        yield Finding(
            code="first-loss",
            severity=Severity.WARNING,
            where=steepest,
            seen=f"{losses}"
            + (", and the model looks fresh." if fresh else f", and `{steepest}` makes values far larger."),
            why="A fresh model that is sure of wrong answers spends the first steps on unlearning them, and they are "
            "long.",
            advice="Make the last layer's weights smaller at the start, or standardise the input and the targets.",
            numbers=figures(loss=facts.value, blind=facts.blind),
        )


def _fresh_share(facts: LossFacts) -> float:
    """Return the loss as a share of that of a blind guess, which knows nothing of rare classes either."""
    classes = 2 if facts.name in BINARY else facts.output_shape[1] if len(facts.output_shape) > 1 else 1
    guess = math.log(classes) if facts.name in (*CLASSES, *BINARY) else 0.0
    return (
        min(facts.share_of_blind or 0.0, facts.value / guess)
        if guess and not facts.sum_of
        else facts.share_of_blind or 0.0
    )


def _forgetting_layer(examined: Examined) -> tuple[str, float]:
    """Return where outputs that are nearly constant lose most of what varies: the weight layer, and the share left."""
    signal, facts = examined.signal, _facts(examined)
    if signal is None or facts is None:
        return "", 1.0
    shares = [(row.sample_deviation or 0.0) / (row.root_mean_square or 1.0) for row in signal.rows]
    ends = [share for share, row in zip(shares, signal.rows, strict=True) if row.path == facts.made_by]
    if not ends or ends[-1] > NEARLY_CONSTANT_SHARE:
        return "", 1.0
    losses = [
        (shares[number] / most, row.path)
        for number, (row, feeds) in enumerate(zip(signal.rows, signal.feeds, strict=False))
        if row.sample_deviation is not None and row.kind in WEIGHTS
        if (most := max((shares[feed] for feed in feeds), default=0.0)) > 0.0
    ]
    left, path = min(losses, default=(1.0, ""))
    return path, left


def _steepest(examined: Examined) -> str:
    """Return the layer whose values are largest beside those that it reads, if one stands out; otherwise the loss."""
    signal = examined.signal
    growths = [(LOSS, STEEP_LAYER_RATIO)]
    for row, feeds in zip(signal.rows, signal.feeds, strict=False) if signal is not None else ():
        sizes = [signal.rows[feed].root_mean_square or 0.0 for feed in feeds] if signal is not None else []
        read = 1.0 if row.kind == "embedding" else max(sizes, default=0.0)
        if row.kind != INPUT and row.root_mean_square is not None and read > 0.0:
            growths.append((row.path, row.root_mean_square / read))
    return max(growths, key=lambda growth: growth[1])[0]


def one_class(examined: Examined) -> Iterator[Finding]:
    """Targets that are all the same, or nearly."""
    facts = _facts(examined)
    if facts is None or examined.signal is None:
        return
    constant = facts.is_constant and math.prod(facts.target_shape) > 1
    several = facts.name in BINARY and len(facts.output_shape) > 1 and facts.output_shape[1] > 2
    if constant and (facts.own_targets or examined.signal.derives or find_discriminator_layers(examined.signal)):
        return  # what a generator is to reach, or the right side of an equation
    if constant:
        yield _mismatch(
            facts,
            f"All targets of the batch are {figure(facts.target_least)}.",
            "A constant output fits them: nothing can be learned from this batch.",
            "Look at how labels are read, and shuffle the data: batches that are sorted by class look like this.",
            code="one-class",
            where=LOSS,
        )
    elif facts.padding > MAX_PADDING_SHARE:
        yield _mismatch(
            facts,
            f"{percent(facts.padding)} of the targets fill up the ends of the rows with one value, and the loss "
            "counts them.",
            "Nearly all of the gradient teaches the model to repeat the padding.",
            "Use the loss with ignore_index set to the value of the padding, or change these targets to -100.",
            code="one-class",
            where=LOSS,
        )
    elif facts.largest_class is not None and facts.largest_class > ONE_CLASS_SHARE:
        yield Finding(
            code="one-class",
            severity=Severity.WARNING
            if examined.signal.samples >= MIN_LABELS and not several and not facts.weighted
            else Severity.INFO,  # of many labels each is rare
            where="the targets",
            seen=f"{percent(facts.largest_class)} of the targets are of one class.",
            why="Always guessing this class is hard to beat, and accuracy says little.",
            advice="Weigh the classes in the loss, or draw batches with equal shares; judge by balanced accuracy.",
            numbers=figures(share=facts.largest_class),
        )


def _every_loss(examined: Examined) -> tuple[LossFacts, ...]:
    """Return what each loss was given that compares outputs with targets."""
    signal = examined.signal
    return () if signal is None or signal.loss is None else (signal.loss, *signal.other_losses)


def _facts(examined: Examined) -> LossFacts | None:
    return None if examined.signal is None else examined.signal.loss


def _last_linear(examined: Examined) -> str:
    """Return the module of the last linear layer; empty if there is none."""
    layers = () if examined.signal is None else examined.signal.layers
    return next((row.path for row in reversed(layers) if row.kind == "linear"), "")


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _mismatch(
    facts: LossFacts,
    seen: str,
    why: str,
    advice: str,
    *,
    code: str = "activation-before-loss",
    where: str = "",
    severity: Severity = Severity.WARNING,
) -> Finding:
    """What does not fit the loss: the place is the module that made the outputs, if there is one."""
    where = where or facts.made_by or LOSS
    return Finding(code=code, severity=severity, where=where, seen=seen, why=why, advice=advice, numbers={})
