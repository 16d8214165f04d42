"""What the first forward finds: which layers there are, how they are called, what of them is scale invariant."""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook

from normscope.doctor.monitor.run import Run
from normscope.doctor.monitor.watching import Watch, watch

from ..net import Net
from .training import losses, network, sgd, take_step, tiny_network


def stepped(model: nn.Module, x: Tensor, optimizer: Any = torch.optim.SGD, **options: Any) -> Watch:
    """One step on the mean squares of everything that the model returns."""
    decay = options.pop("weight_decay", 0.0)
    trained = optimizer(model.parameters(), lr=1e-6, weight_decay=decay)
    with watch(model, trained, every=1, **options) as run:
        made = model(x)
        sum(part.square().mean() for part in (made if isinstance(made, tuple) else (made,))).backward()
        trained.step()
    return run


def weights(run: Watch) -> dict[str, Any]:
    return {layer.name: layer for layer in run.history.layers if layer.kind == "weight"}


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


# ---- attention


def test_the_projections_of_attention_are_weight_layers() -> None:
    _, _, run = losses("transformer", 3, watched=lambda m, o: watch(m, o, every=1))
    parts = ("self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2")
    assert list(weights(run)) == [*(f"1.layers.{i}.{part}" for i in (0, 1) for part in parts), "3"]
    attention = network("transformer")[1].layers[0].self_attn
    first = run.records[0]
    found = dict(zip(weights(run), first.of("weight", "log10_norm"), strict=True))
    for part, matrix in (("in_proj", attention.in_proj_weight), ("out_proj", attention.out_proj.weight)):
        norm = float(torch.linalg.matrix_norm(matrix.detach(), 2))
        assert 0.8 * norm <= 10 ** found[f"1.layers.0.self_attn.{part}"] <= norm * (1 + 1e-5)
    assert weights(run)["1.layers.0.self_attn.in_proj"].parameters == (
        "1.layers.0.self_attn.in_proj_weight",
        "1.layers.0.self_attn.in_proj_bias",
    )
    assert all(value is not None for value in first.of("weight", "log10_gradient"))


def test_attention_of_other_sizes_has_three_projections() -> None:

    model = Net(
        lambda net, x: net.attention(x, x[..., :4], x[..., :6])[0],
        attention=nn.MultiheadAttention(8, 2, kdim=4, vdim=6, batch_first=True),
    )
    run = stepped(model, noise(3, 5, 8))
    assert list(weights(run)) == [f"attention.{part}_proj" for part in ("q", "k", "v", "out")]


# ---- what is not followed


