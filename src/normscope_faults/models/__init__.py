"""Models with planted faults and healthy models, by the part of the published scores to which each belongs.

Rules may be tuned on the parts `open`, `first`, `second` and `third`; `first`, `second` and `third` were held out until
their scores were published and their misses named. `held-out` was written after that by someone who had seen neither
rules nor misses, and is for scoring alone. `python -m normscope_faults.models.check_cases` checks the catalogue itself,
`--harm` also trains each faulty model and its mended twin.
"""

from importlib import import_module
from pathlib import Path

from ..case import FIRST, HELD_OUT, OPEN, SECOND, THIRD, Fault, Healthy

for path in sorted(Path(__file__).parent.glob("*/*.py")):
    import_module(f".{path.parent.name}.{path.stem}", __name__)

PARTS: dict[str, tuple[list[Fault], list[Healthy]]] = {
    name: (part.faults, part.healthy)
    for name, part in zip(("open", "first", "second", "third", "held-out"), (OPEN, FIRST, SECOND, THIRD, HELD_OUT))
}
