"""The provenance of a figure: the versions and the kind of machine that made it."""

from __future__ import annotations

import contextlib
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from .version import __version__


def provenance(device: torch.device | None = None) -> dict[str, str]:
    """Return the versions and the device behind a result; no host name, no path, no user.

    Args:
        device: the device of the model, if it is known.
    """
    versions = {
        "normscope": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    with contextlib.suppress(PackageNotFoundError):
        versions["transformers"] = version("transformers")
    if device is not None:
        versions["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return versions
