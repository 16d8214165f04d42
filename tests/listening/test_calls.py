"""A call of a torch function, its arguments by name, and what counts as a weight layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope.listening.calls import FunctionCall


def call(func: Any, *args: Any, **kwargs: Any) -> FunctionCall:
    return FunctionCall(func.__name__.split(".")[0], func, args, kwargs)


X, W, B = torch.ones(2, 3), nn.Parameter(torch.ones(4, 3)), torch.ones(4)


@pytest.mark.parametrize(
    "made",
    [
        call(F.linear, X, W, B),
        call(F.linear, X, bias=B, weight=W),
        call(F.linear, input=X, weight=W, bias=B),
        call(torch.ops.aten.linear.default, X, W, B),
    ],
    ids=["positions", "mixed", "names", "operator"],
)
def test_arguments_go_by_name_however_they_are_given(made: FunctionCall) -> None:
    named = made.named()
    assert [named[key] is value for key, value in (("input", X), ("weight", W), ("bias", B))] == [True] * 3
    assert made.input is X
    assert made.weight_family == "linear"


@pytest.mark.parametrize(
    ("made", "family"),
    [
        (call(torch.matmul, X, W), "linear"),
        (call(torch.matmul, X, W.detach()), None),  # a product of two values is no layer
        (call(torch.Tensor.mm, X, W), "linear"),
        (call(torch.addmm, B, X, W), "linear"),
        (call(F.conv_transpose1d, X, W), "convolution"),
        (call(F.relu, X), None),
        (call(torch.matmul, X, other=W), None),
    ],
)
def test_what_is_a_weight_layer(made: FunctionCall, family: str | None) -> None:
    assert made.weight_family == family
