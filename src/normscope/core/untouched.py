"""Leave the user's model as found, also after an exception: mode, weights, Python state, grads, RNG; dropout off.

A model that is run or traced to be measured may append to a list of its own, of a hook or of the module it is written
in. Such objects are found by following references from the model: attributes, closures, the globals that functions
name. Objects of torch, numpy and Python's own library are not followed, and the search ends after
`MAX_SEARCHED_OBJECTS`.
"""

from __future__ import annotations

import dis
import functools
import random
import re
import sys
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import wraps
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from .errors import InputError, describe_error
from .whole_weights import refuse_sharded_weights

MAX_SEARCHED_OBJECTS = 20_000
"""The search for changeable objects ends after this many."""
LIBRARIES = frozenset({"torch", "numpy", "scipy", "normscope", "torchvision", *sys.stdlib_module_names} - {"__main__"})
"""Packages whose functions and objects are taken to keep nothing of a forward."""
QUIET = LIBRARIES | {"transformers", "timm"}
"""Packages whose functions and classes keep nothing of a forward; objects of the last two may (a cache)."""
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
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""What a model may draw random numbers from, besides the generators of the process."""
CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
Undo = Callable[[], None]
_classes: weakref.WeakKeyDictionary[type, tuple[Any, ...]] = weakref.WeakKeyDictionary()


class Reached:
    """The Python state that a model's forward can change, as it was found.

    Attributes:
        modules: the model's modules, and those that it holds without registering them.
        paths: the path of each registered module, by its `id`.
        undo: functions that each put one object back, if it was changed.
        generators: the generators of random numbers that the model holds or names, besides those of the process.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules = list(model.modules())
        self.undo: list[Undo] = []
        self.generators: list[Any] = []
        self.paths = {id(module): path for path, module in model.named_modules()}
        self._seen: set[int] = set()
        self._keep: list[Any] = []  # an id is that of an object only while the object lives
        waiting: deque[Any] = deque(self.modules)
        while waiting and len(self._seen) < MAX_SEARCHED_OBJECTS:
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
            return [] if _is_of(value.__module__, QUIET) else self._function(value)
        if isinstance(value, GENERATORS):
            self.generators.append(value)
            self.undo.append(_generator(value))
            return []
        if (
            isinstance(value, type | ModuleType)
            or _is_of(type(value).__module__, LIBRARIES)
            or not hasattr(value, "__dict__")
        ):
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
        names, stored = names_in_code(function.__code__)
        everything = function.__globals__
        self.undo.extend(_entry(everything, name) for name in stored)
        for name in names:
            value = everything.get(name)
            if not isinstance(value, ModuleType):
                if _leads_on(value) and not isinstance(value, type):
                    yield value
            elif not _is_of(value.__name__, LIBRARIES):
                # a module of the user's: the objects in it that the function names
                yield from (vars(value)[other] for other in names if other in vars(value))
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # a variable that has no value yet
                value = cell.cell_contents
                self.undo.append(functools.partial(setattr, cell, "cell_contents", value))
                yield value
        yield from function.__defaults__ or ()


def _generator(generator: Any) -> Undo:
    """Return a function that gives a generator of random numbers its present state back."""
    if isinstance(generator, np.random.Generator):
        return functools.partial(setattr, generator.bit_generator, "state", generator.bit_generator.state)
    if isinstance(generator, random.Random):
        return functools.partial(generator.setstate, generator.getstate())
    return functools.partial(generator.set_state, generator.get_state())


