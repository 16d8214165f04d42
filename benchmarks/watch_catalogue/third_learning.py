"""Runs in which nothing, or far too little, is learned."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue import parts as models
from .case import RunFault, Watch, run_fault
from .parts import Data, accuracy, adam, batches, by_step, digits, explained, fit, or_minus_infinity, sgd
from .third_parts import blobs, curves, rows, sentences, unreported, waves

FAULTS: list[RunFault] = []


@run_fault(
    FAULTS,
    "convolutional",
    causes="rate-too-low not-learning",
    remedies="raise-learning-rate",
)
def rate_of_adam_handed_to_sgd(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Someone exchanges Adam for SGD and keeps the rate of 1e-4."""
    torch.manual_seed(11)
    data, model = digits(), models.ConvNet(classes=10)
    fit(watch, model, sgd(model, 1e-4 if broken else 0.1), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="rate-too-low not-learning",
    remedies="raise-learning-rate",
)
def rate_and_decay_exchanged(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Two positional arguments of a helper are exchanged: the rate gets the weight decay's 1e-6."""
    torch.manual_seed(12)
    data, model = rows(), models.mlp(12, 48, 48, 3)
    rate, decay = (1e-6, 3e-3) if broken else (3e-3, 1e-6)
    fit(unreported(watch), model, torch.optim.AdamW(model.parameters(), rate, weight_decay=decay), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "regression",
    causes="rate-too-low rate-zero rate-decays-too-early not-learning no-step",
    remedies="fix-schedule raise-learning-rate",
)
def polynomial_decay_over_epochs_stepped_by_batch(broken: bool, watch: Watch, steps: int = 400) -> float:
    """`PolynomialLR(total_iters=epochs)` is stepped after every batch and ends in the first epoch."""
    torch.manual_seed(13)
    data, model = curves(), models.mlp(8, 64, 64, 1)
    optimizer = sgd(model, 0.05)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=20 if broken else steps)
    fit(unreported(watch), model, optimizer, data, steps, loss=F.mse_loss, schedule=schedule)
    return explained(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="rate-too-low rate-decays-too-early not-learning rate-zero",
    remedies="fix-schedule raise-learning-rate",
    onset=5,
)
def plateau_schedule_fed_with_single_batches(broken: bool, watch: Watch, steps: int = 300) -> float:
    """`ReduceLROnPlateau` gets the loss of each batch, whose noise it takes for a plateau."""
    torch.manual_seed(14)
    data, model = digits(), models.ConvNet(classes=10, norm=False)
    optimizer = sgd(model, 0.05, momentum=0.5)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    sum_of_epoch = 0.0
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
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


@run_fault(
    FAULTS,
    "text",
    causes="rate-zero rate-too-low rate-decays-too-early not-learning no-step",
    remedies="fix-schedule raise-learning-rate restore-weights",
    onset=120,
)
def optimizer_state_of_a_finished_run(broken: bool, watch: Watch, steps: int = 500) -> float:
    """A second stage loads the optimizer's state of a run whose schedule had ended, and with it a rate of 1e-9."""
    torch.manual_seed(15)
    data, model = sentences(), models.SentenceEncoder()
    optimizer = adam(model, 1e-3)

    def resume(step: int) -> None:
        if broken and step == 119:
            state = optimizer.state_dict()
            state["param_groups"][0]["lr"] = 1e-9
            optimizer.load_state_dict(state)

    fit(watch, model, optimizer, data, steps, then=resume)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "autoencoder",
    causes="gradient-too-small rate-too-low not-learning",
    remedies="rescale-loss raise-learning-rate",
)
def mean_error_divided_by_pixels_again(broken: bool, watch: Watch, steps: int = 400) -> float:
    """The mean squared error, a mean already, is divided by batch, height and width."""
    torch.manual_seed(16)
    data, model = digits(flat=True), models.Autoencoder(64, 16)
    data = Data(data.x, data.x, data.held_x, data.held_x)
    per_pixel = 32 * 64 if broken else 1
    optimizer = sgd(model, 0.2, momentum=0.9)
    fit(watch, model, optimizer, data, steps, loss=lambda output, y: F.mse_loss(output, y) / per_pixel)
    return explained(model, data)


