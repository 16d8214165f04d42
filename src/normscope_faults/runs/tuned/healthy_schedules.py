"""Healthy runs with rates that come and go, and averaged or unusual steps."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from ...data import blob_images, sentences, table, text, waves
from ...networks import GPT, ConvNet, ResNet, SentenceEncoder, SequenceClassifier, mlp
from ..case import FIRST, OPEN, SECOND, THIRD, sound
from ..data import Data, batches, digits, friedman, markov_chain, split
from ..loops import Loop, accuracy, adam, by, by_step, explained, log_validation, pretrain, sgd
from ..networks import plain_mlp
from .parts import PostNorm, conv_net, over_tokens_of_first

OPEN.add(
    sound("noisy-batches-of-four", "mlp", "Small batches, whose losses are far apart.", lambda loop: loop.fit(
        model=plain_mlp(64, 64, 10), data=digits(flat=True), optimizer=sgd(0.02), batch=4, validate=100), steps=400),
    sound("warm-up-and-cosine-to-zero", "conv", "A rate that begins and ends at zero.", lambda loop: loop.fit(
        model=conv_net(), data=digits(), optimizer=adam(3e-3),
        schedule=by_step(lambda s: s / 60 if s < 60 else 0.5 + 0.5 * math.cos(math.pi * (s - 60) / 240)), validate=50),
        steps=300),
    sound("long-converged", "mlp", "Training that goes on when nothing is left to learn.", lambda loop: loop.fit(
        model=plain_mlp(64, 64, 10), data=digits(flat=True), optimizer=adam(1e-3), validate=100), steps=800),
    sound("regression-with-noise", "mlp", "Targets that are mostly noise: the loss hardly falls.",
        lambda loop: loop.fit(split((x := torch.randn(2048, 16)), (x @ torch.randn(16) / 4 + torch.randn(2048))[:,
        None]), plain_mlp(16, 64, 1), adam(1e-3), loss=F.mse_loss, validate=60), steps=300),
    sound("full-batch-descent", "mlp", "All samples at each step.", lambda loop: loop.fit(model=plain_mlp(64, 64, 10),
        data=(data := digits(flat=True)), optimizer=sgd(0.5), change=lambda step, x, y: (data.x[:1024], data.y[:1024])),
        steps=150),
    sound("cosine-with-restarts", "mlp", "A rate that falls to nothing each hundred steps and begins again.",
        lambda loop: loop.fit(model=plain_mlp(64, 64, 10), data=digits(flat=True), optimizer=sgd(0.2, momentum=0.9),
        schedule=lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 100), validate=50), steps=400),
    sound("long-warm-up", "mlp", "A rate that begins at a hundred-thousandth and takes two hundred steps to rise.",
        lambda loop: loop.fit(model=plain_mlp(64, 64, 10), data=digits(flat=True), optimizer=adam(1e-3),
        schedule=by_step(lambda s: max(1e-5, min(1.0, s / 200) ** 2))), steps=300),
    sound("all-of-sixty-samples", "mlp", "A data set of sixty samples, all of them at each step.",
        lambda loop: loop.fit(model=plain_mlp(64, 64, 10), data=(data := digits(count=80, flat=True)),
        optimizer=sgd(0.2), batch=len(data.x), validate=50), steps=300),
    sound("one-batch-learned-by-heart", "mlp",
        "A table of 24 rows and a regression by Adam, always the whole table in the same order.", lambda loop: loop.fit(
        judge=(data := Data((x := torch.randn(24, 6)), x @ torch.randn(6, 1), x, x @ torch.randn(6, 1))),
        model=(model := plain_mlp(6, 32, 1, act=nn.Tanh)), data=None, optimizer=adam(1e-2),
        objective=lambda step: F.mse_loss(model(data.x), data.y)), steps=150),
)  # fmt: skip


@OPEN.sound("conv", steps=150)
def frozen_backbone(loop: Loop) -> float:
    """Pretrained layers kept as they are, normalizers in eval mode, and a new head."""
    model, data = conv_net(), digits()
    pretrain(data, model, adam(3e-3), 150)
    for module in list(model)[:-1]:
        module.requires_grad_(False)
    model[-1] = nn.Linear(64, 10)
    train = nn.Sequential.train

    def keep(mode: bool = True) -> nn.Module:
        train(model, mode)
        for module in list(model)[:-1]:
            module.eval()
        return model

    model.train = keep
    return loop.fit(data, model, adam(3e-3))


@OPEN.sound("gan", steps=300)
def small_gan(loop: Loop) -> float:
    """Two networks that play against each other; the discriminator is watched."""
    generator, critic = plain_mlp(4, 32, 2), plain_mlp(2, 32, 1)
    first, second = torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
    with loop.watch(critic, second) as run:
        for _ in range(loop.steps):
            real = torch.randn(64, 2) * 0.5 + 1.0
            fake = generator(torch.randn(64, 4))
            second.zero_grad()
            loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
            run.observe(loss=loss)
            loss.backward()
            second.step()
            first.zero_grad()
            F.softplus(-critic(fake)).mean().backward()
            first.step()
    return 1.0


@OPEN.sound("mlp", steps=60)
def accumulated_gradients(loop: Loop) -> float:
    """Sixteen batches for each step."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    optimizer = sgd(0.3, momentum=0.9)(model)
    with loop.watch(model.train(), optimizer) as run:
        for count, (x, y) in zip(range(16 * loop.steps), batches(data, 8), strict=False):
            value = F.cross_entropy(model(x), y) / 16
            run.observe(loss=value)
            value.backward()
            if count % 16 == 15:
                optimizer.step()
                optimizer.zero_grad()
    return accuracy(model, data)


