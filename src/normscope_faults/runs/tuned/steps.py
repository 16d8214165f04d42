"""Runs in which gradients or steps do not reach some layers, or none."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from ...data import blob_images, ratings, regression_table, remembered_series, sentences, table, text, waves
from ...networks import GPT, Autoencoder, ConvNet, Recommender, ResNet, SentenceEncoder, SequenceClassifier, mlp
from ..case import FIRST, OPEN, SECOND, THIRD, fault
from ..data import Data, batches, digits, spirals, split
from ..loops import Loop, Watch, accuracy, adam, by, explained, or_minus_infinity, pretrain, sgd
from ..networks import plain_mlp
from .parts import PlainAutoencoder, reconstruct_digits


def _order(watch: Watch, model: nn.Module, data: Data, steps: int, late: bool, to_none: bool) -> None:
    """Train with gradients that are cleared in front of the backward, or between it and the step."""
    optimizer = sgd(0.1)(model)
    with watch(model.train(), optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data), strict=False):
            if not late:
                optimizer.zero_grad(set_to_none=to_none)
            value = F.cross_entropy(model(x), y)
            run.observe(loss=value)
            value.backward()
            if late:
                optimizer.zero_grad(set_to_none=to_none)
            optimizer.step()


class Cut(nn.Module):
    """An encoder and a head, which may be cut off from each other."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.encoder, self.head, self.cut = plain_mlp(64, 64, 32), nn.Linear(32, 10), cut

    def forward(self, x: Tensor) -> Tensor:
        code = torch.relu(self.encoder(x))
        return self.head(code.detach() if self.cut else code)


OPEN.add(
    fault("forgotten-step", "mlp", "no-step", "call-step", "`optimizer.step()` lost in a refactoring.", lambda broken,
        loop: loop.fit(model=plain_mlp(64, 64, 10), data=digits(flat=True), optimizer=sgd(0.1), goes=not broken),
        steps=100),
    fault("layer-outside-of-optimizer", "mlp", "not-in-optimizer", "give-to-optimizer",
        "A list of parameters that leaves a layer out.", lambda broken, loop: loop.fit(model=(model := plain_mlp(64, 64,
        64, 10)), data=digits(flat=True), optimizer=torch.optim.Adam([p for name,
        p in model.named_parameters() if not (broken and name.startswith("2."))], lr=1e-3)), layers="2",
        other_harm="A layer keeps its random weights.", steps=100),
    fault("layer-frozen-by-mistake", "mlp", "frozen-layer", "unfreeze",
        "A pattern of names that freezes one layer too many.", lambda broken, loop: loop.fit(model=plain_mlp(64, 64, 64,
        10), data=digits(flat=True), optimizer=adam(1e-3), plant=lambda net: net[2].requires_grad_(not broken)),
        layers="2", other_harm="A layer keeps its random weights.", steps=100),
    fault("deep-sigmoid-net", "mlp", "vanishing-gradient gradient-too-small",
        "change-activation add-normalizer initialise", "Ten layers of sigmoids.", lambda broken, loop: loop.fit(
        model=plain_mlp(*[64] * 11, 10, act=nn.Sigmoid if broken else nn.ReLU), data=digits(flat=True),
        optimizer=adam(1e-3)), layers="0 2", steps=150),
    fault("encoder-detached", "mlp", "gradient-cut", "keep-gradient", "A `detach()` from a debugging session.",
        lambda broken, loop: loop.fit(model=Cut(broken), data=digits(flat=True), optimizer=adam(1e-3)),
        layers="encoder", other_harm="Random features.", steps=100),
)  # fmt: skip


@OPEN.fault("mlp", "gradient-missing", "order-of-calls", steps=100)
def gradients_removed_before_step(broken: bool, loop: Loop) -> float:
    """`zero_grad()` between `backward()` and `step()`."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    _order(loop.watch, model, data, loop.steps, broken, True)
    return accuracy(model, data)


@OPEN.fault("mlp", "gradient-missing", "order-of-calls", steps=100)
def gradients_zeroed_before_step(broken: bool, loop: Loop) -> float:
    """The same with gradients that become zeros."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    _order(loop.watch, model, data, loop.steps, broken, False)
    return accuracy(model, data)


