"""A reader that leaves: `normscope audit ... | head` writes every file, says nothing, and keeps its exit code."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import normscope as ns
from normscope.auditing.audit_result import Audit
from normscope.cli import messages

AUDIT = (
    "audit",
    "net.py:model",
    "--data",
    "net.py:loader",
    "--html",
    "r.html",
    "--json",
    "a.json",
)
BROKEN = ("audit", "net.py:broken", "--data", "net.py:loader", "--json", "b.json", "--fail-on", "error")


@contextmanager
def closed_pipe() -> Iterator[int]:
    """The end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@pytest.mark.slow
def test_a_process_whose_reader_left_keeps_its_files_and_its_exit_code(work):
    """Standard output and standard error both go to nobody, to the last flush of the interpreter."""
    environment = os.environ | {"PYTHONPATH": str(Path(ns.__file__).parents[1])}
    command = [sys.executable, "-m", "normscope", *map(str, BROKEN)]
    with closed_pipe() as writer:
        assert subprocess.run(command, stdout=writer, stderr=writer, cwd=work, env=environment).returncode == 1
    assert Audit.from_json(work / "b.json").findings
    with closed_pipe() as writer:
        done = subprocess.run(
            [*command[:3], "bound", "ops"], stdout=writer, stderr=subprocess.PIPE, cwd=work, env=environment
        )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.fixture
def into_nobody(run, monkeypatch):
    """Run the command in this process with its standard output going to nobody."""

    def invoke(*arguments):
        with closed_pipe() as writer, open(os.dup(writer), "w") as stream:
            monkeypatch.setattr(sys, "stdout", stream)
            done = run(*arguments)
            assert sys.stdout is stream
        monkeypatch.undo()
        return done.code, done.err

    return invoke


def test_an_audit_writes_its_files_and_ends_quietly(work, into_nobody, monkeypatch):
    assert into_nobody(*AUDIT) == (0, "")
    monkeypatch.chdir(work)
    assert Audit.from_json(work / "a.json").batches == 2
    assert (work / "r.html").stat().st_size > 1000


def test_the_files_are_there_before_anything_is_printed(work, run, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "normscope.report.terminal.print_document", lambda _: seen.append(sorted(p.name for p in work.glob("*.*")))
    )
    assert run(*AUDIT).code == 0
    assert {"a.json", "r.html"} <= set(seen[0])


def test_the_streams_are_as_they_were(capfd):
    before = sys.stdout, sys.stderr
    with suppress(ZeroDivisionError), messages.readers_may_leave():
        assert sys.stdout is not before[0]
        print("said")
        raise ZeroDivisionError
    assert (sys.stdout, sys.stderr) == before
    assert capfd.readouterr().out == "said\n"
