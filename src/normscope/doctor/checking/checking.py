"""`check`: findings and signal health of a model, in a few forward and backward passes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...calls.batches import LossFunction
from ...calls.call import ALL_OUTPUTS, broken_tensors
from ...calls.data_reader import Batches
from ...calls.stand_ins import accepts_graph
from ...core.errors import InputError
from ...core.provenance import provenance
from ...core.threads import warnings_at_callers
from ...core.untouched import Mode, mode_of, outside_inference_mode, remembering_state, unwrapped
from ...core.whole_weights import whole_weights
from ..facts.data import WRONG_BATCH, DataSeen, run_over_data
from ..facts.examined import Examined, layer_seen
from ..facts.forward_backward import run_forward_backward, weigh_divergence
from ..facts.loss import resolve_loss, takes_labels
from ..facts.pass_facts import PassFacts
from ..facts.samples import compare_samples
from ..facts.steps import Optimizers, check_optimizers
from ..symptoms.registry import diagnose_model
from .check_result import Check, Passes

TOGETHER = "the model returns several tensors: they are measured together; choose one with output="
TAKEN = "of the tensors that the model returns `{}` is measured; choose another with output="
BATCHES = 8
"""How many batches of a loader are read: enough for dead units and stale statistics of batches of usual size."""


@accepts_graph
@outside_inference_mode
@warnings_at_callers()
def check(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    loader: Any = None,
    loss: LossFunction | str | None = None,
    optimizer: Optimizers | None = None,
    mode: Mode | None = None,
    output: str | int | None = None,
    name: str | None = None,
) -> Check:
    """Check a model in seconds: is anything wrong, and do values and gradients keep their scale with depth?

    Nothing is traced and nothing is bounded: the model runs forward once over each batch, once forward and backward
    over the first, and a few times over seven of its samples. So it works on every model that runs, but for
    TorchScript and tensors that cannot be copied, where a run could not be undone. `audit` measures more, and its
    findings that need a graph or a bound are not looked for here. The model is left exactly as found.
    Weights that FSDP2 or tensor parallelism has spread over processes count as whole, if every process calls this with
    the same batch: they are gathered where a layer takes them.

    Args:
        model: any `torch.nn.Module` (or its captured graph).
        data: a batch (a tensor, a NumPy array, a tuple of arguments, a dict of them), an iterable of batches such as a
            `DataLoader`, or a data set. The first batch is differentiated; the first 8 give the statistics of
            normalizers and ReLUs. None for the batch of a captured graph.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        loader: other data to take these statistics from.
        loss: a function from the output (and the labels, if there are any) to a scalar, or its name:
            `"cross_entropy"`, `"nll"`, `"bce"`, `"bce_with_logits"`, `"mse"`, `"l1"`, `"smooth_l1"`, `"huber"` or
            `"kl_div"`. Gradients are then those of the loss, and it is looked at whether outputs and targets fit it.
            Without it gradients are those of the loss that a model computes itself from labels among its arguments and
            returns as `loss`, as those of Hugging Face do, or else of a random direction of the output.
        optimizer: the one that trains the model; with a loss it is looked at what its next step would do (made by a
            copy of it), and whether it holds the model's parameters. Several that train it together are a list.
        mode: which of the model's two functions to take, `"train"` or `"eval"`; None for the mode the model is in.
        output: which output to differentiate, by name or number, for models with several; all of them together if not
            given.
        name: how the report calls the model; its class if not given.

    Returns:
        The check: `.verdict` in one sentence, `.findings`, `.signal` by depth, `.cost` in passes; prints as tables, and
        has `.to_html(path)`, `.to_json(path)`, `.to_pandas()`.

    Raises:
        InputError: the model does not accept the batch, the data yield nothing, or the loss cannot be taken.

    Example:
        >>> import torch, normscope as ns
        >>> deep = [layer for _ in range(12) for layer in (torch.nn.Linear(16, 16), torch.nn.Sigmoid())]
        >>> found = ns.check(torch.nn.Sequential(*deep), torch.randn(8, 16))
        >>> found.findings[0].code, found.cost
        ('gradient-vanishing', Passes(forwards=2, backwards=1, small=3))
    """
    check_optimizers(optimizer)
    asked, mode = mode, mode_of(model, mode)
    model = unwrapped(model)
    with whole_weights(model), remembering_state():
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        batches, source = read_source(model, data, labels, loader, with_loss=takes_labels(loss))
        function = resolve_loss(loss)
        seen, signal, skipped = _passes(
            model, batches.first, source, mode=asked, output=output, loss=function, optimizer=optimizer
        )
        divergence, weighed = None, signal is None and function is not None
        if weighed:
            divergence = weigh_divergence(model, batches.first, mode=asked, output=output, loss=function)
        examined = Examined(
            model=model,
            mode=mode,
            places=tuple(layer_seen(model, seen, site) for site in seen.order),
            data=seen,
            signal=signal,
            divergence=divergence,
        )
        return Check(
            name=name or type(model).__name__,
            mode=mode,
            parameters=sum(p.numel() for p in model.parameters()),
            samples=seen.samples,
            batches=seen.batches,
            findings=diagnose_model(examined),
            signal=signal,
            cost=Passes(
                forwards=seen.batches
                + (seen.error is not None)
                + (int(weighed) if signal is None else signal.forwards),
                backwards=0 if signal is None else signal.backwards,
                small=0 if signal is None or signal.dependence is None else signal.dependence.forwards,
            ),
            skipped=tuple(skipped),
            notes=what_was_taken(signal, output),
            provenance=provenance(device),
            trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
            parameter_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        )


def read_source(
    model: nn.Module, data: Any, labels: Any, loader: Any, *, with_loss: bool
) -> tuple[Batches, Batches | None]:
    """Return the data, and what statistics come from: the loader, or the data if they are more than one batch."""
    batches = Batches(model, data, labels=labels, with_loss=with_loss)
    if loader is None:
        return batches, None if batches.single else batches
    shared = labels if isinstance(labels, str) else None
    return batches, Batches(model, loader, labels=shared, with_loss=with_loss, name="loader")


def what_was_taken(signal: PassFacts | None, output: str | int | None) -> tuple[str, ...]:
    """Say which of several outputs were measured, where the user chose none."""
    if signal is None or output not in (None, ALL_OUTPUTS):
        return ()
    objective = signal.objective
    return (TOGETHER,) if objective.outputs > 1 else (TAKEN.format(objective.taken),) if objective.taken else ()


def is_other(source: Batches | None) -> bool:
    """Whether statistics come from other data than the batch that is differentiated."""
    return source is not None and source.name == "loader"


def _passes(
    model: nn.Module,
    batch: Any,
    source: Batches | None,
    *,
    mode: str | None,
    output: str | int | None,
    loss: LossFunction | None,
    optimizer: Optimizers | None,
) -> tuple[DataSeen, PassFacts | None, list[tuple[str, str]]]:
    """Make the pass over the data, then that of values and gradients; return both, and what was left out and why.

    A model with broken weights is not differentiated: what it says of the data, and the weights, are the findings.
    """
    broken = broken_tensors(model)
    skipped: list[tuple[str, str]] = []
    data = run_over_data(model, [batch] if source is None else itertools.islice(source, BATCHES), mode=mode)
    data = replace(data, other=is_other(source))
    if data.error is not None:
        if not broken:
            raise InputError(f"{data.error}. {WRONG_BATCH}") from data.raised
        skipped.append(("statistics over the data", data.error))
    if broken:
        where, what = next(iter(broken.items()))
        return data, None, [*skipped, ("values and gradients by depth", f"{where} {what}")]
    signal = run_forward_backward(
        model, batch, mode=mode, output=output, loss=loss, optimizer=optimizer, units=data.units
    )
    signal = replace(signal, dependence=compare_samples(model, batch, signal.loss))
    return data, signal, skipped + signal.skipped
