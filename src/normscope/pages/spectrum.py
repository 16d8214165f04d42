"""`spectrum_document`: the curvature of a loss as the report a person reads."""

from __future__ import annotations

import math

from ..diagnosis.verdict import sentence
from ..geometry.spectrum import Spectrum
from ..report.document import (
    Block,
    Chart,
    Column,
    Curve,
    Curves,
    Document,
    Figure,
    Figures,
    Notice,
    Series,
    Table,
    Text,
)
from ..report.glossary import glossary
from ..report.words import counted

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


def spectrum_document(found: Spectrum, *, brief: bool = False) -> Document:
    """Return the report of a spectrum."""
    blocks: list[Block] = [Text(body=headline(found), lead=True), *_unsettled(found)]
    if not brief:
        blocks += [Figures(items=tuple(_figures(found))), _chart(found)]
    blocks += [_eigenvalues(found), *_density(found, brief), *_blocks(found), *_invariants(found)]
    blocks.append(Text(heading="" if brief else "About these figures", body=definition(found), folded=not brief))
    blocks += [Text(body=sentence(note)) for note in found.notes]
    return Document(title=f"Curvature of {found.name}", blocks=(*blocks, *(() if brief else glossary(blocks))))


def headline(found: Spectrum) -> str:
    """Return the verdict in one sentence or two."""
    if not found.eigenvalues:
        return "No eigenvalue was found."
    rate = found.safe_learning_rate
    which = (
        "an effective learning rate (the rate over the squared norm of the weight)"
        if found.metric == "quotient"
        else "a learning rate"
    )
    safe = (
        f"gradient descent is stable in it up to {which} of {rate:.3g}"
        if rate < math.inf
        else "the loss curves upward in no direction that was found"
    )
    return f"The sharpest direction has curvature {found.sharpness:.4g} in {found.mode} mode: {safe}."


def definition(found: Spectrum) -> str:
    """Say of which matrix, loss and data these are the eigenvalues."""
    data = f"{counted(found.samples, 'sample')} in {counted(found.batches, 'batch', 'batches')}"
    quotient = (
        " In the metric of the quotient: on the unit spheres of weights whose scale has no effect."
        if found.metric == "quotient"
        else ""
    )
    statistics = "the batch" if found.mode == "train" else "its running statistics"
    return (
        f"These are eigenvalues of {MATRIX[found.matrix]} of the mean loss ({found.loss:.4g}) over {data}, in "
        f"{found.mode} mode (batch norm by {statistics}; dropout off), from "
        f"{counted(found.num_products, 'product')}.{projected(found)}{quotient}"
    )


def projected(found: Spectrum) -> str:
    """Say how many directions without effect there are, and how many of them were projected out."""
    shown = found.directions_found
    if shown is None:
        return ""
    if not shown:
        return " The graph shows no direction without effect, so that nothing was projected out."
    if found.directions == shown:
        return f" Of its {found.parameters:,} dimensions {shown:,} along which nothing changes were projected out."
    return (
        f" Of its {found.parameters:,} dimensions {found.directions:,} along which nothing changes were projected out; "
        f"{shown - found.directions:,} more that the graph shows were refused (see the notes)."
    )


def _unsettled(found: Spectrum) -> list[Block]:
    if found.converged:
        return []
    return [Notice(level="warning", heading="Not every eigenvalue has converged", lines=(("", f"{found.advice}."),))]


def _figures(found: Spectrum) -> list[Figure]:
    items = [
        Figure(label="Largest curvature", value=found.sharpness, kind="number", term="sharpness"),
        Figure(label="Safe learning rate", value=found.safe_learning_rate, kind="number", note="2/lambda_max"),
    ]
    rates = found.safe_effective_rates
    if rates:
        name = max(rates, key=lambda key: rates[key])
        note = f"at most, at `{name}`"
        label, term = "Its effective learning rate", "effective learning rate"
        items.append(Figure(label=label, value=rates[name], kind="number", note=note, term=term))
    if found.trace is not None:
        note = f"± {found.trace.error:.2g}"
        items.append(Figure(label="Sum of all curvatures", value=found.trace.value, kind="number", note=note))
    if found.condition_number is not None:
        note = f"without {counted(found.zero_modes or 0, 'zero')}"
        items.append(Figure(label="Condition number", value=found.condition_number, kind="number", note=note))
    return items


