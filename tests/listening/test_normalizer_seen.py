"""What a call of a normalizer shows, against plain formulas, fast and exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.listening.calls import FunctionCall, NormalizerSeen, normalizer_seen, rows_seen

GAMMA = torch.tensor([1.0, -2.0, 0.5, 3.0])
MEAN, VARIANCE = torch.arange(4.0), torch.arange(4.0) + 0.5


def seen_of(func: Any, *args: Any, exact: bool = False, **kwargs: Any) -> NormalizerSeen:
    with torch.no_grad():
        return normalizer_seen(FunctionCall(func.__name__, func, args, kwargs), exact=exact)


def images() -> Tensor:
    return (
        torch.randn(6, 4, 3, 5, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1.0, 3.0, 0.1, 7.0])[:, None, None]
    )


CASES = {
    "batch": (F.batch_norm, (MEAN, VARIANCE, GAMMA, None, True), (0, 2, 3), (1, 4), 90, 1, True),
    "batch, stored": (F.batch_norm, (MEAN, VARIANCE, GAMMA), (0, 2, 3), (1, 4), 90, 1, True),
    "instance": (F.instance_norm, (MEAN, VARIANCE, GAMMA), (2, 3), (6, 4), 15, 4, False),
    "instance, stored": (F.instance_norm, (MEAN, VARIANCE, GAMMA, None, False), (0, 2, 3), (1, 4), 90, 1, True),
    "group": (F.group_norm, (4, GAMMA), (2, 3), (6, 4), 15, 4, False),
    "layer": (F.layer_norm, ((4, 3, 5),), (1, 2, 3), (6, 1), 60, 1, False),
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_variances_of_the_sets(case: tuple[Any, ...], exact: bool) -> None:
    func, args, dims, shape, entries, groups, by_channel = case
    x = images()
    seen = seen_of(func, x, *args, exact=exact)
    variance = x.double().var(dims, correction=0).reshape(shape)
    assert (seen.family, seen.entries, seen.samples, seen.groups) == (func.__name__, entries, 6, groups)
    assert seen.by_channel is by_channel
    assert (seen.running_variance is not None) is by_channel
    assert seen.variance.dtype == (torch.float64 if exact else torch.float32)
    torch.testing.assert_close(seen.variance.double(), variance, rtol=1e-13 if exact else 1e-5, atol=0.0)
    assert (seen.mean is not None) is (exact and by_channel)
    if seen.mean is not None:
        torch.testing.assert_close(seen.mean, x.double().mean(dims), rtol=1e-12, atol=1e-14)
    divisor = VARIANCE[None] if seen.stored else seen.variance
    assert torch.equal(seen.divisor, divisor)
    assert seen.free == (2 if seen.stored else entries - 1)


@pytest.mark.parametrize("exact", [False, True])
def test_rms_norm_is_not_centred_and_has_the_epsilon_of_its_precision(exact: bool) -> None:
    x = images().flatten(1).half()
    seen = seen_of(F.rms_norm, x, (60,), exact=exact)
    torch.testing.assert_close(seen.variance[:, 0].double(), x.double().square().mean(1), rtol=1e-6, atol=0.0)
    assert seen.eps == torch.finfo(torch.float32).eps
    assert not seen.centred
    assert seen.free == 60


def test_a_constant_far_from_zero_has_no_variance_to_speak_of() -> None:
    """One pass over squares would leave the rounding of 1e8 behind."""
    x = torch.full((5, 7), 1e4) + torch.arange(7.0) * 1e-2
    for exact in (False, True):
        found = rows_seen("layer_norm", x, sets=5, eps=1e-5, exact=exact).variance
        torch.testing.assert_close(found.double(), x.double().var(1, correction=0)[:, None], rtol=1e-3, atol=0.0)
