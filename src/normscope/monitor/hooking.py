"""Hooks around forwards and steps, where those of torch are not enough."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import FrameType
from typing import Any
from weakref import WeakMethod, ref

import torch
from torch import nn
from torch.optim import Optimizer

from ..core.torch_settings import uncompiled
from ..core.untouched import untouched

Before = Callable[[nn.Module, Any, Any], None]
After = Callable[[nn.Module, Any, Any], None]


def aside(model: nn.Module) -> ExitStack:
    """Return a context in which a model can be run without a trace: eager, no gradients, all put back."""
    stack, modes = ExitStack(), [(module, module.training) for module in model.modules()]
    stack.enter_context(untouched(model))
    for module, mode in modes:  # with dropout, as in the run
        module.training = mode
    stack.enter_context(torch.no_grad())
    stack.enter_context(uncompiled())
    return stack


class WeakHook:
    """A hook that calls a method while its object lives; its copy, in a copied or pickled model, calls nothing.

    Args:
        method: the bound method to call; None for a hook that calls nothing.
        module: the module that it is a hook of; deep copies of the module have no such hook.
    """

    def __init__(self, method: Callable[..., Any] | None = None, module: nn.Module | None = None) -> None:
        self._method = None if method is None else WeakMethod(method)
        self._module = None if module is None else ref(module)

    def __call__(self, *args: Any) -> Any:
        """Call the method, if there is one left; nothing of it is compiled."""
        if torch.compiler.is_compiling():
            return None
        method = None if self._method is None else self._method()
        return None if method is None else method(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return WeakHook, ()

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
            made = None  # as for torch's hooks: nothing if it raised
            try:
                made = self.compiled(*args, **kwargs)  # type: ignore[misc]
                return made
            finally:
                after(module, args, made)

        module._compiled_call_impl = call

    def remove(self) -> None:
        """Put the module back as it was."""
        self.module._compiled_call_impl = self.compiled


def around_forward(module: nn.Module, before: Before, after: After) -> list[Any]:
    """Return hooks, each with `remove`, around a module's forward."""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return [CompiledCallback(module, before, after)]
    return [
        module.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
        module.register_forward_hook(after, always_call=True),
    ]


HOOKED = Optimizer.profile_hook_step(lambda self: None).__code__
"""The function of torch that runs around an optimizer's step and calls its hooks."""


def steps_under_way(optimizer: Optimizer) -> int:
    """Return how many steps of an optimizer have begun and not ended: two where one calls that of its base class."""
    frame: FrameType | None = sys._getframe()
    count = 0
    while frame is not None:
        count += frame.f_code is HOOKED and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return max(count, 1)


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
