"""How a forward is intercepted: `ForwardListener` sees every call and module, `LayerListener` the layers among them.

Calls are seen by a `TorchFunctionMode`, so that functional layers count too; the module they belong to is known from
global hooks, which leave the user's modules alone. `Names` keeps the names of modules that move, `UnitAxis` follows
along which dimension units lie.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from ..core.threads import warnings_at_callers
from ..core.untouched import without_dropout
from .calls import EMBEDDINGS, RECURRENT, RELUS, FunctionCall, Site, WeightSeen, weight_seen

MODULE_CALLS = {
    nn.Module._call_impl.__code__,
    *(held for held in nn.Module._call_impl.__code__.co_consts if isinstance(held, CodeType)),
}
"""What torch runs to call a module: its forward, and the hooks around it."""
FRAMES_PER_MODULE, LISTENER_FRAMES = 1, 100
"""Calls inside of each other that hooks add for each module that runs inside of another, and that the listener adds."""


class ForwardListener(TorchFunctionMode):
    """Sees every call of a torch function in the forwards of a model, and the modules that run.

    `modules` holds modules by name, if others than the present paths of the model shall be used. Without `dropout`
    functions run as if nothing were dropped. What runs inside of `torch.vmap` has no values outside of it and is not
    seen: `unheard` says that there was such a call.
    """

    def __init__(
        self, model: nn.Module, modules: Mapping[str, nn.Module] | None = None, *, dropout: bool = True
    ) -> None:
        super().__init__()
        self.model = model
        self.modules = dict(model.named_modules()) if modules is None else modules
        self._names = {id(module): name for name, module in self.modules.items()}  # by its first name
        self._dropout = dropout
        self._stack: list[str] = []
        self._runs: Counter[tuple[str, str]] = Counter()
        self.unheard = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to one forward."""
        with self.hearing_modules(), self:
            yield

    @contextmanager
    def hearing_modules(self) -> Iterator[None]:
        """Listen to the modules of one forward, and to none of its functions."""
        self._stack, self._runs = [], Counter()
        hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        limit = sys.getrecursionlimit()
        depth = max((path.count(".") for path in self.modules), default=0)
        sys.setrecursionlimit(limit + FRAMES_PER_MODULE * depth + LISTENER_FRAMES)  # what runs alone runs here too
        try:
            with warnings_at_callers():
                yield
        finally:
            sys.setrecursionlimit(limit)
            for hook in hooks:
                hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function between `before_call` and `after_call`."""
        kwargs = kwargs or {}
        if _in_vmap():
            self.unheard = True
            return func(*args, **kwargs)
        call = FunctionCall(getattr(func, "__name__", "").split(".")[0], func, args, kwargs)
        with torch._C.DisableTorchFunction():  # what a listener computes is no part of the forward
            self.before_call(call)
        result = func(*args, **kwargs) if self._dropout else without_dropout(func, call.name, args, kwargs)
        with torch._C.DisableTorchFunction():
            return self.after_call(call, result)

    def before_call(self, call: FunctionCall) -> None:
        """See a call before it runs."""

    def after_call(self, call: FunctionCall, result: Any) -> Any:
        """See what a call returned, and return what the model shall get."""
        return result

    def entered(self, path: str | None, args: Any) -> None:
        """See a module before it runs; one that is no part of the model has no path."""

    def left(self, module: nn.Module, path: str, made: Any) -> None:
        """See what a module returned; one that is no part of the model goes by the module around it."""

    @property
    def path(self) -> str:
        """The module that is running now."""
        return self._stack[-1] if self._stack else ""

    def site(self, family: str, path: str | None = None) -> Site:
        """Return where a call of this family runs (in the module that is running now), and count the run."""
        key = (self.path if path is None else path, family)
        self._runs[key] += 1
        return (*key, self._runs[key] - 1)

    def has_run(self, family: str, path: str) -> bool:
        """Say whether a run of this family was counted there, in this forward."""
        return (path, family) in self._runs

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        path = self._names.get(id(module))
        self._stack.append(self.path if path is None else path)
        if _in_vmap():
            return
        with torch._C.DisableTorchFunction():
            self.entered(path, args)

    def _leave_module(self, module: nn.Module, args: Any, made: Any) -> None:
        path = self._stack.pop() if self._stack else ""
        if _in_vmap():
            return
        with torch._C.DisableTorchFunction():
            self.left(module, path, made)


def _in_vmap() -> bool:
    """Whether the present call runs inside of `torch.vmap`."""
    levels = torch._C._functorch.get_interpreter_stack()
    return levels is not None and any(level.key() == torch._C._functorch.TransformType.Vmap for level in levels)


class LayerListener(ForwardListener):
    """Hands on every normalizer, weight layer and ReLU that runs, with its site.

    What fails in `normalizer`, `weight` or `units` never stops the model.

    Attributes:
        lost: sites of which something could not be measured.
    """

    def __init__(
        self, model: nn.Module, modules: Mapping[str, nn.Module] | None = None, *, dropout: bool = True
    ) -> None:
        super().__init__(model, modules, dropout=dropout)
        self.lost: set[Site] = set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to one forward."""
        self._unit_axis = UnitAxis()
        with super().listening():
            yield

    def normalizer(self, site: Site, call: FunctionCall) -> None:
        """See a normalizer before it runs: in train mode the run moves its running statistics."""

    def weight(self, site: Site, seen: WeightSeen) -> None:
        """See what a weight layer was given and returned."""

    def recurrent(self, call: FunctionCall, made: Any) -> None:
        """See what a recurrent layer was given, and its output at every step; its runs are not counted here."""

    def units(self, site: Site, made: Tensor, axis: int) -> None:
        """See the output of a ReLU, and the dimension along which its units lie."""

    def watches_weight(self, call: FunctionCall) -> bool:
        """Say whether a call of a weight layer is handed on."""
        return True

    def watches_units(self) -> bool:
        """Say whether ReLUs are handed on."""
        return True

    @contextmanager
    def measuring(self, family: str, path: str | None = None) -> Iterator[Site]:
        """Count one run of a layer; where it cannot be measured its site is noted as lost."""
        site = self.site(family, path)
        try:
            with torch.no_grad():
                yield site
        except Exception:
            self.lost.add(site)

    def before_call(self, call: FunctionCall) -> None:
        """Hand a normalizer on."""
        if call.normalizer is not None:
            with self.measuring(call.normalizer) as site:
                self.normalizer(site, call)

    def after_call(self, call: FunctionCall, result: Any) -> Any:
        """Hand a weight layer, a recurrent layer or a ReLU on."""
        family = call.weight_family
        if family is not None and self.watches_weight(call):
            with self.measuring(family) as site:
                seen = weight_seen(call, result)
                self._unit_axis.follow(result, seen.channels, last=family != "convolution")
                self.weight(site, seen)
        elif call.name in RECURRENT or call.name in EMBEDDINGS:
            made = result[0] if isinstance(result, tuple) else result
            self._unit_axis.follow(made, -1, last=True)
            if call.name in RECURRENT:
                self.recurrent(call, made)
        elif call.name in RELUS and isinstance(result, Tensor) and result.ndim > 1 and self.watches_units():
            with self.measuring("relu") as site:
                self.units(site, result.detach(), self._unit_axis.of(result))
        return result


