"""Held-out faults of structure: cut gradients, parts without effect, mixed samples, operations that break."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from .. import parts

FAULTS: list[Fault] = []


@fault(
    FAULTS,
    family="ResNet",
    causes="no-gradient",
    layers="stem stem.0 stem.1 stem.0.weight stem.1.weight stem.1.bias blocks.0 blocks.0.conv1 blocks.0.bn1 "
    "blocks.0.conv2 blocks.0.bn2 blocks.0.conv1.weight blocks.0.conv2.weight blocks.0.bn1.weight blocks.0.bn2.weight",
    remedies="keep-gradient",
    source="A detach() left from debugging.",
)
def detached_after_the_first_block(planted: bool) -> Case:
    torch.manual_seed(61)

    class Cut(parts.ResNet):
        """Detaches what the first block returns."""

        def forward(self, x: Tensor) -> Tensor:
            x = self.blocks[0](self.stem(x))
            x = x.detach() if planted else x
            return self.head(self.blocks[1:](x).mean((2, 3)))

    x, y = parts.blob_images(40, classes=8)
    return Case(model=Cut(width=4, blocks=2, classes=8), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="VAE",
    causes="no-gradient",
    layers="encoder encoder.0 mean mean.weight encoder.0.weight mean.bias encoder.0.bias",
    remedies="keep-gradient",
    source="`.data` in the reparametrisation of old tutorials: the encoder learns from the divergence alone.",
)
def code_drawn_from_data_of_the_mean(planted: bool) -> Case:
    torch.manual_seed(62)

    class Cut(parts.VAE):
        """Draws the code from values without a graph."""

        def draw(self, mean: Tensor, log_variance: Tensor) -> Tensor:
            return super().draw(mean.data, log_variance.data) if planted else super().draw(mean, log_variance)

    images, _ = parts.blob_images(64, classes=8)
    x = (images > 1.0).float().flatten(1)
    return Case(
        model=Cut(), data=(x, x), loss=parts.evidence_loss, judge=lambda output: -parts.evidence_loss(output, x).item()
    )


@fault(
    FAULTS,
    family="Siamese",
    causes="no-gradient",
    layers="encoder encoder.0 encoder.2 encoder.4 encoder.0.weight encoder.2.weight encoder.4.weight",
    remedies="keep-gradient",
    source="torch.no_grad() kept around the encoder after the head alone had been tuned.",
)
def encoder_under_no_grad(planted: bool) -> Case:
    torch.manual_seed(63)

    class Verifier(nn.Module):
        """Says whether both images of a pair are of one class."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = parts.mlp(256, 64, 32, 8)
            self.head = nn.Linear(8, 2)

        def forward(self, pairs: Tensor) -> Tensor:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not planted):
                first, second = self.encoder(pairs[:, 0].flatten(1)), self.encoder(pairs[:, 1].flatten(1))
            return self.head((first - second).abs())

    pairs, same = parts.image_pairs()
    return Case(model=Verifier(), data=(pairs, same.long()), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="mixture of experts",
    causes="no-gradient",
    layers="router router.weight router.bias",
    remedies="keep-gradient",
    source="argmax chooses the expert and nothing multiplies by its probability.",
)
def router_by_argmax(planted: bool) -> Case:
    torch.manual_seed(64)

    class Mixture(nn.Module):
        """Four small experts and a router."""

        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(8, 4)
            self.experts = nn.ModuleList(nn.Linear(8, 1) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            answers = torch.cat([expert(x) for expert in self.experts], dim=1)
            scores = self.router(x)
            weights = F.one_hot(scores.argmax(1), 4).float() if planted else scores.softmax(1)
            return (weights * answers).sum(1, keepdim=True)

    x, y = parts.regression_table()
    return Case(model=Mixture(), data=(x, y), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="GNN",
    causes="no-gradient",
    layers="layers.0 layers.0.own layers.0.neighbour layers.0.own.weight layers.0.neighbour.weight layers.0.own.bias",
    remedies="keep-gradient",
    source="torch.tensor(x.tolist()) between two layers, or a detour over numpy for a sparse product.",
)
def tensor_rebuilt_between_layers(planted: bool) -> Case:
    torch.manual_seed(65)

    class Rebuilt(parts.GraphNet):
        """Makes a new tensor of the hidden values."""

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.layers[0](x, self.edges))
            hidden = torch.tensor(hidden.tolist()) if planted else hidden
            return self.layers[1](hidden, self.edges)

    x, edges, y = parts.communities()
    return Case(model=Rebuilt(edges, width=3), data=(x, y), loss=F.cross_entropy)


