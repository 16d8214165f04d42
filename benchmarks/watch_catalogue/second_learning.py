"""Runs in which nothing is learned, or hardly anything."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue.parts import ConvNet, mlp
from .case import RunFault, Watch, run_fault
from .parts import (
    accuracy,
    adam,
    batches,
    by_step,
    digits,
    explained,
    fit,
    log_validation,
    or_minus_infinity,
    sgd,
    split,
)
from .second_parts import LastState, blobs, curved_table, fit_silently, frequencies, friedman, spirals, word_orders

FAULTS: list[RunFault] = []

# ------------------------------------------------------------------------------------------------- rates and schedules


@run_fault(FAULTS, "table", causes="rate-too-low not-learning", remedies="raise-learning-rate")
def mistyped_exponent(broken: bool, watch: Watch, steps: int = 350) -> float:
    """3e-7 typed for 3e-3 in a configuration file."""
    torch.manual_seed(701)
    data, model = curved_table(), mlp(12, 64, 64, 3)
    fit_silently(watch, model, adam(model, 3e-7 if broken else 3e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="rate-decays-too-early rate-too-low not-learning",
    remedies="fix-schedule raise-learning-rate",
    onset=3,
)
def epoch_decay_stepped_per_batch(broken: bool, watch: Watch, steps: int = 320) -> float:
    """ExponentialLR whose gamma is meant for epochs, stepped with each batch."""
    torch.manual_seed(702)
    data, model = blobs(), ConvNet(width=8, depth=3, classes=6, norm=False)
    optimizer = sgd(model, 0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            run.observe(loss=loss.item())
            if broken or (step + 1) % 20 == 0:
                schedule.step()
    return accuracy(model, data)


@run_fault(FAULTS, "sequence", causes="rate-too-low not-learning", remedies="fix-schedule raise-learning-rate")
def warm_up_longer_than_the_run(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A warm-up of 100 000 steps copied from a large model into a short run."""
    torch.manual_seed(703)
    data, model = frequencies(), LastState(nn.GRU(3, 24, batch_first=True), 24, 3)
    optimizer = sgd(model, 0.3, momentum=0.9)
    schedule = by_step(optimizer, lambda step: min(1.0, (step + 1) / (100_000 if broken else 30)))
    fit_silently(watch, model, optimizer, data, steps, schedule=schedule)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="rate-decays-too-early rate-too-low not-learning",
    remedies="fix-schedule raise-learning-rate",
    onset=90,
)
def plateau_schedule_looks_for_a_maximum(broken: bool, watch: Watch, steps: int = 500) -> float:
    """ReduceLROnPlateau left at mode='max' from an accuracy, and given a loss that falls."""
    torch.manual_seed(704)
    data, model = curved_table(), mlp(12, 64, 64, 3)
    optimizer = sgd(model, 0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max" if broken else "min", patience=3)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if (step + 1) % 15 == 0:
                log_validation(run, model, data)
                with torch.no_grad():
                    schedule.step(F.cross_entropy(model(data.held_x), data.held_y))
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="rate-zero rate-decays-too-early not-learning no-step",
    remedies="fix-schedule raise-learning-rate",
    onset=1,
)
def inverse_decay_in_whole_numbers(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A decay of 1 / (1 + step / 200) written with //, which is zero from the second step on."""
    torch.manual_seed(705)
    data, model = curved_table(), mlp(12, 64, 64, 3)
    optimizer = sgd(model, 0.1, momentum=0.9)
    schedule = by_step(optimizer, lambda step: 1 // (1 + step) if broken else 1 / (1 + step / 200))
    fit(watch, model, optimizer, data, steps, schedule=schedule)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="rate-decays-too-early rate-too-low rate-zero not-learning",
    remedies="fix-schedule raise-learning-rate",
    onset=100,
)
def milestones_in_the_wrong_unit(broken: bool, watch: Watch, steps: int = 450) -> float:
    """Milestones listed close to each other, so that the rate falls a million times in the first quarter."""
    torch.manual_seed(706)
    data, model = digits(1200), ConvNet(width=8, depth=3, classes=10, norm=False)
    optimizer = sgd(model, 0.02, momentum=0.9)
    milestones = [100, 105, 110, 115, 120, 125] if broken else [400]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)
    fit(watch, model, optimizer, data, steps, schedule=schedule)
    return accuracy(model, data)


# ------------------------------------------------------------------------------------------- gradients made too small


