"""BALL brackets: exact for small balls, below GLOBAL for large ones, witnessed from below, honest where infinite."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.bounds.balls import ball as module
from normscope.bounds.balls import ball_bracket as bracketing
from normscope.bounds.balls.ball import Balls
from normscope.bounds.balls.ball_bracket import ball_bracket
from normscope.bounds.bounds_by_method import upper_sides
from normscope.bounds.traced_network import BoundSettings, TracedNetwork
from normscope.core.bracket import Evidence, Scope
from normscope.core.budget import Budget
from normscope.core.rounding import Upper

from ..soundness.networks import Function


class Block(nn.Module):
    """A transformer block with a gated feed-forward part."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.RMSNorm(width, eps=1e-5)
        self.mixing = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.gate, self.down = nn.Linear(width, 12), nn.Linear(width, 12), nn.Linear(12, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        x = x + self.mixing(y, y, y, need_weights=False)[0]
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def skipping(body: nn.Module) -> nn.Module:
    return Function(lambda net, x: x + net.body(x), body=body)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.Tanh(),
        nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def residual() -> nn.Module:
    return nn.Sequential(
        skipping(nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 6))), nn.LayerNorm(6),
        skipping(nn.Sequential(nn.Linear(6, 8), nn.ELU(), nn.Linear(8, 6))), nn.Softmax(-1),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (6,)),
    "cnn": (cnn, (1, 8, 8)),
    "residual": (residual, (6,)),
    "transformer": (Block, (3, 8)),
}


def made(name: str, samples: int = 3) -> tuple[nn.Module, Tensor]:
    build, shape = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build().double().eval()
        return model, torch.randn(samples, *shape, dtype=torch.float64)


def jacobian_norms(model: nn.Module, batch: Tensor) -> Tensor:
    rows = []
    for x in batch:
        dense = torch.func.jacrev(lambda v: model(v[None])[0].reshape(-1))(x)
        rows.append(torch.linalg.matrix_norm(dense.reshape(dense.shape[0], -1), 2))
    return torch.stack(rows)


@pytest.fixture(autouse=True)
def short_search(monkeypatch) -> None:
    monkeypatch.setattr(module, "SEARCH_STEPS", 3)
    monkeypatch.setattr(bracketing, "SEARCH_STEPS", 60)


@pytest.fixture(scope="module")
def works() -> dict[str, tuple[TracedNetwork, nn.Module, Tensor]]:
    result = {}
    for name in MODELS:
        model, batch = made(name)
        result[name] = (TracedNetwork.of(model, batch), model, batch)
    return result


@pytest.mark.parametrize("name", MODELS)
class TestRadii:
    @pytest.mark.slow
    def test_small_balls_give_the_jacobian(self, name: str, works) -> None:
        """Within 1 % at 1e-6, exact at 0, and never below."""
        work, model, batch = works[name]
        exact = jacobian_norms(model, batch)
        balls = Balls(work)
        assert balls.unrolled.opaque == []
        for radius, within in ((0.0, 1e-9), (1e-6, 1e-2)):
            found = balls.over(radius).constant
            assert bool((found >= exact * (1 - 1e-9)).all())
            assert bool((found <= exact * (1 + within)).all())

    @pytest.mark.one_in(1000)
    def test_balls_grow_with_the_radius_and_stay_below_global(self, name: str, works) -> None:
        work, _, _ = works[name]
        top = upper_sides(work)["best"]
        balls = Balls(work)
        constants = [balls.over(radius).constant for radius in (1e-4, 1e-2, 1.0, 100.0)]
        for before, after in itertools.pairwise(constants):
            assert bool((before <= 1.05 * after).all())
        ceiling = balls.ceilings[work.graph.output]
        assert bool((constants[-1] <= ceiling * (1 + 1e-9)).all())
        assert top.upper <= ceiling * (1 + 1e-9)


