"""The records of the catalogue of runs and its vocabularies: causes, how a story tells them, and remedies.

An alarm is right if it tells one of the fault's causes and names one of its layers (where it has any); its advice is
right if it holds one of the fault's remedies. A healthy run is judged right if there is no warning and no error.
"""

import inspect
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..fault_catalogue.case import REMEDIES as REMEDIES_OF_MODELS
from ..fault_catalogue.case import _advice as _any_of

Watch = Callable[[nn.Module, Optimizer], AbstractContextManager[Any]]
"""`with watch(model, optimizer) as run:` stands around a loop; `run` has `observe(loss=)` and `log_metrics(...)`."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run as a user writes it.

    Attributes:
        name: The name of the run.
        family: The kind of network.
        steps: How many steps the loop takes.
        train: Runs the whole loop, `train(watch, steps=...)`, the same one each time; returns how good the model is in
            the end (larger is better, minus infinity if it is not finite).
    """

    name: str
    family: str
    steps: int
    train: Callable[..., float]


@dataclass(frozen=True, kw_only=True)
class RunFault(Run):
    """A run with a planted fault, and what counts as the right alarm.

    Attributes:
        mend: The same loop without the fault.
        causes: Keys of `CAUSES`; any one of them counts.
        layers: Names of modules or parameters, one of which must be named; empty if no one layer is at fault.
        remedies: Keys of `REMEDIES`; any one of them counts.
        onset: The step of the optimizer at which the fault begins to act; alarms before it are false ones.
        other_harm: What the fault costs where that is not the final quality of the model.
        source: Where people make this mistake.
    """

    mend: Callable[..., float]
    causes: frozenset[str]
    layers: tuple[str, ...]
    remedies: frozenset[str]
    onset: int
    other_harm: str
    source: str


@dataclass(frozen=True, kw_only=True)
class HealthyRun(Run):
    """A run with nothing wrong, though it may look so."""


def _described(build: Callable[..., float]) -> dict[str, Any]:
    """Return the name and the number of steps of a decorated loop."""
    return {
        "name": build.__name__.replace("_", "-"),
        "steps": inspect.signature(build).parameters["steps"].default,
    }


def run_fault(
    register: list[RunFault],
    family: str,
    *,
    causes: str,
    remedies: str,
    layers: str = "",
    onset: int = 0,
    other_harm: str = "",
) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Register the decorated loop `(broken, watch, steps)`; keys and names are split at spaces."""

    def add(build: Callable[..., float]) -> Callable[..., float]:
        register.append(
            RunFault(
                **_described(build),
                family=family,
                train=partial(build, True),
                mend=partial(build, False),
                causes=frozenset(causes.split()),
                layers=tuple(layers.split()),
                remedies=frozenset(remedies.split()),
                onset=onset,
                other_harm=other_harm,
                source=build.__doc__ or "",
            )
        )
        return build

    return add


def healthy_run(register: list[HealthyRun], family: str) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Register the decorated loop `(watch, steps)` of a healthy run."""

    def add(build: Callable[..., float]) -> Callable[..., float]:
        register.append(HealthyRun(**_described(build), family=family, train=build))
        return build

    return add


