"""The curvature is that of the network without dropout, whoever drops, and everything is put back."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns

from .hessians import CROSS_ENTROPY


class Functional(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.inner, self.head, self.often = nn.Linear(4, 6), nn.Linear(6, 3), share

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(torch.tanh(self.inner(x[:, 0])), self.often, self.training))


class Scaled(Functional):
    def forward(self, x: Tensor) -> Tensor:
        out = torch.tanh(self.inner(x))
        return self.head(F.scaled_dot_product_attention(out, out, out, None, self.often)[:, 0])


class Path(nn.Module):
    """Drops by hand, by a number that it keeps."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.inner, self.head, self.drop_prob = nn.Linear(4, 6), nn.Linear(6, 3), share

    def forward(self, x: Tensor) -> Tensor:
        out = torch.tanh(self.inner(x[:, 0]))
        kept = 1.0 - self.drop_prob
        return self.head(out * torch.empty(len(out), 1).bernoulli_(kept).to(out) / kept if self.drop_prob else out)


class Attending(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.inner, self.head = nn.MultiheadAttention(4, 2, dropout=share, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x, x, x)[0][:, 0])


class Recurrent(nn.Module):
    kind = nn.LSTM

    def __init__(self, share: float) -> None:
        super().__init__()
        self.inner, self.head = self.kind(4, 3, num_layers=2, dropout=share, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)[0][:, -1])


def modules(share: float) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(20, 4), nn.Dropout(share), nn.Tanh(), nn.Linear(4, 3))


DROPPING = (Functional, Scaled, Path, Attending, Recurrent, modules)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("build", DROPPING, ids=lambda build: build.__name__)
def test_the_curvature_is_that_without_dropout(build) -> None:
    dropping, plain = build(0.5).double(), build(0.0).double()
    plain.load_state_dict(dropping.state_dict())
    held = [dict(vars(module)) for module in dropping.modules()]
    x, y = torch.randn(6, 5, 4, dtype=torch.float64), torch.randint(3, (6,))
    options = {"k": 1, "mode": "train", "rtol": 1e-9, "deflate": False}
    truth = ns.hessian(plain, (x, y), loss=CROSS_ENTROPY, **options)
    for _ in range(2):
        torch.rand(1)  # another state of the generator, and so other masks
        found = ns.hessian(dropping, (x, y), loss=CROSS_ENTROPY, **options)
        assert found.loss == pytest.approx(truth.loss, rel=1e-12)
        assert found.sharpness == pytest.approx(truth.sharpness, rel=1e-7)
        assert found.notes == ()
    assert [dict(vars(module)) for module in dropping.modules()] == held
    torch.manual_seed(0)
    first = dropping(x)
    assert not torch.equal(first, dropping(x))  # it drops again


def test_dropout_is_back_after_an_error() -> None:
    model = Attending(0.5)
    with pytest.raises(ns.NormscopeError):
        ns.hessian(model, (torch.randn(6, 5, 4), torch.zeros(6)), loss=lambda out, y: out, mode="train", deflate=False)
    assert model.inner.dropout == 0.5
    assert float(F.dropout(torch.ones(1000), 0.5).mean()) != 1.0


def test_a_number_that_is_no_share_to_drop_stays() -> None:
    class Threshold(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.droplet, self.dropout_keep, self.drop_rate = nn.Linear(4, 3), 0.5, 0.9, 3.0

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.droplet * self.dropout_keep * self.drop_rate

    model, (x, y) = Threshold(), (torch.randn(6, 4), torch.randint(3, (6,)))
    loss = CROSS_ENTROPY(model(x), y).detach()
    assert ns.hessian(model, (x, y), loss=CROSS_ENTROPY, k=1, mode="train").loss == pytest.approx(float(loss), rel=1e-6)


def test_other_random_numbers_are_the_same_in_every_pass_and_said() -> None:
    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * torch.rand_like(x))

    found = ns.hessian(Noisy(4, 3), (torch.randn(6, 4), torch.randint(3, (6,))), loss=CROSS_ENTROPY, k=1, deflate=False)
    assert found.converged
    assert "one draw" in found.notes[-1]
