"""The audit as a whole: its figures against plain computations, what it does when something cannot be measured."""

import math
import weakref

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core.errors import InputError
from normscope.core.log10 import log10

from ..net import Net
from .seen import Untraced


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(build, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def network(normalizer, *, conv=False):
    """Two hidden layers with a normalizer each, on vectors of 6 or images of 6 channels."""
    layer = (lambda a, b: nn.Conv2d(a, b, 3, padding=1)) if conv else nn.Linear

    def build():
        body = [layer(6, 8), normalizer(8), nn.ReLU(), layer(8, 8), normalizer(8), nn.Tanh()]
        return nn.Sequential(*body, *([nn.Flatten(), nn.Linear(128, 3)] if conv else [nn.Linear(8, 3)]))

    return seeded(build)


NORMALIZERS = {
    "batch": (nn.BatchNorm1d, nn.BatchNorm2d),
    "layer": (nn.LayerNorm, lambda width: nn.LayerNorm((width, 4, 4))),
    "group": (lambda width: nn.GroupNorm(2, width),) * 2,
    "instance": (None, lambda width: nn.InstanceNorm2d(width, affine=True)),
    "rms": (nn.RMSNorm, None),
}
CASES = [(kind, conv) for kind, pair in NORMALIZERS.items() for conv in (False, True) if pair[conv] is not None]


def data(conv):
    return draw(12, 6, 4, 4) if conv else draw(12, 6)


def by_path(audit, role):
    return {row.path: row for row in audit.layers if row.role == role}


def once_per_mode():
    """BatchNorm in either mode; the rest is slow."""
    for kind, conv in CASES:
        for mode in ("train", "eval"):
            quick = conv and kind == "batch"
            yield pytest.param(kind, conv, mode, marks=[] if quick else pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("kind", "conv", "mode"), list(once_per_mode()))
def test_the_folded_gain_does_not_move_when_weights_are_rescaled(kind, conv, mode):
    model = network(NORMALIZERS[kind][conv], conv=conv)
    for module in model:
        if hasattr(module, "eps"):
            module.eps = 1e-12
    before = ns.audit(model, data(conv), mode=mode)
    with torch.no_grad():
        model[0].weight *= 7
        model[0].bias *= 7
    after = ns.audit(model, data(conv), mode=mode)
    first, second = by_path(before, "normalizer")["1"], by_path(after, "normalizer")["1"]
    assert first.folded_with == second.folded_with == "0"
    assert second.log10_folded == pytest.approx(first.log10_folded, abs=0.01)
    moved = by_path(after, "weight")["0"].norm.log10_lower - by_path(before, "weight")["0"].norm.log10_lower
    assert moved == pytest.approx(math.log10(7), abs=0.01)
    assert second.variance.log10_median == pytest.approx(first.variance.log10_median + 2 * math.log10(7), abs=0.02)


@pytest.mark.slow
@pytest.mark.one_in(1000)
@pytest.mark.parametrize(("kind", "conv"), CASES)
def test_the_folded_gain_against_the_dense_jacobian(kind, conv):
    """In train mode the Jacobian of weight and normalizer at the data has at most the folded gain."""
    model = network(NORMALIZERS[kind][conv], conv=conv).double().train()
    batch = data(conv).double()[:4]
    row = by_path(ns.audit(model, batch), "normalizer")["1"]
    jacobian = torch.autograd.functional.jacobian(model[:2], batch).reshape(-1, batch.numel())
    truth = log10(float(torch.linalg.matrix_norm(jacobian, ord=2)))
    assert row.log10_folded >= truth - 0.01
    assert row.log10_folded <= truth + (0.5 if kind == "batch" else 0.3)


def test_rows_name_every_layer_with_its_size():
    model = network(nn.BatchNorm2d, conv=True).eval()
    audit = ns.audit(model, data(True))
    assert [row.path for row in audit.layers] == ["0", "1", "3", "4", "7"]
    assert [row.operator for row in audit.layers] == ["conv2d", "batch_norm", "conv2d", "batch_norm", "linear"]
    assert [row.parameters for row in audit.layers] == [6 * 8 * 9 + 8, 16, 8 * 8 * 9 + 8, 16, 128 * 3 + 3]
    assert sum(row.parameters for row in audit.layers) == audit.parameters
    for row in by_path(audit, "weight").values():
        assert row.norm.log10_lower <= row.norm.log10_upper
        assert row.norm.gap < 0.05
    assert audit.mode == "eval"
    assert (audit.samples, audit.batches) == (12, 1)


def test_operator_norms_are_those_of_the_layers():
    model = network(nn.LayerNorm).eval()
    audit = ns.audit(model, data(False))
    for path, row in by_path(audit, "weight").items():
        truth = float(torch.linalg.matrix_norm(model[int(path)].weight.double().detach(), ord=2))
        assert row.norm.lower <= truth * (1 + 1e-9)
        assert truth <= row.norm.upper * (1 + 1e-9)


def test_constants_of_a_batchnorm():
    model = network(nn.BatchNorm1d).eval()
    with torch.no_grad():
        model[1].running_var.copy_(torch.linspace(0.1, 2, 8))
        model[1].weight.copy_(torch.linspace(-1, 3, 8))
    row = by_path(ns.audit(model, data(False)), "normalizer")["1"]
    gains = (model[1].weight / (model[1].running_var + model[1].eps).sqrt()).detach().double().abs()
    assert row.log10_exact == pytest.approx(log10(float(gains.max())), abs=1e-4)
    assert row.log10_printed == pytest.approx(log10(float(gains.norm())), abs=1e-4)
    assert row.log10_at_data == pytest.approx(row.log10_exact, abs=1e-4)


@pytest.mark.slow
def test_gains_with_depth_stay_between_observed_and_certified():
    for normalizer in (nn.BatchNorm2d, lambda width: nn.GroupNorm(2, width)):
        audit = ns.audit(network(normalizer, conv=True).eval(), data(True))
        assert all(row.log10_observed <= row.log10_cumulative + 1e-6 for row in audit.layers)
        last = audit.layers[-1]
        assert last.log10_observed == pytest.approx(audit.observed.log10_lower, abs=1e-3)
        assert last.log10_cumulative == pytest.approx(audit.lipschitz.log10_upper, abs=1e-9)
        assert last.log10_cumulative <= audit.ladder["folded"].log10_upper + 1e-9


def test_the_ladder_comes_down():
    audit = ns.audit(network(nn.BatchNorm1d).eval(), data(False))
    order = ["product", "folded", "best"]
    uppers = [audit.ladder[name].log10_upper for name in order]
    assert uppers == sorted(uppers, reverse=True)
    assert audit.lipschitz == audit.ladder["best"]
    assert audit.observed.log10_lower <= audit.lipschitz.log10_upper
    assert audit.headline is audit.lipschitz


@pytest.mark.slow
def test_dead_channels_are_counted():
    model = network(nn.BatchNorm1d).train()
    with torch.no_grad():
        model[1].weight[2] = 0
        model[3].weight[:3] = 0
    rows = {row.path: row for row in ns.audit(model, data(False)).layers}
    assert (rows["1"].dead_channels, rows["1"].channels) == (1, 8)
    assert (rows["3"].dead_channels, rows["3"].channels) == (3, 8)
    assert rows["4"].dead_channels == 3, "a zero filter makes its channel constant"
    assert rows["0"].dead_channels == 0


def test_a_loader_gives_the_statistics_and_the_batch_the_shape():
    model = network(nn.BatchNorm1d).eval()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(draw(100, 6), torch.zeros(100)), batch_size=32)
    audit = ns.audit(model, draw(4, 6), loader=loader)
    assert (audit.samples, audit.batches) == (100, 4)
    assert len(audit.observed.per_sample) == 4


