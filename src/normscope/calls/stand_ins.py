"""What stands in the place of a model: a captured graph, which knows its model and its batch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import nn

from ..core.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CaptureSource:
    """What a graph was captured from, so that it can stand in the place of its model.

    Attributes:
        model, batch: the model and the batch, on the model's device.
        mode, output: as they were asked for.
        digest: of all tensors of the model as they were, and of what a run computed.
    """

    model: nn.Module
    batch: Any
    mode: str | None
    output: str | int | None
    digest: str


class StandIn:
    """What a public function takes in the place of a model; without a source it does not know its model."""

    __slots__ = ()
    source: CaptureSource | None


REUSABLE: ContextVar[StandIn | None] = ContextVar("REUSABLE", default=None)
"""The graph that was passed in the place of a model, while the function runs that it was passed to."""


def accepts_graph(function: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M | StandIn, P], R]:
    """Let what `capture` returned stand in the place of the model of a public function.

    The function gets the model, its mode and its output, and without data the batch of the graph. Where it would
    capture that batch of that model, it gets the graph instead, if the model still has the weights that it had.
    """
    signature = inspect.signature(function)
    first, data, *others = signature.parameters.values()
    accepted = first.replace(annotation=f"{first.annotation} | Graph")

    @functools.wraps(function)
    def wrapped(model: M | StandIn, *args: P.args, **kwargs: P.kwargs) -> R:
        if not isinstance(model, StandIn):
            return function(model, *args, **kwargs)
        if model.source is None:
            raise InputError("this graph does not know its model: pass one that normscope.capture returned")
        given = signature.bind_partial(model.source.model, *args, **kwargs)
        for name, value in (("mode", model.source.mode), ("output", model.source.output)):
            if name in signature.parameters:
                given.arguments.setdefault(name, value)
        if given.arguments.get(data.name) is None:
            given.arguments[data.name] = model.source.batch
        token = REUSABLE.set(model)
        try:
            return function(*given.args, **given.kwargs)
        finally:
            REUSABLE.reset(token)

    wrapped.__signature__ = signature.replace(parameters=[accepted, data, *others])  # type: ignore[attr-defined]
    return wrapped
