"""`try_steps`: does a step along the gradient lower the loss, and what would one step of the user's optimizer do?

The gradient is the one that the pass over values and gradients took. A short step along it shows how far the loss falls
beside what the gradient promises; the difference is the curvature along the gradient. The gradients of two halves of
the batch show how much of it is noise. A copy of the optimizer makes the user's own step, on copies of the weights.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ...calls.call import Call
from ...core.budget import count
from ...core.codec import JsonForm, Part
from ...core.errors import InputError, describe_error
from ...core.untouched import FunctionalDropoutOff, on_copies, seed_random, unobserved, with_tensors
from ...core.whole_weights import without_gathering
from .layers import fetch_numbers

SHORT_STEP = 0.01
"""The fall of the loss that a short step promises, as a share of the loss: far above rounding, and nearly straight."""
SHORTER, SHORTEST = 0.01, 1e-4
"""By these factors the step is made shorter where the loss rose; still shorter ones would be lost in rounding."""
LARGE_EPS = 1e-4
"""Of an optimizer; torch's own are at most 1e-6, but for Adagrad's and RMSprop's of 1e-10 and 1e-8."""
SMALLEST_SURE = 1e-30
"""The least inner product in single precision that is trusted: in smaller ones squares may have been lost."""
REPEATS = 1e-5
"""The share by which the loss of a second run with the same weights may differ."""
Gradients = Mapping[str, Tensor]
"""By the name of the parameter."""
Optimizers = Optimizer | Sequence[Optimizer]
LossOf = Callable[[Any, slice], Tensor]
"""From what the model returns for some samples of the batch, and their places, to the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts(Part):
    """What a step along the gradient of the loss does.

    Attributes:
        loss: the loss before.
        fall: the fall of the loss in a short step along the gradient, over that which the gradient promises: 1 is a
            straight slope, below 0 the loss rose.
        curvature: the second derivative of the loss along the gradient, of unit length.
        step_share: the change of the weights in a step that promises to lower the loss by a hundredth, as a share of
            their size.
        starved: parameters with a gradient here, where inputs ask for one, that get none where they do not.
        agreement: the cosine between the gradients of the two halves of the batch; `None` where it cannot be halved.
        optimizer: the class of the optimizer, if there is one.
        optimizers: how many there are; each of several has a loss of its own.
        rate: its largest learning rate.
        scheduled_rate: the largest of the rates that a schedule multiplies, if there is one.
        promised_fall: the fall of the loss in one step of the optimizer, if the loss were straight.
        next_loss: the loss after that step.
        decay: the share by which the weight decay of SGD or AdamW shrinks the weights in one step, at most.
        decay_pull: the size of a weight decay that is added to the gradient, beside the gradient; of the group in which
            it is largest.
        momentum: the largest momentum, or first beta.
        betas: the two betas of the group with the largest first one.
        moved_share: the change of all weights in one step of the optimizer, as a share of their size.
        most_moved: the same for the matrix or kernel that changes most.
        pace: where the optimizer has a large eps: the root mean square of the changes of weights in one step, as a
            share of the rate; about 1 or more, unless eps outweighs the gradients.
        unmoved: of the weights that have a gradient, the share that one step leaves exactly as they were.
        is_new: whether the optimizer has made no step yet.
        outside: trainable parameters that the optimizer does not hold.
        at_rest: trainable parameters of groups whose learning rate is 0, where other groups have one.
        foreign: how many parameters it holds that are none of the model's.
        forwards, backwards: passes over the batch that this took.
        skipped: what could not be tried, and why.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=(...,), always=("fall", "curvature", "step_share", "agreement"))

    loss: float
    fall: float | None = None
    curvature: float | None = None
    step_share: float | None = None
    agreement: float | None = None
    optimizer: str | None = None
    optimizers: int = 0
    rate: float | None = None
    scheduled_rate: float | None = None
    promised_fall: float | None = None
    next_loss: float | None = None
    decay: float | None = None
    decay_pull: float | None = None
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    moved_share: float | None = None
    most_moved: float | None = None
    pace: float | None = None
    unmoved: float | None = None
    is_new: bool = True
    outside: tuple[str, ...] = ()
    at_rest: tuple[str, ...] = ()
    foreign: int = 0
    starved: tuple[str, ...] = ()
    forwards: int = 0
    backwards: int = 0
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def stable_rate(self) -> float | None:
        """The rate above which plain steps along the gradient climb; None where the loss does not curve upwards."""
        return 2.0 / self.curvature if self.curvature is not None and self.curvature > 0.0 else None


