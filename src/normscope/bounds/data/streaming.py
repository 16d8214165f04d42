"""Jacobian norms over a loader, batch by batch, until there are enough for the asked confidence.

Beside the norms of the network at all samples come those at the samples of each class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ...calls.call import arguments, sample_shapes
from ...calls.data_reader import Batches, inputs_and_labels
from ...core.budget import Budget, Progress
from ...core.errors import InputError
from ...core.log10 import log10
from ...core.untouched import mode_of
from ..derivative import captured
from ..graph.capturing import Traces
from ..graph.ir import Graph, Shape
from ..point import batch_norms
from .quantile import DataBracket, check_shares, draws_needed, quantile

INDEPENDENT = (
    "samples count as independent draws of one distribution, on which the model was not trained: pass data that were "
    "held out, and let the loader shuffle"
)
PROBABLE = "each norm by Lanczos is at most its upper side with probability 0.999 over its random start"


class SampleNorms:
    """Jacobian norms at samples that come batch by batch; `graph` is what was captured of the model, if it has been."""

    def __init__(
        self,
        model: nn.Module,
        *,
        mode: str | None = None,
        output: str | int | None = None,
        rtol: float = 1e-3,
        seed: int = 0,
        graph: Graph | None = None,
    ) -> None:
        if mode_of(model, mode) == "train":
            raise InputError('scope="data" speaks of single samples, which train mode mixes: use mode="eval"')
        self.model, self.mode, self.output, self.rtol, self.seed = model, mode, output, rtol, seed
        self.lowers: list[float] = []
        self.uppers: list[float] = []
        self._traces = Traces(model, mode=mode, output=output)
        self._graph, self._started = graph, graph is not None
        self._methods: dict[str, None] = {}
        self._notes: dict[str, None] = {INDEPENDENT: None}
        self._products, self._width, self._settled = 0, 0, True
        self._shapes: tuple[Shape, ...] = ()

    def __len__(self) -> int:
        return len(self.uppers)

    def add(self, batch: Any) -> int:
        """Take the norms at the samples of a batch; return how many there are."""
        call = arguments(self.model, batch, self.output)
        self._shapes = sample_shapes(call, self._shapes)
        if not self._started:
            self._graph, self._started = captured(self.model, batch, self.mode, self.output), True
        count = call.count
        norms = batch_norms(
            self.model,
            batch,
            mode=self.mode,
            output=self.output,
            rtol=self.rtol,
            seed=self.seed + len(self),
            graph=self._graph,
            traces=self._traces,
        )
        if len(norms.upper) != count:
            raise InputError(
                f"samples meet in this model, or it treats them differently, or nobody can tell: all {count} are one "
                'input. scope="data" needs one norm per sample: pass batches of one sample'
            )
        self.lowers += map(log10, norms.lower.tolist())
        self.uppers += map(log10, norms.upper.tolist())
        self._products, self._width = self._products + norms.products, norms.directions.shape[1]
        self._settled = self._settled and bool(norms.settled.all())
        self._methods[norms.method] = None
        self._notes |= dict.fromkeys(norms.notes)
        return count

    def quantile(self, share: float, confidence: float, *, advice: str | None = None) -> DataBracket:
        """Return the limits of a quantile, from the norms so far; `advice` says what kept them few."""
        if any("Lanczos" in method for method in self._methods):
            self._notes[PROBABLE] = None
        if not self._settled:
            advice = "; ".join(filter(None, [advice, "some norms did not close to rtol: raise rtol"]))
        return quantile(
            self.lowers,
            self.uppers,
            share=share,
            confidence=confidence,
            method=", ".join(self._methods),
            input_shape=(self._width,),
            notes=tuple(self._notes),
            products=self._products,
            advice=advice,
        )


def data_quantile(
    model: nn.Module,
    data: Any,
    *,
    labels: Any = None,
    share: float = 0.99,
    confidence: float = 0.95,
    samples: int | None = None,
    mode: str | None = None,
    output: str | int | None = None,
    rtol: float = 1e-3,
    max_seconds: float | None = None,
    seed: int = 0,
    per: str | None = None,
) -> DataBracket:
    """Return the limits of a quantile of the Jacobian norm over the distribution that a loader draws from.

    Batches are read until there are as many samples as asked for; without `samples` as many as the confidence takes, of
    which the largest norm is then the limit. How many are read never depends on what they show, so that the confidence
    holds. One batch is in memory at a time.

    Each side holds with the confidence. `per="class"` measures all samples unless `samples` says how many. No batch is
    begun after `max_seconds`. The rest is as in `lipschitz`.

    Raises:
        InputError: there is no sample, or samples are not independent or have several shapes, or an option is not what
            it can be.
        JacobianError: the model has no derivative at some sample.
    """
    check_shares(share, confidence)
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        raise InputError(f"samples is a whole number from 1 on, not {samples!r}")
    if per not in (None, "class"):
        raise InputError(f'per is "class" or None for scope="data", not {per!r}')
    norms = SampleNorms(model, mode=mode, output=output, rtol=rtol, seed=seed)
    classes: list[int] = []
    needed = samples or (math.inf if per == "class" else draws_needed(share, confidence))
    budget = Budget(max_seconds=max_seconds, what="the pass over the data")
    with Progress("Jacobians over the data") as progress:
        for batch in Batches(model, data, labels=labels):
            count = norms.add(batch)
            if per == "class":
                classes += classes_of(inputs_and_labels(model, batch)[1], count)
            progress.total = progress.total or (math.ceil(needed / count) if needed < math.inf else None)
            progress.step(f"sample {len(norms)}")
            if len(norms) >= needed or budget.late:
                break
    advice = budget.advice() if budget.cut and len(norms) < needed else None
    bracket = norms.quantile(share, confidence, advice=advice)
    if per == "class":
        return replace(bracket, per_class=by_class(bracket, classes))
    return bracket


def classes_of(labels: Any, count: int) -> list[int]:
    """Return the class of each sample of a batch; refuse labels that are no classes."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.numel() != count:
        raise InputError(
            'per="class" needs the class of every sample: pass pairs (inputs, labels), or dicts with an entry '
            "`labels`, of whole numbers"
        )
    return [int(label) for label in labels.reshape(-1).tolist()]


def by_class(bracket: DataBracket, labels: Sequence[int]) -> dict[str, DataBracket]:
    """Return the quantiles of the samples of each class, which are independent draws of that class."""
    parts = {}
    for label in sorted(set(labels)):
        places = [i for i, own in enumerate(labels) if own == label]
        part = quantile(
            [bracket.log10_norms_lower[i] for i in places],
            [bracket.log10_norms[i] for i in places],
            share=bracket.share,
            confidence=bracket.confidence,
            method=bracket.method.partition(": ")[2],
            input_shape=bracket.input_shape or (),
        )
        parts[str(label)] = part.renumbered(places)
    return parts
