"""`reproduce`: run experiments of the papers, all of their jobs together, and go on where a run was interrupted."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from normscope.toolkit import InputError, Ledger, Progress, describe_error, from_plain, runner, to_plain

from .base import Experiment, Job, Measured, Settings
from .origin import origin, processor_seconds
from .registry import chosen, registered, source_of
from .reproduction import Reproduction, Reproductions, readable

DATA = "data_folder"
"""The setting with the folder of data sets; it is no part of a result."""


class ExperimentTask(NamedTuple):
    """One job of one experiment."""

    experiment: str
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end of a task: what it measured in how many seconds of processor time, or why it failed."""

    experiment: str
    job: Job
    measured: Measured | None
    seconds: float | None = None
    reason: str = ""

    @property
    def key(self) -> str:
        """The name of the job, in files too."""
        return self.job.key

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        named = {"experiment": self.experiment, "kind": self.job.kind, "seed": self.job.seed}
        return named | {"measured": to_plain(self.measured), "seconds": self.seconds}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], /) -> Self:
        """Return what `to_json` wrote."""
        job, measured = Job(data["kind"], data["seed"]), from_plain(data["measured"])
        if not isinstance(measured, dict):
            raise ValueError("it has no figures")
        seconds = data.get("seconds")  # older files lack them
        return cls(
            experiment=data["experiment"],
            job=job,
            measured=measured,
            seconds=None if seconds is None else float(seconds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """The settings of each experiment and the folder, which all tasks share."""

    settings: Mapping[str, Settings]
    folder: Path | None
    local: bool = False

    def do(self, task: ExperimentTask) -> Finished:
        """Measure one job."""
        experiment, began = registered()[task.experiment], processor_seconds()
        try:
            folder = None if self.folder is None else job_folder(self.folder, task)
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            measured = experiment.measure(self.settings[task.experiment], task.job, folder)
            # The result goes through JSON, so that a run that is resumed from its files has the same figures.
            measured = from_plain(json.loads(json.dumps(to_plain(dict(measured)), allow_nan=False)))
        except Exception as error:
            return self.failed(task, describe_error(error))
        seconds = round(processor_seconds() - began, 3)
        return Finished(experiment=task.experiment, job=task.job, measured=measured, seconds=seconds)

    def failed(self, task: ExperimentTask, reason: str) -> Finished:
        """Return the result of a job that could not be done, with the reason."""
        return Finished(experiment=task.experiment, job=task.job, measured=None, reason=reason)


def job_folder(folder: Path, task: ExperimentTask) -> Path:
    """Return the folder that one job has to itself."""
    return folder / task.experiment / "jobs" / re.sub(r"[^\w.=-]+", "_", task.job.key)


def reproduce(
    names: Sequence[str] = (),
    *,
    full: bool = False,
    data: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    engine: str = "local",
    workers: int | None = None,
) -> Reproductions:
    """Run experiments of the papers and judge their claims.

    Args:
        names: names of experiments, such as `than.figure1`, or `than` for all of a paper; empty for every experiment.
        full: whether to take the settings of the paper, which may take hours and a GPU; the quick settings take
            seconds for each experiment.
        data: the folder with MNIST's idx files and CIFAR-10's batches, for experiments that need them.
        folder: where to write one line of JSON per finished job, to go on from, and in the end results, tables and
            pictures.
        engine: where jobs run: `"local"` for processes on this machine, or `"ray"` for a cluster.
        workers: how many processes to start on this machine; 0 for none, None for one per core.

    Returns:
        One `Reproduction` per experiment, in order; prints as tables, and has `.to_html(path)`.

    Raises:
        InputError: there is no such experiment, engine or folder of data, or the folder of results holds others.
    """
    wanted, made_on = chosen(names), origin()
    data_folder = {} if data is None else {DATA: _existing(data)}
    sources = {source_of(one).name: source_of(one) for one in wanted}
    root = None if folder is None else Path(folder).absolute()  # processes of a cluster may stand elsewhere
    settings = {name: _settings(one, full) for name, one in sources.items()}
    ledgers = {name: _ledger(_inside(root, name), name, settings[name]) for name in sources}
    resumed = {name for name, ledger in ledgers.items() if ledger.done}
    tasks = [ExperimentTask(name, job) for name, one in sources.items() for job in one.jobs(settings[name])]
    left = [task for task in tasks if task.job.key not in ledgers[task.experiment].done]
    measuring = Measuring(settings={name: {**held, **data_folder} for name, held in settings.items()}, folder=root)
    notes: list[str] = []
    failed = _measured(left, measuring, ledgers, engine, workers, notes)
    measured = {name: _in_order(tasks, name, ledgers[name].done) for name in sources}
    entries = []
    for one in wanted:
        source = source_of(one).name
        reproduction = Reproduction(
            experiment=one,
            full=full,
            settings=settings[source],
            measured=measured[source],
            failed=failed.get(source, {}),
            origin=made_on | _time(ledgers[source].done.values()),
        )
        if source in resumed:
            readable(reproduction, str(ledgers[source].path))
        entries.append(reproduction)
    result = Reproductions(items=tuple(entries), notes=tuple(notes))
    if root is not None:
        result.save(root)
    return result


def _time(finished: Iterable[Finished]) -> dict[str, str]:
    """Return in words how long the jobs of an experiment took, all together; nothing where that of one is not known."""
    seconds = [one.seconds for one in finished]
    known = [one for one in seconds if one is not None]
    return {"time": f"{sum(known):.1f} s of processor time"} if len(known) == len(seconds) else {}


def _existing(data: str | os.PathLike[str]) -> str:
    """Return the whole path of the folder of data sets; refuse one that is not there."""
    path = os.path.abspath(os.path.expanduser(data))
    if not os.path.isdir(path):
        raise InputError(f"there is no folder {os.fspath(data)}: data is the one with MNIST and CIFAR-10")
    return path


def _measured(
    tasks: Sequence[ExperimentTask],
    measuring: Measuring,
    ledgers: Mapping[str, Ledger[Finished]],
    engine: str,
    workers: int | None,
    notes: list[str],
) -> dict[str, dict[str, str]]:
    """Do the tasks and write each into its ledger; return why jobs failed, by experiment and job."""
    failed: dict[str, dict[str, str]] = {}
    if not tasks:
        return failed
    with Progress("reproducing", total=len(tasks)) as progress:
        for done in runner(engine, measuring, workers, notes)(tasks):
            if done.measured is None:
                failed.setdefault(done.experiment, {})[done.key] = done.reason
            else:
                ledgers[done.experiment].add(done)
            progress.step(f"{done.experiment} {done.key}")
    return failed


def _in_order(
    tasks: Sequence[ExperimentTask], experiment: str, finished: Mapping[str, Finished]
) -> dict[Job, Measured]:
    """Return what the finished jobs of an experiment measured, in the order of its jobs."""
    jobs = [task.job for task in tasks if task.experiment == experiment]
    return {job: finished[job.key].measured or {} for job in jobs if job.key in finished}


def _settings(experiment: Experiment, full: bool) -> dict[str, Any]:
    """Return an experiment's settings as they would be read from a file."""
    return dict(from_plain(json.loads(json.dumps(to_plain(dict(experiment.full if full else experiment.quick))))))


def _ledger(folder: Path | None, name: str, settings: Settings) -> Ledger[Finished]:
    """Return the ledger of an experiment's finished jobs; refuse a folder with jobs of another experiment."""
    ledger = Ledger(Finished, folder, settings)
    others = {one.experiment for one in ledger.done.values()} - {name}
    if others:
        raise InputError(f"{folder} holds results of {', '.join(sorted(map(str, others)))}: name another folder")
    return ledger


def _inside(root: Path | None, name: str) -> Path | None:
    """Return the folder of one experiment inside the folder of results, where there is one."""
    return None if root is None else root / name
