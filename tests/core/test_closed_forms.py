"""`max_seconds` ends searches first: while closed forms fit in, no bound is above `effort="fast"`.

Clocks run out after next to no time, or stand still and have run out from some look at them on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from torch import Tensor, nn

import normscope as ns
from normscope.auditing import audit_steps
from normscope.bounds import lower
from normscope.bounds import outputs as outputs_module
from normscope.bounds.balls import ball_bracket
from normscope.bounds.linalg.layer_norms import linear_map
from normscope.bounds.linalg.operator_norms import bound
from normscope.core import budget as module
from normscope.core.budget import Budget, in_time

from .clocks import MODELS, clocked, made, shorten

Upper = dict[str, ns.Bracket]
Call = Callable[..., Upper]


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of a few steps, whose results do not matter here, and time for all closed forms."""
    shorten(monkeypatch)
    monkeypatch.setattr(module, "LEAST_CLOSED_FORM_SECONDS", 10.0)
    monkeypatch.setattr(lower, "ATTACK_STEPS", 3)
    monkeypatch.setattr(outputs_module, "ATTACK_STEPS", 3)
    monkeypatch.setattr(ball_bracket, "SEARCH_STEPS", 3)
    monkeypatch.setattr(audit_steps, "expected_seconds", lambda *_: 0.0)


def one(model: nn.Module, batch: Tensor, **options: Any) -> Upper:
    return {"": ns.lipschitz(model, batch, **options)}


def point(model: nn.Module, batch: Tensor, *, effort: str = "fast", **options: Any) -> Upper:
    return _each(ns.lipschitz(model, batch, scope="point", **options).per_sample)


def balls(model: nn.Module, batch: Tensor, **options: Any) -> Upper:
    return _each(ns.lipschitz(model, batch, scope="ball", radius=0.1, **options).per_sample)


def outputs(model: nn.Module, batch: Tensor, **options: Any) -> Upper:
    return _each(ns.lipschitz(model, batch, per="difference", **options).per_output)


def ladder(model: nn.Module, batch: Tensor, **options: Any) -> Upper:
    return {name: rung for name, rung in ns.ladder(model, batch, **options).items() if name != "observed"}


def weights(model: nn.Module, batch: Tensor, *, effort: str = "fast", **options: Any) -> Upper:
    return _each(row.bracket_h for row in ns.weight_sensitivity(model, batch, **options))


def audit(model: nn.Module, batch: Tensor, *, effort: str = "fast", **options: Any) -> Upper:
    found = ns.audit(model, batch, effort={"tight": "thorough"}.get(effort, effort), **options)
    norms = {f"norm of {row.path}": row.norm for row in found.layers if row.norm is not None}
    return norms | {name: rung for name, rung in found.ladder.items() if name != "observed"}


def _each(brackets: Any) -> Upper:
    return {str(index): bracket for index, bracket in enumerate(brackets)}


CASES: list[tuple[Call, str, str]] = [
    (one, "chain", "tight"),
    (one, "convolution", "tight"),
    (point, "wide", "fast"),
    (balls, "chain", "tight"),
    (outputs, "chain", "tight"),
    (weights, "chain", "fast"),
    (weights, "recurrent", "fast"),
    (audit, "skip", "fast"),
    (audit, "attention", "fast"),
]
LONGER: list[tuple[Call, str, str]] = [
    *((call, name, "tight") for call in (one, ladder, balls) for name in MODELS),
    *((call, name, "fast") for call in (one, weights, balls, audit, point) for name in MODELS),
    (outputs, "skip", "tight"),
    (audit, "chain", "tight"),
]


