"""Models with one fault each: what was planted, and in which layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from normscope.networks.small import mlp

from .healthy import (
    Case,
    after_training,
    batch_mlp,
    case,
    generator,
    gpt2,
    group_cnn,
    images,
    plain_mlp,
    resnet,
    spoken,
    vit,
)

PLANTED: dict[str, Callable[[int], Case]] = {}


def planted(build: Callable[[int], Case]) -> Callable[[int], Case]:
    PLANTED[build.__name__] = build
    return build


@planted
def nan_after_a_bad_step(seed: int) -> Case:
    model = vit(seed)
    name = "vit.layers.0.mlp.fc1.weight"
    with torch.no_grad():
        model.get_parameter(name)[3, :] = float("nan")
    return case(model, seed, output="logits", where=name, code="non-finite-weights")


class LogIntensity(nn.Module):
    """Logarithm of the pixels, which are zero in the background."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x)


@planted
def logarithm_of_zero(seed: int) -> Case:
    network = resnet(seed)
    model = nn.Sequential()
    model.add_module("log", LogIntensity())
    model.add_module("net", network)
    return case(model, seed, mode="train", where="log", code="non-finite-activations")


@planted
def convolution_killed_by_coupled_l2(seed: int) -> Case:
    model = after_training(resnet, seed)
    with torch.no_grad():
        model.layer2.conv2.weight *= 1e-8
    return case(model, seed, mode="train", where="layer2.conv2", code="dead-layer")


@planted
def zero_weights_on_the_only_path(seed: int) -> Case:
    model = after_training(plain_mlp, seed)
    nn.init.zeros_(model.linear3.weight)
    return case(model, seed, where="linear3", code="zero-weights")


@planted
def half_the_scales_pruned(seed: int) -> Case:
    model = after_training(resnet, seed)
    with torch.no_grad():
        model.layer2.bn1.weight[::2] = 0.0
        model.layer2.bn1.bias[::2] = 0.0
    return case(model, seed, where="layer2.bn1", code="dead-channels")


@planted
def bias_far_below_zero(seed: int) -> Case:
    model = after_training(plain_mlp, seed)
    with torch.no_grad():
        model.linear2.bias -= 30.0 * (torch.arange(32) % 8 != 0)
    return case(model, seed, where="linear2", code="dead-relu")


@planted
def running_statistics_of_other_data(seed: int) -> Case:
    model = after_training(resnet, seed)
    with torch.no_grad():
        model.layer1.bn2.running_var *= 30.0
    return case(model, seed, where="layer1.bn2", code="stale-statistics")


@planted
def batches_of_eight(seed: int) -> Case:
    model = after_training(batch_mlp, seed)
    return case(model, seed, mode="train", loader=images(seed, size=8, batches=16), where="norm1", code="small-batch")


@planted
def one_channel_per_group_after_pooling(seed: int) -> Case:
    return case(group_cnn(seed, groups=32), seed, where="6", code="tiny-sets")


@planted
def eps_of_one(seed: int) -> Case:
    model = vit(seed)
    model.vit.layers[0].layernorm_before.eps = 1.0
    return case(model, seed, output="logits", where="vit.layers.0.layernorm_before", code="eps-scale")


@planted
def embeddings_far_too_small(seed: int) -> Case:
    model = gpt2(seed)
    with torch.no_grad():
        model.transformer.wte.weight *= 0.05
        model.transformer.wpe.weight *= 0.05
    return spoken(model, seed, where="transformer.h.0.ln_1", code="eps-dominated")


@planted
def initialised_with_unit_variance(seed: int) -> Case:
    model = mlp(generator=generator(seed), depth=8, width=32)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, generator=generator(seed))
    return case(model, seed, where="linear1", code="exploding-run")


@planted
def spectral_norm_never_iterated(seed: int) -> Case:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.utils.spectral_norm(nn.Conv2d(16, 32, 3, stride=2, padding=1)),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(512, 1),
        )
    return case(model, seed, mode="eval", where="2", code="spectral-norm-off")
