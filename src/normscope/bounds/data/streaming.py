"""Jacobian norms over a loader, batch by batch, until there are enough for the asked confidence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...core.budget import Budget
from ...core.errors import InputError
from ...core.log10 import log10
from ...core.progress import Progress
from ...core.untouched import mode_of
from ...graph.call import arguments, batches_of, sample_shapes
from ...graph.capturing import Traces
from ...graph.ir import Graph, Shape
from ..derivative import captured
from ..point import batch_norms
from .order import draws_needed
from .parts import PER, LayerNorms, by_class, labels_of
from .quantile import DataBracket, check_shares, quantile

INDEPENDENT = (
    "samples count as independent draws of one distribution, on which the model was not trained: pass data that were "
    "held out, and let the loader shuffle"
)
PROBABLE = "each norm by Lanczos is at most its upper side with probability 0.999 over its random start"


class SampleNorms:
    """Jacobian norms at samples that come batch by batch.

    Args:
        model: any `torch.nn.Module` whose samples are independent, in eval mode.
        mode: as for `normscope.lipschitz`; train mode is refused.
        output: as for `normscope.lipschitz`.
        rtol: of each norm.
        seed: of the starts of Lanczos.
        graph: what was captured of the model, if it has been.

    Raises:
        InputError: the model is in train mode, which mixes samples.
    """

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
        """Take the norms at the samples of a batch; return how many there are.

        Raises:
            InputError: the samples are not independent, or have another shape than those before.
            JacobianError: the model has no derivative at some sample.
        """
        call = arguments(self.model, batch, self.output)
        self._shapes = sample_shapes(call, self._shapes)
        if not self._started:
            self._graph, self._started = captured(self.model, batch, self.mode, self.output), True
        count = call.count
        found = batch_norms(
            self.model,
            batch,
            mode=self.mode,
            output=self.output,
            rtol=self.rtol,
            seed=self.seed + len(self),
            graph=self._graph,
            traces=self._traces,
        )
        if len(found.upper) != count:
            raise InputError(
                f"samples meet in this model, or it treats them differently, or nobody can tell: all {count} are one "
                'input. scope="data" needs one norm per sample: pass batches of one sample'
            )
        self.lowers += map(log10, found.lower.tolist())
        self.uppers += map(log10, found.upper.tolist())
        self._products, self._width = self._products + found.products, found.directions.shape[1]
        self._settled = self._settled and bool(found.settled.all())
        self._methods[found.method] = None
        self._notes |= dict.fromkeys(found.notes)
        return count

    def quantile(self, share: float, confidence: float, *, advice: str | None = None) -> DataBracket:
        """Return the limits of a quantile, from the norms so far; `advice` says what kept them few.

        Raises:
            InputError: there is no norm.
        """
        if not self.uppers:
            raise InputError("the loader yields no batch: there is nothing to measure")
        if any("Lanczos" in method for method in self._methods):
            self._notes[PROBABLE] = None
        return quantile(
            self.lowers,
            self.uppers,
            share=share,
            confidence=confidence,
            mode="eval",
            method=", ".join(self._methods),
            input_shape=(self._width,),
            notes=tuple(self._notes),
            products=self._products,
            settled=self._settled,
            advice=advice,
        )


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
    per: str | None = None,
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
        per: `"class"`: also the quantiles of the samples of each class, of all samples there are unless `samples` says
            how many; `"layer"`: also those of the gains of each layer, which takes some 150 passes a sample.

    Raises:
        InputError: there is no sample, or samples are not independent or have several shapes, or an option is not what
            it can be.
        JacobianError: the model has no derivative at some sample.
    """
    check_shares(share, confidence)
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        raise InputError(f"samples is a whole number from 1 on, not {samples!r}")
    if per is not None and per not in PER:
        raise InputError(f'per is one of {", ".join(PER)} or None for scope="data", not {per!r}')
    norms = SampleNorms(model, mode=mode, output=output, rtol=rtol, seed=seed)
    parts = _DataParts(per, model, mode, output)
    needed = samples or (math.inf if per == "class" else draws_needed(share, confidence))
    budget = Budget(max_seconds=max_seconds, what="the pass over the data")
    with Progress("Jacobians over the data") as progress:
        for given in batches_of(loader):
            batch = parts.placed(given)
            count = norms.add(batch)
            parts.add(given, batch, count)
            progress.total = progress.total or (math.ceil(needed / count) if needed < math.inf else None)
            progress.step(f"sample {len(norms)}")
            if len(norms) >= needed or budget.late:
                break
    advice = budget.advice() if budget.cut and len(norms) < needed else None
    return parts.joined(norms.quantile(share, confidence, advice=advice))


class _DataParts:
    """What is kept of the samples beside their norms: their classes, or the gains of each layer."""

    def __init__(self, per: str | None, model: nn.Module, mode: str | None, output: str | int | None) -> None:
        self.per, self.model, self.mode, self.output = per, model, mode, output
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.labels: list[int] = []
        self.layers: LayerNorms | None = None

    def placed(self, given: Any) -> Any:
        """Return a batch on the device of the model."""
        return tree_map(lambda v: v.to(self.device) if isinstance(v, Tensor) else v, given)

    def add(self, given: Any, batch: Any, count: int) -> None:
        """Keep what is asked for of a batch, as it was given and on the device of the model."""
        if self.per == "class":
            self.labels += labels_of(given, count)
        if self.per == "layer":
            self.layers = self.layers or LayerNorms(self.model, batch, self.mode, self.output)
            self.layers.add(batch)

    def joined(self, found: DataBracket) -> DataBracket:
        """Return the quantiles with those of the parts."""
        if self.per == "class":
            return replace(found, per_class=by_class(found, self.labels))
        return found if self.layers is None else replace(found, per_layer=self.layers.brackets(found))
