"""Than's figures 2 and 3 over seeds on one GPU: all trainings of a network side by side, until a time limit.

    python benchmarks/decay_seeds.py DATA --out OUT --minutes resnet18=25 efficientnet_b3=80

DATA holds CIFAR-10's python batches. One step of each training is recorded as a CUDA graph and replayed, in as many
streams as turn out quickest. The images lie on the device; there is no augmentation, as in the paper. After each epoch
of all trainings their curves are written to OUT/than.decays.json, which `normscope lab claims` reads once it lies in
src/normscope_lab/experiments/stored: at the limit the result has as many epochs as all trainings have finished. With
`--quick` small networks learn digits, on any machine. A training that diverges stays in the result.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from normscope.data import Split
from normscope_lab.experiments.base import Job
from normscope_lab.experiments.origin import origin
from normscope_lab.experiments.registry import registered
from normscope_lab.experiments.reproduction import Reproduction
from normscope_lab.experiments.than.decay_seeds import Training, call_model
from normscope_lab.experiments.than.watched_training import load

NAME = "than.decays"
COMPILED = ("resnet18",)
"""Networks for which torch.compile is tried; EfficientNet-B3 would take longer to compile than it saves."""
WARM_UP = 3
"""Steps before one is recorded; they count as steps of the training."""
RACED = 40
LANES = (1, 2, 3, 6, 9)
"""How many streams are tried, for this many steps each."""
TRIED = 15
COMPILE_SECONDS = 150


class Steps:
    """The steps of one training: recorded once and replayed on a GPU, plain calls elsewhere."""

    def __init__(self, training: Training) -> None:
        self.training, self.taken, self.graph = training, 0, None
        training.begin_epoch()
        if training.device.type == "cuda":
            stream = torch.cuda.Stream()  # its own, since graphs of one stream share a workspace of cuBLAS
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    training.step()
            torch.cuda.synchronize()
            self.taken, self.graph = WARM_UP, torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                training.step()

    def take(self) -> None:
        """Take one step."""
        self.taken += 1
        if self.graph is None:
            self.training.step()
        else:
            self.graph.replay()


def synchronize() -> float:
    """Wait for the device; return the time."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic()


def advance(every: Sequence[Steps], count: int, lanes: Sequence[Any]) -> float:
    """Take some steps of all trainings, in streams; return the samples per second."""
    began = synchronize()
    for _ in range(count):
        for index, one in enumerate(every):
            if lanes:
                with torch.cuda.stream(lanes[index % len(lanes)]):
                    one.take()
            else:
                one.take()
    return count * sum(one.training.size for one in every) / (synchronize() - began)


def quicker(settings: dict[str, Any], job: Job, split: Split) -> Any:
    """Return the compiled call of a model if it is quicker than the model, and None if not."""

    def late(*_: object) -> None:
        raise TimeoutError(f"compiling took more than {COMPILE_SECONDS} s")

    began, compiled = time.monotonic(), torch.compile(call_model)
    plain = advance([Steps(Training(settings, job, split))], RACED, [])
    signal.signal(signal.SIGALRM, late)
    signal.alarm(COMPILE_SECONDS)
    try:
        raced = Steps(Training(settings, job, split, compiled))
        speed = advance([raced], RACED, [])
        print(f"one training: {plain:,.0f} samples/s, compiled {speed:,.0f}, {time.monotonic() - began:.0f} s for this")
        return compiled if speed > 1.05 * plain else None
    except Exception as error:  # whatever goes wrong in a compiler, the plain model is there
        print(f"one training: {plain:,.0f} samples/s; not compiled: {type(error).__name__}: {str(error)[:300]}")
        return None
    finally:
        signal.alarm(0)


def train(settings: dict[str, Any], jobs: Sequence[Job], split: Split, minutes: float, write: Any) -> None:
    """Train all jobs of one network side by side, writing after each epoch, until the time is up."""
    limit = time.monotonic() + 60.0 * minutes
    on_gpu = split.train_images.is_cuda
    compiled = quicker(settings, jobs[0], split) if on_gpu and jobs[0].kind.split()[0] in COMPILED else None
    every = [Steps(Training(settings, job, split, compiled)) for job in jobs]
    trainings = {job: one.training for job, one in zip(jobs, every)}
    lanes: Sequence[Any] = ()
    if on_gpu:
        speeds = {count: advance(every, TRIED, [torch.cuda.Stream() for _ in range(count)]) for count in LANES}
        lanes = [torch.cuda.Stream() for _ in range(max(speeds, key=speeds.__getitem__))]
        print("samples/s by streams: " + ", ".join(f"{count}: {speed:,.0f}" for count, speed in speeds.items()))
    took = 0.0
    for epoch in range(1, settings["epochs"] + 1):
        if time.monotonic() + took > limit:
            break
        began = synchronize()
        speed = advance(every, trainings[jobs[0]].steps - every[0].taken, lanes)
        for one in every:
            one.training.end_epoch()
            one.training.begin_epoch()
            one.taken = 0
        write({job: training.curves for job, training in trainings.items()})
        took = synchronize() - began
        told = []
        for decay in settings["decays"]:
            same = [training.curves for job, training in trainings.items() if job.kind.split()[1] == decay]
            products = sorted(-curves["variance"][-1] / 2.0 for curves in same)
            told.append(
                f"{decay} {products[0]:.1f} to {products[-1]:.1f}, right "
                f"{median(curves['train_accuracy'][-1] for curves in same):.3f}"
            )
        print(f"epoch {epoch}: {took:.1f} s, {speed:,.0f} samples/s; log10 of 1/sigma: {'; '.join(told)}", flush=True)


def main() -> None:
    """Train, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--out", type=Path, default=Path("runs/decays"))
    parser.add_argument(
        "--minutes", nargs="+", default=["resnet18=60", "efficientnet_b3=60"], metavar="NETWORK=MINUTES"
    )
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--images", type=int, help="of either part of the data, to try this out")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--quick", action="store_true", help="small networks and digits")
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.quick:
        print("decay_seeds: skipped, give the folder with CIFAR-10's python batches to run it")
        return
    experiment = registered()[NAME]
    settings = dict(experiment.quick if arguments.quick else experiment.full)
    settings |= {name: getattr(arguments, name) for name in ("epochs", "images", "seeds") if getattr(arguments, name)}
    minutes = {name: float(value) for name, _, value in (one.partition("=") for one in arguments.minutes)}
    settings["networks"] = tuple(minutes)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    split = load(settings | {"data_folder": arguments.data})[0]
    split = replace(split, **{name: getattr(split, name).to(device) for name in split.__dataclass_fields__})
    arguments.out.mkdir(parents=True, exist_ok=True)
    curves: dict[Job, Any] = {}

    def write(new: dict[Job, Any]) -> None:
        curves.update(new)
        result = Reproduction(
            experiment=experiment, full=not arguments.quick, settings=settings, measured=curves, origin=origin()
        )
        result.to_json(arguments.out / f"{NAME}.json")

    for name, time_limit in minutes.items():
        jobs = [job for job in experiment.jobs(settings) if job.kind.split()[0] == name]
        print(f"{name}: {len(jobs)} trainings side by side, {time_limit:g} minutes", flush=True)
        train(settings, jobs, split, time_limit, write)


if __name__ == "__main__":
    main()
