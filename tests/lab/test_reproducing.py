"""Running experiments: results, what goes on after an interruption, what failed, files, the ledger of claims."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import normscope_lab as lab
from normscope.core.errors import InputError
from normscope.report.document import Block, Column, Curve, Curves, Table
from normscope_lab.experiments import claims as claims_module
from normscope_lab.experiments import registry, reproducing, reproduction
from normscope_lab.experiments.base import Claim, Experiment, Figures, Job, Judgement, Measured, Settings, Verdict
from normscope_lab.experiments.judging import decided, read
from normscope_lab.experiments.registry import chosen_claims
from normscope_lab.experiments.reproducing import reproduce
from normscope_lab.experiments.reproduction import Reproduction

measured: list[str] = []


def _measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    measured.append(job.key)
    if job.kind == settings.get("broken"):
        raise RuntimeError("the machine is on fire")
    return {"square": job.seed**2, "none": math.nan, "huge": (math.inf, 1.0), "in": folder is not None}


def _figures(settings: Settings, found: Mapping[Job, Measured]) -> Figures:
    squares = [one["square"] for one in found.values()]
    figures = {"largest": float(max(squares)), "nothing": math.nan, "count": float(len(squares))}
    return figures | ({"late": 1.0} if Job("b", 3) in found else {})


def _draw(settings: Settings, found: Mapping[Job, Measured]) -> list[Block]:
    columns = (Column(title="job", kind="name"), Column(title="square", kind="number"))
    rows = tuple((job.key, one["square"]) for job, one in found.items())
    points = tuple((float(job.seed), float(one["square"])) for job, one in found.items() if job.kind == "a")
    return [Table(columns=columns, rows=rows), Curves(curves=(Curve(name="<a>", points=points),), title="S & q")]


def _large(figures: Figures) -> Judgement:
    verdict = Verdict.HOLDS if figures["largest"] > 5 else Verdict.FAILS
    return Judgement(verdict, f"the largest square is {figures['largest']:g}")


CLAIMS = (
    Claim(id="toy.large", where="Lemma 0", text="squares grow", judge=_large),
    Claim(id="toy.nan", where="p. 1", text="", judge=lambda f: Judgement(Verdict.HOLDS, f"{f['nothing']}")),
    Claim(id="toy.late", where="p. 2", text="", judge=lambda f: Judgement(Verdict.HOLDS, f"{f['late']}")),
)
TOY = Experiment(
    name="toy.one",
    title="Squares",
    about="Numbers are squared.",
    quick={"kinds": ("a", "b"), "seeds": 4},
    full={"kinds": ("a", "b"), "seeds": 9},
    jobs=lambda settings: [Job(kind, seed) for kind in settings["kinds"] for seed in range(settings["seeds"])],
    measure=_measure,
    figures=_figures,
    claims=CLAIMS,
    draw=_draw,
)
SHARING = Experiment(
    **{name: getattr(TOY, name) for name in ("about", "quick", "full", "jobs", "measure", "figures", "draw")},
    name="toy.two",
    title="The same squares",
    claims=(Claim(id="toy.two", where="Figure 2", text="", judge=_large),),
    shares="toy.one",
)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> dict[str, Experiment]:
    """Let two toys be all experiments that there are."""
    measured.clear()
    every = {TOY.name: TOY, SHARING.name: SHARING}
    for module in (registry, reproducing, reproduction):
        monkeypatch.setattr(module, "registered", lambda: every)
    return every


def broken(monkeypatch: pytest.MonkeyPatch, toys: dict[str, Experiment], kind: str) -> None:
    """Let all jobs of a kind fail."""
    changed = {name: getattr(TOY, name) for name in TOY.__dataclass_fields__}
    toys["toy.one"] = Experiment(**changed | {"quick": {**TOY.quick, "broken": kind}})


class TestRuns:
    def test_jobs_are_measured_once_also_where_two_experiments_share_them(self) -> None:
        found = reproduce(["toy"], workers=0)
        assert len(measured) == 8
        assert [one.name for one in found.items] == ["toy.one", "toy.two"]
        assert found["toy.one"].figures == found["toy.two"].figures == {"largest": 9.0, "count": 8.0, "late": 1.0}

    def test_a_claim_without_its_figure_is_not_testable_and_says_which(self) -> None:
        rows = {row.id: row for row in reproduce(["toy.one"], workers=0).claims}
        assert rows["toy.nan"].verdict == Verdict.NOT_TESTABLE
        assert "'nothing'" in rows["toy.nan"].evidence


class TestFailures:
    def test_a_job_that_raises_is_named_and_the_others_count(self, monkeypatch: pytest.MonkeyPatch, toys) -> None:  # type: ignore[no-untyped-def]
        broken(monkeypatch, toys, "b")
        found = reproduce(["toy.one"], workers=0)["toy.one"]
        assert len(found.failed) == 4
        assert "on fire" in found.failed["b seed=0"]
        verdicts = {row.id: row.verdict for row in found.claims}
        assert verdicts == {
            "toy.large": Verdict.HOLDS,
            "toy.nan": Verdict.NOT_TESTABLE,
            "toy.late": Verdict.NOT_TESTABLE,
        }
        assert "on fire" in str(found)


def without_origin(made: Reproduction) -> dict[str, Any]:
    """Return a result as plain data, less the day and the time that it took."""
    data = made.to_json()
    return data | {"origin": {}, "claims": [claim | {"origin": {}} for claim in data["claims"]]}


class TestFolder:
    def test_a_run_goes_on_and_gives_the_same(self, tmp_path: Path) -> None:
        first = reproduce(["toy.one"], folder=tmp_path, workers=0)
        lines = (tmp_path / "toy.one" / "runs.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "toy.one" / "runs.jsonl").write_text("".join(lines[:5]))
        measured.clear()
        again = reproduce(["toy.one"], folder=tmp_path, workers=0)
        assert len(measured) == 3
        assert without_origin(first["toy.one"]) == without_origin(again["toy.one"])

    def test_the_time_of_a_result_is_that_of_all_of_its_jobs_also_of_those_before_it_was_ended(
        self, tmp_path: Path
    ) -> None:
        reproduce(["toy.one"], folder=tmp_path, workers=0)
        lines = (tmp_path / "toy.one" / "runs.jsonl").read_text().splitlines()
        for seconds, time in ((1000.0, "5000.0 s of processor time"), (None, None)):
            timed = [json.dumps(json.loads(line) | {"seconds": seconds}) for line in lines[:5]]
            (tmp_path / "toy.one" / "runs.jsonl").write_text("\n".join(timed) + "\n")
            again = reproduce(["toy.one"], folder=tmp_path, workers=0)["toy.one"]
            assert again.origin.get("time") == time

    def test_results_tables_and_pictures_are_written(self, tmp_path: Path) -> None:
        made = reproduce(["toy.one"], folder=tmp_path, workers=0)["toy.one"]
        place = tmp_path / "toy.one"
        read = Reproduction.from_json(place / "result.json")
        assert read.to_json() == made.to_json()
        assert (place / "table1.csv").read_text().splitlines()[1:3] == ["a seed=0,0", "a seed=1,1"]
        assert "largest,9.0" in (place / "figures.csv").read_text()
        picture = (place / "picture2.svg").read_text()
        import xml.etree.ElementTree as tree

        assert tree.fromstring(picture).tag.endswith("svg")
        assert "&lt;a&gt;" in picture
        assert "--d0" in picture

    def test_what_was_read_is_judged_anew(self) -> None:
        data = reproduce(["toy.one"], workers=0)["toy.one"].to_json()
        for job in data["jobs"]:
            job["measured"]["square"] = 0
        assert Reproduction.from_json(data).claims[0].verdict == Verdict.FAILS


class TestLedger:
    def test_live_claims_have_what_the_json_promises(self) -> None:
        rows = lab.claims(workers=0).to_json()
        assert [row["id"] for row in rows] == ["toy.large", "toy.nan", "toy.late", "toy.two"]
        assert all(
            set(row)
            == {"id", "source", "where", "quotation", "reading", "verdict", "evidence", "figures", "command", "origin"}
            for row in rows
        )
        assert rows[0]["verdict"] == "holds"
        assert rows[0]["figures"] == {"largest": 9.0}
        assert {"date", "commit"} <= set(rows[0]["origin"])
        assert rows[0]["command"] == "normscope lab reproduce toy.one"

    def test_a_missing_stored_result_is_not_testable_and_names_the_command(self, toys: dict[str, Experiment]) -> None:
        held = {name: getattr(TOY, name) for name in TOY.__dataclass_fields__}
        toys["toy.one"] = Experiment(**held | {"stored": True})
        [row] = [row for row in lab.claims(["toy.one"], workers=0) if row.id == "toy.large"]
        assert row.verdict == Verdict.NOT_TESTABLE
        assert "normscope lab reproduce toy.one --full" in row.evidence
        assert not measured

    def test_stored_results_are_judged_with_where_they_come_from(self, tmp_path: Path, monkeypatch, toys) -> None:  # type: ignore[no-untyped-def]
        held = {name: getattr(TOY, name) for name in TOY.__dataclass_fields__}
        toys["toy.one"] = Experiment(**held | {"stored": True})
        (tmp_path / "stored").mkdir()
        reproduce(["toy.one"], workers=0)["toy.one"].to_json(tmp_path / "stored" / "toy.one.json")
        monkeypatch.setattr(claims_module, "files", lambda _: tmp_path)
        measured.clear()
        row = lab.claims(["toy.one"], workers=0)["toy.large"]
        assert not measured
        assert row.verdict == Verdict.HOLDS
        assert set(row.origin) >= {"date", "commit", "machine"}
        assert row.to_json()["origin"]["torch"]

    def test_a_row_has_the_figures_that_were_read_and_the_corrected_statement_of_what_fails(self) -> None:
        seeds = {"ratio.median": 2.0, "ratio.low": 1.5, "ratio.high": 3.0, "ratio.seeds": 20.0, "other": 1.0}
        for above, corrected in ((1.0, ""), (4.0, "It is 2.")):
            claim = Claim(
                id="x", where="", text="", corrected="It is 2.",
                judge=lambda f, above=above: decided(read(f, "ratio"), above=above, evidence=""),
            )  # fmt: skip
            made = reproduction.row(claim, TOY, seeds, run="", origin={})
            assert made.figures == {"ratio": {"median": 2.0, "low": 1.5, "high": 3.0, "seeds": 20.0}}
            assert made.corrected == corrected

    def test_a_verdict_of_one_task_says_so_but_not_of_an_identity(self) -> None:
        held = {name: getattr(TOY, name) for name in TOY.__dataclass_fields__} | {"task": "squares"}
        figures = {"largest": 9.0}
        one, other = (
            reproduction.row(replace(CLAIMS[0], identity=identity), Experiment(**held), figures, run="", origin={})
            for identity in (False, True)
        )
        assert one.verdict_in_words == "holds, on this task (squares)"
        assert other.verdict_in_words == "holds"

    def test_names_are_ids_experiments_or_the_beginning_of_several(self) -> None:
        def ids(*names: str) -> list[str]:
            return [claim.id for _, claims in chosen_claims(names) for claim in claims]

        assert ids("toy.one") == ["toy.large", "toy.nan", "toy.late"]
        assert ids("toy.late", "toy.large") == ["toy.large", "toy.late"]  # in the order of the papers
        assert ids("toy.two") == ["toy.two"]  # an experiment and a claim
        assert ids("toy") == ids("toy.nan", "all") == ids() == ["toy.large", "toy.nan", "toy.late", "toy.two"]
        with pytest.raises(InputError, match=r"no claim and no experiment 'toy\.l'"):
            ids("toy.large", "toy.l")


class TestOddFolders:
    """What a folder holds is used, or refused with what to do: never a wrong figure."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        """The folder of a finished run."""
        reproduce(["toy.one"], folder=tmp_path, workers=0)
        return tmp_path / "toy.one"

    def refused(self, place: Path, reason: str) -> None:
        with pytest.raises(InputError, match=reason) as error:
            reproduce(["toy.one"], folder=place.parent, workers=0)
        assert "Error" not in str(error.value).partition("(")[0]

    def test_results_without_their_settings(self, place: Path) -> None:
        (place / "settings.json").unlink()
        self.refused(place, r"without their settings\.json: name another folder")
        assert not (place / "settings.json").exists()

    @pytest.mark.parametrize("line", ["garbage", "3", '"a"', "[]", "{}", '{"kind": "a"}', "[" * 100_000, "\ud800"])
    def test_a_damaged_line_is_named(self, place: Path, line: str) -> None:
        runs = place / "runs.jsonl"
        runs.write_bytes(line.encode(errors="surrogatepass") + b"\n" + runs.read_bytes())
        self.refused(place, r"line 1 of .*runs\.jsonl is damaged.*remove it")

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"schema_version": 2}, "schema_version 2, .*update Normscope"),
            ({"name": "toy.nine"}, r"'toy\.nine', an experiment that is not known"),
            ({"jobs": [{"kind": "a", "seed": 0, "measured": {}}]}, "damaged jobs"),
            ({"origin": None}, "damaged reproduction"),
        ],
    )
    def test_a_result_that_is_none_says_why(self, change: dict[str, object], reason: str) -> None:
        data = reproduce(["toy.one"], workers=0)["toy.one"].to_json()
        with pytest.raises(InputError, match=reason):
            Reproduction.from_json({**data, **change})
