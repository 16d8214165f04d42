"""Stochastic Lanczos quadrature: the trace and the density of the eigenvalues of a large symmetric operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Operator = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quadrature:
    """The estimate of a spectrum from one random vector v: nodes with weights that sum to 1, and the form v^T A v."""

    nodes: Tensor
    weights: Tensor
    form: float

    def share(self, limit: float) -> tuple[float, float]:
        """Return the weight of the nodes within a limit of zero, and the largest weight the spectrum can have there.

        The nodes ascend. The spectrum between two neighbours may weigh as much as both of them together: the largest
        weight is that of the nodes within the limit and of their neighbours (the inequality of Chebyshev, Markov and
        Stieltjes).
        """
        inside = self.nodes.abs() <= limit
        below = torch.roll(self.nodes, -1) >= -limit
        above = torch.roll(self.nodes, 1) <= limit
        below[-1:], above[:1] = True, True
        most = self.weights[inside | (below & (self.nodes < 0)) | (above & (self.nodes > 0))].sum()
        return float(self.weights[inside].sum()), float(most)


def quadratures(
    operator: Operator,
    size: int,
    *,
    probes: int,
    steps: int,
    project: Operator,
    generator: torch.Generator,
    like: Tensor,
) -> Iterator[Quadrature]:
    """Yield a quadrature for each random vector of signs, projected onto a subspace.

    For a vector of signs v the mean of v^T A v is the trace. Gauss quadrature with as many nodes as steps is exact for
    polynomials of twice that degree.

    Args:
        operator: a symmetric operator on vectors `[n]`.
        size: the order n.
        probes: how many random vectors to take.
        steps: how many products to make with each.
        project: a projection onto the subspace; the operator is taken inside that subspace.
        generator: a CPU generator for the random vectors.
        like: a tensor of the dtype and on the device to work in.

    Reference: Ubaru, Chen and Saad 2017; Hutchinson 1989.
    """
    for _ in range(probes):
        signs = torch.randint(0, 2, (size,), generator=generator).to(like) * 2 - 1
        vector = project(signs)
        length = vector.norm()
        if float(length) <= 1e-6 * math.sqrt(size):
            return
        vector = vector / length
        basis: list[Tensor] = []
        alpha: list[float] = []
        beta: list[float] = []
        while len(alpha) < steps:
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
        tri = torch.diag(torch.tensor(alpha, dtype=torch.float64))
        side = torch.tensor(beta[:-1], dtype=torch.float64)
        tri = tri + torch.diag(side, 1) + torch.diag(side, -1) if len(alpha) > 1 else tri
        nodes, vectors = torch.linalg.eigh(tri)
        yield Quadrature(nodes=nodes, weights=vectors[0].square(), form=alpha[0] * float(length.double()) ** 2)
