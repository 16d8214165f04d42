"""On a CUDA device every figure is the CPU's, and the model stays where and as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.auditing.bare_weights import audit_weights

pytestmark = pytest.mark.gpu


class Residual(nn.Module):
    """A block with a skip, a padded convolution and a normalizer of every kind of statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.group = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        y = x + torch.relu(self.norm(self.conv(x)))
        return self.head(nn.functional.silu(self.group(y)).flatten(1))


def encoder() -> nn.Module:
    """Return a small pre-norm transformer encoder."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


MODELS = pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3)), (4, 6)),
        (Residual, (2, 4, 6, 6)),
        (encoder, (2, 5, 16)),
        (lambda: nn.Sequential(nn.RMSNorm(6), nn.Linear(6, 4), nn.Softmax(-1)), (3, 6)),
    ],
)


@MODELS
def test_ladder_agrees_with_the_cpu(build, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = build().eval()
    batch = torch.randn(shape)
    here = ns.ladder(model, batch)
    there = ns.ladder(copy.deepcopy(model).cuda(), batch.cuda())
    for name, bracket in here.items():
        tolerance = 1e-4 if name == "observed" else 1e-6
        assert there[name].log10_upper == pytest.approx(bracket.log10_upper, abs=tolerance)
        assert there["best"].log10_lower <= bracket.log10_upper or not bracket.holds or name == "observed"


@pytest.mark.parametrize("mode", ["train", "eval"])
@MODELS
def test_audit_agrees_with_the_cpu(build, shape: tuple[int, ...], mode: str) -> None:
    torch.manual_seed(0)
    model = build()
    data = [torch.randn(shape) for _ in range(5)]
    here = ns.audit(model, data[0], loader=data, mode=mode)
    there = ns.audit(copy.deepcopy(model).cuda(), data[0], loader=data, mode=mode)  # the loader stays on the CPU
    assert [finding.code for finding in here.findings] == [finding.code for finding in there.findings]
    for one, other in zip(here.layers, there.layers, strict=True):
        assert one.path == other.path
        for name in ("log10_printed", "log10_exact", "log10_at_data", "log10_folded", "log10_cumulative"):
            assert getattr(other, name) == pytest.approx(getattr(one, name), abs=1e-2)
        if one.variance is not None:
            assert other.variance.log10_min == pytest.approx(one.variance.log10_min, abs=1e-3)
            assert other.variance.log10_median == pytest.approx(one.variance.log10_median, abs=0.03)
    assert ns.Audit.from_json(there.to_json()) == there


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_spectral_norm_agrees_with_the_cpu(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 16, 3, stride=2, padding=1).to(dtype)
    here = ns.spectral_norm(layer, (8, 12, 12))
    there = ns.spectral_norm(copy.deepcopy(layer).cuda(), (8, 12, 12))
    assert there.log10_upper == pytest.approx(here.log10_upper, abs=1e-6)
    assert there.log10_lower <= here.log10_upper
    assert here.log10_lower <= there.log10_upper


def test_the_generator_of_the_device_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh()).cuda().train()
    batch = torch.randn(3, 4, device="cuda")
    before = torch.cuda.get_rng_state()
    ns.lipschitz(model, batch)
    assert torch.equal(before, torch.cuda.get_rng_state())


@pytest.mark.parametrize("outputs", [3, 50])
def test_jacobians_agree_with_the_cpu(outputs: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, outputs)).eval()
    batches = [torch.randn(8, 40) for _ in range(3)]
    there = copy.deepcopy(model).cuda()
    one, other = ns.lipschitz(model, batches[0], scope="point"), ns.lipschitz(there, batches[0].cuda(), scope="point")
    for here, away in zip(one.per_sample, other.per_sample, strict=True):
        assert away.log10_lower == pytest.approx(here.log10_lower, abs=1e-4)
        assert max(away.log10_lower, here.log10_lower) <= min(away.log10_upper, here.log10_upper)
    streamed = ns.lipschitz(there, batches, scope="data", share=0.9, samples=24)
    assert streamed.log10_norms == pytest.approx(
        ns.lipschitz(model, batches, scope="data", share=0.9, samples=24).log10_norms, abs=1e-3
    )


@pytest.mark.parametrize("certify", [False, True])
def test_stored_weights_have_the_norms_of_the_cpu(certify: bool) -> None:
    """Brackets of the same norms meet, and those of the device hold for the matrix on the CPU."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "a.weight": (900, 1400),
        "b.weight": (1300, 1100),
        "c.weight": (8, 8),
        "d.weight": (4, 4, 3, 3),
        "d.bias": (4,),
    }
    tensors = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}
    readers = {name: (lambda tensor=tensor: tensor) for name, tensor in tensors.items()}
    here, there = (audit_weights(readers, certify=certify, device=device) for device in ("cpu", "cuda"))
    for one, other in zip(here.layers, there.layers, strict=True):
        assert one.path == other.path
        assert one.norm.evidence is other.norm.evidence
        assert max(one.norm.log10_lower, other.norm.log10_lower) <= min(one.norm.log10_upper, other.norm.log10_upper)
        if one.operator == "matrix":
            norm = float(torch.linalg.matrix_norm(tensors[f"{one.path}.weight"].double(), 2))
            assert other.norm.lower <= norm <= other.norm.upper
