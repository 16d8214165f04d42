"""Runs that diverge because steps are too large or gradients explode."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from ...data import blob_images, remembered_series, sentences, table, waves
from ...networks import ConvNet, SentenceEncoder, SequenceClassifier, ViT, mlp
from ..case import FIRST, OPEN, SECOND, THIRD, fault
from ..data import batches, curves, digits, friedman, markov_chain, split
from ..loops import Loop, accuracy, adam, by, by_step, log_validation, or_minus_infinity, sgd
from ..networks import plain_mlp
from .parts import PostNorm


class Recurrent(nn.Module):
    """A plain recurrent network with ReLU whose matrix may expand."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.rnn, self.head = nn.RNN(8, 32, nonlinearity="relu", batch_first=True), nn.Linear(32, 10)
        with torch.no_grad():
            self.rnn.weight_hh_l0.copy_(scale * torch.eye(32) + 0.05 * torch.randn(32, 32))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x.reshape(len(x), -1, 8).repeat(1, 3, 1))[0][:, -1])


OPEN.add(
    fault("adamw-at-0-3", "mlp", "rate-too-high", "lower-learning-rate",
        "A rate for SGD given to AdamW: the loss stays at a plateau.", lambda broken, loop: loop.fit(model=plain_mlp(64,
        64, 64, 64, 10), data=digits(flat=True), optimizer=by(torch.optim.AdamW, lr=0.3 if broken else 1e-3)),
        steps=200),
    fault("recurrent-net-explodes-from-the-start", "recurrent", "exploding-gradient exploding-values rate-too-high",
        "clip-gradients initialise", "A recurrent matrix of norm 1.8 over 24 steps.", lambda broken, loop: loop.fit(
        model=Recurrent(1.8 if broken else 0.9), data=digits(flat=True), optimizer=adam(1e-3)), steps=100),
    fault("decay-of-100", "mlp", "decay-too-strong", "lower-weight-decay",
        "A weight decay mistaken for another figure.", lambda broken, loop: loop.fit(model=plain_mlp(64, 64, 10),
        data=digits(flat=True), optimizer=by(torch.optim.AdamW, lr=1e-3, weight_decay=100.0 if broken else 1e-2)),
        steps=200),
    fault("adamw-at-a-rate-of-one", "conv", "rate-too-high", "lower-learning-rate",
        "A rate for another optimizer; the weight decay is the one that AdamW has by itself.", lambda broken,
        loop: loop.fit(digits(), nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3,
        padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10)), by(torch.optim.AdamW,
        lr=1.0 if broken else 3e-3)), steps=150),
    fault("rate-times-a-thousand-from-step-250-on", "mlp", "rate-too-high", "fix-schedule lower-learning-rate",
        "A second phase of a schedule that has its rate in other units.", lambda broken, loop: loop.fit(
        model=plain_mlp(64, 64, 10), data=digits(flat=True), optimizer=adam(1e-3),
        schedule=by_step(lambda step: 1.0 if step < 250 else 1000.0 if broken else 0.5)), onset=250, steps=400),
)  # fmt: skip


@OPEN.fault("transformer", "rate-too-high", "lower-learning-rate", steps=200)
def transformer_without_warm_up(broken: bool, loop: Loop) -> float:
    """A transformer that is normalized behind its branches, at a large rate from the first step."""
    data = digits(flat=True)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.Sequential(
        nn.Unflatten(1, (8, 8)), nn.Linear(8, 32), nn.TransformerEncoder(layer, 4), nn.Flatten(), nn.Linear(256, 10)
    )
    return loop.fit(data, model, adam(0.05 if broken else 1e-3))


