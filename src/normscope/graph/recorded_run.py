"""Tell from the operators of one ordinary run whether a trace is what the model computes.

A model can know that it is traced: it asks `torch.compiler.is_compiling()`, looks at the class of a tensor, or catches
the error for a value that a traced tensor does not have. If it then computes something else, a graph of the trace is
not the model, and the values at one batch need not show it. So the operators of an ordinary run are recorded below
everything that a model can ask, and those of the trace, run on the same input, in the same way.

Each value gets a label: a hash of the operator that made it, of its arguments, and of the labels of the values that it
read. What was computed without the inputs is labelled by its entries. Two runs whose outputs have the same label make
them by the same operators, whatever the input: as long as Python reads no value that depends on an input. A run that
reads one is refused.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ..core.budget import count
from ..core.untouched import plain_parts, untouched, written_tensors
from .call import Call, map_leaves, select
from .translate import BY_SHAPE, users_line

aten = torch.ops.aten

SHOWN = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""Tags of operators that hand values to Python, as numbers or as the shape of their result."""
METHODS = {
    "numpy", "tolist", "data_ptr", "storage", "untyped_storage", "__array__", "__dlpack__", "__repr__", "__reduce_ex__",
}  # fmt: skip
"""Methods of tensors that hand values to Python without an operator."""
UNINITIALISED = {
    aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default,
    aten.new_empty_strided.default,
}  # fmt: skip
"""Operators whose values are whatever lies in memory."""
SHAPE_ONLY = BY_SHAPE - {aten.fill.Scalar, aten.fill.Tensor, aten.copy.default} | UNINITIALISED
"""Operators that read only the shape of their operand."""
PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))
"""Arguments that are told apart by their values."""


