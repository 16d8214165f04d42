"""What Normscope claims is verified by the checker, side by side, for every kind of network."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.bounds.bounds_by_method import upper_sides
from normscope.bounds.traced_network import TracedNetwork
from normscope.core.errors import InputError

from ..soundness.networks import Attention, Function, Residual, gated_by, network, noise
from .proofs import ball_of, bracket_of, checker, only, proven, seeded, tight

VERIFIED, UNVERIFIED, REJECTED = checker.VERIFIED, checker.UNVERIFIED, checker.REJECTED


def mlp(*activations: nn.Module) -> nn.Module:
    layers, width = [], 5
    for activation in activations:
        layers += [nn.Linear(width, 7), activation]
        width = 7
    return nn.Sequential(*layers, nn.Linear(width, 3))


NETWORKS = {
    "mlp": (lambda: mlp(nn.ReLU(), nn.ReLU()), (2, 5)),
    "gelu": (lambda: mlp(nn.GELU(), nn.SiLU(), nn.GELU("tanh")), (2, 5)),
    "bent": (lambda: mlp(nn.ELU(1.5), nn.SELU(), nn.CELU(0.7), nn.PReLU(7), nn.Mish()), (2, 5)),
    "smooth": (lambda: mlp(nn.Tanh(), nn.Sigmoid(), nn.Softplus(2.0, 40.0), nn.LogSigmoid()), (2, 5)),
    "batch norm": (lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)), (2, 5)),
    "cnn": (
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
            *(nn.Conv2d(4, 4, 3, padding=1, groups=2, padding_mode="circular"), nn.ReLU(), nn.AvgPool2d(2)),
            *(nn.Flatten(), nn.Linear(16, 3)),
        ),
        (2, 2, 8, 8),
    ),
    "pooling": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3, dilation=2), nn.MaxPool2d(3, 2), nn.ReLU(), nn.AdaptiveMaxPool2d(1)),
        (2, 1, 9, 9),
    ),
    "residual": (
        lambda: nn.Sequential(
            Residual(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)), nn.Identity()),
            Residual(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4)),
        ),
        (2, 4),
    ),
    "layer norm": (lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2)), (2, 5)),
    "group norm": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten()), (2, 2, 6)),
    "softmax": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Softmax(-1), nn.Linear(4, 3), nn.LogSoftmax(-1)), (2, 5)),
}


PRODUCTS = {
    "gated": (lambda: gated_by(nn.Linear(4, 4), nn.Linear(4, 4)), (2, 4)),
    "attention": (
        lambda: Attention(6, 2, 0.1, causal=True, bias=True, written_out=False),
        (2, 3, 6),
    ),
}
"""Networks that multiply values by one another: the checker evaluates them, but has no constants for them."""


def verdicts(bracket, path):
    bracket.save(path)
    return checker.check(str(path))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", NETWORKS)
def test_both_sides_of_every_kind_of_network_are_verified(name, tmp_path):
    build, shape = NETWORKS[name]
    batch = noise(*shape, seed=1)
    found = verdicts(proven(seeded(build), batch), tmp_path / "proof.npz")
    assert [verdict.status for verdict in found] == [VERIFIED] * 3, [str(verdict) for verdict in found]


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("name", PRODUCTS)
def test_of_networks_with_products_the_lower_side_is_verified(name, tmp_path):
    build, shape = PRODUCTS[name]
    value, upper, lower = verdicts(proven(seeded(build), noise(*shape, seed=1)), tmp_path / "proof.npz")
    assert (value.status, lower.status, upper.status) == (VERIFIED, VERIFIED, UNVERIFIED)
    assert "which is not followed here" in upper.why


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (noise(5, 8, seed=0), None),
        (nn.Linear(6, 4), None),
        (nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 7, 6)),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect", bias=False), (2, 5, 5)),
        (nn.ConvTranspose1d(2, 3, 3, stride=2), (2, 5)),
        (torch.zeros(3, 3), None),
    ],
    ids=["matrix", "linear", "conv", "reflect", "transposed", "zero"],
)
def test_spectral_norms_are_verified(layer, shape, tmp_path):
    found = verdicts(ns.spectral_norm(layer, shape), tmp_path / "norm.npz")
    assert {verdict.status for verdict in found} == {VERIFIED}


@pytest.mark.slow
def test_optimised_multipliers_are_verified(tmp_path):
    bracket = tight(seeded(lambda: mlp(nn.ReLU(), nn.GELU(), nn.ReLU())), noise(2, 5))
    assert {verdict.status for verdict in verdicts(bracket, tmp_path / "proof.npz")} == {VERIFIED}
    without = replace(bracket, proof=replace(bracket.proof, multipliers=()))
    assert verdicts(without, tmp_path / "proof.npz")[1].status == REJECTED  # nothing cheaper proves it


@pytest.mark.slow
def test_of_balls_the_lower_side_is_verified(tmp_path):
    work = TracedNetwork.of(seeded(lambda: mlp(nn.ReLU(), nn.GELU())), noise(2, 5))
    for radius in (0.01, 0.3):
        found = verdicts(ball_of(work, radius), tmp_path / "ball.npz")
        assert [verdict.status for verdict in found] == [VERIFIED, UNVERIFIED, VERIFIED, UNVERIFIED, VERIFIED]
        assert "over a ball are not followed here" in found[1].why


@pytest.mark.slow
def test_brackets_of_the_front_door_can_be_saved(tmp_path):
    model, batch = seeded(lambda: mlp(nn.ReLU(), nn.Tanh())), noise(2, 5)
    rungs = ns.ladder(model, batch, max_seconds=1.0)
    ns.lipschitz(model, batch, scope="ball", radius=0.05, max_seconds=1.0).save(tmp_path / "ball.npz")
    assert REJECTED not in {verdict.status for verdict in checker.check(str(tmp_path / "ball.npz"))}
    for bracket in (rungs[name] for name in ("product", "folded", "closed-form", "best")):
        found = verdicts(bracket, tmp_path / "proof.npz")
        assert {verdict.status for verdict in found} == {VERIFIED}, [str(verdict) for verdict in found]
    for without in (rungs["printed"], rungs["observed"], ns.Bracket.from_json(rungs["best"].to_json())):
        with pytest.raises(InputError, match="carries no proof"):
            without.save(tmp_path / "nothing.npz")


def test_what_the_vocabulary_has_no_word_for_is_said_not_to_be_verified(tmp_path):
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), Function(lambda x: x.sort(1).values), nn.Linear(4, 2)))
    found = verdicts(proven(model, noise(2, 4)), tmp_path / "proof.npz")
    assert {verdict.status for verdict in found} == {UNVERIFIED}
    assert "sort" in found[1].why
    assert checker.main([str(tmp_path / "proof.npz")]) == 3


def test_values_that_a_mask_keeps_apart_are_given_not_rejected(tmp_path):
    """The two sides of a choice by a fixed mask never meet, which the file does not show: a bound may rest on it."""
    mask = torch.tensor([True, False, False, True, False, True])
    choice = Function(lambda x: torch.where(mask, x, -2 * x.tanh()))
    work = TracedNetwork.of(seeded(lambda: nn.Sequential(nn.Linear(4, 6), choice, nn.Linear(6, 3))), noise(3, 4))
    bracket = only(bracket_of(work, upper_sides(work)["best"].log10_upper - 0.01), "upper")
    found = verdicts(bracket, tmp_path / "proof.npz")[1]
    assert found.status == UNVERIFIED
    assert "do not overlap" in found.why


def test_a_model_trained_further_is_not_passed_off_as_the_one_measured(tmp_path):
    model = mlp(nn.ReLU()).double().eval()
    bracket = proven(model, noise(2, 5).double())
    bracket.save(tmp_path / "before.npz")
    with torch.no_grad():
        model[0].weight[0, 0] += 1.0
    with pytest.raises(InputError, match="has changed"):
        bracket.save(tmp_path / "after.npz")
    layer = nn.Linear(3, 3)
    norm = ns.spectral_norm(layer)
    with torch.no_grad():
        layer.weight.mul_(2.0)
    with pytest.raises(InputError, match="has changed"):
        norm.save(tmp_path / "after.npz")


def test_saving_changes_nothing_and_gives_the_same_file_twice(tmp_path):
    model = seeded(lambda: mlp(nn.ReLU()))
    bracket = proven(model, noise(2, 5, seed=0))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name in ("one.npz", "two.npz"):
        bracket.save(tmp_path / name)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert replace(bracket, notes=("kept",)).proof is bracket.proof
    assert "proof" not in bracket.to_json()


class Branches(nn.Module):
    """`hardtanh(x)` and `B A x` side by side, with norm(B A) far below norm(B) norm(A)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.diag(torch.tensor([4.0, 0.125])))
            self.second.weight.copy_(torch.diag(torch.tensor([0.125, 4.0])))

    def forward(self, x):
        return torch.cat([nn.functional.hardtanh(x), self.second(self.first(x))], 1)


