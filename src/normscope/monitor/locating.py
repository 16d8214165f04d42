"""Where numbers break: the forward is run again on the batch that did it, and every function's output is looked at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ..core.untouched import on_copies
from .distributed import is_alone
from .forward_listening import aside

MAX_SECOND_FORWARDS = 3
"""How many losses that are not finite, each after finite ones, have their forward run again."""


BATCH_BROKEN = "The batch itself holds NaN or infinite entries."
OBSERVED_LATE = (
    "The batch is finite. Which layer was the first is not known, for the loss was observed behind the step: call "
    "run.observe between the forward and optimizer.step()."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Where numbers that are not finite began.

    Attributes:
        step: the step of the optimizer.
        where: the module; empty where none can be named.
        words: what is known of it.
    """

    step: int
    where: str
    words: str


def locate(model: nn.Module, args: Any, kwargs: Any, step: int) -> Broken:
    """Return where the numbers of a forward break first; the model is left as found.

    Args:
        model: the model, before the step that its loss would lead to.
        args: the positional arguments of the call.
        kwargs: the named arguments of the call.
        step: the step of the optimizer.
    """
    if _is_broken((args, kwargs)):
        return Broken(step=step, where="", words=BATCH_BROKEN)
    held = model.named_parameters()  # buffers may have been broken by the forward itself
    names = list(
        dict.fromkeys(name.rpartition(".")[0] for name, tensor in held if _grade(tensor) and not _only_masked(tensor))
    )
    if names:
        several = f" (and those of {len(names) - 1} more modules)" if len(names) > 1 else ""
        words = f"The weights of `{names[0]}`{several} were NaN or infinite before this forward."
        return Broken(step=step, where=names[0] if len(names) == 1 else "", words=words)
    finder = Finder(model)
    with on_copies(model), aside(model), finder.listening():  # the backward of the first forward is still to come
        made = model(*args, **kwargs)
    leaves = tree_leaves(vars(made) if hasattr(made, "__dict__") and not isinstance(made, Tensor) else made)
    worst = max((leaf for leaf in leaves if isinstance(leaf, Tensor)), key=_grade, default=None)
    if worst is None or not _grade(worst):
        words = (
            "A second forward on the same batch is finite everywhere: the loss function or the targets did it, or "
            "random numbers of the first one."
        )
        return Broken(step=step, where="", words=words)
    origin = finder.origins.get(worst)
    if origin is None:
        return Broken(step=step, where="", words="The output of the model is not finite; which layer did it is unseen.")
    path, function = origin
    place = f"`{path}`" if path else "the model's own forward"
    words = f"The output of `{function}` in {place} is the first that is not finite; what enters it is."
    return Broken(step=step, where=path, words=words)


NAN, INFINITE = 2, 1


def _grade(value: Any) -> int:
    """Return 2 for a tensor with NaN, 1 for one that is infinite somewhere, 0 for all else."""
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()) or value.is_meta:
        return 0
    if value.layout != torch.strided or bool(value.isfinite().all()):
        return 0
    return NAN if bool(value.isnan().any()) else INFINITE


def _is_broken(call: tuple[Any, Any]) -> bool:
    """Whether what a forward was called with holds NaN or infinite entries, masks left out."""
    return any(_grade(leaf) and not _only_masked(leaf) for leaf in tree_leaves(call))


def _only_masked(value: Tensor) -> bool:
    """Whether what is not finite is minus infinity: masks are made of it."""
    return not bool(value.isnan().any()) and not bool((value == torch.inf).any())


class Finder(TorchFunctionMode):
    """Follows values that are not finite back to the function that made the first of them.

    Infinities that vanish again (masks in front of a softmax) are followed only as far as they last.

    Args:
        model: whose modules give the paths.

    Attributes:
        origins: by tensor the module and the function where it broke; None where that was not seen.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.origins = WeakIdKeyDictionary()
        self._model, self._stack = model, [""]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to one forward; hooks of the user count as part of their module."""
        hooks: list[Any] = []
        for path, module in self._model.named_modules():
            hooks.append(module.register_forward_pre_hook(self._entering(path), prepend=True))
            hooks.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _entering(self, path: str) -> Any:
        return lambda module, args: self._stack.append(path)

    def _leave(self, module: nn.Module, args: Any, made: Any) -> None:
        self._stack.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function as it is; say of each output that is not finite where it came from."""
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        bad = [(grade, leaf) for leaf in tensors if (grade := _grade(leaf))]
        # statistics that the first forward broke have no origin, and are not the first to break
        followed = max(bad, key=lambda pair: (self.origins.get(pair[1]) is not None, pair[0]), default=None)
        origin = None if followed is None else self.origins.get(followed[1])
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "").strip("_")
        changed = tensors[:1] if name.startswith("setitem") else []
        for leaf in (*tree_leaves(result), *changed):
            if _grade(leaf):
                self.origins[leaf] = (self._stack[-1], name) if followed is None else origin
        return result


class Locator:
    """Keeps the batch of the present step, and runs its forward again where its loss is not finite.

    Attributes:
        batch: arguments of the last forward.
        stepped: whether the optimizer has made its step since then: the weights are others, but the batch is not.
    """

    def __init__(self) -> None:
        self.batch: tuple[Any, Any] | None = None
        self.stepped = False
        self._sound, self._times = True, 0

    def is_asked(self, loss: float | None) -> bool:
        """Return whether to look for the place; None is a loss on a device, which is not read."""
        if loss is None:
            return False
        if math.isfinite(loss):
            self._sound = True
            return False
        return self._sound and self.batch is not None and self._times < MAX_SECOND_FORWARDS and is_alone()

    def look(self, model: nn.Module, step: int) -> Broken:
        """Return where the forward of the present step breaks."""
        assert self.batch is not None, "asked for without a batch"
        self._sound, self._times = False, self._times + 1
        if self.stepped:
            return Broken(step=step - 1, where="", words=BATCH_BROKEN if _is_broken(self.batch) else OBSERVED_LATE)
        return locate(model, *self.batch, step)
