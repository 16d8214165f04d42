"""Data, networks and losses for text, sound and series, which cases of several topics share."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...training import over_tokens, train


class Body(nn.Module):  # A transformer that offers its states and a summary of them, as BERT does with its pooler.
    def __init__(self) -> None:
        super().__init__()
        self.words, self.block = nn.Embedding(50, 32), nets.TransformerBlock(32, 4, causal=False)
        self.pooler, self.activation = nn.Linear(32, 32), nn.Tanh()
        self.register_buffer("places", torch.randn(16, 32))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        states = self.block(self.words(ids) + self.places)
        return states, self.activation(self.pooler(states[:, 0]))


class OnBody(nn.Module):  # Classes from the states of a body, or from its summary, which may be detached.
    def __init__(self, reads_summary: bool, detached: bool = False) -> None:
        super().__init__()
        self.body, self.head = Body(), nn.Linear(32, 2)
        self.reads_summary, self.detached = reads_summary, detached

    def forward(self, ids: Tensor) -> Tensor:
        states, summary = self.body(ids)
        if not self.reads_summary:
            return self.head(states.mean(1))
        return self.head(summary.detach() if self.detached else summary)


def tags(count: int = 48, length: int = 12, vocabulary: int = 30) -> tuple[Tensor, Tensor]:
    """Return token ids and a tag for each (5 kinds), from the token and the one before."""
    ids = torch.randint(vocabulary, (count, length))
    return ids, (ids + ids.roll(1, 1) * (torch.arange(length) > 0)) % 5


class Tagger(nn.Module):  # Embeddings, a convolution over time, a tag per token: (batch, length, kinds).
    def __init__(self) -> None:
        super().__init__()
        self.words, self.conv, self.head = nn.Embedding(30, 24), nn.Conv1d(24, 48, 3, padding=1), nn.Linear(48, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.conv(self.words(ids).transpose(1, 2)).relu()
        return self.head(x.transpose(1, 2))


class Pointer(nn.Module):  # States of tokens and additive attention over them, from the last one.
    def __init__(self, axis: int = 1, width: int = 24) -> None:
        super().__init__()
        self.axis, self.words = axis, nn.Embedding(50, width)
        self.encoder = nn.Conv1d(width, width, 1)
        self.query, self.key, self.score = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.head = nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        states = self.encoder(self.words(ids).mT).mT.tanh()
        energy = self.score(torch.tanh(self.query(states[:, -1:]) + self.key(states)))
        weights = F.softmax(4 * energy, dim=self.axis)
        return self.head((weights * states).sum(1))


def needle_sentences(count: int = 96, length: int = 40) -> tuple[Tensor, Tensor]:
    """Return token ids of which one (7 or 8) decides the class, after many that do not."""
    ids, labels = torch.randint(10, 50, (count, length)), torch.arange(count) % 2
    ids[torch.arange(count), torch.randint(length // 2, (count,))] = 7 + labels
    return ids, labels


class MaskedReader(nn.Module):
    """Attention of one learned query, written with einsum, over tokens that are not padding (0)."""

    def __init__(self, inverted: bool = False, fill: float = -torch.inf) -> None:
        super().__init__()
        self.inverted, self.fill, self.words = inverted, fill, nn.Embedding(50, 24)
        self.query = nn.Parameter(0.2 * torch.randn(24))
        self.key, self.value, self.head = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        scores = torch.einsum("d,bld->bl", self.query, self.key(x))
        hidden = ids != 0 if self.inverted else ids == 0
        weights = scores.masked_fill(hidden, self.fill).softmax(1)
        return self.head(torch.einsum("bl,bld->bd", weights, self.value(x)))


def padded_sentences(length: int = 48) -> tuple[Tensor, Tensor]:
    """Return short sentences that one word decides, padded with zeros."""
    ids, y = needle_sentences(64, 6)
    return F.pad(ids, (0, length - 6)), y


class Heads(nn.Module):  # Self-attention by matmul; the heads may be joined without moving their axis back.
    def __init__(
        self, moved_back: bool = True, cosine: float | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.moved_back, self.cosine, self.dtype = moved_back, cosine, dtype
        self.words, self.places = nn.Embedding(50, 32), nn.Parameter(0.1 * torch.randn(16, 32))
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places[: ids.shape[1]]
        count, length, _ = x.shape
        q, k, v = (layer(x).view(count, length, 4, 8).permute(2, 0, 1, 3) for layer in (self.q, self.k, self.v))
        if self.cosine is not None:
            scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT / self.cosine
        else:
            scores = (q.to(self.dtype) @ k.mT.to(self.dtype)).float() / 8**0.5
        joined = scores.softmax(-1) @ v
        joined = joined.permute(1, 2, 0, 3) if self.moved_back else joined
        return self.head(self.norm(x + self.out(joined.reshape(count, length, 32))).mean(1))


class Encoder(nn.Module):
    """torch's own encoder layers on embeddings with sine positions, a head for each token or for their mean."""

    def __init__(self, depth: int = 2, vocabulary: int = 14, outputs: int = 2, **options) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, 32)
        angle = torch.arange(16.0)[:, None] * torch.logspace(0, -2, 16)
        self.register_buffer("places", torch.cat([angle.sin(), angle.cos()], dim=1))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, **options) for _ in range(depth))
        self.head = nn.Linear(32, outputs)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1) if self.head.out_features == 2 else x)


