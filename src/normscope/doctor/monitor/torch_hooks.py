"""The hooks that torch lacks: weak ones, around compiled modules, around backwards, and around steps with a closure."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import FrameType
from typing import Any
from weakref import WeakMethod, ref

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.optim import Optimizer

Before = Callable[[nn.Module, Any, Any], None]
After = Callable[[nn.Module, Any, Any], None]


class WeakHook:
    """A hook that calls a method while its object lives; its copy, in a copied or pickled model, calls nothing.

    Args:
        method: the bound method to call; None for a hook that calls nothing.
        module: the module that it is a hook of; deep copies of the module have no such hook.
    """

    def __init__(self, method: Callable[..., Any] | None = None, module: nn.Module | None = None) -> None:
        self._owner: Callable[[], Any] = (lambda: None) if method is None else ref(method.__self__)  # type: ignore[attr-defined]
        self._function: Any = None if method is None else method.__func__  # type: ignore[attr-defined]
        self._module = None if module is None else ref(module)

    def __call__(self, *args: Any) -> Any:
        """Call the method, if there is one left; nothing of it is compiled."""
        if is_compiling():
            return None
        owner = self._owner()
        return None if owner is None else self._function(owner, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        # a saved model is loaded where there is no Normscope too: a callable of Python's own that does nothing
        return getattr, (nullcontext(), "__exit__")

    def __deepcopy__(self, memo: Any) -> WeakHook:
        module = None if self._module is None else self._module()
        copied = None if module is None else memo.get(id(module))
        if copied is not None:
            _leave_out_weak_hooks(copied)
        return WeakHook()


def _leave_out_weak_hooks(copied: nn.Module) -> None:
    """Let a copy that is being made drop such hooks once it has its state, which is the last thing that a copy gets."""

    def finish(state: Any) -> None:
        del copied.__dict__["__setstate__"]
        copied.__setstate__(state)
        for hooks in (copied._forward_pre_hooks, copied._forward_hooks):
            for number in [number for number, hook in hooks.items() if isinstance(hook, WeakHook)]:
                del hooks[number]
                for flags in (copied._forward_pre_hooks_with_kwargs, copied._forward_hooks_always_called):
                    flags.pop(number, None)

    copied.__dict__["__setstate__"] = finish


class CompiledCallback:
    """Calls back around a module that was compiled in place: its own hooks would be compiled with it."""

    def __init__(self, module: nn.Module, before: Before, after: After) -> None:
        self.module, self.compiled = module, module._compiled_call_impl

        def call(*args: Any, **kwargs: Any) -> Any:
            before(module, args, kwargs)
            output = None  # as for torch's hooks: nothing if it raised
            try:
                output = self.compiled(*args, **kwargs)  # type: ignore[misc]
                return output
            finally:
                after(module, args, output)

        module._compiled_call_impl = call

    def remove(self) -> None:
        """Put the module back as it was."""
        self.module._compiled_call_impl = self.compiled


# ---- the losses of measured steps, heard where their backwards begin: also those that a loop tells nobody

# torch has no hook in front of a backward, and behind it the outputs and targets that autograd kept are gone. So the
# function `torch.autograd.backward`, which `Tensor.backward` calls, is replaced while somebody listens: from a measured
# forward to the step of the optimizer, and never in other steps.

_listeners: list[BackwardListener] = []
_backward: Callable[..., None] = torch.autograd.backward


class BackwardListener:
    """While it is open, calls one method with each loss whose backward begins, and another when that has ended.

    Args:
        hear: the bound method that gets the loss; its object is not kept alive.
        end: the bound method that is called at the end, without arguments.
    """

    def __init__(self, hear: Callable[[Tensor], None], end: Callable[[], None] | None = None) -> None:
        self._hear, self._end = WeakMethod(hear), None if end is None else WeakMethod(end)

    def open(self) -> None:
        """Begin to listen."""
        global _backward
        if self not in _listeners:
            if not _listeners:
                _backward = torch.autograd.backward
                torch.autograd.backward = _hear_and_run
            _listeners.append(self)

    def close(self) -> None:
        """Stop listening; the last one puts torch's function back."""
        if self in _listeners:
            _listeners.remove(self)
            if not _listeners and torch.autograd.backward is _hear_and_run:
                torch.autograd.backward = _backward

    def begin(self, tensors: Any) -> None:
        """Hand on the one number that a backward begins with."""
        hear = self._hear()
        loss = tensors[0] if isinstance(tensors, Sequence) and len(tensors) == 1 else tensors
        if hear is None:
            self.close()
        elif isinstance(loss, Tensor) and loss.numel() == 1 and not loss.is_complex():
            with contextlib.suppress(Exception):  # what cannot be heard never stops a backward
                hear(loss)

    def end(self) -> None:
        """Say that the backward has ended."""
        end = None if self._end is None else self._end()
        if end is not None:
            with contextlib.suppress(Exception):
                end()


def _hear_and_run(tensors: Any, *args: Any, **kwargs: Any) -> None:
    """Let everybody hear of a backward, and run it."""
    listeners = () if is_compiling() else tuple(_listeners)
    for listener in listeners:
        listener.begin(tensors)
    _backward(tensors, *args, **kwargs)
    for listener in listeners:
        listener.end()


# ---- steps that call others, or take a closure


STEP_CODE = Optimizer.profile_hook_step(lambda self: None).__code__
"""The function of torch that runs around an optimizer's step and calls its hooks."""


def steps_under_way(optimizer: Optimizer) -> int:
    """Return how many steps of an optimizer have begun and not ended: two where one calls that of its base class."""
    frame: FrameType | None = sys._getframe()
    count = 0
    while frame is not None:
        count += frame.f_code is STEP_CODE and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return count


def after_closure(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], then: Callable[[], None]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of an optimizer's step with a closure that calls back once it has run for the first time.

    With a closure, forward and backward happen inside of the step: in front of it there are no gradients yet.

    Args:
        args: the positional arguments of the step, as a pre-hook gets them: the optimizer first.
        kwargs: the named arguments of the step.
        then: what is called.

    Returns:
        What a pre-hook returns to change them; None if there is no closure.
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        return None
    called = False

    def run() -> Any:
        nonlocal called
        loss = closure()
        if not called:
            called = True
            then()
        return loss

    if "closure" in kwargs:
        return args, {**kwargs, "closure": run}
    return (args[0], run, *args[2:]), dict(kwargs)
