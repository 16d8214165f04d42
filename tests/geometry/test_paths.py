"""Smoothness, flatness and margins, against closed forms and against what symmetry says."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.errors import InputError

from .hessians import CROSS_ENTROPY, Custom, made

SQUARE = nn.functional.mse_loss


def bowl(*curvatures: float) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a model and a batch whose loss is half the sum of curvature times weight squared, from weights of 1."""
    count = len(curvatures)
    x = torch.diag((torch.tensor(curvatures, dtype=torch.float64) * count / 2).sqrt())
    model = nn.Linear(count, 1, bias=False).double()
    nn.init.ones_(model.weight)
    return model, (x, torch.zeros(count, 1, dtype=torch.float64))


def unchanged(model: nn.Module, state: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


class TestSmoothness:
    @pytest.mark.slow
    def test_the_largest_stable_learning_rate_of_a_bowl_is_two_over_its_curvature(self) -> None:
        model, batch = bowl(4.0, 0.5)
        for first in (1e-3, 0.3, 50.0):
            found = ns.smoothness(model, batch, loss=SQUARE, lr=first, steps=0, trial_steps=30)
            assert found.stable <= 0.52
            assert 0.49 <= found.unstable <= 1.1 * found.stable + 1e-12

    def test_beta_range_and_predictiveness_of_a_bowl(self) -> None:
        model, batch = bowl(3.0)
        found = ns.smoothness(model, batch, loss=SQUARE, lr=0.1, steps=3, trial_steps=0)
        first = found.steps[0]
        assert first.loss == pytest.approx(1.5)
        assert first.effective_beta == pytest.approx(3.0)
        assert first.predictiveness == pytest.approx(3.0 * 0.4 * 3.0)
        places = [1.5 * (1 - t * 3.0) ** 2 for t in (0.0, 0.05, 0.1, 0.2, 0.4)]
        assert (first.least_loss, first.most_loss) == pytest.approx((min(places), max(places)))
        assert found.steps[1].loss == pytest.approx(1.5 * 0.7**2)
        assert (found.stable, found.unstable) == (0.0, math.inf)
        assert found.gradients == 3 * 5

    def test_beta_is_at_most_the_curvature_and_a_loss_that_breaks_is_not_stable(self) -> None:
        model, batch = bowl(4.0, 0.5)
        found = ns.smoothness(model, batch, loss=lambda out, y: (out.square().mean() - 1.0).exp(), lr=40.0, steps=1)
        assert found.steps[0].most_loss == math.inf
        assert 0 < found.stable < 40.0


class TestFlatness:
    @pytest.mark.slow
    def test_scaled_noise_does_not_change_with_the_scale_of_the_weights_and_raw_noise_does(self) -> None:
        model, x, y = made("batch", samples=40)
        model[1].eps = 1e-12
        other = copy.deepcopy(model)
        with torch.no_grad():
            other[0].weight.mul_(torch.tensor([0.3, 4.0, 1.0, 2.0, 0.5, 7.0], dtype=torch.float64)[:, None])
            other[0].bias.mul_(0.0)
            model[0].bias.mul_(0.0)
        first, second = (ns.flatness(m, (x, y), loss=CROSS_ENTROPY, levels=(0.3,), draws=4) for m in (model, other))
        assert first.noise[0].loss.value == pytest.approx(second.noise[0].loss.value, rel=1e-9)
        assert first.spherical_sharpness == pytest.approx(second.spherical_sharpness, rel=1e-3)
        assert first.ascent == pytest.approx(second.ascent, rel=1e-6)
        assert abs(first.noise[0].raw_loss.value / second.noise[0].raw_loss.value - 1) > 1e-3
        assert abs(first.raw_ascent / second.raw_ascent - 1) > 0.02

    def test_the_mean_under_noise_is_half_the_trace_of_a_bowl(self) -> None:
        model, batch = bowl(4.0, 2.0)
        found = ns.flatness(model, batch, loss=SQUARE, levels=(0.5,), draws=300, sharpness=False)
        expected = 3.0 + 0.5 * 0.5**2 * (4.0 + 2.0)  # one group of two entries of 1: a deviation of the level each
        assert abs(found.noise[0].loss.value - expected) < 4 * found.noise[0].loss.error
        assert found.noise[0].raw_loss.value == pytest.approx(found.noise[0].loss.value)
        assert found.accuracy is None
        assert found.spherical_sharpness is None

    def test_more_noise_hurts_and_the_model_is_left_as_found(self) -> None:
        model, x, _ = made("layer")
        state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        found = ns.flatness(model, (x, model(x).argmax(1)), loss=CROSS_ENTROPY, levels=(1e-6, 3.0), draws=4)
        assert unchanged(model, state)
        assert torch.equal(torch.get_rng_state(), random)
        assert (found.accuracy, found.noise[0].accuracy.value) == (1.0, 1.0)
        assert found.noise[1].accuracy.value < 1.0
        assert found.noise[1].loss.value > found.noise[0].loss.value == pytest.approx(found.loss, rel=1e-4)
        assert found.to_html().count('class="chart curves') >= 2
        assert "Raw noise" in str(found)

    @pytest.mark.parametrize("bad", [{"levels": ()}, {"levels": (-1.0,)}, {"levels": "x"}, {"draws": 0}])
    def test_bad_options_are_refused(self, bad) -> None:
        model, batch = bowl(1.0)
        with pytest.raises(InputError, match=next(iter(bad))):
            ns.flatness(model, batch, loss=SQUARE, **bad)


class TestMargins:
    def made(self) -> nn.Module:
        model = nn.Linear(2, 3, bias=False)
        model.weight.data = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
        return model

    def test_margins_and_their_quantiles(self) -> None:
        x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, -1.0]])
        found = ns.margins(self.made(), (x, torch.tensor([0, 1, 1, 2])))
        assert found.margin == pytest.approx((2.0, 1.0, -1.0, 1.0))
        assert (found.accuracy, found.labelled, found.classes) == (0.75, True, 3)
        assert [found.quantile(share) for share in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([-1.0, -1.0, 1.0, 2.0])
        assert found.normalised("global") == pytest.approx([m / (2 * 2**0.5) for m in found.margin], rel=1e-3)

    @pytest.mark.slow
    def test_no_change_shorter_than_the_normalised_margin_changes_the_class(self) -> None:
        model, x, _ = made("plain", samples=4)
        found = ns.margins(model, x)
        assert not found.labelled
        radii = ns.certified_radius(model, x, mode="eval", attack=True)
        assert all(own < hit for own, hit in zip(found.normalised("global"), radii.attacked, strict=True))

    @pytest.mark.parametrize(
        ("loader", "message"),
        [
            ((torch.zeros(2, 2), torch.tensor([0, 3])), "labels are one class"),
            ((torch.zeros(2, 2), torch.tensor([0.0, 1.0])), "labels are one class"),
            ([], "no batch"),
        ],
    )
    def test_what_is_no_classification_is_refused(self, loader, message) -> None:
        with pytest.raises(InputError, match=message):
            ns.margins(self.made(), loader)
        with pytest.raises(InputError, match="a row of 2 or more"):
            ns.margins(nn.Linear(2, 1), torch.zeros(2, 2))


BATCH = (torch.ones(4, 3), torch.zeros(4, dtype=torch.long))


def test_flatness_names_what_cannot_be_differentiated_twice_and_first_derivatives_do_without() -> None:
    with pytest.raises(InputError, match="differentiated twice: Once"):
        ns.flatness(Custom(3, 2), BATCH, loss="cross_entropy", levels=(0.1,), draws=1)
    assert ns.flatness(Custom(3, 2), BATCH, loss="cross_entropy", levels=(0.1,), draws=1, sharpness=False).ascent >= 0
