"""Alarms about steps that teach nothing, data, losses put together wrongly, modes and validations, on tiny runs."""

import contextlib
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import InputError
from normscope.core.finding import figure

from ..net import Net


def network(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), *between, nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def train(
    model, optimizer, *, steps=60, every=10, loss=F.cross_entropy, batch=None, after=None, validate=None, observed=True
):
    """Watch a small classification; `batch(step, x, y)` changes a batch, `after(step)` comes after each step.

    `validate(step)` gives the figures of a validation every ten steps.
    """
    torch.manual_seed(1)
    rule = torch.randn(8, 4)
    with ns.watch(model, optimizer, every=every, panel=False) as run:
        for step in range(steps):
            x = torch.randn(32, 8)
            y = (x @ rule).argmax(1)
            x, y = (x, y) if batch is None else batch(step, x, y)
            optimizer.zero_grad()
            value = loss(model(x), y)
            if observed:
                run.observe(loss=value)
            value.backward()
            optimizer.step()
            if after is not None:
                after(step)
            if validate is not None and step % 10 == 9:
                run.log_metrics(**validate(step))
    return run


def told(run, code):
    """Return the one alarm of a code."""
    [finding] = [finding for finding in run.findings if finding.code == code]
    assert finding.severity >= ns.Severity.WARNING
    return finding


def warnings_of(run):
    return [(finding.code, finding.where) for finding in run.findings if finding.severity >= ns.Severity.WARNING]


def sgd(model, rate=0.1, **more):
    return torch.optim.SGD(model.parameters(), lr=rate, **more)


def test_a_healthy_run_raises_none_of_them():
    model = network()
    run = train(model, sgd(model), steps=200, validate=lambda step: {"val_loss": 1.0 / (1 + step)})
    assert not run.findings


@pytest.mark.parametrize("count", [24, 60, 100, 512])
def test_a_batch_that_is_all_the_data_is_no_alarm(count):
    kept, model = (torch.randn(count, 8), torch.randint(0, 4, (count,))), network()
    run = train(model, sgd(model), batch=lambda step, x, y: kept)
    expected = [("same-batch", ns.Severity.INFO)] if count <= 64 else []
    assert [(finding.code, finding.severity) for finding in run.findings] == expected


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


@pytest.mark.parametrize(("rise", "severity"), [(1.4, ns.Severity.INFO), (3.0, ns.Severity.WARNING)])
def test_a_validation_loss_that_rises_while_the_accuracy_holds_is_a_note_while_it_rises_little(rise, severity):
    model = network()
    run = train(model, sgd(model), validate=lambda step: {"val_loss": rise if step > 9 else 1.0, "val_accuracy": 0.5})
    assert {f.severity for f in run.findings if f.code in ("overfitting", "validation-worse")} == {severity}


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


# ---- loops that report nothing

train_silently = partial(train, steps=120, observed=False)


def test_a_warm_up_that_never_gets_anywhere_is_told_and_a_long_one_is_not():
    for length, codes in ((100_000, [("weights-still", "")]), (100, [])):
        model = network()
        optimizer = sgd(model)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step, n=length: min(1.0, (step + 1) / n))
        run = train_silently(model, optimizer, steps=200, after=lambda step, s=schedule: s.step())
        assert warnings_of(run) == codes


def test_a_group_with_next_to_no_rate_is_named():
    model = network()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 1e-8}, {"params": model[2:].parameters()}], 0.01
    )
    finding = told(train_silently(model, optimizer, steps=60), "weights-still")
    assert finding.where == "0"
    assert "rate" in finding.seen


@pytest.mark.parametrize(("rates", "told_of"), [((0.0, 0.01), 1), ((0.0, 0.0), 0), ((0.01, 0.01), 0)])
def test_a_group_without_a_rate_is_noted_beside_one_that_learns(rates, told_of):
    model = network()
    groups = [{"params": part.parameters(), "lr": rate} for part, rate in zip((model[0], model[2:]), rates)]
    run = train_silently(model, torch.optim.SGD(groups, 0.01), steps=60)
    notes = [finding for finding in run.findings if "learning rate of `0.weight`" in finding.seen]
    assert [(finding.code, finding.severity, finding.where) for finding in notes] == [
        ("weights-still", "info", "0")
    ] * told_of


def test_a_constraint_that_leaves_room_to_learn_raises_nothing():
    model = network()

    @torch.no_grad()
    def constrain(step):
        model[2].weight.mul_((30.0 / model[2].weight.norm()).clamp(max=1.0))

    assert not warnings_of(
        train_silently(model, torch.optim.Adam(model.parameters(), 3e-3), steps=200, after=constrain)
    )


def test_steps_that_bfloat16_rounds_away_are_told():
    model = network().to(torch.bfloat16)
    run = train_silently(
        model,
        torch.optim.Adam(model.parameters(), 2e-5),
        batch=lambda step, x, y: (x.bfloat16(), y),
        loss=lambda output, y: F.cross_entropy(output.float(), y),
    )
    assert "float32" in told(run, "half-precision").advice


