"""Progress on the terminal: parts in their order, what remains, and nothing where nobody looks."""

from __future__ import annotations

import io
import sys

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core import progress
from normscope.core.progress import Parts, Progress, begin
from normscope.diagnosis.auditing import PARTS


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


def test_what_runs_inside_a_part_moves_its_bar_and_shows_none_of_its_own(bars):
    with Parts("auditing", ("data", "norms")) as parts, Progress("reading data", total=4) as inner:
        begin("data")
        inner.step("batch 1")
        assert parts.line() == "auditing: data (reading data batch 1); then norms"
        assert parts.done == 0.25
        for _ in range(9):
            inner.step()
        assert parts.done == 1.0
        begin("norms")
        assert (parts.line(), parts.done) == ("auditing: norms", 1.0)
    assert sum(bool(bar.told) for bar in bars) == 1


def test_without_parts_a_progress_shows_itself(bars):
    begin("data")
    with Progress("reading", total=2) as alone:
        alone.step("a")
    assert bars[0].told == [("reading a", 1, 2)]


def test_a_part_that_nobody_named_changes_nothing(bars):
    with Parts("auditing", ("data",)) as parts:
        begin("something else")
        assert parts.line() == "auditing: data"
    assert not bars[0].told


def test_parts_end_with_an_error(bars):
    with pytest.raises(ZeroDivisionError), Parts("auditing", ("data",)):
        raise ZeroDivisionError
    assert bars[0].stopped
    assert progress._parts.get() is None


def test_an_audit_runs_its_parts_in_order(bars):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).eval()
    with Parts("auditing", PARTS):
        ns.audit(model, torch.randn(8, 4), loader=[torch.randn(8, 4)], effort="thorough")
    begun = list(dict.fromkeys(text.split(":")[1].split(";")[0].split(" (")[0].strip() for text, _, _ in bars[0].told))
    assert begun == list(PARTS)
    done = [done for _, done, _ in bars[0].told]
    assert done == sorted(done)


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
