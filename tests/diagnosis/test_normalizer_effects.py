"""What normalizers do to a small change: facts on networks built for them, and figures that no rescaling moves."""

import copy
import math
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.auditing.normalizer_effects import NormalizerEffect, NormalizerEffects

TRAINED_BATCHES = 20
"""Passes after which running statistics are those of the data."""


def blocks(norm, widths, *, bias=True):
    layers = []
    for before, width in pairwise(widths):
        layers += [nn.Linear(before, width, bias=bias), norm(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 3))


def batch_norms(*, eps=1e-20, widths=(6, 10, 10, 10)):
    torch.manual_seed(0)
    model = blocks(lambda width: nn.BatchNorm1d(width, eps=eps), widths).double()
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d):
            nn.init.normal_(layer.weight, 1.0, 0.3)
            nn.init.normal_(layer.bias, 0.0, 0.3)
    return model.train()


def batch(rows=40, features=6, seed=1):
    return torch.randn(rows, features, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.5


def effects(model, data, **options):
    return ns.audit(model, data, **options).normalizers


def figures(record):
    return [
        record.log10_growth,
        *(x for one in record.normalizers for x in (one.log10_growth, one.reaction, one.log10_frozen) if x is not None),
    ]


def scale_before(model, factors):
    """Scale weight and bias of every layer that feeds a normalizer, and stored statistics with them."""
    with torch.no_grad():
        for layer, norm in pairwise(model):
            if not isinstance(norm, nn.BatchNorm1d | nn.LayerNorm):
                continue
            by = factors(layer.out_features)
            layer.weight.mul_(by if by.ndim == 0 else by[:, None])
            layer.bias.mul_(by)
            if isinstance(norm, nn.BatchNorm1d):
                norm.running_mean.mul_(by)
                norm.running_var.mul_(by.square())


def hide_scales(model, by):
    """Scale what normalizers hand on through a ReLU to a layer in front of another normalizer, which divides by it."""
    with torch.no_grad():
        for norm, layer, following in zip(list(model)[1:], list(model)[3:], list(model)[4:]):
            if isinstance(norm, nn.BatchNorm1d) and isinstance(following, nn.BatchNorm1d):
                norm.weight.mul_(by)
                norm.bias.mul_(by)
                layer.weight.div_(by)


RESCALINGS = {
    "100": lambda model: scale_before(model, lambda width: torch.tensor(100.0)),
    "0.01": lambda model: scale_before(model, lambda width: torch.tensor(0.01)),
    "channels": lambda model: scale_before(model, lambda width: torch.logspace(-2, 2, width, dtype=torch.float64)),
    "hidden": lambda model: hide_scales(model, 30.0),
}


def trained(mode):
    """A network whose stored statistics are those of the data."""
    model, data = batch_norms(), batch()
    with torch.no_grad():
        for _ in range(TRAINED_BATCHES):
            model(data)
    return model.train(mode == "train")


@cache
def effects_of_trained(mode):
    return effects(trained(mode), batch())


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("rescaling", "mode"), [*((name, "train") for name in RESCALINGS), ("channels", "eval"), ("hidden", "eval")]
)
def test_no_rescaling_of_weights_moves_the_sentence_or_a_figure(rescaling, mode):
    model, twin, data = trained(mode), trained(mode), batch()
    RESCALINGS[rescaling](twin)
    assert any(not torch.equal(one, other) for one, other in zip(model.parameters(), twin.parameters()))
    first, second = effects_of_trained(mode), effects(twin, data)
    with torch.no_grad():
        assert torch.allclose(twin(data), model(data), rtol=1e-6)
    assert second.sentence == first.sentence
    assert figures(second) == pytest.approx(figures(first), rel=1e-5, abs=1e-6)


