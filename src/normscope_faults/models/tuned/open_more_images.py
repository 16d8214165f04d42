"""The open half, more faults: networks for images, points and fields."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from ...case import Case, Fault, fault
from ..parts import (
    ConvNet,
    Denoiser,
    ResNet,
    UNet,
    accuracy,
    as_pixels,
    blob_images,
    discriminator,
    explained_variance,
    mlp,
    noisy_images,
    table,
    train,
)

FAULTS: list[Fault] = []
plant = partial(fault, FAULTS)


# --------------------------------------------------------------------------------------------------- ConvNeXt and Mixer


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, LayerNorm over channels, two pointwise layers, a learned factor on the branch."""

    def __init__(self, width: int, gamma: float = 0.1, skip: bool = True) -> None:
        super().__init__()
        self.skip = skip
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), gamma))

    def forward(self, x: Tensor) -> Tensor:
        branch = self.depthwise(x).permute(0, 2, 3, 1)
        branch = self.gamma * self.shrink(F.gelu(self.expand(self.norm(branch))))
        branch = branch.permute(0, 3, 1, 2)
        return x + branch if self.skip else branch


class ConvNeXt(nn.Module):
    """A patch stem, blocks, mean over places, LayerNorm, head."""

    def __init__(
        self, width: int = 16, depth: int = 3, classes: int = 4, gamma: float = 0.1, skip: bool = True
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 2, stride=2)
        self.stages = nn.Sequential(*(ConvNeXtBlock(width, gamma, skip) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.stages(self.stem(x)).mean((2, 3))))


@plant(
    "ConvNeXt",
    layers=" ".join(f"stages stages.{i} stages.{i}.norm stages.{i}.gamma stages.{i}.shrink" for i in range(4))
    + " norm",
    causes="vanishing-signal vanishing-gradient eps-dominates output-constant zero-weights",
    remedies="add-skip rescale-layer scale-branch lower-eps initialise",
)
def small_layer_scale_and_no_residual(broken: bool) -> Case:
    """LayerScale of 1e-6 is harmless beside a residual sum; here the sum was forgotten."""
    torch.manual_seed(801)
    x, y = blob_images(48, classes=6)
    return Case(model=ConvNeXt(depth=4, classes=6, gamma=1e-6, skip=not broken), data=(x, y), loss="cross_entropy")


class BufferScaled(nn.Module):
    """An MLP of residual blocks with a factor per block, in a buffer (never trained) or a parameter."""

    def __init__(self, as_buffer: bool) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 16), nn.Linear(16, 3)
        self.widen, self.narrow = nn.Linear(16, 64), nn.Linear(64, 16)
        if as_buffer:
            self.register_buffer("scale", torch.zeros(16))
        else:
            self.scale = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x + self.scale * self.narrow(torch.relu(self.widen(x))))


@plant(
    "MLP",
    layers="scale widen narrow",
    causes="zero-weights frozen-layer no-gradient unused-parameter vanishing-gradient missing-activation",
    remedies="unfreeze initialise use-parameter keep-gradient",
)
def zero_factor_in_a_buffer(broken: bool) -> Case:
    """register_buffer where nn.Parameter was meant: a ReZero factor that stays at zero."""
    torch.manual_seed(802)
    x, y = table()
    return Case(model=BufferScaled(broken), data=(x, y), loss="cross_entropy")


class Mixer(nn.Module):
    """An MLP-Mixer of one block; `axis` is the one that the first MLP mixes with."""

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis, self.patch = axis, nn.Conv2d(1, 24, 4, stride=4)
        self.norm1, self.norm2 = nn.LayerNorm(24), nn.LayerNorm(24)
        self.tokens, self.channels = mlp(16, 32, 16, activation=nn.GELU), mlp(24, 48, 24, activation=nn.GELU)
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm1(x).transpose(self.axis, 2)).transpose(self.axis, 2)
        x = x + self.channels(self.norm2(x))
        return self.head(x.mean(1))


