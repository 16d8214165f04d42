"""Every public function leaves the model, the batch and the process as it found them, also when it raises."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import normscope as ns
from normscope.core.errors import NormscopeError


class Everything(nn.Module):
    """Buffers that move in training, dropout, parametrizations, shared and frozen weights, a branch that raises."""

    def __init__(self, trouble: str | None = None) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.5))
        self.second = spectral_norm(nn.Linear(4, 4))
        self.third = weight_norm(nn.Linear(4, 4))
        self.register_buffer("calls", torch.zeros(()))
        self.trouble = trouble

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        x = self.third(self.second(self.first(x)).tanh())
        if self.trouble == "random":
            return x + torch.randn_like(x)
        if self.trouble == "rule":
            return x.std(1)
        if self.trouble == "branch" and x.sum() > 0:
            return 2 * x
        if self.trouble == "shape":
            return x @ torch.ones(3, 3)
        return x


def used(trouble: str | None, *, training: bool) -> Everything:
    """A model in use: grads, hooks, a frozen weight, flags that differ between modules."""
    torch.manual_seed(0)
    model = Everything(trouble).train(training)
    model(torch.randn(8, 4)).square().sum().backward() if trouble != "shape" else None
    model.first[0].bias.requires_grad_(False)
    model.first[1].train(not training)
    model.third.register_forward_hook(lambda module, inputs, output: None)
    model.first.register_forward_pre_hook(lambda module, inputs: None)
    model.second.register_full_backward_hook(lambda module, grad_in, grad_out: None)
    return model


def state(model: nn.Module) -> dict:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
    return {
        "state_dict": {name: value.clone() for name, value in model.state_dict().items()},
        "storage": {name: value.data_ptr() for name, value in model.state_dict().items()},
        "grads": {name: p.grad if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "grad objects": {name: id(p.grad) for name, p in model.named_parameters()},
        "requires_grad": {name: p.requires_grad for name, p in model.named_parameters()},
        "training": {name: module.training for name, module in model.named_modules()},
        "hooks": {(n, h): list(getattr(m, h).values()) for n, m in model.named_modules() for h in hooks},
        "classes": {name: type(module) for name, module in model.named_modules()},
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "torch rng": torch.get_rng_state(),
        "python rng": random.getstate(),
        "grad mode": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
    }


def differences(before: dict, after: dict) -> list[str]:
    """The keys whose values differ, tensors compared bit by bit."""
    found = []
    for key, value in before.items():
        other = after[key]
        if isinstance(value, dict):
            found += [f"{key}: {name}" for name in differences(value, other)]
        elif isinstance(value, Tensor):
            found += [] if isinstance(other, Tensor) and torch.equal(value, other) else [str(key)]
        elif value != other:
            found.append(str(key))
    return found


CALLS = {
    "capture": lambda model, batch: ns.capture(model, batch),
    "capture in the other mode": lambda model, batch: ns.capture(
        model, batch, mode="eval" if model.training else "train"
    ),
    "lipschitz": lambda model, batch: ns.lipschitz(model, batch, max_seconds=0.2),
    "lipschitz at points": lambda model, batch: ns.lipschitz(model, batch, scope="point"),
    "ladder": lambda model, batch: ns.ladder(model, batch, max_seconds=0.2),
    "audit": lambda model, batch: ns.audit(model, batch, loader=[batch, batch]),
}


CASES = [(name, training, None) for name in CALLS for training in (True, False)] + [
    (name, True, trouble)
    for name in CALLS
    for trouble in ("random", "rule", "branch", "shape")
    if name != "capture in the other mode"
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "training", "trouble"), CASES)
def test_nothing_is_touched(name: str, training: bool, trouble: str | None) -> None:
    model = used(trouble, training=training)
    batch = torch.randn(6, 4)
    kept = batch.clone()
    before = state(model)
    raised = None
    try:
        CALLS[name](model, batch)
    except NormscopeError as error:
        raised = error
    assert differences(before, state(model)) == []
    assert torch.equal(batch, kept)
    if trouble is None:
        assert raised is None
    elif name == "audit":  # it leaves out what it cannot measure
        assert (raised is not None) == (trouble == "shape")
    elif trouble in ("random", "shape") or (trouble == "branch" and "points" not in name):
        assert raised is not None


def test_differences_are_seen() -> None:
    """The comparison itself can fail."""
    model = used(None, training=True)
    before = state(model)
    changed = copy.deepcopy(before)
    changed["state_dict"]["calls"] += 1
    changed["training"]["first.3"] = not changed["training"]["first.3"]
    assert differences(before, changed) == ["state_dict: calls", "training: first.3"]
    model.first[0].weight.grad = None
    torch.rand(1)
    assert {"grads: first.0.weight", "torch rng"} <= set(differences(before, state(model)))


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("scope", ["global", "point"])
def test_it_works_inside(context, scope: str) -> None:
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).eval(), torch.randn(2, 3)
    with context():
        inside = ns.lipschitz(model, batch, scope=scope, max_seconds=2)
    outside = ns.lipschitz(model, batch, scope=scope, max_seconds=2)
    assert inside.log10_upper == pytest.approx(outside.log10_upper, abs=1e-6)
    assert inside.log10_lower > -1