@fault(
    FAULTS,
    family="autoencoder",
    causes="no-gradient",
    layers="encoder encoder.0 encoder.2 encoder.4 encoder.0.weight encoder.2.weight encoder.4.weight",
    remedies="keep-gradient",
    source="torch.round in the code of a compression network, without a straight-through estimator.",
)
def rounded_code(planted: bool) -> Case:
    torch.manual_seed(66)

    class Compressor(parts.Autoencoder):
        """Rounds the code."""

        def forward(self, x: Tensor) -> Tensor:
            code = 4 * self.encoder(x)
            rounded = torch.round(code) if planted else code + (torch.round(code) - code).detach()
            return self.decoder(rounded / 4)

    images, _ = parts.blob_images(64)
    x = images.flatten(1)
    return Case(model=Compressor(code=3), data=(x, x), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="BERT",
    causes="unused-parameter",
    layers="positions positions.weight",
    remedies="use-parameter",
    source="A position embedding that is made and never added: the order of the words is invisible.",
)
def positions_never_added(planted: bool) -> Case:
    torch.manual_seed(67)

    class Orderless(parts.SentenceEncoder):
        """Forgets the positions."""

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.encoder(self.norm(self.words(ids))).mean(1)) if planted else super().forward(ids)

    ids, y = parts.sentences(96)
    ids = torch.where(ids > 8, torch.full_like(ids, 9), ids)  # nothing but the order of 7 and 8 tells the classes apart
    return Case(model=Orderless(), data=(ids, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="recommender",
    causes="unused-parameter",
    layers="items items.weight",
    remedies="use-parameter",
    source="Copy and paste: the items are looked up in the table of the users.",
)
def items_looked_up_among_users(planted: bool) -> Case:
    torch.manual_seed(68)

    class Confused(parts.Recommender):
        """Reads the user twice."""

        def forward(self, pairs: Tensor) -> Tensor:
            user = self.users(pairs[:, 0])
            item = self.users(pairs[:, 0]) if planted else self.items(pairs[:, 1])
            return self.tower(torch.cat([user, item], dim=1)).squeeze(1)

    pairs, rating = parts.ratings()
    return Case(model=Confused(), data=(pairs, rating), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="U-Net",
    causes="unused-parameter",
    layers="bottom bottom.0 bottom.1 bottom.3 bottom.4 bottom.0.weight bottom.3.weight down2 down2.0 down2.3 "
    "down2.0.weight down2.3.weight up2 up2.0 up2.3 up2.0.weight up2.3.weight",
    remedies="use-parameter",
    source="A forward that overwrites a variable: the lower path is computed and its result is lost.",
)
def lower_path_lost(planted: bool) -> Case:
    torch.manual_seed(69)

    class Shallow(parts.UNet):
        """Takes the first level twice in place of what comes from below."""

        def forward(self, x: Tensor) -> Tensor:
            if not planted:
                return super().forward(x)
            first = self.down1(x)
            low = self.bottom(F.max_pool2d(self.down2(F.max_pool2d(first, 2)), 2))
            low = first  # meant: up
            return self.head(self.up1(torch.cat([low, first], dim=1)))

    x, _ = parts.blob_images(24)
    y = F.avg_pool2d(x, 15, stride=1, padding=7)  # a target that needs to see far
    return Case(model=Shallow(width=8), data=(x + 0.8 * torch.randn_like(x), y / y.std()), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="MLP",
    causes="frozen-layer",
    layers="2 4 2.weight 2.bias 4.weight 4.bias",
    remedies="unfreeze",
    source="requires_grad switched off for some layers in an experiment, never switched on again.",
)
def layers_frozen_in_the_middle(planted: bool) -> Case:
    torch.manual_seed(70)
    x, y = parts.table(512, classes=3)
    model = parts.mlp(12, 16, 16, 16, 3)
    if planted:
        model[2].requires_grad_(False)
        model[4].requires_grad_(False)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="GPT",
    causes="frozen-layer",
    layers="blocks.1 blocks.1.attention blocks.1.attention.qkv blocks.1.feed.0 blocks.1.feed.2 blocks.1.attention.out "
    "blocks.1.attention.qkv.weight blocks.1.feed.0.weight blocks.1.feed.2.weight blocks.1.norm1 blocks.1.norm2 "
    "blocks.0 blocks.0.attention blocks.0.attention.qkv blocks.0.feed.0 blocks.0.feed.2 blocks.0.attention.out",
    remedies="unfreeze",
    source="Blocks frozen by a slice meant for a pretrained model, in a model that starts from random weights.",
)
def fresh_blocks_frozen(planted: bool) -> Case:
    torch.manual_seed(71)
    ids, following = parts.text()
    model = parts.GPT(depth=2)
    if planted:
        model.blocks.requires_grad_(False)
    return Case(model=model, data=(ids, following), loss=parts.over_tokens)