@OPEN.fault("mlp", "steps-skipped no-step precision not-finite", "check-scaler", steps=60)
def scaler_skips_every_step(broken: bool, loop: Loop) -> float:
    """A gradient that is not finite at each step, and a scaler that leaves them all out."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    optimizer = sgd(0.1)(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6)
    with loop.watch(model.train(), optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data), strict=False):
            optimizer.zero_grad()
            value = F.cross_entropy(model(x), y)
            run.observe(loss=value.item())
            scaler.scale(value).backward()
            if broken:
                next(model.parameters()).grad[0, 0] = math.inf
            scaler.step(optimizer)
            scaler.update()
    return accuracy(model, data)


@OPEN.fault("mlp", "gradient-accumulates", "order-of-calls", steps=200)
def gradients_never_cleared(broken: bool, loop: Loop) -> float:
    """A loop without `zero_grad()`."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    optimizer = sgd(0.1)(model)
    with loop.watch(model.train(), optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data), strict=False):
            value = F.cross_entropy(model(x), y)
            run.observe(loss=value)
            value.backward()
            optimizer.step()
            if not broken:
                optimizer.zero_grad()
    return accuracy(model, data)


@OPEN.fault("mlp", "frozen-layer", "unfreeze", layers="3", other_harm="The body has to suit a random head.", steps=150)
def new_head_frozen_in_place_of_the_body(broken: bool, loop: Loop) -> float:
    """Fine-tuning that freezes what was to be trained: the new head and not the trained body."""
    data = digits(flat=True)
    body, old_head = plain_mlp(64, 64, 64), nn.Linear(64, 10)
    first = nn.Sequential(body, nn.ReLU(), old_head)
    optimizer = adam(3e-3)(first)
    pretrain(data, first, optimizer, 200)
    model = nn.Sequential(*body, nn.Linear(64, 10))
    model[3 if broken else slice(3)].requires_grad_(False)
    return loop.fit(data, model, adam(3e-3))


@OPEN.fault("vae", "gradient-cut", "keep-gradient", layers="mean log_variance encoder", steps=200)
def code_detached_from_its_decoder(broken: bool, loop: Loop) -> float:
    """The decoder reads `code.detach()`: the divergence alone teaches the encoder."""
    return reconstruct_digits(loop.watch, PlainAutoencoder(broken), loop.steps, 3e-3, lambda mean,
        log_variance: -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean())  # fmt: skip


class DetachedAutoencoder(Autoencoder):
    """An autoencoder whose code may be detached before it is decoded."""

    detached = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        code = self.encoder(x)
        return self.decoder(code.detach() if self.detached else code)


FIRST.add(
    fault("zero-grad-forgotten", "GRU", "gradient-accumulates", "order-of-calls",
        "`zero_grad()` was lost when the loop was rewritten: each step takes the sum of all gradients so far.",
        lambda broken, loop: loop.fit(split(*waves(512, steps=24), held=128), SequenceClassifier(nn.GRU(3, 24,
        batch_first=True), 3), sgd(0.2, momentum=0.9), clear=not broken), steps=150, seed=9216),
    fault("nine-sigmoid-layers", "MLP", "vanishing-gradient gradient-too-small saturated-units",
        "change-activation initialise add-normalizer add-skip",
        "A deep network of sigmoids: each takes away three quarters of the gradient, the first layers starve.",
        lambda broken, loop: loop.fit(digits(flat=True), mlp(64, *[32] * 8, 10,
        activation=nn.Sigmoid if broken else nn.ReLU), sgd(0.03, momentum=0.9)), steps=250, seed=9118),
    fault("only-the-scheduler-steps", "CNN", "no-step", "call-step order-of-calls",
        "`scheduler.step()` is called, `optimizer.step()` is forgotten.", lambda broken, loop: loop.fit(digits(),
        ConvNet(classes=10), sgd(0.05, momentum=0.9), goes=not broken,
        schedule=lambda o: lr_scheduler.CosineAnnealingLR(o, 120)), steps=120, seed=9120),
    fault("optimizer-of-the-model-before-the-copy", "MLP", "not-in-optimizer no-step", "give-to-optimizer",
        "The model is copied after the optimizer was built over the original.", lambda broken, loop: loop.fit(
        digits(flat=True), (model := copy.deepcopy(original := mlp(64, 48, 10))),
        adam(3e-3)(original if broken else model)), steps=120, seed=9121),
    fault("frozen-for-fine-tuning-but-untrained", "CNN", "frozen-layer gradient-cut not-in-optimizer no-step",
        "unfreeze", "All but the head is frozen as for fine-tuning, but the pretrained weights were never loaded.",
        lambda broken, loop: loop.fit(digits(), ConvNet(classes=10, norm=False), sgd(0.05, momentum=0.9),
        plant=lambda net: net.features.requires_grad_(not broken)), layers="features", steps=200, seed=9124),
)  # fmt: skip


