"""A divergence in the loss of a variational autoencoder: its sign, and a code that nothing else teaches."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import normscope as ns

ROWS = torch.tanh(
    torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    @ torch.randn(3, 24, generator=torch.Generator().manual_seed(1))
)
Made = tuple[Tensor, Tensor, Tensor]


class Coder(nn.Module):
    """An autoencoder with a drawn code: `draw` makes it of mean and deviation, `spread` is what it returns."""

    def __init__(
        self,
        draw: Callable[[Tensor, Tensor], Tensor] = lambda mean, deviation: mean + deviation * torch.randn_like(mean),
        spread: Callable[[Tensor], Tensor] = lambda logvar: logvar,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden = nn.Sequential(nn.Linear(24, 32), nn.ReLU())
        self.mean, self.logvar = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 24))
        self.draw, self.spread = draw, spread

    def forward(self, x: Tensor) -> Made:
        hidden = self.hidden(x)
        mean, logvar = self.mean(hidden), self.logvar(hidden)
        return self.decoder(self.draw(mean, (0.5 * logvar).exp())), mean, self.spread(logvar)


def loss_with(weight: float, deviation: Callable[[Tensor], Tensor] = lambda logvar: (0.5 * logvar).exp()) -> object:
    """Return squares plus a weight times the divergence of each sample, as torch.distributions has it."""

    def loss(made: Made, target: Tensor) -> Tensor:
        again, mean, spread = made
        divergence = kl_divergence(Normal(mean, deviation(spread)), Normal(0.0, 1.0)).sum(1).mean()
        return (again - target).square().sum(1).mean() + weight * divergence

    return loss


def codes(result: ns.Check) -> list[tuple[str, str]]:
    return [(finding.code, finding.where) for finding in result.findings if finding.severity > ns.Severity.INFO]


@pytest.mark.parametrize("weight", [1.0, -1.0, 0.03, -50.0])
@pytest.mark.parametrize(
    ("spread", "deviation"),
    [
        (lambda logvar: logvar, lambda logvar: (0.5 * logvar).exp()),
        (lambda logvar: 0.5 * logvar, lambda log_deviation: log_deviation.exp()),
        (lambda logvar: (0.5 * logvar).exp(), lambda deviation: deviation),
        (lambda logvar: logvar.exp(), lambda variance: variance.sqrt()),
    ],
    ids=["log variance", "log deviation", "deviation", "variance"],
)
def test_the_weight_of_a_divergence_is_read_with_its_sign(
    weight: float, spread: Callable[[Tensor], Tensor], deviation: Callable[[Tensor], Tensor]
) -> None:
    result = ns.check(Coder(spread=spread), (ROWS, ROWS), loss=loss_with(weight, deviation))
    assert result.signal.divergence.weight == pytest.approx(weight, rel=1e-3)
    assert result.signal.divergence.untaught == ()
    assert ns.Check.from_json(result.to_json()).signal == result.signal
    assert codes(result) == ([("loss-does-not-fit", "the loss")] if weight < 0.0 else [])


@pytest.mark.parametrize(
    "term",
    [
        lambda mean, logvar: mean.square().sum() + logvar.square().sum(),
        lambda mean, logvar: kl_divergence(Normal(mean, (0.5 * logvar).exp()), Normal(1.0, 2.0)).sum(),
        lambda mean, logvar: kl_divergence(Normal(mean, (0.5 * logvar).exp()), Normal(0.0, 1.0)).clamp(min=9.0).sum(),
    ],
    ids=["penalty", "another prior", "free bits"],
)
def test_another_term_is_not_taken_for_the_divergence(term: Callable[[Tensor, Tensor], Tensor]) -> None:
    result = ns.check(Coder(), (ROWS, ROWS), loss=lambda m, y: (m[0] - y).square().mean() - 0.01 * term(m[1], m[2]))
    assert result.signal.divergence is None


CUTS = {
    "noise": (lambda mean, deviation: mean + (deviation * torch.randn_like(mean)).detach(), ("logvar",)),
    "mean": (lambda mean, deviation: mean.detach() + deviation * torch.randn_like(mean), ("mean",)),
    "code": (
        lambda mean, deviation: (mean + deviation * torch.randn_like(mean)).detach(),
        ("hidden.0", "mean", "logvar"),
    ),
    "data": (lambda mean, deviation: (mean + deviation * torch.randn_like(mean)).data, ("hidden.0", "mean", "logvar")),
}


@pytest.mark.parametrize("how", CUTS)
def test_a_code_that_the_divergence_alone_teaches_is_cut_from_the_error(how: str) -> None:
    draw, untaught = CUTS[how]
    result = ns.check(Coder(draw), (ROWS, ROWS), loss=loss_with(1.0))
    assert result.signal.divergence.untaught == untaught
    assert codes(result) == [("gradient-cut", untaught[-1])]


def test_half_of_a_layer_that_makes_mean_and_spread_may_be_cut() -> None:
    class Halves(Coder):
        def forward(self, x: Tensor) -> Made:
            mean, logvar = self.both(self.hidden(x)).chunk(2, 1)
            return self.decoder(self.draw(mean, (0.5 * logvar).exp())), mean, logvar

    for how, told in ((CUTS["noise"][0], [("gradient-cut", "both")]), (Coder().draw, [])):
        model = Halves(how)
        model.both = nn.Linear(32, 8)
        del model.mean, model.logvar
        assert codes(ns.check(model, (ROWS, ROWS), loss=loss_with(1.0))) == told


def test_a_code_that_has_collapsed_is_not_cut() -> None:
    """The weight of the divergence is far too large, and the code is that of the prior: its gradient still comes."""
    model, loss = Coder(), loss_with(100.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(200):
        optimizer.zero_grad()
        loss(model(ROWS), ROWS).backward()
        optimizer.step()
    result = ns.check(model, (ROWS, ROWS), loss=loss)
    assert result.signal.divergence.untaught == ()
    assert "gradient-cut" not in [finding.code for finding in result.findings]


def test_a_code_that_nothing_reads_is_not_cut() -> None:
    result = ns.check(Coder(lambda mean, deviation: torch.randn_like(mean)), (ROWS, ROWS), loss=loss_with(1.0))
    assert [code for code, _ in codes(result)] == ["input-ignored"]


@pytest.mark.parametrize("examine", [ns.check, ns.audit])
def test_the_sign_is_told_before_the_weights_that_it_broke(examine: Callable[..., ns.Check | ns.Audit]) -> None:
    model = Coder()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    for weight, told in ((-1.0, ["loss-does-not-fit", "non-finite-weights"]), (1.0, ["non-finite-weights"])):
        result = examine(model, (ROWS, ROWS), loss=loss_with(weight))
        assert [finding.code for finding in result.findings if finding.severity is ns.Severity.ERROR] == told


def test_a_loss_of_minus_infinity_has_no_lower_limit() -> None:
    model = nn.Sequential(nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 24))
    (finding,) = (
        finding
        for finding in ns.check(
            model, (ROWS, ROWS), loss=lambda made, y: (made - y).square().mean() - math.inf
        ).findings
        if finding.code == "loss-not-finite"
    )
    assert finding.advice.startswith("A loss that has fallen to minus infinity has no lower limit")
