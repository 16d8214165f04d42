"""What a fault is told as: its own story and no other, and none where a run is only unusual."""

import copy
import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import InputError
from normscope.doctor.facts.loss import LossListener, read_loss
from normscope.doctor.monitor.history import History
from normscope.doctor.monitor.quantities.outputs import measure_codes
from normscope.doctor.monitor.record import Record
from normscope.doctor.symptoms.registry import add_record

from .test_alarms_learning import network, sgd, told, train, warnings_of


def adam(model, rate=3e-3):
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)


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


# ---- how the loss is made


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


def test_a_loss_that_was_heard_has_the_sign_that_its_graph_has():
    outputs, labels = torch.randn(16, 5, requires_grad=True), torch.arange(16) % 5
    with LossListener() as losses:
        losses.in_loss = True
        loss = -2.0 * F.cross_entropy(outputs, labels) + 1.0
    heard, traced = read_loss(loss, losses.calls), read_loss(loss)
    assert heard.oddities == traced.oddities == {"negated"}
    assert heard.rest == pytest.approx(1.0)


def test_a_check_and_a_run_give_one_reason_and_one_advice():
    model = nn.Sequential(*network(), nn.Softmax(1))
    batch = torch.randn(64, 8), torch.randint(0, 4, (64,))
    [checked] = [f for f in ns.check(model, batch, loss="cross_entropy").findings if f.code == "activation-before-loss"]
    alarm = told(train(model, adam(model)), "activation-before-loss")
    assert (alarm.why, alarm.advice) == (checked.why, checked.advice)


def test_codes_are_the_pair_of_outputs_beside_the_first():
    codes = torch.tensor([[0.0, 1.0], [2.0, 1.0]] * 4)
    deviation = float(codes[:, 0].std())
    assert float(measure_codes((torch.zeros(8, 5), codes, torch.zeros(8, 2)))) == pytest.approx(deviation)
    assert measure_codes((torch.zeros(8, 5), codes)) is None
    assert measure_codes(codes) is None


# ---- data


