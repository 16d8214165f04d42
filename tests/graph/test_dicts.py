"""Models whose forward takes one dict are measured as those that take its entries."""

from __future__ import annotations

from collections import OrderedDict, UserDict

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.errors import InputError
from normscope.diagnosis.data_pass import watch_data
from normscope.graph.call import arguments


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


class Optional(Body):
    def forward(self, batch, scale=1.0):
        return scale * self.both(batch["x"], batch["y"])


class Catching(Body):
    def forward(self, **batch):
        return self.both(batch["x"], batch["y"])


class Masked(Body):
    def forward(self, batch):
        return self.both(batch["x"] * batch["attention_mask"], batch["y"])


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, batch):
        return self.head(self.table(batch["input_ids"])).mean(1)


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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", [One, Optional, Catching])
@pytest.mark.parametrize("scope", ["global", "point", pytest.param("ball", marks=pytest.mark.slow)])
def test_figures_are_those_of_named_arguments(kind, scope, batch):
    more = {"radius": 0.1} if scope == "ball" else {}
    first, second = (ns.lipschitz(model, batch, scope=scope, **more) for model in pair(kind))
    assert first.evidence is second.evidence
    assert first.log10_upper == pytest.approx(second.log10_upper, abs=1e-9)
    assert first.log10_lower == pytest.approx(second.log10_lower, abs=1e-9)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_the_graph_is_that_of_named_arguments(training, batch):
    first, second = (ns.capture(model.train(training), batch) for model in pair(One))
    assert [node.op for node in first] == [node.op for node in second]
    assert first.per_sample == second.per_sample == (not training)


@pytest.mark.slow
def test_radii_sensitivities_and_ladder(batch):
    one, named = pair(One)
    labels = torch.zeros(5, dtype=torch.long)
    radii = [ns.certified_radius(model, batch, labels).radius for model in (one, named)]
    assert radii[0] == radii[1]
    assert any(radius > 0 for radius in radii[0])
    loaded = ns.certified_radius(one, [(batch, labels), (batch, labels)])
    assert loaded.radius == (*radii[0], *radii[0])
    rows = [[(row.path, row.log10_read) for row in ns.weight_sensitivity(m, batch).rows] for m in (one, named)]
    assert rows[0] == rows[1]
    assert ns.ladder(one, batch, max_seconds=0.2).rungs


def test_an_audit_and_its_data(batch):
    first, second = (ns.audit(model, batch, loader=[batch, batch], max_seconds=1) for model in pair(One))
    assert [row.path for row in first.layers] == [row.path for row in second.layers]
    seen = [watch_data(model, [batch, batch]) for model in pair(One)]
    assert (seen[0].samples, seen[0].batches, seen[0].error) == (10, 2, None)
    assert list(seen[0].normalizers) == list(seen[1].normalizers)


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict])
def test_kinds_of_dicts(kind, batch):
    model, _ = pair(One)
    assert ns.lipschitz(model, kind(batch), max_seconds=0.2).log10_upper == pytest.approx(
        ns.lipschitz(model, batch, max_seconds=0.2).log10_upper
    )


def test_a_mask_in_the_dict_is_held_constant(batch):
    mask = torch.tensor([[1.0, 1.0, 0.0, 0.0]]).expand(5, 4)
    graph = ns.capture(pair(Masked)[0], {**batch, "attention_mask": mask})
    assert graph.input_shape == (6,)
    assert any("mask" in note for note in graph.notes)


def test_tokens_in_the_dict_start_at_their_embeddings():
    graph = ns.capture(Tokens().eval(), {"input_ids": torch.zeros(2, 6, dtype=torch.long)})
    assert [item.path for item in graph.inputs] == ["table"]


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
        (Optional(), ["x"], True),
        (Optional(), ["batch", "scale"], False),
        (Catching(), ["x"], False),
        (nn.Linear(3, 2), ["input"], False),
        (nn.Linear(3, 2), ["x"], True),
    ],
)
def test_the_signature_decides(model, keys, one):
    call = arguments(model, {key: torch.zeros(1, 3) for key in keys})
    assert (len(call.args), len(call.kwargs)) == ((1, 0) if one else (0, len(keys)))


def test_a_dict_that_does_not_fit_is_refused_with_what_was_tried():
    with pytest.raises(InputError, match=r"one dict with the keys \['x'\], which are not the names of forward"):
        ns.capture(nn.Linear(3, 2), {"x": torch.zeros(1, 3)})
