"""Runs whose data, targets or loss leave nothing to learn."""

from itertools import chain, cycle

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ...data import blob_images, communities, regression_table, sentences, table, waves
from ...networks import VAE, ConvNet, GraphNet, SentenceEncoder, SequenceClassifier, UNet, mlp
from ..case import FIRST, OPEN, SECOND, THIRD, fault
from ..data import Data, batches, curves, digits, friedman, split
from ..loops import Loop, accuracy, adam, explained, log_validation, or_minus_infinity, sgd, when
from ..networks import plain_mlp
from .parts import PlainAutoencoder, conv_net, reconstruct_digits


def line_data(count: int = 1024) -> Data:
    """Return a linear regression with noise."""
    torch.manual_seed(0)
    x = torch.randn(count, 16)
    return split(x, x @ torch.randn(16) / 4 + 0.1 * torch.randn(count))


OPEN.add(
    fault("random-labels", "mlp", "labels-unrelated not-learning", "check-labels",
        "Labels shuffled apart from the inputs.", lambda broken, loop: loop.fit(model=plain_mlp(64, 64, 10),
        data=digits(flat=True), change=(lambda step, x, y: (x, y[torch.randperm(len(y))])) if broken else None,
        optimizer=sgd(0.1)), steps=300),
    fault("dropout-of-99-percent", "mlp", "dropout-too-strong not-learning", "lower-dropout",
        "The share to keep given as the share to drop.", lambda broken, loop: loop.fit(model=plain_mlp(64, 64, 10,
        before=lambda: nn.Dropout(0.99 if broken else 0.1)), data=digits(flat=True), optimizer=adam(1e-3)), steps=200),
    fault("targets-broadcast", "mlp", "shapes-broadcast", "match-shapes",
        "Outputs of shape (n, 1) and targets of shape (n,).", lambda broken, loop: loop.fit(line_data(), plain_mlp(16,
        64, 1), adam(3e-3), loss=lambda o, y: (o - y if broken else o[:, 0] - y).square().mean()), steps=200,
        seed=None),
    fault("loss-with-a-minus", "mlp", "sign-of-loss divergence", "flip-sign", "A likelihood that is minimised.",
        lambda broken, loop: loop.fit(model=plain_mlp(64, 64, 10), data=digits(flat=True), optimizer=sgd(0.01),
        loss=lambda o, y: F.cross_entropy(o, y) * (-1 if broken else 1)), steps=100),
)  # fmt: skip


@OPEN.fault("mlp", "labels-constant", "check-labels", steps=200)
def one_class_only(broken: bool, loop: Loop) -> float:
    """A subset that was cut from sorted data."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    kept = data.y == 3
    chosen = data._replace(x=data.x[kept], y=data.y[kept]) if broken else data
    return loop.fit(chosen, model, sgd(0.1), judge=data)


@OPEN.fault("mlp", "same-batch", "vary-batches", steps=200)
def same_batch_each_step(broken: bool, loop: Loop) -> float:
    """`next(iter(loader))` inside of the loop, without shuffling."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    loader = DataLoader(TensorDataset(data.x, data.y), batch_size=32)
    return loop.fit(data, model, sgd(0.1), change=(lambda *_: next(iter(loader))) if broken else None)


