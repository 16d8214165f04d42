"""Findings of the signal: each with a model that has the fault and a healthy twin, checked and audited."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.finding import Finding
from normscope.core.untouched import Mode
from normscope.doctor.facts.data import DataSeen
from normscope.doctor.facts.examined import Examined
from normscope.doctor.facts.layers import LayerRow
from normscope.doctor.facts.layers_over_data import WeightOverData
from normscope.doctor.facts.objective import ObjectiveFacts
from normscope.doctor.facts.pass_facts import PassFacts
from normscope.doctor.symptoms.gradient_depth import check_gradient_explosion, check_gradient_vanishing
from normscope.doctor.symptoms.gradient_reach import check_no_gradient
from normscope.doctor.symptoms.half_precision import check_half_precision
from normscope.doctor.symptoms.inputs import check_input_scale
from normscope.doctor.symptoms.units import check_saturated_units

from ..net import Net
from .seen import INFO, WARNING, randn

SIGNAL = {
    "attention-saturated",
    "gradient-vanishing",
    "gradient-explosion",
    "exploding-run",
    "batch-norm-depth",
    "no-gradient",
    "saturated-units",
    "half-precision",
    "input-scale",
}
Pair = tuple[nn.Module, Tensor]


def chain(depth: int, activation: Callable[[], nn.Module], *, gain: float | None = None, width: int = 32) -> nn.Module:
    """Linear layers with an activation each; with a gain, by He's initialisation times it."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        linear = nn.Linear(width, width)
        if gain is not None:
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.zeros_(linear.bias)
            with torch.no_grad():
                linear.weight *= gain
        layers += [linear, activation()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


class Skip(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def batch_norms(depth: int, *, scale: float = 1.0, skips: bool = False, last: float | None = None) -> nn.Module:
    """Linear, BatchNorm, ReLU; with skips in blocks of two, the scale of the last BatchNorm of each as given."""
    layers: list[nn.Module] = []
    for index in range(depth):
        norm = nn.BatchNorm1d(32)
        nn.init.constant_(norm.weight, scale if last is None or index % 2 == 0 else last)
        layers.append(nn.Sequential(nn.Linear(32, 32), norm, nn.ReLU()))
    if skips:
        layers = [Skip(nn.Sequential(*layers[k : k + 2])) for k in range(0, depth, 2)]
    return nn.Sequential(*layers, nn.Linear(32, 10))


class Residual(nn.Module):
    """Blocks x + scale * f(x)."""

    def __init__(self, depth: int, scale: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)) for _ in range(depth)
        )
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + self.scale * block(x)
        return x


def found(model: nn.Module, batch: Tensor, **known) -> dict[str, Finding]:
    """The findings about the signal, by code; there is at most one of each."""
    check = ns.check(model, batch, **known)
    mine = [finding for finding in check.findings if finding.code in SIGNAL]
    assert len({finding.code for finding in mine}) == len(mine)
    return {finding.code: finding for finding in mine}


class TestVanishing:
    def test_twelve_sigmoids_in_figures(self) -> None:
        finding = found(chain(12, nn.Sigmoid), randn(16, 32))["gradient-vanishing"]
        assert finding.numbers["log10_gradient"] == pytest.approx(-10.3, abs=0.5)
        assert finding.numbers["layers"] == 25
        assert "in place of sigmoid" in finding.advice
        assert "a random direction of the output" in finding.seen

    @pytest.mark.slow
    def test_an_audit_finds_it_first(self) -> None:
        audit = ns.audit(chain(12, nn.Sigmoid), randn(8, 32), rtol=0.1)
        assert audit.findings[0].code == "gradient-vanishing"
        assert ns.Audit.from_json(audit.to_json()) == audit
        assert audit.signal.rows[0].kind == "input"

    def test_one_steep_step_is_no_trend(self) -> None:
        model = chain(12, nn.ReLU, gain=1.0)
        with torch.no_grad():
            model[12].weight *= 1e-8
        assert "gradient-vanishing" not in found(model, randn(16, 32))


