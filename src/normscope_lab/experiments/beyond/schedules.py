"""Wan et al. 2021 and Li and Arora 2020: the effect of weight decay on weights whose scale has no effect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from normscope.report import Block, Column, Curve, Curves, Table, thinned

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, experiment_of
from ..judging import Judge, judged, read, spread, with_seeds

QUICK: Settings = {"seeds": 4, "steps": 1500, "rate": 0.1, "decay": 0.05, "momentum": 0.9, "same": 200}
FULL: Settings = {**QUICK, "seeds": 20, "steps": 4000, "same": 400}
INPUTS, UNITS, BATCH = 20, 8, 32
MAX_RELATIVE_ERROR = 0.1
"""A measured rotation agrees with the formula if it is within this relative distance."""
SAME_RUN = Job("same")
EPS = 1e-24
ROUNDING = 1e-16
"""The relative change of the first weights in a run that shows how far rounding errors grow."""


def jobs(settings: Settings) -> Sequence[Job]:
    """Return runs with and without momentum, and the comparison of two schedules."""
    return (Job("plain"), Job("momentum"), SAME_RUN)


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Measure how far weights turn in a step, or compare two runs that should be the same."""
    if job == SAME_RUN:
        return {"apart": [_apart(settings, seed) for seed in range(settings["seeds"])]}
    momentum = settings["momentum"] if job.kind == "momentum" else 0.0
    turns, norms = _rotation(settings, momentum)
    late = turns[len(turns) // 2 :]
    return {
        "turn": late.mean(0).flatten(1).mean(1).tolist(),
        "course": turns.mean(dim=(1, 2)).tolist()[:: max(1, len(turns) // 200)],
        "norms": norms.mean(dim=(1, 2)).tolist()[:: max(1, len(turns) // 200)],
        "every": max(1, len(turns) // 200),
    }


def _loss(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each network `[networks, units, inputs]`: BatchNorm of each unit, then their sum."""
    z = x @ weight.transpose(1, 2)
    z = (z - z.mean(1, keepdim=True)) / (z.var(1, correction=0, keepdim=True) + EPS).sqrt()
    return (z.relu().sum(2) / UNITS**0.5 - y).square().mean(1)


def _rotation(settings: Settings, momentum: float) -> tuple[Tensor, Tensor]:
    """Return the angle that each unit turns by in each step, `[steps, networks, units]`, and its norm."""
    generator = torch.Generator().manual_seed(80_000)
    count, rate, decay = settings["seeds"], settings["rate"], settings["decay"]
    weight = torch.randn(count, UNITS, INPUTS, generator=generator, dtype=torch.float64)
    memory, turns, norms = torch.zeros_like(weight), [], []
    for _ in range(settings["steps"]):
        x = torch.randn(count, BATCH, INPUTS, generator=generator, dtype=torch.float64)
        y = torch.randn(count, BATCH, generator=generator, dtype=torch.float64)
        leaf = weight.requires_grad_(True)
        (slope,) = torch.autograd.grad(_loss(leaf, x, y).sum(), leaf)
        memory = momentum * memory + slope + decay * weight.detach()
        moved = weight.detach() - rate * memory
        cosine = torch.nn.functional.cosine_similarity(weight.detach(), moved, dim=2)
        turns.append(torch.arccos(cosine.clamp(-1.0, 1.0)))
        norms.append(moved.norm(dim=2))
        weight = moved
    return torch.stack(turns), torch.stack(norms)


def _apart(settings: Settings, seed: int) -> list[float]:
    """Return how far two other runs end from the run with decay, in direction.

    The first has no decay and a growing rate. The second has decay and first weights that differ by a rounding error,
    because such errors grow exponentially here.
    """
    decayed, growing, rounded = (
        _end(settings, seed, **options) for options in ({}, {"growing": True}, {"moved": ROUNDING})
    )
    return [float((one - decayed).norm() / decayed.norm()) for one in (growing, rounded)]


def _end(settings: Settings, seed: int, *, growing: bool = False, moved: float = 0.0) -> Tensor:
    """Return the directions of all units at the end of a run."""
    rate, decay = settings["rate"], settings["decay"]
    generator, other = (torch.Generator().manual_seed(90_000 + seed + offset) for offset in (0, 1_000))
    weight = torch.randn(1, UNITS, INPUTS, generator=generator, dtype=torch.float64)
    weight = weight * (1.0 + moved * torch.randn(weight.shape, generator=other, dtype=torch.float64))
    for step in range(settings["same"]):
        x = torch.randn(1, BATCH, INPUTS, generator=generator, dtype=torch.float64)
        y = torch.randn(1, BATCH, generator=generator, dtype=torch.float64)
        leaf = weight.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(_loss(leaf, x, y).sum(), leaf)
        kept, taken = (1.0, rate * (1.0 - rate * decay) ** (-2 * step - 1)) if growing else (1.0 - rate * decay, rate)
        weight = kept * leaf.detach() - taken * slope
    return weight / weight.norm(dim=2, keepdim=True)


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return the turns beside the formulas, and how far the two schedules are apart."""
    product = 2.0 * settings["rate"] * settings["decay"]
    laws = {"plain": math.sqrt(product), "momentum": math.sqrt(product / (1.0 + settings["momentum"]))}
    apart, rounded = zip(*measured[SAME_RUN]["apart"])
    summary = {"same.apart": max(apart), "same.apart by rounding": max(rounded), "same.steps": float(settings["same"])}
    for kind, law in laws.items():
        summary |= spread(f"{kind}.turn", measured[Job(kind)]["turn"])
        summary[f"{kind}.law"] = law
    return summary


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return the turns along both runs, and a table."""
    summary = figures(settings, measured)
    curves = tuple(
        Curve(
            name=kind,
            points=thinned(
                [(float(k * measured[Job(kind)]["every"]), v) for k, v in enumerate(measured[Job(kind)]["course"])]
            ),
        )
        for kind in ("plain", "momentum")
    )
    rules = tuple((f"law, {kind}", summary[f"{kind}.law"]) for kind in ("plain", "momentum"))
    columns = (Column(title="run", kind="name"), *(Column(title=t, kind="number") for t in ("law", "measured")))
    rows = tuple((kind, summary[f"{kind}.law"], summary[f"{kind}.turn.median"]) for kind in ("plain", "momentum"))
    return (
        Curves(title="How far weights turn in a step", curves=curves, axis="radians, mean over seeds", rules=rules),
        Table(title="At equilibrium", columns=columns, rows=rows),
    )


def _turns(kind: str) -> Judge:
    def judge(figures: Figures) -> Judgement:
        turn, law = read(figures, f"{kind}.turn"), figures[f"{kind}.law"]
        evidence = f"A unit's weight turns by {turn} radians a step in the second half; the formula says {law:.4g}."
        return with_seeds(turn.seeds, judged(abs(turn.median / law - 1.0) < MAX_RELATIVE_ERROR, evidence))

    return judge


def _same(figures: Figures) -> Judgement:
    apart, rounded = figures["same.apart"], figures["same.apart by rounding"]
    return judged(
        apart <= 100.0 * rounded and apart < 1e-3,
        f"After {figures['same.steps']:.0f} steps the directions of both runs differ by {apart:.1g} at most; those of "
        f"one run from weights a rounding apart differ by {rounded:.1g}.",
    )


SCHEDULES = experiment_of(
    __name__,
    name="beyond.schedules",
    title="Weight decay of weights whose scale has no effect",
    about="Units with BatchNorm and noisy gradients, trained with weight decay: how far their weights turn in a step "
    "at equilibrium, and the same run without decay at an exponentially growing rate.",
    stored=True,
    task="units with noisy gradients",
    claims=(
        Claim(
            id="wan.equilibrium",
            where="SGD",
            text="With weight decay scale-invariant weights come to turn by sqrt(2 lr wd) a step.",
            judge=_turns("plain"),
        ),
        Claim(
            id="wan.equilibrium.momentum",
            where="SGD with momentum",
            text="With momentum a they come to turn by sqrt(2 lr wd/(1 + a)) a step.",
            judge=_turns("momentum"),
        ),
        Claim(
            id="li-arora.equivalence",
            where="Theorem 2.4, without momentum",
            text="Weight decay at a constant rate is the same as none at the rate lr (1 - lr wd)^(-2t-1).",
            judge=_same,
            identity=True,
        ),
    ),
)
