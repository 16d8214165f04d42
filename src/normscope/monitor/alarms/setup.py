"""Alarms about how a loop is put together: data, gradients, parameters and the watcher do not meet as they should."""

from __future__ import annotations

import contextlib
import gc
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ...core.finding import Finding, Severity
from ...report.words import pluralise
from ..courses import LASTING_STEPS, PLAIN_STEPS
from ..forward_listening import compiled_functions
from ..history import FAINT_ENTRIES, SLOW_GROUP_SHARE, Alarm, History, Since, others_likewise

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


LEFT_DOMAIN = Alarm(
    code="left-domain",
    seen="For {records:counted record} at least {share:percent} of the samples were outside of the domain that is "
    "followed; at the start it was at most {share_first:percent}. The {family} in {where} leaves its range most.",
    why="The network as it was recorded has inner values at these samples that it did not have at the data of the "
    "domain: the data have changed. Bounds over the domain, and its coverage, say nothing about them.",
    advice="Look at the data first: scaling, augmentation, a new source, a shifted label mix. If they are meant to be "
    "so, record the domain anew with them: normscope.domain(model, loader).",
)
LEFT_SHARE = 0.2
"""By how much the share of samples outside must exceed that at the start, in every record of a lasting state.

A share that stays does not do that by chance: with 32 samples, of which half are outside, in one of a million windows.
"""
NEVER_INSIDE_SHARE = 0.9
"""Share of the samples outside that says, also without a rise, that these are not the data of the domain."""


def left_domain(history: History) -> Iterator[Finding]:
    """Training data that leave the domain that is followed, or never were inside."""
    course = history.total("share_outside")
    shares, start = course.lasting(), max(course.first, default=0.0)
    if not shares or min(shares) < min(start + LEFT_SHARE, NEVER_INSIDE_SHARE):
        return
    operators = history.of("operator")
    excesses = [history.course("operator", "excess", i).now for i in range(len(operators))]
    reach = [-math.inf if excess is None else excess for excess in excesses]
    place = operators[reach.index(max(reach))]
    yield LEFT_DOMAIN.at(
        history.step,
        place.name,
        {"records": len(shares), "family": place.family},
        share=min(shares),
        share_first=start,
        excess=max(reach),
    )


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
    why="No step moves these parameters until their rate is larger.",
    advice="Nothing to do if a schedule raises it; otherwise set the rate of their parameter group. If they are to "
    "stay as they are, freeze them with requires_grad_(False), which spares their gradients.",
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


