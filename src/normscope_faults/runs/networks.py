"""Networks of the runs beyond those that models and runs share."""

from collections.abc import Callable
from itertools import pairwise

from torch import nn


def plain_mlp(
    *sizes: int, act: Callable[[], nn.Module] = nn.ReLU, before: Callable[[], nn.Module] | None = None
) -> nn.Module:
    """Return an MLP with torch's own initialisation, with a module in front of each activation where one is given."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), *([] if before is None else [before()]), act()]
    return nn.Sequential(*layers[: -1 if before is None else -2])
