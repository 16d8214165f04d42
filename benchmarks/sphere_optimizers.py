"""SphereSGD and SphereAdam beside the usual optimisers: the time of a step, and training curves on digits.

    python benchmarks/sphere_optimizers.py                 both parts, on the CPU
    python benchmarks/sphere_optimizers.py --device cuda   the time of a step on a GPU
    python benchmarks/sphere_optimizers.py --part curves   one part alone

Steps: the convolutions of a ResNet18 (11 million weights), gradients given; the least of several steps, taken in turn,
in processor time of one thread on the CPU. geoopt's RiemannianSGD is measured too where it is installed, on the same
weights as matrices (its spheres are those of the last axis), and ten steps of both are set beside each other.

Curves: a small network with BatchNorm on scikit-learn's digits, five seeds, each optimizer at a few learning rates;
shown is the rate with the best mean accuracy on the test part after the last epoch: all have been chosen alike, and all
are therefore a little too good. Nothing else was tuned.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from machine import header
from torch import Tensor, nn

import normscope as ns
from normscope.data import digits
from normscope.networks.small import accuracy, mlp

SEEDS = range(5)
EPOCHS = 12
STEPS = 12


def kernels(device: str) -> list[nn.Parameter]:
    """Return the convolutions of a ResNet18, with gradients."""
    generator = torch.Generator().manual_seed(0)
    shapes, channels = [(64, 3, 7, 7)], 64
    for width in (64, 128, 256, 512):
        for _ in range(2):
            shapes += [(width, channels, 3, 3), (width, width, 3, 3)]
            shapes += [(width, channels, 1, 1)] if channels != width else []
            channels = width
    made = [nn.Parameter((0.02 * torch.randn(shape, generator=generator)).to(device)) for shape in shapes]
    for weight in made:
        weight.grad = 0.01 * torch.randn(weight.shape, generator=generator).to(device)
    return made


def seconds(steps: dict[str, Callable[[], Any]], device: str) -> dict[str, float]:
    """Return the least time of a few steps of each kind, which take turns."""

    def took(step: Callable[[], Any]) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        clock = time.perf_counter if device == "cuda" else time.process_time
        began = clock()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        return clock() - began

    found = [{name: took(step) for name, step in steps.items()} for _ in range(STEPS)]
    return {name: min(one[name] for one in found[2:]) for name in steps}


def steps(device: str) -> None:
    """Print the time of a step of each optimizer."""
    weights = kernels(device)
    made: dict[str, Callable[[], Any]] = {
        "SGD, momentum 0.9": torch.optim.SGD(weights, lr=1e-4, momentum=0.9, foreach=True).step,
        "Adam": torch.optim.Adam(weights, lr=1e-5, foreach=True).step,
        "SphereSGD": ns.optim.SphereSGD(weights, lr=1e-4, units="channel").step,
        "SphereSGD, clip=None": ns.optim.SphereSGD(weights, lr=1e-4, clip=None, units="channel").step,
        "SphereAdam": ns.optim.SphereAdam(weights, lr=1e-4, units="channel").step,
    }
    if device == "cuda":
        made |= {f"{name}, compiled": torch.compile(made[name]) for name in ("SGD, momentum 0.9", "SphereSGD")}
    if find_spec("geoopt"):
        made["geoopt RiemannianSGD"] = riemannian(weights).step
    print(f"\nOne step over {sum(w.numel() for w in weights):,} convolution weights in {len(weights)} tensors")
    times = seconds(made, device)
    for name, took in times.items():
        print(f"  {name:28s} {1e3 * took:8.2f} ms   {took / times['SGD, momentum 0.9']:5.2f} x SGD")
    if not find_spec("geoopt"):
        print("  geoopt is not installed here: not measured (pip install --no-deps geoopt)")
        return
    start = [nn.functional.normalize(weight.detach().flatten(1).double()) for weight in weights[:6]]
    ours = [nn.Parameter(one.clone()) for one in start]
    theirs = riemannian(ours, momentum=0.0, lr=0.05)
    both = (ns.optim.SphereSGD(ours, lr=0.05, momentum=0.0, clip=None, units="channel"), theirs)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        for one, other in zip(ours, theirs.param_groups[0]["params"]):
            one.grad = (0.1 * torch.randn(one.shape, generator=generator, dtype=torch.float64)).to(device)
            other.grad = one.grad.clone()
        for optimizer in both:
            optimizer.step()
    with torch.no_grad():
        pairs = zip(ours, theirs.param_groups[0]["params"], start)
        gaps = [(float((one - other).abs().max()), float((one - first).abs().max())) for one, other, first in pairs]
    apart, moved = map(max, zip(*gaps))
    print(
        f"  SphereSGD and geoopt after ten steps: entries differ by at most {apart:.1e}, and moved by up to {moved:.2f}"
    )


def riemannian(weights: list[nn.Parameter], lr: float = 1e-4, momentum: float = 0.9) -> Any:
    """Return geoopt's optimizer for weights as matrices with rows of norm 1, along geodesics."""
    geoopt: Any = import_module("geoopt")
    sphere, flat = geoopt.SphereExact(), []
    for weight in weights:
        flat.append(geoopt.ManifoldParameter(nn.functional.normalize(weight.detach().flatten(1)), manifold=sphere))
        flat[-1].grad = None if weight.grad is None else weight.grad.flatten(1)
    return geoopt.optim.RiemannianSGD(flat, lr=lr, momentum=momentum)


