"""`ns.hessian` against the Hessian written out, in both modes; what is projected out; what is refused."""

import copy

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.calls.batches import loss_function
from normscope.core.errors import InputError
from normscope.doctor.facts.loss import resolve_loss
from normscope.theory.losses import TRAINING_LOSSES

from ..soundness.networks import Function
from .hessians import CROSS_ENTROPY, NETWORKS, Custom, made, written_out


def projected(dense: torch.Tensor, *directions: torch.Tensor) -> torch.Tensor:
    """Return a matrix on the complement of some directions, which then have the eigenvalue 0."""
    basis = torch.linalg.qr(torch.stack(directions, 1)).Q
    keep = torch.eye(len(dense), dtype=dense.dtype) - basis @ basis.T
    return keep @ dense @ keep


@pytest.mark.one_in(6)
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", NETWORKS)
def test_both_ends_of_the_spectrum_are_those_of_the_dense_hessian(name: str, mode: str) -> None:
    model, x, y = made(name)
    truth = torch.linalg.eigvalsh(written_out(model, [(x, y)], mode))
    found = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, k=5, bottom=3, mode=mode, deflate=False, rtol=1e-9)
    assert found.converged
    assert found.mode == mode
    assert found.eigenvalues == pytest.approx(truth.flip(0)[:5].tolist(), rel=1e-6)
    assert found.bottom_eigenvalues == pytest.approx(truth[:3].tolist(), rel=1e-6)


def test_residuals_are_those_of_the_vectors() -> None:
    model, x, y = made("batch")
    dense = written_out(model, [(x, y)], "train")
    found = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, deflate=False, rtol=1e-2)
    for value, residual, vector in zip(found.eigenvalues, found.residuals, found.vectors, strict=True):
        assert float(vector.norm()) == pytest.approx(1.0)
        assert float((dense @ vector - value * vector).norm()) == pytest.approx(residual, rel=1e-6, abs=1e-12)


@pytest.mark.slow
def test_several_batches_are_the_mean_over_samples() -> None:
    model, x, y = made("batch", samples=30)
    batches = [(x[:20], y[:20]), (x[20:], y[20:])]
    truth = torch.linalg.eigvalsh(written_out(model, batches, "train")).flip(0)
    found = ns.hessian(model, iter(batches), loss=CROSS_ENTROPY, deflate=False, rtol=1e-9)
    assert found.eigenvalues == pytest.approx(truth[:5].tolist(), rel=1e-6)
    assert (found.batches, found.samples) == (2, 30)
    first = ns.hessian(model, batches, loss=CROSS_ENTROPY, deflate=False, rtol=1e-9, batches=1)
    assert first.eigenvalues == ns.hessian(model, batches[0], loss=CROSS_ENTROPY, deflate=False, rtol=1e-9).eigenvalues


