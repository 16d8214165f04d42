"""Held-out faults of recurrence and of attention."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from ...case import Case, Fault, fault
from ..parts import (
    GPT,
    SMALL_GPT2,
    SelfAttention,
    SequenceClassifier,
    ViT,
    blob_images,
    over_tokens,
    remembered_series,
    sentences,
    text,
    waves,
)

FAULTS: list[Fault] = []


# ---------------------------------------------------------------------------------------------------------- recurrence


def judge_without_the_future(model: nn.Module, ids: Tensor, targets: Tensor) -> Callable[[Tensor], float]:
    """Return a judge: the accuracy of the next token at the last place of cut texts, where no future can be read."""

    def judge(_: Tensor) -> float:
        scores = [model(ids[:, :length])[:, -1].argmax(-1) == targets[:, length - 1] for length in (8, 12, 16, 20)]
        return torch.stack(scores).float().mean().item()

    return judge


class RecurrentReader(nn.Module):
    """A GRU that predicts the next word at each place."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 32)
        self.recurrent = nn.GRU(32, 32 if both else 64, batch_first=True, bidirectional=both)
        self.head = nn.Linear(64, 40)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.recurrent(self.words(ids))[0])


@fault(
    FAULTS,
    "GRU",
    causes="future-visible",
    layers="recurrent",
    remedies="fix-mask shift-targets use-one-direction",
)
def next_word_read_from_behind(planted: bool) -> Case:
    """A bidirectional layer is to predict the next word, which its second direction has just read."""
    torch.manual_seed(101)
    x, y = text()
    model = RecurrentReader(planted)
    return Case(model=model, data=(x, y), loss=over_tokens, judge=judge_without_the_future(model, x, y))


class BothDirections(nn.Module):
    """The last states of both directions, joined."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.recurrent, self.head = nn.GRU(3, 16, batch_first=True, bidirectional=True), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = self.recurrent(x)[1]
        return self.head(state.view(len(x), -1) if self.planted else state.transpose(0, 1).flatten(1))


@fault(FAULTS, "GRU", causes="samples-mixed", layers="", remedies="fix-axis")
def states_of_both_directions_joined_by_view(planted: bool) -> Case:
    """`h_n` has shape (directions, batch, width); a view to (batch, -1) joins the states of two samples."""
    torch.manual_seed(102)
    x, y = waves(96)
    order = torch.randperm(96)
    return Case(model=BothDirections(planted), data=(x[order], y[order]), loss="cross_entropy")


class Reads(nn.Module):
    """An LSTM of which one step is read."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place
        self.recurrent, self.head = nn.LSTM(4, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, self.place])


@fault(
    FAULTS,
    "LSTM",
    causes="condition-switched-off unused-parameter no-gradient zero-weights",
    layers="recurrent recurrent.weight_hh_l0",
    remedies="read-last-step fix-axis carry-state use-parameter",
)
def first_step_read_instead_of_the_last(planted: bool) -> Case:
    """`output[:, 0]` where `output[:, -1]` was meant: the state of the first step knows nothing of the series."""
    torch.manual_seed(103)
    x, y = remembered_series(steps=12)
    return Case(model=Reads(0 if planted else -1), data=(x.flip(1), y), loss="cross_entropy")


class Leaky(nn.Module):
    """A recurrence that moves towards its new state by a part of the way."""

    def __init__(self, leak: float) -> None:
        super().__init__()
        self.leak = leak
        self.enter, self.turn, self.head = nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 32)
        for step in x.unbind(1):
            state = (1 - self.leak) * state + self.leak * torch.tanh(self.enter(step) + self.turn(state))
        return self.head(state)


@fault(
    FAULTS,
    "RNN",
    causes="vanishing-signal vanishing-gradient output-constant recurrent-weights-vanish layer-scale-stands-out",
    remedies="gated-recurrence scale-branch initialise rescale-layer carry-state add-normalizer",
)
def leak_so_small_that_nothing_enters(planted: bool) -> Case:
    """A time step of milliseconds in a recurrence whose series come in seconds."""
    torch.manual_seed(104)
    x, y = remembered_series(steps=20)
    return Case(model=Leaky(2e-4 if planted else 0.15), data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "LSTM",
    causes="recurrent-weights-explode saturated-units exploding-gradient layer-scale-stands-out",
    layers="recurrent recurrent.weight_hh_l0",
    remedies="initialise rescale-layer clip-gradients gated-recurrence",
)
def recurrent_matrix_of_an_lstm_times_forty(planted: bool) -> Case:
    """Weights of a quantised model are loaded without their factor."""
    torch.manual_seed(106)
    x, y = remembered_series(steps=30)
    model = SequenceClassifier(nn.LSTM(4, 32, batch_first=True), 4)
    if planted:
        with torch.no_grad():
            model.recurrent.weight_hh_l0.mul_(40)
    return Case(model=model, data=(x, y), loss="cross_entropy")


# ----------------------------------------------------------------------------------------------------------- attention


@fault(
    FAULTS,
    "ViT",
    causes="attention-mask-wrong output-constant condition-switched-off inputs-constant",
    layers="blocks blocks.0 blocks.1 blocks.2 blocks.0.attention blocks.1.attention blocks.2.attention "
    "token head patches",
    remedies="fix-mask",
)
def class_token_in_front_of_a_causal_mask(planted: bool) -> Case:
    """Blocks of a decoder are used for images: the class token comes first and may see nothing but itself."""
    torch.manual_seed(107)
    x, y = blob_images()
    model = ViT()
    for block in model.blocks:
        block.attention.causal = planted
    return Case(model=model, data=(x, y), loss="cross_entropy")


