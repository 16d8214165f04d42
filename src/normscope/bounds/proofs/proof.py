"""`Proof`: what an independent checker needs to prove both sides of a network's bracket anew.

Its steps stand in the order in which a checker takes them: what bounds which value, and by which numbers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...core.bracket import Bracket
from ...core.errors import InputError
from ...core.log10 import power10
from ...core.npz import Archive
from ..graph.ir import Graph, Node, Unit, leaves
from ..linalg.proof_format import Unchanged, claims, pattern
from ..operators.effects import Effect, Elementwise, Gain
from ..segments import segment
from .network_script import Script, compact, scripted


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """A run of the ellipsoid engine: its multipliers, where it starts and what it bounds.

    Attributes:
        sigma: by name of a nonlinear node, one number per entry (of one slice, where slices are treated alike), or one
            for all; in units of the input's change.
        log10: of the bound that it proves.
        start: the values the state starts from, with log10 of C_j such that the changes ds_j of these values obey
            sum norm(ds_j)^2/C_j^2 <= norm(dx)^2; empty for the inputs.
        cores: whether `start` names the cores of nonlinear nodes, before their scale, rather than their values.
        at: the value that is bounded (the operands of a node known by its gains); None for the output.
        into: the activation whose operand is bounded instead.
    """

    sigma: Mapping[str, Tensor]
    log10: float
    start: Mapping[str, float] = field(default_factory=dict)
    cores: bool = False
    at: str | None = None
    into: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The network, the certificate of the upper side and, for a ball, its centre and radius.

    Products and folded segments need no certificate: the checker takes its own norms.

    Attributes:
        graph: what was measured; in the model's own precision it takes no memory beside the model.
        effects: of the nodes of a graph in float64, by name; None to widen the graph and read its rules when written.
        multipliers: runs of the ellipsoid engine that the upper side rests on.
        given: what else it rests on that the file brings no proof of, in words.
        centre: flat centre of the ball; None for a GLOBAL bracket.
        radius: of the ball.
        unchanged: what the weights held when it was made; taken then if absent.
    """

    graph: Graph
    effects: Mapping[str, Effect] | None = None
    multipliers: tuple[Multipliers, ...] = ()
    given: tuple[str, ...] = ()
    centre: Tensor | None = None
    radius: float | None = None
    unchanged: Unchanged | None = None

    def __post_init__(self) -> None:
        if self.unchanged is not None:
            return
        constants = [leaf for node in self.graph for leaf in leaves(_read(node))]
        kept = Unchanged.of(*(leaf for leaf in constants if isinstance(leaf, Tensor) and not leaf.is_complex()))
        object.__setattr__(self, "unchanged", kept)

    def write(self, path: str | os.PathLike[str], bracket: Bracket) -> None:
        """Write the network and the bracket's claims (one pair per sample, where every sample has its own proof).

        Raises:
            InputError: the model has changed since, or there is nothing to claim.
        """
        assert self.unchanged is not None
        self.unchanged.check()
        archive = Archive()
        with torch.no_grad():
            double = self.graph.double()
            effects = segment(double).effects if self.effects is None else self.effects
        script = scripted(double, effects, archive)
        samples = [s for s in bracket.per_sample or () if isinstance(s.proof, Proof) and s.proof.graph is self.graph]
        all_claims: list[dict[str, Any]] = []
        for one in samples or [bracket]:
            all_claims += _claims(one.proof if isinstance(one.proof, Proof) else self, one, script, effects, archive)
        archive.write(path, {"network": script.to_json(), "claims": all_claims, "probe": _probe(double, archive)})


def _probe(graph: Graph, archive: Archive) -> dict[str, str] | None:
    """Return the network's value at the input it was captured with: the checker's own evaluation must agree."""
    try:
        with torch.no_grad():
            value = graph.run(*(item.value for item in graph.inputs)).double().reshape(-1)
    except RuntimeError:  # a module taken as given may not run in float64
        return None
    point = graph.flat()
    if not bool(torch.isfinite(value).all() and torch.isfinite(point).all()):
        return None
    return {"input": archive.put(point), "output": archive.put(value)}


