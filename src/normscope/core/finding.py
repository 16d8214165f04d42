"""`Finding`: something wrong or worth knowing, where it is, why it matters and what to do."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from .codec import JsonForm, Part
from .errors import card, visible
from .log10 import power10


class Severity(enum.StrEnum):
    """How much a finding matters; a more serious severity compares as larger."""

    INFO = "info"
    """A fact the reader may want to know; the model may well be healthy."""
    WARNING = "warning"
    """Something that usually costs accuracy, stability or compute."""
    ERROR = "error"
    """Something that makes the model useless as it stands."""

    @property
    def rank(self) -> int:
        """0, 1, 2 for info, warning, error."""
        return list(Severity).index(self)

    def __lt__(self, other: object) -> bool:
        return self.rank < other.rank if isinstance(other, Severity) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.rank <= other.rank if isinstance(other, Severity) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self.rank > other.rank if isinstance(other, Severity) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self.rank >= other.rank if isinstance(other, Severity) else NotImplemented


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Part):
    """One thing found in a model.

    Attributes:
        code: a name in kebab-case, from one list for audits and training runs (`dead-layer`, `redundant-bias`, ...).
        severity: info, warning or error.
        where: the module path, or the parameter's name.
        seen: what was measured, in one sentence with its figures.
        why: why it matters.
        advice: what to do.
        numbers: the figures by name; `None` stands for a figure that was not measured.
        step: the training step at which it was raised; `None` in audits.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=("step",))

    code: str
    severity: Severity
    where: str
    seen: str
    why: str
    advice: str
    numbers: Mapping[str, float | int | None] = field(default_factory=dict, hash=False)
    step: int | None = None

    @property
    def title(self) -> str:
        """The code, and the place if there is one: a finding about a whole run has none."""
        return f"{self.code} in `{self.where}`" if self.where else self.code

    def __str__(self) -> str:
        when = "" if self.step is None else f" at step {self.step}"
        return visible(f"{self.severity.value}: {self.title}{when}: {self.seen} {self.why} {self.advice}")

    def _repr_html_(self) -> str:
        when = "" if self.step is None else f" at step {self.step:,}"
        where = f"`{self.where}`{when}" if self.where else f"the run{when}"
        lines = {"where": where, "seen": self.seen, "why it matters": self.why, "advice": self.advice}
        return card(f"{self.severity.value}: {self.code}", lines)


@dataclass(frozen=True, slots=True)
class FindingKind:
    """The words that verdicts use for all findings of one code."""

    one: str  # what a verdict says of one place, in a clause; `{where}` stands for the place
    # what it says of several places, if that differs; `{count}` stands for how many, `{norms}` for how many of all
    # normalizers
    many: str = ""
    note: tuple[str, str] | None = None  # both for an info finding, where it says something else


