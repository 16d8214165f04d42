"""Faults of attention and recurrence."""

import math
from collections.abc import Callable
from typing import Any

import torch
from numpy import s_
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import changed, drawn, over, put, scaled, variant
from ...training import accuracy, over_tokens
from . import rarer, rarer_sequences


class Speaker(nets.GPT):  # A language model that takes its labels and shifts them itself, as those of transformers do.
    def __init__(self, causal: bool) -> None:
        super().__init__()
        for block in self.blocks:
            block.attention.causal = causal

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        logits = super().forward(input_ids)
        return {"loss": over_tokens(logits[:, :-1], labels[:, 1:]), "logits": logits}


def speaker_case(causal: bool, prompt: int) -> Case:
    """Return a language model with labels for all but the first words."""
    ids, _ = draw.text()
    labels = ids.clone()
    labels[:, :prompt] = -100
    return Case(
        model=Speaker(causal), data={"input_ids": ids, "labels": labels}, objective=lambda output: output["loss"]
    )


@OPEN
def labels_among_the_arguments_and_no_mask(broken: bool) -> Case:
    """GPT | 2208 | A body that was made for masked words is trained to foretell the next one.
    | future-visible attention-mask-wrong | blocks.0.attention blocks.0.attention.out blocks.0.attention.qkv |
    fix-mask"""
    return speaker_case(causal=not broken, prompt=0)


@OPEN
def prompts_without_labels_and_no_mask(broken: bool) -> Case:
    """GPT | 2209 | The same where the words of the prompt have no label.
    | future-visible attention-mask-wrong | blocks.0.attention blocks.0.attention.out blocks.0.attention.qkv |
    fix-mask"""
    return speaker_case(causal=not broken, prompt=8)


@OPEN
def decoder_given_the_labels_that_it_is_to_foretell(broken: bool) -> Case:
    """encoder-decoder | 2210 | The step that moves the labels to the right was left out.
    | future-visible labels-wrong | | shift-targets"""

    # From one sequence to another: the decoder is given the labels that it takes, a step late or as they are.
    def interpreter(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        given = labels.masked_fill(labels < 0, 20)
        given = torch.cat([torch.full_like(given[:, :1], 20), given[:, :-1]], 1) if self.shifted else given
        memory = self.encoder(self.source(input_ids) + self.places)
        mask = nn.Transformer.generate_square_subsequent_mask(8)
        logits = self.head(self.decoder(self.target(given) + self.places, memory, tgt_mask=mask))
        return {"loss": over_tokens(logits, labels), "logits": logits}

    source = torch.randint(20, (64, 8))
    labels = (source + source.flip(1)) % 20
    labels[::2, 6:] = -100
    net = nets.made("Interpreter", interpreter)
    net.source, net.target = nn.Embedding(20, 32), nn.Embedding(21, 32)
    net.places = nn.Parameter(0.3 * torch.randn(8, 32))
    net.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    net.decoder = nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    net.head, net.shifted = nn.Linear(32, 20), (not broken)
    return Case({"input_ids": source, "labels": labels}, net, objective=lambda output: output["loss"])


@OPEN
def two_layers_that_forget(broken: bool) -> Case:
    """LSTM | 1109 | A forget bias of -6 in both layers of an LSTM.
    | recurrent-weights-vanish saturated-units | recurrent recurrent.bias_hh_l0 recurrent.bias_hh_l1
    recurrent.bias_ih_l0 recurrent.bias_ih_l1 | forget-bias initialise reset-bias"""
    x, y = draw.remembered_series(steps=16)
    model = nets.SequenceClassifier(nn.LSTM(4, 16, num_layers=2, batch_first=True), 4)
    with torch.no_grad():
        for layer in ("l0", "l1"):
            getattr(model.recurrent, f"bias_ih_{layer}")[16:32] = -6.0 if broken else 1.0
    return Case((x, y), model, "cross_entropy")


@OPEN
def every_weight_at_one(broken: bool) -> Case:
    """GPT | 854 | A loop that calls nn.init.normal_(weight) on each matrix of a transformer.
    | attention-saturated branch-dominates exploding-gradient exploding-signal layer-scale-stands-out | embed_tokens
    layers.{0,1} layers.{0,1}.k layers.{0,1}.mlp.down layers.{0,1}.mlp.gate layers.{0,1}.mlp.up layers.{0,1}.o
    layers.{0,1}.q layers.{0,1}.v lm_head | initialise rescale-layer scale-attention scale-branch"""
    ids, following = draw.text(16)
    model = rarer_sequences.Llama()
    for parameter in model.parameters():
        if broken and parameter.ndim > 1:
            nn.init.normal_(parameter)
    return Case((ids, following), model, over_tokens, judge=rarer.likelihood(following))


def with_radius(recurrent: nn.RNN, radius: float) -> nn.RNN:
    """Give the recurrent weight an orthogonal matrix times a radius."""
    nn.init.orthogonal_(recurrent.weight_hh_l0, gain=radius)
    return recurrent


@OPEN
def rectified_recurrence_grows(broken: bool) -> Case:
    """RNN | 602 | A recurrent layer of ReLUs whose weight grows over the steps.
    | recurrent-weights-explode exploding-gradient exploding-signal | recurrent recurrent.weight_hh_l0 |
    change-activation clip-gradients gated-recurrence initialise rescale-layer"""
    x, y = draw.waves()
    rnn = nn.RNN(3, 24, nonlinearity="relu", batch_first=True)
    rnn.weight_hh_l0.data.copy_((1.5 if broken else 1.0) * torch.eye(24))
    return Case((x, y), nets.SequenceClassifier(rnn, 3), "cross_entropy")


@OPEN
def sign_of_the_forget_bias(broken: bool) -> Case:
    """LSTM | 604 | The sign of the forget bias is wrong.
    | recurrent-weights-vanish saturated-units | recurrent recurrent.bias_hh_l0 recurrent.bias_ih_l0 | forget-bias
    initialise reset-bias"""
    x, y = draw.remembered_series(steps=12)
    lstm = nn.LSTM(4, 24, batch_first=True)
    lstm.bias_ih_l0.data[24:48] = -10.0 if broken else 2.0
    return Case((x, y), nets.SequenceClassifier(lstm, 4), "cross_entropy")


@OPEN
def update_gate_never_opens(broken: bool) -> Case:
    """GRU | 605 | A bias of 10 on the update gate: the state never changes.
    | recurrent-weights-vanish output-constant saturated-units vanishing-gradient vanishing-signal | recurrent
    recurrent.bias_hh_l0 recurrent.bias_ih_l0 | forget-bias initialise reset-bias"""
    x, y = draw.waves()
    gru = nn.GRU(3, 24, batch_first=True)
    if broken:
        gru.bias_ih_l0.data[24:48] = 12.0
    return Case((x, y), nets.SequenceClassifier(gru, 3), "cross_entropy")


class RawAttention(nets.SelfAttention):  # Attention written out, without the division by the root of the width.
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1)
        if self.causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -1e9)
        return scores.softmax(-1) @ value


