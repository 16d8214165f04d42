"""Findings about the size of values: not finite, at an unusual scale, or near the ends of half precision."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from ...calls.call import broken_tensors
from ...core.finding import Finding, Severity, figure, figures, percent
from ...core.untouched import plain_parts
from ...listening.calls import NORMALIZERS
from ...listening.calls import WEIGHTS as WEIGHT_FUNCTIONS
from ...report.words import pluralise
from ..checking.examined import Examined, WeightOverData
from ..checking.loss_facts import is_fresh
from ..checking.signal import BFLOAT16_LARGEST, FLOAT16_LARGEST, FLOAT16_NORMAL, INPUT, SignalRow, WidestColumn
from .depth import WEIGHTS, rows_of_weights
from .normalizers import stale_statistics

RESTORE = (
    "Load the last checkpoint with finite weights and look for the step that broke them: clip gradients "
    "(torch.nn.utils.clip_grad_norm_), lower the learning rate, skip steps whose loss is not finite."
)


def non_finite_weights(examined: Examined) -> Iterator[Finding]:
    """Parameters or buffers that hold NaN, infinite values or negative variances."""
    broken = broken_tensors(examined.model)
    if not broken:
        return
    first, what = next(iter(broken.items()))
    tensor = examined.model.state_dict(keep_vars=True).get(first)
    size, parts = (0, []) if tensor is None else (tensor.numel(), plain_parts(tensor.detach()))
    parts = [part.float() if part.itemsize == 1 else part for part in parts]
    bad = sum(int((~torch.isfinite(part)).sum()) for part in parts)
    nans = sum(int(torch.isnan(part).sum()) for part in parts)
    shown = f" Of its {size:,} values {nans:,} are NaN and {bad - nans:,} infinite." if bad else ""
    others = f" {pluralise(len(broken) - 1, 'other tensor')} of the model are broken too." if len(broken) > 1 else ""
    yield Finding(
        code="non-finite-weights",
        severity=Severity.ERROR,
        where=first,
        seen=f"`{first}` {what}.{shown}{others}",
        why="One such value makes everything computed from it NaN, so the model's output carries nothing.",
        advice=RESTORE,
        numbers=figures(values=bad, nan=nans, size=size, count=len(broken)),
    )


GUARD_FUNCTION = (
    "Guard `{function}` there: add a small eps of 1e-8 inside of a root, logarithm or quotient, or clamp what enters "
    "it (softplus keeps it above zero)."
)
TOO_LARGE = (
    "Standardise the inputs, begin again from weights of a usual size (a fresh start or an earlier checkpoint), and "
    "lower the learning rate; in float16 run this part in float32 or bfloat16."
)
LOOK_INSIDE = (
    "Look inside this module: clamp, or add a small eps of 1e-8, before a logarithm, a root or a division; check the "
    "mask for rows that hide every position; run it in float32 if its values leave the range of float16 (65,504)."
)


def non_finite_activations(examined: Examined) -> Iterator[Finding]:
    """The function, and its module, that makes the first NaN or infinite values."""
    origin = examined.data.not_finite
    if origin is None:
        return
    where = origin.where.partition(".parametrizations")[0]  # what computes a weight belongs to the layer
    prefix, broken = f"{where}." if where else "", broken_tensors(examined.model)
    if any(name.startswith(prefix) and "." not in name.removeprefix(prefix) for name in broken):
        return  # the weights of this very module
    if broken and not origin.function:
        return  # no function made them: they stood in the weights
    spoiled = next((row.path for row in examined.signal.inputs if not row.finite), None) if examined.signal else None
    if spoiled is not None:
        yield Finding(
            code="non-finite-activations",
            severity=Severity.ERROR,
            where=spoiled,
            seen=f"The {spoiled} itself holds NaN or infinite values; {f'`{where}`' if where else 'the model'} is the "
            "first module that returns some.",
            why="What is computed from such a sample is lost: the loss, its gradient and, after a step, all weights.",
            advice="Look at the data: find these samples with torch.isfinite, and drop or fill them; look for missing "
            "values in a table, a division by a deviation of zero, or a logarithm of zero.",
            numbers={},
        )
        return
    grown = origin.function in WEIGHT_FUNCTIONS
    yield Finding(
        code="non-finite-activations",
        severity=Severity.ERROR,
        where=where,
        seen=origin.describe(),
        why="A sum of products left the range of the number format: weights, or the values that they multiply, are far "
        "too large, and everything computed from it is lost."
        if grown
        else "A value overflowed or was divided by zero here, and everything computed from it is lost.",
        advice=TOO_LARGE
        if grown
        else GUARD_FUNCTION.format(function=origin.function)
        if origin.is_guardable
        else LOOK_INSIDE,
        numbers={},
    )


LARGE_INPUT, SMALL_INPUT = 18.0, 0.008
"""Root mean squares: standardised inputs have 1, pixels in [0, 1] half of that, waveforms a tenth; bytes have 100, and
pixels that were divided by 255 twice 0.002."""
OFF_CENTRE_DEVIATIONS, OFF_CENTRE_SIZE = 8.0, 2.0
"""A mean that is this many deviations from zero, in inputs of at least this size: what varies is lost beside it."""
FAR_OFF_CENTRE_DEVIATIONS = 50.0
"""The same in inputs of any size."""
LARGER_THAN_INPUTS_RATIO = 10.0
"""The size of what a layer reads over that of the inputs that reach it, beyond which it must be something else."""
SAME_SCALE_RATIO = 2.0
"""Within this factor the first layer reads the input as it is, and the model does not scale it itself."""
LARGEST_BYTE = 255.0
"""The largest pixel of an image that is stored as bytes."""
LARGE_COLUMN_RATIO = 300.0
"""The size of the largest column of a table over that of a usual one, from which it outweighs the others."""
NEAR_OVERFLOW_RATIO = 4.0
"""Another batch, or a few steps of training, may well bring values this many times as large as those seen."""
FAINT_GRADIENT = 2.0**-21
"""Eight times the smallest float16: a gradient of this size has three digits, in base two."""
SMALL_VALUES_SHARE = 0.5
"""The share of a layer's values below the smallest normal number, beyond which it loses digits: any bell curve has
fewer."""


def input_scale(examined: Examined) -> Iterator[Finding]:
    """An input far from the scale of what networks are usually trained on, and that the model does not scale itself."""
    for row, reader, read in _raw_reads(examined):
        size = row.root_mean_square
        most = OFF_CENTRE_DEVIATIONS if (size or 0.0) > OFF_CENTRE_SIZE else FAR_OFF_CENTRE_DEVIATIONS
        shifted = abs(row.mean or 0.0) > most * (row.deviation or 0.0)
        usual = SMALL_INPUT <= read <= LARGE_INPUT and not shifted
        if usual or not size or not read / SAME_SCALE_RATIO <= size <= read * SAME_SCALE_RATIO or row.deviation == 0.0:
            continue
        if _statistics_agree(examined):
            return
        assert row.least is not None
        assert row.greatest is not None
        bytes_ = row.least >= 0.0 and 1.0 < row.greatest <= LARGEST_BYTE and size > LARGE_INPUT
        twice = row.least >= 0.0 and 0.5 < row.greatest * LARGEST_BYTE <= 1.001 and len(row.shape) > 3
        stale = next((f.where for f in stale_statistics(examined) if f.severity > Severity.INFO), "")
        overflow = describe_overflow(examined)
        yield Finding(
            code="input-scale",
            severity=Severity.ERROR if overflow else Severity.WARNING,
            where=stale or (reader if examined.signal is not None and len(examined.signal.inputs) > 1 else row.path),
            seen=f"The {row.path} runs from {figure(row.least)} to {row.greatest:.3g} (mean {row.mean:.3g}, deviation "
            f"{row.deviation:.3g})"
            + (
                ": these look like bytes."
                if bytes_
                else ": these look like pixels that were divided by 255 twice."
                if twice
                else f", and `{reader}` reads it so."
            )
            + (f" The statistics that `{stale}` keeps are those of other values." if stale else "")
            + overflow,
            why="Networks are usually trained on inputs of size 1: pixels in [0, 1] or standardised features. At "
            "another scale a trained network, and the running statistics in it, see values they were not made for, and "
            "a fresh one learns badly.",
            advice=(
                "Divide the pixels by 255 and standardise them"
                if bytes_
                else "Divide the pixels by 255 once, and standardise the input"
                if twice
                else "Standardise the input (subtract its mean, divide by its deviation),"
            )
            + " as in training, before anything else that this report advises."
            + (BEGIN_AGAIN if overflow else "" if stale else NOTHING_TO_DO),
            numbers=figures(least=row.least, greatest=row.greatest, mean=row.mean, deviation=row.deviation),
        )
        return


def unscaled_numbers(examined: Examined) -> Iterator[Finding]:
    """A fresh layer that reads large numbers which are none of the float inputs: ids, times or years as they are."""
    signal = examined.signal
    if signal is None or not is_fresh(examined.model):
        return
    weights = rows_of_weights(signal, examined.data)
    for number, row in enumerate(signal.rows):
        feeds = signal.feeds[number] if number < len(signal.feeds) else ()
        if row.kind not in WEIGHTS or number not in weights or any(signal.rows[feed].kind != INPUT for feed in feeds):
            continue
        read = weights[number].rms_input
        largest_input = max((signal.rows[feed].root_mean_square or 0.0 for feed in feeds), default=1.0)
        if LARGE_INPUT < read < math.inf and read > LARGER_THAN_INPUTS_RATIO * max(largest_input, 1.0):
            yield Finding(
                code="input-scale",
                severity=Severity.WARNING,
                where=row.path,
                seen=f"`{row.path}` reads values of size {figure(read)} that are no float input of the model.",
                why="Whole numbers such as ids, times and years that a layer reads as they are decide what its units "
                "compute, and a fresh network learns badly.",
                advice="Standardise these numbers before the layer (divide the data by their range), or read ids and "
                "steps of time by an nn.Embedding.",
                numbers=figures(size=read),
            )
            return


def one_column(examined: Examined) -> Iterator[Finding]:
    """A column of a table whose values are far larger than those of the others, and that the model does not scale."""
    for name, column, normalizer in _raw_columns(examined):
        if column.size >= LARGE_COLUMN_RATIO * column.usual:
            overflow = describe_overflow(examined)
            yield Finding(
                code="input-columns",
                severity=Severity.ERROR if overflow else Severity.WARNING,
                where=normalizer or name,
                seen=f"Column {column.index} of the {name} has values of size {figure(column.size)}, a usual column of "
                f"size {figure(column.usual)}."
                + (f" `{normalizer}` normalizes the columns together, not each by itself." if normalizer else "")
                + overflow,
                why="One large column decides what every unit of the first layer computes: the others are as good as "
                "absent, and the learning rate that suits them is far too high for it.",
                advice="Standardise every column of the data (subtract its mean, divide by its deviation); for amounts "
                "over several decades take the logarithm first."
                + (" A BatchNorm that is to do it needs the columns on axis 1 (transpose)." if normalizer else "")
                + (BEGIN_AGAIN if overflow else ""),
                numbers=figures(column=column.index, size=column.size, usual=column.usual),
            )


def _raw_columns(examined: Examined) -> Iterator[tuple[str, WidestColumn, str | None]]:
    """Yield the tables that layers read as they are: name, widest column, and a normalizer that reads it so."""
    signal, weights = examined.signal, examined.data.weights
    if signal is None:  # broken weights, say: the first layer tells whether its table was scaled on the way
        first = next(iter(weights.values()), None)
        for name, column in examined.data.columns.items():
            least = column.size / math.sqrt(first.input_shape[-1]) / SAME_SCALE_RATIO if first else math.inf
            if first is not None and first.rms_input >= least:
                yield name, column, None
        return
    for number, widest in enumerate(signal.columns):
        if widest is None:
            continue
        table, read = signal.rows[number], rows_of_weights(signal, examined.data)
        readers = [reader for reader, feeds in enumerate(signal.feeds) if number in feeds]
        raw = [signal.rows[k] for k in readers if not _scales_columns(table, signal.rows[k], read.get(k))]
        if raw or not readers:
            yield table.path, widest, next((row.path for row in raw if row.kind in NORMALIZERS), None)


NOTHING_TO_DO = " If the model was trained on such values there is nothing to do."
BEGIN_AGAIN = " Then begin again from weights of a usual size: a fresh start, or an earlier checkpoint."
LARGEST_SQUARE = 1.8e19
"""The square of what is beyond it overflows in float32."""


def find_overflow(examined: Examined) -> float | None:
    """Return the size of outputs that are finite and so large that they make the loss no number, if they do."""
    signal = examined.signal
    if signal is None or not signal.layers:
        return None
    facts, losses, size = signal.loss, [signal.loss_value], signal.layers[-1].largest or 0.0
    if facts is not None:
        losses, size = [*losses, facts.value], max(-facts.output_least, facts.output_greatest)
    broken = any(value is not None and not value < math.inf for value in losses)  # not below all numbers
    return size if broken and LARGEST_SQUARE < size < math.inf else None


def describe_overflow(examined: Examined) -> str:
    """Say what has grown beyond all numbers, as an input that is far too large makes it; empty where nothing has."""
    origin, size = examined.data.not_finite, find_overflow(examined)
    if broken_tensors(examined.model):
        return " Weights or buffers of the model are broken already."
    if origin is not None and origin.function in WEIGHT_FUNCTIONS:
        return f" Values overflow in `{origin.where}`."
    return "" if size is None else f" The outputs are as large as {figure(size)}, and the loss is not finite."


def _scales_columns(table: SignalRow, reader: SignalRow, weight: WeightOverData | None) -> bool:
    """Whether a layer that reads a table reads its columns scaled, or scales each of them itself."""
    if weight is not None:
        size = table.root_mean_square or 0.0
        return not size / SAME_SCALE_RATIO <= weight.rms_input <= size * SAME_SCALE_RATIO
    return reader.kind == "batch_norm" and len(table.shape) == 2


def _raw_reads(examined: Examined) -> Iterator[tuple[SignalRow, str, float]]:
    """Yield each input with the first weight layer that reads nothing but inputs, and the size of what that reads."""
    signal = examined.signal
    if signal is None:
        return
    taken: set[int] = set()
    for number, weight in rows_of_weights(signal, examined.data).items():
        inputs = {k for k, row in enumerate(signal.rows) if row.kind == INPUT}
        sources = signal.sources(number) if signal.feeds else frozenset(inputs)  # without a graph nobody knows better
        if all(signal.rows[source].kind == INPUT for source in sources):
            for source in sorted(sources - taken):
                yield signal.rows[source], signal.rows[number].path, weight.rms_input
            taken |= sources


def _statistics_agree(examined: Examined) -> bool:
    """Whether running statistics were taken over data of this scale: then the model was trained on it."""
    taken = any(seen.uses_running and not seen.untaken for _, seen in examined.normalizers())
    return taken and not any(finding.severity > Severity.INFO for finding in stale_statistics(examined))


def half_precision(examined: Examined) -> Iterator[Finding]:
    """Values close to the largest number of half precision, or mostly below its smallest normal one."""
    rows = () if examined.signal is None else [row for row in examined.signal.rows if row.finite]
    if not rows:
        return
    for name, limit in (("float16", FLOAT16_LARGEST), ("bfloat16", BFLOAT16_LARGEST)):
        largest_half = max((row for row in rows if row.dtype == name), key=_size, default=None)
        if largest_half is not None and _size(largest_half) * NEAR_OVERFLOW_RATIO > limit:
            yield _overflow(largest_half, name, limit, Severity.WARNING)
            return
    assert examined.signal is not None
    if examined.signal.rounded is not None:
        where, dtype, share = examined.signal.rounded
        yield Finding(
            code="half-precision",
            severity=Severity.WARNING,
            where=where or "the model",
            seen=f"Values that are rounded to {dtype} in {f'`{where}`' if where else 'the model'} lose "
            f"{percent(share)} of what varies in them: they lie far from zero, where such numbers are coarse.",
            why="What was to be learned from lies in the digits that are cut off.",
            advice="Keep float32 until these values are small: subtract their mean, or take differences, before the "
            "cast.",
            numbers=figures(share=share),
        )
        return
    largest = max(rows, key=_size)
    if _size(largest) * NEAR_OVERFLOW_RATIO > FLOAT16_LARGEST and largest.dtype != "bfloat16":
        yield _overflow(largest, "float16", FLOAT16_LARGEST, Severity.INFO)
        return
    lost = [row for row in rows if row.dtype == "float16" and row.kind in WEIGHTS and row.log10_gradient == -math.inf]
    zeros = any(row.is_zero for row in examined.signal.parameters if len(row.shape) > 1)
    if lost and not zeros and any(row.log10_gradient not in (None, -math.inf) for row in rows):
        yield Finding(
            code="half-precision",
            severity=Severity.WARNING,
            where=lost[-1].path,
            seen=f"In float16 the gradient is exactly zero at `{lost[-1].path}`, though it is not behind it.",
            why="Gradients below 6e-8 become zero in float16: the layers before get none.",
            advice="Scale the loss (torch.amp.GradScaler), or train in bfloat16 or float32.",
            numbers={},
        )
        return
    halves = [row for row in rows if row.dtype == "float16" and row.kind != "softmax"]
    faint = _faint_gradients(examined) if halves and not zeros else None
    if faint is not None:
        last = next((row.path for row in reversed(halves) if row.kind in WEIGHTS), halves[-1].path)
        yield Finding(
            code="half-precision",
            severity=Severity.WARNING,
            where=last,
            seen=f"In float16 the gradients of a typical weight are {figure(faint)}, and the loss is "
            f"{figure(examined.signal.loss_value or 0.0)}.",
            why="Below 6e-8 a number becomes zero in float16, and close to it no digits are left: steps are lost.",
            advice="Scale the loss (torch.amp.GradScaler), or train in bfloat16 or float32.",
            numbers=figures(gradient=faint),
        )
        return
    small = max(halves, key=lambda row: row.below_float16 or 0.0, default=None)
    if small is not None and small.below_float16 is not None and small.below_float16 > SMALL_VALUES_SHARE:
        yield Finding(
            code="half-precision",
            severity=Severity.WARNING,
            where=small.path,
            seen=f"{percent(small.below_float16)} of the values that `{small.path}` ({small.kind}) hands on in float16 "
            f"are below {figure(FLOAT16_NORMAL)}, its smallest normal number.",
            why="Below it digits are lost one by one, and below 6e-8 the value becomes zero.",
            advice="Run this part in float32 or bfloat16, or raise the scale of what comes before it.",
            numbers=figures(share_below=small.below_float16, largest=small.largest),
        )


def _faint_gradients(examined: Examined) -> float | None:
    """Return the size of the gradient of the weights if that of the loss is next to nothing in half precision."""
    signal = examined.signal
    if signal is None or signal.loss_value is None or (signal.loss_value == 0.0 and not is_fresh(examined.model)):
        return None
    trained = [row for row in signal.parameters if row.trainable and row.gradient is not None and len(row.shape) > 1]
    sizes = [(row.gradient or 0.0) / math.sqrt(math.prod(row.shape)) for row in trained]
    return max(sizes) if sizes and max(sizes) < FAINT_GRADIENT else None


def _size(row: SignalRow) -> float:
    return row.largest or 0.0


def _overflow(row: SignalRow, name: str, limit: float, severity: Severity) -> Finding:
    size = _size(row)
    beyond = size > limit
    place = f"The largest value that `{row.path}` ({row.kind}) hands on is {figure(size)}"
    runs = severity is Severity.WARNING
    return Finding(
        code="half-precision",
        severity=severity,
        where=row.path,
        seen=f"{place}, {'beyond' if beyond else 'close to'} the largest {name}, {figure(limit)}.",
        why=f"In {name} larger values are infinite, and everything computed from them is lost."
        + ("" if runs else f" The model runs in {row.dtype}, where this is no problem."),
        advice=f"Run this part in float32{' or bfloat16' if name == 'float16' else ''}, or put a normalizer before it."
        if runs
        else "Do not run this model in float16, also not by autocast: take bfloat16, or keep this part in float32.",
        numbers=figures(largest=size, log10_room=math.log10(limit / size)),
    )
