"""Models and data that once ended in an error of torch or Python: each is measured, or refused in a clear sentence."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.errors import CaptureError, InputError, JacobianError, NormscopeError

from ..soundness.networks import Function, noise

pytestmark = pytest.mark.filterwarnings("ignore")  # torch calls its own TorchScript and quantization deprecated


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)).eval()


def labelled() -> tuple[Tensor, Tensor]:
    return noise(40, 6), torch.arange(40) % 3


TO_INTEGERS = {
    "sum times": lambda self, x: self.layer(x) * (1 + x.sum(-1, keepdim=True, dtype=torch.int64).abs()),
    "cumsum": lambda self, x: self.layer(x) + x.cumsum(-1, dtype=torch.int32)[:, :3],
    "sum of casts": lambda self, x: self.layer(x) + (3 * x).to(torch.int64).sum(-1, keepdim=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TO_INTEGERS)
def test_reductions_to_integers_are_jumps(name: str) -> None:
    model, x = Function(TO_INTEGERS[name], layer=nn.Linear(6, 3)).eval(), noise(4, 6)
    point = ns.lipschitz(model, x, scope="point")
    with torch.no_grad():  # between jumps the integers are constants
        factors = model(x) / model.layer(x) if name == "sum times" else torch.ones(4, 1)
    norm = float(torch.linalg.matrix_norm(model.layer.weight.detach().double(), ord=2))
    for one, factor in zip(point.per_sample, factors[:, 0].tolist(), strict=True):
        assert one.lower * (1 - 1e-4) <= norm * factor <= one.upper * (1 + 1e-4)
    assert any("can jump" in note for note in point.notes)
    for bracket in (ns.lipschitz(model, x), ns.lipschitz(model, x, scope="ball", radius=0.1)):
        assert bracket.upper == math.inf
        assert "not continuous" in bracket.reason or "no finite slope" in bracket.reason


def scripted() -> nn.Module:
    return torch.jit.script(network())


SCRIPTS = {
    "scripted": (scripted, "the model is TorchScript"),
    "a scripted part": (lambda: nn.Sequential(scripted(), nn.Linear(3, 3)), "module `0` is TorchScript"),
}

FUNCTIONS = {
    "lipschitz": lambda model: ns.lipschitz(model, labelled()),
    "point": lambda model: ns.lipschitz(model, labelled(), scope="point"),
    "data": lambda model: ns.lipschitz(model, [labelled()], scope="data"),
    "check": lambda model: ns.check(model, labelled()),
    "audit": lambda model: ns.audit(model, labelled()),
    "symmetries": lambda model: ns.symmetries(model, labelled()),
    "certified_radius": lambda model: ns.certified_radius(model, labelled()),
    "generalization": lambda model: ns.generalization(model, labelled()),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_torchscript_is_refused_and_named(function: str) -> None:
    for make, words in SCRIPTS.values():
        model = make().eval()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(InputError, match=words):
            FUNCTIONS[function](model)
        assert not any(module.training for module in model.modules())
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Skip(nn.Module):
    """Adds a quantized branch to its input: autograd sees the input alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.branch = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(6, 6)), {nn.Linear})
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(y + self.branch(y))