def test_json_keeps_everything(tmp_path):
    audit = ns.audit(network(NORMALIZERS["group"][0]).eval(), data(False))
    audit.to_json(tmp_path / "a.json")
    again = ns.Audit.from_json(tmp_path / "a.json")
    assert again == audit
    assert again.to_json() == audit.to_json()
    assert again.to_json()["schema_version"] == 1
    assert not [name for name in tmp_path.iterdir() if name.name != "a.json"]


def test_pandas_has_one_line_per_row():
    audit = ns.audit(network(nn.BatchNorm1d).eval(), data(False))
    frame = audit.to_pandas()
    assert list(frame["path"]) == [row.path for row in audit.layers]
    assert frame["variance_log10_median"].notna().sum() == 2
    assert frame["log10_norm_upper"].notna().sum() == 3


@pytest.mark.parametrize(
    ("content", "what"),
    [("{", "no JSON"), ("[]", "no audit"), ('{"type": "audit", "schema_version": 99}', "99"),
     ('{"type": "audit", "schema_version": 1}', "damaged")],
)  # fmt: skip
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, content, what):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=what) as caught:
        ns.Audit.from_json(tmp_path / "a.json")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot read"):
        ns.Audit.from_json(tmp_path / "missing.json")


def test_a_broken_weight_still_gives_an_audit():
    model = network(nn.BatchNorm1d).eval()
    with torch.no_grad():
        model[3].weight[0, 0] = math.nan
    audit = ns.audit(model, data(False))
    assert audit.lipschitz is None
    assert audit.findings[0].code == "non-finite-weights"
    assert audit.findings[0].where.startswith("3")
    assert any("3.weight" in why for _, why in audit.skipped)
    assert {row.path for row in audit.layers} == {"0", "1", "3", "4", "6"}