class TestBatchNormDepth:
    @pytest.mark.slow
    def test_depth_makes_fresh_batchnorms_dangerous(self) -> None:
        check = ns.check(batch_norms(40), randn(64, 32))
        (finding,) = (item for item in check.findings if item.severity is WARNING)
        assert (finding.code, finding.where) == ("batch-norm-depth", "0.1")
        assert finding.numbers["law"] == pytest.approx(1.493, abs=1e-3)
        assert finding.numbers["growth"] == pytest.approx(1.493, rel=0.1)  # 32 units are not wide
        assert finding.numbers["layers"] == 40
        assert "law is 1.49 with 64 independent values" in finding.seen

    @pytest.mark.slow
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("batch", [8, 16, 64])
    def test_the_growth_of_a_wide_network_is_that_of_the_law(self, batch) -> None:
        layers = [nn.Sequential(nn.Linear(512, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU()) for _ in range(40)]
        findings = {item.code: item for item in ns.check(nn.Sequential(*layers), randn(batch, 512)).findings}
        numbers = findings["batch-norm-depth"].numbers
        assert numbers["law"] == pytest.approx({8: 1.788, 16: 1.590, 64: 1.493}[batch], abs=1e-3)
        assert numbers["growth"] == pytest.approx(numbers["law"], rel=0.03)

    @pytest.mark.slow
    def test_it_stands_in_for_the_explosion_whose_advice_would_be_wrong(self) -> None:
        codes = {item.code for item in ns.check(batch_norms(80), randn(64, 32)).findings}
        assert "batch-norm-depth" in codes
        assert "gradient-explosion" not in codes

    @pytest.mark.one_in(5)
    @pytest.mark.parametrize(
        "model",
        [
            lambda: batch_norms(16),
            lambda: batch_norms(40, skips=True),
            lambda: batch_norms(40).eval(),
            lambda: batch_norms(40, scale=1.1),
        ],
        ids=["16 layers", "skips", "eval mode", "trained"],
    )
    def test_its_twin_is_silent(self, model) -> None:
        assert "batch-norm-depth" not in {item.code for item in ns.check(model(), randn(64, 32)).findings}

    @pytest.mark.slow
    def test_skips_and_last_scales_of_zero_take_the_growth_away(self) -> None:
        def grown(model: nn.Module) -> float:
            rows = ns.check(model, randn(64, 32)).signal.rows
            gradients = [row.log10_gradient for row in rows if row.kind == "linear"]
            return gradients[0] - gradients[-2]

        plain, skips = grown(batch_norms(40)), grown(batch_norms(40, skips=True))
        assert plain > 3.0
        assert abs(skips) < 1.0
        stream = ns.check(batch_norms(40, skips=True, last=0.0), randn(64, 32)).signal.rows
        blocks = [row.log10_gradient for row in stream if row.kind == "Skip"]
        assert max(blocks) - min(blocks) < 1e-6  # every block is the identity


class TestExploding:
    @pytest.mark.slow
    def test_an_audit_says_it_once(self) -> None:
        audit = ns.audit(chain(12, nn.ReLU, gain=3.0), randn(8, 32), rtol=0.1)
        codes = [finding.code for finding in audit.findings]
        assert "exploding-run" in codes
        assert "gradient-explosion" not in codes

    def test_normalizers_that_do_not_normalize_yet_are_another_finding(self) -> None:
        layers = (m for _ in range(12) for m in (nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()))
        model = nn.Sequential(*layers).eval()
        with torch.no_grad():
            for module in model:
                if isinstance(module, nn.Linear):
                    module.weight *= 8.0
        codes = [finding.code for finding in ns.check(model, randn(64, 32)).findings]
        assert "gradient-explosion" not in codes
        assert "stale-statistics" in codes


class TestNoGradient:
    def blocked(self) -> nn.Module:
        model = chain(4, nn.ReLU, gain=1.0)
        nn.init.zeros_(model[4].weight)
        return model

    def test_an_audit_names_the_dead_layer_alone(self) -> None:
        codes = [f.code for f in ns.audit(self.blocked(), randn(8, 32), rtol=0.1).findings]
        assert codes == ["zero-weights"]

    def test_a_ReLU_that_is_never_on(self) -> None:
        model = chain(4, nn.ReLU, gain=1.0)
        nn.init.constant_(model[4].bias, -1e3)
        assert found(model, randn(6, 32))["no-gradient"].where == "5"
        with_enough = [f.code for f in ns.check(model, randn(16, 32)).findings]
        assert "dead-relu" in with_enough
        assert "no-gradient" not in with_enough

    def test_a_last_layer_at_zero_is_an_initialisation(self) -> None:
        model = chain(4, nn.ReLU, gain=1.0)
        nn.init.zeros_(model[-1].weight)
        assert {(f.code, f.severity) for f in ns.check(model, randn(16, 32)).findings} == {("zero-weights", INFO)}

    def test_its_twins_are_silent(self) -> None:
        assert not found(chain(4, nn.ReLU, gain=1.0), randn(16, 32))
        branch = Residual(4, 1.0)
        nn.init.zeros_(branch.blocks[2][2].weight)  # a residual branch that starts at zero
        assert not found(branch, randn(16, 32))


def images(*, scale: float = 1.0) -> Tensor:
    return scale * torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class TestInputScale:
    def trained(self, scale: float = 1.0) -> nn.Module:
        """A network whose running statistics were taken over images."""
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip
        for _ in range(60):
            model(images(scale=scale))
        return model.eval()

    @pytest.mark.slow
    def test_bytes_are_said_first_and_instead_of_update_bn(self) -> None:
        model = self.trained()
        for findings in (
            ns.check(model, images(scale=255.0)).findings,
            ns.audit(model, images(scale=255.0), rtol=0.1).findings,
        ):
            assert findings[0].code == "input-scale"
            assert "look like bytes" in findings[0].seen
            assert "255" in findings[0].advice
            assert "stale-statistics" not in [finding.code for finding in findings]

    def test_images_at_the_scale_of_training(self) -> None:
        for model, batch in ((self.trained(), images()), (self.trained(255.0), images(scale=255.0))):
            assert not found(model, batch)

    def test_other_statistics_at_a_usual_scale_are_still_stale(self) -> None:
        codes = [finding.code for finding in ns.check(self.trained(), images(scale=5.0)).findings]
        assert "stale-statistics" in codes
        assert "input-scale" not in codes

    @pytest.mark.parametrize("scale", [1e-5, 1e3, 1e6])
    def test_other_scales_on_a_network_without_normalizers(self, scale: float) -> None:
        finding = found(chain(2, nn.ReLU), scale * randn(16, 32))["input-scale"]
        assert "bytes" not in finding.seen
        assert finding.where == "input"
        assert finding.numbers["deviation"] == pytest.approx(scale, rel=0.1)

    @pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 5.0])
    def test_usual_scales(self, scale: float) -> None:
        assert not found(chain(2, nn.ReLU), scale * randn(16, 32))

    def test_a_model_that_scales_its_input_itself(self) -> None:

        model = Net(lambda net, x: net.layer(x / 255.0), layer=nn.Linear(32, 4))
        assert not found(model, 255.0 * torch.rand(16, 32))
        assert not found(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 4)), 255.0 * torch.rand(16, 32))
        assert not found(nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 4)), 255.0 * torch.rand(16, 32))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # processors without bfloat16
