"""PAC-Bayes for a Gaussian around the weights, optimised for the bound (Dziugaite and Roy 2017).

For a prior P fixed before the data are seen, with probability 1 - delta, for all Gaussians Q of weights together,
`kl(error of Q on D, error of Q) <= (KL(Q, P) + ln(2 sqrt(m)/delta))/m` (Maurer 2004). The prior is `N(w_0, lambda I)`
with lambda from the list `c exp(-j/b)`, whose members have the shares `6/(pi^2 j^2)` of delta. The error of Q on D is
an average over weights: it is estimated by n independent draws, whose average bounds it with a delta of its own. The
bound holds for the network whose weights are drawn anew for every sample, not for the network with the mean weights.
The draws run through the captured graph as a function of its weights: all that it holds besides them is counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope import Graph, NormscopeError
from normscope.toolkit import (
    InputError,
    Logits,
    Progress,
    capture_weights,
    describe_error,
    select_output,
    untouched,
    with_tensors,
)

from .bound import BoundRow, Condition, condition, row, term
from .data_reading import endless
from .description import ARCHITECTURE, Description, Fixed, describe
from .stream import SampleBatch

LARGEST, PRECISION = 0.1, 100.0
"""c and b: the variances of the prior that are tried are c exp(-j/b), j = 1, 2, ..."""
START = math.exp(-6.0)
"""The variance of prior and posterior before the search."""
ROUNDING = 1e-15
"""The largest rounding error of kl where it is small."""
AT_ONCE = 64
"""How many samples share one draw of the weights when the error is averaged; more where D has many samples."""
BATCH = 128
"""How many samples a step of the search takes."""
RATES = 1e-3, 1e-2
"""The learning rates of the means, and of the logarithms of the deviations."""
EXAMPLE = 8
"""How many samples the model is traced at."""


def binary_kl(q: float, p: float) -> float:
    """Return kl(q, p) between two Bernoulli distributions; infinite where p is 0 or 1 and q is not."""
    first = 0.0 if q == 0.0 else math.inf if p == 0.0 else q * math.log(q / p)
    second = 0.0 if q == 1.0 else math.inf if p == 1.0 else (1.0 - q) * math.log((1.0 - q) / (1.0 - p))
    return first + second


def kl_inverse(q: float, limit: float) -> float:
    """Return the largest p with `kl(q, p) <= limit`, rounded up."""
    if not 0.0 <= q <= 1.0 or not limit >= 0.0:
        raise InputError(f"kl has an inverse for a share and a limit from 0 on, not {q!r} and {limit!r}")
    low, high = q, 1.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if binary_kl(q, middle) <= limit + ROUNDING else (low, middle)
    return high


def complexity(kl: float, samples: int, delta: float, number: int, nats: float = 0.0) -> float:
    """Return the right side of the bound: `(KL + ln(2 sqrt(m)/delta_j))/m` with `delta_j = 6 delta/(pi^2 j^2)`."""
    share = math.log(math.pi**2 * number**2 / 6.0)
    return (kl + math.log(2.0 * math.sqrt(samples) / delta) + share + nats) / samples


@dataclass(slots=True)
class Posterior:
    """A Gaussian over all weights as vectors; `start` is w_0 and `log_prior` half of ln lambda, those of its prior."""

    mean: Tensor
    log_deviation: Tensor
    start: Tensor
    log_prior: Tensor

    def kl(self, prior: float | None = None) -> Tensor:
        """Return the KL divergence from the prior, of the given variance or its own; it can be differentiated."""
        variance = (2.0 * self.log_prior).exp() if prior is None else torch.tensor(prior, dtype=torch.float64)
        deviation, distance = self.log_deviation.exp(), self.mean - self.start
        squares = (distance * distance).sum(dtype=torch.float64) + (deviation * deviation).sum(dtype=torch.float64)
        logs = 2.0 * self.log_deviation.sum(dtype=torch.float64)
        return 0.5 * (squares / variance - len(self.mean) + len(self.mean) * variance.log() - logs)

    def double(self) -> Posterior:
        """Return the same posterior in float64."""
        return Posterior(self.mean.double(), self.log_deviation.double(), self.start.double(), self.log_prior.double())

    def draw(self, generator: torch.Generator) -> Tensor:
        """Draw one vector of weights."""
        noise = torch.randn(self.mean.shape, generator=generator, device=self.mean.device, dtype=self.mean.dtype)
        return self.mean + self.log_deviation.exp() * noise

    def choose_prior(self, samples: int, delta: float, nats: float = 0.0) -> tuple[float, float, int]:
        """Return KL, the right side of the bound and j for the member of the list of priors that makes it smallest."""
        between = PRECISION * math.log(LARGEST / math.exp(2.0 * float(self.log_prior)))
        tried, exact = [], self.double()
        for number in {max(1, math.floor(between)), max(1, math.ceil(between))}:
            kl = float(exact.kl(LARGEST * math.exp(-number / PRECISION)))
            tried.append((complexity(kl, samples, delta, number, nats), kl, number))
        right, kl, number = min(tried)
        return kl, right, number


class TracedInWeights(Logits):
    """The graph of one sample as a function of many samples and of the weights."""

    def __init__(self, graph: Graph, names: Sequence[str]) -> None:
        super().__init__(graph)
        self.names = names
        self.weights: list[Tensor] = []

    def at(self, state: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the logits of some samples with the weights of a state."""
        self.weights = [state[name].to(item.value) for name, item in zip(self.names, self.graph.inputs)]
        return self(inputs.flatten(1))

    def _one(self, row: Tensor) -> Tensor:
        sample = row.reshape(self.graph.inputs[-1].shape)
        return self.graph.run(*self.weights, sample).reshape(-1)


