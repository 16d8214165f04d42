"""Faults for scoring alone: normalizers numerics, optimizers."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import HELD_OUT, Case, given
from ...plants import variant
from ...training import accuracy, over_tokens, overlap_with, train
from . import rarer


@HELD_OUT
def documents_without_a_single_word(broken: bool) -> Case:
    """BERT | 4609 | An empty document is padding throughout: its softmax runs over nothing, and NaN enters the loss of
    all.
    | not-finite attention-mask-wrong | | check-data clean-data fix-mask guard-domain mask-padding"""

    # Attends from a learned query to the words that are no padding.
    def reader(self, ids: Tensor) -> Tensor:
        words = self.words(ids)
        hidden = ids == 0
        if not broken:
            hidden = hidden & (hidden.sum(1, keepdim=True) < ids.shape[1])
        scores = (words @ self.query / 4).masked_fill(hidden, -torch.inf)
        return self.head((scores.softmax(1)[:, :, None] * words).sum(1))

    y = torch.arange(64) % 2
    ids = torch.randint(10, 40, (64, 12)) * (torch.arange(12) < torch.randint(4, 12, (64, 1)))
    ids[:, 0] = 7 + y
    ids[::16] = 0
    net = nets.made("Reader", reader)
    net.words, net.query = nn.Embedding(40, 16), nn.Parameter(torch.randn(16))
    net.head = nn.Linear(16, 2)
    return Case((ids, y), net, nn.CrossEntropyLoss())


@HELD_OUT
def deviation_over_a_single_channel(broken: bool) -> Case:
    """time series | 4501 | x.std(2) over the only channel of a series: the unbiased deviation of one value is NaN.
    | not-finite normalizer-too-few-samples | | fix-axis guard-domain larger-batch replace-normalizer"""

    class Scaled(rarer.Forecaster):
        """Divides by the deviation over channels, or over all that is there."""

        def forward(self, series: Tensor) -> Tensor:
            deviation = series.std(2, keepdim=True) if broken else series.std((1, 2), keepdim=True)
            return super().forward(series / (deviation + 1e-5))

    model = Scaled(nn.GRU(1, 24, batch_first=True))
    return Case(rarer.demand(), model, "mse")


@HELD_OUT
def roots_of_standardised_columns(broken: bool) -> Case:
    """MLP | 4502 | x ** 0.5 was written for areas; since the columns are standardised, half of them are negative.
    | not-finite | | guard-domain"""

    # Reads columns and their roots.
    def forward_of_roots(self, x: Tensor) -> Tensor:
        roots = x**0.5 if broken else x.abs() ** 0.5 * x.sign()
        return self.layers(torch.cat([x, roots], dim=1))

    x, y = draw.table()
    net = nets.made("Roots", forward_of_roots)
    net.layers = nets.mlp(24, 32, 3)
    return Case((x, y), net, nn.CrossEntropyLoss())


@HELD_OUT
def length_of_what_silence_is_projected_to(broken: bool) -> Case:
    """time series | 4503 | The root of a sum of squares, for steps that are silent: its slope at 0 is infinite, times
    0 that is NaN.
    | gradient-not-finite not-finite | | guard-domain"""

    # Projects a recording onto groups of filters, and reads the length of each group.
    def loudness(self, x: Tensor) -> Tensor:
        groups = self.filters(x.unflatten(1, (6, 10))).unflatten(2, (8, 4))
        return self.head((groups.square().sum(3) + (0.0 if broken else 1e-8)).sqrt().flatten(1))

    series, y = draw.waves(60, steps=60, features=1)
    x = series[:, :, 0] * (torch.arange(60) < torch.randint(30, 61, (60, 1)))
    net = nets.made("Loudness", loudness)
    net.filters, net.head = nn.Linear(10, 32, bias=False), nn.Linear(8 * 6, 3)
    return Case((x, y), net, nn.CrossEntropyLoss())


@HELD_OUT
def numbers_of_users_in_half_precision(broken: bool) -> Case:
    """recommender | 4504 | The whole batch is moved by .half(), the numbers of users too: above 4096 only each fourth
    is left.
    | precision | | raise-precision"""

    class Halved(nets.Recommender):
        """Reads numbers of users from 20 000 on."""

        def __init__(self) -> None:
            super().__init__(users=20100)

        def forward(self, pairs: Tensor) -> Tensor:
            return super().forward((pairs.half() if broken else pairs).long())

    pairs, rating = draw.ratings()
    return Case((pairs.float() + torch.tensor([20000.0, 0.0]), rating), Halved(), nn.MSELoss())


@HELD_OUT
def steps_that_bfloat16_rounds_away(broken: bool) -> Case:
    """CNN | 4505 | Weights cast to bfloat16 for training with no copy in full precision: steps below 0.4 % of a weight
    are lost.
    | precision learning-rate-too-small | | raise-learning-rate raise-precision"""
    x, y = draw.blob_images(64, classes=8)
    model = nets.mlp(256, 64, 64, 8)
    if broken:
        model, x = model.bfloat16(), x.bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    return Case((x, y), nn.Sequential(nn.Flatten(), *model), "cross_entropy", optimizer=optimizer)


@HELD_OUT
def dropout_of_a_graph_network_never_off(broken: bool) -> Case:
    """GNN | 4506 | F.dropout(x, p) is on unless it is told self.training: a trained graph network answers at random in
    eval mode.
    | wrong-mode | | switch-mode"""

    # Drops hidden values.
    def forward_dropping(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.layers[0](x, self.edges))
        hidden = F.dropout(hidden, 0.7, training=True if broken else self.training)
        return self.layers[1](hidden, self.edges)

    x, edges, y = draw.communities(classes=8)
    model = variant("Dropping", nets.GraphNet(edges, width=12, classes=8), forward=forward_dropping)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case((x, y), model, "cross_entropy", train=False, judge_of=accuracy)


@HELD_OUT
def dropout_left_on_when_served(broken: bool) -> Case:
    """MLP | 4507 | Dropout was switched on to estimate an uncertainty, and the served copy was taken before it was off
    again.
    | wrong-mode | drop | switch-mode"""
    x, y = draw.table()
    model = nets.made(
        "Net",
        lambda self, x: self.head(self.drop(self.body(x))),
        body=nn.Sequential(nn.Linear(12, 64), nn.ReLU()),
        drop=nn.Dropout(0.6),
        head=nn.Linear(64, 3),
    )
    train(model, x, y, F.cross_entropy, steps=250)
    case = Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), train=False)
    model.drop.train(broken)
    return case


@HELD_OUT
def statistics_that_follow_too_slowly(broken: bool) -> Case:
    """CNN | 4508 | momentum=0.001 in every batch norm, taken over from another paper, and fifty steps of training.
    | running-statistics-wrong | features.{1,4,8} | refresh-statistics"""
    x, y = draw.blob_images(40)
    x = 2 * x + 3 * (torch.arange(16) > 7)[:, None]
    model = nets.ConvNet(width=8, depth=3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.001 if broken else 0.1
    return Case((x, y), model, nn.CrossEntropyLoss(), train=False, steps=50)


@HELD_OUT
def width_of_the_layer_given_as_eps(broken: bool) -> Case:
    """MLP | 4510 | nn.BatchNorm1d(64, 64): the second argument is eps, not the number of outputs.
    | eps-dominates vanishing-gradient vanishing-signal | 1 10 13 4 7 | lower-eps"""
    layers: list[nn.Module] = []
    for inner in (12, 32, 32, 32, 32):
        layers += [nn.Linear(inner, 32), nn.BatchNorm1d(32, 32 if broken else 1e-5), nn.Sigmoid()]
    return Case(draw.table(160), nn.Sequential(*layers, nn.Linear(32, 3)), nn.CrossEntropyLoss())


@HELD_OUT
def windows_normalised_and_never_put_back(broken: bool) -> Case:
    """time series | 4511 | Each window is standardised by itself, as RevIN does, but mean and deviation are not put
    back at the end.
    | normalizer-erases-signal | | replace-normalizer"""

    class Reversible(rarer.Forecaster):
        """Forecasts in units of the window."""

        def forward(self, series: Tensor) -> Tensor:
            mean, deviation = series.mean(1), series.std(1) + 1e-4
            forecast = super().forward((series - mean[:, None]) / deviation[:, None])
            return forecast if broken else forecast * deviation + mean

    x, y = rarer.demand()
    level = 3 * torch.randn(64, 1)
    x, y = (x + level[:, None]) / 3, (y + level) / 3
    return Case((x, y), Reversible(nn.GRU(1, 24, batch_first=True)), "mse")


@HELD_OUT
def schedule_that_returns_the_rate_itself(broken: bool) -> Case:
    """ViT | 4515 | LambdaLR multiplies the rate by what the function returns; it returns 1e-3, and 1e-3 becomes 1e-6.
    | learning-rate-too-small | | raise-learning-rate"""
    model = nets.ViT(depth=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 3e-3 if broken else 1.0)
    return Case(draw.blob_images(48), model, "cross_entropy", optimizer=optimizer)


@HELD_OUT
def schedule_that_is_never_stepped(broken: bool) -> Case:
    """GRU | 4516 | A warm-up begins at 0 and rises with each scheduler.step(), which the loop does not call.
    | learning-rate-too-small | | raise-learning-rate"""
    model = nets.SequenceClassifier(nn.GRU(4, 24, batch_first=True), 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 1000 if broken else 1.0)
    return Case(draw.remembered_series(64, steps=15), model, nn.CrossEntropyLoss(), optimizer=optimizer)


# Rows of a table, packed.
# fmt: off
HELD_OUT("""served-in-degrees-of-fahrenheit | MLP | 4509 | Trained in Celsius behind a batch norm, served in Fahrenheit:
    the running mean belongs to other numbers. | running-statistics-wrong inputs-not-scaled one-input-column-dominates |
    0 | check-data refresh-statistics scale-inputs""",
    lambda broken: given(draw.table(columns=6), lambda x, y: given(12 + 7 * x,
    lambda celsius: Case((1.8 * celsius + 32 if broken else celsius, y), train(nn.Sequential(nn.BatchNorm1d(6),
    *nets.mlp(6, 32, 32, 3)), celsius, y, F.cross_entropy, steps=120), "cross_entropy", train=False))))
HELD_OUT("""rate-of-adam-given-to-adadelta | CNN | 4517 | Adadelta with lr=0.001, the value of Keras: its unit is 1, and
    nothing is learnt (Stack Overflow). | learning-rate-too-small | | raise-learning-rate""",
    lambda broken: given(nets.ConvNet(norm=False, depth=3), lambda model: Case(draw.blob_images(48), model,
    nn.CrossEntropyLoss(), optimizer=partial(torch.optim.Adadelta, lr=1e-3 if broken else 1.0))))
HELD_OUT("""rate-of-twenty-without-its-clipping | LSTM | 4518 | The example of a word language model clips gradients at
    0.25 for its rate of 20; here nothing clips them.
    | learning-rate-too-large | | clip-gradients lower-learning-rate""",
    lambda broken: given(nets.made("Words", lambda self, ids: self.head(self.recurrent(self.words(ids))[0]),
    words=nn.Embedding(20, 24), recurrent=nn.LSTM(24, 32, batch_first=True), head=nn.Linear(32, 20)),
    lambda model: Case(draw.text(vocabulary=20, length=16), model, over_tokens, optimizer=partial(torch.optim.SGD,
    lr=20.0 if broken else 0.5, momentum=0.9))))
HELD_OUT("""adamw-with-three-tenths | BERT | 4519 | AdamW(lr=0.3), a slip for 3e-4, on a transformer: after one step
    each weight is 0.3 away. | learning-rate-too-large | | lower-learning-rate""",
    lambda broken: given(nets.SentenceEncoder(depth=1), lambda model: given(torch.optim.AdamW(model.parameters(),
    lr=0.3 if broken else 3e-3), lambda optimizer: given(draw.sentences(64),
    lambda ids, y: Case((torch.where((ids == 7) & (y == 1)[:, None], torch.full_like(ids, 9), ids), y), model,
    nn.CrossEntropyLoss(), optimizer=optimizer)))))
HELD_OUT("""rmsprop-of-a-half-for-a-value-network | reinforcement learning | 4520 | RMSprop with the discount's
    neighbour in the configuration file: lr=0.5. | learning-rate-too-large | | lower-learning-rate""",
    lambda broken: given(nets.mlp(4, 64, 64, 3), lambda model: Case(rarer.observations(), model, nn.MSELoss(),
    optimizer=partial(torch.optim.RMSprop, lr=0.5 if broken else 1e-3))))
HELD_OUT("""momentum-of-999-in-a-thousand | U-Net | 4521 | SGD(momentum=0.999) adds up a thousand gradients; one nine
    too many. | momentum-too-large | | lower-learning-rate lower-momentum""",
    lambda broken: given(rarer.shapes(12), lambda x, mask: Case((x, mask), nets.UNet(width=4), nn.BCEWithLogitsLoss(),
    judge=overlap_with(mask), optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.999 if broken else 0.9))))
HELD_OUT("""decay-of-a-half-on-all-vectors | recommender | 4522 | weight_decay=0.5 in SGD, the strength of the
    regularisation in a paper that divides it by the ratings. | weight-decay-too-strong | | lower-weight-decay""",
    lambda broken: given(nets.Recommender(), lambda model: Case(draw.ratings(), model, "mse",
    optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.5 if broken else 0.0))))
HELD_OUT("""decay-of-adamw-at-thirty | GRU | 4523 | AdamW(weight_decay=30): each step takes a tenth of every weight
    away. | weight-decay-too-strong | | lower-weight-decay""",
    lambda broken: given(nets.SequenceClassifier(nn.GRU(4, 24, batch_first=True), 4),
    lambda model: Case(draw.remembered_series(64, steps=12), model, nn.CrossEntropyLoss(),
    optimizer=partial(torch.optim.AdamW, lr=3e-3, weight_decay=30.0 if broken else 0.01))))
HELD_OUT("""plain-descent-with-a-rate-for-fine-tuning | GNN | 4524 | 2e-5, which suits AdamW on a pretrained language
    model, given to plain descent on a fresh graph network. | learning-rate-too-small | | raise-learning-rate""",
    lambda broken: given(draw.communities(), lambda x, edges, y: Case((x, y), nets.GraphNet(edges), "cross_entropy",
    optimizer=partial(torch.optim.SGD, lr=2e-5 if broken else 0.2), judge_of=accuracy)))
HELD_OUT("""descent-with-a-rate-of-five-over-a-recurrence | time series | 4525 | SGD(lr=5) on a GRU: a rate for
    normalised gradients of another trainer. | learning-rate-too-large | | clip-gradients lower-learning-rate""",
    lambda broken: given(rarer.Forecaster(nn.GRU(1, 24, batch_first=True)), lambda model: Case(rarer.demand(), model,
    nn.MSELoss(), optimizer=partial(torch.optim.SGD, lr=5.0 if broken else 0.1))))
