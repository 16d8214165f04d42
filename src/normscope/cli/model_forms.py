"""The forms that MODEL may have on the command line, and how each of them is opened.

Hugging Face models are loaded from safetensors alone, and code that comes with a model is never run.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import socket
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlparse
from urllib.request import getproxies

import torch
from torch import Tensor, nn

from ..auditing.reading_ahead import Stored
from ..bounds.graph.capturing import load_program
from ..core.errors import InputError, describe_error
from .stored import INDEX, PICKLES, stored_weights

FORMS = (
    "package.module:function, path/to/file.py:function, a .pt2 file, a Hugging Face folder or id, "
    "or a *.safetensors file or a folder of such for weights alone"
)
SEQUENCE = 32
"""How many tokens a synthetic sample has."""
UNSAFE = ("*.bin", "*.h5", "*.msgpack", "*.ckpt", "*.pt")
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""The id of a model on the Hugging Face hub: `gpt2`, `google/vit-base-patch16-224`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenModel:
    """What MODEL names: a model to run, or weights alone."""

    name: str  # its name in the report
    model: nn.Module | None = None  # the model; None if only weights are known
    weights: Stored | None = None  # the tensors by name if there is no model; else None
    batch_size: int | None = None  # the only batch size that the model takes; None if it takes any
    # makes a synthetic batch; None if the model does not say what it takes
    noise: Callable[[int, torch.Generator], Any] | None = None
    fixed_mode: bool = False  # whether the model cannot be put into another mode
    notes: tuple[str, ...] = ()  # notes for the report

    @property
    def module(self) -> nn.Module:
        """The model; only for what is known to have one."""
        assert self.model is not None
        return self.model


def open_model(text: str, *, trust: bool) -> GivenModel:
    """Open MODEL, whatever its form."""
    path = Path(text)
    if text.endswith(".pt2"):
        if not os.path.isfile(path):
            raise InputError(f"no file {path}")
        if not trust:
            raise InputError(f"loading {path} can run code that it holds: add --trust if you know where it comes from")
        program = load_program(path)
        size, notes = program.batch_size, program.notes
        return GivenModel(name=path.name, model=program.model, batch_size=size, fixed_mode=True, notes=notes)
    if text.endswith((".safetensors", INDEX, *PICKLES)):
        return GivenModel(name=path.name, weights=stored_weights(path))
    if os.path.isdir(path):
        if not os.path.exists(path / "config.json") and any(path.glob("*.safetensors")):
            return GivenModel(name=path.resolve().name, weights=stored_weights(path))
        return _hugging_face(path.resolve().name, *load_folder(path))
    if ":" in text and not os.path.exists(path):
        return _built(text)
    if text.endswith(".py") and os.path.isfile(path):
        raise InputError(f"{text} is a Python file: name what builds the model in it too, as in {text}:build")
    if os.path.isfile(path) or not _ID.fullmatch(text):
        what = "is a file of no known form" if os.path.isfile(path) else "is neither a file nor a folder"
        raise InputError(f"{text!r} {what}: MODEL is {FORMS}")
    return _hugging_face(text, *load_id(text))


def open_runnable(
    text: str, *, trust: bool, device: str | None = None, mode: str | None = None, weights: str = ""
) -> GivenModel:
    """Open MODEL for a command that runs it; refuse weights alone, and say what takes these (`weights`)."""
    subject = open_model(text, trust=trust)
    if subject.model is None:
        raise InputError(
            f"{subject.name} holds weights and no model to run: {weights}name a function that builds the model "
            "(package.module:function)"
        )
    return place_model(subject, device, mode)


def place_model(subject: GivenModel, device: str | None, mode: str | None) -> GivenModel:
    """Move the model to a device, and refuse a mode in which it cannot run."""
    has = "train" if subject.module.training else "eval"
    if subject.fixed_mode and mode not in (None, has):
        raise InputError(f"{subject.name} was exported in {has} mode and has no other: leave --mode {mode} out")
    if device is not None:
        try:
            subject.module.to(device)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"the model cannot be moved to --device {device} ({describe_error(error)})") from error
    return subject


def known_device(device: str) -> torch.device:
    """Return the device that weights are to be moved to; refuse one that is not there."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"weights cannot be moved to --device {device} ({describe_error(error)})") from error


def _built(text: str) -> GivenModel:
    """Return the model that a Python object is, or builds."""
    module, _, name = text.rpartition(":")
    if not module or not name:
        raise InputError(f"{text!r} is not package.module:function: something is missing beside the colon")
    model = load_object(text)
    if not isinstance(model, nn.Module):
        if not callable(model):
            raise InputError(
                f"{text} is of type {type(model).__name__}: neither a torch.nn.Module nor a function that builds one"
            )
        model = call_object(model, text)
    if not isinstance(model, nn.Module):
        raise InputError(f"{text}() returns an object of type {type(model).__name__}, not a torch.nn.Module")
    return GivenModel(name=text, model=model)


def _hugging_face(name: str, model: nn.Module, notes: tuple[str, ...]) -> GivenModel:
    """Return a Hugging Face model, which can be run on noise of the sizes that its config names."""
    return GivenModel(name=name, model=model, noise=partial(noise, model), notes=notes)


