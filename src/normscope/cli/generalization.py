"""`normscope generalization`: bounds on the loss on fresh data, from the command line."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import typer

from .. import data as data_sets
from ..core.errors import InputError
from ..generalize.bounding import CELLS
from ..generalize.bounding import generalization as bounded
from ..report.terminal import print_document
from .data_forms import UNIT, converted, dtype_of, folder_split, open_labelled
from .messages import say_written, write_result
from .model_forms import FORMS, GivenModel, open_runnable, place_model
from .objects import refuse_exit
from .options import Device, Html, Json, MaxSeconds, Seed, Trust
from .targets import check_targets, read_from

HELP = """Bound the loss of a trained classifier on fresh data in every known way, with the conditions of each bound.

The bounds are Theorem 20 of Than 2025 with its corollaries, VC, the norms and margins of Bartlett 2017, Neyshabur 2018
and Golowich 2020, PAC-Bayes with an optimised posterior, and the rates that the papers quote. Each row has a value, its
terms, its conditions and whether they hold here, and its evidence: certified, estimated, or a rate without constants.
A bound that is no smaller than the largest possible loss is called vacuous: most are.

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
    samples: Annotated[int, typer.Option(min=10, help="How many samples of each part to use at most.")] = 60_000,
    delta: Annotated[float, typer.Option(help="The probability with which each row may fail.")] = 0.01,
    loss: Annotated[Losses, typer.Option(help="The bounded loss.")] = "probability",
    cells: Annotated[
        list[int] | None,
        typer.Option(min=1, help="A number of regions to try, declared beforehand; may be given several times."),
    ] = None,
    partition: Annotated[Kinds, typer.Option(help="Where the cells come from.")] = "split",
    radius: Annotated[
        float | None, typer.Option(min=0.0, help="The radius of the cells; constants are then certified over balls.")
    ] = None,
    input_range: Annotated[
        tuple[float, float] | None,
        typer.Option(
            "--input-range", metavar="LOW HIGH", help="The range in which every entry of every input is known to lie."
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=0, help="How many steps to search for a PAC-Bayes posterior; 0 for no PAC-Bayes bound.")
    ] = 500,
    fixed: Annotated[
        list[str] | None,
        typer.Option(
            "--fixed",
            metavar="NAME",
            help="A buffer or another constant of the model that was fixed before DATA was seen, by its name or a "
            'pattern; "numbers" for all numbers in its code, "code" for these and all other arguments of operators, '
            '"all" for all of these. May be given several times.',
        ),
    ] = None,
    sharpness: Annotated[bool, typer.Option("--sharpness", help="Measure the sharpness, for one more rate.")] = False,
    duplicates: Annotated[int, typer.Option(min=0, help="How many samples may be read again.")] = 0,
    html: Html = None,
    json: Json = None,
    max_seconds: MaxSeconds = None,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Bound the loss on fresh data (the help of the command is HELP)."""
    check_targets(html, json, inputs=read_from(model, data))
    with refuse_exit():
        given = open_runnable(model, trust=trust)
        if data is None:
            raise InputError("the bounds need the data that the model was trained on: give --data")
        given = place_model(given, device, "eval")
        parts = _parts(data, test, held_out, given, samples, seed)
        result = bounded(
            given.module,
            parts.train,
            parts.test,
            parts.held_out,
            delta=delta,
            loss=loss,
            cells=tuple(cells) if cells else CELLS,
            partition=partition,
            radius=radius,
            input_range=input_range,
            steps=steps,
            fixed=tuple(fixed or ()),
            sharpness=sharpness,
            duplicates=duplicates,
            max_seconds=max_seconds,
            seed=seed,
        )
    result = dataclasses.replace(result, name=given.name, notes=(*parts.notes, *given.notes, *result.notes))
    print_document(result.document(brief=True))
    write_result(result, html, json)
    say_written(html, json)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParts:
    """The parts of the data as batches of inputs and labels, and notes for the report."""

    train: Any
    test: Any
    held_out: Any
    notes: tuple[str, ...]


def _parts(data: str, test: str | None, held_out: str | None, given: GivenModel, samples: int, seed: int) -> DataParts:
    """Return the parts of the data that the command line names."""
    train, fresh, notes = _train_and_test(data, given, samples, seed)
    if test is not None:
        fresh, more = _labelled(test, given, samples, seed)
        notes += more
    held, more = (None, ()) if held_out is None else _labelled(held_out, given, samples, seed)
    return DataParts(train=train, test=fresh, held_out=held, notes=(*notes, *more))


def _train_and_test(text: str, given: GivenModel, samples: int, seed: int) -> tuple[Any, Any, tuple[str, ...]]:
    """Return the training samples and, for named data sets, the test samples; and notes for the report."""
    name, colon, folder = text.partition(":")
    if text == "digits":
        split, values = data_sets.digits(generator=torch.Generator().manual_seed(seed)), UNIT
    elif name in ("mnist", "cifar10") and colon and folder:
        split, values = folder_split(name, folder, samples)
    else:
        train, notes = _labelled(text, given, samples, seed)
        return train, None, notes
    parts = []
    for images, labels in ((split.train_images, split.train_labels), (split.test_images, split.test_labels)):
        kept = converted(images[:samples], dtype_of(given.model), values)
        parts.append(list(zip(kept.split(BATCH), labels[:samples].split(BATCH))))
    return parts[0], parts[1], (f"data: {name}, {values}, training and test part",)


def _labelled(text: str, given: GivenModel, samples: int, seed: int) -> tuple[list[Any], tuple[str, ...]]:
    """Return batches with labels, and notes for the report; refuse data without labels."""
    labelled = open_labelled(text, given, samples=samples, seed=seed)
    batches = list(labelled.batches)
    if any(labels is None for _, labels in batches):
        raise InputError(f"{text} has no labels: bounds on a classifier need pairs of inputs and labels")
    return batches, labelled.notes
