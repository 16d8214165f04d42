"""`normscope show` and `normscope compare` of training runs."""

import re

import pytest

from normscope.auditing.audit_result import Audit
from normscope.doctor.monitor.run import Run
from normscope.doctor.pages.live import LiveServer, live_data

from ..monitor import logs


@pytest.fixture
def runs(work):
    """A folder with two runs, `runs/a` and `runs/b`, and a saved audit."""
    logs.write(work / "runs" / "a")
    logs.write(work / "runs" / "b", rate=0.5, optimizer="AdamW", findings=(), ended=False)
    Audit(name="a", mode=None, parameters=0, samples=0, batches=0).to_json(work / "audit.json")
    return work


def test_show_prints_a_run_and_writes_its_page(runs, run):
    done = run("show", "runs/a", "--html", "run.html")
    assert (done.code, done.err) == (0, "")
    assert "Run a" in done.out
    assert "effective-lr-collapse" in done.out
    assert "blocks.2.bn" in done.out
    assert done.out.endswith("wrote run.html\n")
    assert (runs / "run.html").read_text() == Run("runs/a").to_html()


def test_live_serves_several_runs_and_says_where(runs, run, monkeypatch):
    served = []

    def serve(server):
        found = live_data(server._runs, server._names, ["Loss"], 0, 1e9)
        served.append([run["name"] for run in found["runs"]])
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveServer, "serve_forever", serve)
    done = run("show", "runs/a", "runs/b", "--live")
    assert (done.code, done.err, served) == (0, "", [["a", "b"]])
    assert re.fullmatch(r"live at http://127\.0\.0\.1:\d+/[\w-]{32}/ \(Ctrl-C ends\)\nended\n", done.out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("runs/a", "runs/b"), "normscope compare sets them side by side"),
        (("audit.json", "--live"), "audit.json is no folder of a run"),
        (("runs/a", "--live", "--html", "x.html"), "leave --html and --json out"),
        (("x.html",), "x.html is a page: open it in a browser"),
        (("runs", "--live"), "there are runs in it: a, b"),
        (("nothing", "--live"), "nothing"),
    ],
)
def test_what_cannot_be_shown_is_refused(runs, run, arguments, said):
    done = run("show", *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_the_page_may_stand_in_the_folder_of_the_run_but_not_on_its_log(runs, run):
    before = (runs / "runs" / "a" / "log.jsonl").read_bytes()
    assert run("show", "runs/a", "--html", "runs/a/page.html").code == 0
    done = run("show", "runs/a", "--html", "runs/a/log.jsonl")
    assert done.code == 2
    assert "cannot write" in done.err
    assert (runs / "runs" / "a" / "log.jsonl").read_bytes() == before


def test_compare_sets_runs_side_by_side(runs, run):
    done = run("compare", "runs/a", "runs/b", "--html", "both.html")
    assert (done.code, done.err) == (0, "")
    assert "Comparison of a and b" in done.out
    assert "AdamW" in done.out
    assert "In a: 1 warning." in done.out
    assert "Δ b" in done.out
    assert "How much the input of each normalizer varies: b" in (runs / "both.html").read_text()
