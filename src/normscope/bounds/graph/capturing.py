"""`capture`: turn a model and a batch into a `Graph`, through torch.export or, for chains of known layers, without it.

Only this file and its neighbours in the room `bounds/graph/` use torch.export.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from ...calls.agreement import agree
from ...calls.call import Call, Caller, UntracedError, drawn, prepare, quantized, run, settle
from ...calls.data_reader import Batches
from ...calls.stand_ins import REUSABLE, CaptureSource, accepts_graph
from ...core.budget import Budget
from ...core.errors import CaptureError, InputError, NormscopeError, RandomOperatorError, describe_error
from ...core.threads import full_precision, ignore_warnings, silence_loggers
from ...core.untouched import (
    FunctionalDropoutOff,
    Mode,
    assume_no_effects,
    drops,
    in_float64,
    mode_of,
    outside_inference_mode,
    plain_parts,
    untouched,
    unwrapped,
)
from .chains import changes_nothing, trace_chain
from .ir import Graph, same_constants
from .recorded_run import answer_as_untraced, record_run, record_trace
from .samples import joined, what_changes
from .traced_program import (
    ChainProgram,
    TracedProgram,
    changed,
    is_plain,
    part_twins,
    read_state,
    with_momentum,
    write_out_of_place,
    writes_nothing,
)
from .translate import DROPPED, ancestors, draws_in, output_of, translate, why_by_value, why_untraced
from .units import recognise

DROPOUT = "dropout counts as off"
P = ParamSpec("P")
R = TypeVar("R")
EXPORT_LOCK = threading.RLock()
LOGGERS = (
    "torch.__trace",
    "torch._export.serde.serialize",
    "torch._library.fake_class_registry",
    "torch._subclasses.fake_tensor",
    "torch.export",
    "torch.export._trace",
    "torch.export.unflatten",
    "torch.fx.experimental.sym_node",
    "torch.fx.experimental.symbolic_shapes",
)
"""The loggers of torch that speak while it traces or loads a model; an error says here what matters of it."""


def one_thread_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function that traces a model wait while another thread does so.

    torch.export keeps parts of its state for the whole process: two traces at once break each other, and a model that
    runs beside a trace reads that it is being exported, and may do something else.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with EXPORT_LOCK:
            return function(*args, **kwargs)

    return wrapped


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An exported model as a module.

    Attributes:
        model: the module, with the paths of the model it was exported from, in the mode it was exported in.
        batch_size: the only batch size it takes; `None` if it takes any.
        notes: what the reader must know.
    """

    model: nn.Module
    batch_size: int | None
    notes: tuple[str, ...]


