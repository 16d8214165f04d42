"""Held-out faults of attention and of recurrent layers."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from .. import parts

FAULTS: list[Fault] = []


def scaled_to_radius(matrix: Tensor, radius: float) -> None:
    """Scale a square matrix in place so that its largest eigenvalue has this size."""
    with torch.no_grad():
        matrix.mul_(radius / torch.linalg.eigvals(matrix).abs().max())


@fault(
    FAULTS,
    family="RNN",
    causes="recurrent-weights-explode saturated-units exploding-gradient vanishing-gradient layer-scale-stands-out",
    layers="recurrent recurrent.weight_hh_l0",
    remedies="initialise rescale-layer gated-recurrence clip-gradients",
    source="weight_hh drawn from N(0, 1): a spectral radius of several.",
)
def tanh_states_driven_apart(planted: bool) -> Case:
    torch.manual_seed(111)
    x, y = parts.remembered_series(steps=50)
    recurrent = nn.RNN(4, 32, batch_first=True)
    nn.init.orthogonal_(recurrent.weight_hh_l0)
    if planted:
        nn.init.normal_(recurrent.weight_hh_l0)
        scaled_to_radius(recurrent.weight_hh_l0, 4.0)
    return Case(model=parts.SequenceClassifier(recurrent, 4), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="RNN",
    causes="recurrent-weights-explode exploding-signal exploding-gradient",
    layers="recurrent recurrent.weight_hh_l0",
    remedies="initialise rescale-layer gated-recurrence clip-gradients",
    source="A ReLU recurrent layer started at 1.5 times the identity in place of the identity (Le et al. 2015).",
)
def relu_states_that_grow(planted: bool) -> Case:
    torch.manual_seed(112)
    x, y = parts.remembered_series(steps=40)
    x = x.flip(1)  # what counts comes last, where early noise has grown ten million times
    recurrent = nn.RNN(4, 32, nonlinearity="relu", batch_first=True)
    with torch.no_grad():
        recurrent.weight_hh_l0.copy_((1.5 if planted else 1.0) * torch.eye(32))
        recurrent.weight_ih_l0.mul_(0.3)
        recurrent.bias_ih_l0.zero_()
        recurrent.bias_hh_l0.zero_()
    model = parts.SequenceClassifier(recurrent, 4)
    return Case(model=model, data=(x, y), objective=lambda output: F.cross_entropy(output, y), judge=parts.accuracy(y))


@fault(
    FAULTS,
    family="RNN",
    causes="recurrent-weights-vanish vanishing-gradient layer-scale-stands-out",
    layers="recurrent recurrent.weight_hh_l0",
    remedies="initialise rescale-layer gated-recurrence",
    source="weight_hh drawn with std=1e-3: what was seen is gone after two steps.",
)
def states_that_forget_at_once(planted: bool) -> Case:
    torch.manual_seed(113)
    x, y = parts.remembered_series(steps=50)
    recurrent = nn.RNN(4, 32, batch_first=True)
    nn.init.orthogonal_(recurrent.weight_hh_l0)
    if planted:
        scaled_to_radius(recurrent.weight_hh_l0, 0.01)
    return Case(model=parts.SequenceClassifier(recurrent, 4), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="LSTM",
    causes="recurrent-weights-vanish saturated-units vanishing-gradient bias-holds-units-off",
    layers="recurrent recurrent.bias_ih_l0 recurrent.bias_hh_l0",
    remedies="forget-bias reset-bias initialise",
    source="The wrong quarter of the bias is filled, with the wrong sign: the forget gate is shut.",
)
def forget_gate_shut(planted: bool) -> Case:
    torch.manual_seed(114)
    x, y = parts.remembered_series(steps=30)
    recurrent = nn.LSTM(4, 24, batch_first=True)
    with torch.no_grad():
        recurrent.bias_ih_l0[24:48] = -10.0 if planted else 2.0
    return Case(model=parts.SequenceClassifier(recurrent, 4), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="GRU",
    causes="saturated-units recurrent-weights-vanish output-constant vanishing-signal vanishing-gradient",
    layers="recurrent recurrent.bias_ih_l0 recurrent.bias_hh_l0",
    remedies="reset-bias initialise forget-bias",
    source="The LSTM trick of a positive bias applied to the update gate of a GRU, too strongly: states stay at 0.",
)
def update_gate_shut(planted: bool) -> Case:
    torch.manual_seed(115)
    x, y = parts.waves(48, steps=24)
    recurrent = nn.GRU(3, 24, batch_first=True)
    with torch.no_grad():
        recurrent.bias_ih_l0[24:48] = 16.0 if planted else 0.0
    return Case(model=parts.SequenceClassifier(recurrent, 3), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="LSTM",
    causes="saturated-units inputs-not-scaled",
    layers="recurrent recurrent.weight_ih_l0",
    remedies="scale-inputs add-normalizer",
    source="Raw prices of a stock (around 3000) fed to an LSTM.",
)
def gates_saturated_by_raw_prices(planted: bool) -> Case:
    torch.manual_seed(116)
    x, y = parts.waves(48, steps=24, features=2)
    model = parts.SequenceClassifier(nn.LSTM(2, 24, batch_first=True), 3)
    return Case(model=model, data=(3000 + 300 * x if planted else x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="LSTM",
    causes="samples-mixed",
    layers="recurrent",
    remedies="fix-axis",
    source="batch_first forgotten: the recurrence runs over the samples (PyTorch forum, often).",
)
def batch_first_forgotten(planted: bool) -> Case:
    torch.manual_seed(117)
    x, y = parts.remembered_series(steps=15)
    model = parts.SequenceClassifier(nn.LSTM(4, 24, batch_first=not planted), 4)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


class UnscaledAttention(parts.SelfAttention):
    """Attention without the division by the root of the width."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -math.inf).softmax(-1) @ value


