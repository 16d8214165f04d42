"""Complex values inside a model: right figures at points, no lower side that no pair proves, and no bound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.evaluation import CARRIED
from normscope.bounds.graph.capturing import capture
from normscope.bounds.traced_network import TracedNetwork
from normscope.core.errors import InputError

from ..soundness.networks import Function, noise


def as_complex(x: Tensor) -> Tensor:
    return x.to(x.dtype.to_complex())


WEIGHT = noise(3, 6, dtype=torch.complex64)
FILTER = noise(4, seed=1, dtype=torch.complex64)
TURNS = torch.polar(torch.ones(3), torch.arange(3.0))


def weight(x: Tensor) -> Tensor:
    return WEIGHT.to(x.dtype.to_complex())


def turned(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], 3, 2))
    return torch.view_as_real(pairs * TURNS.to(pairs.dtype)).flatten(-2)


MODELS = {
    "an imaginary shift": lambda x: (x * (3 + 0j) + 1000j).abs(),
    "a spectrum": lambda x: torch.fft.fft(x).abs(),
    "a spectrum between layers": lambda x: torch.relu(torch.fft.fft(torch.tanh(x)).abs() - 1.0).cumsum(-1),
    "a filter": lambda x: torch.fft.irfft(torch.fft.rfft(x) * FILTER.to(x.dtype.to_complex()), n=6),
    "rotary embeddings": turned,
    "a complex linear layer": lambda x: nn.functional.linear(as_complex(x), weight(x)).abs(),
    "the real part of a product": lambda x: (as_complex(x) @ weight(x).T).real,
    "polar coordinates": lambda x: torch.view_as_real(torch.polar(x.abs() + 1, 3 * x)).flatten(-2),
    "angles": lambda x: torch.angle(torch.complex(x, x + 50.0)),
    "a power spectrum": lambda x: (torch.fft.fft(x).conj() * torch.fft.fft(x)).real,
    "both parts": lambda x: torch.cat([torch.fft.rfft(x).real, 1e-3 * torch.fft.rfft(x).imag], -1),
}


def gains(function, points: Tensor, step: float = 1e-6) -> Tensor:
    """Return the norms of Jacobians by central differences in float64."""
    found = []
    for point in points.double():
        shifts = step * torch.eye(point.numel(), dtype=torch.float64)
        columns = (function(point + shifts) - function(point - shifts)) / (2 * step)
        found.append(torch.linalg.matrix_norm(columns.T, ord=2))
    return torch.stack(found)


def batch() -> Tensor:
    return noise(4, 6, seed=2) + 0.3


def around(radius: float) -> Tensor:
    """Points of the balls around the batch, most of them on the boundary."""
    offsets = noise(200, 4, 6, seed=3)
    return (batch() + radius * offsets / offsets.norm(dim=-1, keepdim=True)).reshape(-1, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_scope_holds_what_differences_show(name: str) -> None:
    model, x = Function(MODELS[name]).eval(), batch()
    at_batch = gains(MODELS[name], x)
    point = ns.lipschitz(model, x, scope="point")
    for one, gain in zip(point.per_sample, at_batch.tolist(), strict=True):
        assert one.lower * (1 - 1e-5) <= gain <= one.upper * (1 + 1e-5)
    nearby = gains(MODELS[name], around(0.01))
    for effort in ("fast", "tight"):
        ball = ns.lipschitz(model, x, scope="ball", radius=0.01, effort=effort)
        assert ball.lower <= float(nearby.max()) * 1.05  # a pair inside proves no more than points inside show
        assert ball.upper >= float(nearby.max())
        assert ball.upper < math.inf or "complex values in" in ball.reason
    everywhere = ns.lipschitz(model, x, effort="tight")
    assert everywhere.lower <= float(gains(MODELS[name], around(10.0)).max()) * 1.05
    assert everywhere.upper == math.inf
    assert "complex values in" in everywhere.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", ["an imaginary shift", "a spectrum", "a filter", "the real part of a product"])
def test_data_hold_what_differences_show(name: str) -> None:
    model, x = Function(MODELS[name]).eval(), noise(100, 6, seed=4) + 0.3
    data = ns.lipschitz(model, [x], scope="data", share=0.9)
    assert data.log10_norms == pytest.approx(gains(MODELS[name], x).log10().tolist(), abs=1e-5)


@pytest.mark.slow
def test_no_radius_and_no_weight_is_certified_through_complex_values() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Function(
            lambda net, x: net.outer(net.inner(x).to(net.outer.weight.dtype)).abs(),
            inner=nn.Linear(6, 4),
            outer=nn.Linear(4, 3, dtype=torch.complex64),
        ).eval()
    radii = ns.certified_radius(model, batch())
    assert all(radius == 0.0 for radius in radii.radius)
    (row,) = ns.weight_sensitivity(model, batch()).rows
    assert (row.bracket_h.lower, row.bracket_h.upper) == (0.0, math.inf)
    assert "complex values" in row.bracket_h.reason
    ladder = ns.ladder(model, batch())
    assert ladder["observed"].upper < math.inf == ladder["best"].upper
    audit = ns.audit(model, batch())
    assert [(row.path, row.role) for row in audit.layers] == [("inner", "weight"), ("outer", "weight")]
    assert {finding.code for finding in audit.findings} >= {"no-rule"}
    assert "jump" not in " ".join(audit.observed.notes)


@pytest.mark.slow
def test_a_constant_for_the_module_that_holds_them_bounds_the_network() -> None:
    model = nn.Sequential(Function(MODELS["a spectrum"]), nn.Linear(6, 2)).eval()
    bracket = ns.lipschitz(model, batch(), known={"0": math.sqrt(6)})
    norm = float(torch.linalg.matrix_norm(model[1].weight.detach().double(), ord=2)) * math.sqrt(6)
    assert bracket.lower <= norm <= bracket.upper <= 1.01 * norm


def test_rounding_to_narrower_complex_numbers_is_told() -> None:
    model = Function(lambda x: x.to(torch.complex64).abs().double()).eval()
    assert any("rounded to complex64" in note for note in capture(model, batch().double()).notes)
    (first, *_) = ns.lipschitz(model, batch().double(), scope="point").per_sample
    assert first.lower <= 1.0 <= first.upper


def test_errors_that_nobody_knows_stay_unknown_behind_other_layers() -> None:
    captured = TracedNetwork.of(Function(MODELS["a spectrum between layers"]).eval(), batch())
    for how in CARRIED:
        assert bool(captured.certain.at(batch()[:1].double(), how=how).distance.isinf().all())


class Both(nn.Module):
    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return x + z.abs()


def test_complex_inputs_and_outputs_are_refused() -> None:
    z = noise(4, 6, dtype=torch.complex64)
    for scope in ("global", "point"):
        with pytest.raises(InputError, match="batch holds complex values"):
            ns.lipschitz(Function(lambda z: z.abs()).eval(), z, scope=scope)
        with pytest.raises(InputError, match="batch holds complex values"):
            ns.lipschitz(Both().eval(), (batch(), z), scope=scope)
        with pytest.raises(InputError, match="view_as_real"):
            ns.lipschitz(Function(torch.fft.fft).eval(), batch(), scope=scope)
