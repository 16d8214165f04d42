"""Weights that are all alike, zero or of rank one, and weights and branches at a scale of their own."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from torch import nn

from ...core.finding import Finding, Severity, figure, figures, percent
from ...listening.calls import NORMALIZERS
from ...report.words import listed
from ..facts.examined import Examined
from ..facts.freshness import is_fresh
from ..facts.layers import LayerRow
from ..facts.parameters import ParameterRow
from ..facts.pass_facts import PassFacts
from ..monitor.history import History
from ..monitor.record import Record
from ..monitor.series import FIRST, LASTING_STEPS
from .check_readings import LOSS, find_last_linear, is_matrix, least_side, loss_facts_of, parameters_of
from .graph_order import WEIGHT_KINDS
from .symptom import FindingWords, Symptom, finding, others_likewise, place

FINDING_WORDS = {
    "equal-units": FindingWords("the units of {where} are all alike", "the units of {count} layers are alike"),
    "zero-weights": FindingWords("all weights of {where} are zero", "all weights of {count} layers are zero"),
    "zero-rows": FindingWords("rows of the weight of {where} are zero"),
    "copied-rows": FindingWords("rows of the weight of {where} are copies of one another"),
    "blind-attention": FindingWords("the attention of {where} makes no difference between positions"),
    "rank-one-weights": FindingWords(
        "the weights of {where} are of rank one", "the weights of {count} layers are of rank one"
    ),
    "units-alike": FindingWords("the units of {where} are alike", "the units of {count} layers are alike"),
    "recurrent-scale": FindingWords(
        "the recurrent weights of {where} explode or vanish over a sequence",
        "the recurrent weights of {count} layers explode or vanish over a sequence",
    ),
    "layer-scale": FindingWords(
        "the weights of {where} have a scale of their own", "the weights of {count} layers stand out in scale"
    ),
    "branch-dominates": FindingWords("the branch of {where} drowns what it is added to"),
    "norm-growth": FindingWords("the weight of {where} keeps growing", "the weights of {count} layers keep growing"),
}


def check_equal_units(examined: Examined) -> Iterator[Finding]:
    """`equal-units` (warning): all units of a layer have the same weights (not a table of gains that no layer reads as
    weights and that begins at a constant), or the outputs of all classes are the same
    """
    alike = [
        row for row in parameters_of(examined) if is_matrix(row) and row.used and row.row_deviation == 0.0 and row.least
    ]
    rows = () if examined.signal is None else examined.signal.layers
    layers = {row.path for row in rows if row.kind in (*WEIGHT_KINDS, *RECURRENT, "attention", "embedding")}
    for row in alike:
        one = row.least == row.greatest
        if one and row.module not in layers:
            continue
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
    names = history.parameter_state.alike or ()
    if len(names) > 1 and len(history.records) > 1:
        yield UNITS_ALIKE.at(names[0], {"also": others_likewise(len(names), "other layer")})


def check_zero_weights(examined: Examined) -> Iterator[Finding]:
    """`zero-weights` (warning, info): a layer of zeros through which all gradients have to pass (info: a branch or a
    last layer that starts at zero), or whose own gradient is exactly zero, so that it stays so, or that does not
    train, or of which alone another layer reads (error: all layers are zero, or gradients are no numbers behind it);
    weights that have decayed to a gain below 0.001
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
        reader = "" if closed or stuck or frozen else _find_blind_reader(signal, row.module)
        closed = closed or stuck or frozen or bool(reader)
        overflows = bool(reader) and any(other.gradient == math.inf for other in layers)
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
                else f", and {reader} has nothing else to go by."
                if reader
                else ", and no gradient gets past it to the layers before." * closed
            )
            + ("" if closed else "."),
            "What it is given has no influence on the output, and no training changes that."
            if frozen
            else "It is zero because another factor is zero as well: neither of them can open."
            if stuck
            else "What the input is makes no difference there: branches that begin at zero do so in the layer whose "
            "output is added to others."
            if reader
            else "The output does not depend on the input, and the layers before do not learn."
            if closed
            else "This is how residual branches and last layers are often initialised: the branch adds nothing at "
            "first and opens with the first steps.",
            "Initialise it at random: torch.nn.init.kaiming_normal_(weight)"
            + (", and call requires_grad_(True) on it." if frozen else ".")
            if closed
            else "Nothing to do for a fresh model. After training it means that the layer got no gradient.",
            severity=Severity.ERROR if nothing_learns or overflows else Severity.WARNING if closed else Severity.INFO,
        )


