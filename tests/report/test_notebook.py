"""Results in notebooks: each shows itself, and no name of it runs."""

import html
import math
import re

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core.errors import card

from .documents import HOSTILE


def test_a_list_of_findings_shows_itself_as_one_card_per_kind():
    alike = {"code": "dead-layer", "why": "So.", "advice": "Revive it."}
    wrong = [ns.Finding(severity=ns.Severity.WARNING, where=w, seen=f"All of `{w}` is zero.", **alike) for w in "ab"]
    findings = ns.Check.from_json(
        ns.check(nn.Linear(2, 2), torch.ones(3, 2)).to_json() | {"findings": [finding.to_json() for finding in wrong]}
    ).findings
    assert findings == tuple(wrong)
    shown = findings._repr_html_()
    assert shown.count("<article") == 1
    assert "All of <code>a</code> and <code>b</code> is zero." in shown
    assert "advice: Revive it." in str(findings)


def test_a_watched_run_shows_its_alarms_so_far():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ns.watch(model, optimizer, every=1) as run:
        for factor in (1.0, math.nan):
            optimizer.zero_grad()
            loss = factor * model(torch.ones(3, 4)).square().mean()
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    shown = run._repr_html_()
    assert "loss-not-finite" in shown
    assert "2 steps measured" in shown
    assert repr(run).startswith("<Watch: 2 steps")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text_in_small_cards(name):
    finding = ns.Finding(code=name, severity=ns.Severity.INFO, where=name, seen=name, why=name, advice=name)
    bracket = ns.Bracket(
        log10_lower=0.0, log10_upper=math.inf, evidence=ns.Evidence.SAMPLED, method=name, reason=name, notes=(name,)
    )
    for shown in (finding._repr_html_(), bracket._repr_html_()):
        assert set(re.findall(r"<(\w+)", shown)) - {"code"} == {"div", "strong", "table", "tr", "td"}
        assert not set(shown) & set("\u202e\x1b\u2028\ud800")
        shown.encode("utf-8")
    assert html.escape("<b>") in card("<b>", {})
