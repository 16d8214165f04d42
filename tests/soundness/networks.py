"""Random networks from a seed: every kind of layer the engine claims to bound, small enough for a quick trial.

A seed fixes everything: structure, weights, statistics, mode, dtype and batch, whatever was drawn before; and nothing
that is drawn afterwards depends on it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

Shape = tuple[int, ...]
LARGEST = 60
"""Most entries of one sample anywhere in a network."""


@dataclass(frozen=True)
class Network:
    """A model, a batch it takes, and what it is made of."""

    seed: int
    model: nn.Module
    batch: Tensor
    mode: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"network(seed={self.seed}), {self.mode}, {self.batch.dtype}, {tuple(self.batch.shape)}: {self.model}"


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return normal values from a seed, whatever was drawn before."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class Function(nn.Module):
    """A function as a module: of its inputs, or, where it has parts, of the module and its inputs.

    Parts are what a module can hold, by name; tensors that are no parameters become buffers.
    """

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function, self.has_parts = function, bool(parts)
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs) if self.has_parts else self.function(*inputs)


class Residual(nn.Module):
    """`shortcut(x) + body(x)`, in place on request."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, *, in_place: bool = False) -> None:
        super().__init__()
        self.body, self.shortcut, self.in_place = body, shortcut, in_place

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            value = self.body(x) + 0.0
            value += self.shortcut(x)
            return value
        return self.shortcut(x) + self.body(x)


def concatenated(branches: Sequence[nn.Module], dim: int) -> nn.Module:
    """Branches side by side along one dimension."""
    return Function(
        lambda net, x: torch.cat([branch(x) for branch in net.branches], net.dim),
        branches=nn.ModuleList(branches),
        dim=dim,
    )


def gated_by(left: nn.Module, right: nn.Module) -> nn.Module:
    """A product of two bounded branches."""
    return Function(lambda net, x: net.left(x).tanh() * net.right(x).sigmoid(), left=left, right=right)


