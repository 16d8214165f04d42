"""Feeds: every claim of invariance is put to the real model in float64, and what should not be claimed is not."""

from __future__ import annotations

import copy
import random
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import normscope as ns
from normscope.bounds.operators.invariance import FeedingLayer, feeds

from ..real_models.families import FAMILIES
from ..soundness.networks import Function, network

EPS = 1e-14
"""Of the normalizers under test: small enough to be lost in the tolerance, as invariance holds up to eps."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in float64 with random parameters and statistics and a negligible eps."""
    model, source = model.double(), generator(seed)
    with torch.no_grad():
        for value in [*model.parameters(), *model.buffers()]:
            if value.is_floating_point():
                value.copy_(torch.randn(value.shape, dtype=value.dtype, generator=source))
        for module in model.modules():
            if isinstance(getattr(module, "running_var", None), Tensor):
                module.running_var.abs_().add_(0.1)
            if isinstance(getattr(module, "eps", None), float) and "Norm" in type(module).__name__:
                module.eps = EPS
    return model


@torch.no_grad()
def result(model: nn.Module, batch: Tensor, mode: str) -> Tensor:
    """What the model gives, with nothing left behind."""
    return copy.deepcopy(model).train(mode == "train")(batch)


def units(feed: FeedingLayer) -> list[slice]:
    """The output channels that are rescaled together."""
    width = feed.weight.shape[-1] if "linear" in str(feed.weight.op) else feed.weight.shape[1]
    count = {"channel": width, "layer": 1}.get(feed.unit) or int(feed.normalizer.bound()["num_groups"])
    return [slice(k * width // count, (k + 1) * width // count) for k in range(count)]


@torch.no_grad()
def rescaled(model: nn.Module, path: str, unit: slice, factor: float) -> nn.Module:
    """A copy of the model with one unit of a linear layer or convolution scaled, weight and bias together."""
    model = copy.deepcopy(model)
    layer = model.get_submodule(path)
    if isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d):
        parts = layer.weight.unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(0, 1)
        parts[unit] *= factor
        layer.weight.copy_(parts.unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(0, 1))
    else:
        layer.weight[unit] *= factor
    if layer.bias is not None:
        layer.bias[unit] *= factor
    return model


@torch.no_grad()
def shifted(model: nn.Module, path: str, shift: Tensor) -> nn.Module:
    model = copy.deepcopy(model)
    model.get_submodule(path).bias.add_(shift)
    return model


def same(first: Tensor, second: Tensor, tolerance: float = 1e-7) -> bool:
    return bool((first - second).abs().max() <= tolerance * (1 + second.abs().max()))


def holds(
    model: nn.Module, batch: Tensor, mode: str, feed: FeedingLayer, factor: float = 3.0, tolerance: float = 1e-7
) -> bool:
    """Whether scaling any unit leaves the model's output as it is."""
    before = result(model, batch, mode)
    return all(
        same(result(rescaled(model, feed.weight.path, unit, factor), batch, mode), before, tolerance)
        for unit in units(feed)
    )


def found(model: nn.Module, batch: Tensor, mode: str) -> tuple[FeedingLayer, ...]:
    return feeds(ns.capture(model, batch, mode=mode))


class WrittenLayerNorm(nn.Module):
    def __init__(self, dims: tuple[int, ...] = (-1,), eps: float = EPS) -> None:
        super().__init__()
        self.dims, self.eps = dims, eps

    def forward(self, x: Tensor) -> Tensor:
        y = x - x.mean(self.dims, keepdim=True)
        return y * torch.rsqrt(y.pow(2).mean(self.dims, keepdim=True) + self.eps)


def permuted(*dims: int) -> nn.Module:
    return Function(lambda x: x.permute(*dims))


CASES = {  # layers, input shape, mode, unit, scale_invariant, bias_redundant
    "batch, train": ([nn.Linear(3, 4), nn.BatchNorm1d(4)], (5, 3), "train", "channel", True, "whole"),
    "batch, eval": ([nn.Linear(3, 4), nn.BatchNorm1d(4)], (5, 3), "eval", "channel", False, "whole"),
    "transposed convolution": (
        [nn.ConvTranspose2d(4, 6, 3, groups=2, stride=2), nn.BatchNorm2d(6)],
        (2, 4, 3, 3), "train", "channel", True, "whole",
    ),
    "instance": ([nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4)], (3, 2, 5, 5), "eval", "channel", True, "whole"),
    "group": ([nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6)], (3, 2, 5, 5), "eval", "group", True, "common"),
    "layer": ([nn.Linear(3, 5), nn.LayerNorm(5)], (4, 3), "eval", "layer", True, "common"),
    "layer, written out": ([nn.Linear(3, 5), WrittenLayerNorm()], (4, 3), "eval", "layer", True, "common"),
    "layer behind a permutation": (
        [nn.Conv2d(2, 4, 3), permuted(0, 2, 3, 1), nn.LayerNorm(4)], (2, 2, 5, 5), "eval", "layer", True, "common",
    ),
    "heads": (
        [nn.Linear(3, 8), nn.Unflatten(-1, (2, 4)), permuted(0, 2, 1, 3), nn.LayerNorm(4)],
        (2, 5, 3), "eval", "layer", True, "common",
    ),
    "spectral norm": ([spectral_norm(nn.Linear(3, 5)), nn.LayerNorm(5)], (4, 3), "eval", "layer", True, "common"),
}  # fmt: skip


