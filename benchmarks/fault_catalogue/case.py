"""The records of the catalogue and its two vocabularies: causes and remedies.

A diagnosis of a fault is right if it gives one of the fault's causes, names one of its layers (where it has any), and
if the first remedy that it advises is one of the fault's remedies. A diagnosis of a healthy model is right if it is
empty.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

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
        optimizer: The optimizer that the user hands over, if any.
    """

    model: nn.Module
    data: Any
    loss: Loss | None = None
    train: bool = True
    objective: Callable[[Any], Tensor] | None = None
    judge: Callable[[Any], float] | None = None
    optimizer: Optimizer | None = None

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
    register: list[Fault], family: str, *, causes: str, remedies: str, source: str = "", layers: str = ""
) -> Callable[[Callable[[bool], Case]], Callable[[bool], Case]]:
    """Register the decorated builder, which takes whether to plant the fault; keys and names are split at spaces.

    Without `source`, the builder's docstring says where people make this mistake.
    """

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
                source=source or build.__doc__ or "",
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
    "labels-wrong": "The labels belong to other samples, or their classes are numbered differently.",
    "loss-gradient-zero": "The gradient of the loss with respect to the outputs is exactly zero.",
    "padding-counted": "Padding is read like data: it is averaged, attended to or fed to a recurrence.",
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
    "dropout-misplaced": "Dropout acts on the outputs themselves.",
    "bottleneck-too-narrow": "A layer is too narrow to hand on what the later layers need.",
    # structure
    "no-gradient": "A detach, no_grad, argmax or rebuilt tensor cuts the gradient off.",
    "unused-parameter": "A parameter takes no part in the output.",
    "unregistered-parameter": "A layer or weight is kept in a list, dict or plain tensor that the model does not own.",
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
    # the optimizer
    "not-in-optimizer": "The optimizer that was handed over does not hold some parameters of the model.",
    "learning-rate-too-large": "Steps of the optimizer are so large that they destroy what was learnt.",
    "learning-rate-too-small": "Steps of the optimizer are so small that nothing is learnt in reasonable time.",
    "momentum-too-large": "The momentum sums up so many gradients that steps overshoot.",
    "weight-decay-too-strong": "Weight decay pulls the weights to zero faster than the loss can hold them.",
    "optimizer-ascends": "The optimizer makes the loss larger.",
    # attention and recurrence
    "future-visible": "A model that predicts what comes next can see it.",
    "attention-saturated": "Attention logits are so large that each row looks at one entry.",
    "attention-mask-wrong": "An attention mask hides what should be seen.",
    "recurrent-weights-explode": "A recurrent weight makes states or gradients grow over time steps.",
    "recurrent-weights-vanish": "A recurrent weight or gate makes the state forget its past within few steps.",
}


def _advice(*alternatives: str) -> re.Pattern[str]:
    """Compile alternatives; `~` stands for some words of the same sentence, `<name>` for a group of `_WORDS`."""
    pattern = "|".join(alternatives)
    for name, words in _WORDS.items():
        pattern = pattern.replace(f"<{name}>", f"(?:{words})")
    return re.compile(pattern.replace("~", r"(?:[^.;:]|\.(?=\w)){0,90}?"), re.IGNORECASE)


_WORDS = {
    "data": r"\b(?:inputs?|data|columns?|features?|pixels?|images?|batch|samples?|x)\b",
    "targets": r"\b(?:targets?|labels?|y)\b",
    "normalise": r"(?:standardi[sz]|normali[sz]|scal|whiten|cent(?:er|r)|divid)(?:e|ing|ed)?\b(?! the weight)",
    "remove": r"\b(?:remov|drop|delet|omit|avoid)\w*|(?:leav|tak)(?:e|ing)(?: \w+)? (?:out|away)|without|do not",
    "add": r"\b(?:add|insert|put|plac|us|giv|introduc)(?:e|ing|s)?\b",
    "change": r"\b(?:replac|switch|chang|swap|try|prefer|choos|tak|us(?=[ei])|train with)\w*",
    "lower": r"\b(?:lower|reduc|decreas|small|shrink|less|cut|default)\w*",
    "norm": r"(?:batch|layer|group|instance|rms|weight)[ -]?norm\w*|normali[sz]er|normali[sz]ation",
    "activation": r"activations?\b|non-?linearit\w+|\b(?:leaky ?|p)?relu\b|\b(?:gelu|silu|swish|s?elu|tanh|softplus)\b",
    "look": r"\b(?:check|look at|inspect|print|examin|verif)\w*",
    "decay": r"weight[- _]decay|regulari[sz]ation",
    "rate": r"learning rate|\blr\b|step size",
    "statistics": r"running\b|running_|statistics|buffers?\b|moving average",
    "renew": r"\b(?:re-?comput|re-?estimat|estimat|refresh|updat|re-?set|re-?calibrat|load|collect|re-?fit)\w*",
}

