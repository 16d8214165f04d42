"""Planted faults are named first, at the right layer; healthy models get no warning."""

from collections.abc import Iterable
from typing import Any

import pytest

import normscope as ns
from normscope.core.finding import Severity

from .healthy import HEALTHY, Case
from .planted import PLANTED

SEEDS = range(1, 6)


def findings(case: Case) -> tuple[ns.Finding, ...]:
    audit = ns.audit(
        case.model, case.batch, loader=case.loader, mode=case.mode, output=case.output, max_seconds=5, rtol=0.1
    )
    return audit.findings


def assert_named_first(case: Case) -> None:
    first = findings(case)[0]
    assert (first.code, first.where) == (case.code, case.where)
    assert first.severity >= Severity.WARNING
    assert all((first.seen, first.why, first.advice))


def assert_no_warning(case: Case) -> None:
    serious = [finding for finding in findings(case) if finding.severity is not Severity.INFO]
    assert not serious, "\n".join(map(str, serious))


@pytest.mark.slow
def test_there_are_twelve_of_each() -> None:
    assert len(PLANTED) >= 12
    assert len(HEALTHY) >= 12
    assert len({build(0).code for build in PLANTED.values()}) >= 12


def one_in(count: int, names: Iterable[str]) -> list[Any]:
    """Some of them; the others are slow."""
    return [pytest.param(name, marks=pytest.mark.slow if index % count else []) for index, name in enumerate(names)]


@pytest.mark.slow
@pytest.mark.one_in(1000)
@pytest.mark.parametrize("name", one_in(3, PLANTED))
def test_planted_fault_is_the_first_finding(name: str) -> None:
    assert_named_first(PLANTED[name](0))


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", one_in(6, HEALTHY))
def test_healthy_model_gets_no_warning(name: str) -> None:
    assert_no_warning(HEALTHY[name](0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_the_first_finding_for_every_seed(name: str, seed: int) -> None:
    assert_named_first(PLANTED[name](seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_model_gets_no_warning_for_any_seed(name: str, seed: int) -> None:
    assert_no_warning(HEALTHY[name](seed))
