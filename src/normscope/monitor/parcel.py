"""Small tensors on their way from the device to the host, without anyone waiting for them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Parcel:
    """Named tensors, sent to the host as one; opened when they have arrived.

    Args:
        contents: tensors by name, on one device or several.
    """

    def __init__(self, contents: Mapping[str, Tensor]) -> None:
        self._sizes = {name: tuple(tensor.shape) for name, tensor in contents.items()}
        self._event: torch.cuda.Event | None = None
        self._flat: Tensor | None = None
        if not contents:
            return
        with torch.no_grad():
            device = next((t.device for t in contents.values() if t.device.type != "cpu"), torch.device("cpu"))
            dtype = torch.float32 if device.type == "mps" else torch.float64
            flat = torch.cat([t.detach().reshape(-1).to(device, dtype, non_blocking=True) for t in contents.values()])
            if device.type != "cuda":
                self._flat = flat.cpu()
                return
            self._flat = torch.empty(flat.shape, dtype=dtype, pin_memory=True)
            self._flat.copy_(flat, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))

    def arrived(self) -> bool:
        """Say whether opening it would not wait."""
        return self._event is None or self._event.query()

    def open(self) -> dict[str, list[float]]:
        """Return the numbers by name; waits for the device if they are not here yet."""
        if self._event is not None:
            self._event.synchronize()
        if self._flat is None:
            return {name: [] for name in self._sizes}
        numbers, found, first = self._flat.tolist(), {}, 0
        for name, shape in self._sizes.items():
            count = int(torch.Size(shape).numel())
            found[name] = numbers[first : first + count]
            first += count
        return found
