"""Models whose forward takes one dict are measured as those that take its entries."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.calls.call import arguments


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.norm = nn.Linear(4, 3), nn.Linear(2, 3), nn.BatchNorm1d(3)

    def both(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(self.left(x).relu() + self.right(y))


class One(Body):
    def forward(self, batch):
        return self.both(batch["x"], batch["y"])


class Named(Body):
    def forward(self, x, y):
        return self.both(x, y)


class Catching(Body):
    def forward(self, **batch):
        return self.both(batch["x"], batch["y"])


@pytest.fixture
def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"x": torch.randn(5, 4, generator=generator), "y": torch.randn(5, 2, generator=generator)}


def pair(kind: type[Body]) -> tuple[nn.Module, nn.Module]:
    """A model of a kind, and the same by named arguments."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind()
    other = Named()
    other.load_state_dict(model.state_dict())
    return model.eval(), other.eval()


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("kind", [One, Catching])
@pytest.mark.parametrize("scope", ["global", "point"])
def test_figures_are_those_of_named_arguments(kind, scope, batch):
    first, second = (ns.lipschitz(model, batch, scope=scope) for model in pair(kind))
    assert first.evidence is second.evidence
    assert first.log10_upper == pytest.approx(second.log10_upper, abs=1e-9)
    assert first.log10_lower == pytest.approx(second.log10_lower, abs=1e-9)


def test_the_batch_is_left_alone(batch):
    kept = {name: value.clone() for name, value in batch.items()}

    class Writes(Body):
        def forward(self, batch):
            batch["x"].mul_(2)
            return self.both(batch.pop("x"), batch["y"])

    ns.capture(pair(Writes)[0], batch)
    assert all(torch.equal(batch[name], value) for name, value in kept.items())


@pytest.mark.parametrize(
    ("model", "keys", "one"),
    [
        (One(), ["x", "y"], True),
        (One(), ["batch"], False),
        (One(), ["batch", "x"], True),
        (Named(), ["x", "y"], False),
        (Named(), ["x", "z"], False),
        (Catching(), ["x"], False),
        (nn.Linear(3, 2), ["input"], False),
        (nn.Linear(3, 2), ["x"], True),
    ],
)
def test_the_signature_decides(model, keys, one):
    call = arguments(model, {key: torch.zeros(1, 3) for key in keys})
    assert (len(call.args), len(call.kwargs)) == ((1, 0) if one else (0, len(keys)))