CAUSES: dict[str, str] = {
    # nothing is learned
    "rate-too-low": "The steps are so small beside the weights that they hardly move; the learning rate is too low.",
    "rate-zero": "The learning rate is zero.",
    "rate-decays-too-early": "A schedule brought the learning rate to almost nothing long before the end.",
    "gradient-too-small": "The loss or the gradient was scaled or clipped down until steps do nothing.",
    "clipping-always-active": "Clipping cuts every gradient to a small part of its norm.",
    "weights-put-back": "Something overwrites the weights after each step, so that no step lasts.",
    "not-learning": "The loss does not fall, or stays at what guessing gives.",
    "labels-unrelated": "The labels have nothing to do with the inputs.",
    "labels-constant": "All labels are of one class.",
    "same-batch": "Every step sees the same samples.",
    "dropout-too-strong": "Dropout removes almost everything.",
    "softmax-twice": "A softmax or sigmoid stands before a loss that applies one itself.",
    "gradient-missing": "At the step there is no gradient, or one of zeros.",
    "shapes-broadcast": "The shapes of outputs and targets differ, and broadcasting compares each with each.",
    "sign-of-loss": "The loss is minimised where it should be maximised, or the other way around.",
    "gradient-cut": "A detach, no_grad or rebuilt tensor keeps the gradient from some layers.",
    "vanishing-gradient": "The gradients of some layers are so small that these hardly learn.",
    # steps that never happen
    "no-step": "The optimizer's step is never called, or changes nothing.",
    "steps-skipped": "The gradient scaler skips the steps.",
    "not-in-optimizer": "Parameters of the model are in no optimizer.",
    "frozen-layer": "A layer does not learn because its parameters require no gradient.",
    # divergence
    "rate-too-high": "The steps are too large; the learning rate, or what multiplies it, is too high.",
    "divergence": "The loss grows far above where it was and does not come back.",
    "exploding-gradient": "Gradients grow by orders of magnitude.",
    "exploding-values": "Activations or weights grow by orders of magnitude.",
    "not-finite": "The loss, a gradient, an activation or a weight has become NaN or infinite.",
    "not-finite-data": "A batch holds NaN or infinite values.",
    "not-finite-weights": "A parameter holds NaN or infinite values.",
    "precision": "Values leave the range of the number format.",
    "loss-spike": "The loss jumped far above its usual values.",
    "outlier": "A few samples have targets or inputs far from all others.",
    "decay-too-strong": "Weight decay or another penalty pulls weights to zero faster than they learn.",
    # layers
    "dead-units": "Units are zero for every sample and receive no gradient.",
    "saturated-units": "Units stand in the flat part of their activation.",
    "inputs-not-scaled": "The inputs are far larger or smaller than about 1.",
    "running-statistics-wrong": "Running statistics do not describe the data that arrives.",
    "wrong-mode": "Modules are in eval mode while training, or the other way around.",
    "normalizer-too-few-samples": "A normalizer estimates its statistics from too few values.",
    "attention-collapse": "Attention looks at one entry, its logits are too large.",
    "discriminator-wins": "The discriminator tells everything apart, and the generator gets no gradient.",
    "posterior-collapse": "The code of a variational autoencoder carries nothing.",
    "output-constant": "The output is (almost) the same for every sample.",
    "units-alike": "All units of a layer compute the same and get the same gradient.",
    "layer-decayed": "The weights of a layer have gone to almost zero.",
    "gradient-accumulates": "Gradients of earlier steps are never cleared.",
    # validation and data over time
    "overfitting": "The loss on validation data rises, or stays, while the loss of training falls.",
    "validation-worsens": "A figure of the validation is clearly worse than it was.",
    "data-changed": "The inputs or targets of later batches are not like those of earlier ones.",
    "sorted-batches": "Batches are not shuffled: each holds few classes, and what was learnt is forgotten.",
}

_WORDS_OF_STORIES = {
    "rate": r"learning rate|\brate\b|\blr\b|step size",
    "small": r"too (?:small|low)|tiny|hardly|barely|almost no|negligible|very (?:small|low)|far too little",
    "large": r"too (?:large|high|big)|huge|very (?:large|high)|far (?:larger|above)|explo\w+",
    "grow": r"\bris(?:e|es|en|ing)\b|\brose\b|grow\w*|\bgrew\b|increas\w*|climb\w*|times (?:larger|as|its|what)",
    "shrink": r"fell|falls|fallen|drop\w*|shr[aiu]nk\w*|declin\w*|decayed|went to",
    "same": r"constant|the same|equal|alike|identical|copies",
    "finite": r"\bnan\b|infinite|not[- ]finite|non-?finite|overflow\w*|\binf\b",
    "data": r"\b(?:inputs?|data|batch(?:es)?|samples?)\b",
    "targets": r"\b(?:labels?|targets?)\b",
    "weights": r"\b(?:weights?|parameters?)\b",
    "outputs": r"\b(?:outputs?|embeddings?|representations?|predictions?)\b",
    "gradients": r"\bgradients?\b",
    "validation": r"validation|\bval\b|\bval_|held[- ]out|\btest (?:loss|set|data)",
    "optimizer": r"optimi[sz]er",
}


def _story(*alternatives: str) -> re.Pattern[str]:
    """Compile how a story may tell a cause; `~` and `<name>` as in the remedies of models."""
    pattern = "|".join(alternatives)
    for name, words in _WORDS_OF_STORIES.items():
        pattern = pattern.replace(f"<{name}>", f"(?:{words})")
    return _any_of(pattern)


