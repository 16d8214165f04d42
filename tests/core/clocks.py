"""A clock for tests of budgets: it stands still, and runs out when it has been looked at so many times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from normscope.core import budget as module

NEVER = 10**9


class Clock:
    """A clock that stands still, and has run out from one look at it on."""

    def __init__(self, looks: int = NEVER) -> None:
        self.left, self.looks = looks, 0

    def monotonic(self) -> float:
        """Return the time, and count who looks."""
        self.looks += 1
        return 1e9 if self.late else 0.0

    @property
    def late(self) -> bool:
        """Whether it has run out."""
        return self.looks > self.left


@contextmanager
def clocked(looks: int = NEVER) -> Iterator[Clock]:
    """Let budgets look at another clock."""
    clock = Clock(looks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", clock)
        yield clock
