"""Runs in which steps of the optimizer never happen, or miss a part of the model."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue.parts import ConvNet, mlp
from .case import RunFault, Watch, run_fault
from .parts import accuracy, adam, batches, digits, fit, sgd
from .second_parts import LastState, blobs, curved_table, fit_silently, frequencies, spirals

FAULTS: list[RunFault] = []


@run_fault(
    FAULTS,
    "table",
    causes="steps-skipped not-finite no-step precision",
    remedies="check-scaler guard-domain raise-precision",
)
def scaler_meets_a_root_of_zero(broken: bool, watch: Watch, steps: int = 250) -> float:
    """A penalty that takes the root of a bias of zeros: its gradient is infinite, and the scaler skips each step."""
    torch.manual_seed(731)
    data, model = curved_table(), mlp(12, 64, 64, 3)
    optimizer, scaler = adam(model, 3e-3), torch.amp.GradScaler("cpu")
    model.train()
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            root = (model[0].bias.square() + (0.0 if broken else 1e-6)).sqrt().sum()
            loss = F.cross_entropy(model(x), y) + 1e-4 * root
            run.observe(loss=loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="clipping-always-active gradient-too-small rate-too-low not-learning",
    remedies="loosen-clipping check-scaler rescale-loss",
)
def scaled_gradients_clipped(broken: bool, watch: Watch, steps: int = 250) -> float:
    """clip_grad_norm_ before scaler.unscale_: gradients 65536 times too large are clipped, then divided."""
    torch.manual_seed(732)
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10, norm=False)
    optimizer, scaler = sgd(model, 0.03, momentum=0.9), torch.amp.GradScaler("cpu")
    model.train()
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
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


@run_fault(
    FAULTS,
    "table",
    causes="no-step not-learning gradient-accumulates",
    remedies="call-step order-of-calls",
)
def more_batches_to_accumulate_than_there_are(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A step each 64 batches, counted anew in each epoch of 37 batches: the step is never reached."""
    torch.manual_seed(733)
    data, model = curved_table(), mlp(12, 64, 64, 3)
    optimizer, every = adam(model, 1e-2), 64 if broken else 2
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            place = step % 37
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            (loss / every).backward()
            if (place + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "sequence",
    causes="no-step not-learning",
    remedies="call-step order-of-calls",
    onset=60,
)
def step_inside_the_branch_of_the_warm_up(broken: bool, watch: Watch, steps: int = 300) -> float:
    """optimizer.step() indented into the branch that lasts for the 60 steps of the warm-up."""
    torch.manual_seed(734)
    data, model = frequencies(), LastState(nn.GRU(3, 24, batch_first=True), 24, 3)
    optimizer = sgd(model, 0.1, momentum=0.9)
    model.train()
    with watch(model, optimizer):
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if step < 60:
                optimizer.param_groups[0]["lr"] = 0.1 * (step + 1) / 60
            if step < 60 or not broken:
                optimizer.step()
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="not-in-optimizer no-step not-learning output-constant",
    layers="head head.weight head.bias",
    remedies="give-to-optimizer initialise",
)
def head_exchanged_behind_the_optimizer(broken: bool, watch: Watch, steps: int = 250) -> float:
    """A new head, zero at the start as for fine-tuning, put into the model after the optimizer was built."""
    torch.manual_seed(735)
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=1000, norm=False)
    early = adam(model, 3e-3)
    model.head = nn.Linear(8, 10)
    nn.init.zeros_(model.head.weight)
    fit(watch, model, early if broken else adam(model, 3e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="not-in-optimizer no-step not-learning gradient-accumulates",
    remedies="give-to-optimizer",
)
def optimizer_of_a_copy(broken: bool, watch: Watch, steps: int = 250) -> float:
    """The model is built a second time after the optimizer has taken the parameters of the first one."""
    torch.manual_seed(736)
    data = curved_table()
    first, model = mlp(12, 64, 64, 3), mlp(12, 64, 64, 3)
    optimizer = adam(first if broken else model, 3e-3)
    model.train()
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            run.observe(loss=loss)
            optimizer.step()
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="frozen-layer not-learning not-in-optimizer",
    layers="body body.0 body.2 body.0.weight body.2.weight classifier classifier.weight classifier.bias",
    remedies="unfreeze give-to-optimizer",
)
def pattern_of_names_leaves_only_a_norm(broken: bool, watch: Watch, steps: int = 300) -> float:
    """All but "head" is frozen, in a model whose head is called classifier: only the norm before it can learn."""
    torch.manual_seed(737)
    data = curved_table()

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
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="rate-too-low no-step rate-zero not-learning",
    layers="0 2 4 0.weight 2.weight 4.weight",
    remedies="raise-learning-rate fix-schedule",
)
def rates_fall_a_thousandfold_per_layer(broken: bool, watch: Watch, steps: int = 500) -> float:
    """Rates by layer that fall with a factor of 0.001 per layer, where 0.8 was meant."""
    torch.manual_seed(738)
    data, model = spirals(), mlp(2, 48, 48, 16, 2, activation=nn.Tanh)
    factor = 1e-3 if broken else 0.8
    groups = [
        {"params": model[index].parameters(), "lr": 0.01 * factor**depth} for depth, index in enumerate((6, 4, 2, 0))
    ]
    fit_silently(watch, model, torch.optim.Adam(groups), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="not-in-optimizer not-learning loss-spike no-step output-constant",
    layers="features.0 features.0.weight",
    remedies="give-to-optimizer keep-weights",
    onset=120,
)
def first_layer_widened_in_the_middle(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The first convolution is exchanged at step 120 for one of another kind, which no optimizer knows."""
    torch.manual_seed(739)
    data, model = blobs(), ConvNet(width=6, depth=3, classes=6, norm=False)
    optimizer = sgd(model, 0.02, momentum=0.9)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            if step == 120:
                model.features[0] = nn.Conv2d(1, 6, 5, stride=2, padding=2)
                nn.init.zeros_(model.features[0].weight)
                if not broken:
                    optimizer.add_param_group({"params": list(model.features[0].parameters())})
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return accuracy(model, data)
