"""Runs whose rate, gradient or weights are kept from moving: rates, schedules, clipping, weights put back."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from ...data import blob_images, sentences, table, text, waves
from ...networks import GPT, Autoencoder, ConvNet, ResNet, SentenceEncoder, SequenceClassifier, ViT, mlp
from ..case import FIRST, OPEN, SECOND, THIRD, fault
from ..data import Data, batches, curves, digits, friedman, spirals, split
from ..loops import Loop, accuracy, adam, by, by_step, explained, log_validation, sgd
from ..networks import plain_mlp
from .parts import over_tokens_of_first

OPEN.add(
    fault("rate-of-1e-7", "mlp", "rate-too-low", "raise-learning-rate", "A learning rate meant for another optimizer.",
        lambda broken, loop: loop.fit(model=plain_mlp(64, 64, 10), data=digits(flat=True),
        optimizer=sgd(1e-7 if broken else 0.1)), steps=200),
    fault("rate-zero-by-schedule", "mlp", "rate-zero", "fix-schedule raise-learning-rate",
        "An integer division in a warm-up.", lambda broken, loop: loop.fit(model=plain_mlp(64, 64, 10),
        data=digits(flat=True), optimizer=adam(1e-3), schedule=by_step(lambda step: step // 1000 if broken else 1)),
        steps=200),
    fault("schedule-per-batch", "mlp", "rate-decays-too-early rate-too-low", "fix-schedule raise-learning-rate",
        "StepLR stepped for each batch instead of each epoch.", lambda broken, loop: loop.fit(model=plain_mlp(64, 64,
        10), data=digits(flat=True), optimizer=sgd(0.1), schedule=lambda o: lr_scheduler.StepLR(o, 5 if broken else 500,
        0.1)), onset=15, steps=200),
    fault("loss-times-1e-6", "mlp", "gradient-too-small rate-too-low", "rescale-loss raise-learning-rate",
        "A weight of one term of a loss that is left when the others go.", lambda broken, loop: loop.fit(
        model=plain_mlp(64, 64, 10), data=digits(flat=True), optimizer=sgd(0.1), loss=lambda o, y: F.cross_entropy(o,
        y) * (1e-6 if broken else 1)), steps=200),
    fault("clipped-at-1e-4", "mlp", "clipping-always-active rate-too-low gradient-too-small",
        "loosen-clipping raise-learning-rate", "A limit for another model.", lambda broken, loop: loop.fit(
        model=plain_mlp(64, 64, 10), data=digits(flat=True), optimizer=sgd(0.1), clip=1e-4 if broken else 10.0),
        steps=200),
)  # fmt: skip


@OPEN.fault("mlp", "weights-put-back", "keep-weights", steps=200)
def weights_copied_back(broken: bool, loop: Loop) -> float:
    """Averaged weights that are swapped in and never out."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    start = [parameter.detach().clone() for parameter in model.parameters()]

    def put_back(step: int) -> None:
        with torch.no_grad():
            for parameter, kept in zip(model.parameters(), start, strict=True):
                parameter.copy_(kept)

    return loop.fit(data, model, sgd(0.1), then=put_back if broken else None)


@OPEN.fault("classification", "clipping-always-active gradient-too-small rate-too-low not-learning",
    "loosen-clipping raise-learning-rate rescale-loss", onset=30, steps=250)  # fmt: skip
