"""`max_seconds` bounds the whole call: whenever the clock runs out, nothing that is counted is begun any more.

The clock of these tests stands still, and has run out from some look at it on. No second is measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import normscope as ns
from normscope.auditing import audit_steps
from normscope.bounds import traced_network
from normscope.bounds.certificate import ClosedForm
from normscope.bounds.graph import capturing
from normscope.bounds.graph.capturing import trace_model
from normscope.bounds.linalg import operator_norms
from normscope.bounds.linalg.convolution_map import Convolution
from normscope.bounds.linalg.dense_form import write_out
from normscope.bounds.linalg.folding import add, compose
from normscope.bounds.linalg.linear_map import Composite, Identity, LinearMap, Matrix, Sum
from normscope.core import budget as cost
from normscope.core import budget as module
from normscope.core.budget import Budget, OutOfTimeError, check_time, in_time
from normscope.core.errors import CaptureError

from .clocks import MODELS, Clock, clocked, made, shorten


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short searches, and nothing that is done whatever the clock says: as if the networks were large."""
    shorten(monkeypatch)
    monkeypatch.setattr(module, "MOST_CLOSED_FORM_SECONDS", 0.0)
    monkeypatch.setattr(module, "LEAST_CLOSED_FORM_SECONDS", 0.0)
    monkeypatch.setattr(traced_network, "TINY_PASS", 0.0)
    monkeypatch.setattr(audit_steps, "BRIEF_TRACE", -1.0)


@contextmanager
def counted_late(clock: Clock) -> Iterator[Counter[tuple[str, str]]]:
    """Count what is begun after the clock has run out, by part and kind."""
    late: Counter[tuple[str, str]] = Counter()
    real = cost.Meter.add

    def add(self: cost.Meter, kind: str, amount: int) -> None:
        if clock.late:
            late[self._part, kind] += amount
        real(self, kind, amount)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost.Meter, "add", add)
        yield late


ALLOWED = {("data", "passes"), ("radii", "passes"), ("signal", "passes"), ("signal", "backwards"), ("bounds", "passes")}
"""The first batch is always read, classes of samples are always taken, and what takes a moment is measured by depth. At
both ends of a pair that was found in time, model and graph are always compared: without it no lower side holds."""

