"""Training runs with planted faults and healthy runs, for scoring tools that watch PyTorch training.

Each run is a small training loop as a user writes it, with `with watch(model, optimizer) as run:` around it. A fault
comes with the causes, layers and remedies that count as a right alarm, the step at which it sets in, and a mended twin
that has all but the fault. `case.py` has the records and the vocabularies. The catalogue has five parts: `open.py`, on
which alarms are tuned; `first.py`, `second.py` and `third.py`, each held out until its score was published and its
misses named; `fourth.py`, written after that by someone who had seen neither alarms nor misses, which is for scoring
alone.
`python -m benchmarks.watch_catalogue.check_runs` trains each fault and its mended twin and prints how good both become.
"""

from importlib.util import find_spec

from . import first, second, third
from . import open as open_part
from .case import HealthyRun, RunFault

PARTS: dict[str, tuple[list[RunFault], list[HealthyRun]]] = {
    "open": (open_part.FAULTS, open_part.HEALTHY),
    "first": (first.FAULTS, first.HEALTHY),
    "second": (second.FAULTS, second.HEALTHY),
    "third": (third.FAULTS, third.HEALTHY),
}
if find_spec(f"{__name__}.fourth") is not None:
    from . import fourth

    PARTS["held-out"] = (fourth.FAULTS, fourth.HEALTHY)
