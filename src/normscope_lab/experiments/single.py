"""Experiments of one job, whose measured numbers are the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from normscope.report import Block, Column, Table

from .base import Claim, Experiment, Figures, Job, Measured, Settings
from .judging import flat

ONLY = Job("all")
"""The one job of such an experiment."""


def single(
    *,
    name: str,
    title: str,
    about: str,
    measure: Callable[[Settings, Job, Path | None], Measured],
    claims: tuple[Claim, ...],
    settings: Settings,
) -> Experiment:
    """Return an experiment of one job that measures plain numbers, and shows them in a table."""
    return Experiment(
        name=name,
        title=title,
        about=about,
        quick=settings,
        full=settings,
        jobs=_jobs,
        measure=measure,
        figures=_figures,
        claims=claims,
        draw=_draw,
    )


def _jobs(settings: Settings) -> Sequence[Job]:
    return (ONLY,)


def _figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    return flat(measured[ONLY])


def _draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    columns = (Column(title="figure", kind="name"), Column(title="value", kind="number"))
    return (Table(title="What was measured", columns=columns, rows=tuple(flat(measured[ONLY]).items())),)
