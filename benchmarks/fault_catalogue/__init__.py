"""Planted faults and healthy models, for scoring tools that diagnose PyTorch models.

Each fault stands in an otherwise sensible small network with plausible data and comes with the causes, layers and first
remedies that count as a right diagnosis, and with a mended twin that has all but the fault. `case.py` has the records
and the vocabularies. The catalogue has five parts: `open.py`, on which rules are tuned; `first.py`, `second.py` and
`third.py`, each held out until its score was published and its misses named; `fourth.py`, written after that by someone
who had seen neither rules nor misses, which is for scoring alone. `python -m benchmarks.fault_catalogue.check_cases`
checks the catalogue itself, `--harm` also trains each faulty model and its mended twin.
"""

from . import first, fourth, second, third
from . import open as open_part
from .case import Fault, Healthy

PARTS: dict[str, tuple[list[Fault], list[Healthy]]] = {
    "open": (open_part.FAULTS, open_part.HEALTHY),
    "first": (first.FAULTS, first.HEALTHY),
    "second": (second.FAULTS, second.HEALTHY),
    "third": (third.FAULTS, third.HEALTHY),
    "held-out": (fourth.FAULTS, fourth.HEALTHY),
}
