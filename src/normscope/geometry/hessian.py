"""`hessian`: eigenvalues, trace and density of the curvature of a loss, without the directions that have no effect."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.budget import Budget
from ..core.errors import InputError, NotFiniteError
from ..core.options import check_numbers
from ..core.progress import Progress
from ..core.provenance import provenance
from ..core.untouched import outside_inference_mode, unwrapped
from ..linalg.extremes import Ends, extreme_eigenpairs
from ..theory.losses import Loss
from .batches import LossFunction
from .density import spread
from .directions import Directions, directions, no_directions
from .objective import Objective
from .spectrum import ParameterBlock, Spectrum
from .verified_directions import verified

MATRICES = ("hessian", "gauss-newton")
METRICS = ("flat", "quotient")
MOST_WHOLE = 5000
"""Parameters up to which all eigenvalues can be asked for."""
MEMORY = 8e9
"""Bytes that the vectors of a search may take, about."""
OTHERS = 0.05
"""How much of other directions a warm start has."""
DRAWN = (
    "the model draws random numbers in its forward, beside dropout, which is off: these are figures of the loss for "
    "one draw, the same in every pass"
)
ZERO = 1e-6
"""An eigenvalue of at most this share of the largest counts as zero in a condition number, in float32."""


@outside_inference_mode
def hessian(
    model: nn.Module,
    loss_fn: LossFunction | str | Loss | None,
    loader: Any,
    *,
    k: int = 5,
    mode: str | None = None,
    deflate: bool = True,
    bottom: int = 0,
    probes: int = 0,
    blocks: bool = False,
    whole: bool = False,
    undeflated: bool = False,
    matrix: str = "hessian",
    metric: str = "flat",
    rtol: float = 1e-3,
    products: int = 300,
    batches: int | None = None,
    start: Tensor | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Spectrum:
    """Measure the curvature of a loss with respect to the parameters that need gradients.

    The loss is the mean over the batches, each counted with its samples; in train mode every batch has its own
    statistics, and buffers stay as they are. Weights in front of a normalizer can be scaled (in train mode before a
    BatchNorm, always before a LayerNorm or GroupNorm) and shifted without effect: these directions are read off the
    graph, checked at outputs and gradient, and projected out, as what the Hessian does along them is known already (H w
    is minus the gradient) and no step along them changes the function. Dropout is off in both modes, whether a module
    or a function drops; other random numbers of a forward are the same in every pass. Products of float32 run in
    float32, never in TF32.

    Args:
        model: any `torch.nn.Module`.
        loss_fn: a function of outputs and targets that gives a scalar, the mean over a batch; the name of a loss
            (`"cross_entropy"`, ...); or None for the loss that the model itself returns.
        loader: batches `(input, target)`, dicts with `labels`, or one batch.
        k: how many of the largest eigenvalues.
        mode: `"train"`, `"eval"`, or None for the mode the model is in. The two are different losses.
        deflate: whether to project out the directions without effect.
        bottom: how many of the smallest (most negative) eigenvalues.
        probes: random vectors for trace and density, 0 for neither; about 20 products each.
        blocks: whether to take the largest eigenvalue of each parameter's diagonal block too.
        whole: whether to find all eigenvalues, and so the condition number; for up to 5,000 parameters, a product each.
        undeflated: whether to take the largest eigenvalues without the projection too.
        matrix: `"hessian"`, or `"gauss-newton"`: the Hessian without the curvature of the network's outputs.
        metric: `"flat"`, or `"quotient"`: the Riemannian Hessian P (H - D) P on the spheres of scale-invariant groups,
            times the squared norms of their weights, which does not change when they are rescaled.
        rtol: of each eigenvalue.
        products: at most this many for the eigenvalues at the ends.
        batches: read at most this many of the loader; None for all.
        start: vectors `[m, parameters]` of an earlier spectrum, near this one, to begin from.
        max_seconds: cuts short what takes longer, and `converged` and `advice` say so.
        seed: of the random vectors.

    Returns:
        The spectrum: `.eigenvalues`, `.residuals`, `.converged`, `.num_products`, `.safe_learning_rate`, ...

    Raises:
        InputError: no parameters that need gradients, no batch, a loss that is no scalar, or an operator that cannot be
            differentiated twice.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
        >>> found = ns.hessian(model, torch.nn.functional.mse_loss, (x, torch.zeros(2, 1)), k=2)
        >>> [round(value, 4) for value in found.eigenvalues]  # x^T x of two samples
        [9.0, 1.0]

    Reference: Pearlmutter 1994; Wu and Simon 2000 (thick restart); Ghorbani et al. 2019 (density).
    """
    _check(k=k, bottom=bottom, probes=probes, products=products)
    check_numbers(rtol=rtol, max_seconds=max_seconds, seed=seed)
    if matrix not in MATRICES or metric not in METRICS:
        raise InputError(f"matrix is one of {', '.join(MATRICES)} and metric one of {', '.join(METRICS)}")
    objective = Objective(unwrapped(model), loss_fn, loader, mode=mode, batches=batches)
    if whole and objective.size > MOST_WHOLE:
        raise InputError(
            f"all eigenvalues of {objective.size:,} parameters are too many: whole=True takes {MOST_WHOLE:,} at most"
        )
    return spectrum_of(
        objective,
        directions(objective) if deflate or metric == "quotient" else no_directions(objective),
        Wanted(
            k=k,
            bottom=bottom,
            probes=probes,
            blocks=blocks,
            whole=whole,
            undeflated=undeflated,
            rtol=rtol,
            products=products,
            start=start,
        ),
        matrix=matrix,
        metric=metric,
        max_seconds=max_seconds,
        seed=seed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of a curvature, as the arguments of `hessian` say."""

    k: int = 5
    bottom: int = 0
    probes: int = 0
    blocks: bool = False
    whole: bool = False
    undeflated: bool = False
    rtol: float = 1e-3
    products: int = 300
    start: Tensor | None = None


