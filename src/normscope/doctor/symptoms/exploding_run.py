"""Chains of weight layers without a normalizer through which the signal grows exponentially."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence

from ...core.finding import Finding, figure, figures, power
from ..facts.examined import Examined
from ..facts.layers_over_data import WeightOverData
from ..facts.pass_facts import PassFacts
from .graph_order import rows_of_weights
from .symptom import FindingWords, finding

FINDING_WORDS = {
    "exploding-run": FindingWords(
        "the signal explodes from {where} on", "the signal explodes in {count} runs of layers"
    ),
}
MIN_RUN_LAYERS = 4
"""A chain of fewer layers than this shows no trend."""
RUN_LAYER_RATIO = 1.5
"""Growth of the signal per layer: He's initialisation gives 1; this much over twenty layers is 1.5^20 = 3,000."""
MIN_RESIDUAL_BLOCKS = 2
"""With fewer residual blocks in a run their additions are not the cause."""
RUN_TOTAL_RATIO = 30.0
"""Growth over a whole run, below which a short run with one steep layer is left alone."""


def check_exploding_run(examined: Examined) -> Iterator[Finding]:
    """`exploding-run` (warning): four or more layers without a normalizer in which the signal grows exponentially with
    depth; where they are residual branches the advice is to scale these
    """
    signal = examined.signal
    if signal is None or len(signal.flow.feeds) != len(signal.rows):
        return
    paths = [row.path for row in signal.rows]
    sizes = rows_of_weights(signal, examined.data)
    ends = _branch_ends(signal, sizes)
    for chain, log_growth in _runs(signal, sizes):
        first, last, total = paths[chain[0]], paths[chain[-1]], log_growth / math.log(10.0)
        step = math.exp(log_growth / len(chain))
        branches = [paths[number] for number in chain if number in ends]
        residual = len(branches) >= MIN_RESIDUAL_BLOCKS
        yield finding(
            "exploding-run",
            first,
            f"From {first} to {last} the signal grows {power(total)} times over {len(chain)} weight layers with "
            f"no normalizer between them: {figure(step)} times per layer"
            + (f", {figure(math.exp(log_growth / len(branches)))} times per residual block." if residual else "."),
            (
                "Every block adds its branch to what it was given, so the signal grows from block to block even where "
                "each layer keeps its size"
                if residual
                else "A factor above 1 per layer is exponential in depth"
            )
            + ": activations and gradients overflow or saturate, and the Lipschitz constant grows alike.",
            _scaled_branches(branches)
            if residual
            else "Initialise with gain 1 (torch.nn.init.kaiming_normal_(weight, nonlinearity='relu')), or put a "
            "normalizer between these layers.",
            figures(
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


def _branch_ends(signal: PassFacts, sizes: Mapping[int, WeightOverData]) -> frozenset[int]:
    """Return the last weight layers of residual branches: a branch is added to the value that it starts from.

    What reads a sum is given as many values as each of the summands has; what reads a concatenation is given more.
    """
    above: list[int] = []  # as bits: the rows that a row depends on, itself included
    nearest: list[frozenset[int]] = []
    ends: set[int] = set()
    for number, (row, feeds) in enumerate(zip(signal.rows, signal.flow.feeds, strict=True)):
        above.append(functools.reduce(operator.or_, (above[feed] for feed in feeds), 1 << number))
        reached = frozenset[int]().union(*(nearest[feed] for feed in feeds))
        nearest.append(frozenset((number,)) if number in sizes else reached)
        size = math.prod(sizes[number].input_shape if number in sizes else row.shape)
        summands = [feed for feed in feeds if math.prod(signal.rows[feed].shape) == size]
        for start, branch in itertools.permutations(summands, 2):
            ends.update(end for end in nearest[branch] if above[end] & 1 << start)
    return frozenset(ends)


Chains = dict[int, dict[int, tuple[int, int]]]
"""The longest chain of weight layers by its last and its first: how many layers, and the one before the last."""


def _runs(signal: PassFacts, sizes: Mapping[int, WeightOverData]) -> Iterator[tuple[list[int], float]]:
    """Yield chains that share no layer, by row, with the log of the signal's growth; the steepest first."""
    befores, inner = _weights_before(signal, sizes)
    longest = _longest_chains(befores)
    taken: set[int] = set()
    for log_growth, first, last in sorted(_grown(longest, inner, sizes), reverse=True):
        if first in taken or last in taken:
            continue
        chain = [last]
        while chain[0] != first:
            chain.insert(0, longest[chain[0]][first][1])
        if taken.isdisjoint(chain) and _steady([sizes[number] for number in chain]):
            taken.update(chain)
            yield chain, log_growth


def _longest_chains(befores: Mapping[int, frozenset[int]]) -> Chains:
    """Return the longest chain between any two layers; `befores` has the nearest layers before each, in their order."""
    longest: Chains = {}
    for last, nearest in befores.items():
        longest[last] = {last: (1, -1)}
        for before in nearest:
            for first, (length, _) in longest[before].items():
                if length + 1 > longest[last].get(first, (0, -1))[0]:
                    longest[last][first] = (length + 1, before)
    return longest


def _grown(
    longest: Chains, inner: frozenset[int], sizes: Mapping[int, WeightOverData]
) -> Iterator[tuple[float, int, int]]:
    """Yield the chains that end inside the network and through which the signal grows too much: its log, the ends."""
    for log_growth, length, first, last in _growths(longest, inner, sizes):
        if log_growth >= max(math.log(RUN_TOTAL_RATIO), length * math.log(RUN_LAYER_RATIO)):
            yield log_growth, first, last


def _growths(
    longest: Chains, inner: frozenset[int], sizes: Mapping[int, WeightOverData]
) -> Iterator[tuple[float, int, int, int]]:
    """Yield the chains that end inside the network: the log of the signal's growth, how many layers, the ends."""
    for last in inner & longest.keys():
        for first, (length, _) in longest[last].items():
            if length >= MIN_RUN_LAYERS:
                yield _log_ratio(sizes[last].rms_output, sizes[first].rms_input), length, first, last


def measure_run_growth(examined: Examined) -> tuple[float, float]:
    """Return log10 of the largest growth of the signal through a chain, and the largest growth per layer.

    That per layer is taken where the whole growth is one of `RUN_TOTAL_RATIO` or more; both are NaN without a chain.
    """
    signal = examined.signal
    if signal is None or len(signal.flow.feeds) != len(signal.rows):
        return math.nan, math.nan
    sizes = rows_of_weights(signal, examined.data)
    befores, inner = _weights_before(signal, sizes)
    growths = [(growth, length) for growth, length, _, _ in _growths(_longest_chains(befores), inner, sizes)]
    steps = (math.exp(growth / length) for growth, length in growths if growth >= math.log(RUN_TOTAL_RATIO))
    return max((growth for growth, _ in growths), default=math.nan) / math.log(10.0), max(steps, default=math.nan)


def _weights_before(
    signal: PassFacts, sizes: Mapping[int, WeightOverData]
) -> tuple[dict[int, frozenset[int]], frozenset[int]]:
    """Return the nearest weight layers before each with no normalizer between, and those that are not the last."""
    sources: list[frozenset[int]] = []
    befores: dict[int, frozenset[int]] = {}
    inner: frozenset[int] = frozenset()
    for number, (row, feeds) in enumerate(zip(signal.rows, signal.flow.feeds, strict=True)):
        reached = frozenset[int]().union(*(sources[feed] for feed in feeds))
        if number in sizes:
            befores[number] = reached
            sources.append(frozenset((number,)))
            inner |= reached
        elif "norm" in row.kind.lower():  # a function, or a module that writes one out in operators
            sources.append(frozenset())
            inner |= reached
        else:
            sources.append(reached)
    return befores, inner


def _steady(layers: Sequence[WeightOverData]) -> bool:
    """Whether a chain still grows without its steepest layer: depth is the cause, not one layer."""
    marks = [layer.rms_input for layer in layers] + [layers[-1].rms_output]
    steps = sorted(_log_ratio(after, before) for before, after in itertools.pairwise(marks))
    return sum(steps[:-1]) >= (len(steps) - 1) * math.log(RUN_LAYER_RATIO)


def _log_ratio(after: float, before: float) -> float:
    """Return log(after/before); minus infinity where one of them says nothing."""
    return (
        math.log(after) - math.log(before) if 0.0 < min(after, before) <= max(after, before) < math.inf else -math.inf
    )
