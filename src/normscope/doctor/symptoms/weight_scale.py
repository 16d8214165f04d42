"""Weights and branches at a scale of their own: layers, tables, recurrences, norms that grow."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from ...core.finding import Finding, figure, figures
from ...listening.calls import NORMALIZERS
from ...report.words import listed
from ..checking.examined import Examined
from ..checking.loss_facts import is_fresh
from ..checking.signal import Signal
from ..monitor.courses import FIRST, LASTING_STEPS
from ..monitor.history import History
from ..monitor.record import Record
from .check_readings import is_matrix
from .graph_order import WEIGHT_KINDS
from .symptom import FindingWords, Symptom, finding

FINDING_WORDS = {
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
    signal = examined.signal
    if signal is None:
        return
    ran = {row.path for row in signal.layers if row.kind in (*WEIGHT_KINDS, *RECURRENT)}
    layers = [
        row
        for row in signal.parameters
        if len(row.shape) > 1 and row.used and row.module in ran
        if is_matrix(row) or math.prod(row.shape) >= FEWEST_WEIGHTS
    ]
    sizes = {row.name: row.root_mean_square * math.sqrt(math.prod(row.shape[1:])) for row in layers}
    if not sizes:
        return
    usual, ends = median(sizes.values()), _last_layers(signal)
    if len(sizes) < 3:
        usual = min(max(min(sizes.values()), LEAST_USUAL), MOST_USUAL) if len(sizes) > 1 else 1.0
    most = STANDS_OUT_RATIO if len(sizes) > 1 else FAR_FROM_ONE_RATIO
    fresh = is_fresh(examined.model)
    normalized = find_normalized(signal)
    for row in layers:
        if not sizes[row.name] or not usual:
            continue
        factor = sizes[row.name] / usual
        harmless = factor < 1.0 and ((fresh and row.module in ends) or row.module in normalized)
        if most > factor > 1.0 / most or harmless:
            continue  # a small last layer is a common start, and a normalizer undoes a small scale
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


def _last_layers(signal: Signal) -> set[str]:
    """Return the modules with no weight layer, recurrence or normalizer behind them."""
    read: set[int] = set()
    for number, feeds in reversed(list(enumerate(signal.feeds))):
        if number in read or signal.rows[number].kind in (*WEIGHT_KINDS, *RECURRENT, *NORMALIZERS):
            read.update(feeds)
    return {row.path for number, row in enumerate(signal.rows) if number not in read}


def find_normalized(signal: Signal) -> set[str]:
    """Return the layers that a normalizer reads, which undoes their scale."""
    return {
        signal.rows[feed].path
        for row, feeds in zip(signal.rows, signal.feeds, strict=False)
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
        for feeds in signal.feeds
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
            figures(root_mean_square=size),
        )


def _large_tables(signal: Signal) -> Iterator[Finding]:
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
            figures(root_mean_square=row.root_mean_square),
        )


DOMINANT_BRANCH_RATIO = 50.0
"""A factor between a branch and what it is added to; fresh transformers stay within 10."""


def check_branch_dominates(examined: Examined) -> Iterator[Finding]:
    """`branch-dominates` (warning): a branch that is fifty times as large as what it is added to, or a sum as many
    times as large as its summands
    """
    signal = examined.signal
    if signal is None:
        return
    for place, seen in examined.normalizers():
        before = [
            feed
            for row, feeds in zip(signal.rows, signal.feeds, strict=False)
            if row.path == place.path
            for feed in feeds
        ]
        size = math.hypot(*(signal.rows[feed].root_mean_square or 0.0 for feed in before))
        if (
            seen.uses_running
            or not size
            or len(set(before)) < 2
            or not seen.log10_median / 2.0 > math.log10(DOMINANT_BRANCH_RATIO * size)
        ):
            continue
        yield _multiplied_branch(signal, place.path, before, 10.0 ** (seen.log10_median / 2.0) / size)
        return
    for number, (row, feeds) in enumerate(zip(signal.rows, signal.feeds, strict=False)):
        summands = math.hypot(*(signal.rows[feed].root_mean_square or 0.0 for feed in feeds))
        mixes = row.kind == "attention" or (row.kind == "relu" and len(feeds) > 1)
        if mixes and (row.root_mean_square or 0.0) > DOMINANT_BRANCH_RATIO * summands > 0.0:
            yield _multiplied_branch(signal, row.path, feeds, (row.root_mean_square or 0.0) / summands)
            return
        normalizer = row.kind in NORMALIZERS
        if not (row.kind[:1].isupper() or normalizer) or len(feeds) < 2:
            continue
        sizes = [(signal.rows[feed].root_mean_square or 0.0, feed) for feed in feeds]
        (small, stream), (large, branch) = min(sizes), max(sizes)
        if not stream < branch < number or not 0.0 < small * DOMINANT_BRANCH_RATIO < large:
            continue
        if not normalizer and not (row.root_mean_square or 0.0) > 0.5 * large:
            continue
        yield finding(
            "branch-dominates",
            row.path,
            f"In `{row.path}` the branch through `{signal.rows[branch].path}` (size {figure(large)}) is "
            f"{figure(large / small)} times as large as what it is added to (`{signal.rows[stream].path}`, "
            f"{figure(small)}).",
            "The sum is the branch: what came before is lost beside it, and the skip connection carries nothing.",
            "Scale the branch: a factor of 1/sqrt(number of blocks) or a learned one that starts small, a "
            "smaller initialisation of its last layer, or a normalizer before it.",
            figures(ratio=large / small),
        )
        return


def _multiplied_branch(signal: Signal, path: str, summands: Sequence[int], factor: float) -> Finding:
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
    for row in signal.parameters:
        layer = rows.get(row.module)
        if layer is None or "weight_hh" not in row.name:
            continue
        gain, most = row.root_mean_square * math.sqrt(row.shape[-1]), MOST_GAIN[layer.kind]
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


def _forgotten_states(signal: Signal) -> Iterator[Finding]:
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


def _steps_of_sequences(signal: Signal, layers: set[str], *, fresh: bool) -> Iterator[Finding]:
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
