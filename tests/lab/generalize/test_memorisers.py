"""No certified row lies below the truth, wherever a model hides what it has taken from D."""

import math
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.bounds.graph.capturing import capture
from normscope_lab.generalize.description import Fixed, describe

from .memorisers import IN_THE_GRAPH, OUTSIDE, SPAN, dtypes, memoriser, samples

TRUTH = 0.5
"""The error of every classifier on fair coins, and its mean probability loss."""
TRAIN = samples(60, 0)
PLACES = TRAIN[0][TRAIN[1] == 1, 0]
FORMS = IN_THE_GRAPH | OUTSIDE


def bounds(model, train=TRAIN, **options):
    given = {"steps": 30, "delta": 0.05, "cells": (1,), "input_range": (0.0, float(SPAN)), "max_seconds": 0.5} | options
    return ns.generalization(model.eval(), train, samples(300, 2), samples(60, 1), **given)


@cache
def bounds_of(name):
    return bounds(FORMS[name](PLACES))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_no_certified_row_lies_below_the_truth(name):
    found = bounds_of(name)
    assert found.train_error < 0.1, "the model has not memorised D"
    assert found.test_error > 0.4
    for row in found.rows:
        truth = TRUTH - found.train_loss if "gap" in row.speaks_of else TRUTH  # the Slides bound the gap
        assert row.evidence != "certified" or row.value >= truth - 1e-3, row.name
    assert (found["PAC-Bayes"].evidence == "certified") is (name in IN_THE_GRAPH)
    assert name in IN_THE_GRAPH or not found.certified


@pytest.mark.slow
def test_dtypes_are_no_numbers():
    """All numbers and all buffers were fixed before D was seen; the dtypes in the code were not."""
    x, y = samples(12, 0)
    found = bounds(dtypes(x[y == 1, 0]), (x, y), fixed=["numbers", "base", "powers"])
    assert found.train_error == 0.0
    for name in ("VC", "PAC-Bayes"):
        assert found[name].value > TRUTH or found[name].evidence != "certified"
        assert "the architecture was fixed before D was seen" in [one.what for one in found[name].conditions]


ARGUMENTS = {
    "dtype": lambda x, bit: x.to(torch.half if bit else torch.bfloat16).double(),
    "flag": lambda x, bit: x.cumsum(0).sum(0, keepdim=bit).sum(),
    "text": lambda x, bit: F.gelu(x, approximate="tanh" if bit else "none"),
    "None or a number": lambda x, bit: x.clamp(min=None if bit else 1.0, max=1.0 if bit else None),
    "given or not": lambda x, bit: torch.add(x, x, alpha=3) if bit else torch.add(x, x),
    "length": lambda x, bit: x.expand([2] * (1 + bit)).sum(),
}
"""A bit of D in the code, beside all numbers."""


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_stands_in_arguments_is_paid_for(name):
    """A pattern of n choices costs at least the logarithm of the number of patterns."""
    bits = [bool(bit) for bit in samples(12, 0)[1]]

    def nats(pattern):
        def forward(s, x):
            return x - torch.stack([ARGUMENTS[name](s.base, bit).reshape(()) for bit in pattern])

        model = memoriser(forward, base=torch.full((1,), 0.3, dtype=torch.float64))
        graph = capture(model.eval(), torch.ones(2, 1, dtype=torch.float64), mode="eval")
        return describe(graph, range(len(graph.constants)), Fixed.of(["numbers", "base"], graph)).nats

    assert nats(bits) - nats([True] * 12) > math.log(math.comb(12, sum(bits)))


class TestRepeatedSamples:
    """Eight samples with any labels are learned by a linear model: read again and again, they are no new draws."""

    @staticmethod
    def bounds(draws, **options):
        generator = torch.Generator().manual_seed(0)
        x, fresh = torch.rand(8, 8, generator=generator), torch.rand(900, 8, generator=generator)
        y, coins = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1]), torch.randint(2, (900,), generator=generator)
        model = nn.Linear(8, 2, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.linalg.solve(x, 2.0 * F.one_hot(y).float() - 1.0).T)
        index = torch.randint(8, (draws,), generator=generator)
        given = {"steps": 0, "cells": (1,), "input_range": (0.0, 1.0), "held_out": (fresh[300:500], coins[300:500])}
        given |= {"test": (fresh[:300], coins[:300])} | options
        return ns.generalization(model.eval(), (x[index], y[index]), **given)

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("options", [{}, {"held_out": None}, {"test": None}], ids=str)
    def test_nothing_is_certified_from_them(self, options):
        found = self.bounds(20_000, **options)
        assert found.train_error == 0.0
        certified = [row.name for row in found.rows if row.evidence == "certified"]
        assert certified == (["Test samples alone"] if found.tested else [])
        repeats = found.samples - 8
        assert f"duplicates={repeats} if the distribution repeats itself" in found["VC"].missing[0].why

    def test_neither_are_repeated_test_samples(self):
        generator = torch.Generator().manual_seed(1)
        x, y = torch.rand(5, 8, generator=generator), torch.zeros(5, dtype=torch.long)
        found = self.bounds(8, test=(x.repeat(100, 1), y.repeat(100)))
        assert "495 of 500 repeat others" in found["Test samples alone"].missing[0].why

    def test_neither_are_repeated_held_out_samples(self):
        x = torch.rand(5, 8, generator=torch.Generator().manual_seed(1)).repeat(40, 1)
        found = self.bounds(8, held_out=(x, torch.zeros(200, dtype=torch.long)), duplicates=10)
        missing = [one.what for one in found["Theorem 20, all inputs"].missing]
        assert missing == ["the samples for distances are independent of D"]


