"""Along which dimension the units of an activation lie."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class UnitAxis:
    """Follows where the last layer of a forward that has channels put them.

    In front of all such layers the channels are taken to lie along the second dimension, as torch has them.
    """

    def __init__(self) -> None:
        self._width: int | None = None
        self._last = False

    def follow(self, made: Any, dim: int, *, last: bool) -> None:
        """Note the output of a layer with channels.

        Args:
            made: the output, with a batch.
            dim: the dimension that counts its channels.
            last: whether that is the last one by the layer's definition, however many there are.
        """
        self._width = made.shape[dim] if isinstance(made, Tensor) and made.ndim > 1 else None
        self._last = last

    def of(self, made: Tensor) -> int:
        """Return the dimension of an activation that counts its units.

        It is the one that is as wide as the layer before has channels. Where both or none of the second and the last
        are, it is the one along which that layer has its channels.

        Args:
            made: its output, with a batch.
        """
        first, final = made.shape[1] == self._width, made.shape[-1] == self._width
        return made.ndim - 1 if made.ndim == 2 or (final if first != final else self._last) else 1