FIRST.add(
    fault("sgd-with-a-rate-of-four", "MLP",
        "rate-too-high divergence exploding-gradient exploding-values not-finite dead-units",
        "lower-learning-rate clip-gradients",
        "A rate for Adam's relatives that someone multiplied instead of dividing.", lambda broken, loop: loop.fit(
        digits(flat=True), mlp(64, 64, 64, 10), sgd(4.0 if broken else 0.05, momentum=0.9)), steps=150, seed=9201),
    fault("milestone-with-gamma-ten", "CNN",
        "rate-too-high divergence exploding-gradient exploding-values not-finite dead-units loss-spike",
        "fix-schedule lower-learning-rate",
        "`MultiStepLR(gamma=10)` where 0.1 was meant: at the milestone the rate grows instead of falling.",
        lambda broken, loop: loop.fit(digits(), ConvNet(classes=10, norm=False), sgd(0.05, momentum=0.9),
        schedule=lambda o: lr_scheduler.MultiStepLR(o, [153, 173], gamma=10 if broken else 0.1)), onset=153, steps=260,
        seed=9202),
    fault("adam-at-three-tenths", "LSTM",
        "rate-too-high divergence exploding-gradient exploding-values not-finite saturated-units",
        "lower-learning-rate", "A rate of SGD given to Adam.", lambda broken, loop: loop.fit(split(*waves(512,
        steps=24), held=128), SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3), adam(0.3 if broken else 5e-3)),
        steps=150, seed=9203),
    fault("full-rate-from-the-first-step", "ViT",
        "rate-too-high divergence exploding-gradient exploding-values not-finite saturated-units attention-collapse",
        "lower-learning-rate fix-schedule",
        "A transformer at a brave rate of Adam that it bears after a warm-up, but not from the first step on.",
        lambda broken, loop: loop.fit(split(*blob_images(768), held=192), ViT(depth=2), adam(0.02), batch=16,
        schedule=by_step(lambda step: 1.0 if broken else min(1.0, step / 60))), steps=120, seed=9204),
    fault("warm-up-without-an-end", "ViT",
        "rate-too-high divergence exploding-gradient exploding-values not-finite saturated-units attention-collapse",
        "fix-schedule lower-learning-rate",
        "`min(1, ...)` is missing in the warm-up, so that the rate grows with every step.", lambda broken,
        loop: loop.fit(split(*blob_images(768), held=192), ViT(depth=2), by(torch.optim.AdamW, lr=3e-3), batch=16,
        schedule=by_step(lambda step: step / 10 if broken else min(1.0, step / 10))), onset=10, steps=180, seed=9205),
    fault("momentum-with-a-nine-too-many", "MLP",
        "rate-too-high divergence exploding-gradient exploding-values not-finite dead-units",
        "lower-momentum lower-learning-rate",
        "A momentum of 0.999 instead of 0.9: a hundred times the effective rate, and swings that grow.", lambda broken,
        loop: loop.fit(digits(flat=True), mlp(64, 64, 64, 10), sgd(0.08, momentum=0.999 if broken else 0.9)), steps=250,
        seed=9207),
    fault("weight-decay-of-one-hundred", "CNN", "decay-too-strong layer-decayed output-constant dead-units",
        "lower-weight-decay lower-penalty", "A weight decay of 100 takes a tenth of every weight at every step.",
        lambda broken, loop: loop.fit(digits(), ConvNet(classes=10, norm=False), by(torch.optim.AdamW, lr=1e-3,
        weight_decay=100.0 if broken else 0.01)), steps=150, seed=9209),
    fault("sparse-penalty-kills-the-first-layer", "MLP", "decay-too-strong layer-decayed dead-units output-constant",
        "lower-penalty lower-weight-decay",
        "An L1 penalty meant for a mean is taken of a sum, and pulls the whole first layer to zero.", lambda broken,
        loop: loop.fit(digits(flat=True), (model := mlp(64, 48, 48, 10)), sgd(0.02, momentum=0.9), loss=lambda output,
        y: F.cross_entropy(output, y) + (0.5 if broken else 0.5 / (64 * 48)) * model[0].weight.abs().sum()), layers="0",
        steps=300, seed=9304),
)  # fmt: skip


@FIRST.fault("RNN", "rate-too-high divergence exploding-gradient exploding-values not-finite saturated-units",
    "clip-gradients lower-learning-rate gated-recurrence initialise", steps=200, seed=9206)  # fmt: skip
