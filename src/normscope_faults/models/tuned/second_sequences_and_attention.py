"""Faults of recurrence and attention."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    GPT,
    SMALL_GPT2,
    SelfAttention,
    SentenceEncoder,
    SequenceClassifier,
    ViT,
    blob_images,
    over_tokens,
    remembered_series,
    sentences,
    text,
    waves,
)
from .second_gradients_and_parameters import CellLoop

FAULTS: list[Fault] = []

# ---------------------------------------------------------------------------------------------------------- recurrence


@fault(
    FAULTS, "RNN", causes="recurrent-weights-vanish vanishing-gradient zero-weights layer-scale-stands-out",
    layers="recurrent recurrent.weight_hh_l0", remedies="initialise gated-recurrence rescale-layer",
)  # fmt: skip
def recurrent_weights_close_to_zero(planted: bool) -> Case:
    """normal_(std=0.001) for all weights, the recurrent ones included: the past is forgotten at once."""
    torch.manual_seed(121)
    model = SequenceClassifier(nn.RNN(4, 24, batch_first=True), 4)
    nn.init.orthogonal_(model.recurrent.weight_hh_l0)
    if planted:
        nn.init.normal_(model.recurrent.weight_hh_l0, std=0.001)
    return Case(model=model, data=remembered_series(steps=20), loss="cross_entropy")


@fault(
    FAULTS, "RNN", causes="recurrent-weights-explode exploding-signal exploding-gradient",
    layers="recurrent recurrent.weight_hh_l0",
    remedies="initialise gated-recurrence rescale-layer clip-gradients",
)  # fmt: skip
def rectified_recurrence_that_grows(planted: bool) -> Case:
    """A ReLU recurrence with He's initialisation: states grow over forty steps."""
    torch.manual_seed(122)
    model = SequenceClassifier(nn.RNN(3, 32, batch_first=True, nonlinearity="relu"), 3)
    nn.init.orthogonal_(model.recurrent.weight_hh_l0)
    if planted:
        nn.init.kaiming_normal_(model.recurrent.weight_hh_l0)
        model.recurrent.weight_hh_l0.data *= 1.5
    return Case(model=model, data=waves(), loss="cross_entropy")


@fault(
    FAULTS, "LSTM", causes="recurrent-weights-vanish saturated-units vanishing-gradient",
    layers="recurrent recurrent.bias_ih_l0 recurrent.bias_hh_l0", remedies="forget-bias reset-bias initialise",
)  # fmt: skip
def forget_gates_closed(planted: bool) -> Case:
    """The order of gates was mistaken: the bias of -5 was meant for another gate."""
    torch.manual_seed(123)
    model = SequenceClassifier(nn.LSTM(4, 24, batch_first=True), 4)
    for bias in (model.recurrent.bias_ih_l0, model.recurrent.bias_hh_l0):
        nn.init.constant_(bias[24:48], -5.0 if planted else 1.0)
    return Case(model=model, data=remembered_series(steps=24), loss="cross_entropy")


@fault(FAULTS, "LSTM", causes="samples-mixed", layers="recurrent", remedies="fix-axis")
def recurrence_over_the_samples(planted: bool) -> Case:
    """The default of nn.LSTM is (steps, batch, features): without batch_first it runs over the samples."""
    torch.manual_seed(124)
    model = SequenceClassifier(nn.LSTM(3, 24, batch_first=not planted), 3)
    return Case(model=model, data=waves(), loss="cross_entropy")


class PaddedReader(nn.Module):
    """A GRU over token ids that reads its state after the last step, or after the last word."""

    def __init__(self, at_word: bool) -> None:
        super().__init__()
        self.words, self.recurrent, self.head = nn.Embedding(50, 16), nn.GRU(16, 24, batch_first=True), nn.Linear(24, 2)
        self.at_word = at_word

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.recurrent(self.words(ids))
        last = (ids != 0).sum(1) - 1 if self.at_word else torch.full((len(ids),), ids.shape[1] - 1)
        return self.head(states[torch.arange(len(ids)), last])


def padded_sentences(count: int = 64, length: int = 100) -> tuple[Tensor, Tensor]:
    """Return sentences of 6 to 10 words, padded with id 0, and whether word 7 comes before word 8."""
    ids, labels = sentences(count, 6)
    more = torch.randint(10, 50, (count, 4)) * (torch.arange(4) < torch.randint(5, (count, 1)))
    return F.pad(torch.cat([ids, more], dim=1), (0, length - 10)), labels


