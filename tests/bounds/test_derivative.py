"""POINT figures are those of the forward, whatever autograd is made to say; and audits say where it says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

import normscope as ns
from normscope.bounds.derivative import LINEAR, mismatches
from normscope.core.bracket import Evidence
from normscope.core.errors import JacobianError

from ..soundness.networks import Function

pytestmark = pytest.mark.usefixtures("seeded")


def made(forward: Callable[[Tensor], Tensor], back: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Return an autograd.Function with that forward and that backward (of the input and the gradient)."""

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, gradient):
            return back(*ctx.saved_tensors, gradient)

    return Made.apply


def hooked(factor: float) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        y = 3 * x
        if y.requires_grad:
            y.register_hook(lambda g: factor * g)
        return y

    return run


def without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = 2 * x
    return y + x


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] *= 5
    return y


def in_place_slices(x: Tensor) -> Tensor:
    y = in_place(x)
    y[:, 1:].mul_(2)
    return y


LIES: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "backward of one": (made(lambda x: 100 * x, lambda x, g: g), 100.0),
    "tensor hook": (hooked(0.01), 3.0),
    "gradient reversal": (made(lambda x: 1.0 * x, lambda x, g: -0.1 * g), 1.0),
    "no gradient back": (made(lambda x: 7 * x, lambda x, g: torch.zeros_like(g)), 7.0),
    "wrong by a share": (made(lambda x: 4 * x, lambda x, g: 3.6 * g), 4.0),
    "backward of another layer": (made(lambda x: 4 * x.flip(-1), lambda x, g: 4 * g * x), 4.0),
    "detach": (lambda x: x.detach() + x, 2.0),
    "all detached": (lambda x: -2 * x.detach(), 2.0),
    "no_grad": (without_gradient, 3.0),
    "stopped gate": (lambda x: x + 9 * (x - x.detach() + x.detach()), 10.0),
    "clipped gradients": (made(lambda x: 50 * x, lambda x, g: (50 * g).clamp(-1, 1)), 50.0),
}
TRUE: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "a true Function": (made(lambda x: 6 * x, lambda x, g: 6 * g), 6.0),
    "in place": (in_place, 5.0),
    "in place, slices": (in_place_slices, 5.0),
    "a harmless hook": (hooked(1.0), 3.0),
    "checkpoint": (lambda x: torch.utils.checkpoint.checkpoint(lambda y: 3 * y, x, use_reentrant=False), 3.0),
}


