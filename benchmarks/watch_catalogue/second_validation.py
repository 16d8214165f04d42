"""Runs whose fault shows in the validation, or in how the data change over time."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue.parts import ConvNet, mlp
from .case import RunFault, Watch, run_fault
from .parts import accuracy, adam, batches, digits, explained, fit, log_validation, sgd, split
from .second_parts import LastState, blobs, curved_table, frequencies, friedman

FAULTS: list[RunFault] = []


@run_fault(FAULTS, "table", causes="overfitting validation-worsens", remedies="regularise")
def wide_network_on_eighty_rows(broken: bool, watch: Watch, steps: int = 500) -> float:
    """A wide network trained for hundreds of epochs on 80 rows."""
    torch.manual_seed(781)
    data = curved_table(2000)
    if broken:
        data = data._replace(x=data.x[:80], y=data.y[:80])
    model = mlp(12, 128, 128, 3)
    fit(watch, model, adam(model, 2e-3), data, steps, batch=16, validate=25)
    return accuracy(model, data)


@run_fault(FAULTS, "regression", causes="overfitting validation-worsens", remedies="regularise")
def noise_learnt_by_heart_blind(broken: bool, watch: Watch, steps: int = 600) -> float:
    """Targets that are mostly noise, learnt by heart because the run goes on far beyond the best validation."""
    torch.manual_seed(782)
    x = torch.randn(360, 10)
    data = split(x, (x[:, :1] + 1.0 * torch.randn(360, 1)) / 1.4, held=260)
    model = mlp(10, 128, 128, 1)
    decay = 0.0 if broken else 0.8
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=decay)
    model.train()
    with watch(model, optimizer) as run:
        for step, (rows, y) in zip(range(steps), batches(data, 25)):
            if not broken:
                rows = rows + 0.7 * torch.randn_like(rows)
            optimizer.zero_grad()
            loss = F.mse_loss(model(rows), y)
            loss.backward()
            optimizer.step()
            if (step + 1) % 20 == 0:
                run.log_metrics(train_loss=loss.item())
                log_validation(run, model, data, F.mse_loss)
    return explained(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="data-changed validation-worsens loss-spike",
    remedies="check-data scale-inputs",
    onset=180,
)
def camera_with_inverted_images(broken: bool, watch: Watch, steps: int = 320) -> float:
    """From step 180 on the images come from a source that stores white as zero."""
    torch.manual_seed(783)
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10, norm=False)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (1.0 - x if broken and step >= 180 else x), y

    fit(watch, model, adam(model, 3e-3), data, steps, change=change, validate=30)
    return accuracy(model, data)


@run_fault(
    FAULTS, "convolutional", causes="sorted-batches data-changed", remedies="vary-batches check-data check-labels"
)
def folders_read_one_after_another(broken: bool, watch: Watch, steps: int = 400) -> float:
    """Images read folder by folder, one class after another, without a shuffle."""
    torch.manual_seed(784)
    data, model = blobs(1000, classes=5), ConvNet(width=8, depth=3, classes=5, norm=False)
    order = data.y.argsort(stable=True)
    optimizer, endless = sgd(model, 0.05, momentum=0.9), batches(data)
    model.train()
    with watch(model, optimizer) as run:
        for step in range(steps):
            start = 32 * (step % (len(order) // 32))
            rows = order[start : start + 32]
            x, y = (data.x[rows], data.y[rows]) if broken else next(endless)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="data-changed validation-worsens loss-spike",
    remedies="check-labels check-data fix-targets",
    onset=200,
)
def classes_renumbered_in_the_second_part(broken: bool, watch: Watch, steps: int = 350) -> float:
    """The second part of the data numbers its classes in alphabetical order."""
    torch.manual_seed(785)
    data, model = digits(1400), ConvNet(width=12, depth=3, classes=10)
    alphabetical = torch.tensor([9, 4, 8, 7, 2, 1, 6, 5, 0, 3])

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, alphabetical[y] if broken and step >= 200 else y

    fit(watch, model, adam(model, 3e-3), data, steps, change=change, validate=40)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "sequence",
    causes="data-changed not-learning validation-worsens loss-spike",
    remedies="check-data scale-inputs regularise fix-schedule",
    onset=100,
)
def augmentation_grows_without_end(broken: bool, watch: Watch, steps: int = 400) -> float:
    """Noise whose strength is ramped up with the step and not with the share of the run: 12 times the signal."""
    torch.manual_seed(786)
    data, model = frequencies(), LastState(nn.GRU(3, 20, batch_first=True), 20, 3)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        strength = max(0, step - 100) / 25 if broken else 0.3 * step / 400
        return x + strength * torch.randn_like(x), y

    fit(watch, model, adam(model, 3e-3), data, steps, change=change, validate=50)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="labels-constant data-changed sorted-batches output-constant validation-worsens",
    remedies="check-labels check-data vary-batches",
    onset=180,
)
def sampler_left_with_one_class(broken: bool, watch: Watch, steps: int = 280) -> float:
    """A sampler without replacement that has only the largest class left after step 180."""
    torch.manual_seed(787)
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10)
    rest = (data.y == 3).nonzero()[:, 0]

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step >= 180:
            rows = rest[torch.randint(len(rest), (32,))]
            return data.x[rows], data.y[rows]
        return x, y

    fit(watch, model, adam(model, 3e-3), data, steps, change=change, validate=35)
    return accuracy(model, data)


@run_fault(
    FAULTS, "table", causes="same-batch overfitting validation-worsens", remedies="vary-batches regularise", onset=60
)
def loader_stuck_on_its_first_shard(broken: bool, watch: Watch, steps: int = 450) -> float:
    """A streaming loader that, after step 60, always reopens its first file of 40 rows."""
    torch.manual_seed(788)
    data, model = curved_table(), mlp(12, 96, 96, 3)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (data.x[:40], data.y[:40]) if broken and step >= 60 else (x, y)

    fit(watch, model, adam(model, 2e-3), data, steps, change=change, validate=30)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "regression",
    causes="data-changed validation-worsens loss-spike",
    remedies="check-data check-labels scale-targets regularise",
    onset=200,
)
def second_task_without_the_first(broken: bool, watch: Watch, steps: int = 400) -> float:
    """From step 200 on a second region alone, where the same columns mean the opposite; the first is forgotten."""
    torch.manual_seed(789)
    data, model = friedman(), mlp(11, 64, 64, 1)
    mark = torch.zeros(len(data.x), 1), torch.zeros(len(data.held_x), 1)
    data = data._replace(x=torch.cat([data.x, mark[0]], 1), held_x=torch.cat([data.held_x, mark[1]], 1))

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        alone = broken and step >= 200
        second = torch.ones(len(x), 1) if alone else (torch.rand(len(x), 1) < 0.3).float()
        x = torch.cat([x[:, :10], second], 1)
        return x, torch.where(second > 0, 1.0 - y, y)

    fit(watch, model, adam(model, 3e-3), data, steps, loss=F.mse_loss, change=change, validate=40)
    return explained(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="wrong-mode overfitting validation-worsens",
    remedies="switch-mode regularise",
    onset=50,
)
def dropout_off_after_the_first_validation(broken: bool, watch: Watch, steps: int = 500) -> float:
    """model.eval() at the validation of step 50 and never model.train(): strong dropout no longer regularises."""
    torch.manual_seed(790)
    data = digits(1400, flat=True)
    noisy = torch.where(torch.rand(200) < 0.3, torch.randint(10, (200,)), data.y[:200])
    few = data._replace(x=data.x[:200], y=noisy)
    model = nn.Sequential(
        nn.Linear(64, 192),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(192, 192),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(192, 10),
    )
    optimizer = adam(model, 1e-3)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(few, 20)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            if (step + 1) % 50 == 0:
                log_validation(run, model, data)
                model.train(not broken)
    model.eval()
    with torch.no_grad():
        return -F.cross_entropy(model(data.held_x), data.held_y).item()
