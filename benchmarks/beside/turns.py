"""Measure several ways to do one thing, by turns, and keep the results with versions, machine and commit.

Other work on the machine slows all ways of one turn alike, so ways are compared within a turn: a row holds the
quartiles of processor seconds, and of the seconds over those of the case's first way in the same turn.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ..machine import commit

Way = Callable[[int], Mapping[str, Any]]
"""Does the thing once, in the turn of that number; returns `quality` (a number), `says` (a few words), or nothing."""
Row = dict[str, Any]
"""One way in one case, as the record has it; `why_not` where it was not measured."""


def quartiles(values: list[float]) -> list[float]:
    """Return the lower quartile, the median and the upper quartile."""
    return [values[0]] * 3 if len(values) == 1 else statistics.quantiles(values, n=4, method="inclusive")


def seconds_with_children() -> float:
    """Return the processor seconds of this process and of its children, for tools that work in a service."""
    import psutil

    children = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(child.user + child.system for child in children)


def by_turns(
    case: str, ways: Mapping[str, Way | str], turns: int, *, clock: Callable[[], float] = time.process_time
) -> Iterator[Row]:
    """Measure every way of a case in every turn, the order shifted by one each time, and yield a row for each.

    A way that is a text was not measured, and the text says why. A way that raises is not called again.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    results: dict[str, list[Mapping[str, Any]]] = {name: [] for name in ways}
    reasons = {name: way for name, way in ways.items() if isinstance(way, str)}
    names = list(ways)
    for turn in range(turns):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            way = ways[name]
            if isinstance(way, str) or name in reasons:
                continue
            began = clock()
            try:
                results[name].append(way(turn) or {})
            except Exception as error:  # another program's trouble is part of the comparison
                reasons[name] = describe_failure(error)
            else:
                seconds[name].append(clock() - began)
    for name in names:
        if name in reasons:
            yield {"case": case, "way": name, "why_not": reasons[name]}
            continue
        first = seconds[names[0]]
        row: Row = {"case": case, "way": name, "turns": turns, "seconds": quartiles(seconds[name])}
        if len(first) == turns:
            row["ratio"] = quartiles([mine / base for mine, base in zip(seconds[name], first) if base > 0.0])
        if qualities := [float(result["quality"]) for result in results[name] if "quality" in result]:
            row["quality"] = quartiles(qualities)
        yield row | {key: value for key, value in results[name][-1].items() if key != "quality"}


def describe_failure(error: Exception) -> str:
    """Return the kind of an error and the end of what it says, without the folders of this machine."""
    words = re.sub(r"(?<![\w.])/[^\s\"']*/", "", " ".join(str(error).split()))
    return f"{type(error).__name__}: {words if len(words) <= 200 else '... ' + words[-200:]}"


def installed(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """Return what the processor calls itself."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def record(area: str, rows: list[Row], packages: tuple[str, ...]) -> dict[str, Any]:
    """Return rows with what they were measured by and on."""
    return {
        "area": area,
        "command": f"python benchmarks/page.py {area}",
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {
            "architecture": platform.machine(),
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "load": round(os.getloadavg()[0], 1),
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__}
        | {package: installed(package) or "not installed" for package in packages},
        "rows": rows,
    }
