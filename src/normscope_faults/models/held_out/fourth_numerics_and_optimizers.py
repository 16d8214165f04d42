"""Faults of the fourth part in normalizers, modes, number formats and optimizers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from .. import parts
from . import fourth_parts

FAULTS: list[Fault] = []


@fault(
    FAULTS,
    "time series",
    causes="not-finite normalizer-too-few-samples",
    remedies="guard-domain fix-axis replace-normalizer larger-batch",
)
def deviation_over_a_single_channel(planted: bool) -> Case:
    """x.std(2) over the only channel of a series: the unbiased deviation of one value is NaN."""
    torch.manual_seed(4501)

    class Scaled(fourth_parts.Forecaster):
        """Divides by the deviation over channels, or over all that is there."""

        def forward(self, series: Tensor) -> Tensor:
            deviation = series.std(2, keepdim=True) if planted else series.std((1, 2), keepdim=True)
            return super().forward(series / (deviation + 1e-5))

    model = Scaled(nn.GRU(1, 24, batch_first=True))
    return Case(model=model, data=fourth_parts.demand(), loss="mse")


@fault(FAULTS, "MLP", causes="not-finite", remedies="guard-domain")
def roots_of_standardised_columns(planted: bool) -> Case:
    """x ** 0.5 was written for areas; since the columns are standardised, half of them are negative."""
    torch.manual_seed(4502)

    class Roots(nn.Module):
        """Reads columns and their roots."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = parts.mlp(24, 32, 3)

        def forward(self, x: Tensor) -> Tensor:
            roots = x**0.5 if planted else x.abs() ** 0.5 * x.sign()
            return self.layers(torch.cat([x, roots], dim=1))

    x, y = parts.table()
    return Case(model=Roots(), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(FAULTS, "time series", causes="gradient-not-finite not-finite", remedies="guard-domain")
def length_of_what_silence_is_projected_to(planted: bool) -> Case:
    """The root of a sum of squares, for steps that are silent: its slope at 0 is infinite, times 0 that is NaN."""
    torch.manual_seed(4503)

    class Loudness(nn.Module):
        """Projects a recording onto groups of filters, and reads the length of each group."""

        def __init__(self) -> None:
            super().__init__()
            self.filters, self.head = nn.Linear(10, 32, bias=False), nn.Linear(8 * 6, 3)

        def forward(self, x: Tensor) -> Tensor:
            groups = self.filters(x.unflatten(1, (6, 10))).unflatten(2, (8, 4))
            return self.head((groups.square().sum(3) + (0.0 if planted else 1e-8)).sqrt().flatten(1))

    series, y = parts.waves(60, steps=60, features=1)
    x = series[:, :, 0] * (torch.arange(60) < torch.randint(30, 61, (60, 1)))
    return Case(model=Loudness(), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(FAULTS, "recommender", causes="precision", remedies="raise-precision")
def numbers_of_users_in_half_precision(planted: bool) -> Case:
    """The whole batch is moved by .half(), the numbers of users too: above 4096 only each fourth is left."""
    torch.manual_seed(4504)

    class Halved(parts.Recommender):
        """Reads numbers of users from 20 000 on."""

        def __init__(self) -> None:
            super().__init__(users=20100)

        def forward(self, pairs: Tensor) -> Tensor:
            return super().forward((pairs.half() if planted else pairs).long())

    pairs, rating = parts.ratings()
    return Case(model=Halved(), data=(pairs.float() + torch.tensor([20000.0, 0.0]), rating), loss=nn.MSELoss())


@fault(FAULTS, "CNN", causes="precision learning-rate-too-small", remedies="raise-precision raise-learning-rate")
def steps_that_bfloat16_rounds_away(planted: bool) -> Case:
    """Weights cast to bfloat16 for training with no copy in full precision: steps below 0.4 % of a weight are lost."""
    torch.manual_seed(4505)
    x, y = parts.blob_images(64, classes=8)
    model = parts.mlp(256, 64, 64, 8)
    if planted:
        model, x = model.bfloat16(), x.bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    return Case(model=nn.Sequential(nn.Flatten(), *model), data=(x, y), loss="cross_entropy", optimizer=optimizer)


@fault(FAULTS, "GNN", causes="wrong-mode", remedies="switch-mode")
def dropout_of_a_graph_network_never_off(planted: bool) -> Case:
    """F.dropout(x, p) is on unless it is told self.training: a trained graph network answers at random in eval mode."""
    torch.manual_seed(4506)

    class Dropping(parts.GraphNet):
        """Drops hidden values."""

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.layers[0](x, self.edges))
            hidden = F.dropout(hidden, 0.7, training=True if planted else self.training)
            return self.layers[1](hidden, self.edges)

    x, edges, y = parts.communities(classes=8)
    model = Dropping(edges, width=12, classes=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False, judge=parts.accuracy(y))


@fault(FAULTS, "MLP", causes="wrong-mode", remedies="switch-mode", layers="drop")
def dropout_left_on_when_served(planted: bool) -> Case:
    """Dropout was switched on to estimate an uncertainty, and the served copy was taken before it was off again."""
    torch.manual_seed(4507)

    class Net(nn.Module):
        """Two layers with dropout between them."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.drop, self.head = (
                nn.Sequential(nn.Linear(12, 64), nn.ReLU()),
                nn.Dropout(0.6),
                nn.Linear(64, 3),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.drop(self.body(x)))

    x, y = parts.table()
    model = Net()
    parts.train(model, x, y, F.cross_entropy, steps=250)
    case = Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), train=False)
    model.drop.train(planted)
    return case


@fault(
    FAULTS,
    "CNN",
    causes="running-statistics-wrong",
    remedies="refresh-statistics",
    layers="features.1 features.4 features.8",
)
def statistics_that_follow_too_slowly(planted: bool) -> Case:
    """momentum=0.001 in every batch norm, taken over from another paper, and fifty steps of training."""
    torch.manual_seed(4508)
    x, y = parts.blob_images(40)
    x = 2 * x + 3 * (torch.arange(16) > 7)[:, None]
    model = parts.ConvNet(width=8, depth=3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.001 if planted else 0.1
    parts.train(model, x, y, F.cross_entropy, steps=50)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), train=False)


@fault(
    FAULTS,
    "MLP",
    causes="running-statistics-wrong inputs-not-scaled one-input-column-dominates",
    remedies="scale-inputs refresh-statistics check-data",
    layers="0 0.running_mean 0.running_var",
)
def served_in_degrees_of_fahrenheit(planted: bool) -> Case:
    """Trained in Celsius behind a batch norm, served in Fahrenheit: the running mean belongs to other numbers."""
    torch.manual_seed(4509)
    x, y = parts.table(columns=6)
    celsius = 12 + 7 * x
    model = nn.Sequential(nn.BatchNorm1d(6), *parts.mlp(6, 32, 32, 3))
    parts.train(model, celsius, y, F.cross_entropy, steps=120)
    return Case(model=model, data=(1.8 * celsius + 32 if planted else celsius, y), loss="cross_entropy", train=False)


@fault(
    FAULTS,
    "MLP",
    causes="eps-dominates vanishing-signal vanishing-gradient",
    remedies="lower-eps",
    layers="1 4 7 10 13",
)
def width_of_the_layer_given_as_eps(planted: bool) -> Case:
    """nn.BatchNorm1d(64, 64): the second argument is eps, not the number of outputs."""
    torch.manual_seed(4510)
    layers: list[nn.Module] = []
    for inner in (12, 32, 32, 32, 32):
        layers += [nn.Linear(inner, 32), nn.BatchNorm1d(32, 32 if planted else 1e-5), nn.Sigmoid()]
    x, y = parts.table(160)
    model = nn.Sequential(*layers, nn.Linear(32, 3))
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "time series",
    causes="normalizer-erases-signal",
    remedies="replace-normalizer",
)
def windows_normalised_and_never_put_back(planted: bool) -> Case:
    """Each window is standardised by itself, as RevIN does, but mean and deviation are not put back at the end."""
    torch.manual_seed(4511)

    class Reversible(fourth_parts.Forecaster):
        """Forecasts in units of the window."""

        def forward(self, series: Tensor) -> Tensor:
            mean, deviation = series.mean(1), series.std(1) + 1e-4
            forecast = super().forward((series - mean[:, None]) / deviation[:, None])
            return forecast if planted else forecast * deviation + mean

    x, y = fourth_parts.demand()
    level = 3 * torch.randn(64, 1)
    x, y = (x + level[:, None]) / 3, (y + level) / 3
    return Case(model=Reversible(nn.GRU(1, 24, batch_first=True)), data=(x, y), loss="mse")


@fault(FAULTS, "CNN", causes="not-in-optimizer", remedies="add-to-optimizer", layers="backbone backbone.0 backbone.2")
def optimizer_made_while_the_backbone_was_frozen(planted: bool) -> Case:
    """The optimizer holds what required a gradient when it was made; the backbone was unfrozen after that."""
    torch.manual_seed(4512)
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 1, 3, 2, 1), nn.ReLU())
    model = nn.Sequential()
    model.add_module("backbone", backbone)
    model.add_module("flatten", nn.Flatten())
    model.add_module("head", nn.Linear(16, 8))
    backbone.requires_grad_(not planted)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    backbone.requires_grad_(True)
    x, y = parts.blob_images(64, classes=8)
    x = x + 0.5 * torch.randn_like(x)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), optimizer=optimizer)


@fault(
    FAULTS,
    "recommender",
    causes="not-in-optimizer",
    remedies="add-to-optimizer",
    layers="users items users.weight items.weight",
)
def vectors_left_for_an_optimizer_of_sparse_gradients(planted: bool) -> Case:
    """The embeddings were to get a SparseAdam of their own, which was never made."""
    torch.manual_seed(4513)
    model = parts.Recommender()
    model.tower = parts.mlp(16, 6, 1)
    held = model.tower.parameters() if planted else model.parameters()
    optimizer = torch.optim.Adam(held, lr=1e-2)
    return Case(model=model, data=parts.ratings(count=400), loss=nn.MSELoss(), optimizer=optimizer)


@fault(
    FAULTS,
    "VAE",
    causes="not-in-optimizer",
    remedies="add-to-optimizer",
    layers="decoder decoder.0 decoder.2 decoder.0.weight decoder.2.weight",
)
def decoder_missing_from_the_optimizer(planted: bool) -> Case:
    """Adam(model.encoder.parameters()) and both heads of the code: the decoder keeps the weights it was drawn with."""
    torch.manual_seed(4514)
    images, _ = parts.blob_images(64, classes=8)
    x = (images > 0.5).float().flatten(1)
    model = parts.VAE()
    held = [p for name, p in model.named_parameters() if not (planted and name.startswith("decoder"))]

    def judge(output: tuple[Tensor, Tensor, Tensor]) -> float:
        return -parts.evidence_loss(output, x).item()

    optimizer = torch.optim.Adam(held, lr=3e-3)
    return Case(model=model, data=(x, x), loss=parts.evidence_loss, judge=judge, optimizer=optimizer)


@fault(FAULTS, "ViT", causes="learning-rate-too-small", remedies="raise-learning-rate")
def schedule_that_returns_the_rate_itself(planted: bool) -> Case:
    """LambdaLR multiplies the rate by what the function returns; it returns 1e-3, and 1e-3 becomes 1e-6."""
    torch.manual_seed(4515)
    model = parts.ViT(depth=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 3e-3 if planted else 1.0)
    return Case(model=model, data=parts.blob_images(48), loss="cross_entropy", optimizer=optimizer)


@fault(FAULTS, "GRU", causes="learning-rate-too-small", remedies="raise-learning-rate")
def schedule_that_is_never_stepped(planted: bool) -> Case:
    """A warm-up begins at 0 and rises with each scheduler.step(), which the loop does not call."""
    torch.manual_seed(4516)
    model = parts.SequenceClassifier(nn.GRU(4, 24, batch_first=True), 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 1000 if planted else 1.0)
    data = parts.remembered_series(64, steps=15)
    return Case(model=model, data=data, loss=nn.CrossEntropyLoss(), optimizer=optimizer)


@fault(FAULTS, "CNN", causes="learning-rate-too-small", remedies="raise-learning-rate")
def rate_of_adam_given_to_adadelta(planted: bool) -> Case:
    """Adadelta with lr=0.001, the value of Keras: its unit is 1, and nothing is learnt (Stack Overflow)."""
    torch.manual_seed(4517)
    model = parts.ConvNet(norm=False, depth=3)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1e-3 if planted else 1.0)
    return Case(model=model, data=parts.blob_images(48), loss=nn.CrossEntropyLoss(), optimizer=optimizer)


@fault(
    FAULTS,
    "LSTM",
    causes="learning-rate-too-large",
    remedies="lower-learning-rate clip-gradients",
)
def rate_of_twenty_without_its_clipping(planted: bool) -> Case:
    """The example of a word language model clips gradients at 0.25 for its rate of 20; here nothing clips them."""
    torch.manual_seed(4518)

    class Words(nn.Module):
        """Words, an LSTM, the next word."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.recurrent = nn.Embedding(20, 24), nn.LSTM(24, 32, batch_first=True)
            self.head = nn.Linear(32, 20)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.recurrent(self.words(ids))[0])

    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0 if planted else 0.5, momentum=0.9)
    data = parts.text(vocabulary=20, length=16)
    return Case(model=model, data=data, loss=parts.over_tokens, optimizer=optimizer)


