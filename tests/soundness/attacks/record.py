"""What the attacks gave, as data and as a page."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from ..provenance import in_words, write_result
from .outcome import Outcome

COMMAND = "NORMSCOPE_ATTACKS={counts} python -m pytest -m slow tests/soundness/test_attacks.py -k every_kind"
HEADS = {
    "weights": "`weight_sensitivity`, against changes of the weights in the model itself",
    "radii": "`certified_radius`, against 200 steps of projected gradients from 24 starts",
    "attention": "`ladder` and `lipschitz` of attention, against dense Jacobians",
    "scales": "`lipschitz` of networks scaled by up to 1e200 and 1e-200",
}


def collected(outcomes: Sequence[Outcome], *, seconds: float, counts: str, made: dict[str, str]) -> dict:
    """Return the counts by kind, as plain data."""
    kinds = {}
    for kind in HEADS:
        own = [outcome for outcome in outcomes if outcome.kind == kind]
        gaps = [gap for outcome in own for gap in outcome.gaps]
        kinds[kind] = {
            "cases": len(own),
            "checks": sum(outcome.checks for outcome in own),
            "violations": [words for outcome in own for words in outcome.violations],
            "median_log10_gap": round(statistics.median(gaps), 4) if gaps else None,
            "remarks": dict(Counter(remark for outcome in own for remark in outcome.remarks).most_common()),
            "with": dict(Counter(part for outcome in own for part in set(outcome.parts)).most_common()),
        }
    return {
        "schema_version": 1,
        "made": made,
        "command": COMMAND.format(counts=counts),
        "seconds": round(seconds),
        "kinds": kinds,
    }


def write(result: dict) -> None:
    """Write `docs/results/attacks.json` and `.md`."""
    write_result("attacks", result, page(result))


def page(result: dict) -> str:
    """The result as a short page."""
    lines = [
        "# Attacks on single figures",
        "",
        "What readers with fresh eyes tried by hand, with counts: [attacks_by_hand.md](attacks_by_hand.md).",
        "",
        "Written by `tests/soundness/test_attacks.py` from `attacks.json`:",
        "",
        f"    {result['command']}",
        "",
        f"{in_words(result['made'])}, {result['seconds']} s.",
        "",
        "Every figure comes from the front door. The attacks use nothing of the package's searches: dense Jacobians "
        "and climbs in float64, changes of the originals of parametrized weights, projected gradients on the model in "
        "float64 and then on the model itself. A check is one comparison of a figure with an attack. The room left for "
        "rounding is derived where it is made, for weights and radii; for attention and scales it is 1e-9.",
        "",
        "| figure and attack | cases | checks | violations | median log10 of figure over attack |",
        "|---|---|---|---|---|",
    ]
    for kind, head in HEADS.items():
        own = result["kinds"][kind]
        gap = "" if own["median_log10_gap"] is None else f"{own['median_log10_gap']:g}"
        lines.append(f"| {head} | {own['cases']} | {own['checks']} | {len(own['violations'])} | {gap} |")
    for kind in HEADS:
        own = result["kinds"][kind]
        lines += ["", f"## {kind.capitalize()}", ""]
        lines += [f"- violation: {words}" for words in own["violations"]]
        lines += [f"- {remark}: {count}" for remark, count in own["remarks"].items()]
        lines += ["", "| with | cases |", "|---|---|"]
        lines += [f"| {part} | {count} |" for part, count in own["with"].items()]
    return "\n".join(lines) + "\n"
