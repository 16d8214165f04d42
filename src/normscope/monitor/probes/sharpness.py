"""The largest curvature of the loss along a run, each look begun from the direction that the last one found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ...core.errors import InputError
from ...geometry.directions import no_directions
from ...geometry.hessian import Wanted, spectrum_of
from ...geometry.objective import Objective

RTOL = 1e-2
"""The relative error of the largest eigenvalue: small enough to see it reach the edge of stability."""
PRODUCTS = 40
"""Products with the Hessian that one look may take; a look that begins from the last direction takes a few."""


class SharpnessProbe:
    """Measures the largest eigenvalue of the Hessian at a batch of its own, in train mode.

    Args:
        given: a loss function of outputs and targets, and the batch `(input, target)` that it is measured at.

    Attributes:
        products: how many products with the Hessian all looks took so far.

    Raises:
        InputError: it is no such pair.
    """

    def __init__(self, given: Any) -> None:
        if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
            raise InputError("sharpness is a pair: a loss function, and the batch (input, target) to measure it at")
        self._loss, self._batch = given
        self._direction: Tensor | None = None
        self.products = 0

    def measure(self, model: nn.Module) -> float | None:
        """Return the largest eigenvalue at the model's weights; None where it has not converged.

        Args:
            model: as it is being trained.

        Raises:
            InputError: the loss has no curvature at this batch, in one sentence.
        """
        objective = Objective(model, self._loss, self._batch, mode="train", batches=1)
        wanted = Wanted(k=1, rtol=RTOL, products=PRODUCTS, start=self._direction)
        if self._direction is not None and self._direction.shape[1] != objective.size:
            wanted = Wanted(k=1, rtol=RTOL, products=PRODUCTS)
        found = spectrum_of(objective, no_directions(objective), wanted)
        self.products += found.num_products
        self._direction = found.vectors if found.eigenvalues else None
        return found.sharpness if found.converged else None
