"""A graph that is not the model is refused: attacks that a comparison of whole outputs once let pass.

Each model does one thing while it is traced and another while it runs; a bound of the traced one alone is false.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.bounds.graph import capturing
from normscope.bounds.point import jacobian_norms
from normscope.calls.agreement import agree
from normscope.calls.call import Call, Caller
from normscope.core.errors import CaptureError, RandomOperatorError

from ..soundness.networks import Function


@pytest.fixture
def unguarded_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace without looking which operators a run calls (test_trace_is_honest.py), so that values alone can tell."""

    def export(model: nn.Module, call: Call) -> torch.export.ExportedProgram:
        return torch.export.export(Caller(model, call.output, nullcontext), call.args, call.kwargs, strict=False)

    monkeypatch.setattr(capturing, "_faithful_trace", export)


def runs(x: Tensor) -> bool:
    """Whether a model runs on numbers; torch.export passes values of another class."""
    return type(x) is Tensor


def masked(factor: float, mask: float = -1e9) -> Callable[[Tensor], Tensor]:
    """Outputs beside one that is masked: traced times 1, run times the factor."""

    def forward(x: Tensor) -> Tensor:
        return torch.cat([x * factor if runs(x) else x, torch.full_like(x[:, :1], mask)], dim=1)

    return forward


def cancels(x: Tensor) -> Tensor:
    """A difference below the rounding of float32."""
    return (x * 1e-3 if runs(x) else x * 1e-4) + 1000.0


def drops(x: Tensor) -> Tensor:
    return F.dropout(x * 10.0 if runs(x) else x, 0.5, training=True)


def at_rare_inputs(least: float, most: float = 1e30) -> Callable[[Tensor], Tensor]:
    """Ten times as steep where the input has some norm."""

    def forward(x: Tensor) -> Tensor:
        return x * 10.0 if runs(x) and least < float(x.norm()) < most else x

    return forward


ATTACKS: dict[str, tuple[nn.Module, Tensor]] = {  # models that are steeper than what is traced of them
    "beside a masked logit": (Function(masked(10.0)).eval(), torch.ones(4, 3)),
    "beside a masked logit, in train mode": (Function(masked(8.0)).train(), torch.ones(4, 3)),
    "random beside a masked logit": (Function(lambda x: masked(float(torch.rand(1)))(x)).eval(), torch.ones(4, 3)),
    "beside a masked logit, in bfloat16": (Function(masked(10.0, -1e3)).eval().bfloat16(), torch.ones(4, 3).bfloat16()),
    "beside a masked logit, in float16": (Function(masked(10.0, -1e3)).eval().half(), torch.ones(4, 3).half()),
    "below the rounding of float32": (Function(cancels).eval(), torch.ones(4, 3)),
    "behind dropout": (Function(drops).train(), torch.ones(4, 3)),
    "at large inputs": (Function(at_rare_inputs(50.0)).eval(), torch.ones(4, 3)),
    "at small inputs": (Function(at_rare_inputs(0.0, 0.1)).eval(), torch.ones(4, 3)),
}


@pytest.mark.usefixtures("unguarded_trace")
@pytest.mark.parametrize("name", ATTACKS)
def test_a_graph_that_is_not_the_model_is_refused(name: str) -> None:
    model, batch = ATTACKS[name]
    with pytest.raises(CaptureError, match=r"the model's own output|draws random numbers|two different outputs"):
        ns.lipschitz(model, batch, max_seconds=0.2)


@pytest.mark.usefixtures("unguarded_trace")
def test_sensitivities_to_the_weights_are_those_of_the_model() -> None:
    model = Function(lambda m, x: masked(10.0)(m.layer(x)), layer=nn.Linear(3, 3)).eval()
    with pytest.raises(CaptureError, match=r"the model's own output"):
        capturing.capture_weights(model, torch.ones(4, 3))


class Draws(nn.Module):
    """A factor that is drawn, in train mode or in both."""

    def __init__(self, draw: Callable[[], Any], *, in_eval: bool) -> None:
        super().__init__()
        self.draw, self.in_eval = draw, in_eval

    def forward(self, x: Tensor) -> Tensor:
        return x * (11.0 if (self.in_eval or self.training) and float(self.draw()) < 0.5 else 1.0)


