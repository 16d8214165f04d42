"""What the runs of the third part share: loops that report nothing, and data of tables, series and sentences."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..fault_catalogue import parts as models
from .case import Watch
from .parts import Data, split


def unreported(watch: Watch) -> Watch:
    """Return a watch for a user who calls neither `observe` nor `log_metrics`."""

    @contextlib.contextmanager
    def around_a_silent_loop(model: nn.Module, optimizer: Optimizer) -> Iterator[Any]:
        with watch(model, optimizer):
            yield SimpleNamespace(observe=lambda **values: None, log_metrics=lambda **values: None)

    return around_a_silent_loop


def blobs(count: int = 1280, classes: int = 4, channels: int = 1) -> Data:
    """Return standardised images of 16 by 16 with one blob each, and their classes."""
    return split(*models.blob_images(count, classes, 16, channels))


def rows(count: int = 1280, columns: int = 12, classes: int = 3) -> Data:
    """Return a table and classes."""
    return split(*models.table(count, columns, classes))


def curves(count: int = 1280, noise: float = 0.0) -> Data:
    """Return a table and a column of targets, with noise of the given standard deviation."""
    x, y = models.regression_table(count)
    return split(x, y + noise * torch.randn_like(y))


def sentences(count: int = 1280) -> Data:
    """Return token ids and classes that depend on the order of two words."""
    return split(*models.sentences(count))


def texts(count: int = 1024) -> Data:
    """Return token ids and the ids that follow them."""
    return split(*models.text(count))


def waves(count: int = 1024) -> Data:
    """Return series and their classes by frequency."""
    return split(*models.waves(count))
