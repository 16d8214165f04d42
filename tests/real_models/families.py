"""Real architectures with tiny random configurations.

``FAMILIES`` maps a name to a builder without arguments that returns
``(model, batch, output)``: the model in eval mode exactly as a user would have it
(default ``use_cache``, default attention), a batch, and the name of the output to study
(``None`` when the model returns one tensor).  Image models take a bare tensor; the
``*_dict`` twins take the same pixels as ``{"pixel_values": ...}``.  Text models take a
dict with ``input_ids`` and ``attention_mask``.

Weights and batches are seeded, and the caller's random state is left as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

Batch = torch.Tensor | dict[str, torch.Tensor]
Case = tuple[nn.Module, Batch, str | None]
Builder = Callable[[], Case]

VOCAB = 64
SEQ_LEN = 7
BATCH = 2

FAMILIES: dict[str, Builder] = {}


def family(name: str) -> Callable[[Builder], Builder]:
    """Register a builder that runs under its own seed and leaves the global RNG alone."""

    def register(build: Builder) -> Builder:
        @functools.wraps(build)
        def seeded() -> Case:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(sum(map(ord, name)))
                model, batch, output = build()
                return model.eval(), batch, output

        FAMILIES[name] = seeded
        return seeded

    return register


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pixels(size: int = 32, batch: int = BATCH, channels: int = 3) -> torch.Tensor:
    return torch.randn(batch, channels, size, size, generator=_generator())


def tokens(vocab: int = VOCAB, length: int = SEQ_LEN, batch: int = BATCH) -> dict[str, torch.Tensor]:
    """Token ids without padding (the ids avoid 0..3, which models use for special tokens)."""
    ids = torch.randint(4, vocab, (batch, length), generator=_generator(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def padded_tokens(vocab: int = VOCAB, length: int = SEQ_LEN) -> dict[str, torch.Tensor]:
    """As ``tokens``, the first sequence padded on the right by two positions, the second by one."""
    batch = tokens(vocab, length)
    batch["attention_mask"][0, -2:] = 0
    batch["attention_mask"][1, -1:] = 0
    return batch


def sequence(length: int = SEQ_LEN, width: int = 32, batch: int = BATCH) -> torch.Tensor:
    return torch.randn(batch, length, width, generator=_generator(2))


def lifelike(model: nn.Module) -> nn.Module:
    """Give a fresh convolutional network the scale of a trained one.

    With the default initialisation (weights of deviation 0.02) the deep ones are constant to fourteen digits.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            with torch.no_grad():
                module.running_mean.normal_(0.0, 0.2)
                module.running_var.uniform_(0.5, 2.0)
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0.0, 0.1)
    return model


# --------------------------------------------------------------------------- images


def _resnet(layer_type: str) -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[2, 2],
        layer_type=layer_type,
        num_labels=10,
    )
    return lifelike(ResNetForImageClassification(config))


@family("resnet_basic")
def resnet_basic() -> Case:
    return _resnet("basic"), pixels(16), "logits"


@family("resnet_bottleneck")
def resnet_bottleneck() -> Case:
    return _resnet("bottleneck"), pixels(16), "logits"


@family("resnet_basic_dict")
def resnet_basic_dict() -> Case:
    return _resnet("basic"), {"pixel_values": pixels(16)}, "logits"


@family("convnext")
def convnext() -> Case:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[16, 32], depths=[2, 2], num_stages=2, num_labels=10)
    return ConvNextForImageClassification(config), pixels(), "logits"


@family("convnextv2")
def convnextv2() -> Case:
    from transformers import ConvNextV2Config, ConvNextV2ForImageClassification

    config = ConvNextV2Config(hidden_sizes=[16, 32], depths=[2, 2], num_stages=2, num_labels=10)
    model = ConvNextV2ForImageClassification(config)
    with torch.no_grad():  # GRN starts at zero, where it does nothing
        for name, parameter in model.named_parameters():
            if ".grn." in name:
                parameter.normal_(0.0, 0.2)
    return model, pixels(), "logits"


def _regnet(layer_type: str) -> nn.Module:
    from transformers import RegNetConfig, RegNetForImageClassification

    config = RegNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[2, 2],
        groups_width=8,
        layer_type=layer_type,
        num_labels=10,
    )
    return lifelike(RegNetForImageClassification(config))


