"""Watching a fit of Lightning."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ....core.errors import InputError
from ..blocks import parameter_count
from ..schedule import TierName
from ..watching import Sink
from . import Watched


def _bases() -> tuple[Any, ...]:
    """Return the `Callback` of the Lightning in use: there are two packages, and a program may hold both."""
    names = ("lightning.pytorch", "pytorch_lightning")
    used = [name for name in names if hasattr(sys.modules.get(name), "Callback")]
    for name in used or names:
        try:
            __import__(name)
        except ImportError:
            continue
        used = used or [name]
    if not used:
        raise InputError("this callback needs Lightning: pip install 'normscope[lightning]'")
    return tuple(sys.modules[name].Callback for name in used)


_Base: Any = type("_Base", _bases(), {"__doc__": "The callback of Lightning."})


class NormscopeCallback(Watched, _Base):
    """Watches a fit as `normscope.watch` does; the options are those of `watch`.

    Steps are those of the watched optimizer and go on where a checkpoint left them. The loss is what `training_step`
    returns (the mean over accumulated batches); in manual optimization that returns nothing, the first that is
    propagated back. With several optimizers one is watched. Records, findings and the `Watch` itself are attributes.

    Args:
        every: measure each so many steps; or an interval for each tier.
        tier: what `every` is of, if it is one number.
        log: a folder for the log; an existing log is continued.
        sinks: called with every record and its findings.
        panel: show a live panel; by default none, as Lightning shows its own.
        model: the path of the module to watch, as in `get_submodule`; None takes what `training_step` calls first: the
            LightningModule itself, or one of its children.
        optimizer: the place of the optimizer to watch.

    Raises:
        InputError: a wrong interval or tier; at the start of a fit: no such module or optimizer, a wrong folder.

    Example:
        >>> callback = NormscopeCallback(every=10, log="runs/first")
        >>> callback.records
        ()
    """

    def __init__(
        self,
        every: int | Mapping[str, int] = 50,
        *,
        tier: TierName = "economy",
        log: str | os.PathLike[str] | None = None,
        sinks: Sequence[Sink] = (),
        panel: bool | None = False,
        model: str | None = None,
        optimizer: int = 0,
    ) -> None:
        super().__init__(every, tier=tier, log=log, sinks=sinks, panel=panel)
        self._path, self._index = model, optimizer
        self._scouts: list[Any] = []
        self._called: dict[str, nn.Module] = {}
        self._saved: int | None = None
        self._at = 0
        self._backward: Tensor | None = None

    # the fit

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        held = trainer.optimizers
        if not held:
            warnings.warn("normscope: the fit has no optimizer, nothing is watched", stacklevel=2)
            return
        if self._index >= len(held):
            raise InputError(f"optimizer={self._index}, but the fit has {len(held)}")
        if len(held) > 1:
            others = f"the fit has {len(held)} optimizers; number {self._index} is watched (optimizer= takes another)"
            warnings.warn(f"normscope: {others}", stacklevel=2)
        optimizer = held[self._index]
        module = self._module(pl_module)
        step = trainer.global_step if len(held) == 1 else 0
        run = self.open(module, optimizer, step if self._saved is None else self._saved)
        self._saved, self._at, self._called = None, run.step, {}
        if self._path is None:
            self._send_scouts(pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Forget the last batch."""
        self._backward = None

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Keep the first loss of a batch, in case `training_step` returns none."""
        if self._backward is None and getattr(trainer.precision_plugin, "scaler", None) is None:
            self._backward = loss.detach().reshape(-1)[:1].clone()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take the loss; hand it on when the optimizer has stepped."""
        if not self._open or self.run is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is None and not pl_module.automatic_optimization:
            loss = self._backward
        elif isinstance(loss, Tensor) and pl_module.automatic_optimization:
            loss = loss * trainer.accumulate_grad_batches  # Lightning has divided by it
        self.gather(loss)
        if self.run.step != self._at:
            self.settle()
            self._at = self.run.step
        if self._scouts and self._called:
            self._settle_for(max(self._called.values(), key=parameter_count))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End watching."""
        self.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End watching and say in the log what stopped the fit."""
        self.close(exception)

    def close(self, error: BaseException | None = None) -> None:
        """End watching: hooks are removed, everything is written."""
        self._call_back_scouts()
        super().close(error)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the step of the watched optimizer."""
        return {} if self.run is None else {"step": self.run.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on at the step of a checkpoint."""
        self._saved = state_dict.get("step")

    # which module is called

    def _module(self, pl_module: nn.Module) -> nn.Module:
        """Return the module that is asked for, or else the LightningModule."""
        if self._path is None:
            return pl_module
        try:
            return pl_module.get_submodule(self._path)
        except AttributeError as error:
            raise InputError(f"model={self._path!r}: the LightningModule has no such part") from error

    def _send_scouts(self, pl_module: nn.Module) -> None:
        """See whether `training_step` calls the LightningModule or a child of it."""
        assert self.run is not None
        trained = {id(p) for group in self.run.optimizer.param_groups for p in group["params"]}
        parts = {n: m for n, m in pl_module.named_children() if any(id(p) in trained for p in m.parameters())}
        most = sum(parameter_count(part) for part in parts.values()) / 2

        def whole(module: nn.Module, args: Any, kwargs: Any) -> None:
            if not torch.compiler.is_compiling() and module.training and not _redirected(module):
                self._call_back_scouts()

        def part(module: nn.Module, args: Any, kwargs: Any) -> None:
            if torch.compiler.is_compiling() or not module.training or not self._scouts:
                return
            if parameter_count(module) >= most:
                self._settle_for(module, (args, kwargs))
            else:
                self._called |= {name: m for name, m in parts.items() if m is module}

        hooks = [(pl_module, whole), *((module, part) for module in parts.values())]
        self._scouts = [m.register_forward_pre_hook(h, with_kwargs=True, prepend=True) for m, h in hooks]

    def _settle_for(self, module: nn.Module, call: tuple[Any, Any] | None = None) -> None:
        self._call_back_scouts()
        if self.run is not None:
            self.run.turn_to(module, call)

    def _call_back_scouts(self) -> None:
        for hook in self._scouts:
            hook.remove()
        self._scouts = []


def _redirected(module: nn.Module) -> bool:
    """Whether a call of the LightningModule is Lightning's way to `training_step`, not the user's to `forward`."""
    return getattr(module.forward, "__func__", None) is not type(module).forward