STORIES: dict[str, re.Pattern[str]] = {
    "rate-too-low": _story(
        r"<rate>~<small>|<small>~<rate>",
        r"(?:updates?|steps?)\b~(?:<small>)|(?:<small>)~\b(?:updates?|steps?)\b",
        r"<weights>~(?:hardly|barely|do not|have not|did not)~(?:move|moving|chang)",
    ),
    "rate-zero": _story(r"<rate>~(?:zero\b|\b0(?![.\d]))|zero~<rate>"),
    "rate-decays-too-early": _story(r"<rate>~(?:<shrink>|too (?:early|fast|soon))|schedul\w*~(?:<rate>|too|end)"),
    "gradient-too-small": _story(r"<gradients>~(?:<small>|vanish\w*)|(?:<small>)~<gradients>|gradient vanish\w*"),
    "clipping-always-active": _story(r"\bclip\w*"),
    "weights-put-back": _story(
        r"\b(?:put back|overwrit\w*|overridden|restored|copied (?:back|over)|undone|taken back|revert\w*)\b",
        r"<weights>~(?:outside of|between|not by)~(?:<optimizer>|steps?\b)|(?:steps?|updates?)\b~do(?:es)? not last",
    ),
    "not-learning": _story(
        r"\bloss\b~(?:not? (?:fall|improv|decreas|chang|mov|better|lower)\w*|flat|stall\w*|plateau\w*|stuck|stays?\b)",
        r"not learning|nothing is learn|no progress|learns? nothing|guess\w*|\bchance\b|stalled|no better than",
    ),
    "labels-unrelated": _story(
        r"<targets>~(?:unrelated|random|shuffl\w*|nothing to do|do not (?:depend|belong|fit)|other samples)",
        r"guess\w*|\bchance\b|no better than",
    ),
    "labels-constant": _story(r"<targets>~(?:<same>|one class)|(?:one|single|only one)[- ]class\b"),
    "same-batch": _story(
        r"same (?:batch|samples|inputs?|data)\b|(?:<data>)~(?:identical|repeat\w*)|repeated~(?:<data>)"
    ),
    "dropout-too-strong": _story(r"dropout"),
    "softmax-twice": _story(
        r"soft-?max~(?:twice|before|again|loss)|probabilities|sums? to (?:one|1)|activation before"
    ),
    "gradient-missing": _story(
        r"<gradients>~(?:\bzeros?\b|\bnone\b|missing|exactly 0|cleared|eras\w*|absent)",
        r"\bno gradients?\b|without (?:a )?gradients?|zero[- ]gradients?|zero_grad",
    ),
    "shapes-broadcast": _story(r"broadcast|shapes?\b"),
    "sign-of-loss": _story(r"\bsign\b|minus\b|negated|maximi[sz]\w*|without (?:a )?(?:bound|limit)|unbounded"),
    "gradient-cut": _story(
        r"detach|no_grad|cut off|gradient cut|disconnected|(?:never|no|without(?: a)?) gradients?\b",
        r"<gradients>~(?:never|not)~(?:reach|arriv|flow|get)|<gradients>~(?:is|are) (?:exactly )?(?:zero|none|0\b)",
    ),
    "vanishing-gradient": _story(r"vanish\w*|starv\w*|<gradients>~(?:shrink\w*|times smaller|die|<small>)"),
    "no-step": _story(
        r"\b(?:no|never|not (?:one|a single))\b~\bsteps?\b|\bsteps?\b~(?:never|not (?:called|taken)|no effect)",
        r"<weights>~(?:not|never|no)~(?:chang|mov|updat)|unchanged|stand still",
    ),
    "steps-skipped": _story(r"\bskip\w*|scaler"),
    "not-in-optimizer": _story(
        r"<optimizer>~(?:does not|do not|none|\bno\b|\bnot\b|never|missing|other|without)",
        r"(?:\bno|\bnot|outside|never|none)\b~<optimizer>",
    ),
    "frozen-layer": _story(r"frozen|requires?_grad|requires? no grad|freez"),
    "rate-too-high": _story(
        r"(?:<rate>|steps?\b|updates?\b)~<large>|<large>~(?:<rate>|steps?\b|updates?\b)|edge of stability|overshoot\w*",
        r"unstable|(?:steps?|updates?)\b~(?:as large as|\d+ ?%|share of|times)~<weights>|effective learning rate",
    ),
    "divergence": _story(r"diverg\w*|\bloss\b~(?:<grow>|explo\w*|above)|bl[eo]w\w* up"),
    "exploding-gradient": _story(
        r"<gradients>~(?:<large>|<grow>|orders? of magnitude|jump\w*)|gradient (?:explo|spike|jump)"
    ),
    "exploding-values": _story(
        r"(?:activations?|<outputs>|values?|<weights>|states?|norms?|logits?)~(?:<large>|<grow>|orders? of magnitude)"
    ),
    "not-finite": _story(r"<finite>"),
    "not-finite-data": _story(r"(?:<data>|<targets>)~\b(?:holds?|contains?|ha(?:s|ve)|is|are|with)\b~<finite>"),
    "not-finite-weights": _story(r"<weights>~<finite>|<finite>~<weights>"),
    "precision": _story(r"overflow\w*|float16|\bfp16\b|half[- ]precision|precision|underflow\w*|65504"),
    "loss-spike": _story(
        r"spik\w*|\bloss\b~(?:jump\w*|leap\w*|sudden\w*|shot|times (?:its|the|as|what))|sudden~\bloss\b"
    ),
    "outlier": _story(
        r"outlier\w*|far from (?:all|the) other|extreme (?:values?|targets?|samples?)|(?:one|a) bad batch"
    ),
    "decay-too-strong": _story(r"weight[- _]decay|\bdecay~(?:strong|<large>)|penalt\w*|regulari[sz]\w*|\bL1\b"),
    "dead-units": _story(
        r"\bdead\b|\bdied\b|\bdying\b|(?:units?|channels?|relus?|neurons?)\b~(?:\bzero|\b0\b|silent|\boff)\b"
    ),
    "saturated-units": _story(r"saturat\w*|flat (?:part|region)"),
    "inputs-not-scaled": _story(r"\binputs?\b~(?:\bscale[ds]?\b|<large>|standardi[sz]\w*|unscaled|\brange)"),
    "running-statistics-wrong": _story(r"running (?:statistics|means?|variances?|averages?)|stale|running_"),
    "wrong-mode": _story(r"\beval(?:uation)?[- ]mode|train(?:ing)?[- ]mode|\.train\(|\.eval\("),
    "normalizer-too-few-samples": _story(
        r"few (?:samples|values)|small batch|batch~(?:too small|of (?:one|1|two|2|three|3)\b)",
        r"\b(?:one|single|\d) (?:values?|samples?)\b",
    ),
    "attention-collapse": _story(r"attention|entropy|quer(?:y|ies)"),
    "discriminator-wins": _story(r"discriminator|\bwins\b|perfectly"),
    "posterior-collapse": _story(r"posterior|\bKL\b|latent|\bcode\b~(?:nothing|unused|collaps\w*)"),
    "output-constant": _story(
        r"<outputs>~(?:<same>|collaps\w*|parallel)|collaps\w*|rank[- ]one|no better than a constant",
        r"(?:hardly|does not|do not|no longer) depends?~\binputs?\b",
    ),
    "units-alike": _story(
        r"\b(?:units?|neurons?|rows?|filters?|channels?)\b~(?:<same>)|(?:<same>)~\b(?:units|neurons|rows|filters|channels)\b",
        r"symmetr\w*|rank[- ]one",
    ),
    "layer-decayed": _story(r"<weights>~(?:\bzero\b|vanish\w*|<shrink>|almost nothing)|zero weights"),
    "gradient-accumulates": _story(
        r"zero_grad|accumulat\w*|(?:never|not) (?:cleared|zeroed|reset)|sum of (?:all )?(?:earlier|past)"
    ),
    "overfitting": _story(
        r"over-?fit\w*|memori[sz]\w*|generali[sz]\w*|by heart|<validation>~(?:<grow>|worse\w*|while)"
    ),
    "validation-worsens": _story(
        r"<validation>~(?:<grow>|<shrink>|worse\w*|lower)|accuracy~(?:<shrink>|worse\w*|lower)"
    ),
    "data-changed": _story(
        r"(?:<data>|<targets>|distribution)~(?:chang\w*|shift\w*|drift\w*|differ\w*|no longer|not like|unlike|outside)",
        r"distribution",
    ),
    "sorted-batches": _story(r"shuffl\w*|sorted|\bcycl\w*|periodic\w*|forget\w*|forgot\w*|saw-?tooth|few classes"),
}
"""How a story may tell each cause, in the words of whoever writes alarms."""

