"""Settings of torch for the length of a block; several threads may ask for one at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .threads import shared_setting


@shared_setting
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
    except RuntimeError:  # torch refuses to read this older name once the newer names disagree with it
        allowed = None
    try:
        torch.set_float32_matmul_precision(
            "highest"
        )  # the older names come first: torch refuses settings that disagree
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
    """Return the objects on which torch keeps the newer settings."""
    cudnn, mkldnn = (cast(Any, module) for module in (torch.backends.cudnn, torch.backends.mkldnn))
    return cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul, mkldnn.matmul


@shared_setting
def math_attention() -> AbstractContextManager[None]:
    """Run a block with attention computed by its formula: the other backends have no second derivative."""
    return sdpa_kernel(SDPBackend.MATH)


@shared_setting
@contextmanager
def without_cudnn() -> Iterator[None]:
    """Run a block without cuDNN, whose recurrent layers have no second derivative."""
    before = torch.backends.cudnn.enabled
    try:
        torch.backends.cudnn.enabled = False
        yield
    finally:
        torch.backends.cudnn.enabled = before


@shared_setting
def uncompiled() -> AbstractContextManager[None]:
    """Run a block in which compiled modules run as they were written, so that everything in them can be seen."""
    return torch.compiler.set_stance("force_eager")
