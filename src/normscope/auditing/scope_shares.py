"""DATA and DOMAIN in an audit: how much a small change grows, by the share of the data, from a second pass over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..bounds.applied import multiplications, passes
from ..bounds.captured import Bounding, Captured
from ..bounds.curve.curve import MARGINS, QUANTILES, SAMPLES, DomainPoint, ShareCurve, checked_widths, measured_curve
from ..bounds.data.quantile import draws_needed
from ..bounds.domain.domain import Domain
from ..bounds.domain.domain_bounds import domain_sides
from ..bounds.lower import USUAL_STEPS
from ..bounds.point import STEP_PASSES
from ..calls.call import arguments
from ..calls.data_reader import Batches
from ..core.bracket import Bracket
from ..core.errors import CaptureError, InputError, JacobianError
from .findings import useful

SHARE, CONFIDENCE = 0.99, 0.95
"""What the headline speaks of, as far as the samples go."""
WORK, FEWEST, FEWEST_NORMS = 3e11, 100, 29
"""Multiplications for either figure, samples that define domains in the largest networks, and samples at which their
Jacobians are taken: enough to speak of 90 %."""
SMALL, BRIEF_SAMPLES, BRIEF_WIDTHS = 5e5, 150, ((0.0, 0.3),)
"""A fast audit takes it of networks with at most so many multiplications a pass, from so many samples and with one
domain, wide enough that fresh samples lie inside as a rule."""
WHAT = "DATA and DOMAIN, the growth by share of the data"
ONCE = "the loader can be read once only, and that was for the statistics: pass a DataLoader or a list of batches"
FRESH = "the coverage counts the loader's samples as fresh: they must not be those that defined the domain"


def worth_it(captured: Captured, rungs: Mapping[str, Bracket]) -> bool:
    """Say whether a fast audit takes it: where the bound over all inputs says nothing, of a small network."""
    best, observed = rungs.get("best"), rungs.get("observed")
    if best is None or observed is None or useful(best.log10_upper, observed.log10_upper) is not None:
        return False
    return multiplications(captured.graph) <= SMALL


def audited_curve(
    captured: Captured,
    loader: Batches | None,
    everywhere: Bracket,
    skipped: list[tuple[str, str]],
    *,
    domain: Domain | None,
    brief: bool,
    bounding: Bounding,
    seed: int,
) -> ShareCurve | None:
    """Return the curve of an audited model, or say why there is none.

    How many samples it takes is counted from shapes. With a domain there is one point, the bound over it and its
    coverage by the loader; otherwise DATA and domains of several widths, or of one width and from few samples.

    Args:
        captured: the captured model.
        loader: a loader that can be read again; None without one.
        everywhere: the bound over all inputs.
        skipped: takes the reason.
        domain: what the user recorded.
        brief: few samples and one width.
        bounding: what all of it may cost.
        seed: the seed of the starts of Lanczos.
    """
    if loader is not None and not loader.readable_again:
        skipped.append((WHAT, ONCE))
        return None
    samples = BRIEF_SAMPLES if brief else passes(captured.graph, SAMPLES, work=WORK, least=FEWEST)
    try:
        if domain is not None:
            return _over(domain, captured, bounding, loader, everywhere, samples)
        needed = FEWEST_NORMS if brief else draws_needed(SHARE, CONFIDENCE)
        return measured_curve(
            captured,
            [] if loader is None else loader,
            widths=BRIEF_WIDTHS if brief else checked_widths(QUANTILES, MARGINS),
            samples=samples,
            norms=passes(captured.graph, needed, work=WORK / (STEP_PASSES * USUAL_STEPS), least=FEWEST_NORMS),
            share=SHARE,
            confidence=CONFIDENCE,
            everywhere=everywhere,
            bounding=bounding,
            seed=seed,
        )
    except (InputError, CaptureError, JacobianError) as error:
        skipped.append((WHAT, str(error)))
        return None


def _over(
    domain: Domain,
    captured: Captured,
    bounding: Bounding,
    loader: Batches | None,
    everywhere: Bracket,
    samples: int,
) -> ShareCurve:
    """Return the one point of a domain that was recorded before."""
    bracket = domain_sides(captured, domain, bounding, everywhere=everywhere)["best"]
    coverage = None if loader is None else domain.coverage(_first(captured, loader, samples), confidence=CONFIDENCE)
    point = DomainPoint(quantile=domain.quantile, margin=domain.margin, bracket=bracket, coverage=coverage)
    return ShareCurve(
        mode=captured.graph.mode,
        samples=domain.samples,
        confidence=CONFIDENCE,
        data=None,
        domains=(point,),
        everywhere=everywhere,
        skipped=(("DATA", 'it needs effort="thorough" without domain=, or normscope.lipschitz(scope="data")'),),
        notes=() if coverage is None else (FRESH,),
    )


def _first(captured: Captured, loader: Batches, samples: int) -> Iterator[Any]:
    """Yield batches until there are so many samples."""
    read = 0
    for batch in loader:
        yield batch
        read += arguments(captured.model, batch).count if captured.graph.per_sample else 1
        if read >= samples:
            return