def _find_blind_reader(signal: PassFacts, path: str) -> str:
    """Name the layer that reads nothing of the input but what a layer of zeros hands on; empty where there is none.

    An attention may read other values too: it is blind if all of its weights are equal. What is added to values that do
    depend on the input is a branch that begins at zero, also if it is multiplied by a gate of its own before.
    """
    zeros = {number for number, row in enumerate(signal.rows) if row.path == path and row.kind in WEIGHT_KINDS}
    behind, reader = set(zeros), ""
    for number, (row, feeds) in enumerate(zip(signal.rows, signal.flow.feeds, strict=False)):
        if number in behind or behind.isdisjoint(feeds):
            continue
        if row.blind_heads:
            return place(row.path)
        if not behind.issuperset(feeds):
            if not zeros.isdisjoint(feeds):
                return ""
            continue
        behind.add(number)
        if row.kind in (*WEIGHT_KINDS, *RECURRENT, "attention"):
            reader = reader or place(row.path)
        elif not zeros.isdisjoint(feeds):
            zeros.add(number)
    return reader


def _ranks(signal: PassFacts) -> dict[str, int]:
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


def check_lines(examined: Examined) -> Iterator[Finding]:
    """`zero-rows` (warning): rows or columns of a fresh matrix are exactly zero while no other entries are (one row of
    a table of tokens may be that of the padding)
    `copied-rows` (warning): rows or columns of a fresh matrix are copies of one another, as those of tied heads
    (not kernels of a model that shuffles channels into pixels, which may begin so)
    """
    if not is_fresh(examined.model):
        return
    used = [row for row in parameters_of(examined) if row.used and len(row.shape) > 1]
    rows = [row for row in used if not row.is_zero and row.row_deviation != 0.0]
    zeros = [row for row in rows if row.zero_lines * row.shape[0] > (1.5 if _is_table(examined, row) else 0.0)]
    if zeros:
        yield finding(
            "zero-rows",
            zeros[0].module or zeros[0].name,
            f"{percent(zeros[0].zero_lines)} of the rows (or columns) of `{zeros[0].name}` are exactly zero, and no "
            f"other entries are.{others_likewise(len(zeros), 'other weight')}",
            "What they stand for (units, heads, experts, tokens or positions) is missing from the network: no "
            "initialisation draws zeros.",
            "Look at what writes to this weight after it was made. Units that are to be left out are made smaller, not "
            "zero.",
            figures(share=zeros[0].zero_lines),
        )
    shuffles = any(isinstance(module, nn.PixelShuffle) for module in examined.model.modules())  # began as copies: ICNR
    copies = [row for row in rows if row.copied_lines and not (shuffles and len(row.shape) == 4)]
    if copies:
        yield finding(
            "copied-rows",
            copies[0].module or copies[0].name,
            f"{percent(copies[0].copied_lines)} of the rows (or columns) of `{copies[0].name}` are copies of others."
            f"{others_likewise(len(copies), 'other weight')}",
            "Units or heads with the same weights on both sides get the same gradient and stay copies; positions or "
            "tokens with the same row cannot be told apart.",
            "Draw every row by itself: look for expand, repeat or an index that is the same for several of them.",
            figures(share=copies[0].copied_lines),
        )


def _is_table(examined: Examined, row: ParameterRow) -> bool:
    """Whether a parameter is a table of tokens, or the last layer that is made from one: it has its shape."""
    tables = [module for module in examined.model.modules() if "padding_idx" in vars(module)]
    return any(tuple(weight.shape) == row.shape for table in tables for weight in table.parameters(recurse=False))


