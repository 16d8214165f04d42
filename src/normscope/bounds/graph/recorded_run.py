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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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

from ...calls.call import Call, map_leaves, select
from ...core.budget import count
from ...core.untouched import plain_parts, untouched, written_tensors
from .translate import BY_SHAPE, users_line

aten = torch.ops.aten

TAGS_SHOWING_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""Tags of operators that show values to Python: as numbers, or by the shape of their result."""
METHODS_SHOWING_VALUES = {
    "numpy", "tolist", "data_ptr", "storage", "untyped_storage", "__array__", "__dlpack__", "__repr__", "__reduce_ex__",
}  # fmt: skip
"""Methods of tensors that show values to Python without an operator."""
UNINITIALISED = {
    aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default,
    aten.new_empty_strided.default,
}  # fmt: skip
"""Operators whose values are whatever lies in memory."""
SHAPE_ONLY = BY_SHAPE - {aten.fill.Scalar, aten.fill.Tensor, aten.copy.default} | UNINITIALISED
"""Operators that read only the shape of their operand."""
LITERALS = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))
"""Types of arguments that are compared by their values; of other arguments the type alone is compared."""


class Recorder(TorchDispatchMode):
    """Labels each value that the operators of a run make, in the way that the docstring of this file describes.

    Attributes:
        operators: the label of each operator that reads an input or a value made of one, with its name, in order.
        reads: for each value that was read and depends on an input, its label and the user's line.
        failure: the first error that an operator could not be labelled for.
    """

    def __init__(self, model: nn.Module, from_embeddings: bool) -> None:
        super().__init__()
        self.operators: dict[str, str] = {}
        self.reads: list[tuple[str, str]] = []
        self.failure: Exception | None = None
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
            return f"{self._labels[memory]}{form}{_describe_layout(tensor)}"
        if memory in self._parameters:
            return f"parameter {memory}{form}{_describe_layout(tensor)}"
        return f"{_hash_entries(tensor)}{form}"

    def note_read(self, tensors: Iterable[Tensor]) -> None:
        """Note that Python, or an operator, reads the values of some tensors, if one of them depends on an input."""
        labels = [self.label(tensor) for tensor in tensors if self.varies(tensor)]
        if labels:
            frames = reversed(list(traceback.walk_stack(sys._getframe())))
            line = users_line((frame.f_code.co_filename, line) for frame, line in frames)
            self.reads += [(label, line) for label in labels]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and label what it makes."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            with self._keep_failure():
                label_results = self._label_call(func, args, kwargs)
            made = func(*args, **kwargs)
            with self._keep_failure():
                label_results(made)
        return made

    @contextmanager
    def _keep_failure(self) -> Iterator[None]:
        """Keep an error: the model may catch it, and go on as if an operator had raised it."""
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error
            raise

    def _label_call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Callable[[Any], None]:
        """Label an operator with its arguments before it runs; return what labels its results."""
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(tag in TAGS_SHOWING_VALUES for tag in func.tags):
            if func in (
                aten.index.Tensor,
                aten.masked_select.default,
            ):  # of a mask alone the shape of the result depends
                operands_read = [mask for mask in operands[1:] if mask.dtype in (torch.bool, torch.uint8)]
            else:
                operands_read = operands
            self.note_read(operands_read)
        varying = func not in SHAPE_ONLY and any(map(self.varies, operands))
        varying = varying or (self._from_embeddings and func is aten.embedding.default)
        written = written_tensors(func, args, kwargs)
        labelled = self._labels.keys() | self._parameters
        if not varying and func not in UNINITIALISED and labelled.isdisjoint(map(_memory, written)):
            return lambda made: None
        read = None if func in UNINITIALISED else tree_map(self._label_argument, (args, sorted(kwargs.items())))
        label = _hash_text(f"{func}{read!r}")
        memories = {_memory(operand) for operand in operands}
        if varying:
            self.operators.setdefault(label, str(func))

        def label_results(made: Any) -> None:
            for tensor in written:
                old = self._labels.get(_memory(tensor))
                self._set(tensor, _hash_text(f"{old}{label}{_describe_layout(tensor)}"), varying)
            for number, tensor in enumerate(tree_leaves(made)):
                if isinstance(tensor, Tensor) and _memory(tensor) not in memories:  # else it is written, or a view
                    self._set(tensor, f"{label}.{number}", varying)
                    if tensor.layout is not torch.strided:  # how many entries it holds depends on the values
                        self.note_read([tensor])

        return label_results

    def _label_argument(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return self.label(leaf)
        return leaf if isinstance(leaf, LITERALS) else type(leaf)

    def _set(self, tensor: Tensor, label: str, varying: bool) -> None:
        memory = _memory(tensor)
        if memory not in self._labels:
            self._alive.append(StorageWeakRef(_dense_part(tensor).untyped_storage()))
        self._labels[memory] = label
        if varying:
            self._varying.add(memory)


class _ReadsByMethods(TorchFunctionMode):
    """Notes where Python reads the values of a tensor without an operator."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in METHODS_SHOWING_VALUES or name == "tensor_split":  # this one reads where to split
            read = args[:1] if name in METHODS_SHOWING_VALUES else (*args[1:], *kwargs.values())
            self.recorder.note_read(value for value in read if isinstance(value, Tensor))
        return func(*args, **kwargs)


