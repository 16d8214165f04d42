"""Bounds over the whole DAG: operator by operator (`product`), and by folded linear segments (`folded`)."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..core.errors import NormscopeError
from ..core.rounding import ONE, Upper, root_sum_squares, smallest, total
from ..graph.ir import Graph
from ..linalg.linear_map import LinearMap
from ..linalg.norms import upper
from ..rules.effects import Effect, Elementwise, Gain, Linear, Unbounded
from .segments import Form, Segments

Norm = Callable[[LinearMap], Upper]


def product(segments: Segments, norm: Norm = upper) -> dict[str, Upper]:
    """Bound every node's value by its operands', one operator at a time.

    L(node) <= sum over operands of norm(operator in that operand) * L(operand). Valid for every DAG; on a chain of
    layers it is the plain product of their constants.
    """
    graph = segments.graph
    constant = {item.name: ONE for item in graph.inputs}
    inputs = set(constant)
    for node in graph:
        effect = segments.effects[node.name]
        operands = [constant[name] for name in node.refs]
        independent = len(set(node.refs)) == len(node.refs) and inputs.issuperset(node.refs)
        constant[node.name] = _step(effect, operands, norm, independent)
    return constant


def folded(segments: Segments, stepwise: dict[str, Upper], norm: Norm = upper) -> dict[str, Upper]:
    """Bound every source by folded segments, never above `stepwise`; the output is under the graph's output name."""
    graph = segments.graph
    constant = {item.name: ONE for item in graph.inputs}
    for name, atom in segments.atoms.items():
        inner = [form_bound(form, constant, graph, norm) for form in atom.operands]
        constant[name] = best(atom_bound(atom.effect, inner), _core(stepwise[name], atom.effect, norm))
    result = form_bound(segments.output, constant, graph, norm)
    constant[graph.output + ":output"] = best(result, stepwise[graph.output])
    return constant


def best(first: Upper, second: Upper) -> Upper:
    """Return the smaller bound."""
    return smallest([first, second])


def form_bound(form: Form, constant: dict[str, Upper], graph: Graph, norm: Norm = upper) -> Upper:
    """Bound a value that is a sum of linear maps of sources; independent inputs combine as a root sum of squares."""
    inputs = {item.name for item in graph.inputs}
    direct = [norm(linear) for source, linear in form.items() if source in inputs]
    others = [norm(linear).times(constant[source]) for source, linear in form.items() if source not in inputs]
    return total([*([root_sum_squares(direct)] if direct else []), *others])


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


def _step(effect: Effect, operands: list[Upper], norm: Norm, independent: bool) -> Upper:
    if isinstance(effect, Linear):
        moved = [norm(linear).times(operand) for linear, operand in zip(effect.maps, operands, strict=True)]
        return root_sum_squares(moved) if independent else total(moved)
    if isinstance(effect, Gain):
        if effect.before is not None:
            operands = [norm(effect.before).times(operand) for operand in operands]
        core = atom_bound(effect, operands)
        return core if effect.after is None else norm(effect.after).times(core)
    return atom_bound(effect, operands)


def _core(whole: Upper, effect: Effect, norm: Norm) -> Upper:
    """A stepwise bound includes the `after` map; it can stand for the core only where there is none."""
    if isinstance(effect, Gain) and effect.after is not None:
        return Upper(math.inf, whole.evidence, "not comparable", whole.reason or "not comparable")
    return whole
