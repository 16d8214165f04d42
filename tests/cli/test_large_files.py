"""Saved results and logs that were blown up: reading is bounded, pages stay small and say what they leave out."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core import files
from normscope.core.errors import InputError
from normscope.core.files import bounded_lines, read_json
from normscope.diagnosis.audit_result import Audit
from normscope.jobs.ledger import RUNS, SETTINGS, Ledger
from normscope.monitor.log import FILE, LogWriter, read_log
from normscope.monitor.run import Run
from normscope.pages.audit_comparison import compare_document
from normscope.pages.live import Followed, live_data
from normscope.report.html import to_html
from normscope.report.limits import MAX_CURVES, MAX_ROWS

from ..monitor import logs


@pytest.fixture(scope="module")
def audited() -> dict:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).eval()
        return ns.audit(model, torch.randn(8, 4)).to_json()


def repeated(audited: dict, times: int) -> dict:
    """Return an audit with its layers, its signal and its findings many times, each under a name of its own."""
    data = copy.deepcopy(audited)
    for rows in (data["layers"], data["signal"]["rows"]):
        rows[:] = [{**row, "path": f"{row['path']}.{i}"} for i in range(times) for row in rows]
    finding = {"code": "dead-layer", "severity": "warning", "where": "0", "seen": "s", "why": "w", "advice": "a"}
    data["findings"] = [{**finding, "numbers": {}, "where": f"l{i}", "seen": f"`l{i}` {i}"} for i in range(times)]
    data["notes"] = [f"note {i}" for i in range(times)]
    data["skipped"] = [[f"figure {i}", "no time"] for i in range(times)]
    return data


def test_a_page_of_many_layers_stays_small(audited):
    audit = Audit.from_json(repeated(audited, 1000))
    page, count = audit.to_html(), len(audit.layers)
    assert count >= 3000
    assert f"Only the first {MAX_ROWS:,} of {count:,} rows are shown here" in page
    assert len(page) < 5_000_000
    assert f"Only the first {MAX_ROWS:,} of {count:,} rows" in " ".join(str(audit).split())
    assert len(str(audit)) < 1_000_000
    assert len(audit.to_json()["layers"]) == count  # what is not shown is not lost


def test_a_comparison_of_many_layers_stays_small(audited):
    audits = {name: Audit.from_json(repeated(audited, 1000)) for name in ("a", "b")}
    page = to_html(compare_document(audits))
    assert f"Only the first {MAX_ROWS:,} of" in page
    assert len(page) < 5_000_000


def test_a_file_larger_than_any_result_is_not_parsed(tmp_path, work, run):
    (work / "vast.json").write_bytes(b'{"type": "audit", "layers": [' + b"[]," * (11 << 20) + b"[]]}")
    done = run("show", "vast.json")
    assert (done.code, done.out) == (2, "")
    assert "vast.json is larger than 32 MiB" in done.err
    assert run("compare", "vast.json", "vast.json").code == 2
    for read in (ns.Audit.from_json, ns.Check.from_json, ns.Radii.from_json):
        with pytest.raises(InputError, match="larger than 32 MiB"):
            read("vast.json")


LIMITED = """
    import resource, sys
    from normscope.core.errors import InputError
    from normscope.core.files import read_json
    from normscope.monitor.log import read_log
    import mmap
    now = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (now + (200 << 20), -1))
    read = {"json": read_json, "log": lambda path: list(read_log(path))}[sys.argv[1]]
    try:
        read(sys.argv[2])
    except InputError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("kind", "source", "words"), [("json", "/dev/zero", "larger than"), ("log", "/dev/zero", "longer than")]
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads endless devices")
def test_an_endless_file_is_refused_in_bounded_memory(kind, source, words):
    command = [sys.executable, "-c", textwrap.dedent(LIMITED), kind, source]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert words in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        '{"type": ' + "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"type": "audit", "schema_version": 1, "name": ' + '{"a":' * 900 + "1" + "}" * 900 + "}",
        '{"type": "audit", "schema_version": ' + "9" * 100_000 + "}",
        '{"type": "audit", "schema_version": 1, "parameters": ' + "9" * 4000 + "}",
        '{"type": "audit", "schema_version": 1, "parameters": 1e999999}',
        '{"type": "' + "a" * 1_000_000 + '"}',
        '{"type": "audit", "schema_version": "' + "a" * 1_000_000 + '"}',
    ],
    ids=["open", "nested", "nested in a field", "long version", "long number", "vast number", "long type", "long text"],
)
def test_odd_json_is_refused_in_a_short_sentence(text, tmp_path):
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(InputError) as raised:
        ns.Audit.from_json(tmp_path / "odd.json")
    assert len(str(raised.value)) < 1000


