"""What the model is given: inputs at an unusual scale, all alike, the same at every step, or changed in mid-run."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from torch.utils.data import DataLoader

from ...core.finding import Finding, Severity, figure, figures
from ...listening.calls import NORMALIZERS
from ...report.words import pluralise
from ..facts.batch import WidestColumn
from ..facts.examined import Examined
from ..facts.freshness import is_fresh
from ..facts.layers import INPUT, LayerRow
from ..facts.layers_over_data import WeightOverData
from ..monitor.history import History
from ..monitor.quantities.batch import are_same
from ..monitor.series import PLAIN_STEPS
from .batch_statistics import check_stale_statistics
from .check_readings import describe_overflow, sample_facts_of
from .graph_order import WEIGHT_KINDS, rows_of_weights
from .labels import SAME_RECORDS
from .run_readings import CONSECUTIVE_RECORDS
from .symptom import FindingWords, Symptom, finding
from .validation import BY_HEART_SHARE, FAR_SHARE, is_held_out_loss

FINDING_WORDS = {
    "input-scale": FindingWords("an input is at an unusual scale ({where})"),
    "input-columns": FindingWords("one column of the {where} is far larger than the others"),
    "target-in-input": FindingWords("a column of the input gives the target away"),
    "constant-column": FindingWords("a column of the {where} is the same in every sample"),
    "constant-input": FindingWords("the samples of a batch are all the same"),
    "same-batch": FindingWords("every step sees the same batch"),
    "data-changed": FindingWords("the inputs have changed"),
}
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
NOTHING_TO_DO = " If the model was trained on such values there is nothing to do."
BEGIN_AGAIN = " Then begin again from weights of a usual size: a fresh start, or an earlier checkpoint."


def check_input_scale(examined: Examined) -> Iterator[Finding]:
    """`input-scale` (warning, error): a layer reads an input far from the size of 1 that networks are usually trained
    on (bytes from 0 to 255, raw features), or whose mean is 8 deviations or more from zero (50 where the input is
    small); a fresh layer that reads whole numbers (ids, times) as they are (error: where values, the loss or weights
    have overflowed already, as for `input-columns`). It replaces `stale-statistics`, which such an input causes
    """
    for row, reader, read in raw_reads(examined):
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
        stale = next((f.where for f in check_stale_statistics(examined) if f.severity > Severity.INFO), "")
        overflow = describe_overflow(examined)
        yield finding(
            "input-scale",
            stale or (reader if examined.signal is not None and len(examined.signal.inputs) > 1 else row.path),
            f"The {row.path} runs from {figure(row.least)} to {row.greatest:.3g} (mean {row.mean:.3g}, deviation "
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
            "Networks are usually trained on inputs of size 1: pixels in [0, 1] or standardised features. At "
            "another scale a trained network, and the running statistics in it, see values they were not made for, and "
            "a fresh one learns badly.",
            (
                "Divide the pixels by 255 and standardise them"
                if bytes_
                else "Divide the pixels by 255 once, and standardise the input"
                if twice
                else "Standardise the input (subtract its mean, divide by its deviation),"
            )
            + " as in training, before anything else that this report advises."
            + (BEGIN_AGAIN if overflow else "" if stale else NOTHING_TO_DO),
            figures(least=row.least, greatest=row.greatest, mean=row.mean, deviation=row.deviation),
            severity=Severity.ERROR if overflow else Severity.WARNING,
        )
        return


def raw_reads(examined: Examined) -> Iterator[tuple[LayerRow, str, float]]:
    """Yield each input with the first weight layer that reads nothing but inputs, and the size of what that reads."""
    signal = examined.signal
    if signal is None:
        return
    taken: set[int] = set()
    for number, weight in rows_of_weights(signal, examined.data).items():
        inputs = {k for k, row in enumerate(signal.rows) if row.kind == INPUT}
        sources = (
            signal.sources(number) if signal.flow.feeds else frozenset(inputs)
        )  # without a graph nobody knows better
        if all(signal.rows[source].kind == INPUT for source in sources):
            for source in sorted(sources - taken):
                yield signal.rows[source], signal.rows[number].path, weight.rms_input
            taken |= sources


def _statistics_agree(examined: Examined) -> bool:
    """Whether running statistics were taken over data of this scale: then the model was trained on it."""
    taken = any(seen.uses_running and not seen.untaken for _, seen in examined.normalizers())
    return taken and not any(finding.severity > Severity.INFO for finding in check_stale_statistics(examined))


def check_unscaled_numbers(examined: Examined) -> Iterator[Finding]:
    """A fresh layer that reads large numbers which are none of the float inputs: ids, times or years as they are."""
    for path, read, largest_input in reads_of_numbers(examined) if is_fresh(examined.model) else ():
        if LARGE_INPUT < read < math.inf and read > LARGER_THAN_INPUTS_RATIO * max(largest_input, 1.0):
            yield finding(
                "input-scale",
                path,
                f"`{path}` reads values of size {figure(read)} that are no float input of the model.",
                "Whole numbers such as ids, times and years that a layer reads as they are decide what its units "
                "compute, and a fresh network learns badly.",
                "Standardise these numbers before the layer (divide the data by their range), or read ids and "
                "steps of time by an nn.Embedding.",
                figures(size=read),
            )
            return


def reads_of_numbers(examined: Examined) -> Iterator[tuple[str, float, float]]:
    """Yield the weight layers that read inputs alone: the size of what they read, and that of the largest input."""
    signal = examined.signal
    weights = {} if signal is None else rows_of_weights(signal, examined.data)
    for number, row in enumerate(() if signal is None else signal.rows):
        assert signal is not None
        feeds = signal.flow.feeds[number] if number < len(signal.flow.feeds) else ()
        if (
            row.kind not in WEIGHT_KINDS
            or number not in weights
            or not row.varies  # numbers that the model makes itself, such as relative positions
            or any(signal.rows[feed].kind != INPUT for feed in feeds)
        ):
            continue
        read = weights[number].rms_input
        largest_input = max((signal.rows[feed].root_mean_square or 0.0 for feed in feeds), default=1.0)
        yield row.path, read, largest_input


LARGE_COLUMN_RATIO = 300.0
"""The size of the largest column of a table over that of a usual one, from which it outweighs the others."""


def check_one_column(examined: Examined) -> Iterator[Finding]:
    """`input-columns` (warning, error): one column of a table has values 300 times as large as a usual one, and neither
    a BatchNorm of the columns nor the model itself scales it first
    """
    for name, column, normalizer in _raw_columns(examined):
        if column.size >= LARGE_COLUMN_RATIO * column.usual:
            overflow = describe_overflow(examined)
            transpose = " A BatchNorm that is to do it needs the columns on axis 1 (transpose)." if normalizer else ""
            yield COLUMN_LARGE.at(
                normalizer or name,
                {"more": transpose + (BEGIN_AGAIN if overflow else "")},
                seen=f"Column {column.index} of the {name} has values of size {figure(column.size)}, a usual column of "
                f"size {figure(column.usual)}."
                + (f" `{normalizer}` normalizes the columns together, not each by itself." if normalizer else "")
                + overflow,
                column=column.index,
                size=column.size,
                usual=column.usual,
                severity=Severity.ERROR if overflow else Severity.WARNING,
            )


def check_telling_columns(examined: Examined) -> Iterator[Finding]:
    """`target-in-input` (warning): each class has one value of its own in a column of a table, or a column is a
    multiple of the target plus a number
    `constant-column` (info): columns of a table hold one value other than zero in every sample
    """
    batch = None if examined.signal is None else examined.signal.batch
    if batch is None:
        return
    if batch.telling is not None:
        name, column = batch.telling
        yield finding(
            "target-in-input",
            name,
            f"Column {column} of the {name} tells the target of every sample.",
            "The model learns to read the answer, and knows nothing where the answer is not there yet.",
            "Remove this column, unless it will be known in use as well.",
            figures(column=column),
        )
    for name, columns in batch.constant:
        yield finding(
            "constant-column",
            name,
            f"{pluralise(len(columns), 'column')} of the {name} {'has' if len(columns) == 1 else 'have'} the same "
            f"value in every sample, beginning with column {columns[0]}.",
            "It says nothing of a sample; standardised by its deviation, which is zero, it becomes NaN.",
            "Look at how it is read, or remove it, unless it differs in other batches.",
            figures(column=columns[0], columns=len(columns)),
            severity=Severity.INFO,
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
    for number, widest in enumerate(signal.batch.columns):
        if widest is None:
            continue
        table, read = signal.rows[number], rows_of_weights(signal, examined.data)
        readers = [reader for reader, feeds in enumerate(signal.flow.feeds) if number in feeds]
        raw = [signal.rows[k] for k in readers if not _scales_columns(table, signal.rows[k], read.get(k))]
        if raw or not readers:
            yield table.path, widest, next((row.path for row in raw if row.kind in NORMALIZERS), None)


def _scales_columns(table: LayerRow, reader: LayerRow, weight: WeightOverData | None) -> bool:
    """Whether a layer that reads a table reads its columns scaled, or scales each of them itself."""
    if weight is not None:
        size = table.root_mean_square or 0.0
        return not size / SAME_SCALE_RATIO <= weight.rms_input <= size * SAME_SCALE_RATIO
    return reader.kind == "batch_norm" and len(table.shape) == 2


COLUMN_LARGE = Symptom(
    code="input-columns",
    seen="One column of the inputs is {ratio:figure} times as large as the others, and after {steps:,} steps the "
    "outputs are no better than a constant.",
    why="The inputs are not scaled: one large column decides what every unit of the first layer computes, and the "
    "others are as good as absent.",
    advice="Standardise every column of the data (subtract its mean, divide by its deviation); for amounts over "
    "several decades take the logarithm first.{more} Look at the data for a column of times, numbers or amounts.",
)
LARGE_COLUMN_IN_RUN_RATIO = 1000.0
"""The largest column over the median one: standardised columns have 1 to 10, counts beside shares 100. Above that of a
check, for it is measured on single batches."""


def watch_large_column(history: History) -> Iterator[Finding]:
    """`input-columns` (warning): one column of a table of inputs is a thousand times as large as the median one, and
    nothing is learned
    """
    ratios = history.total("input_column").last(2, 2 * PLAIN_STEPS)
    if ratios and min(ratios) >= LARGE_COLUMN_IN_RUN_RATIO and history.is_unlearned:
        yield COLUMN_LARGE.at(words={"steps": history.step, "more": ""}, ratio=min(ratios))


CONSTANT_INPUT = Symptom(
    code="constant-input",
    seen="In {records} measured batches in a row all samples are the same to the last bit (zeros, perhaps).",
    why="From inputs that do not differ nothing can be learned but the frequencies of the targets.",
    advice="Look at how the data are loaded: an index that does not move, a scaling that divides by zero or rounds to "
    "integers, an augmentation that wipes everything out, a path that always gives the same file, a buffer that is not "
    "filled.",
)


def check_constant_input(examined: Examined) -> Iterator[Finding]:
    """`constant-input` (warning): all samples of the batch are the same"""
    facts, signal = sample_facts_of(examined), examined.signal
    if facts is None or signal is None or not facts.identical:
        return
    yield CONSTANT_INPUT.at("input", seen=f"All {pluralise(signal.samples, 'sample')} of the batch are the same.")


def watch_constant_input(history: History) -> Iterator[Finding]:
    """`constant-input` (warning): all samples of three measured batches in a row are the same"""
    spreads = [record.total_of("input_spread") for record in history.repeated(CONSECUTIVE_RECORDS)]
    if spreads and all(spread == 0.0 for spread in spreads):
        yield CONSTANT_INPUT.at(words={"records": len(spreads)}, spread=0.0)


DATA_CHANGED = Symptom(
    code="data-changed",
    seen="The inputs have changed: their size was {before:figure} (root mean square, median of {records} batches) and "
    "is {now:figure} since step {since:,}.",
    why="Later batches are not like earlier ones: what was learned holds for inputs of another scale.",
    advice="Look at the data: a new source, a scaling or augmentation that is missing or applied twice. Scale the "
    "inputs as before.",
)
CHANGED_RATIO = 2.5
"""The factor by which the size of the inputs changes, for two records."""
CHANGED_SPREADS = 6.0
"""The change over the usual spread of the sizes of batches."""
MEAN_CHANGED = replace(
    DATA_CHANGED,
    seen="The inputs have changed: their mean was {before:figure} (median of {records} batches) and is {now:figure} "
    "since step {since:,}, while entries deviate from it by {deviation:figure}.",
    why="Later batches are not like earlier ones: what was learned holds for inputs around another mean.",
    advice="Look at the data: a new source, an offset or an inversion, a mean that is no longer subtracted. Scale the "
    "inputs as before.",
)
MOVED_DEVIATIONS, MOVED_SPREADS = 0.8, 10.0
"""The change of the mean of the inputs over their deviation, and over the usual spread of the means of batches."""


def watch_data_changed(history: History) -> Iterator[Finding]:
    """`data-changed` (warning): the size of the inputs changed by 2.5 or more, or their mean by 0.8 deviations, for two
    records
    """
    sizes = [(r.step, s) for r in history.records[-40:] if (s := r.total_of("input_size")) is not None and s > 0.0]
    if len(sizes) < 4 or history.parameter_state.others or not all(math.isfinite(s) for _, s in sizes):
        return
    before, latest = [math.log(s) for _, s in sizes[:-2]], [math.log(s) for _, s in sizes[-2:]]
    usual = median(before)
    spread = max(median(abs(value - usual) for value in before), 0.02)
    apart = [value - usual for value in latest]
    limit = max(math.log(CHANGED_RATIO), CHANGED_SPREADS * spread)
    words = {"records": len(before), "since": sizes[-2][0]}
    if min(apart) > limit or max(apart) < -limit:
        yield DATA_CHANGED.at(words=words, before=math.exp(usual), now=sizes[-1][1])
        return
    means = [m for r in history.records[-40:] if (m := r.total_of("input_mean")) is not None]
    if len(means) < 5 or not all(map(math.isfinite, means)):
        return
    mean = median(means[:-2])
    deviation = math.sqrt(max(math.exp(2.0 * usual) - mean**2, 0.0))
    spread = max(median(abs(value - mean) for value in means[:-2]), 0.02 * deviation)
    limit = max(MOVED_DEVIATIONS * deviation, MOVED_SPREADS * spread)
    apart = [value - mean for value in means[-2:]]
    if limit > 0.0 and (min(apart) > limit or max(apart) < -limit):
        yield MEAN_CHANGED.at(words=words | {"deviation": deviation}, before=mean, now=means[-1])


SAME_BATCH = Symptom(
    code="same-batch",
    seen="The last {records} measured steps, and the step after each, saw the same {samples:.0f} samples to the last "
    "digit, {others}.",
    why="Every step sees the same batch: these samples are learned by heart, and no others.",
    advice="Look at the loader: next(iter(loader)) inside of the loop begins anew each time, and without shuffling it "
    "returns the same batch.",
)
ALL_THE_DATA = replace(
    SAME_BATCH,
    severity=Severity.INFO,
    seen="The last {records} measured steps, and the step after each, saw the same {samples:.0f} samples to the last "
    "digit.",
    why="Either these are all the data there are, or every step sees the same batch by mistake.",
    advice="If they are all the data, nothing has to be done. Else look at the loader: next(iter(loader)) inside of "
    "the loop begins anew each time, and without shuffling it returns the same batch.",
)
MAX_SAME_SAMPLES = 64
"""Larger batches that repeat are taken for all the data there are (gradient descent on the full batch)."""


def may_repeat_batches(history: History) -> bool:
    """Return whether the last records leave it open that every step sees the same few samples."""
    rows = history.records[-2:]
    marks = [(r.total_of("input_mean") or 0.0, r.total_of("input_size") or 0.0) for r in rows]
    few_differ = all(
        r.total_of("input_spread") != 0.0 and (r.total_of("input_samples") or 0.0) <= MAX_SAME_SAMPLES for r in rows
    )
    return few_differ and all(are_same(marks[-1], others) for others in marks)


def watch_same_batch(history: History) -> Iterator[Finding]:
    """`same-batch` (info, warning): three measured steps, and the step behind each, saw the same samples (64 at most:
    larger batches are taken for all data); a warning where earlier steps saw others, a DataLoader of this batch size
    has more, or a validation is far worse
    """
    records = history.repeated(SAME_RECORDS)
    marks = [(r.total_of("input_mean"), r.total_of("input_size"), r.total_of("input_samples")) for r in records]
    if not records or history.step - records[0].step < PLAIN_STEPS:
        return
    mean, size, samples = marks[-1]
    if samples is None or mean is None or size is None or not 1 < samples <= MAX_SAME_SAMPLES:
        return
    told = [finding.severity for finding in history.findings if finding.code == "same-batch"]
    validated = _worse_validation(history)
    if told and (max(told) > Severity.INFO or not validated):
        return
    if any(r.total_of("input_spread") == 0.0 for r in records):  # all samples are alike: that has an alarm of its own
        return
    if {r.total_of("input_repeats") for r in records} - {None} != {1.0}:  # records may be in step with the epochs
        return
    if all(a is not None and b is not None and are_same((mean, size), (a, b)) for a, b, _ in marks):
        others = validated or _other_samples(history, mean, size, int(samples))
        words = {"records": len(records), "samples": samples, "others": others}
        yield (SAME_BATCH if words["others"] else ALL_THE_DATA).at(words=words)


def _worse_validation(history: History) -> str:
    """Say that a validation is far worse than the loss of training; empty where none is, or it is not known."""
    own, start = history.records[-1].total_of("outputs_own"), history.first_loss
    for name, pairs in history.validations.items():
        value = pairs[-1][1]
        if own is None or start is None or not is_held_out_loss(name) or not value >= FAR_SHARE * start:
            continue
        if own <= BY_HEART_SHARE * min(start, value):
            return f"while `{name}` is {figure(value)} and the loss of training {figure(own)}"
    return ""


def _other_samples(history: History, mean: float, size: float, samples: int) -> str:
    """Say where other samples are that could be trained on; empty where none are seen."""
    for record in history.records:
        then, size_then = record.total_of("input_mean"), record.total_of("input_size")
        if then is None or size_then is None:
            continue
        if not are_same((mean, size), (then, size_then)):
            return f"but others at step {record.step:,}"
    for held in gc.get_objects():
        if issubclass(type(held), DataLoader) and held.batch_size == samples:
            with contextlib.suppress(Exception):  # data sets without a length
                if len(held.dataset) > samples:
                    return f"while a DataLoader of batches of {samples} has a data set of {len(held.dataset):,}"
    return ""
