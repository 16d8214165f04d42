"""A run as the report a person reads: its pictures by layer, its curves and its tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...report.curves import points_each, thinned
from ...report.document import (
    Block,
    Cell,
    Column,
    Curve,
    Curves,
    Document,
    Figure,
    Figures,
    Mark,
    ReadColumn,
    Table,
    Text,
    part,
    read_from,
)
from ...report.glossary import glossary
from ...report.limits import MAX_CURVES, left_out
from ...report.words import pluralise, sparkline
from ..checking.verdict import verdict
from ..monitor.layer_record import LayerKind, LayerRecord
from ..monitor.quantities.histograms import HISTOGRAM_BINS
from ..monitor.quantities.losses import OF_LOSSES
from ..monitor.run import Run
from ..monitor.watching import Watch
from ..symptoms.validation import LOSS_NAME
from .check import notices, tally


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPicture:
    """A picture with one curve per layer of a kind: its quantity, and how to read it."""

    kind: LayerKind
    quantity: str
    title: str
    axis: str
    caption: str = ""
    rules: tuple[tuple[str, float], ...] = ()
    log10: bool = False
    """Whether the picture shows the logarithm of a quantity that is logged as it is."""
    term: str = ""
    """The term of the papers for what the title says in plain words."""


VARIANCE = LayerPicture(
    kind="normalizer",
    quantity="log10_variance",
    title="How much the input of each normalizer varies",
    term="normalized variance",
    axis="log10 of the variance",
    caption="One curve per layer, coloured from the first to the last: the mean over what is normalized together "
    "(channels, rows, groups), on the batch of the step. Where it grows, the normalizer takes ever more of the layers "
    "in front of it back.",
    rules=(("variance 1", 0.0),),
)
NORM = LayerPicture(
    kind="weight",
    quantity="log10_norm",
    title="How much each weight can stretch what it is given",
    term="operator norm",
    axis="log10 of the norm",
    caption="One curve per layer, coloured from the first to the last: at its real input size, an estimate from "
    "below. Where it may be off by more than 0.02 there is no point.",
    rules=(("norm 1", 0.0),),
)
FOLDED = LayerPicture(
    kind="weight",
    quantity="log10_folded",
    title="The same with the normalizer behind it",
    term="folded gain",
    axis="log10 of the norm",
    caption="The norm of the weight and its normalizer together, with the variance of the batch: rescaling the weight "
    "does not move it.",
)
EFFECTIVE_LR = LayerPicture(
    kind="weight",
    quantity="log10_effective_lr",
    title="How fast weights whose scale has no effect are trained",
    term="effective learning rate",
    axis="log10 of lr over the norm",
    caption="lr/norm² for SGD, lr/norm for optimizers that rescale gradients, with the norm of the weight's invariant "
    "parts: the rate at which the function is really trained.",
)
ROTATION = LayerPicture(
    kind="weight",
    quantity="rotation",
    title="How far one step turns each of these weights",
    axis="log10 of the angle of one step, in radians",
    caption="Of weights whose length says nothing.",
    log10=True,
)
GRADIENT = LayerPicture(
    kind="weight",
    quantity="log10_gradient",
    title="Size of the gradient of each weight",
    axis="log10 of the norm",
    caption="As the optimizer gets it, after clipping.",
)
ACTIVATION = LayerPicture(
    kind="block",
    quantity="log10_activation",
    title="How much the signal grows through each block",
    axis="log10 of the gain",
    rules=(("gain 1", 0.0),),
)
BACKWARD = LayerPicture(
    kind="block",
    quantity="log10_backward",
    title="How much the gradient grows on its way back through each block",
    axis="log10 of the gain",
    rules=(("gain 1", 0.0),),
)
DEAD = LayerPicture(
    kind="units", quantity="dead", title="Share of the units that never fire on the batch", axis="share"
)

PARTS: tuple[tuple[str, str, tuple[LayerPicture, ...]], ...] = (
    ("Normalizers", "normalized variance", (VARIANCE,)),
    ("Weights", "operator norm", (NORM, FOLDED, EFFECTIVE_LR, ROTATION)),
    ("Signal and gradients", "", (ACTIVATION, BACKWARD, GRADIENT, DEAD)),
)
"""The parts of a page with a picture per quantity: heading, term, pictures."""


Points = Sequence[tuple[float, float]]
MAX_LOGGED_PICTURES = 24
"""Up to this many figures that the training loop logged get a picture."""

PRODUCTS = (
    ("log10_printed", "norms of the weights"),
    ("log10_constants", "constants of the normalizers"),
    ("log10_folded", "folded: weights with their normalizers"),
)
READING_THE_STEPS = (
    "The size of one update over that of the weights it changes, of some entries of each parameter. About -3 is usual; "
    "far below that nothing is learned, far above it what was learned is thrown away."
)
READING_THE_HALVES = (
    "The cosine between the gradients of the first two parts of an accumulated batch. With as much noise as signal in "
    "each it is a half, with noise alone about 0; below 0 a step that helps one part harms the other."
)
READING_THE_PRODUCTS = (
    "The product of the operator norms as papers print it, the product of the normalizers' constants on the batch, and "
    "the product with every weight folded into the normalizer behind it. Where the first two move against each other "
    "and the third stays, only the scale of the weights has moved."
)


def run_document(run: Run, *, brief: bool = False) -> Document:
    """Return the report of a run: what went wrong first, then the run as curves, then its layers and settings."""
    blocks = _brief(run) if brief else _full(run)
    return Document(title=f"Run {run.name}", blocks=tuple(blocks))


def watch_document(run: Watch, *, brief: bool = False) -> Document:
    """Return what is known of a run that goes on: its alarms, steps, last loss and overhead."""
    loss = next((record.loss for record in reversed(run.records) if record.loss is not None), None)
    shown = (
        Figure(label="Steps", value=run.step, kind="count", note=describe_measured(run.measured, run.left_out)),
        *([] if loss is None else [Figure(label="Loss", value=loss, kind="number")]),
        Figure(label="Alarms", value=len(run.findings), kind="count", note=tally(run.findings)),
        Figure(label="Overhead", value=run.overhead, kind="percent", note="of the time, for watching"),
    )
    told = verdict(run.findings) if run.findings else f"No alarm was raised in {pluralise(run.step, 'step')}."
    blocks: tuple[Block, ...] = (Text(body=told, lead=True), Figures(items=shown), *notices(run.findings))
    return Document(title="Watched run", blocks=blocks)


def describe_measured(measured: int, left_out: int) -> str:
    """Say how many steps were measured, and of how many due ones where some were left out for lack of time."""
    if not left_out:
        return f"{pluralise(measured, 'step')} measured"
    return f"{measured:,} of {pluralise(measured + left_out, 'due step')} measured"


def _full(run: Run) -> list[Block]:
    first = total_curves(
        loss_courses(run), title="Loss by step", axis="loss", marks=marks(run), logarithmic=True
    ) or product_curves(run)
    shown: list[Block] = [
        Text(heading="Verdict", body=verdict_of(run), lead=True),
        Text(body=" ".join(headline(run))),
        Figures(items=tuple(figures(run))),
        *([] if first is None else [first]),
        *_alarms(run),
        *part(
            "Rates and products",
            step_curves(run),
            agreement_curves(run),
            lr_curves(run),
            product_curves(run),
            *metric_curves(run),
            folded=True,
        ),
        *(
            block
            for heading, term, views in PARTS
            for block in part(heading, *(view_curves(run, view) for view in views), term=term, folded=True)
        ),
        *part("Layers", *layer_tables(run), folded=True),
        *part("Settings", settings_table(run), *_notes(run), folded=True),
    ]
    return [*shown, *glossary(shown)]


def _brief(run: Run) -> list[Block]:
    blocks = [
        Text(body=verdict_of(run), lead=True),
        *(Text(body=sentence) for sentence in headline(run)),
        *_alarms(run),
        _totals(run),
        view_curves(run, VARIANCE),
        view_curves(run, NORM),
        *_notes(run),
    ]
    return [block for block in blocks if block is not None]


def _notes(run: Run) -> list[Text]:
    return [Text(body=f"Note: {note}") for note in run.metadata.get("notes", ())]


def verdict_of(run: Run) -> str:
    """Return the verdict on a run in one sentence."""
    if not run.records:
        return "Nothing has been measured yet."
    return verdict(run.findings) if run.findings else f"No alarm was raised in {pluralise(steps_taken(run), 'step')}."


def headline(run: Run) -> list[str]:
    """Return a few sentences about a run as a whole."""
    metadata = run.metadata
    if not metadata:
        return ["Nothing has been measured yet: the log ends before the first forward."]
    every = metadata.get("every") or {}
    how = ", ".join(f"{tier} every {pluralise(interval, 'step')}" for tier, interval in every.items())
    subject = f"{metadata.get('model', 'A model')} with {pluralise(metadata.get('parameters', 0), 'parameter')}"
    first = f"{subject}, trained by {metadata.get('optimizer', 'an optimizer')}; measured: {how or 'at no interval'}."
    if run.ended is None:
        end = "No end is logged: the run goes on, or it was killed."
    else:
        ended = "It finished" if run.ended.how == "finished" else f"It was {run.ended.how}"
        end = f"{ended} after {pluralise(run.ended.step, 'step')}."
    due = len(run.records) + run.left_out
    less = [f"To keep the overhead low, {len(run.records):,} of {due:,} due steps were measured."] * bool(run.left_out)
    again = [f"It was resumed at step {', '.join(f'{step:,}' for step in run.resumed)}."] if run.resumed else []
    return [first, end, *less, *again]


def figures(run: Run) -> Iterator[Figure]:
    """Yield the headline values of a run: steps, loss, products, alarms, overhead."""
    note = describe_measured(len(run.records), run.left_out)
    yield Figure(label="Steps", value=steps_taken(run), kind="count", note=note)
    loss = run.total("loss")
    if loss:
        first, last, least, _ = ends(loss)
        note = f"first {first:.4g}, least {math.nan if least is None else least:.4g}"
        yield Figure(label="Loss", value=last, kind="number", note=note)
    for name in validation_losses(run)[:1]:
        course = run.total(name)
        best = min(course, key=lambda point: (math.isnan(point[1]), point[1]))
        yield Figure(label=name, value=course[-1][1], kind="number", note=f"best {best[1]:.4g} at step {best[0]:,}")
    if run.records and run.records[-1].lr:
        yield Figure(label="Learning rate", value=run.records[-1].lr[0], kind="number", note="at the last record")
    speed = steps_per_second(run)
    if speed is not None:
        yield Figure(label="Steps a second", value=speed, kind="number", note="over the last records")
    for quantity, label in (("log10_printed", "Product of the norms"), ("log10_folded", "Folded product")):
        course = run.total(quantity)
        if course:
            yield Figure(label=label, value=course[-1][1], kind="log10", note=f"log10, at first {course[0][1]:.2f}")
    yield Figure(label="Alarms", value=len(run.findings), kind="count", note=tally(run.findings))
    if run.ended is not None:
        yield Figure(label="Overhead", value=run.ended.overhead, kind="percent", note="of the time, for watching")


SPEED_RECORDS = 20
"""How many of the last records tell how fast a run is."""


def steps_per_second(run: Run) -> float | None:
    """Return how many steps a run took a second over its last records; None where they do not tell."""
    if len(run.records) < 2:
        return None
    first, last = run.records[-SPEED_RECORDS:][0], run.records[-1]
    steps, seconds = last.step - first.step, last.seconds - first.seconds
    return steps / seconds if steps > 0 and seconds > 0 else None


def steps_taken(run: Run) -> int:
    """Return how many steps a run has taken, as far as it is known."""
    if run.ended is not None:
        return run.ended.step
    return run.records[-1].step + 1 if run.records else 0


def _alarms(run: Run) -> list[Block]:
    if run.findings:
        return [*notices(run.findings)]
    layers = pluralise(len(run.layers), "layer")
    return [Text(body=f"No alarm was raised. Looked at: {layers} at {pluralise(len(run.records), 'step')}.")]


def marks(run: Run) -> tuple[Mark, ...]:
    """Return marks for the alarms, and for the steps at which the run was resumed."""
    raised = [
        Mark(x=finding.step, name=finding.title, level=finding.severity.value)
        for finding in run.findings
        if finding.step is not None
    ]
    return (*raised, *(Mark(x=step, name="resumed", kind="resumed") for step in run.resumed))


def view_curves(run: Run, view: LayerPicture, *, span: tuple[float, float] | None = None) -> Curves | None:
    """Return one quantity as a picture with a curve per layer, or None where it was not measured."""
    course = run.course(view.kind, view.quantity)
    if not course or (view.quantity == "dead" and not any(value for points in course.values() for _, value in points)):
        return None
    layers = run.of(view.kind)
    last = max(len(layers) - 1, 1)
    places = {layer.name: place for place, layer in reversed(list(enumerate(layers)))}  # of two of one name the first
    shown = list(course.items())[:MAX_CURVES]
    curves = tuple(
        curve(name, _log10(points) if view.log10 else points, of=len(shown), depth=places[name] / last)
        for name, points in shown
    )
    return Curves(
        title=view.title,
        term=view.term,
        curves=curves,
        axis=view.axis,
        caption=" ".join(filter(None, (view.caption, left_out(len(course), len(shown), "curve")))),
        marks=marks(run),
        rules=_near(view.rules, curves),
        span=span,
    )


def curve(name: str, points: Points, *, of: int = 1, depth: float | None = None) -> Curve:
    """Return a curve with as many points as its picture has room for."""
    return Curve(name=name, points=thinned(points, points_each(of)), depth=depth)


def loss_courses(run: Run) -> dict[str, Points]:
    """Return the losses of training (mean, least and largest between two records) and those of validation."""
    mean, least, largest = (run.total(f"loss_{name}") for name in ("mean", "least", "largest"))
    courses: dict[str, Points] = {name: run.total(name) for name in validation_losses(run)}
    if not mean or least == largest:
        return {"training loss": run.total("loss"), **courses}
    if courses:  # two curves are compared more easily than four
        return {"training loss, mean": mean, **courses}
    return {"training loss, mean": mean, "least": least, "largest": largest}


def validation_losses(run: Run) -> list[str]:
    """Return the names of the losses that the training loop logged of other data."""
    return [name for name in metric_names(run) if LOSS_NAME.search(name.lower())]


def metric_curves(run: Run) -> list[Block | None]:
    """Return a picture of each of `MAX_LOGGED_PICTURES` figures that the training loop logged beside the loss."""
    names = [name for name in metric_names(run) if name not in validation_losses(run)]  # those are with the loss
    more = left_out(len(names), MAX_LOGGED_PICTURES, "logged figure")
    return [
        *(
            total_curves({name: run.total(name)}, title=name, axis=name, marks=marks(run))
            for name in names[:MAX_LOGGED_PICTURES]
        ),
        Text(body=more) if more else None,
    ]


def metric_names(run: Run) -> list[str]:
    """Return the names of the figures that the training loop logged beside the loss."""
    logged = [record.metrics for record in run.records] + [figures for _, figures in run.metrics]
    return list(
        dict.fromkeys(name for figures in logged for name in figures if name not in {one.name for one in OF_LOSSES})
    )


def lr_curves(run: Run) -> Curves | None:
    """Return the learning rate over the steps, if it was changed."""
    groups = max((len(record.lr) for record in run.records), default=0)
    courses: dict[str, Points] = {
        "lr" if groups == 1 else f"lr of group {index}": [
            (record.step, record.lr[index]) for record in run.records if index < len(record.lr)
        ]
        for index in range(groups)
    }
    if all(len({value for _, value in points}) < 2 for points in courses.values()):
        return None
    return total_curves(courses, title="Learning rate", axis="learning rate", marks=marks(run), logarithmic=True)


def step_curves(run: Run) -> Curves | None:
    """Return how far a step moves the weights, over their size."""
    return total_curves(
        {"one step": run.total("log10_step")},
        title="How far one step moves the weights",
        term="update to weight ratio",
        axis="log10 of the update over the weight",
        caption=READING_THE_STEPS,
        marks=marks(run),
    )


def agreement_curves(run: Run) -> Curves | None:
    """Return how far the gradients of two parts of a batch agree, where the loop accumulates them."""
    return total_curves(
        {"two parts": run.total("halves_agree")},
        title="How far two parts of a batch agree",
        term="gradient noise",
        axis="cosine between their gradients",
        caption=READING_THE_HALVES,
        marks=marks(run),
    )


def product_curves(run: Run) -> Curves | None:
    """Return the products over the network: of the norms, of the normalizers' constants, folded."""
    return total_curves(
        {name: run.total(quantity) for quantity, name in PRODUCTS},
        title="Product of what all layers can do",
        term="printed product",
        axis="log10 of the product",
        caption=READING_THE_PRODUCTS,
        marks=marks(run),
    )


