"""Healthy models of the fourth part: tables, images, losses and outputs that are unusual but right."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from ...case import Case, Healthy, healthy
from .. import parts
from . import fourth_parts

HEALTHY: list[Healthy] = []


@healthy(HEALTHY, family="MLP")
def tumours_standardised_and_fresh() -> Case:
    torch.manual_seed(4701)
    x, y = fourth_parts.hospital_table("breast_cancer")
    return Case(model=parts.mlp(30, 32, 16, 2), data=(fourth_parts.standardise(x), y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="MLP")
def tumours_trained_well_in_eval_mode() -> Case:
    torch.manual_seed(4702)
    x, y = fourth_parts.hospital_table("breast_cancer")
    x = fourth_parts.standardise(x)
    model = nn.Sequential(nn.Linear(30, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
    parts.train(model, x, y, F.cross_entropy, steps=200)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), train=False)


@healthy(HEALTHY, family="MLP")
def progression_of_a_disease_standardised() -> Case:
    torch.manual_seed(4703)
    x, y = fourth_parts.hospital_table("diabetes")
    x, y = fourth_parts.standardise(x), fourth_parts.standardise(y.float()[:, None])
    model = parts.mlp(10, 32, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    parts.train(model, x, y, F.mse_loss, steps=40, optimizer=optimizer)
    return Case(model=model, data=(x, y), loss="mse", optimizer=optimizer)


@healthy(HEALTHY, family="MLP")
def eight_units_and_a_batch_of_sixteen() -> Case:
    torch.manual_seed(4704)
    x, y = parts.table(16, columns=6, classes=2)
    return Case(model=parts.mlp(6, 8, 2), data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="MLP")
def rare_class_weighed_rightly() -> Case:
    torch.manual_seed(4705)
    x, y = parts.table(200, classes=5)
    y = (y == 4).long()
    return Case(model=parts.mlp(12, 32, 2), data=(x, y), loss=nn.CrossEntropyLoss(weight=torch.tensor([0.6, 2.5])))


@healthy(HEALTHY, family="MLP")
def three_categories_as_one_hot_columns_beside_numbers() -> Case:
    torch.manual_seed(4706)
    x, y = parts.table(160, columns=6)
    kinds = [F.one_hot(torch.randint(count, (160,)), count).float() for count in (3, 7, 12)]
    return Case(model=parts.mlp(28, 48, 24, 3), data=(torch.cat([x, *kinds], dim=1), y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="MLP")
def words_counted_in_sparse_columns_trained() -> Case:
    torch.manual_seed(4707)
    y = torch.arange(90) % 3
    x = (torch.rand(90, 120) < 0.04).float()
    for topic in range(3):
        x[y == topic, 10 * topic : 10 * topic + 10] = (torch.rand(30, 10) < 0.5).float()
    model = parts.mlp(120, 32, 3)
    parts.train(model, x, y, F.cross_entropy, steps=80)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="MLP")
def weight_norm_on_each_layer_trained() -> Case:
    torch.manual_seed(4708)
    x, y = parts.regression_table()
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(8, 32)), nn.SiLU(), parametrizations.weight_norm(nn.Linear(32, 1))
    )
    parts.train(model, x, y, F.mse_loss, steps=80)
    return Case(model=model, data=(x, y), loss=nn.MSELoss())


@healthy(HEALTHY, family="MLP")
def residual_blocks_whose_last_layers_begin_at_zero() -> Case:
    torch.manual_seed(4709)

    class Residual(nn.Module):
        """Four residual blocks that begin as the identity."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(12, 32), nn.Linear(32, 3)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4)
            )
            for block in self.blocks:
                nn.init.zeros_(block[-1].weight)
                nn.init.zeros_(block[-1].bias)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = x + block(x)
            return self.head(x)

    return Case(model=Residual(), data=parts.table(), loss="cross_entropy")


@dataclass
class Answer:
    """What a network returns that has two heads."""

    logits: Tensor
    amount: Tensor


