"""What every test shares: hypothesis profiles, the meaning of the `gpu` and `slow` marks."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import torch
from torch._export import utils as export_utils

from normscope.graph import export

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("random", derandomize=False, deadline=None, print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    # `make test` must give the same answer twice; `make test-slow`, which takes the slow tests in, looks for news.
    hypothesis.settings.load_profile("fixed" if "not slow" in config.option.markexpr else "random")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _short_attacks_in_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits of tests attack their radii only briefly; what a longer attack finds is tested where it is its own."""
    monkeypatch.setattr("normscope.diagnosis.auditing.RADII_SECONDS", 0.2)


@pytest.fixture(autouse=True, scope="session")
def _exports_take_half_the_time() -> Iterator[None]:
    """The same graphs (tests/graph/test_quickly.py), without what torch does anew for each of thousands of exports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_export", lambda *args: _quickly(*args))
        yield


@pytest.fixture
def plain_exports() -> Callable[..., Any]:
    """What `normscope.graph.export._export` is outside of the tests."""
    return SLOWLY


SLOWLY = export._export


def _quickly(*args: Any) -> Any:
    """Export in half the time.

    For each export torch enters ten thousand functions into the tables of its operators and takes them out again: it
    evaluates the annotations of a nested function for each, lists the operators of the dispatcher once per namespace,
    and keeps the garbage collector busy.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("torch._ops.Callable", _Callable, raising=False)
            patch.setattr(export_utils, "_materialize_cpp_cia_ops", _once(export_utils._materialize_cpp_cia_ops))
            return SLOWLY(*args)
    finally:
        if collecting:
            gc.enable()


class _Callables(type):
    def __getitem__(cls, parameters: Any) -> None:
        return None

    def __instancecheck__(cls, value: Any) -> bool:
        return callable(value)


class _Callable(metaclass=_Callables):
    """Stands for `collections.abc.Callable` in annotations that nobody reads."""


def _once(function: Callable[[], None]) -> Callable[[], None]:
    ran: list[bool] = []

    def first_time() -> None:
        if not ran:
            function()
            ran.append(True)

    return first_time