def check_blind_attention(examined: Examined) -> Iterator[Finding]:
    """`blind-attention` (warning): heads of attention in which it makes no difference who looks at whom: all weights
    are exactly equal, or the values at all positions are
    """
    blind = [row for row in (() if examined.signal is None else examined.signal.layers) if row.blind_heads]
    if blind:
        yield finding(
            "blind-attention",
            blind[0].path,
            f"In {percent(blind[0].blind_heads or 0.0)} of the heads of `{blind[0].path}` it makes no difference who "
            "looks at whom: all positions get exactly the same weight, or hold the same value."
            f"{others_likewise(len(blind), 'other layer')}",
            "The attention is a plain mean, or adds a constant: queries and keys get no gradient.",
            "Look at the projections of queries, keys and values: weights of zero, inputs that are the same "
            "everywhere, or one of them in place of another.",
            figures(share=blind[0].blind_heads),
        )


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
    for row, share in leading_shares(examined):
        if share < RANK_ONE_SHARE:
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


def leading_shares(examined: Examined) -> Iterator[tuple[ParameterRow, float]]:
    """Yield the matrices that have a rank to lose, and the share of their squared weights along one direction."""
    for row in parameters_of(examined):
        if row.used and row.leading_share is not None and row.row_deviation and least_side(row) >= FEWEST_ROWS:
            yield row, row.leading_share


STANDS_OUT_RATIO = 18.0
"""A factor between the scale of one layer and that of the others; trained networks stay within 10."""
FAR_FROM_ONE_RATIO = 30.0
"""The same for a layer that is alone, whose scale nobody can compare."""
LEAST_USUAL, MOST_USUAL = 0.3, 1.5
"""Root mean square times root of the width: torch's default gives 0.58, He's initialisation 1.4."""
FEWEST_WEIGHTS = 16
"""Of one unit: the size of fewer says little."""
RECURRENT = ("lstm", "gru", "rnn")


def check_scale_stands_out(examined: Examined) -> Iterator[Finding]:
    """`layer-scale` (warning): the weights of one layer are thirty times as large, or as small, as those of the others,
    for their width; or a table of positions or tokens has entries of 30 and more
    """
    factors = scale_factors(examined)
    most = STANDS_OUT_RATIO if len(factors) > 1 else FAR_FROM_ONE_RATIO
    for row, factor, undone in factors:
        if most > factor > 1.0 / most or not factor or undone:
            continue
        yield finding(
            "layer-scale",
            row.module or row.name,
            f"The weights of `{row.name}` are {figure(factor)} times as large as those of the other layers, for "
            f"their width (root mean square {figure(row.root_mean_square)}).",
            "One layer at another scale makes all values and gradients behind and before it too large or too small "
            "for the learning rate of the others.",
            "Initialise this layer as the others, torch.nn.init.kaiming_normal_(weight), or find what scaled "
            "it: a factor in its initialisation, a wrong fan, a unit of measurement.",
            figures(factor=factor, root_mean_square=row.root_mean_square),
        )


def scale_factors(examined: Examined) -> list[tuple[ParameterRow, float, bool]]:
    """Return the scale of each layer for its width over that of the others, and whether a small one does no harm.

    A small last layer is a common start, and a normalizer undoes a small scale.
    """
    signal = examined.signal
    if signal is None:
        return []
    ran = {row.path for row in signal.layers if row.kind in (*WEIGHT_KINDS, *RECURRENT)}
    layers = [
        row
        for row in signal.parameters
        if len(row.shape) > 1 and row.used and row.module in ran
        if is_matrix(row) or math.prod(row.shape) >= FEWEST_WEIGHTS
    ]
    sizes = {row.name: row.root_mean_square * math.sqrt(math.prod(row.shape[1:])) for row in layers}
    if not sizes:
        return []
    usual, ends = median(sizes.values()), _last_layers(signal)
    if len(sizes) < 3:
        usual = min(max(min(sizes.values()), LEAST_USUAL), MOST_USUAL) if len(sizes) > 1 else 1.0
    fresh, normalized = is_fresh(examined.model), find_normalized(signal)
    factors = [(row, sizes[row.name] / usual if usual else 0.0) for row in layers]
    return [
        (row, factor, factor < 1.0 and ((fresh and row.module in ends) or row.module in normalized))
        for row, factor in factors
    ]


