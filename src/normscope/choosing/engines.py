"""Do jobs in this process, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import pickletools
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event
from typing import Any, Protocol, TypeVar

import torch

from ..core.errors import InputError, describe_error

Job = TypeVar("Job", bound=Hashable)
Result = TypeVar("Result")
AJob = TypeVar("AJob", bound=Hashable, contravariant=True)
AResult = TypeVar("AResult", covariant=True)

DIED = "the process of this job died (out of memory, or a crash)"


class SharedWork(Protocol[AJob, AResult]):
    """The data that all jobs share, with the method that does one job; it is pickled for other processes."""

    @property
    def local(self) -> bool:
        """Whether the jobs must run in this process, for example because tensors are on a GPU."""
        ...

    def do(self, job: AJob) -> AResult:
        """Return the result of a job; errors become results as well."""
        ...

    def failed(self, job: AJob, reason: str) -> AResult:
        """Return the result that stands for a job that could not be done."""
        ...


def processes(work: SharedWork[Job, Result], jobs: Sequence[Job], workers: int) -> Iterator[Result]:
    """Yield the results of jobs in processes of this machine, as they end.

    If a process dies, the unfinished jobs are repeated one by one, and a job that dies again counts as failed.
    """
    left = dict.fromkeys(jobs)
    try:
        for job, result in _pooled(work, list(left), workers):
            del left[job]
            yield result
    except BrokenProcessPool:
        for job in list(left):
            try:
                [(_, result)] = _pooled(work, [job], 1)
                yield result
            except BrokenProcessPool:
                yield work.failed(job, DIED)


def _pooled(work: SharedWork[Job, Result], jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, Result]]:
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads in the middle of their work
    given_up = context.Event()
    with ProcessPoolExecutor(min(workers, len(jobs)), context, _begin, (pickle.dumps(work), given_up)) as pool:
        try:
            with _without_script():  # processes start while jobs are submitted
                running: dict[Future[Any], Job] = {pool.submit(_do, job): job for job in jobs}
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    done = future.result()
                    yield job, work.failed(job, done.reason) if isinstance(done, _NotLoaded) else done
        except BaseException:  # the run is interrupted or abandoned, and running jobs may take hours
            given_up.set()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Keep new processes from running the user's script again; nothing that is sent to them refers to it."""
    main = sys.modules["__main__"]
    names = ("__file__", "__spec__")
    held = {name: getattr(main, name) for name in names if hasattr(main, name)}
    try:
        for name in held:
            setattr(main, name, None)
        yield
    finally:
        for name, value in held.items():
            setattr(main, name, value)


class _NotLoaded:
    """The reason why a process could not load the shared data."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


_work: Any = _NotLoaded("nothing was sent")
"""The shared data of this process, if it belongs to a pool, or the reason why it has none."""


def _begin(sent: bytes, given_up: Event) -> None:
    global _work
    threading.Thread(target=_end_with_parent, daemon=True).start()
    threading.Thread(target=_end_when, args=(given_up,), daemon=True).start()
    torch.set_num_threads(1)  # the processes share the cores
    try:
        _work = pickle.loads(sent)
    except Exception as error:
        _work = _NotLoaded(
            f"what the jobs share cannot be loaded in another process ({describe_error(error)}): use workers=0"
        )


def _end_with_parent() -> None:
    """End this process when its parent is gone, for example killed, since the results can no longer be read."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _end_when(given_up: Event) -> None:
    """End this process when the jobs are given up, even in the middle of a job."""
    given_up.wait()
    os._exit(1)


def _do(job: Any) -> Any:
    return _work if isinstance(_work, _NotLoaded) else _work.do(job)


def on_ray(work: SharedWork[Job, Result], jobs: Sequence[Job]) -> Iterator[Result]:
    """Yield the results of jobs on a Ray cluster as they end: on the connected one, or on one on this machine."""
    try:
        import ray
    except ImportError as error:
        raise InputError("engine='ray' needs Ray, which is not installed: pip install 'normscope[ray]'") from error
    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            address = os.environ.get("RAY_ADDRESS")
            named = f"the Ray cluster of RAY_ADDRESS={address}" if address else "a Ray cluster on this machine"
            raise InputError(
                f"{named} cannot be used ({describe_error(error)}): start it, unset RAY_ADDRESS, or leave out the "
                "engine"
            ) from error
    sent = ray.put(pickle.dumps(work))

    @ray.remote(num_cpus=1, max_retries=1)
    def remote(data: bytes, job: Any) -> Any:
        torch.set_num_threads(1)
        return pickle.loads(data).do(job)

    running: dict[Any, Job] = {remote.remote(sent, job): job for job in jobs}
    while running:
        (done, *_), _ = ray.wait(list(running), num_returns=1)
        job = running.pop(done)
        try:
            yield ray.get(done)
        except ray.exceptions.RayError as error:
            yield work.failed(job, describe_error(error))


def runner(
    name: str, work: SharedWork[Job, Result], workers: int | None, notes: list[str]
) -> Callable[[Sequence[Job]], Iterator[Result]]:
    """Return a function that does jobs and yields their results.

    Args:
        name: the engine, `"local"` or `"ray"`.
        work: the data that all jobs share.
        workers: how many processes run on this machine; 0 uses this process alone, None starts one for each core.
        notes: a list that gets a note where other processes cannot be used.

    Raises:
        InputError: there is no such engine, or the shared data cannot be sent to a cluster.
    """
    if name not in ("local", "ray"):
        raise InputError(f'engine is "local" or "ray", not {name!r}')
    trouble = _cannot_travel(work) if name == "ray" or workers != 0 else None
    if name == "ray":
        if trouble is not None:
            raise InputError(f"the work cannot be sent to a cluster: {trouble}")
        return lambda jobs: on_ray(work, jobs)
    if trouble is not None:
        notes.append(f"everything took place in one process: {trouble}")
        return lambda jobs: map(work.do, jobs)
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = count if workers is None else workers
    if wanted <= 1 or work.local:
        return lambda jobs: map(work.do, jobs)
    return lambda jobs: processes(work, jobs, wanted) if len(jobs) > 1 else map(work.do, jobs)


def _cannot_travel(work: Any) -> str | None:
    """Return why the shared data cannot be sent to another process, or None if they can."""
    try:
        sent = pickle.dumps(work)
    except Exception as error:
        return f"it cannot be pickled ({describe_error(error)})"
    if any(argument == "__main__" for _, argument, _ in pickletools.genops(sent)):
        return "the model or the loss is defined in the script or notebook itself; import it from a module"
    return None
