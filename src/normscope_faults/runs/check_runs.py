"""Check the catalogue itself: train each fault and its mended twin, unwatched, and print how good both become.

    python -m normscope_faults.runs.check_runs [--part NAME] [--only WORD ...]

A fault does harm if the mended twin ends clearly better; where the harm is of another kind, the fault says so.
"""

import argparse
import contextlib
import time
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from . import PARTS
from .case import RunFault

CLEAR_DIFFERENCE = 0.08  # of accuracy, explained variance or what else a run returns


@contextlib.contextmanager
def unwatched(model: Any, optimizer: Any) -> Iterator[Any]:
    """Stand in for `ns.watch` where nothing is to be watched."""
    yield SimpleNamespace(observe=lambda **figures: None, log_metrics=lambda **figures: None)


def main() -> None:
    """Train every run of a part and print its quality, and for faults that of the twin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default="open")
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    faults, healthy_runs = PARTS[options.part]
    warnings.simplefilter("ignore")
    harmful = others = 0
    for entry in [*faults, *healthy_runs]:
        if options.only and not any(word in entry.name for word in options.only):
            continue
        begun = time.process_time()
        quality = entry.train(unwatched)
        line = f"{entry.name:46} {time.process_time() - begun:5.2f} s  {quality:8.3f}"
        if isinstance(entry, RunFault):
            mended = entry.mend(unwatched)
            harms = mended > quality + CLEAR_DIFFERENCE
            harmful, others = harmful + harms, others + (not harms)
            line += f"  mended {mended:8.3f}{'' if harms else '  NO CLEAR HARM ' + entry.other_harm}"
        print(line, flush=True)
    print(f"{harmful} faults end clearly worse than their twins, {others} do not.")


if __name__ == "__main__":
    main()
