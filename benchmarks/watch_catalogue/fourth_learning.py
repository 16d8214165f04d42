"""Runs of the fourth part that learn nothing, or much less than they could."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue import parts as models
from .case import RunFault, Watch, run_fault
from .fourth_parts import descend, echoes, entropy, graph, moves, pictures, played, share_right, tastes
from .parts import Data, accuracy, adam, batches, by_step, digits, explained, fit, or_minus_infinity, sgd, split
from .third_parts import blobs, curves, rows, sentences, unreported, waves

FAULTS: list[RunFault] = []
plant = partial(run_fault, FAULTS)


# --------------------------------------------------------------------------------------------------- rates and clipping


@plant("GPT", causes="rate-too-low not-learning gradient-too-small", remedies="raise-learning-rate rescale-loss")
def rate_of_a_convolutional_net_for_a_transformer(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Plain SGD at a hundredth, which suits images, leaves a transformer where it starts."""
    torch.manual_seed(331)
    data, model = echoes(), models.GPT()
    optimizer = sgd(model, 0.01) if broken else torch.optim.AdamW(model.parameters(), 5e-3)
    fit(watch, model, optimizer, data, steps, loss=models.over_tokens)
    return accuracy(model, data)


@plant("LSTM", causes="rate-too-low not-learning rate-decays-too-early", remedies="raise-learning-rate")
def adagrad_at_the_rate_of_adam(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Adagrad divides by the root of all squared gradients so far, and starts from a thousandth."""
    torch.manual_seed(332)
    data = waves(768)
    model = models.SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)
    optimizer = torch.optim.Adagrad(model.parameters(), 1e-3) if broken else adam(model, 1e-2)
    fit(watch, model, optimizer, data, steps)
    return accuracy(model, data)


@plant(
    "BERT",
    causes="rate-decays-too-early rate-zero not-learning rate-too-low no-step",
    remedies="fix-schedule raise-learning-rate",
    onset=25,
)
def linear_decay_over_one_epoch_only(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The schedule was given the batches of one epoch as its whole length."""
    torch.manual_seed(333)
    data, model = sentences(), models.SentenceEncoder()
    optimizer = adam(model, 2e-3)
    last = 32 if broken else steps
    fit(watch, model, optimizer, data, steps, schedule=by_step(optimizer, lambda step: max(0.0, 1 - step / last)))
    return accuracy(model, data)


@plant("ViT", causes="rate-too-low not-learning", remedies="fix-schedule raise-learning-rate")
def warm_up_begins_anew_each_epoch(broken: bool, watch: Watch, steps: int = 250) -> float:
    """The counter of the warm-up of ten thousand steps is set back at the beginning of each epoch."""
    torch.manual_seed(334)
    data, model = blobs(), models.ViT(depth=2)
    optimizer = adam(model, 2e-3)
    schedule = by_step(optimizer, lambda step: (step % 32 + 1) / 10_000 if broken else min(1.0, (step + 1) / 32))
    fit(watch, model, optimizer, data, steps, schedule=schedule)
    return accuracy(model, data)


@plant(
    "LSTM",
    causes="clipping-always-active gradient-too-small rate-too-low not-learning",
    remedies="loosen-clipping raise-learning-rate",
)
def threshold_for_values_given_as_a_norm(broken: bool, watch: Watch, steps: int = 250) -> float:
    """The limit for one entry of a gradient, 0.002, is given to the clipping of the norm."""
    torch.manual_seed(335)
    data = waves(768)
    model = models.SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)
    fit(watch, model, sgd(model, 0.3, 0.9), data, steps, clip=0.002 if broken else 1.0)
    return accuracy(model, data)


@plant(
    "GNN",
    causes="rate-decays-too-early rate-too-low not-learning",
    remedies="fix-schedule raise-learning-rate",
    onset=8,
)
def rate_halved_in_every_epoch(broken: bool, watch: Watch, steps: int = 200) -> float:
    """`StepLR(step_size=2)` for a graph that is seen whole, so that an epoch is one step."""
    torch.manual_seed(336)
    x, edges, y, train, rest = graph()
    model = models.GraphNet(edges)
    optimizer = adam(model, 3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2 if broken else 200, 0.5)
    descend(
        unreported(watch),
        model,
        optimizer,
        steps,
        lambda step: F.cross_entropy(model(x)[train], y[train]),
        schedule=schedule,
    )
    return share_right(model(x)[rest], y[rest])


# ---------------------------------------------------------------------------------------------------- labels and losses