def test_branches_of_a_concatenation_are_folded_each_by_itself(tmp_path):
    bracket = proven(Branches().eval(), noise(2, 2))
    assert bracket.upper == pytest.approx(1.25**0.5, rel=1e-6)
    found = verdicts(bracket, tmp_path / "proof.npz")
    assert {verdict.status for verdict in found} == {VERIFIED}, [str(verdict) for verdict in found]
    less = replace(only(bracket, "upper"), log10_upper=bracket.log10_upper - 1e-5)
    assert verdicts(less, tmp_path / "proof.npz")[1].status == REJECTED


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(120))
def test_random_networks_are_verified(seed, tmp_path):
    random = network(seed)
    work = TracedNetwork.of(random.model, random.batch, mode=random.mode)
    if upper_sides(work)["best"].log10_upper == torch.inf:
        return
    found = verdicts(proven(random.model, random.batch), tmp_path / "proof.npz")
    assert REJECTED not in {verdict.status for verdict in found}, [str(verdict) for verdict in found]


@pytest.mark.parametrize("beta", [1e10, 1e-10, 1.7])
def test_parameters_that_the_checker_does_not_take_are_not_written(beta, tmp_path):
    model = Function(lambda x: x * torch.sigmoid(beta * x)).eval()
    found = verdicts(bracket_of(TracedNetwork.of(model, noise(2, 3)), 0.1), tmp_path / "proof.npz")
    assert found[1].status == (VERIFIED if beta == 1.7 else UNVERIFIED)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [9028, 9049])
