"""Akbar's experiments, the fast claims of all papers, and what goes beyond them, each in a very small version."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from normscope.core.codec import encode, from_plain
from normscope.report.document import Document
from normscope.report.html import to_html
from normscope_lab.experiments import akbar, beyond, theory
from normscope_lab.experiments.base import Experiment, Figures, Verdict

SMALL: dict[str, dict[str, Any]] = {
    "than.networks": {"networks": 1},
    "than.generalization": {"draws": 30},
    "akbar.experiment1": {"seeds": 2, "steps": 30},
    "akbar.experiment2": {"seeds": 2, "spectra": 1, "steps": 5, "rates": (0.01, 0.1), "samples": 16},
    "akbar.experiment3": {
        "seeds": 2,
        "measured": 1,
        "steps": 20,
        "samples": 60,
        "tests": 60,
        "draws": 2,
        "batches": (20, 60),
    },
    "akbar.experiment4": {"seeds": 2, "steps": 5, "samples": 16},
    "akbar.deep-linear": {"seeds": 2, "spectra": 1, "steps": 10, "samples": 16},
    "akbar.saddles": {"seeds": 2, "steps": 10, "samples": 16, "batch": 8},
    "akbar.rates": {"seeds": 2, "rates": (0.1, 0.5), "steps": 20, "loss": 2.2, "samples": 50, "draws": 1},
    "akbar.practice": {"steps": 6},
    "akbar.cues": {"seeds": 2, "steps": 5, "samples": 40, "batch": 20, "tests": 40},
    "beyond.explosion": {"seeds": 2, "width": 30, "depth": 16},
    "beyond.schedules": {"seeds": 2, "steps": 40, "same": 5},
    "beyond.questions": {"seeds": 1, "loss": 2.2, "steps": 8, "width": 8, "depth": 2},
    "beyond.architectures": {"seeds": 1, "epochs": 1, "width": 8, "depths": (1, 2)},
    "beyond.reduction": {"seeds": 1, "width": 16, "depths": (2, 3), "loss": 2.0, "steps": 100},
    "beyond.gauge": {"epochs": 1, "width": 8},
}
"""Settings that take about a second and decide nothing."""
EVERY = {one.name: one for room in (theory, akbar, beyond) for one in room.EXPERIMENTS}

EXPECTED = {
    "than.lemma1": Verdict.CORRECTED,
    "than.lemma2": Verdict.HOLDS,
    "than.lemma3": Verdict.HOLDS,
    "than.lemma23": Verdict.HOLDS,
    "beyond.size-two": Verdict.MEASURED,
    "beyond.skips": Verdict.MEASURED,
    "digest.layer-norm": Verdict.CORRECTED,
    "digest.small-widths": Verdict.FAILS,
    "slides.layer-norm": Verdict.CORRECTED,
    "slides.group-norm": Verdict.CORRECTED,
    "slides.less-data": Verdict.CORRECTED,
    "than.theorem12": Verdict.CONVENTION,
    "than.theorem13.8": Verdict.CORRECTED,
    "than.theorem13.9": Verdict.HOLDS,
    "than.corollary14": Verdict.CORRECTED,
    "than.corollary14.10": Verdict.CORRECTED,
    "than.corollary14.11": Verdict.CORRECTED,
    "than.theorem9.groups": Verdict.HOLDS,
    "than.corollary22.layer-norm": Verdict.HOLDS,
    "than.5.2.dimension": Verdict.FAILS,
    "slides.deeper": Verdict.FAILS,
    "slides.decomposition": Verdict.HOLDS,
    "akbar.2.1": Verdict.CORRECTED,
    "akbar.4.1.metric": Verdict.HOLDS,
    "akbar.5.1.weight-norm": Verdict.HOLDS,
    "slides.vc": Verdict.HOLDS,
    "slides.norms.frobenius": Verdict.HOLDS,
    "slides.norms.spectral": Verdict.CORRECTED,
    "slides.mcallester": Verdict.HOLDS,
    "than.theorem15": Verdict.HOLDS,
    "than.corollary18": Verdict.FAILS,
    "than.corollary19": Verdict.CONVENTION,
    "than.convergence-rate": Verdict.CORRECTED,
    "than.theorem20": Verdict.HOLDS,
    "than.corollary21": Verdict.CORRECTED,
    "akbar.equation1": Verdict.CORRECTED,
    "akbar.4.1": Verdict.CORRECTED,
    "akbar.4.1.1": Verdict.CORRECTED,
    "akbar.A.1.1": Verdict.CORRECTED,
    "akbar.A.1.2.matrix": Verdict.CORRECTED,
    "akbar.A.1.2.spectrum": Verdict.HOLDS,
    "akbar.7.1.saddles": Verdict.FAILS,
    "akbar.4.2": Verdict.CORRECTED,
    "akbar.4.3": Verdict.CORRECTED,
    "akbar.4.3.gradient": Verdict.CORRECTED,
    "akbar.4.fisher": Verdict.HOLDS,
    "akbar.table1": Verdict.CORRECTED,
    "akbar.7.2.sketch": Verdict.FAILS,
    "akbar.9.1.bias": Verdict.HOLDS,
    "akbar.9.1.capacity": Verdict.FAILS,
    "akbar.9.1.bounded": Verdict.FAILS,
    "akbar.9.1.minimum": Verdict.FAILS,
    "akbar.9.1.weight-norm": Verdict.HOLDS,
    "akbar.9.2.batches": Verdict.FAILS,
    "akbar.9.4.layer-norm": Verdict.HOLDS,
    "akbar.9.4.leaks": Verdict.HOLDS,
    "akbar.9.5.contrast": Verdict.HOLDS,
    "akbar.9.5.conditioning": Verdict.HOLDS,
    "akbar.9.5.whitening": Verdict.CORRECTED,
    "akbar.9.5.momentum": Verdict.HOLDS,
}
"""What algebra says of claims whose figures do not depend on the size of the experiment."""


@functools.cache
def ran(name: str) -> tuple[Experiment, dict[str, Any], dict[Any, Any], Figures]:
    """Run an experiment with small settings, every result as it would be read from a file."""
    one = EVERY[name]
    settings = dict(json.loads(json.dumps({**one.quick, **SMALL.get(name, {})})))
    held = {
        job: from_plain(json.loads(json.dumps(encode(dict(one.measure(settings, job, None))), allow_nan=False)))
        for job in one.jobs(settings)
    }
    return one, settings, held, one.figures(settings, held)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_it_runs_and_is_judged_and_drawn(name: str) -> None:
    one, settings, held, figures = ran(name)
    assert all(isinstance(value, float) for value in figures.values())
    for claim in one.claims:
        verdict, evidence, _ = claim.judge(figures)
        assert isinstance(verdict, Verdict)
        assert evidence.endswith("."), claim.id
        assert verdict == EXPECTED.get(claim.id, verdict), (claim.id, evidence)
        assert claim.corrected.endswith(".") or verdict is not Verdict.CORRECTED, claim.id
    page = to_html(Document(title=one.title, blocks=tuple(one.draw(settings, held))))
    assert one.title in page


def test_the_same_settings_give_the_same_figures() -> None:
    one, settings, held, _ = ran("beyond.schedules")
    for job, measured in held.items():
        again = json.loads(json.dumps(encode(dict(one.measure(settings, job, None)))))
        assert from_plain(again) == measured
