"""`check`: findings and signal health of a model, in a few forward and backward passes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..core.errors import InputError
from ..core.provenance import provenance
from ..core.untouched import mode_of, outside_inference_mode, unwrapped
from ..graph.call import batches_of, broken_tensors
from .checked import Check, Passes
from .data_pass import WRONG_BATCH, watch_data
from .descent_pass import Optimizers
from .examined import DataSeen, Examined
from .findings import look
from .loss_facts import check_loss_given, resolve_loss
from .rows import from_data
from .sample_pass import compare_samples
from .signal import Signal
from .signal_pass import Loss, watch_signal

TOGETHER = "the model returns several tensors: they are measured together; choose one with output="
BATCHES = 8
"""How many batches of a loader are read: enough for dead units and stale statistics of batches of usual size."""


@outside_inference_mode
def check(
    model: nn.Module,
    batch: Any,
    *,
    loader: Iterable[Any] | None = None,
    loss: Loss | str | None = None,
    optimizer: Optimizers | None = None,
    mode: str | None = None,
    output: str | int | None = None,
    name: str | None = None,
) -> Check:
    """Check a model in seconds: is anything wrong, and do values and gradients keep their scale with depth?

    Nothing is traced and nothing is bounded: the model runs forward once over each batch, once forward and backward
    over the first, and a few times over seven of its samples. So it works on every model that runs. `audit` measures
    more, and its findings that need a graph or a bound are not looked for here. The model is left exactly as found.

    Args:
        model: any `torch.nn.Module`.
        batch: what the model takes: a tensor, a tuple of arguments or a dict of them; a pair of inputs and labels.
        loader: batches to take the statistics of normalizers and ReLUs from, in place of the batch; the first 8 are
            read.
        loss: a function from the output (and the labels, if the batch is a pair) to a scalar, or its name:
            `"cross_entropy"`, `"nll"`, `"bce"`, `"bce_with_logits"`, `"mse"`, `"l1"`, `"smooth_l1"`, `"huber"` or
            `"kl_div"`. Gradients are then those of the loss, and it is looked at whether outputs and targets fit it.
            Without it gradients are those of a random direction of the output.
        optimizer: the one that trains the model; with a loss it is looked at what its next step would do (made by a
            copy of it), and whether it holds the model's parameters. Several that train it together are a list.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        output: which output to differentiate, for models with several; all of them together if not given.
        name: how the report calls the model; its class if not given.

    Returns:
        The check: `.verdict` in one sentence, `.findings`, `.signal` by depth, `.cost` in passes; prints as tables, and
        has `.to_html(path)`, `.to_json(path)`, `.to_pandas()`.

    Raises:
        InputError: the model does not accept the batch, the loader yields nothing, or the loss cannot be taken.

    Example:
        >>> import torch, normscope as ns
        >>> deep = [layer for _ in range(12) for layer in (torch.nn.Linear(16, 16), torch.nn.Sigmoid())]
        >>> found = ns.check(torch.nn.Sequential(*deep), torch.randn(8, 16))
        >>> found.findings[0].code, found.cost
        ('gradient-vanishing', Passes(forwards=2, backwards=1, small=3))
    """
    if loader is not None and not hasattr(loader, "__iter__"):
        raise InputError(f"loader is a {type(loader).__name__}: pass something that yields batches")
    check_loss_given(loss, optimizer)
    asked, mode = mode, mode_of(model, mode)
    model = unwrapped(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batch = tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, batch)
    data, signal, skipped = _passes(
        model, batch, loader, mode=asked, output=output, loss=resolve_loss(loss), optimizer=optimizer
    )
    examined = Examined(model=model, mode=mode, places=from_data(model, data), data=data, signal=signal)
    return Check(
        name=name or type(model).__name__,
        mode=mode,
        parameters=sum(p.numel() for p in model.parameters()),
        samples=data.samples,
        batches=data.batches,
        findings=look(examined),
        signal=signal,
        cost=Passes(
            forwards=data.batches + (data.error is not None) + (0 if signal is None else signal.forwards),
            backwards=0 if signal is None else signal.backwards,
            small=0 if signal is None or signal.dependence is None else signal.dependence.forwards,
        ),
        skipped=tuple(skipped),
        notes=() if signal is None or signal.outputs < 2 or output is not None else (TOGETHER,),
        provenance=provenance(device),
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        parameter_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
    )


def _passes(
    model: nn.Module,
    batch: Any,
    loader: Iterable[Any] | None,
    *,
    mode: str | None,
    output: str | int | None,
    loss: Loss | None,
    optimizer: Optimizers | None,
) -> tuple[DataSeen, Signal | None, list[tuple[str, str]]]:
    """Make the pass over the data, then that of values and gradients; return both, and what was left out and why.

    A model with broken weights is not differentiated: what it says of the data, and the weights, are the findings.
    """
    broken = broken_tensors(model)
    skipped: list[tuple[str, str]] = []
    data = watch_data(
        model, [batch] if loader is None else itertools.islice(batches_of(loader, model=model), BATCHES), mode=mode
    )
    if data.error is not None:
        if not broken:
            raise InputError(f"{data.error}. {WRONG_BATCH}")
        skipped.append(("statistics over the data", data.error))
    if broken:
        where, what = next(iter(broken.items()))
        return data, None, [*skipped, ("values and gradients by depth", f"{where} {what}")]
    signal = watch_signal(model, batch, mode=mode, output=output, loss=loss, optimizer=optimizer, units=data.units)
    signal = replace(signal, dependence=compare_samples(model, batch))
    return data, signal, skipped + signal.skipped
