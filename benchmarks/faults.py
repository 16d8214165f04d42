"""Score `check` or `audit` on the catalogue of planted faults and healthy models (`normscope_faults.models`).

    python benchmarks/faults.py [--part open|first|second|third|held-out|all] [--with check|audit] [--only NAME ...]
                                [--misses [--name-held-out]] [--by family|cause]

For each fault: was there a warning or an error (found), does one of them give a right cause at a right layer (cause),
is the first such advice a right remedy (remedy)? For each healthy model: which warnings were there (false alarms)?
The held-out part of the catalogue was written by someone who had seen neither the rules nor their misses and is for
scoring alone: its misses are named only on request. Rules may be tuned on the others.
"""

import argparse
import inspect
import time
import warnings
from collections.abc import Callable
from typing import Any

import normscope as ns
from normscope_faults import Answer, Case, Fault, score
from normscope_faults.models import PARTS


def diagnose(case: Case, examine: Callable[..., Any] = ns.check) -> list[Any]:
    """Return the warnings and errors of a check or an audit."""
    taken = inspect.signature(examine).parameters
    options = {"loss": case.loss, "optimizer": case.optimizer}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = examine(case.model, case.data, **{name: value for name, value in options.items() if name in taken})
    return [finding for finding in result.findings if finding.severity > ns.Severity.INFO]


def name_miss(answer: Answer) -> None:
    """Print what was said of a case that was not told rightly."""
    entry = answer.entry
    if isinstance(entry, Fault) and not answer.remedy:
        level = "cause right" if answer.cause else "found" if answer.found else "missed"
        print(f"{level:12} {entry.name} ({'/'.join(sorted(entry.causes))}): {answer.story}", flush=True)
    elif not isinstance(entry, Fault) and (answer.found or answer.refused):
        print(f"false alarm  {entry.name}: {answer.story}", flush=True)


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
    examine = getattr(ns, chosen.examine)
    for part in PARTS if chosen.part == "all" else (chosen.part,):
        entries = [entry for kind in PARTS[part] for entry in kind if not chosen.only or entry.name in chosen.only]
        names = chosen.misses and (part != "held-out" or chosen.name_held_out)
        begun = time.perf_counter()
        result = score(
            lambda case: diagnose(case, examine),
            entries,
            by=chosen.by,
            tell=name_miss if names else lambda answer: None,
        )
        print(f"{part} part, {chosen.examine}: {result} {time.perf_counter() - begun:.0f} s.", flush=True)
        for name, row in sorted(result.rows.items()):
            print(
                f"    {name:28} {row['faults']:3} faults: {row['found']:3} found, {row['cause']:3} right cause, "
                f"{row['remedy']:3} right remedy"
                + f"; {row['alarms']} of {row['healthy']} healthy warned"
                * (chosen.by == "family")
            )


if __name__ == "__main__":
    main()
