"""One pass over data: batches as points of a captured graph, the figures there, and the largest of every condition."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...calls.agreement import agree
from ...calls.call import Call, arguments, fresh
from ...core.errors import InputError
from ...core.threads import full_precision
from ...core.untouched import dropping_nothing, outside_inference_mode, untouched
from ..captured import float64_graph
from ..graph.capturing import Traces, trace_model
from ..graph.ir import Graph, Ref, Unit, leaves
from ..graph.samples import joined
from ..segments import GraphSteps, evaluate, segment
from .conditions import DomainCondition

ENTRIES_AT_ONCE = 2**25
"""Entries of the largest value that is held for several samples at once."""


class FigureRecorder:
    """Turns what a model takes into flat float64 points of its graph, and takes the figures of its conditions there.

    A point is a sample, or a whole batch where samples meet. `graph` is what was captured of the model in the forced
    mode (None for that of the model) and output, `steps` the same in float64.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        steps: GraphSteps,
        mode: str | None,
        output: str | int | None,
        conditions: Sequence[DomainCondition],
    ) -> None:
        self.model, self.graph, self.steps, self.mode, self.output = model, graph, steps, mode, output
        self.conditions, self.digests = tuple(conditions), digests(steps.graph)
        self._traces = Traces(model, mode=mode, output=output)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        batch: Any,
        mode: str | None,
        output: str | int | None,
        known: Mapping[str, float] | None,
        conditions: Callable[[GraphSteps], Sequence[DomainCondition]],
    ) -> FigureRecorder:
        """Capture a model, and record what is asked for of its steps."""
        graph = trace_model(model, batch, mode=mode, output=output)
        with torch.no_grad():
            double = float64_graph(graph, known)
            if any(p.dtype == torch.float64 for p in model.parameters()):
                double = copy.deepcopy(double)  # it holds the model's own weights, and a domain outlives them
            steps = GraphSteps(double, segment(double).effects)
            return cls(model, graph, steps, mode, output, conditions(steps))

    @outside_inference_mode
    def points(self, batch: Any) -> tuple[Tensor, Tensor] | None:
        """Return the points `[samples, n]` of a batch and what the model returns there, one row per point.

        None for a batch of another size, where the captured function is that of a whole batch.
        """
        call = arguments(self.model, batch, self.output)
        self._refuse_other_masks(call)
        with torch.no_grad(), full_precision(), untouched(self.model, self.mode), dropping_nothing(self.model):
            inputs, value = self._inputs(call)
        points = self.rows(inputs)
        if points is None:
            return None
        if not bool(torch.isfinite(points).all()):
            raise InputError("the data hold NaN or infinite values: clean them first")
        return points, value.detach().double().reshape(len(points), -1)

    def _refuse_other_masks(self, call: Call) -> None:
        """Refuse samples whose masks make them inputs of another function, even if the outputs do not show it."""
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

    def rows(self, inputs: Sequence[Tensor]) -> Tensor | None:
        """Return float inputs as points `[samples, n]`, whatever their values; None as in `points`."""
        if len(inputs) != len(self.graph.inputs):
            raise InputError(
                f"the batch holds {len(inputs)} float inputs and the captured model reads {len(self.graph.inputs)}: a "
                "domain needs a model that reads all of them"
            )
        single = self.graph.per_sample
        samples = len(inputs[0]) if single else 1
        rows = []
        for item, tensor in zip(self.graph.inputs, inputs, strict=True):
            shape = (1, *tensor.shape[1:]) if single else tuple(tensor.shape)
            if shape != item.shape and shape[1:] == item.shape[1:]:
                return None
            if shape != item.shape or (single and len(tensor) != samples):
                raise InputError(
                    f"the domain covers inputs of shape {item.shape}, and a batch holds {shape}: pass batches of one "
                    "shape"
                )
            rows.append(tensor.detach().double().reshape(samples, -1).to(item.value.device))
        return torch.cat(rows, dim=1)

    def _inputs(self, call: Call) -> tuple[list[Tensor], Tensor]:
        """Return the graph's inputs at a call, and the model's output: the call's floats, or the token embeddings."""
        if call.variables:
            return [tensor for _, tensor in call.variables], fresh(self.model, call)
        entered: dict[str, list[Tensor]] = {item.path: [] for item in self.graph.inputs}
        with ExitStack() as hooks:
            for path, values in entered.items():
                try:
                    module = self.model.get_submodule(path)
                except AttributeError:  # it is the name of a float input
                    raise InputError(
                        "a batch holds no float tensor, while the captured function takes some: pass batches of one "
                        "form, and labels in tuples (inputs, labels)"
                    ) from None
                if not isinstance(module, nn.Embedding):
                    raise InputError(f"token ids enter through `{path}`, which is no nn.Embedding: pass embeddings")

                def keep(table: nn.Module, args: Any, kwargs: Any, values: list[Tensor] = values) -> None:
                    # the rows themselves: what a class made from nn.Embedding does to them belongs to the function
                    values.append(nn.Embedding.forward(cast(nn.Embedding, table), *args, **kwargs))

                hooks.callback(module.register_forward_pre_hook(keep, with_kwargs=True).remove)
            value = fresh(self.model, call)
        ran = {path: iter(values) for path, values in entered.items()}
        try:
            return [next(ran[item.path]) for item in self.graph.inputs], value
        except StopIteration:
            raise InputError("an embedding of the captured model did not run on this batch") from None

    def checked_figures(self, points: Tensor, expected: Tensor) -> dict[str, Tensor]:
        """Return the figures at points, and refuse those where the graph does not give what the model gives."""
        figures, computed = self.figures_at(points)
        if not agree(computed, expected, lambda: self._outputs(points), eps=self.graph.eps):
            raise InputError(
                "on this batch the model gives another output than the captured function: it treats the samples of a "
                "batch differently by their place, or batches by their size, or its weights have changed since. A "
                "domain speaks of one function: pass batches of one size, or of one sample each"
            )
        return figures

    def figures_at(self, points: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the figures of every condition at flat points, by key, and the network's output there."""
        parts: list[dict[str, Tensor]] = []
        outputs = []
        for chunk in points.split(self._at_once):
            figures, output = self._chunk(chunk)
            parts.append(figures)
            outputs.append(output)
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}, torch.cat(outputs)

    def _outputs(self, points: Tensor) -> Tensor:
        """Return the network's output at flat points."""
        return torch.cat([self.steps.values(part)[self.steps.output] for part in points.split(self._at_once)])

    @property
    def _at_once(self) -> int:
        """How many points are held at once."""
        largest = max((math.prod(shape) for shape in self.steps.shapes.values()), default=1)
        return max(1, ENTRIES_AT_ONCE // max(largest, 1))

    @torch.no_grad()
    def _chunk(self, points: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Run the steps at some points; a value is forgotten after the last step that reads it, or is looked at."""
        figures: dict[str, Tensor] = {}
        values = dict(self.steps.split(points))
        order = [(name, None) for name in values] + [(step.name, step) for step in self.steps.steps.values()]
        used = [
            {*(step.operands if step else ()), *(read for c in self._by_step.get(name, ()) for read in c.reads)}
            for name, step in order
        ]
        last = {name: i for i, names in enumerate(used) for name in names}
        for i, (name, step) in enumerate(order):
            if step is not None:
                values[name] = evaluate(step, [values[operand] for operand in step.operands], len(points))
            for condition in self._by_step.get(name, ()):
                raw = condition.figures(values)
                figures[condition.key] = raw.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
            for read in used[i]:
                if last[read] == i and read != self.steps.output:
                    del values[read]
        return figures, values[self.steps.output].reshape(len(points), -1)

    @cached_property
    def _by_step(self) -> dict[str, list[DomainCondition]]:
        """The conditions by the step after which they can be computed."""
        groups: dict[str, list[DomainCondition]] = {}
        for condition in self.conditions:
            groups.setdefault(condition.at, []).append(condition)
        return groups


def digests(graph: Graph) -> dict[str, str]:
    """Return a digest of every operator of a float64 graph: what it is, what it reads, its constants."""
    by_name = {item.name: hashlib.sha256(f"input {item.shape}".encode()).hexdigest() for item in graph.inputs}
    for node in graph:
        digest = hashlib.sha256(f"{node.op} {node.index} {node.shape} {list(node.kwargs)}".encode())
        for leaf in leaves((node.args, node.kwargs, node.op.data if isinstance(node.op, Unit) else {})):
            if isinstance(leaf, Tensor):
                plain = leaf.detach().cpu().contiguous()
                digest.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
                digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
            elif isinstance(leaf, Ref):
                digest.update(f"ref {leaf.name}".encode())
            elif isinstance(leaf, int | float | str | bool | None | torch.dtype):
                digest.update(repr(leaf).encode())
        by_name[node.name] = digest.hexdigest()
    return by_name


class Extremes:
    """The largest figures seen; a limit may leave at most `dropped` samples outside."""

    def __init__(self, dropped: float) -> None:
        self.kept = 1 + math.floor(dropped)
        self.samples = 0
        self.largest: dict[str, Tensor] = {}

    def add(self, figures: Mapping[str, Tensor], samples: int) -> None:
        """Take the figures of some samples into account."""
        self.samples += samples
        for key, rows in figures.items():
            candidates = torch.cat([self.largest[key], rows]) if key in self.largest else rows
            self.largest[key] = candidates.topk(min(self.kept, len(candidates)), dim=0).values

    def settled(self, conditions: Sequence[DomainCondition], margin: float, quantile: float) -> dict[str, Tensor]:
        """Return the limits of every condition, widened, each of which leaves out a share of the samples."""
        dropped = min(math.floor(quantile * self.samples), self.kept - 1)
        return {c.key: c.settled(self.largest[c.key][dropped], float(margin)) for c in conditions}