@one_thread_at_a_time
def load_program(path: Path) -> Program:
    """Load a `.pt2` file. This can run code that the file holds.

    The file holds the graph of one mode: the attribute `training` of the module tells which, and dropout is off.
    """
    if not os.path.isfile(path):
        raise InputError(f"no file {path}")
    try:
        with quiet():
            program = torch.export.load(path)
            dropped = _without_dropout(program)
            training = dropped or any(
                node.args[5] is True for node in program.graph.nodes if str(node.target).startswith("aten.batch_norm")
            )
            model = torch.export.unflatten(program)
            _name_classes(model, program)
    except Exception as error:
        raise InputError(f"{path} is no exported program that this torch can load ({describe_error(error)})") from error
    for module in model.modules():  # exported modules refuse .train() and .eval()
        module.training = training
    return Program(model=model, batch_size=_fixed_batch_size(program), notes=(DROPOUT,) if dropped else ())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what torch logs and warns of in this thread while it traces or loads a model."""
    with ignore_warnings(), silence_loggers(*LOGGERS):
        yield


def _name_classes(model: nn.Module, program: torch.export.ExportedProgram) -> None:
    """Give every submodule the class name that it was exported from; reports show it."""
    kinds: dict[str, str] = {}
    for node in program.graph.nodes:
        for path, kind in node.meta.get("nn_module_stack", {}).values():
            kinds[path] = (kind if isinstance(kind, str) else kind.__name__).rsplit(".", 1)[-1]
    for path, module in model.named_modules():
        kind = kinds.get(path.split("@")[0])  # later calls of a module are copies with the paths path@1 and so on
        if path and kind is not None and kind.isidentifier():
            module.__class__ = type(kind, (type(module),), {"__module__": type(module).__module__})


def _without_dropout(program: torch.export.ExportedProgram) -> bool:
    """Switch dropout off in the graph; say whether any was on."""
    dropped = False
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.dropout.default and node.args[2] is True:
            node.update_arg(2, False)
            dropped = True
    return dropped


def _fixed_batch_size(program: torch.export.ExportedProgram) -> int | None:
    wanted = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name in wanted and isinstance(value, Tensor) and value.ndim:
            return value.shape[0] if isinstance(value.shape[0], int) else None
    return None


STILL_WORKS = 'Figures at the data still work: normscope.lipschitz(model, batch, scope="point").'
NO_TIME = "max_seconds leaves no time to trace the model: raise max_seconds"
PASSES = 32
"""How many passes it takes to capture a model, besides two for every sample of the batch."""
OPERATORS = 16
"""To trace this many operators takes as long as to capture a network of two layers."""
REWRITTEN = 4.0
"""A trace that torch must rewrite takes this many times as long as one that can be read as it is."""


def _reused(model: nn.Module, batch: Any, forced: str | None, output: str | int | None) -> Graph | None:
    """Return the graph that was passed in the model's place, if it is that of this batch; else None."""
    graph = REUSABLE.get()
    if (
        not isinstance(graph, Graph)
        or graph.source is None
        or (graph.mode, graph.source.output) != (mode_of(model, forced), output)
    ):
        return None
    source = graph.source
    own, others = (tree_flatten(one) for one in (source.batch, batch))
    alike = own[1] == others[1] and all(map(_same, own[0], others[0]))
    if not alike or unwrapped(source.model) is not unwrapped(model):
        return None
    return graph if digest_of(model, batch, forced, output) == source.digest else None


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other) and bool(one == other)
    return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)


