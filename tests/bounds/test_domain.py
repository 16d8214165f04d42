"""Domains: what is recorded, what counts as inside, and what the bounds inside are worth."""

from __future__ import annotations

import copy
import math
import pathlib
from collections.abc import Iterator

import pytest
import torch
from scipy.stats import binom
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.bounds.domain.derivative import slopes_as_scale
from normscope.bounds.domain.domain import covered
from normscope.bounds.domain.gains import CLOSE
from normscope.core.bracket import Scope
from normscope.core.errors import InputError

from ..soundness.networks import Function


def drawn(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw a model's weights, whatever the global generator says."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(max(parameter.shape[-1], 2)))
    return model.eval()


def data(*shape: int, seed: int = 1) -> Tensor:
    """Draw data."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def normed() -> nn.Module:
    """A small network with a LayerNorm of tiny eps."""
    return drawn(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)))


Recorded = tuple[nn.Module, Tensor, ns.Domain]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """The small network, twenty samples, and the domain that they define."""
    model, x = normed(), data(20, 4)
    return model, x, ns.domain(model, [x[:7], x[7:]])


def gate() -> nn.Module:
    """A gated unit: not Lipschitz over all inputs."""
    return Function(lambda net, x: F.silu(net.a(x)) * net.b(x), a=nn.Linear(4, 5), b=nn.Linear(4, 5))


class Bare(nn.Module):
    """Attention on the raw input."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0])


def crossed() -> nn.Module:
    """Attention whose keys come through a nonlinearity: no common linear source."""
    return Function(
        lambda net, x: F.scaled_dot_product_attention(net.q(x)[:, None], net.k(x).tanh()[:, None], x[:, None])[:, 0],
        q=nn.Linear(4, 4),
        k=nn.Linear(4, 4),
    )


def jacobian_norm(model: nn.Module, x: Tensor) -> float:
    """The norm of the Jacobian at one sample."""
    twin = copy.deepcopy(model).double()
    jacobian = torch.autograd.functional.jacobian(lambda row: twin(row[None])[0].reshape(-1), x.double())
    return float(torch.linalg.matrix_norm(jacobian.reshape(jacobian.shape[0], -1), ord=2))


def test_recorded_data_lies_inside_and_far_inputs_do_not(recorded: Recorded) -> None:
    _, x, domain = recorded
    assert domain.samples == 20
    assert domain.contains(x).all()
    assert domain.contains(x[3:4]).all()  # alone as in a batch
    assert int(domain.contains(100 * x).sum()) < 5  # the LayerNorm forgets the size, but not the bias before it


@pytest.mark.slow
def test_the_order_of_the_scopes(recorded: Recorded) -> None:
    model, x, domain = recorded
    rungs = ns.ladder(model, x[:5], domain=domain)
    largest = max(jacobian_norm(model, row) for row in x)
    assert rungs["best"].scope is Scope.DOMAIN
    assert largest <= rungs["best"].upper
    assert rungs["best"].log10_upper < rungs["global"].log10_upper - 1.5  # eps is 1e-5
    assert rungs["best"].lower >= 0.999 * max(jacobian_norm(model, row) for row in x[:5])
    point, direction = rungs["best"].witness
    assert domain.inside(point[None]).all()
    assert abs(float(direction.norm()) - 1) < 1e-9


def test_a_violation_names_the_operator_and_the_distance(recorded: Recorded) -> None:
    _, x, domain = recorded
    flat = torch.zeros(1, 4)  # the bias alone: another variance, other units
    found = domain.violations(torch.cat([x[:1], 50 * x[:1], flat]))
    assert {violation.sample for violation in found} <= {1, 2}
    first = next(violation for violation in found if violation.sample == 1)
    assert first.operator == "relu"
    assert first.path == "2"
    assert first.excess > 0
    assert "channel" in first.what
    assert f"{first.limit:.6g}" in str(first)
    inside = domain.contains(flat)[0]
    assert bool(inside) == (not any(violation.sample == 2 for violation in found))


def test_a_small_variance_is_a_violation() -> None:
    model = drawn(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2)))
    x = data(10, 6)
    domain = ns.domain(model, [x])
    (found,) = domain.violations(1e-3 * x[:1])
    assert found.operator == "layer_norm"
    assert found.what == "its least variance"
    assert found.value < found.limit


