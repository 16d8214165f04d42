"""The quantities that a watched run measures: one file per quantity or close relatives.

Each file declares its quantities and has the probe that measures them; `PROBES` lists the probes in the order in which
they measure. A new quantity is one file, and its probe in this list. What is not declared here cannot be asked for:
`check_declared` says so at once.
"""

from __future__ import annotations

from ....core.errors import InputError
from .accumulation import Accumulation
from .batch import Batch
from .blocks import Blocks
from .dead_units import DeadUnits
from .histograms import Histograms
from .loss_parts import LossParts
from .losses import Losses
from .normalizers import Normalizers
from .operator_norms import OperatorNorms
from .outputs import Outputs
from .quantity import Probe, Quantity
from .sampled_steps import SampledSteps
from .sharpness import Sharpness
from .sizes import Sizes
from .step_facts import StepFacts
from .turning import Turning

PROBES: tuple[type[Probe], ...] = (
    Accumulation, Sizes, StepFacts, SampledSteps, Turning, Histograms, OperatorNorms, Normalizers, DeadUnits, Blocks,
    Losses, LossParts, Outputs, Batch, Sharpness,
)  # fmt: skip
DECLARED: dict[tuple[str, str], Quantity] = {(one.of, one.name): one for probe in PROBES for one in probe.quantities}
assert len(DECLARED) == sum(len(probe.quantities) for probe in PROBES), "two quantities have one name"
DERIVED = {key: quantity.derive for key, quantity in DECLARED.items() if quantity.derive is not None}
"""Quantities that the history makes of each record."""
OF_WHOLE_NETWORK = ("network", "metrics", "record")
"""What the numbers of a record are of that belong to no layer."""


def check_declared(name: str, *of: str) -> None:
    """Raise InputError where no quantity has that name, among those of a kind of layer or of one of several.

    Example:
        >>> check_declared("log10_norm", "weight")
        >>> check_declared("log10_nrom", "weight")
        Traceback (most recent call last):
        normscope.core.errors.InputError: no quantity of weight is called 'log10_nrom': ...
    """
    if not any((one, name) in DECLARED for one in of):
        names = ", ".join(sorted(quantity.name for quantity in DECLARED.values() if quantity.of in of))
        raise InputError(f"no quantity of {' or '.join(of)} is called {name!r}: declared are {names}")
