"""How long every generalization bound takes for a network on MNIST, on a CPU.

    python benchmarks/generalization_mnist.py --write

One hidden layer of 600 ReLUs is trained for one epoch; what is timed is `ns.generalization` over all 60,000 training
and 10,000 test images. MNIST's idx files lie in `data/` of the shared folder beside the checkout, or in
`--data FOLDER`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from machine import header
from pac_bayes_mnist import data_folder
from torch import nn

import normscope as ns
from normscope.data import mnist

RESULT = Path(__file__).resolve().parents[1] / "docs" / "results" / "generalization_mnist_2cores.txt"


def main() -> None:
    """Print the time and the bounds, and write them where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--write", action="store_true", help="write docs/results/generalization_mnist_2cores.txt")
    given = parser.parse_args()
    split = mnist(data_folder(given.data), standardise=False)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 600), nn.ReLU(), nn.Linear(600, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for rows in torch.randperm(len(split.train_images)).split(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(split.train_images[rows]), split.train_labels[rows]).backward()
        optimizer.step()
    train = list(zip(split.train_images.split(500), split.train_labels.split(500)))
    test = list(zip(split.test_images.split(500), split.test_labels.split(500)))
    began = time.perf_counter()
    found = ns.generalization(model.eval(), train, test, input_range=(0.0, 1.0))
    seconds = time.perf_counter() - began
    lines = [
        "python benchmarks/generalization_mnist.py --write",
        "",
        header("cpu"),
        f"{len(found.rows)} bounds over {len(split.train_images):,} training and {len(split.test_images):,} test "
        f"images: {seconds:.0f} s with {torch.get_num_threads()} threads",
        *(f"  {row.name:<36}{row.log10_value:>8.3f}  {row.evidence}" for row in found.rows),
    ]
    print("\n".join(lines))
    if given.write:
        RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
