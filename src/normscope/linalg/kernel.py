"""The taps of a convolution with its stride taken out, and how they correlate."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from ..core.budget import check_time
from .convolution_map import Convolution
from .gram import narrow_products

_WORTH_IT = 96
"""Gram matrices of a lower order than this are always computed in float64, which takes little time."""


class Kernel:
    """A convolution as one of stride 1 on phased channels, arranged so that its Gram matrices are small.

    The `s` inputs between two outputs become `s` channels (phases); phases that no tap reads are dropped, and so are
    axes along which all taps fall on one entry.

    Args:
        conv: the plain (not transposed) convolution; for float32 its weights should not be much larger than 1.
        strides: the stride to take out of each axis (a divisor of the convolution's own).
        narrow: whether taps are multiplied in float32 (CPU only; not every kernel does so, see `narrow`).

    Attributes:
        parts: tap positions `[t, axes]` and matrices `[t, groups, m, inner]`; the Gram matrix is the sum over parts.
        axes: the axes that frequencies live on.
        inputs: whether the Gram matrices act on the (phased) input channels, not on the output channels.
        size: order m of the Gram matrices.
        square: the sum over parts of S^2, where S is the sum over the part's taps of a norm of the tap's absolute
            weights; the largest over groups. The rounding error of a Gram matrix is proportional to it.
        narrow: whether products of taps are taken in float32: if the caller wants it and the taps are large enough.
        phases: the phases that taps read, `[p, all axes]`.
        origin: the least entry that taps read, for each axis.
    """

    def __init__(self, conv: Convolution, strides: Sequence[int], *, narrow: bool = False) -> None:
        self.groups, self.device = conv.groups, conv.weight.device
        weight = conv.weight.double()
        rows, inner = weight.shape[0] // conv.groups, weight.shape[1]
        taps = weight.reshape(conv.groups, rows, inner, -1).permute(3, 0, 1, 2).contiguous()
        offsets = itertools.product(*(range(0, axis.extent, axis.dilation) for axis in conv.axes))
        position = torch.tensor(list(offsets), dtype=torch.int64)
        whole, phase = position // torch.tensor(strides), position % torch.tensor(strides)
        self.phases, phase_id = torch.unique(phase, dim=0, return_inverse=True)
        self.axes = [a for a in range(len(strides)) if len(torch.unique(whole[:, a])) > 1]
        self.origin = whole.amin(dim=0)
        self.taps = len(position)
        self.inputs = rows > len(self.phases) * inner
        if self.inputs:
            entries, entry_id = torch.unique(whole, dim=0, return_inverse=True)
            full = taps.new_zeros(len(entries), len(self.phases), *taps.shape[1:])
            full[entry_id.to(self.device), phase_id.to(self.device)] = taps
            full = full.permute(0, 2, 1, 4, 3).reshape(len(entries), conv.groups, -1, rows)
            self.parts = [(-entries[:, self.axes].flip(0), full.flip(0) if len(full) > 1 else full)]
        else:
            chosen = [torch.nonzero(phase_id == index)[:, 0] for index in range(len(self.phases))]
            self.parts = _merge((whole[c][:, self.axes], taps[c.to(self.device)]) for c in chosen)
        self.size = self.parts[0][1].shape[2]
        self.inner = sum(part.shape[3] for _, part in self.parts)
        squares = torch.stack([_sizes(part).sum(dim=0).square() for _, part in self.parts])
        self.square = float(squares.sum(dim=0).max()) * (1.0 + 1e-9)
        self.narrow = narrow and self.groups == 1 and self.size >= _WORTH_IT and self.device.type == "cpu"
        self._lags: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def lag_count(self) -> int:
        """About how many different lags the taps have."""
        count = 1
        for a in range(len(self.axes)):
            count *= 2 * len(torch.unique(torch.cat([position[:, a] for position, _ in self.parts])))
        return count

    def correlations(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return lags `[l, axes]` (zero first, one of each opposite pair) and the two sides of their correlations.

        With C the sum of W_a W_b^T over taps at that lag: C + C^T (C itself at lag zero) and C - C^T, flattened to
        `[l, groups m m]`. Taps come in lexicographic order, so that only non-negative lags occur.
        """
        if self._lags is not None:
            return self._lags
        index: dict[tuple[int, ...], int] = {(0,) * len(self.axes): 0}
        sums: list[Tensor] = [self.parts[0][1].new_zeros(self.groups, self.size, self.size)]
        for position, part in self.parts:
            taps = [tuple(row) for row in position.tolist()]
            for tap, product in zip(taps, self._products(part), strict=True):
                check_time()
                for b, block in enumerate(product.split(self.size, dim=2)):
                    lag = tuple(x - y for x, y in zip(tap, taps[b], strict=True))
                    if lag not in index:
                        index[lag] = len(sums)
                        sums.append(block.double())
                    else:
                        sums[index[lag]] += block
        correlation = torch.stack(sums)
        even, odd = (correlation + correlation.mT).flatten(1), (correlation - correlation.mT).flatten(1)
        even[0] *= 0.5
        self._lags = torch.tensor(list(index), dtype=torch.int64).reshape(len(sums), -1), even, odd
        return self._lags

    def _products(self, part: Tensor) -> Iterator[Tensor]:
        """Yield, for every tap, its products with the transposes of all taps up to itself, `[groups, m, taps m]`."""
        if self.narrow:
            yield from (product[None] for product in narrow_products(part[:, 0]))
            return
        columns = part.permute(1, 3, 0, 2).flatten(2)
        for a in range(len(part)):
            yield part[a] @ columns[:, :, : (a + 1) * self.size]


def _sizes(taps: Tensor) -> Tensor:
    """Return, for every tap and group, a bound on the spectral norm of its absolute weights, up to rounding.

    The bound is the smaller of the Frobenius norm and the root of the largest row sum times the largest column sum.
    """
    absolute = taps.abs()
    sums = absolute.sum(dim=3).amax(dim=2) * absolute.sum(dim=2).amax(dim=2)
    return torch.minimum(taps.flatten(2).norm(dim=2), sums.sqrt())


def _merge(parts: Iterable[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Concatenate the phases whose taps lie on the same entries."""
    found: dict[tuple[tuple[int, ...], ...], tuple[Tensor, list[Tensor]]] = {}
    for position, part in parts:
        key = tuple(tuple(row) for row in position.tolist())
        found.setdefault(key, (position, []))[1].append(part)
    return [(position, torch.cat(same, dim=3)) for position, same in found.values()]
