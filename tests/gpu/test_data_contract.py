"""Data on the CPU are moved to the device of the model by every function."""

from __future__ import annotations

import pytest

from ..core.test_data_contract import ALL, KINDS, make_model, make_tensors

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["tuple", "dict", "NumPy pair", "DataLoader", "data set of dicts"])
@pytest.mark.parametrize("function", sorted(ALL))
def test_data_on_the_cpu_come_to_the_model_on_the_gpu(function: str, kind: str) -> None:
    model = make_model().cuda()
    assert ALL[function](model, KINDS[kind](*make_tensors())) is not None
    assert all(parameter.is_cuda for parameter in model.parameters())
