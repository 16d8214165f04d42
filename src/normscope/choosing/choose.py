"""`choose`: which normalizer, batch size and learning rate train a model best, by short runs of its twins."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..bounds.geometry.smoothness import smoothness
from ..bounds.lipschitz import lipschitz
from ..bounds.networks.twin import twin
from ..calls.batches import Batch, LossFunction, loss_function, loss_of
from ..calls.call import select
from ..calls.stand_ins import accepts_graph
from ..core.budget import Progress
from ..core.errors import InputError, NormscopeError, check_counts, describe_error
from ..core.finding import Severity
from ..core.threads import ignore_warnings
from ..core.untouched import outside_inference_mode, unwrapped
from ..doctor.checking.checking import check
from ..doctor.facts.data import run_over_data
from ..doctor.monitor.watching import watch
from ..theory.losses import Loss
from .choice import NAMES, Choice, RunOutcome, Status
from .engines import runner
from .ledger import Ledger
from .task import TrainingRun, TrainingTask, build_seeded_model, gather

BATCH_SIZES = (2, 8, 32, 128)
LEARNING_RATES = (0.001, 0.01, 0.1)


@accepts_graph
@outside_inference_mode
def choose(
    model: nn.Module | Callable[[], nn.Module],
    data: Any = None,
    *,
    labels: Any = None,
    loss: LossFunction | str | Loss | None = None,
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
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    name: str | None = None,
) -> Choice:
    """Train short runs of a model's twins and recommend a normalizer, a batch size and a learning rate.

    Every twin (`normscope.twin`) is trained with every batch size, learning rate and seed, with SGD, on samples of the
    data, and watched (`normscope.watch`). A fifth of the samples is held out: the runs are compared by their loss on
    these after the last step, in eval mode. A run that raises, or a twin that cannot be built, is recorded with the
    reason, and the others go on. The model and torch's generators are left as they are.

    Args:
        model: a `torch.nn.Module`, or a function that builds one, which is then called for each seed. A module is the
            same for all seeds, so that only the order of the samples differs.
        data: a batch (a tensor, a NumPy array, a tuple of arguments, a dict of them), an iterable of batches such as a
            `DataLoader`, or a data set, with labels. Samples are put into batches of other sizes (see `samples`). None
            for the batch of a captured graph.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        loss: a function of outputs and targets, the name of a loss, or None for the loss that the model returns.
        normalizers: the normalizers to try, some of `"none"`, `"batch"`, `"layer"`, `"group"`, `"instance"`, `"rms"`.
        batch_sizes: the batch sizes to try.
        learning_rates: the learning rates of SGD to try; the best one of each twin and batch size counts.
        seeds: how many runs to make of each kind; intervals and the comparison come from them.
        steps: how many steps every run takes.
        momentum: the momentum of SGD.
        groups: the number of groups of GroupNorms, as in `normscope.twin`.
        samples: how many samples to read from the data, of which a fifth is held out. None for 4,096.
        capacity: whether to measure how much trained models amplify a change of the input (first seed).
        folder: where to write one line of JSON per finished run, to go on from. With the same arguments, a choice that
            was killed continues from there, and one with more runs adds to it.
        engine: where runs take place: `"local"` for processes on this machine, or `"ray"` for a cluster (`pip install
            'normscope[ray]'`).
        workers: how many processes to start on this machine; 0 for none, None for one per core. Models and losses that
            are defined in the script itself run in this process.
        name: the name of the model in the report; its class if not given.

    Returns:
        `.recommendation` in sentences, `.cells` by batch size and normalizer, `.outcomes` by run; prints as a table,
        and has `.to_html(path)`, `.to_json(path)`.

    Raises:
        InputError: an option has no valid value, or the data give too few samples.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        >>> x = torch.randn(200, 4)
        >>> kinds = {"normalizers": ("none", "layer"), "batch_sizes": (8,), "learning_rates": (0.1,)}
        >>> choice = ns.choose(model, (x, (x[:, 0] > 0).long()), **kinds, loss="cross_entropy", steps=40, workers=0)
        >>> len(choice.outcomes), sorted(cell.normalizer for cell in choice.cells)
        (4, ['layer', 'none'])
    """
    _check(normalizers, batch_sizes, learning_rates, seeds)
    check_counts(least=1, steps=steps)
    if not 0.0 <= momentum < 1.0:
        raise InputError(f"momentum is a number from 0 to below 1, not {momentum!r}")
    loss_function(loss)  # This refuses anything that is no loss.
    source = unwrapped(model) if isinstance(model, nn.Module) else model
    built = build_seeded_model(source, 0)
    held = gather(built, data, labels=labels, own_loss=loss is None, samples=samples)
    training = held.count - held.held_out
    if training < max(batch_sizes):
        raise InputError(
            f"there are {training} samples to train on, too few for batches of {max(batch_sizes)}: "
            "pass more data, or smaller batch_sizes"
        )
    task = TrainingTask(
        model=source,
        samples=held,
        loss=loss,
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
    # Runs with large batches come first: they take longest, and processes should end together.
    sizes, rates = sorted(set(batch_sizes), reverse=True), sorted(set(learning_rates))
    runs = [
        TrainingRun(normalizer=kind, batch_size=size, lr=float(rate), seed=seed)
        for size, kind, rate, seed in product(sizes, dict.fromkeys(normalizers), rates, range(seeds))
    ]
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


CALIBRATED = 128
"""How many samples the first running statistics of new BatchNorms come from."""
WATCHED = 8
"""About how many steps of a run are watched."""
FELL = 0.5
"""A run has trained if its held-out loss falls to this share of its first value."""
TRIAL_STEPS = 10
"""How many steps each trial of a learning rate has."""
SHARE, CONFIDENCE = 0.95, 0.95
"""The share of the data and the confidence of a DATA bound: with 59 samples, the largest norm is the limit."""
MAX_JACOBIANS = 64
"""The largest number of held-out samples whose Jacobian norms are computed."""
BATCHES = 8
"""How many batches the noise of variances and the last findings are measured over."""


Job = tuple[TrainingRun, bool]
"""A run, and whether it measures the largest stable learning rate."""


@dataclass(frozen=True, slots=True)
class Training:
    """The runs of a choice as jobs of an engine."""

    task: TrainingTask

    @property
    def local(self) -> bool:
        """Whether the samples are on a GPU, which processes do not share."""
        return any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in self.task.samples.call.leaves)

    def do(self, job: Job) -> RunOutcome:
        """Return the outcome of a run."""
        run, first = job
        return train_run(self.task, run, first=first)

    def failed(self, job: Job, reason: str) -> RunOutcome:
        """Return the outcome of a run that could not take place."""
        return RunOutcome(run=job[0], status="failed", reason=reason)


def train_run(task: TrainingTask, run: TrainingRun, *, first: bool) -> RunOutcome:
    """Train one twin and return its outcome; an exception becomes part of the outcome."""
    kind = None if run.normalizer == "none" else run.normalizer
    try:
        with ignore_warnings():
            model = build_seeded_model(task.model, run.seed)
            inputs = _inputs(task.samples.batch(torch.arange(min(CALIBRATED, task.samples.count))))
            trained_twin = twin(model, inputs, normalizer=kind, groups=task.groups).model  # type: ignore[arg-type]
    except NormscopeError as error:
        return RunOutcome(run=run, status="refused", reason=str(error))
    except Exception as error:
        return RunOutcome(run=run, status="failed", reason=describe_error(error))
    try:
        with ignore_warnings(), torch.random.fork_rng():
            torch.random.set_rng_state(torch.Generator().manual_seed(run.seed).get_state())  # Dropout draws from it.
            return _train_and_measure(task, run, trained_twin, first=first)
    except Exception as error:
        return RunOutcome(run=run, status="failed", reason=describe_error(error))


def _train_and_measure(task: TrainingTask, run: TrainingRun, model: nn.Module, *, first: bool) -> RunOutcome:
    """Train a twin, measure it before and after, and return the outcome."""
    function = loss_function(task.loss)
    tests, notes = task.samples.tests, list[str]()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    before, _ = _score(model, function, tests)
    stable = _stable(task, run, model, notes) if first else None
    training = _train(task, run, model, function)
    after, accuracy = _score(model, function, tests)
    finite = math.isfinite(training.last_loss) and math.isfinite(after)
    figures: dict[str, Any] = {}
    codes = training.codes
    if finite and run.seed == 0:
        codes |= _checked(task, run, model, notes)
        figures = _noise(task, run, model)
    status: Status = "diverged" if not finite else "trained" if after <= FELL * before else "not trained"
    if status == "trained" and task.capacity and run.seed == 0:
        figures |= _capacity(task, model, notes)
    return RunOutcome(
        run=run,
        status=status,
        steps=training.steps,
        first_loss=before,
        train_loss=training.last_loss,
        loss=after,
        accuracy=accuracy,
        stable_lr=stable,
        findings=tuple(sorted(codes)),
        seconds_per_step=training.seconds_per_step,
        notes=tuple(notes),
        **figures,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainingFigures:
    """What a training loop gives: its steps, its last losses, how long a step took, and the codes of its findings."""

    steps: int
    last_loss: float
    seconds_per_step: float
    codes: set[str]


def _train(task: TrainingTask, run: TrainingRun, model: nn.Module, function: LossFunction | None) -> _TrainingFigures:
    """Train a model with SGD, and watch it; stop early where the loss is no longer finite."""
    optimizer = torch.optim.SGD(model.parameters(), lr=run.lr, momentum=task.momentum)
    model.train()
    losses: list[Tensor] = []
    with watch(model, optimizer, every=max(task.steps // WATCHED, 1), overhead=None, panel=False) as watched:
        for batch in task.samples.steps(run.batch_size, task.steps, run.seed):
            optimizer.zero_grad()
            loss = loss_of(function, model(*batch.call.args, **batch.call.kwargs), batch)
            watched.observe(loss=loss)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if len(losses) % 50 == 0 and not math.isfinite(float(losses[-1])):
                break
        seconds = watched.seconds * (1.0 - min(watched.overhead, 1.0)) / len(losses)
    last = [float(value) for value in losses[-max(1, len(losses) // 10) :]]
    return _TrainingFigures(
        steps=len(losses),
        last_loss=sum(last) / len(last),
        seconds_per_step=seconds,
        codes={finding.code for finding in watched.findings if finding.severity >= Severity.WARNING},
    )


@torch.no_grad()
def _score(model: nn.Module, function: LossFunction | None, batch: Batch) -> tuple[float, float | None]:
    """Return the loss in eval mode, and the accuracy where targets are classes."""
    mode = model.training
    model.eval()
    try:
        output = model(*batch.call.args, **batch.call.kwargs)
        loss, accuracy = float(loss_of(function, output, batch)), None
        targets = batch.targets
        if isinstance(targets, Tensor) and not targets.is_floating_point():
            logits = select(output, None)
            if logits.ndim == targets.ndim + 1:
                accuracy = float((logits.argmax(-1) == targets).double().mean())
    finally:
        model.train(mode)
    return loss, accuracy


def _inputs(batch: Batch) -> Any:
    """Return a batch's inputs in the form that the functions of `normscope` take."""
    return batch.call.kwargs or (batch.call.args[0] if len(batch.call.args) == 1 else batch.call.args)


