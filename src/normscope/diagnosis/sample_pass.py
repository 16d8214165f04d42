"""`compare_samples`: does an output depend on its own sample alone, and on every argument of the model?

A few samples run once as they are and once with a change: one sample replaced by another shows which outputs of the
other samples move; one argument with its samples moved by a place shows whether the output reads it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from ..core.codec import Part
from ..core.cost import count
from ..core.threads import uncompiled
from ..core.untouched import untouched
from ..graph.call import Call, arguments
from ..listening.calls import float_tensors

FEW_SAMPLES = 7
"""Samples that run once more: enough to see a change, cheap beside a batch, and hardly the width of anything."""
MOVES = 1e-3
"""A share of the size of a value: batched kernels round by far less."""
NO_INFLUENCE = 1e-4
"""The change of the output by one argument, as a share of the change by all of them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SampleFacts(Part):
    """How outputs depend on the samples and arguments of a batch.

    Attributes:
        identical: whether all samples of the batch are the same.
        mixed_at: the first module whose output for one sample moves with another sample; `None` if there is none.
        certain: whether labels show that the first dimension counts samples.
        idle: the arguments that the output does not depend on, by name, each with the first module that reads it.
        forwards: passes of at most seven samples that this took.
    """

    identical: bool = False
    mixed_at: str | None = None
    certain: bool = False
    idle: tuple[tuple[str, str], ...] = ()
    forwards: int = 0


def compare_samples(model: nn.Module, batch: Any) -> SampleFacts | None:
    """Run a few samples with and without a change, in eval mode and with the same random numbers; leave all as found.

    Nothing is said of models whose arguments do not all count samples by their first dimension, such as graphs, nor of
    models that take no smaller batch.
    """
    try:
        return _compare(model, batch)
    except Exception:  # what the model raises on fewer samples is no fault of it
        return None


def _compare(model: nn.Module, batch: Any) -> SampleFacts:
    call = arguments(model, batch)
    tensors = [leaf for leaf in call.leaves if isinstance(leaf, Tensor) and leaf.ndim]
    samples = call.count
    if samples < 3 or not all(len(leaf) == samples for leaf in tensors):
        return SampleFacts()
    if _has_table_of(model, samples):
        return SampleFacts()
    if all(bool((leaf == leaf[:1]).all()) for leaf in tensors):
        return SampleFacts(identical=True)
    few, training, runs = call.first(min(samples, FEW_SAMPLES)), model.training, Counter[str]()

    def run(call: Call) -> Outputs:
        runs.update(forwards=1)
        return _outputs(model, call)[0]

    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        stack.enter_context(torch.no_grad())
        with untouched(model, "eval"):
            plain, readers = _outputs(model, few)
            runs.update(forwards=1)
            if any(_changes(plain, run(few))):
                return SampleFacts()  # it keeps a state, or draws random numbers of its own
            replaced = few.changed(lambda leaf: torch.cat([leaf[1:2], leaf[1:]]))
            mixed = _first_mixed(plain, run(replaced), few.count)
            idle = _idle_arguments(run, few, plain)
        if idle and training:  # some arguments are read in training alone
            with untouched(model, "train"):
                idle = sorted(set(idle) & set(_idle_arguments(run, few, run(few))))
    if mixed is not None and isinstance(model.get_submodule(mixed), _BatchNorm):
        mixed = None  # one without running statistics, which is meant to see the batch
    forwards = runs["forwards"]
    count("passes", forwards * few.count)
    labels = batch[1] if isinstance(batch, Sequence) and len(call.args) < len(batch) else None
    time_first = any(
        vars(module).get("batch_first", True) is False or isinstance(module, nn.RNNCellBase)
        for module in model.modules()
    )
    certain = (
        isinstance(labels, Tensor)
        and labels.shape[:1] == (samples,)
        and (not time_first or labels.numel() == samples)  # otherwise it may count time steps
    )
    return SampleFacts(
        mixed_at=mixed,
        certain=certain,
        idle=tuple((few.name(place), readers.get(place, "")) for place in idle),
        forwards=forwards,
    )


