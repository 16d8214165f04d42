"""Symmetries: what is found is what is there, every figure is right, and what is no symmetry is not claimed."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import normscope as ns
from normscope.bounds.geometry.candidate import (
    Candidate,
    Mixing,
    ParameterPart,
    RowMixing,
    Scaling,
    ShiftAction,
    UnitEntries,
)
from normscope.bounds.geometry.symmetries import Symmetries
from normscope.bounds.geometry.verification import Function as Wide
from normscope.bounds.geometry.verification import verify
from normscope.bounds.graph.capturing import capture_batch
from normscope.calls.call import prepare
from normscope.core.errors import InputError

from ..soundness.networks import Function, noise
from .networks import Attention, of_every_kind, shaken


@cache
def every_kind() -> tuple[nn.Module, Tensor, Symmetries]:
    model, batch = of_every_kind(), noise(6, 1, 8, 8)
    return model, batch, ns.symmetries(model, batch, mode="train")


def rows(found: Symmetries) -> list[tuple[str, str, int]]:
    return [(row.kind, row.path, row.dof) for row in found.verified]


@pytest.mark.slow
def test_every_kind_is_found_and_verified() -> None:
    _, _, found = every_kind()
    assert rows(found) == [
        ("channel scale", "0", 4),
        ("group scale", "3", 2),
        ("layer scale", "8", 1),
        ("layer scale", "11", 1),
        ("row shift", "8", 24),
        ("redundant bias", "0", 4),
        ("redundant bias", "8", 1),
        ("weight norm", "11", 5),
        ("relu pair", "1 -> 3", 4),
        ("relu pair", "4 -> 8", 6),
        ("relu pair", "13 -> 15", 7),
        ("linear pair", "12 -> 13", 5),
    ]
    assert len(found.rows) == len(found.verified)
    assert found.dof == 64
    assert found.counts()["relu pair"] == (3, 17)


@pytest.mark.slow
def test_the_figures_of_the_evidence() -> None:
    for row in every_kind()[2]:
        seen = row.evidence
        assert seen.output_change_no_eps < 1e-12 < 1e-3 < seen.output_change_chance
        assert seen.radial_no_eps < 1e-13
        assert seen.hessian is not None
        assert seen.hessian < 1e-12
        assert seen.fisher_no_eps is not None
        assert seen.fisher_no_eps < 1e-20
        if row.exact:
            assert seen.radial_error is None
            assert seen.output_change < 1e-12
        else:
            assert seen.radial_error is not None
            assert seen.radial_error < 1e-9
            assert seen.output_change > seen.output_change_no_eps


def test_the_directions_are_independent() -> None:
    """The degrees of freedom of all rows together are the rank of all directions: none is counted twice."""
    model, _, found = every_kind()
    state = {name: p.detach().double() for name, p in model.named_parameters()}
    columns = []
    for one in found._candidates:
        action = one.action
        assert isinstance(action, Scaling | ShiftAction)
        for unit in torch.eye(action.units, dtype=torch.float64):
            made = action.direction(state, unit)
            columns.append(torch.cat([made.get(name, torch.zeros_like(p)).reshape(-1) for name, p in state.items()]))
    assert int(torch.linalg.matrix_rank(torch.stack(columns))) == found.dof


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "normalizer",
    [nn.BatchNorm1d(6, eps=0.5), nn.GroupNorm(2, 6, eps=0.5), nn.LayerNorm(6, eps=0.5), nn.RMSNorm(6, eps=0.5)],
)
def test_the_defect_of_eps_is_that_of_the_formula(normalizer: nn.Module) -> None:
    model = shaken(nn.Sequential(nn.Linear(4, 6, bias=False), normalizer, nn.Tanh()))
    batch = noise(9, 4)
    [row] = [row for row in ns.symmetries(model, batch, mode="train") if "scale" in row.kind]
    assert row.status == "verified"
    assert row.evidence.radial_error is not None
    assert row.evidence.radial_error < 1e-12 < 1e-4 < row.evidence.radial


CASES = {  # layers, input shape, what is verified
    "instance": (
        [nn.Conv2d(1, 3, 2), nn.InstanceNorm2d(3)], (2, 1, 5, 5), [("channel scale", 3), ("redundant bias", 3)],
    ),
    "groups of vectors": (
        [nn.Linear(3, 6), nn.GroupNorm(2, 6, affine=False)],
        (4, 3),
        [("group scale", 2), ("row shift", 6), ("redundant bias", 2)],
    ),
    "a norm over heads": (
        [nn.Linear(3, 8, bias=False), nn.Unflatten(-1, (2, 4)), nn.RMSNorm(4, eps=1e-6, elementwise_affine=False)],
        (4, 3),
        [("group scale", 2)],
    ),
    "depthwise": (
        [nn.Conv1d(4, 4, 3, groups=4), Function(lambda x: x.transpose(1, 2)), nn.LayerNorm(4)],
        (2, 4, 7),
        [("layer scale", 1), ("redundant bias", 1)],
    ),
    "transposed in groups": (
        [nn.ConvTranspose1d(4, 6, 3, groups=2, bias=False), nn.BatchNorm1d(6, affine=False)],
        (3, 4, 5),
        [("channel scale", 6)],
    ),
    "spectral norm": ([spectral_norm(nn.Linear(3, 4)), nn.Tanh()], (5, 3), [("spectral norm", 1)]),
    "older weight norm": ([torch.nn.utils.weight_norm(nn.Linear(3, 4)), nn.Tanh()], (5, 3), [("weight norm", 4)]),
    "leaky": ([nn.Linear(3, 5), nn.LeakyReLU(0.1), nn.Linear(5, 2)], (4, 3), [("relu pair", 5)]),
    "pooled and flat": (
        [nn.Conv2d(1, 3, 2), nn.ReLU(), nn.AvgPool2d(2, padding=1), nn.Flatten(), nn.Linear(27, 2)],
        (2, 1, 5, 5),
        [("relu pair", 3)],
    ),
    "two matrices": ([nn.Linear(3, 5), nn.Linear(5, 2)], (4, 3), [("linear pair", 5)]),
    "grouped reader": (
        [nn.Conv1d(2, 4, 1), nn.ReLU(), nn.Conv1d(4, 6, 1, groups=2), nn.Tanh()],
        (3, 2, 5),
        [("relu pair", 4)],
    ),
    "gelu": ([nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2)], (4, 3), []),
    "an output": ([nn.Linear(3, 5), nn.ReLU()], (4, 3), []),
    "a pool over channels": (
        [nn.Linear(3, 6), nn.ReLU(), Function(lambda x: F.avg_pool1d(x[:, None], 2)[:, 0]), nn.Linear(3, 2)],
        (4, 3),
        [],
    ),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_layer_has_the_symmetries_it_should(name: str) -> None:
    layers, shape, expected = CASES[name]
    model = shaken(nn.Sequential(*layers))
    if name.startswith(("instance", "a group", "groups", "a norm", "a layer", "depth", "transposed")):
        model.append(nn.Tanh())
    found = ns.symmetries(model, noise(*shape), mode="train")
    assert [(row.kind, row.dof) for row in found.verified] == expected
    assert len(found.rows) == len(expected), [row.fault for row in found]


WIRINGS = {
    "two readers": (lambda s, x: s.b(y := s.a(x).relu()) * s.c(y), [("relu pair", "a -> b and c", 4)]),
    "a skip": (lambda s, x: s.b(y := s.a(x).relu()) + y, []),
    "read with another": (lambda s, x: s.b(s.a(x).relu() * s.c(x).sigmoid()), []),
    "a shared reader": (lambda s, x: s.b(s.a(x).relu()) + s.b(x), []),
    "a reader's transpose": (lambda s, x: s.b(s.a(x).relu()) @ s.b.weight.t(), []),
    "both normalized": (
        lambda s, x: s.n(s.a(s.n(s.a(x)).tanh())).tanh(), [("channel scale", "a", 4), ("redundant bias", "a", 4)],
    ),
    "one of two normalized": (lambda s, x: s.n(s.a(s.a(x).tanh())).tanh(), []),
    "seen twice": (lambda s, x: s.n(y := s.a(x)).tanh() + y.tanh(), []),
    "a norm of the weight": (lambda s, x: s.b(s.a(x).relu()) * s.a.weight.norm(), []),
}  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", WIRINGS)
def test_who_else_reads_a_value_or_a_weight_matters(name: str) -> None:
    wiring, expected = WIRINGS[name]
    layers = {name: nn.Linear(4, 4) for name in "abc"} | {"n": nn.BatchNorm1d(4)}
    found = ns.symmetries(shaken(Function(wiring, **layers)), noise(7, 4), mode="train")
    assert rows(found) == expected
    assert len(found.rows) == len(expected)


ATTENTIONS = {
    "plain": ({}, [("redundant bias", 8), ("query-key pair", 32), ("value-output pair", 32)]),
    "shared keys": ({"heads": 4, "keys": 2}, [("redundant bias", 4), ("query-key pair", 8)]),
    "without biases": ({"bias": False}, [("query-key pair", 32), ("value-output pair", 32)]),
    "normed": ({"normed": True, "bias": False}, [("group scale", 2), ("group scale", 2), ("value-output pair", 32)]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str) -> None:
    options, expected = ATTENTIONS[name]
    found = ns.symmetries(shaken(Attention(**options)), noise(2, 5, 8), mode="eval")
    assert [(row.kind, row.dof) for row in found.verified if row.kind != "linear pair"] == expected
    assert len(found.rows) == len(found.verified)


def test_a_batch_norm_in_eval_mode_has_no_scale_and_says_why() -> None:
    model = shaken(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()))
    found = ns.symmetries(model, noise(5, 3), mode="eval")
    assert found.rows == ()
    [(path, why)] = found.withheld
    assert path == "0"
    assert 'mode="train"' in why


def test_weights_without_effect_show_nothing() -> None:
    model = shaken(nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh()))
    with torch.no_grad():
        model[1].weight.zero_()
    [row] = ns.symmetries(model, noise(5, 3), mode="train")
    assert row.status == "unseen"
    assert "does not depend on these weights" in row.fault


def planted(model: nn.Module, batch: Tensor, action, *names: str) -> str | None:
    """Put an action that a test makes up to the numbers."""
    state = dict(model.named_parameters())
    pieces = tuple(ParameterPart(name=n, size=tuple(state[n].shape), stride=state[n].stride(), offset=0) for n in names)
    one = Candidate(kind="relu pair", path="planted", form="", action=action(pieces), weights=pieces[:1])
    graph = capture_batch(model, batch)
    generator = torch.Generator().manual_seed(0)
    [evidence] = verify(Wide(model, prepare(model, batch, None)), graph, [one], generator)
    return evidence.fault()


def scaling(pieces: tuple[ParameterPart, ...], *terms: tuple[int, Tensor, int]) -> Scaling:
    """Return a scaling of some of the pieces, by their numbers, units and powers."""
    entries = tuple(UnitEntries(piece=pieces[which], units=units, power=power) for which, units, power in terms)
    return Scaling(terms=entries, units=int(terms[0][1].max()) + 1)


ROWS, BIAS, COLUMNS = torch.arange(4)[:, None], torch.arange(4), torch.arange(4)[None]
FALSE = {
    "one factor alone": lambda p: scaling(p, (0, torch.zeros(1, 1).long(), 1)),
    "a pair without its bias": lambda p: scaling(p, (0, ROWS, 1), (2, COLUMNS, -1)),
    "a pair the wrong way": lambda p: scaling(p, (0, ROWS, 1), (1, BIAS, 1), (2, COLUMNS, 1)),
    "channels exchanged": lambda p: scaling(p, (0, ROWS, 1), (1, BIAS, 1), (2, COLUMNS.flip(1), -1)),
    "a shift": lambda p: ShiftAction(terms=(UnitEntries(piece=p[1], units=torch.zeros(4).long()),), units=1),
    "a mixing through a ReLU": lambda p: Mixing(
        rows=(
            RowMixing(piece=p[0], axis=0, channels=torch.arange(4).reshape(1, 1, 4), inverse=False),
            RowMixing(piece=p[2], axis=1, channels=torch.arange(4).reshape(1, 1, 4), inverse=True),
        ),
        units=1,
        width=4,
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FALSE)
def test_what_is_no_symmetry_fails(name: str) -> None:
    model = shaken(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))).eval()
    fault = planted(model, noise(5, 3), FALSE[name], "0.weight", "0.bias", "2.weight")
    assert fault is not None
    assert "output changes" in fault


def test_weight_norm_as_printed_fails() -> None:
    """Akbar 4.3 prints (a v, g/a), which makes w/a."""
    model = shaken(nn.Sequential(weight_norm(nn.Linear(3, 4)), nn.Tanh())).eval()
    v, g = "0.parametrizations.weight.original1", "0.parametrizations.weight.original0"
    assert planted(model, noise(5, 3), lambda p: scaling(p, (0, ROWS, 1), (1, ROWS, -1)), v, g) is not None
    assert planted(model, noise(5, 3), lambda p: scaling(p, (0, ROWS, 1)), v, g) is None


@pytest.mark.slow
def test_the_canonical_copy_has_norm_one_and_the_same_function() -> None:
    model, batch, found = every_kind()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    for seed in range(3):
        model(noise(6, 1, 8, 8, seed=seed))
    made = found.canonicalize()
    norms = [made[0].weight.flatten(1).norm(dim=1), made[3].weight.reshape(2, -1).norm(dim=1), made[8].weight.norm()]
    for norm in norms:
        torch.testing.assert_close(norm, torch.ones_like(norm))
    assert made[9].eps == pytest.approx(model[9].eps / float(model[8].weight.detach().norm()) ** 2)
    with torch.no_grad():
        for mode in (True, False):
            ours, theirs = copy.deepcopy(made).train(mode)(batch), copy.deepcopy(model).train(mode)(batch)
            change = found.canonical_change if mode else found.canonical_change_eval
            assert change is not None
            assert change < 1e-4
            assert float((ours - theirs).abs().max() / theirs.abs().max()) < 3 * change + 1e-6
    model.load_state_dict(before)


def test_the_defect_of_the_canonical_copy_is_stated() -> None:
    model = shaken(nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4, eps=0.5), nn.Tanh()))
    found, batch = ns.symmetries(model, noise(8, 3), mode="train"), noise(8, 3)
    made = found.canonicalize().train()
    with torch.no_grad():
        before, after = model.train()(batch), made(batch)
    assert found.canonical_change == pytest.approx(float((after - before).abs().max() / before.abs().max()), rel=1e-3)
    assert found.canonical_change > 1e-2


def test_parameter_groups_hold_every_parameter_once() -> None:
    model, _, found = every_kind()
    groups = found.param_groups()
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    kinds = [(g["units"], g["axis"], [tuple(p.shape) for p in g["params"]]) for g in groups[:-1]]
    assert kinds == [
        ("channel", 0, [(4, 1, 3, 3), (5, 8)]),
        (2, 0, [(6, 4, 3, 3)]),
        (1, 0, [(8, 24), (5, 1)]),
    ]
    assert all(group["weight_decay"] == 0.0 for group in groups[:-1])
    assert groups[-1]["units"] is None


@pytest.mark.slow
def test_dropout_counts_as_off() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    found = ns.symmetries(shaken(model), noise(2, 4, 8), mode="train")
    assert [(row.kind, row.dof, row.status) for row in found if "pair" in row.kind] == [
        ("relu pair", 16, "verified"),
        ("query-key pair", 32, "verified"),
        ("value-output pair", 32, "verified"),
    ]
    assert model.self_attn.dropout == 0.5


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(InputError, match="no parameters"):
        ns.symmetries(nn.ReLU(), noise(2, 3))
    with pytest.raises(InputError, match=r"not a torch.nn.Module"):
        ns.symmetries("model", noise(2, 3))
    with pytest.raises(InputError, match="the model raises"):
        ns.symmetries(nn.Linear(4, 2), noise(2, 3))
