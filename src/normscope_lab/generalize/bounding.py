"""`generalization`: every bound on a classifier's loss on fresh data, with its terms, conditions and evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn

from normscope import NormscopeError, hessian
from normscope.theory import Loss
from normscope.toolkit import (
    Batches,
    InputError,
    accepts_graph,
    check_counts,
    check_numbers,
    describe_error,
    mode_of,
    named_loss,
    outside_inference_mode,
    quantized,
    trace,
    unwrapped,
)

from .bound import CERTIFIED, BoundRow, condition
from .data_reading import CellPlan, DataReading, read, rereader
from .description import Fixed
from .generalization_table import ErrorPart, Generalization, PartitionCourse, decomposition
from .pac_bayes import WeightVector, pac_bayes_row
from .than2025 import Setting, corollary_rows, fresh_row, lla_row, local_rows, over_all_inputs
from .weight_layers import read_network
from .weight_rows import growth_row, margin_rows, weight_norm_row

Value = TypeVar("Value")
CELLS = (1, 4, 16, 64)
"""The default numbers of regions of the input space, for each label."""


@accepts_graph
@outside_inference_mode
def generalization(
    model: nn.Module,
    train: Any = None,
    test: Any = None,
    held_out: Any = None,
    *,
    labels: Any = None,
    delta: float = 0.01,
    loss: str | Loss = "probability",
    cells: Sequence[int] = CELLS,
    radius: float | None = None,
    input_range: tuple[float, float] | None = None,
    steps: int = 500,
    prior: Mapping[str, Tensor] | None = None,
    fixed: str | Iterable[str] | None = None,
    sharpness: bool = False,
    duplicates: int = 0,
    output: str | int | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Generalization:
    """Bound the loss of a classifier on fresh data in every known way, with the conditions of each bound.

    Each row has a value, its terms, its conditions and whether they hold here, and its evidence: `certified` where all
    conditions hold, `estimated` where a condition fails or is not known to hold, or `rate without constants`. A bound
    that is no smaller than the largest possible loss is marked as vacuous. The data are streamed: memory holds one
    batch, and sixteen bytes per sample.

    Args:
        model: a classifier, with one row of two or more outputs per sample; it is measured in eval mode.
        train: the training samples D: a batch, an iterable of batches such as a `DataLoader`, or a data set, with
            labels; each input is one tensor of floats. All batches are read. None for the batch of a captured graph.
        test: fresh samples, for the measured gap.
        held_out: samples that are in no other part, for the centres of cells and for distances. None sets one in five
            samples of `train` aside; these are then not in D.
        labels: the labels of one batch `train`, or the key that they have in batches that are dicts, in all parts; None
            to recognise them.
        delta: the probability with which each single row may fail.
        loss: the bounded loss. `"probability"`, `"ramp"` or `"clipped_cross_entropy"`, or a `Loss` with a largest
            value.
        cells: the numbers of cells to try, declared before the data are seen; the best is taken, with a union bound.
            Their centres are held-out samples.
        radius: the radius of the cells around centres; one more cell holds all other points. Lipschitz constants are
            then certified over balls, and distances are known.
        input_range: a range `(low, high)` in which every entry of every input is known to lie. With it distances have
            certified limits.
        steps: how many steps to search for a PAC-Bayes posterior, with two draws per step for its error; 0 for no
            PAC-Bayes bound.
        prior: the weights, by name, at which the PAC-Bayes prior is centred; they must have been fixed before D was
            seen, such as those at initialisation. None for zero.
        fixed: what the model holds besides its weights and was fixed before the training samples were seen: names of
            buffers and other tensors, or patterns (`"*.position_ids"`), or the words `"numbers"` (all numbers in its
            code), `"code"` (these and all other arguments of operators, such as flags) and `"all"` (all of this). A
            tensor's own name goes before these words. Whatever is not declared may have been taken from D, and is paid
            for by the bits that it takes to write it.
        sharpness: whether to measure the spherical sharpness, for the bound of Lyu et al.
        duplicates: how many samples of one part may also be in another, or in the same part again.
        output: which output to take, for models with several.
        max_seconds: how long each bound on a Lipschitz constant may take.
        seed: the seed of the draws.

    Returns:
        The table: `.rows`, `found["PAC-Bayes"]`, `.best`, `.gap`, `.samples_for(gap, name)`, `.to_html(path)`,
        `.to_json(path)`, `.to_pandas()`.

    Raises:
        InputError: the loss is unbounded, two parts share samples, labels are no classes, there are fewer than two
            classes, a cell is empty, or an option has no valid value.

    Example:
        >>> import torch, normscope as ns
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(400, 2, generator=generator)
        >>> found = ns.generalization(torch.nn.Linear(2, 2), (x, (x[:, 0] > 0).long()), steps=0)
        >>> found["Theorem 20, slopes at D"].evidence, found.samples, found.held_out
        ('estimated', 320, 80)

    Reference: Than 2025, section 5.2; `row.source` names the source of each row.
    """
    check_numbers(radius=radius, max_seconds=max_seconds, seed=seed)
    bounded = _bounded(loss)
    plan = _plan(cells, radius, input_range)
    if not (isinstance(delta, float) and 0.0 < delta < 1.0):
        raise InputError(f"delta is a number between 0 and 1, not {delta!r}")
    check_counts(steps=steps, duplicates=duplicates)
    model = _measurable(model)
    if steps and prior is not None:
        WeightVector.of(model).vector(dict(prior))  # A wrong prior is refused before the data are read.
    train = Batches(model, train, labels=labels, with_loss=True, name="train")
    key = labels if isinstance(labels, str) else None
    test, held_out = (
        None if part is None else Batches(model, part, labels=key, with_loss=True, name=name)
        for name, part in (("test", test), ("held_out", held_out))
    )
    reading = read(
        model,
        train,
        test,
        held_out,
        plan=plan,
        loss=bounded,
        output=output,
        duplicates=duplicates,
        seed=seed,
        trace=lambda example: trace(model, example, output),
    )
    traced, notes, declared = reading.traced, list(reading.notes), Fixed()

    attempt = partial(_attempt, notes)
    everywhere = None
    if traced is None:
        notes.append(f"no bound over all inputs, and none by norms of weights: {reading.untraced}")
    else:
        declared = Fixed.of(fixed, traced.graph, [name for name, _ in model.named_buffers()])
        everywhere = attempt(
            "no bound over all inputs",
            lambda: over_all_inputs(model, reading.example, output, max_seconds, traced.graph),
        )
    setting = Setting(
        reading=reading,
        plan=plan,
        loss=bounded,
        delta=delta,
        alone=condition("the loss of a sample depends on that sample alone", None, "the model could not be traced")
        if everywhere is None
        else everywhere.alone,
    )
    rows = [] if reading.test is None else [fresh_row(setting, reading.test, "Test", reading.unseen)]
    local = local_rows(model, setting, everywhere, notes)
    rows += [*(one.bound for one in local), *corollary_rows(setting, everywhere, local)]
    if sharpness and output is not None:
        notes.append("the sharpness is taken of models with one output")
    elif sharpness:
        spectrum = attempt(
            "no spherical sharpness",
            lambda: hessian(
                model,
                train,
                loss=bounded,
                k=1,
                mode="eval",
                metric="quotient",
                batches=1,
                max_seconds=max_seconds,
                seed=seed,
            ),
        )
        if spectrum is not None:
            notes.append("the sharpness is that of the first batch")
            rows.append(lla_row(setting, max(0.0, spectrum.eigenvalues[0])))
    network = None
    if traced is not None:
        network = attempt(
            "no bounds by norms of weights",
            lambda: read_network(
                model,
                reading.example,
                reading.train.classes,
                output,
                max_seconds,
                fixed=declared,
                traced=traced,
                captured=None if everywhere is None else everywhere.captured,
            ),
        )
    if network is not None:
        longest = None
        if plan.input_range is not None:
            longest = math.sqrt(reading.example[0].numel()) * max(map(abs, plan.input_range))
        rows += [growth_row(network, reading.train, delta), *margin_rows(network, reading.train, delta, longest)]
        rows.append(weight_norm_row(network, reading.train))
    if steps:
        posterior = attempt(
            "no PAC-Bayes bound",
            lambda: pac_bayes_row(
                model,
                rereader(model, train, held_out),
                steps=steps,
                draws=2 * steps,
                prior=None if prior is None else dict(prior),
                samples=reading.train.samples,
                classes=reading.train.classes,
                delta=delta,
                output=output,
                asked=(reading.train.independent, setting.alone, reading.train.traced),
                seed=seed,
                fixed=declared,
            ),
        )
        rows += [] if posterior is None else [posterior[0]]
    return Generalization(
        name=type(model).__name__,
        loss=bounded.name,
        most=bounded.most,
        classes=reading.train.classes,
        samples=reading.train.samples,
        held_out=reading.held_out,
        tested=None if reading.test is None else reading.test.samples,
        delta=delta,
        partition=reading.fixed.why,
        train_loss=reading.train.loss,
        train_error=reading.train.error,
        test_loss=None if reading.test is None else reading.test.loss,
        test_error=None if reading.test is None else reading.test.error,
        rows=tuple(rows),
        courses=tuple(PartitionCourse.of(one) for one in local),
        parts=_error_parts(reading, bounded, rows),
        notes=tuple(notes),
    )


def _error_parts(reading: DataReading, loss: Loss, rows: list[BoundRow]) -> tuple[ErrorPart, ...]:
    """Return what is known of the three errors, with the smallest certified bound on the loss on fresh data."""
    risk = f"the {loss.name} of the model on fresh data"
    certified = [one.value for one in rows if one.evidence == CERTIFIED and one.speaks_of == risk]
    test_loss = None if reading.test is None else reading.test.loss
    return decomposition(reading.train.loss, test_loss, min(certified, default=None), loss.most)


def _attempt(notes: list[str], what: str, compute: Callable[[], Value]) -> Value | None:
    """Return what is computed; None where that fails, with a note that says what is missing and why."""
    try:
        return compute()
    except NormscopeError as error:
        notes.append(f"{what}: {describe_error(error)}")
        return None


def _measurable(model: nn.Module) -> nn.Module:
    """Return the module inside a wrapper; refuse one that has no derivative."""
    mode_of(model, "eval")
    model = unwrapped(model)
    refused = quantized(model)
    if refused:
        raise InputError(refused)
    return model


def _bounded(loss: str | Loss) -> Loss:
    """Return a loss with a largest value; refuse others."""
    chosen = named_loss(loss)
    if chosen.targets != "classes":
        raise InputError(f"the loss {chosen.name} compares with values: take one of classes, such as probability")
    if not math.isfinite(chosen.most):
        raise InputError(
            f"the {chosen.name} is unbounded, and these bounds need a loss with a largest value: take probability, "
            "ramp or clipped_cross_entropy"
        )
    return chosen


def _plan(cells: Sequence[int], radius: float | None, input_range: Any) -> CellPlan:
    """Return how the cells are fixed; refuse options that have no valid value."""
    if radius == 0:
        raise InputError("radius is above 0: cells of radius 0 hold their centres alone")
    several = isinstance(cells, Sequence) and not isinstance(cells, str) and len(cells) > 0
    if not several or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in cells):
        raise InputError(f"cells are whole numbers from 1 on, declared before the data are seen, not {cells!r}")
    if input_range is not None:
        try:
            low, high = (float(value) for value in input_range)
        except (TypeError, ValueError):
            low, high = math.nan, math.nan
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(f"input_range is a pair (low, high) of numbers, low below high, not {input_range!r}")
        input_range = low, high
    return CellPlan(sizes=tuple(sorted(set(cells))), radius=radius, input_range=input_range)