@fault(FAULTS, "BERT", causes="learning-rate-too-large", remedies="lower-learning-rate")
def adamw_with_three_tenths(planted: bool) -> Case:
    """AdamW(lr=0.3), a slip for 3e-4, on a transformer: after one step each weight is 0.3 away."""
    torch.manual_seed(4519)
    model = parts.SentenceEncoder(depth=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3 if planted else 3e-3)
    ids, y = parts.sentences(64)
    ids = torch.where((ids == 7) & (y == 1)[:, None], torch.full_like(ids, 9), ids)
    return Case(model=model, data=(ids, y), loss=nn.CrossEntropyLoss(), optimizer=optimizer)


@fault(FAULTS, "reinforcement learning", causes="learning-rate-too-large", remedies="lower-learning-rate")
def rmsprop_of_a_half_for_a_value_network(planted: bool) -> Case:
    """RMSprop with the discount's neighbour in the configuration file: lr=0.5."""
    torch.manual_seed(4520)
    model = parts.mlp(4, 64, 64, 3)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.5 if planted else 1e-3)
    return Case(model=model, data=fourth_parts.observations(), loss=nn.MSELoss(), optimizer=optimizer)


@fault(FAULTS, "U-Net", causes="momentum-too-large", remedies="lower-momentum lower-learning-rate")
def momentum_of_999_in_a_thousand(planted: bool) -> Case:
    """SGD(momentum=0.999) adds up a thousand gradients; one nine too many."""
    torch.manual_seed(4521)
    x, mask = fourth_parts.shapes(12)
    model = parts.UNet(width=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.999 if planted else 0.9)
    judge = parts.overlap_with(mask)
    return Case(model=model, data=(x, mask), loss=nn.BCEWithLogitsLoss(), judge=judge, optimizer=optimizer)


