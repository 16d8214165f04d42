"""The Python state that a forward can reach and change: attributes, hooks' and closures' lists, global counters.

A model that is run or traced to be measured may append to a list of its own, of a hook or of the module it is written
in. Such objects are found by following references from the model: attributes, closures, the globals that functions
name. Objects of torch, numpy and Python's own library are not followed, and the search ends after `MOST` objects.
"""

from __future__ import annotations

import dis
import functools
import sys
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from .errors import InputError, describe_error

MOST = 20_000
"""The search for changeable objects ends after this many."""
LIBRARIES = frozenset({"torch", "numpy", "scipy", "normscope", "torchvision", *sys.stdlib_module_names} - {"__main__"})
"""Packages whose functions and objects are taken to keep nothing of a forward."""
MODELS = frozenset({"transformers", "timm"})
"""Packages whose objects may keep something of a forward (a cache), but whose functions and classes do not."""
TABLES = ("_parameters", "_buffers", "_modules")
"""The attributes in which a module keeps what it registers; their entries are put back one by one."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
KNOWN = frozenset(vars(nn.Module()))
"""Attributes that every module has."""
SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""By sparse layout the methods that return the dense tensors in which it keeps its entries."""
CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
Undo = Callable[[], None]
_classes: weakref.WeakKeyDictionary[type, tuple[Any, ...]] = weakref.WeakKeyDictionary()


class Reached:
    """The Python state that a model's forward can change, as it was found.

    Attributes:
        modules: the model's modules, and those that it holds without registering them.
        paths: the path of each registered module, by its `id`.
        undo: functions that each put one object back, if it was changed.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules = list(model.modules())
        self.undo: list[Undo] = []
        self.paths = {id(module): path for path, module in model.named_modules()}
        self._seen: set[int] = set()
        self._keep: list[Any] = []  # an id is that of an object only while the object lives
        waiting: deque[Any] = deque(self.modules)
        while waiting and len(self._seen) < MOST:
            value = waiting.popleft()
            if id(value) not in self._seen:
                self._seen.add(id(value))
                self._keep.append(value)
                waiting.extend(self._visit(value))

    def restore(self) -> None:
        """Put everything back."""
        for undo in self.undo:
            undo()

    def _visit(self, value: Any) -> Iterable[Any]:
        """Note how to put a value back; return the objects that it refers to."""
        if isinstance(value, nn.Module):
            return self._module(value)
        if type(value) in CONTAINERS:
            self.undo.append(_contents(value))
            return [item for item in (value.values() if isinstance(value, dict) else value) if _leads_on(item)]
        if isinstance(value, tuple):
            return [item for item in value if _leads_on(item)]
        if isinstance(value, MethodType):
            return value.__self__, value.__func__
        if isinstance(value, functools.partial):
            return value.func, *value.args, *value.keywords.values()
        if isinstance(value, FunctionType):
            return [] if _quiet(value.__module__) else self._function(value)
        if isinstance(value, type | ModuleType) or _library(type(value).__module__) or not hasattr(value, "__dict__"):
            return []
        self.undo.append(_contents(vars(value)))
        return [*_members(type(value)), *filter(_leads_on, vars(value).values())]

    def _module(self, module: nn.Module) -> Iterator[Any]:
        if isinstance(module, torch.jit.ScriptModule):
            path = self.paths.get(id(module), "(not registered)")
            raise InputError(
                f"{f'the module `{path}`' if path else 'the model'} is TorchScript: what a run changes in it cannot be "
                "seen and put back. Pass the module that it was made from (its state_dict holds the weights for that)"
            )
        held = vars(module)
        if id(module) not in self.paths:
            self.modules.append(module)
        self.undo.extend(_contents(held[table]) for table in TABLES)
        self.undo.append(_attributes(module, self.paths.get(id(module), "")))
        yield from (value for name, value in held.items() if name not in KNOWN and _leads_on(value))
        yield from (hook for table in HOOKS for hook in held[table].values())
        yield from _members(type(module))

    def _function(self, function: FunctionType) -> Iterator[Any]:
        names, stored = _names(function.__code__)
        everything = function.__globals__
        self.undo.extend(_entry(everything, name) for name in stored)
        for name in names:
            value = everything.get(name)
            if not isinstance(value, ModuleType):
                if _leads_on(value) and not isinstance(value, type):
                    yield value
            elif not _library(value.__name__):  # a module of the user's: the objects in it that the function names
                yield from (vars(value)[other] for other in names if other in vars(value))
        for cell in function.__closure__ or ():
            self.undo.append(_cell(cell))
            yield from _inside(cell)
        yield from function.__defaults__ or ()


def _leads_on(value: Any) -> bool:
    """Whether a value may refer to objects that can be changed."""
    return not isinstance(value, torch.Tensor | str | bytes | int | float | complex | None)


@functools.lru_cache(maxsize=4096)
def _library(name: str | None) -> bool:
    """Whether a module belongs to a package that is taken to keep nothing of a forward."""
    return (name or "builtins").split(".", 1)[0] in LIBRARIES


@functools.lru_cache(maxsize=4096)
def _quiet(name: str | None) -> bool:
    """Whether functions and classes of a package keep nothing of a forward."""
    return _library(name) or (name or "").split(".", 1)[0] in MODELS


def _members(kind: type) -> tuple[Any, ...]:
    """Return the functions and the containers that a class and the classes it is made of define; remembered."""
    if kind not in _classes:
        held = [value for base in kind.__mro__ if not _quiet(base.__module__) for value in vars(base).values()]
        bare = [getattr(value, "__func__", getattr(value, "fget", value)) for value in held]
        _classes[kind] = tuple(v for v in bare if isinstance(v, FunctionType) or type(v) in CONTAINERS)
    return _classes[kind]


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that a function and those inside it look up, and the globals they bind."""
    codes = [code]
    for outer in codes:
        codes.extend(inner for inner in outer.co_consts if isinstance(inner, CodeType))
    read = dict.fromkeys(name for each in codes for name in each.co_names)
    bound = dict.fromkeys(
        step.argval for each in codes for step in dis.get_instructions(each) if step.opname == "STORE_GLOBAL"
    )
    return tuple(read), tuple(bound)


