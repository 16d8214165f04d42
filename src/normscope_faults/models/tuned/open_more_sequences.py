"""The open half, more faults: networks for text, speech and series."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    GPT,
    SequenceClassifier,
    TransformerBlock,
    accuracy,
    mlp,
    over_tokens,
    remembered_series,
    sentences,
    text,
    train,
    waves,
)

FAULTS: list[Fault] = []
plant = partial(fault, FAULTS)


# ------------------------------------------------------------------------------------------------ losses over sequences


def tags(count: int = 48, length: int = 12, vocabulary: int = 30) -> tuple[Tensor, Tensor]:
    """Return token ids and a tag for each (5 kinds), from the token and the one before."""
    ids = torch.randint(vocabulary, (count, length))
    return ids, (ids + ids.roll(1, 1) * (torch.arange(length) > 0)) % 5


class Tagger(nn.Module):
    """Embeddings, a convolution over time, a tag per token: (batch, length, kinds)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.conv, self.head = nn.Embedding(30, 24), nn.Conv1d(24, 48, 3, padding=1), nn.Linear(48, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.conv(self.words(ids).transpose(1, 2)).relu()
        return self.head(x.transpose(1, 2))


def tag_accuracy(y: Tensor) -> Callable[[Tensor], float]:
    """Return a judge: how many tokens get their tag."""
    return lambda output: (output.argmax(-1) == y).float().mean().item()


@plant(
    "tagger",
    causes="loss-does-not-fit normalizer-wrong-axis shapes-broadcast",
    remedies="fix-axis match-shapes change-loss",
)
def one_hot_tags_along_the_wrong_axis(broken: bool) -> Case:
    """Cross entropy takes axis 1 for the classes; with one-hot targets (N, L, C) that is the time."""
    torch.manual_seed(841)
    ids, y = tags()
    target = F.one_hot(y, 5).float()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (
            F.cross_entropy(output, target)
            if broken
            else F.cross_entropy(output.transpose(1, 2), target.transpose(1, 2))
        )

    return Case(model=Tagger(), data=(ids, target), loss=loss, judge=tag_accuracy(y))


@plant(
    "speech",
    layers="4",
    causes="normalizer-wrong-axis loss-does-not-fit output-constant",
    remedies="fix-axis",
)
def log_softmax_over_time(broken: bool) -> Case:
    """LogSoftmax(dim=-1) on (batch, classes, time): the speaker of a frame, whom all frames share, cancels."""
    torch.manual_seed(842)
    x, y = waves()
    model = nn.Sequential(
        nn.Conv1d(3, 16, 5, padding=2), nn.ReLU(), nn.AvgPool1d(8), nn.Conv1d(16, 3, 1),
        nn.LogSoftmax(dim=-1 if broken else 1),
    )  # fmt: skip
    return Case(model=model, data=(x.mT.contiguous(), y[:, None].expand(-1, 5).contiguous()), loss=nn.NLLLoss())


@plant(
    "GRU",
    causes="loss-does-not-fit output-constant activation-before-loss",
    remedies="change-output-activation change-loss",
)
def nll_of_raw_scores(broken: bool) -> Case:
    """NLLLoss of scores without log_softmax: the loss falls without end and nothing is learnt."""
    torch.manual_seed(843)
    x, y = waves()
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    model = nn.Sequential(model, nn.Identity() if broken else nn.LogSoftmax(1))
    return Case(model=model, data=(x, y), loss=nn.NLLLoss(), judge=lambda output: -F.cross_entropy(output, y).item())


def likelihood(following: Tensor) -> Callable[[Tensor], float]:
    """Return a judge: the mean log probability of the tokens that follow."""
    return lambda output: -F.cross_entropy(output.flatten(0, 1), following.flatten()).item()


def padded_text(ids: Tensor, following: Tensor, real: int) -> tuple[Tensor, Tensor]:
    """Return texts whose later tokens are padding (0)."""
    keep = torch.arange(ids.shape[1]) < real
    return ids.clamp(min=1) * keep, following.clamp(min=1) * keep


@plant(
    "GPT",
    causes="class-imbalance loss-does-not-fit labels-constant",
    remedies="change-loss balance-classes fix-mask fix-targets check-labels",
)
def loss_over_padding(broken: bool) -> Case:
    """The loss counts the padding, which is nine tokens in ten."""
    torch.manual_seed(844)
    ids, following = padded_text(*text(48, 40), real=4)

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100 if broken else 0)

    real = following > 0
    return Case(
        model=GPT(length=40, depth=1, tied=False),
        data=(ids, following),
        loss=loss,
        judge=lambda output: -F.cross_entropy(output[real], following[real]).item(),
    )


