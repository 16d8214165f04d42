"""The density of the spectrum of one large symmetric operator, by quadratures from random vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...core.budget import Budget
from ...products.lanczos import Krylov, tridiagonal_matrices
from ...products.spectrum_ends import Operator

SPANNED_ROUNDING_ERRORS = 32.0
"""A vector counts as spanned by others if it is at most this many rounding errors, of the operator's size, away."""
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
    """

    nodes: Tensor
    first: Tensor
    last: Tensor
    beta: float

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
    operator: Operator, start: Tensor, *, steps: int, budget: Budget | None = None
) -> tuple[list[Quadrature], Tensor, float]:
    """Return a quadrature for each of several unit vectors, a basis of their Krylov spaces, and the trace on these.

    The operator takes and gives rows. Of a random vector the mean weight of every eigenvalue is 1 over the dimension.
    Gauss quadrature with n nodes is exact for polynomials of degree 2n - 1. All vectors share one space, which holds
    that of each: Lanczos from each of them then runs in its coordinates. A deadline leaves out steps.

    Reference: Ubaru, Chen and Saad 2017; Golub and Meurant 2010 (nodes that are given, blocks).
    """
    basis, matrix, coordinates, taken = _block_krylov(operator, start, steps, budget)
    trace = float(matrix.diagonal()[: len(basis)].sum())
    krylov = Krylov(coordinates)
    for _ in range(taken):
        krylov.extend(lambda rows: rows @ matrix)
    rules = []
    for alpha, beta in zip(krylov.alpha, krylov.beta):
        ended = (beta <= 1e-6 * alpha.abs().cummax(0).values).nonzero()
        length = int(ended[0]) + 1 if len(ended) else len(beta)
        nodes, vectors = torch.linalg.eigh(tridiagonal_matrices(alpha[None, :length], beta[None, :length])[0])
        rules.append(Quadrature(nodes=nodes, first=vectors[0], last=vectors[-1], beta=float(beta[length - 1])))
    return rules, basis, trace


def _block_krylov(
    operator: Operator, start: Tensor, steps: int, budget: Budget | None
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return the joint Krylov space of rows: its basis, the operator in it, the rows' coordinates, and the steps.

    The operator is that in the coordinates of the basis and, behind it, of what the last images add; zeros stand for
    the unknown images of these last vectors.
    """
    count, size = start.shape
    basis = start.new_zeros(min((steps + 1) * count, size), size)
    matrix = torch.zeros(len(basis), len(basis), dtype=torch.float64)
    rounding, scale, filled = SPANNED_ROUNDING_ERRORS * torch.finfo(start.dtype).eps, 0.0, 0
    block = _orthonormal(start, basis[:0], rounding)
    coordinates = (start @ block.T).double().cpu()
    taken = 0
    while taken < steps and len(block) and not (taken and budget is not None and budget.late):
        taken += 1
        places = slice(filled, filled + len(block))
        filled = places.stop
        basis[places] = block
        images = operator(block)
        scale = max(scale, float(images.norm(dim=1).max()))
        block = _orthonormal(images, basis[:filled], rounding * scale)
        reached = torch.cat([basis[:filled], block])
        inner = (reached @ images.T).double().cpu()
        matrix[: len(reached), places] = inner
        matrix[places, : len(reached)] = inner.T
    known = filled + len(block)
    matrix = (matrix + matrix.T)[:known, :known] / 2
    return basis[:filled], matrix, nn.functional.pad(coordinates, (0, known - coordinates.shape[1])), taken


def _orthonormal(rows: Tensor, known: Tensor, least: float) -> Tensor:
    """Return orthonormal rows for what some rows add to known ones; those of at most this length are left out."""
    for shortest in (least, 0.5):  # what the first pass leaves of a short direction may lie in the known space
        rows = rows - (rows @ known.T) @ known
        vectors, small = torch.linalg.qr(rows.T)
        mixed, lengths, _ = torch.linalg.svd(small.double().cpu())
        rows = mixed[:, : len(lengths)][:, lengths > shortest].T.to(rows) @ vectors.T
    return rows


def random_units(count: int, size: int, *, project: Operator, generator: torch.Generator, like: Tensor) -> Tensor:
    """Return vectors that are uniform on the unit sphere of a subspace, whatever that is, as rows.

    The mean of v^T A v is the trace over the dimension. (A projected vector of signs does not have this property, and
    two of them may agree on a wrong trace.)
    """
    drawn = [torch.randn(size, generator=generator, dtype=torch.float64).to(like) for _ in range(count)]
    vectors = project(torch.stack(drawn))
    vectors = project(vectors / vectors.norm(dim=1, keepdim=True))  # of a small part the first leaves rounding errors
    return vectors / vectors.norm(dim=1, keepdim=True)
