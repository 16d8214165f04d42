"""`normscope lab predict`: which measures predict the generalization gap, over a population of trained networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from normscope.commands import (
    Html,
    Json,
    Seed,
    check_targets,
    folder_split,
    options_of,
    read_from,
    show_result,
    split_numbers,
)
from normscope.data import Split, digits
from normscope.toolkit import InputError

from ..population import predict as front
from ..population.recipes import RecipeGrid

DIGITS = 1797
"""How many images scikit-learn's digits have."""
LEAST_TESTS = 0.1
"""At least this share of the digits is kept for testing."""
WHOLE = 10**9
"""A limit on the number of images that no data set reaches."""

HELP = """Train a population of networks and measure which quantities predict their generalization gap.

Every combination of depth, width, normalizer, batch size, learning rate, weight decay and seed is trained to the same
training loss, on few samples of which some have a wrong label, so that there is a gap. Every measure is taken of each
network: norms, margins, bounds on how much it amplifies its input (over all inputs, DATA), sharpness. The
result is Kendall's tau of each measure with the measured gap: over all pairs, along each axis with the others fixed,
and the mean over axes (Psi of Jiang et al. 2020), with bootstrap intervals that do not count seeds as independent.
Networks that do not reach the training loss are counted and left out.

With `--folder` every network is one line of JSON there: after an interruption the same command continues from there,
and a command with more seeds or values adds the missing networks. A network that fails is recorded with the reason, and
the others go on.

DATA is `digits` (embedded, networks of linear layers), `mnist:FOLDER` (the same) or `cifar10:FOLDER` (convolutions).
320 networks on digits take about 20 minutes of one core.
"""

EXAMPLES = """
normscope lab predict --data digits --normalizers none,layer --widths 24 --depths 2,3 --seeds 1 --steps 99 --samples 100

normscope lab predict --data digits --folder runs/digits --html digits.html
normscope lab predict --data digits --seeds 5 --engine ray --folder runs/digits
normscope lab predict --data mnist:~/data --samples 2000 --widths 128,512 --device cuda --folder runs/mnist
normscope lab predict --data cifar10:~/data --samples 5000 --target-loss 0.1 --steps 20000 --device cuda --folder cifar
"""


@options_of(front.predictive_power, RecipeGrid)
def predict(
    data: Annotated[
        str, typer.Option("--data", metavar="DATA", help="digits, mnist:FOLDER or cifar10:FOLDER.")
    ] = "digits",
    *,
    depths: str,
    widths: str,
    normalizers: str,
    batch_sizes: str,
    learning_rates: str,
    weight_decays: str,
    seeds: Annotated[int, typer.Option(min=1)],
    samples: Annotated[int, typer.Option(min=2)],
    label_noise: Annotated[float, typer.Option(min=0.0, max=1.0)],
    target_loss: Annotated[float, typer.Option(min=0.0)],
    steps: Annotated[int, typer.Option(min=1)],
    momentum: Annotated[float, typer.Option(min=0.0, max=0.999)],
    device: str,
    folder: Path | None,
    engine: Literal["local", "ray"],
    workers: Annotated[int | None, typer.Option(min=0)],
    html: Html = None,
    json: Json = None,
    seed: Seed = 0,
) -> None:
    """Measure which quantities predict the gap (the help of the command is HELP)."""
    check_targets(html, json, inputs=read_from(data))
    grid = RecipeGrid(
        depths=split_numbers(depths, "--depths", int),
        widths=split_numbers(widths, "--widths", int),
        normalizers=[name.strip() for name in normalizers.split(",")],
        batch_sizes=split_numbers(batch_sizes, "--batch-sizes", int),
        learning_rates=split_numbers(learning_rates, "--learning-rates", float),
        weight_decays=split_numbers(weight_decays, "--weight-decays", float),
        seeds=seeds,
    )
    split, network = _split(data, samples, seed)
    result = front.predictive_power(
        split,
        grid,
        network=network,
        samples=samples,
        label_noise=label_noise,
        target_loss=target_loss,
        steps=steps,
        momentum=momentum,
        device=device,
        folder=folder,
        engine=engine,
        workers=workers,
        name=data.partition(":")[0],
        seed=seed,
    )
    show_result(result, html, json)


def _split(text: str, samples: int, seed: int) -> tuple[Split, str]:
    """Return a data set, and the kind of networks that are trained on it."""
    name, _, folder = text.partition(":")
    if text == "digits":
        share = max(LEAST_TESTS, 1.0 - samples / DIGITS)
        return digits(generator=torch.Generator().manual_seed(seed), test_share=share), "mlp"
    if name in ("mnist", "cifar10") and folder.removeprefix("raw:"):
        return folder_split(name, folder, WHOLE)[0], "mlp" if name == "mnist" else "cnn"
    raise InputError(f"--data {text!r} is none of digits, mnist:FOLDER and cifar10:FOLDER")
