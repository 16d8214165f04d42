"""`is_fresh`: whether a model, or one of its layers, looks as if it had never been trained."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ...core.untouched import remembered_in_block
from .layers import fetch_numbers

FEWEST_BIASES = 16
"""Of fewer a training may move none beyond the limits between which torch draws them."""


def looks_fresh(module: nn.Module) -> bool:
    """Whether a layer's biases are zero or its weights spread as torch draws them; a trained layer's hardly are."""
    bias = module._parameters.get("bias")
    if bias is not None and not bool(bias.any()):
        return True
    weights = [p.detach().double() for p in module.parameters(recurse=False) if p.ndim > 1 and p.numel() > 15]
    if not weights:
        return False
    if isinstance(module, nn.Embedding):
        weight = weights[0]
        return abs(float(weight.square().mean().sqrt()) - 1.0) < 4.0 / math.sqrt(2 * weight.numel())
    for weight in weights:
        width = module.hidden_size if isinstance(module, nn.RNNBase) else math.prod(weight.shape[1:])
        limit = 1.0 / math.sqrt(width)
        even = abs(float(weight.square().mean().sqrt()) * math.sqrt(3.0) / limit - 1.0) < 4.0 / math.sqrt(
            weight.numel()
        )
        if not even or float(weight.abs().max()) > limit * (1 + 1e-6):
            return False
    return True


def is_fresh(model: nn.Module) -> bool:
    """Whether a model looks as if it had never been trained.

    A trained one has a normalizer whose scale is not 1, or a bias, other than torch draws it, beside weights beyond the
    range of torch's default.
    Normalizers that are all as they were born decide it where everything learns: one step moves them.
    """
    remembered = remembered_in_block()
    key = "is fresh", id(model)
    if key not in remembered:
        remembered[key] = _is_fresh(model)
    return bool(remembered[key])


@torch.no_grad()
def _is_fresh(model: nn.Module) -> bool:
    held = [(module._parameters.get("weight"), module._parameters.get("bias")) for module in model.modules()]
    pairs = [(weight, bias) for weight, bias in held if weight is not None and weight.numel()]
    scales = [(weight, bias) for weight, bias in pairs if weight.ndim == 1]
    varies = fetch_numbers([(weight != weight[0]).any() for weight, _ in scales])
    biases = [bias for _, bias in pairs if bias is not None]
    nonzero = fetch_numbers([(bias != 0).any() for bias in biases])
    has_bias = {id(bias): bool(own) for bias, own in zip(biases, nonzero, strict=True)}
    norms = [k for k, (_, bias) in enumerate(scales) if bias is not None]
    born = not any(varies[k] or has_bias[id(scales[k][1])] for k in norms)
    if norms and (not born or all(parameter.requires_grad for parameter in model.parameters())):
        return born
    if any(varies[k] for k, (_, bias) in enumerate(scales) if bias is None):
        return False
    if not born or any(fetch_numbers([(scales[k][0] != 1).any() for k in norms])):
        return False
    drawn = [  # by the limits between which torch draws them
        (weight, bias, 1.0 / math.sqrt(max(1, math.prod(weight.shape[1:]))))
        for weight, bias in pairs
        if weight.ndim != 1 and bias is not None and has_bias[id(bias)] and not weight.is_complex()
    ]
    sizes = fetch_numbers([weight.abs().max() for weight, *_ in drawn])
    beyond = [(bias, limit) for (_, bias, limit), size in zip(drawn, sizes, strict=True) if size > limit * (1 + 1e-6)]
    return not beyond or _as_drawn(torch.cat([bias.double().flatten().cpu() / limit for bias, limit in beyond]))


def _as_drawn(shares: Tensor) -> bool:
    """Whether biases, as shares of the limits between which torch draws them, are spread as it draws them.

    Then the weights beside them were drawn anew, and not trained.
    """
    spread = float(shares.square().mean().sqrt()) * math.sqrt(3.0)
    even = abs(spread - 1.0) < 4.0 / math.sqrt(5.0 * shares.numel())
    return shares.numel() >= FEWEST_BIASES and even and float(shares.abs().max()) <= 1 + 1e-6


MOST_REPEATED_SHARE, CENTRED_DEVIATIONS = 0.1, 4.0
"""The share of a weight's values that chance repeats in float32, and how many standard errors its mean lies from 0."""


def looks_drawn(module: nn.Module) -> bool:
    """Whether a layer may be a random draw: its weights differ, their mean is zero but for chance, its bias small.

    Many trained layers look so too. Filters and bases that are computed do not: values repeat, or the mean is another.
    """
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if weight is None or weight.ndim < 2 or weight.numel() < FEWEST_BIASES or weight.dtype != torch.float32:
        return False
    if bias is not None and float(bias.detach().abs().max()) > 1.0 / math.sqrt(math.prod(weight.shape[1:])):
        return False
    values = weight.detach().flatten()
    spread = float(values.std()) / math.sqrt(len(values))
    return len(values.unique()) >= (1.0 - MOST_REPEATED_SHARE) * len(values) and (
        abs(float(values.mean())) <= CENTRED_DEVIATIONS * spread
    )


def has_new_gains(model: nn.Module) -> bool:
    """Whether a model has normalizers, and the gains and biases of all of them are as they were born."""
    pairs = [(module._parameters.get("weight"), module._parameters.get("bias")) for module in model.modules()]
    gains = [(weight, bias) for weight, bias in pairs if weight is not None and weight.ndim == 1]
    return bool(gains) and all(
        bool((weight == weight[:1]).all()) and (bias is None or not bool(bias.any())) for weight, bias in gains
    )


FEW_RANDOM = 3
"""Frozen random layers from which on a network of them is no map to random features."""


def choose_unmeant(random: Mapping[str, nn.Module]) -> list[str]:
    """Return the frozen random layers, by path, that are hardly meant to be so.

    Random features and fixed classifiers are frozen maps without a bias, and there are one or two of them.
    """
    return [path for path, module in random.items() if len(random) >= FEW_RANDOM or _is_hardly_meant(module)]


def _is_hardly_meant(module: nn.Module) -> bool:
    """Whether a frozen random layer is hardly meant, whatever others there are: it has a bias, or a state."""
    return isinstance(module, nn.Embedding | nn.RNNBase) or module._parameters.get("bias") is not None
