"""Models that hold sparse, nested, quantized and other unusual tensors are measured and left as found, or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.untouched import same

EYE = torch.eye(4)
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(Sparse|nested tensors|quantize|channel_axis)", "ignore::DeprecationWarning"
)
SPARSE: dict[str, Callable[[Tensor], Tensor]] = {
    "COO": Tensor.to_sparse,
    "CSR": Tensor.to_sparse_csr,
    "CSC": Tensor.to_sparse_csc,
    "BSR": lambda dense: dense.to_sparse_bsr((2, 2)),
    "BSC": lambda dense: dense.to_sparse_bsc((2, 2)),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    **SPARSE,
    "sparse integers": lambda dense: dense.long().to_sparse(),
    "nested": lambda dense: torch.nested.nested_tensor([dense[0], dense[1, :2]]),
    "jagged": lambda dense: torch.nested.nested_tensor([dense[0], dense[1, :2]], layout=torch.jagged),
    "quantized": lambda dense: torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8),
    "float8": lambda dense: dense.to(torch.float8_e4m3fn),
    "complex": lambda dense: dense.to(torch.complex64).conj(),
}


class Holding(nn.Module):
    """A linear layer beside a buffer that the output reads on request."""

    def __init__(self, held: Tensor, *, read: bool = False) -> None:
        super().__init__()
        self.layer, self.read = nn.Linear(4, 3), read
        self.register_buffer("held", held)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x @ self.held.to_dense() if self.read else x)


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_of_any_layout_are_compared(name: str) -> None:
    first, moved = LAYOUTS[name](EYE), EYE.clone()
    moved[0, 0] = 2.0
    assert same(first, LAYOUTS[name](EYE))
    assert not same(first, LAYOUTS[name](moved))
    assert not same(first, LAYOUTS[name](torch.ones(4, 4)))


def test_values_are_compared_by_their_bits() -> None:
    nan, empty = torch.tensor([[float("nan"), 1.0]]), torch.zeros(0, 3)
    assert same(nan, nan.clone())
    assert same(nan.to_sparse(), nan.to_sparse())
    assert same(nan * 1j, nan * 1j)
    assert same(empty, empty.clone())
    assert not same(empty, torch.zeros(0, 4))
    assert not same(empty, empty.int())
    assert same(torch.zeros(2, device="meta"), torch.zeros(2, device="meta"))
    assert not same(torch.zeros(2), -torch.zeros(2))


@pytest.mark.parametrize("kept", ["buffer", "attribute"])
@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_tensor_that_a_forward_fills_is_put_back(name: str, kept: str) -> None:
    class Filling(Holding):
        def forward(self, x: Tensor) -> Tensor:
            full = SPARSE[name](torch.ones(4, 4))
            self.held.resize_as_sparse_(full).copy_(full)
            return self.layer(x)

    model = Filling(SPARSE[name](EYE))
    if kept == "attribute":
        held = model._buffers.pop("held")
        model.held = held
    held = model.held
    ns.check(model, torch.randn(5, 4))
    assert model.held is held
    assert same(held, SPARSE[name](EYE))


def test_what_cannot_be_put_back_is_refused_by_name() -> None:
    uncopied = torch.quantize_per_channel(EYE, torch.ones(4), torch.zeros(4), 0, torch.quint8)
    inside = nn.Sequential(nn.Linear(4, 4), Holding(uncopied))
    with pytest.raises(ns.NormscopeError, match=r"tensor `1\.held` .*quint8.* cannot be copied .* store its values in"):
        ns.check(inside, torch.randn(5, 4))
    with pytest.raises(ns.NormscopeError, match=r"'1\.running_mean' has no size yet: run the model once"):
        ns.check(nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d()), torch.randn(5, 4))


@pytest.mark.parametrize("name", ["COO", "CSR", "nested"])
def test_a_parameter_that_is_not_dense_is_refused_by_name(name: str) -> None:
    model = Holding(EYE)
    model.layer.extra = nn.Parameter(LAYOUTS[name](EYE))
    with pytest.raises(ns.NormscopeError, match=r"parameter `layer\.extra` is not a dense tensor"):
        ns.check(model, torch.randn(5, 4))