class TestHalfPrecision:
    def scaled(self, factor: float, dtype: torch.dtype) -> Pair:
        model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).to(dtype)
        with torch.no_grad():
            model[0].weight *= factor
        return model, randn(16, 32).to(dtype)

    def test_close_to_overflow_in_float16(self) -> None:
        finding = found(*self.scaled(3e4, torch.float16))["half-precision"]
        assert (finding.where, finding.severity) == ("0", WARNING)
        assert 0.0 < finding.numbers["log10_room"] < math.log10(4.0)

    def test_float32_that_would_not_fit_is_a_remark(self) -> None:
        finding = found(*self.scaled(1e6, torch.float32))["half-precision"]
        assert finding.severity is INFO
        assert "bfloat16" in finding.advice

    def test_bfloat16_has_the_room(self) -> None:
        assert "half-precision" not in found(*self.scaled(1e6, torch.bfloat16))

    def test_mostly_below_the_smallest_normal_number(self) -> None:
        assert "half-precision" not in found(*self.scaled(0.0, torch.float16))  # zeros are no small numbers
        model, x = self.scaled(1.0, torch.float16)
        with torch.no_grad():
            for parameter in model[2].parameters():
                parameter *= 1e-4
        assert "below" in found(model, x)["half-precision"].seen

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_its_twins_are_silent(self, dtype: torch.dtype) -> None:
        assert not found(*self.scaled(1.0, dtype))