@fault(
    FAULTS, "GRU", causes="padding-counted vanishing-gradient recurrent-weights-vanish", layers="recurrent words",
    remedies="mask-padding fix-mask",
)  # fmt: skip
def state_read_after_ninety_pads(planted: bool) -> Case:
    """PyTorch forums: no pack_padded_sequence, the last state has seen mostly padding."""
    torch.manual_seed(125)
    return Case(model=PaddedReader(not planted), data=padded_sentences(), loss="cross_entropy")


@fault(
    FAULTS, "GRU", causes="saturated-units output-constant vanishing-signal vanishing-gradient", layers="recurrent "
    "recurrent.bias_ih_l0 recurrent.bias_hh_l0", remedies="reset-bias initialise forget-bias",
)  # fmt: skip
def update_gates_never_open(planted: bool) -> Case:
    """A bias of 12 on the update gates of torch's GRU keeps the state at zero (Keras has them the other way around)."""
    torch.manual_seed(126)
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    if planted:
        nn.init.constant_(model.recurrent.bias_ih_l0[24:48], 12.0)
    return Case(model=model, data=waves(), loss="cross_entropy")


@fault(
    FAULTS, "LSTM", causes="recurrent-weights-vanish unused-parameter no-gradient vanishing-gradient",
    layers="cell cell.weight_hh", remedies="carry-state use-parameter",
)  # fmt: skip
def state_begun_anew_at_every_step(planted: bool) -> Case:
    """A cell called without its state: each step begins at zero, and the recurrent weights get no gradient."""
    torch.manual_seed(127)
    return Case(model=CellLoop(anew=planted), data=remembered_series(steps=12), loss="cross_entropy")


# ----------------------------------------------------------------------------------------------------------- attention


def accuracy_on_prefixes(model: nn.Module, ids: Tensor, following: Tensor, length: int) -> float:
    """Return how often the next token is right where the model is given no more than what comes before it."""
    places = range(4, length, 6)
    with torch.no_grad():
        right = [(model(ids[:, : place + 1])[:, -1].argmax(-1) == following[:, place]) for place in places]
    return torch.stack(right).float().mean().item()


@fault(
    FAULTS, "GPT", causes="future-visible attention-mask-wrong",
    layers="blocks.0.attention blocks.1.attention blocks.0 blocks.1 blocks", remedies="fix-mask",
)  # fmt: skip
def decoder_without_a_causal_mask(planted: bool) -> Case:
    """The loss falls to almost nothing because each token sees the next one; generation is gibberish."""
    torch.manual_seed(131)
    ids, following = text()
    model = GPT()
    for block in model.blocks:
        block.attention.causal = not planted
    return Case(
        model=model, data=(ids, following), loss=over_tokens,
        judge=lambda _: accuracy_on_prefixes(model, ids, following, 24),
    )  # fmt: skip


class MaskedEncoder(SentenceEncoder):
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


@fault(
    FAULTS, "BERT", causes="attention-mask-wrong padding-counted", remedies="fix-mask mask-padding",
    layers="encoder encoder.layers.0 encoder.layers.0.self_attn encoder.layers.1 encoder.layers.1.self_attn",
)  # fmt: skip
def words_hidden_instead_of_padding(planted: bool) -> Case:
    """torch's key_padding_mask is True at the pads, the attention_mask of transformers is 1 at the words."""
    torch.manual_seed(132)
    model = MaskedEncoder("inverted" if planted else "right", length=24, first=True)
    return Case(model=model, data=padded_sentences(160, length=24), loss="cross_entropy")


@fault(
    FAULTS, "BERT", causes="padding-counted attention-mask-wrong", remedies="mask-padding fix-mask",
    layers="encoder encoder.layers.0 encoder.layers.0.self_attn encoder.layers.1 encoder.layers.1.self_attn words",
)  # fmt: skip
def padding_attended_to_and_averaged(planted: bool) -> Case:
    """The tokenizer's attention mask is not passed on: nine of ten tokens that are seen are pads."""
    torch.manual_seed(133)
    model = MaskedEncoder("none" if planted else "right", length=100)
    return Case(model=model, data=padded_sentences(), loss="cross_entropy")