def _last_layers(signal: PassFacts) -> set[str]:
    """Return the modules with no weight layer, recurrence or normalizer behind them."""
    read: set[int] = set()
    for number, feeds in reversed(list(enumerate(signal.flow.feeds))):
        if number in read or signal.rows[number].kind in (*WEIGHT_KINDS, *RECURRENT, *NORMALIZERS):
            read.update(feeds)
    return {row.path for number, row in enumerate(signal.rows) if number not in read}


def find_normalized(signal: PassFacts) -> set[str]:
    """Return the layers that a normalizer reads, which undoes their scale."""
    return {
        signal.rows[feed].path
        for row, feeds in zip(signal.rows, signal.flow.feeds, strict=False)
        for feed in feeds
        if row.kind in NORMALIZERS
    }


LARGE_EMBEDDING_SIZE = 30.0
"""Root mean square: torch starts at 1, transformers at 0.02."""


def check_embedding_scale(examined: Examined) -> Iterator[Finding]:
    """Embeddings far larger than networks start with, or than another embedding that they are added to."""
    signal = examined.signal
    if signal is None:
        return
    yield from _large_tables(signal)
    sizes = {number: row.root_mean_square for number, row in enumerate(signal.rows) if row.kind == "embedding"}
    pairs = [
        (large, small)
        for feeds in signal.flow.feeds
        for large in feeds
        for small in feeds
        if (sizes.get(large) or 0.0) > STANDS_OUT_RATIO * (sizes.get(small) or math.inf)
    ]
    for number, size in sizes.items():
        beside = next((signal.rows[small].path for large, small in pairs if large == number), None)
        if beside is None and not (size or 0.0) > LARGE_EMBEDDING_SIZE:
            continue
        where = signal.rows[number].path
        yield finding(
            "layer-scale",
            where,
            f"The vectors of the embedding `{where}` have entries of size {figure(size or 0.0)}"
            + (f", far beyond those of `{beside}`, which they are added to." if beside else "."),
            "What is so much larger than the rest decides everything behind it: attention looks at one place, "
            "normalizers leave nothing of the other summand, and gradients to it are tiny.",
            "Initialise this embedding as the others, torch.nn.init.normal_(weight, std=0.02), or rescale it: "
            "divide its weights by this size.",
            figures(entry_size=size),
        )


def _large_tables(signal: PassFacts) -> Iterator[Finding]:
    """Parameters that are added or looked up as they are, such as positions and tokens, and that are far too large."""
    layers = {row.path for row in signal.layers if row.kind in (*WEIGHT_KINDS, *RECURRENT, "attention", "embedding")}
    for row in signal.parameters:
        large = (
            row.root_mean_square > LARGE_EMBEDDING_SIZE
            and len(row.shape) > 1
            and math.prod(row.shape) >= FEWEST_WEIGHTS
        )
        if not large or not row.used or row.module in layers:
            continue
        yield finding(
            "layer-scale",
            row.name,
            f"The values of `{row.name}` have a size of {figure(row.root_mean_square)}.",
            "What is so much larger than the rest decides everything behind it, and gradients to it are tiny.",
            "Initialise it, torch.nn.init.normal_(weight, std=0.02): torch.empty holds what lay in memory; or "
            "rescale it: divide it by this size.",
            figures(entry_size=row.root_mean_square),
        )


DOMINANT_BRANCH_RATIO = 50.0
"""A factor between a branch and what it is added to; fresh transformers stay within 10."""


def check_branch_dominates(examined: Examined) -> Iterator[Finding]:
    """`branch-dominates` (warning): a branch that is fifty times as large as what it is added to, or a sum as many
    times as large as its summands
    """
    for ratio, describe in branch_ratios(examined):
        if ratio > DOMINANT_BRANCH_RATIO:
            yield describe()
            return


