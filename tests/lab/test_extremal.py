"""Networks of Than's Theorems 6, 13 and 15: the claimed equalities over random widths and coefficients."""

import math
import random

import pytest
import torch
from torch import nn

from normscope_lab.extremal import equality6, equality13, equality15, theorem6, theorem13, theorem15

CASES = [range(start, start + 20) for start in range(0, 200, 20)]
"""Two hundred networks; `make test` draws some of them."""
TOLERANCE = 1e-10
ACTIVATIONS = (None, nn.Tanh(), nn.Sigmoid(), nn.Softplus())


def drawn(seed, least=0.0):
    """Random widths, scales from vanishing to exploding, a layer, and a generator."""
    dice = random.Random(seed)
    depth = dice.randint(2, 8)
    widths = [dice.randint(1, 9) for _ in range(depth + 1)]
    scales = [dice.choice([1.0, 10.0 ** dice.uniform(-6, 6), dice.uniform(0.1, 3.0)]) for _ in range(depth)]
    if least == 0.0 and dice.random() < 0.05:
        scales[dice.randrange(depth)] = 0.0
    return widths, scales, dice.randint(1, depth - 1), torch.Generator().manual_seed(seed)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seeds", CASES, ids=str)
def test_theorem_6_holds_from_both_sides(seeds):
    for seed in seeds:
        widths, scales, _, _ = drawn(seed)
        found = equality6(theorem6(widths, scales))
        assert found.error <= TOLERANCE, (widths, scales, found)
        exact = math.prod(scales)
        assert found.log10_claimed == (pytest.approx(math.log10(exact), abs=1e-10) if exact else -math.inf)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seeds", CASES, ids=str)
def test_theorem_13_holds_in_total_inputs_and_in_weights_once_corrected(seeds):
    wrong = 0
    for seed in seeds:
        widths, scales, layer, generator = drawn(seed)
        network = theorem13(widths, scales[layer:], layer=layer, seed=seed)
        x = torch.randn(widths[0], generator=generator, dtype=torch.float64)
        inner, outer = equality13(network, x)
        assert inner.error <= TOLERANCE, (widths, scales, layer, inner)
        assert outer.error <= TOLERANCE, (widths, scales, layer, outer)
        assert inner.log10_as_printed is None
        assert outer.log10_as_printed <= outer.log10_claimed
        wrong += outer.printed_error > 1e-3
    assert wrong >= 2  # equation 8 as printed


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seeds", CASES, ids=str)
def test_theorem_15_holds_entry_by_entry(seeds):
    for seed in seeds:
        widths, scales, layer, generator = drawn(seed, least=1e-6)
        activation, factor = ACTIVATIONS[seed % 4], 10.0 ** (seed % 5 - 2)
        network = theorem15(
            widths, scales[layer:], layer=layer, factor=factor, activation=activation, seed=seed
        )  # fmt: skip
        x = torch.randn(5, widths[0], generator=generator, dtype=torch.float64)
        goals = torch.randn(5, generator=generator, dtype=torch.float64)
        found = equality15(network, lambda value, goals=goals: (value - goals).square() / 2, x)
        assert found.error <= TOLERANCE, (widths, scales, layer, found)


def test_the_weight_constant_is_the_norm_of_the_dense_jacobian_where_all_units_are_on():
    network = theorem13([3, 4, 2, 5], [3.0, 7.0], layer=1)
    x = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
    with torch.no_grad():
        network.linear1.weight.copy_(x.expand(4, 3))

    def of_weight(weight):
        return torch.func.functional_call(network, {"linear1.weight": weight}, (x,))

    dense = torch.autograd.functional.jacobian(of_weight, network.linear1.weight.detach()).reshape(5, -1)
    _, outer = equality13(network, x)
    assert float(torch.linalg.matrix_norm(dense, ord=2)) == pytest.approx(63.0, rel=1e-12)
    assert 10**outer.log10_claimed == pytest.approx(63.0, rel=1e-12)
    assert 10**outer.log10_as_printed == pytest.approx(21.0 * math.sqrt(5.0), rel=1e-12)  # cut to two of three entries


def test_what_is_measured_is_the_network_as_it_stands():
    network = theorem6([3, 3, 3], [2.0, 5.0])
    network.linear2.weight.data[0, 0] = 6.0
    assert equality6(network).error > 0.1
    scalar = theorem15([3, 3, 3], [2.0], layer=1)
    scalar.body.linear2.weight.data *= 1.01
    found = equality15(scalar, lambda value: value, torch.rand(4, 3, dtype=torch.float64))
    assert found.error == pytest.approx(0.01 / 1.01, rel=1e-6)
