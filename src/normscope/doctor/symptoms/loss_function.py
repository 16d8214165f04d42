"""How the loss is put together: a last activation it does not fit, a wrong sign, targets that are broadcast."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ...core.finding import Finding, Severity, figure, figures, percent
from ...report.words import listed
from ..facts.autograd_graph import RANGES
from ..facts.examined import Examined
from ..facts.freshness import is_fresh
from ..facts.loss import CONTRACTS, LossFacts
from ..facts.loss_call import BINARY, CLASSES
from ..monitor.history import History
from .check_readings import LOSS, describe_mismatch, describe_overflow, every_loss, loss_facts_of, write_shape
from .gradient_reach import CODE_CUT
from .labels import SHAPES_BROADCAST
from .symptom import FindingWords, Symptom, finding

FINDING_WORDS = {
    "activation-before-loss": FindingWords("the last activation does not fit the loss"),
    "loss-does-not-fit": FindingWords("the loss does not fit the outputs and targets"),
    "shapes-broadcast": FindingWords("output and target have different shapes"),
    "negated-loss": FindingWords("the loss has the wrong sign"),
}
ACTIVATION_BEFORE_LOSS = Symptom(
    code="activation-before-loss",
    seen="The loss applies {what} itself, and one stands in front of it: the loss sees probabilities, not scores.",
    why="The loss takes scores of any size: within the limits of {what} no class can become certain, the gradients are "
    "small, and the loss cannot fall far.",
    advice="Remove {what} at the end of the model: the loss takes the scores (logits) of the last layer.",
)
APPLIED_BY_LOSS = {"cross_entropy": "softmax", "bce_with_logits": "sigmoid"}
"""The activation that a loss applies itself."""
LARGE_SUM_SAMPLES = 256
"""Samples from which a sum instead of a mean makes steps far too long."""
SMALL_SCORE_FACTOR = 0.2
"""A factor on the scores below which they hardly tell the classes apart."""
SMALL_SCORE_LIMIT = 3.0
"""Of two classes whose scores lie between this and minus this, each keeps a probability of a twentieth or more."""
MAX_SMOOTHING_SHARE = 0.5
"""The part of a label that smoothing may spread over the classes: beyond it less of the label is left than spread."""


def check_activation_before_loss(examined: Examined) -> Iterator[Finding]:
    """`activation-before-loss` (warning, info): the model ends in a softmax, sigmoid, tanh or ReLU that the loss
    applies itself or that keeps outputs from the values that the loss needs, also in front of a loss of your own
    that takes scores (which is asked for its value at perfect answers); scores that are small cosines, or are
    divided by a large temperature; a BatchNorm after the last layer where the targets have another mean (info:
    log_softmax before cross entropy, which changes nothing)
    """
    findings = [finding for facts in every_loss(examined) for finding in _activation_before(examined, facts)]
    yield from findings or _wrong_kind(examined)


def _wrong_kind(examined: Examined) -> Iterator[Finding]:
    """Outputs of another kind than the loss takes, by what torch says of it or by its values at perfect outputs."""
    signal = examined.signal
    broken = None if signal is None else signal.objective.broken_contract
    if signal is None:
        return
    if broken is not None and not broken.last:
        yield finding(
            "targets-out-of-range",
            LOSS,
            f"The targets run from {figure(broken.least)} to {figure(broken.greatest)}, and {broken.name} takes "
            f"{' and '.join(f'{value:g}' for value in CONTRACTS[broken.name][1])} alone.",
            "For any other target it computes something else, such as nothing at all for a target of 0.",
            "Change the targets to those values, such as 2 * y - 1 for labels of 0 and 1, or use another loss.",
            figures(least=broken.least, greatest=broken.greatest),
        )
        return
    last = broken.last if broken is not None else "" if signal.loss is None else signal.loss.last
    made_by = broken.made_by if broken is not None else next((row.path for row in reversed(signal.layers)), "")
    activation = f"the {last.lower()}" if last in RANGES else "what bounds the outputs"
    if broken is not None or signal.at_output.wanted == "scores":
        name = "the loss" if broken is None else broken.name
        yield ACTIVATION_BEFORE_LOSS.at(
            made_by or LOSS,
            {"what": activation},
            seen=f"The outputs come out of {activation} and run from {figure(broken.least)} to "
            f"{figure(broken.greatest)}, and {name} takes scores without limits."
            if broken is not None
            else "The outputs lie between 0 and 1, and even right and certain ones leave most of the loss: "
            "it is small for scores far from zero.",
        )
    elif signal.at_output.wanted == "probabilities":
        yield finding(
            "loss-does-not-fit",
            LOSS,
            "The loss is next to nothing where the outputs are the labels, zeros and ones, and smaller still "
            "beyond them; the outputs have no limits.",
            "Such a loss, as those of overlap (Dice, IoU), measures what it is meant to between 0 and 1 alone: "
            "with other outputs it has no lower limit, and falls for answers that are wrong.",
            "Apply a sigmoid to the outputs before the loss (a softmax over the classes, if they exclude each other).",
        )


def _activation_before(examined: Examined, facts: LossFacts) -> Iterator[Finding]:
    """What stands before one of the losses."""
    applied = APPLIED_BY_LOSS.get(facts.name)
    if facts.name in CLASSES and len(facts.output_shape) > 1 and facts.output_shape[1] == 1:
        yield describe_mismatch(
            facts,
            "The output has one class: its softmax is 1 whatever the input, and the loss is 0.",
            "No gradient comes back, and nothing is learned.",
            "Give the last layer one output per class, or use one output with loss bce_with_logits.",
            code="loss-does-not-fit",
        )
    elif facts.last == "Softmax" and facts.output_shape[-1] == 1:
        yield describe_mismatch(
            facts,
            "The model ends in a softmax over one output, which is 1 whatever the input.",
            "The output does not depend on the input, and no gradient comes back.",
            "Remove the softmax: for one output use the loss bce_with_logits on the raw score, or a sigmoid with bce.",
        )
    elif facts.name == "cross_entropy" and (facts.probabilities or facts.last in RANGES):
        what = "the softmax" if facts.probabilities else f"the {facts.last.lower()}"
        yield ACTIVATION_BEFORE_LOSS.at(
            facts.made_by or LOSS,
            {"what": what},
            seen=f"The outputs come out of {what} and run from {figure(facts.output_least)} to "
            f"{figure(facts.output_greatest)}, and cross_entropy applies a softmax"
            f"{' once more' if facts.probabilities else ' to them'}.",
        )
    elif facts.name == "cross_entropy" and facts.log_probabilities:
        yield describe_mismatch(
            facts,
            "The outputs are logarithms of probabilities, and cross_entropy applies a log_softmax once more.",
            "A second log_softmax changes nothing: this does no harm.",
            "Use the loss nll, or remove the log_softmax at the end of the model.",
            severity=Severity.INFO,
        )
    elif facts.name == "bce_with_logits" and facts.last in RANGES:
        what, twice = f"the {facts.last.lower()}", applied == facts.last.lower()
        yield ACTIVATION_BEFORE_LOSS.at(
            facts.made_by or LOSS,
            {"what": what},
            seen=f"The outputs come out of {what}, and bce_with_logits applies a sigmoid to them"
            f"{' once more' if twice else ''}.",
        )
    elif facts.name == "nll" and not facts.log_probabilities and facts.log_axis is not None:
        yield describe_mismatch(
            facts,
            f"The exponentials of the outputs add up to 1 over axis {facts.log_axis}, and nll_loss looks for the "
            "classes in axis 1.",
            "What all places of that axis share is taken away, and the classes of one place are not compared.",
            "Apply log_softmax with dim=1 at the end of the model.",
            code="loss-does-not-fit",
        )
    elif facts.name == "nll" and not facts.log_probabilities:
        yield describe_mismatch(
            facts,
            "nll_loss expects logarithms of probabilities, and the exponentials of the outputs do not add up to 1.",
            "The loss can fall without limit by making all outputs large: it measures nothing.",
            "End the model in log_softmax, or use cross_entropy, which applies it.",
            code="loss-does-not-fit",
        )
    elif facts.name == "kl_div" and not facts.log_probabilities:
        yield describe_mismatch(
            facts,
            "kl_div expects logarithms of probabilities as its input, and the exponentials of the outputs do not add "
            "up to 1.",
            "It then measures no divergence: it can be negative, and its smallest value is not where the two agree.",
            "Apply log_softmax to the outputs before the loss instead of softmax, or use cross_entropy.",
            code="loss-does-not-fit",
        )
    several = facts.labels_per_sample is not None and abs(facts.labels_per_sample - 1.0) > 0.05
    if several and facts.name == "cross_entropy":
        yield describe_mismatch(
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
        yield describe_mismatch(
            facts,
            "The outputs come out of a softmax, and the targets have several labels per sample.",
            "A softmax shares one certainty among all labels: two of them cannot both be certain.",
            "Remove the softmax and use the loss bce_with_logits, or replace it by a sigmoid.",
        )
    if (
        facts.sum_of >= LARGE_SUM_SAMPLES
        and examined.signal is not None
        and facts.value == examined.signal.objective.loss_value
    ):
        yield describe_mismatch(
            facts,
            f"The loss is the sum over {facts.sum_of:,} samples.",
            "Gradients and steps are as many times as long as those of a mean, and grow with the batch.",
            'Use the loss with reduction="mean", or divide it by the number of samples.',
            code="loss-does-not-fit",
            where=LOSS,
        )
    factor = find_last_factor(examined, facts)
    if factor is not None and factor < SMALL_SCORE_FACTOR:
        yield describe_mismatch(
            facts,
            f"The scores of the last layer are multiplied by {figure(factor)} before the loss.",
            "No class can become certain before the weights have grown as many times, and gradients are as much "
            "smaller.",
            "Scale the outputs up: a temperature of training divides by 1 or less (0.1), and one for sampling has no "
            "place in training.",
            numbers=figures(factor=factor),
        )
    elif facts.name in ("cross_entropy", BINARY[1]) and facts.last not in RANGES and _is_held_narrow(facts):
        low, high = facts.limits or (0.0, 0.0)
        yield describe_mismatch(
            facts,
            f"A clamp holds the outputs between {low:g} and {high:g}.",
            "Between these limits no class can become certain, and what lies beyond them gets no gradient.",
            "Remove the clamp at the end of the model: the loss takes scores without limits (logits).",
        )
    elif facts.name in (*CLASSES, *BINARY[1:]) and facts.cosines is not None and _is_narrow(facts, facts.cosines):
        yield describe_mismatch(
            facts,
            f"The outputs are cosines times {facts.cosines:g}.",
            "Between these limits no class can become certain, whatever the weights are.",
            "Scale the outputs: multiply the cosines by 10 to 30 (divide by a temperature of 0.03 to 0.1).",
        )
    if facts.negated and facts.target_least < facts.target_greatest:  # a generator's targets are all the same
        yield describe_mismatch(
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
        yield describe_mismatch(
            facts,
            f"The last layer has its units on the last axis of {write_shape(facts.output_shape)}, and {facts.name} "
            "takes axis 1, which is as long, for the classes.",
            "The scores of one class at all places are compared, in place of those of all classes at one place.",
            "Move the classes to axis 1 before the loss: output.transpose(1, 2), or flatten both: "
            "loss(output.flatten(0, 1), target.flatten()).",
            code="loss-does-not-fit",
        )
    if facts.opposed:
        yield describe_mismatch(
            facts,
            "The weights in the loss make the rare class count less than the frequent one.",
            "Always guessing the frequent class is then better still than without weights.",
            "Turn the class weights around: a class is weighed by one over its share, and pos_weight is the number of "
            "negatives over that of positives.",
            code="one-class",
            where=LOSS,
        )
    if facts.without_weight > 0.0:
        yield describe_mismatch(
            facts,
            f"{percent(facts.without_weight)} of the targets are of classes whose weight in the loss is zero.",
            "Nothing is learned from these samples, and nothing keeps the model from giving them any other class.",
            "Use the loss with class weights above zero, such as one over the share of the class; for targets that "
            "shall not count use ignore_index.",
            code="loss-does-not-fit",
            where=LOSS,
        )
    if facts.smoothing > MAX_SMOOTHING_SHARE:
        yield describe_mismatch(
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


def find_last_factor(examined: Examined, facts: LossFacts) -> float | None:
    """Return by how much the scores of the last layer are multiplied before the loss; None if they are not."""
    if facts.name not in (*CLASSES, *BINARY[1:]):
        return None
    layers = () if examined.signal is None else examined.signal.layers
    last = next((row for row in reversed(layers) if row.kind == "linear"), None)
    if last is None or not last.root_mean_square or math.prod(last.shape) != math.prod(facts.output_shape):
        return None
    return facts.output_size / last.root_mean_square if facts.last in ("Div", "Mul") else None


def watch_loss_oddities(history: History) -> Iterator[Finding]:
    """`activation-before-loss` (warning): a softmax or sigmoid in front of a loss that has one, in two records
    `shapes-broadcast` (warning): each output is compared with each target, in two records
    `negated-loss` (warning): a minus in front of a loss function, log-probabilities of labels without one, or the
    divergence of a drawn code from a standard normal one (the KL term of a variational autoencoder) that is subtracted,
    in two records, while no other optimizer steps
    `gradient-cut` (warning): layers that make a drawn code and that no other part of the loss reaches than its
    divergence from a standard normal one (the code, or its noise, is detached), in two records, while no other
    optimizer steps
    """
    for word, since in history.parameter_state.oddities.items():
        if since.records < 2:
            continue
        if word == "broadcast":
            yield SHAPES_BROADCAST.at(words={"shapes": history.parameter_state.shapes})
        elif word in ("softmax", "sigmoid"):
            yield ACTIVATION_BEFORE_LOSS.at(words={"what": f"the {word}"})
        elif history.parameter_state.others:
            continue  # two players: one of them maximises, or the other one teaches what makes the code
        elif word == "cut" and (names := history.parameter_state.untaught):
            layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            yield CODE_CUT.at(layers[-1], {"layers": listed([f"`{path}`" for path in layers])}, parameters=len(names))
        elif word in WRONG_SIGNS:
            yield WRONG_SIGNS[word].at()


NEGATED_LOSS = Symptom(
    code="negated-loss",
    seen="The loss is minus a loss function: the optimizer maximises the error.",
    why="The sign is wrong: minimised without a bound, it makes the model worse at each step, and outputs grow.",
    advice="Remove the minus sign in front of the loss.",
)
LIKELIHOOD_MINIMISED = replace(
    NEGATED_LOSS,
    seen="The loss is the mean log-probability of the labels, without a minus sign: the optimizer minimises it.",
    why="The sign is wrong: the labels become less likely with each step, and the loss falls without a bound.",
    advice="Put a minus sign in front of it, or use torch.nn.functional.cross_entropy.",
)
DIVERGENCE_SUBTRACTED = replace(
    NEGATED_LOSS,
    seen="The divergence of the code from a standard normal one is subtracted from the loss: the optimizer makes it "
    "larger.",
    why="The sign is wrong: the loss falls without a bound where mean and spread of the code grow.",
    advice="Change the sign of that part, so that the loss is the error plus the divergence, -0.5 * (1 + logvar - "
    "mean**2 - logvar.exp()).",
)
WRONG_SIGNS = {"negated": NEGATED_LOSS, "likelihood": LIKELIHOOD_MINIMISED, "divergence": DIVERGENCE_SUBTRACTED}
"""By what is odd in a loss, as `LossReading` has it, what is told of its sign."""
PUSHED_AWAY_SHARE = 0.95
"""The share of outputs that a step moves away from their targets, beyond which the sign of the loss is wrong."""
NEGATIVE_PART_SHARE = 1e-4
"""A negative part of the loss over the loss, beyond which it is not rounding."""
RIGHT_SIGN = (
    "Change the sign of that part, so that the loss is the error plus the divergence, -0.5 * (1 + logvar - mean**2 - "
    "logvar.exp())."
)


def check_wrong_sign(examined: Examined) -> Iterator[Finding]:
    """`loss-does-not-fit` (warning, error): a squared error on the numbers of classes, `nll_loss` on outputs that are
    no log-probabilities, a cross entropy of one class, targets that do not add up to 1 over the classes, a sum over
    256 samples or more, a loss or a divergence with the wrong sign (error: where the loss or weights are broken
    already), classes with a weight of zero, a loss that depends on the mean of all outputs alone, a loss that falls
    further beyond perfect probabilities (a Dice or IoU loss of raw outputs), classes on the last axis where the loss
    looks for them on an axis of the same length
    """
    signal, facts = examined.signal, loss_facts_of(examined)
    divergence = examined.divergence if signal is None else signal.divergence
    if divergence is not None and divergence.weight < 0.0:
        overflow = describe_overflow(examined)
        broken = overflow or (signal is not None and not math.isfinite(signal.objective.loss_value or 0.0))
        yield finding(
            "loss-does-not-fit",
            LOSS,
            f"The loss counts the divergence of the drawn code from a standard normal one "
            f"{figure(divergence.weight)} times, by the mean and the spread that the model returns: the larger the "
            f"divergence, the smaller the loss.{overflow}",
            "A divergence has no upper limit: the steps make it, and the code with it, larger without end, until "
            "values overflow.",
            RIGHT_SIGN,
            figures(weight=divergence.weight),
            severity=Severity.INFO if examined.mode != "train" else Severity.ERROR if broken else Severity.WARNING,
        )
    if signal is None or signal.objective.loss_value is None:
        return
    ascends = signal.steps is not None and (signal.steps.promised_fall or 0.0) < 0.0  # what is given is a reward
    if facts is None and signal.at_output.pushed_away > PUSHED_AWAY_SHARE and is_fresh(examined.model) and not ascends:
        yield finding(
            "loss-does-not-fit",
            LOSS,
            f"A step against the gradient of the loss moves {percent(signal.at_output.pushed_away)} of the outputs "
            "away from their targets.",
            "The steps make the error larger, without limit.",
            "Change the sign of the loss: minimise the error, not minus the error. If it is meant to grow, "
            "there is nothing to do.",
            figures(share=signal.at_output.pushed_away),
        )
    if (
        divergence is None
        and facts is not None
        and signal.calls.draws
        and facts.rest < -NEGATIVE_PART_SHARE * abs(signal.objective.loss_value)
        and not facts.negated
    ):
        yield finding(
            "loss-does-not-fit",
            LOSS,
            f"Besides {facts.name} the loss has a part of {figure(facts.rest)}, and the model draws random "
            "numbers, as a variational autoencoder does.",
            "A divergence is never below zero: with the wrong sign it is made larger without limit.",
            f"{RIGHT_SIGN} If it is an entropy that is to grow, there is nothing to do.",
            figures(rest=facts.rest),
            severity=Severity.WARNING if examined.mode == "train" else Severity.INFO,
        )


def check_means_compared(examined: Examined) -> Iterator[Finding]:
    """A loss that reads the mean of the outputs over the samples alone."""
    if examined.signal is None or not examined.signal.at_output.means_alone:
        return
    yield finding(
        "loss-does-not-fit",
        LOSS,
        "The loss stays the same with quite other outputs, as long as their mean over the samples is the same.",
        "Errors of single samples cancel before they are counted: a constant output is perfect for it.",
        "Use a loss that compares each output with its own target and takes the mean last, such as mse_loss: "
        "(output - target).square().mean().",
    )


def check_classes_as_numbers(examined: Examined) -> Iterator[Finding]:
    """A squared error that is written by hand, and class numbers."""
    kinds = 0 if examined.signal is None else examined.signal.at_output.classes_as_numbers
    if kinds and loss_facts_of(examined) is None:
        yield finding(
            "loss-does-not-fit",
            LOSS,
            "The loss is a squared error, and it is smallest where the outputs equal the labels: the whole numbers "
            f"from 0 to {kinds - 1}, as numbers of classes are.",
            "A number of a class is a name: a loss of distances takes class 3 for the mean of 2 and 4.",
            "For classes use one output per class and cross_entropy; if the targets are counts, ratings or "
            "ranks, there is nothing to do.",
        )


def check_idle_label(examined: Examined) -> Iterator[Finding]:
    """A loss that gives no gradient to any sample of one label, in a model that has learned nothing yet."""
    signal = examined.signal
    if signal is None or signal.at_output.idle_label is None or signal.loss is not None or not is_fresh(examined.model):
        return  # torch's own losses have a gradient for every label; outputs that are certain may round it to zero
    yield finding(
        "no-loss-gradient",
        LOSS,
        f"No sample with the label {signal.at_output.idle_label:g} gets a gradient from the loss, all others do.",
        "Nothing is learned from samples without a gradient.",
        "Change the targets to what the loss takes: a hinge loss takes -1 and 1, and a label of 0 makes it "
        "constant; or use a loss for labels of 0 and 1 (bce_with_logits).",
        figures(label=signal.at_output.idle_label),
    )
