"""`lipschitz` of chains beside ECLipsE-Fast, whose bound is the closed form: `python benchmarks/eclipse.py`.

ECLipsE-Fast (Xu and Sivaranjani 2024), ReLU, with the smallest work that gives its number: X_0 = I,
K = W_i X_{i-1}^{-1} W_i^T, lambda_i = 2 / lambda_max(K), X_i = lambda_i I - lambda_i^2 K / 4, and at the end
sqrt(lambda_max(W X^{-1} W^T)), in float64. It has no rounding, no lower side and no graph, and reads weights in order.

Times are of the processor (other load on the machine does not count), all in turns, medians. `capture` is what turning
the model into a graph takes, which both columns of `lipschitz` contain; `export` is the same by torch.export.
`upper - capture` over ECLipsE-Fast is the last column.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import header
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.graph import capturing

CHAINS = [(32, 3), (64, 3), (64, 10), (128, 6), (256, 3), (256, 6), (256, 12)]
"""Width and number of matrices."""
INPUTS, OUTPUTS, SAMPLES = 64, 10, 4


def network(width: int, depth: int) -> nn.Sequential:
    """Return a ReLU network with random weights."""
    sizes = [INPUTS, *[width] * (depth - 1), OUTPUTS]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1]).eval()


@torch.no_grad()
def eclipse_fast(weights: list[Tensor]) -> float:
    """Return ECLipsE-Fast's bound."""
    inverse = torch.eye(weights[0].shape[1], dtype=torch.float64)
    for weight in weights[:-1]:
        gram = weight @ inverse @ weight.T
        factor = 2.0 / torch.linalg.eigvalsh(gram)[-1]
        inverse = torch.linalg.inv(factor * torch.eye(len(gram), dtype=torch.float64) - factor**2 / 4.0 * gram)
    return float(torch.linalg.eigvalsh(weights[-1] @ inverse @ weights[-1].T)[-1].sqrt())


def export(model: nn.Module, batch: Tensor) -> None:
    """Capture a model by torch.export."""
    chain = capturing.trace_chain
    capturing.trace_chain = lambda model, call: None
    try:
        capturing.trace_model(model, batch)
    finally:
        capturing.trace_chain = chain


def compare(width: int, depth: int, repeats: int) -> None:
    """Measure one network and print its row."""
    model = network(width, depth)
    batch = torch.randn(SAMPLES, INPUTS, generator=torch.Generator().manual_seed(0))
    weights = [layer.weight.detach().double() for layer in model if isinstance(layer, nn.Linear)]
    work: dict[str, Callable[[], Any]] = {
        "eclipse": lambda: eclipse_fast(weights),
        "export": lambda: export(model, batch),
        "capture": lambda: capturing.trace_model(model, batch),
        "upper": lambda: ns.lipschitz(model, batch, sides="upper"),
        "both": lambda: ns.lipschitz(model, batch),
    }
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):  # in turns
        for name, function in work.items():
            began = time.process_time()
            function()
            taken[name].append(1e3 * (time.process_time() - began))
    fast, exported, capture, upper, both = (statistics.median(times) for times in taken.values())
    bounds = ns.ladder(model, batch, sides="upper")
    excess = bounds["closed-form"].upper / eclipse_fast(weights) - 1.0
    print(
        f"{width:5d} {depth:5d} {fast:9.1f} {exported:8.0f} {capture:8.1f} {upper:8.0f} {both:8.0f}"
        f" {(upper - capture) / fast:8.1f}x   {excess:+.0e}   {bounds['best'].method}",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(header())
    print(f"Milliseconds of the processor, medians of {arguments.repeats}; batches of {SAMPLES} x {INPUTS}.")
    print("width depth   ECLipsE   export  capture    upper     both  (upper-capture)/ECLipsE  bound  best method")
    ns.lipschitz(network(8, 3), torch.zeros(2, INPUTS))  # so that everything is loaded
    for width, depth in CHAINS:
        compare(width, depth, arguments.repeats)


if __name__ == "__main__":
    main()
