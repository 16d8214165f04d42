"""The sensitivity to every weight as an audit shows it: a few samples, within a share of the time."""

from __future__ import annotations

from dataclasses import replace

from ..bounds.applied import multiplications, passes
from ..bounds.captured import Bounding, Captured
from ..bounds.weights.figures import WeightPlan
from ..bounds.weights.jacobian import LOWER_SIDES, JacobianSearch
from ..bounds.weights.weight_constants import measure
from ..core.bracket import Bracket
from ..core.budget import GPU
from ..core.errors import InputError, JacobianError, describe_error
from ..linalg.operator_norms import BOUNDING

SAMPLES = 2
"""This many samples of the batch are measured."""
SEARCH_STEPS, SEARCH_WORK = 2000, 1e10
"""Steps of the search for lower sides, and multiplications of one pass over all of them."""
NORM_WORK = 2e10
"""Multiplications for the norms of maps that the bounds of the audit do not know yet; then cheaper ones are taken."""
MULTIPLICATIONS = 3e8
"""Models that take more in one pass have no lower sides: these need a dozen passes in float64, and one per weight."""
STEPS = 4
"""How many steps Lanczos takes where a model has many outputs."""
SIDE = 128
"""Segments of several sources up to this size are written out side by side."""
WHAT = "sensitivity to the weights"


def sensitivities(
    captured: Captured, bounding: Bounding, seed: int, skipped: list[tuple[str, str]]
) -> dict[str, Bracket]:
    """Return norm(h, W) of every weight layer by node name, at the first samples; what is left out goes to `skipped`.

    To be called when the audit has bounded the network, whose norms are used again.
    """
    large = multiplications(captured.double) > MULTIPLICATIONS
    if large:
        skipped.append(
            (f"lower sides of the {WHAT}", "the model is large: normscope.weight_sensitivity takes the time")
        )
    steps = 0 if large else passes(captured.double, SEARCH_STEPS, work=SEARCH_WORK)
    search = JacobianSearch(
        rtol=bounding.rtol, steps=STEPS, seed=seed, budget=bounding.budget.search(LOWER_SIDES, steps)
    )
    norms = NORM_WORK * (GPU if captured.double.inputs[0].value.device.type == "cuda" else 1.0)
    plan = WeightPlan(
        search=search,
        samples=1 if large else SAMPLES,
        chain_cost=-1.0,
        side=SIDE,
        norms=bounding.norms.search(BOUNDING, norms),
        witnesses=False,
    )
    try:
        result, rows = measure(captured, bounding, plan)
    except (InputError, JacobianError, RuntimeError, NotImplementedError) as error:
        skipped.append((WHAT, describe_error(error)))
        return {}
    skipped.extend((f"{WHAT} of {path}", why) for path, why in result.skipped)
    return {name: replace(row.bracket_h, per_sample=None, notes=row.notes) for name, row in rows.items()}