@plant(
    "GPT",
    causes="not-finite loss-gradient-zero labels-constant loss-does-not-fit gradient-not-finite",
    remedies="check-labels fix-targets change-loss fix-mask",
)
def every_target_ignored(broken: bool) -> Case:
    """The mask of the prompt covers the answer too: all targets are -100, and the mean of nothing is NaN."""
    torch.manual_seed(845)
    ids, following = text(16)
    target = following.clone()
    target[:, : None if broken else 6] = -100
    return Case(
        model=GPT(depth=1),
        data=(ids, target),
        loss=over_tokens,
        judge=likelihood(following),
    )


# ------------------------------------------------------------------------------------------------------------ attention


class Pointer(nn.Module):
    """States of tokens and additive attention over them, from the last one."""

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


@plant(
    "seq2seq",
    layers="score query key score.weight query.weight key.weight score.bias query.bias key.bias",
    causes="normalizer-wrong-axis unused-parameter no-gradient vanishing-gradient loss-gradient-zero output-constant",
    remedies="fix-axis",
)
def softmax_over_an_axis_of_one(broken: bool) -> Case:
    """softmax(dim=-1) of energies (batch, time, 1): every weight is 1."""
    torch.manual_seed(846)
    ids, y = needle_sentences(96, 120)
    return Case(model=Pointer(-1 if broken else 1), data=(ids, y), loss="cross_entropy")


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


@plant(
    "attention",
    causes="attention-mask-wrong output-constant no-gradient",
    remedies="fix-mask",
)
def reader_sees_the_padding_alone(broken: bool) -> Case:
    """masked_fill(ids != 0): the words are hidden, the padding is read."""
    torch.manual_seed(847)
    return Case(model=MaskedReader(inverted=broken), data=padded_sentences(), loss="cross_entropy")


@plant("attention", causes="attention-mask-wrong vanishing-signal output-constant", remedies="fix-mask")
def masked_with_a_small_number(broken: bool) -> Case:
    """masked_fill(hidden, 1e-9) instead of -1e9: the padding gets most of the attention."""
    torch.manual_seed(848)
    model = MaskedReader(fill=1e-9 if broken else -1e9)
    return Case(model=model, data=padded_sentences(300), loss="cross_entropy")


class Heads(nn.Module):
    """Self-attention by matmul; the heads may be joined without moving their axis back."""

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


@plant("attention", layers="out norm", causes="samples-mixed", remedies="fix-axis")
def heads_not_moved_back(broken: bool) -> Case:
    """reshape of (heads, batch, time, width) to (batch, time, heads * width) without a permute."""
    torch.manual_seed(849)
    ids, y = sentences(96, length=6, vocabulary=14)
    return Case(model=Heads(moved_back=not broken), data=(ids, y), loss="cross_entropy")


@plant(
    "attention",
    layers="q k q.weight k.weight",
    causes="attention-saturated exploding-gradient saturated-units",
    remedies="scale-attention",
)
def cosine_attention_too_cold(broken: bool) -> Case:
    """Cosine attention as in Swin V2, whose temperature may not fall below 0.01, at 0.0005."""
    torch.manual_seed(850)
    ids, y = sentences(96, length=6, vocabulary=14)
    return Case(model=Heads(cosine=5e-4 if broken else 0.1), data=(ids, y), loss="cross_entropy")


