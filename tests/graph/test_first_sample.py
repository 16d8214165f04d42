"""The graph of one sample comes from the trace of its batch, and is the one that torch.export makes of that sample."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.graph import capturing
from normscope.graph.ir import Graph, Ref, leaves


class Counted:
    """Counts the calls of torch.export.export."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, export = 0, torch.export.export

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return export(*args, **kwargs)

        monkeypatch.setattr(torch.export, "export", counted)


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Count exports."""
    return Counted(monkeypatch)


class Residual(nn.Module):
    """Convolutions with a skip, and a view that asks for the size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Run the layers."""
        x = self.norm(self.first(x)).relu()
        return self.last((x + self.second(x)).view(x.shape[0], -1))


class Tokens(nn.Module):
    """Ids behind a token that is expanded to the size of the batch, as their places are."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(20, 8), nn.Embedding(7, 8)
        self.front = nn.Parameter(torch.randn(1, 1, 8))
        self.heads, self.norm = nn.Linear(8, 24), nn.LayerNorm(8)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Run the layers."""
        rows, steps = input_ids.shape
        x = self.table(input_ids) + self.places(torch.arange(steps).unsqueeze(0).expand(rows, steps))
        x = torch.cat([self.front.expand(rows, 1, 8), x], 1)
        q, k, v = self.heads(x).view(rows, steps + 1, 2, 12).transpose(1, 2).split(4, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, steps + 1, 8)
        return self.norm(x + y)[:, 0]


class Shifted(nn.Module):
    """A constant with a row for every sample, written out for a batch of four."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.ones(4, 1) * torch.tensor([1.0, 2.0, 3.0]))
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Add the first rows."""
        return self.layer(x + self.rows[: len(x)]) * x


def encoder() -> nn.Module:
    """Return an encoder, whose attention joins samples and heads in one dimension."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


CASES = {
    "residual": (Residual, lambda: torch.randn(4, 3, 4, 4)),
    "encoder": (encoder, lambda: torch.randn(4, 5, 8)),
    "tokens": (Tokens, lambda: {"input_ids": torch.randint(0, 20, (3, 6))}),
    "shifted": (Shifted, lambda: torch.randn(4, 3)),
}


def form(graph: Graph) -> list[Any]:
    """Return all that a graph says of its operators besides the values of constants."""
    return [
        (str(node.op), node.refs, node.shape, node.path, node.source, given)
        for node in graph
        for given in [
            [
                tuple(leaf.shape) if isinstance(leaf, Tensor) else leaf
                for leaf in leaves((node.args, node.kwargs))
                if not isinstance(leaf, Ref)
            ]
        ]
    ]


@pytest.mark.parametrize("name", CASES)
def test_one_sample_is_the_one_that_torch_export_makes(
    name: str, exports: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    build, draw = CASES[name]
    model, batch = build().eval(), draw()
    once = capturing.trace_model(model, batch)
    assert exports.calls == 1
    assert once.per_sample
    monkeypatch.setattr(capturing, "first_sample", lambda *given: None)
    twice = capturing.trace_model(model, batch)
    assert exports.calls == 3
    assert form(once) == form(twice)
    values = [2.0 * item.value + 0.1 for item in once.inputs]
    assert torch.equal(once.run(*values), twice.run(*values))
    for one, other in ((once, twice), *zip(once.batched, twice.batched, strict=True)):
        assert [(c.name, c.kind) for c in one.constants] == [(c.name, c.kind) for c in other.constants]
        assert [(r.node, r.entries, r.real, r.origins) for r in one.reads] == [
            (r.node, r.entries, r.real, r.origins) for r in other.reads
        ]
        assert one.notes == other.notes
        assert one.constant_places == other.constant_places


def test_an_audit_exports_once_and_one_of_its_graph_not_at_all(exports: Counted) -> None:
    torch.manual_seed(0)
    model, batch = Residual().eval(), torch.randn(4, 3, 4, 4)
    audit = ns.audit(model, batch)
    assert exports.calls == 1
    graph = ns.capture(model, batch)
    assert exports.calls == 2
    again = ns.audit(graph)
    ns.check(graph)
    ns.lipschitz(graph)
    assert exports.calls == 2
    assert audit.lipschitz is not None
    assert again.lipschitz is not None
    assert again.lipschitz.log10_upper == audit.lipschitz.log10_upper


class Cyclic(nn.Module):
    """A batch that is laid out by steps, not by samples, with a constant for each of its places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scale the rows of all steps."""
        rows = x.transpose(0, 1).reshape(-1, 3)
        scale = torch.arange(x.shape[1]).repeat_interleave(x.shape[0]).add(1.0)[:, None]
        return (self.layer(rows) * scale).reshape(x.shape[1], x.shape[0], 3).transpose(0, 1)


def test_a_model_is_traced_again_where_the_rows_of_a_constant_are_not_known(exports: Counted) -> None:
    torch.manual_seed(0)
    model, batch = Cyclic().eval(), torch.randn(4, 2, 3)
    graph = capturing.trace_model(model, batch)
    assert exports.calls == 2
    assert graph.per_sample
    assert torch.allclose(graph.run(batch[1:2]), model(batch)[1:2])


def test_a_trace_that_does_not_give_what_the_model_gives_is_not_taken(
    exports: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, batch = Residual().eval(), torch.randn(4, 3, 4, 4)
    derive = capturing.first_sample

    def doubled(*given: Any) -> Any:
        program = derive(*given)
        assert program is not None
        program.state_dict["model.last.bias"] = 2.0 * program.state_dict["model.last.bias"]
        return program

    monkeypatch.setattr(capturing, "first_sample", doubled)
    graph = capturing.trace_model(model, batch)
    assert exports.calls == 2
    assert torch.allclose(graph.run(batch[1:2]), model(batch)[1:2], atol=1e-6)
