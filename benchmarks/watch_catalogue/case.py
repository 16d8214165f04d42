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
    "layer-decayed": "The weights of a layer have gone to almost zero.",
    "gradient-accumulates": "Gradients of earlier steps are never cleared.",
    # validation and data over time
    "overfitting": "The loss on validation data rises, or stays, while the loss of training falls.",
    "validation-worsens": "A figure of the validation is clearly worse than it was.",
    "data-changed": "The inputs or targets of later batches are not like those of earlier ones.",
    "sorted-batches": "Batches are not shuffled: each holds few classes, and what was learnt is forgotten.",
}

_WORDS_OF_STORIES = {
    "rate": r"learning rate|\brate\b|\blr\b|step size|steps?\b",
    "small": r"too (?:small|low)|tiny|minute|hardly|barely|almost no|negligible|very (?:small|low)|vanishing",
    "large": r"too (?:large|high|big)|huge|very (?:large|high)|far (?:larger|above)|explod\w*",
    "finite": r"\bnan\b|infinite|not[- ]finite|non-?finite|no numbers?\b|overflow\w*|\binf\b",
    "validation": r"validation|\bval\b|\bval_|held[- ]out|test (?:loss|set|data)",
    "worse": r"\bris(?:e|es|en|ing)\b|\brose\b|grow\w*|\bgrew\b|worse\w*|increas\w*|climb\w*|up from|away from",
}


def _story(*alternatives: str) -> re.Pattern[str]:
    """Compile how a story may tell a cause; `~` and `<name>` as in the remedies of models."""
    pattern = "|".join(alternatives)
    for name, words in _WORDS_OF_STORIES.items():
        pattern = pattern.replace(f"<{name}>", f"(?:{words})")
    return _any_of(pattern)


