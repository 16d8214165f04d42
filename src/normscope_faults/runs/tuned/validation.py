"""Runs whose fault shows in the validation, or in how the data change over time."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import blob_images, regression_table, sentences, table, text, waves
from ...networks import GPT, ConvNet, ResNet, SentenceEncoder, SequenceClassifier, mlp
from ..case import FIRST, OPEN, SECOND, THIRD, fault
from ..data import Data, batches, curves, digits, friedman, split
from ..loops import Loop, accuracy, adam, explained, log_validation, sgd, when
from ..networks import plain_mlp

OPEN.add(
    fault("inputs-no-longer-scaled", "mlp", "data-changed", "check-data scale-inputs",
        "A second source whose inputs are in other units.", lambda broken, loop: loop.fit(model=plain_mlp(64, 64, 10),
        data=digits(flat=True), change=(lambda step, x, y: (x * 30 if step >= 100 else x, y)) if broken else None,
        optimizer=adam(1e-3)), onset=100, steps=200),
)  # fmt: skip


@OPEN.fault("mlp", "overfitting", "regularise", onset=40, steps=400)
def validation_loss_rises(broken: bool, loop: Loop) -> float:
    """Few samples with wrong labels, and a large network."""
    model, data = plain_mlp(64, 256, 256, 10), digits(flat=True)
    if broken:
        data = data._replace(x=data.x[:96], y=data.y[:96].where(torch.rand(96) > 0.3, torch.randint(0, 10, (96,))))
    return loop.fit(data, model, adam(1e-3), validate=20)


@OPEN.fault("mlp", "sorted-batches", "vary-batches", other_harm="Each batch undoes the last ones.", steps=200)
def sorted_batches(broken: bool, loop: Loop) -> float:
    """A loader without shuffling on a folder of classes."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    order = data.y.argsort(stable=True)
    x, y = data.x[order], data.y[order]
    change = None if not broken else lambda step, _x, _y: (x[step * 32 % 1280 :][:32], y[step * 32 % 1280 :][:32])
    return loop.fit(data, model, sgd(0.1), change=change)


FIRST.add(
    fault("sixty-digits-and-no-dropout", "MLP", "overfitting validation-worsens", "regularise",
        "A wide network learns sixty samples by heart while the validation loss rises.", lambda broken, loop: loop.fit(
        (data := digits(flat=True))._replace(x=data.x[(chosen := (slice(0, 60) if broken else slice(None)))],
        y=data.y[chosen]), mlp(64, 256, 256, 10), adam(3e-3), validate=20, judge=data), onset=20, steps=400, seed=9401),
    fault("preprocessing-changes-midway", "ResNet",
        "data-changed loss-spike validation-worsens overfitting running-statistics-wrong inputs-not-scaled",
        "check-data scale-inputs refresh-statistics vary-batches",
        "After a restart the images come inverted and scaled anew, while the validation data stay as they were.",
        lambda broken, loop: loop.fit(digits(), ResNet(blocks=2, classes=10), sgd(0.05, momentum=0.9),
        change=lambda step, x, y: (5 - 4 * x, y) if broken and step >= 157 else (x, y), validate=25), onset=157,
        steps=300, seed=9404),
    fault("labels-of-other-samples-from-here-on", "GRU",
        "data-changed labels-unrelated loss-spike not-learning divergence", "check-labels check-data vary-batches",
        "From the second file on the labels are those of other samples.", lambda broken, loop: loop.fit(
        split(*waves(768, steps=24), held=192), SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3), adam(5e-3),
        change=lambda step, x, y: (x, y[torch.randperm(len(y))]) if broken and step >= 153 else (x, y)), onset=153,
        steps=300, seed=9405),
)  # fmt: skip


@FIRST.fault("regression", "overfitting validation-worsens", "regularise", onset=20, steps=500, seed=9402)
def noise_learnt_by_heart(broken: bool, loop: Loop) -> float:
    """A network fits the noise of 80 samples; the validation loss, logged every 25 steps, more than doubles."""
    x, y = regression_table(2400)
    data = split(x, y + 0.5 * torch.randn_like(y), held=800)
    model = mlp(8, 128, 128, 1)
    chosen = slice(0, 80) if broken else slice(None)
    some = data._replace(x=data.x[chosen], y=data.y[chosen])
    return loop.fit(some, model, adam(3e-3), loss=F.mse_loss, validate=25, judge=data)


@FIRST.fault("CNN", "validation-worsens overfitting data-changed sorted-batches",
    "regularise check-data vary-batches lower-learning-rate", onset=163, steps=320, seed=9403)  # fmt: skip
