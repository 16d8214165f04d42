"""What the tests of the command line share: a folder with a user's code, and the command as a user runs it."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import normscope
from normscope import cli

NET = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    hidden = [nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(16, 10))


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return {"first": self.layer(x), "second": 2.0 * x}


model = build().eval()
doubled = build().double().eval()
broken = build().eval()
with torch.no_grad():
    broken[1].weight[0, 0] = float("nan")
number = 3
loader = [torch.randn(8, 1, 8, 8), torch.randn(8, 1, 8, 8)]
vectors = torch.randn(40, 4)
pairs = torch.utils.data.TensorDataset(torch.randn(70, 1, 8, 8), torch.zeros(70))


def returns_a_number():
    return 5


def needs(width):
    return nn.Linear(width, width)


def raises():
    raise ValueError("the weights are gone\\nand so is the second line")


def leaves():
    raise SystemExit("argparse would say this")


class Falls(nn.Module):
    def forward(self, x):
        raise RuntimeError("this forward always falls")


def empty():
    return []


def stream():
    for _ in range(100):
        yield torch.randn(4, 1, 8, 8), torch.zeros(4)


def tears():
    yield torch.randn(4, 1, 8, 8)
    raise OSError("the disk went away")


def wrong_shape():
    return [torch.randn(4, 3)]


def rows(out, y):
    return out.sum(1)
"""


@dataclass(frozen=True)
class Outcome:
    """What a run of the command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def net_source() -> str:
    """The code of a user's `net.py`."""
    return NET


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, net_source: str) -> Path:
    """Stand in an empty folder that holds a user's `net.py`."""
    (tmp_path / "net.py").write_text(net_source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def shell(work: Path) -> Callable[..., Outcome]:
    """Run the command in a process of its own, in the user's folder."""
    environment = os.environ | {"PYTHONPATH": str(Path(normscope.__file__).parents[1]), "HF_HUB_OFFLINE": "1"}

    def invoke(*arguments: object) -> Outcome:
        command = [sys.executable, "-m", "normscope", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=work, env=environment)
        return Outcome(done.returncode, done.stdout, done.stderr)

    return invoke


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the command in this process, as the console script does."""

    def invoke(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["normscope", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "160")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        capfd.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return invoke
