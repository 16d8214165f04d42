"""Score `ns.watch` on the catalogue of training runs with planted faults and of healthy runs.

    python benchmarks/watch_faults.py [--part open|first|second|third|held-out|all] [--every 10 50] [--only NAME ...]
                                      [--misses [--name-held-out]] [--twins] [--codes]

Each run is trained as a user would, watched every so many steps. A fault is named right if a warning or an error, at
its onset or later, tells one of its causes at one of its layers; it has the wrong story if there were such alarms but
none is right; else it is missed. An error of `ns.watch` itself counts as an alarm at step 0 if it refuses the run.
Printed are also the steps from the onset to the first right alarm, how often the very first alarm was the right one,
how often its advice holds a right remedy, and false alarms: of healthy runs, and before the onset of a fault.
The held-out part (`fourth*.py`) was written by someone who had seen neither the alarms nor what they miss, and is for
scoring alone: its misses are named only on request. Alarms may be tuned on the others.
"""

import argparse
import contextlib
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import normscope as ns
from benchmarks.watch_catalogue import PARTS
from benchmarks.watch_catalogue.case import REMEDIES, STORIES, HealthyRun, Run, RunFault
from normscope.doctor.monitor import watching
from normscope.doctor.monitor.schedule import TimeBudget

PROCESSOR_BUDGET = partial(TimeBudget, clock=time.process_time_ns)
"""The default overhead, by the time of the processor: what else a machine does is to change no score."""

CAUSES: dict[str, tuple[str, ...]] = {
    "non-finite-weights": ("not-finite-weights", "not-finite"),
    "non-finite-activations": ("not-finite",),
    "loss-not-finite": ("not-finite",),
    "gradient-not-finite": ("not-finite",),
    "input-scale": ("inputs-not-scaled",),
    "constant-input": ("same-batch",),
    "activation-before-loss": ("softmax-twice",),
    "shapes-broadcast": ("shapes-broadcast",),
    "one-class": ("labels-constant",),
    "no-better-than-constant": ("output-constant", "not-learning", "labels-unrelated"),
    "gradient-cut": ("gradient-cut",),
    "no-gradient": ("gradient-cut", "gradient-missing"),
    "frozen-layer": ("frozen-layer",),
    "zero-weights": ("layer-decayed",),
    "dead-layer": ("dead-units",),
    "dead-channels": ("dead-units",),
    "dead-relu": ("dead-units",),
    "output-constant": ("output-constant",),
    "gradient-vanishing": ("vanishing-gradient",),
    "gradient-explosion": ("exploding-gradient",),
    "saturated-units": ("saturated-units",),
    "attention-saturated": ("attention-collapse",),
    "strong-dropout": ("dropout-too-strong",),
    "half-precision": ("precision",),
    "stale-statistics": ("running-statistics-wrong",),
    "small-batch": ("normalizer-too-few-samples",),
    "rate-zero": ("rate-zero",),
    "rate-decayed": ("rate-decays-too-early", "rate-too-low"),
    "weights-still": (),
    "weights-put-back": ("weights-put-back",),
    "lr-too-high": ("rate-too-high",),
    "decay-too-strong": ("decay-too-strong",),
    "same-batch": ("same-batch",),
    "sorted-batches": ("sorted-batches",),
    "data-changed": ("data-changed",),
    "negated-loss": ("sign-of-loss",),
    "no-gradient-at-step": ("gradient-missing",),
    "no-step": ("no-step",),
    "not-trained": ("not-in-optimizer",),
    "reward-falls": (),
    "units-alike": ("units-alike",),
    "no-zero-grad": ("gradient-accumulates",),
    "eval-mode": ("wrong-mode",),
    "loss-rising": ("divergence",),
    "loss-spike": ("loss-spike",),
    "overfitting": ("overfitting",),
    "validation-worse": ("validation-worsens",),
    "validation-apart": (),
    "norm-growth": ("exploding-values",),
    "variance-collapse": (),
    "expanding-normalizer": (),
    "effective-lr": (),
    "edge-of-stability": ("rate-too-high",),
    "not-seen": (),
    "refused": (),
}
"""The causes that the code of an alarm gives; to these come those that its story tells in words (`STORIES`)."""


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A warning or an error of a watched run."""

    code: str
    step: int
    where: str
    story: str
    advice: str

    def tells(self) -> frozenset[str]:
        """Return the causes that the alarm gives, by its code or in its words."""
        words = f"{self.code.replace('-', ' ')}. {self.story}"
        in_words = {cause for cause, pattern in STORIES.items() if pattern.search(words)}
        return frozenset(in_words.union(CAUSES.get(self.code, ())))

    def names(self, layer: str) -> bool:
        """Whether the alarm names a layer, a part of it, or a parameter of it."""
        return any(
            name == layer or name.startswith(f"{layer}.") for name in (self.where, *re.findall("`([^`]+)`", self.story))
        )


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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a fault was judged: `right`, `wrong` or `missed`, and more where it is right."""

    outcome: str
    delay: int = 0
    first: bool = False
    remedy: bool = False
    early: bool = False