def test_matrices_that_no_layer_uses_are_named(tmp_path: Any) -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixed, self.turned = nn.Parameter(noise(6, 6)), nn.Parameter(noise(6, 6))
            self.last = nn.utils.parametrizations.weight_norm(nn.Linear(6, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.last((self.turned @ torch.einsum("bi,ij->bj", x, self.mixed).T).T)

    stepped(Other(), noise(8, 6), log=tmp_path)
    run = Run(tmp_path)
    assert run.metadata["notes"] == ["no operator norm, in no product of norms: mixed, turned"]


# ---- weights that are made of others


WRAPPERS = [
    nn.utils.parametrizations.weight_norm,
    nn.utils.parametrizations.spectral_norm,
    lambda layer: torch.nn.utils.prune.l1_unstructured(layer, "weight", 0.5),
]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_sizes_and_gradients_are_of_all_that_a_weight_is_made_of(wrap: Any) -> None:
    model = nn.Sequential(wrap(nn.Linear(6, 8)), nn.BatchNorm1d(8), nn.Linear(8, 2))
    run = stepped(model, noise(16, 6), tier="standard")
    size, gradient = (run.records[0].of("weight", name)[0] for name in ("log10_size", "log10_gradient"))
    parameters = dict(model[0].named_parameters())
    assert len(parameters) >= 2
    held = torch.cat([p.detach().flatten() for p in parameters.values()])
    grads = torch.cat([p.grad.flatten() for p in parameters.values()])
    assert 10**size == pytest.approx(float(held.norm()), rel=1e-4)  # the step was of 1e-6
    assert 10**gradient == pytest.approx(float(grads.norm()), rel=1e-5)
    assert set(weights(run)["0"].parameters) == {f"0.{name}" for name in parameters}


def test_a_layer_that_is_changed_midway_ends_what_cannot_be_followed() -> None:
    model = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1, tier="full") as run, warnings.catch_warnings(record=True) as told:
        for step in range(5):
            if step == 2:
                torch.nn.utils.prune.l1_unstructured(model[0], "weight", 0.5)
            take_step(model, optimizer, noise(64, 4) + step)
    assert ["0: other parameters" in str(warning.message) for warning in told] == [True]
    for quantity in ("log10_size", "log10_gradient", "log10_moved"):
        known = [[value is not None for value in record.of("weight", quantity)] for record in run.records]
        assert known == [[True] * 3] * 2 + [[False, True, True]] * 3
    norm = float(torch.linalg.matrix_norm(model[0].weight_orig.detach() * model[0].weight_mask, 2))
    assert 10 ** run.records[-1].of("weight", "log10_norm")[0] == pytest.approx(norm, rel=0.1)


class Wrapped(nn.Module):
    """Adds something to a layer that stays as it is."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(4, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def changed(model: nn.Module, change: Any, tier: str) -> Watch:
    """Three steps of a network that is changed after the first."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1, tier=tier) as run, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(3):
            if step == 1:
                change(model)
            take_step(model, optimizer, noise(16, 4))
    return run


def replaced(model: nn.Sequential) -> None:
    model[0] = nn.Linear(4, 8)


def wrapped(model: nn.Sequential) -> None:
    model[0] = Wrapped(model[0])


def pushed(model: nn.Sequential) -> None:
    model.insert(0, nn.Linear(4, 4))


def swapped(model: nn.Sequential) -> None:
    model[1], model[2] = model[2], model[1]


def dropped(model: nn.Sequential) -> None:
    del model[1]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("tier", ["economy", "full"])
@pytest.mark.parametrize(
    ("change", "left"),
    [
        (replaced, (False, True, True)),
        (wrapped, (True, True, True)),
        (pushed, (True, True, True)),
        (swapped, (True, True, True)),
        (dropped, (True, False, True)),
    ],
)
def test_a_curve_is_that_of_one_module_wherever_it_stands(change: Any, left: tuple[bool, ...], tier: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False), nn.Linear(8, 2))
    own = list(model)
    run = changed(model, change, tier)
    assert list(weights(run)) == ["0", "1", "2", "3"]
    for quantity in ("log10_norm", "log10_size"):
        known = [[value is not None for value in record.of("weight", quantity)] for record in run.records]
        assert known == [[True] * 4, *[[*left, True]] * 2]
    for layer, norm in zip(own, run.records[-1].of("weight", "log10_norm"), strict=True):
        if norm is not None:
            assert 10**norm == pytest.approx(float(torch.linalg.matrix_norm(layer.weight.detach(), 2)), rel=0.1)


# ---- names