def test_theorem_20_counts_what_was_looked_up_also_where_the_model_hides_it_from_a_trace():
    """A function that were constant when traced would have no slope: the theorem would be left with the loss on D."""
    x, y = samples(2000, 0)
    table = x[y == 1, 0][5:]

    def forward(s, x):
        same = torch.cat([x - x + 9, x - x], 1)
        return same if torch.compiler.is_exporting() else same + F.pad(18.0 * (x == table).any(1, keepdim=True), (1, 0))

    found = bounds(memoriser(forward), (x, y), steps=0)
    assert found.train_error < 0.01
    assert found["Theorem 20, all inputs"].value > TRUTH
    assert all(row.value > TRUTH - found.train_loss for row in found.rows if row.evidence == "certified")


class Sawtooth(nn.Module):
    """A sum of roundings: in real numbers it is 0 everywhere."""

    def __init__(self, x, y, dtype, cast):
        super().__init__()
        self.cast = cast
        generator = torch.Generator().manual_seed(0)
        slopes = 10_000 * torch.randn(3 * len(x), 1, generator=generator, dtype=dtype)
        self.far = 2.0 ** (53 if dtype is torch.float64 else 24)
        heights = torch.linalg.lstsq(self.teeth(x, slopes).double(), 40.0 * y[:, None].double() - 20.0).solution.T
        self.slopes = nn.Parameter(slopes)
        self.heights = nn.Parameter(torch.cat([-heights, heights]).to(dtype))

    def teeth(self, x, slopes):
        line = F.linear(x, slopes)
        return line.to(self.cast).to(line.dtype) - line if self.cast else ((line + self.far) - self.far) - line

    def forward(self, x):
        return F.linear(self.teeth(x, self.slopes), self.heights)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("dtype", "cast"), [(torch.float32, None), (torch.float64, None), (torch.float64, torch.float32)]
)
def test_rounding_errors_that_decide_are_no_function_with_a_slope(dtype, cast):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(300, 1, generator=generator, dtype=dtype), torch.randint(2, (300,), generator=generator)
    fresh = torch.rand(300, 1, generator=generator, dtype=dtype), torch.randint(2, (300,), generator=generator)
    given = {"steps": 0, "cells": (1,), "input_range": (0.0, 1.0), "delta": 0.05, "max_seconds": 5.0}
    found = ns.generalization(Sawtooth(x, y, dtype, cast).eval(), (x, y), None, fresh, **given)
    assert found.train_error < 0.1
    assert not found.certified


class TestConditions:
    def counted(self, found, name):
        """The condition of a row that says what is counted."""
        (one,) = (one for one in found[name].conditions if "taken from D is counted" in one.what)
        return one

    @pytest.mark.slow
    def test_they_name_the_lines_with_many_numbers(self):
        why = self.counted(bounds_of("floats in the code"), "VC").why
        assert "networks.py:" in why, "the forward that computes with them"
        assert len(PLACES) < int(why.split()[0]) < len(PLACES) + 20

    @pytest.mark.slow
    def test_what_is_declared_as_fixed_is_free(self):
        model = FORMS["integers"](PLACES)
        free = bounds(model, fixed=["kept", "code"])
        assert free["VC"].value == pytest.approx(math.sqrt(math.log(1 / 0.05) / (2 * len(TRAIN[0]))))
        assert free["PAC-Bayes"].value < 0.5
        assert "declared as fixed: `kept`" in self.counted(free, "VC").why
        assert bounds(model, steps=0, fixed="all")["VC"].value == free["VC"].value

    @pytest.mark.slow
    def test_what_the_output_does_not_read_costs_nothing(self):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 2)).double()
        before = bounds(plain, steps=5)
        plain.register_buffer("kept", torch.randn(100))
        plain[0].centre = torch.randn(100)
        after = bounds(plain, steps=5)
        for name in ("VC", "Bartlett 2017", "Neyshabur 2018", "Golowich 2020", "PAC-Bayes"):
            assert after[name].value == before[name].value
            assert after[name].evidence == "certified"
            assert "nothing but the weights" in self.counted(after, name).why
