"""`max_seconds` ends searches and no closed forms: whenever the clock runs out, no bound is above `effort="fast"`.

The clock of these tests stands still, and has run out from some look at it on. No second is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds import lower
from normscope.bounds import outputs as outputs_module
from normscope.bounds.balls import ball_bracket
from normscope.bounds.domain import steep_points
from normscope.core import budget as module
from normscope.core.budget import Budget, OutOfTimeError, check_time, in_time
from normscope.generalize.constants import over_all_inputs

from .clocks import clocked, made, shorten

Upper = dict[str, ns.Bracket]
Call = Callable[..., Upper]


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of a few steps: what they find does not matter here."""
    shorten(monkeypatch)
    monkeypatch.setattr(lower, "ATTACK_STEPS", 3)
    monkeypatch.setattr(outputs_module, "ATTACK_STEPS", 3)
    monkeypatch.setattr(ball_bracket, "STEPS", 3)
    monkeypatch.setattr(steep_points, "STEPS", 3)


def one(model: nn.Module, batch: Tensor, **options: Any) -> Upper:
    return {"": ns.lipschitz(model, batch, **options)}


def balls(model: nn.Module, batch: Tensor, **options: Any) -> Upper:
    return _each(ns.lipschitz(model, batch, scope="ball", radius=0.1, **options).per_sample)


def outputs(model: nn.Module, batch: Tensor, **options: Any) -> Upper:
    return _each(ns.lipschitz(model, batch, per="difference", **options).per_output)


def inside(model: nn.Module, batch: Tensor, **options: Any) -> Upper:
    return one(model, batch, scope="domain", domain=ns.domain(model, [batch]), **options)


def ladder(model: nn.Module, batch: Tensor, **options: Any) -> Upper:
    return {name: rung for name, rung in ns.ladder(model, batch, **options).items() if name != "observed"}


def weights(model: nn.Module, batch: Tensor, *, effort: str = "fast", **options: Any) -> Upper:
    return _each(row.bracket_h for row in ns.weight_sensitivity(model, batch, **options))


def audit(model: nn.Module, batch: Tensor, *, effort: str = "fast", **options: Any) -> Upper:
    found = ns.audit(model, batch, effort={"tight": "thorough"}.get(effort, effort), **options)
    return {name: rung for name, rung in found.ladder.items() if name != "observed"}


def curve(model: nn.Module, batch: Tensor, **options: Any) -> Upper:
    found = ns.curve(model, [batch], samples=len(batch), margins=(0.0, 0.3), quantiles=(0.0,), **options)
    return {"everywhere": found.everywhere} | {f"{p.margin}": p.bracket for p in found.domains}


def _each(brackets: Any) -> Upper:
    return {str(index): bracket for index, bracket in enumerate(brackets)}


CASES: list[tuple[Call, str, str]] = [
    *((one, name, "tight") for name in ("chain", "convolution", "skip", "attention", "recurrent", "normalized")),
    *((one, name, "fast") for name in ("chain", "attention", "recurrent")),
    *((balls, name, effort) for name in ("chain", "convolution", "recurrent") for effort in ("fast", "tight")),
    *((outputs, name, effort) for name in ("chain", "skip") for effort in ("fast", "tight")),
    *((inside, name, "tight") for name in ("chain", "convolution", "attention", "recurrent")),
    *((ladder, name, "tight") for name in ("chain", "convolution", "skip", "attention", "recurrent")),
    *((weights, name, "fast") for name in ("chain", "convolution", "skip", "attention", "recurrent")),
    *((audit, name, "fast") for name in ("chain", "convolution", "skip", "attention", "recurrent")),
    (audit, "chain", "tight"),
    *((curve, name, "fast") for name in ("chain", "skip")),
]


