"""The open half, faults of attention and recurrence."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    GPT,
    SelfAttention,
    SentenceEncoder,
    SequenceClassifier,
    ViT,
    accuracy,
    blob_images,
    over_tokens,
    remembered_series,
    sentences,
    text,
    waves,
)

FAULTS: list[Fault] = []
plant = partial(fault, FAULTS)
RECURRENT = "recurrent recurrent.weight_hh_l0"


def with_radius(recurrent: nn.RNN, radius: float) -> nn.RNN:
    """Give the recurrent weight an orthogonal matrix times a radius."""
    nn.init.orthogonal_(recurrent.weight_hh_l0, gain=radius)
    return recurrent


@plant(
    "RNN",
    layers=RECURRENT,
    causes="recurrent-weights-explode exploding-gradient exploding-signal saturated-units",
    remedies="initialise gated-recurrence rescale-layer clip-gradients",
)
def recurrent_radius_of_three(broken: bool) -> Case:
    """Recurrent weights drawn at 1 instead of 1 / sqrt(width)."""
    torch.manual_seed(601)
    x, y = remembered_series()
    rnn = with_radius(nn.RNN(4, 24, batch_first=True), 3.0 if broken else 1.0)
    return Case(model=SequenceClassifier(rnn, 4), data=(x, y), loss="cross_entropy")


@plant(
    "RNN",
    layers=RECURRENT,
    causes="recurrent-weights-explode exploding-gradient exploding-signal",
    remedies="initialise gated-recurrence rescale-layer clip-gradients change-activation",
)
def rectified_recurrence_grows(broken: bool) -> Case:
    """A recurrent layer of ReLUs whose weight grows over the steps."""
    torch.manual_seed(602)
    x, y = waves()
    rnn = nn.RNN(3, 24, nonlinearity="relu", batch_first=True)
    rnn.weight_hh_l0.data.copy_((1.5 if broken else 1.0) * torch.eye(24))
    return Case(model=SequenceClassifier(rnn, 3), data=(x, y), loss="cross_entropy")


@plant(
    "RNN",
    layers=RECURRENT,
    causes="recurrent-weights-vanish vanishing-gradient",
    remedies="initialise gated-recurrence rescale-layer",
)
def recurrent_radius_of_a_hundredth(broken: bool) -> Case:
    """normal_(std=0.001) for every weight, the recurrent one too."""
    torch.manual_seed(603)
    x, y = remembered_series()
    rnn = with_radius(nn.RNN(4, 24, batch_first=True), 0.01 if broken else 1.0)
    return Case(model=SequenceClassifier(rnn, 4), data=(x, y), loss="cross_entropy")


@plant(
    "LSTM",
    layers="recurrent recurrent.bias_ih_l0 recurrent.bias_hh_l0",
    causes="recurrent-weights-vanish saturated-units",
    remedies="forget-bias reset-bias initialise",
)
def sign_of_the_forget_bias(broken: bool) -> Case:
    """The sign of the forget bias is wrong."""
    torch.manual_seed(604)
    x, y = remembered_series(steps=12)
    lstm = nn.LSTM(4, 24, batch_first=True)
    lstm.bias_ih_l0.data[24:48] = -10.0 if broken else 2.0
    return Case(model=SequenceClassifier(lstm, 4), data=(x, y), loss="cross_entropy")


@plant(
    "GRU",
    layers="recurrent recurrent.bias_ih_l0 recurrent.bias_hh_l0",
    causes="recurrent-weights-vanish saturated-units vanishing-signal vanishing-gradient output-constant",
    remedies="reset-bias forget-bias initialise",
)
def update_gate_never_opens(broken: bool) -> Case:
    """A bias of 10 on the update gate: the state never changes."""
    torch.manual_seed(605)
    x, y = waves()
    gru = nn.GRU(3, 24, batch_first=True)
    if broken:
        gru.bias_ih_l0.data[24:48] = 12.0
    return Case(model=SequenceClassifier(gru, 3), data=(x, y), loss="cross_entropy")


class RawAttention(SelfAttention):
    """Attention written out, without the division by the root of the width."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1)
        if self.causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -1e9)
        return scores.softmax(-1) @ value


@plant(
    "GPT",
    layers="blocks.0.attention blocks.1.attention blocks.0.attention.qkv blocks.1.attention.qkv",
    causes="attention-saturated saturated-units",
    remedies="scale-attention rescale-layer initialise",
)
def scores_without_the_root(broken: bool) -> Case:
    """The division by sqrt(d) is missing, and the weights are drawn at 0.5."""
    torch.manual_seed(606)
    ids, following = text()
    model = GPT(depth=2)
    if broken:
        for block in model.blocks:
            block.attention.__class__ = RawAttention
            block.attention.qkv.weight.data[:64] *= 40
    return Case(model=model, data=(ids, following), loss=over_tokens)


@plant(
    "ViT",
    layers="blocks.1.attention blocks.1.attention.qkv",
    causes="attention-saturated layer-scale-stands-out saturated-units",
    remedies="scale-attention rescale-layer initialise",
)
def one_block_looks_at_one_place(broken: bool) -> Case:
    """The logits of one block have grown, as in large ViTs at a high learning rate."""
    torch.manual_seed(607)
    x, y = blob_images(96)
    model = ViT(depth=2)
    if broken:
        model.blocks[1].attention.qkv.weight.data[:64] *= 60
    return Case(model=model, data=(x, y), loss="cross_entropy")


