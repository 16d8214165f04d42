"""No certified row lies below the truth, wherever a model hides what it has taken from D."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import InputError

from .memorisers import MEMORISERS, SPAN, Memoriser, integers, python_floats, samples

TRUTH = 0.5
"""The error of every classifier on fair coins, and its mean probability loss."""


def bounds(model, train, **options):
    given = {"steps": 30, "delta": 0.05, "cells": (1,), "input_range": (0.0, float(SPAN))} | options
    return ns.generalization(model, train, samples(300, 2), samples(60, 1), **given)


def too_low(found):
    """The certified rows that lie below the truth, by name; the Slides bound the gap."""
    rows = [one for one in found.rows if one.evidence == "certified"]
    gap = TRUTH - found.train_loss
    return {one.name: one.value for one in rows if one.value < (gap if "gap" in one.speaks_of else TRUTH) - 1e-3}


@pytest.fixture(scope="module")
def train():
    return samples(60, 0)


@pytest.mark.parametrize("form", MEMORISERS, ids=lambda form: form.__name__)
def test_no_certified_row_lies_below_the_truth(form, train):
    x, y = train
    found = bounds(form(x[y == 1, 0]).eval(), train)
    assert found.train_error < 0.1, "the model has not memorised D"
    assert found.test_error > 0.4
    assert too_low(found) == {}


def test_theorem_20_counts_what_the_graph_gives_and_not_what_was_looked_up():
    """The traced function is constant: it has no slope, and the theorem is left with the loss on D."""
    x, y = samples(2000, 0)
    table = x[y == 1, 0][5:]

    def forward(s, x):
        same = torch.cat([x - x + 9, x - x], 1)
        return same if torch.compiler.is_exporting() else same + F.pad(18.0 * (x == table).any(1, keepdim=True), (1, 0))

    found = bounds(Memoriser(forward).eval(), (x, y), steps=0)
    assert found.train_error < 0.01
    assert found["Theorem 20, all inputs"].value > TRUTH
    assert not found.certified
    missing = found["Theorem 20, all inputs"].missing
    assert ["torch.export does not see" in one.why for one in missing] == [True]


class Sawtooth(nn.Module):
    """A sum of roundings: in real numbers it is 0 everywhere."""

    def __init__(self, x, y, dtype):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        slopes = 10_000 * torch.randn(3 * len(x), 1, generator=generator, dtype=dtype)
        self.far = 2.0 ** (53 if dtype is torch.float64 else 24)
        heights = torch.linalg.lstsq(self.teeth(x, slopes).double(), 40.0 * y[:, None].double() - 20.0).solution.T
        self.slopes = nn.Parameter(slopes)
        self.heights = nn.Parameter(torch.cat([-heights, heights]).to(dtype))

    def teeth(self, x, slopes):
        line = F.linear(x, slopes)
        return ((line + self.far) - self.far) - line

    def forward(self, x):
        return F.linear(self.teeth(x, self.slopes), self.heights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_errors_that_decide_are_no_function_with_a_slope(dtype):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(900, 1, generator=generator, dtype=dtype), torch.randint(2, (900,), generator=generator)
    fresh = torch.rand(300, 1, generator=generator, dtype=dtype), torch.randint(2, (300,), generator=generator)
    given = {"steps": 0, "cells": (1,), "input_range": (0.0, 1.0), "delta": 0.05, "max_seconds": 5.0}
    found = ns.generalization(Sawtooth(x, y, dtype).eval(), (x, y), None, fresh, **given)
    assert found.train_error < 0.1
    assert too_low(found) == {}


class TestConditions:
    def counted(self, found, name):
        """The condition of a row that says what is counted."""
        (one,) = (one for one in found[name].conditions if "taken from D is counted" in one.what)
        return one

    def test_they_name_the_constants_and_what_to_do(self, train):
        x, y = train
        found = bounds(integers(x[y == 1, 0]), train, steps=2)
        for name in ("VC", "PAC-Bayes"):
            one = self.counted(found, name)
            assert one.status == "met"
            assert "`kept`" in one.why
            assert "fixed=" in one.why

    def test_they_name_the_lines_with_many_numbers(self, train):
        x, y = train
        found = bounds(python_floats(x[y == 1, 0]), train, steps=2)
        count = int((y == 1).sum())
        assert "memorisers.py:" in self.counted(found, "VC").why
        numbers = int(self.counted(found, "VC").why.split()[0])
        assert count < numbers < count + 20

    @pytest.mark.xfail(
        reason="the graph with shaken last digits gives other losses than this model: nothing is certified"
    )
    def test_what_is_declared_as_fixed_is_free(self, train):
        x, y = train
        model = integers(x[y == 1, 0])
        free = bounds(model, train, fixed=["kept", "numbers"])
        assert free["VC"].value == pytest.approx(math.sqrt(math.log(1 / 0.05) / (2 * len(x))))
        assert free["PAC-Bayes"].value < 0.5
        assert "declared as fixed: `kept`" in self.counted(free, "VC").why
        for every in ("all", ["*", "numbers"]):
            assert bounds(model, train, steps=0, fixed=every)["VC"].value == free["VC"].value

    @pytest.mark.parametrize(("fixed", "message"), [("keept", r"no such buffer.*`kept`"), ([3], "names of buffers")])
    def test_what_is_no_constant_is_refused(self, fixed, message, train):
        x, y = train
        with pytest.raises(InputError, match=message):
            bounds(integers(x[y == 1, 0]), train, steps=0, fixed=fixed)

    def test_what_the_output_does_not_read_costs_nothing(self, train):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 2))
        before = bounds(plain, train, steps=5)
        plain.register_buffer("kept", torch.randn(100))
        plain[0].centre = torch.randn(100)
        after = bounds(plain, train, steps=5)
        for name in ("VC", "Bartlett 2017", "Neyshabur 2018", "Golowich 2020", "PAC-Bayes"):
            assert after[name].value == before[name].value
            assert after[name].evidence == "certified"
            assert "nothing but the weights" in self.counted(after, name).why

    def test_an_added_table_that_is_declared_is_no_parameter(self, train):
        class Positions(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", torch.linspace(0, 1, 8)[None])
                self.first, self.last = nn.Linear(1, 8), nn.Linear(8, 2)

            def forward(self, x):
                return self.last(torch.relu(self.first(x) + self.table))

        torch.manual_seed(0)
        model = Positions()
        notes = [bounds(model, train, steps=0, fixed=fixed)["VC"].note for fixed in ((), "table")]
        assert "for 42 weights" in notes[0]
        assert "for 34 weights" in notes[1]

    def test_an_index_between_the_layers_of_a_chain_is_paid_for(self):
        class Shuffled(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("order", torch.randperm(64, generator=torch.Generator().manual_seed(0)))
                self.first, self.last = nn.Linear(2, 64), nn.Linear(64, 2)

            def forward(self, x):
                return self.last(torch.relu(self.first(x))[:, self.order])

        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(400, 2, generator=generator)
        given = {"steps": 0, "cells": (1,), "input_range": (0.0, 1.0)}
        paid = ns.generalization(Shuffled().eval(), (x, (x[:, 0] > 0.5).long()), **given)
        torch.manual_seed(0)
        free = ns.generalization(Shuffled().eval(), (x, (x[:, 0] > 0.5).long()), fixed="all", **given)
        nats = math.log(2) * 64 * 6  # a code for a permutation of 64 takes nearly that
        for name in ("Bartlett 2017", "Golowich 2020"):
            terms = [found[name].term("confidence") for found in (paid, free)]
            assert (terms[0] / 3) ** 2 - (terms[1] / 3) ** 2 > nats / (2 * 320)
            assert paid[name].evidence == "certified"
        assert paid["Neyshabur 2018"].value > free["Neyshabur 2018"].value
