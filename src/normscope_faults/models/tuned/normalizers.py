"""Faults of normalizers: modes, statistics, too few values, eps."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import changed, over
from ...training import accuracy, over_tokens, train
from . import rarer, rarer_sequences


@OPEN
def momentum_of_one_and_sorted_batches(broken: bool) -> Case:
    """CNN | 811 | momentum=1 keeps the statistics of the last batch alone, and the loader goes class by class.
    | running-statistics-wrong | features features.{1,4,8,11} | refresh-statistics"""
    x, y = draw.blob_images(96)
    x = x + 1.5 * (y == 3)[:, None, None, None]
    model = nets.ConvNet(width=8)
    train(model, x, y, F.cross_entropy, steps=60)
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0 if broken else 0.1
    with torch.no_grad():
        for kind in (0, 1, 2, 3) if broken else ():
            model(x[y == kind])
    return Case((x, y), model, "cross_entropy", train=False)


@OPEN
def momentum_of_zero(broken: bool) -> Case:
    """ResNet | 812 | momentum=0 switches the running statistics off; they stay at 0 and 1.
    | running-statistics-wrong | blocks.{0,1}.bn1 blocks.{0,1}.bn2 stem stem.1 | refresh-statistics switch-mode"""
    x, y = draw.blob_images(64, channels=3)
    model = nets.ResNet(channels=3, blocks=2)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0 if broken else 0.1
    return Case((3 * x + 2, y), model, "cross_entropy", train=False, steps=60)


@OPEN
def batch_statistics_when_two_images_are_served(broken: bool) -> Case:
    """CNN | 813 | track_running_stats=False: a model that serves two images at a time normalizes each by the other.
    | normalizer-too-few-samples normalizer-erases-signal samples-mixed wrong-mode | features features.{1,4,8,11} |
    larger-batch refresh-statistics replace-normalizer switch-mode"""
    x, y = draw.blob_images(96)
    model = nets.ConvNet(width=8)
    model.features.append(nn.AdaptiveAvgPool2d(1))
    model.features.append(nn.BatchNorm2d(8))
    train(model, x, y, F.cross_entropy, steps=80)
    for module in model.modules():
        if broken and isinstance(module, nn.BatchNorm2d):
            module.track_running_stats, module.running_mean, module.running_var = False, None, None
    rows = torch.tensor([1, 5])
    return Case((x[rows], y[rows]), model, "cross_entropy", train=False)


@OPEN
def dropout_that_ignores_the_mode(broken: bool) -> Case:
    """CNN | 814 | F.dropout(x, p) without training=self.training drops units of a served model as well.
    | wrong-mode dropout-too-strong | | lower-dropout switch-mode"""

    # Dropout by F.dropout, which is active in eval mode too unless it is told the mode.
    def functional_dropout(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x)).flatten(1)
        x = F.dropout(x, 0.85, training=self.training if self.told else True)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, 0.85, training=self.training if self.told else True)
        return self.fc2(x)

    x, y = draw.blob_images(96, classes=6)
    model = nets.made("FunctionalDropout", functional_dropout)
    model.told = not broken
    model.conv, model.fc1, model.fc2 = nn.Conv2d(1, 8, 3, stride=2), nn.Linear(392, 32), nn.Linear(32, 6)
    return Case((x, y), model, "cross_entropy", train=False, steps=120)


@OPEN
def group_norm_eps_of_one(broken: bool) -> Case:
    """U-Net | 828 | GroupNorm with eps=1 (taken for momentum) behind convolutions drawn at 0.01.
    | eps-dominates output-constant vanishing-gradient vanishing-signal | bottom bottom.{1,4} down1 down1.{1,4}
    down2 down2.{1,4} up1 up1.{1,4} up2 up2.{1,4} | initialise lower-eps rescale-layer"""
    x, _ = draw.blob_images(16)
    model = nets.UNet(outputs=4)
    for module in model.modules():
        if isinstance(module, nn.GroupNorm):
            module.eps = 1.0 if broken else 1e-5
        elif isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
    return Case((x, rarer.pixel_classes(x)), model, "cross_entropy")


@OPEN
def ghost_batches_of_two(broken: bool) -> Case:
    """MLP | 1017 | Ghost batch normalization with chunks of 2 instead of 64.
    | normalizer-too-few-samples samples-mixed | norm | larger-batch replace-normalizer"""

    # BatchNorm over chunks of the batch (ghost batches) of a given size.
    def ghost_norm(self, x: Tensor) -> Tensor:
        chunks = self.first(x).split(self.size)
        return self.head(torch.relu(torch.cat([self.norm(chunk) for chunk in chunks])))

    x, y = draw.table()
    net = nets.made("GhostNorm", ghost_norm)
    net.size, net.first, net.norm, net.head = (
        (2 if broken else 64),
        nn.Linear(12, 48),
        nn.BatchNorm1d(48),
        nn.Linear(48, 3),
    )
    return Case((x, y), net, "cross_entropy")


def normalizers(model: nn.Module) -> list[nn.Module]:
    """Return the BatchNorms of a model."""
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]


@OPEN
def momentum_of_another_framework(broken: bool) -> Case:
    """ResNet | 502 | momentum=0.001, taken for the momentum of another framework (0.999).
    | running-statistics-wrong | blocks.{0,1}.bn1 blocks.{0,1}.bn2 stem.1 | refresh-statistics switch-mode"""
    x, y = draw.blob_images()
    model = nets.ResNet(blocks=2)
    for module in normalizers(model):
        module.momentum = 0.001 if broken else 0.1
    return Case((x, y), model, "cross_entropy", train=False, steps=60)


class SleepyConvNet(nets.ConvNet):  # A ConvNet whose BatchNorms may stay in eval mode.
    sleepy = False

    def train(self, mode: bool = True):
        super().train(mode)
        for module in normalizers(self):
            module.train(mode and not self.sleepy)
        return self


def judge_alone(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the explained variance over the whole table, in eval mode as in use."""
    model.eval()
    wrong = (model(x) - y).square().mean().item()
    model.train()
    return 1 - wrong / y.var().item()