def check_optimizers(optimizer: Any) -> None:
    """Refuse what is no optimizer."""
    for one in optimizer if isinstance(optimizer, list | tuple) else () if optimizer is None else (optimizer,):
        if not isinstance(one, Optimizer):
            raise InputError(
                f"optimizer is a {type(one).__name__}, not a torch.optim.Optimizer: pass the one that trains the "
                "model; several as a list"
            )


def try_steps(
    model: nn.Module, call: Call, loss_of: LossOf, gradients: Gradients, value: float, optimizer: Optimizers | None
) -> StepFacts:
    """Try a short step along the gradient and one of the optimizer; to be called where the model is put back after.

    Args:
        model: in the mode in which the gradients were taken.
        call: the whole batch.
        loss_of: the user's loss.
        gradients: those of the loss.
        value: the loss.
        optimizer: the user's; left as found. Of several that each train a part of the model no step is tried: each has
            a loss of its own.

    Returns:
        The facts; those that cannot be taken, because the model or the optimizer raises, are left out.
    """
    trial, skipped = Trial(model, call, loss_of), list[tuple[str, str]]()
    square = _dot(gradients, gradients)
    facts: dict[str, Any] = {"loss": value}
    weights = {name: p for name, p in model.named_parameters() if name in gradients}
    again = _attempt("steps", lambda: {"again": trial.at({})}, skipped).get("again", math.nan)
    repeats = abs(again - value) <= REPEATS * abs(value)
    if repeats and value > 0.0 and 0.0 < square < math.inf:
        size = math.sqrt(_dot(weights, weights))
        facts["step_share"] = SHORT_STEP * value / math.sqrt(square) / size if size else None
        facts |= _attempt("a short step", lambda: _short_step(trial, gradients, value, square), skipped)
        facts |= _attempt("the two halves of the batch", lambda: _halves(trial, gradients), skipped)
    elif not math.isnan(again) and not repeats:
        skipped.append(("steps", f"a second run with the same weights has another loss, {again:.6g} after {value:.6g}"))
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer or ())
    if optimizers:
        facts |= _settings(model, optimizers)
        facts["decay_pull"] = _decay_pull(model, optimizers, gradients)
    if len(optimizers) == 1 and repeats:
        own_step = functools.partial(_own_step, trial, gradients, optimizers[0])
        facts |= _attempt("a step of the optimizer", own_step, skipped)
    forwards, backwards = (round(samples / call.count) for samples in (trial.forward_samples, trial.backward_samples))
    count("passes", trial.forward_samples)
    count("backwards", trial.backward_samples)
    return StepFacts(**facts, forwards=forwards, backwards=backwards, skipped=tuple(skipped))


class Trial:
    """Takes the loss at other weights or on some of the samples, and counts the samples that ran."""

    def __init__(self, model: nn.Module, call: Call, loss_of: LossOf) -> None:
        self.model, self.call, self.loss_of = model, call, loss_of
        self.forward_samples = self.backward_samples = 0

    def loss(self, weights: Mapping[str, Tensor], samples: slice = slice(None)) -> Tensor:
        """Return the loss with some parameters replaced, and all else as it was when the gradient was taken.

        So dropout is off in functions too, and what an earlier run left in the buffers does not count.
        """
        here = self.call.changed(lambda tensor: tensor[samples].clone())
        self.forward_samples += here.count
        seed_random(self.model)
        with on_copies(self.model):
            with FunctionalDropoutOff(), with_tensors(self.model, weights):
                made = self.model(*here.args, **here.kwargs)
            return self.loss_of(made, samples)

    def gradients(self, samples: slice = slice(None)) -> dict[str, Tensor]:
        """Return the gradients of the loss of some samples, of the parameters that get one."""
        trained, before = {n: p for n, p in self.model.named_parameters() if p.requires_grad}, self.forward_samples
        with torch.enable_grad():
            gradients = torch.autograd.grad(self.loss({}, samples), list(trained.values()), allow_unused=True)
        self.backward_samples += self.forward_samples - before
        return {name: g for name, g in zip(trained, gradients, strict=True) if g is not None}

    def after(self, changes: Gradients, factor: float) -> float:
        """Return the loss with changes added to the weights."""
        held = dict(self.model.named_parameters())
        with torch.no_grad(), unobserved():
            weights = {name: torch.add(held[name], change, alpha=factor) for name, change in changes.items()}
        return self.at(weights)

    def at(self, weights: Mapping[str, Tensor]) -> float:
        """Return the loss at other weights."""
        with torch.no_grad():
            return float(self.loss(weights))


