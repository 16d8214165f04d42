"""What a loss was made of by autograd's graph: its outputs and targets, which are kept for the backward.

From them follow the loss of the best constant output, whether labels differ, whether outputs do, and what stands
between the model and the loss: a second softmax, a sign, shapes that were broadcast. Nothing is changed or waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice, permutations, product
from typing import Any

import torch
from torch import Tensor

from .activations import flat_share
from .autograd_graph import ELEMENTWISE, REARRANGING, Edge, find_gates, operator_name, skip_rearranging
from .loss_call import MAX_OUTPUT_ENTRIES, NO_CLASS, LossCall, LossReading, measure_figures

MAX_NODES_ABOVE_LOSS = 30
"""Nodes of the graph that are looked at in search of the loss function: sums, means and factors stand above it."""
PASSED_ON = ("MeanBackward", "SumBackward", "MulBackward", "DivBackward", "NegBackward", "AddBackward", "SubBackward",
             "ViewBackward", "ReshapeAlias", "SqueezeBackward", "ToCopyBackward", "SqrtBackward")  # fmt: skip
"""Functions between a loss function and the number that is observed."""
RESHAPED = ("ViewBackward", "ReshapeAlias", "SqueezeBackward", "UnsafeViewBackward", "ToCopyBackward", "SelectBackward")
CLASS_LOSSES, BINARY_LOSSES = ("NllLossBackward", "NllLoss2DBackward"), ("BinaryCrossEntropy",)
CHOOSING = ("IndexBackward", "GatherBackward")
"""Functions that take the log-probability of a label, in losses of classes that are written out."""
CURVED = {"Pow": "square", "Mul": "square", "Exp": "exponential", "Log": "logarithm"}
"""What the divergence of a code is the sum of, by the operator; a product is one of a result with itself."""
OF_ENTRIES = REARRANGING | ELEMENTWISE | {"Exp", "Log", "Sqrt"}
"""Operators that such a divergence is made of, written out or as `torch.distributions` has it."""
SQUARED_LOSSES, OTHER_LOSSES = ("MseLossBackward",), ("SmoothL1LossBackward", "HuberLossBackward", "AbsBackward")
LOSS_FUNCTIONS = ((CLASS_LOSSES, "nll"), (BINARY_LOSSES, "bce"), (SQUARED_LOSSES, "mse"))
"""The names of `TRAINING_LOSSES` by the functions that autograd has for them."""
SWITCHES = {"ReluBackward": "off", "TanhBackward": "saturated_tanh", "SigmoidBackward": "saturated_sigmoid",
            "SoftmaxBackward": "one_place", "ScaledDotProduct": "one_place"}  # fmt: skip
"""Activations whose outputs autograd keeps, or that follow from what it keeps, and what is measured of them."""
SAMPLED_ROWS = 64
"""Rows of an attention that are looked at, the last ones, which see all tokens under a causal mask."""
ONE_PLACE_SHARE = 0.99
"""The share of a row of an attention on one entry from which it looks at nothing else."""
MAX_GRAPH_NODES, MAX_SWITCHES = 4000, 64
"""How much of the graph of a loss is walked through, and how many activations are looked at."""
MIN_VALUES_PER_UNIT = 16
"""Values of a unit in a batch from which it is seen whether it is ever on."""
MAX_SWITCH_ENTRIES = 1 << 16
"""Entries of an activation that are looked at, of the first samples."""


def read_graph(root: Any, *, activations: bool) -> LossReading:
    """Return what a loss was made of by the graph before its node, with the activations on the way to it if asked."""
    losses = list(_loss_functions(root))
    oddities, untaught = _read_divergence(root)
    measured, half_precision = _read_activations(root) if activations else ((), False)
    shapes, call = "", None
    if len(losses) == 1:
        [(function, sign)] = losses
        name, chooses = function.name(), function.name().startswith(CHOOSING)
        call = _call_of(function)
        if name.startswith((*SQUARED_LOSSES, *OTHER_LOSSES, "PowBackward")):
            shapes = _broadcast_shapes(function)
        if name.startswith((*CLASS_LOSSES, *BINARY_LOSSES, *SQUARED_LOSSES)):
            oddities |= _activation_before(function, name)
        wrong_sign = {"likelihood"} if chooses and sign > 0 else {"negated"} if sign < 0 and not chooses else set()
        oddities |= wrong_sign | ({"broadcast"} if shapes else set())
    return LossReading(
        figures=None if call is None else measure_figures(call),
        oddities=frozenset(oddities),
        untaught=untaught,
        shapes=shapes,
        compares=bool(losses),
        half_precision=half_precision,
        activations=measured,
    )


def without_factor(loss: Tensor) -> Tensor:
    """Return a loss without the factor that it was multiplied by last, such as that of a GradScaler; nothing waits.

    One without a factor is returned as it is.
    """
    node = loss.grad_fn
    if node is None or not node.name().startswith("MulBackward"):
        return loss
    factor, own = node._saved_other, node._saved_self  # type: ignore[attr-defined]
    factor = factor if node.next_functions[0][0] is not None else own
    if not isinstance(factor, Tensor) or factor.numel() != 1 or all(f is not None for f, _ in node.next_functions):
        return loss
    return loss.detach() / factor.detach()


def _loss_functions(root: Any) -> Iterator[tuple[Any, int]]:
    """Yield the nodes of functions of outputs and targets above which only sums and factors stand, with their signs.

    What compares outputs with each other, or is a penalty on weights, is none of them.
    """
    for (node, _), sign, weighted in _walk_terms(root):
        name = node.name()
        compares = name.startswith((*CLASS_LOSSES, *BINARY_LOSSES)) or (
            (name.startswith((*SQUARED_LOSSES, *OTHER_LOSSES)) or _is_square(node)) and _compares_with_target(node)
        )
        chooses = name.startswith(CHOOSING) and not weighted and _log_probabilities(node) is not None
        if sign and (compares or chooses):
            yield node, sign


def _walk_terms(root: Any, until: Sequence[Edge] = ()) -> Iterator[tuple[Edge, int, bool]]:
    """Yield what a loss is the sum of, with the sign, and whether samples have weights of their own.

    Of what is left where a loss has too many parts the sign is 0.

    Args:
        root: the node of the loss.
        until: results that are not taken apart.
    """
    stack, count = [((root, 0), 1, False)], 0
    while stack and count < MAX_NODES_ABOVE_LOSS:
        (edge, sign, weighted), count = stack.pop(), count + 1
        node, name = edge[0], edge[0].name()
        if edge in until or not name.startswith(PASSED_ON) or _is_product_with_itself(node):
            yield edge, sign, weighted
        else:
            factor = getattr(node, "_saved_other", None) if name.startswith(("MulBackward", "DivBackward")) else None
            if isinstance(factor, Tensor):  # a plain number lies on the CPU, whatever the device
                weighted = weighted or factor.numel() > 1
                factor = float(factor) if factor.numel() == 1 and factor.device.type == "cpu" else None
            weighted = weighted or (name.startswith("MulBackward") and factor is None)
            flipped = name.startswith("NegBackward") or (isinstance(factor, int | float) and factor < 0)
            signs = [-sign if flipped else sign] * len(node.next_functions)
            if name.startswith("SubBackward"):
                signs[-1] = -sign
            stack += [
                (inner, s, weighted)
                for inner, s in zip(node.next_functions, signs, strict=True)
                if inner[0] is not None
            ]
    yield from ((edge, 0, True) for edge, *_ in stack)


def _read_divergence(root: Any) -> tuple[set[str], frozenset[int] | None]:
    """Return what is odd in the divergence of a code from a standard normal one, and what no other part reaches.

    The divergence holds the square of the mean, and of the spread something that grows less its logarithm; what else
    the loss is the sum of may or may not reach the parameters before the code.
    """
    curved = [edge for edge, *_ in _walk_terms(root) if operator_name(edge[0]) in CURVED]
    sources = [edge for edge in dict.fromkeys(map(_skip_entries, curved)) if not _joins_two(edge[0])]
    terms, others = set[tuple[str, Edge, int]](), dict[Edge, list[Any]]()
    for edge, sign, weighted in _walk_terms(root, sources):
        source = _skip_entries(edge)
        others.setdefault(source, []).append(edge[0])
        if not weighted and getattr(edge[0], "_saved_exponent", 2) == 2:
            terms.add(("linear" if edge == source else CURVED.get(operator_name(edge[0]), ""), source, sign))
    for sign, (mean, spread) in product((1, -1), permutations(sources, 2)):
        grows = terms & {(name, spread, sign) for name in ("exponential", "square", "linear")}
        falls = terms & {(name, spread, -sign) for name in ("logarithm", "linear")}
        if ("square", mean, sign) in terms and grows and falls and _shape_of(mean) == _shape_of(spread):
            before = _find_parameters([mean[0], spread[0]])
            taught = _find_parameters([node for source in others.keys() - {mean, spread} for node in others[source]])
            hidden = "Compiled" in mean[0].name()  # such a node hides what reaches what
            untaught = before - taught if before and taught and not hidden else None
            return ({"divergence"} if sign < 0 else set()) | ({"cut"} if untaught else set()), untaught
    return set(), None


def _shape_of(edge: Edge) -> tuple[int, ...]:
    return tuple(edge[0]._input_metadata[edge[1]].shape)


def _is_product_with_itself(node: Any) -> bool:
    return node.name().startswith("MulBackward") and len(set(node.next_functions)) < len(node.next_functions)


def _skip_entries(edge: Edge) -> Edge:
    """Return the first result before another one from which it is not computed entry by entry, with constants alone."""
    while operator_name(edge[0]) in OF_ENTRIES:
        before = {inner for inner in edge[0].next_functions if inner[0] is not None}
        if len(before) != 1:
            break
        [edge] = before
    return edge


def _joins_two(node: Any) -> bool:
    """Whether a node computes its result entry by entry from two others; one plus a bias is that of a layer."""
    before = [inner for inner, _ in node.next_functions if inner is not None]
    has_bias = operator_name(node) == "Add" and any(hasattr(inner, "variable") for inner in before)
    return operator_name(node) in OF_ENTRIES and len(before) > 1 and not has_bias


def _find_parameters(nodes: Sequence[Any]) -> frozenset[int]:
    """Return the ids of the parameters that gradients of some nodes reach; none where the graph is too large."""
    waiting, visited = list(nodes), set(nodes)
    while waiting and len(visited) < MAX_GRAPH_NODES:
        for inner, _ in waiting.pop().next_functions:
            if inner is not None and inner not in visited:
                visited.add(inner)
                waiting.append(inner)
    return frozenset(id(node.variable) for node in visited if hasattr(node, "variable") and not waiting)


def _read_activations(root: Any) -> tuple[tuple[tuple[str, Tensor, list[int]], ...], bool]:
    """Return what is measured of each activation before a loss but the output's, and whether casts to float16 are.

    A sigmoid or tanh that is part of another activation, as the tanh of a GELU that is written out, is left out.
    """
    queue, visited = deque([(root, 0)]), {root}  # with the number of layers passed on the way
    switches, half_precision = dict[Any, str](), False
    while queue and len(visited) < MAX_GRAPH_NODES:
        node, depth = queue.popleft()
        name = node.name()
        if name.startswith("ToCopyBackward"):  # what it made is what its backward is given
            made = node._input_metadata[0].dtype
            half_precision = half_precision or made is torch.float16
        what = next((word for prefix, word in SWITCHES.items() if name.startswith(prefix)), None)
        if what is not None and depth:
            switches[node] = what
        holds = any(inner is not None and hasattr(inner, "variable") for inner, _ in node.next_functions)
        for inner, _ in node.next_functions:
            if inner is not None and inner not in visited:
                visited.add(inner)
                queue.append((inner, depth + holds))
    squashing = [node for node, what in switches.items() if what.startswith("saturated")]
    gates = find_gates(visited, {node: number for number, node in enumerate(squashing)})
    for gate in gates:
        del switches[squashing[gate]]
    measured = ((what, _measure_switch(what, node.name(), node), node) for node, what in switches.items())
    known = ((what, figure, _parameters_before(node)) for what, figure, node in measured if figure is not None)
    return tuple(islice(known, MAX_SWITCHES)), half_precision


def _measure_switch(what: str, name: str, node: Any) -> Tensor | None:
    """Return what is measured of an activation; None where it has too few values."""
    if what == "one_place":
        rows = _attention_rows(node, name)
        return None if rows is None else (rows.amax(-1) > ONE_PLACE_SHARE).double().mean()
    made = node._saved_result.detach()
    units = made.shape[1 if made.ndim == 4 else -1]
    if made.ndim < 2 or made.numel() < MIN_VALUES_PER_UNIT * units:
        return None
    made = made[: max(2, MAX_SWITCH_ENTRIES * len(made) // max(made.numel(), 1))]
    if name.startswith("Relu"):
        units = 1 if made.ndim == 4 else made.ndim - 1
        return (made.amax([dim for dim in range(made.ndim) if dim != units]) <= 0).double().mean()
    return flat_share(made, -1.0 if name.startswith("Tanh") else 0.0)


def _attention_rows(node: Any, name: str) -> Tensor | None:
    """Return some rows of an attention, each of which sums to one; None where it is no attention, or has a mask."""
    if name.startswith("Softmax"):
        made = node._saved_result.detach()
        rows = made.flatten(0, -2)[-SAMPLED_ROWS:] if made.ndim >= 3 else None
    elif getattr(node, "_saved_attn_bias", None) is None and getattr(node, "_saved_attn_mask", None) is None:
        query, key = node._saved_query.detach(), node._saved_key.detach()  # [batch, heads, tokens, width]
        heads = min(query.shape[1], key.shape[1])
        last = query[: SAMPLED_ROWS // heads + 1, :heads, -1].double()
        scale = getattr(node, "_saved_scale", None) or query.shape[-1] ** -0.5
        rows = (key[: len(last), :heads].double() @ last[..., None])[..., 0].mul(scale).softmax(-1)
    else:
        rows = None
    return rows if rows is not None and rows.shape[-1] >= MIN_ATTENDED else None


MIN_ATTENDED = 4
"""Entries of a row from which looking at one of them is more than a choice between two."""


def _parameters_before(node: Any) -> list[int]:
    """Return the ids of the parameters nearest in front of a node."""
    queue, visited, nearest = deque([node]), {node}, list[int]()
    while queue and len(visited) < 40 and len(nearest) < 6:
        for inner, _ in queue.popleft().next_functions:
            if inner is not None and inner not in visited:
                visited.add(inner)
                queue.append(inner)
                if hasattr(inner, "variable"):
                    nearest.append(id(inner.variable))
    return nearest


def _is_square(node: Any) -> bool:
    return node.name().startswith("PowBackward") and node._saved_exponent == 2


def _compares_with_target(node: Any) -> bool:
    """Return whether one side of a difference, or of a function of two, takes no gradient: it is a target."""
    if node.name().startswith(("PowBackward", "AbsBackward")):
        node = node.next_functions[0][0]
        if node is None or not node.name().startswith(("SubBackward", "RsubBackward")):
            return False
    return sum(inner is not None for inner, _ in node.next_functions) == 1


def _log_probabilities(node: Any) -> Tensor | None:
    """Return the log-probabilities `[samples, classes]` of which a node takes that of one class each; None if none."""
    before = node.next_functions[0][0]
    while before is not None and before.name().startswith(RESHAPED):
        before = before.next_functions[0][0]
    if before is None or not before.name().startswith("LogSoftmax"):
        return None
    made = before._saved_result.detach()
    return made if made.ndim == 2 and before._saved_dim in (1, (1 << 64) - 1) else None


def _call_of(function: Any) -> LossCall | None:
    """Return what a loss function was given, from what autograd has kept of it; None where that is not enough."""
    name = function.name()
    if name.startswith(CHOOSING):
        return _call_of_choice(function)
    kind = next((kind for prefixes, kind in LOSS_FUNCTIONS if name.startswith(prefixes)), None)
    if kind is None:
        return None
    output, target = function._saved_self.detach(), function._saved_target.detach()
    if kind == "mse":
        return LossCall(kind, output, target)
    return LossCall(
        "bce_with_logits" if name.startswith("BinaryCrossEntropyWithLogits") else kind,
        output,
        target,
        ignored=getattr(function, "_saved_ignore_index", NO_CLASS),
        weight=function._saved_weight,
        positives=getattr(function, "_saved_pos_weight", None),
    )


def _call_of_choice(function: Any) -> LossCall | None:
    """Return a loss of classes that was written out: log-probabilities from which that of a label is taken."""
    scores = _log_probabilities(function)
    if scores is None or scores.numel() > MAX_OUTPUT_ENTRIES:
        return None
    if function.name().startswith("GatherBackward"):
        rows, target = scores, function._saved_index.detach().reshape(-1)
    else:
        indices = [index for index in function._saved_indices if index is not None]
        if len(indices) != 2 or any(index.dtype is not torch.int64 for index in indices):
            return None
        rows, target = scores[indices[0].reshape(-1)], indices[1].reshape(-1)
    return LossCall("nll", rows, target) if len(rows) == len(target) else None


def _broadcast_shapes(function: Any) -> str:
    """Return both shapes in words where outputs of n entries were compared with n targets, each with each."""
    node = function.next_functions[0][0]
    while node is not None and node.name().startswith(("SubBackward", "RsubBackward", "ExpandBackward")):
        compared = tuple(node._input_metadata[0].shape)
        inner = next((f for f, _ in node.next_functions if f is not None), None)
        if inner is None or sum(f is not None for f, _ in node.next_functions) > 1:
            return ""
        number = next(n for f, n in node.next_functions if f is not None)
        output = tuple(inner._input_metadata[number].shape)
        entries = torch.Size(output).numel()
        if len(compared) >= 2 and entries > 1 and torch.Size(compared).numel() == entries**2:
            return f"{output} became {compared}"
        node = inner
    return ""


def _activation_before(function: Any, name: str) -> set[str]:
    """Return the activation that stands in front of a loss function which has one itself."""
    node = skip_rearranging(function.next_functions[0][0])
    inner = name.startswith("BinaryCrossEntropyWithLogits")
    while node is not None and operator_name(node) == "LogSoftmax":
        inner, node = True, skip_rearranging(node.next_functions[0][0])
    return {operator_name(node).lower()} & {"softmax", "sigmoid"} if inner and node is not None else set()
