"""A quantity is known by its declaration: what is misspelt, declared twice or written without one fails at once."""

from __future__ import annotations

import gc
import runpy
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.doctor.monitor import quantities
from normscope.doctor.monitor.history import History
from normscope.doctor.monitor.quantities import DECLARED, PROBES
from normscope.doctor.monitor.quantities.outputs import Outputs
from normscope.doctor.monitor.quantities.quantity import Probe, Quantity, RecordDraft
from normscope.doctor.monitor.record import Record
from normscope.doctor.monitor.step_measurement import StepMeasurement
from normscope.doctor.monitor.watching import watch

from .training import run_watched

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "ask",
    [
        lambda record, history: record.of("weight", "log10_nrom"),
        lambda record, history: record.number("normalizer", "log10_varianec", 0),
        lambda record, history: record.total_of("log10_gradinet"),
        lambda record, history: history.value_series("units", "daed", 0),
        lambda record, history: history.series_by_layer("weight", "dead"),
        lambda record, history: history.total("los"),
        lambda record, history: list(history.lasting("weight", "saturated_tahn")),
    ],
)
def test_a_misspelt_quantity_fails_at_once(ask: Any) -> None:
    with pytest.raises(InputError, match="declared are"):
        ask(Record(step=0, seconds=0.0, tier="economy"), History())


def test_a_declared_quantity_that_was_not_measured_is_empty() -> None:
    record, history = Record(step=0, seconds=0.0, tier="economy"), History()
    for of, name in DECLARED:
        if of == "network":
            assert record.total_of(name) is None
            assert history.total(name).first == []
        elif of not in ("metrics", "record", "histograms"):
            assert record.of(of, name) == ()  # type: ignore[arg-type]
            assert history.series_by_layer(of, name).starts() == {}  # type: ignore[arg-type]


def test_what_a_probe_writes_without_a_declaration_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on, and says so."""

    def fill(self: Outputs, record: RecordDraft) -> None:
        record.network(Quantity("network", "output_spraed", "misspelt"), 1.0)

    monkeypatch.setattr(Outputs, "fill", fill)
    with pytest.warns(UserWarning, match="output_spraed"):
        run = run_watched(nn.Linear(2, 1), torch.randn(4, 2), steps=1)
    assert not run.records


def test_every_probe_of_the_folder_is_listed_and_its_quantities_are_on_the_page() -> None:
    names = [f"{quantities.__name__}.{module.name}" for module in iter_modules(quantities.__path__)]
    written = {one for name in names for one in vars(import_module(name)).values() if isinstance(one, type)}
    assert {one for one in written if issubclass(one, Probe) and one is not Probe} == set(PROBES)
    page = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(ROOT / "tools" / "written_pages.py"))["watching_page"](page) == page


def test_a_step_that_is_recorded_is_gone_without_a_search_for_cycles() -> None:
    """Some loops switch the search off."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    gc.disable()
    try:
        with watch(model, optimizer, every={"standard": 1, "full": 4}, overhead=None) as run:
            for _ in range(6):
                optimizer.zero_grad()
                loss = model(torch.randn(16, 4)).square().mean()
                run.observe(loss=loss)
                loss.backward()
                optimizer.step()
            assert sum(type(one) is StepMeasurement for one in gc.get_objects()) <= 1
    finally:
        gc.enable()
