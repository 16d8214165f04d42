"""The causes that faults have, in models and in runs, and which codes of findings tell each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A cause: what it means, and the codes of the findings that give it, split at spaces."""

    meaning: str
    codes: str = ""


CAUSES: dict[str, Cause] = {
    # the data
    "inputs-not-scaled": Cause(
        "The inputs are far larger or smaller than about 1, or far from centred.", "input-scale input-columns"
    ),
    "one-input-column-dominates": Cause(
        "A few input columns are so much larger than the others that these do not count.", "input-columns"
    ),
    "inputs-constant": Cause("The inputs are zero, or the same for every sample.", "constant-input"),
    "not-finite-data": Cause("The batch holds NaN or infinite values.", "non-finite-activations"),
    # the targets and the loss
    "softmax-twice": Cause(
        "A softmax or sigmoid stands before a loss that applies one itself.", "activation-before-loss"
    ),
    "activation-before-loss": Cause(
        "The last activation keeps the output from the values that the loss or the targets need.",
        "activation-before-loss targets-out-of-range",
    ),
    "output-range-too-small": Cause(
        "The outputs are confined to a range in which the loss cannot become small.", "activation-before-loss"
    ),
    "loss-does-not-fit": Cause(
        "The loss is not meant for these outputs and targets.", "loss-does-not-fit no-loss-gradient"
    ),
    "targets-out-of-range": Cause(
        "Some targets lie outside of what the outputs or the loss can reach or accept.",
        "loss-not-finite targets-out-of-range",
    ),
    "targets-wrong-scale": Cause(
        "The targets are far larger or smaller than the outputs of a fresh network.", "targets-scale"
    ),
    "shapes-broadcast": Cause(
        "The shapes of outputs and targets differ, and broadcasting compares each with each.", "shapes-broadcast"
    ),
    "class-imbalance": Cause("Almost all of the labels belong to one class.", "one-class"),
    "labels-constant": Cause("All of the labels are the same.", "one-class"),
    "labels-wrong": Cause(
        "The labels belong to other samples, or their classes are numbered differently.",
        "no-better-than-constant labels-are-inputs",
    ),
    "loss-gradient-zero": Cause(
        "The gradient of the loss with respect to the outputs is exactly zero.", "no-gradient no-loss-gradient"
    ),
    "padding-counted": Cause(
        "Padding is read like data: it is averaged, attended to or fed to a recurrence.", "one-class mask-leaks"
    ),
    # signal and gradient over the depth
    "vanishing-gradient": Cause(
        "Gradients shrink from layer to layer until early layers hardly learn.", "gradient-vanishing gradient-jump"
    ),
    "exploding-gradient": Cause(
        "Gradients grow from layer to layer until steps destroy what was learnt.",
        "gradient-does-not-descend gradient-explosion exploding-run batch-norm-depth gradient-jump",
    ),
    "vanishing-signal": Cause(
        "Values shrink from layer to layer until outputs hardly depend on the input.", "gradient-vanishing"
    ),
    "exploding-signal": Cause(
        "Values grow from layer to layer.",
        "first-loss gradient-does-not-descend gradient-explosion exploding-run branch-dominates",
    ),
    "layer-scale-stands-out": Cause(
        "The weights of one layer are far larger or smaller than those of its neighbours.", "first-loss layer-scale"
    ),
    "branch-dominates": Cause(
        "One summand (a branch, an embedding) is so large that the other is lost beside it.",
        "layer-scale branch-dominates",
    ),
    # weights
    "constant-initialisation": Cause(
        "All weights of a layer are equal, so that its units stay copies of each other.", "equal-units"
    ),
    "zero-weights": Cause(
        "The weights (or gains) of a layer are zero or have decayed to almost zero.",
        "zero-weights dead-layer dead-channels",
    ),
    "rank-one-weights": Cause("The rows of a weight are multiples of each other.", "rank-one-weights"),
    "not-finite-weights": Cause("A parameter or buffer holds NaN or infinite values.", "non-finite-weights"),
    # units
    "dead-units": Cause(
        "Units are zero for every sample and receive no gradient.", "dead-layer dead-channels dead-relu"
    ),
    "bias-holds-units-off": Cause("A large negative bias keeps units at zero.", "dead-relu"),
    "saturated-units": Cause(
        "Units stand in the flat part of their activation, where the gradient is almost zero.",
        "saturated-units attention-saturated",
    ),
    "activation-unsuitable": Cause(
        "The activation of a hidden layer is one that does not suit hidden layers.", "hidden-softmax"
    ),
    "missing-activation": Cause(
        "Linear layers follow each other without an activation between them.", "missing-activation"
    ),
    "dropout-too-strong": Cause("Dropout removes almost everything.", "strong-dropout"),
    "dropout-misplaced": Cause("Dropout acts on the outputs themselves.", "strong-dropout"),
    "bottleneck-too-narrow": Cause("A layer is too narrow to hand on what the later layers need.", "bottleneck"),
    # structure
    "no-gradient": Cause(
        "A detach, no_grad, argmax or rebuilt tensor cuts the gradient off.",
        "gradient-cut gradient-mismatch no-gradient no-loss-gradient",
    ),
    "unused-parameter": Cause("A parameter takes no part in the output.", "unused-parameter"),
    "unregistered-parameter": Cause(
        "A layer or weight is kept in a list, dict or plain tensor that the model does not own.", "frozen-layer"
    ),
    "frozen-layer": Cause("A layer does not learn because its parameters require no gradient.", "frozen-layer"),
    "samples-mixed": Cause("The output of one sample depends on the other samples of the batch.", "samples-mixed"),
    "output-constant": Cause(
        "The output is (almost) the same for every sample.", "no-better-than-constant output-constant input-ignored"
    ),
    "condition-switched-off": Cause(
        "An input that should steer the network has (almost) no influence.", "input-ignored"
    ),
    "not-finite": Cause(
        "Some operation inside produces NaN or infinite values.",
        "non-finite-activations loss-not-finite gradient-not-finite",
    ),
    "gradient-not-finite": Cause("Values are finite but the gradient is NaN or infinite.", "gradient-not-finite"),
    "precision": Cause(
        "Values leave the range of the number format, or drown in its rounding.",
        "non-finite-activations loss-not-finite half-precision",
    ),
    # normalizers
    "wrong-mode": Cause(
        "Some part is in train mode while it should be in eval mode, or the other way around.",
        "strong-dropout wrong-mode",
    ),
    "running-statistics-wrong": Cause("Running statistics do not describe the data that arrives.", "stale-statistics"),
    "normalizer-too-few-samples": Cause(
        "A normalizer estimates its statistics from too few values.", "small-batch tiny-sets"
    ),
    "normalizer-wrong-axis": Cause("A normalizer or softmax works over the wrong axis.", "softmax-axis samples-mixed"),
    "normalizer-erases-signal": Cause("A normalizer takes away just what the next layer reads.", "tiny-sets"),
    "eps-dominates": Cause(
        "The eps of a normalizer is large beside the variance that it is added to.", "eps-scale eps-dominated"
    ),
    # the optimizer
    "not-in-optimizer": Cause(
        "The optimizer that was handed over does not hold some parameters of the model.", "not-in-optimizer"
    ),
    "learning-rate-too-large": Cause(
        "Steps of the optimizer are so large that they destroy what was learnt.", "step-too-long"
    ),
    "learning-rate-too-small": Cause(
        "Steps of the optimizer are so small that nothing is learnt in reasonable time.", "step-too-short"
    ),
    "momentum-too-large": Cause("The momentum sums up so many gradients that steps overshoot.", "step-too-long"),
    "weight-decay-too-strong": Cause(
        "Weight decay pulls the weights to zero faster than the loss can hold them.", "decay-too-strong"
    ),
    "optimizer-ascends": Cause("The optimizer makes the loss larger.", "gradient-does-not-descend step-too-long"),
    # attention and recurrence
    "future-visible": Cause("A model that predicts what comes next can see it.", "mask-leaks"),
    "attention-saturated": Cause(
        "Attention logits are so large that each row looks at one entry.", "saturated-units attention-saturated"
    ),
    "attention-mask-wrong": Cause(
        "An attention mask hides what should be seen.", "non-finite-activations input-ignored mask-leaks"
    ),
    "recurrent-weights-explode": Cause(
        "A recurrent weight makes states or gradients grow over time steps.", "recurrent-scale"
    ),
    "recurrent-weights-vanish": Cause(
        "A recurrent weight or gate makes the state forget its past within few steps.",
        "recurrent-scale saturated-units",
    ),
    # runs alone
    "rate-too-low": Cause(
        "The steps are so small beside the weights that they hardly move; the learning rate is too low."
    ),
    "rate-zero": Cause("The learning rate is zero."),
    "rate-decays-too-early": Cause("A schedule brought the learning rate to almost nothing long before the end."),
    "gradient-too-small": Cause("The loss or the gradient was scaled or clipped down until steps do nothing."),
    "clipping-always-active": Cause("Clipping cuts every gradient to a small part of its norm."),
    "weights-put-back": Cause("Something overwrites the weights after each step, so that no step lasts."),
    "not-learning": Cause("The loss does not fall, or stays at what guessing gives."),
    "labels-unrelated": Cause("The labels have nothing to do with the inputs."),
    "same-batch": Cause("Every step sees the same samples."),
    "gradient-missing": Cause("At the step there is no gradient, or one of zeros."),
    "sign-of-loss": Cause("The loss is minimised where it should be maximised, or the other way around."),
    "gradient-cut": Cause("A detach, no_grad or rebuilt tensor keeps the gradient from some layers."),
    "no-step": Cause("The optimizer's step is never called, or changes nothing."),
    "steps-skipped": Cause("The gradient scaler skips the steps."),
    "rate-too-high": Cause("The steps are too large; the learning rate, or what multiplies it, is too high."),
    "divergence": Cause("The loss grows far above where it was and does not come back."),
    "exploding-values": Cause("Activations or weights grow by orders of magnitude."),
    "loss-spike": Cause("The loss jumped far above its usual values."),
    "outlier": Cause("A few samples have targets or inputs far from all others."),
    "decay-too-strong": Cause("Weight decay or another penalty pulls weights to zero faster than they learn."),
    "attention-collapse": Cause("Attention looks at one entry, its logits are too large."),
    "discriminator-wins": Cause("The discriminator tells everything apart, and the generator gets no gradient."),
    "posterior-collapse": Cause("The code of a variational autoencoder carries nothing."),
    "units-alike": Cause("All units of a layer compute the same and get the same gradient."),
    "layer-decayed": Cause("The weights of a layer have gone to almost zero."),
    "gradient-accumulates": Cause("Gradients of earlier steps are never cleared."),
    "overfitting": Cause("The loss on validation data rises, or stays, while the loss of training falls."),
    "validation-worsens": Cause("A figure of the validation is clearly worse than it was."),
    "data-changed": Cause("The inputs or targets of later batches are not like those of earlier ones."),
    "sorted-batches": Cause("Batches are not shuffled: each holds few classes, and what was learnt is forgotten."),
}

CAUSES_BY_CODE: dict[str, frozenset[str]] = {
    code: frozenset(name for name, cause in CAUSES.items() if code in cause.codes.split())
    for code in sorted({code for cause in CAUSES.values() for code in cause.codes.split()})
}
"""The causes that each code gives."""