@plant("MLP-Mixer", layers="tokens tokens.0 tokens.2", causes="samples-mixed", remedies="fix-axis")
def tokens_and_samples_exchanged(broken: bool) -> Case:
    """transpose(0, 2) for transpose(1, 2), unnoticed since the batch is as large as the number of patches."""
    torch.manual_seed(803)
    x, y = blob_images(16)
    return Case(model=Mixer(0 if broken else 1), data=(x, y), loss="cross_entropy")


# ------------------------------------------------------------------------------------------- two streams, heads, shapes


class TwoStreams(nn.Module):
    """Two small encoders, one of the image and one of its rows, joined."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.image = nn.Sequential(nn.Flatten(), nn.Linear(256, 24), nn.ReLU())
        self.rows = nn.Sequential(nn.Linear(16, 24), nn.ReLU())
        self.head = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([self.image(x), self.rows(x.mean((1, 3)))], self.axis)
        return self.head(joined.view(len(x), -1))


@plant("two streams", causes="samples-mixed", remedies="fix-axis")
def concatenated_along_the_batch(broken: bool) -> Case:
    """torch.cat without dim=1; a view makes the shape fit again."""
    torch.manual_seed(804)
    x, y = blob_images()
    x, y = x[torch.arange(64) * 29 % 64], y[torch.arange(64) * 29 % 64]
    return Case(model=TwoStreams(0 if broken else 1), data=(x, y), loss="cross_entropy")


class OneVersusRest(nn.Module):
    """One linear head per class, in a list."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), *mlp(256, 48, 32), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(32, 1)] * 4 if copies else [nn.Linear(32, 1) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        features = self.trunk(x)
        return torch.cat([head(features) for head in self.heads], dim=1)


@plant(
    "MLP",
    layers="heads heads.0 heads.0.weight trunk trunk.1 trunk.3",
    causes="constant-initialisation rank-one-weights output-constant no-gradient vanishing-gradient",
    remedies="initialise use-parameter keep-gradient",
)
def one_head_four_times(broken: bool) -> Case:
    """nn.ModuleList([head] * 4) repeats one head: all logits are equal."""
    torch.manual_seed(805)
    x, y = blob_images()
    return Case(model=OneVersusRest(broken), data=(x, y), loss="cross_entropy")


class Detector(nn.Module):
    """Says per cell whether an object is there, and the box of the strongest one."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU()
        )
        self.objectness, self.box = nn.Conv2d(16, 1, 1), nn.Linear(256, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(x)
        return torch.sigmoid(self.objectness(features)).flatten(1), self.box(features.flatten(1))


def cells_and_boxes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return which of 4 x 4 cells are bright, and standardised boxes (centre and spread of the brightness)."""
    bright = images.clamp(min=0).squeeze(1)
    cells = (F.avg_pool2d(images, 4).flatten(1) > 0.8).float()
    weight, places = bright.flatten(1) / bright.flatten(1).sum(1, keepdim=True), torch.arange(16.0)
    across, along = weight.view(-1, 16, 16).sum(1), weight.view(-1, 16, 16).sum(2)
    centre = torch.stack([across @ places, along @ places], 1)
    spread = torch.stack([(across @ places**2), (along @ places**2)], 1) - centre**2
    boxes = torch.cat([centre, spread], dim=1)
    return cells, (boxes - boxes.mean(0)) / boxes.std(0)


@plant(
    "detector",
    layers="objectness objectness.bias",
    causes="saturated-units loss-gradient-zero vanishing-gradient output-constant bias-holds-units-off",
    remedies="reset-bias initialise change-loss remove-final-activation",
)
def prior_of_the_objectness(broken: bool) -> Case:
    """The bias that sets a prior of 1 % is -4.6; here it was set to -46."""
    torch.manual_seed(806)
    x, _ = blob_images()
    cells, _ = cells_and_boxes(x)
    model = Detector()
    nn.init.constant_(model.objectness.bias, -46.0 if broken else -4.6)
    return Case(
        model=model,
        data=(x, cells),
        loss=lambda output, target: F.binary_cross_entropy(output[0], target),
        judge=lambda output: -F.binary_cross_entropy(output[0], cells).item(),
    )


