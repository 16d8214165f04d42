"""The checker itself under attack: whatever a file says, nothing false is verified."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from normscope.bounds.proofs.proof import Multipliers, Proof
from normscope.bounds.work import Work

from ..soundness.networks import network
from .proofs import File, bracket_of, checker, closed_form, drawn, only, seeded

SEEDS = [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 200))]


def halved(bracket):
    """Claim half of what a pair of inputs is known to attain, and do not show the pair."""
    return replace(only(bracket, "upper"), log10_upper=bracket.log10_lower - math.log10(2.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_half_of_what_is_attained_is_never_verified(seed, tmp_path):
    random = network(seed)
    work = Work(random.model, random.batch, mode=random.mode)
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
def work() -> Work:
    layers = [nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.LeakyReLU(-0.5)]
    return Work(seeded(lambda: nn.Sequential(*layers, nn.Linear(6, 3)), 5), drawn(1, 4), max_seconds=2.0)


def test_every_multiplier_gives_a_bound_above_every_pair(work, tmp_path):
    bracket = bracket_of(work, 5.0)
    norms, draw = checker.Norms(), np.random.default_rng(0)
    bracket.save(tmp_path / "proof.npz")
    header, arrays = checker.read(str(tmp_path / "proof.npz"))
    tried = carried = 0
    net = checker.Network(header["network"], checker.Reader(arrays))
    for _ in range(150):
        sigma = {
            node.name: 10.0 ** draw.uniform(-6.0, 0.5) * draw.uniform(0.2, 1.0, node.size)
            for node in net.order
            if node.kind == "entrywise"
        }
        prover = checker.Prover(net, norms)
        prover.best.update({name: math.inf for name in prover.best if name != net.inputs[0].name})
        tried += 1
        try:
            checker.Ellipsoid(prover, checker.Step(net.output.name, {}, sigma, {})).run()
        except checker.Refuted:
            continue
        carried += 1
        assert prover.best[net.output.name] >= bracket.log10_lower
    assert tried > carried > 10


def enclosed(work: Work, radius: float, path: Path) -> None:
    """Sample pairs in a ball: every value must lie in its box, and move no faster than its constants say."""
    centre = work.graph.flat().double()
    proof = Proof(graph=work.graph, centre=centre, radius=radius)
    replace(only(bracket_of(work, 300.0), "upper"), proof=proof).save(path)
    header, arrays = checker.read(str(path))
    net = checker.Network(header["network"], checker.Reader(arrays))
    centre = centre.numpy()
    try:
        prover = checker.BallProver(net, checker.Norms(), checker.Ball(centre, radius))
    except checker.Unproven as error:
        pytest.skip(str(error))
    step = checker.Step(net.output.name, {}, {}, {}, auto=True)
    plans = [{"fold": False}, {"fold": True}, {"fold": True, "loop": True}]
    plans.append({**plans[-1], "steps": (step,)})
    for plan in (*plans, *plans[2:]):
        prover.sweep(**plan)
    draw = np.random.default_rng(1)
    for attempt in range(60):
        points = []
        for _ in range(2):
            move = draw.standard_normal(centre.size)
            points.append(centre + move / np.linalg.norm(move) * radius * draw.uniform() ** 0.2)
        if attempt % 2:
            points[1] = points[0] + 1e-3 * (points[1] - points[0])
        first, second = (net.values(point) for point in points)
        apart = np.linalg.norm(points[0] - points[1])
        for name, value in first.items():
            low, high = prover.boxes[name]
            noise = 1e-12 * (1 + np.abs(value))
            assert ((value >= low - noise) & (value <= high + noise)).all(), name
            moved = np.abs(value - second[name]) - noise
            assert np.linalg.norm(np.maximum(moved, 0)) <= 10 ** prover.best[name] * apart * (1 + 1e-9), name
            assert (moved <= prover.entries[name] * apart * (1 + 1e-9)).all(), name


@pytest.mark.parametrize("radius", [1e-3, 0.1, 1.0, 10.0])
def test_values_and_slopes_over_a_ball_stay_inside_what_is_enclosed(work, radius, tmp_path):
    enclosed(work, radius, tmp_path / "ball.npz")


def test_layer_norm_and_windows_over_a_ball(tmp_path):
    layers = [nn.Conv1d(1, 3, 3), nn.MaxPool1d(2), nn.Flatten(), nn.LayerNorm(12, eps=0.01), nn.ReLU()]
    model = seeded(lambda: nn.Sequential(*layers, nn.Linear(12, 2)))
    work = Work(model, drawn(1, 1, 10))
    for radius in (1e-3, 0.2, 3.0):
        enclosed(work, radius, tmp_path / "ball.npz")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150))
def test_random_networks_over_balls(seed, tmp_path):
    random = network(seed)
    work = Work(random.model, random.batch, mode=random.mode)
    for radius in (0.02, 0.5, 5.0):
        enclosed(work, radius, tmp_path / "ball.npz")


def test_a_planted_error_in_the_recursion_would_be_seen(work, tmp_path, monkeypatch):
    monkeypatch.setattr(checker, "factor", lambda matrix: np.linalg.cholesky(np.eye(len(matrix))))
    with pytest.raises(AssertionError):
        test_every_multiplier_gives_a_bound_above_every_pair(work, tmp_path)


def test_constants_that_are_merely_claimed_are_not_believed(work, tmp_path):
    bracket = bracket_of(work, 5.0)
    names = [node.name for node in work.double if str(node.op).startswith("aten.linear")]
    cut = {names[2]: -3.0}
    sigma = {node.name: torch.tensor(1e-3) for node in work.double if node.name not in names}
    claim = replace(only(bracket, "upper"), log10_upper=bracket.log10_lower - 0.1)
    proof = replace(bracket.proof, multipliers=(Multipliers(sigma=sigma, start=cut),))
    replace(claim, proof=proof).save(tmp_path / "proof.npz")
    assert checker.check(str(tmp_path / "proof.npz"))[1].status == checker.REJECTED


def test_names_cannot_be_made_to_stand_for_something_smaller(work, tmp_path):
    bracket_of(work, 5.0).save(tmp_path / "proof.npz")
    file = File.of(tmp_path / "proof.npz")
    file.node(kind="entrywise")["name"] = "~gelu"
    assert checker.main([str(file.write(tmp_path / "proof.npz"))]) == 2
