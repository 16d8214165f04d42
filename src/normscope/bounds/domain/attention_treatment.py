"""Softmax attention at a point: how fast its value moves with queries, keys, values and mask.

With P the weights, J_i = diag(p_i) - p_i p_i^T and c the scale, out_i moves by sum_j p_ij dv_j, by c (K^T J_i V)^T dq_i
and by c V^T J_i dK q_i. So the gains are norm(P), c max_i norm(K^T J_i V) and c times the smaller of
(sum_i norm(q_i)^2 norm(J_i V)^2)^(1/2) and norm(Q) max_i norm(J_i V); in the mask max_i norm(J_i V). Heads are apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .conditions import LargestQuantity
from .jacobians import Enough
from .small_matrices import above_norm, above_root

ENTRIES = 2**22
"""Entries of the matrices of several queries that are held at once."""
REFINED = 6
"""Queries whose matrices' norms are bounded tightly; the others have their Frobenius norm taken."""
CANCELLED = 1e-7
"""Relative to the norm of the factors: what sums that cancel may lose, as a root of some units in the last place."""


@dataclass(frozen=True, slots=True)
class AttentionGains(LargestQuantity):
    """The four gains of an attention; it reads queries, keys (transposed), weights and values, spread over all heads.

    Attributes:
        factor: the scale of the scores.
    """

    factor: float

    def figures(self, values: Mapping[str, Tensor], enough: Enough | None = None) -> Tensor:
        """Return the gains in queries, keys, values and mask, the largest over heads."""
        query, key, weights, value = (values[name] for name in self.reads)
        batch = len(weights)
        weights = weights.reshape(*query.shape[:-1], key.shape[-1])
        flat = [x.reshape(-1, *x.shape[-2:]) for x in (query, key, weights, value)]
        each = max(weights.shape[-2:]) * max(query.shape[-1], value.shape[-1]) * value.shape[-1]
        heads = max(1, ENTRIES // max(1, each))
        groups = zip(*(x.split(heads) for x in flat), strict=True)
        parts = [gains(q, k, p, v, self.factor) for q, k, p, v in groups]
        return torch.cat(parts).reshape(batch, -1, 4).amax(1).nan_to_num(nan=torch.inf)

    def said(self, index: int) -> str:
        """Name the gain."""
        return f"its gain in the {('queries', 'keys', 'values', 'mask')[index]}"


def gains(query: Tensor, key: Tensor, weights: Tensor, value: Tensor, factor: float) -> Tensor:
    """Return `[heads, 4]` gains of heads `[n, d]`, `[d, m]`, `[n, m]`, `[m, e]`."""
    mean, size = weights @ value, torch.linalg.vector_norm(value, dim=(1, 2))
    # K^T J_i V is the sum of p_ij k_j (v_j - mean_i)^T, the Gram matrix of J_i V that of p_ij^2 (v_j - mean_i)(...)^T
    crossed = _averaged(weights, key.mT, value) - (weights @ key.mT)[..., :, None] * mean[..., None, :]
    squares = weights.square()
    mixed = (squares @ value)[..., :, None] * mean[..., None, :]
    own = squares.sum(2)[..., None, None] * mean[..., :, None] * mean[..., None, :]
    gram = _averaged(squares, value, value) - mixed - mixed.mT + own
    lost = CANCELLED * size  # what cancellation may have taken off the roots
    moved = torch.linalg.matrix_norm(gram).sqrt() + lost[:, None]
    queries = (_largest(crossed, above_norm) + CANCELLED * size * torch.linalg.vector_norm(key, dim=(1, 2))) * factor
    apart = (torch.linalg.vector_norm(query, dim=-1) * moved).square().sum(1).sqrt()
    most = _largest(gram, above_root) + lost
    keys = torch.minimum(apart, above_norm(query) * most) * factor
    schur = weights.sum(1).amax(1).sqrt() * weights.sum(2).amax(1).sqrt()
    return torch.stack([queries, keys, torch.minimum(above_norm(weights), schur), most], 1) * (1 + 1e-9)


def _averaged(weights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return sum_j w_ij l_j r_j^T as `[heads, n, d, e]`, in one product."""
    pairs = left[..., :, None] * right[..., None, :]
    return (weights @ pairs.flatten(2)).reshape(*weights.shape[:2], *pairs.shape[2:])


def _largest(matrices: Tensor, refined: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the largest of the refined bounds over `[heads, n]`, which are at most the plain ones.

    Only the matrices with the largest plain bounds are refined; a plain one stands for the rest.
    """
    plain = torch.linalg.matrix_norm(matrices)
    plain = plain if refined is above_norm else plain.sqrt()
    count = min(REFINED, plain.shape[1])
    top = plain.topk(min(count + 1, plain.shape[1]), dim=1)
    chosen = top.indices[:, :count, None, None].expand(-1, -1, *matrices.shape[2:])
    best = torch.minimum(refined(matrices.gather(1, chosen)), top.values[:, :count]).amax(1)
    return torch.maximum(best, top.values[:, count]) if plain.shape[1] > count else best
