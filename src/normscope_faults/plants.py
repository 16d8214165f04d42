"""Plants: functions that change a model in place and return it, for faults that need no code of their own.

Names are split at spaces; a name is a path of attributes and indices, and `*` stands for every child.
"""

from collections.abc import Callable, Iterable, Iterator
from types import UnionType
from typing import Any

import torch
from torch import nn

Plant = Callable[[nn.Module], Any]


def each(*plants: Plant) -> Plant:
    """Plant several things, one after the other."""

    def plant(model: nn.Module) -> nn.Module:
        for one in plants:
            one(model)
        return model

    return plant


def changed(change: Plant) -> Plant:
    """Change a model in place, by any function, and return it."""

    def plant(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            change(model)
        return model

    return plant


def put(values: Any, index: Any, value: Any) -> Any:
    """Put a value into a tensor, or a module into a list of them, and return the whole."""
    values[index] = value
    return values


def filled(names: str, value: float) -> Plant:
    """Fill parameters with a value."""
    return _each_tensor(names, lambda tensor: tensor.fill_(value))


def scaled(names: str, factor: float) -> Plant:
    """Multiply parameters."""
    return _each_tensor(names, lambda tensor: tensor.mul_(factor))


def drawn(names: str, std: float) -> Plant:
    """Draw parameters anew from a normal distribution."""
    return _each_tensor(names, lambda tensor: tensor.normal_(0.0, std))


def over(found: Callable[[Any], Iterable[Any]], change: Callable[[Any], Any], kind: type | UnionType = object) -> Plant:
    """Change each of the modules or parameters of one kind that are found in a model."""

    def plant(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for part in found(model):
                if isinstance(part, kind):
                    change(part)
        return model

    return plant


def _each_tensor(names: str, change: Callable[[torch.Tensor], Any]) -> Plant:
    def plant(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for name in names.split():
                for tensor in _found(model, name.split(".")):
                    change(tensor)
        return model

    return plant


def _found(root: Any, keys: list[str]) -> Iterator[Any]:
    """Yield what a path leads to."""
    if not keys:
        yield root
        return
    key, *rest = keys
    numbered = key.lstrip("-").isdigit()
    for child in root if key == "*" else [root[int(key)] if numbered else getattr(root, key)]:
        yield from _found(child, rest)


def variant(name: str, model: nn.Module, **methods: Callable[..., Any]) -> Any:
    """Return a model with methods of its own in place of those of its class."""
    model.__class__ = type(name, (type(model),), methods)
    return model
