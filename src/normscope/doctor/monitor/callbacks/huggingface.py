"""Watching a run of the Trainer of transformers."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule

from ....core.errors import InputError
from ....core.untouched import unwrapped
from . import Watched

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise InputError("this callback needs transformers: pip install 'normscope[hf]'") from error

_Base: Any = TrainerCallback


class NormscopeCallback(Watched, _Base):
    """Watches a run of `transformers.Trainer` as `normscope.watch` does; the options are those of `watch`.

    Steps are `state.global_step` and go on where a checkpoint left them. The loss is the model's own, over all batches
    of a step; of a model that returns none, what the Trainer logs at that step. Records, findings and the `Watch`
    itself are attributes. A run that an error stops is closed when the next begins, or by `close()`.

    Args:
        every: measure each so many steps; or an interval for each tier.
        tier: what `every` is of, if it is one number.
        log: a folder for the log; an existing log is continued.
        sinks: called with every record and its findings.
        panel: show a live panel; by default none, as the Trainer shows its own.

    Raises:
        InputError: a wrong interval or tier; at the start of a run: a wrong folder.

    Example:
        >>> callback = NormscopeCallback(every=10, log="runs/first")
        >>> callback.records
        ()
    """

    _listener: Any = None
    _parts = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch."""
        model = _find_called(kwargs["model"])
        self.close()
        self.open(model, kwargs["optimizer"], state.global_step)
        self._listener = model.register_forward_hook(self._hear, with_kwargs=True)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Hand on the loss of the step's batches."""
        self.settle(summed=self._parts)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the Trainer's loss if the model has returned none."""
        loss = (kwargs.get("logs") or {}).get("loss")
        if self._open and self.run is not None and isinstance(loss, int | float):
            self.run.observe(loss=loss)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End watching."""
        self.close()

    def close(self, error: BaseException | None = None) -> None:
        """End watching: hooks are removed, everything is written."""
        if self._listener is not None:
            self._listener.remove()
            self._listener = None
        super().close(error)

    def _hear(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any], made: Any) -> None:
        """Keep the loss of a forward that the Trainer runs; one that the watcher runs does not count."""
        if module.training and self.run is not None and not self.run.busy:
            loss = made.get("loss") if isinstance(made, Mapping) else getattr(made, "loss", None)
            self._parts = kwargs.get("num_items_in_batch") is not None  # then batches are parts of one mean
            if isinstance(loss, Tensor):
                self.gather(loss)


def _find_called(model: nn.Module) -> nn.Module:
    """Return what the Trainer calls: with `torch_compile` a module around the model, which it shows no callback."""
    compiled = (held for held in gc.get_objects() if type(held) is OptimizedModule and unwrapped(held) is model)
    return next(compiled, model)