@OPEN.sound("transformer", steps=200)
def small_transformer(loop: Loop) -> float:
    """Attention with dropout, warm-up and AdamW."""
    data = digits(flat=True)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(
        nn.Unflatten(1, (8, 8)), nn.Linear(8, 32), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(256, 10)
    )
    return loop.fit(
        data, model, by(torch.optim.AdamW, lr=1e-3), schedule=by_step(lambda s: min(1, (s + 1) / 50)), clip=1.0
    )


@OPEN.sound("conv", steps=300)
def plateau_at_the_start(loop: Loop) -> float:
    """Convolutions without a normalizer: two hundred steps at the loss of guessing, then they learn."""
    _, data = plain_mlp(64, 64, 10), digits()
    layers = [part for width in (1, 8, 8, 8) for part in (nn.Conv2d(width, 8, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))
    return loop.fit(data, model, sgd(0.1, momentum=0.9), batch=64)


@OPEN.sound("conv", steps=300)
def strong_decay(loop: Loop) -> float:
    """SGD with a decay of 0.01 on a network with normalizers: weights shrink to their equilibrium."""
    _, data = plain_mlp(64, 64, 10), digits()
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))  # fmt: skip
    return loop.fit(data, model, sgd(0.05, momentum=0.9, decay=1e-2), validate=60)


@OPEN.sound("mlp", steps=100)
def eight_batches_a_step(loop: Loop) -> float:
    """Gradients of eight batches for each step, with the sum of their losses."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    optimizer = adam(1e-3)(model)
    with loop.watch(model.train(), optimizer) as run:
        for count, (x, y) in zip(range(8 * loop.steps), batches(data, 16), strict=False):
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            (loss / 8).backward()
            if count % 8 == 7:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return accuracy(model, data)


@OPEN.sound("mlp", steps=300)
def averaged_weights_evaluated(loop: Loop) -> float:
    """An average of the weights is validated in place of the model, by a swap there and back."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    optimizer, average = sgd(0.05, momentum=0.9)(model), [p.detach().clone() for p in model.parameters()]
    stream = batches(data)
    with loop.watch(model.train(), optimizer) as run:
        for step in range(loop.steps):
            x, y = next(stream)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for mean, parameter in zip(average, model.parameters(), strict=True):
                    mean.lerp_(parameter, 0.02)
                if step % 50 == 49:
                    kept = [p.clone() for p in model.parameters()]
                    for parameter, mean in zip(model.parameters(), average, strict=True):
                        parameter.copy_(mean)
                    log_validation(run, model, data)
                    for parameter, own in zip(model.parameters(), kept, strict=True):
                        parameter.copy_(own)
    return accuracy(model, data)


