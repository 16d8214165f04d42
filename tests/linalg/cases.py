"""Random convolution layers and the dense oracle: torch's own layer applied to every basis vector, then an SVD."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

_PLAIN = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@dataclass(frozen=True)
class Case:
    """A layer and the shape of its input."""

    layer: nn.Module
    shape: tuple[int, ...]


def dense(layer: nn.Module, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the matrix of a layer without bias: its output for every basis vector, in float64."""
    size = int(np.prod(shape))
    with torch.no_grad():
        twin = layer.double()
        return twin(torch.eye(size, dtype=torch.float64).reshape(size, *shape)).reshape(size, -1).T


def sigma(matrix: torch.Tensor) -> float:
    """Return the largest singular value by LAPACK."""
    return float(np.linalg.norm(matrix.numpy(), 2)) if matrix.numel() else 0.0


@functools.cache
def matrices() -> dict[str, torch.Tensor]:
    """Matrices that are hard to take the norm of; those of 100 rows are large enough for sums in float32."""
    generator = torch.Generator().manual_seed(0)
    m, n = 100, 200

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    left, right = torch.linalg.qr(random(m, m))[0], torch.linalg.qr(random(n, n))[0][:m]

    def with_values(values: torch.Tensor) -> torch.Tensor:
        return left @ (values.double()[:, None] * right)

    one_large, one_alone = random(m, n), torch.zeros(m, n, dtype=torch.float64)
    one_large[3, 5], one_alone[3, 5] = 1e25, 0.3
    return {
        "random": random(m, n),
        "tall": random(300, 20),
        "row": random(1, 9),
        "column": random(9, 1),
        "one entry": random(1, 1),
        "large": random(300, 300),
        "rank 1": random(m, 1) @ random(1, n),
        "rank deficient": random(90, 3) @ random(3, 80),
        "constant": torch.full((m, n), 0.1, dtype=torch.float64),
        "alternating": torch.full((m, n), 0.1, dtype=torch.float64) * (-1.0) ** torch.arange(n),
        "equal values": with_values(torch.ones(m)),
        "nearly equal values": with_values(1.0 - 1e-9 * torch.arange(m, dtype=torch.float64)),
        "two close": with_values(torch.tensor([1.0, 1.0 - 1e-13, *[0.5] * (m - 2)], dtype=torch.float64)),
        "ill-conditioned": with_values(10.0 ** torch.linspace(0.0, -30.0, m, dtype=torch.float64)),
        "rows of all sizes": random(m, n) * 10.0 ** torch.linspace(-30.0, 30.0, m, dtype=torch.float64)[:, None],
        "columns of all sizes": random(m, n) * 10.0 ** torch.linspace(-30.0, 30.0, n, dtype=torch.float64),
        "one large entry": one_large,
        "one entry alone": one_alone,
        "triangular ones": torch.ones(64, 64, dtype=torch.float64).tril(),
        "hilbert": 1.0 / (torch.arange(m)[:, None] + torch.arange(1, n + 1)).double(),
    }


def random_case(seed: int, entries: int = 700) -> Case:
    """Draw a convolution of any kind whose input and output have at most `entries` entries."""
    draw = random.Random(seed)
    while True:
        case = _draw(draw, seed, entries)
        if case is not None:
            return case


def _draw(draw: random.Random, seed: int, entries: int) -> Case | None:
    dims = draw.choice([1, 1, 2, 2, 2, 3])
    transposed = draw.random() < 0.25
    groups = draw.choice([1, 1, 1, 2, 3])
    channels_in, channels_out = groups * draw.randint(1, 4), groups * draw.randint(1, 4)
    widest = {1: 9, 2: 5, 3: 3}[dims]
    kernel = [draw.randint(1, widest) for _ in range(dims)]
    stride = [draw.choice([1, 1, 2, 3, 4]) for _ in range(dims)]
    dilation = [draw.choice([1, 1, 1, 2, 3]) for _ in range(dims)]
    largest = {1: 24, 2: 11, 3: 5}[dims]
    spatial = [draw.randint(1, largest) for _ in range(dims)]
    mode = "zeros" if transposed else draw.choice(["zeros", "zeros", "zeros", "circular", "reflect", "replicate"])
    padding: str | list[int] = [draw.randint(0, draw.choice([2, widest + 2])) for _ in range(dims)]
    if not transposed and draw.random() < 0.2:
        padding = draw.choice(["same", "valid"])
        stride = [1] * dims if padding == "same" else stride
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": False}
    if transposed:
        options["output_padding"] = [draw.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True)]
    else:
        options["padding_mode"] = mode
    try:
        layer = (_TRANSPOSED if transposed else _PLAIN)[dims](channels_in, channels_out, kernel, **options)
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(layer.weight.shape, generator=generator)
        if draw.random() < 0.3:  # smooth kernels peak at the frequency zero, where tori differ most
            weight = weight.mean(dim=tuple(range(2, weight.ndim)), keepdim=True) + 0.2 * weight
        layer.weight.data = weight
        with torch.no_grad():
            out = layer(torch.zeros(1, channels_in, *spatial))
    except (RuntimeError, ValueError):
        return None
    if out.numel() == 0 or max(out.numel(), channels_in * int(np.prod(spatial))) > entries:
        return None
    return Case(layer, (channels_in, *spatial))
