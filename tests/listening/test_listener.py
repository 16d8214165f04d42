"""One listener: audits and runs see the same layers, at the same sites, with the same statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import TorchDispatchMode

from normscope.doctor.facts.data import run_over_data
from normscope.doctor.monitor.forward_listening import FunctionListener
from normscope.doctor.monitor.forward_record import ForwardRecord
from normscope.doctor.monitor.schedule import Tier
from normscope.listening.listener import LayerListener, Names, UnitAxis


class Functional(nn.Module):
    """Layers without modules, one module that runs twice, and one that is made on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.twice = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(F.linear(x, self.weight), (6,))
        x = self.twice(self.twice(x) @ self.weight)
        return F.relu(nn.LayerNorm(6)(torch.addmm(self.weight[0], x, self.weight)))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4),
        nn.ReLU(), nn.ConvTranspose2d(4, 2, 2), nn.InstanceNorm2d(2, affine=True), nn.Flatten(), nn.Linear(50, 3),
        nn.RMSNorm(3),
    )  # fmt: skip


def parametrized() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), nn.BatchNorm1d(5), nn.ReLU())


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (convolutions, (3, 1, 6, 6)),
    "functions": (Functional, (3, 6)),
    "parametrized": (parametrized, (3, 6)),
    "frozen statistics": (lambda: convolutions().eval(), (3, 1, 6, 6)),
}


def network(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    return build(), torch.randn(shape)


def heard(model: nn.Module, x: Tensor, tier: Tier = Tier.FULL) -> ForwardRecord:
    with FunctionListener(model).recording(tier, readers=True) as seen:
        model(x)
    return seen


@pytest.mark.parametrize("name", NETWORKS)
def test_audits_and_runs_see_the_same(name: str) -> None:
    model, x = network(name)
    audited, run = run_over_data(model, [x]), heard(model, x)
    assert set(audited.normalizers) == set(run.normalizers)
    assert set(audited.weights) == set(run.weights)
    assert set(audited.units) == set(run.dead)
    assert [site for site in audited.order if site in run.weights] == list(run.weights)
    assert set(audited.order) == {*run.weights, *run.normalizers}, "these have rows"
    for site, over in audited.normalizers.items():
        seen = run.normalizers[site]
        assert (over.entries, over.uses_running, over.eps) == (seen.entries, seen.stored, seen.eps)
        least = seen.variance.amin(0).double()
        torch.testing.assert_close(over.least_variance, least.expand_as(over.least_variance), rtol=1e-5, atol=0.0)
    for site, units in audited.units.items():
        assert float(units.dead.double().mean()) == pytest.approx(float(run.dead[site]))


def hooks() -> list[int]:
    return [len(held) for held in (modules._global_forward_hooks, modules._global_forward_pre_hooks)]


@pytest.mark.parametrize("listen", [lambda m, x: run_over_data(m, [x]), heard])
def test_nothing_stays_behind_even_if_the_model_raises(listen: Callable[..., Any]) -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no")

    model, x = network("convolutions")
    before = hooks()
    listen(model, x)
    broken = nn.Sequential(model, Raises())
    if listen is heard:
        with pytest.raises(RuntimeError, match="no"):
            listen(broken, x)
    else:
        assert listen(broken, x).error.startswith("the model raises RuntimeError: no, on batch 1 (shapes [")
    assert hooks() == before
    assert not torch.overrides._get_current_function_mode_stack()


class Failing(LayerListener):
    """Fails at whatever it sees."""

    def fail(self, *args: Any) -> None:
        raise ArithmeticError

    normalizer = weight = units = fail


def test_what_fails_is_noted_and_the_model_goes_on() -> None:
    model, x = network("convolutions")
    expected = model(x)
    listener = Failing(model)
    with listener.listening():
        assert torch.equal(model(x), expected)
    run = heard(model, x)
    assert listener.lost == {*run.weights, *run.normalizers, *run.dead}


class Operators(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def operators(run: Callable[[], Any]) -> Counter[str]:
    with Operators() as counted:
        run()
    return counted.names


@pytest.mark.parametrize(("tier", "least"), [(Tier.ECONOMY, 6), (Tier.FULL, 12)], ids=["economy", "full"])
def test_a_watched_forward_costs_few_operators_and_waits_for_no_device(tier: Tier, least: int) -> None:
    """For each block: what a BatchNorm is given, its variance and copies of its scales and running variance.

    Above economy: which units of the ReLU were on.
    """
    torch.manual_seed(0)
    layers = [(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(3)]
    model, x = nn.Sequential(*(layer for block in layers for layer in block)), torch.randn(2, 4, 5, 5)
    extra = operators(lambda: heard(model, x, tier))
    extra.subtract(operators(lambda: model(x)))
    assert sum(extra.values()) <= 3 * least, +extra
    assert not extra["_local_scalar_dense"], "an answer of the device was waited for"


# ---- names of modules, and along which dimension units lie


def test_names_are_those_of_torch_until_a_module_moves() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)), nn.ReLU())
    model.register_parameter("own", nn.Parameter(torch.ones(2)))
    model[1][0].weight = model[0].weight  # tied: it has the first of its names
    names = Names(model)
    assert names.parameters(model) == dict(model.named_parameters())
    held = dict(model.named_parameters())
    model.insert(0, nn.Linear(4, 4, bias=False))
    moved = names.parameters(model)
    assert list(moved) == ["own", "0 (new).weight", "0.weight", "0.bias", "1.0.bias"]
    assert all(moved[name] is parameter for name, parameter in held.items())


