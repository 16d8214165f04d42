"""The populations of the digest's third check on many cores, to be resumed where a limit of time cut them off.

    python benchmarks/populations.py DATA --folder FOLDER --workers 14
    normscope lab reproduce digest.predicting --full --data DATA --folder FOLDER

The first command trains the populations side by side, those that are named first with most of the processor, so that
they are complete first; each network is on disk as soon as it is measured. The second one takes the statistics. DATA
is the folder with MNIST and CIFAR-10. With `--quick` small networks learn digits.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path

from normscope_lab.experiments.base import Job, Settings
from normscope_lab.experiments.digest.predicting import PREDICTING, train_population
from normscope_lab.experiments.reproducing import DATA, ExperimentTask, job_folder

NICER = 4
"""By how much each population yields to the one before it: it then has 0.4 of its processor time."""


def fill(kind: str, settings: Settings, folder: Path, workers: int, niceness: int) -> None:
    """Train and measure what the folder of a population lacks."""
    os.nice(niceness)
    job = Job(kind)
    train_population(settings, job, job_folder(folder, ExperimentTask(PREDICTING.name, job)), workers)
    print(f"{kind}: complete", flush=True)


def main() -> None:
    """Fill the folders of all populations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--folder", type=Path, default=Path("runs/predicting"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kinds", nargs="+", metavar="POPULATION", help="all in their order, if left out")
    parser.add_argument("--quick", action="store_true", help="small networks and digits")
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.quick:
        print("populations: skipped, give the folder with MNIST and CIFAR-10 to run it")
        return
    settings = {**(PREDICTING.quick if arguments.quick else PREDICTING.full), DATA: arguments.data}
    kinds = arguments.kinds or [job.kind for job in PREDICTING.jobs(settings)]
    filled = []
    for place, kind in enumerate(kinds, start=1):
        values = (kind, settings, arguments.folder, arguments.workers, NICER * place)
        filled.append(multiprocessing.get_context("spawn").Process(target=fill, args=values))
        filled[-1].start()
    for process in filled:
        process.join()


if __name__ == "__main__":
    main()
