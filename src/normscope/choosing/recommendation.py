"""The recommendation of a choice, in sentences with figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..report.words import counted
from .cell import Cell, half_width

NAMES = {
    "none": "plain",
    "batch": "BatchNorm",
    "layer": "LayerNorm",
    "group": "GroupNorm",
    "instance": "InstanceNorm",
    "rms": "RMSNorm",
}


def figured(cell: Cell) -> str:
    """Return a cell's loss with its interval, in words."""
    width = cell.half_width
    return f"{cell.mean:.3g}" + ("" if width is None else f" ± {width:.2g}")


def recommended(cells: Sequence[Cell], best: Cell | None) -> str:
    """Return the recommendation, and how certain it is."""
    if best is None:
        return (
            "Nothing can be recommended: no twin trained with every seed, at any of the batch sizes and learning "
            "rates. Try other learning rates or more steps."
        )
    seeds = counted(len(best.outcomes), "seed")
    accuracy = best.mean_of("accuracy")
    right = "" if accuracy is None else f" and {100 * accuracy:.1f} % of the samples right"
    what = "no normalizer" if best.normalizer == "none" else NAMES[best.normalizer]
    text = (
        f"Use {what} with batches of {best.batch_size} and a learning rate of {best.lr:g}: its held-out loss after "
        f"{best.outcomes[0].steps} steps is {figured(best)}{right} ({seeds})."
    )
    return f"{text} {_compared(cells, best)}"


def _compared(cells: Sequence[Cell], best: Cell) -> str:
    """Return how the best cell compares with the next normalizer at the same batch size, seed by seed."""
    rivals = [
        cell
        for cell in cells
        if cell.batch_size == best.batch_size and cell.normalizer != best.normalizer and math.isfinite(cell.mean)
    ]
    if not rivals:
        return "No other normalizer gave a finite loss at this batch size."
    rival = min(rivals, key=lambda cell: cell.mean)
    against = f"{NAMES[rival.normalizer]}, the next, has {figured(rival)}"
    rival_losses = {one.run.seed: one.loss for one in rival.outcomes if one.loss is not None}
    differences = [
        rival_losses[one.run.seed] - one.loss
        for one in best.outcomes
        if one.loss is not None and one.run.seed in rival_losses
    ]
    width = half_width(differences)
    if width is None:
        return f"{against}. One seed says nothing about chance: how sure this is is not known; give more seeds."
    mean = sum(differences) / len(differences)
    difference = f"by {mean:.2g} ± {width:.2g} over the same {counted(len(differences), 'seed')}"
    if mean - width > 0.0:
        return f"{against}. It is better {difference}, which is more than chance (95 % interval)."
    return f"{against}. It is better {difference}: these runs cannot tell the two apart; give more seeds or steps."


def by_batch_size(cells: Sequence[Cell]) -> list[str]:
    """Return one sentence per batch size: which normalizers train, in order, and which do not."""
    sentences = []
    for size in sorted({cell.batch_size for cell in cells}):
        same = [cell for cell in cells if cell.batch_size == size]
        trained = [f"{NAMES[cell.normalizer]} ({figured(cell)})" for cell in same if cell.trained == len(cell.outcomes)]
        parts = [NAMES[c.normalizer] for c in same if c.lr is not None and 0 < c.trained < len(c.outcomes)]
        fails = [NAMES[cell.normalizer] for cell in same if cell.lr is not None and not cell.trained]
        sentence = f"Batches of {size}: " + (
            f"{', '.join(trained)} train" if trained else "nothing trains with every seed"
        )
        sentence += f"; {', '.join(parts)} with some seeds only" if parts else ""
        sentence += f"; {', '.join(fails)} at no learning rate that was tried" if fails else ""
        sentences.append(f"{sentence}.")
    return sentences