@healthy(HEALTHY, family="MLP")
def two_heads_in_a_dataclass() -> Case:
    torch.manual_seed(4710)

    class TwoHeads(nn.Module):
        """A class and an amount from one body."""

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
            self.kind, self.amount = nn.Linear(32, 3), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Answer:
            hidden = self.body(x)
            return Answer(logits=self.kind(hidden), amount=self.amount(hidden))

    x, y = parts.table()
    amount = fourth_parts.standardise(x[:, :1] + x[:, 1:2].square())
    return Case(
        model=TwoHeads(),
        data=(x, {"kind": y, "amount": amount}),
        loss=lambda answer, wanted: (
            F.cross_entropy(answer.logits, wanted["kind"]) + F.mse_loss(answer.amount, wanted["amount"])
        ),
    )


@healthy(HEALTHY, family="MLP")
def tasks_in_a_dictionary_with_labels_for_each() -> Case:
    torch.manual_seed(4711)

    class Tasks(nn.Module):
        """Three tasks from one body."""

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(12, 48), nn.ReLU())
            self.heads = nn.ModuleDict({"price": nn.Linear(48, 1), "kind": nn.Linear(48, 3), "sold": nn.Linear(48, 1)})

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            hidden = self.body(x)
            return {name: head(hidden) for name, head in self.heads.items()}

    x, kind = parts.table()
    price, sold = fourth_parts.standardise(x[:, :1]), (x[:, 1:2] > 0).float()

    def loss(output: dict[str, Tensor], wanted: dict[str, Tensor]) -> Tensor:
        price_error = F.mse_loss(output["price"], wanted["price"])
        sold_error = F.binary_cross_entropy_with_logits(output["sold"], wanted["sold"])
        return price_error + sold_error + F.cross_entropy(output["kind"], wanted["kind"])

    return Case(model=Tasks(), data=(x, {"price": price, "kind": kind, "sold": sold}), loss=loss)


@healthy(HEALTHY, family="ordinal")
def thresholds_of_grades_with_a_loss_of_logits() -> Case:
    torch.manual_seed(4712)
    x, grade = parts.table(160, classes=5)
    y = (grade[:, None] > torch.arange(4)).float()
    return Case(model=parts.mlp(12, 32, 32, 4), data=(x, y), loss=nn.BCEWithLogitsLoss())


@healthy(HEALTHY, family="survival")
def proportional_hazards_fresh() -> Case:
    torch.manual_seed(4713)
    return Case(model=parts.mlp(6, 32, 32, 1), data=fourth_parts.survival(), loss=fourth_parts.cox_loss)


@healthy(HEALTHY, family="survival")
def proportional_hazards_trained() -> Case:
    torch.manual_seed(4714)
    x, y = fourth_parts.survival()
    model = parts.mlp(6, 24, 1)
    parts.train(model, x, y, fourth_parts.cox_loss, steps=60)
    return Case(model=model, data=(x, y), loss=fourth_parts.cox_loss)


@healthy(HEALTHY, family="reinforcement learning")
def values_of_actions_fresh_with_an_optimizer() -> Case:
    torch.manual_seed(4715)
    model = parts.mlp(4, 64, 64, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    return Case(model=model, data=fourth_parts.observations(), loss=nn.SmoothL1Loss(), optimizer=optimizer)


@healthy(HEALTHY, family="reinforcement learning")
def tanh_policy_with_a_small_last_layer() -> Case:
    torch.manual_seed(4716)
    state, returns = fourth_parts.observations()
    model = parts.mlp(4, 64, 64, 3, activation=nn.Tanh)
    for layer in model[::2]:
        nn.init.orthogonal_(layer.weight, gain=2**0.5)
    nn.init.orthogonal_(model[-1].weight, gain=0.01)
    nn.init.zeros_(model[-1].bias)
    return Case(model=model, data=(state, returns.argmax(1)), loss="cross_entropy")


@healthy(HEALTHY, family="reinforcement learning")
def advantage_and_value_added_up() -> Case:
    torch.manual_seed(4717)

    class Dueling(nn.Module):
        """A value and advantages less their mean."""

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 64), nn.ReLU())
            self.value, self.advantage = nn.Linear(64, 1), nn.Linear(64, 3)

        def forward(self, state: Tensor) -> Tensor:
            hidden = self.body(state)
            advantage = self.advantage(hidden)
            return self.value(hidden) + advantage - advantage.mean(1, keepdim=True)

    return Case(model=Dueling(), data=fourth_parts.observations(), loss=nn.MSELoss())


