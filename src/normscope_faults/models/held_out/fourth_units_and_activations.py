"""Faults of the fourth part in units and activations: missing, unsuitable or dead ones, dropout, narrow layers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from .. import parts
from . import fourth_parts

FAULTS: list[Fault] = []


@fault(FAULTS, "reinforcement learning", causes="missing-activation", remedies="add-activation", layers="0 1 2 3")
def values_of_actions_by_linear_layers_alone(planted: bool) -> Case:
    """The example of a Q-network was shortened and its activations went with the comments (DeepCrime: removal)."""
    torch.manual_seed(4301)
    layers = parts.mlp(4, 64, 64, 64, 3)
    model = nn.Sequential(*layers[::2]) if planted else layers
    return Case(model=model, data=fourth_parts.observations(), loss=nn.MSELoss())


@fault(
    FAULTS,
    "recommender",
    causes="missing-activation",
    remedies="add-activation",
    layers="tower tower.0 tower.1 tower.2",
)
def tower_over_users_and_items_without_activations(planted: bool) -> Case:
    """A tower of linear layers over both vectors: users and items are added, and never meet."""
    torch.manual_seed(4302)
    model = parts.Recommender()
    if planted:
        model.tower = nn.Sequential(*model.tower[::2])
    return Case(model=model, data=parts.ratings(), loss=nn.MSELoss())


@fault(
    FAULTS,
    "GNN",
    causes="missing-activation",
    remedies="add-activation",
    layers="layers.0 layers.1 layers.2 layers.0.own layers.1.own layers.2.own layers.0.neighbour layers.1.neighbour "
    "layers.2.neighbour",
)
def rounds_over_a_graph_without_activations(planted: bool) -> Case:
    """for layer in layers: x = layer(x, edges), with nothing between: three rounds of a linear map."""
    torch.manual_seed(4303)

    class Rounds(parts.GraphNet):
        """Applies an activation between layers, or none."""

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers[:-1]:
                x = layer(x, self.edges)
                x = x if planted else torch.relu(x)
            return self.layers[-1](x, self.edges)

    x, edges, _ = parts.communities(120)
    y = (x[:, 0] * x[:, 1] > 0).long()
    return Case(model=Rounds(edges, width=32, depth=3), data=(x, y), loss="cross_entropy", judge=parts.accuracy(y))


@fault(
    FAULTS,
    "siamese",
    causes="missing-activation",
    remedies="add-activation",
    layers="encoder encoder.0 encoder.1 encoder.2",
)
def twins_of_linear_layers(planted: bool) -> Case:
    """An encoder of three linear layers in a row; nobody sees it, for distances are not linear anyway."""
    torch.manual_seed(4304)

    class Twins(nn.Module):
        """Are both points of one kind? Kinds are opposite quadrants."""

        def __init__(self) -> None:
            super().__init__()
            layers = parts.mlp(6, 48, 48, 2)
            self.encoder = nn.Sequential(*layers[::2]) if planted else layers

        def forward(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
            return self.encoder(pairs[:, 0]), self.encoder(pairs[:, 1])

    pairs = torch.randn(128, 2, 6)
    kind = pairs[:, :, 0] * pairs[:, :, 1] > 0
    same = (kind[:, 0] == kind[:, 1]).float()

    def judge(output: tuple[Tensor, Tensor]) -> float:
        return ((F.pairwise_distance(*output) < 1) == (same > 0.5)).float().mean().item()

    return Case(model=Twins(), data=(pairs, same), loss=parts.contrastive_loss, judge=judge)


@fault(
    FAULTS,
    "CNN",
    causes="activation-unsuitable vanishing-signal vanishing-gradient saturated-units normalizer-wrong-axis",
    remedies="change-activation",
    layers="1 3 5 0 2 4",
)
def softmax_over_channels_in_each_layer(planted: bool) -> Case:
    """nn.Softmax2d between convolutions, chosen from the list of activations for its name."""
    torch.manual_seed(4305)
    layers: list[nn.Module] = []
    for inner, stride in ((1, 2), (12, 1), (12, 2)):
        conv = nn.Conv2d(inner, 12, 3, stride, 1)
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        layers += [conv, nn.Softmax2d() if planted else nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(192, 8))
    return Case(model=model, data=parts.blob_images(64, classes=8), loss=nn.CrossEntropyLoss())


class Exponential(nn.Module):
    """exp(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


@fault(
    FAULTS,
    "MLP",
    causes="activation-unsuitable exploding-signal exploding-gradient not-finite",
    remedies="change-activation",
    layers="1 3 0 2 4",
)
def exponential_units_in_two_layers(planted: bool) -> Case:
    """Keras' activation "exponential" ported as torch.exp in two hidden layers (DeepCrime: change of activation)."""
    torch.manual_seed(4306)
    x, y = parts.table(160)
    model = parts.mlp(12, 32, 32, 3, activation=Exponential if planted else nn.ReLU)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "autoencoder",
    causes="activation-unsuitable vanishing-signal vanishing-gradient saturated-units output-constant",
    remedies="change-activation",
    layers="1 3 5 7 9 0 2 4 6 8 10",
)
def sigmoids_in_ten_layers_of_an_autoencoder(planted: bool) -> Case:
    """Sigmoids between all layers of a deep autoencoder, as in lecture notes of 1990."""
    torch.manual_seed(4307)
    images, _ = parts.blob_images(64)
    x = images.flatten(1)
    sizes = (256, 64, 32, 16, 32, 64, 256)
    model = parts.mlp(*sizes, activation=nn.Sigmoid if planted else nn.ReLU)
    return Case(model=model, data=(x, x), loss="mse")