def _stable(task: TrainingTask, run: TrainingRun, model: nn.Module, notes: list[str]) -> float | None:
    """Return the largest learning rate at which gradient descent on one batch of the run's size is stable."""
    batch = next(iter(task.samples.steps(run.batch_size, 1, run.seed)))
    samples = (_inputs(batch), batch.targets) if task.loss is not None else _inputs(batch)

    def measured() -> float:
        descent = smoothness(model, [samples], loss=task.loss, steps=0, trial_steps=TRIAL_STEPS, mode="train")
        return descent.stable if descent.unstable < math.inf else math.inf  # Every learning rate was stable.

    return _attempt("the largest stable learning rate", measured, notes)


def _checked(task: TrainingTask, run: TrainingRun, model: nn.Module, notes: list[str]) -> set[str]:
    """Return the codes of the warnings that a check of the trained model gives, at batches of the run's size."""
    batches = [_inputs(batch) for batch in task.samples.steps(run.batch_size, BATCHES, run.seed)]
    checked = _attempt("a check", lambda: check(model, batches[0], loader=batches, mode="train"), notes)
    return set() if checked is None else {f.code for f in checked.findings if f.severity >= Severity.WARNING}


def _noise(task: TrainingTask, run: TrainingRun, model: nn.Module) -> dict[str, Any]:
    """Return how much the variances of BatchNorms change from batch to batch, and the smallest possible change."""
    batches = [_inputs(batch) for batch in task.samples.steps(run.batch_size, BATCHES, run.seed)]
    norms = [norm for norm in run_over_data(model, batches, mode="train").normalizers.values() if norm.kind == "batch"]
    spreads = [norm.batch_spread for norm in norms if norm.batch_spread is not None]
    if not spreads:
        return {}
    entries = min(norm.entries for norm in norms)
    return {"noise": max(spreads), "noise_law": math.sqrt(2.0 / (entries - 1)) if entries > 1 else math.inf}


def _capacity(task: TrainingTask, model: nn.Module, notes: list[str]) -> dict[str, Any]:
    """Return two figures of how much a small change of the input grows, in eval mode."""
    samples, count = task.samples, min(task.samples.held_out, MAX_JACOBIANS)
    held_out = _inputs(samples.batch(torch.arange(samples.count - count, samples.count)))
    model.eval()
    options: dict[str, Any] = {"share": SHARE, "confidence": CONFIDENCE, "samples": count}
    data = _attempt("DATA", lambda: lipschitz(model, [held_out], scope="data", **options), notes)
    return {
        "log10_observed": None if data is None else max(data.log10_norms),
        "log10_data": None if data is None else data.log10_upper,
    }


def _attempt(what: str, measure: Callable[[], Any], notes: list[str]) -> Any:
    """Return a figure; None, with a note, if it cannot be measured."""
    try:
        return measure()
    except (NormscopeError, RuntimeError, InputError) as error:
        notes.append(f"{what} was not measured ({describe_error(error)})")
        return None