@fault(
    FAULTS,
    family="GPT",
    causes="attention-saturated layer-scale-stands-out",
    layers=" ".join(f"blocks.{i} blocks.{i}.attention blocks.{i}.attention.qkv" for i in (0, 1)),
    remedies="scale-attention rescale-layer initialise",
    source="softmax(q @ k.T) without 1/sqrt(d), beside weights of nn.Linear's size for a wide model.",
)
def attention_without_division(planted: bool) -> Case:
    torch.manual_seed(118)
    ids, following = parts.text(24)
    model = parts.GPT(width=64)
    if planted:
        for block in model.blocks:
            block.attention = UnscaledAttention(64, 4, causal=True)
            nn.init.normal_(block.attention.qkv.weight, std=0.5)
            nn.init.normal_(block.attention.out.weight, std=0.02)
    return Case(model=model, data=(ids, following), loss=parts.over_tokens)


@fault(
    FAULTS,
    family="ViT",
    causes="attention-saturated layer-scale-stands-out",
    layers="blocks.1 blocks.1.attention blocks.1.attention.qkv blocks.1.attention.qkv.weight",
    remedies="rescale-layer initialise scale-attention",
    source="Logits that grew in one block of a long run (Dehghani et al. 2023), inside scaled_dot_product_attention.",
)
def huge_logits_in_one_block(planted: bool) -> Case:
    torch.manual_seed(119)
    x, y = parts.blob_images(32, classes=4)
    model = parts.ViT(depth=3)
    if planted:
        with torch.no_grad():
            model.blocks[1].attention.qkv.weight.mul_(200.0)
    return Case(model=model, data=x, objective=lambda output: F.cross_entropy(output, y), judge=parts.accuracy(y))


class Masked(parts.SelfAttention):
    """Attention with a mask of its own, written out."""

    inverted = False

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        hidden = visible if self.inverted else ~visible
        return scores.masked_fill(hidden, -math.inf).softmax(-1) @ value


@fault(
    FAULTS,
    family="GPT",
    causes="attention-mask-wrong not-finite output-constant",
    layers="blocks.0 blocks.0.attention blocks.1 blocks.1.attention",
    remedies="fix-mask",
    source="True means 'may look' in one attention and 'hidden' in the other; the last row sees nothing.",
)
def causal_mask_inverted(planted: bool) -> Case:
    torch.manual_seed(121)
    ids, following = parts.text()
    model = parts.GPT()
    for block in model.blocks:
        block.attention.__class__ = Masked
        block.attention.inverted = planted
    return Case(model=model, data=(ids, following), loss=parts.over_tokens)