def _state_of(generator: Any) -> str:
    """Return the state of a generator as text that changes when a number is drawn."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes().hex()
    if isinstance(generator, random.Random):
        return str(generator.getstate())
    newer = isinstance(generator, np.random.Generator)
    with np.printoptions(threshold=sys.maxsize):
        return str(generator.bit_generator.state if newer else generator.get_state(legacy=False))


def _leads_on(value: Any) -> bool:
    """Whether a value may refer to objects that can be changed."""
    return not isinstance(value, torch.Tensor | str | bytes | int | float | complex | None)


@functools.lru_cache(maxsize=4096)
def _is_of(name: str | None, packages: frozenset[str]) -> bool:
    """Whether a module belongs to one of some packages."""
    return (name or "builtins").split(".", 1)[0] in packages


def _members(kind: type) -> tuple[Any, ...]:
    """Return the functions and the containers that a class and the classes it is made of define; remembered."""
    if kind not in _classes:
        held = [value for base in kind.__mro__ if not _is_of(base.__module__, QUIET) for value in vars(base).values()]
        held = [value.fget if isinstance(value, property) else value for value in held]
        bare = [value.__func__ if isinstance(value, staticmethod | classmethod) else value for value in held]
        _classes[kind] = tuple(v for v in bare if isinstance(v, FunctionType) or type(v) in CONTAINERS)
    return _classes[kind]


@functools.lru_cache(maxsize=4096)
def names_in_code(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that a function and those inside it look up, and the globals they bind."""
    codes = [code]
    for outer in codes:
        codes.extend(inner for inner in outer.co_consts if isinstance(inner, CodeType))
    read = dict.fromkeys(name for each in codes for name in each.co_names)
    bound = dict.fromkeys(
        step.argval for each in codes for step in dis.get_instructions(each) if step.opname == "STORE_GLOBAL"
    )
    return tuple(read), tuple(bound)


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

    def identities(items: Iterable[Any]) -> list[Any]:
        return [(id(key), id(value)) for key, value in items] if pairs else [id(item) for item in items]

    def undo() -> None:
        if identities(container.items() if pairs else container) != identities(held):
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
    """Return a copy of a buffer or attribute of the model; refuse one that could not be put back after a run."""
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
    """Give a tensor the values of its copy, if they have changed; a backward that waits for it still finds them."""
    if not same(tensor, copied):
        if tensor.layout in SPARSE_PARTS:  # `copy_` alone wants as many stored entries as there were
            tensor.resize_as_sparse_(copied)
        kept = torch.autograd._unsafe_preserve_version_counter
        with nullcontext() if tensor.is_inference() else kept(tensor):  # those count no versions
            tensor.copy_(copied)


