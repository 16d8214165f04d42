"""Check healthy networks that other people designed, in the states of a healthy training; count what is said of them.

    python -m benchmarks.population --out FOLDER --shard 0/16        one line of JSON for each network and state
    python -m benchmarks.population --out FOLDER --merge             the lines of all shards together, and tables
    python -m benchmarks.population --list                           how many networks there are, by package

A shard gives each network a process of its own, with limits of time and memory. A network that cannot be measured
leaves a line with the reason. `NORMSCOPE_IMAGES` names a file of real images (`batches.py`). Packages that are not
installed are left out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import time
from collections import Counter
from pathlib import Path

import torch

from .measuring import Limits, measure
from .merging import merge
from .networks import Network, enumerate_networks


def write_lines(network: Network, limits: Limits, path: Path) -> None:
    """Measure one network, and append its lines to a file."""
    torch.set_num_threads(1)
    with path.open("a") as file:
        for row in measure(network, limits):
            file.write(json.dumps(row) + "\n")
            file.flush()


def memory_of(process: int | None) -> float:
    """Return the resident memory of a process in GiB; 0 where it cannot be read."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30
    except (OSError, IndexError, ValueError):
        return 0.0


def run_one(network: Network, limits: Limits, path: Path, seconds: float, gibibytes: float) -> None:
    """Measure one network in a process of its own, and end it where it takes too long or too much memory."""
    process = multiprocessing.get_context("fork").Process(target=write_lines, args=(network, limits, path))
    started, reason = time.perf_counter(), ""
    process.start()
    while process.is_alive() and not reason:
        process.join(0.1)
        if time.perf_counter() - started > seconds:
            reason = f"took longer than {seconds:.0f} s"
        elif memory_of(process.pid) > gibibytes:
            reason = f"took more than {gibibytes:.0f} GiB"
    if reason:
        process.kill()
        process.join()
    elif process.exitcode:
        reason = f"the process ended with {process.exitcode}"
    if reason:
        place = {"package": network.package, "family": network.family, "name": network.name, "half": network.half}
        with path.open("a") as file:
            file.write("\n" + json.dumps(place | {"error": reason}) + "\n")


def main() -> None:
    """Run a shard, or merge shards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/population"))
    parser.add_argument("--shard", default="0/1", help="which part of the networks, of how many")
    parser.add_argument("--only", default="", help="networks whose package, family and name match this")
    parser.add_argument("--most", type=int, default=10**9, help="stop after so many networks")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no network after this time")
    parser.add_argument("--seconds", type=float, default=60.0, help="the limit of one network")
    parser.add_argument("--gibibytes", type=float, default=6.0, help="the memory of one network")
    parser.add_argument("--step-seconds", type=float, default=Limits.__dataclass_fields__["step_seconds"].default)
    parser.add_argument("--training-seconds", type=float, default=6.0, help="the limit of all steps of a training")
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.merge:
        print(merge(arguments.out))
        return
    begun = time.perf_counter()
    torch.set_num_threads(1)
    part, parts = map(int, arguments.shard.split("/"))
    networks, missing = enumerate_networks()
    networks = [n for n in networks if re.search(arguments.only, f"{n.package} {n.family} {n.name}")]
    if arguments.list:
        print(dict(Counter(n.package for n in networks)), len({n.family for n in networks}), "families", missing)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"shard-{part:03}-of-{parts:03}.jsonl"
    with path.open("w") as file:
        for package, reason in missing.items():
            file.write(json.dumps({"package": package, "error": f"package: {reason}"}) + "\n")
    limits = Limits(step_seconds=arguments.step_seconds, training_seconds=arguments.training_seconds)
    for network in networks[part::parts][: arguments.most]:
        if time.perf_counter() - begun > 60.0 * arguments.minutes:
            place = {"package": network.package, "family": network.family, "name": network.name, "half": network.half}
            with path.open("a") as file:
                file.write(json.dumps(place | {"error": "not reached in time"}) + "\n")
            continue
        run_one(network, limits, path, arguments.seconds, arguments.gibibytes)


if __name__ == "__main__":
    main()
