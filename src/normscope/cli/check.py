"""`normscope check`: is anything wrong with a model, in a few forward and backward passes."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import typer

from ..core.errors import InputError
from ..core.finding import Severity
from ..diagnosis.checking import check as check_model
from ..report.terminal import print_document
from .audit import judge
from .data_forms import BATCH_SIZE, NOISE_SAMPLES, open_data
from .messages import say_written, write_result
from .model_forms import FORMS, open_model, place_model
from .objects import refuse_exit
from .options import Device, Html, Json, Seed, Trust, output_of
from .targets import check_targets, read_from

HELP = """Check a model in seconds: is anything wrong, and do values and gradients keep their scale with depth?

The model runs forward over the first 8 batches, and once forward and backward over the first. Nothing is traced and no
bound is computed, so this works on every model that runs; `normscope audit` measures more and takes longer. The result
is a verdict in one sentence, the findings with what to do about each, and one line per layer: mean, deviation and range
of its output, how much of the gradient comes back to it, how many of its units are saturated or dead, and how far its
values are from the limits of float16.

How to read the column `gradient`: it is an exponent of ten against the gradient at the output. A healthy network stays
within two or three decades; -10 in the first layer means that it gets a ten-billionth and does not learn.

MODEL and DATA are those of `normscope audit` (see its help); weights alone cannot be checked, they cannot run.

Exit codes: 0 fine, 1 a finding reaches --fail-on, 2 the check could not be made.
"""

EXAMPLES = """**Examples**

```
normscope check net.py:build --data digits
normscope check mypackage.models:resnet --data mypackage.data:train_loader --mode train --fail-on warning
normscope check google/vit-base-patch16-224 --html check.html
```
"""


def check(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA",
            help="What to run it on: digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE or package.module:loader. Left "
            "out, a Hugging Face model gets random noise of its own sizes, and the report says so.",
        ),
    ] = None,
    html: Html = None,
    json: Json = None,
    fail_on: Annotated[
        Severity | None,
        typer.Option(help="Exit with code 1 if a finding is this serious or more; reports call an info a note."),
    ] = None,
    mode: Annotated[
        Literal["train", "eval"] | None,
        typer.Option(help="Which of the model's two functions to check; left out, the one it is in when it is built."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="NAME", help="Which output to differentiate, by name or number, if there are several."
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help=f"Samples a batch, {BATCH_SIZE} if left out ({NOISE_SAMPLES} of noise).")
    ] = None,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Check a model (the help of the command is HELP)."""
    check_targets(html, json, inputs=read_from(model, data))
    with refuse_exit():
        given = open_model(model, trust=trust)
        if given.model is None:
            raise InputError(
                f"{given.name} holds weights and no model to run: normscope audit reads weights alone, or name a "
                "function that builds the model (package.module:function)"
            )
        batches = open_data(data, place_model(given, device, mode), batch_size=batch_size, seed=seed)
        result = check_model(
            given.model,
            batches.first,
            loader=batches.loader,
            mode=mode,
            output=output_of(output),
            name=given.name,
        )
    result = dataclasses.replace(result, notes=(*batches.notes, *given.notes, *result.notes))
    write_result(result, html, json)
    print_document(result.document(brief=True))
    say_written(html, json)
    judge(result.findings, fail_on)
