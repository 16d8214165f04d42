"""The optimised certificate of convolutional networks too wide to write out: the ellipsoid engine per frequency.

A state that treats all places of a torus alike is one small Hermitian matrix per frequency, and multipliers shared by
all places of a channel leave it so (see `stage_plan.py`). Multipliers are found by Adam, on a smaller torus first,
which samples the frequencies; a figure is taken only from a run over all frequencies of the full torus whose Cholesky
factorizations all went through in complex128.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.budget import GPU, Budget
from ...core.log10 import power10
from ...core.progress import Progress
from ...core.rounding import Upper
from ..ellipsoids.ellipsoid import Uncertain, largest
from ..ellipsoids.ellipsoid_plan import WIDEST, EllipsoidPlan, EllipsoidStep
from ..ellipsoids.optimised import POWER_STEPS, Certified, Parameters, lost
from ..proofs.multipliers import Multipliers
from ..segments import Segments
from .frequencies import Ready, ready
from .parameter_search import ParameterSearch
from .stage import Bend, Close, Tail, TorusStage
from .stage_plan import stages
from .stage_walk import Passed, run
from .stencil import Grid

COARSE, FEWEST = (3, 2, 1), 8
"""Entries per axis of the smaller torus: at the coarsest level (what can be afforded), at least at the finest."""
_COLD = 40
"""The power iteration takes this many steps where it has no start from an earlier run."""
_LEADING, _SHARPNESS = 16, 30.0
"""Frequencies that share in the gradient of the largest eigenvalue, with weights lambda^sharpness."""
_MARGIN = 1e-9
"""Relative distance above the largest eigenvalue at which a Cholesky factorization confirms it."""
_GRADIENT = 4.0
"""Multiplications of a step with gradient relative to those of a run."""
_WORTHWHILE = 30
"""Steps that a search on the smaller torus should be able to afford."""
_MEMORY, _SHARE = 4e9, 0.4
"""Bytes that a step may hold on a CPU, and its share of the memory of a GPU."""
WORK, RATE = 5e10, 1e9
"""Multiplications of real numbers that all runs of a search may take together, which are its steps; and as many as a
CPU does in a second: where there is a deadline, what would end after it is not begun."""
TORI = "the certificate on tori"
"""How messages name the search."""


@dataclass(frozen=True, slots=True)
class CertifiedTorus(Certified):
    """A certificate on tori; `runs` are its stages as a checker needs them, none where it could not follow them."""

    runs: tuple[Multipliers, ...] = ()


@dataclass(frozen=True, slots=True)
class CertifiedField(CertifiedTorus):
    """A certificate of an output that is a field: of single outputs nothing is known but the constant of all."""

    def along(self, directions: Tensor) -> Tensor:
        """Return log10 of the constant of d^T f for every row d: that of f times the norm of d."""
        return directions.norm(dim=-1).log10() + self.log10


def torus_certificate(
    segments: Segments,
    values: Mapping[str, Upper],
    *,
    budget: Budget | None = None,
    directions: Tensor | None = None,
    steps: int = 400,
    widest: int = WIDEST,
) -> CertifiedTorus | None:
    """Return the best certificate found, or None where there is none.

    There is none where the graph is not a convolutional one of the kind that `stage_plan.py` describes, where it is too
    large for one run within the work or the memory there is, or where not even the start is feasible.

    Args:
        segments: the float64 graph with its effects.
        values: a bound on the map from the input to every node, for fields that start afresh.
        budget: what the search is a part of; its deadline may cut the search short.
        directions: rows d of the outputs d^T f whose constants are wanted, jointly; the whole output if absent.
        steps: at most this many on every torus.
        widest: largest state of the dense plan behind the fields.
    """
    plan = stages(segments, values, widest=widest)
    if plan is None or not any(isinstance(o, Bend) for stage in plan for o in stage.operations):
        return None
    if directions is not None and isinstance(plan[-1].end, Close):
        return None
    with torch.no_grad():
        device = segments.graph.inputs[0].value.device
        attempt = _Attempt(plan, device, directions, (budget or Budget()).search(TORI, WORK * _faster(device)))
        if not attempt.affordable(attempt.full):
            return None
        try:
            return attempt.run(steps)
        except torch.OutOfMemoryError:  # the estimate was too low: what is confirmed counts
            return attempt.best


class _Attempt:
    """One search for a certificate."""

    def __init__(
        self, plan: Sequence[TorusStage], device: torch.device, directions: Tensor | None, budget: Budget
    ) -> None:
        self.plan, self.device, self.directions, self.budget = plan, device, directions, budget
        self.full = [ready(stage, stage.sizes, device) for stage in plan]
        self.few = self._few(plan)
        steps = tuple(step for stage in self.full for step in stage.steps)
        self.exact = _Careful.of(EllipsoidPlan({}, steps, torch.empty(0)))
        self.best: CertifiedTorus | None = None

    def _few(self, plan: Sequence[TorusStage]) -> list[Ready]:
        """Return the stages on a smaller torus that steps with gradient can afford, or on the full one if that pays."""
        for coarse in COARSE:
            few = [ready(stage, _smaller(stage, coarse), self.device) for stage in plan]
            if 2.0 * _cost(few) > _cost(self.full) and self.affordable(self.full, gradient=True):
                return self.full
            if self.affordable(few, gradient=True, runs=_WORTHWHILE):
                return few
        return few

    def affordable(self, stages: Sequence[Ready], *, gradient: bool = False, runs: int = 2) -> bool:
        """Say whether runs (or steps with gradient) fit into the memory and the work there is."""
        held = sum(stage.memory(gradient=gradient) for stage in stages)
        room = _SHARE * torch.cuda.mem_get_info(self.device)[1] if self.device.type == "cuda" else _MEMORY
        needed = runs * _cost(stages) * (_GRADIENT if gradient else 1.0)
        return held <= room and needed <= self.budget.left and self.budget.time_for(needed, RATE * _faster(self.device))

    def run(self, steps: int) -> CertifiedTorus | None:
        """Take the better of two starts, improve it on the smaller torus, then on the full one."""
        self._start()
        self._confirm()
        with Progress("tightening") as progress:
            self._improve(self.few, steps, 0.1, progress)
            if self.few is not self.full:
                self._improve(self.full, steps, 0.05, progress)
        return self.best

    def _start(self) -> None:
        """Set the parameters to the closed form, or to weights that even out the channels, whichever is better."""
        plain = _Multipliers(self.exact.weights, self.exact.thetas)
        before = float(_objective(run(self.few, plain.choose, plain.top), plain, self.directions))
        even = _Even(self.exact.weights, self.exact.thetas)
        after = float(_objective(run(self.few, even.choose, even.top), even, self.directions))
        if not after < before:
            for weight in self.exact.weights.values():
                weight.zero_()

    def _confirm(self) -> None:
        """Run the full torus with the parameters as they are; keep the result if it is the best so far."""
        self.budget.spend(_cost(self.full))
        found = run(self.full, self.exact.choose, self.exact.top)
        certified = _certified(found, self.plan)
        if certified is not None and (self.best is None or self._value(certified) < self._value(self.best)):
            self.best = certified

    def _value(self, certified: Certified) -> float:
        """What is minimised, in powers of ten."""
        return certified.log10 if self.directions is None else float(certified.along(self.directions).mean())

    def _improve(self, stages: Sequence[Ready], steps: int, lr: float, progress: Progress) -> None:
        """Search on one torus while the confirmation of what is found can be afforded."""
        if not self.affordable(stages, gradient=True):
            return
        free = _Multipliers(self.exact.weights, self.exact.thetas)
        search = ParameterSearch(
            free.all, lambda: _objective(run(stages, free.choose, free.top), free, self.directions), lr=lr
        )
        tried, cost = 0, _GRADIENT * _cost(stages)
        while tried < steps and self.budget.left >= cost + _cost(self.full) and self.budget.spend(cost):
            tried += 1
            if not search.step():
                break
            progress.step(f"10^{search.value / math.log(10.0):.4f}")
        search.restore()
        if tried > 1:  # the first step only evaluates what is known
            self._confirm()


def _smaller(stage: TorusStage, coarse: int) -> Grid:
    """Return the sizes of a smaller torus that all levels of a stage divide."""
    pairs = zip(stage.sizes, stage.unit, strict=True)
    return tuple(min(size, unit * max(coarse, -(-FEWEST // unit))) for size, unit in pairs)


def _faster(device: torch.device) -> float:
    return GPU if device.type == "cuda" else 1.0


def _cost(stages: Sequence[Ready]) -> float:
    return sum(stage.cost for stage in stages)


def _objective(now: Passed, free: Parameters, directions: Tensor | None) -> Tensor:
    """Return the natural logarithm of what is minimised."""
    value = now.peaks + now.log10_scale * math.log(10.0)
    if now.q is None:
        return value
    if directions is None:
        return value + free.top(now.q, "output").log() / 2
    return value + ((directions @ now.q) * directions).sum(-1).log().mean() / 2


def _certified(found: Passed, plan: Sequence[TorusStage]) -> CertifiedTorus | None:
    """Return a run as a certificate; None unless every factorization went through."""
    scale = found.log10_scale + float(found.peaks) / math.log(10.0)
    if found.q is None:
        known = not math.isnan(scale) and scale < math.inf
        runs = _runs(plan, found, scale)
        return CertifiedField(scale, scale, torch.ones(1, 1), found.sigma, runs) if known else None
    if math.isnan(scale) or not bool(found.q.isfinite().all()):
        return None
    assert isinstance(plan[-1].end, Tail)
    q = found.q + torch.diag(lost(plan[-1].end.plan.output))
    top = float(largest(q))
    log = scale + math.log10(top) / 2 if top > 0 else -math.inf
    return CertifiedTorus(log, scale, q, found.sigma, _runs(plan, found, log))


def _runs(plan: Sequence[TorusStage], found: Passed, log10: float) -> tuple[Multipliers, ...]:
    """Return the stages for a proof; none if one starts afresh from several values."""
    runs, start = [], 0.0
    for number, stage in enumerate(plan):
        top = max(stage.start.values())
        if len(stage.start) > 1 and (top != 0.0 or number > 0):
            return ()
        bends = [operation for operation in stage.operations if isinstance(operation, Bend)]
        names = [bend.name for bend in bends]
        if isinstance(stage.end, Tail):
            names += [step.name for step in stage.end.plan.steps]
        last = stage is plan[-1]
        ends = log10 if last else found.reached[number]
        runs.append(
            Multipliers(
                sigma={name: found.sigma[name] * power10(2.0 * (top - start)) for name in names},
                log10=ends,
                start=dict.fromkeys(stage.start, start),
                at=None if last or not isinstance(stage.end, Close) else stage.end.operand,
                slopes={bend.name: bend.slope for bend in bends},
            )
        )
        start = ends + (stage.end.log10_gain if isinstance(stage.end, Close) else 0.0)
    return tuple(runs)


class _Multipliers(Parameters):
    """Parameters of steps on tori: a largest eigenvalue is that over all frequencies."""

    def top(self, matrix: Tensor, name: str) -> Tensor:
        """Return about the largest eigenvalue of `[F, n, n]`, by power steps; the largest few share in its gradient."""
        if matrix.ndim == 2:
            return super().top(matrix, name)
        fixed = matrix.detach()
        if not bool(fixed.isfinite().all()):
            return (matrix.real * math.nan).sum()
        values, vectors = self._powers(fixed, name)
        leading = values.topk(min(_LEADING, len(values))).indices
        vector = vectors[leading]
        moved = (matrix[leading] @ vector[..., None])[..., 0]
        logs = (vector.conj() * moved).sum(-1).real.clamp(min=1e-300).log()
        shares = torch.softmax(_SHARPNESS * logs.detach(), dim=0)
        return (logs.detach().amax() + (shares * (logs - logs.detach())).sum()).exp()

    def _powers(self, fixed: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Return Rayleigh quotients and vectors of all frequencies, from those of the last run where there are any."""
        vector = self.warm.get(name)
        count = POWER_STEPS
        if vector is None:
            column = fixed.diagonal(dim1=-2, dim2=-1).real.argmax(-1)
            vector = fixed[torch.arange(len(fixed), device=fixed.device), :, column]
            count = _COLD
        value = torch.zeros(())
        for _ in range(count):
            vector = vector / vector.norm(dim=-1, keepdim=True).clamp(min=1e-300)
            moved = (fixed @ vector[..., None])[..., 0]
            value, vector = (vector.conj() * moved).sum(-1).real, moved
        vector = self.warm[name] = vector / vector.norm(dim=-1, keepdim=True).clamp(min=1e-300)
        return value, vector


