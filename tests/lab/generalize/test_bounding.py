"""`ns.generalization` as users call it: the table, its evidence, what is saved, and what is refused."""

import math

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core.errors import InputError
from normscope.theory import losses
from normscope_lab.generalize.bound import BoundRow, condition, row, term
from normscope_lab.generalize.generalization_table import decomposition
from normscope_lab.generalize.stream import Tally, Voronoi
from normscope_lab.generalize.than2025 import over_all_inputs, over_balls


def data(count=400, seed=0, features=2):
    x = torch.rand(count, features, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0.5).long()


def network(norm=None, features=2):
    torch.manual_seed(0)
    layers = [nn.Linear(features, 8), *([norm] if norm is not None else []), nn.ReLU(), nn.Linear(8, 2)]
    return nn.Sequential(*layers)


@pytest.fixture(scope="module")
def found():
    return ns.generalization(
        network(), data(), data(200, 1), input_range=(0.0, 1.0), steps=20, cells=(1, 4), loss="ramp"
    )


class TestTable:
    @pytest.mark.slow
    def test_every_bound_has_its_row(self, found):
        assert [one.name for one in found.rows] == [
            "Test samples alone",
            "Theorem 20, all inputs",
            "Slides' Theorem 1",
            "Theorem 20, slopes at D",
            "Corollary 21",
            "Corollary 22 (14)",
            "HKK",
            "VC",
            "Bartlett 2017",
            "Neyshabur 2018",
            "Golowich 2020",
            "Weight normalization",
            "PAC-Bayes",
        ]

    def test_evidence_and_value_follow_from_conditions_and_terms(self, found):
        for one in found.rows:
            assert one.vacuous == (one.value >= one.most)
            assert not one.terms or one.value == pytest.approx(sum(each.value for each in one.terms), rel=1e-9)
            if one.evidence == "certified":
                assert not one.missing
            elif one.evidence == "estimated":
                assert one.missing
        assert found["Theorem 20, slopes at D"].evidence == "estimated"
        assert found["Theorem 20, all inputs"].evidence == "certified"
        assert found["HKK"].evidence == "rate without constants"

    def test_it_prints_and_is_a_page_with_its_charts(self, found, tmp_path):
        text = str(found)
        assert "Theorem 20, all inputs" in text
        assert "Conditions that are not met" in text
        page = found.to_html(tmp_path / "g.html")
        assert page.count("<svg") >= 3
        for title in ("Terms of each bound", "against the number of cells", "against the number of samples"):
            assert title in page
        assert len(page) < 2_000_000

    def test_sample_sizes(self, found):
        name = "Theorem 20, slopes at D"
        course = next(one for one in found.courses if one.name == name)
        assert found.samples_for(course.local + 0.1, name) > found.samples_for(course.local + 0.2, name)
        assert found.samples_for(course.local * 0.5, name) == math.inf
        with pytest.raises(InputError, match="no row of Theorem 20"):
            found.samples_for(0.1, "VC")
        with pytest.raises(InputError, match="there is no row"):
            found["Rademacher"]


class TestKinds:
    @pytest.mark.slow
    def test_without_a_range_distances_are_estimated_and_the_same_call_gives_the_same(self):
        found, again = (ns.generalization(network(), data(), steps=2, cells=(1,)) for _ in range(2))
        assert found == again
        assert found["Theorem 20, all inputs"].evidence == "estimated"
        assert "Slides' Theorem 1" not in [one.name for one in found.rows]
        assert found["Neyshabur 2018"].evidence == "estimated"

    def test_delta_is_shared_by_the_partitions_and_halved_for_distances(self):
        found = ns.generalization(network(), data(), input_range=(0.0, 1.0), steps=0, cells=(1, 9))
        assert found["Theorem 20, all inputs"].evidence == "certified"
        assert found.courses[0].sizes == (2, 18)
        assert found.courses[0].delta == 0.01 / 2 / 2

    def test_layer_norm_has_its_form_over_all_inputs(self):
        found = ns.generalization(network(nn.LayerNorm(8, eps=1e-4)), data(), steps=0, cells=(1,))
        ratio = found["Corollary 22 (LN)"].terms[0].log10 - found["Corollary 22, without normalizers"].terms[0].log10
        assert ratio == pytest.approx(2.0)  # 1/sqrt(1e-4)
        assert found["Bartlett 2017"].evidence == "estimated"
        assert any("chain" in one.what for one in found["Bartlett 2017"].missing)

    @pytest.mark.slow
    def test_batch_norm_has_its_form_with_the_worst_normalizer_and_its_twin(self):
        torch.manual_seed(0)
        first, second = nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, affine=False)
        first.running_var.fill_(4.0)
        model = nn.Sequential(nn.Linear(2, 3), first, nn.ReLU(), nn.Linear(3, 3), second, nn.ReLU(), nn.Linear(3, 2))
        found = ns.generalization(model, data(), steps=0, cells=(1,))
        ratio = found["Corollary 22 (BN)"].terms[0].log10 - found["Corollary 22, without normalizers"].terms[0].log10
        assert ratio == pytest.approx(2 * math.log10(math.sqrt(3.0)), abs=1e-4)
        assert "twin" in found["Corollary 22, without normalizers"].speaks_of
        assert found["Bartlett 2017"].evidence == "certified"  # folded

    def test_balls_are_certified_and_no_looser_than_all_inputs(self):
        found = ns.generalization(network(), data(), radius=0.2, steps=0, cells=(1, 16))
        balls, everywhere = found["Theorem 20, balls"], found["Theorem 20, all inputs"]
        assert balls.evidence == everywhere.evidence == "certified"
        assert balls.value <= everywhere.value + 1e-12

    @pytest.mark.slow
    def test_sharpness_adds_a_rate(self):
        found = ns.generalization(network(), data(100), steps=0, cells=(1,), sharpness=True)
        assert found["LLA"].evidence == "rate without constants"
        assert "sharpness" in found["LLA"].note

    def test_a_model_that_cannot_be_traced_keeps_what_needs_no_graph(self):
        class Odd(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)

            def forward(self, x):
                return self.layer(x) if float(x.detach().sum()) > -1e9 else x

        found = ns.generalization(Odd(), data(), steps=0, cells=(1,))
        assert [one.name for one in found.rows] == ["Theorem 20, slopes at D", "Corollary 21", "HKK"]
        assert found["Corollary 21"].evidence == "estimated"
        assert "memorised" in found["Corollary 21"].missing[-1].why
        assert len(found.notes) == 1


