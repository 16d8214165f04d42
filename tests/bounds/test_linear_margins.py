"""Linear bounds over balls: below what they bound at every point tried, and planted bugs are caught."""

import dataclasses
import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from normscope.bounds.balls.ball import Balls, LinearMargins, affine_outcome
from normscope.bounds.balls.enclosure import Enclosures, enclose
from normscope.bounds.balls.sweep import Relaxation, below
from normscope.bounds.operators.local.entry_sets import Normalize
from normscope.bounds.operators.local.local import Enclosure, flat
from normscope.bounds.traced_network import TracedNetwork
from normscope.core.budget import Budget

from ..soundness.networks import noise
from .classifiers import FAMILIES, Tokens, made

ACTIVATIONS = [
    nn.ReLU(), nn.LeakyReLU(0.2), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Tanh(), nn.Sigmoid(), nn.Softplus(),
    nn.ELU(), nn.Mish(), nn.Hardswish(), nn.ReLU6(), nn.Hardtanh(-0.5, 0.7), nn.Softsign(), nn.LogSigmoid(),
]  # fmt: skip


class Wide(nn.Module):
    """Every activation side by side between two linear maps, and a skip around them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 3 * len(ACTIVATIONS)), nn.Linear(3 * len(ACTIVATIONS), 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)
        self.activations = nn.ModuleList(ACTIVATIONS)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.first(x).mul(2).chunk(len(ACTIVATIONS), -1)
        x = x + self.last(torch.cat([f(part) for f, part in zip(self.activations, parts)], -1))
        return self.head(self.norm(x).relu())


class Gated(nn.Module):
    """A gate, a quotient, a square and a softmax over a few entries."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(16, 6), nn.Linear(16, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        return self.head(a * b.sigmoid() / (2 + b.square()) + (a * b).softmax(-1))


