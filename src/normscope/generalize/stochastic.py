"""The PAC-Bayes row: a posterior around a model's weights, its error on D, and the bound on its error on fresh data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import NormscopeError, said
from ..core.untouched import untouched
from ..graph.capturing import capture_weights
from .bound import BoundRow, Condition, condition, row, term
from .data_reading import endless
from .description import Description, Fixed, describe
from .families import IID
from .pac_bayes import LARGEST, PRECISION, WeightVector, averaged_error, certified_error, kl_inverse, optimise
from .stream import SampleBatch

BATCH = 128
"""How many samples a step of the search takes."""
EXAMPLE = 8
"""How many samples the model is traced at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PosteriorSearch:
    """How the posterior is searched for.

    Attributes:
        steps: how many steps of RMSprop to take.
        draws: about how many draws of the weights the error is averaged over.
        rates: the learning rates of the means, and of the logarithms of the deviations.
        prior: the weights that the prior is centred at, fixed before D was seen; None for zero.
        batch: how many samples a step takes.
    """

    steps: int = 500
    draws: int = 1000
    rates: tuple[float, float] = (1e-3, 1e-2)
    prior: dict[str, Tensor] | None = None
    batch: int = BATCH


def pac_bayes_row(
    model: nn.Module,
    read_again: Callable[[], Iterator[SampleBatch]],
    *,
    search: PosteriorSearch,
    samples: int,
    classes: int,
    delta: float,
    output: str | int | None,
    traced: Sequence[Condition],
    seed: int,
    fixed: Fixed | None = None,
) -> tuple[BoundRow, dict[str, Any]]:
    """Optimise a Gaussian around the weights; return its PAC-Bayes row, and the figures behind the row."""
    source = endless(read_again, search.batch)
    first = next(source)
    weights, beside, counted = _described(model, first.inputs[:EXAMPLE], output, fixed or Fixed())
    start = torch.zeros_like(weights.vector()) if search.prior is None else weights.vector(search.prior)
    generator = torch.Generator(start.device).manual_seed(seed)
    with untouched(model, "eval", traced=True):  # The model runs with other weights; its own are not overwritten.
        posterior = optimise(
            weights,
            itertools.chain([first], source),
            start=start,
            samples=samples,
            classes=classes,
            steps=search.steps,
            rates=search.rates,
            delta=delta / 2.0,
            generator=generator,
        )
        error, draws = averaged_error(
            weights, posterior, read_again, samples=samples, draws=search.draws, generator=generator
        )
    kl, right, number = posterior.settled(samples, delta / 2.0, beside.nats)
    at_most = certified_error(error, draws, delta / 2.0)
    value = kl_inverse(at_most, right)
    untrained_prior = search.prior is None or not bool((start == weights.vector()).all())
    bound = row(
        "PAC-Bayes",
        source="McAllester 1999, Maurer 2004, after Dziugaite and Roy 2017",
        speaks_of="the error of a network with weights drawn around those of the model, on fresh data",
        most=1.0,
        terms=[
            term("error on D", error),
            term("draws", at_most - error),
            term("complexity", value - at_most),
        ],
        conditions=(IID, *traced, _prior_condition(search, untrained_prior), counted),
        log10_value=math.log10(value),
        log10_as_printed=math.log10(at_most + math.sqrt(right / 2.0)) if at_most + right > 0 else -math.inf,
        note=f"KL {kl:.4g} nats over {samples:,} samples after {search.steps:,} steps, prior variance "
        f"{LARGEST * math.exp(-number / PRECISION):.3g}, {draws:,} draws; as printed: McAllester's square root",
    )
    return bound, {"kl": kl, "error": error, "error_at_most": at_most, "draws": draws, "right": right}


def _prior_condition(search: PosteriorSearch, untrained: bool) -> Condition:
    """Return whether the prior does not depend on D; `untrained` says that its centre is not the model's weights."""
    if search.prior is None:
        why = "it is centred at zero"
    elif untrained:
        why = "its centre is declared as fixed before D was seen"
    else:
        why = "its centre is the model as it is now: unless it was never trained, copy the weights before training"
    return condition("the prior does not depend on D", True if untrained else None, why)


def _described(
    model: nn.Module, inputs: Tensor, output: str | int | None, fixed: Fixed
) -> tuple[WeightVector, Description, Condition]:
    """Return the weights, what the graph holds besides them, and whether all of that is counted."""
    weights = WeightVector.of(model, output)
    try:
        graph = capture_weights(model, inputs, output=output)
        traced = WeightVector.of(model, output, graph)
        traced.measured(weights.vector(), inputs)
    except (NormscopeError, RuntimeError, NotImplementedError, TypeError) as error:
        beside = Description()
        return weights, beside, condition(beside.condition.what, None, f"the model cannot be traced: {said(error)}")
    beside = describe(graph, range(len(graph.constants)), fixed)
    return traced, beside, beside.condition