@plant(
    "attention",
    causes="precision not-finite attention-saturated gradient-not-finite",
    remedies="raise-precision scale-attention",
)
def scores_in_half_precision(broken: bool) -> Case:
    """Scores of large queries in half precision, divided by sqrt(d) only afterwards."""
    torch.manual_seed(851)
    ids, y = sentences(96, length=6, vocabulary=14)
    model = Heads(dtype=torch.float16 if broken else torch.float32)
    for layer in (model.q, model.k):
        nn.init.normal_(layer.weight, std=16.0 if broken else 0.2)
    return Case(model=model, data=(ids, y), loss="cross_entropy")


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


@plant(
    "BERT",
    layers="layers layers.0 layers.1 layers.0.self_attn layers.1.self_attn",
    causes="samples-mixed",
    remedies="fix-axis",
)
def encoder_attends_over_the_batch(broken: bool) -> Case:
    """nn.TransformerEncoderLayer expects (time, batch, width) unless batch_first=True."""
    torch.manual_seed(852)
    model = Encoder(vocabulary=30, outputs=5, dropout=0.0, batch_first=not broken)
    return Case(model=model, data=tags(), loss=over_tokens)


@plant(
    "BERT",
    layers="layers layers.0 layers.0.dropout layers.0.dropout1 layers.0.dropout2 layers.0.self_attn",
    causes="dropout-too-strong",
    remedies="lower-dropout",
)
def nine_in_ten_dropped_in_each_block(broken: bool) -> Case:
    """dropout=0.9 in every encoder layer."""
    torch.manual_seed(853)
    ids, y = sentences(96, length=6, vocabulary=14)
    model = Encoder(depth=1, dropout=0.9 if broken else 0.1, batch_first=True)
    return Case(model=model, data=(ids, y), loss="cross_entropy")


@plant(
    "BERT",
    causes="vanishing-gradient exploding-gradient exploding-signal output-constant vanishing-signal rank-one-weights",
    remedies="add-skip scale-branch lower-learning-rate initialise add-normalizer replace-normalizer",
)
def twelve_blocks_without_residual_sums(broken: bool) -> Case:
    """The residual sums were lost in a rewrite of the block."""
    torch.manual_seed(855)
    ids, y = sentences(48, length=6, vocabulary=14)

    class Plain(TransformerBlock):
        def forward(self, x: Tensor) -> Tensor:
            return self.feed(self.norm2(self.attention(self.norm1(x)))) if broken else super().forward(x)

    model = nn.Sequential()
    model.add_module("words", nn.Embedding(14, 16))
    model.add_module("blocks", nn.Sequential(*(Plain(16, 2, causal=True) for _ in range(12))))
    model.add_module("pool", nn.Sequential(nn.Flatten(), nn.Linear(96, 2)))
    return Case(model=model, data=(ids, y), loss="cross_entropy")


# -------------------------------------------------------------------------------- RMSNorm, SwiGLU, LoRA, experts, heads


class SwiGLU(nn.Module):
    """The feed-forward part of Llama."""

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


class LlamaBlock(nn.Module):
    """RMSNorm, attention with rotary positions, SwiGLU."""

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


class Llama(nn.Module):
    """A small decoder in the style of Llama."""

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


@plant(
    "GPT",
    layers="norm norm.weight",
    causes="zero-weights output-constant vanishing-signal no-gradient",
    remedies="initialise lower-weight-decay rescale-layer restore-weights",
)
def gain_of_the_last_norm_decayed(broken: bool) -> Case:
    """Weight decay on the gains of norms, at 1.0, has taken the last one to 1e-6."""
    torch.manual_seed(856)
    ids, following = text(16)
    model = Llama()
    train(model, ids, following, over_tokens, steps=30)
    if broken:
        with torch.no_grad():
            model.norm.weight.mul_(1e-6)
    return Case(model=model, data=(ids, following), loss=over_tokens)


