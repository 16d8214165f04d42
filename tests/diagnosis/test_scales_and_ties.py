"""Skips and gains that are multiplied, scores that are not, and weights that are no longer shared."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.doctor.facts.autograd_graph import find_skip

BATCH = (torch.randn(32, 8, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 4)
TEXT = (torch.randint(30, (16, 12), generator=torch.Generator().manual_seed(0)), torch.arange(16) % 4)


def warned(model: nn.Module, data: tuple[Tensor, Tensor]) -> list[tuple[str, str]]:
    result = ns.check(model, data, loss="cross_entropy")
    assert ns.Check.from_json(result.to_json()).signal == result.signal
    return [(finding.code, finding.where) for finding in result.findings if finding.severity > ns.Severity.INFO]


@pytest.mark.parametrize(
    ("make", "factor"),
    [
        (lambda x: x + x.relu(), 1.0),
        (lambda x: 5 * (x + x.relu()), 5.0),
        (lambda x: (x + x.relu()) + x, 2.0),
        (lambda x: (x.view(-1) + x.relu().view(-1)).view_as(x) / 2, 0.5),
        (lambda x: torch.add(x.relu(), x, alpha=3) - x, 2.0),
        (lambda x: -x - x.relu(), -1.0),
        (lambda x: x + 0.2 * ((x + x.relu()) + (x + x.relu()).tanh()), 1.2),
        (lambda x: x.clone().add_(x.relu()), 1.0),
        (lambda x: 5 * x, None),  # nothing that is computed from it is added
        (lambda x: 5 * x + torch.ones(3, 3, requires_grad=True), None),
        (lambda x: x.relu(), None),
        (lambda x: x.relu() + x * x.tanh(), None),  # a product with no number
        (lambda x: x + x.mT, 1.0),  # what changes the places of entries is computed from it
    ],
)
def test_how_many_times_a_tensor_holds_another(make: Callable[[Tensor], Tensor], factor: float | None) -> None:
    given = torch.randn(3, 3, requires_grad=True).clone()
    made = make(given.exp())
    assert find_skip((made.grad_fn, 0), (given.grad_fn, 0)) is None, "an exp lies between"
    made = make(given)
    found = find_skip((made.grad_fn, made.output_nr), (given.grad_fn, given.output_nr))
    assert found == (factor if factor is None else pytest.approx(factor))


class Block(nn.Module):
    """A residual block, and what becomes of its sum."""

    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor], after: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.branch, self.after = nn.LayerNorm(16), nn.Linear(16, 16), after or nn.Identity()
        self.combine = combine

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.combine(x, F.gelu(self.branch(self.norm(x)))))


class Around(nn.Module):
    """A skip around blocks that have skips of their own, as groups of dense blocks have it."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.blocks, self.share = nn.Sequential(*(Block(torch.add) for _ in range(3))), share

    def forward(self, x: Tensor) -> Tensor:
        return x + self.share * self.blocks(x)


def stack(build: Callable[[], nn.Module], *behind: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), build(), *behind, build(), nn.LayerNorm(16), nn.Linear(16, 4))


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: Block(lambda x, branch: 5 * (x + branch)), True),
        (lambda: Block(lambda x, branch: x + branch + x), True),
        (lambda: Block(torch.add), False),
        (lambda: Block(lambda x, branch: x + 0.5 * branch), False),
        (lambda: Block(lambda x, branch: (x + branch) * math.sqrt(0.5)), False),
        (lambda: Block(lambda x, branch: 3 * x + branch, nn.LayerNorm(16)), False),  # a norm behind the sum
        (lambda: Around(0.2), False),
    ],
)
def test_a_skip_that_is_added_twice_or_multiplied(build: Callable[[], nn.Module], told: bool) -> None:
    assert warned(stack(build), BATCH) == ([("skip-scale", "1")] if told else [])


def test_a_normalizer_behind_each_sum_undoes_its_scale() -> None:
    assert warned(stack(lambda: Block(lambda x, branch: 3 * x + branch), nn.LayerNorm(16)), BATCH) == []


class Attention(nn.Module):
    """Attention by hand: the queries and keys are combined to scores by a function that gets its scale."""

    def __init__(self, combine: Callable[..., Tensor], *, holds_scale: bool = True) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.combine = combine
        if holds_scale:
            self.scale = 16**-0.5

    def forward(self, x: Tensor) -> Tensor:
        scores = self.combine(self.query(x), self.key(x), getattr(self, "scale", 1.0))
        return x + scores.softmax(-1) @ self.value(x)


class Reader(nn.Module):
    """Reads tokens by attention, and tells their class."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(30, 16), nn.Parameter(torch.randn(12, 16))
        self.attention, self.head = attention, nn.Linear(16, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.attention(self.tokens(tokens) + self.positions).mean(1))


@pytest.mark.parametrize(
    ("combine", "holds", "told"),
    [
        (lambda q, k, scale: q @ k.mT, True, True),
        (lambda q, k, scale: q @ k.mT * 1.0, True, True),
        (lambda q, k, scale: q @ k.mT * scale, True, False),
        (lambda q, k, scale: (scale * q) @ k.mT, True, False),
        (lambda q, k, scale: q @ k.mT / math.sqrt(q.shape[-1]), True, False),
        (lambda q, k, scale: torch.baddbmm(q.new_zeros(1), q, k.mT, beta=0, alpha=scale), True, False),
        (lambda q, k, scale: q @ k.mT, False, False),  # dot products that nobody meant to scale
    ],
)
def test_a_scale_that_multiplies_nothing(combine: Callable[..., Tensor], holds: bool, told: bool) -> None:
    torch.manual_seed(0)
    model = Reader(Attention(combine, holds_scale=holds))
    assert warned(model, TEXT) == ([("attention-scale", "attention")] if told else [])


def change_norms(model: nn.Module, change: Callable[[nn.LayerNorm], object], first: int = 0) -> nn.Module:
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    with torch.no_grad():
        for norm in norms[first:]:
            change(norm)
    return model


@pytest.mark.parametrize(
    ("change", "first", "told"),
    [
        (lambda norm: norm.weight.mul_(5), 0, True),
        (lambda norm: norm.bias.add_(2), 0, True),
        (lambda norm: norm.weight.mul_(0.5), 1, False),  # not all of them
        (lambda norm: norm.weight.mul_(1 + 0.1 * torch.rand(16)), 0, False),  # as training leaves them
    ],
)
def test_gains_that_do_not_begin_at_one(change: Callable[[nn.LayerNorm], object], first: int, told: bool) -> None:
    model = change_norms(stack(lambda: Block(torch.add)), change, first)
    assert warned(model, BATCH) == ([("normalizer-start", "1.norm")] if told else [])


def test_a_weight_that_is_to_be_shared_and_is_not() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 30, "n_positions": 12}
    tokens = {"input_ids": TEXT[0], "labels": TEXT[0].clone()}

    def codes(tied: bool, replaced: bool) -> list[tuple[str, str]]:
        torch.manual_seed(0)
        config = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, tie_word_embeddings=tied)
        model = transformers.GPT2LMHeadModel(config)
        if replaced:
            model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        findings = ns.check(model, tokens).findings
        return [(one.code, one.where) for one in findings if one.severity > ns.Severity.INFO]

    assert codes(tied=True, replaced=True) == [("untied-weights", "lm_head")]
    assert codes(tied=True, replaced=False) == codes(tied=False, replaced=True) == []
