"""Finds out that a watcher cannot see the training; what it says is raised at once, because no record will come."""

from __future__ import annotations

import contextlib
import gc
import sys
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ...core.finding import Finding
from ..symptoms.unseen_training import (
    EVAL_MODE,
    FORWARD_COMPILED,
    FORWARD_UNSEEN,
    NO_STEP,
    OPTIMIZER_REPLACED,
    STEP_NOT_SEEN,
    STEP_UNSEEN,
)
from .forward_listening import compiled_functions

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


class UnseenTrainingDetector:
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
        return STEP_NOT_SEEN.at(step=step, words={"count": STUCK_FORWARDS}) if self._waiting == STUCK_FORWARDS else None

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
        return NO_STEP.at(step=step, words=words)

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
            return EVAL_MODE.at(step=step, words=words)
        return (FORWARD_COMPILED if compiled_functions() else FORWARD_UNSEEN).at(step=step)

    def stepped_by(self, other: Optimizer, watched: Optimizer, step: int) -> Finding | None:
        """Count a step of another optimizer; return what is wrong if it trains the same parameters in our place."""
        self._others += 1
        if self._others % REPLACED_STEPS:
            return None
        ours = {id(p) for group in watched.param_groups for p in group["params"]}
        shared = any(id(p) in ours for group in other.param_groups for p in group["params"])
        return OPTIMIZER_REPLACED.at(step=step, words={"other": type(other).__name__}) if shared else None

    def observed(self, optimizer: Optimizer, step: int) -> Finding | None:
        """Count a loss; return what is wrong if weights change and nothing else is seen."""
        self._observed += 1
        return self.missed(optimizer, step) if self._observed == PATIENT_LOSSES else None

    def missed(self, optimizer: Optimizer, step: int) -> Finding | None:
        """Return what is wrong if weights have changed while nothing was seen."""
        return STEP_UNSEEN.at(step=step) if not self._seen and _sum_versions(optimizer) != self._versions else None


def _sum_versions(optimizer: Optimizer) -> int:
    """Return a number that every change of a weight in place raises.

    Weights that a lazy layer has not made yet, and those made in inference mode, count as 0.
    """
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return sum(0 if is_lazy(p) or p.is_inference() else p._version for p in parameters)
