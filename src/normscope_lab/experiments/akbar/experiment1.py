"""Akbar, section 5 and experiment 1: one neuron in the plane (figures 5.1 and 8.1, left)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.report import Block, Cell, Column, Curve, Curves, Table

from ...gradient_flow import flow
from ..base import Claim, Figures, Job, Judgement, Measured, Settings, experiment_of
from ..judging import by_count, decided, judged, read, spread, with_seeds
from .shared import KINDS, first, logistic

RATES, NORMS = (0.01, 0.1, 1.0), (0.3, 1.0, 3.0)
QUICK: Settings = {"seeds": 5, "points": 100, "steps": 1000, "rates": RATES, "norms": NORMS}
FULL: Settings = {**QUICK, "seeds": 40, "steps": 2000}
EPS = 1e-12
FLOW = Job("flow")
DESCENTS = (Job("batch"), Job("none"), Job("squares"))
TITLES = KINDS | {"squares": "without, squared error"}
"""The runs of gradient descent: with the logistic loss and, where it is said, with the squared error."""
ANGLE = math.pi / 6
"""The angle of the direction that separates the classes."""
ALIGNED = math.radians(10.0)
"""A weight counts as aligned if its angle to that direction is below this."""
PATHS = 2
"""The largest number of seeds whose trajectories are kept for the chart."""


def jobs(settings: Settings) -> Sequence[Job]:
    """Return the runs with and without BatchNorm, and the comparison of flow and descent."""
    return (*DESCENTS, FLOW)


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Run gradient descent from all starts, or follow the flow of one network."""
    return _flows(settings) if job == FLOW else _descents(settings, job.kind)


