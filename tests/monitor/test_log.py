"""The log outlives what happens to runs: kills, full disks, damage."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.core.errors import InputError
from normscope.doctor.monitor.log import FILE, MENDED_BLOCK_BYTES, LogWriter, read_log
from normscope.doctor.monitor.record import Record
from normscope.doctor.monitor.watching import watch

from .training import losses, network, sgd, take_step, tiny_network, told

ROOT = Path(__file__).parents[2]
ENDLESS = """
import sys
import torch
from torch.nn import functional as F
from normscope.doctor.monitor.watching import watch
from tests.monitor.training import batches, network

model = network("mlp")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with watch(model, optimizer, every=1, log=sys.argv[1]) as run:
    for x, y in batches("mlp", 100000):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        print(run.step, flush=True)
"""


def killed_while_training(folder: Path, after: float) -> tuple[int, int]:
    """Train in a process of its own, kill it some seconds after its first step; return the first and last step done."""
    command = [sys.executable, "-c", ENDLESS, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            time.sleep(after)
        finally:
            process.kill()
        steps = [int(line) for line in (first + process.stdout.read()).splitlines(keepends=True) if line.endswith("\n")]
    return steps[0], steps[-1]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_kills_cost_at_most_one_record_each_and_the_log_goes_on(tmp_path: Path, kills: int) -> None:
    rng = random.Random(7)
    turns = [killed_while_training(tmp_path, rng.uniform(0.0, 0.25)) for _ in range(kills)]
    lines = list(read_log(tmp_path))  # every whole line parses
    begun = [index for index, line in enumerate(lines) if line["type"] == "run"]
    assert len(begun) == kills
    expected = 0
    for start, stop, (first, last) in zip(begun, [*begun[1:], len(lines)], turns):
        steps = [line["step"] for line in lines[start:stop] if line["type"] == "step"]
        assert first == expected + 1
        assert lines[start]["step"] == expected
        assert steps == list(range(expected, expected + len(steps)))
        assert steps[-1] + 1 >= last - 1  # `last` counts steps that were done: at most one of them is not there
        expected = steps[-1] + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, _, run = losses("mlp", 2, watched=lambda m, o: watch(m, o, every=1, log=tmp_path))
    assert run.step == expected + 2
    assert list(read_log(tmp_path))[-1]["how"] == "finished"


def written(folder: Path, count: int = 3) -> Path:
    writer = LogWriter(folder)
    for index in range(count):
        writer.write("step", Record(step=index, seconds=0.0, tier="economy").to_json())
    writer.close()
    return folder / FILE


def test_a_truncated_last_line_is_left_out_and_mended(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[-1]) + 1):
        path.write_bytes(whole[:-cut])
        assert [line["step"] for line in read_log(tmp_path)] == [0, 1]
    writer = LogWriter(tmp_path)
    assert writer.resumed
    writer.write("step", Record(step=2, seconds=0.0, tier="economy").to_json())
    writer.close()
    assert path.read_bytes() == whole


def test_only_the_tail_is_read_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    with path.open("ab") as file:
        for _ in range(40):
            file.write(json.dumps({"type": "step", "pad": "x" * MENDED_BLOCK_BYTES}).encode() + b"\n")
        end = file.tell()
        file.write(b'{"type":"step","half":"' + b"y" * (3 * MENDED_BLOCK_BYTES))  # longer than what is read at a time
    read, sizes = os.read, []
    monkeypatch.setattr(os, "read", lambda handle, size: sizes.append(size) or read(handle, size))
    writer = LogWriter(tmp_path)
    writer.close()
    assert path.stat().st_size == end
    assert 0 < sum(sizes) <= 5 * MENDED_BLOCK_BYTES
    path.write_bytes(b'{"type"')
    writer = LogWriter(tmp_path)
    writer.close()
    assert not writer.resumed
    assert path.stat().st_size == 0


@pytest.mark.parametrize("damage", [b'{"type":"st\n', b"\x00\x00\x00\n", b"[1]\n", b'{"step":1}\n', b"\xff\xfe\n"])
def test_a_damaged_line_is_an_error_that_names_it(damage: bytes, tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + damage + lines[2])
    with pytest.raises(InputError, match="line 2"):
        list(read_log(tmp_path))
    model = network("mlp")
    with pytest.raises(InputError, match="line 2"), watch(model, sgd(model), log=tmp_path):
        pass


def test_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text('{"type":"run","schema_version":99}\n{"half')
    before = path.read_bytes()
    with pytest.raises(InputError, match="schema_version 99"):
        list(read_log(tmp_path))
    with pytest.raises(InputError, match="schema_version 99"):
        LogWriter(tmp_path)
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        LogWriter(tmp_path / "file")
    (tmp_path / "taken" / FILE).mkdir(parents=True)
    model = network("mlp")
    with pytest.raises(InputError, match="cannot write"), watch(model, sgd(model), log=tmp_path / "taken"):
        pass
    with pytest.raises(InputError, match="cannot read"):
        list(read_log(tmp_path / "nothing"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="Permission"):
        LogWriter(tmp_path / "run")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("half", [False, True])
def test_a_full_disk_warns_once_and_training_goes_on(
    half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the system does it: an error, or a write that is cut short."""
    alone, _, _ = losses("mlp", 8)
    write, calls = os.write, 0

    def full(handle: int, raw: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls <= 4:
            return write(handle, raw)
        if half:
            return write(handle, raw[: len(raw) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    seen: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watched, _, run = losses(
            "mlp", 8, watched=lambda m, o: watch(m, o, every=1, log=tmp_path, sinks=[lambda r, f: seen.append(r)])
        )
    monkeypatch.undo()
    assert watched == alone
    assert len(run.records) == len(seen) == 8
    assert ["No space left" in str(item.message) for item in caught if "normscope" in str(item.message)] == [True]
    assert (tmp_path / FILE).read_bytes().endswith(b"\n")
    assert [line["type"] for line in read_log(tmp_path) if line["type"] != "finding"][:2] == ["run", "step"]
    assert len(list(read_log(tmp_path))) == 4


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    model = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, log=tmp_path), pytest.raises(InputError, match="another run is writing to"):
        watch(model, optimizer, log=tmp_path / ".." / tmp_path.name).__enter__()
    with watch(model, optimizer, log=tmp_path):
        pass
    lines = [line["type"] for line in read_log(tmp_path)]
    assert lines == ["end", "end"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_nor_can_two_processes_and_a_fork_writes_nothing(tmp_path: Path) -> None:
    written(tmp_path)
    code = f"""
import os, sys
from normscope.doctor.monitor.history import History
from normscope.doctor.monitor.log import LogWriter
writer = LogWriter({str(tmp_path)!r})
History().resume({str(tmp_path)!r})
ended, end = os.pipe()
if os.fork() == 0:
    os.close(end)
    writer.write("step", {{"of": "the child"}})
    print("open", flush=True)
    os.read(ended, 1)  # until the other process is gone
    os._exit(0)
sys.stdin.readline()
writer.close()
print("closed", flush=True)
sys.stdin.readline()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(InputError, match="another run is writing to"):
            LogWriter(tmp_path)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "closed\n"
        LogWriter(tmp_path).close()  # the child does not hold it
        process.stdin.close()
    assert len(list(read_log(tmp_path))) == 3


def test_a_learning_rate_that_is_no_number_is_read_back(tmp_path: Path) -> None:
    record = Record(step=0, seconds=0.0, tier="economy", lr=(math.nan, 0.1, math.inf))
    assert Record.from_json(json.loads(record.text())).lr == pytest.approx(record.lr, nan_ok=True)


def test_a_line_of_endless_brackets_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"type":"step","a":' + b"[" * 200_000 + b"\n")
    with pytest.raises(InputError, match="is nested too deeply"):
        list(read_log(tmp_path))


def test_a_file_that_is_no_log_is_refused_but_one_cut_short_is_empty(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="is no log"):
        list(read_log(tmp_path / "notes.txt"))
    for kept in ("", "{", '{"type": "ru'):
        (tmp_path / FILE).write_text(kept)
        assert list(read_log(tmp_path)) == []


@pytest.mark.parametrize("log", ["", b""])
def test_an_empty_path_is_refused(log: Any) -> None:
    model = tiny_network()
    with pytest.raises(InputError, match="log is"):
        watch(model, sgd(model), log=log)


def test_a_log_that_is_deleted_midway_is_told_once(tmp_path: Path) -> None:
    model = tiny_network()
    optimizer = sgd(model)
    with warnings.catch_warnings(record=True) as caught, watch(model, optimizer, every=1, log=tmp_path / "a") as run:
        for index in range(5):
            if index == 2:
                shutil.rmtree(tmp_path / "a")
            take_step(model, optimizer)
    [said] = told(caught)
    assert "the log cannot be written to and ends here" in said
    assert "deleted" in said
    assert len(run.records) == 5
