"""Count what one call of the front door passes through: files and functions of the package.

    python tools/walked.py [--files] [check|lipschitz|audit|watch]...

The network is a perceptron of five layers with normalizers, with 32 samples. Imports do not count: every call is made
once before it is counted. `--files` lists the files, in the order in which they are first entered.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import normscope as ns

PACKAGE = Path(ns.__file__).parent


def network() -> tuple[nn.Module, torch.Tensor]:
    """Return five linear layers with LayerNorm and ReLU between them, and a batch."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(16, 4)), torch.randn(32, 16)


def check() -> None:
    """Check the network and print the verdict."""
    model, batch = network()
    str(ns.check(model, batch))


def lipschitz() -> None:
    """Bracket the Lipschitz constant of five layers without normalizers, over all inputs."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(16, 16), nn.ReLU()]
    ns.lipschitz(nn.Sequential(*layers, nn.Linear(16, 4)).eval(), torch.randn(32, 16))


def audit() -> None:
    """Audit the network and write its page."""
    model, batch = network()
    with tempfile.TemporaryDirectory() as folder:
        ns.audit(model.eval(), batch).to_html(Path(folder) / "audit.html")


def watch() -> None:
    """Watch three steps of training."""
    model, batch = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ns.watch(model, optimizer, every=1, panel=False):
        for _ in range(3):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()


CALLS: dict[str, Callable[[], None]] = {"check": check, "lipschitz": lipschitz, "audit": audit, "watch": watch}


def walked(call: Callable[[], None]) -> dict[tuple[str, str], int]:
    """Return how often each function of the package was entered, by file and name, in the order of first entry."""
    entered: dict[tuple[str, str], int] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(PACKAGE)):
            key = (name[len(str(PACKAGE)) + 1 :], frame.f_code.co_qualname)
            entered[key] = entered.get(key, 0) + 1

    call()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def main() -> None:
    """Print one line per call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", nargs="*", help=f"some of {', '.join(CALLS)}; all of them if none is named")
    parser.add_argument("--files", action="store_true", help="list the files")
    arguments = parser.parse_args()
    for name in arguments.calls or CALLS:
        entered = walked(CALLS[name])
        files = list(dict.fromkeys(file for file, _ in entered))
        print(f"{name}: {len(files)} files, {len(entered)} functions, {sum(entered.values()):,} calls")
        if arguments.files:
            print("\n".join(f"  {file}" for file in files))


if __name__ == "__main__":
    main()
