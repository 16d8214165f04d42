"""Constants of single outputs and of differences of two: one certificate gives them all."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import partial

import torch
from torch import Tensor

from ..core.bracket import Bracket, Evidence
from ..core.budget import Budget
from ..core.effort import Effort
from ..core.errors import InputError
from .ellipsoids.ellipsoid_plan import plan
from .ellipsoids.optimised import optimise, with_rounding
from .evaluation import Secant
from .graph.ir import Graph, Node, Ref
from .graph_weights import passes
from .lower import ATTACK_STEPS, ATTACK_WORK, BELOW, lower_bound, witness_of
from .segments import Bounds
from .traced_network import BoundSettings, TracedNetwork, cut_short

PER = ("output", "difference")
"""What a bracket can be split into."""
SEARCH_STEPS, FEWEST_STEPS_PER_OUTPUT = 6000, 4
"""Steps of the searches from below for all outputs together, and at least for each of them."""
MAX_CONSTANTS = 2048
"""Constants that are worked out at most: 64 outputs have 2,016 differences."""


def directions(per: str, outputs: int) -> Tensor:
    """Return one row per constant: unit vectors, or e_i - e_j for i < j in the order of `itertools.combinations`."""
    if per not in PER:
        raise InputError(f"per is one of {', '.join(PER)} or None, not {per!r}")
    rows = torch.eye(outputs, dtype=torch.float64)
    if per == "difference":
        pairs = list(itertools.combinations(range(outputs), 2))
        rows = torch.stack([rows[i] - rows[j] for i, j in pairs]) if pairs else rows[:0]
    if not 0 < len(rows) <= MAX_CONSTANTS:
        raise InputError(
            f'per="{per}" of {outputs} output(s) is {len(rows)} constants: between 1 and {MAX_CONSTANTS} are possible'
        )
    return rows


def per_output(
    captured: TracedNetwork,
    bounding: BoundSettings,
    values: Bounds,
    bracket: Bracket,
    *,
    per: str,
    effort: Effort,
    seed: int,
) -> tuple[Bracket, ...]:
    """Return a bracket for every output or difference, none above what the whole output's bracket implies.

    An effort above FAST optimises the certificate for all of them together.
    """
    rows = directions(per, math.prod(captured.graph.output_shape) // math.prod(captured.graph.output_shape[:-1]))
    if math.prod(captured.graph.output_shape[:-1]) != 1:
        raise InputError(
            f"per= needs one row of outputs for each sample; the output has shape {captured.graph.output_shape}"
        )
    along = torch.full((len(rows),), math.inf, dtype=torch.float64)
    for way, budget in bounding.efforts(effort):
        nothing = partial(torch.full_like, along, math.inf)
        along = torch.minimum(
            along, budget.share(0.5).attempt(partial(_along, captured, budget, values, rows, way), nothing)
        )
    whole = bracket.log10_upper + rows.norm(dim=1).log10() + 1e-10
    steps = passes(
        captured.graph,
        min(ATTACK_STEPS, SEARCH_STEPS // len(rows)),
        work=ATTACK_WORK / len(rows),
        least=FEWEST_STEPS_PER_OUTPUT,
    )
    below = bounding.budget.search(BELOW, steps * len(rows))
    results: list[Bracket] = []
    for row, one, other in zip(rows, along.tolist(), whole.tolist(), strict=True):
        own = min(one, other)
        part = below.share(1.0 / (len(rows) - len(results)))
        secant = bounding.budget.attempt(partial(_below, captured, row, part, seed, own), Secant)
        results.append(
            dataclasses.replace(
                bracket,
                log10_lower=secant.log10,
                log10_upper=own,
                evidence=Evidence.NUMERICAL,
                method="certificate along the output"
                if one < other
                else f"{bracket.method}, times the norm of the row",
                witness=witness_of(captured, secant),
                reason=bracket.reason if math.isinf(own) else None,
                proof=None,
            )
        )
    return tuple(cut_short(result, bounding.budget) for result in results)


def _below(captured: TracedNetwork, row: Tensor, budget: Budget, seed: int, enough: float) -> Secant:
    """Search for the lower side of d^T f for a row d."""
    double = directed(captured.double, row)
    values = captured.certain.opened(double)
    return lower_bound(
        directed(captured.graph, row), double, budget=budget, seed=seed, restarts=2, enough=enough, values=values
    )


def _along(captured: TracedNetwork, budget: Budget, values: Bounds, rows: Tensor, effort: Effort) -> Tensor:
    """Return log10 of the constants along the rows by one certificate; infinite where there is none."""
    written = plan(captured.segments, values)
    dense = None
    if written is not None:
        rows, steps = rows.to(written.output.device), 1 if effort == Effort.FAST else None
        dense = optimise(written, steps=steps, budget=budget.share(0.5), directions=rows)
    if written is None or dense is None:
        return torch.full((len(rows),), math.inf, dtype=torch.float64)
    return (with_rounding(written, dense) or dense).along(rows).cpu() + 1e-10


def directed(graph: Graph, row: Tensor) -> Graph:
    """Return the graph of d^T f for a row d."""
    shape = graph.output_shape
    last = next((node for node in graph if node.name == graph.output), None)
    dtype, device = graph.inputs[0].value.dtype, graph.inputs[0].value.device
    node = Node(
        name=f"{graph.output}:along",
        op=torch.ops.aten.linear.default,
        args=(Ref(graph.output, shape), row[None].to(device, dtype)),
        shape=(*shape[:-1], 1),
        dtype=dtype,
        device=device,
        path="" if last is None else last.path,
    )
    return dataclasses.replace(graph, nodes=(*graph.nodes, node), output=node.name)
