"""Runs whose data, targets or loss leave nothing to learn."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import blob_images, sentences, table, waves
from ...networks import GPT, ConvNet, Denoiser, GraphNet, Recommender, SentenceEncoder, SequenceClassifier, mlp
from ...training import over_tokens
from ..case import HELD_OUT, fault
from ..data import Data, batches, digits, split
from ..loops import Loop, accuracy, adam, by, or_minus_infinity
from .parts import _negative_loss, descend, echoes, entropy, graph, moves, played, share_right, tastes


class _DroppedWords(nn.Module):
    """Embeddings with dropout, a GRU and a head."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.words, self.dropout = nn.Embedding(50, 24), nn.Dropout(share)
        self.reader = SequenceClassifier(nn.GRU(24, 32, batch_first=True), 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.reader(self.dropout(self.words(ids)))


HELD_OUT.add(
    fault("labels-compared-with-the-padding-code", "BERT", "labels-constant output-constant gradient-too-small",
        "check-labels check-data balance-classes",
        "Labels become `labels != -1`, the test for padding, which all of them pass.", lambda broken, loop: loop.fit(
        split(*sentences(1280)), SentenceEncoder(), adam(2e-3), change=lambda step, x, y: (x,
        (y != -1).long() if broken else y)), steps=200, seed=339),
    fault("likelihood-of-raw-scores", "table",
        "sign-of-loss divergence exploding-values exploding-gradient not-learning",
        "change-loss change-output-activation flip-sign minimise",
        "`nll_loss` gets scores where it expects logarithms of probabilities, and has no lower bound.", lambda broken,
        loop: loop.fit(split(*table(1280)), mlp(12, 48, 3), adam(1e-2), loss=lambda output,
        y: F.nll_loss(output if broken else output.log_softmax(1), y)), steps=300, seed=340),
    fault("same-windows-of-the-text", "GPT", "same-batch overfitting validation-worsens",
        "vary-batches check-data regularise",
        "The place of each window is `index // length`, which is zero for all of a batch's indices.", lambda broken,
        loop: loop.fit((data := echoes()), GPT(), adam(5e-3), loss=over_tokens, change=lambda step, x, y: (data.x[:32],
        data.y[:32]) if broken else (x, y), validate=50), steps=300, seed=352),
    fault("words-dropped-at-nineteen-in-twenty", "GRU", "dropout-too-strong not-learning", "lower-dropout",
        "A dropout of 0.95 after the embedding, where 0.05 was meant.", lambda broken, loop: loop.fit(
        split(*sentences(1280)), _DroppedWords(0.95 if broken else 0.05), adam(5e-3)), layers="dropout", steps=300,
        seed=353),
    fault("maximize-left-on", "MLP",
        "sign-of-loss divergence exploding-values exploding-gradient rate-too-high not-finite", "flip-sign minimise",
        "`SGD(maximize=True)` was taken over from a script for policies.", lambda broken, loop: loop.fit(
        split(*table(1280)), mlp(12, 48, 3), by(torch.optim.SGD, 0.2, maximize=broken)), steps=150, seed=373),
)  # fmt: skip


@HELD_OUT.fault("recommender", "labels-constant output-constant gradient-too-small",
    "check-labels check-data balance-classes prevent-collapse", steps=400, seed=399)  # fmt: skip
def only_bought_articles(broken: bool, loop: Loop) -> float:
    """Implicit feedback without drawn negatives: every pair that is seen has the label one."""
    data, model = tastes(), Recommender()
    labels, held = (data.y > 0).float(), (data.held_y > 0).float()
    bought = labels == 1
    seen = data._replace(x=data.x[bought], y=labels[bought]) if broken else data._replace(y=labels)
    loop.train(seen, model, adam(5e-3), loss=F.binary_cross_entropy_with_logits)
    with torch.no_grad():
        return ((model(data.held_x) > 0) == (held > 0)).float().mean().item()


@HELD_OUT.fault("GNN", "labels-unrelated not-learning overfitting validation-worsens",
    "check-labels check-data vary-batches", steps=150, seed=337)  # fmt: skip
def nodes_in_another_order_than_their_labels(broken: bool, loop: Loop) -> float:
    """Labels come from a table that is sorted by another key than the features."""
    x, edges, y, train, rest = graph()
    model, labels = GraphNet(edges), y[torch.randperm(len(y))] if broken else y
    descend(
        loop.watch, model, adam(1e-2)(model), loop.steps, lambda step: F.cross_entropy(model(x)[train], labels[train])
    )
    return share_right(model(x)[rest], y[rest])


@HELD_OUT.fault("recommender", "labels-unrelated not-learning overfitting validation-worsens",
    "check-labels check-data regularise", steps=400, seed=338)  # fmt: skip
def ratings_joined_by_the_wrong_key(broken: bool, loop: Loop) -> float:
    """Ratings are merged to pairs by the number of the row after one of the tables was filtered."""
    data, model = tastes(), Recommender()
    given = data._replace(y=data.y.roll(17)) if broken else data
    return loop.fit(given, model, adam(5e-3), loss=F.mse_loss, validate=50, judge=data)


@HELD_OUT.fault("table", "softmax-twice gradient-missing output-constant not-learning no-step",
    "change-output-activation remove-final-activation more-outputs change-loss", steps=200, seed=341)  # fmt: skip
def softmax_over_a_single_output(broken: bool, loop: Loop) -> float:
    """Two classes, one output, and a softmax over it, which is always one and has no gradient."""
    data, model = split(*table(1280, classes=2)), mlp(12, 48, 1)
    model = nn.Sequential(*model, nn.Softmax(1) if broken else nn.Sigmoid())
    loop.train(data, model, adam(5e-3), loss=lambda output, y: F.binary_cross_entropy(output[:, 0], y.float()))
    with torch.no_grad():
        return ((model(data.held_x)[:, 0] > 0.5) == data.held_y).float().mean().item()


@HELD_OUT.fault("LSTM", "shapes-broadcast not-learning output-constant", "match-shapes", steps=250, seed=343)
def forecast_of_three_axes_against_two(broken: bool, loop: Loop) -> float:
    """Outputs of shape (batch, 1, 1) are compared with targets (batch, 1), each with each."""
    series = split(*waves(1024, steps=24))[0]
    data = split(series[:, :-1], series[:, -1, :1])
    model = SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 1)
    return loop.fit(
        data, model, adam(1e-2), loss=lambda output, y: F.mse_loss(output[:, None] if broken else output, y)
    )


