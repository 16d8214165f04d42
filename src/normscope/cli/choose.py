"""`normscope choose`: which normalizer, batch size and learning rate train a model best, from the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from torch import Tensor, nn

from .. import data as data_sets
from ..choosing.choice import NAMES
from ..choosing.choose import BATCH_SIZES, LEARNING_RATES
from ..choosing.choose import choose as run_choice
from ..choosing.task import MOST_SAMPLES
from ..core.errors import InputError
from ..report.terminal import print_document
from ..theory.losses import LOSSES
from .data_forms import converted, dtype_of, folder_split, open_labelled
from .messages import say_written, write_result
from .model_forms import FORMS, GivenModel, open_model
from .objects import load_object, refuse_exit
from .options import Html, Json, Seed, Trust
from .targets import check_targets, read_from

HELP = """Choose a normalizer: train short runs of a model's twins and compare them.

Twins are copies of the model with its normalizers removed or replaced (none, batch, layer, group, instance, rms). Each
is trained with every batch size, learning rate and seed, for a few hundred steps of SGD, and watched. The result is a
recommendation with its figures and how certain it is, and one table: whether each twin trains, its held-out loss,
largest stable learning rate, capacity, noise of the variance estimates, cost of a step, and findings.

With `--folder` every finished run is one line of JSON there: after an interruption the same command continues from
there, and `--seeds 5` instead of 2 adds the missing runs.

The runs are short: they show which twins train at all, and which train fast; after a hundred epochs another one may be
best. 120 runs of 300 steps of a small network take about two minutes on two cores.

MODEL is `package.module:function` or `path/to/file.py:function` (called for every seed), or the name of a model there.
DATA is `digits`, `mnist:FOLDER`, `cifar10:FOLDER` (training images), `npz:FILE` with labels, or a loader of pairs.
"""

EXAMPLES = """**Examples**

```
normscope choose net.py:build --data digits --batch-sizes 2,8,32,128 --steps 300 --folder runs/choice --html choice.html
normscope choose mypackage.models:cnn --data cifar10:~/data --normalizers batch,group --seeds 5
normscope choose mypackage.models:cnn --data mypackage.data:train_loader --engine ray
```
"""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Builds the model that the command line names, in any process."""

    text: str

    def __call__(self) -> nn.Module:
        """Return a new model."""
        model = open_model(self.text, trust=False).model
        if model is None:
            raise InputError(f"{self.text} holds weights and no model to train")
        return model


def choose(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}.", show_default=False)],
    data: Annotated[
        str, typer.Option("--data", metavar="DATA", help="What to train on, with labels.", show_default=False)
    ],
    normalizers: Annotated[str, typer.Option(help="The normalizers to try, with commas.")] = ",".join(NAMES),
    batch_sizes: Annotated[str, typer.Option(help="The batch sizes to try, with commas.")] = ",".join(
        map(str, BATCH_SIZES)
    ),
    learning_rates: Annotated[str, typer.Option(help="The learning rates of SGD to try, with commas.")] = ",".join(
        map(str, LEARNING_RATES)
    ),
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each kind; intervals come from them.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="How many steps every run takes.")] = 300,
    momentum: Annotated[float, typer.Option(min=0.0, max=0.999, help="The momentum of SGD.")] = 0.9,
    loss: Annotated[str, typer.Option(help=f"One of {', '.join(LOSSES)}.")] = "cross_entropy",
    samples: Annotated[
        int, typer.Option(min=10, help="How many samples of the data to use at most; a fifth is held out.")
    ] = MOST_SAMPLES,
    capacity: Annotated[
        bool, typer.Option(help="Measure how much trained models amplify a change of the input.")
    ] = True,
    folder: Annotated[
        Path | None, typer.Option(help="Keep one line of JSON per finished run here, to go on from.")
    ] = None,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Processes on this machine, or a Ray cluster.")
    ] = "local",
    workers: Annotated[int | None, typer.Option(min=0, help="Processes; left out, one per core.")] = None,
    html: Html = None,
    json: Json = None,
    seed: Seed = 0,
    trust: Trust = False,
) -> None:
    """Choose a normalizer (the help of the command is HELP)."""
    check_targets(html, json, inputs=read_from(model, data))
    sizes, rates = numbers(batch_sizes, "--batch-sizes", int), numbers(learning_rates, "--learning-rates", float)
    with refuse_exit():
        given = open_model(model, trust=trust)
        if given.model is None:
            raise InputError(f"{given.name} holds weights and no model to train: name a function that builds the model")
        choice = run_choice(
            _source(model, given),
            _pairs(data, given, samples, seed),
            loss,
            normalizers=[name.strip() for name in normalizers.split(",")],
            batch_sizes=sizes,
            learning_rates=rates,
            seeds=seeds,
            steps=steps,
            momentum=momentum,
            samples=samples,
            capacity=capacity,
            folder=folder,
            engine=engine,
            workers=workers,
            name=given.name,
        )
    write_result(choice, html, json)
    print_document(choice.document(brief=True))
    say_written(html, json)


def _source(text: str, given: GivenModel) -> nn.Module | Callable[[], nn.Module]:
    """Return a builder if the command line names one, so that seeds differ in their weights; else the model."""
    module, colon, _ = text.rpartition(":")
    builds = colon and module and not isinstance(load_object(text), nn.Module)
    return ModelSource(text) if builds else given.module


def numbers(text: str, option: str, kind: Callable[[str], Any]) -> list[Any]:
    """Return the numbers of an option that holds several, with commas between them."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} are numbers with commas between them, not {text!r}") from error


def _pairs(text: str, given: GivenModel, samples: int, seed: int) -> list[tuple[Any, Tensor]]:
    """Return batches of inputs and labels: the training part of named data sets, else the user's data."""
    name, colon, folder = text.partition(":")
    if text == "digits" or (name in ("mnist", "cifar10") and colon and folder):
        generator = torch.Generator().manual_seed(seed)
        split = data_sets.digits(generator=generator) if text == "digits" else folder_split(name, folder, samples)[0]
        images = converted(split.train_images[:samples], dtype_of(given.model), text)
        return [(images, split.train_labels[:samples])]
    batches = list(open_labelled(text, given, samples=samples, seed=seed).batches)
    if any(labels is None for _, labels in batches):
        raise InputError(f"--data {text} has no labels: batches are pairs of inputs and labels")
    return batches
