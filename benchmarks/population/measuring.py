"""One network in the states of a healthy training: what `ns.check` says of it, what that costs, and its size facts."""

from __future__ import annotations

import hashlib
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map

import normscope as ns
from normscope.doctor.checking import checking
from normscope.doctor.facts.examined import Examined
from normscope.doctor.symptoms.sizes import measure_sizes

from .networks import Network, stable_number

Row = dict[str, Any]
LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": functional.cross_entropy,
    "mse": functional.mse_loss,
    "nll": functional.nll_loss,
}
EARLY_STEPS, LATE_STEPS, WARM_UP_STEPS, FEWEST_LATE_STEPS = 20, 200, 10, 60
RISEN_RATIO = 1.5
"""The loss of the last steps over that of the first, beyond which a training is not healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one network may take, and where it runs.

    Attributes:
        step_seconds: the most seconds of a forward and backward.
        training_seconds: the seconds after which its training ends.
        parameters: how many it may have.
        device: where it runs.
    """

    step_seconds: float = 1.5
    training_seconds: float = 6.0
    parameters: float = 4e7
    device: str = "cpu"

    def clock(self) -> float:
        """Return the seconds so far: of the processor, or, on a GPU, of the wall after all that was asked of it."""
        if self.device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def measure(network: Network, limits: Limits) -> Iterator[Row]:
    """Yield a line for each state of a network; the last one says what went wrong, if anything did."""
    begun, state = time.perf_counter(), "build"
    place = {"package": network.package, "family": network.family, "name": network.name, "half": network.half}
    try:
        warnings.simplefilter("ignore")
        torch.manual_seed(stable_number(network.name))
        model, draw_on_cpu = network.build()
        model.train()
        generator = torch.Generator().manual_seed(stable_number(network.name) + 1)
        place |= describe(model) | {"batch_size": network.batch_size, "loss": network.loss}
        if place["parameters"] > limits.parameters:
            yield place | {"error": f"too large: more than {limits.parameters / 1e6:.0f} million parameters"}
            return
        model.to(limits.device)

        def draw(count: int, generator: torch.Generator) -> Any:
            return tree_map(lambda part: part.to(limits.device), draw_on_cpu(count, generator))

        batch = draw(network.batch_size, generator)
        optimizer = make_optimizer(network, model, place["kind"])
        place["optimizer"] = type(optimizer).__name__
        rate, steps, losses, spent = optimizer.param_groups[0]["lr"], 0, list[float](), 0.0
        passes = time_passes(model, network.loss, batch, limits)
        if passes > limits.step_seconds:
            yield place | {"error": f"too slow: a forward and backward takes {passes:.2f} s"}
            return
        for until in (0, EARLY_STEPS, LATE_STEPS):
            while steps < until and spent < limits.training_seconds:
                started = limits.clock()
                for group in optimizer.param_groups:
                    group["lr"] = rate * min(1.0, (steps + 1) / WARM_UP_STEPS)
                losses.append(step(model, network.loss, draw(network.batch_size, generator), optimizer))
                steps, spent = steps + 1, spent + limits.clock() - started
            state = "fresh" if not until else "training" if until == EARLY_STEPS else "trained"
            if steps < (until if until <= EARLY_STEPS else FEWEST_LATE_STEPS):
                break
            for group in optimizer.param_groups:
                group["lr"] = rate
            yield (
                place
                | {"state": state, "steps": steps}
                | describe_losses(losses)
                | check(model, network.loss, batch, optimizer, passes, limits)
                | {"seconds_since_start": round(time.perf_counter() - begun, 2)}
            )
    except Exception as error:  # a line with its reason, whatever it is
        said = re.sub(r"\s+", " ", str(error))[:300]
        yield place | {"error": f"{state}: {type(error).__name__}: {said}"}


