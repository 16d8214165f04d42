"""One contract for arguments: what has one name has one meaning, one type and one default in all public functions."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any, Literal, get_args, get_origin

import pytest

import normscope as ns
import normscope_lab as lab

FUNCTIONS = {name: getattr(ns, name) for name in ns.__all__ if inspect.isfunction(getattr(ns, name))}
FUNCTIONS |= {"flow": lab.flow}
MEASURING = sorted(FUNCTIONS.keys() - {"rule", "spectral_norm", "watch", "compare"})
"""Functions of a model and data; the others decorate a rule, measure one layer, have an optimizer for data, or take
several models."""

DEFAULTS = {
    "data": None,
    "labels": None,
    "loss": None,
    "mode": None,
    "output": None,
    "known": None,
    "on_missing": "error",
    "effort": "fast",
    "rtol": 1e-3,
    "max_seconds": None,
    "seed": 0,
    "confidence": 0.95,
    "share": 0.99,
    "sides": "both",
    "batches": None,
    "name": None,
}
EXCEPTIONS = {
    ("audit", "rtol"): 1e-2,
    ("flow", "data"): inspect.Parameter.empty,  # it takes no graph, of whose batch None would speak
    ("flow", "rtol"): 1e-5,
    ("generalization", "loss"): "probability",
    ("margins", "mode"): "eval",
    ("measures", "loss"): "cross_entropy",
    ("measures", "mode"): "eval",
}
"""Other defaults, each of which its docstring explains."""
CHOICES = (
    "effort",
    "engine",
    "matrix",
    "metric",
    "mode",
    "on_missing",
    "partition",
    "per",
    "record",
    "scope",
    "sides",
    "tier",
)
"""Arguments that are one of a few words."""


def parameters() -> list[tuple[str, str]]:
    return [(name, parameter) for name in FUNCTIONS for parameter in inspect.signature(FUNCTIONS[name]).parameters]


def described(function: str, parameter: str) -> str:
    """Return what the docstring says of a parameter."""
    found = re.search(rf"\n    {parameter}: ((?:.|\n(?!    \w+: |\n))*)", inspect.getdoc(FUNCTIONS[function]))
    return "" if found is None else " ".join(found.group(1).split())


@pytest.mark.parametrize("name", MEASURING)
def test_the_model_comes_first_and_then_the_data(name: str) -> None:
    first, second, *others = inspect.signature(FUNCTIONS[name]).parameters.values()
    assert first.name == "model"
    assert "nn.Module" in first.annotation
    assert second.name == ("train" if name == "generalization" else "data")
    positional = [p.name for p in others if p.kind is not p.KEYWORD_ONLY]
    assert positional == (["test", "held_out"] if name == "generalization" else [])


@pytest.mark.parametrize("name", MEASURING)
def test_labels_can_be_named_wherever_there_are_data(name: str) -> None:
    assert "labels" in inspect.signature(FUNCTIONS[name]).parameters


@pytest.mark.parametrize(("function", "parameter"), [pair for pair in parameters() if pair[1] in DEFAULTS])
def test_one_name_has_one_default(function: str, parameter: str) -> None:
    default = inspect.signature(FUNCTIONS[function]).parameters[parameter].default
    assert default == EXCEPTIONS.get((function, parameter), DEFAULTS[parameter])


def literals(annotation: Any) -> bool:
    """Whether a type has a `Literal` in it, and no plain string."""
    parts = [part for part in get_args(annotation) or (annotation,) if part is not type(None)]
    return any(get_origin(part) is Literal for part in (*parts, annotation)) and str not in parts


@pytest.mark.parametrize(("function", "parameter"), [pair for pair in parameters() if pair[1] in CHOICES])
def test_choices_are_literals(function: str, parameter: str) -> None:
    inner = inspect.unwrap(FUNCTIONS[function])
    annotation = inner.__annotations__[parameter]
    resolved = eval(annotation, vars(inspect.getmodule(inner)) | vars(typing))  # others need types that load late
    assert literals(resolved), annotation


@pytest.mark.parametrize(("function", "parameter"), parameters())
def test_every_argument_is_described(function: str, parameter: str) -> None:
    assert described(function, parameter) or function == "rule"
