"""`generalization`: every bound on a classifier's loss on fresh data, with its terms, conditions and evidence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..bounds.domain.domain import Domain
from ..core.errors import InputError, NormscopeError, describe_error
from ..core.log10 import log10
from ..core.options import check_counts, check_numbers
from ..core.untouched import mode_of, outside_inference_mode, unwrapped
from ..geometry.hessian import hessian
from ..graph.call import quantized
from ..theory.losses import Loss, named
from . import families, weight_rows
from .bound import CERTIFIED, BoundRow, condition
from .constants import Constants, over_all_inputs
from .data_reading import CellPlan, DataReading, read, rereader
from .description import Fixed
from .families import LocalRow, Setting
from .generalization_table import Generalization, PartitionCourse
from .local_rows import corollary_rows, local_rows
from .pac_bayes import WeightVector
from .partition import KINDS
from .slides import decomposition
from .stochastic import PosteriorSearch, pac_bayes_row
from .than2025 import sizes_of
from .traced import trace
from .weight_layers import read_network

CELLS = (1, 4, 16, 64)
"""The default numbers of regions of the input space, for each label."""


@outside_inference_mode
def generalization(
    model: nn.Module,
    train: Any,
    test: Any = None,
    held_out: Any = None,
    *,
    delta: float = 0.01,
    loss: str | Loss = "probability",
    cells: Sequence[int] = CELLS,
    partition: str = "split",
    radius: float | None = None,
    input_range: tuple[float, float] | None = None,
    domain: Domain | None = None,
    steps: int = 500,
    prior: Mapping[str, Tensor] | None = None,
    fixed: str | Iterable[str] = (),
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
        train: the training samples D: batches `(inputs, labels)`, where each input is one tensor of floats.
        test: fresh samples, for the measured gap.
        held_out: samples that are not in D, for the centres of cells and for distances. None sets one in five samples
            of `train` aside; these are then not in D.
        delta: the probability with which each single row may fail.
        loss: `"probability"`, `"ramp"` or `"clipped_cross_entropy"`, or a `Loss` with a largest value.
        cells: the numbers of cells to try, declared before the data are seen; the best is taken, with a union bound.
        partition: `"split"`: the centres are held-out samples; `"random"`: they are drawn in `input_range`; `"grid"`:
            the cells are boxes.
        radius: the radius of the cells around centres; one more cell holds all other points. Lipschitz constants are
            then certified over balls, and distances are known.
        input_range: a range `(low, high)` in which every entry of every input is known to lie. With it distances have
            certified limits.
        domain: what `normscope.domain` recorded; it adds Theorem 20 with the constant over the domain.
        steps: how many steps to search for a PAC-Bayes posterior, with two draws per step for its error; 0 for no
            PAC-Bayes bound.
        prior: the weights, by name, at which the PAC-Bayes prior is centred; they must have been fixed before D was
            seen, such as those at initialisation. None for zero.
        fixed: what the model holds besides its weights and was fixed before D was seen: names of buffers and other
            tensors, or patterns (`"*.position_ids"`), `"numbers"` for all numbers in its code, `"all"` for all of this.
            Whatever is not declared may have been taken from D, and is paid for by the bits that it takes to write it.
        sharpness: whether to measure the spherical sharpness, for the bound of Lyu et al.
        duplicates: how many samples of one part may also be in another.
        output: which output to take, for models with several.
        max_seconds: how long each bound on a Lipschitz constant may take.
        seed: the seed of the partition and of the draws.

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
    plan = _plan(partition, cells, radius, input_range)
    if not (isinstance(delta, float) and 0.0 < delta < 1.0):
        raise InputError(f"delta is a number between 0 and 1, not {delta!r}")
    check_counts(steps=steps, duplicates=duplicates)
    mode_of(model, "eval")
    model = unwrapped(model)
    refused = quantized(model)
    if refused:
        raise InputError(refused)
    if steps and prior is not None:
        WeightVector.of(model).vector(dict(prior))  # A wrong prior is refused before the data are read.
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
    declared = Fixed()
    if reading.traced is not None:
        declared = Fixed.of(fixed, reading.traced.graph, [name for name, _ in model.named_buffers()])
    notes = list(reading.notes)
    known = _known_constants(model, reading, output, max_seconds, notes)
    setting = _setting(reading, bounded, delta, known)
    local = local_rows(model, setting, known, domain, plan, held_out, notes)
    rows = [*_test_rows(setting, reading), *(one.bound for one in local), *corollary_rows(setting, known, local)]
    if sharpness:
        rows += _sharpness_rows(setting, model, train, bounded, output, max_seconds, seed, notes)
    rows += _by_architecture(model, reading, known, delta, plan, output, max_seconds, declared, notes)
    if steps:
        rows += _posterior(model, train, held_out, setting, steps, prior, output, declared, seed, notes)
    return _table(type(model).__name__, reading, bounded, delta, rows, local, notes)


def _table(
    name: str,
    reading: DataReading,
    loss: Loss,
    delta: float,
    rows: list[BoundRow],
    local: list[LocalRow],
    notes: list[str],
) -> Generalization:
    """Return the result: the rows, and the measured losses and errors."""
    train, test = reading.train, reading.test
    risk = f"the {loss.name} of the model on fresh data"
    certified = [one.value for one in rows if one.evidence == CERTIFIED and one.speaks_of == risk]
    test_loss = None if test is None else test.loss
    return Generalization(
        name=name,
        loss=loss.name,
        most=loss.most,
        classes=train.classes,
        samples=train.samples,
        held_out=reading.held_out,
        tested=None if test is None else test.samples,
        delta=delta,
        partition=reading.fixed.why,
        train_loss=train.loss,
        train_error=train.error,
        test_loss=test_loss,
        test_error=None if test is None else test.error,
        rows=tuple(rows),
        courses=tuple(_course(one) for one in local),
        parts=decomposition(train.loss, test_loss, min(certified, default=None), loss.most),
        notes=tuple(notes),
    )


def _bounded(loss: str | Loss) -> Loss:
    """Return a loss with a largest value; refuse others."""
    found = named(loss)
    if found.targets != "classes":
        raise InputError(f"the loss {found.name} compares with values: take one of classes, such as probability")
    if not math.isfinite(found.most):
        raise InputError(
            f"the {found.name} is unbounded, and these bounds need a loss with a largest value: take probability, "
            "ramp or clipped_cross_entropy"
        )
    return found


def _plan(partition: str, cells: Sequence[int], radius: float | None, input_range: Any) -> CellPlan:
    """Return how the cells are fixed; refuse options that have no valid value."""
    if radius == 0:
        raise InputError("radius is above 0: cells of radius 0 hold their centres alone")
    plan = CellPlan(kind=partition, sizes=sizes_of(cells), radius=radius, input_range=_range(input_range))
    if partition not in KINDS:
        raise InputError(f"partition is one of {', '.join(KINDS)}, not {partition!r}")
    return plan


def _range(input_range: Any) -> tuple[float, float] | None:
    """Return the declared range of all entries as a pair of numbers; refuse anything else."""
    if input_range is None:
        return None
    try:
        low, high = (float(value) for value in input_range)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"input_range is a pair (low, high) of numbers, low below high, not {input_range!r}")
    return low, high


def _known_constants(
    model: nn.Module, reading: DataReading, output: str | int | None, max_seconds: float | None, notes: list[str]
) -> Constants | None:
    """Return the model's constants over all inputs; None, with a note, if the model cannot be traced."""
    if reading.traced is None:
        notes.append(f"no bound over all inputs, and none by norms of weights: {reading.untraced}")
        return None
    try:
        return over_all_inputs(model, reading.example, output, max_seconds, reading.traced.graph)
    except NormscopeError as error:
        notes.append(f"no bound over all inputs: {describe_error(error)}")
        return None


