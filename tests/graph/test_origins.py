"""Every constant of a traced function is found, of every type, with the operators that read it."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope.bounds.graph.capturing import capture, capture_weights
from normscope.bounds.graph.ir import Argument

NUMBER = Argument.NUMBER
OUTSIDE = torch.tensor([3, 1, 2])


class Written(nn.Module):
    def __init__(self, forward, **buffers):
        super().__init__()
        self.weight, self.written = nn.Parameter(torch.ones(3)), forward
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=name != "temporary")

    def forward(self, x):
        return self.written(self, x)


def graph(forward, **buffers):
    return capture(Written(forward, **buffers).eval(), torch.randn(4, 3))


def tensors(found):
    return {(one.name, one.kind): one.value for one in found.constants if one.kind not in ("number", "choice")}


def numbers(found):
    return [(one.name.removeprefix("aten."), one.value) for one in found.constants if one.kind == "number"]


class TestTensors:
    @pytest.mark.one_in(2)
    @pytest.mark.parametrize(
        "value",
        [
            torch.arange(3),
            torch.tensor([True, False, True]),
            torch.randn(3, dtype=torch.complex64),
        ],
        ids=lambda value: str(value.dtype),
    )
    @pytest.mark.parametrize("name", ["kept", "temporary"])
    def test_buffers_of_every_type(self, name, value):
        found = graph(
            lambda s, x: x + getattr(s, name).abs() if value.dtype is not torch.bool else x * s.get_buffer(name),
            **{name: value},
        )
        assert torch.equal(tensors(found)[name, "buffer"], value)

    def test_what_is_held_outside_of_the_model(self):
        array, listed = np.array([4, 5, 6]), [torch.ones(3), nn.Parameter(torch.zeros(3))]

        def forward(s, x):
            return x + OUTSIDE + torch.from_numpy(array) + listed[0] + listed[1] + torch.tensor([7.0, 8.0, 9.0])

        held = [value.tolist() for (_, kind), value in tensors(graph(forward)).items() if kind == "tensor"]
        assert sorted(held) == sorted([[3, 1, 2], [4, 5, 6], [1.0] * 3, [0.0] * 3, [7.0, 8.0, 9.0]])

    def test_constants_that_were_computed_lead_back_to_what_they_were_computed_from(self):
        found = graph(lambda s, x: x * (s.weight + s.kept * 2), kept=torch.arange(3))
        (read,) = (one for one in found.reads if one.entries == 3)
        names = {found.constants[place].name for place in read.origins}
        assert names == {"weight", "kept", "aten.mul.Tensor:other", "aten.add.Tensor"}
        assert read.real
        assert read.node == found.nodes[-1].name


class TestNumbers:
    @pytest.mark.one_in(2)
    @pytest.mark.parametrize(
        ("forward", "expected"),
        [
            (lambda x: x * 0.25 + 3, [("mul.Tensor:other", 0.25), ("add.Tensor:other", 3)]),
            (lambda x: torch.where(x > 0.5, x, -2.0), [("gt.Scalar:other", 0.5), ("where.ScalarOther:other", -2.0)]),
            (lambda x: x + torch.full((3,), 1.5), [("full.default:size", 3), ("full.default:fill_value", 1.5)]),
            (lambda x: x[:, 1:2], [("slice.Tensor:start", 1), ("slice.Tensor:end", 2)]),
            (lambda x: x + torch.arange(3) * 0.5, [("arange.default:end", 3), ("mul.Tensor:other", 0.5)]),
            (lambda x: sum(x.unbind(1)[1:])[:, None], [("<built-in function getitem>:1", 2)]),
        ],
    )
    def test_every_number_of_an_argument_is_found(self, forward, expected):
        found = numbers(graph(lambda s, x: forward(x)))
        assert set(expected) <= set(found)

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize(
        ("forward", "expected"),
        [
            (lambda x: torch.relu(x), []),
            (lambda x: F.linear(x, torch.ones(3, 3)), [("ones.default", ((NUMBER, NUMBER), ...))]),
            (lambda x: x + x, [("add.Tensor", ())]),
            (lambda x: x.sum(1, keepdim=True), [("sum.dim_IntList", ((NUMBER,), True))]),
            (lambda x: x.clamp(max=2.0), [("clamp.default", (None, NUMBER))]),
            (lambda x: x.to(torch.float64), [("to.dtype", (torch.float64,))]),
            (lambda x: F.gelu(x, approximate="tanh"), [("gelu.default", ("tanh",))]),
        ],
    )
    def test_so_is_what_the_arguments_are_besides(self, forward, expected):
        found = graph(lambda s, x: forward(x)).constants
        choices = [(one.name.removeprefix("aten."), one.value) for one in found if one.kind == "choice"]
        assert [name for name, _ in choices] == [name for name, _ in expected]
        for (_, value), (_, parts) in zip(choices, expected):
            assert parts[-1:] == (...,) or value == parts


class TestWeights:
    def test_the_graph_is_a_function_of_its_weights(self):
        torch.manual_seed(0)
        shared = nn.Linear(3, 3)
        model = nn.Sequential(shared, nn.ReLU(), shared, nn.BatchNorm1d(3), nn.Linear(3, 2)).eval()
        x = torch.randn(4, 3)
        found = capture_weights(model, x)
        named = dict(model.named_parameters(remove_duplicate=False))
        moved = {id(one): torch.randn_like(one) for one in named.values()}
        values = [moved[id(named[item.path])] for item in found.inputs[:-1]]
        state = {name: moved[id(one)] for name, one in model.named_parameters()}
        expected = torch.func.functional_call(model, state, (x[:1],))
        assert torch.allclose(found.run(*values, x[:1]), expected, atol=1e-6)
        assert {name for name, _ in tensors(found)} == {"3.running_mean", "3.running_var"}


def test_a_number_that_is_computed_in_python_is_found():
    assert ("mul.Tensor:other", math.sqrt(2)) in numbers(graph(lambda s, x: x * math.sqrt(len(s.weight) - 1)))


def test_samples_that_meet_are_refused():
    with pytest.raises(Exception, match="samples of a batch meet"):
        capture_weights(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)), torch.randn(4, 3))
