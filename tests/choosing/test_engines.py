"""Jobs in processes of this machine, and what becomes of them when nobody waits for them any more."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from normscope.choosing.engines import processes


@dataclass(frozen=True)
class Sleepy:
    """Jobs that are numbers of seconds to sleep; each leaves a file when it began."""

    folder: Path
    local: bool = False

    def do(self, job: int) -> int:
        (self.folder / str(job)).touch()
        time.sleep(job)
        return job

    def failed(self, job: int, reason: str) -> int:
        return -1


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_jobs_that_are_given_up_are_ended_at_once(tmp_path: Path) -> None:
    results = processes(Sleepy(tmp_path), [0, 3600], 1)  # a second process would cost seconds and show no more
    assert next(results) == 0
    while not (tmp_path / "3600").exists():  # the long one is under way
        time.sleep(0.05)
    results.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()
