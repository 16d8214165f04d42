"""What once went wrong in an audit, each with the smallest model that shows it."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import CaptureError, InputError

from ..net import Net
from .test_auditing import draw, seeded


def audited(model, batch, **known):
    return ns.audit(model, batch, **known)


def rows(audit):
    return {row.path: row for row in audit.layers}


def jacobian_norm(function, x):
    jacobian = torch.autograd.functional.jacobian(function, x).reshape(-1, x.numel())
    return math.log10(float(torch.linalg.matrix_norm(jacobian, ord=2)))


@pytest.mark.slow
def test_running_statistics_of_instance_norm_are_left_alone():
    model = nn.Sequential(nn.Conv1d(3, 4, 1), nn.InstanceNorm1d(4, track_running_stats=True)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ns.lipschitz(model, 9 * draw(4, 3, 8), max_seconds=0.5)
    audited(model, 9 * draw(4, 3, 8))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Masked(nn.Module):
    """Causal attention written out with a mask of minus infinity."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(8), nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(1, 2)
        scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -math.inf)
        return scores.softmax(-1) @ v


@pytest.mark.slow
def test_infinite_values_inside_do_not_stop_an_audit():
    audit = audited(seeded(Masked), draw(3, 5, 8))
    assert all(row.log10_observed is not None for row in audit.layers)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(6), nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.RMSNorm(6)])
def test_a_scale_that_is_no_number(norm):
    with torch.no_grad():
        norm.weight[1] = math.nan
    audit = audited(nn.Sequential(nn.Linear(6, 6), norm), draw(8, 6))
    assert audit.findings[0].code == "non-finite-weights"


def test_runs_that_the_graph_does_not_have_are_not_mistaken_for_those_it_has():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.pos, self.norm = nn.Parameter(1e-3 * draw(4, 8)), nn.LayerNorm(8)

        def forward(self, x):
            return self.norm(x) + self.norm(self.pos)

    audit = audited(Twice().eval(), 100 * draw(6, 4, 8))
    (row,) = audit.layers
    assert row.variance.log10_median == pytest.approx(4.0, abs=0.3)  # of the input, not of the positions
    assert not [finding for finding in audit.findings if finding.severity >= ns.Severity.WARNING]


@pytest.mark.slow
def test_a_written_norm_of_something_else_than_its_modules_input():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x):
            h = 100 * self.lin(x)
            return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)

    model, batch = nn.Sequential(seeded(Block)).eval(), draw(16, 8)
    (row,) = [row for row in audited(model, batch).layers if row.role == "normalizer"]
    truth = (100 * model[0].lin(batch)).double().square().mean(1).log10().median()
    assert row.variance.log10_median == pytest.approx(float(truth.detach()), abs=0.2)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("norm", "shape"),
    [(nn.GroupNorm(4, 8), (1, 8, 5)), (nn.InstanceNorm1d(8, affine=True), (1, 8, 5))],
    ids=["gn", "in"],
)
def test_each_group_is_divided_by_its_own_deviation(norm, shape):
    norm = norm.double()
    with torch.no_grad():
        norm.weight.copy_(10.0 ** torch.linspace(-2, 2, 8))
    x = draw(*shape).double() * 10.0 ** torch.linspace(-2, 2, 8).double()[:, None]
    (row,) = audited(nn.Sequential(norm), x).layers
    truth = jacobian_norm(norm, x)
    assert truth - 1e-6 <= row.log10_at_data <= truth + 0.1


def test_no_constant_at_the_data_exceeds_that_of_the_whole_space():
    for width in (1, 2):
        norm = nn.LayerNorm(width)
        with torch.no_grad():
            norm.weight[-1] = 0.0 if width == 2 else 1.0
        (row,) = audited(nn.Sequential(norm), torch.ones(4, width)).layers
        assert row.log10_at_data <= row.log10_exact


def test_the_constant_of_batchnorm_in_train_mode_is_that_of_its_worst_batch():
    norm = nn.BatchNorm1d(4).double().train()
    batches = [scale * draw(8, 4, seed=seed).double() for seed, scale in enumerate((1.0, 0.1, 5.0))]
    (row,) = audited(nn.Sequential(norm), batches[0], loader=batches).layers
    assert row.log10_at_data >= max(jacobian_norm(norm, batch) for batch in batches) - 1e-9


def test_zero_variance_is_minus_infinity():
    (row,) = audited(nn.Sequential(nn.LayerNorm(4)), torch.ones(8, 4)).layers
    assert row.variance.log10_median == row.variance.log10_min == -math.inf


def test_the_step_along_the_observed_direction_stays_small():
    model, batch = nn.Sequential(nn.LayerNorm(8)).double(), 1000 + 1e-3 * draw(4, 8).double()
    audit = audited(model, batch)
    assert audit.layers[-1].log10_observed == pytest.approx(audit.observed.log10_lower, abs=0.05)


@pytest.mark.slow
def test_dead_units_with_channels_last():

    model = Net(lambda net, x: net.relu(net.lin(x)), lin=nn.Linear(6, 32), relu=nn.ReLU())
    with torch.no_grad():
        model.lin.bias[:24] = -1e4
    (finding,) = [f for f in audited(model, draw(70, 10, 10, 6)).findings if f.code == "dead-relu"]
    assert (finding.numbers["dead"], finding.numbers["channels"]) == (24, 32)


