"""Bounds over the whole DAG: operator by operator (the product), and by folded linear segments.

Operator by operator: L(node) <= sum over operands of norm(operator in that operand) * L(operand), a root sum of squares
where the operands land on different entries (concatenation). Folded: a value that is a sum of linear maps A_j of
sources u_j has L <= sum of norm(A_j) L(u_j), and L <= norm([A_j/t_j]) (sum of t_j^2 L(u_j)^2)^(1/2) for any t_j > 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch

from ..core.bracket import Evidence
from ..core.budget import in_time
from ..core.errors import NormscopeError
from ..core.log10 import log10
from ..core.rounding import ONE, Upper, root_sum_squares, smallest, total
from ..graph.ir import Graph
from ..linalg.linear_map import LinearMap
from ..linalg.writing import moderate, written
from ..rules.effects import Effect, Elementwise, Gain, Linear, Norm, Unbounded
from .segments import Form, Segments

Joints = dict[tuple[tuple[LinearMap, float], ...], Upper]
"""Norms of maps side by side, by the maps and by log10 of how far each carries its source."""
FAR = 250.0
"""Where log10 of a norm is beyond this, on either side, norms that are combined may vanish or overflow."""
JOINT_SIDE = 1024
"""Segments of several sources up to this size are written out side by side."""


class Chain(Protocol):
    """A certificate that follows chains of activations and may know a tighter bound."""

    def carry(self, form: Form, name: str, slope: tuple[float, float] | None, cores: dict[str, Upper]) -> Upper | None:
        """Return a bound on a form from its chain, and remember the chain behind activation `name`."""
        ...

    def term(self, source: str, linear: LinearMap, cores: dict[str, Upper]) -> Upper | None:
        """Return a bound on one term of a sum from the chain it ends, if one is known."""
        ...


def propagate(
    segments: Segments,
    norm: Norm,
    *,
    fold: bool,
    chain: Chain | None = None,
    start: Mapping[str, Upper] | None = None,
    side: int = JOINT_SIDE,
    joints: Joints | None = None,
) -> dict[str, Upper]:
    """Bound the map from the input to every node of the graph, by name.

    Args:
        segments: the graph with its effects and folded forms.
        norm: bounds the norm of one linear map.
        fold: False: one operator at a time. True: also by folded segments, whichever is smaller at each node.
        chain: a certificate consulted at the end of every segment.
        start: how far each input can move, relative to the change that is measured; ONE if absent, ZERO holds it fixed.
        side: segments of several sources up to this size are written out side by side.
        joints: what was found of those in an earlier pass; most passes meet the same ones.
    """
    graph = segments.graph
    joints = {} if joints is None else joints
    values = {item.name: ONE if start is None else start[item.name] for item in graph.inputs}
    cores = dict(values)  # the sources of forms: inputs and nonlinear nodes before their `after` map
    inputs = set(values)
    ends = _ends(segments) if fold else set()
    for node in graph:
        effect = segments.effects[node.name]
        if isinstance(effect, Linear):
            moved = [norm(m).times(values[name]) for m, name in zip(effect.maps, node.refs, strict=True)]
            apart = effect.disjoint or (len(set(node.refs)) == len(node.refs) and inputs.issuperset(node.refs))
            value = root_sum_squares(moved) if apart else total(moved)
            if node.name in ends:
                value = smallest(
                    [value, form_bound(segments.forms[node.name], cores, graph, norm, side, joints, chain)]
                )
            values[node.name] = value
            continue
        atom = segments.atoms[node.name]
        inner = []
        for name, form in zip(node.refs, atom.operands, strict=True):
            known = [values[name]]
            if isinstance(effect, Gain) and effect.before is not None:
                known = [norm(effect.before).times(values[name])]
                known += [form_bound(form, cores, graph, norm, side, joints, chain)] if fold else []
            slope = effect.slope if isinstance(effect, Elementwise) else None
            tighter = chain.carry(form, node.name, slope, cores) if chain is not None else None
            inner.append(smallest([*known, tighter] if tighter is not None else known))
        core = cores[node.name] = atom_bound(effect, inner)
        after = effect.after if isinstance(effect, Gain) else None
        values[node.name] = core if after is None else norm(after).times(core)
        if isinstance(effect, Gain) and effect.whole is not None:
            values[node.name] = smallest([values[node.name], effect.whole.times(values[node.refs[0]])])
    tighter = chain.carry(segments.output, graph.output, None, cores) if chain is not None else None
    values[graph.output] = smallest([values[graph.output], *([tighter] if tighter is not None else [])])
    return values


def form_bound(
    form: Form,
    cores: dict[str, Upper],
    graph: Graph,
    norm: Norm,
    side: int = JOINT_SIDE,
    joints: Joints | None = None,
    chain: Chain | None = None,
) -> Upper:
    """Bound a value that is a sum of linear maps of sources; independent inputs combine as a root sum of squares."""
    inputs = {item.name for item in graph.inputs}
    norms = {source: norm(linear) for source, linear in form.items()}
    direct = [norms[source].times(cores[source]) for source in form if source in inputs]
    others = []
    for source in [name for name in form if name not in inputs]:
        known = [norms[source].times(cores[source])]
        tighter = None if chain is None else chain.term(source, form[source], cores)
        others.append(smallest([*known, tighter] if tighter is not None else known))
    plain = total([*([root_sum_squares(direct)] if direct else []), *others])
    joint = _joint(form, cores, norms, side, {} if joints is None else joints)
    return plain if joint is None else smallest([plain, joint])


def _joint(form: Form, cores: dict[str, Upper], norms: dict[str, Upper], side: int, joints: Joints) -> Upper | None:
    """Bound several maps side by side, scaled by t_j = sqrt(norm(A_j)/L(u_j)): never above their sum."""
    linears = list(form.values())
    size = sum(linear.in_size for linear in linears)
    if len(form) < 2 or max(size, linears[0].out_size) > side or not all(map(moderate, linears)):
        return None
    terms = {source: norms[source].times(cores[source]).log10 for source in form}
    top = max(terms.values())
    if not math.isfinite(top) or any(abs(norms[s].log10) > FAR or top - terms[s] > FAR for s in form):
        return None
    key = tuple((linears[place], terms[source]) for place, source in enumerate(form))
    if key in joints:
        return joints[key]
    if not in_time(sum(written(linear) for linear in linears) + float(size) ** 3, linears[0].device):
        return None
    parts = []
    for source, linear in form.items():
        # A_j/t_j = A_j/norm(A_j) * sqrt(norm(A_j) L_j), relative to the largest term
        parts.append(linear.dense() * 10.0 ** (terms[source] / 2 - top / 2 - norms[source].log10))
    device = next((p.device for p in parts if p.device.type != "cpu"), parts[0].device)
    matrix = torch.cat([p.to(device) for p in parts], dim=1)
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    joint = math.sqrt(max(float(torch.linalg.eigvalsh(gram)[-1]), 0.0))
    spread = math.fsum(10.0 ** (term - top) for term in terms.values())
    value = Upper(top + log10(joint * math.sqrt(spread)) + 1e-10, Evidence.NUMERICAL, "joint norm")
    joints[key] = value
    return value


def atom_bound(effect: Effect, operands: list[Upper]) -> Upper:
    """Bound the core of a nonlinear node (its `after` map is part of the next segment)."""
    match effect:
        case Elementwise():
            return effect.gain.times(operands[0])
        case Gain():
            moved = [gain.times(operand) for gain, operand in zip(effect.gains, operands, strict=True)]
            return root_sum_squares(moved) if effect.joint else total(moved)
        case Unbounded():
            return Upper.infinite(effect.reason)
    raise NormscopeError(f"unknown effect {effect!r}")


def _ends(segments: Segments) -> set[str]:
    """Names of the linear nodes where a segment ends: read by a nonlinear node or a concatenation, or the output."""
    ends = {segments.graph.output}
    for node in segments.graph:
        effect = segments.effects[node.name]
        if not isinstance(effect, Linear) or effect.disjoint:
            ends.update(node.refs)
    return ends
