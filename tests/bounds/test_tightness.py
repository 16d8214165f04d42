"""The figures of the literature, met again: products and certificates on networks with published bounds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.bounds.bounds_by_method import upper_sides
from normscope.bounds.traced_network import TracedNetwork
from normscope.data import digits
from normscope.networks.small import mlp, train

SHARED = Path(__file__).parents[3] / "shared"


def published(name: str) -> nn.Sequential:
    """Build the ReLU network of a file of published weights."""
    from scipy.io import loadmat

    path = SHARED / "bench" / f"lipsdp_{name}_weights.mat"
    if not path.is_file():
        pytest.skip(f"needs {path.name} in shared/bench beside the checkout")
    weights = [torch.tensor(w, dtype=torch.float64) for w in loadmat(path)["weights"].ravel()]
    layers: list[nn.Module] = []
    for weight in weights:
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
        linear.weight.data.copy_(weight)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("random", {"product": 43.306, "closed-form": 39.902}),
        ("mnist", {"product": 31.504, "closed-form": 26.809}),
    ],
)
def test_published_bounds_are_met(name: str, expected: dict[str, float]) -> None:
    model = published(name)
    point = torch.randn(4, model[0].in_features, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ladder = ns.ladder(model, point)
    for method, value in expected.items():
        assert ladder[method].upper == pytest.approx(value, abs=6e-4)


@pytest.mark.parametrize(("name", "least", "most"), [("random", 36.4822 - 1e-3, 36.67), ("mnist", 0.0, 24.49)])
def test_the_optimised_certificate_meets_the_semidefinite_bound(name: str, least: float, most: float) -> None:
    """LipSDP-Neuron proves 36.482 and 24.366."""
    model = published(name)
    work = TracedNetwork.of(model, torch.zeros(2, model[0].in_features, dtype=torch.float64))
    assert least <= upper_sides(work, effort="tight")["tight"].upper <= most


def test_the_search_from_below_meets_the_semidefinite_bound() -> None:
    # LipSDP-Neuron proves 36.482 for this network: a lower side this close leaves no room for a better certificate
    angles = torch.linspace(0, 6.2, 32, dtype=torch.float64)
    bracket = ns.lipschitz(published("random"), torch.stack([angles.cos(), angles.sin()], 1))
    assert 36.48 < bracket.lower < 36.4823


@pytest.mark.slow
@pytest.mark.parametrize(("size", "gap"), [(32, 0.002), (56, 0.0005)])
def test_convolution_gap(size: int, gap: float) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Conv2d(64, 64, 3, padding=1, bias=False)
    layer.weight.data = torch.randn(layer.weight.shape, generator=generator) / (64 * 9) ** 0.5
    assert ns.spectral_norm(layer, (64, size, size), rtol=1e-4).gap < gap


@pytest.mark.slow
def test_the_ladder_descends_on_a_trained_batch_norm_network() -> None:
    generator = torch.Generator().manual_seed(0)
    data = digits(generator=generator)
    model = mlp(generator=generator, normalizer="batch", width=64, depth=6)
    train(model, data.train_images, data.train_labels, generator=generator, epochs=5)
    rungs = ns.ladder(model, data.test_images[:32])
    order = ["printed", "printed-exact", "folded", "closed-form", "observed"]
    values = [rungs[name].log10_upper for name in order]
    assert values == sorted(values, reverse=True)
    assert rungs["folded"].log10_upper < rungs["product"].log10_upper - 0.05