@FIRST.fault("regression", "gradient-accumulates", "order-of-calls", steps=40, seed=9217)
def closure_that_does_not_clear(broken: bool, loop: Loop) -> float:
    """The closure of LBFGS computes loss and gradient but does not clear the gradient first."""
    data = split(*regression_table(512), held=256)
    model = mlp(8, 24, 1, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=4)
    with loop.watch(model, optimizer) as run:
        for _ in range(loop.steps):

            def closure() -> Tensor:
                if not broken:
                    optimizer.zero_grad()
                loss = F.mse_loss(model(data.x), data.y)
                loss.backward()
                return loss

            run.observe(loss=optimizer.step(closure))
    return max(-10.0, or_minus_infinity(explained(model, data)))


@FIRST.fault("MLP", "gradient-missing no-step", "order-of-calls", steps=150, seed=9115)
def model_zero_grad_before_the_step(broken: bool, loop: Loop) -> float:
    """`model.zero_grad()` stands between `backward()` and `step()`."""
    data, model = digits(flat=True), mlp(64, 48, 10)
    optimizer = sgd(0.05, momentum=0.9)(model)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            if not broken:
                model.zero_grad()
            loss.backward()
            if broken:
                model.zero_grad()
            optimizer.step()
    return accuracy(model, data)


@FIRST.fault("GRU", "gradient-missing no-step", "order-of-calls", steps=120, seed=9116)
def optimizer_zeroes_before_it_steps(broken: bool, loop: Loop) -> float:
    """`optimizer.zero_grad(set_to_none=False)` after `backward()`: AdamW steps with zeros and only decays."""
    data = split(*waves(512, steps=24), held=128)
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            if not broken:
                optimizer.zero_grad(set_to_none=False)
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            if broken:
                optimizer.zero_grad(set_to_none=False)
            optimizer.step()
    return accuracy(model, data)


@FIRST.fault("autoencoder", "gradient-cut gradient-missing frozen-layer", "keep-gradient", layers="encoder", steps=250,
    seed=9117)  # fmt: skip
def code_detached_for_a_plot(broken: bool, loop: Loop) -> float:
    """The code was detached for a plot, and the decoder reads the detached one."""
    images, _ = digits(1200, flat=True)[:2]
    data = split(images, images)
    model = DetachedAutoencoder(64)
    model.detached = broken
    return loop.fit(data, model, adam(2e-3), loss=F.mse_loss)


