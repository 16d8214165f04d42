"""Alarms that say why a run learns nothing, or too little: rates, weights that are written over, precision, inputs."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns


def network(*, inputs=8, activation=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, 4))


def train(model, optimizer, *, steps=120, every=10, after=None, batch=None, loss=F.cross_entropy, between=None):
    """Watch a small classification that reports nothing."""
    torch.manual_seed(1)
    rule = torch.randn(8, 4)
    with ns.watch(model, optimizer, every=every, panel=False) as run:
        for step in range(steps):
            x = torch.randn(32, 8)
            y = (x @ rule).argmax(1)
            x, y = (x, y) if batch is None else batch(step, x, y)
            optimizer.zero_grad()
            loss(model(x), y).backward()
            if between is not None:
                between(step)
            optimizer.step()
            if after is not None:
                after(step)
    return run


def warnings_of(run):
    return [(finding.code, finding.where) for finding in run.findings if finding.severity >= ns.Severity.WARNING]


def told(run, code):
    """Return the one alarm of a code."""
    [finding] = [finding for finding in run.findings if finding.code == code]
    assert finding.severity >= ns.Severity.WARNING
    return finding


def sgd(model, rate=0.1, **more):
    return torch.optim.SGD(model.parameters(), lr=rate, **more)


# ---- rates


def test_a_warm_up_that_never_gets_anywhere_is_told_and_a_long_one_is_not():
    for length, codes in ((100_000, [("weights-still", "")]), (100, [])):
        model = network()
        optimizer = sgd(model)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step, n=length: min(1.0, (step + 1) / n))
        run = train(model, optimizer, steps=200, after=lambda step, s=schedule: s.step())
        assert warnings_of(run) == codes


def test_gradients_that_are_clipped_to_nothing_from_some_step_on_are_told():
    model = network(activation=nn.Tanh)
    optimizer = sgd(model, 0.02)

    def clip(step):
        nn.utils.clip_grad_value_(model.parameters(), 1.0 if step < 40 else 1e-7)

    finding = told(train(model, optimizer, between=clip), "weights-still")
    assert 40 < finding.step <= 80
    assert "since step" in finding.seen
    assert "clip" in finding.advice


def test_a_group_with_next_to_no_rate_is_named():
    model = network()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 1e-8}, {"params": model[2:].parameters()}], 0.01
    )
    finding = told(train(model, optimizer, steps=60), "weights-still")
    assert finding.where == "0"
    assert "rate" in finding.seen


def test_targets_that_steps_cannot_reach_are_told_with_what_to_do():
    model, optimizer_of = network(), torch.optim.Adam
    run = train(
        model,
        optimizer_of(model.parameters(), 1e-3),
        steps=200,
        batch=lambda step, x, y: (x, 1e5 + 1e4 * x[:, :4]),
        loss=F.mse_loss,
    )
    finding = told(run, "weights-still")
    assert "Scale the targets" in finding.advice


# ---- weights that are written over


def test_a_constraint_that_undoes_each_step_names_its_layer():
    model = network()

    @torch.no_grad()
    def constrain(step):
        model[2].weight.mul_(0.01 / model[2].weight.norm())

    finding = told(
        train(model, torch.optim.Adam(model.parameters(), 1e-3), steps=200, after=constrain), "weights-put-back"
    )
    assert finding.where == "2"


def test_a_constraint_that_leaves_room_to_learn_raises_nothing():
    model = network()

    @torch.no_grad()
    def constrain(step):
        model[2].weight.mul_((30.0 / model[2].weight.norm()).clamp(max=1.0))

    assert not warnings_of(train(model, torch.optim.Adam(model.parameters(), 3e-3), steps=200, after=constrain))


def test_a_checkpoint_that_is_loaded_now_and_then_is_told():
    model = network()
    start = copy.deepcopy(model.state_dict())
    run = train(model, sgd(model, 0.003), steps=200, after=lambda step: step % 12 or model.load_state_dict(start))
    assert ("weights-put-back", "0") in warnings_of(run)


# ---- precision


def test_steps_that_bfloat16_rounds_away_are_told():
    model = network().to(torch.bfloat16)
    run = train(
        model,
        torch.optim.Adam(model.parameters(), 2e-5),
        batch=lambda step, x, y: (x.bfloat16(), y),
        loss=lambda output, y: F.cross_entropy(output.float(), y),
    )
    assert "float32" in told(run, "half-precision").advice


# ---- layers and gradients


def test_a_model_whose_layers_are_all_frozen_and_new_is_told():
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    for index in (0, 3):
        model[index].requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-3)
    assert told(train(model, optimizer, steps=40), "frozen-layer").where == "0"


def test_gates_that_their_biases_keep_shut_are_named():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent, self.head = nn.LSTM(1, 16, batch_first=True), nn.Linear(16, 4)

        def forward(self, x):
            return self.head(self.recurrent(x[..., None])[0][:, -1])

    torch.manual_seed(0)
    model = Reader()
    nn.init.constant_(model.recurrent.bias_ih_l0, -8.0)
    finding = told(train(model, torch.optim.Adam(model.parameters(), 1e-3), steps=80), "saturated-units")
    assert finding.where == "recurrent"
    assert "forget gate" in finding.advice


def test_a_normalizer_of_single_values_is_named():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.LayerNorm(1))
    run = train(model, sgd(model), steps=40, batch=lambda step, x, y: (x, x[:, :1]), loss=F.mse_loss)
    assert told(run, "small-batch").where == "3"


def test_a_part_that_the_loop_calls_is_named_with_its_path_in_the_model():
    torch.manual_seed(0)
    model = nn.ModuleDict({"encoder": network(), "head": nn.Linear(4, 4)})
    optimizer = sgd(model)
    with ns.watch(model, optimizer, every=10, panel=False) as run:
        for step in range(80):
            x = torch.randn(32, 8)
            code = model["encoder"](x)
            optimizer.zero_grad()
            F.cross_entropy(model["head"](code.round() if step >= 30 else code), x[:, :4].argmax(1)).backward()
            optimizer.step()
    finding = told(run, "no-gradient-at-step")
    assert finding.where == "encoder"
    assert {layer.name for layer in run.history.of("weight")} == {f"encoder.{place}" for place in (0, 2, 4)}


def test_gradients_that_accumulate_without_any_step_are_told_at_the_end():
    model = network()
    optimizer = sgd(model)
    complains = pytest.warns(UserWarning, match="no step of the optimizer")
    with complains, ns.watch(model, optimizer, every=10, panel=False) as run:
        for _ in range(40):
            F.cross_entropy(model(torch.randn(32, 8)), torch.randint(4, (32,))).backward()
    assert "accumulate" in told(run, "no-step").seen


def test_a_run_that_ends_amid_an_accumulation_raises_nothing():
    model = network()
    optimizer = sgd(model)
    torch.manual_seed(1)
    with ns.watch(model, optimizer, every=1, panel=False) as run:
        for number in range(16 * 6 + 13):
            x = torch.randn(32, 8)
            (F.cross_entropy(model(x), x[:, :4].argmax(1)) / 16).backward()
            if number % 16 == 15:
                optimizer.step()
                optimizer.zero_grad()
    assert not warnings_of(run)


# ---- inputs and labels


def test_inputs_around_another_mean_are_told():
    model = network()
    run = train(model, sgd(model), batch=lambda step, x, y: (x + 1.5 * (step >= 60), y))
    finding = told(run, "data-changed")
    assert 60 < finding.step <= 90
    assert "their mean was" in finding.seen


def test_a_column_far_larger_than_the_others_is_told_while_nothing_is_learned():
    model = network()
    scale = torch.tensor([1.0] * 7 + [1e8])
    run = train(model, torch.optim.Adam(model.parameters(), 1e-3), batch=lambda step, x, y: (x * scale, y))
    assert "Scale the inputs" in told(run, "input-scale").advice


def test_labels_of_one_class_behind_mixed_ones_are_told_soon():
    model = network()
    run = train(model, sgd(model), batch=lambda step, x, y: (x, y if step < 60 else torch.full_like(y, 2)))
    assert told(run, "one-class").step <= 90


# ---- what was learned and is lost


def test_labels_that_no_longer_belong_to_their_inputs_are_told():
    model = network()
    torch.manual_seed(2)
    run = train(
        model,
        torch.optim.Adam(model.parameters(), 3e-3),
        steps=300,
        batch=lambda step, x, y: (x, y if step < 150 else y[torch.randperm(32)]),
    )
    finding = told(run, "loss-rising")
    assert finding.step > 150
    assert "labels" in finding.advice


@pytest.mark.parametrize(("last", "told_codes"), [(3.0, ["validation-worse"]), (0.62, [])])
def test_a_validation_that_is_lost_at_once_is_told_at_once(last, told_codes):
    model = network()
    optimizer = sgd(model)
    values = [2.0, 1.5, 1.2, 0.9, 0.8, 0.7, 0.6, last]
    torch.manual_seed(1)
    with ns.watch(model, optimizer, every=10, panel=False) as run:
        for step in range(80):
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            F.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
            optimizer.step()
            if step % 10 == 9:
                run.log_metrics(val_loss=values[step // 10])
    assert [code for code, _ in warnings_of(run)] == told_codes


def test_a_small_model_that_settles_at_the_noise_within_its_first_records_raises_nothing():
    """The first step is half of the weights, and the second record has all there is to learn."""
    torch.manual_seed(10)
    x = torch.randn(200, 5)
    y = 0.2 * x[:, :1] + torch.randn(200, 1)
    model = nn.Linear(5, 1)
    optimizer = sgd(model, 0.3)
    with ns.watch(model, optimizer, every=10, panel=False) as run:
        for _ in range(60):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    assert not warnings_of(run)
