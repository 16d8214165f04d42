"""Jacobians of all samples in one batch of products, counted; figures that hold against float64 and exact oracles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.point import FEW, jacobian_norms
from normscope.core.bracket import Bracket, Evidence
from normscope.core.errors import JacobianError

pytestmark = pytest.mark.usefixtures("seeded")

F64 = torch.float64


def network(*widths: int, dtype: torch.dtype = F64) -> nn.Module:
    layers: list[nn.Module] = []
    for one, next_one in itertools.pairwise(widths):
        layers += [nn.Linear(one, next_one), nn.GELU()]
    return nn.Sequential(*layers[:-1]).to(dtype).eval()


def truth(model: nn.Module, row: Tensor) -> float:
    """The Jacobian norm at one sample, dense and in float64."""
    model = model.double()
    jacobian = torch.autograd.functional.jacobian(lambda x: model(x[None])[0].reshape(-1), row.double())
    return float(torch.linalg.matrix_norm(jacobian.reshape(-1, row.numel()), 2))


class TestCounts:
    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("samples", [1, 5, 40])
    def test_rows_cost_one_product_per_output_and_one_to_check(self, samples: int) -> None:
        model = network(50, 20, 7)
        bracket = jacobian_norms(model, torch.randn(samples, 50, dtype=F64))
        assert bracket.products == 7 + 1
        assert bracket.method == "Jacobian, all rows"
        assert len(bracket.per_sample) == samples

    def test_columns_cost_one_product_per_input(self) -> None:
        bracket = jacobian_norms(network(6, 20, 50), torch.randn(4, 6, dtype=F64))
        assert bracket.products == 6 + 2  # the gradient along a dual, and the check
        assert bracket.method == "Jacobian, all columns"
        assert bracket.evidence is Evidence.NUMERICAL

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("dtype", [torch.float32, F64])
    def test_lanczos_costs_the_same_for_one_sample_and_for_many(self, dtype: torch.dtype) -> None:
        model = network(60, 80, 80, 50, dtype=dtype)
        batch = torch.randn(24, 60, dtype=dtype)
        one, many = (jacobian_norms(model, batch[:count]) for count in (1, 24))
        assert 2 * 4 < one.products <= many.products <= 2 * 50 + 8
        assert many.evidence is Evidence.SAMPLED


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 40), nn.Linear(40, 40)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(self.left(x)) * self.right(y).sigmoid()


class Tokens(nn.Module):
    """Every output of a token model is a map of the embeddings of its own sentence."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.head = nn.Linear(8, outputs)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(input_ids))[:, 0])


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], object]]] = {
    "few outputs": (lambda: network(50, 30, 5), lambda n: torch.randn(n, 50, dtype=F64)),
    "few inputs": (lambda: network(5, 30, 50), lambda n: torch.randn(n, 5, dtype=F64)),
    "lanczos": (lambda: network(50, 40, 60), lambda n: torch.randn(n, 50, dtype=F64)),
    "several inputs": (
        lambda: Two().double().eval(),
        lambda n: (torch.randn(n, 5, dtype=F64), torch.randn(n, 40, dtype=F64)),
    ),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten()).double().eval(),
        lambda n: torch.randn(n, 2, 6, 6, dtype=F64),
    ),
    "tokens, few outputs": (
        lambda: Tokens(3).double().eval(),
        lambda n: {"input_ids": torch.arange(6 * n).view(n, 6) % 11},
    ),
    "tokens, lanczos": (
        lambda: Tokens(40).double().eval(),
        lambda n: {"input_ids": torch.arange(6 * n).view(n, 6) % 11},
    ),
}


def sample(batch: object, index: int) -> object:
    if isinstance(batch, dict):
        return {name: value[index : index + 1] for name, value in batch.items()}
    return tuple(value[index : index + 1] for value in batch) if isinstance(batch, tuple) else batch[index : index + 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_at_once_is_each_alone(name: str) -> None:
    build, draw = CASES[name]
    model, batch = build(), draw(4)
    together = jacobian_norms(model, batch, rtol=1e-11)
    assert len(together.per_sample) == 4
    for index, bracket in enumerate(together.per_sample):
        alone = jacobian_norms(model, sample(batch, index), rtol=1e-11)
        assert bracket.lower == pytest.approx(alone.lower, rel=1e-10)
        assert bracket.upper == pytest.approx(alone.upper, rel=1e-10)
        assert bracket.converged
    if isinstance(batch, Tensor):
        for row, bracket in zip(batch, together.per_sample, strict=True):
            assert bracket.lower <= truth(model, row) <= bracket.upper


@pytest.mark.slow
def test_in_train_mode_the_batch_is_one_input() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4)).double().train()
    batch = torch.randn(12, 4, dtype=F64)
    bracket = ns.lipschitz(model, batch, scope="point")
    assert len(bracket.per_sample) == 1
    jacobian = torch.autograd.functional.jacobian(lambda x: model(x), batch).reshape(48, 48)
    assert bracket.lower <= float(torch.linalg.matrix_norm(jacobian, 2)) <= bracket.upper
    assert bracket.gap <= 2e-3


