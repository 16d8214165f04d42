"""Curvature of trained networks on CIFAR-10 in both modes: largest eigenvalues, products, seconds, safe learning rates.

    python benchmarks/curvature_models.py FOLDER --images cifar.npz --device cuda

FOLDER holds `networks.py` with `load(name)`; the npz file has `x` (standardised images) and `y`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from machine import header
from torch import nn

import normscope as ns

NAMES = ("resnet18_cifar10", "vit_cifar10")


def main() -> None:
    """Print a line per network, mode and metric."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--samples", type=int, default=512)
    given = parser.parse_args()
    sys.path.insert(0, str(given.folder))
    from networks import load  # type: ignore[import-not-found]

    archive = np.load(given.images)
    x, y = (torch.from_numpy(archive[key][: given.samples]) for key in ("x", "y"))
    batches = list(zip(x.float().chunk(given.batches), y.chunk(given.batches)))
    print(header(given.device))
    print(f"{len(x)} images in {given.batches} batches, cross entropy, top 5 to 1e-3")
    for name in NAMES:
        model, _ = load(name)
        model.to(given.device)
        for mode in ("eval", "train"):
            for metric in ("flat", "quotient"):
                began = time.monotonic()
                found = ns.hessian(model, batches, loss=nn.CrossEntropyLoss(), mode=mode, metric=metric, bottom=1)
                seconds = time.monotonic() - began
                values = ", ".join(f"{value:.4g}" for value in found.eigenvalues)
                print(
                    f"{name} {mode} {metric}: {values}; smallest {found.bottom_eigenvalues[0]:.4g}; "
                    f"{found.num_products} products, {seconds:.1f} s, converged {found.converged}, loss "
                    f"{found.loss:.4g}, {found.directions:,} of {found.directions_found} directions that the graph "
                    f"shows projected out of {found.parameters:,} dimensions, safe rate {found.safe_learning_rate:.3g}",
                    flush=True,
                )
                for note in found.notes:
                    print(f"  {note}")


if __name__ == "__main__":
    main()
