"""Turn the singular vector of one frequency into a wave on the real input or output of a convolution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .certify import EigenvalueCertificate
from .convolution_map import Axis, Convolution
from .symbol import Ring, Symbol


def plane_wave(conv: Convolution, symbol: Symbol, certificate: EigenvalueCertificate, grid: Tensor) -> Tensor:
    """Return the leading singular vector at a frequency as a tapered wave.

    Args:
        conv: the plain (not transposed) convolution.
        symbol: its symbol on some torus.
        certificate: the certificate with the eigenvector of the symbol's Gram matrix.
        grid: the frequency of that Gram matrix.

    Returns:
        `[1, *in_shape]` when the symbol's Gram matrices act on inputs, else `[1, *out_shape]`; float64.
    """
    assert certificate.vector is not None
    assert certificate.label is not None
    kernel = symbol.kernel
    group = certificate.label[1] % kernel.groups
    vector = certificate.vector.to(torch.complex128)
    pivot = vector.gather(0, vector.abs().argmax(dim=0, keepdim=True))  # this way nothing is read back from a GPU
    vector = vector * (pivot.conj() / pivot.abs().clamp(min=1e-300))
    wave = torch.ones((), dtype=torch.complex128)
    phase = torch.zeros((), dtype=torch.int64)
    weights = _phase_weights(symbol)
    for a, (axis, ring) in enumerate(zip(conv.axes, symbol.torus, strict=True)):
        turn = 0.0
        if a in kernel.axes:
            turn = int(grid[kernel.axes.index(a)]) / (2.0 * (ring.size // ring.stride))
        line, remainder = _line(axis, ring, kernel.inputs, turn, int(kernel.origin[a]), moving=a in kernel.axes)
        wave = wave[..., None] * line
        phase = phase[..., None] + remainder * weights[a]
    wave = wave.to(kernel.device)
    if not kernel.inputs:
        out = torch.zeros(1, *conv.out_shape, dtype=torch.float64, device=kernel.device)
        each = conv.out_shape[0] // kernel.groups
        out[0, group * each : (group + 1) * each] = (vector.reshape(-1, *(1,) * wave.ndim) * wave).real
        return out
    each = conv.in_shape[0] // kernel.groups
    codes = (kernel.phases * torch.tensor(weights)).sum(dim=1)
    table = torch.zeros(int(max(codes.max(), phase.max())) + 1, each, dtype=torch.complex128, device=kernel.device)
    table[codes.to(kernel.device)] = vector.reshape(len(codes), each)
    out = torch.zeros(1, *conv.in_shape, dtype=torch.float64, device=kernel.device)
    out[0, group * each : (group + 1) * each] = (table[phase.to(kernel.device)].movedim(-1, 0) * wave).real
    return out


def _phase_weights(symbol: Symbol) -> list[int]:
    """Return one factor per axis, by which the phases of all axes are numbered in one integer."""
    weights, value = [], 1
    for ring in reversed(symbol.torus):
        weights.append(value)
        value *= ring.stride
    return weights[::-1]


def _line(axis: Axis, ring: Ring, inputs: bool, turn: float, origin: int, *, moving: bool) -> tuple[Tensor, Tensor]:
    """Return the wave along one axis, and the phase of each entry (zero on the output side)."""
    middle = axis.outputs // 2 if axis.inner_output is None else axis.inner_output
    if inputs:
        covered = torch.arange(axis.size) + axis.left
        entry, phase = covered // ring.stride, covered % ring.stride
        still = entry == middle * axis.stride // ring.stride + origin
    else:
        entry = torch.arange(axis.outputs) * axis.stride // ring.stride
        phase = torch.zeros_like(entry)
        still = torch.arange(axis.outputs) == middle
    if not moving:
        return still.to(torch.complex128), phase
    count = len(entry)
    taper = torch.ones(count, dtype=torch.float64)
    if not ring.exact:
        taper = torch.sin(math.pi * (torch.arange(count, dtype=torch.float64) + 1.0) / (count + 1.0))
    angle = 2.0 * math.pi * turn * entry.double()
    return torch.complex(taper * angle.cos(), taper * angle.sin()), phase
