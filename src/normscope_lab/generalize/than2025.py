"""Than 2025, section 5.2: Theorem 20 with every kind of constant, Corollaries 21 and 22, and the bounds that it quotes.

Theorem 20: for a partition fixed before D is seen, with probability 1 - delta over D, for every model,
`F(P) <= F(D) + sum over T of (m_i/m) lambda_i L_i + g`. One improvement costs nothing: two losses in [0, C] differ by
at most C, so that no cell contributes more than `(m_i/m) C`. Formulas come first, then the rows of the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope import Evidence, Graph, NormscopeError
from normscope.theory import Loss, generalization_slack
from normscope.toolkit import (
    Balls,
    BoundSettings,
    InputError,
    Linear,
    Progress,
    TracedNetwork,
    describe_error,
    is_normalizer,
    is_weight,
    log10,
    log10_sum,
    printed,
    printed_constant,
    upper_sides,
)

from .bound import CAPTURED, MET, BoundRow, BoundTerm, Condition, alone, condition, row, term
from .data_reading import CellPlan, DataReading
from .stream import SamplesSeen, Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Theorem20:
    """The terms of Theorem 20 for one partition.

    `size` is N, the number of its cells with labels counted; `cells` is |T|; `local` is the mean over the samples of
    `min(lambda_i L_i, C)`, and `log10_local_as_printed` is without the minimum; `slack` is g, the confidence term.
    """

    size: int
    cells: int
    local: float
    log10_local_as_printed: float
    slack: float

    @property
    def gap(self) -> float:
        """How far the loss on fresh data can be above the loss on D."""
        return self.local + self.slack


def theorem20(
    counts: Tensor, distances: Tensor, log10_constants: Tensor | float, *, delta: float, most: float
) -> Theorem20:
    """Return the terms of Theorem 20 that are added to the loss on D.

    Reference: Than 2025, Theorem 20, equation 13.
    """
    counts, distances = counts.double(), distances.double()
    held = counts > 0
    m = float(counts.sum())
    if m < 1 or bool((distances[held] < 0).any()) or bool(distances[held].isnan().any()):
        raise InputError("Theorem 20 needs samples, and distances that are numbers from 0 on")
    exponents = torch.as_tensor(log10_constants, dtype=torch.float64).expand(len(counts))[held]
    spread = distances[held].log10() + exponents
    spread = torch.where((distances[held] == 0) | (exponents == -math.inf), -math.inf, spread)
    share = counts[held] / m
    capped = torch.where(spread >= math.log10(most), most, 10.0**spread)
    cells = int(held.sum())
    return Theorem20(
        size=len(counts),
        cells=cells,
        local=float((share * capped).sum()),
        log10_local_as_printed=log10_sum((spread + share.log10()).tolist()),
        slack=generalization_slack(m, cells=cells, partition=len(counts), delta=delta, most=most),
    )


def mean_distances(train: Tally, held: Tally) -> Tensor:
    """Estimate an upper bound on lambda_i of every cell from held-out samples; infinite where a cell has none.

    The mean distance between a sample s of D and a held-out sample x is at most the root of the mean square, which sums
    of vectors give without all pairs: `E|s-c|^2 + E|x-c|^2 - 2 <E s - c, E x - c>`. Without these vectors, the sum of
    the mean distances of both from the centre c bounds it.
    """
    s, x = train.counts.clamp(min=1.0), held.counts.clamp(min=1.0)
    if train.vectors is None or held.vectors is None:
        distances = train.distances / s + held.distances / x
    else:
        inner = ((train.vectors / s[:, None]) * (held.vectors / x[:, None])).sum(1)
        distances = (train.squares / s + held.squares / x - 2.0 * inner).clamp(min=0.0).sqrt()
    return torch.where(held.counts > 0, distances, torch.where(train.counts > 0, math.inf, 0.0))


def limited_distances(train: Tally, held: Tally, reach: Tensor, delta: float) -> Tensor:
    """Bound lambda_i of every cell, with probability 1 - delta over the held-out samples.

    `lambda_i <= mean |s - c| + E|x - c|`. The second term is the mean of a variable in [0, R_i]: it is at most R_i, and
    at most the average over H_i held-out samples plus `R_i sqrt(ln(|T|/delta)/(2 H_i))` (Hoeffding, with a union bound
    over the cells that hold samples of D).
    """
    reaches = reach.repeat(len(train.counts) // len(reach))
    cells = max(1, int((train.counts > 0).sum()))
    samples = held.counts.clamp(min=1.0)
    mean = held.distances / samples + reaches * torch.sqrt(math.log(cells / delta) / (2.0 * samples))
    fresh = torch.where(held.counts > 0, torch.minimum(mean, reaches), reaches)
    return train.distances / train.counts.clamp(min=1.0) + fresh


def corollary22(
    log10_product: float, log10_loss: float, mean_distance: float, slack: float, log10_normalizers: float = 0.0
) -> tuple[float, float]:
    """Return log10 of `omega` times the normalizers' constants, and log10 of the bound on the gap.

    `omega = L_f P_w sum of (m_i/m) lambda_i`; the normalizers' part is `sigma^-K` for BN, with
    `1/sigma = max_k norm(1/sigma_k)`, and the product of `1/sigma_k` for LN, over all inputs `1/sqrt(eps)` each.
    """
    omega = log10_product + log10_loss + log10(mean_distance) + log10_normalizers
    return omega, log10_sum((omega, log10(slack)))


def hkk(
    counts: Tensor, distances: Tensor, log10_constants: Tensor | float, *, delta: float
) -> tuple[float, float, float]:
    """Return log10 of the three terms that Than quotes from Hou, Kassraie, Kratsios, Krause and Rothfuss 2023.

    They are `sum (m_i/m) lambda_i max(1, L_i)`, `max_i lambda_i L_i sqrt(ln(4/delta)/m)` and `sqrt(N/m)`; the paper
    leaves out a constant. Cells without held-out samples are left out.
    """
    limited = (counts > 0) & distances.isfinite()
    m, spread = float(counts.sum()), distances[limited].double()
    if not bool(limited.any()):
        return math.inf, math.inf, 0.5 * math.log10(len(counts) / m)
    exponents = torch.as_tensor(log10_constants, dtype=torch.float64).expand(len(counts))[limited]
    mean = log10_sum((exponents.clamp(min=0.0) + spread.log10() + (counts[limited] / m).log10()).tolist())
    worst = float((exponents + spread.log10()).max()) + 0.5 * math.log10(math.log(4.0 / delta) / m)
    return mean, worst, 0.5 * math.log10(len(counts) / m)


def lla(sharpness: float, samples: int) -> tuple[float, float, float]:
    """Return the two terms that Than quotes from Lyu, Li and Arora 2022, at the mu that makes their sum smallest.

    They are `tau mu^2/2` and `ln(m)/(mu sqrt(m))`: the orders are taken with constants of 1, and one more constant is
    missing.
    """
    if not sharpness > 0.0 or samples < 2:
        return 0.0, 0.0, math.inf
    order = math.log(samples) / math.sqrt(samples)
    mu = (order / sharpness) ** (1.0 / 3.0)
    return sharpness * mu**2 / 2.0, order / mu, mu


MOST_BALLS = 64
"""Only this many balls, those with the most samples, are certified; the others get the constant over all inputs."""
AT_ONCE = 16
"""How many balls are certified at a time."""
CONVEX = "L_i bounds the slope of the loss over the cell and all segments inside it"
THAN = "Than 2025"
"""The condition of every bound that no computation can check."""
ALONE = "samples alone"
"""The end of the names of rows that need fresh samples and no D."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What is known of a model over all inputs."""

    log10_global: float  # log10_global, reason: log10 of its Lipschitz constant from above, and why that is infinite
    reason: str | None
    steep: Condition  # the condition of Theorem 20 that this constant bounds the slope over the cells
    alone: Condition  # the condition that samples do not influence each other
    log10_product: float  # log10 of P_w, the product of the weights' norms
    normalizers: tuple[tuple[str, float], ...]  # the operator of each normalizer and log10 of its printed constant
    chain: Condition  # the condition that the printed product bounds this network
    captured: TracedNetwork  # captured, bounding: the captured model, and what its bounds may cost
    bounding: BoundSettings


