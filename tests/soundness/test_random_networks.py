"""Random networks: no bound below an attack, and the captured graph computes the model's function."""

from __future__ import annotations

import os
import random
import time

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.bounds.operators.registry import operators

from .attacker import secant, strongest
from .networks import ACTIVATIONS, Function, concatenated, linear_network, network
from .records import Trial, attempt, run_trials, write_record
from .trials import try_exactness, try_network

SEEDS = st.integers(0, 2**32 - 1)
PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate)  # a smaller seed is not a smaller network


@pytest.mark.slow
@hypothesis.settings(max_examples=6, phases=PHASES, database=None)
@hypothesis.given(SEEDS)
def test_no_attack_gets_above_a_bound(seed: int) -> None:
    try_network(network(seed), steps=30, tries=8)


@pytest.mark.slow
def test_two_thousand_networks() -> None:
    """Writes `docs/results/soundness.json` and `.md`, whatever comes, and fails on any violation."""
    count = int(os.environ.get("NORMSCOPE_NETWORKS", "2000"))
    base = int(os.environ.get("NORMSCOPE_SEED", random.SystemRandom().randrange(2**32)))
    began = time.monotonic()
    trials = list(run_trials(tried, range(base, base + count)))
    record = write_record("soundness", "Random networks against their bounds", trials, base=base, began=began)
    assert not record["violations"]
    missing = set(ACTIVATIONS) - set(record["networks_with"])
    assert not missing, f"never drawn: {missing}"


def tried(seed: int) -> Trial:
    """Try one network."""
    drawn = network(seed)
    parts = (*drawn.parts, drawn.mode, str(drawn.batch.dtype).removeprefix("torch."))
    return attempt(seed, parts, lambda: [try_network(drawn)])


@pytest.mark.slow
def test_every_activation_of_the_registry_is_drawn() -> None:
    model = concatenated([factory() for factory in ACTIVATIONS.values()], 1).eval()
    graph = ns.capture(model, torch.randn(2, 4))
    met = {node.op if isinstance(node.op, torch._ops.OpOverload) else node.op.name for node in graph}
    promised = {rule.op for rule in operators() if rule.family == "activation"}
    same = {  # never what an exported model holds: torch.export writes these as the first of each kind
        torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default, torch.ops.aten._log_softmax.default,
        torch.ops.aten.relu6.default, torch.ops.aten.selu.default, torch.ops.aten.celu.default,
        torch.ops.aten.threshold.default, torch.ops.aten.log_sigmoid.default,
    }  # fmt: skip
    assert promised - met <= same


class TestExactness:
    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(8))
    def test_linear_networks_within_one_percent(self, seed: int) -> None:
        try_exactness(linear_network(seed))

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize(
        "model",
        [
            nn.Sequential(nn.Flatten(), nn.Unflatten(1, (3, 4)), nn.Dropout(0.5)),
            Function(lambda x: x.permute(0, 2, 1).flip(1).roll(1, 2).reshape(len(x), 12)[:, torch.arange(12) * 5 % 12]),
            Function(lambda x: torch.cat(x.chunk(3, 1)[::-1], 1)),
            Function(lambda x: -x.detach()),
        ],
        ids=["reshapes", "shuffle", "chunks", "negative"],
    )
    def test_permutations_are_exactly_one(self, model: nn.Module) -> None:
        bracket = ns.lipschitz(model.eval(), torch.randn(2, 3, 4), max_seconds=1)
        assert 0.0 <= bracket.log10_upper < 1e-12
        assert bracket.lower == pytest.approx(1.0, abs=1e-6)
        assert bracket.lower <= 1.0


class TestAttacker:
    """The attacker itself: it finds what is there, and claims nothing that is not."""

    def test_it_finds_the_norm_of_a_matrix(self) -> None:
        weight = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        sigma = float(torch.linalg.matrix_norm(weight, 2))
        found, _ = strongest(lambda x: weight @ x, torch.ones(7, dtype=torch.float64), seed=0)
        assert (1 - 1e-6) * sigma < found <= sigma

    def test_it_finds_the_vanishing_variance_of_a_layer_norm(self) -> None:
        norm = nn.LayerNorm(6, eps=1e-4, elementwise_affine=False).double()
        found, _ = strongest(norm, torch.randn(6, dtype=torch.float64), seed=0)
        assert 0.9 * 100 < found <= 100

    def test_a_kink_is_not_taken_for_a_slope(self) -> None:
        def nothing(x: torch.Tensor) -> torch.Tensor:
            return x - (x.relu() - (-x).relu())

        assert strongest(nothing, torch.zeros(4, dtype=torch.float64), seed=0)[0] == 0.0

    def test_rounding_is_not_taken_for_a_slope(self) -> None:
        u = torch.full((3,), 1e6, dtype=torch.float64)
        assert secant(lambda x: (x + 1e9) - 1e9 - x, u, u + 1e-9) == 0.0

    def test_rounding_inside_a_function_that_hardly_moves_is_not_taken_for_a_slope(self) -> None:
        """GELU adds 1 to an error function near -1: its values there are multiples of 3e-16."""
        u = torch.tensor([-5.5], dtype=torch.float64, requires_grad=True)
        slope = float(torch.autograd.grad(F.gelu(u), u)[0].abs())
        moved = [secant(F.gelu, u.detach() + k * 1e-9, u.detach() + (k + 3) * 1e-9) for k in range(200)]
        assert max(moved) <= slope