def recurrent_network_without_clipping(broken: bool, loop: Loop) -> float:
    """A plain recurrent network of rectifiers over 40 steps, with gradients as they come."""
    data = split(*remembered_series(640, steps=40), held=128)
    model = SequenceClassifier(nn.RNN(4, 32, nonlinearity="relu", batch_first=True), 4)
    with torch.no_grad():
        model.recurrent.weight_hh_l0.copy_(1.02 * torch.eye(32))
    return loop.fit(data, model, sgd(0.02, momentum=0.9), clip=None if broken else 0.5)


@FIRST.fault("CNN", "rate-too-high divergence exploding-gradient exploding-values not-finite dead-units",
    "rescale-loss lower-learning-rate clip-gradients", steps=120, seed=9208)  # fmt: skip
def accumulated_without_dividing(broken: bool, loop: Loop) -> float:
    """Four micro-batches are summed into one gradient, and the loss is not divided by four."""
    data, model = digits(), ConvNet(classes=10, norm=False)
    optimizer = sgd(0.1, momentum=0.9)(model)
    stream = batches(data, 8)
    with loop.watch(model, optimizer) as run:
        for _ in range(loop.steps):
            optimizer.zero_grad()
            for _ in range(4):
                x, y = next(stream)
                loss = F.cross_entropy(model(x), y)
                loss = loss if broken else loss / 4
                loss.backward()
            run.observe(loss=loss)
            optimizer.step()
    return accuracy(model, data)


SECOND.add(
    fault("rate-of-plain-sgd-with-momentum", "regression",
        "rate-too-high divergence exploding-gradient exploding-values",
        "lower-learning-rate clip-gradients lower-momentum",
        "The rate that was right for plain SGD kept when a momentum of 0.95 was added.", lambda broken, loop: loop.fit(
        friedman(), mlp(10, 64, 64, 1), sgd(0.2 if broken else 0.01, momentum=0.95 if broken else 0.9),
        loss=F.mse_loss), steps=300, seed=741),
    fault("adam-with-the-rate-of-sgd", "convolutional",
        "rate-too-high divergence dead-units not-learning exploding-values loss-spike",
        "lower-learning-rate clip-gradients", "lr=0.2 from an SGD recipe handed to Adam.", lambda broken,
        loop: loop.fit(digits(1400), ConvNet(width=8, depth=4, classes=10, norm=False), adam(0.2 if broken else 3e-3),
        report=None), steps=300, seed=742),
    fault("gamma-of-ten", "regression",
        "rate-too-high divergence loss-spike exploding-gradient exploding-values not-finite not-learning",
        "lower-learning-rate fix-schedule clip-gradients", "StepLR with gamma=10 where 0.1 was meant.", lambda broken,
        loop: loop.fit(friedman(), mlp(10, 64, 64, 1), sgd(0.03, momentum=0.9), loss=F.mse_loss,
        schedule=lambda o: lr_scheduler.StepLR(o, 150, gamma=10 if broken else 0.1), report=None), onset=150, steps=350,
        seed=744),
    fault("decay-of-a-half", "table", "decay-too-strong layer-decayed output-constant not-learning vanishing-gradient",
        "lower-weight-decay lower-penalty", "weight_decay=0.5, taken for a factor by which something decays.",
        lambda broken, loop: loop.fit(split(*table(1600), held=400), mlp(12, 64, 64, 3), sgd(0.05, momentum=0.9,
        decay=0.5 if broken else 5e-4), report=None), steps=300, seed=756),
)  # fmt: skip


@SECOND.fault("transformer", "rate-too-high divergence not-learning output-constant",
    "lower-learning-rate fix-schedule clip-gradients", steps=220, seed=743)  # fmt: skip