class SwiGLU(nn.Module):  # The feed-forward part of Llama.
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(width, hidden, bias=False),
            nn.Linear(hidden, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def rotate(x: Tensor) -> Tensor:
    """Turn pairs of features by an angle that grows with the place (rotary positions)."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * torch.logspace(0, -2, half).to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


class LlamaBlock(nn.Module):  # RMSNorm, attention with rotary positions, SwiGLU.
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.mlp = SwiGLU(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        y = self.norm1(x)
        q, k, v = (layer(y).view(count, length, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(count, length, width))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):  # A small decoder in the style of Llama.
    def __init__(self, vocabulary: int = 40, width: int = 32, depth: int = 2, divisor: float = 1.0) -> None:
        super().__init__()
        self.divisor, self.embed_tokens = divisor, nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaBlock(width) for _ in range(depth))
        self.norm, self.lm_head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x)) / self.divisor


class Adapter(nn.Module):  # A frozen linear layer and a correction of low rank: LoRA.
    def __init__(self, base: nn.Linear, rank: int = 8, scale: float = 2.0) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * (x @ self.a.T @ self.b.T)


def adapted_llama(seed: int, other_text: bool = True) -> tuple[Llama, Tensor, Tensor]:
    """Return a decoder trained on one text, with adapters in its feed-forward parts, and that or another text."""
    torch.manual_seed(seed)
    ids, following = draw.text(16)
    model = Llama(depth=2)
    train(model, ids, following, over_tokens, steps=25)
    model.requires_grad_(False)
    for layer in model.layers:
        layer.mlp.up, layer.mlp.down = Adapter(layer.mlp.up), Adapter(layer.mlp.down)
    return model, *(draw.text(8) if other_text else (ids, following))


class Reservoir(nn.Module):
    """An echo state network: a fixed recurrent matrix of a given spectral radius, a trained readout."""

    def __init__(self, radius: float) -> None:
        super().__init__()
        weight = torch.randn(80, 80)
        self.register_buffer("inner", 0.5 * torch.randn(4, 80))
        self.register_buffer("recurrent", radius * weight / torch.linalg.eigvals(weight).abs().max())
        self.readout = nn.Linear(80, 4)

    def forward(self, series: Tensor) -> Tensor:
        state = torch.zeros(len(series), 80)
        for step in series.unbind(1):
            state = torch.tanh(step @ self.inner + state @ self.recurrent)
        return self.readout(state)


class StateSpace(nn.Module):  # A diagonal linear recurrence per channel, as in state space models, then a readout.
    def __init__(self, decay: float) -> None:
        super().__init__()
        self.inner, self.readout = nn.Linear(4, 32), nn.Linear(32, 4)
        self.decay = nn.Parameter(torch.full((32,), decay))

    def forward(self, series: Tensor) -> Tensor:
        state = torch.zeros(len(series), 32)
        for step in self.inner(series).unbind(1):
            state = self.decay * state + 0.1 * step
        return self.readout(state)


class DilatedBlock(nn.Module):  # Two dilated causal convolutions of a TCN beside a skip, or without it.
    def __init__(self, inner: int, outer: int, dilation: int, skip: bool) -> None:
        super().__init__()
        self.skip, self.pad = skip, dilation
        self.conv1, self.conv2 = (nn.Conv1d(i, outer, 2, dilation=dilation) for i in (inner, outer))
        self.side = nn.Conv1d(inner, outer, 1) if skip and inner != outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv1(F.pad(x, (self.pad, 0))))
        y = F.relu(self.conv2(F.pad(y, (self.pad, 0))))
        return F.relu(y + self.side(x)) if self.skip else y


class WaveNet(nn.Module):  # Gated dilated convolutions whose outputs are summed, then averaged over time.
    def __init__(self, channels: int = 3, width: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.start = nn.Conv1d(channels, width, 1)
        self.filters = nn.ModuleList(nn.Conv1d(width, width, 3, padding=2**i, dilation=2**i) for i in range(depth))
        self.gates = nn.ModuleList(nn.Conv1d(width, width, 3, padding=2**i, dilation=2**i) for i in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, series: Tensor) -> Tensor:
        x, total = self.start(series.transpose(1, 2)), 0.0
        for filtered, gate in zip(self.filters, self.gates):
            y = torch.tanh(filtered(x)) * torch.sigmoid(gate(x))
            x, total = x + y, total + y
        return self.head(total.square().mean(2))


class Translator(nn.Module):  # From one sequence to another through a narrow memory, which may be detached.
    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.detached = detached
        self.source, self.target = nn.Embedding(20, 32), nn.Embedding(20, 32)
        self.places = nn.Parameter(0.3 * torch.randn(12, 32))
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.narrow, self.widen, self.head = nn.Linear(32, 3), nn.Linear(3, 32), nn.Linear(32, 20)

    def forward(self, ids: Tensor) -> Tensor:
        source, target = ids[:, :6], ids[:, 6:]
        memory = self.narrow(self.encoder(self.source(source) + self.places[:6]))
        memory = self.widen(memory.detach() if self.detached else memory)
        mask = nn.Transformer.generate_square_subsequent_mask(6)
        return self.head(self.decoder(self.target(target) + self.places[:6], memory, tgt_mask=mask))


class Speaker(nn.Module):  # A language model of one layer of attention.
    def __init__(self, *, causal: bool, axis: int = -1, width: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, width), nn.Embedding(24, width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 40)
        self.causal, self.axis = causal, axis

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores with the classes on axis 1."""
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1) > 0, -1e9)
        x = x + self.out(scores.softmax(self.axis) @ self.value(x))
        return self.head(self.norm(x)).mT


