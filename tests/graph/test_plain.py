"""Traces that are read as they are: torch's rewriting would give the same operators."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.bounds.graph import capturing
from normscope.bounds.graph.traced_program import is_plain, writes_nothing

aten = torch.ops.aten


def drawn(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)) + 0.5


class Views(nn.Module):
    """What torch writes otherwise: views, casts, copies, batch norm, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.bend, self.norm, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)
        self.norm.running_mean.copy_(torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.norm(self.bend(x)))
        x = x.flatten(2).contiguous().unflatten(2, (2, -1)).reshape(len(x), 2, -1)
        return x.double().to(torch.float32).to(x.device).view(len(x), -1).clone()


def written(graph):
    return [(str(node.op), node.shape, node.dtype, node.path, node.kind, node.index) for node in graph]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_what_torch_writes_otherwise_is_written_as_torch_does(monkeypatch, count):
    model, batch = Views().eval(), drawn(count, 3, 4, 4)
    read = ns.capture(model, batch)
    assert is_plain(torch.export.export(model, (batch,), strict=False))
    monkeypatch.setattr(capturing, "is_plain", lambda program: False)
    rewritten = ns.capture(model, batch)
    moved = ("aten.alias.default", "aten.clone.default", "aten._to_copy.default", "aten.reshape.default")
    important = [entry for entry in written(read) if entry[0] not in moved]
    assert important == [entry for entry in written(rewritten) if entry[0] not in moved]
    assert len(important) == 2
    assert torch.equal(read.run(batch[:1]), rewritten.run(batch[:1]))
    assert [str(node.op) for node in read if "batch_norm" in str(node.op)] == [
        "aten._native_batch_norm_legit_no_training.default"
    ]


def test_a_batch_norm_in_train_mode_is_rewritten():
    program = torch.export.export(nn.BatchNorm1d(4).train(), (drawn(3, 4),), strict=False)
    assert not is_plain(program)
    assert not writes_nothing(program)
