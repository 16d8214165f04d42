"""The embedded data: scikit-learn's 8x8 digits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Images and labels, cut into a part to train on and a part to test on."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits(*, generator: torch.Generator, test_share: float = 0.2) -> Split:
    """Return the 1,797 digits of scikit-learn as float32 images of shape (1, 8, 8) with values in [0, 1].

    Args:
        generator: shuffles them.
        test_share: the share kept for testing.

    Returns:
        The two parts.
    """
    from sklearn.datasets import load_digits

    source = load_digits()
    images = torch.from_numpy(source.images).to(torch.float32).unsqueeze(1) / 16.0
    labels = torch.from_numpy(source.target).to(torch.int64)
    order = torch.randperm(len(images), generator=generator)
    tests, trains = order.tensor_split([round(test_share * len(images))])
    return Split(
        train_images=images[trains],
        train_labels=labels[trains],
        test_images=images[tests],
        test_labels=labels[tests],
    )