@pytest.mark.parametrize(
    ("output", "dim", "last", "shape", "axis"),
    [
        ((2, 5, 4, 4), 1, False, (2, 5, 4, 4), 1),
        ((2, 5, 5, 5), 1, False, (2, 5, 5, 5), 1),  # both fit
        ((2, 5, 4, 4), 1, False, (2, 16, 5), 2),  # an image as tokens
        ((2, 7, 6), -1, True, (2, 7, 6), 2),
        ((2, 6, 6), -1, True, (2, 6, 6), 2),
        ((2, 7, 6), -1, True, (2, 6, 7), 1),  # transposed on its way
        ((2, 7, 6), -1, True, (2, 3, 4), 2),  # none fits
        ((2, 6), -1, True, (2, 12), 1),
        ((6,), -1, True, (2, 3, 6), 2),  # no batch: where the layer has them
    ],
)
def test_units_lie_where_the_layer_before_has_its_channels(
    output: tuple[int, ...], dim: int, last: bool, shape: tuple[int, ...], axis: int
) -> None:
    units = UnitAxis()
    units.follow(torch.empty(output), dim, last=last)
    assert units.of(torch.empty(shape)) == axis


class Tokens(nn.Module):
    """A table of 5 tokens of width 3, whose second entry is never positive; then a recurrent layer."""

    def __init__(self, recurrent: bool) -> None:
        super().__init__()
        self.first = nn.Conv1d(4, 4, 1)
        self.table = nn.Embedding.from_pretrained(torch.tensor([1.0, -1.0, 2.0]).expand(5, 3).clone())
        self.recurrent = nn.GRU(3, 6, batch_first=True) if recurrent else None

    def forward(self, tokens: Tensor) -> Tensor:
        self.first(torch.ones(1, 4, 2))
        x = self.table(tokens)
        return torch.relu(x if self.recurrent is None else self.recurrent(x)[0])


@pytest.mark.parametrize(("recurrent", "width"), [(False, 3), (True, 6)])
def test_embeddings_and_recurrent_layers_have_their_channels_last(recurrent: bool, width: int) -> None:
    """Also behind a convolution, and with as many tokens as the convolution has channels."""
    data = run_over_data(Tokens(recurrent), [torch.tensor([[0, 1, 2, 3]] * 3)])
    (units,) = data.units.values()
    assert len(units.dead) == width
    assert recurrent or units.dead.tolist() == [False, True, False]