SWEEPS = [
    *((name, "eval", effort) for name in MODELS for effort in ("fast", "thorough")),
    ("skip", "train", "fast"),
    ("skip", "train", "thorough"),
    ("normalized", "train", "thorough"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode", "effort"), SWEEPS)
def test_whenever_the_clock_runs_out_an_audit_ends_and_holds(name: str, mode: str, effort: str) -> None:
    model, batch = made(name, mode)
    audit_steps.trace_model(model, batch, budget=None)  # kept: its passes are those of no audit
    whole = ns.audit(model, batch, effort=effort)
    with clocked() as clock:
        again = ns.audit(model, batch, effort=effort, max_seconds=1e9)
    assert again.to_json() == whole.to_json()  # time enough changes nothing
    looks, cut = clock.looks, 0
    for left in range(3, looks, -(-looks // 8)):
        with clocked(left) as clock, counted_late(clock) as late:
            audit = ns.audit(model, batch, effort=effort, max_seconds=100.0)
        assert set(late) <= ALLOWED, left
        assert late["bounds", "passes"] <= 2 * 2, left
        assert sum(late.values()) <= 4 * len(batch)
        cut += any("cut short" in note for note in audit.notes)
        holds(audit, whole)
    assert cut > 4


def holds(audit: ns.Audit, whole: ns.Audit) -> None:
    """Upper sides of an audit that was cut are not below those of the whole one; lower sides are not above."""
    assert [row.path for row in audit.layers] == [row.path for row in whole.layers] or audit.lipschitz is None
    for rung, bracket in audit.ladder.items():
        if rung in whole.ladder and rung != "observed":
            assert bracket.log10_upper >= whole.ladder[rung].log10_upper - 1e-2, rung
    if audit.lipschitz is not None and whole.lipschitz is not None:
        assert audit.lipschitz.log10_upper >= whole.lipschitz.log10_lower
        assert audit.lipschitz.log10_lower <= whole.lipschitz.log10_upper
    norm = {(row.path, row.input_shape): row.norm for row in whole.layers}
    for row in audit.layers:
        exact = norm.get((row.path, row.input_shape))
        if row.norm is not None and exact is not None:
            assert row.norm.log10_upper >= exact.log10_lower
            assert row.norm.log10_lower <= exact.log10_upper


CALLS: dict[str, Callable[..., Any]] = {
    "lipschitz": ns.lipschitz,
    "tight": lambda *given, **more: ns.lipschitz(*given, effort="tight", **more),
    "ladder": lambda *given, **more: ns.ladder(*given, **more)["best"],
    "ball": lambda *given, **more: ns.lipschitz(*given, scope="ball", radius=0.1, **more),
    "outputs": lambda *given, **more: ns.lipschitz(*given, per="output", **more),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "name"),
    [("lipschitz", "skip"), ("tight", "chain"), ("ladder", "normalized"), ("ball", "chain"), ("outputs", "chain")],
)
def test_whenever_the_clock_runs_out_a_bracket_holds(call: str, name: str) -> None:
    model, batch = made(name)
    whole = CALLS[call](model, batch)
    with clocked() as clock:
        CALLS[call](model, batch, max_seconds=1e9)
    for left in range(2, clock.looks, -(-clock.looks // 4)):
        with clocked(left):
            cut = CALLS[call](model, batch, max_seconds=100.0)
        assert cut.log10_upper >= whole.log10_upper - 1e-3
        assert cut.log10_upper >= whole.log10_lower
        assert cut.log10_lower <= whole.log10_upper
        said = [part for part in (cut, *(cut.per_output or ())) if not part.converged]
        assert said
        assert all(part.advice.endswith("raise max_seconds") for part in said)
        for part, other in zip(cut.per_output or (), whole.per_output or (), strict=True):
            assert part.log10_upper >= other.log10_lower


class TestAttempts:
    def test_work_is_left_where_the_clock_has_run_out(self) -> None:
        done: list[int] = []

        def search() -> str:
            for step in range(10):
                check_time()
                done.append(step)
            return "all"

        assert Budget().attempt(search, lambda: "some") == "all"
        with clocked(5):
            assert Budget(max_seconds=1.0).attempt(search, lambda: "some") == "some"
        assert 10 < len(done) < 20

    def test_a_part_ends_before_the_whole(self) -> None:
        whole = Budget(max_seconds=1e9)
        inner = Budget(max_seconds=0.0)

        def work() -> str:
            found = inner.attempt(lambda: check_time() or "inner", lambda: "no inner")
            check_time()  # the clock of the whole has not run out
            return f"{found}, outer"

        assert whole.attempt(work, lambda: "no outer") == "no inner, outer"

    def test_work_is_never_left_outside_of_an_attempt(self) -> None:
        late = Budget(max_seconds=0.0)
        with late.timing():
            check_time()
            assert not in_time()
        assert in_time()

    def test_it_passes_for_no_error_of_a_model(self) -> None:
        def swallows() -> str:
            try:
                check_time()
            except Exception:
                return "swallowed"
            return "work"

        assert Budget(max_seconds=0.0).attempt(swallows, lambda: "left") == "left"
        assert not issubclass(OutOfTimeError, Exception)


def drawn(*shape: int) -> Tensor:
    """Return a random tensor, the same one every time."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


class TestMaps:
    @pytest.mark.parametrize(
        "build",
        [
            lambda: Matrix(drawn(40, 30)),
            lambda: Convolution(drawn(4, 3, 3, 3), (6, 6), padding=1),
            lambda: Composite([Matrix(drawn(9, 7)), Matrix(drawn(8, 9))]),
            lambda: Sum([Matrix(drawn(7, 7)), Identity((7,))]),
            lambda: Matrix(drawn(5, 4), (3, 4)),
        ],
    )
    def test_wherever_a_norm_is_left_its_bound_holds(self, build: Callable[[], LinearMap]) -> None:
        exact = operator_norms.bracket(build())
        with clocked() as clock:
            operator_norms.bracket(build(), budget=Budget(max_seconds=1.0))
        for left in range(1, clock.looks):
            with clocked(left):
                linear = build()
                cut = operator_norms.bracket(linear, budget=Budget(max_seconds=1.0, what=operator_norms.BOUNDING))
            assert cut.log10_upper >= exact.log10_lower - 1e-12
            assert cut.log10_lower <= exact.log10_upper + 1e-12
            assert not operator_norms.remembered(linear, 1e-3) or cut.gap <= 1e-3

    def test_a_norm_that_would_take_too_long_is_not_begun(self, monkeypatch: pytest.MonkeyPatch) -> None:
        linear = Matrix(drawn(60, 60))
        monkeypatch.setattr(module, "RATE", 1.0)
        meter = cost.Meter(Budget())
        with clocked(), meter.part("norms"):
            budget = Budget(max_seconds=1.0)
            cheap = operator_norms.upper(linear, budget=budget)
        assert (cheap.method, budget.cut) == ("row and column sums", True)
        assert meter.cost().products == {}
        assert cheap.log10 >= operator_norms.upper(linear).log10

    def test_what_stands_in_for_a_norm_is_taken_once(self) -> None:
        linear = Composite([Matrix(drawn(5, 4)), Matrix(drawn(6, 5))])
        with pytest.MonkeyPatch.context() as patch:
            taken: list[LinearMap] = []
            real = operator_norms._bound
            patch.setattr(
                operator_norms, "_bound", lambda linear, *args: (taken.append(linear), real(linear, *args))[1]
            )
            first, again = (operator_norms.upper(linear, budget=Budget(max_seconds=0.0)) for _ in range(2))
        assert first == again
        assert len(taken) == 3  # the product and its two parts
        assert operator_norms.upper(linear).log10 < first.log10  # and it is no bound that is kept where there is time

    def test_tiny_networks_are_bounded_tightly_whatever_the_clock_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "LEAST_CLOSED_FORM_SECONDS", 10.0)
        monkeypatch.setattr(traced_network, "TINY_PASS", 1e5)
        model, batch = made("chain")
        whole, cut = ns.ladder(model, batch), ns.ladder(model, batch, max_seconds=0.0)
        assert cut["product"].log10_upper == whole["product"].log10_upper
        assert whole["best"].log10_lower - 0.3 < cut["best"].log10_lower <= whole["best"].log10_upper

    def test_maps_are_left_apart_where_no_time_is_left_to_fold_them(self) -> None:
        second, first = Matrix(drawn(3, 4)), Matrix(drawn(4, 5))
        with Budget(max_seconds=0.0).timing():
            apart, sums = compose(second, first), add(first, Matrix(drawn(4, 5)))
        assert isinstance(apart, Composite)
        assert isinstance(sums, Sum)
        x = drawn(2, 5)
        assert torch.allclose(apart.apply(x), compose(second, first).apply(x))
        assert torch.allclose(sums.apply(x), add(first, Matrix(drawn(4, 5))).apply(x))

    def test_writing_out_and_eigenvalues_are_left(self) -> None:
        late = Budget(max_seconds=0.0)
        assert late.attempt(lambda: write_out(Matrix(drawn(3, 4))), lambda: None) is None
        assert late.attempt(lambda: ClosedForm().after(drawn(3, 4)), lambda: math.inf) == math.inf


class TestTraces:
    def test_a_trace_that_does_not_fit_is_not_begun(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit_steps, "expected_seconds", lambda *_: 8.0)
        begun: list[Any] = []
        monkeypatch.setattr(audit_steps, "trace_model", lambda *given, **_: begun.append(given))
        model, batch = made("chain")
        with clocked():
            audit = ns.audit(model, batch, max_seconds=10.0)  # three quarters of ten seconds are not enough
        assert not begun
        assert (capturing.NO_TIME in dict(audit.skipped).values(), audit.lipschitz) == (True, None)
        assert [row.path for row in audit.layers] == ["0", "2", "4"]
        assert all(row.norm is not None for row in audit.layers)
        assert audit.signal is not None

    def test_the_second_trace_is_not_begun_where_the_first_took_too_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kinds: list[bool] = []
        real = capturing._read

        def traced(*given: Any) -> Any:
            kinds.append(given[-1])
            module.time.left = 0  # it takes very long
            return real(*given)

        monkeypatch.setattr(capturing, "_read", traced)
        model, batch = made("chain")
        with clocked(), pytest.raises(CaptureError, match="max_seconds leaves no time to trace"):
            trace_model(model, batch, budget=Budget(max_seconds=10.0))
        assert kinds == [True]
