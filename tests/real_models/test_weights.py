"""Sensitivities to the weights of real architectures, against changes of the weights of the real models."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from normscope.bounds.weights.weight_constants import weight_sensitivity

from .families import FAMILIES
from .observe import assert_same, call, snapshot

TRIED = (
    *("gpt2", "vit", "bert_padded", "llama", "resnet_basic", "convnext", "regnet_y", "efficientnet"),
    *("t5_gated_encoder", "gemma2", "torch_encoder_pre_gelu", "albert", "swin"),
)


def first(batch):
    """The first sample alone."""
    return batch[:1] if isinstance(batch, Tensor) else {key: value[:1] for key, value in batch.items()}


def wide(batch):
    return batch.double() if isinstance(batch, Tensor) else batch


def steepest(model: nn.Module, parameter: nn.Parameter, batch, output: str | None, seed: int) -> float:
    """The steepest secant found in one parameter of a float64 model, near its value and far from it."""
    generator = torch.Generator().manual_seed(seed)
    value = parameter.detach().clone()
    size = float(value.norm())
    best = 0.0

    def run(weight: Tensor) -> Tensor:
        with torch.no_grad():
            parameter.copy_(weight)
            return call(model, batch, output).reshape(-1)

    def slope(centre: Tensor, half: Tensor) -> float:
        ahead, back = run(centre + half), run(centre - half)
        noise = 1e-12 * float(ahead.norm() + back.norm())
        return max(float((ahead - back).norm()) - noise, 0.0) / float(2 * half.norm())

    for scale in (0.0, 1.0, -1e-2):
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        centre = value * (scale >= 0) + abs(scale) * size / math.sqrt(noise.numel()) * noise
        along = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for _ in range(2):
            along = along / along.norm()
            best = max(best, slope(centre, 1e-5 * size * along), slope(centre, 3.0 * size * along))
            image = run(centre + 1e-5 * size * along) - run(centre)
            parameter.requires_grad_(True)
            with torch.no_grad():
                parameter.copy_(centre)
            (pulled,) = torch.autograd.grad(call(model, batch, output).reshape(-1), parameter, image)
            if float(pulled.norm()) == 0.0:
                break
            along = pulled
    with torch.no_grad():
        parameter.copy_(value)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_no_weight_change_gets_above(name):
    model, batch, output = FAMILIES[name]()
    before = snapshot(model)
    result = weight_sensitivity(model, first(batch), output=output, on_missing="inf", loss="cross_entropy")
    assert_same(before, snapshot(model))
    assert len(result) > 0
    real = copy.deepcopy(model).double()
    for parameter in real.parameters():
        parameter.requires_grad_(False)
    parameters = dict(real.named_parameters(remove_duplicate=False))
    for seed, row in enumerate(result):
        assert row.bracket_h.log10_lower > -math.inf, row.path
        if row.parameter is None or row.bracket_h.log10_upper == math.inf or any("embedding" in n for n in row.notes):
            continue
        weight = parameters[row.parameter]
        if math.prod(row.weight_shape) != weight.numel():  # a part of a parameter
            continue
        found = steepest(real, weight, wide(first(batch)), output, seed)
        weight.requires_grad_(False)
        assert found <= row.bracket_h.upper * (1 + 1e-6), row.path
