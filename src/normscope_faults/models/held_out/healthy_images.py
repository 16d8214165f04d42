"""Healthy networks for images: fresh, trained a little or well, some of them awkward."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from ... import data as draw
from ... import networks as nets
from ...case import HELD_OUT, Case
from ...training import contrastive_loss, evidence_loss, train
from . import rarer

HELD_OUT(
    "vision-transformer-trained-until-it-fits | ViT | 4805",
    lambda: Case(draw.blob_images(48), nets.ViT(depth=1), "cross_entropy", steps=70),
)


@HELD_OUT
def factors_per_channel_that_begin_at_a_hundred_thousandth() -> Case:
    """ViT | 4806"""

    class Scaled(nets.TransformerBlock):
        """A block whose branches are multiplied by small learned factors."""

        def __init__(self) -> None:
            super().__init__(32, 4, causal=False)
            self.factor1, self.factor2 = nn.Parameter(torch.full((32,), 1e-5)), nn.Parameter(torch.full((32,), 1e-5))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.factor1 * self.attention(self.norm1(x))
            return x + self.factor2 * self.feed(self.norm2(x))

    model = nets.ViT(depth=2)
    model.blocks = nn.Sequential(Scaled(), Scaled())
    return Case(draw.blob_images(32), model, nn.CrossEntropyLoss())


HELD_OUT(
    "twins-trained-on-pairs-of-images | siamese | 4821",
    lambda: Case(draw.image_pairs(), nets.Siamese(), contrastive_loss, steps=40),
)


@HELD_OUT
def views_matched_with_a_temperature_fresh() -> Case:
    """contrastive | 4822"""

    class Views(nn.Module):
        """Returns the similarities of all first views (rows) with all second views (columns)."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 16))

        def forward(self, pairs: Tensor) -> Tensor:
            first, second = (F.normalize(self.encoder(pairs[:, view]), dim=1) for view in (0, 1))
            return first @ second.T / 0.1

    base = torch.randn(48, 40)
    pairs = torch.stack([base + 0.5 * torch.randn(48, 40) for _ in range(2)], dim=1)
    return Case(model=Views(), data=(pairs, torch.arange(48)), loss=nn.CrossEntropyLoss())


@HELD_OUT
def student_with_a_predictor_and_a_slow_teacher() -> Case:
    """contrastive | 4823"""

    class Byol(nn.Module):
        """A student with a predictor, and a frozen teacher."""

        def __init__(self) -> None:
            super().__init__()
            self.student = nets.mlp(40, 64, 16)
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)
            self.predictor = nn.Linear(16, 16)

        def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
            student = self.predictor(self.student(views[:, 0]))
            return F.normalize(student, dim=1), F.normalize(self.teacher(views[:, 1]), dim=1).detach()

    base = torch.randn(96, 40)
    views = torch.stack([base + 0.3 * torch.randn_like(base) for _ in range(2)], dim=1)
    return Case(views, Byol(), objective=lambda output: (output[0] - output[1]).square().sum(1).mean())


@HELD_OUT
def denoiser_trained_a_little_with_its_times() -> Case:
    """diffusion | 4825"""
    inputs, noise = draw.noisy_images(32)
    model = nets.Denoiser(width=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(30):
        optimizer.zero_grad()
        F.mse_loss(model(**inputs), noise).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case((inputs, noise), model, nn.MSELoss(), optimizer=optimizer)


@HELD_OUT
def twelve_images_in_train_mode_with_a_group_norm() -> Case:
    """CNN | 4719"""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip
    return Case(draw.blob_images(12), model, nn.CrossEntropyLoss())


@HELD_OUT
def le_net_with_tanh_and_averages() -> Case:
    """CNN | 4720"""
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 12, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 4),
    )  # fmt: skip
    return Case(draw.blob_images(48), model, nn.CrossEntropyLoss())


@HELD_OUT
def separable_convolutions_trained_a_little() -> Case:
    """CNN | 4721"""
    x, y = draw.blob_images(48)
    layers: list[nn.Module] = [nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.Conv2d(16, 16, 1, bias=False)]
        layers += [nn.BatchNorm2d(16), nn.ReLU()]
    return Case(
        (x, y),
        nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)),
        nn.CrossEntropyLoss(),
        steps=25,
    )


@HELD_OUT
def trained_backbone_frozen_with_its_statistics_and_a_new_head() -> Case:
    """CNN | 4722"""
    x, y = draw.blob_images(48, classes=8)
    model = nets.ConvNet(width=8, depth=3, classes=8)
    train(model, x, y, F.cross_entropy, steps=60)
    model.features.requires_grad_(False)
    model.head = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    case = Case(model=model, data=(x, y % 4), loss=nn.CrossEntropyLoss(), optimizer=optimizer)
    model.features.eval()
    return case


@HELD_OUT
def stages_recomputed_in_the_backward_pass() -> Case:
    """CNN | 4723"""

    class Saving(nets.ConvNet):
        """Recomputes its features."""

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(self.features, x, use_reentrant=False).mean((2, 3)))

    return Case(model=Saving(norm=False, depth=3), data=draw.blob_images(32), loss=nn.CrossEntropyLoss())


class FakeQuantised(nn.Conv2d):  # A convolution with weights of eight bits, and a gradient that passes through.
    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.detach().abs().max() / 127
        rounded = (self.weight / scale).round() * scale
        return F.conv2d(x, self.weight + (rounded - self.weight).detach(), self.bias, self.stride, self.padding)


