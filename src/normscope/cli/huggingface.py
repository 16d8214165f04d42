"""Load Hugging Face models from a folder or by id: only from safetensors, and without running a model's own code."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import getproxies

import torch
from torch import Tensor, nn

from ..core.errors import InputError, describe_error

SEQUENCE = 32
"""How many tokens a synthetic sample has."""
UNSAFE = ("*.bin", "*.h5", "*.msgpack", "*.ckpt", "*.pt")
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def looks_like_an_id(text: str) -> bool:
    """Whether a text could be the id of a model on the Hugging Face hub: `gpt2`, `google/vit-base-patch16-224`."""
    return _ID.fullmatch(text) is not None


def load_folder(folder: Path) -> tuple[nn.Module, tuple[str, ...]]:
    """Load the model of a folder with `config.json` and safetensors, without asking the hub for anything."""
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{folder} holds no config.json: no Hugging Face model (name a *.safetensors file for weights alone)"
        )
    if not any(folder.glob("*.safetensors")):
        if any(path for pattern in UNSAFE for path in folder.glob(pattern)):
            raise InputError(
                f"{folder} holds its weights as pickles only, which can run code: convert them with "
                "model.save_pretrained(folder, safe_serialization=True)"
            )
        raise InputError(f"{folder} holds no *.safetensors file")
    return _loaded(str(folder), local=True)


def load_id(name: str) -> tuple[nn.Module, tuple[str, ...]]:
    """Load a model by its id, from the local cache or else from the hub."""
    try:
        return _loaded(name, local=True)
    except InputError as error:
        if not isinstance(error.__cause__, _NotCached):
            raise
    if not _hub_answers():
        raise InputError(
            f"{name!r} is no file, no folder, no package.module:name and not in the local Hugging Face cache, and the "
            "hub cannot be reached"
        )
    return _loaded(name, local=False)


class _NotCached(Exception):
    """The config of a model is not in the local cache."""


def _loaded(source: str, *, local: bool) -> tuple[nn.Module, tuple[str, ...]]:
    """Load a model from a folder or by id; `local` says that the hub is not asked."""
    try:
        import transformers
    except ImportError as error:
        raise InputError("Hugging Face models need the package transformers: pip install 'normscope[hf]'") from error
    with _quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(source, local_files_only=local, trust_remote_code=False)
        except Exception as error:
            cause = _NotCached() if local and not os.path.isdir(source) else error
            raise InputError(
                f"{source} is no Hugging Face model that transformers can read ({describe_error(error)})"
            ) from cause
        build = _class_of(config, source, transformers)
        try:
            model, loading = build.from_pretrained(
                source, config=config, local_files_only=local, use_safetensors=True, output_loading_info=True
            )
        except Exception as error:
            raise InputError(
                f"the weights of {source} cannot be loaded ({describe_error(error)}); only safetensors are read, "
                "since pickles "
                "can run code"
            ) from error
    notes = ["a Hugging Face model in float32"]
    missing = sorted(loading["missing_keys"])
    if missing:
        notes.append(
            f"{len(missing):,} of its parameters {'is' if len(missing) == 1 else 'are'} not in the file and "
            f"{'was' if len(missing) == 1 else 'were'} drawn at random, e.g. {missing[0]}"
        )
    return model.float().eval(), tuple(notes)


def _class_of(config: Any, source: str, transformers: Any) -> Any:
    """Return the class of transformers that a config names."""
    names = list(getattr(config, "architectures", None) or [])
    for name in names:
        found = getattr(transformers, str(name), None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    if names:
        raise InputError(
            f"{source} wants {names[0]}, which is not part of transformers, and code that comes with a model is not "
            "run: load it yourself and name a function that returns it (package.module:name)"
        )
    return transformers.AutoModel


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' warnings and progress bars off the terminal."""
    import transformers

    log = transformers.logging
    before, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(log.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before)
        if bars:
            log.enable_progress_bar()


def _hub_answers() -> bool:
    """Whether the hub can be reached; if it cannot, every request would be retried for half a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if getproxies().get("https"):
        return True
    try:
        host = urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname or ""
        socket.create_connection((host, 443), timeout=5).close()
    except OSError:
        return False
    return True


def noise(model: nn.Module, samples: int, *, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a batch of random values of the sizes that a model's config names: pixels, sound or token ids."""
    config: Any = model.config
    main = str(getattr(model, "main_input_name", ""))
    arguments: dict[str, Tensor] = {}
    if main == "input_ids":
        arguments["input_ids"] = _ids(config, samples, generator)
    if main == "pixel_values" or (main == "input_ids" and hasattr(config, "vision_config")):
        arguments["pixel_values"] = torch.randn(_pixels(config, samples), generator=generator)
    if main == "input_values":
        arguments["input_values"] = torch.randn(samples, 16000, generator=generator)
    if main == "input_features" and hasattr(config, "num_mel_bins"):
        length = 2 * getattr(config, "max_source_positions", 512)
        arguments["input_features"] = torch.randn(samples, config.num_mel_bins, length, generator=generator)
    if not arguments:
        raise InputError(f"the config of {type(model).__name__} does not say what to feed it: give --data")
    if getattr(config, "is_encoder_decoder", False):
        arguments["decoder_input_ids"] = _ids(config, samples, generator)
    return arguments


def _ids(config: Any, samples: int, generator: torch.Generator) -> Tensor:
    """Return random token ids."""
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None) or SEQUENCE
    return torch.randint(0, text.vocab_size, (samples, min(SEQUENCE, longest)), generator=generator)


def _pixels(config: Any, samples: int) -> tuple[int, ...]:
    """Return the shape of a batch of images or videos."""
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    frames = (vision.num_frames,) if getattr(vision, "num_frames", None) else ()
    return (samples, *frames, getattr(vision, "num_channels", None) or 3, height, width)
