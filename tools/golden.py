"""Every public figure over a fixed list of small networks, written to a file or compared with one.

    python tools/golden.py write FILE            compute all figures and write them (.json, or .json.gz)
    python tools/golden.py compare FILE          compute them anew, print each that moved; exit code 1 if any did
    python tools/golden.py compare FILE --only tiny       the cases whose name has that word in it
    python tools/golden.py compare FILE --against OTHER   two files, nothing is computed

A change of the structure must not move a figure. Numbers may differ by 1e-12, relative; those whose name says log10
by 1e-12, absolute; words (evidence, methods, findings, notes) not at all. Dates, versions, seconds and the machine are
left out. Figures are this close only with the same torch on the same kind of processor, which the file names.

Cases use the front doors of both packages and the command line alone, so that a move inside one cannot break them.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

TOLERANCE = 1e-12
"""What a number may differ by."""
SHOWN = 200
"""Differences that are printed, at most."""
LEFT_OUT = frozenset({"provenance", "origin", "seconds", "seconds_per_step"})
"""Keys whose values say when and where a result was computed."""

Leaf = float | int | str | bool | None


def main() -> int:
    """Read the command line, write or compare, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="compute the cases whose name has this in it")
    parser.add_argument("--against", type=Path, help="a second file to compare with, instead of computing")
    parser.add_argument("--times", action="store_true", help="print what each case took")
    options = parser.parse_args()
    if options.what == "write":
        found = computed(options.only, times=options.times)
        write(options.file, found)
        print(f"{len(flat(found['cases']))} figures of {len(found['cases'])} cases in {options.file}")
        return 0
    stored = read(options.file)
    found = read(options.against) if options.against else computed(options.only, times=options.times)
    for side in (stored, found):
        for part in ("cases", "skipped"):
            side[part] = {name: one for name, one in side[part].items() if options.only in name}
    return report(stored, found)


def computed(only: str, *, times: bool) -> dict[str, Any]:
    """Run the cases whose name contains `only` and return the contents of a file."""
    import torch
    from golden_cases import CASES, SKIPPED

    import normscope as ns

    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        if only not in name:
            continue
        began = time.process_time()
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                found[name] = plain(case())
        except ns.NormscopeError as error:  # a refusal is a result too
            found[name] = {"refused": type(error).__name__, "why": str(error)}
        if times:
            print(f"{time.process_time() - began:7.2f} s  {name}", flush=True)
    return {"made_with": made_with(), "skipped": SKIPPED, "cases": found}


def made_with() -> dict[str, str]:
    """Return what a file must share with this machine to be comparable to 1e-12."""
    import torch

    return {"torch": torch.__version__, "machine": platform.machine()}


def plain(value: Any) -> Any:
    """Return a result as JSON data without what is left out; numbers that JSON cannot hold as words."""
    if hasattr(value, "to_json"):
        return plain(value.to_json())
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items() if str(key) not in LEFT_OUT}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def flat(value: Any, name: str = "") -> dict[str, Leaf]:
    """Return every leaf of JSON data by its path."""
    if isinstance(value, Mapping):
        pairs: Iterator[tuple[Any, Any]] = iter(value.items())
    elif isinstance(value, list):
        pairs = iter(enumerate(value))
    else:
        return {name: value}
    found: dict[str, Leaf] = {}
    for key, one in pairs:
        found.update(flat(one, f"{name} / {key}" if name else str(key)))
    return found or ({name: "empty"} if name else {})


def apart(name: str, old: Leaf, new: Leaf) -> float:
    """Return how far two leaves are apart, by the measure that suits their name; words are 0 or infinitely far."""
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (old, new))
    if old == new and isinstance(old, bool) == isinstance(new, bool):
        return 0.0
    if not numbers:
        return math.inf
    gap = abs(float(new) - float(old))  # type: ignore[arg-type]
    return gap if "log10" in name else gap / max(abs(float(old)), abs(float(new)))  # type: ignore[arg-type]


def report(stored: Mapping[str, Any], found: Mapping[str, Any]) -> int:
    """Print what differs between two files and return 1 if anything does."""
    if stored["made_with"] != found["made_with"]:
        print(f"the file was made with {stored['made_with']}, this is {found['made_with']}: small figures will differ")
    skipped = {name for side in (stored, found) for name in side["skipped"]}
    for name in sorted(skipped):
        print(f"skipped: {name} ({stored['skipped'].get(name) or found['skipped'].get(name)})")
    old, new = ({n: c for n, c in side["cases"].items() if n not in skipped} for side in (stored, found))
    old, new = flat(old), flat(new)
    lines = [f"missing: {name} (was {_short(old[name])})" for name in old if name not in new]
    lines += [f"new: {name} (is {_short(new[name])})" for name in new if name not in old]
    for name in old:
        if name in new and (far := apart(name, old[name], new[name])) > TOLERANCE:
            by = "" if math.isinf(far) else f", {far:.1e} {'absolute' if 'log10' in name else 'relative'}"
            lines.append(f"differs: {name}: {_short(old[name])} -> {_short(new[name])}{by}")
    print("\n".join(lines[:SHOWN]))
    if len(lines) > SHOWN:
        print(f"... and {len(lines) - SHOWN} more")
    both = old.keys() & new.keys()
    kinds = [sum(line.startswith(kind) for line in lines) for kind in ("differs", "missing", "new")]
    numbers = sum(isinstance(old[name], int | float) and not isinstance(old[name], bool) for name in both)
    print(f"{len(both)} compared ({numbers} numbers): {kinds[0]} differ, {kinds[1]} missing, {kinds[2]} new")
    return 1 if lines or not both else 0


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file, the same bytes for the same figures."""
    text = json.dumps(data, separators=(",", ":"), sort_keys=False, allow_nan=False).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def read(path: Path) -> dict[str, Any]:
    """Read what `write` wrote."""
    raw = path.read_bytes()
    data: dict[str, Any] = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return data


def _short(value: Leaf) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else text[:297] + "..."


if __name__ == "__main__":
    sys.exit(main())
