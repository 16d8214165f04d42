"""Symmetries of real architectures: found, verified, and written to docs/results/symmetries.md; none claimed fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import normscope as ns
from normscope.bounds.geometry.candidate import SYMMETRY_KINDS
from normscope.core.errors import NormscopeError

from ..real_models.families import FAMILIES, pixels

RESULTS = Path(__file__).parents[2] / "docs" / "results"


SAMPLES = {"mobilenet_v2": 8}
"""Where the batch of the family is too small: its last BatchNorms see one pixel a sample, and of two values they make 1
and -1 whatever the weights are, so that there is no gradient to check."""

UNCONFIRMED = {("mobilenet_v2", "train"): 3}
"""Symmetries that the graph shows and the check does not confirm: shown as failed and claimed nowhere. Three depthwise
convolutions see one pixel, of which they use one weight a channel: all of their gradient is what eps leaves."""


def measured(name: str, mode: str) -> dict:
    model, batch, output = FAMILIES[name]()
    if name in SAMPLES:
        batch = pixels(batch=SAMPLES[name])
    try:
        found = ns.symmetries(model, batch, mode=mode, output=output)
    except NormscopeError as error:
        return {"error": str(error).splitlines()[0]}
    worst = max((row.evidence.output_change_no_eps for row in found.verified), default=0.0)
    return {
        "parameters": found.num_parameters,
        "degrees_of_freedom": found.dof,
        "verified": {kind: list(found.counts()[kind]) for kind in SYMMETRY_KINDS if kind in found.counts()},
        "failed": sum(row.status == "failed" for row in found),
        "unseen": sum(row.status == "unseen" for row in found),
        "largest_change_no_eps": float(f"{worst:.1e}"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_and_write_the_results(name: str) -> None:
    """Run in one process: each family puts its own line into the files."""
    found = {mode: measured(name, mode) for mode in ("train", "eval")}
    file = RESULTS / "symmetries.json"
    data = (json.loads(file.read_text()) if file.exists() else {}) | {name: found}
    data = {family: data[family] for family in FAMILIES if family in data}
    file.write_text(json.dumps(data, indent=1) + "\n")
    RESULTS.joinpath("symmetries.md").write_text(page(data))
    assert "error" not in found["eval"]
    for mode, counts in found.items():
        assert counts.get("failed", 0) == UNCONFIRMED.get((name, mode), 0)
        assert counts.get("largest_change_no_eps", 0.0) < 1e-9


def page(data: dict) -> str:
    """Return the table of all families."""
    shown = [
        kind for kind in SYMMETRY_KINDS if any(kind in m.get("verified", {}) for f in data.values() for m in f.values())
    ]
    lines = [
        "# Symmetries of real architectures",
        "",
        "Tiny random configurations (`tests/real_models/families.py`), two samples (mobilenet_v2: eight), measured by",
        "`pytest -m slow tests/geometry/test_families.py`. By kind: how many verified symmetries, and the degrees of",
        "freedom they remove. A symmetry that does not stand the check in float64 is counted as failed and claimed",
        "nowhere; one whose weights have no effect on the output at the batch is unseen. The largest change is that of",
        "the output, relative to its size, under random group elements, where eps plays no part. Details:",
        "`symmetries.json`.",
        "",
        f"| family | mode | parameters | degrees of freedom | {' | '.join(shown)} | failed | unseen | largest change |",
        f"|---|---|---|---|{'---|' * len(shown)}---|---|---|",
    ]
    for name, modes in data.items():
        for mode, found in modes.items():
            if "error" in found:
                lines.append(f"| {name} | {mode} | not measured: {found['error'][:150]} |" + " |" * (len(shown) + 4))
                continue
            cells = [f"{p[0]} ({p[1]})" if (p := found["verified"].get(kind)) else "" for kind in shown]
            numbers = [f"{found['parameters']:,}", f"{found['degrees_of_freedom']:,}", *cells]
            numbers += [str(found["failed"]), str(found["unseen"]), f"{found['largest_change_no_eps']:.1e}"]
            lines.append(f"| {name} | {mode} | {' | '.join(numbers)} |")
    missing = [name for name in FAMILIES if name not in data]
    lines += ["", f"Not measured yet: {', '.join(missing)}."] if missing else []
    return "\n".join(lines) + "\n"