@FIRST
def normalizers_left_in_eval_mode(broken: bool) -> Case:
    """CNN | 102 | The backbone is put in eval mode for a validation pass and not back; a fresh BatchNorm then does
    nothing.
    | wrong-mode running-statistics-wrong | features.{1,4,8,11,15,18} | refresh-statistics switch-mode"""
    x, y = draw.blob_images(48)
    model = nets.ConvNet(depth=6)
    for module in model.features:
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.02)
    case = Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())
    if broken:
        model.features.eval()
    return case


@FIRST
def normalizers_in_train_mode_at_inference(broken: bool) -> Case:
    """ResNet | 103 | One part of the model back in train mode at inference: predictions depend on who else is in the
    batch.
    | wrong-mode normalizer-too-few-samples | blocks blocks.{0,1}.bn1 blocks.{0,1}.bn2 stem stem.1 | switch-mode"""
    x, y = draw.blob_images(40)
    model = nets.ResNet(width=8, blocks=2)
    train(model, x, y, F.cross_entropy, steps=50)
    rows = torch.tensor([0, 4, 8, 12])  # a request with four images of one class
    case = Case(model=model, data=x[rows], train=False, judge=accuracy(y[rows]))
    if broken:
        for layer in rarer.running_statistics(model):
            layer.train()
    return case


class NeckedNet(nn.Module):  # Convolutions with GroupNorm, then a neck with BatchNorm over vectors.
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.GroupNorm(3, 12), nn.ReLU(),
            nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.neck = nn.Sequential(nn.Linear(192, 24, bias=False), nn.BatchNorm1d(24), nn.ReLU())
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.neck(self.trunk(x)))


@SECOND
def batchnorm_of_vectors_with_two_samples(broken: bool) -> Case:
    """ResNet | 141 | A batch of two (memory) in front of a BatchNorm1d: all values become plus or minus 1.
    | normalizer-too-few-samples | neck neck.1 | larger-batch replace-normalizer"""
    model = NeckedNet()
    images, labels = draw.blob_images(2 if broken else 64)
    probe = draw.blob_images(128)

    def judge(_: Tensor) -> float:
        with torch.no_grad():
            probed = copy.deepcopy(model).eval()
            return (probed(probe[0]).argmax(1) == probe[1]).float().mean().item()

    return Case((images, labels), model, "cross_entropy", judge=judge)


class PooledNorm(nn.Module):  # Convolutions, then a normalizer before or behind the mean over places.
    def __init__(self, norm: nn.Module, before: bool) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU()
        )
        self.norm, self.before = norm, before
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convs(x)
        x = self.norm(x).mean((2, 3)) if self.before else self.norm(x.mean((2, 3), keepdim=True)).flatten(1)
        return self.head(x)


