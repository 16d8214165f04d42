"""Fold BatchNorms in eval mode into the layers before them: the same function with fewer layers."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..core.errors import InputError
from ..graph.ir import Graph
from ..rules.invariance import feeds
from .normalizer_modules import ChannelAffine, place_of


def coefficients(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the scale and shift per channel, in float64, that a BatchNorm applies in eval mode."""
    if not isinstance(norm, _BatchNorm):
        kind = getattr(place_of(norm), "kind", None)
        raise InputError(f"only BatchNorm folds: {kind or type(norm).__name__} normalization divides by what it sees")
    if norm.running_mean is None or norm.running_var is None:
        raise InputError("it has no running statistics (track_running_stats=False), so that it is no affine map")
    with torch.no_grad():
        scale = (norm.running_var.double() + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight.double()
        shift = -norm.running_mean.double() * scale
        return scale, shift if norm.bias is None else shift + norm.bias.double()


def foldable(graph: Graph, model: nn.Module) -> dict[str, str]:
    """Return the path of every BatchNorm that can be folded, with the path of the layer into which it can be.

    The layer must feed the BatchNorm and nothing else, run once, and share its tensors with no other layer.
    """
    modules = dict(model.named_modules())
    uses = Counter(id(tensor) for _, tensor in model.named_parameters(remove_duplicate=False))
    runs = Counter((node.path, node.op) for node in graph)
    into = {}
    for feed in feeds(graph):
        weight, norm = feed.weight, feed.normalizer
        layer = modules.get(weight.path)
        if not isinstance(layer, nn.Linear | _ConvNd) or hasattr(layer, "parametrizations") or not feed.exclusive:
            continue
        single = runs[weight.path, weight.op] == 1 == runs[norm.path, norm.op]
        if single and all(uses[id(tensor)] == 1 for tensor in layer.parameters()):
            into[norm.path] = weight.path
    return into


def folded(layer: nn.Module, norm: nn.Module) -> nn.Module:
    """Return a copy of a layer that computes what the layer and the BatchNorm behind it compute in eval mode."""
    assert isinstance(layer, nn.Linear | _ConvNd)
    scale, shift = coefficients(norm)
    new: Any = copy.deepcopy(layer)
    with torch.no_grad():
        weight = layer.weight.double()
        if isinstance(layer, _ConvTransposeNd):  # Its weight is [inputs, outputs of a group, ...].
            parts = weight.reshape(layer.groups, -1, *weight.shape[1:])
            factors = scale.reshape(layer.groups, 1, -1, *(1,) * (weight.ndim - 2))
            weight = (parts * factors).reshape(weight.shape)
        else:
            weight = weight * scale.reshape(-1, *(1,) * (weight.ndim - 1))
        bias = shift if layer.bias is None else layer.bias.double() * scale + shift
        new.weight.copy_(weight)
        new.bias = nn.Parameter(bias.to(layer.weight), requires_grad=layer.weight.requires_grad)
    return new


def affine(norm: nn.Module) -> ChannelAffine:
    """Return a BatchNorm in eval mode as the affine map that it is."""
    scale, shift = coefficients(norm)
    like = next((value for value in (norm.weight, norm.running_mean) if isinstance(value, Tensor)), scale)
    return ChannelAffine(scale.to(like), shift.to(like))
