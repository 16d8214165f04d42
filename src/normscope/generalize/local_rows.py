"""Theorem 20 with every kind of constant (over all inputs, balls, a domain, at the samples), and its corollaries."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from ..bounds.domain.domain import Domain
from ..core.errors import NormscopeError, describe_error
from . import families
from .bound import BoundRow, condition
from .constants import CONVEX, Constants, over_balls, over_domain
from .data_reading import CellPlan
from .families import LocalRow, Setting
from .stream import sample_batches

EVERYWHERE, AT_BALLS = "Theorem 20, all inputs", "Theorem 20, balls"
IN_DOMAIN, AT_SAMPLES = "Theorem 20, domain", "Theorem 20, slopes at D"


def local_rows(
    model: nn.Module,
    setting: Setting,
    known: Constants | None,
    domain: Domain | None,
    plan: CellPlan,
    held_out: Any,
    notes: list[str],
) -> list[LocalRow]:
    """Return Theorem 20 with every kind of constant; the last row is that of the slopes at the samples of D."""
    rows = []
    if known is not None:
        rows += _global_rows(setting, known, plan, notes)
        if plan.radius is not None:
            rows += _ball_rows(setting, known, notes)
        if domain is not None:
            rows.append(_domain_row(model, setting, known, domain, held_out))
    sampled = condition(CONVEX, None, "the longest gradient of the loss at a sample of the cell: a maximum over points")
    slopes = [one.slopes.log10() for one in setting.train.tallies]
    rows.append(families.theorem20_row(setting, AT_SAMPLES, slopes, sampled, distances="mean"))
    return rows


def _global_rows(setting: Setting, known: Constants, plan: CellPlan, notes: list[str]) -> list[LocalRow]:
    """Return Theorem 20 with the constant over all inputs, and its form in the Slides where distances have limits."""
    if known.reason:
        notes.append(f"the constant over all inputs is infinite: {known.reason}")
    constants = [setting.log10_loss + known.log10_global] * len(setting.held_tallies)
    distances = "reach" if plan.radius is not None else "limit" if plan.input_range is not None else "mean"
    rows = [families.theorem20_row(setting, EVERYWHERE, constants, known.steep, distances=distances)]
    if distances != "mean":
        rows.append(
            families.theorem20_row(
                setting, "Slides' Theorem 1", constants, known.steep, distances="diameter", two_sided=True
            )
        )
    return rows


def _ball_rows(setting: Setting, known: Constants, notes: list[str]) -> list[LocalRow]:
    """Return Theorem 20 with constants over balls; a note says why where there are none."""
    try:
        constants, steep = over_balls(known, setting.train.tallies)
    except NormscopeError as error:
        notes.append(f"no constants over balls: {describe_error(error)}")
        return []
    of_loss = [setting.log10_loss + one for one in constants]
    return [families.theorem20_row(setting, AT_BALLS, of_loss, steep, distances="reach")]


def _domain_row(model: nn.Module, setting: Setting, known: Constants, domain: Domain, held_out: Any) -> LocalRow:
    """Return Theorem 20 with the constant over a domain."""
    share = None
    if held_out is not None:
        share = domain.coverage(batch.inputs for batch in sample_batches(model, held_out)).share
    exponent, steep = over_domain(known, domain, share)
    constants = [setting.log10_loss + exponent] * len(setting.held_tallies)
    return families.theorem20_row(setting, IN_DOMAIN, constants, steep, distances="mean")


def corollary_rows(setting: Setting, known: Constants | None, local: list[LocalRow]) -> list[BoundRow]:
    """Return Corollaries 21 and 22, and the bound of Hou et al."""
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
    slopes = [one.slopes.log10() for one in setting.train.tallies]
    return [*rows, families.hkk_row(setting, slopes, sampled)]