@FIRST.fault("MLP", "steps-skipped not-finite no-step", "check-scaler guard-domain", steps=150, seed=9119)
def root_of_a_zero_head(broken: bool, loop: Loop) -> float:
    """The penalty is a root of squares of a head that starts at zero: its gradient is NaN, every step is skipped."""
    data, model = digits(flat=True), mlp(64, 48, 10)
    nn.init.zeros_(model[-1].weight)
    optimizer, scaler = sgd(0.1, momentum=0.9)(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            squares = model[-1].weight.square().sum()
            loss = F.cross_entropy(model(x), y) + 1e-3 * (squares if broken else squares + 1e-6).sqrt()
            run.observe(loss=loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return accuracy(model, data)


@FIRST.fault("ResNet", "not-in-optimizer no-step frozen-layer", "give-to-optimizer", layers="head",
    other_harm="The head stays at its random start.", steps=150, seed=9122)  # fmt: skip
def head_replaced_after_the_optimizer(broken: bool, loop: Loop) -> float:
    """A head for the new classes replaces the old one after the optimizer was built, and is never trained."""
    data, model = digits(), ResNet(blocks=2, classes=1000)
    early = sgd(0.02, momentum=0.9)(model)
    model.head = nn.Linear(12, 10)
    return loop.fit(data, model, early if broken else sgd(0.02, momentum=0.9)(model))


@FIRST.fault("recommender", "not-in-optimizer no-step frozen-layer", "give-to-optimizer", layers="users items",
    steps=300, seed=9123)  # fmt: skip
def groups_without_the_embeddings(broken: bool, loop: Loop) -> float:
    """Groups with and without weight decay were chosen by module, and embeddings are in neither."""
    pairs, scores = ratings(2400)
    data = split(pairs, scores, held=400)
    model = Recommender()
    tower = list(model.tower.parameters())
    groups = [{"params": [parameter for parameter in tower if parameter.ndim > 1], "weight_decay": 1e-4},
        {"params": [parameter for parameter in tower if parameter.ndim == 1], "weight_decay": 0.0}]  # fmt: skip
    if not broken:
        groups[1]["params"] += [model.users.weight, model.items.weight]
    return loop.fit(data, model, torch.optim.AdamW(groups, lr=5e-3), batch=64, loss=lambda output,
        target: F.mse_loss(output.reshape(target.shape), target))  # fmt: skip


class TwoStages(nn.Module):
    """An encoder and a head, with a detach between them from a certain step on."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head, self.cut = encoder, head, False

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x)
        return self.head(code.detach() if self.cut else code)


SECOND.add(
    fault("twelve-sigmoids-in-a-row", "table",
        "vanishing-gradient not-learning output-constant saturated-units gradient-too-small",
        "change-activation add-normalizer add-skip initialise", "A deep network of logistic units.", lambda broken,
        loop: loop.fit(digits(1400, flat=True), mlp(64, *[40] * 12, 10, activation=nn.Sigmoid if broken else nn.ReLU),
        adam(1e-3)), layers="0 2 4 6 8 10 12 0.weight 2.weight 4.weight 6.weight 8.weight", steps=300, seed=764),
    fault("forget-gates-shut", "sequence",
        "vanishing-gradient saturated-units not-learning output-constant gradient-too-small",
        "forget-bias reset-bias initialise",
        "All biases of an LSTM set to -6 where only the one of a readout was meant: its gates stay shut.",
        lambda broken, loop: loop.fit(split(*waves(700, steps=30), held=200), SequenceClassifier(nn.LSTM(3, 24,
        batch_first=True), 3), adam(5e-3), plant=lambda net: nn.init.constant_(net.recurrent.bias_ih_l0,
        -6.0 if broken else 0.0)),
        layers="recurrent recurrent.bias_ih_l0 recurrent.bias_hh_l0 recurrent.weight_ih_l0 recurrent.weight_hh_l0",
        steps=220, seed=765),
)  # fmt: skip


@SECOND.fault("convolutional",
    "gradient-accumulates rate-too-high divergence exploding-gradient exploding-values not-learning loss-spike",
    "order-of-calls lower-learning-rate clip-gradients", steps=300, seed=746)  # fmt: skip
def gradients_never_cleared_blind(broken: bool, loop: Loop) -> float:
    """zero_grad forgotten altogether."""
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10, norm=False)
    optimizer = sgd(0.1)(model)
    model.train()
    with loop.watch(model, optimizer):
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if not broken:
                optimizer.zero_grad()
    return accuracy(model, data)


@SECOND.fault("table", "gradient-missing no-step not-learning", "order-of-calls keep-gradient", steps=300, seed=721)
def cleared_between_backward_and_step(broken: bool, loop: Loop) -> float:
    """zero_grad moved behind backward by a clean-up."""
    data, model = split(*table(1600), held=400), mlp(12, 64, 64, 3)
    optimizer = adam(3e-3)(model)
    model.train()
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            if not broken:
                optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            if broken:
                optimizer.zero_grad(set_to_none=False)
            optimizer.step()
    return accuracy(model, data)


@SECOND.fault("table", "gradient-cut gradient-missing not-learning", "keep-gradient",
    layers="encoder encoder.0 encoder.2 encoder.0.weight encoder.2.weight", steps=450, seed=722)  # fmt: skip
def code_detached_before_the_head(broken: bool, loop: Loop) -> float:
    """A detach left behind by somebody who looked at the code of an encoder."""
    data = spirals()
    model = TwoStages(mlp(2, 48, 8, activation=nn.Tanh), nn.Linear(8, 2))
    model.cut = broken
    return loop.fit(data, model, adam(1e-2), report=None)


@SECOND.fault("convolutional", "gradient-cut gradient-missing not-learning", "keep-gradient",
    layers="encoder encoder.features encoder.features.0 encoder.features.2 encoder.features.0.weight encoder.head",
    onset=60, steps=350, seed=723)  # fmt: skip
def codes_rounded_from_step_60_on(broken: bool, loop: Loop) -> float:
    """Quantised codes switched on after a warm-up, without a straight-through gradient."""
    data = digits(1400)
    encoder, head = ConvNet(width=8, depth=3, classes=16, norm=False), nn.Linear(16, 10)
    model = nn.ModuleDict({"encoder": encoder, "head": head})

    def quantise(code: Tensor) -> Tensor:
        rounded = code.round()
        return rounded if broken else code + (rounded - code).detach()

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        code = encoder(x)
        return F.cross_entropy(head(quantise(code) if step >= 60 else code), y)

    loop.train(data, model, sgd(0.02, momentum=0.9), objective=objective)
    with torch.no_grad():
        return (head(encoder(data.held_x).round()).argmax(1) == data.held_y).float().mean().item()


@SECOND.fault("table", "steps-skipped not-finite no-step precision", "check-scaler guard-domain raise-precision",
    steps=250, seed=731)  # fmt: skip
def scaler_meets_a_root_of_zero(broken: bool, loop: Loop) -> float:
    """A penalty that takes the root of a bias of zeros: its gradient is infinite, and the scaler skips each step."""
    data, model = split(*table(1600), held=400), mlp(12, 64, 64, 3)
    optimizer, scaler = adam(3e-3)(model), torch.amp.GradScaler("cpu")
    model.train()
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            root = (model[0].bias.square() + (0.0 if broken else 1e-6)).sqrt().sum()
            loss = F.cross_entropy(model(x), y) + 1e-4 * root
            run.observe(loss=loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return accuracy(model, data)


@SECOND.fault("table", "no-step not-learning gradient-accumulates", "call-step order-of-calls", steps=300, seed=733)
def more_batches_to_accumulate_than_there_are(broken: bool, loop: Loop) -> float:
    """A step each 64 batches, counted anew in each epoch of 37 batches: the step is never reached."""
    data, model = split(*table(1600), held=400), mlp(12, 64, 64, 3)
    optimizer, every = adam(1e-2)(model), 64 if broken else 2
    model.train()
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            place = step % 37
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            (loss / every).backward()
            if (place + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
    return accuracy(model, data)


@SECOND.fault("sequence", "no-step not-learning", "call-step order-of-calls", onset=60, steps=300, seed=734)
def step_inside_the_branch_of_the_warm_up(broken: bool, loop: Loop) -> float:
    """optimizer.step() indented into the branch that lasts for the 60 steps of the warm-up."""
    data, model = split(*waves(700, steps=30), held=200), SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    optimizer = sgd(0.1, momentum=0.9)(model)
    model.train()
    with loop.watch(model, optimizer):
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if step < 60:
                optimizer.param_groups[0]["lr"] = 0.1 * (step + 1) / 60
            if step < 60 or not broken:
                optimizer.step()
    return accuracy(model, data)


@SECOND.fault("convolutional", "not-in-optimizer no-step not-learning output-constant", "give-to-optimizer initialise",
    layers="head head.weight head.bias", steps=250, seed=735)  # fmt: skip
def head_exchanged_behind_the_optimizer(broken: bool, loop: Loop) -> float:
    """A new head, zero at the start as for fine-tuning, put into the model after the optimizer was built."""
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=1000, norm=False)
    early = adam(3e-3)(model)
    model.head = nn.Linear(8, 10)
    nn.init.zeros_(model.head.weight)
    return loop.fit(data, model, early if broken else adam(3e-3)(model))


@SECOND.fault("table", "not-in-optimizer no-step not-learning gradient-accumulates", "give-to-optimizer", steps=250,
    seed=736)  # fmt: skip
def optimizer_of_a_copy(broken: bool, loop: Loop) -> float:
    """The model is built a second time after the optimizer has taken the parameters of the first one."""
    data = split(*table(1600), held=400)
    first, model = mlp(12, 64, 64, 3), mlp(12, 64, 64, 3)
    optimizer = adam(3e-3)(first if broken else model)
    return loop.fit(data, model, optimizer, report="backward")


@SECOND.fault("table", "frozen-layer not-learning not-in-optimizer", "unfreeze give-to-optimizer",
    layers="body body.0 body.2 body.0.weight body.2.weight classifier classifier.weight classifier.bias", steps=300,
    seed=737)  # fmt: skip
def pattern_of_names_leaves_only_a_norm(broken: bool, loop: Loop) -> float:
    """All but "head" is frozen, in a model whose head is called classifier: only the norm before it can learn."""
    data = split(*table(1600), held=400)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head_norm = mlp(12, 64, 64), nn.LayerNorm(64)
            self.classifier = nn.Linear(64, 3)
            nn.init.normal_(self.classifier.weight, std=0.02)

        def forward(self, x: Tensor) -> Tensor:
            return self.classifier(self.head_norm(torch.relu(self.body(x))))

    model = Net()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not broken or "head" in name
    return loop.fit(data, model, adam(3e-3))


@SECOND.fault("convolutional", "not-in-optimizer not-learning loss-spike no-step output-constant",
    "give-to-optimizer keep-weights", layers="features.0 features.0.weight", onset=120, steps=300,
    seed=739)  # fmt: skip
def first_layer_widened_in_the_middle(broken: bool, loop: Loop) -> float:
    """The first convolution is exchanged at step 120 for one of another kind, which no optimizer knows."""
    data, model = split(*blob_images(900, 6, 12), held=240), ConvNet(width=6, depth=3, classes=6, norm=False)
    optimizer = sgd(0.02, momentum=0.9)(model)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        if step == 120:
            model.features[0] = nn.Conv2d(1, 6, 5, stride=2, padding=2)
            nn.init.zeros_(model.features[0].weight)
            if not broken:
                optimizer.add_param_group({"params": list(model.features[0].parameters())})
        return F.cross_entropy(model(x), y)

    return loop.fit(data, model, optimizer, objective=objective)


class _SearchInNumpy(nn.Module):
    """An encoder whose features pass through NumPy on the way to the head."""

    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.broken = broken
        self.encoder, self.head = mlp(64, 32, 4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = self.encoder(x)
        if self.broken:
            features = torch.from_numpy(features.detach().numpy().clip(-5, 5))
        return self.head(features.clamp(-5, 5))


class _BodyAndHead(nn.Module):
    """A convolutional body and a linear head with names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(6 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class _Transferred(nn.Module):
    """An encoder that somebody froze by a decorator, and a head."""

    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.broken = broken
        self.encoder, self.head = ConvNet(width=16, classes=3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.broken):
            features = self.encoder(x)
        return self.head(torch.tanh(features))


THIRD.add(
    fault("features-through-numpy", "table", "gradient-cut gradient-missing", "keep-gradient",
        "Features are clipped with NumPy between the encoder and the head, which needs a detach.", lambda broken,
        loop: loop.fit(digits(flat=True), _SearchInNumpy(broken), by(torch.optim.Adam, 3e-3), report=None),
        layers="encoder encoder.0 encoder.2 encoder.0.weight encoder.2.weight encoder.0.bias encoder.2.bias", steps=250,
        seed=28),
    fault("step-indented-under-the-logging", "table", "no-step not-learning", "call-step order-of-calls",
        "`optimizer.step()` slips into the block that prints every hundred batches.", lambda broken, loop: loop.fit(
        digits(flat=True), mlp(64, 48, 10), adam(3e-3), goes=lambda step: step % 100 == 99 or not broken,
        report="backward"), steps=250, seed=42),
    fault("no-grad-left-in-the-forward", "convolutional", "gradient-cut gradient-missing frozen-layer", "keep-gradient",
        "The encoder's `with torch.no_grad():` of the feature extraction is still there when all is to be trained.",
        lambda broken, loop: loop.fit(split(*blob_images(1280)), _Transferred(broken), by(torch.optim.Adam, 2e-3)),
        layers="encoder encoder.features encoder.features.0 encoder.features.0.weight encoder.head encoder.head.weight "
        "encoder.features.1 encoder.features.3 encoder.features.4 encoder.features.7 encoder.features.8", steps=200,
        seed=47),
)  # fmt: skip


@THIRD.fault("table", "vanishing-gradient gradient-too-small output-constant not-learning",
    "initialise add-skip add-normalizer fewer-layers", steps=200, seed=93)  # fmt: skip
def thirty_plain_layers(broken: bool, loop: Loop) -> float:
    """Thirty linear layers with ReLU and torch's own initialisation, which shrinks at each layer."""
    data = digits(flat=True)
    depth = 30 if broken else 3
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(32, 32), nn.ReLU())]
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), *hidden, nn.Linear(32, 10))
    return loop.fit(data, model, adam(1e-3), report=None)


