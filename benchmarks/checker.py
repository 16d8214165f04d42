"""What the independent checker takes: proofs of this commit, each checked by `tools/verify` in a process of its own.

    python benchmarks/checker.py [--checker PATH]

Searches are counted in steps, so that the proofs do not depend on the clock.
Times are CPU seconds of the checker's process with one thread, peak memory is that of the process.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import normscope as ns

CHECKER = Path(__file__).resolve().parents[1] / "tools" / "verify"
MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(done.returncode, round(used.ru_utime + used.ru_stime, 2), used.ru_maxrss // 1024, done.stdout.count(": VERIFIED"))
"""


def mlp(*widths: int) -> nn.Module:
    """Return a ReLU network of these widths."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn() -> nn.Module:
    """Return a small convolutional network for 28 by 28 pixels."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def normalized() -> nn.Module:
    """Return a network like the demo's, with LayerNorm."""
    layers: list[nn.Module] = []
    for before in (64, 64, 64, 64):
        layers += [nn.Linear(before, 64), nn.LayerNorm(64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "4x64, LayerNorm": (normalized, (2, 64)),
    "10x512": (lambda: mlp(64, *[512] * 10, 10), (2, 64)),
    "small CNN": (cnn, (2, 1, 28, 28)),
}


def checked(checker: Path, proof: Path) -> list[str]:
    """Return exit code, CPU seconds, memory in MB, and how many claims were verified."""
    command = [sys.executable, "-c", MEASURE, sys.executable, str(checker), str(proof)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | threads)
    return done.stdout.split()


def main() -> None:
    """Print one row per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checker", type=Path, default=CHECKER)
    options = parser.parse_args()
    print("| network | file MB | CPU s | peak MB | verified | exit |\n|---|---|---|---|---|---|")
    for name, (build, shape) in CASES.items():
        torch.manual_seed(0)
        model, batch = build().eval(), torch.randn(shape)
        with tempfile.TemporaryDirectory() as folder:
            proof = Path(folder) / "proof.npz"
            save(model, batch, proof)
            code, seconds, memory, verified = checked(options.checker, proof)
            print(
                f"| {name} | {proof.stat().st_size / 1e6:.1f} | {seconds} | {memory} | {verified} | {code} |",
                flush=True,
            )


def save(model: nn.Module, batch: Tensor, path: Path) -> None:
    """Measure a network and write the proof."""
    ns.lipschitz(model, batch).save(path)


if __name__ == "__main__":
    main()
