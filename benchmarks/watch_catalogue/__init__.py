"""Training runs with planted faults and healthy runs, for scoring tools that watch PyTorch training.

Each run is a small training loop as a user writes it, with `with watch(model, optimizer) as run:` around it. A fault
comes with the causes, layers and remedies that count as a right alarm, the step at which it sets in, and a mended twin
that has all but the fault. `case.py` has the records and the vocabularies, `held_out.py` the half for scoring alone,
`open.py`, where it exists, the half on which alarms may be tuned. `python -m benchmarks.watch_catalogue.check_runs`
trains each fault and its mended twin and prints how good both become.
"""

from importlib.util import find_spec

from . import held_out
from .case import HealthyRun, RunFault

HALVES: dict[str, tuple[list[RunFault], list[HealthyRun]]] = {"held-out": (held_out.FAULTS, held_out.HEALTHY)}
if find_spec(f"{__name__}.open") is not None:
    from . import open as open_half

    HALVES = {"open": (open_half.FAULTS, open_half.HEALTHY), **HALVES}
