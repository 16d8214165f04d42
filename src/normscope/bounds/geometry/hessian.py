"""`hessian`: eigenvalues, trace and density of the curvature of a loss, without the directions that have no effect."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...calls.batches import LossFunction
from ...calls.stand_ins import accepts_graph
from ...core.budget import Budget, Progress
from ...core.errors import InputError, check_counts, check_numbers
from ...core.provenance import provenance
from ...core.untouched import Mode, outside_inference_mode, unwrapped
from ...products.curvature import MEMORY, CurvatureSearch
from ...products.objective import Objective
from ...products.spectrum_ends import Ends
from ...theory.losses import Loss
from ..linalg.quadrature import Quadrature, quadratures, random_units
from .directions import Directions, by_entry, find_directions, no_directions, verify_directions
from .spectrum import Density, Estimate, GroupRate, ParameterBlock, Share, Spectrum, standard_errors

MATRICES = ("hessian", "gauss-newton")
METRICS = ("flat", "quotient")
MOST_WHOLE = 5000
"""The largest number of parameters for which all eigenvalues can be asked for."""
DRAWN = (
    "the model draws random numbers in its forward, beside dropout, which is off: these are figures of the loss for "
    "one draw, the same in every pass"
)
UNCONVERGED = "eigenvalues are not within {:g}: raise products"
ZERO = 1e-6
"""An eigenvalue of at most this share of the largest counts as zero in a condition number, in float32."""
KRYLOV_STEPS, FRESH_VECTORS = 20, 10
"""For each random vector: its products, and how many fresh vectors of one product each follow for the trace."""
TRACE_KRYLOV_STEPS, TRACE_FRESH_VECTORS = 9, 6
"""The same where the trace alone is asked for, and each probe stands for two vectors: nearly as many directions are
taken out, and more fresh vectors estimate what is left."""
MAX_ROWS_TOGETHER = 16
"""The number of vectors whose products are computed together, where memory allows."""
DENSITY_POINTS = 120
"""The number of points at which the density is given."""
WIDTH = 0.01
"""The width of the Gaussian that stands for an eigenvalue, as a share of the range of all eigenvalues."""
NEAR = 1e-3
"""An eigenvalue of at most this share of the largest one counts as near zero."""
ROUNDING = 64.0
"""The error of a node, in rounding errors of the largest eigenvalue."""
MOVED = 0.1
"""The limit near zero may be moved by this share of itself, for the residuals of the known eigenvectors."""


@accepts_graph
@outside_inference_mode
def hessian(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    loss: LossFunction | str | Loss | None = None,
    k: int = 5,
    mode: Mode | None = None,
    deflate: bool = True,
    bottom: int = 0,
    probes: int = 0,
    density: bool = True,
    blocks: bool = False,
    block_probes: int = 0,
    whole: bool = False,
    undeflated: bool = False,
    matrix: Literal["hessian", "gauss-newton"] = "hessian",
    metric: Literal["flat", "quotient"] = "flat",
    rtol: float = 1e-3,
    products: int = 300,
    batches: int | None = None,
    start: Tensor | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Spectrum:
    """Measure the curvature of a loss with respect to the parameters that need gradients.

    The loss is the mean over the batches, each weighted by its number of samples; in train mode every batch has its own
    statistics, and buffers stay as they are. Weights in front of a normalizer can be scaled (in train mode before a
    BatchNorm, always before a LayerNorm or GroupNorm) and shifted without effect. These directions are read off the
    graph, checked against the outputs and the gradient, and projected out: no step along them changes the function, and
    what the Hessian does along them is known already (H w is minus the gradient). Dropout is off in both modes, in
    modules and in functions; other random numbers of a forward pass are the same in every pass. Products of float32
    tensors run in float32, never in TF32.

    Args:
        model: any `torch.nn.Module` (or its captured graph).
        data: a batch (a tensor, a NumPy array, a tuple of arguments, a dict of them), an iterable of batches such as a
            `DataLoader`, or a data set (see `batches`). None for the batch of a captured graph.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        loss: a function of outputs and targets that gives a scalar, the mean over a batch; the name of a loss of torch
            (`"cross_entropy"`, `"mse"`, ... as in `check`) or of `normscope.theory.losses`; or None for the loss that
            the model itself returns.
        k: how many of the largest eigenvalues to find; 0 for none.
        mode: which of the model's two functions to take, `"train"` or `"eval"`; None for the mode the model is in. The
            two are different losses.
        deflate: whether to project out the directions without effect.
        bottom: how many of the smallest (most negative) eigenvalues to find.
        probes: how many random vectors to take for trace and density, about 30 products each; 0 for neither figure.
        density: whether to find the density too, with `probes`; without it all their products go to the trace.
        blocks: whether to find the largest eigenvalue of each parameter's diagonal block too.
        block_probes: with `blocks`, how many random vectors to take for the trace of each block, one product each for
            all of them.
        whole: whether to find all eigenvalues, and so the condition number. It takes one product per parameter, and
            5,000 parameters at most.
        undeflated: whether to find the largest eigenvalues without the projection too.
        matrix: which matrix to measure: `"hessian"`, or `"gauss-newton"`: the Hessian without the curvature of the
            network's outputs.
        metric: the metric of the weights: `"flat"`, or `"quotient"`, in which nothing changes when weights whose scale
            has no effect are rescaled. That takes the Riemannian Hessian P (H - D) P on the spheres of scale-invariant
            groups, times the squared norms of their weights.
        rtol: the relative tolerance of each eigenvalue.
        products: how many products the search for the largest and smallest eigenvalues may take.
        batches: read at most this many batches of the data; None for all.
        start: eigenvectors `[m, parameters]` of an earlier spectrum, near this one, from which the search starts.
        optimizer: an optimizer of the model; the result then has the safe learning rate of each of its parameter
            groups beside the rate in use. The safe rate is that of plain gradient descent: momentum a allows 1 + a
            times as much, and Adam's steps have another scale.
        max_seconds: the time limit: what takes longer is cut short, and the report says so (`converged`, `advice`).
        seed: the seed of the random vectors.

    Returns:
        The spectrum: `.eigenvalues`, `.residuals`, `.converged`, `.num_products`, `.safe_learning_rate`, ...

    Raises:
        InputError: no parameter needs gradients, the data have no batch, the loss is no scalar, or an operator cannot
            be differentiated twice.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
        >>> found = ns.hessian(model, (x, torch.zeros(2, 1)), loss="mse", k=2)
        >>> [round(value, 4) for value in found.eigenvalues]  # x^T x of two samples
        [9.0, 1.0]

    Reference: Pearlmutter 1994; Wu and Simon 2000 (thick restart); Ghorbani et al. 2019 (density).
    """
    check_counts(least=1, products=products)
    check_counts(k=k, bottom=bottom, probes=probes, block_probes=block_probes)
    check_numbers(rtol=rtol, max_seconds=max_seconds, seed=seed)
    if matrix not in MATRICES or metric not in METRICS:
        raise InputError(f"matrix is one of {', '.join(MATRICES)} and metric one of {', '.join(METRICS)}")
    objective = Objective(unwrapped(model), data, labels=labels, loss=loss, mode=mode, batches=batches)
    if whole and objective.size > MOST_WHOLE:
        raise InputError(
            f"all eigenvalues of {objective.size:,} parameters are too many: whole=True takes {MOST_WHOLE:,} at most"
        )
    wanted = Wanted(
        k=k,
        bottom=bottom,
        probes=probes,
        density=density,
        blocks=blocks,
        block_probes=block_probes,
        whole=whole,
        undeflated=undeflated,
        matrix=matrix,
        metric=metric,
        rtol=rtol,
        products=products,
        start=start,
        optimizer=optimizer,
        max_seconds=max_seconds,
        seed=seed,
    )
    projected = deflate or metric == "quotient"
    return spectrum_of(objective, find_directions(objective) if projected else no_directions(objective), wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The figures of a spectrum that the caller asks for; the fields are arguments of `hessian`."""

    k: int = 5
    bottom: int = 0
    probes: int = 0
    density: bool = True
    blocks: bool = False
    block_probes: int = 0
    whole: bool = False
    undeflated: bool = False
    matrix: str = "hessian"
    metric: str = "flat"
    rtol: float = 1e-3
    products: int = 300
    start: Tensor | None = None
    optimizer: torch.optim.Optimizer | None = None
    max_seconds: float | None = None
    seed: int = 0