class DroppingAttention(nn.Module):
    """Token ids through an attention that drops weights in train mode by an argument, as Hugging Face's do."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out, self.dropout = nn.Embedding(11, 6), nn.Linear(6, 3), nn.Dropout(0.5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        dropped = self.dropout.p if self.training else 0.0
        return self.out(nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=dropped)).mean(1)


def test_dropout_inside_of_an_attention_counts_as_off_in_train_mode() -> None:
    model, ids = DroppingAttention().train(), torch.randint(11, (4, 5))
    bracket = ns.lipschitz(model, ids, scope="point")
    without = ns.lipschitz(model.eval(), ids, scope="point")
    assert bracket.log10_upper == pytest.approx(without.log10_upper, abs=1e-3)
    assert model.dropout.p == 0.5


def test_a_witness_attains_the_lower_side() -> None:
    for model, batch in (
        (network(50, 40, 60), torch.randn(3, 50, dtype=F64)),
        (network(9, 4), torch.randn(3, 9, dtype=F64)),
    ):
        for row, bracket in zip(batch, ns.lipschitz(model, batch, scope="point").per_sample, strict=True):
            _, gain = torch.autograd.functional.jvp(lambda x, model=model: model(x[None])[0], row, bracket.witness)
            assert float(gain.norm()) >= bracket.lower


class TestUpperSides:
    @pytest.mark.one_in(8)
    @pytest.mark.parametrize("dtype", [torch.float32, F64])
    @pytest.mark.parametrize("seed", range(6))
    def test_no_upper_side_is_below_the_truth(self, seed: int, dtype: torch.dtype) -> None:
        torch.manual_seed(seed)
        widths = [(40, 40), (70, 90, 60), (64, 64, 64, 64), (33, 200, 50), (50, 60, 10), (12, 60, 50)][seed]
        model, batch = network(*widths, dtype=dtype), torch.randn(5, widths[0], dtype=dtype)
        for rtol in (1e-1, 1e-3):
            brackets = jacobian_norms(model, batch, rtol=rtol, seed=seed).per_sample
            for row, bracket in zip(batch, brackets, strict=True):
                exact = truth(model.double(), row)
                assert bracket.lower <= exact <= bracket.upper
                assert bracket.gap <= 1.1 * rtol
            model.to(dtype)

    def test_too_few_steps_leave_an_honest_bracket(self) -> None:
        model, batch = network(80, 80), torch.randn(3, 80, dtype=F64)
        brackets = jacobian_norms(model, batch, steps=4).per_sample
        for row, bracket in zip(batch, brackets, strict=True):
            assert not bracket.converged
            assert bracket.lower <= truth(model, row) <= bracket.upper
            assert bracket.gap > 0.01


class Chain(nn.Module):
    """A diagonal network: the slopes of every entry are multiplied one after another."""

    def __init__(self, *factors: object, dtype: torch.dtype = torch.float32, width: int = 40) -> None:
        super().__init__()
        made = [torch.as_tensor(f, dtype=dtype).expand(width).clone() for f in factors]
        self.factors = nn.ParameterList([nn.Parameter(f) for f in made])

    def forward(self, x: Tensor) -> Tensor:
        for factor in self.factors:
            x = x * factor
        return x


def exactly(chain: Chain) -> Fraction:
    """The largest product of slopes, in rational numbers."""
    found = []
    for entries in zip(*(factor.tolist() for factor in chain.factors), strict=True):
        value = Fraction(1)
        for entry in entries:
            value *= Fraction(entry)
        found.append(abs(value))
    return max(found)


def holds(bracket: Bracket, value: Fraction) -> bool:
    exponent = math.log10(value.numerator) - math.log10(value.denominator)
    return bracket.log10_lower - 1e-13 <= exponent <= bracket.log10_upper + 1e-13


def lone(value: float, others: float = 1.0, width: int = 40) -> list[float]:
    """One entry among others."""
    return [value] + [others] * (width - 1)


UNDERFLOWS = {
    "small": (1e-30, 1e-30),
    "small, then large": (1e-25, 1e-25, 1e25, 1e25),
    "large, then small": (1e25, 1e25, 1e-25, 1e-25),
    "out of range in one direction only": (lone(1e-30), lone(1e-30), lone(1e30), lone(1.5e30)),
    "of no use in the others": (lone(1e-38), lone(1e-38), lone(3e38), lone(3e38, 1e-3)),
    "subnormal": (3e-42, 1e3),
    "subnormal, then large": (1e-40, 1e38, 1e3),
    "very small": (1e-44, 1e-44, 1e-44),
    "large": (1e30, 1e30),
}


class Difference(nn.Module):
    """The identity, as a difference of large terms."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.factor + x) - x * self.factor