def _data(points: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return points of the plane that a line through the origin separates, with a gap, and labels of 1 and -1."""
    x = torch.randn(4 * points, 2, generator=generator, dtype=torch.float64)
    side = x @ torch.tensor([math.cos(ANGLE), math.sin(ANGLE)], dtype=torch.float64)
    kept = side.abs() > 0.2
    return x[kept][:points], side[kept][:points].sign()


def _loss(weights: Tensor, x: Tensor, y: Tensor, kind: str) -> Tensor:
    """Return the loss of every weight `[starts, 2]` on data `[starts, points, 2]`."""
    z = torch.einsum("snd,sd->sn", x, weights)
    if kind == "squares":
        return (z - y).square().mean(1)
    if kind == "batch":
        z = (z - z.mean(1, keepdim=True)) / (z.var(1, correction=0, keepdim=True) + EPS).sqrt()
    return F.softplus(-y * z).mean(1)


def _descents(settings: Settings, kind: str) -> dict[str, object]:
    """Return how norms and angles of all seeds change, by learning rate and first norm."""
    drawn = [_data(settings["points"], torch.Generator().manual_seed(seed)) for seed in range(settings["seeds"])]
    x, y = torch.stack([one for one, _ in drawn]), torch.stack([one for _, one in drawn])
    start = torch.stack(
        [
            torch.rand((), generator=torch.Generator().manual_seed(1000 + seed), dtype=torch.float64)
            for seed in range(settings["seeds"])
        ]
    )
    angles = ANGLE + math.pi * (0.25 + 0.5 * start)  # 45 to 135 degrees away from the optimum
    around = torch.stack((angles.cos(), angles.sin()), dim=1)
    cases = [(rate, norm) for rate in settings["rates"] for norm in settings["norms"]]
    starts = torch.cat([norm * around for _, norm in cases])
    rates = torch.tensor([[rate] for rate, _ in cases for _ in drawn], dtype=torch.float64)
    many = len(cases)
    path = _descend(starts, x.repeat(many, 1, 1), y.repeat(many, 1), rates, settings["steps"], kind)
    parts = path.split(len(drawn), dim=1)
    return {f"{rate:g} {norm:g}": _summary(part, norm) for (rate, norm), part in zip(cases, parts)}


def _descend(w: Tensor, x: Tensor, y: Tensor, rate: Tensor, steps: int, kind: str) -> Tensor:
    """Return all weights along gradient descent, `[steps + 1, starts, 2]`."""
    path = [w]
    for _ in range(steps):
        w = w.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(_loss(w, x, y, kind).sum(), w)
        w = (w - rate * slope).detach()
        path.append(w)
    return torch.stack(path)


def _summary(path: Tensor, norm: float) -> dict[str, object]:
    """Return how norms and angles change along paths of descent, one for each seed."""
    norms = path.norm(dim=2)
    away = torch.atan2(path[..., 1], path[..., 0]) - ANGLE
    signed = torch.atan2(away.sin(), away.cos())
    away = signed.abs()
    aligned = first(away < ALIGNED, len(path))
    moves = (signed[1:] - signed[:-1]) * (signed[-1] - signed[0]).sign()
    back = (-moves).clamp(min=0.0).sum(0)  # how far it turns back on its way
    radial = (norms[1:] - norms[:-1]).abs().sum(0)
    turned = (norms[:-1] * (away[1:] - away[:-1]).abs()).sum(0)
    steps = sorted(
        {min(int(1.15**power) - 1, len(path) - 1) for power in range(64)}
    )  # these steps lie close together at first
    return {
        "change": (norms / norm - 1.0).abs().amax(0).tolist(),
        "growth": (norms[-1] / norm).tolist(),
        "aligned after": aligned.tolist(),
        "last angle": away[-1].tolist(),
        "turned back": back.tolist(),
        "radial share": (radial / (radial + turned)).tolist(),
        "steps": steps,
        "path": [
            [[float(away[step, seed]), float(norms[step, seed] / norm)] for step in steps]
            for seed in range(min(PATHS, path.shape[1]))
        ],
    }


def _flows(settings: Settings) -> dict[str, object]:
    """Return how flow, descent, decay and small batches change norms in front of both normalizers."""
    generator = torch.Generator().manual_seed(0)
    x, y = _data(settings["points"], generator)
    summary: dict[str, object] = {}
    for kind in ("batch", "layer"):
        first = nn.utils.skip_init(nn.Linear, 2, 1 if kind == "batch" else 4, bias=False)
        norm: nn.Module = nn.BatchNorm1d(1, eps=EPS, affine=False)
        layers = [first, norm]
        if kind == "layer":
            layers = [first, nn.LayerNorm(4, eps=EPS, elementwise_affine=False), nn.utils.skip_init(nn.Linear, 4, 1)]
        network = nn.Sequential(*layers).double()
        for parameter in network.parameters():
            nn.init.normal_(parameter, generator=generator)
        result = flow(network, (x, y), loss=logistic, time=5.0, lr=0.1, rtol=1e-9, mode="train")
        summary |= {
            f"{kind}.flow": result.flow[-1].drift,
            f"{kind}.descent": result.descent[-1].drift,
            f"{kind}.growth defect": result.growth_defect,
        }
    w = torch.randn(1, 2, generator=generator, dtype=torch.float64).requires_grad_(True)
    (slope,) = torch.autograd.grad(_loss(w, x[None], y[None], "batch").sum(), w)
    decay = 0.1
    rate = float((2.0 * w * (slope + decay * w)).detach().sum() / w.detach().square().sum()) / decay
    cosines = []
    for rows in torch.randperm(len(x), generator=generator)[: len(x) - len(x) % 8].split(8):
        (part,) = torch.autograd.grad(_loss(w, x[None, rows], y[None, rows], "batch").sum(), w)
        cosines.append(abs(float((w.detach() * part).sum() / (w.detach().norm() * part.norm()))))
    radii = torch.logspace(-1, 1, 21, dtype=torch.float64)
    ray = radii[:, None] * torch.tensor([[1.0, 0.2]], dtype=torch.float64)
    slices = {kind: _loss(ray, x.expand(21, -1, -1), y.expand(21, -1), kind).tolist() for kind in ("batch", "none")}
    return summary | {
        "decay rate": rate,
        "small batches": max(cosines),
        "slices": {"radii": radii.tolist(), **slices},
    }


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return medians over seeds, and the figures of the flow."""
    flows = {name: float(value) for name, value in measured[FLOW].items() if name != "slices"}
    result = {f"flow.{name}": value for name, value in flows.items()}
    for job in DESCENTS:
        for case, summary in measured[job].items():
            for name in ("change", "growth", "aligned after", "turned back", "radial share", "last angle"):
                result |= spread(f"{job.kind}.{case}.{name}", _values(summary, name))
    return result


def _values(summary: Mapping[str, Sequence[float | None]], name: str) -> list[float]:
    """Return a figure of every seed, NaN for runs that diverged."""
    return [math.nan if value is None else value for value in summary[name]]


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return figure 5.1 as slices through the loss, figure 8.1 (left) as angles and norms by step, and a table."""
    slices = measured[FLOW]["slices"]
    rays = tuple(
        Curve(name=KINDS[kind], points=tuple(zip(map(math.log10, slices["radii"]), slices[kind]))) for kind in KINDS
    )
    drawn = "0.1 1"
    paths = {
        f"{KINDS[job.kind]}, seed {seed}": tuple(zip(map(float, measured[job][drawn]["steps"]), path))
        for job in (Job("batch"), Job("none"))
        for seed, path in enumerate(measured[job][drawn]["path"][:2])
    }
    angles, lengths = (
        tuple(Curve(name=name, points=tuple((step, both[k]) for step, both in path)) for name, path in paths.items())
        for k in (0, 1)
    )
    columns = [Column(title="rate, first norm", kind="name"), Column(title="network", kind="name")]
    columns += [
        Column(title=t, kind="number") for t in ("largest change of norm", "last norm over first", "aligned after")
    ]
    rows: list[tuple[Cell, ...]] = []
    for job in DESCENTS:
        for case, summary in measured[job].items():
            medians = [
                spread("x", _values(summary, name))["x.median"] for name in ("change", "growth", "aligned after")
            ]
            rows.append((case, TITLES[job.kind], *medians))
    return (
        Curves(
            title="Figure 5.1: the loss along a ray",
            curves=rays,
            axis="loss",
            along="log10 of the norm of w",
            caption="With BatchNorm the loss does not depend on the norm.",
        ),
        Curves(
            title="Figure 8.1 (left): the angle of w to the optimum",
            curves=angles,
            axis="angle, in radians",
            caption="Gradient descent with rate 0.1 from norm 1.",
        ),
        Curves(title="The norm along these", curves=lengths, axis="norm over the first"),
        Table(title="Medians over seeds", columns=tuple(columns), rows=tuple(rows)),
    )


def _lemma51(figures: Figures) -> Judgement:
    kept, moved, defect = (figures[f"flow.batch.{name}"] for name in ("flow", "descent", "growth defect"))
    return judged(
        max(kept, moved) < 1e-6,
        f"Under gradient flow the squared norm moves by {kept:.1g} of itself, under gradient descent by {moved:.2g}: "
        f"each step adds lr^2 norm(grad)^2, to {defect:.1g}.",
        corrected=kept < 1e-6,
    )


def _layer_norm(figures: Figures) -> Judgement:
    kept, moved = figures["flow.layer.flow"], figures["flow.layer.descent"]
    return judged(
        kept < 1e-6, f"Under gradient flow it moves by {kept:.1g} of itself, under gradient descent by {moved:.2g}."
    )


def _decay(figures: Figures) -> Judgement:
    rate = figures["flow.decay rate"]
    return judged(
        abs(rate - 1.0) < 1e-6,
        f"The squared norm shrinks at {rate:.6g} times lambda.",
        corrected=abs(rate - 2.0) < 1e-6,
    )


def _noise(figures: Figures) -> Judgement:
    cosine = figures["flow.small batches"]
    return judged(
        cosine > 1e-6,
        f"The largest cosine between w and the gradient of a batch of 8 is {cosine:.1g}: each is orthogonal.",
    )


def _one_percent(figures: Figures) -> Judgement:
    changes = [read(figures, f"batch.{rate:g} 1.change") for rate in RATES]
    listed = ", ".join(f"{100 * change.median:.2g} % at rate {rate:g}" for rate, change in zip(RATES, changes))
    exponents = [
        math.log10(large.median / small.median) / math.log10(high / low)
        for (low, small), (high, large) in itertools.pairwise(zip(RATES, changes))
    ]
    powers = " and ".join(f"{exponent:.2f}" for exponent in exponents)
    judgement = judged(
        all(change.median < 0.01 for change in changes),
        f"From norm 1 the median changes are {listed}: between neighbouring rates the change grows with the rate to "
        f"the power {powers}.",
        corrected=changes[0].median < 0.01
        and all(abs(exponent - 1.0) <= 0.1 for exponent in exponents),  # as in `near`
    )
    return with_seeds(min(change.seeds for change in changes), judgement)


def _without(figures: Figures) -> Judgement:
    ratios = {
        loss: [read(figures, f"{kind}.0.1 {norm:g}.growth") for norm in (0.3, 3.0)]
        for kind, loss in (("none", "logistic loss"), ("squares", "squared error"))
    }
    listed = "; ".join(
        f"with the {loss} it becomes {small} times as long from norm 0.3 and {large} times from norm 3"
        for loss, (small, large) in ratios.items()
    )
    true = sum(small.low > 1.0 and large.high < 1.0 for small, large in ratios.values())
    evidence = f"At rate 0.1, {listed}. On separable points the logistic loss is least at infinity."
    seeds = min(one.seeds for both in ratios.values() for one in both)
    return with_seeds(seeds, by_count(true, len(ratios), evidence))


def _regardless(figures: Figures) -> Judgement:
    small, large = (read(figures, f"batch.0.1 {norm:g}.aligned after") for norm in (0.3, 3.0))
    judgement = judged(
        large.median <= 2.0 * max(small.median, 1.0),
        f"From norm 0.3 it takes {small.median:.3g} steps to align, from norm 3 {large.median:.3g}; the rate that acts "
        "is lr/norm^2.",
    )
    return with_seeds(min(small.seeds, large.seeds), judgement)


def _arc(figures: Figures) -> Judgement:
    wrong, radial = read(figures, "batch.0.1 1.turned back"), read(figures, "batch.0.1 1.radial share")
    other = read(figures, "none.0.1 1.radial share")
    judgement = judged(
        wrong.high < 0.01 and radial.high < 0.05,
        f"With BatchNorm it turns back by {wrong.median:.2g} radians in all, and {100 * radial.median:.2g} % of its "
        f"way is radial; without, {100 * other.median:.2g} % is.",
    )
    return with_seeds(min(wrong.seeds, radial.seeds), judgement)


def _aligned(figures: Figures) -> Judgement:
    last = read(figures, "batch.0.1 1.last angle")
    return decided(last, below=ALIGNED, evidence=f"The last angle to the separating direction is {last} radians.")


TOY = experiment_of(
    __name__,
    name="akbar.experiment1",
    title="Experiment 1: one neuron in the plane",
    about="Logistic regression on separable points of the plane, with and without BatchNorm of the output, by gradient "
    "descent from several norms with several learning rates, and by gradient flow. The paper describes the experiment "
    "and shows no figure; data, learning rates and starts are ours.",
    stored=True,
    task="separable points of the plane",
    claims=(
        Claim(
            id="akbar.lemma5.1",
            where="Lemma 5.1",
            text="With full-batch gradient descent or gradient flow the norm of w in front of BatchNorm stays "
            "constant.",
            quotation=r"Assume full-batch gradient descent (or gradient flow) ... Then $\frac{d}{dt}\|\mathbf{w}\|^2 "
            r"= 0$ under gradient flow (i.e., the norm of \mathbf{w} remains constant in time).",
            corrected="So it is under gradient flow; each step of gradient descent adds lr^2 norm(grad)^2.",
            judge=_lemma51,
            identity=True,
        ),
        Claim(
            id="akbar.lemma5.1.layer-norm",
            where="Lemma 5.1, remark",
            text="With LayerNorm gradient flow conserves the norm of the layer's whole weight.",
            quotation="In a LN setting, a similar derivation would show the total Frobenius norm of the layer's "
            "weight matrix is constant",
            judge=_layer_norm,
            identity=True,
        ),
        Claim(
            id="akbar.5.1.decay",
            where="Section 5.1, weight decay",
            text="With the penalty (lambda/2) norm^2 the squared norm falls at rate lambda.",
            quotation=r"So in that case, $\frac{d}{dt}\|\mathbf{w}\|^2 = -\lambda\|\mathbf{w}\|^2$",
            corrected="d/dt norm(w)^2 = -2 lambda norm(w)^2.",
            judge=_decay,
            identity=True,
        ),
        Claim(
            id="akbar.5.1.batches",
            where="Section 5.1, remark (iii)",
            text="With mini-batches the gradient has a part along w.",
            quotation='there may be a small component of gradient in the "invariant" direction due to finite sample '
            "effects",
            corrected="The gradient of each batch is orthogonal to w: the norm moves because steps are finite.",
            judge=_noise,
            identity=True,
        ),
        Claim(
            id="akbar.5.1.scale",
            where="Sections 5.1 and 5.2",
            text="With BatchNorm the first norm of w does not matter for training.",
            quotation="BN fixes this: initial scale doesn't matter because BN will scale it up to unit variance "
            "output anyway",
            corrected="The rate that acts is lr/norm^2: the first norm of w matters as much as the learning rate.",
            judge=_regardless,
        ),
        Claim(
            id="akbar.5.2.arc",
            where="Section 5.2, Figure 8.1 (left)",
            text="With BatchNorm w moves on an arc, monotonically in angle.",
            quotation="with BN (green curve) the path is circular and monotonic in angle",
            judge=_arc,
        ),
        Claim(
            id="akbar.experiment1.norm",
            where="Experiment 1 (the sentence breaks off)",
            text="With BatchNorm the norm of w changes by less than 1 %.",
            quotation=r"as predicted, the norm of w stays nearly constant (we monitor $\|w\|$ and find it changes < 1",
            corrected="The norm grows in proportion to the learning rate, by less than 1 % at small rates.",
            judge=_one_percent,
        ),
        Claim(
            id="akbar.experiment1.without",
            where="Experiment 1",
            text="Without BatchNorm small weights grow and large ones shrink.",
            quotation="trajectories of w in parameter space tend to either spiral outward (if initial w small, norm "
            "increases) or inward (if initial too large, norm decreases)",
            corrected="The norm goes to that of the loss's minimum: with the squared error from either side, with the "
            "logistic loss on separable points it grows without end.",
            judge=_without,
        ),
        Claim(
            id="akbar.experiment1.aligned",
            where="Experiment 1",
            text="With BatchNorm w aligns with the separating direction.",
            quotation="the algorithm finds the correct orientation without adjusting norm much",
            judge=_aligned,
        ),
    ),
)
