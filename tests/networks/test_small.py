"""The small networks and the training loop: what is built, from which generator, and what trains it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from normscope.networks.small import accuracy, mlp, residual_mlp, train


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


BUILDERS = {
    "mlp": mlp,
    "mlp, batch": partial(mlp, normalizer="batch"),
    "mlp, layer": partial(mlp, normalizer="layer"),
    "mlp, group": partial(mlp, normalizer="group", width=32),
    "residual": partial(residual_mlp, width=16, blocks=2),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_network_comes_from_its_generator_alone(name: str) -> None:
    state = torch.get_rng_state()
    first, second = (BUILDERS[name](generator=generator()) for _ in range(2))
    other = BUILDERS[name](generator=generator(1))
    assert torch.equal(torch.get_rng_state(), state)
    assert first.training
    for one, two in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    out = first(torch.rand(5, 1, 8, 8, generator=generator()))
    assert out.shape == (5, 10)
    assert bool(out.isfinite().all())


def separable() -> tuple[Tensor, Tensor]:
    """Two classes told apart by one pixel."""
    images = torch.rand(256, 1, 8, 8, generator=generator())
    return images, (images[:, 0, 0, 0] > 0.5).long()


def trained(**options: object) -> nn.Module:
    images, labels = separable()
    model = mlp(generator=generator(), width=16, depth=2)
    train(model, images, labels, generator=generator(), **options)  # type: ignore[arg-type]
    return model


def test_training_learns_and_says_when_an_epoch_ends() -> None:
    ends: list[int] = []
    model = trained(epochs=30, learning_rate=1e-2, on_epoch=lambda: ends.append(1))
    assert len(ends) == 30
    assert accuracy(model, *separable()) > 0.95
