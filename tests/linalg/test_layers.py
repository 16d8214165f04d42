"""The front door: which inputs are taken, what is said about the others, and that nothing is changed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from normscope.bounds.linalg.layer_norms import spectral_norm
from normscope.core.errors import InputError


def test_parametrizations_are_honoured() -> None:
    torch.manual_seed(0)
    layer = parametrizations.weight_norm(nn.Conv2d(3, 4, 3, padding=1, bias=False))
    assert spectral_norm(layer, (3, 6, 6)).gap <= 1e-6
    plain = nn.Conv2d(3, 4, 3, padding=1, bias=False)
    plain.weight.data = layer.weight.detach()
    assert spectral_norm(layer, (3, 6, 6)).upper == spectral_norm(plain, (3, 6, 6)).upper
    linear = parametrizations.spectral_norm(nn.Linear(5, 5), n_power_iterations=50).eval()
    assert spectral_norm(linear).upper == pytest.approx(1.0, abs=1e-3)
    orthogonal = parametrizations.orthogonal(nn.Linear(6, 6))
    assert spectral_norm(orthogonal).upper == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("x", "shape", "words"),
    [
        (torch.ones(2, 3, 3, 3), None, "pass the convolution layer"),
        (torch.ones(3), None, "no matrix"),
        (torch.ones(2, 2, dtype=torch.int64), None, "floating-point"),
        (torch.ones(2, 2, dtype=torch.complex64), None, "complex"),
        (torch.tensor([[1.0, float("nan")]]), None, "1 NaN or infinite"),
        (torch.ones(2, 2, device="meta"), None, "meta"),
        (torch.ones(2, 2), (3,), "does not fit"),
        (nn.Linear(3, 2), (4,), "features"),
        (nn.Conv2d(3, 2, 3), None, r"input_shape=\(3, H, W\)"),
        (nn.Conv1d(3, 2, 3), None, r"input_shape=\(3, L\)"),
        (nn.Conv2d(3, 2, 3), (3, 8), "does not fit"),
        (nn.Conv2d(3, 2, 3), (4, 8, 8), "does not fit"),
        (nn.Conv2d(3, 2, 3), (3, 2, 2), "does not fit"),
        (nn.ReLU(), (3,), "ReLU"),
        ("model", None, "str"),
    ],
)
def test_bad_input_gets_one_clear_sentence(x, shape, words: str) -> None:
    with pytest.raises(InputError, match=words) as raised:
        spectral_norm(x, shape)
    assert "\n" not in str(raised.value)


def test_train_mode_buffers_of_a_parametrization_are_left_alone() -> None:
    """Reading the weight of a spectral_norm layer in train mode runs its power iteration: it must be undone."""
    torch.manual_seed(0)
    layer = parametrizations.spectral_norm(nn.Linear(8, 8)).train()
    before = copy.deepcopy(layer.state_dict())
    spectral_norm(layer)
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), name
