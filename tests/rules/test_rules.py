"""Every rule on trial, and the registry around them."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.bounds.bounds_by_method import upper_sides
from normscope.bounds.graph.samples import entrywise
from normscope.bounds.graph.traits import TRAITS
from normscope.bounds.operators import registry
from normscope.bounds.operators.effects import Elementwise, Gain
from normscope.bounds.operators.registry import Operator, forget, operators
from normscope.bounds.traced_network import TracedNetwork
from normscope.bounds.trial import try_example
from normscope.core.errors import MissingRuleError, SoundnessError
from normscope.core.rounding import Upper

from ..soundness.networks import Function

aten = torch.ops.aten
BY_FUNCTION: dict[str, list[Operator]] = {}
for _rule in operators():  # one function serves many operators, with the same examples
    if _rule.examples:
        _key = next(
            (k for k, v in BY_FUNCTION.items() if v[0].examples == _rule.examples), f"{_rule.family}-{_rule.name}"
        )
        BY_FUNCTION.setdefault(_key, []).append(_rule)


@pytest.mark.slow
@pytest.mark.parametrize("key", BY_FUNCTION)
def test_no_attack_gets_above_a_bound(key: str) -> None:
    """Every example is sound, an infinite bound says why, and the examples meet an operator of the rule."""
    met = set()
    for position, example in enumerate(BY_FUNCTION[key][0].examples):
        trial = try_example(example, seed=position, steps=10)
        assert {"product", "folded", "closed-form", "best"} <= set(trial.log10_uppers)
        met.update(trial.operators)
        if trial.log10_uppers["best"] == math.inf:
            assert " in " in (trial.reason or "")
    untried = {rule.op for rule in BY_FUNCTION[key]} - met
    assert not untried, f"no example meets {untried}"


@pytest.mark.slow
@pytest.mark.parametrize("key", BY_FUNCTION)
def test_no_long_attack_gets_above_a_bound(key: str) -> None:
    for example in BY_FUNCTION[key][0].examples:
        for seed in range(100, 105):
            trial = try_example(example, seed=seed, steps=400)
            assert trial.log10_lower <= min(trial.log10_uppers.values())


def test_every_rule_is_documented_and_has_examples() -> None:
    assert [rule.name for rule in operators() if not rule.examples] == ["known"]
    assert all(rule.summary and "\n" not in rule.summary for rule in operators())
    families = {rule.family for rule in operators()}
    promised = {"linear", "convolution", "activation", "normalization", "pooling", "attention", "arithmetic", "shape"}
    assert promised <= families


def test_a_bound_below_the_truth_is_caught(monkeypatch) -> None:
    """The trial itself can fail: a rule that promises too little raises."""
    found = registry._OPERATORS[aten.relu.default]
    halved = dataclasses.replace(found, effect=lambda node, operands: Elementwise(slope=(0.0, 0.5)))
    monkeypatch.setitem(registry._OPERATORS, aten.relu.default, halved)
    with pytest.raises(SoundnessError, match="below the attack"):
        try_example(found.examples[0], steps=50)
    monkeypatch.undo()
    assert try_example(found.examples[0], steps=50).log10_uppers["best"] == 0.0


class TestRegistry:
    def test_duplicates_raise(self) -> None:
        with pytest.raises(ValueError, match=r"aten\.relu\.default has a rule already \(family activation\)"):
            ns.rule(aten.relu.default, examples=[(F.relu, (2,))])(lambda node, operands: None)

    def test_a_rule_without_examples_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one example"):
            ns.rule(aten.special_bessel_j0.default, examples=[])(lambda node, operands: None)
        assert aten.special_bessel_j0.default not in {rule.op for rule in operators()}


@torch.library.custom_op("normscope_tests::bent", mutates_args=())
def bent_op(x: torch.Tensor, slope: float) -> torch.Tensor:
    return torch.where(x > 0, x, slope * x)


@bent_op.register_fake
def _(x, slope):
    return torch.empty_like(x)


bent_op.register_autograd(
    lambda ctx, grad: (torch.where(ctx.saved_tensors[0] > 0, grad, ctx.slope * grad), None),
    setup_context=lambda ctx, inputs, output: (
        ctx.save_for_backward(inputs[0]),
        setattr(ctx, "slope", inputs[1]),
    ),
)


@pytest.fixture
def bent():
    """A user's rule for a custom operator, removed afterwards."""
    op = torch.ops.normscope_tests.bent.default
    examples = [(lambda x: bent_op(x, 3.0), (2, 4)), (lambda x: bent_op(x, -0.5), (2, 4))]

    @ns.rule(op, examples=examples)
    def bent_rule(node, operands):
        """Leaky ReLU by another name."""
        slope = node.bound()["slope"]
        return Elementwise(slope=(min(slope, 1.0), max(slope, 1.0)))

    yield examples
    if op in {rule.op for rule in operators()}:
        forget(op)