class TestSaturated:
    @pytest.mark.parametrize("last", [nn.Sigmoid(), nn.Tanh(), nn.Softmax(dim=1)])
    def test_a_certain_output_is_no_fault(self, last: nn.Module) -> None:
        model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10), last)
        with torch.no_grad():
            model[2].weight *= 1e3
        assert not found(model, randn(16, 32))


class TestByHand:
    """Thresholds, on rows written by hand."""

    def examined(self, *rows: LayerRow, rms_input: float | None = None) -> Examined:
        signal = PassFacts(
            rows=rows, objective=ObjectiveFacts(gradient_of="the loss"), samples=4, forwards=1, backwards=1
        )
        site = ("0", "linear", 0)
        shapes = {"input_shape": (4, 4), "output_shape": (4, 4)}
        weights = {} if rms_input is None else {
            site: WeightOverData(site=site, rms_input=rms_input, rms_output=1.0, **shapes)
        }  # fmt: skip
        data = DataSeen(samples=4, batches=1, order=tuple(weights), weights=weights)
        return Examined(model=nn.Identity(), mode="eval", places=(), data=data, signal=signal)

    def row(self, path: str, kind: str = "linear", **known) -> LayerRow:
        usual = {"mean": 0.0, "deviation": 1.0, "least": -3.0, "greatest": 3.0, "below_float16": 0.0}
        return LayerRow(path=path, kind=kind, shape=(4, 4), **{"dtype": "float32", **usual, **known})

    def profile(self, *decades: float) -> Examined:
        return self.examined(*(self.row(str(k), log10_gradient=value) for k, value in enumerate(decades)))

    def test_a_fall_of_three_decades(self) -> None:
        assert not list(check_gradient_vanishing(self.profile(*(0.58 * k - 2.9 for k in range(6)))))
        assert list(check_gradient_vanishing(self.profile(*(0.61 * k - 3.05 for k in range(6)))))
        assert not list(check_gradient_vanishing(self.profile(-9.0, -6.0, -3.0)))  # three layers are no depth
        assert not list(check_gradient_vanishing(self.profile(0.0, -9.0, 0.0, -9.0, 0.0, -9.0, 0.0)))  # branches

    def test_a_rise_of_five_decades(self) -> None:
        assert not list(check_gradient_explosion(self.profile(*(4.9 - 0.98 * k for k in range(6)))))
        assert list(check_gradient_explosion(self.profile(*(5.05 - 1.01 * k for k in range(6)))))

    def test_what_was_not_measured_says_nothing(self) -> None:
        nothing = self.examined(*(self.row(str(k), log10_gradient=None) for k in range(6)))
        for look in (
            check_gradient_vanishing,
            check_gradient_explosion,
            check_no_gradient,
            check_saturated_units,
            check_half_precision,
            check_input_scale,
        ):
            assert not list(look(nothing))
            assert not list(look(self.examined()))
            assert not list(look(Examined(model=nn.Identity(), mode="eval", places=(), data=nothing.data)))

    def test_all_gradients_zero_or_none_is_not_a_place(self) -> None:
        assert not list(check_no_gradient(self.profile(*[-math.inf] * 6)))
        assert not list(check_no_gradient(self.profile(*[0.0] * 6)))
        (finding,) = check_no_gradient(self.profile(-math.inf, -math.inf, 0.0, 0.0, 0.0))
        assert finding.where == "1"  # the last one without: nothing is wrong with the weights of "2"

    def test_shares_of_saturation(self) -> None:
        last = self.row("9")
        for kind, share, silent in (("sigmoid", 0.5, True), ("sigmoid", 0.51, False), ("softmax", 0.75, True),
                                    ("softmax", 0.76, False), ("tanh", 0.6, False)):  # fmt: skip
            rows = (self.row("0", kind, saturated=share), last)
            assert bool(list(check_saturated_units(self.examined(*rows)))) is not silent, (kind, share)
            assert not list(check_saturated_units(self.examined(last, rows[0])))

    def test_a_quarter_of_the_range_is_close(self) -> None:
        for dtype, largest, severity in (
            ("float16", 65504 / 4.1, None), ("float16", 65504 / 3.9, WARNING), ("float32", 65504 / 3.9, INFO),
            ("float32", 1e9, INFO), ("bfloat16", 1e9, None), ("bfloat16", 3e38, WARNING),
        ):  # fmt: skip
            row = self.row("0", dtype=dtype, greatest=largest)
            told = [finding.severity for finding in check_half_precision(self.examined(row))]
            assert told == ([] if severity is None else [severity]), (dtype, largest)

    def test_the_first_layer_must_read_the_input_as_it_is(self) -> None:
        rows = self.row("input", "input", mean=0.0, deviation=100.0, least=-300.0, greatest=300.0), self.row("0")
        assert list(check_input_scale(self.examined(*rows, rms_input=100.0)))
        assert not list(check_input_scale(self.examined(*rows, rms_input=1.0)))
        assert not list(check_input_scale(self.examined(*rows, rms_input=1e4)))  # some other input
        assert not list(check_input_scale(self.examined(*rows)))


