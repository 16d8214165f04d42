"""Alarms about how a loop is put together: data, gradients and parameters do not meet as they should."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ....core.finding import Finding, Severity
from ....report.words import pluralise
from ...findings.parameters import describe_frozen_behind, describe_frozen_random
from ...findings.steps import RESTING_ADVICE, RESTING_WHY
from ..courses import LASTING_STEPS, PLAIN_STEPS
from ..history import Alarm, History, others_likewise
from ..parameter_follower import FAINT_ENTRIES, SLOW_GROUP_SHARE, Since

PLAIN_RECORDS = 2
"""Records after the first that are enough for what no batch can cause by chance."""
CONSECUTIVE_RECORDS = 3
"""Records in a row that are enough for what one batch might show by chance."""

# ---- data

CONSTANT_INPUT = Alarm(
    code="constant-input",
    seen="In {records} measured batches in a row all samples are the same to the last bit (zeros, perhaps).",
    why="From inputs that do not differ nothing can be learned but the frequencies of the targets.",
    advice="Look at what the loader returns: a wrong index, a scaling that divides by zero or rounds to integers, a "
    "buffer that is not filled.",
)


def constant_input(history: History) -> Iterator[Finding]:
    """Batches whose samples are all the same."""
    spreads = [record.total.get("input_spread") for record in history.repeated(CONSECUTIVE_RECORDS)]
    if spreads and all(spread == 0.0 for spread in spreads):
        yield CONSTANT_INPUT.at(history.step, words={"records": len(spreads)}, spread=0.0)


# ---- gradients and parameters

NO_GRADIENT = Alarm(
    code="no-gradient",
    seen="For {steps} steps {names} got no gradient at all (`grad` is None), though the optimizer is to train it.",
    why="The loss does not depend on these parameters: they keep the values they were initialised with.",
    advice="Remove the detach(), torch.no_grad(), argmax or conversion to NumPy that cuts the gradient off behind "
    "{where}, or look for a branch that the forward does not take. Freeze what is not to be trained with "
    "requires_grad_(False).",
)
NOT_TRAINED = Alarm(
    code="not-trained",
    seen="For {steps} steps {names} got gradients, but did not change: it is in no optimizer.",
    why="These layers keep the values they were initialised with, and their gradients are taken for nothing.",
    advice="Pass the optimizer model.parameters(), also of layers that were added after it was made. Freeze what is "
    "not to be trained with requires_grad_(False).",
)


def no_gradient(history: History) -> Iterator[Finding]:
    """Parameters that the optimizer has and that no gradient reaches, while others have one."""
    names = _lasting(history, history.standing.ungraded)
    if names and not history.has_raised("no-gradient") and history.records[-1].total.get("log10_gradient") is not None:
        yield _name_parameters(NO_GRADIENT, history, names, names[-1], history.standing.ungraded[names[-1]].step)


def not_trained(history: History) -> Iterator[Finding]:
    """Parameters that get gradients but that no optimizer changes."""
    names = _lasting(history, history.standing.unmoved)
    if names and not history.has_raised("not-trained"):
        yield _name_parameters(NOT_TRAINED, history, names, names[0], history.standing.unmoved[names[0]].step)


def _lasting(history: History, standing: Mapping[str, Since]) -> list[str]:
    """Return the parameters of which something was so for a lasting state."""
    return [
        name
        for name, since in standing.items()
        if (since.records > PLAIN_RECORDS and history.step - since.step >= PLAIN_STEPS)
        or (since.records >= PLAIN_RECORDS and history.step - since.step >= LASTING_STEPS)
    ]


def _name_parameters(alarm: Alarm, history: History, names: list[str], at: str, since: int) -> Finding:
    """Return an alarm about parameters, at the module of one of them."""
    others = f" (and {pluralise(len(names) - 1, 'other parameter')})" if len(names) > 1 else ""
    named, at = (name.replace(" (new)", "") for name in (names[-1], at))  # as the user's model has it now
    words = {"steps": history.step - since, "names": f"`{named}`{others}"}
    return alarm.at(history.step, at.rpartition(".")[0], words, parameters=len(names))


GRADIENT_MISSING = Alarm(
    code="no-gradient-at-step",
    seen="At the measured steps {first:,} to {last:,} {what}, while the loss was {loss}.",
    why="Where the optimizer steps there is no gradient: the step does nothing.",
    advice="Look at the order of the calls: optimizer.zero_grad(), then loss.backward(), then optimizer.step(). If it "
    "is right, the loss does not depend on the parameters: remove the detach(), rounding or argmax between them and "
    "the loss, or look for an output that is constant.",
)


def gradient_missing(history: History) -> Iterator[Finding]:
    """No parameter has a gradient at the step, or all gradients are zeros."""
    records = [r for r in history.records if r.values.get("weight")][-PLAIN_RECORDS - 1 :]
    if len(records) < PLAIN_RECORDS or records[-1].step - records[-PLAIN_RECORDS].step < PLAIN_STEPS:
        return
    gradients = [r.total.get("log10_gradient") for r in records[-PLAIN_RECORDS:]]
    loss = records[-1].loss
    if loss == 0.0 or any(value is not None and value != -math.inf for value in gradients):
        return
    part = f" of `{history.standing.part}`" if history.standing.part else ""
    gone = f"the gradients of all parameters{part} were zero"
    gone = f"no parameter{part} had a gradient" if gradients[-1] is None else gone
    words = {
        "first": records[-PLAIN_RECORDS].step,
        "last": records[-1].step,
        "what": gone,
        "loss": "not observed" if loss is None else f"{loss:.3g}",
    }
    yield GRADIENT_MISSING.at(history.step, history.standing.part, words)


SLOW_GROUP = Alarm(
    code="weights-still",
    seen="The learning rate of {names} is less than {share:figure} of the largest one ({lr:figure}), for {steps} "
    "steps.",
    why="At a rate that is this much too low these layers hardly move: they keep the values they were initialised "
    "with.",
    advice="Raise the learning rate of their parameter group; look how rates are made from layer to layer. Freeze what "
    "is not to be trained with requires_grad_(False).",
)


RESTING_GROUP = replace(
    SLOW_GROUP,
    seen="The learning rate of {names} is 0, for {steps} steps, while the largest one is {lr:figure}.",
    why=RESTING_WHY,
    advice=RESTING_ADVICE,
    severity=Severity.INFO,
)


def slow_groups(history: History) -> Iterator[Finding]:
    """Parameters whose group has no learning rate, or next to none, while others have one."""
    standing = history.standing
    for alarm, since in ((SLOW_GROUP, standing.slow), (RESTING_GROUP, standing.resting)):
        names = _lasting(history, since)
        if not names or (alarm is SLOW_GROUP and history.beats_constant):
            continue
        others = f" (and of {pluralise(len(names) - 1, 'other parameter')})" if len(names) > 1 else ""
        words = {"steps": history.step - since[names[0]].step, "names": f"`{names[0]}`{others}"}
        rate = max(history.records[-1].lr, default=math.nan)
        where = names[0].rpartition(".")[0]
        yield alarm.at(history.step, where, words, share=SLOW_GROUP_SHARE, lr=rate, parameters=len(names))


FROZEN_FAINT = Alarm(
    code="frozen-layer",
    seen="The table of {where} is frozen (requires_grad=False), all of its entries are below {entry:figure}, and the "
    "loss is where it began.",
    why="Vectors that were trained are larger: these were drawn to be trained, and carry hardly any signal.",
    advice="Unfreeze it: nn.Embedding.from_pretrained(..., freeze=False), and give it to the optimizer; or load "
    "vectors that were trained.",
)
FAINT_STEPS = 100
"""Steps in which nothing is learned before a frozen table is said to be the cause."""


def frozen_layer(history: History) -> Iterator[Finding]:
    """Layers that are frozen though they have the values of a new layer."""
    if history.has_raised("frozen-layer"):
        return
    names = _lasting(history, history.standing.frozen)
    unmeant = [name for name in names if name in history.standing.unmeant]
    if unmeant:
        yield replace(describe_frozen_random(unmeant), step=history.step)
    elif names:
        yield replace(describe_frozen_behind(names, len(history.of("weight"))), step=history.step)
    elif (table := history.standing.faint) and history.step >= FAINT_STEPS and history.is_unlearned:
        yield FROZEN_FAINT.at(history.step, table, entry=FAINT_ENTRIES)


PART_IN_EVAL_MODE = Alarm(
    code="eval-mode",
    seen="The model is in train mode, but BatchNorm {where} is in eval mode.{also}",
    why="In eval mode a BatchNorm uses its running statistics, which are still those of a new layer: it does not "
    "normalize at all, though its scales are trained.",
    advice="Call model.train() before the loop and after every evaluation, or that of {where}; look for code that "
    "calls eval() on the normalizers, which is meant for pretrained ones.",
)


def part_in_eval_mode(history: History) -> Iterator[Finding]:
    """BatchNorms that are trained in eval mode with the statistics of a new layer."""
    names = _lasting(history, history.standing.evaluated)
    if names and not history.has_raised("eval-mode"):
        others = ", ".join(f"`{name}`" for name in names[1:4])
        also = f" So are {others}{' and more' if len(names) > 4 else ''}." if others else ""
        yield PART_IN_EVAL_MODE.at(history.step, names[0], {"also": also}, count=len(names))


UNITS_ALIKE = Alarm(
    code="units-alike",
    seen="All units of {where} began with the same weights.{also}",
    why="Units that are alike get the same gradient and stay alike: the layer has the capacity of a single unit.",
    advice="Initialise weights at random (torch.nn.init.kaiming_normal_, or leave what torch does); constants are for "
    "biases and scales.",
)


def units_alike(history: History) -> Iterator[Finding]:
    """Several layers all of whose units began alike; of the last layer alone that is no harm."""
    names = history.standing.alike or ()
    if len(names) > 1 and len(history.records) > 1 and not history.has_raised("units-alike"):
        yield UNITS_ALIKE.at(history.step, names[0], {"also": others_likewise(len(names), "other layer")})


NO_ZERO_GRAD = Alarm(
    code="no-zero-grad",
    seen="In {records} records in a row gradients of the step before were still there when those of the next were "
    "added (up to {left:figure} in one entry).",
    why="Gradients are summed over all steps so far: steps grow and point where old batches pointed.",
    advice="Call optimizer.zero_grad() once for every optimizer.step(), before the backward.",
)


def no_zero_grad(history: History) -> Iterator[Finding]:
    """Gradients that are added to those of the steps before."""
    latest = [record.total.get("left_over") for record in history.repeated(CONSECUTIVE_RECORDS)]
    left = [value for value in latest if value is not None and value > 0.0]
    if left and len(left) == len(latest):
        gradient = history.total("log10_gradient").now
        words = {"records": len(left)}
        yield NO_ZERO_GRAD.at(history.step, words=words, left=max(left), log10_gradient=gradient)