@pytest.mark.slow
@pytest.mark.parametrize("build", [gate, Bare, crossed])
def test_finite_where_no_global_constant_exists(build: type[nn.Module]) -> None:
    model = drawn(build())
    x = data(12, 3, 4)
    domain = ns.domain(model, [x])
    rungs = ns.ladder(model, x[:2], domain=domain)
    assert rungs["global"].log10_upper == math.inf
    assert math.isfinite(rungs["best"].log10_upper)
    assert max(jacobian_norm(model, row) for row in x) <= rungs["best"].upper


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)),  # eps 0
        lambda x: x.exp(),
        lambda x: (x * x).log1p(),
        lambda x: x / (2 + x.tanh()),
        lambda x: F.glu(x),
        lambda x: torch.maximum(x, -0.5 * x),
        lambda x: x.softmax(-1),
        lambda x: torch.where(x > -100, x, 7 * x),
        lambda x: (x[:, None] @ x[:, :, None])[:, 0],
        lambda x: F.group_norm(x, 2),
        lambda x: x.logsumexp(-1),
    ],
)
def test_operators_one_by_one(function: object) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            value = function(self.first(x))  # type: ignore[operator]
            return value if value.shape[-1] != 6 else self.last(value)

    model, x = drawn(Net()), data(15, 4)
    domain = ns.domain(model, [x])
    assert domain.contains(x).all()
    bracket = ns.lipschitz(model, x[:3], scope="domain", domain=domain)
    largest = max(jacobian_norm(model, row) for row in x)
    assert largest <= bracket.upper * (1 + 1e-9)
    assert math.isfinite(bracket.log10_upper)
    assert bracket.upper <= 100 * largest


@pytest.mark.slow
def test_train_mode_is_a_map_of_batches() -> None:
    model = drawn(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))).train()
    x = data(26, 3)
    domain = ns.domain(model, list(x.split(8)))
    assert domain.mode == "train"
    assert (domain.samples, domain.skipped) == (3, 1)
    assert domain.contains(x[:8]).tolist() == [True]
    with pytest.raises(InputError, match="whole batches"):
        domain.contains(x[:5])
    bracket = ns.lipschitz(model, x[:8], scope="domain", domain=domain)
    assert bracket.mode == "train"
    twin = copy.deepcopy(model).double()
    jacobian = torch.autograd.functional.jacobian(twin, x[:8].double()).reshape(16, 24)
    assert float(torch.linalg.matrix_norm(jacobian, ord=2)) <= bracket.upper < ns.lipschitz(model, x[:8]).upper
    assert model.training


@pytest.mark.slow
def test_gains_of_blocks() -> None:
    model, x = normed(), data(20, 4)
    domain = ns.domain(model, [x], record="gains")
    rungs = ns.ladder(model, x[:2], domain=domain)
    assert max(jacobian_norm(model, row) for row in x) <= rungs["gains"].upper
    assert rungs["best"].log10_upper <= rungs["gains"].log10_upper
    assert domain.contains(x).all()
    named = [violation.what for violation in domain.violations(1e-2 * x)]
    assert any("block" in what for what in named)


def test_coverage_and_its_limit() -> None:
    model, x = normed(), data(400, 4)
    domain = ns.domain(model, [x[:200]])
    found = domain.coverage(x[200:].split(50))
    assert found.samples == 200
    assert found.inside == int(domain.contains(x[200:]).sum())
    assert 0 < found.lower < found.share
    for inside in (0, 1, 57, 200):
        lower = covered(inside, 200, 0.95).lower
        assert binom.sf(inside - 1, 200, lower) == pytest.approx(0.05, abs=1e-9) if inside else lower == 0.0


