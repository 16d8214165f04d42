"""Pictures of reports as they look in a browser: the first screen, light and dark, on wide and narrow screens.

    python tools/screens.py                              every report, into docs/images
    python tools/screens.py --reports demo --out /tmp/a  one of them, elsewhere
    python tools/screens.py --reports checks             the checks of five faults and of a healthy model

Audits of large models are saved as JSON in `--audits` and read from there the next time, so that a page can be drawn
again in seconds; delete them to audit anew. The models have random weights (`benchmarks/audit_models.py`). Needs
chromium, as the browser tests do.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import normscope as ns
from normscope.cli.demo import demo
from normscope.data import digits

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from audit_models import MODELS  # noqa: E402

from tests.report.browser import Browser  # noqa: E402

NAMES = {"resnet50": "ResNet-50", "gpt2": "GPT-2 small"}
"""Models that are audited, by their name in the benchmark, and how the report calls them."""
SIZES = {1400: 1000, 400: 860}
"""Heights of the pictures, by width."""
LARGEST = 200_000
"""Bytes of a picture, at most."""


def _convolutions(*last: nn.Module, shift: float = 0.0) -> nn.Sequential:
    """Return a small network for digits whose BatchNorm has a shift."""
    norm = nn.BatchNorm2d(16)
    nn.init.constant_(norm.bias, shift)
    first = (nn.Conv2d(1, 16, 3, padding=1, bias=False), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(*first, nn.Linear(64, 10), *last)


def _sigmoids(depth: int) -> nn.Sequential:
    """Return a network of sigmoids for digits."""
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(64, 64), nn.Sigmoid())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))


def _equal_units() -> nn.Sequential:
    """Return a network whose hidden units all begin with the same weights."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    nn.init.constant_(model[1].weight, 0.02)
    nn.init.constant_(model[3].weight, 0.02)
    return model


CHECKS: dict[str, Callable[[], tuple[nn.Module, float]]] = {
    "healthy": lambda: (_convolutions(), 1.0),
    "softmax-before-loss": lambda: (_convolutions(nn.Softmax(1)), 1.0),
    "dead-relu": lambda: (_convolutions(shift=-20.0), 1.0),
    "vanishing-gradient": lambda: (_sigmoids(12), 1.0),
    "equal-units": lambda: (_equal_units(), 1.0),
    "unscaled-input": lambda: (_sigmoids(1), 255.0),
}
"""Models whose checks are shown, and the size of the input's values."""


def check_pages(folder: Path, out: Path) -> None:
    """Write the first screen of the check of each model of `CHECKS` as one picture.

    Args:
        folder: for the pages.
        out: for the pictures.
    """
    data = digits(generator=torch.Generator().manual_seed(0))
    folder.mkdir(parents=True, exist_ok=True)
    for name, build in CHECKS.items():
        torch.manual_seed(0)
        model, size = build()
        batch: Any = data.train_images[:64] * size, data.train_labels[:64]
        ns.check(model, batch, loss="cross_entropy", name=name).to_html(folder / f"{name}.html")
        pictures(folder / f"{name}.html", f"check-{name}", out, sizes={1000: 800}, themes=("light",))


def report(name: str, audits: Path) -> Path:
    """Return the page of a report, drawn anew.

    Args:
        name: `demo`, or a model of the benchmark.
        audits: where audits lie or are to be saved.
    """
    audits.mkdir(parents=True, exist_ok=True)
    if name == "demo":
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            demo(audits / name)
        return audits / name / "report.html"
    saved, page = audits / f"{name}.json", audits / f"{name}.html"
    if not saved.exists():
        torch.manual_seed(0)
        model, batch = MODELS[name]()
        ns.audit(model.eval(), batch, name=NAMES[name]).to_json(saved)
    ns.Audit.from_json(saved).to_html(page)
    return page


def pictures(
    page: Path,
    name: str,
    out: Path,
    sizes: dict[int, int] = SIZES,
    themes: tuple[str, ...] = ("light", "dark"),
) -> None:
    """Write the first screen of a page in every size and theme.

    Args:
        page: an HTML file.
        name: how the pictures' names begin.
        out: the folder for them.
        sizes: heights by width.
        themes: `light`, `dark` or both.

    Raises:
        ValueError: a picture is larger than the repository should hold.
    """
    out.mkdir(parents=True, exist_ok=True)
    with Browser() as browser:
        for width, height in sizes.items():
            for theme in themes:
                file = out / f"{name}-{theme}-{width}.png"
                browser.open(page, width=width, height=height, dark=theme == "dark")
                browser.settle()
                size = len(browser.screenshot(file))
                if size > LARGEST:
                    raise ValueError(f"{file} has {size:,} bytes, more than {LARGEST:,}")
                print(f"{file}: {size:,} bytes")


def main() -> None:
    """Read the options and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", nargs="+", default=[*NAMES, "demo", "checks"], choices=[*NAMES, "demo", "checks"])
    parser.add_argument("--audits", type=Path, default=Path(tempfile.gettempdir()) / "normscope-screens")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    for name in options.reports:
        if name == "checks":
            check_pages(options.audits / name, options.out)
        else:
            pictures(report(name, options.audits), name, options.out)


if __name__ == "__main__":
    main()