def over_all_inputs(
    model: nn.Module,
    example: Tensor,
    output: str | int | None,
    max_seconds: float | None,
    graph: Graph | None = None,
) -> Constants:
    """Bound the Lipschitz constant of a model over all inputs, and compute its printed products.

    `graph` is that of the model in eval mode, where it was captured already.
    """
    bounding = BoundSettings.within(max_seconds)
    captured = TracedNetwork.of(model, example[:CAPTURED], bounding, mode="eval", output=output, graph=graph)
    best = upper_sides(captured, bounding, proofs=False)["best"]
    formula = printed(captured.segments, captured.norm, exact=False)
    product, normalizers = 0.0, []
    for node in captured.segments.graph:
        effect = captured.segments.effects[node.name]
        if is_weight(node) and isinstance(effect, Linear):
            product += captured.norm(effect.maps[0]).log10
        elif is_normalizer(node):
            kind = "batch_norm" if node.is_batch_norm else node.operator
            normalizers.append((kind, printed_constant(node, effect)))
    why = f"the constant over all inputs, {best.evidence.name} ({best.method})"
    if best.log10_upper == math.inf:
        why = f"no finite constant ({best.reason}): every cell counts with the largest loss"
    return Constants(
        log10_global=best.log10_upper,
        reason=best.reason,
        steep=condition(CONVEX, best.log10_upper == math.inf or best.evidence > Evidence.SAMPLED, why),
        alone=alone(captured.graph, model, example, output),
        log10_product=product,
        normalizers=tuple(normalizers),
        chain=condition(
            "a chain of layers with slopes of at most 1 (Definition 8)",
            formula.holds,
            formula.reason or "read off the graph",
        ),
        captured=captured,
        bounding=bounding,
    )