@one_thread_at_a_time
@full_precision()
def digest_of(model: nn.Module, batch: Any, forced: str | None, output: str | int | None) -> str:
    """Return a digest of all weights of a model and of all that one run computes: any change of either shows.

    What a run computes also depends on Python: attributes, hooks, methods that were replaced.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        for part in plain_parts(tensor.detach()):
            digest.update(f"{name} {part.dtype} {tuple(part.shape)}".encode())
            digest.update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    with untouched(model, forced):
        recorded = record_run(model, prepare(model, batch, output))
    digest.update(f"{recorded.output} {recorded.reads}".encode())
    return digest.hexdigest()


@accepts_graph
@outside_inference_mode
def capture(
    model: nn.Module, data: Any = None, *, labels: Any = None, mode: Mode | None = None, output: str | int | None = None
) -> Graph:
    """Turn a model into a small immutable graph of operators.

    In eval mode the graph is the map of one sample whenever the model treats samples one by one and all in the same
    way: no entry of the whole batch's graph depends on two samples, no constant differs from sample to sample, and a
    sample gives the same alone and at another place of the batch. Otherwise, and in train mode, it is the map of the
    whole batch. Models that take token ids start at the embeddings. A model that changes its own state is measured
    with the state as found. The model is left exactly as found.

    Args:
        model: any `torch.nn.Module` that `torch.export` can trace.
        data: a batch (a tensor, a NumPy array, a tuple of arguments, a dict of them), an iterable of batches such as a
            `DataLoader`, or a data set. The first batch is
            measured. A dict holds keyword arguments, or is itself the one argument if its keys are not the names of
            `forward`'s arguments.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        output: which output to follow, for models with several (`"logits"`, `"last_hidden_state"`, an index).

    Returns:
        The graph; every node knows its operator, parameters, shapes, module path and source line.

    Raises:
        InputError: the model does not accept the batch, or has several outputs and none was chosen.
        CaptureError: torch.export cannot trace the model, or what it traced is not what the model computes; the
            message says why.

    Example:
        >>> import torch, normscope as ns
        >>> graph = ns.capture(torch.nn.Linear(3, 2), torch.zeros(1, 3))
        >>> [str(node.op) for node in graph]
        ['aten.linear.default']
    """
    batches = Batches(model, data, labels=labels)
    batch = batches.first
    graph = batches.noted(trace_model(model, batch, mode=mode, output=output))
    digest = digest_of(model, batch, mode, output)
    source = CaptureSource(model=model, batch=batch, mode=mode, output=output, digest=digest)
    return dataclasses.replace(graph, source=source)


@outside_inference_mode
@one_thread_at_a_time
@full_precision()
def trace_model(
    model: nn.Module,
    batch: Any,
    *,
    mode: str | None = None,
    output: str | int | None = None,
    budget: Budget | None = None,
) -> Graph:
    """Turn a model and one batch into a graph, unless the budget leaves no time for the longer of its two traces."""
    forced, mode = mode, mode_of(model, mode)
    reused = _reused(model, batch, forced, output)
    if reused is not None:
        return reused
    with assume_no_effects(model, forced) if changes_nothing(model, forced) else contextlib.nullcontext():
        return _trace(model, batch, forced, mode, output, budget)


def _trace(
    model: nn.Module, batch: Any, forced: str | None, mode: str, output: str | int | None, budget: Budget | None
) -> Graph:
    """Turn a model and one batch into a graph: the map of one sample, where samples do not meet."""
    with untouched(model, forced):
        call = settle(model, prepare(model, batch, output), mode)
    batched: tuple[Graph, ...] = ()
    program = None
    if call.per_sample and call.count > 1:
        clock, together = Budget(), dataclasses.replace(call, per_sample=False)
        program = _export(model, together, forced)
        written, whole = _read(model, together, forced, mode, program, True)
        times = 1.0 if is_plain(written) else REWRITTEN
        if budget is not None and budget.limited and not budget.time_for(times * clock.elapsed):
            raise CaptureError(NO_TIME)
        why = what_joins(written, call, mode, whole)
        if why is None:
            alone = _export(model, call, forced)
            why = what_changes(whole, _read(model, call, forced, mode, alone, True)[1], call.count)
            program = alone if why is None else program
        notes = call.notes if why is None else (*call.notes, f"{why}: the whole batch is measured as one input")
        call, batched = dataclasses.replace(call, per_sample=why is None, notes=notes), (whole,)
    recognised, graph = _captured(model, call, forced, mode, program)
    return dataclasses.replace(recognised, batched=(*batched, graph) if call.per_sample else ())


@outside_inference_mode
@one_thread_at_a_time
@full_precision()
def capture_batch(model: nn.Module, batch: Any, *, mode: str | None = None, output: str | int | None = None) -> Graph:
    """Turn a model into the graph of the whole batch as one input, in either mode; in all else like `capture`."""
    forced, mode = mode, mode_of(model, mode)
    with untouched(model, forced):
        call = settle(model, prepare(model, batch, output), mode)
    return _captured(model, dataclasses.replace(call, per_sample=False), forced, mode)[0]


@outside_inference_mode
@full_precision()
def capture_weights(model: nn.Module, batch: Any, *, output: str | int | None = None) -> Graph:
    """Turn a model in eval mode into the graph of one sample, operator by operator, as a function of its parameters.

    The inputs of the graph are the float parameters, whose paths are their names, and after them the sample.
    """
    with untouched(model, "eval"):
        call = settle(model, prepare(model, batch, output), "eval")
    if not call.per_sample:
        raise CaptureError("samples of a batch meet in the model: it is no function of one sample")
    program = _rewritten(model, call, "eval", _export(model, call, "eval"), False)
    with torch.no_grad():
        graph = translate(program, call, "eval", weights=True)
    _verify(model, call, "eval", "eval", program, graph)
    return graph


@outside_inference_mode
@full_precision()
def capture_groups(
    graph: Graph,
    model: nn.Module,
    batch: Any,
    samples: int | None = None,
    *,
    mode: str | None = None,
    output: str | int | None = None,
) -> list[tuple[list[int], Graph]]:
    """Turn a captured model of single samples into one graph for all samples that share their masks and ids.

    The first `samples` of them (None for all) come by number, each group with its graph, whose `samples` are its own.
    """
    call = dataclasses.replace(prepare(model, batch, output), per_sample=True)
    rows = graph.samples
    if rows is None and graph.batched:  # the embeddings of all tokens
        rows = torch.cat([item.value.reshape(len(item.value), -1) for item in graph.batched[0].inputs], dim=1)
    kept = [[n for n in numbers if samples is None or n < samples] for numbers in call.groups(graph.constant_places)]
    groups = [numbers for numbers in kept if numbers]
    graphs = [(groups[0], graph)] if len(groups) == 1 else _regrouped(model, call, groups, mode)
    return [(n, part if rows is None else dataclasses.replace(part, samples=rows[n])) for n, part in graphs]


def _regrouped(
    model: nn.Module, call: Call, groups: Sequence[list[int]], forced: str | None
) -> list[tuple[list[int], Graph]]:
    """Return the samples by number with their graph; those whose masks make the same constants share one."""
    mode, program = mode_of(model, forced), None
    graphs: list[tuple[list[int], Graph]] = []
    plain: list[Graph] = []
    for numbers in groups:
        single = call.sample(numbers[0])
        if program is None:
            program, traced = _traced(model, single, forced, mode, False)
        else:
            with torch.no_grad():
                traced = _translated(program, single, mode)
        same = [others for (others, _), other in zip(graphs, plain, strict=True) if same_constants(other, traced)]
        if same:
            same[0].extend(numbers)
        else:
            graphs.append((list(numbers), _recognised(model, single, forced, mode, program, traced)))
            plain.append(traced)
    return graphs


class Traces:
    """Graphs of whole batches, operator by operator: one trace serves all batches of the same shapes.

    Constants of a trace (masks, token ids, values computed from them) are evaluated for each batch. The caller must
    check that the values of a graph are those of the model.

    Attributes:
        taken: how many traces were taken.
        fresh: whether the last graph came from a new trace.
    """

    def __init__(self, model: nn.Module, *, mode: str | None = None, output: str | int | None = None) -> None:
        self.model, self.forced, self.output = model, mode, output
        self.mode = mode_of(model, mode)
        self.taken, self.fresh = 0, True
        self._held: tuple[Any, TracedProgram] | None = None

    @one_thread_at_a_time
    def at(self, batch: Any) -> Graph:
        """Return the graph of one batch; the last trace is kept for the next batch."""
        with untouched(self.model, self.forced):
            call = prepare(self.model, batch, self.output)
        return self.of(call)

    def of(self, call: Call) -> Graph:
        """Return the graph of one batch, given as a call."""
        form = tuple((tuple(v.shape), v.dtype, v.device) if isinstance(v, Tensor) else v for v in call.leaves)
        self.fresh = self._held is None or self._held[0] != form
        if self._held is not None and not self.fresh:
            with torch.no_grad():
                return _translated(self._held[1], call, self.mode)
        self.taken += 1
        program, graph = _traced(self.model, call, self.forced, self.mode, True)
        self._held = form, program
        return graph

    def what_joins(self, batch: Any, graph: Graph) -> str | None:
        """Return what keeps the samples of the last batch, of which this is the graph, from being measured alone."""
        assert self._held is not None
        return what_joins(self._held[1], prepare(self.model, batch, self.output), self.mode, graph)


def what_joins(program: TracedProgram, call: Call, mode: str, graph: Graph) -> str | None:
    """Return what keeps the samples of a traced batch from being measured one by one; None if nothing does.

    The map of a sample is one of all its tensors: masks and ids must come to their own sample and be used alike.
    """
    if len(call.variables) < sum(isinstance(leaf, Tensor) for leaf in call.leaves):
        try:
            with torch.no_grad():
                graph = translate(program, dataclasses.replace(call, per_sample=False), mode, masks=True)
        except CaptureError as error:
            return str(error)
    return joined(graph, call.count)


def warm_up_export(max_seconds: float | None) -> float | None:
    """Return a time limit; where there is one, load torch.export before its clock starts.

    The first call of torch.export in a process takes seconds, whatever the model, and must not count against a limit.
    """
    if max_seconds is not None:
        _warm_up()
    return max_seconds


class _TwoLayers(nn.Module):
    """A network of two layers that torch.export must trace, as it is no chain of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Run both layers."""
        return self.second(self.first(x).relu())


@functools.cache
def _warm_up() -> float:
    """Capture a network of two layers twice, and return the seconds of the second time, when all is loaded."""
    with torch.random.fork_rng(devices=[]):
        small, batch = _TwoLayers().eval(), torch.zeros(2, 2)
    trace_model(small, batch)
    clock = Budget()
    trace_model(small, batch)
    return clock.elapsed


def expected_seconds(model: nn.Module, batch: Any, mode: str | None) -> float:
    """Estimate how many seconds `capture` takes, from the time and the operators of one pass.

    The estimate is zero where the pass fails: a later step will tell what is wrong with the model or the batch.
    """
    try:
        alone = mode_of(model, mode) == "eval"
        call = prepare(model, batch, None)
        single = call.sample() if alone and call.count > 1 else call
        clock, operators = Budget(), _Operators()
        with untouched(model, mode), operators:  # gradients are on, as in a trace: without them torch fuses layers
            run(model, single)
    except Exception:
        return 0.0
    passes = (2 * call.count if alone else 1) + PASSES
    return passes * clock.elapsed + (1.0 + operators.called / OPERATORS) * _warm_up()


class _Operators(TorchDispatchMode):
    """Counts the operators that a pass calls."""

    called = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operator and run it."""
        self.called += 1
        return func(*args, **(kwargs or {}))


