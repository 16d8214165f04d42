"""Score a watcher: any function from a run to its alarms and the error that ended it, if one did.

A fault is named right if an alarm, at its onset or later, tells one of its causes at one of its layers; it has the
wrong story if there were such alarms but none is right; else it is missed. Counted are also the steps from the onset to
the first right alarm, how often the very first alarm was the right one, how often its advice holds a right remedy, and
false alarms: of healthy runs, and before the onset of a fault.
"""

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from .case import HealthyRun, Run, RunFault
from .stories import CAUSES_BY_CODE, REMEDIES, STORIES


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
        return frozenset(in_words.union(CAUSES_BY_CODE.get(self.code, ())))

    def names(self, layer: str) -> bool:
        """Whether the alarm names a layer, a part of it, or a parameter of it."""
        return any(
            name == layer or name.startswith(f"{layer}.") for name in (self.where, *re.findall("`([^`]+)`", self.story))
        )


Watcher = Callable[[Run], tuple[list[Alarm], str]]


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
    faults: list[RunFault], healthy_runs: list[HealthyRun], watch: Watcher, *, name_misses: bool, codes: Counter[str]
) -> str:
    """Watch every run of a part and return the totals as sentences; count codes that `CAUSES_BY_CODE` does not list."""
    total, delays, begun = Counter[str](), list[int](), time.perf_counter()
    for fault in faults:
        alarms, ended = watch(fault)
        verdict = judge(fault, alarms)
        total.update(
            [verdict.outcome], early=verdict.early, first=verdict.first, remedy=verdict.remedy, ended=bool(ended)
        )
        codes.update({alarm.code for alarm in alarms} - CAUSES_BY_CODE.keys())
        if verdict.outcome == "right":
            delays.append(verdict.delay)
        if name_misses and (verdict.outcome != "right" or not verdict.remedy or verdict.early):
            notes = verdict.outcome + ", no right remedy" * (verdict.outcome == "right" and not verdict.remedy)
            notes += f", an alarm before step {fault.onset}" * verdict.early
            causes = "/".join(sorted(fault.causes))
            print(f"{notes}: {fault.name} ({causes}): {describe_alarms(alarms, ended)}", flush=True)
    for healthy in healthy_runs:
        alarms, ended = watch(healthy)
        total.update(healthy=1, false=bool(alarms), ended=bool(ended))
        codes.update({alarm.code for alarm in alarms} - CAUSES_BY_CODE.keys())
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
