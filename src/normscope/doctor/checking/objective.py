"""What is differentiated: the user's loss of what a model returns, or its outputs along random signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...calls.batches import LossFunction
from ...calls.call import ALL_OUTPUTS, Call, labels_of, select
from ...core.errors import InputError, describe_error
from ...core.threads import ignore_warnings
from ...core.untouched import on_copies
from ...listening.calls import as_floats
from .autograd_flow import NodeOwners


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


def own_loss(made: Any) -> Any:
    """Return the loss that a model has computed itself and returns as `loss`, if it is one."""
    value = made.get("loss") if isinstance(made, Mapping) else getattr(made, "loss", None)
    return value if isinstance(value, Tensor) and value.numel() == 1 else None


def differentiated_outputs(made: Any, output: str | int | None) -> list[Tensor]:
    """Return the output that is differentiated; where none is the usual one, all floats that the model returns."""
    if output == ALL_OUTPUTS:
        return as_floats(made)
    try:
        return [select(made, output)]
    except InputError:
        if output is not None:
            raise
        return as_floats(made)


def take_loss(loss: LossFunction, made: Any, output: str | int | None, labels: Sequence[Any]) -> Tensor:
    """Return the loss of the user's function: of the one output, or else of all that the model returns (`o.loss`).

    An output that the user named comes first, and to losses of torch, which take tensors, the one there is. A function
    of the user's that takes what the model returns may take a tensor as well, and read it otherwise: `o[0]` of a tensor
    is its first sample.
    """
    outputs = differentiated_outputs(made, output)
    single = outputs[0] if len(outputs) == 1 else made
    module = loss.__module__ if hasattr(loss, "__qualname__") else type(loss).__module__
    by_tensor = output is not None or str(module).startswith("torch.")
    forms = (single, made) if by_tensor else (made, single)
    value: Any
    try:
        value = loss(forms[0], *labels)
    except Exception as error:
        try:
            value = None if forms[0] is forms[1] else loss(forms[1], *labels)
        except Exception:
            value = None
        if value is None:
            raise InputError(
                f"the loss raises {describe_error(error)}: it is called with the model's output, and with the labels "
                "where the batch is a pair of inputs and labels, or a dict that holds labels"
            ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        kind = f"{value.numel()} values" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(
            f"the loss must return a tensor with one value, and it returned {kind}. With loss= a model is not given "
            'its labels, so that it computes no loss of its own: name that loss, as in loss="cross_entropy"'
        )
    return value


def random_signs(value: Tensor) -> Tensor:
    """Return random signs, the same for the same shape."""
    generator = torch.Generator(value.device).manual_seed(0)
    drawn = torch.empty(value.shape, device=value.device).bernoulli_(0.5, generator=generator)
    return (2.0 * drawn - 1.0).to(value.dtype)
