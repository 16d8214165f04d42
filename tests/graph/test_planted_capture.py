"""Do the tests of capture bite? Bugs are planted one by one; each must be caught by tests that pass without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from normscope.bounds.graph import capturing, samples, translate
from normscope.bounds.graph.traits import TRAITS, Traits
from normscope.bounds.traced_network import TracedNetwork
from normscope.calls import call
from normscope.core.errors import NormscopeError
from normscope.core.untouched import Reached

from ..soundness.planting import around, replacing
from . import test_memory, test_precision, test_samples, test_state

aten = torch.ops.aten
Patch = pytest.MonkeyPatch


def blind(patch: Patch) -> None:
    """No comparison of the graph with the model."""
    patch.setattr(capturing, "agree", lambda *_, **__: True)


def meeting(op: Any, planted: samples.Meeting) -> Callable[[Patch], None]:
    return lambda patch: patch.setitem(TRAITS, op, Traits(samples=planted))


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


@around(samples, "_together")
def constants_are_alike(real, node, parts, constants=()):
    """Constants are not looked at, as they once were not."""
    return real(node, parts)


def masks_are_constants(patch: Patch) -> None:
    """Masks and ids count as constants of the batch, as they once did."""
    real = translate.translate
    patch.setattr(capturing, "translate", lambda *given, masks=False: real(*given))


def other_alone(patch: Patch) -> None:
    """Neither the values of a sample alone are compared with those in the batch, nor the two traces."""
    patch.setattr(call, "_alike", lambda *_: True)
    patch.setattr(capturing, "what_changes", lambda *_: None)


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
    "attributes stay as a run left them": (
        replacing(Reached, "restore", lambda self: None),
        lambda: test_state.test_a_figure_in_train_mode_is_that_of_the_state_as_found("count"),
    ),
    "as_strided takes its operand for contiguous": (flat_strides, test_memory.test_operands_that_are_not_contiguous),
    "samples are compared by draws": (
        replacing(capturing, "what_joins", lambda *_: None), mixed("a sine of the distance to the mean")
    ),
    "unknown operators act entry by entry": (
        replacing(samples, "everything", lambda node, values: samples._together(node, values)),
        mixed("not in the table"),
    ),
    "two operands are not compared": (replacing(samples, "_both", torch.maximum), lambda: _meet("neighbour")),
    "reductions are not looked at": (nothing_meets, mixed("sum")),
    "batch norm acts entry by entry": (
        meeting(aten._native_batch_norm_legit.no_stats, samples.entrywise), mixed("batch norm")
    ),
    "constants are not looked at": (constants_are_alike, unlike("scaled by a buffer")),
    "places are not told apart": (
        replacing(samples, "_explicit", lambda entries: samples.Entries(entries.owner, entries.label)),
        unlike("one row reversed"),
    ),
    "masks need not come to their own sample": (
        masks_are_constants, test_samples.test_masks_that_mix_or_differ_in_use_join_the_samples
    ),
    "every operator mixes": (replacing(samples, "met", samples.everything), apart("mlp")),
    "casts are not looked at": (replacing(translate, "rounded", lambda *_: ()), narrow("half")),
    "evidence does not follow the notes": (
        replacing(TracedNetwork, "evidence", lambda self, value: value.evidence), narrow("through bfloat16")
    ),
    "single samples need not give the same alone": (
        other_alone, lambda: _not_by_sample(lambda x: x * len(x))
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