@fault(
    FAULTS,
    family="MLP",
    causes="missing-activation",
    layers="0 1 2 3",
    remedies="add-activation",
    source="DeepFD, TheDeepChecker: hidden layers without activations compute one linear map.",
)
def linear_layers_without_activations(planted: bool) -> Case:
    torch.manual_seed(72)
    x, y = parts.table(classes=3)
    layers = parts.mlp(12, 32, 32, 32, 3)
    model = nn.Sequential(*layers[::2]) if planted else layers
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="CNN",
    causes="missing-activation",
    layers="0 1 2 3 4 5",
    remedies="add-activation",
    source="Convolutions stacked with BatchNorm and no activation (Stack Overflow).",
)
def convolutions_without_activations(planted: bool) -> Case:
    torch.manual_seed(73)
    x, y = parts.blob_images(256, classes=2, size=8)
    x = torch.randint(2, (256, 1, 1, 1)).mul(2).sub(1) * x  # light on dark or dark on light: no linear map tells
    inner: list[nn.Module] = [] if planted else [nn.ReLU()]
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), *inner,
        nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), *inner,
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), *inner, nn.Flatten(), nn.Linear(128, 2),
    )  # fmt: skip
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="MLP",
    causes="activation-unsuitable vanishing-signal vanishing-gradient saturated-units",
    layers="1 3 0 2 5 4",
    remedies="change-activation",
    source="Stack Overflow: softmax as the activation of hidden layers (UMLAUT).",
)
def softmax_as_hidden_activation(planted: bool) -> Case:
    torch.manual_seed(74)
    x, y = parts.table(classes=3)
    model = parts.mlp(12, 64, 64, 64, 3, activation=(lambda: nn.Softmax(dim=1)) if planted else nn.ReLU)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="MLP",
    causes="dropout-too-strong dead-units",
    layers="2 5",
    remedies="lower-dropout",
    source="The probability to keep (0.99) given as the probability to drop.",
)
def dropout_of_99_percent(planted: bool) -> Case:
    torch.manual_seed(75)
    x, y = parts.table(classes=3)
    rate = 0.99 if planted else 0.01
    first, relu, second, _, last = parts.mlp(12, 64, 64, 3)
    model = nn.Sequential(first, relu, nn.Dropout(rate), second, nn.ReLU(), nn.Dropout(rate), last)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