@plant(
    "GPT",
    causes="output-range-too-small vanishing-signal vanishing-gradient",
    remedies="scale-outputs rescale-layer remove-final-activation",
)
def logits_divided_by_a_sampling_temperature(broken: bool) -> Case:
    """Logits divided by a temperature that belongs to sampling, here 100."""
    torch.manual_seed(857)
    ids, following = text(16)
    return Case(model=Llama(depth=1, divisor=100.0 if broken else 1.0), data=(ids, following), loss=over_tokens)


@plant(
    "GPT",
    layers="embed_tokens lm_head layers.0 layers.1 "
    + " ".join(f"layers.{i}.{name}" for i in (0, 1) for name in ("q", "k", "v", "o", "mlp.gate", "mlp.up", "mlp.down")),
    causes="attention-saturated exploding-signal exploding-gradient branch-dominates layer-scale-stands-out",
    remedies="initialise rescale-layer scale-attention scale-branch",
)
def every_weight_at_one(broken: bool) -> Case:
    """A loop that calls nn.init.normal_(weight) on each matrix of a transformer."""
    torch.manual_seed(854)
    ids, following = text(16)
    model = Llama()
    for parameter in model.parameters():
        if broken and parameter.ndim > 1:
            nn.init.normal_(parameter)
    return Case(model=model, data=(ids, following), loss=over_tokens, judge=likelihood(following))


class Adapter(nn.Module):
    """A frozen linear layer and a correction of low rank: LoRA."""

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
    ids, following = text(16)
    model = Llama(depth=2)
    train(model, ids, following, over_tokens, steps=25)
    model.requires_grad_(False)
    for layer in model.layers:
        layer.mlp.up, layer.mlp.down = Adapter(layer.mlp.up), Adapter(layer.mlp.down)
    return model, *(text(8) if other_text else (ids, following))


LORA = " ".join(
    f"layers.{i}.mlp.{name} layers.{i}.mlp.{name}.{p}" for i in (0, 1) for name in ("up", "down") for p in "ab"
)


@plant("LoRA", layers=LORA, causes="zero-weights no-gradient vanishing-gradient", remedies="initialise")
def both_factors_of_lora_at_zero(broken: bool) -> Case:
    """Both factors of each adapter start at zero: neither gets a gradient."""
    model, ids, following = adapted_llama(858)
    for module in model.modules():
        if broken and isinstance(module, Adapter):
            nn.init.zeros_(module.a)
    return Case(
        model=model,
        data=(ids, following),
        loss=over_tokens,
        judge=likelihood(following),
    )


@plant(
    "LoRA",
    layers=LORA,
    causes="branch-dominates exploding-signal layer-scale-stands-out exploding-gradient",
    remedies="scale-branch initialise rescale-layer",
)
def adapters_too_loud(broken: bool) -> Case:
    """alpha / rank was multiplied where it had to be divided, and b was drawn at random."""
    model, ids, following = adapted_llama(859, other_text=False)
    for module in model.modules():
        if broken and isinstance(module, Adapter):
            nn.init.normal_(module.b)
            module.scale = 64.0
    return Case(
        model=model,
        data=(ids, following),
        loss=over_tokens,
        judge=likelihood(following),
    )


@plant(
    "GPT",
    layers="layers.0.mlp.gate layers.0.mlp.up layers.1.mlp.gate layers.1.mlp.up layers.0.mlp layers.1.mlp "
    "layers.0.o layers.1.o layers.0.v layers.1.v layers.0.mlp.down layers.1.mlp.down",
    causes="zero-weights constant-initialisation no-gradient vanishing-gradient",
    remedies="initialise",
)
def gate_and_product_at_zero(broken: bool) -> Case:
    """Zero initialisation of every projection of the blocks, not only of those that end the branches."""
    torch.manual_seed(860)
    ids, following = text(16)
    model = Llama()
    for layer in model.layers:
        ends = (layer.o, layer.mlp.down)
        for linear in (*ends, layer.v, layer.mlp.gate, layer.mlp.up) if broken else ends:
            nn.init.zeros_(linear.weight)
    return Case(model=model, data=(ids, following), loss=over_tokens)


