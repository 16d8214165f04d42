"""On a trained residual network in float32 the channel scales are projected out; a false direction never is."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.geometry import directions as room
from normscope.bounds.geometry import normalized
from normscope.bounds.graph import capturing
from normscope.products.objective import Objective

from .hessians import CROSS_ENTROPY

X, Y = torch.randn(24, 3, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3


class Residual(nn.Module):
    """A stem and a block with a skip: convolutions without bias before batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm0 = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm0(self.stem(x)))
        y = torch.relu(self.norm1(self.conv1(x)))
        return self.head(torch.relu(x + self.norm2(self.conv2(y))).mean((2, 3)))


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """Return the network after 60 steps with weight decay, at a loss of about 0.01: the gradient is small."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(60):
        optimizer.zero_grad()
        CROSS_ENTROPY(model(X), Y).backward()
        optimizer.step()
    model.zero_grad()
    return model


@pytest.mark.slow
def test_every_channel_scale_of_a_trained_residual_network_is_projected_out(trained: nn.Module) -> None:
    found = ns.hessian(trained, [(X[:12], Y[:12]), (X[12:], Y[12:])], loss=CROSS_ENTROPY, k=1, mode="train", products=1)
    assert found.loss < 0.1
    assert found.directions == found.directions_found == 24
    assert [(one.name, one.kept, one.verified) for one in found.invariants] == [
        (name, 8, True) for name in ("stem.weight", "conv1.weight", "conv2.weight")
    ]
    assert all(one.moves < 1e-2 for one in found.invariants)
    assert found.notes == ()


def claiming(monkeypatch: pytest.MonkeyPatch, **claims) -> None:
    """Let the graph claim of every weight before a normalizer what does not hold."""
    honest = normalized.feeds
    monkeypatch.setattr(normalized, "feeds", lambda g: [dataclasses.replace(feed, **claims) for feed in honest(g)])


@pytest.mark.one_in(1000)
@pytest.mark.parametrize(("slack", "reason"), [(1e-2, "not orthogonal"), (1.0, "moves the outputs")])
def test_false_scales_are_refused_with_the_reason(
    trained: nn.Module, monkeypatch: pytest.MonkeyPatch, slack: float, reason: str
) -> None:
    monkeypatch.setattr(room, "SLACK", slack)  # 1: the gradient does not object
    claiming(monkeypatch, scale_invariant=True)  # running statistics do not take a scale back
    found = ns.hessian(trained, (X, Y), loss=CROSS_ENTROPY, k=1, mode="eval", products=1)
    assert (found.directions, found.directions_found) == (0, 24)
    assert sum(reason in note for note in found.notes) == 3
    assert not any(one.verified or one.kept for one in found.invariants)
    assert "24 more that the graph shows were refused" in " ".join(str(found).split())


@pytest.mark.slow
def test_one_false_layer_does_not_cost_the_others(trained: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = normalized.feeds

    def planted(graph):  # the head is said to be scale invariant too, row by row
        found = honest(graph)
        head = next(node for node in graph if node.path == "head")
        return [*found, dataclasses.replace(found[0], weight=head, sets=(0, 1, 2))]

    monkeypatch.setattr(normalized, "feeds", planted)
    found = ns.hessian(trained, (X, Y), loss=CROSS_ENTROPY, k=1, mode="train", products=1)
    assert (found.directions, found.directions_found) == (24, 24 + 3 + 3)
    assert [one.name for one in found.invariants if not one.verified] == ["head.weight"]


def test_false_shifts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.RMSNorm(6), nn.Linear(6, 3))
    claiming(monkeypatch, bias_redundant="common", pointwise=True)
    found = ns.hessian(model, (X[:, 0, 0, :4], Y), loss=CROSS_ENTROPY, k=1, products=1)
    assert found.directions_found == 1 + 5
    assert found.directions <= 1  # the scale alone
    assert "5 shifts" in found.notes[-1]


def precisions() -> list[str]:
    backends = torch.backends
    parts = (backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul, backends.mkldnn.matmul)
    return [part.fp32_precision for part in parts]


@pytest.mark.parametrize("matmul", ["highest", "medium"])
def test_every_forward_runs_in_full_precision_and_the_settings_are_put_back(matmul: str, capsys) -> None:
    class Looking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            print(*precisions(), torch.backends.cudnn.allow_tf32)  # a list would be put back, too
            return super().forward(x)

    held = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(matmul)
        before = precisions(), torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
        ns.hessian(Looking(4, 3), (X[:, 0, 0, :4], Y), loss=CROSS_ENTROPY, k=1)
        assert before == (precisions(), torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision())
        with pytest.raises(ns.NormscopeError):
            ns.hessian(Looking(4, 3), (X[:, 0, 0, :4], Y), loss=lambda out, y: out, k=1)
        assert before == (precisions(), torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision())
    finally:
        torch.set_float32_matmul_precision(held)
    seen = capsys.readouterr().out.splitlines()
    assert len(seen) > 3  # in captures as well
    assert all(line.endswith("ieee ieee False") and "tf32" not in line for line in seen)


def test_a_captured_graph_is_not_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3))
    batch = X[:, 0, 0, :4], Y
    graph, found = ns.capture(model, batch[0]), ns.hessian(model, batch, loss=CROSS_ENTROPY, k=1)
    monkeypatch.setattr(capturing, "_export", None)
    again = ns.hessian(graph, batch, loss=CROSS_ENTROPY, k=1)
    assert again.directions == found.directions > 0
    assert again.eigenvalues == found.eigenvalues


@pytest.mark.slow
def test_weights_in_another_layout_and_norms_of_weights_are_scaled_too() -> None:
    """Entries of channels-last weights are found in the flat vector, and `weight_norm` has a scale of its own."""
    plain, other = Residual(), Residual().to(memory_format=torch.channels_last)
    other.load_state_dict(plain.state_dict())
    groups = [
        room.find_directions(Objective(m, (X, Y), loss=CROSS_ENTROPY, mode="train")).group for m in (plain, other)
    ]
    assert torch.equal(*groups)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 6))
    model = nn.Sequential(normed, nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3))
    found = ns.hessian(model, (X[:, 0, 0, :4], Y), loss=CROSS_ENTROPY, k=1, products=1)
    assert [(one.name, one.verified) for one in found.invariants] == [("0.parametrizations.weight.original0", True)]
