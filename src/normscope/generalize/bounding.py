"""`generalization`: every bound on a classifier's loss on fresh data, with its terms, conditions and evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..bounds.domain.domain import Domain
from ..core.errors import InputError, NormscopeError, said
from ..core.log10 import log10
from ..core.options import check_numbers
from ..core.untouched import mode_of, outside_inference_mode, unwrapped
from ..geometry.hessian import hessian
from ..theory.losses import Loss, named
from . import families, weight_rows
from .bound import CERTIFIED, BoundRow, condition
from .constants import CONVEX, Constants, over_all_inputs, over_balls, over_domain
from .data_reading import CellPlan, DataReading, read, repeated
from .families import LocalRow, Setting
from .generalization_table import Generalization, PartitionCourse
from .pac_bayes import WeightVector
from .partition import KINDS
from .slides import decomposition
from .stochastic import PosteriorSearch, pac_bayes_row
from .stream import pieces
from .than2025 import sizes_of
from .weight_layers import read_network

CELLS = (1, 4, 16, 64)
"""The declared grid of N: regions of the input space, for each label."""
EVERYWHERE, AT_BALLS = "Theorem 20, all inputs", "Theorem 20, balls"
IN_DOMAIN, AT_SAMPLES = "Theorem 20, domain", "Theorem 20, slopes at D"


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
    sharpness: bool = False,
    duplicates: int = 0,
    output: str | int | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Generalization:
    """Bound the loss of a classifier on fresh data in every known way, and say what each bound asks for.

    Each row has its value, its terms, its conditions with whether they hold here, and its evidence: `certified` where
    all conditions hold, `estimated` where one does not or is not known to, `rate without constants`. A value of at
    least what it bounds can be is vacuous and says so. The data are streamed: memory is that of a batch, with sixteen
    bytes a sample more.

    Args:
        model: a classifier, one row of two or more outputs per sample; it is measured in eval mode.
        train: D: batches `(inputs, labels)`, each input one tensor of floats.
        test: fresh samples, for the measured gap.
        held_out: samples that are not in D, for the centres of cells and for distances; None sets one in five samples
            of `train` aside, which is then not in D.
        delta: the probability with which each row, for itself, may fail.
        loss: bounded: `"probability"`, `"ramp"` or `"clipped_cross_entropy"`, or a `Loss` with a largest value.
        cells: the grid of N, declared before the data are seen; the best is taken, with a union bound.
        partition: `"split"`: centres from held-out samples; `"random"`: drawn in `input_range`; `"grid"`: boxes.
        radius: of the cells around centres, with one more cell for all other points. Constants are then certified over
            balls, and distances known.
        input_range: what every entry of every input is known to lie between. With it distances have certified limits.
        domain: what `normscope.domain` recorded: adds Theorem 20 with the constant over it.
        steps: of the search for a PAC-Bayes posterior, with two draws for its error a step; 0 leaves it out.
        prior: weights by name that were fixed before D was seen, such as those at initialisation: where the prior is
            centred; None for zero.
        sharpness: whether to measure the spherical sharpness, for the bound of Lyu et al.
        duplicates: how many samples of one part may stand in another.
        output: which output to take, for models with several.
        max_seconds: of each bound on a constant.
        seed: of partition and draws.

    Returns:
        The table: `.rows`, `found["PAC-Bayes"]`, `.best`, `.gap`, `.samples_for(gap, name)`, `.to_html(path)`,
        `.to_json(path)`, `.to_pandas()`.

    Raises:
        InputError: an unbounded loss, samples that two parts share, labels that are no classes, fewer than two classes,
            empty cells, or an option that cannot be.

    Example:
        >>> import torch, normscope as ns
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(400, 2, generator=generator)
        >>> found = ns.generalization(torch.nn.Linear(2, 2), (x, (x[:, 0] > 0).long()), steps=0)
        >>> found["Theorem 20, slopes at D"].evidence, found.samples, found.held_out
        ('estimated', 320, 80)

    Reference: Than 2025, section 5.2; the sources of each row stand in `row.source`.
    """
    check_numbers(radius=radius, max_seconds=max_seconds, seed=seed)
    if radius == 0:
        raise InputError("radius is above 0: cells of radius 0 hold their centres alone")
    bounded = _bounded(loss)
    plan = CellPlan(kind=partition, sizes=sizes_of(cells), radius=radius, input_range=_range(input_range))
    if partition not in KINDS:
        raise InputError(f"partition is one of {', '.join(KINDS)}, not {partition!r}")
    if not (isinstance(delta, float) and 0.0 < delta < 1.0):
        raise InputError(f"delta is a number between 0 and 1, not {delta!r}")
    for name, number in (("steps", steps), ("duplicates", duplicates)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise InputError(f"{name} is a whole number from 0 on, not {number!r}")
    mode_of(model, "eval")
    model = unwrapped(model)
    if steps and prior is not None:
        WeightVector.of(model).vector(dict(prior))  # a prior that cannot be one is refused before the data are read
    reading = read(
        model, train, test, held_out, plan=plan, loss=bounded, output=output, duplicates=duplicates, seed=seed
    )
    notes = list(reading.notes)
    known: Constants | None = None
    try:
        known = over_all_inputs(model, reading.example, output, max_seconds)
    except NormscopeError as error:
        notes.append(f"no bound over all inputs: {said(error)}")
    setting = _setting(reading, bounded, delta, known)
    rows: list[BoundRow] = []
    if reading.test is not None:
        rows.append(families.fresh_row(setting, reading.test.loss, reading.test.samples, "Test", reading.unseen))
    local = _local_rows(model, setting, known, domain, plan, held_out, notes)
    rows += [one.bound for one in local]
    rows += _corollaries(setting, known, local)
    if sharpness:
        _with_sharpness(rows, setting, model, train, bounded, output, max_seconds, seed, notes)
    rows += _by_architecture(model, reading, delta, plan, output, max_seconds, notes)
    if steps:
        rows += _posterior(model, train, held_out, setting, steps, prior, output, seed, notes)
    certified = [one.value for one in rows if one.evidence == CERTIFIED and one.speaks_of == _risk(bounded)]
    return Generalization(
        name=type(model).__name__,
        loss=bounded.name,
        most=bounded.most,
        classes=reading.seen.classes,
        samples=reading.seen.samples,
        held_out=reading.held_out,
        tested=None if reading.test is None else reading.test.samples,
        delta=delta,
        partition=reading.fixed.why,
        train_loss=reading.seen.loss,
        train_error=reading.seen.error,
        test_loss=None if reading.test is None else reading.test.loss,
        test_error=None if reading.test is None else reading.test.error,
        rows=tuple(rows),
        courses=tuple(_course(one) for one in local),
        parts=decomposition(
            reading.seen.loss,
            None if reading.test is None else reading.test.loss,
            min(certified, default=None),
            bounded.most,
        ),
        notes=tuple(notes),
    )


def _bounded(loss: str | Loss) -> Loss:
    """Return a loss with a largest value; refuse others."""
    found = named(loss)
    if found.targets != "classes":
        raise InputError(f"the loss {found.name} compares with values: take one of classes, such as probability")
    if not math.isfinite(found.most):
        raise InputError(
            f"the {found.name} is unbounded, and these bounds speak of losses with a largest value: take probability, "
            "ramp or clipped_cross_entropy"
        )
    return found


def _range(given: Any) -> tuple[float, float] | None:
    if given is None:
        return None
    try:
        low, high = (float(value) for value in given)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"input_range is a pair (low, high) of numbers, low below high, not {given!r}")
    return low, high


def _risk(loss: Loss) -> str:
    return f"the {loss.name} of the model on fresh data"


def _setting(reading: DataReading, loss: Loss, delta: float, known: Constants | None) -> Setting:
    alone = condition("the loss of a sample depends on that sample alone", None, "the model could not be traced")
    limits = reading.limits
    return Setting(
        seen=reading.seen,
        held=reading.held,
        reaches=tuple(one.partition.reach(*limits) for one in reading.seen.tallies),
        loss_name=loss.name,
        log10_loss=log10(loss.constant(reading.seen.classes)),
        most=loss.most,
        delta=delta,
        fixed=reading.fixed,
        independent=reading.independent,
        alone=alone if known is None else known.alone,
    )


def _local_rows(
    model: nn.Module,
    setting: Setting,
    known: Constants | None,
    domain: Domain | None,
    plan: CellPlan,
    held_out: Any,
    notes: list[str],
) -> list[LocalRow]:
    """Return Theorem 20 with every kind of constant."""
    parts, rows = len(setting.held), []
    distances = "reach" if plan.radius is not None else "limit" if plan.input_range is not None else "mean"
    if known is not None:
        if known.reason:
            notes.append(f"the constant over all inputs is infinite: {known.reason}")
        everywhere = [setting.log10_loss + known.log10_global] * parts
        rows.append(families.theorem20_row(setting, EVERYWHERE, everywhere, known.steep, distances=distances))
        if distances != "mean":
            rows.append(
                families.theorem20_row(
                    setting, "Slides' Theorem 1", everywhere, known.steep, distances="diameter", two_sided=True
                )
            )
        if plan.radius is not None:
            try:
                balls, steep = over_balls(known, setting.seen.tallies)
            except NormscopeError as error:
                notes.append(f"no constants over balls: {said(error)}")
            else:
                near = [setting.log10_loss + one for one in balls]
                rows.append(families.theorem20_row(setting, AT_BALLS, near, steep, distances="reach"))
        if domain is not None:
            fresh = None if held_out is None else (piece.inputs for piece in pieces(model, held_out))
            share = None if fresh is None else domain.coverage(fresh).share
            exponent, steep = over_domain(known, domain, share)
            inside = [setting.log10_loss + exponent] * parts
            rows.append(families.theorem20_row(setting, IN_DOMAIN, inside, steep, distances="mean"))
    sampled = condition(CONVEX, None, "the longest gradient of the loss at a sample of the cell: a maximum over points")
    slopes = [one.slopes.log10() for one in setting.seen.tallies]
    rows.append(families.theorem20_row(setting, AT_SAMPLES, slopes, sampled, distances="mean"))
    return rows


def _corollaries(setting: Setting, known: Constants | None, local: list[LocalRow]) -> list[BoundRow]:
    """Return Corollaries 21 and 22, and HKK."""
    rows = []
    sampled = local[-1]
    finite = known is not None and math.isfinite(known.log10_global)
    rows.append(families.corollary21_row(local[0].bound, True if finite else None))
    if known is not None:
        rows += families.corollary22_rows(
            setting,
            log10_product=known.log10_product,
            normalizers=known.normalizers,
            chain=known.chain,
            with_local=sampled,
        )
    slopes = [one.slopes.log10() for one in setting.seen.tallies]
    return [*rows, families.hkk_row(setting, slopes, sampled)]


def _with_sharpness(
    rows: list[BoundRow],
    setting: Setting,
    model: nn.Module,
    train: Any,
    loss: Loss,
    output: str | int | None,
    max_seconds: float | None,
    seed: int,
    notes: list[str],
) -> None:
    """Add the bound of Lyu et al., or say why not."""
    if output is not None:
        notes.append("the sharpness is taken of models with one output")
        return
    try:
        found = hessian(
            model, loss, train, k=1, mode="eval", metric="quotient", batches=1, max_seconds=max_seconds, seed=seed
        )
    except NormscopeError as error:
        notes.append(f"no spherical sharpness: {said(error)}")
        return
    rows.append(families.lla_row(setting, max(0.0, found.eigenvalues[0])))
    notes.append("the sharpness is that of the first batch")


def _by_architecture(
    model: nn.Module,
    reading: DataReading,
    delta: float,
    plan: CellPlan,
    output: str | int | None,
    max_seconds: float | None,
    notes: list[str],
) -> list[BoundRow]:
    """Return the bounds by the number of weights and by their norms."""
    try:
        network = read_network(model, reading.example, reading.seen.classes, output, max_seconds)
    except NormscopeError as error:
        notes.append(f"no bounds by norms of weights: {said(error)}")
        return []
    radius = None
    if plan.input_range is not None:
        radius = math.sqrt(reading.example[0].numel()) * max(map(abs, plan.input_range))
    return [
        weight_rows.growth_row(network, reading.seen, delta),
        *weight_rows.margin_rows(network, reading.seen, delta, radius),
        weight_rows.weight_norm_row(network, reading.seen),
    ]


def _posterior(
    model: nn.Module,
    train: Any,
    held_out: Any,
    setting: Setting,
    steps: int,
    prior: Mapping[str, Tensor] | None,
    output: str | int | None,
    seed: int,
    notes: list[str],
) -> list[BoundRow]:
    """Return the PAC-Bayes row, or say why there is none."""
    try:
        found, _ = pac_bayes_row(
            model,
            repeated(model, train, held_out),
            search=PosteriorSearch(steps=steps, draws=2 * steps, prior=None if prior is None else dict(prior)),
            samples=setting.seen.samples,
            classes=setting.seen.classes,
            delta=setting.delta,
            output=output,
            alone=setting.alone,
            seed=seed,
        )
    except NormscopeError as error:
        notes.append(f"no PAC-Bayes bound: {error}")
        return []
    return [found]


def _course(one: LocalRow) -> PartitionCourse:
    best = one.over[one.chosen]
    return PartitionCourse(
        name=one.bound.name,
        sizes=tuple(local.size for local in one.over),
        gaps=tuple(local.gap for local in one.over),
        local=best.local,
        cells=best.cells,
        size=best.size,
        delta=one.delta,
    )
