"""The signal by depth against the same figures taken the plain way: hooks, autograd, all values at hand."""

import itertools
import math
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from normscope.core.errors import InputError
from normscope.doctor.facts.data import run_over_data
from normscope.doctor.facts.forward_backward import run_forward_backward
from normscope.doctor.facts.layers import MAX_DOUBLE_ENTRIES, statistics_of
from normscope.doctor.facts.parameters import parameter_statistics
from normscope.doctor.facts.pass_facts import PassFacts
from normscope.doctor.pages.check import short_table, signal_chart, signal_table

from ..net import Net
from .seen import randn


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def signs(value: Tensor) -> Tensor:
    drawn = torch.empty(value.shape).bernoulli_(0.5, generator=torch.Generator().manual_seed(0))
    return 2.0 * drawn - 1.0


class TestFigures:
    def test_every_layer_against_hooks_and_autograd(self) -> None:
        model, x = net(), randn(5, 6)
        made: list[Tensor] = [x.clone().requires_grad_()]
        for layer in model:
            made.append(layer(made[-1]))
        gradients = torch.autograd.grad(made[-1], made, signs(made[-1]))
        rows = run_forward_backward(model, x).rows
        assert [row.path for row in rows] == ["input", "0", "1", "2", "3", "4", "5"]
        assert [row.kind for row in rows] == ["input", "linear", "layer_norm", "relu", "linear", "tanh", "linear"]
        for row, values, gradient in zip(rows, made, gradients, strict=True):
            values = values.detach().double()
            assert row.mean == pytest.approx(float(values.mean()), abs=1e-9)
            assert row.deviation == pytest.approx(float(values.std(correction=0)))
            assert (row.least, row.greatest) == (float(values.min()), float(values.max()))
            assert row.largest == float(values.abs().max())
            assert row.root_mean_square == pytest.approx(float(values.square().mean().sqrt()))
            expected = math.log10(gradient.norm() / gradients[-1].norm())
            assert row.log10_gradient == pytest.approx(expected, abs=1e-5)
            assert (row.shape, row.dtype) == (tuple(values.shape), "float32")

    @pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
    def test_large_float32_weights_are_those_of_float64(self, scale: float) -> None:
        weight = nn.Parameter(randn(300, 257) * scale + torch.linspace(-scale, scale, 257))
        wide = weight.detach().double()
        assert weight.numel() > MAX_DOUBLE_ENTRIES
        [[size, least, greatest, between, share, *_]] = parameter_statistics([weight])
        assert size == pytest.approx(float(wide.square().mean().sqrt()), rel=1e-5)
        assert (least, greatest) == (float(wide.min()), float(wide.max()))
        assert between == pytest.approx(float(wide.var(0, correction=0).mean().sqrt()), rel=1e-5)
        assert share == pytest.approx(parameter_statistics([nn.Parameter(wide)])[0][4], rel=1e-5)

    @pytest.mark.parametrize("scale", [3.4e38, 1.0, 1e-30])
    def test_large_float32_tensors_over_the_whole_range(self, scale: float) -> None:
        values = scale * torch.rand(2**9, 2**9).mul(2.0).sub(1.0)
        values[0, 0], values[1, 0] = -scale, scale
        wide = values.double()
        mean, variance, *_, between = statistics_of(values, None, len(values)).tolist()
        assert mean == pytest.approx(float(wide.mean()), abs=1e-6 * scale)
        assert variance == pytest.approx(float(wide.var(correction=0)), rel=1e-5)
        assert between == pytest.approx(float(wide.var(0, correction=0).mean()), rel=1e-5)

    def test_shares_below_half_precision_and_the_room_above(self) -> None:
        x = torch.tensor([[0.0, 1e-5, 1e-39, 3.0, -2e4, 6e-5, 7e-5, 1.0]])
        (row, _) = run_forward_backward(nn.Linear(8, 2), x).rows
        assert row.below_float16 == pytest.approx(3 / 8)
        assert row.below_bfloat16 == pytest.approx(1 / 8)
        assert row.log10_room_float16 == pytest.approx(math.log10(65504 / 2e4))
        assert row.log10_room_bfloat16 == pytest.approx(math.log10(torch.finfo(torch.bfloat16).max / 2e4))
        assert torch.finfo(torch.bfloat16).tiny == 2.0**-126
        assert torch.finfo(torch.float16).tiny == 2.0**-14

    @pytest.mark.parametrize(
        ("layer", "flat"),
        [
            (nn.Sigmoid(), lambda x: (x.sigmoid() < 0.01) | (x.sigmoid() > 0.99)),
            (nn.Tanh(), lambda x: x.tanh().abs() > 0.98),
            (nn.Hardsigmoid(), lambda x: (F.hardsigmoid(x) < 0.01) | (F.hardsigmoid(x) > 0.99)),
            (nn.Softmax(dim=1), lambda x: x.softmax(1).amax(1) > 0.99),
            (nn.Softmax(dim=0), lambda x: x.softmax(0).amax(0) > 0.99),
        ],
        ids=["sigmoid", "tanh", "hardsigmoid", "softmax", "softmax over samples"],
    )
    def test_saturation(self, layer: nn.Module, flat) -> None:
        x = 4.0 * randn(16, 9)
        row = run_forward_backward(layer, x).rows[-1]
        assert row.saturated == pytest.approx(float(flat(x).double().mean()))
        assert 0.0 < row.saturated < 1.0

    def test_a_softmax_over_one_entry_is_not_saturated(self) -> None:
        assert run_forward_backward(nn.Softmax(dim=1), randn(4, 1)).rows[-1].saturated is None

    def test_dead_share_is_that_of_the_data(self) -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        nn.init.constant_(model[0].bias[:6], -100.0)
        seen = run_over_data(model, [randn(64, 4)])
        rows = run_forward_backward(model, randn(64, 4), units=seen.units).rows
        assert [row.dead for row in rows] == [None, None, pytest.approx(6 / 8)]

    def test_values_beyond_float32_squares(self) -> None:
        row = run_forward_backward(nn.Identity(), 1e30 * randn(50, 4)).rows[0]
        assert row.deviation == pytest.approx(1e30, rel=0.2)

    def test_gradients_far_below_float32_squares_are_measured(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
        nn.init.eye_(model[1].weight)
        with torch.no_grad():
            model[1].weight *= 1e-30
        assert run_forward_backward(model, randn(2, 4)).rows[1].log10_gradient == pytest.approx(-30.0, abs=1e-4)

    def test_a_network_that_ends_in_a_normalizer_has_gradients(self) -> None:
        """The norm of such an output is constant; a random direction of it is not."""
        model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(5)), nn.LayerNorm(32))
        assert min(row.log10_gradient for row in run_forward_backward(model, randn(8, 32)).layers) > -3.0

    def test_values_that_are_not_finite_have_no_figures(self) -> None:

        rows = run_forward_backward(
            nn.Sequential(Net(lambda _, x: torch.log(x)), nn.Linear(3, 3)), torch.zeros(2, 3)
        ).rows
        assert [row.finite for row in rows] == [True, False, False]
        assert rows[1].mean is None
        assert rows[1].largest is None
        assert rows[1].log10_room_float16 is None


