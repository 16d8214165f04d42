"""An attacker in weight space: two values of one weight that the real model tells apart, found without our graph."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normscope.bounds.weights.sensitivity import WeightSensitivity
from normscope.core.untouched import drops

SCALES = (0.0, 1e-2, 1.0, 30.0, -1e-3)
"""How far from the present weight to look, relative to it; a negative one: around zero, where normalizers are steep."""


class Weight:
    """One parameter of a model as the only variable, in float64, at fixed data."""

    def __init__(self, model: nn.Module, name: str, batch: Tensor | dict[str, Tensor]) -> None:
        self.model = copy.deepcopy(model).double()
        for module in self.model.modules():
            if drops(module):
                module.eval()
        self.name, self.batch = name, batch.double() if isinstance(batch, Tensor) else batch
        self.present = dict(self.model.named_parameters(remove_duplicate=False))[name].detach().clone()
        self.buffers = {key: value.clone() for key, value in self.model.named_buffers()}

    def __call__(self, weight: Tensor) -> Tensor:
        buffers = {key: value.clone() for key, value in self.buffers.items()}
        return functional_call(self.model, {self.name: weight, **buffers}, (self.batch,)).reshape(-1)

    def jacobian_norm(self) -> float:
        """The norm of the dense Jacobian at the present weight."""
        jacobian = torch.autograd.functional.jacobian(self, self.present)
        return float(torch.linalg.matrix_norm(jacobian.reshape(-1, self.present.numel()), ord=2))

    def attack(self, seed: int = 0, steps: int = 3) -> float:
        """The steepest secant found: short ones after power iteration at several places, and long ones."""
        generator = torch.Generator().manual_seed(seed)
        size = float(self.present.norm()) or 1.0
        best = 0.0
        for scale in SCALES:
            noise = torch.randn(self.present.shape, generator=generator, dtype=torch.float64)
            centre = self.present * (scale >= 0) + abs(scale) * size / math.sqrt(noise.numel()) * noise
            along = torch.randn(self.present.shape, generator=generator, dtype=torch.float64)
            for _ in range(steps):
                along = along / along.norm()
                best = max(best, self.slope(centre, 1e-5 * max(float(centre.norm()), 1e-3) * along))
                weight = centre.clone().requires_grad_(True)
                value = self(weight)
                if not value.requires_grad:
                    break
                with torch.no_grad():
                    image = self(centre + 1e-5 * size * along) - value
                (pulled,) = torch.autograd.grad(value, weight, image, allow_unused=True)
                if pulled is None or not bool(torch.isfinite(pulled).all()) or float(pulled.norm()) == 0.0:
                    break
                along = pulled
            for length in (0.1, 1.0, 100.0):
                best = max(best, self.slope(centre, length * size * along / along.norm()))
        return best

    def slope(self, centre: Tensor, half: Tensor) -> float:
        """The slope of one secant, less what rounding can fake."""
        with torch.no_grad():
            ahead, back = self(centre + half), self(centre - half)
            noise = 1e-13 * float(ahead.norm() + back.norm()) + 1e-14
            return max(float((ahead - back).norm()) - noise, 0.0) / float(2 * half.norm())


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