def total_curves(
    courses: dict[str, Points],
    *,
    title: str,
    axis: str,
    caption: str = "",
    term: str = "",
    marks: tuple[Mark, ...] = (),
    logarithmic: bool = False,
) -> Curves | None:
    """Return figures of the whole network as curves, or None where there is none."""
    courses = {name: points for name, points in courses.items() if points}
    if not courses:
        return None
    values = [value for points in courses.values() for _, value in points if math.isfinite(value)]
    if logarithmic and values and min(values) > 0 and max(values) >= 100 * min(values):
        courses, axis = {name: _log10(points) for name, points in courses.items()}, f"log10 of the {axis}"
    curves = tuple(curve(name, points, of=len(courses)) for name, points in courses.items())
    return Curves(title=title, curves=curves, axis=axis, caption=caption, term=term, marks=marks)


def _totals(run: Run) -> Curves | None:
    courses: dict[str, Points] = {"loss": run.total("loss")}
    courses |= {f"log10 of {name}": run.total(quantity) for quantity, name in PRODUCTS}
    courses["log10 of the gradient"] = run.total("log10_gradient")
    return total_curves(courses, title="The whole network", axis="")


def _log10(points: Points) -> list[tuple[float, float]]:
    return [
        (x, math.log10(value) if value > 0 else math.nan if math.isnan(value) else -math.inf) for x, value in points
    ]