def branch_ratios(examined: Examined) -> Iterator[tuple[float, Callable[[], Finding]]]:
    """Yield how large a branch is beside what it is added to, or a sum beside its summands, and the finding of it."""
    signal = examined.signal
    if signal is None:
        return
    for owner, seen in examined.normalizers():
        before = [
            feed
            for row, feeds in zip(signal.rows, signal.flow.feeds, strict=False)
            if row.path == owner.path
            for feed in feeds
        ]
        size = math.hypot(*(signal.rows[feed].root_mean_square or 0.0 for feed in before))
        if not seen.uses_running and size and len(set(before)) > 1:
            ratio = 10.0 ** (seen.log10_median / 2.0) / size
            yield ratio, partial(_multiplied_branch, signal, owner.path, before, ratio)
    for number, (row, feeds) in enumerate(zip(signal.rows, signal.flow.feeds, strict=False)):
        summands = math.hypot(*(signal.rows[feed].root_mean_square or 0.0 for feed in feeds))
        mixes = row.kind == "attention" or (row.kind == "relu" and len(feeds) > 1)
        if mixes and summands > 0.0:
            ratio = (row.root_mean_square or 0.0) / summands
            yield ratio, partial(_multiplied_branch, signal, row.path, feeds, ratio)
        normalizer = row.kind in NORMALIZERS
        if not (row.kind[:1].isupper() or normalizer) or len(feeds) < 2:
            continue
        sizes = [(signal.rows[feed].root_mean_square or 0.0, feed) for feed in feeds]
        (small, stream), (large, branch) = min(sizes), max(sizes)
        whole = normalizer or (row.root_mean_square or 0.0) > 0.5 * large
        if stream < branch < number and small > 0.0 and whole:
            yield large / small, partial(_large_branch, row, signal.rows[branch], signal.rows[stream])


def _large_branch(row: LayerRow, branch: LayerRow, stream: LayerRow) -> Finding:
    """A branch that is far larger than what it is added to."""
    large, small = branch.root_mean_square or 0.0, stream.root_mean_square or 0.0
    return finding(
        "branch-dominates",
        row.path,
        f"In `{row.path}` the branch through `{branch.path}` (size {figure(large)}) is "
        f"{figure(large / small)} times as large as what it is added to (`{stream.path}`, "
        f"{figure(small)}).",
        "The sum is the branch: what came before is lost beside it, and the skip connection carries nothing.",
        "Scale the branch: a factor of 1/sqrt(number of blocks) or a learned one that starts small, a "
        "smaller initialisation of its last layer, or a normalizer before it.",
        figures(ratio=large / small),
    )


def _multiplied_branch(signal: PassFacts, path: str, summands: Sequence[int], factor: float) -> Finding:
    """A sum that is far larger than what is added up, so that a factor multiplies one of the summands."""
    rows = [signal.rows[number] for number in summands]
    embedding = rows[0].path if all(row.kind == "embedding" for row in rows) else None
    return finding(
        "branch-dominates",
        embedding or path or rows[-1].path,
        f"What {f'`{path}`' if path else 'the model'} reads is {figure(factor)} times as large as what the layers "
        f"before it hand on ({listed([f'`{row.path}`' for row in rows], most=3)}): a factor multiplies it on the way.",
        "A branch that is multiplied so drowns what it is added to, and the skip connection carries nothing.",
        "Take out the factor, or scale the branch by 1/sqrt(number of blocks) instead.",
        figures(ratio=factor),
    )


MOST_GAIN = {"lstm": 4.0, "gru": 4.0, "rnn": 2.0}
LEAST_GAIN = 0.05
"""Root mean square times root of the width: torch's default gives 0.58, an orthogonal matrix 1; gates allow more."""
LEAST_STEP_FACTOR = 0.2
"""Of the gradient from a step to the one before: gates at their start keep half."""
MOST_GROWTH = 1e4
"""Of the state of ReLUs over a whole sequence."""