def moments(looks: int, most: int | None) -> Iterator[int]:
    """Yield the looks at which a clock runs out: all of them, or the first few and some of the others."""
    yield from range(looks) if most is None else sorted({0, 1, 2, *range(3, looks, max(1, looks // most))})


def sweep(call: Call, name: str, effort: str, most: int | None) -> None:
    model, batch = made(name)
    fast = call(model, batch)
    whole = fast if effort == "fast" else call(model, batch, effort=effort)
    with clocked() as clock:
        call(model, batch, effort=effort, max_seconds=1e9)
    for left in moments(clock.looks, most):
        with clocked(left):
            cut = call(model, batch, effort=effort, max_seconds=100.0)
        assert cut.keys() >= fast.keys(), left
        for part, bracket in fast.items():
            assert cut[part].log10_upper <= bracket.log10_upper + 1e-12, (left, part, cut[part].method)
            assert cut[part].log10_upper >= whole[part].log10_upper - 1e-3, (left, part)
            assert cut[part].log10_lower <= cut[part].log10_upper, (left, part)
            assert cut[part].log10_upper >= whole[part].log10_lower, (left, part)
            same = [w for w in (bracket, whole[part]) if w.log10_upper == cut[part].log10_upper]
            assert not same or cut[part].evidence <= max(w.evidence for w in same), (left, part)
            assert cut[part].converged or cut[part].advice, (left, part)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("call", "name", "effort"), CASES)
def test_no_bound_is_above_the_closed_forms_whenever_the_clock_runs_out(call: Call, name: str, effort: str) -> None:
    sweep(call, name, effort, most=4)


@pytest.mark.slow
@pytest.mark.parametrize(("call", "name", "effort"), [case for case in CASES if case[0] in (one, ladder, weights)])
def test_no_bound_is_above_the_closed_forms_at_any_moment(call: Call, name: str, effort: str) -> None:
    sweep(call, name, effort, most=None)


@pytest.mark.parametrize("effort", ["fast", "tight"])
@pytest.mark.parametrize("name", ["chain", "convolution"])
def test_no_radius_is_below_that_by_constants_over_all_inputs(name: str, effort: str) -> None:
    model, batch = made(name)
    differences = outputs(model, batch)
    logits = model(batch).double()
    with torch.no_grad():
        classes = logits.shape[1]
        place = {(i, j): k for k, (i, j) in enumerate((i, j) for i in range(classes) for j in range(i + 1, classes))}
        expected = [
            min(
                float(row[top] - row[other])
                / 10 ** differences[str(place[min(top, other), max(top, other)])].log10_upper
                for other in range(classes)
                if other != top
            )
            for row in logits
            for top in [int(row.argmax())]
        ]
    with clocked() as clock:
        ns.certified_radius(model, batch, effort=effort, attack=False, max_seconds=1e9)
    for left in moments(clock.looks, 6):
        with clocked(left):
            cut = ns.certified_radius(model, batch, effort=effort, attack=False, max_seconds=100.0)
        for radius, closed in zip(cut.radius, expected, strict=True):
            assert radius >= closed * (1 - 1e-4), left


@pytest.mark.parametrize("name", ["chain", "skip", "recurrent"])
def test_generalization_has_the_constant_of_the_closed_forms(name: str) -> None:
    model, batch = made(name)
    fast = over_all_inputs(model, batch, None, None)
    for left in range(6):
        with clocked(left):
            cut = over_all_inputs(model, batch, None, 100.0)
        assert cut.log10_global <= fast.log10_global + 1e-12
        assert cut.log10_product <= fast.log10_product + 1e-12


class TestBudgets:
    def test_closed_forms_are_not_left(self) -> None:
        late = Budget(max_seconds=0.0)
        closed = late.closed_forms("closed forms")
        assert closed.attempt(lambda: check_time(1e9) or "done", lambda: "cut") == "done"
        assert late.attempt(lambda: check_time(1e9) or "done", lambda: "cut") == "cut"
        assert not closed.cut

    def test_all_closed_forms_of_a_call_have_their_multiplications_in_common(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "CLOSED_FORM_WORK", 100.0)
        late = Budget(max_seconds=0.0)
        first, second = late.closed_forms("norms"), late.share(0.5).closed_forms("chains")
        with first.timing():
            assert in_time(60.0)
        with second.timing():
            assert not in_time(60.0)
            assert in_time(40.0)
            assert not in_time()
        assert (first.cut, second.cuts) == (False, ("chains was cut short by max_seconds",))
        assert Budget(max_seconds=0.0).closed_forms("norms").free(100.0)

    def test_what_takes_too_long_is_cut_in_its_midst_and_others_are_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "CLOSED_FORM_WORK", 100.0)
        with clocked(4):
            closed = Budget(max_seconds=1.0).closed_forms("norms")
            large, small = closed.share(1.0), closed.share(1.0)

            def work() -> str:
                check_time(1000.0)  # more than is free: begun in time, and then
                for _ in range(10):
                    check_time()
                return "all"

            assert large.attempt(work, lambda: "cut") == "cut"
            assert small.attempt(lambda: check_time(50.0) or "done", lambda: "cut") == "done"

    def test_on_a_gpu_more_is_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "CLOSED_FORM_WORK", 100.0)
        for device, multiplications, free in (("cpu", 101.0, False), ("cuda", 101.0, True), ("cuda", 1e4, False)):
            with Budget(max_seconds=0.0).closed_forms("norms").timing():
                assert in_time(multiplications, device) is free

    def test_searches_are_left(self) -> None:
        with pytest.raises(OutOfTimeError):
            Budget(max_seconds=0.0).attempt(check_time, _raise)


def _raise() -> None:
    raise OutOfTimeError
