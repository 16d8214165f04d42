"""Draw and tabulate the records of `benchmarks/page.py`, in docs/results/beside, when the documentation is built."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from result_plots import COLOURS, GREY, RESULTS, STYLE
from sphinx.application import Sphinx

Row = dict[str, Any]


@dataclass(frozen=True)
class Area:
    """How an area is shown: what its quality means, and whether less of it is better."""

    title: str
    about: str
    quality: str = ""
    less: bool = True


AREAS = {
    "hessian": Area("Eigenvalues of Hessians", "The five largest, to a relative 1e-3.", "largest relative error"),
    "trace": Area(
        "Traces of Hessians", "At equal products with the Hessian. Of its own, Normscope spends a few on the five "
        "largest eigenvalues and gives the density too; curvlinops multiplies many vectors at once, it does not.",
        "error / sum of sizes of eigenvalues",
    ),
    "convolutions": Area(
        "Norms of convolutions", "As linear maps of images, with zero padding unless the case says otherwise.",
        "relative distance to the norm's lower side",
    ),
    "networks": Area(
        "Bounds of networks", "Upper bounds of Lipschitz constants of random ReLU networks. ECLipsE-Fast is its closed "
        "form written out, LipSDP is solved through cvxpy.", "bound / largest growth seen",
    ),
    "radii": Area("Certified radii", "Of classifiers of digits.", "median certified l2 radius", less=False),
    "stored_weights": Area("Norms of stored matrices", "Random, in bfloat16.", "relative distance to the norm"),
    "spheres": Area("Steps on spheres", "The time of one step of an optimizer."),
    "watching": Area(
        "Watching a run", "Fifty training steps at a time, with the processor time of services such as wandb's. "
        "What `alone, again` differs by is noise. Cockpit's documented loop runs the model twice in each step.",
    ),
    "first_look": Area("A first look", "One call on a model and a batch, as a user meets it."),
    "faults_found": Area(
        "Faults found", "Every second model of the four parts of the catalogue that the rules of `ns.check` were set "
        "with: its own share is no forecast (for faults that nobody had seen: `faults.txt`). Pointed at: a complaint "
        "names a layer at fault, and the mended twin does not get it.",
        "percent of planted faults pointed at", less=False,
    ),
    "faults_unseen": Area(
        "Faults found, in the part that no rule was set with", "The same for the peers alone. What `ns.check` finds of "
        "these is in `faults.txt`, by the stricter measure that asks for the cause too.",
        "percent of planted faults pointed at", less=False,
    ),
}  # fmt: skip
LINEAR = ("networks", "radii", "faults_found", "faults_unseen")
"""Areas whose quality is drawn on a linear axis."""


def is_ours(row: Row) -> bool:
    """Return whether a row is of Normscope."""
    return row["way"].startswith(("normscope", "ns."))


def number(value: float) -> str:
    """Write a number with three digits."""
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e4 or value == 0.0 else f"{value:.0e}"


def draw(name: str, rows: list[Row], path: Path) -> None:
    """Draw medians with quartiles: the time over that of the first way of the case, and the quality."""
    rows = [row for row in rows if "seconds" in row][::-1]
    panels = 2 if AREAS[name].quality else 1
    size = (9.0, 0.9 + 0.27 * (len(rows) + len({row["case"] for row in rows})))
    figure, axes = plt.subplots(1, panels, figsize=size, layout="constrained", sharey=True, squeeze=False)
    places, labels, place, before = [], [], 0.0, rows[0]["case"]
    for row in rows:
        place += 1.0 + 0.7 * (row["case"] != before)
        before = row["case"]
        places.append(place)
        labels.append(row["way"])
    time = "ratio" if all("ratio" in row for row in rows) else "seconds"
    for index, key in enumerate((time, "quality")[:panels]):
        panel = axes[0][index]
        for row, at in zip(rows, places):
            low, middle, high = row.get(key, [float("nan")] * 3)
            colour, marker = (COLOURS[0], "o") if is_ours(row) else (COLOURS[1], "s")
            panel.plot([low, high], [at, at], color=colour, linewidth=2.5, solid_capstyle="butt")
            panel.plot([middle], [at], marker, color=colour, markersize=6)
        panel.grid(axis="x")
        times = f"times the seconds of `{rows[-1]['way']}`" if time == "ratio" else "seconds"
        panel.set_xlabel(AREAS[name].quality if index else times)
        if index == 0 and name != "watching":
            panel.set_xscale("log")
        elif index and name not in LINEAR:
            panel.set_xscale("symlog", linthresh=1e-7)
    for case in dict.fromkeys(row["case"] for row in rows):
        top = max(at for row, at in zip(rows, places) if row["case"] == case)
        axes[0][0].text(0.0, top + 0.55, case, transform=axes[0][0].get_yaxis_transform(), fontsize=9, va="bottom")
    axes[0][0].set_yticks(places, labels)
    axes[0][0].set_ylim(0.3, places[-1] + 1.5)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def better(area: Area, rows: list[Row]) -> list[str]:
    """Return where a peer beats every way of Normscope in a case: in time beyond quartiles, or in quality by 1 %."""
    found = []
    for row in rows:
        mine = [one for one in rows if one["case"] == row["case"] and "seconds" in one and is_ours(one)]
        if "seconds" not in row or is_ours(row) or row["way"].startswith("alone") or not mine:
            continue
        wins = []
        if row["seconds"][2] < min(one["seconds"][0] for one in mine):
            quickest = min(one["seconds"][1] for one in mine)
            wins.append(f"{number(quickest / row['seconds'][1])} times as fast as the quickest way of Normscope")
        if "quality" in row:
            theirs, best = row["quality"][1], (min if area.less else max)(one["quality"][1] for one in mine)
            if theirs < 0.99 * best if area.less else theirs > 1.01 * best:
                wins.append(f"{area.quality} {number(theirs)} for {number(best)}")
        if wins:
            found.append(
                f"{row['case']}, {row['way']}: {'; '.join(wins)}" + (f" ({row['says']})" if "says" in row else "")
            )
    return found


def section(name: str, area: Area) -> str:
    """Return the section of an area in Markdown."""
    path = RESULTS / "beside" / f"{name}.json"
    if not path.exists():
        return f"## {area.title}\n\nNot measured yet: `python benchmarks/page.py {name}`.\n"
    record = json.loads(path.read_text(encoding="utf-8"))
    rows, machine = record["rows"], record["machine"]
    versions = ", ".join(f"{package} {version}" for package, version in record["versions"].items())
    lines = [
        f"## {area.title}", "", area.about, "",
        f"![Medians and quartiles: {area.title.lower()}, Normscope and peers](gallery/beside/{name}.svg)", "",
        f"| | seconds (quartiles) |{f' {area.quality} |' * bool(area.quality)} what it says |",
        "|---|---|---|" + "---|" * bool(area.quality),
    ]  # fmt: skip
    case = None
    for row in rows:
        if row["case"] != case:
            case = row["case"]
            lines.append(f"| **{case}** |" + " |" * (3 if area.quality else 2))
        if "why_not" in row:
            cells = ["—", *(["—"] if area.quality else []), row["why_not"].replace("|", "/").replace("<", "&lt;")]
        else:
            low, middle, high = map(number, row["seconds"])
            cells = [f"{middle} ({low} to {high})"]
            cells += [number(row["quality"][1]) if "quality" in row else "—"] if area.quality else []
            cells += [row.get("says", "")]
        lines.append(f"| {row['way']} | " + " | ".join(cells) + " |")
    wins = better(area, rows)
    lines += ["", "Peers that are better here:" if wins else "No peer is faster or nearer in these cases.", ""]
    lines += [f"- {win}." for win in wins]
    lines += [
        "", f"`{record['command']}`, commit {record['commit']}, {record['date']}; {machine['cores']} cores of "
        f"{machine['processor']}, {machine['threads']} thread, load {machine['load']}; {versions}.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def write(app: Sphinx) -> None:
    """Write the plots and the page's body."""
    folder = Path(app.srcdir) / "gallery" / "beside"
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE | {"axes.labelcolor": GREY}):
        for name in AREAS:
            if (path := RESULTS / "beside" / f"{name}.json").exists():
                draw(name, json.loads(path.read_text(encoding="utf-8"))["rows"], folder / f"{name}.svg")
    body = "\n".join(section(name, area) for name, area in AREAS.items())
    (folder / "body.txt").write_text(body, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write before any page is read."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
