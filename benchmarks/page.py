"""Normscope and its peers, back to back: one command per area, whose record the page "Beside other tools" draws.

    python benchmarks/page.py                      name the areas, and the peers that are not installed here
    python benchmarks/page.py hessian [trace ...]  measure areas, write docs/results/beside/AREA.json (--dry: do not)
    python benchmarks/page.py all

Ways take turns on one thread, and seconds are of the processor, so that other work on the machine counts little; a row
has quartiles over the turns (`benchmarks/beside/turns.py`). Peers come from `pip install 'normscope[bench]'`; what is
not installed, and what fails, stands in the record with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.beside.turns import Row, installed, record

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "beside"
AREAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "hessian": ("curvature", ("pyhessian", "curvlinops-for-pytorch", "hessian-eigenthings", "scipy")),
    "trace": ("curvature", ("pyhessian", "curvlinops-for-pytorch", "hessian-eigenthings")),
    "convolutions": ("norms_and_bounds", ()),
    "networks": ("norms_and_bounds", ("cvxpy", "clarabel", "scs")),
    "radii": ("norms_and_bounds", ("auto_LiRPA",)),
    "stored_weights": ("norms_and_bounds", ("weightwatcher",)),
    "spheres": ("training", ("geoopt",)),
    "watching": ("training", ("wandb", "tensorboard", "cockpit-for-pytorch")),
    "first_look": ("training", ("torchinfo", "weightwatcher")),
    "faults_found": ("faults_found", ("torchinfo", "weightwatcher")),
    "faults_unseen": ("faults_found", ("torchinfo", "weightwatcher")),
}
"""By name: the file of `benchmarks/beside` that holds the area, as a function of that name, and its peers' packages."""


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", choices=[*AREAS, "all", []], metavar="AREA")
    parser.add_argument("--dry", action="store_true", help="print the rows and write nothing")
    chosen = parser.parse_args()
    if not chosen.areas:
        for name, (_, packages) in AREAS.items():
            print(f"{name:16}" + ", ".join(f"{one} {installed(one) or 'not installed'}" for one in packages))
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in AREAS if "all" in chosen.areas else chosen.areas:
        file, packages = AREAS[name]
        area: Callable[[], Iterator[Row]] = getattr(import_module(f"benchmarks.beside.{file}"), name)
        rows = []
        for row in area():
            rows.append(row)
            print(name, json.dumps(row), flush=True)
        if not chosen.dry:
            RESULTS.mkdir(parents=True, exist_ok=True)
            text = json.dumps(record(name, rows, packages), indent=1)
            (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
