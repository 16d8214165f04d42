"""`normscope symmetries`: which changes of its weights leave a model's function as it is, from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from ..geometry.symmetries import symmetries as measured
from ..report.terminal import print_document
from .data_forms import open_data
from .messages import say_written, write_result
from .model_forms import FORMS, open_runnable, place_model
from .objects import refuse_exit
from .options import Device, Html, Json, Mode, Seed, Trust, output_of
from .targets import check_targets, read_from

SAMPLES = 8
"""The default number of samples of the batch."""
HELP = """Find the changes of the weights that leave the function as it is.

A normalizer undoes the scale of the weights in front of it, a ReLU lets two layers trade a factor, queries and keys can
be mixed against each other. Each such symmetry is found in the graph and then checked in float64 at random elements:
the output stays, the gradient has no component along it, the Hessian and the Fisher information have the values that
follow. A symmetry that fails the check is shown as failed.

MODEL and DATA are what `normscope audit` takes, but for weights alone. A BatchNorm has its symmetry in train mode.
"""

EXAMPLES = """**Examples**

```
normscope symmetries net.py:build --data digits --mode train
normscope symmetries mypackage.models:vit --data cifar10:~/data --html symmetries.html
```
"""


def symmetries(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA",
            help="Where the data is: digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE or package.module:loader.",
        ),
    ] = None,
    html: Html = None,
    json: Json = None,
    mode: Mode = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="NAME", help="Which output to take, by name or number, if the model returns several."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples; a few are enough.")] = SAMPLES,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Find symmetries (the help of the command is HELP)."""
    check_targets(html, json, inputs=read_from(model, data))
    with refuse_exit():
        given = open_runnable(model, trust=trust)
        opened = open_data(data, place_model(given, device, mode), batch_size=batch_size, seed=seed)
        result = measured(given.module, opened.first, mode=mode, output=output_of(output), seed=seed)
    print_document(result.document(brief=True))
    write_result(result, html, json)
    say_written(html, json)