def _inside(cell: CellType) -> list[Any]:
    """Return the value of a variable of a closure, in a list that is empty before the variable has one."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _cell(cell: CellType) -> Undo:
    """Return a function that gives a variable of a closure its present value back."""
    held = _inside(cell)

    def undo() -> None:
        if held:
            cell.cell_contents = held[0]

    return undo


def _entry(table: dict[str, Any], name: str) -> Undo:
    """Return a function that gives one name of a dict its present value back, or removes it again."""
    missing = object()
    held = table.get(name, missing)

    def undo() -> None:
        if held is missing:
            table.pop(name, None)
        else:
            table[name] = held

    return undo


def _contents(container: Any) -> Undo:
    """Return a function that gives a list, dict, set or deque back the very objects that it holds now."""
    pairs = isinstance(container, dict)
    held = list(container.items() if pairs else container)

    def alike(now: list[Any]) -> bool:
        if len(now) != len(held):
            return False
        if pairs:
            return all(k is key and v is value for (k, v), (key, value) in zip(now, held, strict=True))
        return all(first is second for first, second in zip(now, held, strict=True))

    def undo() -> None:
        if not alike(list(container.items() if pairs else container)):
            container.clear()
            if pairs:
                for key, value in held:  # the method `update` of a Counter would add to its counts
                    container[key] = value
            else:
                (container.update if isinstance(container, set) else container.extend)(held)

    return undo


def _attributes(module: nn.Module, path: str) -> Undo:
    """Return a function that binds the plain attributes of a module again, and writes back the tensors among them."""
    held = {name: value for name, value in vars(module).items() if name not in KNOWN}
    copies = {
        name: copy_to_restore(value, f"{path}.{name}".lstrip("."))
        for name, value in held.items()
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
    }

    def undo() -> None:
        now = vars(module)
        for name in [name for name in now if name not in KNOWN and name not in held]:
            del now[name]
        now.update(held)
        for name, copied in copies.items():
            write_back(held[name], copied)

    return undo


def copy_to_restore(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return a copy of a buffer or attribute of the model; refuse one that could not be put back after a run.

    Raises:
        InputError: the tensor has no values yet, or is of a kind that cannot be copied and compared.
    """
    if is_lazy(tensor):
        raise InputError(f"{name!r} has no size yet: run the model once before measuring it")
    try:
        copied = tensor.detach().clone()
        ordinary = type(tensor) is torch.Tensor and tensor.layout is torch.strided
        if not ordinary or tensor.is_nested or tensor.is_quantized:
            same(tensor, copied)
    except Exception as error:
        raise InputError(
            f"the model's tensor `{name}` ({type(tensor).__name__}, {tensor.dtype}, {tensor.layout}) cannot be copied "
            f"and compared, so changes of it by a run could not be undone ({describe_error(error)}): store its "
            "values in plain tensors"
        ) from error
    return copied


def write_back(tensor: torch.Tensor, copied: torch.Tensor) -> None:
    """Give a tensor the values of its copy, if they have changed."""
    if not same(tensor, copied):
        if tensor.layout in SPARSE_PARTS:  # `copy_` alone wants as many stored entries as there were
            tensor.resize_as_sparse_(copied)
        tensor.copy_(copied)


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors of any layout hold the same values bit by bit, which lets NaN agree with NaN."""
    if first.dtype != second.dtype or not (first.is_nested or first.shape == second.shape):
        return False
    parts = plain_parts(first), plain_parts(second)
    return len(parts[0]) == len(parts[1]) and all(map(_same_bits, *parts))


def plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the dense tensors that hold the values of a tensor of any layout; a meta tensor holds none."""
    if tensor.is_meta:
        return []
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.layout in SPARSE_PARTS:
        return [getattr(tensor, part)() for part in SPARSE_PARTS[tensor.layout]]
    return [tensor.dequantize() if tensor.is_quantized else tensor.to_dense()]


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    bits = [part.detach().resolve_conj().resolve_neg().contiguous().reshape(-1) for part in (first, second)]
    return first.shape == second.shape and torch.equal(bits[0].view(torch.uint8), bits[1].view(torch.uint8))