def _read(node: Node) -> Any:
    """Return a node's arguments without statistics that it updates but does not read."""
    if isinstance(node.op, Unit) or not node.bound().get("use_input_stats"):
        return node.args, node.kwargs
    return {name: value for name, value in node.bound().items() if not name.startswith("running_")}


def _claims(
    proof: Proof, bracket: Bracket, script: Script, effects: Mapping[str, Effect], archive: Archive
) -> list[dict[str, Any]]:
    ball = None
    if proof.centre is not None:
        if proof.radius is None:
            raise InputError("a proof about a ball needs its radius")
        ball = {"centre": archive.put(proof.centre.double().reshape(-1)), "radius": float(proof.radius)}
    whole = -math.inf if proof.given else bracket.log10_upper  # else what is proven here says how far the proof goes
    told = steps(script, effects, archive, method=bracket.method, multipliers=proof.multipliers, log10=whole)
    return claims(bracket, archive, _pair(bracket.witness), ball=ball, steps=told, given=(*proof.given, *script.given))


def _pair(witness: Any) -> tuple[Tensor, Tensor] | None:
    """Return a witness as two flat inputs, or None if it is none."""
    if not isinstance(witness, tuple) or len(witness) != 2:
        return None
    sides = [side if isinstance(side, tuple) else (side,) for side in witness]
    first, second = (torch.cat([part.detach().double().reshape(-1) for part in side]) for side in sides)
    return first, second


SLACK = 2e-7
"""Added to log10 of a certified bound, so that the checker's own rounding has room."""
EDGE = 1.0 - 1e-7
"""Multipliers of nodes that are known as a whole stay this far below the edge of feasibility."""
LINEAR = {"constant", "add", "concat", "scale", "gather", "dense", "center"}


def steps(
    script: Script,
    effects: Mapping[str, Effect],
    archive: Archive,
    *,
    method: str,
    multipliers: Iterable[Multipliers] = (),
    log10: float = -math.inf,
) -> list[dict[str, Any]]:
    """Return the steps that prove the bound on the output of a script, one after the other.

    Where one certificate proves the claimed bound `log10` from the input on, no other step is told.
    """
    certificates: dict[str, list[dict[str, Any]]] = {}
    for run in multipliers:
        for step in certificate(run, script, effects, archive):
            certificates.setdefault(step["at"], []).append(step)
    ends, kinds = _ends(script), {node["name"]: node for node in script.nodes.items}
    proof_steps: list[dict[str, Any]] = []
    for name, node in kinds.items():
        proof_steps.append({"do": "gain", "at": name})
        sources = [list(script.folded[name])] if name in script.folded else []
        if method != "product" and name in ends and node["kind"] in LINEAR:
            sources.append(_sources(name, kinds))
        folded: list[list[str]] = [] if len(node["from"]) > 1 else [node["from"]]
        for some in sources:
            if some and some not in folded:
                proof_steps.append({"do": "fold", "at": name, "from": some})
                folded.append(some)
        proof_steps += certificates.get(name, [])
    enough = power10(-log10 - SLACK)
    alone = [step for step in certificates.get(script.graph.output, []) if step["start"].keys() == {script.input}]
    return next(([step] for step in alone if step["scale"] >= enough), proof_steps)


def _ends(script: Script) -> set[str]:
    """Names of the values where a segment ends: read by a nonlinear node or a concatenation, or the output."""
    ends = {script.graph.output}
    for node in script.nodes.items:
        if node["kind"] not in LINEAR or node["kind"] == "concat":
            ends.update(node["from"])
    return ends


