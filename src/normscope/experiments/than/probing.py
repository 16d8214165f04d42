"""Measure what Than's figures plot at one moment of training: weight norms, and variances in front of normalizers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WEIGHTS = (nn.Linear, nn.Conv2d)
NORMALIZERS = (nn.BatchNorm1d, nn.BatchNorm2d)
VARIANCES = ("variance", "typical", "inverse", "inverse_l2", "gain", "gain_l2")
"""The figures that are kept of a layer's input variances, each as log10.

- `variance`: their mean over the channels (or units), `typical`: their geometric mean.
- `inverse`: the largest 1/sigma, the exact norm of the normalizer without its scale; `inverse_l2`: the l2 norm of the
  vector of all 1/sigma, which Lemma 1 prints.
- `gain`, `gain_l2`: the same with the scale, gamma/sigma, as the Slides have it.
"""


def weight_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the linear layers and convolutions by name, in order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, WEIGHTS)}


def sites(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules whose input variances are taken: the normalizers, or the ReLUs where there are none."""
    kind: Any = NORMALIZERS if any(isinstance(module, NORMALIZERS) for module in model.modules()) else nn.ReLU
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


@torch.no_grad()
def input_variances(model: nn.Module, batch: Tensor) -> dict[str, list[float]]:
    """Return the figures of `VARIANCES` at each site for one batch in train mode.

    A copy is run, so that the model keeps its running statistics and its hooks are not called.

    Args:
        model: the network.
        batch: a mini-batch of training images.
    """
    variances: dict[str, Tensor] = {}
    copied = copy.deepcopy(model).train()
    modules = sites(copied)
    for name, module in modules.items():
        module.register_forward_pre_hook(_recorder(variances, name))
    copied(batch)
    rows = torch.stack([_figures(variances[name], module) for name, module in modules.items()]).cpu()
    return {quantity: rows[:, index].tolist() for index, quantity in enumerate(VARIANCES)}


def _recorder(variances: dict[str, Tensor], name: str) -> Callable[..., None]:
    """Return a hook that records the variances of a module's input under a name."""

    def record(module: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0].detach().double()
        variances[name] = x.var(dim=[axis for axis in range(x.ndim) if axis != 1], correction=0)

    return record


def _figures(variance: Tensor, module: nn.Module) -> Tensor:
    eps = module.eps if isinstance(module, NORMALIZERS) else 0.0
    gamma = module.weight.detach().double().abs() if isinstance(module, NORMALIZERS) else torch.ones_like(variance)
    inverse = (variance + eps).rsqrt()
    gain = gamma * inverse
    found = (variance.mean(), variance.log().mean().exp(), inverse.amax(), inverse.norm(), gain.amax(), gain.norm())
    return torch.stack(found).log10()


@torch.no_grad()
def matrix_norms(model: nn.Module, *, reshaped: bool) -> dict[str, list[float]]:
    """Return log10 of every weight's Frobenius norm and, with `reshaped`, of its reshaped kernel's spectral norm."""
    kernels = [module.weight.detach().flatten(1).double() for module in weight_layers(model).values()]  # type: ignore[operator]
    found = {"frobenius": torch.stack([kernel.norm() for kernel in kernels]).log10().tolist()}
    if reshaped:
        largest = [_spectral(kernel) for kernel in kernels]
        found["reshaped"] = torch.stack(largest).log10().tolist()
    return found


def _spectral(kernel: Tensor) -> Tensor:
    """Return the largest singular value, from the smaller Gram matrix, scaled so that nothing underflows."""
    size = kernel.abs().amax().clamp_min(torch.finfo(kernel.dtype).tiny)
    scaled = kernel / size
    gram = scaled @ scaled.T if scaled.shape[0] <= scaled.shape[1] else scaled.T @ scaled
    return torch.linalg.eigvalsh(gram)[-1].clamp_min(0.0).sqrt() * size
