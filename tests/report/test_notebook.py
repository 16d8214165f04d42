"""Results in notebooks: each shows itself, and the sheets of nbconvert and JupyterLab do not spoil it."""

import html
import math
import re

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core.markup import card
from normscope.report.html import to_fragment

from .browser import Browser
from .documents import HOSTILE, document

NBCONVERT = """
.jp-RenderedHTMLCommon { color: red; font-family: serif; font-size: 14px; line-height: 1.6; padding-right: 20px; }
.jp-RenderedHTMLCommon h1, .jp-RenderedHTMLCommon h2, .jp-RenderedHTMLCommon h3 { font-weight: 400; margin: 3em 0; }
.jp-RenderedHTMLCommon ul:not(.list-inline), .jp-RenderedHTMLCommon ol:not(.list-inline) { padding-left: 2em; }
.jp-RenderedHTMLCommon ul { list-style: disc; }
.jp-RenderedHTMLCommon :not(pre) > code { background-color: rgb(1, 2, 3); padding: 1px 5px; }
.jp-RenderedHTMLCommon table { border-collapse: collapse; border: none; font-size: 20px; table-layout: fixed;
  margin-left: auto; margin-right: auto; }
.jp-RenderedHTMLCommon thead { border-bottom: 3px solid red; vertical-align: bottom; }
.jp-RenderedHTMLCommon td, .jp-RenderedHTMLCommon th, .jp-RenderedHTMLCommon tr { vertical-align: middle;
  padding: 0.5em 0.5em; line-height: normal; white-space: normal; max-width: none; border: none; }
:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon td, :not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon th,
:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon tr { text-align: right; }
.jp-RenderedHTMLCommon tbody tr:nth-child(odd) { background: rgb(9, 9, 9); }
.jp-RenderedHTMLCommon p { text-align: right; margin: 0; margin-bottom: 1em; }
.jp-RenderedHTMLCommon img, .jp-RenderedHTMLCommon svg { max-width: 100%; height: auto; }
.jp-RenderedHTMLCommon dl dt { font-weight: 900; margin-left: 5em; }
.rendered_html td, .rendered_html th, .rendered_html tr { text-align: right; }
"""
"""The rules of nbconvert's lab template that touch what a report is made of, with louder values."""

LOOK = """(() => {
  const of = (selector, names) => [...document.querySelectorAll('.normscope ' + selector)].map(element => {
    const style = getComputedStyle(element); return names.map(name => style[name]).join(' | '); });
  const names = ['color', 'fontSize', 'fontWeight', 'textAlign', 'verticalAlign', 'padding', 'margin', 'lineHeight',
    'backgroundColor', 'borderBottomWidth', 'whiteSpace', 'tableLayout', 'display', 'listStyleType'];
  return ['td', 'th', 'tr', 'table', 'thead', 'p', 'h1', 'h2', 'h3', 'ul', 'ol', 'li', 'dl', 'dt', 'dd', 'code', 'svg',
    'details', 'summary', 'figure', '.notice', '.figures', '.legend'].map(tag => [tag, of(tag, names)]);
})()"""


@pytest.mark.browser
def test_the_sheets_of_nbconvert_change_nothing(tmp_path):
    around = '<body><div class="jp-RenderedHTMLCommon rendered_html">'
    cell = f"<!DOCTYPE html><meta charset=utf-8><style>{{}}</style>{around}{{}}</div>"
    seen = []
    with Browser() as chromium:
        for sheet in ("", NBCONVERT):
            file = tmp_path / "cell.html"
            file.write_text(cell.format(sheet, to_fragment(document())), encoding="utf-8")
            chromium.open(file, width=1000)
            seen.append(chromium.evaluate(LOOK))
    alone, inside = map(dict, seen)
    assert alone["td"]
    assert alone["code"]
    assert [tag for tag, looks in alone.items() if inside[tag] != looks] == []


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