def _test_rows(setting: Setting, reading: DataReading) -> list[BoundRow]:
    """Return the bound from the test samples alone, if there are any."""
    if reading.test is None:
        return []
    return [families.fresh_row(setting, reading.test, "Test", reading.unseen)]


def _setting(reading: DataReading, loss: Loss, delta: float, known: Constants | None) -> Setting:
    """Return what the rows of Theorem 20 share."""
    alone = condition("the loss of a sample depends on that sample alone", None, "the model could not be traced")
    limits = reading.limits
    return Setting(
        train=reading.train,
        held_tallies=reading.held_tallies,
        reaches=tuple(one.partition.reach(*limits) for one in reading.train.tallies),
        loss_name=loss.name,
        log10_loss=log10(loss.constant(reading.train.classes)),
        most=loss.most,
        delta=delta,
        fixed=reading.fixed,
        independent=reading.independent,
        alone=alone if known is None else known.alone,
    )


def _sharpness_rows(
    setting: Setting,
    model: nn.Module,
    train: Any,
    loss: Loss,
    output: str | int | None,
    max_seconds: float | None,
    seed: int,
    notes: list[str],
) -> list[BoundRow]:
    """Return the bound of Lyu et al.; a note says why where there is none."""
    if output is not None:
        notes.append("the sharpness is taken of models with one output")
        return []
    try:
        spectrum = hessian(
            model, loss, train, k=1, mode="eval", metric="quotient", batches=1, max_seconds=max_seconds, seed=seed
        )
    except NormscopeError as error:
        notes.append(f"no spherical sharpness: {describe_error(error)}")
        return []
    notes.append("the sharpness is that of the first batch")
    return [families.lla_row(setting, max(0.0, spectrum.eigenvalues[0]))]


