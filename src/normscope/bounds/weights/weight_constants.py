"""`weight_sensitivity`: how far a model's output, and its loss, move with each of its weights.

With the data fixed, W_i -> h is the affine map W_i -> W_i H followed by the network g behind the layer. So
norm(h, W_i) <= norm(H) norm(g) (Theorem 12, with the matrix H of what the layer reads at all its positions in place of
the vector h_{i-1}), Frobenius norm on W_i; norm(f, W_i) has the constant of the loss as a further factor (Corollary
14, corrected). The upper side holds for every value of W_i, all other weights as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...calls.data_reader import Batches, inputs_and_labels
from ...calls.stand_ins import accepts_graph
from ...core.budget import Progress
from ...core.untouched import Mode, outside_inference_mode
from ...theory.losses import Loss, named
from ..graph.ir import HELD, Graph
from ..graph_weights import applied_weights, passes
from ..traced_network import BoundSettings, OnMissing, TracedNetwork
from .figures import LossRows, WeightFigures, WeightPlan, targets_by_sample
from .jacobian import LOWER_SIDES, JacobianSearch
from .sample_loss import LossFunction, name_of
from .sensitivity import WeightRow, WeightSensitivity

SEARCH_STEPS, SEARCH_FEWEST, SEARCH_WORK = 30_000, 100, 1.5e11
"""Steps of the search for all lower sides, through small networks and through the largest, and multiplications of one
pass over all steps. A step is one backward pass, one pair of weights in float64 or one product of Lanczos."""
UNKNOWN_FORM = "its weight is applied in a form that is not known: stacked matrices that are broadcast"


@accepts_graph
@outside_inference_mode
def weight_sensitivity(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    loss: str | Loss | LossFunction | None = None,
    mode: Mode | None = None,
    output: str | int | None = None,
    known: Mapping[str, float] | None = None,
    on_missing: OnMissing = "error",
    rtol: float = 1e-3,
    max_seconds: float | None = None,
    seed: int = 0,
) -> WeightSensitivity:
    """Bracket, for every weight W, how far the output h and a loss f move per unit of change of W, at given data.

    The norm on W is Frobenius; all other weights, biases and the data are fixed. Upper side, over all values of W:
    norm(H) times the bound on the network behind the layer. Lower side: the Jacobian with respect to W as it is,
    confirmed in float64 by two values of W. In eval mode with independent samples every sample is measured
    (`per_sample`) and the bracket spans the largest; otherwise the batch is one input.

    A weight that several layers share is moved in all of them together; where one of these reads what another made,
    the output is no Lipschitz function of the weight and the upper side is `+inf`. A token embedding that shares its
    memory, and what the model computes from the weight (2 W, its norm, a bias made of it), is held fixed, and a note of
    the row says so.

    Args:
        model: any `torch.nn.Module` (or its captured graph) that can be traced.
        data: a batch (a tensor, a NumPy array, a tuple of arguments, a dict of them), an iterable of batches such as a
            `DataLoader`, or a data set; the first batch is measured. None for the batch of a captured graph.
        labels: the classes or the targets that the lower side of the loss is taken at, or the key that they have in
            batches that are dicts; None to recognise them. Without any, the class that moves the loss most.
        loss: `"cross_entropy"`, `"l1"`, ... (`normscope.theory.losses.LOSSES`) or a `Loss`, the mean over rows; or a
            function of outputs and targets. A function is traced with the targets of each sample, so that a bound on
            its Lipschitz constant is known, and needs operators with a rule. None for the output alone.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        output: which output to measure, for models with several.
        known: constants for modules nobody can see into, by module path.
        on_missing: `"error"`: operators without a rule raise one error that lists them; `"inf"`: go on with `+inf`.
        rtol: how tight the norms of single maps and the lower sides are asked to be.
        max_seconds: cuts short what takes longer, closed forms last (see `lipschitz`): what was cut has no lower side,
            or a cheaper bound, and says so.
        seed: of the search from below.

    Returns:
        One row per weight; prints as a table, and has `.to_json()` and `.to_pandas()`.

    Raises:
        InputError: the model does not accept the batch, the loss is unknown or cannot be traced, or the targets do not
            fit.
        CaptureError: the model cannot be traced.
        MissingRuleError: operators without a rule, listed with module path and source line.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).eval()
        >>> rows = ns.weight_sensitivity(model, torch.ones(1, 2), loss="cross_entropy")
        >>> [row.path for row in rows], rows["0"].bracket_h.lower <= rows["0"].bracket_h.upper
        (['0', '2'], True)

    Reference: Than et al., Theorem 12 and Corollary 14, with the corrections of this project's documentation.
    """
    chosen = loss if loss is None or (callable(loss) and not isinstance(loss, Loss)) else named(loss)
    bounding = BoundSettings.within(max_seconds, rtol=rtol)
    batches = Batches(model, data, labels=labels, with_loss=loss is not None)
    batch = batches.first
    captured = TracedNetwork.of(model, batch, bounding, mode=mode, output=output, on_missing=on_missing, known=known)
    targets = inputs_and_labels(model, batch)[1]
    steps = passes(captured.double, SEARCH_STEPS, work=SEARCH_WORK, least=SEARCH_FEWEST)
    search = JacobianSearch(rtol=rtol, seed=seed, budget=bounding.budget.search(LOWER_SIDES, steps))
    return batches.noted(measure(captured, bounding, WeightPlan(loss=chosen, targets=targets, search=search))[0])


def measure(
    captured: TracedNetwork, bounding: BoundSettings, plan: WeightPlan
) -> tuple[WeightSensitivity, dict[str, WeightRow]]:
    """Measure the weights of a captured model; return the result, and its rows by the names of their nodes."""
    weights = applied_weights(captured.graph, captured.double)
    points, notes = _points(captured.graph, plan)
    rows = LossRows(captured.double.output_shape)
    measured = WeightFigures(captured, bounding, plan, weights)
    goals: list[Tensor] | list[None] = [None] * len(points)
    if plan.loss is not None and plan.targets is not None:
        whole = not captured.graph.per_sample
        goals = targets_by_sample(plan.loss, plan.targets, rows, len(points), whole=whole)
    with Progress("measuring weights", total=len(points) * max(len(weights), 1)) as progress:
        for point, goal in zip(points, goals, strict=True):
            measured.add(point, goal, progress)
    row_of = {weight.name: measured.row(weight) for weight in weights if weight.name not in measured.unknown}
    cuts = [cut for budget in (plan.search.budget, bounding.norms, bounding.closed_forms) for cut in budget.cuts]
    result = WeightSensitivity(
        rows=tuple(row_of.values()),
        loss=None if plan.loss is None else name_of(plan.loss),
        log10_loss=None if measured.loss_constant is None else measured.loss_constant.log10,
        mode=captured.graph.mode,
        samples=len(points),
        input_shape=captured.graph.input_shape,
        output_shape=captured.graph.output_shape,
        skipped=tuple((where, UNKNOWN_FORM) for where in measured.unknown.values()),
        notes=tuple(dict.fromkeys((*captured.graph.notes, *notes, *measured.notes, *cuts))),
    )
    places = {name: row_of[weight.name] for weight in weights if weight.name in row_of for name in weight.nodes}
    return result, places


def _points(graph: Graph, plan: WeightPlan) -> tuple[list[Tensor], list[str]]:
    """Return the flat inputs to measure at, and what to say of the choice."""
    if graph.samples is None:
        first = ["measured at the first sample, from the token embeddings"] if graph.per_sample else []
        return [graph.flat()], first
    if HELD in graph.notes:
        return [graph.samples[0]], ["measured at the first sample, whose masks are in the graph"]
    chosen = graph.samples if plan.samples is None else graph.samples[: plan.samples]
    return list(chosen), []
