"""Softmax attention at a point: how fast its value moves with queries, keys, values and mask.

With P the weights, J_i = diag(p_i) - p_i p_i^T and c the scale, out_i moves by sum_j p_ij dv_j, c (K^T J_i V)^T dq_i and
c V^T J_i dK q_i. So the gains are norm(P), c max_i norm(K^T J_i V) and c times the smaller of
(sum_i norm(q_i)^2 norm(J_i V)^2)^(1/2) and norm(Q) max_i norm(J_i V); in the mask max_i norm(J_i V). Heads are apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .conditions import Largest
from .spectral import above_norm

ENTRIES = 2**22
"""Entries of the matrices of several queries that are held at once."""


@dataclass(frozen=True, slots=True)
class AttentionGains(Largest):
    """The four gains of an attention; it reads queries, keys (transposed), weights and values, spread over all heads.

    Attributes:
        factor: the scale of the scores.
    """

    factor: float

    def figures(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the gains in queries, keys, values and mask, the largest over heads."""
        query, key, weights, value = (values[name] for name in self.reads)
        batch = len(weights)
        weights = weights.reshape(*query.shape[:-1], key.shape[-1])
        flat = [x.reshape(-1, *x.shape[-2:]) for x in (query, key, weights, value)]
        heads = max(1, ENTRIES // max(1, weights.shape[-2] * value.shape[-2] * value.shape[-1]))
        parts = [gains(*group, self.factor) for group in zip(*(x.split(heads) for x in flat), strict=True)]
        return torch.cat(parts).reshape(batch, -1, 4).amax(1).nan_to_num(nan=torch.inf)

    def said(self, index: int) -> str:
        """Name the gain."""
        return f"its gain in the {('queries', 'keys', 'values', 'mask')[index]}"


def gains(query: Tensor, key: Tensor, weights: Tensor, value: Tensor, factor: float) -> Tensor:
    """Return `[heads, 4]` gains of heads `[n, d]`, `[d, m]`, `[n, m]`, `[m, e]`."""
    centred = value[:, None] - (weights @ value)[:, :, None]  # [heads, n, m, e]: v_j less the mean under p_i
    weighed = weights[..., None] * centred  # J_i V
    crossed = key[:, None] @ weighed  # K^T J_i V, the mean of K drops out: the rows of J_i V sum to 0
    moved = above_norm(weighed, 2)
    queries = above_norm(crossed, 2).amax(1) * factor
    lengths = torch.linalg.vector_norm(query, dim=-1)
    apart = (lengths * moved).square().sum(1).sqrt()
    together = above_norm(query) * moved.amax(1)
    keys = torch.minimum(apart, together) * factor
    schur = weights.sum(1).amax(1).sqrt() * weights.sum(2).amax(1).sqrt()
    return torch.stack([queries, keys, torch.minimum(above_norm(weights), schur), moved.amax(1)], 1) * (1 + 1e-9)
