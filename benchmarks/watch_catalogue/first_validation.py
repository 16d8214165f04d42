"""The first part: validation that turns worse, and data that changes during the run."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue.parts import ConvNet, ResNet, SequenceClassifier, mlp, regression_table, waves
from .case import RunFault, Watch, run_fault
from .parts import accuracy, adam, batches, digits, explained, fit, log_validation, sgd, split

FAULTS: list[RunFault] = []
plant = partial(run_fault, FAULTS)


@plant("MLP", causes="overfitting validation-worsens", remedies="regularise", onset=20)
def sixty_digits_and_no_dropout(broken: bool, watch: Watch, steps: int = 400) -> float:
    """A wide network learns sixty samples by heart while the validation loss rises."""
    torch.manual_seed(9401)
    data, model = digits(flat=True), mlp(64, 256, 256, 10)
    chosen = slice(0, 60) if broken else slice(None)
    fit(watch, model, adam(model, 3e-3), data._replace(x=data.x[chosen], y=data.y[chosen]), steps, validate=20)
    return accuracy(model, data)


@plant("regression", causes="overfitting validation-worsens", remedies="regularise", onset=20)
def noise_learnt_by_heart(broken: bool, watch: Watch, steps: int = 500) -> float:
    """A network fits the noise of 80 samples; the validation loss, logged every 25 steps, more than doubles."""
    torch.manual_seed(9402)
    x, y = regression_table(2400)
    data = split(x, y + 0.5 * torch.randn_like(y), held=800)
    model = mlp(8, 128, 128, 1)
    chosen = slice(0, 80) if broken else slice(None)
    some = data._replace(x=data.x[chosen], y=data.y[chosen])
    fit(watch, model, adam(model, 3e-3), some, steps, loss=F.mse_loss, validate=25)
    return explained(model, data)


@plant(
    "CNN",
    causes="validation-worsens overfitting data-changed sorted-batches",
    remedies="regularise check-data vary-batches lower-learning-rate",
    onset=163,
)
def half_of_the_classes_from_here_on(broken: bool, watch: Watch, steps: int = 320) -> float:
    """The second part of the training files holds five of the ten classes; only the accuracy is logged."""
    torch.manual_seed(9403)
    data, model = digits(), ConvNet(classes=10)
    optimizer = sgd(model, 0.05, momentum=0.9)
    few = data._replace(x=data.x[data.y < 5], y=data.y[data.y < 5])
    whole, part = batches(data), batches(few)
    model.train()
    with watch(model, optimizer) as run:
        for step in range(steps):
            x, y = next(part if broken and step >= 163 else whole)
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 19:
                run.log_metrics(val_accuracy=accuracy(model, data))
                model.train()
    return accuracy(model, data)


@plant(
    "ResNet",
    causes="data-changed loss-spike validation-worsens overfitting running-statistics-wrong inputs-not-scaled",
    remedies="check-data scale-inputs refresh-statistics vary-batches",
    onset=157,
)
def preprocessing_changes_midway(broken: bool, watch: Watch, steps: int = 300) -> float:
    """After a restart the images come inverted and scaled anew, while the validation data stay as they were."""
    torch.manual_seed(9404)
    data, model = digits(), ResNet(blocks=2, classes=10)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (5 - 4 * x, y) if broken and step >= 157 else (x, y)

    fit(watch, model, sgd(model, 0.05, momentum=0.9), data, steps, change=change, validate=25)
    return accuracy(model, data)


@plant(
    "GRU",
    causes="data-changed labels-unrelated loss-spike not-learning divergence",
    remedies="check-labels check-data vary-batches",
    onset=153,
)
def labels_of_other_samples_from_here_on(broken: bool, watch: Watch, steps: int = 300) -> float:
    """From the second file on the labels are those of other samples."""
    torch.manual_seed(9405)
    data = split(*waves(768, steps=24), held=192)
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x, y[torch.randperm(len(y))]) if broken and step >= 153 else (x, y)

    fit(watch, model, adam(model, 5e-3), data, steps, change=change)
    return accuracy(model, data)


@plant("MLP", causes="sorted-batches data-changed labels-constant", remedies="vary-batches check-data check-labels")
def file_sorted_by_class(broken: bool, watch: Watch, steps: int = 400) -> float:
    """The file is sorted by class and read without shuffling: each class is learnt, then forgotten for the next."""
    torch.manual_seed(9406)
    data, model = digits(flat=True), mlp(64, 64, 10)
    optimizer = sgd(model, 0.05, momentum=0.9)
    order = data.y.argsort() if broken else torch.randperm(len(data.y))
    with watch(model, optimizer) as run:
        for step in range(steps):
            start = 32 * step % (len(order) - 32)
            chosen = order[start : start + 32]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data.x[chosen]), data.y[chosen])
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            if step % 40 == 39:
                log_validation(run, model, data)
    return accuracy(model, data)
