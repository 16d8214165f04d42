"""A strong l2 attack on a classifier: the smallest change of each sample that makes another class win.

Two searches feed each other. From outside: steps onto the linearised boundary of every rival class, pulled towards the
sample (Croce and Hein 2020, FAB). From inside: projected gradient ascent on the margin within a ball slightly smaller
than the best change so far (Madry et al. 2018, with the momentum of Croce and Hein 2020, APGD). Whatever either finds
is shortened by bisection and counts only where the float64 graph says that another class wins by more than rounding:
its length is an upper bound on the true robust radius, and the changed sample is the witness.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ...core.budget import Budget, Progress
from .logits import Logits, margins

RIVALS = 9
"""Rival classes attacked one by one; with more classes, the strongest ones."""
OUTSIDE_STEPS = 25
SLIDES = (1.0, 0.5, 0.2, 0.05)
"""Shares of the way along the boundary, from the best change to where the nearest point of its tangent plane lies."""
SLIDE_STEPS = 6
INSIDE_STEPS = 40
HALVINGS = 24
"""A change that was found is halved towards the boundary this often: its length is then known to 1e-7."""
FAR = (2.0, 8.0, 32.0, 128.0)
"""Radii tried where nothing was found, in units of the linearised distance to the nearest rival."""

Loss = Literal["margin", "ratio", "rival"]


class Round(NamedTuple):
    """One pass of ascent: what is ascended, from where, in which share of the best radius, with which first step."""

    loss: Loss
    random: bool
    share: float
    step: float


ROUNDS = (
    Round("margin", False, 0.95, 0.5),
    Round("ratio", True, 0.97, 0.25),
    Round("rival", True, 0.98, 1.0),
    Round("margin", True, 0.98, 0.1),
    Round("ratio", False, 0.99, 1.0),
    Round("margin", True, 0.99, 0.5),
)
"""The passes of a full attack, in order."""


@dataclass(frozen=True, slots=True)
class Attacked:
    """What an attack found.

    Attributes:
        distance: the length of the smallest change per sample `[B]`, float64; 0 where the sample is wrong already,
            `inf` where no change was found.
        point: the changed samples, flat `[B, n]`, float64; the samples themselves where no change was found.
    """

    distance: Tensor
    point: Tensor


class Attack:
    """An attack on flat samples, searched in one precision and confirmed in float64 (`exact`); searches only improve.

    `noise` is by how much rounding can change a margin, for each sample. A step of the budget is one gradient, or one
    value, at one sample. Without a budget the attack ends by itself.
    """

    def __init__(
        self,
        search: Logits,
        exact: Logits,
        points: Tensor,
        labels: Tensor,
        *,
        noise: Tensor,
        seed: int = 0,
        budget: Budget | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.search, self.exact = search, exact
        self.points, self.labels = points.detach().double(), labels
        self.budget, self.progress = budget or Budget(), progress
        self.generator = torch.Generator().manual_seed(seed)
        logits = self.exact(self.points)
        self.right = margins(logits, labels) > 0
        self.noise = noise
        self.distance = torch.where(self.right, math.inf, 0.0).to(self.points)
        self.point = self.points.clone()
        classes = logits.shape[1]
        others = logits.scatter(1, labels[:, None], -math.inf)
        self.rivals = others.topk(min(RIVALS, classes - 1), dim=1).indices
        self.near: Tensor | None = None

    def run(self, rounds: tuple[Round, ...] = ROUNDS) -> Attacked:
        """Search from outside, then in rounds from inside and outside in turn."""
        rows = self.right.nonzero()[:, 0]
        owners = rows.repeat_interleave(self.rivals.shape[1])
        if len(rows):
            self._outside(owners, self.rivals[rows].reshape(-1), self.points[owners])
            self._far()
        for number, how in enumerate(rounds):
            broken = (self.right & self.distance.isfinite()).nonzero()[:, 0]
            if not len(broken) or self.budget.over:
                break
            self._inside(broken, how.share * self.distance[broken], how)
            if number % 2 == 1:
                self._outside(broken, self._winners(broken), self.point[broken])
                self._slide(broken)
        return self.result()

    def challenge(self, radius: Tensor, rounds: tuple[Round, ...] = ROUNDS[:3]) -> Attacked:
        """Search within given radii `[B]`: a change that is found there refutes a certificate of that radius."""
        rows = (self.right & (radius > 0) & radius.isfinite()).nonzero()[:, 0]
        for how in rounds:
            if not len(rows) or self.budget.over:
                break
            self._inside(rows, radius[rows], how)
        return self.result()

    def result(self) -> Attacked:
        """Return the best changes so far."""
        return Attacked(self.distance.clone(), self.point.clone())

    def _spend(self, samples: int) -> bool:
        """Take one step for each sample; say whether they may be taken."""
        if self.progress is not None:
            self.progress.step("attack")
        return self.budget.spend(samples)

    def _winners(self, rows: Tensor) -> Tensor:
        """Return the strongest rival at the best changes."""
        logits = self.exact(self.point[rows])
        return logits.scatter(1, self.labels[rows][:, None], -math.inf).argmax(1)

    def _outside(self, owners: Tensor, rivals: Tensor, starts: Tensor) -> None:
        """Step onto the linearised boundary between label and rival, pulled towards the sample."""
        dtype = self.search.dtype
        centre, u = self.points[owners].to(dtype), starts.to(dtype)
        labels = self.labels[owners]
        best, shortest = centre.clone(), torch.full((len(owners),), math.inf, dtype=dtype, device=u.device)
        for step in range(OUTSIDE_STEPS):
            if not self._spend(len(owners)):
                break
            _, gap, slope = self.search.gradient(u, _rival_gap(labels, rivals))
            steep = slope.pow(2).sum(1)
            if step == 0 and self.near is None:  # the linearised distance to the nearest rival: a guess of the radius
                linear = torch.where(steep > 0, gap.abs() / steep.clamp(min=1e-30).sqrt(), math.inf).double()
                self.near = torch.full_like(self.distance, math.inf).scatter_reduce(0, owners, linear, "amin")
            usable = (steep > 0) & steep.isfinite()
            scale = torch.where(usable, 1.0 / steep.clamp(min=1e-30), 0.0)[:, None]
            onto = -gap[:, None] * scale * slope
            from_centre = -(gap + (slope * (centre - u)).sum(1))[:, None] * scale * slope
            reach, pull = onto.norm(dim=1), from_centre.norm(dim=1)
            mix = (reach / (reach + pull).clamp(min=1e-30)).clamp(max=0.1)[:, None]
            u = (1 - mix) * (u + 1.05 * onto) + mix * (centre + 1.05 * from_centre)
            length = (u - centre).norm(dim=1)
            wins = margins(self.search(u), labels) <= 0
            better = wins & (length < shortest)
            best = torch.where(better[:, None], u, best)
            shortest = torch.where(better, length, shortest)
            u = torch.where(wins[:, None], centre + 0.9 * (u - centre), u)
        self._offer(best, owners)

    def _far(self) -> None:
        """Look further out where nothing was found."""
        sizes = self.points.norm(dim=1)
        typical = float(sizes.mean()) or 1.0
        near = torch.full_like(sizes, 0.1 * typical) if self.near is None else self.near
        near = torch.where(near.isfinite() & (near > 0), near, 0.1 * typical)
        for times in FAR:
            rows = (self.right & self.distance.isinf()).nonzero()[:, 0]
            if not len(rows) or self.budget.over:
                return
            self._inside(rows, times * near[rows], ROUNDS[0])
            self._inside(rows, times * near[rows], ROUNDS[1])

    def _slide(self, rows: Tensor) -> None:
        """Move the best changes along the boundary towards the sample, in float64."""
        for _ in range(SLIDE_STEPS):
            if not self._spend(len(rows)):
                return
            centre, u = self.points[rows], self.point[rows]
            _, gap, slope = self.exact.gradient(u, _rival_gap(self.labels[rows], self._winners(rows)))
            steep = slope.pow(2).sum(1)
            scale = torch.where((steep > 0) & steep.isfinite(), 1.0 / steep.clamp(min=1e-300), 0.0)[:, None]
            nearest = centre - (gap + (slope * (centre - u)).sum(1))[:, None] * scale * slope
            change = torch.cat([u + share * (nearest - u) - centre for share in SLIDES])
            owners = rows.repeat(len(SLIDES))
            length = change.norm(dim=1, keepdim=True)
            change = change / length.clamp(min=1e-300) * 0.9999 * self.distance[owners][:, None]
            self._offer(self.points[owners] + change, owners)

    def _inside(self, owners: Tensor, radius: Tensor, how: Round) -> None:
        """Ascend within balls around the samples, and offer the best point met."""
        dtype = self.search.dtype
        centre, labels = self.points[owners].to(dtype), self.labels[owners]
        radius = radius.to(dtype)[:, None]
        objective = _objective(how.loss, labels, self.rivals[owners][:, 0])
        change = torch.zeros_like(centre)
        if how.random:
            change = self._random_directions(centre.shape).to(centre) * radius
            change = change * torch.rand(len(owners), 1, generator=self.generator).to(centre)
        before = change.clone()
        best, highest = change, torch.full((len(owners),), -math.inf, dtype=dtype, device=centre.device)
        for step in range(INSIDE_STEPS):
            if not self._spend(len(owners)):
                break
            logits, _, slope = self.search.gradient(centre + change, objective)
            reached = -margins(logits, labels)
            better = reached > highest
            best, highest = torch.where(better[:, None], change, best), torch.where(better, reached, highest)
            steep = slope.norm(dim=1, keepdim=True)
            lost = self._random_directions(centre.shape).to(centre) if bool((steep == 0).any()) else slope
            unit = torch.where(steep > 0, slope / steep.clamp(min=1e-30), lost)
            rate = how.step * 0.5 * (1 + math.cos(math.pi * step / INSIDE_STEPS)) + 0.005
            ahead = _within(change + rate * radius * unit, radius)
            moved = _within(change + 0.75 * (ahead - change) + 0.25 * (change - before), radius)
            before, change = change, moved
        last = -margins(self.search(centre + change), labels)
        best = torch.where((last > highest)[:, None], change, best)
        self._offer(centre + best, owners)

    def _random_directions(self, shape: torch.Size) -> Tensor:
        drawn = torch.randn(shape, generator=self.generator)
        return drawn / drawn.norm(dim=1, keepdim=True).clamp(min=1e-30)

    def _offer(self, candidates: Tensor, owners: Tensor) -> None:
        """Confirm candidates in float64, shorten them by bisection, and keep those that beat the best so far."""
        if not len(owners):
            return
        centre = self.points[owners]
        change = candidates.double() - centre
        length = change.norm(dim=1)
        usable = (length > 0) & length.isfinite()
        # beyond the best so far a candidate is of use only if it still wins at that length
        most = torch.where(usable, (self.distance[owners] / length.clamp(min=1e-300)).clamp(max=1.0), 0.0)
        kept = (usable & self._wins(centre + most[:, None] * change, owners)).nonzero()[:, 0]
        if not len(kept):
            return
        owners, centre, change, most = owners[kept], centre[kept], change[kept], most[kept]
        least = torch.zeros_like(most)
        for _ in range(HALVINGS):
            middle = (least + most) / 2
            wins = self._wins(centre + middle[:, None] * change, owners)
            least, most = torch.where(wins, least, middle), torch.where(wins, middle, most)
        points = centre + most[:, None] * change
        length = (points - centre).norm(dim=1)
        for index in length.argsort(descending=True).tolist():  # the shortest of each sample is written last
            owner = int(owners[index])
            if length[index] < self.distance[owner]:
                self.distance[owner], self.point[owner] = length[index], points[index]

    def _wins(self, points: Tensor, owners: Tensor) -> Tensor:
        """Whether another class wins by more than rounding."""
        return margins(self.exact(points), self.labels[owners]) <= -self.noise[owners]


def _within(change: Tensor, radius: Tensor) -> Tensor:
    """Project changes onto balls."""
    return change * (radius / change.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(max=1.0)


def _rival_gap(labels: Tensor, rivals: Tensor) -> Callable[[Tensor, slice], Tensor]:
    """Return the label's logit above the rival's."""

    def gap(logits: Tensor, part: slice) -> Tensor:
        own = logits.gather(1, labels[part, None])[:, 0]
        return own - logits.gather(1, rivals[part, None])[:, 0]

    return gap


def _objective(loss: Loss, labels: Tensor, rivals: Tensor) -> Callable[[Tensor, slice], Tensor]:
    """Return what ascent raises: the best rival's lead, the same over the spread of the top logits, or one rival's."""
    gap = _rival_gap(labels, rivals)

    def objective(logits: Tensor, part: slice) -> Tensor:
        if loss == "rival":
            return -gap(logits, part)
        lead = -margins(logits, labels[part])
        if loss == "margin" or logits.shape[1] < 3:
            return lead
        top = logits.topk(3, dim=1).values
        return lead / (top[:, 0] - top[:, 2]).clamp(min=1e-12)

    return objective
