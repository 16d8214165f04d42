"""The curvature of a loss as reports: the spectrum, smoothness, flatness, margins, and several of them as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low

from ...report.document import (
    Block,
    Cell,
    Chart,
    Column,
    Curve,
    Curves,
    Document,
    Figure,
    Figures,
    Glossary,
    Notice,
    ReadColumn,
    Series,
    Table,
    Text,
    read_from,
    tabulate,
)
from ...report.glossary import glossary
from ...report.words import pluralise, sentence
from ..geometry.curvature import Curvature
from ..geometry.directions import Invariant
from ..geometry.flatness import Flatness, NoiseLevel, Sharpness
from ..geometry.margins import Margins
from ..geometry.smoothness import Smoothness, SmoothStep
from ..geometry.spectrum import GroupRate, ParameterBlock, Spectrum


def curvature_document(whole: Curvature, *, brief: bool = False) -> Document:
    """Return all results as one report: the first as it is, each other one under its own heading."""
    first, *others = (one.document(brief=brief) for one in whole.results)
    blocks = _without_words(first)
    for document in others:
        blocks.append(Text(heading=document.title, folded=not brief))
        blocks += [block for block in _without_words(document) if not (isinstance(block, Text) and block.heading)]
    return Document(title=first.title, blocks=(*blocks, *(() if brief else glossary(blocks))))


def _without_words(document: Document) -> list[Block]:
    """Return the blocks of a document without its glossary."""
    kept = [block for block in document.blocks if not isinstance(block, Glossary)]
    return [block for block in kept if not (isinstance(block, Text) and block.heading == "Words")]


MATRIX = {"hessian": "the Hessian", "gauss-newton": "the Gauss-Newton matrix"}
READING = (
    "Each eigenvalue is the curvature of the loss along one direction of the weights. The residual norm(H v - value v) "
    "says how good its direction is; the error of the eigenvalue is estimated from it. Of eigenvalues within about "
    "1e-4 of each other one may be missing."
)
LEARNING_RATE = (
    "Gradient descent with a learning rate above 2/lambda_max leaves a bowl of this curvature. Networks are no bowls: "
    "training often settles near this edge and goes on, with a loss that no longer falls at every step."
)
DRAWN = (
    "The curve is that of the 20 nodes or fewer that every random vector gives, not of single eigenvalues: it may have "
    "gaps where the eigenvalues have none. Every node is drawn as a bell of width"
)


def spectrum_document(spectrum: Spectrum, *, brief: bool = False) -> Document:
    """Return the report of a spectrum."""
    blocks: list[Block] = [Text(body=spectrum_headline(spectrum), lead=True)]
    if not spectrum.converged:
        advice = (("", f"{spectrum.advice}."),)
        blocks.append(Notice(level="warning", heading="Not every eigenvalue has converged", lines=advice))
    if not brief:
        blocks.append(Figures(items=tuple(_spectrum_figures(spectrum))))
    if spectrum.eigenvalues or spectrum.bottom_eigenvalues:
        blocks += [_eigenvalues(spectrum)] if brief else [_eigenvalue_chart(spectrum), _eigenvalues(spectrum)]
    blocks += _density_blocks(spectrum, brief)
    if spectrum.blocks:
        title, caption = "Curvature by parameter", READING_BLOCKS
        blocks.append(tabulate(spectrum.blocks, BLOCK_COLUMNS, title=title, caption=caption, drop_empty=True))
    if spectrum.groups:
        title = "Learning rates by parameter group"
        blocks.append(tabulate(spectrum.groups, GROUP_COLUMNS, title=title, caption=LEARNING_RATE))
    if spectrum.invariants:
        blocks.append(_invariants(spectrum))
    blocks.append(Text(heading="" if brief else "About these figures", body=definition(spectrum), folded=not brief))
    blocks += [Text(body=sentence(note)) for note in spectrum.notes]
    return Document(title=f"Curvature of {spectrum.name}", blocks=(*blocks, *(() if brief else glossary(blocks))))


def spectrum_headline(spectrum: Spectrum) -> str:
    """Return the verdict in one sentence or two."""
    if not spectrum.eigenvalues:
        if spectrum.trace is None:
            return "No eigenvalue was found."
        return f"The curvatures in {spectrum.mode} mode sum to {spectrum.trace.value:.4g}."
    rate = spectrum.safe_learning_rate
    which = (
        "an effective learning rate (the rate over the squared norm of the weight)"
        if spectrum.metric == "quotient"
        else "a learning rate"
    )
    safe = (
        f"gradient descent is stable in it up to {which} of {rate:.3g}"
        if rate < math.inf
        else "the loss curves upward in no direction that was found"
    )
    return f"The sharpest direction has curvature {spectrum.sharpness:.4g} in {spectrum.mode} mode: {safe}."


def definition(spectrum: Spectrum) -> str:
    """Say of which matrix, loss and data these are the eigenvalues."""
    data = f"{pluralise(spectrum.samples, 'sample')} in {pluralise(spectrum.batches, 'batch', 'batches')}"
    quotient = (
        " In the metric of the quotient: on the unit spheres of weights whose scale has no effect."
        if spectrum.metric == "quotient"
        else ""
    )
    statistics = "the batch" if spectrum.mode == "train" else "its running statistics"
    return (
        f"These are eigenvalues of {MATRIX[spectrum.matrix]} of the mean loss ({spectrum.loss:.4g}) over {data}, in "
        f"{spectrum.mode} mode (batch norm by {statistics}; dropout off), from "
        f"{pluralise(spectrum.num_products, 'product')}.{describe_projection(spectrum)}{quotient}"
    )


def describe_projection(spectrum: Spectrum) -> str:
    """Say how many directions without effect there are, and how many of them were projected out."""
    shown = spectrum.directions_found
    if shown is None:
        return ""
    if not shown:
        return " The graph shows no direction without effect, so that nothing was projected out."
    if spectrum.directions == shown:
        return f" Of its {spectrum.parameters:,} dimensions {shown:,} along which nothing changes were projected out."
    return (
        f" Of its {spectrum.parameters:,} dimensions {spectrum.directions:,} along which nothing changes were "
        f"projected out; {shown - spectrum.directions:,} more that the graph shows were refused (see the notes)."
    )


def _spectrum_figures(spectrum: Spectrum) -> list[Figure]:
    items = []
    if spectrum.eigenvalues:
        value, rate = spectrum.sharpness, spectrum.safe_learning_rate
        items.append(Figure(label="Largest curvature", value=value, kind="number", term="sharpness"))
        items.append(Figure(label="Safe learning rate", value=rate, kind="number", note="2/lambda_max"))
    rates = spectrum.safe_effective_rates
    if rates:
        name = max(rates, key=lambda key: rates[key])
        note = f"at most, at `{name}`"
        label, term = "The same for weights whose scale has no effect", "effective learning rate"
        items.append(Figure(label=label, value=rates[name], kind="number", note=note, term=term))
    if spectrum.trace is not None:
        note = f"± {spectrum.trace.error:.2g}"
        items.append(Figure(label="Sum of all curvatures", value=spectrum.trace.value, kind="number", note=note))
    if spectrum.condition_number is not None:
        note = f"without {pluralise(spectrum.zero_modes or 0, 'zero')}"
        items.append(Figure(label="Condition number", value=spectrum.condition_number, kind="number", note=note))
    return items


def _eigenvalue_chart(spectrum: Spectrum) -> Chart:
    values = (*spectrum.eigenvalues, *reversed(spectrum.bottom_eigenvalues))
    return Chart(
        title="Eigenvalues",
        labels=tuple(_ranks(spectrum)),
        series=(Series(name="eigenvalue", style="marks", values=values),),
        axis="curvature of the loss",
        rules=(("zero", 0.0),),
        caption=LEARNING_RATE,  # the table has the other words
        term="sharpness",
    )


def _ranks(spectrum: Spectrum) -> list[str]:
    top = [f"largest {rank}" for rank in range(1, len(spectrum.eigenvalues) + 1)]
    return [*top, *(f"smallest {rank}" for rank in range(len(spectrum.bottom_eigenvalues), 0, -1))]


def _eigenvalues(spectrum: Spectrum) -> Table:
    values = (*spectrum.eigenvalues, *reversed(spectrum.bottom_eigenvalues))
    residuals = (*spectrum.residuals, *reversed(spectrum.bottom_residuals))
    errors = (*spectrum.errors, *reversed(spectrum.bottom_errors))
    columns: tuple[Column, ...] = (
        Column("which", "name"),
        Column("eigenvalue", "number"),
        Column("residual", "number", "norm(H v - value v) of the unit vector"),
        Column("error", "number", "how far the eigenvalue is off, estimated"),
    )
    cells: list[Sequence[Cell]] = [_ranks(spectrum), values, residuals, errors]
    if spectrum.undeflated:
        columns += (Column("with symmetry directions", "number", "nothing projected out"),)
        cells.append((*spectrum.undeflated, *([None] * len(values))))
    return Table(title="Eigenvalues", columns=columns, rows=tuple(zip(*cells)), caption=READING)


def _density_blocks(spectrum: Spectrum, brief: bool) -> list[Block]:
    density, trace = spectrum.density, spectrum.trace
    summed = "" if trace is None else f"The trace is {trace.value:.4g} with a standard error of {trace.error:.2g}."
    if density is None:
        return [Text(body=summed)] if summed else []
    share = density.near_zero
    text = (
        f"Between {100 * share.lower:.2g} % and {100 * share.upper:.2g} % of the eigenvalues are within a thousandth "
        f"of the largest of zero, up to a standard error of {100 * share.error:.2g} %."
    )
    text += f" {summed}" if summed else ""
    if spectrum.probes:
        text += f" The density is a mean over {pluralise(spectrum.probes, 'random vector')}."
    if brief:
        return [Text(body=text)]
    finite = [math.log10(value) for value in density.values if value > 0]
    floor = max(finite) - 8 if finite else 0.0

    def line(name: str, values: tuple[float, ...]) -> Curve:
        points = tuple(
            (x, max(math.log10(value), floor) if value > 0 else floor) for x, value in zip(density.places, values)
        )
        return Curve(name=name, points=points)

    above = tuple(value + error for value, error in zip(density.values, density.errors) if math.isfinite(error))
    curves = [line("density", density.values)]
    if len(above) == len(density.values):
        curves.append(line("one standard error above", above))
    return [
        Curves(
            title="How the eigenvalues are spread",
            curves=tuple(curves),
            axis="log10 of the density",
            along="eigenvalue",
            caption=f"{text} {DRAWN} {density.width:.3g}.",
        )
    ]


READING_BLOCKS = "The largest eigenvalue of each parameter's diagonal block: the curvature where nothing else moves."
BLOCK_COLUMNS: tuple[ReadColumn[ParameterBlock], ...] = (
    ReadColumn("parameter", "name", "name"),
    ReadColumn("entries", "count", "size"),
    ReadColumn("largest eigenvalue", "number", "eigenvalue"),
    ReadColumn("residual", "number", "residual"),
    ReadColumn("converged", "text", lambda block: "yes" if block.converged else "no"),
    ReadColumn("trace", "number", "trace.value", "the sum of the curvatures of this parameter"),
    ReadColumn("± trace", "number", "trace.error", "standard error"),
)
GROUP_COLUMNS: tuple[ReadColumn[GroupRate], ...] = (
    ReadColumn("group", "count", "index"),
    ReadColumn("entries", "count", "size"),
    ReadColumn("largest eigenvalue", "number", "eigenvalue"),
    ReadColumn("safe rate", "number", "safe_learning_rate", "2/lambda, for gradient descent of this group alone"),
    ReadColumn("rate in use", "number", "learning_rate"),
    ReadColumn("in use / safe", "number", lambda one: one.learning_rate / one.safe_learning_rate),
    ReadColumn("converged", "text", lambda one: "yes" if one.converged else "no"),
)


def _invariants(spectrum: Spectrum) -> Table:
    rates = spectrum.safe_effective_rates
    columns: tuple[ReadColumn[Invariant], ...] = (
        ReadColumn("weight", "name", "name"),
        ReadColumn("unit", "name", "unit", "what can be scaled on its own"),
        ReadColumn("groups", "count", "groups"),
        ReadColumn("defect", "number", "defect", "largest cosine between a group's weight and its gradient"),
        ReadColumn("norm", "number", lambda one: spectrum.norms.get(one.name), "root mean square over the groups"),
        ReadColumn(
            "effective rate", "number", lambda one: rates.get(one.name), "the safe learning rate over the squared norm"
        ),
        ReadColumn("projected out", "count", "kept"),
    )
    caption = "Weights in front of a normalizer: their scale has no effect, and the gradient is orthogonal to them."
    return tabulate(spectrum.invariants, columns, title="Weights whose scale has no effect", caption=caption)


STEP_COLUMNS: tuple[ReadColumn[SmoothStep], ...] = (
    ReadColumn("step", "count", "step"),
    ReadColumn("loss", "number", "loss"),
    ReadColumn("gradient", "number", "gradient_norm"),
    ReadColumn("least loss", "number", "least_loss"),
    ReadColumn("most loss", "number", "most_loss"),
    ReadColumn("predictiveness", "number", "predictiveness"),
    ReadColumn("effective beta", "number", "effective_beta"),
)


def smoothness_document(smoothness: Smoothness, *, brief: bool = False) -> Document:
    """Return the report, in a short form for a terminal if `brief`."""
    end = (
        f"and no longer at {smoothness.unstable:.3g}"
        if smoothness.unstable < math.inf
        else "and no larger one was found that is not"
    )
    head = f"Gradient descent is stable at a learning rate of {smoothness.stable:.3g} {end} ({smoothness.mode} mode)."
    if smoothness.stable == 0.0:
        head = f"No stable learning rate was found down to {smoothness.unstable:.3g} ({smoothness.mode} mode)."
    blocks: list[Block] = [Text(body=head, lead=True)]
    if not brief:
        items = (
            Figure(label="Largest stable learning rate", value=smoothness.stable, kind="number"),
            Figure(label="Largest curvature met by a step", value=smoothness.effective_beta, kind="number"),
        )
        lines = {"loss": "loss", "least along the step": "least_loss", "most along the step": "most_loss"}
        curves = tuple(
            Curve(name=name, points=tuple((float(step.step), getattr(step, field)) for step in smoothness.steps))
            for name, field in lines.items()
        )
        title = "The loss, and its range along each gradient step"
        blocks += [Figures(items=items), Curves(title=title, curves=curves, axis="loss")]
    title = f"Along gradient descent with learning rate {smoothness.learning_rate:.3g}"
    blocks.append(tabulate(smoothness.steps, STEP_COLUMNS, title=title))
    return _with_definitions(f"Smoothness of {smoothness.name}", blocks, smoothness.definitions, smoothness.notes)


def _with_definitions(
    title: str, blocks: Sequence[Block], definitions: Sequence[tuple[str, str]], notes: Sequence[str]
) -> Document:
    """Return a report that ends with what its figures mean, and with notes."""
    texts = (*(f"{name}: {what}" for name, what in definitions), *notes)
    return Document(title=title, blocks=(*blocks, *(Text(body=sentence(text)) for text in texts)))


NOISE_COLUMNS: tuple[ReadColumn[NoiseLevel], ...] = (
    ReadColumn("noise", "percent", "level", "relative to the weights"),
    ReadColumn("loss", "number", "loss.value", "noise scaled by group"),
    ReadColumn("±", "number", "loss.error", "standard error"),
    ReadColumn("raw loss", "number", "raw_loss.value", "depends on the scale of the weights"),
    ReadColumn("accuracy", "percent", "accuracy.value"),
    ReadColumn("raw accuracy", "percent", "raw_accuracy.value"),
)


SHARPNESS_COLUMNS: tuple[ReadColumn[Sharpness], ...] = (
    ReadColumn("definition", "name", "name"),
    ReadColumn("value, at least", "number", "value"),
    ReadColumn("converged", "text", lambda one: "yes" if one.converged else "no"),
)


def flatness_document(flatness: Flatness, *, brief: bool = False) -> Document:
    """Return the report, in a short form for a terminal if `brief`."""
    worst = next((one for one in flatness.noise if one.loss.value > 2 * flatness.loss), None)
    head = (
        f"Noise of {100 * worst.level:g} % of every group of weights more than doubles the loss of {flatness.loss:.4g}"
        if worst is not None
        else f"No level of noise that was tried doubles the loss of {flatness.loss:.4g}"
    )
    blocks: list[Block] = [Text(body=f"{head} ({flatness.mode} mode).", lead=True)]
    if not brief:
        items = [
            Figure(label="Spherical sharpness", value=flatness.spherical_sharpness, kind="number", term="sharpness"),
            Figure(
                label="Increase by ascent, at least",
                value=flatness.ascent,
                kind="number",
                note=f"within {flatness.rho:g}",
            ),
            Figure(label="The same, raw", value=flatness.raw_ascent, kind="number", note="depends on the scale"),
        ]
        blocks += [Figures(items=tuple(items)), *_charts(flatness)]
    blocks.append(tabulate(flatness.noise, NOISE_COLUMNS, title="Under noise", drop_empty=True))
    if flatness.others:
        blocks.append(tabulate(flatness.others, SHARPNESS_COLUMNS, title="Other definitions of sharpness"))
    if brief:
        sharp = "not measured" if flatness.spherical_sharpness is None else f"{flatness.spherical_sharpness:.4g}"
        text = (
            f"Spherical sharpness {sharp}; ascent within {flatness.rho:g} adds at least {flatness.ascent:.3g} to the "
            f"loss (raw {flatness.raw_ascent:.3g})."
        )
        blocks.append(Text(body=text))
    return _with_definitions(f"Flatness of {flatness.name}", blocks, flatness.definitions, flatness.notes)


def _charts(flatness: Flatness) -> list[Block]:
    """Return loss and, with classes, accuracy under noise that is scaled by group, and under raw noise."""
    measured = {"loss": flatness.loss, "accuracy": flatness.accuracy}
    blocks: list[Block] = []
    for what, start in measured.items():
        if start is None:
            continue
        curves = []
        for name, prefix in (("scaled by group", ""), ("raw", "raw_")):
            values = [(noise.level, read_from(noise, f"{prefix}{what}.value")) for noise in flatness.noise]
            finite = ((level, value) for level, value in values if value is not None and math.isfinite(value))
            curves.append(Curve(name=name, points=((0.0, start), *finite)))
        title = f"{what.capitalize()} under noise"
        blocks.append(Curves(title=title, curves=tuple(curves), axis=what, along="noise"))
    return blocks


MARGIN_SHARES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""The shares of samples for which the table gives quantiles."""
BINS = 24
"""The histogram has at most one bar more than this."""


