"""`compare_samples`: does an output depend on its own sample alone, and on every argument of the model?

A few samples run once as they are and once with a change: one sample replaced by another shows which outputs of the
other samples move; one argument with its samples moved by a place shows whether the output reads it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map

from ..core.codec import Part
from ..core.cost import count
from ..core.threads import uncompiled
from ..core.untouched import untouched
from ..graph.call import Call, arguments
from ..listening.calls import float_tensors

FEW_SAMPLES = 8
"""Samples that run once more: enough to see a change, and cheap beside a batch."""
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
        forwards: passes of at most eight samples that this took.
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
    identical = all(bool((leaf == leaf[:1]).all()) for leaf in tensors)
    if identical or _has_table_of(model, samples):
        return SampleFacts(identical=identical)
    few = call.first(min(samples, FEW_SAMPLES))
    with ExitStack() as stack:
        stack.enter_context(untouched(model, "eval"))
        stack.enter_context(uncompiled())
        stack.enter_context(torch.no_grad())
        plain, readers = _outputs(model, few)
        mixed = _first_mixed(plain, _outputs(model, few.changed(lambda leaf: torch.cat([leaf[1:2], leaf[1:]])))[0])
        if mixed is not None and isinstance(model.get_submodule(mixed), _BatchNorm):
            mixed = None  # one without running statistics, which is meant to see the batch
        whole = _change(plain, _outputs(model, few.rolled())[0])
        idle: list[tuple[str, str]] = []
        forwards = 3
        for place, leaf in enumerate(few.leaves):
            if not isinstance(leaf, Tensor) or not leaf.ndim or not whole > 0.0:
                continue
            if leaf.dtype == torch.bool or "mask" in few.name(place) or bool((leaf == leaf.roll(1, 0)).all()):
                continue
            if len(few.leaves) == 1:
                break  # it is the whole
            forwards += 1
            moved = _change(plain, _outputs(model, _with_one_rolled(few, place))[0])
            if moved < NO_INFLUENCE * whole:
                idle.append((few.name(place), readers.get(id(leaf), "")))
    count("passes", forwards * few.count)
    labels = batch[1] if isinstance(batch, Sequence) and len(call.args) < len(batch) else None
    time_first = any(getattr(module, "batch_first", True) is False for module in model.modules())
    certain = (
        isinstance(labels, Tensor)
        and labels.shape[:1] == (samples,)
        and (not time_first or labels.numel() == samples)  # otherwise it may count time steps
    )
    return SampleFacts(mixed_at=mixed, certain=certain, idle=tuple(idle), forwards=forwards)


def _has_table_of(model: nn.Module, samples: int) -> bool:
    """Whether the model holds a table between all samples of the batch, such as the adjacency matrix of a graph."""
    return any(buffer.ndim > 1 and samples in buffer.shape[:2] for buffer in model.buffers())


Outputs = list[tuple[str, Tensor]]


def _outputs(model: nn.Module, call: Call) -> tuple[Outputs, dict[int, str]]:
    """Return the float outputs of every module in the order they come, and the module that first read each argument."""
    outputs: Outputs = []
    readers: dict[int, str] = {}
    arguments = {id(leaf) for leaf in call.leaves}

    def keep(path: str, args: Any, kwargs: Any, made: Any) -> None:
        for leaf in tree_leaves((args, kwargs)):
            if path and id(leaf) in arguments:
                readers.setdefault(id(leaf), path)
        outputs.extend((path, tensor.detach().clone()) for tensor in float_tensors(made))

    with _hooked(model, keep), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        args, kwargs = tree_map(lambda leaf: leaf, (call.args, call.kwargs))
        model(*args, **kwargs)
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


def _first_mixed(plain: Outputs, changed: Outputs) -> str | None:
    """Return the first module whose output of another sample than the first moved; none if the model's did not."""
    samples = len(plain[-1][1]) if plain and plain[-1][1].ndim else 0
    if not plain or len(plain) != len(changed) or not _others_moved(plain[-1][1], changed[-1][1], samples):
        return None
    for (path, before), (_, after) in zip(plain, changed, strict=True):
        if _others_moved(before, after, samples):
            return path
    return None


def _others_moved(before: Tensor, after: Tensor, samples: int) -> bool:
    """Whether the values of any but the first sample differ."""
    if before.shape != after.shape or not before.ndim or len(before) != samples:
        return False
    gap, size = (after[1:] - before[1:]).double().abs().amax(), before.double().abs().amax()
    return bool(gap > MOVES * size)


def _change(plain: Outputs, changed: Outputs) -> float:
    """Return the distance between two calls of the model, over all its outputs."""
    ends = [[tensor for path, tensor in outputs if not path] for outputs in (plain, changed)]
    if not ends[0] or [tensor.shape for tensor in ends[0]] != [tensor.shape for tensor in ends[1]]:
        return math.nan
    return math.hypot(*(float((before - after).double().norm()) for before, after in zip(*ends, strict=True)))


def _with_one_rolled(call: Call, place: int) -> Call:
    """Return the call with the samples of one argument moved by a place."""
    chosen = call.leaves[place]
    return call.changed(lambda leaf: leaf.roll(1, 0) if leaf is chosen else leaf)