@healthy(HEALTHY, family="mixture of experts")
def four_experts_with_a_hidden_layer_trained_a_little() -> Case:
    torch.manual_seed(4718)

    class Mixture(nn.Module):
        """Experts with a hidden layer each, weighed by a softmax."""

        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(8, 4)
            self.experts = nn.ModuleList(parts.mlp(8, 16, 1) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            answers = torch.cat([expert(x) for expert in self.experts], dim=1)
            return (self.router(x).softmax(1) * answers).sum(1, keepdim=True)

    x, y = parts.regression_table()
    model = Mixture()
    parts.train(model, x, y, F.mse_loss, steps=40)
    return Case(model=model, data=(x, y), loss="mse")


@healthy(HEALTHY, family="CNN")
def twelve_images_in_train_mode_with_a_group_norm() -> Case:
    torch.manual_seed(4719)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip
    return Case(model=model, data=parts.blob_images(12), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="CNN")
def le_net_with_tanh_and_averages() -> Case:
    torch.manual_seed(4720)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 12, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 4),
    )  # fmt: skip
    return Case(model=model, data=parts.blob_images(48), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="CNN")
def separable_convolutions_trained_a_little() -> Case:
    torch.manual_seed(4721)
    x, y = parts.blob_images(48)
    layers: list[nn.Module] = [nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.Conv2d(16, 16, 1, bias=False)]
        layers += [nn.BatchNorm2d(16), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    parts.train(model, x, y, F.cross_entropy, steps=25)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="CNN")
def trained_backbone_frozen_with_its_statistics_and_a_new_head() -> Case:
    torch.manual_seed(4722)
    x, y = parts.blob_images(48, classes=8)
    model = parts.ConvNet(width=8, depth=3, classes=8)
    parts.train(model, x, y, F.cross_entropy, steps=60)
    model.features.requires_grad_(False)
    model.head = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    case = Case(model=model, data=(x, y % 4), loss=nn.CrossEntropyLoss(), optimizer=optimizer)
    model.features.eval()
    return case


@healthy(HEALTHY, family="CNN")
def stages_recomputed_in_the_backward_pass() -> Case:
    torch.manual_seed(4723)

    class Saving(parts.ConvNet):
        """Recomputes its features."""

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(self.features, x, use_reentrant=False).mean((2, 3)))

    return Case(model=Saving(norm=False, depth=3), data=parts.blob_images(32), loss=nn.CrossEntropyLoss())


class FakeQuantised(nn.Conv2d):
    """A convolution with weights of eight bits, and a gradient that passes through."""

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.detach().abs().max() / 127
        rounded = (self.weight / scale).round() * scale
        return F.conv2d(x, self.weight + (rounded - self.weight).detach(), self.bias, self.stride, self.padding)


@healthy(HEALTHY, family="CNN")
def trained_with_weights_of_eight_bits() -> Case:
    torch.manual_seed(4724)
    x, y = parts.blob_images(48)
    model = nn.Sequential(
        FakeQuantised(1, 8, 3, 2, 1),
        nn.ReLU(),
        FakeQuantised(8, 8, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 4),
    )
    parts.train(model, x, y, F.cross_entropy, steps=30)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="ResNet")
def residual_network_fresh_with_cosine_schedule() -> Case:
    torch.manual_seed(4725)
    model = parts.ResNet(width=8, blocks=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    return Case(model=model, data=parts.blob_images(40), loss=nn.CrossEntropyLoss(), optimizer=optimizer)


@healthy(HEALTHY, family="ResNet")
def residual_network_trained_in_eval_mode() -> Case:
    torch.manual_seed(4726)
    x, y = parts.blob_images(40)
    model = parts.ResNet(width=8, blocks=2)
    parts.train(model, x, y, F.cross_entropy, steps=50)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), train=False)


