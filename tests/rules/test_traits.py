"""Traits of operators: what is said of an operator beside its rule is true of it, and is said once."""

from __future__ import annotations

import pytest
import torch

from normscope.bounds.graph.traits import TRAITS, describe, traits_of
from normscope.bounds.operators.registry import operators

X = torch.linspace(-8.0, 8.0, 1601, dtype=torch.float64)


def test_no_trait_is_said_twice() -> None:
    with pytest.raises(ValueError, match=r"keeps of aten\.permute\.default is known already"):
        describe("permute.default", keeps="some")
    with pytest.raises(TypeError, match="colour"):
        describe("permute.default", colour="red")


def test_a_record_has_the_traits_of_its_operator() -> None:
    records = {record.op: record for record in operators()}
    assert records[torch.ops.aten.permute.default].traits is traits_of(torch.ops.aten.permute.default)
    assert records["rms"].traits.samples is None


@pytest.mark.parametrize("op", [op for op, traits in TRAITS.items() if traits.kinks], ids=str)
def test_kinks_are_counted_and_homogeneous_functions_let_positive_factors_through(op) -> None:
    slopes = op(X).diff() / X.diff()
    bends = (slopes.diff().abs() > 1e-6).nonzero().flatten()
    assert 1 + int((bends.diff() > 1).sum()) == TRAITS[op].kinks
    assert torch.allclose(op(3.0 * X), 3.0 * op(X)) is TRAITS[op].homogeneous


OPTIONS = {
    "reshape.default": [[3, 2]], "view.default": [[3, 2]], "_unsafe_view.default": [[3, 2]], "flatten.using_ints": [1],
    "unflatten.int": [2, [3, 1]], "squeeze.default": [], "squeeze.dim": [1], "squeeze.dims": [[1]],
    "unsqueeze.default": [0], "reshape_as.default": [torch.zeros(3, 2)], "view_as.default": [torch.zeros(3, 2)],
    "atleast_1d.default": [], "alias.default": [], "clone.default": [], "detach.default": [], "contiguous.default": [],
    "permute.default": [(2, 0, 1)], "transpose.int": [0, 2], "movedim.int": [0, 2], "swapaxes.default": [0, 1],
    "expand.default": [(2, 4, 3)], "slice.Tensor": [2, 1, 3], "select.int": [2, 1], "narrow.default": [2, 1, 1],
}  # fmt: skip
"""Arguments behind a value `[2, 1, 3]`."""


@pytest.mark.parametrize("name", OPTIONS)
def test_an_operator_keeps_the_entries_that_it_is_said_to_keep(name: str) -> None:
    packet, _, overload = name.partition(".")
    op, x = getattr(getattr(torch.ops.aten, packet), overload), torch.randn(2, 1, 3)
    entries = op(x, *OPTIONS[name]).reshape(-1).tolist()
    seen = {
        "same": entries == x.reshape(-1).tolist() and op(x, *OPTIONS[name]).shape == x.shape,
        "order": entries == x.reshape(-1).tolist(),
        "all": sorted(entries) == sorted(x.reshape(-1).tolist()),
        "some": set(entries) <= set(x.reshape(-1).tolist()),
    }
    assert seen[TRAITS[op].keeps]
