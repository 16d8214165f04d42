"""Runs that go wrong over time: on held-out data, by data that changes, by what a validation leaves behind."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue import parts as models
from .case import RunFault, Watch, run_fault
from .parts import Data, accuracy, adam, batches, digits, explained, fit, log_validation, sgd, split
from .third_parts import blobs, curves, rows, sentences, texts, unreported

FAULTS: list[RunFault] = []


@run_fault(
    FAULTS,
    "table",
    causes="overfitting validation-worsens",
    remedies="regularise",
    onset=20,
)
def hundred_patients_and_two_hundred_columns(broken: bool, watch: Watch, steps: int = 400) -> float:
    """A wide network is trained for a hundred epochs on a table with more columns than rows."""
    torch.manual_seed(121)
    x = torch.randn(356, 200)
    y = (x[:, :5].sum(1) + 1.5 * torch.randn(356) > 0).long()
    data = split(x, y)
    model = models.mlp(200, 256, 2) if broken else nn.Sequential(nn.Dropout(0.5), nn.Linear(200, 2))
    optimizer = adam(model, 3e-3) if broken else torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.5)
    fit(watch, model, optimizer, data, steps if broken else 60, batch=25, validate=20)
    with torch.no_grad():
        return -F.cross_entropy(model.eval()(data.held_x), data.held_y).item()


@run_fault(
    FAULTS,
    "convolutional",
    causes="overfitting validation-worsens",
    remedies="regularise",
    onset=40,
)
def mislabelled_images_learnt_by_heart(broken: bool, watch: Watch, steps: int = 600) -> float:
    """Four labels in ten are wrong, and the training goes on until each of them is known."""
    torch.manual_seed(122)
    data = digits(800, flat=True)
    wrong = torch.rand(len(data.y)) < 0.45
    labels = torch.where(wrong, torch.randint(10, (len(data.y),)), data.y)
    model = models.mlp(64, 256, 256, 10)
    fit(watch, model, adam(model, 1e-3), data._replace(y=labels), steps if broken else 80, validate=40)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="validation-worsens overfitting data-changed inputs-not-scaled running-statistics-wrong",
    remedies="scale-inputs check-data",
    onset=40,
)
def transform_forgotten_for_validation(broken: bool, watch: Watch, steps: int = 240) -> float:
    """The loader of the validation has no `Normalize`: its images come as 0 to 255."""
    torch.manual_seed(123)
    data, model = digits(), models.ConvNet(classes=10)
    if broken:
        data = data._replace(held_x=16 * (6 * data.held_x + 4.9))
    fit(watch, model, adam(model, 2e-3), data, steps, validate=40)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "regression",
    causes="data-changed inputs-not-scaled exploding-values validation-worsens",
    remedies="check-data scale-inputs vary-batches",
    onset=100,
)
def sensor_that_drifts(broken: bool, watch: Watch, steps: int = 400) -> float:
    """Rows come in the order of time, and from step 100 on the sensors' zero wanders off."""
    torch.manual_seed(124)
    data, model = curves(), models.mlp(8, 64, 64, 1)

    def drift(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x + 0.05 * max(step - 100, 0) if broken else x), y

    fit(watch, model, adam(model, 3e-3), data, steps, loss=F.mse_loss, change=drift, validate=50)
    return explained(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="data-changed same-batch labels-unrelated not-learning output-constant validation-worsens divergence "
    "running-statistics-wrong gradient-missing",
    remedies="check-data clean-data vary-batches check-labels",
    onset=120,
)
def images_that_fail_to_load_are_blank(broken: bool, watch: Watch, steps: int = 300) -> float:
    """From step 120 on the disk is gone, and the dataset's `except` returns black images with their labels."""
    torch.manual_seed(125)
    data, model = digits(), models.ConvNet(classes=10)

    def load(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (torch.full_like(x, -0.8) if broken and step >= 120 else x), y

    fit(unreported(watch), model, adam(model, 3e-3), data, steps, change=load)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "text",
    causes="data-changed loss-spike divergence validation-worsens",
    remedies="check-data vary-batches restore-weights",
    onset=300,
)
def tokenizer_exchanged_midway(broken: bool, watch: Watch, steps: int = 420) -> float:
    """The run is resumed at step 300 with a tokenizer that numbers its words in another order."""
    torch.manual_seed(126)
    data, model = sentences(), models.SentenceEncoder()
    other_ids = torch.cat([torch.arange(7), torch.tensor([8, 7]), torch.arange(9, 50)])

    def tokenize(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (other_ids[x] if broken and step >= 300 else x), y

    fit(watch, model, adam(model, 1e-3), data, steps, change=tokenize, validate=60)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="sorted-batches data-changed loss-spike validation-worsens labels-constant",
    remedies="vary-batches",
)
def shuffled_in_a_buffer_that_is_too_small(broken: bool, watch: Watch, steps: int = 294) -> float:
    """Files are in the order of classes, and a stream shuffles no more than a hundred samples at a time."""
    torch.manual_seed(127)
    data, model = digits(), models.ConvNet(classes=10)
    order = torch.argsort(data.y + (0 if broken else 100 * torch.rand(len(data.y))), stable=True)
    optimizer = sgd(model, 0.05, momentum=0.9)
    step = 0
    with watch(model, optimizer) as run:
        while step < steps:
            near = torch.argsort(torch.arange(len(order)) + 100 * torch.rand(len(order)))
            for chosen in order[near].split(32):
                if len(chosen) < 32 or step >= steps:
                    break
                optimizer.zero_grad()
                loss = F.cross_entropy(model(data.x[chosen]), data.y[chosen])
                loss.backward()
                optimizer.step()
                run.observe(loss=loss)
                step += 1
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "regression",
    causes="weights-put-back not-learning",
    remedies="keep-weights",
    onset=25,
)
def averaged_weights_left_in_after_validation(broken: bool, watch: Watch, steps: int = 300) -> float:
    """For each validation the moving average is loaded into the model, and nobody puts the trained weights back."""
    torch.manual_seed(128)
    data, model = curves(), models.mlp(8, 64, 64, 1)
    optimizer, average = adam(model, 2e-3), copy.deepcopy(model)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
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