class Names:
    """Knows the modules of a model by identity.

    A module that moves (another was inserted in front of it, or wrapped around it) keeps its name; one that is new
    never gets a name that was somebody else's.

    Example:
        >>> model = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))
        >>> names = Names(model)
        >>> _ = model.insert(1, nn.Linear(2, 2))
        >>> list(names.modules(model)), list(names.parameters(model))
        (['', '0', '1 (new)', '1'], ['1 (new).weight', '1 (new).bias', '1.weight', '1.bias'])
    """

    def __init__(self, model: nn.Module) -> None:
        self._first = WeakKeyDictionary({module: path for path, module in model.named_modules()})
        self._taken = frozenset(self._first.values())
        self._walked: dict[str, nn.Module] = {}
        self._tree: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []  # modules inside of each, now and then

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return all modules that a model has now, by name; a tree that has not changed is not walked again."""
        same = self._walked.get("") is model and all(now == then for now, then in self._tree)
        if not same:
            self._walked = {self._name(path, module): module for path, module in model.named_modules()}
            self._tree = [(module._modules, dict(module._modules)) for module in self._walked.values()]
        return self._walked

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return all parameters that a model has now, by name."""
        by_identity: dict[int, tuple[str, nn.Parameter]] = {}
        for name, module in self.modules(model).items():
            for inner, parameter in module._parameters.items():
                if parameter is not None:  # tied ones have the first of their names
                    by_identity.setdefault(id(parameter), (f"{name}.{inner}" if name else inner, parameter))
        return dict(by_identity.values())

    def _name(self, path: str, module: nn.Module) -> str:
        first = self._first.get(module)
        return first if first is not None else f"{path} (new)" if path in self._taken else path


class UnitAxis:
    """Follows where the last layer of a forward that has channels put them.

    In front of all such layers the channels are taken to lie along the second dimension, as torch has them.
    """

    def __init__(self) -> None:
        self._width: int | None = None
        self._last = False

    def follow(self, made: Any, dim: int, *, last: bool) -> None:
        """Note the output of a layer with channels along `dim`, the `last` one by definition however many there are."""
        self._width = made.shape[dim] if isinstance(made, Tensor) and made.ndim > 1 else None
        self._last = last

    def of(self, made: Tensor) -> int:
        """Return the dimension of an activation that counts its units.

        It is the one that is as wide as the layer before has channels. Where both or none of the second and the last
        are, it is the one along which that layer has its channels.
        """
        first, final = made.shape[1] == self._width, made.shape[-1] == self._width
        return made.ndim - 1 if made.ndim == 2 or (final if first != final else self._last) else 1


def in_user_hook() -> bool:
    """Whether the present call was made by a forward hook, or pre-hook, of the user on a module, not by the model."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        if frame.f_back.f_code in MODULE_CALLS and frame.f_code in _hook_codes(frame.f_back.f_locals.get("self")):
            return True
        frame = frame.f_back
    return False


def _hook_codes(module: Any) -> Iterator[CodeType]:
    """Yield the code of every hook of a module."""
    held = [torch_modules._global_forward_pre_hooks, torch_modules._global_forward_hooks]
    held += [] if module is None else [module._forward_pre_hooks, module._forward_hooks]
    for hooks in held:
        for hook in hooks.values():
            inner = hook.func if isinstance(hook, functools.partial) else hook
            code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
            if code is not None:
                yield code
