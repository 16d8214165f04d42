"""Adam with coupled L2 kills layers and the audit says so; AdamW does not."""

import subprocess
import sys
from pathlib import Path

import pytest

import normscope as ns

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


def dead(audit):
    return [f.where for f in audit.findings if f.code == "dead-layer" and f.severity >= ns.Severity.WARNING]


def test_the_held_audits_tell_the_two_apart():
    killed = ns.Audit.from_json(RESULTS / "dying_layers_adam_l2.json")
    alive = ns.Audit.from_json(RESULTS / "dying_layers_adamw.json")
    assert dead(killed)
    assert killed.findings[0].code == "dead-layer"
    assert not [finding for finding in alive.findings if finding.severity >= ns.Severity.WARNING]
    rows = {row.path: row for row in killed.layers}
    assert all(rows[where].log10_folded is None or rows[where].log10_folded < -3 for where in dead(killed))


@pytest.mark.slow
def test_training_it_again_gives_the_same_verdicts(tmp_path):
    script = ROOT / "benchmarks" / "dying_layers.py"
    subprocess.run([sys.executable, script, "--seeds", "1", "--out", tmp_path], check=True, capture_output=True)
    assert dead(ns.Audit.from_json(tmp_path / "dying_layers_adam_l2.json"))
    assert not dead(ns.Audit.from_json(tmp_path / "dying_layers_adamw.json"))
