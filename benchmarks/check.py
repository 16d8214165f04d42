"""A short fixed set of measurements, compared with the committed ones: has anything become slower?

    make bench-check                                    compare; exit code 1 if a ratio is more than 1.5 times as large
    python benchmarks/check.py --write                  take the ratios of this run as the ones to compare with

Ratios of another kind of processor are shown, not judged: on x86 the audit of a ResNet18 is 2.5 times the
passes that it is on Arm, of the same code.

Every figure is a ratio in one run, in processor time of one thread, which a busy machine disturbs least: what the
measurement takes over one forward and backward pass of the same network and batch, or over a peer by turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

import normscope as ns
from benchmarks import eclipse, trace
from benchmarks.beside.turns import by_turns
from benchmarks.conv_norms import power_iteration
from benchmarks.machine import header
from benchmarks.watching import Block, convolutions, resnet18, watched
from normscope.bounds.linalg.layer_norms import spectral_norm

COMMITTED = Path(__file__).parent.parent / "docs" / "results" / "bench_check.json"
WORSE = 1.5
"""How many times the committed ratio is too much."""


class Vit(nn.Module):
    """Four pre-norm blocks over 4x4 patches of 32x32 images."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 4, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Patches, blocks, the mean token, the head."""
        tokens = self.blocks(self.patches(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(tokens).mean(1))


def dense() -> nn.Module:
    """Three layers of 32 units."""
    return nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(32, 32), nn.ReLU())), nn.Linear(32, 10))


def seconds(call: Callable[[], Any]) -> float:
    """Return the processor time of one call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def unit(model: nn.Module, x: Tensor) -> float:
    """Return the median processor time of one forward and backward pass."""

    def once() -> None:
        model(x).square().sum().backward()
        model.zero_grad(set_to_none=True)

    once()
    return statistics.median(seconds(once) for _ in range(9))


def against(build: Callable[[], nn.Module], shape: tuple[int, ...], call: Callable[[nn.Module, Tensor], Any]) -> float:
    """Return what a call takes, in forward and backward passes of its model."""
    torch.manual_seed(0)
    model, x = build().eval(), torch.randn(shape)
    return seconds(lambda: call(model, x)) / unit(model, x)


def watching(folder: Path, steps: int = 30, turns: int = 3) -> float:
    """Return the time of training steps that are watched over that of the same steps alone."""
    torch.manual_seed(0)
    x, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))

    def loop(attach: Any) -> tuple[Callable[[], None], ExitStack]:
        torch.manual_seed(0)
        model, stack = convolutions(), ExitStack()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        each = attach(model, optimizer, stack)

        def run() -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), labels)
                loss.backward()
                if each is not None:
                    each(loss)
                optimizer.step()

        return run, stack

    alone, _ = loop(lambda *_: None)
    seen, stack = loop(watched(10, folder))
    with stack:
        alone(), seen()
        return statistics.median(seconds(seen) / seconds(alone) for _ in range(turns))


def over(peer: Callable[[], Any], call: Callable[[], Any], turns: int = 5) -> float:
    """Return the time of a call over that of a peer, the median by turns."""

    def way(function: Callable[[], Any]) -> Callable[[int], dict[str, Any]]:
        return lambda turn: function() and {}

    peer(), call()
    _, row = by_turns("", {"peer": way(peer), "call": way(call)}, turns)
    return float(row["ratio"][1])


def beside_peers() -> dict[str, float]:
    """Return our time over that of peers, where it was worked for."""
    chain = eclipse.network(128, 6)
    weights = [layer.weight.detach().double() for layer in chain if isinstance(layer, nn.Linear)]
    x = torch.randn(eclipse.SAMPLES, eclipse.INPUTS, generator=torch.Generator().manual_seed(0))
    found = {
        "upper side of a 6x128 chain over ECLipsE": over(
            lambda: eclipse.eclipse_fast(weights), lambda: ns.lipschitz(chain, x, sides="upper")
        )
    }
    torch.manual_seed(0)
    for channels, size in ((32, 8), (64, 16)):
        layer, shape = nn.Conv2d(channels, channels, 3, padding=1), (channels, size, size)
        found[f"norm of {channels}->{channels} at {size}x{size} over 100 steps"] = over(
            partial(power_iteration, layer, shape), partial(spectral_norm, layer, shape, rtol=1e-3)
        )
    model, images, labels = trace.made(100)
    spectrum = partial(ns.hessian, model, (images, labels), loss=trace.LOSS, k=5, probes=4, deflate=False)
    found["trace of a Hessian, 4 probes"] = seconds(spectrum) / unit(model, images)
    return found


def measured() -> dict[str, float]:
    """Return every ratio by name."""
    ns.audit(
        Block(3, 4, 2).eval(), torch.randn(2, 3, 8, 8)
    )  # what is loaded once, torch.export with it, is not counted
    images = (8, 3, 32, 32)
    found = {
        "audit of ResNet18 at 32x32": against(resnet18, images, ns.audit),
        "audit of a ViT of 4 blocks": against(Vit, images, ns.audit),
        "tight certificate of a 3x32 network": against(
            dense, (8, 32), lambda model, x: ns.lipschitz(model, x, effort="tight")
        ),
        "ball of a 3x32 network": against(
            dense, (8, 32), lambda model, x: ns.lipschitz(model, x, scope="ball", radius=0.1)
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        found["watched steps of a small CNN"] = watching(Path(folder))
    return found | beside_peers()


def main() -> None:
    """Measure, print beside the committed ratios, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="store these ratios as the ones to compare with")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(header())
    found = measured()
    if not COMMITTED.exists() and not options.write:
        sys.exit(f"there are no committed ratios ({COMMITTED.name}): take them with --write")
    before = json.loads(COMMITTED.read_text()) if COMMITTED.exists() else {"ratios": {}}
    alike = f"({platform.machine()})" in before.get("taken_at", "")
    if not alike and not options.write:
        print(f"The committed ratios are of another kind of processor ({before['taken_at']}): nothing is judged.")
    worse = []
    for name, ratio in found.items():
        known = before["ratios"].get(name)
        line = f"  {name:<42}{ratio:10.2f} x" + ("" if known is None else f"   committed {known:.2f} x")
        if known is not None and alike and ratio > WORSE * known and not options.write:
            worse.append(name)
            line = f"\033[31m{line}   {ratio / known:.1f} times as much\033[0m"
        print(line)
    if options.write:
        COMMITTED.write_text(json.dumps({"taken_at": header(), "ratios": found}, indent=1) + "\n")
        print(f"wrote {COMMITTED.name}")
    if worse:
        sys.exit(f"slower than {before['taken_at']}: {', '.join(worse)}")


if __name__ == "__main__":
    main()
