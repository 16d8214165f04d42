"""`TrainingTask`: the model, the samples, the loss and the settings that all runs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..calls.batches import Batch, LossFunction, placed_batches
from ..calls.call import Call
from ..core.errors import InputError, describe_error
from ..core.untouched import unwrapped
from ..theory.losses import Loss
from .ledger import hashed

HELD_OUT = 0.2
"""The share of the samples on which the runs are compared, and not trained."""
MOST_SAMPLES = 4096
"""How many samples are read from data: enough for short runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """One training run: the normalizer of the twin, the batch size, the learning rate and the seed."""

    normalizer: str
    batch_size: int
    lr: float
    seed: int

    @property
    def key(self) -> str:
        """The name of the run, also in files."""
        return f"{self.normalizer} batch={self.batch_size} lr={self.lr:g} seed={self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Inputs and targets, with samples along the first axis: first those to train on, then those held out."""

    call: Call
    targets: Any
    count: int
    held_out: int

    def batch(self, rows: Tensor) -> Batch:
        """Return some samples as a batch."""

        def pick(value: Any) -> Any:
            shared = not isinstance(value, Tensor) or not value.ndim or len(value) != self.count
            return value if shared else value[rows.to(value.device)]

        args, kwargs, targets = tree_map(pick, (self.call.args, self.call.kwargs, self.targets))
        call = Call(args=args, kwargs=kwargs, output=self.call.output)
        return Batch(call=call, targets=targets, samples=len(rows))

    def steps(self, size: int, steps: int, seed: int) -> Iterator[Batch]:
        """Yield batches to train on, in a new order every epoch; the smaller rest of an epoch is left out."""
        generator = torch.Generator().manual_seed(seed)
        done = 0
        while done < steps:
            order = torch.randperm(self.count - self.held_out, generator=generator)
            for rows in order[: len(order) - len(order) % size].split(size):
                if done == steps:
                    return
                done += 1
                yield self.batch(rows)

    @property
    def tests(self) -> Batch:
        """The held-out samples as one batch."""
        return self.batch(torch.arange(self.count - self.held_out, self.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask:
    """What all runs share.

    Attributes:
        model: a module, or a function that builds one for every seed.
        samples: the data.
        loss: a function of outputs and targets, its name, or None for the loss that the model returns.
        steps: how many steps every run takes.
        momentum: the momentum of SGD.
        groups: the number of groups of GroupNorms.
        capacity: whether to measure how much trained models amplify a change (observed and DATA).
    """

    model: nn.Module | Callable[[], nn.Module]
    samples: Samples
    loss: LossFunction | str | Loss | None
    steps: int
    momentum: float
    groups: int | None
    capacity: bool

    def settings(self) -> dict[str, Any]:
        """Return everything that decides the figures; runs are continued only where it is the same."""
        model = build_seeded_model(self.model, 0)
        loss = self.loss if isinstance(self.loss, str) else getattr(self.loss, "__name__", type(self.loss).__name__)
        data = tree_leaves((self.samples.call.args, self.samples.call.kwargs, self.samples.targets))
        return {
            "model": f"{type(model).__name__} {hashed(list(model.state_dict().values()))}",
            "data": hashed([leaf for leaf in data if isinstance(leaf, Tensor)]),
            "loss": loss,
            "steps": self.steps,
            "momentum": self.momentum,
            "groups": self.groups,
            "capacity": self.capacity,
        }


def build_seeded_model(source: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return the model of a seed; a function that builds it is called with torch's generator at that seed."""
    if isinstance(source, nn.Module):
        return unwrapped(source)
    if not callable(source):
        raise InputError(f"model is a {type(source).__name__}: pass a torch.nn.Module, or a function that builds one")
    with torch.random.fork_rng():
        torch.random.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        try:
            model = source()
        except Exception as error:
            raise InputError(f"the function that builds the model raises {describe_error(error)}") from error
    if not isinstance(model, nn.Module):
        raise InputError(f"the function that builds the model returns a {type(model).__name__}, not a module")
    return unwrapped(model)


def gather(model: nn.Module, data: Any, *, own_loss: bool, labels: Any = None, samples: int | None = None) -> Samples:
    """Read the samples of data, so that they can be put into batches of other sizes."""
    limit = samples or MOST_SAMPLES
    kept: list[Batch] = []
    count = 0
    for batch in placed_batches(model, data, own_loss=own_loss, labels=labels):
        kept.append(batch)
        count += batch.samples
        if count >= limit:
            break
    parts = [(batch.call.args, batch.call.kwargs, batch.targets) for batch in kept]

    def joined(*values: Any) -> Any:
        if not isinstance(values[0], Tensor) or not values[0].ndim:
            return values[0]
        whole = all(len(value) == batch.samples for value, batch in zip(values, kept))
        return torch.cat(values)[:limit] if whole else values[0]

    try:
        args, kwargs, targets = tree_map(joined, *parts)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"the batches cannot be put together ({describe_error(error)})") from error
    count = min(count, limit)
    call = Call(args=args, kwargs=kwargs, output=None)
    return Samples(call=call, targets=targets, count=count, held_out=max(1, round(HELD_OUT * count)))
