"""The verbs about weights and training: `curvature`, `symmetries`, `measures` and `choose`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from torch import nn

from ..bounds.geometry.curvature import Curvature
from ..bounds.geometry.flatness import flatness
from ..bounds.geometry.hessian import hessian
from ..bounds.geometry.margins import margins
from ..bounds.geometry.measures import measures as take_measures
from ..bounds.geometry.smoothness import smoothness
from ..bounds.geometry.symmetries import symmetries as find_symmetries
from ..choosing.choose import choose as run_choice
from ..choosing.task import MOST_SAMPLES
from ..core.errors import InputError
from ..doctor.monitor.run import Run
from ..theory.losses import LOSSES
from .data_forms import open_data, open_split, open_with_labels
from .messages import measuring, show_result
from .model_forms import GivenModel, load_object, open_runnable
from .options import (
    Count,
    Data,
    DataOrNoise,
    Device,
    Html,
    Json,
    MaxSeconds,
    Mode,
    Model,
    Output,
    PositiveCount,
    Seed,
    Trust,
    options_of,
    output_of,
)

CURVATURE_EXAMPLES = """
normscope curvature normscope.networks:mlp --data digits --mode train --html curvature.html

normscope curvature mypackage.models:cnn --data cifar10:~/data --mode eval -k 10 --bottom 3 --probes 8
normscope curvature net.py:build --data digits --mode train --also flatness --also margins --html curvature.html
normscope curvature mypackage.models:regressor --data mypackage.data:loader --loss mypackage.train:loss
"""
SYMMETRIES_EXAMPLES = """
normscope bound symmetries normscope.networks:residual_mlp --data digits --mode train

normscope bound symmetries mypackage.models:vit --data cifar10:~/data --html symmetries.html
"""
MEASURES_EXAMPLES = """
normscope measures normscope.networks:mlp --data digits --only norms --only path --only outputs

normscope measures net.py:trained --data digits --start net.py:build --html measures.html
normscope measures mypackage.models:cnn --data mypackage.data:train --run runs/a --max-seconds 300
"""
CHOOSE_EXAMPLES = """
normscope choose normscope.networks:mlp --data digits --normalizers none,layer --batch-sizes 32 --steps 50 --seeds 1

normscope choose net.py:build --data digits --batch-sizes 2,8,32,128 --steps 300 --folder runs/choice --html choice.html
normscope choose mypackage.models:cnn --data cifar10:~/data --normalizers batch,group --seeds 5
normscope choose mypackage.models:cnn --data mypackage.data:train_loader --engine ray
"""


class Also(StrEnum):
    """Other results that can be measured beside the eigenvalues."""

    SMOOTHNESS = "smoothness"
    FLATNESS = "flatness"
    MARGINS = "margins"


NamedLoss = Annotated[
    str, typer.Option("--loss", help="The name of a loss, or package.module:function of outputs and targets.")
]


@options_of(hessian)
def curvature(
    model: Model,
    data: Data,
    *,
    loss: NamedLoss = "cross_entropy",
    samples: Annotated[int, typer.Option(min=1, help="How many samples to take the loss over.")] = 256,
    k: Annotated[int, typer.Option("-k", min=0)],
    bottom: Count,
    probes: Count,
    density: bool,
    blocks: Annotated[bool, typer.Option("--blocks")],
    deflate: bool,
    matrix: Literal["hessian", "gauss-newton"],
    metric: Literal["flat", "quotient"],
    also: Annotated[
        list[Also] | None,
        typer.Option(help="Measure this too, with its own defaults; may be given several times."),
    ] = None,
    html: Html = None,
    json: Json = None,
    mode: Mode,
    max_seconds: MaxSeconds,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Measure how the loss curves with the weights: the sharpest directions, and the learning rate they allow.

    The result is the largest eigenvalues of the Hessian of the mean loss over the data, each with its residual, without
    the directions along which a normalizer undoes every change. 2 over the largest is the learning rate up to which
    gradient descent is stable on a quadratic of this curvature.

    MODEL is what `normscope audit` takes, but for weights alone. DATA has targets: `digits`, `mnist:FOLDER`,
    `cifar10:FOLDER`, `npz:FILE` with x and y, or `package.module:loader` with `(x, y)` batches.

    Train and eval mode are two different losses where the model has batch norms: the report names the mode.
    """
    with measuring(model, data, html, json):
        subject = open_runnable(model, trust=trust, device=device, mode=mode)
        batches, notes = open_with_labels(data, subject, samples=samples, seed=seed)
        function = _loss(loss)
        spectrum = hessian(
            subject.module,
            batches,
            loss=function,
            k=k,
            mode=mode,
            deflate=deflate,
            bottom=bottom,
            probes=probes,
            density=density,
            blocks=blocks,
            matrix=matrix,
            metric=metric,
            max_seconds=max_seconds,
            seed=seed,
        )
        measure: dict[Also, Callable[[], Any]] = {
            Also.SMOOTHNESS: lambda: smoothness(subject.module, batches, loss=function, mode=mode),
            Also.FLATNESS: lambda: flatness(subject.module, batches, loss=function, mode=mode),
            Also.MARGINS: lambda: margins(subject.module, batches, mode=mode),
        }
        others = [measure[kind]() for kind in dict.fromkeys(also or ())]
    spectrum = dataclasses.replace(spectrum, notes=(*notes, *subject.notes, *spectrum.notes))
    result = Curvature(results=tuple(dataclasses.replace(one, name=subject.name) for one in (spectrum, *others)))
    show_result(result, html, json)


