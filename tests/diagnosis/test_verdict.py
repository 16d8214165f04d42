"""The verdict: one sentence about findings."""

import re
import runpy
from pathlib import Path

import pytest

import normscope as ns
from normscope.core.finding import Severity
from normscope.doctor.checking.verdict import clause, groups, verdict
from normscope.doctor.symptoms.registry import FINDING_WORDS

from .audits import audit, finding, normalizer, weight

ROOT = Path(__file__).parents[2]
ROWS = (weight("0"), *(normalizer(f"{n}") for n in range(53)))


def expanding(count):
    return finding("expanding-normalizer", "4.0", Severity.WARNING, numbers={"count": count})


@pytest.mark.parametrize(
    ("findings", "rows", "expected"),
    [
        ((), (), "No problems found."),
        ((), ROWS, "No problems found in 1 weight layer and 53 normalizers."),
        ((), ROWS[:1], "No problems found in 1 weight layer."),
        ((finding(severity=Severity.INFO),), ROWS[:1], "No problems found in 1 weight layer."),
        ((finding("dead-layer", "4.1"),), ROWS, "Layer `4.1` is dead; nothing else stands out."),
        (
            (expanding(3), finding("dead-layer", "4.1")),
            ROWS,
            "3 of 53 normalizers expand; layer `4.1` is dead; nothing else stands out.",
        ),
        (
            (
                finding("dead-layer", "a"),
                finding("b-b", "x"),
                finding("c-c", "y"),
                finding("d", "z"),
                finding("e", "w"),
            ),
            (),
            "Layer `a` is dead; b b in `x`; c c in `y`; 2 more findings.",
        ),
        (
            (finding("dead-channels", "a"), finding("non-finite-weights", "w", Severity.ERROR)),
            (),
            "`w` is broken by NaN or infinite values; part of layer `a` is dead; nothing else stands out.",
        ),
        ((finding("gradient-explosion", ""),), (), "The gradient of the model explodes; nothing else stands out."),
    ],
)
def test_the_verdict_is_one_sentence(findings, rows, expected):
    assert verdict(findings, rows) == expected


def test_an_audit_has_its_verdict():
    assert audit().verdict == "The variance into `net.1` collapsed; nothing else stands out."
    assert audit(findings=()).verdict == "No problems found in 2 weight layers and 1 normalizer."
    assert ns.Audit.from_json(audit().to_json()).verdict == audit().verdict


def test_groups_keep_codes_and_severities_apart():
    found = [finding("a", "1"), finding("b", "2"), finding("a", "3"), finding("a", "4", Severity.INFO)]
    assert [[f.where for f in group] for group in groups(found)] == [["1", "3"], ["2"], ["4"]]


@pytest.mark.parametrize("code", sorted(FINDING_WORDS))
@pytest.mark.parametrize("severity", list(Severity))
def test_every_clause_is_a_clause(code, severity):
    for count in (1, 2):
        group = [finding(code, f"layer{n}", severity) for n in range(count)]
        written = clause(group, ROWS)
        assert "{" not in written
        assert not written.endswith(".")
        assert verdict(group, ROWS)


def test_the_documentation_lists_every_kind_that_is_raised_and_no_other():
    page = (ROOT / "docs" / "findings.md").read_text()
    written = runpy.run_path(str(ROOT / "tools" / "written_pages.py"))["findings_page"](page)
    assert page == written, "run: python tools/written_pages.py"
    folders = (ROOT / "src" / "normscope" / room for room in ("doctor", "auditing"))
    source = "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE))
    assert set(re.findall(r'code="([a-z-]+)"', source)) <= listed == FINDING_WORDS.keys()
