"""The steps of `audit` that bound: norms of layers, the ladder, shares of the data, radii, sensitivity, rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..bounds.captured import Captured
from ..bounds.curve.curve import ShareCurve
from ..bounds.ladder import climb
from ..bounds.radius.radii import Radii
from ..bounds.radius.radius import audited_radii
from ..bounds.rungs import Rungs
from ..core.bracket import Bracket
from ..graph.call import ALL_OUTPUTS
from ..rules.invariance import FeedingLayer, feeds
from .audit_steps import NOT_REACHED, AuditRequest, Skipped
from .examined import DataSeen, ExaminedRow
from .rows import from_data, from_graph, weight_norms
from .scope_shares import WHAT, audited_curve, worth_it
from .sensitivities import sensitivities

BOUNDS_SHARE, CURVE_SHARE, RADII_SHARE, SENSITIVITY_SHARE, SEARCHES_SHARE = 0.6, 0.4, 0.5, 0.8, 0.8
"""Shares of the time that is left, where it is limited: of the bounds, the shares of the data, the radii and the
sensitivities, and what the searches of each may take of that."""
FAST_BOUNDS_SHARE = 0.9
"""What the bounds of a fast audit may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditBounds:
    """The rows of the layers, and what was bounded of the network where it could be traced.

    Attributes:
        places: one per layer, with its row.
        rungs: brackets by method.
        feeds: which weight layers feed which normalizer.
        curve: growth by share of the data.
        radii: certified radii.
    """

    places: tuple[ExaminedRow, ...]
    rungs: dict[str, Bracket]
    feeds: tuple[FeedingLayer, ...] = ()
    curve: ShareCurve | None = None
    radii: Radii | None = None


def bounds_without_graph(request: AuditRequest, data: DataSeen, observed: Bracket | None) -> AuditBounds:
    """Return the norms of the layers that ran, of a model that was not traced."""
    with request.meter.part("norms"):
        places = from_data(request.model, data, request.bounding().bracket)
    return AuditBounds(places=places, rungs={} if observed is None else {"observed": observed})


def bounds_of_graph(
    request: AuditRequest,
    captured: Captured,
    data: DataSeen,
    observed: Bracket | None,
    *,
    sound: bool,
    skipped: Skipped,
) -> AuditBounds:
    """Return every bound of a traced model that the effort asks for; `sound` says whether its values are finite."""
    budget, meter = request.budget, request.meter
    bounding = request.bounding(budget.share(BOUNDS_SHARE if request.thorough else FAST_BOUNDS_SHARE))
    with meter.part("norms"):
        norms = weight_norms(captured, bounding)
    with meter.part("bounds"):
        effort = "tight" if request.thorough else "fast"
        rungs = climb(captured, bounding, observed, request.seed, effort, search=request.thorough, proofs=False)
    curve = _curve(request, captured, rungs, skipped) if sound and _wants_curve(request, captured, rungs) else None
    radii: Radii | None = None
    sensitivity: dict[str, Bracket] = {}
    if request.thorough and sound:
        with meter.part("radii"):
            radii = _radii(request, captured, rungs, skipped)
        with meter.part("sensitivity"):
            sensitivity = _sensitivity(request, captured, skipped)
    fed = feeds(captured.graph)  # not of the doubled graph, whose shared tensors are copies
    with meter.part("rows"):
        places = from_graph(
            captured,
            request.bounding(),
            data,
            fed,
            observed,
            norms=norms,
            values=rungs.nodes,
            sensitivity=sensitivity,
        )
    return AuditBounds(places=places, rungs=dict(rungs), feeds=fed, curve=curve, radii=radii)


def _wants_curve(request: AuditRequest, captured: Captured, rungs: Mapping[str, Bracket]) -> bool:
    """Say whether growth by share of the data is measured: over a domain, or over a loader where that is worth it."""
    if request.domain is not None:
        return True
    return request.loader is not None and (request.thorough or worth_it(captured, rungs))


def _curve(
    request: AuditRequest, captured: Captured, rungs: Mapping[str, Bracket], skipped: Skipped
) -> ShareCurve | None:
    """Return the growth by share of the data, or say that there was no time for it."""
    limited = request.budget.share(CURVE_SHARE)

    def taken() -> tuple[ShareCurve | None, ...]:
        curve = audited_curve(
            captured,
            request.loader,
            rungs["best"],
            skipped,
            domain=request.domain,
            brief=not request.thorough,
            bounding=request.bounding(limited),
            seed=request.seed,
        )
        return (curve,)

    with request.meter.part("shares"):
        found = limited.attempt(taken, lambda: ())
    skipped += [] if found else [(WHAT, NOT_REACHED)]
    return found[0] if found else None


def _radii(request: AuditRequest, captured: Captured, rungs: Rungs, skipped: Skipped) -> Radii | None:
    """Return the certified radii, or say why there are none."""
    if request.output == ALL_OUTPUTS:
        skipped.append(
            ("certified radii", "several outputs together are no scores of classes: choose one with output=")
        )
        return None
    budget = request.budget.share(RADII_SHARE)
    bounding = request.bounding(budget.share(SEARCHES_SHARE))
    found = budget.attempt(
        lambda: (audited_radii(captured, bounding, values=rungs.nodes, seed=request.seed),), lambda: ()
    )
    skipped += [] if found else [("certified radii", NOT_REACHED)]
    return found[0] if found else None


def _sensitivity(request: AuditRequest, captured: Captured, skipped: Skipped) -> dict[str, Bracket]:
    """Return the sensitivities to the weights, or say that there was no time for them."""
    budget = request.budget.share(SENSITIVITY_SHARE)
    bounding = request.bounding(budget.share(SEARCHES_SHARE))
    found = budget.attempt(lambda: sensitivities(captured, bounding, request.seed, skipped), lambda: None)
    skipped += [] if found is not None else [("sensitivity to the weights", NOT_REACHED)]
    return found or {}