def check_recurrent_scale(examined: Examined) -> Iterator[Finding]:
    """`recurrent-scale` (warning): recurrent weights that multiply the state by more than 2 (gated layers: 4; ReLUs: by
    10,000 over the sequence), or by less than 0.05, at every step; a loop over a sequence in which a step multiplies
    the gradient by less than 0.2, or all steps by 10,000; a layer that begins each of its steps with a state of zero
    """
    signal = examined.signal
    if signal is None:
        return
    rows = {row.path: row for row in signal.layers if row.kind in RECURRENT}
    yield from _forgotten_states(signal)
    yield from _steps_of_sequences(signal, set(rows), fresh=is_fresh(examined.model))
    for row, gain in recurrent_gains(signal):
        layer = rows[row.module]
        most = MOST_GAIN[layer.kind]
        module = examined.model.get_submodule(row.module)
        if getattr(module, "mode", "") == "RNN_RELU":  # nothing limits its values
            most = MOST_GROWTH ** (1.0 / layer.shape[-2 if getattr(module, "batch_first", False) else 0])
        if LEAST_GAIN <= gain <= most:
            continue
        grows = gain > 1.0
        yield finding(
            "recurrent-scale",
            row.module,
            f"The recurrent weights `{row.name}` multiply the state by about {figure(gain)} at every step.",
            "Over a sequence that is a power: values and gradients explode, or saturate the units."
            if grows
            else "Over a sequence that is a power: the state forgets within a step or two, and gradients vanish.",
            "Initialise the recurrent weights orthogonally, torch.nn.init.orthogonal_(weight_hh), "
            + ("clip gradients, and use LSTM or GRU for long sequences." if grows else "with gain 1."),
            figures(gain=gain),
        )


def recurrent_gains(signal: PassFacts) -> Iterator[tuple[ParameterRow, float]]:
    """Yield recurrent weights of layers that ran, and by how much they multiply the state at every step."""
    ran = {row.path for row in signal.layers if row.kind in RECURRENT}
    for row in signal.parameters:
        if row.module in ran and "weight_hh" in row.name:
            yield row, row.root_mean_square * math.sqrt(row.shape[-1])


def _forgotten_states(signal: PassFacts) -> Iterator[Finding]:
    """Recurrent weights without a gradient in a layer that runs several times: each time from a state of zero."""
    runs = Counter(row.path for row in signal.layers)
    learning = {row.module for row in signal.parameters if "weight_ih" in row.name and row.gradient}
    for row in signal.parameters:
        if "weight_hh" in row.name and row.gradient == 0.0 and row.module in learning and runs[row.module] > 1:
            yield finding(
                "recurrent-scale",
                row.module,
                f"`{row.module}` runs {runs[row.module]:,} times, and the gradient of its recurrent weights "
                f"`{row.name}` is exactly zero.",
                "Each of its steps begins with a state of zero: nothing is remembered, and these weights never learn.",
                f"Pass the state on from step to step: state = {row.module}(x, state).",
                figures(runs=runs[row.module]),
            )


def _steps_of_sequences(signal: PassFacts, layers: set[str], *, fresh: bool) -> Iterator[Finding]:
    """Loops over the steps of a sequence through which gradients grow or fade, as the gradients of the steps show."""
    for row in signal.rows:
        name, factor = row.recurrence or ("", 1.0)
        steps = row.shape[1] if len(row.shape) > 1 else 0
        grows = factor > 1.0
        if name in layers and (grows or not fresh):
            continue  # their weights tell, and a trained layer may have learned to forget
        if not (factor < LEAST_STEP_FACTOR or steps * math.log(factor) > math.log(MOST_GROWTH)):
            continue
        yield finding(
            "recurrent-scale",
            name,
            f"At each step that it goes back through the {steps:,} steps of `{row.path}`, the gradient is "
            f"multiplied by about {figure(factor)}; `{name}` is used at each of them.",
            "Over a sequence that is a power: values and gradients explode, or saturate the units."
            if grows
            else "Over a sequence that is a power: the state forgets within a step or two, and gradients vanish.",
            "Initialise what multiplies the state so that a step keeps its size (a spectral radius of 1, a "
            "decay of 0.9 to 0.999; the bias of an LSTM's forget gate at 1), "
            + ("clip gradients, or use LSTM or GRU." if grows else "or use LSTM or GRU."),
            figures(gain=factor),
        )


