"""The file of a domain: JSON and arrays in one npz, read without running anything it holds."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.files import write_bytes

FORMAT, VERSION = "normscope-domain", 1
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
    try:
        with np.load(where, allow_pickle=False) as members:
            header = json.loads(bytes(members["header"]).decode())
            if header.get("format") != FORMAT or header.get("version") != VERSION:
                raise InputError(f"{where} is no domain of this version: write it with Domain.save")
            limits = {key: torch.from_numpy(members[f"a{i}"]) for i, key in enumerate(header["keys"])}
    except FileNotFoundError:
        raise InputError(f"there is no file {where}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"{where} is no domain: write one with Domain.save ({type(error).__name__})") from None
    sound = all(limit.dtype is torch.float64 and limit.ndim == 1 for limit in limits.values())
    known = all(isinstance(header.get(name), kind) for name, kind in FIELDS.items())
    if not (sound and known) or any(bool(limit.isnan().any()) for limit in limits.values()):
        raise InputError(f"{where} is a damaged domain: its header or its limits are not what Domain.save writes")
    return header, limits