@plant(
    "GNN",
    causes="labels-unrelated not-learning overfitting validation-worsens",
    remedies="check-labels check-data vary-batches",
)
def nodes_in_another_order_than_their_labels(broken: bool, watch: Watch, steps: int = 150) -> float:
    """Labels come from a table that is sorted by another key than the features."""
    torch.manual_seed(337)
    x, edges, y, train, rest = graph()
    model, labels = models.GraphNet(edges), y[torch.randperm(len(y))] if broken else y
    descend(watch, model, adam(model, 1e-2), steps, lambda step: F.cross_entropy(model(x)[train], labels[train]))
    return share_right(model(x)[rest], y[rest])


@plant(
    "recommender",
    causes="labels-unrelated not-learning overfitting validation-worsens",
    remedies="check-labels check-data regularise",
)
def ratings_joined_by_the_wrong_key(broken: bool, watch: Watch, steps: int = 400) -> float:
    """Ratings are merged to pairs by the number of the row after one of the tables was filtered."""
    torch.manual_seed(338)
    data, model = tastes(), models.Recommender()
    given = data._replace(y=data.y.roll(17)) if broken else data
    fit(watch, model, adam(model, 5e-3), given, steps, loss=F.mse_loss, validate=50)
    return explained(model, data)


@plant(
    "BERT",
    causes="labels-constant output-constant gradient-too-small",
    remedies="check-labels check-data balance-classes",
)
def labels_compared_with_the_padding_code(broken: bool, watch: Watch, steps: int = 200) -> float:
    """Labels become `labels != -1`, the test for padding, which all of them pass."""
    torch.manual_seed(339)
    data, model = sentences(), models.SentenceEncoder()

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, (y != -1).long() if broken else y

    fit(watch, model, adam(model, 2e-3), data, steps, change=change)
    return accuracy(model, data)


@plant(
    "table",
    causes="sign-of-loss divergence exploding-values exploding-gradient not-learning",
    remedies="change-loss change-output-activation flip-sign minimise",
)
def likelihood_of_raw_scores(broken: bool, watch: Watch, steps: int = 300) -> float:
    """`nll_loss` gets scores where it expects logarithms of probabilities, and has no lower bound."""
    torch.manual_seed(340)
    data, model = rows(), models.mlp(12, 48, 3)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return F.nll_loss(output if broken else output.log_softmax(1), y)

    fit(watch, model, adam(model, 1e-2), data, steps, loss=loss)
    return accuracy(model, data)


@plant(
    "table",
    causes="softmax-twice gradient-missing output-constant not-learning no-step",
    remedies="change-output-activation remove-final-activation more-outputs change-loss",
)
def softmax_over_a_single_output(broken: bool, watch: Watch, steps: int = 200) -> float:
    """Two classes, one output, and a softmax over it, which is always one and has no gradient."""
    torch.manual_seed(341)
    data, model = rows(classes=2), models.mlp(12, 48, 1)
    model = nn.Sequential(*model, nn.Softmax(1) if broken else nn.Sigmoid())

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy(output[:, 0], y.float())

    fit(watch, model, adam(model, 5e-3), data, steps, loss=loss)
    with torch.no_grad():
        return ((model(data.held_x)[:, 0] > 0.5) == data.held_y).float().mean().item()


@plant(
    "CNN",
    causes="output-constant not-learning labels-constant sign-of-loss gradient-too-small gradient-missing "
    "exploding-values",
    remedies="fix-targets change-loss check-labels flip-sign",
)
def hinge_with_zero_and_one(broken: bool, watch: Watch, steps: int = 150) -> float:
    """A hinge loss for labels of -1 and 1 gets 0 and 1: half of the samples have no gradient at all."""
    torch.manual_seed(342)
    data, model = blobs(classes=2), models.ConvNet(classes=1, norm=False)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        sign = y.float() if broken else 2.0 * y - 1
        return F.relu(1 - sign * output[:, 0]).mean()

    fit(watch, model, adam(model, 3e-3), data, steps, loss=loss)
    with torch.no_grad():
        return ((model.eval()(data.held_x)[:, 0] > 0) == data.held_y).float().mean().item()


