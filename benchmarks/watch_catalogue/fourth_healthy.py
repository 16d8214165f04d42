"""Healthy runs of the fourth part with one network: schedules, batch sizes, fine-tuning, precision, odd losses."""

import copy
import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue import parts as models
from .case import HealthyRun, Watch, healthy_run
from .fourth_parts import descend, graph, share_right, tastes
from .parts import Data, accuracy, adam, batches, by_step, digits, explained, fit, log_validation, sgd, split
from .third_parts import blobs, curves, rows, sentences, unreported, waves

HEALTHY: list[HealthyRun] = []
healthy = partial(healthy_run, HEALTHY)


# -------------------------------------------------------------------------------------------- schedules and batch sizes


@healthy("CNN")
def cosine_cycles_that_double(watch: Watch, steps: int = 300) -> float:
    """Warm restarts of 20, 40, 80 and 160 steps; the loss leaps a little at each."""
    torch.manual_seed(441)
    data, model = digits(), models.ConvNet(classes=10, norm=False)
    optimizer = sgd(model, 0.1, 0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 20, 2)
    fit(watch, model, optimizer, data, steps, schedule=schedule, clip=5.0, validate=20)
    return accuracy(model, data)


@healthy("MLP")
def batches_of_512_after_a_warm_up(watch: Watch, steps: int = 160) -> float:
    """A large batch, a rate scaled with it, and forty steps of warm-up towards it."""
    torch.manual_seed(442)
    data, model = digits(flat=True), models.mlp(64, 64, 10)
    optimizer = sgd(model, 0.4, 0.9)
    schedule = by_step(optimizer, lambda step: min(1.0, (step + 1) / 40))
    fit(watch, model, optimizer, data, steps, batch=512, schedule=schedule)
    return accuracy(model, data)


@healthy("ResNet")
def constant_rate_and_a_short_cooldown(watch: Watch, steps: int = 200) -> float:
    """Warm-up, a constant rate, and a linear fall to zero in the last quarter."""
    torch.manual_seed(443)
    data, model = digits(), models.ResNet(blocks=2, classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    schedule = by_step(optimizer, lambda step: min((step + 1) / 20, 1.0, (steps - step) / 50))
    fit(watch, model, optimizer, data, steps, schedule=schedule, validate=25)
    return accuracy(model, data)


@healthy("MLP")
def batch_that_grows_in_place_of_a_falling_rate(watch: Watch, steps: int = 240) -> float:
    """The batch doubles each sixty steps, from 8 to 64 samples, so that noise fades as under a falling rate."""
    torch.manual_seed(444)
    data, model = digits(flat=True), models.mlp(64, 64, 10)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        size = 8 * 2 ** (step // 60)
        return x[:size], y[:size]

    fit(watch, model, sgd(model, 0.05, 0.9), data, steps, batch=64, change=change)
    return accuracy(model, data)


@healthy("GRU")
def micro_batches_divided_and_summed(watch: Watch, steps: int = 80) -> float:
    """Four micro-batches of 16 series for each step, each loss divided by four."""
    torch.manual_seed(445)
    data = waves(768)
    model = models.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    optimizer, stream = adam(model, 1e-2), batches(data, 16)
    with watch(model, optimizer) as run:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=False)
            total = 0.0
            for x, y in (next(stream) for _ in range(4)):
                loss = F.cross_entropy(model(x), y) / 4
                loss.backward()
                total += loss.item()
            optimizer.step()
            run.observe(loss=total)
    return accuracy(model, data)


@healthy("MLP")
def adadelta_at_a_rate_of_one(watch: Watch, steps: int = 300) -> float:
    """A rate of one is what Adadelta is meant to have."""
    torch.manual_seed(446)
    data, model = rows(), models.mlp(12, 64, 3)
    fit(watch, model, torch.optim.Adadelta(model.parameters(), 1.0), data, steps)
    return accuracy(model, data)


@healthy("MLP")
def signs_of_the_whole_gradient(watch: Watch, steps: int = 120) -> float:
    """Rprop on all rows at once, which moves each weight by a length of its own."""
    torch.manual_seed(447)
    data, model = curves(), models.mlp(8, 32, 1)
    optimizer = torch.optim.Rprop(model.parameters(), 1e-3)
    descend(watch, model, optimizer, steps, lambda step: F.mse_loss(model(data.x), data.y))
    return explained(model, data)


@healthy("CNN")
def norm_of_one_in_every_step(watch: Watch, steps: int = 250) -> float:
    """Gradients are clipped to a norm of one, which is most often active, at a rate chosen for that."""
    torch.manual_seed(448)
    data, model = digits(), models.ConvNet(classes=10, norm=False)
    fit(watch, model, sgd(model, 0.1, 0.9), data, steps, clip=1.0)
    return accuracy(model, data)


@healthy("MLP")
def rate_cut_when_the_validation_waits(watch: Watch, steps: int = 400) -> float:
    """`ReduceLROnPlateau` on the loss of the validation halves the rate whenever it waits."""
    torch.manual_seed(449)
    data, model = curves(noise=0.3), models.mlp(8, 32, 1)
    optimizer = adam(model, 1e-2)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3, factor=0.5)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            if (step + 1) % 20 == 0:
                log_validation(run, model, data, F.mse_loss)
                with torch.no_grad():
                    schedule.step(F.mse_loss(model(data.held_x), data.held_y))
    return explained(model, data)


