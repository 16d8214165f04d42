"""Networks that other people designed, by package and family, each with the batches that it trains on."""

from __future__ import annotations

import functools
import hashlib
import importlib
import itertools
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import batches

Batch = Any
Draw = Callable[[int, torch.Generator], Batch]
BATCH_SIZES = (8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network and what it is trained on.

    Attributes:
        package: who designed it.
        family: what belongs together: a module file of timm, a model type of transformers, a module of torchvision.
        name: which of the family.
        build: makes it, and says how its batches are drawn.
        loss: the name of its loss; None for models that compute their own.
        batch_size: how many samples a batch has.
    """

    package: str
    family: str
    name: str
    build: Callable[[], tuple[nn.Module, Draw]]
    loss: str | None = "cross_entropy"
    batch_size: int = 16

    @property
    def half(self) -> str:
        """`fit` or `held-out`: a family is whole in one half, and in the same one wherever it comes from."""
        return "fit" if stable_number(re.sub(r"[^a-z0-9]", "", self.family.lower())) % 2 else "held-out"


def stable_number(text: str) -> int:
    """Return a number that depends on a text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def enumerate_networks() -> tuple[list[Network], dict[str, str]]:
    """Return every network of the packages that are installed, in a stable shuffled order, and why others are not."""
    networks, missing = list[Network](), dict[str, str]()
    for package, listing in LISTINGS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                networks += listing()
        except Exception as error:  # a package that is missing or another version must not stop the others
            missing[package] = f"{type(error).__name__}: {str(error)[:200]}"
    networks.sort(key=lambda network: stable_number(f"{network.package} {network.name}"))
    return networks, missing


def _choose_batch_size(name: str) -> int:
    return BATCH_SIZES[stable_number(name) % len(BATCH_SIZES)]


class Chosen(nn.Module):
    """A model of which one of several outputs is trained on."""

    def __init__(self, net: nn.Module, key: str) -> None:
        super().__init__()
        self.net, self.key = net, key

    def forward(self, x: Tensor) -> Tensor:
        output = self.net(x)
        return output[self.key] if isinstance(output, Mapping) else getattr(output, self.key)


class Denoiser(Chosen):
    """A model that finds the noise in images, given their times."""

    conditions: tuple[str, ...] = ()

    def find(self, noisy: Tensor, times: Tensor, *given: Tensor) -> Tensor:
        """Return the noise, given what `conditions` names besides."""
        return self.net(noisy, timestep=times, **dict(zip(self.conditions, given, strict=True))).sample

    def forward(self, noisy: Tensor, times: Tensor) -> Tensor:
        return self.find(noisy, times)


class TextDenoiser(Denoiser):
    """The same, given a text besides."""

    conditions = ("encoder_hidden_states",)

    def forward(self, noisy: Tensor, times: Tensor, text: Tensor) -> Tensor:
        return self.find(noisy, times, text)


class TextAndSummaryDenoiser(Denoiser):
    """The same, given a text and its summary besides."""

    conditions = ("encoder_hidden_states", "pooled_projections")

    def forward(self, noisy: Tensor, times: Tensor, text: Tensor, summary: Tensor) -> Tensor:
        return self.find(noisy, times, text, summary)


# --------------------------------------------------------------------------------------------- torchvision and timm

SMALLEST_FIRST = (
    "zepto", "atto", "femto", "pico", "nano", "xxs", "xx_small", "micro", "xtiny", "tiny", "xs", "mini", "lite",
    "small", "_s", "", "base", "medium", "_m", "large", "xl", "huge", "giant", "gigantic", "enormous", "so150m",
    "so400m", "3b", "7b", "1b",
)  # fmt: skip
"""Words of names by size; the empty one stands for a name without any of them."""
RESOLUTIONS = (196, 224, 240, 256, 288, 336, 384, 448, 512)
"""Numbers in names that are sizes of images, not of networks."""
IMAGE_SIZES = (96, 128, 64, 112, 160, 192, 224, 240, 256)
MAX_OF_FAMILY = 12


def _rank_by_name(name: str) -> tuple[int, int, int, str]:
    """Return what sorts names by the size of the networks, as far as they tell it."""
    words = [k for k, word in enumerate(SMALLEST_FIRST) if word and word in name]
    width = max((n for n in map(int, re.findall(r"\d+", name)) if n not in RESOLUTIONS), default=0)
    return (max(words) if words else SMALLEST_FIRST.index(""), width, len(name), name)


def _choose_names(names: Sequence[str], most: int) -> list[str]:
    """Return up to `most` names of a family, spread evenly over its smaller third."""
    ordered = sorted(names, key=_rank_by_name)
    small = ordered[: max(most, len(ordered) // 3)]
    return [small[k * len(small) // most] for k in range(most)] if len(small) > most else small


def _runs(model: nn.Module, draw: Draw) -> bool:
    """Whether a model returns a row of scores for each image that is drawn."""
    try:
        with torch.no_grad():
            output = model.eval()(draw(2, torch.Generator().manual_seed(0))[0])
    except (RuntimeError, ValueError, AssertionError, IndexError, TypeError):
        return False
    return isinstance(output, Tensor) and output.ndim == 2


def _classifier(make: Callable[[int], nn.Module], channels: int = 3) -> tuple[nn.Module, Draw]:
    """Return a classifier of images at the first size that it takes."""
    problem: Exception | None = None
    for size in IMAGE_SIZES:
        draw = functools.partial(batches.images, size=size, channels=channels)
        try:
            model = make(size)
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            problem = error
            continue
        if _runs(model, draw):
            return model, draw
    raise RuntimeError(f"takes images of none of the sizes {IMAGE_SIZES}: {problem}")


def _timm_model(name: str, size: int) -> nn.Module:
    import timm

    try:
        return timm.create_model(name, num_classes=batches.CLASSES, img_size=size)
    except TypeError:
        return timm.create_model(name, num_classes=batches.CLASSES)


def list_timm() -> Iterator[Network]:
    """The classifiers of timm, some of each module file."""
    import timm
    from timm.models._registry import _model_to_module as module_of

    families = defaultdict[str, list[str]](list)
    for name in timm.list_models():
        families[module_of[name]].append(name)
    for family, names in families.items():
        for name in _choose_names(names, MAX_OF_FAMILY):
            build = functools.partial(_classifier, functools.partial(_timm_model, name))
            yield Network(package="timm", family=family, name=name, build=build, batch_size=_choose_batch_size(name))


def _torchvision_model(name: str, size: int) -> nn.Module:
    import torchvision

    options: dict[str, Any] = {"aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    options |= {"init_weights": True} if options else {}
    options |= {"image_size": size} if name.startswith("vit_") else {}
    return torchvision.models.get_model(name, weights=None, num_classes=batches.CLASSES, **options)


def list_torchvision() -> Iterator[Network]:
    """The classifiers of images and videos, and the segmentation models, of torchvision."""
    from torchvision import models

    for name in models.list_models(module=models):
        family = models.get_model_builder(name).__module__.rpartition(".")[2]
        build = functools.partial(_classifier, functools.partial(_torchvision_model, name))
        yield Network(package="torchvision", family=family, name=name, build=build, batch_size=_choose_batch_size(name))
    for name in models.list_models(module=models.segmentation):
        family = models.get_model_builder(name).__module__.rpartition(".")[2]

        def segment(name: str = name) -> tuple[nn.Module, Draw]:
            net = models.get_model(name, weights=None, weights_backbone=None, num_classes=4)
            return Chosen(net, "out"), functools.partial(batches.masks, size=64)

        yield Network(package="torchvision", family=family, name=name, build=segment, batch_size=8)
    for name in models.list_models(module=models.video):
        family = models.get_model_builder(name).__module__.rpartition(".")[2]

        def watch(name: str = name) -> tuple[nn.Module, Draw]:
            size, frames = (224, 16) if name.startswith("mvit") else (64, 16 if name == "s3d" else 8)
            model = models.get_model(name, weights=None, num_classes=batches.CLASSES)
            return model, functools.partial(batches.videos, size=size, frames=frames)

        yield Network(package="torchvision", family=f"video_{family}", name=name, build=watch, batch_size=8)


# ------------------------------------------------------------------------------------------------------ transformers


def _tiny_options(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    """Return values for the fields of configurations that say how large a network is, by their names."""
    per_head = hidden // heads
    sizes = (
        (hidden, "hidden_size d_model n_embd dim embedding_size encoder_hidden_size decoder_hidden_size embed_dim "
        "emb_dim"),
        (layers, "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers "
        "num_decoder_layers num_blocks depth encoder_num_hidden_layers decoder_num_hidden_layers"),
        (heads, "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
        "num_encoder_attention_heads num_decoder_attention_heads mamba_n_heads linear_num_value_heads"),
        (max(1, heads // 2), "num_key_value_heads num_key_value_groups linear_num_key_heads n_head_kv num_kv_heads"),
        (2 * hidden, "intermediate_size ffn_dim d_ff n_inner hidden_dim encoder_ffn_dim decoder_ffn_dim d_inner "
        "intermediate_dim shared_expert_intermediate_size shared_intermediate_size"),
        (hidden // 2, "moe_intermediate_size expert_ffn_hidden_size"),
        (per_head, "head_dim d_kv d_head attention_head_size kv_channels v_head_dim qk_nope_head_dim "
        "linear_key_head_dim linear_value_head_dim attention_key_value_dim"),
        (per_head // 2, "qk_rope_head_dim"),
        (4, "num_local_experts num_experts n_routed_experts moe_num_experts"),
        (2, "num_experts_per_tok num_experts_per_token moe_topk moe_k"),
        (1, "n_group topk_group n_shared_experts first_k_dense_replace num_shared_experts bos_token_id"),
        (16, "state_size mamba_d_state ssm_state_size lora_rank"),
        (128, "max_position_embeddings n_positions max_seq_len n_ctx max_target_positions max_source_positions "
        "max_sequence_length"),
        (batches.VOCABULARY, "vocab_size encoder_vocab_size decoder_vocab_size vocab_size_per_layer_input"),
        (96, "image_size"),
    )  # fmt: skip
    options: dict[str, Any] = {name: size for size, names in sizes for name in names.split()}
    return options | {
        "q_lora_rank": hidden // 2,
        "kv_lora_rank": hidden // 2,
        "pad_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
        "num_labels": batches.CLASSES,
        "use_cache": False,
    }


IMAGE_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "efficientnet": {"width_coefficient": 0.5, "depth_coefficient": 0.5, "hidden_dim": 640},
    "convnext": {"depths": [2, 2, 4, 2], "hidden_sizes": [32, 64, 128, 256]},
    "convnextv2": {"depths": [2, 2, 4, 2], "hidden_sizes": [32, 64, 128, 256]},
    "swin": {"window_size": 3, "embed_dim": 32, "depths": [2, 2, 2, 2], "num_heads": [2, 2, 4, 8]},
    "swinv2": {"window_size": 3, "embed_dim": 32, "depths": [2, 2, 2, 2], "num_heads": [2, 2, 4, 8]},
    "donut-swin": {"window_size": 3, "embed_dim": 32, "depths": [2, 2, 2, 2], "num_heads": [2, 2, 4, 8]},
    "focalnet": {"embed_dim": 32},
    "bit": {"depths": [2, 2, 2, 2]},
    "resnet": {"depths": [2, 2, 2, 2], "layer_type": "basic", "hidden_sizes": [64, 128, 256, 512]},
    "levit": {"image_size": 224},
    "mobilevit": {"image_size": 128},
    "mobilevitv2": {"image_size": 128},
}
WIDTH_LISTS = ("resnet", "regnet", "mobilenet_v1", "mobilenet_v2", "poolformer", "levit", "cvt", "mobilevit", "bit",
               "mobilevitv2", "pvt", "pvt_v2", "segformer", "swiftformer", "efficientnet", "convnext", "convnextv2",
               "focalnet", "swin", "swinv2", "donut-swin", "van", "efficientformer", "hiera", "hgnet_v2")  # fmt: skip
"""Types of image models with a list of widths, which the fields for a single width would contradict."""


def tiny_config(kind: type, options: Mapping[str, Any]) -> Any:
    """Return a configuration of a class of transformers with these values for its fields that are no lists."""
    base = kind()
    fields = base.to_dict()
    names = {*fields, *getattr(kind, "attribute_map", {}), *(["num_labels"] if hasattr(base, "num_labels") else [])}
    lists = {name for name, value in fields.items() if isinstance(value, list | tuple)}
    chosen = {name: value for name, value in options.items() if name in names - lists}
    for name, part in getattr(kind, "sub_configs", {}).items():
        try:
            chosen[name] = tiny_config(part, options).to_dict()
        except Exception:  # a part that is chosen by its name: its own default stands
            continue
    return kind(**chosen)


def _from_config(classes: str, type_: str, options: Mapping[str, Any], draw: Draw) -> tuple[nn.Module, Draw]:
    import transformers
    from transformers.models.auto import modeling_auto

    name = getattr(modeling_auto, classes)[type_]
    cls = getattr(transformers, name if isinstance(name, str) else name[0])
    config = tiny_config(cls.config_class, options)
    if draw is batches.causal:
        config.is_decoder = True
    return cls(config), draw


def _pixels(count: int, generator: torch.Generator, size: int = 96) -> dict[str, Tensor]:
    x, y = batches.images(count, generator, size=size)
    return {"pixel_values": x, "labels": y}


def _texts(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    ids, y = batches.labelled_text(count, generator)
    return {"input_ids": ids, "labels": y}


def _waves(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    x, y = batches.tones(count, generator)
    return {"input_values": x, "labels": y}


def _spectrum(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    x, y = batches.spectra(count, generator, bands=128, frames=128)
    return {"input_values": x, "labels": y}


SHAPES = ((96, 4, 4), (64, 8, 4), (128, 2, 4))
"""Width, depth and heads of the networks of a type."""
TASKS: tuple[tuple[str, str, Draw, int], ...] = (
    ("causal", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", batches.causal, 3),
    ("masked", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", batches.masked, 3),
    ("seq2seq", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", batches.translated, 2),
    ("image", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", _pixels, 2),
    ("audio", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES", _waves, 2),
    ("text", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", _texts, 1),
)
"""Tasks of transformers: the table of its classes, what is drawn, and how many networks a type gets."""


LEFT_OUT_TYPES = {"text": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "masked": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"}
"""By task the table of the types that it leaves out, for whose models its batches are not made."""
DO_NOT_WORK = {"mra": "its attention is a kernel of its own, without which it hands on nothing"}
"""Types that are no healthy networks on these machines, and why."""
DO_NOT_SHIFT_LABELS = re.compile("bart|pegasus|blenderbot|marian|mvp|trocr|prophetnet|speech_to_text|whisper")
"""Types whose causal models take the next word as the label of a step, and do not shift the labels themselves."""


def list_transformers() -> Iterator[Network]:
    """Every type of transformers that has a head for one of the tasks, at up to three sizes."""
    from transformers.models.auto import modeling_auto

    for task, classes, draw, variants in TASKS:
        known = set(getattr(modeling_auto, LEFT_OUT_TYPES.get(task, ""), ()))
        for type_ in getattr(modeling_auto, classes, {}):
            if type_ in known or type_ in DO_NOT_WORK:
                continue
            has_widths = task == "image" and type_ in WIDTH_LISTS
            for hidden, layers, heads in SHAPES[: 1 if has_widths else variants]:
                options = _tiny_options(hidden, layers, heads)
                options = {"num_labels": batches.CLASSES, "image_size": 96} if has_widths else options
                options = options | dict(IMAGE_OPTIONS.get(type_, {}) if task == "image" else {})
                options = options | ({"num_labels": 2} if task == "text" else {})
                options = options | ({"is_decoder": True} if task == "causal" else {})
                drawn = functools.partial(_pixels, size=options["image_size"]) if task == "image" else draw
                drawn = batches.causal_shifted if task == "causal" and DO_NOT_SHIFT_LABELS.search(type_) else drawn
                if type_ == "audio-spectrogram-transformer":
                    drawn, options = _spectrum, options | {"max_length": 128}
                name = f"{type_} {task} {hidden}x{layers}" if not has_widths else f"{type_} {task}"
                build = functools.partial(_from_config, classes, type_, options, drawn)
                yield Network(
                    package="transformers",
                    family=type_,
                    name=name,
                    build=build,
                    loss=None,
                    batch_size=_choose_batch_size(name) if task != "audio" else 8,
                )


# ------------------------------------------------------------------------------------------------------ segmentation


def _segmentation(architecture: str, encoder: str) -> tuple[nn.Module, Draw]:
    import segmentation_models_pytorch as smp

    size = 128 if architecture in ("DPT", "UPerNet", "PAN") else 96
    net = getattr(smp, architecture)(encoder_name=encoder, encoder_weights=None, classes=4)
    return net, functools.partial(batches.masks, size=size)


def list_segmentation() -> Iterator[Network]:
    """The decoders of segmentation_models_pytorch on a few encoders."""
    import segmentation_models_pytorch as smp

    decoders = ["Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "DeepLabV3", "DeepLabV3Plus", "PAN",
                "UPerNet", "Segformer", "DPT"]  # fmt: skip
    encoders = ["resnet18", "mobilenet_v2", "efficientnet-b0", "mit_b0", "vgg11_bn"]
    for decoder, encoder in itertools.product(decoders, encoders):
        if hasattr(smp, decoder) and (decoder != "DPT" or encoder == "resnet18"):
            encoder = "tu-vit_tiny_patch16_224" if decoder == "DPT" else encoder
            build = functools.partial(_segmentation, decoder, encoder)
            name = f"{decoder} {encoder}"
            yield Network(package="segmentation_models_pytorch", family=decoder, name=name, build=build, batch_size=8)


# --------------------------------------------------------------------------------------------------------- diffusers


def _noisy(
    count: int, generator: torch.Generator, *, size: int, channels: int = 3, more: tuple[tuple[int, ...], ...] = ()
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Draw noisy images, their times, other inputs of the shapes in `more`, and the noise, which is to be found."""
    x, _ = batches.images(count, generator, size=size, channels=channels)
    noise = torch.randn(x.shape, generator=generator)
    times = torch.randint(1, 1000, (count,), generator=generator)
    kept = torch.cos(times / 1000.0 * torch.pi / 2.0).view(-1, 1, 1, 1)
    others = [torch.randn(count, *shape, generator=generator) for shape in more]
    return (kept * x + (1.0 - kept**2).sqrt() * noise, times, *others), noise


def list_diffusers() -> Iterator[Network]:
    """Networks of diffusers with small configurations, which find the noise in an image, or restore the image."""
    diffusers = importlib.import_module("diffusers")
    groups = {"norm_num_groups": 8}
    down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
    plain: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {}
    for layers, width in itertools.product((1, 2), (32, 64)):
        blocks = {"block_out_channels": (width, 2 * width), "layers_per_block": layers, "sample_size": 32}
        plain[f"UNet2DModel {width}x{layers}"] = (
            "UNet2DModel", blocks | groups | {"down_block_types": down, "up_block_types": up}, {"size": 32},
        )  # fmt: skip
        plain[f"UNet2DModel resnet {width}x{layers}"] = (
            "UNet2DModel",
            blocks | groups | {"down_block_types": ("ResnetDownsampleBlock2D", "DownBlock2D"),
                               "up_block_types": ("UpBlock2D", "ResnetUpsampleBlock2D")},
            {"size": 32},
        )  # fmt: skip
        drawn = {"size": 16, "more": ((8, 32),)}
        cross = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "attention_head_dim": 8}
        cross |= {"up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"), "cross_attention_dim": 32}
        cross |= {"in_channels": 3, "out_channels": 3}
        plain[f"UNet2DConditionModel {width}x{layers}"] = ("UNet2DConditionModel", blocks | groups | cross, drawn)
        simple = {"down_block_types": ("SimpleCrossAttnDownBlock2D", "ResnetDownsampleBlock2D")}
        simple |= {"up_block_types": ("ResnetUpsampleBlock2D", "SimpleCrossAttnUpBlock2D")}
        simple |= {"mid_block_type": "UNetMidBlock2DSimpleCrossAttn"}
        plain[f"UNet2DConditionModel simple {width}x{layers}"] = (
            "UNet2DConditionModel", blocks | groups | cross | simple, drawn,
        )  # fmt: skip
    heads = {"num_attention_heads": 4, "attention_head_dim": 16, "in_channels": 3, "out_channels": 3}
    for layers in (2, 4):
        options = heads | {"num_layers": layers, "sample_size": 32, "patch_size": 4}
        plain[f"PixArtTransformer2DModel {layers}"] = (
            "PixArtTransformer2DModel",
            options | {"cross_attention_dim": 64, "caption_channels": 32, "use_additional_conditions": False},
            {"size": 32, "more": ((8, 32),)},
        )
        plain[f"SanaTransformer2DModel {layers}"] = (
            "SanaTransformer2DModel",
            options
            | {"num_cross_attention_heads": 4, "cross_attention_head_dim": 16, "cross_attention_dim": 64}
            | {"caption_channels": 32},
            {"size": 32, "more": ((8, 32),)},
        )
        plain[f"SD3Transformer2DModel {layers}"] = (
            "SD3Transformer2DModel",
            options
            | {"joint_attention_dim": 32, "caption_projection_dim": 64, "pooled_projection_dim": 32}
            | {"pos_embed_max_size": 16},
            {"size": 32, "more": ((8, 32), (32,))},
        )
        plain[f"AuraFlowTransformer2DModel {layers}"] = (
            "AuraFlowTransformer2DModel",
            {name: value for name, value in options.items() if name != "num_layers"}
            | {"num_mmdit_layers": layers, "num_single_dit_layers": layers, "joint_attention_dim": 32}
            | {"caption_projection_dim": 64, "pos_embed_max_size": 64},
            {"size": 32, "more": ((8, 32),)},
        )
    for name, (cls, options, drawn) in plain.items():
        if not hasattr(diffusers, cls):
            continue

        def denoise(
            cls: str = cls, options: dict[str, Any] = options, drawn: dict[str, Any] = drawn
        ) -> tuple[nn.Module, Draw]:
            net = getattr(diffusers, cls)(**options)
            kind = (Denoiser, TextDenoiser, TextAndSummaryDenoiser)[len(drawn.get("more", ()))]
            return kind(net, "sample"), functools.partial(_noisy, **drawn)

        yield Network(package="diffusers", family=cls, name=name, build=denoise, loss="mse", batch_size=8)
    coders = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    for cls, width in itertools.product(("AutoencoderKL", "VQModel", "AutoencoderTiny"), (16, 32)):
        options = coders | {"block_out_channels": (width, 2 * width), "norm_num_groups": 8}
        if cls == "AutoencoderTiny":
            options = {"encoder_block_out_channels": (width, width), "decoder_block_out_channels": (width, width),
                       "num_encoder_blocks": (1, 2), "num_decoder_blocks": (2, 1)}  # fmt: skip

        def restore(cls: str = cls, options: dict[str, Any] = options) -> tuple[nn.Module, Draw]:
            def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
                x, _ = batches.images(count, generator, size=32)
                return x, x

            return Chosen(getattr(diffusers, cls)(**options), "sample"), draw

        name = f"{cls} {width}"
        yield Network(package="diffusers", family=cls, name=name, build=restore, loss="mse", batch_size=16)


# ------------------------------------------------------------------------------------------------- graphs and sounds


class _OnGraph(nn.Module):
    """A network of torch_geometric that is called with the features of the nodes and the edges alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.net(x, edge_index)


def _on_graph(make: Callable[[], nn.Module], nodes: int) -> tuple[nn.Module, Draw]:
    def draw(count: int, generator: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        x, edges, y = batches.graph(nodes, generator)
        return (x, edges), y

    return _OnGraph(make()), draw


def list_graphs() -> Iterator[Network]:
    """The networks of torch_geometric that read nodes and edges, of several depths and widths."""
    models = importlib.import_module("torch_geometric.nn.models")
    degrees = torch.tensor([0, 2, 6, 12, 20, 30, 20, 12, 6, 2])
    more = {"PNA": {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"], "deg": degrees}}
    sizes = ((32, 2, None), (64, 3, None), (64, 3, "batch_norm"), (32, 6, "layer_norm"), (128, 4, "graph_norm"))
    for cls in ("GCN", "GraphSAGE", "GIN", "GAT", "PNA", "EdgeCNN"):
        for (width, layers, norm), jk in zip(sizes, (None, "cat", None, "max", None), strict=True):
            options = {"in_channels": 16, "hidden_channels": width, "num_layers": layers, "out_channels": 4}
            options |= {"norm": norm, "jk": jk} | more.get(cls, {})
            build = functools.partial(_on_graph, functools.partial(getattr(models, cls), **options), 200)
            name = f"{cls} {width}x{layers} {norm} {jk}"
            yield Network(package="torch_geometric", family=cls, name=name, build=build, batch_size=200)
    for depth, width in itertools.product((2, 3), (32, 64)):
        make = functools.partial(models.GraphUNet, 16, width, 4, depth=depth)
        name = f"GraphUNet {width}x{depth}"
        build = functools.partial(_on_graph, make, 200)
        yield Network(package="torch_geometric", family="GraphUNet", name=name, build=build, batch_size=200)
    for layers, width in itertools.product((1, 2), (32, 64)):
        make = functools.partial(models.LINKX, 200, 16, width, 4, num_layers=layers)
        build = functools.partial(_on_graph, make, 200)
        name = f"LINKX {width}x{layers}"
        yield Network(package="torch_geometric", family="LINKX", name=name, build=build, batch_size=200)


class _OfSounds(nn.Module):
    """A model of torchaudio, its scores (or their logarithms) averaged over time to one per class and clip."""

    def __init__(self, net: nn.Module, *, logarithms: bool = False) -> None:
        super().__init__()
        self.net, self.logarithms = net, logarithms

    def forward(self, x: Tensor) -> Tensor:
        output = self.net(x)
        output = output[0] if isinstance(output, tuple) else output
        return output.logsumexp(1) - math.log(output.shape[1]) if self.logarithms else output.mean(1)


def _spectra_as_images(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, y = batches.spectra(count, generator)
    return x.unsqueeze(1), y


def list_torchaudio() -> Iterator[Network]:
    """Small configurations of torchaudio's models: classifiers of tones, and separators of sounds."""
    models = importlib.import_module("torchaudio.models")
    layers = [(32, 10, 5), (32, 3, 2), (32, 3, 2), (32, 2, 2)]

    def waves(net: Callable[[], nn.Module]) -> Callable[[], tuple[nn.Module, Draw]]:
        return lambda: (_OfSounds(net()), batches.tones)

    for mode, norm_first, depth in itertools.product(("group_norm", "layer_norm"), (False, True), (2, 6)):
        make = functools.partial(
            models.wav2vec2_model, mode, layers, True, 64, 0.1, 16, 4, depth, 4, 0.1, 128, 0.1, 0.1, norm_first, 0.0, 10
        )
        name = f"wav2vec2 {mode} {'pre' if norm_first else 'post'} {depth}"
        yield Network(package="torchaudio", family="wav2vec2", name=name, build=waves(make), batch_size=8)

    class ConformerClassifier(nn.Module):
        def __init__(self, depth: int, group_norm: bool) -> None:
            super().__init__()
            self.encoder = models.Conformer(64, 4, 128, depth, 15, use_group_norm=group_norm)
            self.head = nn.Linear(64, batches.CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            lengths = torch.full((len(x),), x.shape[1], device=x.device)
            return self.head(self.encoder(x, lengths)[0].mean(1))

    for depth, group_norm in itertools.product((2, 4, 8), (False, True)):
        name = f"Conformer {depth}{' group_norm' * group_norm}"
        yield Network(
            package="torchaudio",
            family="conformer",
            name=name,
            build=lambda depth=depth, group_norm=group_norm: (ConformerClassifier(depth, group_norm), batches.spectra),
            batch_size=_choose_batch_size(name),
        )
    for width in (64, 128):

        def speech(width: int = width) -> tuple[nn.Module, Draw]:
            return _OfSounds(models.DeepSpeech(64, width, batches.CLASSES), logarithms=True), _spectra_as_images

        yield Network(
            package="torchaudio",
            family="deepspeech",
            name=f"DeepSpeech {width}",
            build=speech,
            loss="nll",
            batch_size=16,
        )
    for blocks in (1, 2, 3):

        def separate(blocks: int = blocks) -> tuple[nn.Module, Draw]:
            net = models.ConvTasNet(1, 16, 64, msk_kernel_size=3, msk_num_feats=32, msk_num_hidden_feats=64,
                                    msk_num_layers=4, msk_num_stacks=blocks)  # fmt: skip

            def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
                x, _ = batches.tones(count, generator)
                clean = nn.functional.avg_pool1d(x[:, None], 5, 1, 2)
                return x[:, None], clean

            return net, draw

        yield Network(
            package="torchaudio",
            family="conv_tasnet",
            name=f"ConvTasNet {blocks}",
            build=separate,
            loss="mse",
            batch_size=8,
        )


LISTINGS: Mapping[str, Callable[[], Iterator[Network]]] = {
    "torchvision": list_torchvision,
    "timm": list_timm,
    "transformers": list_transformers,
    "diffusers": list_diffusers,
    "segmentation_models_pytorch": list_segmentation,
    "torch_geometric": list_graphs,
    "torchaudio": list_torchaudio,
}
"""By package what lists its networks."""
