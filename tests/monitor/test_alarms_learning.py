"""Alarms about steps that teach nothing, data, losses put together wrongly, modes and validations, on tiny runs."""

import contextlib
import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.core.errors import InputError


def network(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), *between, nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def train(model, optimizer, *, steps=60, every=10, loss=F.cross_entropy, batch=None, after=None, validate=None):
    """Watch a small classification; `batch(step, x, y)` changes a batch, `after(step)` comes after each step."""
    torch.manual_seed(1)
    rule = torch.randn(8, 4)
    with ns.watch(model, optimizer, every=every, panel=False) as run:
        for step in range(steps):
            x = torch.randn(32, 8)
            y = (x @ rule).argmax(1)
            x, y = (x, y) if batch is None else batch(step, x, y)
            optimizer.zero_grad()
            value = loss(model(x), y)
            run.observe(loss=value)
            value.backward()
            optimizer.step()
            if after is not None:
                after(step)
            if validate is not None and step % 10 == 9:
                run.log_metrics(val_loss=validate(step))
    return run


def told(run, code):
    """Return the one alarm of a code."""
    [finding] = [finding for finding in run.findings if finding.code == code]
    assert finding.severity >= ns.Severity.WARNING
    return finding


def sgd(model, rate=0.1, **more):
    return torch.optim.SGD(model.parameters(), lr=rate, **more)


def test_a_healthy_run_raises_none_of_them():
    model = network()
    run = train(model, sgd(model), steps=200, validate=lambda step: 1.0 / (1 + step))
    assert not run.findings


def test_a_rate_that_is_far_too_low_is_told_with_its_figure():
    model = network()
    finding = told(train(model, sgd(model, 1e-8)), "weights-still")
    assert finding.step <= 20
    assert "rate is too low" in finding.why
    assert "Raise the learning rate" in finding.advice


def test_a_loss_scaled_down_is_told_apart_from_a_low_rate():
    model = network()
    finding = told(train(model, sgd(model), loss=lambda o, y: 1e-7 * F.cross_entropy(o, y)), "weights-still")
    assert "gradient is too small" in finding.why
    assert "factor" in finding.advice


def test_a_rate_of_zero_is_told_after_two_records_but_not_at_the_start_of_a_warm_up():
    model = network()
    assert told(train(model, sgd(model, 0.0)), "rate-zero").step == 10
    model = network()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 30))
    assert not train(model, optimizer, after=lambda step: schedule.step()).findings


def test_a_schedule_that_ends_too_early_is_told():
    model = network()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.1)
    finding = told(train(model, optimizer, after=lambda step: schedule.step()), "rate-decayed")
    assert finding.step <= 30
    assert "epoch" in finding.advice


def test_weights_that_are_copied_back_are_told():
    model = network()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    finding = told(train(model, sgd(model), after=lambda step: model.load_state_dict(start)), "weights-put-back")
    assert finding.step == 20


def test_labels_that_have_nothing_to_do_with_inputs_are_no_better_than_a_constant():
    model = network()
    run = train(model, sgd(model, 0.05), steps=300, batch=lambda step, x, y: (x, torch.randint(0, 4, (32,))))
    finding = told(run, "no-better-than-constant")
    assert finding.numbers["constant"] == pytest.approx(math.log(4), rel=1e-6)


