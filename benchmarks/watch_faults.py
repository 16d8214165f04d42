"""Score `ns.watch` on the catalogue of training runs with planted faults and of healthy runs.

    python benchmarks/watch_faults.py [--part open|first|second|third|held-out|all] [--every 10 50] [--only NAME ...]
                                      [--misses [--name-held-out]] [--twins] [--codes]

Each run is trained as a user would, watched every so many steps, and judged as `normscope_faults.runs.score` says. An
error of `ns.watch` itself counts as an alarm at step 0 if it refuses the run. The held-out part was written by someone
who had seen neither the alarms nor what they miss, and is for scoring alone: its misses are named only on request.
Alarms may be tuned on the others.
"""

import argparse
import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import normscope as ns
from normscope.doctor.monitor import watching
from normscope.doctor.monitor.schedule import TimeBudget
from normscope_faults.runs import PARTS
from normscope_faults.runs.case import HealthyRun, Run
from normscope_faults.runs.score import Alarm, score_part

PROCESSOR_BUDGET = partial(TimeBudget, clock=time.process_time_ns)
"""The default overhead, by the time of the processor: what else a machine does is to change no score."""


def watch_run(entry: Run, every: int) -> tuple[list[Alarm], str]:
    """Train a run under watch and return its warnings and errors by step, and the error that ended it, if one did."""
    watched: list[Any] = []

    @contextlib.contextmanager
    def watch(model: Any, optimizer: Any) -> Iterator[Any]:
        try:
            with patch.object(watching, "TimeBudget", PROCESSOR_BUDGET):
                context = ns.watch(model, optimizer, every=every, panel=False)
        except ns.NormscopeError as error:
            raise WatchRefusedError(str(error)) from error
        with context as run:
            watched.append(run)
            yield run

    ended, alarms = "", []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            entry.train(watch)
    except WatchRefusedError as error:
        alarms.append(Alarm(code="refused", step=0, where="", story=str(error), advice=str(error)))
    except Exception as error:
        ended = f"{type(error).__name__}: {error}"
    for run in watched:
        alarms += [
            Alarm(
                code=finding.code,
                step=entry.steps if finding.step is None else finding.step,
                where=finding.where or "",
                story=f"{finding.seen} {finding.why}",
                advice=finding.advice,
            )
            for finding in run.findings
            if finding.severity > ns.Severity.INFO
        ]
    return sorted(alarms, key=lambda alarm: alarm.step), ended


class WatchRefusedError(Exception):
    """`ns.watch` does not accept the model with this optimizer."""


def main() -> None:
    """Watch the catalogue and print the score of each part at each interval."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--every", nargs="+", type=int, default=[10, 50], help="intervals of measurement, in steps")
    parser.add_argument("--only", nargs="*", help="names of runs")
    parser.add_argument(
        "--misses", action="store_true", help="name what is not right in the open parts, with its alarms"
    )
    parser.add_argument("--name-held-out", action="store_true", help="with --misses: those of the held-out part too")
    parser.add_argument("--twins", action="store_true", help="count the mended twins of faults among the healthy runs")
    parser.add_argument("--codes", action="store_true", help="count the codes that the scorer's table does not list")
    chosen = parser.parse_args()
    codes = Counter[str]()
    for part in PARTS if chosen.part == "all" else (chosen.part,):
        faults, healthy_runs = (
            [entry for entry in entries if not chosen.only or entry.name in chosen.only] for entries in PARTS[part]
        )
        if chosen.twins:
            healthy_runs += [
                HealthyRun(
                    name=f"{fault.name}, mended",
                    family=fault.family,
                    source=fault.source,
                    build=partial(fault.build, False),
                    steps=fault.steps,
                    seed=fault.seed,
                )
                for fault in faults
            ]
        for every in chosen.every:
            name_misses = chosen.misses and (part != "held-out" or chosen.name_held_out)
            score = score_part(
                faults, healthy_runs, partial(watch_run, every=every), name_misses=name_misses, codes=codes
            )
            print(f"{part} part, every {every} steps: {score}", flush=True)
    if chosen.codes and codes:
        print("Codes without an entry in CAUSES_BY_CODE, judged by their words:", ", ".join(sorted(codes)))


if __name__ == "__main__":
    main()
