"""What a call of a weight layer shows: its weight, along which dimensions its channels lie, and its linear map."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.listening.calls import FunctionCall, WeightSeen, weight_seen


def seen_of(func: Any, *args: Any, **kwargs: Any) -> WeightSeen:
    return weight_seen(FunctionCall(func.__name__, func, args, kwargs), func(*args, **kwargs))


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES = {
    "linear": (F.linear, drawn(2, 5), drawn(4, 5), {"bias": drawn(4)}, 0, 1),
    "tokens": (F.linear, drawn(2, 3, 5), drawn(4, 5), {}, 0, 2),
    "product": (torch.matmul, drawn(2, 5), nn.Parameter(drawn(5, 4)), {}, 1, 1),
    "convolution": (F.conv2d, drawn(2, 4, 6, 5), drawn(6, 2, 3, 3), {"stride": 2, "padding": 1, "groups": 2}, 0, 1),
    "one image": (F.conv2d, drawn(4, 6, 5), drawn(6, 4, 3, 3), {"dilation": (1, 2)}, 0, 0),
    "padding in words": (F.conv1d, drawn(2, 4, 7), drawn(6, 4, 3), {"padding": "same"}, 0, 1),
    "transposed": (F.conv_transpose2d, drawn(2, 4, 5, 5), drawn(4, 3, 3, 3), {"stride": 2}, 1, 1),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_geometry_is_the_map_that_ran(case: tuple[Any, ...]) -> None:
    func, x, weight, options, axis, channels = case
    seen = seen_of(func, x, weight, **options)
    assert (seen.weight is weight, seen.input is x, seen.axis, seen.channels) == (True, True, axis, channels)
    assert weight.shape[seen.axis] == seen.output.shape[seen.channels]
    geometry = seen.geometry()
    batch = x.unsqueeze(0) if x.ndim < weight.ndim else x.flatten(0, -2) if weight.ndim == 2 else x
    bare = {key: value for key, value in options.items() if key != "bias"}
    expected = func(batch, weight, **bare)
    with torch.no_grad():
        image = geometry.image(batch, weight)
        torch.testing.assert_close(image, expected)
        assert geometry.shape == (1, *batch.shape[1:])
        assert geometry.channels == image.shape[1]
        other = drawn(*image.shape)
        forth, back = (image * other).sum(), (batch * geometry.back(other, weight)).sum()
    torch.testing.assert_close(forth, back, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("named", [False, True])
def test_a_sum_with_a_product_has_its_weight_last(named: bool) -> None:
    """The weight of GPT-2's layers is `[inputs, outputs]`: its output channels are columns."""
    bias, x, weight = drawn(4), drawn(2, 5), drawn(5, 4)
    made = torch.addmm(bias, x, weight)
    args, kwargs = ((), {"input": bias, "mat1": x, "mat2": weight}) if named else ((bias, x, weight), {})
    seen = weight_seen(FunctionCall("addmm", torch.addmm, args, kwargs), made)
    assert [t is u for t, u in zip(seen.tensors, (weight, bias), strict=True)] == [True, True]
    assert (seen.input is x, seen.axis, seen.channels, seen.geometry().kind) == (True, 1, 1, "matrix")
    torch.testing.assert_close(seen.geometry().image(x, weight) + bias, made)