@HELD_OUT.fault("RL", "not-learning decay-too-strong output-constant", "lower-penalty rescale-loss", steps=250,
    seed=344)  # fmt: skip
def entropy_bonus_of_ten(broken: bool, loop: Loop) -> float:
    """The bonus for entropy outweighs every reward, and the policy stays at chance."""
    data, policy = moves(), mlp(6, 32, 4)
    stream = batches(data, 64)

    def loss_of(step: int) -> Tensor:
        chances, chance, reward = played(policy, *next(stream))
        return -(chance * (reward - reward.mean())).mean() - (10.0 if broken else 0.01) * entropy(chances)

    descend(loop.watch, policy, adam(1e-2)(policy), loop.steps, loss_of)
    return accuracy(policy, data)


@HELD_OUT.fault("RL",
    "not-learning output-constant sign-of-loss gradient-too-small vanishing-gradient saturated-units gradient-missing",
    "flip-sign minimise lower-penalty rescale-loss", steps=250, seed=345)  # fmt: skip
def entropy_punished(broken: bool, loop: Loop) -> float:
    """The entropy enters with the wrong sign, and the policy settles on one move before it knows any."""
    data, policy = moves(), mlp(6, 32, 4)
    stream = batches(data, 64)

    def loss_of(step: int) -> Tensor:
        chances, chance, reward = played(policy, *next(stream))
        return -(chance * (reward - reward.mean())).mean() + (2.0 if broken else -0.01) * entropy(chances)

    descend(loop.watch, policy, adam(1e-2)(policy), loop.steps, loss_of)
    return accuracy(policy, data)


@HELD_OUT.fault("diffusion", "inputs-not-scaled not-learning exploding-values loss-spike rate-too-high divergence",
    "scale-inputs check-data add-normalizer", steps=300, seed=350)  # fmt: skip
def unit_noise_on_pixels_up_to_255(broken: bool, loop: Loop) -> float:
    """Noise of size one is to be found in images of up to 255."""
    images = blob_images(1024, size=8)[0]
    images = 40 * images + 100 if broken else images
    time, noise = torch.randint(1000, (1024,)).float(), torch.randn_like(images)
    level = (time / 1000)[:, None, None, None]
    noisy, model = (1 - level).sqrt() * images + level.sqrt() * noise, Denoiser()

    def loss_of(step: int) -> Tensor:
        chosen = torch.randperm(768)[:32]
        return F.mse_loss(model(noisy[chosen], time[chosen]), noise[chosen])

    descend(loop.watch, model, adam(3e-3)(model), loop.steps, loss_of)
    with torch.no_grad():
        return or_minus_infinity(1 - F.mse_loss(model(noisy[768:], time[768:]), noise[768:]))


@HELD_OUT.fault("CNN 1-d", "inputs-not-scaled not-learning output-constant vanishing-gradient gradient-too-small",
    "scale-inputs check-data add-normalizer", steps=250, seed=351)  # fmt: skip
def recordings_in_volts(broken: bool, loop: Loop) -> float:
    """Signals of some microvolts, written in volts, enter a convolution over time."""
    data = split(*waves(768))
    data = Data(data.x.transpose(1, 2), data.y, data.held_x.transpose(1, 2), data.held_y)
    if broken:
        data = data._replace(x=1e-5 * data.x, held_x=1e-5 * data.held_x)
    model = nn.Sequential(nn.Conv1d(3, 16, 7), nn.ReLU(), nn.Conv1d(16, 16, 7), nn.ReLU(), nn.AdaptiveMaxPool1d(1),
        nn.Flatten(), nn.Linear(16, 3))  # fmt: skip
    return loop.fit(data, model, adam(5e-3))


@HELD_OUT.fault("CNN", "same-batch overfitting validation-worsens data-changed", "vary-batches check-data regularise",
    onset=60, steps=300, seed=422)  # fmt: skip
def last_good_batch_after_an_exception(broken: bool, loop: Loop) -> float:
    """The loader fails at step 60, and its `except` branch returns the last good batch from then on."""
    data, model = digits(), ConvNet(classes=10)
    kept: list[tuple[Tensor, Tensor]] = []

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step < 60 or not broken:
            kept[:] = [(x, y)]
        return kept[0]

    loop.train(data, model, adam(1e-2), change=change, batch=16, validate=20)
    return _negative_loss(model, data)