def spectrum_of(objective: Objective, without_effect: Directions, wanted: Wanted) -> Spectrum:
    """Return the spectrum of an objective, with those of the given directions projected out that are verified."""
    with objective.measuring(), Progress("curvature") as progress:
        return _SpectrumSearch(objective, without_effect, wanted, progress).spectrum()


class _SpectrumSearch(CurvatureSearch):
    """One measurement: the curvature as an operator on a subspace, and the figures that are asked for."""

    def __init__(self, objective: Objective, without_effect: Directions, wanted: Wanted, progress: Progress) -> None:
        super().__init__(
            objective,
            gauss_newton=wanted.matrix == "gauss-newton",
            rtol=wanted.rtol,
            products=wanted.products,
            max_seconds=wanted.max_seconds,
            seed=wanted.seed,
        )
        self.wanted, self.progress = wanted, progress
        self.directions = verify_directions(objective, without_effect, self.gradient)
        if wanted.matrix == "hessian":
            self.check_hessian()

    def operator(self, vector: Tensor) -> Tensor:
        """Return the matrix times a vector or rows, in the metric that was asked for."""
        self.progress.step(f"product {self.objective.products + 1}")
        if self.wanted.metric == "flat":
            return self.product(vector)
        groups = self.directions
        scaled = groups.scaled(vector)
        image = self.product(scaled)
        slopes = groups.along(self.gradient) / groups.norms.to(vector)
        return groups.scaled(image - by_entry(slopes, groups.group) * scaled)

    def spectrum(self) -> Spectrum:
        """Return everything that was asked for."""
        objective, removed, wanted = self.objective, self.directions, self.wanted
        space = objective.size - removed.dimensions
        k = min(wanted.k, space)
        bottom = min(wanted.bottom, max(space - k, 0))
        ends = self.find_ends(self.operator, self.first_vector(wanted.start), k, bottom, removed.project)
        trace, density, probes = trace_and_density(
            self.operator,
            removed,
            ends,
            probes=wanted.probes,
            density=wanted.density,
            generator=self.generator,
            budget=self.budget.search("the estimate of trace and density"),
        )
        undeflated: tuple[float, ...] = ()
        if wanted.undeflated and removed.dimensions:
            start = ends.vectors.sum(0) + self.first_vector(None)
            undeflated = self.find_ends(self.product, start, k).top
        condition_number, zero_modes = self._condition() if wanted.whole else (None, None)
        converged = all(ends.converged) and len(ends.converged) == k + bottom
        return Spectrum(
            name=type(objective.model).__name__,
            mode=objective.mode,
            matrix=wanted.matrix,
            metric=wanted.metric,
            parameters=objective.size,
            directions=removed.dimensions,
            directions_found=removed.shown,
            invariants=removed.layers,
            loss=self.loss,
            gradient_norm=float(self.gradient.double().norm()),
            eigenvalues=ends.top,
            residuals=ends.residuals[: len(ends.top)],
            errors=ends.errors[: len(ends.top)],
            converged=converged,
            bottom_eigenvalues=ends.bottom,
            bottom_residuals=ends.residuals[len(ends.top) :],
            bottom_errors=ends.errors[len(ends.top) :],
            undeflated=undeflated,
            trace=trace,
            density=density,
            probes=probes,
            blocks=self._blocks() if wanted.blocks else (),
            groups=() if wanted.optimizer is None else self._groups(wanted.optimizer),
            condition_number=condition_number,
            zero_modes=zero_modes,
            norms=_norms(removed),
            rtol=wanted.rtol,
            num_products=objective.products,
            batches=len(objective.batches),
            samples=objective.samples,
            advice=None if converged else self.budget.advice(UNCONVERGED.format(wanted.rtol)),
            notes=(*removed.notes, *([DRAWN] if objective.draws else []), *(self.budget.cuts if converged else ())),
            provenance=provenance(objective.device),
            vectors=ends.vectors[: len(ends.top)],
        )

    def _blocks(self) -> tuple[ParameterBlock, ...]:
        """Return the largest eigenvalue of every parameter's diagonal block."""
        blocks = []
        for name, parameter in self.objective.parameters.items():
            size = parameter.numel()
            start = torch.randn(size, generator=self.generator).to(self.gradient)
            ends = self.find_ends(self.objective.block(name), start, 1)
            value, residual, converged = math.nan, math.nan, False
            if ends.top:
                value, residual, converged = ends.top[0], ends.residuals[0], ends.converged[0]
            block = ParameterBlock(name=name, size=size, eigenvalue=value, residual=residual, converged=converged)
            blocks.append(block)
        traces = self._block_traces()
        return tuple(replace(block, trace=trace) for block, trace in zip(blocks, traces)) if traces else tuple(blocks)

    def _block_traces(self) -> list[Estimate]:
        """Return the trace of every parameter's block, from the same products; an empty list where none was asked for.

        For a vector z of random signs the mean of z_b (H z)_b over the entries b of a block is the trace of that block.
        """
        search = self.budget.search("the traces of blocks", self.wanted.block_probes)
        sizes = [parameter.numel() for parameter in self.objective.parameters.values()]
        forms: list[list[float]] = []
        while (count := min(MAX_ROWS_TOGETHER, self.wanted.block_probes - len(forms))) and search.spend(count):
            signs = 2 * torch.randint(2, (count, self.objective.size), generator=self.generator).to(self.gradient) - 1
            products = (signs * self.product(signs)).double()
            forms += torch.stack([part.sum(1) for part in products.split(sizes, 1)], 1).tolist()
        return [Estimate.of(column) for column in zip(*forms)]

    def _groups(self, optimizer: torch.optim.Optimizer) -> tuple[GroupRate, ...]:
        """Return the largest eigenvalue of the block of every parameter group, beside its learning rate."""
        names = {id(parameter): name for name, parameter in self.objective.parameters.items()}
        groups = []
        for index, group in enumerate(optimizer.param_groups):
            chosen = [names[id(parameter)] for parameter in group["params"] if id(parameter) in names]
            if not chosen:
                raise InputError(f"parameter group {index} of the optimizer holds no parameter of the model")
            size = sum(self.objective.parameters[name].numel() for name in chosen)
            start = torch.randn(size, generator=self.generator).to(self.gradient)
            ends = self.find_ends(self.objective.block(*chosen), start, 1)
            groups.append(
                GroupRate(
                    index=index,
                    size=size,
                    eigenvalue=ends.top[0] if ends.top else math.nan,
                    converged=bool(ends.converged) and ends.converged[0],
                    learning_rate=float(group["lr"]),
                )
            )
        return tuple(groups)

    def _condition(self) -> tuple[float, int] | tuple[None, None]:
        """Return the condition number without zeros, and how many zeros there are besides the projected directions.

        Return None for both where the time ran out before all eigenvalues were known.
        """
        columns = []
        for units in torch.eye(self.objective.size).split(MAX_ROWS_TOGETHER):
            if self.budget.late:
                return None, None
            units = self.directions.project(units.to(self.gradient))
            columns.append(self.directions.project(self.operator(units)))
        dense = torch.cat(columns).double()
        values = torch.linalg.eigvalsh((dense + dense.T) / 2)
        sizes = values.abs().sort(descending=True).values[: len(values) - self.directions.dimensions]
        if not len(sizes) or float(sizes[0]) == 0.0:
            return math.inf, len(sizes)
        kept = sizes[sizes > ZERO * sizes[0]]
        return float(sizes[0] / kept[-1]), len(sizes) - len(kept)


