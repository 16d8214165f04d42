"""`flatness`: how much loss and accuracy suffer when the weights are moved, by noise and by ascent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.budget import Budget
from ..core.codec import JsonForm
from ..core.errors import InputError
from ..core.options import check_numbers
from ..core.progress import Progress
from ..core.untouched import outside_inference_mode, unwrapped
from ..graph.call import select
from ..theory.losses import Loss
from .batches import LossFunction, loss_of
from .directions import directions
from .figure_result import FigureResult, figures_form
from .hessian import Wanted, spectrum_of
from .objective import Objective
from .spectrum import Estimate

LEVELS = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Sizes of the noise, relative to the weights."""
DEFINITIONS = {
    "scaled noise": "Gaussian, for every group of weights as long on average as the level times the group's norm; a "
    "group is what a normalizer lets be scaled on its own, else the weights of one output, else a whole parameter",
    "raw noise": "Gaussian with one deviation for all weights, as long on average as the level times the norm of all: "
    "rescaling a weight whose scale has no effect changes this figure and not the network",
    "spherical sharpness": "the largest eigenvalue of the Hessian on the spheres of scale-invariant weights, times "
    "their squared norms: it does not change when they are rescaled",
    "ascent": "the increase of the loss after normalised gradient steps that go rho away from the weights: raw (SAM), "
    "and with every group in units of its norm (ASAM)",
}
"""What the figures are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLevel:
    """Loss and accuracy under noise of one level, as means over draws; accuracy is None without classes."""

    level: float
    loss: Estimate
    accuracy: Estimate | None
    raw_loss: Estimate
    raw_accuracy: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flatness(FigureResult):
    """How flat a loss is around the weights. Prints as a table; in a notebook as HTML.

    Attributes:
        name, mode: of the model.
        loss, accuracy: at the weights; the accuracy is None without classes.
        noise: one entry per level.
        draws: random vectors per level.
        spherical_sharpness: largest eigenvalue on the quotient; None where it was not asked for.
        spherical_converged: whether that is within its tolerance.
        rho: how far ascent goes: as a length for the raw one, in norms of the groups for the other.
        ascent, raw_ascent: the increase of the loss.
        definitions: what the figures are.
        notes: what the reader must know.
    """

    page = "flatness:flatness_document"
    JSON: ClassVar[JsonForm] = figures_form("flatness", "flatness")

    name: str
    mode: str
    loss: float
    accuracy: float | None
    noise: tuple[NoiseLevel, ...]
    draws: int
    spherical_sharpness: float | None
    spherical_converged: bool
    rho: float
    ascent: float
    raw_ascent: float
    definitions: tuple[tuple[str, str], ...] = tuple(DEFINITIONS.items())
    notes: tuple[str, ...] = ()


@outside_inference_mode
def flatness(
    model: nn.Module,
    loss_fn: LossFunction | str | Loss | None,
    loader: Any,
    *,
    levels: Sequence[float] = LEVELS,
    draws: int = 8,
    rho: float = 0.05,
    ascent_steps: int = 3,
    sharpness: bool = True,
    mode: str | None = None,
    batches: int | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Flatness:
    """Measure how loss and accuracy change when the weights are moved, in figures that do not depend on their scale.

    The weights are put back afterwards. Raw noise stands beside the scaled one, named as what it is: rescaling a weight
    in front of a normalizer changes it, though not the network.

    Args:
        model: any `torch.nn.Module`.
        loss_fn: as in `normscope.hessian`.
        loader: as in `normscope.hessian`.
        levels: sizes of the noise, relative to the weights.
        draws: random vectors per level, two forwards each.
        rho: how far ascent goes.
        ascent_steps: gradients that it takes.
        sharpness: whether to find the largest eigenvalue on the quotient too.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        batches: read at most this many of the loader; None for all.
        max_seconds: cuts short what takes longer, and `notes` say so.
        seed: of the noise.

    Returns:
        `.noise`, `.spherical_sharpness`, `.ascent`, `.raw_ascent`.

    Raises:
        InputError: as `normscope.hessian`, or levels that are none.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Linear(2, 2)
        >>> found = ns.flatness(model, "cross_entropy", (torch.eye(2), torch.tensor([0, 1])), levels=(0.1, 1.0))
        >>> [one.level for one in found.noise], found.ascent > 0
        ([0.1, 1.0], True)

    Reference: Foret et al. 2021 (SAM); Kwon et al. 2021 (ASAM).
    """
    check_numbers(max_seconds=max_seconds, seed=seed)
    numbers = isinstance(levels, Sequence) and not isinstance(levels, str)
    if not numbers or not levels or not all(isinstance(v, int | float) and 0 < v < math.inf for v in levels):
        raise InputError(f"levels are numbers above 0, not {levels!r}")
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise InputError(f"draws is a whole number from 1 on, not {draws!r}")
    objective = Objective(unwrapped(model), loss_fn, loader, mode=mode, batches=batches)
    budget = Budget(max_seconds=max_seconds, what="the noise")
    generator = torch.Generator().manual_seed(seed)
    found = directions(objective)
    group = grouped(objective, found.group)
    notes = list(found.notes)
    with objective.measuring(), Progress("flatness", total=len(levels) * draws) as progress:
        start = objective.vector()
        loss, accuracy = _scores(objective)
        units = _units(start, group)
        rows = []
        for level in sorted(float(value) for value in levels):
            if budget.late:
                break
            rows.append(_level(objective, start, units, level, draws, generator, progress))
        objective.place(start)
        climbed, raw = (
            _ascent(objective, start, loss, rho, ascent_steps, scale)
            for scale in (units.lengths[units.group], torch.ones_like(start))
        )
    sharp = None
    if sharpness and not budget.late:
        sharp = spectrum_of(objective, found, Wanted(k=1), metric="quotient", max_seconds=max_seconds, seed=seed)
    return Flatness(
        name=type(objective.model).__name__,
        mode=objective.mode,
        loss=loss,
        accuracy=accuracy,
        noise=tuple(rows),
        draws=draws,
        spherical_sharpness=None if sharp is None else sharp.sharpness,
        spherical_converged=sharp is not None and sharp.converged,
        rho=float(rho),
        ascent=climbed,
        raw_ascent=raw,
        notes=(*notes, *budget.cuts),
    )


def grouped(objective: Objective, group: Tensor) -> Tensor:
    """Return a group for every weight: those that can be scaled on their own, else rows of outputs, else parameters."""
    full = group.clone()
    number = int(group.max()) + 1 if len(group) else 0
    start = 0
    for parameter in objective.parameters.values():
        own = full[start : start + parameter.numel()]
        rows = parameter.shape[0] if parameter.ndim > 1 else 1
        places = torch.arange(parameter.numel(), device=full.device) // max(parameter.numel() // max(rows, 1), 1)
        own[own < 0] = (number + places)[own < 0]
        number += rows
        start += parameter.numel()
    return full.unique(return_inverse=True)[1]


@dataclass(frozen=True, slots=True)
class _Units:
    """Groups of weights, with the norm and the number of entries of each."""

    group: Tensor
    lengths: Tensor
    entries: Tensor


def _units(weights: Tensor, group: Tensor) -> _Units:
    count = int(group.max()) + 1
    squares = torch.zeros(count, dtype=torch.float64, device=weights.device)
    squares = squares.index_add(0, group, weights.double().square())
    entries = torch.zeros_like(squares).index_add(0, group, torch.ones_like(weights, dtype=torch.float64))
    return _Units(group, squares.sqrt().to(weights.dtype), entries.to(weights.dtype))


def _scores(objective: Objective) -> tuple[float, float | None]:
    """Return the mean loss and the accuracy, None where there are no classes."""
    loss, right, counted = 0.0, 0, 0
    for output, batch in objective.outputs():
        loss += objective.share(batch) * float(loss_of(objective.function, output, batch).double())
        targets = batch.targets
        logits = None if objective.function is None else select(output, None)
        classes = isinstance(targets, Tensor) and not targets.is_floating_point()
        if logits is not None and classes and targets.shape == logits.shape[:-1]:
            right += int((logits.argmax(-1) == targets).sum())
            counted += targets.numel()
    return loss, right / counted if counted else None


def _level(
    objective: Objective,
    start: Tensor,
    units: _Units,
    level: float,
    draws: int,
    generator: torch.Generator,
    progress: Progress,
) -> NoiseLevel:
    """Measure loss and accuracy under noise of one level, scaled by group and raw."""
    by_group = (units.lengths / units.entries.sqrt())[units.group]
    alike = float(start.double().norm()) / math.sqrt(len(start))
    seen: dict[str, list[tuple[float, float | None]]] = {"scaled": [], "raw": []}
    for _ in range(draws):
        progress.step(f"noise {level:g}")
        noise = torch.randn(len(start), generator=generator).to(start)
        for kind, scale in (("scaled", by_group), ("raw", alike)):
            objective.place(start + level * scale * noise)
            seen[kind].append(_scores(objective))
    losses = {kind: _estimate([loss for loss, _ in found]) for kind, found in seen.items()}
    shares = {kind: [share for _, share in found if share is not None] for kind, found in seen.items()}
    return NoiseLevel(
        level=level,
        loss=losses["scaled"],
        accuracy=_estimate(shares["scaled"]) if shares["scaled"] else None,
        raw_loss=losses["raw"],
        raw_accuracy=_estimate(shares["raw"]) if shares["raw"] else None,
    )


def _estimate(values: list[float]) -> Estimate:
    found = torch.tensor([math.inf if math.isnan(value) else value for value in values], dtype=torch.float64)
    error = float(found.std() / math.sqrt(len(found))) if len(found) > 1 else math.inf
    return Estimate(value=float(found.mean()), error=math.inf if math.isnan(error) else error)


def _ascent(objective: Objective, start: Tensor, loss: float, rho: float, steps: int, scale: Tensor) -> float:
    """Return the largest increase of the loss after steps of ascent that end rho away, in units of `scale`."""
    moved, most = torch.zeros_like(start), 0.0
    for _ in range(steps):
        objective.place(start + moved)
        if not math.isfinite(objective.loss()):
            return math.inf
        _, gradient = objective.gradient()
        slope = scale * gradient
        length = float(slope.double().norm())
        if length == 0.0:
            break
        inner = moved / scale.clamp(min=1e-30) + rho * slope / length
        inner = inner * min(1.0, rho / max(float(inner.double().norm()), 1e-300))
        moved = scale * inner
        objective.place(start + moved)
        value = objective.loss()
        most = max(most, value - loss if math.isfinite(value) else math.inf)
    return most