@run_fault(
    FAULTS,
    "semi-supervised",
    causes="labels-constant output-constant validation-worsens overfitting data-changed labels-unrelated",
    remedies="check-labels fix-targets check-data balance-classes regularise",
    onset=120,
)
def pseudo_labels_of_the_likeliest_class(broken: bool, watch: Watch, steps: int = 300) -> float:
    """From step 120 on labels are the network's own, by `argmax(0)` over the batch's mean: one class for all."""
    torch.manual_seed(129)
    data, model = digits(), models.ConvNet(classes=10)

    def label(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step < 120 or not broken:
            return x, y
        with torch.no_grad():
            return x, model(x).mean(0).argmax().expand(len(x))

    fit(watch, model, adam(model, 1e-3), data, steps, change=label, validate=40)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="rate-too-high loss-spike divergence validation-worsens exploding-gradient exploding-values not-finite "
    "dead-units not-learning output-constant",
    remedies="lower-learning-rate fix-schedule restore-weights clip-gradients",
    onset=150,
)
def body_thawed_at_the_rate_of_the_head(broken: bool, watch: Watch, steps: int = 260) -> float:
    """After 150 steps of the head alone the pretrained body is thawed, at the head's rate of 1."""
    torch.manual_seed(130)
    data, model = digits(), models.ConvNet(classes=10, norm=False)
    body, head = model.features, model.head
    for x, y in (batch for batch, _ in zip(batches(data), range(150))):
        loss = F.cross_entropy(model(x), y)
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
            parameter.data.sub_(0.1 * gradient)
    head.reset_parameters()
    body.requires_grad_(False)
    optimizer = torch.optim.SGD(head.parameters(), lr=1.0)

    def thaw(step: int) -> None:
        if step == 149:
            body.requires_grad_(True)
            optimizer.add_param_group({"params": list(body.parameters()), "lr": 1.0 if broken else 0.01})
            optimizer.param_groups[0]["lr"] = 1.0 if broken else 0.01

    fit(watch, model, optimizer, data, steps, then=thaw, validate=50)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="data-changed validation-worsens inputs-not-scaled loss-spike running-statistics-wrong divergence",
    remedies="check-data scale-inputs",
    onset=140,
)
def colours_swapped_by_another_reader(broken: bool, watch: Watch, steps: int = 260) -> float:
    """From step 140 on images come from OpenCV: blue, green, red, and in bytes less their mean."""
    torch.manual_seed(131)
    data = blobs(channels=3)
    tint = torch.tensor([2.0, 0.0, -2.0])[:, None, None]
    colour = (torch.arange(2)[:, None, None, None] * 2 - 1) * tint
    labels, held_labels = torch.randint(2, (len(data.x),)), torch.randint(2, (len(data.held_x),))
    data = Data(
        data.x + colour[labels] + tint, data.y + 4 * labels, data.held_x + colour[held_labels] + tint,
        data.held_y + 4 * held_labels,
    )  # fmt: skip
    model = models.ConvNet(channels=3, classes=8, norm=False)

    def read(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (20 * x.flip(1) if broken and step >= 140 else x), y

    fit(unreported(watch), model, adam(model, 3e-3), data, steps, change=read)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "text",
    causes="data-changed same-batch overfitting validation-worsens",
    remedies="vary-batches check-data",
    onset=150,
)
def corpus_that_turns_into_one_page(broken: bool, watch: Watch, steps: int = 300) -> float:
    """From step 150 on a crawler's stream delivers the same error page again and again."""
    torch.manual_seed(132)
    data, model = texts(), models.GPT()

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), y.flatten())

    def stream(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (data.x[:1].expand(len(x), -1), data.y[:1].expand(len(y), -1)) if broken and step >= 150 else (x, y)

    fit(watch, model, adam(model, 5e-3), data, steps, loss=loss, batch=16, change=stream)
    with torch.no_grad():
        return -loss(model(data.held_x), data.held_y).item()


@run_fault(
    FAULTS,
    "table",
    causes="sorted-batches data-changed validation-worsens loss-spike",
    remedies="vary-batches",
    onset=160,
)
def shuffling_switched_off_for_a_longer_second_stage(broken: bool, watch: Watch, steps: int = 320) -> float:
    """The loader of the second stage is built anew without `shuffle=True` over rows that a database sorted."""
    torch.manual_seed(133)
    data = rows()
    model = models.mlp(12, 64, 64, 3)
    optimizer = sgd(model, 0.1, momentum=0.9)
    sorted_rows = data.y.argsort(stable=True).split(32)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            if broken and step >= 160:
                chosen = sorted_rows[step % len(sorted_rows)]
                x, y = data.x[chosen], data.y[chosen]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    return accuracy(model, data)
