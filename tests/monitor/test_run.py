"""`Run`: a log read back, whatever state the run is in."""

import json
import math
from dataclasses import replace

import pytest

import normscope as ns
from normscope.core.errors import InputError
from normscope.core.finding import Severity
from normscope.doctor.monitor.log import FILE, Ended, LogWriter

from . import logs
from .training import losses


def test_a_watched_run_is_read_back_as_it_was_measured(tmp_path):
    _, _, watch = losses("mlp", 5, watched=lambda m, o: ns.watch(m, o, every=2, log=tmp_path / "a", panel=False))
    run = ns.Run(tmp_path / "a")
    assert run.layers == watch.history.layers
    assert [record.to_json() for record in run.records] == [record.to_json() for record in watch.records]
    assert [record.step for record in run.records] == [0, 2, 4]
    assert run.findings == watch.findings
    assert run.ended is not None
    assert (run.ended.how, run.ended.step) == ("finished", 5)
    assert run.metadata["model"] == "Sequential"


def test_a_run_is_opened_by_its_folder_or_by_its_log(tmp_path):
    logs.write(tmp_path / "a")
    run = ns.Run(tmp_path / "a")
    assert ns.Run(str(tmp_path / "a" / FILE)) == run
    assert (run.name, run.path) == ("a", tmp_path / "a")
    assert run.ended == Ended(how="finished", step=100, seconds=10.0, overhead=0.0123)
    assert run.findings == (logs.ALARM,)
    assert repr(run) == f"<Run {tmp_path / 'a'}: step 90, 12 layers, 1 alarm, finished>"
    with pytest.raises(AttributeError):
        run.ended = None


def test_a_run_that_was_killed_in_the_middle_of_a_line_is_read_up_to_it(tmp_path):
    logs.write(tmp_path, ended=False)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"type":"step","st')
    run = ns.Run(tmp_path)
    assert run.ended is None
    assert run.records[-1].step == 90


def test_a_log_without_a_line_is_a_run_of_which_nothing_is_known(tmp_path):
    (tmp_path / FILE).touch()
    run = ns.Run(tmp_path)
    assert (run.layers, run.records, run.findings, run.ended) == ((), (), (), None)
    assert "Nothing has been measured yet" in str(run)
    assert run.to_pandas().empty
    assert list(run.totals().columns) == ["step", "seconds", "tier", "loss", "lr"]
    assert "Nothing has been measured yet" in run.to_html()


def test_steps_that_are_done_again_replace_those_of_the_abandoned_end(tmp_path):
    logs.write(tmp_path)
    writer = LogWriter(tmp_path)
    logs.begin(writer, 3, step=50)
    for step in (50, 60):
        writer.write("step", logs.record(step, 3, loss=7.0).to_json())
    writer.write("finding", logs.ALARM.to_json())
    writer.close()
    run = ns.Run(tmp_path)
    assert [(record.step, record.loss == 7.0) for record in run.records[-3:]] == [(40, False), (50, True), (60, True)]
    assert (run.resumed, run.ended, run.findings) == ((50,), None, (logs.ALARM,))


def test_a_run_comes_back_whole_from_one_file(tmp_path):
    logs.write(tmp_path / "a")
    writer = LogWriter(tmp_path / "a")
    logs.begin(writer, 3, step=50)
    writer.write("step", logs.record(50, 3, loss=math.inf).to_json())
    writer.write("metrics", {"step": 50, "metrics": {"accuracy": 0.5}})
    writer.close()
    run = ns.Run(tmp_path / "a")
    run.to_json(tmp_path / "run.json")
    assert ns.Run.from_json(tmp_path / "run.json") == run
    assert ns.Run.from_json(run.between(20, 40).to_json()).records == run.records[2:5]
    for damage in ({"lines": [{"type": "step"}]}, {"resumed": ["x"]}):
        with pytest.raises(InputError, match="damaged"):
            ns.Run.from_json(run.to_json() | damage)


def test_runs_are_compared_with_runs(tmp_path):
    for name in "ab":
        logs.write(tmp_path / name / "first")
    run, other = (ns.Run(tmp_path / name / "first") for name in "ab")
    result = ns.compare(run, other)
    assert list(result.runs) == ["first 1", "first 2"]
    assert "first 2" in str(result)
    assert "Comparison" in result._repr_html_()
    result.to_json(tmp_path / "runs.json")
    assert ns.Comparison.from_json(tmp_path / "runs.json").to_html() == result.to_html()
    for wrong in ((run,), (run, "runs/b")):
        with pytest.raises(InputError, match=r"two or more|compared with their like"):
            ns.compare(*wrong)


def test_a_step_written_twice_counts_once(tmp_path):
    logs.write(tmp_path, ended=False)
    writer = LogWriter(tmp_path)
    writer.write("step", logs.record(90, 3, loss=5.0).to_json())
    writer.close()
    assert [(r.step, r.loss) for r in ns.Run(tmp_path).records if r.step == 90] == [(90, 5.0)]


def test_numbers_follow_their_layers_where_a_resumed_run_has_others(tmp_path):
    logs.write(tmp_path, count=3)
    writer = LogWriter(tmp_path)
    logs.begin(writer, 2, step=100)
    writer.write("step", logs.record(100, 2).to_json())
    writer.close()
    run = ns.Run(tmp_path)
    assert len(run.of("weight")) == 2
    course = run.course("weight", "log10_norm")
    assert [step for step, _ in course["blocks.1.conv"]] == [*range(0, 100, 10), 100]
    assert course["blocks.1.conv"][0][1] == pytest.approx(logs.record(0, 3).of("weight", "log10_norm")[1])


