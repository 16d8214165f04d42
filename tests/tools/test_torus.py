"""Certificates on tori, proven anew by the checker: the same value, and never below brute force."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.bounds.torus.torus import torus_certificate
from normscope.bounds.work import Work

from ..bounds.torus_cases import CASES, Net, attack, bounds, case
from ..bounds.torus_cases import drawn as drawn_network
from ..soundness.networks import Residual
from .proofs import bracket_of, checker, drawn, seeded
from .tori import certified, claimed, dense_value, reached, secants, status

LEFT = {"sliced shortcut": "n2 is not known to do the same everywhere", "dense block": "is reached as no field"}
"""Networks whose tori the checker does not follow, and what it says."""
QUICK = ("stride 2", "leaky", "residual", "circular", "bottleneck", "convolutions in a row")


def conv(*channels: int, **options) -> nn.Module:
    return nn.Conv2d(*channels, 3, **{"padding": 1, **options})


class Off(nn.BatchNorm2d):
    """Gets scales of zero: values behind it are exactly constant, and multipliers there have no limit."""


NETWORKS = {
    "mean over the grid": lambda: nn.Sequential(
        *(conv(3, 6, bias=False), nn.BatchNorm2d(6), nn.ReLU(), conv(6, 8, stride=2), nn.BatchNorm2d(8), nn.SiLU()),
        *(conv(8, 8, groups=2), nn.LeakyReLU(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    ),
    "flattened, with a hidden layer": lambda: nn.Sequential(
        *(conv(3, 4, stride=2), nn.GELU(), conv(4, 4, dilation=2, padding=2), nn.PReLU(4), nn.Flatten()),
        *(nn.Linear(144, 7), nn.ReLU(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)),
    ),
    "circular": lambda: nn.Sequential(
        *(conv(3, 5, padding_mode="circular"), nn.LeakyReLU(0.3)),
        *(conv(5, 5, stride=2, padding_mode="circular"), nn.LeakyReLU(0.3), nn.Flatten(), nn.Linear(180, 3)),
    ),
    "a field": lambda: nn.Sequential(conv(3, 5), nn.ReLU(), conv(5, 5), nn.BatchNorm2d(5), nn.ReLU(), conv(5, 4)),
    "pooled on the way": lambda: nn.Sequential(
        *(conv(3, 4), nn.ReLU(), nn.AvgPool2d(3, 2, 1), conv(4, 4), nn.ReLU(), nn.MaxPool2d(2), conv(4, 4), nn.ReLU()),
        *(nn.AvgPool2d((1, 3)), nn.Flatten(), nn.Linear(12, 3)),
    ),
    "residual": lambda: nn.Sequential(
        *(conv(3, 4), nn.ReLU()),
        Residual(nn.Sequential(conv(4, 4, stride=2), nn.ReLU(), conv(4, 4)), nn.Conv2d(4, 4, 1, 2)),
        *(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    ),
    "a branch that is switched off": lambda: nn.Sequential(
        *(conv(3, 4), nn.ReLU(), *block(nn.BatchNorm2d(4), 1), *block(Off(4), 2)),
        *(*block(nn.BatchNorm2d(4), 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    ),
}


def block(norm: nn.Module, stride: int) -> tuple[nn.Module, nn.Module]:
    """A block of a residual network."""
    body = nn.Sequential(
        *(conv(4, 4, stride=stride, bias=False), norm, nn.ReLU(), conv(4, 4, bias=False), nn.BatchNorm2d(4))
    )
    return Residual(body, nn.Conv2d(4, 4, 1, 2) if stride > 1 else nn.Identity()), nn.ReLU()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if index % 2 else []) for index, name in enumerate(NETWORKS)]
)
def test_the_torus_of_a_captured_network_is_verified(name, tmp_path):
    model = seeded(NETWORKS[name])
    for layer in model.modules():
        if isinstance(layer, Off):
            nn.init.zeros_(layer.weight)
    work = Work(model, drawn(2, 3, 12, 12, seed=1))
    found = torus_certificate(work.segments, bounds(work.segments), steps=6, widest=16)
    assert found is not None
    bracket_of(work, found.log10 + 1e-10, found.runs, method="tight").save(tmp_path / "proof.npz")
    assert [v.status for v in checker.check(str(tmp_path / "proof.npz"))] == [checker.VERIFIED] * 3
    own, prover = reached(tmp_path / "proof.npz")
    assert not prover.loose
    assert own <= found.log10 + 1e-9
    assert found.log10 < bounds(work.segments)[work.double.output].log10


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_the_value_is_that_of_the_claim_and_above_all_jacobians(name, tmp_path):
    segments = case(name, seed=2)
    found = certified(segments)
    claimed(segments, found.log10 + 1e-10, found.runs).save(tmp_path / "proof.npz")
    own, prover = reached(tmp_path / "proof.npz")
    if name in LEFT:
        assert own == math.inf
        assert LEFT[name] in str(list(prover.loose))
        return
    assert status(tmp_path / "proof.npz") == checker.VERIFIED
    assert own >= (secants(segments) if name == "max pooling" else max(attack(segments), secants(segments)))
    if name != "max pooling":  # a small field in between is written out here
        assert own == pytest.approx(found.log10, abs=1e-9)


@pytest.mark.parametrize("name", ["plain", "stride 2", "not square, head with an activation", "one axis", "residual"])
def test_it_is_above_the_ellipsoid_that_is_written_out_with_the_same_multipliers(name, tmp_path):
    segments = case(name, seed=4)
    found = certified(segments, steps=1)
    claimed(segments, found.log10, found.runs).save(tmp_path / "proof.npz")
    own, _ = reached(tmp_path / "proof.npz")
    dense = dense_value(tmp_path / "proof.npz")
    assert attack(segments) <= dense <= own + 1e-9
    assert own < dense + 0.3


@pytest.mark.parametrize("name", ["plain", "field", "residual"])
def test_a_batch_is_checked_slice_by_slice(name, tmp_path):
    segments = case(name, batch=3)
    found = certified(segments)
    claimed(segments, found.log10 + 1e-10, found.runs).save(tmp_path / "proof.npz")
    assert status(tmp_path / "proof.npz") == checker.VERIFIED
    assert reached(tmp_path / "proof.npz")[0] == pytest.approx(found.log10, abs=1e-9)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 150))])
def test_no_torus_and_no_multipliers_prove_less_than_a_jacobian_shows(seed, tmp_path):
    """Whatever stands in the file: what is proven is true."""
    segments = drawn_network(seed)
    found = torus_certificate(segments, bounds(segments), steps=2, widest=8)
    if found is None or not found.runs:
        pytest.skip("no torus carries this network")
    generator = torch.Generator().manual_seed(seed)
    least = attack(segments)
    for run in found.runs:
        for _ in range(6):
            off = torch.randint(-3, 5, (len(run.torus),), generator=generator).tolist()
            sizes = tuple(max(1, n + by) for n, by in zip(run.torus, off, strict=True))
            factor = 10.0 ** (0.4 * torch.rand(len(run.sigma), generator=generator) - 0.3)
            sigma = {name: value * f for (name, value), f in zip(run.sigma.items(), factor.tolist(), strict=True)}
            claimed(segments, 0.0, [replace(run, sigma=sigma, torus=sizes)]).save(tmp_path / "proof.npz")
            assert reached(tmp_path / "proof.npz")[0] >= least - 1e-9


def test_a_torus_that_starts_afresh_is_checked_behind_the_bound_on_its_start(tmp_path):
    net = Net(2, 8, 8)
    x = net.relu(net.conv(net.relu(net.conv(net.x, 3)), 3, mode="reflect"))
    segments = net.segments(net.head(net.relu(net.conv(net.relu(net.conv(x, 3)), 3)), 3))
    found = certified(segments)
    assert [list(run.start) for run in found.runs] == [["n3"]]
    claimed(segments, found.log10 + 1e-3, found.runs).save(tmp_path / "proof.npz")
    assert reached(tmp_path / "proof.npz")[0] == math.inf
    assert status(tmp_path / "proof.npz") == checker.VERIFIED


def test_a_tight_bracket_of_a_network_too_wide_to_write_out_is_verified(tmp_path, monkeypatch):
    monkeypatch.setattr("normscope.bounds.work.plan", lambda *_: None)
    monkeypatch.setattr(  # however slow the machine is
        "normscope.bounds.work.torus_certificate",
        lambda segments, values, budget: torus_certificate(segments, values, steps=20),
    )
    model = seeded(NETWORKS["mean over the grid"])
    bracket = ns.lipschitz(model, drawn(2, 3, 12, 12), scope="global", effort="tight", max_seconds=1.0)
    assert bracket.method == "tight"
    bracket.save(tmp_path / "proof.npz")
    assert status(tmp_path / "proof.npz") == checker.VERIFIED
    assert reached(tmp_path / "proof.npz")[0] <= bracket.log10_upper + 1e-9


def test_one_that_is_too_large_is_said_to_be(tmp_path, monkeypatch):
    segments = case("field")
    found = certified(segments)
    claimed(segments, found.log10 + 1e-10, found.runs).save(tmp_path / "proof.npz")
    for limit, value in (("WAVE_WORK", 1e4), ("WAVE_BYTES", 1e4)):
        with monkeypatch.context() as patch:
            patch.setattr(checker, limit, value)
            own, prover = reached(tmp_path / "proof.npz")
        assert own == math.inf
        assert "too large" in str(list(prover.loose))
    monkeypatch.setattr(checker, "WAVE_PIECE", 1e4)
    assert reached(tmp_path / "proof.npz")[0] == pytest.approx(found.log10, abs=1e-9)