def _has_table_of(model: nn.Module, samples: int) -> bool:
    """Whether the model holds a table between all samples of the batch, such as the adjacency matrix of a graph."""
    return any(buffer.shape[-2:] == (samples, samples) for buffer in model.buffers())


Outputs = list[tuple[str, Tensor]]


def _outputs(model: nn.Module, call: Call) -> tuple[Outputs, dict[int, str]]:
    """Return the float outputs of every module in the order they come, and the module that first read each argument."""
    outputs: Outputs = []
    readers: dict[int, str] = {}
    copy = call.changed(torch.clone)  # a model may write to what it is given
    places = {id(leaf): place for place, leaf in enumerate(copy.leaves)}

    def keep(path: str, args: Any, kwargs: Any, made: Any) -> None:
        for leaf in tree_leaves((args, kwargs)):
            if path and id(leaf) in places:
                readers.setdefault(places[id(leaf)], path)
        outputs.extend((path, tensor.detach().clone()) for tensor in float_tensors(made))

    with _hooked(model, keep), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model(*copy.args, **copy.kwargs)
    return outputs, readers


@contextmanager
def _hooked(model: nn.Module, keep: Any) -> Iterator[None]:
    """Hear every module for as long as the block runs."""
    with ExitStack() as stack:
        for path, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                handle = module.register_forward_hook(
                    lambda _, args, kwargs, made, path=path: keep(path, args, kwargs, made), with_kwargs=True
                )
                stack.callback(handle.remove)
        yield


def _ends(outputs: Outputs) -> list[Tensor]:
    """Return what the model itself hands on."""
    return [tensor for path, tensor in outputs if not path]


def _first_mixed(plain: Outputs, changed: Outputs, samples: int) -> str | None:
    """Return the first module whose output of another sample than the first moved; none if the model's did not."""
    ends = _ends(plain)
    if not ends or any(end.shape[:1] != (samples,) or end.shape[1:2] == (samples,) for end in ends):
        return None  # rows that are no samples, or a table of all pairs
    if not any(_others_moved(*pair, samples) for pair in zip(ends, _ends(changed), strict=True)):
        return None
    moved = (path for (path, before), (_, after) in zip(plain, changed) if _others_moved(before, after, samples))
    return next(moved, None)


def _others_moved(before: Tensor, after: Tensor, samples: int) -> bool:
    """Whether the values of any but the first sample differ."""
    if before.shape != after.shape or before.shape[:1] != (samples,):
        return False
    gap, size = (after[1:] - before[1:]).double().abs().amax(), before.double().abs().amax()
    return bool(gap > MOVES * size)


def _idle_arguments(run: Callable[[Call], Outputs], call: Call, plain: Outputs) -> list[int]:
    """Return the places of the arguments without influence: with its samples moved by a place, no output moves."""
    if len(call.leaves) < 2:
        return []
    whole = _changes(plain, run(call.rolled()))
    idle: list[int] = []
    for place, leaf in enumerate(call.leaves):
        name = call.name(place)
        if not isinstance(leaf, Tensor) or not leaf.ndim or leaf.dtype == torch.bool or "mask" in name or "[" in name:
            continue  # masks are often all alike, and a dict may hold what only the loss reads
        if bool((leaf == leaf.roll(1, 0)).all()):
            continue
        moved = _changes(plain, run(call.changed(partial(_rolled_if, leaf))))
        if any(whole) and all(change <= NO_INFLUENCE * most for change, most in zip(moved, whole, strict=True)):
            idle.append(place)
    return idle


def _rolled_if(chosen: Tensor, tensor: Tensor) -> Tensor:
    """Return a tensor with its samples moved by a place if it is the chosen one."""
    return tensor.roll(1, 0) if tensor is chosen else tensor


def _changes(plain: Outputs, changed: Outputs) -> list[float]:
    """Return how far each output of the model moved."""
    return [float((a - b).double().norm()) for a, b in zip(_ends(plain), _ends(changed), strict=True)]
