"""One captured graph: frozen, and bounded by functions that return what they find, in any order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.bounds import lower
from normscope.bounds import rungs as upper
from normscope.bounds.balls.ball import Balls
from normscope.bounds.captured import Bounding, Captured
from normscope.bounds.domain.domain_bounds import domain_sides, over_domain, with_steepest
from normscope.bounds.evaluation import Confirmer, Secant
from normscope.bounds.ladder import climb
from normscope.bounds.lower import lower_side, observed, observed_if_any
from normscope.bounds.patterns import exact
from normscope.bounds.radius.certifier import difference_constants
from normscope.bounds.rungs import Rungs, upper_sides
from normscope.core.bracket import Bracket, Scope
from normscope.core.budget import Budget

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
NAMES = ("product", "folded", "liplt", "closed-form")


def mlp(activation: Callable[[], nn.Module] = nn.ReLU, width: int = 6) -> nn.Module:
    """Return a small network, the same one every time."""
    layers = [nn.Linear(3, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, 2)]
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(*layers).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5)
    return model


def normed() -> nn.Module:
    """Return a network whose constant over data is far below the one over all inputs."""
    model = mlp()
    return nn.Sequential(model[0], nn.LayerNorm(6), *model[1:]).eval()


@pytest.fixture(scope="module")
def captured() -> Captured:
    return Captured.of(mlp(nn.GELU), X)


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer steps: how close the sides come does not matter here."""
    monkeypatch.setattr(lower, "ATTACK_STEPS", 20)
    monkeypatch.setattr(upper, "optimise", partial(upper.optimise, steps=10))


def figures(rungs: Rungs) -> dict[str, tuple[float, float, str]]:
    """Return what brackets say, without their witnesses."""
    return {name: (b.log10_lower, b.log10_upper, b.evidence.name) for name, b in rungs.items()}


class TestFrozen:
    @pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Captured)])
    def test_nothing_is_set_from_outside(self, captured: Captured, field: str) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(captured, field, None)

    @pytest.mark.parametrize("name", ["budget", "values", "provable", "terms", "below"])
    def test_no_state_is_bolted_on(self, captured: Captured, name: str) -> None:
        assert not hasattr(captured, name)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(captured, name, None)

    def test_what_may_be_spent_and_what_was_found_is_frozen_too(self, captured: Captured) -> None:
        found = upper_sides(captured)
        for thing, field in ((Bounding(), "budget"), (found, "nodes")):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(thing, field, None)

    def test_what_is_read_off_the_graph_is_read_once(self, captured: Captured) -> None:
        assert captured.unrolled is captured.unrolled
        assert captured.certain is captured.certain
        assert captured.ceilings is captured.ceilings
        assert captured.certain.steps is captured.unrolled

    def test_the_batch_as_points(self) -> None:
        assert torch.equal(Captured.of(mlp(), X).points, X)
        assert Captured.of(mlp().train(), X).points.shape == (1, 12)  # one input: the whole batch


class TestOrder:
    def test_every_call_gives_the_same(self, captured: Captured) -> None:
        first = figures(upper_sides(captured, effort="tight"))
        fast = figures(upper_sides(captured))
        assert figures(upper_sides(captured, effort="tight")) == first
        assert {name: first[name] for name in NAMES} == {name: fast[name] for name in NAMES}
        assert figures(upper_sides(Captured.of(mlp(nn.GELU), X))) == fast

    def test_the_lower_side_needs_no_upper_side(self, captured: Captured) -> None:
        bounding = Bounding()
        seen = observed(captured, 0)
        alone = lower_side(captured, bounding, seen, 0)
        upper_sides(captured, effort="tight")
        again = lower_side(captured, bounding, seen, 0)
        assert (alone.log10, alone.notes) == (again.log10, again.notes)
        assert all(torch.equal(a, b) for a, b in zip(alone.witness[0], again.witness[0], strict=True))

    def test_both_sides_are_those_that_are_taken_one_by_one(self, captured: Captured) -> None:
        bounding = Bounding()
        seen = observed_if_any(captured, bounding, 0)
        both = climb(captured, bounding, seen, 0)
        single = upper_sides(captured)
        below = lower_side(captured, bounding, seen, 0, enough=single["best"].log10_upper)
        assert list(both) == [*single, "observed"]
        assert figures(both)["best"][:2] == (below.log10, single["best"].log10_upper)
        assert {both[name].log10_lower for name in NAMES} == {below.log10}
        assert both.nodes == single.nodes

    def test_branch_and_bound_takes_the_plan_that_the_upper_side_returned(self) -> None:
        relu, bounding = Captured.of(mlp(width=2), X), Bounding()
        fast, tight = upper_sides(relu), upper_sides(relu, effort="tight")
        assert fast.plan is None
        assert tight.plan is not None
        bracket = lower_side(relu, bounding, None, 0).under(tight["best"])
        closed = exact(relu, bounding, tight, bracket)
        assert closed.log10_upper - closed.log10_lower < 1e-5
        assert "no branch and bound" in exact(relu, bounding, fast, bracket).notes[-1]

    def test_constants_of_differences_are_the_same_with_bounds_from_before(self, captured: Captured) -> None:
        known = upper_sides(captured).nodes
        assert torch.equal(difference_constants(captured), difference_constants(captured, values=known))

    def test_two_searches_confirm_pairs_apart_from_each_other(self, captured: Captured) -> None:
        u, v = X[0].double(), X[1].double()
        one, other = Confirmer(captured.certain), Confirmer(captured.certain)
        first = one.secant(u, v)
        one._first = 2
        assert other.secant(u, v).log10 == first.log10
        assert not first.estimated
        assert one.secant(u, v).estimated
        assert one.secant(u, u) == Secant()


