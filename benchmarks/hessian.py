"""Top-5 Hessian eigenvalues to 1e-3: products and processor seconds beside PyHessian and curvlinops.

    python benchmarks/hessian.py

The network has three blocks of convolution and BatchNorm (3,922 parameters), the batch 256 random images; it is
measured as initialised (four seeds) and after 60 steps of SGD (two). How many products it takes is up to the spectrum:
close eigenvalues take more. PyHessian (power iteration with deflation) and curvlinops (products for scipy's eigsh) are
measured where they are installed:
`pip install pyhessian curvlinops-for-pytorch`. Both are for eval mode: PyHessian forces it, curvlinops refuses batch
statistics. The truth is scipy's eigsh on float64 products, to 1e-10. Products with the Hessian are counted by wrapping
the peers' own functions; one thread. For train mode, which the peers do not measure, scipy's eigsh on plain products
stands beside it. `fewest possible` is no method: in how many products a Krylov space of a random start holds the five
values to 1e-3 for good, by the truth, over three starts.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from machine import header
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn

import normscope as ns

K, RTOL = 5, 1e-3
LOSS = nn.CrossEntropyLoss()


def network() -> nn.Module:
    """Return the network of 3,922 parameters."""

    def block(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

    layers = [*block(3, 8), nn.MaxPool2d(2), *block(8, 16), nn.MaxPool2d(2), *block(16, 16)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def made(steps: int, seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the network after some steps of SGD on random images, with running statistics of the batch."""
    torch.manual_seed(seed)
    model, x, y = network(), torch.randn(256, 3, 16, 16), torch.randint(10, (256,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        LOSS(model(x), y).backward()
        optimizer.step()
    model.zero_grad()
    with torch.no_grad():
        for _ in range(50):
            model(x)
    return model, x, y


def plain(model: nn.Module, x: Tensor, y: Tensor, mode: str, dtype: torch.dtype) -> tuple[LinearOperator, list[int]]:
    """Return the Hessian as an operator for scipy, and a list that counts its products."""
    model, x = copy.deepcopy(model).to(dtype).train(mode == "train"), x.to(dtype)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(LOSS(model(x), y), parameters, create_graph=True)
    sizes, count = [p.numel() for p in parameters], [0]

    def product(vector: np.ndarray) -> np.ndarray:
        count[0] += 1
        parts = torch.from_numpy(np.ascontiguousarray(vector).reshape(-1)).split(sizes)
        shaped = [part.reshape(p.shape) for part, p in zip(parts, parameters)]
        found = torch.autograd.grad(gradients, parameters, shaped, retain_graph=True)
        return torch.cat([f.reshape(-1) for f in found]).numpy()

    number = np.float64 if dtype == torch.float64 else np.float32
    return LinearOperator((sum(sizes),) * 2, matvec=product, dtype=number), count


def truth(model: nn.Module, x: Tensor, y: Tensor, mode: str) -> np.ndarray:
    """Return the largest eigenvalues in float64."""
    operator, _ = plain(model, x, y, mode, torch.float64)
    return np.sort(eigsh(operator, k=K, which="LA", tol=1e-10, return_eigenvectors=False))[::-1]


def fewest(model: nn.Module, x: Tensor, y: Tensor, mode: str, expected: np.ndarray, most: int = 64) -> list[int]:
    """Return after how many products the Krylov space of each of three random starts holds the values for good."""
    operator, _ = plain(model, x, y, mode, torch.float32)
    found = []
    for seed in range(3):
        vector = np.random.default_rng(seed).standard_normal(operator.shape[0]).astype(np.float32)
        basis, small, last = np.zeros((most, len(vector)), np.float32), np.zeros((most, most)), K
        for step in range(most):
            basis[step] = vector / np.linalg.norm(vector)
            image, known = operator.matvec(basis[step]), basis[: step + 1]
            inner = known @ image
            image = image - known.T @ inner
            again = known @ image
            small[: step + 1, step] = small[step, : step + 1] = inner + again
            vector = image - known.T @ again
            values = np.linalg.eigvalsh(small[: step + 1, : step + 1])[::-1][:K]
            if len(values) < K or np.max(np.abs(values - expected) / np.abs(expected)) > RTOL:
                last = step + 2
        found.append(last)
    return found


def normscope_way(model: nn.Module, x: Tensor, y: Tensor, mode: str) -> tuple[np.ndarray, int]:
    """Return eigenvalues and products of `ns.hessian`."""
    found = ns.hessian(model, (x, y), loss=LOSS, k=K, mode=mode, deflate=False, rtol=RTOL)
    return np.array(found.eigenvalues), found.num_products


def pyhessian_way(model: nn.Module, x: Tensor, y: Tensor, mode: str) -> tuple[np.ndarray, int]:
    """Return eigenvalues and products of PyHessian."""
    peer: Any = import_module("pyhessian.hessian")  # the package calls its class by the same name
    count, product = [0], peer.hessian_vector_product

    def counted(*given: object) -> object:
        count[0] += 1
        return product(*given)

    peer.hessian_vector_product = counted
    try:
        values, _ = peer.hessian(copy.deepcopy(model), LOSS, data=(x, y), cuda=False).eigenvalues(tol=RTOL, top_n=K)
    finally:
        peer.hessian_vector_product = product
    return np.array(values), count[0]


def curvlinops_way(model: nn.Module, x: Tensor, y: Tensor, mode: str) -> tuple[np.ndarray, int]:
    """Return eigenvalues and products of curvlinops with scipy's eigsh."""
    from curvlinops import HessianLinearOperator

    model = copy.deepcopy(model).eval()
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    try:
        linear = HessianLinearOperator(model, LOSS, parameters, [(x, y)], check_deterministic=False)
    except (TypeError, ValueError, AttributeError):  # older versions take a list
        linear = HessianLinearOperator(model, LOSS, list(parameters.values()), [(x, y)], check_deterministic=False)
    inner, count = linear.to_scipy(), [0]

    def counted(vector: np.ndarray) -> np.ndarray:
        count[0] += 1
        return inner.matvec(vector)

    operator = LinearOperator(inner.shape, matvec=counted, dtype=inner.dtype)
    values = eigsh(operator, k=K, which="LA", tol=RTOL, return_eigenvectors=False)
    return np.sort(values)[::-1], count[0]


def scipy_way(model: nn.Module, x: Tensor, y: Tensor, mode: str) -> tuple[np.ndarray, int]:
    """Return eigenvalues and products of scipy's eigsh on plain products."""
    operator, count = plain(model, x, y, mode, torch.float32)
    values = eigsh(operator, k=K, which="LA", tol=RTOL, return_eigenvectors=False)
    return np.sort(values)[::-1], count[0]


Way = Callable[[nn.Module, Tensor, Tensor, str], tuple[np.ndarray, int]]
WAYS: tuple[tuple[str, str, tuple[str, ...], Way], ...] = (
    ("normscope", "normscope", ("eval", "train"), normscope_way),
    ("PyHessian", "pyhessian", ("eval",), pyhessian_way),
    ("curvlinops + eigsh", "curvlinops", ("eval",), curvlinops_way),
    ("plain + eigsh", "scipy", ("eval", "train"), scipy_way),
)


def main() -> None:
    """Print a line per network, mode and way."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    torch.set_num_threads(1)
    print(header())
    print(f"{'weights':<14}{'mode':<7}{'way':<20}{'products':>9}{'seconds':>9}{'largest error':>15}")
    for steps, seed in ((0, 0), (0, 1), (0, 2), (0, 3), (60, 0), (60, 1)):
        model, x, y = made(steps, seed)
        for mode in ("eval", "train"):
            expected = truth(model, x, y, mode)
            for name, package, modes, way in WAYS:
                label = f"{f'{steps} steps ({seed})':<14}{mode:<7}{name:<20}"
                if mode not in modes:
                    print(f"{label}  not in this mode")
                elif find_spec(package) is None:
                    print(f"{label}  not installed")
                else:
                    began = time.process_time()
                    values, products = way(model, x, y, mode)
                    seconds = time.process_time() - began
                    error = float(np.max(np.abs(np.sort(values)[::-1] - expected) / np.abs(expected)))
                    print(
                        f"{label}{products:>9}{seconds:>9.2f}{error if math.isfinite(error) else 1:>15.1e}", flush=True
                    )
            least = ", ".join(map(str, fewest(model, x, y, mode, expected)))
            print(f"{f'{steps} steps ({seed})':<14}{mode:<7}{'fewest possible':<20}{least:>12}", flush=True)


if __name__ == "__main__":
    main()
