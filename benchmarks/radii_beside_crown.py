"""Certified radii of six digits classifiers beside CROWN and alpha-CROWN, and what each costs.

    python benchmarks/radii_beside_crown.py [--samples 40] [--seconds 100] [--epochs 15] [--efforts fast tight]
                                            [--networks MLP ...] [--peers CROWN alpha-CROWN]

Trains six networks on scikit-learn's digits (pixels in [0, 1]) and prints for each method the median certified l2
radius and the processor time on one thread. Samples that are classified correctly are certified twenty at a time, until
`--samples` are done or a method has taken `--seconds`: a group that has begun is brought to its end. Medians are those
of the samples that every method of a network got to; seconds are divided by the samples that the method itself got to.

Where auto_LiRPA can be imported, its radii are found by bisection of all samples of a group at once to the same 1 %, in
float32 as it comes, alpha-CROWN with the 20 steps that are its default. The attack is off; the time of Normscope
includes the capture of the model for every group.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence

import torch
from machine import header
from torch import Tensor, nn

from normscope.bounds.radius.radius import certified_radius
from normscope.data import digits
from normscope.networks import small as models
from normscope.networks.small import accuracy, train

try:
    from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm
except ImportError:
    BoundedModule = None


GROUP = 20
"""Samples that are certified together."""


class Attention(nn.Module):
    """Two heads of dot-product attention, written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.queries, self.keys, self.values = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens mixed by attention."""
        split = [f(x).reshape(-1, 16, self.heads, self.size) for f in (self.queries, self.keys, self.values)]
        q, k, v = split[0].permute(0, 2, 1, 3), split[1].permute(0, 2, 3, 1), split[2].permute(0, 2, 1, 3)
        weights = (q.matmul(k) / math.sqrt(self.size)).softmax(-1)
        return self.out(weights.matmul(v).permute(0, 2, 1, 3).reshape(-1, 16, self.heads * self.size))


class Patches(nn.Module):
    """16 patches of 2x2 pixels as tokens, one pre-norm block of attention, and a linear head."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(16 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return ten logits."""
        tokens = self.embed(x.reshape(-1, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(-1, 16, 4))
        tokens = tokens + self.attention(self.norm1(tokens))
        return self.head((tokens + self.mlp(self.norm2(tokens))).reshape(-1, 256))


def convolutional() -> nn.Module:
    """Return two convolutions with BatchNorm and two linear layers for 8x8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


NETWORKS: dict[str, Callable[[torch.Generator], nn.Module]] = {
    "MLP": lambda generator: models.mlp(generator=generator),
    "MLP + LayerNorm": lambda generator: models.mlp(generator=generator, normalizer="layer"),
    "convolutional + BatchNorm": lambda _: convolutional(),
    "residual MLP + BatchNorm": lambda generator: models.residual_mlp(generator=generator),
    "attention + LayerNorm": lambda _: Patches(),
    "deep residual MLP + BatchNorm": lambda generator: models.residual_mlp(generator=generator, width=32, blocks=12),
}


def crown(model: nn.Module, x: Tensor, y: Tensor, method: str, rtol: float = 0.01) -> Tensor:
    """Return radii that auto_LiRPA certifies, by bisection of all samples at once (convolutions: one by one)."""
    if len(x) > 1 and any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return torch.cat([crown(model, *sample, method) for sample in zip(x.split(1), y.split(1), strict=True)])
    options = {"optimize_bound_args": {"iteration": 20}}
    bounded = BoundedModule(model, x[:1].expand_as(x).clone(), bound_opts=options, verbose=False)
    eye = torch.eye(10)
    rivals = eye[y][:, None] - eye[None]
    rivals = torch.stack([row[torch.arange(10) != label] for row, label in zip(rivals, y)])

    def passes(radius: Tensor) -> Tensor:
        size = radius[:, None] if len(x) > 1 else float(radius[0])
        ball = BoundedTensor(x, PerturbationLpNorm(norm=2, eps=size))
        low, _ = bounded.compute_bounds(x=(ball,), C=rivals, method=method, bound_upper=False)
        return (low.detach().amin(1) > 0) & low.detach().isfinite().all(1)

    low, high = torch.zeros(len(x)), torch.full((len(x),), math.inf)
    probe = torch.full((len(x),), 0.1)
    for _ in range(40):
        good = passes(probe)
        low, high = torch.where(good, torch.maximum(low, probe), low), torch.where(good, high, probe)
        if bool((high <= low.clamp(min=1e-6) * (1 + rtol)).all()):
            break
        middle = torch.where(low > high / 16, (low * high).sqrt(), high / 4)
        probe = torch.where(high.isinf(), 4 * low, middle)
    return low.double()


def in_time(run: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, seconds: float) -> tuple[Tensor, float]:
    """Return the radii of as many groups of samples as begin within some processor seconds, and the time taken."""
    found, began = [], time.process_time()
    for sample, label in zip(x.split(GROUP), y.split(GROUP), strict=True):
        if found and time.process_time() - began >= seconds:
            break
        found.append(run(sample, label))
    return torch.cat(found), time.process_time() - began


def own_radii(model: nn.Module, x: Tensor, y: Tensor, effort: str) -> Tensor:
    """Return the radii that Normscope certifies."""
    return torch.tensor(certified_radius(model, x, labels=y, effort=effort, attack=False).radius, dtype=torch.float64)


def report(
    model: nn.Module, x: Tensor, y: Tensor, efforts: Sequence[str], peers: Sequence[str], seconds: float
) -> None:
    """Print the median radius and the time of every method."""
    runs: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        effort: lambda a, b, effort=effort: own_radii(model, a, b, effort) for effort in efforts
    }
    if BoundedModule is not None:
        runs |= {method: lambda a, b, method=method: crown(model, a, b, method) for method in peers}
    results = {}
    for name, run in runs.items():
        try:
            results[name] = in_time(run, x, y, seconds)
        except Exception as error:  # another program's trouble is part of the comparison
            print(f"  {name:<12} failed: {type(error).__name__}: {str(error)[:200]}", flush=True)
    common = min((len(radii) for radii, _ in results.values()), default=0)
    for name, (radii, taken) in results.items():
        median = float(radii[:common].median())
        each = taken / len(radii)
        print(f"  {name:<12} median radius {median:.4f} of {common:>3} samples   {each:7.2f} s a sample", flush=True)


def main() -> None:
    """Train, certify by every method, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=100.0, help="of each method and network, at most")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--efforts", nargs="*", choices=("fast", "tight"), default=("fast", "tight"))
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--peers", nargs="*", choices=("CROWN", "alpha-CROWN"), default=("CROWN", "alpha-CROWN"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(header(), flush=True)
    data = digits(generator=torch.Generator().manual_seed(0))
    for name in arguments.networks:
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        model = NETWORKS[name](generator)
        train(model, data.train_images, data.train_labels, generator=generator, epochs=arguments.epochs)
        x, y = data.test_images[: arguments.samples], data.test_labels[: arguments.samples]
        right = model(x).argmax(1) == y
        x, y = x[right], y[right]
        clean = accuracy(model, data.test_images, data.test_labels)
        print(f"{name}: test accuracy {100 * clean:.1f} %, {len(x)} samples", flush=True)
        certified_radius(model, x[:1], labels=y[:1], attack=False)  # what is loaded on the first call is not timed
        report(model, x, y, arguments.efforts, arguments.peers, arguments.seconds)
    if BoundedModule is None:
        print("auto_LiRPA is not installed: its rows are left out")


if __name__ == "__main__":
    main()
