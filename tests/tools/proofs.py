"""What the tests of the checker share: the checker, brackets with their proofs, and files to tamper with."""

from __future__ import annotations

import copy
import io
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.bounds.balls.ball import Balls
from normscope.bounds.balls.ball_bracket import ball_bracket
from normscope.bounds.certificate import ChainCertificate, ClosedForm
from normscope.bounds.ellipsoids.ellipsoid_plan import plan
from normscope.bounds.ellipsoids.optimised import optimise
from normscope.bounds.lower import lower_bound, witness_of
from normscope.bounds.proofs.proof import Multipliers, Proof
from normscope.bounds.segments import propagate
from normscope.bounds.traced_network import TracedNetwork
from normscope.core.bracket import Bracket, Evidence
from normscope.core.budget import Budget

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "verify"
sys.path.insert(0, str(SCRIPT))

from normscope_verify import arithmetic, functions, nodes, proving, reading  # noqa: E402, F401
from normscope_verify import claims as checker  # noqa: E402, F401


def closed_form(work: TracedNetwork) -> tuple[float, tuple[Multipliers, ...]]:
    """Return log10 of the closed-form bound and its multipliers, of the better of its two choices."""
    found = []
    with torch.no_grad():
        for doubled in (False, True):
            chain = ChainCertificate(ClosedForm(doubled=doubled), torch.device("cpu"))
            value = propagate(work.segments, work.norm, fold=True, chain=chain)[work.graph.output]
            found.append((value.log10, chain.proof()))
    return min(found, key=lambda pair: pair[0])


def bracket_of(
    work: TracedNetwork, log10_upper: float, multipliers: Iterable[Multipliers] = (), **about: Any
) -> Bracket:
    """Return a GLOBAL bracket with this upper side, a quick search from below and its proof."""
    flat = work.graph.flat().detach()
    found = lower_bound(work.graph, work.double, budget=Budget(30), restarts=2, promising=[(flat, None)])
    return Bracket(
        log10_lower=found.log10,
        log10_upper=log10_upper,
        evidence=Evidence.NUMERICAL,
        mode=work.graph.mode,
        witness=witness_of(work, found),
        proof=Proof(graph=work.graph, multipliers=tuple(multipliers)),
        **{"method": "closed-form", **about},
    )


def proven(model: nn.Module, batch: Tensor) -> Bracket:
    """Return the closed-form bracket of a model with its proof."""
    work = TracedNetwork.of(model, batch)
    return bracket_of(work, *closed_form(work))


def tight(model: nn.Module, batch: Tensor, steps: int = 60) -> Bracket:
    """Return a bracket whose upper side rests on optimised multipliers: nothing cheaper proves it."""
    work = TracedNetwork.of(model, batch)
    with torch.no_grad():
        values = propagate(work.segments, work.norm, fold=True)
    planned = plan(work.segments, values)
    assert planned is not None
    found = optimise(planned, steps=steps)
    assert found is not None
    run = Multipliers(sigma=found.sigma, start=planned.start, log10=found.log10)
    return bracket_of(work, found.log10 + 1e-9, [run], method="tight")


def ball_of(work: TracedNetwork, radius: float) -> Bracket:
    """Return the bracket over the balls around the samples of a batch, each with its proof."""
    bracket = ball_bracket(work, radius=radius)
    samples = tuple(
        replace(one, proof=Proof(graph=work.graph, centre=centre, radius=radius))
        for one, centre in zip(bracket.per_sample or (), Balls(work).centres, strict=True)
    )
    return replace(bracket, per_sample=samples, proof=samples[0].proof)


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Return a model in eval mode with weights from a seed, and statistics that are not those of a fresh one."""
    generator = torch.Generator().manual_seed(seed)
    model = build().eval()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                drawn = torch.randn(value.shape, generator=generator)
                scale = 1.0 / max(1, value[0].numel()) ** 0.5 if value.ndim > 1 else 0.5
                value.copy_(drawn.square() + 0.3 if "var" in name else scale * drawn + (1.0 if value.ndim == 1 else 0))
    return model


@dataclass
class File:
    """A proof file taken apart, to be changed and put together again with a digest that fits."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, path: Path) -> File:
        header, arrays = reading.read(str(path))
        return cls(header, {name: value.copy() for name, value in arrays.items()})

    def copy(self) -> File:
        return File(copy.deepcopy(self.header), {name: value.copy() for name, value in self.arrays.items()})

    def node(self, **about: Any) -> dict[str, Any]:
        """Return the first node that answers to a description."""
        return next(n for n in self.header["network"]["nodes"] if about.items() <= n.items())

    def claim(self, side: str) -> dict[str, Any]:
        return next(claim for claim in self.header["claims"] if claim["side"] == side)

    def write(self, path: Path) -> Path:
        digest = reading.fingerprint(self.header, self.arrays)
        text = json.dumps({**self.header, "digest": digest})
        buffer = io.BytesIO()
        np.savez(buffer, header=np.frombuffer(text.encode(), np.uint8), **self.arrays)
        path.write_bytes(buffer.getvalue())
        return path


def only(bracket: Bracket, side: str) -> Bracket:
    """Return a bracket that claims one side alone."""
    if side == "upper":
        return replace(bracket, log10_lower=-float("inf"), witness=None)
    return replace(bracket, log10_upper=float("inf"), reason="not claimed")