# ----------------------------------------------------------------------------------------------- fine-tuning, two rates


@healthy("ResNet")
def lower_half_frozen_and_the_rest_tuned(watch: Watch, steps: int = 120) -> float:
    """A net that knows five digits learns all ten; its stem and first block stay frozen, normalizers included."""
    torch.manual_seed(450)
    data, model = digits(), models.ResNet(blocks=2, classes=10)
    known = data.y < 5
    teach = adam(model, 3e-3)
    for _, (x, y) in zip(range(120), batches(Data(data.x[known], data.y[known], data.held_x, data.held_y))):
        teach.zero_grad()
        F.cross_entropy(model(x), y).backward()
        teach.step()
    model.head.reset_parameters()
    frozen = (model.stem, model.blocks[0])
    for part in frozen:
        part.requires_grad_(False)
    optimizer = adam(model, 2e-3)
    model.train()
    for part in frozen:
        part.eval()
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return accuracy(model, data)


@healthy("MLP")
def random_features_under_a_head_that_learns(watch: Watch, steps: int = 300) -> float:
    """A wide first layer stays as it was drawn, on purpose, and a linear layer reads its features."""
    torch.manual_seed(451)
    data, model = digits(flat=True), models.mlp(64, 400, 10)
    model[0].requires_grad_(False)
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


@healthy("CNN")
def body_and_head_with_rates_of_their_own(watch: Watch, steps: int = 220) -> float:
    """One optimizer for the body, with a tenth of the rate, and another for the head; both step."""
    torch.manual_seed(452)
    data, model = digits(), models.ConvNet(classes=10)
    of_body, of_head = sgd(model.features, 0.03, 0.9), adam(model.head, 1e-2)
    with watch(model, of_body) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            of_body.zero_grad()
            of_head.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            of_body.step()
            of_head.step()
    return accuracy(model, data)


@healthy("MLP")
def resumed_near_the_end(watch: Watch, steps: int = 150) -> float:
    """A run goes on from a good checkpoint with a small rate; the loss starts low and stays there."""
    torch.manual_seed(453)
    data, model = digits(flat=True), models.mlp(64, 64, 10)
    before = adam(model, 3e-3)
    for _, (x, y) in zip(range(250), batches(data)):
        before.zero_grad()
        F.cross_entropy(model(x), y).backward()
        before.step()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    optimizer.load_state_dict(before.state_dict())
    optimizer.param_groups[0]["lr"] = 5e-4
    fit(watch, model, optimizer, data, steps, validate=30)
    return accuracy(model, data)


