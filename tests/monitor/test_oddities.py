"""Models and loops that are not usual: nothing changes, nothing stops, and no figure is wrong."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.core.errors import InputError
from normscope.doctor.monitor.forward_listening import compiled_functions
from normscope.doctor.monitor.watching import watch
from normscope.doctor.symptoms.registry import add_record

from ..net import Net
from .training import only_at_first


def fit(
    model: nn.Module,
    inputs: Callable[[int], Any],
    *,
    steps: int = 4,
    watched: dict[str, Any] | None = None,
    change: Callable[[int, nn.Module], None] = lambda step, model: None,
    optimizer: Any = torch.optim.SGD,
) -> tuple[list[float], Any]:
    """Train on the mean square of the output; return the losses and what watched them."""
    trained = optimizer([p for p in model.parameters() if p.requires_grad], lr=0.05)
    run, losses = None if watched is None else watch(model, trained, **{"every": 1, **watched}), []
    if run is not None:
        run.__enter__()
    for step in range(steps):
        change(step, model)
        trained.zero_grad()
        loss = model(inputs(step)).square().mean()
        loss.backward()
        trained.step()
        losses.append(float(loss.detach()))
    if run is not None:
        run.__exit__(None, None, None)
    return losses, run


def assert_unchanged(build: Callable[[], nn.Module], inputs: Callable[[int], Any], **options: Any) -> Any:
    """Train alone and watched; return what watched."""
    found = []
    for watched in (None, options):
        torch.manual_seed(0)
        found.append(fit(build(), inputs, watched=watched))
    assert found[0][0] == found[1][0]
    assert len(found[1][1].records) == 4
    return found[1][1]


def noise(*shape: int) -> Callable[[int], Tensor]:
    return lambda step: torch.randn(shape, generator=torch.Generator().manual_seed(step))


@torch.compile(backend="eager")
def gated(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight).relu() * torch.sigmoid(x)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    frozen = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).requires_grad_(False)
    model = Net(lambda net, x: net.head(net.frozen(x)), frozen=frozen, head=nn.Linear(8, 4))
    model.frozen.eval()
    return model


def lazy() -> nn.Module:
    model = nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.Linear(6, 2))
    model.add_module("unused", nn.Identity())
    model(torch.ones(2, 5))
    model.register_module("never", nn.ModuleList([nn.LazyLinear(3)])[0])
    return Net(lambda net, x: net.inner[2](net.inner[1](net.inner[0](x))), inner=model)


UNUSUAL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "a compiled function": (lambda: Net(lambda net, x: gated(x, net.fc.weight), fc=nn.Linear(6, 6)), (8, 6)),
    "attention in eval mode": (encoder, (3, 5, 8)),
    "lazy modules": (lazy, (4, 5)),
    "a sparse input": (lambda: nn.Sequential(Net(lambda net, x: torch.sparse.mm(
        x.to_sparse(), net.fc.weight.mT), fc=nn.Linear(6, 4)), nn.Linear(4, 2)), (5, 6)),
    "a product with a vector": (lambda: Net(lambda net, x: net.fc(x) @ net.fc.bias, fc=nn.Linear(6, 4)), (5, 6)),
    "complex weights": (lambda: Net(lambda net, x: F.linear(
        x.to(torch.complex64), net.fc.weight).abs(), fc=nn.Linear(6, 4, dtype=torch.complex64)), (5, 6)),
}  # fmt: skip


@pytest.mark.one_in(12)
@pytest.mark.parametrize("tier", ["economy", "full"])
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_models_train_as_they_do_alone(name: str, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.doctor.monitor.forward_listening.compiled_functions", compiled_functions)
    build, shape = UNUSUAL[name]
    run = assert_unchanged(build, noise(*shape), tier=tier)
    assert all(record.total["log10_gradient"] is not None for record in run.records)


def test_sparse_inputs_of_blocks_are_left_out() -> None:
    def build() -> nn.Module:
        first = Net(lambda net, x: torch.sparse.mm(x, net.fc.weight.mT), fc=nn.Linear(6, 4))
        return nn.Sequential(first, nn.Linear(4, 2))

    run = assert_unchanged(build, lambda step: noise(5, 6)(step).to_sparse(), tier="standard")
    assert [value is None for value in run.records[0].of("block", "log10_activation")] == [True, False]


def test_a_block_that_returns_its_parameter_keeps_no_hook() -> None:
    model = nn.Sequential(Net(lambda net, x: net.fc.weight, fc=nn.Linear(6, 4)), nn.Linear(6, 2))
    fit(model, noise(4, 6), watched={"tier": "standard"})
    assert not model[0].fc.weight._backward_hooks


def test_a_model_that_returns_nothing_is_measured() -> None:
    model = Net(lambda net, x: setattr(net, "loss", net.fc(x).square().mean()), fc=nn.Linear(6, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1) as run:
        model(torch.ones(3, 6))
        model.loss.backward()
        optimizer.step()
    assert run.records[0].of("weight", "log10_norm") != ()


def test_a_scripted_model_is_refused_and_nothing_stays(tmp_path: Any) -> None:
    scripted = torch.jit.script(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(scripted.parameters(), lr=0.1)
    with pytest.raises(InputError, match="scripted"):
        watch(scripted, optimizer, log=tmp_path)
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("options", [{"sinks": print}, {"sinks": [3]}, {"log": 123}, {"tier": ["a"]}])
def test_wrong_options_say_so(options: dict[str, Any]) -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(InputError):
        watch(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def batch_normed() -> nn.Module:
    torch.manual_seed(0)
    return Net(lambda net, x: net.bn(net.fc(x)), fc=nn.Linear(6, 4), bn=nn.BatchNorm1d(4))


def level(x: Tensor) -> float:
    return float(x.detach().var(0, correction=0).log10().mean())


@pytest.mark.parametrize("change", ["statistics off", "another module", "not called", "called twice"])
def test_a_batch_norm_that_changes_is_never_read_wrongly(change: str) -> None:
    """Each from the third step on: the variance is that of its input, or unknown."""
    expected: list[float | None] = []

    def forward(net: Any, x: Tensor) -> Tensor:
        y = net.fc(x) * 10.0**net.step
        late = net.step > 1
        unknown = ("another module", "not called", "called twice")
        expected.append(None if late and change in unknown else level(y))
        if late and change == "not called":
            return y
        return net.bn(net.bn(y)) if late and change == "called twice" else net.bn(y)

    def changed(step: int, model: nn.Module) -> None:
        model.step = step
        if step == 2 and change == "statistics off":
            model.bn.track_running_stats = False
        if step == 2 and change == "another module":
            model.bn = nn.BatchNorm1d(4)

    model = batch_normed()
    model.function = forward
    _, run = fit(model, noise(16, 6), watched={}, change=changed)
    for record, right in zip(run.records, expected, strict=True):
        [found] = record.of("normalizer", "log10_variance") or [None]
        assert found == (right if right is None else pytest.approx(right, abs=1e-4)), record.step


def test_batches_that_hide_their_shape_are_measured_anew() -> None:
    class Box:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    model = batch_normed()
    model.function = lambda net, box: net.bn(net.fc(box.x))
    inputs = {step: noise(32 if step < 2 else 3, 6)(step) for step in range(4)}
    expected = []
    model.fc.register_forward_hook(lambda module, args, made: expected.append(level(made)))
    _, run = fit(model, lambda step: Box(inputs[step]), watched={})
    found = [record.of("normalizer", "log10_variance")[0] for record in run.records]
    assert found == pytest.approx(expected, abs=1e-4)


def test_frozen_statistics_are_what_divides() -> None:
    model = batch_normed()
    model.bn.running_var.fill_(100.0)
    model.bn.eval()
    _, run = fit(model, noise(16, 6), watched={})
    record = run.records[0]
    assert record.of("normalizer", "log10_constant")[0] == pytest.approx(-1.0, abs=1e-4)
    norm = float(torch.linalg.matrix_norm(batch_normed().fc.weight.detach(), 2))
    assert record.of("weight", "log10_folded")[0] == pytest.approx(math.log10(norm) - 1.0, abs=0.02)


@pytest.mark.parametrize("entries", [1, 2, 3])
def test_constants_of_small_sets_are_norms_of_the_jacobian(entries: int) -> None:
    for layer in (nn.RMSNorm(entries, eps=1e-3), nn.LayerNorm(entries, eps=1e-3)):
        x = torch.tensor([[0.7, -0.2, 0.4][:entries]])
        model = nn.Sequential(nn.Linear(entries, entries), layer)
        with torch.no_grad():
            model[0].weight.copy_(torch.eye(entries))
            model[0].bias.zero_()
        largest = float(torch.linalg.matrix_norm(torch.func.jacrev(layer)(x[0]), 2))
        _, run = fit(model, lambda step, x=x: x, steps=1, watched={})
        found = run.records[0].of("normalizer", "log10_constant")[0]
        assert found == pytest.approx(math.log10(largest), abs=1e-4) if largest > 0 else found < -5


def test_a_linear_layer_along_another_dimension_is_not_scale_invariant() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    _, run = fit(model, noise(8, 4, 6), watched={})
    [weight] = run.history.of("weight")
    assert (weight.invariant, weight.normalizer) == (None, None)


def test_frozen_weights_have_a_size_and_tiny_gradients_too() -> None:
    model = nn.Linear(6, 4)
    model.weight.requires_grad_(False)
    size = math.hypot(float(model.weight.detach().norm()), float(model.bias.detach().norm()))
    _, run = fit(model, noise(8, 6), watched={}, steps=1)
    assert run.records[0].of("weight", "log10_size")[0] == pytest.approx(math.log10(size), abs=1e-5)
    model = nn.Linear(6, 4)
    _, run = fit(Net(lambda net, x: 1e-12 * net.fc(x), fc=model), noise(8, 6), watched={})
    assert -26.0 < run.records[-1].total["log10_gradient"] < -22.0


def test_a_loop_whose_steps_are_not_seen_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.doctor.monitor.unseen_training.STUCK_FORWARDS", 5)
    model = nn.Linear(6, 4)
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1)):
        for step in range(4):
            model(noise(3, 6)(step))
        with pytest.warns(UserWarning, match="no step of the optimizer is seen in 5 forwards"):
            model(noise(3, 6)(4))


def test_the_end_of_a_run_looks_for_alarms_whatever_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    only_at_first(monkeypatch, records=2)
    looked: list[bool] = []
    monkeypatch.setattr(
        "normscope.doctor.monitor.record_writer.add_record",
        lambda history, record, *, thorough=True: looked.append(thorough) or add_record(history, record),
    )
    fit(batch_normed(), noise(8, 6), watched={}, steps=8)
    assert looked[-1]
    assert not all(looked)


@pytest.mark.slow
def test_a_run_that_is_kept_keeps_no_model_alive() -> None:
    model: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    alive = weakref.ref(model), weakref.ref(model[0].weight)
    _, run = fit(model, noise(64, 4), watched={"tier": "full"})
    del model
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
    assert len(run.records) == 4
    assert run.findings == ()
    run.__exit__(None, None, None)  # once more does no harm