class SliceAdd(nn.Module):
    """Adds to a view in place: entries after the first are changed by the first."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1.0
        y[:, 1:].add_(y[:, :1], alpha=0.5)
        y[:, 0].mul_(-0.7)
        return y


def applied_twice(body: nn.Module, between: nn.Module) -> nn.Module:
    """The same layer applied twice: shared weights."""
    return Function(lambda net, x: net.body(net.between(net.body(x))), body=body, between=between)


class Attention(nn.Module):
    """Self-attention of a few heads behind a LayerNorm, with its skip."""

    def __init__(self, width: int, heads: int, eps: float, *, causal: bool, bias: bool, written_out: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width)
        self.heads, self.causal, self.written_out = heads, causal, written_out

    def forward(self, x: Tensor) -> Tensor:
        samples, tokens, width = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(samples, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.written_out:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            if self.causal:
                scores = scores + torch.full((tokens, tokens), -1e9, dtype=x.dtype).triu(1)
            mixed = scores.softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return x + self.out(mixed.transpose(1, 2).reshape(samples, tokens, width))


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu in place": lambda: nn.Sequential(nn.Identity(), Function(torch.clone), nn.ReLU(inplace=True)),
    "relu6": nn.ReLU6,
    "leaky": lambda: nn.LeakyReLU(0.2),
    "steep leaky": lambda: nn.LeakyReLU(1.7),
    "bent leaky": lambda: nn.LeakyReLU(-0.6),
    "prelu": lambda: nn.PReLU(init=-0.3),
    "elu": nn.ELU,
    "elu 2": lambda: nn.ELU(2.0),
    "celu": lambda: nn.CELU(0.4),
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "gelu tanh": lambda: nn.GELU("tanh"),
    "gelu written out": lambda: Function(
        lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    ),
    "silu": nn.SiLU,
    "silu written out": lambda: Function(lambda x: x * torch.sigmoid(x)),
    "mish": nn.Mish,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "hardtanh": lambda: nn.Hardtanh(-0.7, 1.2),
    "clamp": lambda: Function(lambda x: x.clamp(-0.5, 0.8)),
    "clamp by tensors": lambda: Function(lambda x: torch.clamp(x, torch.tensor(-0.4), torch.tensor(0.9))),
    "clip": lambda: Function(lambda x: torch.clip(x, -0.5, 0.8)),
    "clip by tensors": lambda: Function(lambda x: torch.clip(x, torch.tensor(-0.4), torch.tensor(0.9))),
    "clamp_min": lambda: Function(lambda x: torch.clamp_min(x, -0.2)),
    "clamp_max": lambda: Function(lambda x: torch.clamp_max(x, 0.3)),
    "threshold": lambda: nn.Threshold(0.1, 0.1),
    "softplus": lambda: nn.Softplus(2.0),
    "softshrink": lambda: nn.Softshrink(0.2),
    "tanhshrink": nn.Tanhshrink,
    "softsign": nn.Softsign,
    "sigmoid": nn.Sigmoid,
    "logsigmoid": nn.LogSigmoid,
    "tanh": nn.Tanh,
    "sin": lambda: Function(torch.sin),
    "cos": lambda: Function(torch.cos),
    "erf": lambda: Function(torch.erf),
    "atan": lambda: Function(torch.atan),
    "abs": lambda: Function(torch.abs),
    "softmax": lambda: nn.Softmax(dim=-1),
    "log_softmax": lambda: nn.LogSoftmax(dim=-1),
    "rrelu": lambda: nn.RReLU(0.1, 0.5).eval(),
    "glu of tanh": lambda: Function(lambda x: F.glu(torch.cat([2 * x.tanh(), x.tanh()], -1))),
    "hardshrink": lambda: nn.Hardshrink(0.1),
}
INFINITE = ("hardshrink", "threshold", "softsign")
"""Jumps, and two that are decomposed into operators without a finite slope: a network with them is bounded by +inf."""
RANDOM_IN_TRAINING = ("rrelu",)


def network(seed: int) -> Network:
    """Draw a network."""
    with _drawing(seed):
        return _Builder(seed).network()


def linear_network(seed: int) -> Network:
    """Draw a network without a nonlinearity: convolutions, eval-mode BatchNorm, skips, concatenation, averages."""
    with _drawing(seed):
        return _Builder(seed, linear=True).network()


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """Start the global generator from a seed, and give it back as it was.

    Layers draw their first weights from it. `_Builder.shake` draws them anew, but not those under a parametrization,
    nor the vectors of a power iteration.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


