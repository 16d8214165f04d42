"""Where numbers break: the forward is run again on the batch that did it, and every function's output is looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...core.finding import figure
from ...core.untouched import on_copies
from ...listening.not_finite import OriginFinder, grade, is_mask
from .distributed import is_alone
from .forward_listening import aside

MAX_SECOND_FORWARDS = 3
"""How many losses that are not finite, each after finite ones, have their forward run again."""


BATCH_BROKEN = "The batch itself holds NaN or infinite entries."
OUTPUTS_HUGE = (
    "A second forward on the same batch is finite, but its outputs reach {largest}: the squares of such numbers are "
    "infinite.{steps}"
)
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
        part: where it began: in the batch, in the loss function or its targets, in outputs that are finite and far too
            large for it, or in the network.
        function: the function of the network that made it; empty where that is not known.
    """

    step: int
    where: str
    words: str
    part: Literal["batch", "loss", "outputs", "network"] = "network"
    function: str = ""


def locate(model: nn.Module, args: Any, kwargs: Any, step: int) -> Broken:
    """Return where the numbers of a forward break first; the model is left as found.

    Args:
        model: the model, before the step that its loss would lead to.
        args: the positional arguments of the call.
        kwargs: the named arguments of the call.
        step: the step of the optimizer.
    """
    if _is_broken((args, kwargs)):
        return Broken(step=step, where="", words=BATCH_BROKEN, part="batch")
    held = model.named_parameters()  # buffers may have been broken by the forward itself
    names = list(
        dict.fromkeys(name.rpartition(".")[0] for name, tensor in held if grade(tensor) and not is_mask(tensor))
    )
    if names:
        several = f" (and those of {len(names) - 1} more modules)" if len(names) > 1 else ""
        words = f"The weights of `{names[0]}`{several} were NaN or infinite before this forward."
        return Broken(step=step, where=names[0] if len(names) == 1 else "", words=words)
    finder = OriginFinder(model)
    with on_copies(model), aside(model), finder.listening():  # the backward of the first forward is still to come
        output = model(*args, **kwargs)
        origin = finder.find_origin(output)
    largest = None if origin is not None else _find_huge(output)
    if largest is not None:
        words = OUTPUTS_HUGE.format(
            largest=figure(largest), steps=" The steps before it were too large." if step else ""
        )
        return Broken(step=step, where="", words=words, part="outputs")
    if origin is None:
        words = (
            "A second forward on the same batch is finite everywhere: the loss function or the targets did it, or "
            "random numbers of the first one."
        )
        return Broken(step=step, where="", words=words, part="loss")
    if not origin.function:
        return Broken(step=step, where="", words="The output of the model is not finite; which layer did it is unseen.")
    return Broken(step=step, where=origin.where, words=origin.describe(), function=origin.function)


def _is_broken(call: tuple[Any, Any]) -> bool:
    """Whether what a forward was called with holds NaN or infinite entries, masks left out."""
    return any(grade(leaf) and not is_mask(leaf) for leaf in tree_leaves(call))


def _find_huge(output: Any) -> float | None:
    """Return the largest output if the sum of the squares of all is infinite, in float32 at least; else None."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.layout == torch.strided and leaf.numel():
            values = leaf.detach().to(torch.promote_types(leaf.dtype, torch.float32))
            if not bool(values.square().sum().isfinite()):
                return float(values.abs().amax())
    return None


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

    def locate_break(self, model: nn.Module, step: int) -> Broken:
        """Return where the forward of the present step breaks."""
        assert self.batch is not None, "asked for without a batch"
        self._sound, self._times = False, self._times + 1
        if self.stepped:
            late = Broken(step=step - 1, where="", words=OBSERVED_LATE)
            return replace(late, words=BATCH_BROKEN, part="batch") if _is_broken(self.batch) else late
        return locate(model, *self.batch, step)
