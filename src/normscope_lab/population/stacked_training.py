"""Train the networks of a cohort together, with one stack of weights and one pass for all (`torch.func`)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn import functional as F

from .noisy import NoisyData
from .recipes import Recipe

AT_ONCE = 2048
"""How many samples one pass takes when a loss is measured."""

Status = Literal["reached", "not reached", "diverged", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """When a training ends: at a cross entropy on the training samples, or after a number of steps.

    Attributes:
        loss: the cross entropy in eval mode, measured after every epoch. Networks are compared at the same loss, not
            after the same number of steps (Jiang et al. 2020, section 3).
        steps: the largest number of steps; the last epoch is completed.
    """

    loss: float
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedMember:
    """A network after its training, in eval mode, and as it was before.

    Attributes:
        recipe: how the network was built and trained.
        model, start: the network after and before its training.
        status: whether the loss was reached, was not reached, or is not finite.
        steps: the number of steps that were taken.
        loss: the loss on the training samples, in eval mode.
    """

    recipe: Recipe
    model: nn.Module
    start: nn.Module
    status: Status
    steps: int
    loss: float


class Stack:
    """Networks of one shape in one stack: parameters, buffers and velocities have the network as their first axis."""

    def __init__(self, models: Sequence[nn.Module], recipes: Sequence[Recipe]) -> None:
        self.parameters, self.buffers = stack_module_state(list(models))
        self.velocities = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        self.shape = copy.deepcopy(models[0])
        device = next(models[0].parameters()).device
        self.rates = torch.tensor([recipe.lr for recipe in recipes], device=device)
        self.decays = torch.tensor([recipe.weight_decay for recipe in recipes], device=device)

    def outputs(self, images: Tensor, *, shared: bool) -> Tensor:
        """Return the outputs `[networks, samples, classes]`; images are the same for all, or one set for each."""

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], batch: Tensor) -> Tensor:
            outputs: Tensor = functional_call(self.shape, (parameters, buffers), (batch,))
            return outputs

        return torch.vmap(one, in_dims=(0, 0, None if shared else 0))(self.parameters, self.buffers, images)

    def step(self, images: Tensor, labels: Tensor, momentum: float) -> None:
        """Take one step of SGD with momentum and weight decay, as `torch.optim.SGD` does for each network."""
        self.shape.train()
        losses = _losses(self.outputs(images, shared=False), labels)
        gradients = torch.autograd.grad(losses.mean(1).sum(), list(self.parameters.values()))
        with torch.no_grad():
            for (name, weight), gradient in zip(self.parameters.items(), gradients, strict=True):
                sizes = (-1, *(1,) * (weight.ndim - 1))
                velocity = self.velocities[name]
                velocity.mul_(momentum).add_(gradient).addcmul_(self.decays.reshape(sizes), weight)
                weight.addcmul_(self.rates.reshape(sizes), velocity, value=-1.0)

    @torch.no_grad()
    def losses(self, images: Tensor, labels: Tensor) -> list[float]:
        """Return the mean cross entropy of every network, in eval mode."""
        self.shape.eval()
        total = torch.zeros(len(self.rates), dtype=torch.float64, device=images.device)
        for some, targets in zip(images.split(AT_ONCE), labels.split(AT_ONCE)):
            out = self.outputs(some, shared=True)
            total += _losses(out, targets.expand(len(out), -1)).double().sum(1)
        return (total / len(images)).tolist()

    def keep(self, indices: Sequence[int]) -> None:
        """Keep some of the networks, and drop the others."""
        rows = torch.tensor(indices, device=self.rates.device)
        for held in (self.parameters, self.buffers, self.velocities):
            for name, value in held.items():
                held[name] = value.detach()[rows].requires_grad_(value.requires_grad)
        self.rates, self.decays = self.rates[rows], self.decays[rows]

    def write(self, index: int, model: nn.Module) -> None:
        """Write the weights and buffers of one network into a module."""
        held = {**self.parameters, **self.buffers}
        model.load_state_dict({name: value[index].detach() for name, value in held.items()})


def train_together(
    models: Sequence[nn.Module],
    recipes: Sequence[Recipe],
    data: NoisyData,
    *,
    stop: Stop,
    momentum: float,
    generators: Sequence[torch.Generator],
) -> Iterator[TrainedMember]:
    """Train networks of one shape with SGD and yield each when it ends; the models are left as they are."""
    stack, size, steps = Stack(models, recipes), recipes[0].batch_size, 0
    images, labels = data.train_images, data.train_labels
    running = list(range(len(models)))
    while running:
        orders = [torch.randperm(len(images), generator=generators[which]) for which in running]
        order = torch.stack(orders)[:, : len(images) - len(images) % size].to(images.device)
        for rows in order.split(size, dim=1):
            stack.step(images[rows], labels[rows], momentum)
            steps += 1
        left = []
        for index, (which, loss) in enumerate(zip(running, stack.losses(images, labels), strict=True)):
            if loss > stop.loss and math.isfinite(loss) and steps < stop.steps:
                left.append(index)
                continue
            model = copy.deepcopy(models[which])
            stack.write(index, model)
            reached: Status = (
                "diverged" if not math.isfinite(loss) else "reached" if loss <= stop.loss else "not reached"
            )
            yield TrainedMember(
                recipe=recipes[which],
                model=model.eval(),
                start=models[which],
                status=reached,
                steps=steps,
                loss=loss,
            )
        if left and len(left) < len(running):
            stack.keep(left)
        running = [running[index] for index in left]


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy of every network and sample."""
    flat = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none")
    return flat.reshape(labels.shape)
