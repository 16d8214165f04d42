"""The rows of Theorem 20 and of the bounds that the paper compares it with, each with its conditions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..core.log10 import log10_sum
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
"""The condition of every bound that no computation can check."""
ALONE = "samples alone"
"""The end of the names of rows that need fresh samples and no D."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the rows of Theorem 20 share.

    Attributes:
        train: D.
        held_tallies: the held-out samples by cell, one tally per partition.
        reaches: how far from its centre a point of each region can be, one tensor per partition.
        loss_name: the name of the loss.
        log10_loss: log10 of the Lipschitz constant of the loss in the outputs.
        most: C, the largest loss.
        delta: the probability of failure.
        fixed: the condition that the partition does not depend on D.
        independent: the condition that the held-out samples are independent of D.
        alone: the condition that the loss of a sample depends on that sample alone.
    """

    train: SamplesSeen
    held_tallies: tuple[Tally, ...]
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
        return [tally.partition for tally in self.train.tallies]

    @property
    def common(self) -> tuple[Condition, ...]:
        """The conditions of all forms of the theorem."""
        bounded = condition(
            "the loss is bounded by C over all inputs, and its label is part of the cell",
            True,
            f"the {self.loss_name} is at most {self.most:g}; cells are split by label",
        )
        return (IID, self.fixed, bounded, self.alone, self.train.traced)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRow:
    """A row of Theorem 20, with its terms for every declared partition.

    Attributes:
        bound: the row, for the partition with the smallest gap.
        over: the terms for each partition.
        chosen: the index of the partition with the smallest gap.
        delta: the probability of failure for each partition.
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
    """Return Theorem 20 with constants of one kind, at the best of the declared partitions."""
    tallies, count = setting.train.tallies, len(setting.train.tallies)
    delta = setting.delta / 2.0 if distances == "limit" or two_sided else setting.delta
    by_partition = [_cell_distances(setting, index, distances) for index in range(count)]
    chosen, over = over_grid(
        count,
        lambda index, share: theorem20(
            tallies[index].counts, by_partition[index], constants[index], delta=share, most=setting.most
        ),
        delta,
    )
    best = over[chosen]
    conditions = [*setting.common, _distance_condition(setting, chosen, distances, by_partition[chosen]), steep]
    if distances in ("mean", "limit"):
        conditions.append(setting.independent)
    # A two-sided row bounds the gap alone; the others bound the loss on fresh data, of which the loss on D is a part.
    on_d = [] if two_sided else [term("loss on D", setting.train.worst_loss)]
    slack = term("confidence", best.slack)
    share = f"delta/{count}" + (", half of it for each side" if two_sided else "")
    bound = row(
        name,
        source="Slides, Theorem 1" if two_sided else f"{THAN}, Theorem 20",
        speaks_of="the gap between the losses on D and on fresh data, either way"
        if two_sided
        else f"the {setting.loss_name} of the model on fresh data",
        most=setting.most,
        terms=[*on_d, term("cells", best.local), slack],
        conditions=conditions,
        log10_as_printed=log10_sum((*(one.log10 for one in on_d), best.log10_local_as_printed, slack.log10)),
        note=f"{best.cells} of {best.size} cells hold samples; the best of {count} partitions, each at {share}",
    )
    return LocalRow(bound=bound, over=over, chosen=chosen, delta=delta / count)


def _cell_distances(setting: Setting, index: int, distances: str) -> Tensor:
    """Return lambda_i of every cell of one partition, in one of the ways of `theorem20_row`."""
    train, held, reach = setting.train.tallies[index], setting.held_tallies[index], setting.reaches[index]
    if distances == "mean":
        return mean_distances(train, held)
    if distances == "limit":
        return limited_distances(train, held, reach, setting.delta / 2.0 / len(setting.train.tallies))
    if distances == "diameter":
        return diameters(reach, setting.train.classes)
    return train.distances / train.counts.clamp(min=1.0) + reach.repeat(setting.train.classes)


def _distance_condition(setting: Setting, index: int, distances: str, values: Tensor) -> Condition:
    """Return the condition that the distances of a partition's cells bound lambda_i."""
    unlimited = int(((setting.train.tallies[index].counts > 0) & ~values.isfinite()).sum())
    why = {
        "mean": f"estimated from {int(setting.held_tallies[index].counts.sum()):,} held-out samples, from above by the "
        "root of the mean square",
        "limit": "Hoeffding's limit over held-out samples in the declared input range, with half of delta",
        "reach": "no point of a cell is further from its centre than the radius",
        "diameter": "the diameter of each cell",
    }[distances]
    return condition(
        "lambda_i bounds the mean distance in each cell",
        None if distances == "mean" else True,
        why + (f"; {unlimited} cells without a limit count with the largest loss" if unlimited else ""),
    )


