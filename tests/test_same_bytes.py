"""Figures do not depend on the clock: the same call gives the same bytes, and what `max_seconds` cuts is said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import normscope as ns
import normscope_lab
from normscope.auditing.bare_weights import audit_weights
from normscope.bounds import lower
from normscope.bounds.graph_weights import multiplications, passes

from .core.clocks import made

SOURCE = Path(ns.__file__).parent
READS_A_CLOCK = re.compile(
    r"\b(time\.monotonic|from time import|perf_counter|process_time|thread_time|time_ns|time\.time|timeit|datetime)\b"
)
MAY_READ_A_CLOCK = ("core/budget.py", "doctor/monitor/", "doctor/pages/live.py")  # the last for the age of a log


CALLS: dict[str, Callable[..., Any]] = {
    "lipschitz": ns.lipschitz,
    "tight": lambda *given, **more: ns.lipschitz(*given, effort="tight", **more),
    "point": lambda *given, **more: ns.lipschitz(*given, scope="point", **more),
    "ball": lambda *given, **more: ns.lipschitz(*given, scope="ball", radius=0.1, **more),
    "tight ball": lambda *given, **more: ns.lipschitz(*given, scope="ball", radius=0.1, effort="tight", **more),
    "differences": lambda *given, **more: ns.lipschitz(*given, per="difference", effort="tight", **more),
    "ladder": lambda *given, **more: ns.ladder(*given, effort="tight", **more),
    "radii": ns.certified_radius,
    "tight radii": lambda *given, **more: ns.certified_radius(*given, effort="tight", **more),
    "sensitivity": lambda *given, **more: ns.weight_sensitivity(*given, loss="cross_entropy", **more),
    "audit": ns.audit,
    "weights": lambda model, _, **more: audit_weights(
        {name: (lambda value=value: value) for name, value in model.state_dict().items()}, **more
    ),
}

QUICK = [("audit", "chain"), ("point", "chain"), ("sensitivity", "chain"), ("weights", "chain")]
"""Under two seconds together; the other pairs are slow."""
PAIRS = [
    pytest.param(call, name, marks=[] if (call, name) in QUICK else [pytest.mark.slow])
    for call in CALLS
    for name in ("chain", "normalized", "skip", "convolution", "attention")
    if name != "attention" or call in ("lipschitz", "tight", "point", "ball", "ladder", "audit", "weights")
]


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer steps, so that the tests are quick: the count does not matter here."""
    monkeypatch.setattr(lower, "ATTACK_STEPS", 60)


def written(call: str, name: str, **more: Any) -> str:
    """Return the JSON of a call as text."""
    return json.dumps(CALLS[call](*made(name), **more).to_json())


@contextmanager
def clock(tick: Callable[[], float]) -> Iterator[None]:
    """Let every clock of the process tell other times."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("monotonic", "perf_counter", "time", "process_time"):
            patch.setattr(time, name, tick)
        yield


def jumping(step: float = 1e5) -> Callable[[], float]:
    """A clock that is a day later at every look."""
    now = [0.0]

    def tick() -> float:
        now[0] += step
        return now[0]

    return tick


@pytest.mark.parametrize(("call", "name"), PAIRS)
def test_neither_the_clock_nor_a_second_run_changes_a_byte(call: str, name: str) -> None:
    first = written(call, name)
    with clock(jumping()):
        assert written(call, name) == first
    assert "max_seconds" not in first


SCRIPT = """
import json, sys
sys.path[:0] = [{root!r}, {source!r}]
import torch
torch.set_num_threads(1)
from tests import test_same_bytes as cases
cases.lower.ATTACK_STEPS = 60
for call, name in {pairs!r}:
    print(cases.written(call, name))
"""


def process(pairs: list[tuple[str, str]], hash_seed: int) -> subprocess.Popen[str]:
    code = SCRIPT.format(root=str(Path(__file__).parents[1]), source=str(SOURCE.parent), pairs=pairs)
    given = os.environ | {"PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=given)


@pytest.mark.slow
def test_processes_side_by_side_write_the_same_bytes() -> None:
    """Three at once on whatever cores there are, with other orders of sets: each keeps the others busy."""
    pairs = [("audit", "chain"), ("ladder", "skip")]
    running = [process(pairs, hash_seed) for hash_seed in (1, 2, 3)]
    first, *others = (each.communicate(timeout=600)[0] for each in running)
    assert len(first.splitlines()) == len(pairs)
    assert all(json.loads(line) for line in first.splitlines())
    assert others == [first, first]


class TestLargeNetworks:
    def test_steps_are_fewer_through_larger_networks(self) -> None:
        sizes = (8, 64, 512)
        models = [nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n)).eval() for n in sizes]
        graphs = [ns.capture(model, torch.ones(2, n)) for model, n in zip(models, sizes, strict=True)]
        costs = [multiplications(graph) for graph in graphs]
        assert costs == [2 * n * n + 3 * n for n in sizes]
        steps = [passes(graph, 600, work=1e7, least=6) for graph in graphs]
        assert steps == [600, 600, 19]
        assert passes(graphs[-1], 600, work=1.0, least=6) == 6

    @pytest.mark.slow
    def test_convolutions_and_attention_are_counted(self) -> None:
        conv = ns.capture(nn.Conv2d(3, 5, 3, padding=1).eval(), torch.ones(1, 3, 8, 8))
        assert multiplications(conv) == 5 * 64 * 27 + 5 * 64
        tokens = [multiplications(ns.capture(made("attention")[0], torch.ones(1, n, 6))) for n in (4, 40, 400)]
        assert tokens[2] > 10.5 * tokens[1] > 100 * tokens[0]


def test_no_other_file_reads_a_clock() -> None:
    files = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    reading = {name for name, text in files.items() if READS_A_CLOCK.search(text)}
    assert "core/budget.py" in reading
    assert [name for name in reading if not name.startswith(MAY_READ_A_CLOCK)] == []


def test_of_the_lab_only_the_day_and_the_cost_of_a_result_are_read_off_a_clock() -> None:
    lab = Path(normscope_lab.__file__).parent
    reading = [path.relative_to(lab) for path in lab.rglob("*.py") if READS_A_CLOCK.search(path.read_text())]
    assert reading == [Path("experiments/origin.py")]