PYTHON, ARRAYS, OLDER = random.Random(0), np.random.default_rng(0), np.random.RandomState(0)
TENSORS = torch.Generator().manual_seed(0)
SOURCES: dict[str, Callable[[], Any]] = {
    "Python": lambda: random.random(),
    "NumPy": lambda: np.random.rand(),
    "torch": lambda: torch.rand(1),
    "a random.Random": lambda: PYTHON.random(),
    "a NumPy generator": lambda: ARRAYS.random(),
    "an older NumPy generator": lambda: OLDER.rand(),
    "a generator of torch": lambda: torch.rand(1, generator=TENSORS),
}


def states() -> list[str]:
    """The states of the generators above."""
    with np.printoptions(threshold=10_000):
        arrays = [str(ARRAYS.bit_generator.state), str(OLDER.get_state()), str(np.random.get_state())]
    return [*arrays, str(PYTHON.getstate()), str(random.getstate()), str(TENSORS.get_state().tolist())]


@pytest.mark.parametrize("in_eval", [True, False], ids=["eval", "train"])
@pytest.mark.parametrize("source", SOURCES)
def test_a_model_that_draws_is_refused_whatever_it_draws(source: str, in_eval: bool) -> None:
    model, batch = Draws(SOURCES[source], in_eval=in_eval).train(not in_eval), torch.ones(4, 3)
    for seed in range(4):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        before = states()
        # a value of a tensor in a branch ends the trace
        with pytest.raises(CaptureError, match="random" if "torch" not in source else "random|Python reads"):
            ns.lipschitz(model, batch, max_seconds=0.2)
        assert states() == before


def test_draws_that_only_the_trace_does_not_see_are_refused() -> None:
    def forward(x: Tensor) -> Tensor:
        unused = torch.rand(1)
        return x * (10.0 if runs(x) and float(torch.rand(1)) > 0.999 else 1.0) + 0.0 * unused.detach().numel()

    with pytest.raises(RandomOperatorError, match=r"in 2 operators, of which torch\.export sees 1"):
        ns.lipschitz(Function(forward).eval(), torch.ones(4, 3), max_seconds=0.2)


class StochasticDepth(nn.Module):
    """Drops its input for whole samples, as torchvision's does."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.bernoulli(torch.full((len(x), 1), 0.5)) if self.training else x


class LayerDrop(nn.Module):
    """Draws a number for each layer, and uses it in train mode alone, as encoders of Hugging Face do."""

    def forward(self, x: Tensor) -> Tensor:
        drawn = torch.rand([])
        return torch.zeros_like(x) if self.training and bool(drawn < 0.5) else x


HARMLESS: dict[str, tuple[nn.Module, bool]] = {
    "Dropout, train": (nn.Dropout(0.5), True),
    "functional dropout, train": (Function(lambda x: F.dropout(x, 0.5)), True),
    "StochasticDepth, train": (StochasticDepth(), True),
    "a number that is not used, eval": (LayerDrop(), False),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_draws_that_do_not_count_are_no_randomness(name: str) -> None:
    part, training = HARMLESS[name]
    model = Function(lambda m, x: 3.0 * m.part(x), part=part).train(training)
    assert ns.lipschitz(model, torch.ones(4, 3), max_seconds=0.2).upper == pytest.approx(3.0)


@pytest.fixture
def at_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare graph and model at inputs of the usual sizes alone, so that what comes later must see a difference."""
    monkeypatch.setattr(capturing, "SIZES", ())


@pytest.mark.usefixtures("unguarded_trace")
@pytest.mark.usefixtures("at_one_size")
def test_a_model_that_is_another_at_the_witness_is_refused() -> None:
    batch = torch.ones(4, 3)
    plain = Function(lambda x: F.layer_norm(x, (3,))).eval()
    witness = ns.lipschitz(plain, batch).witness
    least = min(float(part[0].norm()) for part in witness)

    def forward(x: Tensor) -> Tensor:
        y = F.layer_norm(x, (3,))
        return y * 10.0 if runs(x) and float(x.norm()) <= least * 1.01 else y

    with pytest.raises(CaptureError, match="at a point that the bound rests on"):
        ns.lipschitz(Function(forward).eval(), batch)


