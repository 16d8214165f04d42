"""Planted faults and healthy models, for scoring tools that diagnose PyTorch models.

Each fault stands in an otherwise sensible small network with plausible data and comes with the causes, layers and first
remedies that count as a right diagnosis, and with a mended twin that has all but the fault. `case.py` has the records
and the vocabularies, `held_out.py` and `open.py` the two halves: rules may be tuned on the open half alone.
`python -m benchmarks.fault_catalogue.check_cases` checks the catalogue itself, `--harm` also trains each faulty model
and its mended twin.
"""

from . import held_out
from . import open as open_half
from .case import Fault, Healthy

HALVES: dict[str, tuple[list[Fault], list[Healthy]]] = {
    "open": (open_half.FAULTS, open_half.HEALTHY),
    "held-out": (held_out.FAULTS, held_out.HEALTHY),
}
