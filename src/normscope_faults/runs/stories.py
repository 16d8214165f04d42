"""How an alarm of a watched run tells a cause (by its code, in the words of its story), and how its advice a remedy."""

import re

from ..remedies import REMEDIES as REMEDIES_OF_MODELS
from ..remedies import any_of

CAUSES_BY_CODE: dict[str, tuple[str, ...]] = {
    "non-finite-weights": ("not-finite-weights", "not-finite"),
    "non-finite-activations": ("not-finite",),
    "loss-not-finite": ("not-finite",),
    "gradient-not-finite": ("not-finite",),
    "input-scale": ("inputs-not-scaled",),
    "input-columns": ("inputs-not-scaled",),
    "constant-input": ("same-batch",),
    "activation-before-loss": ("softmax-twice",),
    "shapes-broadcast": ("shapes-broadcast",),
    "one-class": ("labels-constant",),
    "no-better-than-constant": ("output-constant", "not-learning", "labels-unrelated"),
    "gradient-cut": ("gradient-cut",),
    "no-gradient": ("gradient-cut", "gradient-missing"),
    "frozen-layer": ("frozen-layer",),
    "zero-weights": ("layer-decayed",),
    "dead-layer": ("dead-units",),
    "dead-channels": ("dead-units",),
    "dead-relu": ("dead-units",),
    "output-constant": ("output-constant",),
    "gradient-vanishing": ("vanishing-gradient",),
    "gradient-explosion": ("exploding-gradient",),
    "saturated-units": ("saturated-units",),
    "attention-saturated": ("attention-collapse",),
    "strong-dropout": ("dropout-too-strong",),
    "half-precision": ("precision",),
    "stale-statistics": ("running-statistics-wrong",),
    "small-batch": ("normalizer-too-few-samples",),
    "rate-zero": ("rate-zero",),
    "rate-decayed": ("rate-decays-too-early", "rate-too-low"),
    "weights-still": (),
    "weights-put-back": ("weights-put-back",),
    "lr-too-high": ("rate-too-high",),
    "decay-too-strong": ("decay-too-strong",),
    "same-batch": ("same-batch",),
    "sorted-batches": ("sorted-batches",),
    "data-changed": ("data-changed",),
    "negated-loss": ("sign-of-loss",),
    "no-gradient-at-step": ("gradient-missing",),
    "no-step": ("no-step",),
    "not-trained": ("not-in-optimizer",),
    "reward-falls": (),
    "units-alike": ("units-alike",),
    "no-zero-grad": ("gradient-accumulates",),
    "eval-mode": ("wrong-mode",),
    "loss-rising": ("divergence",),
    "loss-spike": ("loss-spike",),
    "overfitting": ("overfitting",),
    "validation-worse": ("validation-worsens",),
    "validation-apart": (),
    "norm-growth": ("exploding-values",),
    "variance-collapse": (),
    "expanding-normalizer": (),
    "effective-lr": (),
    "edge-of-stability": ("rate-too-high",),
    "left-domain": ("data-changed",),
    "not-seen": (),
    "refused": (),
}
"""The causes that the code of an alarm gives; to these come those that its story tells in words (`STORIES`)."""

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
    return any_of(pattern)


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
    "raise-learning-rate": any_of(
        r"(?:rais|increas|larg|high|bigg|multipl)\w*~(?:<rate>)|(?:<rate>)~(?:larger|higher|bigger|too (?:small|low))"
    ),
    "fix-schedule": any_of(r"schedul\w*|step_size|\bper epoch|once (?:per|an?) epoch|gamma|milestones?|warm-?up"),
    "rescale-loss": any_of(
        r"(?:factor|scal\w*|divid\w*|multipl\w*|weigh\w*|averag\w*|mean\b|normali[sz]\w*|unscal\w*)~\bloss(?:es)?\b",
        r"\bloss(?:es)?\b~(?:factor|scal\w*|divid\w*|multipl\w*|averag\w*|mean\b|weight\w*)|adam",
    ),
    "loosen-clipping": any_of(r"(?:rais|loosen|larg|high|remov|without|increas|check|lower|reduc)\w*~clip|clip\w*~"),
    "keep-weights": any_of(
        r"(?:overwrit|copy|copied|copies|put back|restor|load_state_dict|swap|averag|\bEMA\b|assign|reset)\w*"
    ),
    "vary-batches": any_of(r"shuffl\w*|loader|\biterat\w*|next\(|different (?:batches|samples)|sampler|data ?set"),
    "order-of-calls": any_of(r"zero_grad|before~backward|after~\.?step\(|\border\b|set_to_none|backward\(\)"),
    "call-step": any_of(r"optimi[sz]er\.step|\.step\(|call~step|step~\bcall"),
    "flip-sign": any_of(r"\bsign\b|minus|negat\w*|maximi[sz]e"),
    "check-scaler": any_of(r"scaler|loss scale|scale factor|skipp\w*"),
    "give-to-optimizer": any_of(
        r"optimi[sz]er~(?:parameters?|param|add|giv|hand|pass|after|again|cover|build|model)",
        r"(?:parameters?|add|giv|pass|build|creat|construct)\w*~optimi[sz]er|add_param_group",
    ),
    "robust-loss": any_of(
        r"huber|smooth_?-?l1|robust|\bL1 loss|absolute error|outlier\w*|clip\w*~(?:targets?|labels?)"
    ),
    "lower-momentum": any_of(r"momentum|\bbetas?\b"),
    "lower-penalty": any_of(
        r"(?:<lower>|<remove>|weaken|check)~(?:penalt\w*|\bL1\b|<decay>|\bKL\b|\bbeta\b|coefficient)",
        r"(?:penalt\w*|<decay>)~<lower>|anneal\w*|free bits|\bKL\b~(?:weight|small)|warm-?up",
    ),
    "balance-players": any_of(
        r"discriminator|generator|non-?saturating|spectral[- ]norm|wasserstein|gradient penalty|label smoothing"
    ),
    "prevent-collapse": any_of(
        r"negatives?\b|contrastive|stop-?gradient|detach|predictor|variance~(?:term|loss)|decorrelat\w*|check~loss"
    ),
    "regularise": any_of(
        r"early[- ]stop\w*|stop (?:training|here|earlier)|dropout|(?:<decay>)|regulari[sz]\w*|augment\w*|more data|"
        r"smaller (?:model|network)|fewer parameters|best checkpoint|earlier checkpoint"
    ),
    "change-architecture": any_of(
        r"architecture|capacity|(?:larg|wid|deep|bigg)er (?:model|network)|more (?:layers|units)"
    ),
    "mind-batch-statistics": any_of(r"batch[- ]?norm|running|momentum|statistics"),
}
REMEDIES: dict[str, re.Pattern[str]] = {**REMEDIES_OF_MODELS, **_NEW_REMEDIES}
"""What an advice may say: that of models and that of training loops."""
