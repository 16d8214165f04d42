"""Than's figures in full on one GPU: several trainings at a time as processes, until a time limit.

    python benchmarks/than_full.py DATA --folder runs/than --minutes 9 --out OUT

DATA holds CIFAR-10's python batches (or a folder `cifar-10-batches-py` with them). Every job writes its curves after
each epoch into FOLDER and a checkpoint every few: the same command goes on from there. At the limit the processes are
ended; what there is by then becomes OUT/than.figure1.json and OUT/than.figure3.json, which `normscope lab claims` reads
once they lie in src/normscope_lab/experiments/stored, and OUT/curves.json, the curves alone. Light jobs (the ReLU
networks) and heavy ones (ResNet18, EfficientNet-B3) have lanes of their own, so that neither waits for the other.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from normscope.toolkit import from_plain, to_plain
from normscope_lab.experiments.base import Job
from normscope_lab.experiments.origin import origin
from normscope_lab.experiments.registry import registered
from normscope_lab.experiments.reproducing import DATA, ExperimentTask, Measuring, job_folder
from normscope_lab.experiments.reproduction import Reproduction
from normscope_lab.experiments.than.watched_training import CURVES as WRITTEN

EXPERIMENTS = ("than.figure1", "than.figure3")
POLL = 0.5
CURVES = "curves.json"


def settings(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(dict(registered()[name].full))) | changes


def tasks(names: Sequence[str], changes: dict[str, Any]) -> list[ExperimentTask]:
    return [ExperimentTask(name, job) for name in names for job in registered()[name].jobs(settings(name, changes))]


def measured(folder: Path, task: ExperimentTask) -> dict[str, Any] | None:
    path = job_folder(folder, task) / WRITTEN
    return from_plain(json.loads(path.read_text())) if path.exists() else None


def do(task: ExperimentTask, changes: dict[str, Any], data: str, folder: Path) -> None:
    """Do one job in a process of its own; what it leaves is on disk."""
    work = Measuring(settings={task.experiment: settings(task.experiment, changes) | {DATA: data}}, folder=folder)
    done = work.do(task)
    if done.reason:
        print(f"{task.experiment} {task.job.key} failed: {done.reason}", flush=True)


def run(left: list[ExperimentTask], arguments: argparse.Namespace, changes: dict[str, Any]) -> None:
    """Do jobs in two lanes until all are done or the time is up."""
    context = multiprocessing.get_context("spawn")
    began, limit = time.monotonic(), 60.0 * arguments.minutes
    lanes = {"light": arguments.light, "heavy": arguments.heavy}
    waiting = {"light": [t for t in left if _light(t)], "heavy": [t for t in left if not _light(t)]}
    running: dict[ExperimentTask, BaseProcess] = {}
    said = began
    while (running or any(waiting.values())) and time.monotonic() - began < limit:
        for task, process in list(running.items()):
            if not process.is_alive():
                del running[task]
                print(f"{time.monotonic() - began:6.0f} s  {task.job.key} ended ({process.exitcode})", flush=True)
        for lane, queue in waiting.items():
            while queue and sum(_lane(task) == lane for task in running) < lanes[lane]:
                task = queue.pop(0)
                process = context.Process(target=do, args=(task, changes, str(arguments.data), arguments.folder))
                process.start()
                running[task] = process
        if time.monotonic() - said > 30.0:
            said = time.monotonic()
            told = ", ".join(f"{task.job.kind} {_epochs(arguments.folder, task)}" for task in running)
            print(f"{said - began:6.0f} s  {told}", flush=True)
        time.sleep(POLL)
    for process in running.values():
        process.terminate()
    for process in running.values():
        process.join(10)


def collect(names: Sequence[str], folder: Path, out: Path, changes: dict[str, Any]) -> None:
    """Write one result per experiment from the curves of its jobs, finished or not."""
    curves = {task.job.kind: held for task in tasks(names, changes) if (held := measured(folder, task)) is not None}
    out.mkdir(parents=True, exist_ok=True)
    (out / CURVES).write_text(json.dumps(to_plain({"origin": origin(), "curves": curves})))
    judge(names, out / CURVES, out, changes)


def judge(names: Sequence[str], path: Path, out: Path, changes: dict[str, Any]) -> None:
    """Write one result per experiment from a file of curves."""
    held = from_plain(json.loads(path.read_text()))
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        jobs = [task.job for task in tasks([name], changes)]
        found: dict[Job, Any] = {job: held["curves"][job.kind] for job in jobs if job.kind in held["curves"]}
        if found:
            result = Reproduction(
                experiment=registered()[name],
                full=True,
                settings=settings(name, changes),
                measured=found,
                origin=held["origin"],
            )
            result.to_json(out / f"{name}.json")
            print(f"{name}: " + ", ".join(f"{job.kind} {one['done']} epochs" for job, one in found.items()))


def _light(task: ExperimentTask) -> bool:
    return task.job.kind.startswith("relu")


def _lane(task: ExperimentTask) -> str:
    return "light" if _light(task) else "heavy"


def _epochs(folder: Path, task: ExperimentTask) -> int:
    held = measured(folder, task)
    return 0 if held is None else held["done"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--folder", type=Path, default=Path("runs/than"))
    parser.add_argument("--out", type=Path, default=Path("runs/than/stored"))
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--light", type=int, default=6, help="ReLU networks at a time")
    parser.add_argument("--heavy", type=int, default=4, help="ResNet18 and EfficientNet-B3 at a time")
    parser.add_argument("--experiments", nargs="+", default=EXPERIMENTS, choices=EXPERIMENTS)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--curves", type=Path, help="judge the curves of such a file, and run nothing")
    parser.add_argument("--images", type=int, help="of either part of the data, to try this out")
    arguments = parser.parse_args()
    changes = {name: value for name in ("epochs", "images") if (value := getattr(arguments, name)) is not None}
    if arguments.curves is not None:
        judge(arguments.experiments, arguments.curves, arguments.out, changes)
        return
    if arguments.data is None:
        print("than_full: skipped, give the folder with CIFAR-10's python batches to run it")
        return
    wanted = tasks(arguments.experiments, changes)
    left = [task for task in wanted if _epochs(arguments.folder, task) < settings(task.experiment, changes)["epochs"]]
    run(left, arguments, changes)
    collect(arguments.experiments, arguments.folder, arguments.out, changes)


if __name__ == "__main__":
    main()
