"""An attacker in weight space: two values of one weight that the real model tells apart, found without our graph."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normscope.bounds.weights.sensitivity import WeightSensitivity
from normscope.core.untouched import drops

SCALES = (0.0, 1e-2, 1.0, 30.0, -1e-3)
"""How far from the present value to look, relative to it; a negative one: around zero, where normalizers are steep."""
LENGTHS = (1e-5, 1e-2, 1.0, 100.0)
"""Of changes, relative to the present value."""
EPS = 2.0**-52


class Weight:
    """One parameter of a model as the only variable, in float64, at fixed data.

    `measured` gives the weight by whose change the change of the output is divided; the parameter itself if absent.
    """

    def __init__(
        self,
        model: nn.Module,
        name: str,
        batch: Tensor | dict[str, Tensor],
        measured: Callable[[nn.Module], Tensor] | None = None,
    ) -> None:
        self.model, self.measured = copy.deepcopy(model).double(), measured
        for module in self.model.modules():
            if drops(module):
                module.eval()
        floats = isinstance(batch, Tensor) and batch.is_floating_point()
        self.name, self.batch = name, batch.double() if floats else batch
        self.present = dict(self.model.named_parameters(remove_duplicate=False))[name].detach().clone()
        self.buffers = {key: value.clone() for key, value in self.model.named_buffers()}

    def __call__(self, parameter: Tensor) -> Tensor:
        buffers = {key: value.clone() for key, value in self.buffers.items()}
        return functional_call(self.model, {self.name: parameter, **buffers}, (self.batch,)).reshape(-1)

    def weight(self, parameter: Tensor) -> Tensor:
        """The weight that is made of a value of the parameter."""
        if self.measured is None:
            return parameter
        holder = dict(self.model.named_parameters(remove_duplicate=False))[self.name]
        before = holder.detach().clone()
        with torch.no_grad():
            holder.copy_(parameter)
            self.model(self.batch)  # the old hooks make their weight only there
            made = self.measured(self.model).detach().clone()
            holder.copy_(before)
        return made

    def jacobian(self, parameter: Tensor) -> Tensor:
        """The dense Jacobian at a value of the parameter."""
        return torch.autograd.functional.jacobian(self, parameter).reshape(-1, parameter.numel())

    def jacobian_norm(self) -> float:
        """The norm of the Jacobian at the present value."""
        return float(torch.linalg.matrix_norm(self.jacobian(self.present), ord=2))

    def attack(self, seed: int = 0) -> float:
        """The steepest secant: along singular directions at several values of the parameter, and along random ones."""
        generator = torch.Generator().manual_seed(seed)
        size = float(self.present.norm()) or 1.0
        best = 0.0
        for scale in SCALES:
            noise = torch.randn(self.present.shape, generator=generator, dtype=torch.float64)
            centre = self.present * (scale >= 0) + abs(scale) * size / math.sqrt(noise.numel()) * noise
            top = torch.linalg.svd(self.jacobian(centre).nan_to_num(), full_matrices=False)[2][:2]
            drawn = torch.randn(1, noise.numel(), generator=generator, dtype=torch.float64)
            for along in torch.cat([top, drawn / drawn.norm()]).reshape(-1, *noise.shape):
                near = 1e-5 * max(float(centre.norm()), 1e-3)
                for length in (near, *(relative * size for relative in LENGTHS)):
                    best = max(best, self.slope(centre, length * along))
        return best

    def slope(self, centre: Tensor, half: Tensor) -> float:
        """The slope of one secant, less what rounding can fake."""
        with torch.no_grad():
            ahead, back = self(centre + half), self(centre - half)
            moved = self.weight(centre + half) - self.weight(centre - half)
            room = 256 * EPS * float(ahead.norm() + back.norm() + 1)
            distance = float(moved.norm()) + 256 * EPS * float(self.weight(centre).norm())
            change = float((ahead - back).norm()) - room
        return change / distance if math.isfinite(change) and change > 0 and distance > 0 else 0.0


def data_of(result: WeightSensitivity, batch: Tensor, sample: int) -> Tensor:
    """What the measured function is given for one entry of `per_sample`."""
    whole = result.mode == "train" or result.input_shape[0] != 1
    return batch if whole else batch[sample : sample + 1]


def violations(
    model: nn.Module, batch: Tensor, result: WeightSensitivity, *, seed: int = 0, samples: int = 1
) -> list[str]:
    """Every finite upper side that an attack gets above, in words."""
    found = []
    for row in result:
        if row.parameter is None:  # made anew from other parameters
            continue
        for sample, bracket in enumerate((row.bracket_h.per_sample or ())[:samples]):
            if bracket.log10_upper == math.inf:
                continue
            reached = Weight(model, row.parameter, data_of(result, batch, sample)).attack(seed)
            if reached > bracket.upper * (1 + 1e-6):
                found.append(f"{row.path} at sample {sample}: {reached:.8g} above {bracket.upper:.8g}")
    return found
