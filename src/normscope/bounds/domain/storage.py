"""The file of a domain: JSON and arrays in one npz, read without running anything it holds."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.errors import InputError, describe_error
from ...core.files import write_bytes
from ...core.npz import read_arrays, read_json_array

FORMAT, VERSION = "normscope-domain", 1
DTYPES = ("|u1", "<f8")
"""What the arrays of a domain hold: the bytes of its header, and limits."""
FIELDS = {
    "samples": int,
    "skipped": int,
    "margin": float,
    "quantile": float,
    "record": str,
    "mode": str,
    "digests": dict,
}


def write_domain(path: str | os.PathLike[str], header: Mapping[str, Any], limits: Mapping[str, Tensor]) -> None:
    """Write a header of plain data and one array per condition."""
    keys = list(limits)
    text = json.dumps({"format": FORMAT, "version": VERSION, "keys": keys, **header}, allow_nan=False)
    members = {f"a{i}": limits[key].detach().cpu().numpy() for i, key in enumerate(keys)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, header=np.frombuffer(text.encode(), np.uint8), **members)  # type: ignore[arg-type]
    write_bytes(path, buffer.getvalue())


def read_domain(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and the limits of a file.

    Raises:
        InputError: there is no such file, or it is no domain.
    """
    where = Path(path)
    if not where.is_file():
        raise InputError(f"there is no file {where}")
    try:
        arrays = read_arrays(where, DTYPES)
        header = read_json_array(arrays.pop("header"))
        if header.get("format") != FORMAT or header.get("version") != VERSION:
            raise InputError(f"{where} is no domain of this version: write it with Domain.save")
        names = [f"a{i}" for i in range(len(header["keys"]))]
        if arrays.keys() != set(names):
            raise ValueError("its header names other arrays than it holds")
        limits = {key: torch.from_numpy(arrays[name]) for key, name in zip(header["keys"], names)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = str(error) if type(error) is ValueError else describe_error(error)
        raise InputError(f"{where} is no domain that can be read ({why}): write one with Domain.save") from None
    sound = all(limit.dtype is torch.float64 and limit.ndim == 1 for limit in limits.values())
    known = all(isinstance(header.get(name), kind) for name, kind in FIELDS.items())
    if not (sound and known) or any(bool(limit.isnan().any()) for limit in limits.values()):
        raise InputError(f"{where} is a damaged domain: its header or its limits are not what Domain.save writes")
    return header, limits
