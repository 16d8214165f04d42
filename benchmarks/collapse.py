"""Variances that collapse in training, and the alarm: Adam with coupled L2 beside AdamW, all else equal.

    python benchmarks/collapse.py [--steps 400] [--rate 1e-2] [--decay 1e-2] [--classes 2]

A small residual network with BatchNorm learns scikit-learn's digits, by default the zeros and ones among them, which
it has fitted after some fifty steps. From then on gradients vanish. Coupled L2 adds the decay to them and Adam divides
the sum by its size: the weights before normalizers, whose scale the loss does not see, shrink by the learning rate a
step, the variances go down with their square, and the product of the constants 1/sqrt(var + eps) grows. AdamW
multiplies by 1 - rate * decay instead, and the variances grow. The decay is larger than usual so that it takes seconds;
with 1e-4 the same takes epochs. No weight is set by hand.

Prints for both optimizers the variances over the run, the product of the constants, and the alarms.
"""

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.data import digits
from normscope.doctor.monitor.watching import Watch

WIDTH, BLOCKS, BATCH, SAMPLES = 8, 2, 64, 256


class Block(nn.Module):
    """The block of ResNet-18 (He et al. 2015), narrow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to its input."""
        inner = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(inner)))


def network(classes: int) -> nn.Module:
    """Return the same fresh network at every call."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, WIDTH, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(),
        *(Block(WIDTH) for _ in range(BLOCKS)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, classes),
    )  # fmt: skip


def run(optimizer: type[torch.optim.Optimizer], *, steps: int, rate: float, decay: float, classes: int) -> Watch:
    """Train with one optimizer, watched."""
    generator = torch.Generator().manual_seed(0)
    split = digits(generator=generator)
    kept = split.train_labels < classes
    images, labels = (
        split.train_images[kept][: SAMPLES * classes // 2],
        split.train_labels[kept][: SAMPLES * classes // 2],
    )
    model = network(classes)
    trained = optimizer(model.parameters(), lr=rate, weight_decay=decay)
    with ns.watch(model, trained, every=10, panel=False) as watched:
        for _ in range(steps):
            rows = torch.randperm(len(images), generator=generator)[:BATCH]
            trained.zero_grad()
            loss = F.cross_entropy(model(images[rows]), labels[rows])
            watched.observe(loss=loss)
            loss.backward()
            trained.step()
    return watched


def show(title: str, watched: Watch) -> None:
    """Print the run by a few of its records, then its alarms."""
    names = [layer.name for layer in watched.history.of("normalizer")]
    print(f"\n{title}\n{'step':>6s}{'loss':>10s}{'prod 1/s':>10s}" + "".join(f"{'var ' + name:>12s}" for name in names))
    for record in watched.records[:: max(1, len(watched.records) // 8)]:
        cells = "".join(f"{'10^' + format(v or 0.0, '.1f'):>12s}" for v in record.of("normalizer", "log10_variance"))
        product = record.total["log10_constants"] or 0.0
        print(f"{record.step:6d}{record.loss or 0.0:10.2g}{'10^' + format(product, '.1f'):>10s}{cells}")
    print("alarms: " + ("" if watched.findings else "none"))
    for finding in watched.findings:
        print(f"  {finding}")


def main() -> None:
    """Train twice and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rate", type=float, default=1e-2)
    parser.add_argument("--decay", type=float, default=1e-2)
    parser.add_argument("--classes", type=int, default=2)
    given = vars(parser.parse_args())
    torch.set_num_threads(1)
    for optimizer in (torch.optim.Adam, torch.optim.AdamW):
        began = time.perf_counter()
        watched = run(optimizer, **given)
        show(f"{optimizer.__name__}, lr={given['rate']:g}, weight_decay={given['decay']:g}", watched)
        print(f"{time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