def half_of_the_classes_from_here_on(broken: bool, loop: Loop) -> float:
    """The second part of the training files holds five of the ten classes; only the accuracy is logged."""
    data, model = digits(), ConvNet(classes=10)
    optimizer = sgd(0.05, momentum=0.9)(model)
    few = data._replace(x=data.x[data.y < 5], y=data.y[data.y < 5])
    whole, part = batches(data), batches(few)
    model.train()
    with loop.watch(model, optimizer) as run:
        for step in range(loop.steps):
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


@FIRST.fault("MLP", "sorted-batches data-changed labels-constant", "vary-batches check-data check-labels", steps=400,
    seed=9406)  # fmt: skip
def file_sorted_by_class(broken: bool, loop: Loop) -> float:
    """The file is sorted by class and read without shuffling: each class is learnt, then forgotten for the next."""
    data, model = digits(flat=True), mlp(64, 64, 10)
    optimizer = sgd(0.05, momentum=0.9)(model)
    order = data.y.argsort(stable=True) if broken else torch.randperm(len(data.y))
    with loop.watch(model, optimizer) as run:
        for step in range(loop.steps):
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


SECOND.add(
    fault("wide-network-on-eighty-rows", "table", "overfitting validation-worsens", "regularise",
        "A wide network trained for hundreds of epochs on 80 rows.", lambda broken, loop: loop.fit(when(broken,
        split(*table(2000), held=400), lambda d: d._replace(x=d.x[:80], y=d.y[:80])), mlp(12, 128, 128, 3), adam(2e-3),
        batch=16, validate=25), steps=500, seed=781),
    fault("camera-with-inverted-images", "convolutional", "data-changed validation-worsens loss-spike",
        "check-data scale-inputs", "From step 180 on the images come from a source that stores white as zero.",
        lambda broken, loop: loop.fit(digits(1400), ConvNet(width=8, depth=3, classes=10, norm=False), adam(3e-3),
        change=lambda step, x, y: (1.0 - x if broken and step >= 180 else x, y), validate=30), onset=180, steps=320,
        seed=783),
)  # fmt: skip


@SECOND.fault("regression", "overfitting validation-worsens", "regularise", steps=600, seed=782)
def noise_learnt_by_heart_blind(broken: bool, loop: Loop) -> float:
    """Targets that are mostly noise, learnt by heart because the run goes on far beyond the best validation."""
    x = torch.randn(360, 10)
    data = split(x, (x[:, :1] + 1.0 * torch.randn(360, 1)) / 1.4, held=260)
    model = mlp(10, 128, 128, 1)
    decay = 0.0 if broken else 0.8
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=decay)
    model.train()
    with loop.watch(model, optimizer) as run:
        for step, (rows, y) in zip(range(loop.steps), batches(data, 25)):
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


@SECOND.fault("convolutional", "sorted-batches data-changed", "vary-batches check-data check-labels", steps=400,
    seed=784)  # fmt: skip
