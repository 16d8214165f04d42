"""Writes that nothing can see are read as new values; all others are left to torch, which follows shared memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import CaptureError
from normscope.graph.traced_program import IN_PLACE, OWN_MEMORY, is_plain, write_out_of_place, writes_nothing


class Function(nn.Module):
    """A layer with weights, and what is done with its output."""

    def __init__(self, after) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.after = nn.Linear(4, 4), after
        self.register_buffer("held", torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self, self.layer(x), x)


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def traced(after, batch):
    program = torch.export.export(Function(after), (batch,), strict=False)
    assert not writes_nothing(program)
    write_out_of_place(program)
    return program


def _branch(self, y, x):
    shortcut = torch.tanh(y)
    y += shortcut
    y.relu_()
    y.mul_(2.0)
    return y + shortcut


def _read_before(self, y, x):
    other = F.relu(y)
    y.add_(other, alpha=3)
    return torch.cat([y, other], 1)


def _twice(self, y, x):
    return y.add_(y).sub_(1.0)


def _alike(self, y, x):
    z = F.gelu(y)
    y += x
    z += y
    return F.silu(z, inplace=True) + y


def _through_contiguous(self, y, x):
    same = y.contiguous()  # y itself, which torch knows
    y += 1.0
    return same


UNSEEN = [
    _branch,
    _read_before,
    _twice,
    _alike,
    _through_contiguous,
    lambda self, y, x: F.hardtanh(y, inplace=True),
    lambda self, y, x: F.relu6(y, inplace=True),
    lambda self, y, x: F.elu(y, 0.5, inplace=True).clamp_(-0.1, 0.2),
    lambda self, y, x: y.add_(self.held),
    lambda self, y, x: y.div_(3.0).tanh_() * x,
    lambda self, y, x: F.leaky_relu(y, 0.3, inplace=True),
]


@pytest.mark.parametrize("number", range(len(UNSEEN)))
def test_writes_that_nothing_sees_are_read_as_new_values(number):
    after, batch = UNSEEN[number], drawn(3, 4)
    assert is_plain(traced(after, batch))
    model = Function(after).eval()
    graph = ns.capture(model, batch)
    assert torch.allclose(graph.run(batch[1:2]), model(batch[1:2]), rtol=1e-6)
    assert not any(str(node.op).split(".")[1].endswith("_") for node in graph)


def _through_a_view(self, y, x):
    row = y[:, :2]
    y.relu_()
    return row


def _of_a_view(self, y, x):
    y.view(-1).relu_()
    return y


def _through_dropout(self, y, x):
    same = F.dropout(y, 0.5, False)  # in eval mode it hands on its operand
    y.relu_()
    return same


def _through_detach(self, y, x):
    same = y.detach()
    y.relu_()
    return same + y


def _through_a_cast(self, y, x):
    same = y.to(torch.float32)
    y *= 2.0
    return same


def _through_einsum(self, y, x):
    turned = torch.einsum("ij->ji", y)
    y.relu_()
    return turned.t() + 0 * y


def _of_the_state(self, y, x):
    held = self.held.clone()
    return y + held.add_(1.0).view(-1).mul_(2.0)


def _wider(self, y, x):
    y += x.double()
    return y


def _by_an_index(self, y, x):
    y[:, 0] = 0.0
    return y


def _some_of_each(self, y, x):
    z = F.relu(y)
    z += 1.0
    y[:, :2].relu_()
    return y + z


SEEN = [
    _through_a_view,
    _of_a_view,
    _through_detach,
    _through_a_cast,
    _of_the_state,
    _wider,
    _by_an_index,
    _some_of_each,
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("after", SEEN, ids=lambda after: after.__name__.strip("_"))
def test_writes_that_something_sees_are_left_to_torch(after):
    batch = drawn(2, 4)
    program = traced(after, batch)
    assert not writes_nothing(program)
    model = Function(after).eval()
    graph = ns.capture(model, batch)
    assert torch.allclose(graph.run(batch[1:]).double(), model(batch[1:].clone()).double(), rtol=1e-6)


@pytest.mark.parametrize("after", [_through_dropout, _through_einsum])
def test_values_that_are_handed_on_without_torch_saying_so_are_not_taken_for_new_ones(after):
    batch = drawn(2, 4)
    assert not writes_nothing(traced(after, batch))
    with pytest.raises(CaptureError, match="does not give the model's own output"):  # torch's rewriting errs
        ns.capture(Function(after).eval(), batch)


def test_the_input_is_not_written_out_of_place():
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu_() + 1.0

    program = torch.export.export(Writes(), (drawn(2, 4),), strict=False)
    write_out_of_place(program)
    assert not writes_nothing(program)


def test_a_new_value_is_what_the_write_would_have_left():
    values = drawn(5, 3).double()
    for write, new in IN_PLACE.items():
        operands = (torch.full((3,), 0.5, dtype=torch.float64),) if ".Tensor" in str(write) else ()
        operands = (-0.5, 0.5) if "clamp" in str(write) else operands
        written = values.clone()
        assert write(written, *operands) is written
        assert torch.equal(new(values, *operands), written), write
        assert not new._schema.is_mutable


def test_no_operator_with_memory_of_its_own_says_that_it_shares_any():
    for target in OWN_MEMORY:
        assert all(result.alias_info is None for result in target._schema.returns), target


class Block(nn.Module):
    """A residual block as torchvision and transformers write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True)
        self.again, self.last = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.last(self.again(self.relu(self.norm(self.conv(x)))))
        out += x
        return self.relu(out)


def test_residual_blocks_need_no_rewriting(monkeypatch):
    torch.manual_seed(0)
    model, batch = nn.Sequential(Block(), Block()).eval(), drawn(2, 3, 5, 5)
    rewritten = []
    real = torch.export.ExportedProgram.run_decompositions

    def watched(program, *rest):
        rewritten.append(program)
        return real(program, *rest)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", watched)
    graph = ns.capture(model, batch)
    assert not rewritten
    assert torch.allclose(graph.run(batch[:1]), model(batch[:1]), rtol=1e-5)
    assert [str(node.op) for node in graph].count("aten.relu.default") == 4
    ns.capture(model.train(), batch)
    assert rewritten
