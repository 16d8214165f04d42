"""How long the command and the import take beside `import torch`: `python benchmarks/startup.py`."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time

from machine import header

RUNS = 5
CASES = {
    "python -c pass": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import normscope": ["-c", "import normscope"],
    "from normscope import check, watch": ["-c", "from normscope import check, watch"],
    "import normscope, and all of its names": ["-c", "from normscope import *"],
    "normscope --version": ["-m", "normscope", "--version"],
    "normscope --help": ["-m", "normscope", "--help"],
    "normscope bound --help": ["-m", "normscope", "bound", "--help"],
    "normscope check --help": ["-m", "normscope", "check", "--help"],
}


def seconds(words: list[str]) -> tuple[float, float]:
    """Return the processor time and the wall time of a process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall


def main() -> None:
    print(header())
    print(f"Seconds of a whole process, medians of {RUNS}: of the processor, and on the wall (fastest).\n")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for words in CASES.values():  # so that files are in memory and compiled
        seconds(words)
    for _ in range(RUNS):  # in turns, so that other load on the machine falls on all of them
        for name, words in CASES.items():
            times[name].append(seconds(words))
    for name, taken in times.items():
        processor, wall = zip(*taken)
        print(f"{name:40s} {statistics.median(processor):6.2f} {statistics.median(wall):6.2f} ({min(wall):.2f})")


if __name__ == "__main__":
    main()