def _captured(
    model: nn.Module, call: Call, forced: str | None, mode: str, program: TracedProgram | None = None
) -> tuple[Graph, Graph]:
    """Return the verified graph of a call, with units recognised and operator by operator."""
    program, graph = _read(model, call, forced, mode, program or _export(model, call, forced), False)
    return _recognised(model, call, forced, mode, program, graph), graph


def _recognised(
    model: nn.Module, call: Call, forced: str | None, mode: str, program: TracedProgram, graph: Graph
) -> Graph:
    """Return the graph of a call, verified, with units recognised."""
    _verify(model, call, forced, mode, program, graph)
    with torch.no_grad():
        recognised = recognise(graph)
    notes = [DROPPED] if graph.mode == "train" and any(drops(module) for module in model.modules()) else []
    return dataclasses.replace(recognised, notes=tuple(dict.fromkeys((*notes, *recognised.notes))))


def _traced(model: nn.Module, call: Call, forced: str | None, mode: str, plain: bool) -> tuple[TracedProgram, Graph]:
    """Export the model from the state it was found in, and read the result."""
    return _read(model, call, forced, mode, _export(model, call, forced), plain)


def _read(
    model: nn.Module, call: Call, forced: str | None, mode: str, program: TracedProgram, plain: bool
) -> tuple[TracedProgram, Graph]:
    """Read a trace: return it in the form in which it is read, and the graph."""
    program = _rewritten(model, call, forced, program, plain)
    with torch.no_grad():
        return program, _translated(program, call, mode)