@fault(FAULTS, "recommender", causes="weight-decay-too-strong", remedies="lower-weight-decay")
def decay_of_a_half_on_all_vectors(planted: bool) -> Case:
    """weight_decay=0.5 in SGD, the strength of the regularisation in a paper that divides it by the ratings."""
    torch.manual_seed(4522)
    model = parts.Recommender()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.5 if planted else 0.0)
    return Case(model=model, data=parts.ratings(), loss="mse", optimizer=optimizer)


@fault(FAULTS, "GRU", causes="weight-decay-too-strong", remedies="lower-weight-decay")
def decay_of_adamw_at_thirty(planted: bool) -> Case:
    """AdamW(weight_decay=30): each step takes a tenth of every weight away."""
    torch.manual_seed(4523)
    model = parts.SequenceClassifier(nn.GRU(4, 24, batch_first=True), 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=30.0 if planted else 0.01)
    data = parts.remembered_series(64, steps=12)
    return Case(model=model, data=data, loss=nn.CrossEntropyLoss(), optimizer=optimizer)


@fault(FAULTS, "GNN", causes="learning-rate-too-small", remedies="raise-learning-rate")
def plain_descent_with_a_rate_for_fine_tuning(planted: bool) -> Case:
    """2e-5, which suits AdamW on a pretrained language model, given to plain descent on a fresh graph network."""
    torch.manual_seed(4524)
    x, edges, y = parts.communities()
    model = parts.GraphNet(edges)
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-5 if planted else 0.2)
    return Case(model=model, data=(x, y), loss="cross_entropy", optimizer=optimizer, judge=parts.accuracy(y))


@fault(FAULTS, "time series", causes="learning-rate-too-large", remedies="lower-learning-rate clip-gradients")
def descent_with_a_rate_of_five_over_a_recurrence(planted: bool) -> Case:
    """SGD(lr=5) on a GRU: a rate for normalised gradients of another trainer."""
    torch.manual_seed(4525)
    model = fourth_parts.Forecaster(nn.GRU(1, 24, batch_first=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0 if planted else 0.1)
    return Case(model=model, data=fourth_parts.demand(), loss=nn.MSELoss(), optimizer=optimizer)
