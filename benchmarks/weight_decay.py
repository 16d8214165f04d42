"""Weight decay on scale-invariant weights: Wan's equilibrium, and Li and Arora's equivalence, on a whole network.

    python benchmarks/weight_decay.py                      both parts
    python benchmarks/weight_decay.py --part equivalence   one part alone

A network with BatchNorm in float64 on scikit-learn's digits, in train mode.

Equilibrium (Wan et al. 2021): SGD with weight decay on labels by chance, drawn anew for every batch, so that gradients
do not vanish. Every weight in front of a BatchNorm should come to turn by sqrt(2 lr wd/(1 + momentum)) a step, whatever
its norm at the start: shown is the root mean square over the last sixth of the steps and all filters of a layer.

Equivalence (Li and Arora 2020): SGD with weight decay and rate lr beside SGD without it and rate
lr (1 - lr wd)^(-2t-1), batch by batch the same data; gamma, beta and the last layer are frozen and eps is 1e-30. Shown
is how far the directions of the weights, and the outputs, of the two networks are from each other after the last step;
beside it the same with the exponent -2t, which is no equivalence.
"""

from __future__ import annotations

import argparse
import copy
import math

import torch
from machine import header
from torch import Tensor, nn

from normscope.data import digits
from normscope.networks.small import mlp

SETTINGS = ((0.1, 1e-2, 0.0), (0.02, 5e-2, 0.0), (0.05, 1e-2, 0.9), (0.2, 5e-3, 0.5))
"""Learning rate, weight decay and momentum."""
BATCH = 64


def network(eps: float = 1e-5) -> nn.Module:
    """Return a network of four layers with BatchNorm, in float64 and train mode."""
    model = mlp(generator=torch.Generator().manual_seed(0), normalizer="batch", width=32, depth=4).double().train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eps = eps
    return model


def invariant(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights in front of the normalizers: all matrices but the last."""
    return [parameter for parameter in model.parameters() if parameter.ndim == 2][:-1]


def batch(images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return some images and labels by chance."""
    rows = torch.randint(len(images), (BATCH,), generator=generator)
    return images[rows], torch.randint(10, (BATCH,), generator=generator)


def rotations(images: Tensor, lr: float, decay: float, momentum: float, scale: float) -> list[float]:
    """Train, and return by how much the filters of each layer turn a step at the end, root mean square."""
    generator, model = torch.Generator().manual_seed(1), network()
    weights = invariant(model)
    with torch.no_grad():
        for weight in weights:
            weight.mul_(scale)
    optimizer = torch.optim.SGD(weights, lr=lr, weight_decay=decay, momentum=momentum)
    steps = math.ceil(6.0 / (lr * decay))  # the excess of norm^4 falls as exp(-4 lr wd t)
    last = steps // 6
    squares = [0.0] * len(weights)
    for step in range(steps):
        x, y = batch(images, generator)
        before = [nn.functional.normalize(weight.detach()) for weight in weights]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step >= steps - last:
            for place, (old, weight) in enumerate(zip(before, weights)):
                cosines = torch.linalg.vecdot(old, nn.functional.normalize(weight.detach())).clamp(max=1.0)
                squares[place] += float(cosines.arccos().square().mean()) / last
    return [math.sqrt(square) for square in squares]


def apart(images: Tensor, lr: float, decay: float, steps: int, shift: int) -> tuple[float, float, float]:
    """Train both ways; return how far directions and outputs are apart, and what the rate grew to."""
    generator, one = torch.Generator().manual_seed(2), network(eps=1e-30)
    other = copy.deepcopy(one)
    weights, others = invariant(one), invariant(other)
    rate = lr
    for step in range(steps):
        x, y = batch(images, generator)
        rate = lr * (1.0 - lr * decay) ** (-2 * step - shift)
        for model, moved, factor, size in ((one, weights, 1.0 - lr * decay, lr), (other, others, 1.0, rate)):
            slopes = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), moved)
            with torch.no_grad():
                for weight, slope in zip(moved, slopes):
                    weight.mul_(factor).sub_(size * slope)
    normal = nn.functional.normalize
    with torch.no_grad():
        directions = max(float((normal(a) - normal(b)).abs().max()) for a, b in zip(weights, others))
        outputs = float((one(images[:BATCH]) - other(images[:BATCH])).abs().max())
    return directions, outputs, rate / lr


def equilibrium(images: Tensor) -> None:
    """Print how far the filters turn."""
    print("\nEquilibrium: turned a step, by layer, over what is expected")
    for lr, decay, momentum in SETTINGS:
        expected = math.sqrt(2.0 * lr * decay / (1.0 + momentum))
        for scale in (1.0, 3.0):
            found = "  ".join(f"{turn / expected:.3f}" for turn in rotations(images, lr, decay, momentum, scale))
            print(
                f"  lr {lr:<5g} wd {decay:<6g} momentum {momentum:<4g} start x {scale:g}: expected {expected:.4f}"
                f"   {found}",
                flush=True,
            )


def equivalence(images: Tensor) -> None:
    """Print how far the two networks are apart."""
    print("\nEquivalence: largest difference after 300 steps (lr 0.1, wd 0.02)")
    for shift, name in ((1, "lr (1 - lr wd)^(-2t-1)"), (0, "lr (1 - lr wd)^(-2t)")):
        directions, outputs, growth = apart(images, 0.1, 0.02, 300, shift)
        print(f"  {name:<24} directions {directions:.1e}   outputs {outputs:.1e}   the rate grew {growth:.2f} times")


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("equilibrium", "equivalence", "both"), default="both")
    part = parser.parse_args().part
    torch.set_num_threads(1)
    images = digits(generator=torch.Generator().manual_seed(0)).train_images.double()
    print(header())
    if part != "equivalence":
        equilibrium(images)
    if part != "equilibrium":
        equivalence(images)


if __name__ == "__main__":
    main()