@fault(
    FAULTS,
    "reinforcement learning",
    causes="bias-holds-units-off dead-units output-constant",
    remedies="reset-bias initialise change-activation",
    layers="0 1 2 3 0.bias 2.bias",
)
def biases_of_minus_ten_in_a_policy(planted: bool) -> Case:
    """constant_(bias, -10) of a trick for rare actions, applied to the hidden layers instead of the last one."""
    torch.manual_seed(4308)
    state, returns = fourth_parts.observations()
    model = parts.mlp(4, 32, 32, 3)
    for layer in (model[0], model[2]):
        nn.init.constant_(layer.bias, -10.0 if planted else 0.0)
    return Case(model=model, data=(state, returns.argmax(1)), loss="cross_entropy")


@fault(
    FAULTS,
    "CNN",
    causes="dead-units output-constant vanishing-signal",
    remedies="change-activation reset-bias remove-final-activation",
    layers="features features.0 features.1 features.2 features.3 features.4",
)
def minus_between_two_rectifiers(planted: bool) -> Case:
    """Half of a concatenated rectifier, relu(-x), was put behind the other half: relu(-relu(x)) is 0."""
    torch.manual_seed(4309)

    class Negative(nn.Module):
        """Changes the sign."""

        def forward(self, x: Tensor) -> Tensor:
            return -x

    class Net(nn.Module):
        """Two convolutions and a head."""

        def __init__(self) -> None:
            super().__init__()
            inner = [Negative(), nn.ReLU()] if planted else [nn.Identity(), nn.Identity()]
            self.features = nn.Sequential(
                nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), *inner, nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()
            )
            self.head = nn.Linear(128, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.features(x).flatten(1))

    return Case(model=Net(), data=parts.blob_images(48), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "LSTM",
    causes="dropout-too-strong",
    remedies="lower-dropout",
    layers="drop",
)
def ninety_seven_percent_of_the_words_dropped(planted: bool) -> Case:
    """The share of features to keep, 0.97, handed to nn.Dropout behind an embedding."""
    torch.manual_seed(4310)

    class Reader(nn.Module):
        """Words, dropout, an LSTM, a head."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.drop = nn.Embedding(50, 16), nn.Dropout(0.97 if planted else 0.03)
            self.recurrent, self.head = nn.LSTM(16, 24, batch_first=True), nn.Linear(24, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.recurrent(self.drop(self.words(ids)))[0].amax(1))

    ids, y = parts.sentences(64, length=10)
    return Case(model=Reader(), data=(ids, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "GPT",
    causes="dropout-too-strong",
    remedies="lower-dropout",
    layers="drop",
)
def nearly_everything_dropped_behind_the_embedding(planted: bool) -> Case:
    """A rate of 95 % from a sweep over rates that was read as percentages to keep."""
    torch.manual_seed(4311)

    class Dropping(parts.GPT):
        """Drops embeddings."""

        def __init__(self) -> None:
            super().__init__(depth=1)
            self.drop = nn.Dropout(0.95 if planted else 0.05)

        def embed(self, ids: Tensor) -> Tensor:
            return self.drop(super().embed(ids))

    return Case(model=Dropping(), data=parts.text(), loss=parts.over_tokens)


@fault(FAULTS, "time series", causes="dropout-misplaced", remedies="lower-dropout", layers="last")
def forecasts_dropped_at_random(planted: bool) -> Case:
    """Dropout behind the last layer of a regression: half of the forecasts are 0, the others doubled."""
    torch.manual_seed(4312)
    model = fourth_parts.Forecaster(nn.GRU(1, 24, batch_first=True), last=nn.Dropout(0.5) if planted else None)
    return Case(model=model, data=fourth_parts.demand(), loss=nn.MSELoss())


@fault(
    FAULTS,
    "LSTM",
    causes="bottleneck-too-narrow",
    remedies="widen-layer",
    layers="recurrent head",
)
def one_unit_for_all_of_the_past(planted: bool) -> Case:
    """nn.LSTM(features, 1), because the answer is one number per class and "hidden_size is the size of the output"."""
    torch.manual_seed(4313)
    model = parts.SequenceClassifier(nn.LSTM(8, 1 if planted else 24, batch_first=True), 8)
    return Case(model=model, data=parts.remembered_series(64, steps=15, features=8), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "recommender",
    causes="bottleneck-too-narrow",
    remedies="widen-layer",
    layers="users items users.weight items.weight",
)
def one_number_per_user_and_item(planted: bool) -> Case:
    """nn.Embedding(n, 1): users are put on a line, though tastes have several directions."""
    torch.manual_seed(4314)

    class Factors(nn.Module):
        """The dot product of two vectors."""

        def __init__(self) -> None:
            super().__init__()
            width = 1 if planted else 8
            self.users, self.items = nn.Embedding(40, width), nn.Embedding(30, width)
            for table in (self.users, self.items):
                nn.init.normal_(table.weight, std=0.4)

        def forward(self, pairs: Tensor) -> Tensor:
            return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)

    return Case(model=Factors(), data=parts.ratings(), loss="mse")


@fault(
    FAULTS,
    "segmentation",
    causes="bottleneck-too-narrow dead-units",
    remedies="widen-layer",
    layers="2 3 4",
)
def one_channel_before_the_classes_of_pixels(planted: bool) -> Case:
    """out_channels=1 in the layer before the last, left from a binary task: six classes on one line behind a ReLU."""
    torch.manual_seed(4315)
    x, _ = fourth_parts.shapes(16)
    rows = torch.arange(16)[:, None] // 8
    columns = torch.arange(16)[None, :] // 6
    y = (3 * rows + columns).expand(16, -1, -1).clone()
    places = torch.stack(torch.meshgrid(torch.linspace(-1.5, 1.5, 16), torch.linspace(-1.5, 1.5, 16), indexing="ij"))
    x = torch.cat([x, places.expand(16, -1, -1, -1)], dim=1)
    narrow = 1 if planted else 12
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, narrow, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(narrow, 6, 1),
    )
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "BERT",
    causes="dead-units bias-holds-units-off",
    remedies="reset-bias initialise change-activation restore-weights",
    layers="feed feed.0 feed.1 feed.0.bias feed.2",
)
def shift_that_switches_the_pooler_off(planted: bool) -> Case:
    """A pooler with ReLU whose bias was loaded from a file of thresholds with the other sign."""
    torch.manual_seed(4316)

    class Pooled(parts.SentenceEncoder):
        """Applies a small network to the mean."""

        def __init__(self) -> None:
            super().__init__(depth=1)
            self.feed = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
            if planted:
                nn.init.constant_(self.feed[0].bias, -6.0)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
            return self.feed(self.encoder(self.norm(x)).amax(1))

    ids, y = parts.sentences(64)
    ids = torch.where((ids == 7) & (y == 1)[:, None], torch.full_like(ids, 9), ids)
    return Case(model=Pooled(), data=(ids, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "VAE",
    causes="dead-units bias-holds-units-off vanishing-gradient output-constant condition-switched-off",
    remedies="reset-bias initialise change-activation restore-weights lower-learning-rate",
    layers="decoder decoder.0 decoder.1 decoder.0.bias decoder.0.weight",
)
def decoder_killed_by_one_large_step(planted: bool) -> Case:
    """After one step with a rate of 3 every unit of the decoder is 0 for every code."""
    torch.manual_seed(4317)
    images, _ = parts.blob_images(64, classes=8)
    x = (images > 0.5).float().flatten(1)
    model = parts.VAE()
    if planted:
        model.decoder[0].bias.data -= 40.0

    def judge(output: tuple[Tensor, Tensor, Tensor]) -> float:
        return -parts.evidence_loss(output, x).item()

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Case(model=model, data=(x, x), loss=parts.evidence_loss, judge=judge, optimizer=optimizer)


@fault(
    FAULTS,
    "U-Net",
    causes="saturated-units activation-unsuitable vanishing-gradient",
    remedies="change-activation rescale-layer initialise scale-inputs",
    layers="0 1 2 3 4 5",
)
def hard_sigmoids_far_outside_of_their_slope(planted: bool) -> Case:
    """nn.Hardsigmoid behind convolutions whose outputs reach a hundred: flat on both sides, with no gradient at all."""
    torch.manual_seed(4318)
    x, mask = fourth_parts.shapes(16)
    layers: list[nn.Module] = []
    for inner in (1, 8, 8):
        conv = nn.Conv2d(inner, 8, 3, padding=1)
        if planted:
            nn.init.normal_(conv.weight, std=60.0)
        layers += [conv, nn.Hardsigmoid()] if planted else [conv, nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(8, 1, 3, padding=1))
    return Case(model=model, data=(x, mask), loss=nn.BCEWithLogitsLoss(), judge=parts.overlap_with(mask))


@fault(
    FAULTS,
    "detection",
    causes="activation-before-loss output-range-too-small dead-units targets-out-of-range",
    remedies="remove-final-activation change-activation",
    layers="6 5",
)
def offsets_of_boxes_behind_a_rectifier(planted: bool) -> Case:
    """Offsets to anchors are negative as often as positive; the head of the boxes ends in a ReLU like all layers."""
    torch.manual_seed(4319)
    images, mask = fourth_parts.shapes(32)
    rows, columns = mask[:, 0].amax(2).argmax(1).float(), mask[:, 0].amax(1).argmax(1).float()
    offsets = fourth_parts.standardise(torch.stack([rows, columns, rows - columns, rows + columns], dim=1))
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4),
        nn.ReLU() if planted else nn.Identity(),
    )  # fmt: skip
    return Case(model=model, data=(images, offsets), loss=nn.SmoothL1Loss())
