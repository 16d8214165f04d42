"""Runs of a few milliseconds have no time to share out: the tests measure every layer at every measured step."""

import pytest


@pytest.fixture(autouse=True)
def _no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.monitor.watching.SHARE", None)
