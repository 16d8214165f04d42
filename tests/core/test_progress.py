"""Progress on the terminal: parts in their order, what remains, and nothing where nobody looks."""

from __future__ import annotations

import io
import sys

import pytest

from normscope.core import budget as progress
from normscope.core.budget import Parts, Progress, begin


class Shown:
    """A bar that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float, float | None]] = []
        self.stopped = False

    def show(self, text: str, done: float, total: float | None) -> None:
        self.told.append((text, done, total))

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def bars(monkeypatch) -> list[Shown]:
    """Every bar that is made."""
    made: list[Shown] = []

    def make() -> Shown:
        made.append(Shown())
        return made[-1]

    monkeypatch.setattr(progress, "_Line", make)
    return made


def test_the_bar_names_the_part_and_what_remains(bars):
    with Parts("auditing", ("capture", "data", "bounds")):
        begin("capture")
        begin("data")
        begin("bounds")
    assert [text for text, _, _ in bars[0].told] == [
        "auditing: capture; then data, bounds",
        "auditing: data; then bounds",
        "auditing: bounds",
    ]
    assert [done for _, done, _ in bars[0].told] == [0, 1, 2]
    assert bars[0].stopped


def test_the_bar_never_goes_back(bars):
    with Parts("auditing", ("data", "bounds")):
        begin("data")
        with Progress("reading", total=2) as reading:
            reading.step()
            reading.step()
        with Progress("bounding") as bounding:  # a second search in the same part, of unknown length
            bounding.step()
        begin("bounds")
        with Progress("bounding", total=4) as bounding:
            bounding.step()
        with Progress("measuring", total=8) as measuring:
            measuring.step()
        begin("data")
    assert [done for _, done, _ in bars[0].told] == [0.0, 0.25, 0.5, 0.5, 1.0, 1.125, 1.1796875, 1.1796875]


def test_parts_end_with_an_error(bars):
    with pytest.raises(ZeroDivisionError), Parts("auditing", ("data",)):
        raise ZeroDivisionError
    assert bars[0].stopped
    assert progress._parts.get() is None


@pytest.mark.parametrize("terminal", [True, False])
def test_only_a_terminal_is_written_to_and_only_after_a_while(monkeypatch, terminal):
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    stream = Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    with Parts("auditing", ("data", "norms")):
        begin("data")
    assert stream.getvalue() == ""
    monkeypatch.setattr(progress, "DELAY", -1.0)
    with Parts("auditing", ("data", "norms")):
        begin("data")
    assert bool(stream.getvalue()) == terminal
