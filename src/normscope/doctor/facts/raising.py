"""`find_raising`: where a plain forward and backward of a model raises, and the line of code behind it."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...calls.batches import LossFunction
from ...calls.call import Call, labels_of
from ...core.errors import InputError, describe_error
from ...core.threads import ignore_warnings
from ...core.untouched import on_copies
from ...listening.calls import FunctionCall, tensors_in
from ...listening.listener import ForwardListener
from .autograd_graph import operator_name
from .objective import LOSS, differentiated_outputs, random_signs, take_loss


def find_raising(
    model: nn.Module, call: Call, batch: Any, output: str | int | None, loss: LossFunction | None
) -> tuple[str, str, str] | None:
    """Run a model as its user does, inputs without a gradient; return where it raises, what, and the line of code."""
    owners = NodeOwners(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with (
            torch.enable_grad(),
            on_copies(model),
            ignore_warnings("Anomaly Detection|Error detected in"),
            torch.autograd.set_detect_anomaly(True, check_nan=False),
        ):
            copied = call.changed(torch.clone)
            with owners.listening():
                made = model(*copied.args, **copied.kwargs)
            outputs = differentiated_outputs(made, output)
            values = outputs if loss is None else [take_loss(loss, made, output, labels_of(batch, call))]
            values = [value for value in values if value.requires_grad]
            owners.follow(values)
            torch.autograd.grad(values, trained, [random_signs(value) for value in values], allow_unused=True)
    except InputError:
        return None
    except Exception as error:
        path, line = owners.found_at()
        return path, describe_error(error), line
    return None


class NodeOwners(ForwardListener):
    """Knows in which module each node of autograd's graph was made, and which node a backward came to last."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._owners: dict[Any, str] = {}
        self._last: Any = None
        self._path = ""  # the module in which the last function was called

    def before_call(self, call: FunctionCall) -> None:
        """Note where the forward is."""
        self._path = self.path

    def entered(self, path: str | None, args: Any) -> None:
        """What a module is given was made around it."""
        self._own(tensors_in(args), self._stack[-2] if len(self._stack) > 1 else "")

    def left(self, module: nn.Module, path: str, made: Any) -> None:
        """What a module returns, and what is not known yet of what lies before, was made in it."""
        self._own(tensors_in(made), path)

    def _own(self, tensors: Sequence[Tensor], path: str) -> None:
        waiting: list[Any] = [tensor.grad_fn for tensor in tensors]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in self._owners:
                self._owners[node] = path
                waiting.extend(before for before, _ in node.next_functions)

    def follow(self, objective: Sequence[Tensor]) -> None:
        """Note which node a backward of these tensors is at; what was made behind the model belongs to no module."""
        self._own(objective, LOSS)
        for node in self._owners:
            node.register_prehook(functools.partial(self._reach, node))

    def _reach(self, node: Any, gradients: Any) -> None:
        self._last = node

    def found_at(self) -> tuple[str, str]:
        """Return the module and the line of code that the node was made in which the backward came to last.

        Lines are known in torch's anomaly mode. Without a backward it is the module that the forward came to last.
        """
        if self._last is None:
            return self._path, ""
        frames = [line.strip().splitlines()[0] for line in self._last.metadata.get("traceback_", ())]
        own = [
            line for line in frames if not re.search(r"[/\\](torch|normscope[/\\](core|doctor|listening))[/\\]", line)
        ]
        place = re.search(r'File "(?:.*[/\\])?(.+)", line (\d+), in (.+)', own[-1]) if own else None
        line = "" if place is None else f"line {place[2]} of {place[1]}, in {place[3]}"
        return self._owners[self._last], f"{operator_name(self._last)}, {line}".rstrip(", ")