def norm_clipped_to_nothing_from_step_30_on(broken: bool, loop: Loop) -> float:
    """clip_grad_norm_ with a limit that a schedule lowers to 1e-5."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    optimizer = sgd(0.02)(model)
    with loop.watch(model.train(), optimizer):
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-5 if broken and step >= 30 else 5.0)
            optimizer.step()
    return accuracy(model, data)


def _next_words() -> Data:
    """Return token ids of twelve words and the ids that follow."""
    return split(*text(480, length=16, vocabulary=12), held=96)


FIRST.add(
    fault("seven-zeros-too-many", "ResNet", "rate-too-low", "raise-learning-rate fix-schedule",
        "A rate of 1e-7, a typing error for 1e-1, with momentum and BatchNorm.", lambda broken, loop: loop.fit(digits(),
        ResNet(blocks=2, classes=10), sgd(1e-7 if broken else 0.1, momentum=0.9)), steps=150, seed=9101),
    fault("warm-up-by-integer-division", "GPT", "rate-zero rate-too-low no-step", "fix-schedule raise-learning-rate",
        "The warm-up divides integers, so the factor is 0 until its last step.", lambda broken, loop: loop.fit(
        _next_words(), GPT(vocabulary=12, length=16), by(torch.optim.AdamW, lr=3e-3, weight_decay=0.01),
        loss=over_tokens_of_first, schedule=by_step(lambda step: step // (1000 if broken
        else 20) if broken else min(1.0, (step + 1) / (1000 if broken else 20)))), steps=200, seed=9102),
    fault("epoch-schedule-stepped-each-batch", "CNN", "rate-decays-too-early rate-too-low rate-zero",
        "fix-schedule raise-learning-rate",
        "`StepLR(step_size=5)` was meant for epochs, and `scheduler.step()` stands in the inner loop.", lambda broken,
        loop: loop.fit(digits(), ConvNet(classes=10, norm=False), sgd(0.05, momentum=0.9),
        schedule=lambda o: lr_scheduler.StepLR(o, step_size=5 if broken else 5 * 42, gamma=0.5)), onset=30, steps=300,
        seed=9103),
    fault("clipped-to-one-ten-thousandth", "LSTM", "clipping-always-active gradient-too-small rate-too-low",
        "loosen-clipping raise-learning-rate", "`clip_grad_norm_(..., 1e-4)` where 1.0 was meant.", lambda broken,
        loop: loop.fit(split(*waves(512, steps=24), held=128), SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3),
        sgd(0.3, momentum=0.9), clip=1e-4 if broken else 1.0), steps=150, seed=9105),
    fault("fine-tuning-rate-from-scratch", "ViT", "rate-too-low", "raise-learning-rate",
        "A rate for fine-tuning, 2e-6, for a network that starts from nothing.", lambda broken, loop: loop.fit(
        split(*blob_images(768), held=192), ViT(depth=2), by(torch.optim.AdamW, lr=2e-6 if broken else 1e-3,
        weight_decay=0.05)), steps=150, seed=9106),
)  # fmt: skip


@FIRST.fault("autoencoder", "gradient-too-small rate-too-low", "rescale-loss raise-learning-rate", steps=250, seed=9104)
def loss_divided_by_every_count(broken: bool, loop: Loop) -> float:
    """The mean squared error is divided once more by the samples and the pixels, under plain SGD."""
    images, _ = digits(1200, flat=True)[:2]
    data = split(images, images)
    model = Autoencoder(64)

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        value = F.mse_loss(output, target)
        return value / (target.numel() * len(data.x)) if broken else value

    return loop.fit(data, model, sgd(0.2, momentum=0.9), loss=loss)


@FIRST.fault("MLP", "weights-put-back", "keep-weights", steps=200, seed=9107)
def average_copied_into_the_model(broken: bool, loop: Loop) -> float:
    """The moving average of the weights is copied into the model after each step and so holds them where they were."""
    data, model = digits(flat=True), mlp(64, 48, 10)
    average = copy.deepcopy(model)

    @torch.no_grad()
    def then(step: int) -> None:
        for mean, weight in zip(average.parameters(), model.parameters()):
            mean.lerp_(weight, 0.002)
            if broken:
                weight.copy_(mean)

    return loop.fit(data, model, sgd(0.05), then=then)


SECOND.add(
    fault("mistyped-exponent", "table", "rate-too-low not-learning", "raise-learning-rate",
        "3e-7 typed for 3e-3 in a configuration file.", lambda broken, loop: loop.fit(split(*table(1600), held=400),
        mlp(12, 64, 64, 3), adam(3e-7 if broken else 3e-3), report=None), steps=350, seed=701),
    fault("warm-up-longer-than-the-run", "sequence", "rate-too-low not-learning", "fix-schedule raise-learning-rate",
        "A warm-up of 100 000 steps copied from a large model into a short run.", lambda broken, loop: loop.fit(
        split(*waves(700, steps=30), held=200), SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3), sgd(0.3,
        momentum=0.9), schedule=by_step(lambda step: min(1.0, (step + 1) / (100_000 if broken else 30))), report=None),
        steps=300, seed=703),
    fault("inverse-decay-in-whole-numbers", "table", "rate-zero rate-decays-too-early not-learning no-step",
        "fix-schedule raise-learning-rate",
        "A decay of 1 / (1 + step / 200) written with //, which is zero from the second step on.", lambda broken,
        loop: loop.fit(split(*table(1600), held=400), mlp(12, 64, 64, 3), sgd(0.1, momentum=0.9),
        schedule=by_step(lambda step: 1 // (1 + step) if broken else 1 / (1 + step / 200))), onset=1, steps=300,
        seed=705),
    fault("mean-loss-divided-once-more", "regression", "gradient-too-small rate-too-low not-learning",
        "rescale-loss raise-learning-rate",
        "A loss that is a mean already, divided by the number of samples in the data set.", lambda broken,
        loop: loop.fit((data := friedman()), mlp(10, 64, 1), sgd(0.05), loss=lambda output, y: F.mse_loss(output,
        y) / (len(data.x) if broken else 1)), steps=350, seed=707),
    fault("clipping-at-a-thousandth", "table", "clipping-always-active gradient-too-small rate-too-low not-learning",
        "loosen-clipping raise-learning-rate", "max_norm=1e-3 taken for a rate, with plain SGD.", lambda broken,
        loop: loop.fit(split(*table(1600), held=400), mlp(12, 64, 64, 3), sgd(0.2), clip=1e-3 if broken else 5.0),
        steps=350, seed=708),
    fault("rates-fall-a-thousandfold-per-layer", "table", "rate-too-low no-step rate-zero not-learning",
        "raise-learning-rate fix-schedule",
        "Rates by layer that fall with a factor of 0.001 per layer, where 0.8 was meant.", lambda broken,
        loop: loop.fit(spirals(), (model := mlp(2, 48, 48, 16, 2, activation=nn.Tanh)),
        torch.optim.Adam([{"params": model[index].parameters(),
        "lr": 0.01 * (1e-3 if broken else 0.8) ** depth} for depth, index in enumerate((6, 4, 2, 0))]), report=None),
        layers="0 2 4 0.weight 2.weight 4.weight", steps=500, seed=738),
)  # fmt: skip


@SECOND.fault("convolutional", "rate-decays-too-early rate-too-low not-learning", "fix-schedule raise-learning-rate",
    onset=3, steps=320, seed=702)  # fmt: skip
def epoch_decay_stepped_per_batch(broken: bool, loop: Loop) -> float:
    """ExponentialLR whose gamma is meant for epochs, stepped with each batch."""
    data, model = split(*blob_images(900, 6, 12), held=240), ConvNet(width=8, depth=3, classes=6, norm=False)
    optimizer = sgd(0.05, momentum=0.9)(model)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.8)
    return loop.fit(data, model, optimizer, number=True, then=lambda step: (broken or (step + 1) % 20 == 0)
        and schedule.step(), report="step")  # fmt: skip


@SECOND.fault("table", "rate-decays-too-early rate-too-low not-learning", "fix-schedule raise-learning-rate", onset=90,
    steps=500, seed=704)  # fmt: skip
def plateau_schedule_looks_for_a_maximum(broken: bool, loop: Loop) -> float:
    """ReduceLROnPlateau left at mode='max' from an accuracy, and given a loss that falls."""
    data, model = split(*table(1600), held=400), mlp(12, 64, 64, 3)
    optimizer = sgd(0.01, momentum=0.9)(model)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, "max" if broken else "min", patience=3)
    model.train()
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if (step + 1) % 15 == 0:
                log_validation(run, model, data)
                with torch.no_grad():
                    schedule.step(F.cross_entropy(model(data.held_x), data.held_y))
    return accuracy(model, data)


@SECOND.fault("convolutional", "rate-decays-too-early rate-too-low rate-zero not-learning",
    "fix-schedule raise-learning-rate", onset=100, steps=450, seed=706)  # fmt: skip
def milestones_in_the_wrong_unit(broken: bool, loop: Loop) -> float:
    """Milestones listed close to each other, so that the rate falls a million times in the first quarter."""
    data, model = digits(1200), ConvNet(width=8, depth=3, classes=10, norm=False)
    milestones = [100, 105, 110, 115, 120, 125] if broken else [400]
    return loop.fit(data, model, sgd(0.02, momentum=0.9), schedule=lambda o: lr_scheduler.MultiStepLR(o, milestones))


@SECOND.fault("sequence", "gradient-too-small rate-too-low not-learning clipping-always-active",
    "rescale-loss loosen-clipping raise-learning-rate", onset=150, steps=450, seed=709)  # fmt: skip
def value_clipping_tightened_in_the_middle(broken: bool, loop: Loop) -> float:
    """A schedule of clip_grad_value_ that was meant to go from 1 to 0.5 and goes to 1e-6."""
    data = split(*waves(700, steps=30), held=200)
    data = data._replace(x=data.x + 0.8 * torch.randn_like(data.x))
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    optimizer = sgd(0.05, momentum=0.9)(model)
    model.train()
    with loop.watch(model, optimizer):
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_value_(model.parameters(), 1e-6 if broken and step >= 150 else 1.0)
            optimizer.step()
    return accuracy(model, data)


@SECOND.fault("table", "weights-put-back not-learning no-step", "keep-weights", steps=350, seed=710)
def average_copied_into_the_model_blind(broken: bool, loop: Loop) -> float:
    """A moving average of the weights for validation that is copied into the model itself after each step."""
    data, model = split(*table(1600), held=400), mlp(12, 64, 64, 3)
    average = copy.deepcopy(model)

    def then(step: int) -> None:
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters()):
                slow.lerp_(fast, 0.001)
                if broken:
                    fast.copy_(slow)

    return loop.fit(data, model, adam(2e-3), then=then)


@SECOND.fault("convolutional", "weights-put-back not-learning loss-spike", "keep-weights", onset=12, steps=360,
    seed=711)  # fmt: skip
def checkpoint_loaded_inside_the_loop(broken: bool, loop: Loop) -> float:
    """load_state_dict of the starting checkpoint, indented one level too far: it runs once per epoch of 12 steps."""
    data, model = split(*blob_images(600, 6, 12), held=240), ConvNet(width=8, depth=3, classes=6, norm=False)
    start = copy.deepcopy(model.state_dict())

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        if broken and step % 12 == 0:
            model.load_state_dict(start)
        return F.cross_entropy(model(x), y)

    return loop.fit(data, model, sgd(0.02), objective=objective, report=None)


@SECOND.fault("regression", "weights-put-back not-learning", "keep-weights lower-penalty rescale-layer",
    layers="2 2.weight 0 0.weight", steps=350, seed=712)  # fmt: skip
def norm_constraint_after_each_step(broken: bool, loop: Loop) -> float:
    """A max-norm constraint meant as 3.0 per unit, applied to whole weights at 0.03 after each step."""
    data, model = friedman(), mlp(10, 48, 48, 1)
    limit = 0.03 if broken else 30.0

    def then(step: int) -> None:
        with torch.no_grad():
            for layer in (model[0], model[2]):
                layer.weight.mul_((limit / layer.weight.norm()).clamp(max=1.0))

    return loop.fit(data, model, adam(3e-3), loss=F.mse_loss, then=then)


@SECOND.fault("regression", "rate-too-low not-learning", "raise-learning-rate scale-targets fix-schedule", steps=300,
    seed=726)  # fmt: skip
def prices_far_from_where_the_network_starts(broken: bool, loop: Loop) -> float:
    """Prices of about 200 000 as targets, which Adam's small steps cannot reach."""
    data = friedman()
    if broken:
        data = split(torch.cat([data.x, data.held_x]), 2e5 + 5e4 * torch.cat([data.y, data.held_y]), held=350)
    model = mlp(10, 48, 48, 1)
    loop.train(data, model, adam(1e-3), loss=F.mse_loss)
    return max(explained(model, data), -10.0)


