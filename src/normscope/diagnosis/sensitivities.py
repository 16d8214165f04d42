"""The sensitivity to every weight as an audit shows it: a few samples, within a share of the time."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from ..bounds.weights.applied import factors_of
from ..bounds.weights.figures import Plan
from ..bounds.weights.jacobian import Search
from ..bounds.weights.weights import measure
from ..bounds.work import Work
from ..core.bracket import Bracket
from ..core.errors import InputError, JacobianError, said

SAMPLES = 2
"""Samples of the batch that are measured."""
SECONDS = 4.0
"""Time for what the bounds of the audit do not know yet; then cheaper bounds are taken."""
AT_LEAST = 1.0
"""Seconds it may take even when the budget of the bounds is spent: small models need a fraction of it."""
MULTIPLICATIONS = 3e8
"""Models that take more in one pass have no lower sides: these need a dozen passes in float64, and one per weight."""
STEPS = 4
"""Of Lanczos, where a model has many outputs."""
SIDE = 128
"""Segments of several sources up to this size are written out side by side."""
WHAT = "sensitivity to the weights"


def sensitivities(work: Work, seed: int, skipped: list[tuple[str, str]]) -> dict[str, Bracket]:
    """Return norm(h, W) of every weight layer by node name, at the first samples; what is left out goes to `skipped`.

    To be called when the audit has bounded the network, whose norms are used again.
    """
    left = work.left()
    now, seconds = time.monotonic(), SECONDS if left is None else min(max(left, AT_LEAST), SECONDS)
    large = _multiplications(work) > MULTIPLICATIONS
    if large:
        skipped.append(
            (f"lower sides of the {WHAT}", "the model is large: normscope.weight_sensitivity takes the time")
        )
    search = Search(rtol=work.rtol, steps=STEPS, seed=seed, deadline=-math.inf if large else now + seconds)
    plan = Plan(
        search=search,
        samples=1 if large else SAMPLES,
        chain_cost=-1.0,
        side=SIDE,
        deadline=now + seconds / 2,
        witnesses=False,
    )
    try:
        result, rows = measure(work, plan)
    except (InputError, JacobianError, RuntimeError, NotImplementedError) as error:
        skipped.append((WHAT, said(error)))
        return {}
    skipped.extend((f"{WHAT} of {path}", why) for path, why in result.skipped)
    return {name: replace(row.bracket_h, per_sample=None, notes=row.notes) for name, row in rows.items()}


def _multiplications(work: Work) -> float:
    """About how many multiplications one pass through the weight layers takes."""
    found = [(factors[1], node.shape) for node in work.double if (factors := factors_of(node)) is not None]
    return sum(float(weight.numel()) * math.prod(shape) / max(weight.shape[0], 1) for weight, shape in found)
