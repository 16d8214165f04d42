"""Every kind of finding, of audits and of training runs: the words of verdicts, and the rows of `docs/findings.md`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Raised:
    """When a kind of finding is raised, in an audit or in a training run.

    Attributes:
        severity: the severities that it can have, the usual one first.
        seen: what must have been seen.
    """

    severity: str
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingKind:
    """What all findings of one code share.

    Attributes:
        one: what a verdict says of one place, in a clause; `{where}` stands for the place.
        many: what it says of several places, if that differs; `{count}` stands for how many, `{norms}` for how many of
            all normalizers.
        note: both for an info finding, where it says something else.
        audit: when audits and checks raise it; `None` if they never do.
        watch: when training runs raise it; `None` if they never do.
    """

    one: str
    many: str = ""
    note: tuple[str, str] | None = None
    audit: Raised | None = None
    watch: Raised | None = None


KINDS: dict[str, FindingKind] = {
    "non-finite-weights": FindingKind(
        one="{where} is broken by NaN or infinite values",
        many="{count} tensors hold NaN or infinite values",
        audit=Raised(
            "error",
            "a parameter or buffer holds NaN or infinite values, or a negative variance",
        ),
    ),
    "non-finite-activations": FindingKind(
        one="{where} returns NaN or infinite values",
        many="{count} modules return NaN or infinite values",
        audit=Raised(
            "error",
            "the first module whose output is NaN or infinite",
        ),
    ),
    "input-scale": FindingKind(
        one="the {where} is at an unusual scale",
        audit=Raised(
            "warning",
            "the first layer reads an input far from the size of 1 that networks are usually trained on "
            "(bytes from 0 to 255, raw features); said before, and instead of, `stale-statistics`, which such"
            " an input causes",
        ),
    ),
    "gradient-mismatch": FindingKind(
        one="the gradient through {where} is not that of its forward",
        many="the gradient through {count} modules is not that of their forward",
        audit=Raised(
            "warning",
            "the backward of a module is not the derivative of its forward (a custom `autograd.Function`, a "
            "hook, `detach`, `no_grad`); straight-through estimators and gradient reversal are so on purpose",
        ),
    ),
    "tiny-sets": FindingKind(
        one="{where} normalizes sets of one or two values",
        many="{norms} work on sets of one or two values",
        audit=Raised(
            "error, warning",
            "a normalizer works on sets of one element (its output is constant) or two (its output is ±1)",
        ),
    ),
    "eps-scale": FindingKind(
        one="the eps of {where} does not fit its input",
        many="the eps of {norms} does not fit their input",
        audit=Raised(
            "warning, info",
            "eps is zero, or large and above the typical variance it stabilises (info: below the smallest "
            "float16 in a half-precision model)",
        ),
    ),
    "spectral-norm-off": FindingKind(
        one="the spectral norm of {where} is not the one it was made for",
        many="the spectral norms of {count} layers are not those they were made for",
        audit=Raised(
            "warning, info",
            "a `spectral_norm` parametrization whose power iteration has not found the norm, or a convolution"
            " whose operator norm is above the one it controls",
        ),
    ),
    "dead-layer": FindingKind(
        one="layer {where} is dead",
        many="{count} layers are dead",
        note=("layer {where} is zero as a whole", "{count} layers are zero as a whole"),
        audit=Raised(
            "warning, info",
            "nothing passes: variances far below eps in every channel, negligible scales, or negligible "
            "weights (info: exactly zero as a whole, an initialisation)",
        ),
        watch=Raised(
            "warning",
            "variances a thousandfold below eps, scales or weights that stay exactly zero, weights that "
            "shrink to nothing, or layers that get no gradient while others do (the one nearest to the output"
            " is named)",
        ),
    ),
    "exploding-run": FindingKind(
        one="the signal explodes from {where} on",
        many="the signal explodes in {count} runs of layers",
        audit=Raised(
            "warning",
            "four or more layers without a normalizer in which the signal grows exponentially with depth; "
            "where they are residual branches the advice is to scale these",
        ),
    ),
    "gradient-explosion": FindingKind(
        one="the gradient of {where} explodes",
        many="the gradients of {count} layers explode",
        audit=Raised(
            "warning",
            "values grow on their way forward, or the gradient on its way back, by a factor per layer: 10^5 "
            "over the network, or 10^2 both ways",
        ),
        watch=Raised(
            "warning, error",
            "the gradient is 10,000 times that of the untrained model for three records, or a layer's, or "
            "that in front of the first block, 10^5 times that at the output (error: NaN or infinite for "
            "long)",
        ),
    ),
    "batch-norm-depth": FindingKind(
        one="the gradient explodes through the BatchNorms",
        audit=Raised(
            "warning",
            "a fresh network in train mode whose BatchNorms, without skips around them, make the gradient "
            "grow a hundredfold or more, with the growth per layer beside [the law of Yang et "
            "al.](networks.md); said instead of `gradient-explosion`",
        ),
    ),
    "no-gradient": FindingKind(
        one="no gradient gets past {where}",
        many="no gradient gets past {count} layers",
        audit=Raised(
            "warning, info",
            "the gradient ends at a layer and is exactly zero before it: zero weights, a ReLU that is never "
            "on, a rounding (info: a last layer that starts at zero)",
        ),
        watch=Raised(
            "warning",
            "a parameter that the optimizer has got no gradient (`grad` is None) in 40 steps or more, and all"
            " records in between",
        ),
    ),
    "saturated-units": FindingKind(
        one="{where} is saturated",
        many="{count} activations are saturated",
        audit=Raised(
            "warning",
            "half of the values of a sigmoid or tanh inside the network lie within 1 % of its limits, or nine"
            " in ten rows of a softmax put 99 % on one entry",
        ),
    ),
    "gradient-vanishing": FindingKind(
        one="the gradient of {where} vanishes",
        many="the gradients of {count} layers vanish",
        audit=Raised(
            "warning",
            "the gradient loses a factor per layer on its way back, 10^-5 and more over the network",
        ),
        watch=Raised(
            "warning",
            "the gradient is gone (10^-5 of the first) though the loss is not, or that of a layer is 10^-5, "
            "in front of the first block 10^-6, of that at the output",
        ),
    ),
    "half-precision": FindingKind(
        one="{where} is close to overflow in half precision",
        many="{count} layers are close to overflow in half precision",
        audit=Raised(
            "warning, info",
            "values within a factor of 4 of the largest float16 or bfloat16, or mostly below the smallest "
            "normal float16, in a model that runs in it (info: a model in float32 that would overflow in "
            "float16)",
        ),
    ),
    "dead-channels": FindingKind(
        one="part of layer {where} is dead",
        many="parts of {count} layers are dead",
        note=("a few channels of {where} carry nothing", "a few channels of {count} layers carry nothing"),
        audit=Raised(
            "warning, info",
            "part of a layer carries nothing: scale zero, filter zero, constant input",
        ),
        watch=Raised(
            "warning",
            "a tenth of the channels has died since the start: constant inputs, negligible scales, zero filters",
        ),
    ),
    "stale-statistics": FindingKind(
        one="the stored statistics do not fit the data, from {where} on",
        many="the stored statistics of {norms} do not fit the data",
        note=("the statistics of {where} were never taken", "the statistics of {norms} were never taken"),
        audit=Raised(
            "warning, info",
            "running statistics disagree with the data, beyond what chance explains (info: never updated)",
        ),
        watch=Raised(
            "warning",
            "the variances of the batches stay at twice or half the running ones, beyond the first 100 steps",
        ),
    ),
    "small-batch": FindingKind(
        one="the batch is too small for {where}",
        many="the batch is too small for {norms}",
        audit=Raised(
            "warning",
            "BatchNorm in train mode with too few values for a variance, or one that moves too much from "
            "batch to batch",
        ),
        watch=Raised(
            "warning",
            "BatchNorm with values so few that a variance is off by sqrt(2/(m-1)) > 0.3, from one or two "
            "samples, or with variances that lie a factor of 1.7 around the running ones; at the first record",
        ),
    ),
    "eps-dominated": FindingKind(
        one="eps outweighs what {where} normalizes",
        many="eps outweighs what {norms} normalize",
        note=("eps outweighs a little of {where}", "eps outweighs a little of what {norms} normalize"),
        audit=Raised(
            "warning, info",
            "a share of the variances below 10 eps",
        ),
    ),
    "dead-relu": FindingKind(
        one="many units of the ReLU in {where} never fire",
        many="many units of {count} ReLUs never fire",
        note=("some units of the ReLU in {where} never fired", "some units of {count} ReLUs never fired"),
        audit=Raised(
            "warning, info",
            "units that were positive for no sample, with the bias just before them if it holds them off; a "
            "ReLU with all units off explains what follows it",
        ),
        watch=Raised(
            "warning",
            "70 % of the units are on for no sample of a batch, and 40 % more than at the start; or all are off",
        ),
    ),
    "expanding-normalizer": FindingKind(
        one="{where} expands what it normalizes",
        many="{norms} expand",
        audit=Raised(
            "info, warning",
            "variances below 1, so that a normalizer with the layer before it expands, and that costs "
            "something: changes at the data grow threefold or more across such layers, and this makes up half"
            " or more (in powers of ten) of a growth of tenfold or more through the network. One finding for "
            "the network (warning: one per normalizer that expands a thousandfold)",
        ),
        watch=Raised(
            "warning",
            "a normalizer with the weights before it expands a thousandfold; once in a run, for the one that "
            "expands most",
        ),
    ),
    "redundant-bias": FindingKind(
        one="the bias of {where} has no effect",
        many="the biases of {count} layers have no effect",
        audit=Raised(
            "info",
            "a bias in front of a normalizer that subtracts it again",
        ),
    ),
    "not-lipschitz": FindingKind(
        one="{where} can amplify some inputs without limit",
        many="{count} parts can amplify some inputs without limit",
        audit=Raised(
            "info",
            "a part that has no finite constant over all inputs, with the reason; [bounds where the data "
            "lives](domain.md) may be finite",
        ),
    ),
    "loose-bound": FindingKind(
        one="there is no useful bound over all inputs",
        audit=Raised(
            "info",
            "the bound over all inputs is finite but more than a millionfold above the largest Jacobian norm "
            "at the data, with the operators that make it so; reports show no figure for it then",
        ),
    ),
    "no-rule": FindingKind(
        one="{where} runs an operator without a rule",
        many="{count} parts run operators without a rule",
        audit=Raised(
            "info",
            "an operator nobody has written a rule for; the bound over all inputs is infinite until someone does",
        ),
    ),
    "steep-activation": FindingKind(
        one="the activation in {where} is steeper than 1",
        many="{count} activations are steeper than 1",
        audit=Raised(
            "info",
            "an activation with slopes above 1 (GELU, SiLU, ...)",
        ),
    ),
    "loss-not-finite": FindingKind(
        one="the loss is no number any more",
        watch=Raised(
            "error",
            "the loss is NaN or infinite (without a loss: weights are); at the next record, and while it is "
            "so no other alarm is raised. The layer is named whose output is the first that is not finite "
            "when the forward is run again on the same batch (for losses that are observed on a CPU or as "
            "numbers), or whose weights alone are broken; where that is not known, none is",
        ),
    ),
    "constant-input": FindingKind(
        one="the samples of a batch are all the same",
        watch=Raised(
            "warning",
            "all samples of three measured batches in a row are the same",
        ),
    ),
    "not-trained": FindingKind(
        one="no optimizer trains {where}",
        many="no optimizer trains {count} layers",
        watch=Raised(
            "warning",
            "a parameter gets gradients for 40 steps or more, the optimizer does not have it, and nobody else"
            " changes it",
        ),
    ),
    "no-zero-grad": FindingKind(
        one="gradients are never cleared",
        watch=Raised(
            "warning",
            "in three records in a row the gradient of the step before was still there when that of the next was added",
        ),
    ),
    "lr-too-high": FindingKind(
        one="the first steps were too large",
        watch=Raised(
            "warning",
            "the loss stays at 90 % of the first or above, after weights grew tenfold, or the loss fourfold "
            "in the first 100 steps, or weights threefold and the loss by half",
        ),
    ),
    "edge-of-stability": FindingKind(
        one="the steps are too long for the curvature",
        watch=Raised(
            "info, warning from twice the edge on",
            "with `sharpness=`: at the last three looks the learning rate times the largest eigenvalue of the"
            " Hessian was above 2",
        ),
    ),
    "left-domain": FindingKind(
        one="the samples leave the domain",
        watch=Raised(
            "warning",
            "with `domain=`: the share of samples outside of the domain stays 20 % of the samples above that "
            "of the start, or at 90 %; the operator that leaves its range most is named",
        ),
    ),
    "variance-collapse": FindingKind(
        one="the variance into {where} collapsed",
        many="the variances into {norms} collapsed",
        watch=Raised(
            "warning",
            "the variance into a normalizer fell a thousandfold, or half of its channels to 10 eps; "
            "sixteenfold suffices where coupled L2 in an adaptive optimizer has halved the scale-invariant "
            "weight before it, and is then named as the cause",
        ),
    ),
    "norm-growth": FindingKind(
        one="the weight of {where} keeps growing",
        many="the weights of {count} layers keep growing",
        watch=Raised(
            "warning",
            "the operator norm of a weight grew thirtyfold and grows on exponentially, or a hundredfold "
            "beyond 1,000; or the product of all norms by tenfold for each layer",
        ),
    ),
    "variance-growth": FindingKind(
        one="the variance into {where} outgrows float16",
        many="the variances into {norms} outgrow float16",
        watch=Raised(
            "warning",
            "the largest variance into a normalizer grew ten-thousandfold beyond 10^8, where float16 overflows",
        ),
    ),
    "effective-lr": FindingKind(
        one="the steps of {where} have the wrong size",
        many="the steps of {count} layers have the wrong size",
        watch=Raised(
            "warning",
            "a step turns scale-invariant weights by less than 10^-6 radians though the loss is not fitted "
            "and the schedule not over, or by more than 0.5; 10^-5 and 0.2 suffice where the effective "
            "learning rate has moved a hundredfold beyond the schedule",
        ),
    ),
    "loss-rising": FindingKind(
        one="the loss rises",
        watch=Raised(
            "warning",
            "the loss stays at ten times its first values: training makes the model worse",
        ),
    ),
    "loss-spike": FindingKind(
        one="the loss jumped",
        watch=Raised(
            "warning",
            "the loss of one step, measured or not, is far above all in the 64 records before (after the "
            "first 100 steps): by half of the first loss, by ten times their usual spread, and half as far "
            "again as the largest of them; with its step",
        ),
    ),
    "eval-mode": FindingKind(
        one="the model is trained in eval mode",
        watch=Raised(
            "warning",
            "the optimizer takes three steps and every forward in between is in eval mode",
        ),
    ),
    "not-seen": FindingKind(
        one="the watcher sees nothing of the training",
        watch=Raised(
            "warning",
            "three steps without a forward that is seen (a compiled function around the model, a copy of it);"
            " or weights that change while neither a forward nor a step is seen",
        ),
    ),
}
"""By code, in the order of the list in the documentation."""
