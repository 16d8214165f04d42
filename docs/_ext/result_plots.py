"""Draw the plots of the page of results from the committed files of `docs/results`, when the documentation is built."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from sphinx.application import Sphinx

RESULTS = Path(__file__).parents[1] / "results"
GREY = "#808590"  # readable on white and on black
COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#d55e00",
    "#8a7f55",
)  # told apart by the colour-blind (Okabe and Ito)
STYLE = {
    "axes.edgecolor": GREY, "axes.labelcolor": GREY, "axes.spines.right": False, "axes.spines.top": False,
    "axes.titlecolor": GREY, "font.size": 10, "grid.alpha": 0.3, "legend.frameon": False, "legend.labelcolor": GREY,
    "savefig.transparent": True, "svg.fonttype": "none", "svg.hashsalt": "normscope", "text.color": GREY,
    "xtick.color": GREY, "ytick.color": GREY,
}  # fmt: skip


def read(name: str) -> str:
    """Return a committed result."""
    return (RESULTS / name).read_text(encoding="utf-8")


def matches(pattern: str, name: str) -> list[tuple[str, ...]]:
    """Return what a pattern finds in a result; nothing is an error: the file has another form than this page knows."""
    rows = re.findall(pattern, read(name), flags=re.MULTILINE)
    if not rows:
        raise ValueError(f"docs/results/{name} has no line like {pattern!r}: mend docs/_ext/result_plots.py")
    return rows


def faults(axes: Any) -> None:
    """Draw how many planted faults the check finds."""
    shares = r"\d+ found \((\d+)%\), \d+ with the right cause and layer \((\d+)%\)"
    pattern = rf"^(open|first|second|third|held-out) part, (check|audit): (\d+) faults: {shares}"
    rows = matches(pattern, "faults.txt")
    places = range(len(rows))
    for index, what in enumerate(("found", "right cause and layer")):
        shifted = [place + 0.2 - 0.4 * index for place in places]
        axes.barh(shifted, [int(row[3 + index]) for row in rows], 0.38, label=what, color=COLOURS[index])
    axes.set_yticks(list(places), [f"ns.{kind}, {part} ({count} faults)" for part, kind, count, *_ in rows])
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent of planted faults")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.18), ncols=2)


def watched_faults(axes: Any) -> None:
    """Draw how many failing runs get an alarm with the right cause."""
    counts = r"(\d+) faults: (\d+) named right[^,]*, (\d+) with a wrong story, (\d+) missed"
    pattern = rf"^(open|first|second|third|held-out) part, (every \d+ steps)[^:]*: {counts}"
    rows = matches(pattern, "watch_faults.txt")
    left = [0.0] * len(rows)
    for index, what in enumerate(("right cause named", "wrong story", "missed")):
        shares = [100.0 * int(row[3 + index]) / int(row[2]) for row in rows]
        axes.barh(range(len(rows)), shares, 0.5, left=left, label=what, color=COLOURS[(0, 4, 5)[index]])
        left = [before + share for before, share in zip(left, shares)]
    axes.set_yticks(range(len(rows)), [f"{part}, {when} ({count} runs)" for part, when, count, *_ in rows])
    axes.set_xlabel("percent of failing runs")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.2), ncols=3)


def watching(axes: Any) -> None:
    """Draw what watching costs over the whole run, its start with it."""
    current, rows = "", []
    watched = r"alone again|economy, every \d+|standard, every \d+|wandb.*?|TensorBoard.*?"
    files = read("watching_2cores.txt") + read("watching_h200.txt")
    for line in files.splitlines():
        if title := re.match(r"^(\S.*?): [\d,]+ parameters", line):
            current = title[1]
        elif cost := re.match(rf"^  ({watched})  +whole ([+-][\d.]+)%", line):
            rows.append((current, cost[1], float(cost[2])))
    models = list(dict.fromkeys(row[0] for row in rows))
    kinds = list(dict.fromkeys(row[1] for row in rows))
    for index, kind in enumerate(kinds):
        costs = {model: cost for model, name, cost in rows if name == kind}
        places = [place + (index - len(kinds) / 2) * 0.13 for place in range(len(models))]
        axes.barh(places, [costs.get(model, 0.0) for model in models], 0.12, label=kind, color=COLOURS[index % 6])
    axes.set_yticks(range(len(models)), [model[:38] for model in models])
    axes.set_xlabel("percent more time over the run ('alone again': without watching)")
    axes.axvline(0.0, color=GREY, linewidth=0.8)
    axes.legend(fontsize=8)


def ladder(axes: Any) -> None:
    """Draw every method's bound of one trained network."""
    rows = matches(r"^(\S+) +([\d.]+) +([\d.]+) +(?:PROVEN|NUMERICAL)", "trained_ladder_2cores.txt")
    tight = matches(r"^(tight), max_seconds=15: ([\d.]+)", "trained_ladder_2cores.txt")
    names = [row[0] for row in rows if row[0] not in ("best", "observed")] + ["tight"]
    values = [float(row[1]) for row in rows if row[0] not in ("best", "observed")] + [float(tight[0][1])]
    axes.barh(names[::-1], values[::-1], 0.6, color=COLOURS[0])
    observed = next(float(row[1]) for row in rows if row[0] == "observed")
    axes.axvline(observed, color=COLOURS[4], linewidth=1.5, label="the largest growth at test images")
    axes.set_xlabel("how much a change can grow, as an exponent of ten")
    axes.legend()


