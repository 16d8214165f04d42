"""Healthy networks for images: fresh, trained a little or well, some of them awkward."""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim import SGD, Adam
from transformers import ViTConfig, ViTForImageClassification

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import changed, filled, variant
from ...training import train
from . import rarer


class LayerScaleViT(nets.ViT):  # A ViT with a small learned factor on each block, as CaiT has it.
    def __init__(self, start: float, depth: int = 4) -> None:
        super().__init__(depth=depth)
        self.scales = nn.ParameterList(nn.Parameter(torch.full((32,), start)) for _ in range(depth))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.places
        for scale, block in zip(self.scales, self.blocks):
            x = x + scale * (block(x) - x)
        return self.head(self.norm(x)[:, 0])


class MobileBlock(nn.Module):  # An inverted residual with a depthwise convolution and a squeeze-and-excitation gate.
    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 3 * width
        self.expand = nn.Sequential(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.Hardswish()
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 4, 1), nn.ReLU(), nn.Conv2d(4, wide, 1), nn.Hardsigmoid()
        )
        self.project = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        return x + self.project(y * self.squeeze(y))


class DenseNet(nn.Module):
    """Each layer reads all earlier maps; pre-activation BatchNorm, a transition, mean over places."""

    def __init__(self, growth: int = 6, depth: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False)
        widths = [8 + growth * index for index in range(depth + 1)]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(w), nn.ReLU(), nn.Conv2d(w, growth, 3, padding=1, bias=False))
            for w in widths[:-1]
        )
        self.norm, self.head = nn.BatchNorm2d(widths[-1]), nn.Linear(widths[-1], 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return self.head(F.relu(self.norm(x)).mean((2, 3)))


@OPEN
def detector_with_a_prior() -> Case:
    """detector | 905"""
    x, _ = draw.blob_images()
    model = rarer.Detector()
    nn.init.constant_(model.objectness.bias, -2.2)
    targets = torch.cat(rarer.cells_and_boxes(x), dim=1)

    def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return F.binary_cross_entropy(output[0], target[:, :16]) + F.smooth_l1_loss(output[1], target[:, 16:])

    return Case((x, targets), model, loss)


@OPEN
def borders_that_are_ignored() -> Case:
    """U-Net | 906"""
    x, _ = draw.blob_images(16)
    y = rarer.pixel_classes(x)
    y[:, 0], y[:, -1], y[:, :, 0], y[:, :, -1] = 255, 255, 255, 255
    return Case((x, y), nets.UNet(outputs=4), nn.CrossEntropyLoss(ignore_index=255))


@OPEN
def blocks_left_out_at_random() -> Case:
    """ResNet | 912"""

    # A ResNet whose blocks are left out at random in training.
    def forward_stochastic_depth(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if not self.training or torch.rand(()) > 0.2:
                x = block(x)
        return self.head(x.mean((2, 3)))

    x, y = draw.blob_images(64)
    model = variant("StochasticDepth", nets.ResNet(blocks=3), forward=forward_stochastic_depth)
    train(model, x, y, F.cross_entropy, steps=50)
    return Case((x, y), model, "cross_entropy", train=False)


class FrozenStatistics(nets.ConvNet):  # A trained network whose BatchNorms stay in eval mode while it is tuned further.
    def train(self, mode: bool = True) -> "FrozenStatistics":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d) and module.num_batches_tracked >= 40:
                module.eval()
        return self


@FIRST
def rezero_gates() -> Case:
    """ResNet | 224"""

    # Residual blocks that start as the identity (Bachlechner et al. 2020).
    def re_zero(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for gate, branch in zip(self.gates, self.branches):
            x = x + gate * branch(x)
        return self.last(x)

    x, y = draw.table()
    net = nets.made("ReZero", re_zero)
    net.first, net.last = nn.Linear(12, 32), nn.Linear(32, 3)
    net.branches = nn.ModuleList(nets.mlp(32, 64, 32) for _ in range(10))
    net.gates = nn.Parameter(torch.zeros(10))
    return Case((x, y), net, nn.CrossEntropyLoss())


@FIRST
def layer_scale_of_one_in_ten_thousand() -> Case:
    """ViT | 230"""

    class Scaled(nn.Module):
        """A block whose branches start almost at zero (Touvron et al. 2021)."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = nets.SelfAttention(width, 4, causal=False)
            self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            self.gamma1, self.gamma2 = (nn.Parameter(1e-4 * torch.ones(width)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.gamma1 * self.attention(self.norm1(x))
            return x + self.gamma2 * self.feed(self.norm2(x))

    x, y = draw.blob_images(24)
    model = nets.ViT()
    model.blocks = nn.Sequential(*(Scaled(32) for _ in range(4)))
    return Case((x, y), model, nn.CrossEntropyLoss())


@SECOND
def residual_factors_that_start_at_zero() -> Case:
    """ResNet | 304"""

    # Residual branches times a learned factor that starts at zero (Bachlechner et al. 2020).
    def re_zero(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for factor, branch in zip(self.factors, self.branches):
            x = x + factor * branch(x)
        return self.head(x)

    x, y = draw.table()
    model = nets.made("ReZero", re_zero)
    model.first, model.head = nn.Linear(12, 32), nn.Linear(32, 3)
    model.branches = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(8))
    model.factors = nn.Parameter(torch.zeros(8))
    return Case((x, y), model, "cross_entropy", steps=15)


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, LayerNorm over channels, an inverted bottleneck and a layer scale of 1e-6."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.layer_scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        branch = self.layer_scale * self.narrow(F.gelu(self.widen(branch)))
        return x + branch.permute(0, 3, 1, 2)


class InvertedResidual(nn.Module):  # MobileNetV2: widen, filter each channel, narrow again without an activation.
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width), nn.ReLU6(),
            nn.Conv2d(4 * width, 4 * width, 3, padding=1, groups=4 * width, bias=False), nn.BatchNorm2d(4 * width),
            nn.ReLU6(), nn.Conv2d(4 * width, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.squeeze, self.excite = nn.Linear(width, 4), nn.Linear(4, width)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm(self.conv(x))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(branch.mean((2, 3))))))
        return torch.relu(x + branch * gate[:, :, None, None])


@SECOND
def gates_of_squeeze_and_excitation() -> Case:
    """ResNet | 311"""
    images, labels = draw.blob_images()
    model = nets.ResNet()
    model.blocks = nn.Sequential(SqueezeExcite(12), SqueezeExcite(12))
    return Case((images, labels), model, "cross_entropy", steps=40)


def focal_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross entropy with easy places weighed down."""
    wrong = (torch.sigmoid(logits) - target).abs()
    return (wrong.square() * F.binary_cross_entropy_with_logits(logits, target, reduction="none")).sum((1, 2, 3)).mean()


class PriorHead(nn.Module):
    """A detector whose bias says that objects are rare, as with the focal loss (Lin et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.objects = nn.Conv2d(12, 1, 1)
        nn.init.constant_(self.objects.bias, -math.log(0.9 / 0.1))

    def forward(self, images: Tensor) -> Tensor:
        return self.objects(self.trunk(images))


@SECOND
def dense_connections() -> Case:
    """CNN | 326"""

    # Each layer reads what all earlier ones have computed.
    def dense_net(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for norm, conv in zip(self.norms, self.convs):
            x = torch.cat([x, conv(torch.relu(norm(x)))], dim=1)
        return self.head(torch.relu(self.norm(x)).mean((2, 3)))

    net = nets.made("DenseNet", dense_net)
    net.first = nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False)
    net.norms = nn.ModuleList(nn.BatchNorm2d(16 + 8 * k) for k in range(4))
    net.convs = nn.ModuleList(nn.Conv2d(16 + 8 * k, 8, 3, padding=1, bias=False) for k in range(4))
    net.norm, net.head = nn.BatchNorm2d(16 + 4 * 8), nn.Linear(16 + 4 * 8, 4)
    return Case(model=net, data=draw.blob_images(), loss="cross_entropy")


class FrozenTrunk(nn.Module):
    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(12, 2)

    def train(self, mode: bool = True) -> "FrozenTrunk":
        super().train(mode)
        self.trunk.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


@SECOND
def trained_trunk_frozen_under_a_new_head() -> Case:
    """ResNet | 330"""
    images, labels = draw.blob_images()
    trunk = nets.ResNet()
    train(trunk, images, labels, F.cross_entropy, steps=40)
    trunk.head = nn.Identity()
    model = FrozenTrunk(trunk.requires_grad_(False))
    return Case((images, labels // 2), model, "cross_entropy", optimizer=Adam(model.head.parameters(), lr=3e-3))


def segmentation_data() -> tuple[Tensor, Tensor]:
    """Return images and where they are bright."""
    images, _ = draw.blob_images(24)
    return images, (F.avg_pool2d(images, 3, 1, 1) > 0.7).float()


def dice_loss(logits: Tensor, mask: Tensor) -> Tensor:
    """Return 1 minus the overlap, per image."""
    chances = torch.sigmoid(logits).flatten(1)
    mask = mask.flatten(1)
    return (1 - (2 * (chances * mask).sum(1) + 1) / (chances.sum(1) + mask.sum(1) + 1)).mean()


@SECOND
def unet_trained_with_overlap() -> Case:
    """segmentation | 210"""
    images, mask = segmentation_data()
    model = nets.UNet()
    train(model, images, mask, dice_loss, steps=35, optimizer=Adam(model.parameters(), lr=5e-4))
    return Case((images, mask), model, dice_loss)


@THIRD
def four_blocks_over_patches_trained_a_little() -> Case:
    """ViT | 233"""
    x, y = draw.blob_images()
    model = nets.ViT(depth=4)
    train(model, x, y, F.cross_entropy, steps=30, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3))
    return Case((x, y), model, "cross_entropy")


@THIRD
def new_head_on_a_trained_trunk_with_its_optimizer() -> Case:
    """CNN | 259"""
    x, y = draw.blob_images(classes=8)
    model = nets.ConvNet(norm=False, classes=8)
    train(model, x, y, F.cross_entropy, steps=60)
    model.features.requires_grad_(False)
    model.head = nn.Linear(16, 4)
    return Case((x, y % 4), model, "cross_entropy", optimizer=torch.optim.Adam(model.head.parameters(), lr=3e-3))


# Rows of a table, packed.
# fmt: off
OPEN("last-norm-of-each-block-at-zero | ResNet | 701", lambda: Case(draw.blob_images(), filled("blocks.*.bn2.weight",
    0.0)(nets.ResNet(blocks=3)), "cross_entropy"))
OPEN("layer-scale-of-a-ten-thousandth | ViT | 704", lambda: Case(draw.blob_images(48), LayerScaleViT(1e-4),
    "cross_entropy"))
OPEN("layer-scale-of-a-millionth | ViT | 705", lambda: Case(draw.blob_images(48), LayerScaleViT(1e-6, depth=2),
    "cross_entropy"))
OPEN("vit-trained-well-in-eval-mode | ViT | 717", lambda: Case(draw.blob_images(48), nets.ViT(depth=2), "cross_entropy",
    train=False, steps=100))
OPEN("trained-convnet-in-eval-mode | CNN | 718", lambda: Case(draw.blob_images(), nets.ConvNet(), "cross_entropy",
    train=False, steps=120))
OPEN("frozen-backbone-with-a-fresh-head | ResNet | 719", lambda: given(draw.blob_images(), lambda x, y: Case((x, y % 3),
    changed(lambda model: setattr(model, "head", nn.Linear(12,
    3)))(changed(lambda model: model.requires_grad_(False))(train(nets.ResNet(blocks=2), x, y, F.cross_entropy,
    steps=80))), "cross_entropy", train=False)))
OPEN("depthwise-convolutions-with-gates | MobileNet | 720", lambda: given(draw.blob_images(),
    lambda x, y: given(nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.Hardswish()),
    lambda stem: Case((x, y), nn.Sequential(stem, MobileBlock(12), MobileBlock(12), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(12, 4)), "cross_entropy"))))
OPEN("segmentation-of-rare-pixels | U-Net | 722", lambda: given(draw.blob_images(24), lambda x, _: Case((x,
    (draw.as_pixels(x) > 0.6).float()), nets.UNet(), F.binary_cross_entropy_with_logits)))
OPEN("spectrograms-in-decibels | CNN | 723", lambda: given(draw.blob_images(), lambda images, y: Case((80 *
    draw.as_pixels(images) - 80, y), nn.Sequential(nn.BatchNorm2d(1), nets.ConvNet()), "cross_entropy")))
OPEN("images-from-minus-one-to-one | CNN | 724", lambda: given(draw.blob_images(channels=3),
    lambda images, y: Case((2 * draw.as_pixels(images) - 1, y), nets.ConvNet(channels=3), "cross_entropy")))
OPEN("few-samples-in-train-mode-with-group-norm | CNN | 725", lambda: Case(draw.blob_images(4),
    nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1),
    nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)), "cross_entropy"))
OPEN("convnext-with-small-layer-scale | ConvNeXt | 901", lambda: Case(draw.blob_images(48), rarer.ConvNeXt(depth=4,
    gamma=1e-6), "cross_entropy"))
OPEN("mixer-trained-a-little | MLP-Mixer | 902", lambda: Case(draw.blob_images(48), rarer.Mixer(), "cross_entropy",
    steps=40))
OPEN("dense-blocks | DenseNet | 903", lambda: Case(draw.blob_images(), DenseNet(), "cross_entropy"))
OPEN("capsules-with-a-guard | capsules | 904", lambda: Case(draw.blob_images(), rarer.Capsules(1e-6), "cross_entropy"))
OPEN("tuned-with-frozen-statistics | CNN | 913", lambda: Case(draw.blob_images(96), FrozenStatistics(width=8),
    "cross_entropy", steps=40))
OPEN("smoothed-labels | CNN | 914", lambda: Case(draw.blob_images(), nets.ConvNet(),
    nn.CrossEntropyLoss(label_smoothing=0.1)))
OPEN("bytes-divided-inside | CNN | 972", lambda: given(draw.blob_images(), lambda images, y: Case(((255 *
    draw.as_pixels(images)).round(), y), nets.made("ByteImages",
    lambda self, pixels: self.net((pixels / 255 - 0.3) / 0.2), net=nets.ConvNet(depth=3)), "cross_entropy")))
OPEN("ten-outputs-for-four-classes | CNN | 2028", lambda: Case(draw.blob_images(64), nn.Sequential(nn.Conv2d(1, 16, 3,
    2, 1), nn.ReLU6(), nn.Conv2d(16, 16, 3, 2, 1), nn.Hardswish(), nn.Flatten(), nn.Linear(256, 10)), "cross_entropy",
    train=False, steps=60))
FIRST("fresh-cnn-with-biases-before-batch-norm | CNN | 217", lambda: Case(draw.blob_images(48, channels=3),
    nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(32 * 16, 4)), nn.CrossEntropyLoss()))
FIRST("cnn-trained-well-in-eval-mode | CNN | 218", lambda: given(draw.blob_images(96), lambda x, y: Case((x[:48],
    y[:48]), train(nets.ConvNet(width=12), x, y, F.cross_entropy, steps=60), nn.CrossEntropyLoss(), train=False)))
FIRST("plain-convolutions-on-pixels-from-0-to-1 | CNN | 219", lambda: given(draw.blob_images(48),
    lambda images, y: Case((draw.as_pixels(images), y), nets.ConvNet(norm=False), nn.CrossEntropyLoss())))
FIRST("weight-norm-regression | CNN | 220", lambda: given(draw.blob_images(48),
    lambda x, y: given([parametrizations.weight_norm(nn.Conv2d(c, 12, 3, 2, 1)) for c in (1, 12)],
    lambda layers: given(nn.Sequential(layers[0], nn.ELU(), layers[1], nn.ELU(), nn.Flatten(), nn.Linear(12 * 16, 1)),
    lambda model: Case((x, (((y - 1.5) / 1.12)[:, None] + 0.1 * torch.randn(48, 1))), model, nn.SmoothL1Loss())))))
FIRST("zero-gains-in-residual-branches | ResNet | 221", lambda: Case(draw.blob_images(48), filled("blocks.*.bn2.weight",
    0.0)(nets.ResNet()), nn.CrossEntropyLoss()))
FIRST("zero-initialised-head | ResNet | 222", lambda: Case(draw.blob_images(48), filled("head.bias",
    0.0)(filled("head.weight", 0.0)(nets.ResNet())), nn.CrossEntropyLoss()))
FIRST("frozen-trained-backbone | ResNet | 223", lambda: given(draw.blob_images(48), lambda x, y: Case((x, y % 3),
    changed(lambda model: setattr(model, "head", nn.Linear(8,
    3)))(changed(lambda model: model.blocks.requires_grad_(False))(changed(lambda model:
    model.stem.requires_grad_(False))(train(nets.ResNet(width=8, blocks=2), x, y, F.cross_entropy, steps=40)))),
    nn.CrossEntropyLoss(), train=False)))
FIRST("fresh-segmentation | U-Net | 225", lambda: given(draw.blob_images(16), lambda x, _: Case((x, (x > 1.0).float()),
    nets.UNet(), nn.BCEWithLogitsLoss())))
FIRST("pre-norm-vit-of-twelve-blocks | ViT | 229", lambda: Case(draw.blob_images(16), nets.ViT(depth=12),
    nn.CrossEntropyLoss()))
SECOND("convnext-with-its-tiny-layer-scale | CNN | 305", lambda: Case(model=nets.made("ConvNeXt",
    lambda self, x: self.head(self.norm(self.blocks(self.stem(x)).mean((2, 3)))), stem=nn.Conv2d(1, 16, 4, stride=4),
    blocks=nn.Sequential(*(ConvNeXtBlock(16) for _ in range(3))), norm=nn.LayerNorm(16), head=nn.Linear(16, 4)),
    data=draw.blob_images(), loss="cross_entropy"))
SECOND("linear-bottlenecks-of-a-mobile-network | CNN | 310", lambda: given(nn.Sequential(nn.Conv2d(1, 8, 3, stride=2,
    padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), InvertedResidual(8), InvertedResidual(8),
    nn.Conv2d(8, 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Dropout(0.2), nn.Linear(24, 4)), lambda model: Case(draw.blob_images(), model, "cross_entropy")))
SECOND("rare-objects-with-a-prior-bias | detection | 315", lambda: given(draw.blob_images(),
    lambda images, _: Case((images, (F.avg_pool2d(images, 4) > 1.2).float()), PriorHead(), focal_loss)))
SECOND("pixels-of-0-to-1-behind-a-batchnorm | CNN | 321", lambda: given(draw.blob_images(),
    lambda images, labels: Case((draw.as_pixels(images), labels), nets.ConvNet(), "cross_entropy")))
SECOND("fresh-convolutions-with-sgd-handed-over | CNN | 205", lambda: given(nets.ConvNet(channels=3),
    lambda model: Case(draw.blob_images(channels=3), model, "cross_entropy", optimizer=partial(SGD, lr=0.1,
    momentum=0.9, weight_decay=5e-4, nesterov=True))))
SECOND("convolutions-trained-until-the-loss-is-small-in-eval-mode | CNN | 206", lambda: Case(draw.blob_images(128),
    nets.ConvNet(), "cross_entropy", train=False, steps=80))
SECOND("residual-network-with-gains-of-zero | ResNet | 207", lambda: given(nets.ResNet(),
    lambda model: Case(draw.blob_images(), filled("blocks.*.bn2.weight", 0.0)(model), "cross_entropy")))
SECOND("residual-network-trained | ResNet | 208", lambda: Case(draw.blob_images(), nets.ResNet(), "cross_entropy",
    steps=40))
SECOND("fresh-unet | segmentation | 209", lambda: Case(model=nets.UNet(), data=segmentation_data(),
    loss=nn.BCEWithLogitsLoss()))
SECOND("fresh-vision-transformer | ViT | 219", lambda: Case(model=nets.ViT(), data=draw.blob_images(),
    loss="cross_entropy"))
SECOND("vision-transformer-trained | ViT | 220", lambda: Case(draw.blob_images(), nets.ViT(), "cross_entropy",
    steps=40))
THIRD("eight-classes-of-images-fresh | CNN | 221", lambda: Case(model=nets.ConvNet(classes=8),
    data=draw.blob_images(classes=8), loss="cross_entropy"))
THIRD("colour-images-without-a-normalizer-trained | CNN | 222", lambda: Case(draw.blob_images(channels=3),
    nets.ConvNet(channels=3, norm=False), "cross_entropy", steps=30))
THIRD("pixels-of-zero-to-one-into-a-residual-network | CNN | 223", lambda: given(draw.blob_images(channels=3),
    lambda x, y: Case((draw.as_pixels(x), y), nets.ResNet(channels=3), "cross_entropy")))
THIRD("residual-network-after-thirty-steps-in-eval-mode | ResNet | 224", lambda: Case(draw.blob_images(),
    nets.ResNet(blocks=2), "cross_entropy", train=False, steps=40))
THIRD("overlap-of-probabilities-fresh | segmentation | 225", lambda: Case(model=nets.UNet(), data=rarer.blob_masks(),
    loss=rarer.soft_dice))
THIRD("four-classes-of-pixels | segmentation | 226", lambda: given(draw.blob_images(16), lambda x, _: Case((x,
    torch.bucketize(F.avg_pool2d(x, 3, 1, 1)[:, 0], torch.tensor([-0.4, 0.2, 1.5]))), nets.UNet(outputs=4),
    "cross_entropy")))
THIRD("boxes-trained-a-little | detection | 227", lambda: Case(rarer.boxes(), rarer.DetectorOfThird(),
    nn.SmoothL1Loss(), steps=50))
THIRD("vision-transformer-of-transformers | ViT | 234", lambda: given(ViTConfig(hidden_size=32, num_hidden_layers=2,
    num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4, num_channels=1, num_labels=4),
    lambda config: given(draw.blob_images(32), lambda x, y: Case({"pixel_values": x, "labels": y},
    ViTForImageClassification(config)))))
THIRD("convolutions-with-nesterov-handed-over | CNN | 238", lambda: given(nets.ConvNet(width=24),
    lambda model: Case(draw.blob_images(), model, "cross_entropy", optimizer=partial(torch.optim.SGD, lr=0.05,
    momentum=0.9, nesterov=True, weight_decay=5e-4))))