def test_every_forward_begins_from_the_buffers_as_found() -> None:
    class Moving(nn.Module):
        """Doubles a buffer in every forward, and multiplies by it."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3).double()
            self.register_buffer("scale", torch.ones(1, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.scale.mul_(2.0)
            return self.scale * self.layer(x)

    _, x, y = made("plain", samples=30)
    batches = [(x[:20], y[:20]), (x[20:], y[20:])]
    model = Moving()
    still = nn.Sequential(copy.deepcopy(model.layer))
    truth = torch.linalg.eigvalsh(
        4 * written_out(still, batches, "train", lambda out, y: CROSS_ENTROPY(2 * out, y) / 4)
    )
    found = ns.hessian(model, batches, loss=CROSS_ENTROPY, k=3, deflate=False, rtol=1e-9)
    assert found.eigenvalues == pytest.approx(truth.flip(0)[:3].tolist(), rel=1e-6)
    assert float(model.scale) == 1.0


class TestDirections:
    """What is projected out, against the dense matrix projected by hand."""

    @pytest.mark.slow
    def test_scaling_a_row_before_a_batch_norm_and_its_bias(self) -> None:
        model, x, y = made("batch")
        dense = written_out(model, [(x, y)], "train")
        rows = [torch.zeros(63, dtype=torch.float64) for _ in range(12)]
        for row in range(6):
            rows[row][4 * row : 4 * row + 4] = model[0].weight.detach()[row]
            rows[6 + row][24 + row] = 1.0
        truth = torch.linalg.eigvalsh(projected(dense, *rows)).flip(0)
        found = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, rtol=1e-9)
        assert found.directions == 12
        assert found.eigenvalues == pytest.approx(truth[:5].tolist(), rel=1e-6)
        [layer] = found.invariants
        assert (layer.name, layer.unit, layer.groups, layer.verified) == ("0.weight", "channel", 6, True)
        raw = torch.linalg.eigvalsh(dense).flip(0)
        both = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, rtol=1e-9, undeflated=True)
        assert both.undeflated == pytest.approx(raw[:5].tolist(), rel=1e-6)
        assert both.undeflated[0] > 1.001 * both.eigenvalues[0]

    @pytest.mark.slow
    def test_a_layer_norm_takes_one_scale_and_the_shifts_of_all_rows(self) -> None:
        model, x, y = made("layer")
        dense = written_out(model, [(x, y)], "eval")
        rows = [torch.zeros(63, dtype=torch.float64) for _ in range(6)]
        rows[0][:30] = torch.cat([model[0].weight.detach().reshape(-1), model[0].bias.detach()])
        for column in range(4):
            rows[1 + column][column:24:4] = 1.0
        rows[5][24:30] = 1.0
        assert all(float((dense @ row).norm()) < 1e-12 for row in rows[1:])  # a shift has no curvature at all
        truth = torch.linalg.eigvalsh(projected(dense, *rows)).flip(0)
        found = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, mode="eval", rtol=1e-9)
        assert found.directions == 6
        assert found.eigenvalues == pytest.approx(truth[:5].tolist(), rel=1e-6)

    @pytest.mark.slow
    def test_a_scale_that_eps_gives_an_effect_is_left_in_and_said(self) -> None:
        model, x, y = made("batch")
        model[1].eps = 10.0
        found = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, k=1)
        assert not found.invariants[0].verified
        assert "not orthogonal" in found.notes[0]
        assert found.directions < found.directions_found == 12
        refused = f"{12 - found.directions} more that the graph shows were refused"
        assert refused in " ".join(str(found).split())

    @pytest.mark.slow
    def test_the_quotient_is_the_riemannian_hessian_where_eps_leaves_a_slope(self) -> None:
        """P S (H - D) S P by hand, D = <w, grad>/norm(w)^2: eps makes D count, and its sign."""
        model, x, y = made("batch", samples=64)
        model[1].eps = 2e-3
        dense = written_out(model, [(x, y)], "train")
        gradient = torch.cat(
            [g.reshape(-1) for g in torch.autograd.grad(CROSS_ENTROPY(model(x), y), model.parameters())]
        )
        rows, slopes = model[0].weight.detach(), gradient[:24].reshape(6, 4)
        lengths = rows.norm(dim=1)
        by_row = torch.linalg.vecdot(rows, slopes) / lengths.square()
        scale, bent = torch.ones(len(dense)).double(), torch.zeros(len(dense)).double()
        scale[:24], bent[:24] = lengths.repeat_interleave(4), by_row.repeat_interleave(4)
        left = torch.eye(len(dense)).double()
        left[24:30, 24:30] = 0.0  # the bias has no effect
        for row in range(6):
            unit = rows[row] / lengths[row]
            left[4 * row : 4 * row + 4, 4 * row : 4 * row + 4] -= torch.outer(unit, unit)

        def largest(sign: float) -> list[float]:
            matrix = left @ (scale[:, None] * (dense - sign * torch.diag(bent)) * scale) @ left
            return torch.linalg.eigvalsh(matrix).flip(0)[:5].tolist()

        found = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, metric="quotient", rtol=1e-9)
        assert found.directions == 12
        assert found.eigenvalues == pytest.approx(largest(1.0), rel=1e-6)
        assert largest(1.0) != pytest.approx(largest(-1.0), rel=1e-5)

    def test_a_model_that_cannot_be_traced_is_measured_whole(self) -> None:
        _, x, y = made("plain")
        found = ns.hessian(
            Function(lambda net, x: net.layer(x) if float(x.sum()) > -1e9 else x, layer=nn.Linear(4, 3).double()),
            (x, y),
            loss=CROSS_ENTROPY,
            k=1,
        )
        assert found.directions == 0
        assert "not traced" in found.notes[0]


class TestMore:
    def test_the_gauss_newton_matrix_against_the_jacobian(self) -> None:
        model, x, y = made("plain")
        jacobian = torch.autograd.functional.jacobian
        names, values = zip(*((n, p.detach()) for n, p in model.named_parameters()))
        rows = jacobian(lambda *v: torch.func.functional_call(model, dict(zip(names, v)), (x,)), values)
        rows = torch.cat([row.reshape(60, -1) for row in rows], 1)
        inner = torch.autograd.functional.hessian(lambda z: CROSS_ENTROPY(z, y), model(x).detach()).reshape(60, 60)
        truth = torch.linalg.eigvalsh(rows.T @ inner @ rows).flip(0)
        found = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, matrix="gauss-newton", rtol=1e-9, deflate=False)
        assert found.eigenvalues == pytest.approx(truth[:5].tolist(), rel=1e-6)

    @pytest.mark.slow
    @pytest.mark.parametrize("density", [False, True])
    def test_the_truth_is_within_the_error_as_often_as_it_should_be(self, density: bool) -> None:
        """In 68 and 95 of a hundred seeds; three standard deviations of the number of seeds are allowed."""
        model, x, y = made("plain")
        truth, seeds = float(written_out(model, [(x, y)], "train").trace()), 150
        traces = [
            ns.hessian(model, (x, y), loss=CROSS_ENTROPY, k=0, probes=1, density=density, seed=seed).trace
            for seed in range(seeds)
        ]
        off = torch.tensor([(trace.value - truth) / trace.error for trace in traces])
        assert abs(float(off.mean())) < 3 * float(off.std()) / seeds**0.5
        assert 0.55 < float((off.abs() < 1).double().mean()) < 0.8
        assert float((off.abs() < 2).double().mean()) > 0.87

    def test_the_trace_alone_takes_all_products(self) -> None:
        model, x, y = made("convolution")
        found = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, k=0, probes=1, density=False, deflate=False)
        assert (found.eigenvalues, found.density, found.probes, found.num_products) == ((), None, 0, 30)
        assert found.converged
        assert abs(found.trace.value - float(written_out(model, [(x, y)], "train").trace())) < 4 * found.trace.error
        assert f"sum to {found.trace.value:.4g}" in str(found)
        assert "standard error" in str(found)
        again = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, k=0, probes=1, density=False, deflate=False)
        assert again.trace == found.trace

    @pytest.mark.slow
    def test_trace_and_density_lie_within_their_errors(self) -> None:
        model, x, y = made("plain")
        dense = written_out(model, [(x, y)], "train")
        found = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, probes=12, deflate=False)
        assert abs(found.trace.value - float(dense.trace())) < 4 * found.trace.error
        assert found.trace.error < 0.3 * float(dense.trace())
        step = found.density.places[1] - found.density.places[0]
        assert sum(found.density.values) * step == pytest.approx(1.0, abs=0.02)
        small = (torch.linalg.eigvalsh(dense).abs() <= 1e-3 * found.sharpness).double().mean()
        near = found.density.near_zero
        assert near.lower - 4 * near.error <= float(small) <= near.upper + 4 * near.error
        assert abs(near.value - float(small)) < 0.25
        assert found.probes == 12

    def test_known_eigenvectors_are_counted_once_in_trace_and_density(self) -> None:
        """One large eigenvalue and eleven equal ones: with the large one taken out random vectors agree exactly."""
        x = torch.diag(torch.tensor([100.0, *(1.0,) * 11], dtype=torch.float64))
        model = nn.Linear(12, 1, bias=False).double()
        found = ns.hessian(
            model, (x, torch.zeros(12, 1).double()), loss=nn.functional.mse_loss, k=1, probes=3, rtol=1e-9
        )
        assert found.trace.value == pytest.approx(2 / 12 * (1e4 + 11), rel=1e-9)
        assert found.trace.error < 1e-6
        step = found.density.places[1] - found.density.places[0]
        middle = (found.density.places[0] + found.density.places[-1]) / 2
        upper = sum(v for place, v in zip(found.density.places, found.density.values) if place > middle) * step
        assert upper == pytest.approx(1 / 12, rel=0.02)

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize(("zeros", "rtol"), [(0, 1e-1), (20, 1e-9), (290, 1e-1)])
    def test_what_a_few_nodes_do_not_see_near_zero_is_left_open(self, zeros: int, rtol: float) -> None:
        """Twenty nodes for hundreds of eigenvalues tell roughly how many are within a thousandth of the largest."""
        generator = torch.Generator().manual_seed(zeros)
        model, x = nn.Linear(300, 1, bias=False).double(), torch.randn(300, 300, generator=generator).double()
        x[:, :zeros] = 0.0
        batch = x @ torch.linalg.qr(torch.randn(300, 300, generator=generator).double()).Q, torch.zeros(300, 1).double()
        found = ns.hessian(model, batch, loss=nn.functional.mse_loss, probes=4, k=4, rtol=rtol, deflate=False)
        values = torch.linalg.eigvalsh(2 * x.T @ x / 300)
        small, near = float((values <= 1e-3 * values[-1]).double().mean()), found.density.near_zero
        assert near.lower - 4 * near.error <= small <= near.upper + 4 * near.error
        assert 0.0 <= near.lower <= near.value <= near.upper <= 1.0
        assert near.error < 0.05
        assert f"Between {100 * near.lower:.2g} % and {100 * near.upper:.2g} %" in str(found)

    def test_the_trace_of_directions_that_no_signs_see_alike(self) -> None:
        """The eigenvector (1, 1) of the smaller eigenvalue is orthogonal to (1, -1) and along (1, 1)."""
        model = nn.Linear(2, 1, bias=False).double()
        x = torch.tensor([[3.0, -3.0], [1.0, 1.0]], dtype=torch.float64)
        for seed in range(6):
            found = ns.hessian(
                model, (x, torch.zeros(2, 1).double()), loss=nn.functional.mse_loss, k=1, probes=3, rtol=1e-9, seed=seed
            )
            assert found.eigenvalues == pytest.approx([18.0])
            assert found.trace.value == pytest.approx(20.0)
            assert found.trace.error < 1e-9

    @pytest.mark.one_in(1000)
    @pytest.mark.parametrize("side", [-1.0, 8.0])
    def test_no_trace_is_wrong_with_an_error_of_zero(self, side: float) -> None:
        """Three vectors of signs often agree on v^T A v, which then says nothing of the error."""
        matrix = torch.tensor([[100.0, 0.0, 0.0], [0.0, 9.0, side], [0.0, side, 9.0]], dtype=torch.float64)
        x, model = torch.linalg.cholesky(1.5 * matrix).T, nn.Linear(3, 1, bias=False).double()
        for seed in range(8):
            found = ns.hessian(
                model, (x, torch.zeros(3, 1).double()), loss=nn.functional.mse_loss, k=1, probes=3, seed=seed
            )
            assert abs(found.trace.value - 118.0) < 200 * found.trace.error

    def test_groups_have_the_rate_of_their_own_block_beside_the_rate_in_use(self) -> None:
        model, x, y = made("plain")
        dense = written_out(model, [(x, y)], "train")
        first, *others = model.parameters()
        groups = [{"params": [first], "lr": 0.5}, {"params": others}]
        found = ns.hessian(
            model, (x, y), loss=CROSS_ENTROPY, mode="train", rtol=1e-8, optimizer=torch.optim.SGD(groups, lr=0.1)
        )
        cut = first.numel()
        tops = [float(torch.linalg.eigvalsh(part)[-1]) for part in (dense[:cut, :cut], dense[cut:, cut:])]
        assert [group.eigenvalue for group in found.groups] == pytest.approx(tops, rel=1e-6)
        assert [group.safe_learning_rate for group in found.groups] == pytest.approx(
            [2 / top for top in tops], rel=1e-6
        )
        assert [group.learning_rate for group in found.groups] == [0.5, 0.1]
        assert ns.Spectrum.from_json(found.to_json()).groups == found.groups
        assert "Learning rates by parameter group" in str(found)
        with pytest.raises(InputError, match="group 0 of the optimizer"):
            ns.hessian(
                model, (x, y), loss=CROSS_ENTROPY, optimizer=torch.optim.SGD([torch.ones(2, requires_grad=True)])
            )

    def test_the_traces_of_blocks_are_those_of_the_dense_hessian(self) -> None:
        model, x, y = made("batch")
        diagonal = written_out(model, [(x, y)], "train").diagonal()
        found = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, mode="train", blocks=True, block_probes=400, k=1)
        sizes = [parameter.numel() for parameter in model.parameters()]
        for block, part in zip(found.blocks, diagonal.split(sizes), strict=True):
            assert abs(block.trace.value - float(part.sum())) <= 4 * block.trace.error + 1e-12
            assert block.trace.error < 0.2 * max(abs(float(d.sum())) for d in diagonal.split(sizes))

    def test_blocks_are_those_of_the_dense_hessian(self) -> None:
        model, x, y = made("plain")
        dense = written_out(model, [(x, y)], "train")
        found = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, blocks=True, rtol=1e-8, deflate=False)
        start = 0
        for block, parameter in zip(found.blocks, model.parameters(), strict=True):
            own = dense[start : start + parameter.numel(), start : start + parameter.numel()]
            assert block.eigenvalue == pytest.approx(float(torch.linalg.eigvalsh(own)[-1]), rel=1e-6)
            start += parameter.numel()

    def test_the_condition_number_leaves_zeros_out(self) -> None:
        x = torch.diag(torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64))
        model = nn.Linear(3, 1, bias=False).double()
        found = ns.hessian(model, (x, torch.zeros(3, 1, dtype=torch.float64)), loss=nn.functional.mse_loss, whole=True)
        assert found.condition_number == pytest.approx(9.0)
        assert found.zero_modes == 1
        assert found.eigenvalues == pytest.approx((6.0, 2 / 3, 0.0), abs=1e-12)
        assert found.safe_learning_rate == pytest.approx(1 / 3)

    def test_a_warm_start_takes_few_products(self) -> None:
        model, x, y = made("convolution", samples=40)
        cold = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, k=1, deflate=False)
        with torch.no_grad():
            model[0].weight.add_(1e-4)
        warm = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, k=1, start=cold.vectors, deflate=False)
        again = ns.hessian(model, (x, y), loss=CROSS_ENTROPY, k=1, deflate=False)
        assert warm.num_products <= 4 < again.num_products
        assert warm.sharpness == pytest.approx(again.sharpness, rel=2e-3)

    def test_half_precision_and_shared_weights(self) -> None:
        _, x, y = made("plain")
        torch.manual_seed(0)  # a few random networks are off by more in bfloat16, with so few products
        model = Function(
            lambda net, x: net.head(torch.tanh(net.inner(torch.tanh(net.inner(x))))),
            inner=nn.Linear(4, 4),
            head=nn.Linear(4, 3),
        ).double()
        truth = torch.linalg.eigvalsh(written_out(model, [(x, y)], "train"))[-1]
        assert ns.hessian(model, (x, y), loss=CROSS_ENTROPY, k=1, rtol=1e-9, deflate=False).sharpness == pytest.approx(
            float(truth)
        )
        rough = ns.hessian(model.bfloat16(), (x.bfloat16(), y), loss=CROSS_ENTROPY, k=1, rtol=1e-2, products=12)
        assert rough.sharpness == pytest.approx(float(truth), rel=0.1)


class Square(torch.autograd.Function):
    """A square whose backward is right, or keeps its derivative from being differentiated."""

    @staticmethod
    def forward(ctx, x, detached):
        ctx.save_for_backward(x)
        ctx.detached = detached
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * (x.detach() if ctx.detached else x) * grad, None


class Own(nn.Linear):
    detached = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Square.apply(super().forward(x), self.detached)


class Detached(Own):
    detached = True


class Flash(nn.Linear):
    """Insists on an attention without a second derivative."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x).reshape(1, 1, len(x), -1)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            return nn.functional.scaled_dot_product_attention(out, out, out)[0, 0]