def test_gates_that_their_biases_keep_shut_are_named():

    model = Net(
        lambda net, x: net.head(net.recurrent(x[..., None])[0][:, -1]),
        recurrent=nn.LSTM(1, 16, batch_first=True),
        head=nn.Linear(16, 4),
    )
    nn.init.constant_(model.recurrent.bias_ih_l0, -8.0)
    finding = told(train_silently(model, torch.optim.Adam(model.parameters(), 1e-3), steps=80), "saturated-units")
    assert finding.where == "recurrent"
    assert "forget gate" in finding.advice


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


def test_inputs_around_another_mean_are_told():
    model = network()
    run = train_silently(model, sgd(model), batch=lambda step, x, y: (x + 1.5 * (step >= 60), y))
    finding = told(run, "data-changed")
    assert 60 < finding.step <= 90
    assert "their mean was" in finding.seen


@pytest.mark.parametrize(("last", "told_codes"), [(3.0, ["validation-worse"]), (0.62, [])])
def test_a_validation_that_is_lost_at_once_is_told_at_once(last, told_codes):
    model = network()
    values = [2.0, 1.5, 1.2, 0.9, 0.8, 0.7, 0.6, last]
    run = train_silently(model, sgd(model), steps=80, validate=lambda step: {"val_loss": values[step // 10]})
    assert [code for code, _ in warnings_of(run)] == told_codes


def test_a_small_model_that_settles_at_the_noise_within_its_first_records_raises_nothing():
    """The first step is half of the weights, and the second record has all there is to learn."""
    torch.manual_seed(10)
    x = torch.randn(200, 5)
    y = 0.2 * x[:, :1] + torch.randn(200, 1)
    model = nn.Linear(5, 1)
    assert not warnings_of(train(model, sgd(model, 0.3), loss=F.mse_loss, batch=lambda *_: (x, y)))


@pytest.mark.parametrize(("every", "since"), [(1, "infinite; it began at step 1."), (10, "at step 1, where the loss")])
def test_a_loss_that_is_infinite_before_it_is_nan_is_told_with_its_huge_outputs_and_inputs(every, since):
    """The forward is finite there: neither the loss function nor the targets are at fault."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    run = train(
        model,
        sgd(model, 0.1),
        every=every,
        loss=lambda output, y: F.mse_loss(output[:, 0], y.float()),
        batch=lambda step, x, y: (x * torch.tensor([1e5] + [1.0] * 7), y),
    )
    finding = told(run, "loss-not-finite")
    assert since in finding.seen
    assert "its outputs reach" in finding.seen
    assert "The inputs are not scaled" in finding.seen
    assert "targets" not in finding.seen + finding.advice
    assert finding.advice.startswith("Scale the inputs")


@pytest.mark.parametrize("large", [True, False])
def test_inputs_that_are_not_scaled_are_named_where_nothing_is_known_but_weights_that_broke(large):
    """No loss is observed, and between two records the weights have become NaN."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = sgd(model, 0.1 if large else 1e30)
    with ns.watch(model, optimizer, every=5, panel=False) as run:
        for _ in range(10):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(16, 8) * (1e5 if large else 1.0)), torch.randn(16, 1)).backward()
            optimizer.step()
    finding = told(run, "loss-not-finite")
    assert ("The inputs are not scaled" in finding.seen) is large
    assert finding.advice.startswith("Scale the inputs") is large


def test_outputs_that_are_huge_at_once_are_not_laid_to_steps():
    model = network()
    with torch.no_grad():
        model[-1].weight.mul_(1e25)
    finding = told(train(model, sgd(model), loss=lambda output, y: output.square().mean()), "loss-not-finite")
    assert "its outputs reach" in finding.seen
    assert "steps" not in finding.seen
    assert finding.advice.startswith("Initialise with smaller weights")


@pytest.mark.parametrize("every", [10, 50])
@pytest.mark.parametrize(("factor", "code"), [(100.0, "lr-too-high"), (1e10, "loss-not-finite")])
def test_a_rate_that_jumps_in_mid_run_is_told_with_the_step_and_both_rates(every, factor, code):
    """What it does to units and norms follows from it; neither a warm-up nor the first steps are spoken of."""
    model = network()
    optimizer = sgd(model, 0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor if step >= 250 else 1.0)
    run = train(model, optimizer, steps=351, every=every, after=lambda step: schedule.step())
    assert {finding.code for finding in run.findings} == {code}
    finding = told(run, code)
    assert f"The learning rate rose from 0.05 to {figure(0.05 * factor)} by step 250" in finding.seen
    assert finding.advice.startswith("Keep the learning rate at 0.05")
    words = str(run.findings).lower()
    assert "warm" not in words
    assert "first steps" not in words


def test_a_way_is_compared_with_the_steps_at_both_of_its_ends():
    """Records far apart: the rate rises at the last one, and what it does lies behind it."""
    model = network()
    optimizer = sgd(model, 0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e5 if step >= 100 else 1.0)
    run = train(model, optimizer, steps=101, every=50, after=lambda step: schedule.step())
    assert "weights-put-back" not in {finding.code for finding in run.findings}


def test_the_first_loss_is_the_one_before_steps_that_throw_it_at_once():
    model = network()
    run = train(model, sgd(model, 10.0), steps=25)
    start = run.records[0].loss
    assert run.history.first_loss > 1.5 * start
    assert f"it began at {figure(start)}." in told(run, "lr-too-high").seen
