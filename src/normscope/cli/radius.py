"""`normscope radius`: certified radii of samples from the command line."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import typer

from ..bounds.radius.radius import certified_radius
from ..core.errors import InputError
from ..pages.radii import radii_document
from ..report.terminal import print_document
from .data_forms import open_labelled
from .messages import say_written, write_result
from .model_forms import FORMS, open_runnable, place_model
from .objects import refuse_exit
from .options import Device, Html, Json, Seed, Trust, output_of
from .targets import check_targets, read_from

HELP = """Certify how far samples can be changed before their class can change, and attack them for comparison.

For each sample: the largest l2 radius found within which the class provably cannot change, and the length of the
smallest change that an attack found. Then the accuracy by radius: certified, and under attack.

MODEL is a classifier, in any form that `normscope audit` takes but weights alone; it is measured in eval mode.

DATA is one of

- `digits` (comes with scikit-learn), `mnist:FOLDER`, `cifar10:FOLDER`: images kept for testing, with their classes;
  `mnist:raw:FOLDER`, `cifar10:raw:FOLDER`: with values from 0 to 1
- `npz:FILE` with the inputs in an array called x, images or data, and the classes in y, labels or targets
- `package.module:loader`: a DataLoader, a Dataset or a list of `(x, y)` batches; without y the predicted classes count.

Radii are l2 distances in the units of the data: MNIST and CIFAR-10 are standardised, so a distance of 1 is one standard
deviation of the pixels there; with `raw:` it is the step from black to white of one pixel.
"""

EXAMPLES = """**Examples**

```
normscope radius net.py:build --data digits --samples 100 --html radii.html
normscope radius mypackage.models:cnn --data mnist:~/data --effort tight --at 0.5 --at 1
normscope radius mypackage.models:cnn --data mypackage.data:test_loader --json radii.json
```
"""


def radius(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA",
            help="Samples with their classes: digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE or package.module:loader.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many samples to certify.")] = 100,
    effort: Annotated[
        Literal["fast", "tight"], typer.Option(help="How hard to try: tight takes longer and certifies more.")
    ] = "fast",
    at: Annotated[
        list[float] | None, typer.Option(min=0.0, help="A radius to show the accuracy at; may be given several times.")
    ] = None,
    attack: Annotated[bool, typer.Option(help="Attack the samples too.")] = True,
    html: Html = None,
    json: Json = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="NAME", help="Which output to take, by name or number, if the model returns several."
        ),
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(min=0.0, help="Stop after this time: radii stay certified but are smaller.")
    ] = None,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Certify radii (the help of the command is HELP)."""
    check_targets(html, json, inputs=read_from(model, data))
    with refuse_exit():
        given = open_runnable(model, trust=trust)
        if given.fixed_mode and given.module.training:
            raise InputError(f"{given.name} was exported in train mode, where samples have no class of their own")
        labelled = open_labelled(data, place_model(given, device, None), samples=samples, seed=seed)
        radii = certified_radius(
            given.module,
            labelled.batches,
            effort=effort,
            attack=attack,
            mode="eval",
            output=output_of(output),
            max_seconds=max_seconds,
            seed=seed,
        )
    radii = dataclasses.replace(radii, name=given.name, notes=(*labelled.notes, *given.notes, *radii.notes))
    write_result(radii, html, json)
    print_document(radii_document(radii, brief=True, at=at))
    say_written(html, json)
