"""`Proof`: what an independent checker needs to prove both sides of a network's bracket anew."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.archive import Archive
from ...core.bracket import Bracket
from ...core.errors import InputError
from ...graph.ir import Graph, Node, Unit, leaves
from ...linalg.lowering import Unchanged, claims
from ...rules.effects import Effect
from ..segments import segment
from .multipliers import Multipliers
from .network_script import Script, scripted
from .steps import steps


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