def load_object(reference: str) -> Any:
    """Import the object that `package.module:name` or `path/to/file.py:name` names.

    Modules are looked for in the current folder first, as `python -m` does.
    """
    source, _, name = reference.rpartition(":")
    module = _file_module(Path(source)) if source.endswith(".py") else _module(source)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            public = [item for item in vars(module) if not item.startswith("_")]
            raise InputError(f"{source} has no {name!r}; it has {', '.join(public) or 'no names at all'}")
        value = getattr(value, part)
    return value


def call_object(function: Any, reference: str) -> Any:
    """Call an object of the user's without arguments; errors name it by its reference."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(f"{reference} is called without arguments, but {error}: name a function without") from error
    except ValueError:  # A function that is written in C may have no signature.
        pass
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise InputError(f"{reference}() raises {describe_user_error(error)}") from error


def describe_user_error(error: BaseException) -> str:
    """Return an error in one line with the place in the user's own code that it comes from.

    That is the innermost line of a file that is neither Python's, nor an installed package's, nor Normscope's.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{describe_error(error)} ({_shorten(error.filename)}, line {error.lineno})"
    return describe_error(error) + _user_place(error)


def describe_with_place(error: BaseException) -> str:
    """Return an error of Normscope with the place in the user's own code where its cause was raised, if it has one."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    place = "" if cause is error else _user_place(cause)
    return str(error) if place in str(error) else f"{error}{place}"


def _user_place(error: BaseException) -> str:
    """Return the innermost line of the user's own code that an error came through, in brackets, or nothing."""
    installed = (sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
    others = [Path(__file__).parents[1].resolve(), *(Path(folder).resolve() for folder in installed)]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not any(path.resolve().is_relative_to(folder) for folder in others):
            return f" ({_shorten(frame.filename)}, line {frame.lineno}: {frame.line})"
    return ""


def _shorten(filename: str) -> str:
    """Return a path as seen from the current folder, if it lies inside."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


@contextmanager
def refuse_exit() -> Iterator[None]:
    """Turn `sys.exit()` in the user's code, a forward pass for example, into an error: nothing was measured.

    Raises:
        InputError: the code inside ends the program.
    """
    try:
        yield
    except SystemExit as error:
        raise InputError(f"the code of the model or of its data ends the program ({describe_error(error)})") from error


def _module(name: str) -> ModuleType:
    """Import a module, from the current folder first."""
    _search_first(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (name == missing or name.startswith(f"{missing}.")):
            raise InputError(
                f"there is no module {name!r} here or among the installed packages (current folder: {Path.cwd()})"
            ) from error
        raise InputError(f"importing {name} raises {describe_user_error(error)}") from error


def _file_module(path: Path) -> ModuleType:
    """Run a Python file as a module, once: the model and the data may be in one file."""
    if not os.path.isfile(path):
        raise InputError(f"no file {path}")
    name, location = f"_normscope_user_{path.stem}", str(path.resolve())
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == location:
        return loaded
    spec = importlib.util.spec_from_file_location(name, location)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _search_first(path.resolve().parent)
    sys.modules[name] = module  # Dataclasses look their own module up.
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"running {path} raises {describe_user_error(error)}") from error
    return module


def _search_first(folder: Path) -> None:
    """Let imports look into a folder before all others."""
    if os.fspath(folder) not in sys.path:
        sys.path.insert(0, os.fspath(folder))


def load_folder(folder: Path) -> tuple[nn.Module, tuple[str, ...]]:
    """Load the model of a folder with `config.json` and safetensors, without asking the hub for anything."""
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{folder} holds no config.json and no *.safetensors file: no Hugging Face model, and no weights alone"
        )
    if not any(folder.glob("*.safetensors")):
        if any(path for pattern in UNSAFE for path in folder.glob(pattern)):
            raise InputError(
                f"{folder} holds its weights as pickles only, which can run code: convert them with "
                "model.save_pretrained(folder, safe_serialization=True)"
            )
        raise InputError(f"{folder} holds no *.safetensors file")
    return _load_model(str(folder), local=True)


def load_id(name: str) -> tuple[nn.Module, tuple[str, ...]]:
    """Load a model by its id, from the local cache or else from the hub."""
    try:
        return _load_model(name, local=True)
    except InputError as error:
        if not isinstance(error.__cause__, _NotCached):
            raise
    if not _hub_answers():
        raise InputError(
            f"{name!r} is no file, no folder, no package.module:name and not in the local Hugging Face cache, and the "
            "hub cannot be reached"
        )
    return _load_model(name, local=False)


class _NotCached(Exception):
    """The config of a model is not in the local cache."""


def _load_model(source: str, *, local: bool) -> tuple[nn.Module, tuple[str, ...]]:
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
        kind = getattr(transformers, str(name), None)
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            return kind
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


def noise(model: nn.Module, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a batch of random values of the sizes that a model's config names: pixels, sound or token ids."""
    config: Any = model.config
    main = str(getattr(model, "main_input_name", ""))
    arguments: dict[str, Tensor] = {}
    if main == "input_ids":
        arguments["input_ids"] = _ids(config, samples, generator)
    if main == "pixel_values" or (main == "input_ids" and hasattr(config, "vision_config")):
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", None) or 224
        height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        frames = (vision.num_frames,) if getattr(vision, "num_frames", None) else ()
        shape = (samples, *frames, getattr(vision, "num_channels", None) or 3, height, width)
        arguments["pixel_values"] = torch.randn(shape, generator=generator)
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
