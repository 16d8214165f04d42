"""The hooks around a loop: nothing is changed, and the right things are measured."""

from __future__ import annotations

import inspect
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import InputError
from normscope.doctor.monitor.watching import watch
from normscope.listening.calls import row_variance

from ..net import Net
from .training import batches, losses, network, run_watched, take_step

RICH = {"economy": 1, "standard": 2, "full": 3}


def hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[int]:
    found = [
        len(getattr(module, name))
        for module in model.modules()
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    ]
    return [*found, len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)]


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("kind", ["conv", "mlp", "transformer"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_training_is_the_same_to_the_last_bit(kind: str, optimizer: Any) -> None:
    alone, model, _ = losses(kind, 7, optimizer=optimizer)
    watched, other, run = losses(kind, 7, optimizer=optimizer, watched=lambda m, o: watch(m, o, every=RICH))
    assert watched == alone
    for (name, one), two in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
    assert [record.step for record in run.records] == list(range(7))
    assert all(record.loss == pytest.approx(loss, rel=1e-6) for record, loss in zip(run.records, alone))


def test_nothing_is_left_behind_also_after_an_error() -> None:
    model = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = hooks(model, optimizer)
    with pytest.raises(RuntimeError, match="mine"), watch(model, optimizer, every=1):  # noqa: PT012
        take_step(model, optimizer, torch.randn(4, 72))
        raise RuntimeError("mine")
    assert hooks(model, optimizer) == before
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_forward_that_raises_is_the_users_and_listening_ends() -> None:
    model = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1) as run:
        take_step(model, optimizer, torch.randn(4, 72))
        with pytest.raises(RuntimeError):
            model(torch.randn(4, 71))
        assert not torch.overrides._get_current_function_mode_stack()
        take_step(model, optimizer, torch.randn(4, 72))
    assert [record.step for record in run.records] == [0, 1]


def test_evaluation_in_between_is_not_measured() -> None:
    model = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1) as run:
        model.eval()
        model(100 * torch.randn(4, 72))
        model.train()
        take_step(model, optimizer, torch.randn(4, 72))
    [record] = run.records
    assert len(record.of("normalizer", "log10_variance")) == 2
    assert all(value < 1.0 for value in record.of("normalizer", "log10_variance"))


def test_accumulated_gradients_are_one_step() -> None:
    _, _, run = losses("mlp", 4, accumulate=3, watched=lambda m, o: watch(m, o, every=2))
    assert [record.step for record in run.records] == [0, 2]
    assert run.step == 4


def test_gradients_and_sizes_are_those_of_torch() -> None:
    model = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1) as run:
        model(torch.randn(4, 72)).square().sum().backward()
        gradient, size = model[0].weight.grad.norm().hypot(model[0].bias.grad.norm()), model[7].weight.norm()
        size = float(size.hypot(model[7].bias.norm()).detach().log10())
        optimizer.step()
    [record] = run.records
    assert record.of("weight", "log10_gradient")[0] == pytest.approx(float(gradient.log10()), abs=1e-5)
    assert record.of("weight", "log10_size")[2] == pytest.approx(size, abs=1e-5)


def test_sparse_gradients_count() -> None:
    totals = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(10, 4, sparse=sparse), nn.Flatten(), nn.Linear(12, 2))
        run = run_watched(model, torch.tensor([[1, 2, 2], [2, 3, 4]]), steps=1)
        totals.append(run.records[0].total["log10_gradient"])
    assert totals[0] == pytest.approx(totals[1], abs=1e-6)


@pytest.mark.parametrize("loss", ["0.5", None, torch.ones(3), torch.ones(0), torch.tensor(1j), [0.5]])
def test_a_loss_that_is_no_number_is_refused(loss: Any) -> None:
    model = network("mlp")
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1)) as run, pytest.raises(InputError, match="loss is a"):
        run.observe(loss=loss)


@pytest.mark.parametrize("loss", [1, 1.0, np.float32(1.0), torch.ones(()), torch.ones(1, 1), torch.tensor(1)])
def test_a_loss_is_a_number_of_any_kind(loss: Any) -> None:
    model = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1) as run:
        for x, y in batches("mlp", 1):
            F.cross_entropy(model(x), y).backward()
            run.observe(loss=loss)
            optimizer.step()
    assert run.records[0].loss == 1.0


@pytest.mark.slow
def test_time_spent_inside_the_forward_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*args: Any, **kwargs: Any) -> torch.Tensor:
        time.sleep(0.01)
        return row_variance(*args, **kwargs)

    monkeypatch.setattr("normscope.doctor.monitor.forward_listening.row_variance", slow)
    _, _, run = losses("layers", 5, watched=lambda m, o: watch(m, o, every=1))
    assert run._hooks.budget.spent > 0.01 * 2 * 4  # two layers, all steps but the first
    monkeypatch.setattr("normscope.listening.calls.row_variance", slow)
    _, _, run = losses("layers", 5, watched=lambda m, o: watch(m, o, every=1, tier="standard"))
    assert run._hooks.budget.spent > 0.01 * 2 * 5


