"""`normscope generalization`: what bounds say of the loss on fresh data, from the command line."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import torch
import typer

from ..core.errors import InputError
from ..experiments import data as data_sets
from ..generalize.bounding import CELLS
from ..generalize.bounding import generalization as bounded
from ..report.terminal import print_document
from .data_forms import UNIT, converted, dtype_of, folder_split
from .labelled import open_labelled
from .messages import say_written
from .model_forms import FORMS, GivenModel, open_model, placed
from .objects import staying
from .options import Device, Html, Json, MaxSeconds, Seed, Trust
from .targets import check_targets, read_from

HELP = """Bound the loss of a trained classifier on fresh data in every known way, and say what each bound asks for.

Theorem 20 of Than 2025 with its corollaries, VC, the norms and margins of Bartlett 2017, Neyshabur 2018 and Golowich
2020, PAC-Bayes with a posterior that is searched for, and the rates that the papers quote. Each row has its value, its
terms, its conditions with whether they hold here, and its evidence: certified, estimated, or a rate without constants.
A bound that is larger than what it bounds can be is called vacuous: most are.

MODEL is what `normscope audit` takes, trained on the training part of DATA; it is measured in eval mode. `digits`,
`mnist:FOLDER` and `cifar10:FOLDER` have a test part of their own; for `npz:FILE` and `package.module:loader` name one
with --test. Samples for distances come from --held-out, or one in five of DATA is set aside.
"""

EXAMPLES = """**Examples**

```
normscope generalization net.py:trained --data digits --html bounds.html
normscope generalization net.py:trained --data mnist:raw:~/data --input-range 0 1 --samples 10000 --steps 5000
normscope generalization mypackage.models:cnn --data mypackage.data:train --test mypackage.data:test --device cuda
```
"""
Losses = Literal["probability", "ramp", "clipped_cross_entropy"]
Kinds = Literal["split", "random", "grid"]
BATCH = 256


def generalization(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA",
            help="What it was trained on: digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE or package.module:loader.",
        ),
    ] = None,
    test: Annotated[
        str | None, typer.Option("--test", metavar="DATA", help="Fresh samples, for the measured gap.")
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option("--held-out", metavar="DATA", help="Samples for cells and distances that are not in DATA."),
    ] = None,
    samples: Annotated[int, typer.Option(min=10, help="At most this many of each part.")] = 60_000,
    delta: Annotated[float, typer.Option(help="The probability with which each row may fail.")] = 0.01,
    loss: Annotated[Losses, typer.Option(help="The bounded loss.")] = "probability",
    cells: Annotated[
        list[int] | None,
        typer.Option(min=1, help="A number of regions to try, declared beforehand; may be given several times."),
    ] = None,
    partition: Annotated[Kinds, typer.Option(help="Where the cells come from.")] = "split",
    radius: Annotated[
        float | None, typer.Option(min=0.0, help="Of the cells: certifies constants over balls of this radius.")
    ] = None,
    input_range: Annotated[
        tuple[float, float] | None,
        typer.Option(
            "--input-range", metavar="LOW HIGH", help="What every entry of every input is known to lie between."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Of the search for a PAC-Bayes posterior; 0 leaves it out.")] = 500,
    sharpness: Annotated[bool, typer.Option("--sharpness", help="Measure the sharpness, for one more rate.")] = False,
    duplicates: Annotated[int, typer.Option(min=0, help="How many samples two parts may share.")] = 0,
    html: Html = None,
    json: Json = None,
    max_seconds: MaxSeconds = None,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Bound the loss on fresh data (its help is HELP)."""
    check_targets(html, json, inputs=read_from(model, data))
    with staying():
        given = open_model(model, trust=trust)
        if given.model is None:
            raise InputError(f"{given.name} holds weights and no model to run: name a function that builds the model")
        if data is None:
            raise InputError("bounds speak of the data a model was trained on: give --data")
        given = placed(given, device, "eval")
        train, fresh, notes = _parts(data, given, samples, seed)
        if test is not None:
            fresh, more = _labelled(test, given, samples, seed)
            notes += more
        held, more = (None, ()) if held_out is None else _labelled(held_out, given, samples, seed)
        found = bounded(
            given.module,
            train,
            fresh,
            held,
            delta=delta,
            loss=loss,
            cells=tuple(cells) if cells else CELLS,
            partition=partition,
            radius=radius,
            input_range=input_range,
            steps=steps,
            sharpness=sharpness,
            duplicates=duplicates,
            max_seconds=max_seconds,
            seed=seed,
        )
    found = dataclasses.replace(found, name=given.name, notes=(*notes, *more, *given.notes, *found.notes))
    print_document(found.document(brief=True))
    if html is not None:
        found.to_html(html)
    if json is not None:
        found.to_json(json)
    say_written(html, json)


def _parts(text: str, given: GivenModel, samples: int, seed: int) -> tuple[Any, Any, tuple[str, ...]]:
    """Return what the model was trained on and, for named data sets, the part kept for testing."""
    name, colon, place = text.partition(":")
    if text == "digits":
        split, values = data_sets.digits(generator=torch.Generator().manual_seed(seed)), UNIT
    elif name in ("mnist", "cifar10") and colon and place:
        split, values = folder_split(name, place, samples)
    else:
        train, notes = _labelled(text, given, samples, seed)
        return train, None, notes
    parts = []
    for images, labels in ((split.train_images, split.train_labels), (split.test_images, split.test_labels)):
        kept = converted(images[:samples], dtype_of(given.model), values)
        parts.append(list(zip(kept.split(BATCH), labels[:samples].split(BATCH))))
    return parts[0], parts[1], (f"data: {name}, {values}, training and test part",)


def _labelled(text: str, given: GivenModel, samples: int, seed: int) -> tuple[list[Any], tuple[str, ...]]:
    """Return batches with labels; refuse those without."""
    found = open_labelled(text, given, samples=samples, seed=seed)
    batches = list(found.batches)
    if any(labels is None for _, labels in batches):
        raise InputError(f"{text} has no labels: bounds on a classifier need pairs of inputs and labels")
    return batches, found.notes
