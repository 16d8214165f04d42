"""The PAC-Bayes row: the posterior around a model's weights, its error, and what the bound says of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.reached import KNOWN
from ..core.untouched import untouched
from ..graph.ir import leaves
from .bound import BoundRow, Condition, condition, row, term
from .data_reading import endless
from .families import IID
from .pac_bayes import LARGEST, PRECISION, WeightVector, averaged_error, certified_error, kl_inverse, optimise
from .stream import SampleBatch

COUNTER = "num_batches_tracked"
"""The buffer of BatchNorms that their output does not depend on in eval mode."""
BATCH = 128
"""Samples of a step of the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PosteriorSearch:
    """How the posterior is searched for.

    Attributes:
        steps: of RMSprop.
        draws: of the weights, for the average error.
        rates: of the means, and of the logarithms of the deviations.
        prior: the weights that the prior is centred at, fixed before D was seen; None for zero.
        batch: samples of a step.
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
    alone: Condition,
    seed: int,
) -> tuple[BoundRow, dict[str, Any]]:
    """Optimise a Gaussian around the weights and return what PAC-Bayes says of it, and the figures behind it.

    Args:
        model: its weights are where the search starts, and stay as they are.
        read_again: reads D.
        search: how to search.
        samples: m.
        classes: K.
        delta: the probability of failure; half is for the bound and half for the draws.
        output: which output of the model.
        alone: whether the loss of a sample depends on that sample alone.
        seed: of the draws.

    Raises:
        InputError: the weights or the prior are none, or the search fails.
    """
    weights = WeightVector.of(model, output)
    start = torch.zeros_like(weights.vector()) if search.prior is None else weights.vector(search.prior)
    generator = torch.Generator(start.device).manual_seed(seed)
    with untouched(model, "eval", traced=True):  # other weights go through the model, its own are not written
        posterior = optimise(
            weights,
            endless(read_again, search.batch),
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
    kl, right, place = posterior.settled(samples, delta / 2.0)
    at_most = certified_error(error, draws, delta / 2.0)
    value = kl_inverse(at_most, right)
    kept = _kept(model)
    copied = search.prior is not None and bool((start == weights.vector()).all())
    conditions = (
        IID,
        alone,
        condition(
            "the prior does not depend on D",
            None if copied else True,
            "it is centred at zero"
            if search.prior is None
            else "its centre is declared as fixed before D was seen"
            if not copied
            else "its centre is the model as it is now: unless it was never trained, copy the weights before training",
        ),
        condition(
            "nothing but the weights depends on D",
            not kept,
            "the model has no buffers"
            if not kept
            else f"`{kept[0]}` is no weight, has no prior, and may have been taken from D",
        ),
    )
    figures = {"kl": kl, "error": error, "error_at_most": at_most, "draws": draws, "right": right}
    return row(
        "PAC-Bayes",
        source="McAllester 1999, Maurer 2004, after Dziugaite and Roy 2017",
        speaks_of="the error of a network with weights drawn around those of the model, on fresh data",
        most=1.0,
        terms=[
            term("error on D", error),
            term("draws", at_most - error),
            term("complexity", value - at_most),
        ],
        conditions=conditions,
        log10_value=math.log10(value),
        log10_as_printed=math.log10(at_most + math.sqrt(right / 2.0)) if at_most + right > 0 else -math.inf,
        note=f"KL {kl:.4g} nats over {samples:,} samples after {search.steps:,} steps, prior variance "
        f"{LARGEST * math.exp(-place / PRECISION):.3g}, {draws:,} draws; as printed: McAllester's square root",
    ), figures


def _kept(model: nn.Module) -> list[str]:
    """Return the names of tensors that a model holds beside its parameters: buffers and plain attributes.

    An attribute that is computed from parameters (`weight` of `weight_v` and `weight_g`, or of `weight_orig`) is none.
    """
    names = [name for name, _ in model.named_buffers() if name.rpartition(".")[2] != COUNTER]
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            computed = any(own.startswith(f"{name}_") for own in module._parameters)
            if name not in KNOWN and not computed and any(isinstance(one, Tensor) for one in leaves(value)):
                names.append(f"{path}.{name}" if path else name)
    return names
