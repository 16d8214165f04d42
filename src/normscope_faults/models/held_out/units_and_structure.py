"""Faults for scoring alone: units, structure."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import HELD_OUT, Case, given
from ...plants import over, variant
from ...training import (
    accuracy,
    binary_accuracy,
    contrastive_loss,
    evidence_loss,
    explained_variance,
    over_tokens,
    overlap_with,
)
from . import rarer


@HELD_OUT
def time_moved_to_the_front_by_view(broken: bool) -> Case:
    """LSTM | 4601 | nn.LSTM wants time first; x.view(steps, samples, features) has that shape, and cuts the series
    into pieces.
    | samples-mixed | | fix-axis"""

    # An LSTM with time first, and a head.
    def reader(self, series: Tensor) -> Tensor:
        count, steps, features = series.shape
        first = series.reshape(steps, count, features) if broken else series.transpose(0, 1)
        return self.head(self.recurrent(first)[0].amax(0))

    net = nets.made("Reader", reader)
    net.recurrent, net.head = nn.LSTM(4, 24), nn.Linear(24, 4)
    return Case(model=net, data=draw.remembered_series(60, steps=12), loss=nn.CrossEntropyLoss())


@HELD_OUT
def rows_of_a_table_taken_for_time(broken: bool) -> Case:
    """CNN | 4603 | Conv1d wants (samples, channels, length): x.T[None] makes one sample of the batch, and neighbours
    are mixed.
    | samples-mixed | | fix-axis"""

    class Columns(nn.Module):
        """Two convolutions over the rows, or over nothing."""

        def __init__(self) -> None:
            super().__init__()
            size, padding = (5, 2) if broken else (1, 0)
            self.first = nn.Conv1d(12, 32, size, padding=padding)
            self.second = nn.Conv1d(32, 32, size, padding=padding)
            self.head = nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x.T[None] if broken else x[:, :, None]
            x = torch.relu(self.second(torch.relu(self.first(x))))
            return self.head(x[0].T if broken else x[:, :, 0])

    return Case(model=Columns(), data=draw.table(120), loss=nn.CrossEntropyLoss())


@HELD_OUT
def state_of_the_first_text_for_all(broken: bool) -> Case:
    """GRU | 4604 | h[:, :1] was to drop an axis of directions; it keeps the first text, whose answer is broadcast to
    all.
    | output-constant samples-mixed | | fix-axis match-shapes read-last-step"""

    # Words, a GRU, a head on the last state.
    def reader(self, ids: Tensor) -> Tensor:
        _, state = self.recurrent(self.words(ids))
        state = state[:, :1].expand(-1, len(ids), -1) if broken else state
        return self.head(state[0])

    net = nets.made("Reader", reader)
    net.words, net.recurrent = nn.Embedding(50, 16), nn.GRU(16, 24, batch_first=True)
    net.head = nn.Linear(24, 2)
    return Case(model=net, data=draw.sentences(64, length=6), loss=nn.CrossEntropyLoss())


@HELD_OUT
def molecules_pooled_over_the_batch(broken: bool) -> Case:
    """GNN | 4605 | Dense graphs (graphs, atoms, features) are pooled with mean(0).mean(0): one vector for all of the
    molecules.
    | samples-mixed output-constant | | fix-axis"""

    # Two rounds over dense graphs, and a head on their mean.
    def dense(self, atoms: Tensor, bonds: Tensor) -> Tensor:
        hidden = torch.relu(self.first(bonds @ atoms))
        hidden = torch.relu(self.second(bonds @ hidden))
        pooled = hidden.mean(0).mean(0).expand(len(atoms), -1) if broken else hidden.mean(1)
        return self.head(pooled)

    bonds = (torch.rand(48, 8, 8) < 0.3).float()
    bonds = ((bonds + bonds.transpose(1, 2)) > 0).float() + torch.eye(8)
    bonds = bonds / bonds.sum(2, keepdim=True)
    y = torch.arange(48) % 2
    atoms = torch.randn(48, 8, 6) + 0.6 * (2 * y[:, None, None] - 1)
    data = ({"atoms": atoms, "bonds": bonds}, y)
    net = nets.made("Dense", dense)
    net.first, net.second, net.head = nn.Linear(6, 24), nn.Linear(24, 24), nn.Linear(24, 2)
    return Case(data, net, nn.CrossEntropyLoss(), judge=accuracy(y))


@HELD_OUT
def probabilities_over_the_rows_of_the_image(broken: bool) -> Case:
    """segmentation | 4613 | nn.LogSoftmax(dim=2) before NLLLoss: the classes of a pixel do not compete, the rows of
    the image do.
    | normalizer-wrong-axis | last | fix-axis"""
    x, mask = rarer.shapes(16)
    model = nn.Sequential()
    model.add_module("layers", rarer.segmenter(outputs=2))
    model.add_module("last", nn.LogSoftmax(dim=2 if broken else 1))
    judge = overlap_with(mask)
    return Case((x, mask[:, 0].long()), model, nn.NLLLoss(), judge=lambda output: judge(output[:, 1:] - output[:, :1]))


@HELD_OUT
def hour_of_the_noise_divided_twice(broken: bool) -> Case:
    """diffusion | 4614 | The time comes as a share of a thousand steps and is divided by a thousand once more: sines
    of nothing.
    | condition-switched-off inputs-not-scaled | time time.{0,2} | restore-condition scale-inputs"""

    class Divided(nets.Denoiser):
        """Divides the time before its sines are taken."""

        def embed_time(self, t: Tensor) -> Tensor:
            return super().embed_time(t / 1e6 if broken else t)

    x = torch.randn(64, 1, 8, 8)
    t = torch.randint(1000, (64,)).float()
    y = torch.where((t > 500)[:, None, None, None], x, -x)
    return Case(({"x": x, "t": t}, y), Divided(), nn.MSELoss(), judge=explained_variance(y))


@HELD_OUT
def rounds_over_a_graph_without_activations(broken: bool) -> Case:
    """GNN | 4303 | for layer in layers: x = layer(x, edges), with nothing between: three rounds of a linear map.
    | missing-activation | layers.{0..2} layers.{0..2}.neighbour layers.{0..2}.own | add-activation"""

    # Applies an activation between layers, or none.
    def forward_rounds(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x, self.edges)
            x = x if broken else torch.relu(x)
        return self.layers[-1](x, self.edges)

    x, edges, _ = draw.communities(120)
    return Case(
        (x, (x[:, 0] * x[:, 1] > 0).long()),
        variant("Rounds", nets.GraphNet(edges, width=32, depth=3), forward=forward_rounds),
        "cross_entropy",
        judge_of=accuracy,
    )


@HELD_OUT
def twins_of_linear_layers(broken: bool) -> Case:
    """siamese | 4304 | An encoder of three linear layers in a row; nobody sees it, for distances are not linear
    anyway.
    | missing-activation | encoder encoder.{0..2} | add-activation"""

    class Twins(nn.Module):
        """Are both points of one kind? Kinds are opposite quadrants."""

        def __init__(self) -> None:
            super().__init__()
            layers = nets.mlp(6, 48, 48, 2)
            self.encoder = nn.Sequential(*layers[::2]) if broken else layers

        def forward(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
            return self.encoder(pairs[:, 0]), self.encoder(pairs[:, 1])

    pairs = torch.randn(128, 2, 6)
    kind = pairs[:, :, 0] * pairs[:, :, 1] > 0
    same = (kind[:, 0] == kind[:, 1]).float()

    def judge(output: tuple[Tensor, Tensor]) -> float:
        return ((F.pairwise_distance(*output) < 1) == (same > 0.5)).float().mean().item()

    return Case((pairs, same), Twins(), contrastive_loss, judge=judge)


@HELD_OUT
def softmax_over_channels_in_each_layer(broken: bool) -> Case:
    """CNN | 4305 | nn.Softmax2d between convolutions, chosen from the list of activations for its name.
    | activation-unsuitable normalizer-wrong-axis saturated-units vanishing-gradient vanishing-signal | {0..5} |
    change-activation"""
    layers: list[nn.Module] = []
    for inner, stride in ((1, 2), (12, 1), (12, 2)):
        conv = nn.Conv2d(inner, 12, 3, stride, 1)
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        layers += [conv, nn.Softmax2d() if broken else nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(192, 8))
    return Case(draw.blob_images(64, classes=8), model, nn.CrossEntropyLoss())


class Exponential(nn.Module):  # exp(x).
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


@HELD_OUT
def minus_between_two_rectifiers(broken: bool) -> Case:
    """CNN | 4309 | Half of a concatenated rectifier, relu(-x), was put behind the other half: relu(-relu(x)) is 0.
    | dead-units output-constant vanishing-signal | features features.{0..4} | change-activation
    remove-final-activation reset-bias"""

    class Negative(nn.Module):
        """Changes the sign."""

        def forward(self, x: Tensor) -> Tensor:
            return -x

    class Net(nn.Module):
        """Two convolutions and a head."""

        def __init__(self) -> None:
            super().__init__()
            inner = [Negative(), nn.ReLU()] if broken else [nn.Identity(), nn.Identity()]
            self.features = nn.Sequential(
                nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), *inner, nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()
            )
            self.head = nn.Linear(128, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.features(x).flatten(1))

    return Case(model=Net(), data=draw.blob_images(48), loss=nn.CrossEntropyLoss())


@HELD_OUT
def nearly_everything_dropped_behind_the_embedding(broken: bool) -> Case:
    """GPT | 4311 | A rate of 95 % from a sweep over rates that was read as percentages to keep.
    | dropout-too-strong | drop | lower-dropout"""

    class Dropping(nets.GPT):
        """Drops embeddings."""

        def __init__(self) -> None:
            super().__init__(depth=1)
            self.drop = nn.Dropout(0.95 if broken else 0.05)

        def embed(self, ids: Tensor) -> Tensor:
            return self.drop(super().embed(ids))

    return Case(model=Dropping(), data=draw.text(), loss=over_tokens)


@HELD_OUT
def one_number_per_user_and_item(broken: bool) -> Case:
    """recommender | 4314 | nn.Embedding(n, 1): users are put on a line, though tastes have several directions.
    | bottleneck-too-narrow | items users | widen-layer"""

    class Factors(nn.Module):
        """The dot product of two vectors."""

        def __init__(self) -> None:
            super().__init__()
            width = 1 if broken else 8
            self.users, self.items = nn.Embedding(40, width), nn.Embedding(30, width)
            for table in (self.users, self.items):
                nn.init.normal_(table.weight, std=0.4)

        def forward(self, pairs: Tensor) -> Tensor:
            return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)

    return Case(model=Factors(), data=draw.ratings(), loss="mse")


@HELD_OUT
def one_channel_before_the_classes_of_pixels(broken: bool) -> Case:
    """segmentation | 4315 | out_channels=1 in the layer before the last, left from a binary task: six classes on one
    line behind a ReLU.
    | bottleneck-too-narrow dead-units | 2 3 4 | widen-layer"""
    x, _ = rarer.shapes(16)
    rows = torch.arange(16)[:, None] // 8
    columns = torch.arange(16)[None, :] // 6
    y = (3 * rows + columns).expand(16, -1, -1).clone()
    places = torch.stack(torch.meshgrid(torch.linspace(-1.5, 1.5, 16), torch.linspace(-1.5, 1.5, 16), indexing="ij"))
    x = torch.cat([x, places.expand(16, -1, -1, -1)], dim=1)
    narrow = 1 if broken else 12
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, narrow, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(narrow, 6, 1),
    )
    return Case((x, y), model, nn.CrossEntropyLoss())


@HELD_OUT
def shift_that_switches_the_pooler_off(broken: bool) -> Case:
    """BERT | 4316 | A pooler with ReLU whose bias was loaded from a file of thresholds with the other sign.
    | dead-units bias-holds-units-off | feed feed.{0..2} | change-activation initialise reset-bias restore-weights"""

    class Pooled(nets.SentenceEncoder):
        """Applies a small network to the mean."""

        def __init__(self) -> None:
            super().__init__(depth=1)
            self.feed = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
            if broken:
                nn.init.constant_(self.feed[0].bias, -6.0)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
            return self.feed(self.encoder(self.norm(x)).amax(1))

    ids, y = draw.sentences(64)
    ids = torch.where((ids == 7) & (y == 1)[:, None], torch.full_like(ids, 9), ids)
    return Case((ids, y), Pooled(), nn.CrossEntropyLoss())


@HELD_OUT
def decoder_killed_by_one_large_step(broken: bool) -> Case:
    """VAE | 4317 | After one step with a rate of 3 every unit of the decoder is 0 for every code.
    | dead-units bias-holds-units-off condition-switched-off output-constant vanishing-gradient | decoder
    decoder.{0,1} | change-activation initialise lower-learning-rate reset-bias restore-weights"""
    images, _ = draw.blob_images(64, classes=8)
    x = (images > 0.5).float().flatten(1)
    model = nets.VAE()
    if broken:
        model.decoder[0].bias.data -= 40.0

    def judge(output: tuple[Tensor, Tensor, Tensor]) -> float:
        return -evidence_loss(output, x).item()

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Case((x, x), model, evidence_loss, judge=judge, optimizer=optimizer)


@HELD_OUT
def hard_sigmoids_far_outside_of_their_slope(broken: bool) -> Case:
    """U-Net | 4318 | nn.Hardsigmoid behind convolutions whose outputs reach a hundred: flat on both sides, with no
    gradient at all.
    | saturated-units activation-unsuitable vanishing-gradient | {0..5} | change-activation initialise rescale-layer
    scale-inputs"""
    x, mask = rarer.shapes(16)
    layers: list[nn.Module] = []
    for inner in (1, 8, 8):
        conv = nn.Conv2d(inner, 8, 3, padding=1)
        if broken:
            nn.init.normal_(conv.weight, std=60.0)
        layers += [conv, nn.Hardsigmoid()] if broken else [conv, nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(8, 1, 3, padding=1))
    return Case((x, mask), model, nn.BCEWithLogitsLoss(), judge_of=overlap_with)


@HELD_OUT
def lstm_drawn_between_zero_and_one(broken: bool) -> Case:
    """LSTM | 4204 | nn.init.uniform_(weight) draws from 0 to 1, not around 0: all gates saturate at one.
    | saturated-units exploding-gradient layer-scale-stands-out output-constant recurrent-weights-explode |
    recurrent recurrent.weight_hh_l0 recurrent.weight_ih_l0 | gated-recurrence initialise rescale-layer"""
    x, y = draw.waves(60)
    model = nets.SequenceClassifier(nn.LSTM(3, 32, batch_first=True), 3)
    for name, weight in model.recurrent.named_parameters():
        if broken and "weight" in name:
            nn.init.uniform_(weight)
    return Case((x, y), model, nn.CrossEntropyLoss())


@HELD_OUT
def router_that_has_decided_already(broken: bool) -> Case:
    """mixture of experts | 4221 | The logits of a router are a hundred times too large: each row has one expert, and
    the router no gradient.
    | saturated-units attention-saturated layer-scale-stands-out | router | initialise rescale-layer scale-attention
    scale-outputs"""

    class Mixture(nn.Module):
        """Four linear experts, weighed by a softmax."""

        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(4, 4)
            self.experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(4))
            if broken:
                self.router.weight.data *= 300

        def forward(self, x: Tensor) -> Tensor:
            answers = torch.cat([expert(x) for expert in self.experts], dim=1)
            return (self.router(x).softmax(1) * answers).sum(1, keepdim=True)

    x = torch.randn(192, 4)
    return Case((x, rarer.standardise(x[:, :1].abs() + 0.3 * x[:, 1:2])), Mixture(), "mse")


# Rows of a table, packed.
# fmt: off
HELD_OUT("""returns-added-up-over-the-samples | time series | 4602 | torch.cumsum(returns, dim=0): prices are added up
    from series to series, not from day to day. | samples-mixed | | fix-axis""",
    lambda broken: given(torch.randn(96, 20), lambda x: Case((x, (x.cumsum(1).amax(1) > 3.5).long()),
    nets.made("Prices", lambda self, returns: self.layers(returns.cumsum(0 if broken else 1) / 4),
    layers=nets.mlp(20, 32, 32, 2)), nn.CrossEntropyLoss())))
HELD_OUT("""goal-of-an-agent-in-the-wrong-unit | reinforcement learning | 4615 | The goal is converted from metres to
    thousands of kilometres before it is joined to the state.
    | condition-switched-off branch-dominates | | rescale-layer restore-condition scale-branch""",
    lambda broken: given((torch.randn(160, 2), torch.randn(160, 2)), lambda state, goal: given(2 * (goal[:,
    0] > state[:, 0]).long() + (goal[:, 1] > state[:, 1]).long(), lambda y: Case(({"state": state, "goal": goal}, y),
    nets.made("Agent", lambda self, state, goal: self.layers(torch.cat([state, self.factor * goal], dim=1)),
    factor=1e-6 if broken else 1.0, layers=nets.mlp(4, 48, 48, 4)), nn.CrossEntropyLoss(), judge=accuracy(y)))))
HELD_OUT("""softmax-over-the-only-score-of-a-review | GRU | 4108 | nn.Softmax(dim=1) over one score gives 1 for each
    review (Stack Overflow: the loss never changes).
    | output-constant activation-before-loss loss-gradient-zero normalizer-wrong-axis saturated-units | head last |
    change-loss change-output-activation fix-axis more-outputs remove-final-activation""",
    lambda broken: given(draw.sentences(64, length=8), lambda ids, y: Case((torch.where((ids == 7) & (y == 1)[:, None],
    torch.full_like(ids, 9), ids), y.float()[:, None]), nets.made("Mood",
    lambda self, ids: self.last(self.head(self.recurrent(self.words(ids))[0].amax(1))), words=nn.Embedding(50, 16),
    recurrent=nn.GRU(16, 24, batch_first=True), head=nn.Linear(24, 1),
    last=nn.Softmax(dim=1) if broken else nn.Sigmoid()), nn.BCELoss(), judge=binary_accuracy(y, threshold=0.5))))
HELD_OUT("""values-of-actions-by-linear-layers-alone | reinforcement learning | 4301 | The example of a Q-network was
    shortened and its activations went with the comments (DeepCrime: removal).
    | missing-activation | {0..3} | add-activation""",
    lambda broken: given(nets.mlp(4, 64, 64, 64, 3), lambda layers: given(nn.Sequential(*layers[::2]) if broken else
    layers, lambda model: Case(rarer.observations(), model, nn.MSELoss()))))
HELD_OUT("""tower-over-users-and-items-without-activations | recommender | 4302 | A tower of linear layers over both
    vectors: users and items are added, and never meet. | missing-activation | tower tower.{0..2} | add-activation""",
    lambda: given(nets.Recommender(), lambda model: Case(draw.ratings(), model, nn.MSELoss())),
    plant=lambda model: setattr(model, "tower", nn.Sequential(*model.tower[::2])))
HELD_OUT("""exponential-units-in-two-layers | MLP | 4306 | Keras' activation "exponential" ported as torch.exp in two
    hidden layers (DeepCrime: change of activation).
    | activation-unsuitable exploding-gradient exploding-signal not-finite | {0..4} | change-activation""",
    lambda broken: Case(draw.table(160), nets.mlp(12, 32, 32, 3, activation=Exponential if broken else nn.ReLU),
    nn.CrossEntropyLoss()))
HELD_OUT("""sigmoids-in-ten-layers-of-an-autoencoder | autoencoder | 4307 | Sigmoids between all layers of a deep
    autoencoder, as in lecture notes of 1990. | activation-unsuitable output-constant saturated-units vanishing-gradient
    vanishing-signal | {0..10} | change-activation""",
    lambda broken: given(draw.blob_images(64), lambda images, _: given(images.flatten(1),
    lambda x: given((256, 64, 32, 16, 32, 64, 256), lambda sizes: Case((x, x), nets.mlp(*sizes,
    activation=nn.Sigmoid if broken else nn.ReLU), "mse")))))
HELD_OUT("""biases-of-minus-ten-in-a-policy | reinforcement learning | 4308 | constant_(bias, -10) of a trick for rare
    actions, applied to the hidden layers instead of the last one.
    | bias-holds-units-off dead-units output-constant | {0..3} | change-activation initialise reset-bias""",
    lambda broken: given(rarer.observations(), lambda state, returns: Case((state, returns.argmax(1)),
    over(lambda model: (model[0], model[2]), lambda layer: nn.init.constant_(layer.bias,
    -10.0 if broken else 0.0))(nets.mlp(4, 32, 32, 3)), "cross_entropy")))
HELD_OUT("""ninety-seven-percent-of-the-words-dropped | LSTM | 4310 | The share of features to keep, 0.97, handed to
    nn.Dropout behind an embedding. | dropout-too-strong | drop | lower-dropout""",
    lambda broken: Case(draw.sentences(64, length=10), nets.made("Reader",
    lambda self, ids: self.head(self.recurrent(self.drop(self.words(ids)))[0].amax(1)), words=nn.Embedding(50, 16),
    drop=nn.Dropout(0.97 if broken else 0.03), recurrent=nn.LSTM(16, 24, batch_first=True), head=nn.Linear(24, 2)),
    nn.CrossEntropyLoss()))
HELD_OUT("""forecasts-dropped-at-random | time series | 4312 | Dropout behind the last layer of a regression: half of
    the forecasts are 0, the others doubled. | dropout-misplaced | last | lower-dropout""",
    lambda broken: given(rarer.Forecaster(nn.GRU(1, 24, batch_first=True), last=nn.Dropout(0.5) if broken else None),
    lambda model: Case(rarer.demand(), model, nn.MSELoss())))
HELD_OUT("""one-unit-for-all-of-the-past | LSTM | 4313 | nn.LSTM(features, 1), because the answer is one number per
    class and "hidden_size is the size of the output". | bottleneck-too-narrow | head recurrent | widen-layer""",
    lambda broken: given(nets.SequenceClassifier(nn.LSTM(8, 1 if broken else 24, batch_first=True), 8),
    lambda model: Case(draw.remembered_series(64, steps=15, features=8), model, nn.CrossEntropyLoss())))