class TestWhatIsHeard:
    def test_functions_outside_of_modules(self) -> None:
        class Functional(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(randn(4, 4))

            def forward(self, x: Tensor) -> Tensor:
                x = torch.sigmoid(x @ self.weight)
                return F.layer_norm(F.gelu(F.linear(x, self.weight)), (4,))

        kinds = [row.kind for row in run_forward_backward(Functional(), randn(3, 4)).rows]
        assert kinds == ["input", "linear", "sigmoid", "linear", "gelu", "layer_norm"]

    def test_in_place_functions_and_blocks_written_in_place(self) -> None:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x: Tensor) -> Tensor:
                y = self.layer(x)
                y += x
                return y

        model, x = nn.Sequential(Block(), nn.ReLU(inplace=True), nn.Linear(4, 2)), randn(3, 4)
        rows = run_forward_backward(model, x).rows
        assert [row.kind for row in rows] == ["input", "linear", "Block", "relu", "linear"]
        layer = model[0].layer(x).detach()
        assert rows[1].mean == pytest.approx(float(layer.double().mean()), abs=1e-6)
        assert rows[2].mean == pytest.approx(float((layer + x).double().mean()), abs=1e-6)
        assert rows[3].least == 0.0
        assert all(row.log10_gradient is not None for row in rows)

    def test_residual_blocks_have_rows_and_views_have_none(self) -> None:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.norm, self.out = nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1), nn.ReLU()

            def forward(self, x: Tensor) -> Tensor:
                return self.out(self.norm(self.conv(x)) + x)

        rows = run_forward_backward(
            nn.Sequential(Block(), nn.Flatten(), nn.Identity()), randn(4, 1, 8, 8), mode="train"
        ).rows
        assert [row.path for row in rows] == ["input", "0.conv", "0.norm", "0.out"]

    def test_tokens_start_at_their_embeddings(self) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            n_embd=24, n_layer=1, n_head=2, n_positions=16, vocab_size=32, bos_token_id=1, eos_token_id=2
        )
        model = GPT2LMHeadModel(config).eval().requires_grad_(False)
        ids = torch.arange(12)[None] + torch.arange(16)[:, None]
        rows = run_forward_backward(
            model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, output="logits"
        ).rows
        assert rows[0].kind == "embedding"
        assert all(row.log10_gradient is not None for row in rows)
        assert any(row.kind == "GPT2Block" for row in rows)

    def test_recurrent_networks(self) -> None:
        class Tagger(nn.Module):
            def __init__(self, cell: type[nn.Module]) -> None:
                super().__init__()
                self.cell, self.head = cell(4, 8, batch_first=True), nn.Linear(8, 2)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.cell(x)[0])

        for cell, kind in ((nn.LSTM, "lstm"), (nn.GRU, "gru"), (nn.RNN, "rnn")):
            rows = run_forward_backward(Tagger(cell), randn(3, 5, 4)).rows
            assert [row.kind for row in rows] == ["input", kind, "linear"]
            assert all(row.log10_gradient is not None for row in rows)

    def test_several_inputs_are_named(self) -> None:
        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(4, 2), nn.Linear(3, 2)

            def forward(self, x: Tensor, y: Tensor) -> Tensor:
                return self.a(x) + self.b(y)

        rows = run_forward_backward(Two(), {"x": randn(2, 4), "y": randn(2, 3)}).rows
        assert [row.path for row in rows] == ["input x", "input y", "a", "b", ""]

    def test_a_module_that_runs_twice_has_two_rows(self) -> None:
        layer = nn.Linear(4, 4)
        rows = run_forward_backward(nn.Sequential(layer, nn.ReLU(), layer), randn(3, 4)).rows
        assert [(row.path, row.kind) for row in rows[1:]] == [("0", "linear"), ("1", "relu"), ("0", "linear")]