def _near(rules: tuple[tuple[str, float], ...], curves: Sequence[Curve]) -> tuple[tuple[str, float], ...]:
    """Return the reference values near the curves; others would compress the curves."""
    values = [value for item in curves for _, value in item.points if math.isfinite(value)]
    if not values:
        return ()
    room = max(0.3 * (max(values) - min(values)), 0.3)
    return tuple((name, value) for name, value in rules if min(values) - room <= value <= max(values) + room)


def settings_table(run: Run) -> Table | None:
    """Return the settings of a run as a table; None where none is known."""
    rows = tuple(settings(run).items())
    return Table(columns=(Column("what", "name"), Column("value")), rows=rows) if rows else None


def settings(run: Run) -> dict[str, str]:
    """Return the settings of a run by name, written out."""
    plain = {key: value for key, value in run.metadata.items() if key not in ("schema_version", "step", "notes")}
    values: dict[str, Any] = {key: value for key, value in plain.items() if not isinstance(value, dict)}
    values |= {f"every ({tier})": interval for tier, interval in (plain.get("every") or {}).items()}
    if run.records and run.records[0].lr:
        values["first lr"] = ", ".join(f"{rate:.4g}" for rate in run.records[0].lr)
    decays = {layer.weight_decay for layer in run.of("weight") if layer.weight_decay is not None}
    if decays:
        values["weight decay"] = ", ".join(f"{value:.4g}" for value in sorted(decays))
    values |= plain.get("provenance") or {}
    return {key: f"{value:,}" if isinstance(value, int) else str(value) for key, value in values.items()}


