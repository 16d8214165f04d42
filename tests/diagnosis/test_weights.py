"""Weights alone: brackets that hold for whatever convolution a kernel belongs to, and what the values show."""

import itertools
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.auditing import bare_weights
from normscope.auditing.audit_result import Audit
from normscope.auditing.bare_weights import WEIGHTS_ONLY, audit_weights
from normscope.bounds.linalg import weight_norms
from normscope.bounds.linalg.weight_norms import kernel_norm, matrix_norm, matrix_norms
from normscope.core.bracket import Evidence
from normscope.core.budget import Budget
from normscope.core.errors import InputError

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def stored(tensors: dict[str, Tensor]):
    return {name: lambda tensor=tensor: tensor for name, tensor in tensors.items()}


def draw(generator: torch.Generator, choices: list[int]) -> int:
    return choices[int(torch.randint(len(choices), (), generator=generator))]


class Case:
    """A random convolution, small enough to write out."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.dims = draw(generator, [1, 1, 2, 2, 3])
        self.groups = draw(generator, [1, 1, 2, 3])
        inner, outer = draw(generator, [1, 2, 3]), draw(generator, [1, 2, 4])
        self.taps = [draw(generator, [1, 2, 3] if self.dims > 1 else [1, 2, 3, 5]) for _ in range(self.dims)]
        self.stride = [draw(generator, [1, 2, 3]) for _ in self.taps]
        self.dilation = [draw(generator, [1, 1, 2]) for _ in self.taps]
        self.padding = [draw(generator, [0, 1, 2]) for _ in self.taps]
        self.extent = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.taps)]
        self.size = [e + draw(generator, [0, 1, 4] if self.dims < 3 else [0, 1]) for e in self.extent]
        self.kernel = torch.randn(outer * self.groups, inner, *self.taps, dtype=torch.float64, generator=generator)
        if draw(generator, [0, 1]):  # constructive interference, where upper sides are attained
            self.kernel = self.kernel.abs()
        self.channels = inner * self.groups

    def options(self) -> dict:
        return {"stride": self.stride, "dilation": self.dilation, "padding": self.padding, "groups": self.groups}

    def dense(self) -> Tensor:
        shape = (self.channels, *self.size)
        basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
        return CONVOLVE[self.dims](basis, self.kernel, **self.options()).flatten(1)

    def transposed_size(self) -> list[int]:
        axes = zip(self.size, self.padding, self.extent, self.stride)
        return [(size + 2 * p - e) // s * s - 2 * p + e for size, p, e, s in axes]

    def transposed(self) -> Tensor:
        axes = zip(self.size, self.padding, self.extent, self.stride)
        shape = (len(self.kernel), *((size + 2 * p - e) // s + 1 for size, p, e, s in axes))
        basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
        return TRANSPOSE[self.dims](basis, self.kernel, **self.options()).flatten(1)

    def holds_a_window(self, sizes: list[int]) -> bool:
        """Whether one of the windows lies wholly inside an image of these sizes."""
        axes = zip(sizes, self.padding, self.extent, self.stride)
        return all(any(0 <= x <= n - e for x in range(-p, n + p - e + 1, s)) for n, p, e, s in axes)


@pytest.mark.slow
def test_a_kernels_bracket_holds_for_every_zero_padded_convolution():
    windows = 0
    for seed in range(100):
        case = Case(seed)
        found = kernel_norm(case.kernel)
        assert found.evidence is Evidence.PROVEN
        tried = [(case.dense(), case.size)]
        if min(case.transposed_size()) > 0:
            tried.append((case.transposed(), case.transposed_size()))
        for written, sizes in tried:
            norm = float(torch.linalg.matrix_norm(written, 2))
            assert norm <= found.upper * (1.0 + 1e-12), seed
            if case.holds_a_window(sizes):
                windows += 1
                assert norm >= found.lower * (1.0 - 1e-12), seed
    assert windows > 75


def test_a_kernels_lower_side_is_attained_and_its_upper_side_approached():
    kernel = torch.rand(1, 3, 3, dtype=torch.float64)
    found = kernel_norm(kernel)
    one_window = F.conv1d(torch.eye(9, dtype=torch.float64).reshape(9, 3, 3), kernel).flatten(1)
    assert float(torch.linalg.matrix_norm(one_window, 2)) == pytest.approx(found.lower, rel=1e-9)
    ones = kernel_norm(torch.ones(2, 2, 3, 3))
    wide = CONVOLVE[2](torch.eye(2 * 144).reshape(-1, 2, 12, 12), torch.ones(2, 2, 3, 3), padding=1).flatten(1)
    assert 0.9 * ones.upper < float(torch.linalg.matrix_norm(wide, 2)) <= ones.upper


def test_a_kernel_of_one_tap_is_bounded_by_its_matrix():
    kernel = torch.randn(6, 4, 1, 1)
    exact = float(torch.linalg.matrix_norm(kernel[:, :, 0, 0].double(), 2))
    assert kernel_norm(kernel).upper == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(70, 30), (30, 70), (40, 40)])
def test_a_matrix_read_in_pieces_has_the_same_norm(shape, dtype, monkeypatch):
    monkeypatch.setattr(weight_norms, "_WHOLE_ENTRIES", 0)
    monkeypatch.setattr(weight_norms, "_PIECE_ENTRIES", 333)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    exact = float(torch.linalg.matrix_norm(weight.double(), 2))
    found = matrix_norm(weight)
    assert found.lower <= exact <= found.upper
    assert found.evidence is Evidence.PROVEN
    assert found.converged
    assert found.gap < 1e-2


def spectra(columns: int) -> dict[str, Tensor]:
    """Squared singular values for which an upper side from a few steps is hard or easy."""
    flat = torch.ones(columns, dtype=torch.float64)
    close, alone = flat.clone(), 0.9 * flat
    close[: columns // 2] = 0.999
    alone[0] = 1.0
    return {"flat": flat, "close": close, "alone": alone, "falling": torch.linspace(0.0, 1.0, columns).double() ** 3}


@pytest.mark.parametrize("kind", spectra(4))
@pytest.mark.parametrize(("rows", "columns"), [(300, 200), (200, 300)])
def test_a_sampled_upper_side_holds_and_says_how_surely(kind, rows, columns, monkeypatch):
    monkeypatch.setattr(weight_norms, "_SAMPLED_ENTRIES", 0)
    generator = torch.Generator().manual_seed(2)
    values = spectra(200)[kind].sqrt()
    left = torch.linalg.qr(torch.randn(rows, 200, dtype=torch.float64, generator=generator)).Q
    right = torch.linalg.qr(torch.randn(columns, 200, dtype=torch.float64, generator=generator)).Q
    for scale in (1.0, 1e-30, 1e30):
        weight = (scale * left * values @ right.T).float()
        exact = float(torch.linalg.matrix_norm(weight.double(), 2))
        found = matrix_norm(weight, rtol=0.05, missed=1e-4)
        assert found.lower <= exact <= found.upper
        assert found.converged
        assert found.gap <= 0.05
        assert found.evidence is Evidence.SAMPLED
        assert "at most 0.0001" in found.notes[0]


@pytest.mark.parametrize("size", [1.0, 1e5])
def test_the_error_of_a_step_in_float32_is_within_what_a_sampled_norm_allows(size, monkeypatch):
    """In float64 the recurrence of the run that was made is off by less than phi."""
    runs = []

    class Kept(weight_norms.Krylov):
        def __init__(self, start: Tensor, *, invariant_rtol: float) -> None:
            super().__init__(start, invariant_rtol=invariant_rtol)
            runs.append(self)

    monkeypatch.setattr(weight_norms, "Krylov", Kept)
    monkeypatch.setattr(weight_norms, "_SAMPLED_ENTRIES", 0)
    # sums that cancel, and one that does not
    weight = size * (torch.randn(900, 600, generator=torch.Generator().manual_seed(3)) + 0.5)
    matrix_norm(weight, rtol=1e-3, missed=1e-4)
    (krylov,) = runs
    scale = weight_norms._Large(weight, Budget()).single()[1]
    assert scale == (1.0 if size == 1.0 else 2.0 ** math.frexp(float(weight.abs().max()))[1])
    gram = (weight.double() / scale).T @ (weight.double() / scale)
    tri, beta = krylov.tridiagonal()
    basis = krylov.basis[:, : krylov.steps].double()
    ahead = torch.zeros_like(basis)
    ahead[:, -1] = beta[:, -1:] * krylov._vector.double()
    off = (basis @ gram - tri @ basis - ahead).norm(dim=2).max()
    largest = float(torch.linalg.eigvalsh(gram)[-1])
    assert 0.0 < float(off) < 8.0 * torch.finfo(torch.float32).eps * largest


def odd_matrices(rows: int, columns: int) -> list[Tensor]:
    """Matrices of one shape (some of them transposed) that floating point or few steps make hard."""
    generator = torch.Generator().manual_seed(5)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    scales = torch.logspace(-12, 3, columns)
    spiked = noise(rows, columns) / 50.0
    spiked[7, 3] = 40.0
    one_entry = torch.zeros(rows, columns)
    one_entry[-1, -1] = -1e-30
    return [
        noise(rows, columns).bfloat16(),
        noise(columns, rows).half(),
        torch.zeros(rows, columns),
        noise(rows, 3) @ noise(3, columns),  # of rank 3
        noise(rows, 1) @ noise(1, columns),
        1e-20 * noise(rows, 1) @ torch.ones(1, columns) + 1e-27 * noise(rows, columns),
        noise(rows, columns) * scales,
        noise(columns, rows) * scales[:, None],
        1e30 * noise(rows, columns),
        torch.full((rows, columns), 6e-8).half(),  # the smallest number
        torch.full((rows, columns), 60000.0).half(),
        torch.eye(rows)[:, :columns].bfloat16(),
        spiked,
        one_entry,
        noise(rows, columns).sign().to(torch.bfloat16),
    ]


@pytest.mark.parametrize("missed", [0.0, 1e-5])
@pytest.mark.parametrize(("rows", "columns"), [(160, 120), (300, 20)])
def test_matrices_of_one_shape_are_measured_together_as_one_by_one(rows, columns, missed, monkeypatch):
    monkeypatch.setattr(weight_norms, "_SAMPLED_ENTRIES", 0)
    monkeypatch.setattr(weight_norms, "_WHOLE_ENTRIES", 0)
    matrices = odd_matrices(rows, columns)
    together = matrix_norms(matrices, rtol=5e-2, missed=missed)
    for place, (weight, found) in enumerate(zip(matrices, together, strict=True)):
        alone = matrix_norm(weight, rtol=5e-2, missed=missed)
        assert alone.log10_upper == pytest.approx(found.log10_upper, abs=2e-2), place  # other steps, the same starts
        assert alone.input_shape == found.input_shape == (weight.shape[1],)
        for norm in (alone, found):
            exact = float(torch.linalg.matrix_norm(weight.double(), 2))
            assert norm.lower * (1.0 - 1e-12) <= exact <= norm.upper * (1.0 + 1e-12), place
            assert norm.converged, place
    broken = [torch.ones(rows, columns), torch.full((rows, columns), math.nan)]
    with pytest.raises(InputError, match="NaN or infinite"):
        matrix_norms(broken, missed=missed)


def test_norms_that_wait_for_others_of_their_shape_come_to_their_rows(monkeypatch):
    """As on an accelerator."""
    monkeypatch.setattr(weight_norms, "_SAMPLED_ENTRIES", 0)
    tensors = {f"layer{k}.weight": (k + 1.0) * torch.eye(30 + k % 2, 40)[:, : 40 - k % 3] for k in range(20)} | {
        "nan.weight": torch.full((30, 40), math.nan),
        "conv.weight": torch.ones(2, 2, 3),
    }
    alone = audit_weights(stored(tensors))
    calls = []

    def counted(matrices, **options):
        calls.append(len(matrices))
        return matrix_norms(matrices, **options)

    monkeypatch.setattr(bare_weights, "matrix_norms", counted)
    monkeypatch.setattr(bare_weights, "may_wait", lambda tensor, missed: missed > 0.0)
    monkeypatch.setattr(bare_weights, "room_on", lambda device: 4 * 1200)
    together = audit_weights(stored(tensors))
    assert max(calls) == 4
    assert sum(calls) == 20
    assert [row.path for row in together.layers] == [row.path for row in alone.layers]
    for one, other in zip(alone.layers, together.layers, strict=True):
        assert (one.norm is None) == (other.norm is None)
        if one.norm is not None:
            assert one.norm.log10_upper == pytest.approx(other.norm.log10_upper, abs=1e-9)


def test_a_sampled_upper_side_fails_when_no_start_has_the_top_vector(monkeypatch):
    """What a probability is stated for: starts that are all orthogonal to the top vector."""
    monkeypatch.setattr(weight_norms, "_SAMPLED_ENTRIES", 0)
    weight = torch.diag(torch.cat([torch.tensor([3.0]), torch.linspace(0.1, 1.0, 199)]))

    def blind(*shape: int, generator: torch.Generator) -> Tensor:
        starts = torch.empty(*shape).normal_(generator=generator)
        starts[:, 0] = 0.0
        return starts

    monkeypatch.setattr(weight_norms.torch, "randn", blind)
    found = matrix_norm(weight, rtol=0.05, missed=1e-4)
    assert found.upper < 3.0
    assert found.evidence is Evidence.SAMPLED


def test_large_norms_of_a_file_are_sampled_and_the_report_says_so():
    tensors = stored({"a.weight": torch.randn(700, 600), "b.weight": torch.randn(700, 600), "c.weight": torch.eye(3)})
    said = "with a probability of 0.1% over random starts one or more of them are too small"
    for certify in (False, True):
        audit = audit_weights(tensors, certify=certify)
        evidence = [row.norm.evidence for row in audit.layers]
        assert evidence == [Evidence.PROVEN if certify else Evidence.SAMPLED] * 2 + [Evidence.PROVEN]
        assert (said in " ".join(str(audit).split())) is not certify
        assert (said in audit.to_html()) is not certify
    assert audit_weights(tensors).layers[0].norm.notes[0].endswith("0.00033, over random starts")


@pytest.mark.parametrize("shape", [(70, 30), (30, 70)])
def test_a_matrix_too_large_for_its_gram_matrix_is_still_bracketed(shape, monkeypatch):
    monkeypatch.setattr(weight_norms, "_WHOLE_ENTRIES", 0)
    monkeypatch.setattr(weight_norms, "_MAX_GRAM_MULTIPLICATIONS", 0)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    exact = float(torch.linalg.matrix_norm(weight.double(), 2))
    found = matrix_norm(weight)
    assert 0.99 * exact < found.lower <= exact <= found.upper <= float(weight.norm()) * 1.001
    assert not found.converged
    assert "too large" in found.advice
    assert matrix_norm(torch.zeros(5, 4)).upper == 0.0


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_norms_of_zero_and_of_what_is_no_number(small, monkeypatch):
    monkeypatch.setattr(weight_norms, "_WHOLE_ENTRIES", small)
    zero = matrix_norm(torch.zeros(5, 4))
    assert (zero.lower, zero.upper) == (0.0, 0.0)
    assert kernel_norm(torch.zeros(5, 4, 3)).upper == 0.0
    with pytest.raises(InputError, match="NaN or infinite"):
        matrix_norm(torch.full((5, 4), math.nan))


def test_extreme_magnitudes_neither_overflow_nor_vanish(monkeypatch):
    weight = torch.randn(50, 20, generator=torch.Generator().manual_seed(1))
    for small, scale in itertools.product((0, 1 << 20), (1e-36, 1e36)):
        monkeypatch.setattr(weight_norms, "_WHOLE_ENTRIES", small)
        scaled = weight * scale
        exact = math.log10(float(torch.linalg.matrix_norm(scaled.double(), 2)))
        for found in (matrix_norm(scaled), kernel_norm(scaled[:, :, None])):
            assert found.log10_lower <= exact <= found.log10_upper


def model() -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential()
    network.add_module("stem", nn.Conv2d(3, 8, 3, padding=1))
    network.add_module("norm", nn.BatchNorm2d(8, eps=1e-5))
    network.add_module("wte", nn.Embedding(20, 4))
    network.add_module("head", nn.Linear(10, 4))
    network.norm.running_var.uniform_(0.1, 2.0)
    nn.init.uniform_(network.norm.weight, -2.0, 2.0)
    return network


def test_rows_of_a_state_dict():
    network = model()
    audit = audit_weights(stored(network.state_dict()), name="file")
    rows = {row.path: row for row in audit.layers}
    assert [(row.path, row.operator, row.role) for row in audit.layers] == [
        ("wte", "embedding", "weight"),
        ("stem", "convolution", "weight"),
        ("head", "matrix", "weight"),
        ("norm", "batch_norm", "normalizer"),
    ]
    assert rows["head"].norm.gap < 1e-2
    assert "zero-padded" in rows["stem"].norm.notes[0]
    constant = (network.norm.weight.detach() / (network.norm.running_var + 1e-5).sqrt()).double()
    assert rows["norm"].log10_exact == pytest.approx(math.log10(constant.abs().max()), abs=1e-6)
    assert rows["norm"].log10_printed == pytest.approx(math.log10(constant.norm()), abs=1e-6)
    assert any("1e-05 assumed" in note for note in rows["norm"].notes)
    assert rows["norm"].parameters == 16
    assert audit.parameters == sum(p.numel() for p in network.parameters())
    assert (audit.name, audit.mode, audit.samples, audit.lipschitz) == ("file", None, 0, None)
    assert audit.findings == ()
    assert ("2 vectors (biases, scales)", WEIGHTS_ONLY) in audit.skipped
    assert Audit.from_json(audit.to_json()).to_json() == audit.to_json()
    assert "file" in str(audit)


def test_findings_that_weights_alone_can_show():
    state = model().state_dict()
    state["head.weight"][1:3] = 0.0
    state["stem.bias"][0] = math.inf
    state["wte.weight"][0] = 0.0  # a padding index: nothing to tell
    state["norm.weight"][:5] = 0.0
    state["zero.weight"] = torch.zeros(3, 3)
    state["nan.weight"] = torch.full((2, 2, 3), math.nan)
    state["attention.mask"] = torch.full((3, 3), -math.inf)
    audit = audit_weights(stored(state))
    found = [(finding.code, finding.where, finding.severity.value) for finding in audit.findings]
    assert sorted(found) == [
        ("dead-channels", "head", "warning"),
        ("dead-channels", "norm", "warning"),
        ("dead-layer", "zero", "warning"),
        ("non-finite-weights", "nan.weight", "error"),
        ("non-finite-weights", "stem.bias", "error"),
    ]
    assert [severity for _, _, severity in found[:2]] == ["error", "error"]
    rows = {row.path: row for row in audit.layers}
    assert (rows["head"].dead_channels, rows["head"].channels) == (2, 4)
    assert rows["nan"].norm is None
    assert rows["attention.mask"].norm is None


def test_a_negative_stored_variance_gives_no_constant():
    state = model().state_dict()
    state["norm.running_var"][0] = -1.0
    row = next(row for row in audit_weights(stored(state)).layers if row.path == "norm")
    assert (row.log10_exact, row.log10_printed) == (None, None)
    assert "negative" in row.notes[-1]


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (torch.ones(5), "4 variances, but a scale of 5"),
        (torch.ones(1), "4 variances, but a scale of 1"),
        (torch.ones(4, dtype=torch.int64), "int64 values"),
        (torch.ones(4).to_sparse(), "sparse"),
        (torch.ones(4, device="meta"), "meta"),
    ],
)
def test_a_scale_that_does_not_fit_its_variances_gives_no_constant(scale, said):
    audit = audit_weights(stored({"bn.running_var": torch.ones(4), "bn.weight": scale}))
    (row,) = audit.layers
    assert (row.log10_exact, row.dead_channels, row.channels) == (None, None, 4)
    assert row.notes[-1].startswith("no constant: ")
    assert said in row.notes[-1]


def test_batch_normalization_in_float8_and_of_no_channels():
    small = torch.tensor([1.0, 0.0, 2.0, 4.0]).to(torch.float8_e4m3fn)
    audit = audit_weights(
        stored(
            {
                "bn.running_var": torch.ones(4).to(torch.float8_e4m3fn),
                "bn.weight": small,
                "none.running_var": torch.ones(0),
                "none.weight": torch.ones(0),
            }
        )
    )
    (row,) = audit.layers
    assert row.log10_exact == pytest.approx(math.log10(4.0), abs=1e-4)
    assert row.dead_channels == 1


@pytest.mark.filterwarnings("ignore")
def test_tensors_without_dense_values_are_skipped_with_a_reason():
    eye = torch.eye(3)
    odd = [eye.to_sparse(), eye.to_sparse_csr(), eye.to("meta"), torch.nested.nested_tensor([eye[0], eye[0, :2]])]
    odd.append(torch.zeros(4, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
    audit = audit_weights(stored({f"t{k}.weight": tensor for k, tensor in enumerate(odd)}))
    assert audit.layers == ()
    reasons = dict(audit.skipped)
    assert "sparse, nested or meta" in reasons["4 tensors, e.g. t0.weight"]
    assert reasons["t4.weight"].startswith("float4_e2m1fn_x2 values")


def test_what_is_not_a_weight_as_it_stands_is_skipped_with_a_reason():
    audit = audit_weights(
        stored(
            {
                "q.qweight": torch.zeros(3, 3, dtype=torch.int32),
                "q.qzeros": torch.zeros(3, dtype=torch.int32),
                "a.weight": torch.zeros(3, 3).to(torch.float8_e4m3fn),
                "a.weight_scale": torch.ones(1),
                "b.weight": torch.eye(3).to(torch.float8_e4m3fn),
                "c.weight_v": torch.eye(3),
                "d.parametrizations.weight.original1": torch.eye(3),
                "experts.up": torch.zeros(2, 3, 3),
                "nothing.weight": torch.zeros(0, 3),
                "wave": torch.zeros(3, 3, dtype=torch.complex64),
            }
        )
    )
    reasons = dict(audit.skipped)
    assert reasons["2 tensors, e.g. q.qweight"].startswith("int32 values")
    assert reasons["a.weight"].startswith("quantised")
    assert reasons["wave"].startswith("complex64 values")
    assert [(row.path, row.norm is None) for row in audit.layers] == [
        ("b", False),
        ("c.weight_v", True),
        ("d.parametrizations.weight.original1", True),
        ("experts.up", True),
    ]


def test_a_budget_that_is_spent_leaves_sound_brackets():
    state = {f"layer{k}.weight": torch.randn(60, 40) for k in range(3)} | {"conv.weight": torch.randn(4, 4, 3, 3)}
    audit = audit_weights(stored(state), max_seconds=0.0)
    for row in [row for row in audit.layers if row.path != "conv"]:
        exact = float(torch.linalg.matrix_norm(state[f"{row.path}.weight"].double(), 2))
        assert row.norm.lower <= exact <= row.norm.upper


PEAK = """
import sys
from pathlib import Path
import torch
from normscope.cli.stored import stored_weights
from normscope.auditing.bare_weights import audit_weights


