"""`read_loss`: what a loss was made of; and of a loss that was heard, whether outputs and targets fit it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...core.codec import JsonForm, Part
from ...core.errors import InputError
from ...theory.losses import TRAINING_LOSSES
from .autograd_graph import RANGES, cosine_factor, has_features_last, last_operator, output_limits
from .batch import runs_to_the_end
from .loss_call import BINARY, CLASSES, NO_CLASS, LossCall, LossReading, blind_loss
from .loss_graph import read_graph

_NAMES = {function.__name__: name for name, function in TRAINING_LOSSES.items()}
LEARNED_LOSS_RATIO = 0.97
"""A share of the loss of the best constant: a model that has learned anything is below it."""
MOST_TASKS, MOST_COLUMNS = 4, 16
"""Losses of several tasks that are looked at, and columns of labels that may be theirs."""
OPPOSED = 3.0
"""A factor between the weights of two classes, and the other way around between their shares."""
FEWEST_STEPS, FURTHEST = 4, 3
"""Of a sequence of tokens of which the targets are later ones: its steps, and how many steps later they may be."""
SCORES, PLUS_MINUS = "scores", (-1.0, 1.0)
CONTRACTS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "multi_margin_loss": (SCORES, ()),
    "multilabel_margin_loss": (SCORES, ()),
    "multilabel_soft_margin_loss": (SCORES, (0.0, 1.0)),
    "soft_margin_loss": (SCORES, PLUS_MINUS),
    "poisson_nll_loss": (SCORES, ()),
    "hinge_embedding_loss": ("", PLUS_MINUS),
    "cosine_embedding_loss": ("", PLUS_MINUS),
    "margin_ranking_loss": ("", PLUS_MINUS),
}
"""Other losses of torch: whether they take scores without limits, and which targets they take, if these are few."""
FEW_CLASSES = 100
"""Whole numbers with at most this many values may be the numbers of classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFacts(Part):
    """The call of a loss on one batch.

    Attributes:
        name: which loss, by the names of `TRAINING_LOSSES`.
        value: the loss.
        blind: the loss of the best output that is the same for every sample; `None` where nobody can tell.
        last: the operator that made the output, by the name autograd gives its derivative (`Softmax`, `Relu`).
        output_shape, target_shape: the two shapes.
        output_least, output_greatest: the range of the outputs.
        output_mean, target_mean: the means.
        cosines: what the outputs were multiplied by, where they are cosines: products of normalized vectors.
        limits: between which a last activation or a clamp, times constant factors, holds the outputs.
        alike: whether the outputs for all classes are the same in every sample.
        log_axis: the axis other than that of the classes over which the exponentials of the outputs add up to 1.
        integer_labels: whether the labels of the batch, of which the targets were made, are integers.
        floor: the least loss that any output has, where targets are probabilities between 0 and 1.
        padding: the share of the targets that lie in runs of one value at the ends of the rows of the labels.
        target_least, target_greatest, target_size: the range of the targets, and their root mean square.
        output_size: the root mean square of the outputs.
        probabilities: whether the outputs are positive and add up to 1 over the classes.
        log_probabilities: whether their exponentials do.
        whole_targets: whether all targets are whole numbers from 0, and how many different ones; 0 if they are not.
        smoothing: the share of each label that is spread over all classes.
        sum_of: how many values the loss adds up without a mean; 0 if it takes one.
        own_targets: whether the loss makes its targets itself: the batch has no labels, or other ones.
        labels_per_sample: the mean of the sum of the targets over the classes, where they are given for each class.
        largest_class: the share of the most frequent target; `None` for numbers.
        accuracy: the share of samples that are classified right; `None` for numbers.
        made_by: the module that made the outputs; empty where nobody can tell.
        negated: whether the value that is minimised falls where this loss, the only one, rises.
        rest: what else is in the value that is minimised, where this is the only known loss in it.
        without_weight: the share of the targets that are of classes with a weight of zero.
        weighted: whether the loss weighs classes or samples.
        opposed: whether it gives a rare class far less weight than a frequent one.
        classes_last: whether the last layer has its units on the last axis, and the loss reads another one as long.
        ahead: by how many steps the targets are later than the tokens that the model reads; 0 if they are none of them.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=(...,), always=("smoothing", "largest_class", "accuracy"))

    name: str
    value: float
    blind: float | None
    last: str
    output_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    output_least: float
    output_greatest: float
    output_size: float
    target_least: float
    target_greatest: float
    target_size: float
    probabilities: bool
    log_probabilities: bool
    whole_targets: int
    smoothing: float = 0.0
    output_mean: float = 0.0
    target_mean: float = 0.0
    cosines: float | None = None
    limits: tuple[float, float] | None = None
    sum_of: int = 0
    own_targets: bool = False
    labels_per_sample: float | None = None
    largest_class: float | None = None
    accuracy: float | None = None
    alike: bool = False
    log_axis: int | None = None
    integer_labels: bool = False
    padding: float = 0.0
    floor: float = 0.0
    made_by: str = ""
    negated: bool = False
    rest: float = 0.0
    without_weight: float = 0.0
    weighted: bool = False
    opposed: bool = False
    classes_last: bool = False
    ahead: int = 0

    @property
    def is_constant(self) -> bool:
        """Whether all targets are the same."""
        return self.target_least == self.target_greatest

    @property
    def share_of_blind(self) -> float | None:
        """The loss as a share of that of the best constant output, both above the least loss that there is."""
        return None if self.blind is None else (self.value - self.floor) / max(self.blind - self.floor, 1e-12)


@torch.no_grad()
def read_loss(loss: Any, heard: Sequence[LossCall] = (), *, activations: bool = True) -> LossReading | None:
    """Return what a loss was made of; None where that cannot be seen: it is a number, or its backward is over.

    Nothing is changed. Of what was heard it is asked how it counts; off the graph nothing is waited for.

    Args:
        loss: in front of its backward.
        heard: what loss functions were given, as a `LossListener` heard it: the graph keeps less of it.
        activations: whether to measure the activations on the way to a loss that was not heard.

    Example:
        >>> scores, labels = torch.zeros(4, 3, requires_grad=True), torch.tensor([0, 0, 1, 2])
        >>> reading = read_loss(-torch.nn.functional.cross_entropy(scores.softmax(1), labels))
        >>> sorted(reading.oddities)
        ['negated', 'softmax']
    """
    if not heard:
        root = loss.grad_fn if isinstance(loss, Tensor) else None
        return None if root is None else read_graph(root, activations=activations)
    result = heard[0].result
    if len(heard) > 1 or loss is None or not loss.requires_grad or result is None or not result.requires_grad:
        return LossReading(calls=tuple(heard))
    [pull] = torch.autograd.grad(loss, [result], retain_graph=True, allow_unused=True)
    factor = 0.0 if pull is None else float(pull.sum())
    return LossReading(
        calls=tuple(heard),
        oddities=frozenset({"negated"} if factor < 0.0 else ()),
        rest=0.0 if pull is None or result.numel() != 1 else float(loss) - factor * float(result),
    )


def resolve_loss(loss: Any) -> Any:
    """Return the function of a loss that is given by name; anything else as it is."""
    if not isinstance(loss, str):
        return loss
    name = loss.removesuffix("_loss")
    if name not in TRAINING_LOSSES:
        raise InputError(f"there is no loss {loss!r}: pass one of {', '.join(TRAINING_LOSSES)}, or a function")
    return _with_classes_last(TRAINING_LOSSES[name]) if name in CLASSES else TRAINING_LOSSES[name]


def _with_classes_last(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a loss over classes that also takes outputs whose last axis has the classes, as those of sequences."""

    @functools.wraps(loss)
    def take_either(output: Tensor, target: Tensor) -> Tensor:
        is_last = output.ndim > 2 and output.shape[:-1] == target.shape != (*output.shape[:1], *output.shape[2:])
        return loss(output.movedim(-1, 1) if is_last else output, target)

    return take_either


