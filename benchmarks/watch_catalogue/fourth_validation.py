"""Runs of the fourth part that go wrong over time: on held-out data, and by batches that are not what they were."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue import parts as models
from .case import RunFault, Watch, run_fault
from .fourth_parts import descend, echoes, graph, tastes
from .parts import Data, accuracy, adam, digits, explained, fit, sgd, split
from .third_parts import blobs, curves, rows, sentences, unreported, waves

FAULTS: list[RunFault] = []
plant = partial(run_fault, FAULTS)
CHANGES = "data-changed validation-worsens loss-spike"


@torch.no_grad()
def _negative_loss(model: nn.Module, data: Data) -> float:
    """Return minus the cross entropy on the held-out data, which overfitting raises before accuracy falls."""
    return -F.cross_entropy(model.eval()(data.held_x), data.held_y).item()


# ------------------------------------------------------------------------------------------------------ learnt by heart


@plant("recommender", causes="overfitting validation-worsens", remedies="regularise", onset=40)
def wide_embeddings_for_few_ratings(broken: bool, watch: Watch, steps: int = 500) -> float:
    """Every user has seven ratings and 32 numbers to remember them by."""
    torch.manual_seed(411)
    data, model = tastes(), models.Recommender(width=32)
    seen = data._replace(x=data.x[:300], y=data.y[:300]) if broken else data
    fit(watch, model, adam(model, 1e-2), seen, steps if broken else 200, loss=F.mse_loss, validate=20)
    return explained(model, data)


@plant("BERT", causes="overfitting validation-worsens", remedies="regularise", onset=40)
def sixty_sentences_for_sixty_epochs(broken: bool, watch: Watch, steps: int = 240) -> float:
    """A sentence encoder is trained on sixty sentences until it knows each of them."""
    torch.manual_seed(412)
    data, model = sentences(), models.SentenceEncoder()
    seen = data._replace(x=data.x[:64], y=data.y[:64]) if broken else data
    fit(watch, model, adam(model, 2e-3), seen, steps, batch=16, validate=20)
    return _negative_loss(model, data)


@plant("GPT", causes="overfitting validation-worsens", remedies="regularise", onset=60)
def two_dozen_pages_again_and_again(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A language model runs through two dozen texts a hundred times."""
    torch.manual_seed(413)
    data, model = echoes(), models.GPT()
    seen = data._replace(x=data.x[:24], y=data.y[:24]) if broken else data
    fit(watch, model, adam(model, 5e-3), seen, steps, batch=12, loss=models.over_tokens, validate=20)
    with torch.no_grad():
        return -models.over_tokens(model.eval()(data.held_x), data.held_y).item()