class TwoFamilies(nn.Module):
    """One module that calls two kinds of layers of each sort."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.matrix = nn.Parameter(0.3 * noise(4, 4, 3)), nn.Parameter(30 * noise(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(F.conv1d(x, self.kernel, padding=1), (8,))
        return F.group_norm(F.linear(x.mT, self.matrix).mT, 2)


def test_no_name_is_given_twice_and_curves_are_those_of_their_layers(tmp_path: Any) -> None:
    run = stepped(nn.Sequential(TwoFamilies(), nn.Flatten(), nn.Linear(32, 1)), noise(5, 4, 8), log=tmp_path)
    assert list(weights(run)) == ["0 (convolution)", "0 (linear)", "2"]
    read = Run(tmp_path)
    for kind, quantity in (("weight", "log10_norm"), ("normalizer", "log10_variance")):
        course = read.course(kind, quantity)
        assert [points[0][1] for points in course.values()] == pytest.approx(
            run.records[0].of(kind, quantity), rel=1e-5
        )  # six digits are written
    assert list(read.course("normalizer", "log10_variance")) == ["0 (layer_norm)", "0 (group_norm)"]


def test_a_normalizer_is_logged_with_the_size_of_its_batch_or_the_number_of_its_sets() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(5, 4), nn.LayerNorm(4), nn.GroupNorm(3, 3))
    layers = [layer for layer in stepped(model, noise(6, 3, 5)).history.layers if layer.kind == "normalizer"]
    assert [(layer.samples, layer.entries, layer.groups) for layer in layers] == [(6, 30, 1), (18, 4, 1), (18, 4, 3)]


# ---- units


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ((nn.Conv1d(2, 8, 3, padding=1), nn.ReLU()), (16, 2, 10)),
        ((nn.Conv2d(2, 8, 3, padding=1), nn.ReLU()), (16, 2, 5, 4)),
        ((nn.Linear(2, 8), nn.ReLU()), (16, 2)),
        ((nn.Linear(2, 8), nn.ReLU()), (16, 10, 2)),
        ((nn.Linear(2, 8), nn.ReLU()), (16, 3, 10, 2)),
    ],
)
def test_dead_units_are_counted_along_the_channels(layers: tuple[nn.Module, ...], shape: tuple[int, ...]) -> None:
    with torch.no_grad():
        layers[0].bias[:6] = -100.0
        layers[0].bias[6:] = 1.0
    assert stepped(nn.Sequential(*layers), noise(*shape), tier="standard").records[0].of("units", "dead") == (0.75,)


# ---- scale invariance


class Both(nn.Module):
    """Returns what it normalizes too, if asked to."""

    def __init__(self, *, both: bool) -> None:
        super().__init__()
        self.fc, self.bn, self.both = nn.Linear(3, 8), nn.BatchNorm1d(8), both

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        return (self.bn(y), y) if self.both else self.bn(y)


def test_what_the_model_returns_is_not_scale_invariant() -> None:
    assert weights(stepped(Both(both=False), noise(16, 3)))["fc"].invariant == "channel"
    assert weights(stepped(Both(both=True), noise(16, 3)))["fc"].invariant is None


class Scaling(nn.Module):
    """Normalizes what a layer makes, and may take it for the scales of another normalizer too."""

    def __init__(self, *, scales: bool, named: bool) -> None:
        super().__init__()
        self.fc, self.scales, self.named = nn.Linear(3, 8), scales, named

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        scale = y.reshape(8) if self.scales else torch.ones(8)
        other = {"weight": scale} if self.named else {}
        return F.layer_norm(y, (8,)) + F.layer_norm(noise(8), (8,), *(() if self.named else (scale,)), **other)


@pytest.mark.parametrize("named", [False, True])
def test_what_scales_another_normalizer_is_not_scale_invariant(named: bool) -> None:
    for scales, invariant in ((False, "layer"), (True, None)):
        run = stepped(Scaling(scales=scales, named=named), noise(1, 3))
        assert weights(run)["fc"].invariant == invariant


def test_transposed_convolutions_in_groups_are_not_cut_into_rows() -> None:
    for groups, invariant in ((1, "channel"), (4, None)):
        model = nn.Sequential(nn.ConvTranspose2d(4, 8, 3, groups=groups), nn.BatchNorm2d(8))
        layer = weights(stepped(model, noise(8, 4, 5, 5)))["0"]
        assert (layer.invariant, layer.groups) == (invariant, 8 if invariant else 0)


class Columns(nn.Module):
    """A linear layer as GPT-2 has it: its weight is `[inputs, outputs]`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(noise(inputs, outputs)), nn.Parameter(noise(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


@pytest.mark.parametrize(("inputs", "outputs"), [(3, 8), (6, 6)])
def test_channels_of_a_weight_that_is_not_transposed_are_its_columns(inputs: int, outputs: int) -> None:
    """So it has the figures of the same layer as `nn.Linear` has it; also where rows are as many as columns."""
    columns, rows = Columns(inputs, outputs), nn.Linear(inputs, outputs)
    with torch.no_grad():
        rows.weight.copy_(columns.weight.T)
        rows.bias.copy_(columns.bias)
    one, other = (
        stepped(nn.Sequential(layer, nn.BatchNorm1d(outputs)), noise(16, inputs)) for layer in (columns, rows)
    )
    assert weights(one)["0"].groups == weights(other)["0"].groups == outputs
    for quantity in ("log10_norm", "log10_group", "log10_group_min", "log10_group_max", "log10_effective_lr"):
        found, expected = (run.records[0].of("weight", quantity) for run in (one, other))
        assert found == pytest.approx(expected, rel=1e-5), quantity
        assert found[0] is not None


class MyAdam(torch.optim.Adam):
    pass


class MyAdamW(torch.optim.AdamW):
    pass


@pytest.mark.parametrize(
    ("optimizer", "coupled"),
    [
        (torch.optim.Adam, True),
        (MyAdam, True),
        (torch.optim.AdamW, False),
        (MyAdamW, False),
        (torch.optim.Adafactor, False),
        (torch.optim.SGD, False),
    ],
)
def test_decay_that_is_rescaled_is_known_by_the_classes_of_the_optimizer(optimizer: Any, coupled: bool) -> None:
    run = stepped(Both(both=False), noise(16, 3), optimizer=optimizer, weight_decay=0.1)
    assert weights(run)["fc"].coupled is coupled
    assert weights(run)["fc"].weight_decay == pytest.approx(0.1)


# ---- losses


def test_a_batch_that_is_left_out_counts_for_nothing() -> None:
    model = Both(both=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    with watch(model, optimizer, every=1) as run:
        for step in range(6):
            optimizer.zero_grad()
            x = noise(32, 3) + step
            loss = model(x * math.nan if step == 2 else x).sigmoid().mean()
            run.observe(loss=loss)
            if not loss.isfinite():
                model.bn.reset_running_stats()
                continue
            expected.append(float(loss.detach()))
            loss.backward()
            optimizer.step()
    assert [record.loss for record in run.records] == pytest.approx(expected)
    assert all(math.isfinite(record.of("normalizer", "log10_variance")[0]) for record in run.records)
    assert not [finding for finding in run.findings if finding.code == "loss-not-finite"]


@pytest.mark.parametrize("early", [True, False])
def test_losses_of_accumulated_gradients_are_averaged(early: bool) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with watch(model, optimizer, every=1) as run:
        for batch in range(4):
            loss = model(noise(8, 3) + batch).square().mean()
            seen.append(float(loss.detach()))
            if early:
                run.observe(loss=loss)
            loss.backward()
            if not early:
                run.observe(loss=loss)
        optimizer.step()
    assert run.records[0].loss == pytest.approx(sum(seen) / 4)


# ---- hooks of the user's own, which look at the outputs of weights or take part


KEPT: list[Any] = []


def mean(module: nn.Module, args: Any, made: Tensor) -> None:
    KEPT.append(made.mean().item())


def detached(module: nn.Module, args: Any, made: Tensor) -> None:
    KEPT.append(made.detach().flatten(1).norm(dim=1))


def view_of_it(module: nn.Module, args: Any, made: Tensor) -> None:
    KEPT.append((made.t().reshape(-1).abs() + 1).max().item())


def without_gradients(module: nn.Module, args: Any, made: Tensor) -> None:
    with torch.no_grad():
        KEPT.append(made * 2)


def same_again(module: nn.Module, args: Any, made: Tensor) -> Tensor:
    made.std().item()
    return made


def by_operator(module: nn.Module, args: Any, made: Tensor) -> None:
    made += 1.0


def for_the_loss(module: nn.Module, args: Any, made: Tensor) -> None:
    KEPT.append(2 * made.square().mean())


def another(module: nn.Module, args: Any, made: Tensor) -> Tensor:
    return made + 1.0


def in_place(module: nn.Module, args: Any, made: Tensor) -> None:
    made.add_(1.0)


class Caller:
    """A hook that is an object."""

    def __call__(self, module: nn.Module, args: Any, made: Tensor) -> None:
        KEPT.append(float(made.std()))


def invariant(model: nn.Sequential) -> str | None:
    optimizer = sgd(model)
    with watch(model, optimizer, every=1) as run:
        take_step(model, optimizer)
    KEPT.clear()
    return run.history.of("weight")[0].invariant


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "hook",
    [mean, detached, view_of_it, without_gradients, same_again, Caller(), functools.partial(mean)],
    ids=["mean", "detached", "view", "no grad", "same", "object", "partial"],
)
def test_hooks_that_only_look_leave_weights_invariant(hook: Any) -> None:
    model = tiny_network()
    model[0].register_forward_hook(hook)
    assert invariant(model) == "channel"
    model = tiny_network()

    def before(module: nn.Module, args: Any) -> None:
        hook(module, args, args[0])

    model[1].register_forward_pre_hook(before)
    assert invariant(model) == "channel"


@pytest.mark.parametrize("hook", [for_the_loss, another, in_place, by_operator])
def test_hooks_that_take_part_do_not(hook: Any) -> None:
    model = tiny_network()
    model[0].register_forward_hook(hook)
    assert invariant(model) is None


def test_what_the_model_itself_reads_does_not_count_as_a_hook() -> None:
    class Reads(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            y = self[0](x)
            return super().forward(x) * y.detach().mean()

    model = Reads(*tiny_network())
    model[0].register_forward_hook(mean)
    assert invariant(model) is None


def test_a_hook_on_all_modules_that_only_looks_leaves_weights_invariant() -> None:
    handle = register_module_forward_hook(mean)
    try:
        assert invariant(tiny_network()) == "channel"
    finally:
        handle.remove()
