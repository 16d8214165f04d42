"""Optimisers on spheres: against the exponential map and parallel transport by hand, and as torch's conventions ask."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.errors import InputError
from normscope.optim import SphereAdam, SphereSGD

RICH = {"standard": 1}


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# ---- the mathematics, row by row, as any book on the sphere has it


def project(u: Tensor, v: Tensor) -> Tensor:
    return v - (u @ v) * u


def expmap(u: Tensor, d: Tensor) -> Tensor:
    angle = d.norm()
    return u if angle == 0 else u * angle.cos() + d / angle * angle.sin()


def transport(u: Tensor, d: Tensor, v: Tensor) -> Tensor:
    """Parallel transport of a tangent v along the geodesic from u in direction d: it turns in the plane of u and d."""
    angle = d.norm()
    if angle == 0:
        return v
    e = d / angle
    return v + (e @ v) * ((angle.cos() - 1) * e - angle.sin() * u)


def clipped(h: Tensor, clip: float | None) -> Tensor:
    return h if clip is None or h.norm() <= clip else h * (clip / h.norm())


def by_hand_sgd(y: Tensor, gradients: list[Tensor], lr: float, momentum: float, clip: float | None) -> Tensor:
    length, u, d = y.norm(), y / y.norm(), torch.zeros_like(y)
    for g in gradients:
        d = momentum * d - lr * clipped(project(u, length * g), clip)
        u, d = expmap(u, d), transport(u, d, d)
    return length * u


def by_hand_adam(y: Tensor, gradients: list[Tensor], lr: float, clip: float | None) -> Tensor:
    length, u, m, v = y.norm(), y / y.norm(), torch.zeros_like(y), 0.0
    for t, g in enumerate(gradients, 1):
        h = clipped(project(u, length * g), clip)
        m, v = 0.9 * m + 0.1 * h, 0.99 * v + 0.01 * float(h @ h)
        d = -lr * m / (1 - 0.9**t) / (math.sqrt(v / (1 - 0.99**t)) + 1e-8)
        u, m = expmap(u, d), transport(u, d, m)
    return length * u


def run(optimizer_of, start: Tensor, gradients: list[Tensor]) -> Tensor:
    weight = nn.Parameter(start.clone())
    optimizer = optimizer_of([weight])
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("shape", [(5, 7), (4, 3, 2, 2), (6, 2, 1, 1)])
def test_against_the_mathematics(shape: tuple[int, ...], clip: float | None) -> None:
    start, gradients = 3.0 * noise(*shape), [0.3 * noise(*shape, seed=k) for k in range(1, 9)]
    found = run(lambda p: SphereSGD(p, lr=0.3, momentum=0.9, clip=clip, units="channel"), start, gradients)
    adam = run(lambda p: SphereAdam(p, lr=0.1, clip=clip, units="channel"), start, gradients)
    for row in range(shape[0]):
        each = [g[row].reshape(-1) for g in gradients]
        expected = by_hand_sgd(start[row].reshape(-1), each, 0.3, 0.9, clip)
        torch.testing.assert_close(found[row].reshape(-1), expected, rtol=1e-10, atol=1e-10)
        expected = by_hand_adam(start[row].reshape(-1), each, 0.1, clip)
        torch.testing.assert_close(adam[row].reshape(-1), expected, rtol=1e-10, atol=1e-10)


def test_blocks_share_a_sphere() -> None:
    units = 2
    start, gradients = noise(6, 5), [noise(6, 5, seed=k) for k in (1, 2, 3)]
    found = run(lambda p: SphereSGD(p, lr=0.1, clip=None, units=units), start, gradients)
    for block in range(units):
        rows = slice(block * 6 // units, (block + 1) * 6 // units)
        expected = by_hand_sgd(start[rows].reshape(-1), [g[rows].reshape(-1) for g in gradients], 0.1, 0.9, None)
        torch.testing.assert_close(found[rows].reshape(-1), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("optimizer", [SphereSGD, SphereAdam])
def test_another_axis_and_other_layouts_in_memory(optimizer: type) -> None:
    start, gradients = noise(3, 4, 2, 2), [noise(3, 4, 2, 2, seed=k) for k in (1, 2, 3)]
    turned = [t.transpose(0, 1) for t in (start, *gradients)]
    plain = run(lambda p: optimizer(p, lr=0.1, units="channel"), start, gradients)
    along = run(lambda p: optimizer(p, lr=0.1, units="channel", axis=1), turned[0].contiguous(), turned[1:])
    torch.testing.assert_close(along.transpose(0, 1), plain, rtol=1e-12, atol=1e-12)
    laid = run(lambda p: optimizer(p, lr=0.1, units="channel"), start.to(memory_format=torch.channels_last), gradients)
    torch.testing.assert_close(laid, plain, rtol=1e-12, atol=1e-12)


def test_rates_that_change_between_steps() -> None:
    """The buffer stays a tangent through steps of any size, also of more than a radian."""
    rates = (0.5, 2.0, 0.05, 2.0, 0.05, 0.05, 3.0, 0.05)
    start, gradients = 2.0 * noise(5, 7), [noise(5, 7, seed=k) for k in range(1, 9)]
    weight = nn.Parameter(start.clone())
    stepper = SphereSGD([weight], lr=0.1, momentum=0.9, clip=0.5, units="channel")
    for gradient, rate in zip(gradients, rates, strict=True):
        weight.grad = gradient.clone()
        stepper.param_groups[0]["lr"] = rate
        stepper.step()
        radial = torch.linalg.vecdot(stepper.state[weight]["momentum_buffer"], weight.detach())
        torch.testing.assert_close(radial, torch.zeros_like(radial), rtol=0.0, atol=1e-12)
    for row in range(5):
        length, u, d = start[row].norm(), start[row] / start[row].norm(), torch.zeros(7, dtype=torch.float64)
        for gradient, rate in zip(gradients, rates, strict=True):
            d = 0.9 * d - rate * clipped(project(u, length * gradient[row]), 0.5)
            u, d = expmap(u, d), transport(u, d, d)
        torch.testing.assert_close(weight.detach()[row], length * u, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("optimizer", [SphereSGD, SphereAdam])
def test_lengths_stay_over_many_steps_in_float32(optimizer: type, clip: float | None) -> None:
    weight = nn.Parameter(3.0 * noise(8, 20, dtype=torch.float32))
    lengths = weight.detach().norm(dim=1)
    stepper = optimizer([weight], lr=0.05, clip=clip, units="channel")
    for k in range(120):
        weight.grad = noise(8, 20, seed=k, dtype=torch.float32)
        stepper.step()
    torch.testing.assert_close(weight.detach().norm(dim=1), lengths, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("optimizer", [SphereSGD, SphereAdam])
def test_rows_of_zeros_and_zero_gradients_stay(optimizer: type) -> None:
    start = noise(3, 5)
    start[1] = 0.0
    gradient = noise(3, 5, seed=1)
    gradient[2] = 0.0
    found = run(lambda p: optimizer(p, lr=0.1, units="channel"), start, [gradient, gradient])
    assert torch.equal(found[1], start[1])
    assert torch.equal(found[2], start[2])
    assert bool(torch.isfinite(found).all())
    assert not torch.equal(found[0], start[0])


# ---- the conventions of torch.optim


def model_of(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def groups_of(model: nn.Module) -> list[dict]:
    spheres = {"params": [model[0].weight], "units": "channel", "weight_decay": 0.0}
    return [spheres, {"params": [*model[1].parameters(), *model[3].parameters()]}]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, start: int = 0) -> list[float]:
    losses = []
    for k in range(start, start + steps):
        x = noise(16, 4, seed=k, dtype=torch.float32)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            lambda p: SphereSGD(p, lr=0.1, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        ),
        (
            lambda p: SphereSGD(p, lr=0.1, nesterov=True, maximize=True),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
        ),
        (
            lambda p: SphereAdam(p, lr=0.01, weight_decay=0.1),
            lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1),
        ),
    ],
)  # fmt: skip
def test_plain_groups_are_those_of_torch(ours, theirs) -> None:
    one, other = model_of(), model_of()
    train(one, ours(one.parameters()), 5)
    train(other, theirs(other.parameters()), 5)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("axis", [0, 1])
def test_an_older_state_whose_buffers_hold_a_component_along_the_weights_goes_on_as_before(axis: int) -> None:
    start, gradients = noise(6, 4), [noise(6, 4, seed=seed) for seed in range(1, 8)]

    def optimizer_of(weights: list[nn.Parameter]) -> SphereSGD:
        return SphereSGD(weights, lr=0.2, units="channel", axis=axis)

    expected = run(optimizer_of, start, gradients)
    weight = nn.Parameter(start.clone())
    optimizer = optimizer_of([weight])
    for number, gradient in enumerate(gradients):
        if number == 4:  # what version 0.1 stored between two steps: b = t + c u, and c
            stored = optimizer.state_dict()
            direction, along = weight.detach() / weight.detach().norm(dim=1 - axis, keepdim=True), 0.02
            stored["state"][0]["momentum_buffer"] = stored["state"][0]["momentum_buffer"] + along * direction
            stored["state"][0]["along"] = torch.full((weight.shape[axis],), along, dtype=torch.float64)
            optimizer = optimizer_of([weight])
            optimizer.load_state_dict(stored)
        weight.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-12)
    assert "along" not in optimizer.state_dict()["state"][0]


@pytest.mark.parametrize("optimizer", [SphereSGD, SphereAdam])
def test_a_stored_state_goes_on_to_the_bit(optimizer: type) -> None:
    whole = model_of()
    first = optimizer(groups_of(whole), lr=0.05)
    train(whole, first, 4)
    parted = model_of(1)
    parted.load_state_dict(copy.deepcopy(whole.state_dict()))
    again = optimizer(groups_of(parted), lr=0.9)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert again.param_groups[0]["lr"] == 0.05
    train(whole, first, 3, start=4)
    train(parted, again, 3, start=4)
    for a, b in zip(whole.parameters(), parted.parameters(), strict=True):
        assert torch.equal(a, b)


BAD = [
    ({"weight_decay": 1e-4, "units": "channel"}, "weight decay on a sphere does nothing"),
    ({"units": "rows"}, "units is None"),
    ({"units": True}, "units is None"),
    ({"units": 3}, "do not divide axis 0"),
    ({"units": "channel", "axis": 2}, "axis is 2"),
    ({"lr": -1.0}, "lr is -1.0"),
    ({"clip": 0.0}, "clip is 0.0"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_input_is_one_sentence(options: dict, message: str) -> None:
    for optimizer in (SphereSGD, SphereAdam):
        with pytest.raises(InputError, match=message):
            optimizer([nn.Parameter(noise(4, 6))], **options)


def test_symmetries_feed_the_optimizer_and_training_works() -> None:
    model = model_of()
    found = ns.symmetries(model, noise(8, 4, dtype=torch.float32), mode="train")
    stepper = ns.optim.SphereSGD(found.param_groups(), lr=0.1, weight_decay=1e-4)
    lengths = model[0].weight.detach().norm(dim=1)
    losses = train(model, stepper, 60)
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    torch.testing.assert_close(model[0].weight.detach().norm(dim=1), lengths, rtol=1e-5, atol=0.0)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize(("optimizer", "rate", "power"), [(SphereSGD, 0.1, 2), (SphereAdam, 0.02, 1)])
def test_watched_like_any_optimizer(optimizer: type, rate: float, power: int) -> None:
    """On a sphere the effective learning rate is the learning rate itself; in a plain group the norm counts."""
    for spheres in (True, False):
        model = model_of()
        with torch.no_grad():
            model[0].weight.mul_(7.0)
        stepper = optimizer(groups_of(model) if spheres else model.parameters(), lr=rate)
        with ns.watch(model, stepper, every=RICH, overhead=None) as run:
            train(model, stepper, 3)
        norm = float(model[0].weight.detach().norm(dim=1).log10().mean())
        record = run.records[-1]
        assert list(record.lr) == [rate] * len(stepper.param_groups)
        expected = math.log10(rate) - (0.0 if spheres else power * norm)
        assert record.of("weight", "log10_effective_lr")[0] == pytest.approx(expected, abs=0.02)
        if spheres:
            assert abs(record.of("weight", "radial")[0]) < 1e-2


def test_without_a_gradient_along_the_sphere_nothing_moves() -> None:
    """A gradient along the weight itself leaves rounding alone, which must not be blown up by the second moment."""
    start = noise(8, 20, dtype=torch.float32)
    found = run(lambda p: SphereAdam(p, lr=0.1, units="channel"), start, [start, start])
    torch.testing.assert_close(found, start)
