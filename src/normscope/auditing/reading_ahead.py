"""Read the tensors of a file in order; for an accelerator a thread reads and copies the next ones while one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

Stored = Mapping[str, Callable[[], Tensor]]
"""Tensors by name, each with a function that reads it; a tensor lives until the next is read."""

_TENSORS_AHEAD = 4
"""How many tensors are read before they are asked for."""
_PIECES, _PIECE_BYTES = 4, 1 << 26
"""Pieces of pinned host memory, from which a GPU copies by itself, and bytes of each: one is filled while others are
copied."""


def read_ahead(tensors: Stored, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors by name, those of two or more dimensions on a device.

    Vectors stay on the host, where all that is done with them takes less time than a copy. On the CPU nothing is read
    before it is asked for.
    """
    if device.type == "cpu":
        yield from ((key, read()) for key, read in tensors.items())
        return
    copier = _Copier(device)
    with ThreadPoolExecutor(1) as reader:
        reading: deque[tuple[str, Future[tuple[Tensor, torch.cuda.Event | None]]]] = deque()
        remaining = iter(tensors.items())
        try:
            while True:
                while len(reading) <= _TENSORS_AHEAD and (entry := next(remaining, None)) is not None:
                    reading.append((entry[0], reader.submit(copier.fetch, entry[1])))
                if not reading:
                    return
                key, future = reading.popleft()
                tensor, arrived = future.result()
                if arrived is not None:
                    arrived.wait(torch.cuda.current_stream(device))
                    tensor.record_stream(torch.cuda.current_stream(device))
                yield key, tensor
        finally:
            for _, future in reading:
                future.cancel()


class _Copier:
    """Copies tensors to a device; to a GPU in a stream of its own, through pieces of memory that stay in place."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.pieces: deque[tuple[Tensor, torch.cuda.Event]] = deque()  # each with the event of its last copy

    @torch.no_grad()
    def fetch(self, read: Callable[[], Tensor]) -> tuple[Tensor, torch.cuda.Event | None]:
        """Read a tensor and begin to copy it; return it with the event at which it has arrived."""
        tensor = read()
        dense = tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested
        if not dense or tensor.ndim < 2 or tensor.device.type != "cpu":
            return tensor, None
        if self.stream is None or not tensor.is_contiguous() or not tensor.numel():
            return tensor.to(self.device), None
        with torch.cuda.stream(self.stream):
            target = torch.empty_like(tensor, device=self.device)
            sources = tensor.reshape(-1).view(torch.uint8).split(_PIECE_BYTES)
            targets = target.reshape(-1).view(torch.uint8).split(_PIECE_BYTES)
            for source, part in zip(sources, targets, strict=True):
                piece, copied = self._free_piece()
                piece[: len(source)].copy_(source)
                part.copy_(piece[: len(source)], non_blocking=True)
                copied.record(self.stream)
                self.pieces.append((piece, copied))
            arrived = torch.cuda.Event()
            arrived.record(self.stream)
        return target, arrived

    def _free_piece(self) -> tuple[Tensor, torch.cuda.Event]:
        """Return a piece to fill, with the event for its copy; where all are in use, wait for the oldest."""
        if len(self.pieces) < _PIECES:
            return torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()
        piece, copied = self.pieces.popleft()
        copied.synchronize()
        return piece, copied