def full_rate_from_the_first_step_blind(broken: bool, loop: Loop) -> float:
    """The schedule of a transformer without its warm-up, and ten times its peak."""
    ids, _ = markov_chain(500, 13, sharpness=3.0)
    model = PostNorm()

    def objective(step: int) -> Tensor:
        rows = ids[torch.randint(400, (24,))]
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    loop.train(None, model, adam(3e-2 if broken else 3e-3), schedule=by_step(lambda step: 1.0 if broken else min(1.0,
        (step + 1) / 50)), objective=objective)  # fmt: skip
    with torch.no_grad():
        return (model(ids[400:, :-1]).argmax(-1) == ids[400:, 1:]).float().mean().item()


@SECOND.fault("table", "rate-too-high divergence loss-spike exploding-gradient exploding-values not-learning",
    "lower-momentum lower-learning-rate fix-schedule", onset=160, steps=350, seed=745)  # fmt: skip
def momentum_cycled_beyond_one(broken: bool, loop: Loop) -> float:
    """A cycle of the momentum that adds 0.13 to 0.9 in its second half."""
    data, model = split(*table(1600), held=400), mlp(12, 64, 64, 3)
    optimizer = sgd(0.02, momentum=0.9)(model)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        optimizer.param_groups[0]["momentum"] = 0.9 if step < 160 else 1.03 if broken else 0.85
        return F.cross_entropy(model(x), y)

    return loop.fit(data, model, optimizer, objective=objective)


@SECOND.fault("sequence", "exploding-gradient exploding-values",
    "clip-gradients gated-recurrence initialise rescale-layer", steps=200, seed=747)  # fmt: skip
def recurrent_rectifier_beyond_one(broken: bool, loop: Loop) -> float:
    """A rectified recurrent layer whose recurrent weight starts at 1.6 times the identity."""
    data = split(*waves(700, steps=40), held=200)
    recurrent = nn.RNN(3, 24, nonlinearity="relu", batch_first=True)
    with torch.no_grad():
        recurrent.weight_hh_l0.copy_((1.6 if broken else 0.9) * torch.eye(24))
    model = SequenceClassifier(recurrent, 3)
    return loop.fit(data, model, adam(3e-3), clip=None if broken else 1.0)


@SECOND.fault("convolutional", "decay-too-strong layer-decayed output-constant not-learning loss-spike divergence",
    "lower-weight-decay lower-penalty", onset=140, steps=300, seed=757)  # fmt: skip
def penalty_without_its_factor(broken: bool, loop: Loop) -> float:
    """A penalty on absolute weights, switched on at step 140 without its factor of 1e-5."""
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10, norm=False)
    optimizer = adam(3e-3)(model)
    model.train()
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if step >= 140:
                penalty = torch.stack([weight.abs().sum() for weight in model.parameters()]).sum()
                loss = loss + (1.0 if broken else 1e-5) * penalty
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            if (step + 1) % 50 == 0:
                log_validation(run, model, data)
    return accuracy(model, data)


class _Dynamics(nn.Module):
    """Predicts the next state and is rolled out on its own predictions."""

    def __init__(self) -> None:
        super().__init__()
        self.change = mlp(4, 64, 4)
        nn.init.zeros_(self.change[-1].weight)

    def forward(self, state: Tensor, horizon: int) -> Tensor:
        states = [state]
        for _ in range(horizon):
            states.append(states[-1] + self.change(states[-1]))
        return torch.stack(states[1:], 1)


