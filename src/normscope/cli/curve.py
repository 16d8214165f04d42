"""`normscope curve`: how much a small change grows, by the share of the data, from the command line."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ..bounds.curve.curve import SAMPLES
from ..bounds.curve.curve import curve as measured
from ..core.errors import InputError
from ..report.terminal import print_document
from .data_forms import BATCH_SIZE, open_data
from .messages import say_written
from .model_forms import FORMS, open_model, placed
from .objects import staying
from .options import Device, Html, Json, MaxSeconds, Mode, Seed, Trust
from .targets import check_targets, read_from

HELP = """Measure how much a small change of the input grows, by the share of the data.

Two answers to one question, each with confidence 95 %. DATA: at that share of fresh data the growth at that very input
is at most this. DOMAIN: that share lies in a set of inputs, at ALL of which the growth is at most this, also at inputs
that are no data. The data are read once: four of five samples define domains of several widths, each inside the next,
and the fifth says how much fresh data lies in each.

MODEL and DATA are what `normscope audit` takes, but for weights alone. The order of the data must have no meaning.
"""

EXAMPLES = """**Examples**

```
normscope curve net.py:build --data digits --html curve.html
normscope curve mypackage.models:vit --data cifar10:~/data --samples 500 --json curve.json
```
"""


def curve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA",
            help="Where the data is: digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE or package.module:loader.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="How many to read, if there are so many.")] = SAMPLES,
    record: Annotated[
        Literal["ranges", "gains"],
        typer.Option(help="gains: also the gain of each block at the data; some 100 passes a sample."),
    ] = "ranges",
    effort: Annotated[Literal["fast", "tight"], typer.Option(help="How hard to work on the bounds.")] = "fast",
    html: Html = None,
    json: Json = None,
    mode: Mode = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="NAME", help="Which output to measure, by name or number, if the model returns several."
        ),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help=f"Samples a batch, {BATCH_SIZE} if left out.")] = None,
    max_seconds: MaxSeconds = None,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Measure a curve (its help is HELP)."""
    check_targets(html, json, inputs=read_from(model, data))
    with staying():
        given = open_model(model, trust=trust)
        if given.model is None:
            raise InputError(f"{given.name} holds weights and no model to run: name a function that builds the model")
        if data is None:
            raise InputError("a curve speaks of data: give --data")
        opened = open_data(data, placed(given, device, mode), batch_size=batch_size, seed=seed)
        found = measured(
            given.module,
            [opened.first] if opened.loader is None else opened.loader,
            samples=samples,
            record=record,
            effort=effort,
            mode=mode,
            output=int(output) if output is not None and output.isdecimal() else output,
            max_seconds=max_seconds,
            seed=seed,
        )
    print_document(found.document(brief=True))
    if html is not None:
        found.to_html(html)
    if json is not None:
        found.to_json(json)
    say_written(html, json)
