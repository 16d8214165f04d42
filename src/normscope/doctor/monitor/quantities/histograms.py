"""Histograms of the entries of each layer's weight and of its gradient, in the full tier."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ....core.whole_weights import gather_whole
from ..schedule import Tier
from ..transfer import Arriving
from .quantity import Probe, Quantity, RecordDraft
from .sizes import dense_values

WEIGHT = Quantity("histograms", "weight", "the root mean square of a layer's weight, then the share in each bin")
GRADIENT = Quantity("histograms", "gradient", "the same of its gradient")
HISTOGRAM_BINS = 33
"""Bins of equal width, the middle one around 0."""
HISTOGRAM_SPAN = 4.0
"""Root mean squares that the bins reach on either side; the outermost hold what is beyond."""
HISTOGRAM_MAX_ENTRIES = 1 << 16
"""Entries that are looked at, at most, evenly spaced."""


class Histograms(Probe):
    """Measures the histograms of weights and gradients."""

    quantities = (WEIGHT, GRADIENT)
    _sent: Mapping[Quantity, dict[int, Arriving]] = {}

    def before_step(self) -> None:
        self._sent = {WEIGHT: {}, GRADIENT: {}}
        for index, names in enumerate(self.step.followed() if self.step.tier is Tier.FULL else ()):
            weight = self.step.parameters[names[0]] if names else None
            if weight is not None and not is_lazy(weight):
                self._sent[WEIGHT][index] = self.step.send(histogram(gather_whole(weight)))
                if weight.grad is not None:
                    gradient = gather_whole(dense_values(weight.grad))
                    self._sent[GRADIENT][index] = self.step.send(histogram(gradient))

    def fill(self, record: RecordDraft) -> None:
        layers = range(len(self.step.subject.of("weight")))
        for what, sent in self._sent.items():
            if sent:
                rows = ((sent[index].numbers if index in sent else None) for index in layers)
                record.histograms[what.name] = tuple(None if row is None else tuple(row.tolist()) for row in rows)


def histogram(tensor: Tensor) -> Tensor:
    """Return the root mean square of a tensor's entries, then the share of them in each bin; nothing waits.

    Example:
        >>> size, *shares = histogram(torch.tensor([-2.0, 2.0, 2.0, 2.0])).tolist()
        >>> size, shares[HISTOGRAM_BINS // 2 + 4], sum(shares)
        (2.0, 0.75, 1.0)
    """
    flat = tensor.detach().reshape(-1)
    some = flat[:: max(-(-flat.numel() // HISTOGRAM_MAX_ENTRIES), 1)].float()
    size = torch.linalg.vector_norm(some) / max(some.numel(), 1) ** 0.5
    relative = torch.where((size > 0) & size.isfinite(), some / size, torch.zeros_like(some)).sort().values
    edges = torch.linspace(-HISTOGRAM_SPAN, HISTOGRAM_SPAN, HISTOGRAM_BINS + 1, device=some.device)[1:-1]
    below = torch.searchsorted(relative, edges).float() / max(some.numel(), 1)
    shares = torch.diff(below, prepend=below.new_zeros(1), append=below.new_ones(1))
    return torch.cat([size[None], shares])
