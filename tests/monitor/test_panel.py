"""The live panel: what it says, when it draws, and that it never gets in the way."""

import io
import sys
import types
from dataclasses import replace

import pytest
from rich.console import Console

from normscope.doctor.monitor.history import History
from normscope.doctor.monitor.panel import Panel, lines

from . import logs


@pytest.fixture
def history():
    """A run of three blocks after a few records."""
    made = History()
    made.begin(logs.layers(3))
    for step in range(0, 60, 10):
        made.keep(logs.record(step, 3))
    made.findings.extend(replace(logs.ALARM, step=step, where=f"blocks.{step}") for step in (1, 2, 3, 4))
    return made


def terminal(width=100):
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=40)


def drawings(console):
    return console.file.getvalue().count("╭")


def test_the_panel_says_where_the_run_stands(history):
    shown = [text for text, _ in lines(history, 0.0123)]
    assert shown[0] == "step 50   lr 0.1   overhead 1.2 %"
    assert any(line.startswith("loss ") and "▁" in line for line in shown)
    assert any(line.startswith("log10 folded") for line in shown)
    assert any(line.startswith("log10 largest norm") and line.endswith("blocks.2.conv") for line in shown)
    assert any(line.startswith("log10 least eff. lr") and line.endswith("blocks.2.conv") for line in shown)
    assert [line for line in shown if "collapse" in line][-1].startswith("step 4: effective-lr-collapse in `blocks.4`")
    assert shown[-1] == "and 1 earlier alarm"
    assert len(shown) <= 15


def test_it_is_drawn_a_few_times_a_second_at_most(history):
    console, now = terminal(), [0.0]
    panel = Panel(console, clock=lambda: now[0])
    for _ in range(10):
        panel.update(history, 0.01)
        now[0] += 0.05
    assert drawings(console) == 2
    panel.close()
    assert "step 50" in console.file.getvalue()


def test_a_slow_terminal_is_drawn_to_less_often(history):
    console, now = terminal(), [0.0]

    def clock():
        now[0] += 0.05  # every look at the clock: a drawing takes that long
        return now[0]

    panel = Panel(console, clock=clock)
    while now[0] < 8.0:
        panel.update(history, 0.01)
    assert drawings(console) == 2
    panel.close()


def test_the_terminal_is_given_back(history):
    stdout, stderr = sys.stdout, sys.stderr
    console = terminal()
    panel = Panel(console)
    panel.update(history, 0.01)
    panel.close()
    assert (sys.stdout, sys.stderr) == (stdout, stderr)
    written = console.file.getvalue()
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    panel.update(history, 0.01)
    panel.close()
    assert console.file.getvalue() == written


def test_a_cursor_is_not_left_hidden_while_the_panel_is_there(history):
    console = terminal()
    panel = Panel(console)
    panel.update(history, 0.01)
    written = console.file.getvalue()
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    panel.close()


def test_it_is_silent_where_standard_error_is_no_terminal(history, capfd):
    panel = Panel()
    panel.update(history, 0.01)
    panel.close()
    assert capfd.readouterr() == ("", "")


def test_it_is_silent_in_a_console_that_is_no_terminal(history):
    console = Console(file=io.StringIO())
    panel = Panel(console)
    panel.update(history, 0.01)
    panel.close()
    assert console.file.getvalue() == ""


def test_it_gives_way_to_a_progress_bar(history, monkeypatch):
    console, now = terminal(), [0.0]
    panel = Panel(console, clock=lambda: now[0])
    panel.update(history, 0.01)
    bars = types.SimpleNamespace(tqdm=types.SimpleNamespace(_instances={"a bar"}))
    monkeypatch.setitem(sys.modules, "tqdm", bars)
    before = drawings(console)
    for now[0] in (1.0, 2.0):
        panel.update(history, 0.01)
    assert drawings(console) <= before + 1  # what stops the panel leaves its last state
    panel.close()


def test_a_panel_that_fails_is_silent_from_then_on(history):
    console = terminal()
    history.records.append("no record")
    panel = Panel(console)
    panel.update(history, 0.01)
    panel.update(history, 0.01)
    panel.close()
    assert "╭" not in console.file.getvalue()


def test_a_name_cannot_act_on_the_terminal(history):
    history.findings.append(replace(logs.ALARM, where="a\x1b[2Jb"))
    console = terminal()
    panel = Panel(console)
    panel.update(history, 0.01)
    panel.close()
    assert "\x1b[2J" not in console.file.getvalue()


def test_a_run_of_which_nothing_is_known_has_a_panel_too():
    assert [text for text, _ in lines(History(), 0.0)] == ["nothing has been measured yet"]