def _by_architecture(
    model: nn.Module,
    reading: DataReading,
    known: Constants | None,
    delta: float,
    plan: CellPlan,
    output: str | int | None,
    max_seconds: float | None,
    fixed: Fixed,
    notes: list[str],
) -> list[BoundRow]:
    """Return the bounds by the number of weights and by their norms; a note says why where there are none."""
    if reading.traced is None:
        return []
    try:
        network = read_network(
            model,
            reading.example,
            reading.train.classes,
            output,
            max_seconds,
            fixed=fixed,
            traced=reading.traced,
            captured=None if known is None else known.captured,
        )
    except NormscopeError as error:
        notes.append(f"no bounds by norms of weights: {describe_error(error)}")
        return []
    radius = None
    if plan.input_range is not None:
        radius = math.sqrt(reading.example[0].numel()) * max(map(abs, plan.input_range))
    return [
        weight_rows.growth_row(network, reading.train, delta),
        *weight_rows.margin_rows(network, reading.train, delta, radius),
        weight_rows.weight_norm_row(network, reading.train),
    ]


def _posterior(
    model: nn.Module,
    train: Any,
    held_out: Any,
    setting: Setting,
    steps: int,
    prior: Mapping[str, Tensor] | None,
    output: str | int | None,
    fixed: Fixed,
    seed: int,
    notes: list[str],
) -> list[BoundRow]:
    """Return the PAC-Bayes row; a note says why where there is none."""
    try:
        bound, _ = pac_bayes_row(
            model,
            rereader(model, train, held_out),
            search=PosteriorSearch(steps=steps, draws=2 * steps, prior=None if prior is None else dict(prior)),
            samples=setting.train.samples,
            classes=setting.train.classes,
            delta=setting.delta,
            output=output,
            traced=(setting.alone, setting.train.traced),
            seed=seed,
            fixed=fixed,
        )
    except NormscopeError as error:
        notes.append(f"no PAC-Bayes bound: {error}")
        return []
    return [bound]


def _course(local: LocalRow) -> PartitionCourse:
    """Return how a row of Theorem 20 depends on the partition."""
    best = local.over[local.chosen]
    return PartitionCourse(
        name=local.bound.name,
        sizes=tuple(terms.size for terms in local.over),
        gaps=tuple(terms.gap for terms in local.over),
        local=best.local,
        cells=best.cells,
        size=best.size,
        delta=local.delta,
    )
