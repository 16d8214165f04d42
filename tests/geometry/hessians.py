"""Small networks, and their Hessians written out by other means than the package's own."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

CROSS_ENTROPY = nn.functional.cross_entropy


class Attention(nn.Module):
    """One head between two linear maps."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(4, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        return self.head(nn.functional.scaled_dot_product_attention(query, key, value).flatten(1))


class Once(torch.autograd.Function):
    """A square with a first derivative alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


class Custom(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Once.apply(super().forward(x))


class Product(torch.autograd.Function):
    """Twice the product of two tensors; its derivative reads a number, which several vectors at once have not."""

    @staticmethod
    def forward(ctx, x, grad):
        ctx.save_for_backward(x, grad)
        return 2 * x * grad

    @staticmethod
    def backward(ctx, change):
        x, grad = ctx.saved_tensors
        assert math.isfinite(float(change.sum()))
        return 2 * grad * change, 2 * x * change


class Square(torch.autograd.Function):
    """A square with a second derivative that is written in Python."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return Product.apply(ctx.saved_tensors[0], grad)


class Squared(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Square.apply(super().forward(x))


NETWORKS = {
    "batch": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)), (4,)),
    "layer": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3)), (4,)),
    "group": (
        lambda: nn.Sequential(nn.Conv1d(4, 6, 1), nn.GroupNorm(2, 6), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)),
        (4, 2),
    ),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.GELU(), nn.Flatten(), nn.Linear(12, 3)
        ),
        (1, 4, 4),
    ),
    "attention": (Attention, (3, 4)),
    "plain": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, 3)), (4,)),
}


def made(name: str, samples: int = 20) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network in float64 in train mode, inputs and classes: the same every time."""
    build, shape = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = build().double()
        return model, torch.randn(samples, *shape, dtype=torch.float64), torch.randint(3, (samples,))


def written_out(model: nn.Module, batches: list[tuple[Tensor, Tensor]], mode: str, loss=CROSS_ENTROPY) -> Tensor:
    """Return the Hessian of the mean loss over batches, by torch's own nested differentiation of the whole vector."""
    model = copy.deepcopy(model).train(mode == "train")
    names, values = zip(*((name, p.detach()) for name, p in model.named_parameters()))
    sizes = [value.numel() for value in values]
    total = sum(len(x) for x, _ in batches)

    def mean(vector: Tensor) -> Tensor:
        given = {n: part.reshape(v.shape) for n, part, v in zip(names, vector.split(sizes), values)}
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        return sum(len(x) / total * loss(functional_call(model, (given, buffers), (x,)), y) for x, y in batches)

    with sdpa_kernel(SDPBackend.MATH):
        return torch.autograd.functional.hessian(mean, torch.cat([value.reshape(-1) for value in values]))
