"""Layers that die in training: Adam with coupled L2 beside AdamW, on the same network, data, order and seeds.

    python benchmarks/dying_layers.py [--seeds 3] [--epochs 250] [--out docs/results]

A weight before BatchNorm can shrink without any effect on the loss, so that nothing holds it up. Coupled L2 puts the
decay into the gradient, Adam divides by the gradient's size, and where the loss asks for nothing the decay is all there
is: the weight goes down by about the learning rate a step until the variance lies below eps and nothing passes. AdamW
multiplies by 1 - rate * decay instead. The network is residual, so that the accuracy shows none of this.

Prints a table and the findings per seed. With --out it writes the audits of the first seed as
dying_layers_adam_l2.json and dying_layers_adamw.json.
"""

import argparse
import copy
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import nn

import normscope as ns
from normscope.auditing.audit_result import Audit, Row
from normscope.core.provenance import provenance
from normscope.data import Split, digits
from normscope.networks.small import ResidualBlock, accuracy, residual_mlp, train

RATE, BLOCKS, WIDTH, BATCH = 3e-3, 6, 64, 64
ARMS: dict[str, Callable[..., torch.optim.Optimizer]] = {  # fused: the same steps, computed faster
    "adam_l2": partial(torch.optim.Adam, lr=RATE, weight_decay=1e-3, fused=True),
    "adamw": partial(torch.optim.AdamW, lr=RATE, weight_decay=1e-3, fused=True),
    "adamw_strong": partial(torch.optim.AdamW, lr=RATE, weight_decay=1e-1, fused=True),
}
TITLES = {"adam_l2": "Adam, L2 of 1e-3", "adamw": "AdamW, decay 1e-3", "adamw_strong": "AdamW, decay 1e-1"}
NEGLIGIBLE = -3
"""log10 of a folded gain that a residual stream of size 1 does not notice."""
FIRST_SEED_ONLY = ("adamw_strong",)
"""The same number means less in AdamW; a hundred times as much is shown once."""


@dataclass(frozen=True)
class Removal:
    """What is left of a network without some of its blocks."""

    why: str
    blocks: list[str]
    test_accuracy: float
    change: float


@dataclass(frozen=True)
class Run:
    """One trained network with its audit, and the test whether the blocks called dead do anything."""

    audit: Audit
    norms: dict[str, float]
    train_accuracy: float
    test_accuracy: float
    removals: list[Removal]


