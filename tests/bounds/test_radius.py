"""Certified radii: exact where the truth is known, never refuted by an attack, and bugs that are planted are caught."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from normscope.bounds.balls.ball import LinearMargins
from normscope.bounds.radius import certifier
from normscope.bounds.radius.radius import certified_radius
from normscope.bounds.traced_network import TracedNetwork
from normscope.core.errors import SoundnessError
from normscope.data import digits
from normscope.networks.small import mlp, train

from ..soundness.networks import noise
from .classifiers import FAMILIES, made, plain_pgd


def linear(weight, bias) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(weight))
        layer.bias.copy_(torch.as_tensor(bias))
    return layer.eval()


def distances(layer: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
    """The exact distance of each sample to the nearest boundary of a linear classifier."""
    weight = layer.weight.double()
    logits = x.double() @ weight.T + layer.bias.double()
    gaps = (logits.gather(1, y[:, None]) - logits) / (weight[y][:, None] - weight[None]).norm(dim=2)
    return gaps.scatter(1, y[:, None], math.inf).amin(1).clamp(min=0.0).detach()


# ---- exact where the truth is known


@pytest.mark.slow
@pytest.mark.parametrize("effort", ["fast", "tight"])
def test_a_linear_classifier_has_its_exact_radii_from_both_sides(effort):
    layer, x = made(lambda: nn.Linear(6, 4)), noise(12, 6)
    y = layer(x).argmax(1)
    y[3] = (y[3] + 1) % 4  # one that is wrong
    radii = certified_radius(layer, x, labels=y, effort=effort)
    exact = distances(layer, x, y)
    assert exact[3] == 0 == radii.radius[3] == radii.attacked[3]
    for radius, attacked, true in zip(radii.radius, radii.attacked, exact.tolist()):
        assert true / 1.011 <= radius <= true
        assert true <= attacked <= 1.01 * true
    assert radii.clean_accuracy == radii.certified_accuracy(0.0) == pytest.approx(11 / 12)


def steep(activation) -> nn.Module:
    """A network of the plane whose classes change within a few units."""
    layers = [nn.Linear(2, 8), activation(), nn.Linear(8, 8), activation(), nn.Linear(8, 3)]
    for layer in layers[::2]:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    return nn.Sequential(*layers)


@pytest.mark.slow
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU])
def test_in_the_plane_the_radii_enclose_the_nearest_point_of_a_fine_grid(activation):
    model, x = made(lambda: steep(activation)), noise(4, 2)
    radii = certified_radius(model, x, effort="tight")
    axis = torch.linspace(-6, 6, 801)
    grid = torch.cartesian_prod(axis, axis)
    classes = model(grid).argmax(1)
    assert len(classes.unique()) > 1
    for sample, label, radius, attacked in zip(x, radii.label, radii.radius, radii.attacked):
        nearest = float((grid[classes != label] - sample).norm(dim=1).min())
        assert nearest < 4  # well inside the grid
        assert 0 < radius <= nearest
        assert nearest - 0.015 < attacked <= nearest * 1.001
        assert radius > 0.15 * attacked


@pytest.mark.parametrize("ellipsoids", [True, False])
def test_constants_of_differences_are_above_those_of_a_linear_layer(ellipsoids, monkeypatch):
    if not ellipsoids:  # what is left is the constant of the output as a whole
        monkeypatch.setattr(certifier, "plan", lambda *given: None)
    opposite = [[1.0, 2.0, 0.5], [-1.0, -2.0, -0.5]]  # differences are sqrt(2) times as steep as the output
    for weight in (opposite, noise(4, 3).tolist()):
        found = certifier.difference_constants(
            TracedNetwork.of(linear(weight, [0.0] * len(weight)).double(), noise(1, 3).double())
        )
        exact = torch.tensor(weight).double()
        assert (found >= (exact[:, None] - exact[None]).norm(dim=2)).all()


# ---- nothing succeeds inside a certified radius


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_attack_succeeds_inside_a_certified_radius(family):
    model, x = made(FAMILIES[family]), noise(4, 16, seed=1)
    radii = certified_radius(model, x)
    y = torch.tensor(radii.label)
    assert all(0 < radius < attacked for radius, attacked in zip(radii.radius, radii.attacked))
    assert not plain_pgd(model, x, y, torch.tensor(radii.radius)).any()
    assert plain_pgd(model, x, y, 3 * torch.tensor(radii.attacked)).any()  # it can win
    double = copy.deepcopy(model).double()
    for row, (witness, attacked) in enumerate(zip(radii.witness, radii.attacked)):
        assert float((witness - x[row].double()).norm()) == pytest.approx(attacked, rel=1e-9)
        assert int(double(witness[None]).argmax()) != radii.label[row]


@pytest.mark.slow
def test_linear_bounds_and_constants_each_certify_what_the_other_cannot():
    model, x = made(FAMILIES["batch norm"]), noise(6, 16, seed=1)
    both = certified_radius(model, x, attack=False)
    assert "linear" in both.method
    # without linear bounds what is left are the constants: never more
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LinearMargins, "usable", False)
        alone = certified_radius(model, x, attack=False)
    assert "linear" not in alone.method
    assert all(a <= 1.011 * b for a, b in zip(alone.radius, both.radius))
    assert sum(both.radius) > 1.02 * sum(alone.radius)


@pytest.mark.slow
def test_a_constant_given_too_small_is_refuted_by_the_attack():
    model, x = made(FAMILIES["relu"]), noise(4, 16)
    with pytest.raises(SoundnessError, match="inside the certified radius"):
        certified_radius(model, x, known={"2": 1e-3})


# ---- the attack


@pytest.mark.slow
def test_on_trained_digits_the_attack_is_stronger_than_plain_pgd_and_the_curves_fall():
    data = digits(generator=torch.Generator().manual_seed(0))
    model = mlp(generator=torch.Generator().manual_seed(0), width=32, depth=3)
    train(model, data.train_images, data.train_labels, generator=torch.Generator().manual_seed(0), epochs=4)
    x, y = data.test_images[:24], data.test_labels[:24]
    radii = certified_radius(model, x, labels=y)
    flat, attacked = x.flatten(1), torch.tensor(radii.attacked)
    body = nn.Sequential(*list(model)[1:])
    right = torch.tensor(radii.right)
    low, high = torch.zeros(24), torch.full((24,), 3.0)
    for _ in range(10):
        middle = (low + high) / 2
        won = plain_pgd(body, flat, y, middle)
        low, high = torch.where(won, low, middle), torch.where(won, middle, high)
    assert (attacked[right] <= 1.01 * high[right].double()).all()
    assert attacked[right].mean() < 0.98 * high[right].mean()
    points = radii.curve(np.linspace(0, 1.2, 30))
    for before, after in itertools.pairwise(points):
        assert after.certified <= before.certified
        assert after.attacked <= before.attacked
    assert all(point.certified <= point.attacked for point in points)
    assert points[0].certified == radii.clean_accuracy > 0.8
    assert radii.certified_accuracy(0.05) > 0
    assert radii.attacked_accuracy(3.0) == 0


@pytest.mark.slow
def test_the_attack_stays_where_no_class_can_win():
    layer = linear([[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0])  # always the first class
    radii = certified_radius(layer, noise(2, 2))
    assert radii.attacked == (math.inf, math.inf)
    assert radii.witness == (None, None)
    assert all(radius == math.inf for radius in radii.radius)
