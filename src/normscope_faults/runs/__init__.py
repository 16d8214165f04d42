"""Training runs with planted faults and healthy runs, for scoring tools that watch PyTorch training.

Each run is a small training loop as a user writes it, with `with watch(model, optimizer) as run:` around it. A fault
comes with the causes, layers and remedies that count as a right alarm, the step at which it sets in, and a mended twin
that has all but the fault. Alarms are tuned on the parts `open`, `first`, `second` and `third` (each of the last three
was held out until its score was published and its misses named); `held-out` was written after that by someone who had
seen neither alarms nor misses, and is for scoring alone.
`python -m normscope_faults.runs.check_runs` trains each fault and its mended twin and prints how good both become.
"""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

from .case import FIRST, HELD_OUT, OPEN, SECOND, THIRD, HealthyRun, RunFault

PARTS: dict[str, tuple[list[RunFault], list[HealthyRun]]] = {}
for _folder, _parts in {
    "tuned": {"open": OPEN, "first": FIRST, "second": SECOND, "third": THIRD}, "held_out": {"held-out": HELD_OUT}
}.items():  # fmt: skip
    if (_spec := find_spec(f"{__name__}.{_folder}")) is not None:
        for _module in iter_modules(_spec.submodule_search_locations):
            import_module(f"{__name__}.{_folder}.{_module.name}")
        PARTS |= {name: (part.faults, part.healthy) for name, part in _parts.items()}
