"""Does the suite bite? Bugs are planted one by one; each must be caught by trials that pass without it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope.bounds import certificate, segments
from normscope.bounds.linalg import conv_norm, folding, operator_norms
from normscope.bounds.linalg.convolution_map import Convolution
from normscope.bounds.linalg.linear_map import Diagonal
from normscope.bounds.linalg.torus import Symbol
from normscope.bounds.operators import convolution as convolution_rules
from normscope.bounds.operators import normalization, registry
from normscope.bounds.operators.effects import Gain, Linear, Range
from normscope.bounds.trial import try_example
from normscope.core.bracket import Evidence
from normscope.core.errors import SoundnessError
from normscope.core.rounding import ONE, Upper, largest
from normscope.theory import activations

from ..linalg.cases import Case, random_case
from ..linalg.test_convolutions import check, write_nothing_out
from .networks import Function, Network, Residual, concatenated, linear_network
from .planting import around, replacing
from .trials import try_exactness, try_network

aten = torch.ops.aten
Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """A mistake, and the part of the suite that must see it."""

    name: str
    plant: Callable[[Patch], None]
    trial: Callable[[], None]
    prepare: Callable[[Patch], None] = lambda patch: None


def rule_of(op: Any) -> Callable[[], None]:
    """The rule's own examples, as `tests/rules` runs them."""

    def trial() -> None:
        for example in registry._OPERATORS[op].examples:
            for seed in range(2):
                try_example(example, seed=seed, steps=100)

    return trial


def net(build: Callable[[], nn.Module], *shape: int, scale: float = 1.0) -> Callable[[], None]:
    """A small network, as `test_random_networks` runs them."""

    def trial() -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = build().eval()
            batch = scale * torch.randn(shape)
        try_network(Network(0, model, batch, "eval", ()))

    return trial


def linear_nets() -> None:
    for seed in range(30):
        try_exactness(linear_network(seed))


def convolutions() -> None:
    for seed in range(60):
        check(random_case(seed))


def small_circular() -> None:
    """Kernels wider than the ring they act on."""
    torch.manual_seed(0)
    for size in (2, 3, 4):
        check(Case(nn.Conv1d(2, 2, 5, padding=2, padding_mode="circular", bias=False), (2, size)))


def replaced(op: Any, change: Callable[[Any, Any], Any]) -> Callable[[Patch], None]:
    """Plant a change in what the rule of an operator returns."""

    def plant(patch: Patch) -> None:
        found = registry._OPERATORS[op]

        def function(node: Any, operands: Any) -> Any:
            return change(node, found.effect(node, operands))

        patch.setitem(registry._OPERATORS, op, dataclasses.replace(found, effect=function))

    return plant


def number(value: float) -> Upper:
    return Upper.of(value, Evidence.NUMERICAL)


@around(conv_norm, "Kernel")
def crops_the_kernel(real: Any, conv: Convolution, strides: Any) -> Any:
    weight = conv.weight.clone()
    for dim, axis in enumerate(conv.axes, start=2):
        weight.narrow(dim, min(axis.size, axis.kernel), max(axis.kernel - axis.size, 0)).zero_()
    return real(conv._with_weight(weight, 0.0), strides)


@around(Symbol, "__init__")
def stride_counted_twice(real: Any, self: Symbol, kernel: Any, torus: Any) -> None:
    real(self, kernel, torus)
    self.factor /= math.sqrt(math.prod(ring.stride for ring in torus))


@around(conv_norm, "rings")
def padding_forgotten(real: Any, axis: Any, mode: str) -> Any:
    size = axis.size + -axis.size % axis.stride
    return [ring if ring.rigid else dataclasses.replace(ring, size=size) for ring in real(axis, mode)]


@around(Symbol, "gram")
def first_group_only(real: Any, self: Symbol, grid: Any) -> Any:
    whole = real(self, grid)
    groups = self.kernel.groups
    blocks = whole.reshape(-1, groups, *whole.shape[1:])
    return blocks[:, :1].expand(-1, groups, -1, -1).reshape(whole.shape)


@around(convolution_rules, "_convolution")
def groups_multiplied(real: Any, node: Any, *, transposed: bool) -> Any:
    effect = real(node, transposed=transposed)
    scale = Diagonal(torch.tensor(float(node.bound()["groups"]), dtype=torch.float64), effect.maps[0].out_shape)
    return Linear(maps=(folding.compose(scale, effect.maps[0]),))


@around(normalization, "batch_norm_eval")
def eps_dropped_from_batch_norm(real, weight, var, eps):
    return real(weight, var, 0.0)


eps_in_a_variance_of_one = replacing(
    normalization, "rms_norm_global", lambda weight, entries, eps: number((1 + eps) ** -0.5)
)


def sums_as_maxima(patch: Patch) -> None:
    patch.setattr(segments, "total", largest)
    patch.setattr(segments, "root_sum_squares", largest)


skip_as_product = replacing(segments, "total", lambda bounds: ONE.times(*bounds))


@around(certificate.ClosedForm, "through")
def wrong_middle(real: Any, self: Any, weight: Any, slope: Any) -> Any:
    half = (slope[1] - slope[0]) / 2
    return real(self, weight, (-half, half))


def swapped(node: Any, effect: Any) -> Any:
    return dataclasses.replace(effect, gains=effect.gains[::-1]) if isinstance(effect, Gain) else effect


