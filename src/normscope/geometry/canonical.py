"""The canonical copy of a model: the same function, with scale-invariant weights of norm 1."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ..core.errors import InputError, describe_error
from ..graph.ir import Node, Unit
from .actions import Scaling
from .candidate import Candidate

EPS = ("eps", "variance_epsilon", "epsilon")
"""The names that modules use for their eps."""


def canonical_copy(model: nn.Module, scales: tuple[Candidate, ...]) -> nn.Module:
    """Return a copy of a model in which the weight of every unit has norm 1.

    Running statistics are rescaled accordingly, and so is eps where a normalizer serves a single unit.
    """
    try:
        copied = copy.deepcopy(model)
    except Exception as error:
        raise InputError(
            f"the model cannot be copied ({describe_error(error)}): replace torch.nn.utils.weight_norm by "
            "torch.nn.utils.parametrizations.weight_norm, and keep only modules and parameters in it"
        ) from error
    parameters = dict(copied.named_parameters())
    with torch.no_grad():
        for scale in scales:
            assert isinstance(scale.action, Scaling)
            term = scale.action.terms[0]
            weight = term.piece.of(parameters).double()
            norms = term.total(weight.square(), scale.action.units).sqrt()
            norms = torch.where(norms > 0, norms, 1.0)
            for part in scale.action.terms:
                view = part.piece.of(parameters)
                view.copy_(view.double() / part.pick(norms))
            for feed in scale.feeds:
                _rescale_normalizer(copied, feed.normalizer, norms)
    return copied


def _rescale_normalizer(model: nn.Module, node: Node, norms: Tensor) -> None:
    """Divide the running statistics of a normalizer, or its eps, by the norms that its input was divided by."""
    module = model.get_submodule(node.path)
    held = [name for name in EPS if isinstance(getattr(module, name, None), float)]
    arguments = node.op.data if isinstance(node.op, Unit) else node.bound()
    eps = float(arguments["eps"])
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    if isinstance(variance, Tensor) and isinstance(mean, Tensor) and variance.shape == norms.shape:
        mean.copy_(mean.double() / norms)
        variance.copy_(((variance.double() + eps) / norms.square() - eps).clamp(min=0.0))
    elif norms.numel() == 1 and len(held) == 1 and getattr(module, held[0]) == eps:
        setattr(module, held[0], eps / float(norms) ** 2)
