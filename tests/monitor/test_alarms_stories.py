"""What a fault is told as: its own story and no other, and none where a run is only unusual."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.core.errors import InputError
from normscope.monitor.probes.batches import measure_codes
from normscope.monitor.probes.loss_probe import read_loss

from .test_alarms_learning import network, sgd, told, train


def adam(model, rate=3e-3):
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)


def warnings_of(run):
    return [(finding.code, finding.where) for finding in run.findings if finding.severity > ns.Severity.INFO]


# ---- eval mode, frozen parts, parts of a model


def test_a_head_on_a_frozen_backbone_in_eval_mode_is_measured_and_no_alarm():
    model = network(nn.BatchNorm1d(32), nn.Dropout(0.5))
    for layer in model[:-1]:
        nn.init.normal_(layer.weight) if hasattr(layer, "weight") else None
    model.requires_grad_(False).eval()
    model[-1].requires_grad_(True).train()
    run = train(model, adam(model), steps=40)
    assert not run.findings
    assert len(run.records) == 4


@pytest.mark.parametrize("reads_mode", [False, True])
def test_eval_mode_is_told_only_where_something_that_is_trained_reads_it(reads_mode):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(32, 32)

        def forward(self, x):
            return F.dropout(self.inner(x), 0.2, self.training) if reads_mode else self.inner(x)

    class Plain(Block):
        def forward(self, x):
            return self.inner(x)

    model = network(Block() if reads_mode else Plain()).eval()
    if not reads_mode:
        assert not train(model, sgd(model), steps=30).findings
        return
    with pytest.warns(UserWarning, match="is in eval mode"):
        assert told(train(model, sgd(model), steps=30), "eval-mode")


@pytest.mark.parametrize("normal", [False, True])
def test_a_frozen_backbone_of_new_layers_is_told_and_a_trained_one_is_not(normal):
    model = network()
    if normal:
        for layer in (model[0], model[2]):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    trained = copy.deepcopy(model)
    train(trained, adam(trained, 1e-2), steps=60)
    for one in (model, trained):
        one[:3].requires_grad_(False)
        expected = [] if one is trained else [("frozen-layer", "0")]
        assert warnings_of(train(one, adam(one), steps=30)) == expected


def test_a_loop_that_calls_parts_of_a_model_is_measured_there_without_a_warning():
    torch.manual_seed(0)
    model = nn.ModuleDict({"encoder": nn.Linear(8, 64), "decoder": nn.Linear(64, 4)})
    optimizer = adam(model)
    with ns.watch(model, optimizer, every=5, panel=False) as run:
        for _ in range(30):
            x = torch.randn(32, 8)
            loss = F.cross_entropy(model["decoder"](model["encoder"](x).relu()), x[:, :4].argmax(1))
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert not run.findings
    assert len(run.records) >= 4
    assert not any(module._forward_pre_hooks for module in model.modules())


# ---- how the loss is made


def test_log_probabilities_that_are_minimised_are_told_and_negative_ones_are_not():
    for sign in (1.0, -1.0):
        model = network()
        run = train(
            model, sgd(model, 0.01), loss=lambda o, y, sign=sign: sign * o.log_softmax(1)[range(len(y)), y].mean()
        )
        assert warnings_of(run) == ([("negated-loss", "")] if sign > 0 else [])


def test_a_loss_of_classes_that_is_written_out_is_read_like_that_of_torch():
    scores, labels = torch.randn(16, 5, requires_grad=True), torch.randint(0, 5, (16,))
    logs = scores.log_softmax(1)
    expected = read_loss(F.cross_entropy(scores, labels)).figures
    for chosen in (logs[torch.arange(16), labels], logs.gather(1, labels[:, None])):
        reading = read_loss(-chosen.mean())
        torch.testing.assert_close(reading.figures, expected)
        assert reading.compares
        assert not reading.oddities
    policy = read_loss(-(logs.gather(1, labels[:, None])[:, 0] * torch.randn(16)).mean())
    assert not policy.compares, "weights of samples may have any sign"


def test_outputs_compared_with_each_other_and_penalties_are_no_targets():
    outputs, weight = torch.randn(16, 5, requires_grad=True), torch.randn(3, requires_grad=True)
    assert not read_loss((outputs - outputs.flip(0)).square().mean()).compares
    assert not read_loss(F.mse_loss(outputs, outputs.flip(0))).compares
    assert read_loss(F.mse_loss(outputs, torch.randn(16, 5))).compares
    reading = read_loss(F.cross_entropy(outputs, torch.arange(16) % 5) + weight.abs().sum())
    assert reading.figures is not None


def test_a_penalty_that_shrinks_a_layer_is_told_with_the_layer():
    for strength in (1.0, 1e-4):
        model = network()
        run = train(
            model, sgd(model, 0.002, momentum=0.9), steps=150,
            loss=lambda o, y, s=strength, m=model: F.cross_entropy(o, y) + s * m[2].weight.abs().sum(),
        )  # fmt: skip
        assert warnings_of(run)[:1] == ([("decay-too-strong", "2")] if strength == 1.0 else [])


def test_codes_are_the_pair_of_outputs_beside_the_first():
    codes = torch.tensor([[0.0, 1.0], [2.0, 1.0]] * 4)
    deviation = float(codes[:, 0].std())
    assert float(measure_codes((torch.zeros(8, 5), codes, torch.zeros(8, 2)))) == pytest.approx(deviation)
    assert measure_codes((torch.zeros(8, 5), codes)) is None
    assert measure_codes(codes) is None


# ---- data


@pytest.mark.parametrize("at_once", [True, False])
def test_a_batch_with_an_outlier_is_told_as_one_and_large_steps_are_not(at_once):
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = sgd(model, 0.02 if at_once else 1.5, momentum=0.9)

    def change(step, x, y):
        y = x[:, :1].clone()
        if at_once and step == 34:
            y[3] = 1e8
        return x, y

    finding = told(train(model, optimizer, loss=F.mse_loss, batch=change), "loss-not-finite")
    assert ("outliers" in finding.seen) == at_once
    assert ("step 34" in finding.seen) == at_once
    assert ("outliers" in finding.advice) == at_once


def test_an_epoch_as_long_as_the_interval_is_not_taken_for_one_batch():
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(100, 8), torch.randint(0, 4, (100,))), batch_size=20)
    for repeats in (False, True):
        model = network()
        optimizer = adam(model)
        with ns.watch(model, optimizer, every=10, panel=False) as run:
            for _ in range(12):
                for x, y in loader:
                    x, y = next(iter(loader)) if repeats else (x, y)
                    loss = F.cross_entropy(model(x), y)
                    run.observe(loss=loss)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        assert warnings_of(run) == ([("same-batch", "")] if repeats else [])


def test_samples_known_by_heart_and_a_validation_that_stays_far_are_overfitting():
    torch.manual_seed(0)
    some = torch.randn(64, 8), torch.randint(0, 4, (64,))
    for far in (True, False):
        model = network()
        validate = (lambda step: 1.2 + 0.001 * step) if far else (lambda step: 0.05 + 0.0001 * step)

        def change(step, x, y):
            chosen = torch.randint(0, 64, (32,))
            return some[0][chosen], some[1][chosen]

        run = train(model, adam(model, 1e-2), steps=200, batch=change, validate=validate)
        assert warnings_of(run) == ([("overfitting", "")] if far else [])


@pytest.mark.parametrize(("name", "judged"), [("val_nll", True), ("accuracy/valid", True), ("train_loss", False)])
def test_figures_of_a_validation_are_known_by_their_names(name, judged):
    model = network()
    optimizer = sgd(model)
    values = [0.9, 0.5, 0.3, 0.3, 0.3] if "acc" in name else [0.5, 0.4, 0.9, 1.0, 1.1]
    with ns.watch(model, optimizer, every=5, panel=False) as run:
        for step in range(25):
            x = torch.randn(32, 8)
            loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 5 == 4:
                run.log_metrics(**{name: values[step // 5]})
    assert bool(warnings_of(run)) == judged


# ---- one fault, one story


def test_all_weights_at_zero_are_one_alarm():
    model = network()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    [(code, where)] = warnings_of(train(model, sgd(model)))
    assert (code, where) == ("dead-layer", "0")


def test_a_forgotten_zero_grad_and_a_huge_rate_are_one_alarm_each():
    model = network()
    optimizer = sgd(model, 0.1, momentum=0.9)
    optimizer.zero_grad = lambda *_: None
    assert warnings_of(train(model, optimizer, steps=150)) == [("no-zero-grad", "")]
    model = network(nn.BatchNorm1d(32))
    assert warnings_of(train(model, adam(model, 3.0), steps=100)) == [("lr-too-high", "")]


def test_a_run_that_has_ended_in_nan_is_not_told_to_lower_its_loss_scale():
    model = network()
    run = train(model, sgd(model, 10.0), steps=200, loss=lambda o, y: F.mse_loss(o, 100.0 * F.one_hot(y, 4).float()))
    assert [code for code, _ in warnings_of(run)] == ["loss-not-finite"]


def test_a_generator_that_gets_no_gradient_is_told_that_the_other_player_wins():
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 2), nn.Linear(2, 1)
    ours, theirs = adam(generator, 1e-4), adam(critic, 1e-3)
    with ns.watch(generator, ours, every=10, panel=False) as run:
        for step in range(60):
            with torch.no_grad():
                critic.bias.fill_(-0.5 * step)  # so sure that all is generated
            loss = F.logsigmoid(-critic(generator(torch.randn(32, 4)))).mean()
            run.observe(loss=loss)
            ours.zero_grad()
            loss.backward()
            ours.step()
            theirs.zero_grad()
            critic(torch.randn(32, 2)).mean().backward()
            theirs.step()
    assert "wins" in told(run, "gradient-vanishing").why


# ---- what the loop gives and takes


def test_numbers_of_numpy_are_observed():
    model = network()
    optimizer = sgd(model)
    with ns.watch(model, optimizer, every=1, panel=False) as run:
        loss = F.cross_entropy(model(torch.randn(4, 8)), torch.arange(4))
        loss.backward()
        run.observe(loss=np.array(1.5, dtype=np.float32), accuracy=np.float64(0.5))
        optimizer.step()
        with pytest.raises(InputError, match="one entry"):
            run.observe(loss=np.zeros(3))
    assert run.records[0].loss == 1.5
    with pytest.raises(InputError, match=r"run\.records"):
        pickle.dumps(run)
    assert pickle.loads(pickle.dumps((list(run.records), list(run.findings))))[0] == list(run.records)


def test_a_validation_with_gradients_is_not_taken_for_training():
    model, other = network(), torch.full((64, 8), 50.0)
    optimizer = sgd(model)

    def validate(step):
        model.eval()
        value = F.cross_entropy(model(other), torch.zeros(64, dtype=torch.long))
        model.train()
        return float(value.detach()) / (1 + step)

    run = train(model, optimizer, validate=validate, every=5)
    assert {record.total["input_samples"] for record in run.records} == {32.0}


def test_a_loss_that_grows_with_its_targets_is_no_divergence():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))

    def change(step, x, y):
        return x, (0.1 + 0.02 * step) * x[:, :1]

    run = train(model, adam(model, 1e-2), steps=300, loss=F.mse_loss, batch=change)
    assert not run.findings


@pytest.mark.parametrize("noisy", [False, True])
def test_a_validation_that_often_jumps_is_not_called_worse(noisy):
    model = network()
    values = [1.4, 0.37, 0.75 if noisy else 0.3, 0.16, 0.14, 0.29, 0.18, 0.21]
    run = train(model, sgd(model), steps=80, validate=lambda step: values[step // 10])
    assert [code for code, _ in warnings_of(run)] == ([] if noisy else ["overfitting"])