def test_a_folder_that_goes_on_with_another_model_is_told(tmp_path: Path) -> None:
    losses("mlp", 2, watched=lambda m, o: watch(m, o, every=1, log=tmp_path))
    with pytest.warns(UserWarning, match="other layers than this model"):
        _, _, run = losses("conv", 2, watched=lambda m, o: watch(m, o, every=1, log=tmp_path))
    assert [record.step for record in run.records] == [0, 1, 2, 3]
    assert run.records[0].values == {}


def test_scale_invariant_weights_turn_and_do_not_grow_at_once() -> None:
    """In front of a BatchNorm a gradient is orthogonal to each row: the norm moves in second order only."""
    _, _, run = losses("mlp", 3, watched=lambda m, o: watch(m, o, every=1), lr=1e-3)
    for record in run.records:
        rotation, radial = record.of("weight", "rotation")[0], record.of("weight", "radial")[0]
        assert rotation is not None and radial is not None  # noqa: PT018
        assert abs(radial) < 0.02 * rotation
        assert record.of("weight", "rotation")[2] is None


@pytest.mark.parametrize("scaled", [False, True])
def test_a_gradient_scaler_is_seen_through(scaled: bool) -> None:
    def gradients(scale: float | None) -> list[float]:
        model = network("mlp")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        torch.manual_seed(0)
        with watch(model, optimizer, every=1) as run:
            for _ in range(3):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=scaled):
                    loss = model(torch.randn(8, 72)).square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        return [record.total["log10_gradient"] for record in run.records]

    assert gradients(1024.0) == pytest.approx(gradients(None), abs=1e-2 if scaled else 1e-4)


@pytest.mark.slow
def test_a_compiled_model_is_measured_by_a_pass_aside() -> None:
    def compiled(model: nn.Module) -> nn.Module:
        return torch.compile(model, backend="aot_eager")

    alone, _, _ = losses("mlp", 4, prepared=compiled)
    watched, _, run = losses("mlp", 4, prepared=compiled, watched=lambda m, o: watch(m, o, every=1))
    assert watched == alone
    _, _, plain = losses("mlp", 4, watched=lambda m, o: watch(m, o, every=1))
    for one, two in zip(run.records, plain.records, strict=True):
        assert one.of("normalizer", "log10_variance")[0] == pytest.approx(
            two.of("normalizer", "log10_variance")[0], abs=1e-3
        )
    assert run.records[0].of("weight", "rotation")[0] is not None


def test_a_model_compiled_in_place() -> None:
    def compiled(model: nn.Module) -> nn.Module:
        model.compile(backend="aot_eager")
        return model

    alone, _, _ = losses("mlp", 3, prepared=compiled)
    watched, _, run = losses("mlp", 3, prepared=compiled, watched=lambda m, o: watch(m, o, every=1))
    assert watched == alone
    assert all(record.of("normalizer", "log10_variance") for record in run.records)


def test_a_watcher_that_sees_no_forward_says_so_once() -> None:
    model = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught, watch(model, optimizer, every=1) as run:
        warnings.simplefilter("always")
        for _ in range(8):
            model.forward(torch.randn(4, 72)).sum().backward()
            optimizer.step()
            assert bool(caught) == (run.step >= 3), "within a few steps"
    assert [("no forward" in str(item.message)) for item in caught if "normscope" in str(item.message)] == [True]
    assert run.records == ()


def test_what_cannot_be_watched_is_refused() -> None:
    model = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="trains no parameter"):
        watch(network("mlp"), optimizer)
    with pytest.raises(InputError, match=r"not a torch\.nn\.Module"):
        watch("model", optimizer)
    with pytest.raises(InputError, match=r"not a torch\.optim\.Optimizer"):
        watch(model, "sgd")
    with pytest.raises(InputError, match="no tier"):
        watch(model, optimizer, tier="luxury")
    with pytest.raises(InputError, match="number of steps"):
        watch(model, optimizer, every=0)


def test_sinks_get_every_record_and_one_that_fails_is_left_out(tmp_path: Path) -> None:
    got: list[int] = []

    def broken(record: Any, findings: Any) -> None:
        raise OSError("the disk is full")

    with pytest.warns(UserWarning, match="sink") as caught:
        losses("mlp", 4, watched=lambda m, o: watch(m, o, every=1, sinks=[broken, lambda r, f: got.append(r.step)]))
    assert len(caught) == 1
    assert got == [0, 1, 2, 3]


