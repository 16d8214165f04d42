"""`run_document`: a training run as the report a person reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..core.finding import Finding
from ..diagnosis.verdict import verdict
from ..monitor.observed import OF_LOSSES
from ..monitor.run import Run
from ..report.curves import points_each, thinned
from ..report.document import Block, Cell, Column, Curve, Curves, Document, Figure, Figures, Mark, Notice, Table, Text
from ..report.glossary import glossary
from ..report.limits import MAX_CURVES, left_out
from ..report.words import counted
from .audit import part
from .audit_words import tally
from .cards import next_steps, notices, steps
from .run_tables import layer_tables
from .run_views import NORM, PARTS, VARIANCE, LayerPicture

Points = Sequence[tuple[float, float]]
MOST = 24
"""Up to this many figures that the training loop logged get a picture."""

PRODUCTS = (
    ("log10_printed", "norms of the weights"),
    ("log10_constants", "constants of the normalizers"),
    ("log10_folded", "folded: weights with their normalizers"),
)
READING_THE_PRODUCTS = (
    "The product of the operator norms as papers print it, the product of the normalizers' constants on the batch, and "
    "the product with every weight folded into the normalizer behind it. Where the first two move against each other "
    "and the third stays, only the scale of the weights has moved."
)


def run_document(run: Run, *, brief: bool = False) -> Document:
    """Return the report of a run: what went wrong first, then the run as curves, then its layers and settings.

    Args:
        run: the run that `normscope.Run` read.
        brief: whether to make the short form for a terminal: the headline, the alarms, and the courses of
            the totals, the variances and the norms.

    Returns:
        Plain blocks. A part for which nothing was measured is left out.
    """
    blocks = _brief(run) if brief else _full(run)
    return Document(title=f"Run {run.name}", blocks=tuple(blocks))


def _full(run: Run) -> list[Block]:
    about, *state = headline(run)
    first = [loss_curves(run) or product_curves(run)]
    shown: list[Block] = [
        Text(heading="Verdict", body=verdict_of(run), lead=True),
        Text(body=" ".join((about, *state))),
        Figures(items=tuple(figures(run))),
        *(block for block in first if block is not None),
        *_alarms(run),
        *steps(next_steps(run.findings)),
        *part("Rates and products", lr_curves(run), product_curves(run), *metric_curves(run), folded=True),
        *(
            block
            for heading, term, views in PARTS
            for block in part(heading, *(view_curves(run, view) for view in views), term=term, folded=True)
        ),
        *part("Layers", *layer_tables(run), folded=True),
        *part(
            "Settings",
            settings_table(run),
            *(Text(body=f"Note: {note}") for note in run.metadata.get("notes", ())),
            folded=True,
        ),
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
        *(Text(body=f"Note: {note}") for note in run.metadata.get("notes", ())),
    ]
    return [block for block in blocks if block is not None]


def verdict_of(run: Run) -> str:
    """Return the verdict on a run in one sentence."""
    if not run.records:
        return "Nothing has been measured yet."
    return verdict(run.findings) if run.findings else f"No alarm was raised in {counted(steps_taken(run), 'step')}."


def headline(run: Run) -> list[str]:
    """Return a few sentences about a run as a whole."""
    known = run.metadata
    if not known:
        return ["Nothing has been measured yet: the log ends before the first forward."]
    every = known.get("every") or {}
    how = ", ".join(f"{tier} every {counted(interval, 'step')}" for tier, interval in every.items())
    subject = f"{known.get('model', 'A model')} with {counted(known.get('parameters', 0), 'parameter')}"
    first = f"{subject}, trained by {known.get('optimizer', 'an optimizer')}; measured: {how or 'at no interval'}."
    if run.ended is None:
        end = "No end is logged: the run goes on, or it was killed."
    else:
        ended = "It finished" if run.ended.how == "finished" else f"It was {run.ended.how}"
        end = f"{ended} after {counted(run.ended.step, 'step')}."
    again = [f"It was resumed at step {', '.join(f'{step:,}' for step in run.resumed)}."] if run.resumed else []
    return [first, end, *again]


def figures(run: Run) -> Iterator[Figure]:
    """Yield the headline values of a run: steps, loss, products, alarms, overhead."""
    yield Figure(
        label="Steps", value=steps_taken(run), kind="count", note=f"{counted(len(run.records), 'step')} measured"
    )
    loss = run.total("loss")
    if loss:
        least = min((value for _, value in loss if not math.isnan(value)), default=math.nan)
        note = f"first {loss[0][1]:.4g}, least {least:.4g}"
        yield Figure(label="Loss", value=loss[-1][1], kind="number", note=note)
    for quantity, label in (("log10_printed", "Product of the norms"), ("log10_folded", "Folded product")):
        course = run.total(quantity)
        if course:
            yield Figure(label=label, value=course[-1][1], kind="log10", note=f"log10, at first {course[0][1]:.2f}")
    yield Figure(label="Alarms", value=len(run.findings), kind="count", note=tally(run.findings))
    if run.ended is not None:
        yield Figure(label="Overhead", value=run.ended.overhead, kind="percent", note="of the time, for watching")


def steps_taken(run: Run) -> int:
    """Return how many steps a run has taken, as far as it is known."""
    if run.ended is not None:
        return run.ended.step
    return run.records[-1].step + 1 if run.records else 0


def alarm_notices(findings: Sequence[Finding]) -> list[Notice]:
    """Return alarms as notices that say at which step they were raised."""
    dated = [f if f.step is None else replace(f, seen=f"At step {f.step:,}: {f.seen}") for f in findings]
    return notices(dated)


def _alarms(run: Run) -> list[Block]:
    if run.findings:
        return [*alarm_notices(run.findings)]
    layers = counted(len(run.layers), "layer")
    return [Text(body=f"No alarm was raised. Looked at: {layers} at {counted(len(run.records), 'step')}.")]


def marks(run: Run) -> tuple[Mark, ...]:
    """Return marks for the alarms, and for the steps at which the run was resumed."""
    raised = [
        Mark(x=finding.step, name=f"{finding.code} in {finding.where}", level=finding.severity.value)
        for finding in run.findings
        if finding.step is not None
    ]
    return (*raised, *(Mark(x=step, name="resumed", kind="resumed") for step in run.resumed))


def view_curves(run: Run, view: LayerPicture, *, span: tuple[float, float] | None = None) -> Curves | None:
    """Return one quantity as a picture with a curve per layer, or None where it was not measured.

    Args:
        run: the run.
        view: the quantity, and how to read it.
        span: a range that the value axis covers at least.
    """
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
    """Return a curve with as many points as its picture has room for.

    Args:
        name: the name in the legend.
        points: pairs (step, value).
        of: how many curves the picture has.
        depth: the position of its layer in the network, from 0 to 1.
    """
    return Curve(name=name, points=thinned(points, points_each(of)), depth=depth)


def loss_curves(run: Run) -> Curves | None:
    """Return the loss over all steps, as log10 where it is positive and spans two powers of ten."""
    return total_curves(loss_courses(run), title="Loss by step", axis="loss", found=marks(run), logarithmic=True)


def loss_courses(run: Run) -> dict[str, Points]:
    """Return the mean, least and largest loss between two records; the losses themselves if each record has one."""
    courses: dict[str, Points] = {name: run.total(f"loss_{name}") for name in ("mean", "least", "largest")}
    if not courses["mean"] or courses["least"] == courses["largest"]:
        courses = {"loss": run.total("loss")}
    return courses


def metric_curves(run: Run) -> list[Block | None]:
    """Return a picture of every figure that the training loop logged beside the loss, up to `MOST` of them."""
    names = metric_names(run)
    more = left_out(len(names), MOST, "logged figure")
    return [
        *(total_curves({name: run.total(name)}, title=name, axis=name, found=marks(run)) for name in names[:MOST]),
        Text(body=more) if more else None,
    ]


def metric_names(run: Run) -> list[str]:
    """Return the names of the figures that the training loop logged beside the loss."""
    given = [record.metrics for record in run.records] + [figures for _, figures in run.metrics]
    return list(dict.fromkeys(name for figures in given for name in figures if name not in OF_LOSSES))


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
    return total_curves(courses, title="Learning rate", axis="learning rate", found=marks(run), logarithmic=True)


def product_curves(run: Run) -> Curves | None:
    """Return the products over the network: of the norms, of the normalizers' constants, folded."""
    return total_curves(
        {name: run.total(quantity) for quantity, name in PRODUCTS},
        title="Product of what all layers can do",
        term="printed product",
        axis="log10 of the product",
        caption=READING_THE_PRODUCTS,
        found=marks(run),
    )


