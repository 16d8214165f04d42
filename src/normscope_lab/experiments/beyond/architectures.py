"""The digest's second open question: normalizers in networks with skips and with attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from normscope.networks import draw_weights
from normscope.report import Block, Column, Curve, Curves, Table

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, Verdict, experiment_of
from ..judging import read, spread
from .digits import ONE_RATE, trained

QUICK: Settings = {"seeds": 1, "epochs": 1, "width": 16, "depths": (1, 3)}
FULL: Settings = {**QUICK, "seeds": 8, "epochs": 10, "width": 32, "depths": (2, 6)}
KINDS = {"chain": "chain", "skips": "skips", "attention": "attention with skips"}


class NetworkBlock(nn.Module):
    """One block of a network: a layer with ReLU, with or without a skip, or self-attention over rows of the image."""

    def __init__(self, kind: str, width: int, normalized: bool) -> None:
        super().__init__()
        self.kind = kind
        self.norm = nn.LayerNorm(width) if normalized else nn.Identity()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.query, self.key = (nn.Linear(width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of its input."""
        h = self.norm(x)
        if self.kind == "attention":
            scores = self.query(h) @ self.key(h).transpose(1, 2) / h.shape[-1] ** 0.5
            return x + self.second(scores.softmax(-1) @ self.first(h))
        made: Tensor = self.second(self.first(h).relu())
        return x + made if self.kind == "skips" else made.relu()


class RowNetwork(nn.Module):
    """A network from rows of an 8x8 image as tokens, or from the whole image as one vector, to ten logits."""

    def __init__(self, kind: str, width: int, depth: int, normalized: bool) -> None:
        super().__init__()
        self.tokens = kind == "attention"
        self.enter = nn.Linear(8 if self.tokens else 64, width)
        self.blocks = nn.Sequential(*(NetworkBlock(kind, width, normalized) for _ in range(depth)))
        self.leave = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return ten logits per image."""
        h = self.enter(x.flatten(1, 2) if self.tokens else x.flatten(1))
        h = self.blocks(h)
        logits: Tensor = self.leave(h.mean(1) if self.tokens else h)
        return logits


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job for each kind of network, with and without LayerNorm, by depth and seed."""
    return tuple(
        Job(f"{kind} {label} {depth}", seed)
        for kind in KINDS
        for label in ("normalized", "plain")
        for depth in settings["depths"]
        for seed in range(settings["seeds"])
    )


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train one network on digits, and measure its largest Jacobian at test images."""
    kind, label, depth = job.kind.split(" ")
    generator = torch.Generator().manual_seed(110_000 + job.seed)
    with torch.device("meta"):
        network = RowNetwork(kind, settings["width"], int(depth), label == "normalized")
    made = trained(draw_weights(network, generator=generator), job.seed, settings["epochs"])
    return {"steepest": made.steepest, "tested": made.tested}


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return, by kind, the largest Jacobians at each depth, and the decades that LayerNorm saves."""
    seeds, depths = range(settings["seeds"]), settings["depths"]
    summary: dict[str, float] = {}
    for kind in KINDS:
        for label in ("normalized", "plain"):
            for depth in depths:
                values = [measured[Job(f"{kind} {label} {depth}", seed)]["steepest"] for seed in seeds]
                summary |= spread(f"{kind}.{label}.{depth}", values)
        saved = {
            depth: [
                measured[Job(f"{kind} plain {depth}", seed)]["steepest"]
                - measured[Job(f"{kind} normalized {depth}", seed)]["steepest"]
                for seed in seeds
            ]
            for depth in (depths[0], depths[-1])
        }
        rise = depths[-1] - depths[0]
        slopes = [(last - first) / rise for first, last in zip(saved[depths[0]], saved[depths[-1]])]
        summary |= spread(f"{kind}.saved per block", slopes) | spread(f"{kind}.saved at most depth", saved[depths[-1]])
    return summary


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return the largest Jacobian by depth, and test accuracies."""
    summary = figures(settings, measured)
    curves = tuple(
        Curve(
            name=f"{name}, {'LayerNorm' if label == 'normalized' else 'no normalizer'}",
            points=tuple((float(depth), summary[f"{kind}.{label}.{depth}.median"]) for depth in settings["depths"]),
        )
        for kind, name in KINDS.items()
        for label in ("normalized", "plain")
    )
    columns = (Column(title="network", kind="name"), Column(title="test accuracy", kind="percent"))
    tested = [
        (kind, spread("x", [measured[Job(kind, seed)]["tested"] for seed in range(settings["seeds"])])["x.median"])
        for kind in dict.fromkeys(job.kind for job in measured)
    ]
    return (
        Curves(
            title="The largest Jacobian at test images", curves=curves, axis="log10, median over seeds", along="blocks"
        ),
        Table(title="Test accuracy, medians over seeds", columns=columns, rows=tuple(tested)),
    )


def _carries_over(figures: Figures) -> Judgement:
    medians = {kind: read(figures, f"{kind}.saved per block") for kind in KINDS}
    listed = "; ".join(f"{KINDS[kind]} {one}" for kind, one in medians.items())
    return Judgement(
        Verdict.MEASURED,
        f"Decades of the largest Jacobian that LayerNorm saves per further block: {listed}. {ONE_RATE}",
    )


ARCHITECTURES = experiment_of(
    __name__,
    name="beyond.architectures",
    title="Open question: skips and attention",
    about="Chains, residual networks and attention over the rows of the image, with LayerNorm in each block and "
    "without, trained on 400 digits: how much less steep normalized networks are at their data, by depth.",
    stored=True,
    task="digits",
    claims=(
        Claim(
            id="digest.question2",
            where="Open Question 2",
            text="How much less steep each further normalizer makes chains, networks with skips and attention.",
            quotation="Can the exponential capacity reduction and smoothing properties proven for feedforward "
            "networks (FFNs) be rigorously extended to complex architectures like Transformers or ResNets?",
            judge=_carries_over,
        ),
    ),
)