class Blocks(nn.Module):
    """Three residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(16, 8) for _ in range(3))
        self.outer = nn.ModuleList(nn.Linear(8, 16) for _ in range(3))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        for inner, outer in zip(self.inner, self.outer):
            x = x + 2 * outer(inner(x).relu())
        return self.head(x)


NETS: dict[str, Callable[[], nn.Module]] = {
    "activations": Wide,
    "gates": Gated,
    "blocks": Blocks,
    "attention": Tokens,
    "relu": FAMILIES["relu"],
    "windows": FAMILIES["convolution"],
    "groups": lambda: nn.Sequential(nn.Linear(16, 12), nn.GroupNorm(3, 12), nn.Tanh(), nn.Linear(12, 3)),
    "softmax": lambda: nn.Sequential(nn.Linear(16, 6), nn.Softmax(-1), nn.Linear(6, 3)),
    "root mean square": lambda: nn.Sequential(nn.Linear(16, 12), nn.RMSNorm(12, eps=1e-5), nn.Linear(12, 3)),
}
RADII = (0.02, 0.4)


@cache
def balls_of(net: str) -> Balls:
    return Balls(TracedNetwork.of(made(NETS[net]).double(), noise(2, 16).double()))


def points(radius: Tensor, n: int, count: int = 60) -> Tensor:
    """Points of every ball relative to its centre, `[count, B, n]`, half of them on its sphere."""
    change = noise(count, len(radius), n, seed=3).double()
    change = change / change.norm(dim=2, keepdim=True) * radius[:, None]
    return torch.cat([change[: count // 2], change[count // 2 :] * noise(1, seed=4).abs().clamp(max=1).double()])


def challenge(net: str, radius: float) -> Enclosures:
    """Compare every linear bound, every limit and every distance with values at points of the balls."""
    balls = balls_of(net)
    size = torch.full((2,), radius, dtype=torch.float64)
    unrolled, values = balls.unrolled, balls.unrolled.values(balls.centres)
    with torch.no_grad():
        seen = enclose(
            unrolled, values, size, balls.captured.norm, ceilings=balls.ceilings, helpers=[Relaxation(Budget())]
        )
        rows = torch.randn(2, 7, *unrolled.shapes[unrolled.output], generator=torch.Generator().manual_seed(5)).double()
        found = below(seen, unrolled.output, rows)
        changes = points(size, balls.centres.shape[1])
        steepest = -found.slopes.transpose(0, 1)  # where the affine functions are least
        steepest = steepest / steepest.norm(dim=2, keepdim=True).clamp(min=1e-300) * radius
        changes = torch.cat([changes, steepest])
        there = unrolled.values((balls.centres + changes).flatten(0, 1))
        there = {name: value.reshape(len(changes), 2, *value.shape[1:]) for name, value in there.items()}
        for name, x in seen.known.items():
            slack = 1e-12 * (1 + x.centre.abs())
            assert (there[name] >= x.low - slack).all()
            assert (there[name] <= x.high + slack).all()
            if x.ahead is not None:
                along = ((there[name] - x.centre) * x.centre).sum(-1) / x.centre.norm(dim=-1)
                assert (along >= x.ahead[0] - 1e-12).all()
                assert (along <= x.ahead[1] + 1e-12).all()
            if x.apart is not None:
                assert ((there[name] - x.centre).norm(dim=-1) <= x.apart + 1e-12).all()
        moved = torch.einsum("pbn,bkn->pbk", flat(there[unrolled.output] - values[unrolled.output], 2), flat(rows, 2))
        line = torch.einsum("pbn,bkn->pbk", changes, found.slopes) + found.offset
        assert (moved >= line - 1e-11 * (1 + line.abs())).all()
        assert (moved >= found.least(size) - 1e-11).all()
    return seen


@pytest.mark.parametrize(
    "net", [pytest.param(net, marks=pytest.mark.slow if net == "activations" else []) for net in NETS]
)
def test_linear_bounds_hold_at_every_point_tried(net):
    for radius in (*RADII, 1.5):
        challenge(net, radius)


SETS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(16, elementwise_affine=False),
    "layer with a large eps": lambda: nn.LayerNorm(16, eps=3.0, elementwise_affine=False),
    "groups": lambda: nn.GroupNorm(4, 16, affine=False),
    "behind a kink": lambda: nn.Sequential(nn.Linear(16, 6), nn.ReLU(), nn.RMSNorm(6, eps=1e-3)),
    "softmax": lambda: nn.Sequential(nn.Linear(16, 5), nn.Softmax(-1)),
}


@pytest.mark.parametrize("radius", [0.1, 0.8, 2.5])
@pytest.mark.parametrize("net", SETS)
def test_descent_from_every_line_finds_nothing_below_it(net, radius):
    centres = torch.cat([noise(2, 16), 0.3 * noise(1, 16, seed=7)]).double()
    balls = Balls(TracedNetwork.of(made(SETS[net]).double(), centres))
    size, shape = torch.full((3,), radius, dtype=torch.float64), balls.captured.graph.output_shape
    helpers = [Relaxation(Budget())]
    with torch.no_grad():
        values = balls.unrolled.values(centres)
        seen = enclose(balls.unrolled, values, size, balls.captured.norm, ceilings=balls.ceilings, helpers=helpers)
        entry = torch.eye(shape[-1], dtype=torch.float64)[:2]
        rows = torch.cat([entry, -entry, torch.ones_like(entry[:1]), noise(5, shape[-1], seed=5).double()])
        whole = rows.reshape(-1, *balls.unrolled.shapes[balls.unrolled.output]).expand(3, *[-1] * (1 + len(shape)))
        found = below(seen, balls.unrolled.output, whole)
    ahead = (centres / centres.norm(dim=1, keepdim=True))[:, None].expand(-1, len(rows), -1)
    change = radius * torch.stack([ahead, -ahead, *noise(6, 3, len(rows), 16, seed=9).double() / 4])
    for turn in range(40):
        change = change.detach() * (radius / change.norm(dim=-1, keepdim=True)).clamp(max=1.0)
        change.requires_grad_(True)
        moved = balls.captured.model(change.flatten(0, 2) + centres.repeat_interleave(len(rows), 0).repeat(8, 1))
        moved = moved.reshape(8, 3, len(rows), -1) - balls.values[:, None]
        above = (moved * rows).sum(-1) - (change * found.slopes).sum(-1) - found.offset
        assert (above >= -1e-10).all()
        (slope,) = torch.autograd.grad(above.sum(), change)
        change = change - radius / (4 + turn) * slope / slope.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    assert (above.amin(0) < found.offset.abs().clamp(min=1e-6) * 4).all()  # descent came close to the lines


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.3, 4.0])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.45])
@pytest.mark.parametrize("ends", [(-1.0, 1.0), (-0.6, 0.3)])
def test_the_factor_of_a_normalizers_centre_is_within_its_limits(eps, share, ends):
    n, centre = 5, noise(4, 1, 5, seed=11).double()
    norm, one = centre.norm(dim=-1), torch.ones(4, dtype=torch.float64)
    radius = share * torch.hypot(norm, torch.full_like(norm, math.sqrt(eps * n)))[:, 0]
    reach = radius[:, None, None]
    ahead = tuple(end * radius[:, None] for end in ends)
    x = Enclosure(centre, centre - reach, centre + reach, one, torch.ones_like(centre), radius, ahead=ahead)
    around = Normalize(eps).local([x]).around()
    low, high = around.multiple
    assert (low < 0).all()  # the Jacobian at the centre was taken
    unit = centre / norm[..., None]
    across = noise(400, 4, 1, 5, seed=12).double()
    across = across - (across * unit).sum(-1, keepdim=True) * unit
    across = across / across.norm(dim=-1, keepdim=True)
    angle = torch.linspace(0, math.pi, 400, dtype=torch.float64)[:, None, None, None]
    for length in (0.3, 0.8, 1.0):
        change = length * reach * (angle.cos() * unit + angle.sin() * across)
        s, t = (((y * y).sum(-1) / n + eps).sqrt() for y in (centre, centre + change))
        outside = (change * unit).sum(-1) / radius[:, None]
        outside = (outside < ends[0]) | (outside > ends[1])
        factor = 1 / t - 1 / s + (centre * change).sum(-1) / n / s**3
        assert ((factor >= low) | outside).all()
        assert ((factor <= high) | outside).all()
        rest = (centre + change) / t[..., None] - centre / s[..., None] - jacobian_at(centre, change, s, n)
        rest = rest - factor[..., None] * centre
        assert ((rest >= around.low) | outside[..., None]).all()
        assert ((rest <= around.high) | outside[..., None]).all()


@pytest.mark.parametrize("left", [1e-3, 1e-6, 1e-8])
def test_the_factor_is_within_its_limits_where_the_deviation_almost_vanishes(left):
    centre, one = noise(4, 1, 5, seed=11).double(), torch.ones(4, dtype=torch.float64)
    norm = centre.norm(dim=-1)
    radius = ((1 - left) * norm)[:, 0]
    reach = radius[:, None, None]
    x = Enclosure(centre, centre - reach, centre + reach, one, torch.ones_like(centre), radius)
    _, high = Normalize(0.0).local([x]).around().multiple
    s = norm / math.sqrt(5)
    factor = (1 / left - 2 + left) / s  # at the centre times `left`
    assert (factor <= high).all()
    assert (high <= 1.01 * factor).all()


def jacobian_at(centre: Tensor, change: Tensor, s: Tensor, n: int) -> Tensor:
    """What the Jacobian of a normalizer at the centre makes of a change."""
    along = (centre * change).sum(-1, keepdim=True) / (n * s[..., None] ** 2)
    return (change - along * centre) / s[..., None]


def test_distances_of_sets_are_known_and_used():
    seen = challenge("groups", 0.1)
    known = [x for x in seen.known.values() if x.apart is not None]
    assert known
    boxes = [dataclasses.replace(x, apart=None, sets=None).distance(1) for x in known]
    assert all((x.distance(1) <= box).all() for x, box in zip(known, boxes))
    assert any((x.distance(1) < 0.8 * box).any() for x, box in zip(known, boxes))


def ascended(net: str, radius: Tensor, steps: int = 40) -> Tensor:
    """The least margin that plain gradient descent finds within the radii, `[B]`."""
    balls = balls_of(net)
    model, x = balls.captured.model, balls.centres
    top = model(x).argmax(1)
    change, least = torch.zeros_like(x), torch.full((len(x),), math.inf, dtype=torch.float64)
    for _ in range(steps):
        change = change.detach().requires_grad_(True)
        logits = model(x + change)
        margin = (logits.gather(1, top[:, None]) - logits).scatter(1, top[:, None], math.inf).amin(1)
        least = torch.minimum(least, margin.detach())
        (slope,) = torch.autograd.grad(margin.sum(), change)
        change = change.detach() - radius[:, None] / 8 * slope / slope.norm(dim=1, keepdim=True).clamp(min=1e-300)
        change = change * (radius[:, None] / change.norm(dim=1, keepdim=True).clamp(min=1e-300)).clamp(max=1.0)
    return least


@pytest.mark.one_in(1000)
@pytest.mark.parametrize(
    "net", [pytest.param(net, marks=[] if net in ("relu", "blocks", "softmax") else pytest.mark.slow) for net in NETS]
)
def test_no_point_of_a_ball_has_a_smaller_margin(net):
    balls = balls_of(net)
    values = balls.values
    top = values.argmax(1)
    gaps = (values.gather(1, top[:, None]) - values).scatter(1, top[:, None], math.inf)
    for radius in RADII:
        size = torch.full((2,), radius, dtype=torch.float64)
        outcome = LinearMargins(balls).over(size, top, gaps, Budget())
        assert (ascended(net, size) >= outcome.left.amin(1) - 1e-12).all()
        assert (outcome.safe <= size).all()
        assert (outcome.safe[outcome.left.amin(1) > 0] == radius).all()
        assert (ascended(net, outcome.safe) > 0).all()
        again = LinearMargins(balls).over(outcome.safe, top, gaps, Budget())  # smaller balls have no worse bounds here
        assert (again.left.amin(1)[outcome.safe > 0] > 0).all()


def test_a_failed_test_says_how_far_it_was_safe():
    gaps = torch.tensor([[math.inf, 1.0, 4.0]] * 4, dtype=torch.float64)
    offset = torch.tensor([[0.0, 0.0, 0.0], [0.0, -0.5, 0.0], [0.0, -1.5, 0.0], [-math.inf, 0.0, -3.0]]).double()
    rates = torch.tensor([[9.0, 2.0, 1.0]] * 4, dtype=torch.float64)
    found = affine_outcome(gaps, offset, rates, torch.ones(4, dtype=torch.float64))
    assert found.left.amin(1).tolist() == [-1.0, -1.5, -2.5, -1.0]
    assert found.safe.tolist() == pytest.approx([0.5, 0.25, 0.0, 0.5], rel=2e-3)
    assert (found.safe <= torch.tensor([0.5, 0.25, 0.0, 0.5])).all()
    assert affine_outcome(gaps, offset, rates, torch.full((4,), 0.1, dtype=torch.float64)).safe.tolist() == [
        0.1,
        0.1,
        0.0,
        0.1,
    ]
