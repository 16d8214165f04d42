"""Stochastic Lanczos quadrature: the trace and the density of the eigenvalues of a large symmetric operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Operator = Callable[[Tensor], Tensor]


NODE_DISTANCE = 1e-5
"""An end of an interval is moved at least this far from the nodes, as a share of the largest: else rounding decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quadrature:
    """The estimate of a spectrum from one random unit vector v.

    Attributes:
        nodes: rising.
        weights: of the nodes; they sum to 1.
        first, last: the first and the last entries of the eigenvectors of the tridiagonal matrix, one for each node.
        beta: the length of the last image outside the space: with 0 the nodes are all that v has a part of.
        form: v^T A v.
    """

    nodes: Tensor
    first: Tensor
    last: Tensor
    beta: float
    form: float

    @property
    def weights(self) -> Tensor:
        """The weights of the nodes, which sum to 1."""
        return self.first.square()

    def share(self, limit: float, rounding: float = 0.0) -> tuple[float, float, float]:
        """Return the share of the spectrum that v has within a limit of zero: lower side, estimate, upper side.

        The spectral measure m of v has the weight (u^T v)^2 at the eigenvalue of each unit eigenvector u. Its share in
        [-limit, limit] is m(-inf, limit] - m(-inf, -limit), and `_below` encloses both terms. The estimate has each in
        the middle of its sides: the weight of the nodes inside would be 0 for every interval between two nodes. With
        nodes that may be off by `rounding`, the sides are those of an interval smaller or larger by this.
        """
        scale = max(float(self.nodes.abs().max()), self.beta)
        if scale == 0.0:
            return 1.0, 1.0, 1.0
        inner, outer = max(limit - rounding, 0.0), limit + rounding
        lower = self._below(inner, -scale)[0] - self._below(-inner, scale)[1]
        upper = self._below(outer, scale)[1] - self._below(-outer, -scale)[0]
        sides = torch.tensor([lower, (lower + upper) / 2, upper], dtype=torch.float64).clamp(0.0, 1.0)
        lower, middle, upper = sides.sort().values.tolist()  # where the sides meet, rounding may let them cross
        return lower, middle, upper

    def _below(self, place: float, toward: float) -> tuple[float, float]:
        """Enclose the weight of the spectrum below a place: without the place itself, and with it.

        Lanczos gives the tridiagonal matrix T of n steps and the next off-diagonal entry beta. Whatever corner c is
        added, the n + 1 nodes of [[T, beta e], [beta e^T, c]] integrate polynomials of degree 2n exactly. With
        c = x + beta^2 e^T (T - x)^{-1} e one of these nodes is x. There is a polynomial of degree 2n that is 1 at the
        nodes up to x and 0 at those behind it and touches both lines at every node but x: it is nowhere below the step
        from 1 to 0 behind x, so that m(-inf, x] is at most the weight of the nodes up to x. In the same way m(-inf, x)
        is at least the weight of the nodes before x (Chebyshev, Markov and Stieltjes). No other bounds on these weights
        from the same products are closer. The k-th eigenvalue of T lies between nodes k and k + 1, which says which
        node x is. The place x is moved away from the eigenvalues of T, where c is infinite, to the side of `toward`.
        """
        distance = NODE_DISTANCE * abs(toward)
        for node in self.nodes.tolist() if toward > 0 else self.nodes.flip(0).tolist():
            if abs(place - node) < distance:
                place = node + math.copysign(distance, toward)
        coupling = self.beta * self.last
        arrow = torch.diag(torch.cat([self.nodes, self.nodes.new_zeros(1)]))
        arrow[-1, :-1] = arrow[:-1, -1] = coupling
        arrow[-1, -1] = place + float((coupling.square() / (self.nodes - place)).sum())
        weights = (self.first @ torch.linalg.eigh(arrow).eigenvectors[:-1]).square()
        rank = int((self.nodes < place).sum())
        return float(weights[:rank].sum()), float(weights[: rank + 1].sum())


def quadratures(
    operator: Operator,
    size: int,
    *,
    dimension: int,
    probes: int,
    steps: int,
    project: Operator,
    generator: torch.Generator,
    like: Tensor,
) -> Iterator[Quadrature]:
    """Yield a quadrature for each random vector of a subspace.

    The vectors are uniform on the unit sphere of the subspace, whatever that is: the mean of v^T A v is the trace over
    the dimension, and the mean weight of every eigenvalue is 1 over the dimension. (A vector of signs that is projected
    has neither property, and two of them may agree on a wrong trace.) Gauss quadrature with n nodes is exact for
    polynomials of degree 2n - 1.

    Reference: Ubaru, Chen and Saad 2017; Golub and Meurant 2010 (nodes that are given).
    """
    for _ in range(probes):
        vector = project(torch.randn(size, generator=generator, dtype=torch.float64).to(like))
        vector = project(vector / vector.norm())  # once more: of a small part the first one leaves rounding errors
        vector = vector / vector.norm()
        basis: list[Tensor] = []
        alpha: list[float] = []
        beta: list[float] = []
        while len(alpha) < min(steps, dimension):
            basis.append(vector)
            known = torch.stack(basis)
            image = project(operator(vector))
            inner = known @ image
            image = image - known.T @ inner
            image = image - known.T @ (known @ image)
            one, rest = torch.stack([inner[-1], image.norm()]).double().tolist()
            alpha.append(one)
            beta.append(rest)
            if rest <= 1e-6 * max(map(abs, alpha)):
                break
            vector = image / rest
        side = torch.tensor(beta[:-1], dtype=torch.float64)
        tri = torch.diag(torch.tensor(alpha, dtype=torch.float64)) + torch.diag(side, 1) + torch.diag(side, -1)
        nodes, vectors = torch.linalg.eigh(tri)
        yield Quadrature(nodes=nodes, first=vectors[0], last=vectors[-1], beta=beta[-1], form=dimension * alpha[0])