def over_balls(everywhere: Constants, tallies: tuple[Tally, ...]) -> tuple[list[Tensor], Condition]:
    """Return log10 of the model's constant over the ball of every cell, for every label; one tensor per partition.

    The cell of points outside of all balls has the constant over all inputs, and so have all but the `MOST_BALLS` cells
    with the most samples.
    """
    largest = tallies[-1]
    partition = largest.partition
    assert partition.radius is not None
    classes = len(largest.counts) // partition.size
    samples = largest.counts.view(classes, partition.size)[:, :-1].sum(0)
    chosen = samples.argsort(descending=True)[: min(MOST_BALLS, int((samples > 0).sum()))]
    regions = torch.full((len(partition.centres),), everywhere.log10_global, dtype=torch.float64)
    with Progress("certifying balls", math.ceil(len(chosen) / AT_ONCE)) as progress:
        for some in chosen.split(AT_ONCE):
            centres = partition.centres[some.to(partition.centres.device)]
            balls = Balls(everywhere.captured, centres, everywhere.bounding)
            bounds = balls.over(partition.radius).constant.double().cpu().log10() + 1e-12
            regions[some] = torch.minimum(bounds, regions[some])
            progress.step()
    outside = torch.tensor([everywhere.log10_global], dtype=torch.float64)
    by_cell = [torch.cat([regions[: one.partition.size - 1], outside]).repeat(classes) for one in tallies]
    why = f"certified over the balls of radius {partition.radius:g} around {len(chosen)} centres, else over all inputs"
    return by_cell, condition(CONVEX, everywhere.steep.status == MET, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the rows of Theorem 20 share: the data, the loss, and that the loss of a sample depends on it alone."""

    reading: DataReading
    plan: CellPlan
    loss: Loss
    delta: float
    alone: Condition

    @property
    def train(self) -> SamplesSeen:
        """D."""
        return self.reading.train

    @property
    def log10_loss(self) -> float:
        """Log10 of the Lipschitz constant of the loss in the outputs."""
        return log10(self.loss.constant(self.train.classes))

    @property
    def fresh_loss(self) -> str:
        """What most of the bounds speak of."""
        return f"the {self.loss.name} of the model on fresh data"

    @property
    def common(self) -> tuple[Condition, ...]:
        """The conditions of all forms of the theorem."""
        bounded = condition(
            "the loss is bounded by C over all inputs, and its label is part of the cell",
            True,
            f"the {self.loss.name} is at most {self.loss.most:g}; cells are split by label",
        )
        return (self.train.independent, self.reading.fixed, bounded, self.alone, self.train.traced)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRow:
    """A row of Theorem 20 for the partition with the smallest gap, `chosen`, and the terms `over` every partition.

    `delta` is the probability of failure for each partition.
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
    over = tuple(  # By a union bound all hold together, so that the smallest may be taken.
        theorem20(tally.counts, spread, exponents, delta=delta / count, most=setting.loss.most)
        for tally, spread, exponents in zip(tallies, by_partition, constants, strict=True)
    )
    chosen = min(range(count), key=lambda index: over[index].gap)
    best = over[chosen]
    conditions = [*setting.common, _distance_condition(setting, chosen, distances, by_partition[chosen]), steep]
    if distances in ("mean", "limit"):
        conditions.append(setting.reading.independent)
    # A two-sided row bounds the gap alone; the others bound the loss on fresh data, of which the loss on D is a part.
    on_d = [] if two_sided else [term("loss on D", setting.train.worst_loss)]
    slack = term("confidence", best.slack)
    share = f"delta/{count}" + (", half of it for each side" if two_sided else "")
    bound = row(
        name,
        source="Slides, Theorem 1" if two_sided else f"{THAN}, Theorem 20",
        speaks_of="the gap between the losses on D and on fresh data, either way" if two_sided else setting.fresh_loss,
        most=setting.loss.most,
        terms=[*on_d, term("cells", best.local), slack],
        conditions=conditions,
        log10_as_printed=log10_sum((*(one.log10 for one in on_d), best.log10_local_as_printed, slack.log10)),
        note=f"{best.cells} of {best.size} cells hold samples; the best of {count} partitions, each at {share}",
    )
    return LocalRow(bound=bound, over=over, chosen=chosen, delta=delta / count)


def _cell_distances(setting: Setting, index: int, distances: str) -> Tensor:
    """Return lambda_i of every cell of one partition, in one of the ways of `theorem20_row`."""
    train, held = setting.train.tallies[index], setting.reading.held_tallies[index]
    reach = train.partition.reach(*(setting.plan.input_range or (None, None)))
    if distances == "mean":
        return mean_distances(train, held)
    if distances == "limit":
        return limited_distances(train, held, reach, setting.delta / 2.0 / len(setting.train.tallies))
    if distances == "diameter":
        return 2.0 * reach.repeat(setting.train.classes)
    return train.distances / train.counts.clamp(min=1.0) + reach.repeat(setting.train.classes)


def _distance_condition(setting: Setting, index: int, distances: str, values: Tensor) -> Condition:
    """Return the condition that the distances of a partition's cells bound lambda_i."""
    unlimited = int(((setting.train.tallies[index].counts > 0) & ~values.isfinite()).sum())
    held = int(setting.reading.held_tallies[index].counts.sum())
    why = {
        "mean": f"estimated from {held:,} held-out samples, from above by the root of the mean square",
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


def corollary22_rows(setting: Setting, everywhere: Constants, with_local: LocalRow) -> list[BoundRow]:
    """Return Corollary 22: the BN or LN form for the model, and the form without normalizers."""
    slack = with_local.over[with_local.chosen].slack
    train = setting.train.tallies[with_local.chosen]
    counts, distances = train.counts, mean_distances(train, setting.reading.held_tallies[with_local.chosen])
    limited = (counts > 0) & distances.isfinite()
    mean_distance = float((counts[limited] * distances[limited]).sum() / counts.sum())
    near = condition(
        "lambda_i bounds the mean distance in each cell", None, "estimated from held-out samples, from above"
    )
    conditions = [*setting.common, near, everywhere.chain, setting.reading.independent]
    if bool((counts[~limited] > 0).any()):
        conditions.append(
            condition("every cell that holds samples holds held-out ones", False, "some do not and are left out")
        )
    rows = []
    for name, exponent, what in _normalizer_forms(everywhere.normalizers):
        omega, gap = corollary22(everywhere.log10_product, setting.log10_loss, mean_distance, slack, exponent)
        network = "the model" if exponent or not everywhere.normalizers else "its twin without normalizers"
        rows.append(
            row(
                name,
                source=f"{THAN}, Corollary 22",
                speaks_of=f"the {setting.loss.name} of {network} on fresh data, less that on D",
                most=setting.loss.most,
                terms=[BoundTerm(name="omega and normalizers", log10=omega), term("confidence", slack)],
                conditions=conditions,
                log10_value=gap,
                note=f"{what}; both factors change when weights in front of a normalizer are rescaled",
            )
        )
    return rows


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


def hkk_row(setting: Setting, with_local: LocalRow) -> BoundRow:
    """Return the bound of Hou et al. as Than quotes it."""
    index = with_local.chosen
    train = setting.train.tallies[index]
    distances = mean_distances(train, setting.reading.held_tallies[index])
    mean, worst, size = hkk(train.counts, distances, train.slopes.log10(), delta=setting.delta)
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
        speaks_of=setting.fresh_loss,
        most=setting.loss.most,
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
        speaks_of=f"the {setting.loss.name} under noise on the weights, on fresh data",
        most=setting.loss.most,
        terms=[term("loss on D", setting.train.loss), term("sharpness", first), term("noise", second)],
        conditions=(setting.train.independent, smoothed),
        rate=True,
        note=f"spherical sharpness {sharpness:.4g}; orders are taken with constants of 1",
    )


def fresh_row(setting: Setting, fresh: SamplesSeen, what: str, independent: Condition) -> BoundRow:
    """Return the bound from fresh samples alone (Hoeffding), with which every bound from D can be compared."""
    return row(
        f"{what} {ALONE}",
        source="Hoeffding's inequality",
        speaks_of=setting.fresh_loss,
        most=setting.loss.most,
        terms=[
            term("loss on them", fresh.worst_loss),
            term("confidence", setting.loss.most * math.sqrt(math.log(1.0 / setting.delta) / (2.0 * fresh.samples))),
        ],
        conditions=(fresh.independent, setting.alone, fresh.traced, independent),
    )


def local_rows(
    model: nn.Module,
    setting: Setting,
    everywhere: Constants | None,
    notes: list[str],
) -> list[LocalRow]:
    """Return Theorem 20 with every kind of constant; the last row is that of the slopes at the samples of D."""
    rows, plan, partitions = [], setting.plan, len(setting.reading.held_tallies)
    if everywhere is not None:
        if everywhere.reason:
            notes.append(f"the constant over all inputs is infinite: {everywhere.reason}")
        constants: Sequence[Tensor | float] = [setting.log10_loss + everywhere.log10_global] * partitions
        distances = "reach" if plan.radius is not None else "limit" if plan.input_range is not None else "mean"
        rows.append(theorem20_row(setting, "Theorem 20, all inputs", constants, everywhere.steep, distances=distances))
        if distances != "mean":
            rows.append(
                theorem20_row(
                    setting, "Slides' Theorem 1", constants, everywhere.steep, distances="diameter", two_sided=True
                )
            )
    if everywhere is not None and plan.radius is not None:
        try:
            by_ball, steep = over_balls(everywhere, setting.train.tallies)
            constants = [setting.log10_loss + one for one in by_ball]
            rows.append(theorem20_row(setting, "Theorem 20, balls", constants, steep, distances="reach"))
        except NormscopeError as error:
            notes.append(f"no constants over balls: {describe_error(error)}")
    sampled = condition(CONVEX, None, "the longest gradient of the loss at a sample of the cell: a maximum over points")
    slopes = [one.slopes.log10() for one in setting.train.tallies]
    return [*rows, theorem20_row(setting, "Theorem 20, slopes at D", slopes, sampled, distances="mean")]


def corollary_rows(setting: Setting, everywhere: Constants | None, local: list[LocalRow]) -> list[BoundRow]:
    """Return Corollaries 21 and 22, and the bound of Hou et al."""
    sampled = local[-1]
    finite = everywhere is not None and math.isfinite(everywhere.log10_global)
    rows = [corollary21_row(local[0].bound, True if finite else None)]
    if everywhere is not None:
        rows += corollary22_rows(setting, everywhere, sampled)
    return [*rows, hkk_row(setting, sampled)]
