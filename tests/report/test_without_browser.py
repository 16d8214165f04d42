"""What the tests in a browser do on a machine that has none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST = "tests/report/test_browser.py::test_an_injected_script_would_not_run"


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("1", "1 error")])
def test_they_are_skipped_with_a_reason_and_fail_in_continuous_integration(tmp_path, ci, outcome):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CHROMIUM", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", TEST],
        cwd=ROOT,
        env=environment | {"PATH": str(tmp_path), "CI": ci},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert outcome in done.stdout.splitlines()[-1], done.stdout
    assert "no chromium was found: apt-get install chromium" in done.stdout
    assert (done.returncode == 0) == (not ci)


def test_continuous_integration_says_that_it_is_one():
    before, make, _ = (ROOT / ".ci" / "run").read_text().partition("\nmake ")
    assert make
    assert "\nexport CI=1" in before
