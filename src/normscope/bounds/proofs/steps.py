"""The steps of a proof, in the order in which a checker takes them: what bounds which value, and by which numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...core.archive import Archive
from ...core.log10 import power10
from ...graph.ir import Node
from ...rules.effects import Effect, Elementwise, Gain, Linear
from .multipliers import Multipliers
from .script import Script

SLACK = 2e-7
"""Added to log10 of a certified bound, so that the checker's own rounding has room."""
EDGE = 1.0 - 1e-7
"""Multipliers of nodes that are known as a whole stay this far below the edge of feasibility."""
SUMS = {"product": ("operands",), "liplt": ("segments", "slopes")}
"""What the sources of sums are, by method; "segments" where nothing is said."""


def steps(
    script: Script,
    effects: Mapping[str, Effect],
    archive: Archive,
    *,
    method: str,
    multipliers: Iterable[Multipliers] = (),
) -> list[dict[str, Any]]:
    """Return the steps that prove the bound on every value of a script, one after the other.

    Args:
        script: the network in the checker's words.
        effects: of the nodes of its graph, by name.
        archive: takes the multipliers.
        method: by which the output was bounded.
        multipliers: the certificates it rests on.
    """
    by = SUMS.get(method, ("segments",))
    certificates: dict[str, list[dict[str, Any]]] = {}
    for run in multipliers:
        for step in certificate(run, script, effects, archive):
            certificates.setdefault(step["at"], []).append(step)
    ends = _ends(script)
    found: list[dict[str, Any]] = []
    for node in script.nodes:
        name = node["name"]
        if node["kind"] != "linear":
            found.append({"do": "gain", "at": name})
        else:
            found.append({"do": "sum", "at": name, "by": "operands"})
        if node["kind"] == "linear" and name in ends and "operands" not in by:
            found += [{"do": "sum", "at": name, "by": way} for way in by]
        found += certificates.get(name, [])
    return found


def _ends(script: Script) -> set[str]:
    """Names of the values where a segment ends: read by a nonlinear node or a concatenation, or the output."""
    ends = {script.graph.output}
    for node in script.nodes:
        if node["kind"] != "linear" or node["name"] in script.apart:
            ends.update(node["from"])
    return ends


def certificate(
    run: Multipliers, script: Script, effects: Mapping[str, Effect], archive: Archive
) -> list[dict[str, Any]]:
    """Return a run of the ellipsoid engine as steps; none if it passes a node that the checker cannot carry.

    With start weights w_j = 1/C_j^2 and lambda = sigma/e^2 (e half the width of the slopes, or the node's constant)
    sum_j w_j norm(ds_j)^2 - sum lambda (...) >= norm(dy)^2/bound^2 holds as a quadratic form (see the checker).
    """
    if not abs(run.log10) < 140.0:
        return []
    nodes = {node.name: node for node in script.graph}
    found: dict[str, str] = {}
    for name, sigma in run.sigma.items():
        if isinstance(effects[name], Linear):  # a mask behind a linear value: on the grid itself it does nothing
            continue
        weights = _lambda(nodes[name], effects[name], sigma, run.slopes.get(name))
        if weights is None or name not in script.cores:
            return []
        found[script.cores[name]] = archive.put(weights)
    start = {(script.cores.get(name, name) if run.cores else name): value for name, value in run.start.items()}
    start = start or {item.name: 0.0 for item in script.graph.inputs}
    if not all(abs(value) < 140.0 for value in start.values()):
        return []
    at = run.into or run.at or script.graph.output
    inner = run.into is not None or (run.at is not None and isinstance(effects.get(at), Gain))
    step = {
        "do": "certificate",
        "scale": power10(-run.log10 - SLACK),
        "start": {name: power10(-2.0 * value) for name, value in start.items()},
        "multipliers": found,
        "slopes": {script.cores[name]: list(pair) for name, pair in run.slopes.items() if name in script.cores},
    }
    targets = script.read.get(at, ()) if inner else (at,)
    return [{"at": name, **step} for name in targets if _covered(name, script, set(start), set(found))]


def _covered(name: str, script: Script, start: set[str], carried: set[str]) -> bool:
    """Say whether a value depends on the start alone, through linear nodes and nodes that have multipliers."""
    nodes = {node["name"]: node for node in script.nodes}
    seen, stack = set(start), [name]
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in nodes or (nodes[name]["kind"] != "linear" and name not in carried):
            return False
        stack.extend(nodes[name]["from"])
    return True


def _lambda(node: Node, effect: Effect, sigma: Tensor, slope: tuple[float, float] | None) -> Tensor | None:
    """Return the multipliers of a node in the checker's units, one for each entry; None where it cannot carry it."""
    if isinstance(effect, Elementwise):
        low, high = effect.slope if slope is None else slope
        half, shape, spread = (high - low) / 2.0, node.shape, sigma.double().cpu()
        if spread.ndim == len(shape) > 1 and torch.broadcast_shapes(spread.shape, shape) == shape:
            spread = spread.broadcast_to(shape)
        else:
            spread = spread.reshape(-1).repeat(math.prod(shape) // spread.numel())
        found = (spread / half**2).reshape(-1).contiguous() if half > 0 else torch.zeros(1, dtype=torch.float64)
    elif isinstance(effect, Gain) and (len(effect.gains) == 1 or effect.joint):
        gains = [power10(gain.log10) for gain in effect.gains]
        if max(gains) <= 0.0 or (len(gains) > 1 and min(gains) < max(gains)):
            return None
        found = sigma.double().cpu().reshape(-1)[:1] * EDGE / (1.0 if len(gains) > 1 else gains[0]) ** 2
    else:
        return None
    return found if bool(torch.isfinite(found).all()) else None
