"""One axis of a convolution written out: its positions become channels of a convolution with one axis less."""

from __future__ import annotations

import torch

from ..core.rounding import gamma
from .convolution_map import Convolution


def written_axis(conv: Convolution, which: int) -> Convolution:
    """Return the plain convolution with one axis written out, the same map up to the order of entries.

    The result has `C_in n` input and `C_out O` output channels, `n` and `O` being the axis' sizes, and is exact along
    that axis whatever the padding; entries where padding brings several taps together are rounded sums, which its
    `slack` accounts for.

    Args:
        conv: a plain (not transposed) convolution with at least two axes.
        which: the axis to write out.
    """
    axis = conv.axes[which]
    reads = axis.placement(conv.padding_mode, conv.device)
    weight = conv.weight.double().movedim(2 + which, 2)
    rows, columns, _, *rest = weight.shape
    spread = torch.einsum("rckt,koi->rocit", weight.flatten(3), reads)
    result = Convolution.__new__(Convolution)
    result._set(
        spread.reshape(rows * axis.outputs, columns * axis.size, *rest),
        tuple(other for index, other in enumerate(conv.axes) if index != which),
        conv.groups,
        conv.padding_mode,
        False,
    )
    if conv.padding_mode != "zeros":
        result.slack = gamma(axis.kernel + 4.0) * conv.tap_norms()
    return result