@plant("LSTM", causes="shapes-broadcast not-learning output-constant", remedies="match-shapes")
def forecast_of_three_axes_against_two(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Outputs of shape (batch, 1, 1) are compared with targets (batch, 1), each with each."""
    torch.manual_seed(343)
    series = models.waves(1024, steps=24)[0]
    data = split(series[:, :-1], series[:, -1, :1])
    model = models.SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 1)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(output[:, None] if broken else output, y)

    fit(watch, model, adam(model, 1e-2), data, steps, loss=loss)
    return explained(model, data)


@plant(
    "RL",
    causes="not-learning decay-too-strong output-constant",
    remedies="lower-penalty rescale-loss",
)
def entropy_bonus_of_ten(broken: bool, watch: Watch, steps: int = 250) -> float:
    """The bonus for entropy outweighs every reward, and the policy stays at chance."""
    torch.manual_seed(344)
    data, policy = moves(), models.mlp(6, 32, 4)
    stream = batches(data, 64)

    def loss_of(step: int) -> Tensor:
        chances, chance, reward = played(policy, *next(stream))
        return -(chance * (reward - reward.mean())).mean() - (10.0 if broken else 0.01) * entropy(chances)

    descend(watch, policy, adam(policy, 1e-2), steps, loss_of)
    return accuracy(policy, data)


@plant(
    "RL",
    causes="not-learning output-constant sign-of-loss gradient-too-small vanishing-gradient saturated-units "
    "gradient-missing",
    remedies="flip-sign minimise lower-penalty rescale-loss",
)
def entropy_punished(broken: bool, watch: Watch, steps: int = 250) -> float:
    """The entropy enters with the wrong sign, and the policy settles on one move before it knows any."""
    torch.manual_seed(345)
    data, policy = moves(), models.mlp(6, 32, 4)
    stream = batches(data, 64)

    def loss_of(step: int) -> Tensor:
        chances, chance, reward = played(policy, *next(stream))
        return -(chance * (reward - reward.mean())).mean() + (2.0 if broken else -0.01) * entropy(chances)

    descend(watch, policy, adam(policy, 1e-2), steps, loss_of)
    return accuracy(policy, data)


# ----------------------------------------------------------------------------------------- gradients that do not arrive


@plant(
    "VAE",
    causes="gradient-cut posterior-collapse vanishing-gradient gradient-too-small",
    layers="encoder encoder.0 mean log_variance",
    remedies="keep-gradient lower-penalty",
)
def codes_drawn_by_a_generator(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Codes come from `torch.normal`, through which the reconstruction sends no gradient to the encoder."""
    torch.manual_seed(346)
    data, model = pictures(), models.VAE()

    def draw(mean: Tensor, log_variance: Tensor) -> Tensor:
        return torch.normal(mean.detach(), torch.exp(0.5 * log_variance.detach()))

    if broken:
        model.draw = draw
    fit(watch, model, adam(model, 3e-3), data, steps, loss=models.evidence_loss)
    with torch.no_grad():
        mean = model.mean(model.encoder(data.held_x))
        return or_minus_infinity(1 - F.mse_loss(model.decoder(mean).sigmoid(), data.held_x) / data.held_x.var(0).mean())


class _NoSkip(nn.Module):
    """The block of a transformer whose two additions were lost."""

    def __init__(self, block: models.TransformerBlock) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        x = self.block.attention(self.block.norm1(x))
        return self.block.feed(self.block.norm2(x))


@plant(
    "GPT",
    causes="vanishing-gradient output-constant not-learning",
    remedies="add-skip initialise",
)
def blocks_that_lost_their_skips(broken: bool, watch: Watch, steps: int = 180) -> float:
    """In a rewrite `x = x + attention(...)` became `x = attention(...)` in four blocks."""
    torch.manual_seed(348)
    data, model = echoes(), models.GPT(depth=4, tied=False)
    if broken:
        model.blocks = nn.ModuleList(_NoSkip(block) for block in model.blocks)
    fit(watch, model, adam(model, 3e-3), data, steps, loss=models.over_tokens)
    return accuracy(model, data)


@plant(
    "GNN",
    causes="output-constant not-learning vanishing-gradient",
    remedies="fewer-layers add-skip add-normalizer",
)
def sixteen_rounds_of_averages(broken: bool, watch: Watch, steps: int = 200) -> float:
    """After sixteen averages over neighbours all nodes look alike."""
    torch.manual_seed(349)
    x, edges, y, train, rest = graph()
    near = torch.eye(len(x))
    near[edges[1], edges[0]] = 1.0
    near = near / near.sum(1, keepdim=True)
    maps = nn.ModuleList(nn.Linear(8 if i == 0 else 16, 16) for i in range(16 if broken else 2))
    model = nn.ModuleDict({"maps": maps, "head": nn.Linear(16, 3)})

    def output() -> Tensor:
        hidden = x
        for layer in maps:
            hidden = torch.relu(layer(near @ hidden))
        return model["head"](hidden)

    descend(watch, model, adam(model, 1e-2), steps, lambda step: F.cross_entropy(output()[train], y[train]))
    return share_right(output()[rest], y[rest])


# --------------------------------------------------------------------------------------------------- inputs and batches


@plant(
    "diffusion",
    causes="inputs-not-scaled not-learning exploding-values loss-spike rate-too-high divergence",
    remedies="scale-inputs check-data add-normalizer",
)
def unit_noise_on_pixels_up_to_255(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Noise of size one is to be found in images of up to 255."""
    torch.manual_seed(350)
    images = models.blob_images(1024, size=8)[0]
    images = 40 * images + 100 if broken else images
    time, noise = torch.randint(1000, (1024,)).float(), torch.randn_like(images)
    level = (time / 1000)[:, None, None, None]
    noisy, model = (1 - level).sqrt() * images + level.sqrt() * noise, models.Denoiser()

    def loss_of(step: int) -> Tensor:
        chosen = torch.randperm(768)[:32]
        return F.mse_loss(model(noisy[chosen], time[chosen]), noise[chosen])

    descend(watch, model, adam(model, 3e-3), steps, loss_of)
    with torch.no_grad():
        return or_minus_infinity(1 - F.mse_loss(model(noisy[768:], time[768:]), noise[768:]))


@plant(
    "CNN 1-d",
    causes="inputs-not-scaled not-learning output-constant vanishing-gradient gradient-too-small",
    remedies="scale-inputs check-data add-normalizer",
)
def recordings_in_volts(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Signals of some microvolts, written in volts, enter a convolution over time."""
    torch.manual_seed(351)
    data = waves(768)
    data = Data(data.x.transpose(1, 2), data.y, data.held_x.transpose(1, 2), data.held_y)
    if broken:
        data = data._replace(x=1e-5 * data.x, held_x=1e-5 * data.held_x)
    model = nn.Sequential(
        nn.Conv1d(3, 16, 7), nn.ReLU(), nn.Conv1d(16, 16, 7), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
        nn.Linear(16, 3),
    )  # fmt: skip
    fit(watch, model, adam(model, 5e-3), data, steps)
    return accuracy(model, data)


@plant("GPT", causes="same-batch overfitting validation-worsens", remedies="vary-batches check-data regularise")
def same_windows_of_the_text(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The place of each window is `index // length`, which is zero for all of a batch's indices."""
    torch.manual_seed(352)
    data, model = echoes(), models.GPT()

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (data.x[:32], data.y[:32]) if broken else (x, y)

    fit(watch, model, adam(model, 5e-3), data, steps, loss=models.over_tokens, change=change, validate=50)
    return accuracy(model, data)


class _DroppedWords(nn.Module):
    """Embeddings with dropout, a GRU and a head."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.words, self.dropout = nn.Embedding(50, 24), nn.Dropout(share)
        self.reader = models.SequenceClassifier(nn.GRU(24, 32, batch_first=True), 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.reader(self.dropout(self.words(ids)))


@plant(
    "GRU",
    causes="dropout-too-strong not-learning",
    layers="dropout",
    remedies="lower-dropout",
)
def words_dropped_at_nineteen_in_twenty(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A dropout of 0.95 after the embedding, where 0.05 was meant."""
    torch.manual_seed(353)
    data, model = sentences(), _DroppedWords(0.95 if broken else 0.05)
    fit(watch, model, adam(model, 5e-3), data, steps)
    return accuracy(model, data)


@plant(
    "LSTM",
    causes="units-alike not-learning",
    layers="recurrent head recurrent.weight_ih_l0 recurrent.weight_hh_l0 head.weight",
    remedies="initialise",
)
def every_weight_at_one_tenth(broken: bool, watch: Watch, steps: int = 250) -> float:
    """All weights and biases start at the same value, and all units stay copies of one."""
    torch.manual_seed(354)
    data = waves(768)
    model = models.SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)
    if broken:
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.1)
    fit(watch, model, adam(model, 1e-2), data, steps)
    return accuracy(model, data)


@plant(
    "ResNet",
    causes="gradient-too-small rate-too-low not-learning",
    remedies="rescale-loss raise-learning-rate",
)
def weight_of_a_term_in_the_wrong_place(broken: bool, watch: Watch, steps: int = 150) -> float:
    """The factor of a small auxiliary term multiplies the whole loss, and SGD sees a ten-thousandth of it."""
    torch.manual_seed(355)
    data, model = digits(), models.ResNet(blocks=2, classes=10)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return (1e-4 if broken else 1.0) * F.cross_entropy(output, y)

    fit(watch, model, sgd(model, 0.05, 0.9), data, steps, loss=loss)
    return accuracy(model, data)


@plant(
    "table",
    causes="frozen-layer gradient-missing gradient-cut no-step vanishing-gradient",
    layers="0 0.weight 0.bias 2 2.weight 2.bias",
    remedies="unfreeze keep-gradient",
)
def grid_features_without_gradient(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The narrow first layers run under `no_grad` to save memory, and stay as they were drawn."""
    torch.manual_seed(356)
    data, model = curves(), models.mlp(8, 6, 6, 32, 1)
    plain = model.forward

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            x = model[:4](x)
        return model[4:](x)

    model.forward = forward if broken else plain
    fit(watch, model, adam(model, 1e-2), data, steps, loss=F.mse_loss)
    return explained(model, data)