WEIGHTS: tuple[ReadColumn[str], ...] = (
    ReadColumn(
        "error", "number", "norm_error", "Decades by which the last norm may be off; above 0.02 it is not shown."
    ),
    ReadColumn("age", "count", "norm_age", "Steps since the last norm was measured."),
    ReadColumn("folded", "log10", "log10_folded", "log10 of the norm with the normalizer behind it, last."),
    ReadColumn("error folded", "number", "folded_error", "Decades by which that may be off, likewise."),
    ReadColumn("size", "log10", "log10_size", "log10 of the Frobenius norm, last."),
    ReadColumn("gradient", "log10", "log10_gradient", "log10 of the norm of the gradient, last."),
    ReadColumn("effective lr", "log10", "log10_effective_lr", "log10 of lr/norm² or lr/norm, last."),
    ReadColumn("rotation", "number", "rotation", "Angle of one step in radians, last."),
)
NORMALIZERS: tuple[ReadColumn[str], ...] = (
    ReadColumn("smallest", "log10", "log10_variance_min", "log10 of the smallest variance, last."),
    ReadColumn("largest", "log10", "log10_variance_max", "log10 of the largest variance, last."),
    ReadColumn("constant", "log10", "log10_constant", "log10 of the largest Jacobian norm without scale, last."),
    ReadColumn("gain", "log10", "log10_gain", "log10 of the same with the scale, last."),
    ReadColumn("near eps", "percent", "dominated", "Share of the variances below 10 eps, last."),
    ReadColumn("dead", "percent", "dead", "Share of the scales that let nothing through, last."),
    ReadColumn("to running", "log10", "log10_running", "log10 of batch over running variance, mean, last."),
)
"""The columns with the last value of a quantity of a layer, by the quantity's name."""
COURSE = (
    ("first", "at the first measurement"),
    ("last", "at the last measurement"),
    ("least", "the smallest of the run"),
    ("most", "the largest of the run"),
)