class Recorder(TorchDispatchMode):
    """Labels what the operators of a run make, as the text of the module says.

    Attributes:
        operators: the label of each operator that reads an input or a value made of one, with its name, in order.
        value_read: the user's line where Python first read a value that depends on an input; None if it read none.
    """

    def __init__(self, model: nn.Module, from_embeddings: bool) -> None:
        super().__init__()
        self.operators: dict[str, str] = {}
        self.value_read: str | None = None
        self._from_embeddings = from_embeddings
        parameters = [p for p in model.parameters() if p.layout is torch.strided and not p.is_nested]
        self._parameters = {parameter.untyped_storage()._cdata for parameter in parameters}
        self._labels: dict[int, str] = {}  # by the memory of a value
        self._varying: set[int] = set()
        self._alive: list[StorageWeakRef] = []  # no other memory gets the number of these

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler, which takes a second, at the first operator."""
        return False

    def add_input(self, tensor: Tensor, number: int) -> None:
        """Take a tensor for an input of the run."""
        self._set(tensor, f"input {number}", True)

    def varies(self, tensor: Tensor) -> bool:
        """Whether a tensor depends on an input."""
        return _memory(tensor) in self._varying

    def label(self, tensor: Tensor) -> str:
        """Return the label of a value: that of its memory, and which part of it the value is."""
        memory = _memory(tensor)
        form = f"{tensor.dtype}{tuple(tensor.shape)}"
        if memory in self._labels:
            return f"{self._labels[memory]}{form}{_places(tensor)}"
        if memory in self._parameters:
            return f"parameter {memory}{form}{_places(tensor)}"
        return f"{_content(tensor)}{form}"

    def note_read(self) -> None:
        """Note that Python reads a value that depends on an input."""
        if self.value_read is None:
            frames = reversed(list(traceback.walk_stack(None)))
            self.value_read = users_line((frame.f_code.co_filename, line) for frame, line in frames)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and label what it makes."""
        with torch._C.DisableTorchFunction():
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        reads_input = func not in SHAPE_ONLY and any(map(self.varies, operands))
        if reads_input and self._shows_values(func, operands):
            self.note_read()
        varying = reads_input or (self._from_embeddings and func is aten.embedding.default)
        written = written_tensors(func, args, kwargs)
        labelled = self._labels.keys() | self._parameters
        if not varying and func not in UNINITIALISED and labelled.isdisjoint(map(_memory, written)):
            return func(*args, **kwargs)
        read = None if func in UNINITIALISED else tree_map(self._argument, (args, sorted(kwargs.items())))
        label = _digest(f"{func}{read!r}")
        memories = {_memory(operand) for operand in operands}
        made = func(*args, **kwargs)
        if varying:
            self.operators.setdefault(label, str(func))
        for tensor in written:
            old = self._labels.get(_memory(tensor))
            self._set(tensor, _digest(f"{old}{label}{_places(tensor)}"), varying)
        for number, tensor in enumerate(tree_leaves(made)):
            if isinstance(tensor, Tensor) and _memory(tensor) not in memories:  # else it is written, or a view
                self._set(tensor, f"{label}.{number}", varying)
        return made

    def _shows_values(self, func: Any, operands: list[Tensor]) -> bool:
        """Whether an operator hands values of an input to Python."""
        if func in (aten.index.Tensor, aten.masked_select.default):  # the mask tells the shape of the result
            operands = [operand for operand in operands[1:] if operand.dtype in (torch.bool, torch.uint8)]
        return any(tag in SHOWN for tag in func.tags) and any(map(self.varies, operands))

    def _argument(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return self.label(leaf)
        return leaf if isinstance(leaf, PLAIN) else type(leaf)

    def _set(self, tensor: Tensor, label: str, varying: bool) -> None:
        memory = _memory(tensor)
        if memory not in self._labels:
            self._alive.append(StorageWeakRef(_dense(tensor).untyped_storage()))
        self._labels[memory] = label
        if varying:
            self._varying.add(memory)


class _Methods(TorchFunctionMode):
    """Notes where Python reads the values of a tensor without an operator."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        if getattr(func, "__name__", "") in METHODS and isinstance(args[0], Tensor) and self.recorder.varies(args[0]):
            self.recorder.note_read()
        return func(*args, **(kwargs or {}))


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout is torch.strided else plain_parts(tensor)[-1]


def _memory(tensor: Tensor) -> int:
    """Return the number of the memory in which a tensor lies."""
    return int(_dense(tensor).untyped_storage()._cdata)


def _places(tensor: Tensor) -> str:
    """Say which part of its memory a tensor is."""
    return f"{tensor.stride()}+{tensor.storage_offset()}" if tensor.layout is torch.strided else f"{tensor.layout}"


def _content(tensor: Tensor) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in plain_parts(tensor.detach().resolve_conj().resolve_neg()):
        digest.update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class _Answer:
    """What `torch.compiler.is_compiling()` returns while it depends on who asks: true for some libraries only.

    transformers asks in order to write the same function in another way, for one without masks that change nothing.
    """

    def __init__(self, libraries: Iterable[str]) -> None:
        self.libraries = {"transformers", *libraries}

    def __bool__(self) -> bool:
        frame: Any = sys._getframe(1)
        while frame is not None and _module(frame).startswith((__name__, "transformers.utils")):  # these ask for others
            frame = frame.f_back
        return frame is not None and _module(frame).split(".")[0] in self.libraries

    def __or__(self, other: Any) -> Any:
        return bool(self) | other

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    __hash__ = None  # type: ignore[assignment]


def _module(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))


@contextmanager
def answering(*libraries: str) -> Iterator[None]:
    """Let torch tell transformers and these libraries that the model is exported, and all others that it is not."""
    compiler: Any = torch.compiler
    held = compiler._is_compiling_flag, compiler._is_exporting_flag
    compiler._is_compiling_flag = compiler._is_exporting_flag = _Answer(libraries)
    try:
        yield
    finally:
        compiler._is_compiling_flag, compiler._is_exporting_flag = held


@contextmanager
def _recording(recorder: Recorder) -> Iterator[None]:
    """Record what the block runs, with the kernels that a trace asks for too."""
    mha = torch.backends.mha
    fast = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        with torch.backends.cudnn.flags(enabled=False), answering(), recorder, _Methods(recorder):
            yield
    finally:
        mha.set_fastpath_enabled(fast)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """What one run computes.

    Attributes:
        output: the label of the measured output: two runs with the same label compute the same function.
        operators: the names of the operators that read an input, or a value made of one, by their labels, in order.
        value_read: the user's line where Python reads a value that depends on an input; None if it reads none.
    """

    output: str
    operators: dict[str, str]
    value_read: str | None


def record_run(model: nn.Module, call: Call) -> RecordedRun:
    """Run the model once on copies of its inputs, and record what it computes."""
    count("passes", call.count)
    recorder = Recorder(model, not call.variables)
    copies = _copies(call, recorder)
    args, kwargs = map_leaves(lambda leaf: copies.get(id(leaf), leaf), (call.args, call.kwargs))
    with untouched(model), _recording(recorder):
        output = select(model(*args, **kwargs), call.output)
    return RecordedRun(output=recorder.label(output), operators=recorder.operators, value_read=recorder.value_read)


def record_trace(model: nn.Module, program: ExportedProgram, call: Call) -> RecordedRun:
    """Run a trace once on the same inputs, and record what it computes."""
    recorder = Recorder(model, not call.variables)
    copies = _copies(call, recorder)
    leaves = iter(call.leaves)
    values = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            leaf = next(leaves)
            values.append(copies.get(id(leaf), leaf))
        else:
            values.append(program.state_dict.get(str(spec.target), program.constants.get(str(spec.target))))
    place = [spec.kind for spec in program.graph_signature.output_specs].index(OutputKind.USER_OUTPUT)
    with untouched(model), _recording(recorder):
        output = torch.fx.Interpreter(program.graph_module).run(*values)[place]
    return RecordedRun(output=recorder.label(output), operators=recorder.operators, value_read=None)


def _copies(call: Call, recorder: Recorder) -> dict[int, Tensor]:
    """Return copies of the tensors of a call, by the `id` of each; those that vary are inputs of the recorder."""
    copies = {id(leaf): leaf.clone() for leaf in call.leaves if isinstance(leaf, Tensor)}
    for number, (_, variable) in enumerate(call.variables):
        recorder.add_input(copies[id(variable)], number)
    return copies