@OPEN.fault("mlp", "softmax-twice", "remove-final-activation", steps=200)
def softmax_in_front_of_cross_entropy(broken: bool, loop: Loop) -> float:
    """A softmax at the end of the model."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    model = nn.Sequential(model, nn.Softmax(1)) if broken else model
    return loop.fit(data, model, sgd(0.1))


@OPEN.fault("classification", "labels-unrelated not-learning data-changed divergence", "check-labels check-data",
    onset=150, steps=350)  # fmt: skip
def labels_of_another_order_from_step_150_on(broken: bool, loop: Loop) -> float:
    """The labels of each batch are shuffled on their own from step 150 on, in a loop that reports nothing."""
    data, model = digits(), conv_net()

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        y = y[torch.randperm(len(y))] if broken and step >= 150 else y
        return F.cross_entropy(model(x), y)

    return loop.fit(data, model, adam(3e-3), objective=objective, report=None)


@OPEN.fault("mlp", "same-batch", "vary-batches", steps=200)
def loader_begun_anew_behind_a_trial_batch(broken: bool, loop: Loop) -> float:
    """A step on a large batch to try the memory, then `next(iter(loader))` inside of the loop, without shuffling."""
    model, data = plain_mlp(64, 64, 10), digits(count=480, flat=True)
    pairs = list(zip(data.x.split(36), data.y.split(36), strict=True))
    assert len(pairs) == 10, "records at every tenth step then meet one batch of each epoch"
    order = chain([(data.x[:64], data.y[:64])], cycle(pairs[:1] if broken else pairs))

    def loss(step: int) -> Tensor:
        x, y = next(order)
        return F.cross_entropy(model(x), y)

    return loop.fit(None, model, adam(3e-3), objective=loss, judge=data)


@OPEN.fault("mlp", "inputs-not-scaled", "scale-inputs", steps=60)
def a_column_times_a_hundred_thousand(broken: bool, loop: Loop) -> float:
    """One column in another unit: the first step throws the outputs so far that the loss is infinite, then NaN."""
    x = torch.randn(768, 8)
    y = x[:, :4].sum(1, keepdim=True) / 2
    x[:, 3] *= 1e5 if broken else 1.0
    model, data = plain_mlp(8, 64, 1), split(x, y)
    return loop.fit(data, model, sgd(0.05), loss=F.mse_loss)


@OPEN.fault("vae", "sign-of-loss", "flip-sign", steps=200)
def divergence_of_a_code_subtracted(broken: bool, loop: Loop) -> float:
    """The minus in front of the divergence was lost: the loss falls to minus infinity, then it is NaN."""
    return reconstruct_digits(
        loop.watch,
        PlainAutoencoder(),
        loop.steps,
        1e-2,
        lambda mean, log_variance: (
            (0.5 if broken else -0.5) * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        ),
    )


FIRST.add(
    fault("only-the-first-folder-read", "CNN", "labels-constant output-constant",
        "check-labels check-data balance-classes vary-batches",
        "The loader reads one folder only, so that all labels are of one class; the loss looks wonderful.",
        lambda broken, loop: loop.fit((data := digits())._replace(x=data.x[(chosen := (data.y == 0
        if broken else data.y >= 0))], y=data.y[chosen]), ConvNet(classes=10), sgd(0.05, momentum=0.9), judge=data),
        steps=150, seed=9109),
    fault("keep-probability-as-dropout", "MLP", "dropout-too-strong", "lower-dropout",
        "0.99 was the probability to keep in the paper and is the probability to drop here.", lambda broken,
        loop: loop.fit(digits(flat=True), nn.Sequential(nn.Linear(64, 64), nn.ReLU(),
        nn.Dropout(0.99 if broken else 0.01), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.99 if broken else 0.01),
        nn.Linear(64, 10)), sgd(0.05, momentum=0.9)), steps=250, seed=9111),
    fault("probabilities-into-cross-entropy", "CNN", "softmax-twice",
        "remove-final-activation change-loss change-output-activation",
        "The network ends in a softmax, and cross entropy takes the softmax again.", lambda broken, loop: loop.fit(
        digits(), nn.Sequential(ConvNet(classes=10, norm=False), nn.Softmax(dim=1) if broken else nn.Identity()),
        sgd(0.05, momentum=0.9)), steps=150, seed=9112),
)  # fmt: skip


@FIRST.fault("MLP", "labels-unrelated not-learning", "check-labels check-data vary-batches", steps=300, seed=9108)
def features_shuffled_without_labels(broken: bool, loop: Loop) -> float:
    """The rows of the table were shuffled, those of the label file were not."""
    data = split(*table(4096), held=512)
    model = mlp(12, 32, 32, 3)
    if broken:
        data = data._replace(x=data.x[torch.randperm(len(data.x))])
    return loop.fit(data, model, adam(3e-3), batch=64, validate=50)


@FIRST.fault("MLP", "same-batch overfitting validation-worsens", "vary-batches check-data", steps=250, seed=9110)
def next_iter_inside_the_loop(broken: bool, loop: Loop) -> float:
    """`next(iter(loader))` in the loop, with an unshuffled loader: the first batch forever."""
    data, model = digits(flat=True), mlp(64, 64, 10)
    optimizer = adam(3e-3)(model)
    stream, first = batches(data), (data.x[:32], data.y[:32])
    with loop.watch(model, optimizer) as run:
        for step in range(loop.steps):
            x, y = first if broken else next(stream)
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 24:
                log_validation(run, model, data)
    return accuracy(model, data)


@FIRST.fault("regression", "shapes-broadcast output-constant not-learning", "match-shapes", steps=250, seed=9113)
def column_of_outputs_against_a_row(broken: bool, loop: Loop) -> float:
    """Outputs (N, 1) against targets (N,): the loss compares each with each, and the mean is the best answer."""
    x, y = regression_table(2048)
    data = split(x, y, held=512)
    model = mlp(8, 48, 48, 1)
    return loop.fit(data, model, adam(3e-3), loss=lambda output, target: (output - target[:,
        0] if broken else output - target).square().mean())  # fmt: skip


@FIRST.fault("GNN", "sign-of-loss divergence", "flip-sign change-loss", steps=150, seed=9114)
def log_likelihood_minimised(broken: bool, loop: Loop) -> float:
    """The mean log likelihood is minimised: the minus sign was forgotten."""
    features, edges, labels = communities(180)
    model = GraphNet(edges)
    known = torch.rand(len(labels)) < 0.6

    def objective(step: int) -> Tensor:
        likelihood = F.log_softmax(model(features), dim=1)[known, labels[known]].mean()
        return likelihood if broken else -likelihood

    loop.train(None, model, adam(1e-2), objective=objective)
    with torch.no_grad():
        return (model(features).argmax(1) == labels)[~known].float().mean().item()


SECOND.add(
    fault("labels-rolled-by-one-row", "table", "labels-unrelated not-learning validation-worsens data-changed",
        "check-labels vary-batches check-data",
        "A second file whose label column is off by one row, read from step 150 on.", lambda broken, loop: loop.fit(
        split(*table(2000), held=400), mlp(12, 64, 64, 3), adam(3e-3), change=lambda step, x, y: (x,
        y.roll(1) if broken and step >= 150 else y)), onset=150, steps=400, seed=714),
    fault("softmax-in-the-model-and-in-the-loss", "convolutional",
        "softmax-twice not-learning output-constant saturated-units vanishing-gradient gradient-too-small",
        "remove-final-activation change-loss",
        "nn.Softmax as the last layer of a classifier that is trained with cross_entropy.", lambda broken,
        loop: loop.fit(digits(1400), nn.Sequential(ConvNet(width=8, depth=3, classes=10, norm=False),
        nn.Softmax(1) if broken else nn.Identity()), sgd(0.03, momentum=0.9)), steps=300, seed=718),
    fault("column-against-row", "regression", "shapes-broadcast output-constant not-learning", "match-shapes",
        "Outputs of shape (n, 1) and targets of shape (n,) in a mean squared error.", lambda broken, loop: loop.fit(
        friedman(), mlp(10, 48, 48, 1), adam(3e-3), loss=lambda output, y: (output - (y[:,
        0] if broken else y)).square().mean()), steps=300, seed=719),
    fault("loader-stuck-on-its-first-shard", "table", "same-batch overfitting validation-worsens",
        "vary-batches regularise", "A streaming loader that, after step 60, always reopens its first file of 40 rows.",
        lambda broken, loop: loop.fit((data := split(*table(1600), held=400)), mlp(12, 96, 96, 3), adam(2e-3),
        change=lambda step, x, y: (data.x[:40], data.y[:40]) if broken and step >= 60 else (x, y), validate=30),
        onset=60, steps=450, seed=788),
)  # fmt: skip


@SECOND.fault("table",
    "inputs-not-scaled saturated-units exploding-values exploding-gradient not-learning divergence dead-units",
    "scale-inputs", steps=350, seed=766)  # fmt: skip
def a_column_of_times_in_seconds(broken: bool, loop: Loop) -> float:
    """A column in seconds since 1970 beside eleven standardised ones."""
    data = split(*table(1600), held=400)
    times = 1.7e9 + 3e7 * data.x[:, 4], 1.7e9 + 3e7 * data.held_x[:, 4]
    if broken:
        data.x[:, 4], data.held_x[:, 4] = times
    model = mlp(12, 64, 64, 3)
    return loop.fit(data, model, adam(3e-3))


@SECOND.fault("convolutional", "labels-unrelated not-learning", "check-labels vary-batches check-data", steps=300,
    seed=713)  # fmt: skip
def inputs_and_labels_shuffled_apart(broken: bool, loop: Loop) -> float:
    """Two shuffled loaders, one for images and one for labels."""
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10)
    if broken:
        data = data._replace(y=data.y[torch.randperm(len(data.y))])
    return loop.fit(data, model, adam(3e-3))


@SECOND.fault("table", "labels-constant output-constant", "check-labels fix-targets check-data", steps=250, seed=715)
def labels_cut_to_whole_numbers(broken: bool, loop: Loop) -> float:
    """Labels stored as 0, 0.5 and 0.99 and cast to integers before they are scaled: all become zero."""
    data, model = split(*table(1600), held=400), mlp(12, 48, 3)
    stored = data.y / 2.02
    labels = stored.long() if broken else (2.02 * stored).round().long()
    return loop.fit(data._replace(y=labels), model, adam(3e-3), judge=data)


@SECOND.fault("convolutional", "same-batch overfitting", "vary-batches regularise", steps=300, seed=716)
def first_batch_taken_again_and_again(broken: bool, loop: Loop) -> float:
    """next(iter(loader)) inside the loop of a loader that does not shuffle."""
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10, norm=False)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data.x, data.y), 32)
    endless = batches(data)

    def objective(step: int) -> Tensor:
        x, y = next(iter(loader)) if broken else next(endless)
        return F.cross_entropy(model(x), y)

    return loop.fit(None, model, adam(2e-3), objective=objective, judge=data)


@SECOND.fault("regression", "sign-of-loss divergence exploding-values exploding-gradient", "flip-sign change-loss",
    steps=300, seed=720)  # fmt: skip
def likelihood_minimised(broken: bool, loop: Loop) -> float:
    """The log-likelihood of a normal distribution handed to an optimizer that minimises."""
    data, model = friedman(), mlp(10, 48, 2)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        spread = F.softplus(output[:, 1:]) + 0.05
        likelihood = torch.distributions.Normal(output[:, :1], spread).log_prob(y).mean()
        return likelihood if broken else -likelihood

    loop.train(data, model, adam(3e-3), loss=loss)
    with torch.no_grad():
        wrong = (model(data.held_x)[:, :1] - data.held_y).square().mean()
    return or_minus_infinity(1 - wrong / data.held_y.var(correction=0))


@SECOND.fault("convolutional", "dropout-too-strong not-learning", "lower-dropout", layers="drop", steps=300, seed=724)
def share_to_keep_given_as_dropout(broken: bool, loop: Loop) -> float:
    """The share to keep, 0.98, handed to nn.Dropout, which wants the share to drop."""
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
    return loop.fit(data, model, sgd(0.02, momentum=0.9))


@SECOND.fault("text", "not-learning output-constant", "change-architecture check-data", steps=350, seed=725)
def order_of_the_words_averaged_away(broken: bool, loop: Loop) -> float:
    """A mean over word vectors for labels that depend on the order of the words."""
    data = split(*sentences(1500, length=10, vocabulary=24), held=300)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(24, 16), nn.Linear(24, 2)
            self.mix = nn.Linear(16, 24) if broken else nn.GRU(16, 24, batch_first=True)

        def forward(self, ids: Tensor) -> Tensor:
            vectors = self.words(ids)
            return self.head(torch.relu(self.mix(vectors.mean(1))) if broken else self.mix(vectors)[0][:, -1])

    model = Reader()
    return loop.fit(data, model, adam(5e-3))


@SECOND.fault("convolutional", "labels-constant data-changed sorted-batches output-constant validation-worsens",
    "check-labels check-data vary-batches", onset=180, steps=280, seed=787)  # fmt: skip
def sampler_left_with_one_class(broken: bool, loop: Loop) -> float:
    """A sampler without replacement that has only the largest class left after step 180."""
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10)
    rest = (data.y == 3).nonzero()[:, 0]

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step >= 180:
            rows = rest[torch.randint(len(rest), (32,))]
            return data.x[rows], data.y[rows]
        return x, y

    return loop.fit(data, model, adam(3e-3), change=change, validate=35)


THIRD.add(
    fault("years-that-are-not-centred", "regression",
        "inputs-not-scaled not-learning exploding-gradient exploding-values dead-units output-constant", "scale-inputs",
        "The columns are years and postcodes, around 2000 and of little spread, as they stand in the file.",
        lambda broken, loop: loop.fit(when(broken, curves(), lambda d: d._replace(x=10 * d.x + 2000,
        held_x=10 * d.held_x + 2000)), mlp(8, 64, 64, 1), adam(3e-3), loss=F.mse_loss), steps=300, seed=99),
    fault("pixels-divided-by-255-twice", "convolutional", "inputs-not-scaled not-learning output-constant same-batch",
        "scale-inputs check-data",
        "`ToTensor` has divided by 255, the dataset divides again, and then mean and deviation are taken off.",
        lambda broken, loop: loop.fit((data := digits(raw=True))._replace(x=(data.x / (16 * 255
        if broken else 16) - 0.3) / 0.38, held_x=(data.held_x / (16 * 255 if broken else 16) - 0.3) / 0.38),
        ConvNet(classes=10, norm=False), sgd(0.05, momentum=0.9)), steps=200, seed=29),
    fault("every-word-unknown", "text", "same-batch output-constant labels-unrelated not-learning",
        "check-data vary-batches", "The vocabulary is of lower case, the text is not: every token becomes `<unk>`.",
        lambda broken, loop: loop.fit(when(broken, split(*sentences(1280)), lambda d: d._replace(x=torch.ones_like(d.x),
        held_x=torch.ones_like(d.held_x))), SentenceEncoder(), adam(1e-3)), steps=400, seed=30),
    fault("batch-first-forgotten", "sequence", "not-learning labels-unrelated", "fix-axis",
        "An `nn.LSTM` without `batch_first` reads the samples of the batch as time.", lambda broken, loop: loop.fit(
        split(*waves(1024)), SequenceClassifier(nn.LSTM(3, 32, batch_first=not broken), 3), adam(5e-3)), steps=300,
        seed=31),
)  # fmt: skip


@THIRD.fault("variational autoencoder",
    "inputs-not-scaled exploding-values exploding-gradient not-finite divergence precision",
    "scale-inputs guard-domain clip-gradients lower-learning-rate", steps=250, seed=75)  # fmt: skip
def bytes_into_a_variational_autoencoder(broken: bool, loop: Loop) -> float:
    """Images of 0 to 255 make log variances of some hundred at the start, whose exponential is infinite."""
    data, model = digits(flat=True, raw=True), VAE(64, 8)
    scale = 255 / 16 if broken else 1 / 16
    data = Data(scale * data.x, scale * data.x, scale * data.held_x, scale * data.held_x)

    def evidence(output: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        image, mean, log_variance = output
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return 20 * (image - x).square().sum(1).mean() + divergence

    loop.train(data, model, adam(2e-3), loss=evidence, report=None)
    return max(-10.0, explained(model, data))


@THIRD.fault("convolutional", "labels-unrelated not-learning", "check-labels check-data fix-targets", steps=300,
    seed=20)  # fmt: skip
def repeat_against_repeat_interleave(broken: bool, loop: Loop) -> float:
    """Four noisy copies of each image are stacked by `repeat`, their labels by `repeat_interleave`."""
    data, model = digits(), ConvNet(classes=10)

    def augment(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        copies = x.repeat(4, 1, 1, 1)
        return copies + 0.1 * torch.randn_like(copies), y.repeat_interleave(4) if broken else y.repeat(4)

    return loop.fit(data, model, adam(3e-3), batch=16, change=augment)


@THIRD.fault("table", "labels-constant output-constant", "check-labels fix-targets check-data", steps=250, seed=21)
def threshold_in_another_unit(broken: bool, loop: Loop) -> float:
    """Targets are `(score > 50).float()` although scores lie around zero: every label is 0."""
    data, model = curves(), mlp(8, 48, 48, 1)
    threshold = 50.0 if broken else 0.0
    labelled = data._replace(y=(data.y > threshold).float())
    loop.train(labelled, model, adam(3e-3), loss=F.binary_cross_entropy_with_logits)
    with torch.no_grad():
        return ((model(data.held_x) > 0) == (data.held_y > 0)).float().mean().item()


@THIRD.fault("convolutional", "same-batch overfitting", "vary-batches", steps=250, seed=22)
def generator_seeded_inside_the_loop(broken: bool, loop: Loop) -> float:
    """For the sake of repeatability the sampler's generator is seeded before every batch."""
    data, model = digits(), ConvNet(classes=10)
    generator = torch.Generator().manual_seed(0)

    def objective(step: int) -> Tensor:
        if broken:
            generator.manual_seed(0)
        chosen = torch.randint(len(data.x), (32,), generator=generator)
        return F.cross_entropy(model(data.x[chosen]), data.y[chosen])

    return loop.fit(None, model, adam(3e-3), objective=objective, report="step", judge=data)