class Counting(nn.Module):
    """Keeps state of its own that a forward moves."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls, self.generator = network("mlp"), 0, torch.Generator().manual_seed(0)

    def forward(self, *, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x + 0.1 * torch.randn(x.shape, generator=self.generator))


def test_the_model_is_run_by_the_loop_alone() -> None:
    """No forward is added: state outside of buffers, hooks of the user and caches see nothing."""
    model, seen = Counting(), []
    model.inner.register_forward_hook(lambda *args: seen.append(type(args[2])))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1) as run:
        for _ in range(3):
            model(x=torch.randn(4, 72)).sum().backward()
            optimizer.step()
    assert model.calls == 3
    assert seen == [torch.Tensor] * 3
    assert len(run.records) == 3


@pytest.mark.parametrize("change", ["kwarg", "size", "batch", "momentum"])
def test_what_changes_after_the_first_forward_is_no_error(change: str) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv1d(2, 4, 1), nn.GroupNorm(2, 4)
            self.batch, self.last = nn.BatchNorm1d(4), nn.LayerNorm(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(input=self.batch(self.norm(self.first(x))).mean(2))

    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    with watch(model, optimizer, every=1) as run:
        for step in range(4):
            if change == "momentum" and step == 2:
                model.batch.momentum = None
            samples = 3 if change == "batch" and step == 2 else 4
            x = torch.randn(samples, 2, 7 + (step if change == "size" else 0))
            with torch.no_grad():
                inner = model.first(x)
                sets = inner.double().reshape(len(x), 2, -1).var(dim=2, correction=0)
                channels = model.norm(inner).double().var(dim=(0, 2), correction=0)
                expected.append([float(sets.log10().mean()), float(channels.log10().mean())])
            take_step(model, optimizer, x)
    assert [record.step for record in run.records] == [0, 1, 2, 3]
    for record, variances in zip(run.records, expected, strict=True):
        *found, last = record.of("normalizer", "log10_variance")
        assert found == pytest.approx(variances, abs=1e-3)
        assert last is not None


def test_a_run_is_watched_once() -> None:
    model = network("mlp")
    run = watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with run, pytest.raises(InputError, match="already"):
        run.__enter__()


def test_double_precision_is_measured() -> None:
    model = network("mlp").double()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    with watch(model, optimizer, every={"standard": 1}) as run:
        take_step(model, optimizer, torch.randn(4, 72, dtype=torch.float64))
        optimizer.param_groups[0]["lr"].fill_(7.0)
    [record] = run.records
    assert record.lr == pytest.approx((0.1,))
    assert record.of("weight", "log10_gradient")[0] is not None


def test_no_hook_stays_on_a_leaf() -> None:
    """A parameter that goes into a block as its input keeps no hook of the steps that were measured."""

    model = Net(
        lambda net, x: net.last(net.first(net.prompt) + x),
        prompt=nn.Parameter(torch.ones(4, 3)),
        first=nn.Linear(3, 3),
        last=nn.Linear(3, 2),
    )
    run_watched(model, torch.randn(4, 3), every={"standard": 1})
    assert not model.prompt._backward_hooks


def test_scales_are_those_of_the_forward_not_of_the_step() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LayerNorm(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    gains = []
    with watch(model, optimizer, every=1) as run:
        for _ in range(3):
            x = torch.randn(16, 3)
            with torch.no_grad():
                variance = model[0](x).double().var(dim=0, correction=0)
                gains.append(float((model[1].weight.abs() / (variance + 1e-5).sqrt()).max().log10()))
            take_step(model, optimizer, x)
    found = [record.of("normalizer", "log10_gain")[0] for record in run.records]
    assert found == pytest.approx(gains, abs=1e-4)


def test_what_could_not_be_measured_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr("normscope.listening.calls.row_variance", broken)
    losses("mlp", 2, watched=lambda m, o: watch(m, o, every=1, log=tmp_path))
    assert ns.Run(tmp_path).metadata["notes"] == ["5 (rms_norm) could not be measured"]


def test_modules_that_are_nested_as_deeply_as_they_can_run_alone_can_be_watched() -> None:
    model: nn.Module = nn.Linear(4, 4)
    for _ in range((sys.getrecursionlimit() - len(inspect.stack()) - 100) // 4):  # a module takes four calls alone
        model = nn.Sequential(model)
    limit = sys.getrecursionlimit()
    assert len(run_watched(model, torch.ones(2, 4), tier="standard").records) == 3
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize("tier", ["economy", "standard", "full"])
def test_layers_inside_of_vmap_leave_the_rest_of_the_record(tier: str) -> None:
    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.ReLU())
            self.last = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.last(torch.vmap(self.inner)(x))
            return made

    run = run_watched(Mapped(), torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), tier=tier)
    assert len(run.records) == 3
    assert None not in run.records[-1].of("weight", "log10_norm")


def test_weights_of_inference_mode_are_refused_by_torch_and_not_by_watch() -> None:
    with torch.inference_mode():
        model = nn.Linear(4, 2)
    with pytest.raises(RuntimeError, match="nference"), pytest.warns(UserWarning, match="not measured"):
        run_watched(model, torch.ones(2, 4))


def test_batch_norms_in_eval_mode_estimate_nothing_from_a_small_batch() -> None:
    codes = {}
    for training in (True, False):
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        model[1].train(training)
        run = run_watched(model, torch.randn(2, 4, generator=torch.Generator().manual_seed(0)), steps=60, every=5)
        codes[training] = {finding.code for finding in run.findings}
    assert "small-batch" in codes[True]
    assert "small-batch" not in codes[False]
