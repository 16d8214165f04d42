"""Norms of convolutions: our bracket beside what is commonly computed, with its error and its time.

    python benchmarks/conv_norms.py --device cuda --threads 2

- *power 100*: 100 steps of power iteration with the layer and its transpose: a lower bound.
- *FFT + SVD*: singular values of the FFT of the kernel at the input size, which treats padding as circular and, for
  strides, takes the aliases side by side (Sedghi et al. 2019): exact for circular padding, no bound for zero padding.
- *Gram 6*: six Gram iterations on the same FFT (Delattre et al. 2023): from above the circular value.
- *reshaped*: the norm of the kernel as a matrix `[C_out, C_in k k]`, what `torch.nn.utils.spectral_norm` divides by.

The errors are against our bracket: 0 if inside it, else the relative distance to its nearer side, with the side.
Times are processor times of all threads on a CPU, so that they may be compared on a machine that others use too.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from machine import header
from torch import Tensor, nn

from normscope.bounds.linalg.layer_norms import linear_map, spectral_norm
from normscope.core.bracket import Bracket

CASES: list[tuple[str, Callable[[], nn.Conv2d], tuple[int, ...]]] = [
    ("64->64 3x3 at 32x32", lambda: nn.Conv2d(64, 64, 3, padding=1), (64, 32, 32)),
    ("64->64 3x3 at 56x56", lambda: nn.Conv2d(64, 64, 3, padding=1), (64, 56, 56)),
    ("128->128 3x3 /2 at 56x56", lambda: nn.Conv2d(128, 128, 3, padding=1, stride=2), (128, 56, 56)),
    ("32->32 3x3 at 8x8", lambda: nn.Conv2d(32, 32, 3, padding=1), (32, 8, 8)),
    ("64->64 3x3 at 16x16", lambda: nn.Conv2d(64, 64, 3, padding=1), (64, 16, 16)),
    ("128->128 3x3 at 8x8", lambda: nn.Conv2d(128, 128, 3, padding=1), (128, 8, 8)),
    ("512->512 3x3 at 4x4", lambda: nn.Conv2d(512, 512, 3, padding=1), (512, 4, 4)),
    ("256->256 3x3 at 14x14", lambda: nn.Conv2d(256, 256, 3, padding=1), (256, 14, 14)),
    ("3->64 7x7 /2 at 224x224", lambda: nn.Conv2d(3, 64, 7, padding=3, stride=2), (3, 224, 224)),
    ("64->64 3x3 circular at 32x32", lambda: nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular"), (64, 32, 32)),
    ("smooth 64->64 3x3 at 14x14", lambda: nn.Conv2d(64, 64, 3, padding=1), (64, 14, 14)),
]


def power_iteration(layer: nn.Conv2d, shape: tuple[int, ...], steps: int = 100) -> float:
    """Return the gain after some steps of power iteration from a random start."""
    linear = linear_map(layer, shape)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, *shape, generator=generator).to(layer.weight.device)
    for _ in range(steps):
        x = linear.adjoint(linear.apply(x / x.norm()))
    return float(linear.apply(x / x.norm()).norm())


def circular_blocks(layer: nn.Conv2d, shape: tuple[int, ...]) -> Tensor:
    """Return one matrix per frequency `[f, C_out, s s C_in]` of the circular convolution at the input size."""
    stride, height, width = layer.stride[0], shape[1], shape[2]
    spectrum = torch.fft.fft2(layer.weight.double(), s=(height, width))
    a, b = height // stride, width // stride
    blocks = spectrum.reshape(*spectrum.shape[:2], stride, a, stride, b).permute(3, 5, 0, 2, 4, 1)
    return blocks.reshape(a * b, spectrum.shape[0], -1) / stride


def fft_svd(layer: nn.Conv2d, shape: tuple[int, ...]) -> float:
    """Return the largest singular value over all frequencies by full SVD."""
    return float(torch.linalg.svdvals(circular_blocks(layer, shape)).max())


def gram_iteration(layer: nn.Conv2d, shape: tuple[int, ...], steps: int = 6) -> float:
    """Return the largest of norm_F(G_t)^(2^-t) over all frequencies, G_t the Gram matrix squared t-1 times."""
    gram = circular_blocks(layer, shape)
    log = torch.zeros(gram.shape[0], dtype=torch.float64, device=gram.device)
    for _ in range(steps):
        norm = torch.linalg.matrix_norm(gram).clamp(min=1e-300)
        gram = gram / norm[:, None, None]
        log = 2.0 * (log + norm.log())
        gram = gram @ gram.mH if gram.shape[1] <= gram.shape[2] else gram.mH @ gram
    log = log + torch.linalg.matrix_norm(gram).clamp(min=1e-300).log()
    return math.exp(float(log.max()) / 2.0**steps)


def reshaped(layer: nn.Conv2d, shape: tuple[int, ...]) -> float:
    """Return the norm of the kernel as a matrix."""
    return float(torch.linalg.matrix_norm(layer.weight.double().flatten(1), 2))


PEERS: dict[str, Callable[[nn.Conv2d, tuple[int, ...]], float]] = {
    "power 100": power_iteration,
    "FFT + SVD": fft_svd,
    "Gram 6": gram_iteration,
    "reshaped": reshaped,
}


def error(value: float, bracket: Bracket) -> str:
    """Say how far a value is outside the bracket."""
    if math.isnan(value):
        return "     NaN"
    if value > bracket.upper:
        return f"{value / bracket.upper - 1.0:+8.3%}"
    if value < bracket.lower:
        return f"{value / bracket.lower - 1.0:+8.3%}"
    return "  inside"


def timed(function: Callable[[], float | Bracket], device: str) -> tuple[float | Bracket, float]:
    """Run a function and return its result and its seconds."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    start = clock()
    result = function()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, clock() - start


@torch.no_grad()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--rtol", type=float, default=1e-3)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    print(f"{header(arguments.device)}, rtol {arguments.rtol:g}")
    torch.manual_seed(0)
    for name, build, shape in CASES:
        layer = build().to(arguments.device)
        nn.init.normal_(layer.weight, std=1.0 / math.sqrt(layer.weight[0].numel()))
        if name.startswith("smooth"):
            window = torch.tensor([0.25, 0.5, 0.25], device=arguments.device)
            layer.weight.copy_(layer.weight.mean(dim=(2, 3), keepdim=True) * 9.0 * window.outer(window))
        spectral_norm(layer, shape, rtol=0.1)  # start the libraries before the clock
        bracket, seconds = timed(lambda: spectral_norm(layer, shape, rtol=arguments.rtol), arguments.device)  # noqa: B023
        assert isinstance(bracket, Bracket)
        print(f"{name}\n  {'normscope':10s} [{bracket.lower:.5f}, {bracket.upper:.5f}] gap {bracket.gap:.4%}", end="")
        print(f"  {seconds:7.3f} s  upper side {bracket.evidence.name}")
        for peer in arguments.peers:
            function = PEERS[peer]
            value, seconds = timed(lambda: function(layer, shape), arguments.device)  # noqa: B023
            assert isinstance(value, float)
            print(f"  {peer:10s} {value:9.5f}  error {error(value, bracket)}  {seconds:13.3f} s")


if __name__ == "__main__":
    main()
