"""The figures of every weight, collected sample by sample: both sides, and what the paper prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...core.bracket import Bracket, Evidence, Scope
from ...core.budget import Budget, Progress
from ...core.errors import InputError
from ...core.log10 import log10
from ...core.rounding import ONE, ZERO, Upper, root_sum_squares, total
from ...theory.losses import Loss
from ..bounds_by_method import printed
from ..certificate import WIDEST, ChainCertificate, ClosedForm, MatrixBlock
from ..graph.ir import Node, Ref, Shape, overlap
from ..graph_weights import Applied, factors_of, joint, reading
from ..linalg.dense_form import cost
from ..linalg.linear_map import LinearMap
from ..linalg.operator_norms import remembered, upper
from ..linalg.patches import Read
from ..operators.effects import Elementwise, Unbounded
from ..operators.invariance import feeds
from ..segments import Segments, propagate
from ..traced_network import BoundSettings, TracedNetwork
from .jacobian import JacobianFound, JacobianSearch, weight_slopes
from .sample_loss import LossFunction, SampleLoss, constant_of, trace_loss
from .sensitivity import WeightRow
from .tails import Tails

ALL_CLASSES = 10_000_000
"""Where rows times squared classes are at most this many, every class is tried as a target; else the least likely."""


@dataclass(frozen=True, slots=True)
class LossRows:
    """How an output of some shape is read as rows of classes (or predictions).

    The last dimension holds the classes (`[samples, K]`, `[samples, tokens, K]`), or the second if there are four and
    more (`[samples, K, height, width]`).
    """

    shape: Shape

    @property
    def axis(self) -> int:
        """The dimension of the classes."""
        return 1 if len(self.shape) >= 4 else -1

    @property
    def classes(self) -> int:
        """How many outputs a row has."""
        return self.shape[self.axis] if self.shape else 1

    @property
    def count(self) -> int:
        """How many rows there are."""
        return math.prod(self.shape) // max(self.classes, 1)

    def split(self, flat: Tensor) -> Tensor:
        """Return a flat output as `[rows, classes]`."""
        return flat.reshape(self.shape or (1,)).movedim(self.axis, -1).reshape(self.count, self.classes)

    def targets(self, loss: Loss, targets: Tensor) -> Tensor:
        """Return one sample's targets as `[rows]` classes or `[rows, classes]` values; an error if they do not fit."""
        needed = self.count if loss.targets == "classes" else self.count * self.classes
        if targets.numel() != needed:
            raise InputError(f"the {loss.name} needs {needed} target(s) for outputs of shape {list(self.shape)}")
        if loss.targets == "values":
            return self.split(targets.double())
        labels = targets.reshape(-1)
        if labels.is_floating_point() or bool(((labels < 0) | (labels >= self.classes)).any()):
            raise InputError(f"the targets of the {loss.name} are classes from 0 to {self.classes - 1}")
        return labels.long()

    def loss(self, loss: Loss, targets: Tensor | None, output: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return the mean loss as a function of the flat output; None where targets are needed and there are none.

        Without targets the classes that move the loss most at `output` are taken.
        """
        chosen = targets
        if chosen is None:
            if loss.targets == "values":
                return None
            chosen = steepest_classes(loss, self.split(output.detach().double()))
        goal = chosen.to(output.device)
        return lambda flat: loss.rows(self.split(flat), goal).mean()


def steepest_classes(loss: Loss, logits: Tensor) -> Tensor:
    """Return, for every row of logits, the class as whose loss the gradient is longest (or the least likely)."""
    rows, classes = logits.shape
    if rows * classes**2 > ALL_CLASSES:
        return logits.argmin(-1)
    every = torch.arange(classes, device=logits.device)
    with torch.enable_grad():
        wide = logits.repeat_interleave(classes, dim=0).requires_grad_(True)
        (slopes,) = torch.autograd.grad(loss.rows(wide, every.repeat(rows)).sum(), wide)
    return slopes.norm(dim=-1).reshape(rows, classes).argmax(-1)


def targets_by_sample(
    loss: Loss | LossFunction, targets: Tensor, rows: LossRows, samples: int, *, whole: bool
) -> list[Tensor]:
    """Return the targets of every measured sample from what the user passed, one entry per sample."""
    if not isinstance(targets, Tensor):
        raise InputError(f"targets is a {type(targets).__name__}: pass a tensor")
    if whole:
        return [rows.targets(loss, targets) if isinstance(loss, Loss) else targets]
    if targets.ndim == 0 or len(targets) < samples:
        raise InputError(f"{len(targets) if targets.ndim else 1} target(s) for {samples} samples")
    if not isinstance(loss, Loss):
        return list(targets[:samples].split(1))
    return [rows.targets(loss, target) for target in targets[:samples]]


NO_FORMULA = Bracket(
    log10_lower=-math.inf, log10_upper=math.inf, evidence=Evidence.NUMERICAL, method="printed product", holds=False,
    reason="the weight is applied several times",
)  # fmt: skip
NO_TIME = "max_seconds left no time to bound it"
TIGHT_ENTRIES = 65536
"""Maps with at most this many matrix entries are bounded tightly whatever the steps that are left."""
CHAIN_COST = 1e11
"""Most operations that certificates behind all the weights may take; beyond it folded norms alone are used."""


SIDE = 512
"""Segments of several sources up to this size are written out side by side, anew behind every weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlan:
    """What to measure.

    Attributes:
        search: how to look from below.
        loss, targets: the loss, and what its lower side is taken at.
        samples: at most this many samples of the batch; None for all.
        chain_cost: most operations for certificates behind the weights; below zero: none.
        side: segments of several sources up to this size are written out side by side.
        norms: for maps that are not bounded yet, in multiplications: once it is over only cheap bounds are taken. None:
            the budget of all bounds, where only a deadline limits them.
        witnesses: whether to keep the changes that attain the lower sides.
    """

    search: JacobianSearch
    loss: Loss | LossFunction | None = None
    targets: Tensor | None = None
    samples: int | None = None
    chain_cost: float = CHAIN_COST
    side: int = SIDE
    norms: Budget | None = None
    witnesses: bool = True


@dataclass(slots=True)
class _Samples:
    """What is known of one weight, one entry per sample."""

    read: list[Upper] = field(default_factory=list)
    behind: list[Upper] = field(default_factory=list)
    whole: list[Upper] = field(default_factory=list)
    printed: list[Bracket] = field(default_factory=list)
    output: list[JacobianFound] = field(default_factory=list)
    scalar: list[JacobianFound] = field(default_factory=list)


class WeightFigures:
    """Collects the figures of all weights, sample by sample."""

    def __init__(
        self, captured: TracedNetwork, bounding: BoundSettings, plan: WeightPlan, weights: Sequence[Applied]
    ) -> None:
        self.captured, self.bounding, self.plan, self.weights = captured, bounding, plan, weights
        self.tails = Tails(captured.segments)
        self.nodes = {node.name: node for node in captured.double}
        self.figures = {weight.name: _Samples() for weight in weights}
        self.unknown: dict[str, str] = {}
        self.notes: list[str] = []
        self.constants: list[Upper] = []
        """Those of the loss, one per sample."""
        self.rows = LossRows(captured.double.output_shape)
        self.invariant = {feed.weight.name for feed in feeds(captured.graph) if feed.scale_invariant}
        self._parameters = list(captured.model.named_parameters(remove_duplicate=False))
        self._kept: dict[tuple[str, ...], tuple[Upper, Bracket]] = {}
        self._blocks: dict[LinearMap, MatrixBlock | None] = {}
        shapes = [a.node.shape for a in captured.segments.atoms.values() if isinstance(a.effect, Elementwise)]
        widths = [math.prod(shape) if math.prod(shape) <= WIDEST else min(shape[-1], WIDEST) for shape in shapes]
        self._chained = len(weights) / 2 * sum(20.0 * width**3 for width in widths) <= plan.chain_cost

    def _norm(self, linear: LinearMap) -> Upper:
        """Bound one map within the budget."""
        norms = self.plan.norms
        if norms is None:
            return self.bounding.norm(linear)
        tiny = linear.in_size * linear.out_size <= TIGHT_ENTRIES
        short, long = sorted((linear.in_size, linear.out_size))
        work = min(float(short) * short * long, 300.0 * cost(linear))  # of its matrix, or of a few hundred products
        if tiny or remembered(linear, self.bounding.rtol) or norms.spend(work):
            return upper(linear, rtol=self.bounding.rtol, budget=self.bounding.norms.share(0.7))
        return upper(linear, rtol=self.bounding.rtol, budget=Budget(0))

    def add(self, point: Tensor, goal: Tensor | None, progress: Progress) -> None:
        """Measure every weight at one more input."""
        graph = self.captured.double
        with torch.no_grad():
            values = graph.values(*graph.split(point.double()))
            for weight in self.weights:
                progress.step(self.nodes[weight.nodes[0]].path)
                if weight.name not in self.unknown:
                    self.bounding.closed_forms.attempt(
                        partial(self._upper, weight, values), partial(self._unbounded, weight)
                    )
        left = [weight for weight in self.weights if weight.name not in self.unknown]
        loss = self._loss(goal, values[graph.output])
        slopes: dict[str, tuple[JacobianFound, JacobianFound]] = self.plan.search.budget.attempt(
            lambda: weight_slopes(graph, left, values, self.plan.search, loss, base=self.captured.certain), dict
        )
        for weight in left:
            output, scalar = slopes.get(weight.name, (JacobianFound(), JacobianFound()))
            if not self.plan.witnesses:
                output, scalar = replace(output, change=None), replace(scalar, change=None)
            self.figures[weight.name].output.append(output)
            self.figures[weight.name].scalar.append(scalar)

    def _loss(self, goal: Tensor | None, output: Tensor) -> SampleLoss | None:
        """Return the loss of a sample, None where there is none or its lower side needs targets; note its constant."""
        loss = self.plan.loss
        if loss is None:
            return None
        if not isinstance(loss, Loss):
            dtype = self.captured.graph.node(self.captured.graph.output).dtype
            traced, constant = trace_loss(loss, output, goal, dtype, self.bounding)
            self.constants.append(constant)
            return traced
        self.constants.append(loss.upper(self.rows.classes, self.rows.count))
        value = self.rows.loss(loss, goal, output)
        if value is None:
            self.notes.append(f"the lower side of the {loss.name} needs targets")
            return None
        return SampleLoss(value=value, constant=constant_of(self.constants[-1]))

    @property
    def loss_constant(self) -> Upper | None:
        """The largest constant of the loss among the samples; None without a loss."""
        return max(self.constants, key=lambda constant: constant.log10, default=None)

    def _upper(self, weight: Applied, values: Mapping[str, Tensor]) -> None:
        """Bound one weight's sensitivity at the data."""
        figures, reads, square = self.figures[weight.name], {}, 0.0
        for name in weight.nodes:
            node = self.nodes[name]
            read = reading(node, self.captured.segments.effects[name], values)
            if read is None:
                self.unknown[weight.name] = node.path or node.name
                return
            reads[name] = read
            square += float(values[_read_by(node).name].double().square().sum())
        if weight.chained:
            norms = [self._norm_of(read) for read in reads.values()]
            behind, formula = Upper.infinite(self._chained_reason(weight, norms, values)), NO_FORMULA
        else:
            norms = [self._norm_of(read) for read in joint(reads, weight)]
            behind, formula = self._behind(weight.nodes, values)
        norm = root_sum_squares(norms)
        figures.read.append(norm)
        figures.behind.append(behind)
        figures.whole.append(ZERO if norm.log10 == -math.inf else norm.times(behind))
        figures.printed.append(self._theorem12(weight, formula, norm, math.sqrt(square)))

    def _unbounded(self, weight: Applied) -> None:
        """Say of one weight that there was no time to bound its sensitivity."""
        figures, nothing = self.figures[weight.name], Upper.infinite(NO_TIME)
        for bounds in (figures.read, figures.behind, figures.whole):
            bounds.append(nothing)
        figures.printed.append(replace(NO_FORMULA, reason=NO_TIME))

    def _norm_of(self, read: Read) -> Upper:
        return read.norm(rtol=self.bounding.rtol, budget=self.bounding.norms.share(0.7))

    def _behind(self, names: tuple[str, ...], values: Mapping[str, Tensor]) -> tuple[Upper, Bracket]:
        """Bound the network behind nodes; the same for all samples unless the data decide."""
        if names in self._kept:
            return self._kept[names]
        segments, particular = self.tails.behind(names, values)
        chain = None
        if self._chained:
            device = segments.graph.inputs[0].value.device
            chain = ChainCertificate(ClosedForm(), device, self.bounding.closed_forms)
            if not particular:  # maps are shared between the networks behind the weights: write them out once
                chain.blocks = self._blocks
        start = {item.name: ONE if item.name in names else ZERO for item in segments.graph.inputs}
        bounds = propagate(segments, self._norm, fold=True, chain=chain, start=start, side=self.plan.side)
        bound = bounds[segments.graph.output]
        if bound.log10 == math.inf and not bound.reason:
            bound = Upper.infinite(_reason(segments))
        result = bound, printed(segments, self._norm, exact=False)
        if not particular:
            self._kept[names] = result
        return result

    def _chained_reason(self, weight: Applied, norms: Sequence[Upper], values: Mapping[str, Tensor]) -> str:
        """Say why a weight that acts on its own output has no constant, and what holds at its present value."""
        each = [norm.times(self._behind((name,), values)[0]) for norm, name in zip(norms, weight.nodes, strict=True)]
        bound = total(each).log10
        local = f"; at its present value its derivative is at most 10^{bound:.3f}" if bound < math.inf else ""
        return (
            f"the weight is applied {len(weight.nodes)} times, also to what it made itself: the output is no Lipschitz "
            f"function of it{local}"
        )

    def _theorem12(self, weight: Applied, formula: Bracket, read: Upper, size: float) -> Bracket:
        """Return A_{i-1} b_{i+1} prod NO_k as printed, with A the norm of all the layer reads at the data."""
        reason = formula.reason
        if len(weight.nodes) > 1:
            reason = "the weight is applied several times"
        elif reason is None and read.log10 > log10(size) + 1e-9:
            reason = "the layer reads an entry several times: norm(H) is above the norm of its input"
        exponent = formula.log10_upper + log10(size) if size > 0 else -math.inf
        return replace(
            formula, log10_upper=exponent, method="Theorem 12 as printed", scope=Scope.POINT, holds=reason is None,
            reason=reason,
        )  # fmt: skip

    def row(self, weight: Applied) -> WeightRow:
        """Return everything found for one weight."""
        figures, first = self.figures[weight.name], self.nodes[weight.nodes[0]]
        theorem = replace(
            max(figures.printed, key=lambda item: item.log10_upper),
            holds=all(item.holds for item in figures.printed),
            reason=next((item.reason for item in figures.printed if item.reason), None),
        )
        return WeightRow(
            path=first.path,
            kind=first.kind,
            operator=first.operator,
            parameter=self._parameter(weight, first),
            weight_shape=tuple(weight.value.shape),
            input_shape=_read_by(first).shape,
            output_shape=first.shape,
            uses=len(weight.nodes),
            log10_read=max(bound.log10 for bound in figures.read),
            log10_behind=max(bound.log10 for bound in figures.behind),
            log10_weight=log10(float(weight.value.norm())),
            scale_invariant=set(weight.nodes) <= self.invariant,
            bracket_h=self._bracket(figures.whole, figures.output),
            bracket_f=None if self.plan.loss is None else self._bracket(
                [
                    ZERO if ZERO in (constant, bound) else constant.times(bound)
                    for constant, bound in zip(self.constants, figures.whole, strict=True)
                ],
                figures.scalar,
            ),
            printed_h=theorem,
            printed_f=self._corollary14(theorem),
            notes=self._row_notes(weight),
        )  # fmt: skip

    def _bracket(self, uppers: Sequence[Upper], lowers: Sequence[JacobianFound]) -> Bracket:
        """Return the brackets of all samples and, over them, that of the largest."""
        below = self.plan.search.budget
        advice = None
        if below.ended and not below.cut:
            advice = f"{below.what} ended after its {below.steps:,.0f} steps: some samples have no lower side"
        for budget in (below, self.bounding.norms, self.bounding.closed_forms):
            advice = budget.advice(advice)
        common: dict[str, Any] = {
            "scope": Scope.POINT,
            "mode": self.captured.graph.mode,
            "input_shape": self.captured.graph.input_shape,
            "converged": advice is None,
            "advice": advice,
        }
        each = tuple(
            Bracket(
                log10_lower=low.log10_lower, log10_upper=high.log10, evidence=self.captured.evidence(high),
                method="norm(H) times folded norms", reason=high.reason, **common,
            )
            for high, low in zip(uppers, lowers, strict=True)
        )  # fmt: skip
        top, low = max(each, key=lambda b: b.log10_upper), max(lowers, key=lambda slope: slope.log10_lower)
        return replace(
            top,
            log10_lower=low.log10_lower,
            evidence=min(b.evidence for b in each),
            witness=low.change,
            per_sample=each,
            notes=self.captured.graph.notes,
        )

    def _corollary14(self, theorem: Bracket) -> Bracket | None:
        """Return the printed figure of the loss: the printed one of the output, the loss taken for 1-Lipschitz."""
        loss = self.plan.loss
        if not isinstance(loss, Loss) or loss.as_printed is None:
            return None
        reason = theorem.reason
        if not loss.printed_is_bound(self.rows.classes):
            reason = f"the {loss.name} loss of {self.rows.classes} outputs has the constant sqrt({self.rows.classes})"
        exponent = theorem.log10_upper + log10(loss.as_printed) - log10(self.rows.count) / 2
        return replace(
            theorem, log10_upper=exponent, method="Corollary 14 as printed", holds=reason is None, reason=reason
        )

    def _parameter(self, weight: Applied, node: Node) -> str | None:
        """Return the name of the parameter a weight is (or is a part of), that of its module before others."""
        held = [name for name, value in self._parameters if overlap(value, weight.tensor)]
        return next((name for name in held if name.startswith(f"{node.path}.")), held[0] if held else None)

    def _row_notes(self, weight: Applied) -> tuple[str, ...]:
        notes = []
        if len(weight.nodes) > 1 and not weight.chained:
            notes.append(f"applied {len(weight.nodes)} times, moved in all of them together")
        if weight.also:
            places = ", ".join(weight.also[:3])
            notes.append(f"the weight, or what is computed from it, also serves {places}, which is held fixed")
        tied = [
            path
            for path, module in self.captured.model.named_modules()
            if isinstance(module, nn.Embedding) and overlap(module.weight, weight.tensor)
        ]
        if tied:
            notes.append(f"also the token embedding {tied[0]!r}, which is held fixed")
        return tuple(notes)


def _read_by(node: Node) -> Ref:
    factors = factors_of(node)
    assert factors is not None
    return factors[0]


def _reason(segments: Segments) -> str:
    reasons = [a.effect.reason for a in segments.atoms.values() if isinstance(a.effect, Unbounded)]
    return "; ".join(list(dict.fromkeys(reasons))[:3]) or "a map behind the layer has no certified bound"
