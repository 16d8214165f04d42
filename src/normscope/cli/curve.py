"""`normscope curve`: how much a small change grows, by the share of the data, from the command line."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ..bounds.curve.curve import SAMPLES
from ..bounds.curve.curve import curve as measured
from ..core.errors import InputError
from ..report.terminal import print_document
from .data_forms import BATCH_SIZE, open_data
from .messages import say_written, write_result
from .model_forms import FORMS, open_runnable, place_model
from .objects import refuse_exit
from .options import Device, Html, Json, MaxSeconds, Mode, Seed, Trust, output_of
from .targets import check_targets, read_from

HELP = """Measure how much a small change of the input grows, by the share of the data.

There are two answers, each with confidence 95 %. DATA: for that share of fresh data, the growth at the input itself is
at most this. DOMAIN: that share lies in a set of inputs, and at ALL inputs of the set, also at those that are no data,
the growth is at most this. The data are read once: four of five samples define domains of several widths, each inside
the next, and the fifth measures how much fresh data lies in each.

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
    samples: Annotated[int, typer.Option(min=2, help="How many samples to read at most.")] = SAMPLES,
    record: Annotated[
        Literal["ranges", "gains"],
        typer.Option(help="gains: also the gain of each block at the data; some 100 passes per sample."),
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
    """Measure a curve (the help of the command is HELP)."""
    check_targets(html, json, inputs=read_from(model, data))
    with refuse_exit():
        given = open_runnable(model, trust=trust)
        if data is None:
            raise InputError("a curve is measured on data: give --data")
        opened = open_data(data, place_model(given, device, mode), batch_size=batch_size, seed=seed)
        result = measured(
            given.module,
            [opened.first] if opened.loader is None else opened.loader,
            samples=samples,
            record=record,
            effort=effort,
            mode=mode,
            output=output_of(output),
            max_seconds=max_seconds,
            seed=seed,
        )
    print_document(result.document(brief=True))
    write_result(result, html, json)
    say_written(html, json)
