"""Open files of weights as tensors by name; each tensor is read when it is needed, and no code of the file is run."""

from __future__ import annotations

import io
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..auditing.reading_ahead import Stored
from ..core.errors import InputError, describe_error
from ..core.files import MAX_TABLE_BYTES, SMALL_BYTES, read_json
from ..core.npz import open_zip, unpacked_limit
from ..core.threads import ignore_warnings

PICKLES = (".pt", ".pth", ".bin", ".ckpt")
INDEX = ".safetensors.index.json"
NESTED = ("state_dict", "model_state_dict", "model", "module")
"""The keys under which training scripts store the weights in a checkpoint."""


def stored_weights(path: Path) -> Stored:
    """Open weights: `*.safetensors` (read one by one), its `*.index.json`, a folder of these or a pickle of tensors."""
    if os.path.isdir(path):
        indexes = sorted(path.glob(f"*{INDEX}"))
        files = indexes or sorted(path.glob("*.safetensors"))
        found = [(name, read) for file in files for name, read in stored_weights(file).items()]
        if len(dict(found)) < len(found):
            raise InputError(f"several files of {path} hold a tensor of the same name: name the file to read")
        return dict(found)
    if not os.path.isfile(path):
        raise InputError(f"no file {path}")
    if path.name.endswith(INDEX):
        return _read_index(path)
    if path.suffix != ".safetensors":
        return _read_pickle(path)
    names = sorted(_open_safetensors(path).keys(), key=_natural)
    if not names:
        raise InputError(f"{path} holds no tensor")
    return {name: _reader(path, name) for name in names}


def _open_safetensors(path: Path) -> Any:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise InputError("safetensors files need the package safetensors: pip install 'normscope[hf]'") from error
    try:
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")  # a file begins with the size of its table of tensors
        if header > MAX_TABLE_BYTES:
            raise ValueError(
                f"its table of tensors takes {header / 1e6:,.1f} MB, more than {MAX_TABLE_BYTES / 1e6:,.1f} MB"
            )
        return safe_open(path, framework="pt")
    except Exception as error:
        raise InputError(f"{path} is no safetensors file, or is cut short ({describe_error(error)})") from error


def _reader(path: Path, name: str) -> Callable[[], Tensor]:
    """Return a function that reads one tensor; it opens the file anew, as an open file would stay in memory."""

    def read() -> Tensor:
        try:
            return _open_safetensors(path).get_tensor(name)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"tensor {name!r} of {path} cannot be read ({describe_error(error)})") from error

    return read


def _read_index(path: Path) -> dict[str, Callable[[], Tensor]]:
    """Return the tensors of the safetensors files that an index names."""
    try:
        shards = read_json(path)["weight_map"]
        for shard in shards.values():
            if Path(shard).name != shard:  # a path may lead out of the folder
                raise ValueError(f"{shard!r} is not a file name")
        files = {name: path.parent / shard for name, shard in shards.items()}
    except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no index of safetensors files ({describe_error(error)})") from error
    tensors: dict[Path, set[str]] = {}
    for name, file in files.items():
        if file not in tensors:
            if not os.path.isfile(file):
                raise InputError(f"no file {file}, which {path.name} names")
            tensors[file] = set(_open_safetensors(file).keys())
        if name not in tensors[file]:
            raise InputError(f"{file} does not hold the tensor {name!r} that {path.name} expects there")
    return {name: _reader(files[name], name) for name in sorted(files, key=_natural)}


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts numbers in names by their value: of two numbers the one with more digits is larger."""
    parts = [part for part in re.split(r"([0-9]+)", name) if part]
    numbers = [part.lstrip("0") if part[0] in "0123456789" else None for part in parts]
    return [(1, 0, part) if number is None else (0, len(number), number) for part, number in zip(parts, numbers)]


def _read_pickle(path: Path) -> dict[str, Callable[[], Tensor]]:
    """Return the tensors of a pickled state dict."""
    content = _unpickle(path)
    for key in NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise InputError(f"{path} holds a {type(content).__name__}, not a state dict of tensors")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise InputError(f"{path} holds no tensor by name: save model.state_dict()")
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size() if tensor.layout is torch.strided else 0  # others are passed over
        if size > SMALL_BYTES and size > tensor.untyped_storage().nbytes():
            raise InputError(
                f"tensor {name!r:.80} of {path} has shape {tuple(tensor.shape)!s:.80}, and fewer numbers are stored: "
                "it would be written out in memory. Save tensor.contiguous() if it really is so large"
            )
    # Detaching a nested tensor would warn.
    plain = {name: tensor.detach() if tensor.requires_grad else tensor for name, tensor in tensors.items()}
    return {name: lambda tensor=tensor: tensor for name, tensor in plain.items()}  # type: ignore[misc]


def _unpickle(path: Path) -> Any:
    """Return the content of a pickle of tensors and plain containers; refuse one that would run code."""
    try:
        _check_unpacked(path)
        with ignore_warnings():
            try:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError:  # The format before torch 1.6 cannot be memory-mapped.
                return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} is refused: it is damaged, or a pickle that holds more than tensors, and loading that would run "
            "code. Save model.state_dict(), better as safetensors, or name a function that builds the model "
            "(package.module:name)"
        ) from error
    except Exception as error:
        raise InputError(f"{path} is no file of weights that torch can read ({describe_error(error)})") from error


def _check_unpacked(path: Path) -> None:
    """Refuse an archive that unpacks to far more than it is: torch.save packs nothing, but torch unpacks in memory."""
    if not zipfile.is_zipfile(path):
        return
    with io.FileIO(path) as file:
        members = open_zip(file, max_directory_bytes=MAX_TABLE_BYTES).infolist()
    packed, unpacked = os.path.getsize(path), sum(member.file_size for member in members)
    if unpacked > max(packed, unpacked_limit(packed)):
        raise ValueError(f"it is packed, and would take {unpacked / 1e6:,.1f} MB: no file of torch.save is")