REMEDIES: dict[str, re.Pattern[str]] = {
    # the data
    "scale-inputs": _advice(
        r"<normalise>~<data>",
        r"\b255\b",
        r"<data>~\b(?:scale|divide)\b",
        r"log(?:arithm)?[- ]transform~<data>",
        r"one-hot",
        r"subtract\w* the mean and divid",
    ),
    "clean-data": _advice(
        r"\b(?:clean|imput|fill|replac|drop|remov|filter)\w*~(?:\bnan\b|missing|non-?finite|infinite)",
        r"nan_to_num|isfinite|clean the (?:data|batch|inputs?)|missing values",
    ),
    "check-data": _advice(
        r"(?:<look>|\bfix\b)~(?:data ?set|\bdata\b|loader|loading|pipeline|preprocess|images?\b|inputs?\b)"
    ),
    # the targets and the loss
    "remove-final-activation": _advice(
        r"<remove>~(?:soft-?max|sigmoid|tanh|relu|clamp|(?:last|final|output) activation|normali[sz]\w+ of the output)",
        r"\b(?:pass|give|feed|return|use|hand)\b~(?:\braw\b|unnormali[sz]ed|\blogits)",
        r"\blogits (?:directly|themselves|instead)",
        r"linear (?:output|last|final)|\bend\b~\blinear",
        r"\btake\b~(?:soft-?max|sigmoid|tanh|relu)\b~\b(?:out|away|off)\b",
        r"(?:output|last|final)~\b(?:be linear|without (?:an )?activation)",
    ),
    "change-loss": _advice(
        r"<change>~(?:loss\b|loss\(|cross[- _]?entropy|\bbce|\bnll|\bmse|hinge|with_?logits|kl_?div|log_target)"
    ),
    "change-output-activation": _advice(
        r"(?:<change>|\bappl\w+)~(?:log_?-? ?soft-?max|sigmoid)~(?:instead|output|in place|loss)",
        r"replac\w+~soft-?max~(?:with|by)~(?:sigmoid|log)",
        r"log(?:arithm)? of the (?:softmax|probabilit)|log[- ]probabilit",
    ),
    "more-outputs": _advice(
        r"(?:one|an) (?:output|unit|logit)s? (?:unit )?(?:per|for each|for every) class",
        r"\b(?:two|2|several|more|as many) (?:outputs?|logits|units)\b",
    ),
    "scale-outputs": _advice(
        r"temperature", r"\b(?:multipl|scal|widen|stretch)\w*~\b(?:outputs?|logits|similarit\w+|cosines?)\b"
    ),
    "scale-targets": _advice(
        r"<normalise>~<targets>", r"log(?:arithm)?\b~<targets>", r"<targets>~\bdivid", r"\(y - (?:y\.)?mean"
    ),
    "fix-targets": _advice(
        r"\b(?:map|convert|encod|recod|bring|shift|clip|mov|chang|mak)\w*~<targets>|divid\w*~\bmasks?\b",
        r"<targets> (?:of )?(?:-1|0) (?:and|or|to)",
        r"<targets>~\b(?:between|in|from|within|be)\b~(?:-1|0|\[)",
        r"<targets>~\b(?:range|interval)",
    ),
    "match-shapes": _advice(
        r"squeeze|(?:same|one|equal) shape|view_as|match~shapes?\b|shapes? (?:equal|agree|match)",
        r"\b(?:reshape|flatten|view)\b~(?:targets?|outputs?|labels?|predictions?)",
    ),
    "balance-classes": _advice(
        r"class[- _]?weights?|weight(?:ed|s|ing)?~\b(?:class|rare)|rare~\bweight|weighted ?random",
        r"\b(?:over|under|re)-?sampl|pos_weight|stratif|focal|\bbalanc",
    ),
    "shift-targets": _advice(r"\bshift|next token|\[:, 1:\]|one (?:step|place|token) (?:later|ahead|on)"),
    "mask-padding": _advice(
        r"\bpack_padded|\bpack\b|padding_mask|attention_mask|\bmask\w*~\bpad|\bpad\w*~\bmask|padding_idx",
        r"\b(?:ignor|skip|leave out|exclud|trim|shorten|without)\w*~\bpad",
        r"\bpad\w*~\b(?:left|shorter|less|ignor|exclud)",
    ),
    "check-labels": _advice(r"(?:<look>|\bshuffl\w*|\bmix\w*)~(?:<targets>|\bclasses\b|data ?set|loader|batch)"),
    # weights and signal
    "initialise": _advice(
        r"initiali[sz]|\b(?:re-?)?init\b|nn\.init|kaiming|xavier|glorot|\bhe init|orthogonal|lecun|reset_parameters",
        r"random (?:values|weights|numbers|distribution)|at random|symmetry",
    ),
    "rescale-layer": _advice(
        r"\b(?:re-?scal|scal|divid|multipl|shrink)\w*~(?:\bweights?\b|\blayer\b(?! norm)|`\w+`)(?! decay)",
        r"\b(?:re-?scal|scal|divid|multipl|shrink)\w*~(?:\bembeddings?\b|\bgains?\b|kernel)",
        r"\bweights?\b~(?:\bsmaller|\blarger|size of)",
        r"<lower>~(?:\bweights?\b(?![- _]decay)|\bembedding|\bgain|standard deviation|\bstd\b)",
    ),
    "change-activation": _advice(r"<change>~(?:<activation>)(?!~\bbetween)", r"non-?saturating|leaky"),
    "add-activation": _advice(
        r"\b(?:add|insert|put|plac)\w*~(?:<activation>)~\b(?:between|after|behind)",
        r"\b(?:between|after)\b~\b(?:add|insert|put|plac)\w*~(?:<activation>)",
        r"\b(?:merge|fold|collapse)\b~(?:layers?|maps?)\b|missing activation",
    ),
    "add-normalizer": _advice(r"<add>~(?:<norm>)", r"(?:<norm>) (?:after|before|between)"),
    "add-skip": _advice(r"skip[- ]connection|residual connection|shortcut|highway"),
    "scale-branch": _advice(
        r"\b(?:scal|multipl|divid|shrink|weigh|damp)\w*~(?:branch|residual|summand)|layer-?scale|re-?zero|fixup",
        r"(?:branch|residual)~(?:factor|scale|1/sqrt)",
    ),
    "lower-learning-rate": _advice(r"<lower>~(?:<rate>)|(?:<rate>)~<lower>|warm-?up"),
    "clip-gradients": _advice(r"\bclip\w*~(?:grad|norm)|grad\w*~\bclip"),
    "restore-weights": _advice(
        r"\b(?:restor|re-?load|roll back|go back|load)\w*~(?:checkpoint|weights?\b|\bstate)",
        r"(?:earlier|older|previous|last good) checkpoint|retrain|\btrain\b~\b(?:again|anew)",
    ),
    "raise-learning-rate": _advice(
        r"\b(?:rais|increas|larg|high)\w*~(?:<rate>)|(?:<rate>)~\b(?:larger|higher|rais|increas)"
    ),
    "lower-momentum": _advice(r"<lower>~\bmomentum|\bmomentum\b~(?:<lower>|0\.9\b)"),
    "minimise": _advice(r"maximi[sz]e|\bsign\b|minus|\bminimi[sz]|descen[dt]"),
    "lower-weight-decay": _advice(r"(?:<lower>|<remove>)~(?:<decay>)|(?:<decay>)~<lower>"),
    "reset-bias": _advice(
        r"\b(?:re-?set|rais|set|zero|increas|start|lower|initiali[sz]|chang|remov)\w*~\bbias(?:es)?\b",
        r"\bbias(?:es)?\b.{0,40}\b(?:to|at|of|near) (?:0|zero|a small)",
    ),
    "lower-dropout": _advice(r"(?:<lower>|<remove>)~dropout|dropout~(?:<lower>|0\.[0-5])"),
    # structure
    "keep-gradient": _advice(
        r"<remove>~(?:detach|no_grad|inference_mode|\.data\b|\.item|numpy|tolist|torch\.tensor)",
        r"straight-through|gumbel|differentiable|soft (?:choice|version|assignment)|\b(?:stay|keep)\b~\bgraph",
        r"soft-?max~instead of~argmax|reentrant|\bbackward\b~(?:return|function)|<remove>~(?:argmax|\.long|round)",
    ),
    "use-parameter": _advice(
        r"\b(?:use|call|apply|add)\b~\bforward\b|\bforward\b~\b(?:use|call|apply)\b|\bor (?:remove|delete) (?:it|them)",
        r"\b(?:remove|delete|drop)\b~\b(?:it|layer|parameters?|module)\b~\b(?:from the model|if|altogether)\b",
    ),
    "register-parameter": _advice(
        r"ModuleList|ModuleDict|ParameterList|ParameterDict|nn\.Parameter|\bregister|add_module"
    ),
    "add-to-optimizer": _advice(
        r"\b(?:add|give|pass|hand|put|include)\w*~(?:\bparameters?\b|\bthem\b|\bit\b)~\boptimi[sz]er",
        r"\boptimi[sz]er~(?:model\.parameters|add_param_group|\ball (?:the |its )?parameters)|add_param_group",
    ),
    "widen-layer": _advice(r"\b(?:widen|wider|more (?:units|channels|outputs|features)|larger width)\b"),
    "fewer-layers": _advice(r"\b(?:fewer|less) (?:\w+ )?(?:layers|rounds|hops)|shallower|jumping knowledge"),
    "unfreeze": _advice(r"unfreez|requires_grad"),
    "fix-axis": _advice(r"\b(?:dims?|axis|axes|dimensions?)\b|batch_first|\bpermut|transpos|start_dim|flatten\(1\)"),
    "restore-condition": _advice(
        r"(?:\bcondition\w*|\btime\b|\blabels? embedding)~(?:factor|multipl|zero|switched|\bscale|influence)",
        r"\b(?:factor|multipl|scale)\w*~(?:\bcondition|\btime\b|\blabels? embedding)|no influence|has no effect",
    ),
    "guard-domain": _advice(
        r"\badd\b~(?:\beps\b|epsilon|small (?:constant|number|value|positive))|\bclamp|log1p|logsumexp|hypot",
        r"\b(?:before|inside|under)\b~(?:\blog\b|logarithm|\broot|sqrt|\bdivision|\bdividing)|<change>~log_?softmax",
        r"keep~positive|denominator|1e-\d+ (?:to|inside|under|before)|\blog\([^)]*\+",
    ),
    "raise-precision": _advice(
        r"float32|fp32|bfloat16|bf16|(?:full|single|double|higher|mixed) precision|\.float\(\)",
        r"grad-?scaler|loss scal|scal\w+ the loss|autocast",
    ),
    # normalizers
    "larger-batch": _advice(
        r"\b(?:larg|bigg|more|increas|rais)\w*~(?:\bbatch|\bsamples\b|\bvalues\b)",
        r"\d+ (?:samples|values)\b|\bbatch(?:es)?(?: size)?~\b(?:of|least|larger|bigger)\b~\d|accumulat",
    ),
    "replace-normalizer": _advice(
        r"<change>~(?:group|layer|instance|rms|batch)[- ]?norm",
        r"(?:group|layer|instance|rms)[- ]?norm\w* instead|<remove>~(?:<norm>)|fewer groups|\btake~(?:<norm>) out",
    ),
    "refresh-statistics": _advice(
        r"<renew>~(?:<statistics>)|(?:<statistics>)~<renew>|momentum|\bbatches\b~train mode|train mode~\bbatches\b"
    ),
    "lower-eps": _advice(r"<lower>~\beps(?:ilon)?\b|\beps(?:ilon)?\b~(?:<lower>|1e-|below)"),
    "switch-mode": _advice(
        r"\.train\(|\.eval\(|(?:train|eval) mode|training=|self\.training",
        r"\b(?:switch|put|set|bring)\b~(?:training|evaluation|inference) mode",
    ),
    # attention and recurrence
    "scale-attention": _advice(
        r"sqrt\(|1/sqrt|square root|\b(?:qk|query|queries|keys?)\b~norm|qk-?norm|normali[sz]e~\bquer",
        r"\b(?:scal|divid|cap)\w*~(?:\battention|\blogits|\bscores|\bquer|\bkeys?\b|dot product)",
    ),
    "fix-mask": _advice(
        r"\b(?:invert|check|fix|correct|chang|flip|negat|look at|pass|allow|let|use|add|set|appl)\w*~mask",
        r"mask~(?:visible|inverted)|is_causal",
    ),
    "gated-recurrence": _advice(
        r"<change>~\b(?:lstm|gru|gated)|spectral radius|identity (?:matrix|recurren)|\bshorter sequences|truncat"
    ),
    "carry-state": _advice(
        r"\b(?:pass|carry|hand|keep|feed|give)\w*~\b(?:hidden )?states?\b|states?~\b(?:next|from step to)"
    ),
    "read-last-step": _advice(r"\[:, -1\]|\b(?:last|final) (?:time )?(?:step|state|output)\b"),
    "use-one-direction": _advice(r"bidirectional|\bone direction|unidirectional|(?:second|backward) direction"),
    "forget-bias": _advice(r"forget[- ]gate|forget bias|\bgates?\b~\bbias|\bbias\b~\bgates?\b"),
}