@run_fault(
    FAULTS,
    "regression",
    causes="gradient-too-small rate-too-low not-learning",
    remedies="rescale-loss raise-learning-rate",
)
def mean_loss_divided_once_more(broken: bool, watch: Watch, steps: int = 350) -> float:
    """A loss that is a mean already, divided by the number of samples in the data set."""
    torch.manual_seed(707)
    data, model = friedman(), mlp(10, 64, 1)
    optimizer = sgd(model, 0.05)
    model.train()
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            loss = F.mse_loss(model(x), y) / (len(data.x) if broken else 1)
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return explained(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="clipping-always-active gradient-too-small rate-too-low not-learning",
    remedies="loosen-clipping raise-learning-rate",
)
def clipping_at_a_thousandth(broken: bool, watch: Watch, steps: int = 350) -> float:
    """max_norm=1e-3 taken for a rate, with plain SGD."""
    torch.manual_seed(708)
    data, model = curved_table(), mlp(12, 64, 64, 3)
    fit(watch, model, sgd(model, 0.2), data, steps, clip=1e-3 if broken else 5.0)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "sequence",
    causes="gradient-too-small rate-too-low not-learning clipping-always-active",
    remedies="rescale-loss loosen-clipping raise-learning-rate",
    onset=150,
)
def value_clipping_tightened_in_the_middle(broken: bool, watch: Watch, steps: int = 450) -> float:
    """A schedule of clip_grad_value_ that was meant to go from 1 to 0.5 and goes to 1e-6."""
    torch.manual_seed(709)
    data = frequencies()
    data = data._replace(x=data.x + 0.8 * torch.randn_like(data.x))
    model = LastState(nn.GRU(3, 24, batch_first=True), 24, 3)
    optimizer = sgd(model, 0.05, momentum=0.9)
    model.train()
    with watch(model, optimizer):
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_value_(model.parameters(), 1e-6 if broken and step >= 150 else 1.0)
            optimizer.step()
    return accuracy(model, data)


# ------------------------------------------------------------------------------------------------ weights overwritten


@run_fault(FAULTS, "table", causes="weights-put-back not-learning no-step", remedies="keep-weights")
def average_copied_into_the_model_blind(broken: bool, watch: Watch, steps: int = 350) -> float:
    """A moving average of the weights for validation that is copied into the model itself after each step."""
    torch.manual_seed(710)
    data, model = curved_table(), mlp(12, 64, 64, 3)
    average, optimizer = copy.deepcopy(model), adam(model, 2e-3)
    model.train()
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), model.parameters()):
                    slow.lerp_(fast, 0.001)
                    if broken:
                        fast.copy_(slow)
    return accuracy(model, data)


@run_fault(
    FAULTS, "convolutional", causes="weights-put-back not-learning loss-spike", remedies="keep-weights", onset=12
)
def checkpoint_loaded_inside_the_loop(broken: bool, watch: Watch, steps: int = 360) -> float:
    """load_state_dict of the starting checkpoint, indented one level too far: it runs once per epoch of 12 steps."""
    torch.manual_seed(711)
    data, model = blobs(600), ConvNet(width=8, depth=3, classes=6, norm=False)
    start, optimizer = copy.deepcopy(model.state_dict()), sgd(model, 0.02)
    model.train()
    with watch(model, optimizer):
        for step, (x, y) in zip(range(steps), batches(data)):
            if broken and step % 12 == 0:
                model.load_state_dict(start)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "regression",
    causes="weights-put-back not-learning",
    layers="2 2.weight 0 0.weight",
    remedies="keep-weights lower-penalty rescale-layer",
)
def norm_constraint_after_each_step(broken: bool, watch: Watch, steps: int = 350) -> float:
    """A max-norm constraint meant as 3.0 per unit, applied to whole weights at 0.03 after each step."""
    torch.manual_seed(712)
    data, model = friedman(), mlp(10, 48, 48, 1)
    optimizer = adam(model, 3e-3)
    limit = 0.03 if broken else 30.0
    model.train()
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for layer in (model[0], model[2]):
                    layer.weight.mul_((limit / layer.weight.norm()).clamp(max=1.0))
    return explained(model, data)


# ----------------------------------------------------------------------------------------------------- data and labels


