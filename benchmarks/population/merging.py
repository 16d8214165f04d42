"""The lines of all shards together: networks and warnings by package, state, half and code, and the cost in passes."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from normscope.doctor.symptoms import population
from normscope.doctor.symptoms.population import ANY_STATE, FRESH
from normscope.doctor.symptoms.sizes import SIZES

Row = dict[str, Any]
LOUD = ("warning", "error")
STATES = ("fresh", "training", "trained")


def read(folder: Path) -> list[Row]:
    """Return the lines of all shards; of networks that are built alike only the first one."""
    paths = sorted(folder.glob("shard-*.jsonl"))
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines() if line]
    first: dict[str, tuple[str, str]] = {}
    for row in rows:
        if "digest" in row:
            name = (row["package"], row["name"])
            if first.setdefault(row["digest"], name) != name and "error" not in row:
                row["error"] = f"the same as {' '.join(first[row['digest']])}"
    return rows


def merge(folder: Path) -> str:
    """Write `population.jsonl` of all lines, and return the tables."""
    rows = read(folder)
    (folder / "population.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    measured = [row for row in rows if "error" not in row]
    healthy = [row for row in measured if row["healthy"]]
    lines = [
        f"{len({name_of(r) for r in measured})} networks of {len({r['family'] for r in measured})} families, "
        f"{len(measured)} states, {len(measured) - len(healthy)} of trainings that did not go well (left out below)",
        "",
        *warned_by("package", healthy),
        *warned_by("kind", [r for r in healthy if r["state"] == "fresh"]),
        *codes(healthy),
        *costs(healthy),
        *facts(healthy),
        *errors(rows),
    ]
    return "\n".join(lines)


MAX_EXTREMES = 25
"""How many of the most extreme values the file of the package has: more than `RARE_SHARE` of the networks."""


def write_population(folder: Path) -> None:
    """Write the file of the package: how many healthy networks of the half `fit` have each size, and the extremes."""
    rows = [row for row in read(folder) if "error" not in row and row["healthy"] and row["half"] == "fit"]
    sizes: dict[str, dict[str, Any]] = {}
    for name, size in SIZES.items():
        for state in (FRESH, ANY_STATE):
            worst: dict[tuple[str, str], float] = {}
            choose = max if size.worst == "largest" else min
            for row in rows:
                if name in row["facts"] and state in (row["state"], ANY_STATE):
                    value = float(row["facts"][name])
                    worst[name_of(row)] = choose(value, worst.get(name_of(row), value))
            values = sorted(worst.values(), reverse=size.worst == "largest")
            if values:
                sizes.setdefault(name, {})[state] = {
                    "having": len(values),
                    "quantiles": {f"{part:g}": values[round(part * (len(values) - 1))] for part in QUANTILES},
                    "extremes": [value if math.isfinite(value) else str(value) for value in values[:MAX_EXTREMES]],
                }
    packages = Counter(package for package, _ in {name_of(row) for row in rows})
    fresh = {name_of(row) for row in rows if row["state"] == FRESH}
    content = {
        "packages": dict(packages.most_common()),
        "families": len({row["family"] for row in rows}),
        "networks": {FRESH: len(fresh), ANY_STATE: packages.total()},
        "sizes": sizes,
    }
    text = json.dumps(content, separators=(",", ":")).replace('},"', '},\n"')
    FILE.write_text(text + "\n")


QUANTILES = (0.005, 0.02, 0.5, 0.98)
"""Shares of the networks, from the bad end, whose values the file has beside the extreme ones."""
FILE = Path(population.__file__).with_suffix(".json")


def name_of(row: Row) -> tuple[str, str]:
    """Return what tells networks apart."""
    return row["package"], row["name"]


def is_warned(row: Row) -> bool:
    """Whether a healthy network got a warning."""
    return any(finding["severity"] in LOUD for finding in row["findings"])


def describe_share(rows: Sequence[Row]) -> str:
    """Return how many lines have a warning, of how many, and the percentage."""
    warned = sum(map(is_warned, rows))
    return f"{warned}/{len(rows)} ({100 * warned / len(rows):.0f} %)" if rows else "-"


def warned_by(key: str, rows: Sequence[Row]) -> Iterable[str]:
    """Yield the table of warnings by package or kind, by state and half."""
    yield f"{key:28} " + " ".join(f"{s + ' ' + h:>19}" for s in STATES for h in ("fit", "held-out"))
    groups = defaultdict[str, list[Row]](list)
    for row in rows:
        groups[row[key]].append(row)
        groups["all"].append(row)
    for name, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        cells = [[r for r in group if (r["state"], r["half"]) == (s, h)] for s in STATES for h in ("fit", "held-out")]
        yield f"{name:28} " + " ".join(f"{describe_share(cell):>19}" for cell in cells)
    yield ""


def codes(rows: Sequence[Row]) -> Iterable[str]:
    """Yield how many networks get a warning of each code, by state, with some of them."""
    yield f"{'code':28} {'fresh':>6} {'training':>9} {'trained':>8} {'lines':>6}  on"
    networks = defaultdict[str, dict[str, set[tuple[str, str]]]](lambda: defaultdict(set))
    lines = Counter[str]()
    for row in rows:
        for finding in row["findings"]:
            if finding["severity"] in LOUD:
                networks[finding["code"]][row["state"]].add(name_of(row))
                lines[finding["code"]] += 1
    for code, states in sorted(networks.items(), key=lambda item: -len(set().union(*item[1].values()))):
        named = ", ".join(name for _, name in sorted(set().union(*states.values()))[:6])
        counts = [len(states.get(state, ())) for state in STATES]
        yield f"{code:28} {counts[0]:6} {counts[1]:9} {counts[2]:8} {lines[code]:6}  {named}"
    yield ""


def costs(rows: Sequence[Row]) -> Iterable[str]:
    """Yield the median and the largest cost of a check in forward and backward passes, by package."""
    yield f"{'cost in passes':28} {'median':>8} {'largest':>8} {'seconds':>8}"
    for package in dict.fromkeys(row["package"] for row in rows):
        own = [row for row in rows if row["package"] == package]
        most = max(own, key=lambda row: row["passes"])
        usual, seconds = median(row["passes"] for row in own), median(row["seconds"] for row in own)
        yield f"{package:28} {usual:8.1f} {most['passes']:8.1f} {seconds:8.2f}  {most['name']}"
    yield ""


def facts(rows: Sequence[Row]) -> Iterable[str]:
    """Yield the median and the extreme quantiles of each fact over networks, fresh and later."""
    heads = "".join(f"{head:>11}" for head in ("0.5 %", "median", "98 %", "99.5 %", "largest"))
    yield f"{'fact':40} {'state':9} {'networks':>8}{heads}"
    for name in sorted({name for row in rows for name in row["facts"]}):
        for state in STATES:
            values = sorted(float(row["facts"][name]) for row in rows if row["state"] == state and name in row["facts"])
            if len(values) > 1:
                cuts = quantiles(values, n=200, method="inclusive")
                shown = (cuts[0], median(values), cuts[195], cuts[198], values[-1])
                yield f"{name:40} {state:9} {len(values):8} " + " ".join(f"{value:10.3g}" for value in shown)
    yield ""


def errors(rows: Sequence[Row]) -> Iterable[str]:
    """Yield why networks were not measured, by package."""
    reasons = Counter((row["package"], row["error"].split(":")[0][:60]) for row in rows if "error" in row)
    for (package, reason), count in reasons.most_common():
        yield f"{count:5} {package:28} {reason}"
