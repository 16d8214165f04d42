"""The call of the user's model: its arguments, the measured output, and whether it may be measured by sample."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import SUPPORTED_NODES, GetAttrKey, keystr, tree_flatten_with_path, tree_leaves, tree_map

from ..core.budget import count
from ..core.errors import CaptureError, InputError, NotFiniteError, RandomOperatorError, describe_error
from ..core.threads import warnings_at_callers
from ..core.untouched import (
    FunctionalDropoutOff,
    generator_states,
    on_copies,
    plain_parts,
    random_state,
    untouched,
)
from ..core.whole_weights import gather_whole
from ..listening.calls import float_tensors
from ..report.words import shape
from .agreement import agree

PREFERRED = ("logits", "last_hidden_state")
"""The outputs that are measured where a model has several and none was chosen."""
ALL_OUTPUTS = "all"
"""The `output` that stands for all float tensors of a model as one output."""
MASKS = {
    "mask", "attention_mask", "attn_mask", "decoder_attention_mask", "encoder_attention_mask", "padding_mask",
    "key_padding_mask", "src_mask", "src_key_padding_mask", "tgt_mask", "tgt_key_padding_mask", "memory_mask",
    "memory_key_padding_mask", "head_mask", "decoder_head_mask", "cross_attn_head_mask", "causal_mask", "pixel_mask",
    "token_mask", "input_mask",
}  # fmt: skip
"""The names by which float tensors are masks; integers and booleans are masks by any name that says so."""
ELSEWHERE = (
    "a sample gives another output alone, or at another place of the batch: the whole batch is measured as one input"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A model's call with its arguments, ready to be repeated on other inputs of the same form.

    `draws` is how many of torch's operators draw random numbers in it, which no output may depend on.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: str | int | None
    per_sample: bool = False
    notes: tuple[str, ...] = ()
    draws: int = 0

    @property
    def variables(self) -> list[tuple[str, Tensor]]:
        """The float tensors that count as input, by name; masks do not."""
        named = [(_name(path), leaf) for path, leaf in _leaves_by_path((self.args, self.kwargs))]
        return [(name, leaf) for name, leaf in named if _measurable(leaf) and not is_mask(name, leaf)]

    @property
    def leaves(self) -> list[Any]:
        """All arguments, without their nesting."""
        leaves = tree_leaves((self.args, self.kwargs))
        if any(map(is_record, leaves)):  # torch takes a record for a leaf; this takes longer
            return [leaf for _, leaf in _leaves_by_path((self.args, self.kwargs))]
        return leaves

    @property
    def count(self) -> int:
        """The size of the arguments' first dimension, which counts the samples; of packed sequences their number."""
        if self.args and isinstance(self.args[0], PackedSequence):
            return int(self.args[0].batch_sizes[0])
        return next((leaf.size(0) for leaf in self.leaves if isinstance(leaf, Tensor) and leaf.ndim), 1)

    def name(self, place: int) -> str:
        """Return the name of an argument by its place among all of them."""
        return _name(list(_leaves_by_path((self.args, self.kwargs)))[place][0])

    def sample(self, index: int = 0) -> Call:
        """Return the same call on one sample alone, in memory of its own."""
        return self.changed(lambda tensor: tensor[index].unsqueeze(0).clone())

    def first(self, samples: int) -> Call:
        """Return the same call on the first samples, in memory of their own."""
        return self.changed(lambda tensor: tensor[:samples].clone())

    def rolled(self) -> Call:
        """Return the same call with every sample at the next place of the batch, the last one at the first."""
        return self.changed(lambda tensor: tensor.roll(1, 0))

    def changed(self, change: Callable[[Tensor], Tensor]) -> Call:
        """Return the call with all tensors changed that have a first dimension."""
        args, kwargs = map_leaves(
            lambda v: change(v) if isinstance(v, Tensor) and v.ndim else v, (self.args, self.kwargs)
        )
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def double(self) -> Call:
        """Return the same call with its float tensors in float64."""
        return self.replaced({i: v.double() for i, v in enumerate(self.leaves) if _measurable(v)})

    def replaced(self, values: Mapping[int, Tensor]) -> Call:
        """Return the call with other values at some places of its arguments."""
        places = itertools.count()
        args, kwargs = map_leaves(lambda v: values.get(next(places), v), (self.args, self.kwargs))
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def groups(self, places: Iterable[int]) -> list[list[int]]:
        """Return the samples by number, those together whose tensors at some places of the arguments are equal."""
        tensors = [leaf for place in places if isinstance(leaf := self.leaves[place], Tensor) and leaf.ndim]
        alike: dict[tuple[bytes, ...], list[int]] = {}
        held = [tensor.detach().cpu().contiguous().reshape(self.count, -1) for tensor in tensors]
        for number in range(self.count):
            row = tuple(tensor[number].view(torch.uint8).numpy().tobytes() for tensor in held)
            alike.setdefault(row, []).append(number)
        return list(alike.values())