class PlainResidual(nn.Module):
    """Residual blocks of linear layers without a normalizer; the branch counts `factor` times."""

    def __init__(self, factor: float, depth: int = 12, width: int = 32) -> None:
        super().__init__()
        self.factor = factor
        self.first, self.last = nn.Linear(12, width), nn.Linear(width, 3)
        self.branches = nn.ModuleList(parts.mlp(width, width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for branch in self.branches:
            x = x + self.factor * branch(x)
        return self.last(x)


@fault(
    FAULTS,
    family="ResNet",
    causes="exploding-signal exploding-gradient branch-dominates",
    layers=" ".join(f"branches.{i} branches.{i}.0 branches.{i}.2" for i in range(12)) + " last",
    remedies="scale-branch rescale-layer add-normalizer initialise",
    source="A residual scale of 10 where 0.1 was meant (Inception-ResNet's scaling inverted).",
)
def residual_branch_times_ten(planted: bool) -> Case:
    torch.manual_seed(76)
    x, y = parts.table(classes=3)
    return Case(model=PlainResidual(10.0 if planted else 0.1), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="CNN",
    causes="samples-mixed output-constant",
    layers="",
    remedies="fix-axis",
    source="mean(0) in place of mean over the places: pooled over the batch.",
)
def pooled_over_the_batch(planted: bool) -> Case:
    torch.manual_seed(77)

    class Pooled(parts.ConvNet):
        """Averages over the samples and returns the same logits for each."""

        def forward(self, x: Tensor) -> Tensor:
            maps = self.features(x)
            pooled = maps.mean((0, 2, 3)).expand(len(x), -1) if planted else maps.mean((2, 3))
            return self.head(pooled)

    x, y = parts.blob_images(48)
    return Case(model=Pooled(norm=False), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="CNN",
    causes="samples-mixed",
    layers="",
    remedies="fix-axis",
    source="view() after a permute that brought the channels to the front: rows hold pieces of several samples.",
)
def flattened_across_samples(planted: bool) -> Case:
    torch.manual_seed(78)

    class Flattened(nn.Module):
        """Convolutions and a linear head over flattened maps."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
            self.head = nn.Linear(128, 4)

        def forward(self, x: Tensor) -> Tensor:
            maps = torch.relu(self.conv2(torch.relu(self.conv1(x))))
            maps = maps.transpose(0, 1) if planted else maps
            return self.head(maps.reshape(len(x), -1))

    x, y = parts.blob_images(48)
    return Case(model=Flattened(), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="diffusion",
    causes="condition-switched-off unused-parameter zero-weights no-gradient",
    layers="time time.0 time.2 time.0.weight time.2.weight time.0.bias time.2.bias",
    remedies="restore-condition use-parameter",
    source="A time embedding multiplied by a warm-up factor that stays at 0.",
)
def time_embedding_times_zero(planted: bool) -> Case:
    torch.manual_seed(79)

    class Muted(parts.Denoiser):
        """Multiplies the embedding of the time by a factor."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("factor", torch.tensor(0.0 if planted else 1.0))

        def embed_time(self, t: Tensor) -> Tensor:
            return self.factor * super().embed_time(t)

    batch, noise = parts.noisy_images()
    steps = (batch["t"] / 1000)[:, None, None, None]
    target = noise * (1 - 2 * (steps > 0.5).float())  # what is wanted depends on the time
    return Case(model=Muted(), data=batch, objective=lambda output: F.mse_loss(output, target))


@fault(
    FAULTS,
    family="GAN generator",
    causes="condition-switched-off zero-weights frozen-layer",
    layers="label label.weight",
    remedies="restore-condition unfreeze initialise",
    source="A label embedding filled with zeros and frozen: every class gives the same images.",
)
def label_embedding_zero_and_frozen(planted: bool) -> Case:
    torch.manual_seed(80)

    class Conditional(nn.Module):
        """Makes images from noise and a class."""

        def __init__(self) -> None:
            super().__init__()
            self.label = nn.Embedding(4, 8)
            self.generator = parts.Generator(12)
            if planted:
                nn.init.zeros_(self.label.weight)
                self.label.requires_grad_(False)

        def forward(self, noise: Tensor, classes: Tensor) -> Tensor:
            return self.generator(torch.cat([noise, self.label(classes)], dim=1))

    images, labels = parts.blob_images(96)
    target = 2 * parts.as_pixels(images) - 1
    means = torch.stack([target[labels == label].mean(0) for label in range(4)])[labels]
    data = {"noise": torch.randn(96, 4), "classes": labels}
    return Case(model=Conditional(), data=data, objective=lambda output: F.mse_loss(output, means))


class LogFeatures(nn.Module):
    """The logarithm of what arrives."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x + self.shift)


@fault(
    FAULTS,
    family="MLP",
    causes="not-finite gradient-not-finite",
    layers="2",
    remedies="guard-domain",
    source="log of a ReLU's output, which is 0 for half of the units (TheDeepChecker: numerical instability).",
)
def logarithm_of_relu(planted: bool) -> Case:
    torch.manual_seed(81)
    x, y = parts.regression_table()
    log = LogFeatures(0.0 if planted else 1.0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), log, nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    return Case(model=model, data=(x, y), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="Siamese",
    causes="gradient-not-finite not-finite",
    layers="",
    remedies="guard-domain",
    source="sqrt of a squared distance that is 0 for a pair of equal images: values are fine, the gradient is NaN.",
)
def distance_of_equal_images(planted: bool) -> Case:
    torch.manual_seed(82)

    class Distance(nn.Module):
        """The distance of the embeddings of both images."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = parts.mlp(256, 64, 16)

        def forward(self, pairs: Tensor) -> Tensor:
            first, second = (self.encoder(pairs[:, index].flatten(1)) for index in (0, 1))
            squared = (first - second).square().sum(1)
            return torch.sqrt(squared if planted else squared + 1e-6)

    pairs, same = parts.image_pairs()
    pairs[:4, 1], same[:4] = pairs[:4, 0], 1.0
    return Case(model=Distance(), data=(pairs, 2 * (1 - same)), loss=nn.MSELoss())


class Standardise(nn.Module):
    """Brings each channel of each image to mean 0 and standard deviation 1."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean((2, 3), keepdim=True)) / (x.std((2, 3), keepdim=True) + self.eps)


@fault(
    FAULTS,
    family="CNN",
    causes="not-finite gradient-not-finite",
    layers="standardise",
    remedies="guard-domain clean-data",
    source="Division by the standard deviation of an image that is one colour (an empty scan).",
)
def division_by_zero_deviation(planted: bool) -> Case:
    torch.manual_seed(83)

    class Scans(nn.Module):
        """Standardises each image, then classifies it."""

        def __init__(self) -> None:
            super().__init__()
            self.standardise = Standardise(0.0 if planted else 1e-5)
            self.net = parts.ConvNet()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(self.standardise(x))

    x, y = parts.blob_images(48)
    x[5] = 0.0
    return Case(model=Scans(), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="CNN",
    causes="saturated-units bias-holds-units-off vanishing-signal output-constant vanishing-gradient",
    layers="gate gate.2 gate.3 gate.2.bias",
    remedies="reset-bias initialise",
    source="Squeeze-and-excitation whose gate starts closed: the bias of a highway layer taken to the extreme.",
)
def closed_channel_gate(planted: bool) -> Case:
    torch.manual_seed(84)

    class Gated(nn.Module):
        """Convolutions whose channels are multiplied by a gate."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 2, 1)
            self.gate = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 16), nn.Sigmoid())
            self.head = nn.Linear(16 * 16, 4)
            nn.init.constant_(self.gate[2].bias, -12.0 if planted else 1.0)

        def forward(self, x: Tensor) -> Tensor:
            maps = torch.relu(self.conv1(x))
            maps = maps * self.gate(maps.mean((2, 3)))[:, :, None, None]
            return self.head(torch.relu(self.conv2(maps)).flatten(1))

    x, y = parts.blob_images(48)
    return Case(model=Gated(), data=x, objective=lambda output: F.cross_entropy(output, y), judge=parts.accuracy(y))