def compare(call: Call, name: str, effort: str, looks: Iterable[int], seconds: float = 1e-9) -> None:
    """Compare bounds without a clock with those of a clock that runs out after some seconds, or some looks at it."""
    model, batch = made(name)
    limited = {f"{seconds} s": call(model, batch, effort=effort, max_seconds=seconds)}
    for left in looks:
        with clocked(left):
            limited[f"{left} looks"] = call(model, batch, effort=effort, max_seconds=100.0)
    fast = call(model, batch)
    for when, brackets in limited.items():
        assert brackets.keys() >= fast.keys(), when
        for part, whole in fast.items():
            cut = brackets[part]
            assert cut.log10_upper <= whole.log10_upper + 1e-12, (when, part, cut.method)
            assert cut.log10_upper >= max(whole.log10_lower, cut.log10_lower), (when, part)
            assert cut.log10_upper < whole.log10_upper or cut.evidence <= whole.evidence, (when, part)
            assert cut.converged or cut.advice, (when, part)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize(("call", "name", "effort"), CASES)
def test_no_bound_is_above_the_closed_forms(call: Call, name: str, effort: str) -> None:
    compare(call, name, effort, (40,))


@pytest.mark.slow
@pytest.mark.parametrize(("call", "name", "effort"), [*CASES, *LONGER])
def test_no_bound_is_above_the_closed_forms_at_any_moment(call: Call, name: str, effort: str) -> None:
    with clocked() as clock:
        call(*made(name), effort=effort, max_seconds=1e9)
    compare(call, name, effort, range(2, clock.looks, 1 + clock.looks // 20))


@pytest.mark.parametrize("layer", [nn.Conv2d(3, 4, 3, padding=1), nn.Linear(80, 70)])
def test_no_norm_of_a_layer_is_above_its_closed_form(layer: nn.Module) -> None:
    shape = (3, 12, 12) if isinstance(layer, nn.Conv2d) else None
    cut, whole = ns.spectral_norm(layer, shape, max_seconds=1e-9), ns.spectral_norm(layer, shape)
    closed = bound(linear_map(layer, shape)).upper
    assert whole.log10_lower <= cut.log10_upper <= closed.log10
    assert cut.evidence == closed.evidence


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("effort", ["fast", "tight"])
def test_no_radius_is_below_that_by_constants_over_all_inputs(effort: str) -> None:
    model, batch = made("chain")
    constants = [10**bracket.log10_upper for bracket in outputs(model, batch).values()]  # of (0, 1), (0, 2), (1, 2)
    logits = model(batch).detach().double()
    for left in (2, 40):
        with clocked(left):
            cut = ns.certified_radius(model, batch, effort=effort, attack=False, max_seconds=100.0)
        for radius, row in zip(cut.radius, logits, strict=True):
            top = int(row.argmax())
            others = [(float(row[top] - row[k]), constants[top + k - 1]) for k in range(3) if k != top]
            assert radius >= min(gap / constant for gap, constant in others) * (1 - 1e-4), left


@pytest.mark.parametrize(("seconds", "traced"), [(9.0, True), (11.0, False)])
def test_audits_have_bounds_where_a_trace_is_brief(
    seconds: float, traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_steps, "expected_seconds", lambda *_: seconds)
    assert (ns.audit(*made("chain"), max_seconds=1e-9).lipschitz is not None) is traced


class TestBudgets:
    @pytest.mark.parametrize(("limit", "longer"), [(0.1, 0.9), (8.0, 2.0), (3600.0, 10.0)])
    def test_closed_forms_end_a_share_of_the_limit_after_the_whole(
        self, limit: float, longer: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "LEAST_CLOSED_FORM_SECONDS", 1.0)
        with clocked():
            assert Budget(max_seconds=limit).share(0.5).closed_forms("norms").seconds == pytest.approx(limit + longer)

    def test_closed_forms_of_closed_forms_end_at_the_same_time(self) -> None:
        with clocked():
            for budget in (Budget(max_seconds=40.0), Budget(max_seconds=40.0).closed_forms("norms")):
                closed = budget.closed_forms("chains")
                assert closed.seconds == 40.0 + 10.0
                with closed.timing():
                    assert in_time(module.RATE * 49)
                    assert not closed.cut
                    assert not in_time(module.RATE * 51)
                    assert in_time(module.RATE * 51, "cuda")
                assert closed.cuts == ("chains was cut short by max_seconds",)
