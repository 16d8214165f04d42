"""Every public function leaves the model, the batch and the process as it found them, also when it raises."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import normscope as ns
import normscope_lab as lab
from normscope.core.errors import InputError, NormscopeError
from normscope.core.untouched import Mode

from ..real_models.observe import assert_same, snapshot, used


class Everything(nn.Module):
    """Buffers that move in training, dropout, parametrizations, shared and frozen weights, a branch that raises."""

    def __init__(self, trouble: str | None = None) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.5))
        self.second = spectral_norm(nn.Linear(4, 4))
        self.third = weight_norm(nn.Linear(4, 4))
        self.register_buffer("calls", torch.zeros(()))
        self.trouble, self.forwards = trouble, itertools.count()

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        if self.trouble == "interrupt" and next(self.forwards) > 0:
            raise KeyboardInterrupt
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


def in_use(trouble: str | None, *, training: bool) -> Everything:
    """A model in use: grads, hooks, a frozen weight, flags that differ between modules."""
    torch.manual_seed(0)
    model = Everything(trouble).train(training)
    used(model)
    model.first[1].train(not training)
    return model


LOSS, LABELS = "cross_entropy", torch.tensor([0, 1, 2, 3, 0, 1])
CALLS = {
    "capture": lambda model, batch: ns.capture(model, batch),
    "capture in the other mode": lambda model, batch: ns.capture(
        model, batch, mode="eval" if model.training else "train"
    ),
    "lipschitz": lambda model, batch: ns.lipschitz(model, batch, max_seconds=0.2),
    "lipschitz at points": lambda model, batch: ns.lipschitz(model, batch, scope="point"),
    "ladder": lambda model, batch: ns.ladder(model, batch, max_seconds=0.2),
    "audit": lambda model, batch: ns.audit(model, batch, loader=[batch, batch]),
    "check": lambda model, batch: ns.check(model, batch),
    "spectral norm": lambda model, batch: ns.spectral_norm(model.second),
    "hessian": lambda model, batch: ns.hessian(model, (batch, LABELS), loss=LOSS, k=1, probes=1, blocks=True),
    "smoothness": lambda model, batch: ns.smoothness(model, (batch, LABELS), loss=LOSS, steps=1, trial_steps=1),
    "flatness": lambda model, batch: ns.flatness(model, (batch, LABELS), loss=LOSS, levels=(0.1,), draws=1),
    "measures": lambda model, batch: ns.measures(model, (batch, LABELS), start=model, max_seconds=2.0),
    "symmetries": lambda model, batch: ns.symmetries(model, batch),
    "generalization": lambda model, batch: ns.generalization(model, (batch, LABELS), steps=2, cells=(1,)),
    "initialise": lambda model, batch: ns.initialise(model, batch),
    "twin": lambda model, batch: ns.twin(model, batch, normalizer="layer"),
    "flow": lambda model, batch: lab.flow(model, (batch, LABELS), loss=LOSS, time=0.1),
}
TROUBLES = ("random", "rule", "branch", "shape", "interrupt")
MOVING = ("hessian", "smoothness", "flatness", "measures", "generalization", "flow")
"""They write other values into the weights, and put them back."""
CASES = [
    *((name, training, None) for name in CALLS for training in (True, False)),
    *((name, True, trouble) for name in CALLS for trouble in TROUBLES),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "training", "trouble"), CASES)
def test_nothing_is_touched(name: str, training: bool, trouble: str | None) -> None:
    model = in_use(trouble, training=training)
    batch = torch.randn(6, 4)
    kept, before, raised = batch.clone(), snapshot(model), None
    try:
        CALLS[name](model, batch)
    except (NormscopeError, KeyboardInterrupt) as error:
        raised = error
    after = snapshot(model)
    if name in MOVING:
        del before["versions"], after["versions"]
    assert_same(before, after)
    assert torch.equal(batch, kept)
    if trouble == "shape" and name != "spectral norm":
        assert raised is not None
    if trouble == "random" and name in ("capture", "lipschitz", "ladder"):
        assert raised is not None


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_model_made_in_inference_mode_is_refused_with_a_remedy_that_works(mode: Mode) -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    batch = torch.randn(16, 4)
    measures: tuple[Callable[[nn.Module], Any], ...] = (
        lambda model: ns.check(model, batch, mode=mode),
        lambda model: ns.audit(model, batch, mode=mode),
        lambda model: ns.lipschitz(model, batch, mode=mode),
    )
    for measure in measures:
        with pytest.raises(InputError, match=r"`0\.weight` was made inside of torch\.inference_mode.*copy\.deepcopy"):
            measure(model)
    assert ns.check(copy.deepcopy(model), batch, mode=mode).skipped == ()


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


@pytest.mark.parametrize("trained", [True, False])
def test_a_backward_that_waits_finds_the_statistics_that_it_was_recorded_with(trained: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).train(trained)
    x, y = torch.randn(16, 4), torch.arange(16) % 3
    loss = nn.functional.cross_entropy(model(x), y)
    ns.check(model, (x, y), loss="cross_entropy", mode="train")
    ns.capture(model, x, mode="train")
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
