"""`Spectrum`: the eigenvalues of a loss's curvature, as far as they were computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ...core.codec import JsonForm, Part
from ...core.errors import visible
from ...report.document import FigureResult, figures_form
from .directions import Invariant


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over random vectors with its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Return the mean of some values; the error of a single one is infinite, and NaN counts as infinite."""
        numbers = torch.tensor([math.inf if math.isnan(value) else value for value in values], dtype=torch.float64)
        error = float(standard_errors(numbers))
        return cls(value=float(numbers.mean()), error=math.inf if math.isnan(error) else error)


def standard_errors(rows: Tensor) -> Tensor:
    """Return the standard errors of means over rows; infinite for a single row."""
    if len(rows) < 2:
        return torch.full(rows.shape[1:], math.inf, dtype=rows.dtype)
    return rows.std(0) / math.sqrt(len(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(Part):
    """The share of the eigenvalues in an interval, as far as a few products with each random vector tell it.

    The true share of the spectrum that each random vector sees lies between the sides for that vector, up to rounding.
    That the vectors see all eigenvalues alike is only true of their mean, and `error` says how far they differ.

    Attributes:
        value: an estimate between the sides; it may be anywhere between them.
        error: the standard error over the random vectors, the largest of both sides and the estimate.
        lower, upper: means over the random vectors. Files that do not have them say nothing: 0 and 1.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=("lower", "upper"))

    value: float
    error: float
    lower: float = 0.0
    upper: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Density:
    """The smoothed density of the eigenvalues, with its standard error.

    Each random vector gives about 20 nodes with weights, and these are what is drawn: where many eigenvalues lie
    between two nodes, the density of the nodes has a gap that the spectrum does not have.

    Attributes:
        places: the points of the axis at which the density is given, rising.
        values: the density at these points; its integral over the whole axis is 1.
        errors: standard errors over the random vectors; they do not say what 20 nodes cannot resolve.
        width: the standard deviation of the Gaussian that stands for a node or a known eigenvalue.
        near_zero: the share of eigenvalues whose size is at most a thousandth of the largest that was found.
    """

    places: tuple[float, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]
    width: float
    near_zero: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterBlock(Part):
    """The largest eigenvalue of the diagonal block of one parameter, and its trace where random vectors were asked for.

    The trace comes from products with the whole matrix, of which every block reads its own part.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=("trace",), nan=True)

    name: str
    size: int
    eigenvalue: float
    residual: float
    converged: bool
    trace: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRate:
    """A parameter group of an optimizer: the largest eigenvalue of its block, and its learning rate beside 2/lambda.

    Attributes:
        index: the number of the group in the optimizer.
        size: how many parameters it has.
        eigenvalue, converged: the largest eigenvalue of the diagonal block of its parameters.
        learning_rate: the rate in use.
    """

    index: int
    size: int
    eigenvalue: float
    converged: bool
    learning_rate: float

    @property
    def safe_learning_rate(self) -> float:
        """2/lambda: plain gradient descent of this group alone diverges above it on a quadratic of this curvature."""
        return 2.0 / self.eigenvalue if self.eigenvalue > 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum(FigureResult):
    """The curvature of a loss at a model's parameters. Prints as a table; in a notebook as HTML.

    Attributes:
        name: the model's class.
        mode: `"train"` or `"eval"`: two different losses.
        matrix: `"hessian"` or `"gauss-newton"`.
        metric: `"flat"`: the metric of the parameters as they are; `"quotient"`: for groups whose scale has no effect,
            the metric of their directions alone; the figures then do not change when such a group is rescaled.
        parameters: how many parameters the loss depends on.
        directions: how many dimensions of directions without effect were projected out.
        directions_found: how many such dimensions the graph shows; `notes` say why others were refused. None where the
            graph was not asked for, or the model could not be traced.
        invariants: the layers that these directions belong to, each with how well it was verified.
        loss, gradient_norm: both at the parameters as found.
        eigenvalues: the largest eigenvalues, falling.
        residuals: norm(H v - value v) of their unit vectors.
        errors: the error of each eigenvalue, estimated from the residuals.
        converged: whether every eigenvalue of the list has an estimated error within `rtol`. An eigenvalue may still be
            missing: of two that are equal, or within about 1e-4 of each other, Lanczos from one vector may find only
            one, list the next smaller ones in its place, and count as converged. A smaller `rtol`, or another `seed`,
            shows the other.
        bottom_eigenvalues, bottom_residuals, bottom_errors: the same figures of the smallest eigenvalues.
        undeflated: the largest eigenvalues with no direction projected out; empty where that was not asked for.
        trace: the trace with its standard error; None where it was not asked for.
        density: the density of the eigenvalues; None where it was not asked for.
        probes: over how many random vectors the density is a mean; ten times as many fresh ones estimate the trace. The
            standard error of few is rough: of two it is less than the distance to the truth in half of all cases.
        blocks: the largest eigenvalue of each parameter's diagonal block, and its trace, where asked for.
        groups: the parameter groups of the optimizer, where one was given.
        condition_number: the largest size of an eigenvalue over the smallest that is not zero; None where not all
            eigenvalues are known.
        zero_modes: how many eigenvalues, besides the projected directions, are zero up to rounding; None likewise.
        norms: the root mean square norm of the scale-invariant groups of each layer.
        rtol: the relative tolerance of each eigenvalue.
        num_products: how many products with the matrix were computed, each a pass over all batches.
        batches, samples: how many batches and samples the loss is a mean over.
        advice: what to raise where the search did not converge.
        notes: what the reader must know.
        provenance: versions and device.
        vectors: unit eigenvectors of `eigenvalues`, `[k, parameters]`; not stored in JSON.
    """

    page = "normscope.bounds.pages.curvature:spectrum_document"
    JSON: ClassVar[JsonForm] = figures_form("spectrum", "hessian", left_out=("vectors",), sparse=("probes", "groups"))

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
    probes: int = 0
    blocks: tuple[ParameterBlock, ...] = ()
    groups: tuple[GroupRate, ...] = ()
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
        """2/lambda_max: plain gradient descent with a larger learning rate diverges on a quadratic of this curvature.

        In the metric of the quotient it bounds the effective learning rate of scale-invariant groups: the learning rate
        over the squared norm of the weight.
        """
        return 2.0 / self.sharpness if self.sharpness > 0 else math.inf

    @property
    def safe_effective_rates(self) -> dict[str, float]:
        """The safe learning rate over the squared norm of the weight, for each layer whose scale has no effect."""
        if self.metric == "quotient":
            return {}
        return {name: self.safe_learning_rate / norm**2 for name, norm in self.norms.items() if norm > 0}

    def __repr__(self) -> str:
        values = ", ".join(f"{value:.4g}" for value in self.eigenvalues[:5])
        return visible(f"<Spectrum of {self.name} in {self.mode} mode: {values}; {self.num_products} products>")
