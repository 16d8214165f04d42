"""Results in notebooks: each shows itself, and no name of it runs."""

import html
import math
import re

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core.markup import card

from .documents import HOSTILE


def results():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    batch = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    return {
        "bracket": ns.spectral_norm(torch.eye(3)),
        "ladder": ns.ladder(model, batch, max_seconds=0.2),
        "graph": ns.capture(model, batch),
        "finding": ns.Finding(
            code="dead-layer", severity=ns.Severity.WARNING, where="4.1", seen="It is.", why="So.", advice="Revive it."
        ),
    }


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bracket", ("1 to 1", "PROVEN", "global")),
        ("ladder", ("best bound", "seen at the data", "evidence", "<svg")),
        ("graph", ("Graph of 3 operators in eval mode, over one sample", "linear", "relu")),
        ("finding", ("warning: dead-layer", "4.1", "It is.", "Revive it.")),
    ],
)
def test_every_result_shows_itself(name, words):
    shown = results()[name]._repr_html_()
    assert all(word in shown for word in words)
    assert "<script" not in shown
    assert shown.count("<table") == shown.count("</table>") == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text_in_small_cards(name):
    finding = ns.Finding(code=name, severity=ns.Severity.INFO, where=name, seen=name, why=name, advice=name)
    bracket = ns.Bracket(
        log10_lower=0.0, log10_upper=math.inf, evidence=ns.Evidence.SAMPLED, method=name, reason=name, notes=(name,)
    )
    for shown in (finding._repr_html_(), bracket._repr_html_()):
        assert set(re.findall(r"<(\w+)", shown)) == {"div", "strong", "table", "tr", "td"}
        assert not set(shown) & set("\u202e\x1b\u2028\ud800")
        shown.encode("utf-8")
    assert html.escape("<b>") in card("<b>", {})
