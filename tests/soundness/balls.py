"""Trials of bounds over balls: random networks, centres and radii, attacked from inside the ball."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.bounds.balls.ball import Balls, Over
from normscope.bounds.balls.ball_bracket import strongest_pairs
from normscope.bounds.balls.sweep import below
from normscope.bounds.operators.local.local import flat
from normscope.bounds.traced_network import TracedNetwork
from normscope.core.budget import Budget
from normscope.core.errors import SoundnessError

from .attacker import Flat, as_function, double_twin, jacobian, secant
from .networks import Function, Network, Residual, network

ROUNDING = 1e-9
"""Relative slack of comparisons in float64; bounds themselves carry less."""


@dataclass(frozen=True)
class Case:
    """A network, and a radius around every sample of its batch."""

    network: Network
    radius: float
    effort: str = "fast"

    def __str__(self) -> str:
        return f"radius {self.radius:g}, {self.effort}, {self.network}"


@dataclass(frozen=True)
class Found:
    """What a trial saw, per centre: the bound and the strongest attack."""

    upper: tuple[float, ...]
    lower: tuple[float, ...]
    reason: str | None


class Mixed(nn.Module):
    """Attention of every shape: heads, grouped queries, masks, with and without a normalizer before it."""

    def __init__(self, width: int, heads: int, kind: str) -> None:
        super().__init__()
        self.heads, self.kind = heads, kind
        keys = width // 2 if kind == "grouped" else width
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, keys), nn.Linear(width, keys)
        self.out = nn.Linear(width, width)
        self.norm = nn.Identity() if kind == "bare" else nn.LayerNorm(width) if kind == "layer" else nn.RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        samples, tokens, width = x.shape
        groups = self.heads // 2 if self.kind == "grouped" else self.heads
        q = self.q(y).reshape(samples, tokens, self.heads, -1).transpose(1, 2)
        k, v = (part(y).reshape(samples, tokens, groups, -1).transpose(1, 2) for part in (self.k, self.v))
        options: dict = {"enable_gqa": True} if self.kind == "grouped" else {}
        if self.kind == "causal":
            options["is_causal"] = True
        if self.kind == "masked":
            options["attn_mask"] = (torch.arange(tokens)[:, None] - torch.arange(tokens)).abs() <= 1
        if self.kind == "biased":
            options["attn_mask"] = torch.linspace(-1, 1, tokens * tokens).reshape(tokens, tokens).to(x.dtype)
        if self.kind == "scaled":
            options["scale"] = 0.7
        mixed = F.scaled_dot_product_attention(q, k, v, **options)
        return x + self.out(mixed.transpose(1, 2).reshape(samples, tokens, width))


class Gate(nn.Module):
    """Products of unbounded branches, as SwiGLU has them."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.a, self.b, self.c = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "swiglu":
            return self.c(F.silu(self.a(x)) * self.b(x))
        if self.kind == "glu":
            return F.glu(torch.cat([self.a(x), self.b(x)], -1))
        if self.kind == "squeeze":
            return x * self.a(x).mean(-1, keepdim=True).sigmoid()
        return self.c(self.a(x) * self.b(x))


SHAPES = {
    "softmax attention": lambda x: (x @ x.mT / 2).softmax(-1) @ x,
    "einsum attention": lambda x: torch.einsum("bij,bjd->bid", torch.einsum("bid,bjd->bij", x, x).softmax(-1), x),
    "outer products": lambda x: torch.einsum("bid,bie->bde", x, x.tanh()) + torch.baddbmm(x.mT @ x, x.mT, x, alpha=0.5),
    "linear attention": lambda x: (F.elu(x) + 1) @ ((F.elu(x) + 1).mT @ x),
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda x: (0.3 * x).exp(),
    "log": lambda x: (x.square() + 0.2).log(),
    "sqrt": lambda x: (x.abs() + 0.1).sqrt(),
    "rsqrt": lambda x: (x.square() + 0.3).rsqrt(),
    "division": lambda x: x / (1.0 + x.abs()),
    "ratio": lambda x: x / (x.square().sum(-1, keepdim=True) + 0.2),
    "cosine": lambda x: F.normalize(x, dim=-1),
    "cube": lambda x: x.pow(3),
    "square": lambda x: x * x,
    "inverse": lambda x: (x.square() + 0.5).pow(-2),
    "root": lambda x: (x.square() + 0.5).pow(0.7),
    "max": lambda x: torch.cat([x, x.amax(-1, keepdim=True)], -1),
    "min": lambda x: torch.cat([x, x.min(-1, keepdim=True).values], -1),
    "maximum": lambda x: torch.maximum(x, 0.5 * x.flip(-1)),
    "minimum": lambda x: torch.minimum(2 * x, x.roll(1, -1)),
    "logsumexp": lambda x: torch.cat([x, x.logsumexp(-1, keepdim=True)], -1),
    "norm": lambda x: x * torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "log_softmax": lambda x: x.log_softmax(-1),
    "softmin": lambda x: F.softmin(x, -1),
    "tan": lambda x: (0.2 * x).tan(),
    "waves": lambda x: x.sin() * (2 * x).cos(),
    "sinh": lambda x: (0.2 * x).sinh() + (0.1 * x).cosh(),
    "softsign": F.softsign,
    "logit": lambda x: torch.log1p(x.sigmoid()) - x.sigmoid().sqrt(),
    "written rms": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3),
    "written norm": lambda x: (x - x.mean(-1, True)) / torch.sqrt((x - x.mean(-1, True)).pow(2).mean(-1, True) + 0.1),
    "sorted": lambda x: x.sort(-1).values,
    "arcs": lambda x: x.tanh().mul(0.9).asin() + x.tanh().mul(0.5).atanh(),
    "hardshrink": lambda x: F.hardshrink(x, 0.01),
}