@OPEN
def one_block_looks_at_one_place(broken: bool) -> Case:
    """ViT | 607 | The logits of one block have grown, as in large ViTs at a high learning rate.
    | attention-saturated layer-scale-stands-out saturated-units | blocks.1.attention blocks.1.attention.qkv |
    initialise rescale-layer scale-attention"""
    x, y = draw.blob_images(96)
    model = nets.ViT(depth=2)
    if broken:
        model.blocks[1].attention.qkv.weight.data[:64] *= 60
    return Case((x, y), model, "cross_entropy")


class PaddedEncoder(nets.SentenceEncoder):
    """A sentence encoder that reads its first token and hides the padding (token 0), or all but the padding."""

    inverted = False

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.positions(torch.arange(ids.shape[1])))
        padding = ids == 0
        x = self.encoder(x, src_key_padding_mask=~padding if self.inverted else padding)
        return self.head(x[:, 0])


def questions(count: int = 96) -> tuple[dict[str, Tensor], Tensor]:
    """Return questions, memories of four keys with their answers and two empty places, and the right answers."""
    question, answers = torch.randint(4, (count,)), torch.randint(3, (count, 4))
    memory = torch.zeros(count, 6, 8)
    memory[:, :4, :4], memory[:, :4, 4:7] = torch.eye(4), F.one_hot(answers, 3).float()
    filled = torch.arange(6).expand(count, 6) < 4
    return {"question": question, "memory": memory, "filled": filled}, answers[torch.arange(count), question]


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


@OPEN
def converted_queries_too_large(broken: bool) -> Case:
    """cross-attention | 608 | Weights of queries and keys that were multiplied by their scale twice when they were
    converted.
    | attention-saturated layer-scale-stands-out saturated-units | attention attention.in_proj_weight | initialise
    rescale-layer restore-weights scale-attention"""
    inputs, y = questions()
    model = CrossAttention(inverted=False)
    if broken:
        model.attention.in_proj_weight.data[:32] *= 60
    return Case(inputs, model, objective=lambda output: F.cross_entropy(output, y), judge=accuracy(y))


