"""Healthy runs with loops of their own: fine-tuning, parts that stand still, steps of other kinds."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import ratings, regression_table, sentences, table, waves
from ...networks import ConvNet, Recommender, ResNet, SentenceEncoder, SequenceClassifier, mlp
from ..case import FIRST, SECOND, THIRD, sound
from ..data import Data, batches, curves, digits, split
from ..loops import Loop, accuracy, adam, by, explained, log_validation, pretrain, sgd
from .parts import _take

FIRST.add(
    sound("dropout-and-frequent-validation", "MLP",
        "Dropout of a half, and a validation in eval mode every ten steps; its loss is below that of training.",
        lambda loop: loop.fit(digits(flat=True), nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, 10)), adam(3e-3), validate=10), steps=300, seed=9514),
    sound("group-norm-with-batches-of-two", "CNN", "Two samples per step, with a normalizer that does not mind.",
        lambda loop: loop.fit(digits(), nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(256,
        10)), sgd(0.01), batch=2), steps=400, seed=9515),
)  # fmt: skip


@FIRST.sound("LSTM", steps=80, seed=9506)
def gradients_of_four_batches(loop: Loop) -> float:
    """Gradients are accumulated over four batches, each loss divided by four."""
    data = split(*waves(512, steps=20), held=128)
    model = SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)
    optimizer, stream = adam(1e-2)(model), batches(data, 16)
    with loop.watch(model, optimizer) as run:
        for _ in range(loop.steps):
            total = 0.0
            for _ in range(4):
                x, y = next(stream)
                loss = F.cross_entropy(model(x), y) / 4
                loss.backward()
                total = total + loss.detach()
            run.observe(loss=total)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return accuracy(model, data)


@FIRST.sound("CNN", steps=150, seed=9507)
def head_on_a_frozen_backbone(loop: Loop) -> float:
    """Fine-tuning: a trained backbone in eval mode and without gradients, a fresh head for other classes."""
    data, model = digits(), ConvNet(classes=10)
    optimizer = adam(1e-2)(model)
    pretrain(data, model, optimizer, 100)
    data = data._replace(y=(data.y >= 5).long(), held_y=(data.held_y >= 5).long())
    model.head = nn.Linear(16, 2)
    model.requires_grad_(False).eval()
    model.head.requires_grad_(True).train()
    return loop.fit(data, model, adam(1e-2), as_it_is=True)


@FIRST.sound("ResNet", steps=150, seed=9508)
def resumed_from_a_checkpoint(loop: Loop) -> float:
    """The watched part begins with a trained network: the loss is small at once and hardly falls."""
    data, model = digits(), ResNet(blocks=1, classes=10)
    optimizer = sgd(0.05, momentum=0.9)(model)
    pretrain(data, model, optimizer, 150)
    again = ResNet(blocks=1, classes=10)
    again.load_state_dict(model.state_dict())
    resumed = sgd(0.05, momentum=0.9)(again)
    resumed.load_state_dict(optimizer.state_dict())
    return loop.fit(data, again, resumed, validate=50)


@FIRST.sound("regression", steps=30, seed=9509)
def lbfgs_with_a_closure(loop: Loop) -> float:
    """Each step of LBFGS calls the closure several times."""
    data = split(*regression_table(768), held=256)
    model = mlp(8, 16, 1, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
    with loop.watch(model, optimizer) as run:

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(data.x), data.y)
            loss.backward()
            return loss

        for _ in range(loop.steps):
            run.observe(loss=optimizer.step(closure))
    return explained(model, data)


@FIRST.sound("MLP", steps=200, seed=9510)
def two_gradients_for_each_step(loop: Loop) -> float:
    """Sharpness-aware minimisation: the weights climb, a second gradient is taken there, they return, then the step."""
    data, model = digits(flat=True), mlp(64, 48, 10)
    optimizer = sgd(0.05, momentum=0.9)(model)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            weights = [parameter.detach().clone() for parameter in model.parameters()]
            length = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(parameter.grad, alpha=0.05 / (length.item() + 1e-12))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for parameter, weight in zip(model.parameters(), weights):
                    parameter.copy_(weight)
            optimizer.step()
    return accuracy(model, data)


@FIRST.sound("MLP", steps=250, seed=9511)
def average_beside_the_model(loop: Loop) -> float:
    """A moving average of the weights is kept beside the model and validated."""
    data, model = digits(flat=True), mlp(64, 48, 10)
    average, optimizer = copy.deepcopy(model), sgd(0.05, momentum=0.9)(model)
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters()):
                    mean.lerp_(weight, 0.02)
            if step % 50 == 49:
                log_validation(run, average, data)
    return accuracy(average, data)


@FIRST.sound("CNN", steps=150, seed=9512)
def scaler_that_finds_its_scale(loop: Loop) -> float:
    """The gradient scaler begins far too high, skips its first steps and then trains well."""
    data, model = digits(), ConvNet(classes=10, depth=3)
    optimizer, scaler = adam(5e-3)(model), torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            scaler.scale(loss * 64).backward()
            scaler.step(optimizer)
            scaler.update()
    return accuracy(model, data)


@FIRST.sound("transformer", steps=150, seed=9513)
def autocast_to_bfloat16(loop: Loop) -> float:
    """Mixed precision on the CPU: the forward in bfloat16, the weights in float32."""
    data = split(*sentences(768), held=192)
    model = SentenceEncoder(depth=1, dropout=0.1)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), y)
        return loss

    return loop.fit(data, model, by(torch.optim.AdamW, lr=2e-3), objective=objective)


def _pretrained(data: Data, width: int = 8) -> ConvNet:
    """Return a network trained on the first five digits."""
    model = ConvNet(width=width, depth=3, classes=5)
    few = data._replace(x=data.x[data.y < 5], y=data.y[data.y < 5])
    optimizer = adam(3e-3)(model)
    for _, (x, y) in zip(range(150), batches(few)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


@SECOND.sound("convolutional", steps=300, seed=807)
def new_head_on_a_frozen_body(loop: Loop) -> float:
    """A pretrained body without gradients and in eval mode; only a new head learns."""
    data = digits(1500)
    model = _pretrained(data, 12)
    model.features.requires_grad_(False)
    model.head = nn.Linear(12, 10)
    optimizer = torch.optim.Adam(model.head.parameters(), 2e-2)
    model.train()
    model.features.eval()
    return loop.fit(data, model, optimizer, as_it_is=True)


@SECOND.sound("convolutional", steps=300, seed=808)
def layers_thawed_one_after_another(loop: Loop) -> float:
    """Gradual unfreezing: the optimizer holds all parameters, of which more and more get a gradient."""
    data = digits(1500)
    model = _pretrained(data)
    model.head = nn.Linear(8, 10)
    model.features.requires_grad_(False)

    def then(step: int) -> None:
        if step == 80:
            model.features[-3:].requires_grad_(True)
        if step == 140:
            model.features.requires_grad_(True)

    return loop.fit(data, model, by(torch.optim.Adam, 5e-3), then=then, validate=60)


@SECOND.sound("table", steps=300, seed=809)
def low_rank_update_of_a_frozen_layer(loop: Loop) -> float:
    """Frozen weights with a trained product of two thin matrices beside them, one of which starts at zero."""
    data = split(*table(1600), held=400)

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down, self.up = nn.Linear(base.in_features, 4, bias=False), nn.Linear(4, base.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.up(self.down(x))

    model = mlp(12, 64, 64, 3)
    optimizer = adam(3e-3)(model)
    pretrain(data._replace(y=2 - data.y), model, optimizer, 150)
    adapted = nn.Sequential(*(Adapted(layer) if isinstance(layer, nn.Linear) else layer for layer in model))
    return loop.fit(data, adapted, adam(1e-2), report=None)


THIRD.add(
    sound("random-positions-kept-fixed", "text",
        "The embedding of places is fixed on purpose, as in the first transformer, and half of the words never occur.",
        lambda loop: loop.fit(split(*sentences(1280)), SentenceEncoder(vocabulary=100), adam(1e-3), report=None,
        plant=lambda net: net.positions.weight.requires_grad_(False)), steps=450, seed=150),
    sound("clipped-in-one-step-of-twenty", "sequence", "Clipping at a norm that ordinary gradients do not reach.",
        lambda loop: loop.fit(split(*waves(1024)), SequenceClassifier(nn.LSTM(3, 32, batch_first=True), 3), adam(5e-3),
        clip=1.5, report=None), steps=250, seed=161),
)  # fmt: skip


@THIRD.sound("convolutional", steps=150, seed=149)
def pretrained_body_with_its_norms_in_eval_mode(loop: Loop) -> float:
    """A body trained before is frozen, BatchNorm and all, and a new head learns on it."""
    data, model = digits(), ConvNet(classes=10)
    before = adam(3e-3)(model)
    pretrain(data, model, before, 120)
    model.requires_grad_(False).zero_grad()
    model.head = nn.Linear(16, 10)
    optimizer = adam(1e-2)(model.head)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        model.train()
        model.features.eval()
        return F.cross_entropy(model(x), y)

    return loop.fit(data, model, optimizer, objective=objective, report="step")


@THIRD.sound("convolutional", steps=250, seed=151)
def residual_branches_that_start_at_zero(loop: Loop) -> float:
    """The last BatchNorm of each block has a scale of zero at first: its convolutions get no gradient in step one."""
    data, model = digits(), ResNet(classes=10)
    for block in model.blocks:
        nn.init.zeros_(block.bn2.weight)
    return loop.fit(data, model, sgd(0.05, momentum=0.9, decay=5e-4), validate=50)


@THIRD.sound("table", steps=350, seed=152)
def two_thirds_of_the_weights_pruned(loop: Loop) -> float:
    """From step 150 on the smallest weights are set back to zero after each step."""
    data, model = digits(flat=True), mlp(64, 64, 64, 10)
    masks: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def prune(step: int) -> None:
        for weight in (parameter for parameter in model.parameters() if parameter.ndim == 2):
            if step == 150:
                masks[weight] = weight.abs() > weight.abs().flatten().kthvalue(2 * weight.numel() // 3).values
            if step >= 150:
                weight.mul_(masks[weight])

    return loop.fit(data, model, adam(2e-3), then=prune, report=None)


@THIRD.sound("convolutional", steps=480, seed=157)
def six_small_batches_for_each_step(loop: Loop) -> float:
    """Gradients of six batches of eight are gathered; between steps they grow, as they should."""
    data, model = digits(), ConvNet(classes=10)
    optimizer = adam(5e-3)(model)
    with loop.watch(model, optimizer):
        for step, (x, y) in _take(data, 8, loop.steps):
            (F.cross_entropy(model(x), y) / 6).backward()
            if step % 6 == 5:
                optimizer.step()
                optimizer.zero_grad()
    return accuracy(model, data)


@THIRD.sound("regression", steps=40, seed=158)
def second_order_on_the_whole_table(loop: Loop) -> float:
    """LBFGS with a line search, which calls the model several times for a step."""
    data, model = curves(512), mlp(8, 24, 1, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    with loop.watch(model, optimizer) as run:
        for _ in range(loop.steps):

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(model(data.x), data.y) + 1e-3 * sum(p.square().sum() for p in model.parameters())
                loss.backward()
                return loss

            run.observe(loss=optimizer.step(closure))
    return explained(model, data)


@THIRD.sound("recommender", steps=400, seed=159)
def embeddings_by_one_optimizer_and_tower_by_another(loop: Loop) -> float:
    """Embeddings learn by Adagrad, the tower by Adam; most rows of a table get no gradient in a step."""
    data, model = split(*ratings(3000)), Recommender()
    tables = torch.optim.Adagrad([*model.users.parameters(), *model.items.parameters()], 0.1)
    tower = adam(3e-3)(model.tower)

    def objective(step: int, pairs: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(pairs), y)
        tower.zero_grad()
        return loss

    return loop.fit(data, model, tables, schedule=tower, objective=objective, report="step")


@THIRD.sound("convolutional", steps=180, seed=160)
def attacked_images_as_training_data(loop: Loop) -> float:
    """Each step attacks its batch first, by a gradient with respect to the images, and trains on the result."""
    data, model = digits(), ConvNet(classes=10)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        attacked = x.clone().requires_grad_()
        slope = torch.autograd.grad(F.cross_entropy(model(attacked), y), attacked)[0]
        return F.cross_entropy(model(x + 0.25 * slope.sign()), y)

    return loop.fit(data, model, adam(3e-3), objective=objective, report="step")
