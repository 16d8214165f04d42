"""The records of the catalogue and its two vocabularies: causes and remedies.

A diagnosis of a fault is right if it gives one of the fault's causes, names one of its layers (where it has any), and if
the first remedy that it advises is one of the fault's remedies. A diagnosis of a healthy model is right if it is empty.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

Loss = str | nn.Module | Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and a batch, as a user hands them over.

    Attributes:
        model: The model, in the mode that `train` says.
        data: A tensor of inputs, a pair (inputs, targets), or a dict of the keyword arguments of `forward`.
        loss: The loss that the user names: None, the name of a loss, or `loss(output, target)`.
        train: Whether the model is handed over in train mode.
        objective: What training minimises, as a function of the output, where `loss` is None.
        judge: How good an output is (larger is better) where neither accuracy nor explained variance fits.
    """

    model: nn.Module
    data: Any
    loss: Loss | None = None
    train: bool = True
    objective: Callable[[Any], Tensor] | None = None
    judge: Callable[[Any], float] | None = None

    def __post_init__(self) -> None:
        self.model.train(self.train)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A planted fault and what counts as its right diagnosis.

    Attributes:
        name: The name of the case.
        family: The kind of network.
        build: Builds the faulty case, the same one each time.
        mend: Builds the same case without the fault.
        causes: Keys of `CAUSES`; any one of them counts.
        layers: Names of modules or parameters, one of which must be named; empty if no one layer is at fault.
        remedies: Keys of `REMEDIES`; any one of them counts as the first remedy.
        source: Where people make this mistake.
    """

    name: str
    family: str
    build: Callable[[], Case]
    mend: Callable[[], Case]
    causes: frozenset[str]
    layers: tuple[str, ...]
    remedies: frozenset[str]
    source: str


@dataclass(frozen=True, kw_only=True)
class Healthy:
    """A model with nothing wrong."""

    name: str
    family: str
    build: Callable[[], Case]


def fault(
    register: list[Fault], *, family: str, causes: str, remedies: str, source: str, layers: str = ""
) -> Callable[[Callable[[bool], Case]], Callable[[bool], Case]]:
    """Register the decorated builder, which takes whether to plant the fault; keys and names are split at spaces."""

    def add(build: Callable[[bool], Case]) -> Callable[[bool], Case]:
        register.append(
            Fault(
                name=build.__name__.replace("_", "-"),
                family=family,
                build=partial(build, True),
                mend=partial(build, False),
                causes=frozenset(causes.split()),
                layers=tuple(layers.split()),
                remedies=frozenset(remedies.split()),
                source=source,
            )
        )
        return build

    return add


def healthy(register: list[Healthy], *, family: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register the decorated builder of a healthy model."""

    def add(build: Callable[[], Case]) -> Callable[[], Case]:
        register.append(Healthy(name=build.__name__.replace("_", "-"), family=family, build=build))
        return build

    return add