class TestBracket:
    def test_both_sides_and_the_witness(self, works) -> None:
        work, model, batch = works["mlp"]
        best = upper_sides(work)["best"]
        bracket = ball_bracket(work, radius=0.05, global_upper=None)
        assert bracket.scope is Scope.BALL
        assert bracket.evidence is Evidence.NUMERICAL
        assert len(bracket.per_sample) == len(batch)
        assert bracket.upper == max(b.upper for b in bracket.per_sample)
        assert bracket.lower == max(b.lower for b in bracket.per_sample)
        assert bracket.upper <= best.upper
        for one, centre in zip(bracket.per_sample, batch):
            (u,), (v,) = one.witness
            for point in (u, v):
                assert float((point.reshape(-1) - centre.reshape(-1)).norm()) <= 0.05
            with torch.no_grad():
                slope = float((model(u.reshape(1, -1)) - model(v.reshape(1, -1))).norm() / (u - v).norm())
            assert one.lower <= slope * (1 + 1e-9)
            assert one.lower > 0.8 * one.upper, "a small ball is nearly closed"

    @pytest.mark.slow
    def test_no_ball_exceeds_a_given_global_bound(self, works) -> None:
        work, _, _ = works["transformer"]
        known = Upper.of(1e4, Evidence.NUMERICAL, "given")
        bracket = ball_bracket(work, radius=5.0, global_upper=known)
        assert bracket.method == "global"
        assert bracket.log10_upper == known.log10

    def test_radius_zero_is_the_jacobian(self, works) -> None:
        work, model, batch = works["transformer"]
        bracket = ball_bracket(work, radius=0.0)
        for one, exact in zip(bracket.per_sample, jacobian_norms(model, batch).tolist()):
            assert one.lower == pytest.approx(exact, rel=1e-6)
            assert one.upper == pytest.approx(exact, rel=1e-6)
            assert one.witness is None

    @pytest.mark.slow
    def test_an_infinite_ball_says_why(self) -> None:
        work = TracedNetwork.of(nn.Sequential(nn.Linear(3, 3), nn.Hardshrink(0.5)).eval(), torch.zeros(1, 3))
        bracket = ball_bracket(work, radius=10.0)
        assert bracket.upper == math.inf
        assert "jumps within the ball" in bracket.reason


class TestBatches:
    @pytest.mark.slow
    def test_centres_do_not_see_each_other(self, works) -> None:
        """All at once, a few at a time or alone: the same figures."""
        work, _, _ = works["transformer"]
        balls = Balls(work)
        radius = torch.tensor([0.01, 0.1, 0.5], dtype=torch.float64)
        together = balls.over(radius).constant
        for i in range(3):
            alone = Balls(work, balls.centres[i : i + 1]).over(float(radius[i])).constant
            assert float(alone) == pytest.approx(float(together[i]), rel=1e-9)

    def test_several_inputs_are_one_ball(self) -> None:
        inputs = torch.ones(1, 3), torch.full((1, 3), 2.0)
        work = TracedNetwork.of(Function(lambda x, y: (2 * x + y).relu() * y).eval(), inputs)
        exact = torch.linalg.matrix_norm(torch.tensor([[4.0, 6.0]]).double(), 2)  # d/dx = 2 y, d/dy = (2x + y) + y
        assert float(Balls(work).over(1e-7).constant[0]) == pytest.approx(float(exact), rel=1e-3)

    def test_train_mode_is_one_ball_around_the_batch(self) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()).double().train()
        batch = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        work = TracedNetwork.of(model, batch)
        balls = Balls(work)
        assert balls.centres.shape == (1, 15)
        twin = nn.Sequential(*model).train()
        dense = torch.autograd.functional.jacobian(lambda x: twin(x), batch).reshape(20, 15)
        exact = float(torch.linalg.matrix_norm(dense, 2))
        assert float(balls.over(1e-7).constant[0]) == pytest.approx(exact, rel=1e-2)


class TestMargins:
    def test_a_linear_classifier_is_exact(self) -> None:
        layer = nn.Linear(4, 3).double().eval()
        batch = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        balls = Balls(TracedNetwork.of(layer, batch))
        top = balls.values.argmax(1)
        for effort in ("fast", "tight"):
            over = balls.over(0.3, effort=effort)
            apart = (layer.weight[top][:, None] - layer.weight).norm(dim=2).detach()
            margin = balls.values.gather(1, top[:, None]) - balls.values - 0.3 * apart
            assert torch.allclose(over.differences(top), apart, rtol=1e-6)
            assert torch.allclose(over.margins(top), margin.scatter(1, top[:, None], 0.0), atol=1e-6)


def test_the_search_from_below_leaves_time_for_the_upper_side(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    search = bracketing.strongest_pairs

    def noted(*args: Any, budget: Budget, **options: Any) -> Any:
        given.append(budget.seconds)
        return search(*args, budget=Budget(1), **options)

    monkeypatch.setattr(bracketing, "strongest_pairs", noted)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    captured = TracedNetwork.of(model, torch.ones(1, 3))
    ball_bracket(captured, BoundSettings.within(20.0), radius=0.1, effort="tight")
    assert given
    assert max(given) <= 6.0


@pytest.mark.slow
def test_an_operator_that_is_known_by_its_gain_alone_is_named() -> None:
    """A sort has no steps near a point: the bracket says so; a ReLU has some."""

    found = ns.lipschitz(
        Function(lambda x: x.sort(dim=1).values.relu()).eval(), torch.randn(2, 3), scope="ball", radius=0.1
    )
    assert [note for note in found.notes if "gain alone" in note] == [
        "near a point these are known by their gain alone, which is looser: sort in `the model`"
    ]
    plain = ns.lipschitz(nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), torch.randn(2, 3), scope="ball", radius=0.1)
    assert not any("gain alone" in note for note in plain.notes)