def batch(samples: int = 3, width: int = 4) -> Tensor:
    return torch.randn(samples, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("name", [*LIES, *TRUE])
def test_a_jacobian_is_that_of_the_forward(name: str) -> None:
    function, truth = (LIES | TRUE)[name]
    bracket = ns.lipschitz(Function(function).eval(), batch(), scope="point")
    assert bracket.lower == pytest.approx(truth, rel=1e-5)
    assert bracket.upper == pytest.approx(truth, rel=1e-5)
    assert bracket.evidence is Evidence.NUMERICAL
    wide = nn.Sequential(Function(function), nn.Linear(4, 40)).eval()  # more outputs than the Jacobian has rows
    over = ns.lipschitz(wide, batch(), scope="point")
    weight = wide[1].weight.detach().double()
    known = max(
        float(torch.linalg.matrix_norm(weight @ secants(function, x), 2)) for x in batch().double().unsqueeze(1)
    )
    assert over.lower == pytest.approx(known, rel=1e-3)


def secants(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the Jacobian at one row by differences."""
    with torch.no_grad():
        columns = [(function(x + 1e-6 * e) - function(x - 1e-6 * e))[0] / 2e-6 for e in torch.eye(4).double()]
    return torch.stack(columns, 1)


@pytest.mark.slow
def test_hooks_of_modules_do_not_reach_a_figure() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).eval()
    plain = ns.lipschitz(model, batch(), scope="point").upper
    handle = model[1].register_full_backward_hook(lambda module, into, out: tuple(0.1 * g for g in into))
    assert ns.lipschitz(model, batch(), scope="point").upper == pytest.approx(plain, rel=1e-6)
    assert [found.path for found in mismatches(model, batch(), ns.capture(model, batch()))] == ["1"]
    handle.remove()
    assert not mismatches(model, batch(), ns.capture(model, batch()))


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: x + (x.round() - x).detach(), "round"),
        (made(torch.round, lambda x, g: g), "round"),
        (lambda x: torch.sign(x) * x.tanh(), "sign"),
        (lambda x: x * (x > 0.5), "gt"),
        (lambda x: (x * 8).to(torch.int32).to(x.dtype) / 8 + x, "_to_copy"),
        (lambda x: torch.floor(4 * x) / 4, "floor"),
    ],
    ids=["straight through", "in a Function", "sign", "mask", "integers", "floor"],
)
def test_a_function_that_jumps_says_so(function: Callable[[Tensor], Tensor], operator: str) -> None:
    bracket = ns.lipschitz(nn.Sequential(Function(function)).eval(), batch(), scope="point")
    assert any("can jump" in note and f"{operator} in `0`" in note for note in bracket.notes)
    smooth = ns.lipschitz(nn.Sequential(nn.Linear(4, 4), nn.GELU()).eval(), batch(), scope="point")
    assert not smooth.notes


@pytest.mark.slow
def test_a_quantisation_that_hides_itself_is_an_error_with_its_name() -> None:
    model = nn.Sequential(
        nn.Linear(4, 4), Function(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127))
    ).eval()
    with pytest.raises(JacobianError, match=r"fake_quantize_per_tensor_affine\.default in `1`"):
        ns.lipschitz(model, batch(), scope="point")


@torch.library.custom_op("normscope_tests::tenfold", mutates_args=())
def tenfold(x: Tensor) -> Tensor:
    return 10 * x


@tenfold.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.slow
def test_an_operator_of_the_users_own_is_compared() -> None:
    tenfold.register_autograd(lambda ctx, g: 10 * g)
    model = nn.Sequential(nn.Linear(4, 4), Function(lambda x: torch.ops.normscope_tests.tenfold(x))).eval()
    bracket = ns.lipschitz(model, batch(), scope="point")
    assert bracket.upper == pytest.approx(10 * float(torch.linalg.matrix_norm(model[0].weight.detach(), 2)), rel=1e-4)
    assert bracket.evidence is Evidence.SAMPLED
    assert any("backward of its own" in note for note in bracket.notes)
    tenfold.register_autograd(lambda ctx, g: g)
    with pytest.raises(JacobianError, match=r"tenfold\.default in `1`"):
        ns.lipschitz(model, batch(), scope="point")


def branching(x: Tensor) -> Tensor:
    """What torch.export cannot trace."""
    return x if float(x.detach().sum()) > -1e9 else -x


UNTRACED: dict[str, Callable[[Tensor], Tensor]] = {
    "backward of one": made(lambda x: 100 * x, lambda x, g: g),
    "tensor hook": hooked(0.01),
    "reversal": made(lambda x: 1.0 * x, lambda x, g: -g),
    "item": lambda x: x * float(x.detach().abs().sum()),
    "numpy": lambda x: x + 3 * torch.from_numpy(x.detach().numpy()),
    "detach": lambda x: x + x.detach(),
    "wrong by a tenth": made(lambda x: 4 * x, lambda x, g: 3.6 * g),
}


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("width", [4, 40])
@pytest.mark.parametrize("name", UNTRACED)
def test_without_a_graph_a_lie_is_an_error_that_names_the_module(name: str, width: int) -> None:
    model = nn.Sequential(
        Function(branching), nn.Linear(4, 4), nn.Sequential(Function(UNTRACED[name])), nn.Linear(4, width)
    )
    with pytest.raises(JacobianError, match=r"not the derivative.*`2\.0`"):
        ns.lipschitz(model.eval(), batch(), scope="point")
    (found,) = mismatches(model, batch(), None)
    assert found.path == "2.0"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [3, 40])
def test_without_a_graph_an_honest_model_is_sampled(width: int, dtype: torch.dtype) -> None:
    inner = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, width)).to(dtype)
    plain = ns.lipschitz(inner.eval(), batch().to(dtype), scope="point")
    bracket = ns.lipschitz(nn.Sequential(Function(branching), inner).eval(), batch().to(dtype), scope="point")
    assert bracket.upper == pytest.approx(plain.upper, rel=1e-3)
    assert bracket.evidence is Evidence.SAMPLED
    assert any("compared with differences" in note for note in bracket.notes)
    assert not mismatches(nn.Sequential(Function(branching), inner).eval(), batch().to(dtype), None)


def test_without_a_graph_an_input_on_a_bend_is_no_lie() -> None:
    model = nn.Sequential(Function(branching), nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3)).eval()
    bracket = ns.lipschitz(model, torch.cat([torch.zeros(1, 4), batch()]), scope="point")
    assert bracket.evidence is Evidence.SAMPLED


def test_a_model_that_is_another_when_traced_is_differentiated_itself() -> None:
    bracket = ns.lipschitz(Function(lambda x: 100 * x if type(x) is torch.Tensor else x).eval(), batch(), scope="point")
    assert bracket.lower < 100 < bracket.upper < 100 * (1 + 1e-4)  # there is no float64 copy
    assert any("measured in float32" in note for note in bracket.notes)
    assert bracket.evidence is Evidence.SAMPLED
    lying = made(lambda x: 100 * x, lambda x, g: g)
    with pytest.raises(JacobianError, match="not the derivative"):
        ns.lipschitz(Function(lambda x: lying(x) if type(x) is torch.Tensor else x).eval(), batch(), scope="point")


def test_where_rounding_hides_a_difference_a_note_says_so() -> None:
    model = nn.Sequential(Function(branching), Function(lambda x: 1e-3 * x + 1e6)).eval()
    bracket = ns.lipschitz(model, batch(), scope="point")
    assert bracket.evidence is Evidence.SAMPLED
    assert any("1 of 1 samples rounding or bends hide" in note for note in bracket.notes)


class Masked(nn.Module):
    """Every sample has a mask of its own."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return 2 * x * mask


def test_every_sample_has_its_own_mask() -> None:
    model, mask = Masked().eval(), torch.tensor([[0.0, 0, 0, 1], [1.0, 1, 1, 3], [0.0, 0, 2, 0]])
    bracket = ns.lipschitz(model, {"x": batch(), "mask": mask}, scope="point")
    assert [one.upper for one in bracket.per_sample] == pytest.approx([2.0, 6.0, 4.0])


def test_weights_behind_a_parametrization_are_no_lie_of_the_input() -> None:
    class Rounded(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight + ((8 * weight).round() / 8 - weight).detach()

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    parametrize.register_parametrization(model[0], "weight", Rounded())
    truth = float(torch.linalg.matrix_norm((model[1].weight @ model[0].weight).detach(), 2))
    assert ns.lipschitz(model.eval(), batch(), scope="point").upper == pytest.approx(truth, rel=1e-4)
    assert not mismatches(model, batch(), ns.capture(model, batch()))


class TestMismatches:
    @pytest.mark.one_in(6)
    @pytest.mark.parametrize("name", LIES)
    def test_a_lie_is_found_where_it_is(self, name: str) -> None:
        function, _ = LIES[name]
        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Function(function)), nn.Linear(4, 3)).eval()
        if name == "stopped gate":  # the gradient is whole
            assert not mismatches(model, batch(), ns.capture(model, batch()))
            return
        (found,) = mismatches(model, batch(), ns.capture(model, batch()))
        assert found.path == "1.1"
        shares = {"backward of one": 0.01, "tensor hook": 0.01, "gradient reversal": -0.1, "no gradient back": 0.0}
        assert name not in shares or found.share == pytest.approx(shares[name], abs=1e-3)

    def test_code_outside_of_modules_is_the_models(self) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x: Tensor) -> Tensor:
                return made(lambda y: 2 * y, lambda y, g: g)(self.linear(x))

        (found,) = mismatches(Model(), batch(), ns.capture(Model(), batch()))
        assert found.path == ""

    @pytest.mark.slow
    def test_the_model_is_left_as_found(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Function(LIES["tensor hook"][0])).train()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        mismatches(model, batch(), ns.capture(model, batch()))
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