def _chart(found: Spectrum) -> Chart:
    values = (*found.eigenvalues, *reversed(found.bottom_eigenvalues))
    return Chart(
        title="Eigenvalues",
        labels=tuple(_ranks(found)),
        series=(Series(name="eigenvalue", style="marks", values=values),),
        axis="curvature of the loss",
        rules=(("zero", 0.0),),
        caption=f"{READING} {LEARNING_RATE}",
        term="sharpness",
    )


def _ranks(found: Spectrum) -> list[str]:
    top = [f"largest {rank}" for rank in range(1, len(found.eigenvalues) + 1)]
    return [*top, *(f"smallest {rank}" for rank in range(len(found.bottom_eigenvalues), 0, -1))]


def _eigenvalues(found: Spectrum) -> Table:
    values = (*found.eigenvalues, *reversed(found.bottom_eigenvalues))
    residuals = (*found.residuals, *reversed(found.bottom_residuals))
    errors = (*found.errors, *reversed(found.bottom_errors))
    columns: tuple[Column, ...] = (
        Column(title="which", kind="name"),
        Column(title="eigenvalue", kind="number"),
        Column(title="residual", kind="number", help="norm(H v - value v) of the unit vector"),
        Column(title="error", kind="number", help="how far the eigenvalue is off, estimated"),
    )
    rows = list(zip(_ranks(found), values, residuals, errors))
    if not found.undeflated:
        return Table(title="Eigenvalues", columns=columns, rows=tuple(rows), caption=READING)
    columns += (Column(title="with symmetry directions", kind="number", help="nothing projected out"),)
    raw = (*found.undeflated, *([None] * len(values)))
    wide = tuple((*row, value) for row, value in zip(rows, raw))
    return Table(title="Eigenvalues", columns=columns, rows=wide, caption=READING)


def _density(found: Spectrum, brief: bool) -> list[Block]:
    density = found.density
    if density is None:
        return []
    share = density.near_zero
    text = (
        f"Between {100 * share.lower:.2g} % and {100 * share.upper:.2g} % of the eigenvalues are within a thousandth "
        f"of the largest of zero, up to a standard error of {100 * share.error:.2g} %."
    )
    if found.trace is not None:
        text += f" The trace is {found.trace.value:.4g} with a standard error of {found.trace.error:.2g}."
    if found.probes:
        text += f" Both are means over {counted(found.probes, 'random vector')}."
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


def _blocks(found: Spectrum) -> list[Block]:
    if not found.blocks:
        return []
    columns = (
        Column(title="parameter", kind="name"),
        Column(title="entries", kind="count"),
        Column(title="largest eigenvalue", kind="number"),
        Column(title="residual", kind="number"),
        Column(title="converged"),
    )
    rows = tuple((b.name, b.size, b.eigenvalue, b.residual, "yes" if b.converged else "no") for b in found.blocks)
    caption = "The largest eigenvalue of each parameter's diagonal block: the curvature where nothing else moves."
    return [Table(title="Curvature by parameter", columns=columns, rows=rows, caption=caption)]


def _invariants(found: Spectrum) -> list[Block]:
    if not found.invariants:
        return []
    columns = (
        Column(title="weight", kind="name"),
        Column(title="unit", kind="name", help="what can be scaled on its own"),
        Column(title="groups", kind="count"),
        Column(title="defect", kind="number", help="largest cosine between a group's weight and its gradient"),
        Column(title="norm", kind="number", help="root mean square over the groups"),
        Column(title="effective rate", kind="number", help="the safe learning rate over the squared norm"),
        Column(title="projected out", kind="count"),
    )
    rates = found.safe_effective_rates
    rows = tuple(
        (one.name, one.unit, one.groups, one.defect, found.norms.get(one.name), rates.get(one.name), one.kept)
        for one in found.invariants
    )
    caption = "Weights in front of a normalizer: their scale has no effect, and the gradient is orthogonal to them."
    return [Table(title="Weights whose scale has no effect", columns=columns, rows=rows, caption=caption)]
