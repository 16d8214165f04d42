"""Capture leaves the rest of the process alone: what other threads say arrives, and two captures may run at once."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.graph.capturing import LOGGERS
from normscope.core.errors import CaptureError


@pytest.fixture(autouse=True, scope="module")
def _all_is_imported():
    """sympy, which torch.export imports, adds a filter of warnings when it is imported."""
    capture(torch.relu)


class Calling(nn.Module):
    """Calls a function in every forward, traced ones too."""

    def __init__(self, function: Callable[[], object], body: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function, self.body = nn.Linear(3, 3), function, body

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            self.function()
        return self.body(self.linear(x))


def branch(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def broken(x: Tensor) -> Tensor:
    if torch.compiler.is_exporting():
        raise ValueError("not while it is traced")
    return x


BODIES = {"traced": torch.relu, "branch": branch, "error": broken}


def capture(body: Callable[[Tensor], Tensor], function: Callable[[], object] = lambda: None) -> None:
    model = Calling(function, body).eval()
    if body is torch.relu:
        ns.capture(model, torch.ones(2, 3))
    else:
        with pytest.raises(CaptureError):
            ns.capture(model, torch.ones(2, 3))


def in_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("logger", ["another", "torch.export"])
def test_log_messages_of_another_thread_arrive(body, logger, caplog):
    def speak() -> None:
        logging.getLogger(logger).error("from another thread")

    logging.getLogger(logger).addHandler(caplog.handler)  # torch's loggers do not hand on what they log
    try:
        capture(BODIES[body], lambda: in_thread(speak))
    finally:
        logging.getLogger(logger).removeHandler(caplog.handler)
    assert "from another thread" in caplog.messages


@pytest.mark.parametrize("body", BODIES)
def test_warnings_of_another_thread_arrive(body):
    def speak() -> None:
        warnings.warn("from another thread", FutureWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        capture(BODIES[body], lambda: in_thread(speak))
    assert "from another thread" in [str(warning.message) for warning in shown]


def process_state() -> object:
    loggers = [logging.root, *(logging.getLogger(name) for name in ("torch", *LOGGERS))]
    return (
        logging.root.manager.disable,
        [(logger.level, logger.disabled, logger.propagate, *logger.handlers, *logger.filters) for logger in loggers],
        list(warnings.filters),
        warnings.showwarning,
        sys.stderr,
        sys.stdout,
        torch.get_float32_matmul_precision(),
    )


@pytest.mark.parametrize("body", BODIES)
def test_the_process_is_as_found(body):
    before, inside = process_state(), queue.SimpleQueue()  # a list would be put back as it was found
    capture(BODIES[body], lambda: inside.put((logging.root.manager.disable, sys.stderr)))
    assert inside.get(block=False) == (0, sys.stderr)
    assert process_state() == before


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("bodies", [("traced", "traced"), ("traced", "branch"), ("branch", "error")])
def test_two_threads_capture_at_once(bodies):
    """Each of two threads waits inside its first trace until the other has begun a capture."""
    before, failures = process_state(), []
    begun = [threading.Event(), threading.Event()]

    def work(index: int) -> None:
        def wait() -> None:
            begun[1 - index].wait()

        try:
            for _ in range(3):
                begun[index].set()
                capture(BODIES[bodies[index]], wait)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert process_state() == before
