"""`flow_document`: gradient flow beside gradient descent as the report a person reads."""

from __future__ import annotations

from typing import Any

from normscope.report import Block, Column, Curve, Curves, Document, Figure, Figures, Table, Text, thinned

from ..gradient_flow import Flow


def flow_document(result: Flow, *, brief: bool = False) -> Document:
    """Return the report, in a short form for a terminal if `brief`."""
    first, last, beside = result.flow[0], result.flow[-1], result.descent[-1]
    head = (
        f"In time {last.time:.3g} gradient flow takes the loss from {first.loss:.4g} to {last.loss:.4g}, and "
        f"gradient descent with learning rate {result.learning_rate:.3g} to {beside.loss:.4g} ({result.mode} mode)."
    )
    if result.conserved:
        head += (
            f" Of the {result.conserved} norms that the flow conserves, none moves by more than {last.drift:.2g} of "
            f"its square; under descent they grow by up to {beside.drift:.2g}."
        )
    blocks: list[Block] = [Text(body=head, lead=True)]
    if not brief:
        blocks += [*_figures(result), *_charts(result)]
    columns = (
        Column(title="path", kind="name"),
        *(Column(title=title, kind="number") for title in ("time", "loss", "norms moved", "turned", "norm")),
    )
    rows = tuple(
        (name, point.time, point.loss, point.drift, point.angle, point.radius)
        for name, path in (("flow", result.flow), ("descent", result.descent))
        for point in (path[0], path[len(path) // 2], path[-1])
    )
    blocks.append(Table(title="The start, the middle and the end", columns=columns, rows=rows))
    blocks += [Text(body=f"{name[0].upper()}{name[1:]}: {what}.") for name, what in result.definitions]
    blocks += [Text(body=f"{note[0].upper()}{note[1:]}.") for note in result.notes]
    return Document(title=f"Gradient flow of {result.name}", blocks=tuple(blocks))


def _figures(result: Flow) -> list[Block]:
    items = [Figure(label="Distance of the two ends", value=result.distance, kind="percent", note="of the flow's way")]
    if result.conserved:
        drift = result.flow[-1].drift
        items.append(Figure(label="Norms moved under flow", value=drift, kind="number", note="of their squares"))
        note = "less lr^2 norm(grad)^2 a step"
        items.append(Figure(label="Defect of their growth", value=result.growth_defect, kind="number", note=note))
    return [Figures(items=tuple(items))]


def _charts(result: Flow) -> list[Block]:
    paths = (("flow", result.flow), ("descent", result.descent))

    def by_time(title: str, axis: str, figure: str, caption: str = "", **more: Any) -> Curves:
        lines = ((name, [(point.time, getattr(point, figure) or 0.0) for point in path]) for name, path in paths)
        curves = tuple(Curve(name=name, points=thinned(points)) for name, points in lines)
        return Curves(title=title, curves=curves, axis=axis, along="time", caption=caption, **more)

    blocks: list[Block] = [by_time("The loss along both paths", "loss", "loss")]
    if result.group:
        about = (
            f"A group of `{result.group}`, whose scale has no effect: on the circle of its norm its angle alone moves."
        )
        leaves = "Flow stays on the circle. A step of descent leaves it along a tangent, and adds lr^2 norm(grad)^2 to "
        blocks += [
            by_time("The trajectory on the circle", "turned by, in radians", "angle", about),
            by_time(
                "How far it leaves the circle",
                "norm over the first",
                "radius",
                f"{leaves}the squared norm.",
                rules=(("the circle", 1.0),),
            ),
        ]
    slices = tuple(Curve(name=name, points=points) for name, points in result.slices.items())
    blocks.append(
        Curves(
            title="The loss along lines through the start",
            curves=slices,
            axis="loss",
            along="place",
            caption="Along the gradient: steps against it, in learning rates. Along the scaling: all weights whose "
            "scale has no effect, in doublings; the loss is level along it, but for eps.",
        )
    )
    return blocks
