"""Pictures of reports as they look in a browser: the first screen, light and dark, on wide and narrow screens.

    python tools/screens.py                              every report, into docs/images
    python tools/screens.py --reports demo --out /tmp/a  one of them, elsewhere

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
from pathlib import Path

import torch

import normscope as ns
from normscope.cli.demo import demo

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


def pictures(page: Path, name: str, out: Path) -> None:
    """Write the first screen of a page in every size and both themes.

    Args:
        page: an HTML file.
        name: how the pictures' names begin.
        out: the folder for them.

    Raises:
        ValueError: a picture is larger than the repository should hold.
    """
    out.mkdir(parents=True, exist_ok=True)
    with Browser() as browser:
        for width, height in SIZES.items():
            for theme in ("light", "dark"):
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
    parser.add_argument("--reports", nargs="+", default=[*NAMES, "demo"], choices=[*NAMES, "demo"])
    parser.add_argument("--audits", type=Path, default=Path(tempfile.gettempdir()) / "normscope-screens")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    for name in options.reports:
        pictures(report(name, options.audits), name, options.out)


if __name__ == "__main__":
    main()