class Mixture(nn.Module):
    """Experts whose outputs are weighted by shares; by `how` the shares mix them, or are themselves what is read."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.router, self.experts = nn.Linear(16, 4), nn.ModuleList(nn.Linear(16, 8) for _ in range(4))
        self.lift, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of three classes."""
        scores = self.router(x)
        shares = scores.softmax(-1)
        if self.how == "mixed":
            return self.head(sum(shares[:, k, None] * expert(x).relu() for k, expert in enumerate(self.experts)))
        if self.how == "own mean":  # attention to a memory: shares are divided by their own sum over the samples
            return self.head(self.lift(shares / shares.sum(0)).relu())
        if self.how == "refined":  # a second stage reads the probabilities of the first, whose scores count as well
            return scores[:, :3] + self.head(self.lift(shares).relu())
        if self.how == "histogram":  # soft assignments that are counted
            return self.head(self.lift(self.router(x.view(-1, 1, 16).expand(-1, 5, 16)).softmax(-1).mean(1)).relu())
        return self.head((self.lift(shares) + x[:, :8]).relu())


BEHIND_A_LINEAR = {
    "dropout": [nn.Softmax(-1), nn.Dropout(0.2)],
    "normalizer before": [nn.LayerNorm(8), nn.Softmax(-1)],
    "normalizer behind": [nn.Softmax(-1), nn.LayerNorm(8)],
    "rearranged": [nn.Softmax(-1), nn.Unflatten(1, (2, 4)), nn.Flatten()],
    "after an activation": [nn.ReLU(), nn.Softmax(-1)],
}


class Added(nn.Module):
    """A softmax in a residual block, scaled by a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Add shares to what they are made of."""
        return x + 2.0 * self.inner(x).softmax(-1)


@pytest.mark.parametrize("between", [*BEHIND_A_LINEAR, "added"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_softmax_between_layers_is_told_whatever_stands_beside_it(between: str, mode: Mode) -> None:
    """All but a product with other values leaves it an activation."""
    layers = BEHIND_A_LINEAR.get(between, [Added()])
    model = nn.Sequential(nn.Linear(16, 8), *layers, nn.Linear(8, 3))
    found = ns.check(model, torch.randn(32, 16), mode=mode).findings
    assert [finding.code for finding in found if finding.code == "hidden-softmax"] == ["hidden-softmax"]


@pytest.mark.parametrize(
    ("how", "told"), [("mixed", 0), ("own mean", 0), ("refined", 0), ("histogram", 0), ("activation", 1)]
)
def test_shares_that_weigh_something_are_no_activation(how: str, told: int) -> None:
    """Nor are those whose scores are read elsewhere: they stand for probabilities."""
    found = ns.check(Mixture(how), torch.randn(32, 16)).findings
    assert sum(finding.code == "hidden-softmax" for finding in found) == told


def test_soft_assignments_that_are_averaged_over_an_image_are_a_histogram() -> None:
    """A module that does more than add what it reads is not seen through."""
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)]
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Softmax(1), *pooled)
    assert "hidden-softmax" not in {finding.code for finding in ns.check(model, torch.randn(16, 1, 4, 4)).findings}
