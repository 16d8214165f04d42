"""Convolutions whose channels were scaled: the certificate of the unscaled one serves where all factors are alike."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.core.bracket import Evidence
from normscope.core.errors import InputError
from normscope.linalg import conv_norm, operator_norms
from normscope.linalg.convolution_map import Convolution
from normscope.linalg.folding import compose
from normscope.linalg.linear_map import Diagonal
from normscope.linalg.operator_norms import bracket, upper


class CountedNorm(conv_norm.ConvolutionNorm):
    """Counts how many convolutions were certified."""

    count = 0

    def __init__(self, *args, **options):
        type(self).count += 1
        super().__init__(*args, **options)


@pytest.mark.parametrize(
    ("factors", "transposed", "taken"),
    [
        ([0.5] * 6, False, 0),
        ([-3.0, 3.0] * 3, False, 0),
        ([2.0, 2.001] * 3, False, 0),
        ([0.25] * 6, True, 0),
        ([0.0] * 6, False, 0),
        ([2.0, 2.1] * 3, False, 1),
        ([1.0, 0.0] * 3, False, 1),
        ([1.0, -1.5] * 3, True, 1),
    ],
)
def test_a_convolution_whose_channels_are_scaled_alike_needs_no_second_certificate(
    monkeypatch, factors, transposed, taken
):
    torch.manual_seed(0)
    conv = Convolution(torch.randn(6, 6, 3, 3), (9, 9), padding=1, transposed=transposed)
    folded = compose(Diagonal(torch.tensor(factors)[:, None, None], (6, 9, 9)), conv)
    bracket(conv, rtol=1e-2)
    CountedNorm.count = 0
    monkeypatch.setattr(operator_norms, "ConvolutionNorm", CountedNorm)
    found = bracket(folded, rtol=1e-2)
    truth = float(torch.linalg.matrix_norm(folded.dense(), 2))
    assert CountedNorm.count == taken
    assert found.lower <= truth * (1 + 1e-12)
    assert truth <= found.upper <= truth * 1.02
    assert found.evidence == Evidence.PROVEN


def test_a_scaled_convolution_is_certified_itself_where_the_unscaled_one_is_not_known():
    torch.manual_seed(0)
    conv = Convolution(torch.randn(6, 6, 3, 3), (9, 9), padding=1)
    folded = compose(Diagonal(torch.full((6, 1, 1), 0.5), (6, 9, 9)), conv)
    assert upper(folded, rtol=1e-2).log10 >= math.log10(float(torch.linalg.matrix_norm(folded.dense(), 2)))
    assert not operator_norms.remembered(conv, 1.0)
    upper(conv, rtol=1e-1)
    again = compose(Diagonal(torch.full((6, 1, 1), 0.5), (6, 9, 9)), conv)
    upper(again, rtol=1e-3)  # the bound that is known is too loose for that
    assert not operator_norms.remembered(conv, 1e-2)
    assert operator_norms.remembered(again, 1e-3)


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_factors_that_are_no_numbers_are_refused(factor):
    conv = Convolution(torch.ones(2, 2, 3, 3), (5, 5), padding=1)
    upper(conv)
    with pytest.raises(InputError, match="NaN or infinite"):
        upper(compose(Diagonal(torch.full((2, 1, 1), factor), (2, 5, 5)), conv))