class _Even(_Multipliers):
    """Sets the weights of every step so that sigma_c is about Q_cc^(-1/2): good where all channels matter alike."""

    def choose(self, step: EllipsoidStep, known: Uncertain, qvv: Tensor, log: float) -> Tensor:
        """Set the weights of a step and return its multipliers."""
        if step.name in self.weights:
            size = qvv.diagonal(dim1=-2, dim2=-1).real
            size = (size if size.ndim == 1 else size.mean(0)).clamp(min=1e-12 * float(size.amax()) + 1e-300)
            self.weights[step.name].copy_(size.log() / -2)
        return super().choose(step, known, qvv, log)


class _Careful(_Multipliers):
    """Takes largest eigenvalues that Cholesky factorizations of all frequencies confirm."""

    def top(self, matrix: Tensor, name: str) -> Tensor:
        """Return a value just above all eigenvalues."""
        near = super().top(matrix, name)
        if not bool(near.isfinite()):
            return near
        stack = matrix if matrix.ndim == 3 else matrix[None]
        rest = -stack
        rest.diagonal(dim1=-2, dim2=-1).add_(near * (1.0 + _MARGIN))
        failed = torch.linalg.cholesky_ex(rest)[1] != 0
        if bool(failed.any()):
            near = torch.maximum(near, largest(stack[failed]).amax())
        return near * (1.0 + _MARGIN)
