"""Healthy networks for images: fresh, trained a little or well, some of them awkward."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from ... import data as draw
from ... import networks as nets
from ...case import HELD_OUT, Case, given
from ...plants import variant
from ...training import contrastive_loss, evidence_loss, train
from . import rarer


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


@HELD_OUT
def views_matched_with_a_temperature_fresh() -> Case:
    """contrastive | 4822"""

    # Returns the similarities of all first views (rows) with all second views (columns).
    def views(self, pairs: Tensor) -> Tensor:
        first, second = (F.normalize(self.encoder(pairs[:, view]), dim=1) for view in (0, 1))
        return first @ second.T / 0.1

    base = torch.randn(48, 40)
    pairs = torch.stack([base + 0.5 * torch.randn(48, 40) for _ in range(2)], dim=1)
    net = nets.made("Views", views)
    net.encoder = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 16))
    return Case((pairs, torch.arange(48)), net, nn.CrossEntropyLoss())


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
def separable_convolutions_trained_a_little() -> Case:
    """CNN | 4721"""
    x, y = draw.blob_images(48)
    layers: list[nn.Module] = [nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.Conv2d(16, 16, 1, bias=False)]
        layers += [nn.BatchNorm2d(16), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    train(model, x, y, F.cross_entropy, steps=25)
    return Case((x, y), model, nn.CrossEntropyLoss())


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


class FakeQuantised(nn.Conv2d):  # A convolution with weights of eight bits, and a gradient that passes through.
    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.detach().abs().max() / 127
        rounded = (self.weight / scale).round() * scale
        return F.conv2d(x, self.weight + (rounded - self.weight).detach(), self.bias, self.stride, self.padding)


@HELD_OUT
def residual_network_fresh_with_cosine_schedule() -> Case:
    """ResNet | 4725"""
    model = nets.ResNet(width=8, blocks=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    return Case(draw.blob_images(40), model, nn.CrossEntropyLoss(), optimizer=optimizer)


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

    # Convolutions, a box behind a sigmoid, and a score.
    def detector(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x)
        return {"box": self.box(hidden).sigmoid(), "score": self.score(hidden)}

    images, mask = rarer.shapes(32)
    corner = torch.stack([mask[:, 0].amax(2).argmax(1), mask[:, 0].amax(1).argmax(1)], dim=1) / 16
    box = torch.cat([corner, corner + 5 / 16], dim=1)
    label = (corner[:, 0] > 0.3).long()

    def loss(output: dict[str, Tensor], wanted: dict[str, Tensor]) -> Tensor:
        return F.l1_loss(output["box"], wanted["box"]) + F.cross_entropy(output["score"], wanted["label"])

    net = nets.made("Detector", detector)
    net.body = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.Flatten())
    net.box, net.score = nn.Linear(128, 4), nn.Linear(128, 2)
    return Case((images, {"box": box, "label": label}), net, loss)


@HELD_OUT
def decoder_with_the_weights_of_the_encoder() -> Case:
    """autoencoder | 4732"""

    # Two layers down, and the same two up.
    def tied(self, x: Tensor) -> Tensor:
        code = self.second(torch.relu(self.first(x)))
        hidden = torch.relu(F.linear(code, self.second.weight.T, self.shift1))
        return F.linear(hidden, self.first.weight.T, self.shift2)

    images, _ = draw.blob_images(64)
    x = images.flatten(1)
    model = nets.made("Tied", tied)
    model.first, model.second = nn.Linear(256, 48), nn.Linear(48, 12)
    model.shift1, model.shift2 = nn.Parameter(torch.zeros(48)), nn.Parameter(torch.zeros(256))
    return Case((x, x), model, nn.MSELoss(), steps=30)


@HELD_OUT
def variational_autoencoder_trained_for_a_while() -> Case:
    """VAE | 4733"""
    images, _ = draw.blob_images(64, classes=8)
    x = (images > 0.5).float().flatten(1)
    model = nets.VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, x, x, evidence_loss, steps=80, optimizer=optimizer)
    return Case((x, x), model, evidence_loss, optimizer=optimizer)


# Rows of a table, packed.
# fmt: off
HELD_OUT("vision-transformer-trained-until-it-fits | ViT | 4805", lambda: Case(draw.blob_images(48), nets.ViT(depth=1),
    "cross_entropy", steps=70))
HELD_OUT("twins-trained-on-pairs-of-images | siamese | 4821", lambda: Case(draw.image_pairs(), nets.Siamese(),
    contrastive_loss, steps=40))
HELD_OUT("twelve-images-in-train-mode-with-a-group-norm | CNN | 4719", lambda: given(nn.Sequential(nn.Conv2d(1, 8, 3, 2,
    1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(),
    nn.Linear(128, 4)), lambda model: Case(draw.blob_images(12), model, nn.CrossEntropyLoss())))
HELD_OUT("le-net-with-tanh-and-averages | CNN | 4720", lambda: given(nn.Sequential(nn.Conv2d(1, 6, 5, padding=2),
    nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 12, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, 32),
    nn.Tanh(), nn.Linear(32, 4)), lambda model: Case(draw.blob_images(48), model, nn.CrossEntropyLoss())))
HELD_OUT("stages-recomputed-in-the-backward-pass | CNN | 4723", lambda: Case(model=variant("Saving",
    nets.ConvNet(norm=False, depth=3), forward=lambda self, x: self.head(checkpoint(self.features, x,
    use_reentrant=False).mean((2, 3)))), data=draw.blob_images(32), loss=nn.CrossEntropyLoss()))
HELD_OUT("trained-with-weights-of-eight-bits | CNN | 4724", lambda: Case(draw.blob_images(48),
    nn.Sequential(FakeQuantised(1, 8, 3, 2, 1), nn.ReLU(), FakeQuantised(8, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(),
    nn.Linear(128, 4)), nn.CrossEntropyLoss(), steps=30))
HELD_OUT("residual-network-trained-in-eval-mode | ResNet | 4726", lambda: Case(draw.blob_images(40),
    nets.ResNet(width=8, blocks=2), nn.CrossEntropyLoss(), train=False, steps=50))
HELD_OUT("u-net-after-twenty-steps | U-Net | 4727", lambda: Case(rarer.shapes(16), nets.UNet(width=4),
    nn.BCEWithLogitsLoss(), steps=20))
HELD_OUT("pixels-of-bytes-divided-and-rebuilt-by-a-sigmoid | autoencoder | 4731", lambda: given(draw.blob_images(64),
    lambda images, _: given(((255 * draw.as_pixels(images)).round() / 255).flatten(1), lambda x: Case((x, x),
    nets.Autoencoder(last=nn.Sigmoid()), nn.BCELoss()))))
HELD_OUT("discriminator-with-spectral-norm-and-a-hinge | GAN | 4734", lambda: given(draw.blob_images(32),
    lambda real, _: given((torch.arange(64) < 32).float()[:, None],
    lambda y: Case(model=nets.discriminator(parametrizations.spectral_norm), data=(torch.cat([real,
    real.roll(5, dims=2) + 0.3 * torch.randn_like(real)]), y),
    loss=lambda score, target: F.relu(1 - (2 * target - 1) * score).mean()))))
HELD_OUT("generator-that-rebuilds-images-from-labels | GAN | 4735", lambda: given(draw.blob_images(32),
    lambda images, label: Case((torch.cat([F.one_hot(label, 4).float(), torch.randn(32, 12)], dim=1),
    2 * draw.as_pixels(images) - 1), nets.Generator(), nn.MSELoss())))
