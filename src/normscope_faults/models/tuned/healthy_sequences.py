"""Healthy networks for text, sound and series: fresh, trained a little or well, some of them awkward."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.transformer import Transformer
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import AdamW
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import changed, filled, over
from ...training import over_tokens, train
from . import rarer_sequences


class LowRank(nn.Module):  # A frozen linear layer with a trained correction of low rank that begins at zero (LoRA).
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = (
            nn.Linear(base.in_features, rank, bias=False),
            nn.Linear(rank, base.out_features, bias=False),
        )
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


@OPEN
def lora_on_a_trained_gpt() -> Case:
    """GPT | 706"""
    ids, following = draw.text()
    model = nets.GPT()
    train(model, ids, following, over_tokens, steps=40)
    model.requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv, block.feed[0] = LowRank(block.attention.qkv), LowRank(block.feed[0])
    return Case((ids, following), model, over_tokens)


class DeepEncoder(nn.Module):  # Many pre-norm blocks on tokens; the last norm and a head of two classes.
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Parameter(0.02 * torch.randn(16, 32))
        self.blocks = nn.Sequential(*(nets.TransformerBlock(32, 4, causal=False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 2)
        nets.initialise_transformer(self)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.words(ids) + self.places)).mean(1))


def without_padding(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the cross entropy of the next tokens, without the padding (-100)."""
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=-100)


@OPEN
def forget_bias_of_one() -> Case:
    """LSTM | 752"""
    x, y = draw.remembered_series(steps=30)
    lstm = nn.LSTM(4, 24, num_layers=2, batch_first=True)
    for name, bias in lstm.named_parameters():
        if name.startswith("bias_ih"):
            bias.data[24:48] = 1.0
    return Case((x, y), nets.SequenceClassifier(lstm, 4), "cross_entropy")


@OPEN
def gated_convolutions_over_time() -> Case:
    """WaveNet | 754"""

    # Dilated convolutions with tanh and sigmoid gates and skips to the head (WaveNet).
    def gated_convolution(self, series: Tensor) -> Tensor:
        x, skips = self.first(series.transpose(1, 2)), 0
        for gated, mix in zip(self.gated, self.mix):
            value, gate = gated(x).chunk(2, dim=1)
            y = mix(torch.tanh(value) * torch.sigmoid(gate))
            x, skips = x + y, skips + y
        return self.head(torch.relu(skips).mean(2))

    x, y = draw.waves()
    net = nets.made("GatedConvolution", gated_convolution)
    net.first, net.head = nn.Conv1d(3, 16, 1), nn.Linear(16, 3)
    net.gated = nn.ModuleList(nn.Conv1d(16, 2 * 16, 3, padding=2**level, dilation=2**level) for level in range(4))
    net.mix = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(4))
    return Case((x, y), net, "cross_entropy")


@OPEN
def llama_in_bfloat16_trained() -> Case:
    """GPT | 923"""
    ids, following = draw.text(16)
    model = rarer_sequences.Llama()
    train(model, ids, following, over_tokens, steps=40)
    return Case((ids, following), model.bfloat16(), over_tokens, train=False)


