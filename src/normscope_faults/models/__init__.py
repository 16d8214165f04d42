"""Models with planted faults and healthy models, by the part of the published scores to which each belongs.

Rules may be tuned on the parts `open`, `first`, `second` and `third`; `first`, `second` and `third` were held out until
their scores were published and their misses named. `held-out` was written after that by someone who had seen neither
rules nor misses, and is for scoring alone. `python -m normscope_faults.models.check_cases` checks the catalogue itself,
`--harm` also trains each faulty model and its mended twin.
"""

from importlib import import_module
from pathlib import Path

from ..case import Fault, Healthy

PARTS: dict[str, tuple[list[Fault], list[Healthy]]] = {
    part: ([], []) for part in ("open", "first", "second", "third", "held-out")
}
for path in sorted(Path(__file__).parent.glob("*/*.py")):
    module = import_module(f".{path.parent.name}.{path.stem}", __name__)
    part = path.stem.split("_")[0].replace("fourth", "held-out")
    for entries, name in zip(PARTS.get(part, ()), ("FAULTS", "HEALTHY")):
        entries += getattr(module, name, [])