@healthy("ViT")
def average_kept_beside_and_evaluated(watch: Watch, steps: int = 250) -> float:
    """A copy follows the weights slowly, is evaluated, and never goes back into the model."""
    torch.manual_seed(454)
    data, model = blobs(), models.ViT(depth=2)
    average, optimizer = copy.deepcopy(model), adam(model, 2e-3)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), model.parameters()):
                    slow.lerp_(fast, 0.05)
                if (step + 1) % 50 == 0:
                    run.log_metrics(val_accuracy=share_right(average(data.held_x), data.held_y))
    return accuracy(average, data)


@healthy("BERT")
def autocast_to_bfloat16_in_an_encoder(watch: Watch, steps: int = 250) -> float:
    """The forward pass runs in bfloat16, the weights stay in float32."""
    torch.manual_seed(455)
    data, model = sentences(), models.SentenceEncoder()
    optimizer = adam(model, 2e-3)

    stream = batches(data)

    def loss_of(step: int) -> Tensor:
        x, y = next(stream)
        with torch.autocast("cpu", torch.bfloat16):
            output = model(x)
        return F.cross_entropy(output.float(), y)

    descend(watch, model, optimizer, steps, loss_of)
    return accuracy(model, data)


# -------------------------------------------------------------------------------------------------- odd losses and data


@healthy("CNN")
def three_tenths_of_smoothing(watch: Watch, steps: int = 220) -> float:
    """Smoothed labels keep the loss above one for good."""
    torch.manual_seed(456)
    data, model = digits(), models.ConvNet(classes=10)
    fit(watch, model, adam(model, 3e-3), data, steps, loss=nn.CrossEntropyLoss(label_smoothing=0.3), validate=40)
    return accuracy(model, data)


@healthy("MLP")
def bias_set_to_the_base_rate(watch: Watch, steps: int = 350) -> float:
    """Four in a hundred are positive, and the bias starts there: the loss is low from the first step on."""
    torch.manual_seed(457)
    x = torch.randn(3072, 10)
    y = (x[:, 0] + x[:, 1] - x[:, 2] > 3.0).float()[:, None]
    data, model = split(x, y, held=1024), models.mlp(10, 32, 1)
    nn.init.constant_(model[-1].bias, math.log(0.04 / 0.96))
    fit(watch, model, adam(model, 5e-3), data, steps, loss=F.binary_cross_entropy_with_logits, batch=128)
    with torch.no_grad():
        order = model(data.held_x)[:, 0].argsort(descending=True)
    positives = int(data.held_y.sum())
    return data.held_y[order[:positives], 0].mean().item()


@healthy("CNN")
def noise_raised_step_by_step(watch: Watch, steps: int = 320) -> float:
    """A curriculum: noise on the images grows slowly, and so does the loss of training late in the run."""
    torch.manual_seed(458)
    data, model = digits(), models.ConvNet(classes=10)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1.2 * step / steps * torch.randn_like(x), y

    fit(watch, model, adam(model, 3e-3), data, steps, change=change, validate=40)
    return accuracy(model, data)


@healthy("MLP")
def seven_in_ten_units_dropped(watch: Watch, steps: int = 400) -> float:
    """A wide net with a dropout of 0.7: the loss of training stays above that of the validation."""
    torch.manual_seed(459)
    data = digits(flat=True)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.7), nn.Linear(512, 10))
    fit(watch, model, adam(model, 2e-3), data, steps, validate=50)
    return accuracy(model, data)


@healthy("linear")
def chain_of_linear_maps_from_a_small_start(watch: Watch, steps: int = 400) -> float:
    """Three linear layers that start small: the loss waits on a plateau before it falls."""
    torch.manual_seed(460)
    x = torch.randn(1024, 6)
    data = split(x, x @ torch.randn(6, 3) / 2)
    model = nn.Sequential(nn.Linear(6, 12, bias=False), nn.Linear(12, 12, bias=False), nn.Linear(12, 3, bias=False))
    for layer in model:
        nn.init.normal_(layer.weight, std=0.06)
    fit(watch, model, sgd(model, 0.05, 0.9), data, steps, loss=F.mse_loss)
    return explained(model, data)