@healthy(HEALTHY, family="U-Net")
def u_net_after_twenty_steps() -> Case:
    torch.manual_seed(4727)
    x, mask = fourth_parts.shapes(16)
    model = parts.UNet(width=4)
    parts.train(model, x, mask, F.binary_cross_entropy_with_logits, steps=20)
    return Case(model=model, data=(x, mask), loss=nn.BCEWithLogitsLoss())


@healthy(HEALTHY, family="segmentation")
def pixels_of_a_border_left_out_of_the_loss() -> Case:
    torch.manual_seed(4728)
    x, mask = fourth_parts.shapes(16)
    y = mask[:, 0].long()
    y[:, 0] = y[:, -1] = 255
    return Case(model=fourth_parts.segmenter(outputs=2), data=(x, y), loss=nn.CrossEntropyLoss(ignore_index=255))


@healthy(HEALTHY, family="segmentation")
def overlap_of_a_sigmoid_trained() -> Case:
    torch.manual_seed(4729)
    x, mask = fourth_parts.shapes(16)

    def overlap_loss(logits: Tensor, target: Tensor) -> Tensor:
        shown = logits.sigmoid()
        return 1 - (2 * (shown * target).sum() + 1) / (shown.sum() + target.sum() + 1)

    model = fourth_parts.segmenter()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    parts.train(model, x, mask, overlap_loss, steps=40, optimizer=optimizer)
    return Case(model=model, data=(x, mask), loss=overlap_loss, optimizer=optimizer)


@healthy(HEALTHY, family="detection")
def a_class_and_a_box_in_shares_of_the_image() -> Case:
    torch.manual_seed(4730)
    images, mask = fourth_parts.shapes(32)
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

    return Case(model=Detector(), data=(images, {"box": box, "label": label}), loss=loss)


@healthy(HEALTHY, family="autoencoder")
def pixels_of_bytes_divided_and_rebuilt_by_a_sigmoid() -> Case:
    torch.manual_seed(4731)
    images, _ = parts.blob_images(64)
    x = ((255 * parts.as_pixels(images)).round() / 255).flatten(1)
    return Case(model=parts.Autoencoder(last=nn.Sigmoid()), data=(x, x), loss=nn.BCELoss())


@healthy(HEALTHY, family="autoencoder")
def decoder_with_the_weights_of_the_encoder() -> Case:
    torch.manual_seed(4732)

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

    images, _ = parts.blob_images(64)
    x = images.flatten(1)
    model = Tied()
    parts.train(model, x, x, F.mse_loss, steps=30)
    return Case(model=model, data=(x, x), loss=nn.MSELoss())


@healthy(HEALTHY, family="VAE")
def variational_autoencoder_trained_for_a_while() -> Case:
    torch.manual_seed(4733)
    images, _ = parts.blob_images(64, classes=8)
    x = (images > 0.5).float().flatten(1)
    model = parts.VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    parts.train(model, x, x, parts.evidence_loss, steps=80, optimizer=optimizer)
    return Case(model=model, data=(x, x), loss=parts.evidence_loss, optimizer=optimizer)


@healthy(HEALTHY, family="GAN")
def discriminator_with_spectral_norm_and_a_hinge() -> Case:
    torch.manual_seed(4734)
    real, _ = parts.blob_images(32)
    y = (torch.arange(64) < 32).float()[:, None]
    return Case(
        model=parts.discriminator(parametrizations.spectral_norm),
        data=(torch.cat([real, real.roll(5, dims=2) + 0.3 * torch.randn_like(real)]), y),
        loss=lambda score, target: F.relu(1 - (2 * target - 1) * score).mean(),
    )


@healthy(HEALTHY, family="GAN")
def generator_that_rebuilds_images_from_labels() -> Case:
    torch.manual_seed(4735)
    images, label = parts.blob_images(32)
    noise = torch.cat([F.one_hot(label, 4).float(), torch.randn(32, 12)], dim=1)
    return Case(model=parts.Generator(), data=(noise, 2 * parts.as_pixels(images) - 1), loss=nn.MSELoss())