@THIRD.fault("sequence", "vanishing-gradient not-learning gradient-too-small saturated-units",
    "gated-recurrence initialise add-skip change-architecture", steps=250, seed=94)  # fmt: skip
def plain_recurrence_over_eighty_steps(broken: bool, loop: Loop) -> float:
    """What decides stands in the first three of eighty steps, and an `nn.RNN` forgets it."""
    data = split(*remembered_series(1024, 80))
    kind = nn.RNN if broken else nn.GRU
    model = SequenceClassifier(kind(4, 24, batch_first=True), 4)
    if not broken:
        with torch.no_grad():
            model.recurrent.bias_hh_l0[24:48] = 3.0
    return loop.fit(data, model, adam(4e-3))


@THIRD.fault("convolutional", "gradient-missing no-step not-learning", "order-of-calls", steps=320, seed=24)
def cleared_at_the_start_of_the_stepping_branch(broken: bool, loop: Loop) -> float:
    """Gradients of four batches are gathered, and `zero_grad` stands before `step` where it should stand after."""
    data, model = digits(), ConvNet(classes=10)
    optimizer = adam(5e-3)(model)
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data, 16)):
            loss = F.cross_entropy(model(x), y) / 4
            loss.backward()
            run.observe(loss=4 * loss)
            if (step + 1) % 4 == 0:
                if broken:
                    optimizer.zero_grad()
                optimizer.step()
                optimizer.zero_grad()
    return accuracy(model, data)