def layer_tables(run: Run) -> list[Table | None]:
    """Return the weights by operator norm, the normalizers by input variance, and the histograms of the full tier."""
    about: tuple[ReadColumn[LayerRecord], ...] = (
        ReadColumn("layer", "name", "name"),
        ReadColumn("kind", "name", "family"),
        ReadColumn("feeds", "name", "normalizer", "The normalizer behind it."),
        ReadColumn("invariant", "name", "invariant", "What can be rescaled without changing the output."),
    )
    weights, variances = "Weights: operator norm (log10)", "Normalizers: input variance (log10)"
    normalizer: tuple[ReadColumn[LayerRecord], ...] = (*about[:2], ReadColumn("eps", "number", "eps"))
    return [
        _table(run, "weight", "log10_norm", weights, about, WEIGHTS),
        _table(run, "normalizer", "log10_variance", variances, normalizer, NORMALIZERS),
        histogram_table(run),
    ]


def _table(
    run: Run,
    kind: LayerKind,
    quantity: str,
    title: str,
    about: Sequence[ReadColumn[LayerRecord]],
    lasts: Sequence[ReadColumn[str]],
) -> Table | None:
    """Return a line per layer of a kind: what it is, the course of one quantity, and the last values of others."""
    layers = run.of(kind)
    if not layers or not run.records:
        return None
    course = run.course(kind, quantity)
    spans = [ends(course.get(layer.name, ())) for layer in layers]
    cells: list[tuple[Column, Sequence[Cell]]] = [
        (Column(column.title, column.kind, column.help), [read_from(layer, column.read) for layer in layers])
        for column in about
    ]
    cells += [
        (Column(name, "log10", f"log10, {meaning}."), values) for (name, meaning), values in zip(COURSE, zip(*spans))
    ]
    cells += [(Column(last.title, last.kind, last.help), run.last(kind, str(last.read))) for last in lasts]
    kept = [(column, values) for column, values in cells if any(value is not None for value in values)]
    return Table(title=title, columns=tuple(column for column, _ in kept), rows=tuple(zip(*(c for _, c in kept))))


