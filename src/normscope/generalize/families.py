"""Rows of Theorem 20 and of what the paper sets beside it, with their conditions and what they are here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..core.log10 import log10, log10_sum
from .bound import BoundRow, BoundTerm, Condition, condition, row, term
from .partition import Partition
from .slides import diameters
from .stream import SamplesSeen, Tally
from .than2025 import Theorem20, corollary22, hkk, limited_distances, lla, mean_distances, over_grid, theorem20

THAN = "Than 2025"
IID = condition(
    "the samples are independent draws from one distribution",
    True,
    "declared by passing them; no test can show it",
)
"""What every bound asks for and nobody can check."""
ALONE = "samples alone"
"""How the names of rows end that need fresh samples and no D."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the rows of Theorem 20 share.

    Attributes:
        seen: D.
        held: held-out samples by cell, one tally per partition.
        reaches: how far from its centre a point of each region can be, one tensor per partition.
        loss_name: how the loss is called.
        log10_loss: of its constant in the outputs.
        most: C.
        delta: the probability of failure.
        fixed: whether and why the partition does not depend on D.
        independent: whether and why the held-out samples are none of D.
        alone: whether the loss of a sample depends on that sample alone.
    """

    seen: SamplesSeen
    held: tuple[Tally, ...]
    reaches: tuple[Tensor, ...]
    loss_name: str
    log10_loss: float
    most: float
    delta: float
    fixed: Condition
    independent: Condition
    alone: Condition

    @property
    def partitions(self) -> list[Partition]:
        """The declared partitions."""
        return [tally.partition for tally in self.seen.tallies]

    @property
    def common(self) -> tuple[Condition, ...]:
        """What all forms of the theorem ask for."""
        bounded = condition(
            "the loss is bounded by C over all inputs, and its label is part of the cell",
            True,
            f"the {self.loss_name} is at most {self.most:g}; cells are split by label",
        )
        return (IID, self.fixed, bounded, self.alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRow:
    """A row of Theorem 20, with what it was over the declared partitions.

    Attributes:
        bound: the row, at the best of them.
        over: the terms at each.
        chosen: which is the best.
        delta: the probability of failure that each of them has.
    """

    bound: BoundRow
    over: tuple[Theorem20, ...]
    chosen: int
    delta: float


def theorem20_row(
    setting: Setting,
    name: str,
    constants: Sequence[Tensor | float],
    steep: Condition,
    *,
    distances: str,
    two_sided: bool = False,
) -> LocalRow:
    """Return Theorem 20 with constants of one kind, at the best of the declared partitions.

    Args:
        setting: what all kinds share.
        name: of the row.
        constants: log10 of the loss's constant, per partition: one, or one for every cell.
        steep: whether these bound the loss's slope over the cells.
        distances: `"mean"` estimates lambda_i from held-out samples, `"limit"` bounds it with half of delta,
            `"reach"` by the radius of the cells, `"diameter"` as the Slides do.
        two_sided: whether the row bounds the gap on both sides (the Slides), each with half of delta. The side that the
            theorem does not have follows from `p - P <= sqrt(2 p ln(N/delta)/m)` for the share p of every cell.
    """
    seen, parts = setting.seen.tallies, len(setting.seen.tallies)
    delta = setting.delta / 2.0 if distances == "limit" or two_sided else setting.delta

    def spread(place: int) -> Tensor:
        train, held, reach = seen[place], setting.held[place], setting.reaches[place]
        if distances == "mean":
            return mean_distances(train, held)
        if distances == "limit":
            return limited_distances(train, held, reach, setting.delta / 2.0 / parts)
        if distances == "diameter":
            return diameters(reach, setting.seen.classes)
        return train.distances / train.counts.clamp(min=1.0) + reach.repeat(setting.seen.classes)

    spreads = [spread(place) for place in range(parts)]
    chosen, over = over_grid(
        parts,
        lambda place, share: theorem20(
            seen[place].counts, spreads[place], constants[place], delta=share, most=setting.most
        ),
        delta,
    )
    best = over[chosen]
    train_loss = setting.seen.loss
    unknown = int(((seen[chosen].counts > 0) & ~spreads[chosen].isfinite()).sum())
    why = {
        "mean": f"estimated from {int(setting.held[chosen].counts.sum()):,} held-out samples, from above by the root "
        "of the mean square",
        "limit": "Hoeffding's limit over held-out samples in the declared input range, with half of delta",
        "reach": "no point of a cell is further from its centre than the radius",
        "diameter": "the diameter of each cell",
    }[distances]
    near = condition(
        "lambda_i bounds the mean distance in each cell",
        None if distances == "mean" else True,
        why + (f"; {unknown} cells without a limit count with the largest loss" if unknown else ""),
    )
    conditions = [*setting.common, near, steep]
    if distances in ("mean", "limit"):
        conditions.append(setting.independent)
    printed = log10_sum((log10(train_loss), best.log10_local_as_printed, log10(best.slack)))
    what = "the gap between the losses on D and on fresh data, either way" if two_sided else (
        f"the {setting.loss_name} of the model on fresh data"
    )  # fmt: skip
    terms = [term("cells", best.local), term("confidence", best.slack)]
    share = f"delta/{parts}" + (", half of it for each side" if two_sided else "")
    note = f"{best.cells} of {best.size} cells hold samples; the best of {parts} partitions, each at {share}"
    return LocalRow(
        bound=row(
            name,
            source="Slides, Theorem 1" if two_sided else f"{THAN}, Theorem 20",
            speaks_of=what,
            most=setting.most,
            terms=terms if two_sided else [term("loss on D", train_loss), *terms],
            conditions=conditions,
            log10_as_printed=log10_sum((best.log10_local_as_printed, log10(best.slack))) if two_sided else printed,
            note=note,
        ),
        over=over,
        chosen=chosen,
        delta=delta / parts,
    )


def corollary21_row(like: BoundRow, continuous: bool | None) -> BoundRow:
    """Return Corollary 21: the same figure, and what it asks for beside Theorem 20."""
    why = {
        True: "the model is continuous, so that the set is empty, and the corollary is Theorem 20",
        None: "nothing is known of where the loss is not continuous: a set that depends on D, as that of a network "
        "that has memorised it, makes the corollary false (true risk 1, right side 0.0905 at m = 4000)",
    }[continuous or None]
    extra = condition(
        "the set where the loss is not continuous does not depend on D (not in the paper)", continuous, why
    )
    return row(
        "Corollary 21",
        source=f"{THAN}, Corollary 21, corrected",
        speaks_of=like.speaks_of,
        most=like.most,
        terms=like.terms,
        conditions=(*like.conditions, extra),
        log10_as_printed=like.log10_as_printed,
    )


def corollary22_rows(
    setting: Setting,
    *,
    log10_product: float,
    normalizers: Sequence[tuple[str, float]],
    chain: Condition,
    with_local: LocalRow,
) -> list[BoundRow]:
    """Return Corollary 22: the twin without normalizers, and the BN or LN form for the model.

    Args:
        setting: of Theorem 20.
        log10_product: of P_w.
        normalizers: the kind of each normalizer and log10 of its printed constant over all inputs.
        chain: whether the network is what the corollary speaks of.
        with_local: whose partition counts.
    """
    place, local = with_local.chosen, with_local.over[with_local.chosen]
    counts = setting.seen.tallies[place].counts
    spread = mean_distances(setting.seen.tallies[place], setting.held[place])
    known = (counts > 0) & spread.isfinite()
    mean = float((counts[known] * spread[known]).sum() / counts.sum())
    near = condition(
        "lambda_i bounds the mean distance in each cell", None, "estimated from held-out samples, from above"
    )
    conditions = (*setting.common, near, chain, setting.independent)
    if not bool(known.all()) and bool((counts[~known] > 0).any()):
        lost = condition("every cell that holds samples holds held-out ones", False, "some do not and are left out")
        conditions = (*conditions, lost)
    kinds = {kind for kind, _ in normalizers}
    forms: list[tuple[str, float, str]] = []
    if normalizers and kinds == {"batch_norm"}:
        worst = max(value for _, value in normalizers)
        forms.append(
            ("Corollary 22 (BN)", len(normalizers) * worst, "sigma^-K with 1/sigma the largest norm(1/sigma_k)")
        )
    elif normalizers:
        forms.append(
            ("Corollary 22 (LN)", math.fsum(value for _, value in normalizers), "the product of the constants over all "
             "inputs")
        )  # fmt: skip
    twin = "Corollary 22, without normalizers" if normalizers else "Corollary 22 (14)"
    rows = []
    for name, exponent, what in [*forms, (twin, 0.0, "omega alone")]:
        omega, gap = corollary22(log10_product, setting.log10_loss, mean, local.slack, exponent)
        model = bool(exponent) or not normalizers
        terms = [BoundTerm(name="omega and normalizers", log10=omega), term("confidence", local.slack)]
        own = "the model" if model else "its twin without normalizers"
        rows.append(
            row(
                name,
                source=f"{THAN}, Corollary 22",
                speaks_of=f"the {setting.loss_name} of {own} on fresh data, less that on D",
                most=setting.most,
                terms=terms,
                conditions=conditions,
                log10_value=gap,
                note=f"{what}; both factors change when weights in front of a normalizer are rescaled",
            )
        )
    return rows


def hkk_row(setting: Setting, constants: Sequence[Tensor | float], with_local: LocalRow) -> BoundRow:
    """Return the bound of Hou et al. as Than quotes it."""
    place = with_local.chosen
    train = setting.seen.tallies[place]
    spread = mean_distances(train, setting.held[place])
    mean, worst, size = hkk(train.counts, spread, constants[place], delta=setting.delta)
    terms = [
        term("loss on D", setting.seen.loss),
        BoundTerm(name="cells", log10=mean),
        BoundTerm(name="steepest cell", log10=worst),
        BoundTerm(name="sqrt(N/m)", log10=size),
    ]
    everywhere = condition(
        "the loss is Lipschitz over all inputs", None, "the constants here are those at the samples of each cell"
    )
    return row(
        "HKK",
        source=f"Hou et al. 2023, as {THAN} quotes it",
        speaks_of=f"the {setting.loss_name} of the model on fresh data",
        most=setting.most,
        terms=terms,
        conditions=(*setting.common, everywhere),
        rate=True,
        note="a constant that is not given is missing",
    )


def lla_row(setting: Setting, sharpness: float) -> BoundRow:
    """Return the bound of Lyu et al. as Than quotes it."""
    first, second, mu = lla(sharpness, setting.seen.samples)
    smoothed = condition(
        "the network's weights are drawn around the trained ones", False, f"it speaks of that network, at mu = {mu:.3g}"
    )
    return row(
        "LLA",
        source=f"Lyu et al. 2022, as {THAN} quotes it",
        speaks_of=f"the {setting.loss_name} under noise on the weights, on fresh data",
        most=setting.most,
        terms=[term("loss on D", setting.seen.loss), term("sharpness", first), term("noise", second)],
        conditions=(IID, smoothed),
        rate=True,
        note=f"spherical sharpness {sharpness:.4g}; orders are taken with constants of 1",
    )


def fresh_row(setting: Setting, loss: float, samples: int, what: str, independent: Condition) -> BoundRow:
    """Return what fresh samples alone say (Hoeffding): the yardstick for every bound from D."""
    return row(
        f"{what} {ALONE}",
        source="Hoeffding's inequality",
        speaks_of=f"the {setting.loss_name} of the model on fresh data",
        most=setting.most,
        terms=[
            term("loss on them", loss),
            term("confidence", setting.most * math.sqrt(math.log(1.0 / setting.delta) / (2.0 * samples))),
        ],
        conditions=(IID, setting.alone, independent),
    )