QUANTIZED = {
    "dynamic": (lambda: torch.ao.quantization.quantize_dynamic(network(), {nn.Linear}), "`0` (Linear), `3` (Linear)"),
    "a branch": (Skip, "`branch.0` (Linear)"),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_modules_are_refused_and_named(name: str) -> None:
    make, named = QUANTIZED[name]
    model = make().eval()
    for function in ("lipschitz", "point", "data", "symmetries", "certified_radius", "generalization"):
        with pytest.raises(NormscopeError) as raised:
            FUNCTIONS[function](model)
        kind = {"point": JacobianError, "data": JacobianError, "generalization": InputError}
        if model.state_dict() or function != "symmetries":
            assert isinstance(raised.value, (kind.get(function, CaptureError), InputError))
        assert named in str(raised.value) or "no parameters" in str(raised.value)
    assert ns.check(model, labelled()).findings == ()
    assert any(named in why for _, why in ns.audit(model, labelled()).skipped)


@torch.library.custom_op("refusals::halve_single", mutates_args=())
def halve_single(x: torch.Tensor) -> torch.Tensor:
    """Halve values in float32: a kernel without a version for float64."""
    if x.dtype != torch.float32:
        raise RuntimeError(f"halve_single is not implemented for {x.dtype}")
    return x / 2


halve_single.register_fake(torch.empty_like)


def test_operators_that_do_not_run_in_float64_are_named() -> None:
    model = Function(lambda net, x: net.layer(halve_single(x)), layer=nn.Linear(6, 3)).eval()
    for measure in (
        lambda: ns.lipschitz(model, noise(4, 6), on_missing="inf"),
        lambda: ns.weight_sensitivity(model, noise(4, 6), on_missing="inf"),
    ):
        with pytest.raises(CaptureError, match=r"`refusals\.halve_single` in .* does not run in float64"):
            measure()
    assert any("does not run in float64" in why for _, why in ns.audit(model, noise(4, 6)).skipped)


def test_a_pair_of_inputs_and_labels_is_one_batch() -> None:
    model, (x, y) = network(), labelled()
    for labels in (y, y[:, None].float(), torch.nn.functional.one_hot(y).float()):
        assert ns.check(model, x, loader=(x, labels)).samples == len(x)


def test_a_tuple_of_batches_holds_batches() -> None:
    model, (x, _) = network(), labelled()
    for batches in (x.split(20), x.split(25), (x[:30], x[30:]), [x[:7], x[7:]], x):
        assert ns.check(model, x, loader=batches).samples == len(x)


class Packed(nn.Module):
    """Token ids of several lengths through a GRU, which torch.export cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.gru = nn.Embedding(9, 4), nn.GRU(4, 3, batch_first=True)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        rows = nn.utils.rnn.pack_padded_sequence(self.table(ids), lengths, batch_first=True, enforce_sorted=False)
        return self.gru(rows)[1][0]


def test_what_does_not_work_either_is_not_recommended() -> None:
    batch = torch.randint(9, (3, 5)), torch.tensor([5, 2, 4])
    with pytest.raises(CaptureError, match="cannot trace") as error:
        ns.lipschitz(Packed(), batch)
    assert 'scope="point"' not in str(error.value)


KEPT = torch.tensor([True, False, True, True])


class Masked(nn.Module):
    """Chosen columns, which a layer behind them takes."""

    def __init__(self, *, layer: bool) -> None:
        super().__init__()
        self.register_buffer("kept", KEPT)
        self.layer = nn.Linear(3, 2) if layer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, self.kept])


def test_a_layer_behind_a_constant_mask_is_measured() -> None:
    model = Masked(layer=True).eval()
    bracket = ns.lipschitz(model, noise(5, 4))
    assert bracket.upper == pytest.approx(float(torch.linalg.matrix_norm(model.layer.weight.double(), 2)), rel=1e-6)
    assert bracket.lower == pytest.approx(bracket.upper, rel=1e-6)


def test_a_constant_mask_is_not_called_one_of_the_input() -> None:
    with pytest.raises(CaptureError, match="not even those of a constant mask") as error:
        ns.lipschitz(Masked(layer=False).eval(), noise(5, 4))
    assert "values of the input" not in str(error.value)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.layer = nn.EmbeddingBag(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layer(self.bag(ids))


def test_a_bag_of_embeddings_is_named_as_what_it_is() -> None:
    with pytest.raises(InputError, match="EmbeddingBag `bag` adds up embeddings"):
        ns.lipschitz(Bag().eval(), torch.randint(9, (3, 5)))
    at_sums = ns.lipschitz(Function(lambda self, x: self.layer(x), layer=nn.Linear(4, 3)).eval(), noise(3, 4))
    assert at_sums.upper < math.inf  # what the sentence recommends


@pytest.mark.parametrize("constant", [False, True])
def test_torch_cond_is_named_and_not_the_batch(constant: bool) -> None:
    def choose(x: Tensor) -> Tensor:
        where = torch.tensor(True) if constant else x.sum() > 0
        return torch.cond(where, lambda y: y.sin(), lambda y: 2 * y.cos(), (x,))

    with pytest.raises(InputError, match=r"torch\.cond") as error:
        ns.lipschitz(Function(choose).eval(), noise(3, 4))
    assert "Pass a batch the model accepts" not in str(error.value)


@pytest.mark.parametrize(
    "divided", [lambda x: x * 0 / 1e-320, lambda x: x * 1e-320 / torch.tensor(1e-320, dtype=torch.float64)]
)
def test_a_number_too_small_to_divide_by_is_not_called_a_broken_weight(divided) -> None:
    bracket = ns.lipschitz(Function(divided).eval(), noise(3, 4).double())
    assert bracket.upper == math.inf
    assert "division by a number so small that its reciprocal is infinite" in bracket.reason
