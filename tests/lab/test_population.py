"""Populations: what is trained and measured, what fails, what is resumed, and what is said."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import normscope
from normscope.core.errors import InputError
from normscope.data import Split, digits
from normscope.networks.small import mlp
from normscope_lab.population import cohorts as work
from normscope_lab.population.measures import MEASURES, MemberFigures, measured
from normscope_lab.population.member import Member
from normscope_lab.population.noisy import drawn
from normscope_lab.population.predict import predictive_power
from normscope_lab.population.prediction import Prediction
from normscope_lab.population.recipes import Recipe, RecipeGrid
from normscope_lab.population.stacked_training import Stop, TrainedMember, train_together

ONE = {"depths": (2,), "widths": (24,), "normalizers": ("none",), "batch_sizes": (16,), "learning_rates": (0.05,),
       "weight_decays": (0.0,), "seeds": 1}  # fmt: skip
CHEAP = ("parameters", "frobenius-sum", "distance", "steps")
"""Measures that need neither a graph nor a derivative."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def split() -> Split:
    return digits(generator=generator(), test_share=0.9)


def predicted(split: Split, grid: dict, **given) -> Prediction:
    return predictive_power(
        split, RecipeGrid(**{**ONE, **grid}), **{"samples": 64, "target_loss": 1.0, "workers": 0, **given}
    )


def recipe(**given) -> Recipe:
    plain = {"depth": 2, "width": 24, "normalizer": "none", "batch_size": 16, "lr": 0.1, "weight_decay": 0.0, "seed": 0}
    return Recipe(**{**plain, **given})


def member(gap: float, status: str = "reached", figures: dict | None = None, **given) -> Member:
    return Member(
        recipe=recipe(**given), status=status, train_error=0.0, test_error=gap, measures=figures or {"norm": gap}
    )


@pytest.mark.parametrize("normalizer", ["none", "batch", "rms"])
def test_networks_trained_together_are_those_of_torch_optim(split, normalizer):
    data = drawn(split, samples=40, label_noise=0.1, generator=generator())
    recipes = [
        recipe(normalizer=normalizer, lr=lr, weight_decay=decay, seed=seed)
        for lr, decay, seed in ((0.1, 0.0, 0), (0.02, 0.01, 1), (0.05, 0.001, 2))
    ]
    build = {"normalizer": normalizer, "width": 24, "depth": 3}
    models = [mlp(generator=generator(one.seed), **build) for one in recipes]
    before = [{name: value.clone() for name, value in model.state_dict().items()} for model in models]
    orders = [generator(10 + one.seed) for one in recipes]
    stop = Stop(loss=1e-9, steps=6)
    found = list(train_together(models, recipes, data, stop=stop, momentum=0.9, generators=orders))
    assert [(one.status, one.steps) for one in found] == [("not reached", 6)] * 3
    for one, model, start in zip(found, models, before, strict=True):
        assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())
        own = mlp(generator=generator(one.recipe.seed), **build)
        steps = torch.optim.SGD(own.parameters(), lr=one.recipe.lr, momentum=0.9, weight_decay=one.recipe.weight_decay)
        order = generator(10 + one.recipe.seed)
        for _ in range(3):
            for rows in torch.randperm(40, generator=order)[:32].split(16):
                steps.zero_grad()
                F.cross_entropy(own(data.train_images[rows]), data.train_labels[rows]).backward()
                steps.step()
        own.eval()
        for name, value in own.state_dict().items():
            assert torch.allclose(one.model.state_dict()[name], value, rtol=1e-4, atol=1e-5), name
        loss = F.cross_entropy(own(data.train_images), data.train_labels).item()
        assert one.loss == pytest.approx(loss, rel=1e-4)
        assert not one.model.training


def test_a_training_ends_at_the_loss_while_others_go_on_and_one_that_diverges_harms_none(split):
    data = drawn(split, samples=64, label_noise=0.0, generator=generator())
    recipes = [recipe(lr=0.1), recipe(lr=0.02, seed=1), recipe(lr=1e30, seed=2)]

    def trained(chosen: list[Recipe]) -> dict[float, TrainedMember]:
        models = [mlp(generator=generator(one.seed), width=24, depth=2) for one in chosen]
        orders = [generator(one.seed) for one in chosen]
        given = {"stop": Stop(loss=0.7, steps=200), "momentum": 0.9, "generators": orders}
        return {one.recipe.lr: one for one in train_together(models, chosen, data, **given)}

    found, alone = trained(recipes), trained(recipes[1:2])
    assert [found[lr].status for lr in (0.1, 0.02, 1e30)] == ["reached", "reached", "diverged"]
    assert found[0.1].steps < found[0.02].steps == alone[0.02].steps
    assert found[0.02].loss == pytest.approx(alone[0.02].loss, rel=1e-3)
    assert found[0.02].loss <= 0.7