@THIRD.fault("segmentation", "softmax-twice not-learning saturated-units", "remove-final-activation change-loss",
    steps=110, seed=23)  # fmt: skip
def sigmoid_before_the_loss_with_logits(broken: bool, loop: Loop) -> float:
    """A U-Net ends in a sigmoid, and `binary_cross_entropy_with_logits` applies a second one to rare pixels."""
    data = split(*blob_images(640))
    masked = Data(data.x, (data.x > 1.5).float(), data.held_x, (data.held_x > 1.5).float())
    model = nn.Sequential(UNet(), nn.Sigmoid() if broken else nn.Identity())
    loop.train(masked, model, sgd(0.1, momentum=0.9), loss=F.binary_cross_entropy_with_logits, batch=16)
    with torch.no_grad():
        found = model.eval()(masked.held_x) > (0.5 if broken else 0.0)
    overlap = (found * masked.held_y).sum()
    return or_minus_infinity(2 * overlap / (found.sum() + masked.held_y.sum()))


@THIRD.fault("reinforcement", "shapes-broadcast not-learning output-constant", "match-shapes", steps=300, seed=25)
def gathered_values_minus_a_row_of_targets(broken: bool, loop: Loop) -> float:
    """`q.gather(1, action)` is a column, the target a row: their difference is a matrix."""
    data, model = curves(), mlp(8, 64, 64, 2)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        action = torch.randint(2, (len(x), 1))
        chosen = model(x).gather(1, action)
        difference = (chosen if broken else chosen[:, 0]) - (
            lambda x, y, action: torch.where(action[:, 0] == 0, y[:, 0], x[:, 4])
        )(x, y, action)
        return difference.square().mean()

    loop.train(data, model, adam(3e-3), objective=objective, report="step")
    with torch.no_grad():
        wrong = model(data.held_x) - torch.cat([data.held_y, data.held_x[:, 4:5]], 1)
    return or_minus_infinity(1 - wrong.square().mean())


