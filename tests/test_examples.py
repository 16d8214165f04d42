"""The documentation's code is code that runs."""

import re
import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))


@pytest.fixture(autouse=True)
def _same_random_numbers():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_example_runs(script, capsys):
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out


def test_there_is_one_example_per_measurement():
    assert {script.stem for script in EXAMPLES} == {"capture", "spectral_norm", "lipschitz", "ladder"}


def test_the_quick_start_of_the_readme_runs(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_the_rule_of_the_contributing_guide_holds():
    """Registered under its real operator, put on trial, forgotten again."""
