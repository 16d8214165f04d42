"""`choose`: which normalizer, batch size and learning rate train a model best, by short runs of its twins."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from torch import nn

from ..core.errors import InputError
from ..core.options import check_counts
from ..core.progress import Progress
from ..core.untouched import outside_inference_mode, unwrapped
from ..geometry.batches import LossFunction, loss_function
from ..jobs.engines import runner
from ..jobs.ledger import Ledger
from ..theory.losses import Loss
from .choice import NAMES, Choice, RunOutcome
from .run_training import Job, Training
from .task import Samples, TrainingRun, TrainingTask, build_seeded_model, gather

BATCH_SIZES = (2, 8, 32, 128)
LEARNING_RATES = (0.001, 0.01, 0.1)


@outside_inference_mode
def choose(
    model: nn.Module | Callable[[], nn.Module],
    loader: Any,
    loss_fn: LossFunction | str | Loss | None = "cross_entropy",
    *,
    normalizers: Sequence[str] = tuple(NAMES),
    batch_sizes: Sequence[int] = BATCH_SIZES,
    learning_rates: Sequence[float] = LEARNING_RATES,
    seeds: int = 2,
    steps: int = 300,
    momentum: float = 0.9,
    groups: int | None = None,
    samples: int | None = None,
    capacity: bool = True,
    folder: str | os.PathLike[str] | None = None,
    engine: str = "local",
    workers: int | None = None,
    name: str | None = None,
) -> Choice:
    """Train short runs of a model's twins and recommend a normalizer, a batch size and a learning rate.

    Every twin (`normscope.twin`) is trained with every batch size, learning rate and seed, with SGD, on samples of the
    loader, and watched (`normscope.watch`). A fifth of the samples is held out: the runs are compared by their loss on
    these after the last step, in eval mode. A run that raises, or a twin that cannot be built, is recorded with the
    reason, and the others go on. The model and torch's generators are left as they are.

    Args:
        model: a `torch.nn.Module`, or a function that builds one, which is then called for each seed. A module is the
            same for all seeds, so that only the order of the samples differs.
        loader: batches `(inputs, targets)` or dicts with `labels`; their samples are put into batches of other sizes.
        loss_fn: a function of outputs and targets, the name of a loss, or None for the loss that the model returns.
        normalizers: some of `"none"`, `"batch"`, `"layer"`, `"group"`, `"instance"`, `"rms"`.
        batch_sizes: how many samples a step takes.
        learning_rates: the learning rates to try; the best one of each twin and batch size counts.
        seeds: how many runs to make of each kind; intervals and the comparison come from them.
        steps: how many steps every run takes.
        momentum: the momentum of SGD.
        groups: the number of groups of GroupNorms, as in `normscope.twin`.
        samples: how many samples to read from the loader; None for 4,096.
        capacity: whether to measure how much trained models amplify a change of the input (first seed).
        folder: where to write one line of JSON per finished run. With the same arguments, a choice that was killed
            continues from there, and one with more runs adds to it.
        engine: `"local"`, or `"ray"` for a cluster (`pip install 'normscope[ray]'`).
        workers: how many processes to start on this machine; 0 for none, None for one per core. Models and losses that
            are defined in the script itself run in this process.
        name: the name of the model in the report; its class if not given.

    Returns:
        `.recommendation` in sentences, `.cells` by batch size and normalizer, `.outcomes` by run; prints as a table,
        and has `.to_html(path)`, `.to_json(path)`.

    Raises:
        InputError: an option has no valid value, or the loader gives too few samples.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        >>> x = torch.randn(200, 4)
        >>> kinds = {"normalizers": ("none", "layer"), "batch_sizes": (8,), "learning_rates": (0.1,)}
        >>> choice = ns.choose(model, (x, (x[:, 0] > 0).long()), **kinds, steps=40, workers=0, capacity=False)
        >>> len(choice.outcomes), sorted(cell.normalizer for cell in choice.cells)
        (4, ['layer', 'none'])
    """
    _check(normalizers, batch_sizes, learning_rates, seeds)
    check_counts(least=1, steps=steps)
    if not 0.0 <= momentum < 1.0:
        raise InputError(f"momentum is a number from 0 to below 1, not {momentum!r}")
    loss_function(loss_fn)  # This refuses anything that is no loss.
    source = unwrapped(model) if isinstance(model, nn.Module) else model
    built = build_seeded_model(source, 0)
    task = TrainingTask(
        model=source,
        samples=_samples(built, loader, loss_fn is None, samples, max(batch_sizes)),
        loss=loss_fn,
        steps=steps,
        momentum=momentum,
        groups=groups,
        capacity=capacity,
    )
    notes: list[str] = []
    if isinstance(source, nn.Module) and seeds > 1:
        notes.append("all seeds start from the weights of the model: pass a function that builds it to vary them too")
    settings = task.settings()
    ledger = Ledger(RunOutcome, folder, settings)
    runs = _runs(normalizers, batch_sizes, learning_rates, seeds)
    jobs: list[Job] = [(run, run.lr == min(learning_rates) and run.seed == 0) for run in runs]
    missing = [job for job in jobs if job[0].key not in ledger.done]
    if missing:
        with Progress("choosing", total=len(missing)) as progress:
            for outcome in runner(engine, Training(task), workers, notes)(missing):
                ledger.add(outcome)
                progress.step(outcome.run.key)
    return Choice(
        name=name or type(built).__name__,
        outcomes=tuple(ledger.done[run.key] for run in runs),
        settings=settings,
        notes=tuple(notes),
    )


def _samples(model: nn.Module, loader: Any, own_loss: bool, count: int | None, largest_batch: int) -> Samples:
    """Read the samples; refuse a loader with too few of them for the largest batch."""
    samples = gather(model, loader, own_loss=own_loss, samples=count)
    training = samples.count - samples.held_out
    if training < largest_batch:
        raise InputError(
            f"there are {training} samples to train on, too few for batches of {largest_batch}: "
            "pass a loader with more, or smaller batch_sizes"
        )
    return samples


def _runs(kinds: Sequence[str], sizes: Sequence[int], rates: Sequence[float], seeds: int) -> list[TrainingRun]:
    """Return every run, those with large batches first: they take longest, and processes should end together."""
    grid = product(sorted(set(sizes), reverse=True), dict.fromkeys(kinds), sorted(set(rates)), range(seeds))
    return [TrainingRun(normalizer=kind, batch_size=size, lr=float(rate), seed=seed) for size, kind, rate, seed in grid]


def _check(kinds: Any, sizes: Any, rates: Any, seeds: Any) -> None:
    """Refuse normalizers, batch sizes, learning rates or seeds that are none."""
    if not kinds or isinstance(kinds, str) or not set(kinds) <= set(NAMES):
        raise InputError(f"normalizers are some of {', '.join(NAMES)}, not {kinds!r}")
    if not sizes or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes):
        raise InputError(f"batch_sizes are whole numbers from 1 on, not {sizes!r}")
    if not rates or not all(isinstance(rate, int | float) and 0.0 < rate < float("inf") for rate in rates):
        raise InputError(f"learning_rates are numbers above 0, not {rates!r}")
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise InputError(f"seeds is how many, a whole number from 1 on, not {seeds!r}")