@pytest.mark.parametrize(("name", "judged"), [("val_nll", True), ("accuracy/valid", True), ("train_loss", False)])
def test_figures_of_a_validation_are_known_by_their_names(name, judged):
    model = network()
    values = [0.9, 0.5, 0.3, 0.3, 0.3] if "acc" in name else [0.5, 0.4, 0.9, 1.0, 1.1]
    run = train(model, sgd(model), steps=50, validate=lambda step: {name: values[step // 10]})
    assert bool(warnings_of(run)) == judged


# ---- one fault, one story


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
        return {"val_loss": float(value.detach()) / (1 + step)}

    run = train(model, optimizer, validate=validate, every=5)
    assert {record.total["input_samples"] for record in run.records} == {32.0}


@pytest.mark.parametrize("noisy", [False, True])
def test_a_validation_that_often_jumps_is_not_called_worse(noisy):
    model = network()
    values = [1.4, 0.37, 0.75 if noisy else 0.3, 0.16, 0.14, 0.29, 0.18, 0.21]
    run = train(model, sgd(model), steps=80, validate=lambda step: {"val_loss": values[step // 10]})
    assert [code for code, _ in warnings_of(run)] == ([] if noisy else ["overfitting"])


# ---- activations that are written out


class WrittenGELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class WrittenSiLU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


@pytest.mark.parametrize(
    ("activation", "name"), [(WrittenGELU(), ""), (WrittenSiLU(), ""), (nn.Tanh(), "tanh"), (nn.Sigmoid(), "sigmoid")]
)
def test_saturated_units_are_told_with_their_activation_and_not_inside_of_another_one(activation, name):
    model = nn.Sequential(nn.Linear(8, 32), activation, nn.LayerNorm(32), nn.Linear(32, 4))
    with torch.no_grad():
        model[0].weight *= 300
    run = train(model, adam(model), steps=40)
    assert [finding.code for finding in run.findings] == (["saturated-units"] if name else [])
    assert not name or f"in the flat parts of their {name}." in told(run, "saturated-units").seen


def test_a_gpt_whose_gelu_is_written_out_is_not_told_of_its_tanh():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None)
    )
    with torch.no_grad():
        for parameter in model.transformer.h.parameters():
            parameter *= 30
    optimizer = adam(model, 1e-3)
    with ns.watch(model, optimizer, every=10, panel=False) as run:
        for _ in range(30):
            tokens = torch.randint(99, (4, 32))
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
    assert not run.findings


# ---- drawn codes


class Autoencoder(nn.Module):
    def __init__(self, detached="", shared=False):
        super().__init__()
        torch.manual_seed(0)
        self.detached, self.shared = detached, shared
        self.encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.mean, self.spread = (nn.Linear(32, 8), None) if shared else (nn.Linear(32, 4), nn.Linear(32, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x):
        hidden = self.encoder(x)
        mean, spread = self.mean(hidden).chunk(2, 1) if self.shared else (self.mean(hidden), self.spread(hidden))
        noise = torch.randn_like(mean) * (spread / 2).exp()
        code = mean + (noise.detach() if self.detached == "noise" else noise)
        return self.decoder(code.detach() if self.detached == "code" else code), mean, spread


def written(mean, spread):
    return -0.5 * (1 + spread - mean**2 - spread.exp())


def of_distributions(mean, spread):
    normal = torch.distributions.Normal
    made = normal(mean, (spread / 2).exp(), validate_args=False)
    return torch.distributions.kl_divergence(made, normal(torch.zeros_like(mean), 1.0))


def with_free_bits(mean, spread):
    return written(mean, spread).sum(1, keepdim=True).clamp(min=0.001)


def train_code(model, divergence=written, weight=1.0, optimizer=adam, **options):
    def loss(made, x):
        output, mean, spread = made
        return 8 * F.mse_loss(output, x) + weight * divergence(mean, spread).sum(1).mean()

    return train(model, optimizer(model), loss=loss, batch=lambda step, x, y: (x, x), **options)


@pytest.mark.parametrize("divergence", [written, of_distributions])
@pytest.mark.parametrize(
    ("detached", "layers"), [("", ""), ("code", "`encoder.0`, `mean` and `spread`"), ("noise", "`spread`")]
)
def test_layers_that_the_divergence_of_a_code_alone_teaches_are_named(divergence, detached, layers):
    run = train_code(Autoencoder(detached), divergence, steps=100)
    assert [finding.code for finding in run.findings] == (["gradient-cut"] if layers else [])
    assert not layers or told(run, "gradient-cut").seen.startswith(f"The gradient of {layers} comes from the diverg")


def test_a_prior_that_is_learned_is_taught_by_the_divergence_alone_and_nothing_is_told():
    prior = nn.ParameterList([torch.zeros(4), torch.ones(4)])

    def from_prior(mean, spread):
        normal = torch.distributions.Normal
        return torch.distributions.kl_divergence(normal(mean, (spread / 2).exp()), normal(*prior))

    model = Autoencoder()
    model.prior = prior
    assert not train_code(model, from_prior, steps=60).findings


@pytest.mark.parametrize(("detached", "codes"), [("", []), ("code", ["gradient-cut"])])
def test_one_layer_that_makes_mean_and_spread_is_named(detached, codes):
    run = train_code(Autoencoder(detached, shared=True), steps=40)
    assert [finding.code for finding in run.findings] == codes


@pytest.mark.parametrize(
    ("divergence", "first"), [(written, "Lower the weight"), (with_free_bits, "First see whether")]
)
def test_a_collapsed_code_is_told_with_what_is_known_of_its_gradient(divergence, first):
    finding = told(train_code(Autoencoder(), divergence, 1000.0, steps=150), "output-constant")
    assert finding.advice.startswith(first)


@pytest.mark.parametrize("divergence", [written, of_distributions])
def test_a_divergence_that_is_subtracted_is_told_and_not_clipped(divergence):
    run = train_code(Autoencoder(), divergence, -1.0, steps=300)
    assert run.findings[0].code == "negated-loss"
    assert "divergence of the code" in run.findings[0].seen
    assert not any("clip" in finding.advice.lower() for finding in run.findings)


def test_a_wrong_sign_is_told_with_the_loss_that_broke_before_it_could_be_told_itself():
    finding = told(
        train_code(Autoencoder(), weight=-1.0, optimizer=partial(sgd, rate=1.0), steps=20), "loss-not-finite"
    )
    assert "subtracted from the loss" in finding.seen
    assert finding.advice.startswith("Change the sign")


@pytest.mark.parametrize(
    ("losses", "unlimited"),
    [((3.0, -40.0, -9e7, math.nan), True), ((3.0, 2.0, -math.inf), True), ((1e-9, -0.5, math.nan), False)],
)
def test_a_loss_that_fell_by_decades_below_zero_before_it_broke_has_no_lower_limit(losses, unlimited):
    history = History()
    for number, loss in enumerate(losses):
        findings = add_record(history, Record(step=10 * number, seconds=0.0, tier="economy", loss=loss, lr=(0.1,)))
    [finding] = findings
    assert finding.code == "loss-not-finite"
    assert ("it has no lower limit" in finding.seen) is unlimited
    assert ("wrong sign" in finding.advice) is unlimited
    assert not unlimited or "clip" not in finding.advice.lower()