@THIRD.fault("table", "gradient-cut gradient-missing no-step not-learning", "keep-gradient", steps=250, seed=27)
def loss_made_a_new_tensor(broken: bool, loop: Loop) -> float:
    """An error about a missing graph is answered with `torch.tensor(loss.item(), requires_grad=True)`."""
    data, model = split(*table(1280)), mlp(12, 48, 3)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        if broken:
            loss = torch.tensor(loss.item(), requires_grad=True)
        return loss

    return loop.fit(data, model, adam(3e-3), objective=objective, report="step")


@THIRD.fault("convolutional", "steps-skipped precision not-finite no-step not-learning",
    "check-scaler raise-precision rescale-loss", steps=150, seed=41)  # fmt: skip
def scaler_created_in_every_step(broken: bool, loop: Loop) -> float:
    """`GradScaler()` stands inside the function of one step, so that it always begins at a scale that overflows."""
    data, model = digits(), ConvNet(classes=10)
    optimizer, scaler = sgd(2e-3, momentum=0.9)(model), torch.amp.GradScaler("cpu", init_scale=2.0**20)
    with loop.watch(model, optimizer) as run:
        for x, y in (batch for batch, _ in zip(batches(data), range(loop.steps))):
            if broken:
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(x), y, reduction="sum")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            run.observe(loss=loss / len(x))
    return accuracy(model, data)