@OPEN
def one_block_six_times_on_purpose() -> Case:
    """BERT | 925"""

    # One block applied six times, on purpose, with a step embedding.
    def universal(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places
        for step in self.steps:
            x = self.block(x + step)
        return self.head(self.norm(x).mean(1))

    ids, y = draw.sentences()
    net = nets.made("Universal", universal)
    net.words, net.places = nn.Embedding(50, 32), nn.Parameter(0.1 * torch.randn(16, 32))
    net.steps, net.block = nn.Parameter(0.1 * torch.randn(6, 32)), nets.TransformerBlock(32, 4, causal=False)
    net.norm, net.head = nn.LayerNorm(32), nn.Linear(32, 2)
    return Case((ids, y), net, "cross_entropy")


@OPEN
def dilated_blocks_with_weight_norm() -> Case:
    """TCN | 931"""
    x, y = draw.remembered_series(steps=32)
    blocks = [rarer_sequences.DilatedBlock(4 if i == 0 else 24, 24, 2**i, skip=True) for i in range(5)]
    for block in blocks:
        block.conv1, block.conv2 = weight_norm(block.conv1), weight_norm(block.conv2)
    return Case((x.mT.contiguous(), y), nn.Sequential(*blocks, nn.Flatten(), nn.Linear(24 * 32, 4)), "cross_entropy")


def ctc(output: Tensor, target: Tensor) -> Tensor:
    """Return the CTC loss of log probabilities (batch, time, symbols); all targets have the same length."""
    lengths = [torch.full((len(target),), size) for size in (output.shape[1], target.shape[1])]
    return F.ctc_loss(output.transpose(0, 1), target, *lengths)


@OPEN
def causal_convolutions() -> Case:
    """GPT | 2102"""

    # Convolutions that are padded on the left.
    def causal(self, ids: Tensor) -> Tensor:
        x = self.words(ids).mT
        for layer in self.layers:
            x = x + layer(F.pad(x, (2 * layer.dilation[0], 0))).relu()
        return self.head(x)

    net = nets.made("Causal", causal)
    net.words, net.head = nn.Embedding(40, 32), nn.Conv1d(32, 40, 1)
    net.layers = nn.ModuleList(nn.Conv1d(32, 32, 3, dilation=step) for step in (1, 2, 4))
    return Case(model=net, data=draw.text(), loss="cross_entropy")


class AdaptedLayer(nn.Module):  # A frozen layer and a bottleneck beside it whose last layer starts at zero.
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, width = base.requires_grad_(False), base.out_features
        self.down, self.up = nn.Linear(width, 4), nn.Linear(4, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.base(x)
        return x + self.up(F.gelu(self.down(x)))


@OPEN
def bottleneck_adapters_at_zero() -> Case:
    """adapters | 2003"""
    x, y = draw.table()
    model = nets.mlp(12, 48, 48, 3)
    train(model, x, y, F.cross_entropy, steps=100)
    for place in (0, 2):
        model[place] = AdaptedLayer(model[place])
    return Case((x, y), model, "cross_entropy")


def rotate(x: Tensor) -> Tensor:
    """Turn pairs of features by angles that grow with the position."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / half)
    first, second = x.chunk(2, -1)
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


class RotaryBlock(nn.Module):  # RMSNorm, causal attention with rotated and normalized queries and keys, and a SwiGLU.
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q_norm, self.k_norm = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotate(self.q_norm(q)), rotate(self.k_norm(k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        read = self.norm2(x)
        return x + self.down(F.silu(self.gate(read)) * self.up(read))


class RotaryModel(nn.Module):  # A small causal language model of rotary blocks.
    def __init__(self, vocabulary: int = 40, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(RotaryBlock(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.words(ids)))).mT


@OPEN
def latent_queries_read_pixels() -> Case:
    """perceiver | 2015"""

    # A few learned queries read the pixels of an image by cross-attention.
    def perceiver(self, x: Tensor) -> Tensor:
        pixels = self.norm(self.enter(x.flatten(1)[..., None]) + self.places)
        queries = self.queries.expand(len(x), -1, -1)
        queries = queries + self.read(queries, pixels, pixels, need_weights=False)[0]
        return self.head(self.block(queries).mean(1))

    x, y = draw.blob_images(48)
    net = nets.made("Perceiver", perceiver)
    net.queries = nn.Parameter(0.02 * torch.randn(6, 32))
    net.enter, net.places = nn.Linear(1, 32), nn.Parameter(0.02 * torch.randn(256, 32))
    net.norm, net.read = nn.LayerNorm(32), nn.MultiheadAttention(32, 4, batch_first=True)
    net.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    net.head = nn.Linear(32, 4)
    return Case((x, y), net, "cross_entropy")


@OPEN
def last_step_of_causal_convolutions() -> Case:
    """TCN | 2022"""

    # Dilated causal convolutions with weights on the sphere of their norm, of which the last step is read.
    def causal_convolutions(self, x: Tensor) -> Tensor:
        x = x.mT
        for number, layer in enumerate(self.layers):
            made = F.relu(layer(F.pad(x, (2 * 2**number, 0))))
            x = made + x if made.shape == x.shape else made
        return self.head(x[:, :, -1])

    x, y = draw.waves()
    net = nets.made("CausalConvolutions", causal_convolutions)
    net.layers = nn.ModuleList(nn.Conv1d(i, 24, 3, dilation=2**k) for k, i in enumerate((3, 24, 24, 24)))
    net.head = nn.Linear(24, 3)
    return Case((x, y), net, "cross_entropy")


@OPEN
def mean_of_the_states_of_a_cell() -> Case:
    """GRU | 2023"""

    # A GRU cell in a loop over the steps of a series, with the mean of all states as its summary.
    def gru_of_cells(self, x: Tensor) -> Tensor:
        state, total = x.new_zeros(len(x), 24), x.new_zeros(len(x), 24)
        for step in x.unbind(1):
            state = self.cell(step, state)
            total = total + state
        return self.head(total / x.shape[1])

    x, y = draw.waves(steps=30)
    net = nets.made("GruOfCells", gru_of_cells)
    net.cell, net.head = nn.GRUCell(3, 24), nn.Linear(24, 3)
    return Case((x, y), net, "cross_entropy")


@FIRST
def gpt2_of_hugging_face() -> Case:
    """GPT | 228"""
    from transformers import GPT2Config, GPT2LMHeadModel

    ids, _ = draw.text(8)
    model: Any = GPT2LMHeadModel(GPT2Config(**nets.SMALL_GPT2))
    return Case({"input_ids": ids}, model)


@FIRST
def bert_of_hugging_face_in_train_mode() -> Case:
    """BERT | 231"""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    ids, _ = draw.sentences(32)
    mask = torch.ones_like(ids)
    mask[::3, 10:] = 0
    model: Any = BertForSequenceClassification(config)
    return Case({"input_ids": ids, "attention_mask": mask}, model)


@FIRST
def lstm_with_forget_bias_of_one() -> Case:
    """LSTM | 233"""
    x, y = draw.remembered_series(steps=30)
    recurrent = nn.LSTM(4, 32, num_layers=2, batch_first=True)
    with torch.no_grad():
        for bias in (recurrent.bias_ih_l0, recurrent.bias_ih_l1):
            bias[32:64] = 1.0
    return Case((x, y), nets.SequenceClassifier(recurrent, 4), nn.CrossEntropyLoss())


@FIRST
def tanh_rnn_with_orthogonal_weights() -> Case:
    """RNN | 235"""
    x, y = draw.remembered_series(steps=20)
    recurrent = nn.RNN(4, 32, batch_first=True)
    nn.init.orthogonal_(recurrent.weight_hh_l0)
    return Case((x, y), nets.SequenceClassifier(recurrent, 4), nn.CrossEntropyLoss())


@SECOND
def gated_causal_convolutions() -> Case:
    """TCN | 312"""

    # WaveNet in small: dilated causal convolutions with gates and skips, for the next value of a series.
    def causal_stack(self, series: Tensor) -> Tensor:
        x = self.first(series.transpose(1, 2))
        skips = torch.zeros_like(x)
        for index, (gated, mixer) in enumerate(zip(self.gated, self.mixers)):
            value, gate = gated(F.pad(x, (2**index, 0))).chunk(2, dim=1)
            branch = mixer(torch.tanh(value) * torch.sigmoid(gate))
            x, skips = x + branch, skips + branch
        return self.head(torch.relu(skips)).transpose(1, 2)

    series, _ = draw.waves(32)
    model = nets.made("CausalStack", causal_stack)
    model.first, model.head = nn.Conv1d(3, 16, 1), nn.Conv1d(16, 3, 1)
    model.gated = nn.ModuleList(nn.Conv1d(16, 2 * 16, 2, dilation=2**k) for k in range(4))
    model.mixers = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(4))
    return Case((series[:, :-1], series[:, 1:]), model, "mse", steps=60)


class Translator(nn.Module):  # torch's own Transformer with a causal mask for its decoder.
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 32), nn.Parameter(0.02 * torch.randn(1, 16, 32))
        nn.init.normal_(self.words.weight, std=0.2)
        self.transformer = Transformer(32, 4, 2, 2, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 40)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = Transformer.generate_square_subsequent_mask(target.shape[1])
        x, y = (self.words(ids) + self.places[:, : ids.shape[1]] for ids in (source, target))
        return self.head(self.transformer(x, y, tgt_mask=mask, tgt_is_causal=True))


@SECOND
def encoder_and_decoder_of_torch() -> Case:
    """seq2seq | 314"""
    source, _ = draw.text(24, 12)
    target = source.flip(1)
    model = Translator()
    following = target[:, 1:]
    return Case(
        {"source": source, "target": target[:, :-1]},
        model,
        objective=lambda logits: F.cross_entropy(logits.flatten(0, 1), following.flatten()),
    )


@SECOND
def convolutions_of_words_with_a_zero_row() -> Case:
    """text | 322"""

    # Embeddings with a zero row for padding, convolutions of three widths, a maximum over the places (Kim 2014).
    def words_with_padding(self, ids: Tensor) -> Tensor:
        x = self.words(ids).transpose(1, 2)
        return self.head(self.dropout(torch.cat([torch.relu(conv(x)).amax(2) for conv in self.convs], dim=1)))

    labels = torch.arange(64) % 2
    ids = torch.randint(20, 50, (64, 16))
    ids[:, 3] = torch.randint(1, 10, (64,)) + 10 * labels
    ids[:, 12:] *= torch.arange(4) < torch.randint(1, 5, (64, 1))
    net = nets.made("WordsWithPadding", words_with_padding)
    net.words = nn.Embedding(50, 24, padding_idx=0)
    net.convs = nn.ModuleList(nn.Conv1d(24, 12, width, padding=width // 2) for width in (2, 3, 5))
    net.dropout, net.head = nn.Dropout(0.3), nn.Linear(36, 2)
    return Case((ids, labels), net, "cross_entropy")


@SECOND
def shared_blocks_behind_a_factorised_embedding() -> Case:
    """BERT | 323"""

    # ALBERT's two tables: a narrow embedding, widened by a linear layer, then blocks that share their weights.
    def factorised_embedding(self, ids: Tensor) -> Tensor:
        x = self.widen(self.words(ids)) + self.places
        for _ in range(3):
            x = self.block(x)
        return self.head(self.norm(x).mean(1))

    net = nets.made("FactorisedEmbedding", factorised_embedding)
    net.words, net.widen = nn.Embedding(50, 8), nn.Linear(8, 32)
    net.places = nn.Parameter(0.3 * torch.randn(1, 16, 32))
    net.block = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
    net.norm, net.head = nn.LayerNorm(32), nn.Linear(32, 2)
    return Case(model=net, data=draw.sentences(), loss="cross_entropy")


@SECOND
def gpt2_of_transformers() -> Case:
    """GPT |"""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(213)
    ids, _ = draw.text(16)
    model = GPT2LMHeadModel(GPT2Config(**nets.SMALL_GPT2))
    return Case({"input_ids": ids, "labels": ids}, model, objective=lambda output: output.loss)


@SECOND
def llama_of_transformers() -> Case:
    """GPT |"""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(214)
    ids, _ = draw.text(16)
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return Case({"input_ids": ids, "labels": ids}, LlamaForCausalLM(config), objective=lambda output: output.loss)


@SECOND
def bert_of_transformers_with_padding() -> Case:
    """BERT |"""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(215)
    ids, labels = rarer_sequences.padded_sentences_of_second(32, length=14)
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, num_labels=2,
    )  # fmt: skip
    data = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}
    return Case(data, BertForSequenceClassification(config), objective=lambda output: output.loss)


@SECOND
def t5_of_transformers() -> Case:
    """T5 |"""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(216)
    ids, _ = draw.text(16, 12)
    config = T5Config(
        vocab_size=40, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    data = {"input_ids": ids.clamp(min=2), "labels": ids.clamp(min=2).flip(1)}
    return Case(data, model, objective=lambda output: output.loss)


@SECOND
def lstm_with_open_forget_gates() -> Case:
    """LSTM | 221"""
    model = nets.SequenceClassifier(nn.LSTM(4, 24, batch_first=True), 4)
    nn.init.orthogonal_(model.recurrent.weight_hh_l0)
    nn.init.constant_(model.recurrent.bias_ih_l0[24:48], 2.0)
    return Case(model=model, data=draw.remembered_series(steps=20), loss="cross_entropy")


def padded_sentences() -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids that end in padding (id 0), the mask of what is none, and classes."""
    ids, labels = draw.sentences(48)
    mask = torch.arange(20) < 16
    return F.pad(ids, (0, 4)), mask.long().expand(48, -1), labels


class CosineAttention(nn.Module):
    """Attention with normalised queries and keys and a learned scale, as in large vision transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.log_scale, self.norm, self.head = nn.Parameter(torch.tensor(1.5)), nn.LayerNorm(32), nets.mlp(32, 32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        query, key = F.normalize(self.query(x), dim=-1), F.normalize(self.key(x), dim=-1)
        mixed = (self.log_scale.exp() * query @ key.transpose(1, 2)).softmax(-1) @ self.value(x)
        return self.head(self.norm(x + mixed).amax(1))


# Rows of a table, packed.
# fmt: off
OPEN("summary-of-a-body-that-nobody-reads | transformer | 2207", lambda: Case(model=rarer_sequences.OnBody(False),
    data=draw.sentences(), loss="cross_entropy"))
OPEN("factorised-embedding-and-head | GPT | 708", lambda: Case(draw.text(), nets.made("Factorised",
    lambda self, ids: self.head(self.narrow(self.norm(self.block(self.widen(self.words(ids)))))),
    words=nn.Embedding(40, 8), widen=nn.Linear(8, 32), block=nets.TransformerBlock(32, 4, causal=True),
    norm=nn.LayerNorm(32), narrow=nn.Linear(32, 8), head=nn.Linear(8, 40)), over_tokens))
OPEN("word-vectors | word2vec | 709", lambda: given(draw.text(64, 8), lambda ids, following: Case((ids.flatten(),
    following.flatten()), nets.made("WordPairs", lambda self, ids: self.contexts(self.words(ids)),
    words=nn.Embedding(40, 12), contexts=nn.Linear(12, 40, bias=False)), "cross_entropy")))
OPEN("sixteen-pre-norm-blocks | BERT | 712", lambda: Case(draw.sentences(), DeepEncoder(16), "cross_entropy"))
OPEN("tied-gpt-trained-a-little | GPT | 713", lambda: Case(draw.text(), nets.GPT(depth=3), over_tokens, steps=60))
OPEN("large-vocabulary-mostly-untouched | GPT | 714", lambda: Case(draw.text(8), nets.GPT(vocabulary=500), over_tokens))
OPEN("causal-model-of-padded-texts | GPT | 715", lambda: given(draw.text(), lambda ids, following:
    given(torch.arange(24) >= torch.randint(8, 25, (32, 1)), lambda ended: Case((ids.masked_fill(ended, 0),
    following.masked_fill(ended, -100)), nets.GPT(), without_padding))))
OPEN("post-norm-encoder-with-dropout | BERT | 716", lambda: Case(draw.sentences(), nets.SentenceEncoder(dropout=0.1),
    "cross_entropy"))
OPEN("tanh-rnn-trained-a-little | RNN | 751", lambda: Case(draw.waves(steps=20), nets.SequenceClassifier(nn.RNN(3, 24,
    batch_first=True), 3), "cross_entropy", steps=80))
OPEN("long-memory-early-in-training | GRU | 753", lambda: Case(draw.remembered_series(steps=50),
    nets.SequenceClassifier(nn.GRU(4, 24, batch_first=True), 4), "cross_entropy", steps=5))
OPEN("llama-fresh | GPT | 921", lambda: Case(draw.text(16), rarer_sequences.Llama(depth=3), over_tokens))
OPEN("llama-with-branches-from-zero | GPT | 922", lambda: Case(draw.text(16), over(lambda model: model.layers,
    lambda layer: (nn.init.zeros_(layer.o.weight), nn.init.zeros_(layer.mlp.down.weight)))(rarer_sequences.Llama()),
    over_tokens))
OPEN("adapters-of-llama-trained | LoRA |", lambda: given(rarer_sequences.adapted_llama(924),
    lambda model, ids, following: Case((ids, following), model, over_tokens, steps=30)))
OPEN("translator-fresh | encoder-decoder | 926", lambda: given(torch.randint(20, (32, 6)),
    lambda source: given(source.flip(1), lambda following: Case((torch.cat([source, torch.zeros(32, 1,
    dtype=torch.long), following[:, :-1]], dim=1), following), rarer_sequences.Translator(detached=False),
    over_tokens))))
OPEN("additive-attention-trained | seq2seq | 927", lambda: Case(rarer_sequences.needle_sentences(),
    rarer_sequences.Pointer(), "cross_entropy", steps=60))
OPEN("tagger-fresh | tagger | 929", lambda: Case(model=rarer_sequences.Tagger(), data=rarer_sequences.tags(),
    loss=over_tokens))
OPEN("gated-dilations-trained | WaveNet | 930", lambda: Case(draw.waves(), rarer_sequences.WaveNet(), "cross_entropy",
    steps=25))
OPEN("reservoir-with-a-trained-readout | echo state | 932", lambda: Case(draw.remembered_series(steps=12),
    rarer_sequences.Reservoir(0.98), "cross_entropy"))
OPEN("state-space-with-long-memory | state space model | 933", lambda: Case(draw.remembered_series(steps=50),
    rarer_sequences.StateSpace(0.97), "cross_entropy"))
OPEN("two-recurrent-layers-with-dropout | GRU | 934", lambda: Case(draw.waves(), nets.SequenceClassifier(nn.GRU(3, 16,
    num_layers=2, dropout=0.3, batch_first=True), 3), "cross_entropy", steps=15))
OPEN("mean-of-embeddings | bag of words | 935", lambda: Case(rarer_sequences.needle_sentences(64, 8),
    nets.made("BagOfWords", lambda self, ids: self.head(self.words(ids)), words=nn.EmbeddingBag(400, 16, mode="mean"),
    head=nn.Linear(16, 2)), "cross_entropy"))
OPEN("symbols-by-ctc | speech | 936", lambda: given(torch.randint(1, 6, (32, 5)),
    lambda symbols: Case(((F.one_hot(symbols.repeat_interleave(4, dim=1), 6) + 0.3 * torch.randn(32, 20, 6)), symbols),
    nets.made("Speech", lambda self, frames: self.head(self.recurrent(frames)[0]).log_softmax(-1),
    recurrent=nn.GRU(6, 16, batch_first=True, bidirectional=True), head=nn.Linear(32, 6)), ctc, steps=20)))
OPEN("prompts-left-out-of-the-loss | GPT | 975", lambda: given(draw.text(16), lambda ids, following: Case((ids,
    following.masked_fill(torch.arange(24) < 16, -100)), rarer_sequences.Llama(depth=2), over_tokens)))
OPEN("padding-hidden-from-the-reader | attention | 976", lambda: Case(rarer_sequences.padded_sentences(),
    rarer_sequences.MaskedReader(), "cross_entropy", steps=60))
OPEN("rotary-model-fresh | GPT | 2008", lambda: Case(model=RotaryModel(), data=draw.text(), loss="cross_entropy"))
OPEN("rotary-model-trained-a-little | GPT | 2009", lambda: Case(draw.text(), RotaryModel(depth=2), "cross_entropy",
    train=False, steps=60))
OPEN("padding-vector-of-zero | words | 2019", lambda: given(draw.sentences(96), lambda ids, y: Case(((ids *
    (torch.arange(16) < torch.randint(6, 17, (96, 1)))), y), nets.made("PaddedMean",
    lambda self, ids: self.head(self.words(ids).sum(1) / (ids > 0).sum(1, keepdim=True)),
    words=nn.Embedding(50, 24, padding_idx=0), head=nets.mlp(24, 32, 2)), "cross_entropy")))
OPEN("last-state-of-a-gru-fresh | GRU | 2024", lambda: Case(draw.waves(steps=60), nets.made("Last",
    lambda self, x: self.head(self.recurrent(x)[0][:, -1]), recurrent=nn.GRU(3, 24, batch_first=True),
    head=nn.Linear(24, 3)), "cross_entropy"))
OPEN("time-first-and-labels-per-step | RNN | 2025", lambda: given(draw.waves(steps=30),
    lambda x, _: given(x.transpose(0, 1).contiguous(), lambda x: Case((x, x.cumsum(0)[..., 0] / 5),
    nets.made("PerStep", lambda self, x: self.head(self.recurrent(x)[0])[..., 0], recurrent=nn.LSTM(3, 24),
    head=nn.Linear(24, 1)), "mse"))))
FIRST("fresh-gpt-with-tied-weights | GPT | 226", lambda: Case(model=nets.GPT(vocabulary=100), data=draw.text(16),
    loss=over_tokens))
FIRST("gpt-trained-a-little | GPT | 227", lambda: given(draw.text(24), lambda ids, following: Case((ids[:16],
    following[:16]), train(nets.GPT(tied=False), ids, following, over_tokens, steps=50), over_tokens)))
FIRST("post-norm-encoder-trained | BERT | 232", lambda: given(draw.sentences(64), lambda ids, y: Case((ids[:32],
    y[:32]), train(nets.SentenceEncoder(dropout=0.1), ids, y, F.cross_entropy, steps=30), nn.CrossEntropyLoss(),
    train=False)))
FIRST("gru-trained | GRU | 234", lambda: Case(draw.waves(48, steps=20), nets.SequenceClassifier(nn.GRU(3, 24,
    batch_first=True), 3), nn.CrossEntropyLoss(), steps=60))
SECOND("fresh-decoder-with-two-groups-of-decay | GPT | 211", lambda: given(nets.GPT(), lambda model: given([{"params":
    [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
    {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}], lambda groups: Case(draw.text(),
    model, over_tokens, optimizer=AdamW(groups, lr=6e-4, betas=(0.9, 0.95))))))
SECOND("decoder-trained | GPT | 212", lambda: Case(draw.text(), nets.GPT(), over_tokens, steps=70))
SECOND("encoder-with-a-right-padding-mask-trained | BERT | 217", lambda:
    Case(rarer_sequences.padded_sentences_of_second(length=14), rarer_sequences.MaskedEncoder("right", length=14),
    "cross_entropy", steps=40))
SECOND("encoder-with-dropout-fresh | BERT | 218", lambda: Case(model=nets.SentenceEncoder(dropout=0.1),
    data=draw.sentences(), loss="cross_entropy"))
SECOND("gru-in-both-directions-trained | GRU | 222", lambda: Case(draw.waves(steps=24), nets.made("BothWays",
    lambda self, series: self.head(self.recurrent(series)[0].mean(1)), recurrent=nn.GRU(3, 16, batch_first=True,
    bidirectional=True), head=nn.Linear(32, 3)), "cross_entropy", steps=40))
SECOND("rectified-recurrence-from-the-identity | RNN | 223", lambda: given(nets.SequenceClassifier(nn.RNN(4, 24,
    batch_first=True, nonlinearity="relu"), 4), lambda model: Case(draw.remembered_series(steps=16),
    filled("recurrent.bias_hh_l0", 0.0)(filled("recurrent.bias_ih_l0",
    0.0)(changed(lambda model: nn.init.eye_(model.recurrent.weight_hh_l0))(model))), "cross_entropy")))
THIRD("three-blocks-with-a-head-of-their-own | GPT | 241", lambda: Case(model=nets.GPT(depth=3, tied=False),
    data=draw.text(), loss=over_tokens))
THIRD("decoder-of-texts-trained-for-a-while | GPT | 242", lambda: Case(draw.text(), nets.GPT(), over_tokens, steps=60))
THIRD("labels-that-the-model-shifts-itself | GPT-2 | 243", lambda: given(draw.text(), lambda ids, _: Case({"input_ids":
    ids, "labels": ids}, GPT2LMHeadModel(GPT2Config(**nets.SMALL_GPT2)))))
THIRD("bert-with-labels-and-a-mask | BERT | 244", lambda: given(padded_sentences(),
    lambda ids, mask, labels: given(BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2,
    num_attention_heads=4, intermediate_size=64, max_position_embeddings=32), lambda config: Case({"input_ids": ids,
    "attention_mask": mask, "labels": labels}, BertForSequenceClassification(config)))))
THIRD("distilled-bert-in-eval-mode | BERT | 245", lambda: given(padded_sentences(),
    lambda ids, mask, labels: given(DistilBertConfig(vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=64,
    max_position_embeddings=32), lambda config: Case({"input_ids": ids, "attention_mask": mask, "labels": labels},
    DistilBertForSequenceClassification(config), train=False))))
THIRD("encoder-with-sine-positions-by-place | BERT | 246", lambda: Case(model=rarer_sequences.Encoded(False),
    data=draw.sentences(), loss="cross_entropy"))
THIRD("encoder-with-a-tenth-dropped-trained | BERT | 247", lambda: Case(draw.sentences(),
    nets.SentenceEncoder(dropout=0.1), "cross_entropy", steps=40))
THIRD("widths-of-five-words-trained-well | text CNN | 248", lambda: Case(draw.sentences(), rarer_sequences.WordNet(),
    "cross_entropy", steps=80))
THIRD("both-directions-joined-rightly | GRU | 249", lambda: Case(model=rarer_sequences.BothDirections(False),
    data=draw.waves(), loss="cross_entropy"))
THIRD("two-layers-of-lstm-over-waves | LSTM | 250", lambda: given(nets.SequenceClassifier(nn.LSTM(3, 32, num_layers=2,
    batch_first=True), 3), lambda model: Case(draw.waves(steps=24), model, "cross_entropy")))
THIRD("short-memory-trained-well | GRU | 251", lambda: Case(draw.remembered_series(steps=10),
    nets.SequenceClassifier(nn.GRU(4, 24, batch_first=True), 4), "cross_entropy", steps=80))
THIRD("forecasts-at-each-step | forecasting | 252", lambda: given(draw.waves(48, steps=31),
    lambda series, _: Case((series[:, :-1], series[:, 1:, 0]), rarer_sequences.Forecaster(False), "mse")))
THIRD("recordings-behind-a-batch-norm | audio | 253", lambda: Case(model=rarer_sequences.Loudness(False),
    data=draw.waves(features=1), loss="cross_entropy"))
THIRD("normalised-queries-trained-a-little | attention | 262", lambda: Case(draw.sentences(), CosineAttention(),
    "cross_entropy", steps=40))