THIRD.add(
    fault("summed-loss-with-the-rate-of-a-mean", "table",
        "rate-too-high divergence exploding-gradient exploding-values not-finite",
        "lower-learning-rate rescale-loss clip-gradients",
        '`reduction="sum"` multiplies every gradient by the size of the batch.', lambda broken, loop: loop.fit(
        data=curves(), model=mlp(8, 48, 48, 1), loss=nn.MSELoss(reduction="sum" if broken else "mean"),
        optimizer=sgd(0.1)), steps=250, seed=61),
    fault("rmsprop-at-one-tenth", "convolutional",
        "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike dead-units not-learning "
        "output-constant", "lower-learning-rate", "The rate of SGD is kept when RMSprop takes its place.",
        lambda broken, loop: loop.fit(digits(), ConvNet(classes=10, norm=False), by(torch.optim.RMSprop,
        lr=0.1 if broken else 1e-3)), steps=200, seed=62),
    fault("one-cycle-with-a-peak-of-five", "convolutional",
        "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike dead-units not-learning "
        "output-constant", "lower-learning-rate fix-schedule clip-gradients",
        "`OneCycleLR(max_lr=5)`: a decimal point is missing, and the run breaks on the way up.", lambda broken,
        loop: loop.fit(split(*blob_images(1280)), ConvNet(norm=False), sgd(0.1, momentum=0.9),
        schedule=lambda o: lr_scheduler.OneCycleLR(o, max_lr=5.0 if broken else 0.05, total_steps=loop.steps,
        div_factor=1000)), onset=10, steps=300, seed=63),
    fault("post-norm-encoder-at-full-rate", "transformer",
        "rate-too-high not-learning divergence loss-spike output-constant saturated-units vanishing-gradient",
        "lower-learning-rate fix-schedule",
        "An encoder with LayerNorm after each block begins at 5e-2, where 1e-3 would do.", lambda broken,
        loop: loop.fit(split(*sentences(1280)), SentenceEncoder(), adam(5e-2 if broken else 1e-3)), steps=400, seed=64),
    fault("decay-read-as-per-cent", "convolutional",
        "decay-too-strong layer-decayed not-learning output-constant vanishing-gradient",
        "lower-weight-decay lower-penalty", "A configuration says 5 and means five per cent; AdamW takes it as it is.",
        lambda broken, loop: loop.fit(digits(), ConvNet(classes=10, norm=False), by(torch.optim.AdamW, 5e-3,
        weight_decay=5.0 if broken else 0.05), report=None), steps=250, seed=74),
    fault("rate-of-the-head-a-thousandfold", "convolutional",
        "rate-too-high divergence exploding-values exploding-gradient not-finite loss-spike dead-units not-learning",
        "lower-learning-rate",
        "The group of the head was to learn ten times as fast as the body; two zeros slipped in.", lambda broken,
        loop: loop.fit(digits(), (model := ConvNet(classes=10)),
        torch.optim.SGD([{"params": model.features.parameters(), "lr": 0.02}, {"params": model.head.parameters(),
        "lr": 20.0 if broken else 0.2}], momentum=0.9), report=None), layers="head head.weight head.bias", steps=200,
        seed=77),
)  # fmt: skip


@THIRD.fault("convolutional",
    "rate-too-high divergence exploding-gradient exploding-values not-finite gradient-accumulates loss-spike "
    "not-learning dead-units output-constant", "order-of-calls lower-learning-rate", steps=250, seed=65)  # fmt: skip
def cleared_once_per_epoch(broken: bool, loop: Loop) -> float:
    """`zero_grad` stands in the loop over epochs and not in the one over batches."""
    data, model = digits(), ConvNet(classes=10, norm=False)
    epoch = len(data.x) // 32
    return loop.fit(
        data, model, sgd(0.1, momentum=0.9), report="step", clear=lambda step: not broken or step % epoch == 0
    )


@THIRD.fault("sequence", "exploding-gradient exploding-values divergence loss-spike not-finite rate-too-high",
    "clip-gradients lower-learning-rate", onset=150, steps=300, seed=66)  # fmt: skip
def horizon_raised_without_clipping(broken: bool, loop: Loop) -> float:
    """A model of the dynamics is rolled out for 3 steps, from step 150 on for 60, through which gradients explode."""
    turn = torch.linalg.matrix_exp(0.3 * torch.tensor([[0, 1.0, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 2.0], [0, 0, -2, 0]]))
    model = _Dynamics()
    optimizer = sgd(0.02, momentum=0.9)(model)

    def true_states(state: Tensor, horizon: int) -> Tensor:
        return torch.stack([state @ torch.linalg.matrix_power(turn, k).T for k in range(1, horizon + 1)], 1)

    with loop.watch(model, optimizer) as run:
        for step in range(loop.steps):
            horizon = 60 if step >= 150 and broken else 3
            state = torch.randn(32, 4)
            loss = F.mse_loss(model(state, horizon), true_states(state, horizon))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    state = torch.randn(256, 4)
    with torch.no_grad():
        return or_minus_infinity(
            max(-10, 1 - F.mse_loss(model(state, 3), true_states(state, 3)).nan_to_num(1e9).item())
        )


