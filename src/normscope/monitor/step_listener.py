"""Which way a forward is listened to: the first one with everything on, later ones as cheaply as possible."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..listening.naming import Names
from .forward_record import ForwardRecord
from .function_mode import FunctionListener
from .hooking import aside
from .module_hooks import ModuleListener
from .schedule import Tier
from .watched_layers import blocks as blocks_of
from .watched_layers import compiled_functions, is_delicate


class StepListener:
    """Listens to forwards of a model, one at a time.

    Args:
        outer: the model as it is called in the loop.
        model: the one inside.
    """

    def __init__(self, outer: nn.Module, model: nn.Module) -> None:
        self._outer, self._model = outer, model
        self._names: Names | None = None
        self._blocks: tuple[str, ...] = ()
        self._cheap: ModuleListener | None = None
        self._shapes: list[tuple[int, ...]] = []
        self._apart = False
        self._stack: ExitStack | None = None
        self._hearing: ForwardRecord | None = None

    @property
    def listens(self) -> bool:
        """Whether it listens to a forward just now."""
        return self._stack is not None

    @property
    def apart(self) -> bool:
        """Whether to listen inside of a forward would change it, or hear nothing: it is run once more, aside."""
        return self._apart or is_delicate(self._outer)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the model has now; each keeps the name that it had at the first forward."""
        return (self._names or Names(self._model)).parameters(self._model)

    def begin(self, tier: Tier, args: Any, kwargs: Any, *, first: bool) -> ForwardRecord | None:
        """Listen to the forward that begins; return what was seen if it was run aside instead.

        Args:
            tier: how much is measured.
            args: the positional arguments of the forward.
            kwargs: the named arguments of the forward.
            first: whether it says what there is to watch.
        """
        shapes = [tuple(leaf.shape) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        cheap = self._cheap if tier is Tier.ECONOMY and shapes and shapes == self._shapes else None
        cheap = cheap if cheap is not None and cheap.ready() else None
        if first:
            self._shapes, self._apart, self._blocks = shapes, compiled_functions(), blocks_of(self._model)
            self._names = Names(self._model)
        if cheap is None:  # to modules as they are now
            listening = FunctionListener(self._model, self._blocks, self._names).recording(tier, readers=first)
        else:
            listening = cheap.recording()
        if (cheap is None or cheap.hooked) and self.apart:
            with aside(self._model), listening as seen:
                self._model(*args, **kwargs)
            return seen
        self._stack = ExitStack()
        self._hearing = self._stack.enter_context(listening)
        return None

    def end(self) -> ForwardRecord | None:
        """Stop listening, and return what was seen."""
        heard, self._hearing = self._hearing, None
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()
        return heard

    def learn(self, seen: ForwardRecord) -> None:
        """Listen to later forwards as cheaply as the first one allows."""
        self._cheap = ModuleListener(self._model, seen) if ModuleListener.fits(self._model, seen) else None

    def close(self) -> None:
        """Stop listening, and keep no model alive."""
        self.end()
        self._cheap = self._names = None
        for name in ("_outer", "_model"):
            self.__dict__.pop(name, None)