def make_optimizer(network: Network, model: nn.Module, kind: str) -> torch.optim.Optimizer:
    """Return AdamW at a rate of 0.001, or, for a third of the convolutional networks, SGD at 0.05."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if kind == "convolutional" and stable_number(f"{network.name} optimizer") % 3 == 0:
        return torch.optim.SGD(trained, lr=0.05)
    return torch.optim.AdamW(trained, lr=1e-3)


def loss_of(model: nn.Module, loss: str | None, batch: Any) -> Tensor:
    """Return the loss of a model on a batch."""
    if loss is None:
        return model(**batch).loss
    x, y = batch
    return LOSSES[loss](model(*x) if isinstance(x, tuple) else model(x), y)


def time_passes(model: nn.Module, loss: str | None, batch: Any, limits: Limits) -> float:
    """Return the seconds of one forward and backward: the least of three, or of as many as begin within 3 s.

    Buffers are put back: a fresh model keeps its running statistics.
    """
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    seconds = list[float]()
    while len(seconds) < 3 and sum(seconds) < 3.0:
        started = limits.clock()
        loss_of(model, loss, batch).backward()
        seconds.append(limits.clock() - started)
        model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in kept and kept[name].shape == buffer.shape:
                buffer.copy_(kept[name])
    return min(seconds)


def step(model: nn.Module, loss: str | None, batch: Any, optimizer: torch.optim.Optimizer) -> float:
    """Make one step of the training; return the loss before."""
    value = loss_of(model, loss, batch)
    value.backward()
    nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(value.detach())


def describe_losses(losses: list[float]) -> Row:
    """Return the losses of the first and the last steps, and whether they are those of a healthy training."""
    if not losses:
        return {"healthy": True}
    first, last = median(losses[:5]), median(losses[-5:])
    healthy = all(map(math.isfinite, losses)) and last <= RISEN_RATIO * first
    return {"first_loss": first, "last_loss": last, "healthy": healthy}


def check(
    model: nn.Module, loss: str | None, batch: Any, optimizer: torch.optim.Optimizer, passes: float, limits: Limits
) -> Row:
    """Check a model; return its findings, its size facts, and the cost in forward and backward passes."""
    examined = list[Examined]()
    diagnose = checking.diagnose_model

    def keep(facts: Examined) -> tuple[ns.Finding, ...]:
        examined.append(facts)
        return diagnose(facts)

    with mock.patch.object(checking, "diagnose_model", keep):
        started = limits.clock()
        result = ns.check(model, batch, loss=loss, optimizer=optimizer)
        seconds = limits.clock() - started
    return {
        "seconds": round(seconds, 4),
        "pass_seconds": round(passes, 5),
        "passes": round(seconds / passes, 2),
        "cost": [result.cost.forwards, result.cost.backwards, result.cost.small],
        "findings": [
            {
                "code": f.code,
                "severity": f.severity.value,
                "where": f.where,
                "numbers": dict(f.numbers),
                "seen": f.seen[:200],
            }
            for f in result.findings
        ],
        "facts": {name: round_figure(value) for name, value in measure_sizes(examined[0]).items()},
        "skipped": [what for what, _ in result.skipped],
    }


def round_figure(value: float) -> float | str:
    """Return a number with five digits; one that is not finite as a word."""
    return float(f"{value:.5g}") if math.isfinite(value) else str(value)


ATTENTION = re.compile(r"attention|attn|mixer_?attn", re.IGNORECASE)
STATE_SPACE = re.compile(r"mamba|ssm|rwkv|xlstm|recurrent|lstm|gru|rglru|deltanet", re.IGNORECASE)


def describe(model: nn.Module) -> Row:
    """Return the kind of a network, how many parameters it has, and a digest of what it is made of."""
    leaves = [module for module in model.modules() if not any(True for _ in module.children())]
    names = {type(module).__name__ for module in model.modules()}
    convolutions = sum(
        max(getattr(module, "kernel_size", (1,))) > 1
        and getattr(module, "kernel_size", 0) != getattr(module, "stride", 0)
        for module in leaves
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    )
    if any("torch_geometric" in type(module).__module__ for module in model.modules()):
        kind = "graph"
    elif any(isinstance(module, nn.RNNBase) for module in leaves) or any(map(STATE_SPACE.search, names)):
        kind = "recurrent"
    elif any(map(ATTENTION.search, names)):
        kind = "convolution and attention" if convolutions > 3 else "transformer"
    else:
        kind = "convolutional" if convolutions else "perceptron"
    made_of = [tuple(p.shape) for p in model.parameters()], sorted(type(module).__name__ for module in leaves)
    return {
        "kind": kind,
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": sum(p.ndim > 1 for p in model.parameters()),
        "digest": hashlib.sha256(repr(made_of).encode()).hexdigest()[:16],
    }
