"""Writes that nothing can see are read as new values; all others are left to torch, which follows shared memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.bounds.graph.traced_program import is_plain, write_out_of_place, writes_nothing
from normscope.core.errors import CaptureError

from ..soundness.networks import Function


def layer_and(after) -> nn.Module:
    """A layer with weights, and what is done with its output."""
    torch.manual_seed(0)
    return Function(lambda net, x: after(net, net.layer(x), x), layer=nn.Linear(4, 4), held=torch.randn(4))


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def traced(after, batch):
    program = torch.export.export(layer_and(after), (batch,), strict=False)
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


def _through_contiguous(self, y, x):
    same = y.contiguous()  # y itself, which torch knows
    y += 1.0
    return same


UNSEEN = [
    _branch,
    _read_before,
    _through_contiguous,
    lambda self, y, x: F.elu(y, 0.5, inplace=True).clamp_(-0.1, 0.2),
    lambda self, y, x: y.add_(self.held),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", range(len(UNSEEN)))
def test_writes_that_nothing_sees_are_read_as_new_values(number):
    after, batch = UNSEEN[number], drawn(3, 4)
    assert is_plain(traced(after, batch))
    model = layer_and(after).eval()
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


def _wider(self, y, x):
    y += x.double()
    return y


def _by_an_index(self, y, x):
    y[:, 0] = 0.0
    return y


SEEN = [_through_a_view, _of_a_view, _wider, _by_an_index]


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("after", SEEN, ids=lambda after: after.__name__.strip("_"))
def test_writes_that_something_sees_are_left_to_torch(after):
    batch = drawn(2, 4)
    program = traced(after, batch)
    assert not writes_nothing(program)
    model = layer_and(after).eval()
    graph = ns.capture(model, batch)
    assert torch.allclose(graph.run(batch[1:]).double(), model(batch[1:].clone()).double(), rtol=1e-6)


@pytest.mark.parametrize("after", [_through_dropout])
def test_values_that_are_handed_on_without_torch_saying_so_are_not_taken_for_new_ones(after):
    batch = drawn(2, 4)
    assert not writes_nothing(traced(after, batch))
    with pytest.raises(CaptureError, match="does not give the model's own output"):  # torch's rewriting errs
        ns.capture(layer_and(after).eval(), batch)
