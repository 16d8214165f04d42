"""Numbers that are none, budgets that are kept, and what a bracket says of itself."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.bounds import bounds_by_method
from normscope.bounds.balls.ball import Balls
from normscope.bounds.radius.certifier import Certifier
from normscope.bounds.traced_network import BoundSettings, TracedNetwork
from normscope.core.budget import Budget
from normscope.core.errors import InputError

from .graphs import DOUBLE

NETWORK = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).eval()


@pytest.mark.parametrize(
    "options",
    [
        {"scope": "ball", "radius": "a"},
        {"scope": "ball", "radius": math.nan},
        {"scope": "ball", "radius": -1},
        {"scope": "ball", "radius": [1, 2]},
        {"max_seconds": "x"},
        {"max_seconds": math.nan},
        {"max_seconds": -1},
        {"seed": 2**70},
        {"seed": -1},
        {"seed": 0.5},
        {"rtol": -1},
        {"rtol": math.nan},
        {"rtol": "tight"},
    ],
)
def test_what_is_no_number_is_refused_in_one_sentence(options: dict[str, Any]) -> None:
    calls = [lambda: ns.lipschitz(NETWORK, torch.zeros(1, 2), **options)]
    if not {"radius", "rtol"} & set(options):
        calls.append(lambda: ns.certified_radius(NETWORK, torch.zeros(1, 2), **options))
    for call in calls:
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value).count("\n") == 0
        assert repr(next(reversed(options.values()))) in str(caught.value)


@pytest.mark.slow
def test_a_file_speaks_of_the_weights_that_were_measured(tmp_path) -> None:
    """float64 weights are shared, and compared; of others there is a copy."""
    for dtype, refused in ((torch.float64, True), (torch.float32, False)):
        model = nn.Linear(2, 2).to(dtype).eval()
        bracket = ns.lipschitz(model, torch.zeros(1, 2, dtype=dtype), max_seconds=1.0)
        with torch.no_grad():
            model.weight.mul_(2.0)
        if refused:
            with pytest.raises(InputError, match="has changed"):
                bracket.save(tmp_path / "proof.npz")
        else:
            bracket.save(tmp_path / "proof.npz")


def test_balls_past_their_deadline_are_bounded_without_ellipsoids() -> None:
    bounding = BoundSettings.within(0.0)
    late = Balls(TracedNetwork.of(NETWORK, torch.ones(2, 2), bounding), bounding=bounding).over(0.1, effort="tight")
    assert late.constant.isfinite().all()
    assert late.ellipsoid.isinf().all()
    assert late.differences(torch.zeros(2, dtype=torch.int64)).isfinite().all()
    in_time = Balls(TracedNetwork.of(NETWORK, torch.ones(2, 2))).over(0.1, effort="tight")
    assert (late.constant >= in_time.constant * (1 - 1e-9)).all()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("off", [0.0, 0.5])
def test_the_rung_tight_is_never_above_the_others(monkeypatch: pytest.MonkeyPatch, off: float) -> None:
    search = bounds_by_method.optimise_certificate

    def shifted(*given: Any) -> Any:
        found = search(*given)
        assert found.upper is not None
        return replace(found, upper=replace(found.upper, log10=found.upper.log10 + off))

    monkeypatch.setattr(bounds_by_method, "optimise_certificate", shifted)
    ladder = ns.ladder(NETWORK, torch.zeros(1, 2), effort="tight")
    others = min(ladder[name].log10_upper for name in ("folded", "closed-form"))
    tight = ladder["tight"]
    assert ladder["best"].log10_upper == tight.log10_upper <= others
    assert (tight.log10_upper == others) == (off > 0)


@pytest.mark.slow
@pytest.mark.parametrize("effort", ["fast", "tight"])
def test_upper_sides_alone_are_those_of_both_sides_and_nothing_is_searched(
    monkeypatch: pytest.MonkeyPatch, effort: str
) -> None:
    batch = torch.tensor([[1.0, 2.0], [0.5, -1.0]])
    whole = ns.ladder(NETWORK, batch, effort=effort)
    for where in ("bounds_by_method.lower_side", "ladder.observed_if_any"):
        monkeypatch.setattr(f"normscope.bounds.{where}", None)
    upper = ns.ladder(NETWORK, batch, effort=effort, sides="upper")
    assert set(upper) == set(whole) - {"observed"}
    assert {name: upper[name].log10_upper for name in upper} == {name: whole[name].log10_upper for name in upper}
    assert all(bracket.log10_lower == -math.inf for bracket in upper.values())
    assert upper.layers == whole.layers


def test_sides_that_there_are_not_are_refused() -> None:
    with pytest.raises(InputError, match='sides is "both" or "upper"'):
        ns.ladder(NETWORK, torch.zeros(1, 2), sides="lower")  # type: ignore[arg-type]


def test_radii_past_their_deadline_are_not_tightened(monkeypatch: pytest.MonkeyPatch) -> None:
    efforts, real = [], Balls.over
    monkeypatch.setattr(
        Balls,
        "over",
        lambda self, radius, effort="fast": efforts.append(effort) or real(self, radius, effort=effort),
    )
    bounding = BoundSettings.within(0.0)
    captured = TracedNetwork.of(NETWORK, torch.ones(2, 2), bounding)
    certifier = Certifier(captured, bounding, effort="tight", attack=False, seed=0)
    (columns,) = certifier.examine(torch.ones(2, 2, dtype=DOUBLE), None, Budget(max_seconds=0.0))
    assert set(efforts) <= {"fast"}
    assert not columns.settled or not efforts


@pytest.mark.parametrize("effort", ["fast", "tight"])
def test_the_upper_side_alone_is_that_of_both_and_searches_nothing(monkeypatch, effort) -> None:
    both = ns.lipschitz(NETWORK, torch.ones(2, 2), effort=effort)
    for name in ("observed_if_any", "lower_side"):
        monkeypatch.setattr(f"normscope.bounds.lipschitz.{name}", lambda *args, **kwargs: pytest.fail("searched"))
    alone = ns.lipschitz(NETWORK, torch.ones(2, 2), effort=effort, sides="upper")
    assert (alone.log10_upper, alone.evidence, alone.method) == (both.log10_upper, both.evidence, both.method)
    assert (alone.log10_lower, alone.witness) == (-math.inf, None)
    assert any("lower side was not asked for" in note for note in alone.notes)
    assert alone.proof is not None


def test_the_lower_side_alone_is_not_below_that_of_both(monkeypatch) -> None:
    both = ns.lipschitz(NETWORK, torch.ones(2, 2))
    monkeypatch.setattr("normscope.bounds.lipschitz.upper_sides", lambda *args: pytest.fail("bounded from above"))
    alone = ns.lipschitz(NETWORK, torch.ones(2, 2), sides="lower")
    assert both.log10_lower <= alone.log10_lower <= both.log10_upper
    assert alone.witness is not None
    assert (alone.log10_upper, alone.reason) == (math.inf, "the upper side was not asked for")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sides": "left"}, "sides is"),
        ({"sides": "upper", "scope": "point"}, 'scope="global"'),
        ({"sides": "lower", "scope": "ball", "radius": 1.0}, 'scope="global"'),
        ({"sides": "upper", "scope": "data"}, 'scope="global"'),
        ({"sides": "upper", "per": "output"}, "per="),
    ],
)
def test_one_side_is_refused_where_both_are_found_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ns.lipschitz(NETWORK, torch.ones(2, 2), **options)
