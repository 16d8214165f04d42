"""What the catalogue has not: coupled L2 that collapses variances, and when alarms are looked for."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from normscope.core.finding import Severity
from normscope.doctor.monitor.watching import watch
from normscope.doctor.symptoms.normalizer_gain import FALL_COUPLED_DECADES

from .alarm_runs import data, mlp, residual, sgd, train, warned
from .training import only_at_first


def named(run, code):
    return next(finding for finding in run.findings if finding.code == code)


def collapsing(optimizer) -> dict:
    """Two easy classes, fitted within fifty steps: then gradients vanish and the decay alone is left."""
    options = {"lr": 1e-2, "weight_decay": 1e-2}
    return {
        "model": residual(blocks=1, classes=2),
        "optimizer": partial(optimizer, **options),
        "steps": 200,
        "tier": "economy",
        "samples": data(classes=2, samples=256),
    }


@pytest.mark.slow
def test_coupled_l2_in_adam_collapses_variances_and_is_named():
    run = train(**collapsing(torch.optim.Adam))
    assert len(warned(run)["variance-collapse"]) >= 2
    found = named(run, "variance-collapse")
    assert found.severity is Severity.WARNING
    assert found.numbers["coupled"] == 1
    assert found.numbers["weight_decay"] == 1e-2
    assert found.numbers["log10_variance"] <= found.numbers["log10_variance_first"] - FALL_COUPLED_DECADES
    assert found.numbers["log10_norm"] < found.numbers["log10_norm_first"]
    assert "coupled L2" in found.why
    assert "scale invariant" in found.why
    assert "AdamW" in found.advice
    assert "weight_decay=0" in found.advice
    assert "small-batch" not in warned(run)


@pytest.mark.slow
def test_the_same_decay_in_adamw_collapses_nothing():
    run = train(**collapsing(torch.optim.AdamW))
    assert run.records[-1].loss < 0.01
    assert not warned(run)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("end", ["exit", "flush"])
def test_alarms_are_looked_for_in_time_and_at_the_end(end, monkeypatch):
    """Without any time for alarms: at the latest after ten records, and whatever is left at a flush or at the end."""
    only_at_first(monkeypatch, records=2)
    told = []

    @torch.no_grad()
    def kill(model, step):
        if step == 40:
            model.linear2.bias.fill_(-50.0)

    late = train(mlp(), sgd(0.01), before=kill, steps=100)
    assert (named(late, "dead-relu").where, named(late, "dead-relu").step) == ("relu2", 50)
    model = mlp()
    optimizer = sgd(0.01)(model.parameters())
    images, labels = data()
    with watch(model, optimizer, every=10, tier="standard", sinks=[lambda r, f: told.extend(f)]) as run:
        for step in range(291):
            kill(model, step - 100)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[:16]), labels[:16]).backward()
            optimizer.step()
            if end == "flush" and step in (145, 201):
                run.flush()
                assert ("dead-relu" in {f.code for f in run.findings}) == (step == 201)
    assert 150 <= named(run, "dead-relu").step <= 150 + 100, "ten records after the second that says so"
    assert [f.code for f in told] == [f.code for f in run.findings], "sinks hear of all, once"
