"""Numbers on their way from a device to the host: tensors are sent as one, and nothing waits for them."""

from __future__ import annotations

from collections.abc import Sequence

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
