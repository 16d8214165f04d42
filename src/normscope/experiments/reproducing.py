"""`reproduce`: run experiments of the papers, all of their jobs together, and go on where a run was interrupted."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from ..core.errors import InputError, said
from ..core.json_values import plain, revived
from ..core.progress import Progress
from .base import Experiment, Job, Measured, Settings
from .engines import runner
from .ledger import Ledger
from .origin import origin
from .registry import chosen, registered, source_of
from .reproduction import Reproduction, readable
from .reproductions import Reproductions

DATA = "data_folder"
"""The setting with the folder of data sets; it is no part of a result."""


class ExperimentTask(NamedTuple):
    """One job of one experiment."""

    experiment: str
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a task came to: what it measured, or why it did not."""

    experiment: str
    job: Job
    measured: Measured | None
    reason: str = ""

    @property
    def key(self) -> str:
        """What the job is known by."""
        return self.job.key

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        named = {"experiment": self.experiment, "kind": self.job.kind, "seed": self.job.seed}
        return named | {"measured": plain(self.measured)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], /) -> Self:
        """Return what `to_json` wrote."""
        job, measured = Job(data["kind"], data["seed"]), revived(data["measured"])
        if not isinstance(measured, dict):
            raise ValueError("it has no figures")
        return cls(experiment=data["experiment"], job=job, measured=measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """What all tasks share: the settings of each experiment, and the folder."""

    settings: Mapping[str, Settings]
    folder: Path | None
    local: bool = False

    def do(self, task: ExperimentTask) -> Finished:
        """Measure one job."""
        experiment = registered()[task.experiment]
        try:
            place = None if self.folder is None else job_folder(self.folder, task)
            if place is not None:
                place.mkdir(parents=True, exist_ok=True)
            found = experiment.measure(self.settings[task.experiment], task.job, place)
            # as it would be read from a file, so that a run that goes on has the same figures
            held = revived(json.loads(json.dumps(plain(dict(found)), allow_nan=False)))
        except Exception as error:
            return self.failed(task, said(error))
        return Finished(experiment=task.experiment, job=task.job, measured=held)

    def failed(self, task: ExperimentTask, reason: str) -> Finished:
        """Return what stands for a job that could not be done."""
        return Finished(experiment=task.experiment, job=task.job, measured=None, reason=reason)


def job_folder(folder: Path, task: ExperimentTask) -> Path:
    """Return the folder that a job has for its own."""
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
        names: of experiments, `than.figure1` or `than` for all of a paper; none for every one.
        full: with the settings of the paper, which may take hours and a GPU; otherwise the quick ones, seconds each.
        data: a folder with MNIST's idx files and CIFAR-10's batches, for experiments that need them.
        folder: where to write one line of JSON per finished job and, in the end, results, tables and pictures. A run
            that was killed goes on from there.
        engine: `"local"`, or `"ray"` for a cluster.
        workers: processes on this machine; 0 for none, None for one a core.

    Returns:
        One `Reproduction` per experiment, in order; prints as tables, and has `.to_html(path)`.

    Raises:
        InputError: there is no such experiment, engine or folder of data, or the folder of results holds others.
    """
    wanted, where = chosen(names), origin()
    place = {} if data is None else {DATA: os.path.abspath(os.path.expanduser(data))}
    if data is not None and not os.path.isdir(place[DATA]):
        raise InputError(f"there is no folder {os.fspath(data)}: data is the one with MNIST and CIFAR-10")
    sources = {source_of(one).name: source_of(one) for one in wanted}
    root = None if folder is None else Path(folder).absolute()  # processes of a cluster may stand elsewhere
    settings = {name: _settings(one, full) for name, one in sources.items()}
    ledgers = {name: _ledger(_inside(root, name), name, settings[name]) for name in sources}
    kept = {name for name, ledger in ledgers.items() if ledger.done}
    tasks = [ExperimentTask(name, job) for name, one in sources.items() for job in one.jobs(settings[name])]
    left = [task for task in tasks if task.job.key not in ledgers[task.experiment].done]
    failed: dict[str, dict[str, str]] = {name: {} for name in sources}
    notes: list[str] = []
    if left:
        work = Measuring(settings={name: {**held, **place} for name, held in settings.items()}, folder=root)
        with Progress("reproducing", total=len(left)) as progress:
            for done in runner(engine, work, workers, notes)(left):
                if done.measured is None:
                    failed[done.experiment][done.key] = done.reason
                else:
                    ledgers[done.experiment].add(done)
                progress.step(f"{done.experiment} {done.key}")
    found = []
    for one in wanted:
        source = source_of(one).name
        held = ledgers[source].done
        jobs = [task.job for task in tasks if task.experiment == source]
        measured = {job: held[job.key].measured or {} for job in jobs if job.key in held}
        found.append(
            Reproduction(
                experiment=one,
                full=full,
                settings=settings[source],
                measured=measured,
                failed=failed[source],
                origin=where,
            )
        )
    for made in found:
        source = source_of(made.experiment).name
        if source in kept:
            readable(made, str(ledgers[source].path))
    result = Reproductions(items=tuple(found), notes=tuple(notes))
    if root is not None:
        result.save(root)
    return result


def _settings(experiment: Experiment, full: bool) -> dict[str, Any]:
    """Return an experiment's settings as a file would have them."""
    return dict(revived(json.loads(json.dumps(plain(dict(experiment.full if full else experiment.quick))))))


def _ledger(folder: Path | None, name: str, settings: Settings) -> Ledger[Finished]:
    """Return what was finished of an experiment; a folder with jobs of another one is refused."""
    ledger = Ledger(Finished, folder, settings)
    others = {one.experiment for one in ledger.done.values()} - {name}
    if others:
        raise InputError(f"{folder} holds results of {', '.join(sorted(map(str, others)))}: name another folder")
    return ledger


def _inside(root: Path | None, name: str) -> Path | None:
    return None if root is None else root / name
