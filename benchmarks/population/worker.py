"""A process that measures networks, and can be ended where one of them takes too long or too much memory."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from .measuring import Limits, measure
from .networks import Network, enumerate_networks


def work(asked: Connection, limits: Limits, path: Path) -> None:
    """Measure the networks whose names are asked for, and append their lines to a file."""
    torch.set_num_threads(1)
    networks, _ = enumerate_networks()
    by_name = {(network.package, network.name): network for network in networks}
    asked.send("ready")
    while True:
        try:
            name = asked.recv()
        except EOFError:
            return
        with path.open("a") as file:
            for row in measure(by_name[name], limits):
                file.write(json.dumps(row) + "\n")
                file.flush()
        gc.collect()
        if limits.device != "cpu":
            torch.cuda.empty_cache()
        asked.send("done")


class Worker:
    """A process that measures one network after the other, and is ended where one takes too long or too much memory."""

    def __init__(self, limits: Limits, path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.asking, asked = context.Pipe()
        self.process = context.Process(target=work, args=(asked, limits, path), daemon=True)
        self.process.start()
        asked.close()
        self.asking.recv()

    def measure(self, network: Network, seconds: float, gibibytes: float) -> str:
        """Measure a network; return why the process was ended, if it was."""
        started, reason = time.perf_counter(), ""
        self.asking.send((network.package, network.name))
        while not reason:
            if self.asking.poll(0.1):
                try:
                    self.asking.recv()
                    return ""
                except EOFError:
                    reason = "the process ended"
            elif time.perf_counter() - started > seconds:
                reason = f"took longer than {seconds:.0f} s"
            elif self.memory() > gibibytes:
                reason = f"took more than {gibibytes:.0f} GiB"
        self.process.kill()
        self.process.join()
        return reason

    def memory(self) -> float:
        """Return the resident memory in GiB; 0 where it cannot be read."""
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / 2**30
        except (OSError, IndexError, ValueError):
            return 0.0