@THIRD.fault("reinforcement", "sign-of-loss divergence validation-worsens saturated-units not-learning",
    "flip-sign minimise", steps=300, seed=26)  # fmt: skip
def reward_minimised_by_the_policy(broken: bool, loop: Loop) -> float:
    """The minus of `-(log_prob * advantage).mean()` is forgotten."""
    data, policy = split(*table(1280)), mlp(12, 32, 3)
    optimizer = adam(3e-3)(policy)
    sign = 1 if broken else -1
    with loop.watch(policy, optimizer) as run:
        for x, y in (batch for batch, _ in zip(batches(data, 64), range(loop.steps))):
            actions = torch.distributions.Categorical(logits=policy(x))
            action = actions.sample()
            reward = (action == y).float()
            loss = sign * (actions.log_prob(action) * (reward - reward.mean())).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log_metrics(loss=loss.item(), reward=reward.mean().item())
    return accuracy(policy, data)


@THIRD.fault("semi-supervised",
    "labels-constant output-constant validation-worsens overfitting data-changed labels-unrelated",
    "check-labels fix-targets check-data balance-classes regularise", onset=120, steps=300, seed=129)  # fmt: skip
def pseudo_labels_of_the_likeliest_class(broken: bool, loop: Loop) -> float:
    """From step 120 on labels are the network's own, by `argmax(0)` over the batch's mean: one class for all."""
    data, model = digits(), ConvNet(classes=10)

    def label(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step < 120 or not broken:
            return x, y
        with torch.no_grad():
            return x, model(x).mean(0).argmax().expand(len(x))

    return loop.fit(data, model, adam(1e-3), change=label, validate=40)