@dataclass(frozen=True, slots=True)
class WeightVector:
    """The float parameters of a model as one vector, and the model as a function of it."""

    model: nn.Module  # model, output: the model, and which of its outputs to take
    names: tuple[str, ...]  # names, shapes: those of its parameters
    shapes: tuple[torch.Size, ...]
    output: str | int | None = None
    traced: TracedInWeights | None = None  # its graph as a function of them; None where there is none

    @classmethod
    def of(cls, model: nn.Module, output: str | int | None = None, graph: Graph | None = None) -> WeightVector:
        """Return the weights of a model; `graph` has them as inputs before the sample."""
        named = {name: one for name, one in model.named_parameters() if one.is_floating_point()}
        traced = None
        if graph is not None:  # Parameters that modules share have several names.
            own = {id(one): name for name, one in named.items()}
            every = dict(model.named_parameters(remove_duplicate=False))
            traced = TracedInWeights(graph, [own[id(every[item.path])] for item in graph.inputs[:-1]])
        return cls(model, tuple(named), tuple(one.shape for one in named.values()), output, traced)

    def vector(self, prior: dict[str, Tensor] | None = None) -> Tensor:
        """Return the given parameters, or those of the model, as one vector."""
        if not self.names:
            raise InputError("the model has no parameters, and a posterior is one over parameters")
        state = dict(self.model.named_parameters()) if prior is None else prior
        for name, shape in zip(self.names, self.shapes):
            if name not in state or state[name].shape != shape:
                raise InputError(f"the prior has no parameter {name!r} of shape {tuple(shape)}: pass a state_dict")
            if not bool(state[name].isfinite().all()):
                raise InputError(f"the parameter {name!r} {'of the prior ' if prior is not None else ''}is not finite")
        like = next(self.model.parameters())
        return torch.cat([state[name].detach().reshape(-1).to(like) for name in self.names]).clone()

    def _state(self, vector: Tensor) -> dict[str, Tensor]:
        parts = vector.split([shape.numel() for shape in self.shapes])
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes)}

    def logits(self, vector: Tensor, inputs: Tensor) -> Tensor:
        """Run the model with other weights."""
        with with_tensors(self.model, self._state(vector)):
            return select_output(self.model(inputs), self.output)

    def measured(self, vector: Tensor, inputs: Tensor) -> Tensor:
        """Run the graph with other weights, or the model where there is no graph."""
        return self.logits(vector, inputs) if self.traced is None else self.traced.at(self._state(vector), inputs)


def optimise(
    weights: WeightVector,
    source: Iterator[SampleBatch],
    *,
    start: Tensor,
    samples: int,
    classes: int,
    steps: int,
    rates: tuple[float, float],
    delta: float,
    generator: torch.Generator,
) -> Posterior:
    """Search for the posterior that makes the bound smallest, by RMSprop on `surrogate + sqrt(right side/2)`.

    The surrogate is the cross entropy divided by ln K for K classes. It is at least the error for two classes alone,
    and only guides the search: the bound is that of the error itself. Each step draws the weights once; the learning
    rates fall tenfold for the last quarter of the steps.
    """
    mean = weights.vector().requires_grad_(True)
    deviation = torch.full_like(mean, 0.5 * math.log(START)).detach().requires_grad_(True)
    prior = torch.tensor(0.5 * math.log(START), dtype=torch.float64, device=mean.device, requires_grad=True)
    posterior = Posterior(mean, deviation, start, prior)
    groups = [{"params": [mean], "lr": rates[0]}, {"params": [deviation, prior], "lr": rates[1]}]
    optimizer = torch.optim.RMSprop(groups)
    highest = 0.5 * (math.log(LARGEST) - 1.0 / PRECISION)
    with Progress("PAC-Bayes: the posterior", steps) as progress:
        for step in range(steps):
            if step == (3 * steps) // 4:
                for group in optimizer.param_groups:
                    group["lr"] *= 0.1
            batch = next(source)
            surrogate = F.cross_entropy(weights.logits(posterior.draw(generator), batch.inputs), batch.labels)
            number = PRECISION * (math.log(LARGEST) - 2.0 * prior)
            fixed = math.log(2.0 * math.sqrt(samples) / delta) + math.log(math.pi**2 / 6.0) + 2.0 * number.log()
            loss = surrogate / math.log(classes) + ((posterior.kl() + fixed) / (2.0 * samples)).sqrt()
            gradients = torch.autograd.grad(loss, [mean, deviation, prior])
            for parameter, gradient in zip((mean, deviation, prior), gradients):
                parameter.grad = gradient
            optimizer.step()
            with torch.no_grad():
                prior.clamp_(max=highest)
            progress.step()
    if not all(bool(each.isfinite().all()) for each in (mean, deviation, prior)):
        raise InputError(
            f"the search for a posterior left the numbers of {mean.dtype}: try fewer steps, or a model in float32"
        )
    return Posterior(mean.detach(), deviation.detach(), start, prior.detach())