STORIES: dict[str, re.Pattern[str]] = {
    "rate-too-low": _story(
        r"(?:learning rate|\brate\b|\blr\b)~<small>",
        r"<small>~(?:learning rate|\brate\b)",
        r"\b(?:updates?|steps?|weights?|parameters?)\b~(?:<small>)~(?:move|change|weights?|beside|compared)",
        r"\b(?:weights?|parameters?)\b~(?:hardly|barely|do not|did not|have not)~(?:move|chang)",
        r"updates?\b~(?:<small>)|update ratio",
    ),
    "rate-zero": _story(r"(?:learning rate|\brate\b|\blr\b)~(?:is|of|was|at|stays?|to|exactly)~(?:zero\b|0(?![.\d]))"),
    "rate-decays-too-early": _story(
        r"(?:schedul\w*|decay\w*|learning rate)~(?:too (?:early|fast|soon)|almost (?:zero|nothing)|collapsed|vanish\w*)",
        r"(?:learning rate|\brate\b)~(?:fell|fallen|has dropped|shrank|shrunk|decayed|went)",
    ),
    "gradient-too-small": _story(r"gradients?\b~(?:<small>)|(?:<small>)~gradients?\b|gradient[- ]vanish"),
    "clipping-always-active": _story(r"\bclip\w*"),
    "weights-put-back": _story(
        r"\b(?:put back|overwrit\w*|over-?ridden|restored|reset|copied (?:back|over)|undone|taken back|revert\w*)\b",
        r"(?:chang|mov)\w*~(?:outside of|between|not by)~(?:optimizer|steps?\b)",
        r"(?:steps?|updates?)\b~(?:do(?:es)? not last|without (?:an )?effect|lost|undone)",
    ),
    "not-learning": _story(
        r"\bloss\b~(?:not? (?:fall|improv|go|decreas|chang|mov|better)\w*|flat|stall\w*|plateau\w*|stuck|stay\w*|stood)",
        r"not learning|nothing is learn|no progress|learns nothing|guess\w*|\bchance\b|stalled|no better than",
    ),
    "labels-unrelated": _story(
        r"(?:labels?|targets?)\b~(?:unrelated|random|shuffl\w*|nothing to do|do not (?:depend|belong|fit)|other samples)",
        r"(?:guess\w*|\bchance\b|no better than)",
    ),
    "labels-constant": _story(
        r"(?:labels?|targets?)\b~(?:constant|the same|one class|equal)|(?:one|single)[- ]class|only (?:one )?class"
    ),
    "same-batch": _story(r"same (?:batch|samples|inputs?|data)|identical~batch|batch~(?:identical|repeat)|repeated"),
    "dropout-too-strong": _story(r"dropout"),
    "softmax-twice": _story(r"soft-?max|sums? to (?:one|1)|probabilities", r"sigmoid~loss|activation before"),
    "gradient-missing": _story(
        r"gradients?\b~(?:\bzero\b|\bnone\b|\bno\b|missing|exactly 0|\b0\b|cleared|eras\w*|empty|absent)",
        r"\bno gradients?\b|without (?:a )?gradients?|zero[- ]gradients?|zero_grad",
    ),
    "shapes-broadcast": _story(r"broadcast|shapes?\b"),
    "sign-of-loss": _story(r"\bsign\b|minus|negated|maximi[sz]\w*|unbounded|wrong direction|without (?:a )?bound"),
    "gradient-cut": _story(
        r"detach|no_grad|cut off|gradient[- ]cut|disconnected",
        r"(?:never|no|without(?: an?y?)?) gradients?|gradients?\b~(?:never|does not|do not|no)~(?:reach|arriv|flow|get)",
    ),
    "vanishing-gradient": _story(
        r"vanish\w*|gradients?\b~(?:shrink\w*|shrunk|times smaller|dies|die out|starv\w*|<small>)|starv\w*"
    ),
    "no-step": _story(
        r"\b(?:no|never|not one|none)\b~\b(?:steps?|step\(\))|steps?\b~(?:never|not (?:called|taken|once)|no effect)",
        r"(?:weights?|parameters?)\b~(?:not|never|no)~(?:chang|mov|updat)|unchanged|\bstand still\b|\bfrozen\b",
    ),
    "steps-skipped": _story(r"\bskip\w*|scaler"),
    "not-in-optimizer": _story(
        r"optimi[sz]er~(?:does not|do not|none|no |not |never|missing|other|without)",
        r"(?:in|outside)(?: of)? (?:no|any|every|the) optimi[sz]er|(?:not|never|trains none)~optimi[sz]er",
    ),
    "frozen-layer": _story(r"frozen|requires?_grad|requires? no grad|freez"),
    "rate-too-high": _story(
        r"(?:learning rate|\brate\b|\blr\b|step size|steps?\b|updates?)~<large>",
        r"<large>~(?:learning rate|\brate\b|steps?\b|updates?)|edge of stability|overshoot\w*|unstable",
        r"(?:steps?|updates?)\b~(?:as large as|\d+ ?%|share of)~weights?|effective learning rate",
    ),
    "divergence": _story(
        r"diverg\w*|\bloss\b~(?:<worse>)~|\bloss\b~(?:explod\w*|jumped|times|above)|blow\w* up|blew up"
    ),
    "exploding-gradient": _story(
        r"gradients?\b~(?:explo\w*|<large>|grew|grow\w*|\d+ times|orders? of magnitude|jump\w*|larger)|gradient[- ](?:explosion|spike|jump)"
    ),
    "exploding-values": _story(
        r"(?:activations?|outputs?|values?|weights?|states?|norms?|logits?)\b~(?:explo\w*|<large>|grew|grow\w*|times (?:larger|as))"
    ),
    "not-finite": _story(r"<finite>"),
    "not-finite-data": _story(
        r"(?:inputs?|batch|data|samples?|targets?|labels?)\b~(?:holds?|contains?|has|have|is|are|with)\b~<finite>"
    ),
    "not-finite-weights": _story(r"(?:weights?|parameters?|buffers?)\b~<finite>|<finite>~(?:weights?|parameters?)"),
    "precision": _story(r"overflow\w*|float16|\bfp16\b|\bhalf\b|precision|underflow\w*|65504"),
    "loss-spike": _story(
        r"spik\w*|\bloss\b~(?:jump\w*|leap\w*|suddenly|sudden|shot|times (?:its|the|as|what))|sudden~\bloss\b"
    ),
    "outlier": _story(
        r"outlier\w*|far from (?:all|the) other|extreme (?:values?|targets?|samples?)|one bad batch|bad batch"
    ),
    "decay-too-strong": _story(r"weight[- _]decay|\bdecay~(?:strong|high|large)|penalt\w*|regulari[sz]\w*|\bL1\b"),
    "dead-units": _story(
        r"\bdead\b|\bdied\b|\bdying\b|(?:units?|channels?|relus?|neurons?|outputs?)\b~(?:zero|\b0\b|silent|off)\b"
    ),
    "saturated-units": _story(r"saturat\w*|flat (?:part|region)"),
    "inputs-not-scaled": _story(r"inputs?\b~(?:scale\w*|<large>|mean|standard|unscaled|range)"),
    "running-statistics-wrong": _story(r"running (?:statistics|mean|variance|average)|stale|running_|momentum of~norm"),
    "wrong-mode": _story(r"\beval(?:uation)?[- ]mode|train(?:ing)?[- ]mode|\bmode\b|\.train\(|\.eval\("),
    "normalizer-too-few-samples": _story(
        r"(?:too )?few (?:samples|values)|small[- ]batch|batch~(?:too small|of (?:one|1|2|two))|\b(?:one|1|\d) (?:values?|samples?)\b",
    ),
    "attention-collapse": _story(r"attention|entropy|soft-?max~(?:saturat|one)|query|queries"),
    "discriminator-wins": _story(r"discriminator|\bwins\b|perfectly"),
    "posterior-collapse": _story(r"posterior|\bKL\b|latent|\bcode\b~(?:nothing|unused|collapse\w*)"),
    "output-constant": _story(
        r"(?:outputs?|embeddings?|representations?|predictions?|features?|samples?)\b~(?:constant|the same|equal|alike|collaps\w*|identical|parallel)",
        r"collaps\w*|rank[- ]one|(?:hardly|does not|do not|no longer) depends?~inputs?|no better than a constant",
    ),
    "layer-decayed": _story(
        r"weights?\b~(?:zero|vanish\w*|shrank|shrunk|shrink\w*|decayed|almost nothing|fell|fallen)|zero[- ]weights"
    ),
    "gradient-accumulates": _story(
        r"zero_grad|accumulat\w*|(?:never|not) (?:cleared|zeroed|reset)|sum of (?:all )?(?:earlier|past|previous)"
    ),
    "overfitting": _story(
        r"over-?fit\w*|memori[sz]\w*|generali[sz]\w*|<validation>~<worse>|<validation>~(?:while|not)"
    ),
    "validation-worsens": _story(
        r"<validation>~(?:<worse>|fell|falls|fallen|drop\w*|declin\w*|lower)|accuracy~(?:fell|falls|fallen|drop\w*|lower)"
    ),
    "data-changed": _story(
        r"(?:inputs?|data|targets?|labels?|batch(?:es)?|distribution|samples)\b~(?:chang\w*|shift\w*|drift\w*|differ\w*|no longer|not like|unlike|outside)",
        r"distribution|domain",
    ),
    "sorted-batches": _story(
        r"shuffl\w*|sorted|\bcycl\w*|periodic\w*|forget\w*|forgot\w*|\border of|saw-?tooth|(?:one|few) class(?:es)?"
    ),
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
        r"discriminator|generator|non-?saturating|spectral[- ]norm|wasserstein|gradient penalty|label smoothing|two time"
    ),
    "prevent-collapse": _any_of(
        r"negatives?\b|contrastive|stop-?gradient|detach|predictor|variance~(?:term|loss)|decorrelat\w*|check~loss"
    ),
    "regularise": _any_of(
        r"early[- ]stop\w*|stop (?:training|here|earlier)|dropout|(?:<decay>)|regulari[sz]\w*|augment\w*|more data|"
        r"smaller (?:model|network)|fewer parameters|best checkpoint|earlier checkpoint"
    ),
    "mind-batch-statistics": _any_of(r"batch[- ]?norm|running|momentum|statistics"),
}
REMEDIES: dict[str, re.Pattern[str]] = {**REMEDIES_OF_MODELS, **_NEW_REMEDIES}
"""What an advice may say; those of models (`benchmarks/fault_catalogue/case.py`) and those of training loops."""
