"""The canonical copy of a model: the same function, with scale-invariant weights of norm 1."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ..core.errors import InputError, said
from ..graph.ir import Node, Unit
from .actions import Scaling
from .candidate import Candidate

EPS = ("eps", "variance_epsilon", "epsilon")
"""What modules call their eps."""


def canonical_copy(model: nn.Module, scales: tuple[Candidate, ...]) -> nn.Module:
    """Return a copy in which every unit's weight has norm 1; statistics and, where one unit is all, eps go along."""
    try:
        made = copy.deepcopy(model)
    except Exception as error:
        raise InputError(
            f"the model cannot be copied ({said(error)}): replace torch.nn.utils.weight_norm by "
            "torch.nn.utils.parametrizations.weight_norm, and keep only modules and parameters in it"
        ) from error
    parameters = dict(made.named_parameters())
    with torch.no_grad():
        for one in scales:
            assert isinstance(one.action, Scaling)
            term = one.action.terms[0]
            weight = term.piece.of(parameters).double()
            norms = term.total(weight.square(), one.action.units).sqrt()
            norms = torch.where(norms > 0, norms, 1.0)
            for part in one.action.terms:
                view = part.piece.of(parameters)
                view.copy_(view.double() / part.pick(norms))
            for feed in one.feeds:
                _move_along(made, feed.normalizer, norms)
    return made


def _move_along(model: nn.Module, node: Node, norms: Tensor) -> None:
    """Rescale what a normalizer stores of the size of its input."""
    module = model.get_submodule(node.path)
    held = [name for name in EPS if isinstance(getattr(module, name, None), float)]
    given = node.op.data if isinstance(node.op, Unit) else node.bound()
    eps = float(given["eps"])
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    if isinstance(variance, Tensor) and isinstance(mean, Tensor) and variance.shape == norms.shape:
        mean.copy_(mean.double() / norms)
        variance.copy_(((variance.double() + eps) / norms.square() - eps).clamp(min=0.0))
    elif norms.numel() == 1 and len(held) == 1 and getattr(module, held[0]) == eps:
        setattr(module, held[0], eps / float(norms) ** 2)