def test_every_figure_is_what_autograd_gives():
    """In train mode the point is the whole batch, and the change the first draw from the seed."""
    model, data = batch_norms(eps=1e-5), batch()
    record = effects(model, data, seed=3)
    change = torch.randn(data.numel(), dtype=torch.float64, generator=torch.Generator().manual_seed(3)).view(data.shape)

    def push(layers, value, direction):
        return torch.func.jvp(lambda x: nn.Sequential(*layers)(x), (value,), (direction,))

    def share(value, direction):
        return float(direction.norm() / value.norm())

    def apart(value):
        return float((value - value.mean(0)).norm())

    layers = [copy.deepcopy(layer) for layer in model]
    for layer in layers:
        if isinstance(layer, nn.BatchNorm1d):
            layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
    for layer in layers:
        layer.requires_grad_(False)
    output, moved = push(layers, data, change)
    assert 10**record.log10_growth == pytest.approx(
        float(moved.norm() / change.norm()) * apart(data) / apart(output), rel=1e-5
    )
    for one in record.normalizers:
        place = int(one.path)
        before = (data, change) if place == 1 else push(layers[: place - 1], data, change)
        inner, after = push(layers[:place], data, change), push(layers[: place + 1], data, change)
        assert one.feeding == str(place - 1)
        assert 10**one.log10_growth == pytest.approx(share(*after) / share(*before), rel=1e-5)
        deviation = (inner[0].var(0, unbiased=False) + 1e-5).sqrt()
        fixed = inner[1] / deviation * layers[place].weight
        assert one.reaction == pytest.approx(float((after[1] - fixed).norm() / fixed.norm()), rel=1e-5)
        behind = push(layers[place + 1 :], after[0], fixed)[1]
        frozen = float(behind.norm() / change.norm()) * apart(data) / apart(output)
        assert 10**one.log10_frozen == pytest.approx(frozen, rel=1e-5)


def test_batch_norm_lets_changes_grow_behind_a_relu_as_theory_says_and_layer_norm_does_not():
    """Yang et al. 2019: sqrt(pi/(pi - 1)) a layer for wide networks at their start: the mean goes and noise stays.

    LayerNorm keeps the mean of the samples, whose norm behind a random layer is off by 1/sqrt(2 width).
    """
    data, widths = torch.randn(256, 256), (256,) * 4
    expected = math.log10(math.sqrt(math.pi / (math.pi - 1)))
    grown = effects(blocks(nn.BatchNorm1d, widths, bias=False), data)
    for one in grown.normalizers[1:]:
        assert one.log10_growth == pytest.approx(expected, abs=0.02)
    chance = 3.0 / math.sqrt(2 * 256) / math.log(10.0)
    kept = effects(blocks(nn.LayerNorm, widths, bias=False), data)
    assert all(abs(one.log10_growth) < chance for one in kept.normalizers)
    assert chance < expected - 0.02


def kinds(model, data, **options):
    return [one.kind for one in effects(model, data, **options).normalizers]


def test_eps_decides_where_it_exceeds_the_variance():
    model, data = batch_norms(eps=1e-5), batch()
    with torch.no_grad():
        model[6].weight.mul_(1e-4)
    record = effects(model, data)
    assert [one.kind == "eps" for one in record.normalizers] == [False, False, True]
    assert "1 is ruled by eps (`7`)" in record.sentence


@pytest.mark.parametrize("rows", [2, 8])
def test_statistics_of_few_samples_are_named_and_those_of_rows_are_not(rows):
    model = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 24), nn.LayerNorm(24))
    data = batch(rows).float()
    few, other = kinds(model.train(), data)
    assert few == "few-values"
    assert other != "few-values"
    assert "few-values" not in kinds(model.eval(), data)


def test_a_normalizer_over_many_values_is_idle_and_one_over_few_features_is_not():
    many = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3)).train()
    data = torch.randn(64, 3, 12, 12)
    record = effects(many, data)
    (one,) = record.normalizers
    assert one.kind == "idle"
    assert one.reaction < 0.05
    assert one.log10_frozen == pytest.approx(record.log10_growth, abs=1e-3)
    assert "`1` is idle: a fixed scale and shift would do the same" in record.sentence
    few = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)).eval()
    (one,) = effects(few, batch().float()).normalizers
    assert one.kind != "idle"
    assert one.reaction > 0.3, "two of six directions are gone"


def test_stored_statistics_are_frozen_already():
    record = effects(batch_norms().eval(), batch())
    assert all(one.reaction is None and one.log10_frozen is None for one in record.normalizers)
    assert record.sentence.endswith("with stored statistics each of them is frozen already.")


def test_a_normalizer_that_no_layer_feeds_stands_alone():
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)).eval()
    record = effects(model, batch().float())
    (one,) = record.normalizers
    assert one.feeding is None
    assert record.sentence.startswith("What the normalizer does to a small change, as a share of the values: `0` ")


def test_one_sample_has_no_distance_to_measure_the_whole_network_by():
    record = effects(blocks(nn.LayerNorm, (6, 10, 10)).eval(), batch(1).float())
    assert all(one.log10_growth is not None and one.log10_frozen is None for one in record.normalizers)
    assert record.log10_growth is None
    assert "Measured by" not in record.sentence


