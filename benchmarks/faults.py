"""Score `check` or `audit` on the catalogue of planted faults and healthy models.

    python benchmarks/faults.py [--part open|first|second|third|held-out|all] [--with check|audit] [--only NAME ...]
                                [--misses [--name-held-out]] [--by family|cause]

For each fault: was there a warning or an error (found), does one of them give a right cause at a right layer (cause),
is the first such advice a right remedy (remedy)? For each healthy model: which warnings were there (false alarms)?
The held-out part of the catalogue (`fourth*.py`) was written by someone who had seen neither the rules nor their misses
and is for scoring alone: its misses are named only on request. Rules may be tuned on the others.
"""

import argparse
import inspect
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import normscope as ns
from benchmarks.fault_catalogue import PARTS
from benchmarks.fault_catalogue.case import REMEDIES, Case, Fault, Healthy

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
    "one-class": ("labels-constant", "class-imbalance", "padding-counted"),
    "no-better-than-constant": ("output-constant", "labels-wrong"),
    "first-loss": ("exploding-signal", "layer-scale-stands-out"),
    "gradient-does-not-descend": ("exploding-signal", "exploding-gradient", "optimizer-ascends"),
    "gradient-cut": ("no-gradient",),
    "gradient-mismatch": ("no-gradient",),
    "no-gradient": ("no-gradient", "loss-gradient-zero"),
    "unused-parameter": ("unused-parameter",),
    "frozen-layer": ("frozen-layer", "unregistered-parameter"),
    "equal-units": ("constant-initialisation",),
    "zero-weights": ("zero-weights",),
    "dead-layer": ("zero-weights", "dead-units"),
    "dead-channels": ("zero-weights", "dead-units"),
    "recurrent-scale": ("recurrent-weights-explode", "recurrent-weights-vanish"),
    "layer-scale": ("layer-scale-stands-out", "branch-dominates"),
    "rank-one-weights": ("rank-one-weights",),
    "missing-activation": ("missing-activation",),
    "bottleneck": ("bottleneck-too-narrow",),
    "labels-are-inputs": ("labels-wrong",),
    "output-constant": ("output-constant",),
    "gradient-vanishing": ("vanishing-gradient", "vanishing-signal"),
    "gradient-explosion": ("exploding-gradient", "exploding-signal"),
    "exploding-run": ("exploding-gradient", "exploding-signal"),
    "batch-norm-depth": ("exploding-gradient",),
    "gradient-jump": ("exploding-gradient", "vanishing-gradient"),
    "saturated-units": ("saturated-units", "attention-saturated", "recurrent-weights-vanish"),
    "half-precision": ("precision",),
    "softmax-axis": ("normalizer-wrong-axis",),
    "hidden-softmax": ("activation-unsuitable",),
    "strong-dropout": ("dropout-too-strong", "dropout-misplaced", "wrong-mode"),
    "no-loss-gradient": ("loss-gradient-zero", "no-gradient", "loss-does-not-fit"),
    "gradient-not-finite": ("gradient-not-finite", "not-finite"),
    "branch-dominates": ("branch-dominates", "exploding-signal"),
    "attention-saturated": ("attention-saturated", "saturated-units"),
    "samples-mixed": ("samples-mixed", "normalizer-wrong-axis"),
    "input-ignored": ("condition-switched-off", "attention-mask-wrong", "output-constant"),
    "mask-leaks": ("attention-mask-wrong", "future-visible", "padding-counted"),
    "dead-relu": ("dead-units", "bias-holds-units-off"),
    "stale-statistics": ("running-statistics-wrong",),
    "wrong-mode": ("wrong-mode",),
    "small-batch": ("normalizer-too-few-samples",),
    "tiny-sets": ("normalizer-too-few-samples", "normalizer-erases-signal"),
    "eps-scale": ("eps-dominates",),
    "eps-dominated": ("eps-dominates",),
    "expanding-normalizer": (),
    "not-in-optimizer": ("not-in-optimizer",),
    "decay-too-strong": ("weight-decay-too-strong",),
    "step-too-long": ("learning-rate-too-large", "momentum-too-large", "optimizer-ascends"),
    "step-too-short": ("learning-rate-too-small",),
}
"""The causes of the catalogue that each finding gives."""