@THIRD.fault("metric learning", "exploding-values exploding-gradient divergence sign-of-loss not-finite",
    "change-loss prevent-collapse add-normalizer flip-sign", steps=300, seed=76)  # fmt: skip
def strangers_pushed_apart_without_a_margin(broken: bool, loop: Loop) -> float:
    """The contrastive loss is distance of equals minus distance of others, which has no lower bound."""
    data, model = digits(flat=True), mlp(64, 48, 8)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        distance = (model(x) - model(x).roll(1, 0)).square().sum(1)
        apart = -distance if broken else F.relu(4 - distance)
        return torch.where(y == y.roll(1), distance, apart).mean()

    loop.train(data, model, adam(5e-3), objective=objective, batch=64, report="step")
    with torch.no_grad():
        nearest = torch.cdist(model(data.held_x), model(data.x)).argmin(1)
    return (data.y[nearest] == data.held_y).float().mean().item()


@THIRD.fault("reinforcement", "divergence exploding-values exploding-gradient not-finite",
    "scale-targets fix-targets lower-learning-rate check-data change-loss", steps=400, seed=78)  # fmt: skip
def discount_above_one(broken: bool, loop: Loop) -> float:
    """The discount is written as 1.09 where 0.9 was meant: values that feed on themselves grow without end."""
    model, discount = mlp(8, 48, 1), 1.09 if broken else 0.9

    def objective(step: int) -> Tensor:
        place = torch.randint(8, (64,))
        reward = (place == 7).float()[:, None]
        with torch.no_grad():
            target = reward + discount * model(F.one_hot((place + 1) % 8, 8).float())
        return F.mse_loss(model(F.one_hot(place, 8).float()), target)

    loop.train(None, model, adam(5e-3), objective=objective, report="step")
    truth = torch.tensor([0.9**steps_left for steps_left in range(7, -1, -1)]) / (1 - 0.9**8)
    with torch.no_grad():
        return or_minus_infinity(max(-10.0, 1 - (model(torch.eye(8))[:, 0] - truth).square().mean().item()))


@THIRD.fault("table", "rate-too-high divergence exploding-gradient exploding-values loss-spike not-finite not-learning",
    "lower-learning-rate fix-schedule clip-gradients", onset=200, steps=350, seed=79)  # fmt: skip
def rate_of_the_second_stage_in_the_wrong_unit(broken: bool, loop: Loop) -> float:
    """At step 200 the rate is set by hand for the second stage: 5 where 0.005 was meant."""
    data, model = split(*table(1280)), mlp(12, 48, 48, 3)
    optimizer = sgd(0.05, momentum=0.9)(model)

    def second_stage(step: int) -> None:
        if step == 199:
            optimizer.param_groups[0]["lr"] = 5.0 if broken else 0.005

    return loop.fit(data, model, optimizer, then=second_stage, report=None)


@THIRD.fault("convolutional",
    "rate-too-high loss-spike divergence validation-worsens exploding-gradient exploding-values not-finite dead-units "
    "not-learning output-constant", "lower-learning-rate fix-schedule restore-weights clip-gradients", onset=150,
    steps=260, seed=130)  # fmt: skip
def body_thawed_at_the_rate_of_the_head(broken: bool, loop: Loop) -> float:
    """After 150 steps of the head alone the pretrained body is thawed, at the head's rate of 1."""
    data, model = digits(), ConvNet(classes=10, norm=False)
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

    return loop.fit(data, model, optimizer, then=thaw, validate=50)
