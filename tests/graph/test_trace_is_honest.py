"""A captured graph is the model: what it computes while nobody traces it, now, for every sample of its batch."""

from __future__ import annotations

import ctypes
import functools
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import normscope as ns
from normscope.core.errors import CaptureError

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


class Function(nn.Module):
    """A model that is one function of itself and its input."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.scale, self.factor, self.calls = 1.0, torch.ones(()), []
        self.activation = nn.LeakyReLU(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def is_traced(tensor: Tensor) -> bool:
    return type(tensor) is not Tensor


def raises(question: Callable[[Tensor], Any], x: Tensor) -> bool:
    try:
        question(x)
    except Exception:
        return True
    return False


QUESTIONS: dict[str, Callable[[Tensor], Any]] = {  # how a model can learn that it is traced
    "is_compiling": lambda x: torch.compiler.is_compiling(),
    "is_exporting": lambda x: torch.compiler.is_exporting(),
    "is_compiling of dynamo": lambda x: torch._dynamo.is_compiling(),
    "is_fx_tracing": lambda x: torch.fx._symbolic_trace.is_fx_tracing(),
    "the flag itself": lambda x: torch.compiler._is_compiling_flag is True,
    "through transformers": lambda x: pytest.importorskip("transformers").utils.is_torchdynamo_compiling(),
    "through a tensor and transformers": lambda x: pytest.importorskip("transformers").utils.is_tracing(x),
    "through torch": lambda x: torch.nn.modules.activation._is_make_fx_tracing(),
    "the gradients": lambda x: torch.is_grad_enabled(),
    "the calling functions": lambda x: any("torch/export" in frame.filename for frame in traceback.extract_stack()),
    "the modes": lambda x: "Proxy" in str(_get_current_dispatch_mode_stack()),
    "the class": is_traced,
    "the memory": functools.partial(raises, Tensor.data_ptr),
    "the array": functools.partial(raises, lambda x: x.detach().numpy().sum()),
    "the error for a value": functools.partial(raises, lambda x: bool(x.max() > 1e9)),
    "the error for a number": functools.partial(raises, lambda x: 1 / float(x.sum().item())),
}
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "everywhere": lambda x: 10 * x,
    "at rare inputs": lambda x: x + 9 * torch.relu(x - 50),
}


def refused_or_true(model: nn.Module, batch: Tensor, truth: float) -> None:
    """No upper side lies below the truth, whatever else is said."""
    try:
        bracket = ns.lipschitz(model, batch)
    except CaptureError:
        return
    assert bracket.upper >= truth * (1 - 1e-6)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_model_that_knows_of_the_trace_is_the_one_that_runs(question: str, change: str) -> None:
    def function(model: Any, x: Tensor) -> Tensor:
        return x * 1.0 if QUESTIONS[question](x) else CHANGES[change](x)

    refused_or_true(Function(function).eval(), X, 10.0)


def test_a_question_about_the_trace_is_answered_as_in_a_run() -> None:
    model = Function(lambda model, x: x * 1.0 if torch.compiler.is_compiling() else CHANGES["at rare inputs"](x))
    assert ns.lipschitz(model.eval(), X).upper == pytest.approx(10.0, rel=1e-4)


READS: dict[str, Callable[[Tensor], bool]] = {  # a value decides, and the error of the trace is caught
    "bool": lambda x: bool(x.abs().max() > 50),
    "item": lambda x: x.abs().max().item() > 50,
    "tolist": lambda x: max(map(max, x.tolist())) > 50,
    "numpy": lambda x: x.detach().numpy().max() > 50,
    "equal": lambda x: not torch.equal(x.clamp(-50, 50), x),
    "how many": lambda x: len((x.abs() > 50).nonzero()) > 0,
    "how many of a mask": lambda x: x[x.abs() > 50].numel() > 0,
    "how many of a sparse tensor": lambda x: (x * (x.abs() > 50)).to_sparse()._nnz() > 0,
    "where to split": lambda x: len(x.tensor_split((x[:, 0] > 50).long().sum().reshape(1))[0]) > 0,
    "text": lambda x: float(f"{x.abs().max():.3f}") > 50,
    "memory": lambda x: ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_float))[0] > 50,
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("asks", [False, True])
def test_a_choice_by_values_is_refused_also_where_it_is_hidden(read: str, asks: bool) -> None:
    def function(model: Any, x: Tensor) -> Tensor:
        try:
            large = not (asks and torch.compiler.is_compiling()) and READS[read](x)
        except Exception:
            large = False
        return 10 * x if large else x * 1.0

    with pytest.raises(CaptureError, match="reads the value of a tensor"):
        ns.lipschitz(Function(function).eval(), X)


def test_a_radius_of_a_hidden_choice_is_refused() -> None:
    def function(model: Any, x: Tensor) -> Tensor:
        try:
            return -x if bool(x[:, 0].abs().max() > 1.5) else x * 1.0
        except Exception:
            return x * 1.0

    with pytest.raises(CaptureError, match="reads the value of a tensor"):
        ns.certified_radius(Function(function).eval(), torch.tensor([[5.0, 0.0]]))


HARMLESS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a question that changes nothing": lambda model, x: x * 2.0 if torch.compiler.is_compiling() else 2.0 * x,
    "a value of no input": (
        lambda model, x: x * 2.0 if torch.compiler.is_compiling() or bool(torch.ones(3).sum() > 2) else x
    ),
    "written in part": lambda model, x: torch.zeros_like(x).copy_(x).index_copy(0, torch.arange(1), x[:1]) * 2.0,
    "memory that is not written at first": lambda model, x: torch.empty_like(x).copy_(x) * 2.0,
    "written in place": lambda model, x: x.clone().mul_(2.0),
    "a view written in place": lambda model, x: _double(x.clone()),
}  # fmt: skip


def _double(x: Tensor) -> Tensor:
    x[:, 0] *= 2.0
    x[:, 1:] += x[:, 1:].clone()
    return x


@pytest.mark.parametrize("name", HARMLESS)
def test_other_ways_to_write_a_function_are_captured(name: str) -> None:
    graph = ns.capture(Function(HARMLESS[name]).eval(), X)
    point = torch.randn(graph.input_shape)
    assert torch.equal(graph.run(point), 2 * point)


def test_what_an_operator_checks_of_its_own_operands_is_not_shown() -> None:
    model = Function(lambda model, x: F.one_hot(x.argmax(1), 3) * x)
    assert any("one_hot" in str(node.op) for node in ns.capture(model.eval(), X))


def test_a_size_that_an_operator_takes_from_values_is_shown() -> None:
    def function(model: Any, x: Tensor) -> Tensor:
        try:
            return 10 * x if F.one_hot((x.amax(1) > 50).long()).shape[1] > 1 else x * 1.0
        except Exception:
            return x * 1.0

    with pytest.raises(CaptureError):
        ns.lipschitz(Function(function).eval(), X)


def _hook(model: Any) -> None:
    model.activation.register_forward_hook(lambda module, given, made: 10 * made)


def _class_hook(model: Any) -> None:
    model.activation.forward = lambda x: 10 * x


CHANGED: dict[str, tuple[Callable[[Any, Tensor], Tensor], Callable[[Any], Any]]] = {
    "a number": (lambda model, x: model.scale * x, lambda model: setattr(model, "scale", 10.0)),
    "a tensor bound anew": (
        lambda model, x: model.factor * x, lambda model: setattr(model, "factor", torch.tensor(10.0))
    ),
    "a tensor written": (lambda model, x: model.factor * x, lambda model: model.factor.fill_(10.0)),
    "a slope that no value of the batch shows": (
        lambda model, x: model.activation(x), lambda model: setattr(model.activation, "negative_slope", 10.0)
    ),
    "a hook": (lambda model, x: model.activation(x), _hook),
    "a method": (lambda model, x: model.activation(x), _class_hook),
    "a function": (lambda model, x: x * 1.0, lambda model: setattr(model, "function", lambda model, x: 10 * x)),
    "a choice by values": (
        lambda model, x: x * 1.0,
        lambda model: setattr(model, "function", lambda model, x: 10 * x if bool(x.max() > 50) else x * 1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGED)
def test_a_graph_of_a_model_that_has_changed_is_captured_anew(change: str) -> None:
    function, act = CHANGED[change]
    model = Function(function).eval()
    graph = ns.capture(model, X.abs())
    act(model)
    refused_or_true(graph, X.abs(), 10.0)


COUNTED: dict[str, Callable[[Tensor], Tensor]] = {  # the size of the batch as a number
    "a branch": lambda x: x + 9 * torch.relu(x - 50) if len(x) > 1 else x * 1.0,
    "a slope at rare inputs": lambda x: x + 3 * (len(x) - 1) * torch.relu(x - 50),
    "a factor": lambda x: x * (1 + 1e-5 * len(x)),
    "a factor in a tensor": lambda x: x * torch.full((3,), 1 + 1e-5 * len(x)),
    "a factor of each row": lambda x: x * torch.full((len(x), 1), 1 + 1e-5 * len(x)),
    "a power": lambda x: x * (x.abs() + 1) ** (1e-6 * (len(x) - 1)),
    "a shift along another axis": lambda x: x + 9 * torch.relu(x.roll(len(x) // 2, 1) - 50),
    "an end": lambda x: x + 9 * torch.relu(x[:, : len(x)].sum(1, keepdim=True) - 50),
    "a choice of entries": lambda x: x + 9 * torch.relu(x[:, torch.tensor([0, 1, (len(x) > 1) + 1])] - 50),
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_function_of_the_size_of_the_batch_is_measured_on_the_batch(name: str) -> None:
    graph = ns.capture(Function(lambda model, x: COUNTED[name](x)).eval(), X)
    assert not graph.per_sample
    assert "the whole batch is measured as one input" in graph.notes[-1]


SIZES: dict[str, Callable[[Tensor], Tensor]] = {  # the size of the batch as a size
    "views": lambda x: x.view(len(x) * 3, 1).view(len(x), 3) * 2,
    "expanded": lambda x: x[:, None].expand(len(x), 4, 3).sum(1),
    "rows by number": lambda x: x[:, None].expand(-1, 2, -1)[torch.arange(len(x)), torch.ones(len(x)).long()],
    "ones for each row": lambda x: x + torch.ones(len(x), 3),
    "a token for each row": lambda x: torch.cat([torch.ones(1, 1).expand(len(x), 1), x], 1),
    "sequence first": lambda x: x[:, None].transpose(0, 1).reshape(1, len(x), 3).transpose(0, 1),
    "row by row": lambda x: torch.stack([2 * row for row in x]),
    "a shift by as many places as there are": lambda x: x + x.roll(3 * len(x), 1),
    "its own zeros": lambda x: torch.cat([x, x.new_zeros(len(x), 1)], 1),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_is_no_number_of_the_function_leaves_samples_apart(name: str) -> None:
    assert ns.capture(Function(lambda model, x: SIZES[name](x)).eval(), X).per_sample


def test_a_model_that_keeps_a_value_of_its_run_is_captured() -> None:
    def keep(model: Any, x: Tensor) -> Tensor:
        model.features = model.activation(x)
        return 2 * model.features

    model = Function(keep).eval()
    assert ns.capture(model, X).per_sample
    assert not hasattr(model, "features")


def test_a_hook_on_the_way_back_makes_no_other_function() -> None:
    """Torch passes the values of a hooked layer through a view, which writes the stride of a single row anew."""
    model = Function(lambda m, x: m.head(m.body(x)[:, 0]))
    model.body, model.head = nn.Linear(3, 3), nn.Linear(3, 2)
    model.head.register_full_backward_hook(lambda module, received, passed: None)
    graph = ns.capture(model.eval(), torch.randn(4, 5, 3))
    assert graph.per_sample