class CellLoop(nn.Module):
    """An LSTM cell in a loop over the steps, whose state may be cut off from its history or begun anew."""

    def __init__(self, detached: bool = False, anew: bool = False) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 24), nn.Linear(24, 4)
        nn.init.constant_(self.cell.bias_ih[24:48], 2.0)
        self.detached, self.anew = detached, anew

    def forward(self, series: Tensor) -> Tensor:
        state = None
        for step in series.unbind(1):
            if self.detached and state is not None:
                state = (state[0].detach(), state[1].detach())
            state = self.cell(step, None if self.anew else state)
        return self.head(state[0])


def padded_sentences_of_second(count: int = 64, length: int = 100) -> tuple[Tensor, Tensor]:
    """Return sentences of 6 to 10 words, padded with id 0, and whether word 7 comes before word 8."""
    ids, labels = draw.sentences(count, 6)
    more = torch.randint(10, 50, (count, 4)) * (torch.arange(4) < torch.randint(5, (count, 1)))
    return F.pad(torch.cat([ids, more], dim=1), (0, length - 10)), labels


class MaskedEncoder(nets.SentenceEncoder):
    """An encoder that is told which tokens (id 0) are padding and reads the mean of the others, or the first token."""

    def __init__(self, mask: str, length: int = 40, first: bool = False) -> None:
        super().__init__(length=length)
        self.mask, self.first = mask, first

    def forward(self, ids: Tensor) -> Tensor:
        padding = ids == 0
        hidden = {"right": padding, "inverted": ~padding, "none": torch.zeros_like(padding)}[self.mask]
        x = self.norm(self.words(ids) + self.positions(torch.arange(ids.shape[1])))
        states = self.encoder(x, src_key_padding_mask=hidden)
        if self.first:
            return self.head(states[:, 0])
        keep = (~padding).float()[:, :, None] if self.mask != "none" else torch.ones(*ids.shape, 1)
        return self.head((states * keep).sum(1) / keep.sum(1))


class WordNet(nn.Module):  # Convolutions over words, their maximum over places, a head.
    def __init__(self, vocabulary: int = 50, classes: int = 2) -> None:
        super().__init__()
        self.words, self.conv = nn.Embedding(vocabulary, 16), nn.Conv1d(16, 32, 5, padding=2)
        self.head = nn.Linear(32, classes)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(self.words(ids).transpose(1, 2))).amax(2))


class Forecaster(nn.Module):  # A GRU with one forecast per step.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.recurrent, self.head = nn.GRU(3, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.head(self.recurrent(x)[0])
        return steps if self.planted else steps.squeeze(-1)


class BothDirections(nn.Module):  # The last states of both directions, joined.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.recurrent, self.head = nn.GRU(3, 16, batch_first=True, bidirectional=True), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = self.recurrent(x)[1]
        return self.head(state.view(len(x), -1) if self.planted else state.transpose(0, 1).flatten(1))


class Encoded(nn.Module):  # A causal encoder with the positional code of torch's tutorial, read at its last place.
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


class Loudness(nn.Module):  # Classifies recordings.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(1) if planted else nn.BatchNorm1d(1)
        self.conv, self.head = nn.Conv1d(1, 16, 5, padding=2), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(self.norm(x.transpose(1, 2)))).mean(2))
