"""Who reads the output of a weight layer: a normalizer alone, or anything else that would see its scale."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..listening.calls import FunctionCall, Site, tensors_in
from .forward_record import ForwardRecord
from .user_hooks import in_user_hook

MOVES = ("view", "view_as", "reshape", "flatten", "unflatten", "permute", "transpose", "movedim", "contiguous",
         "squeeze", "unsqueeze", "t", "swapaxes", "swapdims", "dropout", "to", "clone", "_to_copy")  # fmt: skip
"""Functions that only move entries, or leave them: what is scale invariant behind them is so before them."""


class OutputReaders:
    """Follows the outputs of weight layers through one forward, and keeps them until it ends.

    Args:
        seen: the record of the forward, to which the readers are added.
    """

    def __init__(self, seen: ForwardRecord) -> None:
        self._seen = seen
        self._made: dict[Any, tuple[Site, Tensor]] = {}
        self._asked: set[Site] = set()
        self._answers: list[weakref.ref[Tensor]] = []

    def add(self, site: Site, output: Tensor | None) -> None:
        """Follow the output of a weight layer; one that is not seen may be read by anything."""
        self._seen.readers[site] = [] if output is not None else [None]
        if output is not None:
            self._made[_key(output)] = (site, output)

    def read(self, reader: Site | None, arguments: Any) -> None:
        """Note who reads what weight layers made."""
        if self._made:
            for leaf in tree_leaves(arguments):
                if _key(leaf) in self._made:
                    self._seen.readers[self._made[_key(leaf)][0]].append(reader)

    def follow(self, call: FunctionCall, result: Any) -> None:
        """Note where the outputs of weight layers go in a call; this never stops the model."""
        if not self._made:
            return
        try:
            if in_user_hook():
                self._ask(call, result)
            else:
                self._hear_answers()
                self._pass_on(call, result)
        except Exception:  # whatever was made may have been read here
            for site, _ in self._made.values():
                self._seen.readers[site].append(None)

    def returned(self, made: Any) -> None:
        """Note what the model returns: the loss reads it."""
        if self._made:
            self._hear_answers()
            self.read(None, tensors_in(made))

    def _pass_on(self, call: FunctionCall, result: Any) -> None:
        """Note the readers of a call; entries that it only moves are still the output."""
        arguments = (call.args, call.kwargs)
        given = next((leaf for leaf in tree_leaves(arguments) if _key(leaf) in self._made), None)
        if given is None or not any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            return
        if call.name in MOVES and isinstance(result, Tensor):
            site = self._made[_key(given)][0]
            self._made[_key(result)] = (site, result)
            if (result.shape, result.stride()) != (given.shape, given.stride()):
                self._seen.moved.add(site)
        else:
            self.read(None, arguments)

    def _ask(self, call: FunctionCall, result: Any) -> None:
        """Note that a hook looks at what weight layers made, and what it may keep that has a gradient.

        Wrappers (FSDP) hand values on in hooks, on the same memory or in another precision: such a value is still the
        same, unless it was written to.
        """
        given = tree_leaves((call.args, call.kwargs))
        self._asked |= {self._made[_key(leaf)][0] for leaf in given if _key(leaf) in self._made}
        if self._asked:
            leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
            if call.name in ("to", "_to_copy") and len(self._asked) == 1:
                self._made |= {_key(leaf): (next(iter(self._asked)), leaf) for leaf in leaves}
            written = call.name.startswith("__i") or (call.name.endswith("_") and not call.name.endswith("__"))
            self._answers += [weakref.ref(leaf) for leaf in leaves if written or _key(leaf) not in self._made]

    def _hear_answers(self) -> None:
        """Count a hook as a reader if something that it made lives on: it may come back into the model or the loss."""
        if any(answer() is not None for answer in self._answers):
            for site in self._asked:
                self._seen.readers[site].append(None)
        self._asked, self._answers = set(), []


def _key(value: Any) -> Any:
    """Return what two tensors on the same memory share: wrappers may hand a value on as another tensor."""
    if not isinstance(value, Tensor):
        return None
    try:
        return value.data_ptr(), value.numel()
    except (RuntimeError, ValueError):  # no memory of its own, or none yet
        return id(value)