_NEW_REMEDIES: dict[str, re.Pattern[str]] = {
    "raise-learning-rate": _any_of(
        r"(?:rais|increas|larg|high|bigg|multipl)\w*~(?:<rate>)|(?:<rate>)~(?:larger|higher|bigger|too (?:small|low))"
    ),
    "fix-schedule": _any_of(r"schedul\w*|step_size|\bper epoch|once (?:per|an?) epoch|gamma|milestones?|warm-?up"),
    "rescale-loss": _any_of(
        r"(?:factor|scal\w*|divid\w*|multipl\w*|weigh\w*|averag\w*|mean\b|normali[sz]\w*|unscal\w*)~\bloss(?:es)?\b",
        r"\bloss(?:es)?\b~(?:factor|scal\w*|divid\w*|multipl\w*|averag\w*|mean\b|weight\w*)|adam",
    ),
    "loosen-clipping": _any_of(r"(?:rais|loosen|larg|high|remov|without|increas|check|lower|reduc)\w*~clip|clip\w*~"),
    "keep-weights": _any_of(
        r"(?:overwrit|copy|copied|copies|put back|restor|load_state_dict|swap|averag|\bEMA\b|assign|reset)\w*"
    ),
    "vary-batches": _any_of(r"shuffl\w*|loader|\biterat\w*|next\(|different (?:batches|samples)|sampler|data ?set"),
    "order-of-calls": _any_of(r"zero_grad|before~backward|after~\.?step\(|\border\b|set_to_none|backward\(\)"),
    "call-step": _any_of(r"optimi[sz]er\.step|\.step\(|call~step|step~\bcall"),
    "flip-sign": _any_of(r"\bsign\b|minus|negat\w*|maximi[sz]e"),
    "check-scaler": _any_of(r"scaler|loss scale|scale factor|skipp\w*"),
    "give-to-optimizer": _any_of(
        r"optimi[sz]er~(?:parameters?|param|add|giv|hand|pass|after|again|cover|build|model)",
        r"(?:parameters?|add|giv|pass|build|creat|construct)\w*~optimi[sz]er|add_param_group",
    ),
    "robust-loss": _any_of(
        r"huber|smooth_?-?l1|robust|\bL1 loss|absolute error|outlier\w*|clip\w*~(?:targets?|labels?)"
    ),
    "lower-momentum": _any_of(r"momentum|\bbetas?\b"),
    "lower-penalty": _any_of(
        r"(?:<lower>|<remove>|weaken|check)~(?:penalt\w*|\bL1\b|<decay>|\bKL\b|\bbeta\b|coefficient)",
        r"(?:penalt\w*|<decay>)~<lower>|anneal\w*|free bits|\bKL\b~(?:weight|small)|warm-?up",
    ),
    "balance-players": _any_of(
        r"discriminator|generator|non-?saturating|spectral[- ]norm|wasserstein|gradient penalty|label smoothing"
    ),
    "prevent-collapse": _any_of(
        r"negatives?\b|contrastive|stop-?gradient|detach|predictor|variance~(?:term|loss)|decorrelat\w*|check~loss"
    ),
    "regularise": _any_of(
        r"early[- ]stop\w*|stop (?:training|here|earlier)|dropout|(?:<decay>)|regulari[sz]\w*|augment\w*|more data|"
        r"smaller (?:model|network)|fewer parameters|best checkpoint|earlier checkpoint"
    ),
    "change-architecture": _any_of(
        r"architecture|capacity|(?:larg|wid|deep|bigg)er (?:model|network)|more (?:layers|units)"
    ),
    "mind-batch-statistics": _any_of(r"batch[- ]?norm|running|momentum|statistics"),
}
REMEDIES: dict[str, re.Pattern[str]] = {**REMEDIES_OF_MODELS, **_NEW_REMEDIES}
"""What an advice may say; those of models (`benchmarks/fault_catalogue/case.py`) and those of training loops."""