def scaled_to_radius(matrix: Tensor, radius: float) -> None:
    """Scale a square matrix in place so that its largest eigenvalue has this size."""
    with torch.no_grad():
        matrix.mul_(radius / torch.linalg.eigvals(matrix).abs().max())


@FIRST
def tanh_states_driven_apart(broken: bool) -> Case:
    """RNN | 111 | weight_hh drawn from N(0, 1): a spectral radius of several.
    | recurrent-weights-explode exploding-gradient layer-scale-stands-out saturated-units vanishing-gradient |
    recurrent recurrent.weight_hh_l0 | clip-gradients gated-recurrence initialise rescale-layer"""
    x, y = draw.remembered_series(steps=50)
    recurrent = nn.RNN(4, 32, batch_first=True)
    nn.init.orthogonal_(recurrent.weight_hh_l0)
    if broken:
        nn.init.normal_(recurrent.weight_hh_l0)
        scaled_to_radius(recurrent.weight_hh_l0, 4.0)
    return Case((x, y), nets.SequenceClassifier(recurrent, 4), nn.CrossEntropyLoss())


@FIRST
def relu_states_that_grow(broken: bool) -> Case:
    """RNN | 112 | A ReLU recurrent layer started at 1.5 times the identity in place of the identity (Le et al. 2015).
    | recurrent-weights-explode exploding-gradient exploding-signal | recurrent recurrent.weight_hh_l0 |
    clip-gradients gated-recurrence initialise rescale-layer"""
    x, y = draw.remembered_series(steps=40)
    x = x.flip(1)  # what counts comes last, where early noise has grown ten million times
    recurrent = nn.RNN(4, 32, nonlinearity="relu", batch_first=True)
    with torch.no_grad():
        recurrent.weight_hh_l0.copy_((1.5 if broken else 1.0) * torch.eye(32))
        recurrent.weight_ih_l0.mul_(0.3)
        recurrent.bias_ih_l0.zero_()
        recurrent.bias_hh_l0.zero_()
    model = nets.SequenceClassifier(recurrent, 4)
    return Case((x, y), model, objective=lambda output: F.cross_entropy(output, y), judge_of=accuracy)


@FIRST
def states_that_forget_at_once(broken: bool) -> Case:
    """RNN | 113 | weight_hh drawn with std=1e-3: what was seen is gone after two steps.
    | recurrent-weights-vanish layer-scale-stands-out vanishing-gradient | recurrent recurrent.weight_hh_l0 |
    gated-recurrence initialise rescale-layer"""
    x, y = draw.remembered_series(steps=50)
    recurrent = nn.RNN(4, 32, batch_first=True)
    nn.init.orthogonal_(recurrent.weight_hh_l0)
    if broken:
        scaled_to_radius(recurrent.weight_hh_l0, 0.01)
    return Case((x, y), nets.SequenceClassifier(recurrent, 4), nn.CrossEntropyLoss())


@FIRST
def forget_gate_shut(broken: bool) -> Case:
    """LSTM | 114 | The wrong quarter of the bias is filled, with the wrong sign: the forget gate is shut.
    | recurrent-weights-vanish bias-holds-units-off saturated-units vanishing-gradient | recurrent
    recurrent.bias_hh_l0 recurrent.bias_ih_l0 | forget-bias initialise reset-bias"""
    x, y = draw.remembered_series(steps=30)
    recurrent = nn.LSTM(4, 24, batch_first=True)
    with torch.no_grad():
        recurrent.bias_ih_l0[24:48] = -10.0 if broken else 2.0
    return Case((x, y), nets.SequenceClassifier(recurrent, 4), nn.CrossEntropyLoss())


@FIRST
def attention_without_division(broken: bool) -> Case:
    """GPT | 118 | softmax(q @ k.T) without 1/sqrt(d), beside weights of nn.Linear's size for a wide model.
    | attention-saturated layer-scale-stands-out | blocks.{0,1} blocks.{0,1}.attention blocks.{0,1}.attention.qkv |
    initialise rescale-layer scale-attention"""

    # Attention without the division by the root of the width.
    def attend_unscaled_attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -math.inf).softmax(-1) @ value

    ids, following = draw.text(24)
    model = nets.GPT(width=64)
    if broken:
        for block in model.blocks:
            block.attention = variant(
                "UnscaledAttention", nets.SelfAttention(64, 4, causal=True), attend=attend_unscaled_attention
            )
            nn.init.normal_(block.attention.qkv.weight, std=0.5)
            nn.init.normal_(block.attention.out.weight, std=0.02)
    return Case((ids, following), model, over_tokens)


