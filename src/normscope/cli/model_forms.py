"""What MODEL on the command line may be, and how each form is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core.errors import InputError, said
from ..diagnosis.bare_weights import Stored
from ..graph.exported import load_program
from .huggingface import load_folder, load_id, looks_like_an_id, noise
from .objects import call_object, load_object
from .stored import INDEX, PICKLES, stored_weights

FORMS = (
    "package.module:function, path/to/file.py:function, a .pt2 file, a Hugging Face folder or id, "
    "or a *.safetensors file for its weights alone"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenModel:
    """What MODEL turned out to be: a model to run, or weights alone.

    Attributes:
        name: how the report calls it.
        model: the model, unless only weights are known.
        weights: tensors by name, where there is no model.
        batch_size: the only batch size the model takes, if it takes only one.
        noise: makes a synthetic batch, where the model says what it takes.
        fixed_mode: the model cannot be put into another mode.
        notes: for the report.
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
        """The model, where there is one."""
        assert self.model is not None
        return self.model


def open_model(text: str, *, trust: bool) -> GivenModel:
    """Open MODEL, whatever its form.

    Args:
        text: as given on the command line.
        trust: whether files that can run code may be loaded.

    Raises:
        InputError: it is none of the forms, is missing or damaged, raises, or would run code.
    """
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


def placed(given: GivenModel, device: str | None, mode: str | None) -> GivenModel:
    """Move the model to the device asked for, if it can run in the mode asked for."""
    has = "train" if given.module.training else "eval"
    if given.fixed_mode and mode not in (None, has):
        raise InputError(f"{given.name} was exported in {has} mode and has no other: leave --mode {mode} out")
    if device is not None:
        try:
            given.module.to(device)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"the model cannot be moved to --device {device} ({said(error)})") from error
    return given


def _built(text: str) -> GivenModel:
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise InputError(f"{text!r} is not package.module:function: something is missing beside the colon")
    found = load_object(text)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise InputError(
                f"{text} is of type {type(found).__name__}: neither a torch.nn.Module nor a function that builds one"
            )
        found = call_object(found, text)
    if not isinstance(found, nn.Module):
        raise InputError(f"{text}() returns an object of type {type(found).__name__}, not a torch.nn.Module")
    return GivenModel(name=text, model=found)


def _program(path: Path, trust: bool) -> GivenModel:
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
    def make(samples: int, generator: torch.Generator) -> Any:
        return noise(model, samples, generator=generator)

    return GivenModel(name=name, model=model, noise=make, notes=notes)