@family("regnet_x")
def regnet_x() -> Case:
    return _regnet("x"), pixels(), "logits"


@family("regnet_y")
def regnet_y() -> Case:
    return _regnet("y"), pixels(), "logits"


@family("efficientnet")
def efficientnet() -> Case:
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    config = EfficientNetConfig(
        image_size=32,
        width_coefficient=0.25,  # the last convolution has 1280 * 0.25 = 320 channels
        depth_coefficient=1.0,
        depth_divisor=8,
        kernel_sizes=[3, 5],
        in_channels=[32, 64],
        out_channels=[64, 96],
        strides=[1, 2],
        num_block_repeats=[1, 2],
        expand_ratios=[1, 4],
        hidden_dim=320,
        num_labels=10,
    )
    return lifelike(EfficientNetForImageClassification(config)), pixels(), "logits"


@family("mobilenet_v2")
def mobilenet_v2() -> Case:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    config = MobileNetV2Config(image_size=32, depth_multiplier=0.25, num_labels=10)
    model = MobileNetV2ForImageClassification(config)
    return lifelike(model), pixels(), "logits"


_ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(**_ENCODER, image_size=32, patch_size=8, num_labels=10)
    return ViTForImageClassification(config)


@family("vit")
def vit() -> Case:
    return _vit(), pixels(), "logits"


@family("vit_dict")
def vit_dict() -> Case:
    return _vit(), {"pixel_values": pixels()}, "logits"


@family("deit")
def deit() -> Case:
    from transformers import DeiTConfig, DeiTForImageClassification

    config = DeiTConfig(**_ENCODER, image_size=32, patch_size=8, num_labels=10)
    return DeiTForImageClassification(config), pixels(), "logits"


@family("swin")
def swin() -> Case:
    from transformers import SwinConfig, SwinForImageClassification

    # 16x16 patches, windows of 4: the second block of each stage really shifts and masks.
    config = SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=10,
    )
    return SwinForImageClassification(config), pixels(), "logits"


@family("beit")
def beit() -> Case:
    from transformers import BeitConfig, BeitForImageClassification

    config = BeitConfig(
        **_ENCODER,
        image_size=32,
        patch_size=8,
        use_relative_position_bias=True,
        layer_scale_init_value=0.1,
        num_labels=10,
    )
    return BeitForImageClassification(config), pixels(), "logits"


@family("clip_vision")
def clip_vision() -> Case:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(**_ENCODER, image_size=32, patch_size=8)
    return CLIPVisionModel(config), pixels(), "pooler_output"


# ----------------------------------------------------------------- encoders of text


@family("bert")
def bert() -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**_ENCODER, vocab_size=VOCAB, max_position_embeddings=16, num_labels=3)
    return BertForSequenceClassification(config), tokens(), "logits"


@family("bert_padded")
def bert_padded() -> Case:
    from transformers import BertConfig, BertModel

    config = BertConfig(**_ENCODER, vocab_size=VOCAB, max_position_embeddings=16)
    return BertModel(config), padded_tokens(), "last_hidden_state"


@family("bert_eager")
def bert_eager() -> Case:
    from transformers import BertConfig, BertModel

    config = BertConfig(**_ENCODER, vocab_size=VOCAB, max_position_embeddings=16, attn_implementation="eager")
    return BertModel(config), padded_tokens(), "last_hidden_state"


@family("roberta")
def roberta() -> Case:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    config = RobertaConfig(**_ENCODER, vocab_size=VOCAB, max_position_embeddings=16, num_labels=3)
    return RobertaForSequenceClassification(config), tokens(), "logits"


@family("distilbert")
def distilbert() -> Case:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(
        dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=VOCAB, max_position_embeddings=16
    )
    return DistilBertModel(config), tokens(), "last_hidden_state"


@family("albert")
def albert() -> Case:
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(**_ENCODER, embedding_size=16, vocab_size=VOCAB, max_position_embeddings=16)
    return AlbertModel(config), tokens(), "last_hidden_state"


@family("electra")
def electra() -> Case:
    from transformers import ElectraConfig, ElectraModel

    config = ElectraConfig(**_ENCODER, embedding_size=16, vocab_size=VOCAB, max_position_embeddings=16)
    return ElectraModel(config), tokens(), "last_hidden_state"


