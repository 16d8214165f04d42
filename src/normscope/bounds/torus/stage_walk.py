"""Running stages on tori: one Hermitian matrix per frequency, multipliers shared by all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.budget import check_time
from ...core.log10 import power10
from ...core.rounding import gamma
from ..ellipsoids.ellipsoid import advance, image_above, raised, reach, summed_above
from ..ellipsoids.ellipsoid_plan import EllipsoidStep, StateChange
from ..ellipsoids.optimised import VANISHED, Choose, vanished
from .frequencies import FieldMaps, Peak, Pool, Ready, Sink, StateShift, Wave

_PIECE = {"cpu": 6e7, "cuda": 2e9}
"""Bytes of the largest intermediate value where no gradient is taken."""

Top = Callable[[Tensor, str], Tensor]
"""The largest eigenvalue over all frequencies of `[F, n, n]`, for the named node."""


@dataclass(frozen=True, slots=True)
class Passed:
    """One run of all stages.

    Attributes:
        log10_scale: log10 of a factor of the constant.
        peaks: natural logarithm of another, the part of stages that end in a field.
        q: the output's ellipsoid in that scale; None where the output is a field (then the factors are the constant).
        sigma: the multipliers by node, in units of the start of their stage.
        reached: log10 of the constant of each field that a stage ends in, before its gain.
    """

    log10_scale: float
    peaks: Tensor
    q: Tensor | None
    sigma: Mapping[str, Tensor]
    reached: tuple[float, ...] = ()


def run(stages: Sequence[Ready], choose: Choose, top: Top) -> Passed:
    """Run stages with the multipliers that `choose` gives; `top` takes the largest eigenvalue over frequencies."""
    log, sigmas, reached = 0.0, {}, []
    peaks = torch.zeros((), dtype=torch.float64, device=stages[0].start.device)
    dense: Tensor | None = None
    for stage in stages:
        walk = _StageWalk(stage, choose)
        sigmas.update(walk.sigmas)
        if isinstance(stage.end, Peak):
            peaks = peaks + top(walk.seen(stage.end.rows), stage.end.name).log() / 2
            reached.append(log + walk.log + float(peaks.detach()) / math.log(10.0))
            log += walk.log + stage.end.log10_gain
        else:
            dense, added = walk.sink(stage.end) if isinstance(stage.end, Sink) else walk.pool(stage.end)
            sigmas.update(walk.sigmas)
            log += added
    return Passed(log, peaks, dense, sigmas, tuple(reached))


class _StageWalk:
    """Carries the state of one stage from its start to its end; see `Ready`."""

    def __init__(self, stage: Ready, choose: Choose) -> None:
        self.choose = choose
        self.sigmas: dict[str, Tensor] = {}
        self.log = stage.log10_start
        self.q = torch.diag(stage.start).expand(stage.frequencies, -1, -1)
        for operation in stage.operations:
            check_time()
            if isinstance(operation, StateShift):
                self.q = self._shifted(operation)
            else:
                self._bent(operation)
                self._refuse_vanished(operation.step)
            self._rescale()

    def _rescale(self) -> None:
        scale = float(self.q.detach().diagonal(dim1=-2, dim2=-1).real.mean())
        if scale > 0 and math.isfinite(scale):
            self.q, self.log = self.q / scale, self.log + math.log10(scale) / 2

    def _refuse_vanished(self, operation: StateChange | EllipsoidStep) -> None:
        """Make the state no state where an entry may have lost its square."""
        sizes = self.q.detach().diagonal(dim1=-2, dim2=-1).real.reshape(-1, self.q.shape[-1]).amax(0)
        if vanished(operation, sizes / sizes.mean()):
            self.q = self.q * math.nan

    def _shifted(self, shift: StateShift) -> Tensor:
        found, read = [], torch.zeros((), dtype=torch.float64, device=self.q.device)
        for part in self._parts(shift.index.shape[0], shift.index.shape[1] * shift.rows.width**2):
            q, flip = self.q[shift.index[part]], shift.flip[part]
            if bool(flip.any()):
                q = torch.where(flip[..., None, None], q.conj(), q)
            rows = shift.rows(part)
            read = read + rows.abs().sum((0, 1, 3))
            found.append(summed_above(image_above(q, rows), 1))
        result = torch.cat(found)
        sizes = result.detach().diagonal(dim1=-2, dim2=-1).real.amax(0)
        lost = bool(((sizes <= VANISHED * sizes.amax()) & (read > 0)).any())  # squares may have gone below all floats
        return result * math.nan if lost else result

    def seen(self, rows: FieldMaps) -> Tensor:
        """Return the ellipsoids of a field, `[F, n, n]`."""
        if rows.same:
            return self.q
        parts = self._parts(self.q.shape[0], rows.width * max(rows.width, rows.height))
        return torch.cat([image_above(self.q[part], rows(part)[:, 0]) for part in parts])

    def _bent(self, wave: Wave) -> None:
        step, known = wave.step, wave.step.known
        qvv = self.seen(wave.rows)
        sigma = self.choose(step, known, qvv, self.log)
        found = []
        for part in self._parts(self.q.shape[0], (step.kept.numel() + known.size) ** 2):
            q = self.q[part]
            found.append(advance(q, wave.rows(part)[:, 0], qvv[part], step.kept, known, sigma))
        self.q = torch.cat(found)
        self.sigmas[step.name] = sigma.detach() * power10(-2.0 * self.log)

    def sink(self, sink: Sink) -> tuple[Tensor, float]:
        """Run the dense plan; return the output's ellipsoid and log10 of its scale."""
        total: Tensor | None = None
        reached = torch.zeros((), dtype=torch.float64, device=self.q.device)
        for part in self._parts(sink.rows.shape[0], self.q.shape[-1] * max(sink.rows.shape[1:])):
            q, flip = self.q[sink.index[part]], sink.flip[part]
            q = torch.where(flip[..., None, None], q.conj(), q)
            rows = sink.rows[part]
            # one product for all frequencies: the sum over them is a contraction
            left = ((rows @ q) * sink.weights[part, None, None]).movedim(0, 1).flatten(1)
            found = (left @ rows.movedim(0, 1).flatten(1).mH).real
            total = found if total is None else total + found
            reached = reached + (reach(rows, q).square() * sink.weights[part, None]).sum(0)
        assert total is not None
        terms = 8.0 * self.q.shape[-1] + len(sink.rows) + 16.0
        self.q = raised((total + total.mT) / 2, len(total) * gamma(terms) * reached)
        if sink.ends:
            return self.q, self.log
        self._refuse_vanished(sink.plan.operations[0])
        return self._dense(sink.plan.operations[1:], sink.plan.output)

    def pool(self, pool: Pool) -> tuple[Tensor, float]:
        """Run the dense plan from sums of fields; return the output's ellipsoid and log10 of its scale."""
        self.q = summed_above(self.seen(pool.rows).real * pool.weights[:, None, None], 0)
        return self._dense(pool.plan.operations, pool.plan.output)

    def _dense(self, operations: Sequence[StateChange | EllipsoidStep], output: Tensor) -> tuple[Tensor, float]:
        self._rescale()
        for operation in operations:
            if isinstance(operation, StateChange):
                self.q = image_above(self.q, operation.matrix)
            else:
                qvv = self.q if operation.form is None else image_above(self.q, operation.form)
                sigma = self.choose(operation, operation.known, qvv, self.log)
                form = self.q if operation.form is None else operation.form
                self.q = advance(self.q, form, qvv, operation.kept, operation.known, sigma)
                self.sigmas[operation.name] = sigma.detach() * power10(-2.0 * self.log)
            self._refuse_vanished(operation)
            self._rescale()
        return image_above(self.q, output), self.log

    def _parts(self, count: int, entries: float) -> list[slice]:
        """Cut frequencies into pieces of bounded memory; a run with gradients keeps everything anyway."""
        if torch.is_grad_enabled():
            return [slice(0, count)]
        size = max(1, int(_PIECE[self.q.device.type] / (16.0 * entries)))
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]
