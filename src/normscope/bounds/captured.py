"""`Captured`: one captured graph, its segments and norms, and the bound of every method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..core.bracket import Bracket, Evidence
from ..core.budget import Budget
from ..core.errors import InputError, JacobianError
from ..core.log10 import ceiling10
from ..core.progress import Progress
from ..core.rounding import Upper, smallest
from ..graph.capturing import capture, warmed
from ..graph.ir import Graph
from ..linalg.linear_map import LinearMap
from ..linalg.operator_norms import BOUNDING, upper
from ..rules.effects import Effect, Elementwise, Gain, Linear, Norm, Unbounded
from ..rules.registry import check, fill
from .balls.unrolled import UnrolledNetwork
from .certificate import ChainCertificate, ClosedForm, LipLT, State
from .ellipsoids.ellipsoid_plan import EllipsoidPlan, plan
from .ellipsoids.optimised import TIGHTENING, Certified, optimise
from .ellipsoids.rounded import accounted, is_exact
from .evaluation import ESTIMATED, Values
from .exact.patterns import closer
from .folded import Joints, propagate
from .global_attack import lower_bound
from .passes import multiplications, passes
from .point import first_samples, jacobian_norms
from .printed import printed
from .proofs.multipliers import Multipliers
from .proofs.proof import Proof
from .segments import Segments, segment
from .torus.torus import CertifiedTorus, torus_certificate

ATTACK_STEPS, ATTACK_FEWEST = 600, 6
"""Steps of the search from below, gradients and pairs in float64, through small networks and through the largest."""

ATTACK_WORK = 1.5e10
"""Multiplications of one pass, over all steps of the search from below: large networks take fewer steps."""

PAIRS_WORK = 2e9
"""Multiplications of one pass up to which pairs along directions seen are confirmed where no search is asked for."""

PAIRS_POINTS, PAIRS_FEWER = 3, 1e8
"""Points at which such pairs are tried, those with the largest Jacobians; and multiplications of one pass above which
only the first is, where no search is asked for."""

OBSERVED_SAMPLES, OBSERVED_STEPS, OBSERVED_FEWEST = 8, 60, 4
"""Jacobians are taken at so many samples of the batch, each in so many steps of Lanczos; large networks take fewer."""

OBSERVED_WORK, OBSERVED_PASSES = 1.5e11, 5
"""Multiplications for these Jacobians, and how many passes one step takes: forward, and backward twice."""

OBSERVED_SHARE, ATTACK_SHARE = 0.3, 0.7
"""Of the time that is left, where it is limited: what the Jacobians may take, and what the search from below may, whose
pairs are then confirmed."""

OBSERVED_RTOL = 1e-2
"""How closely these Jacobian norms are taken: they are compared with bounds, and start a search."""

USUAL_STEPS = 10
"""Steps of Lanczos that most networks need."""

NOT_SEARCHED = "the lower side comes from the Jacobians at the data, without a search: lipschitz searches further"
TOO_LARGE = "the network is large and no search was asked for, so there is no lower side: lipschitz searches for one"

EFFORTS = ("fast", "tight", "exact")
"""How hard the upper side is worked on."""

EXACT_RTOL = 1e-6
"""Where the two sides count as met in branch and bound."""

BELOW = "the search from below"
TINY, TINY_PASS = 4096, 1e5
"""Whatever the clock says, maps with at most this many matrix entries, which take a millisecond, are bounded tightly,
and Jacobians and one start of the search from below are taken where a pass takes this many multiplications."""


class Captured:
    """One captured graph, its segments and the norms taken so far."""

    terms = False
    """Whether chains that end in a sum count, too: no checker follows them."""
    provable = True
    """Whether brackets hold what a checker needs, which takes stock of all weights; audits keep none."""

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
        budget: Budget | None = None,
        captured: Graph | None = None,
    ) -> None:
        check_option(on_missing)
        self.limit(Budget(max_seconds=warmed(max_seconds), what="the measurement") if budget is None else budget)
        self.model, self.batch, self.mode, self.output = model, batch, mode, output
        captured = captured or capture(model, batch, mode=mode, output=output)
        self.graph = fill(captured, known or {})
        if on_missing == "error":
            check(self.graph)
        self.rtol = rtol
        self.values: dict[str, Upper] = {}
        self.joints: Joints = {}
        self.plan: EllipsoidPlan | None = None
        self.dense: Certified | None = None
        self.certificate: Certified | None = None
        self.progress: Progress | None = None
        with torch.no_grad(), self.budget.timing():
            self.double = fill(captured.double(), known or {})
            self.segments: Segments = segment(self.double, norm=self.norm)

    def limit(self, budget: Budget) -> None:
        """Set what the bounds that are still to be taken may cost."""
        self.budget, self.below = budget, budget
        self.norms, self.chains = budget.search(BOUNDING), budget.search("the search for closed forms")

    @property
    def complex(self) -> bool:
        """Whether some value is complex: rounding errors are not known then, and there is no lower side."""
        return any(node.dtype.is_complex for node in self.double)

    @property
    def tiny(self) -> bool:
        """Whether a few passes take no time to speak of: they are made whatever the clock says."""
        return multiplications(self.graph) <= TINY_PASS

    @cached_property
    def unrolled(self) -> UnrolledNetwork:
        """The steps of the graph, for balls and for rounding errors."""
        with torch.no_grad():
            return UnrolledNetwork(self.segments)

    @cached_property
    def certain(self) -> Values:
        """The float64 graph with the rounding errors of its values."""
        return Values(self.unrolled, self.norm)

    @cached_property
    def ceilings(self) -> dict[str, float]:
        """The constants of all values over all inputs, rounded up; no ball exceeds them."""
        with torch.no_grad():
            bounds = propagate(self.segments, self.norm, fold=True)
        return {name: ceiling10(bound.log10) * (1 + 1e-12) for name, bound in bounds.items()}

    @property
    def norm(self) -> Norm:
        """The norm of one linear map, within tolerance and budget."""
        return lambda linear: self._norm(linear)

    def _norm(self, linear: LinearMap) -> Upper:
        if self.progress is not None:
            self.progress.step(f"{linear!r}")
        return upper(linear, rtol=self.rtol, budget=self.within(linear, 0.7))

    def within(self, linear: LinearMap, share: float) -> Budget | None:
        """Return the budget of one norm, a share of the time that is left; None for maps that take none to speak of."""
        return None if linear.in_size * linear.out_size <= TINY else self.norms.share(share)

    def rungs(self, effort: str = "fast") -> dict[str, Bracket]:
        """Return the upper side of every method that the effort allows."""
        with torch.no_grad(), Progress("bounding") as self.progress:
            found = {"product": propagate(self.segments, self.norm, fold=False)}
            with self.norms.timing():
                found["folded"] = propagate(self.segments, self.norm, fold=True, joints=self.joints)
            found["liplt"] = self._chained(LipLT(), "liplt")[0]
            found["closed-form"], chains = self._chained(ClosedForm(), "closed-form")
            slopes = [a.effect.slope for a in self.segments.atoms.values() if isinstance(a.effect, Elementwise)]
            if any(a != 0 for a, _ in slopes):  # at a = 0 both choices of Lambda are the same
                doubled, others = self._chained(ClosedForm(doubled=True), "closed-form")
                if doubled[self.graph.output].log10 < found["closed-form"][self.graph.output].log10:
                    chains = others
                found["closed-form"] = {n: smallest([u, doubled[n]]) for n, u in found["closed-form"].items()}
        self.progress = None
        uppers = {name: values[self.graph.output] for name, values in found.items()}
        self.values = {name: smallest([each[name] for each in found.values()]) for name in found["folded"]}
        proof = Proof(graph=self.double, effects=self.segments.effects) if self.provable else None
        proofs: dict[str, Proof | None] = dict.fromkeys(uppers, proof)
        proofs["closed-form"] = None if proof is None else replace(proof, multipliers=chains)
        if effort != "fast":
            tightening = self.budget.search(TIGHTENING)
            tight = tightening.attempt(self.tightened, lambda: None)
            least = min(uppers, key=lambda name: uppers[name].log10)
            if tight is not None and self.certificate is not None and tight.log10 <= uppers[least].log10:
                uppers["tight"] = tight
                proofs["tight"] = None if proof is None else self._proof(proof, self.certificate)
            elif tight is not None or tightening.cut or self.budget.cut:  # what is known without it
                uppers["tight"], proofs["tight"] = uppers[least], proofs[least]
        best = smallest(list(uppers.values()))
        method = next(name for name, value in uppers.items() if value.log10 == best.log10)
        result = self._formulas()
        result |= {name: replace(self._bracket(u, name), proof=proofs[name]) for name, u in uppers.items()}
        result["best"] = replace(self._bracket(best, method), proof=proofs[method])
        later = {"liplt": self.chains, "closed-form": self.chains, "tight": self.budget, "best": self.budget}
        return {name: cut_short(rung, self.norms, later.get(name, self.norms)) for name, rung in result.items()}

    def _formulas(self) -> dict[str, Bracket]:
        """Return the formulas of the paper."""
        return {
            "printed": printed(self.segments, self.norm, exact=False),
            "printed-exact": printed(self.segments, self.norm, exact=True),
        }

    def _proof(self, base: Proof, certificate: Certified) -> Proof:
        """What a checker needs of an optimised certificate."""
        if isinstance(certificate, CertifiedTorus):
            return replace(
                base, multipliers=certificate.runs, given=("ellipsoids on a torus, where they are too wide",)
            )
        assert self.plan is not None
        run = Multipliers(sigma=certificate.sigma, start=self.plan.start, log10=certificate.log10)
        return replace(base, multipliers=(run,))

    def tightened(self) -> Upper | None:
        """Return the bound of the optimised certificate (kept in `certificate`), or None where there is none."""
        budget = self.budget.share(0.7)
        self.plan = plan(self.segments, self.values)
        inputs = {item.name for item in self.graph.inputs}
        waves = None
        if self.plan is None or not inputs.issuperset(self.plan.start):  # too wide to write out: by frequencies
            waves = torus_certificate(self.segments, self.values, budget=budget.share(0.85))
        self.dense = None if self.plan is None else optimise(self.plan, budget=budget)
        sure = None if self.plan is None or self.dense is None else accounted(self.plan, self.dense)
        if sure is not None and (waves is None or sure.log10 <= waves.log10):
            assert self.plan is not None
            self.certificate = self.dense
            known = Evidence.PROVEN if is_exact(self.plan, inputs) else Evidence.NUMERICAL
            effects = [self.segments.effects[step.name] for step in self.plan.steps]
            return Upper(sure.log10, min([known, *map(slope_evidence, effects)]), "tight")
        self.certificate = waves
        if waves is None:
            return None
        return Upper(waves.log10 + 1e-10 if waves.log10 > -math.inf else waves.log10, Evidence.NUMERICAL, "tight")

    def _chained(self, start: State, method: str) -> tuple[dict[str, Upper], tuple[Multipliers, ...]]:
        device = self.double.inputs[0].value.device
        chain = ChainCertificate(start, method, device, self.chains, terms=self.terms)
        with self.chains.timing():
            found = propagate(self.segments, self.norm, fold=True, chain=chain, joints=self.joints)
        return found, chain.proof()

    def _bracket(self, value: Upper, method: str) -> Bracket:
        return Bracket(
            log10_lower=-math.inf,
            log10_upper=value.log10,
            evidence=self.evidence(value),
            method=method,
            mode=self.graph.mode,
            reason=self._reason() if value.log10 == math.inf else None,
            input_shape=self.graph.input_shape,
            notes=self.graph.notes,
        )

    def evidence(self, value: Upper) -> Evidence:
        """Return how a bound of the network is known: one that rounds inside is not the function that was bounded."""
        return min(value.evidence, Evidence.NUMERICAL) if self.graph.rounded else value.evidence

    def _reason(self) -> str:
        """Return every reason why the bound is infinite, the first three by name."""
        reasons = [a.effect.reason for a in self.segments.atoms.values() if isinstance(a.effect, Unbounded)]
        maps = [m for effect in self.segments.effects.values() if isinstance(effect, Linear) for m in effect.maps]
        reasons += [bound.reason for bound in map(self._norm, maps) if bound.reason]
        reasons = list(dict.fromkeys(reasons))
        return "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")

    def climb(
        self, observed: Bracket | None, seed: int, effort: str = "fast", *, search: bool = True
    ) -> dict[str, Bracket]:
        """Return every rung, with one lower side shared by all that bound the network (see `with_lower`)."""
        rungs = self.rungs(effort)
        best = self.with_lower(rungs["best"], observed, seed, search=search)
        if effort == "exact":
            best = rungs["exact"] = self.exact(best)
        rungs["best"] = rungs.pop("best")  # last of those that bound the network
        shared = {
            name: replace(b, log10_lower=best.log10_lower, witness=best.witness, notes=best.notes) if b.holds else b
            for name, b in rungs.items()
        }
        shared = {name: cut_short(rung, self.below) for name, rung in shared.items()}
        shared["best"] = best
        return shared if observed is None else shared | {"observed": observed}

    def observed(self, seed: int, budget: Budget | None = None) -> Bracket:
        """Return the Jacobian norms at the first samples of the batch; raises JacobianError where there is none.

        How many samples and steps there are is counted from shapes, so that `audit`, `ladder` and `lipschitz` see the
        same Jacobians and start the same search from them.
        """
        work = OBSERVED_WORK / OBSERVED_PASSES
        samples = passes(self.graph, OBSERVED_SAMPLES, work=work / USUAL_STEPS)
        there = 1 if self.graph.samples is None else len(self.graph.samples)
        samples = there if 2 * samples > there else samples  # of all samples there is a graph already
        steps = passes(self.graph, OBSERVED_STEPS, work=work, samples=samples, least=OBSERVED_FEWEST)
        return jacobian_norms(
            self.model,
            first_samples(self.batch, samples) if self.graph.per_sample else self.batch,
            mode=self.mode,
            output=self.output,
            rtol=OBSERVED_RTOL,
            steps=steps,
            seed=seed,
            graph=self.graph,
            budget=budget,
        )

    def observed_if_any(self, seed: int) -> Bracket | None:
        """Return the Jacobian norms at the batch, or None where there are none or no time is left for them."""
        budget = Budget() if self.tiny else self.budget.share(OBSERVED_SHARE)
        try:
            return budget.attempt(lambda: self.observed(seed, budget), lambda: None)
        except JacobianError:
            return None

    def with_lower(self, bracket: Bracket, observed: Bracket | None, seed: int, *, search: bool = True) -> Bracket:
        """Complete a bracket from below by pairs where the Jacobian was seen to be largest, and by a search from there.

        Without `search` these pairs are all, and the bracket says so.
        """
        promising: list[tuple[Tensor, Tensor | None]] = []
        if observed is not None and observed.per_sample:
            points = self.graph.samples if self.graph.samples is not None else self.graph.flat()[None]
            ranked = sorted(zip(observed.per_sample, points), key=lambda pair: -pair[0].log10_lower)
            few = PAIRS_POINTS if search or multiplications(self.graph) <= PAIRS_FEWER else 1
            promising = [
                (point, seen.witness if seen.witness.numel() == point.numel() else None) for seen, point in ranked[:few]
            ]
        if not search and multiplications(self.graph) > PAIRS_WORK:
            return replace(bracket, notes=(*bracket.notes, TOO_LARGE))
        steps = passes(self.graph, ATTACK_STEPS, work=ATTACK_WORK, least=ATTACK_FEWEST)
        self.below = self.budget.share(ATTACK_SHARE).search(BELOW, steps)
        whole, part = (Budget(), Budget()) if self.tiny else (self.budget, self.below)
        known = None if self.complex else part.attempt(lambda: self.certain, lambda: None)
        value, pair = -math.inf, None
        if known is not None:
            value, pair = whole.attempt(
                lambda: lower_bound(
                    self.graph,
                    self.double,
                    budget=self.below,
                    seed=seed,
                    promising=promising,
                    enough=bracket.log10_upper,
                    values=known,
                    climb=search,
                    leave=not self.tiny,
                ),
                lambda: (-math.inf, None),
            )
        witness: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None = None
        if pair is not None:
            witness = (self.double.split(pair[0]), self.double.split(pair[1]))
        notes = bracket.notes if search else (*bracket.notes, NOT_SEARCHED)
        notes = (*notes, ESTIMATED) if known is not None and known.estimated else notes
        return cut_short(replace(bracket, log10_lower=value, witness=witness, notes=notes), self.below, self.budget)

    def exact(self, bracket: Bracket) -> Bracket:
        """Close a bracket further by branch and bound over activation patterns, where the network allows it."""
        certified = None if self.dense is None else self.plan
        return self.budget.attempt(
            lambda: closer(self.segments, certified, bracket, self.certain, budget=self.budget, rtol=EXACT_RTOL),
            lambda: cut_short(bracket, self.budget),
        )


def cut_short(bracket: Bracket, *budgets: Budget) -> Bracket:
    """Return a bracket that says what the clock cut short, if anything."""
    for budget in budgets:
        if budget.cut:
            bracket = replace(bracket, converged=False, advice=budget.advice(bracket.advice))
    return bracket


def slope_evidence(effect: Effect) -> Evidence:
    """Return how the slopes or gains of a nonlinear effect are known."""
    if isinstance(effect, Gain):
        return min(gain.evidence for gain in effect.gains)
    return effect.evidence if isinstance(effect, Elementwise) else Evidence.PROVEN


def check_option(on_missing: str, effort: str = "fast") -> None:
    """Refuse what `on_missing` and `effort` cannot be."""
    if on_missing not in ("error", "inf"):
        raise InputError(f'on_missing is "error" or "inf", not {on_missing!r}')
    if effort not in EFFORTS:
        raise InputError(f"effort is one of {', '.join(EFFORTS)}, not {effort!r}")