@healthy("MLP")
def catapult_in_the_first_steps(watch: Watch, steps: int = 200) -> float:
    """A brave rate throws the loss up for a few steps; it comes down by itself into a flatter valley."""
    torch.manual_seed(461)
    data, model = digits(flat=True), models.mlp(64, 64, 10)
    fit(watch, model, sgd(model, 0.35, 0.8), data, steps, batch=64)
    return accuracy(model, data)


@healthy("MLP")
def heavy_tails_under_a_robust_loss(watch: Watch, steps: int = 350) -> float:
    """Targets have tails of a Student distribution, and Huber's loss takes them calmly."""
    torch.manual_seed(462)
    data, model = curves(), models.mlp(8, 48, 1)
    tails = torch.distributions.StudentT(2.0)
    noisy = data._replace(y=data.y + 0.3 * tails.sample(data.y.shape))
    fit(watch, model, adam(model, 5e-3), noisy, steps, loss=nn.HuberLoss(delta=0.5))
    return explained(model, data)


@healthy("line")
def two_numbers_in_all(watch: Watch, steps: int = 150) -> float:
    """A slope and an intercept."""
    torch.manual_seed(463)
    x = torch.randn(512, 1)
    data, model = split(x, 1.7 * x - 0.4 + 0.2 * torch.randn(512, 1)), nn.Linear(1, 1)
    fit(watch, model, sgd(model, 0.1), data, steps, loss=F.mse_loss, batch=16)
    return explained(model, data)


@healthy("logistic")
def three_columns_and_two_classes(watch: Watch, steps: int = 200) -> float:
    """A logistic regression with four numbers, some labels of which are wrong."""
    torch.manual_seed(464)
    x = torch.randn(1024, 3)
    y = (x[:, 0] - 0.5 * x[:, 1] + 0.5 * torch.randn(1024) > 0).long()
    data, model = split(x, y), nn.Linear(3, 2)
    fit(unreported(watch), model, sgd(model, 0.2, 0.9), data, steps, batch=16)
    return accuracy(model, data)


@healthy("MLP")
def counts_under_a_poisson_loss(watch: Watch, steps: int = 350) -> float:
    """Counts with a logarithmic link; the loss may fall below zero."""
    torch.manual_seed(465)
    x = torch.randn(2048, 6)
    rate = (1.2 + 0.7 * x[:, :1] - 0.5 * x[:, 1:2] * x[:, 2:3].tanh()).exp()
    data, model = split(x, torch.poisson(rate)), models.mlp(6, 48, 1)
    fit(watch, model, adam(model, 3e-3), data, steps, loss=nn.PoissonNLLLoss(log_input=True))
    return explained(nn.Sequential(model, _Exponential()), data)


