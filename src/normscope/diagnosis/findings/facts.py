"""Findings about how the network is built: nothing is wrong, but the reader may want to know."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ...core.finding import Finding, Severity
from ...graph.ir import Unit
from ...rules.effects import Unbounded
from ...rules.registry import lookup
from ...rules.units import COMPLEX
from ..examined import Examined
from .finding_words import figures


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
                else "Judge this network by its figures at the data (`audit.observed`), bound it where the data lives "
                "with `ns.domain` (on the command line `normscope bound domain`), or put a normalizer or a clamp in "
                "front so that the values it sees are bounded.",
                numbers={},
            )