def average_error(
    weights: WeightVector,
    posterior: Posterior,
    read: Callable[[], Iterator[SampleBatch]],
    *,
    samples: int,
    draws: int,
    generator: torch.Generator,
) -> tuple[float, int]:
    """Return the error on D averaged over draws of the weights, and for how many equal draws the average counts.

    Each draw classifies a few samples. The mean over whole passes, weighted by these numbers of samples, has the error
    of the posterior on D as its expectation; with weights of at most 1/n it is as concentrated as n equal draws.
    """
    share = max(1, min(AT_ONCE, samples), samples // draws)
    passes = math.ceil(draws * share / samples)
    wrong, total, largest = torch.zeros((), dtype=torch.float64, device=posterior.mean.device), 0, 1
    with Progress("PAC-Bayes: the error", passes) as progress, torch.no_grad():
        for _ in range(passes):
            for batch in read():
                for inputs, labels in zip(batch.inputs.split(share), batch.labels.split(share)):
                    logits = weights.measured(posterior.draw(generator), inputs)
                    wrong += (logits.argmax(1) != labels).sum()
                    total, largest = total + len(labels), max(largest, len(labels))
            progress.step()
    return float(wrong) / total, total // largest


def bound_error(error: float, draws: int, delta: float) -> float:
    """Return an upper bound on the error of the posterior on D, with probability 1 - delta over the draws.

    It is Chernoff's bound in its kl form for independent variables in [0, 1]: `kl(average, mean) <= ln(1/delta)/n`.
    """
    return kl_inverse(error, math.log(1.0 / delta) / draws)


def pac_bayes_row(
    model: nn.Module,
    read_again: Callable[[], Iterator[SampleBatch]],
    *,
    steps: int,
    draws: int,
    prior: dict[str, Tensor] | None = None,
    rates: tuple[float, float] = RATES,
    batch: int = BATCH,
    samples: int,
    classes: int,
    delta: float,
    output: str | int | None,
    asked: Sequence[Condition],
    seed: int,
    fixed: Fixed | None = None,
) -> tuple[BoundRow, dict[str, Any]]:
    """Optimise a Gaussian around the weights; return its PAC-Bayes row, and the figures behind the row.

    The error is averaged over about so many `draws`; the `prior` is centred at weights that were fixed before D was
    seen, or at zero.
    """
    source = endless(read_again, batch)
    first = next(source)
    weights, beside, counted = _described(model, first.inputs[:EXAMPLE], output, fixed or Fixed())
    start = torch.zeros_like(weights.vector()) if prior is None else weights.vector(prior)
    generator = torch.Generator(start.device).manual_seed(seed)
    with untouched(model, "eval", traced=True):  # The model runs with other weights; its own are not overwritten.
        posterior = optimise(
            weights,
            itertools.chain([first], source),
            start=start,
            samples=samples,
            classes=classes,
            steps=steps,
            rates=rates,
            delta=delta / 2.0,
            generator=generator,
        )
        error, draws = average_error(weights, posterior, read_again, samples=samples, draws=draws, generator=generator)
    kl, right, number = posterior.choose_prior(samples, delta / 2.0, beside.nats)
    at_most = bound_error(error, draws, delta / 2.0)
    value = kl_inverse(at_most, right)
    if prior is None:
        untrained, why = True, "it is centred at zero"
    elif not bool((start == weights.vector()).all()):
        untrained, why = True, "its centre is declared as fixed before D was seen"
    else:
        untrained = False
        why = "its centre is the model as it is now: unless it was never trained, copy the weights before training"
    fixed_before = condition("the prior does not depend on D", True if untrained else None, why)
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
        conditions=(*asked, ARCHITECTURE, fixed_before, counted),
        log10_value=math.log10(value),
        log10_as_printed=math.log10(at_most + math.sqrt(right / 2.0)) if at_most + right > 0 else -math.inf,
        note=f"KL {kl:.4g} nats over {samples:,} samples after {steps:,} steps, prior variance "
        f"{LARGEST * math.exp(-number / PRECISION):.3g}, {draws:,} draws; as printed: McAllester's "
        "square root, with Maurer's constants",
    )
    return bound, {"kl": kl, "error": error, "error_at_most": at_most, "draws": draws, "right": right}


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
        return (
            weights,
            beside,
            condition(beside.condition.what, None, f"the model cannot be traced: {describe_error(error)}"),
        )
    beside = describe(graph, range(len(graph.constants)), fixed)
    return traced, beside, beside.condition