def no_root_of_tokens(node: Any, effect: Any) -> Any:
    if not isinstance(effect, Gain):
        return effect
    root = math.sqrt(node.operands[-1].shape[-2] if len(node.operands) else 1)
    return dataclasses.replace(effect, gains=(*effect.gains[:-1], number(10 ** effect.gains[-1].log10 / root)))


@around(normalization, "_range")
def range_without_root(real: Any, node: Any, found: Any, entries: int) -> Range:
    size, root = real(node, found, entries), math.sqrt(entries)
    return Range(size.entry / root, size.row / root)


def subtracted(patch: Patch) -> None:
    def minus(a: Any, b: Any) -> Any:
        return folding.add(a, folding.compose(Diagonal(torch.tensor(-1.0, dtype=torch.float64), b.out_shape), b))

    patch.setattr(segments, "add", minus)


def positive_mlp() -> nn.Module:
    """Weights and biases above zero: on positive inputs ReLU does nothing and the product is attained."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    return model


def gate() -> nn.Module:
    return Function(lambda x: x.tanh() * (10.0 * torch.sigmoid(0.01 * x)))


def focused() -> nn.Module:
    """Every query looks at the same token: sqrt(tokens) in the values."""
    query, key = torch.ones(1, 1, 4, 2), torch.zeros(1, 1, 4, 2)
    key[0, 0, 0] = 60.0
    return Function(lambda x: F.scaled_dot_product_attention(query.to(x), key.to(x), x))


def gelu_slope_one(patch: Patch) -> None:
    tame = dataclasses.replace(activations.ACTIVATIONS["gelu"], slope=(0.0, 1.0))
    patch.setattr(activations, "gelu", lambda approximate="none": tame)


shrunk_centring = replacing(
    operator_norms, "centering_bound", lambda linear: operator_norms.NormBound(number(1 - 1 / linear.in_shape[-1]))
)


def gains_of(op: Any, value: float) -> Callable[[Patch], None]:
    return replaced(op, lambda node, effect: dataclasses.replace(effect, gains=(number(value),) * len(effect.gains)))


def two_branches() -> nn.Module:
    return concatenated([nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Sequential(nn.Linear(3, 3), nn.Tanh())], 1)


def skip() -> nn.Module:
    return Residual(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)), nn.Identity())


layer_norm, attend = aten.layer_norm.default, aten.scaled_dot_product_attention.default


BUGS = [
    Bug("FFT crops the kernel", crops_the_kernel, small_circular),
    Bug("stride counted twice, 1/sqrt(stride)", stride_counted_twice, convolutions, write_nothing_out),
    Bug("padding forgotten: the torus is too small", padding_forgotten, convolutions, write_nothing_out),
    Bug("only the first group is looked at", first_group_only, convolutions, write_nothing_out),
    Bug("groups multiplied", groups_multiplied, linear_nets),
    Bug("eps dropped from eval-mode BatchNorm", eps_dropped_from_batch_norm, linear_nets),
    Bug("eps in a variance of 1", eps_in_a_variance_of_one, rule_of(layer_norm)),
    Bug("concatenation as a maximum", sums_as_maxima, net(two_branches, 2, 3)),
    Bug("skip as a product", skip_as_product, net(skip, 2, 3)),
    Bug("GELU slope 1", gelu_slope_one, rule_of(aten.gelu.default)),
    Bug(
        "overlapping max-pool 1",
        replaced(aten.max_pool2d.default, lambda node, effect: dataclasses.replace(effect, gains=(ONE,))),
        rule_of(aten.max_pool2d.default),
    ),
    Bug("tanh on the wrong side of a product", replaced(aten.mul.Tensor, swapped), net(gate, 2, 3)),
    Bug("certificate with the wrong middle", wrong_middle, net(positive_mlp, 2, 4, scale=0.1)),
    Bug("centring counted as 1 - 1/n", shrunk_centring, net(lambda: nn.LayerNorm(3, 0.1, False), 2, 3)),
    Bug(
        "copies of an entry forgotten",
        lambda patch: patch.setattr(operator_norms, "reindex_bound", lambda linear: operator_norms.NormBound(ONE)),
        rule_of(aten.expand.default),
    ),
    Bug("attention without sqrt(tokens)", replaced(attend, no_root_of_tokens), net(focused, 1, 1, 4, 2)),
    Bug(
        "range of a LayerNorm without sqrt(n)",
        range_without_root,
        net(lambda: nn.Sequential(nn.LayerNorm(8), nn.Softplus()), 2, 8),
    ),
    Bug("parallel paths subtracted", subtracted, linear_nets),
    Bug("softmax norm 1/4", gains_of(aten.softmax.int, 0.25), rule_of(aten.softmax.int)),
    Bug("tokens move nothing in attention", gains_of(attend, 1e-9), rule_of(attend)),
]


@pytest.fixture
def fresh():
    """Maps keep their norms, and centring maps are shared: forget these around a planted bug."""
    normalization.centering.cache_clear()
    yield normalization.centering.cache_clear
    normalization.centering.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug, fresh, monkeypatch) -> None:
    bug.prepare(monkeypatch)
    bug.trial()
    fresh()
    bug.plant(monkeypatch)
    with pytest.raises((SoundnessError, AssertionError)):
        bug.trial()
