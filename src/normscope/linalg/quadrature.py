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
    """What one random vector says of a spectrum: nodes with weights that sum up to 1, and the form v^T A v."""

    nodes: Tensor
    weights: Tensor
    form: float

    def share(self, limit: float) -> tuple[float, float]:
        """Return the weight of the nodes within a limit of zero, and the most that the spectrum can have there.

        The nodes are rising. What lies between two neighbours may weigh as much as both of them together: the most is
        the weight of the nodes within the limit and of their neighbours (the inequality of Chebyshev, Markov and
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
    """Yield a quadrature per random vector of signs, projected onto the subspace that is looked at.

    For a vector of signs v the mean of v^T A v is the trace. Gauss quadrature with as many nodes as steps is exact for
    polynomials of twice that degree.

    Args:
        operator: symmetric, on vectors `[n]`.
        size: n.
        probes: how many random vectors.
        steps: products with each.
        project: onto the subspace; the operator is taken there.
        generator: on the CPU.
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