class Passed(torch.autograd.Function):
    """Counts backward passes."""

    count = 0

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        Passed.count += 1
        return gradient


class Counted(nn.Module):
    """A model that counts its passes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return Passed.apply(self.model(x))


class TestOneForwardAndOneBackward:
    def test_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Passed, "count", 0)
        model, forwards = Counted(net()), itertools.count()  # what Python can put back is put back, an iterator not
        model.register_forward_hook(lambda *_: (next(forwards), None)[1])
        signal = run_forward_backward(model, randn(4, 6))
        assert (next(forwards), Passed.count) == (1, 1) == (signal.forwards, signal.backwards)

    def test_nothing_waits_for_the_device(self) -> None:
        """No value is read while the model runs; at the end all are, as one tensor."""
        reads: list[str] = []

        class Reads(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                name = str(func)
                if "_local_scalar_dense" in name or "aten.nonzero" in name or "aten.equal" in name:
                    reads.append(name)
                return func(*args, **(kwargs or {}))

        model = nn.Sequential(*(nn.Linear(6, 6) if k % 2 else nn.Tanh() for k in range(40)))
        with Reads():
            signal = run_forward_backward(model, randn(4, 6))
        assert len(signal.rows) == 41
        assert not reads


class TestWhatIsDifferentiated:
    def test_a_loss_with_the_labels_of_the_batch(self) -> None:
        model, x, y = net(), randn(5, 6), torch.tensor([0, 1, 2, 0, 1])
        signal = run_forward_backward(model, (x, y), loss=F.cross_entropy)
        assert signal.objective.gradient_of == "the loss"
        made: list[Tensor] = [x.clone().requires_grad_()]
        for layer in model:
            made.append(layer(made[-1]))
        gradients = torch.autograd.grad(F.cross_entropy(made[-1], y), made)
        expected = [math.log10(g.norm() / gradients[-1].norm()) for g in gradients]
        assert [row.log10_gradient for row in signal.rows] == pytest.approx(expected, abs=1e-5)

    def test_a_loss_of_the_output_alone(self) -> None:
        signal = run_forward_backward(net(), randn(5, 6), loss=lambda made: made.square().mean())
        assert signal.rows[0].log10_gradient is not None

    @pytest.mark.parametrize("loss", [lambda made: made, lambda made: 3.0, lambda made, labels: made.sum()])
    def test_a_loss_that_is_none(self, loss) -> None:
        with pytest.raises(InputError, match="the loss"):
            run_forward_backward(net(), randn(5, 6), loss=loss)

    def test_several_outputs_count_together_unless_one_is_chosen(self) -> None:
        class Several(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.one, self.other = nn.Linear(4, 2), nn.Linear(4, 2)

            def forward(self, x: Tensor) -> dict[str, Tensor]:
                return {"one": self.one(x), "other": self.other(x)}

        both = run_forward_backward(Several(), randn(3, 4)).rows
        assert [row.log10_gradient is not None for row in both] == [True, True, True]
        one = run_forward_backward(Several(), randn(3, 4), output="one").rows
        assert [row.log10_gradient is not None for row in one] == [True, True, False]
        with pytest.raises(InputError, match="no float output"):
            run_forward_backward(Several(), randn(3, 4), output="neither")

    def test_frozen_weights_and_callers_without_gradients(self) -> None:
        model = net().requires_grad_(False)
        with torch.no_grad():
            rows = run_forward_backward(model, randn(3, 6)).rows
        assert all(row.log10_gradient is not None for row in rows)


class TestWithoutGradients:
    def test_a_forward_that_autograd_cannot_follow_runs_without_it(self) -> None:
        class Numpy(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return torch.from_numpy(x.numpy() * 2.0)

        signal = run_forward_backward(nn.Sequential(nn.Linear(4, 4), Numpy(), nn.Linear(4, 2)), randn(3, 4))
        assert [row.kind for row in signal.rows] == ["input", "linear", "Numpy", "linear"]
        assert (signal.forwards, signal.backwards) == (2, 0)
        assert "autograd cannot follow" in signal.reason
        assert all(row.log10_gradient is None for row in signal.rows)

    def test_a_backward_that_raises_leaves_the_values(self) -> None:
        class Broken(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx, gradient: Tensor) -> Tensor:
                raise RuntimeError("no way back")

        signal = run_forward_backward(
            nn.Sequential(nn.Linear(4, 4), Net(lambda _, x: Broken.apply(x)), nn.Linear(4, 2)), randn(3, 4)
        )
        assert len(signal.rows) == 4
        assert "no way back" in signal.reason
        assert all(row.log10_gradient is None for row in signal.rows)

    def test_an_output_without_a_gradient(self) -> None:

        assert "does not depend" in run_forward_backward(Net(lambda _, x: x.detach() * 2.0), randn(3, 4)).reason

    def test_a_model_that_raises_is_an_error(self) -> None:
        with pytest.raises(InputError, match="model\\(batch\\) must work"):
            run_forward_backward(nn.Linear(4, 4), randn(3, 5))


class TestForms:
    def test_json_and_back(self) -> None:
        for model, batch in ((net(), randn(4, 6)), (nn.Sequential(nn.Linear(6, 6), nn.Sigmoid()), torch.zeros(2, 6))):
            signal = run_forward_backward(model, batch)
            assert PassFacts.from_json(signal.to_json()) == signal

    def test_chart_and_table(self) -> None:
        signal = run_forward_backward(net(), randn(4, 6))
        chart, table = signal_chart(signal), signal_table(signal)
        assert chart.labels == tuple(row.path for row in signal)
        assert [series.name.split()[0] for series in chart.series] == ["deviation", "largest", "gradient,"]
        assert chart.rules == ()
        assert len(table.rows) == len(signal) == 7
        titles = [column.title for column in table.columns]
        assert "saturated, dead (%)" in titles
        assert "dtype if not float32" not in titles
        assert signal_chart(None) is signal_table(None) is None

    def test_a_terminal_shows_blocks_in_one_line(self) -> None:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.wide, self.narrow = nn.Linear(4, 8), nn.Linear(8, 4)

            def forward(self, x: Tensor) -> Tensor:
                return x + self.narrow(torch.relu(self.wide(x)))

        stem, blocks = nn.Linear(3, 4), nn.Sequential(*(Block() for _ in range(12)))
        signal = run_forward_backward(
            nn.Sequential(OrderedDict(stem=stem, body=blocks, head=nn.Linear(4, 2))), randn(2, 3)
        )
        table = short_table(signal, "Totals.")
        assert [row[:4] for row in table.rows] == [
            ("input", "input", "2x3", None),
            ("stem", "linear", "2x4", 16),
            ("body.0 to 11", f"{len(signal) - 3} layers", "2x4", 12 * 76),
            ("head", "linear", "2x2", 10),
        ]
        assert table.caption == f"Totals. All {len(signal)} lines: `print(check.table())`."

    def test_a_terminal_shows_weights_where_there_are_no_blocks(self) -> None:
        model = nn.Sequential(*(layer for _ in range(10) for layer in (nn.Linear(4, 4), nn.ReLU())))
        signal = run_forward_backward(model, randn(2, 4))
        assert [row[1] for row in short_table(signal, "").rows] == ["input", *["linear"] * 10, "relu"]
        assert len(signal_table(signal).rows) == 21

    def test_a_terminal_shows_very_many_layers_of_one_list_in_one_line(self) -> None:
        model = nn.Sequential(*(layer for _ in range(30) for layer in (nn.Linear(4, 4), nn.Tanh())))
        table = short_table(run_forward_backward(model, randn(2, 4)), "")
        assert [row[:2] for row in table.rows] == [("input", "input"), ("0 to 59", "60 layers")]

    def test_float16_is_marked_where_it_is_near(self) -> None:
        chart = signal_chart(run_forward_backward(nn.Linear(4, 4), 1e4 * torch.ones(2, 4)))
        assert chart.rules == (("largest float16", pytest.approx(math.log10(65504.0))),)
