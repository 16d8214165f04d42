"""The forms that MODEL may have on the command line, and how each of them is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core.errors import InputError, describe_error
from ..diagnosis.bare_weights import Stored
from ..graph.capturing import load_program
from .huggingface import load_folder, load_id, looks_like_an_id, noise
from .objects import call_object, load_object
from .stored import INDEX, PICKLES, stored_weights

FORMS = (
    "package.module:function, path/to/file.py:function, a .pt2 file, a Hugging Face folder or id, "
    "or a *.safetensors file for its weights alone"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenModel:
    """What MODEL names: a model to run, or weights alone.

    Attributes:
        name: its name in the report.
        model: the model; None if only weights are known.
        weights: the tensors by name if there is no model; else None.
        batch_size: the only batch size that the model takes; None if it takes any.
        noise: makes a synthetic batch; None if the model does not say what it takes.
        fixed_mode: whether the model cannot be put into another mode.
        notes: notes for the report.
    """

    name: str
    model: nn.Module | None = None
    weights: Stored | None = None
    batch_size: int | None = None
    noise: Callable[[int, torch.Generator], Any] | None = None
    fixed_mode: bool = False
    notes: tuple[str, ...] = ()

    @property
    def module(self) -> nn.Module:
        """The model; only for what is known to have one."""
        assert self.model is not None
        return self.model


def open_model(text: str, *, trust: bool) -> GivenModel:
    """Open MODEL, whatever its form."""
    path = Path(text)
    if text.endswith(".pt2"):
        return _program(path, trust)
    if text.endswith((".safetensors", INDEX, *PICKLES)):
        return GivenModel(name=path.name, weights=stored_weights(path))
    if os.path.isdir(path):
        return _hugging_face(path.resolve().name, *load_folder(path))
    if ":" in text and not os.path.exists(path):
        return _built(text)
    if os.path.isfile(path) or not looks_like_an_id(text):
        what = "is a file of no known form" if os.path.isfile(path) else "is neither a file nor a folder"
        raise InputError(f"{text!r} {what}: MODEL is {FORMS}")
    return _hugging_face(text, *load_id(text))


def open_runnable(text: str, *, trust: bool) -> GivenModel:
    """Open MODEL for a command that runs it.

    Args:
        text: MODEL as given on the command line.
        trust: whether files that can run code may be loaded.

    Raises:
        InputError: as in `open_model`, or MODEL holds weights alone.
    """
    given = open_model(text, trust=trust)
    if given.model is None:
        raise InputError(
            f"{given.name} holds weights and no model to run: name a function that builds the model "
            "(package.module:function)"
        )
    return given


def place_model(given: GivenModel, device: str | None, mode: str | None) -> GivenModel:
    """Move the model to a device, and refuse a mode in which it cannot run."""
    has = "train" if given.module.training else "eval"
    if given.fixed_mode and mode not in (None, has):
        raise InputError(f"{given.name} was exported in {has} mode and has no other: leave --mode {mode} out")
    if device is not None:
        try:
            given.module.to(device)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"the model cannot be moved to --device {device} ({describe_error(error)})") from error
    return given


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


def _program(path: Path, trust: bool) -> GivenModel:
    """Return the model of a `.pt2` file."""
    if not os.path.isfile(path):
        raise InputError(f"no file {path}")
    if not trust:
        raise InputError(f"loading {path} can run code that it holds: add --trust if you know where it comes from")
    program = load_program(path)
    return GivenModel(
        name=path.name,
        model=program.model,
        batch_size=program.batch_size,
        fixed_mode=True,
        notes=program.notes,
    )


def _hugging_face(name: str, model: nn.Module, notes: tuple[str, ...]) -> GivenModel:
    """Return a Hugging Face model, which can be run on noise of the sizes that its config names."""

    def noise_of_model(samples: int, generator: torch.Generator) -> Any:
        return noise(model, samples, generator=generator)

    return GivenModel(name=name, model=model, noise=noise_of_model, notes=notes)
