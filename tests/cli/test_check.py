"""`normscope check`: what it prints and writes, and its exit codes."""

import json
from pathlib import Path

import pytest

DEEP = """
import torch
from torch import nn


def deep():
    torch.manual_seed(0)
    hidden = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Sigmoid())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))
"""


def test_a_healthy_model(work: Path, run) -> None:
    done = run("check", "net.py:build", "--data", "digits")
    assert done.code == 0, done.err
    assert "No problems found" in done.out
    assert "9 forward passes and 1 backward pass" in done.out
    assert "batch_norm" in done.out


def test_a_deep_one_fails_where_it_shall(work: Path, run) -> None:
    (work / "deep.py").write_text(DEEP)
    done = run("check", "deep.py:deep", "--data", "digits", "--json", "c.json", "--html", "c.html")
    assert done.code == 0, done.err
    assert "gradient-vanishing" in done.out
    assert "wrote c.html" in done.out
    assert json.loads(Path("c.json").read_text())["findings"][0]["code"] == "gradient-vanishing"
    assert "<svg" in Path("c.html").read_text()
    shown = run("show", "c.json", "--html", "shown.html")
    assert shown.code == 0, shown.err
    assert "gradient-vanishing" in shown.out
    assert "<svg" in Path("shown.html").read_text()
    done = run("check", "deep.py:deep", "--data", "digits", "--fail-on", "warning", "--json", "c.json")
    assert done.code == 1
    assert "1 finding reaches --fail-on warning" in done.err
    assert run("check", "deep.py:deep", "--data", "digits", "--fail-on", "error").code == 0


def test_findings_as_sarif(work: Path, run) -> None:
    (work / "deep.py").write_text(DEEP)
    done = run("check", "deep:deep", "--data", "digits", "--sarif", "f.sarif", "--fail-on", "warning")
    assert done.code == 1
    assert "wrote f.sarif" in done.out
    log = json.loads(Path("f.sarif").read_text())
    assert log["version"] == "2.1.0"
    (scan,) = log["runs"]
    assert [rule["id"] for rule in scan["tool"]["driver"]["rules"]] == ["gradient-vanishing"]
    (result,) = scan["results"]
    assert (result["ruleId"], result["level"]) == ("gradient-vanishing", "warning")
    (location,) = result["locations"]
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "1"
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "deep.py"
    assert run("audit", "deep:deep", "--data", "digits", "--sarif", "a", "--json", "a").code == 2


PROBABILITIES = """
import torch
from torch import nn


def probabilities():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10), nn.Softmax(dim=1))
"""


@pytest.mark.parametrize("verb", ["check", "audit"])
def test_a_loss_by_name(verb: str, work: Path, run) -> None:
    (work / "probabilities.py").write_text(PROBABILITIES)
    done = run(verb, "probabilities.py:probabilities", "--data", "digits", "--loss", "cross_entropy")
    assert done.code == 0, done.err
    assert "activation-before-loss" in done.out
    refused = run(verb, "probabilities.py:probabilities", "--data", "digits", "--loss", "cosine")
    assert refused.code == 2
    assert "there is no loss 'cosine'" in refused.err