@plant("detector", causes="shapes-broadcast", remedies="match-shapes")
def boxes_with_an_axis_too_many(broken: bool) -> Case:
    """Targets (N, 1, 4), one box per image, against outputs (N, 4)."""
    torch.manual_seed(807)
    x, _ = blob_images()
    _, boxes = cells_and_boxes(x)

    class Boxes(Detector):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[1]

    return Case(
        model=Boxes(),
        data=(x, boxes[:, None] if broken else boxes),
        loss=F.smooth_l1_loss,
        judge=explained_variance(boxes),
    )


# -------------------------------------------------------------------------------------------- normalizers around a head


@plant(
    "CNN",
    layers="3 4",
    causes="normalizer-erases-signal output-constant",
    remedies="replace-normalizer add-activation",
)
def instance_norm_before_the_mean(broken: bool) -> Case:
    """InstanceNorm makes every map's mean zero, and the pooling right after it takes just that mean."""
    torch.manual_seed(808)
    x, y = blob_images()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.InstanceNorm2d(16, affine=True) if broken else nn.Identity(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant(
    "CNN",
    layers="age age.1",
    causes="normalizer-erases-signal output-constant normalizer-too-few-samples",
    remedies="replace-normalizer",
)
def layer_norm_of_one_output(broken: bool) -> Case:
    """LayerNorm(1) at the end of a head with one output: each value minus itself."""
    torch.manual_seed(809)
    x, _ = blob_images()
    _, boxes = cells_and_boxes(x)
    model = nn.Sequential()
    model.add_module("trunk", nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.SiLU()))
    model.add_module("age", nn.Sequential(nn.Linear(32, 1), nn.LayerNorm(1) if broken else nn.Identity()))
    return Case(model=model, data=(x, boxes[:, :1]), loss="mse")


@plant(
    "CNN",
    layers="bn",
    causes="output-range-too-small normalizer-erases-signal activation-before-loss samples-mixed targets-out-of-range"
    " targets-wrong-scale",
    remedies="replace-normalizer remove-final-activation scale-targets",
)
def batch_norm_after_the_last_layer(broken: bool) -> Case:
    """The loop that adds BatchNorm after each layer adds it after the last one too."""
    torch.manual_seed(810)
    x, _ = blob_images()
    target = 6 + 3 * cells_and_boxes(x)[1][:, :2]
    model = nn.Sequential()
    for name, layer in {
        "flat": nn.Flatten(), "fc1": nn.Linear(256, 32), "act": nn.ReLU(), "fc2": nn.Linear(32, 2),
        "bn": nn.BatchNorm1d(2, affine=False) if broken else nn.Identity(),
    }.items():  # fmt: skip
        model.add_module(name, layer)
    return Case(model=model, data=(x, target), loss="mse")


@plant(
    "CNN",
    layers="features features.1 features.4 features.8 features.11",
    causes="running-statistics-wrong",
    remedies="refresh-statistics",
)
def momentum_of_one_and_sorted_batches(broken: bool) -> Case:
    """momentum=1 keeps the statistics of the last batch alone, and the loader goes class by class."""
    torch.manual_seed(811)
    x, y = blob_images(96)
    x = x + 1.5 * (y == 3)[:, None, None, None]
    model = ConvNet(width=8)
    train(model, x, y, F.cross_entropy, steps=60)
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0 if broken else 0.1
    with torch.no_grad():
        for kind in (0, 1, 2, 3) if broken else ():
            model(x[y == kind])
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


@plant(
    "ResNet",
    layers="stem stem.1 blocks.0.bn1 blocks.0.bn2 blocks.1.bn1 blocks.1.bn2",
    causes="running-statistics-wrong",
    remedies="refresh-statistics switch-mode",
)
def momentum_of_zero(broken: bool) -> Case:
    """momentum=0 switches the running statistics off; they stay at 0 and 1."""
    torch.manual_seed(812)
    x, y = blob_images(64, channels=3)
    model = ResNet(channels=3, blocks=2)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0 if broken else 0.1
    train(model, 3 * x + 2, y, F.cross_entropy, steps=60)
    return Case(model=model, data=(3 * x + 2, y), loss="cross_entropy", train=False)


