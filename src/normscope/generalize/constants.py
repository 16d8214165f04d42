"""Constants of the model for Theorem 20: over all inputs, over a domain, over balls, and the printed products."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..bounds.balls.ball import Balls
from ..bounds.bounding import Bounding
from ..bounds.captured import Captured
from ..bounds.domain.domain import Domain
from ..bounds.domain.domain_bounds import domain_sides
from ..bounds.printed import is_normalizer, is_weight, printed, printed_constant
from ..bounds.rungs import upper_sides
from ..core.bracket import Bracket, Evidence
from ..core.progress import Progress
from ..rules.effects import Linear
from .bound import MET, Condition, alone, condition
from .partition import Voronoi
from .stream import Tally

MOST_BALLS = 64
"""Balls that are certified, those with the most samples; the others count with the constant over all inputs."""
AT_ONCE = 16
"""Balls at a time."""
CONVEX = "L_i bounds the slope of the loss over the cell and all segments inside it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What is known of a model over all inputs.

    Attributes:
        log10_global: of its constant over all inputs; reason: why it is infinite.
        steep: the condition of Theorem 20 that this constant meets.
        alone: whether samples are independent of each other.
        log10_product: of P_w, the product of the weights' norms.
        normalizers: the operator of each normalizer and log10 of its printed constant.
        chain: whether the printed product bounds this network.
        captured: the model.
        bounding: what its bounds may cost.
    """

    log10_global: float
    reason: str | None
    steep: Condition
    alone: Condition
    log10_product: float
    normalizers: tuple[tuple[str, float], ...]
    chain: Condition
    captured: Captured
    bounding: Bounding


def over_all_inputs(
    model: nn.Module, example: Tensor, output: str | int | None, max_seconds: float | None
) -> Constants:
    """Bound the constant of a model over all inputs, and take its printed products.

    Raises:
        NormscopeError: the model cannot be traced, or has operators without a rule.
    """
    bounding = Bounding.within(max_seconds)
    captured = Captured.of(model, example, bounding, mode="eval", output=output)
    best = upper_sides(captured, bounding, proofs=False)["best"]
    formula = printed(captured.segments, captured.norm, exact=False)
    product, found = 0.0, []
    for node in captured.segments.graph:
        effect = captured.segments.effects[node.name]
        if is_weight(node) and isinstance(effect, Linear):
            product += captured.norm(effect.maps[0]).log10
        elif is_normalizer(node):
            found.append(("batch_norm" if node.is_batch_norm else node.operator, printed_constant(node, effect)))
    return Constants(
        log10_global=best.log10_upper,
        reason=best.reason,
        steep=_everywhere(best),
        alone=alone(captured.graph.per_sample),
        log10_product=product,
        normalizers=tuple(found),
        chain=condition(
            "a chain of layers with slopes of at most 1 (Definition 8)",
            formula.holds,
            formula.reason or "read off the graph",
        ),
        captured=captured,
        bounding=bounding,
    )


def _everywhere(best: Bracket) -> Condition:
    if best.log10_upper == math.inf:
        return condition(CONVEX, True, f"no finite constant ({best.reason}): every cell counts with the largest loss")
    return condition(
        CONVEX, best.evidence > Evidence.SAMPLED, f"the constant over all inputs, {best.evidence.name} ({best.method})"
    )


def over_domain(known: Constants, domain: Domain, share: float | None) -> tuple[float, Condition]:
    """Return log10 of the constant over a domain, and what is known of the cells being inside."""
    best = domain_sides(known.captured, domain, known.bounding)["best"]
    inside = "" if share is None else f"; {100 * share:.3g} % of the held-out samples are"
    why = f"no proof that whole cells lie inside the domain{inside}. The ball certificate (radius=) has one"
    return min(best.log10_upper, known.log10_global), condition(CONVEX, None, why)


def over_balls(known: Constants, tallies: tuple[Tally, ...]) -> tuple[list[Tensor], Condition]:
    """Return log10 of the model's constant over every cell within a radius, one tensor per partition, labels counted.

    The cell of points beyond the radius has the constant over all inputs, and so have all but the `MOST_BALLS` cells
    with the most samples.

    Raises:
        NormscopeError: there is no certificate over balls for this model.
    """
    largest = tallies[-1]
    partition = largest.partition
    assert isinstance(partition, Voronoi)
    assert partition.radius is not None
    classes = len(largest.counts) // partition.size
    busy = largest.counts.view(classes, partition.size)[:, :-1].sum(0)
    chosen = busy.argsort(descending=True)[: min(MOST_BALLS, int((busy > 0).sum()))]
    regions = torch.full((len(partition.centres),), known.log10_global, dtype=torch.float64)
    with Progress("certifying balls", math.ceil(len(chosen) / AT_ONCE)) as progress:
        for some in chosen.split(AT_ONCE):
            centres = partition.centres[some.to(partition.centres.device)]
            balls = Balls(known.captured, centres, known.bounding)
            bounds = balls.over(partition.radius).constant.double().cpu().log10() + 1e-12
            regions[some] = torch.minimum(bounds, regions[some])
            progress.step()
    beyond = torch.tensor([known.log10_global], dtype=torch.float64)
    found = [torch.cat([regions[: one.partition.size - 1], beyond]).repeat(classes) for one in tallies]
    why = f"certified over the balls of radius {partition.radius:g} around {len(chosen)} centres, else over all inputs"
    return found, condition(CONVEX, known.steep.status == MET, why)
