"""Partitions, fingerprints and the pass over the data: against sums over everything at once."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.theory.losses import probability
from normscope_lab.generalize.data_reading import EVERY, CellPlan, read
from normscope_lab.generalize.stream import (
    SampleBatch,
    Voronoi,
    fingerprints,
    identical,
    random_keys,
    split_off,
)


def points(count=60, features=3, seed=0):
    return torch.randn(count, features, generator=torch.Generator().manual_seed(seed))


class TestPartition:
    def test_points_beyond_the_radius_have_a_cell_of_their_own(self):
        x, centres = points(), points(5, seed=1)
        partition = Voronoi(centres, 0.8)
        cells, _ = partition.assign(x)
        near = torch.cdist(x, centres).amin(1)
        assert partition.size == 6
        assert torch.equal(cells == 5, near > 0.8)
        assert partition.reach(None, None).tolist() == [0.8] * 5 + [math.inf]

    def test_no_point_of_the_range_is_beyond_the_reach(self):
        x = torch.rand(2000, 3, generator=torch.Generator().manual_seed(0))
        for partition in (Voronoi(x[:4]), Voronoi(x[:4], 0.3)):
            cells, offsets = partition.assign(x.clone())
            assert bool((offsets.double().norm(dim=1) <= partition.reach(0.0, 1.0)[cells] + 1e-6).all())
            assert int(cells.max()) < partition.size

    @pytest.mark.parametrize(("points", "radius"), [(torch.zeros(4, 2), None), (torch.ones(2, 2), 1.0)])
    def test_two_equal_centres_are_refused(self, points, radius):
        with pytest.raises(InputError, match="a cell is empty"):
            Voronoi(points, radius)


class TestFingerprints:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
    def test_the_same_row_has_the_same_number_in_every_batch(self, dtype):
        x = points(40, 7).to(dtype)
        keys = random_keys(7, torch.Generator().manual_seed(0))
        whole = fingerprints(x, keys)
        assert torch.equal(torch.cat([fingerprints(part, keys) for part in x.split(3)]), whole)
        assert len(whole.unique()) == 40
        assert identical(whole[:5], whole[3:20]) == 2

    def test_images_of_few_values_are_told_apart(self):
        x = torch.randint(0, 2, (4000, 30), generator=torch.Generator().manual_seed(0)).float()
        keys = random_keys(30, torch.Generator().manual_seed(0))
        assert len(fingerprints(x, keys).unique()) == len(torch.unique(x, dim=0))


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def data(count=240, seed=0):
    x = points(count, 3, seed)
    return x, (x[:, 0] > 0).long()


PLAN = CellPlan(sizes=(1, 4), radius=None, input_range=None)


def reading(model, train, test=None, held_out=None, **options):
    given = {"plan": PLAN, "loss": probability(), "output": None, "duplicates": 0, "seed": 0} | options
    return read(model, train, test, held_out, **given)


class TestReading:
    def test_every_fifth_sample_is_set_aside_whatever_the_batches(self):
        x, y = data(23)
        for size in (1, 2, 7, 23):
            pairs = list(split_off((SampleBatch(a, b) for a, b in zip(x.split(size), y.split(size))), EVERY))
            kept = torch.cat([piece.inputs for piece, _ in pairs if piece is not None])
            aside = torch.cat([piece.inputs for _, piece in pairs if piece is not None])
            assert torch.equal(aside, x[4::5])
            assert len(kept) == 19

    def test_sums_do_not_depend_on_the_batches(self):
        x, y = data()
        model = classifier()
        found = [reading(model, list(zip(x.split(size), y.split(size)))) for size in (9, 60, 240)]
        for other in found[1:]:
            assert other.train.loss == pytest.approx(found[0].train.loss)
            assert torch.allclose(other.train.margins, found[0].train.margins, atol=1e-6)
            tallies = [result.train.tallies + result.held_tallies for result in (other, found[0])]
            for one, two in zip(*tallies):
                assert torch.equal(one.counts, two.counts)
                assert torch.allclose(one.vectors, two.vectors, atol=1e-5)
                assert torch.allclose(one.slopes, two.slopes, atol=1e-6)

    def test_figures_are_those_of_the_whole_at_once(self):
        x, y = data()
        model = classifier().eval()
        found = reading(model, (x, y), data(50, 1))
        kept = torch.ones(len(x), dtype=torch.bool)
        kept[4::5] = False
        logits = model(x[kept]).detach()
        assert found.train.samples == 192
        assert found.held_out == 48
        assert found.train.error == pytest.approx(float((logits.argmax(1) != y[kept]).double().mean()))
        assert found.train.loss == pytest.approx(float(probability().rows(logits, y[kept]).mean()), rel=1e-5)
        assert found.train.square_norms == pytest.approx(float(x[kept].square().sum()), rel=1e-5)
        assert found.test.samples == 50
        inputs = x[kept].requires_grad_(True)
        (slopes,) = torch.autograd.grad(probability().rows(model(inputs), y[kept]).sum(), inputs)
        largest = [float(slopes[y[kept] == label].norm(dim=1).max()) for label in (0, 1)]
        assert found.train.tallies[0].slopes.tolist() == pytest.approx(largest, rel=1e-5)
        assert int(found.held_tallies[1].counts.sum()) == 48 - 4  # the four that are centres do not count

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda x, y: {"train": (x, y + 1)}, "labels from 1 to 2: the model has 2 classes"),
            (lambda x, y: {"train": (x, y - 1)}, "labels from -1 to 0"),
            (lambda x, y: {"train": (x, torch.zeros_like(y))}, "one label"),
            (lambda x, y: {"train": (x, y.float())}, "labels are one whole number"),
            (lambda x, y: {"train": x}, "no labels"),
            (lambda x, y: {"train": (x, y), "held_out": (x[:30], y[:30])}, "30 samples of held_out are also in"),
            (lambda x, y: {"train": (x, y), "test": (x[:1], y[:1])}, "1 samples of test are also in train"),
            (lambda x, y: {"train": (x, y), "held_out": (x + 9, y + 7)}, "held-out samples has labels"),
            (lambda x, y: {"train": (x[:3], y[:3])}, "no held-out sample"),
            (lambda x, y: {"train": (x * math.nan, y)}, "not finite"),
            (lambda x, y: {"train": []}, "no"),
            (lambda x, y: {"train": (x, y), "held_out": (x[:, :2], y)}, "held-out samples have 2 entries"),
            (lambda x, y: {"train": (x, y), "plan": replace(PLAN, input_range=(0.0, 1.0))}, "input_range is"),
            (lambda x, y: {"train": (x[4:5].expand(200, 3), y[:200])}, "a cell is empty"),
        ],
    )  # fmt: skip
    def test_bad_data_are_refused_with_a_reason(self, change, message):
        given = change(*data())
        parts = (given.pop("train"), given.pop("test", None), given.pop("held_out", None))
        with pytest.raises(InputError, match=message):
            reading(classifier(), *parts, **given)
