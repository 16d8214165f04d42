"""The shortcuts that the tests take around torch.export change nothing but the time."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns


class Mixed(nn.Module):
    """Operators that torch keeps whole, takes apart, and takes apart into some that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)
        self.batch, self.instance = nn.BatchNorm2d(4), nn.InstanceNorm2d(4, affine=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu_(self.batch(self.convolution(x)))
        x = F.dropout(self.instance(x), 0.5, self.training)
        x = torch.where(x > 0, 0.5, x.flatten(2).chunk(2, dim=1)[0].repeat(1, 2, 1).view_as(x))
        x = F.pad(F.interpolate(x, scale_factor=2.0)[..., :4, :4], (1, 1, 0, 0), "circular")[..., 1:-1]
        tokens = x.flatten(2).mT.contiguous()[:, :4]
        with torch.no_grad():
            scale = tokens.new_ones(1) + 1
        return self.last((tokens + self.attention(tokens, tokens, tokens)[0]).reshape(len(x), -1) * scale)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_graph_is_the_same(mode, monkeypatch, plain_exports):
    model, batch = Mixed(), torch.randn(2, 3, 4, 4)
    quick = ns.capture(model, batch, mode=mode)
    for name, function in plain_exports.items():
        monkeypatch.setattr(f"normscope.bounds.graph.capturing.{name}", function)
    plain = ns.capture(model, batch, mode=mode)

    def written(graph):
        return [(node.name, str(node.op), node.refs, node.shape, node.path, node.source) for node in graph]

    assert len(plain.nodes) > 15
    assert written(quick) == written(plain)
    x = plain.inputs[0].value
    assert torch.equal(quick.run(x), plain.run(x))
