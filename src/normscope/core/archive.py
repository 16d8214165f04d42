"""`Archive`: one file with a proof as JSON and arrays, written whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import InputError
from .files import write_bytes
from .version import __version__

FORMAT, VERSION = "normscope-proof", 3


class Archive:
    """Collects arrays and hands out the names by which the JSON refers to them.

    Floats that float32 holds exactly are stored as float32; a tensor that is put twice is stored once.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._names: dict[int, tuple[Tensor, str]] = {}

    def put(self, value: Tensor) -> str:
        """Store a tensor of floats or integers; return its name."""
        stored = self._names.get(id(value))
        if stored is not None:
            return stored[1]
        plain = value.detach().cpu()
        if plain.is_floating_point():
            wide = plain.double()
            if not bool(torch.isfinite(wide).all()):
                raise InputError("a proof cannot hold NaN or infinite values")
            array = wide.numpy()
            narrow = wide.float()
            array = narrow.numpy() if torch.equal(narrow.double(), wide) else array
        else:
            array = plain.to(torch.int64).numpy()
        name = f"a{len(self.arrays)}"
        self.arrays[name] = np.ascontiguousarray(array).reshape(tuple(value.shape))
        self._names[id(value)] = (value, name)
        return name

    def write(self, path: str | os.PathLike[str], header: Mapping[str, Any]) -> None:
        """Write the arrays and a header of plain data."""
        content = {"format": FORMAT, "version": VERSION, "made_by": f"normscope {__version__}", **header}
        text = json.dumps({**content, "digest": _digest(content, self.arrays)}, allow_nan=False)
        buffer = io.BytesIO()
        members: dict[str, Any] = {"header": np.frombuffer(text.encode(), np.uint8), **self.arrays}
        np.savez_compressed(buffer, **members)
        write_bytes(path, buffer.getvalue())


def _digest(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """Return a digest of the content, by which a reader notices accidental damage."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(arrays):
        value = arrays[name]
        digest.update(f"{name} {value.dtype.str} {value.shape} ".encode() + value.tobytes())
    return digest.hexdigest()
