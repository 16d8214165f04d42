"""`normscope curvature`: how a loss curves with the weights, from the command line."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Annotated, Any, Literal

import typer
from torch import nn

from ..core.errors import InputError
from ..geometry.curvature import Curvature
from ..geometry.flatness import flatness
from ..geometry.hessian import hessian
from ..geometry.margins import margins
from ..geometry.smoothness import smoothness
from ..report.terminal import print_document
from .data_forms import Labelled, open_labelled
from .messages import say_written, write_result
from .model_forms import FORMS, open_runnable, place_model
from .objects import load_object, refuse_exit
from .options import Device, Html, Json, MaxSeconds, Mode, Seed, Trust
from .targets import check_targets, read_from

HELP = """Measure how the loss curves with the weights: the sharpest directions, and the learning rate they allow.

The result is the largest eigenvalues of the Hessian of the mean loss over the data, each with its residual, without the
directions along which a normalizer undoes every change. 2 over the largest is the learning rate up to which gradient
descent is stable on a quadratic of this curvature.

MODEL is what `normscope audit` takes, but for weights alone. DATA has targets: `digits`, `mnist:FOLDER`,
`cifar10:FOLDER`, `npz:FILE` with x and y, or `package.module:loader` with `(x, y)` batches.

Train and eval mode are two different losses where the model has batch norms: the report names the mode.
"""


class Also(StrEnum):
    """Other results that can be measured beside the eigenvalues."""

    SMOOTHNESS = "smoothness"
    FLATNESS = "flatness"
    MARGINS = "margins"


EXAMPLES = """**Examples**

```
normscope curvature net.py:build --data digits --mode train --html curvature.html
normscope curvature mypackage.models:cnn --data cifar10:~/data --mode eval -k 10 --bottom 3 --probes 8
normscope curvature net.py:build --data digits --mode train --also flatness --also margins --html curvature.html
normscope curvature mypackage.models:regressor --data mypackage.data:loader --loss mypackage.train:loss
```
"""


def curvature(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA",
            help="Samples with targets: digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE or package.module:loader.",
        ),
    ] = None,
    loss: Annotated[
        str, typer.Option(help="The name of a loss, or package.module:function of outputs and targets.")
    ] = "cross_entropy",
    samples: Annotated[int, typer.Option(min=1, help="How many samples to take the loss over.")] = 256,
    k: Annotated[int, typer.Option("-k", min=1, help="How many of the largest eigenvalues to find.")] = 5,
    bottom: Annotated[int, typer.Option(min=0, help="How many of the smallest eigenvalues to find.")] = 0,
    probes: Annotated[
        int, typer.Option(min=0, help="How many random vectors for trace and density; about 20 products each.")
    ] = 0,
    blocks: Annotated[
        bool, typer.Option("--blocks", help="Find the largest eigenvalue of every parameter's diagonal block.")
    ] = False,
    deflate: Annotated[bool, typer.Option(help="Project out directions that have no effect.")] = True,
    matrix: Annotated[
        Literal["hessian", "gauss-newton"],
        typer.Option(help="gauss-newton leaves out the curvature of the network's outputs."),
    ] = "hessian",
    metric: Annotated[
        Literal["flat", "quotient"],
        typer.Option(help="quotient does not change when weights whose scale has no effect are rescaled."),
    ] = "flat",
    also: Annotated[
        list[Also] | None,
        typer.Option(help="Measure this too, with its own defaults; may be given several times."),
    ] = None,
    html: Html = None,
    json: Json = None,
    mode: Mode = None,
    max_seconds: MaxSeconds = None,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Measure curvature (the help of the command is HELP)."""
    check_targets(html, json, inputs=read_from(model, data))
    with refuse_exit():
        given = open_runnable(model, trust=trust)
        if data is None:
            raise InputError("a loss is one over data: give --data")
        labelled = open_labelled(data, place_model(given, device, mode), samples=samples, seed=seed)
        batches, function = _with_targets(labelled), _loss(loss)
        spectrum = hessian(
            given.module,
            function,
            batches,
            k=k,
            mode=mode,
            deflate=deflate,
            bottom=bottom,
            probes=probes,
            blocks=blocks,
            matrix=matrix,
            metric=metric,
            max_seconds=max_seconds,
            seed=seed,
        )
        others = [_measured(kind, given.module, function, batches, mode) for kind in dict.fromkeys(also or ())]
    spectrum = dataclasses.replace(spectrum, notes=(*labelled.notes, *given.notes, *spectrum.notes))
    result = Curvature(results=tuple(dataclasses.replace(one, name=given.name) for one in (spectrum, *others)))
    print_document(result.document(brief=True))
    write_result(result, html, json)
    say_written(html, json)


def _measured(kind: Also, model: nn.Module, loss: Any, batches: list[Any], mode: str | None) -> Any:
    """Measure one of the other results, of the same model and data."""
    match kind:
        case Also.SMOOTHNESS:
            return smoothness(model, loss, batches, mode=mode)
        case Also.FLATNESS:
            return flatness(model, loss, batches, mode=mode)
        case Also.MARGINS:
            return margins(model, batches, mode=mode)


def _loss(text: str) -> Any:
    """Return a loss by its name, or the user's own function."""
    if ":" not in text:
        return text
    function = load_object(text)
    if not callable(function):
        raise InputError(f"{text} is of type {type(function).__name__}: a loss is a function of outputs and targets")
    return function


def _with_targets(labelled: Labelled) -> list[Any]:
    """Return the batches; refuse those without targets."""
    batches = list(labelled.batches)
    if any(targets is None for _, targets in batches):
        raise InputError("the data have no targets: a loss needs pairs of inputs and targets")
    return batches
