"""Findings name the cause: the bias that holds a ReLU off, the branch that makes a residual network explode."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import normscope as ns


def audited(model: nn.Module, batch: Tensor) -> dict[tuple[str, str], ns.Finding]:
    """Return the warnings of an audit by code and place."""
    audit = ns.audit(model, batch)
    return {(f.code, f.where): f for f in audit.findings if f.severity == "warning"}


def settled(*layers: nn.Module) -> nn.Sequential:
    """A network with running statistics of its data, in eval mode."""
    model = nn.Sequential(*layers)
    for _ in range(60):
        model(torch.randn(256, 16))
    return model.eval()


def two_blocks(norm: type[nn.Module] | None) -> nn.Sequential:
    first = [nn.Linear(16, 32), *([norm(32)] if norm else []), nn.ReLU()]
    return settled(*first, nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(("norm", "position"), [(nn.BatchNorm1d, 1), (nn.LayerNorm, 1), (None, 0)])
def test_a_bias_that_holds_a_relu_off_is_named_and_nothing_behind_it(norm, position, mode):
    model, x = two_blocks(norm).train(mode == "train"), torch.randn(256, 16)
    healthy = audited(model, x)
    assert not [code for code, _ in healthy if code == "dead-relu"]
    with torch.no_grad():
        model[position].bias.fill_(-20.0)
    found = audited(model, x)
    assert list(found) == [("dead-relu", str(position))]
    (finding,) = found.values()
    assert f"The bias of `{position}` is -20" in finding.seen
    assert f"Set the bias of `{position}` back" in finding.advice
    assert finding.numbers["bias"] == -20.0


@pytest.mark.slow
def test_a_bias_below_zero_in_part_of_the_channels():
    model = two_blocks(nn.BatchNorm1d)
    with torch.no_grad():
        model[1].bias[:20] = -15.0
    (finding,) = (f for (code, _), f in audited(model, torch.randn(256, 16)).items() if code == "dead-relu")
    assert "The bias of `1` is -15" in finding.seen


def test_a_relu_that_is_off_for_another_reason_names_no_bias():
    model = two_blocks(None)
    with torch.no_grad():
        model[0].weight.copy_(-model[0].weight.abs())
    found = audited(model, torch.rand(256, 16) + 1.0)
    finding = found["dead-relu", "0"]  # the layer whose weights stop learning
    assert "The bias of" not in finding.seen
    assert finding.numbers["bias"] is None


class Skipped(nn.Module):
    """A dead branch beside a live path: what follows is not explained by it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.norm = nn.Linear(16, 16), nn.ReLU(), nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.act(self.first(x)))


def test_what_a_live_path_reaches_is_still_told():
    model = Skipped().eval()
    with torch.no_grad():
        model.first.bias.fill_(-20.0)
        model.norm.running_var.fill_(100.0)
    assert {("dead-relu", "first"), ("stale-statistics", "norm")} <= set(audited(model, torch.randn(256, 16)))


@pytest.mark.slow
def test_a_relu_that_is_off_in_part_explains_nothing_behind_it():
    model = two_blocks(nn.BatchNorm1d)
    with torch.no_grad():
        model[1].bias[:20] = -15.0
        model[4].running_var.mul_(50.0)
    assert ("stale-statistics", "4") in audited(model, torch.randn(256, 16))


class Block(nn.Module):
    """x + scale * b(relu(a(x)))."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(width, width), nn.Linear(width, width), scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.b(self.a(x).relu())


class After(Block):
    """relu(x + b(relu(a(x)))): the activation after the sum."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def started(model: nn.Module, gain: float) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)
            module.weight.data *= gain
    return model.eval()


@pytest.mark.slow
@pytest.mark.one_in(1000)
@pytest.mark.parametrize("kind", [Block, After])
@pytest.mark.parametrize("blocks", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_an_exploding_residual_network_is_told_to_scale_its_branches(kind, blocks):
    model = started(nn.Sequential(*[kind(32, 1.0) for _ in range(blocks)], nn.Linear(32, 4)), 1.8)
    finding = audited(model, torch.randn(128, 32))["exploding-run", "0.a"]
    found = finding.numbers["blocks"]
    assert blocks - 1 <= found <= blocks  # the run may end a block early
    assert f"Scale each branch by 1/sqrt({found})" in finding.advice
    assert "`0.b`, `1.b`, `2.b`, ..." in finding.advice
    assert "kaiming" not in finding.advice
    assert "times per residual block" in finding.seen


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", [Block, After])
def test_its_healthy_twin_scales_them_and_is_left_alone(kind):
    model = started(nn.Sequential(*[kind(32, 8**-0.5) for _ in range(8)], nn.Linear(32, 4)), 1.0)
    assert not audited(model, torch.randn(128, 32))


@pytest.mark.slow
def test_a_chain_without_skips_is_still_told_to_initialise():
    layers = [layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.ReLU())]
    finding = audited(started(nn.Sequential(*layers), 2.0), torch.randn(128, 32))["exploding-run", "0"]
    assert "kaiming_normal_" in finding.advice
    assert finding.numbers["blocks"] is None


@pytest.mark.slow
def test_two_branches_that_are_added_are_no_residual_block():
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return (self.a(x) + self.b(x)).relu()

    finding = audited(started(nn.Sequential(*[Twins() for _ in range(6)], nn.Linear(32, 4)), 2.0), torch.randn(128, 32))
    (found,) = (f for (code, _), f in finding.items() if code == "exploding-run")
    assert found.numbers["blocks"] is None
