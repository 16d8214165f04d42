"""Symmetries of reparametrised weights: `weight_norm` (v -> a v with g fixed) and `spectral_norm` (W -> a W)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from ..graph.ir import Node
from .actions import ParameterPart, Scaling, UnitEntries, piece_of
from .candidate import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Normed:
    """A weight g v/norm(v), or W/sigma(W): `direction` is v or W, and `g` is None for the latter."""

    path: str
    argument: str
    direction: Tensor
    g: Tensor | None


def reparametrised(model: nn.Module) -> list[Candidate]:
    """Return the symmetries of the reparametrised weights of a model."""
    candidates = []
    for normed in _weights(model):
        piece = piece_of(model, normed.direction)
        if piece is None:
            continue
        shape = (1,) * normed.direction.ndim if normed.g is None else tuple(normed.g.shape)
        shape = shape if len(shape) == normed.direction.ndim else (1,) * normed.direction.ndim
        units = torch.arange(torch.Size(shape).numel()).reshape(shape)
        candidates.append(
            Candidate(
                kind="spectral norm" if normed.g is None else "weight norm",
                path=normed.path,
                form="W -> a W" if normed.g is None else "v -> a v, g fixed",
                action=Scaling(terms=(UnitEntries(piece=piece, units=units),), units=units.numel()),
                weights=(piece,),
            )
        )
    return candidates


def gains(model: nn.Module, node: Node, parts: Tensor) -> tuple[list[UnitEntries], tuple[ParameterPart, ...]] | None:
    """Return the parameters that scale the output channels of a layer with `weight_norm`: g and the bias.

    The second value is the part of the model that is changed at random for comparison. Return None for other layers.
    """
    normed = next((one for one in _weights(model) if one.path == node.path and one.argument == "weight"), None)
    if normed is None or normed.g is None or normed.g.shape[:1] != parts.shape or normed.g.numel() != len(parts):
        return None
    piece, direction = piece_of(model, normed.g), piece_of(model, normed.direction)
    if piece is None or direction is None:
        return None
    terms = [UnitEntries(piece=piece, units=parts.reshape(normed.g.shape))]
    bias = getattr(model.get_submodule(node.path), "bias", None)
    if bias is not None:
        bias_piece = piece_of(model, bias)
        if bias_piece is None:
            return None
        terms.append(UnitEntries(piece=bias_piece, units=parts))
    return terms, (direction,)


def _weights(model: nn.Module) -> Iterator[_Normed]:
    """Yield the reparametrised weights of a model, in the newer and the older form of torch."""
    for path, module in model.named_modules():
        if parametrize.is_parametrized(module):
            for argument, chain in module.parametrizations.items():
                if len(chain) != 1:
                    continue
                if isinstance(chain[0], parametrizations._WeightNorm):
                    yield _Normed(path=path, argument=argument, direction=chain.original1, g=chain.original0)
                elif isinstance(chain[0], parametrizations._SpectralNorm):
                    yield _Normed(path=path, argument=argument, direction=chain.original, g=None)
        for hook in module._forward_pre_hooks.values():  # The older form of both.
            argument, kind = getattr(hook, "name", None), type(hook).__name__
            if kind == "WeightNorm":
                g, v = getattr(module, f"{argument}_g"), getattr(module, f"{argument}_v")
                yield _Normed(path=path, argument=str(argument), direction=v, g=g)
            elif kind == "SpectralNorm":
                yield _Normed(path=path, argument=str(argument), direction=getattr(module, f"{argument}_orig"), g=None)