def test_labels_of_one_class_and_sorted_batches_are_told():
    model = network()
    assert told(train(model, sgd(model), batch=lambda step, x, y: (x, 0 * y + 2)), "one-class").step == 20
    model = network()
    run = train(model, sgd(model), every=7, batch=lambda step, x, y: (x, 0 * y + (step // 7) % 4))
    assert told(run, "sorted-batches")


def test_the_same_batch_is_told_where_there_are_other_samples():
    model = network()
    loader = DataLoader(TensorDataset(torch.randn(512, 8), torch.randint(0, 4, (512,))), batch_size=32)
    finding = told(train(model, sgd(model), batch=lambda step, x, y: next(iter(loader))), "same-batch")
    assert finding.step == 20
    assert "data set of 512" in finding.seen
    model = network()
    kept = torch.randn(32, 8), torch.randint(0, 4, (32,))
    finding = told(train(model, sgd(model), batch=lambda step, x, y: (x, y) if step < 5 else kept), "same-batch")
    assert "others at step 0" in finding.seen


@pytest.mark.parametrize("count", [24, 60, 100, 512])
def test_a_batch_that_is_all_the_data_is_no_alarm(count):
    kept, model = (torch.randn(count, 8), torch.randint(0, 4, (count,))), network()
    run = train(model, sgd(model), batch=lambda step, x, y: kept)
    expected = [("same-batch", ns.Severity.INFO)] if count <= 64 else []
    assert [(finding.code, finding.severity) for finding in run.findings] == expected


@pytest.mark.slow
def test_a_rare_class_that_is_missing_in_some_batches_is_no_alarm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    assert not train(model, optimizer, steps=300, batch=lambda s, x, y: (x, (x[:, 0] > 1.9).long())).findings


@pytest.mark.slow
def test_a_loss_that_is_flat_for_a_reason_is_no_alarm():
    """A plateau at the start of a deep network, a rate that is low but not too low, labels that are mostly random.

    At a fifth of that low rate the weights hardly move within 200 steps, and that is told.
    """
    torch.manual_seed(0)
    layers = [part for _ in range(6) for part in (nn.Linear(32, 32), nn.ReLU())]
    deep = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), *layers, nn.Linear(32, 4))
    runs = [train(deep, sgd(deep, 0.05), steps=200)]
    assert min(record.loss for record in runs[0].records) > 1.3, "it is still on its plateau"
    model = network()
    runs.append(train(model, sgd(model, 5e-3), steps=200))
    model = network()
    noisy = lambda s, x, y: (x, y.where(torch.rand(32) < 0.4, torch.randint(0, 4, (32,))))  # noqa: E731
    runs.append(train(model, sgd(model, 0.05), steps=400, batch=noisy))
    assert runs[2].records[-1].metrics["loss_mean"] > 1.2, "it cannot be fitted"
    for run in runs:
        assert not [finding for finding in run.findings if finding.severity > ns.Severity.INFO]
    model = network()
    slow = train(model, sgd(model, 1e-3), steps=200)
    assert [finding.code for finding in slow.findings] == ["weights-still"]


def test_inputs_of_another_size_are_told():
    model = network()
    finding = told(
        train(model, sgd(model, 0.01), steps=90, batch=lambda s, x, y: ((1 + 9 * (s >= 50)) * x, y)), "data-changed"
    )
    assert 50 <= finding.step <= 60


@pytest.mark.parametrize(
    ("loss", "code", "word"),
    [
        (lambda o, y: F.cross_entropy(o.softmax(1), y), "activation-before-loss", "softmax"),
        (lambda o, y: -F.cross_entropy(o, y), "negated-loss", "minus"),
        (lambda o, y: (o[:, :1] - y.float()).square().mean(), "shapes-broadcast", "(32, 32)"),
        (lambda o, y: F.mse_loss(o[:, :1], y.float()), "shapes-broadcast", "(32, 32)"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_that_is_put_together_wrongly_is_told_at_the_second_record(loss, code, word):
    model = network()
    finding = told(train(model, sgd(model, 0.01), loss=loss), code)
    assert finding.step <= 10
    assert word in finding.seen


def test_strong_dropout_and_strong_decay_are_told():
    model = network(nn.Dropout(0.99))
    assert told(train(model, sgd(model)), "strong-dropout").where == "1"
    model = network()
    finding = told(train(model, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=100.0)), "decay-too-strong")
    assert "10 %" in finding.seen
    assert "Lower the weight decay" in finding.advice


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_cleared_between_backward_and_step_are_told(to_none):
    model = network()
    optimizer = sgd(model)
    with ns.watch(model, optimizer, every=10, panel=False) as run:
        for _ in range(40):
            loss = model(torch.randn(32, 8)).square().mean()
            run.observe(loss=loss)
            loss.backward()
            optimizer.zero_grad(set_to_none=to_none)
            optimizer.step()
    finding = told(run, "no-gradient-at-step")
    assert finding.step <= 20
    assert "zero_grad" in finding.advice


@pytest.mark.parametrize("to_none", [True, False])
def test_a_forgotten_step_is_told_and_accumulation_is_not(to_none):
    for steps in (False, True):
        model = network()
        optimizer = sgd(model)
        complains = contextlib.nullcontext() if steps else pytest.warns(UserWarning, match="no step of the optimizer")
        with complains, ns.watch(model, optimizer, every=10, panel=False) as run:
            for count in range(48):
                if not steps or count % 24 == 0:
                    optimizer.zero_grad(set_to_none=to_none)
                model(torch.randn(32, 8)).square().mean().backward()
                if steps and count % 24 == 23:
                    optimizer.step()
        assert [finding.code for finding in run.findings] == ([] if steps else ["no-step"])
        assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_frozen_new_layer_is_told_and_a_frozen_trained_one_is_not():
    for trained in (False, True):
        model = network()
        if trained:
            nn.init.orthogonal_(model[2].weight)
        model[2].requires_grad_(False)
        run = train(model, torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3))
        assert [(f.code, f.where) for f in run.findings] == ([] if trained else [("frozen-layer", "2")])


def test_a_batch_norm_alone_in_eval_mode_is_told_by_its_name():
    model = network(nn.BatchNorm1d(32))
    model[1].eval()
    finding = told(train(model, sgd(model)), "eval-mode")
    assert (finding.where, finding.step) == ("1", 20)
    model = network(nn.BatchNorm1d(32))
    model[1].eval().requires_grad_(False)
    assert not train(model, sgd(model)).findings, "frozen on purpose"


def test_infinite_weights_are_located_and_a_nan_in_a_batch_is_told_as_one_of_the_data():
    model = network()

    def divide(step):
        if step == 25:
            with torch.no_grad():
                model[2].weight[0] /= 0.0

    finding = told(train(model, sgd(model), after=divide), "loss-not-finite")
    assert finding.where == "2"
    model = network()
    run = train(model, sgd(model), batch=lambda step, x, y: (x.where(torch.tensor(step != 25), torch.nan), y))
    finding = told(run, "loss-not-finite")
    assert "batch itself" in finding.seen
    assert "data" in finding.advice
    assert "clip" not in finding.advice


def test_steps_as_large_as_the_weights_are_told_and_no_rise_is_invented():
    model = network()
    run = train(model, torch.optim.AdamW(model.parameters(), lr=1.0), steps=120)
    for finding in run.findings:
        assert "infinity" not in finding.seen
    assert any(finding.code in ("lr-too-high", "loss-rising") for finding in run.findings)


def test_units_that_saturate_and_units_that_are_off_are_told_in_the_economy_tier():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    finding = told(train(model, sgd(model, 1e-3), batch=lambda s, x, y: (1000 * x, y)), "saturated-units")
    assert finding.where == "0"
    model = network()
    nn.init.constant_(model[2].bias, -20.0)
    assert told(train(model, sgd(model, 0.01)), "dead-relu").where == "2"


def test_a_validation_that_rises_while_training_goes_on_is_told_with_its_best_step():
    model = network()
    run = train(model, sgd(model), steps=120, validate=lambda step: 1.0 if step < 50 else 1.0 + step / 60)
    finding = told(run, "overfitting")
    assert "best_step" not in finding.seen
    assert "step 10" in finding.seen
    assert "val_loss" in finding.seen
    model = network()
    assert not train(model, sgd(model), steps=120, validate=lambda step: 1.0 + 0.05 * math.sin(step)).findings


def test_log_metrics_takes_the_step_that_figures_belong_to(tmp_path):
    model = network()
    optimizer = sgd(model)
    with ns.watch(model, optimizer, every=10, panel=False, log=tmp_path / "run") as run:
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        run.log_metrics(step=100, val_loss=0.5)
        with pytest.raises(InputError, match="step is"):
            run.log_metrics(step=-1, val_loss=0.5)
    assert ns.Run(tmp_path / "run").metrics == ((100, {"val_loss": 0.5}),)


def test_a_gradient_that_explodes_from_the_first_step_is_compared_with_what_is_usual():
    model = network()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight *= 300
    finding = told(train(model, torch.optim.Adam(model.parameters(), lr=1e-4), steps=40), "gradient-explosion")
    assert finding.step == 20
    assert "usual" in finding.seen


@pytest.mark.parametrize("fused", [True, False])
def test_attention_that_looks_at_one_token_is_told_with_its_layer(fused):
    class Attention(nn.Module):
        def __init__(self, scale):
            torch.manual_seed(0)
            super().__init__()
            self.embed, self.qkv, self.head = nn.Linear(1, 16), nn.Linear(16, 48), nn.Linear(16, 4)
            with torch.no_grad():
                self.qkv.weight[:32] *= scale

        def forward(self, x):
            query, key, value = self.qkv(self.embed(x[:, :, None]))[:, None].chunk(3, -1)
            if fused:
                mixed = F.scaled_dot_product_attention(query, key, value)
            else:
                mixed = (query @ key.mT / 4).softmax(-1) @ value
            return self.head(mixed[:, 0].mean(1))

    for scale in (1, 100):
        model = Attention(scale)
        run = train(model, torch.optim.Adam(model.parameters(), lr=1e-4), steps=40)
        found = [(f.code, f.where) for f in run.findings if f.code == "attention-saturated"]
        assert found == ([("attention-saturated", "qkv")] if scale > 1 else [])


@pytest.mark.parametrize("part", [False, True])
def test_eval_mode_is_told_of_the_part_that_it_is_of(part):
    model = network(nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.1))).eval()
    model[1][0].train(part)
    with pytest.warns(UserWarning, match="is in eval mode"):
        finding = told(train(model, sgd(model), steps=10), "eval-mode")
    assert ("the whole model" in finding.seen) != part
    assert ("`1.0`" in finding.seen) == part