def _translated(program: TracedProgram, call: Call, mode: str) -> Graph:
    """Read a trace as a graph, with the values of a call."""
    try:
        return translate(program, call, mode)
    except NormscopeError:
        raise
    except Exception as error:
        raise CaptureError(
            f"what torch.export made of this model cannot be read ({describe_error(error)}): shapes that depend on "
            "values "
            "and operators with side effects are not supported"
        ) from error


SIZES = (1e-2, 1e2)
"""Besides inputs of size 1, a graph is compared with its model at random inputs of these sizes, relative to the batch:
a model may do something else where inputs are small or large."""
NOT_THE_MODEL = (
    "what torch.export made of this model does not give the model's own output{where}: it reads or writes what "
    "torch.export cannot see (state outside its modules, memory, Python values)"
)


def _verify(model: nn.Module, call: Call, forced: str | None, mode: str, program: TracedProgram, graph: Graph) -> None:
    """Refuse a graph that does not compute what the model does, at the batch and at random inputs of several sizes.

    Both are compared entry by entry (`agreement.py`): in the model's own precision, and in float64, where no rounding
    hides a difference, if the model runs in it. A model may compute its constants in its own precision, or choose them
    by it; so one that differs in float64 is traced in float64, and compared with that trace. That the trace has the
    operators of an ordinary run is checked where it is taken (`recorded_run.py`); here what was read of it is checked.
    """
    if (drawn_in_trace := draws_in(program)) < call.draws:
        raise RandomOperatorError(
            f"a run of the model draws random numbers in {call.draws} operators, of which torch.export sees "
            f"{drawn_in_trace}: a random function has no Lipschitz constant. Switch the randomness off"
        )
    single = call.sample() if call.per_sample else call
    trials = [single]
    if call.variables:
        size = float(torch.cat([v.double().reshape(-1) for _, v in single.variables]).square().mean().sqrt()) or 1.0
        trials += [drawn(single, scale) for scale in (1.0, *(size * share for share in SIZES))]
    state = read_state(program, ancestors(output_of(program)))
    outputs = [_output(model, trial, forced, graph, state) for trial in trials]
    for trial, value in zip(trials, outputs, strict=True):
        if value is not None and not _gives(graph, trial, value):
            raise CaptureError(NOT_THE_MODEL.format(where=""))
    wide = [trial.double() for trial in trials]
    with untouched(model, forced), in_float64(model), ignore_warnings():  # cuDNN warns of weights in several places
        exact = [_output(model, trial, None, graph, {}) for trial in wide]
    pairs = [(trial, value) for trial, value in zip(wide, exact, strict=True) if value is not None]
    double = graph.double()
    if all(_gives(double, *pair) for pair in pairs):
        return
    with untouched(model, forced, traced=True), in_float64(model):
        retraced = _traced(model, dataclasses.replace(call.double(), notes=()), forced, mode, False)[1]
    if not all(_gives(retraced, *pair) for pair in pairs):
        raise CaptureError(NOT_THE_MODEL.format(where=" in float64"))