@cache
def built(name: str) -> tuple[nn.Module, Tensor, str, FeedingLayer]:
    """A case as a model with a tail behind it, which nobody changes, and its one feed."""
    layers, shape, mode, *_ = CASES[name]
    tail = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)).double()
    model = shaken(nn.Sequential(*copy.deepcopy(layers))).train(mode == "train")
    model.append(tail)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model(noise(*shape))
    [feed] = found(model, noise(*shape, seed=1), mode)
    return model, noise(*shape, seed=1), mode, feed


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
def test_a_normalizer_and_its_weight_are_found_and_every_claim_holds(name: str) -> None:
    *_, unit, invariant, redundant = CASES[name]
    model, batch, mode, feed = built(name)
    assert (feed.unit, feed.exclusive, feed.scale_invariant, feed.bias_redundant) == (unit, True, invariant, redundant)
    assert feed.weight.path == "0"
    if name != "spectral norm":
        assert holds(model, batch, mode, feed) == feed.scale_invariant
    before = result(model, batch, mode)
    width = model[0].bias.shape[0]
    common, any_shift = torch.full((width,), 0.7, dtype=torch.float64), noise(width, seed=2)
    norm = next((m for m in model if getattr(m, "running_mean", None) is not None), None)
    for shift, cancelled in ((common, redundant != "no"), (any_shift, redundant == "whole")):
        moved = shifted(model, "0", shift)
        if norm is not None and mode == "eval":  # the running mean absorbs it
            moved[1].running_mean.add_(shift)
        assert same(result(moved, batch, mode), before) == cancelled


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][3] != "channel" and name != "spectral norm"])
def test_the_unit_is_the_smallest_that_can_be_scaled(name: str) -> None:
    """One channel alone of a group or a layer cannot be (heads: one could, the claim is the weaker one)."""
    model, batch, mode, _ = built(name)
    changed = result(rescaled(model, "0", slice(0, 1), 3.0), batch, mode)
    assert not same(changed, result(model, batch, mode), 1e-3)


def wired(forward, normalizer=nn.BatchNorm1d) -> nn.Module:
    """Layers a, b and normalizers n, m under a forward of the test's own."""
    return Function(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4), n=normalizer(4), m=normalizer(4))