def diagnose(case: Case, examine: Callable[..., Any] = ns.check) -> tuple[list[Any], str]:
    """Return the warnings and errors of a check or an audit, and the error that it raised, if it did."""
    taken = inspect.signature(examine).parameters
    options = {"loss": case.loss, "optimizer": case.optimizer}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = examine(case.model, case.data, **{name: value for name, value in options.items() if name in taken})
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


def score_part(
    faults: list[Fault],
    healthy_models: list[Healthy],
    examine: Callable[..., Any],
    *,
    name_misses: bool,
    by: str | None,
) -> str:
    """Diagnose every case of a part and return its totals as a sentence, and a line for each family or cause."""
    total, rows, begun = Counter[str](), defaultdict[str, Counter[str]](Counter), time.perf_counter()
    for fault in faults:
        findings, error = diagnose(fault.build(), examine)
        found, cause, remedy = judge(fault, findings)
        values = (1, found, cause, remedy, bool(error))
        counts = dict(zip(("faults", "found", "cause", "remedy", "errors"), map(int, values), strict=True))
        for row in (total, *(rows[key] for key in ([fault.family] if by == "family" else fault.causes if by else ()))):
            row.update(counts)
        if not remedy and name_misses:
            story = ", ".join(f"{finding.code} at {finding.where}" for finding in findings) or error or "nothing"
            level = "cause right" if cause else "found" if found else "missed"
            print(f"{level:12} {fault.name} ({'/'.join(sorted(fault.causes))}): {story}", flush=True)
    for healthy in healthy_models:
        findings, error = diagnose(healthy.build(), examine)
        counts = {"healthy": 1, "alarms": int(bool(findings)), "refused": int(bool(error))}
        for row in (total, *([rows[healthy.family]] if by == "family" else ())):
            row.update(counts)
        if (findings or error) and name_misses:
            story = ", ".join(f"{finding.code} at {finding.where}" for finding in findings) or error
            print(f"false alarm  {healthy.name}: {story}", flush=True)
    count = max(total["faults"], 1)
    return (
        f"{total['faults']} faults: {total['found']} found ({total['found'] / count:.0%}), {total['cause']} with the "
        f"right cause and layer ({total['cause'] / count:.0%}), {total['remedy']} with a right remedy first "
        f"({total['remedy'] / count:.0%}), {total['errors']} refused. {total['healthy']} healthy models: "
        f"{total['alarms']} with a false warning, {total['refused']} refused. {time.perf_counter() - begun:.0f} s."
    ) + "".join(
        f"\n    {name:28} {row['faults']:3} faults: {row['found']:3} found, {row['cause']:3} right cause, "
        f"{row['remedy']:3} right remedy" + f"; {row['alarms']} of {row['healthy']} healthy warned" * (by == "family")
        for name, row in sorted(rows.items())
    )


def main() -> None:
    """Run the catalogue and print the score of each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--with", dest="examine", choices=("check", "audit"), default="check")
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--misses", action="store_true", help="name the misses of the open parts, and what was found")
    parser.add_argument("--name-held-out", action="store_true", help="with --misses: those of the held-out part too")
    parser.add_argument("--by", choices=("family", "cause"), help="also a line for each family, or each cause")
    chosen = parser.parse_args()
    for part in PARTS if chosen.part == "all" else (chosen.part,):
        faults, healthy_models = (
            [entry for entry in entries if not chosen.only or entry.name in chosen.only] for entries in PARTS[part]
        )
        name_misses = chosen.misses and (part != "held-out" or chosen.name_held_out)
        score = score_part(faults, healthy_models, getattr(ns, chosen.examine), name_misses=name_misses, by=chosen.by)
        print(f"{part} part, {chosen.examine}: {score}", flush=True)


if __name__ == "__main__":
    main()