@outside_inference_mode
@one_thread_at_a_time
@full_precision()
def check_at(
    graph: Graph,
    model: nn.Module,
    batch: Any,
    points: Iterable[Tensor],
    *,
    mode: str | None = None,
    output: str | int | None = None,
) -> None:
    """Refuse a graph that does not give what its model gives at flat points of its input, such as witnesses of bounds.

    The other arguments are those of the batch, or of its first sample. Embeddings of tokens cannot be passed to a
    model, which is then not compared.

    Raises:
        CaptureError: the two differ.
    """
    if any(item.place is None for item in graph.inputs):
        return
    call = prepare(model, batch, output)
    single = call.sample() if graph.per_sample else call
    for point in points:
        parts = zip(graph.inputs, graph.split(point), strict=True)
        trial = single.replaced({item.place: part.to(item.value) for item, part in parts if item.place is not None})
        value = _output(model, trial, mode, graph, {})
        if value is not None and not _gives(graph, trial, value):
            raise CaptureError(NOT_THE_MODEL.format(where=" at a point that the bound rests on"))


def _output(model: nn.Module, call: Call, forced: str | None, graph: Graph, state: dict[str, Tensor]) -> Tensor | None:
    """Run a model as its graph counts it, without dropout; None if it refuses the input.

    A run must not change the tensors in `state`, which the graph holds as constants.
    """
    off = FunctionalDropoutOff() if DROPPED in graph.notes else contextlib.nullcontext()
    with untouched(model, forced), torch.no_grad(), off:
        before = {name: value.clone() for name, value in state.items()}
        try:
            value = run(model, call)
        except InputError:
            return None
        if moved := changed(before, state):
            raise CaptureError(
                f"a run of the model changes {', '.join(map(repr, moved))}, which the output reads, in a way that "
                "torch.export does not see: the traced function is not the model's"
            )
    return value


