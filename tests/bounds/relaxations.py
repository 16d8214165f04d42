"""An attacker of certificates: what a graph could do, as far as its effects tell.

A certificate speaks of every linear network that obeys the effects: any slope of the interval in any unit, any matrix
within a gain. The largest such network is a far stronger lower bound than inputs of the real function, and it is the
truth itself for a single hidden layer. Uses the effects and their linear maps; nothing of plans, forms or ellipsoids.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normscope.bounds.operators.effects import Elementwise, Gain, Linear
from normscope.bounds.segments import Segments

DOUBLE = torch.float64
Choice = Tensor | list[tuple[Tensor, Tensor]]
"""Slopes of a unit each, or a unit pair (to, from) for every matrix of rank one."""


class Relaxation:
    """Linear networks inside a graph's effects, and an ascent over them."""

    def __init__(self, segments: Segments, *, seed: int = 0) -> None:
        self.graph, self.effects = segments.graph, segments.effects
        self.generator = torch.Generator().manual_seed(seed)
        self.atoms = [node.name for node in self.graph if not isinstance(self.effects[node.name], Linear)]

    def strongest(self, *, starts: int = 3, rounds: int = 40) -> float:
        """Return the largest norm found."""
        return max(self._climb(rounds, high=start == 0) for start in range(starts))

    def _climb(self, rounds: int, *, high: bool) -> float:
        size = sum(item.value.numel() for item in self.graph.inputs)
        change = self._unit(size)
        choices: dict[str, Choice] = {}
        best = 0.0
        for turn in range(rounds):
            change = change.detach().requires_grad_(True)
            read, cores, output = self._run(change, choices, high=high)
            length = output.norm()
            best = max(best, float(length.detach()))
            if float(length.detach()) == 0.0 or not length.requires_grad:
                change, choices = self._unit(size), {}
                continue
            pulled, *pulls = torch.autograd.grad(length, [change, *cores.values()], allow_unused=True)
            grads = dict(zip(cores, pulls))
            # all at once leaps, one at a time climbs
            due = self.atoms if turn % 4 == 0 else [self.atoms[turn % len(self.atoms)]] if self.atoms else []
            for name in due:
                if grads[name] is not None:
                    choices[name] = self._best(name, [value.detach() for value in read[name]], grads[name])
            if float(pulled.norm()) > 0:
                change = pulled / pulled.norm()
        return best

    def _unit(self, size: int) -> Tensor:
        drawn = torch.randn(size, dtype=DOUBLE, generator=self.generator)
        return drawn / drawn.norm()

    def _run(
        self, change: Tensor, choices: dict[str, Choice], *, high: bool
    ) -> tuple[dict[str, list[Tensor]], dict[str, Tensor], Tensor]:
        """Follow a change of the input: what every nonlinear node reads, its core, and the change of the output."""
        values = {i.name: part[None] for i, part in zip(self.graph.inputs, self.graph.split(change), strict=True)}
        read: dict[str, list[Tensor]] = {}
        cores: dict[str, Tensor] = {}
        for node in self.graph:
            effect = self.effects[node.name]
            operands = [values[name] for name in node.refs]
            if isinstance(effect, Linear):
                parts = [linear.apply(value) for linear, value in zip(effect.maps, operands, strict=True)]
                values[node.name] = torch.stack([part.reshape(1, *node.shape) for part in parts]).sum(0)
                continue
            if isinstance(effect, Gain) and effect.before is not None:
                operands = [effect.before.apply(operands[0])]
            read[node.name] = operands
            if node.name not in choices:
                choices[node.name] = self._any(node.name, operands, node.shape, high=high)
            core = cores[node.name] = self._core(node.name, operands, choices[node.name]).reshape(1, *node.shape)
            if isinstance(effect, Gain) and effect.after is not None:
                core = effect.after.apply(core)
            values[node.name] = core.reshape(1, *node.shape)
        return read, cores, values[self.graph.output]

    def _stacked(self, effect: Gain, operands: list[Tensor]) -> list[Tensor]:
        """Operands times their gains: apart, or side by side where the changes are orthogonal."""
        scaled = [10.0**gain.log10 * value.reshape(-1) for gain, value in zip(effect.gains, operands, strict=True)]
        return [torch.cat(scaled)] if effect.joint else scaled

    def _core(self, name: str, operands: list[Tensor], choice: Choice) -> Tensor:
        effect = self.effects[name]
        if isinstance(effect, Elementwise):
            assert isinstance(choice, Tensor)
            return choice * operands[0]
        assert isinstance(effect, Gain)
        parts = self._stacked(effect, operands)
        return torch.stack([to * (back @ part) for (to, back), part in zip(choice, parts, strict=True)]).sum(0)

    def _any(self, name: str, operands: list[Tensor], shape: tuple[int, ...], *, high: bool) -> Choice:
        effect = self.effects[name]
        if isinstance(effect, Elementwise):
            a, b = effect.slope
            coins = torch.rand(operands[0].shape, dtype=DOUBLE, generator=self.generator)
            return a + (b - a) * ((coins < 0.5) | torch.tensor(high)).to(DOUBLE)
        assert isinstance(effect, Gain)
        parts = self._stacked(effect, [value.detach() for value in operands])
        return [(self._unit(math.prod(shape)), _direction(part, self._unit(part.numel()))) for part in parts]

    def _best(self, name: str, operands: list[Tensor], grad: Tensor) -> Choice:
        """Return what gets furthest along the gradient."""
        effect = self.effects[name]
        if isinstance(effect, Elementwise):
            a, b = effect.slope
            return a + (b - a) * (grad.reshape(operands[0].shape) * operands[0] >= 0).to(DOUBLE)
        assert isinstance(effect, Gain)
        to = _direction(grad.reshape(-1), self._unit(grad.numel()))
        return [(to, _direction(part, self._unit(part.numel()))) for part in self._stacked(effect, operands)]


def _direction(vector: Tensor, otherwise: Tensor) -> Tensor:
    return vector / vector.norm() if float(vector.norm()) > 0 else otherwise