def _attempt(what: str, measure: Callable[[], dict[str, Any]], skipped: list[tuple[str, str]]) -> dict[str, Any]:
    """Return what can be measured; a model or an optimizer may refuse, which is no fault of it, and is noted."""
    try:
        return measure()
    except Exception as error:
        skipped.append((what, describe_error(error)))
        return {}


def _short_step(trial: Trial, gradients: Gradients, value: float, square: float) -> dict[str, Any]:
    """Return how far the loss falls; where it rises, how far it falls in much shorter steps."""
    for factor in (1.0, SHORTER, SHORTEST):
        promise = factor * SHORT_STEP * value
        length = promise / square
        fall = (value - trial.after(gradients, -length)) / promise
        if fall > 0.0:
            break
    return {"fall": fall, "curvature": 2.0 * (1.0 - fall) / length if math.isfinite(fall) else None}


def _halves(trial: Trial, whole: Gradients) -> dict[str, Any]:
    """Return the cosine between the gradients of the two halves of the batch, and which parameters get none there."""
    samples = trial.call.count
    if samples < 4 or not all(len(leaf) == samples for leaf in trial.call.leaves if isinstance(leaf, Tensor)):
        return {}
    first, second = (trial.gradients(places) for places in (slice(0, samples // 2), slice(samples // 2, samples)))
    size = math.sqrt(_dot(first, first) * _dot(second, second))
    return {
        "agreement": _dot(first, second) / size if 0.0 < size < math.inf else None,
        "starved": tuple(name for name in whole if name not in first.keys() | second.keys()),
    }


def _settings(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """Return what the optimizers hold, and their largest rate and decay."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    trained = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    own = {id(p) for p in model.parameters()}
    held = [id(p) for group in groups for p in group["params"]]
    rates = [float(group["lr"]) for group in groups if "lr" in group]
    resting = [trained.get(id(p)) for group in groups if float(group.get("lr", 1.0)) == 0.0 for p in group["params"]]
    scheduled = [float(group["initial_lr"]) for group in groups if "initial_lr" in group]
    decays = [float(group.get("weight_decay", 0.0)) * float(group.get("lr", 0.0)) for group in groups]
    betas = [tuple(map(float, group["betas"][:2])) for group in groups if len(group.get("betas") or ()) > 1]
    momenta = [float(group["momentum"]) for group in groups if group.get("momentum")] + [first for first, _ in betas]
    return {
        "optimizer": " and ".join(dict.fromkeys(type(optimizer).__name__ for optimizer in optimizers)),
        "optimizers": len(optimizers),
        "rate": max(rates, default=None),
        "scheduled_rate": max(scheduled, default=None),
        "decay": max(decays, default=None),
        "momentum": max(momenta, default=None),
        "betas": max(betas, default=None),
        "is_new": not any(optimizer.state for optimizer in optimizers),
        "outside": tuple(name for key, name in trained.items() if key not in set(held)),
        "at_rest": tuple(name for name in resting if name is not None) if any(rates) else (),
        "foreign": sum(key not in own for key in held),
    }


def _decay_pull(model: nn.Module, optimizers: Sequence[Optimizer], gradients: Gradients) -> float | None:
    """Return how large a weight decay is that is added to the gradient, beside it: of the group where it is largest."""
    names = {id(p): name for name, p in model.named_parameters()}
    pulls: list[float] = []
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        decay = float(group.get("weight_decay") or 0.0)
        if not decay or group.get("decoupled_weight_decay") or ("betas" not in group and "momentum" not in group):
            continue
        held = {names[id(p)]: p for p in group["params"] if id(p) in names and names[id(p)] in gradients}
        own = {name: gradients[name] for name in held}
        if size := math.sqrt(_dot(own, own)):
            pulls.append(decay * math.sqrt(_dot(held, held)) / size)
    return max(pulls, default=None)


def _own_step(trial: Trial, gradients: Gradients, optimizer: Optimizer) -> dict[str, Any]:
    """Let a copy of the optimizer make one step on copies of the weights; return the loss there."""
    names = {id(p): name for name, p in trial.model.named_parameters()}
    changes: dict[str, tuple[Tensor, Tensor]] = {}
    with without_gathering():
        twin = copy.deepcopy(optimizer)
        for group, own in zip(twin.param_groups, optimizer.param_groups, strict=True):
            for weight, parameter in zip(group["params"], own["params"], strict=True):
                name = names.get(id(parameter))
                gradient = None if name is None else gradients.get(name)
                weight.grad = None if gradient is None else gradient.clone()
                if name is not None:
                    changes[name] = weight, parameter
        is_torchs = type(optimizer).__module__.startswith("torch.")
        with _no_global_hooks(), unobserved() if is_torchs else nullcontext():
            twin.step()
        with torch.no_grad(), unobserved():
            moved = {name: weight - parameter for name, (weight, parameter) in changes.items()}
    sums = _sums_of(moved, {name: own for name, (_, own) in changes.items()}, gradients)
    matrices = [(row[0], row[1]) for name, row in sums.items() if moved[name].ndim > 1 and row[1]]
    change, size = (sum(pair[k] for pair in matrices) for k in (0, 1))
    learning, count, staying = (sum(row[k] for row in sums.values()) for k in (2, 3, 4))
    large = (group for group in optimizer.param_groups if (group.get("eps") or 0.0) > LARGE_EPS)
    rates = [float(group["lr"]) for group in large if group.get("lr")]
    return {
        "promised_fall": -_dot(gradients, moved),
        "next_loss": trial.at({name: weight for name, (weight, _) in changes.items()}),
        "moved_share": math.sqrt(change / size) if size else None,
        "most_moved": max((math.sqrt(own / whole) for own, whole in matrices), default=None),
        "unmoved": staying / learning if learning else None,
        "pace": math.sqrt(sum(row[0] for row in sums.values()) / count) / max(rates) if rates and count else None,
    }


def _sums_of(moved: Gradients, weights: Gradients, gradients: Gradients) -> dict[str, list[float]]:
    """Return five numbers of each parameter: the sums of squares of its change and its weights, and three counts.

    The counts are of entries with a gradient, of those that change, and of those with a gradient that do not change.
    """
    names = [name for name in moved if name in gradients]
    triples = [[_reals(held[name]) for held in (moved, weights, gradients)] for name in names]
    squares = compute_products((values, values) for k in (0, 1) for values in [triple[k] for triple in triples])
    counts = fetch_numbers([torch.count_nonzero(triple[k]) for triple in triples for k in (0, 2)])
    rows = {
        name: [squares[k], squares[k + len(names)], counts[2 * k + 1], counts[2 * k], 0.0]
        for k, name in enumerate(names)
    }
    at_rest = [k for k, (change, _, _) in enumerate(triples) if counts[2 * k] < change.numel()]
    learning = [torch.count_nonzero(torch.where(triples[k][0] == 0, triples[k][2], 0)) for k in at_rest]
    for k, staying in zip(at_rest, fetch_numbers(learning), strict=True):
        rows[names[k]][4] = staying
    return rows


@contextmanager
def _no_global_hooks() -> Iterator[None]:
    """Run a block without the hooks on the steps of all optimizers; a copy of one has none of its own."""
    hooks: tuple[dict[int, Any], ...] = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    held = [dict(own) for own in hooks]
    try:
        for own in hooks:
            own.clear()
        yield
    finally:
        for own, before in zip(hooks, held, strict=True):
            own.update(before)


def _dot(one: Gradients, other: Gradients) -> float:
    """Return the inner product over the parameters that both have; of complex ones the real part."""
    return math.fsum(compute_products((_reals(one[name]), _reals(other[name])) for name in one if name in other))


@unobserved()
def compute_products(pairs: Iterable[tuple[Tensor, Tensor]]) -> list[float]:
    """Return inner products, in double precision where the squares of single precision might not hold them."""
    held = [[values.reshape(-1) for values in pair] for pair in pairs]
    products = fetch_numbers([torch.dot(one, other) for one, other in held])
    unsure = [k for k, product in enumerate(products) if not SMALLEST_SURE < abs(product) < math.inf]
    exact = fetch_numbers([torch.dot(*(values.double() for values in held[k])) for k in unsure])
    for k, product in zip(unsure, exact, strict=True):
        products[k] = product
    return products


def _reals(values: Tensor) -> Tensor:
    """Return values in single or double precision, dense, the parts of complex ones side by side."""
    values = values.to_dense() if values.is_sparse else values.detach()
    values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    return values if values.dtype in (torch.float32, torch.float64) else values.float()