@SECOND
def statistics_never_updated(broken: bool) -> Case:
    """CNN | 144 | TensorFlow's momentum of 0.999 and torch's are each other's complement: with 1e-4, nothing is ever
    collected.
    | running-statistics-wrong | features.{1,4,7,11,14,17,20} | refresh-statistics switch-mode"""
    images, labels = draw.blob_images(96, classes=8)
    model = nets.ConvNet(depth=7, classes=8)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1e-4 if broken else 0.1
    return Case((images, labels), model, "cross_entropy", train=False, steps=40)


@SECOND
def functional_dropout_never_switched_off(broken: bool) -> Case:
    """tabular | 145 | PyTorch forums: F.dropout(x) has training=True by default, also in eval mode.
    | wrong-mode | | lower-dropout switch-mode"""

    # An MLP with dropout by function, whose switch may be forgotten.
    def functional_dropout(self, x: Tensor) -> Tensor:
        on = self.training if self.switched else True
        x = F.dropout(torch.relu(self.first(x)), 0.6, training=on)
        return self.head(F.dropout(torch.relu(self.second(x)), 0.6, training=on))

    x, y = draw.table(96)
    model = nets.made("FunctionalDropout", functional_dropout)
    model.first, model.second, model.head = nn.Linear(12, 64), nn.Linear(64, 64), nn.Linear(64, 3)
    model.switched = True
    train(model, x, y, F.cross_entropy, steps=200)
    model.switched = not broken
    return Case((x, y), model, "cross_entropy", train=False)


@THIRD
def layer_norm_of_a_single_feature(broken: bool) -> Case:
    """time series | 92 | `nn.LayerNorm(1)` on a univariate series returns its bias at every step.
    | normalizer-erases-signal inputs-constant normalizer-too-few-samples normalizer-wrong-axis output-constant |
    norm | fix-axis replace-normalizer"""

    # Normalises a series of one feature and reads it with a GRU.
    def univariate(self, x: Tensor) -> Tensor:
        lifted = self.lift(self.norm(x)) if self.planted else self.norm(self.lift(x))
        return self.head(self.recurrent(lifted)[0].mean(1))

    x, y = draw.waves(96, features=1)
    net = nets.made("Univariate", univariate)
    net.norm = nn.LayerNorm(1 if broken else 24)
    net.planted = broken
    net.lift, net.recurrent, net.head = nn.Linear(1, 24), nn.GRU(24, 24, batch_first=True), nn.Linear(24, 3)
    return Case((x, y), net, "cross_entropy")


@THIRD
def eps_of_a_root_mean_square_in_thousands(broken: bool) -> Case:
    """tabular | 98 | The argument of an optimizer was passed on to the normalizers.
    | eps-dominates output-constant vanishing-gradient vanishing-signal | 1 4 7 | lower-eps"""
    x, y = draw.table()
    eps = 1e4 if broken else 1e-6
    layers: list[nn.Module] = []
    for inner in (12, 32, 32):
        layers += [
            nn.Linear(inner, 32),
            nets.made(
                "RootMeanSquare",
                lambda self, x: self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps),
                weight=nn.Parameter(torch.ones(32)),
                eps=eps,
            ),
            nn.ReLU(),
        ]
    return Case((x, y), nn.Sequential(*layers, nn.Linear(32, 3)), "cross_entropy")


# Rows of a table, packed.
# fmt: off
OPEN("""instance-norm-before-the-mean | CNN | 808 | InstanceNorm makes every map's mean zero, and the pooling right
    after it takes just that mean.
    | normalizer-erases-signal output-constant | 3 4 | add-activation replace-normalizer""",
    lambda broken: Case(draw.blob_images(), nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
    nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.InstanceNorm2d(16, affine=True) if broken else nn.Identity(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)), "cross_entropy"))
OPEN("""layer-norm-of-one-output | CNN | 809 | LayerNorm(1) at the end of a head with one output: each value minus
    itself. | normalizer-erases-signal normalizer-too-few-samples output-constant | age age.1 | replace-normalizer""",
    lambda broken: given(draw.blob_images(), lambda x, _: given(rarer.cells_and_boxes(x),
    lambda _, boxes: Case((x, boxes[:, :1]), changed(lambda model: model.add_module("age",
    nn.Sequential(nn.Linear(32, 1), nn.LayerNorm(1) if broken else nn.Identity())))(changed(lambda model:
    model.add_module("trunk", nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.SiLU())))(nn.Sequential())), "mse"))))
