"""Rows of layers that are no plain operator on the path: recurrent layers, and layers beside the measured input."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import normscope as ns


class Sequence(nn.Module):
    """A linear layer, a recurrent one, a linear one."""

    def __init__(self, kind: type[nn.RNNBase], *, both: bool = False) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(4, 6), kind(6, 5, batch_first=True), nn.Linear(5, 3)
        self.both = both

    def forward(self, x: Tensor) -> Tensor:
        output, state = self.layer(self.first(x))
        state = state[0] if isinstance(state, tuple) else state
        return self.last(output[:, -1] + (state[-1] if self.both else 0.0))


@pytest.mark.slow
@pytest.mark.one_in(1000)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_has_a_row_and_one_for_each_matrix(kind, both):
    model = Sequence(kind, both=both).eval()
    audit = ns.audit(model, torch.randn(8, 5, 4))
    rows = {row.path: row for row in audit.layers}
    assert list(rows) == ["first", "layer", "layer.weight_ih_l0", "layer.weight_hh_l0", "last"]
    for name in ("weight_ih_l0", "weight_hh_l0"):
        exact = float(torch.linalg.matrix_norm(getattr(model.layer, name).double(), 2))
        norm = rows[f"layer.{name}"].norm
        assert norm.lower <= exact * (1 + 1e-9)
        assert exact <= norm.upper <= exact * 1.02
    row = rows["layer"]
    assert (row.kind, row.role, row.input_shape) == (kind.__name__, "weight", (1, 5, 6))
    assert row.parameters == sum(p.numel() for p in model.layer.parameters())
    assert "over the captured steps it amplifies a change of its input at most" in row.notes[0]
    assert math.isfinite(row.log10_cumulative)
    assert row.log10_observed <= row.log10_cumulative
    assert math.isfinite(audit.lipschitz.log10_upper)
    assert audit.observed.log10_upper <= audit.lipschitz.log10_upper
    assert not audit.skipped


@pytest.mark.slow
def test_a_recurrent_layer_that_cannot_be_traced_has_the_same_rows():
    class Untraced(Sequence):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1.0 if x.sum().item() > 1e9 else 2.0)

    audit = ns.audit(Untraced(nn.LSTM).eval(), torch.randn(8, 5, 4))
    paths = [row.path for row in audit.layers]
    assert paths == ["first", "layer", "layer.weight_ih_l0", "layer.weight_hh_l0", "last"]
    assert audit.layers[2].norm.upper > 0.0


@pytest.mark.slow
def test_a_cell_has_a_row_for_each_call_and_its_matrices_once():
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.zeros(len(x), 3)
            for t in range(3):
                h = self.cell(x[:, t], h)
            return h

    audit = ns.audit(Steps().eval(), torch.randn(8, 3, 4))
    assert [row.path for row in audit.layers] == ["cell", "cell.weight_ih", "cell.weight_hh", "cell", "cell"]
    assert math.isfinite(audit.lipschitz.log10_upper)


class Diffusion(nn.Module):
    """A denoiser: the time enters through a sinusoidal embedding of an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.time = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 6))
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(-torch.arange(4.0))
        return self.last((self.first(x) + self.time(torch.cat([angles.sin(), angles.cos()], 1))).relu())


def noisy(samples: int = 80) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, 4), torch.randint(0, 100, (samples,))


@pytest.mark.slow
def test_layers_of_a_time_embedding_have_rows_in_the_order_they_ran():
    model = Diffusion().eval()
    audit = ns.audit(model, noisy())
    rows = {row.path: row for row in audit.layers}
    assert list(rows) == ["first", "time.0", "time.1", "time.3", "last"]
    assert not audit.skipped
    exact = float(torch.linalg.matrix_norm(model.time[3].weight.double(), 2))
    assert rows["time.3"].norm.upper == pytest.approx(exact, rel=2e-2)
    assert rows["time.1"].variance.sets == 80
    assert "not on the path from the measured input to the output" in rows["time.0"].notes[0]
    assert rows["time.0"].log10_cumulative is None
    assert ns.Audit.from_json(audit.to_json()).layers == audit.layers


@pytest.mark.slow
def test_they_are_no_part_of_the_bound():
    model, batch = Diffusion().eval(), noisy(8)
    before = ns.audit(model, batch).lipschitz
    with torch.no_grad():
        model.time[3].weight.mul_(1e3)
    assert ns.audit(model, batch).lipschitz.log10_upper == pytest.approx(before.log10_upper)


@pytest.mark.slow
def test_a_time_embedding_that_died_is_found():
    model = Diffusion().eval()
    with torch.no_grad():
        model.time[0].weight.mul_(1e-9)
        model.time[0].bias.zero_()
    found = {(f.code, f.where) for f in ns.audit(model, noisy()).findings}
    assert found & {("dead-layer", "time.0"), ("dead-layer", "time.1"), ("eps-dominated", "time.1")}


def test_a_layer_whose_result_is_not_used_has_a_row_too():
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.unused(x)
            return self.used(x)

    audit = ns.audit(Unused().eval(), torch.randn(8, 4))
    assert [row.path for row in audit.layers] == ["unused", "used"]
