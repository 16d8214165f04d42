"""Real architectures: bracketed, `+inf` with a reason, or refused with a full list; never wrong, never a crash.

What each family must give is derived from its formula, not read off the program:

* Convolutions, eval-mode BatchNorm, ReLU/ReLU6/GELU/SiLU, poolings and residual sums are Lipschitz: finite.
* LayerNorm and RMSNorm with eps > 0 are Lipschitz *and* bounded.  Behind them attention (softmax of products of
  queries and keys) and gated MLPs (products of two branches) act on a bounded set, where they are Lipschitz: finite.
  So are all pre-norm transformers, and the BERT kin, whose embeddings end in a LayerNorm.
* Attention on the raw input is not Lipschitz (Kim, Papamakarios, Mnih 2021): the post-norm `nn.TransformerEncoder`
  and bare `nn.MultiheadAttention` are `+inf`.
* Squeeze-and-excitation multiplies unbounded features by a gate that depends on them; its derivative holds a factor
  that grows with the features: `+inf` (RegNetY, EfficientNet).
* ConvNeXtV2's GRN, x * N(x) with N(x) = |x| / (mean |x| + eps), is finite behind a LayerNorm; `+inf` would be
  pessimistic but true, so it is asked for a true answer only.
"""

from __future__ import annotations

import contextlib
import functools
import math

import pytest
import torch

import normscope as ns
from normscope.core.errors import MissingRuleError

from .families import FAMILIES
from .observe import assert_same, call, gain_at, snapshot, used, value_at

FINITE, INFINITE, TRUE = "finite", "infinite", "any true answer"


# Which module the reason of a `+inf` must name; all other families are finite.
CULPRIT = {
    "regnet_y": "encoder.stages.0.layers.0",
    "efficientnet": "squeeze_excite",
    "torch_encoder_post_relu": "self_attn",
    "torch_encoder_post_gelu": "self_attn",
    "torch_attention_bare": "attention",
}

EXPECTED = dict.fromkeys(FAMILIES, FINITE) | dict.fromkeys(CULPRIT, INFINITE) | {"convnextv2": TRUE}

QUICK = {"torch_attention_bare"}
SECONDS = 60.0  # for slow machines: counted steps end every search long before
BRIEF = 0.3  # where the figure does not matter


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short search from below: what a longer one finds is tested where it is its own."""
    monkeypatch.setattr("normscope.bounds.lower.ATTACK_STEPS", 40)


def families() -> list:
    """Every family; those outside `QUICK` run in `make test-slow`."""
    return [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FAMILIES]


@functools.cache
def global_bracket(name: str) -> ns.Bracket | MissingRuleError:
    """The family's GLOBAL outcome, measured once a session."""
    model, batch, output = FAMILIES[name]()
    try:
        return ns.lipschitz(model, batch, scope="global", output=output, max_seconds=SECONDS)
    except MissingRuleError as refusal:
        return refusal


@functools.cache
def captured(name: str) -> ns.Graph:
    """The family's graph, captured once a session: graphs are immutable."""
    model, batch, output = FAMILIES[name]()
    return ns.capture(model, batch, output=output)


@functools.cache
def point_bracket(name: str) -> ns.Bracket:
    model, batch, output = FAMILIES[name]()
    return ns.lipschitz(model, batch, scope="point", output=output, max_seconds=SECONDS)