@run_fault(
    FAULTS,
    "sequence",
    causes="clipping-always-active gradient-too-small rate-too-low not-learning",
    remedies="loosen-clipping raise-learning-rate",
)
def values_of_the_gradient_clipped_at_1e_5(broken: bool, watch: Watch, steps: int = 250) -> float:
    """`clip_grad_value_` gets the small number that was meant for the epsilon."""
    torch.manual_seed(17)
    data, model = waves(), models.SequenceClassifier(nn.GRU(3, 32, batch_first=True), 3)
    optimizer = sgd(model, 0.3, momentum=0.9)
    with watch(model, optimizer) as run:
        for x, y in (batch for batch, _ in zip(batches(data), range(steps))):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 1e-5 if broken else 0.5)
            optimizer.step()
            run.log_metrics(loss=loss.item())
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "reinforcement",
    causes="weights-put-back not-learning no-step",
    remedies="keep-weights",
)
def target_network_copied_into_the_learner(broken: bool, watch: Watch, steps: int = 300) -> float:
    """`online.load_state_dict(target.state_dict())`: the copy goes in the wrong direction after every step."""
    torch.manual_seed(18)
    data, online = curves(), models.mlp(8, 64, 64, 1)
    target = copy.deepcopy(online)
    optimizer = adam(online, 3e-3)
    with watch(online, optimizer) as run:
        for step, (state, value) in zip(range(steps), batches(data)):
            next_value = target(state).detach()
            error = F.smooth_l1_loss(online(state), value + 0.1 * next_value)
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            run.observe(loss=error)
            if broken:
                online.load_state_dict(target.state_dict())
            elif step % 20 == 19:
                target.load_state_dict(online.state_dict())
    return explained(online, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="weights-put-back not-learning vanishing-gradient gradient-too-small layer-decayed output-constant",
    remedies="keep-weights initialise rescale-layer add-normalizer",
)
def weights_clamped_as_in_a_wasserstein_critic(broken: bool, watch: Watch, steps: int = 250) -> float:
    """The line that clamps a critic's weights to one hundredth is copied into the training of a classifier."""
    torch.manual_seed(19)
    data, model = blobs(), models.ConvNet(norm=False)

    def clamp(step: int) -> None:
        if broken:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.01, 0.01)

    fit(unreported(watch), model, adam(model, 2e-3), data, steps, then=clamp)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="labels-unrelated not-learning",
    remedies="check-labels check-data fix-targets",
)
def repeat_against_repeat_interleave(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Four noisy copies of each image are stacked by `repeat`, their labels by `repeat_interleave`."""
    torch.manual_seed(20)
    data, model = digits(), models.ConvNet(classes=10)

    def augment(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        copies = x.repeat(4, 1, 1, 1)
        return copies + 0.1 * torch.randn_like(copies), y.repeat_interleave(4) if broken else y.repeat(4)

    fit(watch, model, adam(model, 3e-3), data, steps, batch=16, change=augment)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="labels-constant output-constant",
    remedies="check-labels fix-targets check-data",
)
def threshold_in_another_unit(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Targets are `(score > 50).float()` although scores lie around zero: every label is 0."""
    torch.manual_seed(21)
    data, model = curves(), models.mlp(8, 48, 48, 1)
    threshold = 50.0 if broken else 0.0
    labelled = data._replace(y=(data.y > threshold).float())
    fit(watch, model, adam(model, 3e-3), labelled, steps, loss=F.binary_cross_entropy_with_logits)
    with torch.no_grad():
        return ((model(data.held_x) > 0) == (data.held_y > 0)).float().mean().item()


@run_fault(
    FAULTS,
    "convolutional",
    causes="same-batch overfitting",
    remedies="vary-batches",
)
def generator_seeded_inside_the_loop(broken: bool, watch: Watch, steps: int = 250) -> float:
    """For the sake of repeatability the sampler's generator is seeded before every batch."""
    torch.manual_seed(22)
    data, model = digits(), models.ConvNet(classes=10)
    optimizer, generator = adam(model, 3e-3), torch.Generator().manual_seed(0)
    with watch(model, optimizer) as run:
        for _ in range(steps):
            if broken:
                generator.manual_seed(0)
            chosen = torch.randint(len(data.x), (32,), generator=generator)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data.x[chosen]), data.y[chosen])
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "segmentation",
    causes="softmax-twice not-learning saturated-units",
    remedies="remove-final-activation change-loss",
)
def sigmoid_before_the_loss_with_logits(broken: bool, watch: Watch, steps: int = 110) -> float:
    """A U-Net ends in a sigmoid, and `binary_cross_entropy_with_logits` applies a second one to rare pixels."""
    torch.manual_seed(23)
    data = blobs(640)
    masked = Data(data.x, (data.x > 1.5).float(), data.held_x, (data.held_x > 1.5).float())
    model = nn.Sequential(models.UNet(), nn.Sigmoid() if broken else nn.Identity())
    optimizer = sgd(model, 0.1, momentum=0.9)
    fit(watch, model, optimizer, masked, steps, loss=F.binary_cross_entropy_with_logits, batch=16)
    with torch.no_grad():
        found = model.eval()(masked.held_x) > (0.5 if broken else 0.0)
    overlap = (found * masked.held_y).sum()
    return or_minus_infinity(2 * overlap / (found.sum() + masked.held_y.sum()))