def peak():  # not ru_maxrss, which a process inherits from the one that started it
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


torch.set_num_threads(1)
audit_weights(stored_weights(Path(sys.argv[1])))
before = peak()
weights = stored_weights(Path(sys.argv[2]))
if sys.argv[3] == "all":  # what the test must be able to see
    held = {name: read().clone() for name, read in weights.items()}
    weights = {name: (lambda tensor=tensor: tensor) for name, tensor in held.items()}
assert len(audit_weights(weights).layers) == 14
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_stays_near_the_largest_tensor(tmp_path):
    from safetensors.torch import save_file

    save_file({"a.weight": torch.randn(64, 20_000)}, tmp_path / "small.safetensors")
    save_file({f"layer{k}.weight": torch.randn(64, 70_000) for k in range(14)}, tmp_path / "large.safetensors")
    assert (tmp_path / "large.safetensors").stat().st_size > 240e6
    grown = {}
    for held in ("one", "all"):
        files = [str(tmp_path / f"{name}.safetensors") for name in ("small", "large")]
        done = subprocess.run([sys.executable, "-c", PEAK, *files, held], capture_output=True, text=True, check=True)
        grown[held] = float(done.stdout)
    assert grown["one"] < 120.0  # MiB: one tensor is 17 MiB, all are 239
    assert grown["all"] > 200.0
