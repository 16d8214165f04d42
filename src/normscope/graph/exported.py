"""Load models that were exported to a `.pt2` file."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ..core.errors import InputError, describe_error
from ..core.threads import ignore_warnings, silence_loggers

DROPOUT = "dropout counts as off"
P = ParamSpec("P")
R = TypeVar("R")
EXPORT_LOCK = threading.RLock()
LOGGERS = (
    "torch.__trace",
    "torch._export.serde.serialize",
    "torch._library.fake_class_registry",
    "torch._subclasses.fake_tensor",
    "torch.export",
    "torch.export._trace",
    "torch.export.unflatten",
    "torch.fx.experimental.sym_node",
    "torch.fx.experimental.symbolic_shapes",
)
"""The loggers of torch that speak while it traces or loads a model; an error says here what matters of it."""


def one_thread_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function that traces a model wait while another thread does so.

    torch.export keeps parts of its state for the whole process: two traces at once break each other, and a model that
    runs beside a trace reads that it is being exported, and may do something else.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with EXPORT_LOCK:
            return function(*args, **kwargs)

    return wrapped


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An exported model as a module.

    Attributes:
        model: the module, with the paths of the model it was exported from, in the mode it was exported in.
        batch_size: the only batch size it takes; `None` if it takes any.
        notes: what the reader must know.
    """

    model: nn.Module
    batch_size: int | None
    notes: tuple[str, ...]


@one_thread_at_a_time
def load_program(path: Path) -> Program:
    """Load a `.pt2` file. This can run code that the file holds.

    The file holds the graph of one mode: the attribute `training` of the module tells which, and dropout is off.
    """
    if not os.path.isfile(path):
        raise InputError(f"no file {path}")
    try:
        with quiet():
            program = torch.export.load(path)
            dropped = _without_dropout(program)
            training = dropped or any(
                node.args[5] is True for node in program.graph.nodes if str(node.target).startswith("aten.batch_norm")
            )
            model = torch.export.unflatten(program)
            _name_classes(model, program)
    except Exception as error:
        raise InputError(f"{path} is no exported program that this torch can load ({describe_error(error)})") from error
    for module in model.modules():  # exported modules refuse .train() and .eval()
        module.training = training
    return Program(model=model, batch_size=_fixed_batch_size(program), notes=(DROPOUT,) if dropped else ())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what torch logs and warns of in this thread while it traces or loads a model."""
    with ignore_warnings(), silence_loggers(*LOGGERS):
        yield


def _name_classes(model: nn.Module, program: torch.export.ExportedProgram) -> None:
    """Give every submodule the class name that it was exported from; reports show it."""
    kinds: dict[str, str] = {}
    for node in program.graph.nodes:
        for path, kind in node.meta.get("nn_module_stack", {}).values():
            kinds[path] = (kind if isinstance(kind, str) else kind.__name__).rsplit(".", 1)[-1]
    for path, module in model.named_modules():
        kind = kinds.get(path.split("@")[0])  # later calls of a module are copies with the paths path@1 and so on
        if path and kind is not None and kind.isidentifier():
            module.__class__ = type(kind, (type(module),), {"__module__": type(module).__module__})


def _without_dropout(program: torch.export.ExportedProgram) -> bool:
    """Switch dropout off in the graph; say whether any was on."""
    found = False
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.dropout.default and node.args[2] is True:
            node.update_arg(2, False)
            found = True
    return found


def _fixed_batch_size(program: torch.export.ExportedProgram) -> int | None:
    wanted = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name in wanted and isinstance(value, Tensor) and value.ndim:
            return value.shape[0] if isinstance(value.shape[0], int) else None
    return None