def test_courses_and_last_values_skip_what_was_not_measured(tmp_path):
    logs.write(tmp_path)
    run = ns.Run(tmp_path)
    assert [step for step, _ in run.course("block", "log10_activation")["blocks.0"]] == [0, 50]
    assert run.last("block", "log10_activation") == run.records[5].of("block", "log10_activation")
    assert run.course("weight", "nothing") == {}
    assert run.last("weight", "nothing") == (None, None, None)
    assert run.total("loss")[0] == (0, 2.3)
    assert run.total("lr")[-1] == (90, 0.1)


def test_pandas_has_a_row_per_step_and_layer_and_totals_one_per_step(tmp_path):
    logs.write(tmp_path)
    run = ns.Run(tmp_path)
    table = run.to_pandas()
    assert list(table.columns[:4]) == ["step", "seconds", "kind", "layer"]
    assert len(table) == 10 * 6 + 2 * 6
    chosen = table[(table.layer == "blocks.2.bn") & (table.step == 30)]
    assert chosen["log10_variance"].item() == run.records[3].of("normalizer", "log10_variance")[2]
    assert math.isnan(chosen["log10_norm"].item())
    totals = run.totals()
    assert list(totals.columns[:5]) == ["step", "seconds", "tier", "loss", "lr"]
    assert totals["log10_printed"].tolist() == [record.total["log10_printed"] for record in run.records]


def test_several_learning_rates_have_a_column_each(tmp_path):
    writer = LogWriter(tmp_path)
    logs.begin(writer, 1)
    writer.write("step", replace(logs.record(0, 1), lr=(0.1, 0.01)).to_json())
    writer.close()
    assert ns.Run(tmp_path).totals()[["lr", "lr_1"]].values.tolist() == [[0.1, 0.01]]


def test_figures_that_are_no_numbers_are_read_as_they_were(tmp_path):
    writer = LogWriter(tmp_path)
    logs.begin(writer, 1)
    writer.write("step", logs.record(0, 1, loss=math.nan).to_json())
    writer.write("step", logs.record(10, 1, loss=math.inf).to_json())
    writer.close()
    run = ns.Run(tmp_path)
    assert math.isnan(run.records[0].loss)
    assert run.records[1].loss == math.inf
    assert "nan" in str(run)
    run.to_html()


DAMAGED = {"type": "run", "layers": []}
STEP = {"type": "step", **logs.record(0, 0).to_json()}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"type": "step"}, "damaged log: a line of type step"),
        ({"type": "run"}, "damaged log: a line of type run"),
        ({"type": "run", "layers": [{"name": "a", "depth": 1}]}, "damaged log"),
        ({"type": "finding", "code": "x"}, "damaged log: a line of type finding"),
        (DAMAGED | {"parameters": "many"}, "its parameters is not"),
        (DAMAGED | {"every": {"economy": "often"}}, "its every is not"),
        (DAMAGED | {"layers": [{"name": 5, "kind": "weight", "family": "linear"}]}, r"layers\[0\]\.name is 5"),
        (
            DAMAGED | {"layers": [{"name": "a", "kind": "weather", "family": "linear"}]},
            r"layers\[0\]\.kind is 'weather'",
        ),
        (STEP | {"values": {"weight": {"log10_norm": [1.0]}}}, "its weight log10_norm is not"),
        (STEP | {"loss": "low"}, "its loss, lr or total is not"),
        (STEP | {"loss": 10**400}, "its loss, lr or total is not"),
        (STEP | {"metrics": {"accuracy": 10**400}}, "its metrics is not"),
        (STEP | {"step": 10**400}, "its step is not"),
        ({"type": "metrics", "step": 10**400, "metrics": {"accuracy": 0.5}}, "its step is not"),
        (STEP | {"step": math.inf}, "damaged log: a line of type step"),
        ({"type": "finding", **logs.ALARM.to_json(), "where": 7}, "where is 7"),
        ({"type": "end", "how": "finished"}, "damaged log: a line of type end"),
        ({"type": "run", "schema_version": 99, "layers": []}, "schema_version 99"),
        ("text", "is not a line of a run's log"),
    ],
)
def test_a_damaged_log_is_refused_in_one_sentence(tmp_path, line, complaint):
    (tmp_path / FILE).write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match=complaint):
        ns.Run(tmp_path)


def test_lines_of_a_type_that_is_not_known_are_passed_over(tmp_path):
    logs.write(tmp_path)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"type":"weather","sun":true}\n')
    assert len(ns.Run(tmp_path).records) == 10


def test_a_folder_without_a_log_names_the_runs_in_it(tmp_path):
    logs.write(tmp_path / "a")
    with pytest.raises(InputError, match=r"no log\.jsonl; there are runs in it: a"):
        ns.Run(tmp_path)
    with pytest.raises(InputError, match="cannot read the log"):
        ns.Run(tmp_path / "missing")


def test_a_run_prints_itself_and_shows_itself_in_a_notebook(tmp_path):
    worse = replace(logs.ALARM, severity=Severity.ERROR, step=60, code="variance-lost", where="blocks.<b>0</b>.bn")
    logs.write(tmp_path / "a", findings=(logs.ALARM, worse))
    run = ns.Run(tmp_path / "a")
    text = str(run)
    assert "error Variance lost in `blocks.<b>0</b>.bn` (variance-lost)" in text
    assert "At step 60:" in text
    assert "It finished after 100 steps." in text
    assert "<b>" not in run._repr_html_()
    assert run.to_html(tmp_path / "run.html") == (tmp_path / "run.html").read_text()
