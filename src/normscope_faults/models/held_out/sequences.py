"""Faults of attention and recurrence."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import HELD_OUT, Case, given
from ...training import over_tokens


def on_prefixes(model: nn.Module, inputs: Tensor, following: Tensor, first: int = 6) -> Callable[[Any], float]:
    """Return a judge: how many tokens are predicted that follow prefixes, of which the model sees nothing more."""

    def judge(_: Any) -> float:
        places = range(first, inputs.shape[1], 4)
        hits = [(model(inputs[:, : t + 1])[:, -1].argmax(-1) == following[:, t]).float().mean() for t in places]
        return torch.stack(hits).mean().item()

    return judge


@HELD_OUT
def convolutions_padded_on_both_sides(broken: bool) -> Case:
    """time series | 4606 | padding="same" in a network that is to foretell the next token: each place sees what comes
    after it.
    | future-visible | | fix-mask shift-targets use-one-direction"""

    # Two convolutions over tokens.
    def convolutions(self, ids: Tensor) -> Tensor:
        x = self.words(ids).transpose(1, 2)
        for conv in (self.first, self.second):
            x = torch.relu(conv(F.pad(x, self.padding)))
        return self.head(x.transpose(1, 2))

    ids, following = draw.text(64)
    model = nets.made("Convolutions", convolutions)
    model.words = nn.Embedding(40, 24)
    model.first, model.second = nn.Conv1d(24, 48, 3), nn.Conv1d(48, 48, 3)
    model.head = nn.Linear(48, 40)
    model.padding = (1, 1) if broken else (2, 0)
    return Case((ids, following), model, over_tokens, judge=on_prefixes(model, ids, following))


class MaskedAttention(nets.SelfAttention):  # Attention with a mask that depends on the length.
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask(query.shape[2]))

    def mask(self, length: int) -> Tensor:
        """Return which keys (columns) each query (row) sees."""
        raise NotImplementedError


def replace_attention(model: nn.Module, attention: type[MaskedAttention]) -> None:
    """Put another attention into the blocks of a model."""
    for block in model.blocks:
        replacement = attention(block.attention.out.in_features, block.attention.heads, causal=False)
        replacement.load_state_dict(block.attention.state_dict())
        block.attention = replacement


@HELD_OUT
def triangle_that_shows_one_place_too_many(broken: bool) -> Case:
    """GPT | 4607 | torch.tril(mask, diagonal=1): each place sees the very token that it is to foretell.
    | future-visible | | fix-mask shift-targets"""

    class OneTooMany(MaskedAttention):
        """Sees the past, and the next place."""

        def mask(self, length: int) -> Tensor:
            return torch.ones(length, length, dtype=torch.bool).tril(1 if broken else 0)

    ids, following = draw.text(48)
    model = nets.GPT()
    replace_attention(model, OneTooMany)
    judge = on_prefixes(model, ids, following)
    return Case((ids, following), model, over_tokens, judge=judge)


@HELD_OUT
def window_of_a_single_place(broken: bool) -> Case:
    """GPT | 4608 | A sliding window with |i - j| < 1 in place of |i - j| <= width: each token sees itself alone.
    | attention-mask-wrong | | fix-mask"""

    class Window(MaskedAttention):
        """Sees the last eight places, or none."""

        def mask(self, length: int) -> Tensor:
            distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
            return (distance >= 0) & (distance < (1 if broken else 8))

    model = nets.GPT()
    replace_attention(model, Window)
    return Case(model=model, data=draw.text(), loss=over_tokens)


@HELD_OUT
def attention_over_a_bag_as_cold_as_a_thousandth(broken: bool) -> Case:
    """multiple instances | 4610 | softmax(score / 0.001) over the instances of a bag: one of them is seen, and the
    scores do not learn.
    | attention-saturated layer-scale-stands-out saturated-units | score | initialise rescale-layer scale-attention"""

    # Weighs the instances of a bag, and reads their sum.
    def bag(self, bags: Tensor) -> Tensor:
        hidden = self.body(bags)
        weights = (self.score(hidden) / (0.001 if broken else 1.0)).softmax(1)
        return self.head((weights * hidden).sum(1))

    bags = torch.randn(480, 20, 8)
    y = (bags[:, :, 0].mean(1) > 0).long()
    net = nets.made("Bag", bag)
    net.body, net.score = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 1)
    net.head = nn.Linear(16, 2)
    return Case((bags, y), net, nn.CrossEntropyLoss())


@HELD_OUT
def state_that_halves_at_every_step(broken: bool) -> Case:
    """RNN | 4611 | A leaky integrator whose rates of decay stand at 0.5 for what has to be kept over thirty steps.
    | recurrent-weights-vanish vanishing-gradient vanishing-signal | | carry-state gated-recurrence initialise
    rescale-layer"""

    class Leaky(nn.Module):
        """Channels that forget at fixed rates."""

        def __init__(self) -> None:
            super().__init__()
            self.enter, self.head = nn.Linear(4, 32), nn.Linear(32, 4)
            self.register_buffer("keep", torch.full((32,), 0.5 if broken else 0.98))

        def forward(self, series: Tensor) -> Tensor:
            state = series.new_zeros(len(series), 32)
            for step in range(series.shape[1]):
                state = self.keep * state + torch.tanh(self.enter(series[:, step]))
            return self.head(state)

    return Case(model=Leaky(), data=draw.remembered_series(64, steps=30), loss=nn.CrossEntropyLoss())


@HELD_OUT
def state_begun_anew_in_each_piece(broken: bool) -> Case:
    """GRU | 4612 | A long series is read in pieces; the state of a piece is not handed to the next one.
    | recurrent-weights-vanish vanishing-gradient | | carry-state"""

    # Reads eight steps at a time.
    def pieces(self, series: Tensor) -> Tensor:
        state = None
        for piece in series.split(8, dim=1):
            out, last = self.recurrent(piece, state)
            state = None if broken else last
        return self.head(out[:, -1])

    model = nets.made("Pieces", pieces)
    model.recurrent, model.head = nn.GRU(4, 24, batch_first=True), nn.Linear(24, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = draw.remembered_series(512, steps=16)
    return Case(data, model, nn.CrossEntropyLoss(), optimizer=optimizer)


@HELD_OUT
def attention_of_handmade_normal_matrices(broken: bool) -> Case:
    """ViT | 4203 | Matrices for queries, keys and values from torch.randn(width, width), without a factor.
    | attention-saturated branch-dominates exploding-signal layer-scale-stands-out saturated-units | blocks.{0,1}
    blocks.{0,1}.attention blocks.{0,1}.attention.out blocks.{0,1}.attention.qkv | initialise rescale-layer
    scale-attention"""
    model = nets.ViT(depth=2)
    for block in model.blocks:
        if broken:
            nn.init.normal_(block.attention.qkv.weight, std=1.0)
    x, y = draw.blob_images(48)
    x = x + 1.5 * torch.randn_like(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Case((x, y), model, "cross_entropy", optimizer=optimizer)


class HandmadeRecurrence(nn.Module):  # h = f(U x + W h), and a head that reads the last state.
    def __init__(self, features: int, width: int, outputs: int, function: nn.Module, radius: float) -> None:
        super().__init__()
        self.enter, self.recur, self.head = (
            nn.Linear(features, width),
            nn.Linear(width, width),
            nn.Linear(width, outputs),
        )
        self.function = function
        nn.init.orthogonal_(self.recur.weight, gain=radius)

    def forward(self, series: Tensor) -> Tensor:
        state = series.new_zeros(len(series), self.recur.in_features)
        for step in range(series.shape[1]):
            state = self.function(self.enter(series[:, step]) + self.recur(state))
        return self.head(state)


# Rows of a table, packed.
# fmt: off
HELD_OUT("""recurrence-without-a-bound-that-grows | RNN | 4210 | A handmade recurrence without an activation, whose
    matrix doubles states at each of 40 steps.
    | recurrent-weights-explode exploding-gradient exploding-signal missing-activation | function recur |
    add-activation add-normalizer clip-gradients gated-recurrence initialise rescale-layer""",
    lambda broken: given(draw.remembered_series(64, steps=40),
    lambda x, y: given(nn.Identity() if broken else nn.Tanh(), lambda function: Case((x, y),
    HandmadeRecurrence(4, 24, 4, function, radius=2.0 if broken else 1.0), nn.CrossEntropyLoss(),
    optimizer=partial(torch.optim.SGD, lr=0.02, momentum=0.9)))))
HELD_OUT("""recurrence-through-sigmoids | RNN | 4211 | A sigmoid in a recurrence: its slope of a quarter forgets the
    first steps long before the fortieth.
    | recurrent-weights-vanish activation-unsuitable output-constant saturated-units vanishing-gradient
    vanishing-signal | enter function recur | change-activation gated-recurrence initialise rescale-layer""",
    lambda broken: Case(draw.remembered_series(64, steps=40), HandmadeRecurrence(4, 24, 4,
    nn.Sigmoid() if broken else nn.Tanh(), radius=1.0), nn.CrossEntropyLoss()))
HELD_OUT("""sixty-steps-as-torch-draws-a-tanh-network | RNN | 4212 | nn.RNN with the weights that torch draws, for what
    happened sixty steps ago (Stack Overflow). | recurrent-weights-vanish vanishing-gradient | recurrent
    recurrent.weight_hh_l0 | gated-recurrence initialise rescale-layer""",
    lambda: Case(draw.remembered_series(64, steps=60), nets.SequenceClassifier(nn.RNN(4, 32, batch_first=True), 4),
    nn.CrossEntropyLoss(), optimizer=partial(torch.optim.Adam, lr=3e-3)),
    cure=lambda model: nn.init.orthogonal_(model.recurrent.weight_hh_l0))
