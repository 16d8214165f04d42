"""Jacobian norms over a loader, batch by batch, until there are enough for the asked confidence."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...core.budget import Budget
from ...core.errors import InputError
from ...core.log10 import log10
from ...core.progress import Progress
from ...core.untouched import mode_of
from ...graph.call import arguments, batches_of
from ...graph.export import Traces
from ..derivative import captured
from ..point import batch_norms
from .order import draws_needed
from .quantile import DataBracket, check_shares, quantile

INDEPENDENT = "samples count as independent draws of one distribution: let the loader shuffle"
PROBABLE = "each norm by Lanczos is at most its upper side with probability 0.999 over its random start"


def data_quantile(
    model: nn.Module,
    loader: Any,
    *,
    share: float = 0.99,
    confidence: float = 0.95,
    samples: int | None = None,
    mode: str | None = None,
    output: str | int | None = None,
    rtol: float = 1e-3,
    max_seconds: float | None = None,
    seed: int = 0,
) -> DataBracket:
    """Return the limits of a quantile of the Jacobian norm over the distribution that a loader draws from.

    Batches are read until there are as many samples as asked for; without `samples` as many as the confidence takes, of
    which the largest norm is then the limit. How many are read never depends on what they show, so that the confidence
    holds. One batch is in memory at a time.

    Args:
        model: any `torch.nn.Module` whose samples are independent, in eval mode.
        loader: batches that the model takes: a DataLoader, a list or an iterator; or one batch: a tensor, a tuple or a
            dict of arguments.
        share: of the distribution.
        confidence: of each side.
        samples: how many to measure at least, if there are so many: more give a smaller limit.
        mode: as for `normscope.lipschitz`; train mode is refused.
        output: as for `normscope.lipschitz`.
        rtol: of each norm.
        max_seconds: no batch is begun after it.
        seed: of the starts of Lanczos.

    Raises:
        InputError: there is no sample, or samples are not independent, or an option is not what it can be.
        JacobianError: the model has no derivative at some sample.
    """
    check_shares(share, confidence)
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        raise InputError(f"samples is a whole number from 1 on, not {samples!r}")
    if mode_of(model, mode) == "train":
        raise InputError('scope="data" speaks of single samples, which train mode mixes: use mode="eval"')
    needed = samples or draws_needed(share, confidence)
    budget = Budget(max_seconds=max_seconds, what="the pass over the data")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    traces = Traces(model, mode=mode, output=output)
    graph, started = None, False
    lowers: list[float] = []
    uppers: list[float] = []
    methods: dict[str, None] = {}
    notes: dict[str, None] = {INDEPENDENT: None}
    products, width, settled = 0, 0, True
    with Progress("Jacobians over the data") as progress:
        for given in batches_of(loader):
            batch = tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, given)
            if not started:
                graph, started = captured(model, batch, mode, output), True
            count = arguments(model, batch, output).count
            options: dict[str, Any] = {"mode": mode, "output": output, "rtol": rtol, "seed": seed + len(uppers)}
            found = batch_norms(model, batch, graph=graph, traces=traces, **options)
            if len(found.upper) != count:
                raise InputError(
                    f"the samples of this model are not independent, or nobody can tell: its {count} samples are one "
                    'input. scope="data" needs one norm per sample: pass batches of one sample'
                )
            lowers += map(log10, found.lower.tolist())
            uppers += map(log10, found.upper.tolist())
            products, width = products + found.products, found.directions.shape[1]
            settled = settled and bool(found.settled.all())
            methods[found.method] = None
            notes |= dict.fromkeys(found.notes)
            progress.total = progress.total or math.ceil(needed / count)
            progress.step(f"sample {len(uppers)} of {needed}")
            if len(uppers) >= needed or budget.late:
                break
    if not uppers:
        raise InputError("the loader yields no batch: there is nothing to measure")
    if any("Lanczos" in method for method in methods):
        notes[PROBABLE] = None
    return quantile(
        lowers,
        uppers,
        share=share,
        confidence=confidence,
        mode="eval",
        method=", ".join(methods),
        input_shape=(width,),
        notes=tuple(notes),
        products=products,
        settled=settled,
        advice=budget.advice() if budget.cut and len(uppers) < needed else None,
    )