def judge(fault: RunFault, alarms: list[Alarm]) -> Verdict:
    """Compare the alarms of a run with its fault."""
    early = any(alarm.step < fault.onset for alarm in alarms)
    later = [alarm for alarm in alarms if alarm.step >= fault.onset]
    right = [
        alarm
        for alarm in later
        if fault.causes & alarm.tells() and (not fault.layers or any(alarm.names(layer) for layer in fault.layers))
    ]
    if not right:
        return Verdict(outcome="wrong" if later else "missed", early=early)
    return Verdict(
        outcome="right",
        delay=right[0].step - fault.onset,
        first=later[0].step == right[0].step,
        remedy=any(REMEDIES[key].search(alarm.advice) for alarm in right for key in fault.remedies),
        early=early,
    )


def describe_alarms(alarms: list[Alarm], ended: str) -> str:
    """Return codes, places and steps in one line."""
    first_steps: dict[str, int] = {}
    for alarm in alarms:
        first_steps.setdefault(f"{alarm.code} at {alarm.where or 'no layer'}", alarm.step)
    return ", ".join(f"{what} (step {step})" for what, step in first_steps.items()) or ended or "nothing"


def score_part(
    faults: list[RunFault], healthy_runs: list[HealthyRun], every: int, *, name_misses: bool, codes: Counter[str]
) -> str:
    """Watch every run of a part and return the totals as sentences; count codes that `CAUSES` does not list."""
    total, delays, begun = Counter[str](), list[int](), time.perf_counter()
    for fault in faults:
        alarms, ended = watch_run(fault, every)
        verdict = judge(fault, alarms)
        total.update(
            [verdict.outcome], early=verdict.early, first=verdict.first, remedy=verdict.remedy, ended=bool(ended)
        )
        codes.update({alarm.code for alarm in alarms} - CAUSES.keys())
        if verdict.outcome == "right":
            delays.append(verdict.delay)
        if name_misses and (verdict.outcome != "right" or not verdict.remedy or verdict.early):
            notes = verdict.outcome + ", no right remedy" * (verdict.outcome == "right" and not verdict.remedy)
            notes += f", an alarm before step {fault.onset}" * verdict.early
            causes = "/".join(sorted(fault.causes))
            print(f"{notes}: {fault.name} ({causes}): {describe_alarms(alarms, ended)}", flush=True)
    for healthy in healthy_runs:
        alarms, ended = watch_run(healthy, every)
        total.update(healthy=1, false=bool(alarms), ended=bool(ended))
        codes.update({alarm.code for alarm in alarms} - CAUSES.keys())
        if (alarms or ended) and name_misses:
            print(f"false alarm: {healthy.name}: {describe_alarms(alarms, ended)}", flush=True)
    count = max(len(faults), 1)
    in_words = (
        f"{median(delays):g} steps from onset to alarm in the median, {max(delays)} at most" if delays else "no delays"
    )
    return (
        f"{len(faults)} faults: {total['right']} named right ({total['right'] / count:.0%}), {total['wrong']} with a "
        f"wrong story, {total['missed']} missed; {in_words}; of those named right, {total['first']} by the first "
        f"alarm, {total['remedy']} with a right remedy. False alarms: {total['false']} of {total['healthy']} healthy "
        f"runs, {total['early']} faults before their onset. {total['ended']} runs ended in an error of another kind. "
        f"{time.perf_counter() - begun:.0f} s."
    )


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
                HealthyRun(name=f"{fault.name}, mended", family=fault.family, steps=fault.steps, train=fault.mend)
                for fault in faults
            ]
        for every in chosen.every:
            name_misses = chosen.misses and (part != "held-out" or chosen.name_held_out)
            score = score_part(faults, healthy_runs, every, name_misses=name_misses, codes=codes)
            print(f"{part} part, every {every} steps: {score}", flush=True)
    if chosen.codes and codes:
        print("Codes without an entry in CAUSES, judged by their words:", ", ".join(sorted(codes)))


if __name__ == "__main__":
    main()