def flips(least: float) -> nn.Module:
    """A classifier whose two outputs change places where the norm of the input is large, as it runs."""

    def forward(x: Tensor) -> Tensor:
        if not runs(x):
            return 1.0 * x
        return torch.where(x.norm(dim=1, keepdim=True) > least, x.flip(1), x)

    return Function(forward).eval()


@pytest.mark.usefixtures("unguarded_trace")
@pytest.mark.usefixtures("at_one_size")
@pytest.mark.parametrize("attack", [True, False])
def test_a_radius_within_which_the_model_itself_flips_is_refused(attack: bool) -> None:
    sample = torch.tensor([[48.5, 41.429]])  # 5 from the boundary
    options = {"labels": torch.tensor([0]), "attack": attack, "max_seconds": 2.0}
    usual = ns.certified_radius(flips(1e9), sample, **options)
    assert usual.radius[0] == pytest.approx(5.0, rel=1e-2)
    with pytest.raises(CaptureError, match="at a point that the bound rests on"):
        ns.certified_radius(flips(float(sample.norm()) + 1.5), sample, **options)


@pytest.mark.usefixtures("unguarded_trace")
def test_an_audit_without_bounds_where_the_model_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "SIZES", ())
    sample = torch.tensor([[48.5, 41.429]])
    audit = ns.audit(flips(float(sample.norm()) + 1.5), sample, effort="thorough", max_seconds=20.0)
    assert audit.lipschitz is None
    assert audit.radii is None
    assert any("at a point that the bound rests on" in why for _, why in audit.skipped)


def weighted(module: nn.Module, x: Tensor) -> Tensor:
    """Weighted entries beside one that is masked."""
    return torch.cat([x * module.w, torch.full_like(x[:, :1], -1e9)], dim=1)


def test_jacobians_at_the_data_are_those_of_the_model() -> None:
    """A graph that was captured earlier stands for the model no longer."""
    model = Function(weighted, w=torch.ones(3)).eval()
    batch = torch.randn(2, 3)
    graph = ns.capture(model, batch)
    with torch.no_grad():
        model.w.mul_(10.0)
    norms = jacobian_norms(model, batch, mode=None, output=None, rtol=1e-3, graph=graph)
    assert norms.upper == pytest.approx(10.0, rel=1e-3)


def test_entries_are_compared_one_by_one() -> None:
    large = torch.tensor([-1e9, 1.0])
    assert agree(large, large.clone(), lambda: large)
    assert not agree(large, torch.tensor([-1e9, 1.01]), lambda: large)
    assert not agree(large, torch.tensor([-1e9, float("nan")]), lambda: large)


def test_rounding_is_allowed_for_where_terms_cancel() -> None:
    """Two orders of one sum differ by more than units in the last place, and other roundings show by how much."""
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    terms = torch.cat([x, -x + 1e-6 * x.roll(1)])

    def total() -> Tensor:
        return (terms[:, None].T @ torch.ones(len(terms), 1)).reshape(1)

    reverse = terms.flip(0).cumsum(0)[-1:]
    assert agree(total(), reverse, lambda: (terms * 1.0)[None].mm(torch.ones(len(terms), 1)).reshape(1))
    assert not agree(total(), reverse + 0.1, lambda: (terms * 1.0)[None].mm(torch.ones(len(terms), 1)).reshape(1))


class InItsOwnPrecision(nn.Module):
    """Computes a constant from weights, an epsilon of the precision, and a part in float32, as models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.recurrent = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = F.rms_norm(self.layer(x), (4,))
        y = y * (y.float().square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).rsqrt().to(y.dtype)
        return self.recurrent(y[:, None])[0][:, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_models_that_read_their_own_precision_are_captured(dtype: torch.dtype) -> None:
    model = InItsOwnPrecision().eval().to(dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    identities = [id(value) for value in (*model.parameters(), *model.recurrent._flat_weights)]
    ns.capture(model, torch.randn(4, 4).to(dtype))
    assert [id(value) for value in (*model.parameters(), *model.recurrent._flat_weights)] == identities
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