def test_label_noise_is_of_its_size_and_the_error_under_it_is_exact(split):
    data = drawn(split, samples=150, label_noise=1.0, generator=generator())
    clean = drawn(split, samples=150, label_noise=0.0, generator=generator())
    assert torch.equal(data.train_images, clean.train_images)
    assert bool((data.train_labels != clean.train_labels).all())
    noisy = replace(data, label_noise=0.3)
    labels, guesses = torch.arange(10).repeat(20_000), torch.arange(10).repeat(20_000)
    guesses[: len(guesses) // 4] += 1  # a quarter is wrong
    flipped = torch.rand(len(labels), generator=generator(1)) < 0.3
    drawn_labels = torch.where(
        flipped, (labels + torch.randint(1, 10, labels.shape, generator=generator(2))) % 10, labels
    )
    assert noisy.test_error(0.25) == pytest.approx(float((guesses % 10 != drawn_labels).double().mean()), abs=5e-3)
    assert replace(data, label_noise=0.0).test_error(0.25) == 0.25


@pytest.mark.slow
def test_every_measure_is_taken_of_every_normalizer_and_no_test_label_is_seen(split):
    data = drawn(split, samples=64, label_noise=0.0, generator=generator())
    hidden = replace(data, test_labels=torch.full_like(data.test_labels, -1))
    given = {"stop": Stop(loss=0.3, steps=200), "momentum": 0.9, "generators": [generator()]}
    for normalizer in ("none", "group"):
        start = mlp(generator=generator(), normalizer=normalizer, width=24, depth=2)
        (trained,) = train_together([start], [recipe(normalizer=normalizer)], hidden, **given)
        state = {name: value.clone() for name, value in trained.model.state_dict().items()}
        figures, notes = measured(MemberFigures(trained, hidden))
        assert notes == ()
        assert list(figures) == list(MEASURES)
        infinite = {name for name, value in figures.items() if value is None or not math.isfinite(value)}
        unlimited = {"theorem-20-slopes-printed"}  # of so few samples none is held out of some class
        assert infinite == (
            unlimited if normalizer == "none" else {"vc", *unlimited}
        )  # GroupNorm is not piecewise linear
        row = normscope.generalization(trained.model, MemberFigures(trained, hidden).batches, steps=0)["Bartlett 2017"]
        assert figures["bartlett"] == pytest.approx(row.log10_value, rel=1e-5)
        assert all(torch.equal(value, state[name]) for name, value in trained.model.state_dict().items())
        tolerance = 1e-4
        assert figures["observed-mean"] <= figures["observed-largest"] <= figures["global"] + tolerance
        assert figures["global"] <= figures["printed"] + tolerance
        inner = trained.model.linear1, trained.model.linear2
        product = sum(math.log10(float(torch.linalg.matrix_norm(one.weight.double(), 2))) for one in inner)
        assert figures["spectral-product"] == pytest.approx(product, abs=2e-3)
        total = sum(float(one.weight.double().square().sum()) for one in inner)
        assert figures["frobenius-sum"] == pytest.approx(total, rel=1e-5)
        moved = sum(
            float((now.weight - before.weight).double().square().sum())
            for now, before in zip(inner, (start.linear1, start.linear2))
        )
        assert figures["distance"] == pytest.approx(moved, rel=1e-4)
        rows = trained.model(data.train_images).double()
        right = rows.gather(1, data.train_labels[:, None])[:, 0]
        others = rows.scatter(1, data.train_labels[:, None], -math.inf).amax(1)
        gamma = float((right - others).sort().values[math.ceil(0.1 * 64) - 1])
        assert figures["inverse-margin"] == pytest.approx(-math.log10(gamma), abs=1e-4)


def test_theorem_20_as_printed_has_no_cap_and_with_one_constant_orders_networks_as_it_does(split):
    data = drawn(split, samples=150, label_noise=0.0, generator=generator())
    given = {"stop": Stop(loss=0.3, steps=200), "momentum": 0.9}
    ratios = []
    for seed in (0, 1):
        start = mlp(generator=generator(seed), normalizer="none", width=24, depth=2)
        (trained,) = train_together([start], [recipe(seed=seed)], data, **given, generators=[generator(seed)])
        figures = MemberFigures(trained, data)
        slopes, everywhere = (figures.bounds[f"Theorem 20, {name}"] for name in ("slopes at D", "all inputs"))
        assert MEASURES["theorem-20-slopes"].of(figures) == slopes.log10_value
        assert MEASURES["theorem-20-slopes-printed"].of(figures) == slopes.log10_as_printed
        assert slopes.log10_value < slopes.log10_as_printed < math.inf
        rest = sum(10**term.log10 for term in everywhere.terms if term.name != "cells")
        ratios.append((10**everywhere.log10_as_printed - rest) / 10 ** MEASURES["global"].of(figures))
    assert ratios[1] == pytest.approx(ratios[0], rel=1e-5)  # c: the samples are the same, the constants are not


def test_a_population_is_the_same_again_and_leaves_the_generator_alone(split):
    state = torch.random.get_rng_state()
    grid = {"normalizers": ("none", "layer"), "learning_rates": (0.05, 0.1)}
    first, second = (predicted(split, grid, measures=CHEAP) for _ in range(2))
    assert first == second
    assert torch.equal(state, torch.random.get_rng_state())
    assert {one.status for one in first.members} == {"reached"}
    assert set(first.powers) == set(CHEAP)
    assert first.settings["measures"] == list(CHEAP)
    for one in first.members:
        assert one.train_loss <= 1.0
        assert 0.0 < one.gap < 1.0
    assert set(first.powers["steps"].axes) == {"depth", "width", "normalizer", "batch_size", "lr", "weight_decay"}
    assert first.powers["steps"].axes["depth"].value is None
    assert first.powers["steps"].axes["lr"].value is not None


def test_a_network_that_raises_is_recorded_and_the_rest_go_on(split, monkeypatch):
    def build(one, shape, classes, drawn_by):
        if one.seed == 1:
            raise RuntimeError("out of luck")
        return mlp(generator=drawn_by, width=one.width, depth=one.depth)

    monkeypatch.setitem(work.NETWORKS, "mlp", build)
    found = predicted(split, {"seeds": 3}, measures=CHEAP)
    assert [one.status for one in found.members] == ["reached", "failed", "reached"]
    assert "out of luck" in found.members[1].reason
    assert "out of luck" in str(found)


@pytest.mark.parametrize(
    ("grid", "given", "reason"),
    [
        ({"depths": (1,)}, {}, "depths are whole numbers from 2 to 1000"),
        ({"normalizers": ("spectral",)}, {}, "normalizers are some of"),
        ({"normalizers": ("group",), "widths": (16,)}, {}, "8 groups of 3 or more"),
        ({"batch_sizes": (128,)}, {}, "too few for batches of 128"),
        ({"learning_rates": (0.0,)}, {}, "learning_rates are"),
        ({}, {"samples": 100_000}, "cannot be drawn"),
        ({}, {"label_noise": 1.5}, "label_noise is a probability"),
        ({}, {"network": "transformer"}, "network is one of"),
        ({}, {"device": "nowhere"}, "cannot be used here"),
        ({}, {"device": "meta", "engine": "ray"}, "trains on processors"),
        ({}, {"engine": "slurm"}, "engine is"),
        ({}, {"measures": ("steps", "luck")}, "there is no measure luck"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(split, grid, given, reason):
    with pytest.raises(InputError, match=reason):
        predicted(split, grid, **given)


@pytest.mark.slow
def test_a_convolutional_network_has_every_measure():
    images = torch.rand(80, 3, 16, 16, generator=generator())
    labels = torch.arange(80) % 4
    images += labels[:, None, None, None]
    split = Split(train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    grid = {"normalizers": ("none", "batch", "layer", "group", "rms"), "depths": (3,)}
    found = predicted(split, grid, samples=64, network="cnn", target_loss=1.2, steps=400)
    for one in found.members:
        assert one.status == "reached", one
        assert one.notes == ()
        assert all(value is not None for value in one.measures.values())