@SECOND.fault("convolutional", "clipping-always-active gradient-too-small rate-too-low not-learning",
    "loosen-clipping check-scaler rescale-loss", steps=250, seed=732)  # fmt: skip
def scaled_gradients_clipped(broken: bool, loop: Loop) -> float:
    """clip_grad_norm_ before scaler.unscale_: gradients 65536 times too large are clipped, then divided."""
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10, norm=False)
    optimizer, scaler = sgd(0.03, momentum=0.9)(model), torch.amp.GradScaler("cpu")
    model.train()
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            scaler.scale(loss).backward()
            if not broken:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    return accuracy(model, data)


THIRD.add(
    fault("rate-of-adam-handed-to-sgd", "convolutional", "rate-too-low not-learning", "raise-learning-rate",
        "Someone exchanges Adam for SGD and keeps the rate of 1e-4.", lambda broken, loop: loop.fit(digits(),
        ConvNet(classes=10), sgd(1e-4 if broken else 0.1)), steps=250, seed=11),
    fault("rate-and-decay-exchanged", "table", "rate-too-low not-learning", "raise-learning-rate",
        "Two positional arguments of a helper are exchanged: the rate gets the weight decay's 1e-6.", lambda broken,
        loop: loop.fit(split(*table(1280)), mlp(12, 48, 48, 3), by(torch.optim.AdamW, 1e-6 if broken else 3e-3,
        weight_decay=3e-3 if broken else 1e-6), report=None), steps=300, seed=12),
    fault("polynomial-decay-over-epochs-stepped-by-batch", "regression",
        "rate-too-low rate-zero rate-decays-too-early not-learning no-step", "fix-schedule raise-learning-rate",
        "`PolynomialLR(total_iters=epochs)` is stepped after every batch and ends in the first epoch.", lambda broken,
        loop: loop.fit(curves(), mlp(8, 64, 64, 1), sgd(0.05), loss=F.mse_loss,
        schedule=lambda o: lr_scheduler.PolynomialLR(o, total_iters=20 if broken else loop.steps), report=None),
        steps=400, seed=13),
    fault("mean-error-divided-by-pixels-again", "autoencoder", "gradient-too-small rate-too-low not-learning",
        "rescale-loss raise-learning-rate",
        "The mean squared error, a mean already, is divided by batch, height and width.", lambda broken, loop: loop.fit(
        Data((data := digits(flat=True)).x, data.x, data.held_x, data.held_x), Autoencoder(64, 16), sgd(0.2,
        momentum=0.9), loss=lambda output, y: F.mse_loss(output, y) / (32 * 64 if broken else 1)), steps=400, seed=16),
)  # fmt: skip