def folders_read_one_after_another(broken: bool, loop: Loop) -> float:
    """Images read folder by folder, one class after another, without a shuffle."""
    data, model = split(*blob_images(1000, 5, 12), held=240), ConvNet(width=8, depth=3, classes=5, norm=False)
    order = data.y.argsort(stable=True)
    endless = batches(data)

    def objective(step: int) -> Tensor:
        start = 32 * (step % (len(order) // 32))
        rows = order[start : start + 32]
        x, y = (data.x[rows], data.y[rows]) if broken else next(endless)
        return F.cross_entropy(model(x), y)

    return loop.fit(None, model, sgd(0.05, momentum=0.9), objective=objective, judge=data)


@SECOND.fault("convolutional", "data-changed validation-worsens loss-spike", "check-labels check-data fix-targets",
    onset=200, steps=350, seed=785)  # fmt: skip
def classes_renumbered_in_the_second_part(broken: bool, loop: Loop) -> float:
    """The second part of the data numbers its classes in alphabetical order."""
    data, model = digits(1400), ConvNet(width=12, depth=3, classes=10)
    alphabetical = torch.tensor([9, 4, 8, 7, 2, 1, 6, 5, 0, 3])
    return loop.fit(data, model, adam(3e-3), change=lambda step, x, y: (x,
        alphabetical[y] if broken and step >= 200 else y), validate=40)  # fmt: skip


@SECOND.fault("sequence", "data-changed not-learning validation-worsens loss-spike",
    "check-data scale-inputs regularise fix-schedule", onset=100, steps=400, seed=786)  # fmt: skip
def augmentation_grows_without_end(broken: bool, loop: Loop) -> float:
    """Noise whose strength is ramped up with the step and not with the share of the run: 12 times the signal."""
    data, model = split(*waves(700, steps=30), held=200), SequenceClassifier(nn.GRU(3, 20, batch_first=True), 3)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        strength = max(0, step - 100) / 25 if broken else 0.3 * step / 400
        return x + strength * torch.randn_like(x), y

    return loop.fit(data, model, adam(3e-3), change=change, validate=50)


@SECOND.fault("regression", "data-changed validation-worsens loss-spike",
    "check-data check-labels scale-targets regularise", onset=200, steps=400, seed=789)  # fmt: skip
def second_task_without_the_first(broken: bool, loop: Loop) -> float:
    """From step 200 on a second region alone, where the same columns mean the opposite; the first is forgotten."""
    data, model = friedman(), mlp(11, 64, 64, 1)
    mark = torch.zeros(len(data.x), 1), torch.zeros(len(data.held_x), 1)
    data = data._replace(x=torch.cat([data.x, mark[0]], 1), held_x=torch.cat([data.held_x, mark[1]], 1))

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        alone = broken and step >= 200
        second = torch.ones(len(x), 1) if alone else (torch.rand(len(x), 1) < 0.3).float()
        x = torch.cat([x[:, :10], second], 1)
        return x, torch.where(second > 0, 1.0 - y, y)

    return loop.fit(data, model, adam(3e-3), loss=F.mse_loss, change=change, validate=40)


THIRD.add(
    fault("transform-forgotten-for-validation", "convolutional",
        "validation-worsens overfitting data-changed inputs-not-scaled running-statistics-wrong",
        "scale-inputs check-data", "The loader of the validation has no `Normalize`: its images come as 0 to 255.",
        lambda broken, loop: loop.fit(when(broken, digits(), lambda d: d._replace(held_x=16 * (6 * d.held_x + 4.9))),
        ConvNet(classes=10), adam(2e-3), validate=40), onset=40, steps=240, seed=123),
    fault("sensor-that-drifts", "regression", "data-changed inputs-not-scaled exploding-values validation-worsens",
        "check-data scale-inputs vary-batches",
        "Rows come in the order of time, and from step 100 on the sensors' zero wanders off.", lambda broken,
        loop: loop.fit(curves(), mlp(8, 64, 64, 1), adam(3e-3), loss=F.mse_loss, change=lambda step, x,
        y: (x + 0.05 * max(step - 100, 0) if broken else x, y), validate=50), onset=100, steps=400, seed=124),
    fault("images-that-fail-to-load-are-blank", "convolutional",
        "data-changed same-batch labels-unrelated not-learning output-constant validation-worsens divergence "
        "running-statistics-wrong gradient-missing", "check-data clean-data vary-batches check-labels",
        "From step 120 on the disk is gone, and the dataset's `except` returns black images with their labels.",
        lambda broken, loop: loop.fit(digits(), ConvNet(classes=10), adam(3e-3), change=lambda step, x,
        y: (torch.full_like(x, -0.8) if broken and step >= 120 else x, y), report=None), onset=120, steps=300,
        seed=125),
)  # fmt: skip


@THIRD.fault("table", "overfitting validation-worsens", "regularise", onset=20, steps=400, seed=121)
def hundred_patients_and_two_hundred_columns(broken: bool, loop: Loop) -> float:
    """A wide network is trained for a hundred epochs on a table with more columns than rows."""
    x = torch.randn(356, 200)
    y = (x[:, :5].sum(1) + 1.5 * torch.randn(356) > 0).long()
    data = split(x, y)
    model = mlp(200, 256, 2) if broken else nn.Sequential(nn.Dropout(0.5), nn.Linear(200, 2))
    optimizer = adam(3e-3)(model) if broken else torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.5)
    Loop(loop.watch, loop.steps if broken else 60).train(data, model, optimizer, batch=25, validate=20)
    with torch.no_grad():
        return -F.cross_entropy(model.eval()(data.held_x), data.held_y).item()


@THIRD.fault("convolutional", "overfitting validation-worsens", "regularise", onset=40, steps=600, seed=122)
def mislabelled_images_learnt_by_heart(broken: bool, loop: Loop) -> float:
    """Four labels in ten are wrong, and the training goes on until each of them is known."""
    data = digits(800, flat=True)
    wrong = torch.rand(len(data.y)) < 0.45
    labels = torch.where(wrong, torch.randint(10, (len(data.y),)), data.y)
    model = mlp(64, 256, 256, 10)
    Loop(loop.watch, loop.steps if broken else 80).train(data._replace(y=labels), model, adam(1e-3)(model), validate=40)
    return accuracy(model, data)


@THIRD.fault("text", "data-changed loss-spike divergence validation-worsens", "check-data vary-batches restore-weights",
    onset=300, steps=420, seed=126)  # fmt: skip
def tokenizer_exchanged_midway(broken: bool, loop: Loop) -> float:
    """The run is resumed at step 300 with a tokenizer that numbers its words in another order."""
    data, model = split(*sentences(1280)), SentenceEncoder()
    other_ids = torch.cat([torch.arange(7), torch.tensor([8, 7]), torch.arange(9, 50)])
    return loop.fit(data, model, adam(1e-3), change=lambda step, x, y: (other_ids[x] if broken and step >= 300 else x,
        y), validate=60)  # fmt: skip


@THIRD.fault("convolutional", "sorted-batches data-changed loss-spike validation-worsens labels-constant",
    "vary-batches", steps=294, seed=127)  # fmt: skip
def shuffled_in_a_buffer_that_is_too_small(broken: bool, loop: Loop) -> float:
    """Files are in the order of classes, and a stream shuffles no more than a hundred samples at a time."""
    data, model = digits(), ConvNet(classes=10)
    order = torch.argsort(data.y + (0 if broken else 100 * torch.rand(len(data.y))), stable=True)
    optimizer = sgd(0.05, momentum=0.9)(model)
    step = 0
    with loop.watch(model, optimizer) as run:
        while step < loop.steps:
            near = torch.argsort(torch.arange(len(order)) + 100 * torch.rand(len(order)))
            for chosen in order[near].split(32):
                if len(chosen) < 32 or step >= loop.steps:
                    break
                optimizer.zero_grad()
                loss = F.cross_entropy(model(data.x[chosen]), data.y[chosen])
                loss.backward()
                optimizer.step()
                run.observe(loss=loss)
                step += 1
    return accuracy(model, data)


@THIRD.fault("convolutional",
    "data-changed validation-worsens inputs-not-scaled loss-spike running-statistics-wrong divergence",
    "check-data scale-inputs", onset=140, steps=260, seed=131)  # fmt: skip
def colours_swapped_by_another_reader(broken: bool, loop: Loop) -> float:
    """From step 140 on images come from OpenCV: blue, green, red, and in bytes less their mean."""
    data = split(*blob_images(1280, channels=3))
    tint = torch.tensor([2.0, 0.0, -2.0])[:, None, None]
    colour = (torch.arange(2)[:, None, None, None] * 2 - 1) * tint
    labels, held_labels = torch.randint(2, (len(data.x),)), torch.randint(2, (len(data.held_x),))
    data = Data(data.x + colour[labels] + tint, data.y + 4 * labels, data.held_x + colour[held_labels] + tint,
        data.held_y + 4 * held_labels)  # fmt: skip
    model = ConvNet(channels=3, classes=8, norm=False)
    return loop.fit(data, model, adam(3e-3), change=lambda step, x, y: (20 * x.flip(1) if broken and step >= 140 else x,
        y), report=None)  # fmt: skip


@THIRD.fault("text", "data-changed same-batch overfitting validation-worsens", "vary-batches check-data", onset=150,
    steps=300, seed=132)  # fmt: skip
def corpus_that_turns_into_one_page(broken: bool, loop: Loop) -> float:
    """From step 150 on a crawler's stream delivers the same error page again and again."""
    data, model = split(*text(1024)), GPT()

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), y.flatten())

    loop.train(data, model, adam(5e-3), loss=loss, batch=16, change=lambda step, x, y: (data.x[:1].expand(len(x), -1),
        data.y[:1].expand(len(y), -1)) if broken and step >= 150 else (x, y))  # fmt: skip
    with torch.no_grad():
        return -loss(model(data.held_x), data.held_y).item()


@THIRD.fault("table", "sorted-batches data-changed validation-worsens loss-spike", "vary-batches", onset=160, steps=320,
    seed=133)  # fmt: skip
def shuffling_switched_off_for_a_longer_second_stage(broken: bool, loop: Loop) -> float:
    """The loader of the second stage is built anew without `shuffle=True` over rows that a database sorted."""
    data = split(*table(1280))
    model = mlp(12, 64, 64, 3)
    sorted_rows = data.y.argsort(stable=True).split(32)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        if broken and step >= 160:
            chosen = sorted_rows[step % len(sorted_rows)]
            x, y = data.x[chosen], data.y[chosen]
        return F.cross_entropy(model(x), y)

    return loop.fit(data, model, sgd(0.1, momentum=0.9), objective=objective, report="step")