BENDS = {
    "two ReLUs": (lambda x: F.relu(x) - F.relu(-x), 0.0, 1.0),
    "two clamps": (lambda x: x.clamp(min=0) - (-x).clamp(min=0), 0.0, 1.0),
    "an absolute value": (lambda x: x.abs() - 2 * F.relu(x) + 2 * x, 0.0, 1.0),
    "the edge of a hardtanh": (lambda x: F.hardtanh(x) + F.relu(x - 1) - F.relu(-x - 1), 1.0, 1.0),
    "two ELUs": (lambda x: F.elu(x, 3.0) - F.elu(-x, 3.0), 0.0, 4.0),
    "a choice at one place": (lambda x: torch.where(x == 0, 5 * x, x), 0.0, 1.0),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", BENDS)
@pytest.mark.parametrize("width", [3, 40], ids=["whole", "by Lanczos"])
def test_on_a_bend_the_derivative_is_taken_beside_it(name, width):
    """The function is the identity, or nearly: what torch gives right on the bend is 0, or twice as much."""
    function, at, slope = BENDS[name]
    x = torch.randn(4, width)
    x[2] = at
    bracket = ns.lipschitz(Function(function).eval(), x, scope="point")
    for sample in bracket.per_sample:
        assert sample.lower <= slope * (1 + 1e-4)
    assert bracket.per_sample[2].upper >= slope * (1 - 1e-4)
    assert any("bends right at 1 of 4 samples" in note for note in bracket.notes)


def test_smooth_functions_have_no_bends():
    for function in (
        torch.square,
        torch.tanh,
        F.gelu,
        lambda x: x.norm(dim=1, keepdim=True) * x,
        lambda x: 1e-9 * x.sin(),
    ):
        bracket = ns.lipschitz(Function(function).eval(), torch.tensor([[0.0, 0.0], [1.0, 0.5]]), scope="point")
        assert bracket.notes == ()


@pytest.mark.parametrize("write", ["scatter", "index_copy"])
def test_two_values_written_to_one_entry_are_no_derivative(write):
    def twice(x):
        if write == "scatter":
            return torch.zeros(len(x), 2, dtype=x.dtype).scatter(1, torch.zeros(len(x), 3, dtype=torch.int64), x)
        return torch.zeros(len(x), 2, dtype=x.dtype).index_copy(1, torch.zeros(3, dtype=torch.int64), x)

    with pytest.raises(JacobianError, match="writes two values to one entry"):
        ns.lipschitz(Function(twice).eval(), torch.randn(1, 3), scope="point")


@pytest.mark.slow
def test_a_blank_image_is_measured_beside_it():
    """Without biases every ReLU is at 0 there, and torch's derivative is 0."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 40, bias=False)]
    model = nn.Sequential(*layers).eval()
    ball = ns.lipschitz(model, torch.zeros(1, 1, 6, 6), scope="ball", radius=1e-6)
    point = ns.lipschitz(model, torch.zeros(1, 1, 6, 6), scope="point")
    assert 0.2 * ball.lower < point.lower <= ball.upper


def test_rounding_straight_through_has_no_slope_of_one() -> None:
    bracket = ns.lipschitz(Function(lambda x: x + (x.round() - x).detach()).eval(), batch(), scope="point")
    assert bracket.upper < 1e-6


aten = torch.ops.aten
CONVOLUTIONS = [
    (aten.conv1d.default, (2, 4, 9), (6, 2, 3), ([2], [1], [2], 2)),
    (aten.conv2d.default, (2, 3, 7, 6), (4, 3, 3, 2), ([1, 2], [2, 0], [2, 1], 1)),
    (aten.conv2d.default, (2, 4, 6, 6), (4, 1, 3, 3), ([1, 1], [1, 1], [1, 1], 4)),
    (aten.conv3d.default, (2, 2, 5, 4, 5), (2, 2, 2, 1, 3), ([1, 1, 2], [1, 0, 1], [1, 1, 1], 1)),
]


def linear_operators():
    """Operators that are replaced, each with a value and its other arguments; biases are not zero."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    for operator, shape, kernel, settings in CONVOLUTIONS:
        yield operator, normal(*shape), (normal(*kernel), normal(kernel[0]), *settings)
    statistics = (normal(3), normal(3), normal(3), normal(3).square() + 0.1, 0.1, 1e-5)
    yield aten._native_batch_norm_legit_no_training.default, normal(2, 3, 4, 4), statistics


@pytest.mark.parametrize("case", range(len(CONVOLUTIONS) + 1))
def test_linear_operators_have_the_derivatives_of_torch_in_both_directions(case):
    operator, value, arguments = list(linear_operators())[case]

    def plain(x):
        made = operator(x, *arguments)
        return made if isinstance(made, Tensor) else made[0]

    x, direction = value.clone().requires_grad_(), torch.randn_like(value)
    made, expected = LINEAR[operator].applied(x, *arguments), plain(value)
    assert torch.equal(made, expected)
    cotangent = torch.randn_like(expected).requires_grad_()
    (pulled,) = torch.autograd.grad(made, x, cotangent, create_graph=True)
    shifted = plain(value + direction) - expected  # of a map that is linear but for a constant
    assert torch.allclose((pulled * direction).sum(), (cotangent * shifted).sum())
    (pushed,) = torch.autograd.grad(pulled, cotangent, direction, create_graph=True)
    assert torch.allclose(pushed, shifted)