class RootTimes(SelfAttention):
    """Attention that multiplies its scores by a factor."""

    factor = 1.0

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return super().attend(query * self.factor, key, value)


@fault(
    FAULTS,
    "GPT",
    causes="attention-saturated exploding-gradient",
    layers="blocks blocks.0 blocks.1 blocks.0.attention blocks.1.attention "
    "blocks.0.attention.qkv blocks.1.attention.qkv",
    remedies="scale-attention rescale-layer initialise",
)
def scores_times_the_width(planted: bool) -> Case:
    """Scores are multiplied by the width where they were to be divided by its root."""
    torch.manual_seed(108)
    x, y = text()
    model = GPT(tied=False)
    for block in model.blocks:
        nn.init.normal_(block.attention.qkv.weight, std=0.2)
        block.attention.__class__ = RootTimes
        block.attention.factor = 32.0 * 8**0.5 if planted else 1.0
    return Case(model=model, data=(x, y), loss=over_tokens)


class Unmoved(SelfAttention):
    """Attention that splits heads by a view of the whole, without moving them in front of the places."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (part.reshape(batch, self.heads, length, -1) for part in self.qkv(x).chunk(3, dim=-1))
        return self.out(self.attend(query, key, value).reshape(batch, length, width))


@fault(
    FAULTS,
    "GPT",
    causes="future-visible attention-mask-wrong",
    layers="blocks blocks.0 blocks.1 blocks.0.attention blocks.1.attention",
    remedies="fix-axis fix-mask",
)
def heads_split_without_a_transpose(planted: bool) -> Case:
    """`view(batch, heads, length, -1)` cuts the text into pieces: the causal mask holds within a piece only."""
    torch.manual_seed(109)
    x, y = text()
    model = GPT()
    if planted:
        for block in model.blocks:
            block.attention.__class__ = Unmoved
    return Case(model=model, data=(x, y), loss=over_tokens, judge=judge_without_the_future(model, x, y))


class MaskedAttention(SelfAttention):
    """Attention with a mask of its own, true where a place may be seen."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length = query.shape[-2]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden[-1, -1] = True
        return F.scaled_dot_product_attention(query, key, value, attn_mask=hidden)


@fault(
    FAULTS,
    "GPT",
    causes="attention-mask-wrong future-visible",
    layers="blocks blocks.0 blocks.1 blocks.0.attention blocks.1.attention",
    remedies="fix-mask",
)
def mask_of_the_module_given_to_the_function(planted: bool) -> Case:
    """True hides in `nn.MultiheadAttention` and shows in `scaled_dot_product_attention`."""
    torch.manual_seed(110)
    x, y = text()
    model = GPT()
    if planted:
        for block in model.blocks:
            block.attention.__class__ = MaskedAttention
    return Case(model=model, data=(x, y), loss=over_tokens, judge=judge_without_the_future(model, x, y))


class Encoded(nn.Module):
    """A causal encoder with the positional code of torch's tutorial, read at its last place."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.words = nn.Embedding(50, 32)
        angles = torch.arange(96.0)[:, None] * torch.exp(-torch.arange(0, 32, 2) * (9.2 / 32))
        self.register_buffer("code", torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, None])
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + (self.code[: x.shape[0]] if self.planted else self.code[: x.shape[1]].transpose(0, 1))
        return self.head(self.encoder(x).mean(1))


@fault(
    FAULTS,
    "BERT",
    causes="samples-mixed condition-switched-off",
    remedies="fix-axis",
)
def positions_by_place_in_the_batch(planted: bool) -> Case:
    """The code of the tutorial wants (length, batch, width); with batch_first it is added by sample, not by place."""
    torch.manual_seed(111)
    x, y = sentences(96)
    return Case(model=Encoded(planted), data=(x, y), loss="cross_entropy")


class MeanOfWords(nn.Module):
    """Learned attention pooling of words."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.axis = 0 if planted else 1
        self.words, self.scores, self.head = nn.Embedding(50, 32), nn.Linear(32, 1), nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        words = self.words(ids)
        words = words + 0.5 * torch.cat([torch.zeros_like(words[:, :1]), words[:, :-1].cumsum(1)], dim=1).tanh()
        return self.head((self.scores(words).softmax(self.axis) * torch.tanh(words)).sum(1))


@fault(
    FAULTS,
    "attention",
    causes="normalizer-wrong-axis samples-mixed",
    layers="",
    remedies="fix-axis",
)
def weights_of_the_words_sum_to_one_over_texts(planted: bool) -> Case:
    """`softmax(0)` of the scores of words: they compete with the words of other texts."""
    torch.manual_seed(112)
    x, y = sentences(96)
    return Case(model=MeanOfWords(planted), data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "GPT-2",
    causes="labels-wrong loss-does-not-fit",
    remedies="shift-targets check-labels fix-targets",
)
def labels_shifted_before_the_model_shifts_them(planted: bool) -> Case:
    """Models of transformers shift the labels themselves; shifted by the user too, they are two words ahead."""
    torch.manual_seed(113)
    ids, following = text()
    model = GPT2LMHeadModel(GPT2Config(**SMALL_GPT2))

    def judge(output: object) -> float:
        return (output.logits[:, :-1].argmax(-1) == ids[:, 1:]).float().mean().item()  # type: ignore[attr-defined]

    data = {"input_ids": ids, "labels": following if planted else ids}
    return Case(model=model, data=data, objective=lambda output: output.loss, judge=judge)
