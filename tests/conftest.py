"""What every test shares: hypothesis profiles, the meaning of the `browser`, `gpu`, `slow` and `one_in` marks."""

import functools
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis
import pytest
import threadpoolctl
import torch
from torch._subclasses import fake_impls
from torch.export import exported_program

from normscope.bounds.graph import capturing

from .report.browser import CHROMIUM, MISSING

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("random", derandomize=False, deadline=None, print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    # Processes side by side share the cores. With all 16 cores for each, eight processes took 15 times as long, and the
    # time limit, which ends a process and not a test, made workers die.
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        threads = max(1, (os.cpu_count() or 1) // processes)
        torch.set_num_threads(min(threads, torch.get_num_threads()))
        threadpoolctl.threadpool_limits(threads)
    # `make test` must give the same answer twice; `make test-slow`, which takes the slow tests in, looks for news.
    hypothesis.settings.load_profile("fixed" if "not slow" in config.option.markexpr else "random")


@pytest.hookimpl(tryfirst=True)  # before pytest itself leaves the slow tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark is not None and item.get_closest_marker("slow") is None:
            test = item.nodeid.split("[")[0]
            if cases[test] % mark.args[0] > 0:
                item.add_marker(pytest.mark.slow)
            cases[test] += 1
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        # Continuous integration has a browser; there its absence is an error, which the tests raise themselves.
        if item.get_closest_marker("browser") and CHROMIUM is None and not os.environ.get("CI"):
            item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(autouse=True)
def _short_searches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches from below are short but in slow tests: what a longer one finds is tested where it is its own."""
    monkeypatch.setattr("normscope.bounds.radius.certifier.ATTACK_STEPS", 100)
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr("normscope.bounds.lower.ATTACK_STEPS", 150)


@pytest.fixture
def seeded() -> Iterator[None]:
    """A test draws the same numbers whatever ran before it, and leaves those of the others alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(autouse=True, scope="session")
def _exports_take_half_the_time() -> Iterator[None]:
    """The same graphs (tests/graph/test_quickly.py), without what torch does anew for each of thousands of exports."""
    with pytest.MonkeyPatch.context() as patch:
        for name in SLOWLY:
            patch.setattr(capturing, name, functools.partial(_quickly, name))
        yield


@pytest.fixture
def plain_exports() -> dict[str, Callable[..., Any]]:
    """What these functions of `normscope.bounds.graph.capturing` are outside of the tests."""
    return SLOWLY


SLOWLY = {name: getattr(capturing, name) for name in ("_export", "_rewritten")}


def _quickly(name: str, *args: Any) -> Any:
    """Export in half the time.

    For each export torch lists its operators, makes ten thousand functions, enters them into tables and takes them out
    again. Here operators are listed and functions made once, and the garbage collector waits.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exported_program, "_override_composite_implicit_decomp", _entered)
            patch.setattr(exported_program, "_collect_all_valid_cia_ops", _collected)
            return SLOWLY[name](*args)
    finally:
        if collecting:
            gc.enable()


_collected = functools.cache(exported_program._collect_all_valid_cia_ops)
ENTER = exported_program._override_composite_implicit_decomp
ENTERED: dict[Any, tuple[dict[Any, dict[Any, Any]], dict[Any, Any]]] = {}
"""For each table of operators: what torch added to their kernels, and to the rules of fake tensors."""


@contextmanager
def _entered(table: dict[Any, Any]) -> Iterator[None]:
    """Do what `_override_composite_implicit_decomp` does, with what it made the first time."""
    fakes = fake_impls.op_implementations_dict
    before = {op: dict(op.py_kernels) for op in table}
    key = frozenset(table.items())
    if key not in ENTERED:
        with ENTER(table):
            added = {op: {k: v for k, v in op.py_kernels.items() if before[op].get(k) is not v} for op in table}
            ENTERED[key] = added, {op: fakes[op] for op in table if op in fakes}
            yield
        return
    added, rules = ENTERED[key]
    for op, kernels in added.items():
        op.py_kernels.update(kernels)
        op._dispatch_cache.clear()
    fakes.update(rules)
    try:
        yield
    finally:
        for op, kernels in before.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()
            fakes.pop(op, None)