CAUSES: dict[str, str] = {
    # the data
    "inputs-not-scaled": "The inputs are far larger or smaller than about 1, or far from centred.",
    "one-input-column-dominates": "A few input columns are so much larger than the others that these do not count.",
    "inputs-constant": "The inputs are zero, or the same for every sample.",
    "not-finite-data": "The batch holds NaN or infinite values.",
    # the targets and the loss
    "softmax-twice": "A softmax or sigmoid stands before a loss that applies one itself.",
    "activation-before-loss": "The last activation keeps the output from the values that the loss or the targets need.",
    "output-range-too-small": "The outputs are confined to a range in which the loss cannot become small.",
    "loss-does-not-fit": "The loss is not meant for these outputs and targets.",
    "targets-out-of-range": "Some targets lie outside of what the outputs or the loss can reach or accept.",
    "targets-wrong-scale": "The targets are far larger or smaller than the outputs of a fresh network.",
    "shapes-broadcast": "The shapes of outputs and targets differ, and broadcasting compares each with each.",
    "class-imbalance": "Almost all of the labels belong to one class.",
    "labels-constant": "All of the labels are the same.",
    "loss-gradient-zero": "The gradient of the loss with respect to the outputs is exactly zero.",
    # signal and gradient over the depth
    "vanishing-gradient": "Gradients shrink from layer to layer until early layers hardly learn.",
    "exploding-gradient": "Gradients grow from layer to layer until steps destroy what was learnt.",
    "vanishing-signal": "Values shrink from layer to layer until outputs hardly depend on the input.",
    "exploding-signal": "Values grow from layer to layer.",
    "layer-scale-stands-out": "The weights of one layer are far larger or smaller than those of its neighbours.",
    "branch-dominates": "One summand (a branch, an embedding) is so large that the other is lost beside it.",
    # weights
    "constant-initialisation": "All weights of a layer are equal, so that its units stay copies of each other.",
    "zero-weights": "The weights (or gains) of a layer are zero or have decayed to almost zero.",
    "rank-one-weights": "The rows of a weight are multiples of each other.",
    "not-finite-weights": "A parameter or buffer holds NaN or infinite values.",
    # units
    "dead-units": "Units are zero for every sample and receive no gradient.",
    "bias-holds-units-off": "A large negative bias keeps units at zero.",
    "saturated-units": "Units stand in the flat part of their activation, where the gradient is almost zero.",
    "activation-unsuitable": "The activation of a hidden layer is one that does not suit hidden layers.",
    "missing-activation": "Linear layers follow each other without an activation between them.",
    "dropout-too-strong": "Dropout removes almost everything.",
    # structure
    "no-gradient": "A detach, no_grad, argmax or rebuilt tensor cuts the gradient off.",
    "unused-parameter": "A parameter takes no part in the output.",
    "frozen-layer": "A layer does not learn because its parameters require no gradient.",
    "samples-mixed": "The output of one sample depends on the other samples of the batch.",
    "output-constant": "The output is (almost) the same for every sample.",
    "condition-switched-off": "An input that should steer the network has (almost) no influence.",
    "not-finite": "Some operation inside produces NaN or infinite values.",
    "gradient-not-finite": "Values are finite but the gradient is NaN or infinite.",
    "precision": "Values leave the range of the number format, or drown in its rounding.",
    # normalizers
    "wrong-mode": "Some part is in train mode while it should be in eval mode, or the other way around.",
    "running-statistics-wrong": "Running statistics do not describe the data that arrives.",
    "normalizer-too-few-samples": "A normalizer estimates its statistics from too few values.",
    "normalizer-wrong-axis": "A normalizer or softmax works over the wrong axis.",
    "normalizer-erases-signal": "A normalizer takes away just what the next layer reads.",
    "eps-dominates": "The eps of a normalizer is large beside the variance that it is added to.",
    # attention and recurrence
    "attention-saturated": "Attention logits are so large that each row looks at one entry.",
    "attention-mask-wrong": "An attention mask hides what should be seen.",
    "recurrent-weights-explode": "A recurrent weight makes states or gradients grow over time steps.",
    "recurrent-weights-vanish": "A recurrent weight or gate makes the state forget its past within few steps.",
}


def _advice(*alternatives: str) -> re.Pattern[str]:
    """Compile alternatives; `~` stands for a few words of the same sentence."""
    return re.compile("|".join(alternatives).replace("~", r"[^.;:]{0,90}?"), re.IGNORECASE)


_DATA = r"(?:inputs?|data|columns?|features?|pixels?|images?|batch|samples?|x)\b"
_TARGETS = r"(?:targets?|labels?|y)\b"
_NORMALISE = r"(?:re-?)?(?:standardi[sz]|normali[sz]|scal|whiten|cent(?:er|r)|divid)(?:e|ing|ed)?\b"
_REMOVE = r"(?:remov|drop|delet|omit|leav(?:e|ing)(?: \w+)? (?:out|away)|tak(?:e|ing)(?: \w+)? (?:out|away)|without|avoid|no need)"
_ADD = r"(?:add|insert|put|plac|us(?:e|ing)|giv|introduc|plac)(?:e|ing)?\b"
_NORMALIZER = r"(?:(?:batch|layer|group|instance|rms|weight)[ -]?norm\w*|normali[sz]er|normali[sz]ation(?: layers?)?)"
_ACTIVATION = r"(?:activations?|non-?linearit\w+|(?:leaky ?|p)?relu|gelu|silu|swish|elu|selu|tanh|softplus)\b"
_LOWER = r"(?:lower|reduc|decreas|small|shrink|less|cut)\w*"