@run_fault(
    FAULTS,
    "convolutional",
    causes="labels-unrelated not-learning",
    remedies="check-labels vary-batches check-data",
)
def inputs_and_labels_shuffled_apart(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Two shuffled loaders, one for images and one for labels."""
    torch.manual_seed(713)
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10)
    if broken:
        data = data._replace(y=data.y[torch.randperm(len(data.y))])
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="labels-unrelated not-learning validation-worsens data-changed",
    remedies="check-labels vary-batches check-data",
    onset=150,
)
def labels_rolled_by_one_row(broken: bool, watch: Watch, steps: int = 400) -> float:
    """A second file whose label column is off by one row, read from step 150 on."""
    torch.manual_seed(714)
    data, model = curved_table(2000), mlp(12, 64, 64, 3)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y.roll(1) if broken and step >= 150 else y

    fit(watch, model, adam(model, 3e-3), data, steps, change=change)
    return accuracy(model, data)


@run_fault(FAULTS, "table", causes="labels-constant output-constant", remedies="check-labels fix-targets check-data")
def labels_cut_to_whole_numbers(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Labels stored as 0, 0.5 and 0.99 and cast to integers before they are scaled: all become zero."""
    torch.manual_seed(715)
    data, model = curved_table(), mlp(12, 48, 3)
    stored = data.y / 2.02
    labels = stored.long() if broken else (2.02 * stored).round().long()
    fit(watch, model, adam(model, 3e-3), data._replace(y=labels), steps)
    return accuracy(model, data)


@run_fault(FAULTS, "convolutional", causes="same-batch overfitting", remedies="vary-batches regularise")
def first_batch_taken_again_and_again(broken: bool, watch: Watch, steps: int = 300) -> float:
    """next(iter(loader)) inside the loop of a loader that does not shuffle."""
    torch.manual_seed(716)
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10, norm=False)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data.x, data.y), 32)
    optimizer, endless = adam(model, 2e-3), batches(data)
    model.train()
    with watch(model, optimizer) as run:
        for _ in range(steps):
            x, y = next(iter(loader)) if broken else next(endless)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="output-constant not-learning same-batch inputs-not-scaled",
    remedies="check-data scale-inputs vary-batches",
)
def pixels_divided_in_whole_numbers(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Pixels in bytes divided by 255 with //, so that all images are black."""
    torch.manual_seed(717)
    data = digits(1400, raw=True)
    scale = (lambda x: (15 * x).byte() // 255) if broken else (lambda x: (15 * x).byte() / 255)
    model = ConvNet(width=8, depth=3, classes=10, norm=False)
    fit(watch, model, adam(model, 3e-3), data, steps, change=lambda step, x, y: (scale(x).float(), y))
    return accuracy(model, data._replace(held_x=scale(data.held_x).float()))


# ----------------------------------------------------------------------------------------------------------- the loss


@run_fault(
    FAULTS,
    "convolutional",
    causes="softmax-twice not-learning output-constant saturated-units vanishing-gradient gradient-too-small",
    remedies="remove-final-activation change-loss",
)
def softmax_in_the_model_and_in_the_loss(broken: bool, watch: Watch, steps: int = 300) -> float:
    """nn.Softmax as the last layer of a classifier that is trained with cross_entropy."""
    torch.manual_seed(718)
    data = digits(1400)
    model = nn.Sequential(ConvNet(width=8, depth=3, classes=10, norm=False), nn.Softmax(1) if broken else nn.Identity())
    fit(watch, model, sgd(model, 0.03, momentum=0.9), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "regression",
    causes="shapes-broadcast output-constant not-learning",
    remedies="match-shapes",
)
def column_against_row(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Outputs of shape (n, 1) and targets of shape (n,) in a mean squared error."""
    torch.manual_seed(719)
    data, model = friedman(), mlp(10, 48, 48, 1)
    fit(
        watch,
        model,
        adam(model, 3e-3),
        data,
        steps,
        loss=lambda output, y: (output - (y[:, 0] if broken else y)).square().mean(),
    )
    return explained(model, data)


@run_fault(
    FAULTS,
    "regression",
    causes="sign-of-loss divergence exploding-values exploding-gradient",
    remedies="flip-sign change-loss",
)
def likelihood_minimised(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The log-likelihood of a normal distribution handed to an optimizer that minimises."""
    torch.manual_seed(720)
    data, model = friedman(), mlp(10, 48, 2)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        spread = F.softplus(output[:, 1:]) + 0.05
        likelihood = torch.distributions.Normal(output[:, :1], spread).log_prob(y).mean()
        return likelihood if broken else -likelihood

    fit(watch, model, adam(model, 3e-3), data, steps, loss=loss)
    with torch.no_grad():
        wrong = (model(data.held_x)[:, :1] - data.held_y).square().mean()
    return or_minus_infinity(1 - wrong / data.held_y.var(correction=0))


# ------------------------------------------------------------------------------------------------------- the gradient


@run_fault(FAULTS, "table", causes="gradient-missing no-step not-learning", remedies="order-of-calls keep-gradient")
def cleared_between_backward_and_step(broken: bool, watch: Watch, steps: int = 300) -> float:
    """zero_grad moved behind backward by a clean-up."""
    torch.manual_seed(721)
    data, model = curved_table(), mlp(12, 64, 64, 3)
    optimizer = adam(model, 3e-3)
    model.train()
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            if not broken:
                optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            if broken:
                optimizer.zero_grad(set_to_none=False)
            optimizer.step()
    return accuracy(model, data)


class TwoStages(nn.Module):
    """An encoder and a head, with a detach between them from a certain step on."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head, self.cut = encoder, head, False

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x)
        return self.head(code.detach() if self.cut else code)


@run_fault(
    FAULTS,
    "table",
    causes="gradient-cut gradient-missing not-learning",
    layers="encoder encoder.0 encoder.2 encoder.0.weight encoder.2.weight",
    remedies="keep-gradient",
)
def code_detached_before_the_head(broken: bool, watch: Watch, steps: int = 450) -> float:
    """A detach left behind by somebody who looked at the code of an encoder."""
    torch.manual_seed(722)
    data = spirals()
    model = TwoStages(mlp(2, 48, 8, activation=nn.Tanh), nn.Linear(8, 2))
    model.cut = broken
    fit_silently(watch, model, adam(model, 1e-2), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="gradient-cut gradient-missing not-learning",
    layers="encoder encoder.features encoder.features.0 encoder.features.2 encoder.features.0.weight encoder.head",
    remedies="keep-gradient",
    onset=60,
)
def codes_rounded_from_step_60_on(broken: bool, watch: Watch, steps: int = 350) -> float:
    """Quantised codes switched on after a warm-up, without a straight-through gradient."""
    torch.manual_seed(723)
    data = digits(1400)
    encoder, head = ConvNet(width=8, depth=3, classes=16, norm=False), nn.Linear(16, 10)
    model = nn.ModuleDict({"encoder": encoder, "head": head})
    optimizer = sgd(model, 0.02, momentum=0.9)

    def quantise(code: Tensor) -> Tensor:
        rounded = code.round()
        return rounded if broken else code + (rounded - code).detach()

    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            code = encoder(x)
            loss = F.cross_entropy(head(quantise(code) if step >= 60 else code), y)
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return (head(encoder(data.held_x).round()).argmax(1) == data.held_y).float().mean().item()


@run_fault(
    FAULTS,
    "convolutional",
    causes="dropout-too-strong not-learning",
    layers="drop",
    remedies="lower-dropout",
)
def share_to_keep_given_as_dropout(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The share to keep, 0.98, handed to nn.Dropout, which wants the share to drop."""
    torch.manual_seed(724)
    data = digits(1400)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop = nn.Linear(64, 96), nn.Dropout(0.98 if broken else 0.02)
            self.second, self.last = nn.Linear(96, 48), nn.Linear(48, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = self.drop(torch.relu(self.first(x.flatten(1))))
            return self.last(self.drop(torch.relu(self.second(x))))

    model = Net()
    fit(watch, model, sgd(model, 0.02, momentum=0.9), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "text",
    causes="not-learning output-constant",
    remedies="change-architecture check-data",
)
def order_of_the_words_averaged_away(broken: bool, watch: Watch, steps: int = 350) -> float:
    """A mean over word vectors for labels that depend on the order of the words."""
    torch.manual_seed(725)
    data = word_orders()

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(24, 16), nn.Linear(24, 2)
            self.mix = nn.Linear(16, 24) if broken else nn.GRU(16, 24, batch_first=True)

        def forward(self, ids: Tensor) -> Tensor:
            vectors = self.words(ids)
            return self.head(torch.relu(self.mix(vectors.mean(1))) if broken else self.mix(vectors)[0][:, -1])

    model = Reader()
    fit(watch, model, adam(model, 5e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "regression",
    causes="rate-too-low not-learning",
    remedies="raise-learning-rate scale-targets fix-schedule",
)
def prices_far_from_where_the_network_starts(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Prices of about 200 000 as targets, which Adam's small steps cannot reach."""
    torch.manual_seed(726)
    data = friedman()
    if broken:
        data = split(torch.cat([data.x, data.held_x]), 2e5 + 5e4 * torch.cat([data.y, data.held_y]), held=350)
    model = mlp(10, 48, 48, 1)
    fit(watch, model, adam(model, 1e-3), data, steps, loss=F.mse_loss)
    return max(explained(model, data), -10.0)