@pytest.mark.slow
def test_saved_and_loaded(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    model, x, domain = recorded
    domain.save(tmp_path / "d.npz")
    again = ns.Domain.load(tmp_path / "d.npz", model, x[:2])
    assert again.limits.keys() == domain.limits.keys()
    assert all(torch.equal(again.limits[key], limit) for key, limit in domain.limits.items())
    assert repr(again) == repr(domain)
    assert again.contains(x).all()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight[0, 0] += 1e-3
    with pytest.raises(InputError, match="another network"):
        ns.Domain.load(tmp_path / "d.npz", other, x[:2])
    with pytest.raises(InputError, match="another network"):
        ns.lipschitz(other, x[:2], scope="domain", domain=domain)


def test_data_are_streamed_once_and_the_model_is_left_as_found() -> None:
    model = normed().train()
    x = data(30, 4)
    served = []

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for part in x.split(10):
            served.append(len(part))
            yield part, torch.zeros(len(part))

    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    domain = ns.domain(model, batches(), mode="eval")
    assert served == [10, 10, 10]
    assert (domain.samples, domain.mode) == (30, "eval")
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.slow
def test_token_models_start_at_their_embeddings() -> None:
    model = drawn(
        Function(
            lambda net, ids: net.head(net.norm(net.embed(ids))),
            embed=nn.Embedding(11, 4),
            norm=nn.LayerNorm(4),
            head=nn.Linear(4, 3),
        )
    )
    ids = torch.randint(0, 11, (20, 3), generator=torch.Generator().manual_seed(0))
    domain = ns.domain(model, [ids[:8], ids[8:]])
    assert domain.contains(ids).all()
    bracket = ns.lipschitz(model, ids[:2], scope="domain", domain=domain)
    assert bracket.log10_upper < ns.lipschitz(model, ids[:2]).log10_upper - 1


def test_masks_that_differ_are_refused() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 4)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.last((x * mask).tanh())

    model, x = drawn(Masked()), data(6, 4)
    same, other = torch.ones(6, 4), torch.ones(6, 4)
    other[2] = 0.0
    domain = ns.domain(model, [{"x": x, "mask": same}])
    assert domain.samples == 6
    with pytest.raises(InputError, match="another function"):
        ns.domain(model, [{"x": x, "mask": same}, {"x": x, "mask": other}])
    with pytest.raises(InputError, match="another function"):
        domain.contains({"x": x, "mask": other})
    with torch.no_grad():
        model.last.weight.mul_(2.0)
    with pytest.raises(InputError, match="weights have changed"):
        domain.violations({"x": x, "mask": same})


@pytest.mark.slow
def test_known_constants_are_part_of_the_network() -> None:
    model, x = normed(), data(10, 4)
    domain = ns.domain(model, [x], known={"1": 5.0})
    assert all(condition.node.path != "1" for condition in domain.conditions)
    bracket = ns.lipschitz(model, x[:2], scope="domain", domain=domain, known={"1": 5.0})
    assert bracket.log10_upper <= ns.lipschitz(model, x[:2], known={"1": 5.0}).log10_upper
    for known in (None, {"1": 4.0}):
        with pytest.raises(InputError, match="another network"):
            ns.lipschitz(model, x[:2], scope="domain", domain=domain, known=known)


@pytest.mark.parametrize("lengths", [{"q": 1, "k": 3, "v": 3}, {"q": 5, "k": 4, "v": 4}, {"q": 5, "k": 4}])
def test_gains_of_attention_are_those_of_dense_jacobians(lengths: dict[str, int]) -> None:
    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor | None = None) -> Tensor:
            return F.scaled_dot_product_attention(q, k, k if v is None else v)

    given = {name: 2.0 * data(4, 1, n, 7, seed=i).double() for i, (name, n) in enumerate(lengths.items())}
    limits = ns.domain(Attention().eval(), [given]).limits.values()
    exact = torch.zeros(4, len(given), dtype=torch.float64)
    for i in range(4):
        operands = tuple(value[i : i + 1] for value in given.values())
        for j, part in enumerate(torch.autograd.functional.jacobian(Attention(), operands)):
            exact[i, j] = torch.linalg.matrix_norm(part.reshape(7 * lengths["q"], -1), ord=2)
    for limit, largest in zip(limits, exact.amax(0).tolist(), strict=True):
        assert largest <= float(limit[0]) <= largest * (1 + 2 * CLOSE)


