"""Every loss counts, whatever step it is of, and other figures are kept beside it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core.errors import InputError
from normscope.doctor.monitor.log import read_log
from normscope.doctor.monitor.quantities.losses import WAITING_FIGURES, Observed, summarise
from normscope.doctor.monitor.record import Record
from normscope.doctor.monitor.series import Spikes
from normscope.doctor.monitor.watching import watch

from .training import losses, network


class Away(torch.Tensor):
    """A number that seems to lie on a device; nobody may read it there."""

    @property
    def device(self) -> Any:
        return torch.device("meta")

    def __float__(self) -> float:
        raise AssertionError("read from the device")

    item = __float__  # type: ignore[assignment]


def observed(watcher: Any, given: list[float], every: int = 10, **more: float) -> Any:
    """A run that does nothing but give its losses."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)  # a rate of zero has an alarm of its own
    with watcher(model, optimizer, every=every) as run:
        for loss in given:
            optimizer.zero_grad()
            model(torch.randn(4, 2)).sum().backward()
            run.observe(loss=loss, **more)
            optimizer.step()
    return run


def test_the_losses_of_all_steps_are_in_the_records() -> None:
    found, _, run = losses("mlp", 25, watched=lambda m, o: watch(m, o, every=10))
    assert [record.metrics["loss_count"] for record in run.records] == [1, 10, 10]
    for record, part in zip(run.records, (found[:1], found[1:11], found[11:21]), strict=True):
        assert record.metrics["loss_mean"] == pytest.approx(sum(part) / len(part))
        assert record.metrics["loss_least"] == pytest.approx(min(part))
        assert record.metrics["loss_largest"] == pytest.approx(max(part))
        assert record.metrics["loss_largest_at"] == found.index(max(part))
        assert record.metrics["loss_broken"] == 0
    assert [record.loss for record in run.records] == pytest.approx([found[0], found[10], found[20]])


class Sent:
    """What brings numbers from the device that is played here."""

    made = 0

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.numbers = [tensor.as_subclass(torch.Tensor).numpy().copy() for tensor in tensors]
        Sent.made += 1

    def arrived(self) -> bool:
        return True

    def open(self) -> list[Any]:
        return self.numbers


def test_losses_on_a_device_are_kept_as_they_are_and_sent_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.doctor.monitor.quantities.losses.Transfer", Sent)
    monkeypatch.setattr(Sent, "made", 0)
    held = Observed()
    for step in range(WAITING_FIGURES + 6):
        held.add(step, torch.tensor(float(step)).as_subclass(Away))
    assert Sent.made == 1
    held.send()
    assert held.open() == {step: float(step) for step in range(WAITING_FIGURES + 6)}
    assert not held.copies


@pytest.mark.parametrize("overwrite", ["in place", "unseen"])
def test_a_loss_that_is_written_over_is_left_out_and_the_next_are_copied(
    monkeypatch: pytest.MonkeyPatch, overwrite: str
) -> None:
    """A sum that grows in place, and the one place that a captured graph writes to, whose version stays."""
    monkeypatch.setattr("normscope.doctor.monitor.quantities.losses.Transfer", Sent)
    total, copies, records = torch.zeros(()), False, []
    for record in range(2):
        held = Observed(copies=copies)
        for step in range(3):
            if overwrite == "in place":
                total += 1.0
            else:
                total.numpy()[...] += 1.0
            held.add(3 * record + step, total.as_subclass(Away))
        held.send()
        copies, records = held.copies, [*records, held.open()]
    assert copies
    assert all(value == step + 1.0 for steps in records for step, value in steps.items())
    assert list(records[1]) == [3, 4, 5]