@plant(
    "CNN",
    layers="features features.1 features.4 features.8 features.11",
    causes="normalizer-too-few-samples samples-mixed wrong-mode normalizer-erases-signal",
    remedies="refresh-statistics larger-batch replace-normalizer switch-mode",
)
def batch_statistics_when_two_images_are_served(broken: bool) -> Case:
    """track_running_stats=False: a model that serves two images at a time normalizes each by the other."""
    torch.manual_seed(813)
    x, y = blob_images(96)
    model = ConvNet(width=8)
    model.features.append(nn.AdaptiveAvgPool2d(1))
    model.features.append(nn.BatchNorm2d(8))
    train(model, x, y, F.cross_entropy, steps=80)
    for module in model.modules():
        if broken and isinstance(module, nn.BatchNorm2d):
            module.track_running_stats, module.running_mean, module.running_var = False, None, None
    rows = torch.tensor([1, 5])
    return Case(model=model, data=(x[rows], y[rows]), loss="cross_entropy", train=False)


class FunctionalDropout(nn.Module):
    """Dropout by F.dropout, which is active in eval mode too unless it is told the mode."""

    def __init__(self, told: bool) -> None:
        super().__init__()
        self.told = told
        self.conv, self.fc1, self.fc2 = nn.Conv2d(1, 8, 3, stride=2), nn.Linear(392, 32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x)).flatten(1)
        x = F.dropout(x, 0.85, training=self.training if self.told else True)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, 0.85, training=self.training if self.told else True)
        return self.fc2(x)


@plant("CNN", causes="wrong-mode dropout-too-strong", remedies="switch-mode lower-dropout")
def dropout_that_ignores_the_mode(broken: bool) -> Case:
    """F.dropout(x, p) without training=self.training drops units of a served model as well."""
    torch.manual_seed(814)
    x, y = blob_images(96, classes=6)
    model = FunctionalDropout(told=not broken)
    train(model, x, y, F.cross_entropy, steps=120)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


@plant("MLP", layers="0", causes="dropout-too-strong", remedies="lower-dropout")
def pixels_dropped(broken: bool) -> Case:
    """Denoising by dropping 97 % of the pixels."""
    torch.manual_seed(815)
    x, y = blob_images(64, classes=8)
    model = nn.Sequential(nn.Dropout(0.97 if broken else 0.1), *mlp(256, 48, 8))
    return Case(model=model, data=(x.flatten(1), y), loss="cross_entropy")