def test_slopes_are_split_without_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    for shift in (0.0, 2.0, -2.0):
        a = torch.randn(50, generator=generator, dtype=torch.float64) * 0.3 + shift
        b = a + torch.rand(50, generator=generator, dtype=torch.float64) * 0.2
        a[:5], b[:5] = 0.0, 0.0
        core, scale = slopes_as_scale(a, b, exact=True)
        assert core is not None
        assert scale is not None
        low, high = core.slope
        assert bool((scale * low <= a + 1e-12).all() or low > 0)
        kept = scale > 0
        assert bool((a[kept] / scale[kept] >= low).all())
        assert bool((b[kept] / scale[kept] <= high).all())
        assert bool((scale[:5] == 0).all()) or shift == 0.0
        assert low >= float(a.amin()) - 1e-9
        assert high <= float(b.amax()) + 1e-9


def test_saturated_weights_of_a_softmax_are_not_lost():
    x = torch.tensor([[40.0, 0.0], [45.0, 0.0]], dtype=torch.float64)
    model = nn.Softmax(-1)
    found = ns.lipschitz(model, x, scope="domain", domain=ns.domain(model, [x]))
    assert found.upper >= 2 * math.exp(-40.0)


def test_the_gain_of_a_saturated_unit_is_not_zero():
    x = torch.tensor([[20.0], [25.0]], dtype=torch.float64)
    model = nn.Tanh()
    found = ns.lipschitz(model, x, scope="domain", domain=ns.domain(model, [x], record="gains"))
    assert found.upper >= math.cosh(20.0) ** -2


def test_a_slope_that_torch_gives_on_a_bend_is_no_lower_side():
    """The function is x; right at 0 torch gives 2."""

    model, zeros = Function(lambda x: x.clamp(min=0) - (-x).clamp(min=0)).eval(), torch.zeros(40, 3)
    bracket = ns.lipschitz(model, zeros, scope="domain", domain=ns.domain(model, [zeros]))
    assert bracket.lower <= 1.0


def test_samples_on_a_bend_have_a_lower_side_beside_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.LeakyReLU(0.5))
    model[0].weight.data = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    x = torch.zeros(1, 2)
    bracket = ns.lipschitz(model.eval(), x, scope="domain", domain=ns.domain(model, [data(9, 2), x]))
    assert 1.99 < bracket.lower <= 4.0  # the weights, times a slope of 0.5 or more


def test_the_lower_side_climbs_above_the_samples() -> None:
    model, x = drawn(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))), 2 * data(20, 4)
    domain = ns.domain(model, [x])
    bracket = ns.lipschitz(model, x[:5], scope="domain", domain=domain)
    assert bracket.lower > 1.05 * max(jacobian_norm(model, row) for row in x[:5])
    assert bracket.lower == pytest.approx(jacobian_norm(model, bracket.witness[0].float()), rel=1e-3)
    assert bool(domain.contains(bracket.witness[0][None].float()))


def test_channels_with_narrow_ranges() -> None:
    model = drawn(nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)))
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([9.0, -9.0, 0.0, 0.0]))  # two units on the flat ends
    x = data(12, 3)
    bracket = ns.lipschitz(model, x[:2], scope="domain", domain=ns.domain(model, [x]))
    full = ns.lipschitz(model, x[:2])
    assert max(jacobian_norm(model, row) for row in x) <= bracket.upper < full.upper