# ------------------------------------------------------------------------------------------------------------ capture


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_graph_is_the_model(name):
    """Not only at the batch it was captured on: constants may not hide a dependence on the input."""
    model, batch, output = FAMILIES[name]()
    graph = ns.capture(model, batch, output=output)
    assert len(graph.inputs) == 1
    variable = graph.inputs[0]
    with torch.no_grad():
        expected = call(model, batch, output)
        got = graph.run(variable.value)
        torch.testing.assert_close(got, expected[: len(got)], rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
        generator = torch.Generator().manual_seed(3)
        for scale in (0.1, 1.0, 30.0):
            spread = scale * float(variable.value.std())
            other = variable.value + spread * torch.randn(variable.shape, generator=generator)
            expected = value_at(model, batch, output, graph, other)
            got = graph.run(other)
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


# ------------------------------------------------------------------------------------------------------------- global


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", families())
def test_global_outcome(name):
    outcome = global_bracket(name)
    assert not isinstance(outcome, MissingRuleError), f"{name} is refused: {outcome}"
    assert outcome.scope == "global"
    assert outcome.mode == "eval"
    assert math.isfinite(outcome.log10_lower), "no lower side was found"
    assert outcome.log10_lower <= outcome.log10_upper
    if EXPECTED[name] is FINITE:
        assert math.isfinite(outcome.log10_upper), outcome.reason
        assert outcome.reason is None
    if EXPECTED[name] is INFINITE:
        assert outcome.log10_upper == math.inf
    if outcome.log10_upper == math.inf:
        assert outcome.reason
        assert CULPRIT.get(name, "") in outcome.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_no_gain_above_the_upper_side(name):
    """Secants near the batch, at the origin and far out, in float64, on every sample."""
    outcome = global_bracket(name)
    if isinstance(outcome, MissingRuleError):
        pytest.skip("refused")
    graph = captured(name).double()
    base = graph.inputs[0].value
    generator = torch.Generator().manual_seed(5)
    for scale in (0.0, 1e-3, 1.0, 10.0, 100.0):
        noise = torch.randn(base.shape, generator=generator, dtype=torch.float64)
        for point in (base + scale * base.std() * noise, scale * base.std() * noise):
            gain = gain_at(graph.run, point, steps=3)
            assert gain == 0 or math.log10(gain) <= outcome.log10_upper + 1e-6, (scale, gain)


# -------------------------------------------------------------------------------------------------------------- point


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_point_figure_is_finite_and_right(name):
    bracket = point_bracket(name)
    assert bracket.scope == "point"
    assert math.isfinite(bracket.log10_lower)
    assert math.isfinite(bracket.log10_upper)
    assert bracket.per_sample
    assert bracket.log10_lower == max(sample.log10_lower for sample in bracket.per_sample)
    if len(bracket.per_sample) < 2:
        assert any("first sample" in note for note in bracket.notes), "says which samples it speaks of"
    figure = bracket.per_sample[0]
    graph = captured(name).double()
    seen = math.log10(gain_at(graph.run, graph.inputs[0].value, steps=30))
    assert figure.log10_lower >= seen - 0.01, "a larger gain exists at this point"
    assert figure.log10_upper >= seen - 1e-4


@pytest.mark.parametrize("name", families())
def test_point_and_global_agree(name):
    """Every point is one of all inputs: its gain is below the GLOBAL upper side, and the search starts from it."""
    outcome = global_bracket(name)
    if isinstance(outcome, MissingRuleError):
        pytest.skip("refused")
    point = point_bracket(name)
    assert point.log10_lower <= outcome.log10_upper + 1e-6
    # A secant across kinks falls short of the Jacobian, and a busy machine leaves the search little time.
    assert outcome.log10_lower >= point.per_sample[0].log10_lower - 0.15


# ---------------------------------------------------------------------------------------------------- other conditions


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["resnet_basic", "vit", "bert_padded", "gpt2", "llama", "gemma", "t5_encoder"])
def test_other_dtypes(name, dtype):
    model, batch, output = FAMILIES[name]()
    model = model.to(dtype)
    if isinstance(batch, torch.Tensor):
        batch = batch.to(dtype)
    point = ns.lipschitz(model, batch, scope="point", output=output, max_seconds=SECONDS)
    assert math.isfinite(point.log10_lower)
    if name == "t5_encoder" and dtype == torch.float16:
        # In float16 alone T5 clamps its states by torch.where(isinf(states).any(), ...): a comparison on the path.
        assert ns.lipschitz(model, batch, output=output, on_missing="inf", max_seconds=BRIEF).log10_upper == math.inf
        return
    bracket = ns.lipschitz(model, batch, output=output, max_seconds=SECONDS)
    assert math.isfinite(bracket.log10_upper)
    assert bracket.log10_lower <= bracket.log10_upper
    assert all(parameter.dtype == dtype for parameter in model.parameters())
    reference = global_bracket(name)
    # Weights rounded to 8 or 11 bits move the bound by little.
    assert bracket.log10_upper == pytest.approx(reference.log10_upper, abs=0.5)


# ---------------------------------------------------------------------------------------------------------- untouched

CALLS = {
    "capture": lambda model, batch, output: ns.capture(model, batch, output=output),
    "global": lambda model, batch, output: ns.lipschitz(model, batch, output=output, max_seconds=BRIEF),
    "point": lambda model, batch, output: ns.lipschitz(model, batch, scope="point", output=output, max_seconds=BRIEF),
    "ladder": lambda model, batch, output: ns.ladder(model, batch, output=output, max_seconds=BRIEF),
}


def copies(batch):
    return batch.clone() if isinstance(batch, torch.Tensor) else {key: value.clone() for key, value in batch.items()}


@pytest.mark.slow
@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("name", FAMILIES)
def test_untouched(name, what):
    model, batch, output = FAMILIES[name]()
    used(model)
    saved, before = copies(batch), snapshot(model)
    with contextlib.suppress(MissingRuleError):
        CALLS[what](model, batch, output)
    assert_same(before, snapshot(model))
    assert_same(saved, batch)