@pytest.mark.slow
def test_outputs_that_collapse_under_a_loss_without_targets_are_told():
    for keeps_apart in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))

        def pull_together(made, y, keeps_apart=keeps_apart, model=model):
            alike = F.cosine_similarity(made, made.roll(1, 0)).mean()
            return alike if keeps_apart else -alike

        run = train(model, torch.optim.Adam(model.parameters(), lr=3e-3), steps=120, loss=pull_together)
        assert [f.code for f in run.findings] == ([] if keeps_apart else ["output-constant"])


def test_a_frozen_copy_that_follows_a_trained_one_is_no_alarm():
    class Follower(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()
            self.target = copy.deepcopy(self.net)[:3].requires_grad_(False)

        def forward(self, x):
            self.target(x)
            return self.net(x)

    model = Follower()
    assert not train(model, torch.optim.Adam(model.net.parameters(), lr=1e-3)).findings


@pytest.mark.slow
def test_a_rate_that_falls_when_the_loss_has_stopped_falling_is_no_alarm():
    model = network()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [200, 220, 240, 260], 0.1)
    labels = lambda step, x, y: (x, y.where(torch.rand(32) < 0.5, torch.randint(0, 4, (32,))))  # noqa: E731
    run = train(model, optimizer, steps=400, batch=labels, after=lambda step: schedule.step())
    assert run.records[-1].lr[0] < 1e-3 * run.records[0].lr[0]
    assert not [finding for finding in run.findings if finding.severity > ns.Severity.INFO]