def write_all_back(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Give tensors the values of their copies where they have changed; those on a GPU are compared in one transfer."""
    flags: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = {}
    for tensor, copied in pairs:
        if tensor.device.type == "cpu" or tensor.layout is not torch.strided or tensor.shape != copied.shape:
            write_back(tensor, copied)
        else:
            differs = (_bits(tensor) != _bits(copied)).any()
            flags.setdefault(tensor.device, []).append((tensor, copied, differs))
    for held in flags.values():
        differing = torch.stack([differs for *_, differs in held]).nonzero().flatten().tolist()
        for tensor, copied, _ in (held[k] for k in differing):
            write_back(tensor, copied)


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
    return first.shape == second.shape and torch.equal(_bits(first), _bits(second))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


DROPPING = ("Dropout", "DropPath", "StochasticDepth")
"""Endings of the class names of modules that only drop values; torch's own Dropout classes are known by type."""
P = ParamSpec("P")
R = TypeVar("R")


def outside_inference_mode(function: Callable[P, R]) -> Callable[P, R]:
    """Let a public function work inside the caller's `torch.inference_mode()`, where autograd is switched off."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False):
            return function(*args, **kwargs)

    return wrapped


@contextmanager
def untouched(model: nn.Module, mode: str | None = None, *, traced: bool = False) -> Iterator[None]:
    """Run a block on `model` in the given mode and put everything back afterwards.

    In train mode modules that only drop (Dropout, DropPath, ...) are switched off: dropout counts as off. A block that
    only traces the model (`traced`) writes into no weight, so that weights need no copies.
    """
    if _effect_free_model.get() is model:
        yield
        return
    refuse_sharded_weights(model)
    parameters = dict(model.named_parameters())
    _refuse_inference_weights(parameters)
    flags = [(module, module.training) for module in model.modules()]
    remembered = remembered_in_block()
    reached = remembered.get(("reached", id(model))) or Reached(model)
    if not traced:
        remembered["reached", id(model)] = reached
    buffers = [
        (buffer, copy_to_restore(buffer, f"{reached.paths.get(id(module), '')}.{name}".lstrip(".")))
        for module in reached.modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    weights = ProtectedParameters(model)
    grads = [(parameter, parameter.grad, parameter.requires_grad) for parameter in parameters.values()]
    devices = sorted({p.device.index or 0 for p in parameters.values() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), random_as_found():
        try:
            if mode is not None:
                for module, _ in flags:
                    module.training = mode == "train"
            for module, _ in flags:
                if drops(module):
                    module.training = False
            with nullcontext() if traced else weights:
                yield
        finally:
            for module, training in flags:
                module.training = training
            with torch.no_grad():
                reached.restore()  # a model may have bound new tensors to its names
                weights.restore()
                write_all_back(buffers)
            for parameter, grad, trained in grads:
                parameter.requires_grad = trained
                parameter.grad = grad


def _refuse_inference_weights(parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse weights made in inference mode: autograd takes no gradient through them."""
    for name, parameter in parameters.items():
        if not is_lazy(parameter) and parameter.is_inference():
            raise InputError(
                f"the weight `{name}` was made inside of torch.inference_mode(), so torch takes no gradient through it "
                "and lets nobody write to it: make the model outside of that block, or pass copy.deepcopy(model), made "
                "outside of it"
            )


_remembered: ContextVar[dict[tuple[str, int], Any] | None] = ContextVar("normscope_remembered", default=None)


@contextmanager
def remembering_state() -> Iterator[None]:
    """Run a block in which a model changes only in runs that are undone: what is once known of it stays true."""
    token = _remembered.set({})
    try:
        yield
    finally:
        _remembered.reset(token)


def remembered_in_block() -> dict[tuple[str, int], Any]:
    """Return what is known of models, by a word for it and their `id`; an empty dict outside of `remembering_state`."""
    remembered = _remembered.get()
    return {} if remembered is None else remembered


_effect_free_model: ContextVar[nn.Module | None] = ContextVar("normscope_effect_free_model", default=None)
"""The model whose runs are known to change nothing, so that `untouched` has nothing to put back."""


@contextmanager
def assume_no_effects(model: nn.Module, mode: str | None) -> Iterator[None]:
    """Set the mode for a block, in which `untouched` does nothing: runs of the model are known to change nothing."""
    with untouched(model, mode, traced=True):
        token = _effect_free_model.set(model)
        try:
            yield
        finally:
            _effect_free_model.reset(token)


def _generators(model: nn.Module) -> list[torch.Generator]:
    """Return the generators that a model draws from unless it holds one of its own."""
    if not torch.cuda.is_initialized():
        return [torch.default_generator]
    held = {p.device for module in model.modules() for p in module._parameters.values() if p is not None}
    devices = {device.index or 0 for device in held if device.type == "cuda"}
    return [torch.default_generator, *(torch.cuda.default_generators[device] for device in sorted(devices))]


def seed_random(model: nn.Module) -> None:
    """Let the generators that `untouched` puts back start anew, so that a model draws the same numbers again."""
    random.seed(0)
    np.random.seed(0)
    for generator in _generators(model):
        generator.manual_seed(0)


def random_state(model: nn.Module) -> tuple[Any, ...]:
    """Return the state of these generators: it changes when a number is drawn."""
    _, words, place, *_ = np.random.get_state()
    states = (generator.get_state().numpy().tobytes() for generator in _generators(model))
    return random.getstate(), np.asarray(words).tobytes(), place, *states


def generator_states(model: nn.Module) -> dict[str, Any]:
    """Return the states of all generators that a model can draw from, as far as they are reached, by whose they are."""
    python, words, place, *torch_states = random_state(model)
    own = [_state_of(generator) for generator in Reached(model).generators]
    return {"torch": torch_states, "Python's `random`": python, "NumPy": (words, place), "a generator of its own": own}


@contextmanager
def random_as_found() -> Iterator[None]:
    """Run a block and put the generators of Python and NumPy back: importing rich, for one, draws a number."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


class ProtectedParameters(TorchDispatchMode):
    """Protects the parameters of a model: each is copied before the first operator that writes into its memory."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        parameters = []
        for name, parameter in model.named_parameters():
            if parameter.is_nested or parameter.layout is not torch.strided:
                layout = "nested" if parameter.is_nested else parameter.layout
                raise InputError(
                    f"the parameter `{name}` is not a dense tensor ({layout}), and figures of weights need one: store "
                    "it dense, or keep it in a buffer"
                )
            if not is_lazy(parameter) and type(parameter.data) is Tensor:
                parameters.append(parameter)
        self._bound = [(parameter, parameter.data) for parameter in parameters]
        self._unwritten: dict[int, list[Tensor]] = {}
        for _, data in self._bound:
            self._unwritten.setdefault(data.untyped_storage().data_ptr(), []).append(data)
        self._copies: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler, which takes a second, at the first operator."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, after copying the parameters that it writes into."""
        kwargs = kwargs or {}
        for tensor in written_tensors(func, args, kwargs) if func._schema.is_mutable else ():
            for part in [tensor] if tensor.layout is torch.strided else plain_parts(tensor):
                for data in self._unwritten.pop(part.untyped_storage().data_ptr(), ()):
                    self._copies.append((data, data.clone()))
        return func(*args, **kwargs)

    def restore(self) -> None:
        """Put back the parameters that were written into or replaced."""
        for data, copied in self._copies:
            data.copy_(copied)
        for parameter, data in self._bound:
            if parameter.data_ptr() != data.data_ptr() or parameter.shape != data.shape:
                parameter.data = data


def written_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that an operator writes into, as its schema says."""
    leaves: list[Any] = []
    for index, name in _written_arguments(func):
        value = args[index] if index < len(args) else kwargs.get(name)
        leaves += [value] if isinstance(value, Tensor) else tree_leaves(value)
    # the memory of a DTensor is that of its local part
    parts = (getattr(value, "_local_tensor", value) for value in leaves)
    return [part for part in parts if isinstance(part, Tensor)]


@functools.cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Return the places and names of the arguments that an operator writes into."""
    arguments = enumerate(func._schema.arguments)
    return tuple((k, a.name) for k, a in arguments if a.alias_info is not None and a.alias_info.is_write)


@contextmanager
def unobserved() -> Iterator[None]:
    """Run arithmetic of ours past the modes that observe the model: they would slow each small operator down."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


@contextmanager
def on_copies(model: nn.Module) -> Iterator[None]:
    """Run a block on copies of the buffers: writes into them can be differentiated, and are lost afterwards."""
    held = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    with unobserved():
        copies = {id(buffer): buffer.detach().clone() for _, _, buffer in held if buffer is not None}
    try:
        for module, name, buffer in held:
            if buffer is not None:
                module._buffers[name] = copies[id(buffer)]
        yield
    finally:
        for module, name, buffer in held:
            module._buffers[name] = buffer


@contextmanager
def in_float64(model: nn.Module) -> Iterator[None]:
    """Run a block with the weights, buffers and other tensors of each module in float64, and put the tensors back.

    The model's own tensors are replaced and not written to: hooks of autograd hang on them.
    """
    wide: dict[int, Tensor] = {}
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    listed = [(module, module._flat_weights) for module in model.modules() if isinstance(module, nn.RNNBase)]

    def widen(value: Any) -> Any:
        """Return a tensor in float64; tensors with several names stay one."""
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        if id(value) not in wide:
            copied = value.detach().to(torch.promote_types(value.dtype, torch.float64))
            wide[id(value)] = nn.Parameter(copied, False) if isinstance(value, nn.Parameter) else copied
        return wide[id(value)]

    try:
        for module in model.modules():
            for table in (module._parameters, module._buffers, vars(module)):
                for name, value in list(table.items()):
                    if (widened := widen(value)) is not value:
                        replaced.append((table, name, value))
                        table[name] = widened
        for module, weights in listed:
            module._flat_weights = [widen(weight) for weight in weights]
        yield
    finally:
        for table, name, value in reversed(replaced):
            table[name] = value
        for module, weights in listed:
            module._flat_weights = weights


@contextmanager
def with_tensors(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Run a block with other parameters and buffers, given by name; where modules share one, all get the same other.

    `torch.func.functional_call` is not used: a module that stands in several places of the model keeps the other
    values after it, as it puts back once per place what it found there, at the second place the other value already.
    """
    held = [
        (table, name, tensor, f"{path}.{name}".lstrip("."))
        for path, module in (model.named_modules() if values else ())
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
    ]
    others = {id(tensor): values[name] for *_, tensor, name in held if name in values}
    places = [(table, name, tensor) for table, name, tensor, _ in held if id(tensor) in others]
    try:
        for table, name, tensor in places:
            table[name] = others[id(tensor)]
        yield
    finally:
        for table, name, tensor in places:
            table[name] = tensor


def drops(module: nn.Module) -> bool:
    """Whether a module is known to do nothing but drop values at random in train mode."""
    return isinstance(module, nn.modules.dropout._DropoutNd) or type(module).__name__.endswith(DROPPING)


Mode = Literal["train", "eval"]
"""The two functions that a model may be."""


def check_is_module(model: Any) -> None:
    """Refuse anything that is not a model, such as the class of one."""
    if isinstance(model, type):
        raise InputError(f"model is the class {model.__name__}, not a torch.nn.Module: pass an object of it")
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}, not a torch.nn.Module: pass the model itself")


