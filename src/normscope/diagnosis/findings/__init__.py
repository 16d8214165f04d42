"""What is wrong with a model: one function per finding, the most fundamental causes first.

A finding is a function from `Examined` to `Finding`s, one per layer it concerns, with a line in `LOOKED_FOR`. It need
not group, cap or order: `look` drops consequences, joins equal facts into one finding, keeps the first of many
warnings and sorts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from ...core.finding import Finding, Severity
from ..examined import Examined
from .broken import non_finite_activations, non_finite_weights
from .causes import unexplained
from .dead import dead_channels, dead_layer, dead_relu
from .epsilon import eps_dominated, eps_scale
from .facts import not_lipschitz, redundant_bias, steep_activation
from .growth import expanding_normalizer, exploding_run
from .sets import small_batch, stale_statistics, tiny_sets
from .spectral import spectral_norm_off
from .words import counted

LOOKED_FOR: tuple[Callable[[Examined], Iterator[Finding]], ...] = (
    non_finite_weights,
    non_finite_activations,
    tiny_sets,
    eps_scale,
    spectral_norm_off,
    dead_layer,
    exploding_run,
    dead_channels,
    stale_statistics,
    small_batch,
    eps_dominated,
    dead_relu,
    expanding_normalizer,
    redundant_bias,
    not_lipschitz,
    steep_activation,
)
"""Every finding; what stands earlier is more likely the cause of what stands later."""

MOST_WARNINGS = 10
"""Of one kind; the rest is counted."""
ONE_CAUSE = ("small-batch", "tiny-sets")
"""Where the batch or the layout is to blame for all layers at once, one warning says it."""


def look(examined: Examined) -> tuple[Finding, ...]:
    """Return what is wrong with a model or worth knowing about it.

    Args:
        examined: the model with its graph, rows and data.

    Returns:
        The most serious findings first; within a severity the more fundamental causes, then the earlier layers. Mere
        consequences of another finding are left out.
    """
    found = [finding for finder in LOOKED_FOR for finding in finder(examined)]
    order = {code: rank for rank, code in enumerate(dict.fromkeys(finding.code for finding in found))}
    depth = _depths(examined)
    kept = unexplained(_once(found), examined)
    kept.sort(key=lambda f: (-f.severity.rank, order[f.code], depth(f.where)))
    return tuple(_joined(kept))


def _depths(examined: Examined) -> Callable[[str], int]:
    """Return a function that says how deep in the model a path or parameter lies."""
    paths: dict[str, int] = {}
    for node in examined.graph or ():
        paths.setdefault(node.path, len(paths))
    for place in examined.places:
        paths.setdefault(place.row.path, len(paths))

    def depth(where: str) -> int:
        return paths.get(where, paths.get(where.rpartition(".")[0], len(paths)))

    return depth


def _once(found: Sequence[Finding]) -> list[Finding]:
    """Keep the most serious finding of a kind at a place: a module that runs twice is one module."""
    best: dict[tuple[str, str], Finding] = {}
    for finding in found:
        key = (finding.code, finding.where)
        if key not in best or finding.severity.rank > best[key].severity.rank:
            best[key] = finding
    return list(best.values())


def _joined(ordered: Sequence[Finding]) -> list[Finding]:
    """Join equal facts into one finding and count warnings beyond the first of a kind."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in ordered:
        joins = finding.severity is Severity.INFO or finding.code in ONE_CAUSE
        groups.setdefault((finding.code, finding.severity, finding.why if joins else ""), []).append(finding)
    joined: list[Finding] = []
    for (_, _, alike), group in groups.items():
        most = 1 if alike else MOST_WARNINGS
        kept, rest = group[:most], group[most:]
        if rest:
            names = ", ".join(finding.where for finding in rest[:3])
            more = f" So it is in {counted(len(rest), 'other place')}: {names}{', ...' if len(rest) > 3 else ''}."
            numbers = {**kept[-1].numbers, "count": len(group)}
            kept[-1] = dataclasses.replace(kept[-1], seen=kept[-1].seen + more, numbers=numbers)
        joined += kept
    return joined