def takes_labels(loss: Any) -> bool:
    """Whether a loss compares outputs with labels, and is not a function of what the model returns alone."""
    try:
        taken = inspect.signature(loss.forward if isinstance(loss, torch.nn.Module) else loss).parameters.values()
    except (TypeError, ValueError):  # a name, or a function of torch's own
        return loss is not None
    return len([p for p in taken if p.kind is not p.KEYWORD_ONLY]) > 1 or any(p.kind is p.VAR_POSITIONAL for p in taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenContract(Part):
    """A loss of torch that takes scores, and is given the values of an activation; or other targets than it takes.

    Attributes:
        name: the function.
        last: the activation; empty if it is the targets that do not fit.
        made_by: the module that made the outputs; empty where nobody can tell.
        least, greatest: the range of what does not fit.
    """

    name: str
    last: str
    made_by: str
    least: float
    greatest: float


def _broken_contract(name: str, given: Mapping[str, Any], maker: Callable[[Tensor], str]) -> BrokenContract | None:
    """Return what does not fit a loss, if anything does not."""
    takes, allowed = CONTRACTS[name]
    output, target = given.get("input", given.get("input1")), given.get("target")
    if not isinstance(output, Tensor) or not isinstance(target, Tensor) or not target.numel():
        return None
    last, made_by = last_operator(output), maker(output)
    if takes == SCORES and last in RANGES and given.get("log_input", True):
        least, greatest = (float(end) for end in output.detach().aminmax())
        return BrokenContract(name=name, last=last, made_by=made_by, least=least, greatest=greatest)
    least, greatest = (float(end) for end in target.detach().double().aminmax())
    fits = not allowed or bool(((target == allowed[0]) | (target == allowed[1])).all())
    return None if fits else BrokenContract(name=name, last="", made_by="", least=least, greatest=greatest)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsOutside(Part):
    """Labels that are none of the classes: the least and the greatest of them, and how many classes there are."""

    least: int
    greatest: int
    classes: int

    @property
    def mismatch(self) -> str:
        """The labels and the classes, in a clause."""
        return (
            f"the labels run from {self.least} to {self.greatest}, and outputs for {self.classes} classes take labels "
            f"from 0 to {self.classes - 1}"
        )


@torch.no_grad()
def find_labels_outside(given: Mapping[str, Any]) -> LabelsOutside | None:
    """Return the labels of a loss over classes if some of them are none of its classes."""
    output, target = given.get("input"), given.get("target")
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return None
    if target.is_floating_point() or not output.ndim:
        return None
    counting = target[target != given.get("ignore_index", NO_CLASS)]
    if not counting.numel():
        return None
    least, greatest = (int(end) for end in counting.long().aminmax())
    classes = output.shape[1] if output.ndim > 1 else output.shape[0]
    inside = 0 <= least <= greatest < classes
    return None if inside else LabelsOutside(least=least, greatest=greatest, classes=classes)


class LossListener(TorchFunctionMode):
    """Sees the calls of losses, in the user's loss or inside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[LossCall] = []
        self.in_loss = False
        self.outside: LabelsOutside | None = None
        self._others: list[tuple[str, Mapping[str, Any]]] = []  # losses of torch that are not among those of `calls`

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function, and keep what a loss was given; refuse labels that are none of its classes."""
        function = getattr(func, "__name__", "")
        name, given = _NAMES.get(function), dict[str, Any]()
        if name is None and not self.in_loss:
            return func(*args, **(kwargs or {}))
        if name is not None:
            given = {**dict(zip(("input", "target"), args)), **(kwargs or {})}
        if name in CLASSES and self.in_loss:
            self.outside = find_labels_outside(given)
            if self.outside is not None:
                raise IndexError(self.outside.mismatch)
        result = func(*args, **(kwargs or {}))
        if name is not None and isinstance(result, Tensor):
            if isinstance(given.get("input"), Tensor) and isinstance(given.get("target"), Tensor):
                self.calls.append(
                    LossCall(
                        name,
                        given["input"],
                        given["target"],
                        smoothing=float(given.get("label_smoothing", 0.0)),
                        reduction=str(given.get("reduction", "mean")),
                        ignored=given.get("ignore_index", NO_CLASS),
                        weight=given.get("weight"),
                        positives=given.get("pos_weight"),
                        result=result if self.in_loss else result.detach(),  # how it counts is not asked in a model
                    )
                )
        elif self.in_loss and function in CONTRACTS:
            names = inspect.signature(func).parameters
            self._others.append((function, {**dict(zip(names, args)), **(kwargs or {})}))
        elif self.in_loss and not self.calls and _broadcasts(function, args):
            self.calls.append(LossCall("the difference", args[0], args[1], result=result.square().mean().detach()))
        return result

    def broken_contract(self, maker: Callable[[Tensor], str]) -> BrokenContract | None:
        """Return the first loss that was given what it does not take."""
        broken = (_broken_contract(name, given, maker) for name, given in self._others)
        return next((own for own in broken if own is not None), None)


def measure_last_call(
    reading: LossReading, labels: Sequence[Any] | None, leaves: Sequence[Any], maker: Callable[[Tensor], str]
) -> LossFacts:
    """Return what the last call of a loss shows.

    Targets that are all the same beside labels that are not, or without any, are those of the loss itself, such as
    the ones that a generator is to reach. A loss inside of the model may have any argument for its labels.

    Args:
        reading: what was heard.
        labels: what the user's loss was given, if there is one.
        leaves: the arguments of the model.
        maker: which module made a tensor.
    """
    labels_or_arguments = [leaf for leaf in leaves if isinstance(leaf, Tensor)] if labels is None else labels
    call = reading.calls[-1]
    same = [label for label in labels or () if isinstance(label, Tensor) and label.numel() == call.target.numel()]
    return replace(
        _measure_call(call),
        own_targets=not any(_all_alike(label) for label in labels_or_arguments),
        made_by=maker(call.output),
        ahead=_steps_ahead(call, leaves),
        integer_labels=bool(same) and not same[0].is_floating_point() and same[0].dtype != torch.bool,
        padding=_padding(same[0], call) if same and call.reduction == "mean" and not call.is_weighted else 0.0,
        negated="negated" in reading.oddities,
        rest=reading.rest,
    )


def measure_other_calls(
    reading: LossReading, labels: Sequence[Any], maker: Callable[[Tensor], str]
) -> tuple[LossFacts, ...]:
    """Return what earlier calls of losses show that compare outputs with labels, as those of several tasks do."""
    held = [call for call in reading.calls[:-1] if any(_holds(label, call.target) for label in labels)]
    return tuple(replace(_measure_call(call), made_by=maker(call.output)) for call in held[-MOST_TASKS:])


@torch.no_grad()
def _holds(label: Any, target: Tensor) -> bool:
    """Whether targets are labels, or one column of them."""
    if not isinstance(label, Tensor) or label.is_complex() or not 0 < target.numel() <= label.numel():
        return False
    if label.numel() == target.numel():
        return bool((label.flatten() == target.flatten()).all())
    columns = label.unbind(1) if label.ndim == 2 and label.shape[1] <= MOST_COLUMNS else ()
    return any(len(own) == target.numel() and bool((own == target.flatten()).all()) for own in columns)


def _padding(labels: Tensor, call: LossCall) -> float:
    """Return the share of the labels of rows that are filled up with one value at their ends, and that count."""
    if labels.ndim != 2 or labels.is_floating_point() or labels.shape[1] < 2:
        return 0.0
    filler = labels[:, -1].mode().values
    if int(filler) == call.ignored:
        return 0.0
    filled = runs_to_the_end(labels == filler)
    return float(filled.double().mean()) if bool((filled.sum(1) > 1).any()) else 0.0


def _steps_ahead(call: LossCall, leaves: Sequence[Any]) -> int:
    """Return by how many steps targets are later than a sequence of tokens; 0 where they are none of them."""
    target = call.target
    for leaf in leaves if call.name in CLASSES and not target.is_floating_point() else ():
        tokens = isinstance(leaf, Tensor) and leaf.ndim == 2 and not leaf.is_floating_point() and len(leaf) > 0
        if not tokens or target.numel() % len(leaf) or leaf.shape[1] < FEWEST_STEPS:
            continue
        rows, steps = target.reshape(len(leaf), -1), leaf.shape[1]
        for late in range(FURTHEST) if rows.shape[1] in (steps, steps - 1, steps - 2) else ():
            width = min(rows.shape[1], steps - late)
            counts = rows[:, :width] != call.ignored
            if bool((rows[:, :width] == leaf[:, late : late + width])[counts].all()) and bool(counts.any()):
                return late
    return 0


def _is_opposed(call: LossCall, target: Tensor, counts: Tensor, values: Tensor) -> bool:
    """Whether a loss gives a rare class far less weight than a frequent one."""
    if call.positives is not None and call.positives.numel() == 1 and call.name == BINARY[1]:
        share, weight = float(target.mean()), float(call.positives)
        return weight * OPPOSED < 1.0 and 0.0 < share * OPPOSED < 1.0 - share
    if call.weight is None or call.name not in CLASSES or len(values) < 2:
        return False
    weights = call.weight.detach().double()[values.long()]
    rare, frequent = int(counts.argmin()), int(counts.argmax())
    return bool(weights[rare] * OPPOSED < weights[frequent]) and bool(counts[rare] * OPPOSED < counts[frequent])


def _broadcasts(function: str, args: Any) -> bool:
    """Whether a column is subtracted from a row of as many values, which makes a table of all pairs."""
    if function not in ("sub", "__sub__", "__rsub__") or len(args) < 2:
        return False
    if len({isinstance(value, Tensor) and value.requires_grad for value in args[:2]}) < 2:
        return False  # two outputs or two targets: pairs are meant
    shapes = {tuple(value.shape) for value in args[:2] if isinstance(value, Tensor)}
    counts = {shape[0] for shape in shapes if len(shape) == 1}
    return len(shapes) == 2 and any((count, 1) in shapes for count in counts if count > 1)


@torch.no_grad()
def _measure_call(call: LossCall) -> LossFacts:
    """Measure one call of a loss that was heard."""
    assert call.result is not None
    name, output, target = call.name, call.output.detach().double(), call.target.detach()
    numbers = target.double()
    over_classes = output.ndim > 1 and output.shape[1] > 1
    sums = output.sum(1) if over_classes else output.new_zeros(1)
    logs = output.logsumexp(1) if over_classes else output.new_ones(1)
    whole = not numbers.is_complex() and bool((numbers == numbers.round()).all()) and bool((numbers >= 0).all())
    indices = name in CLASSES and not target.is_floating_point()
    counting = target != call.ignored if indices else torch.ones_like(target, dtype=torch.bool)
    counting = counting if bool(counting.any()) else torch.ones_like(counting)
    values, counts = numbers[counting].unique(return_counts=True)
    fits = indices and over_classes and target.ndim == output.ndim - 1
    return LossFacts(
        name=name,
        value=float(call.result.double().mean()),
        blind=_blind(call, output, numbers, counts, indices),
        last=last_operator(call.output),
        output_shape=tuple(output.shape),
        target_shape=tuple(target.shape),
        output_least=float(output.min()),
        output_greatest=float(output.max()),
        output_size=float(output.square().mean().sqrt()),
        target_least=float(numbers.min()),
        target_greatest=float(numbers.max()),
        target_size=float(numbers.square().mean().sqrt()),
        output_mean=float(output.mean()),
        target_mean=float(numbers.mean()),
        cosines=cosine_factor(call.output),
        limits=output_limits(call.output),
        probabilities=bool(output.min() >= 0) and bool((sums - 1).abs().max() < 1e-3),
        log_probabilities=over_classes and bool(logs.abs().max() < 1e-3),
        smoothing=call.smoothing,
        without_weight=float((call.weight[target[counting]] == 0).double().mean())
        if indices and call.weight is not None
        else 0.0,
        weighted=call.is_weighted,
        opposed=_is_opposed(call, numbers, counts, values) if indices or name in BINARY else False,
        classes_last=name in CLASSES
        and output.ndim == target.ndim + 1 > 2
        and output.shape[1] == output.shape[-1]
        and has_features_last(call.output),
        sum_of=len(output) if call.reduction == "sum" else 0,
        labels_per_sample=float(numbers.sum(1).mean()) if over_classes and numbers.shape == output.shape else None,
        whole_targets=len(values) if whole and len(values) <= FEW_CLASSES else 0,
        largest_class=float(counts.max() / counts.sum()) if indices or name in BINARY else None,
        floor=_floor(call, numbers),
        alike=over_classes and bool((output == output[:, :1]).all()),
        log_axis=next((k for k in range(output.ndim) if k != 1 and bool(output.logsumexp(k).abs().max() < 1e-3)), None),
        accuracy=float((output.argmax(1) == target)[counting].double().mean()) if fits else None,
    )


def _floor(call: LossCall, target: Tensor) -> float:
    """Return the mean loss of outputs that are equal to the targets, where these are probabilities."""
    is_plain = call.name in BINARY and call.reduction == "mean" and not call.is_weighted
    if not is_plain or not bool(((target >= 0) & (target <= 1)).all()):
        return 0.0
    return float(-(torch.xlogy(target, target) + torch.xlogy(1 - target, 1 - target)).mean())


def _blind(call: LossCall, output: Tensor, target: Tensor, counts: Tensor, indices: bool) -> float | None:
    """Return the loss of the best constant output."""
    mean = _blind_mean(call.name, output, target, counts, indices)
    terms = int(counts.sum()) if call.name in CLASSES else output.numel()
    return mean if mean is None or call.reduction != "sum" else mean * terms


def _blind_mean(name: str, output: Tensor, target: Tensor, counts: Tensor, indices: bool) -> float | None:
    """Return the mean loss of the best constant output."""
    if name in CLASSES:
        return float(blind_loss(name, counts / counts.sum())) if indices else None
    if name in BINARY:
        return float(blind_loss(name, target.mean(0).clamp(1e-12, 1 - 1e-12)))
    if output.shape != target.shape or len(target) < 2:
        return None
    if name == "mse":
        return float(target.var(0, correction=0).mean())
    return float((target - target.median(0).values).abs().mean()) if name == "l1" else None


def _all_alike(label: Any) -> bool:
    """Whether labels are all the same; those that are no tensor may be."""
    return not isinstance(label, Tensor) or bool((label == label.flatten()[:1]).all())
