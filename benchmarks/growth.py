"""How the work of each function grows with depth, width, batch and input size: counted, without a clock.

    python benchmarks/growth.py                                all lines, in a few minutes (--json: as JSON)
    python benchmarks/growth.py --along batch --only audit     one of them

Two families in eval mode, in which bounds are of one sample: residual blocks of linear layers behind a LayerNorm (along
depth, width and batch), and residual convolutions with BatchNorm (along the side of the images). Every operator that
torch runs is counted, and its multiplications: those of products and convolutions as torch's own counter has them, and
those of factorisations as n^3 times the usual constant. If work grows as size^p, p is the slope of log(work) over
log(size): it is printed over all sizes, and between the last two. One forward and backward is counted for comparison.

`watch` is the work of four steps that are all measured (`every=1`, no limit of overhead) less that of the steps alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from machine import header
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import normscope as ns
from normscope.bounds.linalg import certify
from normscope.products import lanczos

SIZES = {"depth": (2, 4, 8), "width": (16, 32, 64, 128), "batch": (4, 8, 16), "side": (8, 16, 32, 64)}
USUAL_SIZES = {"depth": 2, "width": 32, "batch": 8}
"""What the sizes are that do not vary along a line."""
CHANNELS, BLOCKS, IMAGES = 4, 2, 4
"""The convolutional network, and the images of a batch, where their side varies."""
WATCHED_STEPS = 4
N3_MULTIPLICATIONS = {
    "linalg_cholesky_ex": 1 / 3, "_linalg_eigh": 9.0, "_linalg_svd": 20.0, "linalg_qr": 2.0, "linalg_inv_ex": 1.0,
    "linalg_solve_triangular": 1.0,
}  # fmt: skip
"""Multiplications of a factorisation of order n, in units of n^3."""
N3_OF_VALUES_ALONE = {"_linalg_eigh": 4 / 3}
"""The same where the caller wants no vectors, or a single one."""


class Counter(TorchDispatchMode):
    """Counts operators and multiplications."""

    def __init__(self) -> None:
        super().__init__()
        self.operators, self.multiplications = 0, 0.0
        self.values_alone = False
        """Whether the caller wants no vectors of a factorisation: beneath this class torch runs the same operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and count it."""
        output = func(*args, **(kwargs or {}))
        self.operators += 1
        packet = func.overloadpacket
        if packet in flop_registry:
            self.multiplications += flop_registry[packet](*args, **(kwargs or {}), out_val=output) / 2.0
        elif (constant := N3_MULTIPLICATIONS.get(packet.__name__)) is not None and args[0].ndim > 1:
            rows, columns = args[0].shape[-2:]
            if self.values_alone:
                constant = N3_OF_VALUES_ALONE[packet.__name__]
            self.multiplications += (
                constant * math.prod(args[0].shape[:-2]) * min(rows, columns) ** 2 * max(rows, columns)
            )
        return output


@contextmanager
def counting() -> Iterator[Counter]:
    """Count what torch runs, and the Gram matrices and top eigenvectors that BLAS and LAPACK take directly."""
    gram_of_rows, lapack, eigvalsh = certify.gram_of_rows, lanczos._lapack, torch.linalg.eigvalsh
    counter = Counter()

    def count_and_run(pieces: Any, order: int) -> Tensor:
        rows = list(pieces)
        counter.multiplications += sum(len(piece) for piece in rows) * order**2 / 2.0
        return gram_of_rows(rows, order)

    def count_values(matrix: Tensor) -> Tensor:
        counter.values_alone = True
        try:
            return eigvalsh(matrix)
        finally:
            counter.values_alone = False

    def count_top(matrix: Any, **options: Any) -> Any:
        counter.multiplications += N3_OF_VALUES_ALONE["_linalg_eigh"] * len(matrix) ** 3
        return lapack().dsyevr(matrix, **options)

    certify.gram_of_rows, torch.linalg.eigvalsh = count_and_run, count_values
    lanczos._lapack = lambda: SimpleNamespace(dsyevr=count_top)
    try:
        with counter:
            yield counter
    finally:
        certify.gram_of_rows, torch.linalg.eigvalsh, lanczos._lapack = gram_of_rows, eigvalsh, lapack


class Block(nn.Module):
    """A residual block of two linear layers behind a LayerNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the layers return."""
        return x + self.second(self.first(self.norm(x)).relu())


class ConvBlock(nn.Module):
    """A residual block of two convolutions with BatchNorm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, 1, 1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the layers return."""
        return (x + self.last(self.second(self.norm(self.first(x)).relu()))).relu()


def case(along: str, size: int) -> tuple[nn.Module, Tensor]:
    """Return a network and a batch."""
    torch.manual_seed(0)
    if along == "side":
        blocks: list[nn.Module] = [ConvBlock(CHANNELS) for _ in range(BLOCKS)]
        ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10)]
        return nn.Sequential(nn.Conv2d(3, CHANNELS, 3, 1, 1), *blocks, *ends).eval(), torch.randn(IMAGES, 3, size, size)
    depth, width, batch = (size if along == name else usual for name, usual in USUAL_SIZES.items())
    inner = [Block(width) for _ in range(depth)]
    return nn.Sequential(nn.Linear(16, width), *inner, nn.Linear(width, 10)).eval(), torch.randn(batch, 16)


def labels_of(batch: Tensor) -> Tensor:
    """Return one of ten classes for every sample."""
    return torch.arange(len(batch)) % 10


def train(model: nn.Module, batch: Tensor, watched: bool) -> None:
    """Take some steps in train mode, watched or not: passes in eval mode, with layers that know it, are no training."""
    model.train()
    optimizer, labels = torch.optim.SGD(model.parameters(), lr=1e-3), labels_of(batch)

    def steps(run: Any) -> None:
        for _ in range(WATCHED_STEPS):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), labels)
            if run is not None:
                run.observe(loss=loss)
            loss.backward()
            optimizer.step()

    if not watched:
        steps(None)
        return
    with ns.watch(model, optimizer, every=1, overhead=None) as run:
        steps(run)


def forward_and_backward(model: nn.Module, batch: Tensor) -> None:
    """Take one forward and backward."""
    nn.functional.cross_entropy(model(batch), labels_of(batch)).backward()


WORK: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "forward and backward": forward_and_backward,
    "check": lambda model, batch: ns.check(model, batch),
    "audit": lambda model, batch: ns.audit(model, batch),
    "lipschitz fast": lambda model, batch: ns.lipschitz(model, batch, effort="fast"),
    "lipschitz upper": lambda model, batch: ns.lipschitz(model, batch, effort="fast", sides="upper"),
    "lipschitz tight": lambda model, batch: ns.lipschitz(model, batch, effort="tight"),
    "hessian": lambda model, batch: ns.hessian(model, (batch, labels_of(batch)), loss="cross_entropy", k=2),
    "watch": lambda model, batch: train(model, batch, True),
}


def count_work(name: str, along: str, size: int) -> tuple[float, float]:
    """Return the operators and the multiplications of one function at one size."""
    model, batch = case(along, size)
    with counting() as counter:
        WORK[name](model, batch)
    operators, multiplications = counter.operators, counter.multiplications
    if name == "watch":
        model, batch = case(along, size)
        with counting() as alone:
            train(model, batch, False)
        operators, multiplications = operators - alone.operators, multiplications - alone.multiplications
    return operators, multiplications


def slope(sizes: list[int], values: list[float]) -> float:
    """Return the slope of a straight line through logarithms."""
    x, y = ([math.log(value) for value in each] for each in (sizes, values))
    middle = sum(x) / len(x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def main() -> None:
    """Print one line for each function along each direction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--along", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--only", nargs="+", default=list(WORK), choices=list(WORK))
    parser.add_argument("--json", action="store_true", help="print JSON lines instead")
    options = parser.parse_args()
    print(header())
    for along, name in itertools.product(options.along, options.only):
        sizes = list(SIZES[along])
        work = [count_work(name, along, size) for size in sizes]
        row: dict[str, Any] = {"along": along, "sizes": sizes, "function": name}
        for kind, values in zip(("operators", "multiplications"), zip(*work, strict=True), strict=True):
            each = [max(value, 1.0) for value in values]
            row[kind] = [round(value) for value in values]
            row[f"{kind}_slope"] = round(slope(sizes, each), 2)
            row[f"{kind}_last"] = round(slope(sizes[-2:], each[-2:]), 2)
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        line = "; ".join(
            f"{kind} {' '.join(f'{value:.3g}' for value in row[kind])}, slope {row[f'{kind}_slope']:+.2f},"
            f" last {row[f'{kind}_last']:+.2f}"
            for kind in ("multiplications", "operators")
        )
        print(f"{along} {' '.join(map(str, sizes))}: {name}: {line}", flush=True)


if __name__ == "__main__":
    main()