@run_fault(
    FAULTS,
    "convolutional",
    causes="gradient-missing no-step not-learning",
    remedies="order-of-calls",
)
def cleared_at_the_start_of_the_stepping_branch(broken: bool, watch: Watch, steps: int = 320) -> float:
    """Gradients of four batches are gathered, and `zero_grad` stands before `step` where it should stand after."""
    torch.manual_seed(24)
    data, model = digits(), models.ConvNet(classes=10)
    optimizer = adam(model, 5e-3)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data, 16)):
            loss = F.cross_entropy(model(x), y) / 4
            loss.backward()
            run.observe(loss=4 * loss)
            if (step + 1) % 4 == 0:
                if broken:
                    optimizer.zero_grad()
                optimizer.step()
                optimizer.zero_grad()
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "reinforcement",
    causes="shapes-broadcast not-learning output-constant",
    remedies="match-shapes",
)
def gathered_values_minus_a_row_of_targets(broken: bool, watch: Watch, steps: int = 300) -> float:
    """`q.gather(1, action)` is a column, the target a row: their difference is a matrix."""
    torch.manual_seed(25)
    data, model = curves(), models.mlp(8, 64, 64, 2)
    optimizer = adam(model, 3e-3)

    def returns(x: Tensor, y: Tensor, action: Tensor) -> Tensor:
        return torch.where(action[:, 0] == 0, y[:, 0], x[:, 4])

    with watch(model, optimizer) as run:
        for x, y in (batch for batch, _ in zip(batches(data), range(steps))):
            action = torch.randint(2, (len(x), 1))
            chosen = model(x).gather(1, action)
            difference = (chosen if broken else chosen[:, 0]) - returns(x, y, action)
            loss = difference.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    with torch.no_grad():
        wrong = model(data.held_x) - torch.cat([data.held_y, data.held_x[:, 4:5]], 1)
    return or_minus_infinity(1 - wrong.square().mean())


