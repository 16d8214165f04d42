"""Capture: what goes in, what comes out, what is refused, and that the model is left as found."""

from __future__ import annotations

import math
from collections import namedtuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import normscope as ns
from normscope.bounds.graph.ir import Unit
from normscope.core.errors import InputError, RandomOperatorError

from ..soundness.networks import Function

aten = torch.ops.aten


def names(graph: ns.Graph) -> list[str]:
    return [str(node.op).removeprefix("aten.").split(".")[0] for node in graph]


def agrees(graph: ns.Graph, model: nn.Module, *inputs: Tensor, tolerance: float = 1e-5) -> None:
    """The graph computes what the model computes, on other inputs than it was captured with."""
    others = [x + 0.3 * torch.randn(x.shape, dtype=x.dtype) for x in inputs]
    with torch.no_grad():
        want, got = model(*others), graph.run(*others)
    assert torch.allclose(got, want, rtol=tolerance, atol=tolerance)


class Two(nn.Module):
    """Two inputs by position or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.left(first) + self.right(second).relu()


class TestInputs:
    def test_a_tuple_is_positional_arguments(self) -> None:
        model, batch = Two().eval(), (torch.randn(2, 3), torch.randn(2, 2))
        graph = ns.capture(model, batch)
        assert [item.shape for item in graph.inputs] == [(1, 3), (1, 2)]
        assert graph.input_shape == (5,)
        agrees(graph, model, *(x[:1] for x in batch))

    def test_token_models_start_at_their_embedding(self) -> None:
        class Tokens(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embed, self.place, self.head = nn.Embedding(9, 4), nn.Embedding(5, 4), nn.Linear(4, 2)

            def forward(self, input_ids: Tensor) -> Tensor:
                return self.head(self.embed(input_ids) + self.place(torch.arange(input_ids.shape[1])))

        model, ids = Tokens().eval(), torch.tensor([[1, 2, 3]])
        graph = ns.capture(model, {"input_ids": ids})
        (start,) = graph.inputs
        assert (start.shape, start.path) == ((1, 3, 4), "embed")
        assert torch.allclose(graph.run(start.value), model(ids))
        assert torch.equal(start.value, model.embed(ids))

    def test_one_sample_in_eval_mode_and_the_batch_in_train_mode(self) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        batch = torch.randn(5, 3)
        evaluated, trained = ns.capture(model, batch, mode="eval"), ns.capture(model, batch, mode="train")
        assert (evaluated.input_shape, evaluated.per_sample, evaluated.mode) == ((1, 3), True, "eval")
        assert (trained.input_shape, trained.per_sample, trained.mode) == ((5, 3), False, "train")


Named = namedtuple("Named", ["hidden", "scores"])


class TestOutputs:
    @pytest.mark.parametrize(
        ("function", "output", "gain"),
        [
            (lambda x: {"hidden": x, "scores": 2 * x}, "scores", 2),
            (lambda x: {"hidden": x, "scores": 2 * x}, "hidden", 1),
            (lambda x: (x, 3 * x), 1, 3),
            (lambda x: Named(x, 4 * x), "scores", 4),
        ],
    )
    def test_one_is_chosen_by_name_or_index(self, function, output, gain) -> None:
        bracket = ns.lipschitz(Function(function), torch.randn(2, 3), output=output, max_seconds=0.2)
        assert bracket.upper == pytest.approx(gain)

    @pytest.mark.parametrize(
        ("function", "output", "words"),
        [
            (lambda x: (x, 2 * x), None, r"returns 2 float tensors, \[0, 1\]: choose one with output="),
            (lambda x: {"a": x, "b": x}, "z", r"no float output 'z'; it returns \['a', 'b'\]"),
            (lambda x: "text", None, "returns 0 float tensors"),
            (lambda x: [], None, "returns 0 float tensors"),
            (lambda x: None, None, "there is no tensor to measure"),
            (lambda x: x.argmax(1), None, "there is no float output to measure"),
            (lambda x: torch.ones(2), None, "does not depend on the input"),
        ],
        ids=["several", "not there", "text", "empty", "nothing", "integers", "a constant"],
    )
    def test_what_cannot_be_measured_is_refused(self, function, output, words: str) -> None:
        with pytest.raises(InputError, match=words):
            ns.capture(Function(function), torch.randn(2, 3), output=output)


def view_write(x: Tensor) -> Tensor:
    y = x * 1.0
    y.view(-1)[::2] = 0.0
    y[:, 1] = y[:, 0] + 1
    y += x
    return y


class TestStructure:
    @pytest.mark.one_in(2)
    @pytest.mark.parametrize(
        "model",
        [
            Function(lambda net, x: net.layer(net.layer(x).relu()) @ net.layer.weight, layer=nn.Linear(4, 4)),
            Function(view_write),
            nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.ReLU(inplace=True), spectral_norm(nn.Linear(4, 4))),
            nn.Sequential(nn.Unflatten(1, (1, 4)), weight_norm(nn.Conv1d(1, 2, 3)), spectral_norm(nn.Conv1d(2, 2, 2))),
            nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh()),
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True),
        ],
        ids=["shared", "view writes", "parametrized", "parametrized conv", "dropout", "encoder"],
    )
    def test_the_graph_computes_the_model(self, model: nn.Module) -> None:
        model.eval()
        shape = (1, 3, 4) if isinstance(model, nn.TransformerEncoderLayer) else (1, 4)
        x = torch.randn(shape)
        agrees(ns.capture(model, x), model, x)

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("drop", [nn.Dropout(0.5), Function(lambda x: F.dropout(x, 0.5)), nn.Dropout1d(0.5)])
    def test_dropout_counts_as_off_and_the_result_says_so(self, drop: nn.Module) -> None:
        model = nn.Sequential(nn.Linear(3, 3), drop).train()
        bracket = ns.lipschitz(model, torch.randn(2, 3), max_seconds=0.2)
        assert "dropout counts as off" in bracket.notes
        norm = float(torch.linalg.matrix_norm(model[0].weight.detach().double(), 2))
        assert bracket.upper == pytest.approx(norm, rel=2e-3)
        assert "dropout counts as off" not in ns.capture(nn.Linear(3, 3).train(), torch.randn(2, 3)).notes


def halves(x: Tensor) -> Tensor:
    return torch.cat([-x[..., 2:], x[..., :2]], -1)


ANGLES = torch.linspace(0, 2, 12).reshape(3, 4)
UNITS = {
    "rms": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3), ["rms"]),
    "tanh-GELU": (
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ["activation"],
    ),
    "rotary": (lambda x: x * ANGLES.to(x).cos() + halves(x) * ANGLES.to(x).sin(), ["rotary"]),
    "attention": (
        lambda x: (x @ x.transpose(1, 2) / 2 + torch.eye(3).to(x)).softmax(-1) @ x,
        ["transpose", "transpose", "scaled_dot_product_attention"],
    ),
}


class TestUnits:
    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("name", UNITS)
    def test_a_unit_written_out_is_recognised_and_computes_the_same(self, name: str) -> None:
        function, expected = UNITS[name]
        graph = ns.capture(Function(function).eval(), torch.randn(2, 3, 4))
        assert names(graph) == expected
        x = 3 * torch.randn(graph.inputs[0].shape)
        assert torch.allclose(graph.run(x), function(x), atol=1e-5)
        assert torch.allclose(graph.double().run(x.double()), function(x.double()), atol=1e-12)

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize(
        "function",
        [
            lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)),
            lambda x: x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-3),
            lambda x: x * torch.rsqrt(x.flip(-1).pow(2).mean(1, keepdim=True) + 1e-3),
            lambda x: x * torch.sigmoid(x).mean(-1, keepdim=True),
            lambda x: (x @ x.transpose(1, 2)).softmax(1) @ x,
        ],
        ids=["no eps", "fourth power", "another value's mean", "a mean gate", "softmax over queries"],
    )
    def test_what_only_looks_like_a_unit_is_not_one(self, function) -> None:
        graph = ns.capture(Function(function).eval(), torch.randn(2, 3, 4))
        assert not any(isinstance(node.op, Unit) or "attention" in str(node.op) for node in graph)
        x = torch.randn(graph.inputs[0].shape)
        assert torch.allclose(graph.run(x), function(x), atol=1e-5)


def cut(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    return y + x


class TestRefused:
    @pytest.mark.one_in(2)
    @pytest.mark.parametrize(
        ("function", "constant"), [(lambda x: x.detach() + x, 2.0), (cut, 3.0)], ids=["detach", "no_grad"]
    )
    def test_where_gradients_are_cut_the_function_is_not(self, function, constant: float) -> None:
        model = Function(function)
        assert ns.lipschitz(model, torch.randn(2, 3), scope="point").upper == pytest.approx(constant)
        bracket = ns.lipschitz(model, torch.randn(2, 3), max_seconds=0.2)
        assert bracket.lower == pytest.approx(constant, abs=1e-6)
        assert bracket.upper == pytest.approx(constant, abs=1e-6)

    @pytest.mark.parametrize(
        ("function", "operator"),
        [
            (lambda x: x + torch.randn_like(x), "randn_like"),
            (lambda x: x * torch.bernoulli(torch.ones(3) / 2), "bernoulli"),
        ],
        ids=["noise", "mask"],
    )
    @pytest.mark.parametrize("scope", ["global", "point"])
    def test_random_operators(self, function, operator: str, scope: str) -> None:
        with pytest.raises(RandomOperatorError, match=rf"draws random numbers \(aten\.{operator}"):
            ns.lipschitz(Function(function), torch.randn(2, 3), scope=scope)

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize(
        ("function", "operator"),
        [
            (torch.sign, "sign"),
            (lambda x: torch.where(x > 1, x, 2 * x), "gt"),
            (lambda x: x.argmax(1).to(x.dtype) + x[:, 0], "argmax"),
            (lambda x: x.gather(1, x.argsort(1)), "sort"),
        ],
        ids=["sign", "where", "argmax", "gather"],
    )
    def test_what_jumps_is_infinite_with_the_reason(self, function, operator: str) -> None:
        bracket = ns.lipschitz(Function(function), torch.randn(2, 3), max_seconds=0.2)
        assert bracket.upper == math.inf
        assert operator in bracket.reason
        assert "not continuous" in bracket.reason

    @pytest.mark.parametrize(
        ("batch", "words"),
        [
            (torch.randn(2, 5), r"mat1 and mat2.*shapes \[\(2, 5\)\]"),
            (torch.randn(0, 3), "empty tensor of shape"),
            (torch.tensor([[1.0, math.nan, 0.0]]), "the batch holds NaN"),
            ("text", "data is a str"),
            (None, "data is a NoneType"),
            ([], "yields no batch"),
        ],
        ids=["shape", "empty", "NaN", "text", "nothing", "no tensor"],
    )
    def test_a_batch_that_cannot_be_measured(self, batch, words: str) -> None:
        with pytest.raises(InputError, match=words) as caught:
            ns.lipschitz(nn.Linear(3, 2), batch)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("scope", ["global", "point"])
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_weights_that_are_no_numbers(self, value: float, scope: str) -> None:
        model = nn.Sequential(nn.Linear(3, 2))
        with torch.no_grad():
            model[0].weight[0, 0] = value
        with pytest.raises(InputError, match=r"'0\.weight' holds NaN or infinite"):
            ns.lipschitz(model, torch.randn(2, 3), scope=scope)


def test_spectral_norm_in_train_mode_is_the_model_as_found() -> None:
    model = nn.Sequential(spectral_norm(nn.Linear(6, 6), n_power_iterations=1))
    with torch.no_grad():
        model[0].parametrizations.weight.original.normal_()
    x = torch.randn(3, 6)
    graph = ns.capture(model.train(), x)
    with torch.no_grad():
        assert torch.allclose(graph.run(x), model(x), atol=1e-6)
