r"""Names that hold control characters are written out (`\x1b`) wherever Python prints a result or an error."""

from __future__ import annotations

import pickle
import unicodedata
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.finding import Finding, Severity

ESCAPES = "\x1b[31m\x07\u202e"
"""A colour, a bell, a turn of the direction of writing."""
NAME = f"größe{ESCAPES}層"
SHOWN = r"größe\x1b[31m\x07\u202e層"


class Bessel(nn.Module):
    """A module without a rule."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)


def hostile(layer: nn.Module) -> nn.Module:
    """Return a model whose class and whose only module have names with control characters."""
    model = type(NAME, (nn.Sequential,), {})()
    model.add_module(NAME, layer)
    return model.eval()


def assert_harmless(text: str) -> None:
    """Assert that a name is there, with its letters as they are and its control characters written out."""
    assert SHOWN in text
    assert all(letter == "\n" or unicodedata.category(letter) not in ("Cc", "Cf", "Zl") for letter in text)


@pytest.mark.slow
def test_results_write_control_characters_out(tmp_path: Path) -> None:
    model, x, labels = hostile(nn.Linear(4, 3)), torch.randn(6, 4), torch.arange(6) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ns.watch(model, optimizer, log=tmp_path / NAME, panel=False):
        pass
    assert_harmless(str(ns.capture(model, x)))
    assert_harmless(repr(ns.check(model, x)))
    assert_harmless(repr(ns.audit(model, x)))
    assert_harmless(repr(ns.certified_radius(model, x, labels=labels)))
    assert_harmless(repr(ns.hessian(model, [(x, labels)], loss=nn.functional.cross_entropy, k=1)))
    assert_harmless(repr(ns.Run(tmp_path / NAME)))


def test_reasons_and_findings_write_control_characters_out() -> None:
    model, x = hostile(Bessel()), torch.randn(6, 4)
    assert_harmless(str(ns.lipschitz(model, x, on_missing="inf")))
    assert_harmless(str(ns.ladder(model, x, on_missing="inf")))
    words = {"seen": "", "why": "", "advice": ""}
    assert_harmless(str(Finding(code="dead-layer", severity=Severity.INFO, where=NAME, **words)))


def test_errors_write_control_characters_out() -> None:
    x = torch.randn(6, 4)

    class Raising(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError(NAME)

    with pytest.raises(ns.NormscopeError) as missing:
        ns.lipschitz(hostile(Bessel()), x)
    with pytest.raises(ns.NormscopeError) as raised:
        ns.lipschitz(Raising(), x)
    for error in (missing.value, raised.value):
        assert_harmless(str(error))
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