def mode_of(model: nn.Module, mode: str | None) -> Mode:
    """Return the mode asked for, or the one the model is in; refuse anything that is not a model or a mode."""
    check_is_module(model)
    if mode not in (None, "train", "eval"):
        raise InputError(f'mode is "train", "eval" or None, not {mode!r}')
    return "train" if (model.training if mode is None else mode == "train") else "eval"


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile, DataParallel or DistributedDataParallel."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


DROPOUTS = ("dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "alpha_dropout_",
            "feature_alpha_dropout", "feature_alpha_dropout_", "feature_dropout", "feature_dropout_")  # fmt: skip
"""Functions of torch that drop values at random, and return their first argument where they drop nothing."""
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
DROPOUT_POSITIONS = {"multi_head_attention_forward": 10, "scaled_dot_product_attention": 4}
"""The position of the argument `dropout_p` in attention functions."""
APPLY_DROPOUT = frozenset({*DROPOUTS, "native_dropout", *RECURRENT, *DROPOUT_POSITIONS})
"""All functions of torch that can drop values."""
PROBABILITIES = re.compile(r"(\w*_)?(p_?)?drop(out)?(_?path)?(_?(p|prob|rate|ratio))?")
"""Attribute names of dropout probabilities: `dropout`, `attn_pdrop`, `drop_path_rate`, `hidden_dropout_prob`, ..."""


