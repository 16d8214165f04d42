"""The demo, with less training."""

import pytest

from normscope.auditing.audit_result import Audit
from normscope.cli import demo


@pytest.mark.slow  # `make demo` is the same
def test_the_demo_compares_four_networks_and_writes_a_report(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "EPOCHS", 1)
    monkeypatch.setattr(demo, "CERTIFIED", 2)
    monkeypatch.setattr(demo, "SAMPLES", 8)
    done = run("demo")
    assert done.code == 0
    assert all(line.startswith("normscope: training and auditing: ") for line in done.err.splitlines())
    assert done.out.endswith("report: normscope-demo/report.html\n")
    names = ["MLP", "MLP + BatchNorm", "MLP + LayerNorm", "MLP + GroupNorm"]
    page = (tmp_path / "normscope-demo/report.html").read_text()
    for name, file in zip(names, demo.NETWORKS):
        assert name in done.out
        assert name in page
        assert f"Audit of {name}" not in page  # one comparison, and no four reports in a row
        assert f"Audit of {name}" in (tmp_path / f"normscope-demo/{file}.html").read_text()
        audit = Audit.from_json(tmp_path / f"normscope-demo/{file}.json")
        assert (audit.name, audit.mode) == (name, "eval")
        assert audit.samples > 1000
    assert "accuracy" in done.out
    assert "Accuracy within a radius" in done.out
    assert "Samples that provably keep their class" in page
    assert page.count('<li><a href="#part-') <= 8
    assert page.index('class="lead"') < page.index("<table") < page.index("<details")
