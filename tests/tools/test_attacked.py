"""The checker itself under attack: whatever a file says, nothing false is verified."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flint import arb
from torch import nn

from normscope.bounds.proofs.proof import Multipliers, Proof
from normscope.bounds.traced_network import TracedNetwork

from ..soundness.networks import network, noise
from .proofs import arithmetic, bracket_of, checker, closed_form, only, proving, seeded


def halved(bracket):
    """Claim half of what a pair of inputs is known to attain, and do not show the pair."""
    return replace(only(bracket, "upper"), log10_upper=bracket.log10_lower - math.log10(2.0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_half_of_what_is_attained_is_never_verified(seed, tmp_path):
    random = network(seed)
    work = TracedNetwork.of(random.model, random.batch, mode=random.mode)
    value, runs = closed_form(work)
    bracket = bracket_of(work, value if value < math.inf else 300.0, runs)
    if bracket.log10_lower == -math.inf:
        return
    halved(bracket).save(tmp_path / "proof.npz")
    found = [v for v in checker.check(str(tmp_path / "proof.npz")) if v.what.startswith("constant")]
    assert [verdict.status for verdict in found] != [checker.VERIFIED]
    scale = np.random.default_rng(seed)
    wild = [replace(run, sigma={k: v * 10.0 ** scale.uniform(-2, 2) for k, v in run.sigma.items()}) for run in runs]
    for some in (wild, []):
        proof = Proof(graph=work.graph, multipliers=tuple(some))
        replace(halved(bracket), proof=proof).save(tmp_path / "proof.npz")
        _, claimed = checker.check(str(tmp_path / "proof.npz"))  # the first is whether the network was read as it is
        assert claimed.status != checker.VERIFIED


@pytest.fixture(scope="module")
def work() -> TracedNetwork:
    layers = [nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.LeakyReLU(-0.5)]
    return TracedNetwork.of(seeded(lambda: nn.Sequential(*layers, nn.Linear(6, 3)), 5), noise(1, 4))


def read(path: Path) -> tuple[dict, proving.Prover]:
    arithmetic.WORK.done = 0.0
    header, arrays = checker.read(str(path))
    reader = checker.Reader(arrays)
    return header, proving.Prover(checker.Network(header["network"], reader), reader)


@pytest.mark.slow
def test_every_multiplier_gives_a_bound_above_every_pair(work, tmp_path):
    bracket = bracket_of(work, 5.0)
    draw = np.random.default_rng(0)
    bracket.save(tmp_path / "proof.npz")
    tried = carried = 0
    _, prover = read(tmp_path / "proof.npz")
    net, bound_of = prover.network, arb(10) ** arb(bracket.log10_lower)
    activations = [node for node in net.nodes.values() if node.slopes is not None]
    for _ in range(300):
        some = {n.name: 10.0 ** draw.uniform(-2.5, 0.0) * draw.uniform(0.5, 1.0, n.size) for n in activations}
        scale = 10.0 ** draw.uniform(-2.5, 0.0)
        tried += 1
        prover.reader.arrays.update(some)
        step = {"scale": scale, "start": {net.input.name: 1.0}, "multipliers": {n: n for n in some}, "slopes": {}}
        bound = prover.certificate(net.output, step)
        carried += bound is not None
        assert bound is None or bound >= bound_of
    assert tried > carried > 10


def moved_no_faster(work: TracedNetwork, path: Path) -> None:
    """Sample pairs: no value moves faster than its constant says, whatever proved it."""
    value, runs = closed_form(work)
    only(bracket_of(work, value if value < math.inf else 300.0, runs, method="folded"), "upper").save(path)
    header, prover = read(path)
    net = prover.network
    for step in header["claims"][0]["steps"]:
        prover.take(step)
    draw = np.random.default_rng(1)
    for scale in (1e-3, 0.1, 1.0, 10.0):
        first, second = (draw.standard_normal(net.input.size) * scale for _ in range(2))
        try:
            ends = [net.values(point) for point in (first, second)]
        except arithmetic.Unproven as error:
            pytest.skip(str(error))
        apart = arithmetic.norm_of(arithmetic.balls(first) - arithmetic.balls(second))
        for name, one in ends[0].items():
            known = prover.best.get(name)
            assert known is None or not arithmetic.norm_of(one - ends[1][name]) > known * apart, name


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150))
def test_no_value_of_random_networks_moves_faster_than_its_constant(seed, tmp_path):
    random = network(seed)
    moved_no_faster(TracedNetwork.of(random.model, random.batch, mode=random.mode), tmp_path / "proof.npz")


def test_constants_that_are_merely_claimed_are_not_believed(work, tmp_path):
    bracket = bracket_of(work, 5.0)
    names = [node.name for node in work.double if str(node.op).startswith("aten.linear")]
    cut = {names[2]: -3.0}
    sigma = {node.name: torch.tensor(1e-3) for node in work.double if node.name not in names}
    claim = replace(only(bracket, "upper"), log10_upper=bracket.log10_lower - 0.1)
    proof = replace(bracket.proof, multipliers=(Multipliers(sigma=sigma, start=cut, log10=claim.log10_upper),))
    replace(claim, proof=proof).save(tmp_path / "proof.npz")
    assert checker.check(str(tmp_path / "proof.npz"))[1].status != checker.VERIFIED