def mean_square(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


X, Y = torch.randn(6, 4), torch.zeros(6, dtype=torch.long)
REFUSED = {
    "a loss per sample": (lambda: nn.Linear(4, 3), lambda out, y: out.sum(1), (X, Y), "must be a scalar"),
    "a loss that raises": (lambda: nn.Linear(4, 3), lambda out: out.sum(), (X, Y), "outputs and targets"),
    "no parameters": (lambda: nn.ReLU(), mean_square, (X, Y), "no parameter that needs gradients"),
    "an empty loader": (lambda: nn.Linear(4, 3), mean_square, [], "yields no batch"),
    "another shape": (lambda: nn.Linear(5, 3), mean_square, (X, Y), "the model raises"),
    "a detached loss": (lambda: nn.Linear(4, 3), lambda out, y: out.detach().mean(), (X, Y), "does not depend"),
    "a function of one's own": (lambda: Custom(4, 3), mean_square, (X, Y), "differentiated twice: Once"),
    "a second derivative that is none": (lambda: Detached(4, 3), mean_square, (X, Y), "Look at the backward of Square"),
    "an operator": (lambda: Flash(4, 8), mean_square, (X, Y), "twice: _scaled_dot_product_flash_attention"),
    "k": (lambda: nn.Linear(4, 3), mean_square, (X, Y), "k is a whole number"),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_measured_is_one_sentence(case: str) -> None:
    build, loss, loader, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as raised:
        ns.hessian(build(), loader, loss=loss, **({"k": -1} if case == "k" else {}))
    assert "\n" not in str(raised.value)


def test_a_function_of_ones_own_with_a_right_backward_is_measured() -> None:
    model, plain = Own(4, 3), nn.Linear(4, 3)
    plain.load_state_dict(model.state_dict())
    found = ns.hessian(model, (X, Y), loss=lambda out, y: out.square().mean(), k=1)
    truth = ns.hessian(plain, (X, Y), loss=lambda out, y: out.pow(4).mean(), k=1)
    assert found.sharpness == pytest.approx(truth.sharpness, rel=1e-3)


LOGITS = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
GOALS = {
    "nll": torch.arange(12) % 3,
    "cross_entropy": torch.arange(12) % 3,
    **dict.fromkeys(("bce", "bce_with_logits", "mse", "l1", "smooth_l1", "huber", "kl_div"), torch.rand(12, 3)),
}


@pytest.mark.filterwarnings("ignore:reduction")  # torch warns of the mean of kl_div
@pytest.mark.parametrize("name", TRAINING_LOSSES)
def test_a_name_is_the_loss_of_torch_here_and_in_a_check(name: str) -> None:
    outputs = LOGITS.sigmoid() if name == "bce" else LOGITS.log_softmax(1)
    loss = loss_function(name)(outputs, GOALS[name])
    assert float(loss) == pytest.approx(float(TRAINING_LOSSES[name](outputs, GOALS[name])), rel=1e-6)
    assert float(resolve_loss(name)(outputs, GOALS[name])) == pytest.approx(float(loss), rel=1e-6)


def test_targets_of_another_layout_are_not_broadcast() -> None:
    outputs, targets = torch.randn(8, 1), torch.randn(8)
    assert float(loss_function("mse")(outputs, targets)) == pytest.approx(
        float((outputs[:, 0] - targets).square().mean())
    )
