"""`normscope domain`: where the data lives, and the constant there, from the command line."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..bounds.domain.coverage import Coverage
from ..bounds.domain.domain import Domain
from ..bounds.domain.domain import domain as record_domain
from ..bounds.ladder import Ladder, ladder
from ..core.errors import InputError
from ..core.files import write_text
from ..report.brackets import bracket_table
from ..report.document import Document, Text
from ..report.terminal import print_document
from .data_forms import BATCH_SIZE, open_data
from .messages import say_written
from .model_forms import FORMS, GivenModel, open_model, placed
from .objects import staying
from .options import Device, Mode, Trust
from .targets import check_targets, read_from

HELD_OUT = 5
"""Every so manieth batch does not define the domain: coverage is measured on it."""

HELP = """Record where the data lives inside a network, and bound the network there.

Four of five batches define the domain: the least variance of each normalizer, the range of every channel before an
activation, the gains of attention. The domain is the set of ALL inputs that stay in these ranges. Then: the bound on
the Jacobian norm over the domain, by every method, beside the bound over all inputs; and the share of the other
batches that lies inside, with its lower limit at a confidence of 95 %.

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
        typer.Option(help="gains: also the gain of each block at the data; some 100 passes a sample."),
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
    """Record a domain (its help is HELP)."""
    check_targets(save, json, inputs=read_from(model, data))
    with staying():
        given = _model(open_model(model, trust=trust))
        if data is None:
            raise InputError("a domain is where data lives: give --data")
        opened = open_data(data, placed(given, device, mode), batch_size=batch_size, seed=0)
        chosen = int(output) if output is not None and output.isdecimal() else output
        held: list[Any] = []
        batches = [opened.first] if opened.loader is None else opened.loader
        found = record_domain(
            given.module,
            list(_defining(batches, held)),
            margin=margin,
            quantile=quantile,
            record=record,
            mode=mode,
            output=chosen,
        )
        coverage = found.coverage(held) if held else None
        rungs = ladder(given.module, opened.first, domain=found, effort=effort, mode=mode, output=chosen)
    print_document(_document(given.name, found, coverage, rungs, (*opened.notes, *given.notes)))
    if save is not None:
        found.save(save)
        say_written(save)
    if json is not None:
        write_text(json, json_format.dumps(_plain(given.name, found, coverage, rungs), indent=1) + "\n")
        say_written(json)


def _model(given: GivenModel) -> GivenModel:
    if given.model is None:
        raise InputError(
            f"{given.name} holds weights and no model to run: name a function that builds the model "
            "(package.module:function)"
        )
    return given


def _defining(batches: Iterable[Any], held: list[Any]) -> Iterator[Any]:
    """Yield the batches that define the domain and put the others aside."""
    for number, batch in enumerate(batches, 1):
        if number % HELD_OUT:
            yield batch
        else:
            held.append(batch)


def _document(name: str, found: Domain, coverage: Coverage | None, rungs: Ladder, notes: tuple[str, ...]) -> Document:
    """Return what is printed: the figure that matters, then every method, then the coverage."""
    best, everywhere = rungs["best"], rungs["global"]
    unit = "inputs (whole batches)" if found.mode == "train" else "samples"
    headline = (
        f"At every input whose inner values stay in the ranges of {found.samples} {unit}, a small change grows at most "
        f"10^{best.log10_upper:.2f} times; over all inputs the bound is 10^{everywhere.log10_upper:.2f}."
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


def _plain(name: str, found: Domain, coverage: Coverage | None, rungs: Ladder) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": name,
        "samples": found.samples,
        "skipped": found.skipped,
        "margin": found.margin,
        "quantile": found.quantile,
        "record": found.record,
        "mode": found.mode,
        "coverage": None if coverage is None else coverage.to_json(),
        "rungs": {key: rung.to_json() for key, rung in rungs.items()},
    }
