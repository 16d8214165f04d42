"""What every test of watching shares."""

import warnings
from collections.abc import Iterator

import pytest

from normscope.doctor.monitor.watching import watch


@pytest.fixture(autouse=True)
def _same_numbers(seeded: None) -> None:
    """Each test draws the same numbers, whatever ran before it."""


@pytest.fixture(autouse=True)
def _no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few milliseconds have no time to share out: every layer is measured at every step that is due."""
    monkeypatch.setitem(watch.__kwdefaults__, "overhead", None)


@pytest.fixture(autouse=True)
def _nothing_compiled_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that other tests have compiled stay in the process: models would be run aside because of them."""
    monkeypatch.setattr("normscope.doctor.monitor.forward_listening.compiled_functions", lambda: False)


@pytest.fixture(autouse=True)
def _no_complaints() -> Iterator[None]:
    """A watcher that leaves something out says so and goes on; where a test does not expect it, it fails."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [str(item.message) for item in caught if str(item.message).startswith("normscope: ")] == []