class Sum(nn.Module):
    """Two inputs, and one number for each sample."""

    def __init__(self):
        super().__init__()
        self.body = blocks(nn.BatchNorm1d, (6, 10, 10))

    def forward(self, first, second):
        return self.body(first + second).sum(1)


def test_two_inputs_count_as_one_and_an_output_may_be_a_number():
    model, (first, second) = Sum().double().train(), (batch(), batch(seed=2))
    record = effects(model, (first, second))
    flat = torch.randn(first.numel() * 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    changes = [part.view(first.shape) for part in flat.chunk(2)]
    with torch.no_grad():
        output = model(first, second)
    model.requires_grad_(False)
    for layer in model.body:
        if isinstance(layer, nn.BatchNorm1d):
            layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
    moved = torch.func.jvp(model, (first, second), tuple(changes))[1]
    apart = [float((x - x.mean(0)).norm()) for x in (torch.cat((first, second), 1), output)]
    expected = float(moved.norm() / flat.norm()) * apart[0] / apart[1]
    assert 10**record.log10_growth == pytest.approx(expected, rel=1e-5)


def test_work_is_two_passes_and_one_for_each_that_is_frozen():
    model = blocks(nn.LayerNorm, (6, 10, 10, 10)).eval()
    audit = ns.audit(model, batch().float())
    assert audit.normalizers.samples == 8
    assert audit.cost.passes["normalizers"] == (2 + 3) * 8
    assert ns.audit(model.train(), batch().float()).cost.passes["normalizers"] == (2 + 3) * 40


def test_many_normalizers_are_measured_and_not_frozen():
    audit = ns.audit(nn.Sequential(*(nn.LayerNorm(4) for _ in range(31))).eval(), torch.randn(4, 4))
    assert all(one.log10_growth is not None and one.log10_frozen is None for one in audit.normalizers.normalizers)
    assert dict(audit.skipped)["growth with each normalizer frozen at its statistics"] == (
        "it has 31 of them, and up to 30 are frozen in turn"
    )


def test_without_time_or_normalizers_there_is_no_record():
    model = blocks(nn.LayerNorm, (6, 10, 10)).eval()
    audit = ns.audit(model, batch().float(), max_seconds=0.0)
    assert audit.normalizers is None
    assert "raise max_seconds" in dict(audit.skipped)["what each normalizer does to a small change"]
    assert effects(nn.Linear(6, 3), batch().float()) is None


def test_the_model_is_left_as_found():
    model, data = batch_norms(), batch()
    model[1].eval()
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    random = torch.get_rng_state()
    assert effects(model, data) is not None
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())


def test_it_is_saved_and_loaded_with_the_audit_and_older_files_have_none():
    audit = ns.audit(batch_norms(), batch())
    data = audit.to_json()
    assert ns.Audit.from_json(data).normalizers == audit.normalizers
    del data["normalizers"]
    assert ns.Audit.from_json(data).normalizers is None


def made(*kinds_and_growths, whole=0.3, **more):
    each = tuple(
        NormalizerEffect(path=f"n{number}", feeding=f"w{number}", kind=kind, log10_growth=growth, **more)
        for number, (kind, growth) in enumerate(kinds_and_growths)
    )
    return NormalizerEffects(log10_growth=whole, samples=8, normalizers=each)


def test_the_sentence_names_every_kind_and_the_one_that_does_most():
    record = made(("shrinks", -0.1), ("shrinks", -0.4), ("grows", 0.2), ("keeps", 0.0), ("idle", 0.1), ("eps", None))
    assert record.sentence == (
        "What the 6 normalizers do to a small change together with the layers before them, as a share of the values: "
        "2 shrink it (`n1` most, 0.398 times); 1 lets it grow (`n2`, 1.58 times); 1 leaves its size as it is (`n3`); 1 "
        "is idle: a fixed scale and shift would do the same (`n4`, 1.26 times); 1 is ruled by eps (`n5`). Measured by "
        "how far the samples lie apart, it is 2 times as large at the output as at the input; with stored statistics "
        "each of them is frozen already."
    )


@pytest.mark.parametrize(
    ("frozen", "end"),
    [
        (0.31, ", and freezing it at its statistics changes that by less than 5 %."),
        (0.6, "; with `n0` frozen at its statistics that would be 3.98 times."),
        (None, "."),
    ],
)
def test_the_second_sentence_says_what_freezing_changes(frozen, end):
    record = made(("grows", 0.2), reaction=0.3, log10_frozen=frozen)
    assert record.sentence.endswith(f"2 times as large at the output as at the input{end}")