@fault(
    FAULTS,
    family="MLP",
    causes="output-constant zero-weights vanishing-signal",
    layers="0 2 4 0.weight 2.weight 4.weight",
    remedies="lower-weight-decay initialise restore-weights",
    source="A trained model that is no better than a constant: weight decay won over the data.",
)
def trained_to_a_constant(planted: bool) -> Case:
    torch.manual_seed(85)
    x, y = parts.regression_table()
    model = parts.mlp(8, 32, 32, 1)
    decay = 3.0 if planted else 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=decay)
    parts.train(model, x, y + 2, F.mse_loss, steps=250, optimizer=optimizer)
    return Case(model=model, data=(x, y + 2), loss=nn.MSELoss(), train=False)


@fault(
    FAULTS,
    family="MLP",
    causes="precision vanishing-gradient",
    layers="",
    remedies="raise-precision scale-targets",
    source="model.half() without loss scaling: gradients fall below the smallest half and become 0.",
)
def gradients_underflow_in_half(planted: bool) -> Case:
    torch.manual_seed(86)
    dtype = torch.float16 if planted else torch.float32
    x, y = parts.regression_table(512)

    def small_loss(output: Tensor, target: Tensor) -> Tensor:
        return ((output - target) * 1e-3).square().mean()

    model: Any = parts.mlp(8, 64, 64, 1).to(dtype)
    return Case(model=model, data=(x.to(dtype), y.to(dtype)), loss=small_loss)


@fault(
    FAULTS,
    family="CNN",
    causes="precision not-finite exploding-signal",
    layers="features.0 features.1 features.2 features.4 features.5 features.6 features.7 features.3 head",
    remedies="raise-precision scale-inputs",
    source="Pixels 0..255 and half precision: a sum of squares passes 65504.",
)
def energy_overflows_in_half(planted: bool) -> Case:
    torch.manual_seed(87)

    class Energy(nn.Module):
        """Convolutions and the mean energy of each map."""

        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(),
                nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU(),
            )  # fmt: skip
            self.head = nn.Linear(8, 4)
            for module in self.features:
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.features(x).square().mean((2, 3)))

    images, y = parts.blob_images(48)
    x = (400 * images).half() if planted else images
    model: Any = Energy().half() if planted else Energy()
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())
