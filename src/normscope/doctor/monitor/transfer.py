"""Numbers on their way from a device to the host: tensors are sent as one, and nothing waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


class Transfer:
    """Tensors that are sent to the host as one, and taken apart when they have arrived.

    Args:
        tensors: on one device or several.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        self._flat: Tensor | None = None
        flat = [tensor if tensor.ndim == 1 else tensor.reshape(-1) for tensor in tensors]
        alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for place, tensor in enumerate(flat):
            alike.setdefault((tensor.device, tensor.dtype), []).append(place)
        self._shapes = {place: tensors[place].shape for places in alike.values() for place in places}
        if not tensors:
            return
        with torch.no_grad():
            device = next((device for device, _ in alike if device.type != "cpu"), torch.device("cpu"))
            dtype = torch.float32 if device.type == "mps" else torch.float64
            together = (torch.cat([flat[place] for place in places]) for places in alike.values())
            parts = [part.to(device, dtype, non_blocking=True) for part in together]
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)
            if device.type != "cuda":
                self._flat = whole.cpu()
                return
            self._flat = torch.empty(whole.shape, dtype=dtype, pin_memory=True)
            self._flat.copy_(whole, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))

    def arrived(self) -> bool:
        """Return whether opening it would not wait."""
        return self._event is None or self._event.query()

    def open(self) -> list[np.ndarray]:
        """Return the numbers of each tensor, in its shape; waits for the device if they are not here yet."""
        if self._event is not None:
            self._event.synchronize()
        if self._flat is None:
            return []
        numbers, arrays, first = self._flat.numpy(), {}, 0
        for place, shape in self._shapes.items():
            arrays[place] = numbers[first : first + shape.numel()].reshape(shape)
            first += shape.numel()
        return [arrays[place] for place in range(len(arrays))]


class Outbox:
    """Collects tensors until all of them are sent together."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._transfer: Transfer | None = None

    def add(self, tensor: Tensor) -> Arriving:
        """Add a tensor; return what its numbers are read from."""
        self._tensors.append(tensor)
        return Arriving(self, len(self._tensors) - 1)

    def send(self) -> None:
        """Send all of them."""
        self._transfer, self._tensors = Transfer(self._tensors), []

    def arrived(self) -> bool:
        """Return whether reading them would not wait."""
        return self._transfer is None or self._transfer.arrived()

    @cached_property
    def numbers(self) -> list[np.ndarray]:
        """The numbers of each tensor, in their order."""
        return [] if self._transfer is None else self._transfer.open()


class Arriving:
    """A tensor on its way to the host."""

    def __init__(self, outbox: Outbox, place: int) -> None:
        self._outbox, self._place = outbox, place

    @property
    def numbers(self) -> np.ndarray:
        """Its numbers, in its shape; waits for the device if they are not here yet."""
        return self._outbox.numbers[self._place]

    def __float__(self) -> float:
        return float(self.numbers.flat[0])
