"""Do the tests of capture bite? Bugs are planted one by one; each must be caught by tests that pass without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from normscope.bounds.captured import Captured
from normscope.core import untouched
from normscope.core.errors import NormscopeError
from normscope.core.untouched import ProtectedParameters, Reached
from normscope.graph import call, capturing, samples, translate
from normscope.graph.ir import Node

from ..core import test_reached
from ..soundness.planting import around, replacing
from . import test_memory, test_precision, test_samples, test_state

aten = torch.ops.aten
Patch = pytest.MonkeyPatch


def blind(patch: Patch) -> None:
    """No comparison of the graph with the model."""
    patch.setattr(capturing, "close", lambda *_, **__: True)


def meeting(op: Any, planted: samples.Meeting) -> Callable[[Patch], None]:
    return lambda patch: patch.setitem(samples.TABLE, op, planted)


def unseen_writes(patch: Patch) -> None:
    blind(patch)
    patch.setattr(capturing, "changed", lambda *_: [])
    patch.setattr(translate, "refuse_moved_statistics", lambda *_: None)


def flat_strides(patch: Patch) -> None:
    """Operands of `as_strided` count as contiguous, as they once did."""
    blind(patch)
    real = translate.entries_read

    def contiguous(node: torch.fx.Node) -> Any:
        value = node.args[0].meta["val"]
        node.args[0].meta["val"] = torch.empty(value.shape)
        try:
            return real(node)
        finally:
            node.args[0].meta["val"] = value

    patch.setattr(translate, "entries_read", contiguous)


def nothing_meets(patch: Patch) -> None:
    def apart(entries: samples.Entries, dims: Any) -> samples.Entries:
        nothing = torch.zeros_like(entries.owner.amax(sorted(dims), keepdim=True))
        return samples.Entries(nothing, nothing)

    patch.setattr(samples, "_along", apart)


def left_factor_alone(node: Node, values: Any) -> Any:
    return samples._along(values[0], [-1]).expand(node.shape)


def one_sample_alone(patch: Patch) -> None:
    """The graph of two samples stands for that of the batch."""

    def few(graph: Any, count: int) -> str | None:
        return None if count > 2 else samples.joined(graph, count)

    patch.setattr(capturing, "joined", few)


@around(samples, "_together")
def constants_are_alike(real, node, parts, constants=()):
    """Constants are not looked at, as they once were not."""
    return real(node, parts)


def _permuted(entries: samples.Entries, order: Any) -> samples.Entries:
    implied = frozenset(order.index(dim) for dim in entries.implied)
    return samples.Entries(entries.owner.permute(*order), entries.label.permute(*order), implied)


def masks_are_constants(patch: Patch) -> None:
    """Masks and ids count as constants of the batch, as they once did."""
    real = translate.translate
    patch.setattr(capturing, "translate", lambda *given, masks=False: real(*given))


def mixed(name: str) -> Callable[[], None]:
    return lambda: test_samples.test_samples_that_meet_are_one_input(name)


def unlike(name: str) -> Callable[[], None]:
    return lambda: test_samples.test_samples_that_are_treated_differently_are_one_input(name)


def apart(name: str) -> Callable[[], None]:
    return lambda: test_samples.test_samples_that_never_meet_are_measured_one_by_one(name)


def instance(function: Callable[..., Any]) -> Callable[[], None]:
    return lambda: test_state.test_statistics_of_an_instance_norm_that_are_read_are_refused(function, 1.0)


def narrow(name: str) -> Callable[[], None]:
    return lambda: test_precision.test_rounding_on_the_path_is_named_and_not_proven(name)


BUGS = {  # mistakes, each with the test that must see it
    "what an instance norm moves is not looked at": (
        unseen_writes, instance(lambda y, x, n: x + 1e4 * n.running_mean[:, None])
    ),
    "graph and model are not compared": (
        replacing(capturing, "_verify", lambda *_: None), instance(lambda y, x, n: x + 1e4 * n.running_mean[:, None])
    ),
    "attributes stay as a run left them": (
        replacing(Reached, "restore", lambda self: None),
        lambda: test_state.test_a_figure_in_train_mode_is_that_of_the_state_as_found("count"),
    ),
    "weights stay as a run left them": (
        replacing(ProtectedParameters, "restore", lambda self: None),
        lambda: test_state.test_a_weight_that_a_run_changes_is_part_of_the_function_or_refused("renorm"),
    ),
    "lists stay as a run left them": (
        replacing(untouched, "_contents", lambda container: lambda: None),
        lambda: test_reached.test_what_a_forward_keeps_is_left_as_found("nested", False),
    ),
    "as_strided takes its operand for contiguous": (flat_strides, test_memory.test_operands_that_are_not_contiguous),
    "as_strided of an operator's output": (
        flat_strides, lambda: test_memory.test_as_strided_reads_what_the_model_reads("after an operator", "global")
    ),
    "samples are compared by draws": (
        replacing(capturing, "what_joins", lambda *_: None), mixed("a sine of the distance to the mean")
    ),
    "unknown operators act entry by entry": (
        replacing(samples, "everything", lambda node, values: samples._together(node, values)),
        mixed("not in the table"),
    ),
    "comparisons do not count": (
        replacing(samples, "entrywise", lambda node, values: values[0].expand(node.shape)), mixed("compare")
    ),
    "two operands are not compared": (replacing(samples, "_both", torch.maximum), lambda: _meet("neighbour")),
    "reductions are not looked at": (nothing_meets, mixed("sum")),
    "sorting acts entry by entry": (meeting(aten.sort.default, samples.entrywise), mixed("sort")),
    "running sums act entry by entry": (meeting(aten.cumsum.default, samples.entrywise), mixed("running sum")),
    "products read their first factor": (meeting(aten.matmul.default, left_factor_alone), mixed("gram")),
    "batch norm acts entry by entry": (
        meeting(aten._native_batch_norm_legit.no_stats, samples.entrywise), mixed("batch norm")
    ),
    "reversing keeps every sample in place": (meeting(aten.flip.default, samples.entrywise), mixed("flat")),
    "all samples have one number": (
        replacing(samples, "_numbered", lambda shape, device: torch.ones(tuple(shape), dtype=torch.int64)),
        mixed("sum"),
    ),
    "constants are not looked at": (constants_are_alike, unlike("scaled by a buffer")),
    "constants of a channel are not looked at": (
        meeting(aten.prelu.default, samples.overwrite), unlike("a slope by channel")
    ),
    "operators are not told apart": (replacing(samples, "_signature", lambda node: 0), unlike("a number by row")),
    "places are not told apart": (
        replacing(samples, "_explicit", lambda entries: samples.Entries(entries.owner, entries.label)),
        unlike("one row reversed"),
    ),
    "the order of places is lost": (replacing(samples.Entries, "permute", _permuted), unlike("one row transposed")),
    "masks need not come to their own sample": (
        masks_are_constants, test_samples.test_masks_that_mix_or_differ_in_use_join_the_samples
    ),
    "large batches are not looked at": (one_sample_alone, mixed("large batches alone")),
    "every operator mixes": (replacing(samples, "met", samples.everything), apart("mlp")),
    "casts are not looked at": (replacing(translate, "rounded", lambda *_: ()), narrow("half")),
    "a float holds what it can reach": (
        replacing(translate, "holds", lambda a, b: torch.finfo(a).max >= 0.9 * torch.finfo(b).max),
        narrow("through bfloat16"),
    ),
    "evidence does not follow the notes": (
        replacing(Captured, "evidence", lambda self, value: value.evidence), narrow("through bfloat16")
    ),
    "single samples need not give the same alone": (
        replacing(call, "_alike", lambda *_: True), lambda: _not_by_sample(lambda x: x * len(x))
    ),
}  # fmt: skip


def _meet(name: str) -> None:
    """The samples are not only treated differently."""
    graph = capturing.capture(test_samples.Function(test_samples.MIXING[name]).eval(), torch.randn(5, 4))
    assert "samples of the batch meet" in graph.notes[-1]


def _not_by_sample(function: Callable[..., Any]) -> None:
    model = test_samples.Function(function).eval()
    assert not capturing.capture(model, torch.randn(4, 3)).per_sample


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_caught(name, monkeypatch):
    plant, trial = BUGS[name]
    trial()
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, NormscopeError)):  # and no crash of the plant
        trial()
