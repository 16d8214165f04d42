"""Every text of a file from anywhere comes out as text: on pages, in notebooks and on the live page."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core.errors import NormscopeError
from normscope.diagnosis.audit_result import Audit
from normscope.monitor.log import FILE
from normscope.monitor.run import Run
from normscope.pages.audit_comparison import compare_document
from normscope.pages.run_comparison import compare_runs_document
from normscope.report.html import to_fragment, to_html

from ..monitor import logs

HARM = "<img src=x onerror=alert(1)>\"'`</style></script>\u202e\x1b[2J"


def texts(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Yield the path of every text in plain data, and of every key of an object (as its path and None)."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key, None)
            yield from texts(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from texts(item, (*path, index))


def harmed(data: Any, path: tuple) -> Any:
    """Return plain data with harm behind one text or key."""
    data = copy.deepcopy(data)
    *outer, last = path[:-1] if path[-1] is None else path
    inside = data
    for step in outer:
        inside = inside[step]
    if path[-1] is None:
        inside[f"{last}{HARM}"] = inside[last]
    else:
        inside[last] = f"{inside[last]}{HARM}"
    return data


def is_read(read: Any, data: Any) -> bool:
    """Whether a file with these data is accepted."""
    try:
        read(data)
    except NormscopeError:
        return False
    return True


def assert_harmless(page: str) -> None:
    assert "<img" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert page.count("</script>") == page.count("<script>")
    assert page.count("</style>") == page.count("<style")


@pytest.fixture(scope="module")
def audited() -> dict:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).eval()
        data = ns.audit(model, torch.randn(8, 4)).to_json()
    finding = {"code": "dead-layer", "severity": "warning", "where": "0", "seen": "s", "why": "w", "advice": "a"}
    data["findings"] += [{**finding, "numbers": {"a": 1.0}}]
    data["notes"], data["skipped"] = ["a note"], [["a figure", "a reason"]]
    return data


@pytest.mark.slow
def test_every_text_of_an_audit(audited):
    accepted = [path for path in texts(audited) if is_read(Audit.from_json, harmed(audited, path))]
    assert len(accepted) > 50
    data = audited
    for path in accepted:
        changed = harmed(data, path)
        data = changed if is_read(Audit.from_json, changed) else data
    audit = Audit.from_json(data)
    assert "&lt;img" in audit.to_html()
    for page in (audit.to_html(), audit._repr_html_(), to_html(compare_document({HARM: audit, "b": audit}))):
        assert_harmless(page)
    assert "\x1b" not in str(audit)


@pytest.mark.slow
def test_every_text_of_a_log(tmp_path):
    logs.write(tmp_path, count=2, steps=60)
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    lines[2:2] = [{"type": "metrics", "step": 0, "metrics": {"figure": 1.0}}]

    def read(data: Any) -> Run:
        (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in data))
        return Run(tmp_path)

    count = 0
    for path in texts(lines):
        changed = harmed(lines, path)
        if is_read(read, changed):
            lines, count = changed, count + 1
    assert count > 100
    run = read(lines)
    assert "&lt;img" in run.to_html()
    pages = [run.to_html(), run._repr_html_(), to_html(compare_runs_document({HARM: run, "b": run}))]
    for page in (*pages, to_fragment(run.document())):
        assert_harmless(page)
    assert "\x1b" not in str(run)