@THIRD.fault("convolutional", "rate-too-low rate-decays-too-early not-learning rate-zero",
    "fix-schedule raise-learning-rate", onset=5, steps=300, seed=14)  # fmt: skip
def plateau_schedule_fed_with_single_batches(broken: bool, loop: Loop) -> float:
    """`ReduceLROnPlateau` gets the loss of each batch, whose noise it takes for a plateau."""
    data, model = digits(), ConvNet(classes=10, norm=False)
    optimizer = sgd(0.05, momentum=0.5)(model)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    sum_of_epoch = 0.0
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            sum_of_epoch += loss.item()
            if broken:
                plateau.step(loss.item())
            elif (step + 1) % 42 == 0:
                plateau.step(sum_of_epoch / 42)
                sum_of_epoch = 0.0
    return accuracy(model, data)


@THIRD.fault("text", "rate-zero rate-too-low rate-decays-too-early not-learning no-step",
    "fix-schedule raise-learning-rate restore-weights", onset=120, steps=500, seed=15)  # fmt: skip
def optimizer_state_of_a_finished_run(broken: bool, loop: Loop) -> float:
    """A second stage loads the optimizer's state of a run whose schedule had ended, and with it a rate of 1e-9."""
    data, model = split(*sentences(1280)), SentenceEncoder()
    optimizer = adam(1e-3)(model)

    def resume(step: int) -> None:
        if broken and step == 119:
            state = optimizer.state_dict()
            state["param_groups"][0]["lr"] = 1e-9
            optimizer.load_state_dict(state)

    return loop.fit(data, model, optimizer, then=resume)