class _Exponential(nn.Module):
    """The exponential function."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


@healthy("MLP")
def three_quantiles_by_one_net(watch: Watch, steps: int = 350) -> float:
    """The pinball loss for a lower, a middle and an upper quantile."""
    torch.manual_seed(466)
    data, model = curves(noise=0.3), models.mlp(8, 48, 3)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return torch.maximum(levels * (y - output), (levels - 1) * (y - output)).mean()

    fit(watch, model, adam(model, 5e-3), data, steps, loss=loss)
    with torch.no_grad():
        low, _, high = model(data.held_x).unbind(1)
    inside = ((low < data.held_y[:, 0]) & (data.held_y[:, 0] < high)).float().mean().item()
    return 1 - abs(inside - 0.8)


@healthy("CNN")
def several_labels_per_image(watch: Watch, steps: int = 220) -> float:
    """Ten yes-or-no questions about each image, most of them answered no."""
    torch.manual_seed(467)
    data, model = digits(), models.ConvNet(classes=10)
    fit(
        watch, model, adam(model, 5e-3), data, steps,
        loss=lambda out, y: F.binary_cross_entropy_with_logits(out, F.one_hot(y, 10).float()),
    )  # fmt: skip
    return accuracy(model, data)


@healthy("SIREN")
def sine_waves_fit_one_picture(watch: Watch, steps: int = 400) -> float:
    """A net of sines learns one picture as a function of the place, from the same pixels in each step."""
    torch.manual_seed(468)
    image = models.blob_images(4)[0][0, 0]
    axis = torch.linspace(-1, 1, 16)
    places = torch.cartesian_prod(axis, axis)

    class Sine(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(8 * x)

    model = models.mlp(2, 48, 48, 1, activation=Sine)
    for layer in (model[2], model[4]):
        nn.init.uniform_(layer.weight, -math.sqrt(6 / 48) / 8, math.sqrt(6 / 48) / 8)
    target = image.reshape(-1, 1)
    descend(watch, model, adam(model, 1e-3), steps, lambda step: F.mse_loss(model(places), target))
    with torch.no_grad():
        return (1 - F.mse_loss(model(places), target) / target.var(correction=0)).item()


class _Skipping(nn.Module):
    """A residual block that is left out at random while training."""

    def __init__(self, block: nn.Module, share: float) -> None:
        super().__init__()
        self.block, self.share = block, share

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.rand(()) < self.share:
            return x
        return self.block(x)


@healthy("ResNet")
def blocks_left_out_at_random(watch: Watch, steps: int = 220) -> float:
    """Stochastic depth: in each step one block in five is skipped, and its parameters get no gradient."""
    torch.manual_seed(469)
    data, model = digits(), models.ResNet(blocks=3, classes=10)
    model.blocks = nn.Sequential(*(_Skipping(block, 0.2) for block in model.blocks))
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


@healthy("GNN")
def graph_with_dropout_and_decay(watch: Watch, steps: int = 120) -> float:
    """The usual recipe for a graph: all nodes in each step, a decay of 5e-4, half of the features dropped."""
    torch.manual_seed(470)
    x, edges, y, train, rest = graph()
    model = models.GraphNet(edges)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4)
    descend(watch, model, optimizer, steps, lambda step: F.cross_entropy(model(F.dropout(x, 0.5))[train], y[train]))
    return share_right(model(x)[rest], y[rest])


@healthy("recommender")
def rare_articles_with_sparse_gradients(watch: Watch, steps: int = 400) -> float:
    """Embeddings with sparse gradients under SparseAdam: most rows stand still in most steps."""
    torch.manual_seed(471)
    data = tastes()

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(40, 6, sparse=True), nn.Embedding(30, 6, sparse=True)

        def forward(self, pairs: Tensor) -> Tensor:
            return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)

    model = Product()
    optimizer = torch.optim.SparseAdam(list(model.parameters()), 3e-2)
    fit(watch, model, optimizer, data, steps, loss=F.mse_loss)
    return explained(model, data)


@healthy("GPT")
def next_tokens_with_a_warm_up_and_decay(watch: Watch, steps: int = 300) -> float:
    """The usual recipe: AdamW with 0.1 of decay, beta2 of 0.95, warm-up, cosine, clipping at one."""
    torch.manual_seed(472)
    ids = torch.randint(12, (1024, 1)) + 3 * torch.arange(17)
    ids = torch.where(torch.rand(ids.shape) < 0.1, torch.randint(12, ids.shape), ids % 12)
    data = split(ids[:, :-1], ids[:, 1:])
    model = models.GPT(vocabulary=12)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3, betas=(0.9, 0.95), weight_decay=0.1)
    cosine = by_step(
        optimizer, lambda step: min(1.0, (step + 1) / 30) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
    )
    fit(watch, model, optimizer, data, steps, loss=models.over_tokens, schedule=cosine, clip=1.0, validate=50)
    return accuracy(model, data)