def corollary21_row(like: BoundRow, continuous: bool | None) -> BoundRow:
    """Return Corollary 21: the figure of a row of Theorem 20, with one condition more."""
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
    """Return Corollary 22: the BN or LN form for the model, and the form without normalizers."""
    slack = with_local.over[with_local.chosen].slack
    mean_distance, left_out = _mean_distance(setting, with_local.chosen)
    near = condition(
        "lambda_i bounds the mean distance in each cell", None, "estimated from held-out samples, from above"
    )
    conditions = [*setting.common, near, chain, setting.independent]
    if left_out:
        conditions.append(
            condition("every cell that holds samples holds held-out ones", False, "some do not and are left out")
        )
    rows = []
    for name, exponent, what in _normalizer_forms(normalizers):
        omega, gap = corollary22(log10_product, setting.log10_loss, mean_distance, slack, exponent)
        network = "the model" if exponent or not normalizers else "its twin without normalizers"
        rows.append(
            row(
                name,
                source=f"{THAN}, Corollary 22",
                speaks_of=f"the {setting.loss_name} of {network} on fresh data, less that on D",
                most=setting.most,
                terms=[BoundTerm(name="omega and normalizers", log10=omega), term("confidence", slack)],
                conditions=conditions,
                log10_value=gap,
                note=f"{what}; both factors change when weights in front of a normalizer are rescaled",
            )
        )
    return rows


def _mean_distance(setting: Setting, index: int) -> tuple[float, bool]:
    """Return the mean of lambda_i over the samples of D, and whether cells without held-out samples are left out."""
    counts = setting.train.tallies[index].counts
    distances = mean_distances(setting.train.tallies[index], setting.held_tallies[index])
    known = (counts > 0) & distances.isfinite()
    mean = float((counts[known] * distances[known]).sum() / counts.sum())
    return mean, bool((counts[~known] > 0).any())


def _normalizer_forms(normalizers: Sequence[tuple[str, float]]) -> list[tuple[str, float, str]]:
    """Return the forms of Corollary 22: the name, log10 of the normalizers' part, and that part in words."""
    if not normalizers:
        return [("Corollary 22 (14)", 0.0, "omega alone")]
    exponents = [exponent for _, exponent in normalizers]
    if {kind for kind, _ in normalizers} == {"batch_norm"}:
        in_words = "sigma^-K with 1/sigma the largest norm(1/sigma_k)"
        form = ("Corollary 22 (BN)", len(exponents) * max(exponents), in_words)
    else:
        form = ("Corollary 22 (LN)", math.fsum(exponents), "the product of the constants over all inputs")
    return [form, ("Corollary 22, without normalizers", 0.0, "omega alone")]


def hkk_row(setting: Setting, constants: Sequence[Tensor | float], with_local: LocalRow) -> BoundRow:
    """Return the bound of Hou et al. as Than quotes it."""
    index = with_local.chosen
    train = setting.train.tallies[index]
    distances = mean_distances(train, setting.held_tallies[index])
    mean, worst, size = hkk(train.counts, distances, constants[index], delta=setting.delta)
    terms = [
        term("loss on D", setting.train.loss),
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
    first, second, mu = lla(sharpness, setting.train.samples)
    smoothed = condition(
        "the network's weights are drawn around the trained ones", False, f"it speaks of that network, at mu = {mu:.3g}"
    )
    return row(
        "LLA",
        source=f"Lyu et al. 2022, as {THAN} quotes it",
        speaks_of=f"the {setting.loss_name} under noise on the weights, on fresh data",
        most=setting.most,
        terms=[term("loss on D", setting.train.loss), term("sharpness", first), term("noise", second)],
        conditions=(IID, smoothed),
        rate=True,
        note=f"spherical sharpness {sharpness:.4g}; orders are taken with constants of 1",
    )


def fresh_row(setting: Setting, fresh: SamplesSeen, what: str, independent: Condition) -> BoundRow:
    """Return the bound from fresh samples alone (Hoeffding), with which every bound from D can be compared."""
    return row(
        f"{what} {ALONE}",
        source="Hoeffding's inequality",
        speaks_of=f"the {setting.loss_name} of the model on fresh data",
        most=setting.most,
        terms=[
            term("loss on them", fresh.worst_loss),
            term("confidence", setting.most * math.sqrt(math.log(1.0 / setting.delta) / (2.0 * fresh.samples))),
        ],
        conditions=(IID, setting.alone, fresh.traced, independent),
    )
