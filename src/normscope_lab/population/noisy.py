"""`NoisyData`: few training samples, some with a wrong label, so that networks that fit them generalize differently."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.data import Split
from normscope.toolkit import InputError, hashed


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyData:
    """The data that a population is trained and tested on.

    Attributes:
        train_images, train_labels: the training samples; labels are as drawn, some of them wrong.
        test_images, test_labels: the test samples, all labels right.
        label_noise: the probability with which a training label was replaced by another one.
        classes: the number of classes.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    label_noise: float
    classes: int

    def test_error(self, wrong: float) -> float:
        """Return the error on fresh samples with the same label noise, from the error on right labels.

        A noisy label is another class, each with the same probability, independent of the image. A right answer is
        then counted wrong with probability p, and a wrong one is counted right with probability p/(K-1): the mean over
        the noise is exact, so that no noise of the test labels blurs the gap.
        """
        return wrong + self.label_noise * (1.0 - wrong - wrong / (self.classes - 1))

    def digest(self) -> str:
        """Return a short hash of the data."""
        return hashed((self.train_images, self.train_labels, self.test_images, self.test_labels))

    def to(self, device: torch.device) -> NoisyData:
        """Return the data on a device."""
        return NoisyData(
            train_images=self.train_images.to(device),
            train_labels=self.train_labels.to(device),
            test_images=self.test_images.to(device),
            test_labels=self.test_labels.to(device),
            label_noise=self.label_noise,
            classes=self.classes,
        )


def drawn(split: Split, *, samples: int, label_noise: float, generator: torch.Generator) -> NoisyData:
    """Draw training samples from a data set and give some of them a wrong label."""
    held = len(split.train_images)
    if not 1 <= samples <= held:
        raise InputError(f"there are {held:,} training samples: {samples:,} of them cannot be drawn")
    if not 0.0 <= label_noise <= 1.0:
        raise InputError(f"label_noise is a probability from 0 to 1, not {label_noise!r}")
    least, most = int(split.train_labels.min()), int(split.train_labels.max())
    if least < 0 or most < 1 or not len(split.test_labels):
        raise InputError("a population needs two or more classes, labels from 0 on, and test samples")
    if int(split.test_labels.min()) < 0 or int(split.test_labels.max()) > most:
        raise InputError(f"the test labels go beyond the classes 0 to {most} of the training labels")
    rows = torch.randperm(held, generator=generator)[:samples]
    labels = split.train_labels[rows].clone()
    wrong = torch.rand(samples, generator=generator) < label_noise
    others = torch.randint(1, most + 1, (samples,), generator=generator)
    labels[wrong] = (labels[wrong] + others[wrong]) % (most + 1)
    return NoisyData(
        train_images=split.train_images[rows],
        train_labels=labels,
        test_images=split.test_images,
        test_labels=split.test_labels,
        label_noise=label_noise,
        classes=most + 1,
    )
