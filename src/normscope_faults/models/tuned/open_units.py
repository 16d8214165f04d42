"""The open half, faults of units: dead, saturated, without an activation, dropped."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    GPT,
    Autoencoder,
    ConvNet,
    Denoiser,
    as_pixels,
    blob_images,
    explained_variance,
    mlp,
    noisy_images,
    over_tokens,
    regression_table,
    table,
    text,
    train,
)

FAULTS: list[Fault] = []
plant = partial(fault, FAULTS)
DEAD = "dead-units bias-holds-units-off"


@plant(
    "CNN",
    layers="features.5 features.6",
    causes=DEAD,
    remedies="reset-bias initialise change-activation add-normalizer",
)
def bias_for_rare_events_in_a_hidden_layer(broken: bool) -> Case:
    """A bias for rare events (the -4.6 of RetinaNet's head) set in a hidden layer."""
    torch.manual_seed(301)
    x, y = blob_images()
    model = ConvNet(norm=False)
    if broken:
        nn.init.constant_(model.features[5].bias, -6.0)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant(
    "MLP",
    layers="2 3 4 5",
    causes=f"{DEAD} output-constant",
    remedies="lower-learning-rate restore-weights initialise change-activation reset-bias clip-gradients",
)
def killed_by_a_high_rate(broken: bool) -> Case:
    """The first two steps were taken at a far too high learning rate."""
    torch.manual_seed(302)
    x, y = regression_table()
    model = mlp(8, 32, 32, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 if broken else 0.002)
    train(model, x, 3 + y, F.mse_loss, steps=2, optimizer=optimizer)
    return Case(model=model, data=(x, 3 + y), loss="mse")


@plant(
    "CNN",
    layers="features.0 features.1 features.2 features.3 features.5 features.6 features.7 features.8",
    causes=f"{DEAD} output-constant",
    remedies="lower-learning-rate restore-weights initialise change-activation reset-bias",
)
def killed_by_the_rate_of_another_optimizer(broken: bool) -> Case:
    """Adam at lr=0.1, from a recipe for SGD."""
    torch.manual_seed(303)
    x, y = blob_images()
    model = ConvNet(norm=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 if broken else 1e-3)
    train(model, x, y, F.cross_entropy, steps=20, optimizer=optimizer)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant(
    "MLP",
    layers="2 3",
    causes=DEAD,
    remedies="reset-bias initialise change-activation lower-learning-rate restore-weights",
)
def narrow_layer_almost_dead(broken: bool) -> Case:
    """A narrow layer most of whose units died early in training."""
    torch.manual_seed(304)
    x, y = table()
    model = mlp(12, 24, 6, 24, 3)
    if broken:
        model[2].bias.data[:5] = -12.0
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant("MLP", layers="0 1", causes=DEAD, remedies="initialise reset-bias change-activation scale-inputs")
def negative_weights_on_pixels(broken: bool) -> Case:
    """Weights drawn without a sign where the inputs are not negative."""
    torch.manual_seed(305)
    images, y = blob_images()
    x = as_pixels(images).flatten(1)
    model = mlp(256, 9, 32, 4)
    if broken:
        with torch.no_grad():
            model[0].weight.copy_(torch.cat([-model[0].weight[:8].abs(), model[0].weight[8:]]))
    return Case(model=model, data=(x, y), loss="cross_entropy")


class RectifiedCode(Autoencoder):
    """An autoencoder whose code of eight units is rectified."""

    def __init__(self) -> None:
        super().__init__()
        self.last_of_encoder = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.last_of_encoder(self.encoder(x)))


@plant(
    "autoencoder",
    layers="encoder.4 last_of_encoder",
    causes=DEAD,
    remedies="reset-bias initialise change-activation restore-weights lower-learning-rate remove-final-activation",
)
def code_units_dead(broken: bool) -> Case:
    """A ReLU on a code of eight units; most of them died."""
    torch.manual_seed(306)
    x = blob_images()[0].flatten(1)
    model = RectifiedCode()
    if broken:
        model.encoder[4].bias.data[:7] = -15.0
    return Case(model=model, data=(x, x), loss="mse")


@plant(
    "MLP",
    layers="2 3 4 5",
    causes="saturated-units layer-scale-stands-out exploding-signal",
    remedies="rescale-layer initialise change-activation add-normalizer",
)
def tanh_layers_saturated(broken: bool) -> Case:
    """A gain of 50 for tanh layers."""
    torch.manual_seed(307)
    x, y = regression_table()
    model = mlp(8, 32, 32, 32, 1, activation=nn.Tanh)
    if broken:
        for layer in (model[2], model[4]):
            layer.weight.data.mul_(50)
    return Case(model=model, data=(x, y), loss="mse")