def spectrum_of(
    objective: Objective,
    found: Directions,
    wanted: Wanted,
    *,
    matrix: str = "hessian",
    metric: str = "flat",
    max_seconds: float | None = None,
    seed: int = 0,
) -> Spectrum:
    """Return the spectrum of an objective, with the directions of its graph projected out as far as they hold."""
    budget = Budget(max_seconds=max_seconds, what="the search for eigenvalues")
    with objective.measuring(), Progress("curvature") as progress:
        return _SpectrumSearch(objective, found, matrix, metric, budget, progress, seed).spectrum(wanted)


def _check(**numbers: Any) -> None:
    for name, value in numbers.items():
        least = 1 if name in ("k", "products") else 0
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} is a whole number from {least} on, not {value!r}")


class _SpectrumSearch:
    """One measurement: the operator in the subspace, and what is asked of it."""

    def __init__(
        self,
        objective: Objective,
        found: Directions,
        matrix: str,
        metric: str,
        budget: Budget,
        progress: Progress,
        seed: int,
    ) -> None:
        self.objective, self.matrix, self.metric = objective, matrix, metric
        self.budget, self.progress = budget, progress
        self.generator = torch.Generator().manual_seed(seed)
        if matrix == "hessian":
            objective.trace()
        self.loss, self.gradient = objective.gradient()
        if not bool(torch.isfinite(self.gradient).all()):
            raise NotFiniteError("the gradient of the loss holds NaN or infinite values: there is no curvature here")
        self.directions = verified(objective, found, self.gradient)
        if matrix == "hessian":
            drawn = torch.randn(objective.size, generator=self.generator).to(self.gradient)
            objective.check_custom(drawn / drawn.norm())
        self.product = objective.hessian if matrix == "hessian" else objective.gauss_newton

    def operator(self, vector: Tensor) -> Tensor:
        """Return the matrix times a vector, in the metric that was asked for."""
        self.progress.step(f"product {self.objective.products + 1}")
        if self.metric == "flat":
            return self.product(vector)
        found = self.directions
        moved = found.scaled(vector)
        image = self.product(moved)
        slopes = found.along(self.gradient) / found.norms.to(vector)
        factors = torch.cat([vector.new_zeros(1), slopes])
        return found.scaled(image - factors[found.group + 1] * moved)

    def spectrum(self, wanted: Wanted) -> Spectrum:
        """Return everything that was asked for."""
        objective, found = self.objective, self.directions
        space = objective.size - found.dimensions
        k, rtol, products = min(wanted.k, space), wanted.rtol, wanted.products
        bottom = min(wanted.bottom, max(space - k, 0))
        ends = self._ends(self.operator, found.project, self._start(wanted.start), k, bottom, rtol, products)
        trace, density = spread(
            self.operator,
            found,
            ends,
            probes=wanted.probes,
            generator=self.generator,
            late=lambda: self.budget.late,
        )
        raw: tuple[float, ...] = ()
        if wanted.undeflated and found.dimensions:
            raw = self._ends(
                self.product, lambda v: v, ends.vectors.sum(0) + self._start(None), k, 0, rtol, products
            ).top
        values = self._all() if wanted.whole else None
        settled = all(ends.converged) and len(ends.converged) == k + bottom
        advice = None if settled else self.budget.advice(f"eigenvalues are not within {rtol:g}: raise products")
        return Spectrum(
            name=type(objective.model).__name__,
            mode=objective.mode,
            matrix=self.matrix,
            metric=self.metric,
            parameters=objective.size,
            directions=found.dimensions,
            directions_found=found.shown,
            invariants=found.layers,
            loss=self.loss,
            gradient_norm=float(self.gradient.double().norm()),
            eigenvalues=ends.top,
            residuals=ends.residuals[: len(ends.top)],
            errors=ends.errors[: len(ends.top)],
            converged=settled,
            bottom_eigenvalues=ends.bottom,
            bottom_residuals=ends.residuals[len(ends.top) :],
            bottom_errors=ends.errors[len(ends.top) :],
            undeflated=raw,
            trace=trace,
            density=density,
            blocks=self._blocks(rtol, products) if wanted.blocks else (),
            condition_number=None if values is None else _condition(values, found.dimensions)[0],
            zero_modes=None if values is None else _condition(values, found.dimensions)[1],
            norms=_norms(found),
            rtol=rtol,
            num_products=objective.products,
            batches=len(objective.batches),
            samples=objective.samples,
            advice=advice,
            notes=(*found.notes, *([DRAWN] if objective.draws else [])),
            provenance=provenance(objective.device),
            vectors=ends.vectors[: len(ends.top)],
        )

    def _start(self, warm: Tensor | None) -> Tensor:
        """Return a start: random, with as much of the gradient, which lies mostly where the curvature is large."""
        drawn = torch.randn(self.objective.size, generator=self.generator).to(self.gradient)
        drawn = drawn / drawn.norm()
        if warm is not None and (warm.ndim != 2 or warm.shape[1] != self.objective.size):
            raise InputError(f"start has shape {tuple(warm.shape)}: it takes vectors of {self.objective.size:,}")
        length = self.gradient.norm()
        slope = self.gradient / length if float(length) > 0 else drawn
        if warm is None:
            return drawn + slope
        return warm.to(drawn).sum(0) + OTHERS * (drawn + slope)  # another direction may have become the sharpest

    def _ends(
        self,
        operator: Callable[[Tensor], Tensor],
        project: Callable[[Tensor], Tensor],
        start: Tensor,
        k: int,
        bottom: int,
        rtol: float,
        products: int,
    ) -> Ends:
        return extreme_eigenpairs(
            operator,
            start,
            top=k,
            bottom=bottom,
            rtol=rtol,
            budget=self.budget.search("the search for eigenvalues", products),
            room=int(max(32, min(256, MEMORY // (start.element_size() * start.numel())))),
            project=project,
            generator=self.generator,
        )

    def _blocks(self, rtol: float, products: int) -> tuple[ParameterBlock, ...]:
        """Return the largest eigenvalue of every parameter's own block."""
        rows = []
        for name, parameter in self.objective.parameters.items():
            drawn = torch.randn(parameter.numel(), generator=self.generator).to(self.gradient)
            ends = self._ends(self.objective.block(name), lambda v: v, drawn, 1, 0, rtol, products)
            known = bool(ends.top)
            rows.append(
                ParameterBlock(
                    name=name,
                    size=parameter.numel(),
                    eigenvalue=ends.top[0] if known else math.nan,
                    residual=ends.residuals[0] if known else math.nan,
                    converged=known and ends.converged[0],
                )
            )
        return tuple(rows)

    def _all(self) -> Tensor | None:
        """Return all eigenvalues in float64, those of projected directions being zero."""
        columns = []
        for place in range(self.objective.size):
            if self.budget.late:
                return None
            unit = torch.zeros_like(self.gradient)
            unit[place] = 1.0
            columns.append(self.directions.project(self.operator(self.directions.project(unit))))
        dense = torch.stack(columns).double()
        return torch.linalg.eigvalsh((dense + dense.T) / 2)


def _condition(values: Tensor, taken: int) -> tuple[float, int]:
    """Return the condition number without zeros, and how many zeros there are beside those that were projected out."""
    sizes = values.abs().sort(descending=True).values[: len(values) - taken]
    if not len(sizes) or float(sizes[0]) == 0.0:
        return math.inf, len(sizes)
    kept = sizes[sizes > ZERO * sizes[0]]
    return float(sizes[0] / kept[-1]), len(sizes) - len(kept)


def _norms(found: Directions) -> dict[str, float]:
    """Return the root mean square norm of the groups of each layer that were verified."""
    norms, start = {}, 0
    for layer in found.layers:
        if layer.verified:
            norms[layer.name] = float(found.norms[start : start + layer.kept].square().mean().sqrt())
        start += layer.kept
    return norms
