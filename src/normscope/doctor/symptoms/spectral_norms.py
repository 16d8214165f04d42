"""Spectral normalization whose power iteration is off, or whose norm is not that of the convolution."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from ...core.finding import Finding, Severity, figure, figures
from ...core.log10 import log10
from ..checking.examined import Examined
from .symptom import FindingWords, finding

FINDING_WORDS = {
    "spectral-norm-off": FindingWords(
        "the spectral norm of {where} is not the one it was made for",
        "the spectral norms of {count} layers are not those they were made for",
    ),
}
NORM_ERROR = 0.1
"""A relative error of a spectral norm that is worth knowing."""
LARGE_ERROR = 0.25
"""An error to act on: one power iteration a step follows the weights more closely than this, even at large rates."""
ITERATE_BEYOND = 1024
"""The short side of a matrix from which on its norm is iterated instead of decomposed."""
ITERATIONS = 100
"""Power iterations: a random matrix is then known to about a percent."""


def check_spectral_norm_off(examined: Examined) -> Iterator[Finding]:
    """`spectral-norm-off` (warning, info): a `spectral_norm` parametrization whose power iteration has not found the
    norm, or a convolution whose operator norm is above the one it controls
    """
    norms = {place.path: place.row.norm for place in examined.places}
    for path, module in examined.model.named_modules():
        for weight, u, v in _spectral_norms(module, examined.mode):
            sigma, estimate = _largest(weight), abs(float(torch.dot(u, weight @ v)))
            if not 0.0 < sigma < math.inf:
                continue  # other findings
            handed = sigma / estimate if estimate > 0.0 else math.inf
            bracket, error = norms.get(path), abs(handed - 1.0)
            if error > NORM_ERROR:
                lasting = examined.mode == "eval" and error > LARGE_ERROR
                yield finding(
                    "spectral-norm-off",
                    path,
                    f"The weight that spectral_norm hands out in `{path}` has norm {figure(handed)}, not 1.",
                    "Its power iteration keeps two vectors and improves them only in train mode; they do not fit "
                    "the weight, so the layer is not the 1-Lipschitz map it is taken for.",
                    "Run a few forward passes in train mode (no optimizer step) before evaluating, or use more "
                    "iterations: spectral_norm(module, n_power_iterations=5).",
                    figures(norm=handed, log10_weight=log10(sigma)),
                    severity=Severity.WARNING if lasting else Severity.INFO,
                )
            elif bracket is not None and bracket.lower > 1.0 + NORM_ERROR:
                yield finding(
                    "spectral-norm-off",
                    path,
                    f"The reshaped kernel of `{path}` has norm {figure(handed)}, the convolution itself at "
                    f"least {figure(bracket.lower)}.",
                    "spectral_norm normalizes the kernel reshaped to a matrix, whose norm is below the operator's: "
                    "windows overlap and their images add up.",
                    "Do not multiply by 1 per layer when certifying: use the norms of this audit, or divide the "
                    "weight by ns.spectral_norm(module, input_shape=...).upper.",
                    figures(norm=handed, operator_norm=bracket.lower),
                    severity=Severity.INFO,
                )


@torch.no_grad()
def _spectral_norms(module: nn.Module, mode: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the reshaped weight and the two vectors of every spectral normalization of a module, in float64."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):
            weight = hook.reshape_weight_to_matrix(getattr(module, f"{hook.name}_orig"))
            u, v = getattr(module, f"{hook.name}_u"), getattr(module, f"{hook.name}_v")
            yield _iterated(weight, u, v, hook.n_power_iterations if mode == "train" else 0)
    for parts in getattr(module, "parametrizations", {}).values():
        first = parts[0]
        if isinstance(first, _SpectralNorm) and parts.original.ndim > 1:
            weight = first._reshape_weight_to_matrix(parts.original)
            yield _iterated(weight, first._u, first._v, first.n_power_iterations if mode == "train" else 0)


def _iterated(weight: Tensor, u: Tensor, v: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the vectors after the iterations a forward pass would run, without touching the module's own."""
    weight, u, v = weight.detach().double(), u.detach().double(), v.detach().double()
    for _ in range(steps):
        v = nn.functional.normalize(weight.T @ u, dim=0)
        u = nn.functional.normalize(weight @ v, dim=0)
    return weight, u, v


def _largest(weight: Tensor) -> float:
    """Return the spectral norm of a matrix: exactly if it is small, otherwise by iteration; NaN if it has none."""
    if weight.is_meta or not bool(torch.isfinite(weight).all()):
        return math.nan
    wide = weight if weight.shape[0] <= weight.shape[1] else weight.T
    if len(wide) <= ITERATE_BEYOND:
        return math.sqrt(max(float(torch.linalg.eigvalsh(wide @ wide.T)[-1]), 0.0))
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(len(wide), generator=generator, dtype=wide.dtype).to(wide.device)
    for _ in range(ITERATIONS):
        vector = nn.functional.normalize(wide @ (wide.T @ vector), dim=0)
    return float((wide.T @ vector).norm())