class Masked(nets.SelfAttention):  # Attention with a mask of its own, written out.
    inverted = False

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        hidden = visible if self.inverted else ~visible
        return scores.masked_fill(hidden, -math.inf).softmax(-1) @ value


@FIRST
def every_key_hidden(broken: bool) -> Case:
    """BERT | 122 | key_padding_mask of an empty text hides every key: the softmax of nothing is NaN.
    | attention-mask-wrong not-finite | attention encoder_layer | check-data clean-data fix-mask"""

    # Attention over words of which 0 is padding, then a mean.
    def padded(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        mixed, _ = self.attention(x, x, x, key_padding_mask=ids == 0)
        return self.encoder_layer((x + mixed).mean(1))

    ids, _ = draw.sentences()
    y = (ids[:, 0] > 30).long()
    ids[:, 10:] = 0
    if broken:
        ids[3] = 0
    net = nets.made("Padded", padded)
    net.words = nn.Embedding(50, 32, padding_idx=0)
    net.attention = nn.MultiheadAttention(32, 4, batch_first=True)
    net.encoder_layer = nets.mlp(32, 32, 2)
    return Case((ids, y), net, nn.CrossEntropyLoss())


@FIRST
def attention_of_gpt2_drawn_with_unit_variance(broken: bool) -> Case:
    """GPT | 126 | One attention projection of a GPT-2 drawn with nn.init.normal_'s default of 1.
    | attention-saturated layer-scale-stands-out | transformer.h.1 transformer.h.1.attn transformer.h.1.attn.c_attn
    | initialise rescale-layer scale-attention"""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**nets.SMALL_GPT2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model: Any = GPT2LMHeadModel(config)
    if broken:
        nn.init.normal_(model.transformer.h[1].attn.c_attn.weight, std=2.0)
    ids, following = draw.text(24)
    return Case({"input_ids": ids}, model, objective=lambda output: over_tokens(output.logits, following))


@SECOND
def recurrent_weights_close_to_zero(broken: bool) -> Case:
    """RNN | 121 | normal_(std=0.001) for all weights, the recurrent ones included: the past is forgotten at once.
    | recurrent-weights-vanish layer-scale-stands-out vanishing-gradient zero-weights | recurrent
    recurrent.weight_hh_l0 | gated-recurrence initialise rescale-layer"""
    model = nets.SequenceClassifier(nn.RNN(4, 24, batch_first=True), 4)
    nn.init.orthogonal_(model.recurrent.weight_hh_l0)
    if broken:
        nn.init.normal_(model.recurrent.weight_hh_l0, std=0.001)
    return Case(model=model, data=draw.remembered_series(steps=20), loss="cross_entropy")


@SECOND
def rectified_recurrence_that_grows(broken: bool) -> Case:
    """RNN | 122 | A ReLU recurrence with He's initialisation: states grow over forty steps.
    | recurrent-weights-explode exploding-gradient exploding-signal | recurrent recurrent.weight_hh_l0 |
    clip-gradients gated-recurrence initialise rescale-layer"""
    model = nets.SequenceClassifier(nn.RNN(3, 32, batch_first=True, nonlinearity="relu"), 3)
    nn.init.orthogonal_(model.recurrent.weight_hh_l0)
    if broken:
        nn.init.kaiming_normal_(model.recurrent.weight_hh_l0)
        model.recurrent.weight_hh_l0.data *= 1.5
    return Case(model=model, data=draw.waves(), loss="cross_entropy")


def accuracy_on_prefixes(model: nn.Module, ids: Tensor, following: Tensor, length: int) -> float:
    """Return how often the next token is right where the model is given no more than what comes before it."""
    places = range(4, length, 6)
    with torch.no_grad():
        right = [(model(ids[:, : place + 1])[:, -1].argmax(-1) == following[:, place]) for place in places]
    return torch.stack(right).float().mean().item()


class MaskedAttention(nets.SelfAttention):
    """Causal attention whose mask may be handed over with the wrong meaning of True, or added as zeros and ones."""

    mask = "right"

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length = query.shape[-2]
        past = torch.ones(length, length, dtype=torch.bool).tril()
        mask = {"right": past, "flipped": past.T, "added": past.float()}[self.mask]
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def decoder_with_mask(mask: str) -> nets.GPT:
    """Return a decoder whose attention uses a mask of its own."""
    model = nets.GPT()
    for block in model.blocks:
        weights = block.attention.state_dict()
        block.attention = MaskedAttention(32, 4, causal=True)
        block.attention.load_state_dict(weights)
        block.attention.mask = mask
    return model


@SECOND
def attention_mask_of_gpt2_inverted(broken: bool) -> Case:
    """GPT |  | transformers: the mask marks the pads with 1, so that the words are hidden from each other.
    | attention-mask-wrong | | fix-mask"""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(139)
    ids, _ = draw.text(24)
    used = torch.arange(24) < torch.randint(16, 22, (24, 1))
    config = GPT2Config(**nets.SMALL_GPT2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager")
    data = {"input_ids": ids, "attention_mask": (~used if broken else used).long(), "labels": ids.where(used, -100)}

    def judge(output: object) -> float:
        hit = output.logits[:, :-1].argmax(-1) == ids[:, 1:]
        return hit[used[:, 1:]].float().mean().item()

    return Case(data, GPT2LMHeadModel(config), objective=lambda output: output.loss, judge=judge)


@SECOND
def vision_transformer_with_standard_normal_weights(broken: bool) -> Case:
    """ViT | 7 | GitHub: `nn.init.normal_(module.weight)` with its std of 1 where std=0.02 was meant.
    | attention-saturated exploding-gradient exploding-signal layer-scale-stands-out saturated-units | blocks
    blocks.{0..2} blocks.{0..2}.attention blocks.{0..2}.attention.out blocks.{0..2}.attention.qkv
    blocks.0.feed.{0,2} blocks.1.feed.{0,2} blocks.2.feed.{0,2} head | initialise rescale-layer scale-attention"""
    model = nets.ViT()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.0 if broken else 0.1)
            nn.init.zeros_(module.bias)
    return Case(model=model, data=draw.blob_images(), loss="cross_entropy")


def judge_without_the_future(model: nn.Module, ids: Tensor, targets: Tensor) -> Callable[[Tensor], float]:
    """Return a judge: the accuracy of the next token at the last place of cut texts, where no future can be read."""

    def judge(_: Tensor) -> float:
        scores = [model(ids[:, :length])[:, -1].argmax(-1) == targets[:, length - 1] for length in (8, 12, 16, 20)]
        return torch.stack(scores).float().mean().item()

    return judge


class RootTimes(nets.SelfAttention):  # Attention that multiplies its scores by a factor.
    factor = 1.0

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return super().attend(query * self.factor, key, value)


class Unmoved(nets.SelfAttention):
    """Attention that splits heads by a view of the whole, without moving them in front of the places."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (part.reshape(batch, self.heads, length, -1) for part in self.qkv(x).chunk(3, dim=-1))
        return self.out(self.attend(query, key, value).reshape(batch, length, width))


class MaskedAttentionOfThird(nets.SelfAttention):  # Attention with a mask of its own, true where a place may be seen.
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length = query.shape[-2]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden[-1, -1] = True
        return F.scaled_dot_product_attention(query, key, value, attn_mask=hidden)


# Rows of a table, packed.
# fmt: off
OPEN("""queries-of-one-block-grown | GPT | 1107 | Queries and keys of the second block have grown forty times; the
    attention is inside torch's own function. | attention-saturated layer-scale-stands-out | layers.1 layers.1.k
    layers.1.q | initialise rescale-layer scale-attention""",
    lambda: given(draw.text(24), lambda ids, following: Case((ids, following), rarer_sequences.Llama(), over_tokens,
    judge=rarer.likelihood(following), steps=30)), plant=scaled("layers.1.q.weight layers.1.k.weight", 40))
OPEN("""learned-query-at-fifty | attention | 1108 | The query of an attention pooling drawn at 50, without a division by
    sqrt(d). | attention-saturated layer-scale-stands-out vanishing-gradient | key query | initialise rescale-layer
    scale-attention""",
    lambda: Case(rarer_sequences.needle_sentences(96, 20), rarer_sequences.MaskedReader(), "cross_entropy"),
    plant=drawn("query", 50.0))
OPEN("""reader-sees-the-padding-alone | attention | 847 | masked_fill(ids != 0): the words are hidden, the padding is
    read. | attention-mask-wrong no-gradient output-constant | | fix-mask""",
    lambda broken: Case(model=rarer_sequences.MaskedReader(inverted=broken), data=rarer_sequences.padded_sentences(),
    loss="cross_entropy"))
OPEN("""masked-with-a-small-number | attention | 848 | masked_fill(hidden, 1e-9) instead of -1e9: the padding gets most
    of the attention. | attention-mask-wrong output-constant vanishing-signal | | fix-mask""",
    lambda broken: given(rarer_sequences.MaskedReader(fill=1e-9 if broken else -1e9),
    lambda model: Case(rarer_sequences.padded_sentences(300), model, "cross_entropy")))
OPEN("""cosine-attention-too-cold | attention | 850 | Cosine attention as in Swin V2, whose temperature may not fall
    below 0.01, at 0.0005. | attention-saturated exploding-gradient saturated-units | k q | scale-attention""",
    lambda broken: Case(draw.sentences(96, length=6, vocabulary=14),
    rarer_sequences.Heads(cosine=5e-4 if broken else 0.1), "cross_entropy"))
OPEN("""reservoir-forgets | echo state | 862 | A reservoir with a spectral radius of 0.1 where the pulse is 20 steps
    back. | recurrent-weights-vanish vanishing-signal | recurrent | gated-recurrence initialise rescale-layer""",
    lambda broken: Case(draw.remembered_series(steps=20), rarer_sequences.Reservoir(0.1 if broken else 0.98),
    "cross_entropy"))
OPEN("""state-space-grows | state space model | 863 | The discretisation exp(dt * a) without the minus sign: each step
    multiplies the state by 1.35. | recurrent-weights-explode exploding-gradient exploding-signal saturated-units |
    decay | add-normalizer clip-gradients gated-recurrence initialise rescale-layer""",
    lambda broken: given(draw.remembered_series(steps=50), lambda x, y: Case((x.flip(1), y),
    rarer_sequences.StateSpace(1.35 if broken else 0.98), "cross_entropy")))
OPEN("""state-space-forgets | state space model | 864 | A time step far too long: each step keeps a tenth of the state.
    | recurrent-weights-vanish vanishing-signal | decay | gated-recurrence initialise rescale-layer""",
    lambda broken: Case(draw.remembered_series(steps=50), rarer_sequences.StateSpace(0.1 if broken else 0.98),
    "cross_entropy"))
OPEN("""language-model-without-a-mask | GPT | 2004 | The mask was forgotten: each step reads the token that it is to
    predict. | attention-mask-wrong | key out query value | fix-mask""",
    lambda broken: Case(draw.text(), rarer_sequences.Speaker(causal=not broken), "cross_entropy"))
OPEN("""forget-gates-nearly-shut | RNN | 2010 | The bias of the forget gate at -4 instead of +1.
    | recurrent-weights-vanish saturated-units | recurrent | forget-bias initialise""",
    lambda broken: Case(draw.remembered_series(steps=20), changed(lambda model: put(model.recurrent.bias_hh_l0,
    s_[16:32], -4.0 if broken else 1.0))(nets.SequenceClassifier(nn.LSTM(4, 16, batch_first=True), 4)),
    "cross_entropy"))
OPEN("""recurrent-radius-of-three | RNN | 601 | Recurrent weights drawn at 1 instead of 1 / sqrt(width).
    | recurrent-weights-explode exploding-gradient exploding-signal saturated-units | recurrent
    recurrent.weight_hh_l0 | clip-gradients gated-recurrence initialise rescale-layer""",
    lambda broken: given(draw.remembered_series(), lambda x, y: given(with_radius(nn.RNN(4, 24, batch_first=True),
    3.0 if broken else 1.0), lambda rnn: Case((x, y), nets.SequenceClassifier(rnn, 4), "cross_entropy"))))
OPEN("""recurrent-radius-of-a-hundredth | RNN | 603 | normal_(std=0.001) for every weight, the recurrent one too.
    | recurrent-weights-vanish vanishing-gradient | recurrent recurrent.weight_hh_l0 | gated-recurrence initialise
    rescale-layer""",
    lambda broken: given(draw.remembered_series(), lambda x, y: given(with_radius(nn.RNN(4, 24, batch_first=True),
    0.01 if broken else 1.0), lambda rnn: Case((x, y), nets.SequenceClassifier(rnn, 4), "cross_entropy"))))
OPEN("""scores-without-the-root | GPT | 606 | The division by sqrt(d) is missing, and the weights are drawn at 0.5.
    | attention-saturated saturated-units | blocks.{0,1}.attention blocks.{0,1}.attention.qkv | initialise
    rescale-layer scale-attention""",
    lambda: Case(draw.text(), nets.GPT(depth=2), over_tokens), plant=over(lambda model: model.blocks,
    lambda block: (setattr(block.attention, "__class__", RawAttention), block.attention.qkv.weight.data[:64].mul_(40))))
OPEN("""padding-mask-inverted | BERT | 610 | In PyTorch's key_padding_mask True means hidden, elsewhere it means
    visible. | attention-mask-wrong condition-switched-off output-constant | encoder encoder.layers.{0,1}
    encoder.layers.{0,1}.self_attn | fix-mask""",
    lambda broken: given(draw.sentences(length=8), lambda ids, y: Case((F.pad(F.pad(ids, (1, 0), value=1), (0, 4)), y),
    changed(lambda model: setattr(model, "inverted", broken))(PaddedEncoder(length=13)), "cross_entropy")))
OPEN("""memory-mask-inverted | cross-attention | 612 | A mask of what is filled handed over as a mask of what is to be
    hidden. | attention-mask-wrong condition-switched-off output-constant | attention | fix-mask""",
    lambda broken: Case(questions(), CrossAttention(broken), "cross_entropy", judge_of=accuracy))
FIRST("""huge-logits-in-one-block | ViT | 119 | Logits that grew in one block of a long run (Dehghani et al. 2023),
    inside scaled_dot_product_attention. | attention-saturated layer-scale-stands-out | blocks.1 blocks.1.attention
    blocks.1.attention.qkv | initialise rescale-layer scale-attention""",
    lambda: given(draw.blob_images(32, classes=4), lambda x, y: Case(x, nets.ViT(depth=3),
    objective=lambda output: F.cross_entropy(output, y), judge=accuracy(y))),
    plant=scaled("blocks.1.attention.qkv.weight", 200.0))
FIRST("""causal-mask-inverted | GPT | 121 | True means 'may look' in one attention and 'hidden' in the other; the last
    row sees nothing.
    | attention-mask-wrong not-finite output-constant | blocks.{0,1} blocks.{0,1}.attention | fix-mask""",
    lambda broken: Case(draw.text(), over(lambda model: model.blocks, lambda block: (setattr(block.attention,
    "__class__", Masked), setattr(block.attention, "inverted", broken)))(nets.GPT()), over_tokens))
SECOND("""forget-gates-closed | LSTM | 123 | The order of gates was mistaken: the bias of -5 was meant for another gate.
    | recurrent-weights-vanish saturated-units vanishing-gradient | recurrent recurrent.bias_hh_l0
    recurrent.bias_ih_l0 | forget-bias initialise reset-bias""",
    lambda broken: given(nets.SequenceClassifier(nn.LSTM(4, 24, batch_first=True), 4),
    lambda model: Case(draw.remembered_series(steps=24), over(lambda model: (model.recurrent.bias_ih_l0,
    model.recurrent.bias_hh_l0), lambda bias: nn.init.constant_(bias[24:48], -5.0 if broken else 1.0))(model),
    "cross_entropy")))
SECOND("""state-begun-anew-at-every-step | LSTM | 127 | A cell called without its state: each step begins at zero, and
    the recurrent weights get no gradient. | recurrent-weights-vanish no-gradient unused-parameter vanishing-gradient |
    cell cell.weight_hh | carry-state use-parameter""",
    lambda broken: Case(model=rarer_sequences.CellLoop(anew=broken), data=draw.remembered_series(steps=12),
    loss="cross_entropy"))
SECOND("""decoder-without-a-causal-mask | GPT | 131 | The loss falls to almost nothing because each token sees the next
    one; generation is gibberish.
    | future-visible attention-mask-wrong | blocks blocks.{0,1} blocks.{0,1}.attention | fix-mask""",
    lambda broken: given(draw.text(), lambda ids, following: given(nets.GPT(), lambda model: Case((ids, following),
    over(lambda model: model.blocks, lambda block: setattr(block.attention, "causal", not broken))(model), over_tokens,
    judge_of=lambda following: lambda _: accuracy_on_prefixes(model, ids, following, 24)))))
SECOND("""words-hidden-instead-of-padding | BERT | 132 | torch's key_padding_mask is True at the pads, the
    attention_mask of transformers is 1 at the words. | attention-mask-wrong padding-counted | encoder
    encoder.layers.{0,1} encoder.layers.{0,1}.self_attn | fix-mask mask-padding""",
    lambda broken: given(rarer_sequences.MaskedEncoder("inverted" if broken else "right", length=24, first=True),
    lambda model: Case(rarer_sequences.padded_sentences_of_second(160, length=24), model, "cross_entropy")))
SECOND("""triangle-of-the-wrong-side | GPT | 134 | triu instead of tril: each token sees itself and the future, and
    nothing of its past.
    | attention-mask-wrong future-visible | blocks blocks.{0,1} blocks.{0,1}.attention | fix-mask""",
    lambda broken: given(draw.text(), lambda ids, following: given(decoder_with_mask("flipped" if broken else "right"),
    lambda model: Case((ids, following), model, over_tokens,
    judge_of=lambda following: lambda _: accuracy_on_prefixes(model, ids, following, 24)))))
SECOND("""mask-of-zeros-and-ones-added | GPT | 135 | A float mask is added to the logits: 0 and 1 instead of minus
    infinity and 0 hide nothing.
    | future-visible attention-mask-wrong | blocks blocks.{0,1} blocks.{0,1}.attention | fix-mask""",
    lambda broken: given(draw.text(), lambda ids, following: given(decoder_with_mask("added" if broken else "right"),
    lambda model: Case((ids, following), model, over_tokens,
    judge_of=lambda following: lambda _: accuracy_on_prefixes(model, ids, following, 24)))))
THIRD("""next-word-read-from-behind | GRU | 101 | A bidirectional layer is to predict the next word, which its second
    direction has just read. | future-visible | recurrent | fix-mask shift-targets use-one-direction""",
    lambda broken: given(draw.text(), lambda x, y: given(nets.made("RecurrentReader",
    lambda self, ids: self.head(self.recurrent(self.words(ids))[0]), words=nn.Embedding(40, 32),
    recurrent=nn.GRU(32, 32 if broken else 64, batch_first=True, bidirectional=broken), head=nn.Linear(64, 40)),
    lambda model: Case((x, y), model, over_tokens, judge=judge_without_the_future(model, x, y)))))
THIRD("""recurrent-matrix-of-an-lstm-times-forty | LSTM | 106 | Weights of a quantised model are loaded without their
    factor. | recurrent-weights-explode exploding-gradient layer-scale-stands-out saturated-units | recurrent
    recurrent.weight_hh_l0 | clip-gradients gated-recurrence initialise rescale-layer""",
    lambda: Case(draw.remembered_series(steps=30), nets.SequenceClassifier(nn.LSTM(4, 32, batch_first=True), 4),
    "cross_entropy"), plant=scaled("recurrent.weight_hh_l0", 40))
THIRD("""class-token-in-front-of-a-causal-mask | ViT | 107 | Blocks of a decoder are used for images: the class token
    comes first and may see nothing but itself. | attention-mask-wrong condition-switched-off inputs-constant
    output-constant | blocks blocks.{0..2} blocks.{0..2}.attention head patches token | fix-mask""",
    lambda broken: Case(draw.blob_images(), over(lambda model: model.blocks, lambda block: setattr(block.attention,
    "causal", broken))(nets.ViT()), "cross_entropy"))
THIRD("""scores-times-the-width | GPT | 108 | Scores are multiplied by the width where they were to be divided by its
    root. | attention-saturated exploding-gradient | blocks blocks.{0,1} blocks.{0,1}.attention
    blocks.{0,1}.attention.qkv | initialise rescale-layer scale-attention""",
    lambda broken: Case(draw.text(), over(lambda model: model.blocks,
    lambda block: (nn.init.normal_(block.attention.qkv.weight, std=0.2), setattr(block.attention, "__class__",
    RootTimes), setattr(block.attention, "factor", 32.0 * 8**0.5 if broken else 1.0)))(nets.GPT(tied=False)),
    over_tokens))
THIRD("""heads-split-without-a-transpose | GPT | 109 | `view(batch, heads, length, -1)` cuts the text into pieces: the
    causal mask holds within a piece only.
    | future-visible attention-mask-wrong | blocks blocks.{0,1} blocks.{0,1}.attention | fix-axis fix-mask""",
    lambda: given(draw.text(), lambda x, y: given(nets.GPT(), lambda model: Case((x, y), model, over_tokens,
    judge=judge_without_the_future(model, x, y)))), plant=over(lambda model: model.blocks,
    lambda block: setattr(block.attention, "__class__", Unmoved)))
THIRD("""mask-of-the-module-given-to-the-function | GPT | 110 | True hides in `nn.MultiheadAttention` and shows in
    `scaled_dot_product_attention`.
    | attention-mask-wrong future-visible | blocks blocks.{0,1} blocks.{0,1}.attention | fix-mask""",
    lambda: given(draw.text(), lambda x, y: given(nets.GPT(), lambda model: Case((x, y), model, over_tokens,
    judge=judge_without_the_future(model, x, y)))), plant=over(lambda model: model.blocks,
    lambda block: setattr(block.attention, "__class__", MaskedAttentionOfThird)))