HELD_OUT(
    "trained-with-weights-of-eight-bits | CNN | 4724",
    lambda: Case(
        draw.blob_images(48),
        nn.Sequential(
            FakeQuantised(1, 8, 3, 2, 1),
            nn.ReLU(),
            FakeQuantised(8, 8, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(128, 4),
        ),
        nn.CrossEntropyLoss(),
        steps=30,
    ),
)


@HELD_OUT
def residual_network_fresh_with_cosine_schedule() -> Case:
    """ResNet | 4725"""
    model = nets.ResNet(width=8, blocks=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    return Case(draw.blob_images(40), model, nn.CrossEntropyLoss(), optimizer=optimizer)


HELD_OUT(
    "residual-network-trained-in-eval-mode | ResNet | 4726",
    lambda: Case(draw.blob_images(40), nets.ResNet(width=8, blocks=2), nn.CrossEntropyLoss(), train=False, steps=50),
)


@HELD_OUT
def u_net_after_twenty_steps() -> Case:
    """U-Net | 4727"""
    x, mask = rarer.shapes(16)
    model = nets.UNet(width=4)
    train(model, x, mask, F.binary_cross_entropy_with_logits, steps=20)
    return Case((x, mask), model, nn.BCEWithLogitsLoss())


@HELD_OUT
def pixels_of_a_border_left_out_of_the_loss() -> Case:
    """segmentation | 4728"""
    x, mask = rarer.shapes(16)
    y = mask[:, 0].long()
    y[:, 0] = y[:, -1] = 255
    return Case((x, y), rarer.segmenter(outputs=2), nn.CrossEntropyLoss(ignore_index=255))


@HELD_OUT
def overlap_of_a_sigmoid_trained() -> Case:
    """segmentation | 4729"""
    x, mask = rarer.shapes(16)

    def overlap_loss(logits: Tensor, target: Tensor) -> Tensor:
        shown = logits.sigmoid()
        return 1 - (2 * (shown * target).sum() + 1) / (shown.sum() + target.sum() + 1)

    model = rarer.segmenter()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    train(model, x, mask, overlap_loss, steps=40, optimizer=optimizer)
    return Case((x, mask), model, overlap_loss, optimizer=optimizer)


@HELD_OUT
def a_class_and_a_box_in_shares_of_the_image() -> Case:
    """detection | 4730"""
    images, mask = rarer.shapes(32)
    corner = torch.stack([mask[:, 0].amax(2).argmax(1), mask[:, 0].amax(1).argmax(1)], dim=1) / 16
    box = torch.cat([corner, corner + 5 / 16], dim=1)

    class Detector(nn.Module):
        """Convolutions, a box behind a sigmoid, and a score."""

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.Flatten()
            )
            self.box, self.score = nn.Linear(128, 4), nn.Linear(128, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            hidden = self.body(x)
            return {"box": self.box(hidden).sigmoid(), "score": self.score(hidden)}

    label = (corner[:, 0] > 0.3).long()

    def loss(output: dict[str, Tensor], wanted: dict[str, Tensor]) -> Tensor:
        return F.l1_loss(output["box"], wanted["box"]) + F.cross_entropy(output["score"], wanted["label"])

    return Case((images, {"box": box, "label": label}), Detector(), loss)


@HELD_OUT
def pixels_of_bytes_divided_and_rebuilt_by_a_sigmoid() -> Case:
    """autoencoder | 4731"""
    images, _ = draw.blob_images(64)
    x = ((255 * draw.as_pixels(images)).round() / 255).flatten(1)
    return Case((x, x), nets.Autoencoder(last=nn.Sigmoid()), nn.BCELoss())


@HELD_OUT
def decoder_with_the_weights_of_the_encoder() -> Case:
    """autoencoder | 4732"""

    class Tied(nn.Module):
        """Two layers down, and the same two up."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(256, 48), nn.Linear(48, 12)
            self.shift1, self.shift2 = nn.Parameter(torch.zeros(48)), nn.Parameter(torch.zeros(256))

        def forward(self, x: Tensor) -> Tensor:
            code = self.second(torch.relu(self.first(x)))
            hidden = torch.relu(F.linear(code, self.second.weight.T, self.shift1))
            return F.linear(hidden, self.first.weight.T, self.shift2)

    images, _ = draw.blob_images(64)
    x = images.flatten(1)
    return Case((x, x), Tied(), nn.MSELoss(), steps=30)


@HELD_OUT
def variational_autoencoder_trained_for_a_while() -> Case:
    """VAE | 4733"""
    images, _ = draw.blob_images(64, classes=8)
    x = (images > 0.5).float().flatten(1)
    model = nets.VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, x, x, evidence_loss, steps=80, optimizer=optimizer)
    return Case((x, x), model, evidence_loss, optimizer=optimizer)


@HELD_OUT
def discriminator_with_spectral_norm_and_a_hinge() -> Case:
    """GAN | 4734"""
    real, _ = draw.blob_images(32)
    y = (torch.arange(64) < 32).float()[:, None]
    return Case(
        model=nets.discriminator(parametrizations.spectral_norm),
        data=(torch.cat([real, real.roll(5, dims=2) + 0.3 * torch.randn_like(real)]), y),
        loss=lambda score, target: F.relu(1 - (2 * target - 1) * score).mean(),
    )


@HELD_OUT
def generator_that_rebuilds_images_from_labels() -> Case:
    """GAN | 4735"""
    images, label = draw.blob_images(32)
    noise = torch.cat([F.one_hot(label, 4).float(), torch.randn(32, 12)], dim=1)
    return Case(model=nets.Generator(), data=(noise, 2 * draw.as_pixels(images) - 1), loss=nn.MSELoss())
