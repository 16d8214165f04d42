"""Products of float32 numbers in float32: not in the shorter floats that a device may take for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch


@contextmanager
def full_precision() -> Iterator[None]:
    """Run a block with float32 products in float32, and put the user's settings back.

    On CUDA devices torch lets convolutions round their operands to TF32, which has 10 bits: two ways to the same value
    then differ by 1e-3 of it, where float32 differs by 1e-6.
    """
    cudnn, parts = torch.backends.cudnn, _parts()
    held, matmul = [part.fp32_precision for part in parts], torch.get_float32_matmul_precision()
    try:
        allowed = cudnn.allow_tf32
    except RuntimeError:  # set by the newer names alone, with which this one does not agree
        allowed = None
    try:
        torch.set_float32_matmul_precision("highest")  # the older names first: torch refuses settings that disagree
        cudnn.allow_tf32 = False
        for part in parts:
            part.fp32_precision = "ieee"
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        if allowed is not None:
            cudnn.allow_tf32 = allowed
        for part, value in zip(parts, held, strict=True):
            part.fp32_precision = value


def _parts() -> tuple[Any, ...]:
    """Return where torch keeps the newer settings."""
    cudnn, mkldnn = (cast(Any, module) for module in (torch.backends.cudnn, torch.backends.mkldnn))
    return cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul, mkldnn.matmul
