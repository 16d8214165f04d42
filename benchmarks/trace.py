"""The trace of a Hessian at equal products: how far `ns.hessian` is off beside Hutchinson, Hutch++ and XTrace.

    python benchmarks/trace.py

A network of 1,806 parameters on 300 digits, as initialised and after 100 steps of SGD, in float64, so that the truth
is the trace of the dense matrix. `ns.hessian(k=0, probes=p, density=False)` looks for the trace alone,
`ns.hessian(k=5, probes=p)` for five eigenvalues and the density too; the others get as many products for the trace.
The error is the root mean square over seeds, relative to the sum of the sizes of all eigenvalues; beside it stand
what `ns.hessian` says of its own error, and in what percentage of the seeds the truth is within one and two of it.
Hutchinson is the mean of v^T A v; Hutch++ (Meyer et al. 2021) and XTrace (Epperly, Tropp and Webber 2024) are written
out here as their authors state them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from machine import header
from sklearn.datasets import load_digits
from torch import Tensor, nn

import normscope as ns

LOSS = nn.functional.cross_entropy


def made(steps: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the network after some steps, with its data."""
    digits = load_digits()
    x, y = torch.tensor(digits.data[:300] / 16.0), torch.tensor(digits.target[:300])
    torch.manual_seed(0)
    layers = [nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 10)]
    model = nn.Sequential(*layers).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        LOSS(model(x), y).backward()
        optimizer.step()
    return model, x, y


def dense(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the Hessian."""
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(LOSS(model(x), y), parameters, create_graph=True)
    entries = torch.cat([gradient.reshape(-1) for gradient in gradients])
    rows = [torch.autograd.grad(entry, parameters, retain_graph=True) for entry in entries]
    return torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])


def hutchinson(matrix: Tensor, products: int) -> float:
    """Return the mean of v^T A v over vectors of signs."""
    signs = torch.randn(len(matrix), products).double().sign()
    return float((signs * (matrix @ signs)).sum() / products)


def hutch_plus_plus(matrix: Tensor, products: int) -> float:
    """Spend a third of the products on a space, a third on its trace and a third on the rest."""
    third = products // 3
    basis = torch.linalg.qr(matrix @ torch.randn(len(matrix), third).double().sign()).Q
    signs = torch.randn(len(matrix), products - 2 * third).double().sign()
    signs = signs - basis @ (basis.T @ signs)
    return float((basis * (matrix @ basis)).sum() + (signs * (matrix @ signs)).sum() / signs.shape[1])


def xtrace(matrix: Tensor, products: int) -> float:
    """Let each random vector estimate what the space of all others leaves."""
    size, count = len(matrix), products // 2
    vectors = torch.randn(size, count).double()
    vectors = vectors * (size**0.5 / vectors.norm(dim=0))
    images = matrix @ vectors
    basis, corner = torch.linalg.qr(images)
    dropped = nn.functional.normalize(torch.linalg.inv(corner).T, dim=0)  # what the space without each vector lacks
    moved = matrix @ basis
    small = basis.T @ moved
    inner = basis.T @ vectors
    inner = inner - dropped * (dropped * inner).sum(0)
    left, left_moved = vectors - basis @ inner, images - moved @ inner
    forms = (left * left_moved).sum(0) * (size - count + 1) / left.square().sum(0)
    return float((small.trace() - (dropped * (small @ dropped)).sum(0) + forms).mean())


WAYS: dict[str, Callable[[Tensor, int], float]] = {
    "Hutchinson": hutchinson, "Hutch++": hutch_plus_plus, "XTrace": xtrace,
}  # fmt: skip


ASKED: dict[str, dict[str, Any]] = {"the trace": {"k": 0, "density": False}, "all": {"k": 5}}
"""What `ns.hessian` is asked for beside the trace."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--seeds", type=int, default=50)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(header())
    print("weights    asked for       products  normscope  (it says)  within  " + "  ".join(f"{w:>10s}" for w in WAYS))
    for steps in (0, 100):
        model, x, y = made(steps)
        matrix = dense(model, x, y)
        truth, size = float(matrix.trace()), float(torch.linalg.eigvalsh(matrix).abs().sum())
        for (label, asked), probes in product(ASKED.items(), chosen.probes):
            spectra = [
                ns.hessian(model, (x, y), loss=LOSS, probes=probes, deflate=False, seed=seed, **asked)
                for seed in range(chosen.seeds)
            ]
            products = max(spectrum.num_products for spectrum in spectra)
            traces = [spectrum.trace for spectrum in spectra if spectrum.trace is not None]
            said = sum(trace.error for trace in traces) / len(traces)
            within = "/".join(
                f"{100 * sum(abs(trace.value - truth) < times * trace.error for trace in traces) / len(traces):.0f}"
                for times in (1, 2)
            )
            values = {"normscope": [trace.value for trace in traces]}
            torch.manual_seed(1)
            for way, estimate in WAYS.items():
                values[way] = [estimate(matrix, products) for _ in range(chosen.seeds)]
            errors = {
                way: (sum((v - truth) ** 2 for v in each) / len(each)) ** 0.5 / size for way, each in values.items()
            }
            others = "  ".join(f"{errors[way]:10.2e}" for way in WAYS)
            print(
                f"{steps:3d} steps  {label:<14}  {products:8d}  {errors['normscope']:9.2e}  {said / size:9.2e}  "
                f"{within:>6}  {others}",
                flush=True,
            )


if __name__ == "__main__":
    main()
