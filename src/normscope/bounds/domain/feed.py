"""Batches as points of a captured graph, and the values of its steps there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...core.errors import InputError
from ...core.untouched import outside_inference_mode, untouched
from ...graph.call import Call, arguments, close, fresh
from ...graph.capturing import Traces
from ...graph.ir import Graph
from ...graph.samples import joined
from ..unrolled import GraphSteps, evaluate

ENTRIES = 2**25
"""Entries of the largest value that is held for several samples at once."""
Visitor = Callable[[str, Mapping[str, Tensor]], None]


class Feed:
    """Turns what a model takes into flat float64 points of its graph, one per sample (or one per batch).

    Args:
        model: the user's model.
        graph: what was captured of it.
        forced: the mode asked for, None for the mode the model is in.
        output: which output was captured.
    """

    def __init__(self, model: nn.Module, graph: Graph, forced: str | None, output: str | int | None) -> None:
        self.model, self.graph, self.forced, self.output = model, graph, forced, output
        self._traces = Traces(model, mode=forced, output=output)

    @outside_inference_mode
    def points(self, batch: Any) -> tuple[Tensor, Tensor] | None:
        """Return the points `[samples, n]` of a batch and what the model returns there, one row per point.

        None for a batch of another size, where the captured function is that of a whole batch.

        Raises:
            InputError: the model does not take the batch, its samples have another shape than the captured ones or
                other masks, or they hold NaN.
        """
        call = arguments(self.model, batch, self.output)
        self._refuse_other_masks(call)
        with torch.no_grad(), untouched(self.model, self.forced):
            given, value = self._inputs(call)
        points = self.rows(given)
        if points is None:
            return None
        if not bool(torch.isfinite(points).all()):
            raise InputError("the data hold NaN or infinite values: clean them first")
        return points, value.detach().double().reshape(len(points), -1)

    def _refuse_other_masks(self, call: Call) -> None:
        """Refuse samples whose masks make them inputs of another function than the captured one.

        Raises:
            InputError: they do, even if the outputs do not show it.
        """
        held = {argument.place: argument.value for argument in self.graph.held if argument.in_constants}
        own = {place: call.leaves[place] for place in held}
        if not self.graph.per_sample and any(len(own[place]) != len(held[place]) for place in held):
            return  # a batch of another size is no input at all
        others = [place for place in held if own[place].shape[1:] != held[place].shape[1:]]
        fitting = not others
        others += [place for place in held if fitting and bool((own[place] != held[place].to(own[place])).any())]
        if others and not (fitting and self.graph.per_sample and self._alike(call, held)):
            raise InputError(
                f"argument {call.name(others[0])!r} is held constant, and that of some sample makes the model another "
                "function than that of the first does. A domain speaks of one function: pass data with the same "
                "masks, ids and lengths"
            )

    def _alike(self, call: Call, held: Mapping[int, Tensor]) -> bool:
        """Whether the masks of all samples make the same constants as those of the captured one, which joins them."""
        leaves = enumerate(call.leaves)
        first = {
            id(leaf): held.get(place, leaf[:1]) for place, leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim
        }

        def join(leaf: Any) -> Any:
            return torch.cat([first[id(leaf)].to(leaf.device), leaf]) if id(leaf) in first else leaf

        args, kwargs = tree_map(join, (call.args, call.kwargs))
        graph = self._traces.of(replace(call, args=args, kwargs=kwargs))
        return joined(graph, call.count + 1) is None

    def rows(self, given: Sequence[Tensor]) -> Tensor | None:
        """Return float inputs as points `[samples, n]`, whatever their values; None as in `points`.

        Raises:
            InputError: there are other inputs, or of another shape, than the captured ones.
        """
        if len(given) != len(self.graph.inputs):
            raise InputError(
                f"the batch holds {len(given)} float inputs and the captured model reads {len(self.graph.inputs)}: a "
                "domain needs a model that reads all of them"
            )
        single = self.graph.per_sample
        samples = len(given[0]) if single else 1
        rows = []
        for item, tensor in zip(self.graph.inputs, given, strict=True):
            shape = (1, *tensor.shape[1:]) if single else tuple(tensor.shape)
            if shape != item.shape and shape[1:] == item.shape[1:]:
                return None
            if shape != item.shape or (single and len(tensor) != samples):
                raise InputError(f"the domain speaks of inputs of shape {item.shape}, the batch holds {shape}")
            rows.append(tensor.detach().double().reshape(samples, -1).to(item.value.device))
        return torch.cat(rows, dim=1)

    def _inputs(self, call: Call) -> tuple[list[Tensor], Tensor]:
        """Return the graph's inputs at a call, and the model's output: the call's floats, or the token embeddings."""
        if call.variables:
            return [tensor for _, tensor in call.variables], fresh(self.model, call)
        seen: dict[str, list[Tensor]] = {item.path: [] for item in self.graph.inputs}
        with ExitStack() as hooks:
            for path, values in seen.items():
                try:
                    module = self.model.get_submodule(path)
                except AttributeError:  # it is the name of a float input
                    raise InputError(
                        "a batch holds no float tensor, while the captured function takes some: pass batches of one "
                        "form, and labels in tuples (inputs, labels)"
                    ) from None
                if not isinstance(module, nn.Embedding):
                    raise InputError(f"token ids enter through `{path}`, which is no nn.Embedding: pass embeddings")

                def keep(_: nn.Module, __: Any, value: Tensor, values: list[Tensor] = values) -> None:
                    values.append(value)

                hooks.callback(module.register_forward_hook(keep).remove)
            value = fresh(self.model, call)
        ran = {path: iter(values) for path, values in seen.items()}
        try:
            return [next(ran[item.path]) for item in self.graph.inputs], value
        except StopIteration:
            raise InputError("an embedding of the captured model did not run on this batch") from None

    def check(self, computed: Tensor, expected: Tensor) -> None:
        """Refuse points where the captured graph does not give what the model gives.

        Raises:
            InputError: they differ: the model treats the samples of a batch differently, or has changed.
        """
        if not close(computed, expected, coarse=bool(self.graph.rounded) or _narrow(self.graph)):
            raise InputError(
                "on this batch the model gives another output than the captured function: it treats the samples of a "
                "batch differently by their place, or batches by their size, or its weights have changed since. A "
                "domain speaks of one function: pass batches of one size, or of one sample each"
            )


