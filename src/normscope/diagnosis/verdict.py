"""`verdict`: what is to be said first of a model, in one sentence; and findings of one kind in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

from ..core.finding import Finding, Severity
from ..report.words import counted, listed

MOST = 3
"""Kinds of findings that one sentence names; of the others it says how many there are."""

CLAUSES: dict[str, tuple[str, str]] = {
    "non-finite-weights": (
        "{where} is broken by NaN or infinite values",
        "{count} tensors hold NaN or infinite values",
    ),
    "non-finite-activations": (
        "{where} returns NaN or infinite values",
        "{count} modules return NaN or infinite values",
    ),
    "gradient-mismatch": (
        "the gradient through {where} is not that of its forward",
        "the gradient through {count} modules is not that of their forward",
    ),
    "tiny-sets": ("{where} normalizes sets of one or two values", "{norms} work on sets of one or two values"),
    "eps-scale": ("the eps of {where} does not fit its input", "the eps of {norms} does not fit their input"),
    "spectral-norm-off": (
        "the spectral norm of {where} is not the one it was made for",
        "the spectral norms of {count} layers are not those they were made for",
    ),
    "dead-layer": ("layer {where} is dead", "{count} layers are dead"),
    "dead-layer info": ("layer {where} is zero as a whole", "{count} layers are zero as a whole"),
    "exploding-run": ("the signal explodes from {where} on", "the signal explodes in {count} runs of layers"),
    "dead-channels": ("part of layer {where} is dead", "parts of {count} layers are dead"),
    "dead-channels info": ("a few channels of {where} carry nothing", "a few channels of {count} layers carry nothing"),
    "stale-statistics": (
        "the stored statistics do not fit the data, from {where} on",
        "the stored statistics of {norms} do not fit the data",
    ),
    "stale-statistics info": (
        "the statistics of {where} were never taken",
        "the statistics of {norms} were never taken",
    ),
    "small-batch": ("the batch is too small for {where}", "the batch is too small for {norms}"),
    "eps-dominated": ("eps outweighs what {where} normalizes", "eps outweighs what {norms} normalize"),
    "eps-dominated info": ("eps outweighs a little of {where}", "eps outweighs a little of what {norms} normalize"),
    "dead-relu": ("many units of the ReLU in {where} never fire", "many units of {count} ReLUs never fire"),
    "dead-relu info": ("some units of the ReLU in {where} never fired", "some units of {count} ReLUs never fired"),
    "expanding-normalizer": ("{where} expands what it normalizes", "{norms} expand"),
    "redundant-bias": ("the bias of {where} has no effect", "the biases of {count} layers have no effect"),
    "not-lipschitz": (
        "{where} can amplify some inputs without limit",
        "{count} parts can amplify some inputs without limit",
    ),
    "no-rule": ("{where} runs an operator without a rule", "{count} parts run operators without a rule"),
    "steep-activation": ("the activation in {where} is steeper than 1", "{count} activations are steeper than 1"),
    "loose-bound": ("there is no useful bound over all inputs",) * 2,
    "loss-not-finite": ("the loss is no number any more",) * 2,
    "variance-collapse": ("the variance into {where} collapsed", "the variances into {norms} collapsed"),
    "variance-growth": ("the variance into {where} outgrows float16", "the variances into {norms} outgrow float16"),
    "norm-growth": ("the weight of {where} keeps growing", "the weights of {count} layers keep growing"),
    "gradient-explosion": ("the gradient of {where} explodes", "the gradients of {count} layers explode"),
    "batch-norm-depth": ("the gradient explodes through the BatchNorms",) * 2,
    "gradient-vanishing": ("the gradient of {where} vanishes", "the gradients of {count} layers vanish"),
    "effective-lr": ("the steps of {where} have the wrong size", "the steps of {count} layers have the wrong size"),
    "input-scale": ("the {where} is at an unusual scale",) * 2,
    "no-gradient": ("no gradient gets past {where}", "no gradient gets past {count} layers"),
    "saturated-units": ("{where} is saturated", "{count} activations are saturated"),
    "half-precision": (
        "{where} is close to overflow in half precision",
        "{count} layers are close to overflow in half precision",
    ),
    "loss-rising": ("the loss rises",) * 2,
    "loss-spike": ("the loss jumped",) * 2,
    "lr-too-high": ("the first steps were too large",) * 2,
    "constant-input": ("the samples of a batch are all the same",) * 2,
    "not-trained": ("no optimizer trains {where}", "no optimizer trains {count} layers"),
    "no-zero-grad": ("gradients are never cleared",) * 2,
    "eval-mode": ("the model is trained in eval mode",) * 2,
    "not-seen": ("the watcher sees nothing of the training",) * 2,
}
"""By code, for one place and for several; `code info` where an info finding of that code says something else."""


class HasRole(Protocol):
    """What a verdict reads of a row of an audit."""

    @property
    def role(self) -> str:
        """`weight`, `normalizer` or another."""


def verdict(findings: Sequence[Finding], rows: Sequence[HasRole] = ()) -> str:
    """Return what findings say of a model as a whole, in one sentence.

    Args:
        findings: in any order; infos are no problem and are not named.
        rows: the rows of the audit: how many layers were looked at.

    Returns:
        A sentence that begins with a capital letter and ends in a full stop; names of layers stand in backticks.

    Example:
        >>> verdict([])
        'No problems found.'
        >>> where = {"seen": "", "why": "", "advice": ""}
        >>> verdict([Finding(code="dead-layer", severity=Severity.WARNING, where="4.1", **where)])
        'Layer `4.1` is dead; nothing else stands out.'
    """
    serious = [group for group in groups(findings) if group[0].severity > Severity.INFO]
    if not serious:
        return sentence(f"no problems found{_looked_at(rows)}")
    named = [clause(group, rows) for group in serious[:MOST]]
    left = sum(map(len, serious[MOST:]))
    return sentence("; ".join((*named, f"{counted(left, 'more finding')}" if left else "nothing else stands out")))


def groups(findings: Iterable[Finding]) -> Iterator[list[Finding]]:
    """Yield findings of one code and severity together: the most serious first, then in the order the codes come."""
    codes: dict[str, int] = {}
    found = list(findings)
    for finding in found:
        codes.setdefault(finding.code, len(codes))
    ordered = sorted(found, key=lambda finding: (-finding.severity.rank, codes[finding.code]))
    for _, members in groupby(ordered, key=lambda finding: (finding.severity, finding.code)):
        yield list(members)


def clause(group: Sequence[Finding], rows: Sequence[HasRole] = ()) -> str:
    """Return what findings of one code say, in a few words without a capital letter or a full stop.

    Args:
        group: findings of one code and severity.
        rows: the rows of the audit.
    """
    first = group[0]
    told = first.numbers.get("count")
    count = int(told) if len(group) == 1 and isinstance(told, int | float) else len(group)
    words = first.code.replace("-", " ")
    unknown = (f"{words} in {{where}}", f"{words} in {{count}} places")
    one, many = CLAUSES.get(f"{first.code} {first.severity}", CLAUSES.get(first.code, unknown))
    of = sum(row.role == "normalizer" for row in rows)
    norms = f"{count:,} of {of:,} normalizers" if of >= count else f"{count:,} normalizers"
    written = one if count == 1 else many
    return written.replace("{count}", f"{count:,}").replace("{norms}", norms).replace("{where}", place(first.where))


def place(where: str) -> str:
    """Return a path as it stands in a sentence."""
    return f"`{where}`" if where and " " not in where else where or "the model"


def places(group: Sequence[Finding], most: int = MOST) -> str:
    """Return the places of findings, the first few by name."""
    return listed(list(dict.fromkeys(place(finding.where) for finding in group)), most=most)


def sentence(text: str) -> str:
    """Return a clause as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def _looked_at(rows: Sequence[HasRole]) -> str:
    roles = (("weight", "weight layer"), ("normalizer", "normalizer"))
    counts = [(sum(row.role == role for row in rows), noun) for role, noun in roles]
    told = [counted(count, noun) for count, noun in counts if count]
    return f" in {' and '.join(told)}" if told else ""
