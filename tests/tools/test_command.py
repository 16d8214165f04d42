"""`normscope bound verify`, and how the script gets into an installed package."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import normscope as ns
from normscope import cli
from normscope.cli.bounding import checker_folder

from .proofs import SCRIPT, File


@pytest.fixture
def run(monkeypatch, capfd):
    def invoke(*arguments):
        monkeypatch.setattr(sys, "argv", ["normscope", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        shown = capfd.readouterr()
        return exit_.value.code or 0, shown.out, shown.err

    return invoke


@pytest.fixture
def norm(tmp_path) -> Path:
    ns.spectral_norm(torch.tensor([[3.0, 1.0], [0.0, 2.0]])).save(tmp_path / "norm.npz")
    return tmp_path / "norm.npz"


def test_the_command_runs_the_very_script(run, norm):
    assert checker_folder() == SCRIPT
    code, out, err = run("bound", "verify", norm)
    assert (code, err) == (0, "")
    alone = subprocess.run([sys.executable, SCRIPT, norm], capture_output=True, text=True)
    assert (alone.returncode, alone.stdout) == (0, out)
    assert out.count(": VERIFIED") == 2


def test_exit_codes_say_what_was_found(run, norm, tmp_path):
    file = File.of(norm)
    file.claim("upper")["log10"] -= 0.1
    false = file.write(tmp_path / "false.npz")
    code, out, _ = run("bound", "verify", norm, false)
    assert code == 1
    assert (out.count(": VERIFIED"), out.count(": REJECTED")) == (3, 1)
    (tmp_path / "torn.npz").write_bytes(norm.read_bytes()[:100])
    code, out, err = run("bound", "verify", norm, tmp_path / "torn.npz")
    assert (code, out.count(": VERIFIED")) == (2, 2)
    assert err.startswith("normscope: ")
    assert err.count("\n") == 1
