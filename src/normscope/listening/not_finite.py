"""Where numbers break: every function of a forward is looked at, and NaN is followed back to the one that made it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from .calls import FunctionCall
from .listener import ForwardListener

NAN, INFINITE = 2, 1
"""Grades of a tensor: the worse a tensor is, the larger."""
MASKING = ("masked_fill", "where", "full", "new_full", "fill", "setitem", "triu", "tril")
"""How the names of functions begin that write minus infinity on purpose."""
GUARDABLE = re.compile(r"div|sqrt|log|pow|norm|exp|reciprocal|acos|asin")
"""Parts of the names of functions that break at single values, such as zero: an eps or a clamp in front mends them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The function that made the first values that are not finite, and the module that called it.

    Attributes:
        where: the module; empty for the forward of the model itself.
        function: the name of the function; empty where the first is not known.
        reached: the first module that is called with NaN, for a function that no module called.
    """

    where: str
    function: str = ""
    reached: str = ""

    def describe(self) -> str:
        """Say in a sentence or two where the values broke."""
        place = f"`{self.where}`" if self.where else "the model's own forward"
        if not self.function:
            return f"The output of {place} is not finite."
        reached = f" The first layer that it enters is `{self.reached}`." if self.reached else ""
        return (
            f"The output of `{self.function}` in {place} is the first that is not finite; what enters it is.{reached}"
        )

    @property
    def is_guardable(self) -> bool:
        """Whether an eps or a clamp in front of the function would mend it."""
        return GUARDABLE.search(self.function) is not None


def grade(value: Any) -> int:
    """Return 2 for a tensor with NaN, 1 for one that is infinite somewhere, 0 for all else."""
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()) or value.is_meta:
        return 0
    if value.layout != torch.strided or bool(value.isfinite().all()):
        return 0
    return NAN if bool(value.isnan().any()) else INFINITE


def is_mask(value: Tensor) -> bool:
    """Return whether what is not finite in a tensor is minus infinity alone: masks are made of it."""
    return not bool(value.isnan().any()) and not bool((value == torch.inf).any())


class OriginFinder(ForwardListener):
    """Follows values that are not finite back to the function that made the first of them.

    Infinities that vanish again (masks in front of a softmax) are followed only as far as they last. Minus infinities
    that make a mask are on purpose and are not followed.
    """

    def __init__(self, model: nn.Module, *, dropout: bool = True) -> None:
        super().__init__(model, dropout=dropout)
        self._origins = WeakIdKeyDictionary()  # of tensors that are not finite; None where it is not known
        self._tensors: list[Tensor] = []  # what the present function is called with
        self._is_made_here, self._is_masked = True, False  # where its output is not finite: by itself, on purpose
        self._origin: Origin | None = None  # of the worst tensor that enters it
        self._reached = ""  # the first module that was called with NaN

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to one forward; hooks of the user count as part of their module."""
        hooks: list[Any] = []
        for path, module in self.modules.items():
            hooks.append(module.register_forward_pre_hook(partial(self._enter, path), prepend=True))
            hooks.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, path: str, module: nn.Module, args: Any) -> None:
        self._stack.append(path)
        if path and not self._reached and any(grade(leaf) == NAN for leaf in tree_leaves(args)):
            self._reached = path

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._stack.pop()

    def before_call(self, call: FunctionCall) -> None:
        """See whether values that are not finite enter a function; of several those with an origin count first."""
        self._tensors = [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Tensor)]
        graded = [(value, leaf) for leaf in self._tensors if (value := grade(leaf))]
        broken = [pair for pair in graded if pair[1] in self._origins or not is_mask(pair[1])]  # a mask is not broken
        self._is_masked = call.name.strip("_").startswith(MASKING) or bool(graded and not broken)
        # statistics that the first forward broke have no origin, and are not the first to break
        worst = max(broken, key=lambda pair: (self._origins.get(pair[1]) is not None, pair[0]), default=None)
        self._is_made_here = worst is None
        self._origin = None if worst is None else self._origins.get(worst[1])

    def after_call(self, call: FunctionCall, result: Any) -> Any:
        """Note of each output that is not finite where it came from."""
        name = call.name.strip("_")
        changed = self._tensors[:1] if name.startswith("setitem") else []
        for leaf in (*tree_leaves(result), *changed):
            if grade(leaf) and not (self._is_masked and is_mask(leaf)):
                self._origins[leaf] = Origin(where=self.path, function=name) if self._is_made_here else self._origin
        return result

    def find_origin(self, output: Any) -> Origin | None:
        """Return where the worst value in the output of the model came from; None where all of the output is finite.

        Where the function is not known, the `Origin` names none.
        """
        has_fields = hasattr(output, "__dict__") and not isinstance(output, Tensor)  # such as a ModelOutput
        leaves = tree_leaves(vars(output) if has_fields else output)
        worst = max((leaf for leaf in leaves if isinstance(leaf, Tensor)), key=grade, default=None)
        if worst is None or not grade(worst):
            return None
        origin = self._origins.get(worst) or Origin(where="")
        return origin if origin.where else replace(origin, reached=self._reached)