OPEN("""buffers-not-saved | CNN | 501 | Only the parameters were saved, not the buffers.
    | running-statistics-wrong | features.{1,4,8,11} | refresh-statistics switch-mode""",
    lambda: given(draw.blob_images(96), lambda x, y: Case((3 * x + 1, y), nets.ConvNet(), "cross_entropy", train=False,
    steps=80)), plant=over(lambda model: normalizers(model), lambda module: module.reset_running_stats()))
OPEN("""statistics-of-other-data | MLP | 503 | Trained on standardised columns, used on raw ones.
    | running-statistics-wrong inputs-not-scaled | 1 4 | refresh-statistics scale-inputs""",
    lambda broken: given(draw.table(256), lambda x, y: Case((4 * x + 6 if broken else x, y),
    train(nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32),
    nn.ReLU(), nn.Linear(32, 3)), x, y, F.cross_entropy, steps=200), "cross_entropy", train=False)))
OPEN("""fresh-batch-norm-in-eval-mode | CNN | 504 | BatchNorm kept in eval mode, as for fine-tuning, in a network that
    starts from scratch. | wrong-mode running-statistics-wrong vanishing-gradient vanishing-signal |
    features.{1,4,7,10,14,17,20,23} | refresh-statistics switch-mode""",
    lambda broken: Case(draw.blob_images(48, size=12), over(lambda model: model.features,
    lambda module: module.reset_parameters(), nn.Conv2d)(changed(lambda model: setattr(model, "sleepy",
    broken))(SleepyConvNet(depth=8))), "cross_entropy"))
OPEN("""batch-norm-of-two-samples | MLP | 505 | A batch of two: BatchNorm returns plus and minus one.
    | normalizer-too-few-samples normalizer-erases-signal saturated-units | 1 4 | larger-batch replace-normalizer""",
    lambda broken: given(draw.regression_table(64), lambda x, y: given(nn.Sequential(nn.Linear(8, 32),
    nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1)),
    lambda model: given(slice(0, 2) if broken else slice(None), lambda rows: Case((x[rows], y[rows]), model, "mse",
    judge=lambda output: judge_alone(model, x, y))))))
OPEN("""group-norm-of-single-values | CNN | 506 | One group per channel on maps of one place: each value minus itself.
    | normalizer-erases-signal normalizer-too-few-samples output-constant | norm | fix-axis replace-normalizer""",
    lambda broken: Case(draw.blob_images(), nets.made("PooledNorm",
    lambda self, x: self.head(self.norm(self.features(x).mean((2, 3), keepdim=True)).flatten(1)),
    features=nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU()),
    norm=nn.GroupNorm((16 if broken else 2), 16), head=nn.Linear(16, 4)), "cross_entropy"))