FROZEN_LAYER = Alarm(
    code="frozen-layer",
    seen="The parameters of {where} are frozen (requires_grad=False) and still have the random values of a new "
    "layer.{also}",
    why="A layer that was never trained stays random, while most others are trained.",
    advice="Unfreeze it: layer.requires_grad_(True), and give its parameters to the optimizer; or load its weights if "
    "it was to be a pretrained one.",
)
FROZEN_FAINT = replace(
    FROZEN_LAYER,
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
    if names:
        yield FROZEN_LAYER.at(history.step, names[0], {"also": others_likewise(len(names), "other layer")})
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


# ---- a watcher that sees nothing: told at once, for no record will come

COMPILE_THE_MODEL = (
    "Compile the model, not the function around it: model = torch.compile(model), pass ns.watch that, and call "
    "optimizer.step() outside of what is compiled."
)
EVAL_MODE = Alarm(
    code="eval-mode",
    seen="The optimizer steps, and every forward in between is in eval mode{part}.",
    why="In eval mode BatchNorm uses its stored statistics and does not move them, and dropout does nothing: this is "
    "not the network that training is meant for. Nothing is measured of it.",
    advice="Call model.train() before the loop, and again after every evaluation{keep}.",
)
FORWARD_UNSEEN = Alarm(
    code="not-seen",
    seen="The optimizer steps, but no forward of the watched model is seen.",
    why="Hooks of a module do not run inside of a compiled function, nor where its forward method is called directly, "
    "nor on a copy of it. Nothing is measured.",
    advice="Pass ns.watch the object that the loop calls (the compiled module, the wrapper), and call it, not its "
    "forward method.",
)
FORWARD_COMPILED = replace(
    FORWARD_UNSEEN,
    seen="The optimizer steps, but no forward of the watched model is seen: it runs inside of a function that "
    "torch.compile has made.",
    advice=COMPILE_THE_MODEL,
)
STEP_UNSEEN = Alarm(
    code="not-seen",
    seen="Weights change, but neither a forward of the watched model nor a step of the optimizer is seen.",
    why="Hooks do not run inside of a function that torch.compile has made, and another optimizer than the one that "
    "was given is not seen. Nothing is measured.",
    advice=f"{COMPILE_THE_MODEL} Pass ns.watch the optimizer that is stepped.",
)
OPTIMIZER_REPLACED = Alarm(
    code="not-seen",
    seen="Another optimizer ({other}) trains the parameters of the one that is watched, which does not step any more.",
    why="Steps are counted and measured where the watched optimizer makes them. Nothing is measured.",
    advice="Call ns.watch with the new optimizer, with the same log to go on.",
)
NO_STEP = Alarm(
    code="no-step",
    seen="No step of the optimizer happened since step {step:,}: forward and backward ran {count} times, and gradients "
    "{gradients}.{scaler}",
    why="Weights do not change without a step: nothing is learned.",
    advice="Call optimizer.step() after each backward. If a GradScaler makes the steps, it skips all whose gradients "
    "are NaN or infinite: look at scaler.get_scale(), call scaler.update(), and find what makes them infinite.",
)
STEP_NOT_SEEN = Alarm(
    code="not-seen",
    seen="No step of the optimizer is seen in {count:,} forwards.",
    why="Steps are counted and measured where the watched optimizer makes them. Nothing is measured.",
    advice="Pass ns.watch the optimizer that is stepped, and do not compile its step.",
)
STUCK_FORWARDS = 1000
"""How many forwards in train mode pass without a step of the optimizer before the watcher says so."""
LISTENED_FORWARDS = 3
"""Forwards without a step after which backwards are listened to."""
NO_STEP_BACKWARDS = 10
"""Backwards, each after gradients were cleared, without a step: accumulation does not clear them."""
MAX_ACCUMULATED = 250
"""Backwards without a step, if there were never half as many before: nobody accumulates gradients over so many."""
BLIND_STEPS = 3
"""How many steps of the optimizer pass without a forward before the watcher says that it sees nothing."""
REPLACED_STEPS = 10
"""How many steps another optimizer takes for the same parameters, and ours none, before the watcher says so."""
PATIENT_LOSSES = 30
"""How many calls of `observe` pass without a forward or a step before the weights are looked at."""


def is_trained_in_eval_mode(model: nn.Module) -> bool:
    """Return whether eval mode changes nothing of what is trained, as with a frozen backbone under a new head.

    That is so where gradients are taken and every module that reads its mode is in train mode, or belongs to a part
    without anything to train. Where some of what is trained is in train mode, that was chosen part by part: then
    modules without parameters, such as dropout, are meant to be as they are.
    """
    if not torch.is_grad_enabled():
        return False
    trained = (m for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False)))
    return not _mode_matters(model, bare=not any(module.training for module in trained))


def _mode_matters(module: nn.Module, *, bare: bool) -> bool:
    """Return whether a part that is trained holds a module in eval mode that would do something else in train mode.

    Args:
        module: the part.
        bare: whether modules without parameters count; they belong to the part around them.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return False
    for child in module.children():
        if next(child.parameters(), None) is not None:
            if _mode_matters(child, bare=bare):
                return True
        elif bare and any(_reads_mode(inner) and not inner.training for inner in child.modules()):
            return True
    return _reads_mode(module) and not module.training


def _reads_mode(module: nn.Module) -> bool:
    """Return whether what a module does depends on its mode."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0.0
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return float(module.dropout) > 0.0
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return module.track_running_stats
    if isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer):
        return False  # its dropouts are modules of their own
    return "training" in getattr(getattr(type(module).forward, "__code__", None), "co_names", ())


