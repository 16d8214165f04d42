"""`normscope lab reproduce` and `normscope lab claims` as a user runs them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from normscope import cli
from normscope_lab.experiments import registry, reproducing, reproduction
from normscope_lab.experiments.base import Claim, Experiment, Job, Judgement, Verdict

HALVES = Experiment(
    name="toy.halves",
    title="Halves",
    about="Numbers are halved.",
    quick={"top": 3},
    full={"top": 9},
    jobs=lambda settings: [Job("half", seed) for seed in range(settings["top"])],
    measure=lambda settings, job, folder: {"half": job.seed / 2},
    figures=lambda settings, measured: {"most": max(one["half"] for one in measured.values())},
    claims=(
        Claim(
            id="toy.most",
            where="p. 1",
            text="halves stay small",
            quotation="halves do not grow",
            judge=lambda f: Judgement(Verdict.HOLDS if f["most"] < 2 else Verdict.FAILS, f"the most is {f['most']:g}"),
        ),
    ),
    draw=lambda settings, measured: (),
)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope_lab.cli import reproduce

    for module in (registry, reproducing, reproduction, reproduce):
        monkeypatch.setattr(module, "registered", lambda: {"toy.halves": HALVES})


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Any:
        return CliRunner().invoke(cli.app, ["lab", *words], catch_exceptions=False)

    return run


def test_without_a_name_the_experiments_are_listed(invoke: Callable[..., Any]) -> None:
    assert "toy.halves" in invoke("reproduce").output


def test_quick_and_full_differ(invoke: Callable[..., Any]) -> None:
    assert "holds" in invoke("reproduce", "all", "--quick", "--workers", "0").output
    assert "fails" in invoke("reproduce", "toy", "--full", "--workers", "0").output


def test_files_are_written(invoke: Callable[..., Any], tmp_path: Path) -> None:
    words = (
        "reproduce",
        "toy.halves",
        "--workers",
        "0",
        "--html",
        "page.html",
        "--json",
        "all.json",
        "--folder",
        "runs",
    )
    done = invoke(*words)
    assert "wrote page.html" in done.output
    assert "the most is 1" in (tmp_path / "page.html").read_text()
    assert json.loads((tmp_path / "all.json").read_text())[0]["name"] == "toy.halves"
    assert (tmp_path / "runs" / "toy.halves" / "result.json").exists()


def test_the_ledger_is_a_list_of_objects(invoke: Callable[..., Any]) -> None:
    [row] = json.loads(invoke("claims", "--json", "-", "--workers", "0").output)
    assert {"date", "commit", "machine", "torch"} <= set(row.pop("origin"))
    assert row == {
        "id": "toy.most",
        "source": "Toy",
        "where": "p. 1",
        "quotation": "halves do not grow",
        "reading": "halves stay small",
        "verdict": "holds",
        "evidence": "the most is 1",
        "figures": {"most": 1.0},
        "command": "normscope lab reproduce toy.halves",
    }


def test_the_ledger_prints_and_has_a_page(invoke: Callable[..., Any], tmp_path: Path) -> None:
    assert "toy.most" in invoke("claims", "--workers", "0", "--html", "claims.html").output
    assert "halves stay small" in (tmp_path / "claims.html").read_text()


def test_a_name_that_is_none_is_an_error(invoke: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match=r"toy\.halves"):
        invoke("reproduce", "tay")


def test_a_target_that_cannot_be_written_is_told_before_the_work(invoke: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match="no folder"):
        invoke("reproduce", "all", "--html", "missing/page.html")


def test_one_claim_is_shown_in_whole_sentences(invoke: Callable[..., Any]) -> None:
    shown = invoke("claims", "toy.most", "--workers", "0").output
    for part in (
        "toy.most: holds",
        'Toy, p. 1: "halves do not grow"',
        "Our reading: halves stay small",
        "the most is 1",
        "normscope lab reproduce toy.halves",
    ):
        assert part in shown


def test_jobs_that_did_not_finish_are_named_and_change_the_exit_code(
    invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def falls(settings: Any, job: Job, folder: Path | None) -> Any:
        raise RuntimeError("the disk is gone")

    held = {name: getattr(HALVES, name) for name in HALVES.__dataclass_fields__}
    monkeypatch.setattr(reproducing, "registered", lambda: {"toy.halves": Experiment(**held | {"measure": falls})})
    done = invoke("reproduce", "toy.halves", "--workers", "0")
    assert done.exit_code == 1
    assert "the disk is gone" in done.output
    monkeypatch.setattr(reproducing, "registered", lambda: {"toy.halves": HALVES})
    assert invoke("reproduce", "toy.halves", "--workers", "0").exit_code == 0
