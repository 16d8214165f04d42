"""`normscope domain`: where the data lives, and the constant there, from the command line."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..bounds.domain.domain import Coverage, Domain
from ..bounds.domain.domain import domain as record_domain
from ..bounds.ladder import Ladder, ladder
from ..core.errors import InputError
from ..core.files import write_text
from ..report.brackets import bracket_table
from ..report.document import Document, Text
from ..report.terminal import print_document
from .data_forms import BATCH_SIZE, open_data
from .messages import say_written
from .model_forms import FORMS, open_runnable, place_model
from .objects import refuse_exit
from .options import Device, Mode, Trust, output_of
from .targets import check_targets, read_from

HELD_OUT = 5
"""The last of every this many batches does not define the domain: the coverage is measured on it."""

HELP = """Record where the data lives inside a network, and bound the network there.

Four of five batches define the domain: the least variance of each normalizer, the range of every channel before an
activation, the gains of attention. The domain is the set of ALL inputs that stay in these ranges. The result is the
bound on the Jacobian norm over the domain, by every method, beside the bound over all inputs; and the share of the
other batches that lies inside, with its lower limit at a confidence of 95 %.

MODEL and DATA are what `normscope audit` takes, but for weights alone.
"""

EXAMPLES = """**Examples**

```
normscope domain net.py:build --data digits
normscope domain mypackage.models:vit --data cifar10:~/data --quantile 0.01 --save domain.npz
normscope domain mypackage.models:vit --data mypackage.data:loader --record gains --json domain.json
```
"""


def domain(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA",
            help="Where the data is: digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE or package.module:loader.",
        ),
    ] = None,
    margin: Annotated[float, typer.Option(min=0.0, help="Widen every range by this share.")] = 0.0,
    quantile: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="The share of samples that each limit may leave outside.")
    ] = 0.0,
    record: Annotated[
        Literal["ranges", "gains"],
        typer.Option(help="gains: also the gain of each block at the data; some 100 passes per sample."),
    ] = "ranges",
    effort: Annotated[Literal["fast", "tight"], typer.Option(help="How hard to work on the bounds.")] = "fast",
    save: Annotated[Path | None, typer.Option(help="Write the domain here, for Domain.load.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures here.")] = None,
    mode: Mode = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="NAME", help="Which output to measure, by name or number, if the model returns several."
        ),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help=f"Samples a batch, {BATCH_SIZE} if left out.")] = None,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Record a domain (the help of the command is HELP)."""
    check_targets(save, json, inputs=read_from(model, data))
    with refuse_exit():
        given = open_runnable(model, trust=trust)
        if data is None:
            raise InputError("a domain is where data lives: give --data")
        opened = open_data(data, place_model(given, device, mode), batch_size=batch_size, seed=0)
        defining, held_out = _split([opened.first] if opened.loader is None else opened.loader)
        recorded = record_domain(
            given.module,
            defining,
            margin=margin,
            quantile=quantile,
            record=record,
            mode=mode,
            output=output_of(output),
        )
        coverage = recorded.coverage(held_out) if held_out else None
        rungs = ladder(given.module, opened.first, domain=recorded, effort=effort, mode=mode, output=output_of(output))
    print_document(_document(given.name, recorded, coverage, rungs, (*opened.notes, *given.notes)))
    if save is not None:
        recorded.save(save)
        say_written(save)
    if json is not None:
        write_text(json, json_format.dumps(_plain(given.name, recorded, coverage, rungs), indent=1) + "\n")
        say_written(json)


def _split(batches: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Return the batches that define the domain, and those on which the coverage is measured."""
    defining: list[Any] = []
    held_out: list[Any] = []
    for number, batch in enumerate(batches, 1):
        (defining if number % HELD_OUT else held_out).append(batch)
    return defining, held_out


def _document(
    name: str, recorded: Domain, coverage: Coverage | None, rungs: Ladder, notes: tuple[str, ...]
) -> Document:
    """Return what is printed: first the figure that matters, then the coverage, then every method."""
    best, everywhere = rungs["best"], rungs["global"]
    unit = "inputs (whole batches)" if recorded.mode == "train" else "samples"
    headline = (
        f"At every input whose inner values stay in the ranges of {recorded.samples} {unit}, a small change grows at "
        f"most 10^{best.log10_upper:.2f} times; over all inputs the bound is 10^{everywhere.log10_upper:.2f}."
    )
    share = (
        "No batch was left to measure the coverage on." if coverage is None else f"Of the data kept aside, {coverage}."
    )
    return Document(
        title=f"Where the data lives: {name}",
        blocks=(
            Text(body=headline),
            Text(body=share),
            bracket_table(
                rungs,
                title="Bounds",
                caption="Exponents of ten. The domain need not be convex: between two inputs the bound holds if the "
                "whole segment lies inside.",
            ),
            *(Text(body=note) for note in notes),
        ),
    )


def _plain(name: str, recorded: Domain, coverage: Coverage | None, rungs: Ladder) -> dict[str, Any]:
    """Return the figures as plain data."""
    return {
        "schema_version": 1,
        "name": name,
        "samples": recorded.samples,
        "skipped": recorded.skipped,
        "margin": recorded.margin,
        "quantile": recorded.quantile,
        "record": recorded.record,
        "mode": recorded.mode,
        "coverage": None if coverage is None else coverage.to_json(),
        "rungs": {key: rung.to_json() for key, rung in rungs.items()},
    }
