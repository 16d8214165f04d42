"""Train many small networks of one shape side by side: one tensor holds a parameter of all of them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Normalizer = Literal["none", "batch", "layer"]
Loss = Callable[[Tensor, Tensor], Tensor]
"""A function from the outputs and targets of one network to its loss."""


def chain(
    widths: Sequence[int],
    normalizer: Normalizer,
    *,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Return a chain of linear layers, with a normalizer and an activation behind each but the last."""
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(itertools.pairwise(widths), start=1):
        end = index == len(widths) - 1
        normalized = normalizer != "none" and not end
        layers.append(nn.utils.skip_init(nn.Linear, before, after, bias=not normalized))
        if normalized:
            layers.append(nn.BatchNorm1d(after) if normalizer == "batch" else nn.LayerNorm(after))
        if not end:
            layers.append(activation())
    return nn.Sequential(*layers).double()


@dataclass
class Ensemble:
    """Networks of one shape, one per seed.

    Attributes:
        template: a network of this shape, whose own weights are not used.
        parameters: the parameters by name, `[networks, ...]`.
        buffers: the buffers by name, `[networks, ...]`; each network has its own running statistics.
    """

    template: nn.Module
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]

    @classmethod
    def drawn(cls, template: nn.Module, seeds: Sequence[int], *, scale: float = 1.0) -> Ensemble:
        """Return networks with Gaussian weights of variance 2 scale^2/fan_in (He et al. 2015), one per seed."""
        drawn: dict[str, list[Tensor]] = {name: [] for name, _ in template.named_parameters()}
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            for name, parameter in template.named_parameters():
                value = torch.zeros_like(parameter)
                if parameter.ndim > 1:
                    value.normal_(0.0, scale * (2.0 / parameter.shape[1]) ** 0.5, generator=generator)
                elif "weight" in name:
                    value.fill_(1.0)  # the scale of a normalizer
                drawn[name].append(value)
        parameters = {name: torch.stack(values).detach() for name, values in drawn.items()}
        held = {name: torch.stack([buffer] * len(seeds)) for name, buffer in template.named_buffers()}
        return cls(template, parameters, held)

    def __len__(self) -> int:
        return len(next(iter(self.parameters.values())))

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return all outputs at inputs `[networks, samples, ...]`; in train mode running statistics are updated."""
        return self.outputs(self.parameters, inputs)

    def outputs(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Return all outputs with other parameters."""

        def one(own: dict[str, Tensor], held: dict[str, Tensor], x: Tensor) -> Tensor:
            outputs: Tensor = torch.func.functional_call(self.template, (own, held), (x,))
            return outputs

        values: Tensor = torch.func.vmap(one)(parameters, self.buffers, inputs)
        return values

    def gradients(self, loss: Loss, inputs: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of every network and its gradients."""
        leaves = {name: value.detach().requires_grad_(True) for name, value in self.parameters.items()}
        losses = torch.func.vmap(loss)(self.outputs(leaves, inputs), targets)
        gradients_by_leaf = torch.autograd.grad(losses.sum(), list(leaves.values()))
        return losses.detach(), dict(zip(leaves, gradients_by_leaf))

    def step(self, gradients: dict[str, Tensor], rate: float | Tensor, decay: float = 0.0) -> None:
        """Take a step of gradient descent; a tensor has one rate per network."""
        for name, value in self.parameters.items():
            size = value.ndim - 1
            own = rate.reshape(-1, *[1] * size) if isinstance(rate, Tensor) else rate
            self.parameters[name] = value - own * (gradients[name] + decay * value)

    def member(self, index: int) -> nn.Module:
        """Return one network as a module of its own, in train mode."""
        made = copy.deepcopy(self.template)
        state = {name: value[index] for name, value in (self.parameters | self.buffers).items()}
        made.load_state_dict(state)
        return made.train()

    def calibrate(self, inputs: Tensor) -> None:
        """Set running statistics to those of all the inputs."""
        for module in self.template.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.momentum = 1.0
        self.template.train()
        with torch.no_grad():
            self(inputs)


def norms(gradients: dict[str, Tensor]) -> Tensor:
    """Return the norm of all gradients of each network."""
    return torch.stack([value.flatten(1).square().sum(1) for value in gradients.values()]).sum(0).sqrt()
