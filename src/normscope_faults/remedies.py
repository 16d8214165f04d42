"""What an advice may say: for each remedy a pattern of the words in which it may be given."""

import re


def any_of(*alternatives: str) -> re.Pattern[str]:
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
    "scale-inputs": any_of(
        r"<normalise>~<data>",
        r"\b255\b",
        r"<data>~\b(?:scale|divide)\b",
        r"log(?:arithm)?[- ]transform~<data>",
        r"one-hot",
        r"subtract\w* the mean and divid",
    ),
    "clean-data": any_of(
        r"\b(?:clean|imput|fill|replac|drop|remov|filter)\w*~(?:\bnan\b|missing|non-?finite|infinite)",
        r"nan_to_num|isfinite|clean the (?:data|batch|inputs?)|missing values",
    ),
    "check-data": any_of(
        r"(?:<look>|\bfix\b)~(?:data ?set|\bdata\b|loader|loading|pipeline|preprocess|images?\b|inputs?\b)"
    ),
    # the targets and the loss
    "remove-final-activation": any_of(
        r"<remove>~(?:soft-?max|sigmoid|tanh|relu|exp\b|clamp|(?:last|final|output) activation)",
        r"<remove>~normali[sz]\w+ of the output",
        r"\b(?:pass|give|feed|return|use|hand)\b~(?:\braw\b|unnormali[sz]ed|\blogits)",
        r"\blogits (?:directly|themselves|instead)",
        r"linear (?:output|last|final)|\bend\b~\blinear",
        r"\btake\b~(?:soft-?max|sigmoid|tanh|relu)\b~\b(?:out|away|off)\b",
        r"(?:output|last|final)~\b(?:be linear|without (?:an )?activation)",
    ),
    "change-loss": any_of(
        r"<change>~(?:loss\b|loss\(|cross[- _]?entropy|\bbce|\bnll|\bmse|hinge|with_?logits|kl_?div|log_target)"
    ),
    "change-output-activation": any_of(
        r"(?:<change>|\bappl\w+)~(?:log_?-? ?soft-?max|sigmoid)~(?:instead|output|in place|loss)",
        r"replac\w+~soft-?max~(?:with|by)~(?:sigmoid|log)",
        r"log(?:arithm)? of the (?:softmax|probabilit)|log[- ]probabilit",
    ),
    "more-outputs": any_of(
        r"(?:one|an) (?:output|unit|logit)s? (?:unit )?(?:per|for each|for every) class",
        r"\b(?:two|2|several|more|as many) (?:outputs?|logits|units)\b",
    ),
    "scale-outputs": any_of(
        r"temperature", r"\b(?:multipl|scal|widen|stretch)\w*~\b(?:outputs?|logits|similarit\w+|cosines?)\b"
    ),
    "scale-targets": any_of(
        r"<normalise>~<targets>", r"log(?:arithm)?\b~<targets>", r"<targets>~\bdivid", r"\(y - (?:y\.)?mean"
    ),
    "fix-targets": any_of(
        r"\b(?:map|convert|encod|recod|bring|shift|clip|mov|chang|mak)\w*~<targets>|divid\w*~\bmasks?\b",
        r"<targets> (?:of )?(?:-1|0) (?:and|or|to)",
        r"<targets>~\b(?:between|in|from|within|be)\b~(?:-1|0|\[)",
        r"<targets>~\b(?:range|interval)",
    ),
    "match-shapes": any_of(
        r"squeeze|(?:same|one|equal) shape|view_as|match~shapes?\b|shapes? (?:equal|agree|match)",
        r"\b(?:reshape|flatten|view)\b~(?:targets?|outputs?|labels?|predictions?)",
    ),
    "balance-classes": any_of(
        r"class[- _]?weights?|weight(?:ed|s|ing)?~\b(?:class|rare)|rare~\bweight|weighted ?random",
        r"\b(?:over|under|re)-?sampl|pos_weight|stratif|focal|\bbalanc",
    ),
    "shift-targets": any_of(r"\bshift|next token|\[:, 1:\]|one (?:step|place|token) (?:later|ahead|on)"),
    "mask-padding": any_of(
        r"\bpack_padded|\bpack\b|padding_mask|attention_mask|\bmask\w*~\bpad|\bpad\w*~\bmask|padding_idx",
        r"\b(?:ignor|skip|leave out|exclud|trim|shorten|without)\w*~\bpad",
        r"\bpad\w*~\b(?:left|shorter|less|ignor|exclud)",
    ),
    "check-labels": any_of(r"(?:<look>|\bshuffl\w*|\bmix\w*)~(?:<targets>|\bclasses\b|data ?set|loader|batch)"),
    # weights and signal
    "initialise": any_of(
        r"initiali[sz]|\b(?:re-?)?init\b|nn\.init|kaiming|xavier|glorot|\bhe init|orthogonal|lecun|reset_parameters",
        r"random (?:values|weights|numbers|distribution)|at random|symmetry",
    ),
    "rescale-layer": any_of(
        r"\b(?:re-?scal|scal|divid|multipl|shrink)\w*~(?:\bweights?\b|\blayer\b(?! norm)|`\w+`)(?! decay)",
        r"\b(?:re-?scal|scal|divid|multipl|shrink)\w*~(?:\bembeddings?\b|\bgains?\b|kernel)",
        r"\bweights?\b~(?:\bsmaller|\blarger|size of)",
        r"<lower>~(?:\bweights?\b(?![- _]decay)|\bembedding|\bgain|standard deviation|\bstd\b)",
    ),
    "change-activation": any_of(r"<change>~(?:<activation>)(?!~\bbetween)", r"non-?saturating|leaky"),
    "add-activation": any_of(
        r"\b(?:add|insert|put|plac)\w*~(?:<activation>)~\b(?:between|after|behind)",
        r"\b(?:between|after)\b~\b(?:add|insert|put|plac)\w*~(?:<activation>)",
        r"\b(?:merge|fold|collapse)\b~(?:layers?|maps?)\b|missing activation",
    ),
    "add-normalizer": any_of(r"<add>~(?:<norm>)", r"(?:<norm>) (?:after|before|between)"),
    "add-skip": any_of(r"skip[- ]connection|residual connection|shortcut|highway"),
    "scale-branch": any_of(
        r"\b(?:scal|multipl|divid|shrink|weigh|damp)\w*~(?:branch|residual|summand)|layer-?scale|re-?zero|fixup",
        r"(?:branch|residual)~(?:factor|scale|1/sqrt)",
    ),
    "lower-learning-rate": any_of(r"<lower>~(?:<rate>)|(?:<rate>)~<lower>|warm-?up"),
    "clip-gradients": any_of(r"\bclip\w*~(?:grad|norm)|grad\w*~\bclip"),
    "restore-weights": any_of(
        r"\b(?:restor|re-?load|roll back|go back|load)\w*~(?:checkpoint|weights?\b|\bstate)",
        r"(?:earlier|older|previous|last good) checkpoint|retrain|\btrain\b~\b(?:again|anew)",
    ),
    "raise-learning-rate": any_of(
        r"\b(?:rais|increas|larg|high)\w*~(?:<rate>)|(?:<rate>)~\b(?:larger|higher|rais|increas)"
    ),
    "lower-momentum": any_of(r"<lower>~\bmomentum|\bmomentum\b~(?:<lower>|0\.9\b)"),
    "minimise": any_of(r"maximi[sz]e|\bsign\b|minus|\bminimi[sz]|descen[dt]"),
    "lower-weight-decay": any_of(r"(?:<lower>|<remove>)~(?:<decay>)|(?:<decay>)~<lower>"),
    "reset-bias": any_of(
        r"\b(?:re-?set|rais|set|zero|increas|start|lower|initiali[sz]|chang|remov)\w*~\bbias(?:es)?\b",
        r"\bbias(?:es)?\b.{0,40}\b(?:to|at|of|near) (?:0|zero|a small)",
    ),
    "lower-dropout": any_of(r"(?:<lower>|<remove>)~dropout|dropout~(?:<lower>|0\.[0-5])"),
    # structure
    "keep-gradient": any_of(
        r"<remove>~(?:detach|no_grad|inference_mode|\.data\b|\.item|numpy|tolist|torch\.tensor)",
        r"straight-through|gumbel|differentiable|soft (?:choice|version|assignment)|\b(?:stay|keep)\b~\bgraph",
        r"soft-?max~instead of~argmax|reentrant|\bbackward\b~(?:return|function)|<remove>~(?:argmax|\.long|round)",
    ),
    "use-parameter": any_of(
        r"\b(?:use|call|apply|add)\b~\bforward\b|\bforward\b~\b(?:use|call|apply)\b|\bor (?:remove|delete) (?:it|them)",
        r"\b(?:remove|delete|drop)\b~\b(?:it|layer|parameters?|module)\b~\b(?:from the model|if|altogether)\b",
    ),
    "register-parameter": any_of(
        r"ModuleList|ModuleDict|ParameterList|ParameterDict|nn\.Parameter|\bregister|add_module"
    ),
    "add-to-optimizer": any_of(
        r"\b(?:add|give|pass|hand|put|include)\w*~(?:\bparameters?\b|\bthem\b|\bit\b)~\boptimi[sz]er",
        r"\boptimi[sz]er~(?:model\.parameters|add_param_group|\ball (?:the |its )?parameters)|add_param_group",
    ),
    "widen-layer": any_of(r"\b(?:widen|wider|more (?:units|channels|outputs|features)|larger width)\b"),
    "fewer-layers": any_of(r"\b(?:fewer|less) (?:\w+ )?(?:layers|rounds|hops)|shallower|jumping knowledge"),
    "unfreeze": any_of(r"unfreez|requires_grad"),
    "fix-axis": any_of(r"\b(?:dims?|axis|axes|dimensions?)\b|batch_first|\bpermut|transpos|start_dim|flatten\(1\)"),
    "restore-condition": any_of(
        r"(?:\bcondition\w*|\btime\b|\blabels? embedding)~(?:factor|multipl|zero|switched|\bscale|influence)",
        r"\b(?:factor|multipl|scale)\w*~(?:\bcondition|\btime\b|\blabels? embedding)|no influence|has no effect",
    ),
    "guard-domain": any_of(
        r"\badd\b~(?:\beps\b|epsilon|small (?:constant|number|value|positive))|\bclamp|log1p|logsumexp|hypot",
        r"\b(?:before|inside|under)\b~(?:\blog\b|logarithm|\broot|sqrt|\bdivision|\bdividing)|<change>~log_?softmax",
        r"keep~positive|denominator|1e-\d+ (?:to|inside|under|before)|\blog\([^)]*\+",
    ),
    "raise-precision": any_of(
        r"float32|fp32|bfloat16|bf16|(?:full|single|double|higher|mixed) precision|\.float\(\)",
        r"grad-?scaler|loss scal|scal\w+ the loss|autocast",
    ),
    # normalizers
    "larger-batch": any_of(
        r"\b(?:larg|bigg|more|increas|rais)\w*~(?:\bbatch|\bsamples\b|\bvalues\b)",
        r"\d+ (?:samples|values)\b|\bbatch(?:es)?(?: size)?~\b(?:of|least|larger|bigger)\b~\d|accumulat",
    ),
    "replace-normalizer": any_of(
        r"<change>~(?:group|layer|instance|rms|batch)[- ]?norm",
        r"(?:group|layer|instance|rms)[- ]?norm\w* instead|<remove>~(?:<norm>)|fewer groups|\btake~(?:<norm>) out",
    ),
    "refresh-statistics": any_of(
        r"<renew>~(?:<statistics>)|(?:<statistics>)~<renew>|momentum|\bbatches\b~train mode|train mode~\bbatches\b"
    ),
    "lower-eps": any_of(r"<lower>~\beps(?:ilon)?\b|\beps(?:ilon)?\b~(?:<lower>|1e-|below)"),
    "switch-mode": any_of(
        r"\.train\(|\.eval\(|(?:train|eval) mode|training=|self\.training",
        r"\b(?:switch|put|set|bring)\b~(?:training|evaluation|inference) mode",
    ),
    # attention and recurrence
    "scale-attention": any_of(
        r"sqrt\(|1/sqrt|square root|\b(?:qk|query|queries|keys?)\b~norm|qk-?norm|normali[sz]e~\bquer",
        r"\b(?:scal|divid|cap)\w*~(?:\battention|\blogits|\bscores|\bquer|\bkeys?\b|dot product)",
    ),
    "fix-mask": any_of(
        r"\b(?:invert|check|fix|correct|chang|flip|negat|look at|pass|allow|let|use|add|set|appl)\w*~mask",
        r"mask~(?:visible|inverted)|is_causal",
    ),
    "gated-recurrence": any_of(
        r"<change>~\b(?:lstm|gru|gated)|spectral radius|identity (?:matrix|recurren)|\bshorter sequences|truncat"
    ),
    "carry-state": any_of(
        r"\b(?:pass|carry|hand|keep|feed|give)\w*~\b(?:hidden )?states?\b|states?~\b(?:next|from step to)"
    ),
    "read-last-step": any_of(r"\[:, -1\]|\b(?:last|final) (?:time )?(?:step|state|output)\b"),
    "use-one-direction": any_of(r"bidirectional|\bone direction|unidirectional|(?:second|backward) direction"),
    "forget-bias": any_of(r"forget[- ]gate|forget bias|\bgates?\b~\bbias|\bbias\b~\bgates?\b"),
}
