"""Where runs take place: in this process, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from ..core.errors import InputError, said
from .outcome import Outcome
from .task import Task, TrainingRun
from .training import train_run

Job = tuple[TrainingRun, bool]
"""A run, and whether it measures the largest stable learning rate."""
DIED = "the process of this run died (out of memory, or a crash)"


def here(task: Task, jobs: Sequence[Job]) -> Iterator[Outcome]:
    """Yield the outcomes of runs in this process, one after the other."""
    for run, first in jobs:
        yield train_run(task, run, first=first)


def processes(task: Task, jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    """Yield the outcomes of runs in processes of this machine, as they end.

    Where a process dies, the runs that were under way are repeated one by one, and one that dies again is a failure.

    Args:
        task: what all runs share; it is sent to each process once.
        jobs: the runs.
        workers: how many processes.
    """
    left = dict.fromkeys(jobs)
    try:
        for job, outcome in _pooled(task, list(left), workers):
            del left[job]
            yield outcome
    except BrokenProcessPool:
        for job in list(left):
            try:
                [(_, outcome)] = _pooled(task, [job], 1)
                yield outcome
            except BrokenProcessPool:
                yield Outcome(run=job[0], status="failed", reason=DIED)


def _pooled(task: Task, jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, Outcome]]:
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads of torch in mid-step
    with ProcessPoolExecutor(min(workers, len(jobs)), context, _begin, (pickle.dumps(task),)) as pool:
        try:
            running: dict[Future[Outcome], Job] = {pool.submit(_run, *job): job for job in jobs}
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    yield job, future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_task: Task | str = "nothing was sent"
"""Of this process, if it is one of a pool; or why it has none."""


def _begin(sent: bytes) -> None:
    global _task
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # the processes share the cores
    try:
        _task = pickle.loads(sent)
    except Exception as error:
        _task = f"the model, the data or the loss cannot be loaded in another process ({said(error)}): use workers=0"


def _end_with_parent() -> None:
    """End this process when the one that asked for the runs is gone, killed for example: nobody reads them any more."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(run: TrainingRun, first: bool) -> Outcome:
    if isinstance(_task, str):
        return Outcome(run=run, status="failed", reason=_task)
    return train_run(_task, run, first=first)


def on_ray(task: Task, jobs: Sequence[Job]) -> Iterator[Outcome]:
    """Yield the outcomes of runs on a Ray cluster, as they end: the one that is connected, or one on this machine.

    Raises:
        InputError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise InputError("engine='ray' needs Ray, which is not installed: pip install 'normscope[ray]'") from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    sent = ray.put(pickle.dumps(task))

    @ray.remote(num_cpus=1, max_retries=1)
    def remote(data: bytes, run: TrainingRun, first: bool) -> Outcome:
        torch.set_num_threads(1)
        return train_run(pickle.loads(data), run, first=first)

    running: dict[Any, Job] = {remote.remote(sent, *job): job for job in jobs}
    while running:
        (done, *_), _ = ray.wait(list(running), num_returns=1)
        job = running.pop(done)
        try:
            yield ray.get(done)
        except ray.exceptions.RayError as error:
            yield Outcome(run=job[0], status="failed", reason=said(error))


def runner(
    name: str, task: Task, workers: int | None, notes: list[str]
) -> Callable[[Sequence[Job]], Iterator[Outcome]]:
    """Return what runs jobs.

    Args:
        name: `"local"` or `"ray"`.
        task: what all runs share.
        workers: processes on this machine; 0 for none, None for one a core.
        notes: where to say that processes are not possible.

    Raises:
        InputError: there is no such engine, or the task cannot be sent to a cluster.
    """
    if name not in ("local", "ray"):
        raise InputError(f'engine is "local" or "ray", not {name!r}')
    trouble = _cannot_travel(task) if name == "ray" or workers != 0 else None
    if name == "ray":
        if trouble is not None:
            raise InputError(f"the model, the data or the loss cannot be sent to a cluster: {trouble}")
        return lambda jobs: on_ray(task, jobs)
    if trouble is not None:
        notes.append(f"all runs took place in one process: {trouble}")
        return lambda jobs: here(task, jobs)
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = count if workers is None else workers
    cuda = any(value.is_cuda for value in _tensors(task))
    if wanted <= 1 or cuda:
        return lambda jobs: here(task, jobs)
    return lambda jobs: processes(task, jobs, wanted) if len(jobs) > 1 else here(task, jobs)


def _tensors(task: Task) -> list[torch.Tensor]:
    return [leaf for leaf in task.samples.call.leaves if isinstance(leaf, torch.Tensor)]


def _cannot_travel(task: Task) -> str | None:
    """Return why a task cannot be sent to another process, or None."""
    parts = [task.model, task.loss, *(task.model.modules() if isinstance(task.model, torch.nn.Module) else ())]
    if any(getattr(part, "__module__", None) == "__main__" for part in parts):
        return "the model or the loss is defined in the script or notebook itself; import it from a module"
    try:
        pickle.dumps(task)
    except Exception as error:
        return f"it cannot be pickled ({said(error)})"
    return None
