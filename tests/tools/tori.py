"""Proof files of certificates on tori, of networks small enough for brute force, and the checker's view of them."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from normscope.bounds.proofs.proof import Multipliers, Proof
from normscope.bounds.segments import Segments
from normscope.bounds.torus.torus import CertifiedTorus, torus_certificate
from normscope.core.bracket import Bracket, Evidence

from ..bounds.torus_cases import bounds
from .proofs import SCRIPT, checker


def certified(segments: Segments, steps: int = 3, widest: int = 8) -> CertifiedTorus:
    """A certificate on tori that leaves as little as possible to the dense plan."""
    found = torus_certificate(segments, bounds(segments), steps=steps, widest=widest)
    assert found is not None
    assert found.runs
    return found


def claimed(segments: Segments, log10: float, runs: Sequence[Multipliers]) -> Bracket:
    """An upper side that rests on these runs."""
    return Bracket(
        log10_lower=-math.inf,
        log10_upper=log10,
        evidence=Evidence.NUMERICAL,
        mode="eval",
        method="tight",
        proof=Proof(graph=segments.graph, effects=segments.effects, multipliers=tuple(runs)),
    )


def forged(segments: Segments, log10: float, sizes: Sequence[int], sigma: Mapping[str, float]) -> Bracket:
    """A claim with a torus and multipliers chosen by hand."""
    values = {name: torch.full((_channels(segments, name),), value).double() for name, value in sigma.items()}
    return claimed(segments, log10, [Multipliers(sigma=values, torus=tuple(sizes))])


def _channels(segments: Segments, name: str) -> int:
    return next(node.shape[1] for node in segments.graph if node.name == name)


def reached(path: Path, script: Any = checker) -> tuple[float, Any]:
    """What the tori of a file prove to a checker, in powers of ten, and the prover; inf where they are refuted."""
    header, arrays = script.read(str(path))
    reader = script.Reader(arrays)
    network = script.Network(header["network"], reader)
    claims = [script.parse_claim(item, network, reader) for item in header["claims"]]
    prover = script.Prover(network, script.Norms())
    try:
        return prover.tori(next(claim for claim in claims if claim.side == "upper").steps), prover
    except script.Refuted:
        return math.inf, prover


def status(path: Path, script: Any = checker) -> str:
    """What becomes of the upper side."""
    found = [verdict.status for verdict in script.check(str(path)) if "<=" in verdict.what]
    assert len(found) == 1
    return str(found[0])


def mutated(old: str, new: str, name: str) -> ModuleType:
    """The checker with one place of its source changed."""
    source = SCRIPT.read_text()
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times"
    spec = importlib.util.spec_from_loader(f"mutated_{name}", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    exec(compile(source.replace(old, new), str(SCRIPT), "exec"), module.__dict__)
    return module


def dense_value(path: Path) -> float:
    """What the checker proves without tori, with the same multipliers at every place."""
    header, arrays = checker.read(str(path))
    reader = checker.Reader(arrays)
    network = checker.Network(header["network"], reader)
    (step,) = checker.parse_claim(header["claims"][0], network, reader).steps
    sigma = {}
    for name, value in step.sigma.items():
        shape = network.nodes[name].shape
        fields = len(shape) > 2 and value.size == shape[1]
        sigma[name] = value.reshape(1, -1, *(1,) * (len(shape) - 2)) if fields else value
    prover = checker.Prover(network, checker.Norms())
    checker.Ellipsoid(prover, checker.Step(step.at, {}, sigma, {})).run()
    return float(prover.best[step.at])


def secants(segments: Segments, count: int = 30) -> float:
    """The steepest of some secants and Jacobians, in powers of ten."""
    generator = torch.Generator().manual_seed(0)
    graph, best = segments.graph, 0.0

    def drawn() -> Tensor:
        return torch.randn(graph.input_shape, dtype=torch.float64, generator=generator)

    for index in range(count):
        x = drawn()
        y = x + 10.0 ** (index % 5 - 3) * drawn()
        best = max(best, float((graph.run(x) - graph.run(y)).norm() / (x - y).norm()))
        if index % 5 == 0:
            jacobian = torch.autograd.functional.jacobian(lambda v: graph.run(v).flatten(), x).flatten(1)
            best = max(best, float(torch.linalg.matrix_norm(jacobian, ord=2)))
    return math.log10(best)
