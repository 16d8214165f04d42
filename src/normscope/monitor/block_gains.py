"""How the blocks of a network change the sizes of values on the way forward, and of gradients on the way back."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from ..listening.calls import tensors_in
from .forward_record import ForwardRecord


class BlockGains:
    """Measures what enters and leaves each block in one forward, and the gradients as they come.

    Args:
        seen: the record of the forward, to which the gains are added.
        blocks: paths of the modules that are measured.
    """

    def __init__(self, seen: ForwardRecord, blocks: Collection[str]) -> None:
        self._seen, self._blocks = seen, blocks
        self._sizes: list[Tensor | None] = []  # of the inputs of all modules that run now; None for what is no block

    def entered(self, path: str | None, args: Any) -> None:
        """Measure the input of a block."""
        self._sizes.append(None)
        if path is not None and path in self._blocks:
            with contextlib.suppress(Exception):  # sparse, nested, ...: not every tensor has a size
                given = _first_float(args)
                if given is not None:
                    self._sizes[-1] = _size(given)
                    self._listen_back(path, 1, given)

    def left(self, path: str, made: Any) -> None:
        """Measure the output of a block."""
        size = self._sizes.pop() if self._sizes else None
        if size is not None:
            with contextlib.suppress(Exception):
                output = _first_float(made)
                if output is not None:
                    self._seen.activations[path] = _size(output) / size
                    self._listen_back(path, 0, output)

    def _listen_back(self, path: str, place: int, tensor: Tensor) -> None:
        """Keep the size of a gradient when it comes: of a block's output (0) or input (1)."""
        if not tensor.requires_grad or tensor.is_leaf:  # hooks on leaves would stay
            return
        sizes = self._seen.gradients.setdefault(path, [None, None])

        def keep(grad: Tensor) -> None:
            sizes[place] = _size(grad)

        tensor.register_hook(keep)


def _size(tensor: Tensor) -> Tensor:
    """Return the root mean square."""
    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
    return torch.linalg.vector_norm(tensor.detach(), dtype=wide).float() / max(tensor.numel(), 1) ** 0.5


def _first_float(value: Any) -> Tensor | None:
    """Return the first float tensor that a module was given or returned."""
    return next((tensor for tensor in tensors_in(value) if tensor.is_floating_point()), None)
