"""`lipschitz` and `ladder`: every method's bracket of a network's Lipschitz constant, and the best of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.bracket import Bracket, Evidence, Scope
from ..core.errors import InputError, JacobianError
from ..core.progress import Progress
from ..core.rounding import Upper, smallest
from ..core.untouched import outside_inference_mode
from ..graph.export import capture
from ..graph.ir import Graph, Shape
from ..linalg.linear_map import LinearMap
from ..linalg.norms import upper
from ..rules.effects import Elementwise, Linear, Unbounded
from ..rules.registry import check, fill
from .attack import lower_bound
from .certificate import Certificate, ClosedForm, LipLT, State
from .folded import Norm, propagate
from .point import first_samples, jacobian_norms
from .printed import exact_constant, is_normalizer, is_weight, printed
from .segments import Segments, segment

ATTACK_SECONDS = 10.0
"""Time for the search from below when no budget is given."""

TINY = 65536
"""Maps with at most this many matrix entries are bounded tightly whatever the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One weight layer or normalizer: its own constant, at its real input size.

    Attributes:
        path, operator, kind: where it stands, its operator and its module's class.
        input_shape, output_shape: of the captured graph.
        log10_upper, evidence, method: the bound on its constant.
        normalizer: whether it normalizes.
    """

    path: str
    operator: str
    kind: str
    input_shape: Shape
    output_shape: Shape
    log10_upper: float
    evidence: Evidence
    method: str
    normalizer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder(Mapping[str, Bracket]):
    """Every method's bracket by name, over one captured graph.

    Names: `printed`, `printed-exact` (formulas of the paper; `holds` says whether they bound this network), `product`,
    `folded`, `liplt`, `closed-form`, `best`, and `observed` (POINT, at the given batch) where it could be measured.

    Attributes:
        rungs: the brackets by name.
        layers: the weight layers and normalizers, each with its own constant.
        graph: what was captured.
    """

    rungs: dict[str, Bracket]
    layers: tuple[Layer, ...]
    graph: Graph = field(repr=False)

    def __getitem__(self, name: str) -> Bracket:
        return self.rungs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rungs)

    def __len__(self) -> int:
        return len(self.rungs)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        rows = [
            {
                "path": layer.path,
                "operator": layer.operator,
                "kind": layer.kind,
                "input_shape": list(layer.input_shape),
                "output_shape": list(layer.output_shape),
                "log10_upper": layer.log10_upper if math.isfinite(layer.log10_upper) else str(layer.log10_upper),
                "evidence": layer.evidence.name,
                "method": layer.method,
                "normalizer": layer.normalizer,
            }
            for layer in self.layers
        ]
        return {"schema_version": 1, "rungs": {name: b.to_json() for name, b in self.items()}, "layers": rows}

    def __str__(self) -> str:
        lines = [f"{'method':<14}{'log10 upper':>12}{'log10 lower':>12}  evidence   note"]
        for name, bracket in self.items():
            note = "" if bracket.reason is None else ("not a bound: " if not bracket.holds else "") + bracket.reason
            sides = f"{bracket.log10_upper:>12.4f}{bracket.log10_lower:>12.4f}"
            lines.append(f"{name:<14}{sides}  {bracket.evidence.name:<9}  {note}".rstrip())
        return "\n".join(lines)


@outside_inference_mode
def lipschitz(
    model: nn.Module,
    batch: Any,
    *,
    scope: str | Scope = Scope.GLOBAL,
    mode: str | None = None,
    output: str | int | None = None,
    on_missing: str = "error",
    known: Mapping[str, float] | None = None,
    rtol: float = 1e-3,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Bracket:
    """Bracket the Lipschitz constant of a model.

    GLOBAL: over all inputs of the batch's shape; the upper side is the best of all methods (named in `method`), the
    lower side a pair of inputs confirmed in float64 (`witness`). In eval mode the function is the map of one sample.
    POINT: the Jacobian norm at each sample of the batch.

    Args:
        model: any `torch.nn.Module`.
        batch: a tensor, a tuple of arguments or a dict of them; token models start at their embeddings.
        scope: `"global"` or `"point"`.
        mode: `"train"`, `"eval"`, or None for the mode the model is in. Train mode is a map of the whole batch.
        output: which output to measure, for models with several.
        on_missing: `"error"`: operators without a rule raise one error that lists them; `"inf"`: go on with `+inf`.
        known: constants for modules nobody can see into, by module path.
        rtol: how tight the norms of single layers are asked to be.
        max_seconds: budget; what is left undone falls back to cheaper bounds and a shorter search from below.
        seed: of the search from below.

    Returns:
        The bracket; `+inf` comes with the reason and the module that makes it so.

    Raises:
        InputError: the model does not accept the batch, or holds NaN.
        CaptureError: the model cannot be traced (GLOBAL); POINT still works.
        MissingRuleError: operators without a rule, listed with module path and source line.
        JacobianError: POINT through a `detach` or `no_grad` block.

    Example:
        >>> import torch, normscope as ns
        >>> bracket = ns.lipschitz(torch.nn.Linear(2, 2, bias=False).requires_grad_(False), torch.zeros(1, 2))
        >>> bracket.lower <= bracket.upper
        True

    Reference: Than et al., Lemma 5 and Theorem 9, with the corrections of this project's documentation.
    """
    scope = _scope(scope)
    _check_option(on_missing)
    if scope is Scope.POINT:
        return jacobian_norms(model, batch, mode=mode, output=output, rtol=rtol, seed=seed)
    work = Work(
        model, batch, mode=mode, output=output, on_missing=on_missing, known=known, rtol=rtol, max_seconds=max_seconds
    )
    return work.with_lower(work.rungs()["best"], work.observed_if_any(seed), seed)


@outside_inference_mode
def ladder(
    model: nn.Module,
    batch: Any,
    *,
    mode: str | None = None,
    output: str | int | None = None,
    on_missing: str = "error",
    known: Mapping[str, float] | None = None,
    rtol: float = 1e-3,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Ladder:
    """Return every method's bracket of the Lipschitz constant by name, and the constants of single layers.

    The lower side is searched once and shared by all GLOBAL rungs.

    Args:
        model: any `torch.nn.Module`.
        batch: as for `lipschitz`, and so are `mode`, `output`, `on_missing`, `known`, `rtol`, `max_seconds`, `seed`.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        output: which output to measure.
        on_missing: `"error"` or `"inf"`.
        known: constants of modules by path.
        rtol: tolerance of single norms.
        max_seconds: budget.
        seed: of the search from below.

    Returns:
        A mapping from method name to `Bracket` (see `Ladder`); prints as a table.

    Raises:
        NormscopeError: as `lipschitz` does.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> rungs = ns.ladder(model, torch.randn(3, 4))
        >>> rungs["best"].log10_upper <= rungs["product"].log10_upper
        True
    """
    work = Work(
        model, batch, mode=mode, output=output, on_missing=on_missing, known=known, rtol=rtol, max_seconds=max_seconds
    )
    return Ladder(rungs=work.climb(work.observed_if_any(seed), seed), layers=work.layers(), graph=work.graph)


class Work:
    """One captured graph, its segments and the norms taken so far."""

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        *,
        mode: str | None = None,
        output: str | int | None = None,
        on_missing: str = "error",
        known: Mapping[str, float] | None = None,
        rtol: float = 1e-3,
        max_seconds: float | None = None,
    ) -> None:
        _check_option(on_missing)
        began = time.monotonic()
        self.deadline = None if max_seconds is None else began + max_seconds
        self.model, self.batch, self.mode, self.output = model, batch, mode, output
        captured = capture(model, batch, mode=mode, output=output)
        self.graph = fill(captured, known or {})
        if on_missing == "error":
            check(self.graph)
        self.rtol, self.late = rtol, False
        self.progress: Progress | None = None
        with torch.no_grad():
            self.double = fill(captured.double(), known or {})
            self.segments: Segments = segment(self.double)

    def left(self) -> float | None:
        """Return the seconds left of the budget, or None without one."""
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)

    @property
    def norm(self) -> Norm:
        """The norm of one linear map, within tolerance and budget."""
        return lambda linear: self._norm(linear)

    def _norm(self, linear: LinearMap) -> Upper:
        if self.progress is not None:
            self.progress.step(f"{linear!r}")
        until = None if self.deadline is None else self.deadline - 0.3 * max(self.deadline - time.monotonic(), 0.0)
        self.late = self.late or (until is not None and time.monotonic() > until)
        tiny = linear.in_size * linear.out_size <= TINY
        return upper(linear, rtol=self.rtol, deadline=None if tiny else until)

    def rungs(self) -> dict[str, Bracket]:
        """Return the upper side of every method."""
        with torch.no_grad(), Progress("bounding") as self.progress:
            uppers = {
                "product": propagate(self.segments, self.norm, fold=False)[self.graph.output],
                "folded": propagate(self.segments, self.norm, fold=True)[self.graph.output],
                "liplt": self._certified(LipLT(), "liplt"),
                "closed-form": self._certified(ClosedForm(), "closed-form"),
            }
            slopes = [a.effect.slope for a in self.segments.atoms.values() if isinstance(a.effect, Elementwise)]
            if any(a != 0 for a, _ in slopes):  # at a = 0 both choices of Lambda are the same
                doubled = self._certified(ClosedForm(doubled=True), "closed-form")
                uppers["closed-form"] = smallest([uppers["closed-form"], doubled])
        self.progress = None
        best = smallest(list(uppers.values()))
        method = next(name for name, value in uppers.items() if value.log10 == best.log10)
        result = {"printed": printed(self.segments, self.norm, exact=False)}
        result["printed-exact"] = printed(self.segments, self.norm, exact=True)
        result |= {name: self._bracket(value, name) for name, value in uppers.items()}
        result["best"] = self._bracket(best, method)
        return result

    def _certified(self, start: State, method: str) -> Upper:
        device = self.double.inputs[0].value.device
        chain = Certificate(start, method, device, self.deadline)
        return propagate(self.segments, self.norm, fold=True, chain=chain)[self.graph.output]

    def _bracket(self, value: Upper, method: str) -> Bracket:
        return Bracket(
            log10_lower=-math.inf,
            log10_upper=value.log10,
            evidence=value.evidence,
            method=method,
            mode=self.graph.mode,
            reason=self._reason() if value.log10 == math.inf else None,
            input_shape=self.graph.input_shape,
            notes=self.graph.notes,
            converged=not self.late,
            advice="the budget ran out and cheaper bounds were taken: raise max_seconds" if self.late else None,
        )

    def _reason(self) -> str:
        """Return every reason why the bound is infinite, the first three by name."""
        reasons = [a.effect.reason for a in self.segments.atoms.values() if isinstance(a.effect, Unbounded)]
        maps = [m for effect in self.segments.effects.values() if isinstance(effect, Linear) for m in effect.maps]
        reasons += [bound.reason for bound in map(self._norm, maps) if bound.reason]
        reasons = list(dict.fromkeys(reasons))
        return "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")

    def climb(self, observed: Bracket | None, seed: int) -> dict[str, Bracket]:
        """Return every rung, with one search from below shared by all that bound the network."""
        rungs = self.rungs()
        best = self.with_lower(rungs["best"], observed, seed)
        shared = {
            name: replace(
                b, log10_lower=best.log10_lower if b.holds else b.log10_lower, witness=best.witness, notes=best.notes
            )
            for name, b in rungs.items()
        }
        shared["best"] = best
        return shared if observed is None else shared | {"observed": observed}

    def observed(self, seed: int, samples: int | None = None) -> Bracket:
        """Return the Jacobian norms at the (first samples of the) batch; raises JacobianError where there is none."""
        batch = self.batch if samples is None or not self.graph.per_sample else first_samples(self.batch, samples)
        options: dict[str, Any] = {"mode": self.mode, "output": self.output, "rtol": self.rtol, "graph": self.graph}
        return jacobian_norms(self.model, batch, seed=seed, **options)

    def observed_if_any(self, seed: int) -> Bracket | None:
        """Return the Jacobian norms at the batch, or None where gradients are cut."""
        try:
            return self.observed(seed)
        except JacobianError:
            return None

    def with_lower(self, bracket: Bracket, observed: Bracket | None, seed: int) -> Bracket:
        """Search from below, first where the Jacobian was seen to be largest, and complete the bracket."""
        left = self.left()
        promising: list[tuple[Tensor, Tensor | None]] = []
        if observed is not None and observed.per_sample:
            points = self.graph.samples if self.graph.samples is not None else self.graph.flat()[None]
            ranked = sorted(zip(observed.per_sample, points), key=lambda pair: -pair[0].log10_lower)
            promising = [
                (point, seen.witness if seen.witness.numel() == point.numel() else None) for seen, point in ranked[:3]
            ]
        seconds = ATTACK_SECONDS if left is None else min(left, ATTACK_SECONDS)
        value, pair = lower_bound(self.graph, self.double, seconds=seconds, seed=seed, promising=promising)
        witness: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None = None
        if pair is not None:
            witness = (self.double.split(pair[0]), self.double.split(pair[1]))
        return replace(bracket, log10_lower=value, witness=witness)

    def layers(self) -> tuple[Layer, ...]:
        """Return the weight layers and normalizers with their own constants."""
        rows = []
        for node in self.graph:
            effect = self.segments.effects[node.name]
            normalizer = is_normalizer(node)
            if normalizer:
                bound = exact_constant(effect, self.norm)
            elif is_weight(node) and isinstance(effect, Linear):
                bound = self._norm(effect.maps[0])
            else:
                continue
            rows.append(
                Layer(
                    path=node.path,
                    operator=node.operator,
                    kind=node.kind,
                    input_shape=node.operands[0].shape,
                    output_shape=node.shape,
                    log10_upper=bound.log10,
                    evidence=bound.evidence,
                    method=bound.method,
                    normalizer=normalizer,
                )
            )
        return tuple(rows)


def _check_option(on_missing: str) -> None:
    if on_missing not in ("error", "inf"):
        raise InputError(f'on_missing is "error" or "inf", not {on_missing!r}')


def _scope(scope: str | Scope) -> Scope:
    try:
        found = Scope(scope)
    except ValueError:
        raise InputError(f'scope is "global" or "point", not {scope!r}') from None
    if found is Scope.BALL:
        raise InputError('scope="ball" is not available yet: use "global" or "point"')
    return found