def is_record(value: Any) -> bool:
    """Whether a value is an object of a dataclass that holds tensors for a model, and no data set nor a dict."""
    is_object = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_object and type(value) not in SUPPORTED_NODES and not hasattr(value, "__getitem__")


def _leaves_by_path(nest: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the leaves of a nest with their paths, those inside of dataclasses too."""
    for path, leaf in tree_flatten_with_path(nest)[0]:
        if is_record(leaf):
            for field in dataclasses.fields(leaf):
                for inner, value in _leaves_by_path(getattr(leaf, field.name)):
                    yield (*path, GetAttrKey(field.name), *inner), value
        else:
            yield path, leaf


def map_leaves(change: Callable[[Any], Any], nest: Any) -> Any:
    """Return a nest with its leaves changed, those inside of dataclasses too; refuse one that holds itself."""

    def change_inside(leaf: Any) -> Any:
        if not is_record(leaf):
            return change(leaf)
        twin = copy.copy(leaf)
        for field in dataclasses.fields(leaf):  # it may be frozen
            object.__setattr__(twin, field.name, map_leaves(change, getattr(leaf, field.name)))
        return twin

    try:
        return tree_map(change_inside, nest)
    except RecursionError as error:
        raise InputError("the batch holds itself: pass one in which no dict or list lies inside of itself") from error


def _name(path: Sequence[Any]) -> str:
    """Name an argument by its position or keyword, and by its path inside a nested argument."""
    first = path[1]
    return str(getattr(first, "key", getattr(first, "idx", first))) + keystr(tuple(path[2:]))


def is_mask(name: str, tensor: Tensor) -> bool:
    """Whether an argument is held constant as a mask: `masked_image` is none, nor are other floats by unusual names."""
    key = re.findall(r"\w+", name)[-1]
    return key in MASKS if tensor.is_floating_point() else "mask" in key


def labels_of(batch: Any, call: Call) -> Sequence[Any]:
    """Return the labels in a list, which is empty where the batch is no pair of inputs and labels."""
    return batch[-1:] if isinstance(batch, Sequence) and len(call.args) < len(batch) else ()


class Caller(nn.Module):
    """Wraps the user's model, and returns the one output that is measured; the model runs inside of `around()`."""

    def __init__(
        self, model: nn.Module, output: str | int | None, around: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__()
        self.model = model
        self.output = output
        self.around = around

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run the model and pick the output that is measured; a `RuntimeError` becomes an `UntracedError`.

        Some of these errors make torch.export print its unfinished graph; it lets an error of that class pass.
        """
        try:
            with self.around():
                return select(self.model(*args, **kwargs), self.output)
        except RuntimeError as error:
            raise UntracedError from error


class UntracedError(Exception):
    """Stands for the error of a model that torch.export traces; that error is its cause."""


def prepare(model: nn.Module, batch: Any, output: str | int | None) -> Call:
    """Turn the user's batch into a call; refuse a model or a batch that cannot be measured."""
    call = arguments(model, batch, output)
    if any(isinstance(leaf, Tensor) and leaf.is_complex() for leaf in call.leaves):
        raise InputError(
            "the batch holds complex values, and what is measured is a function of real ones: pass "
            "torch.view_as_real(z), and let the model begin with torch.view_as_complex"
        )
    if any(isinstance(leaf, Tensor) and leaf.layout is not torch.strided for leaf in call.leaves):
        raise CaptureError(
            "the batch holds a sparse tensor, and bounds need dense ones: pass tensor.to_dense(), or keep it in a "
            "buffer of the model"
        )
    if not all(bool(torch.isfinite(tensor).all()) for _, tensor in call.variables):
        raise InputError("the batch holds NaN or infinite values: clean the data first")
    for name, what in broken_tensors(model).items():
        raise NotFiniteError(f"{name!r} {what}: the model has no finite constants")
    for name, parameter in model.named_parameters():
        if not parameter.numel():
            raise CaptureError(
                f"the parameter {name!r} ({shape(tuple(parameter.shape))}) has no entries, and a layer without units "
                "has no norm: remove the layer"
            )
    return call


def arguments(model: nn.Module, batch: Any, output: str | int | None = None) -> Call:
    """Turn the user's batch into a call, whatever its values; refuse a batch that the model cannot take."""
    batch = dict(batch) if isinstance(batch, Mapping) and type(batch) not in SUPPORTED_NODES else batch
    batch = map_leaves(lambda v: v.detach().clone() if isinstance(v, Tensor) else v, batch)
    args, kwargs, notes = _passed(model, batch)
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise InputError(f"parameter {name!r} has no size yet: run the model once before measuring it")
        if parameter.is_meta:
            raise InputError(f"parameter {name!r} lies on the meta device and has no values: load the weights first")
    if "use_cache" in parameters_of(model) and "use_cache" not in kwargs:
        kwargs["use_cache"] = False
    tensors = [leaf for _, leaf in _leaves_by_path((args, kwargs)) if isinstance(leaf, Tensor)]
    if not tensors:
        raise InputError("the batch holds no tensor")
    for tensor in tensors:
        if tensor.numel() == 0:
            raise InputError(f"the batch holds an empty tensor of shape {_shape_of(tensor)}: pass at least one sample")
    return Call(args=args, kwargs=kwargs, output=output, notes=notes)


def _passed(model: nn.Module, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]:
    """Return the positional and the named arguments that a batch stands for, and notes on how it was read."""
    if isinstance(batch, Tensor | PackedSequence) or is_record(batch):
        return (batch,), {}, ()
    if isinstance(batch, Mapping):
        return ((batch,), {}, ()) if takes_dict(model, batch) else ((), dict(batch), ())
    if not isinstance(batch, Sequence) or isinstance(batch, str | bytes):
        raise InputError(f"batch is a {type(batch).__name__}: pass a tensor, a tuple of arguments or a dict of them")
    if len(batch) == 2 and isinstance(batch[0], Mapping) and names_arguments(model, batch[0]):
        note = "the batch is a pair whose first entry holds the arguments by name: the second is taken as labels"
        return (), dict(batch[0]), (note,)
    whole = isinstance(batch[0], Tensor | Mapping | PackedSequence) or is_record(batch[0])
    if len(batch) == 2 and whole and is_label(model, batch[1]):
        note = "the batch is a pair and the model needs one argument: the second entry is taken as labels"
        return (batch[0],), {}, (note,)
    if (arguments_taken(model) or len(batch)) == len(batch) - 1:
        note = f"the model takes {len(batch) - 1} arguments: entry {len(batch)} of the batch is taken as labels"
        return tuple(batch[:-1]), {}, (note,)
    return tuple(batch), {}, ()


def names_arguments(model: nn.Module, entries: Mapping[Any, Any]) -> bool:
    """Whether a dict holds all arguments that `forward` needs by their names, and nothing else."""
    taken = parameters_of(model)
    needed = {p.name for p in _positional(model) if p.default is p.empty}
    named = taken.keys() >= set(entries) or any(p.kind is p.VAR_KEYWORD for p in taken.values())
    return bool(taken) and named and needed.issubset(entries) and not takes_dict(model, entries)


def sample_shapes(call: Call, earlier: tuple[tuple[int, ...], ...] = ()) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the tensors of one sample, for figures that pool the samples of several batches."""
    shapes = tuple(tuple(leaf.shape[1:]) for leaf in call.leaves if isinstance(leaf, Tensor))
    if earlier and shapes != earlier:
        first, now = (" and ".join(shape(one) or "" for one in each) for each in (earlier, shapes))
        raise InputError(
            f"the samples have several shapes, {first} at first and {now} later, and a figure over the data speaks of "
            "inputs of one shape: pad or resize them, or measure the samples of each shape in a call of their own"
        )
    return shapes


def broken_tensors(model: nn.Module) -> dict[str, str]:
    """Return the tensors of a model with NaN, infinite values or negative variances, and what is wrong, by name.

    Infinite values count in parameters and running statistics; in other buffers they may belong to a mask.
    """
    statistics = {id(b) for m in model.modules() if isinstance(m, _NormBase) for b in m.buffers(recurse=False)}
    ends: dict[torch.device, list[tuple[str, bool, Tensor]]] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor) or tensor.is_meta or not tensor.is_floating_point():
            continue
        is_strict = isinstance(tensor, nn.Parameter) or id(tensor) in statistics
        for part in plain_parts(tensor.detach()):
            if part.is_floating_point() and part.numel():
                wide = part.float() if part.itemsize == 1 else part  # torch compares no values of one byte
                both = gather_whole(torch.stack(wide.aminmax()).double())  # both are NaN if any entry is
                ends.setdefault(both.device, []).append((name, is_strict, both))
    broken = {}
    for held in ends.values():
        fetched = torch.stack([both for *_, both in held]).tolist()
        for (name, is_strict, _), (least, greatest) in zip(held, fetched, strict=True):
            if math.isnan(least) or (is_strict and not (math.isfinite(least) and math.isfinite(greatest))):
                broken[name] = "holds NaN or infinite values"
            elif name.endswith("running_var") and least < 0:
                broken.setdefault(name, "holds a negative variance")
    return broken


def quantized(model: nn.Module) -> str | None:
    """Return a sentence that names the modules of a model that compute with integers, or None if there is none."""
    held = [
        f"{f'`{path}`' if path else 'the model itself'} ({type(module).__name__})"
        for path, module in model.named_modules()
        if re.match(r"torch\..*\bquantized\b(?!\.reference)", type(module).__module__)
        and not re.match(".*Packed|FloatFunctional", type(module).__name__)
    ]
    if not held:
        return None
    more = f" and {len(held) - 3} more" if len(held) > 3 else ""
    return (
        f"the model computes with quantized numbers in {', '.join(held[:3])}{more}: torch.export cannot trace them, "
        "and they have no derivative. Measure the model that was quantized"
    )


def run(model: nn.Module, call: Call) -> Tensor:
    """Run the model once, on copies of its inputs; an error of the model becomes one sentence on what to pass."""
    count("passes", call.count)
    try:
        result = _result(model, call)
    except Exception as error:
        if torch.is_grad_enabled() and _runs_without_gradients(model, call):
            raise InputError(
                f"the model runs on this batch ({described(call)}), but not while gradients are taken: then it raises "
                f"{describe_error(error)}. An operator on the way has no derivative; give it detached tensors"
            ) from error
        if "HigherOrderOperator" in str(error):
            raise InputError(
                "the model calls an operator that runs functions it is given, such as torch.cond, and nothing that "
                "measures a model sees into one: choose by values of the input with torch.where, and by anything else "
                "with a plain `if`"
            ) from error
        raise InputError(
            f"the model raises {describe_error(error)}, on this batch ({described(call)}). Pass a batch the model "
            "accepts: "
            "model(batch) must work for a tensor or one dict, model(*batch) for a tuple, model(**batch) for a dict "
            "whose keys are the names of forward's arguments."
        ) from error
    return select(result, call.output)


def _result(model: nn.Module, call: Call) -> Any:
    args, kwargs = map_leaves(lambda v: v.clone() if isinstance(v, Tensor) else v, (call.args, call.kwargs))
    with warnings_at_callers():
        return model(*args, **kwargs)


def _runs_without_gradients(model: nn.Module, call: Call) -> bool:
    try:
        with torch.no_grad(), untouched(model):
            _result(model, call)
    except Exception:
        return False
    return True


def _shape_of(tensor: Tensor) -> tuple[int | None, ...]:
    """Return the sizes of a tensor; of a nested one those that differ inside of it are None."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    sizes = {tuple(part.shape) for part in tensor.unbind()}
    return (tensor.size(0), *(own[0] if len(set(own)) == 1 else None for own in zip(*sizes, strict=True)))


def described(call: Call) -> str:
    """Say what a call passes: shapes, and the keys of a dict that is passed as one argument."""
    shapes = f"shapes {[_shape_of(leaf) for leaf in call.leaves if isinstance(leaf, Tensor)]}"
    if not call.args or not isinstance(call.args[0], Mapping):
        return shapes
    return f"{shapes}, one dict with the keys {list(call.args[0])}, which are not the names of forward's arguments"


def settle(model: nn.Module, call: Call, mode: str) -> Call:
    """Decide whether the measured function may be the map of one sample (eval), or is that of the whole batch.

    It may be the map of one sample if the first sample gives the same alone as in the batch, and all samples give the
    same at the next place of the batch. This is a necessary condition; `samples.joined` decides on the graph. It takes
    two passes over the batch, one over two samples and two over one.

    A model that draws random numbers is refused, whether or not its output depends on them: the states of generators
    show it. Draws by torch's own operators alone pass, and are counted: a trace shows what becomes of them.
    """
    with torch.no_grad():
        with untouched(model):  # what a run changes must not show in the next
            before = generator_states(model)
            with FunctionalDropoutOff() if mode == "train" else nullcontext():
                whole = run(model, call)
                moved = [whose for whose, state in generator_states(model).items() if state != before[whose]]
            if whole.numel() == 0 or not bool(torch.isfinite(whole).all()):
                raise NotFiniteError(
                    "the model returns NaN, infinite values or nothing on this batch: it has no constant"
                )
            if moved:
                call = _with_draws(model, call, mode, moved)
            if mode == "train":
                return call
            sizes = {leaf.shape[0] for leaf in call.leaves if isinstance(leaf, Tensor) and leaf.ndim}
            divisible = len(sizes) == 1 and whole.ndim > 0 and whole.shape[0] == call.count
            if divisible and call.count > 1:
                if _alike(model, call, whole):
                    return dataclasses.replace(call, per_sample=True)
                call = dataclasses.replace(call, notes=(*call.notes, ELSEWHERE))
        with untouched(model):
            first, second = run(model, call), run(model, call)
        # the same operators at the same input round alike, but for sums of a GPU in an order of its own
        if not agree(first, second, partial(fresh, model, call) if first.is_cuda else lambda: first):
            raise RandomOperatorError(
                "the model gives two different outputs for the same input: "
                + (
                    "a random function has no Lipschitz constant"
                    if moved or not torch.equal(fresh(model, call), fresh(model, call))
                    else "it reads what its own earlier runs left behind (a list, a counter, a buffer). Measure a "
                    "model that keeps nothing between runs"
                )
            )
        return dataclasses.replace(call, per_sample=divisible and call.count == 1)


def _with_draws(model: nn.Module, call: Call, mode: str, moved: Sequence[str]) -> Call:
    """Count the operators of torch that draw random numbers; refuse draws that no trace shows."""
    others = [whose for whose in moved if whose != "torch"]
    if others:
        raise RandomOperatorError(
            f"a run of the model draws random numbers from {' and '.join(others)}: a random function has no Lipschitz "
            "constant, and a trace would hold the numbers of one run. Switch the randomness off, draw in train mode "
            "alone (`if self.training`), or measure another mode"
        )
    with untouched(model), FunctionalDropoutOff() if mode == "train" else nullcontext(), _Draws(model) as draws:
        run(model, call)
    return dataclasses.replace(call, draws=draws.count)


class _Draws(TorchDispatchMode):
    """Counts the operators that draw random numbers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.count = model, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and compare the state of the generators before and after."""
        before = random_state(self.model)
        result = func(*args, **(kwargs or {}))
        self.count += before != random_state(self.model)
        return result


def _alike(model: nn.Module, call: Call, whole: Tensor) -> bool:
    """Whether samples give the same alone as in the batch, and at the next place of it.

    The first sample is compared alone, also with random inputs and beside one other: at the user's values a factor that
    depends on the size of the batch may not show. All samples are compared at the next place.
    """

    def gives(changed: Call, expected: Tensor) -> bool:
        again = partial(fresh, model, changed)  # from one state, so that runs differ by roundings alone
        return agree(again(), expected, again)

    try:
        if not gives(call.sample(), whole[:1]) or not gives(call.rolled(), whole.roll(1, 0)):
            return False
    except InputError:  # a model that refuses single samples is measured on the batch
        return False
    if not call.variables:
        return True
    other = drawn(call.first(2), 1.0)
    try:
        return gives(other.sample(), run(model, other)[:1])
    except InputError:  # it takes no random inputs
        return True


def fresh(model: nn.Module, call: Call) -> Tensor:
    """Run the model from its present state, and restore that state; the result can be differentiated."""
    with untouched(model), on_copies(model):
        return run(model, call)


def drawn(call: Call, size: float) -> Call:
    """Return the call with random float inputs that have the same layout in memory."""
    generator = torch.Generator().manual_seed(0)
    values = {
        id(tensor): torch.empty_like(tensor).copy_(size * torch.randn(tensor.shape, generator=generator))
        for _, tensor in call.variables
    }
    args, kwargs = map_leaves(lambda leaf: values.get(id(leaf), leaf), (call.args, call.kwargs))
    return dataclasses.replace(call, args=args, kwargs=kwargs)


def select(result: Any, output: str | int | None) -> Tensor:
    """Pick the measured tensor from whatever the model returns."""
    if isinstance(result, Tensor):
        if output not in (None, 0, ALL_OUTPUTS):
            raise InputError(f"the model returns one tensor: there is no output {output!r}")
        if not _measurable(result):
            raise InputError(
                f"the model returns {result.dtype}: there is no float output to measure"
                + (". Return torch.view_as_real of it" if result.is_complex() else "")
            )
        return result
    if output == ALL_OUTPUTS and not (isinstance(result, Mapping) and output in result):
        return _joined(float_tensors(result))
    outputs = _outputs(result)
    if output is not None:
        if output not in outputs:
            raise InputError(f"the model has no float output {output!r}; it returns {sorted(map(str, outputs))}")
        return outputs[output]
    for name in PREFERRED:
        if name in outputs:
            return outputs[name]
    if len(outputs) != 1:
        raise InputError(
            f"the model returns {len(outputs)} float tensors, {list(outputs)}: choose one with output=, or all of "
            f'them together with output="{ALL_OUTPUTS}"'
        )
    return next(iter(outputs.values()))


def usual_output(result: Any) -> str:
    """Return the name of the output that `select` takes where a model returns several; empty where that is not so."""
    if isinstance(result, Tensor) or len(float_tensors(result)) < 2:
        return ""
    return next((name for name in PREFERRED if name in _outputs(result)), "")


def _joined(floats: Sequence[Tensor]) -> Tensor:
    """Return several outputs as one: a row for each sample where they agree on how many there are, else one row."""
    if not floats:
        raise InputError("the model returns no float tensor: there is no output to measure")
    by_sample = len({tensor.shape[:1] for tensor in floats}) == 1 and floats[0].ndim
    rows = floats[0].shape[0] if by_sample else 1
    return torch.cat([tensor.reshape(rows, -1) for tensor in floats], dim=1)


def all_if_several(model: nn.Module, batch: Any, mode: str | None) -> str | None:
    """Return `ALL_OUTPUTS` where a model returns several outputs of which none is the usual one, otherwise None."""
    call = arguments(model, batch)
    count("passes", call.count)
    try:
        with torch.no_grad(), untouched(model, mode):
            made = _result(model, call)
    except Exception:  # the steps that measure the model say what it raises
        return None
    try:
        select(made, None)
    except InputError:
        return ALL_OUTPUTS if float_tensors(made) else None
    return None


def _outputs(result: Any) -> dict[Any, Tensor]:
    """Return the float tensors among what a model returns, by key, index or name."""
    if dataclasses.is_dataclass(result) and not isinstance(result, Mapping | type):
        entries = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    elif isinstance(result, Mapping):
        entries = dict(result)
    elif isinstance(result, Sequence):
        entries = dict(enumerate(result)) | {name: getattr(result, name) for name in getattr(result, "_fields", ())}
    else:
        raise InputError(f"the model returns a {type(result).__name__}: there is no tensor to measure")
    return {key: value for key, value in entries.items() if _measurable(value)}


def _measurable(value: Any) -> bool:
    dense = isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested
    return dense and value.is_floating_point()


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of `forward` by name; none where nobody can tell."""
    try:
        return inspect.signature(model.forward).parameters
    except ValueError:  # a module that was compiled by torch.jit has no signature
        return {}


def _positional(model: nn.Module) -> list[inspect.Parameter]:
    """Return the parameters of `forward` that a tuple of arguments fills."""
    return [p for p in parameters_of(model).values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def takes_dict(model: nn.Module, batch: Mapping[Any, Any]) -> bool:
    """Whether a dict is itself the one argument of `forward`, and does not hold its arguments by name.

    It is if some key is not the name of a parameter of `forward`, and `forward` has no `**kwargs` and needs one
    argument at most.
    """
    taken, positional = parameters_of(model), _positional(model)
    named = {p.name for p in taken.values() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    if not positional or any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        return False
    needed = sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in taken.values())
    return needed <= 1 and not named.issuperset(batch)


def arguments_needed(model: nn.Module) -> int:
    """Return how many positional arguments a model needs."""
    return sum(p.default is p.empty for p in _positional(model))


def is_label(model: nn.Module, second: Any) -> bool:
    """Whether the second entry of a batch is the label: the model takes one argument, or needs no second one."""
    taken = arguments_taken(model)
    if taken is None:
        return False
    flat = isinstance(second, Tensor) and second.ndim <= 1
    return taken == 1 or (arguments_needed(model) <= 1 and flat)


def arguments_taken(model: nn.Module) -> int | None:
    """Return how many positional arguments a model takes at most; None where nobody can tell."""
    taken = parameters_of(model).values()
    if not taken or any(p.kind is p.VAR_POSITIONAL for p in taken):
        return None
    return len(_positional(model))
