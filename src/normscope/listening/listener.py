"""How a forward is intercepted: `ForwardListener` sees every call and module, `LayerListener` the layers among them.

Calls are seen by a `TorchFunctionMode`, so that functional layers count too; the module they belong to is known from
global hooks, which leave the user's modules alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from ..core.dropout import without_dropout
from .calls import EMBEDDINGS, NORMALIZERS, RECURRENT, RELUS, FunctionCall, Site
from .unit_axis import UnitAxis
from .weight_seen import WeightSeen, weight_seen


class ForwardListener(TorchFunctionMode):
    """Sees every call of a torch function in the forwards of a model, and the modules that run.

    Args:
        model: the modules give the paths of sites.
        modules: by name, if others than the present paths of the model shall be used.
        dropout: whether dropout is left on; otherwise functions run as if nothing were dropped.
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

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to one forward."""
        self._stack, self._runs = [], Counter()
        hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function between `before_call` and `after_call`."""
        kwargs = kwargs or {}
        call = FunctionCall(getattr(func, "__name__", "").split(".")[0], func, args, kwargs)
        self.before_call(call)
        result = func(*args, **kwargs) if self._dropout else without_dropout(func, call.name, args, kwargs)
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
        with torch._C.DisableTorchFunction():  # what a listener computes is no part of the forward
            self.entered(path, args)

    def _leave_module(self, module: nn.Module, args: Any, made: Any) -> None:
        path = self._stack.pop() if self._stack else ""
        with torch._C.DisableTorchFunction():
            self.left(module, path, made)


class LayerListener(ForwardListener):
    """Hands on every normalizer, weight layer and ReLU that runs, with its site.

    What fails in `normalizer`, `weight` or `units` never stops the model.

    Args:
        model: as for `ForwardListener`.
        modules: as for `ForwardListener`.
        dropout: as for `ForwardListener`.

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
        if call.name in NORMALIZERS:
            with self.measuring(call.name) as site:
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
