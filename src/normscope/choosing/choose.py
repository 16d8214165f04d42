"""`choose`: which normalizer, batch size and learning rate train a model best, by short runs of its twins."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..core.errors import InputError
from ..core.progress import Progress
from ..core.untouched import outside_inference_mode, unwrapped
from ..experiments.engines import runner
from ..experiments.ledger import Ledger
from ..geometry.batches import LossFunction, loss_function
from ..theory.losses import Loss
from .choice import Choice
from .recommendation import NAMES
from .run_outcome import RunOutcome
from .run_training import Job, Training
from .task import TrainingRun, TrainingTask, built_model, gather

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
    """Train short runs of a model's twins and say which normalizer, batch size and learning rate to use.

    Every twin (`normscope.twin`) is trained with every batch size, learning rate and seed, with SGD, on samples of the
    loader, and watched (`normscope.watch`). A fifth of the samples is held out: its loss after the last step, in eval
    mode, is what is compared. A run that raises, or a twin that cannot be, is recorded with the reason, and the others
    go on. The model and torch's generators are left as they are.

    Args:
        model: a `torch.nn.Module`, or a function that builds one, which is then built anew for each seed. A module is
            the same for all seeds, and only the order of the samples differs.
        loader: batches `(inputs, targets)` or dicts with `labels`; they are taken apart and put together anew.
        loss_fn: a function of outputs and targets, the name of a loss, or None for the loss that the model returns.
        normalizers: of `"none"`, `"batch"`, `"layer"`, `"group"`, `"instance"`, `"rms"`.
        batch_sizes: samples a step.
        learning_rates: to try; the best one of each twin and batch size counts.
        seeds: how many runs of each kind: intervals and the comparison come from them.
        steps: of every run.
        momentum: of SGD.
        groups: of GroupNorms, as in `normscope.twin`.
        samples: how many to read of the loader; None for 4,096.
        capacity: measure how much trained models amplify a change of the input (first seed).
        folder: where to write one line of JSON per finished run. A choice that was killed goes on from there with the
            same arguments, and one with more runs adds to it.
        engine: `"local"`, or `"ray"` for a cluster (`pip install 'normscope[ray]'`).
        workers: processes on this machine; 0 for none, None for one a core. Models and losses that are defined in the
            script itself run in this process.
        name: how the report calls the model; its class if not given.

    Returns:
        `.recommendation` in sentences, `.cells` by batch size and normalizer, `.outcomes` by run; prints as a table,
        and has `.to_html(path)`, `.to_json(path)`.

    Raises:
        InputError: an option is not what it can be, or the loader gives too few samples.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        >>> x = torch.randn(200, 4)
        >>> kinds = {"normalizers": ("none", "layer"), "batch_sizes": (8,), "learning_rates": (0.1,)}
        >>> choice = ns.choose(model, (x, (x[:, 0] > 0).long()), **kinds, steps=40, workers=0, capacity=False)
        >>> len(choice.outcomes), sorted(cell.normalizer for cell in choice.cells)
        (4, ['layer', 'none'])
    """
    runs = _runs(normalizers, batch_sizes, learning_rates, seeds)
    _check(steps, momentum)
    inner = unwrapped(model) if isinstance(model, nn.Module) else model
    loss_function(loss_fn)  # refuses what is none
    built = built_model(inner, 0)
    held = gather(built, loader, own_loss=loss_fn is None, samples=samples)
    if held.count - held.held_out < max(batch_sizes):
        raise InputError(
            f"there are {held.count - held.held_out} samples to train on, too few for batches of {max(batch_sizes)}: "
            "pass a loader with more, or smaller batch_sizes"
        )
    task = TrainingTask(
        model=inner, samples=held, loss=loss_fn, steps=steps, momentum=momentum, groups=groups, capacity=capacity
    )
    notes: list[str] = []
    if isinstance(inner, nn.Module) and seeds > 1:
        notes.append("all seeds start from the weights of the model: pass a function that builds it to vary them too")
    settings = task.settings()
    ledger = Ledger(RunOutcome, folder, settings)
    jobs: list[Job] = [(run, run.lr == min(learning_rates) and run.seed == 0) for run in runs]
    left = [job for job in jobs if job[0].key not in ledger.done]
    if left:
        with Progress("choosing", total=len(left)) as progress:
            for outcome in runner(engine, Training(task), workers, notes)(left):
                ledger.add(outcome)
                progress.step(outcome.run.key)
    return Choice(
        name=name or type(built).__name__,
        outcomes=tuple(ledger.done[run.key] for run in runs),
        settings=settings,
        notes=tuple(notes),
    )


def _runs(kinds: Sequence[str], sizes: Sequence[int], rates: Sequence[float], seeds: int) -> list[TrainingRun]:
    """Return every run, the long ones first, so that processes end together.

    Raises:
        InputError: something is not what it can be.
    """
    if not kinds or isinstance(kinds, str) or not set(kinds) <= set(NAMES):
        raise InputError(f"normalizers are some of {', '.join(NAMES)}, not {kinds!r}")
    if not sizes or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes):
        raise InputError(f"batch_sizes are whole numbers from 1 on, not {sizes!r}")
    if not rates or not all(isinstance(rate, int | float) and 0.0 < rate < float("inf") for rate in rates):
        raise InputError(f"learning_rates are numbers above 0, not {rates!r}")
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise InputError(f"seeds is how many, a whole number from 1 on, not {seeds!r}")
    return [
        TrainingRun(normalizer=kind, batch_size=size, lr=float(rate), seed=seed)
        for size in sorted(set(sizes), reverse=True)
        for kind in dict.fromkeys(kinds)
        for rate in sorted(set(rates))
        for seed in range(seeds)
    ]


def _check(steps: int, momentum: float) -> None:
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise InputError(f"steps is a whole number from 1 on, not {steps!r}")
    if not 0.0 <= momentum < 1.0:
        raise InputError(f"momentum is a number from 0 to below 1, not {momentum!r}")
