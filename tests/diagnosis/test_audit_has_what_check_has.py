"""An audit is a check with bounds: it takes what a check takes, and has every finding that a check has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.graph.ir import Graph
from normscope.core.errors import InputError
from normscope_faults.models import PARTS

FAULTS = """
weights-drawn-at-one third-layer-times-hundred embeddings-at-a-thousand equal-weights-in-hidden-layers
rank-one-hidden-layer killed-by-a-high-rate code-detached root-of-a-zero-distance
"""
SLOW_FAULTS = """
seven-layers-of-sigmoids residual-scale-of-ten convolution-of-zeros decayed-to-nothing generator-saturates-its-tanh
code-rounded hard-choice-of-experts memory-mask-inverted zero-initialised-last-convolution batch-norm-eps-of-hundred
"""
"""Faults of many kinds; none of the half that is for scoring alone."""
CASES = {entry.name: entry for entry in (*PARTS["open"][0], *PARTS["open"][1])}


def said(result: ns.Check | ns.Audit) -> set[tuple[str, str, str, str]]:
    return {(finding.code, finding.where, finding.severity.value, finding.advice) for finding in result.findings}


@pytest.mark.parametrize(
    "name", [*FAULTS.split(), *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_FAULTS.split())]
)
def test_an_audit_has_every_finding_of_a_check(name: str) -> None:
    case = CASES[name].build()
    checked = said(ns.check(case.model, case.data, loss=case.loss))
    assert checked <= said(ns.audit(case.model, case.data, loss=case.loss, rtol=0.1))


def test_an_audit_with_a_loss_looks_at_outputs_and_targets() -> None:
    x, y = torch.randn(64, 8), torch.arange(64) % 5
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5), nn.Softmax(dim=1))
    audit = ns.audit(model, (x, y), loss="cross_entropy")
    assert "activation-before-loss" in {finding.code for finding in audit.findings}
    assert audit.signal.objective.gradient_of == "the loss"
    assert audit.lipschitz is not None
    with pytest.raises(InputError, match="there is no loss 'cosine'"):
        ns.audit(model, (x, y), loss="cosine")
    with pytest.raises(InputError, match="the loss raises"):
        ns.audit(model, x, loss="cross_entropy")


@dataclass
class Pair:
    mean: Tensor
    spread: Tensor


class TwoHeads(nn.Module):
    """Returns two tensors of different shapes, in a container of some kind."""

    def __init__(self, container: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean, self.spread = nn.Linear(4, 3), nn.Linear(4, 6)
        self.container = container

    def forward(self, x: Tensor) -> Any:
        return self.container(self.mean(x), self.spread(x).reshape(len(x), 2, 3))


CONTAINERS = {
    "tuple": lambda mean, spread: (mean, spread),
    "dict": lambda mean, spread: {"mean": mean, "spread": spread},
    "dataclass": Pair,
    "nested": lambda mean, spread: {"all of them": (mean, [spread])},
}


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_several_outputs_are_measured_together(container: Any) -> None:
    model = TwoHeads(container).eval()
    x = torch.randn(16, 4)
    both = torch.cat([model.mean.weight, model.spread.weight]).detach()
    norm = float(torch.linalg.matrix_norm(both.double(), 2))
    audit = ns.audit(model, x)
    assert audit.output_shape == (1, 9)
    assert 10**audit.lipschitz.log10_lower <= norm * (1 + 1e-6)
    assert norm <= 10**audit.lipschitz.log10_upper <= norm * 1.001
    assert any("measured together" in note for note in audit.notes)
    check = ns.check(model, x)
    assert any("measured together" in note for note in check.notes)
    assert ns.Check.from_json(check.to_json()) == check


def test_one_output_may_be_chosen() -> None:
    model, x = TwoHeads(CONTAINERS["dict"]).eval(), torch.randn(16, 4)
    audit = ns.audit(model, x, output="mean")
    assert audit.output_shape == (1, 3)
    assert not any("together" in note for note in audit.notes)
    assert ns.lipschitz(model, x, output="all").log10_upper == pytest.approx(
        ns.audit(model, x).lipschitz.log10_upper, abs=1e-3
    )
    with pytest.raises(InputError, match="no float output 'third'"):
        ns.audit(model, x, output="third")


def test_several_outputs_of_different_lengths_are_one_row() -> None:
    class WithPenalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            made = self.layer(x)
            return made, made.square().mean()

    audit = ns.audit(WithPenalty().eval(), torch.randn(8, 4))
    assert audit.observed is not None
    assert any("measured together" in note for note in audit.notes)


def test_several_outputs_of_a_model_that_cannot_be_traced() -> None:
    class Untraced(TwoHeads):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x * 2.0 if float(x.sum()) > 0.0 else x)

    audit = ns.audit(Untraced(CONTAINERS["tuple"]).eval(), torch.ones(4, 4))
    assert audit.lipschitz is None
    assert audit.observed is not None
    assert any("measured together" in note for note in audit.notes)


def test_a_constant_for_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="known names module 'third'"):
        ns.audit(TwoHeads(CONTAINERS["tuple"]).eval(), torch.randn(16, 4), known={"third": 1.0})


class Conditioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.time = nn.Linear(4, 3), nn.Linear(1, 3)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.layer(x) + self.time(t)


@pytest.mark.parametrize("examine", [ns.check, ns.audit])
def test_inputs_by_name_beside_targets(examine: Any) -> None:
    inputs = {"x": torch.randn(32, 4), "t": torch.rand(32, 1)}
    y = torch.arange(32) % 3
    result = examine(Conditioned(), (inputs, y), loss="cross_entropy")
    assert result.signal.loss is not None
    assert result.signal.loss.target_shape == (32,)
    assert [row.path for row in result.signal.inputs] == ["input x", "input t"]


def test_a_dict_that_is_an_argument_itself_stays_one() -> None:
    class Taking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, graph: dict[str, Tensor], shift: Tensor) -> Tensor:
            return self.layer(graph["nodes"]) + shift

    result = ns.check(Taking(), ({"nodes": torch.randn(8, 4)}, torch.randn(8, 3)))
    assert len(result.signal.inputs) == 2


class Recommender(nn.Module):
    """Takes the numbers of users and items side by side, and splits them itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.users, self.items = nn.Embedding(10, 4), nn.Embedding(20, 4)

    def forward(self, pairs: Tensor) -> Tensor:
        users, items = pairs.split(1, dim=1)
        chosen = torch.nn.functional.one_hot(users[:, 0], 10).float() @ self.users.weight
        return (chosen * self.items.weight[items[:, 0]]).sum(1)


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (Recommender(), torch.randint(10, (64, 2))),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.full((8, 4), torch.nan)),
    ],
    ids=["integers without an embedding", "not a number"],
)
def test_what_has_no_bound_has_findings_and_a_reason(model: nn.Module, batch: Tensor) -> None:
    checked, audit = ns.check(model, batch), ns.audit(model, batch)
    assert said(checked) <= said(audit)
    assert audit.lipschitz is None
    assert any("bounds" in what for what, _ in audit.skipped)


class Messages(nn.Module):
    """A small graph network: each node adds up what its neighbours send."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        sent = self.first(x)
        heard = torch.zeros_like(sent).index_add(0, edges[1], sent[edges[0]])
        return self.last(torch.relu(sent + heard))


def sentences() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Embedding(11, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    return model, torch.randint(11, (8, 6))


@pytest.mark.parametrize(
    "built", [lambda: (Messages(), (torch.randn(40, 8), torch.randint(40, (2, 120)))), sentences], ids=["graph", "text"]
)
def test_an_audit_takes_few_forward_passes(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = built()
    passes, call, values = [0], nn.Module.__call__, Graph.values

    def counted_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        passes[0] += self is model
        return call(self, *args, **kwargs)

    def counted_values(self: Graph, *inputs: Tensor) -> Any:
        passes[0] += 1
        return values(self, *inputs)

    monkeypatch.setattr(nn.Module, "__call__", counted_call)
    monkeypatch.setattr(Graph, "values", counted_values)
    ns.audit(model, batch)
    assert 5 < passes[0] <= 60