def test_labels_are_not_passed_as_an_optional_argument():
    class Optional(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x, gain=None):
            return self.lin(x if gain is None else x * gain[:, None])

    batch = draw(6, 4)
    audit = audited(seeded(Optional), (batch, torch.zeros(6)))
    assert audit.observed.lower > 0
    assert any("labels" in note for note in audit.notes)


@pytest.mark.slow
def test_layers_that_get_nothing_or_change_their_width_do_not_stop_the_model():
    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.bn, self.ln = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LayerNorm(4)

        def forward(self, x):
            few = self.bn(x[:0]).sum() + self.ln(x[:0]).sum()
            wide = F.batch_norm(x.repeat(1, 3).reshape(1, -1, 3), None, None, training=True)
            return self.lin(x) + few + wide.mean()

    audit = audited(seeded(Routed).eval(), draw(6, 4), loader=[draw(6, 4), draw(3, 4)])
    assert audit.samples == 9


@pytest.mark.slow
def test_what_torch_export_cannot_say_is_no_crash():
    class Choosing(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            return self.lin(x[torch.nonzero(x[:, 0] > 0)[:, 0]])

    audit = audited(seeded(Choosing).eval(), draw(6, 4))
    assert audit.lipschitz is None
    assert audit.skipped
    with pytest.raises(CaptureError):
        ns.capture(seeded(Choosing).eval(), draw(6, 4))


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (nn.Linear(4, 4), {"rtol": -1}, "rtol"),
        (nn.Linear(4, 4), {"loader": 5}, "loader"),
        (nn.Linear(4, 4), {"loader": []}, "no batch"),
        (nn.Linear(4, 4), {"loader": [draw(2, 4), draw(3, 5)]}, "batch 2"),
        (nn.Linear(4, 4), {"output": "logits"}, "no output"),
        (nn.Linear(4, 4), {"mode": "both"}, "mode"),
        (nn.Linear(5, 4), {}, "raises"),
        (nn.LazyLinear(3), {}, "no size yet"),
        (nn.Linear(4, 4, device="meta"), {}, "meta"),
        ("model", {}, "Module"),
    ],
)
def test_clear_refusals(model, options, words):
    with pytest.raises(InputError, match=words):
        ns.audit(model, draw(2, 4), **options)


def test_a_module_with_two_names_has_its_data():
    class Aliased(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1 = nn.LayerNorm(4)
            self.n2 = self.n1
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            return self.n2(self.lin(x))

    audit = audited(seeded(Aliased), draw(6, 4))
    (row,) = [row for row in audit.layers if row.role == "normalizer"]
    assert row.variance is not None
    assert not row.notes
    assert not audit.skipped


def test_a_missing_rule_is_not_called_a_function_without_constant():

    found = audited(Net(lambda _, x: torch.fft.rfft(x).abs()), draw(3, 8)).findings
    assert "no-rule" in [finding.code for finding in found]


def test_small_inputs_are_not_a_dead_layer():
    model = seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))).train()
    found = audited(model, draw(4, 8), loader=[1e-4 * draw(128, 8, seed=seed) for seed in range(4)]).findings
    assert found[0].code == "eps-dominated"


def test_products_with_a_parameter_are_weight_layers():
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(draw(16, 16, seed=seed) for seed in range(6))

        def forward(self, x):
            for weight in self.weights:
                x = (x @ weight).relu()
            return x

    assert audited(Chain(), draw(64, 16)).findings[0].code == "exploding-run"


def test_tensors_of_truth_values_do_not_stop_an_audit():

    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), Net(lambda _, x: x * (x > 0)), nn.Linear(4, 4))).eval()
    assert len(audited(model, draw(6, 4)).layers) == 2


@pytest.mark.slow
def test_a_batchnorm_that_runs_twice_in_train_mode():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.bn = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            return self.bn(self.lin(self.bn(x)))

    model, batch = seeded(Twice).train(), draw(8, 4)
    audit = audited(model, batch)
    assert [row.operator for row in audit.layers] == ["batch_norm", "linear", "batch_norm"]
    assert all(row.variance is not None for row in audit.layers if row.role == "normalizer")
    assert math.isfinite(audit.lipschitz.log10_upper)
    assert audit.observed.log10_lower <= audit.lipschitz.log10_upper
    graph = ns.capture(model, batch)
    assert torch.allclose(graph.run(batch), model(batch), atol=1e-5)


@pytest.mark.slow
@pytest.mark.one_in(1000)
@pytest.mark.parametrize(
    "model", [[nn.Conv1d(3, 6, 1), nn.Conv1d(6, 6, 1)], [nn.Conv1d(3, 6, 1), nn.InstanceNorm1d(6)]]
)
def test_convolutions_without_a_batch_dimension(model):
    model, x = nn.Sequential(*model).eval(), draw(3, 8)
    alone, batched = ns.lipschitz(model, x, max_seconds=0.5), ns.lipschitz(model, x[None], max_seconds=0.5)
    assert alone.log10_upper == pytest.approx(batched.log10_upper, abs=1e-3)
    assert audited(model, x).layers


@pytest.mark.slow
def test_dropout_of_attention_given_by_position_is_off_too():
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def forward(self, x):
            return self.norm(F.scaled_dot_product_attention(x, x, x, None, 0.9 if self.training else 0.0))

    model, batch = Attending(), draw(4, 5, 8)
    figures = [audited(model, batch, mode=mode).layers[0].variance.log10_max for mode in ("train", "eval")]
    assert figures[0] == pytest.approx(figures[1], abs=1e-4)
