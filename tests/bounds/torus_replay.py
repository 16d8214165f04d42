"""The difference of two runs of a network carried over the steps of a plan, on the very tori."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.bounds.segments import Segments
from normscope.bounds.torus.frequencies import Ready, Sink, StateShift, Torus, Wave, ready
from normscope.bounds.torus.stage import Bend, Close, Move, TorusStage

from .torus_cases import CPU


class Replay:
    """Carries the difference of two runs over a stage, as waves, and compares it with the network on the way.

    Raises AssertionError where the two differ, or an activation (with its mask) leaves its slopes.
    """

    def __init__(self, segments: Segments, stage: TorusStage, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        graph = segments.graph
        points = [torch.randn(graph.input_shape, dtype=torch.float64, generator=generator) for _ in range(2)]
        one, other = (graph.values(point) for point in points)
        self.stage, self.change = stage, {name: other[name] - one[name] for name in one}
        afresh = any(stage.start.values())  # then the state is in units of the change of the input
        begun = [item.name for item in graph.inputs] if afresh else stage.start
        self.size = math.sqrt(sum(float(self.change[name].square().sum()) for name in begun))
        self.waves: dict[str, Tensor] = {}

    def run(self) -> Ready:
        """Carry the difference to the end; `waves` has the operands of all activations by their names."""
        plan = ready(self.stage, self.stage.sizes, CPU)
        state = torch.cat([self.transform(name) for name in self.stage.start], dim=1)
        for sketch, operation in zip(self.stage.operations, plan.operations, strict=True):
            if isinstance(operation, StateShift):
                assert isinstance(sketch, Move)
                read = state[operation.index]
                read = torch.where(operation.flip[..., None], read.conj(), read)
                state = (operation.rows(slice(None)) @ read[..., None])[..., 0].sum(1)
                for name, part in zip(sketch.names, state.split(self._widths(sketch.names), dim=1), strict=True):
                    self.compare(name, part)
            else:
                assert isinstance(operation, Wave)
                assert isinstance(sketch, Bend)
                operand = (operation.rows(slice(None))[:, 0] @ state[..., None])[..., 0]
                self.compare(sketch.operand, operand)
                self._slopes(sketch, operand)
                self.waves[sketch.name] = operand
                state = torch.cat([state[:, operation.step.kept], self.transform(sketch.name)], dim=1)
        self._end(plan, state)
        return plan

    def _end(self, plan: Ready, state: Tensor) -> None:
        if isinstance(self.stage.end, Close):
            rows = plan.end.rows(slice(None))[:, 0]
            self.compare(self.stage.end.operand, (rows @ state[..., None])[..., 0])
            return
        assert isinstance(plan.end, Sink)
        first = plan.end.plan.operations[0].matrix if plan.end.plan.operations else plan.end.plan.output
        expected = first @ torch.cat([self.change[base].flatten() for base in self.stage.end.bases])
        read = state[plan.end.index]
        read = torch.where(plan.end.flip[:, None], read.conj(), read)
        found = ((plan.end.rows @ read[..., None])[..., 0].real * plan.end.weights[:, None]).sum(0)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)

    def _widths(self, names: Sequence[str]) -> list[int]:
        return [self.stage.fields[name].channels for name in names]

    def torus(self, name: str) -> Torus:
        level = self.stage.fields[name].level
        return Torus(tuple(n // step for n, step in zip(self.stage.sizes, level, strict=True)), CPU)

    def transform(self, name: str) -> Tensor:
        """A field that is zero outside its grid as waves `[F, C]`."""
        field, torus = self.stage.fields[name], self.torus(name)
        values = self.change[name].reshape(field.channels, *field.grid)
        assert all(n <= size for n, size in zip(field.grid, torus.sizes, strict=True)), "the torus crops a field"
        waves = torch.fft.fftn(values, s=torus.sizes, dim=tuple(range(1, values.ndim)), norm="ortho")
        return waves.flatten(1)[:, torus.code(torus.frequencies)].T

    def values(self, name: str, waves: Tensor) -> Tensor:
        """Waves as a field on the whole torus `[C, *sizes]`."""
        torus = self.torus(name)
        spread = torch.where(torus.flip[:, None], waves[torus.place].conj(), waves[torus.place])
        full = spread.T.reshape(-1, *torus.sizes)
        found = torch.fft.ifftn(full, dim=tuple(range(1, full.ndim)), norm="ortho")
        torch.testing.assert_close(found.imag, torch.zeros_like(found.imag), rtol=0, atol=1e-9)
        return found.real

    def compare(self, name: str, waves: Tensor) -> None:
        field = self.stage.fields[name]
        found = self.values(name, waves)[(slice(None), *(slice(n) for n in field.grid))]
        torch.testing.assert_close(found, self.change[name].reshape(found.shape), rtol=1e-8, atol=1e-10)

    def _slopes(self, bend: Bend, waves: Tensor) -> None:
        before = self.values(bend.operand, waves)
        after = self.values(bend.name, self.transform(bend.name))
        ends = torch.stack([slope * before for slope in bend.slope])
        assert bool((ends.amin(0) - 1e-9 <= after).all()), f"{bend.name} leaves its slopes"
        assert bool((after <= ends.amax(0) + 1e-9).all()), f"{bend.name} leaves its slopes"