class Routed(nn.Module):
    """Softly routed experts for each token, between two norms."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis, self.words = axis, nn.Embedding(40, 32)
        self.router = nn.Linear(64, 4)
        self.experts = nn.ModuleDict({f"expert{i}": mlp(64, 32, 40) for i in range(4)})

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = torch.cat([x, F.pad(x, (0, 0, 1, 0))[:, :-1]], dim=-1)
        weights = self.router(x).softmax(self.axis)
        return sum(weights[..., i, None] * expert(x) for i, expert in enumerate(self.experts.values()))


@plant(
    "mixture of experts",
    layers="router",
    causes="samples-mixed normalizer-wrong-axis vanishing-signal",
    remedies="fix-axis",
)
def router_softmax_over_the_batch(broken: bool) -> Case:
    """F.softmax without dim takes axis 0 of a tensor with three axes."""
    torch.manual_seed(861)
    ids, following = text(48)
    return Case(
        model=Routed(0 if broken else -1),
        data=(ids, following),
        loss=over_tokens,
        judge=likelihood(following),
    )


# ------------------------------------------------------------------------------------------- recurrence and convolution


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


@plant(
    "echo state",
    layers="recurrent",
    causes="recurrent-weights-vanish vanishing-signal",
    remedies="gated-recurrence rescale-layer initialise",
)
def reservoir_forgets(broken: bool) -> Case:
    """A reservoir with a spectral radius of 0.1 where the pulse is 20 steps back."""
    torch.manual_seed(862)
    x, y = remembered_series(steps=20)
    return Case(model=Reservoir(0.1 if broken else 0.98), data=(x, y), loss="cross_entropy")


class StateSpace(nn.Module):
    """A diagonal linear recurrence per channel, as in state space models, then a readout."""

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.inner, self.readout = nn.Linear(4, 32), nn.Linear(32, 4)
        self.decay = nn.Parameter(torch.full((32,), decay))

    def forward(self, series: Tensor) -> Tensor:
        state = torch.zeros(len(series), 32)
        for step in self.inner(series).unbind(1):
            state = self.decay * state + 0.1 * step
        return self.readout(state)


@plant(
    "state space model",
    layers="decay",
    causes="recurrent-weights-explode exploding-signal exploding-gradient saturated-units",
    remedies="gated-recurrence rescale-layer initialise clip-gradients add-normalizer",
)
def state_space_grows(broken: bool) -> Case:
    """The discretisation exp(dt * a) without the minus sign: each step multiplies the state by 1.35."""
    torch.manual_seed(863)
    x, y = remembered_series(steps=50)
    return Case(model=StateSpace(1.35 if broken else 0.98), data=(x.flip(1), y), loss="cross_entropy")


@plant(
    "state space model",
    layers="decay",
    causes="recurrent-weights-vanish vanishing-signal",
    remedies="gated-recurrence rescale-layer initialise",
)
def state_space_forgets(broken: bool) -> Case:
    """A time step far too long: each step keeps a tenth of the state."""
    torch.manual_seed(864)
    x, y = remembered_series(steps=50)
    return Case(model=StateSpace(0.1 if broken else 0.98), data=(x, y), loss="cross_entropy")


@plant(
    "LSTM",
    layers="recurrent recurrent.bias_ih_l0 recurrent.bias_hh_l0",
    causes="saturated-units vanishing-signal output-constant vanishing-gradient",
    remedies="reset-bias forget-bias initialise",
)
def output_gate_shut(broken: bool) -> Case:
    """The bias of the wrong quarter was set: the output gate is shut, not the forget gate opened."""
    torch.manual_seed(865)
    x, y = remembered_series(steps=20)
    model = SequenceClassifier(nn.LSTM(4, 24, batch_first=True), 4)
    with torch.no_grad():
        if broken:
            model.recurrent.bias_ih_l0[72:] = -12.0
        else:
            model.recurrent.bias_ih_l0[24:48] = 1.0
    return Case(model=model, data=(x, y), loss="cross_entropy")


class CellLoop(nn.Module):
    """A GRU cell in a loop; the state may be detached at each step."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.detached, self.cell, self.head = detached, nn.GRUCell(4, 16), nn.Linear(16, 4)

    def forward(self, series: Tensor) -> Tensor:
        state = series.new_zeros(len(series), 16)
        for step in series.unbind(1):
            state = self.cell(step, state.detach() if self.detached else state)
        return self.head(state)


