"""Score `check` on the catalogue of planted faults and healthy models.

    python benchmarks/faults.py [--only NAME ...]

For each fault: was there a warning or an error (found), does one of them give a right cause at a right layer (cause),
is the first such advice a right remedy (remedy)? For each healthy model: which warnings were there (false alarms)?
The half of the catalogue in `held_out*.py` was written before the rules, by someone who had not seen them.
"""

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import normscope as ns
from benchmarks.fault_catalogue.case import REMEDIES, Case, Fault
from benchmarks.fault_catalogue.held_out import FAULTS, HEALTHY

CAUSES: dict[str, tuple[str, ...]] = {
    "non-finite-weights": ("not-finite-weights",),
    "non-finite-activations": ("not-finite", "not-finite-data", "precision", "attention-mask-wrong"),
    "loss-not-finite": ("not-finite", "targets-out-of-range", "precision"),
    "input-scale": ("inputs-not-scaled",),
    "input-columns": ("one-input-column-dominates", "inputs-not-scaled"),
    "constant-input": ("inputs-constant",),
    "activation-before-loss": ("softmax-twice", "activation-before-loss", "output-range-too-small"),
    "loss-does-not-fit": ("loss-does-not-fit",),
    "shapes-broadcast": ("shapes-broadcast",),
    "targets-out-of-range": ("targets-out-of-range", "activation-before-loss"),
    "targets-scale": ("targets-wrong-scale",),
    "one-class": ("labels-constant", "class-imbalance"),
    "no-better-than-constant": ("output-constant",),
    "first-loss": ("exploding-signal", "layer-scale-stands-out"),
    "gradient-cut": ("no-gradient",),
    "gradient-mismatch": ("no-gradient",),
    "no-gradient": ("no-gradient", "loss-gradient-zero"),
    "unused-parameter": ("unused-parameter",),
    "frozen-layer": ("frozen-layer",),
    "equal-units": ("constant-initialisation",),
    "zero-weights": ("zero-weights",),
    "dead-layer": ("zero-weights", "dead-units"),
    "dead-channels": ("zero-weights", "dead-units"),
    "recurrent-scale": ("recurrent-weights-explode", "recurrent-weights-vanish"),
    "layer-scale": ("layer-scale-stands-out", "branch-dominates"),
    "rank-one-weights": ("rank-one-weights",),
    "missing-activation": ("missing-activation",),
    "output-constant": ("output-constant",),
    "gradient-vanishing": ("vanishing-gradient", "vanishing-signal"),
    "gradient-explosion": ("exploding-gradient", "exploding-signal"),
    "exploding-run": ("exploding-gradient", "exploding-signal"),
    "batch-norm-depth": ("exploding-gradient",),
    "gradient-jump": ("vanishing-gradient", "exploding-gradient", "layer-scale-stands-out"),
    "saturated-units": ("saturated-units", "attention-saturated", "recurrent-weights-vanish"),
    "half-precision": ("precision",),
    "dead-relu": ("dead-units", "bias-holds-units-off"),
    "stale-statistics": ("running-statistics-wrong",),
    "small-batch": ("normalizer-too-few-samples",),
    "tiny-sets": ("normalizer-too-few-samples", "normalizer-erases-signal"),
    "eps-scale": ("eps-dominates",),
    "eps-dominated": ("eps-dominates",),
    "expanding-normalizer": (),
}
"""The causes of the catalogue that each finding gives."""


def diagnose(case: Case) -> tuple[list[Any], str]:
    """Return the warnings and errors of a check, and the error that it raised, if it did."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = ns.check(case.model, case.data, loss=case.loss)
    except Exception as error:
        return [], f"{type(error).__name__}: {error}"
    return [finding for finding in result.findings if finding.severity > ns.Severity.INFO], ""


def judge(fault: Fault, findings: list[Any]) -> tuple[bool, bool, bool]:
    """Return whether a fault was found, with a right cause at a right layer, and with a right remedy first."""
    right = [
        finding
        for finding in findings
        if fault.causes.intersection(CAUSES.get(finding.code, ()))
        and (not fault.layers or any(name_agrees(finding, layer) for layer in fault.layers))
    ]
    remedy = bool(right) and any(REMEDIES[key].search(right[0].advice) for key in fault.remedies)
    return bool(findings), bool(right), remedy


def name_agrees(finding: Any, layer: str) -> bool:
    """Whether a finding names a layer: as its place, or as a parameter of it."""
    return finding.where in (layer, layer.rpartition(".")[0]) or layer == finding.where.rpartition(".")[0]


def main() -> None:
    """Run the catalogue and print the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--quiet", action="store_true", help="the totals alone, without the names of misses")
    chosen = parser.parse_args()
    total, begun = Counter[str](), time.perf_counter()
    for fault in FAULTS:
        if chosen.only and fault.name not in chosen.only:
            continue
        findings, error = diagnose(fault.build())
        found, cause, remedy = judge(fault, findings)
        total.update(faults=1, found=found, cause=cause, remedy=remedy, errors=bool(error))
        if not remedy and not chosen.quiet:
            story = ", ".join(f"{finding.code} at {finding.where}" for finding in findings) or error or "nothing"
            level = "cause right" if cause else "found" if found else "missed"
            print(f"{level:12} {fault.name} ({'/'.join(sorted(fault.causes))}): {story}")
    for healthy in HEALTHY:
        if chosen.only and healthy.name not in chosen.only:
            continue
        findings, error = diagnose(healthy.build())
        total.update(healthy=1, alarms=bool(findings), refused=bool(error))
        if (findings or error) and not chosen.quiet:
            print(f"false alarm  {healthy.name}: {', '.join(f'{f.code} at {f.where}' for f in findings) or error}")
    count = max(total["faults"], 1)
    print(
        f"{total['faults']} faults: {total['found']} found ({total['found'] / count:.0%}), {total['cause']} with the "
        f"right cause and layer ({total['cause'] / count:.0%}), {total['remedy']} with a right remedy first "
        f"({total['remedy'] / count:.0%}), {total['errors']} refused. {total['healthy']} healthy models: "
        f"{total['alarms']} with a false warning, {total['refused']} refused. {time.perf_counter() - begun:.0f} s."
    )


if __name__ == "__main__":
    main()
