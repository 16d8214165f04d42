"""The largest entry of a window near a point: max pooling, max and min over dimensions or of two values.

An entry that is below another one of its window over the whole ball is out of the race. Windows with one entry left are
a fixed selection; otherwise the derivative is some point of the simplex over the entries left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .local import Enclosure, LocalForm, OperandShare, Primitive, flat


@dataclass(frozen=True, slots=True)
class WindowMaximum(Primitive):
    """The largest entry of every window.

    Attributes:
        windows: `[outputs, width]` flat input indices, -1 where a window is shorter.
        shape: of the output.
    """

    windows: Tensor
    shape: tuple[int, ...]

    def evaluate(self, values: Sequence[Tensor]) -> Tensor:
        """Take the largest entry of every window."""
        return self._seen(values[0], -torch.inf).amax(-1).reshape(-1, *self.shape)

    def _seen(self, x: Tensor, missing: float) -> Tensor:
        """Return `[B, outputs, width]`: what every window sees."""
        seen = flat(x)[:, self.windows.clamp(min=0)]
        return torch.where(self.windows >= 0, seen, missing)

    def local(self, operands: Sequence[Enclosure]) -> LocalForm:
        """Keep the entries that can win; their mean is the centre map."""
        (x,) = operands
        lows, highs = self._seen(x.low, -torch.inf), self._seen(x.high, -torch.inf)
        floor = lows.amax(-1, keepdim=True)
        racing = (highs >= floor) & (self.windows >= 0)
        speeds = self._seen(x.entries, 0.0)
        moving = racing & (speeds > 0)
        count, fixed = moving.sum(-1).double(), (racing & (speeds == 0)).any(-1)
        # the derivative is a point of the simplex over the entries that move, or of its hull with 0 if one stands still
        corners = count + fixed
        share = moving / corners.clamp(min=1.0)[..., None]
        size = x.centre[0].numel()
        sharing = self._counted(moving, size).amax(-1).sqrt()
        disputed = self._counted(moving & (corners > 1)[..., None], size).amax(-1).sqrt()
        radius = torch.where(corners > 1, _reach(count, corners), 0.0) * disputed[:, None]
        index = self.windows.clamp(min=0).reshape(-1)
        shape, in_shape = self.shape, x.centre.shape[1:]

        def pull(rows: Tensor) -> Tensor:
            spread_out = flat(flat(rows, 2)[..., None] * share[:, None], 2)
            result = torch.zeros(*rows.shape[:2], size, dtype=rows.dtype, device=rows.device)
            return result.index_add_(2, index, spread_out).reshape(*rows.shape[:2], *in_shape)

        fastest = torch.where(racing, speeds, 0.0).amax(-1).reshape(-1, *shape)
        part = OperandShare(pull, (radius * (1 + 1e-12)).reshape(-1, *shape), sharing, fastest)
        return LocalForm(floor[..., 0].reshape(-1, *shape), highs.amax(-1).reshape(-1, *shape), (part,))

    def _counted(self, chosen: Tensor, size: int) -> Tensor:
        """Return `[B, inputs]`: how many windows have each input among the chosen."""
        index = self.windows.clamp(min=0).reshape(1, -1).expand(chosen.shape[0], -1)
        zeros = torch.zeros(chosen.shape[0], size, dtype=torch.float64, device=chosen.device)
        return zeros.scatter_add_(1, index, flat(chosen).double())


def _reach(count: Tensor, corners: Tensor) -> Tensor:
    """Return how far a corner e_j is from the point with all coordinates 1/corners (0 is nearer)."""
    return (
        (1 - 1 / corners.clamp(min=1.0)).square() + (count - 1).clamp(min=0.0) / corners.clamp(min=1.0).square()
    ).sqrt()