class _Builder:
    def __init__(self, seed: int, *, linear: bool = False) -> None:
        self.seed, self.draw, self.linear = seed, random.Random(seed), linear
        self.generator = torch.Generator().manual_seed(seed)
        self.parts: list[str] = []
        self.training = not linear and self.draw.random() < 0.3

    def network(self) -> Network:
        samples = self.draw.randint(2, 3) if self.training else 2
        shape = self.draw.choice([self._vector, self._signal, self._image, self._tokens])()
        start, layers = shape, []
        for _ in range(self.draw.choice([1, 1, 2])):
            layer, shape = self.block(shape)
            layers.append(layer)
        if self.draw.random() < 0.3 and len(shape) > 1:
            layers.append(nn.Flatten(1))
            shape = (math.prod(shape),)
            layer, shape = self.weight(shape)
            layers.append(layer)
        model = nn.Sequential(*layers)
        dtype = self.draw.choice([torch.float32, torch.float64])
        self.shake(model)
        model = model.to(dtype).train(self.training)
        for module in model.modules():
            if isinstance(module, nn.RReLU):
                module.eval()
        batch = self.draw.choice([0.3, 1.0, 3.0]) * torch.randn(samples, *start, generator=self.generator, dtype=dtype)
        return Network(self.seed, model, batch, "train" if self.training else "eval", tuple(self.parts))

    def _vector(self) -> Shape:
        return (self.draw.randint(2, 8),)

    def _signal(self) -> Shape:
        return (self.draw.randint(1, 4), self.draw.randint(4, 9))

    def _image(self) -> Shape:
        return (self.draw.randint(1, 3), self.draw.randint(3, 5), self.draw.randint(3, 5))

    def _tokens(self) -> Shape:
        return (self.draw.randint(2, 4), self.draw.choice([4, 6, 8]))

    def shake(self, model: nn.Module) -> None:
        """Draw parameters and statistics, so that nothing passes because of a default of 1 or 0."""
        scale = self.draw.choice([0.5, 1.0, 2.0])
        with torch.no_grad():
            for module in model.modules():
                weight = getattr(module, "weight", None)
                normalizer = "Norm" in type(module).__name__
                if normalizer and isinstance(weight, Tensor):
                    weight.copy_(torch.randn(weight.shape, generator=self.generator) * 1.5)
                    if self.draw.random() < 0.4:
                        weight.mul_(torch.rand(weight.shape, generator=self.generator) > 0.3)
                elif isinstance(weight, Tensor) and weight.ndim > 1 and not hasattr(module, "parametrizations"):
                    weight.copy_(
                        torch.randn(weight.shape, generator=self.generator) * scale / math.sqrt(weight[0].numel())
                    )
                if isinstance(getattr(module, "bias", None), Tensor):
                    module.bias.copy_(0.5 * torch.randn(module.bias.shape, generator=self.generator))
                if isinstance(getattr(module, "running_var", None), Tensor):
                    var = 10.0 ** (3 * torch.rand(module.running_var.shape, generator=self.generator) - 2)
                    module.running_var.copy_(var)
                    module.running_mean.copy_(torch.randn(var.shape, generator=self.generator))

    def block(self, shape: Shape) -> tuple[nn.Module, Shape]:
        """A few layers, some of them made of layers themselves."""
        layers: list[nn.Module] = []
        kinds = [self.weight, self.weight, self.normalizer, self.normalizer, self.pooling, self.pooling]
        kinds += [self.residual, self.residual, self.concatenation, self.parallel]
        if not self.linear:
            kinds += [self.activation, self.activation, self.in_place, self.dropout]
            kinds += [self.shared, self.gated, self.attention]
        for _ in range(self.draw.randint(1, 3)):
            layer, shape = self.draw.choice(kinds)(shape)
            layers.append(layer)
            if not self.linear and self.draw.random() < 0.4:
                layer, shape = self.activation(shape)
                layers.append(layer)
        return (nn.Sequential(*layers) if len(layers) > 1 else layers[0]), shape

    def same(self, shape: Shape) -> nn.Module:
        """A small body that keeps the shape."""
        layers: list[nn.Module] = []
        for _ in range(self.draw.choice([1, 1, 2])):
            layers.append(self.weight(shape, keep=True)[0])
            if self.draw.random() < 0.4:
                layers.append(self.normalizer(shape)[0])
            if not self.linear and self.draw.random() < 0.7:
                layers.append(self.activation(shape)[0])
        return nn.Sequential(*layers)

    def weight(self, shape: Shape, *, keep: bool = False) -> tuple[nn.Module, Shape]:
        """A linear layer, or a convolution for signals and images."""
        if len(shape) == 1 or (len(shape) == 2 and self.draw.random() < 0.3):
            out = shape[-1] if keep else self.draw.randint(2, 8)
            layer: nn.Module = nn.Linear(shape[-1], out, bias=self.draw.random() < 0.7)
            self.parts.append("linear")
            return self.parametrized(layer), (*shape[:-1], out)
        for _ in range(30):
            made = self._convolution(shape, keep)
            if made is not None:
                return made
        return self._pointwise(shape)

    def _pointwise(self, shape: Shape) -> tuple[nn.Module, Shape]:
        self.parts.append("conv")
        return (nn.Conv1d, nn.Conv2d)[len(shape) - 2](shape[0], shape[0], 1), shape

    def _convolution(self, shape: Shape, keep: bool) -> tuple[nn.Module, Shape] | None:
        dims, channels = len(shape) - 1, shape[0]
        groups = self.draw.choice([g for g in (1, 1, 2, 3) if channels % g == 0])
        out = channels if keep else groups * self.draw.randint(1, 3)
        transposed = not keep and self.draw.random() < 0.15
        options = {
            "kernel_size": tuple(self.draw.randint(1, 4) for _ in range(dims)),
            "stride": self.draw.choice([1, 1, 2, 3]),
            "padding": self.draw.randint(0, 2),
            "dilation": self.draw.choice([1, 1, 2]),
            "groups": groups,
            "bias": self.draw.random() < 0.5,
        }
        if transposed:
            kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d)
        else:
            kinds = (nn.Conv1d, nn.Conv2d)
            options["padding_mode"] = self.draw.choice(["zeros", "zeros", "circular", "reflect", "replicate"])
        if keep:
            options |= {"kernel_size": self.draw.choice([1, 3]), "stride": 1, "dilation": 1, "padding": "same"}
        try:
            layer = kinds[dims - 1](channels, out, **options)
            with torch.no_grad():
                got = tuple(layer(torch.zeros(1, *shape)).shape[1:])
        except (RuntimeError, ValueError):
            return None
        if not 0 < math.prod(got) <= LARGEST or (keep and got != shape):
            return None
        self.parts += ["conv transposed" if transposed else "conv", f"padding {options.get('padding_mode', 'zeros')}"]
        return self.parametrized(layer), got

    def parametrized(self, layer: nn.Module) -> nn.Module:
        """Sometimes under weight norm, or (eval mode only: its power iteration moves on in training) spectral norm."""
        chance = self.draw.random()
        if chance < 0.06:
            self.parts.append("weight_norm")
            return weight_norm(layer)
        if chance < 0.12 and not self.training:
            self.parts.append("spectral_norm")
            return spectral_norm(layer)
        return layer

    def eps(self) -> float:
        return 10.0 ** self.draw.uniform(-5, 0)

    def normalizer(self, shape: Shape) -> tuple[nn.Module, Shape]:
        kinds = ["batch"]
        if not self.linear:
            kinds += ["layer", "rms", "group"] + (["instance"] if len(shape) > 1 and math.prod(shape[1:]) > 1 else [])
        kind, eps, affine = self.draw.choice(kinds), self.eps(), self.draw.random() < 0.8
        self.parts.append(kind)
        if kind == "batch":
            bn = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}[len(shape)]
            return bn(shape[0], eps=eps, affine=affine), shape
        if kind == "instance":
            inorm = {2: nn.InstanceNorm1d, 3: nn.InstanceNorm2d}[len(shape)]
            return inorm(shape[0], eps=eps, affine=affine, track_running_stats=self.draw.random() < 0.3), shape
        if kind == "group":
            groups = self.draw.choice([g for g in (1, 2, 3, 4) if shape[0] % g == 0])
            if groups == shape[0] and len(shape) == 1:
                groups = 1
            return nn.GroupNorm(groups, shape[0], eps=eps, affine=affine), shape
        over = shape[-self.draw.randint(1, len(shape)) :]
        if kind == "layer":
            return nn.LayerNorm(over, eps=eps, elementwise_affine=affine), shape
        return nn.RMSNorm(over, eps=eps, elementwise_affine=affine), shape

    def activation(self, shape: Shape) -> tuple[nn.Module, Shape]:
        names = [name for name in ACTIVATIONS if not (self.training and name in RANDOM_IN_TRAINING)]
        weights = [0.1 if name in INFINITE else 1.0 for name in names]
        (name,) = self.draw.choices(names, weights)
        self.parts.append(name)
        return ACTIVATIONS[name](), shape

    def in_place(self, shape: Shape) -> tuple[nn.Module, Shape]:
        if shape[0] < 2:
            return self.activation(shape)
        self.parts.append("in place")
        return SliceAdd(), shape

    def dropout(self, shape: Shape) -> tuple[nn.Module, Shape]:
        self.parts.append("dropout")
        return nn.Dropout(0.3), shape

    def pooling(self, shape: Shape) -> tuple[nn.Module, Shape]:
        dims = len(shape) - 1
        if dims == 0:
            return self.weight(shape)
        average = {1: nn.AvgPool1d, 2: nn.AvgPool2d}[dims]
        adaptive = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d}[dims]
        largest = {1: nn.MaxPool1d, 2: nn.MaxPool2d}[dims]
        adaptive_max = {1: nn.AdaptiveMaxPool1d, 2: nn.AdaptiveMaxPool2d}[dims]
        kernel, stride = self.draw.randint(2, 3), self.draw.randint(1, 3)
        padding, ceil = self.draw.randint(0, 1), self.draw.random() < 0.3
        choices: list[Callable[[], nn.Module]] = [
            lambda: average(kernel, stride, padding, ceil_mode=ceil, count_include_pad=self.draw.random() < 0.5),
            lambda: adaptive(self.draw.randint(1, 3)),
        ]
        if not self.linear:
            choices += [
                lambda: largest(kernel, stride, padding, ceil_mode=ceil),
                lambda: largest(kernel, stride),
                lambda: largest(2),
                lambda: adaptive_max(self.draw.randint(1, 3)),
            ]
        layer = self.draw.choice(choices)()
        try:
            with torch.no_grad():
                got = tuple(layer(torch.zeros(1, *shape)).shape[1:])
        except (RuntimeError, ValueError):
            return self.weight(shape)
        self.parts.append(type(layer).__name__)
        return layer, got

    def residual(self, shape: Shape) -> tuple[nn.Module, Shape]:
        in_place = self.draw.random() < 0.3
        if self.draw.random() < 0.6:
            self.parts.append("residual")
            return Residual(self.same(shape), nn.Identity(), in_place=in_place), shape
        self.parts.append("projected residual")
        projection, out = self.weight(shape)
        again = self._matching(projection, shape, out)
        return Residual(nn.Sequential(*again), projection, in_place=in_place), out

    def _matching(self, projection: nn.Module, shape: Shape, out: Shape) -> list[nn.Module]:
        """A second path of the projection's shapes: the same geometry with other weights, between other layers."""
        layers = [self.normalizer(shape)[0]] if self.draw.random() < 0.5 else []
        if isinstance(projection, nn.Linear):
            twin: nn.Module = nn.Linear(projection.in_features, projection.out_features)
        else:
            names = ("in_channels", "out_channels", "kernel_size", "stride", "padding")
            options = {n: getattr(projection, n) for n in (*names, "dilation", "groups", "padding_mode")}
            twin = type(projection).__mro__[1 if hasattr(projection, "parametrizations") else 0](**options)
        layers.append(twin)
        if not self.linear:
            layers.append(self.activation(out)[0])
        return layers

    def parallel(self, shape: Shape) -> tuple[nn.Module, Shape]:
        """`x + A x`, both linear: added before any norm is taken."""
        self.parts.append("parallel")
        return Residual(self.weight(shape, keep=True)[0], nn.Identity()), shape

    def concatenation(self, shape: Shape) -> tuple[nn.Module, Shape]:
        if 2 * math.prod(shape) > LARGEST:
            return self.residual(shape)
        self.parts.append("concatenation")
        branches = [self.same(shape), nn.Identity() if self.draw.random() < 0.4 else self.same(shape)]
        return concatenated(branches, 1), (2 * shape[0], *shape[1:])

    def shared(self, shape: Shape) -> tuple[nn.Module, Shape]:
        self.parts.append("shared")
        return applied_twice(self.weight(shape, keep=True)[0], self.activation(shape)[0]), shape

    def gated(self, shape: Shape) -> tuple[nn.Module, Shape]:
        self.parts.append("gated")
        return gated_by(self.same(shape), self.weight(shape, keep=True)[0]), shape

    def attention(self, shape: Shape) -> tuple[nn.Module, Shape]:
        if len(shape) != 2 or shape[1] % 2:
            return self.residual(shape)
        self.parts.append("attention")
        options = {name: self.draw.random() < 0.5 for name in ("causal", "bias", "written_out")}
        return Attention(shape[1], self.draw.choice([1, 2]), self.eps(), **options), shape
