"""Small tensors on their way from the device to the host; the training loop does not wait for them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
import torch
from torch import Tensor


class Transfer:
    """Named tensors that are sent to the host as one tensor, and taken apart when they have arrived.

    Args:
        contents: tensors by name, on one device or several.
    """

    def __init__(self, contents: Mapping[Hashable, Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        self._flat: Tensor | None = None
        kinds: dict[tuple[torch.device, torch.dtype], dict[Hashable, Tensor]] = {}
        for name, tensor in contents.items():
            flat = tensor if tensor.ndim == 1 else tensor.reshape(-1)
            kinds.setdefault((tensor.device, tensor.dtype), {})[name] = flat
        self._sizes = {name: tensor.numel() for alike in kinds.values() for name, tensor in alike.items()}
        if not contents:
            return
        with torch.no_grad():
            device = next((device for device, _ in kinds if device.type != "cpu"), torch.device("cpu"))
            dtype = torch.float32 if device.type == "mps" else torch.float64
            parts = [torch.cat(list(alike.values())).to(device, dtype, non_blocking=True) for alike in kinds.values()]
            flat = parts[0] if len(parts) == 1 else torch.cat(parts)
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

    def open(self) -> dict[Hashable, np.ndarray]:
        """Return the numbers by name; waits for the device if they are not here yet."""
        if self._event is not None:
            self._event.synchronize()
        if self._flat is None:
            return {}
        numbers, found, first = self._flat.numpy(), {}, 0
        for name, size in self._sizes.items():
            found[name] = numbers[first : first + size]
            first += size
        return found