REMEDIES: dict[str, re.Pattern[str]] = {
    # the data
    "scale-inputs": _advice(
        rf"{_NORMALISE}~\b{_DATA}(?! of the)", r"\b255\b", r"log(?:arithm)?[- ](?:transform|scale)~column", r"one-hot"
    ),
    "clean-data": _advice(
        r"(?:clean|imput|fill|replac|drop|remov|mask|filter)\w*~(?:nan|missing|non-?finite|infinite)",
        r"nan_to_num|isfinite|clean the (?:data|batch|inputs?)",
    ),
    "check-data": _advice(
        r"(?:check|look at|inspect|print|examine|verify|fix)~(?:data ?set|data|loader|loading|pipeline|preprocess\w*|images?|inputs?)\b"
    ),
    # the targets and the loss
    "remove-final-activation": _advice(
        rf"{_REMOVE}\w*~(?:soft-?max|sigmoid|log_softmax|tanh|relu|clamp|(?:last|final|output) activation)",
        r"(?:pass|give|feed|return|use|hand)~(?:raw|unnormali[sz]ed|logits)",
        r"\blogits (?:directly|themselves|instead)",
        r"linear (?:output|last|final)",
        r"(?:output|last|final)~\b(?:linear|without (?:an )?activation)",
    ),
    "change-loss": _advice(
        r"(?:\buse|switch|chang\w+|replac\w+|choos\w+|tak\w+|try|train with|pass|set)~(?:loss\b|cross[- _]?entropy|bce\w*|nll\w*|mse\w*|hinge|with_?logits|kl_?div\w*|log_target)"
    ),
    "change-output-activation": _advice(
        r"(?:replac|us|chang|switch)\w*~(?:log_?-?softmax|sigmoid)~(?:instead|output|for softmax|in place)",
        r"(?:take|apply|add)~(?:the )?log\b~softmax",
        r"replace ~softmax~(?:with|by)~(?:sigmoid|log_?-?softmax)",
    ),
    "more-outputs": _advice(
        r"(?:two|several|more|as many|\bn(?:um)?_?classes|one) (?:outputs?|units?|logits?)\b~class",
        r"one (?:output|unit|logit) (?:per|for each) class",
        r"(?:two|2|several|more) (?:outputs?|logits)\b",
    ),
    "scale-outputs": _advice(
        r"temperature",
        r"(?:multiply|scale|widen|stretch)~(?:outputs?|logits|similarit\w+|cosines?)\b",
    ),
    "scale-targets": _advice(rf"{_NORMALISE}~\b{_TARGETS}", rf"log(?:arithm)?~\b{_TARGETS}"),
    "fix-targets": _advice(
        rf"(?:map|convert|encod|recod|bring|shift|clip|mov|chang|mak)\w*~\b{_TARGETS}",
        rf"{_TARGETS}~(?:between|in|from|to|within)~(?:-1|0|\[)",
        rf"{_TARGETS}~(?:range|interval)",
    ),
    "match-shapes": _advice(
        r"(?:un)?squeeze|same shape|(?:reshape|flatten|view)~(?:targets?|outputs?|labels?|predictions?)|match~shapes?\b|shapes? (?:equal|agree|match)"
    ),
    "balance-classes": _advice(
        r"class[- _]?weights?|weight(?:ed|s|ing)?~\b(?:class|rare)|(?:over|under|re)-?sampl|pos_weight|stratif|focal|balanc"
    ),
    "check-labels": _advice(
        rf"(?:check|look at|inspect|shuffl|print|verify|mix|draw)\w*~(?:{_TARGETS}|classes|data ?set|loader|batch)",
    ),
    # weights and signal
    "initialise": _advice(
        r"(?:re-?)?\binitiali[sz]|\b(?:re-?)?init\b|nn\.init|kaiming|xavier|glorot|\bhe init|orthogonal|lecun|reset_parameters|random (?:values|weights|numbers)|symmetry"
    ),
    "rescale-layer": _advice(
        rf"(?:re-?scal|scal(?:e|ing) (?:down|up|back)|divid|multipl|shrink|{_LOWER}|scale)\w*~(?:weights?|layer|embeddings?|gains?|kernel|factor|norm|std|standard deviation)\b(?! decay)",
    ),
    "change-activation": _advice(
        rf"(?:replac|switch|chang|swap|try|prefer|(?<!be)us(?=[ei]))\w*~{_ACTIVATION}", r"non-?saturating|leaky"
    ),
    "add-activation": _advice(
        rf"{_ADD}~{_ACTIVATION}~(?:between|after|behind)",
        rf"(?:between|after)~{_ADD}~{_ACTIVATION}",
        r"(?:merge|fold|collapse|one linear)~(?:layers?|maps?)\b",
        r"missing activation",
    ),
    "add-normalizer": _advice(rf"{_ADD}~{_NORMALIZER}", rf"{_NORMALIZER} (?:after|before|between)"),
    "add-skip": _advice(r"skip[- ]connection|residual connection|shortcut|highway|resnet"),
    "scale-branch": _advice(
        r"(?:scal|multipl|divid|shrink|weigh|damp|factor)\w*~(?:branch|residual|summand)|layer-?scale|re-?zero|fixup|(?:branch|residual)~(?:factor|scale|1/sqrt)"
    ),
    "lower-learning-rate": _advice(
        rf"{_LOWER}~(?:learning rate|\blr\b|step size)|warm-?up|(?:learning rate|\blr\b)~{_LOWER}"
    ),
    "clip-gradients": _advice(r"clip\w*~(?:grad|norm)|(?:grad\w*)~clip"),
    "restore-weights": _advice(
        r"(?:restor|reload|re-load|roll back|go back|load)\w*~(?:checkpoint|weights?|state|file)|(?:earlier|older|previous|last good) checkpoint|retrain|train~(?:again|anew)"
    ),
    "lower-weight-decay": _advice(
        rf"{_LOWER}~(?:weight[- _]decay|regulari[sz])|(?:weight[- _]decay|regulari[sz]ation)~{_LOWER}|{_REMOVE}\w*~weight[- _]decay"
    ),
    "reset-bias": _advice(
        r"(?:re-?set|rais|set|zero|increas|start|lower|initiali[sz]|chang|remov)\w*~\bbias(?:es)?\b",
        r"\bbias(?:es)?\b~(?:to|at|of|near) (?:0|zero|a small)",
    ),
    "lower-dropout": _advice(rf"{_LOWER}~dropout|dropout~(?:{_LOWER}|0\.[1-5])|{_REMOVE}\w*~dropout|keep~more"),
    # structure
    "keep-gradient": _advice(
        rf"{_REMOVE}\w*~(?:detach|no_grad|inference_mode|\.data\b|\.item|numpy|tolist|torch\.tensor)",
        r"straight-through|gumbel|differentiable|soft (?:choice|version|assignment)|stay~graph|keep~graph|(?:use|take)~(?:soft-?max|the probabilities)~instead of~argmax",
    ),
    "use-parameter": _advice(
        r"(?:use|call|apply|add)\b~(?:in (?:the )?forward|forward)|forward~(?:use|call|apply)|(?:remove|delete|drop)\b~(?:it|layer|parameters?|module)\b~(?:from the model|if|or|altogether|$)|or (?:remove|delete) (?:it|them)"
    ),
    "unfreeze": _advice(r"unfreez|requires_grad"),
    "fix-axis": _advice(
        r"\b(?:dim|axis|axes|dimensions?)\b|batch_first|permut|transpos|start_dim|flatten\(1\)|keep~(?:batch|first|sample)"
    ),
    "restore-condition": _advice(
        r"(?:condition\w*|time|label|class|embedding|input)~(?:factor|multipl|zero|switched|scale|influence|weight)",
        r"(?:factor|multipl|scale|weight)\w*~(?:condition|time|label|embedding)",
    ),
    "guard-domain": _advice(
        r"(?:add|use|put)~(?:eps\b|epsilon|small (?:constant|number|value|positive))|clamp|log1p|log_?softmax|logsumexp|hypot|(?:before|inside|under)~(?:the )?(?:log\b|logarithm|root|sqrt|division)|positive"
    ),
    "raise-precision": _advice(
        r"float32|fp32|bfloat16|bf16|full precision|single precision|\.float\(\)|grad-?scaler|loss scal|autocast|mixed precision|higher precision"
    ),
    # normalizers
    "larger-batch": _advice(
        r"(?:larg|bigg|more|increas|rais|least)\w*~(?:batch|samples|values)|batch(?:es)?(?: size)?~(?:of|at least|larger|bigger) ~\d|accumulat"
    ),
    "replace-normalizer": _advice(
        r"(?:use|replace|switch|chang\w+|try|take|prefer)~(?:group|layer|instance|rms|batch)[- ]?norm",
        rf"(?:group|layer|instance|rms)[- ]?norm\w* instead|{_REMOVE}\w*~{_NORMALIZER}|fewer groups",
    ),
    "refresh-statistics": _advice(
        r"(?:re-?comput|re-?estimat|refresh|updat|re-?set|re-?calibrat|load|collect|let|momentum|fit|re-?fit)\w*~(?:running|statistics|running_mean|running_var|buffers?|moving averages?)",
        r"(?:running|statistics|buffers?)~(?:re-?comput|re-?estimat|refresh|updat|re-?set|load)",
        r"momentum|(?:few|some|training) (?:batches|steps|passes)~train mode|train mode~(?:batches|data)",
    ),
    "lower-eps": _advice(rf"{_LOWER}~\beps(?:ilon)?\b|\beps(?:ilon)?\b~(?:{_LOWER}|1e-|default)|default eps"),
    "switch-mode": _advice(
        r"\.train\(|\.eval\(|(?:switch|put|set|call|bring)~(?:train|eval|training|evaluation|inference)\b~mode|(?:train|eval) mode"
    ),
    # attention and recurrence
    "scale-attention": _advice(
        r"sqrt|square root|(?:qk|query|key)~norm|(?:scale|divide|cap|temper)\w*~(?:attention|logits|scores|quer|keys?\b|dot product)"
    ),
    "fix-mask": _advice(r"\bmask"),
    "gated-recurrence": _advice(
        r"(?:\buse|try|switch|replace)~(?:lstm|gru|gated)|spectral radius|identity (?:matrix|recurren)|shorter|truncat"
    ),
    "forget-bias": _advice(r"forget[- ]gate|forget bias|(?:gate)~bias|bias~gate"),
}