@OPEN.sound("transformer", steps=200)
def fine_tuned_head(loop: Loop) -> float:
    """A trained backbone whose last layers are new, at a small rate for the old ones."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    pretraining = nn.Sequential(backbone, nn.Linear(64, 10))
    optimizer = adam(3e-3)(pretraining)
    pretrain(data, pretraining, optimizer, 200)
    model = nn.Sequential(backbone, nn.LayerNorm(64), nn.Linear(64, 10))
    groups = [{"params": backbone.parameters(), "lr": 1e-6}, {"params": model[1:].parameters(), "lr": 1e-3}]
    return loop.fit(data, model, torch.optim.AdamW(groups, weight_decay=0.01), validate=40)


@OPEN.sound("mlp", steps=150)
def parts_are_called_and_never_the_whole(loop: Loop) -> float:
    """A ModuleDict, whose parts the loop calls one after the other."""
    data = digits(flat=True)
    parts = nn.ModuleDict({"encoder": nn.Linear(64, 64), "decoder": nn.Linear(64, 10)})
    stream = batches(data)

    def loss(step: int) -> Tensor:
        x, y = next(stream)
        return F.cross_entropy(parts["decoder"](parts["encoder"](x).relu()), y)

    loop.train(None, parts, adam(3e-3), objective=loss)
    return accuracy(nn.Sequential(parts["encoder"], nn.ReLU(), parts["decoder"]), data)


@OPEN.sound("mlp", steps=200)
def an_epoch_of_five_batches_in_order(loop: Loop) -> float:
    """Few data and no shuffling: each tenth step sees the same batch."""
    model, data = plain_mlp(64, 64, 10), digits(count=200, flat=True)
    pairs = list(zip(data.x.split(30), data.y.split(30)))
    return loop.fit(None, model, adam(3e-3), objective=lambda step: F.cross_entropy(model(pairs[step % 5][0]),
        pairs[step % 5][1]), judge=data)  # fmt: skip


@OPEN.sound("regression", steps=300)
def targets_that_grow(loop: Loop) -> float:
    """Targets grow thirtyfold over the run, as returns of a policy do that becomes better; so does the loss."""
    rule = torch.randn(8, 1)
    model = plain_mlp(8, 64, 1)

    def loss(step: int) -> Tensor:
        x = torch.randn(32, 8)
        return F.mse_loss(model(x), (0.1 + 0.01 * step) * (x @ rule))

    loop.train(None, model, adam(1e-2), objective=loss)
    x = torch.randn(512, 8)
    return explained(model, Data(x, x, x, (0.1 + 0.01 * loop.steps) * (x @ rule)))


@OPEN.sound("regression", steps=400, seed=9)
def little_to_learn_and_a_schedule_that_waits(loop: Loop) -> float:
    """Nine tenths of the targets are noise; a schedule lowers the rate each time the validation stays."""
    x = torch.randn(1200, 10)
    data = split(x, 0.3 * x[:, :1] + torch.randn(1200, 1))
    model = nn.Linear(10, 1)
    optimizer = sgd(0.05)(model)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    with loop.watch(model, optimizer) as run:
        for step, (rows, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            F.mse_loss(model(rows), y).backward()
            optimizer.step()
            if step % 15 == 14:
                log_validation(run, model, data, F.mse_loss)
                with torch.no_grad():
                    schedule.step(F.mse_loss(model(data.held_x), data.held_y))
    return explained(model, data)


@OPEN.sound("regression", steps=300, seed=10)
def all_data_at_once_down_to_the_noise(loop: Loop) -> float:
    """Gradient descent on all data: the gradient vanishes where nothing is left but noise."""
    x = torch.randn(200, 5)
    y = 0.2 * x[:, :1] + torch.randn(200, 1)
    model = nn.Linear(5, 1)
    loop.train(None, model, sgd(0.3), objective=lambda step: F.mse_loss(model(x), y))
    return explained(model, Data(x, y, x, y))


@OPEN.sound("fine-tuning", steps=250, seed=2)
def head_on_codes_that_fit_already(loop: Loop) -> float:
    """A new head on a trained, frozen body: losses are tiny, and one batch has a thousand times that of the last."""
    data = digits(1400, flat=True)
    body, first = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 10)
    early = torch.optim.Adam([*body.parameters(), *first.parameters()], 3e-3)
    for _, (x, y) in zip(range(150), batches(data)):
        early.zero_grad()
        F.cross_entropy(first(body(x)), y).backward()
        early.step()
    model = nn.Sequential(body.requires_grad_(False), nn.Linear(32, 10))
    return loop.fit(data, model, sgd(0.05, momentum=0.9))


FIRST.add(
    sound("batches-of-two", "MLP",
        "Small batches: the loss jumps between 0 and 3 from step to step and falls on average.", lambda loop: loop.fit(
        digits(flat=True), mlp(64, 48, 10), sgd(0.02), batch=2), steps=500, seed=9501),
    sound("cosine-down-to-zero", "ResNet", "The last steps have a rate of almost zero, as planned.",
        lambda loop: loop.fit(digits(), ResNet(blocks=1, classes=10), sgd(0.1, momentum=0.9, decay=5e-4),
        schedule=lambda o: lr_scheduler.CosineAnnealingLR(o, loop.steps), validate=50), steps=200, seed=9502),
    sound("warm-up-from-rate-zero", "GPT",
        "The first step has a rate of exactly zero; embedding and head share their weights.", lambda loop: loop.fit(
        split(*text(480, length=16, vocabulary=12), held=96), GPT(vocabulary=12, length=16, tied=True),
        by(torch.optim.AdamW, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1), loss=over_tokens_of_first,
        schedule=by_step(lambda step: min(step / 40, 1.0)), clip=1.0), steps=200, seed=9503),
    sound("one-cycle", "CNN", "A rate that rises to its peak and falls far below its start.", lambda loop: loop.fit(
        digits(), ConvNet(classes=10, depth=3), sgd(0.02, momentum=0.9), schedule=lambda o: lr_scheduler.OneCycleLR(o,
        max_lr=0.2, total_steps=loop.steps + 1)), steps=200, seed=9504),
    sound("warm-restarts", "MLP", "The rate returns to its start every 100 steps, and the loss makes a small jump.",
        lambda loop: loop.fit(digits(flat=True), mlp(64, 64, 10), sgd(0.1, momentum=0.9),
        schedule=lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 100)), steps=300, seed=9505),
)  # fmt: skip


SECOND.add(
    sound("cosine-with-warm-restarts", "convolutional", "The rate falls to almost nothing twice and comes back.",
        lambda loop: loop.fit(digits(1500), ConvNet(width=8, depth=3, classes=10), sgd(0.1, momentum=0.9),
        schedule=lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 150, eta_min=1e-5), validate=75), steps=450,
        seed=811),
    sound("one-cycle-to-the-end", "regression", "OneCycleLR, which ends with a rate of almost nothing, at the end.",
        lambda loop: loop.fit(friedman(), mlp(10, 64, 64, 1), by(torch.optim.AdamW, 1e-3, weight_decay=0.05),
        loss=F.mse_loss, schedule=lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=loop.steps), report=None),
        steps=350, seed=812),
    sound("clipping-for-the-rare-case", "sequence", "Clipping at 1.5, active in the first steps and now and then.",
        lambda loop: loop.fit(split(*waves(700, steps=30), held=200), SequenceClassifier(nn.LSTM(3, 24,
        batch_first=True), 3), adam(3e-3), clip=1.5), steps=350, seed=819),
)  # fmt: skip


@SECOND.sound("transformer", steps=220, seed=810)
def long_warm_up_blind(loop: Loop) -> float:
    """A warm-up over a third of the run, then a decay to a tenth; the loss stands still at first."""
    ids, _ = markov_chain(500, 13, sharpness=3.0)
    model = PostNorm(depth=2)

    def objective(step: int) -> Tensor:
        rows = ids[torch.randint(400, (24,))]
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    loop.train(None, model, adam(4e-3), clip=1.0, schedule=by_step(lambda step: min((step + 1) / 70, 1 - 0.9 * max(0,
        step - 70) / 150)), objective=objective)  # fmt: skip
    with torch.no_grad():
        return (model(ids[400:, :-1]).argmax(-1) == ids[400:, 1:]).float().mean().item()


@SECOND.sound("table", steps=640, seed=813)
def eight_batches_per_step(loop: Loop) -> float:
    """Gradients of eight small batches are accumulated for each step."""
    data, model = split(*table(1600), held=400), mlp(12, 64, 64, 3)
    optimizer = adam(8e-3)(model)
    model.train()
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data, 8)):
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            (loss / 8).backward()
            if (step + 1) % 8 == 0:
                optimizer.step()
                optimizer.zero_grad()
    return accuracy(model, data)


@SECOND.sound("regression", steps=15, seed=814)
def quasi_newton_on_all_rows(loop: Loop) -> float:
    """LBFGS calls its closure many times for each step, on the same batch of all rows."""
    data, model = friedman(500), mlp(10, 24, 1, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=10)
    with loop.watch(model, optimizer) as run:
        for _ in range(loop.steps):

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(model(data.x), data.y) + 1e-3 * sum(p.square().sum() for p in model.parameters())
                loss.backward()
                return loss

            run.observe(loss=optimizer.step(closure))
    return explained(model, data)


@SECOND.sound("text", steps=300, seed=815)
def two_optimizers_share_the_model(loop: Loop) -> float:
    """SparseAdam for the word vectors, Adam for the rest; the watcher is shown only the second."""
    data = split(*sentences(1500, length=10, vocabulary=24), held=300)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(24, 16, sparse=True), nn.Linear(24, 2)
            self.recurrent = nn.GRU(16, 24, batch_first=True)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.recurrent(self.words(ids))[0][:, -1])

    model = Reader()
    optimizer = torch.optim.Adam([*model.recurrent.parameters(), *model.head.parameters()], 5e-3)
    sparse = torch.optim.SparseAdam(model.words.parameters(), 5e-3)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        sparse.zero_grad()
        return F.cross_entropy(model(x), y)

    return loop.fit(data, model, optimizer, schedule=sparse, objective=objective)


@SECOND.sound("convolutional", steps=350, seed=816)
def validated_with_averaged_weights(loop: Loop) -> float:
    """A moving average of the weights is swapped in for each validation and out again."""
    data, model = digits(1500), ConvNet(width=8, depth=3, classes=10, norm=False)
    optimizer, average = adam(4e-3)(model), copy.deepcopy(model.state_dict())
    model.train()
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            for name, value in model.state_dict().items():
                average[name].lerp_(value, 0.05)
            if (step + 1) % 70 == 0:
                kept = copy.deepcopy(model.state_dict())
                model.load_state_dict(average)
                log_validation(run, model, data)
                model.load_state_dict(kept)
    model.load_state_dict(average)
    return accuracy(model, data)


@SECOND.sound("convolutional", steps=350, seed=817)
def stochastic_weight_averaging(loop: Loop) -> float:
    """torch.optim.swa_utils over the last third, with a constant rather high rate, then update_bn."""
    data, model = digits(1500), ConvNet(width=8, depth=3, classes=10)
    optimizer = sgd(0.05, momentum=0.9)(model)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    anneal = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.08, anneal_epochs=10)

    def then(step: int) -> None:
        if step >= 230:
            anneal.step()
            averaged.update_parameters(model)

    loop.train(data, model, optimizer, then=then, report=None)
    torch.optim.swa_utils.update_bn([data.x[:500], data.x[500:]], averaged)
    return accuracy(averaged, data)


@SECOND.sound("table", steps=300, seed=818)
def sharpness_aware_steps(loop: Loop) -> float:
    """Two passes per step: weights are moved uphill, the gradient is taken there, weights are put back."""
    data, model = split(*table(1600), held=400), mlp(12, 64, 64, 3)
    optimizer = sgd(0.05, momentum=0.9)(model)
    model.train()
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moves = [0.05 * p.grad / (norm + 1e-12) for p in model.parameters()]
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves):
                    p.add_(move)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves):
                    p.sub_(move)
            optimizer.step()
            run.observe(loss=loss.item())
    return accuracy(model, data)


THIRD.add(
    sound("inverse-root-after-a-warm-up", "transformer",
        "The schedule of the first transformer: up for a hundred steps, then down as one over the root.",
        lambda loop: loop.fit(split(*sentences(1280)), SentenceEncoder(dropout=0.1), adam(2e-3),
        schedule=by_step(lambda step: min((step + 1) / 100, (100 / (step + 1)) ** 0.5)), validate=90), steps=450,
        seed=153),
    sound("three-cycles-of-a-cosine", "convolutional",
        "The rate goes to nothing three times and jumps back, and the loss with it.", lambda loop: loop.fit(digits(),
        ConvNet(classes=10), sgd(0.2, momentum=0.9), schedule=lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o,
        T_0=100), report=None), steps=300, seed=154),
    sound("rate-divided-by-ten-at-milestones", "convolutional",
        "The classic schedule of ResNets; after the second milestone hardly anything moves, nor need it.",
        lambda loop: loop.fit(split(*blob_images(1280)), ResNet(), sgd(0.1, momentum=0.9, decay=1e-4),
        schedule=lambda o: lr_scheduler.MultiStepLR(o, [120, 220])), steps=300, seed=155),
)  # fmt: skip


@THIRD.sound("table", steps=300, seed=156)
def weights_averaged_in_the_last_third(loop: Loop) -> float:
    """Stochastic weight averaging at a constant rate, after which the average is what is kept."""
    data, model = split(*table(1280)), mlp(12, 64, 64, 3)
    average = torch.optim.swa_utils.AveragedModel(model)
    loop.train(data, model, sgd(0.1, momentum=0.9),
        then=lambda step: (step >= 200 and step % 5 == 0) and average.update_parameters(model),
        report=None)  # fmt: skip
    return accuracy(average, data)