@plant("GNN", causes="overfitting validation-worsens", remedies="regularise", onset=30)
def eighteen_labelled_nodes_and_no_dropout(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A wide net learns the classes of eighteen nodes from noisy features by heart."""
    torch.manual_seed(414)
    x, edges, y, train, rest = graph(120)
    x, train = torch.cat([0.3 * x, torch.randn(120, 40)], 1), train[:18]
    model = models.GraphNet(edges, features=48, width=96)
    optimizer = adam(model, 1e-2)

    def then(run: object, step: int) -> None:
        if (step + 1) % 10 == 0:
            with torch.no_grad():
                run.log_metrics(val_loss=F.cross_entropy(model(x)[rest], y[rest]).item())

    descend(
        watch,
        model,
        optimizer,
        steps if broken else 12,
        lambda step: F.cross_entropy(model(x)[train], y[train]),
        then=then,
    )
    with torch.no_grad():
        return -F.cross_entropy(model(x)[rest], y[rest]).item()


@plant("LSTM", causes="overfitting validation-worsens", remedies="regularise", onset=60)
def forecast_of_noise_learnt_by_heart(broken: bool, watch: Watch, steps: int = 500) -> float:
    """Targets are mostly noise, series are few, and the recurrent net is wide."""
    torch.manual_seed(415)
    series = torch.randn(384, 12, 3)
    data = split(series, 0.5 * series[:, -1, :1] + torch.randn(384, 1))
    model = models.SequenceClassifier(nn.LSTM(3, 64, batch_first=True), 1)
    fit(watch, model, adam(model, 5e-3), data, steps if broken else 30, loss=F.mse_loss, validate=20)
    return explained(model, data)


# --------------------------------------------------------------------------------------------------- batches that break


@plant("LSTM", causes="not-finite-data not-finite", remedies="clean-data check-data", onset=120)
def gap_in_a_sensor(broken: bool, watch: Watch, steps: int = 200) -> float:
    """From a later recording on, some steps of one channel are missing and stand as NaN."""
    torch.manual_seed(416)
    data = waves(768)
    model = models.SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step >= 120 and step % 9 == 3:
            x = x.clone()
            x[4, 11:14, 2] = torch.nan
        return x, y

    fit(watch, model, adam(model, 5e-3), data, steps, change=change)
    return accuracy(model, data)


@plant("recommender", causes="not-finite-data not-finite", remedies="clean-data check-data check-labels", onset=200)
def rating_of_an_unrated_film(broken: bool, watch: Watch, steps: int = 300) -> float:
    """An outer join brings pairs without a rating, whose target is NaN."""
    torch.manual_seed(417)
    data, model = tastes(), models.Recommender()

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y.index_fill(0, torch.tensor([9]), torch.nan) if broken and step == 200 else y

    fit(unreported(watch), model, adam(model, 1e-2), data, steps, loss=F.mse_loss, change=change)
    return explained(model, data)


@plant(
    "GRU",
    causes=CHANGES + " labels-unrelated",
    remedies="check-labels check-data restore-weights vary-batches",
    onset=160,
)
def labels_moved_on_by_one_in_a_later_shard(broken: bool, watch: Watch, steps: int = 320) -> float:
    """A later shard lost its first label, and each series has that of the next."""
    torch.manual_seed(418)
    data = waves(768)
    model = models.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y.roll(1) if broken and step >= 160 else y

    fit(watch, model, adam(model, 1e-2), data, steps, change=change, validate=40)
    return accuracy(model, data)


@plant(
    "CNN",
    causes=CHANGES + " labels-unrelated",
    remedies="check-labels check-data restore-weights robust-loss",
    onset=150,
)
def guessed_labels_join_the_data(broken: bool, watch: Watch, steps: int = 320) -> float:
    """From step 150 on most samples come from a weak labeller that mixes up neighbouring classes."""
    torch.manual_seed(419)
    data, model = digits(), models.ConvNet(classes=10, norm=False)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.rand(len(y)) < (0.7 if broken and step >= 150 else 0.0)
        return x, torch.where(wrong, (y + 3) % 10, y)

    fit(watch, model, adam(model, 3e-3), data, steps, change=change, validate=30)
    return accuracy(model, data)


@plant(
    "LSTM",
    causes=CHANGES + " inputs-not-scaled saturated-units exploding-values",
    remedies="scale-inputs check-data",
    onset=150,
)
def recordings_as_whole_numbers_from_here_on(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A later archive stores the waves as 16-bit numbers, a thousand times larger."""
    torch.manual_seed(420)
    data = waves(768)
    model = models.SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (1000 * x if broken and step >= 150 else x), y

    fit(watch, model, adam(model, 1e-2), data, steps, change=change, validate=30)
    return accuracy(model, data)


@plant(
    "MLP",
    causes="data-changed inputs-not-scaled outlier loss-spike exploding-gradient exploding-values validation-worsens "
    "rate-too-high dead-units divergence",
    remedies="scale-inputs check-data clip-gradients clean-data",
)
def every_third_batch_from_a_raw_source(broken: bool, watch: Watch, steps: int = 300) -> float:
    """One of three workers forgets to standardise, and its batches are of another size."""
    torch.manual_seed(421)
    data, model = digits(flat=True), models.mlp(64, 64, 10)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (200 * x + 300 if broken and step % 3 == 2 else x), y

    fit(watch, model, sgd(model, 0.02, 0.9), data, steps, change=change, validate=30)
    return accuracy(model, data)


@plant(
    "CNN",
    causes="same-batch overfitting validation-worsens data-changed",
    remedies="vary-batches check-data regularise",
    onset=60,
)
def last_good_batch_after_an_exception(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The loader fails at step 60, and its `except` branch returns the last good batch from then on."""
    torch.manual_seed(422)
    data, model = digits(), models.ConvNet(classes=10)
    kept: list[tuple[Tensor, Tensor]] = []

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step < 60 or not broken:
            kept[:] = [(x, y)]
        return kept[0]

    fit(watch, model, adam(model, 1e-2), data, steps, change=change, batch=16, validate=20)
    return _negative_loss(model, data)


@plant(
    "recommender",
    causes="sorted-batches data-changed not-learning loss-spike",
    remedies="vary-batches check-data",
)
def table_sorted_by_rating(broken: bool, watch: Watch, steps: int = 392) -> float:
    """Rows are sorted by their target, and each batch asks for one number alone."""
    torch.manual_seed(423)
    data, model = tastes(), models.Recommender()
    order = data.y.argsort()

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rows_now = order[32 * (step % 56) : 32 * (step % 56) + 32]
        return (data.x[rows_now], data.y[rows_now]) if broken else (x, y)

    fit(watch, model, adam(model, 1e-2), data, steps, loss=F.mse_loss, change=change, validate=28)
    return explained(model, data)


@plant(
    "table",
    causes=CHANGES,
    remedies="check-data restore-weights vary-batches",
    onset=200,
)
def columns_in_another_order(broken: bool, watch: Watch, steps: int = 360) -> float:
    """A later export has the same columns in another order, and is read by position."""
    torch.manual_seed(424)
    data, model = rows(), models.mlp(12, 64, 3)
    order = torch.tensor([4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3])

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x[:, order] if broken and step >= 200 else x), y

    fit(watch, model, adam(model, 5e-3), data, steps, change=change, validate=40)
    return accuracy(model, data)


@plant(
    "table",
    causes=CHANGES + " not-learning",
    remedies="check-data clean-data restore-weights",
    onset=180,
)
def column_that_falls_silent(broken: bool, watch: Watch, steps: int = 340) -> float:
    """The feed of the two most useful columns fails at step 180, and zeros are filled in."""
    torch.manual_seed(425)
    data, model = curves(), models.mlp(8, 64, 1)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x.index_fill(1, torch.tensor([1, 2]), 0.0) if broken and step >= 180 else x), y

    fit(watch, model, adam(model, 1e-2), data, steps, loss=F.mse_loss, change=change, validate=20)
    return explained(model, data)


@plant(
    "ViT",
    causes=CHANGES + " sorted-batches labels-constant",
    remedies="vary-batches check-data restore-weights",
    onset=150,
)
def fine_tuned_on_the_newest_class_alone(broken: bool, watch: Watch, steps: int = 220) -> float:
    """After step 150 only samples of the newest class arrive, and the others are forgotten."""
    torch.manual_seed(427)
    data, model = blobs(), models.ViT(depth=2)
    newest = data.x[data.y == 3]

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step >= 150:
            x = newest[torch.randperm(len(newest))[:32]]
            y = torch.full((32,), 3)
        return x, y

    fit(watch, model, adam(model, 2e-3), data, steps, change=change, validate=10)
    return accuracy(model, data)


@plant(
    "autoencoder",
    causes=CHANGES + " inputs-not-scaled not-learning",
    remedies="check-data scale-inputs restore-weights",
    onset=150,
)
def pictures_that_turn_into_negatives(broken: bool, watch: Watch, steps: int = 320) -> float:
    """A second scanner writes black as white, and the autoencoder moves over to its pictures."""
    torch.manual_seed(428)
    data = digits(flat=True)
    data, model = Data(data.x, data.x, data.held_x, data.held_x), models.Autoencoder(64)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (1.0 - x, 1.0 - x) if broken and step >= 150 else (x, y)

    fit(watch, model, adam(model, 3e-3), data, steps, loss=F.mse_loss, change=change, validate=30)
    return explained(model, data)


@plant(
    "RL",
    causes=CHANGES + " outlier exploding-gradient divergence",
    remedies="scale-targets check-labels check-data clip-gradients robust-loss",
    onset=180,
)
def reward_counted_in_points_from_here_on(broken: bool, watch: Watch, steps: int = 320) -> float:
    """An update of the game counts in hundreds, and the value network meets targets a hundred times as large."""
    torch.manual_seed(429)
    data, model = curves(), models.mlp(8, 48, 48, 1)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, (100 * y if broken and step >= 180 else y)

    fit(watch, model, adam(model, 3e-3), data, steps, loss=F.mse_loss, change=change, validate=30)
    return explained(model, data)


@plant("ViT", causes="overfitting validation-worsens", remedies="regularise", onset=40)
def a_hundred_pictures_with_doubtful_labels(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A transformer learns a hundred images by heart, a third of them with a wrong label."""
    torch.manual_seed(430)
    data, model = blobs(), models.ViT(depth=2)
    seen = data._replace(x=data.x[:96], y=data.y[:96])
    wrong = torch.rand(96) < 0.35
    seen = seen._replace(y=torch.where(wrong, torch.randint(4, (96,)), seen.y))
    fit(watch, model, adam(model, 2e-3), seen, steps if broken else 40, validate=20)
    return _negative_loss(model, data)