@run_fault(
    FAULTS,
    "reinforcement",
    causes="sign-of-loss divergence validation-worsens saturated-units not-learning",
    remedies="flip-sign minimise",
)
def reward_minimised_by_the_policy(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The minus of `-(log_prob * advantage).mean()` is forgotten."""
    torch.manual_seed(26)
    data, policy = rows(), models.mlp(12, 32, 3)
    optimizer = adam(policy, 3e-3)
    sign = 1 if broken else -1
    with watch(policy, optimizer) as run:
        for x, y in (batch for batch, _ in zip(batches(data, 64), range(steps))):
            actions = torch.distributions.Categorical(logits=policy(x))
            action = actions.sample()
            reward = (action == y).float()
            loss = sign * (actions.log_prob(action) * (reward - reward.mean())).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log_metrics(loss=loss.item(), reward=reward.mean().item())
    return accuracy(policy, data)


@run_fault(
    FAULTS,
    "table",
    causes="gradient-cut gradient-missing no-step not-learning",
    remedies="keep-gradient",
)
def loss_made_a_new_tensor(broken: bool, watch: Watch, steps: int = 250) -> float:
    """An error about a missing graph is answered with `torch.tensor(loss.item(), requires_grad=True)`."""
    torch.manual_seed(27)
    data, model = rows(), models.mlp(12, 48, 3)
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for x, y in (batch for batch, _ in zip(batches(data), range(steps))):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if broken:
                loss = torch.tensor(loss.item(), requires_grad=True)
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    return accuracy(model, data)


class _SearchInNumpy(nn.Module):
    """An encoder whose features pass through NumPy on the way to the head."""

    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.broken = broken
        self.encoder, self.head = models.mlp(64, 32, 4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = self.encoder(x)
        if self.broken:
            features = torch.from_numpy(features.detach().numpy().clip(-5, 5))
        return self.head(features.clamp(-5, 5))


@run_fault(
    FAULTS,
    "table",
    causes="gradient-cut gradient-missing",
    layers="encoder encoder.0 encoder.2 encoder.0.weight encoder.2.weight encoder.0.bias encoder.2.bias",
    remedies="keep-gradient",
)
def features_through_numpy(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Features are clipped with NumPy between the encoder and the head, which needs a detach."""
    torch.manual_seed(28)
    data, model = digits(flat=True), _SearchInNumpy(broken)
    fit(unreported(watch), model, torch.optim.Adam(model.parameters(), 3e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="inputs-not-scaled not-learning output-constant same-batch",
    remedies="scale-inputs check-data",
)
def pixels_divided_by_255_twice(broken: bool, watch: Watch, steps: int = 200) -> float:
    """`ToTensor` has divided by 255, the dataset divides again, and then mean and deviation are taken off."""
    torch.manual_seed(29)
    data, model = digits(raw=True), models.ConvNet(classes=10, norm=False)
    divisor = 16 * 255 if broken else 16
    data = data._replace(x=(data.x / divisor - 0.3) / 0.38, held_x=(data.held_x / divisor - 0.3) / 0.38)
    fit(watch, model, sgd(model, 0.05, momentum=0.9), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "text",
    causes="same-batch output-constant labels-unrelated not-learning",
    remedies="check-data vary-batches",
)
def every_word_unknown(broken: bool, watch: Watch, steps: int = 400) -> float:
    """The vocabulary is of lower case, the text is not: every token becomes `<unk>`."""
    torch.manual_seed(30)
    data, model = sentences(), models.SentenceEncoder()
    if broken:
        data = data._replace(x=torch.ones_like(data.x), held_x=torch.ones_like(data.held_x))
    fit(watch, model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "sequence",
    causes="not-learning labels-unrelated",
    remedies="fix-axis",
)
def batch_first_forgotten(broken: bool, watch: Watch, steps: int = 300) -> float:
    """An `nn.LSTM` without `batch_first` reads the samples of the batch as time."""
    torch.manual_seed(31)
    data, model = waves(), models.SequenceClassifier(nn.LSTM(3, 32, batch_first=not broken), 3)
    fit(watch, model, adam(model, 5e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "transformer",
    causes="rate-too-low rate-decays-too-early rate-zero not-learning",
    remedies="fix-schedule raise-learning-rate",
    onset=60,
)
def inverse_decay_counts_samples(broken: bool, watch: Watch, steps: int = 450) -> float:
    """After the warm-up the rate falls as one over the number of samples seen, where that of steps was meant."""
    torch.manual_seed(32)
    data, model = sentences(), models.SentenceEncoder()
    optimizer = adam(model, 2e-3)

    def factor(step: int) -> float:
        after = max(step - 60, 0) * (32 if broken else 1)
        return min((step + 1) / 60, 1.0) / (1 + after / 200)

    fit(watch, model, optimizer, data, steps, schedule=by_step(optimizer, factor))
    return accuracy(model, data)
