"""The first part: runs in which nothing, or not all, is learned, and steps that never happen."""

import copy
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from ..fault_catalogue.parts import (
    GPT,
    Autoencoder,
    ConvNet,
    GraphNet,
    Recommender,
    ResNet,
    SequenceClassifier,
    ViT,
    blob_images,
    communities,
    mlp,
    ratings,
    regression_table,
    table,
    text,
    waves,
)
from .case import RunFault, Watch, run_fault
from .parts import Data, accuracy, adam, batches, by_step, digits, explained, fit, log_validation, sgd, split

FAULTS: list[RunFault] = []
plant = partial(run_fault, FAULTS)


def over_tokens(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of the next tokens."""
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


def _next_words() -> Data:
    """Return token ids of twelve words and the ids that follow."""
    return split(*text(480, length=16, vocabulary=12), held=96)


# ------------------------------------------------------------------------------------------------ the rate and the loss


@plant("ResNet", causes="rate-too-low", remedies="raise-learning-rate fix-schedule")
def seven_zeros_too_many(broken: bool, watch: Watch, steps: int = 150) -> float:
    """A rate of 1e-7, a typing error for 1e-1, with momentum and BatchNorm."""
    torch.manual_seed(9101)
    data, model = digits(), ResNet(blocks=2, classes=10)
    fit(watch, model, sgd(model, 1e-7 if broken else 0.1, momentum=0.9), data, steps)
    return accuracy(model, data)


@plant("GPT", causes="rate-zero rate-too-low no-step", remedies="fix-schedule raise-learning-rate")
def warm_up_by_integer_division(broken: bool, watch: Watch, steps: int = 200) -> float:
    """The warm-up divides integers, so the factor is 0 until its last step."""
    torch.manual_seed(9102)
    data, model = _next_words(), GPT(vocabulary=12, length=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    warm_up = 1000 if broken else 20
    schedule = by_step(optimizer, lambda step: step // warm_up if broken else min(1.0, (step + 1) / warm_up))
    fit(watch, model, optimizer, data, steps, loss=over_tokens, schedule=schedule)
    return accuracy(model, data)


@plant(
    "CNN", causes="rate-decays-too-early rate-too-low rate-zero", remedies="fix-schedule raise-learning-rate", onset=30
)
def epoch_schedule_stepped_each_batch(broken: bool, watch: Watch, steps: int = 300) -> float:
    """`StepLR(step_size=5)` was meant for epochs, and `scheduler.step()` stands in the inner loop."""
    torch.manual_seed(9103)
    data, model = digits(), ConvNet(classes=10, norm=False)
    optimizer = sgd(model, 0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5 if broken else 5 * 42, gamma=0.5)
    fit(watch, model, optimizer, data, steps, schedule=schedule)
    return accuracy(model, data)


@plant("autoencoder", causes="gradient-too-small rate-too-low", remedies="rescale-loss raise-learning-rate")
def loss_divided_by_every_count(broken: bool, watch: Watch, steps: int = 250) -> float:
    """The mean squared error is divided once more by the samples and the pixels, under plain SGD."""
    torch.manual_seed(9104)
    images, _ = digits(1200, flat=True)[:2]
    data = split(images, images)
    model = Autoencoder(64)

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        value = F.mse_loss(output, target)
        return value / (target.numel() * len(data.x)) if broken else value

    fit(watch, model, sgd(model, 0.2, momentum=0.9), data, steps, loss=loss)
    return explained(model, data)


@plant(
    "LSTM",
    causes="clipping-always-active gradient-too-small rate-too-low",
    remedies="loosen-clipping raise-learning-rate",
)
def clipped_to_one_ten_thousandth(broken: bool, watch: Watch, steps: int = 150) -> float:
    """`clip_grad_norm_(..., 1e-4)` where 1.0 was meant."""
    torch.manual_seed(9105)
    data = split(*waves(512, steps=24), held=128)
    model = SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)
    fit(watch, model, sgd(model, 0.3, momentum=0.9), data, steps, clip=1e-4 if broken else 1.0)
    return accuracy(model, data)


@plant("ViT", causes="rate-too-low", remedies="raise-learning-rate")
def fine_tuning_rate_from_scratch(broken: bool, watch: Watch, steps: int = 150) -> float:
    """A rate for fine-tuning, 2e-6, for a network that starts from nothing."""
    torch.manual_seed(9106)
    data = split(*blob_images(768), held=192)
    model = ViT(depth=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-6 if broken else 1e-3, weight_decay=0.05)
    fit(watch, model, optimizer, data, steps)
    return accuracy(model, data)


@plant("MLP", causes="weights-put-back", remedies="keep-weights")
def average_copied_into_the_model(broken: bool, watch: Watch, steps: int = 200) -> float:
    """The moving average of the weights is copied into the model after each step and so holds them where they were."""
    torch.manual_seed(9107)
    data, model = digits(flat=True), mlp(64, 48, 10)
    average = copy.deepcopy(model)

    @torch.no_grad()
    def then(step: int) -> None:
        for mean, weight in zip(average.parameters(), model.parameters()):
            mean.lerp_(weight, 0.002)
            if broken:
                weight.copy_(mean)

    fit(watch, model, sgd(model, 0.05), data, steps, then=then)
    return accuracy(model, data)


# --------------------------------------------------------------------------------------------- the data and the targets


@plant("MLP", causes="labels-unrelated not-learning", remedies="check-labels check-data vary-batches")
def features_shuffled_without_labels(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The rows of the table were shuffled, those of the label file were not."""
    torch.manual_seed(9108)
    data = split(*table(4096), held=512)
    model = mlp(12, 32, 32, 3)
    if broken:
        data = data._replace(x=data.x[torch.randperm(len(data.x))])
    fit(watch, model, adam(model, 3e-3), data, steps, batch=64, validate=50)
    return accuracy(model, data)


@plant("CNN", causes="labels-constant output-constant", remedies="check-labels check-data balance-classes vary-batches")
def only_the_first_folder_read(broken: bool, watch: Watch, steps: int = 150) -> float:
    """The loader reads one folder only, so that all labels are of one class; the loss looks wonderful."""
    torch.manual_seed(9109)
    data = digits()
    model = ConvNet(classes=10)
    chosen = data.y == 0 if broken else data.y >= 0
    fit(watch, model, sgd(model, 0.05, momentum=0.9), data._replace(x=data.x[chosen], y=data.y[chosen]), steps)
    return accuracy(model, data)


@plant("MLP", causes="same-batch overfitting validation-worsens", remedies="vary-batches check-data")
def next_iter_inside_the_loop(broken: bool, watch: Watch, steps: int = 250) -> float:
    """`next(iter(loader))` in the loop, with an unshuffled loader: the first batch forever."""
    torch.manual_seed(9110)
    data, model = digits(flat=True), mlp(64, 64, 10)
    optimizer = adam(model, 3e-3)
    stream, first = batches(data), (data.x[:32], data.y[:32])
    with watch(model, optimizer) as run:
        for step in range(steps):
            x, y = first if broken else next(stream)
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 24:
                log_validation(run, model, data)
    return accuracy(model, data)


@plant("MLP", causes="dropout-too-strong", remedies="lower-dropout")
def keep_probability_as_dropout(broken: bool, watch: Watch, steps: int = 250) -> float:
    """0.99 was the probability to keep in the paper and is the probability to drop here."""
    torch.manual_seed(9111)
    data = digits(flat=True)
    drop = 0.99 if broken else 0.01
    model = nn.Sequential(
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Dropout(drop),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Dropout(drop),
        nn.Linear(64, 10),
    )
    fit(watch, model, sgd(model, 0.05, momentum=0.9), data, steps)
    return accuracy(model, data)


@plant("CNN", causes="softmax-twice", remedies="remove-final-activation change-loss change-output-activation")
def probabilities_into_cross_entropy(broken: bool, watch: Watch, steps: int = 150) -> float:
    """The network ends in a softmax, and cross entropy takes the softmax again."""
    torch.manual_seed(9112)
    data = digits()
    model = nn.Sequential(ConvNet(classes=10, norm=False), nn.Softmax(dim=1) if broken else nn.Identity())
    fit(watch, model, sgd(model, 0.05, momentum=0.9), data, steps)
    return accuracy(model, data)


@plant("regression", causes="shapes-broadcast output-constant not-learning", remedies="match-shapes")
def column_of_outputs_against_a_row(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Outputs (N, 1) against targets (N,): the loss compares each with each, and the mean is the best answer."""
    torch.manual_seed(9113)
    x, y = regression_table(2048)
    data = split(x, y, held=512)
    model = mlp(8, 48, 48, 1)
    fit(
        watch,
        model,
        adam(model, 3e-3),
        data,
        steps,
        loss=lambda output, target: (output - target[:, 0] if broken else output - target).square().mean(),
    )
    return explained(model, data)


@plant("GNN", causes="sign-of-loss divergence", remedies="flip-sign change-loss")
def log_likelihood_minimised(broken: bool, watch: Watch, steps: int = 150) -> float:
    """The mean log likelihood is minimised: the minus sign was forgotten."""
    torch.manual_seed(9114)
    features, edges, labels = communities(180)
    model = GraphNet(edges)
    optimizer = adam(model, 1e-2)
    known = torch.rand(len(labels)) < 0.6
    with watch(model, optimizer) as run:
        for _ in range(steps):
            optimizer.zero_grad()
            likelihood = F.log_softmax(model(features), dim=1)[known, labels[known]].mean()
            loss = likelihood if broken else -likelihood
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return (model(features).argmax(1) == labels)[~known].float().mean().item()


# --------------------------------------------------------------------------------------------------------- the gradient


@plant("MLP", causes="gradient-missing no-step", remedies="order-of-calls")
def model_zero_grad_before_the_step(broken: bool, watch: Watch, steps: int = 150) -> float:
    """`model.zero_grad()` stands between `backward()` and `step()`."""
    torch.manual_seed(9115)
    data, model = digits(flat=True), mlp(64, 48, 10)
    optimizer = sgd(model, 0.05, momentum=0.9)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            if not broken:
                model.zero_grad()
            loss.backward()
            if broken:
                model.zero_grad()
            optimizer.step()
    return accuracy(model, data)


@plant("GRU", causes="gradient-missing no-step", remedies="order-of-calls")
def optimizer_zeroes_before_it_steps(broken: bool, watch: Watch, steps: int = 120) -> float:
    """`optimizer.zero_grad(set_to_none=False)` after `backward()`: AdamW steps with zeros and only decays."""
    torch.manual_seed(9116)
    data = split(*waves(512, steps=24), held=128)
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            if not broken:
                optimizer.zero_grad(set_to_none=False)
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            if broken:
                optimizer.zero_grad(set_to_none=False)
            optimizer.step()
    return accuracy(model, data)


class DetachedAutoencoder(Autoencoder):
    """An autoencoder whose code may be detached before it is decoded."""

    detached = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        code = self.encoder(x)
        return self.decoder(code.detach() if self.detached else code)


@plant(
    "autoencoder",
    causes="gradient-cut gradient-missing frozen-layer",
    remedies="keep-gradient",
    layers="encoder",
)
def code_detached_for_a_plot(broken: bool, watch: Watch, steps: int = 250) -> float:
    """The code was detached for a plot, and the decoder reads the detached one."""
    torch.manual_seed(9117)
    images, _ = digits(1200, flat=True)[:2]
    data = split(images, images)
    model = DetachedAutoencoder(64)
    model.detached = broken
    fit(watch, model, adam(model, 2e-3), data, steps, loss=F.mse_loss)
    return explained(model, data)


@plant(
    "MLP",
    causes="vanishing-gradient gradient-too-small saturated-units",
    remedies="change-activation initialise add-normalizer add-skip",
)
def nine_sigmoid_layers(broken: bool, watch: Watch, steps: int = 250) -> float:
    """A deep network of sigmoids: each takes away three quarters of the gradient, the first layers starve."""
    torch.manual_seed(9118)
    data = digits(flat=True)
    model = mlp(64, *[32] * 8, 10, activation=nn.Sigmoid if broken else nn.ReLU)
    fit(watch, model, sgd(model, 0.03, momentum=0.9), data, steps)
    return accuracy(model, data)


# ---------------------------------------------------------------------------------------------- steps that never happen


@plant("MLP", causes="steps-skipped not-finite no-step", remedies="check-scaler guard-domain")
def root_of_a_zero_head(broken: bool, watch: Watch, steps: int = 150) -> float:
    """The penalty is a root of squares of a head that starts at zero: its gradient is NaN, every step is skipped."""
    torch.manual_seed(9119)
    data, model = digits(flat=True), mlp(64, 48, 10)
    nn.init.zeros_(model[-1].weight)
    optimizer, scaler = sgd(model, 0.1, momentum=0.9), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            squares = model[-1].weight.square().sum()
            loss = F.cross_entropy(model(x), y) + 1e-3 * (squares if broken else squares + 1e-6).sqrt()
            run.observe(loss=loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return accuracy(model, data)


@plant("CNN", causes="no-step", remedies="call-step order-of-calls")
def only_the_scheduler_steps(broken: bool, watch: Watch, steps: int = 120) -> float:
    """`scheduler.step()` is called, `optimizer.step()` is forgotten."""
    torch.manual_seed(9120)
    data, model = digits(), ConvNet(classes=10)
    optimizer = sgd(model, 0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            if not broken:
                optimizer.step()
            schedule.step()
    return accuracy(model, data)


@plant("MLP", causes="not-in-optimizer no-step", remedies="give-to-optimizer")
def optimizer_of_the_model_before_the_copy(broken: bool, watch: Watch, steps: int = 120) -> float:
    """The model is copied after the optimizer was built over the original."""
    torch.manual_seed(9121)
    data, original = digits(flat=True), mlp(64, 48, 10)
    model = copy.deepcopy(original)
    fit(watch, model, adam(original if broken else model, 3e-3), data, steps)
    return accuracy(model, data)


@plant(
    "ResNet",
    causes="not-in-optimizer no-step frozen-layer",
    remedies="give-to-optimizer",
    layers="head",
    other_harm="The head stays at its random start.",
)
def head_replaced_after_the_optimizer(broken: bool, watch: Watch, steps: int = 150) -> float:
    """A head for the new classes replaces the old one after the optimizer was built, and is never trained."""
    torch.manual_seed(9122)
    data, model = digits(), ResNet(blocks=2, classes=1000)
    early = sgd(model, 0.02, momentum=0.9)
    model.head = nn.Linear(12, 10)
    fit(watch, model, early if broken else sgd(model, 0.02, momentum=0.9), data, steps)
    return accuracy(model, data)


@plant(
    "recommender", causes="not-in-optimizer no-step frozen-layer", remedies="give-to-optimizer", layers="users items"
)
def groups_without_the_embeddings(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Groups with and without weight decay were chosen by module, and embeddings are in neither."""
    torch.manual_seed(9123)
    pairs, scores = ratings(2400)
    data = split(pairs, scores, held=400)
    model = Recommender()
    tower = list(model.tower.parameters())
    groups = [
        {"params": [parameter for parameter in tower if parameter.ndim > 1], "weight_decay": 1e-4},
        {"params": [parameter for parameter in tower if parameter.ndim == 1], "weight_decay": 0.0},
    ]
    if not broken:
        groups[1]["params"] += [model.users.weight, model.items.weight]
    fit(
        watch,
        model,
        torch.optim.AdamW(groups, lr=5e-3),
        data,
        steps,
        batch=64,
        loss=lambda output, target: F.mse_loss(output.reshape(target.shape), target),
    )
    return explained(model, data)


@plant(
    "CNN",
    causes="frozen-layer gradient-cut not-in-optimizer no-step",
    remedies="unfreeze",
    layers="features",
)
def frozen_for_fine_tuning_but_untrained(broken: bool, watch: Watch, steps: int = 200) -> float:
    """All but the head is frozen as for fine-tuning, but the pretrained weights were never loaded."""
    torch.manual_seed(9124)
    data, model = digits(), ConvNet(classes=10, norm=False)
    model.features.requires_grad_(not broken)
    fit(watch, model, sgd(model, 0.05, momentum=0.9), data, steps)
    return accuracy(model, data)