def _narrow(graph: Graph) -> bool:
    """Whether the model computes in few digits: half precision, or float32 on a GPU, which may multiply in TF32."""
    values = [item.value for item in graph.inputs]
    return any(torch.finfo(v.dtype).eps > (1e-8 if v.is_cuda else 1e-4) for v in values)


@torch.no_grad()
def walk(steps: GraphSteps, points: Tensor, visit: Visitor, reads: Mapping[str, Sequence[str]]) -> Tensor:
    """Run the steps at flat points and show the values after each one, as `[B, *shape]` by name.

    A value is forgotten after the last step that reads it, or at which it is looked at (`reads`, by step). Returns the
    output, one row per point.
    """
    order = list(steps.steps.values())
    used = [dict.fromkeys((*step.operands, *reads.get(step.name, ()))) for step in order]
    last = {name: i for i, names in enumerate(used) for name in names}
    values = dict(steps.split(points))
    for name in list(values):
        visit(name, values)
    for i, step in enumerate(order):
        values[step.name] = evaluate(step, [values[name] for name in step.operands], len(points))
        visit(step.name, values)
        for name in used[i]:
            if last[name] == i and name != steps.output:
                del values[name]
    return values[steps.output].reshape(len(points), -1)


def chunks(steps: GraphSteps, points: Tensor) -> Sequence[Tensor]:
    """Cut points so that no value of several samples together grows too large."""
    largest = max((math.prod(shape) for shape in steps.shapes.values()), default=1)
    return points.split(max(1, ENTRIES // max(largest, 1)))
