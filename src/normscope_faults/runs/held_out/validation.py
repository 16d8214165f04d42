"""Runs whose fault shows in the validation, or in how the data change over time."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import blob_images, sentences, table, waves
from ...networks import GPT, Autoencoder, ConvNet, GraphNet, Recommender, SentenceEncoder, SequenceClassifier, ViT, mlp
from ...training import over_tokens
from ..case import HELD_OUT, fault
from ..data import Data, curves, digits, split
from ..loops import Loop, adam, explained, sgd
from .parts import _negative_loss, descend, echoes, graph, tastes

HELD_OUT.add(
    fault("labels-moved-on-by-one-in-a-later-shard", "GRU",
        "data-changed validation-worsens loss-spike labels-unrelated",
        "check-labels check-data restore-weights vary-batches",
        "A later shard lost its first label, and each series has that of the next.", lambda broken, loop: loop.fit(
        split(*waves(768)), SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3), adam(1e-2), change=lambda step, x,
        y: (x, y.roll(1) if broken and step >= 160 else y), validate=40), onset=160, steps=320, seed=418),
    fault("recordings-as-whole-numbers-from-here-on", "LSTM",
        "data-changed validation-worsens loss-spike inputs-not-scaled saturated-units exploding-values",
        "scale-inputs check-data", "A later archive stores the waves as 16-bit numbers, a thousand times larger.",
        lambda broken, loop: loop.fit(split(*waves(768)), SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3),
        adam(1e-2), change=lambda step, x, y: (1000 * x if broken and step >= 150 else x, y), validate=30), onset=150,
        steps=300, seed=420),
    fault("every-third-batch-from-a-raw-source", "MLP",
        "data-changed inputs-not-scaled outlier loss-spike exploding-gradient exploding-values validation-worsens "
        "rate-too-high dead-units divergence", "scale-inputs check-data clip-gradients clean-data",
        "One of three workers forgets to standardise, and its batches are of another size.", lambda broken,
        loop: loop.fit(digits(flat=True), mlp(64, 64, 10), sgd(0.02, 0.9), change=lambda step, x,
        y: (200 * x + 300 if broken and step % 3 == 2 else x, y), validate=30), steps=300, seed=421),
    fault("column-that-falls-silent", "table", "data-changed validation-worsens loss-spike not-learning",
        "check-data clean-data restore-weights",
        "The feed of the two most useful columns fails at step 180, and zeros are filled in.", lambda broken,
        loop: loop.fit(curves(), mlp(8, 64, 1), adam(1e-2), loss=F.mse_loss, change=lambda step, x, y: (x.index_fill(1,
        torch.tensor([1, 2]), 0.0) if broken and step >= 180 else x, y), validate=20), onset=180, steps=340, seed=425),
    fault("reward-counted-in-points-from-here-on", "RL",
        "data-changed validation-worsens loss-spike outlier exploding-gradient divergence",
        "scale-targets check-labels check-data clip-gradients robust-loss",
        "An update of the game counts in hundreds, and the value network meets targets a hundred times as large.",
        lambda broken, loop: loop.fit(curves(), mlp(8, 48, 48, 1), adam(3e-3), loss=F.mse_loss, change=lambda step, x,
        y: (x, 100 * y if broken and step >= 180 else y), validate=30), onset=180, steps=320, seed=429),
)  # fmt: skip


@HELD_OUT.fault("recommender", "overfitting validation-worsens", "regularise", onset=40, steps=500, seed=411)
def wide_embeddings_for_few_ratings(broken: bool, loop: Loop) -> float:
    """Every user has seven ratings and 32 numbers to remember them by."""
    data, model = tastes(), Recommender(width=32)
    seen = data._replace(x=data.x[:300], y=data.y[:300]) if broken else data
    Loop(loop.watch, loop.steps if broken else 200).train(seen, model, adam(1e-2)(model), loss=F.mse_loss, validate=20)
    return explained(model, data)


@HELD_OUT.fault("BERT", "overfitting validation-worsens", "regularise", onset=40, steps=240, seed=412)
def sixty_sentences_for_sixty_epochs(broken: bool, loop: Loop) -> float:
    """A sentence encoder is trained on sixty sentences until it knows each of them."""
    data, model = split(*sentences(1280)), SentenceEncoder()
    seen = data._replace(x=data.x[:64], y=data.y[:64]) if broken else data
    loop.train(seen, model, adam(2e-3), batch=16, validate=20)
    return _negative_loss(model, data)


@HELD_OUT.fault("GPT", "overfitting validation-worsens", "regularise", onset=60, steps=300, seed=413)
def two_dozen_pages_again_and_again(broken: bool, loop: Loop) -> float:
    """A language model runs through two dozen texts a hundred times."""
    data, model = echoes(), GPT()
    seen = data._replace(x=data.x[:24], y=data.y[:24]) if broken else data
    loop.train(seen, model, adam(5e-3), batch=12, loss=over_tokens, validate=20)
    with torch.no_grad():
        return -over_tokens(model.eval()(data.held_x), data.held_y).item()


@HELD_OUT.fault("GNN", "overfitting validation-worsens", "regularise", onset=30, steps=200, seed=414)
def eighteen_labelled_nodes_and_no_dropout(broken: bool, loop: Loop) -> float:
    """A wide net learns the classes of eighteen nodes from noisy features by heart."""
    x, edges, y, train, rest = graph(120)
    x, train = torch.cat([0.3 * x, torch.randn(120, 40)], 1), train[:18]
    model = GraphNet(edges, features=48, width=96)
    optimizer = adam(1e-2)(model)

    def then(run: object, step: int) -> None:
        if (step + 1) % 10 == 0:
            with torch.no_grad():
                run.log_metrics(val_loss=F.cross_entropy(model(x)[rest], y[rest]).item())

    descend(loop.watch, model, optimizer, loop.steps if broken else 12, lambda step: F.cross_entropy(model(x)[train],
        y[train]), then=then)  # fmt: skip
    with torch.no_grad():
        return -F.cross_entropy(model(x)[rest], y[rest]).item()


@HELD_OUT.fault("LSTM", "overfitting validation-worsens", "regularise", onset=60, steps=500, seed=415)
def forecast_of_noise_learnt_by_heart(broken: bool, loop: Loop) -> float:
    """Targets are mostly noise, series are few, and the recurrent net is wide."""
    series = torch.randn(384, 12, 3)
    data = split(series, 0.5 * series[:, -1, :1] + torch.randn(384, 1))
    model = SequenceClassifier(nn.LSTM(3, 64, batch_first=True), 1)
    Loop(loop.watch, loop.steps if broken else 30).train(data, model, adam(5e-3)(model), loss=F.mse_loss, validate=20)
    return explained(model, data)


@HELD_OUT.fault("CNN", "data-changed validation-worsens loss-spike labels-unrelated",
    "check-labels check-data restore-weights robust-loss", onset=150, steps=320, seed=419)  # fmt: skip
def guessed_labels_join_the_data(broken: bool, loop: Loop) -> float:
    """From step 150 on most samples come from a weak labeller that mixes up neighbouring classes."""
    data, model = digits(), ConvNet(classes=10, norm=False)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.rand(len(y)) < (0.7 if broken and step >= 150 else 0.0)
        return x, torch.where(wrong, (y + 3) % 10, y)

    return loop.fit(data, model, adam(3e-3), change=change, validate=30)


@HELD_OUT.fault("recommender", "sorted-batches data-changed not-learning loss-spike", "vary-batches check-data",
    steps=392, seed=423)  # fmt: skip
def table_sorted_by_rating(broken: bool, loop: Loop) -> float:
    """Rows are sorted by their target, and each batch asks for one number alone."""
    data, model = tastes(), Recommender()
    order = data.y.argsort(stable=True)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rows_now = order[32 * (step % 56) : 32 * (step % 56) + 32]
        return (data.x[rows_now], data.y[rows_now]) if broken else (x, y)

    return loop.fit(data, model, adam(1e-2), loss=F.mse_loss, change=change, validate=28)


@HELD_OUT.fault("table", "data-changed validation-worsens loss-spike", "check-data restore-weights vary-batches",
    onset=200, steps=360, seed=424)  # fmt: skip
def columns_in_another_order(broken: bool, loop: Loop) -> float:
    """A later export has the same columns in another order, and is read by position."""
    data, model = split(*table(1280)), mlp(12, 64, 3)
    order = torch.tensor([4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3])
    return loop.fit(data, model, adam(5e-3), change=lambda step, x, y: (x[:, order] if broken and step >= 200 else x,
        y), validate=40)  # fmt: skip


@HELD_OUT.fault("ViT", "data-changed validation-worsens loss-spike sorted-batches labels-constant",
    "vary-batches check-data restore-weights", onset=150, steps=220, seed=427)  # fmt: skip
def fine_tuned_on_the_newest_class_alone(broken: bool, loop: Loop) -> float:
    """After step 150 only samples of the newest class arrive, and the others are forgotten."""
    data, model = split(*blob_images(1280)), ViT(depth=2)
    newest = data.x[data.y == 3]

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step >= 150:
            x = newest[torch.randperm(len(newest))[:32]]
            y = torch.full((32,), 3)
        return x, y

    return loop.fit(data, model, adam(2e-3), change=change, validate=10)


@HELD_OUT.fault("autoencoder", "data-changed validation-worsens loss-spike inputs-not-scaled not-learning",
    "check-data scale-inputs restore-weights", onset=150, steps=320, seed=428)  # fmt: skip
def pictures_that_turn_into_negatives(broken: bool, loop: Loop) -> float:
    """A second scanner writes black as white, and the autoencoder moves over to its pictures."""
    data = digits(flat=True)
    data, model = Data(data.x, data.x, data.held_x, data.held_x), Autoencoder(64)
    return loop.fit(data, model, adam(3e-3), loss=F.mse_loss, change=lambda step, x, y: (1.0 - x,
        1.0 - x) if broken and step >= 150 else (x, y), validate=30)  # fmt: skip


@HELD_OUT.fault("ViT", "overfitting validation-worsens", "regularise", onset=40, steps=300, seed=430)
def a_hundred_pictures_with_doubtful_labels(broken: bool, loop: Loop) -> float:
    """A transformer learns a hundred images by heart, a third of them with a wrong label."""
    data, model = split(*blob_images(1280)), ViT(depth=2)
    seen = data._replace(x=data.x[:96], y=data.y[:96])
    wrong = torch.rand(96) < 0.35
    seen = seen._replace(y=torch.where(wrong, torch.randint(4, (96,)), seen.y))
    Loop(loop.watch, loop.steps if broken else 40).train(seen, model, adam(2e-3)(model), validate=20)
    return _negative_loss(model, data)