def radii(axes: Any) -> None:
    """Draw certified accuracy against that under attack."""
    text = read("certified_accuracy_2cores.txt")
    blocks = re.findall(
        r"^digits, (.*?): test.*?\n((?: +[\d.]+)+) +radius.*?\n.*?\n"
        r"  certified, fast((?: +[\d.]+)+).*?\n  under attack((?: +[\d.]+)+)",
        text,
        flags=re.MULTILINE,
    )
    if not blocks:
        raise ValueError("docs/results/certified_accuracy_2cores.txt has another form: mend docs/_ext/result_plots.py")
    for index, (name, at, certified, attacked) in enumerate(blocks[:4]):
        places = [float(word) for word in at.split()]
        axes.plot(places, [float(w) for w in certified.split()[: len(places)]], color=COLOURS[index], label=name)
        axes.plot(places, [float(w) for w in attacked.split()[: len(places)]], color=COLOURS[index], linestyle="--")
    axes.set_xlabel("l2 distance that an image of digits may be moved (solid: certified, dashed: under attack)")
    axes.set_ylabel("percent right")
    axes.legend(fontsize=8)


def growth(axes: Any) -> None:
    """Draw how counted work grows with each size, as slopes of logarithms between the last two."""
    pattern = r"^(depth|width|batch|side) [\d ]+: ([a-z ]+): multiplications .*?, last ([+-][\d.]+)"
    rows = matches(pattern, "growth.txt")
    names, directions = (list(dict.fromkeys(row[k] for row in rows)) for k in (1, 0))
    for index, direction in enumerate(directions):
        slopes = {name: float(value) for along, name, value in rows if along == direction}
        places = [place + (index - len(directions) / 2) * 0.18 for place in range(len(names))]
        axes.barh(places, [slopes.get(name, 0.0) for name in names], 0.17, label=direction, color=COLOURS[index])
    axes.set_yticks(range(len(names)), names)
    axes.axvline(0.0, color=GREY, linewidth=0.8)
    axes.set_xlabel("slope of log multiplications against log size (1: twice the size, twice the work)")
    axes.legend(fontsize=8)


PLOTS = {
    "faults": faults,
    "watched_faults": watched_faults,
    "watching": watching,
    "ladder": ladder,
    "radii": radii,
    "growth": growth,
}


def draw(app: Sphinx) -> None:
    """Write one SVG file per plot."""
    folder = Path(app.srcdir) / "gallery" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        for name, plot in PLOTS.items():
            figure, axes = plt.subplots(figsize=(8.0, 3.4), layout="constrained")
            axes.grid(axis="x")
            plot(axes)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)


def setup(app: Sphinx) -> dict[str, bool]:
    """Draw before any page is read."""
    app.connect("builder-inited", draw)
    return {"parallel_read_safe": True}