@family("t5_encoder")
def t5_encoder() -> Case:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return T5EncoderModel(config), tokens(), "last_hidden_state"


@family("t5_gated_encoder")
def t5_gated_encoder() -> Case:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=VOCAB,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
    )
    return T5EncoderModel(config), tokens(), "last_hidden_state"


# ------------------------------------------------------------------- causal models


@family("gpt2")
def gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=32, n_layer=2, n_head=4, n_positions=16, vocab_size=VOCAB, bos_token_id=1, eos_token_id=2
    )
    return GPT2LMHeadModel(config), tokens(), "logits"


@family("opt")
def opt() -> Case:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        hidden_size=32,
        word_embed_proj_dim=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        max_position_embeddings=16,
        vocab_size=VOCAB,
    )
    return OPTForCausalLM(config), tokens(), "logits"


_DECODER = {
    **_ENCODER,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 32,
}


@family("llama")
def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_DECODER)), tokens(), "logits"


@family("mistral")
def mistral() -> Case:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**_DECODER, sliding_window=4)), tokens(), "logits"


@family("qwen2")
def qwen2() -> Case:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**_DECODER)), tokens(), "logits"


@family("gemma")
def gemma() -> Case:
    from transformers import GemmaConfig, GemmaForCausalLM

    return GemmaForCausalLM(GemmaConfig(**_DECODER, head_dim=8)), tokens(), "logits"


@family("gemma2")
def gemma2() -> Case:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(**_DECODER, head_dim=8, query_pre_attn_scalar=8, sliding_window=4)
    return Gemma2ForCausalLM(config), tokens(), "logits"


@family("gemma3")
def gemma3() -> Case:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(**_DECODER, head_dim=8, query_pre_attn_scalar=8, sliding_window=4)
    return Gemma3ForCausalLM(config), tokens(), "logits"


@family("gpt_neox")
def gpt_neox() -> Case:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(**_ENCODER, vocab_size=VOCAB, max_position_embeddings=32)
    return GPTNeoXForCausalLM(config), tokens(), "logits"


@family("phi")
def phi() -> Case:
    from transformers import PhiConfig, PhiForCausalLM

    return PhiForCausalLM(PhiConfig(**_DECODER)), tokens(), "logits"


# ------------------------------------------------------------------------- torch.nn


def _transformer_encoder(norm_first: bool, activation: str) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        d_model=32,
        nhead=4,
        dim_feedforward=64,
        activation=activation,
        batch_first=True,
        norm_first=norm_first,
    )
    final = nn.LayerNorm(32) if norm_first else None
    return nn.TransformerEncoder(layer, num_layers=2, norm=final, enable_nested_tensor=False)


@family("torch_encoder_post_relu")
def torch_encoder_post_relu() -> Case:
    return _transformer_encoder(False, "relu"), sequence(), None


@family("torch_encoder_post_gelu")
def torch_encoder_post_gelu() -> Case:
    return _transformer_encoder(False, "gelu"), sequence(), None


@family("torch_encoder_pre_relu")
def torch_encoder_pre_relu() -> Case:
    return _transformer_encoder(True, "relu"), sequence(), None


@family("torch_encoder_pre_gelu")
def torch_encoder_pre_gelu() -> Case:
    return _transformer_encoder(True, "gelu"), sequence(), None


class AttentionClassifier(nn.Module):
    """LayerNorm (optional), self-attention, mean over tokens, linear head."""

    def __init__(self, normalised: bool, width: int = 32, heads: int = 4, classes: int = 5):
        super().__init__()
        self.norm = nn.LayerNorm(width) if normalised else nn.Identity()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        y, _ = self.attention(y, y, y, need_weights=False)
        return self.head(y.mean(dim=1))


@family("torch_attention_normed")
def torch_attention_normed() -> Case:
    return AttentionClassifier(normalised=True), sequence(), None


@family("torch_attention_bare")
def torch_attention_bare() -> Case:
    return AttentionClassifier(normalised=False), sequence(), None


def as_call(batch: Batch | tuple) -> tuple[tuple, Mapping[str, Any]]:
    """Positional and keyword arguments with which the model is called on ``batch``."""
    if isinstance(batch, dict):
        return (), batch
    if isinstance(batch, tuple):
        return batch, {}
    return (batch,), {}