class TestLimits:
    def test_a_clock_that_has_run_out_is_that_of_one_call(self) -> None:
        model = nn.Sequential(nn.Linear(3, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 2)).eval()
        captured = Captured.of(model, X)
        late = upper_sides(captured, Bounding(budget=Budget(max_seconds=0.0)), "tight")
        whole = upper_sides(captured)
        assert not late["best"].converged
        assert "cut short by max_seconds" in late["best"].advice
        assert whole["best"].converged
        assert whole["best"].advice is None
        assert late["best"].log10_upper == whole["best"].log10_upper  # closed forms come before the clock
        assert figures(whole) == figures(upper_sides(Captured.of(model, X)))

    def test_balls_take_the_limits_that_they_are_given(self, captured: Captured) -> None:
        whole = Balls(captured).over(0.1, effort="tight")
        late = Balls(captured, bounding=Bounding(budget=Budget(max_seconds=0.0))).over(0.1, effort="tight")
        assert late.ellipsoid.isinf().all()
        assert whole.ellipsoid.isfinite().all()
        other = whole.balls.around(whole.balls.centres[:1])
        assert (other.captured, other.bounding) == (whole.balls.captured, whole.balls.bounding)

    def test_what_is_left_out_for_an_audit(self, captured: Captured) -> None:
        whole, bare = upper_sides(captured), upper_sides(captured, proofs=False)
        assert all(whole[name].proof is not None for name in NAMES)
        assert all(bracket.proof is None for bracket in bare.values())
        assert figures(whole) == figures(bare)

    def test_without_a_certificate_there_is_no_rung_tight(
        self, captured: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(upper, "tightened", lambda *given: upper.Tightened())
        assert "tight" not in upper_sides(captured, effort="tight")
        monkeypatch.setattr(upper, "tightened", lambda *given: upper.Tightened(cut=True))
        found = upper_sides(captured, effort="tight")
        assert found["tight"].log10_upper == min(found[name].log10_upper for name in NAMES)


class TestDomain:
    def test_the_graph_over_all_inputs_stays_as_it_was(self) -> None:
        captured = Captured.of(normed(), X)
        domain = ns.domain(normed(), [X])
        before = figures(upper_sides(captured))
        inside = over_domain(captured, domain)
        found = domain_sides(captured, domain)
        assert inside.segments is not captured.segments
        assert inside.ceilings != captured.ceilings
        assert figures(upper_sides(captured)) == before
        assert found["best"].log10_upper < before["best"][1]
        assert found["global"].log10_upper == before["best"][1]
        assert {bracket.scope for bracket in found.values()} == {Scope.DOMAIN}

    def test_a_bound_from_before_stands_for_all_inputs(self) -> None:
        captured, domain = Captured.of(normed(), X), ns.domain(normed(), [X])
        known: Bracket = upper_sides(captured)["best"]
        assert figures(domain_sides(captured, domain)) == figures(domain_sides(captured, domain, everywhere=known))
        best = domain_sides(captured, domain)["best"]
        assert best.log10_lower < with_steepest(captured, domain, Bounding(), best, 0).log10_lower <= best.log10_upper