@THIRD.fault("adversarial", "not-in-optimizer no-step", "give-to-optimizer add-to-optimizer",
    layers="generator generator.0 generator.2 generator.4 generator.0.weight generator.2.weight generator.4.weight",
    steps=300, seed=43)  # fmt: skip
def both_players_under_the_same_parameters(broken: bool, loop: Loop) -> float:
    """The generator's optimizer is a copy of the line above it and holds the discriminator's parameters."""
    players = nn.ModuleDict({"generator": mlp(4, 32, 32, 2), "discriminator": mlp(2, 32, 32, 1)})
    generator, discriminator = players["generator"], players["discriminator"]
    critic = torch.optim.Adam(discriminator.parameters(), 2e-3, betas=(0.5, 0.99))
    artist = torch.optim.Adam((discriminator if broken else generator).parameters(), 2e-3, betas=(0.5, 0.99))
    with loop.watch(players, artist):
        for _ in range(loop.steps):
            real = torch.tensor([2.0, -1.0]) + 0.3 * torch.randn(64, 2)
            made = generator(torch.randn(64, 4))
            critic.zero_grad()
            scores = F.softplus(-discriminator(real)) + F.softplus(discriminator(made.detach()))
            scores.mean().backward()
            critic.step()
            artist.zero_grad()
            generator.zero_grad()
            F.softplus(-discriminator(generator(torch.randn(64, 4)))).mean().backward()
            artist.step()
    with torch.no_grad():
        distance = (generator(torch.randn(512, 4)).mean(0) - torch.tensor([2.0, -1.0])).norm()
    return or_minus_infinity(1 - distance)