@THIRD.fault("sequence", "clipping-always-active gradient-too-small rate-too-low not-learning",
    "loosen-clipping raise-learning-rate", steps=250, seed=17)  # fmt: skip
def values_of_the_gradient_clipped_at_1e_5(broken: bool, loop: Loop) -> float:
    """`clip_grad_value_` gets the small number that was meant for the epsilon."""
    data, model = split(*waves(1024)), SequenceClassifier(nn.GRU(3, 32, batch_first=True), 3)
    optimizer = sgd(0.3, momentum=0.9)(model)
    with loop.watch(model, optimizer) as run:
        for x, y in (batch for batch, _ in zip(batches(data), range(loop.steps))):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 1e-5 if broken else 0.5)
            optimizer.step()
            run.log_metrics(loss=loss.item())
    return accuracy(model, data)


@THIRD.fault("reinforcement", "weights-put-back not-learning no-step", "keep-weights", steps=300, seed=18)
def target_network_copied_into_the_learner(broken: bool, loop: Loop) -> float:
    """`online.load_state_dict(target.state_dict())`: the copy goes in the wrong direction after every step."""
    data, online = curves(), mlp(8, 64, 64, 1)
    target = copy.deepcopy(online)

    def objective(step: int, state: Tensor, value: Tensor) -> Tensor:
        next_value = target(state).detach()
        return F.smooth_l1_loss(online(state), value + 0.1 * next_value)

    def then(step: int) -> None:
        if broken:
            online.load_state_dict(target.state_dict())
        elif step % 20 == 19:
            target.load_state_dict(online.state_dict())

    return loop.fit(data, online, adam(3e-3), objective=objective, then=then, report="step")