@pytest.mark.slow
def test_a_model_that_cannot_be_traced_is_audited_from_the_data():
    audit = ns.audit(Untraced(*network(nn.BatchNorm1d)).eval(), data(False))
    assert audit.lipschitz is None
    assert audit.headline is audit.observed
    assert any("torch.export" in why for _, why in audit.skipped)
    rows = {row.path: row for row in audit.layers}
    assert rows["0"].norm.log10_lower <= rows["0"].norm.log10_upper
    assert rows["1"].variance is not None
    assert ns.Audit.from_json(audit.to_json()) == audit


def test_layers_beside_the_path_have_rows_that_say_so():

    model = Net(
        lambda net, x: {"logits": net.body(x), "extra": net.extra(x)}, body=nn.Linear(6, 3), extra=nn.Linear(6, 2)
    )
    audit = ns.audit(model, data(False), output="logits")
    assert [row.path for row in audit.layers] == ["body", "extra"]
    assert audit.layers[1].norm.upper > 0.0
    assert audit.layers[1].log10_cumulative is None
    assert audit.layers[1].notes[0].startswith("not on the path from the measured input to the output")
    assert not audit.skipped


def test_missing_rules_make_the_bound_infinite_and_are_named():

    model = Net(lambda net, x: torch.fft.rfft(net.first(x)).abs(), first=nn.Linear(6, 8))
    audit = ns.audit(model, data(False))
    assert audit.lipschitz.log10_upper == math.inf
    assert "complex values" in audit.lipschitz.reason
    assert audit.headline is audit.observed


@pytest.mark.slow
def test_wrappers_are_looked_through():
    model = network(nn.BatchNorm1d).eval()
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        audit = ns.audit(wrapped, data(False))
        assert [row.path for row in audit.layers] == ["0", "1", "3", "4", "6"]
        assert audit.name == "Sequential"


@pytest.mark.slow
def test_memory_is_that_of_a_batch():
    """A loader of many batches is never held at once."""
    alive = []

    def batches():
        for index in range(30):
            batch = draw(64, 6, seed=index)
            alive.append(weakref.ref(batch))
            yield batch
            del batch
            assert sum(ref() is not None for ref in alive) <= 2

    assert ns.audit(network(nn.BatchNorm1d).eval(), data(False), loader=batches()).batches == 30


def test_severities_are_ordered_and_findings_can_be_kept_in_sets():
    assert ns.Severity.INFO < ns.Severity.WARNING < ns.Severity.ERROR
    assert ns.Severity.ERROR >= ns.Severity.WARNING > ns.Severity.INFO
    assert max(ns.Severity) is ns.Severity.ERROR
    finding = ns.Finding(code="a", severity=ns.Severity.INFO, where="", seen="", why="", advice="", numbers={"n": 1})
    assert len({finding, finding}) == 1


def test_a_negative_running_variance_is_a_finding_and_no_crash():
    model = network(nn.BatchNorm1d).eval()
    model[1].running_var[2] = -1.0
    audit = ns.audit(model, data(False))
    assert (audit.findings[0].code, audit.findings[0].where) == ("non-finite-weights", "1.running_var")
    assert audit.lipschitz is None


def test_what_the_data_spoil_is_listed():
    batch = data(False)
    spoiled = batch.clone()
    spoiled[0, 0] = math.nan
    audit = ns.audit(network(nn.BatchNorm1d).eval(), batch, loader=[batch, spoiled])
    assert audit.observed is None
    assert any("Jacobian" in what for what, _ in audit.skipped)


@pytest.mark.slow
def test_a_bias_shared_by_two_layers_is_not_redundant():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
            self.last.bias = self.first.bias

        def forward(self, x):
            return self.last(self.norm(self.first(x)).relu())

    audit = ns.audit(seeded(Tied), data(False))
    assert not [finding for finding in audit.findings if finding.code == "redundant-bias"]


@pytest.mark.slow
def test_the_table_and_the_findings_count_the_same_dead_channels():
    model = network(nn.BatchNorm1d).train()
    with torch.no_grad():
        model[1].weight[:4] = 1e-9
    audit = ns.audit(model, draw(128, 6))
    (finding,) = [finding for finding in audit.findings if finding.code == "dead-channels"]
    assert finding.numbers["dead"] == by_path(audit, "normalizer")["1"].dead_channels == 4


@pytest.mark.slow
def test_a_short_repr():
    audit = ns.audit(network(nn.BatchNorm1d).train(), data(False))
    assert repr(audit).startswith("<Audit of Sequential: 5 layers, findings: ")
    assert len(repr(audit)) < 300
