"""`predictive_power`: train a population and say how well each measure orders its generalization gaps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from normscope.data import Split
from normscope.toolkit import InputError, Ledger, Progress, outside_inference_mode, runner

from .cohorts import NETWORKS, PopulationWork
from .measures import MEASURES
from .member import Member
from .noisy import drawn
from .prediction import Prediction
from .recipes import Recipe, RecipeGrid, cohorts
from .stacked_training import Stop

LABEL_NOISE, LOSS, STEPS, MOMENTUM = 0.1, 0.05, 3000, 0.9
SAMPLES = 300
"""The number of training samples: few, so that there is a gap to predict."""


@outside_inference_mode
def predictive_power(
    split: Split,
    grid: RecipeGrid | None = None,
    *,
    network: str = "mlp",
    samples: int = SAMPLES,
    label_noise: float = LABEL_NOISE,
    target_loss: float = LOSS,
    steps: int = STEPS,
    momentum: float = MOMENTUM,
    measures: Sequence[str] | None = None,
    device: str | torch.device = "cpu",
    folder: str | os.PathLike[str] | None = None,
    engine: str = "local",
    workers: int | None = None,
    name: str = "data",
    seed: int = 0,
) -> Prediction:
    """Train a population of networks and measure how well each measure predicts the generalization gap.

    Every combination of the grid's values is trained with SGD to the same training loss, and networks that do not
    reach it are counted and left out. Networks that differ in learning rate, weight decay and seed alone are trained
    together (`torch.func`). Every measure (`MEASURES`) is taken of each network, without reading any test label.

    Args:
        split: a data set (`normscope.data`).
        grid: the axes of the population; None for 160 configurations with 2 seeds.
        network: `"mlp"`, or `"cnn"` for convolutions.
        samples: how many training samples to draw.
        label_noise: the probability with which a training label is replaced by another one.
        target_loss: the cross entropy on the training samples, in eval mode, at which a training ends.
        steps: the largest number of steps for each network.
        momentum: the momentum of SGD.
        measures: the names of the measures to take, of `MEASURES`; None for all.
        device: where to train and measure; a GPU is used from this process alone.
        folder: where to write one line of JSON per network, to go on from. A population that was killed goes on from
            there with the same arguments, and one with a larger grid adds to it. Networks of an older folder lack the
            measures that are new since.
        engine: where networks train: `"local"` for processes on this machine, or `"ray"` for a cluster (`pip install
            'normscope[ray]'`).
        workers: how many processes to start on this machine; 0 for none, None for one per core.
        name: the name of the data in the report.
        seed: the seed of the drawn samples, the label noise and the bootstrap.

    Returns:
        Kendall's tau of every measure, overall and by axis, with intervals; prints as a table, and has
        `.to_html(path)`, `.to_json(path)`.

    Raises:
        InputError: an option is outside its range, or there are too few samples.

    Example:
        >>> import torch
        >>> from normscope.data import digits
        >>> from normscope_lab.population.recipes import RecipeGrid
        >>> split = digits(generator=torch.Generator().manual_seed(0), test_share=0.8)
        >>> sizes = {"depths": (2,), "widths": (24,), "batch_sizes": (16,), "normalizers": ("none",)}
        >>> grid = RecipeGrid(**sizes, learning_rates=(0.1,), weight_decays=(0.0,), seeds=1)
        >>> found = predictive_power(split, grid, samples=40, target_loss=0.5, workers=0)
        >>> [member.status for member in found.members]
        ['reached']

    Reference: Jiang, Neyshabur, Mobahi, Krishnan and Bengio 2020, Fantastic Generalization Measures.
    """
    grid = grid or RecipeGrid()
    device = _checked(network, target_loss, steps, momentum, device)
    if unknown := set(measures or ()) - set(MEASURES):
        raise InputError(f"there is no measure {', '.join(sorted(unknown))}: take some of {', '.join(MEASURES)}")
    if device.type != "cpu" and engine == "ray":
        raise InputError('engine="ray" trains on processors: leave device out, or use engine="local"')
    data = drawn(split, samples=samples, label_noise=label_noise, generator=torch.Generator().manual_seed(seed))
    if max(grid.batch_sizes) > samples:
        raise InputError(f"there are {samples} training samples, too few for batches of {max(grid.batch_sizes)}")
    settings: dict[str, Any] = {
        "data": data.digest(),
        "samples": samples,
        "label_noise": label_noise,
        "network": network,
        "target_loss": target_loss,
        "steps": steps,
        "momentum": momentum,
    }
    if measures is not None:
        settings["measures"] = list(measures)
    stop = Stop(loss=target_loss, steps=steps)
    training = PopulationWork(data.to(device), network, stop, momentum, tuple(measures or MEASURES))
    ledger = Ledger(Member, folder, settings)
    recipes = grid.recipes()
    notes = _train(recipes, training, ledger, engine, workers)
    members = tuple(ledger.done[recipe.key] for recipe in recipes)
    return Prediction.of(name, members, settings, notes=notes, seed=seed)


def _train(
    recipes: Sequence[Recipe], training: PopulationWork, ledger: Ledger[Member], engine: str, workers: int | None
) -> list[str]:
    """Train and measure the networks that the ledger does not hold yet; return notes on how that went."""
    notes: list[str] = []
    left = [recipe for recipe in recipes if recipe.key not in ledger.done]
    jobs = cohorts(left)
    if training.network == "cnn" and not training.local:  # on a processor a stack of convolutions is slower
        jobs = [(recipe,) for recipe in sorted(left, key=lambda recipe: recipe.seed)]
    if left:
        with Progress("population", total=len(left)) as progress:
            for members in runner(engine, training, workers, notes)(jobs):
                for member in members:
                    ledger.add(member)
                    progress.step(member.key)
    return notes


def _checked(network: str, target_loss: float, steps: int, momentum: float, device: str | torch.device) -> torch.device:
    """Return the device; refuse options that are outside their ranges."""
    if network not in NETWORKS:
        raise InputError(f"network is one of {', '.join(NETWORKS)}, not {network!r}")
    if isinstance(target_loss, bool) or not isinstance(target_loss, int | float) or not 0.0 < target_loss < 1e6:
        raise InputError(f"target_loss is a number above 0, not {target_loss!r}")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise InputError(f"steps is a whole number from 1 on, not {steps!r}")
    if not 0.0 <= momentum < 1.0:
        raise InputError(f"momentum is a number from 0 to below 1, not {momentum!r}")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {str(device)!r} cannot be used here ({error})") from error