def _sources(name: str, nodes: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the values that one depends on through linear nodes alone."""
    sources: dict[str, None] = {}
    visited, stack = {name}, list(nodes[name]["from"])
    while stack:
        here = stack.pop()
        if here in visited:
            continue
        visited.add(here)
        if here in nodes and nodes[here]["kind"] in LINEAR:
            stack.extend(nodes[here]["from"])
        else:
            sources[here] = None
    return sorted(sources)


def certificate(
    run: Multipliers, script: Script, effects: Mapping[str, Effect], archive: Archive
) -> list[dict[str, Any]]:
    """Return a run of the ellipsoid engine as steps; none if it passes a node that the checker cannot carry.

    With start weights w_j = 1/C_j^2 and lambda = sigma/e^2 (e half the width of the slopes, or the node's constant)
    sum_j w_j norm(ds_j)^2 - sum lambda (...) >= norm(dy)^2/bound^2 holds as a quadratic form (see the checker).
    """
    if not abs(run.log10) < 140.0:
        return []
    multipliers, start = _multipliers(run, script, effects, archive), _starts(run, script)
    if multipliers is None or not all(abs(value) < 140.0 for value in start.values()):
        return []
    at = run.into or run.at or script.graph.output
    inner = run.into is not None or (run.at is not None and isinstance(effects.get(at), Gain))
    step = {
        "do": "certificate",
        "scale": power10(-run.log10 - SLACK),
        "start": {name: power10(-2.0 * value) for name, value in start.items()},
        "multipliers": multipliers,
        "slopes": {script.cores[name]: list(pair) for name, pair in _wider(run, script, effects).items()},
    }
    targets = script.read.get(at, ()) if inner else (at,)
    return [{"at": name, **step} for name in targets if _covered(name, script, set(start), set(multipliers))]


def _wider(run: Multipliers, script: Script, effects: Mapping[str, Effect]) -> dict[str, tuple[float, float]]:
    """Return the slopes that activations were carried with, where these are wider than the checker would take.

    A PReLU with a slope per channel was carried with one interval for all, and the checker takes each entry's own.
    """
    slopes: dict[str, tuple[float, float]] = {}
    for node in script.graph:
        effect = effects[node.name]
        uneven = any(isinstance(leaf, Tensor) and leaf.numel() > 1 for leaf in leaves((node.args, node.kwargs)))
        if isinstance(effect, Elementwise) and node.name in run.sigma and uneven:
            slopes[node.name] = effect.slope
    return slopes


def _multipliers(
    run: Multipliers, script: Script, effects: Mapping[str, Effect], archive: Archive
) -> dict[str, str] | None:
    """Return where the archive holds the multipliers of every core; None if a node is one the checker cannot carry."""
    nodes = {node.name: node for node in script.graph}
    places: dict[str, str] = {}
    for name, sigma in run.sigma.items():
        weights = _lambda(nodes[name], effects[name], sigma)
        if weights is None or name not in script.cores:
            return None
        places[script.cores[name]] = pattern(compact(weights), weights.shape, archive)
    return places


def _starts(run: Multipliers, script: Script) -> dict[str, float]:
    """Return log10 of the constants that a run starts from, by the names of the script, where all inputs are one."""
    start: dict[str, float] = {} if run.start else {script.input: 0.0}
    inputs = {item.name for item in script.graph.inputs}
    for name, value in run.start.items():
        here = script.input if name in inputs else script.cores.get(name, name) if run.cores else name
        start[here] = min(value, start.get(here, value))
    return start


def _covered(name: str, script: Script, start: set[str], carried: set[str]) -> bool:
    """Say whether a value depends on the start alone, through linear nodes and nodes that have multipliers."""
    nodes = {node["name"]: node for node in script.nodes.items}
    visited, stack = set(start), [name]
    while stack:
        name = stack.pop()
        if name in visited:
            continue
        visited.add(name)
        if name not in nodes or (nodes[name]["kind"] not in LINEAR and name not in carried):
            return False
        stack.extend(nodes[name]["from"])
    return True


def _lambda(node: Node, effect: Effect, sigma: Tensor) -> Tensor | None:
    """Return the multipliers of a node in the checker's units, one for each entry; None where it cannot carry it."""
    if isinstance(effect, Elementwise):
        half = (effect.slope[1] - effect.slope[0]) / 2.0
        spread = sigma.double().cpu().reshape(-1).repeat(math.prod(node.shape) // sigma.numel())
        multipliers = (spread / half**2).reshape(node.shape) if half > 0 else torch.zeros(1, dtype=torch.float64)
    elif isinstance(effect, Gain) and (len(effect.gains) == 1 or effect.joint):
        gains = [power10(gain.log10) for gain in effect.gains]
        if max(gains) <= 0.0 or (len(gains) > 1 and min(gains) < max(gains)):
            return None
        multipliers = sigma.double().cpu().reshape(-1)[:1] * EDGE / (1.0 if len(gains) > 1 else gains[0]) ** 2
    else:
        return None
    return multipliers if bool(torch.isfinite(multipliers).all()) else None