def total_curves(
    courses: dict[str, Points],
    *,
    title: str,
    axis: str,
    caption: str = "",
    term: str = "",
    found: tuple[Mark, ...] = (),
    logarithmic: bool = False,
) -> Curves | None:
    """Return figures of the whole network as curves, or None where there is none.

    Args:
        courses: pairs (step, value) by name.
        title: the text above the picture.
        axis: what the values are.
        caption: the text below the picture.
        term: the term of the papers for what the title says in plain words.
        found: marks on the axis of the steps.
        logarithmic: whether to take logarithms if all values are positive and span two powers of ten.
    """
    courses = {name: points for name, points in courses.items() if points}
    if not courses:
        return None
    values = [value for points in courses.values() for _, value in points if math.isfinite(value)]
    if logarithmic and values and min(values) > 0 and max(values) >= 100 * min(values):
        courses, axis = {name: _log10(points) for name, points in courses.items()}, f"log10 of the {axis}"
    curves = tuple(curve(name, points, of=len(courses)) for name, points in courses.items())
    return Curves(title=title, curves=curves, axis=axis, caption=caption, term=term, marks=found)


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
    columns = (Column(title="what", kind="name"), Column(title="value"))
    rows: list[tuple[Cell, ...]] = list(settings(run).items())
    return Table(columns=columns, rows=tuple(rows)) if rows else None


def settings(run: Run) -> dict[str, str]:
    """Return the settings of a run by name, written out."""
    plain = {key: value for key, value in run.metadata.items() if key not in ("schema_version", "step", "notes")}
    found: dict[str, Any] = {key: value for key, value in plain.items() if not isinstance(value, dict)}
    found |= {f"every ({tier})": interval for tier, interval in (plain.get("every") or {}).items()}
    if run.records and run.records[0].lr:
        found["first lr"] = ", ".join(f"{rate:.4g}" for rate in run.records[0].lr)
    decays = {layer.weight_decay for layer in run.of("weight") if layer.weight_decay is not None}
    if decays:
        found["weight decay"] = ", ".join(f"{value:.4g}" for value in sorted(decays))
    found |= plain.get("provenance") or {}
    return {key: f"{value:,}" if isinstance(value, int) else str(value) for key, value in found.items()}
