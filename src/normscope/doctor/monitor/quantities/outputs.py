"""How far the outputs of a model differ from sample to sample."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..transfer import Arriving
from .quantity import Probe, Quantity, RecordDraft

OUTPUT_SPREAD = Quantity("network", "output_spread", "how far the directions of the outputs differ over the samples")
CODE_SPREAD = Quantity(
    "network", "code_spread", "how far outputs that come in a pair do, such as mean and variance of a code"
)
MIN_OUTPUT_SAMPLES, MIN_OUTPUT_WIDTH, MAX_OUTPUT_ENTRIES = 8, 8, 1 << 20
"""Samples and entries of outputs, at least and at most, whose differences between samples are measured."""


class Outputs(Probe):
    """Measures the outputs of the first forward of a step whose gradients are taken."""

    quantities = (OUTPUT_SPREAD, CODE_SPREAD)
    _taken = False
    _outputs: Arriving | None = None
    _codes: Arriving | None = None

    def take_outputs(self, made: Any) -> None:
        if not self._taken and torch.is_grad_enabled():
            self._taken, outputs, codes = True, measure_outputs(made), measure_codes(made)
            self._outputs, self._codes = self.step.send_any(outputs), self.step.send_any(codes)

    def fill(self, record: RecordDraft) -> None:
        if self._outputs is not None:
            record.network(OUTPUT_SPREAD, math.sqrt(max(0.0, 1.0 - float(self._outputs) ** 2)))  # NaN stays so
        record.arrived(CODE_SPREAD, self._codes)


@torch.no_grad()
def measure_outputs(made: Any) -> Tensor | None:
    """Return the length of the mean of all outputs, each scaled to length one: 1 where all point one way.

    Args:
        made: what a model returned.

    Returns:
        That of the first tensor in it; None where that has no rows that could be compared.
    """
    first = next((leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)), None)
    if first is None or first.ndim != 2 or not first.is_floating_point() or first.numel() > MAX_OUTPUT_ENTRIES:
        return None
    if first.layout != torch.strided or first.shape[0] < MIN_OUTPUT_SAMPLES or first.shape[1] < MIN_OUTPUT_WIDTH:
        return None
    lengths = torch.linalg.vector_norm(first, dim=1, keepdim=True, dtype=torch.float32)
    return torch.linalg.vector_norm((first / lengths).mean(0))


@torch.no_grad()
def measure_codes(made: Any) -> Tensor | None:
    """Return how far two outputs of one shape, such as mean and log-variance of a code, differ between samples.

    Args:
        made: what a model returned.

    Returns:
        The largest standard deviation over the samples of any of their entries; None where there is no such pair
        beside another output.
    """
    if isinstance(made, Tensor):
        return None
    rows = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    codes = [leaf.detach() for leaf in rows if leaf.ndim == 2 and len(leaf) >= MIN_OUTPUT_SAMPLES]
    pair = next(((one, two) for one, two in pairwise(codes) if one.shape == two.shape), None)
    if pair is None or len(rows) < 3 or pair[0].layout != torch.strided or pair[0].numel() > MAX_OUTPUT_ENTRIES:
        return None
    return torch.cat([one.to(pair[0]) for one in pair], 1).std(0).amax()
