"""The largest curvature of the loss at a batch of its own, each look from the direction that the last one found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ....core.errors import InputError
from .quantity import Probe, Quantity

SHARPNESS = Quantity("metrics", "sharpness", "the largest eigenvalue of the Hessian of the loss")
EFFECTIVE_SHARPNESS = Quantity("metrics", "effective_sharpness", "that times the learning rate")
SHARPNESS_RTOL = 1e-2
"""The relative error of the largest eigenvalue: small enough to see it reach the edge of stability."""
MAX_HESSIAN_PRODUCTS = 40
"""Products with the Hessian that one look may take; a look that begins from the last direction takes a few."""


class Sharpness(Probe):
    """Both are observed like figures of the loop: a look takes passes of its own, by `SharpnessProbe`."""

    quantities = (SHARPNESS, EFFECTIVE_SHARPNESS)


class SharpnessProbe:
    """Measures the largest eigenvalue of the Hessian at a batch of its own, in train mode.

    Args:
        pair: a loss function of outputs and targets, and the batch `(input, target)` that it is measured at.

    Attributes:
        products: how many products with the Hessian all looks took so far.

    Raises:
        InputError: it is no such pair.
    """

    def __init__(self, pair: Any) -> None:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise InputError("sharpness is a pair: a loss function, and the batch (input, target) to measure it at")
        self._loss, self._batch = pair
        self._direction: Tensor | None = None
        self.products = 0

    def measure(self, model: nn.Module) -> float | None:
        """Return the largest eigenvalue at the model's weights; None where it has not converged.

        Args:
            model: as it is being trained.

        Raises:
            InputError: the loss has no curvature at this batch, in one sentence.
        """
        # both load when they are first used
        from ....products.curvature import find_sharpest
        from ....products.objective import Objective

        objective = Objective(model, self._batch, loss=self._loss, mode="train", batches=1)
        fits = self._direction is not None and self._direction.shape[1] == objective.size
        start = self._direction if fits else None
        ends = find_sharpest(objective, rtol=SHARPNESS_RTOL, products=MAX_HESSIAN_PRODUCTS, start=start)
        self.products += objective.products
        self._direction = ends.vectors if ends.top else None
        return ends.top[0] if ends.top and ends.converged[0] else None
