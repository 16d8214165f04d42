"""Small convolutional graphs written down by hand, and slopes of their activations that make the Jacobian large."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.bounds.folded import propagate
from normscope.bounds.segments import Segments, segment
from normscope.bounds.torus.stage import TorusStage
from normscope.bounds.torus.stage_plan import stages
from normscope.core.rounding import Upper
from normscope.graph.ir import Graph, Input, Node, Ref, Unit
from normscope.linalg.operator_norms import upper
from normscope.rules.effects import Elementwise, Linear

aten = torch.ops.aten
CPU = torch.device("cpu")
_CONV = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}
_SAME = {1: aten.conv1d.padding, 2: aten.conv2d.padding, 3: aten.conv3d.padding}


class Net:
    """Operators one after the other; every call returns the reference of a new value."""

    def __init__(
        self, *shape: int, seed: int = 0, batch: int = 1, first: float = 1.0, device: torch.device = CPU
    ) -> None:
        self.generator, self.device = torch.Generator().manual_seed(seed), device
        self.first = first  # a factor of the first convolution
        self.input = Input(name="x", value=torch.zeros(batch, *shape, dtype=torch.float64, device=device))
        self.x = Ref("x", self.input.shape)
        self.values: dict[str, Tensor] = {"x": self.input.value}
        self.nodes: list[Node] = []

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=self.generator).to(self.device)

    def call(self, op: Any, *args: Any, index: int | None = None) -> Ref:
        """Write one operator down."""
        name, common = f"n{len(self.nodes)}", {"dtype": torch.float64, "device": self.device, "index": index}
        draft = Node(name=name, op=op, args=args, shape=(), **common)
        self.values[name] = value = draft.evaluate([self.values[ref] for ref in draft.refs])
        self.nodes.append(Node(name=name, op=op, args=args, shape=tuple(value.shape), **common))
        return Ref(name, tuple(value.shape))

    def conv(
        self,
        x: Ref,
        channels: int,
        kernel: int | Sequence[int] = 3,
        *,
        stride: int = 1,
        padding: Any = 1,
        dilation: int = 1,
        groups: int = 1,
        mode: str = "zeros",
    ) -> Ref:
        axes = len(x.shape) - 2
        sizes = [kernel] * axes if isinstance(kernel, int) else list(kernel)
        weight = self.normal(channels, x.shape[1] // groups, *sizes)
        weight = weight / math.sqrt(math.prod(weight.shape[1:])) * (1.0 if self.nodes else self.first)
        bias = self.normal(channels)
        steps, spread = [stride] * axes, [dilation] * axes
        if mode == "zeros":
            op = _SAME[axes] if isinstance(padding, str) else _CONV[axes]
            sides = padding if isinstance(padding, str) else [padding] * axes
            return self.call(op, x, weight, bias, steps, sides, spread, groups)
        data = {"padding": ((padding, padding),) * axes, "mode": mode, "stride": steps, "dilation": spread}

        def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            wide = F.pad(x, [padding] * (2 * axes), mode)
            return _CONV[axes](wide, weight, bias, steps, [0] * axes, spread, groups)

        return self.call(Unit("padded_convolution", function, data | {"groups": groups}), x, weight, bias)

    def bn(self, x: Ref) -> Ref:
        c = x.shape[1]
        scale, spread = 1 + 0.3 * self.normal(c), 0.5 + self.normal(c).square()
        op = aten._native_batch_norm_legit_no_training.default
        return self.call(op, x, scale, self.normal(c), self.normal(c), spread, 0.1, 1e-5, index=0)

    def relu(self, x: Ref) -> Ref:
        return self.call(aten.relu.default, x)

    def act(self, x: Ref, kind: str) -> Ref:
        if kind == "leaky":
            return self.call(aten.leaky_relu.default, x, 0.3)
        return self.call({"gelu": aten.gelu, "silu": aten.silu, "relu": aten.relu}[kind].default, x)

    def add(self, x: Ref, y: Ref) -> Ref:
        return self.call(aten.add.Tensor, x, y)

    def head(self, x: Ref, *widths: int) -> Ref:
        """Flatten and linear layers with ReLU between them."""
        x = self.call(aten.reshape.default, x, [x.shape[0], -1])
        for index, width in enumerate(widths):
            x = self.relu(x) if index else x
            x = self.call(aten.linear.default, x, self.normal(width, x.shape[-1]) / math.sqrt(x.shape[-1]))
        return x

    def segments(self, output: Ref) -> Segments:
        graph = Graph(inputs=(self.input,), nodes=tuple(self.nodes), output=output.name, mode="eval")
        return segment(graph)


def _plain(net: Net, **options: Any) -> Ref:
    x = net.relu(net.conv(net.x, 4, **options))
    return net.head(net.relu(net.conv(x, 3, **options)), 4)


def _curved(kind: str) -> Callable[[Net], Ref]:
    def build(net: Net) -> Ref:
        x = net.act(net.bn(net.conv(net.x, 3)), kind)
        return net.head(net.act(net.conv(x, 4, stride=2), kind), 3)

    return build


def _post(net: Net) -> Ref:
    h = net.relu(net.bn(net.conv(net.x, 3)))
    h = net.relu(net.add(net.bn(net.conv(net.relu(net.bn(net.conv(h, 3))), 3)), h))
    inner = net.bn(net.conv(net.relu(net.bn(net.conv(h, 4, stride=2))), 4))
    h = net.relu(net.add(inner, net.bn(net.conv(h, 4, 1, stride=2, padding=0))))
    return net.head(net.call(aten.adaptive_avg_pool2d.default, h, [1, 1]), 3)


def _pre(net: Net) -> Ref:
    x = net.conv(net.x, 3)
    x = net.add(net.conv(net.relu(net.bn(net.conv(net.relu(net.bn(x)), 3))), 3), x)
    u = net.relu(net.bn(x))
    x = net.add(net.conv(net.relu(net.bn(net.conv(u, 4, stride=2))), 4), net.conv(u, 4, 1, stride=2, padding=0))
    x = net.add(net.conv(net.relu(net.bn(x)), 4), x)
    return net.head(net.call(aten.mean.dim, net.relu(net.bn(x)), [2, 3]), 3)


def _bottleneck(net: Net) -> Ref:
    h = net.relu(net.conv(net.x, 4))
    inner = net.relu(net.conv(h, 2, 1, padding=0))
    inner = net.conv(net.relu(net.conv(inner, 2, stride=2)), 5, 1, padding=0)
    h = net.relu(net.add(inner, net.conv(h, 5, 1, stride=2, padding=0)))
    return net.head(h, 3)


def _sliced(net: Net) -> Ref:
    """The shortcut of the first residual networks: every other pixel, and channels of zeros."""
    h = net.relu(net.conv(net.x, 3))
    thin = net.call(aten.slice.Tensor, net.call(aten.slice.Tensor, h, 2, 0, 99, 2), 3, 0, 99, 2)
    wide = net.call(aten.constant_pad_nd.default, thin, [0, 0, 0, 0, 1, 1], 0.0)
    return net.head(net.relu(net.add(net.conv(net.relu(net.conv(h, 5, stride=2)), 5), wide)), 3)


def _dense_block(net: Net) -> Ref:
    x = net.conv(net.x, 3)
    for _ in range(2):
        x = net.call(aten.cat.default, [x, net.conv(net.relu(net.bn(x)), 2)], 1)
    x = net.call(aten.avg_pool2d.default, net.conv(net.relu(net.bn(x)), 3, 1, padding=0), [2, 2])
    return net.head(net.relu(net.bn(x)), 3)


def _pooled(net: Net) -> Ref:
    x = net.call(aten.avg_pool2d.default, net.relu(net.conv(net.x, 3)), [3, 3], [2, 2], [1, 1])
    x = net.call(aten.adaptive_avg_pool2d.default, net.relu(net.conv(x, 4)), [2, 2])
    return net.head(net.relu(net.conv(x, 3)), 3)


def _wheel(net: Net) -> Ref:
    x = net.act(net.conv(net.x, 3, mode="circular"), "leaky")
    x = net.add(net.conv(net.act(net.conv(x, 3, mode="circular"), "leaky"), 3, mode="circular"), x)
    return net.head(net.act(net.conv(x, 4, stride=2, mode="circular"), "leaky"), 3)


def _valid(net: Net) -> Ref:
    """A linear value with anything outside its grid, read by a convolution that stays inside."""
    x = net.conv(net.conv(net.x, 3), 4, padding=0)
    return net.head(net.relu(net.conv(net.relu(x), 3, 1, padding=1)), 3)


def _mixed(net: Net) -> Ref:
    x = net.relu(net.conv(net.x, 4, groups=2))
    x = net.relu(net.conv(x, 4, groups=4, dilation=2, padding=2))
    return net.head(net.relu(net.conv(x, 3, 4, padding="same")), 3)


def _maxed(net: Net) -> Ref:
    x = net.relu(net.conv(net.x, 3))
    x = net.call(aten.max_pool2d.default, net.relu(net.conv(x, 3)), [2, 2])
    return net.head(net.relu(net.conv(net.relu(net.conv(x, 4)), 3)), 3)


def _in_a_row(net: Net) -> Ref:
    """Convolutions that read linear values beyond their grid, one of them next to a shortcut."""
    x = net.conv(net.conv(net.x, 3), 3)
    x = net.add(net.conv(net.conv(net.relu(x), 2), 3), x)
    return net.head(net.relu(net.conv(net.relu(net.conv(x, 4, stride=2)), 3)), 3)


def _field(net: Net) -> Ref:
    x = net.relu(net.conv(net.x, 9, stride=2))
    return net.conv(net.relu(net.conv(x, 9)), 24)


CASES: dict[str, tuple[tuple[int, ...], Callable[[Net], Ref]]] = {
    "plain": ((2, 5, 5), _plain),
    "not square, head with an activation": (
        (2, 7, 4),
        lambda net: net.head(net.relu(net.conv(net.relu(net.conv(net.x, 3)), 3, (1, 3), padding="same")), 5, 3),
    ),
    "stride 2": ((2, 7, 6), lambda net: _plain(net, stride=2)),
    "stride 3, kernel 4": ((2, 11, 11), lambda net: _plain(net, kernel=4, stride=3, padding=2)),
    "kernel 2": ((2, 5, 5), lambda net: _plain(net, kernel=2)),
    "kernel larger than the grid": ((1, 3, 3), lambda net: _plain(net, kernel=5, padding=2)),
    "one axis": ((2, 11), lambda net: _plain(net, stride=2, kernel=5, padding=2)),
    "three axes": ((1, 3, 4, 3), lambda net: _plain(net, kernel=2)),
    "groups, dilation and same": ((2, 6, 5), _mixed),
    "without padding": ((2, 7, 7), _valid),
    "leaky": ((2, 6, 6), _curved("leaky")),
    "gelu": ((2, 6, 6), _curved("gelu")),
    "silu": ((2, 6, 6), _curved("silu")),
    "residual": ((2, 6, 6), _post),
    "residual, activation first": ((2, 6, 6), _pre),
    "bottleneck": ((2, 6, 6), _bottleneck),
    "sliced shortcut": ((2, 6, 6), _sliced),
    "dense block": ((2, 6, 6), _dense_block),
    "mean pooling": ((2, 8, 8), _pooled),
    "circular": ((2, 6, 6), _wheel),
    "max pooling": ((2, 8, 8), _maxed),
    "convolutions in a row": ((2, 6, 6), _in_a_row),
    "field": ((2, 9, 9), _field),
}


def drawn(seed: int) -> Segments:
    """A network with layers, shortcuts and activations drawn at random."""
    draw = random.Random(seed)
    axes = draw.choice((1, 2, 2))
    net = Net(draw.randint(1, 3), *(draw.randint(3, 9) for _ in range(axes)), seed=seed)
    x = net.x
    mode = draw.choice(("zeros", "zeros", "circular"))
    for _ in range(draw.randint(1, 4)):
        kernel, dilation = draw.randint(1, 4), draw.randint(1, 2)
        stride = draw.choice((1, 1, 1, 2, 3))
        groups = draw.choice([g for g in (1, 1, 2, 3) if x.shape[1] % g == 0])
        padding = draw.randint(0, dilation * (kernel - 1) + 1) if mode == "zeros" else dilation * (kernel - 1) // 2
        extent = dilation * (kernel - 1) + 1
        if any(n + 2 * padding < extent or padding > n for n in x.shape[2:]):
            continue
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "mode": mode}
        y = net.conv(x, groups * draw.randint(1, 3), kernel, **options)
        y = net.bn(y) if draw.random() < 0.5 else y
        y = net.act(y, draw.choice(("relu", "leaky", "gelu", "silu"))) if draw.random() < 0.8 else y
        if draw.random() < 0.5 and min(y.shape[2:]) > 1:
            inner = net.conv(net.relu(net.conv(y, 2)), y.shape[1]) if mode == "zeros" else net.relu(y)
            y = net.add(inner, y)
        x = y
    return net.segments(net.head(net.relu(x), 3))


def planned(segments: Segments) -> tuple[TorusStage, ...]:
    """The stages of a graph that leave as little as possible to the dense plan."""
    found = stages(segments, bounds(segments), widest=8)
    assert found is not None
    return found


def bounds(segments: Segments) -> dict[str, Upper]:
    """The folded bound of every node."""
    return propagate(segments, upper, fold=True)


def case(name: str, **options: Any) -> Segments:
    shape, build = CASES[name]
    net = Net(*shape, **options)
    return net.segments(build(net))


def attack(segments: Segments, *, seed: int = 0, climbs: int = 6, starts: int = 1) -> float:
    """Return log10 of the largest norm found of a Jacobian with any slopes: no certificate may be below."""
    graph, best = segments.graph, 0.0
    generator = torch.Generator().manual_seed(seed)
    size = graph.inputs[0].value.numel()
    basis = torch.eye(size, dtype=torch.float64).reshape(size, *graph.inputs[0].shape)
    bends = {n.name: e.slope for n in graph if isinstance(e := segments.effects[n.name], Elementwise)}
    shapes = {node.name: node.shape for node in graph}
    for _ in range(starts):
        slopes = {n: a + (b - a) * torch.rand(shapes[n], generator=generator).double() for n, (a, b) in bends.items()}
        for _ in range(climbs):
            for value in slopes.values():
                value.requires_grad_(True)
            values = {graph.inputs[0].name: basis}
            for node in graph:
                effect = segments.effects[node.name]
                if isinstance(effect, Linear):
                    maps = zip(effect.maps, node.refs, strict=True)
                    values[node.name] = sum(linear.apply(values[ref]) for linear, ref in maps)
                else:
                    values[node.name] = values[node.refs[0]] * slopes[node.name]
            norm = torch.linalg.matrix_norm(values[graph.output].reshape(size, -1), ord=2)
            best = max(best, float(norm.detach()))
            grads = torch.autograd.grad(norm, list(slopes.values()))
            ends = [torch.where(g > 0, bends[n][1], bends[n][0]) for n, g in zip(slopes, grads, strict=True)]
            slopes = dict(zip(slopes, ends, strict=True))
    return math.log10(max(best, 1e-300))
