"""`Spectrum`: what was found of the eigenvalues of a loss's curvature."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ..core.codec import JsonForm
from .directions import Invariant
from .figure_result import FigureResult, figures_form


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over random vectors with its standard error."""

    value: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Density:
    """How the eigenvalues are spread: the share of all per unit of the axis, smoothed, with its standard error.

    Attributes:
        places: eigenvalues at which it is given, rising.
        values: the density there; over the whole axis it sums up to 1.
        errors: standard errors over the random vectors.
        width: of the Gaussian that every eigenvalue is drawn as.
        near_zero: the share of eigenvalues within a thousandth of the largest of zero; the error is the standard error
            and what the nodes of the quadrature leave open: the share may be larger by it.
    """

    places: tuple[float, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]
    width: float
    near_zero: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterBlock:
    """The largest eigenvalue of the diagonal block of one parameter."""

    name: str
    size: int
    eigenvalue: float
    residual: float
    converged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum(FigureResult):
    """The curvature of a loss at a model's parameters. Prints as a table; in a notebook as HTML.

    Attributes:
        name: of the model.
        mode: `"train"` or `"eval"`: two different losses.
        matrix: `"hessian"` or `"gauss-newton"`.
        metric: `"flat"`: of the parameters as they are; `"quotient"`: of directions alone, for groups whose scale has
            no effect; the figures then do not change when such a group is rescaled.
        parameters: how many.
        directions: how many dimensions of directions without effect were projected out.
        directions_found: how many the graph shows; `notes` say why the others were refused. None where it was not
            asked, or the model could not be traced.
        invariants: the layers these come from, each with how well it was verified.
        loss, gradient_norm: at the parameters.
        eigenvalues: the largest, falling.
        residuals: norm(H v - value v) of their unit vectors.
        errors: how far each is off, estimated from the residuals.
        converged: whether every eigenvalue of the list has an estimated error within `rtol`. It does not say that none
            is missing: of two that lie within about 1e-4 of each other, or of equal ones, Lanczos from one vector may
            find one alone, list the next smaller ones in its place, and count as converged. A smaller `rtol`, or
            another `seed`, shows the other.
        bottom_eigenvalues, bottom_residuals, bottom_errors: the same at the other end, as many as were asked for.
        undeflated: the largest eigenvalues with the symmetry directions left in; empty where that was not asked for.
        trace: with its standard error; None where it was not asked for.
        density: None where it was not asked for.
        blocks: the largest eigenvalue of each parameter's diagonal block, where asked for.
        condition_number: the largest size of an eigenvalue over the smallest that is no zero; None where not all
            eigenvalues are known.
        zero_modes: how many eigenvalues, beside the projected directions, are zero to rounding; None likewise.
        norms: the root mean square norm of the scale-invariant groups of each layer.
        rtol: what each eigenvalue was asked to.
        num_products: products with the matrix, each a pass over all batches.
        batches, samples: how many there are.
        advice: what to raise where it did not converge.
        notes: what the reader must know.
        provenance: versions and device.
        vectors: unit eigenvectors of `eigenvalues`, `[k, parameters]`; not stored in JSON.
    """

    page = "spectrum:spectrum_document"
    JSON: ClassVar[JsonForm] = figures_form("spectrum", "hessian", left_out=("vectors",))

    name: str
    mode: str
    matrix: str
    metric: str
    parameters: int
    directions: int
    invariants: tuple[Invariant, ...]
    loss: float
    gradient_norm: float
    eigenvalues: tuple[float, ...]
    residuals: tuple[float, ...]
    errors: tuple[float, ...]
    converged: bool
    bottom_eigenvalues: tuple[float, ...] = ()
    bottom_residuals: tuple[float, ...] = ()
    bottom_errors: tuple[float, ...] = ()
    undeflated: tuple[float, ...] = ()
    trace: Estimate | None = None
    density: Density | None = None
    blocks: tuple[ParameterBlock, ...] = ()
    condition_number: float | None = None
    zero_modes: int | None = None
    norms: Mapping[str, float] = field(default_factory=dict)
    rtol: float = 1e-3
    num_products: int = 0
    batches: int = 1
    samples: int = 0
    advice: str | None = None
    directions_found: int | None = None
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    vectors: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def sharpness(self) -> float:
        """The largest eigenvalue."""
        return self.eigenvalues[0] if self.eigenvalues else math.nan

    @property
    def safe_learning_rate(self) -> float:
        """2/lambda_max: plain gradient descent with a larger one leaves a quadratic with this curvature.

        In the metric of the quotient it speaks of the effective learning rate of scale-invariant groups, the learning
        rate over the squared norm of the weight.
        """
        return 2.0 / self.sharpness if self.sharpness > 0 else math.inf

    @property
    def safe_effective_rates(self) -> dict[str, float]:
        """What the safe learning rate means for layers whose scale has no effect: over the squared norm, by layer."""
        if self.metric == "quotient":
            return {}
        return {name: self.safe_learning_rate / norm**2 for name, norm in self.norms.items() if norm > 0}

    def __repr__(self) -> str:
        values = ", ".join(f"{value:.4g}" for value in self.eigenvalues[:5])
        return f"<Spectrum of {self.name} in {self.mode} mode: {values}; {self.num_products} products>"