class PartSearch:
    """Finds which parts of a model a loop calls where it never calls the model itself.

    Args:
        model: the model, which is not a part of its own.
        optimizer: the optimizer of the run.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        groups = optimizer.param_groups if optimizer is not None else ()
        self._trained = {id(p) for group in groups for p in group["params"]}
        self.called: dict[str, nn.Module] = {}
        self.direct = False  # whether they are called by the model's own forward, which is called as a method
        self._code = getattr(type(model).forward, "__code__", None)
        self._hooks = [
            module.register_forward_pre_hook(partial(self._meet, path))
            for path, module in model.named_modules()
            if path and next(module.parameters(), None) is not None
        ]

    def _meet(self, path: str, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not self.called:
            frame: Any = sys._getframe()
            while frame is not None and not self.direct:
                self.direct, frame = frame.f_code is self._code, frame.f_back
        self.called[path] = module

    def finish(self) -> tuple[str, nn.Module] | None:
        """Stop, and return the part that no other part called of which the optimizer trains most, with its path.

        None if none was called in train mode.
        """
        for hook in self._hooks:
            hook.remove()
        sizes = {
            path: sum(p.numel() for p in module.parameters() if p.requires_grad and id(p) in self._trained)
            for path, module in self.called.items()
            if module.training and not any(path.startswith(f"{other}.") for other in self.called)
        }
        largest = max(sizes, key=lambda path: sizes[path], default=None)
        if largest is None or not sizes[largest] or self.direct:
            return None
        return largest, self.called[largest]


class Sight:
    """Counts forwards and steps, and says what keeps the watcher from seeing a training.

    Args:
        optimizer: the optimizer of the run, as it begins.

    Attributes:
        part: the part of the model that the loop calls instead of the model, with its path; None where it calls that.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._versions = _sum_versions(optimizer)
        self._waiting = self._evaluated = 0  # forwards since the last step; forwards in eval mode in a row
        self._unseen = self._others = 0  # steps since the last forward; of other optimizers since the last of ours
        self._observed = 0  # losses
        self._seen = self._in_train_mode = False  # a forward or a step at all, and a forward in train mode
        self._counted = False  # whether the present forward, in eval mode, is one of training
        self._optimizer = ref(optimizer)
        self._hook: Any = None
        self._gradient: tuple[Any, int] | None = None  # that after the last backward, as a reference, and its version
        self._cleared = 0  # backwards since the last step that found gradients cleared
        self._listened_from = 0  # the sum of versions of the weights when listening began
        self._backwards = self._most_backwards = 0  # since the last step, and in front of any step so far
        self._told = False  # that steps never happen
        self._search: PartSearch | None = None
        self.part: tuple[str, nn.Module] | None = None

    def passes(self) -> bool:
        """Count a usual forward, in train mode as the last one was, with a step between them; else return false."""
        if self._waiting or self._evaluated or self._counted or not self._in_train_mode:
            return False
        self._unseen, self._waiting = 0, 1
        return True

    @property
    def sees(self) -> bool:
        """Whether a forward or a step was seen at all."""
        return self._seen

    def forward(self, step: int, *, training: bool) -> Finding | None:
        """Count a forward; return what is wrong if so many have passed that a step should have been seen."""
        self._evaluated = 0 if training else self._evaluated + 1
        if not training:
            return None
        self._in_train_mode, self._counted = not self._counted, False
        self._seen, self._unseen, self._waiting = True, 0, self._waiting + 1
        if self._waiting == LISTENED_FORWARDS:
            self._listen()
        waits = self._backwards >= max(MAX_ACCUMULATED, 2 * self._most_backwards)
        if (self._cleared >= NO_STEP_BACKWARDS or waits) and not self._others:
            return self.never_stepped(step)
        return STEP_NOT_SEEN.at(step, words={"count": STUCK_FORWARDS}) if self._waiting == STUCK_FORWARDS else None

    def counts(self, model: nn.Module) -> bool:
        """Return whether a forward in eval mode is one of training.

        Behind forwards in train mode those in eval mode are validations, until two steps pass without the former.
        """
        self._in_train_mode = self._in_train_mode and self._unseen < BLIND_STEPS - 1
        self._counted = not self._in_train_mode and is_trained_in_eval_mode(model)
        return self._counted

    def never_stepped(self, step: int) -> Finding | None:
        """Return what is wrong if backwards have run without a step: with cleared gradients, or more than ever."""
        optimizer = self._optimizer()
        many = self._backwards >= max(NO_STEP_BACKWARDS, 2 * self._most_backwards)
        if self._told or (self._cleared < LISTENED_FORWARDS and not many) or optimizer is None:
            return None
        if _sum_versions(optimizer) != self._listened_from:
            return None
        self._told = True
        scalers = [item for item in gc.get_objects() if type(item).__name__ == "GradScaler" and item.is_enabled()]
        scaler = " A GradScaler is in use: it skips steps whose gradients are not finite." if scalers else ""
        kept = "were cleared in between" if self._cleared else "accumulate, for more batches than there ever are"
        words = {"step": step, "count": max(self._waiting - 1, self._backwards), "scaler": scaler, "gradients": kept}
        return NO_STEP.at(step, words=words)

    def _listen(self) -> None:
        """Listen to the backwards, by one parameter, until the next step."""
        optimizer = self._optimizer()
        chosen = (
            [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad] if optimizer else []
        )
        if optimizer is not None and chosen and self._hook is None:
            self._gradient, self._cleared, self._listened_from = None, 0, _sum_versions(optimizer)
            with contextlib.suppress(RuntimeError):
                self._hook = chosen[-1].register_post_accumulate_grad_hook(self._accumulated)

    def _accumulated(self, parameter: Tensor) -> None:
        """Count a backward that found no gradient of the one before: another tensor, or one that was changed since."""
        grad = parameter.grad
        self._backwards += 1
        if grad is not None:
            if self._gradient is not None:
                self._cleared += self._gradient[0]() is not grad or grad._version > self._gradient[1] + 1
            self._gradient = (ref(grad), grad._version)

    def close(self) -> None:
        """Stop listening."""
        if self._hook is not None:
            self._hook.remove()
        self._most_backwards = max(self._most_backwards, self._backwards)
        self._hook, self._gradient, self._cleared, self._backwards = None, None, 0, 0
        if self._search is not None:
            self._search.finish()
        self._search = None

    def stepped(self) -> bool:
        """Count a step of the optimizer; return whether no forward was seen since the one before."""
        self._seen, self._waiting, self._others = True, 0, 0
        self._unseen += 1
        if self._hook is not None:
            self.close()
        return self._unseen > 1

    def explain(self, step: int, model: nn.Module) -> Finding | None:
        """Return what is wrong if so many steps have passed without a forward between them."""
        if self._unseen == BLIND_STEPS - 1 and not self._evaluated:
            self._search = PartSearch(model, self._optimizer())
        if self._unseen != BLIND_STEPS:
            return None
        search, self._search = self._search, None
        self.part = None if search is None else search.finish()
        if self.part is not None:
            return None
        if self._evaluated:
            trains = next((path for path, module in model.named_modules() if module.training), None)
            words = {"part": ": the whole model", "keep": ""}
            if trains is not None:
                words["part"] = f": the model as such, though not `{trains}` in it"
                words["keep"] = "; then call eval() of those parts alone that are to stay as they are"
            return EVAL_MODE.at(step, words=words)
        return (FORWARD_COMPILED if compiled_functions() else FORWARD_UNSEEN).at(step)

    def stepped_by(self, other: Optimizer, watched: Optimizer, step: int) -> Finding | None:
        """Count a step of another optimizer; return what is wrong if it trains the same parameters in our place."""
        self._others += 1
        if self._others % REPLACED_STEPS:
            return None
        ours = {id(p) for group in watched.param_groups for p in group["params"]}
        shared = any(id(p) in ours for group in other.param_groups for p in group["params"])
        return OPTIMIZER_REPLACED.at(step, words={"other": type(other).__name__}) if shared else None

    def observed(self, optimizer: Optimizer, step: int) -> Finding | None:
        """Count a loss; return what is wrong if weights change and nothing else is seen."""
        self._observed += 1
        return self.missed(optimizer, step) if self._observed == PATIENT_LOSSES else None

    def missed(self, optimizer: Optimizer, step: int) -> Finding | None:
        """Return what is wrong if weights have changed while nothing was seen."""
        return STEP_UNSEEN.at(step) if not self._seen and _sum_versions(optimizer) != self._versions else None


def _sum_versions(optimizer: Optimizer) -> int:
    """Return a number that every change of a weight in place raises.

    Weights that a lazy layer has not made yet, and those made in inference mode, count as 0.
    """
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return sum(0 if is_lazy(p) or p.is_inference() else p._version for p in parameters)
