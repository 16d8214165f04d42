"""Sinks: names, what a target cannot take, alarms; with the real TensorBoard and W&B (offline) where they are."""

from __future__ import annotations

import builtins
import math
from pathlib import Path
from typing import Any

import pytest

from normscope.core.errors import InputError
from normscope.core.finding import Finding, Severity
from normscope.doctor.monitor.layer_record import LayerRecord
from normscope.doctor.monitor.record import Record
from normscope.doctor.monitor.sinks import TensorBoardSink, WandbSink
from normscope.doctor.monitor.watching import watch

from .training import losses

LAYERS = (
    LayerRecord(name="layer1.0.conv1", kind="weight", family="convolution"),
    LayerRecord(name="layer1.0.bn1", kind="normalizer", family="batch_norm"),
    LayerRecord(name="layer1.0.bn2", kind="normalizer", family="batch_norm"),
)
VALUES = {
    "weight": {"log10_norm": (0.5,)},
    "normalizer": {"log10_variance": (-1.0, None), "log10_gain": (-math.inf, 2.0)},
}
TOTAL = {"log10_folded": 3.0, "log10_printed": None}
RECORD = Record(step=30, seconds=1.0, tier="economy", loss=math.nan, lr=(0.1, 0.2), values=VALUES, total=TOTAL)
FINITE = {
    "normscope/lr/0": 0.1,
    "normscope/lr/1": 0.2,
    "normscope/total/log10_folded": 3.0,
    "normscope/weight/layer1.0.conv1/log10_norm": 0.5,
    "normscope/normalizer/layer1.0.bn1/log10_variance": -1.0,
    "normscope/normalizer/layer1.0.bn2/log10_gain": 2.0,
}
DEEP = "layer1.0." + 9 * "deep."
ALARM = Finding(code="dead-layer", severity=Severity.WARNING, where=DEEP, seen="It is 0.", why="W.", advice="A.")


class Target:
    """Has `log(figures, step=)` and nothing else."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, Any], Any]] = []

    def log(self, figures: dict[str, Any], step: int | None = None) -> None:
        self.rows.append((figures, step))


def test_names_are_those_of_the_layers() -> None:
    found = RECORD.flatten(LAYERS)
    assert {name: value for name, value in found.items() if math.isfinite(value)} == FINITE
    assert found["normscope/normalizer/layer1.0.bn1/log10_gain"] == -math.inf
    assert "normscope/normalizer/0/log10_variance" in RECORD.flatten()


def test_what_has_a_log_gets_the_finite_figures_at_the_step() -> None:
    target = Target()
    sink = WandbSink(target)
    sink.begin(LAYERS, {})
    sink(RECORD, [ALARM])
    sink.close()
    assert target.rows == [({**FINITE, "normscope/findings": 1}, 30)]


def test_a_run_of_wandb_gets_an_axis_and_alerts() -> None:
    class Run(Target):
        def __init__(self) -> None:
            super().__init__()
            self.metrics: list[Any] = []
            self.alerts: list[dict[str, str]] = []

        def define_metric(self, name: str, **options: Any) -> None:
            self.metrics.append((name, options.get("step_metric")))

        def alert(self, **what: str) -> None:
            self.alerts.append(what)

    run = Run()
    sink = WandbSink(run)
    sink.begin(LAYERS, {})
    sink(RECORD, [ALARM])
    assert run.metrics == [("normscope/step", None), ("normscope/*", "normscope/step")]
    assert run.rows == [({**FINITE, "normscope/findings": 1, "normscope/step": 30}, None)]
    [alert] = run.alerts
    assert alert["level"] == "WARN"
    assert alert["title"].startswith("dead-layer in `layer1.0.")
    assert len(alert["title"]) < 64


@pytest.mark.slow
def test_the_real_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="W&B is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with pytest.raises(InputError, match="no active run"):
        WandbSink()
    with wandb.init(mode="offline", dir=tmp_path, project="test") as run:
        sink = WandbSink()
        sink.begin(LAYERS, {})
        run.log({"mine": 1.0}, step=40)  # W&B would refuse to go back to 30
        sink(RECORD, [ALARM])  # an alert that W&B refuses would raise
        run.log({"mine": 2.0}, step=41, commit=True)
        found = dict(run.summary)
    assert found["normscope/step"] == 30
    assert found["normscope/total/log10_folded"] == 3.0
    assert found["mine"] == 2.0


@pytest.mark.parametrize("own", [True, False])
def test_the_real_tensorboard(own: bool, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = None if own else SummaryWriter(str(tmp_path))
    sink = TensorBoardSink(tmp_path if own else writer)
    sink.begin(LAYERS, {"step": 30})
    sink(RECORD, [ALARM])
    sink.close()
    if writer is not None:
        writer.add_scalar("mine", 1.0, 0)  # it is left open
        writer.close()
    found = EventAccumulator(str(tmp_path)).Reload()
    scalars = {name: found.Scalars(name)[0] for name in found.Tags()["scalars"] if name != "mine"}
    assert scalars.keys() == RECORD.flatten(LAYERS).keys()
    assert all(event.step == 30 for event in scalars.values())
    assert math.isnan(scalars["normscope/loss"].value)
    assert scalars["normscope/normalizer/layer1.0.bn1/log10_variance"].value == -1.0
    [text] = found.Tensors("normscope/findings/text_summary")
    assert b"dead-layer" in text.tensor_proto.string_val[0]


def test_what_is_missing_or_wrong_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder or a SummaryWriter"):
        TensorBoardSink(3)
    with pytest.raises(InputError, match="log method"):
        WandbSink("run")
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "wandb" or name == "torch.utils.tensorboard":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"normscope\[watch\]"):
        WandbSink()
    with pytest.raises(InputError, match=r"normscope\[watch\]"):
        TensorBoardSink(tmp_path)


def test_a_watched_loop_begins_and_closes_its_sinks() -> None:
    class Sink(Target):
        def begin(self, layers: Any, metadata: Any) -> None:
            self.names = [layer.name for layer in layers if layer.kind == "normalizer"]
            assert metadata["step"] == 0

        def __call__(self, record: Record, findings: Any) -> None:
            self.log({"step": record.step})

        def close(self) -> None:
            self.closed = True

    sink, target = Sink(), Target()
    losses("mlp", 4, watched=lambda m, o: watch(m, o, every=2, sinks=[sink, WandbSink(target)]))
    assert sink.names == ["1", "5"]
    assert len(sink.rows) == 2
    assert sink.closed
    assert [step for _, step in target.rows] == [0, 2]
    assert "normscope/normalizer/5/log10_variance" in target.rows[0][0]


def test_a_sink_that_cannot_begin_is_left_out() -> None:
    class Broken:
        def begin(self, layers: Any, metadata: Any) -> None:
            raise OSError("no room")

        def __call__(self, record: Record, findings: Any) -> None:
            raise AssertionError

    with pytest.warns(UserWarning, match="a sink failed") as caught:
        losses("mlp", 3, watched=lambda m, o: watch(m, o, every=1, sinks=[Broken()]))
    assert len(caught) == 1