INVARIANT_NORM_GROWTH = Symptom(
    code="norm-growth",
    seen="The operator norm of {where} grew {log10_growth:power} times to {log10_norm:power}{lately}",
    why="{normalizer} undoes the scale of these weights, so the output does not change, but each step turns them less: "
    "training comes to a halt.",
    advice="Use weight decay on this weight (with AdamW or SGD), or lower the learning rate.",
)
NORM_GROWTH = replace(
    INVARIANT_NORM_GROWTH,
    why="Norms multiply over layers: activations, gradients and the Lipschitz constant grow exponentially with it "
    "until they overflow.",
    advice="Lower the learning rate, use weight decay, clip gradients (torch.nn.utils.clip_grad_norm_), or put a "
    "normalizer behind this layer.",
)
LATELY = ", and as fast lately as before."
GROWN_DECADES = 1.5
"""Decades of a weight's operator norm since the start.

Unnormalized networks that leave a plateau grow by one within a hundred steps and then level off; others by 0.6.
"""
LARGE_LOG10 = 1.5
"""log10 of an operator norm: below thirty a layer that began at zero, or small, is still finding its size."""
GROWN_ANYHOW_DECADES, HUGE_LOG10 = 2.0, 3.0
"""The same for growth of any shape: a layer that expands a thousandfold has grown too much, whatever it does next."""
STEADY_RATIO = 0.8
"""Growth in the last third of the run over that of the middle third.

Exponential growth has 1; norms that grow with the step have log(3/2)/log(2) = 0.58, and random walks the same.
"""
THIRD_RECORDS = 4
"""Records in each third, so that its growth is more than noise."""


def watch_norm_growth(history: History) -> Iterator[Finding]:
    """`norm-growth` (warning): the operator norm of a weight grew thirtyfold and grows on exponentially, or a
    hundredfold beyond 1,000
    """
    records = history.records
    if len(records) < 3 * THIRD_RECORDS or records[-1].step - records[0].step < 3 * LASTING_STEPS:
        return
    marks = _mark_thirds(records)
    marked = [[record.of("weight", "log10_norm") for record in part] for part in marks]
    for index, layer in enumerate(history.of("weight")):
        numbers = [
            [v for column in part if index < len(column) and (v := column[index]) is not None] for part in marked
        ]
        growth = _measure_growth(numbers) if max(numbers[-1], default=-math.inf) >= LARGE_LOG10 else None
        if growth is None:
            continue
        rise, now, steady = growth
        limits = (GROWN_DECADES, LARGE_LOG10) if steady else (GROWN_ANYHOW_DECADES, HUGE_LOG10)
        if rise < limits[0] or now < limits[1]:
            continue
        yield (NORM_GROWTH if layer.invariant is None else INVARIANT_NORM_GROWTH).at(
            layer.name,
            {"lately": LATELY if steady else ".", "normalizer": layer.normalizer},
            log10_growth=rise,
            log10_norm=now,
            weight_decay=layer.weight_decay,
        )


def _mark_thirds(records: Sequence[Record]) -> tuple[Sequence[Record], ...]:
    """Return a few records at the start, after one and two thirds of the steps, and at the end."""
    half = FIRST // 2
    start, end = records[half].step, records[-1 - half].step  # each part is as far from the next
    low, high = (bisect_left(records, start + (end - start) * third / 3, key=lambda r: r.step) for third in (1, 2))
    return tuple(records[at - half : at + half + 1] for at in (half, low, high, len(records) - 1 - half))


def _measure_growth(figures: Sequence[Sequence[float]]) -> tuple[float, float, bool] | None:
    """Return the growth since the start, the value now, and whether the last third grew as much as the middle one."""
    numbers = [[value for value in part if math.isfinite(value)] for part in figures]
    if not all(numbers):
        return None
    start, low, high, end = map(median, numbers)
    middle, last = high - low, end - high
    return end - start, end, middle > 0.0 and last >= STEADY_RATIO * middle
