"""Traces that are read as they are: torch's rewriting would give the same operators."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.graph import capturing
from normscope.graph.traced_program import KEPT, is_plain, writes_nothing

aten = torch.ops.aten
WHOLE = [torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum]
ENTRYWISE = [
    torch.neg, torch.abs, torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.square, torch.sin,
    torch.cos, torch.erf, torch.tanh, torch.sigmoid, F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.gelu, F.silu,
    F.mish, F.hardtanh, F.hardswish, F.hardsigmoid, F.softplus, torch.expm1, torch.log1p, torch.sinh, torch.cosh,
    torch.atan, torch.floor, torch.round, F.celu, F.logsigmoid,
]  # fmt: skip


class Every(nn.Module):
    """Calls every operator of `KEPT` once, and joins one entry of each value."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.long = nn.Conv2d(3, 4, 3), nn.Conv1d(3, 4, 3)
        self.line, self.rows = nn.Linear(4, 4), nn.Embedding(5, 4)
        self.layer, self.root, self.group = nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square, cube, image = x[0, 0], x[0], self.wide(x)
        tokens = image.flatten(2).transpose(1, 2)
        made = [call(x, x) for call in WHOLE] + [call(x) for call in ENTRYWISE]
        made += [self.line(tokens), tokens @ tokens.transpose(1, 2), torch.mm(square, square), torch.bmm(cube, cube)]
        made += [torch.addmm(square, square, square), image, self.long(x[:, :, 0]), self.rows(torch.arange(3))]
        made += [F.scaled_dot_product_attention(tokens, tokens, tokens), F.softmax(tokens, -1)]
        made += [self.layer(tokens), self.root(tokens), self.group(image)]
        made += [F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1), F.max_pool2d(x, 2)]
        made += [
            1 - x,
            x**3,
            x.clamp(0, 1),
            torch.clamp_min(x, 0.1),
            torch.where(x > 1, x, 0 * x),
            x.masked_fill(x < 1, 0.0),
        ]
        made += [(x >= 1) * x, (x <= 1) * x, (x == 1) * x, (x != 1) * x]
        made += [x.mean(), x.mean(1), x.sum(), x.sum(1), x.amax(1), x.amin(1)]
        made += [x.permute(0, 2, 1, 3), square.t(), x.unsqueeze(0), x[:1].squeeze(0), torch.cat([x, x])]
        made += [torch.stack([x, x]), x[..., 0], x[:, 1:], x[:1].expand(2, 3, 6, 6), x.split(1, 1)[0]]
        made += [torch.zeros(2) + x.sum(), torch.ones(2) * x.sum(), torch.full((2,), 3.0) * x.sum()]
        made += [torch.ones_like(x) * x, torch.zeros_like(x) + x, torch.full_like(x, 2.0) * x, x.new_ones(2) * x.sum()]
        made += [x[torch.arange(2), 0], x.gather(1, torch.zeros(2, 1, 6, 6, dtype=torch.long)), F.pad(x, (1, 1))]
        made += [x.roll(1, 1), x.cumsum(1), (x <= x) * x, ((x > 1) & (x < 2)) * x, (x > 1).type_as(x)]
        made += [F.threshold(x, 0.1, 0.0), F.glu(tokens), F.prelu(x, torch.ones(1)), torch.addcmul(x, x, x)]
        made += [torch.lerp(x, x, 0.5), torch.logsumexp(x, 1), F.log_softmax(tokens, -1), x.var(1), x.std(1)]
        made += [x.max(1)[0], torch.linalg.vector_norm(x, dim=1), torch.baddbmm(cube, cube, cube)]
        made += [torch.einsum("ij,jk->ik", square, square), torch.outer(square[0], square[0]), F.unfold(x, 2)]
        made += [F.conv_transpose2d(x, torch.ones(3, 2, 2, 2)), F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2)]
        made += [F.adaptive_max_pool2d(x, 1), F.interpolate(x, scale_factor=2)]
        made += [F.interpolate(x, scale_factor=2, mode="bilinear"), x.flip(1), torch.rot90(square), x.tile(2)]
        made += [torch.hstack([x, x]), x.unbind(1)[0], torch.tril(torch.ones(6, 6)) * x, torch.linspace(0, 1, 6) * x]
        made += [x.new_zeros(1) + x]
        return torch.cat([value.reshape(-1)[:1] for value in made])


def called(program):
    found = [node.target for node in program.graph.nodes if node.op == "call_function"]
    return [target for target in found if target is not operator.getitem]


def drawn(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)) + 0.5


@pytest.mark.slow
def test_torch_leaves_every_kept_operator_alone():
    program = torch.export.export(Every().eval(), (drawn(2, 3, 6, 6),), strict=False)
    before = called(program)
    assert set(before) >= KEPT
    assert is_plain(program)
    after = called(program.run_decompositions({}))
    for kept in KEPT:
        assert after.count(kept) >= before.count(kept), kept


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


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.softshrink(x),
        lambda x: x.chunk(2, 1)[0],
        lambda x: x.clone().relu_(),
        lambda x: x.mT,
        lambda x: x.movedim(1, 2),
    ],
)
def test_everything_else_is_rewritten(function):
    class Model(nn.Module):
        def forward(self, x):
            return function(x)

    assert not is_plain(torch.export.export(Model(), (drawn(2, 4, 4),), strict=False))


class Flagged(nn.Module):
    """A batch norm as builds with cuDNN call it, and one whose momentum equals True."""

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.flag = training
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.batch_norm(x, None, None, self.mean, self.var, self.flag, 1.0, 1e-5, True)


@pytest.mark.parametrize("training", [False, True])
def test_only_the_flag_of_training_makes_a_batch_norm_write(training):
    program = torch.export.export(Flagged(training), (drawn(3, 4),), strict=False)
    assert writes_nothing(program) is is_plain(program) is not training


def test_a_batch_norm_in_train_mode_is_rewritten():
    program = torch.export.export(nn.BatchNorm1d(4).train(), (drawn(3, 4),), strict=False)
    assert not is_plain(program)
    assert not writes_nothing(program)
