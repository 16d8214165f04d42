"""What an attack on the bounds found: rows that were called certified and were not, and input that broke them."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import InputError
from normscope.theory.losses import Loss
from normscope_lab.generalize.stream import Voronoi
from normscope_lab.generalize.weight_layers import read_network

from ...soundness.networks import Function


def data(count=60, seed=0, features=4):
    x = torch.randn(count, features, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 2))


def bounds(model, train, *others, **options):
    return ns.generalization(model, train, *others, **({"cells": (1,), "steps": 0, "max_seconds": 0.5} | options))


def written(forward, **shapes):
    """A forward that is given as a function of the module, with parameters of some shapes, and its input."""
    generator = torch.Generator().manual_seed(0)
    return Function(forward, **{n: nn.Parameter(torch.randn(s, generator=generator)) for n, s in shapes.items()})


ADDED = written(lambda s, x: F.linear(torch.relu(F.linear(x, s.a) + s.b), s.c), a=(6, 4), b=(6,), c=(2, 6))
MULTIPLIED = written(lambda s, x: torch.relu(x @ s.a + s.b) @ s.c - s.d, a=(4, 6), b=(6,), c=(6, 2), d=(2,))
BESIDE = written(
    lambda s, x: F.linear(torch.relu(F.linear(torch.cat([x, s.b.expand(len(x), 3)], 1), s.a)), s.c),
    a=(6, 7), b=(3,), c=(2, 6),
)  # fmt: skip
PRODUCT = written(
    lambda s, x: F.linear(torch.bmm(F.linear(x.view(-1, 2, 2), s.a), F.linear(x.view(-1, 2, 2), s.a)).flatten(1), s.c),
    a=(2, 2), c=(2, 4),
)  # fmt: skip
MEETING = written(lambda s, x: F.linear(torch.relu(F.linear(x - x.mean(0), s.a)), s.c), a=(6, 4), c=(2, 6))
BATCH_STATISTICS = nn.Sequential(
    nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.ReLU(), nn.Linear(6, 2)
)


def read(model):
    return read_network(model, data(8)[0], 2, None, None)


class TestArchitecture:
    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("model", [ADDED, MULTIPLIED, BESIDE])
    def test_every_number_that_may_be_learned_counts(self, model):
        found = read(model)
        assert found.parameters >= sum(one.numel() for one in model.parameters())
        assert found.units[-1].weights == found.parameters
        assert found.units[0].weights == found.parameters - sum(
            one.numel() for name, one in model.named_parameters() if name in "cd"
        )

    def test_a_constant_that_is_added_makes_the_next_layer_one_degree_higher(self):
        model = written(lambda s, x: F.linear(torch.relu(F.linear(x + s.b, s.a)), s.c), a=(6, 4), b=(4,), c=(2, 6))
        assert [one.degree for one in read(model).units] == [2, 3]

    def test_a_product_of_constants_that_is_added_has_degree_2(self):
        model = written(lambda s, x: torch.relu(torch.addmm(x, s.a.expand(len(x), 3), s.b))[:, :2], a=(1, 3), b=(3, 4))
        assert [one.degree for one in read(model).units] == [2, 2]

    def test_whole_numbers_that_depend_on_the_input_are_not_piecewise_linear(self):
        """The cast rounds: how many patterns its weights have is not bounded by Warren's theorem."""
        model = written(lambda s, x: (x @ s.a).long().float()[:, :2] @ s.b, a=(4, 6), b=(2, 2))
        assert "gives no real numbers" in read(model).piecewise.why

    def test_a_product_of_two_values_is_not_piecewise_linear(self):
        found = read(PRODUCT)
        assert not found.units
        assert found.piecewise.status == "not met"

    def test_no_row_is_longer_than_the_operator_norm(self):
        """A kernel of which only the middle touches an image of one pixel: its rows are those of the middle."""
        conv = nn.Conv2d(3, 5, 5, padding=2, bias=False)
        with torch.no_grad():
            conv.weight[:, :, 2, 2] *= 1e-3
        found = read_network(nn.Sequential(conv, nn.Flatten()), torch.randn(4, 3, 1, 1), 5, None, None).layers[0]
        assert found.log10_rows <= math.log10(found.outputs) + found.log10_spectral + 1e-9
        matrix = conv.weight.detach()[:, :, 2, 2].double()
        assert 10**found.log10_rows >= float(matrix.norm(dim=1).sum())
        assert 10**found.log10_frobenius >= float(matrix.norm())