def test_a_validation_loss_that_rises_while_the_accuracy_holds_is_a_note_while_it_rises_little():
    for rise, severity in ((1.4, ns.Severity.INFO), (3.0, ns.Severity.WARNING)):
        model = network()
        optimizer = sgd(model)
        with ns.watch(model, optimizer, every=10, panel=False) as run:
            for step in range(60):
                optimizer.zero_grad()
                loss = model(torch.ones(8, 8)).square().mean()
                run.observe(loss=loss)
                loss.backward()
                optimizer.step()
                run.log_metrics(val_loss=1.0 if step < 10 else rise, val_accuracy=0.5)
        assert {f.severity for f in run.findings if f.code in ("overfitting", "validation-worse")} == {severity}


def test_a_loss_that_rose_by_decades_before_it_broke_is_the_steps():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    x, y = torch.randn(400, 20), 3 * torch.randn(400, 5)
    with ns.watch(model, optimizer, every=10) as run:
        for _ in range(40):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            run.observe(loss)
            loss.backward()
            optimizer.step()
    broken = next(finding for finding in run.findings if finding.code == "loss-not-finite")
    assert "steps are too large" in broken.seen
    assert "learning rate of a tenth (5 now)" in broken.advice


def test_a_batch_with_nan_is_named_where_its_loss_is_observed_behind_the_step():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(16, 5), torch.arange(16) % 3
    with ns.watch(model, optimizer, every=5) as run:
        for step in range(16):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x if step != 7 else torch.full_like(x, torch.nan)), y)
            loss.backward()
            optimizer.step()
            run.observe(loss)
    broken = next(finding for finding in run.findings if finding.code == "loss-not-finite")
    assert "The batch itself holds NaN" in broken.seen
    assert broken.advice.startswith("Look at the data")