@plant("CNN", layers="out out.1", causes="dropout-too-strong activation-before-loss", remedies="lower-dropout")
def logits_dropped(broken: bool) -> Case:
    """Dropout after the last layer as well: most logits are zero."""
    torch.manual_seed(816)
    x, y = blob_images(64, classes=8)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ELU(), nn.Flatten())
            self.out = nn.Sequential(nn.Linear(512, 8), nn.Dropout(0.9 if broken else 0.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.body(x))

    return Case(model=Net(), data=(x, y), loss="cross_entropy")


@plant(
    "CNN",
    layers="features.7 features.8",
    causes="dead-units bias-holds-units-off vanishing-gradient output-constant",
    remedies="reset-bias initialise change-activation",
)
def normalizer_holds_units_off(broken: bool) -> Case:
    """constant_(bias, -5) met the bias of a BatchNorm."""
    torch.manual_seed(817)
    x, y = blob_images(classes=6)
    model = ConvNet(width=10, classes=6)
    if broken:
        nn.init.constant_(model.features[8].bias, -5.0)
    return Case(model=model, data=(x, y), loss="cross_entropy")


class SegmentedUNet(UNet):
    """A U-Net that may return probabilities of the classes of each pixel."""

    probabilities = False

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits.softmax(1) if self.probabilities else logits


def pixel_classes(images: Tensor, levels: int = 4) -> Tensor:
    """Return a class per pixel: its brightness after blurring, in equally frequent levels."""
    blurred = F.avg_pool2d(images, 5, 1, 2, count_include_pad=False).squeeze(1)
    return blurred.flatten().argsort().argsort().view(blurred.shape) * levels // blurred.numel()


@plant("U-Net", causes="softmax-twice", remedies="remove-final-activation change-loss change-output-activation")
def softmax_over_pixels_then_cross_entropy(broken: bool) -> Case:
    """A segmentation that returns probabilities, trained with nn.CrossEntropyLoss."""
    torch.manual_seed(818)
    x, _ = blob_images(16)
    y = pixel_classes(x, 8)
    model = SegmentedUNet(outputs=8)
    model.probabilities = broken
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@plant(
    "U-Net",
    causes="not-finite loss-does-not-fit loss-gradient-zero gradient-not-finite class-imbalance",
    remedies="balance-classes change-loss guard-domain",
)
def class_weights_by_integer_division(broken: bool) -> Case:
    """weight = count // total is zero for each class, and the weighted mean divides by zero."""
    torch.manual_seed(819)
    x, _ = blob_images(16)
    y = pixel_classes(x)
    count = torch.bincount(y.flatten(), minlength=4)
    weight = (count // y.numel()).float() if broken else y.numel() / (4.0 * count)
    return Case(model=UNet(outputs=4), data=(x, y), loss=nn.CrossEntropyLoss(weight=weight))


class Enlarger(nn.Module):
    """Super-resolution: convolutions at the small size, then a pixel shuffle beside the enlarged image."""

    def __init__(self, last: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.last = last
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.interpolate(x, scale_factor=2) + F.pixel_shuffle(self.body(x), 2))


@plant(
    "super-resolution",
    causes="output-range-too-small targets-out-of-range activation-before-loss",
    remedies="remove-final-activation fix-targets scale-targets",
)
def images_clamped_to_the_unit_range(broken: bool) -> Case:
    """clamp(0, 1), as for saving images, around images in -1..1."""
    torch.manual_seed(820)
    large = 2 * as_pixels(blob_images()[0]) - 1
    model = Enlarger((lambda image: image.clamp(0, 1)) if broken else (lambda image: image))
    return Case(model=model, data=(F.avg_pool2d(large, 2), large), loss="mse")


@plant(
    "MLP",
    layers="1 3 5 0 2 4 6",
    causes="missing-activation activation-unsuitable",
    remedies="add-activation change-activation",
)
def leaky_relu_in_place(broken: bool) -> Case:
    """nn.LeakyReLU(True): the first argument is the slope, not inplace, and a slope of 1 is no activation."""
    torch.manual_seed(821)
    x, y = table()
    leaky = (lambda: nn.LeakyReLU(True)) if broken else (lambda: nn.LeakyReLU(0.2))
    model = nn.Sequential(
        nn.Linear(12, 32), leaky(), nn.Linear(32, 32), leaky(), nn.Linear(32, 32), leaky(), nn.Linear(32, 3)
    )
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant(
    "GAN",
    layers="5",
    causes="not-finite not-finite-weights zero-weights",
    remedies="initialise guard-domain",
)
def weight_norm_of_a_zero_layer(broken: bool) -> Case:
    """A last layer initialised to zero and then wrapped in weight_norm, which divides by its norm."""
    torch.manual_seed(822)
    x, y = blob_images(classes=2)
    model = discriminator()
    if broken:
        nn.init.zeros_(model[5].weight)
    model[5] = weight_norm(model[5], dim=0)
    target = y.float()[:, None]
    return Case(
        model=model,
        data=(x, target),
        loss=nn.BCEWithLogitsLoss(),
        judge=lambda output: ((output > 0) == (target > 0.5)).float().mean().item() if output.isfinite().all() else 0.0,
    )


# ------------------------------------------------------------------------------------------------------ depth and scale


@plant(
    "CNN",
    layers=" ".join(str(index) for index in range(0, 50, 2)),
    causes="vanishing-signal vanishing-gradient output-constant",
    remedies="initialise add-normalizer add-skip",
)
def glorot_for_rectifiers(broken: bool) -> Case:
    """xavier_normal_ halves the variance at each ReLU; over 24 layers little is left."""
    torch.manual_seed(823)
    x, y = blob_images(64, classes=6)
    model = mlp(256, *[32] * 24, 6)
    for layer in model:
        if isinstance(layer, nn.Linear):
            if broken:
                nn.init.xavier_normal_(layer.weight)
            else:
                nn.init.orthogonal_(layer.weight, gain=2**0.5)
    return Case(model=model, data=(x.flatten(1), y), loss="cross_entropy")


@plant(
    "MLP",
    layers="0 2 4 6 8 10 12",
    causes="exploding-signal exploding-gradient layer-scale-stands-out",
    remedies="initialise rescale-layer add-normalizer",
)
def orthogonal_with_a_gain_of_five(broken: bool) -> Case:
    """nn.init.orthogonal_(weight, gain=5)."""
    torch.manual_seed(824)
    x, y = blob_images(64, classes=6)
    model = mlp(256, *[40] * 6, 6)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain=5.0 if broken else 2**0.5)
    return Case(model=model, data=(x.flatten(1), y), loss="cross_entropy")


class ReparametrisedFilter(nn.Module):
    """Convolutions whose second kernel is kept by the module itself and wrapped anew in each forward."""

    def __init__(self, wrapped_anew: bool) -> None:
        super().__init__()
        self.wrapped_anew = wrapped_anew
        self.first, self.head = nn.Conv2d(1, 4, 3, stride=2), nn.Linear(4, 8)
        self.kernel = nn.Parameter(0.2 * torch.randn(4, 4, 5, 5))
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        kernel = nn.Parameter(self.kernel.clone()) if self.wrapped_anew else self.kernel
        return self.head(torch.relu(F.conv2d(torch.relu(self.first(x)), kernel)).mean((2, 3)))


@plant("CNN", layers="kernel", causes="no-gradient unused-parameter", remedies="keep-gradient use-parameter")
def parameter_wrapped_in_forward(broken: bool) -> Case:
    """nn.Parameter(...) made in forward is a new leaf: the parameter of the module gets no gradient."""
    torch.manual_seed(825)
    x, y = blob_images(64, classes=8)
    return Case(model=ReparametrisedFilter(broken), data=(x, y), loss="cross_entropy")


@plant(
    "CNN",
    layers="0 1 2 3",
    causes="saturated-units inputs-not-scaled dead-units",
    remedies="scale-inputs change-activation add-normalizer",
)
def relu6_on_bytes(broken: bool) -> Case:
    """nn.ReLU6, from a network for phones, on pixels in 0..255."""
    torch.manual_seed(826)
    images, y = blob_images(64, classes=8)
    pixels = 0.3 + 0.7 * as_pixels(images)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU6(), nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.ReLU6(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 8),
    )  # fmt: skip
    return Case(model=model, data=(255 * pixels if broken else 6 * pixels - 3, y), loss="cross_entropy")