@plant("GRU", layers="cell", causes="no-gradient recurrent-weights-vanish vanishing-gradient", remedies="keep-gradient")
def state_detached_at_each_step(broken: bool) -> Case:
    """detach() at each step, meant for the state that is carried from batch to batch."""
    torch.manual_seed(866)
    x, y = remembered_series(steps=10)
    return Case(model=CellLoop(broken), data=(x, y), loss="cross_entropy")


class DilatedBlock(nn.Module):
    """Two dilated causal convolutions of a TCN beside a skip, or without it."""

    def __init__(self, inner: int, outer: int, dilation: int, skip: bool) -> None:
        super().__init__()
        self.skip, self.pad = skip, dilation
        self.conv1, self.conv2 = (nn.Conv1d(i, outer, 2, dilation=dilation) for i in (inner, outer))
        self.side = nn.Conv1d(inner, outer, 1) if skip and inner != outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv1(F.pad(x, (self.pad, 0))))
        y = F.relu(self.conv2(F.pad(y, (self.pad, 0))))
        return F.relu(y + self.side(x)) if self.skip else y


@plant(
    "TCN",
    layers=" ".join(f"{i} {i}.conv1 {i}.conv2" for i in range(5)),
    causes="vanishing-signal vanishing-gradient output-constant dead-units",
    remedies="add-skip initialise add-normalizer rescale-layer",
)
def dilated_layers_at_a_hundredth(broken: bool) -> Case:
    """normal_(std=0.01), as the authors' code has it, in a copy without the skip connections."""
    torch.manual_seed(867)
    x, y = remembered_series(steps=32)
    blocks = [DilatedBlock(4 if i == 0 else 24, 24, 2**i, skip=not broken) for i in range(5)]
    for block in blocks:
        for conv in (block.conv1, block.conv2):
            nn.init.normal_(conv.weight, std=0.01)
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(24 * 32, 4))
    return Case(model=model, data=(x.transpose(1, 2), y), loss="cross_entropy")


class WaveNet(nn.Module):
    """Gated dilated convolutions whose outputs are summed, then averaged over time."""

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


GATES = " ".join(f"gates.{i} gates.{i}.bias filters.{i}" for i in range(4))


@plant(
    "WaveNet",
    layers=GATES,
    causes="saturated-units vanishing-signal vanishing-gradient output-constant",
    remedies="reset-bias initialise",
)
def wavenet_gates_shut(broken: bool) -> Case:
    """A bias of -9 on every gate."""
    torch.manual_seed(868)
    x, y = waves()
    model = WaveNet()
    for gate in model.gates:
        nn.init.constant_(gate.bias, -9.0 if broken else 0.0)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant("TCN", causes="inputs-not-scaled saturated-units exploding-signal", remedies="scale-inputs")
def samples_of_sixteen_bits(broken: bool) -> Case:
    """Samples of a sound file as integers up to 32,767."""
    torch.manual_seed(869)
    x, y = waves(steps=32)
    x = (x * 12_000).round() if broken else x
    blocks = [DilatedBlock(3 if i == 0 else 16, 16, 2**i, skip=True) for i in range(3)]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(16 * 32, 3))
    return Case(model=model, data=(x.mT.contiguous(), y), loss="cross_entropy")