def near_network(seed: int) -> Network:
    """Draw a network that is bounded over balls and often only there: gates, attention, steep functions."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    parts: list[str] = []
    tokens = draw.random() < 0.5
    width = draw.choice([4, 6, 8])
    shape = (draw.randint(2, 4), width) if tokens else (width,)
    layers: list[nn.Module] = []
    for _ in range(draw.randint(1, 3)):
        kind = draw.choice(["linear", "function", "gate", "norm", "activation", *(["attention"] * 3 if tokens else [])])
        if kind == "function":
            name = draw.choice(list(FUNCTIONS) + (list(SHAPES) if tokens else []))
            layers.append(Function((FUNCTIONS | SHAPES)[name]))
            width = width + 1 if name in ("max", "min", "logsumexp") else width
        elif kind == "gate":
            name = draw.choice(["swiglu", "glu", "squeeze", "bilinear"])
            layers.append(Residual(Gate(width, name), nn.Identity()))
        elif kind == "attention" and width % 4 == 0:
            name = draw.choice(["layer", "rms", "bare", "causal", "masked", "biased", "scaled", "grouped"])
            layers.append(Mixed(width, 2, name))
            name = f"attention, {name}"
        elif kind == "norm":
            name = draw.choice(["LayerNorm", "RMSNorm"])
            layers.append(getattr(nn, name)(width, eps=10 ** draw.uniform(-6, 0)))
        elif kind == "activation":
            name = draw.choice(["ReLU", "GELU", "SiLU", "Tanh", "Softplus", "ELU", "Mish", "Hardswish"])
            layers.append(getattr(nn, name)())
        else:
            name, out = "linear", draw.randint(2, 8)
            layers.append(nn.Linear(width, out))
            width = out
        parts.append(name)
    model = nn.Sequential(*layers)
    scale = draw.choice([0.5, 1.0, 2.0])
    with torch.no_grad():
        for parameter in model.parameters():
            spread = scale / math.sqrt(parameter.shape[-1]) if parameter.ndim > 1 else 0.5
            parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
    dtype = draw.choice([torch.float32, torch.float64])
    batch = draw.choice([0.3, 1.0, 3.0]) * torch.randn(3, *shape, generator=generator, dtype=dtype)
    return Network(seed, model.to(dtype).eval(), batch, "eval", tuple(parts))


def case(seed: int) -> Case:
    """Draw a network of either kind, a radius from 1e-6 to 100 and an effort."""
    draw = random.Random(f"ball {seed}")  # not the stream of choices that the networks are drawn from
    drawn = near_network(seed) if draw.random() < 0.5 else network(seed)
    return Case(drawn, 10.0 ** draw.uniform(-6, 2), "tight" if draw.random() < 0.4 else "fast")


def try_ball(
    drawn: Case, *, samples: int = 6, steps: int = 40, work: TracedNetwork | None = None, twin: bool = True
) -> Found:
    """Bound a network over balls and attack the bound from two sides, and every value on the way.

    Without a `twin` (the model itself in float64) only the package's own graph is attacked.

    Raises:
        SoundnessError: a constant, a limit, a margin or a centre map does not hold.
    """
    work = work or TracedNetwork.of(drawn.network.model, drawn.network.batch, on_missing="inf")
    balls = Balls(work)
    over = balls.over(drawn.radius, effort=drawn.effort)
    generator = torch.Generator().manual_seed(drawn.network.seed % 2**31)
    points = inside(balls.centres, over.radius, generator, samples)
    check_values(over, points, drawn)
    check_outputs(over, points, drawn)
    check_below(over, points, drawn)
    function = as_function(double_twin(drawn.network.model), tuple(work.graph.inputs[0].shape)) if twin else None
    pairs = strongest_pairs(
        balls.captured.certain, balls.centres, over.radius, budget=Budget(steps), seed=drawn.network.seed
    )
    lowers = []
    for i, centre in enumerate(balls.centres):
        theirs = outside_attack(function, centre, drawn.radius, points[:, i]) if function is not None else 0.0
        lowers.append(max(theirs, 10 ** pairs[i].log10 if pairs[i].pair is not None else 0.0))
        upper = float(over.constant[i])
        if not lowers[-1] <= upper * (1 + ROUNDING):  # nor may it be NaN
            raise SoundnessError(f"{lowers[-1]:g} reached, bound {upper:g} at centre {i}: {drawn}")
        if upper == math.inf and not over.reason:
            raise AssertionError(f"infinite without a reason: {drawn}")
    return Found(tuple(over.constant.tolist()), tuple(lowers), over.reason)


def inside(centres: Tensor, radius: Tensor, generator: torch.Generator, samples: int) -> Tensor:
    """Return `[2 samples, B, n]` points of the balls: on the sphere, inside, and towards single entries."""
    noise = torch.randn(2 * samples, *centres.shape, dtype=torch.float64, generator=generator)
    noise[1::4] *= torch.rand(noise[1::4].shape, generator=generator) < 0.2
    noise[2::4] = -centres + noise[2::4] * 0.1 * centres.norm(dim=1).amax()  # towards zero: normalizers are steep there
    size = noise.norm(dim=2, keepdim=True).clamp(min=1e-300)
    far = torch.rand(2 * samples, 1, 1, dtype=torch.float64, generator=generator) ** 0.3
    far[::3] = 1.0
    shift = noise / size * torch.minimum(far * radius[:, None], size) * (1 - 1e-9)
    return centres + shift


def check_values(over: Over, points: Tensor, drawn: Case) -> None:
    """No value leaves its limits, none moves faster than its constants, every primitive stays within its local map."""
    unrolled = over.balls.unrolled
    (seen,) = over.seen
    with torch.no_grad():
        values = [unrolled.values(x) for x in points]
    rows = list(range(0, len(points) - 1, 2))
    for name, box in seen.known.items():
        for value in values:
            slack = 1e-12 + 1e-11 * value[name].abs().nan_to_num(0.0, 0.0, 0.0)
            if bool(((value[name] < box.low - slack) | (value[name] > box.high + slack)).any()):
                raise SoundnessError(f"{name} leaves its limits: {drawn}")
        for k in rows:
            _check_speed(name, box, values[k], values[k + 1], points[k], points[k + 1], drawn)
    for name, found in seen.locals.items():
        operands = unrolled.steps[name].operands
        maps = [flat(part.pull(_identity(values[0][name])), 2) for part in found.parts]
        for k in rows:
            changes = [_change(values[k][op], values[k + 1][op]) for op in operands]
            move = _change(values[k][name], values[k + 1][name])
            noise = 1e-12 * (flat(values[k][name]).abs().amax(1, True) + sum(c.abs().amax(1, True) for c in changes))
            if not bool(move.isfinite().all()) or any(not bool(m.isfinite().all()) for m in maps):
                continue
            rest = move - sum((m @ c[..., None])[..., 0] for m, c in zip(maps, changes))
            weights = [flat(part.weight) for part in found.parts]
            reach = sum(w.nan_to_num(0.0) * c.norm(dim=1, keepdim=True) for w, c in zip(weights, changes))
            ok = [(rest.abs() <= reach * (1 + ROUNDING) + noise) | (sum(w.isinf() for w in weights) > 0)]
            if len(weights) == 1 and bool(weights[0].isfinite().all()):
                scaled = torch.where(weights[0] > 0, rest.abs() - noise, 0.0).clamp(min=0.0) / weights[0].clamp(
                    min=1e-300
                )
                ok.append(scaled.norm(dim=1) <= changes[0].norm(dim=1) * (1 + ROUNDING))
            gains = sum(p.gain * c.norm(dim=1) for p, c in zip(found.parts, changes))
            ok.append(~(move.norm(dim=1) > gains * (1 + ROUNDING) + noise[:, 0]))
            if not all(bool(o.all()) for o in ok):
                raise SoundnessError(f"{unrolled.steps[name].operation} at {name} leaves its centre map: {drawn}")
        if found.lines is not None:
            _check_lines(found.lines(), values, name, operands, drawn)


def check_below(over: Over, points: Tensor, drawn: Case) -> None:
    """No output falls below its affine bound at any point, and no set of entries is further off than it may be."""
    balls, (seen,) = over.balls, over.seen
    if balls.vanishing:
        return
    output, (centre,) = balls.unrolled.output, balls.chunks
    count = min(balls.outputs, 6)
    rows = torch.eye(balls.outputs, dtype=torch.float64)[:count].reshape(count, *centre[output].shape[1:])
    rows = torch.cat([rows, -rows]).expand(len(balls.centres), *[-1] * rows.ndim)
    with torch.no_grad():
        found = below(seen, output, rows)
    for x in points:
        with torch.no_grad():
            values = balls.unrolled.values(x)
        moved = (flat(rows, 2) @ flat(values[output] - centre[output])[..., None])[..., 0]
        line = (found.slopes @ (x - balls.centres)[..., None])[..., 0] + found.offset
        slack = 1e-12 + 1e-11 * (flat(values[output]).abs().amax(1, True) + line.abs().nan_to_num(posinf=0.0))
        if bool((moved < line - slack).any()):
            raise SoundnessError(f"an output falls below its affine bound: {drawn}")
        for name, box in seen.known.items():
            if box.apart is None:
                continue
            off = (values[name] - box.centre).norm(dim=2)
            if bool((off > box.apart * (1 + ROUNDING) + 1e-12 * box.centre.abs().amax()).any()):
                raise SoundnessError(f"a set of {name} is further from its centre than its bound: {drawn}")


def _change(first: Tensor, second: Tensor) -> Tensor:
    return flat(torch.where(first == second, 0.0, first - second))  # masks are -inf on both sides


def _identity(value: Tensor) -> Tensor:
    size = value[0].numel()
    return (
        torch.eye(size, dtype=torch.float64).reshape(1, size, *value.shape[1:]).expand(len(value), -1, *value.shape[1:])
    )


def _check_speed(name: str, box, first: dict, second: dict, u: Tensor, v: Tensor, drawn: Case) -> None:
    distance = (u - v).norm(dim=1)
    move = _change(first[name], second[name])
    noise = 1e-12 * (flat(first[name]).abs().amax(1) + 1e-3)
    fast = move.norm(dim=1) > box.constant * distance * (1 + ROUNDING) + noise
    entries = move.abs() > flat(box.entries) * distance[:, None] * (1 + ROUNDING) + noise[:, None]
    if bool(fast.any() or entries.any()):
        raise SoundnessError(f"{name} moves faster than its constants: {drawn}")


def _check_lines(lines, values: list[dict], name: str, operands: tuple[str, ...], drawn: Case) -> None:
    for value in values:
        low = sum(s * value[op] for s, op in zip(lines.low_slopes, operands)) + lines.low_offset
        high = sum(s * value[op] for s, op in zip(lines.high_slopes, operands)) + lines.high_offset
        slack = 1e-11 * (1 + value[name].abs())
        if bool(((value[name] < low - slack) | (value[name] > high + slack)).any()):
            raise SoundnessError(f"{name} leaves its lines: {drawn}")


def check_outputs(over: Over, points: Tensor, drawn: Case) -> None:
    """Limits, differences and margins hold at the points."""
    unrolled = over.balls.unrolled
    with torch.no_grad():
        outputs = torch.stack([flat(unrolled.values(x)[unrolled.output]) for x in points])
    if not bool(outputs.isfinite().all()):
        return
    top = over.balls.values.argmax(1)
    slack = 1e-11 * (1 + outputs.abs().amax())
    apart = outputs.gather(2, top.expand(len(points), -1)[..., None]) - outputs
    if bool((outputs < over.low - slack).any() or (outputs > over.high + slack).any()):
        raise SoundnessError(f"an output leaves its limits: {drawn}")
    if bool((apart < over.margins(top) - 2 * slack).any()):
        raise SoundnessError(f"a margin does not hold: {drawn}")
    for k in range(0, len(points) - 1, 2):
        distance = (points[k] - points[k + 1]).norm(dim=1)[:, None]
        if bool(
            ((apart[k] - apart[k + 1]).abs() > over.differences(top) * distance * (1 + ROUNDING) + 2 * slack).any()
        ):
            raise SoundnessError(f"a difference moves faster than its constant: {drawn}")


def outside_attack(function: Flat, centre: Tensor, radius: float, points: Tensor) -> float:
    """The strongest secant inside a ball, by dense Jacobians of the model itself at points of the ball."""
    best = 0.0
    for point in [centre, *points[:4]]:
        dense = jacobian(function, point)
        if dense is None or float(dense.abs().max()) == 0.0:
            continue
        direction = torch.linalg.svd(dense, full_matrices=False)[2][0]
        for width in (1.0, 0.1, 1e-2):
            pair = [_drawn_in(point + s * width * radius * direction, centre, radius) for s in (1.0, -1.0)]
            best = max(best, secant(function, *pair))
    return best


def _drawn_in(point: Tensor, centre: Tensor, radius: float) -> Tensor:
    size = float((point - centre).norm())
    return centre + (point - centre) * min(1.0, radius * (1 - 1e-6) / max(size, 1e-300))