@THIRD.fault("convolutional",
    "weights-put-back not-learning vanishing-gradient gradient-too-small layer-decayed output-constant",
    "keep-weights initialise rescale-layer add-normalizer", steps=250, seed=19)  # fmt: skip
def weights_clamped_as_in_a_wasserstein_critic(broken: bool, loop: Loop) -> float:
    """The line that clamps a critic's weights to one hundredth is copied into the training of a classifier."""
    data, model = split(*blob_images(1280)), ConvNet(norm=False)

    def clamp(step: int) -> None:
        if broken:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.01, 0.01)

    return loop.fit(data, model, adam(2e-3), then=clamp, report=None)


@THIRD.fault("transformer", "rate-too-low rate-decays-too-early rate-zero not-learning",
    "fix-schedule raise-learning-rate", onset=60, steps=450, seed=32)  # fmt: skip
def inverse_decay_counts_samples(broken: bool, loop: Loop) -> float:
    """After the warm-up the rate falls as one over the number of samples seen, where that of steps was meant."""
    data, model = split(*sentences(1280)), SentenceEncoder()

    def factor(step: int) -> float:
        after = max(step - 60, 0) * (32 if broken else 1)
        return min((step + 1) / 60, 1.0) / (1 + after / 200)

    return loop.fit(data, model, adam(2e-3), schedule=by_step(factor))


@THIRD.fault("regression", "weights-put-back not-learning", "keep-weights", onset=25, steps=300, seed=128)
def averaged_weights_left_in_after_validation(broken: bool, loop: Loop) -> float:
    """For each validation the moving average is loaded into the model, and nobody puts the trained weights back."""
    data, model = curves(), mlp(8, 64, 64, 1)
    optimizer, average = adam(2e-3)(model), copy.deepcopy(model)
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), model.parameters()):
                    slow.lerp_(fast, 0.003)
            if (step + 1) % 25 == 0:
                trained = copy.deepcopy(model.state_dict())
                model.load_state_dict(average.state_dict())
                log_validation(run, model, data, F.mse_loss)
                if not broken:
                    model.load_state_dict(trained)
    return explained(model, data)