NOTHING = {
    "an activation": lambda s, x: s.n(s.a(x).relu()),
    "a residual sum": lambda s, x: s.n(x + s.a(x)),
    "pooling": lambda s, x: s.n(F.avg_pool1d(s.a(x).unsqueeze(1), 3, 1, 1).squeeze(1)),
    "a scale per channel": lambda s, x: s.n(s.a(x) * torch.arange(1.0, 5.0, dtype=x.dtype)),
    "channels in another order": lambda s, x: s.n(s.a(x).flip(1)),
    "channels torn up": lambda s, x: s.n(s.a(x[:4]).t().reshape(2, 8).reshape(4, 4)),
    "a cast to integers": lambda s, x: s.n((10 * x).relu()) + s.n(s.a(x).long().to(x.dtype)),
    "a weight that depends on the input": lambda s, x: s.n(x @ s.a(x)[:4]),
    "a bias for every sample": lambda s, x: s.n(torch.addmm(torch.arange(5.0, dtype=x.dtype)[:, None], x, s.a.weight)),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", NOTHING)
def test_what_does_more_than_move_entries_feeds_nothing(name: str) -> None:
    assert found(shaken(wired(NOTHING[name])), noise(5, 4), "train") == ()


READ_TWICE = {
    "a second reader": lambda s, x: s.n(y := s.a(x)) + y.relu(),
    "a reader of a move": lambda s, x: s.n((y := s.a(x).reshape(5, 2, 2)).reshape(5, 4)) + y.sum((1, 2), True)[:, 0],
    "the output": lambda s, x: s.n(y := s.a(x)).sum() + y,
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", READ_TWICE)
def test_an_output_that_is_read_elsewhere_is_not_exclusive(name: str) -> None:
    for feed in (pairs := found(shaken(wired(READ_TWICE[name])), noise(5, 4), "train")):
        assert (feed.exclusive, feed.scale_invariant, feed.bias_redundant) == (False, False, "no")
    assert pairs


def test_a_centring_over_other_sets_is_none() -> None:
    def forward(s: nn.Module, x: Tensor) -> Tensor:
        z = (y := s.a(x)) - y.mean(0, keepdim=True)
        return z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + EPS)

    assert found(shaken(wired(forward)), noise(5, 4), "train") == ()


SHARED = {  # what is claimed for every feed, and whether scaling the first layer alone really changes the output
    "both runs are normalized": (lambda s, x: s.m(s.a(s.n(s.a(x)).relu())), [True, True], False),
    "one run is not": (lambda s, x: s.n(s.a(s.a(x).relu())), [False], True),
    "a transpose of the weight": (lambda s, x: F.linear(s.n(s.a(x)).relu(), s.a.weight.t()), [False], True),
    "the bias elsewhere": (lambda s, x: s.n(s.a(x)).relu() * s.a.bias, [False], True),
    "another bias": (lambda s, x: s.m(F.linear(s.n(s.a(x)).relu(), s.a.weight, s.b.bias)), [False] * 2, False),
    "another unit": (lambda s, x: F.layer_norm(s.a(s.n(s.a(x)).relu()), (4,), eps=EPS), [False] * 2, True),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", SHARED)
def test_a_shared_tensor_must_be_invariant_in_every_use(name: str) -> None:
    wiring, expected, changes = SHARED[name]
    model, batch = shaken(wired(wiring)), noise(5, 4)
    pairs = found(model, batch, "train")
    assert [feed.scale_invariant for feed in pairs] == expected
    if all(expected):
        assert all(holds(model, batch, "train", feed) for feed in pairs)
    if changes:  # elsewhere the claim is only withheld
        assert not holds(model, batch, "train", pairs[0])


def test_a_shared_weight_that_is_made_anew_in_every_run_is_shared() -> None:
    model = wired(lambda s, x: s.n(s.a(s.a(x).relu())))
    model.a = weight_norm(model.a)
    [feed] = found(model.double(), noise(5, 4), "train")
    assert not feed.scale_invariant


PRODUCTS = {
    "x @ w": lambda s, x: s.n(x @ s.a.weight),
    "addmm": lambda s, x: s.n(torch.addmm(s.a.bias, x, s.a.weight, alpha=2.0, beta=-1.0)),
    "w @ x": lambda s, x: s.n((s.a.weight @ x.t()).t()),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("normalizer", [nn.BatchNorm1d, nn.LayerNorm])
def test_products_with_a_constant_are_weights(name: str, normalizer: type[nn.Module]) -> None:
    model, batch = shaken(wired(PRODUCTS[name], normalizer=normalizer)), noise(5, 4)
    [feed] = found(model, batch, "train")
    assert feed.scale_invariant
    other = copy.deepcopy(model)
    with torch.no_grad():  # the whole layer: a unit of every kind
        other.a.weight *= 3.0
        other.a.bias *= 3.0
    assert same(result(other, batch, "train"), result(model, batch, "train"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_every_convolution_of_a_resnet_feeds_its_batch_norm(mode: str) -> None:
    model, batch, output = FAMILIES["resnet_basic"]()
    pairs = feeds(ns.capture(model, batch, output=output, mode=mode))
    expected = {name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    assert {feed.weight.path for feed in pairs} == expected
    for feed in pairs:
        assert feed.weight.path.removesuffix("convolution") == feed.normalizer.path.removesuffix("normalization")
        assert (feed.unit, feed.exclusive, feed.bias_redundant) == ("channel", True, "whole")
        assert feed.scale_invariant == (mode == "train")


class Tangle(nn.Module):
    """A random graph of a few values: weights (some used twice), moves, normalizers, sums, activations."""

    MOVES = ((0, 2, 1), (2, 1, 0), (1, 2, 0))

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.width = draw.choice([4, 6])
        self.weights = nn.ModuleList(nn.Linear(self.width, self.width, bias=draw.random() < 0.7) for _ in range(6))
        self.normalizers = nn.ModuleList(self._normalizer(draw) for _ in range(6))
        self.steps: list[tuple[str, int, int]] = []
        for _ in range(draw.randint(2, 3)):  # mostly a weight, a move and a normalizer, with something odd about it
            self.steps.append(("weight", draw.randint(0, 5), -1))
            self.steps += [(draw.choice(["turn", "mix", "copy"]), draw.randint(0, 2), -1)] * draw.choice([0, 0, 1, 1])
            self.steps += [(draw.choice(["tanh", "sum", "copy"]), 0, -2)] * (draw.random() < 0.2)
            self.steps.append(("normalizer", draw.randint(0, 5), -1 if draw.random() < 0.9 else -2))
            self.steps += [(draw.choice(["tanh", "sum"]), 0, -draw.randint(2, 4))] * draw.choice([0, 1])

    def _normalizer(self, draw: random.Random) -> nn.Module:
        kinds = [
            lambda: nn.BatchNorm1d(self.width), lambda: nn.LayerNorm(self.width), lambda: nn.RMSNorm(self.width),
            lambda: nn.GroupNorm(2, self.width), lambda: nn.InstanceNorm1d(self.width), WrittenLayerNorm,
            lambda: nn.LayerNorm((self.width, self.width)), lambda: WrittenLayerNorm((0, 2)),
        ]  # fmt: skip
        return draw.choice(kinds)()

    def forward(self, x: Tensor) -> Tensor:
        values = [x]  # of shape (width, width, width): any dimension may become any other
        for kind, which, back in self.steps:
            value = values[max(back, -len(values))]
            if kind == "weight":
                value = self.weights[which](value)
            elif kind == "normalizer":
                value = self.normalizers[which](value)
            elif kind == "turn":
                value = value.permute(*self.MOVES[which])
            elif kind == "mix":
                value = value.reshape(self.width * self.width, -1).t().reshape(value.shape)
            elif kind == "tanh":
                value = values[-1].tanh()
            elif kind == "copy":
                value = values[-1].clone().reshape(-1).reshape(value.shape)
            else:
                value = values[-1] + value
            values.append(value)
        return values[-1] * 1.0


def attack(model: nn.Module, batch: Tensor, mode: str) -> int:
    """Try every claim, with room for variances that come near eps; return how many there were."""
    pairs = found(model, batch, mode)
    before = result(model, batch, mode)
    for feed in pairs:
        layer = model.get_submodule(feed.weight.path)
        if not isinstance(layer, nn.Linear | nn.modules.conv._ConvNd) or hasattr(layer, "parametrizations"):
            continue
        if feed.scale_invariant:
            assert holds(model, batch, mode, feed, 0.4, 1e-4), f"{feed.weight.path} -> {feed.normalizer.path}"
        if layer.bias is not None and feed.bias_redundant != "no" and mode == "train":
            width = layer.bias.shape[0]
            shift = noise(width, seed=3) if feed.bias_redundant == "whole" else torch.full((width,), 0.6)
            assert same(result(shifted(model, feed.weight.path, shift), batch, mode), before, 1e-4), feed.weight.path
    return sum(feed.scale_invariant for feed in pairs)


def tangled(seed: int) -> int:
    model = shaken(Tangle(seed), seed)
    return attack(model, noise(*(model.width,) * 3, seed=seed), "train")


@pytest.mark.slow
def test_random_graphs_do_not_break_a_claim() -> None:
    assert sum(map(tangled, range(6))) > 3


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_many_random_graphs_do_not_break_a_claim(block: int) -> None:
    assert sum(map(tangled, range(1000 + 100 * block, 1100 + 100 * block))) > 50


def drawn(seed: int) -> int:
    """Attack a network of the soundness suite in float64; dropout counts as off."""
    case = network(seed)
    model = case.model.double().train(case.mode == "train")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if "Norm" in type(module).__name__ and isinstance(getattr(module, "eps", None), float):
            module.eps = EPS
    return attack(model, case.batch.double(), case.mode)


def test_random_networks_do_not_break_a_claim() -> None:
    assert sum(map(drawn, range(6))) > 0


@pytest.mark.slow
def test_many_random_networks_do_not_break_a_claim() -> None:
    assert sum(map(drawn, range(1000, 1600))) > 40