def _norms(groups: Directions) -> dict[str, float]:
    """Return the root mean square norm of the groups of each layer that was verified."""
    norms, start = {}, 0
    for layer in groups.layers:
        if layer.verified:
            norms[layer.name] = float(groups.norms[start : start + layer.kept].square().mean().sqrt())
        start += layer.kept
    return norms


def trace_and_density(
    operator: Callable[[Tensor], Tensor],
    removed: Directions,
    ends: Ends,
    *,
    probes: int,
    density: bool = True,
    generator: torch.Generator,
    budget: Budget,
) -> tuple[Estimate | None, Density | None, int]:
    """Return the trace and the density, with standard errors, and over how many random vectors; None without any.

    The known eigenvectors Q are projected out first: for any Q the trace is that of Q^T A Q plus that of the rest, and
    the random vectors then estimate only the smaller eigenvalues. For the trace the space that their products span is
    taken out in the same way, and fresh random vectors estimate what is left, which is little. As these are drawn
    independently of all that is taken out, the estimate has no bias. The trace alone takes more vectors of fewer steps.

    Reference: Meyer, Musco, Musco and Woodruff 2021 (Hutch++); Chen and Hallman 2023 (with Krylov spaces).
    """
    eigenvectors = ends.vectors
    size = eigenvectors.shape[1]

    def project(vector: Tensor) -> Tensor:
        vector = removed.project(vector)
        return vector - (vector @ eigenvectors.T) @ eigenvectors

    rest = size - removed.dimensions - len(eigenvectors)
    known = sum(ends.top) + sum(ends.bottom)
    if not probes or rest < 1:
        return Estimate(value=known, error=0.0) if probes else None, None, 0
    steps, fresh, vectors = KRYLOV_STEPS, FRESH_VECTORS, probes
    if not density:
        steps, fresh, vectors = TRACE_KRYLOV_STEPS, TRACE_FRESH_VECTORS, 2 * probes
    draw = partial(random_units, size=size, project=project, generator=generator, like=eigenvectors)
    together = max(1, int(MEMORY // (2 * (steps + 1) * size * eigenvectors.element_size())))
    find = partial(quadratures, lambda rows: project(operator(rows)), steps=min(steps, rest), budget=budget)
    rules, basis, captured = find(draw(min(vectors, together)))
    while density and len(rules) < vectors and not budget.late:  # the spaces of these are too large to be kept
        rules += find(draw(min(vectors - len(rules), together)))[0]
    dimensions = len(basis)

    def outside(vector: Tensor) -> Tensor:
        vector = project(vector)
        return vector - (vector @ basis.T) @ basis

    forms: list[float] = []
    most = fresh * vectors
    while dimensions < rest and len(forms) < most and not (len(forms) > 1 and budget.late):
        rows = draw(min(MAX_ROWS_TOGETHER, together, most - len(forms)), project=outside)
        forms += ((rest - dimensions) * (rows * operator(rows)).double().sum(1)).tolist()
    largest = max(float(rule.nodes.abs().max()) for rule in rules)
    rounding = ROUNDING * torch.finfo(eigenvectors.dtype).eps * largest * dimensions
    inside = known + captured
    trace = Estimate.of([inside + form for form in forms]) if forms else Estimate(value=inside, error=0.0)
    trace = Estimate(value=trace.value, error=trace.error + rounding)
    return trace, _density(rules, ends, rest) if density else None, len(rules) if density else 0


def _density(rules: list[Quadrature], ends: Ends, rest: int) -> Density:
    """Return the density of all eigenvalues."""
    sharp = torch.tensor([*ends.top, *ends.bottom], dtype=torch.float64)
    nodes = torch.cat([sharp, *(rule.nodes for rule in rules)])
    low, high = float(nodes.min()), float(nodes.max())
    width = WIDTH * max(high - low, 1e-300)
    places = torch.linspace(low - 3 * width, high + 3 * width, DENSITY_POINTS, dtype=torch.float64)
    peaks = _smoothed(places, sharp, torch.ones_like(sharp), width)
    columns = torch.stack([rest * _smoothed(places, rule.nodes, rule.weights, width) + peaks for rule in rules])
    columns = columns / (rest + len(sharp))
    return Density(
        places=tuple(places.tolist()),
        values=tuple(columns.mean(0).tolist()),
        errors=tuple(standard_errors(columns).tolist()),
        width=width,
        near_zero=_near_zero(rules, ends, rest, float(nodes.abs().max())),
    )


def _near_zero(rules: list[Quadrature], ends: Ends, rest: int, largest: float) -> Share:
    """Return the share of all eigenvalues near zero: the mean of each side over the random vectors.

    The random vectors enclose the share of the eigenvalues of the rest, P A P with P = I - Q Q^T. With R = P A Q, whose
    columns have the lengths of the residuals, the eigenvalues of A are those of the rest and the known ones, each moved
    by at most norm(R): the limit is moved by as much. Where that is too far, the rest has in any interval as many
    eigenvalues as A, give or take as many as are known (Cauchy's interlacing).
    """
    sharp = torch.tensor([*ends.top, *ends.bottom], dtype=torch.float64).abs()
    limit, rounding = NEAR * largest, ROUNDING * torch.finfo(ends.vectors.dtype).eps * largest
    coupling = math.hypot(*ends.residuals)
    few = coupling <= MOVED * limit
    margin = rounding + coupling if few else rounding
    sides = torch.tensor([rule.share(limit, margin) for rule in rules], dtype=torch.float64) * rest
    limits = torch.tensor([limit - margin, limit, limit + margin], dtype=torch.float64)
    within = (sharp[:, None] <= limits).sum(0).double()
    sides += within if few else torch.tensor([-float(len(sharp)), float(within[1]), float(len(sharp))])
    sides = (sides / (rest + len(sharp))).clamp(0.0, 1.0)
    lower, value, upper = sides.mean(0).tolist()
    return Share(value=value, error=float(standard_errors(sides).max()), lower=lower, upper=upper)


def _smoothed(places: Tensor, nodes: Tensor, weights: Tensor, width: float) -> Tensor:
    """Return the sum of Gaussians at weighted nodes, evaluated at some places."""
    bells = torch.exp(-0.5 * ((places[:, None] - nodes[None, :]) / width) ** 2) / (width * math.sqrt(2 * math.pi))
    return bells @ weights
