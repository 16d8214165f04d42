"""What a layer reads: norm(H) is the norm of the map from the weight to the output, for every geometry."""

import math
import random

import pytest
import torch
from torch.nn import functional as F

from normscope.bounds.linalg import patches as room
from normscope.bounds.linalg.convolution_map import Convolution
from normscope.bounds.linalg.patches import Read, patches

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
BACK = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def drawn(seed):
    """A convolution of any geometry, its input, and the norm of the map from its weight, by a dense Jacobian."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    while True:
        dims, groups, turned = draw.choice([1, 2, 2, 3]), draw.choice([1, 1, 2]), draw.random() < 0.5
        kernel, size = ([draw.randint(1, 3) for _ in range(dims)] for _ in range(2))
        size = [s + 2 for s in size]
        stride, dilation = ([draw.randint(1, 2) for _ in range(dims)] for _ in range(2))
        padding = [draw.randint(0, 2) for _ in range(dims)]
        extra = [draw.randint(0, max(s, d) - 1) if turned else 0 for s, d in zip(stride, dilation)]
        inner, outer = groups * draw.randint(1, 2), groups * draw.randint(1, 2)
        shape = (inner, outer // groups, *kernel) if turned else (outer, inner // groups, *kernel)
        weight = torch.randn(shape, generator=generator, dtype=torch.float64)
        x = torch.randn(2, inner, *size, generator=generator, dtype=torch.float64)

        def run(w, x=x, g=groups, s=stride, p=padding, d=dilation, e=extra, n=dims, t=turned):
            return BACK[n](x, w, None, s, p, e, g, d) if t else CONV[n](x, w, None, s, p, d, g)

        try:
            jacobian = torch.autograd.functional.jacobian(run, weight)
        except RuntimeError:  # a geometry that torch refuses
            continue
        conv = Convolution(
            weight, size, stride=stride, padding=padding, dilation=dilation, groups=groups, transposed=turned,
            output_padding=extra,
        )  # fmt: skip
        truth = float(torch.linalg.matrix_norm(jacobian.reshape(-1, weight.numel()), ord=2))
        return conv, x, truth


@pytest.mark.parametrize("seed", range(20))
def test_the_norm_is_that_of_the_map_from_the_weight(seed):
    conv, x, truth = drawn(seed)
    found = patches(conv, x).norm()
    assert found.log10 == pytest.approx(math.log10(truth), abs=1e-9)
    assert 10**found.log10 >= truth * (1 - 1e-13)
    assert found.evidence.name == "NUMERICAL"


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate"])
def test_other_paddings(mode):
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Conv2d(2, 4, 3, padding=(1, 2), padding_mode=mode, stride=2, groups=2, bias=False).double()
    x = torch.randn(3, 2, 5, 4, generator=generator, dtype=torch.float64)
    weight = layer.weight.detach()
    conv = Convolution(weight, (5, 4), stride=2, padding=(1, 2), groups=2, padding_mode=mode)
    run = lambda w: torch.func.functional_call(layer, {"weight": w}, (x,))  # noqa: E731
    jacobian = torch.autograd.functional.jacobian(run, weight).reshape(-1, weight.numel())
    truth = float(torch.linalg.matrix_norm(jacobian, ord=2))
    assert 10 ** patches(conv, x).norm().log10 == pytest.approx(truth, rel=1e-9)


def test_pieces_large_sides_and_several_uses_give_the_same(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 6, 6, generator=generator, dtype=torch.float64)
    conv = Convolution(torch.randn(4, 3, 3, 3, generator=generator), (6, 6), padding=1)
    whole = patches(conv, x).norm().log10
    halves = Read.together([patches(conv, x[:1]), patches(conv, x[1:])])
    assert halves.norm().log10 == pytest.approx(whole, abs=1e-12)
    monkeypatch.setattr(room, "PIECE", 500)
    assert len(list(patches(conv, x).pieces)) > 2
    assert patches(conv, x).norm().log10 == pytest.approx(whole, abs=1e-12)
    monkeypatch.setattr(room, "SIDE", 4)
    bounded = patches(conv, x).norm(rtol=1e-4)
    assert whole <= bounded.log10 <= whole + 1e-3
    assert bounded.evidence.name == "NUMERICAL"


@pytest.mark.parametrize("size", [0.0, 1e-200, 1.0, 1e200])
def test_no_size_overflows(size):
    found = Read.of(size * torch.eye(3, dtype=torch.float64)).norm().log10
    assert found == (-math.inf if size == 0 else pytest.approx(math.log10(size), abs=1e-9))