class MaskedAttention(SelfAttention):
    """Causal attention whose mask may be handed over with the wrong meaning of True, or added as zeros and ones."""

    mask = "right"

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length = query.shape[-2]
        past = torch.ones(length, length, dtype=torch.bool).tril()
        mask = {"right": past, "flipped": past.T, "added": past.float()}[self.mask]
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def decoder_with_mask(mask: str) -> GPT:
    """Return a decoder whose attention uses a mask of its own."""
    model = GPT()
    for block in model.blocks:
        weights = block.attention.state_dict()
        block.attention = MaskedAttention(32, 4, causal=True)
        block.attention.load_state_dict(weights)
        block.attention.mask = mask
    return model


@fault(
    FAULTS, "GPT", causes="attention-mask-wrong future-visible", remedies="fix-mask",
    layers="blocks.0.attention blocks.1.attention blocks.0 blocks.1 blocks",
)  # fmt: skip
def triangle_of_the_wrong_side(planted: bool) -> Case:
    """triu instead of tril: each token sees itself and the future, and nothing of its past."""
    torch.manual_seed(134)
    ids, following = text()
    model = decoder_with_mask("flipped" if planted else "right")
    return Case(
        model=model, data=(ids, following), loss=over_tokens,
        judge=lambda _: accuracy_on_prefixes(model, ids, following, 24),
    )  # fmt: skip


@fault(
    FAULTS, "GPT", causes="future-visible attention-mask-wrong", remedies="fix-mask",
    layers="blocks.0.attention blocks.1.attention blocks.0 blocks.1 blocks",
)  # fmt: skip
def mask_of_zeros_and_ones_added(planted: bool) -> Case:
    """A float mask is added to the logits: 0 and 1 instead of minus infinity and 0 hide nothing."""
    torch.manual_seed(135)
    ids, following = text()
    model = decoder_with_mask("added" if planted else "right")
    return Case(
        model=model, data=(ids, following), loss=over_tokens,
        judge=lambda _: accuracy_on_prefixes(model, ids, following, 24),
    )  # fmt: skip


class HandmadeAttention(SelfAttention):
    """Attention by hand, with a dimension for its softmax."""

    dim = -1

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        return logits.softmax(self.dim) @ value


class FirstTokenEncoder(SentenceEncoder):
    """An encoder that reads the state of the first token."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.encoder(self.norm(x))[:, 0])


@fault(
    FAULTS, "BERT", causes="samples-mixed", remedies="fix-axis",
    layers="encoder encoder.layers.0 encoder.layers.0.self_attn encoder.layers.1 encoder.layers.1.self_attn",
)  # fmt: skip
def sentences_attend_to_other_sentences(planted: bool) -> Case:
    """nn.TransformerEncoderLayer without batch_first: tokens look at the same place of other sentences."""
    torch.manual_seed(137)
    model = FirstTokenEncoder()
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=not planted, activation="gelu")
    model.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Case(model=model, data=sentences(192), loss="cross_entropy")


@fault(
    FAULTS, "ViT", causes="normalizer-wrong-axis samples-mixed", remedies="fix-axis",
    layers="blocks.0.attention blocks.1.attention blocks.2.attention blocks blocks.0 blocks.1 blocks.2",
)  # fmt: skip
def attention_softmax_over_the_images(planted: bool) -> Case:
    """softmax(dim=0) on (batch, heads, query, key): the images of the batch compete with each other."""
    torch.manual_seed(138)
    model = ViT()
    for block in model.blocks:
        block.attention = HandmadeAttention(32, 4, causal=False)
        block.attention.dim = 0 if planted else -1
    images, labels = blob_images()

    def judge(_: Tensor) -> float:
        with torch.no_grad():
            alone = torch.cat([model(image[None]) for image in images])
        return (alone.argmax(1) == labels).float().mean().item()

    return Case(model=model, data=(images, labels), loss="cross_entropy", judge=judge)


@fault(
    FAULTS, "GPT", causes="attention-mask-wrong", remedies="fix-mask", layers="",
)  # fmt: skip
def attention_mask_of_gpt2_inverted(planted: bool) -> Case:
    """transformers: the mask marks the pads with 1, so that the words are hidden from each other."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(139)
    ids, _ = text(24)
    used = torch.arange(24) < torch.randint(16, 22, (24, 1))
    config = GPT2Config(**SMALL_GPT2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager")
    data = {"input_ids": ids, "attention_mask": (~used if planted else used).long(), "labels": ids.where(used, -100)}

    def judge(output: object) -> float:
        hit = output.logits[:, :-1].argmax(-1) == ids[:, 1:]
        return hit[used[:, 1:]].float().mean().item()

    return Case(model=GPT2LMHeadModel(config), data=data, objective=lambda output: output.loss, judge=judge)