@torch.no_grad()
def _gives(graph: Graph, call: Call, value: Tensor) -> bool:
    """Whether a graph gives a value at a call; entries that overflowed in a narrow precision are left to float64."""
    leaves = call.leaves
    inputs = [item.value if item.place is None else leaves[item.place] for item in graph.inputs]
    overflowed = ~value.isfinite() & (torch.finfo(value.dtype).bits < 64)

    def replay() -> Tensor:
        replayed = graph.run(*inputs)
        return replayed.masked_fill(overflowed, 0.0) if replayed.shape == value.shape else replayed

    return agree(replay(), value.masked_fill(overflowed, 0.0), replay)


def _export(model: nn.Module, call: Call, forced: str | None) -> TracedProgram:
    """Trace the model, on one sample or the whole batch; chains of known layers need no torch.export."""
    call = call.sample() if call.per_sample else call
    with untouched(model, forced, traced=True), quiet(), with_momentum(model):
        program = trace_chain(model, call)
        if program is not None:
            write_out_of_place(program)
            if is_plain(program):
                return program
        exported = _faithful_trace(model, call)
        with _explained(model, call):
            write_out_of_place(exported)
        return exported


def _rewritten(model: nn.Module, call: Call, forced: str | None, program: TracedProgram, plain: bool) -> TracedProgram:
    """Return a trace in operators that write nothing in place.

    A trace that can be read as it is stays as it is, which takes a fraction of the time of torch's rewriting. With
    `plain`, composite operators stay whole wherever nothing is written in place.
    """
    if isinstance(program, ChainProgram) or (writes_nothing(program) if plain else is_plain(program)):
        return program
    with untouched(model, forced, traced=True), quiet(), _explained(model, call):
        part_twins(program)
        return program.run_decompositions({})


def _faithful_trace(model: nn.Module, call: Call) -> torch.export.ExportedProgram:
    """Trace the model with torch.export; refuse what is not what the model computes when it is not traced.

    Where it is another function, the model may have asked whether it is traced: then it is told that it is not.
    """

    def trace(around: Callable[[], contextlib.AbstractContextManager[None]]) -> torch.export.ExportedProgram:
        with untouched(model, traced=True):  # a traced forward leaves tensors without values in what it keeps
            return torch.export.export(Caller(model, call.output, around), call.args, call.kwargs, strict=False)

    with _explained(model, call):
        program = trace(contextlib.nullcontext)
        ordinary, traced = record_run(model, call), record_trace(model, program, call)
    line = ordinary.find_read_value(traced)
    if line is not None:
        with torch.no_grad():
            _translated(program, call, "eval")  # its error says more where the trace has the operator that reads
        raise CaptureError(f"{why_by_value(line)}. Bounds need a traceable model.{_hint(call)}")
    if traced.output != ordinary.output:
        with _explained(model, call):
            program = trace(functools.partial(answer_as_untraced, "torch"))
            traced = record_trace(model, program, call)
    if traced.output == ordinary.output:
        return program
    missing = next((name for label, name in ordinary.operators.items() if label not in traced.operators), "")
    raise CaptureError(
        "the model computes something else while torch.export traces it than when it is run"
        + (f": {missing.removeprefix('aten.')} of the run is not in the trace" if missing else "")
        + ". Let it compute the same in both: it may ask whether it is traced, look at the class of a tensor, or "
        f"count its runs.{_hint(call)}"
    )


def _hint(call: Call) -> str:
    return f" {STILL_WORKS}" if call.variables else ""  # token ids cannot be moved, and embeddings are not traced


@contextlib.contextmanager
def _explained(model: nn.Module, call: Call) -> Iterator[None]:
    """Turn an error of torch.export into one sentence on what in the model it cannot trace."""
    try:
        yield
    except Exception as error:
        cause = error.__cause__ or error if isinstance(error, UntracedError) else error
        raise CaptureError(
            quantized(model) or f"{why_untraced(cause)}. Bounds need a traceable model.{_hint(call)}"
        ) from cause