class TestEvidence:
    @pytest.mark.one_in(1000)
    @pytest.mark.parametrize("model", [MEETING, BATCH_STATISTICS])
    def test_nothing_is_certified_where_samples_meet(self, model):
        found = bounds(model, data(), data(30, 1), steps=2)
        assert found["PAC-Bayes"].evidence == "estimated"
        assert found["VC"].evidence == "estimated"
        assert not found.certified

    def test_samples_set_aside_are_leaked_too(self):
        x, y = data()
        with pytest.raises(InputError, match="12 samples of test are also in train"):
            bounds(network(), (x, y), (x[4::5], y[4::5]))

    @pytest.mark.slow
    def test_repeats_that_are_allowed_are_not_certified(self):
        x, y = data()
        found = bounds(network(), (x, y), (x[:5], y[:5]), (x[:20], y[:20]), radius=9.0, duplicates=20)
        missing = {one.name: {each.what for each in one.missing} for one in found.rows}
        assert missing["Test samples alone"] == {"the model was not trained on the test samples"}
        assert missing["Theorem 20, all inputs"] == {"the partition is fixed before D is seen"}


class TestCells:
    def test_points_far_from_the_origin_go_to_the_nearest_centre(self):
        generator = torch.Generator().manual_seed(0)
        x = 1e4 + torch.randn(50, 20, generator=generator)
        centres = 1e4 + torch.randn(8, 20, generator=generator)
        cells, offsets = Voronoi(centres).assign(x)
        exact = (x.double()[:, None] - centres.double()).norm(dim=2)
        assert torch.equal(cells, exact.argmin(1))
        assert torch.equal(offsets, x.double() - centres.double()[cells])

    def test_a_ball_lies_around_the_centre_that_points_are_measured_from(self):
        centres = (100.0 * torch.rand(8, 3, generator=torch.Generator().manual_seed(0))).to(torch.bfloat16)
        made = Voronoi(centres, 1.0)
        x = made.centres + torch.randn(8, 3, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
        cells, _ = made.assign(x)
        exact = (x.double() - made.centres.double()).norm(dim=1)
        assert ((cells == torch.arange(8)) == (exact <= 1.0)).all()


class TestInput:
    @pytest.mark.parametrize("rows", [lambda z, t: z[:, 0] - 9.0, lambda z, t: z[:, 0].abs() + 1.1])
    def test_a_loss_outside_of_its_range_is_refused(self, rows):
        wrong = Loss(name="wrong", targets="classes", constant=lambda k: 1.0, rows=rows, reference="", most=1.0)
        with pytest.raises(InputError, match="said to lie between 0 and 1, but on train"):
            bounds(network(), data(), loss=wrong)

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("place", [0, 15])
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_held_out_samples_are_finite(self, place, value):
        x, y = data(20, 1)
        x[place, 1] = value
        with pytest.raises(InputError, match="held-out samples are not all finite"):
            bounds(network(), data(), None, (x, y), radius=2.0)

    @pytest.mark.parametrize("wrong", [{}, {"0.weight": torch.full((6, 4), math.nan)}])
    def test_a_wrong_prior_is_refused_before_the_data_are_read(self, wrong):
        with pytest.raises(InputError, match="prior"):
            bounds(network(), None, steps=2, prior=wrong)

    @pytest.mark.slow
    def test_half_precision_and_no_parameters_leave_the_other_rows(self):
        x, y = data()
        half = bounds(network().half(), (x.half(), y), steps=3)
        none = bounds(nn.Identity(), (x[:, :2], y), steps=3)
        assert "no PAC-Bayes bound" in half.notes[-1]
        assert "no parameters" in none.notes[-1]
        assert none["VC"].value < 1.0
