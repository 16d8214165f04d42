"""Weights that are all alike, zero, or of rank one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...core.finding import Finding, Severity, figure, figures, percent
from ...report.words import listed
from ..checking.examined import Examined
from ..checking.loss_facts import is_fresh
from ..checking.signal import ParameterRow, Signal
from ..monitor.history import History
from .check_readings import LOSS, find_last_linear, is_matrix, least_side, loss_facts_of, parameters_of
from .graph_order import WEIGHT_KINDS
from .symptom import FindingWords, Symptom, finding, others_likewise
from .weight_scale import find_normalized

FINDING_WORDS = {
    "equal-units": FindingWords("the units of {where} are all alike", "the units of {count} layers are alike"),
    "zero-weights": FindingWords("all weights of {where} are zero", "all weights of {count} layers are zero"),
    "rank-one-weights": FindingWords(
        "the weights of {where} are of rank one", "the weights of {count} layers are of rank one"
    ),
    "units-alike": FindingWords("the units of {where} are alike", "the units of {count} layers are alike"),
}


def check_equal_units(examined: Examined) -> Iterator[Finding]:
    """`equal-units` (warning): all units of a layer have the same weights, or the outputs of all classes are the
    same
    """
    alike = [
        row for row in parameters_of(examined) if is_matrix(row) and row.used and row.row_deviation == 0.0 and row.least
    ]
    for row in alike:
        one = row.least == row.greatest
        yield finding(
            "equal-units",
            row.module or row.name,
            f"All {row.shape[0]:,} units of `{row.name}` have the same weights"
            + (f": every entry is {figure(row.least)}." if one else "."),
            "Units that start alike get the same gradient and stay alike: the layer computes one feature, however "
            "wide it is.",
            "Initialise the weights at random: torch.nn.init.kaiming_normal_(weight) or xavier_uniform_(weight).",
            figures(units=row.shape[0], value=row.least if one else None),
        )


def check_equal_outputs(examined: Examined) -> Iterator[Finding]:
    """Outputs that are the same for every class."""
    facts = loss_facts_of(examined)
    if facts is None or not facts.alike or facts.output_least == facts.output_greatest:
        return
    yield finding(
        "equal-units",
        find_last_linear(examined) or LOSS,
        f"In every sample the outputs for all {facts.output_shape[1]} classes are the same.",
        "Outputs that are copies of each other get the same gradient: no class is ever preferred.",
        "Give every output weights of its own, drawn at random: nn.ModuleList([head] * n) holds one layer n "
        "times; initialise n of them, or use one layer with n outputs.",
        figures(classes=facts.output_shape[1]),
    )


UNITS_ALIKE = Symptom(
    code="units-alike",
    seen="All units of {where} began with the same weights.{also}",
    why="Units that are alike get the same gradient and stay alike: the layer has the capacity of a single unit.",
    advice="Initialise weights at random (torch.nn.init.kaiming_normal_, or leave what torch does); constants are for "
    "biases and scales.",
)


def watch_units_alike(history: History) -> Iterator[Finding]:
    """`units-alike` (warning): in two trained layers or more all units began with the same weights, which are not zero,
    and the same bias
    """
    names = history.standing.alike or ()
    if len(names) > 1 and len(history.records) > 1:
        yield UNITS_ALIKE.at(names[0], {"also": others_likewise(len(names), "other layer")})


def check_zero_weights(examined: Examined) -> Iterator[Finding]:
    """`zero-weights` (warning, info): a layer of zeros through which all gradients have to pass (info: a branch or a
    last layer that starts at zero), or whose own gradient is exactly zero, so that it stays so, or that does not
    train (error: all layers are zero); weights that have decayed to a gain below 0.001
    """
    signal = examined.signal
    if signal is None:
        return
    ranks = _ranks(signal)
    layers = sorted((row for row in signal.parameters if len(row.shape) > 1 and row.used), key=lambda r: ranks[r.name])
    for number, row in enumerate(layers):
        if not row.is_zero:
            continue
        before = [other.gradient for other in layers[:number] if other.trainable]
        behind = any(not other.is_zero for other in layers[number + 1 :])
        closed = (bool(before) and not any(before) and behind) or not is_fresh(examined.model)
        later = any(other.is_zero for other in layers[number + 1 :])
        opening = any(other.is_zero and other.gradient for other in _factors(signal.parameters, after=row))
        closed = closed and not later and not (signal.layers and signal.layers[-1].varies)
        other = any(own.is_zero and own is not row and own.module == row.module for own in layers)
        stuck = row.trainable and row.gradient == 0.0 and (other or is_fresh(examined.model)) and not closed
        stuck = stuck and not opening
        frozen = not row.trainable and any(other.trainable for other in signal.parameters)
        closed = closed or stuck or frozen
        nothing_learns = closed and number == 0 and len(layers) > 1 and all(other.is_zero for other in layers)
        where = row.module or row.name
        yield finding(
            "zero-weights",
            where,
            f"All {math.prod(row.shape):,} weights of `{where}` are exactly zero"
            + (
                ", and they do not train (requires_grad is False)."
                if frozen
                else ", and so are those of all other layers, and their gradients."
                if nothing_learns
                else ", and so is their gradient."
                if stuck
                else ", and no gradient gets past it to the layers before." * closed
            )
            + ("" if closed else "."),
            "What it is given has no influence on the output, and no training changes that."
            if frozen
            else "It is zero because another factor is zero as well: neither of them can open."
            if stuck
            else "The output does not depend on the input, and the layers before do not learn."
            if closed
            else "This is how residual branches and last layers are often initialised: the branch adds nothing at "
            "first and opens with the first steps.",
            "Initialise it at random: torch.nn.init.kaiming_normal_(weight)"
            + (", and call requires_grad_(True) on it." if frozen else ".")
            if closed
            else "Nothing to do for a fresh model. After training it means that the layer got no gradient.",
            severity=Severity.ERROR if nothing_learns else Severity.WARNING if closed else Severity.INFO,
        )


def _ranks(signal: Signal) -> dict[str, int]:
    """Return when each parameter is used first: by the rows of its module, or else after the one declared before."""
    first: dict[str, int] = {}
    for number, row in enumerate(signal.rows):
        first.setdefault(row.path, number)
    ranks: dict[str, int] = {}
    last = 0
    for parameter in signal.parameters:
        last = ranks[parameter.name] = first.get(parameter.module, last)
    return ranks


def _factors(rows: Sequence[ParameterRow], *, after: ParameterRow) -> Iterator[ParameterRow]:
    """Yield the parameters behind one that are multiplied with what comes before: all but biases."""
    return (
        row for row in rows[rows.index(after) + 1 :] if row.used and row.trainable and not row.name.endswith("bias")
    )


DECAYED_GAIN = 1e-3
"""The same figure; no training but a weight decay makes a layer so small."""


def check_decayed_weights(examined: Examined) -> Iterator[Finding]:
    """Weights of a trained network that are next to nothing, though no normalizer undoes their scale.

    A fresh network has biases of zero, or of the size of torch's default: tiny ones are those of a trained one.
    """
    signal = examined.signal
    if signal is None:
        return
    normalized = find_normalized(signal)
    biases = {row.module: row.root_mean_square for row in signal.parameters if row.name.endswith(".bias")}
    trained = not is_fresh(examined.model) or any(0.0 < size < DECAYED_GAIN for size in biases.values())
    ran = {row.path for row in signal.layers if row.kind in WEIGHT_KINDS and trained}
    sizes = {
        row.name: (row.module, row.root_mean_square * math.sqrt(math.prod(row.shape[1:])))
        for row in signal.parameters
        if is_matrix(row) and row.used and row.module in ran and row.module not in normalized and not row.is_zero
    }
    small = [(size, module) for module, size in sizes.values() if size < DECAYED_GAIN]
    if small:
        size, where = min(small)
        yield finding(
            "zero-weights",
            where,
            f"The weights of {listed([f'`{module}`' for _, module in small], most=3)} are next to nothing: those "
            f"of `{where}` multiply values by about {figure(size)}.",
            "What they hand on hardly depends on the input, and the layers before get no gradient.",
            "Lower the weight decay, which most likely took them away, and restore the weights of an earlier "
            "checkpoint or initialise them again.",
            figures(gain=size),
        )


RANK_ONE_SHARE = 0.98
"""The share of squared weights along one direction; a random matrix of four rows has about 0.4."""
FEWEST_ROWS = 6
"""A matrix with fewer rows or columns has next to no rank to lose."""


def check_rank_one(examined: Examined) -> Iterator[Finding]:
    """`rank-one-weights` (warning): one direction carries 98 % of the squared weights of a matrix"""
    for row in parameters_of(examined):
        share = row.leading_share
        if (
            not row.used
            or share is None
            or share < RANK_ONE_SHARE
            or not row.row_deviation
            or least_side(row) < FEWEST_ROWS
        ):
            continue
        yield finding(
            "rank-one-weights",
            row.module or row.name,
            f"`{row.name}`, {' x '.join(map(str, row.shape))}, is nearly of rank one: one direction carries "
            f"{percent(share)} of its squared weights.",
            "The layer hands on one number per input: everything else about the input is lost behind it.",
            "Initialise the weights again at random (torch.nn.init.kaiming_normal_ or orthogonal_); after "
            "training, lower the learning rate or the weight decay that made them collapse.",
            figures(share=share),
        )
