"""Saved results and logs that were blown up: reading is bounded, pages stay small and say what they leave out."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.choosing.ledger import RUNS, SETTINGS, Ledger
from normscope.core import files
from normscope.core.errors import InputError
from normscope.doctor.monitor.log import FILE, read_log
from normscope.doctor.monitor.run import Run
from normscope.doctor.pages.live import Followed

from ..monitor import logs


@pytest.fixture(scope="module")
def audited() -> dict:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).eval()
        return ns.audit(model, torch.randn(8, 4)).to_json()


def test_a_file_larger_than_any_result_is_not_parsed(work, run):
    with (work / "vast.json").open("wb") as file:
        file.truncate(65 << 20)  # a hole, which takes no room on the disk
    done = run("show", "vast.json")
    assert (done.code, done.out) == (2, "")
    assert "vast.json takes more than the 64 MiB that a result may take" in done.err
    assert run("compare", "vast.json", "vast.json").code == 2
    for read in (ns.Audit.from_json, ns.Check.from_json, ns.Radii.from_json):
        with pytest.raises(InputError, match="takes more than the 64 MiB"):
            read("vast.json")


LIMITED = """
    import mmap, resource
    from normscope.core.errors import InputError
    from normscope.core.files import read_json
    from normscope.doctor.monitor.log import read_log
    now = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (now + (300 << 20), -1))
    for read in (read_json, lambda path: list(read_log(path))):
        try:
            read("/dev/zero")
        except InputError as error:
            print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads an endless device")
def test_endless_files_are_refused_in_bounded_memory():
    command = [sys.executable, "-c", textwrap.dedent(LIMITED)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("takes more than") == 2


DEEP = b"[" * 70 + b"]" * 70
TOO_MUCH = {
    "values": (b"[" + b"," * 2_000_000 + b"]", r"holds 2,000,\d{3} values, more than the 2,000,000"),
    "text": (b'"' + b"a" * 100_001 + b'"', "holds a text of 100,001 letters, more than the 100,000"),
    "name": (b'{"' + b"a" * 100_001 + b'": 1}', "holds a text of 100,001 letters, more than the 100,000"),
    "depth": (DEEP, "is nested too deeply, more than 64 levels"),
}


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_every_reader_of_json_has_the_same_limits(kind, tmp_path, audited):
    value, words = TOO_MUCH[kind]
    (tmp_path / "a.json").write_bytes(json.dumps(audited).encode()[:-1] + b', "x": ' + value + b"}")
    (tmp_path / FILE).write_bytes(b'{"type": "other", "x": ' + value + b"}\n")
    for read in (
        lambda: ns.Audit.from_json(tmp_path / "a.json"),
        lambda: Run(tmp_path),
    ):
        with pytest.raises(InputError, match=words) as raised:
            read()
        assert len(str(raised.value)) < 600


def test_a_line_of_megabytes_is_refused(tmp_path, monkeypatch):
    logs.write(tmp_path, count=2, steps=30, findings=())
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 100_000)
    assert len(Run(tmp_path).records) == 3
    followed = Followed(tmp_path)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"type": "metrics", "step": 1, "metrics": {}, "x": "' + "a" * 100_000 + '"}\n')
    lines = len((tmp_path / FILE).read_bytes().splitlines())
    for read in (Run, lambda folder: list(read_log(folder))):
        with pytest.raises(InputError, match=rf"line {lines} of .* takes more than"):
            read(tmp_path)
    followed.refresh()
    assert "takes more than" in followed.broken
    assert len(followed.run.records) == 3


def test_a_log_of_gigabytes_says_what_to_do(tmp_path):
    logs.write(tmp_path, count=2, steps=30, findings=())
    with (tmp_path / FILE).open("ab") as file:
        file.truncate(3 << 30)  # a hole, which takes no room on the disk
    with pytest.raises(InputError, match=r"takes 3\.2 GB, more than the 1\.1 GB that are read: copy its first lines"):
        Run(tmp_path)


def test_a_log_of_too_many_lines_is_refused(tmp_path, monkeypatch):
    logs.write(tmp_path, count=2, steps=30, findings=())
    monkeypatch.setattr(files, "MAX_LOG_LINES", 1000)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"type":"x"}\n' * 1100)
    with pytest.raises(InputError, match=r"has more than the 1,000 lines that are read: copy its first lines"):
        Run(tmp_path)


def test_metrics_of_a_step_that_is_done_again_replace_later_ones(tmp_path):
    """They were drawn as a curve that goes back, which is an error."""
    logs.write(tmp_path, count=2, steps=30, findings=())
    with (tmp_path / FILE).open("a") as file:
        for step in (3, 7, 5, 9):
            file.write(f'{{"type":"metrics","step":{step},"metrics":{{"a":{step}}}}}\n')
    run = Run(tmp_path)
    assert [step for step, _ in run.metrics] == [3, 5, 9]
    assert "<svg" in run.to_html()


class Line:
    """A result of one number."""

    def __init__(self, key: int) -> None:
        self.key = key

    def to_json(self) -> dict:
        return {"key": self.key}

    @classmethod
    def from_json(cls, data: dict) -> Line:
        return cls(data["key"])


def test_the_ledger_of_a_sweep_reads_line_by_line(tmp_path, monkeypatch):
    ledger = Ledger(Line, tmp_path, {})
    for key in range(3):
        ledger.add(Line(key))
    whole = (tmp_path / RUNS).read_bytes()
    (tmp_path / RUNS).write_bytes(whole + b'{"key": 3')
    assert list(Ledger(Line, tmp_path, {}).done) == [0, 1, 2]
    assert (tmp_path / RUNS).read_bytes() == whole
    (tmp_path / RUNS).write_bytes(b"{}\n" + whole)
    with pytest.raises(InputError, match=r"line 1 of .* is damaged .*: remove it"):
        Ledger(Line, tmp_path, {})
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1000)
    (tmp_path / RUNS).write_bytes(whole + b'{"key": "' + b"a" * 1000 + b'"}\n')
    with pytest.raises(InputError, match=r"line 4 of .* takes more than"):
        Ledger(Line, tmp_path, {})
    assert (tmp_path / SETTINGS).exists()
