"""No verdict is written by hand: of every claim there are figures that change it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from normscope_lab.experiments.base import Claim, Figures, Judgement, Verdict
from normscope_lab.experiments.claims import stored
from normscope_lab.experiments.digest.predicting import LOCAL
from normscope_lab.experiments.registry import registered
from normscope_lab.experiments.than.curve_figures import PUBLISHED

CLAIMS = [(claim, one) for one in registered().values() for claim in one.claims]
MEASUREMENTS = {
    "beyond.size-two",
    "beyond.skips",
    "beyond.gauge",
    "beyond.reduction",
    "akbar.9.5.adversarial",
    "digest.question1",
    "digest.question2",
    "digest.question3",
}
"""What no source claims, and nobody judges."""
UNMEASURED = {"digest.check3.bound", "digest.check3.global"}
"""Claims on a figure that the stored result lacks: Theorem 20 as printed with the slopes at the samples."""
TRIES = 3000
AROUND = {"low": -1.0, "high": 1.0}
"""Where the ends of an interval lie."""


class Asked(Mapping[str, float]):
    """Figures that have a number under every name, and remember which were asked for.

    All have as many seeds, too few to decide anything or enough, and an interval lies around its median.
    """

    def __init__(self, draw: random.Random) -> None:
        self.held: dict[str, float] = {}
        self._draw = draw
        self._seeds = draw.choice((3.0, 20.0, 20.0, 20.0))
        self._width = draw.choice((0.0, 0.1, 10.0))

    def __getitem__(self, name: str) -> float:
        if name.endswith(".seeds") or name in ("seeds", "models"):
            return self._seeds
        stem, _, ending = name.rpartition(".")
        if ending in AROUND:
            return self[f"{stem}.median"] + AROUND[ending] * self._width
        if name not in self.held:
            simple = self._draw.choice((0.0, 1.0, -1.0, 0.5, 2.0, 100.0))
            wide = self._draw.choice((-1, 1)) * 10.0 ** self._draw.uniform(-12, 12)
            self.held[name] = self._draw.choice((simple, wide))
        return self.held[name]

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


def tried(claim: Claim, figures: Figures) -> Judgement | None:
    """Return a judgement; None where figures make no sense to it."""
    try:
        return claim.judge(figures)
    except (KeyError, ValueError, ZeroDivisionError, OverflowError):
        return None


def verdicts(claim: Claim) -> set[Verdict]:
    """Return the verdicts that random figures come to."""
    draw = random.Random(0)
    found: set[Verdict] = set()
    for _ in range(TRIES):
        judgement = tried(claim, Asked(draw))
        if judgement is not None:
            found.add(judgement.verdict)
        if len(found - {Verdict.NOT_TESTABLE}) > 1:
            break
    return found - {Verdict.NOT_TESTABLE}


@pytest.mark.parametrize("claim", [claim for claim, _ in CLAIMS], ids=lambda claim: claim.id)
def test_other_figures_give_another_verdict_but_a_measurement_has_none(claim: Claim) -> None:
    if claim.id in MEASUREMENTS:
        assert verdicts(claim) == {Verdict.MEASURED}
    else:
        assert len(verdicts(claim)) > 1
        assert Verdict.MEASURED not in verdicts(claim)


STORED = [one.name for one in registered().values() if one.stored and stored(one) is not None]
DECIDED = set(Verdict) - {Verdict.NOT_TESTABLE, Verdict.MEASURED}


@pytest.mark.slow
@pytest.mark.parametrize("name", STORED)
def test_stored_figures_altered_flip_each_verdict(name: str) -> None:
    result = stored(registered()[name])
    assert result is not None
    for claim in result.experiment.claims:
        first = claim.judge(result.figures).verdict  # every figure that it asks for was measured
        if claim.id in MEASUREMENTS:
            continue
        if claim.id in UNMEASURED:
            assert first is Verdict.NOT_TESTABLE
            assert not any(name.endswith(f"{LOCAL}.value") for name in result.figures)
            continue
        others = (tried(claim, changed) for changed in altered(result.figures))
        assert any(one is not None and one.verdict in DECIDED - {first} for one in others), claim.id


SECTIONS = {
    "What held": Verdict.HOLDS,
    "What needed a correction": Verdict.CORRECTED,
    "What depends on how it is read or done": Verdict.CONVENTION,
    "What failed": Verdict.FAILS,
    "What could not be decided": Verdict.NOT_TESTABLE,
    "What no source claims": Verdict.MEASURED,
}
PAGE = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", STORED)
def test_stored_figures_have_the_verdicts_of_the_page(name: str) -> None:
    texts = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))
    published = {
        id: verdict for heading, verdict in SECTIONS.items() for id in re.findall(r"; `([\w.-]+)`\)", texts[heading])
    }
    result = stored(registered()[name])
    assert result is not None
    for claim in result.experiment.claims:
        assert claim.judge(result.figures).verdict is published[claim.id], claim.id


class Read(dict[str, float]):
    """Figures that remember which of them were read."""

    def __init__(self, figures: Figures) -> None:
        super().__init__(figures)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> float:
        self.names.add(name)
        return super().__getitem__(name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", STORED)
def test_five_seeds_decide_nothing_by_a_median_an_interval_or_a_share(name: str) -> None:
    result = stored(registered()[name])
    assert result is not None
    for claim in result.experiment.claims:
        few = Read({key: 5.0 if _counts(key) and "epoch" not in key else v for key, v in result.figures.items()})
        verdict = claim.judge(few).verdict
        over_seeds = any(key.endswith((*ENDINGS, "_half")) or ".share" in key for key in few.names)
        assert verdict in (Verdict.NOT_TESTABLE, Verdict.MEASURED) or not over_seeds, claim.id


def test_every_claim_starts_from_figures_that_were_measured() -> None:
    """Those of stored results are altered above, those that are computed live in `test_papers.py`."""
    from .test_papers import EVERY as LIVE

    measured = {*STORED, *LIVE}
    assert {one.name for _, one in CLAIMS} <= measured


ENDINGS = (".median", ".low", ".high")


def altered(figures: Figures) -> Iterator[dict[str, float]]:
    """Yield figures, of enough seeds and whole runs, with one of them or all made something else.

    A median moves together with the interval around it.
    """
    figures = {name: _whole(figures, name, value) for name, value in figures.items()}
    yield dict(figures)
    groups: dict[str, list[str]] = {}
    for name in figures:
        ending = next((one for one in ENDINGS if name.endswith(one)), "")
        groups.setdefault(name.removesuffix(ending), []).append(name)
    for change in (
        lambda x: -x,
        lambda x: 0.0,
        lambda x: x * 1e9,
        lambda x: x / 1e9,
        lambda x: x + 1e3,
        lambda x: x - 1e3,
        lambda x: 1.0 + x / 1e9,
        *(lambda x, printed=printed: printed for printed in (50.0, *PUBLISHED.values())),  # log10 of printed products
    ):
        for names in groups.values():
            yield {**figures, **{name: change(figures[name]) for name in names if not _counts(name)}}
        yield {name: value if _counts(name) else change(value) for name, value in figures.items()}


def _counts(name: str) -> bool:
    """Return whether a figure says how much was measured, and not what came out."""
    return name.endswith((".seeds", "epochs", "epochs_planned")) or name in ("seeds", "models")


def _whole(figures: Figures, name: str, value: float) -> float:
    if name.endswith(".epochs"):
        return figures.get(f"{name}_planned", value)
    return max(value, 20.0) if name.endswith(".seeds") or name == "seeds" else value


def test_a_verdict_written_by_hand_is_found() -> None:
    fixed = Claim(id="x", where="", text="", judge=lambda f: Judgement(Verdict.HOLDS, f"{f['a']}"))
    assert len(verdicts(fixed)) == 1