class TestBalls:
    def test_no_secant_inside_a_cell_is_steeper_than_its_ball(self):
        """The figures behind the certified row, attacked: pairs inside the cells of a trained network."""
        x, _ = data()
        model = network().eval()
        partition = Voronoi(x[:6], 0.15)
        tally = Tally.empty(partition, 2, 2, torch.device("cpu"))
        tally.add(x, torch.zeros(len(x), dtype=torch.long))
        known = over_all_inputs(model, x[:8], None, None)
        (constants,), steep = over_balls(known, (tally,))
        assert steep.status == "met"
        generator = torch.Generator().manual_seed(0)
        spread = 0.3 * torch.rand(6000, 2, generator=generator) - 0.15
        points = x[:6].repeat(1000, 1) + spread
        cells, _ = partition.assign(points)
        for cell in range(6):
            inside = points[cells == cell].double()
            half = len(inside) // 2
            with torch.no_grad():
                out = model.double()(inside)
            steepest = ((out[:half] - out[half : 2 * half]).norm(dim=1)
                        / (inside[:half] - inside[half : 2 * half]).norm(dim=1)).max()  # fmt: skip
            model.float()
            assert float(steepest) <= 10 ** float(constants[cell]) * (1 + 1e-6)
            assert constants[cell] <= known.log10_global
        assert constants[6] == known.log10_global


class TestRefused:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"loss": "cross_entropy"}, "unbounded"),
            ({"loss": "clipped_mse"}, "values"),
            ({"loss": "nonsense"}, "nonsense"),
            ({"delta": 0.0}, "delta"),
            *(({"cells": wrong}, "cells are whole numbers") for wrong in ((), (0,), (2.0,), (True,), "12", 3)),
            ({"radius": 0.0}, "radius is above 0"),
            ({"input_range": (1.0, 0.0)}, "input_range"),
            ({"steps": -1}, "steps"),
            ({"duplicates": True}, "duplicates"),
        ],
    )
    def test_options_that_cannot_be(self, given, message):
        with pytest.raises(InputError, match=message):
            ns.generalization(network(), data(50), **({"steps": 0} | given))


class TestRows:
    def test_a_certified_row_needs_every_condition(self):
        good, bad = condition("a", True, ""), condition("b", None, "")
        assert (
            row("r", source="", speaks_of="", most=1.0, terms=[term("x", 0.1)], conditions=[good]).evidence
            == "certified"
        )
        mixed = row("r", source="", speaks_of="", most=1.0, terms=[term("x", 0.1)], conditions=[good, bad])
        assert (mixed.evidence, mixed.missing) == ("estimated", (bad,))
        with pytest.raises(ValueError, match="cannot be certified"):
            BoundRow(
                name="r", source="", speaks_of="", log10_value=0.0, most=1.0, terms=(), conditions=(bad,),
                evidence="certified", vacuous=True,
            )  # fmt: skip

    @pytest.mark.parametrize(("test", "bound"), [(None, None), (None, 0.4), (0.3, 0.4), (0.05, None)])
    def test_the_three_errors_hold_what_is_known(self, test, bound):
        parts = {part.name: part for part in decomposition(0.1, test, bound, 1.0)}
        assert (parts["optimization error"].low, parts["optimization error"].high) == (0.0, 0.1)
        generalization = parts["generalization error"]
        if test is not None:
            assert generalization.low == generalization.high == pytest.approx(test - 0.1)
        else:
            assert generalization.high == pytest.approx((bound or 1.0) - 0.1)
        assert parts["approximation error"].low == 0.0


@pytest.mark.slow
def test_no_draw_of_the_data_violates_a_certified_row():
    """Uniform on a square with a tenth of the labels flipped, networks fitted to few samples; 100 draws of D."""

    def draw(count, generator):
        x = torch.rand(count, 2, generator=generator)
        return x, ((x[:, 0] > 0.5) ^ (torch.rand(count, generator=generator) < 0.1)).long()

    generator = torch.Generator().manual_seed(0)
    fresh_x, fresh_y = draw(20_000, generator)
    for seed in range(100):
        x, y = draw(120, generator)
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for _ in range(30):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        found = ns.generalization(
            model, (x, y), delta=0.5, input_range=(0.0, 1.0), radius=None, steps=0, cells=(1, 4, 16)
        )
        with torch.no_grad():
            logits = model(fresh_x)
            risk = float(losses.probability().rows(logits, fresh_y).mean())
            error = float((logits.argmax(1) != fresh_y).double().mean())
        for one in found.rows:
            if one.evidence == "certified" and one.speaks_of.endswith("of the model on fresh data"):
                assert one.value >= (error if "error" in one.speaks_of else risk)


def test_a_value_beyond_all_floats_is_kept():
    found = row("r", source="", speaks_of="", most=1.0, terms=[], conditions=[], log10_value=400.0)
    assert (found.value, found.vacuous, found.log10_value) == (math.inf, True, 400.0)