class Gated(nn.Module):
    """Three residual blocks of gated linear units."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 32), nn.Linear(32, 3)
        self.values = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for value, gate in zip(self.values, self.gates):
            x = x + value(x) * torch.sigmoid(gate(x))
        return self.head(x)


@plant(
    "GLU",
    layers="gates.0 gates.1 gates.2 values.0 values.1 values.2",
    causes="saturated-units bias-holds-units-off vanishing-signal vanishing-gradient",
    remedies="reset-bias initialise forget-bias",
)
def gates_shut(broken: bool) -> Case:
    """A gate bias of -2, as highway networks have it, set to -12."""
    torch.manual_seed(308)
    x, y = table()
    model = Gated()
    if broken:
        for gate in model.gates:
            nn.init.constant_(gate.bias, -12.0)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant(
    "MLP",
    layers="0 1",
    causes="saturated-units inputs-not-scaled",
    remedies="scale-inputs add-normalizer change-activation",
)
def tanh_units_saturated_by_data(broken: bool) -> Case:
    """Raw readings near 500, straight into tanh units."""
    torch.manual_seed(309)
    x, y = table()
    return Case(
        model=mlp(12, 32, 32, 3, activation=nn.Tanh), data=(500 + 40 * x if broken else x, y), loss="cross_entropy"
    )


@plant(
    "MLP",
    layers="1 3",
    causes="activation-unsuitable vanishing-gradient vanishing-signal saturated-units",
    remedies="change-activation",
)
def softmax_between_layers(broken: bool) -> Case:
    """nn.Softmax taken for an activation of hidden layers."""
    torch.manual_seed(310)
    x, y = table()
    layers = mlp(12, 48, 48, 3)
    if broken:
        layers[1], layers[3] = nn.Softmax(dim=1), nn.Softmax(dim=1)
    return Case(model=layers, data=(x, y), loss="cross_entropy")


@plant("MLP", layers="0 1 2 3", causes="missing-activation", remedies="add-activation")
def four_linear_layers_in_a_row(broken: bool) -> Case:
    """A stack of nn.Linear without anything between."""
    torch.manual_seed(311)
    x, y = table()
    layers = mlp(12, 32, 32, 32, 3)
    return Case(model=nn.Sequential(*layers[::2]) if broken else layers, data=(x, y), loss="cross_entropy")


class TwoStage(nn.Module):
    """Convolutions whose activation is made in __init__ and may never be called."""

    def __init__(self, rectify: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 5, padding=2), nn.Conv2d(16, 16, 5, padding=2)
        self.head = nn.Linear(16, 2)
        self.rectify, self.relu = rectify, nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        x = self.conv2(self.relu(x) if self.rectify else x)
        return self.head((self.relu(x) if self.rectify else x).mean((2, 3)))


@plant("CNN", layers="conv1 conv2 head relu", causes="missing-activation", remedies="add-activation")
def relu_made_and_never_called(broken: bool) -> Case:
    """self.relu is made and never called."""
    torch.manual_seed(312)
    y, fine = torch.arange(64) % 2, torch.randn(64, 1, 12, 12)
    coarse = F.interpolate(torch.randn(64, 1, 4, 4), scale_factor=3)  # the classes differ in texture, not in the mean
    x = torch.where((y == 1)[:, None, None, None], coarse, fine)
    return Case(model=TwoStage(not broken), data=(x, y), loss="cross_entropy")


@plant("MLP", layers="0 1 2 3 4 5 6", causes="missing-activation", remedies="add-activation")
def normalizer_but_no_activation(broken: bool) -> Case:
    """BatchNorm between the layers, but no activation."""
    torch.manual_seed(313)
    x, y = regression_table()
    act = nn.Identity if broken else nn.ReLU
    model = nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), act(), nn.Linear(32, 32), nn.BatchNorm1d(32), act(), nn.Linear(32, 1)
    )
    return Case(model=model, data=(x, y), loss="mse")


class DroppedGPT(GPT):
    """A GPT with dropout on its embeddings."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(rate)

    def embed(self, ids: Tensor) -> Tensor:
        return self.drop(super().embed(ids))


@plant("GPT", layers="drop", causes="dropout-too-strong", remedies="lower-dropout")
def keep_rate_as_dropout_rate(broken: bool) -> Case:
    """The rate to keep given where the rate to drop is wanted."""
    torch.manual_seed(314)
    ids, following = text()
    return Case(model=DroppedGPT(0.95 if broken else 0.05), data=(ids, following), loss=over_tokens)


class DroppedConvNet(ConvNet):
    """A ConvNet with dropout before its head."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.features(x).mean((2, 3))))


@plant("CNN", layers="drop", causes="dropout-too-strong", remedies="lower-dropout")
def dropout_slip_before_the_head(broken: bool) -> Case:
    """p=0.99, a slip for 0.1."""
    torch.manual_seed(315)
    x, y = blob_images()
    return Case(model=DroppedConvNet(0.99 if broken else 0.1), data=(x, y), loss="cross_entropy")


@plant(
    "diffusion",
    layers="time.0 time.2 time",
    causes="layer-scale-stands-out branch-dominates exploding-signal",
    remedies="rescale-layer initialise scale-branch scale-inputs",
)
def time_embedding_drowns_the_image(broken: bool) -> Case:
    """The last layer of the embedding of the time is drawn a thousand times too large."""
    torch.manual_seed(317)
    inputs, noise = noisy_images()
    model = Denoiser()
    if broken:
        model.time[2].weight.data.mul_(1000)
    return Case(
        model=model,
        data=inputs,
        objective=lambda output: F.mse_loss(output, noise),
        judge=explained_variance(noise),
    )