def margins_document(margins: Margins, *, brief: bool = False) -> Document:
    """Return the report, in a short form for a terminal if `brief`."""
    who = "are classified correctly" if margins.labelled else "have a class that wins"
    head = (
        f"{100 * margins.accuracy:.3g} % of {pluralise(len(margins), 'sample')} {who}; half of all margins are above "
        f"{margins.quantile(0.5):.3g}."
    )
    blocks: list[Block] = [Text(body=head, lead=True)]
    if not brief:
        items = [Figure(label="Median margin", value=margins.quantile(0.5), kind="number")]
        items += [
            Figure(
                label=f"Median margin over {scope.upper()}", value=median_low(margins.normalised(scope)), kind="number"
            )
            for scope in margins.log10_constants
        ]
        blocks += [Figures(items=tuple(items)), _histogram(margins)]
    columns = (
        Column("share of samples below", "percent"),
        Column("margin", "number"),
        *(Column(f"over {scope.upper()}", "number") for scope in margins.log10_constants),
    )
    scaled = [sorted(margins.normalised(scope)) for scope in margins.log10_constants]
    ordered = sorted(margins.margin)
    ranks = [min(len(margins) - 1, math.ceil(s * len(margins)) - 1 if s > 0 else 0) for s in MARGIN_SHARES]
    rows = tuple((s, ordered[p], *(values[p] for values in scaled)) for s, p in zip(MARGIN_SHARES, ranks))
    blocks.append(Table(title="Quantiles of the margins", columns=columns, rows=rows))
    used = ("margin", *(f"margin over {scope.upper()}" for scope in margins.log10_constants))
    definitions = [pair for pair in margins.definitions if pair[0] in used]
    return _with_definitions(f"Margins of {margins.name}", blocks, definitions, margins.notes)


def _histogram(margins: Margins) -> Chart:
    width = _round_width(max(margins.margin) - min(margins.margin))
    first, last = (math.floor(end / width) for end in (min(margins.margin), max(margins.margin)))
    counts = [0] * (last - first + 1)
    for value in margins.margin:
        counts[math.floor(value / width) - first] += 1
    shares = tuple(count / len(margins) for count in counts)
    return Chart(
        title="How the margins are spread",
        labels=tuple(f"{index * width:.6g}" for index in range(first, last + 1)),
        series=(Series(name="samples", style="spans", values=(0.0,) * len(counts), until=shares),),
        axis="share of the samples",
        caption=f"A bar holds the margins from the number below it up to {width:g} more; below zero another class "
        "wins.",
    )


def _round_width(reach: float) -> float:
    """Return 1, 2 or 5 times a power of ten such that at most `BINS` intervals of this width have a given length."""
    least = reach / BINS or 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least)
