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
import re
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


# ------------------------------------------------------------------- transformers


def hugging_face(
    name: str,
    kind: str,
    batch: Callable[[], Batch],
    output: str,
    *,
    config: str | None = None,
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
    **settings: Any,
) -> None:
    """Register an architecture of transformers by the names of its class and, where that is another, its config."""

    @family(name)
    def build() -> Case:
        import transformers

        made = config or re.sub(r"(For\w+|LMHeadModel|EncoderModel|Model)$", "", kind) + "Config"
        model = getattr(transformers, kind)(getattr(transformers, made)(**settings))
        return prepare(model), batch(), output


def grn_at_work(model: nn.Module) -> nn.Module:
    """GRN starts at zero, where it does nothing."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".grn." in name:
                parameter.normal_(0.0, 0.2)
    return model


def small_pixels() -> torch.Tensor:
    return pixels(16)


STAGES = {"hidden_sizes": [16, 32], "depths": [2, 2], "num_labels": 10}
BLOCKS = {"embedding_size": 16, **STAGES, "prepare": lifelike}
ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
PATCHES = {**ENCODER, "image_size": 32, "patch_size": 8}
VISION = {**PATCHES, "num_labels": 10}
TEXT = {**ENCODER, "vocab_size": VOCAB, "max_position_embeddings": 16}
T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
DECODER = {**ENCODER, "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 32}
GEMMA = {**DECODER, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
EFFICIENT = {
    "image_size": 32,
    "width_coefficient": 0.25,  # the last convolution has 1280 * 0.25 = 320 channels
    "depth_coefficient": 1.0,
    "depth_divisor": 8,
    "kernel_sizes": [3, 5],
    "in_channels": [32, 64],
    "out_channels": [64, 96],
    "strides": [1, 2],
    "num_block_repeats": [1, 2],
    "expand_ratios": [1, 4],
    "hidden_dim": 320,
    "num_labels": 10,
}
SWIN = {  # 16x16 patches, windows of 4: the second block of each stage really shifts and masks
    **{"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]},
    **{"window_size": 4, "num_labels": 10},
}
BEIT = {**VISION, "use_relative_position_bias": True, "layer_scale_init_value": 0.1}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "bos_token_id": 1, "eos_token_id": 2}
OPT = {
    **{"hidden_size": 32, "word_embed_proj_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64},
    **{"max_position_embeddings": 16, "vocab_size": VOCAB},
}

RESNET, REGNET, HIDDEN = "ResNetForImageClassification", "RegNetForImageClassification", "last_hidden_state"
hugging_face("resnet_basic", RESNET, small_pixels, "logits", **BLOCKS, layer_type="basic")
hugging_face("resnet_bottleneck", RESNET, small_pixels, "logits", **BLOCKS, layer_type="bottleneck")
hugging_face("resnet_basic_dict", RESNET, lambda: {"pixel_values": pixels(16)}, "logits", **BLOCKS, layer_type="basic")
hugging_face("convnext", "ConvNextForImageClassification", pixels, "logits", **STAGES, num_stages=2)
hugging_face(
    "convnextv2", "ConvNextV2ForImageClassification", pixels, "logits", **STAGES, num_stages=2, prepare=grn_at_work
)
hugging_face("regnet_x", REGNET, pixels, "logits", **BLOCKS, groups_width=8, layer_type="x")
hugging_face("regnet_y", REGNET, pixels, "logits", **BLOCKS, groups_width=8, layer_type="y")
hugging_face("efficientnet", "EfficientNetForImageClassification", pixels, "logits", **EFFICIENT, prepare=lifelike)
hugging_face(
    "mobilenet_v2", "MobileNetV2ForImageClassification", pixels, "logits",
    image_size=32, depth_multiplier=0.25, num_labels=10, prepare=lifelike,
)  # fmt: skip
hugging_face("vit", "ViTForImageClassification", pixels, "logits", **VISION)
hugging_face("vit_dict", "ViTForImageClassification", lambda: {"pixel_values": pixels()}, "logits", **VISION)
hugging_face("deit", "DeiTForImageClassification", pixels, "logits", **VISION)
hugging_face("swin", "SwinForImageClassification", pixels, "logits", **SWIN)
hugging_face("beit", "BeitForImageClassification", pixels, "logits", **BEIT)
hugging_face("clip_vision", "CLIPVisionModel", pixels, "pooler_output", **PATCHES)
hugging_face("bert", "BertForSequenceClassification", tokens, "logits", **TEXT, num_labels=3)
hugging_face("bert_padded", "BertModel", padded_tokens, HIDDEN, **TEXT)
hugging_face("bert_eager", "BertModel", padded_tokens, HIDDEN, **TEXT, attn_implementation="eager")
hugging_face("roberta", "RobertaForSequenceClassification", tokens, "logits", **TEXT, num_labels=3)
hugging_face(
    "distilbert", "DistilBertModel", tokens, HIDDEN,
    dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=VOCAB, max_position_embeddings=16,
)  # fmt: skip
hugging_face("albert", "AlbertModel", tokens, HIDDEN, **TEXT, embedding_size=16)
hugging_face("electra", "ElectraModel", tokens, HIDDEN, **TEXT, embedding_size=16)
hugging_face("t5_encoder", "T5EncoderModel", tokens, HIDDEN, **T5)
hugging_face("t5_gated_encoder", "T5EncoderModel", tokens, HIDDEN, **T5, feed_forward_proj="gated-gelu")
hugging_face("gpt2", "GPT2LMHeadModel", tokens, "logits", **GPT2, vocab_size=VOCAB)
hugging_face("opt", "OPTForCausalLM", tokens, "logits", **OPT)
hugging_face("llama", "LlamaForCausalLM", tokens, "logits", **DECODER)
hugging_face("mistral", "MistralForCausalLM", tokens, "logits", **DECODER, sliding_window=4)
hugging_face("qwen2", "Qwen2ForCausalLM", tokens, "logits", **DECODER)
hugging_face("gemma", "GemmaForCausalLM", tokens, "logits", **DECODER, head_dim=8)
hugging_face("gemma2", "Gemma2ForCausalLM", tokens, "logits", **GEMMA)
hugging_face("gemma3", "Gemma3ForCausalLM", tokens, "logits", **GEMMA, config="Gemma3TextConfig")
hugging_face(
    "gpt_neox", "GPTNeoXForCausalLM", tokens, "logits", **ENCODER, vocab_size=VOCAB, max_position_embeddings=32
)
hugging_face("phi", "PhiForCausalLM", tokens, "logits", **DECODER)

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


for _first in (False, True):
    for _activation in ("relu", "gelu"):
        _build = functools.partial(_transformer_encoder, _first, _activation)
        family(f"torch_encoder_{'pre' if _first else 'post'}_{_activation}")(
            lambda build=_build: (build(), sequence(), None)
        )


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


family("torch_attention_normed")(lambda: (AttentionClassifier(normalised=True), sequence(), None))
family("torch_attention_bare")(lambda: (AttentionClassifier(normalised=False), sequence(), None))


def as_call(batch: Batch | tuple) -> tuple[tuple, Mapping[str, Any]]:
    """Positional and keyword arguments with which the model is called on ``batch``."""
    if isinstance(batch, dict):
        return (), batch
    if isinstance(batch, tuple):
        return batch, {}
    return (batch,), {}
