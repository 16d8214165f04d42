"""Lipschitz constants of the model for Theorem 20: over all inputs, a domain or balls, and the printed products."""

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
from ..graph.ir import Graph
from ..rules.effects import Linear
from .bound import CAPTURED, MET, Condition, alone, condition
from .partition import Voronoi
from .stream import Tally

MOST_BALLS = 64
"""Only this many balls, those with the most samples, are certified; the others get the constant over all inputs."""
AT_ONCE = 16
"""How many balls are certified at a time."""
CONVEX = "L_i bounds the slope of the loss over the cell and all segments inside it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What is known of a model over all inputs.

    Attributes:
        log10_global: log10 of its Lipschitz constant over all inputs, from above.
        reason: why that is infinite; None where it is finite.
        steep: the condition of Theorem 20 that this constant bounds the slope over the cells.
        alone: the condition that samples do not influence each other.
        log10_product: log10 of P_w, the product of the weights' norms.
        normalizers: the operator of each normalizer and log10 of its printed constant.
        chain: the condition that the printed product bounds this network.
        captured: the captured model.
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
    model: nn.Module,
    example: Tensor,
    output: str | int | None,
    max_seconds: float | None,
    graph: Graph | None = None,
) -> Constants:
    """Bound the Lipschitz constant of a model over all inputs, and compute its printed products.

    `graph` is that of the model in eval mode, where it was captured already.
    """
    bounding = Bounding.within(max_seconds)
    captured = Captured.of(model, example[:CAPTURED], bounding, mode="eval", output=output, graph=graph)
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
    return Constants(
        log10_global=best.log10_upper,
        reason=best.reason,
        steep=_everywhere(best),
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


def _everywhere(best: Bracket) -> Condition:
    """Return the condition that a constant over all inputs bounds the slope over every cell."""
    if best.log10_upper == math.inf:
        return condition(CONVEX, True, f"no finite constant ({best.reason}): every cell counts with the largest loss")
    return condition(
        CONVEX, best.evidence > Evidence.SAMPLED, f"the constant over all inputs, {best.evidence.name} ({best.method})"
    )


def over_domain(known: Constants, domain: Domain, share: float | None) -> tuple[float, Condition]:
    """Return log10 of the constant over a domain, and the condition that the cells lie inside it.

    `share` is the share of the held-out samples that lie inside, or None.
    """
    best = domain_sides(known.captured, domain, known.bounding)["best"]
    inside = "" if share is None else f"; {100 * share:.3g} % of the held-out samples are"
    why = f"no proof that whole cells lie inside the domain{inside}. The ball certificate (radius=) has one"
    return min(best.log10_upper, known.log10_global), condition(CONVEX, None, why)


def over_balls(known: Constants, tallies: tuple[Tally, ...]) -> tuple[list[Tensor], Condition]:
    """Return log10 of the model's constant over the ball of every cell, for every label; one tensor per partition.

    The cell of points outside of all balls has the constant over all inputs, and so have all but the `MOST_BALLS` cells
    with the most samples.
    """
    largest = tallies[-1]
    partition = largest.partition
    assert isinstance(partition, Voronoi)
    assert partition.radius is not None
    classes = len(largest.counts) // partition.size
    samples = largest.counts.view(classes, partition.size)[:, :-1].sum(0)
    chosen = samples.argsort(descending=True)[: min(MOST_BALLS, int((samples > 0).sum()))]
    regions = torch.full((len(partition.centres),), known.log10_global, dtype=torch.float64)
    with Progress("certifying balls", math.ceil(len(chosen) / AT_ONCE)) as progress:
        for some in chosen.split(AT_ONCE):
            centres = partition.centres[some.to(partition.centres.device)]
            balls = Balls(known.captured, centres, known.bounding)
            bounds = balls.over(partition.radius).constant.double().cpu().log10() + 1e-12
            regions[some] = torch.minimum(bounds, regions[some])
            progress.step()
    outside = torch.tensor([known.log10_global], dtype=torch.float64)
    by_cell = [torch.cat([regions[: one.partition.size - 1], outside]).repeat(classes) for one in tallies]
    why = f"certified over the balls of radius {partition.radius:g} around {len(chosen)} centres, else over all inputs"
    return by_cell, condition(CONVEX, known.steep.status == MET, why)
