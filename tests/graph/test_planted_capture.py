"""Do the tests of capture bite? Bugs are planted one by one; each must be caught by tests that pass without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from . import test_memory, test_precision, test_samples, test_state

aten = torch.ops.aten
Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """A mistake, and the test that must see it."""

    plant: Callable[[Patch], None]
    trial: Callable[[], Any]


def blind(patch: Patch) -> None:
    """No comparison of the graph with the model."""
    patch.setattr(capturing, "close", lambda *_, **__: True)


def meeting(op: Any, planted: samples.Meeting) -> Callable[[Patch], None]:
    return lambda patch: patch.setitem(samples.TABLE, op, planted)


def unseen_writes(patch: Patch) -> None:
    blind(patch)
    patch.setattr(capturing, "changed", lambda *_: [])
    patch.setattr(translate, "refuse_moved_statistics", lambda *_: None)


def unverified(patch: Patch) -> None:
    patch.setattr(capturing, "_verify", lambda *_: None)


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


def unknown_is_entrywise(patch: Patch) -> None:
    patch.setattr(samples, "everything", lambda node, values: samples._together(node, values))


def first_operand_alone(patch: Patch) -> None:
    patch.setattr(samples, "entrywise", lambda node, values: values[0].expand(node.shape))


def both_is_the_first(patch: Patch) -> None:
    patch.setattr(samples, "_both", torch.maximum)


def nothing_meets(patch: Patch) -> None:
    def apart(entries: samples.Entries, dims: Any) -> samples.Entries:
        nothing = torch.zeros_like(entries.owner.amax(sorted(dims), keepdim=True))
        return samples.Entries(nothing, nothing)

    patch.setattr(samples, "_along", apart)


def left_factor_alone(node: Node, values: Any) -> Any:
    return samples._along(values[0], [-1]).expand(node.shape)


def any_order(patch: Patch) -> None:
    patch.setattr(samples, "_numbered", lambda shape, device: torch.ones(tuple(shape), dtype=torch.int64))


def by_draws(patch: Patch) -> None:
    """Only runs are compared, as they once were."""
    patch.setattr(capturing, "what_joins", lambda *_: None)


def one_sample_alone(patch: Patch) -> None:
    """The graph of two samples stands for that of the batch."""

    def few(graph: Any, count: int) -> str | None:
        return None if count > 2 else samples.joined(graph, count)

    patch.setattr(capturing, "joined", few)


def constants_are_alike(patch: Patch) -> None:
    """Constants are not looked at, as they once were not."""
    real = samples._together
    patch.setattr(samples, "_together", lambda node, parts, constants=(): real(node, parts))


def operators_are_alike(patch: Patch) -> None:
    """Rows are not told apart by the operators and numbers that make them."""
    patch.setattr(samples, "_signature", lambda node: 0)


def places_are_alike(patch: Patch) -> None:
    """Entries that were moved keep no trace of the place that they come from."""
    patch.setattr(samples, "_explicit", lambda entries: samples.Entries(entries.owner, entries.label))


def order_of_places_is_lost(patch: Patch) -> None:
    patch.setattr(samples.Entries, "permute", _permuted)


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


BUGS = {
    "what an instance norm moves is not looked at": Bug(
        unseen_writes, instance(lambda y, x, n: x + 1e4 * n.running_mean[:, None])
    ),
    "graph and model are not compared": Bug(unverified, instance(lambda y, x, n: x + 1e4 * n.running_mean[:, None])),
    "attributes stay as a run left them": Bug(
        lambda patch: patch.setattr(Reached, "restore", lambda self: None),
        lambda: test_state.test_a_figure_in_train_mode_is_that_of_the_state_as_found("count"),
    ),
    "weights stay as a run left them": Bug(
        lambda patch: patch.setattr(ProtectedParameters, "restore", lambda self: None),
        lambda: test_state.test_a_weight_that_a_run_changes_is_part_of_the_function_or_refused("renorm"),
    ),
    "lists stay as a run left them": Bug(
        lambda patch: patch.setattr(untouched, "_contents", lambda container: lambda: None),
        lambda: test_reached.test_what_a_forward_keeps_is_left_as_found("nested", False),
    ),
    "as_strided takes its operand for contiguous": Bug(flat_strides, test_memory.test_operands_that_are_not_contiguous),
    "as_strided of an operator's output": Bug(
        flat_strides, lambda: test_memory.test_as_strided_reads_what_the_model_reads("after an operator", "global")
    ),
    "samples are compared by draws": Bug(by_draws, mixed("a sine of the distance to the mean")),
    "unknown operators act entry by entry": Bug(unknown_is_entrywise, mixed("not in the table")),
    "comparisons do not count": Bug(first_operand_alone, mixed("compare")),
    "two operands are not compared": Bug(both_is_the_first, lambda: _meet("neighbour")),
    "reductions are not looked at": Bug(nothing_meets, mixed("sum")),
    "sorting acts entry by entry": Bug(meeting(aten.sort.default, samples.entrywise), mixed("sort")),
    "running sums act entry by entry": Bug(meeting(aten.cumsum.default, samples.entrywise), mixed("running sum")),
    "products read their first factor": Bug(meeting(aten.matmul.default, left_factor_alone), mixed("gram")),
    "batch norm acts entry by entry": Bug(
        meeting(aten._native_batch_norm_legit.no_stats, samples.entrywise), mixed("batch norm")
    ),
    "reversing keeps every sample in place": Bug(meeting(aten.flip.default, samples.entrywise), mixed("flat")),
    "all samples have one number": Bug(any_order, mixed("sum")),
    "constants are not looked at": Bug(constants_are_alike, unlike("scaled by a buffer")),
    "constants of a channel are not looked at": Bug(
        meeting(aten.prelu.default, samples.overwrite), unlike("a slope by channel")
    ),
    "operators are not told apart": Bug(operators_are_alike, unlike("a number by row")),
    "places are not told apart": Bug(places_are_alike, unlike("one row reversed")),
    "the order of places is lost": Bug(order_of_places_is_lost, unlike("one row transposed")),
    "masks need not come to their own sample": Bug(
        masks_are_constants, test_samples.test_masks_that_mix_or_differ_in_use_join_the_samples
    ),
    "large batches are not looked at": Bug(one_sample_alone, mixed("large batches alone")),
    "every operator mixes": Bug(
        lambda patch: patch.setattr(samples, "met", samples.everything), apart("mlp")
    ),
    "casts are not looked at": Bug(lambda patch: patch.setattr(translate, "rounded", lambda *_: ()), narrow("half")),
    "a float holds what it can reach": Bug(
        lambda patch: patch.setattr(
            translate, "holds", lambda a, b: torch.finfo(a).max >= 0.9 * torch.finfo(b).max
        ),
        narrow("through bfloat16"),
    ),
    "evidence does not follow the notes": Bug(
        lambda patch: patch.setattr(Captured, "evidence", lambda self, value: value.evidence),
        narrow("through bfloat16"),
    ),
    "single samples need not give the same alone": Bug(
        lambda patch: patch.setattr(call, "_alike", lambda *_: True),
        lambda: _not_by_sample(lambda x: x * len(x)),
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
    bug = BUGS[name]
    bug.trial()
    bug.plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, NormscopeError)):  # and no crash of the plant
        bug.trial()