class PaddedEncoder(SentenceEncoder):
    """A sentence encoder that reads its first token and hides the padding (token 0), or all but the padding."""

    inverted = False

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.positions(torch.arange(ids.shape[1])))
        padding = ids == 0
        x = self.encoder(x, src_key_padding_mask=~padding if self.inverted else padding)
        return self.head(x[:, 0])


@plant(
    "BERT",
    layers="encoder encoder.layers.0 encoder.layers.1 encoder.layers.0.self_attn encoder.layers.1.self_attn",
    causes="attention-mask-wrong output-constant condition-switched-off",
    remedies="fix-mask",
)
def padding_mask_inverted(broken: bool) -> Case:
    """In PyTorch's key_padding_mask True means hidden, elsewhere it means visible."""
    torch.manual_seed(610)
    ids, y = sentences(length=8)
    model = PaddedEncoder(length=13)
    model.inverted = broken
    return Case(model=model, data=(F.pad(F.pad(ids, (1, 0), value=1), (0, 4)), y), loss="cross_entropy")


class MaskedGPT(GPT):
    """A GPT whose attention gets its mask as a tensor."""

    def __init__(self, strict: bool) -> None:
        super().__init__()
        for block in self.blocks:
            block.attention.__class__ = StrictAttention
            block.attention.diagonal = -1 if strict else 0


class StrictAttention(SelfAttention):
    """Causal attention by a mask that may hide the diagonal too."""

    diagonal = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        visible = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(self.diagonal)
        scores = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
        return scores.softmax(-1) @ value


@plant("GPT", layers="blocks.0.attention", causes="not-finite attention-mask-wrong", remedies="fix-mask guard-domain")
def mask_hides_the_diagonal(broken: bool) -> Case:
    """tril(-1): the first token sees nothing, and the softmax of nothing is NaN."""
    torch.manual_seed(611)
    ids, following = text()
    return Case(model=MaskedGPT(broken), data=(ids, following), loss=over_tokens)


class CrossAttention(nn.Module):
    """Answers questions about a memory by nn.MultiheadAttention, with a mask for the memory."""

    def __init__(self, inverted: bool) -> None:
        super().__init__()
        self.inverted = inverted
        self.query, self.memory = nn.Embedding(4, 16), nn.Linear(8, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, question: Tensor, memory: Tensor, filled: Tensor) -> Tensor:
        hidden = filled if self.inverted else ~filled
        x = self.memory(memory)
        return self.head(self.attention(self.query(question)[:, None], x, x, key_padding_mask=hidden)[0][:, 0])


def questions(count: int = 96) -> tuple[dict[str, Tensor], Tensor]:
    """Return questions, memories of four keys with their answers and two empty places, and the right answers."""
    question, answers = torch.randint(4, (count,)), torch.randint(3, (count, 4))
    memory = torch.zeros(count, 6, 8)
    memory[:, :4, :4], memory[:, :4, 4:7] = torch.eye(4), F.one_hot(answers, 3).float()
    filled = torch.arange(6).expand(count, 6) < 4
    return {"question": question, "memory": memory, "filled": filled}, answers[torch.arange(count), question]


@plant(
    "cross-attention",
    layers="attention",
    causes="attention-mask-wrong output-constant condition-switched-off",
    remedies="fix-mask",
)
def memory_mask_inverted(broken: bool) -> Case:
    """A mask of what is filled handed over as a mask of what is to be hidden."""
    torch.manual_seed(612)
    inputs, y = questions()
    return Case(model=CrossAttention(broken), data=(inputs, y), loss="cross_entropy", judge=accuracy(y))


@plant(
    "cross-attention",
    layers="attention attention.in_proj_weight",
    causes="attention-saturated layer-scale-stands-out saturated-units",
    remedies="scale-attention rescale-layer initialise restore-weights",
)
def converted_queries_too_large(broken: bool) -> Case:
    """Weights of queries and keys that were multiplied by their scale twice when they were converted."""
    torch.manual_seed(608)
    inputs, y = questions()
    model = CrossAttention(inverted=False)
    if broken:
        model.attention.in_proj_weight.data[:32] *= 60
    return Case(model=model, data=inputs, objective=lambda output: F.cross_entropy(output, y), judge=accuracy(y))


class ScaledWords(SentenceEncoder):
    """A sentence encoder without the norm on its embeddings, in which positions are sines."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        del self.norm, self.positions
        self.factor = factor

    def forward(self, ids: Tensor) -> Tensor:
        steps = torch.arange(ids.shape[1])[:, None] / 10000 ** (torch.arange(0, 32, 2) / 32)
        places = torch.cat([steps.sin(), steps.cos()], dim=1)
        return self.head(self.encoder(self.factor * self.words(ids) + places).mean(1))


@plant(
    "BERT",
    layers="words",
    causes="branch-dominates layer-scale-stands-out exploding-signal attention-saturated",
    remedies="rescale-layer initialise scale-branch scale-attention add-normalizer",
)
def words_drown_the_positions(broken: bool) -> Case:
    """Embeddings multiplied by the width instead of its root, and drawn at 10."""
    torch.manual_seed(613)
    ids, y = sentences(128, length=6, vocabulary=12)
    return Case(model=ScaledWords(320.0 if broken else 1.0), data=(ids, y), loss="cross_entropy")
