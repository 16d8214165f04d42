"""`CallFacts`: what functions did in a forward that no layer's values show: dropout, casts, random numbers, errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...core.codec import JsonForm, Part
from ...core.untouched import DROPOUTS
from ...listening.calls import FunctionCall
from .collector import Collector
from .flow import CASTS
from .layers import Layers, fetch_all

LOST_DIGITS = 0.3
"""The share of the deviation of values that rounding may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutCall(Part):
    """A call of a function of dropout that would drop values: where, the share, and whether in eval mode too.

    One that drops from what the model returns (`on_output`) may be that of a module.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=("on_output",))

    path: str
    rate: float
    in_eval: bool
    on_output: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts(Part):
    """What functions did in a forward.

    Attributes:
        dropouts: the calls of functions of dropout that drop values, apart from those of torch's modules.
        draws: whether the forward draws random numbers, dropout apart.
        wrong_axis: a softmax whose shares are added up over another axis than its own: where, its axis, and the other.
        rounded: where a cast to a narrower float loses much of what varies: the module, the type, and the error as a
            share of the deviation.
        unscaled: modules that take a softmax and a product of tensors, and in which nothing is multiplied by a number.
        raises: where a plain forward and backward raises, what it raises, and the line of code behind it, if known.
        unheard: whether some layers run inside of `torch.vmap`, where nobody can look at their values.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=(...,))

    dropouts: tuple[DropoutCall, ...] = ()
    draws: bool = False
    wrong_axis: tuple[str, int, int] | None = None
    rounded: tuple[str, str, float] | None = None
    unscaled: tuple[str, ...] = ()
    raises: tuple[str, str, str] | None = None
    unheard: bool = False


class Dropouts(Collector):
    """Notes functions of dropout that are switched on, although modules of dropout are off."""

    def __init__(self, layers: Layers, model: nn.Module) -> None:
        super().__init__(layers)
        self.calls = list[DropoutCall]()
        self._model, self._modules = model, dict(model.named_modules())
        self._dropped = dict[int, tuple[Tensor, DropoutCall]]()  # what no function has read since

    def before_call(self, call: FunctionCall, leaves: Sequence[Any], path: str) -> None:
        """Note a function of dropout, and that what another one has dropped from is read."""
        for leaf in leaves:
            self._dropped.pop(id(leaf), None)
        if call.name in DROPOUTS:
            module = self._modules.get(path, self._model)
            asked = {**dict(zip(("input", "p", "training"), call.args)), **call.kwargs}
            if asked.get("training", asked.get("train", True)) and asked.get("p", 0.5):
                rate = float(asked.get("p", 0.5))
                self.calls.append(DropoutCall(path=path, rate=rate, in_eval=not module.training))
            rate = vars(module).get("p", asked.get("p", 0.5))
            if isinstance(rate, int | float) and rate and isinstance(asked.get("input"), Tensor):
                here = DropoutCall(path=path, rate=float(rate), in_eval=False, on_output=True)
                self._dropped[id(asked["input"])] = asked["input"], here

    def forward_ended(self, returned: Sequence[Tensor]) -> None:
        """Note what drops from the outputs."""
        self.calls += [self._dropped[id(leaf)][1] for leaf in returned if id(leaf) in self._dropped]


class Casts(Collector):
    """Notes by how much of their deviation casts to narrower floats move values."""

    def __init__(self, layers: Layers) -> None:
        super().__init__(layers)
        self._casts: list[tuple[str, torch.dtype, Tensor]] = []

    def after_call(self, call: FunctionCall, leaves: Sequence[Any], result: Any, path: str) -> None:
        """Compare what a cast was given with what it made."""
        if call.name not in CASTS or not isinstance(result, Tensor) or not isinstance(call.args[0], Tensor):
            return
        given, made = call.args[0].detach(), result.detach()
        floats = given.is_floating_point() and made.is_floating_point()
        if floats and made.itemsize < given.itemsize and made.numel() > 1:
            wide = given.double()
            share = (made.double() - wide).square().mean() / wide.var()
            self._casts.append((path, made.dtype, share.reshape(1)))

    def rounded(self) -> tuple[str, str, float] | None:
        """Fetch the cast that loses most of what varies, if one loses much."""
        shares = [share for (share,) in fetch_all([square.sqrt() for *_, square in self._casts])]
        lost = [(share, k) for k, share in enumerate(shares) if LOST_DIGITS < share < math.inf]
        share, k = max(lost, default=(0.0, -1))
        return (self._casts[k][0], str(self._casts[k][1]).removeprefix("torch."), share) if lost else None
