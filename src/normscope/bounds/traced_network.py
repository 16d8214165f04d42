"""`TracedNetwork`: one captured graph with its segments, made once; what the functions that bound it all read.

`BoundSettings` says what these bounds may cost, and how closely single norms are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..calls.call import arguments
from ..core.bracket import Bracket, Evidence
from ..core.budget import Budget
from ..core.effort import Effort
from ..core.errors import CaptureError, InputError, describe_error
from ..core.log10 import ceiling10
from ..core.rounding import Upper
from .evaluation import Values
from .graph.capturing import STILL_WORKS, capture_groups, check_at, trace_model, warm_up_export
from .graph.ir import Graph
from .graph_weights import multiplications
from .linalg.linear_map import LinearMap
from .linalg.operator_norms import BOUNDING, bracket, norm_cache, upper
from .operators.effects import Norm
from .operators.registry import check
from .operators.units import fill, with_real_values
from .segments import Segments, UnrolledNetwork, propagate, segment


@dataclass(frozen=True, kw_only=True)
class BoundSettings:
    """What some bounds may cost together, and how closely single norms are taken.

    Attributes:
        budget: of all these bounds.
        rtol: how tight the norms of single maps are asked to be.
        effort: how hard to tighten the norm of a map whose upper side is looser than `rtol`.
    """

    budget: Budget = field(default_factory=Budget)
    rtol: float = 1e-3
    effort: Effort = Effort.TIGHT

    @classmethod
    def within(cls, max_seconds: float | None, *, rtol: float = 1e-3) -> BoundSettings:
        """Return the bounding of a whole measurement, whose clock starts now where there is one."""
        return cls(budget=Budget(max_seconds=warm_up_export(max_seconds), what="the measurement"), rtol=rtol)

    @cached_property
    def norms(self) -> Budget:
        """The budget of the norms of single maps, which come before the clock."""
        return self.budget.closed_forms(BOUNDING)

    @cached_property
    def closed_forms(self) -> Budget:
        """The budget of everything else that takes no search: it comes before the clock, too."""
        return self.budget.closed_forms("the evaluation of closed forms")

    def efforts(self, effort: Effort) -> tuple[tuple[Effort, Budget], ...]:
        """Return the efforts to make one after the other, each with its budget: closed forms, then searches.

        So the clock leaves at least the closed forms, and no effort gives less than a smaller one.
        """
        closed = (Effort.FAST, self.closed_forms)
        return (closed,) if effort == Effort.FAST else (closed, (effort, self.budget))

    def norm(self, linear: LinearMap) -> Upper:
        """Bound the norm of one linear map, within the tolerance and the budget."""
        known = norm_cache(linear).within(self.rtol)
        return known.upper if known is not None else upper(linear, rtol=self.rtol, budget=self.norms.share(0.7))

    def bracket(self, linear: LinearMap) -> Bracket:
        """Bound the norm of one linear map from both sides."""
        budget = self.budget.search(BOUNDING).share(1 / 3)
        return bracket(linear, rtol=self.rtol, budget=budget, effort=self.effort)


def cut_short(bracket: Bracket, *budgets: Budget) -> Bracket:
    """Return a bracket that says what the clock cut short, if anything."""
    for budget in budgets:
        if budget.cut:
            bracket = replace(bracket, converged=False, advice=budget.advice(bracket.advice))
    return bracket


OnMissing = Literal["error", "inf"]
"""What to do about operators without a rule."""
TINY_PASS = 1e5
"""Whatever the clock says, Jacobians and one start of the search from below are taken where a pass takes at most this
many multiplications."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TracedNetwork:
    """One captured graph, its segments, and what is read off them once.

    Attributes:
        model, batch, mode, output: what was captured, as it was given.
        traced: as it was captured: Jacobians at the data are those of its operators.
        graph: the same with the modules of `known` as one node each and complex values inside units
            (`bounds/operators/units.py`), in the precision of the model.
        double: `graph` in float64, which the bounds speak of.
        segments: its effects and folded linear segments.
        norm: bounds the norm of one linear map.
        known: constants of modules by path.
    """

    model: nn.Module
    batch: Any
    mode: str | None
    output: str | int | None
    traced: Graph
    graph: Graph
    double: Graph
    segments: Segments
    norm: Norm
    known: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        batch: Any,
        bounding: BoundSettings | None = None,
        *,
        mode: str | None = None,
        output: str | int | None = None,
        on_missing: str = "error",
        known: Mapping[str, float] | None = None,
        graph: Graph | None = None,
        folding: Budget | None = None,
    ) -> TracedNetwork:
        """Capture a model (or take its graph) and fold its linear segments; `folding` is a separate budget for that."""
        check_option(on_missing)
        bounding = bounding or BoundSettings()
        first = bounding if folding is None else BoundSettings(budget=folding, rtol=bounding.rtol)
        traced = graph or trace_model(model, batch, mode=mode, output=output)
        own = with_real_values(fill(traced, known or {}))
        if on_missing == "error":
            check(own)
        with torch.no_grad(), first.closed_forms.timing():
            double = float64_graph(traced, known)
            segments = segment(double, norm=first.norm)
        return cls(
            model=model,
            batch=batch,
            mode=mode,
            output=output,
            traced=traced,
            graph=own,
            double=double,
            segments=segments,
            norm=bounding.norm,
            known=known or {},
        )

    def groups(self, bounding: BoundSettings, samples: int | None = None) -> list[tuple[list[int], TracedNetwork]]:
        """Return the samples of the batch by number, those with the same masks and ids together with their own map.

        A map of whole batches is one group, of number 0. `samples` limits them to the first ones.
        """
        if not self.graph.per_sample:
            return [([0], self)]
        graphs = capture_groups(self.graph, self.model, self.batch, samples, mode=self.mode, output=self.output)
        if len(graphs) == 1:
            return [(numbers, replace(self, graph=graph)) for numbers, graph in graphs]
        return [(numbers, self._again(graph, numbers, bounding)) for numbers, graph in graphs]

    def _again(self, graph: Graph, numbers: list[int], bounding: BoundSettings) -> TracedNetwork:
        """Return the same model with the graph of some samples, whose operators are the same."""
        batch = tree_map(lambda v: v[numbers] if isinstance(v, Tensor) and v.ndim else v, self.batch)
        return TracedNetwork.of(
            self.model,
            batch,
            bounding,
            mode=self.mode,
            output=self.output,
            on_missing="inf",
            known=self.known,
            graph=graph,
        )

    @property
    def points(self) -> Tensor:
        """The captured inputs as flat points: one for every sample where samples are independent, else the batch."""
        return self.graph.samples if self.graph.samples is not None else self.graph.flat()[None]

    @cached_property
    def own_samples(self) -> list[int]:
        """The numbers of the points whose masks and ids are those that the graph holds: it is their map."""
        if self.graph.samples is None:
            return [0]
        return arguments(self.model, self.batch, self.output).groups(self.graph.constant_places)[0]

    @property
    def tiny(self) -> bool:
        """Whether a few passes take no time to speak of: they are made whatever the clock says."""
        return multiplications(self.graph) <= TINY_PASS

    @cached_property
    def unrolled(self) -> UnrolledNetwork:
        """The steps of the graph, for balls and for rounding errors."""
        with torch.no_grad():
            return UnrolledNetwork(self.segments)

    @cached_property
    def certain(self) -> Values:
        """The float64 graph with the rounding errors of its values."""
        return Values(self.unrolled, self.norm)

    @cached_property
    def ceilings(self) -> dict[str, float]:
        """The constants of all values over all inputs, rounded up; no ball exceeds them."""
        with torch.no_grad():
            bounds = propagate(self.segments, self.norm, fold=True)
        return {name: ceiling10(bound.log10) * (1 + 1e-12) for name, bound in bounds.items()}

    def check_at(self, *points: Tensor) -> None:
        """Refuse a graph that does not give what the model gives at flat points, on which a bound rests."""
        check_at(self.traced, self.model, self.batch, points, mode=self.mode, output=self.output)

    def evidence(self, value: Upper) -> Evidence:
        """Return how a bound of the network is known: one that rounds inside is not the function that was bounded."""
        return min(value.evidence, Evidence.NUMERICAL) if self.graph.rounded else value.evidence


@torch.no_grad()
def float64_graph(traced: Graph, known: Mapping[str, float] | None = None) -> Graph:
    """Return the graph that bounds are taken of: in float64, modules of `known` as one node each, all values real."""
    double = with_real_values(fill(traced.double(), known or {}))
    values = {item.name: item.value for item in double.inputs}
    for node in double:
        try:
            values[node.name] = node.evaluate([values[name] for name in node.refs])
        except Exception as error:
            raise CaptureError(
                f"`{node.operator}` in {node.where} does not run in float64, in which bounds are taken: "
                f"{describe_error(error)}. "
                f"{STILL_WORKS}"
            ) from error
    return double


def check_option(on_missing: str) -> None:
    """Refuse what `on_missing` cannot be."""
    if on_missing not in ("error", "inf"):
        raise InputError(f'on_missing is "error" or "inf", not {on_missing!r}')