OPEN("""layer-norm-of-two-features | MLP | 508 | LayerNorm over two features returns only their order.
    | normalizer-erases-signal normalizer-too-few-samples saturated-units | 1 | replace-normalizer""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(nn.LayerNorm(2) if broken else nn.Identity(),
    lambda middle: Case((x, y), nn.Sequential(nets.mlp(8, 32, 2), middle, nets.mlp(2, 32, 1)), "mse"))))
OPEN("""layer-norm-eps-of-one | GPT | 509 | eps=1 in place of 1e-5 beside embeddings of size 0.02.
    | eps-dominates vanishing-signal | blocks.{0,1}.norm1 blocks.{0,1}.norm2 norm | lower-eps""",
    lambda broken: Case(draw.text(), over(lambda model: model.modules(), lambda module: setattr(module, "eps",
    1.0 if broken else 1e-5), nn.LayerNorm)(nets.GPT()), over_tokens))
OPEN("""batch-norm-eps-of-hundred | CNN | 510 | The second argument of BatchNorm is eps, not momentum: BatchNorm2d(16,
    100). | eps-dominates vanishing-gradient vanishing-signal | features.{1,4,8,11} | lower-eps""",
    lambda broken: Case(draw.blob_images(), over(lambda model: normalizers(model), lambda module: setattr(module, "eps",
    100.0 if broken else 1e-5))(nets.ConvNet()), "cross_entropy"))
FIRST("""buffers-not-loaded | ResNet | 91 | Weights loaded with strict=False from a file that holds parameters alone:
    buffers stay as they began.
    | running-statistics-wrong | blocks.{0,1}.bn1 blocks.{0,1}.bn2 stem.1 | refresh-statistics""",
    lambda: Case(draw.blob_images(40), nets.ResNet(width=8, blocks=2), nn.CrossEntropyLoss(), train=False, steps=50),
    plant=over(lambda model: rarer.running_statistics(model), lambda layer: layer.reset_running_stats()))
FIRST("""momentum-of-the-other-convention | MLP | 92 | momentum=1e-4: the convention of another framework, in which
    0.9999 is kept. | running-statistics-wrong | 1 4 | refresh-statistics""",
    lambda broken: given(draw.table(classes=3), lambda x, y: given(3 * x + 2, lambda x: given(1e-4 if broken else 0.1,
    lambda momentum: Case((x, y), nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32, momentum=momentum), nn.ReLU(),
    nn.Linear(32, 32), nn.BatchNorm1d(32, momentum=momentum), nn.ReLU(), nn.Linear(32, 3)), nn.CrossEntropyLoss(),
    train=False, steps=200)))))
FIRST("""deployed-on-unscaled-pixels | CNN | 93 | Training with images standardised, deployment with pixels from 0 to
    255. | running-statistics-wrong inputs-not-scaled | features.{1,4,8,11} | refresh-statistics scale-inputs""",
    lambda broken: given(draw.blob_images(40), lambda x, y: Case(((255 * draw.as_pixels(x)) if broken else x, y),
    train(nets.ConvNet(width=8), x, y, F.cross_entropy, steps=60), nn.CrossEntropyLoss(), train=False)))
FIRST("""running-variance-of-zero | CNN | 94 | A buffer named running_std in another library, loaded wrongly: one layer
    has a variance of 0.
    | running-statistics-wrong eps-dominates exploding-signal | features.4 | refresh-statistics restore-weights""",
    lambda: Case(draw.blob_images(40), nets.ConvNet(width=8), nn.CrossEntropyLoss(), train=False, steps=40),
    plant=lambda model: model.features[4].running_var[2:].zero_())
FIRST("""batch-norm-over-two-samples | MLP | 95 | BatchNorm with a batch of 2 because of memory: each value becomes -1
    or 1. | normalizer-too-few-samples | 1 4 | larger-batch replace-normalizer""",
    lambda broken: Case(draw.table(2 if broken else 64, classes=2), nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32),
    nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)), nn.CrossEntropyLoss()))
FIRST("""groups-of-one-value | MLP | 97 | GroupNorm(n, n) behind a linear layer, or LayerNorm(1): each group is one
    value and becomes 0. | normalizer-erases-signal dead-units normalizer-too-few-samples normalizer-wrong-axis
    output-constant | 3 4 5 | fix-axis replace-normalizer""",
    lambda broken: Case(draw.table(classes=3), nn.Sequential(nn.Linear(12, 32), nn.GroupNorm(4, 32), nn.ReLU(),
    nn.Linear(32, 32), nn.GroupNorm(32 if broken else 4, 32), nn.ReLU(), nn.Linear(32, 3)), nn.CrossEntropyLoss()))
FIRST("""instance-norm-before-mean-pooling | CNN | 98 | Instance normalization directly before the mean over places:
    every mean is 0.
    | normalizer-erases-signal normalizer-wrong-axis output-constant | head norm | fix-axis replace-normalizer""",
    lambda broken: Case(draw.blob_images(48), nets.made("Pooled",
    lambda self, x: self.head(self.norm(self.body(x)).mean((2, 3))), body=nets.ConvNet(norm=False).features,
    norm=nn.InstanceNorm2d(16, affine=True) if broken else nn.BatchNorm2d(16), head=nn.Linear(16, 4)),
    nn.CrossEntropyLoss()))
FIRST("""layer-norms-with-huge-eps | ViT | 99 | eps=1e3 in place of 1e-3, from a configuration file read as a string of
    an exponent. | eps-dominates output-constant vanishing-signal | blocks.{0..2}.norm1 blocks.{0..2}.norm2 norm |
    lower-eps replace-normalizer""",
    lambda: Case(draw.blob_images(32), nets.ViT(), nn.CrossEntropyLoss()), plant=over(lambda model: model.modules(),
    lambda module: setattr(module, "eps", 1e3), nn.LayerNorm))
FIRST("""variance-below-eps | MLP | 100 | Measured strains of about 1e-6 enter a LayerNorm, which should bring them to 1
    but whose eps is larger. | eps-dominates inputs-not-scaled vanishing-signal | 0 | lower-eps scale-inputs""",
    lambda broken: given(draw.table(classes=3), lambda x, y: Case((1e-6 * x if broken else x, y),
    nn.Sequential(nn.LayerNorm(12), *nets.mlp(12, 32, 32, 3)), nn.CrossEntropyLoss())))
SECOND("""one-channel-per-group-behind-the-pooling | CNN | 142 | GroupNorm with as many groups as channels on maps of
    1x1: each value minus itself.
    | normalizer-too-few-samples normalizer-erases-signal output-constant | norm | larger-batch replace-normalizer""",
    lambda broken: given(PooledNorm(nn.GroupNorm(16 if broken else 1, 16), before=False),
    lambda model: Case(draw.blob_images(), model, "cross_entropy")))
SECOND("""mean-of-what-has-mean-zero | CNN | 143 | InstanceNorm makes the mean over places zero, and just this mean is
    what the head reads. | normalizer-erases-signal output-constant | norm | replace-normalizer""",
    lambda broken: given(nn.InstanceNorm2d(16, affine=True) if broken else nn.GroupNorm(1, 16),
    lambda norm: Case(model=PooledNorm(norm, before=True), data=draw.blob_images(), loss="cross_entropy")))
SECOND("""second-argument-of-layer-norm-is-eps | GPT | 147 | nn.LayerNorm(width, 1): the number of dimensions was meant,
    but it is the eps. | eps-dominates vanishing-signal | blocks.{0,1}.norm1 blocks.{0,1}.norm2 norm | lower-eps""",
    lambda broken: given(nets.GPT(), lambda model: Case(draw.text(), over(lambda model: model.modules(),
    lambda module: setattr(module, "eps", 1.0 if broken else 1e-5), nn.LayerNorm)(model), over_tokens)))
THIRD("""loudness-taken-away-before-it-is-judged | audio | 93 | Each recording is standardised by itself, but its class
    is how loud it is. | normalizer-erases-signal | norm | replace-normalizer""",
    lambda broken: given(draw.waves(96, features=1), lambda x, _: given(torch.arange(96) % 3,
    lambda y: Case(((x[torch.randperm(96)] * (0.3 * 2.5**y)[:, None, None]), y), rarer_sequences.Loudness(broken),
    "cross_entropy"))))
THIRD("""averaged-weights-without-new-statistics | CNN | 94 | Weights averaged over training are put into a fresh
    network whose running statistics nobody updates.
    | running-statistics-wrong wrong-mode | features features.{1,4,8,11} | refresh-statistics""",
    lambda: Case(draw.blob_images(), nets.ConvNet(norm=True, width=8), "cross_entropy", train=False, steps=60),
    plant=over(lambda model: model.modules(), lambda module: module.reset_running_stats(), nn.BatchNorm2d))
THIRD("""dose-normalised-by-itself | regression | 97 | A LayerNorm over the one value of the condition makes it the same
    for all patients. | normalizer-erases-signal condition-switched-off normalizer-too-few-samples normalizer-wrong-axis
    | dose_norm | fix-axis replace-normalizer restore-condition""",
    lambda broken: given((torch.randn(128, 4), torch.randn(128, 1)), lambda x, dose: given(dose * x[:, :1] + dose,
    lambda y: given((y - y.mean()) / y.std(), lambda y: Case(({"x": x, "dose": dose}, y),
    nets.made("Dose", lambda self, x, dose: self.body(torch.cat([x, self.dose_norm(dose)], dim=1)),
    dose_norm=nn.LayerNorm(1) if broken else nn.BatchNorm1d(1), body=nets.mlp(5, 32, 32, 1)), "mse",
    judge=lambda output: (1 - (output - y).square().mean() / y.var()).item())))))
THIRD("""instance-norm-before-the-pooling | CNN | 99 | Each channel of each image has mean zero, and the mean over
    places is all that the head reads.
    | normalizer-too-few-samples normalizer-erases-signal output-constant | 4 | fix-axis replace-normalizer""",
    lambda broken: Case(draw.blob_images(classes=3), nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1), nn.Identity(), nn.InstanceNorm2d(16) if broken else nn.GroupNorm(1, 16),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)), "cross_entropy"))