def test_every_value_that_a_claim_rests_on_has_its_step(seed, tmp_path):
    random = network(seed)
    for rung in ("folded", "closed-form", "best"):
        bracket = ns.ladder(random.model, random.batch, mode=random.mode)[rung]
        assert REJECTED not in {verdict.status for verdict in verdicts(bracket, tmp_path / "proof.npz")}


def test_the_smaller_constant_of_a_whole_layer_norm_is_verified(tmp_path):
    """The scale of one entry alone: the constant of the layer is sqrt(4/5) of the product of its parts."""
    layer = nn.LayerNorm(5, eps=0.01)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([3.0, 0.0, 0.0, 0.0, 0.0]))
    bracket = proven(layer, noise(2, 5, seed=1))
    assert bracket.upper == pytest.approx(3.0 * math.sqrt(0.8) / 0.1, rel=1e-9)
    assert [verdict.status for verdict in verdicts(bracket, tmp_path / "proof.npz")] == [VERIFIED] * 3


def test_what_holds_for_all_inputs_holds_in_a_ball(tmp_path):
    work = TracedNetwork.of(seeded(lambda: mlp(nn.ReLU(), nn.GELU())), noise(1, 5))
    everywhere = upper_sides(work)["best"].log10_upper
    bracket = ball_of(work, 0.1)
    proof = upper_sides(work)["best"].proof
    samples = tuple(
        replace(
            one, log10_upper=everywhere, method="closed-form", proof=replace(one.proof, multipliers=proof.multipliers)
        )
        for one in bracket.per_sample
    )
    found = verdicts(replace(bracket, log10_upper=everywhere, per_sample=samples), tmp_path / "ball.npz")
    assert {verdict.status for verdict in found} == {VERIFIED}