class TestRange:
    @pytest.mark.one_in(4)
    @pytest.mark.parametrize("width", [FEW - 2, FEW + 8])
    @pytest.mark.parametrize("name", UNDERFLOWS)
    def test_a_float32_model_whose_products_leave_its_range(self, name: str, width: int) -> None:
        factors = [f[:width] if isinstance(f, list) else f for f in UNDERFLOWS[name]]
        chain = Chain(*factors, width=width).eval()
        bracket = ns.lipschitz(chain, torch.zeros(2, width), scope="point")
        assert bracket.log10_lower > -math.inf
        assert all(holds(one, exactly(chain)) for one in bracket.per_sample)

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("width", [FEW - 2, FEW + 8])
    @pytest.mark.parametrize(
        "exponents", [(200, 200, -200, -200), (-200, -200, 200, 200), (-300, -300, 300, 300), (200, -200, -200, 200)]
    )
    def test_a_float64_model_is_right_or_refused(self, exponents: tuple[int, ...], width: int) -> None:
        """At zero the forward stays finite, and the backward vanishes or overflows."""
        chain = Chain(*(10.0**e for e in exponents), dtype=F64, width=width).eval()
        try:
            bracket = ns.lipschitz(chain, torch.zeros(2, width, dtype=F64), scope="point")
        except JacobianError:
            assert exponents != (200, -200, -200, 200)
        else:
            assert holds(bracket, exactly(chain))

    @pytest.mark.parametrize("width", [FEW - 2, FEW + 8])
    def test_one_direction_that_vanishes_among_others(self, width: int) -> None:
        factors = [lone(value)[:width] for value in (1e200, 1.5e200, 1e-200, 1e-200)]
        chain = Chain(*factors, dtype=F64, width=width).eval()
        with pytest.raises(JacobianError):
            ns.lipschitz(chain, torch.zeros(2, width, dtype=F64), scope="point")

    @pytest.mark.one_in(4)
    @pytest.mark.parametrize("width", [FEW - 2, FEW + 8])
    @pytest.mark.parametrize("size", [1e-250, 1e-160, 1e160, 1e250])
    def test_squares_that_leave_the_range_of_float64(self, size: float, width: int) -> None:
        chain = Chain(size, lone(2.0)[:width] + [1.0] * max(0, width - 40), dtype=F64, width=width).eval()
        bracket = ns.lipschitz(chain, torch.zeros(2, width, dtype=F64), scope="point")
        assert holds(bracket, exactly(chain))

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("width", [FEW - 2, FEW + 8])
    @pytest.mark.parametrize("factor", [2.0**24 + 2, 1e6 + 0.1, 1e7])
    def test_slopes_that_cancel_in_float32(self, factor: float, width: int) -> None:
        bracket = ns.lipschitz(Difference(factor).eval(), torch.full((2, width), 0.5), scope="point")
        assert all(one.lower <= 1.0 <= one.upper for one in bracket.per_sample)
        assert bracket.upper < 1.01

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("width", [FEW - 2, FEW + 8])
    @pytest.mark.parametrize("factor", [1.1e10, 1e12 / 3, 1e15 / 7])
    def test_slopes_that_cancel_in_float64_are_right_or_refused(self, factor: float, width: int) -> None:
        try:
            bracket = ns.lipschitz(Difference(factor).eval(), torch.full((2, width), 0.5), scope="point")
        except JacobianError:
            return
        assert all(one.lower <= 1.0 <= one.upper for one in bracket.per_sample)

    def test_a_unit_that_float32_takes_for_dead(self) -> None:
        """The bias is 1e-3 of one unit of the pre-activation: in float32 it is lost, and the unit is off."""

        class Close(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return torch.relu((x + 16777216.0) - 16777216.0 + x * 0)

        for width in (3, 40):
            bracket = ns.lipschitz(Close().eval(), torch.full((2, width), 0.25), scope="point")
            assert bracket.lower <= 1.0 <= bracket.upper


@pytest.mark.one_in(2)
@pytest.mark.parametrize("width", [20, 40])
@pytest.mark.parametrize("gap", [30.0, 50.0, 80.0])
def test_what_a_saturated_softmax_loses_is_refused(width: int, gap: float) -> None:
    """Where the largest weight rounds to 1 autograd loses most of the derivative."""
    torch.manual_seed(width)
    model = nn.Sequential(nn.Softmax(-1), nn.Linear(width, width, bias=False)).double()
    x = torch.randn(1, width).double()
    x[0, 0] = gap
    with pytest.raises(JacobianError, match="vanish"):
        ns.lipschitz(model, x, scope="point")


@pytest.mark.slow
def test_slopes_that_are_small_without_saturation_are_measured() -> None:
    layers = [layer for _ in range(30) for layer in (nn.Linear(8, 8), nn.Sigmoid())]
    found = ns.lipschitz(nn.Sequential(*layers).double(), torch.randn(1, 8).double(), scope="point")
    assert found.log10_upper < -20
    assert found.log10_upper - found.log10_lower < 1e-6


def test_a_dead_network_is_zero() -> None:
    for width in (3, 40):
        model = nn.Sequential(nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, width)).eval()
        nn.init.constant_(model[0].bias, -1e3)
        bracket = ns.lipschitz(model, torch.randn(3, 40), scope="point")
        assert bracket.upper == bracket.lower == 0.0