@plant("LSTM", causes="inputs-not-scaled saturated-units", remedies="scale-inputs")
def prices_not_centred(broken: bool) -> Case:
    """Prices near 40,000, whose movements are a hundredth of that."""
    torch.manual_seed(870)
    x, y = waves(steps=24)
    model = SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)
    return Case(model=model, data=(40_000 + 300 * x if broken else x, y), loss="cross_entropy")


class TwoStages(nn.Module):
    """A first network names a unit per step, an embedding of the units is read by a second one."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.hard = hard
        self.acoustic = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 6))
        self.units = nn.Embedding(6, 12)
        self.language = SequenceClassifier(nn.GRU(12, 24, batch_first=True), 3)

    def forward(self, series: Tensor) -> Tensor:
        scores = self.acoustic(series)
        if self.hard:
            return self.language(self.units(scores.argmax(-1)))
        return self.language(scores.softmax(-1) @ self.units.weight)


@plant(
    "speech", layers="acoustic acoustic.0 acoustic.2", causes="no-gradient unused-parameter", remedies="keep-gradient"
)
def units_by_argmax(broken: bool) -> Case:
    """An argmax between two stages that are trained together."""
    torch.manual_seed(871)
    x, y = waves()
    return Case(model=TwoStages(broken), data=(0.2 * x, y), loss="cross_entropy")


@plant(
    "speech",
    causes="precision not-finite gradient-not-finite",
    remedies="raise-precision guard-domain change-output-activation change-loss",
)
def tiny_guard_in_half_precision(broken: bool) -> Case:
    """log(p + 1e-8) in half precision, where 1e-8 is zero."""
    torch.manual_seed(872)
    x, y = waves()

    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(120, 48, 3)

        def forward(self, x: Tensor) -> Tensor:
            p = (12 * self.net(x.flatten(1))).softmax(1)
            return torch.log((p.half() if broken else p) + 1e-8).float()

    return Case(model=Frames(), data=(x, y), loss=nn.NLLLoss(), judge=accuracy(y))


@plant(
    "TCN",
    layers="1 3",
    causes="dead-units bias-holds-units-off output-constant",
    remedies="initialise reset-bias restore-weights lower-learning-rate change-activation",
)
def convolutions_killed_by_a_rate(broken: bool) -> Case:
    """Three steps of SGD at a rate of 3 have switched every filter off."""
    torch.manual_seed(873)
    x, y = waves(steps=32)
    model = nn.Sequential(
        nn.Identity(), nn.Conv1d(3, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 6, 5, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(192, 3),
    )  # fmt: skip
    rate = 3.0 if broken else 0.01
    train(model, x.mT.contiguous(), y, F.cross_entropy, steps=3, optimizer=torch.optim.SGD(model.parameters(), lr=rate))
    return Case(model=model, data=(x.mT.contiguous(), y), loss="cross_entropy")


class Translator(nn.Module):
    """From one sequence to another through a narrow memory, which may be detached."""

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


@plant(
    "encoder-decoder",
    layers="encoder source encoder.self_attn encoder.linear1 encoder.linear2 encoder.norm1 encoder.norm2 narrow",
    causes="no-gradient",
    remedies="keep-gradient",
)
def memory_detached(broken: bool) -> Case:
    """The memory of the encoder is detached, as when it is cached for decoding."""
    torch.manual_seed(874)
    source = torch.randint(20, (64, 6))
    following = (source + source.flip(1)) % 20
    ids = torch.cat([source, torch.zeros(64, 1, dtype=torch.long), following[:, :-1]], dim=1)
    return Case(
        model=Translator(broken),
        data=(ids, following),
        loss=over_tokens,
        judge=likelihood(following),
    )