def test_accumulated_losses_are_one_step_and_broken_ones_are_counted_apart() -> None:
    held = Observed()
    for step, value in ((0, 1.0), (0, 3.0), (1, math.nan), (2, math.inf), (2, 5.0), (3, torch.tensor(4.0))):
        held.add(step, value)
    held.send()
    taken = held.open()
    assert {step: value for step, value in taken.items() if step != 1} == {0: 2.0, 2: 5.0, 3: 4.0}
    found = summarise({"loss": taken, "accuracy": {0: 0.5, 1: math.nan}, "none": {}})
    assert found == {
        "loss_mean": pytest.approx(11 / 3), "loss_least": 2.0, "loss_largest": 5.0, "loss_largest_at": 2.0,
        "loss_count": 4.0, "loss_broken": 1.0, "loss_broken_at": 1.0, "loss_broken_infinite": 0.0, "accuracy": 0.5,
    }  # fmt: skip
    assert "loss_jump" not in summarise({"loss": {0: 10.0, 1: 900.0}})
    jumped = summarise({"loss": {0: 1e-3, 1: 0.2, 2: 1.0}})
    assert (jumped["loss_jump"], jumped["loss_jump_from"], jumped["loss_jump_at"]) == (0.2, 1e-3, 1.0)
    broken = {"loss_count": 2.0, "loss_broken": 2.0, "loss_broken_at": 0.0}
    assert summarise({"loss": {0: math.nan, 1: math.inf}}) == broken | {"loss_broken_infinite": 0.0}
    assert summarise({"loss": {0: -math.inf, 1: math.nan}}) == broken | {"loss_broken_infinite": 1.0}


def test_other_figures_and_those_of_a_validation_are_logged_and_drawn(tmp_path: Path) -> None:
    model = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told: list[Any] = []

    class Sink:
        def __call__(self, record: Record, findings: Any) -> None:
            told.append(dict(record.metrics))

        def metrics(self, step: int, figures: Any) -> None:
            told.append((step, figures))

    with watch(model, optimizer, every=2, log=tmp_path, panel=False, sinks=[Sink()]) as run:
        for step in range(5):
            loss = model(torch.randn(4, 72)).square().mean()
            run.observe(loss=loss, accuracy=torch.tensor(0.1 * step), **{'a "b"': 1})
            loss.backward()
            optimizer.step()
            run.log_metrics(val_accuracy=0.5 + 0.1 * step, odd=math.nan)
    read = ns.Run(tmp_path)
    assert read.total("accuracy") == [(0, 0.0), (2, pytest.approx(0.15)), (4, pytest.approx(0.35))]
    assert read.total('a "b"') == [(0, 1.0), (2, 1.0), (4, 1.0)]
    assert read.total("val_accuracy") == [(step + 1, pytest.approx(0.5 + 0.1 * step)) for step in range(5)]
    assert [line["metrics"]["odd"] for line in read_log(tmp_path) if line["type"] == "metrics"] == ["nan"] * 5
    titles = {getattr(block, "title", "") for block in read.document().blocks}
    assert {"accuracy", "val_accuracy", 'a "b"'} <= titles
    assert [entry[0] for entry in told if isinstance(entry, tuple)] == [1, 2, 3, 4, 5]
    assert read.records == tuple(Record.from_json(record.to_json()) for record in run.records)
    assert "accuracy" in read.totals().columns


@pytest.mark.parametrize("call", ["observe", "log_metrics"])
@pytest.mark.parametrize("value", ["0.5", None, torch.ones(3), torch.tensor(1j), [0.5]])
def test_what_is_no_number_is_refused_by_its_name(call: str, value: Any) -> None:
    model = network("mlp")
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1)) as run:
        with pytest.raises(InputError, match="accuracy is a"):
            getattr(run, call)(accuracy=value)
        with pytest.raises(InputError, match="another name"):
            getattr(run, call)(loss_mean=1.0)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("every", [1, 10, 50])
@pytest.mark.parametrize("at", [133, 150, 199])
def test_a_spike_is_seen_at_whatever_step(every: int, at: int) -> None:
    given = [2.3 * 0.99**step + 0.02 * (step % 3) for step in range(260)]
    given[at] += 9.0
    [told] = observed(watch, given, every).findings
    assert (told.code, told.numbers["at"]) == ("loss-spike", at)
    assert at <= told.step < at + every


@pytest.mark.one_in(2)
@pytest.mark.parametrize("jump", [0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_losses_that_often_jump_are_no_spikes(jump: float, seed: int) -> None:
    """Small batches: most losses are small, one in twenty is that of a sample that is wrong."""
    drawn = torch.Generator().manual_seed(seed)
    found = Spikes()
    for step in range(2000):
        usual = 0.5 * torch.rand(10, generator=drawn)
        rare = (torch.rand(10, generator=drawn) < 0.05) * 4.0 * jump * (1 + 0.2 * torch.rand(10, generator=drawn))
        given = dict(enumerate((usual + rare + 2.0 * 0.99**step).tolist()))
        found.add(Record(step=step, seconds=0.0, tier="economy", metrics=summarise({"loss": given})))
    assert found.first is None
