"""Facts about how the network is built, and about bounds that say nothing about any input that occurs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from ...bounds.graph.ir import Unit
from ...bounds.operators.effects import Unbounded
from ...bounds.operators.registry import lookup
from ...bounds.operators.units import COMPLEX
from ...bounds.rungs import is_weight
from ...core.finding import Finding, Severity, figures, power
from ...listening.calls import RECURRENT
from ...report.words import listed, pluralise
from ..checking.examined import Examined


def redundant_bias(examined: Examined) -> Iterator[Finding]:
    """A bias that the normalizer after it subtracts again."""
    for feed in examined.feeds:
        bias = None if isinstance(feed.weight.op, Unit) else feed.weight.bound().get("bias")
        if feed.bias_redundant == "whole" and isinstance(bias, Tensor):
            yield Finding(
                code="redundant-bias",
                severity=Severity.INFO,
                where=feed.weight.path,
                seen=f"The bias of `{feed.weight.path}` ({bias.numel():,} values) stands in front of "
                f"`{feed.normalizer.path}`, where the mean of every channel is subtracted.",
                why="The mean takes the bias away again: it has no effect and its gradient is zero, but it is stored, "
                "updated and decayed.",
                advice=f"Build `{feed.weight.path}` with bias=False: the bias in `{feed.normalizer.path}` does its "
                "work.",
                numbers=figures(parameters=bias.numel()),
            )


def not_lipschitz(examined: Examined) -> Iterator[Finding]:
    """Parts without a finite constant over all inputs."""
    for node in examined.graph or ():
        effect = examined.effects.get(node.name)
        if isinstance(effect, Unbounded):
            unknown = lookup(node) is None or node.operator == COMPLEX
            yield Finding(
                code="no-rule" if unknown else "not-lipschitz",
                severity=Severity.INFO,
                where=node.path,
                seen=f"No finite Lipschitz constant over all inputs is known: {effect.reason}.",
                why="The bound of the whole network over all inputs is infinite because of this part.",
                advice='Give its constant with known={"module.path": constant}, or teach Normscope the operator with '
                "@normscope.rule; its figures at the data (audit.observed) need neither."
                if unknown
                else "Judge this network by its figures at the data (`audit.observed`), bound it around single inputs "
                'with `ns.lipschitz(model, batch, scope="ball", radius=...)`, or put a normalizer or a clamp in front '
                "so that the values it sees are bounded.",
                numbers={},
            )


CODE = "loose-bound"
USELESS = 6.0
"""log10 of the bound over the largest Jacobian at the data: a millionfold is a bound on nothing that occurs."""
WIDE = 0.5
"""log10 of a normalizer's constant over all inputs over that at the data: three times is an input nobody has."""

BECAUSE = "What makes it so: "
"""How the reason begins; headline figures say the rest of it alone."""

NORMALIZERS = {
    "layer_norm": "LayerNorm at zero variance",
    "group_norm": "GroupNorm at zero variance",
    "instance_norm": "InstanceNorm at zero variance",
    "batch_norm": "BatchNorm at zero variance",
    "rms": "RMSNorm at zero",
    "rms_norm": "RMSNorm at zero",
}


def loose_bound(examined: Examined) -> Iterator[Finding]:
    """A finite bound over all inputs that exceeds what was seen at the data a millionfold, and what makes it so."""
    best, observed = examined.bounds.get("best"), examined.bounds.get("observed")
    if best is None or observed is None or not loose(best.log10_upper, observed.log10_upper):
        return
    excess = best.log10_upper - observed.log10_upper
    causes = list(_causes(examined))
    yield Finding(
        code=CODE,
        severity=Severity.INFO,
        where="",
        seen=f"No useful bound over all inputs: it is {power(best.log10_upper)}, which is {power(excess)} times the "
        "largest growth at the data.",
        why=f"{BECAUSE}{listed(causes, most=len(causes))}.",
        advice="Judge the network by the figures at the data (`audit.observed`). Bounds around single inputs come from "
        '`ns.lipschitz(model, batch, scope="ball", radius=...)`.',
        numbers=figures(log10_excess=excess),
    )


def loose(log10_upper: float, log10_observed: float) -> bool:
    """Whether a finite bound is so far above what was observed that it is of no use."""
    return -math.inf < log10_observed < log10_upper - USELESS and log10_upper < math.inf


def useful(log10_upper: float | None, log10_observed: float | None) -> float | None:
    """Return a bound where it is of use: finite, and not a millionfold above what was observed."""
    if log10_upper is None or log10_upper == math.inf:
        return None
    return None if log10_observed is not None and loose(log10_upper, log10_observed) else log10_upper


def _causes(examined: Examined) -> Iterator[str]:
    """Yield the operators whose constants over all inputs no data come near to; else depth itself."""
    nodes = list(examined.graph or ())
    special = ["attention"] if any("attention" in node.operator for node in nodes) else []
    special += ["the steps of a recurrent layer"] if any(node.operator in RECURRENT for node in nodes) else []
    wide = dict.fromkeys(
        NORMALIZERS.get(place.row.operator, place.row.kind)
        for place in examined.places
        if place.row.log10_exact is not None
        and place.row.log10_at_data is not None
        and place.row.log10_exact - place.row.log10_at_data >= WIDE
    )
    yield from (*special, *wide)
    if not special and not wide:
        layers = sum(map(is_weight, nodes))
        yield f"the worst cases of {pluralise(layers, 'weight layer')} multiplied, though no input meets them together"