class TestUsersRule:
    def test_it_bounds_a_model_with_a_custom_operator(self, bent) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), Function(lambda x: bent_op(x, 3.0)), nn.Linear(4, 2)).eval()
        bracket = ns.lipschitz(model, torch.randn(2, 3), max_seconds=2)
        norms = [float(torch.linalg.matrix_norm(model[i].weight.detach().double(), 2)) for i in (0, 2)]
        assert bracket.lower <= bracket.upper <= 3.0 * norms[0] * norms[1] * (1 + 1e-2)
        assert bracket.lower > 0.1 * bracket.upper

    def test_how_it_treats_samples_is_not_known_unless_its_rule_says_so(self, bent) -> None:
        op, batch = torch.ops.normscope_tests.bent.default, torch.randn(4, 3)
        model = Function(lambda x: bent_op(x, 3.0)).eval()
        bracket = ns.lipschitz(model, batch)
        assert bracket.input_shape == (4, 3)
        assert re.match(
            r"nothing is known of how normscope_tests\.bent\.default in .* treats samples \(`samples=` of its "
            r"`ns\.rule` can say\): the whole batch is measured as one input",
            bracket.notes[0],
        )
        forget(op)
        ns.rule(op, examples=bent, samples=entrywise)(lambda node, operands: Elementwise(slope=(-0.5, 3.0)))
        assert ns.lipschitz(model, batch).input_shape == (1, 3)
        TRAITS.pop(op)


class Spread(nn.Module):
    """Two operators without a rule, one of them in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Middle(), Middle()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return torch.sinc(self.second(self.linear(self.first(x))))


class Middle(nn.Module):
    def forward(self, x):
        return x / 2 + 0.5 * x.median(1, keepdim=True).values  # line named in the error


class TestMissing:
    def test_one_error_lists_every_operator_with_count_module_and_line(self) -> None:
        with pytest.raises(MissingRuleError) as caught:
            ns.lipschitz(Spread(), torch.randn(2, 3))
        lines = {line.split(",")[0]: line for line in caught.value.missing}
        assert len(lines) == 2
        (middle,) = [line for line in lines.values() if "median" in line]
        assert "2 time(s)" in middle
        assert "first" in middle
        assert "second" in middle
        number = re.search(r"test_rules\.py:(\d+)", middle)
        assert number, middle
        with open(__file__) as source:
            assert "line named in the error" in source.read().splitlines()[int(number[1]) - 1]
        (sinc,) = [line for line in lines.values() if "sinc" in line]
        assert "1 time(s)" in sinc
        assert "(top level)" in sinc
        assert all(line in str(caught.value) for line in caught.value.missing)
        for way in ("@normscope.rule", "known=", 'on_missing="inf"'):
            assert way in str(caught.value)

    @pytest.mark.slow
    def test_on_missing_inf_goes_on_with_the_reason(self) -> None:
        bracket = ns.lipschitz(Spread(), torch.randn(2, 3), on_missing="inf", max_seconds=1)
        assert bracket.upper == math.inf
        assert bracket.lower > 0
        assert "no rule for" in bracket.reason
        assert "sinc" in bracket.reason


class TestKnown:
    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_given_constant_fills_the_gap(self, dtype) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), Middle(), nn.Linear(3, 2)).eval().to(dtype)
        bracket = ns.lipschitz(model, torch.randn(2, 3, dtype=dtype), known={"1": 2.0}, max_seconds=1)
        norms = [float(torch.linalg.matrix_norm(model[i].weight.detach().double(), 2)) for i in (0, 2)]
        assert bracket.upper == pytest.approx(2.0 * norms[0] * norms[1], rel=1e-2)
        assert 0 < bracket.lower <= bracket.upper
        assert any("taken as given" in note for note in bracket.notes)

    def test_a_constant_below_the_truth_is_found_out(self) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval()
        with pytest.raises(SoundnessError):
            ns.lipschitz(model, torch.randn(2, 3), known={"0": 1e-3})


class TestEffects:
    """What a rule may return, and how the bounds read it."""

    def bound(self, effect, function=lambda x: bent_op(x, 0.5), shape=(1, 3)):
        op = torch.ops.normscope_tests.bent.default
        ns.rule(op, examples=[(function, shape)])(lambda node, operands: effect)
        try:
            return upper_sides(TracedNetwork.of(Function(function), torch.randn(shape)))["best"]
        finally:
            forget(op)

    def test_changes_add_up_unless_they_are_joint(self) -> None:
        def twice(x):
            return bent_op(x, 0.5) + x

        assert self.bound(Gain(gains=(Upper.of(4.0, ns.Evidence.PROVEN),)), twice).upper == pytest.approx(5.0)

    def test_evidence_is_the_weakest(self) -> None:
        assert self.bound(Gain(gains=(Upper.of(4.0, ns.Evidence.SAMPLED),))).evidence is ns.Evidence.SAMPLED
