"""Do the trials of domains bite? Bugs are planted one by one; each is caught by a trial that passes without it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.domain import conditions, derivative, gains
from normscope.bounds.domain import domain as recording
from normscope.bounds.domain.conditions import DomainCondition
from normscope.bounds.operators.effects import Gain, Linear
from normscope.core.errors import SoundnessError

from ..soundness.networks import Function
from ..soundness.planting import around, replacing
from .test_domain import Bare, crossed, data, drawn, jacobian_norm

Patch = pytest.MonkeyPatch


def inside(model: nn.Module, x: Tensor, **options: Any) -> Callable[[], None]:
    """Recorded data lies inside, and its Jacobians are below the bound, which has what the network allows."""

    def trial() -> None:
        domain = ns.domain(model, [x], **options)
        assert domain.contains(x).all()
        assert domain.contains(x[-1:]).all()
        bracket = ns.lipschitz(model, x[:2], scope="domain", domain=domain)
        for row in x:
            if bool(domain.contains(row[None])[0]):
                assert jacobian_norm(model, row) <= bracket.upper * (1 + 1e-9)

    return trial


def between(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """What lies outside is found outside: scaled down, its variance vanishes; scaled up, ranges are left."""

    def trial() -> None:
        domain = ns.domain(model, [x])
        bracket = ns.lipschitz(model, x[:2], scope="domain", domain=domain)
        for factor in (1e-3, 0.1, 0.5, 1.5, 10.0):
            for row in factor * x:
                if bool(domain.contains(row[None])[0]):
                    assert jacobian_norm(model, row) <= bracket.upper * (1 + 1e-9)

    return trial


def layered() -> nn.Module:
    return drawn(nn.Sequential(nn.LayerNorm(5, eps=1e-8), nn.Linear(5, 3)))


def tokens(samples: int) -> Tensor:
    """Tokens of three sizes."""
    return data(samples, 3, 5) * torch.tensor([0.05, 1.0, 5.0])[:, None]


def offset() -> nn.Module:
    """Units of which the first is never on."""
    model = drawn(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([-50.0, 50.0, 0.0, 0.0]))
    return model


def product_of_layers() -> nn.Module:
    """A product whose first factor hardly moves."""
    return Function(
        lambda net, x: (3.0 + 0.01 * net.first(x)) * net.second(x), first=nn.Linear(4, 5), second=nn.Linear(4, 5)
    )


CHOSEN = Function(lambda x: (4 * x).softmax(-1)).eval()


def bent() -> nn.Module:
    return drawn(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))


def wide() -> nn.Module:
    """A network with more outputs than are differentiated one by one."""
    return drawn(nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 40)))


def growing(samples: int, width: int) -> Tensor:
    """Samples of several sizes, the steepest in the midst."""
    sizes = torch.tensor([abs(i - samples // 2) + 0.01 for i in range(samples)])
    return 0.5 * sizes[:, None] * data(samples, width)


def steep(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """The gain of every sample is that of its own Jacobian."""

    def trial() -> None:
        norms = gains.norms_above(copy.deepcopy(model).double(), x.double(), gains.STEPS)
        for norm, row in zip(norms.tolist(), x, strict=True):
            exact = jacobian_norm(model, row)
            assert exact <= norm <= exact * (1 + 2e-3)

    return trial


def _first_only(self: Any, figures: Any, samples: int) -> None:
    if not self.largest:
        self.largest = {key: rows[:1] for key, rows in figures.items()}
    self.samples += samples


def _scaled(name: str, factor: float) -> Callable[[Patch], None]:
    """Scale the figures of one kind of condition."""

    def plant(patch: Patch) -> None:
        kind = getattr(conditions, name, None) or getattr(gains, name)
        own = kind.figures
        patch.setattr(kind, "figures", lambda self, values: factor * own(self, values))

    return plant


def _mean_variance(patch: Patch) -> None:
    def figures(self: Any, values: Any, enough: Any = None) -> Tensor:
        y = values[self.reads[0]]
        return (
            -y.square()
            .mean(-1)
            .reshape(len(y), -1, self.classes)
            .mean((1, 2), keepdim=False)[:, None]
            .expand(-1, self.classes)
        )

    patch.setattr(conditions.LeastMeanSquare, "figures", figures)


@around(derivative, "slopes_as_scale")
def _swapped_slopes(own: Any, a: Tensor, b: Tensor, *, exact: bool) -> Any:
    return own(a, (a + b) / 2, exact=exact)


def _first_channel(patch: Patch) -> None:
    def figures(self: Any, values: Any, enough: Any = None) -> Tensor:
        x = values[self.reads[0]].reshape(len(values[self.reads[0]]), -1)[:, :1]
        x = x.expand(-1, self.channels)
        return torch.cat([x, -x], 1)

    patch.setattr(conditions.Interval, "figures", figures)


@around(derivative.StepByStep, "pieces")
def _one_operand(own: Any, self: Any, limits: Any) -> Any:
    found = own(self, limits)
    places = [i for i, piece in enumerate(found) if any("~1" in ref for ref in piece.refs)]
    for i in places:
        last = found[i]
        effect = Linear(maps=last.effect.maps[:1])
        found[i] = derivative.DerivativeValue(last.name, last.refs[:1], last.shape, effect)
    return found


@around(derivative.MeasuredPart, "pieces")
def _queries_alone(own: Any, self: Any, limits: Any) -> Any:
    (piece,) = own(self, limits)
    few = Gain(gains=(piece.effect.gains[0], *(gain.__class__(-9.0, gain.evidence) for gain in piece.effect.gains[1:])))
    return self.whole(few)


@around(conditions.LeastMeanSquare, "enclosure")
def _large_eps(own, self, limits):
    return own(self, limits - 1.0)


_everything_inside = replacing(DomainCondition, "excess", lambda self, figures, limits: torch.full_like(figures, -1.0))


_last_batch = replacing(recording.Extremes, "add", _first_only)


@around(gains.Krylov, "only")
def _later_alone(own, self, rows):
    """Leave the rows of bases behind when samples that are done are left out."""
    return own(self, rows.roll(1))


BUGS = {  # mistakes, each with the trial that must see it
    "the average variance instead of the least": (_mean_variance, inside(layered(), tokens(20))),
    "eps of one": (_large_eps, inside(layered(), 0.2 * data(20, 5))),
    "half of every slope interval": (_swapped_slopes, inside(bent(), data(30, 3))),
    "the first entry stands for all channels": (_first_channel, inside(offset(), data(30, 3))),
    "a product moves with one factor alone": (_one_operand, inside(drawn(product_of_layers()), data(20, 4))),
    "attention moves with its queries alone": (_queries_alone, inside(drawn(crossed()), data(20, 3, 4))),
    "attention's gain is halved": (_scaled("LocalGain", 0.3), inside(drawn(Bare()), data(20, 3, 4))),
    "a softmax moves too little": (_scaled("StepGains", 0.5), inside(CHOSEN, data(20, 4))),
    "every input is inside": (_everything_inside, between(layered(), data(20, 5))),
    "one sample counts": (_last_batch, inside(bent(), data(30, 3))),
    "bases change their samples": (_later_alone, steep(wide(), growing(9, 40))),
}  # fmt: skip


QUICK = [name for name in BUGS if "attention" not in name]


@pytest.mark.parametrize("trial", [BUGS[name][1] for name in QUICK], ids=QUICK)
def test_the_trials_pass_where_nothing_is_planted(trial: Callable[[], None]) -> None:
    trial()


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: Patch) -> None:
    plant, trial = BUGS[name]
    trial()
    plant(monkeypatch)
    with pytest.raises((AssertionError, SoundnessError)):
        trial()