def _dense_part(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout is torch.strided else plain_parts(tensor)[-1]


def _memory(tensor: Tensor) -> int:
    """Return the number of the memory in which a tensor lies."""
    return int(_dense_part(tensor).untyped_storage()._cdata)


def _describe_layout(tensor: Tensor) -> str:
    """Say which part of its memory a tensor is; the stride along a dimension of one entry says nothing."""
    if tensor.layout is not torch.strided:
        return f"{tensor.layout}"
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]
    return f"{strides}+{tensor.storage_offset()}"


def _hash_entries(tensor: Tensor) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in plain_parts(tensor.detach().resolve_conj().resolve_neg()):
        digest.update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _hash_text(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class _AnswerByCaller:
    """An answer of `torch.compiler.is_compiling()` that depends on who asks: it is true for some libraries only.

    transformers asks in order to write the same function in another way, for one without masks that change nothing.
    """

    def __init__(self, libraries: Iterable[str]) -> None:
        self.libraries = {"transformers", *libraries}

    def __bool__(self) -> bool:
        frame: Any = sys._getframe(1)
        while frame is not None and _module_name(frame).startswith(
            (__name__, "transformers.utils")
        ):  # these ask for others
            frame = frame.f_back
        return frame is not None and _module_name(frame).split(".")[0] in self.libraries

    def __or__(self, other: Any) -> Any:
        return bool(self) | other

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    __hash__ = None  # type: ignore[assignment]


def _module_name(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))


@contextmanager
def answer_as_untraced(*libraries: str) -> Iterator[None]:
    """Let torch tell a model that nobody traces it; transformers and these libraries are told that it is exported."""
    compiler: Any = torch.compiler
    flags = compiler._is_compiling_flag, compiler._is_exporting_flag
    compiler._is_compiling_flag = compiler._is_exporting_flag = _AnswerByCaller(libraries)
    try:
        yield
    finally:
        compiler._is_compiling_flag, compiler._is_exporting_flag = flags


@contextmanager
def _record(recorder: Recorder) -> Iterator[None]:
    """Record what the block runs, with the choices of kernels that torch makes in a trace too."""
    mha, cudnn = torch.backends.mha, torch.backends.cudnn
    found_fastpath, found_cudnn = mha.get_fastpath_enabled(), cudnn.enabled
    mha.set_fastpath_enabled(False)
    cudnn.enabled = False
    try:
        with torch.no_grad(), answer_as_untraced(), recorder, _ReadsByMethods(recorder):
            yield
    finally:
        mha.set_fastpath_enabled(found_fastpath)
        cudnn.enabled = found_cudnn


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """What one run computes.

    Attributes:
        output: the label of the measured output: two runs with the same label compute the same function.
        operators: the names of the operators that read an input, or a value made of one, by their labels, in order.
        reads: for each value that was read and depends on an input, its label and the user's line.
    """

    output: str
    operators: dict[str, str]
    reads: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, recorder: Recorder, output: Tensor) -> RecordedRun:
        """Return what a recorder has seen of a run with this output."""
        if recorder.failure is not None:
            raise recorder.failure
        return cls(output=recorder.label(output), operators=recorder.operators, reads=tuple(recorder.reads))

    def find_read_value(self, trace: RecordedRun) -> str | None:
        """Return the user's line where Python reads a value that depends on an input; None if it reads none.

        What operators of the trace read themselves, to check it, does not reach Python.
        """
        read_in_trace = Counter(label for label, _ in trace.reads)
        for label, line in self.reads:
            read_in_trace[label] -= 1
            if read_in_trace[label] < 0:
                return line
        return None


class _Replay(torch.fx.Interpreter):
    """Runs a trace. Reads count of those operators alone that make one dense tensor of a fixed shape.

    The shape of any other result shows values, and the graph of the trace has that shape fixed: such a read of the
    ordinary run must stay unexplained.
    """

    def __init__(self, program: ExportedProgram, recorder: Recorder) -> None:
        super().__init__(program.graph_module)
        self.recorder = recorder

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one operator."""
        before = len(self.recorder.reads)
        made = super().run_node(n)
        value: Any = n.meta.get("val")
        dense = isinstance(value, Tensor) and value.layout is torch.strided
        if not dense or not all(type(size) is int for size in value.shape):
            del self.recorder.reads[before:]
        return made


def record_run(model: nn.Module, call: Call) -> RecordedRun:
    """Run the model once on copies of its inputs, and record what it computes."""
    count("passes", call.count)
    recorder = Recorder(model, not call.variables)
    copies = _copies(call, recorder)
    args, kwargs = map_leaves(lambda leaf: copies.get(id(leaf), leaf), (call.args, call.kwargs))
    with untouched(model), _record(recorder):
        output = select(model(*args, **kwargs), call.output)
    return RecordedRun.of(recorder, output)


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
    with untouched(model), _record(recorder):
        output = _Replay(program, recorder).run(*values)[place]
    return RecordedRun.of(recorder, output)


def _copies(call: Call, recorder: Recorder) -> dict[int, Tensor]:
    """Return copies of the tensors of a call, by the `id` of each; those that vary are inputs of the recorder."""
    copies = {id(leaf): leaf.clone() for leaf in call.leaves if isinstance(leaf, Tensor)}
    for number, (_, variable) in enumerate(call.variables):
        recorder.add_input(copies[id(variable)], number)
    return copies
