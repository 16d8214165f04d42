"""`Proof`: what an independent checker needs to prove both sides of a network's bracket anew."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...core.archive import Archive
from ...core.bracket import Bracket
from ...core.errors import InputError
from ...core.log10 import power10
from ...core.rounding import Upper
from ...graph.ir import Graph, Node, Unit, leaves
from ...linalg.script import Unchanged, claims
from ...rules.effects import Effect, Gain, Linear
from ..segments import Segments, segment
from .script import Script, scripted


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """A run of the ellipsoid engine: its multipliers, where it starts and what it bounds.

    Attributes:
        sigma: by name of a nonlinear node, one number per entry (of one slice, where slices are treated alike; or in a
            shape that broadcasts to the node's and has as many dimensions), or one for all where the node is known as
            a whole; in units of the input's change.
        start: the values the state starts from, with log10 of C_j such that the changes ds_j of these values obey
            sum norm(ds_j)^2/C_j^2 <= norm(dx)^2; empty for the inputs.
        cores: whether `start` names the cores of nonlinear nodes, before their scale, rather than their values.
        weights: of the operands of nodes that read several, as they were stacked.
        at: the value that is bounded (the operands of a node known by its gains); None for the output.
        into: the activation whose operand is bounded instead.
        torus: entries per axis of the finest torus, of a run by frequencies; its multipliers are those of channels (of
            linear values too, where a mask follows them), in units of the change of its only start, or of the inputs.
    """

    sigma: Mapping[str, Tensor]
    start: Mapping[str, float] = field(default_factory=dict)
    cores: bool = False
    weights: Mapping[str, Sequence[float]] = field(default_factory=dict)
    at: str | None = None
    into: str | None = None
    torus: tuple[int, ...] | None = None


def shares(segments: Segments, values: Mapping[str, Upper]) -> dict[str, tuple[float, ...]]:
    """Return the weights of the operands of every node that reads several, by what each can move.

    norm(du)^2 <= sum of (gain_j^2/p_j) norm(dv_j)^2 for any p that sum to 1; p is proportional to gain_j L_j.

    Args:
        segments: the graph with its effects.
        values: a bound on the map from the input to every node.
    """
    found = {}
    for node in segments.graph:
        effect = segments.effects[node.name]
        if not isinstance(effect, Gain) or len(effect.gains) < 2 or effect.joint:
            continue
        reach = [power10(g.log10 + values[ref].log10) for g, ref in zip(effect.gains, node.refs, strict=True)]
        total = sum(reach)
        if math.isfinite(total):
            found[node.name] = tuple(r / total if total > 0 else 1.0 / len(reach) for r in reach)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The network, the certificate of the upper side and, for a ball, its centre and radius.

    Products, folded segments and LipLT need no certificate: the checker takes its own norms.

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
        found: list[dict[str, Any]] = []
        for one in samples or [bracket]:
            found += _claims(one.proof if isinstance(one.proof, Proof) else self, one, script, effects, archive)
        archive.write(path, {"network": script.to_json(), "claims": found, "probe": _probe(double, archive)})


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
    steps = [step for run in proof.multipliers for step in _steps(run, script, effects, archive)]
    return claims(bracket, archive, _pair(bracket.witness), ball=ball, steps=steps, given=proof.given)


def _pair(witness: Any) -> tuple[Tensor, Tensor] | None:
    """Return a witness as two flat inputs, or None if it is none."""
    if not isinstance(witness, tuple) or len(witness) != 2:
        return None
    sides = [side if isinstance(side, tuple) else (side,) for side in witness]
    first, second = (torch.cat([part.detach().double().reshape(-1) for part in side]) for side in sides)
    return first, second


def _spread(weights: Sequence[float], script: Script, name: str) -> list[float]:
    """Return one weight per operand of the script's node; constants, which are no operands of the graph, have none."""
    varying = iter(weights)
    return [0.0 if operand in script.constants else float(next(varying)) for operand in script.read[name]]


def _steps(run: Multipliers, script: Script, effects: Mapping[str, Effect], archive: Archive) -> list[dict[str, Any]]:
    """Return a run in the script's names; nodes the script has no words for are left to their own constants."""
    cores, inputs = dict(script.cores), {item.name for item in script.graph.inputs}
    if run.torus is not None:
        cores |= {name: name for name in run.sigma if isinstance(effects.get(name), Linear)}
    at = run.into or run.at or script.graph.output
    inner = run.into is not None or (run.at is not None and isinstance(effects.get(at), Gain))
    start = {(cores.get(name, name) if run.cores else name): value for name, value in run.start.items()}
    step: dict[str, Any] = {} if run.torus is None else {"torus": list(run.torus)}
    step |= {
        "start": {name: value for name, value in start.items() if name not in inputs and math.isfinite(value)},
        "sigma": {cores[name]: archive.put(sigma) for name, sigma in run.sigma.items() if name in cores},
        "weights": {cores[name]: _spread(run.weights[name], script, name) for name in run.weights if name in cores},
    }
    return [{"at": name, **step} for name in (script.read.get(at, ()) if inner else (at,))]