def groups(model: nn.Module, images: Tensor, plain_rate: float | None) -> list[dict[str, Any]]:
    """Return the groups of a model, the plain one with a learning rate of its own if one is given."""
    made = ns.symmetries(model, images[:32], mode="train").param_groups()
    if plain_rate is not None:
        made[-1]["lr"] = plain_rate
    return made


def curve(seed: int, make: Callable[[nn.Module, Tensor], torch.optim.Optimizer]) -> list[tuple[float, float]]:
    """Train one network; return the loss of training and the accuracy on the test part, epoch by epoch."""
    generator = torch.Generator().manual_seed(seed)
    data = digits(generator=generator)
    model = mlp(generator=generator, normalizer="batch", width=64, depth=4)
    optimizer, found = make(model, data.train_images), []
    for _ in range(EPOCHS):
        model.train()
        losses = []
        order = torch.randperm(len(data.train_images), generator=generator)
        for rows in order[: len(order) - len(order) % 64].split(64):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data.train_images[rows]), data.train_labels[rows])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        found.append((statistics.fmean(losses), accuracy(model.eval(), data.test_images, data.test_labels)))
    return found


def curves() -> None:
    """Print training curves of every optimizer at its best rate."""

    def plain(cls: Any, rate: float, **options: Any) -> Callable[[nn.Module, Tensor], torch.optim.Optimizer]:
        return lambda model, _: cls(model.parameters(), lr=rate, **options)

    def spheres(cls: Any, rest: float, rate: float) -> Callable[[nn.Module, Tensor], torch.optim.Optimizer]:
        return lambda model, images: cls(groups(model, images, rest), lr=rate)

    tried: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
        "SGD, momentum 0.9": (partial(plain, torch.optim.SGD, momentum=0.9), (0.01, 0.05, 0.2)),
        "SGD, momentum, decay": (partial(plain, torch.optim.SGD, momentum=0.9, weight_decay=5e-4), (0.01, 0.05, 0.2)),
        "Adam": (partial(plain, torch.optim.Adam), (1e-3, 3e-3, 1e-2)),
        "AdamW, decay 0.01": (partial(plain, torch.optim.AdamW, weight_decay=1e-2), (1e-3, 3e-3, 1e-2)),
        "SphereSGD (rest 0.05)": (partial(spheres, ns.optim.SphereSGD, 0.05), (0.05, 0.2, 0.5)),
        "SphereAdam (rest 0.003)": (partial(spheres, ns.optim.SphereAdam, 0.003), (0.01, 0.03, 0.1)),
    }
    print(f"\nDigits, a network of 4 layers with BatchNorm, {len(SEEDS)} seeds, {EPOCHS} epochs")
    print(
        f"  {'':24s} {'rate':>6s}   test accuracy, mean ± deviation (least)   training loss, epochs 1, 3, 6, {EPOCHS}"
    )
    for name, (maker, rates) in tried.items():
        runs = {rate: [curve(seed, maker(rate)) for seed in SEEDS] for rate in rates}
        best = max(rates, key=lambda rate: statistics.fmean(run[-1][1] for run in runs[rate]))
        last = [run[-1][1] for run in runs[best]]
        losses = [statistics.fmean(run[epoch - 1][0] for run in runs[best]) for epoch in (1, 3, 6, EPOCHS)]
        shown = "  ".join(f"{loss:.4f}" for loss in losses)
        spread = f"{100 * statistics.fmean(last):.2f} ± {100 * statistics.stdev(last):.2f} % ({100 * min(last):.2f} %)"
        print(f"  {name:24s} {best:6g}   {spread:>40s}   {shown}", flush=True)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("steps", "curves", "both"), default="both")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(header(given.device))
    if given.part != "curves":
        steps(given.device)
    if given.part != "steps" and given.device == "cpu":
        curves()


if __name__ == "__main__":
    main()
