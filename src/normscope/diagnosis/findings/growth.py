"""The finding about signals that grow with depth."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence

from ...bounds.rungs import is_normalizer
from ...core.finding import Finding, Severity
from ..examined import Examined, WeightOverData
from .finding_words import figure, figures, power

RUN = 4
"""A chain of fewer layers than this shows no trend."""
RUN_STEP = 1.5
"""Growth per layer: He's initialisation gives 1, and layers add up to 1.5^20 = 3,000 over twenty."""
RESIDUAL = 2
"""A run needs this many residual blocks: with one, depth is not the cause."""
RUN_TOTAL = 30.0
"""Growth in all, so that a short run with a lively layer is left alone."""


def exploding_run(examined: Examined) -> Iterator[Finding]:
    """Chains of weight layers without a normalizer through which the signal grows exponentially."""
    paths = {place.node.name: place.path for place in examined.places if place.node is not None}
    ends = _branch_ends(examined)
    for chain, log_growth in _runs(examined):
        first, last, total = paths[chain[0]], paths[chain[-1]], log_growth / math.log(10.0)
        step = math.exp(log_growth / len(chain))
        branches = [paths[name] for name in chain if name in ends]
        residual = len(branches) >= RESIDUAL
        yield Finding(
            code="exploding-run",
            severity=Severity.WARNING,
            where=first,
            seen=f"From {first} to {last} the signal grows {power(total)} times over {len(chain)} weight layers with "
            f"no normalizer between them: {figure(step)} times per layer"
            + (f", {figure(math.exp(log_growth / len(branches)))} times per residual block." if residual else "."),
            why=(
                "Every block adds its branch to what it was given, so the signal grows from block to block even where "
                "each layer keeps its size"
                if residual
                else "A factor above 1 per layer is exponential in depth"
            )
            + ": activations and gradients overflow or saturate, and the Lipschitz constant grows alike.",
            advice=_scaled_branches(branches)
            if residual
            else "Initialise with gain 1 (torch.nn.init.kaiming_normal_(weight, nonlinearity='relu')), or put a "
            "normalizer between these layers.",
            numbers=figures(
                log10_growth=total, growth_per_layer=step, layers=len(chain), blocks=len(branches) if residual else None
            ),
        )


def _scaled_branches(branches: Sequence[str]) -> str:
    """Say how to tame residual branches that end in the given layers."""
    shown = ", ".join(f"`{path}`" for path in branches[:3]) + (", ..." if len(branches) > 3 else "")
    return (
        f"Scale each branch by 1/sqrt({len(branches)}) = {figure(1.0 / math.sqrt(len(branches)))} or less before it is "
        f"added, start the last layer of each branch at zero (torch.nn.init.zeros_ on the weights of {shown}), or "
        "begin each branch with a normalizer. Another initialisation of the layers alone leaves one addition per block."
    )


def _branch_ends(examined: Examined) -> frozenset[str]:
    """Return the last weight layers of residual branches: a branch is added to the value that it starts from."""
    if examined.graph is None:
        return frozenset()
    weights = {p.node.name for p in examined.places if p.node is not None and p.row.role == "weight"}
    above: dict[str, int] = {}  # as bits: what a node depends on, itself included
    own = {item.name: 1 << position for position, item in enumerate((*examined.graph.inputs, *examined.graph))}
    nearest: dict[str, frozenset[str]] = {}
    ends: set[str] = set()
    for node in examined.graph:
        refs = (above.get(ref, own[ref]) for ref in node.refs)
        above[node.name] = functools.reduce(operator.or_, refs, own[node.name])
        reached = frozenset[str]().union(*(nearest.get(ref, frozenset()) for ref in node.refs))
        nearest[node.name] = frozenset((node.name,)) if node.name in weights else reached
        if node.operator != "add" or len(node.refs) != 2:
            continue
        for start, branch in (node.refs, node.refs[::-1]):
            ends.update(name for name in nearest.get(branch, ()) if above[name] & own[start])
    return frozenset(ends)


Chains = dict[str, dict[str, tuple[int, str]]]
"""The longest chain of weight layers by its last and its first: how many layers, and the one before the last."""


def _runs(examined: Examined) -> Iterator[tuple[list[str], float]]:
    """Yield chains that share no layer, by node name, with the log of the signal's growth; the steepest first."""
    seen = {p.node.name: p.weight for p in examined.places if p.node is not None and p.weight is not None}
    befores, inner = _weights_before(examined, seen)
    longest = _longest_chains(befores)
    taken: set[str] = set()
    for log_growth, first, last in sorted(_grown(longest, inner, seen), reverse=True):
        if first in taken or last in taken:
            continue
        chain = [last]
        while chain[0] != first:
            chain.insert(0, longest[chain[0]][first][1])
        if taken.isdisjoint(chain) and _steady([seen[name] for name in chain]):
            taken.update(chain)
            yield chain, log_growth


def _longest_chains(befores: Mapping[str, frozenset[str]]) -> Chains:
    """Return the longest chain between any two layers; `befores` has the nearest layers before each, in their order."""
    longest: Chains = {}
    for last, nearest in befores.items():
        longest[last] = {last: (1, "")}
        for before in nearest:
            for first, (length, _) in longest[before].items():
                if length + 1 > longest[last].get(first, (0, ""))[0]:
                    longest[last][first] = (length + 1, before)
    return longest


def _grown(
    longest: Chains, inner: frozenset[str], seen: Mapping[str, WeightOverData]
) -> Iterator[tuple[float, str, str]]:
    """Yield the chains that end inside the network and through which the signal grows too much: its log, the ends."""
    for last in inner & longest.keys():
        for first, (length, _) in longest[last].items():
            log_growth = _log_ratio(seen[last].rms_output, seen[first].rms_input)
            if length >= RUN and log_growth >= max(math.log(RUN_TOTAL), length * math.log(RUN_STEP)):
                yield log_growth, first, last


def _weights_before(
    examined: Examined, seen: Mapping[str, WeightOverData]
) -> tuple[dict[str, frozenset[str]], frozenset[str]]:
    """Return the nearest weight layers before each with no normalizer between, and those that are not the last."""
    sources: dict[str, frozenset[str]] = {}
    befores: dict[str, frozenset[str]] = {}
    inner: frozenset[str] = frozenset()
    for node in examined.graph or ():
        reached = frozenset[str]().union(*(sources.get(ref, frozenset()) for ref in node.refs))
        sources[node.name] = reached
        if node.name in seen:
            befores[node.name], sources[node.name] = reached, frozenset((node.name,))
            inner |= reached
        elif is_normalizer(node):
            sources[node.name] = frozenset()
            inner |= reached
    return befores, inner


def _steady(layers: Sequence[WeightOverData]) -> bool:
    """Whether a chain still grows without its steepest layer: depth is the cause, not one layer."""
    marks = [layer.rms_input for layer in layers] + [layers[-1].rms_output]
    steps = sorted(_log_ratio(after, before) for before, after in itertools.pairwise(marks))
    return sum(steps[:-1]) >= (len(steps) - 1) * math.log(RUN_STEP)


def _log_ratio(after: float, before: float) -> float:
    """Return log(after/before); minus infinity where one of them says nothing."""
    return (
        math.log(after) - math.log(before) if 0.0 < min(after, before) <= max(after, before) < math.inf else -math.inf
    )