KINDS: dict[str, FindingKind] = {
    "non-finite-weights": FindingKind(
        "{where} is broken by NaN or infinite values", "{count} tensors hold NaN or infinite values"
    ),
    "non-finite-activations": FindingKind(
        "{where} returns NaN or infinite values", "{count} modules return NaN or infinite values"
    ),
    "input-scale": FindingKind("an input is at an unusual scale ({where})"),
    "input-columns": FindingKind("one column of the {where} is far larger than the others"),
    "gradient-mismatch": FindingKind(
        "the gradient through {where} is not that of its forward",
        "the gradient through {count} modules is not that of their forward",
    ),
    "activation-before-loss": FindingKind("the last activation does not fit the loss"),
    "loss-does-not-fit": FindingKind("the loss does not fit the outputs and targets"),
    "shapes-broadcast": FindingKind("output and target have different shapes"),
    "targets-out-of-range": FindingKind("the targets lie outside what the model can put out"),
    "targets-scale": FindingKind("the targets have another scale than the outputs"),
    "one-class": FindingKind("all targets are the same", note=("nearly all targets are of one class",) * 2),
    "no-better-than-constant": FindingKind("the model does no better than a constant output"),
    "not-in-optimizer": FindingKind("the optimizer does not hold {where}"),
    "decay-too-strong": FindingKind("the weight decay is far too strong"),
    "step-too-long": FindingKind("one step of the optimizer makes the loss far larger"),
    "step-too-short": FindingKind("the steps of the optimizer are far too short", note=("the learning rate is 0",) * 2),
    "gradient-does-not-descend": FindingKind("a step along the gradient does not lower the loss"),
    "first-loss": FindingKind("the first loss is far above that of a blind guess"),
    "backward-raises": FindingKind("the backward raises an error at {where}"),
    "gradient-cut": FindingKind("no gradient can flow back past {where}"),
    "unused-parameter": FindingKind("the forward never uses {where}", "the forward never uses {count} layers"),
    "equal-units": FindingKind("the units of {where} are all alike", "the units of {count} layers are alike"),
    "zero-weights": FindingKind("all weights of {where} are zero", "all weights of {count} layers are zero"),
    "recurrent-scale": FindingKind(
        "the recurrent weights of {where} explode or vanish over a sequence",
        "the recurrent weights of {count} layers explode or vanish over a sequence",
    ),
    "layer-scale": FindingKind(
        "the weights of {where} have a scale of their own", "the weights of {count} layers stand out in scale"
    ),
    "rank-one-weights": FindingKind(
        "the weights of {where} are of rank one", "the weights of {count} layers are of rank one"
    ),
    "samples-mixed": FindingKind("the samples of a batch are mixed in {where}"),
    "input-ignored": FindingKind(
        "the output ignores part of its input ({where})", "the output ignores {count} parts of its input"
    ),
    "labels-are-inputs": FindingKind("the targets are what the model is given"),
    "mask-leaks": FindingKind("the mask of {where} does not hide"),
    "hidden-softmax": FindingKind("a softmax stands between two layers in {where}"),
    "softmax-axis": FindingKind("the softmax of {where} works over another axis than the sum behind it"),
    "strong-dropout": FindingKind(
        "the dropout of {where} takes nearly everything away", "{count} dropouts take nearly everything away"
    ),
    "no-loss-gradient": FindingKind("the loss gives no gradient"),
    "gradient-not-finite": FindingKind("the gradient of {where} is NaN or infinite"),
    "branch-dominates": FindingKind("the branch of {where} drowns what it is added to"),
    "attention-saturated": FindingKind(
        "the softmax of {where} looks at one entry in each row", "{count} softmaxes look at one entry in each row"
    ),
    "missing-activation": FindingKind(
        "no activation stands before {where}", "no activation stands before {count} layers"
    ),
    "bottleneck": FindingKind("everything has to pass through {where}, which is too narrow"),
    "output-constant": FindingKind("the output does not depend on the input, from {where} on"),
    "frozen-layer": FindingKind("{where} does not train"),
    "tiny-sets": FindingKind(
        "{where} normalizes sets of one or two values", "{norms} work on sets of one or two values"
    ),
    "eps-scale": FindingKind(
        "the eps of {where} does not fit its input", "the eps of {norms} does not fit their input"
    ),
    "spectral-norm-off": FindingKind(
        "the spectral norm of {where} is not the one it was made for",
        "the spectral norms of {count} layers are not those they were made for",
    ),
    "dead-layer": FindingKind(
        "layer {where} is dead",
        "{count} layers are dead",
        note=("layer {where} is zero as a whole", "{count} layers are zero as a whole"),
    ),
    "exploding-run": FindingKind(
        "the signal explodes from {where} on", "the signal explodes in {count} runs of layers"
    ),
    "gradient-explosion": FindingKind("the gradient of {where} explodes", "the gradients of {count} layers explode"),
    "gradient-jump": FindingKind("the gradient changes by decades behind {where}"),
    "batch-norm-depth": FindingKind("the gradient explodes through the BatchNorms"),
    "no-gradient": FindingKind("no gradient gets past {where}", "no gradient gets past {count} layers"),
    "saturated-units": FindingKind("{where} is saturated", "{count} activations are saturated"),
    "gradient-vanishing": FindingKind("the gradient of {where} vanishes", "the gradients of {count} layers vanish"),
    "half-precision": FindingKind(
        "{where} is close to overflow in half precision", "{count} layers are close to overflow in half precision"
    ),
    "dead-channels": FindingKind(
        "part of layer {where} is dead",
        "parts of {count} layers are dead",
        note=("a few channels of {where} carry nothing", "a few channels of {count} layers carry nothing"),
    ),
    "stale-statistics": FindingKind(
        "the stored statistics do not fit the data, from {where} on",
        "the stored statistics of {norms} do not fit the data",
        note=("the statistics of {where} were never taken", "the statistics of {norms} were never taken"),
    ),
    "wrong-mode": FindingKind(
        "{where} is in train mode, the model is not", "{norms} are in train mode, the model is not"
    ),
    "small-batch": FindingKind("the batch is too small for {where}", "the batch is too small for {norms}"),
    "eps-dominated": FindingKind(
        "eps outweighs what {where} normalizes",
        "eps outweighs what {norms} normalize",
        note=("eps outweighs a little of {where}", "eps outweighs a little of what {norms} normalize"),
    ),
    "dead-relu": FindingKind(
        "many units of the ReLU in {where} never fire",
        "many units of {count} ReLUs never fire",
        note=("some units of the ReLU in {where} never fired", "some units of {count} ReLUs never fired"),
    ),
    "expanding-normalizer": FindingKind("{where} expands what it normalizes", "{norms} expand"),
    "redundant-bias": FindingKind("the bias of {where} has no effect", "the biases of {count} layers have no effect"),
    "not-lipschitz": FindingKind(
        "{where} can amplify some inputs without limit", "{count} parts can amplify some inputs without limit"
    ),
    "loose-bound": FindingKind("there is no useful bound over all inputs"),
    "no-rule": FindingKind("{where} runs an operator without a rule", "{count} parts run operators without a rule"),
    "loss-not-finite": FindingKind("the loss is no number any more"),
    "constant-input": FindingKind("the samples of a batch are all the same"),
    "not-trained": FindingKind("no optimizer trains {where}", "no optimizer trains {count} layers"),
    "no-step": FindingKind("the optimizer makes no step"),
    "no-gradient-at-step": FindingKind("the optimizer steps without gradients"),
    "rate-zero": FindingKind("the learning rate is 0"),
    "rate-decayed": FindingKind("the learning rate decayed too early"),
    "weights-still": FindingKind("the weights do not move"),
    "weights-put-back": FindingKind("the weights are put back after each step"),
    "negated-loss": FindingKind("the loss has the wrong sign"),
    "sorted-batches": FindingKind("the batches are not shuffled"),
    "same-batch": FindingKind("every step sees the same batch"),
    "data-changed": FindingKind("the inputs have changed"),
    "overfitting": FindingKind("the validation loss rises while the training loss falls"),
    "validation-worse": FindingKind("the validation became worse"),
    "validation-apart": FindingKind("the validation does not follow the training"),
    "reward-falls": FindingKind("the reward falls"),
    "units-alike": FindingKind("the units of {where} are alike", "the units of {count} layers are alike"),
    "no-zero-grad": FindingKind("gradients are never cleared"),
    "lr-too-high": FindingKind("the learning rate is too high"),
    "edge-of-stability": FindingKind("the steps are too long for the curvature"),
    "variance-collapse": FindingKind("the variance into {where} collapsed", "the variances into {norms} collapsed"),
    "norm-growth": FindingKind("the weight of {where} keeps growing", "the weights of {count} layers keep growing"),
    "effective-lr": FindingKind(
        "the steps of {where} have the wrong size", "the steps of {count} layers have the wrong size"
    ),
    "loss-rising": FindingKind("the loss rises"),
    "loss-spike": FindingKind("the loss jumped"),
    "eval-mode": FindingKind("the model is trained in eval mode"),
    "not-seen": FindingKind("the watcher sees nothing of the training"),
}
"""By code, in the order of the tables in `docs/findings.md`, which say when each is raised."""


def figure(value: float) -> str:
    """Write a number with two digits: 0.031, 4.2e+06."""
    return f"{value:.2g}"


def power(exponent: float) -> str:
    """Write the number whose log10 is given; beyond the floats as a power of ten."""
    if math.isinf(exponent):
        return "0" if exponent < 0 else "infinity"
    return figure(power10(exponent)) if abs(exponent) < 300 else f"10^{exponent:.0f}"


def percent(share: float) -> str:
    """Write a share: 12 %, and less than 1 % as such."""
    return "less than 1 %" if 0.0 < share < 0.01 else f"{100 * share:.0f} %"


def figures(**numbers: float | int | None) -> dict[str, float | int | None]:
    """Return raw figures; what is not a number was not measured."""
    return {name: None if isinstance(n, float) and math.isnan(n) else n for name, n in numbers.items()}