@THIRD.fault("convolutional", "not-in-optimizer no-step gradient-accumulates frozen-layer",
    "call-step give-to-optimizer add-to-optimizer",
    layers="body body.0 body.2 body.0.weight body.2.weight body.0.bias body.2.bias", steps=200, seed=44)  # fmt: skip
def optimizer_of_the_body_never_steps(broken: bool, loop: Loop) -> float:
    """Body and head have an optimizer each, and only the head's is stepped."""
    data, model = digits(), _BodyAndHead()
    of_body, of_head = adam(3e-3)(model.body), adam(3e-4)(model.head)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        of_body.zero_grad()
        return F.cross_entropy(model(x), y)

    return loop.fit(
        data, model, of_head, objective=objective, then=lambda step: not broken and of_body.step(), report="step"
    )


@THIRD.fault("convolutional", "frozen-layer not-in-optimizer", "unfreeze give-to-optimizer add-to-optimizer",
    layers="body body.0 body.2 body.0.weight body.2.weight body.0.bias body.2.bias", steps=200, seed=45)  # fmt: skip
def flag_set_on_the_module(broken: bool, loop: Loop) -> float:
    """The body is thawed after a short warm-up by `module.requires_grad = True`, which sets an attribute only."""
    data, model = digits(), _BodyAndHead()
    model.body.requires_grad_(False)

    def thaw(step: int) -> None:
        if step == 10 and broken:
            model.body.requires_grad = True
        elif step == 10:
            model.body.requires_grad_(True)

    return loop.fit(data, model, by(torch.optim.SGD, lr=0.01, momentum=0.8), then=thaw, report=None)


@THIRD.fault("text", "frozen-layer not-in-optimizer", "unfreeze", layers="words words.weight", steps=500, seed=46)
def embedding_from_pretrained_stays_frozen(broken: bool, loop: Loop) -> float:
    """`nn.Embedding.from_pretrained` freezes unless told otherwise, and these vectors were drawn tiny, for training."""
    data, model = split(*sentences(1280)), SentenceEncoder(depth=1)
    model.words = nn.Embedding.from_pretrained(1e-3 * torch.randn(50, 32), freeze=broken)
    model.norm = nn.Identity()
    return loop.fit(data, model, adam(1e-3), report=None)


@THIRD.fault("transformer", "no-step not-learning steps-skipped gradient-missing",
    "call-step check-data order-of-calls", onset=80, steps=350, seed=48)  # fmt: skip
def guard_against_spikes_skips_everything(broken: bool, loop: Loop) -> float:
    """From step 80 on, batches whose loss lies above the best one so far are skipped as outliers, that is, all."""
    data, model = split(*text(1024)), GPT()
    optimizer, best = adam(3e-3)(model), float("inf")
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data, 16)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            run.observe(loss=loss)
            if step < 80 or loss.item() < best * (1 if broken else 2):
                optimizer.step()
            best = min(best, loss.item())
    return accuracy(model, data)
