"""Extreme eigenvalues of the curvature of a loss, in products with its Hessian or its Gauss-Newton matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.budget import Budget, Progress
from ..core.errors import InputError, NotFiniteError
from .objective import Objective
from .spectrum_ends import Ends, extreme_eigenpairs

MEMORY = 8e9
"""About how many bytes the vectors of a search may take."""
OTHERS = 0.05
"""The weight of the random vector and the gradient in a warm start, relative to the earlier eigenvectors."""


class CurvatureSearch:
    """Searches for the eigenvalues of one curvature matrix of an objective that is being measured.

    Args:
        objective: the loss as a function of the parameters.
        gauss_newton: whether the matrix is the Gauss-Newton matrix, not the Hessian.
        rtol: the relative tolerance of each eigenvalue.
        products: how many products each search may take.
        max_seconds: the time limit of all searches together.
        seed: the seed of the random vectors.

    Attributes:
        loss, gradient: at the present parameters.
        product: the matrix times a vector, or times each of several rows.
        generator: draws random vectors.
        budget: the time and what it cut short.

    Raises:
        NotFiniteError: the gradient is not finite.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        gauss_newton: bool = False,
        rtol: float,
        products: int,
        max_seconds: float | None = None,
        seed: int = 0,
    ) -> None:
        self.objective, self._rtol, self._products = objective, rtol, products
        self.budget = Budget(max_seconds=max_seconds, what="the search for eigenvalues")
        self.generator = torch.Generator().manual_seed(seed)
        if not gauss_newton:
            objective.trace()
        self.loss, self.gradient = objective.gradient()
        if not bool(torch.isfinite(self.gradient).all()):
            raise NotFiniteError("the gradient of the loss holds NaN or infinite values: there is no curvature here")
        self.product = objective.gauss_newton if gauss_newton else objective.hessian

    def check_hessian(self) -> None:
        """Compare a product with differences of gradients where the loss uses the user's own autograd functions."""
        random = torch.randn(self.objective.size, generator=self.generator).to(self.gradient)
        self.objective.check_custom(random / random.norm())

    def first_vector(self, warm: Tensor | None) -> Tensor:
        """Return the first vector of a search.

        It is the sum of a random unit vector and the unit gradient, which lies mostly where the curvature is large. To
        the eigenvectors of a warm start a little of both is added, as another direction may have become the sharpest.
        """
        random = torch.randn(self.objective.size, generator=self.generator).to(self.gradient)
        random = random / random.norm()
        if warm is not None and (warm.ndim != 2 or warm.shape[1] != self.objective.size):
            raise InputError(f"start has shape {tuple(warm.shape)}: it takes vectors of {self.objective.size:,}")
        length = self.gradient.norm()
        slope = self.gradient / length if float(length) > 0 else random
        if warm is None:
            return random + slope
        return warm.to(random).sum(0) + OTHERS * (random + slope)

    def find_ends(
        self,
        operator: Callable[[Tensor], Tensor],
        start: Tensor,
        k: int,
        bottom: int = 0,
        project: Callable[[Tensor], Tensor] = lambda vector: vector,
    ) -> Ends:
        """Return the largest and the smallest eigenvalues of an operator, with their vectors."""
        return extreme_eigenpairs(
            operator,
            start,
            top=k,
            bottom=bottom,
            rtol=self._rtol,
            budget=self.budget.search("the search for eigenvalues", self._products),
            room=int(max(32, min(256, MEMORY // (start.element_size() * start.numel())))),
            project=project,
            generator=self.generator,
        )


def find_sharpest(objective: Objective, *, rtol: float, products: int, start: Tensor | None = None) -> Ends:
    """Return the largest eigenvalue of the Hessian of an objective, with its vector.

    Args:
        objective: the loss as a function of the parameters.
        rtol: the relative tolerance of the eigenvalue.
        products: how many products the search may take.
        start: the vector `[1, parameters]` of an earlier search, near this one.
    """
    with objective.measuring(), Progress("curvature") as progress:
        search = CurvatureSearch(objective, rtol=rtol, products=products)
        search.check_hessian()

        def multiply(vector: Tensor) -> Tensor:
            progress.step(f"product {objective.products + 1}")
            return search.product(vector)

        return search.find_ends(multiply, search.first_vector(start), 1)