def run(arm: str, seed: int, epochs: int) -> Run:
    """Train with one optimizer and audit the result, in eval mode, over the training data."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    data = digits(generator=generator)
    model = residual_mlp(generator=generator, width=WIDTH, blocks=BLOCKS)
    images, labels = data.train_images, data.train_labels
    train(model, images, labels, generator=generator, epochs=epochs, batch_size=BATCH, optimizer=ARMS[arm])
    audit = ns.audit(model, data.test_images[:BATCH], loader=images.split(BATCH), name=f"residual_mlp, {TITLES[arm]}")
    reported = {finding.where for finding in audit.findings if finding.code == "dead-layer"}
    cut = {row.path for row in audit.layers if row.log10_folded is not None and row.log10_folded < NEGLIGIBLE}
    return Run(
        audit=audit,
        norms={path: float(m.weight.detach().norm()) for path, m in model.named_modules() if isinstance(m, nn.Linear)},
        train_accuracy=accuracy(model, images, labels),
        test_accuracy=accuracy(model, data.test_images, data.test_labels),
        removals=[
            _removal(model, data, "with a dead-layer finding", reported),
            _removal(model, data, f"with a folded gain below 10^{NEGLIGIBLE}", cut),
        ],
    )


def _removal(model: nn.Module, data: Split, why: str, paths: set[str]) -> Removal:
    tops = {path.split(".")[0] for path in paths}
    blocks = sorted(path for path in tops if isinstance(model.get_submodule(path), ResidualBlock))
    rest = copy.deepcopy(model)
    for path in blocks:
        rest.set_submodule(path, nn.Identity())
    with torch.no_grad():
        change = float((rest(data.test_images) - model(data.test_images)).abs().max())
    return Removal(why, blocks, accuracy(rest, data.test_images, data.test_labels), change)


def show(seed: int, runs: dict[str, Run]) -> None:
    """Print a line per weight that feeds a normalizer, then the accuracies and the findings."""
    print(f"\nseed {seed}\n{'':18s}" + "".join(f"{TITLES[arm]:>34s}" for arm in runs))
    print(
        f"{'weight':8s}{'normalizer':10s}" + f"{'norm(W)':>11s}{'variance':>9s}{'live':>5s}{'folded':>9s}" * len(runs)
    )
    feeding = [(i, row) for i, row in enumerate(next(iter(runs.values())).audit.layers) if row.folded_with is not None]
    for index, row in feeding:
        cells = (_cells(one.audit.layers[index], one.norms) for one in runs.values())
        print(f"{row.folded_with:8s}{row.path:10s}" + "".join(cells))
    for arm, one in runs.items():
        found = Counter(f"{finding.code} ({finding.severity})" for finding in one.audit.findings)
        print(f"{TITLES[arm]}: accuracy {one.train_accuracy:.3f} in training, {one.test_accuracy:.3f} in test")
        print("  findings: " + (", ".join(f"{count} {what}" for what, count in found.items()) or "none"))
        for finding in one.audit.findings:
            if finding.code == "dead-layer":
                print(f"  dead-layer {finding.where}: {finding.seen}")
        for removal in one.removals:
            if removal.blocks:
                print(
                    f"  without the blocks {', '.join(removal.blocks)}, those {removal.why}: accuracy "
                    f"{removal.test_accuracy:.3f} in test, no logit moves by more than {removal.change:.1e}"
                )


def _cells(row: Row, norms: dict[str, float]) -> str:
    seen = row.variance
    assert seen is not None
    assert row.log10_folded is not None
    live = round((1 - seen.share_eps) * seen.sets)
    norm, variance, folded = norms[str(row.folded_with)], _power(seen.log10_median), _power(row.log10_folded)
    return f"{norm:11.1e}{variance:>9s}{live:5d}{folded:>9s}"


def _power(exponent: float) -> str:
    return "0" if exponent == float("-inf") else f"10^{exponent:.1f}"


def main() -> None:
    """Train, audit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=250)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    began = time.perf_counter()
    versions = provenance(torch.device("cpu"))
    print(", ".join(f"{key} {value}" for key, value in versions.items()) + f", {os.cpu_count()} cores")
    print(
        f"residual_mlp, {BLOCKS} blocks {WIDTH} wide, on scikit-learn's digits; batch {BATCH}, {arguments.epochs} "
        f"epochs, learning rate {RATE:g}, every parameter decayed\n"
        "norm(W): Frobenius; variance: median over the channels into the normalizer (eps 1e-5); live: channels, of "
        f"{WIDTH}, with a variance above 10 eps; folded: the gain of both layers"
    )
    jobs = [(arm, seed) for seed in range(arguments.seeds) for arm in ARMS if seed == 0 or arm not in FIRST_SEED_ONLY]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        arms, seeds = zip(*jobs)
        done = dict(zip(jobs, pool.map(run, arms, seeds, [arguments.epochs] * len(jobs))))
    for seed in range(arguments.seeds):
        show(seed, {arm: done[arm, other] for arm, other in jobs if other == seed})
    if arguments.out is not None:
        for arm in ("adam_l2", "adamw"):
            done[arm, 0].audit.to_json(arguments.out / f"dying_layers_{arm}.json")
    print(f"\n{time.perf_counter() - began:.0f} s, two trainings at a time")


if __name__ == "__main__":
    main()