@plant("CNN", causes="inputs-not-scaled exploding-signal", remedies="scale-inputs")
def means_of_imagenet_for_bytes(broken: bool) -> Case:
    """(x - 0.485) / 0.229 on pixels that were not divided by 255."""
    torch.manual_seed(827)
    images, y = blob_images(64, classes=6, channels=3)
    pixels = as_pixels(images) * (255 if broken else 1)
    x = (pixels - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    return Case(model=ConvNet(channels=3, depth=6, classes=6, norm=False), data=(x, y), loss="cross_entropy")


@plant(
    "U-Net",
    layers="down1.1 down1.4 down2.1 down2.4 bottom.1 bottom.4 up2.1 up2.4 up1.1 up1.4 down1 down2 bottom up2 up1",
    causes="eps-dominates vanishing-signal output-constant vanishing-gradient",
    remedies="lower-eps initialise rescale-layer",
)
def group_norm_eps_of_one(broken: bool) -> Case:
    """GroupNorm with eps=1 (taken for momentum) behind convolutions drawn at 0.01."""
    torch.manual_seed(828)
    x, _ = blob_images(16)
    model = UNet(outputs=4)
    for module in model.modules():
        if isinstance(module, nn.GroupNorm):
            module.eps = 1.0 if broken else 1e-5
        elif isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
    return Case(model=model, data=(x, pixel_classes(x)), loss="cross_entropy")


# ------------------------------------------------------------------------------------ diffusion, capsules, point clouds


class FilmDenoiser(Denoiser):
    """A denoiser whose blocks are modulated by scale and shift from the time; `one` is added to the scale."""

    def __init__(self, one: float) -> None:
        super().__init__(width=16, blocks=2)
        self.one = one
        self.film = nn.Linear(16, 32)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        scale, shift = self.film(self.embed_time(t).flatten(1))[:, :, None, None].chunk(2, dim=1)
        x = self.first(x)
        for norm, conv in zip(self.norms, self.convs):
            x = conv(F.silu(norm(x) * (self.one + scale) + shift))
        return self.last(x)


@plant(
    "diffusion",
    layers="film film.weight film.bias",
    causes="zero-weights vanishing-signal output-constant vanishing-gradient no-gradient",
    remedies="initialise rescale-layer restore-condition",
)
def zero_film_without_the_one(broken: bool) -> Case:
    """FiLM layers that start at zero need (1 + scale); with the scale alone nothing of the image passes."""
    torch.manual_seed(829)
    inputs, noise = noisy_images()
    return Case(
        model=FilmDenoiser(0.0 if broken else 1.0), data=(inputs, noise), loss="mse", judge=explained_variance(noise)
    )


class RawTimeDenoiser(nn.Module):
    """A denoiser of convolutions that gets the time as one more channel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1), nn.SiLU(),
            nn.Conv2d(16, 1, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.layers(torch.cat([x, t[:, None, None, None].expand_as(x)], dim=1))


@plant(
    "diffusion",
    causes="inputs-not-scaled one-input-column-dominates branch-dominates exploding-signal",
    remedies="scale-inputs",
)
def steps_of_diffusion_as_numbers(broken: bool) -> Case:
    """The number of the step, up to 1000, as one more channel."""
    torch.manual_seed(830)
    inputs, noise = noisy_images()
    inputs["t"] = inputs["t"] if broken else inputs["t"] / 1000
    return Case(model=RawTimeDenoiser(), data=(inputs, noise), loss="mse", judge=explained_variance(noise))


class Capsules(nn.Module):
    """Capsules of four values with the squash of Sabour et al. (2017)."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.primary = eps, nn.Conv2d(1, 16, 5, stride=3)
        self.classes = nn.Linear(256, 4)

    def squash(self, capsules: Tensor) -> Tensor:
        """Return the vectors with lengths below 1."""
        square = capsules.square().sum(-1, keepdim=True)
        return square / (1 + square) * capsules / torch.sqrt(square + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        capsules = torch.relu(self.primary(x)).view(len(x), 4, 4, -1).transpose(2, 3)
        return self.classes(self.squash(capsules).flatten(1))


@plant(
    "capsules",
    causes="not-finite gradient-not-finite",
    remedies="guard-domain",
)
def squash_of_an_empty_capsule(broken: bool) -> Case:
    """The squash divides by the length of a capsule; behind a ReLU some capsules are zero."""
    torch.manual_seed(831)
    x, y = blob_images()
    return Case(model=Capsules(0.0 if broken else 1e-6), data=(x, y), loss="cross_entropy", judge=accuracy(y))


def clouds(count: int = 32, points: int = 32) -> tuple[Tensor, Tensor]:
    """Return point clouds on a ball, a cube's surface, a ring and a line, and their classes."""
    labels = torch.arange(count) % 4
    raw = torch.randn(count, points, 3)
    ball, cube = F.normalize(raw, dim=-1), raw / raw.abs().amax(-1, keepdim=True)
    ring = F.normalize(raw * torch.tensor([1.0, 1.0, 0.0]), dim=-1)
    shapes = torch.stack([ball, cube, ring, raw * torch.tensor([1.0, 0.05, 0.05])])
    return shapes[labels, torch.arange(count)] + 0.05 * torch.randn(count, points, 3), labels


class PointNet(nn.Module):
    """One MLP for each point, the maximum over points, an MLP for the cloud."""

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis, self.point, self.cloud = axis, mlp(3, 32, 48), mlp(48, 32, 4)

    def forward(self, clouds: Tensor) -> Tensor:
        return self.cloud(torch.max(self.point(clouds), self.axis).values)


@plant("PointNet", causes="samples-mixed", remedies="fix-axis")
def maximum_over_clouds(broken: bool) -> Case:
    """torch.max(x, 0): over the clouds instead of the points, of which there are as many."""
    torch.manual_seed(832)
    x, y = clouds()
    return Case(model=PointNet(0 if broken else 1), data=(x, y), loss="cross_entropy")


@plant("PointNet", causes="inputs-not-scaled exploding-signal dead-units", remedies="scale-inputs")
def coordinates_of_a_map(broken: bool) -> Case:
    """Points in metres of a national grid."""
    torch.manual_seed(833)
    x, y = clouds()
    offset = torch.tensor([471_000.0, 5_531_000.0, 112.0])
    return Case(model=PointNet(), data=(10 * x + offset if broken else x, y), loss="cross_entropy")


class Statistics(nn.Module):
    """Mean and standard deviation over the points, from the features of each."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.point, self.cloud = eps, mlp(3, 32, 16), mlp(32, 32, 4)

    def forward(self, clouds: Tensor) -> Tensor:
        features = torch.relu(self.point(clouds))
        deviation = (features.var(1, correction=0) + self.eps).sqrt()
        return self.cloud(torch.cat([features.mean(1), deviation], dim=1))


@plant(
    "PointNet",
    causes="gradient-not-finite not-finite",
    remedies="guard-domain",
)
def deviation_of_equal_points(broken: bool) -> Case:
    """Statistics pooling: the slope of a standard deviation of zero is infinite."""
    torch.manual_seed(834)
    x, y = clouds()
    x[5] = x[5, :1]
    return Case(model=Statistics(0.0 if broken else 1e-6), data=(x, y), loss="cross_entropy")


@plant(
    "neural field",
    causes="inputs-not-scaled vanishing-signal output-constant",
    remedies="scale-inputs",
)
def coordinates_in_metres(broken: bool) -> Case:
    """A field over a sample of 10 micrometres, with coordinates in metres."""
    torch.manual_seed(835)
    place = 2 * torch.rand(256, 2) - 1
    field = torch.sin(3 * place[:, :1]) * torch.cos(2 * place[:, 1:])
    model = mlp(2, 48, 48, 1, activation=nn.Tanh)
    return Case(model=model, data=(place * 5e-6 if broken else place, field / field.std()), loss="mse")


class EulerField(nn.Module):
    """A residual flow: `steps` of size `step` along one learned field (a neural ODE by Euler's rule)."""

    def __init__(self, step: float, steps: int = 30) -> None:
        super().__init__()
        self.step, self.steps = step, steps
        self.read = nn.Linear(256, 24)
        self.field = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24))
        self.head = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        state = self.read(x.flatten(1))
        for _ in range(self.steps):
            state = state + self.step * self.field(state)
        return self.head(state)


@plant(
    "neural ODE",
    layers="field field.0 field.2 head",
    causes="exploding-signal exploding-gradient branch-dominates",
    remedies="scale-branch rescale-layer add-normalizer initialise lower-learning-rate clip-gradients",
)
def euler_steps_of_one(broken: bool) -> Case:
    """Thirty Euler steps of size 1 where the interval has length 1."""
    torch.manual_seed(836)
    x, y = blob_images(64, classes=6)
    model = EulerField(1.0 if broken else 1 / 30)
    for layer in model.field:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    return Case(model=model, data=(x, y), loss="cross_entropy")
