"""Check healthy networks that other people designed, in the states of a healthy training; count what is said of them.

    python -m benchmarks.population --out FOLDER --shard 0/16        one line of JSON for each network and state
    python -m benchmarks.population --out FOLDER --merge             the lines of all shards together, and tables
    python -m benchmarks.population --out FOLDER --merge --write     and the file of sizes in the package
    python -m benchmarks.population --list                           how many networks there are, by package

A network that cannot be measured, or takes too long or too much memory, leaves a line with the reason. Networks that
the files of FOLDER have lines of are left out, so that a shard can go on where it stopped.
`NORMSCOPE_IMAGES` names a file of real images (`batches.py`). Packages that are not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from pathlib import Path

import torch

from .measuring import Limits
from .merging import merge, write_population
from .networks import Network, enumerate_networks
from .worker import Worker

NOT_REACHED = "not reached in time"


def read_names(folder: Path) -> set[tuple[str, str]]:
    """Return the packages and names of the networks that the files of a folder have lines of."""
    lines = (line for path in folder.glob("shard-*.jsonl") for line in path.read_text().splitlines() if line)
    rows = (json.loads(line) for line in lines)
    return {(row["package"], row["name"]) for row in rows if "name" in row and row.get("error") != NOT_REACHED}


def write_reason(network: Network, reason: str, path: Path) -> None:
    """Append a line that says why a network was not measured."""
    place = {"package": network.package, "family": network.family, "name": network.name, "half": network.half}
    with path.open("a") as file:
        file.write("\n" + json.dumps(place | {"error": reason}) + "\n")


def main() -> None:
    """Run a shard, or merge shards."""
    usual = Limits()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/population"))
    parser.add_argument("--shard", default="0/1", help="which part of the networks, of how many")
    parser.add_argument("--only", default="", help="networks whose package, family and name match this")
    parser.add_argument("--half", choices=("fit", "held-out"), help="the families of one half alone")
    parser.add_argument("--most", type=int, default=10**9, help="stop after so many networks")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no network after this time")
    parser.add_argument("--seconds", type=float, default=60.0, help="the limit of one network")
    parser.add_argument("--gibibytes", type=float, default=6.0, help="the memory of one network")
    parser.add_argument("--step-seconds", type=float, default=usual.step_seconds)
    parser.add_argument(
        "--training-seconds", type=float, default=usual.training_seconds, help="the limit of all steps of a training"
    )
    parser.add_argument("--parameters", type=float, default=usual.parameters, help="the most parameters of a network")
    parser.add_argument("--device", default=usual.device)
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--write", action="store_true", help="with --merge: write the file of sizes in the package")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.merge:
        print(merge(arguments.out))
        if arguments.write:
            write_population(arguments.out)
        return
    begun = time.perf_counter()
    torch.set_num_threads(1)
    part, parts = map(int, arguments.shard.split("/"))
    networks, missing = enumerate_networks()
    networks = [n for n in networks if re.search(arguments.only, f"{n.package} {n.family} {n.name}")]
    networks = [n for n in networks if arguments.half in (None, n.half)]
    if arguments.list:
        print(dict(Counter(n.package for n in networks)), len({n.family for n in networks}), "families", missing)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"shard-{arguments.device}-{part:03}-of-{parts:03}.jsonl"
    done = read_names(arguments.out)
    with path.open("a") as file:
        for package, reason in missing.items():
            file.write(json.dumps({"package": package, "error": f"package: {reason}"}) + "\n")
    limits = Limits(
        step_seconds=arguments.step_seconds,
        training_seconds=arguments.training_seconds,
        parameters=arguments.parameters,
        device=arguments.device,
    )
    worker: Worker | None = None
    for network in [n for n in networks if (n.package, n.name) not in done][part::parts][: arguments.most]:
        if time.perf_counter() - begun > 60.0 * arguments.minutes:
            write_reason(network, NOT_REACHED, path)
            continue
        worker = worker or Worker(limits, path)
        reason = worker.measure(network, arguments.seconds, arguments.gibibytes)
        if reason:
            write_reason(network, reason, path)
            worker = None


if __name__ == "__main__":
    main()