def _loss(text: str) -> Any:
    """Return a loss by its name, or the user's own function."""
    if ":" not in text:
        return text
    function = load_object(text)
    if not callable(function):
        raise InputError(f"{text} is of type {type(function).__name__}: a loss is a function of outputs and targets")
    return function


@options_of(find_symmetries)
def symmetries(
    model: Model,
    data: DataOrNoise = None,
    *,
    html: Html = None,
    json: Json = None,
    mode: Mode,
    output: Output,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples; a few are enough.")] = 8,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Find the changes of the weights that leave the function as it is.

    A normalizer undoes the scale of the weights in front of it, a ReLU lets two layers trade a factor, queries and keys
    can be mixed against each other. Each such symmetry is found in the graph and then checked in float64 at random
    elements: the output stays, the gradient has no component along it, the Hessian and the Fisher information have the
    values that follow. A symmetry that fails the check is shown as failed.

    MODEL and DATA are what `normscope audit` takes, but for weights alone. A BatchNorm has its symmetry in train mode.
    """
    with measuring(model, data, html, json):
        subject = open_runnable(model, trust=trust, device=device, mode=mode)
        opened = open_data(data, subject, batch_size=batch_size, seed=seed)
        result = find_symmetries(subject.module, opened.first, mode=mode, output=output_of(output), seed=seed)
    show_result(result, html, json)


@options_of(take_measures)
def measures(
    model: Model,
    data: Data,
    *,
    start: Annotated[
        str | None,
        typer.Option("--start", metavar="MODEL", help="The model before its training, in the same form as MODEL."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="FOLDER", help="The watched training run, for how long the loss took."),
    ] = None,
    only: list[str] | None,
    loss: NamedLoss,
    samples: Annotated[int, typer.Option(min=1, help="How many samples to use at most.")] = 1000,
    html: Html = None,
    json: Json = None,
    max_seconds: MaxSeconds,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Take every measure of generalization that the literature compares, of a trained classifier.

    The table has norms of the weights, their products over the margin, distances from the start, path norms, the
    largest noise and the largest box that keep the training error, sharpness in several definitions, and what the
    training run shows (Jiang et al. 2020, Dziugaite et al. 2020). Each row says what it rests on, and whether it stays
    when layers are rescaled without effect. A larger value should mean a larger gap; none of them is a bound, for which
    see `normscope generalization`. A measure that makes no sense for the model has a reason in place of a value.

    MODEL is what `normscope audit` takes, trained on DATA; it is measured in eval mode. Of `digits`, `mnist:FOLDER` and
    `cifar10:FOLDER` the training part is read, as `normscope generalization` does.
    """
    with measuring(model, data, html, json):
        subject = open_runnable(model, trust=trust, device=device, mode="eval")
        begun = None if start is None else open_runnable(start, trust=trust, device=device).module
        train, _, notes = open_split(data, subject, samples=samples, seed=seed)
        result = take_measures(
            subject.module,
            train,
            loss=_loss(loss),
            start=begun,
            losses=None if run is None else Run(run).total("loss"),
            only=only,
            max_seconds=max_seconds,
            seed=seed,
        )
    result = dataclasses.replace(result, name=subject.name, notes=(*notes, *subject.notes, *result.notes))
    show_result(result, html, json)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Builds the model that the command line names, in any process."""

    text: str
    device: str | None = None

    def __call__(self) -> nn.Module:
        """Return a new model."""
        return open_runnable(self.text, trust=False, device=self.device).module


@options_of(run_choice)
def choose(
    model: Model,
    data: Data,
    *,
    normalizers: str,
    batch_sizes: str,
    learning_rates: str,
    seeds: PositiveCount,
    steps: PositiveCount,
    momentum: Annotated[float, typer.Option(min=0.0, max=0.999)],
    loss: Annotated[str, typer.Option(help=f"One of {', '.join(LOSSES)}.")] = "cross_entropy",
    samples: Annotated[int, typer.Option(min=10)] = MOST_SAMPLES,
    capacity: bool,
    folder: Path | None,
    engine: Literal["local", "ray"],
    workers: Annotated[int | None, typer.Option(min=0)],
    html: Html = None,
    json: Json = None,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Choose a normalizer: train short runs of a model's twins and compare them.

    Twins are copies of the model with its normalizers removed or replaced (none, batch, layer, group, instance, rms).
    Each is trained with every batch size, learning rate and seed, for a few hundred steps of SGD, and watched. The
    result is a recommendation with its figures and how certain it is, and one table: whether each twin trains, its
    held-out loss, largest stable learning rate, capacity, noise of the variance estimates, cost of a step, and
    findings.

    With `--folder` every finished run is one line of JSON there: after an interruption the same command continues from
    there, and `--seeds 5` instead of 2 adds the missing runs.

    The runs are short: they show which twins train at all, and which train fast; after a hundred epochs another one may
    be best. 120 runs of 300 steps of a small network take about two minutes on two cores.

    MODEL is `package.module:function` or `path/to/file.py:function` (called for every seed), or the name of a model
    there. DATA is `digits`, `mnist:FOLDER`, `cifar10:FOLDER` (training images), `npz:FILE` with labels, or a loader of
    pairs.
    """
    sizes, rates = numbers(batch_sizes, "--batch-sizes", int), numbers(learning_rates, "--learning-rates", float)
    with measuring(model, data, html, json):
        subject = open_runnable(model, trust=trust, device=device)
        choice = run_choice(
            _source(model, subject, device),
            open_split(data, subject, samples=samples, seed=seed)[0],
            loss=loss,
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
            name=subject.name,
        )
    show_result(choice, html, json)


def _source(text: str, subject: GivenModel, device: str | None) -> nn.Module | Callable[[], nn.Module]:
    """Return a builder if the command line names one, so that seeds differ in their weights; else the model."""
    module, colon, _ = text.rpartition(":")
    builds = colon and module and not isinstance(load_object(text), nn.Module)
    return ModelSource(text, device) if builds else subject.module


def numbers(text: str, option: str, kind: Callable[[str], Any]) -> list[Any]:
    """Return the numbers of an option that holds several, with commas between them."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} are numbers with commas between them, not {text!r}") from error
