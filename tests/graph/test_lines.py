"""Errors name the user's own line of code, in plain words."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.errors import CaptureError

from ..soundness.networks import Function


def branch(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return 2 * x
    return x


def item(x: Tensor) -> Tensor:
    return x * (3.0 if x.max().item() == 1 else 1.0)


def called(x: Tensor) -> Tensor:
    return branch(x + 1)


BY_VALUE = {
    branch: "if x.sum() > 0:",
    item: "return x * (3.0 if x.max().item() == 1 else 1.0)",
    called: "if x.sum() > 0:",
}
JARGON = re.compile(r"\b(u0|zuf0|Eq\(|GuardOn|unhinted|SymNode|SymInt)")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("function", BY_VALUE)
def test_a_choice_by_values_names_the_line(function, capfd):
    with pytest.raises(CaptureError) as caught:
        ns.capture(Function(function).eval(), torch.randn(2, 3))
    text = str(caught.value)
    assert f"`{BY_VALUE[function]}` at " in text
    assert re.search(r"test_lines\.py:\d+", text)
    assert "torch.where" in text
    assert not JARGON.search(text)
    assert capfd.readouterr().err == ""


class Masked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x[:, 0] > 0] * 2


class Number(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.sum().item()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Masked, "how many entries"),
        (Number, "taken out as a number"),
    ],
)
def test_shapes_and_numbers_by_values_name_the_line(kind, words):
    with pytest.raises(CaptureError, match=words) as caught:
        ns.capture(kind().eval(), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    line = kind.forward.__code__.co_firstlineno + 1
    assert f"test_lines.py:{line}" in str(caught.value)
    assert not JARGON.search(str(caught.value))
