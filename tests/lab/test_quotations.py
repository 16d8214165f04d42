"""Every claim has its source's own words, and they are in the source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from normscope_lab.experiments.base import SOURCES, Claim, Verdict
from normscope_lab.experiments.claims import stored
from normscope_lab.experiments.registry import registered

from .test_verdicts import MEASUREMENTS

CLAIMS = [claim for one in registered().values() for claim in one.claims]
SEEDS = Path(__file__).parents[3] / "shared" / "seeds"
TEXTS = {"Than": "000", "digest": "001", "Akbar": "003", "Slides": "004"}
"""How the name of the file with each source's text begins."""
NOT_AT_HAND = {"yang.relu", "yang.linear", "wan.equilibrium", "wan.equilibrium.momentum", "li-arora.equivalence"}
"""Claims of papers whose text is not at hand: they are in our words alone."""
MOST_WORDS = 45


def plain(text: str) -> str:
    """Return a text without markup, line breaks and typographic quotation marks."""
    straight = text.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"'})
    return " ".join(re.sub(r"[*$&]", "", straight).split())


def test_every_claim_begins_with_a_source() -> None:
    starts = tuple(f"{start}." for start in SOURCES)
    assert [claim.id for claim in CLAIMS if not claim.id.startswith(starts)] == []


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_claim_has_a_short_quotation(claim: Claim) -> None:
    if claim.id in NOT_AT_HAND or claim.source == "Normscope":
        assert not claim.quotation
    else:
        assert 0 < len(claim.quotation.split()) <= MOST_WORDS
    assert (claim.source == "Normscope") <= (claim.id in MEASUREMENTS)


@pytest.mark.parametrize("claim", [one for one in CLAIMS if one.source in TEXTS], ids=lambda claim: claim.id)
def test_the_quotation_is_in_the_source(claim: Claim) -> None:
    if not SEEDS.is_dir():
        pytest.skip("the texts of the papers are not part of the repository")
    (path,) = SEEDS.glob(f"{TEXTS[claim.source]}_*.txt")
    source, start = plain(path.read_text(encoding="utf-8", errors="replace")), 0
    for part in plain(claim.quotation).split(" ... "):
        start = source.find(part, start)
        assert start >= 0, part


STORED = [result for one in registered().values() if one.stored and (result := stored(one)) is not None]


@pytest.mark.parametrize("result", STORED, ids=lambda result: result.name)
def test_what_holds_with_a_correction_names_the_correction(result) -> None:  # type: ignore[no-untyped-def]
    for row in result.claims:
        if row.verdict is Verdict.CORRECTED:
            assert row.corrected.endswith("."), row.id