def histogram_table(run: Run) -> Table | None:
    """Return histograms of every weight and its gradient, at the first and the last step; None if none was taken."""
    records = [record for record in run.records if record.histograms]
    if not records:
        return None
    layers = run.of("weight")
    columns: list[Column] = [Column("layer", "name")]
    cells: list[Sequence[Cell]] = [[layer.name for layer in layers]]
    for what in ("weight", "gradient"):
        for when, record in (("first", records[0]), ("last", records[-1])):
            rows = record.histograms.get(what) or (None,) * len(layers)
            step = f"at step {record.step:,}"
            columns.append(Column(f"{what}s, {when}", "name", f"Shares in 33 bins, {step}."))
            shares = [None if row is None else [n or 0.0 for n in row[1:]] for row in rows]
            cells.append([None if share is None else sparkline(share, HISTOGRAM_BINS) for share in shares])
            columns.append(Column("size", "number", f"Root mean square of the entries, {step}."))
            cells.append([None if row is None else row[0] for row in rows])
    return Table(
        title="Histograms of weights and gradients",
        columns=tuple(columns),
        rows=tuple(zip(*cells)),
        caption="From -4 to 4 times the root mean square, 0 in the middle; the outermost bins hold what is beyond.",
    )


def ends(course: Points) -> tuple[float | None, float | None, float | None, float | None]:
    """Return the first, the last, the smallest and the largest value of a course; None where nothing was measured."""
    if not course:
        return None, None, None, None
    numbers = [value for _, value in course if not math.isnan(value)]
    return course[0][1], course[-1][1], min(numbers, default=None), max(numbers, default=None)