def test_endless_names_and_values_are_quoted_in_part(audited, tmp_path):
    for place, value in (("layers", [{"a" * 10**6: 1}]), ("name", ["a" * 10**6]), ("cost", {"a" * 10**6: "b"})):
        with pytest.raises(InputError) as raised:
            ns.Audit.from_json({**audited, place: value})
        assert len(str(raised.value)) < 2500


def test_an_endless_name_makes_no_endless_page(audited):
    layer = {**audited["layers"][0], "path": "p" * 10**6, "kind": "k" * 10**6}
    audit = ns.Audit.from_json({**audited, "name": "n" * 10**6, "layers": [layer, *audited["layers"][1:]]})
    assert len(audit.to_html()) < 1_000_000
    assert len(str(audit)) < 1_000_000


def write_log(folder, count: int, steps: int) -> None:
    logs.write(folder, count=count, steps=range(steps))


def test_a_run_of_many_layers_makes_a_small_page(tmp_path):
    write_log(tmp_path, 1500, 3)
    run = Run(tmp_path)
    page = run.to_html()
    assert f"Only the first {MAX_CURVES:,} of 1,500 curves are shown here" in page
    assert len(page) < 10_000_000
    followed = Followed(tmp_path)
    parts = live_data([followed], ["a"], ["Loss"], 0, 10)["parts"]
    charts = live_data([followed], ["a"], parts, 0, 10)["charts"]
    assert max(len(chart["curves"]) for chart in charts) == MAX_CURVES
    assert any("of 1,500 curves" in chart["caption"] for chart in charts)


def test_a_line_of_megabytes_is_refused(tmp_path, monkeypatch):
    write_log(tmp_path, 2, 3)
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 100_000)
    assert len(Run(tmp_path).records) == 3
    followed = Followed(tmp_path)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"type": "metrics", "step": 1, "metrics": {}, "x": "' + "a" * 100_000 + '"}\n')
    lines = len((tmp_path / FILE).read_bytes().splitlines())
    for read in (Run, lambda folder: list(read_log(folder))):
        with pytest.raises(InputError, match=rf"line {lines} of .* is longer than"):
            read(tmp_path)
    followed.refresh()
    assert "is longer than" in followed.broken
    assert len(followed.run.records) == 3


def test_a_first_line_of_megabytes_is_no_log_to_write_to(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 100_000)
    (tmp_path / FILE).write_text("a" * 200_000)
    with pytest.raises(InputError, match=r"line 1 of .* is longer than"):
        LogWriter(tmp_path)
    assert (tmp_path / FILE).stat().st_size == 200_000


def test_a_log_of_gigabytes_says_what_to_do(tmp_path):
    write_log(tmp_path, 2, 3)
    with (tmp_path / FILE).open("ab") as file:
        file.truncate(3 << 30)  # a hole, which takes no room on the disk
    with pytest.raises(InputError, match=r"takes 3\.2 GB, more than the 1\.1 GB that are read: copy its first lines"):
        Run(tmp_path)


def test_a_live_page_does_not_redraw_for_half_a_line(tmp_path):
    write_log(tmp_path, 2, 3)
    followed = Followed(tmp_path)
    version = followed.version
    with (tmp_path / FILE).open("a") as file:
        file.write('{"type": "metrics", ')
        file.flush()
        followed.refresh()
        followed.refresh()
        assert followed.version == version
        file.write('"step": 9, "metrics": {"a": 1.0}}\n')
    followed.refresh()
    assert followed.version == version + 1
    assert followed.run.metrics[-1] == (9, {"a": 1.0})


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
    with pytest.raises(InputError, match=r"line 4 of .* is longer than"):
        Ledger(Line, tmp_path, {})
    assert (tmp_path / SETTINGS).exists()


def test_lines_are_those_of_the_file(tmp_path):
    (tmp_path / "a").write_bytes(b"one\n\ntwo\r\nthree")
    with (tmp_path / "a").open("rb") as file:
        assert list(bounded_lines(file, "a")) == [b"one\n", b"\n", b"two\r\n", b"three"]


def test_json_may_begin_with_a_mark(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + json.dumps({"a": "ä"}).encode())
    assert read_json(tmp_path / "a.json") == {"a": "ä"}
