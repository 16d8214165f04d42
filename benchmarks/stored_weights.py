"""Norms of stored matrices beside power iteration: processor seconds on the shapes of a Llama of 1.1B parameters.

    OMP_NUM_THREADS=1 python benchmarks/stored_weights.py

One random bfloat16 matrix of each shape is measured on one thread; the total counts each as often as the model has it.
Power iteration takes 30 steps in bfloat16, as stored; it ends below the norm and proves nothing above it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from normscope.core.bracket import Bracket
from normscope.diagnosis.weight_norms import matrix_norm

SHAPES = {(256, 2048): 44, (2048, 2048): 44, (5632, 2048): 66, (32000, 2048): 2}
"""Rows and columns, and how often a Llama of 1.1B parameters has such a matrix (or its transpose)."""


def power_iteration(weight: Tensor, steps: int = 30) -> float:
    """Return the gain after some steps of power iteration."""
    x = torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    for _ in range(steps):
        x = weight.T @ (weight @ (x / x.norm()))
    return float((weight @ (x / x.norm())).norm())


def spent(function: Callable[[Tensor], float | Bracket], weight: Tensor) -> tuple[float | Bracket, float]:
    """Return a function's result and the processor seconds it took."""
    begun = time.process_time()
    result = function(weight)
    return result, time.process_time() - begun


@torch.no_grad()
def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    matrix_norm(torch.randn(300, 200, generator=generator))  # start the libraries before the clock
    total = peers = 0.0
    for shape, count in SHAPES.items():
        weight = (0.02 * torch.randn(shape, generator=generator)).bfloat16()
        found, ours = spent(matrix_norm, weight)
        value, theirs = spent(power_iteration, weight)
        assert isinstance(found, Bracket)
        total, peers = total + count * ours, peers + count * theirs
        print(
            f"{shape[0]}x{shape[1]}  [{found.lower:.5f}, {found.upper:.5f}] gap {found.gap:.3%}  {ours:.2f} s", end=""
        )
        print(f"   power iteration {value:.5f}  {theirs:.2f} s", flush=True)
    print(f"1.1B parameters: {total:.0f} s, power iteration {peers:.0f} s, ratio {total / peers:.1f}")


if __name__ == "__main__":
    main()
