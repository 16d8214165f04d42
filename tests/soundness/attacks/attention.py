"""Attention against dense Jacobians: multi-head and scaled dot products, every mask, both floats, three scopes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import normscope as ns

from ..attacker import Flat, as_function, double_twin, jacobian, strongest
from .outcome import Outcome, drawing

ROUNDING = 1e-9
"""Of a dense Jacobian of these sizes in float64, behind a softmax: far more than was seen (1e-13)."""
STARTS, CLIMB = 4, 15
"""Points of a ball that are climbed from, and steps of each climb."""


class Attention(nn.Module):
    """A normalizer and one attention over it, with torch's module or written out."""

    def __init__(self, draw: random.Random, tokens: int, width: int, parts: list[str]) -> None:
        super().__init__()
        self.heads = draw.choice([1, 2, 4])
        self.mask, self.skip, self.module = draw.choice([*MASKS]), draw.random() < 0.3, draw.random() < 0.5
        norm = draw.choice(["none", "layer", "rms", "rms"]) if self.mask != FIRST else "rms"
        eps = 10.0 ** draw.uniform(-4, 0)
        self.norm = {"layer": nn.LayerNorm(width, eps), "rms": nn.RMSNorm(width, eps), "none": nn.Identity()}[norm]
        bias = draw.choice(["no bias", "bias", "large q bias"])
        parts += [f"{self.heads} heads", self.mask, f"norm {norm}", bias, "module" if self.module else "written"]
        self.inner = nn.MultiheadAttention(width, self.heads, bias=bias != "no bias", batch_first=True)
        scale = draw.choice([0.5, 1.0, 3.0])
        with torch.no_grad():
            for name, value in self.named_parameters():
                value.normal_().mul_(scale / math.sqrt(width) if value.ndim > 1 else 0.5)
                if name.endswith("in_proj_bias") and bias == "large q bias":
                    value[:width] *= 40.0
            if self.mask == FIRST:
                self._tight(width)
        hidden = MASKS[self.mask](tokens)
        self.register_buffer("hidden", None if hidden is None else hidden)

    def _tight(self, width: int) -> None:
        """Values pass as they are, from one token to all: near zero the bound over all inputs is attained."""
        self.norm.weight.fill_(1.0)
        self.inner.in_proj_weight[: 2 * width] = 0.0
        self.inner.in_proj_weight[2 * width :] = torch.eye(width)
        self.inner.out_proj.weight.copy_(torch.eye(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        out = self._module(y) if self.module else self._written(y)
        return x + out if self.skip else out

    def _module(self, y: Tensor) -> Tensor:
        hidden = ~self.hidden if self.hidden is not None and self.hidden.dtype is torch.bool else self.hidden
        return self.inner(y, y, y, attn_mask=hidden, need_weights=False)[0]

    def _written(self, y: Tensor) -> Tensor:
        samples, tokens, width = y.shape
        parts = F.linear(y, self.inner.in_proj_weight, self.inner.in_proj_bias).chunk(3, -1)
        q, k, v = (part.reshape(samples, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        causal = self.mask == "causal flag"
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=None if causal else self.hidden, is_causal=causal)
        return self.inner.out_proj(mixed.transpose(1, 2).reshape(samples, tokens, width))


FIRST = "every query sees the first token"
MASKS: dict[str, Callable[[int], Tensor | None]] = {
    "no mask": lambda tokens: None,
    "causal flag": lambda tokens: torch.ones(tokens, tokens).tril().bool(),
    "band": lambda tokens: (torch.arange(tokens)[:, None] - torch.arange(tokens)).abs() <= 1,
    FIRST: lambda tokens: (torch.arange(tokens) == 0).expand(tokens, tokens).clone(),
    "float mask": lambda tokens: torch.linspace(-3, 3, tokens * tokens).reshape(tokens, tokens),
}


def attack(seed: int) -> Outcome:
    """Draw an attention, and attack its constants over all inputs, over balls and at points."""
    parts: list[str] = []
    with drawing(f"attention {seed}") as draw:
        tokens, width = draw.randint(1, 4), draw.choice([4, 8])
        dtype = draw.choice([torch.float32, torch.float64])
        model = Attention(draw, tokens, width, parts).to(dtype).eval()
        batch = (draw.choice([0.1, 1.0, 5.0]) * torch.randn(2, tokens, width)).to(dtype)
        radius, effort = 10.0 ** draw.uniform(-3, 0.5), draw.choice(["fast", "tight"])
    outcome = Outcome("attention", (*parts, str(dtype).removeprefix("torch."), f"{effort} balls"))
    function = as_function(double_twin(model), (1, tokens, width))
    starts = [sample.double().reshape(-1) for sample in batch]
    _everywhere(outcome, model, batch, function, starts, seed)
    _points(outcome, model, batch, function, starts, seed)
    _balls(outcome, model, batch, function, starts, radius, effort, seed)
    return outcome


def _everywhere(outcome, model, batch, function, starts, seed) -> None:
    ladder = ns.ladder(model, batch)
    reached, _ = strongest(function, starts[0], seed=seed)
    for name, rung in ladder.items():
        if name == "observed" or not rung.holds:
            continue
        if rung.log10_upper == math.inf:
            outcome.remarks += ["infinite over all inputs"] if name == "best" else []
            continue
        words = f"seed {seed}, {name} over all inputs: {reached!r} above {rung.upper!r}"
        outcome.check(reached <= rung.upper * (1 + ROUNDING), words)
        if name == "best" and reached > 0:
            outcome.gaps.append(rung.log10_upper - math.log10(reached))


def _points(outcome, model, batch, function, starts, seed) -> None:
    brackets = ns.lipschitz(model, batch, scope="point").per_sample
    for bracket, start in zip(brackets, starts, strict=True):
        truth = _norm(function, start)
        words = f"seed {seed} at a point: {truth!r} outside of [{bracket.lower!r}, {bracket.upper!r}]"
        room = ROUNDING * max(truth, bracket.upper)
        inside = bracket.lower - room <= truth <= bracket.upper + room
        outcome.check(inside, words)


def _balls(outcome, model, batch, function, starts, radius, effort, seed) -> None:
    brackets = ns.lipschitz(model, batch, scope="ball", radius=radius, effort=effort).per_sample
    generator = torch.Generator().manual_seed(seed)
    for bracket, start in zip(brackets, starts, strict=True):
        reached = max(climbed(function, start, radius, generator) for _ in range(STARTS))
        if bracket.log10_upper == math.inf:
            outcome.remarks.append("infinite over a ball")
            continue
        words = f"seed {seed} over a ball of {radius!r}: {reached!r} above {bracket.upper!r}"
        outcome.check(reached <= bracket.upper * (1 + ROUNDING), words)
        if reached > 0:
            outcome.gaps.append(bracket.log10_upper - math.log10(reached))


def _norm(function: Flat, point: Tensor) -> float:
    dense = jacobian(function, point)
    return 0.0 if dense is None else float(torch.linalg.matrix_norm(dense, 2))


def climbed(function: Flat, centre: Tensor, radius: float, generator: torch.Generator) -> float:
    """The largest norm of a dense Jacobian met on a way uphill inside a ball; the function is smooth."""
    move = torch.randn(centre.shape, generator=generator, dtype=torch.float64)
    move = radius * float(torch.rand((), generator=generator)) * move / move.norm()
    best, rate = 0.0, 0.5 * radius
    for _ in range(CLIMB):
        x = (centre + move).requires_grad_(True)
        with sdpa_kernel(SDPBackend.MATH):  # the others cannot be differentiated twice
            value = function(x)
            rows = torch.eye(value.numel(), dtype=torch.float64)
            (dense,) = torch.autograd.grad(value, x, rows, is_grads_batched=True, create_graph=True)
            left, values, right = torch.linalg.svd(dense.detach(), full_matrices=False)
            (uphill,) = torch.autograd.grad(left[:, 0] @ dense @ right[0], x)
        best, rate = (float(values[0]), rate) if float(values[0]) > best else (best, 0.6 * rate)
        move = move + rate * uphill / uphill.norm().clamp(min=1e-300)
        move = move * min(1.0, radius * (1 - 1e-12) / float(move.norm()))
    return best