class FunctionalDropoutOff(TorchFunctionMode):
    """Runs functions that apply dropout as if it were off."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function with a dropout probability of 0."""
        name = getattr(func, "__name__", "").split(".")[0]  # operators are called dropout.default
        return without_dropout(func, name, args, kwargs or {})


def without_dropout(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a torch function, or return what it returns where nothing is dropped."""
    if name not in APPLY_DROPOUT:
        return func(*args, **kwargs)
    if name in DROPOUTS:
        return args[0] if args else kwargs["input"]
    if name == "native_dropout":  # it returns its mask as well
        values = args[0] if args else kwargs["input"]
        return values, torch.ones_like(values, dtype=torch.bool)
    if name in RECURRENT:  # the dropout probability is the only float among the arguments of every overload
        args = tuple(0.0 if isinstance(value, float) else value for value in args)
        kwargs = {key: 0.0 if key == "dropout" else value for key, value in kwargs.items()}
    elif (position := DROPOUT_POSITIONS.get(name)) is not None:
        args = (*args[:position], *((0.0,) if len(args) > position else ()), *args[position + 1 :])
        kwargs = kwargs if len(args) > position else {**kwargs, "dropout_p": 0.0}
    return func(*args, **kwargs)


@contextmanager
def dropping_nothing(model: nn.Module) -> Iterator[None]:
    """Run a block with dropout off: in torch's functions, and where a module holds a probability (`drop_prob`, ...).

    Other random functions still draw random numbers.
    """
    held = [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if (PROBABILITIES.fullmatch(name) or (name == "p" and drops(module)))
        and isinstance(value, float)
        and 0 <= value <= 1
    ]
    try:
        for module, name, _ in held:
            setattr(module, name, 0.0)
        with FunctionalDropoutOff():
            yield
    finally:
        for module, name, value in held:
            setattr(module, name, value)