@fault(
    FAULTS,
    family="BERT",
    causes="attention-mask-wrong not-finite",
    layers="attention encoder_layer",
    remedies="fix-mask clean-data check-data",
    source="key_padding_mask of an empty text hides every key: the softmax of nothing is NaN.",
)
def every_key_hidden(planted: bool) -> Case:
    torch.manual_seed(122)

    class Padded(nn.Module):
        """Attention over words of which 0 is padding, then a mean."""

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(50, 32, padding_idx=0)
            self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
            self.encoder_layer = parts.mlp(32, 32, 2)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            mixed, _ = self.attention(x, x, x, key_padding_mask=ids == 0)
            return self.encoder_layer((x + mixed).mean(1))

    ids, _ = parts.sentences()
    y = (ids[:, 0] > 30).long()
    ids[:, 10:] = 0
    if planted:
        ids[3] = 0
    return Case(model=Padded(), data=(ids, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="GPT",
    causes="branch-dominates layer-scale-stands-out",
    layers="positions positions.weight tokens tokens.weight",
    remedies="rescale-layer initialise scale-branch",
    source="Positions drawn by nn.Embedding's default and then scaled, tokens drawn with 0.02: words are lost.",
)
def positions_drown_the_tokens(planted: bool) -> Case:
    torch.manual_seed(123)
    ids, following = parts.text()
    model = parts.GPT()
    if planted:
        nn.init.normal_(model.positions.weight, std=20.0)
    return Case(model=model, data=(ids, following), loss=parts.over_tokens)


@fault(
    FAULTS,
    family="GPT",
    causes="precision not-finite attention-saturated",
    layers="blocks.0.attention blocks.1.attention blocks.0 blocks.1 blocks.1.attention.qkv",
    remedies="raise-precision scale-attention rescale-layer",
    source="float16: the product of queries and keys passes 65504 before it is divided.",
)
def attention_overflows_in_half(planted: bool) -> Case:
    torch.manual_seed(124)
    ids, following = parts.text(8)
    model: Any = parts.GPT(width=64)

    class LateDivision(parts.SelfAttention):
        """Divides after the product, as many hand-written attentions do."""

        def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            scores = query @ key.transpose(-2, -1) / 16
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            return scores.masked_fill(hidden, -math.inf).softmax(-1) @ value

    if planted:
        attention = model.blocks[1].attention
        attention.__class__ = LateDivision
        with torch.no_grad():
            attention.qkv.weight[:128].mul_(1000.0)
        model.half()
    return Case(model=model, data=(ids, following), loss=parts.over_tokens)


@fault(
    FAULTS,
    family="BERT",
    causes="zero-weights output-constant no-gradient",
    layers="bert.encoder.layer.1.output.LayerNorm bert.encoder.layer.1.output.LayerNorm.weight bert.encoder.layer.1",
    remedies="initialise restore-weights",
    source="A LayerNorm whose gain was filled with the zeros of its bias when keys were renamed.",
)
def gain_of_a_layer_norm_is_zero(planted: bool) -> Case:
    torch.manual_seed(125)
    model = _bert()
    if planted:
        nn.init.zeros_(model.bert.encoder.layer[1].output.LayerNorm.weight)
    ids, _ = parts.sentences(48)
    data = {"input_ids": ids}
    return Case(
        model=model, data=data, objective=lambda output: F.cross_entropy(output.logits, (ids[:, 0] > 30).long())
    )


def _bert() -> Any:
    """Return a small BERT of Hugging Face for two classes."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


@fault(
    FAULTS,
    family="GPT",
    causes="attention-saturated layer-scale-stands-out",
    layers="transformer.h.1 transformer.h.1.attn transformer.h.1.attn.c_attn transformer.h.1.attn.c_attn.weight",
    remedies="rescale-layer initialise scale-attention",
    source="One attention projection of a GPT-2 drawn with nn.init.normal_'s default of 1.",
)
def attention_of_gpt2_drawn_with_unit_variance(planted: bool) -> Case:
    torch.manual_seed(126)
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**parts.SMALL_GPT2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model: Any = GPT2LMHeadModel(config)
    if planted:
        nn.init.normal_(model.transformer.h[1].attn.c_attn.weight, std=2.0)
    ids, following = parts.text(24)
    data = {"input_ids": ids}
    return Case(model=model, data=data, objective=lambda output: parts.over_tokens(output.logits, following))


@fault(
    FAULTS,
    family="diffusion",
    causes="one-input-column-dominates inputs-not-scaled branch-dominates exploding-signal exploding-gradient",
    layers="time time.0 first",
    remedies="scale-inputs rescale-layer add-normalizer",
    source="The time (0..1000) fed to a linear layer as it is, without sine features or a division.",
)
def raw_time_steps(planted: bool) -> Case:
    torch.manual_seed(127)

    class RawTime(parts.Denoiser):
        """Embeds the bare number of the step."""

        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 16))

        def embed_time(self, t: Tensor) -> Tensor:
            return self.time(t[:, None] if planted else t[:, None] / 500 - 1)[:, :, None, None]

    batch, noise = parts.noisy_images()
    return Case(model=RawTime(), data=batch, objective=lambda output: F.mse_loss(output, noise))
