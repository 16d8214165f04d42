"""The report of a run and the comparison of runs."""

import math
from dataclasses import replace

import pytest
import torch

import normscope as ns
from normscope.choosing.comparison_page import compare_runs_document
from normscope.core.errors import InputError
from normscope.core.finding import Severity
from normscope.doctor.monitor.log import LogWriter
from normscope.doctor.monitor.schedule import TimeBudget
from normscope.doctor.pages.run import run_document
from normscope.report.document import Curves, Figures, Notice, Table, Text
from normscope.report.html import to_html

from ..monitor import logs


def headings(document):
    return [block.heading for block in document.blocks if isinstance(block, Text) and block.heading]


def pictures(document):
    return {block.title: block for block in document.blocks if isinstance(block, Curves)}


def test_a_report_has_its_parts_in_order(tmp_path):
    logs.write(tmp_path)
    assert headings(run_document(ns.Run(tmp_path))) == [
        "Verdict", "Rates and products", "Normalizers", "Weights", "Signal and gradients", "Layers", "Settings",
        "Words",
    ]  # fmt: skip


def test_the_first_screen_is_the_verdict_the_loss_and_the_alarms(tmp_path):
    logs.write(tmp_path)
    blocks = run_document(ns.Run(tmp_path)).blocks
    kinds = [type(block).__name__ for block in blocks[:5]]
    assert kinds == ["Text", "Text", "Figures", "Curves", "Notice"]
    assert blocks[0].body == "Effective lr collapse in `blocks.1.conv`; nothing else stands out."
    assert blocks[3].title == "Loss by step"
    assert all(block.folded for block in blocks[5:] if isinstance(block, Text) and block.heading)


def test_headline_figures_are_those_of_the_run(tmp_path):
    logs.write(tmp_path)
    run = ns.Run(tmp_path)
    (figures,) = (block for block in run.document().blocks if isinstance(block, Figures))
    shown = {item.label: item.value for item in figures.items}
    assert shown == {
        "Steps": 100,
        "Loss": run.records[-1].loss,
        "Product of the norms": run.records[-1].total["log10_printed"],
        "Folded product": run.records[-1].total["log10_folded"],
        "Learning rate": 0.1,
        "Steps a second": 10.0,
        "Alarms": 1,
        "Overhead": 0.0123,
    }


def test_alarms_stand_on_the_axis_and_in_notices_with_their_step(tmp_path):
    worse = replace(logs.ALARM, severity=Severity.ERROR, step=70, where="blocks.0.conv", code="gradient-lost")
    logs.write(tmp_path, findings=(logs.ALARM, worse))
    document = ns.Run(tmp_path).document()
    for picture in pictures(document).values():
        assert [(mark.x, mark.level) for mark in picture.marks] == [(40, "warning"), (70, "error")]
    notices = [block for block in document.blocks if isinstance(block, Notice)]
    assert [notice.code for notice in notices] == ["gradient-lost", "effective-lr-collapse"]
    assert notices[0].heading == "Gradient lost in `blocks.0.conv`"
    assert notices[0].lines[0][1].startswith("At step 70: ")


@pytest.mark.slow
def test_a_long_run_of_many_layers_stays_a_small_page(tmp_path):
    logs.write(tmp_path, steps=8_000, count=40)  # four times as many records as points
    document = ns.Run(tmp_path).document()
    for picture in pictures(document).values():
        assert all(len(curve.points) <= 200 for curve in picture.curves)
    assert len(to_html(document)) < 800_000


def test_a_rotation_of_zero_and_a_loss_that_is_no_number_are_drawn(tmp_path):
    writer = LogWriter(tmp_path)
    logs.begin(writer, 2)
    for step in range(0, 50, 10):
        record = logs.record(step, 2, loss=math.nan if step > 20 else 1000.0 / (1 + 10 * step))
        values = {"weight": {"rotation": (0.0 if step > 20 else 0.1, None)}}
        writer.write("step", replace(record, values=values).to_json())
    writer.close()
    document = ns.Run(tmp_path).document()
    found = pictures(document)
    (rotation,) = found["How far one step turns each of these weights"].curves
    assert rotation.points[0][1] == pytest.approx(-1.0)
    assert rotation.points[-1][1] == -math.inf
    loss = found["Loss by step"]
    assert loss.axis == "log10 of the loss"
    assert loss.curves[0].points[0] == (0, 3.0)
    assert math.isnan(loss.curves[0].points[-1][1])
    to_html(document)


def test_tables_of_layers_say_where_each_began_and_how_far_it_went(tmp_path):
    logs.write(tmp_path)
    run = ns.Run(tmp_path)
    tables = {block.title: block for block in run.document().blocks if isinstance(block, Table)}
    table = tables["Normalizers: input variance (log10)"]
    titles = [column.title for column in table.columns]
    assert titles == ["layer", "kind", "eps", "first", "last", "least", "most", "constant", "near eps"]
    values = [record.of("normalizer", "log10_variance")[1] for record in run.records]
    assert table.rows[1][3:7] == (values[0], values[-1], min(values), max(values))
    weights = tables["Weights: operator norm (log10)"]
    assert weights.rows[0][:4] == ("blocks.0.conv", "convolution", "blocks.0.bn", "channel")


def test_runs_are_compared_by_totals_settings_alarms_and_layers(tmp_path):
    logs.write(tmp_path / "a")
    logs.write(tmp_path / "b", rate=0.5, optimizer="AdamW", findings=(), count=4)
    runs = {name: ns.Run(tmp_path / name) for name in "ab"}
    document = compare_runs_document(runs)
    tables = {block.title: block for block in document.blocks if isinstance(block, Table)}
    assert [row[0] for row in tables["Headline figures"].rows] == ["a", "b"]
    assert ("optimizer", "SGD", "AdamW") in tables[""].rows
    assert "began" not in [row[0] for row in tables[""].rows]
    variances = tables["How much the input of each normalizer varies: at the last measurement (log10)"]
    assert [row[0] for row in variances.rows] == [f"blocks.{index}.bn" for index in range(4)]
    first, second = (run.last("normalizer", "log10_variance") for run in runs.values())
    assert variances.rows[0][1:] == (first[0], second[0], pytest.approx(second[0] - first[0]))
    assert variances.rows[3][1:] == (None, second[3], None)
    found = pictures(document)
    assert [curve.name for curve in found["Loss by step"].curves] == ["a", "b"]
    spans = {found[f"How much the input of each normalizer varies: {name}"].span for name in "ab"}
    assert len(spans) == 1
    bodies = [block.body for block in document.blocks if isinstance(block, Text)]
    assert "In a: 1 warning." in bodies
    assert "In b: none." in bodies
    to_html(document)


def test_a_comparison_needs_two_runs(tmp_path):
    logs.write(tmp_path)
    with pytest.raises(InputError, match="at least two"):
        compare_runs_document({"a": ns.Run(tmp_path)})


def test_due_steps_that_were_left_out_are_counted(tmp_path, monkeypatch):
    """Eighty steps are due, and there is time for the first two and one of every eight after them."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(TimeBudget, "affords", lambda self, task, times=1: False)
    with ns.watch(model, optimizer, every=1, log=tmp_path, panel=False) as watch:
        for _ in range(80):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()
    run = ns.Run(tmp_path)
    assert (len(run.records), run.ended.left_out) == (11, 6)
    for shown in (watch, run):
        (figures,) = (block for block in shown.document().blocks if isinstance(block, Figures))
        assert figures.items[0].note == "11 of 80 due steps measured"
    assert "11 of 80 due steps measured" in str(watch)
    assert "11 of 80 due steps were measured" in str(run)
