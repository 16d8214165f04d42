"""Certificates in closed form for chains of slope-restricted layers, tighter than products.

A chain is W_1, phi_1, W_2, phi_2, ..., with every phi entrywise, slopes in [a, b], m = (a+b)/2, e = (b-a)/2,
beta = max(abs(a), abs(b)). Chains are found anywhere in the graph: a source with one entrywise path to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.bracket import Evidence
from ..core.budget import Budget, check_time
from ..core.rounding import Upper
from .linalg.dense_form import moderate, write_out
from .linalg.linear_map import LinearMap, Matrix, Repeated
from .operators.effects import Elementwise
from .proofs.proof import Multipliers
from .segments import Form

WIDEST = 1024
"""Widest layer that a certificate carries (its cost is cubic); wider segments fall back to folded norms."""
EIGEN = 8.0
"""Multiplications that the eigenvalues of a matrix take, over the cube of its order."""


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """LipSDP-Neuron with Lambda_i a multiple of the identity, in closed form (a = 0: ECLipsE-Fast).

    With X_{i-1}^{-1} = 10^scale Y, K = W Y W^T = Q diag(d) Q^T and lambda = 1/(t max d), the next
    X_i = lambda - m^2 lambda^2 K (I + a b lambda K)^{-1} is diagonal in the same basis. t = beta e is never worse than
    the product, for every sign of a; t = 2 m^2 is often tighter for GELU and SiLU where it is feasible.
    `root` R with Y = R R^T; None is the identity. `log10_sigma`: of the last activation's multiplier e^2 lambda.
    """

    scale: float = 0.0
    root: Tensor | None = None
    doubled: bool = False
    log10_sigma: float = 0.0

    def after(self, weight: Tensor) -> float:
        """Return log10 sqrt(lambda_max(W X^{-1} W^T))."""
        product = self._times_root(weight)
        return self._spectrum(product if product.shape[0] <= product.shape[1] else product.T, vectors=False)[0]

    def through(self, weight: Tensor, slope: tuple[float, float]) -> tuple[float, ClosedForm | None]:
        """Carry the certificate over one layer."""
        a, b = slope
        m, e, beta = (a + b) / 2, (b - a) / 2, max(abs(a), abs(b))
        bound, values, gram, vectors = self._spectrum(self._times_root(weight), vectors=a * b != 0)
        if bound == -math.inf:
            return bound, None
        choice = 2 * m * m if self.doubled else beta * e
        if choice <= 0:
            return bound, None
        if a < 0 and a * b < 0:
            choice /= 1 - 1e-6
        ratio = values / values[-1] / choice
        widened = 1 + a * b * ratio
        inverse = (1 - e * e * ratio) / widened  # 1 - m^2 r/(1 + a b r), without cancellation
        if float(widened.min()) <= 1e-9 or float(inverse.min()) <= 1e-9:
            return bound, None
        if vectors is None:  # a Cholesky factor of 1 - e^2 r takes half as long as the eigenvectors
            identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
            factor = torch.linalg.cholesky(identity - (e * e / choice / float(values[-1])) * gram)
            root = torch.linalg.solve_triangular(factor.mT, identity, upper=True)
        else:
            root = vectors * inverse.rsqrt()
        scale = self.scale + math.log10(float(values[-1])) + math.log10(choice)
        log10_sigma = 2.0 * math.log10(e) - scale if e > 0 else -math.inf
        return bound, ClosedForm(scale, root, self.doubled, log10_sigma)

    def _times_root(self, weight: Tensor) -> Tensor:
        """Return W R for the root R of the certificate; K is its Gram matrix."""
        check_time(EIGEN * float(weight.shape[0]) ** 3, weight.device)
        return weight if self.root is None else weight @ self.root

    def _spectrum(self, product: Tensor, *, vectors: bool) -> tuple[float, Tensor, Tensor, Tensor | None]:
        """Return log10 of the bound, the eigenvalues of K = (W R)(W R)^T, K itself and, if asked, its eigenvectors."""
        gram = product @ product.T
        if vectors:
            values, basis = torch.linalg.eigh(gram)
        else:
            values, basis = torch.linalg.eigvalsh(gram), None
        values = values.clamp(min=0.0)
        top = float(values[-1])
        log = (self.scale + math.log10(top)) / 2 if top > 0 else -math.inf
        return log, values, gram, basis


@dataclass(frozen=True, slots=True)
class MatrixBlock:
    """A segment as one matrix, repeated over `copies` slices: activations act on every slice alike."""

    weight: Tensor
    copies: int


@dataclass(slots=True)
class Link:
    """A chain up to the activation of one source: where it started, what came before, its certificate once needed."""

    origin: str
    previous: str
    copies: int
    pending: Callable[[], ClosedForm | None]
    state: ClosedForm | None = None
    known: bool = False

    def certificate(self) -> ClosedForm | None:
        """Return the state behind the activation, worked out when first asked for."""
        if not self.known:
            self.state, self.known = self.pending(), True
        return self.state


class ChainCertificate:
    """Carries a certificate along every chain of the graph (a `Chain` for `propagate`)."""

    def __init__(self, start: ClosedForm, device: torch.device, budget: Budget | None = None) -> None:
        self.start, self.device, self.budget = start, device, budget or Budget()
        self.links: dict[str, Link] = {}
        self.blocks: dict[LinearMap, MatrixBlock | None] = {}
        self.runs: dict[tuple[str, str, str], Multipliers] = {}

    def carry(self, form: Form, name: str, slope: tuple[float, float] | None, cores: dict[str, Upper]) -> Upper | None:
        """Bound a single-source form by its chain's certificate and tie the next link."""
        return self.budget.attempt(lambda: self._carry(form, name, slope, cores), lambda: None)

    def _carry(self, form: Form, name: str, slope: tuple[float, float] | None, cores: dict[str, Upper]) -> Upper | None:
        fits = len(form) == 1 and (slope is None or Elementwise(slope=slope).moderate)
        segment = self._block(next(iter(form.values()))) if fits else None
        if segment is None:
            return None
        source = next(iter(form))
        link = self.links.get(source)
        state = link.certificate() if link is not None and link.copies == segment.copies else None
        if link is None or state is None:  # the chain starts here: its first norm is the folded one
            if slope is not None:
                self.links[name] = Link(
                    source, source, segment.copies, lambda: self.start.through(segment.weight, slope)[1]
                )
            return None
        if slope is None:
            log = state.after(segment.weight)
        else:
            log, following = state.through(segment.weight, slope)
            self.links[name] = Link(link.origin, source, segment.copies, lambda: following)
        self._note(source, name, log, ends=slope is None, cores=cores)
        bound = Upper(log + 1e-10 if log > -math.inf else log, Evidence.NUMERICAL, "closed-form")
        return bound.times(cores[link.origin])

    def _note(self, source: str, name: str, log10: float, *, ends: bool, cores: dict[str, Upper]) -> None:
        """Keep the multipliers of the chain into `name`."""
        last, origin, sigma = source, self.links[source].origin, {}
        shift = cores[origin].log10
        while source != origin:
            state = self.links[source].certificate()
            exponent = math.nan if state is None else state.log10_sigma - 2.0 * shift
            if not abs(exponent) < 300.0:
                return
            sigma[source] = torch.tensor(10.0**exponent, dtype=torch.float64)
            source = self.links[source].previous
        at, into = (name, None) if ends else (None, name)
        self.runs[origin, last, name] = Multipliers(
            sigma=sigma, log10=log10 + shift, start={origin: shift}, cores=True, at=at, into=into
        )

    def proof(self) -> tuple[Multipliers, ...]:
        """Return the multipliers of every chain that was carried, for a proof."""
        return tuple(self.runs.values())

    def _block(self, linear: LinearMap) -> MatrixBlock | None:
        if linear not in self.blocks:
            self.blocks[linear] = self.budget.attempt(lambda: _block(linear, self.device), lambda: None)
        return self.blocks[linear]


def _block(linear: LinearMap, device: torch.device) -> MatrixBlock | None:
    """Write a segment out as one matrix, or as one block of a block-diagonal map with equal blocks."""
    copies, inner = 1, linear
    if isinstance(linear, Repeated):
        copies, inner = math.prod(linear.leading), linear.inner
    if isinstance(inner, Matrix):
        copies, inner = copies * math.prod(inner.in_shape[:-1]), Matrix(inner.weight)
    if inner.out_size > WIDEST or inner.in_size * inner.out_size > 3e7 or not moderate(inner):
        return None
    weight = write_out(inner).to(device)
    top = float(weight.abs().amax()) if weight.numel() else 0.0
    return MatrixBlock(weight, copies) if top == 0.0 or 1e-140 <= top <= 1e140 else None  # else its squares may vanish
